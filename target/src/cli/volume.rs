//! `onefold volume ...`: volumes of a running daemon.

use std::process::ExitCode;

use api::client::Client;
use api::limits::SetLimits;
use api::snapshots::CloneVolume;
use api::volumes::{CreateVolume, RenameVolume, ResizeVolume, SetPolicy, VolumeView};
use clap::Subcommand;
use meta::{Compression, VerifyPolicy};
use subsystem::errors::Failure;
use uuid::Uuid;

use super::args::PoolArg;
use super::ask::{self, Attached};
use super::limit::{LimitArgs, limit_line};
use super::run::converse;
use super::status::nsid_text;
use super::table::{Align, on_or_off, table};
use super::{Outcome, print, print_json};
use crate::options::{parse_compression, parse_lba, parse_switch, parse_uuid, parse_verify};
use crate::size::{format_human, parse_size};

/// `onefold volume ...`
#[derive(Debug, Subcommand)]
pub enum VolumeCommand {
    /// Create a thin volume; attached hosts see it at once
    #[command(after_help = "Example:\n  onefold volume create db --size 100G --lba 512")]
    Create {
        /// The volume's name: up to 64 of a-z A-Z 0-9 . _ -
        name: String,
        /// Its size as hosts see it; thin, so it may exceed the pool
        #[arg(long, value_name = "SIZE", value_parser = parse_size)]
        size: u64,
        /// Bytes of a logical block: 512 or 4096
        #[arg(long, value_name = "BYTES", value_parser = parse_lba, default_value = "4096")]
        lba: u32,
        /// Whether its blocks are deduplicated, with each other and with those of other volumes
        #[arg(long, value_name = "on|off", value_parser = parse_switch, default_value = "on", action = clap::ArgAction::Set)]
        dedup: bool,
        /// How new contents are stored: compressed ones share blocks, what does not shrink is stored as it is
        #[arg(long, value_name = "off|lz4|zstd", value_parser = parse_compression, default_value = "off")]
        compression: Compression,
        /// What a write does about a block that has the fingerprint of new data: trust it, compare it byte
        /// by byte before the write is acknowledged, or after that in the background
        #[arg(long, value_name = "trust|compare|background", value_parser = parse_verify, default_value = "trust")]
        verify: VerifyPolicy,
        /// Name of its domain: volumes share blocks only with others of the same domain
        #[arg(long, value_name = "NAME", default_value = "")]
        domain: String,
        /// The subsystem that shows it to hosts, or none [default: the default one]
        #[arg(long, value_name = "NQN|none")]
        subsystem: Option<String>,
        /// Its identity, which hosts see as UUID and NGUID; for restores [default: a random one]
        #[arg(long, value_name = "UUID", value_parser = parse_uuid)]
        uuid: Option<Uuid>,
        /// The daemon's pool.
        #[command(flatten)]
        pool: PoolArg,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// List the volumes
    #[command(after_help = "Example:\n  onefold volume list --json")]
    List {
        /// The daemon's pool.
        #[command(flatten)]
        pool: PoolArg,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show one volume
    #[command(after_help = "Example:\n  onefold volume show vol0")]
    Show {
        /// The volume's name
        name: String,
        /// The daemon's pool.
        #[command(flatten)]
        pool: PoolArg,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Change a volume's size; attached hosts see it at once
    #[command(after_help = "Example:\n  onefold volume resize vol0 --size 128G\n\n\
                            Making a volume smaller discards what lies behind its new end, and asks for --shrink.")]
    Resize {
        /// The volume's name
        name: String,
        /// Its new size
        #[arg(long, value_name = "SIZE", value_parser = parse_size)]
        size: u64,
        /// Allow the new size to be smaller: the data behind it is lost
        #[arg(long)]
        shrink: bool,
        /// The daemon's pool.
        #[command(flatten)]
        pool: PoolArg,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Change how a volume stores what is written from now on, and what hosts may do to it in a second
    #[command(
        after_help = "Examples:\n  onefold volume set vol0 --compression zstd --verify compare\n  \
                      onefold volume set vol0 --limit-iops 5000 --limit-bandwidth 200M\n  \
                      onefold volume set vol0 --guarantee-iops 2000\n\n\
                      What was written before stays as it is stored: a copy of the volume, or writing it again, brings it \
                      under the new rules. Snapshots keep the rules that they were taken with, and so does a clone of one."
    )]
    Set {
        /// The volume's name
        name: String,
        /// Whether its blocks are deduplicated, with each other and with those of other volumes
        #[arg(long, value_name = "on|off", value_parser = parse_switch, action = clap::ArgAction::Set)]
        dedup: Option<bool>,
        /// How new contents are stored: compressed ones share blocks, what does not shrink is stored as it is
        #[arg(long, value_name = "off|lz4|zstd", value_parser = parse_compression)]
        compression: Option<Compression>,
        /// What a write does about a block that has the fingerprint of new data: trust it, compare it byte
        /// by byte before the write is acknowledged, or after that in the background
        #[arg(long, value_name = "trust|compare|background", value_parser = parse_verify)]
        verify: Option<VerifyPolicy>,
        /// Name of its domain, which cannot change: only the one that it has is accepted
        #[arg(long, value_name = "NAME")]
        domain: Option<String>,
        /// Its limits and guarantees.
        #[command(flatten)]
        limits: LimitArgs,
        /// The daemon's pool.
        #[command(flatten)]
        pool: PoolArg,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Give a volume another name; hosts see no difference
    #[command(
        after_help = "Example:\n  onefold volume rename vol0 mail\n\nIts identity, data and namespaces stay. A `serve --volume` of the old name would make a new volume."
    )]
    Rename {
        /// The volume's name
        name: String,
        /// Its new name: up to 64 of a-z A-Z 0-9 . _ -
        #[arg(value_name = "NEW-NAME")]
        new: String,
        /// The daemon's pool.
        #[command(flatten)]
        pool: PoolArg,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Bring an image of a disk into a volume: what is there already is stored once
    Import(super::volume_import::ImportArgs),
    /// Write a volume's content to an image of a disk
    Export(super::volume_export::ExportArgs),
    /// Write the table by which a machine boots from a volume over NVMe/TCP
    Nbft(super::volume_nbft::NbftArgs),
    /// Tell where two volumes, or snapshots, differ, without reading their data
    Diff(super::diff::DiffArgs),
    /// Tell which ranges of a volume, or of a snapshot, read as zeros without being stored
    ZeroMap(super::diff::ZeroMapArgs),
    /// Make new volumes with the content of a volume, or of a snapshot, at once whatever the size
    #[command(
        after_help = "Examples:\n  onefold volume clone golden@v1 vm-01\n  onefold volume clone golden vm-{02..99}\n\n\
                      A clone shares what it has with its origin, and each changes what is its own. It stays when the \
                      origin, or the snapshot, is deleted."
    )]
    Clone {
        /// The volume, or a snapshot of it
        #[arg(value_name = "VOLUME[@NAME]")]
        source: String,
        /// The new volumes: up to 64 of a-z A-Z 0-9 . _ - each
        #[arg(value_name = "NEW", required = true)]
        names: Vec<String>,
        /// The subsystem that shows them to hosts, or none [default: the default one]
        #[arg(long, value_name = "NQN|none")]
        subsystem: Option<String>,
        /// The daemon's pool.
        #[command(flatten)]
        pool: PoolArg,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Delete a volume and its data, for good
    #[command(
        after_help = "Example:\n  onefold volume delete old --yes\n\nIt asks first. Where there is no terminal to ask on it takes --yes."
    )]
    Delete {
        /// The volume's name
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
}

