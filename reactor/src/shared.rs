//! What other threads see of a reactor: its mailbox, and the wakers of its tasks.
//!
//! Guarantees: a wake is never lost, and costs at most one place in a queue however often it is
//! repeated before the task is polled; the eventfd is written only when the reactor may be asleep.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Wake;
use std::{io, mem};

use rustix::event::{EventfdFlags, eventfd};

use crate::BufferPool;
use crate::executor;
use crate::slab::Key;
use crate::sync::lock;

/// Work that another thread gives to the reactor.
pub(crate) type Job = Box<dyn FnOnce() + Send>;

pub(crate) struct Shared {
    pub(crate) name: String,
    pub(crate) buffers: BufferPool,
    mailbox: Mutex<Mailbox>,
    /// The mailbox may hold something.
    pending: AtomicBool,
    /// The reactor sleeps in its ring, or is about to; who swaps this to false writes the eventfd.
    sleeping: AtomicBool,
    stop: AtomicBool,
    eventfd: OwnedFd,
}

#[derive(Default)]
struct Mailbox {
    woken: Vec<Key>,
    jobs: Vec<Job>,
    closed: bool,
}

impl Shared {
    pub(crate) fn new(name: String, buffers: BufferPool) -> io::Result<Self> {
        Ok(Self {
            name,
            buffers,
            mailbox: Mutex::default(),
            pending: AtomicBool::new(false),
            sleeping: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            eventfd: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    pub(crate) fn eventfd(&self) -> BorrowedFd<'_> {
        self.eventfd.as_fd()
    }

    /// Gives the reactor a job; drops it if the reactor has stopped.
    pub(crate) fn send(&self, job: Job) {
        let mut mailbox = lock(&self.mailbox);
        if mailbox.closed {
            drop(mailbox);
            drop(job);
            return;
        }
        mailbox.jobs.push(job);
        drop(mailbox);
        self.ring_the_bell();
    }

    /// Asks the reactor to stop.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.ring_the_bell();
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    fn wake_task(&self, task: Key) {
        lock(&self.mailbox).woken.push(task);
        self.ring_the_bell();
    }

    fn ring_the_bell(&self) {
        // Pairs with `fall_asleep`: of these two stores and two loads, all sequentially consistent,
        // at least one side sees the other's.
        self.pending.store(true, Ordering::SeqCst);
        if self.sleeping.load(Ordering::SeqCst) && self.sleeping.swap(false, Ordering::SeqCst) {
            // It fails only when the counter is full, and then the reactor is awake.
            let _ = rustix::io::write(&self.eventfd, &1u64.to_ne_bytes());
        }
    }

    /// Whether there is something in the mailbox.
    pub(crate) fn is_pending(&self) -> bool {
        self.pending.load(Ordering::Acquire)
    }

    /// Announces that the reactor goes to sleep. False if it must not, because there is work.
    pub(crate) fn fall_asleep(&self) -> bool {
        self.sleeping.store(true, Ordering::SeqCst);
        if self.pending.load(Ordering::SeqCst) {
            self.wake_up();
            return false;
        }
        true
    }

    /// The reactor is awake again.
    pub(crate) fn wake_up(&self) {
        self.sleeping.store(false, Ordering::SeqCst);
    }

    /// Takes what is in the mailbox, in exchange for two empty lists.
    pub(crate) fn take(&self, woken: &mut Vec<Key>, jobs: &mut Vec<Job>) {
        // Before the lists: what is put in after this store is seen at the next turn.
        self.pending.store(false, Ordering::SeqCst);
        let mut mailbox = lock(&self.mailbox);
        mem::swap(&mut mailbox.woken, woken);
        mem::swap(&mut mailbox.jobs, jobs);
    }

    /// The reactor has stopped: jobs are refused from now on, those waiting are dropped.
    pub(crate) fn close(&self) {
        let jobs = {
            let mut mailbox = lock(&self.mailbox);
            mailbox.closed = true;
            mem::take(&mut mailbox.jobs)
        };
        drop(jobs);
    }
}

/// What a task's waker points to.
pub(crate) struct TaskWaker {
    shared: Arc<Shared>,
    task: Key,
    /// The task is in a queue and was not polled since.
    queued: AtomicBool,
}

impl TaskWaker {
    /// The waker of a task that is in the queue already.
    pub(crate) fn new(shared: Arc<Shared>, task: Key) -> Self {
        Self {
            shared,
            task,
            queued: AtomicBool::new(true),
        }
    }

    /// From here on a wake queues the task again. An exchange, so that what was written before the
    /// wakes that found the task queued is visible to the poll that follows.
    pub(crate) fn rearm(&self) {
        self.queued.swap(false, Ordering::AcqRel);
    }
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::AcqRel)
            && !executor::queue_here(&self.shared, self.task)
        {
            self.shared.wake_task(self.task);
        }
    }
}
