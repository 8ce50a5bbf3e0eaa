//! Where a story of a test decides what happens, and hears what happened: one trait, of which nothing comes in the program.

use std::sync::TryLockResult;

#[cfg(test)]
mod told;

#[cfg(test)]
pub(crate) use told::{
    Told as Current, die, hold_appends, last_opening, limit_fingerprints, pause_appends,
    take_batches, tell_stories,
};

/// The hooks of the program.
#[cfg(not(test))]
pub(crate) struct Current;

#[cfg(not(test))]
impl Hooks for Current {}

/// What the engine asks and says at its hooks, which are functions of [`Current`]. As it stands here: in the program.
pub(crate) trait Hooks {
    /// Whether a panic may leave a change half made: simulations catch those of a whole process.
    const FORGIVES_PANICS: bool = false;
    /// Whether time passes by itself.
    const HAS_CLOCK: bool = true;

    /// Locks as a story does: others may go on before, and as long as somebody else has it. `None`: no story is
    /// told on this thread.
    #[inline]
    fn lock_in_story<G>(_try_lock: impl Fn() -> TryLockResult<G>) -> Option<G> {
        None
    }

    /// Which reactor of this thread goes on at the moment: a story may have several on one.
    #[inline]
    fn reactor() -> usize {
        0
    }

    /// The records of an append have their range of the journal, and are not written yet: others may go on.
    #[inline]
    async fn pause_before_write() {}

    /// Whether what is dropped on this thread is dropped because its process dies.
    #[inline]
    fn is_dying() -> bool {
        false
    }

    /// A batch of so many commands is formed, or so many leave one.
    #[inline]
    fn note_batch(_commands: usize, _leave: usize) {}

    /// Makes a fingerprint one of a few, so that contents collide.
    #[inline]
    fn weaken(_fingerprint: &mut [u8; 16]) {}

    /// Something happened that rules of the engine exclude; the engine goes on as well as it can.
    fn must_not_happen(_what: &str) {}

    /// A pool was opened.
    fn note_opening(_figures: OpeningFigures) {}

    /// Looks at something that only tests want to know.
    #[inline]
    fn observe<T>(_look: impl FnOnce() -> T) -> Option<T> {
        None
    }
}

/// What an opening met.
#[derive(Clone, Copy, Debug, Default)]
#[cfg_attr(not(test), expect(dead_code, reason = "only tests read them"))]
pub(crate) struct OpeningFigures {
    pub(crate) records: u64,
    /// Sub-blocks that were taken back.
    pub(crate) unproven: u64,
    /// Blocks that were not flushed and are damaged.
    pub(crate) damaged: u64,
}