/// `onefold volume ...`
pub(super) fn run(command: VolumeCommand) -> Outcome {
    match command {
        VolumeCommand::Create {
            name,
            size,
            lba,
            dedup,
            compression,
            verify,
            domain,
            subsystem,
            uuid,
            pool,
            json,
        } => {
            let request = CreateVolume {
                name,
                size_bytes: size,
                lba_bytes: lba,
                dedup,
                compression,
                verify,
                domain,
                subsystem,
                uuid,
            };
            let client = Client::new(&pool.pool);
            let view = converse(client.create_volume(&request))?;
            let done = show_volume("created", &view, json)?;
            let open = converse(client.subsystems())?
                .into_iter()
                .find(|subsystem| {
                    let mut shown = subsystem.namespaces.iter();
                    subsystem.allow_any_host && shown.any(|namespace| namespace.volume == view.name)
                });
            ask::tell(open.map(|subsystem| {
                let nqn = subsystem.nqn;
                format!(
                    "Volume '{}' is in subsystem '{nqn}', which admits any host: `onefold subsystem allow {nqn} \
                     HOSTNQN` admits only hosts on its list.",
                    view.name
                )
            }));
            Ok(done)
        }
        VolumeCommand::List { pool, json } => {
            let views = converse(Client::new(&pool.pool).volumes())?;
            if json {
                print_json(&views)?;
            } else {
                print(&volume_table(&views));
            }
            Ok(ExitCode::SUCCESS)
        }
        VolumeCommand::Show { name, pool, json } => {
            let view = converse(Client::new(&pool.pool).volume(&name))?;
            show_volume("", &view, json)
        }
        VolumeCommand::Resize {
            name,
            size,
            shrink,
            pool,
            json,
        } => {
            let request = ResizeVolume {
                size_bytes: size,
                shrink,
            };
            let view = converse(Client::new(&pool.pool).resize_volume(&name, &request))?;
            show_volume("resized", &view, json)
        }
        VolumeCommand::Set {
            name,
            dedup,
            compression,
            verify,
            domain,
            limits,
            pool,
            json,
        } => {
            let request = SetPolicy {
                dedup,
                compression,
                verify,
                domain,
            };
            let limits = limits.request();
            let client = Client::new(&pool.pool);
            set(&client, &name, &request, &limits, json)
        }
        VolumeCommand::Rename {
            name,
            new,
            pool,
            json,
        } => {
            let request = RenameVolume { name: new };
            let view = converse(Client::new(&pool.pool).rename_volume(&name, &request))?;
            show_volume("renamed", &view, json)
        }
        VolumeCommand::Import(args) => super::volume_import::run(&args),
        VolumeCommand::Export(args) => super::volume_export::run(&args),
        VolumeCommand::Nbft(args) => super::volume_nbft::run(&args),
        VolumeCommand::Diff(args) => super::diff::run_diff(&args),
        VolumeCommand::ZeroMap(args) => super::diff::run_zero_map(&args),
        VolumeCommand::Clone {
            source,
            names,
            subsystem,
            pool,
            json,
        } => {
            let request = CloneVolume { names, subsystem };
            let views = converse(Client::new(&pool.pool).clone_volume(&source, &request))?;
            if json {
                print_json(&views)?;
            } else {
                for view in &views {
                    show_volume("created", view, false)?;
                }
            }
            Ok(ExitCode::SUCCESS)
        }
        VolumeCommand::Delete {
            name,
            yes,
            pool,
            json,
        } => {
            let client = Client::new(&pool.pool);
            let known = async { Ok((client.volume(&name).await?, Attached::of(&client).await?)) };
            let (view, attached) = converse(known)?;
            let facts = attached.facts_of_volume(&name);
            let act = format!(
                "Delete volume '{name}' with {} of data, for good",
                format_human(view.logical_bytes)
            );
            ask::agree(yes, &facts, &act, "its name", &name)?;
            let view = converse(client.delete_volume(&name))?;
            ask::tell(facts);
            show_volume("deleted", &view, json)
        }
    }
}

