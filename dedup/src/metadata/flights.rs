//! Blocks in flight: who is writing them, and how others wait for that.
//!
//! Guarantees: a block that is marked in flight belongs to a flight that is known here, from before it is marked until after the
//! mark is gone.

use std::sync::{Arc, Mutex};

use meta::Pba;

use crate::sync::wait::{Event, lock};

/// New blocks of a batch that are not written yet.
pub(crate) struct Flight {
    pub(super) number: u64,
    /// The drive that is asked first.
    pub(super) drive: usize,
    pub(super) runs: Runs,
    /// Free blocks that were taken for it in advance, and are not in it: first address, and one past the last.
    pub(super) ahead: (u64, u64),
    /// How many were taken the last time.
    pub(super) ahead_count: u64,
}

impl Flight {
    pub(super) fn contains(&self, pba: Pba) -> bool {
        self.runs.contain(pba)
    }

    pub(super) fn add(&mut self, pba: Pba) {
        self.runs.add(pba);
    }

    /// One of the blocks that were taken in advance.
    #[inline]
    pub(super) fn next_ahead(&mut self) -> Option<Pba> {
        let (first, end) = &mut self.ahead;
        (first < end).then(|| {
            *first += 1;
            Pba(*first - 1)
        })
    }

    /// Takes the block that was added last out of the flight.
    pub(crate) fn stay(&mut self, pba: Pba) {
        self.runs.remove_last(pba);
    }
}

/// First address and one past the last, of blocks that follow each other.
#[derive(Default)]
pub(super) struct Runs(Vec<(u64, u64)>);

impl Runs {
    fn contain(&self, pba: Pba) -> bool {
        let holds = |(first, end): &(u64, u64)| (*first..*end).contains(&pba.0);
        self.0.iter().any(holds)
    }

    fn add(&mut self, pba: Pba) {
        match self.0.last_mut() {
            Some((_, end)) if *end == pba.0 => *end += 1,
            _ => self.0.push((pba.0, pba.0 + 1)),
        }
    }

    fn remove_last(&mut self, pba: Pba) {
        if let Some((first, end)) = self.0.last_mut() {
            debug_assert_eq!(*end, pba.0 + 1);
            *end -= 1;
            if first == end {
                self.0.pop();
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Pba> + '_ {
        let blocks = self.0.iter().flat_map(|(first, end)| *first..*end);
        blocks.map(Pba)
    }
}

/// All flights of a pool.
#[derive(Default)]
pub(super) struct Flights(Mutex<Known>);

#[derive(Default)]
struct Known {
    last: u64,
    all: Vec<KnownFlight>,
}

struct KnownFlight {
    number: u64,
    /// Its blocks; `None`: it gets some more.
    runs: Option<Runs>,
    /// Others that want its contents wait for this.
    done: Arc<Event>,
}

impl Flights {
    /// A flight begins, without blocks so far.
    pub(super) fn begin(&self, drive: usize) -> Flight {
        let mut known = lock(&self.0);
        known.last += 1;
        let number = known.last;
        known.all.push(KnownFlight {
            number,
            runs: None,
            done: Arc::default(),
        });
        Flight {
            number,
            drive,
            runs: Runs::default(),
            ahead: (0, 0),
            ahead_count: 0,
        }
    }

    /// It gets no more blocks.
    pub(super) fn is_whole(&self, number: u64, runs: Runs) {
        let mut known = lock(&self.0);
        if let Some(flight) = known.all.iter_mut().find(|it| it.number == number) {
            flight.runs = Some(runs);
        }
    }

    /// What a flight has. It stays known.
    pub(super) fn take_runs(&self, number: u64) -> Option<Runs> {
        let mut known = lock(&self.0);
        let flight = known.all.iter_mut().find(|it| it.number == number)?;
        Some(flight.runs.take().unwrap_or_default())
    }

    /// A flight is over: its blocks are not marked any more. Its event is to be set.
    pub(super) fn end(&self, number: u64) -> Option<Arc<Event>> {
        let mut known = lock(&self.0);
        let at = known.all.iter().position(|it| it.number == number)?;
        Some(known.all.swap_remove(at).done)
    }

    /// What to wait for until a block has landed that another flight than this one has: that flight, or all that get blocks
    /// at the moment. Nothing, if it has landed.
    pub(super) fn of(&self, pba: Pba, own: u64) -> Vec<Arc<Event>> {
        let known = lock(&self.0);
        let others = || known.all.iter().filter(|it| it.number != own);
        let has = |it: &&KnownFlight| it.runs.as_ref().is_some_and(|runs| runs.contain(pba));
        if let Some(flight) = others().find(has) {
            return vec![flight.done.clone()];
        }
        let open = others().filter(|it| it.runs.is_none());
        open.map(|it| it.done.clone()).collect()
    }

    /// Whether there are none.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        lock(&self.0).all.is_empty()
    }
}
