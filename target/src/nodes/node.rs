//! This process among the nodes of its pool, wherever they meet: in the pool's cluster, or on its sleds.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use drives::DriveError;
use drives::nodes::{Described, OtherNode, Ownership};
use fabric_drives::{NodeState, RemoteAddress};
use meta::PoolDir;
use rados_drives::{Limits, RadosAddress};
use subsystem::errors::Failure;
use uuid::Uuid;

use super::neighbours::Neighbours;
use crate::errors::of_meta;
use crate::opened_drive::{is_in_cluster, node_options};
use crate::options::{DriveArg, drive_path};
use crate::pool;

/// Where the nodes of a pool meet.
#[derive(Clone, Debug)]
pub(crate) enum Meeting {
    /// At the first drive, which is in a cluster.
    Cluster(RadosAddress),
    /// At all drives, which are on sleds.
    Sleds(Vec<RemoteAddress>),
}

impl Meeting {
    /// That of a pool with these drives; `None` if other nodes do not reach all of them.
    pub(crate) fn of(drives: &[PathBuf]) -> Option<Self> {
        let text = |path: &Path| path.to_str().map(str::to_owned);
        let first = drives.first()?;
        if is_in_cluster(first) {
            return text(first)?.parse().ok().map(Self::Cluster);
        }
        let addresses = drives.iter().map(|path| {
            let text = text(path).filter(|text| RemoteAddress::is_meant(text));
            text?.parse().ok()
        });
        addresses.collect::<Option<_>>().map(Self::Sleds)
    }

    /// That of the pool with the drives that are named, or of the one in a folder.
    ///
    /// # Errors
    /// The folder cannot be opened, or another process has it; or what was named is no drive.
    pub(crate) fn find(dir: &Path, named: &[DriveArg]) -> Result<Option<Self>, Failure> {
        let paths = named.iter().map(|drive| match drive {
            DriveArg::Path { path, .. } => drive_path(path).map(Some),
            DriveArg::Memory { .. } => Ok(None),
        });
        let paths: Option<Vec<PathBuf>> =
            paths.collect::<Result<_, _>>().map_err(Failure::invalid)?;
        let of_named = paths.and_then(|paths| Self::of(&paths));
        // A folder may be older than what was named.
        if PoolDir::exists(dir) && !matches!(of_named, Some(Self::Sleds(_))) {
            let known = PoolDir::open(dir).map_err(of_meta)?;
            let drives = pool::own_drives(&known).into_iter();
            let drives: Vec<PathBuf> = drives.map(|(_, path)| path).collect();
            return Ok(Self::of(&drives));
        }
        Ok(of_named)
    }
}

/// See the module. Its calls block.
#[derive(Debug)]
pub(crate) enum Node {
    Cluster(Box<rados_drives::Node>),
    Sleds(Arc<fabric_drives::Node>),
}

impl Node {
    /// Becomes one of the nodes that meet there.
    ///
    /// # Errors
    /// They cannot meet there now ([`drives::ErrorKind::Unreachable`]), or not at all, or there are too many.
    pub(crate) fn join(meeting: Meeting) -> Result<Self, DriveError> {
        Ok(match meeting {
            Meeting::Cluster(first) => {
                let node = rados_drives::Node::join(first, Limits::default())?;
                Self::Cluster(Box::new(node))
            }
            Meeting::Sleds(drives) => {
                let node = fabric_drives::Node::join(drives, node_options())?;
                Self::Sleds(Arc::new(node))
            }
        })
    }

    pub(crate) fn number(&self) -> u16 {
        match self {
            Self::Cluster(node) => node.number(),
            Self::Sleds(node) => node.number(),
        }
    }

    /// How long an owner that does not answer is taken for alive.
    pub(crate) fn lease(&self) -> Duration {
        match self {
            Self::Cluster(node) => node.lease(),
            Self::Sleds(node) => node.lease(),
        }
    }

    /// The name of its machine, as other nodes are told it.
    pub(crate) fn machine(&self) -> String {
        match self {
            Self::Cluster(node) => node.machine().to_owned(),
            Self::Sleds(node) => node.machine(),
        }
    }

    /// The name of the pool's first drive.
    pub(crate) fn drive(&self) -> &str {
        match self {
            Self::Cluster(node) => node.drive(),
            Self::Sleds(node) => node.drive(),
        }
    }

    /// Where this node knows of other pools.
    pub(crate) fn neighbours(&self) -> Neighbours {
        match self {
            Self::Cluster(node) => Neighbours::Registry(node.registry()),
            Self::Sleds(node) => Neighbours::Sleds(node.clone()),
        }
    }

    pub(crate) fn owner(&self) -> Result<Ownership, DriveError> {
        match self {
            Self::Cluster(node) => node.owner(),
            Self::Sleds(node) => node.owner(),
        }
    }

    pub(crate) fn others(&self) -> Result<Vec<OtherNode>, DriveError> {
        match self {
            Self::Cluster(node) => node.others(),
            Self::Sleds(node) => node.others(),
        }
    }

    pub(crate) fn say(&self, text: &[u8]) -> Result<(), DriveError> {
        match self {
            Self::Cluster(node) => node.say(text),
            Self::Sleds(node) => node.say(text),
        }
    }

    pub(crate) fn describe(&self, pool: Uuid, text: &[u8]) -> Result<(), DriveError> {
        match self {
            Self::Cluster(node) => node.describe(text),
            Self::Sleds(node) => node.describe(pool, text),
        }
    }

    pub(crate) fn description(
        &self,
        known: Option<&[u8]>,
    ) -> Result<Option<Described>, DriveError> {
        match self {
            Self::Cluster(node) => node.description(known),
            Self::Sleds(node) => node.description(known),
        }
    }

    /// Says that this node takes the pool; whether no other one does. In a cluster the drive's lock decides that.
    pub(crate) fn begin_to_take(&self) -> Result<bool, DriveError> {
        match self {
            Self::Cluster(_) => Ok(true),
            Self::Sleds(node) => node.begin_to_take(),
        }
    }

    /// The latest epoch in which a node opened the pool that told the others of it, so that nobody takes a pool from one that does not
    /// share it. In a cluster the drives know.
    pub(crate) fn last_epoch(&self) -> Result<Option<u32>, DriveError> {
        match self {
            Self::Cluster(_) => Ok(None),
            Self::Sleds(node) => node.last_epoch().map(Some),
        }
    }

    /// Says that it opens the pool now, in this epoch.
    pub(crate) fn opens(&self, epoch: u32) -> Result<(), DriveError> {
        match self {
            Self::Cluster(_) => Ok(()),
            Self::Sleds(node) => node.set_state(NodeState::Takes(epoch)),
        }
    }

    /// Says that it did not take the pool after all.
    pub(crate) fn gave_up(&self) {
        if let Self::Sleds(node) = self {
            node.end_to_take();
        }
    }

    /// Says that it has the pool, in this epoch. In a cluster the drive says so.
    pub(crate) fn has_pool(&self, epoch: u32) -> Result<(), DriveError> {
        match self {
            Self::Cluster(_) => Ok(()),
            Self::Sleds(node) => node.set_state(NodeState::Serves(epoch)),
        }
    }

    /// Whether this node reaches where they meet, so that it can serve the pool: its cluster, or half of its drives.
    pub(crate) fn reaches(&self) -> bool {
        match self {
            // What it says is of no interest: it answers.
            Self::Cluster(node) => {
                let _ = node.owner();
                true
            }
            Self::Sleds(node) => node.reaches(),
        }
    }
}
