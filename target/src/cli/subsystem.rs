//! `onefold subsystem ...`, `onefold namespace ...`, `onefold referral ...`: what a running daemon
//! offers to which hosts.

use std::collections::BTreeSet;
use std::process::ExitCode;

use api::client::Client;
use api::namespaces::{AttachNamespace, Mask, NamespaceView, SetNamespace};
use api::referrals::{AddReferral, ReferralView};
use api::subsystems::{CreateSubsystem, SetSubsystem, SubsystemView};
use clap::{ArgAction, Subcommand};
use fabric::TransportAddress;
use nvme::Nqn;
use serde::Serialize;
use subsystem::catalog::WriteProtect;
use subsystem::errors::Failure;

use super::args::PoolArg;
use super::ask::{self, Attached};
use super::listener::Place;
use super::run::converse;
use super::table::on_or_off;
use super::table::{Align, table};
use super::{Outcome, print, print_json};
use crate::options::parse_switch;

/// Where the daemon is, and how its answer is printed.
#[derive(Clone, Debug, clap::Args)]
pub struct Answer {
    /// The daemon's pool.
    #[command(flatten)]
    pub pool: PoolArg,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `onefold subsystem ...`
#[derive(Debug, Subcommand)]
pub enum SubsystemCommand {
    /// Create a subsystem that every host may use, unless hosts are named
    #[command(
        after_help = "Example:\n  onefold subsystem create nqn.2026-11.org.example:vms --host HOSTNQN"
    )]
    Create {
        /// Its name
        nqn: Nqn,
        /// Its serial number: 1 to 20 printable characters [default: random]
        #[arg(long, value_name = "TEXT")]
        serial: Option<String>,
        /// A host that may connect (repeatable); without one, every host may
        #[arg(long = "host", value_name = "HOSTNQN")]
        hosts: Vec<Nqn>,
        /// Hosts may make, attach, detach and delete namespaces
        #[arg(long)]
        namespace_management: bool,
        /// The daemon to ask, and how to print its answer.
        #[command(flatten)]
        answer: Answer,
    },
    /// List the subsystems
    #[command(after_help = "Example:\n  onefold subsystem list --json")]
    List {
        /// The daemon to ask, and how to print its answer.
        #[command(flatten)]
        answer: Answer,
    },
    /// Show one subsystem: its namespaces, and the hosts that may use it
    #[command(after_help = "Example:\n  onefold subsystem show nqn.2026-11.org.example:vms")]
    Show {
        /// Its name
        nqn: Nqn,
        /// The daemon to ask, and how to print its answer.
        #[command(flatten)]
        answer: Answer,
    },
    /// Delete a subsystem: its hosts are disconnected, its volumes stay
    #[command(after_help = "Example:\n  onefold subsystem delete nqn.2026-11.org.example:vms")]
    Delete {
        /// Its name
        nqn: Nqn,
        /// Do not ask
        #[arg(long)]
        yes: bool,
        /// The daemon to ask, and how to print its answer.
        #[command(flatten)]
        answer: Answer,
    },
    /// Change a subsystem
    #[command(
        after_help = "Example:\n  onefold subsystem set nqn.2026-11.org.example:vms --namespace-management on"
    )]
    Set {
        /// Its name
        nqn: Nqn,
        /// Whether hosts that are not on its list may connect
        #[arg(long, value_name = "on|off", value_parser = parse_switch, action = ArgAction::Set)]
        allow_any_host: Option<bool>,
        /// Whether hosts may make, attach, detach and delete namespaces
        #[arg(long, value_name = "on|off", value_parser = parse_switch, action = ArgAction::Set)]
        namespace_management: Option<bool>,
        /// The daemon to ask, and how to print its answer.
        #[command(flatten)]
        answer: Answer,
    },
    /// Add a host to a subsystem's list: as soon as the list has one, no other host may connect
    #[command(
        after_help = "Example:\n  onefold subsystem allow nqn.2026-11.org.example:vms HOSTNQN"
    )]
    Allow {
        /// The subsystem's name
        nqn: Nqn,
        /// The host's name, as in /etc/nvme/hostnqn
        host: Nqn,
        /// The daemon to ask, and how to print its answer.
        #[command(flatten)]
        answer: Answer,
    },
    /// Remove a host from a subsystem's list: it is disconnected at once
    #[command(
        after_help = "Example:\n  onefold subsystem disallow nqn.2026-11.org.example:vms HOSTNQN"
    )]
    Disallow {
        /// The subsystem's name
        nqn: Nqn,
        /// The host's name
        host: Nqn,
        /// The daemon to ask, and how to print its answer.
        #[command(flatten)]
        answer: Answer,
    },
}

