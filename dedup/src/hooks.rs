//! Where tests look into the engine, and decide who goes on, in tests only.

use std::cell::Cell;
use std::sync::{Mutex, MutexGuard, TryLockError};

use shuttle::thread;
use std::time::Duration;

thread_local! {
    /// Shuttle chooses who goes on, on this thread.
    static IS_TELLING: Cell<bool> = const { Cell::new(false) };
    /// Batches of several commands, and commands that went on alone, on this thread.
    static BATCHES: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
}

/// From now on shuttle chooses who goes on, on this thread, or does not any more.
pub(crate) fn tell_stories(is_telling: bool) {
    IS_TELLING.set(is_telling);
}

/// Locks as a story does: others may go on before, and as long as somebody else has it. `None`: no story is
/// told on this thread.
pub(crate) fn lock_in_story<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    if !is_told() {
        return None;
    }
    // Lets others go on, and nothing else: `yield_now` would wake what this one waits for.
    thread::sleep(Duration::ZERO);
    loop {
        match mutex.try_lock() {
            Ok(guard) => return Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => thread::yield_now(),
        }
    }
}

/// Which reactor of a story goes on at the moment; 0 without one.
pub(crate) fn reactor() -> usize {
    match is_told() {
        true => usize::from(shuttle::current::me()),
        false => 0,
    }
}

/// Whether this is part of a story, and not what is left when it was told.
fn is_told() -> bool {
    IS_TELLING.get() && shuttle::current::try_get_current_task().is_some()
}

/// The engine says that it forms a batch of so many commands, or that so many leave one.
pub(crate) fn note_batch(commands: usize, leave: usize) {
    let (shared, alone) = BATCHES.get();
    BATCHES.set((shared + u64::from(commands > 1), alone + leave as u64));
}

/// The batches that were noted on this thread since the last call.
pub(crate) fn take_batches() -> (u64, u64) {
    BATCHES.take()
}
