//! `onefold pool nodes` and `onefold pool move`: the nodes that offer a pool, and which of them has it.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use api::client::Client;
use dedup::ErrorKind;
use drives::nodes::OtherNode;
use meta::PoolDir;
use rados_drives::{Limits, Registry};
use serde_json::json;
use subsystem::errors::Failure;

use super::run::converse;
use super::table::{Align, table};
use super::{Outcome, print, print_json};
use crate::errors::{of_drive, of_meta};
use crate::nodes::{Meeting, Says};
use crate::opened_drive::node_options;
use crate::options::drive_path;

/// Lists the nodes of the pool with that drive, or in that folder.
pub(super) fn nodes(drive: Option<&Path>, pool: &Path, as_json: bool) -> Outcome {
    let found = match meeting_at(drive, pool)? {
        Meeting::Cluster(address) => {
            let drive = address.name().to_owned();
            let registry = Registry::open(address, Limits::default()).map_err(of_drive)?;
            registry.nodes(&drive)
        }
        Meeting::Sleds(drives) => fabric_drives::nodes_of(drives, node_options()),
    };
    let found = found.map_err(of_drive)?;
    let nodes: Vec<(OtherNode, Says)> = found
        .into_iter()
        .map(|node| {
            let says = Says::read(&node.says);
            (node, says)
        })
        .collect();
    if as_json {
        let nodes: Vec<_> = nodes
            .iter()
            .map(|(node, says)| {
                json!({
                    "number": node.number,
                    "machine": node.machine,
                    "serves": says.serves,
                    "version": says.version,
                    "listeners": says.listeners,
                })
            })
            .collect();
        print_json(&nodes)?;
        return Ok(ExitCode::SUCCESS);
    }
    if nodes.is_empty() {
        print("no node offers the pool: `onefold serve --join` does\n");
        return Ok(ExitCode::SUCCESS);
    }
    let rows: Vec<Vec<String>> = nodes
        .iter()
        .map(|(node, says)| {
            let listeners: Vec<&str> = says.listeners.iter().map(|it| &*it.address).collect();
            vec![
                node.number.to_string(),
                node.machine.clone(),
                if says.serves {
                    "serves the pool"
                } else {
                    "standby"
                }
                .to_owned(),
                says.version.clone(),
                listeners.join(" "),
            ]
        })
        .collect();
    let align = [
        Align::Right,
        Align::Left,
        Align::Left,
        Align::Left,
        Align::Left,
    ];
    print(&table(
        &["NODE", "MACHINE", "STATE", "VERSION", "LISTENERS"],
        &rows,
        &align,
    ));
    Ok(ExitCode::SUCCESS)
}

/// Where the nodes of the pools meet that have the drives which were named, or of the one that is in a folder.
///
/// # Errors
/// There is no pool, or nodes cannot meet there, or a Ceph cluster was named by several drives.
pub(super) fn meeting_at<'a>(
    drives: impl IntoIterator<Item = &'a Path>,
    pool: &Path,
) -> Result<Meeting, Failure> {
    let named = drives.into_iter().map(drive_path);
    let named: Vec<PathBuf> = named.collect::<Result<_, _>>().map_err(Failure::invalid)?;
    let meeting = match named.len() {
        1.. => match Meeting::of(&named) {
            Some(Meeting::Cluster(_)) if named.len() > 1 => {
                return Err(Failure::invalid(
                    "one drive names the Ceph pool: leave the others out",
                ));
            }
            meeting => meeting,
        },
        0 if !PoolDir::exists(pool) => {
            return Err(Failure::new(
                ErrorKind::NotFound,
                format!(
                    "there is no pool in '{}': name a drive, such as rados:POOL or nvme+tcp://SLED:4420/NQN#NSID, or the folder with --pool",
                    pool.display()
                ),
            ));
        }
        0 => Meeting::of(&drives_in(pool)?),
    };
    meeting.ok_or_else(|| {
        Failure::invalid(
            "other nodes do not reach the pool's drives, so none can have it: all must be on sleds, or in a cluster",
        )
    })
}

/// The drives of the pool in a folder, which a daemon may have open.
fn drives_in(pool: &Path) -> Result<Vec<PathBuf>, Failure> {
    let identity = PoolDir::read_identity(pool).map_err(of_meta)?;
    let drives = identity.drives.into_iter();
    let drives = drives.filter(|drive| !drive.is_removed);
    Ok(drives.map(|drive| drive.path).collect())
}

/// Gives the pool of a daemon to another node.
pub(super) fn move_pool(pool: &Path, as_json: bool) -> Outcome {
    let moved = converse(Client::new(pool).move_pool())?;
    if as_json {
        print_json(&moved)?;
        return Ok(ExitCode::SUCCESS);
    }
    print(&format!(
        "the pool goes to {}, and this node is a standby from now on; `onefold pool nodes` tells who has it\n",
        moved.machines.join(" or ")
    ));
    Ok(ExitCode::SUCCESS)
}
