//! Where the time of a command goes, for somebody who watches it.
//!
//! A [`Stopwatch`] belongs to one command. Whoever ends a stage of it adds the time since the last stage ended. The engine
//! finds the stopwatch of the command that it works on by itself: it runs inside of [`watched`].
//!
//! Guarantee: of a command that nobody watches no clock is read.

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// What a command is busy with, in the order in which a write comes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// From its arrival until somebody works on it.
    Receive,
    /// A buffer, and its data from the host.
    Data,
    /// Other commands: on the same blocks, of its batch, or those that write the same content.
    Wait,
    /// Fingerprints, checksums, compression.
    Hash,
    /// Look-ups in maps and in the index, with what has to be brought into memory for them.
    Index,
    /// The drives.
    Drive,
    /// The journal; with FUA and Flush until it is durable.
    Journal,
    /// The answer.
    Send,
}

impl Stage {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Receive,
        Self::Data,
        Self::Wait,
        Self::Hash,
        Self::Index,
        Self::Drive,
        Self::Journal,
        Self::Send,
    ];

    /// Its name in one word.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Receive => "receive",
            Self::Data => "data",
            Self::Wait => "wait",
            Self::Hash => "hash",
            Self::Index => "index",
            Self::Drive => "drive",
            Self::Journal => "journal",
            Self::Send => "send",
        }
    }
}

/// How long the stages of a command took so far.
#[derive(Debug)]
pub struct Stopwatch {
    last: Cell<Instant>,
    spent: [Cell<Duration>; Stage::ALL.len()],
}

impl Stopwatch {
    /// Of a command that arrived then.
    #[must_use]
    pub fn since(arrived: Instant) -> Self {
        Self {
            last: Cell::new(arrived),
            spent: Default::default(),
        }
    }

    /// The stage has ended: all since the last one ended was spent in it.
    pub fn ended(&self, stage: Stage) {
        let now = Instant::now();
        let more = now.saturating_duration_since(self.last.replace(now));
        if let Some(spent) = self.spent.get(stage as usize) {
            spent.set(spent.get() + more);
        }
    }

    /// How long that stage took.
    #[must_use]
    pub fn spent(&self, stage: Stage) -> Duration {
        self.spent
            .get(stage as usize)
            .map_or(Duration::ZERO, Cell::get)
    }
}

thread_local! {
    /// Of the command that this thread works on at the moment.
    static CURRENT: RefCell<Option<Rc<Stopwatch>>> = const { RefCell::new(None) };
}

/// The stopwatch of the command that this thread works on, if it is watched.
pub(crate) fn current() -> Option<Rc<Stopwatch>> {
    CURRENT.with_borrow(Clone::clone)
}

/// A stage of the command that this thread works on has ended.
pub(crate) fn ended(stage: Stage) {
    CURRENT.with_borrow(|current| {
        if let Some(stopwatch) = current {
            stopwatch.ended(stage);
        }
    });
}

/// Work on a command that is watched.
pub fn watched<F: Future>(stopwatch: Rc<Stopwatch>, work: F) -> impl Future<Output = F::Output> {
    Watched {
        stopwatch,
        work: Box::pin(work),
    }
}

struct Watched<F> {
    stopwatch: Rc<Stopwatch>,
    work: Pin<Box<F>>,
}

/// Puts back what was current, also when a poll panics.
struct PutBack(Option<Rc<Stopwatch>>);

impl Drop for PutBack {
    fn drop(&mut self) {
        CURRENT.set(self.0.take());
    }
}

impl<F: Future> Future for Watched<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let before = CURRENT.replace(Some(self.stopwatch.clone()));
        let _put_back = PutBack(before);
        self.work.as_mut().poll(cx)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use futures_util::future::{join, pending, ready};

    use super::*;

    #[test]
    fn all_the_time_of_a_command_is_in_its_stages() {
        let arrived = Instant::now();
        let stopwatch = Stopwatch::since(arrived);
        for stage in Stage::ALL {
            stopwatch.ended(stage);
        }
        stopwatch.ended(Stage::Index);
        let sum: Duration = Stage::ALL.iter().map(|stage| stopwatch.spent(*stage)).sum();
        assert_eq!(sum, stopwatch.last.get() - arrived);
    }

    #[test]
    fn work_finds_the_stopwatch_of_its_own_command_and_leaves_none_behind() {
        let [one, other] = [(), ()].map(|()| Rc::new(Stopwatch::since(Instant::now())));
        let finds = |of: &Rc<Stopwatch>| {
            let of = of.clone();
            watched(of.clone(), async move {
                assert!(current().is_some_and(|current| Rc::ptr_eq(&current, &of)));
            })
        };
        let both = join(finds(&one), watched(one.clone(), finds(&other)));
        assert!(both.now_or_never().is_some());
        assert!(
            watched(one.clone(), pending::<()>())
                .now_or_never()
                .is_none()
        );
        assert!(current().is_none());
        ended(Stage::Drive);
        assert!(ready(()).now_or_never().is_some());
        assert_eq!(one.spent(Stage::Drive), Duration::ZERO);
    }
}
