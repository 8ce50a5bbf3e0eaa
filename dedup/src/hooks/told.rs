//! Hooks of tests: stories decide who goes on, and look into the engine.

use std::cell::Cell;
use std::sync::{TryLockError, TryLockResult};
use std::task::Poll;
use std::time::Duration;

use shuttle::thread;

use super::{Hooks, OpeningFigures};

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
    /// How many fingerprints there are on this thread; `None`: all.
    static FINGERPRINTS: Cell<Option<u8>> = const { Cell::new(None) };
    /// What the last opening on this thread met.
    static OPENING: Cell<OpeningFigures> = Cell::default();
}

/// The hooks of tests.
pub(crate) struct Told;

impl Hooks for Told {
    const FORGIVES_PANICS: bool = true;
    const HAS_CLOCK: bool = false;

    fn lock_in_story<G>(try_lock: impl Fn() -> TryLockResult<G>) -> Option<G> {
        if !is_told() {
            return None;
        }
        let_others_go_on();
        loop {
            match try_lock() {
                Ok(guard) => return Some(guard),
                Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) => thread::yield_now(),
            }
        }
    }

    fn reactor() -> usize {
        match is_told() {
            true => usize::from(shuttle::current::me()),
            false => 0,
        }
    }

    async fn pause_before_write() {
        if is_told() {
            let_others_go_on();
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

    fn is_dying() -> bool {
        IS_DYING.get()
    }

    fn note_batch(commands: usize, leave: usize) {
        let (shared, alone) = BATCHES.get();
        BATCHES.set((shared + u64::from(commands > 1), alone + leave as u64));
    }

    fn weaken(fingerprint: &mut [u8; 16]) {
        if let Some(values) = FINGERPRINTS.get() {
            let value = fingerprint[0] % values;
            *fingerprint = [value; 16];
            // None of them says that there is none.
            fingerprint[15] = 1;
        }
    }

    fn must_not_happen(what: &str) {
        panic!("{what}");
    }

    fn note_opening(figures: OpeningFigures) {
        OPENING.set(figures);
    }

    fn observe<T>(look: impl FnOnce() -> T) -> Option<T> {
        Some(look())
    }
}

/// From now on shuttle chooses who goes on, on this thread, or does not any more.
pub(crate) fn tell_stories(is_telling: bool) {
    IS_TELLING.set(is_telling);
}

/// Others may go on here, and nothing else happens: `yield_now` would wake what this one waits for. Shuttle's `sleep` is no
/// sleep, but a place where it chooses who goes on.
fn let_others_go_on() {
    thread::sleep(Duration::ZERO);
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

/// The process of a simulation dies: what its tasks had in mind is dropped and does not happen.
pub(crate) fn die(tasks: impl Sized) {
    IS_DYING.set(true);
    drop(tasks);
    IS_DYING.set(false);
}

/// The batches that were noted on this thread since the last call.
pub(crate) fn take_batches() -> (u64, u64) {
    BATCHES.take()
}

/// From now on there are so many fingerprints on this thread, so that contents collide; `None`: all.
pub(crate) fn limit_fingerprints(values: Option<u8>) {
    FINGERPRINTS.set(values);
}

/// What the last opening on this thread met.
pub(crate) fn last_opening() -> OpeningFigures {
    OPENING.get()
}
