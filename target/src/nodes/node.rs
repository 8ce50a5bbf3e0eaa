//! This process among the nodes of its pool, wherever they meet: in the pool's cluster, or on its sleds.

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use drives::DriveError;
use drives::nodes::{Described, OtherNode, Ownership};
use fabric_drives::{Holders, NodeOptions, NodeState, RemoteAddress};
use futures_util::lock::Mutex;
use meta::{MetadataOnDrives, PoolDir};
use rados_drives::{Limits, RadosAddress};
use subsystem::errors::Failure;
use uuid::Uuid;

use super::neighbours::Neighbours;
use crate::errors::of_meta;
use crate::import::holders;
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

/// The drives on which the pool's metadata are, where too few of all answered. A drive that the pool lost is none of them.
fn holders_of(drives: impl Iterator<Item = String>, error: &DriveError) -> Option<Holders> {
    let paths: Vec<PathBuf> = drives.map(PathBuf::from).collect();
    // Drives that are gone may be none of the pool any more.
    let (away, gone) = (drives::ErrorKind::Unreachable, drives::ErrorKind::NotFound);
    match [away, gone].contains(&error.kind()) {
        // Why they cannot be read is why they did not answer.
        true => holders(&paths).ok().flatten(),
        false => None,
    }
}

/// See the module. Its calls block.
#[derive(Debug)]
pub(crate) enum Node {
    Cluster(Box<rados_drives::Node>),
    Sleds(OnSleds),
}

/// A node of a pool on sleds.
pub(crate) struct OnSleds {
    node: Arc<fabric_drives::Node>,
    /// The metadata on the pool's drives, as long as this node has the pool open: what holds them here would keep its drives reserved.
    metadata: OnceLock<Weak<MetadataOnDrives>>,
    /// The pool's folder, as long as this node has the pool open.
    dir: OnceLock<Weak<Mutex<PoolDir>>>,
}

impl OnSleds {
    /// This node has an entry with every drive that the pool has now, whatever drives it was started with.
    fn enter_all(&self) {
        let dir = self.dir.get().and_then(Weak::upgrade);
        // While somebody changes the drives, the next look does it.
        let Some(dir) = dir.as_ref().and_then(|dir| dir.try_lock()) else {
            return;
        };
        let drives = pool::own_drives(&dir).into_iter();
        let addresses = drives.filter_map(|(_, path)| path.to_str()?.parse().ok());
        self.node.enter_also(&addresses.collect::<Vec<_>>());
    }
}

impl std::fmt::Debug for OnSleds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.node.fmt(f)
    }
}

impl Deref for OnSleds {
    type Target = fabric_drives::Node;

    fn deref(&self) -> &fabric_drives::Node {
        &self.node
    }
}

impl Node {
    /// Becomes one of the nodes that meet there. `is_told`: why that failed was told a moment ago.
    ///
    /// # Errors
    /// They cannot meet there now ([`drives::ErrorKind::Unreachable`]), or not at all, or there are too many.
    pub(crate) fn join(meeting: Meeting, is_told: bool) -> Result<Self, DriveError> {
        Ok(match meeting {
            Meeting::Cluster(first) => {
                let node = rados_drives::Node::join(first, Limits::default())?;
                Self::Cluster(Box::new(node))
            }
            Meeting::Sleds(drives) => {
                let join = |holders: Option<&Holders>| {
                    let options = NodeOptions {
                        is_told,
                        ..node_options()
                    };
                    fabric_drives::Node::join(drives.clone(), holders, options)
                };
                let node = join(None).or_else(|error| {
                    let names = drives.iter().map(ToString::to_string);
                    match holders_of(names, &error) {
                        Some(holders) => join(Some(&holders)),
                        None => Err(error),
                    }
                });
                Self::Sleds(OnSleds {
                    node: Arc::new(node?),
                    metadata: OnceLock::new(),
                    dir: OnceLock::new(),
                })
            }
        })
    }

    /// Whether the pool's drives say on which of them its metadata are, and that decides who is asked.
    pub(crate) fn is_on_sleds(&self) -> bool {
        matches!(self, Self::Sleds(_))
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
            Self::Sleds(node) => Neighbours::Sleds(node.node.clone()),
        }
    }

    pub(crate) fn owner(&self) -> Result<Ownership, DriveError> {
        match self {
            Self::Cluster(node) => node.owner(),
            Self::Sleds(node) => node.owner().or_else(|error| {
                match holders_of(node.drives().map(str::to_owned), &error) {
                    Some(holders) => {
                        node.decide_by(&holders);
                        node.owner()
                    }
                    None => Err(error),
                }
            }),
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

    /// Says that it has the pool, in this epoch, with that metadata and folder. In a cluster the drive says so.
    pub(crate) fn has_pool(
        &self,
        epoch: u32,
        metadata: Option<Weak<MetadataOnDrives>>,
        dir: Weak<Mutex<PoolDir>>,
    ) -> Result<(), DriveError> {
        match self {
            Self::Cluster(_) => Ok(()),
            Self::Sleds(node) => {
                if let Some(metadata) = metadata {
                    // It has the pool once: who loses it starts anew.
                    let _ = node.metadata.set(metadata);
                }
                let _ = node.dir.set(dir);
                node.enter_all();
                node.set_state(NodeState::Serves(epoch))
            }
        }
    }

    /// Whether this node reaches where they meet, so that it can serve the pool: its cluster, or half of its drives, or of those
    /// that hold the metadata.
    pub(crate) fn reaches(&self) -> bool {
        match self {
            // What it says is of no interest: it answers.
            Self::Cluster(node) => {
                let _ = node.owner();
                true
            }
            Self::Sleds(node) => {
                node.enter_all();
                if let Some(metadata) = node.metadata.get().and_then(Weak::upgrade) {
                    let answered = metadata.state().names;
                    let all = answered.len();
                    node.decide_by(&Holders { answered, all });
                }
                node.reaches()
            }
        }
    }
}
