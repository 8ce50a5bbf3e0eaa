//! What the node tables of a pool's drives say together.
//!
//! Guarantees:
//! - Nothing is said unless more than half of the drives answer.
//! - A node lives that keeps its entry with half of the drives, as far as is seen: it may keep it with those that do not answer. A pool
//!   has its owner as long as that lives. So an owner that can still acknowledge something is not taken for dead by who reaches other
//!   drives than it does.

use std::collections::BTreeSet;
use std::time::Duration;

use drives::nodes::{Leased, OtherNode, Ownership, Process, Seen, is_name};
use uuid::Uuid;

use super::entry::{NodeState, Said};
use crate::node_table::TableEntry;

/// What the drives say; `None` for one that does not answer.
pub(crate) type Answers = [Option<Vec<TableEntry>>];

/// A node, as all drives say.
struct Known {
    number: u16,
    node: Uuid,
    said: Said,
    /// Drives with which it keeps its entry.
    kept: usize,
    /// How long ago it kept one last, in milliseconds.
    age: u128,
    /// The longest one of its entries.
    lease: Duration,
}

/// More than half of the drives do not answer, or half of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooFew;

/// All nodes, in the order of their numbers.
fn known(answers: &Answers) -> Result<Vec<Known>, TooFew> {
    let answered = answers.iter().flatten().count();
    if answered * 2 <= answers.len() {
        return Err(TooFew);
    }
    let mut all: Vec<Known> = Vec::new();
    for entry in answers.iter().flatten().flatten() {
        let Some(said) = Said::parse(&entry.text) else {
            continue;
        };
        let (kept, age) = (usize::from(entry.is_kept()), entry.age.as_millis());
        match all.iter_mut().find(|known| known.node == entry.node) {
            Some(known) => {
                known.kept += kept;
                known.lease = known.lease.max(entry.lease);
                // What it said last is what counts.
                if age < known.age {
                    (known.said, known.age, known.number) = (said, age, entry.number);
                }
            }
            None => all.push(Known {
                number: entry.number,
                node: entry.node,
                said,
                kept,
                age,
                lease: entry.lease,
            }),
        }
    }
    all.sort_by_key(|known| known.number);
    Ok(all)
}

impl Known {
    fn lives(&self, answers: &Answers) -> bool {
        let silent = answers.iter().filter(|answer| answer.is_none()).count();
        let is_kept = self.kept > 0 && (self.kept + silent) * 2 >= answers.len();
        is_kept && self.said.process.seen() != Seen::Gone
    }

    fn machine(&self) -> String {
        self.said.process.node.clone()
    }
}

/// Who had the pool last, or opened it last: the one with the latest epoch, but for the node `own`. One that could not open it names the
/// epoch in which it tried, and that is the next owner's too: of several who say that they are, one that serves the pool counts before
/// one that takes it, and that before one that left.
fn last_owner(all: &[Known], own: Uuid) -> Option<&Known> {
    let owners = all.iter().filter(|known| {
        let is_own = known.node == own && matches!(known.said.state, NodeState::Takes(_));
        known.said.state.epoch() > 0 && !is_own
    });
    let rank = |state: NodeState| match state {
        NodeState::Serves(_) => 2,
        NodeState::Takes(_) => 1,
        NodeState::Left(_) | NodeState::Standby => 0,
    };
    owners.max_by_key(|known| {
        let state = known.said.state;
        (state.epoch(), rank(state), std::cmp::Reverse(known.age))
    })
}

/// The latest epoch in which a node opened the pool that told the others of it; 0 if none is known.
pub(crate) fn last_epoch(answers: &Answers) -> Result<u32, TooFew> {
    let all = known(answers)?.into_iter();
    Ok(all.map(|known| known.said.state.epoch()).max().unwrap_or(0))
}