/// Changes a volume's policy, its limits, or both.
fn set(client: &Client, name: &str, policy: &SetPolicy, limits: &SetLimits, json: bool) -> Outcome {
    let (no_policy, no_limits) = (SetPolicy::default(), SetLimits::default());
    if *policy == no_policy && *limits == no_limits {
        return Err(Failure::invalid(format!(
            "volume '{name}': nothing is to be changed; say --dedup, --compression, --verify, --limit-iops, \
             --limit-bandwidth or --limit-burst"
        ))
        .into());
    }
    let mut text = String::new();
    if *policy != no_policy {
        let view = converse(client.set_volume_policy(name, policy))?;
        text = format!(
            "set {}: what is written from now on has dedup {}, compression {}, verify {}\n",
            view.name,
            on_or_off(view.dedup),
            view.compression,
            view.verify
        );
    }
    if *limits != no_limits {
        text += &limit_line(&converse(client.set_volume_limits(name, limits))?);
    }
    match json {
        true => print_json(&converse(client.volume(name))?)?,
        false => print(&text),
    }
    Ok(ExitCode::SUCCESS)
}

fn show_volume(done: &str, view: &VolumeView, json: bool) -> Outcome {
    if json {
        print_json(view)?;
    } else if done.is_empty() {
        print(&format!(
            "name         {}\nnsid         {}\nuuid         {}\nnguid        {}\nsize         {} ({} bytes)\n\
             lba          {} bytes\nlogical      {} ({} bytes)\ndedup        {}\ncompression  {}\n\
             verify       {}\ndomain       {}\n",
            view.name,
            nsid_text(&view.namespaces),
            view.uuid,
            view.nguid,
            format_human(view.size_bytes),
            view.size_bytes,
            view.lba_bytes,
            format_human(view.logical_bytes),
            view.logical_bytes,
            on_or_off(view.dedup),
            view.compression,
            view.verify,
            domain_name(&view.domain),
        ));
        if let Some(import) = &view.import {
            print(&format!(
                "import       only the first {} of its {} are there{}: no host sees it\n",
                format_human(import.done_bytes),
                match &import.snapshot {
                    None => "image".to_owned(),
                    Some(snapshot) => format!("snapshot '{snapshot}'"),
                },
                match import.image_bytes {
                    Some(bytes) => format!(", of {}", format_human(bytes)),
                    None => String::new(),
                }
            ));
        }
    } else {
        print(&format!(
            "{done} {}: {}, NSID {}, {}-byte blocks\n",
            view.name,
            format_human(view.size_bytes),
            nsid_text(&view.namespaces),
            view.lba_bytes
        ));
    }
    Ok(ExitCode::SUCCESS)
}

