//! Flushes of one drive: one at a time, whoever asks, and to their end, whoever stops waiting.
//!
//! The kernel reports a lost write to one fsync only. So its result belongs to the drive and not to the
//! future that asked for it. Guarantees:
//! - At most one flush of a drive runs. Who asks while one runs waits for the next one, because the running
//!   one may have begun before their writes completed; all who wait share that next one.
//! - A flush runs to its end on a helper thread, also when every future that waits for it is dropped.
//! - Once a flush has failed, every later one fails without asking the kernel again.
//! - When those who waited for the last flush are woken, the helper thread has nothing of the drive any more: who drops it then can
//!   open it again at once.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

/// Makes what was written stable. Blocks.
type Sync = dyn Fn() -> io::Result<()> + Send + std::marker::Sync;

/// Flushes one drive.
pub(crate) struct Flusher(Arc<Shared>);

/// Why a flush failed.
#[derive(Debug)]
pub(crate) enum FlushFailure {
    /// The kernel said so, now.
    Now(io::Error),
    /// One failed before, for this reason; the kernel was not asked again.
    Earlier(String),
}

struct Shared {
    sync: Box<Sync>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Flushes that began. They are counted from 1.
    begun: u64,
    /// Flushes that ended well; the one that is `begun + 1` has not begun.
    done: u64,
    /// The last flush that somebody asked for.
    asked: u64,
    /// A helper thread flushes now.
    is_running: bool,
    failure: Option<Failure>,
    /// The wakers of those who wait for a flush, by number.
    waiting: BTreeMap<u64, Waker>,
    /// The number for the next of them.
    next: u64,
}

/// The flush that failed.
struct Failure {
    kind: io::ErrorKind,
    code: Option<i32>,
    text: String,
}

impl Failure {
    fn new(error: &io::Error) -> Self {
        Self {
            kind: error.kind(),
            code: error.raw_os_error(),
            text: error.to_string(),
        }
    }

    /// The same for each who waited for it.
    fn error(&self) -> io::Error {
        match self.code {
            Some(code) => io::Error::from_raw_os_error(code),
            None => io::Error::new(self.kind, self.text.clone()),
        }
    }
}

impl std::fmt::Debug for Flusher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Flusher").finish_non_exhaustive()
    }
}

impl Flusher {
    pub(crate) fn new(
        sync: impl Fn() -> io::Result<()> + Send + std::marker::Sync + 'static,
    ) -> Self {
        Self(Arc::new(Shared {
            sync: Box::new(sync),
            state: Mutex::default(),
        }))
    }

    /// Makes every write that completed before this call survive a power loss. Works on any executor.
    pub(crate) async fn flush(&self) -> Result<(), FlushFailure> {
        let (flush, number) = {
            let mut state = self.0.state();
            if let Some(failure) = &state.failure {
                return Err(FlushFailure::Earlier(failure.text.clone()));
            }
            let flush = state.begun + 1;
            state.asked = flush;
            state.next += 1;
            let number = state.next;
            if !std::mem::replace(&mut state.is_running, true) {
                drop(state);
                let shared = self.0.clone();
                reactor::detach(move || shared.run());
            }
            (flush, number)
        };
        let waits = Waits {
            shared: &self.0,
            number,
        };
        poll_fn(|cx| {
            let mut state = waits.shared.state();
            if state.done >= flush {
                return Poll::Ready(Ok(()));
            }
            if let Some(failure) = &state.failure {
                return Poll::Ready(Err(FlushFailure::Now(failure.error())));
            }
            state.waiting.insert(waits.number, cx.waker().clone());
            Poll::Pending
        })
        .await
    }
}

