//! `onefold drive ...`: the drives of a running daemon.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use api::client::Client;
use api::drives::{AddDrive, ChangeDrive, DriveChange, DriveUse, DriveView};
use clap::Subcommand;
use subsystem::errors::Failure;

use super::args::PoolArg;
use super::run::converse;
use super::table::{Align, table};
use super::{Outcome, print, print_json};
use crate::options::{DriveArg, drive_path};
use crate::size::format_human;

/// `onefold drive ...`
#[derive(Debug, Subcommand)]
pub enum DriveCommand {
    /// Add a drive to the pool, for good: a block device or a file that holds nothing yet
    #[command(
        after_help = "Examples:\n  onefold drive add /dev/nvme2n1 --pool /srv/pool\n  onefold drive add /srv/more=500G\n\n\
                      New data spreads over the drives by their free space. A pool without copies needs all of its drives from then on."
    )]
    Add {
        /// A block device, a file, or a file to be made with its size; and the failure domain
        #[arg(value_name = "PATH[=SIZE][,domain=NAME]")]
        drive: DriveArg,
        /// Use the drive even if it holds data, which is then LOST. Needs the drive's path once more
        #[arg(long, value_name = "PATH")]
        force: Option<PathBuf>,
        /// The daemon's pool.
        #[command(flatten)]
        pool: PoolArg,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Take a drive out of use: it is neither read nor written, and others have its data (pools with copies)
    #[command(after_help = "Example:\n  onefold drive offline /dev/nvme2n1")]
    Offline {
        /// A drive of the pool
        path: PathBuf,
        /// The daemon's pool.
        #[command(flatten)]
        pool: PoolArg,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Use a drive again that is offline: it gets what it missed, in the background
    #[command(after_help = "Example:\n  onefold drive online /dev/nvme2n1")]
    Online {
        /// A drive of the pool
        path: PathBuf,
        /// The daemon's pool.
        #[command(flatten)]
        pool: PoolArg,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Put another drive in the place of one: it gets all of its data, in the background (pools with copies)
    #[command(
        after_help = "Example:\n  onefold drive replace /dev/nvme2n1 /dev/nvme3n1\n\nThe old drive is not used from then on."
    )]
    Replace {
        /// A drive of the pool
        old: PathBuf,
        /// A block device, a file, or a file to be made with its size; and the failure domain
        #[arg(value_name = "PATH[=SIZE][,domain=NAME]")]
        new: DriveArg,
        /// Use the new drive even if it holds data, which is then LOST. Needs the drive's path once more
        #[arg(long, value_name = "PATH")]
        force: Option<PathBuf>,
        /// The daemon's pool.
        #[command(flatten)]
        pool: PoolArg,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Let an empty drive wait for the failure of one: then it takes its place at once (pools with copies)
    #[command(
        after_help = "Example:\n  onefold drive spare /dev/nvme4n1\n\nIt takes the place of a drive that fails, not of one that \
                      `onefold drive offline` took out of use."
    )]
    Spare {
        /// A block device, a file, or a file to be made with its size; and the failure domain
        #[arg(value_name = "PATH[=SIZE][,domain=NAME]")]
        drive: DriveArg,
        /// The daemon's pool.
        #[command(flatten)]
        pool: PoolArg,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Do without a drive: all that lies there is moved to the others, in the background. Or without a spare
    #[command(
        after_help = "Example:\n  onefold drive remove /dev/nvme4n1\n\nHosts notice nothing. `onefold drive list` shows it \
                      as long as anything lies there; `onefold drive online` keeps it after all."
    )]
    Remove {
        /// A drive or a spare of the pool
        path: PathBuf,
        /// The daemon's pool.
        #[command(flatten)]
        pool: PoolArg,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// List the drives and spares, and their space
    #[command(after_help = "Example:\n  onefold drive list --json")]
    List {
        /// The daemon's pool.
        #[command(flatten)]
        pool: PoolArg,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

pub(super) fn run(command: DriveCommand) -> Outcome {
    let (drives, json) = match command {
        DriveCommand::List { pool, json } => (converse(Client::new(&pool.pool).drives())?, json),
        DriveCommand::Add {
            drive,
            force,
            pool,
            json,
        } => {
            let request = request(drive, force)?;
            (converse(Client::new(&pool.pool).add_drive(&request))?, json)
        }
        DriveCommand::Spare { drive, pool, json } => {
            let request = AddDrive {
                spare: true,
                ..request(drive, None)?
            };
            (converse(Client::new(&pool.pool).add_drive(&request))?, json)
        }
        DriveCommand::Remove { path, pool, json } => {
            (change(&pool, &path, DriveChange::Remove)?, json)
        }
        DriveCommand::Offline { path, pool, json } => {
            (change(&pool, &path, DriveChange::Offline)?, json)
        }
        DriveCommand::Online { path, pool, json } => {
            (change(&pool, &path, DriveChange::Online)?, json)
        }
        DriveCommand::Replace {
            old,
            new,
            force,
            pool,
            json,
        } => {
            let replace = DriveChange::Replace(request(new, force)?);
            (change(&pool, &old, replace)?, json)
        }
    };
    if json {
        print_json(&drives)?;
    } else {
        print(&drive_table(&drives));
    }
    Ok(ExitCode::SUCCESS)
}

fn change(pool: &PoolArg, path: &Path, change: DriveChange) -> Result<Vec<DriveView>, Failure> {
    let path = drive_path(path).map_err(Failure::invalid)?;
    let request = ChangeDrive { path, change };
    converse(Client::new(&pool.pool).change_drive(&request))
}

fn request(drive: DriveArg, force: Option<PathBuf>) -> Result<AddDrive, Failure> {
    let DriveArg::Path {
        path,
        size_bytes,
        domain,
    } = drive
    else {
        return Err(Failure::invalid(
            "a memory drive cannot be added: its data would be lost at the end; name a file or a device",
        ));
    };
    let shown = path.display().to_string();
    let absolute = |path: PathBuf| drive_path(&path).map_err(Failure::invalid);
    let path = absolute(path)?;
    let forced = force.map(absolute).transpose()?;
    if let Some(forced) = forced.as_ref().filter(|forced| **forced != path) {
        return Err(Failure::invalid(format!(
            "--force names '{}', and the drive is '{shown}': it takes the path of the drive that may be \
             overwritten",
            forced.display()
        )));
    }
    Ok(AddDrive {
        path,
        size_bytes,
        force: forced.is_some(),
        domain,
        spare: false,
    })
}

fn drive_table(drives: &[DriveView]) -> String {
    let rows: Vec<_> = drives
        .iter()
        .map(|drive| {
            let size = |bytes| match drive.state {
                DriveUse::Spare => "-".to_owned(),
                _ => format_human(bytes),
            };
            vec![
                drive.path.clone(),
                size(drive.capacity_bytes),
                size(drive.used_bytes),
                size(drive.free_bytes),
                drive.errors.to_string(),
                drive.domain.clone().unwrap_or_else(|| "-".to_owned()),
                if drive.metadata { "yes" } else { "-" }.to_owned(),
                match &drive.health {
                    None => "-",
                    Some(health) if health.warnings.is_empty() => "ok",
                    Some(_) => "warning",
                }
                .to_owned(),
                match &drive.rebuild {
                    Some(rebuild) => format!(
                        "{}, {} of {}",
                        drive.state,
                        format_human(rebuild.done_bytes),
                        format_human(rebuild.total_bytes)
                    ),
                    None => drive.state.to_string(),
                },
            ]
        })
        .collect();
    table(
        &[
            "DRIVE", "CAPACITY", "USED", "FREE", "ERRORS", "DOMAIN", "METADATA", "HEALTH", "STATE",
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
        ],
    )
}
