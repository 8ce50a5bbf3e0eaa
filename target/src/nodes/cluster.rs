//! The pools of a cluster, and the machines that offer them: what all nodes know together. It is the text of the [`Registry`] of their
//! Ceph pool; on sleds it is worked out of the node tables.
//!
//! A pool in a Ceph cluster is called by the name of its first drive, where its nodes meet. Its owner notes who has it, and which other
//! machines offer it, so that a node which takes a pool knows with one read how many pools each of the others has.
//!
//! Guarantees:
//! - A text of a later version is never replaced.
//! - What a text says decides only who takes a pool first, and never who may.

use std::collections::{BTreeMap, BTreeSet};

use dedup::ErrorKind;
use drives::nodes::{Described, is_name};
use rados_drives::Registry;
use serde::de::Error as _;
use serde::{Deserialize, Serialize};
use subsystem::errors::Failure;
use uuid::Uuid;

use crate::errors::of_drive;

/// The version of the text.
const VERSION: u32 = 1;

/// Pools at most: with eight a node, those of many more nodes than a cell has.
const POOLS_MAX: usize = 4096;

/// Machines that are drained, at most.
const DRAINED_MAX: usize = 4096;

/// How often a change is made again that another one came before.
const CHANGES_MAX: u32 = 50;

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Cluster {
    version: u32,
    #[serde(default)]
    pools: BTreeMap<Uuid, KnownPool>,
    /// Machines that are to have no pool, as long as another one can have it.
    #[serde(default)]
    drained: BTreeSet<String>,
}

impl Default for Cluster {
    fn default() -> Self {
        Self {
            version: VERSION,
            pools: BTreeMap::new(),
            drained: BTreeSet::new(),
        }
    }
}

/// A pool, as its last owner noted it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KnownPool {
    /// The name of its first drive, or what else all nodes call it by.
    pub(crate) drive: String,
    /// Who had it.
    pub(crate) machine: String,
    /// Which other machines offer it.
    pub(crate) standbys: BTreeSet<String>,
}

impl Cluster {
    /// Of these pools, and these drained machines.
    pub(crate) fn of(
        pools: impl IntoIterator<Item = (Uuid, KnownPool)>,
        drained: BTreeSet<String>,
    ) -> Self {
        Self {
            pools: pools.into_iter().collect(),
            drained,
            ..Self::default()
        }
    }