/// A place among those who wait; dropping it gives it up.
struct Waits<'a> {
    shared: &'a Shared,
    number: u64,
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.shared.state().waiting.remove(&self.number);
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // Each change of the state is whole: no call out of this module is made under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Flushes until nobody asks for another one.
    fn run(self: Arc<Self>) {
        loop {
            let flush = {
                let mut state = self.state();
                state.begun += 1;
                state.begun
            };
            let result = (self.sync)();
            let mut state = self.state();
            match result {
                Ok(()) => state.done = flush,
                Err(error) => state.failure = Some(Failure::new(&error)),
            }
            let waiting = std::mem::take(&mut state.waiting).into_values();
            state.is_running = state.asked > state.begun && state.failure.is_none();
            let is_over = !state.is_running;
            drop(state);
            if is_over {
                drop(self);
                waiting.for_each(Waker::wake);
                return;
            }
            waiting.for_each(Waker::wake);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Duration;

    use futures_util::FutureExt;
    use futures_util::future::join_all;

    use super::*;

    /// A drive whose flushes end when the test says so, and how many began.
    struct Held {
        flusher: Flusher,
        begun: Receiver<u64>,
        results: Sender<io::Result<()>>,
    }

    impl Held {
        /// The number of the next flush that begins.
        fn begins(&self) -> Option<u64> {
            self.begun.recv_timeout(Duration::from_secs(60)).ok()
        }
    }

    fn held() -> Held {
        let (begins, begun) = channel();
        let (results, ends) = channel::<io::Result<()>>();
        let (ends, count) = (Mutex::new(ends), AtomicU64::new(0));
        let flusher = Flusher::new(move || {
            // The test may have ended.
            let _ = begins.send(count.fetch_add(1, Ordering::SeqCst) + 1);
            let ends = ends.lock().expect("one at a time");
            ends.recv().unwrap_or(Ok(()))
        });
        Held {
            flusher,
            begun,
            results,
        }
    }

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        reactor::run(reactor::Config::default(), future).expect("this machine permits io_uring")
    }

    fn failed() -> io::Result<()> {
        Err(io::Error::from_raw_os_error(5))
    }

    #[test]
    fn who_asks_during_a_flush_shares_the_next_one_and_not_this_one() {
        let held = held();
        let mut first = Box::pin(held.flusher.flush());
        assert!(first.as_mut().now_or_never().is_none());
        assert_eq!(held.begins(), Some(1));
        // Their writes may have completed after the first flush began.
        let mut later: Vec<_> = (0..5).map(|_| Box::pin(held.flusher.flush())).collect();
        assert!(
            later
                .iter_mut()
                .all(|f| f.as_mut().now_or_never().is_none())
        );
        held.results.send(Ok(())).expect("it waits");
        block_on(first).expect("flushed");
        assert_eq!(held.begins(), Some(2));
        assert!(
            later
                .iter_mut()
                .all(|f| f.as_mut().now_or_never().is_none())
        );
        held.results.send(Ok(())).expect("it waits");
        assert!(block_on(join_all(later)).iter().all(Result::is_ok));
        // Nobody asked for a third one.
        drop(held.results);
        assert!(held.begun.try_recv().is_err());
    }

    #[test]
    fn who_was_woken_by_the_last_flush_can_drop_the_drive_for_good() {
        block_on(async {
            for _ in 0..1000 {
                let file = Arc::new(());
                let held = file.clone();
                let flusher = Flusher::new(move || {
                    let _file = &held;
                    Ok(())
                });
                flusher.flush().await.expect("flushed");
                drop(flusher);
                assert_eq!(Arc::strong_count(&file), 1, "nobody has the file any more");
            }
        });
    }

    #[test]
    fn a_failure_is_kept_when_nobody_waits_for_the_flush_any_more() {
        let held = held();
        let mut asked = Box::pin(held.flusher.flush());
        assert!(asked.as_mut().now_or_never().is_none());
        assert_eq!(held.begins(), Some(1));
        drop(asked);
        // The next one asks while the forgotten flush still runs.
        let mut next = Box::pin(held.flusher.flush());
        assert!(next.as_mut().now_or_never().is_none());
        held.results.send(failed()).expect("it waits");
        held.results.send(Ok(())).expect("it waits");
        let error = block_on(next).expect_err("a write was lost");
        assert!(matches!(&error, FlushFailure::Now(e) if e.raw_os_error() == Some(5)));
        // Later ones fail, and the kernel is not asked, which would say that all is well.
        for _ in 0..3 {
            let error = block_on(held.flusher.flush()).expect_err("a write was lost");
            assert!(matches!(error, FlushFailure::Earlier(text) if text.contains("os error 5")));
        }
        assert!(held.begun.try_recv().is_err(), "the kernel was asked again");
    }

    #[test]
    fn a_flush_that_all_gave_up_waiting_for_leaves_nothing_behind() {
        let held = held();
        for _ in 0..100 {
            assert!(held.flusher.flush().now_or_never().is_none());
        }
        assert_eq!(held.begins(), Some(1));
        assert!(held.flusher.0.state().waiting.is_empty());
        drop(held.results);
        block_on(held.flusher.flush()).expect("flushed");
    }
}
