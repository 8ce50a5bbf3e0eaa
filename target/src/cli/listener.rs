//! `onefold listener ...`: where a running daemon listens.

use std::fmt;
use std::process::ExitCode;
use std::str::FromStr;

use api::client::Client;
use api::listeners::{AddListener, ListenerView, SetListener};
use clap::Subcommand;
use fabric::{TlsMode, TransportAddress};
use nvme::ana::AnaState;
use subsystem::errors::Failure;

use super::ana::groups_text;
use super::ask::{self, Attached};
use super::run::converse;
use super::subsystem::Answer;
use super::table::{Align, table};
use super::{Outcome, print, print_json};

/// `onefold listener ...`
#[derive(Debug, Subcommand)]
pub enum ListenerCommand {
    /// Listen at one more address, now and after every start
    #[command(
        after_help = "Examples:\n  onefold listener add tcp://192.0.2.5:4421\n  \
                      onefold listener add tcp://192.0.2.5:4430 --tls required"
    )]
    Add {
        /// The address; 0.0.0.0 and :: mean all of the family
        #[arg(value_name = "tcp|rdma://ADDR:PORT")]
        address: TransportAddress,
        /// How connections at the address are protected and served.
        #[command(flatten)]
        set: SetArgs,
        /// The daemon to ask, and how to print its answer.
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
        /// Its address, or its number as `listener list` shows it
        #[arg(value_name = "ADDRESS|ID")]
        listener: Place,
        /// What changes.
        #[command(flatten)]
        set: SetArgs,
        /// The daemon to ask, and how to print its answer.
        #[command(flatten)]
        answer: Answer,
    },
    /// Remove a listener: hosts that use it lose that path
    #[command(after_help = "Example:\n  onefold listener remove tcp://192.0.2.5:4421")]
    Remove {
        /// Its address, or its number as `listener list` shows it
        #[arg(value_name = "ADDRESS|ID")]
        listener: Place,
        /// Do not ask
        #[arg(long)]
        yes: bool,
        /// The daemon to ask, and how to print its answer.
        #[command(flatten)]
        answer: Answer,
    },
    /// List the listeners
    #[command(after_help = "Example:\n  onefold listener list")]
    List {
        /// The daemon to ask, and how to print its answer.
        #[command(flatten)]
        answer: Answer,
    },
}

/// The settings of a listener.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub struct SetArgs {
    /// Whether hosts connect with TLS: off, allowed or required; for TCP listeners, from the next connection on.
    /// `onefold host tls-key add` stores hosts' keys
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

/// A listener or a referral: by its address, or by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// As lists show it.
    Id(u16),
    /// Where it is.
    At(TransportAddress),
}

impl Place {
    /// Whether what has this number and address is meant.
    pub(super) fn is(self, id: u16, address: TransportAddress) -> bool {
        self == Self::Id(id) || self == Self::At(address)
    }
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(id) = text.parse() {
            return Ok(Self::Id(id));
        }
        let address = text.parse().map(Self::At);
        address.map_err(|error| format!("'{text}' is neither a number nor an address: {error}"))
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id(id) => id.fmt(f),
            Self::At(address) => address.fmt(f),
        }
    }
}

/// The listener that is meant.
fn find(views: &[ListenerView], listener: Place) -> Result<&ListenerView, Failure> {
    let mut views = views.iter();
    let found = views.find(|view| listener.is(view.id, view.address));
    found.ok_or_else(|| {
        let text = format!(
            "there is no listener '{listener}': `onefold listener list` shows those there are"
        );
        Failure::new(dedup::ErrorKind::NotFound, text)
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
            listener,
            set,
            answer,
        } => {
            if set == SetArgs::default() {
                return Err(Failure::invalid("nothing to change: name --tls or --ana").into());
            }
            let client = Client::new(&answer.pool.pool);
            let views = converse(client.listeners())?;
            let known = find(&views, listener)?;
            let request = SetListener {
                tls: set.tls.map(|mode| mode.to_string()),
                ana: set.ana.into_iter().collect(),
            };
            let view = converse(client.set_listener(known.id, &request))?;
            let text = listener_table(std::slice::from_ref(&view));
            (view, text, answer.json)
        }
        ListenerCommand::Remove {
            listener,
            yes,
            answer,
        } => {
            let client = Client::new(&answer.pool.pool);
            let views = converse(client.listeners())?;
            let known = find(&views, listener)?;
            if views.len() == 1 {
                let facts = converse(Attached::of(&client))?.facts_of_all();
                let act = format!(
                    "Remove '{}', the only listener: no host can attach any more",
                    known.address
                );
                ask::agree(yes, &facts, &act, "'yes'", "yes")?;
            }
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
