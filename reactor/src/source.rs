//! Events that come by memory, and not by the ring: a device or another process writes them where the reactor has only to look.
//!
//! Guarantees: a source is looked at in every turn of the loop, and without a pause while the reactor polls; the reactor sleeps
//! only after every source has agreed, and each is told when it is awake again.

use std::cell::RefCell;
use std::fmt;
use std::rc::{Rc, Weak};

use crate::executor::{Core, expect_current};

/// What a reactor looks at. All calls come from the reactor's thread, outside of any task.
pub trait Source {
    /// Whether there is something to take. The reactor asks over and over while it polls.
    fn has_events(&self) -> bool;

    /// Takes what is there, and wakes the tasks that wait for it. Called in every turn.
    fn take_events(&self);

    /// Tells the other side what the tasks of this turn have left for it.
    fn notify(&self);

    /// The reactor is about to sleep. From here on the other side has to wake it, by a descriptor that a task waits for.
    /// False if there is something to take already.
    fn fall_asleep(&self) -> bool;

    /// The reactor is awake: the other side need not wake it any more. Called after each [`fall_asleep`](Self::fall_asleep).
    fn wake_up(&self);
}

/// A reactor looks at a source as long as this lives.
#[must_use = "the reactor forgets the source when this is dropped"]
pub struct Watched {
    core: Weak<Core>,
    source: Rc<dyn Source>,
}

/// Lets this thread's reactor look at a source.
///
/// # Panics
/// If there is no reactor on this thread: an error in the program.
pub fn watch(source: Rc<dyn Source>) -> Watched {
    let core = expect_current("a source of events");
    core.sources.0.borrow_mut().push(source.clone());
    Watched {
        core: Rc::downgrade(&core),
        source,
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        if let Some(core) = self.core.upgrade() {
            let mut sources = core.sources.0.borrow_mut();
            sources.retain(|other| !Rc::ptr_eq(other, &self.source));
        }
    }
}

impl fmt::Debug for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watched")
    }
}

/// The sources of a reactor.
#[derive(Default)]
pub(crate) struct Sources(RefCell<Vec<Rc<dyn Source>>>);

impl Sources {
    /// One of them. No borrow is held while it is called: it may wake tasks, and these may belong to anyone.
    fn get(&self, at: usize) -> Option<Rc<dyn Source>> {
        self.0.borrow().get(at).cloned()
    }

    fn each(&self, call: impl Fn(&dyn Source)) {
        let mut at = 0;
        while let Some(source) = self.get(at) {
            call(&*source);
            at += 1;
        }
    }

    pub(crate) fn have_events(&self) -> bool {
        self.0.borrow().iter().any(|source| source.has_events())
    }

    pub(crate) fn take_events(&self) {
        self.each(|source| source.take_events());
    }

    pub(crate) fn notify(&self) {
        self.each(|source| source.notify());
    }

    /// Whether all agree. [`wake_up`](Self::wake_up) has to follow in any case.
    pub(crate) fn fall_asleep(&self) -> bool {
        let mut all_agree = true;
        for source in self.0.borrow().iter() {
            all_agree &= source.fall_asleep();
        }
        all_agree
    }

    pub(crate) fn wake_up(&self) {
        self.0.borrow().iter().for_each(|source| source.wake_up());
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::poll_fn;
    use std::os::fd::AsFd;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::{Arc, Mutex};
    use std::task::{Poll, Waker};
    use std::time::Duration;

    use rustix::event::{EventfdFlags, eventfd};

    use super::*;
    use crate::{Config, run, spawn};

    /// A counter that another thread raises, as a device does.
    struct Counter {
        raised: Arc<Shared>,
        taken: Cell<u32>,
        waker: RefCell<Option<Waker>>,
        notified: Cell<u32>,
    }

    struct Shared {
        count: AtomicU32,
        /// Whether the reactor sleeps, and how often it was woken.
        sleeps: Mutex<(bool, u32)>,
        call: std::os::fd::OwnedFd,
    }

    impl Shared {
        fn raise(&self) {
            self.count.fetch_add(1, Ordering::SeqCst);
            let mut sleeps = self.sleeps.lock().expect("not poisoned");
            if sleeps.0 {
                sleeps.1 += 1;
                rustix::io::write(&self.call, &1_u64.to_ne_bytes()).expect("called");
            }
        }
    }

    impl Source for Counter {
        fn has_events(&self) -> bool {
            self.raised.count.load(Ordering::SeqCst) != self.taken.get()
        }

        fn take_events(&self) {
            let now = self.raised.count.load(Ordering::SeqCst);
            if now != self.taken.replace(now)
                && let Some(waker) = self.waker.take()
            {
                waker.wake();
            }
        }

        fn notify(&self) {
            self.notified.set(self.notified.get() + 1);
        }

        fn fall_asleep(&self) -> bool {
            self.raised.sleeps.lock().expect("not poisoned").0 = true;
            !self.has_events()
        }

        fn wake_up(&self) {
            self.raised.sleeps.lock().expect("not poisoned").0 = false;
        }
    }

    /// How often the reactor had to be woken while a thread raised the counter, a while after each answer.
    fn calls_with(spin: Duration, pause: Duration) -> u32 {
        const ROUNDS: u32 = 20;
        let raised = Arc::new(Shared {
            count: AtomicU32::new(0),
            sleeps: Mutex::default(),
            call: eventfd(0, EventfdFlags::NONBLOCK).expect("an eventfd"),
        });
        let (ask, asked) = std::sync::mpsc::channel::<()>();
        let device = raised.clone();
        let thread = std::thread::spawn(move || {
            while asked.recv().is_ok() {
                let until = std::time::Instant::now() + pause;
                while std::time::Instant::now() < until {
                    std::thread::yield_now();
                }
                device.raise();
            }
        });
        let config = Config {
            spin,
            ..Config::default()
        };
        let counted = raised.clone();
        run(config, async move {
            let counter = Rc::new(Counter {
                raised: counted.clone(),
                taken: Cell::new(0),
                waker: RefCell::default(),
                notified: Cell::new(0),
            });
            let watched = watch(counter.clone());
            let call = counted.clone();
            spawn(async move {
                loop {
                    crate::readable(call.call.as_fd()).await.expect("readable");
                    rustix::io::read(&call.call, &mut [0_u8; 8]).expect("read");
                }
            })
            .detach();
            for round in 1..=ROUNDS {
                ask.send(()).expect("the thread listens");
                poll_fn(|cx| {
                    if counter.taken.get() == round {
                        return Poll::Ready(());
                    }
                    *counter.waker.borrow_mut() = Some(cx.waker().clone());
                    Poll::Pending
                })
                .await;
            }
            assert!(
                counter.notified.get() >= ROUNDS,
                "each turn tells the device"
            );
            drop(watched);
            assert_eq!(Rc::strong_count(&counter), 1, "the reactor forgot it");
        })
        .expect("a reactor");
        thread.join().expect("the thread ends");
        let sleeps = raised.sleeps.lock().expect("not poisoned");
        assert!(!sleeps.0, "it was told that the reactor is awake");
        sleeps.1
    }

    #[test]
    fn an_event_in_memory_needs_no_call_while_the_reactor_polls() {
        let far = Duration::from_secs(60);
        assert_eq!(calls_with(far, Duration::ZERO), 0);
    }

    #[test]
    fn an_event_in_memory_wakes_a_reactor_that_sleeps() {
        // It may also come between the turn and the sleep, and then needs no call.
        assert!(calls_with(Duration::ZERO, Duration::from_millis(2)) > 0);
    }
}
