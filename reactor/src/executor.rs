//! The loop of a reactor, and its tasks.
//!
//! A turn: take the mailbox, fire timers, poll at most [`POLLS_PER_TURN`] tasks, enter the ring once, and look at the sources.
//! No borrow of the reactor's state is held while a future is polled or dropped, or a waker is woken:
//! any of these may come back into the reactor.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use crate::ring::{Reaped, Ring};
use crate::shared::{Job, Shared, TaskWaker};
use crate::slab::{Key, Slab};
use crate::source::Sources;
use crate::timer::{Timers, now, turn_begins, turns_end};

/// Tasks polled before the ring is looked at again: enough to share the cost of a system call, few
/// enough that completions wait microseconds.
const POLLS_PER_TURN: usize = 128;

/// Failures after which an idle reactor polls only now and then. Polling for something that has to
/// run on the same core, or that comes later than polling lasts, delays what it waits for.
const SPIN_SCORE_MAX: u32 = 16;
/// Then, every such turn without work is polled, to find out whether it pays again.
const SPIN_TRIAL_TURNS: u32 = 64;

thread_local! {
    static CURRENT: RefCell<Option<Rc<Core>>> = const { RefCell::new(None) };
}

/// A reactor's state, all of it on its own thread.
pub(crate) struct Core {
    pub(crate) shared: Arc<Shared>,
    pub(crate) ring: RefCell<Ring>,
    pub(crate) timers: RefCell<Timers>,
    pub(crate) sources: Sources,
    tasks: RefCell<Slab<Task>>,
    ready: RefCell<VecDeque<Key>>,
    reaped: RefCell<Reaped>,
    spin: Duration,
    /// How well polling has paid lately: up with every success, down with every failure.
    spin_score: Cell<u32>,
    idle_turns: Cell<u32>,
    born: Instant,
    /// Time in which it slept, or polled the ring.
    idle: Cell<Duration>,
    closing: Cell<bool>,
}

struct Task {
    /// Out while the task is being polled.
    running: Option<Running>,
}

struct Running {
    future: Pin<Box<dyn Future<Output = ()>>>,
    handle: Arc<TaskWaker>,
    waker: Waker,
}

/// This thread's reactor.
pub(crate) fn current() -> Option<Rc<Core>> {
    CURRENT
        .try_with(|current| current.borrow().clone())
        .ok()
        .flatten()
}

/// This thread's reactor.
///
/// # Panics
/// If there is none: an error in the program.
pub(crate) fn expect_current(what: &str) -> Rc<Core> {
    match current() {
        Some(core) => core,
        None => panic!("{what} needs a reactor: call it in a task of one, or in reactor::run"),
    }
}

/// Queues the task if its reactor is this thread's. Otherwise its mailbox must be used.
pub(crate) fn queue_here(shared: &Arc<Shared>, task: Key) -> bool {
    let queued = CURRENT.try_with(|current| match &*current.borrow() {
        Some(core) if Arc::ptr_eq(&core.shared, shared) => {
            core.ready.borrow_mut().push_back(task);
            true
        }
        _ => false,
    });
    queued.unwrap_or(false)
}

/// Whether other tasks of this thread's reactor wait to be polled. What a task has gathered from several of
/// them may be worth waiting for what these bring.
pub fn others_are_ready() -> bool {
    let ready = CURRENT.try_with(|current| {
        let current = current.borrow();
        current
            .as_ref()
            .is_some_and(|core| !core.ready.borrow().is_empty())
    });
    ready.unwrap_or(false)
}

/// How long this thread's reactor has worked: the time since it began, without that in which it slept, or polled for something to do.
/// Zero without a reactor.
pub fn busy_time() -> Duration {
    let busy = CURRENT.try_with(|current| {
        let current = current.borrow();
        let core = current.as_ref()?;
        Some(core.born.elapsed().saturating_sub(core.idle.get()))
    });
    busy.ok().flatten().unwrap_or_default()
}

