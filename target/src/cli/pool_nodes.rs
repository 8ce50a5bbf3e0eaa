//! `onefold pool nodes` and `onefold pool move`: the nodes that offer a pool, and which of them has it.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use api::client::Client;
use dedup::ErrorKind;
use drives::nodes::{OtherNode, Ownership};
use meta::PoolDir;
use rados_drives::{Limits, RadosAddress, Registry};
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
    let (found, owner) = match meeting_at(drive, pool)? {
        Meeting::Cluster(address) => in_cluster(address)?,
        Meeting::Sleds(drives) => {
            let found = fabric_drives::nodes_of(drives, node_options());
            (found.map_err(of_drive)?, None)
        }
    };
    let nodes: Vec<(OtherNode, Says, State)> = found
        .into_iter()
        .map(|node| {
            let says = Says::read(&node.says);
            let state = State::of(&node.machine, &says, owner.as_ref());
            (node, says, state)
        })
        .collect();
    if as_json {
        let nodes: Vec<_> = nodes
            .iter()
            .map(|(node, says, state)| {
                json!({
                    "number": node.number,
                    "machine": node.machine,
                    "serves": *state == State::Serves,
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
        .map(|(node, says, state)| {
            let listeners: Vec<&str> = says.listeners.iter().map(|it| &*it.address).collect();
            vec![
                node.number.to_string(),
                node.machine.clone(),
                state.name().to_owned(),
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

/// What a node is to its pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Serves,
    Standby,
    /// It said that it serves the pool, and its lease is over.
    Served,
}

impl State {
    /// `owner`: who has the pool, where the cluster says so and not the node's own entry.
    fn of(machine: &str, says: &Says, owner: Option<&Ownership>) -> Self {
        let has_lease = owner
            .is_none_or(|owner| matches!(owner, Ownership::Owned(living) if living == machine));
        match (says.serves, has_lease) {
            (false, _) => Self::Standby,
            (true, true) => Self::Serves,
            (true, false) => Self::Served,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Serves => "serves the pool",
            Self::Standby => "standby",
            Self::Served => "served the pool, and does not answer",
        }
    }
}

/// The nodes that offer the pool with that first drive in a cluster, and who has it.
fn in_cluster(address: RadosAddress) -> Result<(Vec<OtherNode>, Option<Ownership>), Failure> {
    let (name, drive) = (address.to_string(), address.name().to_owned());
    let registry = Registry::open(address, Limits::default()).map_err(of_drive)?;
    let nodes = registry.nodes(&drive).map_err(of_drive)?;
    let owner = registry.owner(&drive).map_err(of_drive)?;
    if nodes.is_empty() && owner == Ownership::Missing {
        return Err(Failure::new(
            ErrorKind::NotFound,
            format!(
                "there is no drive '{name}': name one that is there; `onefold cluster pools '{name}'` lists the pools of this Ceph pool"
            ),
        ));
    }
    Ok((nodes, Some(owner)))
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
                    "there is no pool in '{}' (a standby makes it when it takes the pool): name a drive, such as rados:POOL or nvme+tcp://SLED:4420/NQN#NSID, or the folder with --pool",
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_whose_lease_is_over_does_not_serve_the_pool_whatever_it_said() {
        let says = |serves| Says {
            serves,
            ..Says::default()
        };
        let of_b = Ownership::Owned("b".to_owned());
        let silent = Ownership::Silent("a".to_owned());
        for (machine, serves, owner, state) in [
            ("a", true, Some(&of_b), State::Served),
            ("b", true, Some(&of_b), State::Serves),
            ("c", false, Some(&of_b), State::Standby),
            ("a", true, Some(&silent), State::Served),
            ("a", true, None, State::Serves),
        ] {
            assert_eq!(State::of(machine, &says(serves), owner), state, "{machine}");
        }
    }
}
