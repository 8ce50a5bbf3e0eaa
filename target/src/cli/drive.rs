//! `onefold drive ...`: the drives of a running daemon.

use std::path::PathBuf;
use std::process::ExitCode;

use api::client::Client;
use api::drives::AddDrive;
use clap::Subcommand;
use dedup::DriveStatus;
use subsystem::errors::Failure;

use super::args::PoolArg;
use super::run::converse;
use super::table::{Align, table};
use super::{Outcome, print, print_json};
use crate::options::DriveArg;
use crate::size::format_human;

/// `onefold drive ...`
#[derive(Debug, Subcommand)]
pub enum DriveCommand {
    /// Add a drive to the pool, for good: a block device or a file that holds nothing yet
    #[command(
        after_help = "Examples:\n  onefold drive add /dev/nvme2n1 --pool /srv/pool\n  onefold drive add /srv/more=500G\n\n\
                      New data spreads over the drives by their free space. A pool needs all of its drives from then on."
    )]
    Add {
        /// A block device, a file, or a file to be made with its size
        #[arg(value_name = "PATH[=SIZE]")]
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
    /// List the drives, and their free space
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
    };
    if json {
        print_json(&drives)?;
    } else {
        print(&drive_table(&drives));
    }
    Ok(ExitCode::SUCCESS)
}

fn request(drive: DriveArg, force: Option<PathBuf>) -> Result<AddDrive, Failure> {
    let DriveArg::Path { path, size_bytes } = drive else {
        return Err(Failure::invalid(
            "a memory drive cannot be added: its data would be lost at the end; name a file or a device",
        ));
    };
    let shown = path.display().to_string();
    let absolute = |path| {
        std::path::absolute(path)
            .map_err(|error| Failure::invalid(format!("drive '{shown}': {error}")))
    };
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
    })
}

fn drive_table(drives: &[DriveStatus]) -> String {
    let rows: Vec<_> = drives
        .iter()
        .map(|drive| {
            vec![
                drive.name.clone(),
                format_human(drive.capacity_bytes),
                format_human(drive.free_bytes),
            ]
        })
        .collect();
    table(
        &["DRIVE", "CAPACITY", "FREE"],
        &rows,
        &[Align::Left, Align::Right, Align::Right],
    )
}
