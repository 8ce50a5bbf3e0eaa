//! `onefold listener ...`: where a running daemon listens.

use std::process::ExitCode;

use clap::Subcommand;
use fabric::{TlsMode, TransportAddress};
use nvme::ana::AnaState;

use super::ana::groups_text;
use super::commands::converse;
use super::subsystem::Answer;
use super::{Outcome, print, print_json};
use crate::client::Client;
use crate::errors::Failure;
use crate::listener_api::{AddListener, ListenerView, SetListener};
use crate::status::{Align, table};

/// `onefold listener ...`
#[derive(Debug, Subcommand)]
pub enum ListenerCommand {
    /// Listen at one more address, also after the next start
    #[command(
        after_help = "Examples:\n  onefold listener add tcp://192.0.2.5:4421\n  \
                      onefold listener add tcp://192.0.2.5:4430 --tls required"
    )]
    Add {
        /// The address; 0.0.0.0 and :: mean all of the family
        #[arg(value_name = "tcp|rdma://ADDR:PORT")]
        address: TransportAddress,
        /// How.
        #[command(flatten)]
        set: SetArgs,
        /// Where, and how.
        #[command(flatten)]
        answer: Answer,
    },
    /// Change a listener; hosts stay connected
    #[command(
        after_help = "Examples:\n  onefold listener set tcp://192.0.2.5:4420 --tls required\n  \
                      onefold listener set tcp://192.0.2.5:4421 --ana 1=inaccessible --ana 2=optimized\n\n\
                      A listener of `serve --listen` has --tls of `serve` again after the next start."
    )]
    Set {
        /// The address
        #[arg(value_name = "tcp|rdma://ADDR:PORT")]
        address: TransportAddress,
        /// What changes.
        #[command(flatten)]
        set: SetArgs,
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

/// What can be said of a listener.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub struct SetArgs {
    /// Hosts cannot, may or have to come by TLS: off, allowed or required; of TCP listeners. Counts for new
    /// connections; `onefold host tls-key add` keeps hosts' keys
    #[arg(long, value_name = "MODE")]
    pub tls: Option<TlsMode>,
    /// How it reaches the namespaces of a group (1 to 128): optimized, non-optimized, inaccessible,
    /// persistent-loss or change (repeatable)
    #[arg(long, value_name = "GROUP=STATE", value_parser = parse_ana)]
    pub ana: Vec<(u32, AnaState)>,
}

fn parse_ana(text: &str) -> Result<(u32, AnaState), String> {
    let (group, state) = text
        .split_once('=')
        .ok_or_else(|| format!("'{text}' is not GROUP=STATE, such as 1=inaccessible"))?;
    let group = group
        .parse()
        .map_err(|_| format!("'{group}' is no ANA group: they are 1 to 128"))?;
    let state = state.parse::<AnaState>();
    Ok((group, state.map_err(|error| error.to_string())?))
}

/// The listener at that address.
fn listener_at(client: &Client, address: TransportAddress) -> Result<ListenerView, Failure> {
    let mut listeners = converse(client.listeners())?.into_iter();
    listeners
        .find(|view| view.address == address)
        .ok_or_else(|| {
            Failure::new(
                dedup::ErrorKind::NotFound,
                format!(
                    "there is no listener at '{address}': `onefold listener list` shows those there are"
                ),
            )
        })
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
        ListenerCommand::Add {
            address,
            set,
            answer,
        } => {
            let client = Client::new(&answer.pool.pool);
            let request = AddListener {
                address,
                tls: set.tls.map(|mode| mode.to_string()),
                ana: set.ana.into_iter().collect(),
            };
            let view = converse(client.add_listener(&request))?;
            let text = format!("listener {}: {}\n", view.id, view.address);
            (view, text, answer.json)
        }
        ListenerCommand::Set {
            address,
            set,
            answer,
        } => {
            if set == SetArgs::default() {
                return Err(Failure::invalid("nothing to change: name --tls or --ana").into());
            }
            let client = Client::new(&answer.pool.pool);
            let known = listener_at(&client, address)?;
            let request = SetListener {
                tls: set.tls.map(|mode| mode.to_string()),
                ana: set.ana.into_iter().collect(),
            };
            let view = converse(client.set_listener(known.id, &request))?;
            let text = listener_table(std::slice::from_ref(&view));
            (view, text, answer.json)
        }
        ListenerCommand::Remove { address, answer } => {
            let client = Client::new(&answer.pool.pool);
            let known = listener_at(&client, address)?;
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
                view.tls.to_string(),
                groups_text(&view.ana),
                kept.to_owned(),
            ]
        })
        .collect();
    let mut align = [Align::Left; 5];
    align[0] = Align::Right;
    table(&["ID", "ADDRESS", "TLS", "ANA", "KEPT"], &rows, &align)
}
