//! Where tests look into the engine, and decide who goes on, in tests only.

use std::cell::Cell;
use std::sync::{TryLockError, TryLockResult};
use std::task::Poll;

use shuttle::thread;
use std::time::Duration;

thread_local! {
    /// Shuttle chooses who goes on, on this thread.
    static IS_TELLING: Cell<bool> = const { Cell::new(false) };
    /// Where the pauses of appends come from.
    static PAUSES: Cell<u64> = const { Cell::new(0) };
    /// No append goes on.
    static ARE_HELD: Cell<bool> = const { Cell::new(false) };
    /// The process of a simulation dies.
    static IS_DYING: Cell<bool> = const { Cell::new(false) };
    /// Batches of several commands, and commands that went on alone, on this thread.
    static BATCHES: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
}

/// From now on shuttle chooses who goes on, on this thread, or does not any more.
pub(crate) fn tell_stories(is_telling: bool) {
    IS_TELLING.set(is_telling);
}

/// Locks as a story does: others may go on before, and as long as somebody else has it. `None`: no story is
/// told on this thread.
pub(crate) fn lock_in_story<G>(try_lock: impl Fn() -> TryLockResult<G>) -> Option<G> {
    if !is_told() {
        return None;
    }
    // Lets others go on, and nothing else: `yield_now` would wake what this one waits for.
    thread::sleep(Duration::ZERO);
    loop {
        match try_lock() {
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

/// From now on appends on this thread pause, as often and as long as follows from the seed, between the moment when
/// their records get a range of the journal and that when they are written; with 0 they do not.
pub(crate) fn pause_appends(seed: u64) {
    PAUSES.set(seed);
}

/// From now on no append on this thread goes on when its records have their range of the journal, or all do again.
pub(crate) fn hold_appends(are_held: bool) {
    ARE_HELD.set(are_held);
}

/// Other tasks go on.
pub(crate) async fn pause_before_write() {
    if is_told() {
        thread::sleep(Duration::ZERO);
    }
    std::future::poll_fn(|cx| match ARE_HELD.get() {
        true => {
            cx.waker().wake_by_ref();
            Poll::Pending
        }
        false => Poll::Ready(()),
    })
    .await;
    let seed = PAUSES.get();
    if seed == 0 {
        return;
    }
    // xorshift64 (Marsaglia, 2003): not zero if it was not zero before.
    let mut next = seed;
    next ^= next << 13;
    next ^= next >> 7;
    next ^= next << 17;
    PAUSES.set(next);
    let mut pauses = match next.is_multiple_of(3) {
        true => next / 3 % 8,
        false => 0,
    };
    std::future::poll_fn(|cx| {
        if pauses == 0 {
            return Poll::Ready(());
        }
        pauses -= 1;
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// The process of a simulation dies: what its tasks had in mind is dropped and does not happen.
pub(crate) fn die(tasks: impl Sized) {
    IS_DYING.set(true);
    drop(tasks);
    IS_DYING.set(false);
}

/// Whether what is dropped on this thread is dropped because its process dies.
pub(crate) fn is_dying() -> bool {
    IS_DYING.get()
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