/// The pool's own domain has no name.
const fn domain_name(name: &str) -> &str {
    if name.is_empty() { "-" } else { name }
}

fn volume_table(views: &[VolumeView]) -> String {
    if views.is_empty() {
        return "There is no volume: `onefold volume create NAME --size SIZE` makes one.\n"
            .to_owned();
    }
    let rows: Vec<_> = views
        .iter()
        .map(|view| {
            vec![
                view.name.clone(),
                nsid_text(&view.namespaces),
                format_human(view.size_bytes),
                format_human(view.logical_bytes),
                view.lba_bytes.to_string(),
                on_or_off(view.dedup).to_owned(),
                view.compression.to_string(),
                view.verify.to_string(),
                domain_name(&view.domain).to_owned(),
                view.uuid.clone(),
            ]
        })
        .collect();
    table(
        &[
            "VOLUME",
            "NSID",
            "SIZE",
            "LOGICAL",
            "LBA",
            "DEDUP",
            "COMPRESSION",
            "VERIFY",
            "DOMAIN",
            "UUID",
        ],
        &rows,
        &[
            Align::Left,
            Align::Right,
            Align::Right,
            Align::Right,
            Align::Right,
            Align::Left,
            Align::Left,
            Align::Left,
            Align::Left,
            Align::Left,
        ],
    )
}
