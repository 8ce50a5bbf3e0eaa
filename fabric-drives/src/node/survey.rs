//! What the node tables of sleds say of all pools whose drives are there: also of those that a node does not offer.
//!
//! A sled's controller reaches the tables of all its namespaces, so one connection to each sled is enough.
//!
//! Guarantees:
//! - A sled that is reached by several drives or addresses is counted once.
//! - A table without entries and without a description is of no pool.
//! - What tables say makes nobody connect to another place.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use drives::nodes::{Ownership, Process};
use drives::{DriveError, ErrorKind};
use nvme::node_table::DRAINED_BYTES_MAX;
use uuid::Uuid;

use super::worker::{Answer, Ask};
use super::{GRACE, Node, NodeOptions, votes};
use crate::address::RemoteAddress;
use crate::drained::Drained;
use crate::node_table::{TableEntry, TableSeen};

/// How often a list of drained machines is made again that others changed meanwhile.
const CHANGES_MAX: u32 = 20;

/// Sleds, in the order of the drives: the places of the drives of each.
pub(super) fn by_sled(drives: &[RemoteAddress]) -> Vec<Vec<usize>> {
    let mut sleds: Vec<(&str, Vec<usize>)> = Vec::new();
    for (at, drive) in drives.iter().enumerate() {
        let name = drive.subsystem().as_str();
        match sleds.iter_mut().find(|(known, _)| *known == name) {
            Some((_, places)) => places.push(at),
            None => sleds.push((name, vec![at])),
        }
    }
    sleds.into_iter().map(|(_, places)| places).collect()
}

/// The table of a namespace.
#[derive(Clone, Debug)]
pub(super) struct SeenTable {
    /// The subsystem.
    pub(super) sled: String,
    pub(super) namespace: u32,
    pub(super) seen: TableSeen,
}

/// A pool, as the tables of its drives say that answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenPool {
    /// The same for all who look: the pool's UUID, or, if no owner has told that, one of its drives as `NQN#NSID`.
    pub name: String,
    /// Its UUID, if an owner has told it.
    pub uuid: Option<Uuid>,
    /// Who has it.
    pub owner: Ownership,
    /// The machine of who had it last, if that is known.
    pub last_owner: Option<String>,
    /// The machines of the other nodes that offer it and live.
    pub standbys: BTreeSet<String>,
    /// Who asks is one of its nodes.
    pub is_own: bool,
}

/// What all tables say that were reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Survey {
    /// The pools, by their names.
    pub pools: Vec<SeenPool>,
    /// Machines that are to have no pool.
    pub drained: Drained,
    /// Sleds that did not answer.
    pub silent: Vec<SilentSled>,
}

/// A sled that did not answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SilentSled {
    /// One of its drives.
    pub drive: String,
    /// Why, as far as is known.
    pub why: String,
}

/// The tables of one pool.
#[derive(Default)]
struct Group {
    uuid: Option<Uuid>,
    /// One of the tables.
    place: String,
    tables: Vec<Option<Vec<TableEntry>>>,
}

impl Group {
    fn has_node_of(&self, entries: &[TableEntry]) -> bool {
        let mut own = self.tables.iter().flatten().flatten();
        own.any(|own| entries.iter().any(|entry| entry.node == own.node))
    }
}

/// The pools that these tables are of, as the node `own` of this process sees them.
fn pools_of(tables: &[SeenTable], own: Uuid, process: &Process) -> Vec<SeenPool> {
    let by_place: BTreeMap<(&str, u32), &TableSeen> = tables
        .iter()
        .map(|table| ((table.sled.as_str(), table.namespace), &table.seen))
        .collect();
    let mut groups: Vec<Group> = Vec::new();
    // Those that name their pool come first: others are of the pool that has the same nodes.
    let (named, unnamed): (Vec<_>, Vec<_>) = by_place
        .into_iter()
        .partition(|(_, seen)| seen.pool.is_some());
    for ((sled, namespace), seen) in named.into_iter().chain(unnamed) {
        let is_its = |group: &&mut Group| match seen.pool {
            Some(pool) => group.uuid == Some(pool),
            None => group.has_node_of(&seen.entries),
        };
        match groups.iter_mut().find(is_its) {
            Some(group) => group.tables.push(Some(seen.entries.clone())),
            None if seen.pool.is_none() && seen.entries.is_empty() => {}
            None => groups.push(Group {
                uuid: seen.pool,
                place: format!("{sled}#{namespace}"),
                tables: vec![Some(seen.entries.clone())],
            }),
        }
    }
    let mut pools: Vec<SeenPool> = groups
        .into_iter()
        .filter_map(|group| {
            let (last_owner, standbys) = votes::machines(&group.tables).ok()?;
            let mut all = group.tables.iter().flatten().flatten();
            Some(SeenPool {
                name: group
                    .uuid
                    .map_or(group.place, |uuid| uuid.hyphenated().to_string()),
                uuid: group.uuid,
                owner: votes::ownership(&group.tables, own, process).ok()?,
                last_owner,
                standbys,
                is_own: all.any(|entry| entry.node == own),
            })
        })
        .collect();
    pools.sort_by(|one, other| one.name.cmp(&other.name));
    pools
}