/// The settings of a namespace.
#[derive(Clone, Debug, clap::Args)]
pub struct Shown {
    /// Whether several controllers may use it at a time [default of a new one: on]
    #[arg(long, value_name = "on|off", value_parser = parse_switch, action = ArgAction::Set)]
    pub shared: Option<bool>,
    /// Write protection: off, on, until-power-cycle (the daemon's next start) or permanent
    #[arg(long, value_name = "off|on|until-power-cycle|permanent")]
    pub write_protect: Option<WriteProtect>,
    /// Its ANA group, 1 to 128 [default of a new one: 1]
    #[arg(long, value_name = "N")]
    pub ana_group: Option<u32>,
    /// The hosts that see it, a list, or all [default of a new one: all]
    #[arg(long, value_name = "all|HOSTNQN,...", value_parser = parse_mask)]
    pub hosts: Option<Mask>,
}

/// Parses who sees a namespace.
fn parse_mask(text: &str) -> Result<Mask, String> {
    if text == "all" {
        return Ok(Mask::All);
    }
    let parse = |name: &str| {
        name.parse::<Nqn>()
            .map_err(|e| format!("'{name}' is neither 'all' nor the name of a host: {e}"))
    };
    let hosts: Result<BTreeSet<Nqn>, String> = text.split(',').map(parse).collect();
    hosts.map(Mask::Only)
}

impl From<Shown> for SetNamespace {
    fn from(shown: Shown) -> Self {
        Self {
            shared: shown.shared,
            write_protect: shown.write_protect,
            ana_group: shown.ana_group,
            hosts: shown.hosts,
        }
    }
}

/// `onefold namespace ...`
#[derive(Debug, Subcommand)]
pub enum NamespaceCommand {
    /// Attach a volume to a subsystem as a namespace; it stays in other subsystems
    #[command(
        after_help = "Examples:\n  onefold namespace attach nqn.2026-11.org.example:vms vm1 --nsid 7\n  \
                      onefold namespace attach nqn.2026-11.org.example:vms vm1 --move"
    )]
    Attach {
        /// The subsystem's name
        nqn: Nqn,
        /// The volume's name
        volume: String,
        /// Its identifier, 1 to 1024 [default: the lowest free one]
        #[arg(long, value_name = "N")]
        nsid: Option<u32>,
        /// Detach it from all other subsystems at the same moment
        #[arg(long = "move")]
        moves: bool,
        /// Its settings.
        #[command(flatten)]
        shown: Shown,
        /// The daemon to ask, and how to print its answer.
        #[command(flatten)]
        answer: Answer,
    },
    /// Detach a namespace from a subsystem; the volume stays
    #[command(after_help = "Example:\n  onefold namespace detach nqn.2026-11.org.example:vms 7")]
    Detach {
        /// The subsystem's name
        nqn: Nqn,
        /// The namespace
        nsid: u32,
        /// Do not ask
        #[arg(long)]
        yes: bool,
        /// The daemon to ask, and how to print its answer.
        #[command(flatten)]
        answer: Answer,
    },
    /// List the namespaces of all subsystems, or of one
    #[command(after_help = "Example:\n  onefold namespace list")]
    List {
        /// The subsystem's name
        nqn: Option<Nqn>,
        /// The daemon to ask, and how to print its answer.
        #[command(flatten)]
        answer: Answer,
    },
    /// Change a namespace's settings
    #[command(
        after_help = "Example:\n  onefold namespace set nqn.2026-11.org.example:vms 7 --write-protect on"
    )]
    Set {
        /// The subsystem's name
        nqn: Nqn,
        /// The namespace
        nsid: u32,
        /// Its settings.
        #[command(flatten)]
        shown: Shown,
        /// The daemon to ask, and how to print its answer.
        #[command(flatten)]
        answer: Answer,
    },
}

