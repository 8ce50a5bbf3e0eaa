//! `onefold snapshot ...`: snapshots of the volumes of a running daemon.

use std::process::ExitCode;
use std::time::Duration;

use api::client::Client;
use api::snapshot_schedules::{ScheduleView, SnapshotSchedule};
use api::snapshots::{CreateSnapshots, RollBack, SnapshotView};
use clap::Subcommand;

use super::args::PoolArg;
use super::ask::{self, Attached};
use super::run::converse;
use super::status::nsid_text;
use super::table::{Align, table};
use super::{Outcome, print, print_json};
use crate::size::format_human;
use crate::time::{format_duration, parse_every};

/// `onefold snapshot ...`
#[derive(Debug, Subcommand)]
pub enum SnapshotCommand {
    /// Take snapshots at once, whatever the size; those of one command are of one moment
    #[command(
        after_help = "Examples:\n  onefold snapshot create db@before-upgrade\n  onefold snapshot create db@monday logs@monday\n\n\
                      What hosts wrote before it is in it, and nothing of what they write later. A file system in use is \
                      in it as after a power cut: `fsfreeze` or a flush of the application makes it clean."
    )]
    Create {
        /// The snapshots: VOLUME@NAME, with NAME up to 64 of a-z A-Z 0-9 . _ -
        #[arg(value_name = "VOLUME@NAME", required = true)]
        names: Vec<String>,
        /// The daemon's pool.
        #[command(flatten)]
        pool: PoolArg,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// List the snapshots, the oldest first
    #[command(after_help = "Examples:\n  onefold snapshot list\n  onefold snapshot list db --json")]
    List {
        /// Only those of this volume
        volume: Option<String>,
        /// The daemon's pool.
        #[command(flatten)]
        pool: PoolArg,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Take snapshots of a volume by themselves, and keep so many; without a volume: show what is set
    #[command(
        after_help = "Examples:\n  onefold snapshot schedule db --every 1h --keep 24\n  onefold snapshot schedule db --off\n  \
                      onefold snapshot schedule\n\nThe daemon takes them, the first one now, and names them auto-TIME. Only \
                      these are deleted when there are more than --keep. Those of volumes that are due together are of one \
                      moment."
    )]
    Schedule {
        /// The volume's name
        #[arg(requires = "what")]
        volume: Option<String>,
        /// Time from one to the next, with a unit: 15m, 1h, 1d
        #[arg(long, value_name = "TIME", value_parser = parse_every, group = "what", requires_all = ["keep", "volume"])]
        every: Option<Duration>,
        /// How many are kept, 1 to 1000
        #[arg(long, value_name = "N", requires = "every")]
        keep: Option<u32>,
        /// None are taken any more; those there are stay
        #[arg(long, conflicts_with_all = ["every", "keep"], group = "what", requires = "volume")]
        off: bool,
        /// The daemon's pool.
        #[command(flatten)]
        pool: PoolArg,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Delete a snapshot; its volume, later snapshots and clones stay
    #[command(
        after_help = "Example:\n  onefold snapshot delete db@monday --yes\n\nIt asks first. Where there is no terminal to ask on it takes --yes."
    )]
    Delete {
        /// The snapshot
        #[arg(value_name = "VOLUME@NAME")]
        name: String,
        /// Do not ask: there is no way back
        #[arg(long)]
        yes: bool,
        /// The daemon's pool.
        #[command(flatten)]
        pool: PoolArg,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Give a volume the content and the size that it had when the snapshot was taken
    #[command(
        after_help = "Example:\n  onefold snapshot rollback db@before-upgrade --yes\n\n\
                      What was written since is lost; take a snapshot before to keep it. All snapshots stay, later ones \
                      too. It is refused while hosts are attached to the volume; --force does it under them, and their \
                      file systems have to be unmounted for that."
    )]
    Rollback {
        /// The snapshot
        #[arg(value_name = "VOLUME@NAME")]
        name: String,
        /// Although hosts are attached to the volume
        #[arg(long)]
        force: bool,
        /// Do not ask: what was written since is lost
        #[arg(long)]
        yes: bool,
        /// The daemon's pool.
        #[command(flatten)]
        pool: PoolArg,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

/// `onefold snapshot ...`
pub(super) fn run(command: SnapshotCommand) -> Outcome {
    match command {
        SnapshotCommand::Create { names, pool, json } => {
            let request = CreateSnapshots { names };
            let views = converse(Client::new(&pool.pool).create_snapshots(&request))?;
            show("created", &views, json)
        }
        SnapshotCommand::List { volume, pool, json } => {
            let client = Client::new(&pool.pool);
            if let Some(volume) = &volume {
                converse(client.volume(volume))?; // an unknown name is an error
            }
            let mut views = converse(client.snapshots())?;
            views.retain(|view| volume.as_ref().is_none_or(|volume| view.volume == *volume));
            if json {
                print_json(&views)?;
            } else {
                print(&snapshot_table(&views));
            }
            Ok(ExitCode::SUCCESS)
        }
        SnapshotCommand::Schedule {
            volume,
            every,
            keep,
            off: _,
            pool,
            json,
        } => {
            let client = Client::new(&pool.pool);
            let views = match (volume, every.zip(keep)) {
                (None, _) => converse(client.snapshot_schedules())?,
                (Some(volume), None) => converse(client.unschedule_snapshots(&volume))?,
                (Some(volume), Some((every, keep))) => {
                    let schedule = SnapshotSchedule {
                        every_seconds: every.as_secs(),
                        keep,
                    };
                    converse(client.schedule_snapshots(&volume, &schedule))?
                }
            };
            if json {
                print_json(&views)?;
            } else {
                print(&schedule_table(&views));
            }
            Ok(ExitCode::SUCCESS)
        }
        SnapshotCommand::Delete {
            name,
            yes,
            pool,
            json,
        } => {
            let client = Client::new(&pool.pool);
            let facts = converse(Attached::of(&client))?.facts_of_volume(&name);
            let act = format!("Delete snapshot '{name}', for good");
            ask::agree(yes, &facts, &act, "its name", &name)?;
            let view = converse(client.delete_snapshot(&name))?;
            ask::tell(facts);
            show("deleted", &[view], json)
        }
        SnapshotCommand::Rollback {
            name,
            force,
            yes,
            pool,
            json,
        } => {
            let client = Client::new(&pool.pool);
            let volume = name.split('@').next().unwrap_or_default();
            let facts = converse(Attached::of(&client))?.facts_of_volume(volume);
            let act =
                format!("Roll volume '{volume}' back to '{name}', and lose what was written since");
            ask::agree(yes, &facts, &act, "the snapshot's name", &name)?;
            let view = converse(client.roll_back(&name, &RollBack { force }))?;
            if json {
                print_json(&view)?;
            } else {
                let size = format_human(view.size_bytes);
                print(&format!("rolled back {volume} to {name}: {size}\n"));
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn schedule_table(views: &[ScheduleView]) -> String {
    if views.is_empty() {
        return "No snapshots are taken by themselves: `onefold snapshot schedule VOLUME --every 1h --keep 24` \
                changes that.\n"
            .to_owned();
    }
    let rows: Vec<_> = views
        .iter()
        .map(|view| {
            vec![
                view.volume.clone(),
                format_duration(view.every_seconds),
                view.keep.to_string(),
                view.kept.to_string(),
                view.last.clone().unwrap_or_else(|| "-".to_owned()),
            ]
        })
        .collect();
    let left = Align::Left;
    table(
        &["VOLUME", "EVERY", "KEEP", "KEPT", "LAST"],
        &rows,
        &[left, left, Align::Right, Align::Right, left],
    )
}

fn show(done: &str, views: &[SnapshotView], json: bool) -> Outcome {
    if json {
        print_json(&views)?;
    } else {
        for view in views {
            let size = format_human(view.size_bytes);
            print(&format!("{done} {}: {size}, {}\n", view.name, view.created));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn snapshot_table(views: &[SnapshotView]) -> String {
    if views.is_empty() {
        return "There is no snapshot: `onefold snapshot create VOLUME@NAME` takes one.\n"
            .to_owned();
    }
    let bytes = |bytes: Option<u64>| bytes.map_or_else(|| "-".to_owned(), format_human);
    let rows: Vec<_> = views
        .iter()
        .map(|view| {
            vec![
                view.name.clone(),
                view.created.clone(),
                format_human(view.size_bytes),
                bytes(view.unique_bytes),
                bytes(view.related_bytes),
                bytes(
                    view.shared_bytes
                        .zip(view.related_bytes)
                        .map(|(all, related)| all.saturating_sub(related)),
                ),
                nsid_text(&view.namespaces),
            ]
        })
        .collect();
    table(
        &[
            "SNAPSHOT", "CREATED", "SIZE", "UNIQUE", "RELATED", "OTHERS", "NSID",
        ],
        &rows,
        &[
            Align::Left,
            Align::Left,
            Align::Right,
            Align::Right,
            Align::Right,
            Align::Right,
            Align::Right,
        ],
    )
}
