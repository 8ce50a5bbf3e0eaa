//! An executor that polls woken tasks in an order drawn from the seed, one at a time, and can stop
//! between any two polls: a crash of the process.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use rand::Rng;
use rand_chacha::ChaCha8Rng;

thread_local! {
    static STEPS: Cell<u64> = const { Cell::new(0) };
}

/// A sum over all steps on this thread since the last call: two tellings of a story differ in it as soon as they differ
/// in which task went on, or among how many.
pub(super) fn take_steps() -> u64 {
    STEPS.take()
}

struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

struct Task {
    future: Pin<Box<dyn Future<Output = ()>>>,
    flag: Arc<Flag>,
}

/// Why a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// All tasks are done.
    Done,
    /// The step limit or the stop condition was reached: everything else was dropped where it was.
    Stopped,
}

/// Runs tasks to their end, or until `stop` says so after a step (it gets the number of steps so far).
///
/// Panics when tasks wait and none can go on: a deadlock.
pub(super) fn run(
    rng: &mut ChaCha8Rng,
    futures: Vec<Pin<Box<dyn Future<Output = ()>>>>,
    mut stop: impl FnMut(u64) -> bool,
) -> Ended {
    let make = |future| Task {
        future,
        flag: Arc::new(Flag(AtomicBool::new(true))),
    };
    let mut tasks: Vec<Task> = futures.into_iter().map(make).collect();
    let mut steps = 0;
    while !tasks.is_empty() {
        let ready: Vec<usize> = (0..tasks.len())
            .filter(|at| tasks[*at].flag.0.load(Ordering::Acquire))
            .collect();
        assert!(
            !ready.is_empty(),
            "deadlock: {} task(s) wait for each other",
            tasks.len()
        );
        let at = ready[rng.random_range(0..ready.len())];
        // FNV-1's way to mix: the order counts, too.
        for part in [tasks.len(), ready.len(), at] {
            STEPS.set(STEPS.get().wrapping_mul(0x100_0000_01b3) ^ part as u64);
        }
        let task = &mut tasks[at];
        task.flag.0.store(false, Ordering::Release);
        let waker = Waker::from(task.flag.clone());
        if let Poll::Ready(()) = task.future.as_mut().poll(&mut Context::from_waker(&waker)) {
            drop(tasks.remove(at));
        }
        steps += 1;
        assert!(steps < 5_000_000, "a task goes round in circles");
        if stop(steps) {
            crate::hooks::die(tasks);
            return Ended::Stopped;
        }
    }
    Ended::Done
}
