//! Where nodes know of other pools than their own: the registry of their Ceph pool, or the node tables of their sleds.
//!
//! Guarantees: both say the same, a [`Cluster`]; who has a pool is asked of the pool's drives, and not of what was noted.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use drives::nodes::Ownership;
use fabric_drives::{SeenPool, SilentSled, Survey};
use rados_drives::{Limits, Registry};
use subsystem::errors::Failure;
use uuid::Uuid;

use super::cluster::{Cluster, KnownPool};
use super::node::Meeting;
use crate::errors::of_drive;
use crate::opened_drive::node_options;

/// How long sleds have to answer a node that serves a pool. It asks again.
const SURVEY_MAX: Duration = Duration::from_secs(1);

/// See the module. Its calls block.
#[derive(Debug)]
pub(crate) enum Neighbours {
    Registry(Registry),
    /// All pools with drives on the sleds of this node's drives.
    Sleds(Arc<fabric_drives::Node>),
}

/// A pool, as it is now.
pub(crate) struct PoolNow {
    /// That of its first drive in a Ceph cluster; on sleds its UUID.
    pub(crate) name: String,
    /// `None`: no owner has told it.
    pub(crate) uuid: Option<Uuid>,
    pub(crate) owner: Ownership,
    /// Machines that wait for it.
    pub(crate) standbys: BTreeSet<String>,
}

/// All pools, as they are now.
pub(crate) struct ClusterNow {
    pub(crate) cluster: Cluster,
    /// By their names.
    pub(crate) pools: Vec<PoolNow>,
    /// Sleds that did not answer.
    pub(crate) silent: Vec<SilentSled>,
}

impl PoolNow {
    /// Who serves it, or did and is silent.
    pub(crate) fn machine(&self) -> Option<&str> {
        match &self.owner {
            Ownership::Owned(machine) | Ownership::Silent(machine) => Some(machine),
            Ownership::Missing | Ownership::Left | Ownership::Forgotten | Ownership::GaveAway => {
                None
            }
        }
    }
}

/// Without the one that has the pool: its owner noted them when it was a standby itself.
fn without_owner(mut standbys: BTreeSet<String>, owner: &Ownership) -> BTreeSet<String> {
    if let Ownership::Owned(machine) = owner {
        standbys.remove(machine);
    }
    standbys
}

impl Neighbours {
    /// Those of the pools whose nodes meet there, for who is none of them.
    ///
    /// # Errors
    /// The cluster is not there, or the system gives no thread.
    pub(crate) fn at(meeting: Meeting) -> Result<Self, Failure> {
        match meeting {
            Meeting::Cluster(address) => {
                let opened = Registry::open(address, Limits::default());
                opened.map(Self::Registry).map_err(of_drive)
            }
            Meeting::Sleds(drives) => {
                let visitor = fabric_drives::Node::visit(drives, node_options());
                let visitor = visitor.map_err(of_drive)?;
                Ok(Self::Sleds(Arc::new(visitor)))
            }
        }
    }

    /// Notes, as its owner, who has that pool and offers it; all that is noted, and its revision, if that is another one than the known one.
    /// On sleds the nodes' own entries say it.
    ///
    /// # Errors
    /// The cluster does not say or note it, or no sled answers.
    pub(crate) fn note(
        &self,
        known: Option<&[u8]>,
        uuid: Uuid,
        pool: &KnownPool,
    ) -> Result<Option<(Vec<u8>, Cluster)>, Failure> {
        match self {
            Self::Registry(registry) => {
                let Some(read) = Cluster::read(registry, known)? else {
                    return Ok(None);
                };
                Cluster::change(registry, |cluster| cluster.note(uuid, pool))?;
                Ok(Some(read))
            }
            Self::Sleds(node) => {
                let survey = node.survey(SURVEY_MAX).map_err(of_drive)?;
                Ok(Some((Vec::new(), cluster_of(&survey))))
            }
        }
    }

    /// What is known of all pools, and how each is.
    ///
    /// # Errors
    /// The cluster does not say, or no sled answers.
    pub(crate) fn look(&self) -> Result<ClusterNow, Failure> {
        match self {
            Self::Registry(registry) => {
                let cluster = Cluster::now(registry)?;
                let pools = cluster.pools().map(|(uuid, pool)| {
                    let owner = registry.owner(&pool.drive).map_err(of_drive)?;
                    Ok(PoolNow {
                        name: pool.drive.clone(),
                        uuid: Some(*uuid),
                        standbys: without_owner(pool.standbys.clone(), &owner),
                        owner,
                    })
                });
                let mut pools = pools.collect::<Result<Vec<_>, Failure>>()?;
                pools.sort_by(|one, other| one.name.cmp(&other.name));
                Ok(ClusterNow {
                    cluster,
                    pools,
                    silent: Vec::new(),
                })
            }
            Self::Sleds(node) => {
                let survey = node.survey_all().map_err(of_drive)?;
                Ok(ClusterNow {
                    cluster: cluster_of(&survey),
                    pools: survey.pools.into_iter().map(PoolNow::from).collect(),
                    silent: survey.silent,
                })
            }
        }
    }