impl Core {
    /// Makes the ring, and makes this reactor the thread's own.
    pub(crate) fn enter(shared: Arc<Shared>, ring: Ring, spin: Duration) -> Entered {
        let core = Rc::new(Self {
            shared,
            ring: RefCell::new(ring),
            timers: RefCell::default(),
            sources: Sources::default(),
            tasks: RefCell::new(Slab::new()),
            ready: RefCell::default(),
            reaped: RefCell::default(),
            spin,
            spin_score: Cell::new(SPIN_SCORE_MAX),
            idle_turns: Cell::new(0),
            born: Instant::now(),
            idle: Cell::new(Duration::ZERO),
            closing: Cell::new(false),
        });
        CURRENT.with(|current| *current.borrow_mut() = Some(core.clone()));
        Entered(core)
    }

    /// A new task, queued. The waker is its own.
    pub(crate) fn spawn(&self, future: Pin<Box<dyn Future<Output = ()>>>) -> Waker {
        if self.closing.get() {
            drop(future);
            return Waker::noop().clone();
        }
        let mut tasks = self.tasks.borrow_mut();
        let mut waker = None;
        let key = tasks.insert_with(|key| {
            let handle = Arc::new(TaskWaker::new(self.shared.clone(), key));
            let own = Waker::from(handle.clone());
            waker = Some(own.clone());
            Task {
                running: Some(Running {
                    future,
                    handle,
                    waker: own,
                }),
            }
        });
        self.ready.borrow_mut().push_back(key);
        waker.unwrap_or_else(|| Waker::noop().clone())
    }

    fn poll_task(&self, key: Key) {
        let running = self
            .tasks
            .borrow_mut()
            .get_mut(key)
            .and_then(|task| task.running.take());
        let Some(mut running) = running else { return };
        running.handle.rearm();
        let mut cx = Context::from_waker(&running.waker);
        let polled = catch_unwind(AssertUnwindSafe(|| running.future.as_mut().poll(&mut cx)));
        if matches!(polled, Ok(Poll::Pending)) {
            if let Some(task) = self.tasks.borrow_mut().get_mut(key) {
                task.running = Some(running);
            }
            return;
        }
        self.tasks.borrow_mut().remove(key);
        drop_caught(running);
    }

    /// Runs until `main` is done (its output) or the reactor is asked to stop (`None`).
    fn run<F: Future>(&self, mut main: Pin<&mut F>) -> io::Result<Option<F::Output>> {
        let main_handle = Arc::new(TaskWaker::new(self.shared.clone(), Key::NONE));
        let main_waker = Waker::from(main_handle.clone());
        self.ready.borrow_mut().push_back(Key::NONE);
        let (mut woken, mut jobs) = (Vec::new(), Vec::new());
        loop {
            turn_begins();
            self.take_mailbox(&mut woken, &mut jobs);
            if self.shared.is_stopping() {
                return Ok(None);
            }
            self.fire_timers();
            for _ in 0..POLLS_PER_TURN {
                let next = self.ready.borrow_mut().pop_front();
                match next {
                    None => break,
                    Some(Key::NONE) => {
                        main_handle.rearm();
                        let mut cx = Context::from_waker(&main_waker);
                        if let Poll::Ready(output) = main.as_mut().poll(&mut cx) {
                            return Ok(Some(output));
                        }
                    }
                    Some(task) => self.poll_task(task),
                }
            }
            self.turn_ring()?;
        }
    }

    fn take_mailbox(&self, woken: &mut Vec<Key>, jobs: &mut Vec<Job>) {
        if !self.shared.is_pending() {
            return;
        }
        self.shared.take(woken, jobs);
        self.ready.borrow_mut().extend(woken.drain(..));
        for job in jobs.drain(..) {
            if catch_unwind(AssertUnwindSafe(job)).is_err() {
                tracing::error!(
                    reactor = self.shared.name,
                    "a job of another thread panicked"
                );
            }
        }
    }

    fn fire_timers(&self) {
        if self.timers.borrow().is_empty() {
            return;
        }
        let now = now();
        loop {
            let due = self.timers.borrow_mut().pop_due(now);
            let Some(waker) = due else { break };
            waker.wake();
        }
    }

