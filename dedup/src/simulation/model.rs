//! What each sub-block may hold, as seen from outside the engine.
//!
//! A cell knows the contents that are possible now (more than one only while commands overlap), and
//! until when each earlier content was possible. From that follows exactly what a read may return, what
//! must have survived a crash of the process, and what may be found after a power loss: any content
//! that was possible at or after the beginning of the last completed flush.

use std::collections::{BTreeMap, BTreeSet};

/// Sectors of 512 bytes per sub-block.
pub(super) const SECTORS: usize = 8;

/// The content of a sub-block: a number per sector; zero = zeros.
pub(super) type Content = [u32; SECTORS];

/// A change of one sub-block: what becomes of each sector, `None` = it stays.
pub(super) type Effect = [Option<u32>; SECTORS];

const NOW: u64 = u64::MAX;

/// Commands that may overlap on a cell; the driver keeps below, because all orders are tried.
pub(super) const GROUP_MAX: usize = 4;

fn apply(content: Content, effect: &Effect) -> Content {
    std::array::from_fn(|at| effect[at].unwrap_or(content[at]))
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Outcome {
    Pending,
    Done,
    Failed,
}

#[derive(Clone, Debug)]
struct Change {
    id: u64,
    effect: Effect,
    began: u64,
    ended: u64,
    outcome: Outcome,
}

/// One sub-block.
#[derive(Clone, Debug)]
pub(super) struct Cell {
    /// Every content that was possible, and until when.
    possible: BTreeMap<Content, u64>,
    /// What it may have held when the first of `group` began.
    base: BTreeSet<Content>,
    /// Changes that overlap in time.
    group: Vec<Change>,
    /// Nothing from before this time can come back after a power loss.
    floor: u64,
    /// When the last change began or ended.
    changed: u64,
    /// Copies that rely on what it holds: it does not change meanwhile.
    pub(super) readers: u32,
}

impl Cell {
    /// A cell with certain, durable content.
    pub(super) fn certain(content: Content, now: u64) -> Self {
        Self {
            possible: BTreeMap::from([(content, NOW)]),
            base: BTreeSet::from([content]),
            group: Vec::new(),
            floor: now,
            changed: 0,
            readers: 0,
        }
    }

    /// A cell that cannot be read: it holds one of these contents, whichever it is, durably.
    pub(super) fn among(contents: BTreeSet<Content>, now: u64) -> Self {
        Self {
            possible: contents.iter().map(|content| (*content, NOW)).collect(),
            base: contents,
            ..Self::certain([0; SECTORS], now)
        }
    }

    /// As one that was changed when the other was: as much of it may not be compared. For what a fork or a rollback
    /// made that nobody was told of: it has what its origin had, and a loss of power takes the same corrections from both.
    pub(super) fn changed_as(mut self, other: &Self) -> Self {
        let is_pending = !other.group.is_empty();
        self.floor = other.floor;
        self.changed = match is_pending {
            true => NOW,
            false => other.changed,
        };
        self
    }

    pub(super) fn has_room(&self) -> bool {
        self.group.len() < GROUP_MAX && self.readers == 0
    }

    /// What it holds, if that is certain.
    pub(super) fn known(&self) -> Option<Content> {
        let is_certain = self.group.is_empty() && self.base.len() == 1;
        self.base.first().copied().filter(|_| is_certain)
    }

    pub(super) fn begin(&mut self, id: u64, effect: Effect, now: u64) {
        self.changed = now;
        self.group.push(Change {
            id,
            effect,
            began: now,
            ended: NOW,
            outcome: Outcome::Pending,
        });
        let mut reached = BTreeSet::new();
        for base in &self.base {
            self.explore(
                *base,
                &mut vec![false; self.group.len()],
                &mut |content, _| {
                    reached.insert(content);
                },
            );
        }
        for content in reached {
            self.possible.insert(content, NOW);
        }
    }

    pub(super) fn end(&mut self, id: u64, is_ok: bool, is_durable: bool, now: u64) {
        let is_alone = self.group.len() == 1;
        let Some(change) = self.group.iter_mut().find(|change| change.id == id) else {
            return;
        };
        change.outcome = if is_ok {
            Outcome::Done
        } else {
            Outcome::Failed
        };
        change.ended = now;
        self.settle(now);
        if self.group.is_empty() && is_alone && is_ok && is_durable {
            self.floor = now;
        }
    }

    /// The change certainly did not take place.
    pub(super) fn take_back(&mut self, id: u64, now: u64) {
        self.group.retain(|change| change.id != id);
        self.settle(now);
    }

    /// Whether the change is the only one that is open.
    pub(super) fn is_changed_by(&self, id: u64) -> bool {
        matches!(&self.group[..], [change] if change.id == id)
    }

    /// Closes the group when all of its changes have ended.
    fn settle(&mut self, now: u64) {
        self.changed = now;
        let is_pending = |change: &Change| change.outcome == Outcome::Pending;
        if self.group.iter().any(is_pending) {
            return;
        }
        let finals = self.finals();
        for (content, until) in &mut self.possible {
            if *until == NOW && !finals.contains(content) {
                *until = now;
            }
        }
        self.base = finals;
        self.group.clear();
    }

    /// What it may hold now, with everything acknowledged applied.
    pub(super) fn finals(&self) -> BTreeSet<Content> {
        let mut finals = BTreeSet::new();
        for base in &self.base {
            self.explore(
                *base,
                &mut vec![false; self.group.len()],
                &mut |content, is_final| {
                    if is_final {
                        finals.insert(content);
                    }
                },
            );
        }
        finals
    }

    /// Visits every content that some order of the group's changes leads to. A change that ended before
    /// another began comes first; only those acknowledged must happen.
    fn explore(
        &self,
        content: Content,
        used: &mut Vec<bool>,
        visit: &mut dyn FnMut(Content, bool),
    ) {
        let must = |at: &usize| self.group[*at].outcome == Outcome::Done;
        let left: Vec<usize> = (0..self.group.len()).filter(|at| !used[*at]).collect();
        visit(content, !left.iter().any(must));
        for next in &left {
            let began = self.group[*next].began;
            if left
                .iter()
                .any(|other| other != next && must(other) && self.group[*other].ended < began)
            {
                continue;
            }
            used[*next] = true;
            self.explore(apply(content, &self.group[*next].effect), used, visit);
            used[*next] = false;
        }
    }

    /// Contents that were possible at some time since `since`.
    pub(super) fn since(&self, since: u64) -> impl Iterator<Item = &Content> {
        self.possible
            .iter()
            .filter(move |(_, until)| **until >= since)
            .map(|(content, _)| content)
    }

    /// Whether a change was under way since that time, durable at once or not.
    pub(super) fn changed_since(&self, since: u64) -> bool {
        let is_pending = |change: &Change| change.outcome == Outcome::Pending;
        self.group.iter().any(is_pending)
            || (self.changed >= since.max(self.floor) && self.changed > 0)
    }

    /// What may be found after a crash.
    pub(super) fn after_crash(&self, lost_power: bool, flushed: u64) -> BTreeSet<Content> {
        if lost_power {
            self.since(flushed.max(self.floor)).copied().collect()
        } else {
            self.finals()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(value: u32) -> Effect {
        [Some(value); SECTORS]
    }

    #[test]
    fn after_a_power_loss_everything_since_the_last_flush_may_be_found() {
        let mut cell = Cell::certain([0; 8], 0);
        for (at, value) in [(1, 5), (3, 6), (5, 7)] {
            cell.begin(value.into(), all(value), at);
            cell.end(value.into(), true, false, at + 1);
        }
        let found = |flushed| {
            cell.after_crash(true, flushed)
                .into_iter()
                .map(|c| c[0])
                .collect::<Vec<_>>()
        };
        assert_eq!(found(0), [0, 5, 6, 7]);
        assert_eq!(found(5), [6, 7]);
        assert_eq!(found(7), [7]);
        assert_eq!(cell.after_crash(false, 0), BTreeSet::from([[7; 8]]));
    }

    #[test]
    fn a_change_that_did_not_take_place_is_not_found_after_a_crash() {
        let mut cell = Cell::certain([0; 8], 0);
        cell.begin(1, all(5), 1);
        assert!(cell.is_changed_by(1));
        cell.begin(2, all(6), 2);
        assert!(!cell.is_changed_by(1) && cell.known().is_none());
        cell.take_back(2, 3);
        assert_eq!(cell.known(), None, "the first one goes on");
        cell.end(1, true, false, 4);
        assert_eq!(cell.after_crash(false, 0), BTreeSet::from([[5; 8]]));
        assert_eq!(cell.known(), Some([5; 8]));
    }

    #[test]
    fn overlapping_changes_may_take_effect_in_any_order_but_both() {
        let mut cell = Cell::certain([0; 8], 0);
        let mut half = [None; SECTORS];
        half[0] = Some(9);
        cell.begin(1, all(5), 1);
        cell.begin(2, half, 2);
        cell.end(1, true, false, 3);
        cell.end(2, true, false, 4);
        let mut merged = [5; 8];
        merged[0] = 9;
        assert_eq!(cell.finals(), BTreeSet::from([[5; 8], merged]));
    }
}
