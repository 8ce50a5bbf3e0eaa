//! Asymmetric Namespace Access: which listeners reach which namespaces, as it is announced and enforced.
//!
//! A namespace belongs to a group; a listener has a state for each group, optimized by default.
//! A controller is on the path of the listener that its host connected to.
//!
//! Guarantees:
//! - On a path whose state forbids it, a command is refused with a status that makes the host try another path.
//! - Hosts are told of a changed path after the change is in force.

use std::collections::BTreeMap;

use nvme::Nqn;
use nvme::ana::{AnaGroup, AnaLog, AnaState};

use crate::catalog::{ANA_GROUPS_MAX, Catalog, NAMESPACES_MAX};
use crate::controller::Controller;
use crate::target::live_catalog::LiveCatalog;

/// The longest log: a header, every group, every namespace.
pub(crate) const LOG_BYTES_MAX: usize =
    16 + 32 * ANA_GROUPS_MAX as usize + 4 * NAMESPACES_MAX as usize;

/// How often paths and groups changed since the start.
#[derive(Clone, Debug, Default)]
pub(crate) struct Changes {
    /// The change count of the log.
    count: u64,
    /// The count after the last change of each group that changed.
    groups: BTreeMap<u32, u64>,
}

/// A group: its states by listener, its namespaces by subsystem.
#[derive(Default, PartialEq, Eq)]
struct Group<'a> {
    states: Vec<(u16, AnaState)>,
    namespaces: Vec<(&'a Nqn, u32)>,
}

fn groups(catalog: &Catalog) -> BTreeMap<u32, Group<'_>> {
    let mut groups: BTreeMap<u32, Group<'_>> = BTreeMap::new();
    for port in catalog.ports.values() {
        for (group, state) in &port.ana {
            let group = groups.entry(*group).or_default();
            group.states.push((port.id, *state));
        }
    }
    for (nqn, subsystem) in &catalog.subsystems {
        for (nsid, namespace) in &subsystem.namespaces {
            let group = groups.entry(namespace.ana_group).or_default();
            group.namespaces.push((nqn, *nsid));
        }
    }
    groups
}

impl Changes {
    /// The counts after one catalog took another one's place.
    pub(crate) fn after(&self, before: &Catalog, after: &Catalog) -> Self {
        let (before, after) = (groups(before), groups(after));
        let ids = before.keys().chain(after.keys());
        let changed: Vec<u32> = ids
            .filter(|id| before.get(id) != after.get(id))
            .copied()
            .collect();
        let mut next = self.clone();
        next.count += u64::from(!changed.is_empty());
        let count = next.count;
        next.groups
            .extend(changed.into_iter().map(|id| (id, count)));
        next
    }

    /// The counts after all paths changed, because another node serves the pool now.
    pub(crate) fn of_all(&self, catalog: &Catalog) -> Self {
        let count = self.count + 1;
        let groups = groups(catalog).into_keys().map(|id| (id, count));
        Self {
            count,
            groups: groups.collect(),
        }
    }
}

/// The log page of a controller: the groups of the namespaces that it sees.
pub(crate) fn log(live: &LiveCatalog, controller: &Controller) -> AnaLog {
    let mut nsids: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for namespace in live.namespaces(controller) {
        let group = nsids.entry(namespace.config.ana_group).or_default();
        group.push(namespace.nsid);
    }
    let changes = &live.ana_changes;
    let groups = nsids.into_iter().map(|(id, nsids)| AnaGroup {
        id,
        change_count: changes.groups.get(&id).copied().unwrap_or_default(),
        state: live.ana_state(controller, id),
        nsids,
    });
    AnaLog {
        change_count: changes.count,
        groups: groups.collect(),
    }
}

/// The states of the groups that a controller sees, to be compared with what they are later.
pub(crate) fn states(live: &LiveCatalog, controller: &Controller) -> BTreeMap<u32, AnaState> {
    let namespaces = live.namespaces(controller).into_iter();
    namespaces
        .map(|namespace| {
            let group = namespace.config.ana_group;
            (group, live.ana_state(controller, group))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use uuid::Uuid;

    use super::*;
    use crate::catalog::{NamespaceConfig, PortConfig, SubsystemConfig};

    fn catalog() -> Catalog {
        let nqn: Nqn = crate::DEFAULT_SUBSYSTEM_NQN.parse().expect("a name");
        let mut subsystem = SubsystemConfig::new(nqn, "1".to_owned());
        let namespace = NamespaceConfig::new(Uuid::from_u128(1));
        subsystem.namespaces.insert(1, Arc::new(namespace));
        let mut catalog = Catalog::new(subsystem);
        let port = PortConfig::new(1, "tcp://192.0.2.1:4420".parse().expect("an address"));
        catalog.ports.insert(1, Arc::new(port));
        catalog
    }

    #[test]
    fn the_count_rises_with_changes_of_states_and_of_groups_and_with_nothing_else() {
        let first = catalog();
        let none = Changes::default().after(&first, &first.clone());
        assert_eq!((none.count, none.groups.len()), (0, 0));

        let mut second = first.clone();
        let port = second.ports.get_mut(&1).map(Arc::make_mut).expect("there");
        port.ana.insert(7, AnaState::Inaccessible);
        let changes = none.after(&first, &second);
        assert_eq!(changes.count, 1);
        assert_eq!(changes.groups, BTreeMap::from([(7, 1)]));

        let mut third = second.clone();
        let nqn = third.subsystems.keys().next().cloned().expect("one");
        third.namespace_mut(&nqn, 1).expect("there").ana_group = 7;
        let changes = changes.after(&second, &third);
        assert_eq!(changes.count, 2);
        assert_eq!(changes.groups, BTreeMap::from([(1, 2), (7, 2)]));

        let mut fourth = third.clone();
        fourth.subsystem_mut(&nqn).expect("there").allow_any_host = false;
        assert_eq!(changes.after(&third, &fourth).count, 2);
    }
}