    fn has_work(&self) -> bool {
        !self.ready.borrow().is_empty() || self.shared.is_pending()
    }

    /// Submits what tasks have asked for, and handles what is complete; if there is nothing else to
    /// do, waits for that.
    fn turn_ring(&self) -> io::Result<()> {
        self.sources.notify();
        if self.has_work() {
            self.ring.borrow_mut().submit()?;
            self.reap();
            return Ok(());
        }
        if self.polling_pays() {
            self.ring.borrow_mut().submit()?;
            let score = self.spin_score.get();
            let (found, polled) = self.poll_a_while();
            self.was_idle(polled);
            if found {
                self.spin_score.set((score + 2).min(SPIN_SCORE_MAX));
                self.reap();
                return Ok(());
            }
            self.spin_score.set(score.saturating_sub(1));
        }
        let deadline = self.timers.borrow().next_deadline();
        let wait = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if self.shared.fall_asleep() {
            let began = Instant::now();
            let slept = match self.sources.fall_asleep() {
                true => self.ring.borrow_mut().submit_and_wait(wait),
                false => self.ring.borrow_mut().submit(),
            };
            self.sources.wake_up();
            self.shared.wake_up();
            self.was_idle(began.elapsed());
            slept?;
        }
        self.reap();
        Ok(())
    }

    fn polling_pays(&self) -> bool {
        let turns = self.idle_turns.get().wrapping_add(1);
        self.idle_turns.set(turns);
        let trial = turns.is_multiple_of(SPIN_TRIAL_TURNS);
        !self.spin.is_zero() && (self.spin_score.get() > 0 || trial)
    }

    fn was_idle(&self, time: Duration) {
        self.idle.set(self.idle.get() + time);
    }

    /// Polls for the configured time; true as soon as there is something to do. Also, for how long it has polled.
    fn poll_a_while(&self) -> (bool, Duration) {
        let ring = self.ring.borrow();
        let start = Instant::now();
        let end = start + self.spin;
        let deadline = self.timers.borrow().next_deadline();
        let mut now = start;
        loop {
            if ring.has_events()
                || self.sources.have_events()
                || self.shared.is_pending()
                || deadline.is_some_and(|d| d <= now)
            {
                return (true, now - start);
            }
            if now >= end {
                return (false, now - start);
            }
            std::hint::spin_loop();
            now = Instant::now();
        }
    }

    fn reap(&self) {
        // The lists are taken out while they are worked through, and keep their room.
        let mut reaped = self.reaped.take();
        {
            let mut ring = self.ring.borrow_mut();
            if ring.has_events() {
                ring.reap(&mut reaped);
            }
        }
        reaped.finish();
        self.reaped.replace(reaped);
        self.sources.take_events();
    }

    /// Drops all tasks, then waits until the kernel is done with everything they had begun.
    fn close(&self) {
        self.closing.set(true);
        self.shared.close();
        loop {
            let keys = self.tasks.borrow().keys();
            if keys.is_empty() {
                break;
            }
            for key in keys {
                let task = self.tasks.borrow_mut().remove(key);
                drop_caught(task);
            }
        }
        let mut reaped = self.reaped.take();
        self.ring.borrow_mut().close(&mut reaped);
        reaped.finish();
    }
}

/// Drops a task; a panic while dropping must not end the reactor.
fn drop_caught<T>(value: T) {
    if catch_unwind(AssertUnwindSafe(|| drop(value))).is_err() {
        tracing::error!("a task panicked while it was dropped");
    }
}

/// A reactor that is its thread's own. Dropping it stops the reactor.
pub(crate) struct Entered(Rc<Core>);

impl Entered {
    /// See [`Core::run`]. Runs `main` in place.
    pub(crate) fn run<F: Future>(&self, main: F) -> io::Result<Option<F::Output>> {
        let main = std::pin::pin!(main);
        self.0.run(main)
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.0.close();
        CURRENT.with(|current| current.borrow_mut().take());
        turns_end();
    }
}