    /// Whether a node on one of these machines waits for the pool now. What its owner noted in a Ceph cluster may be seconds old.
    ///
    /// # Errors
    /// The cluster does not say.
    pub(crate) fn waits(
        &self,
        pool: &PoolNow,
        is_able: impl Fn(&String) -> bool,
    ) -> Result<bool, Failure> {
        if pool.standbys.iter().any(&is_able) {
            return Ok(true);
        }
        Ok(match self {
            Self::Registry(registry) => {
                let nodes = registry.nodes(&pool.name).map_err(of_drive)?;
                nodes.iter().any(|node| is_able(&node.machine))
            }
            Self::Sleds(_) => false,
        })
    }

    /// Drains a machine, or ends that.
    ///
    /// # Errors
    /// Too many are drained; it cannot be noted; or others change what is noted all the time.
    pub(crate) fn set_drained(&self, machine: &str, drained: bool) -> Result<(), Failure> {
        match self {
            Self::Registry(registry) => {
                Cluster::change(registry, |cluster| cluster.set_drained(machine, drained))
            }
            Self::Sleds(node) => {
                let changed = node.set_drained(machine, drained);
                changed.map_err(of_drive)
            }
        }
    }

    /// Where pools are noted, and can be forgotten.
    ///
    /// # Errors
    /// Nothing is noted beside the drives, so nothing has to be forgotten.
    pub(crate) fn registry(&self) -> Result<&Registry, Failure> {
        match self {
            Self::Registry(registry) => Ok(registry),
            Self::Sleds(_) => Err(Failure::invalid(
                "of pools on sleds nothing has to be forgotten: what is known of a pool is on its sleds, and goes with its nodes",
            )),
        }
    }
}

impl From<SeenPool> for PoolNow {
    fn from(pool: SeenPool) -> Self {
        Self {
            name: pool.name,
            uuid: pool.uuid,
            standbys: without_owner(pool.standbys, &pool.owner),
            owner: pool.owner,
        }
    }
}

/// What the tables of sleds say, as nodes of a Ceph cluster would note it. A pool is called by its UUID: nodes may reach its first
/// drive by different names.
pub(crate) fn cluster_of(survey: &Survey) -> Cluster {
    let pools = survey.pools.iter().filter_map(|pool| {
        let known = KnownPool {
            drive: pool.name.clone(),
            machine: pool.last_owner.clone()?,
            standbys: pool.standbys.clone(),
        };
        Some((pool.uuid?, known))
    });
    Cluster::of(pools, survey.drained.machines())
}

#[cfg(test)]
mod tests {
    use fabric_drives::Drained;

    use super::*;

    fn pool(uuid: u128, last_owner: Option<&str>, standbys: &[&str]) -> SeenPool {
        SeenPool {
            name: Uuid::from_u128(uuid).to_string(),
            uuid: Some(Uuid::from_u128(uuid)).filter(|uuid| !uuid.is_nil()),
            owner: Ownership::Forgotten,
            last_owner: last_owner.map(str::to_owned),
            standbys: standbys.iter().map(|&name| name.to_owned()).collect(),
            is_own: false,
        }
    }

    #[test]
    fn who_has_just_taken_a_pool_is_no_standby_of_it() {
        let mut taken = pool(1, Some("a"), &["b", "c"]);
        taken.owner = Ownership::Owned("b".to_owned());
        let now = PoolNow::from(taken);
        assert_eq!(now.standbys, BTreeSet::from(["c".to_owned()]));
    }

    #[test]
    fn the_tables_of_sleds_say_who_is_to_take_the_pools_of_a_node_that_died() {
        let survey = Survey {
            pools: vec![
                pool(1, Some("a"), &["b", "c", "d"]),
                pool(2, Some("a"), &["b", "c", "d"]),
                pool(3, Some("b"), &["a", "c"]),
                pool(4, None, &["a", "b"]),
                pool(0, Some("c"), &["a"]),
            ],
            drained: Drained::read(b"d 1 +"),
            silent: Vec::new(),
        };
        let cluster = cluster_of(&survey);
        assert_eq!(
            cluster.pools().count(),
            3,
            "others have no owner, or no UUID"
        );
        let heirs = |uuid| cluster.heirs(&Uuid::from_u128(uuid).to_string());
        assert_eq!((heirs(1), heirs(2)), (vec!["c", "b"], vec!["b", "c"]));
        assert!(cluster.is_drained("d") && !cluster.is_drained("a"));
    }
}