/// What is drained, as these tables say together.
fn drained_of(tables: &[SeenTable]) -> Drained {
    let mut all = Drained::default();
    for table in tables {
        all.merge(&table.seen.drained);
    }
    all
}

/// The tables of the sleds that answered, and where.
struct Looked {
    tables: Vec<SeenTable>,
    /// For each sled that answered the place of the drive by which it did.
    by: BTreeMap<String, usize>,
    silent: Vec<SilentSled>,
}

impl Node {
    /// Looks at the tables of sleds as none of the nodes of a pool. Drives of several pools may be named: one for each sled is enough.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn visit(drives: Vec<RemoteAddress>, options: NodeOptions) -> Result<Self, DriveError> {
        Self::begin(drives, options, Process::own())
    }

    /// What the tables of all sleds of this node's drives say, of those that answer within this time.
    ///
    /// # Errors
    /// None answers.
    pub fn survey(&self, within: Duration) -> Result<Survey, DriveError> {
        let Looked { tables, silent, .. } = self.look_around(within, Some(GRACE))?;
        Ok(self.surveyed(&tables, silent))
    }

    /// The same, of all that answer at all: for who has the time.
    ///
    /// # Errors
    /// None answers.
    pub fn survey_all(&self) -> Result<Survey, DriveError> {
        let Looked { tables, silent, .. } = self.look_around(self.answer_max, None)?;
        Ok(self.surveyed(&tables, silent))
    }

    fn surveyed(&self, tables: &[SeenTable], silent: Vec<SilentSled>) -> Survey {
        let mut drained = drained_of(tables);
        // Tables of sleds that started again have not heard of it yet.
        drained.merge(&self.own.drained());
        Survey {
            pools: pools_of(tables, self.own.node, &self.own.process()),
            drained,
            silent,
        }
    }

    /// Asks each sled by one of its drives, and by the next one if that does not answer.
    fn look_around(&self, within: Duration, grace: Option<Duration>) -> Result<Looked, DriveError> {
        let deadline = Instant::now() + within;
        let mut looked = Looked {
            tables: Vec::new(),
            by: BTreeMap::new(),
            silent: Vec::new(),
        };
        let mut missing: Vec<&Vec<usize>> = self.sleds.iter().collect();
        let mut failed: Vec<Option<DriveError>> = Vec::new();
        failed.resize_with(self.drives.len(), || None);
        for turn in 0.. {
            let places: Vec<usize> = missing
                .iter()
                .filter_map(|sled| sled.get(turn).copied())
                .collect();
            let left = deadline.saturating_duration_since(Instant::now());
            if places.is_empty() || left.is_zero() {
                break;
            }
            let asks = |answer: &Answer<Vec<SeenTable>>| {
                let asks = places.iter().map(|at| (*at, Ask::Survey(answer.clone())));
                asks.collect()
            };
            let mut answers = self.gather(left, grace, asks);
            for at in places {
                match answers[at].take() {
                    Some(Ok(tables)) => {
                        missing.retain(|sled| !sled.contains(&at));
                        if let Some(first) = tables.first() {
                            looked.by.insert(first.sled.clone(), at);
                        }
                        looked.tables.extend(tables);
                    }
                    Some(Err(error)) => failed[at] = Some(error),
                    None => {}
                }
            }
        }
        if looked.by.is_empty() {
            return Err(self.worst(failed.into_iter().flatten()));
        }
        let silent = missing.into_iter().filter_map(|sled| {
            let at = *sled.first()?;
            let why = match &failed[at] {
                Some(error) => error.message().to_owned(),
                None => "it says nothing in time".to_owned(),
            };
            let drive = self.drives[at].0.clone();
            Some(SilentSled { drive, why })
        });
        looked.silent = silent.collect();
        Ok(looked)
    }

    /// Drains a machine, or ends that, in the tables of all pools on the sleds that answer. The nodes of a pool tell the tables of sleds that
    /// do not answer now, or that were not named.
    ///
    /// # Errors
    /// No sled answers; the list would be longer than 4000 bytes; or others change it all the time.
    pub fn set_drained(&self, machine: &str, drains: bool) -> Result<(), DriveError> {
        let failed = |kind, text: &str| Err(DriveError::new(kind, self.drive(), text));
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = since_1970.map_or(0, |since| since.as_millis() as u64);
        for _ in 0..CHANGES_MAX {
            let Looked { tables, by, .. } = self.look_around(self.answer_max, None)?;
            let mut next = drained_of(&tables);
            next.set(machine, drains, now);
            let of_pools = tables
                .iter()
                .filter(|table| table.seen.pool.is_some() || !table.seen.entries.is_empty());
            let mut of_pools = of_pools.peekable();
            if of_pools.peek().is_none() {
                return failed(ErrorKind::Invalid, "no pool has drives on these sleds");
            }
            if next.text().len() > DRAINED_BYTES_MAX {
                let text = "no more machines can be drained: `onefold cluster resume` ends that of one that is gone";
                return failed(ErrorKind::NoSpace, text);
            }
            let mut replaces: BTreeMap<usize, Vec<(u32, u64)>> = BTreeMap::new();
            for table in of_pools {
                let Some(at) = by.get(&table.sled) else {
                    continue;
                };
                let of_sled = replaces.entry(*at).or_default();
                of_sled.push((table.namespace, table.seen.drained_revision));
            }
            let asks = |answer: &Answer<bool>| {
                let asks = replaces.into_iter().map(|(at, replaces)| {
                    let drained = next.clone();
                    let answer = answer.clone();
                    let ask = Ask::Drain {
                        drained,
                        replaces,
                        answer,
                    };
                    (at, ask)
                });
                asks.collect()
            };
            let done = self.gather(self.answer_max, None, asks);
            let is = |wanted: bool| {
                let mut answered = done.iter().flatten();
                answered.any(|done| done.as_ref().is_ok_and(|done| *done == wanted))
            };
            // A sled that is lost meanwhile is told by the nodes.
            match (is(false), is(true)) {
                (true, _) => {}
                (false, true) => return Ok(()),
                (false, false) => {
                    let errors = done.into_iter().filter_map(|done| done?.err());
                    return Err(self.worst(errors));
                }
            }
        }
        failed(
            ErrorKind::InUse,
            "others change the list of drained machines all the time: try again",
        )
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::entry::{NodeState, Said};
    use super::*;

    const LEASE: Duration = Duration::from_secs(2);

    fn entry(node: u128, machine: &str, state: NodeState, kept: bool) -> TableEntry {
        TableEntry {
            number: (node % 16) as u16,
            node: Uuid::from_u128(node),
            age: if kept { LEASE / 2 } else { LEASE * 2 },
            lease: LEASE,
            text: Said {
                process: Process::elsewhere(machine),
                state,
                says: Vec::new(),
            }
            .to_bytes(),
        }
    }

    fn table(sled: &str, namespace: u32, pool: u128, entries: &[TableEntry]) -> SeenTable {
        SeenTable {
            sled: sled.to_owned(),
            namespace,
            seen: TableSeen {
                revision: u64::from(pool != 0),
                pool: (pool != 0).then(|| Uuid::from_u128(pool)),
                drained: Drained::default(),
                drained_revision: 0,
                entries: entries.to_vec(),
            },
        }
    }

    fn seen(tables: &[SeenTable]) -> Vec<SeenPool> {
        pools_of(tables, Uuid::from_u128(99), &Process::own())
    }

    fn names(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn pools_are_told_apart_and_each_is_counted_once_however_often_its_tables_were_read() {
        let of_one = [
            entry(1, "a", NodeState::Serves(7), true),
            entry(2, "b", NodeState::Standby, true),
            entry(3, "c", NodeState::Standby, false),
        ];
        let of_two = [
            entry(4, "b", NodeState::Serves(3), false),
            entry(99, "a", NodeState::Standby, true),
        ];
        let pools = seen(&[
            table("s1", 1, 10, &of_one),
            table("s2", 1, 10, &of_one),
            table("s1", 1, 10, &of_one),
            table("s1", 2, 20, &of_two),
            table("s1", 3, 0, &[]),
        ]);
        let [one, two] = &pools[..] else {
            panic!("{pools:?}")
        };
        assert_eq!(one.name, Uuid::from_u128(10).to_string());
        assert_eq!(one.owner, Ownership::Owned("a".to_owned()));
        assert_eq!(one.last_owner.as_deref(), Some("a"));
        assert_eq!((&one.standbys, one.is_own), (&names(&["b"]), false));
        assert_eq!(two.uuid, Some(Uuid::from_u128(20)));
        assert_eq!(two.owner, Ownership::Silent("b".to_owned()));
        assert_eq!((&two.standbys, two.is_own), (&names(&["a"]), true));
    }

    #[test]
    fn a_table_whose_sled_started_again_is_of_the_pool_with_its_nodes() {
        let owner = entry(1, "a", NodeState::Serves(7), true);
        let waits = entry(2, "b", NodeState::Standby, true);
        let pools = seen(&[
            table("s1", 1, 0, std::slice::from_ref(&waits)),
            table("s2", 1, 10, &[owner, waits.clone()]),
        ]);
        assert_eq!(pools.len(), 1, "{pools:?}");
        assert_eq!(pools[0].owner, Ownership::Owned("a".to_owned()));
        // All forgot who has it: it is called by a drive.
        let pools = seen(&[
            table("s1", 4, 0, std::slice::from_ref(&waits)),
            table("s2", 4, 0, &[waits]),
        ]);
        let [pool] = &pools[..] else {
            panic!("{pools:?}")
        };
        assert_eq!((&*pool.name, pool.uuid), ("s1#4", None));
        assert_eq!(pool.owner, Ownership::Forgotten);
        assert_eq!((&pool.last_owner, &pool.standbys), (&None, &names(&["b"])));
    }

    #[test]
    fn a_machine_without_a_name_is_no_standby_and_no_owner() {
        let long = "a".repeat(129);
        let pools = seen(&[table(
            "s1",
            1,
            10,
            &[
                entry(1, "", NodeState::Serves(7), true),
                entry(2, &long, NodeState::Standby, true),
                entry(3, "c/d", NodeState::Standby, true),
            ],
        )]);
        assert_eq!(pools[0].last_owner, None);
        assert_eq!(pools[0].standbys, BTreeSet::new());
    }

    proptest! {
        #[test]
        fn whatever_tables_say_each_pool_is_told_once(
            all in proptest::collection::vec(
                (0..3_u32, 0..4_u32, 0..3_u128, proptest::collection::vec((0..6_u128, 0..5_u32, any::<bool>()), 0..4)),
                0..12,
            ),
        ) {
            let state = |state: u32| match state {
                0 => NodeState::Standby,
                1 => NodeState::Takes(0),
                2 => NodeState::Takes(2),
                3 => NodeState::Serves(3),
                _ => NodeState::Left(4),
            };
            let tables = all.iter().map(|(sled, namespace, pool, entries)| {
                let entries = entries.iter().map(|(node, is, kept)| entry(*node, "a", state(*is), *kept));
                table(&format!("s{sled}"), *namespace, *pool, &entries.collect::<Vec<_>>())
            });
            let tables: Vec<SeenTable> = tables.collect();
            let pools = seen(&tables);
            let by_name: BTreeSet<&String> = pools.iter().map(|pool| &pool.name).collect();
            prop_assert_eq!(by_name.len(), pools.len());
            // A namespace that was read twice counts as it was read last.
            let last: BTreeMap<_, _> = tables.iter().map(|it| ((&it.sled, it.namespace), it.seen.pool)).collect();
            let named: BTreeSet<Uuid> = last.into_values().flatten().collect();
            let told: BTreeSet<Uuid> = pools.iter().filter_map(|pool| pool.uuid).collect();
            prop_assert_eq!(named, told);
        }
    }

    #[test]
    fn a_sled_is_one_however_many_drives_or_addresses_name_it() {
        let drives = [
            "nvme+tcp://192.0.2.1/nqn.2026-11.dev.onefold:sled:one#1",
            "nvme+tcp://192.0.2.2/nqn.2026-11.dev.onefold:sled:two#1",
            "nvme+tcp://one.example/nqn.2026-11.dev.onefold:sled:one#2",
        ];
        let drives = drives.map(|drive| drive.parse().expect("an address"));
        assert_eq!(by_sled(&drives), [vec![0, 2], vec![1]]);
    }
}
