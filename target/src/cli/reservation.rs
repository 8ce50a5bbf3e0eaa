//! `onefold reservation ...`: who reserved a volume of a running daemon.

use std::process::ExitCode;

use api::client::Client;
use api::reservations::ReservationView;
use clap::Subcommand;

use super::args::PoolArg;
use super::run::converse;
use super::table::{Align, table};
use super::{Outcome, print, print_json};

/// `onefold reservation ...`
#[derive(Debug, Subcommand)]
pub enum ReservationCommand {
    /// Show the reservation of a volume and the hosts that are registered
    #[command(after_help = "Example:\n  onefold reservation show db --json")]
    Show {
        /// The volume
        name: String,
        /// The daemon's pool.
        #[command(flatten)]
        pool: PoolArg,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Remove the reservation and all registrations of a volume: a cluster's last resort
    #[command(after_help = "Example:\n  onefold reservation clear db\n\n\
                      Registered hosts are notified. All of them may write again at once: fence lost hosts first.")]
    Clear {
        /// The volume
        name: String,
        /// The daemon's pool.
        #[command(flatten)]
        pool: PoolArg,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

pub(super) fn run(command: ReservationCommand) -> Outcome {
    let (view, json) = match command {
        ReservationCommand::Show { name, pool, json } => {
            (converse(Client::new(&pool.pool).reservation(&name))?, json)
        }
        ReservationCommand::Clear { name, pool, json } => {
            let client = Client::new(&pool.pool);
            (converse(client.clear_reservation(&name))?, json)
        }
    };
    if json {
        print_json(&view)?;
    } else {
        print(&render(&view));
    }
    Ok(ExitCode::SUCCESS)
}

fn render(view: &ReservationView) -> String {
    let kind = view.kind.as_deref().unwrap_or("none");
    let persistent = match view.persistent {
        true => "survives a restart",
        false => "ends with the daemon",
    };
    let mut text = format!("volume {}: reservation {kind}, {persistent}\n", view.volume);
    if !view.registrants.is_empty() {
        let rows: Vec<_> = view
            .registrants
            .iter()
            .map(|host| {
                vec![
                    host.host_id.to_string(),
                    host.key.clone(),
                    if host.is_holder { "yes" } else { "no" }.to_owned(),
                    host.hostnqns.join(" "),
                ]
            })
            .collect();
        text += &table(
            &["HOST ID", "KEY", "HOLDER", "ATTACHED AS"],
            &rows,
            &[Align::Left, Align::Left, Align::Left, Align::Left],
        );
    }
    text
}
