//! Which drives decide, where half of those that the node was started with do not answer.
//!
//! A pool that lost a drive goes on with the others, and keeps its metadata there: each of them says on which drives it is. Who has read
//! that knows that a lost drive has nothing newer, so those that hold the metadata decide without it.

use std::time::{Duration, Instant};

/// How long what was read of that counts. Where the pool has got its drive back since, whoever takes it over reads that.
const VALID: Duration = Duration::from_secs(60);

/// Drives that hold the pool's metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holders {
    /// Those that answered, by their addresses.
    pub answered: Vec<String>,
    /// How many there are in all.
    pub all: usize,
}

/// Those of a node's drives that decide.
#[derive(Debug)]
pub(crate) struct Deciding {
    places: Vec<usize>,
    all: usize,
    until: Instant,
}

impl Deciding {
    /// Of the drives with these addresses, in their order.
    pub(crate) fn new(holders: &Holders, drives: &[&str], now: Instant) -> Self {
        let places = (0..drives.len()).filter(|at| {
            let drive = drives[*at];
            holders.answered.iter().any(|answered| answered == drive)
        });
        Self {
            places: places.collect(),
            all: holders.all,
            until: now + VALID,
        }
    }

    /// Whether half of those that decide answer, or more: so many are enough for who has the pool, because no other node takes it with
    /// the rest.
    pub(super) fn is_half<T>(&self, answers: &[Option<T>], now: Instant) -> bool {
        let is_there = |at: &&usize| answers.get(**at).is_some_and(Option::is_some);
        let answered = self.places.iter().filter(is_there).count();
        now < self.until && answered > 0 && answered * 2 >= self.all
    }

    /// The answers of those that decide; `None` if they are not more than half, or were found too long ago. As many are `None` as do not answer.
    fn among<T>(&self, answers: Vec<Option<T>>, now: Instant) -> Option<Vec<Option<T>>> {
        let is_its = |(at, answer): (usize, Option<T>)| match self.places.contains(&at) {
            true => answer,
            false => None,
        };
        let answered = answers.into_iter().enumerate().filter_map(is_its);
        let mut answers: Vec<Option<T>> = answered.map(Some).collect();
        let counts = now < self.until && answers.len() * 2 > self.all;
        counts.then(|| {
            answers.resize_with(self.all.max(answers.len()), || None);
            answers
        })
    }
}

/// The answers that count: those of all drives if more than half of them answer, or of those that decide.
pub(crate) fn deciding<T>(
    answers: Vec<Option<T>>,
    deciding: Option<&Deciding>,
    now: Instant,
) -> Option<Vec<Option<T>>> {
    let answered = answers.iter().flatten().count();
    match answered * 2 > answers.len() {
        true => Some(answers),
        false => deciding?.among(answers, now),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRIVES: [&str; 3] = ["a", "b", "c"];

    fn holders(answered: &[&str], all: usize) -> Holders {
        Holders {
            answered: answered.iter().map(|&it| it.to_owned()).collect(),
            all,
        }
    }

    #[test]
    fn more_than_half_of_all_drives_decide_whatever_holds_the_metadata() {
        let now = Instant::now();
        let by = Deciding::new(&holders(&["a"], 1), &DRIVES, now);
        let answers = vec![None, Some(1), Some(2)];
        let decided = super::deciding(answers.clone(), Some(&by), now);
        assert_eq!(decided, Some(answers));
    }

    #[test]
    fn a_drive_that_alone_holds_the_metadata_decides_when_the_others_are_lost() {
        let now = Instant::now();
        let by = Deciding::new(&holders(&["b"], 1), &DRIVES, now);
        let of = |answers| super::deciding(answers, Some(&by), now);
        assert_eq!(of(vec![None, Some(7), None]), Some(vec![Some(7)]));
        assert_eq!(of(vec![Some(7), None, None]), None, "it holds nothing");
        assert_eq!(super::deciding(vec![None, Some(7), None], None, now), None);
    }

    #[test]
    fn half_of_those_that_hold_the_metadata_decide_nothing() {
        let now = Instant::now();
        let by = Deciding::new(&holders(&["a"], 2), &DRIVES, now);
        assert_eq!(
            super::deciding(vec![Some(7), None, None], Some(&by), now),
            None
        );
        // One that holds it too is not among the drives of this node.
        let by = Deciding::new(&holders(&["a", "z"], 2), &DRIVES, now);
        assert_eq!(
            super::deciding(vec![Some(7), None, None], Some(&by), now),
            None
        );
        let by = Deciding::new(&holders(&["a", "c"], 3), &["a", "b", "c", "d"], now);
        let decided = super::deciding(vec![Some(7), None, Some(8), None], Some(&by), now);
        assert_eq!(decided, Some(vec![Some(7), Some(8), None]));
    }

    #[test]
    fn half_of_those_that_hold_the_metadata_are_enough_for_who_has_the_pool() {
        let now = Instant::now();
        let by = Deciding::new(&holders(&["a", "b"], 2), &DRIVES, now);
        let is_half = |answers: [Option<()>; 3]| by.is_half(&answers, now);
        assert!(is_half([Some(()), None, None]) && is_half([None, Some(()), None]));
        assert!(!is_half([None, None, Some(())]), "it holds nothing");
        assert!(!by.is_half(&[Some(()), Some(()), None], now + VALID));
        let nothing = Deciding::new(&holders(&[], 0), &DRIVES, now);
        assert!(!nothing.is_half(&[Some(()), None, None], now));
    }

    #[test]
    fn what_was_read_long_ago_decides_nothing() {
        let now = Instant::now();
        let by = Deciding::new(&holders(&["a"], 1), &DRIVES, now);
        let later = now + VALID;
        assert_eq!(
            super::deciding(vec![Some(7), None, None], Some(&by), later),
            None
        );
    }
}
