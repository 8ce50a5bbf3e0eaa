//! `onefold ana ...`: the ANA states of a running daemon's listeners.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::str::FromStr;

use api::ana::{AnaView, SetAna};
use api::client::Client;
use clap::Subcommand;
use nvme::ana::AnaState;

use super::args::PoolArg;
use super::listener::Place;
use super::run::converse;
use super::table::{Align, table};
use super::{Outcome, print, print_json};

/// `onefold ana ...`
#[derive(Debug, Subcommand)]
pub enum AnaCommand {
    /// Set how a listener reaches the namespaces of a group
    #[command(
        after_help = "Examples:\n  onefold ana set tcp://192.0.2.5:4420 1 inaccessible\n  onefold ana set 2 1 non-optimized\n\n\
                      Attached hosts are told, and use their other paths. Namespaces are in group 1 unless \
                      `onefold namespace set` says otherwise."
    )]
    Set {
        /// The listener: its address, or its number as `ana list` shows it
        #[arg(value_name = "ADDRESS|ID")]
        listener: Place,
        /// The group: 1 to 128
        group: u32,
        /// optimized, non-optimized, inaccessible, persistent-loss or change
        #[arg(value_parser = AnaState::from_str)]
        state: AnaState,
        /// The daemon's pool.
        #[command(flatten)]
        pool: PoolArg,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// List the listeners, and the groups that are not optimized there
    #[command(after_help = "Example:\n  onefold ana list --json")]
    List {
        /// The daemon's pool.
        #[command(flatten)]
        pool: PoolArg,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

pub(super) fn run(command: AnaCommand) -> Outcome {
    match command {
        AnaCommand::Set {
            listener,
            group,
            state,
            pool,
            json,
        } => {
            let request = SetAna {
                listener: listener.to_string(),
                group,
                state,
            };
            let view = converse(Client::new(&pool.pool).set_ana(&request))?;
            match json {
                true => print_json(&view)?,
                false => print(&render(&[view])),
            }
        }
        AnaCommand::List { pool, json } => {
            let views = converse(Client::new(&pool.pool).ana())?;
            match json {
                true => print_json(&views)?,
                false => print(&render(&views)),
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn render(views: &[AnaView]) -> String {
    let rows: Vec<_> = views
        .iter()
        .map(|view| {
            vec![
                view.listener.to_string(),
                view.address.clone(),
                groups_text(&view.groups),
            ]
        })
        .collect();
    table(
        &["LISTENER", "ADDRESS", "GROUPS"],
        &rows,
        &[Align::Right, Align::Left, Align::Left],
    )
}

/// The groups that are not optimized at a listener.
pub(super) fn groups_text(groups: &BTreeMap<u32, AnaState>) -> String {
    if groups.is_empty() {
        return "all optimized".to_owned();
    }
    let groups = groups
        .iter()
        .map(|(group, state)| format!("{group}: {state}"));
    groups.collect::<Vec<_>>().join(", ")
}
