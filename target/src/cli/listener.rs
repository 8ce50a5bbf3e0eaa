//! `onefold listener ...`: where a running daemon listens.

use std::process::ExitCode;

use clap::Subcommand;
use fabric::TransportAddress;

use super::commands::converse;
use super::subsystem::Answer;
use super::{Outcome, print, print_json};
use crate::client::Client;
use crate::errors::Failure;
use crate::listener_api::{AddListener, ListenerView};
use crate::status::{Align, table};

/// `onefold listener ...`
#[derive(Debug, Subcommand)]
pub enum ListenerCommand {
    /// Listen at one more address, also after the next start
    #[command(after_help = "Example:\n  onefold listener add tcp://192.0.2.5:4421")]
    Add {
        /// The address; 0.0.0.0 and :: mean all of the family
        #[arg(value_name = "tcp|rdma://ADDR:PORT")]
        address: TransportAddress,
        /// Where, and how.
        #[command(flatten)]
        answer: Answer,
    },
    /// Listen there no longer: hosts that came that way lose that path
    #[command(after_help = "Example:\n  onefold listener remove tcp://192.0.2.5:4421")]
    Remove {
        /// The address
        #[arg(value_name = "tcp|rdma://ADDR:PORT")]
        address: TransportAddress,
        /// Where, and how.
        #[command(flatten)]
        answer: Answer,
    },
    /// List the listeners
    #[command(after_help = "Example:\n  onefold listener list")]
    List {
        /// Where, and how.
        #[command(flatten)]
        answer: Answer,
    },
}

pub(super) fn run(command: ListenerCommand) -> Outcome {
    let (views, text, json) = match command {
        ListenerCommand::List { answer } => {
            let views = converse(Client::new(&answer.pool.pool).listeners())?;
            let text = listener_table(&views);
            if answer.json {
                print_json(&views)?;
            } else {
                print(&text);
            }
            return Ok(ExitCode::SUCCESS);
        }
        ListenerCommand::Add { address, answer } => {
            let client = Client::new(&answer.pool.pool);
            let view = converse(client.add_listener(&AddListener { address }))?;
            let text = format!("listener {}: {}\n", view.id, view.address);
            (view, text, answer.json)
        }
        ListenerCommand::Remove { address, answer } => {
            let client = Client::new(&answer.pool.pool);
            let listeners = converse(client.listeners())?;
            let known = listeners.iter().find(|view| view.address == address);
            let known = known.ok_or_else(|| {
                Failure::new(
                    dedup::ErrorKind::NotFound,
                    format!("there is no listener at '{address}': `onefold listener list` shows those there are"),
                )
            })?;
            let view = converse(client.remove_listener(known.id))?;
            let text = format!("removed listener {}: {}\n", view.id, view.address);
            (view, text, answer.json)
        }
    };
    if json {
        print_json(&views)?;
    } else {
        print(&text);
    }
    Ok(ExitCode::SUCCESS)
}

fn listener_table(views: &[ListenerView]) -> String {
    let rows: Vec<_> = views
        .iter()
        .map(|view| {
            let kept = if view.kept { "yes" } else { "no" };
            vec![
                view.id.to_string(),
                view.address.to_string(),
                kept.to_owned(),
            ]
        })
        .collect();
    let align = [Align::Right, Align::Left, Align::Left];
    table(&["ID", "ADDRESS", "KEPT"], &rows, &align)
}