/// `onefold referral ...`
#[derive(Debug, Subcommand)]
pub enum ReferralCommand {
    /// Refer hosts to another discovery service
    #[command(after_help = "Example:\n  onefold referral add tcp://192.0.2.9:8009")]
    Add {
        /// Where it listens
        #[arg(value_name = "tcp|rdma://ADDR:PORT")]
        address: TransportAddress,
        /// The name of its discovery subsystem [default: the well-known one]
        #[arg(long, value_name = "NQN")]
        nqn: Option<Nqn>,
        /// The daemon to ask, and how to print its answer.
        #[command(flatten)]
        answer: Answer,
    },
    /// Remove a referral
    #[command(after_help = "Example:\n  onefold referral remove tcp://192.0.2.9:8009")]
    Remove {
        /// Its address, or its number as `referral list` shows it
        #[arg(value_name = "ADDRESS|ID")]
        referral: Place,
        /// The daemon to ask, and how to print its answer.
        #[command(flatten)]
        answer: Answer,
    },
    /// List the referrals
    #[command(after_help = "Example:\n  onefold referral list")]
    List {
        /// The daemon to ask, and how to print its answer.
        #[command(flatten)]
        answer: Answer,
    },
}

/// Prints what the daemon answered.
pub(super) fn show<T: Serialize>(
    value: &T,
    json: bool,
    text: impl FnOnce(&T) -> String,
) -> Outcome {
    if json {
        print_json(value)?;
    } else {
        print(&text(value));
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) fn subsystem(command: SubsystemCommand) -> Outcome {
    let client = |answer: &Answer| Client::new(&answer.pool.pool);
    match command {
        SubsystemCommand::Create {
            nqn,
            serial,
            hosts,
            namespace_management,
            answer,
        } => {
            let request = CreateSubsystem {
                nqn,
                serial,
                namespace_management,
                hosts: hosts.into_iter().collect(),
            };
            let view = converse(client(&answer).create_subsystem(&request))?;
            show(&view, answer.json, |view| {
                format!("created {}, serial number {}\n", view.nqn, view.serial)
            })
        }
        SubsystemCommand::List { answer } => {
            let views = converse(client(&answer).subsystems())?;
            show(&views, answer.json, |views| subsystem_table(views))
        }
        SubsystemCommand::Show { nqn, answer } => {
            let view = converse(client(&answer).subsystem(&nqn))?;
            show(&view, answer.json, subsystem_text)
        }
        SubsystemCommand::Delete { nqn, yes, answer } => {
            let client = client(&answer);
            let known = async { Ok((client.subsystem(&nqn).await?, Attached::of(&client).await?)) };
            let (view, attached) = converse(known)?;
            let facts = attached.facts_of_subsystem(&view);
            let act = format!("Delete subsystem '{nqn}' and its list of hosts");
            ask::agree(yes, &facts, &act, "'yes'", "yes")?;
            let view = converse(client.delete_subsystem(&nqn))?;
            ask::tell(facts);
            show(&view, answer.json, |view| format!("deleted {}\n", view.nqn))
        }
        SubsystemCommand::Set {
            nqn,
            allow_any_host,
            namespace_management,
            answer,
        } => {
            let request = SetSubsystem {
                allow_any_host,
                namespace_management,
            };
            let view = converse(client(&answer).set_subsystem(&nqn, &request))?;
            show(&view, answer.json, subsystem_text)
        }
        SubsystemCommand::Allow { nqn, host, answer } => {
            let view = converse(client(&answer).allow_host(&nqn, &host))?;
            show(&view, answer.json, subsystem_text)
        }
        SubsystemCommand::Disallow { nqn, host, answer } => {
            let view = converse(client(&answer).disallow_host(&nqn, &host))?;
            show(&view, answer.json, subsystem_text)
        }
    }
}

pub(super) fn namespace(command: NamespaceCommand) -> Outcome {
    let client = |answer: &Answer| Client::new(&answer.pool.pool);
    match command {
        NamespaceCommand::Attach {
            nqn,
            volume,
            nsid,
            moves,
            shown,
            answer,
        } => {
            let request = AttachNamespace {
                volume,
                nsid,
                moves,
                set: shown.into(),
            };
            let client = client(&answer);
            let view = converse(client.attach_namespace(&nqn, &request))?;
            let done = show(&view, answer.json, |view| namespace_line("attached", view))?;
            ask::tell(elsewhere(&converse(client.subsystems())?, &view));
            Ok(done)
        }
        NamespaceCommand::Detach {
            nqn,
            nsid,
            yes,
            answer,
        } => {
            let client = client(&answer);
            let subsystem = converse(client.subsystem(&nqn))?;
            let mut namespaces = subsystem.namespaces.iter();
            let fact = namespaces
                .find(|namespace| namespace.nsid == nsid)
                .and_then(ask::protected);
            if let Some(fact) = fact {
                let act = format!("Detach namespace {nsid} of '{nqn}'");
                ask::agree(yes, &[fact], &act, "'yes'", "yes")?;
            }
            let view = converse(client.detach_namespace(&nqn, nsid))?;
            show(&view, answer.json, |view| namespace_line("detached", view))
        }
        NamespaceCommand::List { nqn, answer } => {
            let client = client(&answer);
            let subsystems = match nqn {
                Some(nqn) => vec![converse(client.subsystem(&nqn))?],
                None => converse(client.subsystems())?,
            };
            let all: Vec<_> = subsystems
                .into_iter()
                .flat_map(|subsystem| subsystem.namespaces)
                .collect();
            show(&all, answer.json, |all| namespace_table(all))
        }
        NamespaceCommand::Set {
            nqn,
            nsid,
            shown,
            answer,
        } => {
            let request: SetNamespace = shown.into();
            if request == SetNamespace::default() {
                return Err(Failure::invalid(
                    "nothing to change: name --shared, --write-protect, --ana-group or --hosts",
                )
                .into());
            }
            let view = converse(client(&answer).set_namespace(&nqn, nsid, &request))?;
            show(&view, answer.json, |view| namespace_line("changed", view))
        }
    }
}

pub(super) fn referral(command: ReferralCommand) -> Outcome {
    let client = |answer: &Answer| Client::new(&answer.pool.pool);
    match command {
        ReferralCommand::Add {
            address,
            nqn,
            answer,
        } => {
            let request = AddReferral { address, nqn };
            let view = converse(client(&answer).add_referral(&request))?;
            show(&view, answer.json, |view| {
                format!("referral {}: {}, {}\n", view.id, view.address, view.nqn)
            })
        }
        ReferralCommand::Remove { referral, answer } => {
            let client = client(&answer);
            let views = converse(client.referrals())?;
            let mut known = views.iter();
            let known = known.find(|view| referral.is(view.id, view.address));
            let id = known.ok_or_else(|| {
                let text = format!(
                    "there is no referral '{referral}': `onefold referral list` shows those there are"
                );
                Failure::new(dedup::ErrorKind::NotFound, text)
            })?;
            let view = converse(client.remove_referral(id.id))?;
            show(&view, answer.json, |view| {
                format!("removed referral {}: {}\n", view.id, view.address)
            })
        }
        ReferralCommand::List { answer } => {
            let views = converse(client(&answer).referrals())?;
            show(&views, answer.json, |views| referral_table(views))
        }
    }
}

/// Other subsystems that show a volume.
fn elsewhere(subsystems: &[SubsystemView], view: &NamespaceView) -> Vec<String> {
    let others = subsystems
        .iter()
        .filter(|other| other.nqn != view.subsystem);
    let also = others.filter_map(|other| {
        let mut namespaces = other.namespaces.iter();
        let there = namespaces.find(|namespace| namespace.uuid == view.uuid)?;
        let (volume, nsid, nqn) = (&view.volume, there.nsid, &other.nqn);
        let whom = match other.allow_any_host {
            true => ", which admits any host",
            false => "",
        };
        Some(format!(
            "Volume '{volume}' is also namespace {nsid} of '{nqn}'{whom}: `onefold namespace detach {nqn} {nsid}` \
             takes it out there (attach --move does so at once)."
        ))
    });
    also.collect()
}

fn subsystem_table(views: &[SubsystemView]) -> String {
    let rows: Vec<_> = views
        .iter()
        .map(|view| {
            vec![
                view.nqn.to_string(),
                view.namespaces.len().to_string(),
                who(view),
                view.controllers.to_string(),
            ]
        })
        .collect();
    table(
        &["SUBSYSTEM", "NAMESPACES", "HOSTS", "CONTROLLERS"],
        &rows,
        &[Align::Left, Align::Right, Align::Left, Align::Right],
    )
}

/// Who may use a subsystem, in a word.
fn who(view: &SubsystemView) -> String {
    match view.allow_any_host {
        true => "any".to_owned(),
        false => view.hosts.len().to_string(),
    }
}

fn subsystem_text(view: &SubsystemView) -> String {
    let mut text = format!(
        "nqn                   {}\nserial                {}\nallow any host        {}\n\
         namespace management  {}\ncontrollers           {}\n",
        view.nqn,
        view.serial,
        on_or_off(view.allow_any_host),
        on_or_off(view.namespace_management),
        view.controllers
    );
    for host in &view.hosts {
        text += &format!("host                  {host}\n");
    }
    if !view.namespaces.is_empty() {
        text.push('\n');
        text += &namespace_table(&view.namespaces);
    }
    text
}

fn namespace_line(done: &str, view: &NamespaceView) -> String {
    format!(
        "{done} namespace {} of {}: volume {}, shared {}, write protect {}, ANA group {}, hosts {}\n",
        view.nsid,
        view.subsystem,
        view.volume,
        on_or_off(view.shared),
        view.write_protect,
        view.ana_group,
        seen_by(view)
    )
}

fn seen_by(view: &NamespaceView) -> String {
    match &view.hosts {
        None => "all".to_owned(),
        Some(hosts) if hosts.is_empty() => "none".to_owned(),
        Some(hosts) => {
            let names: Vec<_> = hosts.iter().map(Nqn::as_str).collect();
            names.join(",")
        }
    }
}

fn namespace_table(views: &[NamespaceView]) -> String {
    let rows: Vec<_> = views
        .iter()
        .map(|view| {
            vec![
                view.subsystem.to_string(),
                view.nsid.to_string(),
                view.volume.clone(),
                on_or_off(view.shared).to_owned(),
                view.write_protect.to_string(),
                view.ana_group.to_string(),
                seen_by(view),
            ]
        })
        .collect();
    let mut align = [Align::Left; 7];
    align[1] = Align::Right;
    align[5] = Align::Right;
    table(
        &[
            "SUBSYSTEM",
            "NSID",
            "VOLUME",
            "SHARED",
            "PROTECTED",
            "ANA",
            "HOSTS",
        ],
        &rows,
        &align,
    )
}

fn referral_table(views: &[ReferralView]) -> String {
    if views.is_empty() {
        return "There is no referral.\n".to_owned();
    }
    let rows: Vec<_> = views
        .iter()
        .map(|view| {
            vec![
                view.id.to_string(),
                view.address.to_string(),
                view.nqn.to_string(),
            ]
        })
        .collect();
    let align = [Align::Right, Align::Left, Align::Left];
    table(&["ID", "ADDRESS", "SUBSYSTEM"], &rows, &align)
}