    fn parse(text: &[u8]) -> Result<Self, Failure> {
        if text.is_empty() {
            return Ok(Self::default());
        }
        /// What every version has.
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }
        let damaged = |error: serde_json::Error| {
            Failure::new(
                ErrorKind::Corrupt,
                format!(
                    "what the nodes of the cluster noted cannot be read ({error}): `rados rm onefold.registry` removes it, and the \
                     owners of pools write it anew; nothing else depends on it, but drained machines are not drained any more"
                ),
            )
        };
        let versioned: Versioned = serde_json::from_slice(text).map_err(damaged)?;
        if versioned.version > VERSION {
            return Err(Failure::invalid(format!(
                "what the nodes of the cluster noted is of version {}, and this program knows {VERSION}: upgrade it",
                versioned.version
            )));
        }
        let cluster: Self = serde_json::from_slice(text).map_err(damaged)?;
        match cluster.senseless_name() {
            None => Ok(cluster),
            Some(name) => Err(damaged(serde_json::Error::custom(format!(
                "'{}' is no name of a drive or a machine",
                name.escape_debug()
            )))),
        }
    }

    /// The first name that neither a drive nor a machine can have: names are printed, and are parts of names of objects.
    fn senseless_name(&self) -> Option<&str> {
        let drives = self.pools.values().map(|pool| pool.drive.as_str());
        let mut names = drives.chain(self.machines());
        names.find(|name| !is_name(name))
    }

    /// What is noted, if it is another revision than the known one. Blocks.
    ///
    /// # Errors
    /// The cluster does not say, or it cannot be understood.
    pub(crate) fn read(
        registry: &Registry,
        known: Option<&[u8]>,
    ) -> Result<Option<(Vec<u8>, Self)>, Failure> {
        let read = registry.read(known).map_err(of_drive)?;
        read.map(|Described { revision, text }| Ok((revision, Self::parse(&text)?)))
            .transpose()
    }

    /// What is noted now. Blocks.
    ///
    /// # Errors
    /// As of [`read`](Self::read).
    pub(crate) fn now(registry: &Registry) -> Result<Self, Failure> {
        let read = Self::read(registry, None)?;
        Ok(read.map(|(_, cluster)| cluster).unwrap_or_default())
    }

    /// Changes what is noted. `change` says whether there is something to change, and may be called again. Blocks.
    ///
    /// # Errors
    /// As of [`read`](Self::read) and of `change`; or others change it all the time.
    pub(crate) fn change(
        registry: &Registry,
        mut change: impl FnMut(&mut Self) -> Result<bool, Failure>,
    ) -> Result<(), Failure> {
        for _ in 0..CHANGES_MAX {
            let Some((revision, mut cluster)) = Self::read(registry, None)? else {
                continue;
            };
            if !change(&mut cluster)? {
                return Ok(());
            }
            let text = serde_json::to_vec(&cluster)
                .map_err(|error| Failure::new(ErrorKind::Internal, error.to_string()))?;
            if registry.replace(&revision, &text).map_err(of_drive)? {
                return Ok(());
            }
        }
        Err(Failure::unavailable(
            "other nodes change what the cluster's nodes noted all the time: try again",
        ))
    }

    /// Notes a pool; whether that is a change.
    ///
    /// # Errors
    /// There are too many.
    pub(crate) fn note(&mut self, uuid: Uuid, pool: &KnownPool) -> Result<bool, Failure> {
        if self.pools.get(&uuid) == Some(pool) {
            return Ok(false);
        }
        if self.pools.len() >= POOLS_MAX && !self.pools.contains_key(&uuid) {
            return Err(Failure::new(
                ErrorKind::NoSpace,
                format!(
                    "{POOLS_MAX} pools are noted, and no more can be: `onefold cluster forget` removes one that is gone"
                ),
            ));
        }
        // A drive has one pool: another one that had it is gone.
        self.pools.retain(|_, known| known.drive != pool.drive);
        self.pools.insert(uuid, pool.clone());
        Ok(true)
    }

    /// Removes the pool with that first drive; whether it was there.
    pub(crate) fn forget(&mut self, drive: &str) -> bool {
        let before = self.pools.len();
        self.pools.retain(|_, pool| pool.drive != drive);
        self.pools.len() < before
    }

    /// Drains a machine, or ends that; whether that is a change.
    ///
    /// # Errors
    /// Too many are drained.
    pub(crate) fn set_drained(&mut self, machine: &str, drained: bool) -> Result<bool, Failure> {
        if !drained {
            return Ok(self.drained.remove(machine));
        }
        if self.drained.len() >= DRAINED_MAX && !self.is_drained(machine) {
            return Err(Failure::new(
                ErrorKind::NoSpace,
                format!(
                    "{DRAINED_MAX} machines are drained: `onefold cluster resume` ends that of one that is gone"
                ),
            ));
        }
        Ok(self.drained.insert(machine.to_owned()))
    }

    pub(crate) fn is_drained(&self, machine: &str) -> bool {
        self.drained.contains(machine)
    }

    /// Machines that are drained.
    pub(crate) fn drained(&self) -> &BTreeSet<String> {
        &self.drained
    }

    pub(crate) fn pools(&self) -> impl Iterator<Item = (&Uuid, &KnownPool)> {
        self.pools.iter()
    }

    /// All machines that have a pool, or offer one, or are drained.
    pub(crate) fn machines(&self) -> BTreeSet<&str> {
        let of_pools = self.pools.values().flat_map(|pool| {
            let standbys = pool.standbys.iter().map(String::as_str);
            standbys.chain([pool.machine.as_str()])
        });
        let drained = self.drained.iter().map(String::as_str);
        of_pools.chain(drained).collect()
    }

    /// Which machines are to take the pool with that first drive when its owner is gone, the first one first. All nodes come to the same
    /// result by themselves: the pools of the owner are given out one by one, each to the machine with the fewest.
    pub(crate) fn heirs(&self, drive: &str) -> Vec<&str> {
        let Some(lost) = self.pools.values().find(|pool| pool.drive == drive) else {
            return Vec::new();
        };
        let all = self.pools.values();
        let (mut given, others): (Vec<_>, Vec<_>) =
            all.partition(|pool| pool.machine == lost.machine);
        given.sort_by_key(|pool| &pool.drive);
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for pool in others {
            *counts.entry(&pool.machine).or_default() += 1;
        }
        for pool in given {
            let able = pool.standbys.iter().map(String::as_str);
            let able = able.filter(|it| *it != lost.machine && !self.is_drained(it));
            let mut able: Vec<&str> = able.collect();
            able.sort_by_key(|machine| (counts.get(machine).copied().unwrap_or(0), *machine));
            if pool.drive == drive {
                return able;
            }
            if let Some(first) = able.first() {
                *counts.entry(first).or_default() += 1;
            }
        }
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pool(drive: &str, machine: &str, standbys: &[&str]) -> KnownPool {
        KnownPool {
            drive: drive.to_owned(),
            machine: machine.to_owned(),
            standbys: standbys.iter().map(|&it| it.to_owned()).collect(),
        }
    }

    fn cluster(pools: &[KnownPool]) -> Cluster {
        let mut cluster = Cluster::default();
        for (number, pool) in (0..).zip(pools) {
            assert!(cluster.note(Uuid::from_u128(number), pool).expect("room"));
        }
        cluster
    }

    #[test]
    fn the_pools_of_a_node_that_died_go_to_several_others() {
        let names: Vec<String> = (0..8).map(|number| format!("p{number}")).collect();
        let pools: Vec<_> = names
            .iter()
            .map(|it| pool(it, "a", &["b", "c", "d", "e"]))
            .collect();
        let cluster = cluster(&pools);
        let mut taken: BTreeMap<&str, u32> = BTreeMap::new();
        for name in &names {
            *taken.entry(cluster.heirs(name)[0]).or_default() += 1;
        }
        assert_eq!(
            taken,
            BTreeMap::from([("b", 2), ("c", 2), ("d", 2), ("e", 2)])
        );
    }

    #[test]
    fn who_has_fewer_pools_takes_one_first_and_who_is_drained_not_at_all() {
        let mut cluster = cluster(&[
            pool("p", "a", &["b", "c", "d"]),
            pool("q", "b", &["a"]),
            pool("r", "b", &["a"]),
            pool("s", "c", &["a"]),
        ]);
        assert_eq!(cluster.heirs("p"), ["d", "c", "b"]);
        assert!(cluster.set_drained("d", true).expect("room"));
        assert!(!cluster.set_drained("d", true).expect("room"), "it is");
        assert_eq!(cluster.heirs("p"), ["c", "b"]);
        assert!(cluster.set_drained("d", false).expect("room"));
        assert_eq!(cluster.heirs("p"), ["d", "c", "b"]);
        assert!(cluster.heirs("unknown").is_empty());
    }

    #[test]
    fn another_daemon_of_the_machine_that_died_is_no_heir() {
        let cluster = cluster(&[pool("p", "a", &["a", "b"])]);
        assert_eq!(cluster.heirs("p"), ["b"]);
    }

    #[test]
    fn a_pool_is_noted_once_and_follows_its_first_drive() {
        let mut cluster = cluster(&[pool("p", "a", &[])]);
        let uuid = Uuid::from_u128(0);
        assert!(!cluster.note(uuid, &pool("p", "a", &[])).expect("room"));
        assert!(cluster.note(uuid, &pool("q", "a", &["b"])).expect("room"));
        // Another pool was made on the drive.
        let other = Uuid::from_u128(9);
        assert!(cluster.note(other, &pool("q", "b", &[])).expect("room"));
        let noted: Vec<_> = cluster.pools().map(|(uuid, _)| *uuid).collect();
        assert_eq!(noted, [other]);
        assert!(cluster.forget("q") && !cluster.forget("q"));
    }

    #[test]
    fn there_are_at_most_so_many_pools() {
        let mut cluster = Cluster::default();
        for number in 0..POOLS_MAX as u128 {
            let pool = pool(&format!("p{number}"), "a", &[]);
            assert!(cluster.note(Uuid::from_u128(number), &pool).expect("room"));
        }
        let one_more = pool("one-more", "a", &[]);
        let refused = cluster.note(Uuid::max(), &one_more).expect_err("full");
        assert!(refused.to_string().contains("cluster forget"), "{refused}");
        let known = pool("p7", "b", &[]);
        assert!(cluster.note(Uuid::from_u128(7), &known).expect("known"));
    }

    #[test]
    fn a_text_of_a_later_version_or_a_damaged_one_is_named_with_the_remedy() {
        let later = Cluster::parse(br#"{"version": 2, "pools": []}"#).expect_err("later");
        assert!(later.to_string().contains("upgrade"), "{later}");
        for text in [
            &b"{"[..],
            b"[]",
            br#"{"version": 1, "pools": 3}"#,
            &[0xff, 0xfe],
            br#"{"version": 1, "drained": ["\u001b[2J"]}"#,
            br#"{"version": 1, "drained": [""]}"#,
        ] {
            let damaged = Cluster::parse(text).expect_err("damaged");
            assert!(damaged.to_string().contains("rados rm"), "{damaged}");
        }
    }

    proptest! {
        #[test]
        fn each_heir_offers_the_pool_and_the_load_differs_by_one_at_most(
            machines in 2..7_usize, pools in 1..20_usize,
        ) {
            let all: Vec<String> = (0..machines).map(|number| format!("m{number}")).collect();
            let standbys: Vec<&str> = all.iter().map(String::as_str).collect();
            let pools: Vec<_> = (0..pools).map(|it| pool(&format!("p{it}"), "gone", &standbys)).collect();
            let cluster = cluster(&pools);
            let text = serde_json::to_vec(&cluster).expect("JSON");
            prop_assert_eq!(&Cluster::parse(&text).expect("it is its own"), &cluster);
            let mut taken: BTreeMap<&str, usize> = BTreeMap::new();
            for pool in &pools {
                let heirs = cluster.heirs(&pool.drive);
                prop_assert_eq!(heirs.len(), machines);
                *taken.entry(heirs[0]).or_default() += 1;
            }
            let most = taken.values().max().copied().unwrap_or(0);
            let least = all.iter().map(|it| taken.get(it.as_str()).copied().unwrap_or(0)).min();
            prop_assert!(most - least.unwrap_or(0) <= 1);
        }
    }
}
