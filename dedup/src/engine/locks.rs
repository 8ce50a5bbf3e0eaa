//! How long the locks are held that reactors share: what keeps cores from working side by side.

use crate::Engine;
use crate::sync::clock::LockTimes;
use crate::sync::wait::lock;

/// The locks that reactors share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineLocks {
    /// Blocks, index and free space, and what changes maps, where one reactor has all of it alone.
    pub state: LockTimes,
    /// The same, where reactors share it, each with locks of its parts.
    pub shared_state: LockTimes,
    /// The maps of volumes, each with its own lock, all together: reactors that use the same volume share one.
    pub maps: LockTimes,
    /// Positions of records.
    pub journal: LockTimes,
}

impl Engine {
    /// Turns the clocks of the locks on or off. On, they cost about 80 ns for each time that a lock is taken.
    pub fn time_locks(&self, is_on: bool) {
        let state = lock(&self.shared.state);
        state
            .volumes
            .values()
            .for_each(|it| it.core.time_pages(is_on));
        drop(state);
        self.shared.state.time(is_on);
        self.shared.journal.time(is_on);
    }

    /// What the clocks counted since the pool was opened.
    pub fn lock_times(&self) -> EngineLocks {
        let maps = lock(&self.shared.state)
            .volumes
            .values()
            .map(|entry| entry.core.pages_times())
            .fold(LockTimes::default(), LockTimes::plus);
        let (state, shared_state) = self.shared.state.times();
        EngineLocks {
            maps,
            state,
            shared_state,
            journal: self.shared.journal.times(),
        }
    }
}
