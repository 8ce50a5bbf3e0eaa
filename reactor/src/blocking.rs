//! Calls that block, away from the reactors.
//!
//! Guarantees: at most [`THREADS_MAX`] helper threads in the whole process, started when needed and
//! ended when idle; calls begin in the order in which they were asked for; a call that was begun or
//! is in line is made, also when nobody waits for its result any more.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use crate::sync::{lock, oneshot};

/// Enough to overlap journal syncs, RocksDB calls and directory operations; few enough not to crowd
/// the reactors off their cores.
const THREADS_MAX: usize = 16;
/// How long a thread waits for its next call before it ends.
const IDLE_TIME: Duration = Duration::from_secs(10);

type Call = Box<dyn FnOnce() + Send>;

static HELPERS: Helpers = Helpers {
    state: Mutex::new(State {
        calls: VecDeque::new(),
        idle: 0,
        threads: 0,
    }),
    more: Condvar::new(),
};

struct Helpers {
    state: Mutex<State>,
    more: Condvar,
}

struct State {
    calls: VecDeque<Call>,
    idle: usize,
    threads: usize,
}

/// Makes a blocking call on a helper thread and waits for its result. Works on any executor. The
/// line is as long as there are tasks that wait in it.
///
/// # Panics
/// If the call panics, with its panic.
pub async fn unblock<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> T {
    let (result, receiver) = oneshot::channel();
    HELPERS.begin(Box::new(move || {
        // Nobody may be waiting any more.
        let _ = result.send(catch_unwind(AssertUnwindSafe(call)));
    }));
    match receiver.await {
        Ok(Ok(value)) => value,
        Ok(Err(panic)) => resume_unwind(panic),
        Err(_) => panic!("a helper thread dropped a call without making it"),
    }
}

/// Makes a blocking call on a helper thread; nobody waits for it. Where the system gives no thread, the
/// caller makes it.
pub fn detach(call: impl FnOnce() + Send + 'static) {
    HELPERS.begin(Box::new(|| {
        if catch_unwind(AssertUnwindSafe(call)).is_err() {
            tracing::error!("a call on a helper thread panicked");
        }
    }));
}

impl Helpers {
    fn begin(&'static self, call: Call) {
        let mut state = lock(&self.state);
        state.calls.push_back(call);
        if state.idle >= state.calls.len() {
            drop(state);
            self.more.notify_one();
            return;
        }
        if state.threads == THREADS_MAX {
            return;
        }
        state.threads += 1;
        drop(state);
        let thread = thread::Builder::new().name("blocking".to_owned());
        if let Err(error) = thread.spawn(|| self.work()) {
            tracing::warn!(%error, "no further helper thread; raise the limit on threads (ulimit -u)");
            let mut state = lock(&self.state);
            state.threads -= 1;
            // Without any thread nobody would ever make the call: this one does.
            while state.threads == 0
                && let Some(call) = state.calls.pop_front()
            {
                drop(state);
                call();
                state = lock(&self.state);
            }
        }
    }

    fn work(&self) {
        let mut state = lock(&self.state);
        loop {
            while let Some(call) = state.calls.pop_front() {
                drop(state);
                call();
                state = lock(&self.state);
            }
            state.idle += 1;
            let (woken, timeout) = self
                .more
                .wait_timeout(state, IDLE_TIME)
                .unwrap_or_else(PoisonError::into_inner);
            state = woken;
            state.idle -= 1;
            if timeout.timed_out() && state.calls.is_empty() {
                state.threads -= 1;
                return;
            }
        }
    }
}