/// Who has the pool, as the node `own` of this process sees it.
pub(crate) fn ownership(
    answers: &Answers,
    own: Uuid,
    process: &Process,
) -> Result<Ownership, TooFew> {
    let all = known(answers)?;
    let owner = last_owner(&all, own);
    if let Some(owner) = owner
        && matches!(owner.said.state, NodeState::Serves(_))
        && owner.lives(answers)
    {
        return Ok(Ownership::Owned(owner.machine()));
    }
    let takes = |known: &&Known| {
        let takes = matches!(known.said.state, NodeState::Takes(_));
        takes && known.node != own && known.lives(answers)
    };
    if let Some(taking) = all.iter().find(takes) {
        return Ok(Ownership::Owned(taking.machine()));
    }
    Ok(match owner {
        None => Ownership::Forgotten,
        Some(owner) if matches!(owner.said.state, NodeState::Left(_)) => {
            match owner.said.process == *process {
                true => Ownership::GaveAway,
                false => Ownership::Left,
            }
        }
        Some(owner) if owner.said.process.seen() == Seen::Gone => Ownership::Left,
        Some(owner) => Ownership::Silent(owner.machine()),
    })
}

/// Nodes that live, but for the node `own`.
pub(crate) fn others(answers: &Answers, own: Uuid) -> Result<Vec<OtherNode>, TooFew> {
    let mut others = known(answers)?;
    others.retain(|known| known.node != own && known.lives(answers));
    let others = others.into_iter().map(|known| OtherNode {
        number: known.number,
        machine: known.machine(),
        says: known.said.says,
    });
    Ok(others.collect())
}

/// The nodes that live.
pub(crate) fn living(answers: &Answers) -> Result<Vec<Leased>, TooFew> {
    let mut living = known(answers)?;
    living.retain(|known| known.lives(answers));
    let living = living.into_iter().map(|known| Leased {
        process: known.said.process,
        lease: known.lease,
    });
    Ok(living.collect())
}

/// The machine of who had the pool last, and which others wait for it and live, by their machines. What is no name is left out.
pub(crate) fn machines(answers: &Answers) -> Result<(Option<String>, BTreeSet<String>), TooFew> {
    let all = known(answers)?;
    let owner = last_owner(&all, Uuid::nil());
    let others = all.iter().filter(|known| {
        let is_owner = owner.is_some_and(|owner| owner.node == known.node);
        !is_owner && known.lives(answers)
    });
    let named = |known: &Known| Some(known.machine()).filter(|machine| is_name(machine));
    let others = others.filter_map(named).collect();
    Ok((owner.and_then(named), others))
}

