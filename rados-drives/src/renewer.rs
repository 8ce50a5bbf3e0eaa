//! A thread that renews a lease.
//!
//! Guarantees: it ends when nobody has its [`Renewer`] any more, after it gave up what it kept, and the end of the process waits for
//! that ([`Ending`]). A cluster that does not answer a renewal for [`SILENT`] is logged once, and so is that it answers again.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::ending::Ending;

/// How long the cluster may take for a renewal before that is logged.
const SILENT: Duration = Duration::from_secs(5);

/// How often that is looked at.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// What is renewed. Its calls block.
pub(crate) trait Kept: Send + 'static {
    /// The time between two renewals.
    fn period(&self) -> Duration;

    /// The drive whose name is logged when the cluster is silent; `None`: nothing is logged.
    fn drive(&self) -> Option<String>;

    /// Whether the cluster answered, whatever it said.
    fn renew(&mut self) -> bool;

    /// Gives it up.
    fn leave(&mut self);
}

/// How a renewer ends.
#[derive(Debug)]
enum Order {
    GoOn,
    /// Give it up.
    Leave(Ending),
    /// Somebody else has it now.
    Stop,
}

/// What the threads of a renewer share.
#[derive(Debug)]
struct State {
    order: Order,
    /// When the cluster was asked, if it has not answered since.
    asked_at: Option<Instant>,
    /// It was logged that it does not answer.
    is_told: bool,
}

impl State {
    fn goes_on(&self) -> bool {
        matches!(self.order, Order::GoOn)
    }

    fn asks(&mut self, now: Instant) {
        self.asked_at.get_or_insert(now);
    }

    /// The cluster answered. How long it was silent, if that was logged.
    fn answered(&mut self, now: Instant) -> Option<Duration> {
        let asked_at = self.asked_at.take()?;
        let was_told = std::mem::take(&mut self.is_told);
        was_told.then(|| now.saturating_duration_since(asked_at))
    }

    /// Whether it is to be logged now that the cluster does not answer: once.
    fn is_newly_silent(&mut self, now: Instant) -> bool {
        let silent = self.asked_at.map(|at| now.saturating_duration_since(at));
        let is_silent = silent.is_some_and(|silent| silent >= SILENT);
        is_silent && !std::mem::replace(&mut self.is_told, true)
    }
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // Each change is one assignment.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for so long, or until there is an order.
    fn wait(&self, time: Duration) -> MutexGuard<'_, State> {
        let waited = self
            .changed
            .wait_timeout_while(self.state(), time, |state| state.goes_on());
        waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// See the module. Dropping it gives up what it keeps, which the thread does by itself.
#[derive(Debug)]
pub(crate) struct Renewer(Arc<Shared>);

impl Renewer {
    /// # Errors
    /// The system has no thread for it.
    pub(crate) fn start(kept: impl Kept) -> std::io::Result<Self> {
        let renewer = Self(Arc::new(Shared {
            state: Mutex::new(State {
                order: Order::GoOn,
                asked_at: None,
                is_told: false,
            }),
            changed: Condvar::new(),
        }));
        let drive = kept.drive();
        let of_keeper = renewer.0.clone();
        let keeper = thread::Builder::new().name("rados lease".to_owned());
        let watched = drive.clone();
        keeper.spawn(move || keep(kept, watched.as_deref(), &of_keeper))?;
        if let Some(drive) = drive {
            let of_watcher = renewer.0.clone();
            let watcher = thread::Builder::new().name("rados silence".to_owned());
            watcher.spawn(move || watch(&drive, &of_watcher))?;
        }
        Ok(renewer)
    }

    /// Ends the threads without giving anything up: another client has it.
    pub(crate) fn stop(self) {
        self.order(Order::Stop);
    }

    /// The first order counts.
    fn order(&self, order: Order) {
        let mut state = self.0.state();
        if state.goes_on() {
            state.order = order;
        }
        self.0.changed.notify_all();
    }
}

impl Drop for Renewer {
    fn drop(&mut self) {
        self.order(Order::Leave(Ending::begin()));
    }
}

fn keep(mut kept: impl Kept, drive: Option<&str>, shared: &Shared) {
    loop {
        let mut state = shared.wait(kept.period());
        if !state.goes_on() {
            let order = std::mem::replace(&mut state.order, Order::Stop);
            drop(state);
            if let Order::Leave(ending) = order {
                kept.leave();
                drop(ending);
            }
            return;
        }
        state.asks(Instant::now());
        drop(state);
        if kept.renew()
            && let Some(silent) = shared.state().answered(Instant::now())
        {
            tracing::info!(drive, ?silent, "the cluster answers again");
        }
    }
}

/// Logs that the cluster does not answer: the thread that asked it waits meanwhile.
fn watch(drive: &str, shared: &Shared) {
    loop {
        let mut state = shared.wait(LOOK_INTERVAL);
        if !state.goes_on() {
            return;
        }
        if state.is_newly_silent(Instant::now()) {
            drop(state);
            tracing::warn!(
                drive,
                "the cluster has not answered for {SILENT:?}, and hosts' commands wait for it: `ceph -s` says what it lacks"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_cluster_is_told_once_and_so_is_its_first_answer() {
        let mut state = State {
            order: Order::GoOn,
            asked_at: None,
            is_told: false,
        };
        let began = Instant::now();
        assert!(!state.is_newly_silent(began + SILENT), "nobody asked it");
        state.asks(began);
        assert!(!state.is_newly_silent(began + SILENT / 2));
        assert_eq!(state.answered(began + SILENT / 2), None, "it was prompt");
        state.asks(began);
        assert!(state.is_newly_silent(began + SILENT));
        // The renewal that got no answer is followed by another one.
        state.asks(began + SILENT * 2);
        assert!(!state.is_newly_silent(began + SILENT * 9));
        assert_eq!(state.answered(began + SILENT * 10), Some(SILENT * 10));
        assert_eq!(state.answered(began + SILENT * 11), None);
    }
}
