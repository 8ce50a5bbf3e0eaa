//! How long the locks are held that all reactors share: what keeps cores from working side by side.

use crate::Engine;
use crate::sync::timed::LockTimes;

/// The locks that all reactors share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineLocks {
    /// Maps, blocks, index and free space.
    pub state: LockTimes,
    /// Positions of records.
    pub journal: LockTimes,
}

impl Engine {
    /// Turns the clocks of the locks on or off. On, they cost about 80 ns for each time that a lock is taken.
    pub fn time_locks(&self, is_on: bool) {
        self.shared.state.time(is_on);
        self.shared.journal.time(is_on);
    }

    /// What the clocks counted since the pool was opened.
    pub fn lock_times(&self) -> EngineLocks {
        EngineLocks {
            state: self.shared.state.times(),
            journal: self.shared.journal.times(),
        }
    }
}