/// Numbers that this process may have, the best one first: those that nobody has had, and then those of who keeps them no more. Who has
/// a number forgets what was known of the one before, so those of owners go last, and that of the last owner behind all others.
pub(crate) fn free_numbers(answers: &Answers, numbers: u16) -> Result<Vec<u16>, TooFew> {
    let known = known(answers)?;
    let entries = |number: u16| {
        let all = answers.iter().flatten().flatten();
        all.filter(move |entry| entry.number == number)
    };
    let mut free: Vec<(u8, u32, u16)> = Vec::new();
    for number in 0..numbers {
        let is_gone = |entry: &TableEntry| {
            let said = Said::parse(&entry.text);
            said.is_some_and(|said| said.process.seen() == Seen::Gone)
        };
        if entries(number).any(|entry| entry.is_kept() && !is_gone(entry)) {
            continue;
        }
        let of_number = known.iter().filter(|known| known.number == number);
        let epochs = of_number.map(|known| known.said.state.epoch());
        let epoch = epochs.max().unwrap_or(0);
        let rank = u8::from(entries(number).next().is_some());
        free.push((rank, epoch, number));
    }
    free.sort_unstable();
    Ok(free.into_iter().map(|(_, _, number)| number).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(2);

    /// What one drive says of a node: the state, and whether it keeps its entry.
    fn entry(number: u16, machine: &str, state: NodeState, kept: bool) -> TableEntry {
        TableEntry {
            number,
            node: Uuid::from_u128(number.into()),
            age: if kept { LEASE / 2 } else { LEASE * 2 },
            lease: LEASE,
            text: Said {
                process: Process::elsewhere(machine),
                state,
                says: machine.as_bytes().to_vec(),
            }
            .to_bytes(),
        }
    }

    fn seen(answers: &Answers) -> Result<Ownership, TooFew> {
        ownership(answers, Uuid::from_u128(99), &Process::own())
    }

    fn a(kept: bool) -> Option<Vec<TableEntry>> {
        Some(vec![entry(0, "a", NodeState::Serves(7), kept)])
    }

    #[test]
    fn of_numbers_that_all_had_the_pool_that_of_the_last_owner_is_taken_last() {
        let owners = [(0, 9), (1, 4), (2, 6)]
            .map(|(number, epoch)| entry(number, "a", NodeState::Left(epoch), false));
        let waited = entry(3, "b", NodeState::Standby, false);
        let lives = entry(4, "c", NodeState::Standby, true);
        let table: Vec<_> = owners.into_iter().chain([waited, lives]).collect();
        let free = free_numbers(&[Some(table)], 6);
        assert_eq!(free, Ok(vec![5, 3, 1, 2, 0]));
    }

    #[test]
    fn an_owner_that_keeps_its_entry_with_half_of_the_drives_has_the_pool() {
        let owned = Ok(Ownership::Owned("a".to_owned()));
        let silent = Ok(Ownership::Silent("a".to_owned()));
        assert_eq!(seen(&[a(true)]), owned);
        assert_eq!(seen(&[a(true), a(false)]), owned);
        assert_eq!(seen(&[a(true), a(true), None]), owned);
        assert_eq!(seen(&[a(true), a(false), a(false)]), silent);
        assert_eq!(seen(&[a(false), a(false), None]), silent);
        assert_eq!(seen(&[a(true), Some(Vec::new()), Some(Vec::new())]), silent);
        // It may keep it with the one that does not answer.
        assert_eq!(seen(&[a(true), Some(Vec::new()), None]), owned);
    }

    #[test]
    fn half_of_the_drives_say_nothing() {
        assert_eq!(seen(&[None]), Err(TooFew));
        assert_eq!(seen(&[a(true), None]), Err(TooFew));
        assert_eq!(seen(&[a(true), None, None]), Err(TooFew));
        assert_eq!(seen(&[]), Err(TooFew));
    }

    #[test]
    fn tables_that_know_of_no_owner_have_forgotten_it_and_do_not_say_that_it_left() {
        let forgotten = Ok(Ownership::Forgotten);
        assert_eq!(seen(&[Some(Vec::new())]), forgotten);
        let standby = Some(vec![entry(0, "a", NodeState::Standby, true)]);
        assert_eq!(seen(&[standby, Some(Vec::new()), None]), forgotten);
    }

    #[test]
    fn the_owner_is_who_has_the_latest_epoch() {
        let both = Some(vec![
            entry(0, "a", NodeState::Serves(7), true),
            entry(1, "b", NodeState::Serves(8), false),
        ]);
        assert_eq!(seen(&[both]), Ok(Ownership::Silent("b".to_owned())));
        let left = Some(vec![
            entry(0, "a", NodeState::Serves(7), false),
            entry(1, "b", NodeState::Left(8), false),
        ]);
        assert_eq!(seen(&[left]), Ok(Ownership::Left));
    }

    #[test]
    fn who_failed_to_open_the_pool_in_the_epoch_of_its_owner_had_it_not_later() {
        let mut failed = entry(0, "a", NodeState::Left(8), true);
        let owner = entry(1, "b", NodeState::Serves(8), true);
        for age in [Duration::ZERO, LEASE / 2, LEASE - Duration::from_millis(1)] {
            failed.age = age;
            let both = [Some(vec![failed.clone(), owner.clone()])];
            assert_eq!(seen(&both), Ok(Ownership::Owned("b".to_owned())));
            let (last, others) = machines(&both).expect("it answers");
            assert_eq!((last.as_deref(), others.len()), (Some("b"), 1));
            // It tries again.
            let takes = entry(0, "a", NodeState::Takes(8), true);
            let both = [Some(vec![takes, owner.clone()])];
            let own = ownership(&both, Uuid::from_u128(0), &Process::own());
            assert_eq!(own, Ok(Ownership::Owned("b".to_owned())));
            // The owner died.
            let died = entry(1, "b", NodeState::Serves(8), false);
            let both = [Some(vec![failed.clone(), died])];
            assert_eq!(seen(&both), Ok(Ownership::Silent("b".to_owned())));
        }
    }

    #[test]
    fn who_takes_the_pool_has_it_for_all_others() {
        let taking = [Some(vec![
            entry(0, "a", NodeState::Serves(7), false),
            entry(1, "b", NodeState::Takes(0), true),
        ])];
        assert_eq!(seen(&taking), Ok(Ownership::Owned("b".to_owned())));
        let own = ownership(&taking, Uuid::from_u128(1), &Process::own());
        assert_eq!(own, Ok(Ownership::Silent("a".to_owned())));
    }

    #[test]
    fn who_opens_the_pool_and_dies_is_its_last_owner() {
        let died = [Some(vec![
            entry(0, "a", NodeState::Serves(7), false),
            entry(1, "b", NodeState::Takes(8), false),
        ])];
        assert_eq!(seen(&died), Ok(Ownership::Silent("b".to_owned())));
        assert_eq!(last_epoch(&died), Ok(8));
        assert_eq!(last_epoch(&[Some(Vec::new())]), Ok(0));
    }

    #[test]
    fn a_process_that_gave_the_pool_away_knows_it_and_one_that_ended_here_has_none() {
        let by = |process, state| {
            let mut entry = entry(0, "a", state, false);
            entry.text = Said {
                process,
                state,
                says: Vec::new(),
            }
            .to_bytes();
            seen(&[Some(vec![entry])])
        };
        let left = NodeState::Left(7);
        assert_eq!(by(Process::own(), left), Ok(Ownership::GaveAway));
        let served = NodeState::Serves(7);
        assert_eq!(by(Process::ended(), served), Ok(Ownership::Left));
    }

    #[test]
    fn a_number_is_free_when_no_drive_knows_of_who_keeps_it_and_the_last_owners_goes_last() {
        let one = Some(vec![
            entry(0, "a", NodeState::Serves(7), false),
            entry(1, "b", NodeState::Standby, false),
            entry(2, "c", NodeState::Standby, true),
        ]);
        let other = Some(vec![entry(4, "e", NodeState::Standby, true)]);
        let free = free_numbers(&[one, other, None], 6);
        assert_eq!(free, Ok(vec![3, 5, 1, 0]));
    }

    #[test]
    fn who_may_have_this_machines_name_are_those_that_live_as_long_as_their_leases_last() {
        let mut long = entry(2, "c", NodeState::Standby, true);
        long.lease = LEASE * 3;
        let one = Some(vec![
            entry(0, "a", NodeState::Serves(7), false),
            entry(2, "c", NodeState::Standby, true),
        ]);
        let other = Some(vec![long]);
        let leased = |lease| Leased {
            process: Process::elsewhere("c"),
            lease,
        };
        let mut answers = vec![one];
        assert_eq!(living(&answers), Ok(vec![leased(LEASE)]));
        answers.push(other);
        assert_eq!(living(&answers), Ok(vec![leased(LEASE * 3)]));
        assert_eq!(living(&[a(true), None]), Err(TooFew));
    }

    #[test]
    fn others_are_those_that_live() {
        let one = Some(vec![
            entry(0, "a", NodeState::Serves(7), false),
            entry(2, "c", NodeState::Standby, true),
            entry(3, "d", NodeState::Standby, true),
        ]);
        let others = others(&[one], Uuid::from_u128(3)).expect("it answers");
        let machines: Vec<&str> = others.iter().map(|other| &*other.machine).collect();
        assert_eq!(machines, ["c"]);
        assert_eq!(others[0].says, b"c");
    }
}
