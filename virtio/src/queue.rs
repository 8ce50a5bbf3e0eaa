//! A queue of a device, served by a task on a reactor.
//!
//! Guarantees:
//! - At most as many requests are under way as the ring has entries, each of them once.
//! - After its last request the queue polls for a bounded while, longer while requests are under way; then it sleeps until
//!   the guest kicks it or a request is done.
//! - A ring that breaks the rules is served no more, and its guest is told where it asked to be. If memory has gone away,
//!   the session is told, which ends.
//! - When the task ends, no request is under way.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::{Either, select};
use reactor::sync::Notify;
use rustix::io::Errno;
use tokio::sync::watch;

use crate::chain::Malformed;
use crate::inflight::{Area, Notes};
use crate::memory::Guest;
use crate::request::{Disk, Header};
use crate::ring::{Layout, Ring};

/// How long it is looked for more requests after the last one. To be kicked and to wake costs the guest an exit and this
/// machine a system call, about as much.
const POLL_TIME: Duration = Duration::from_micros(20);

/// The same while requests are under way: about what a fast drive takes for a read. A queue that slept at each pause of the
/// drive would come back late, and the guest's next requests would reach the drive in bunches.
const POLL_TIME_UNDERWAY: Duration = Duration::from_micros(100);

/// Requests that are taken at once. Reads whose data are in memory are done as they are taken, and others wait meanwhile.
const TAKEN_MAX: u16 = 64;

/// An event descriptor of the front-end, which can be exchanged while it is used.
pub(crate) type Bell = Arc<Mutex<Option<OwnedFd>>>;

/// Writes to an event descriptor, if there is one.
pub(crate) fn ring_bell(bell: &Bell) {
    let bell = bell.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(descriptor) = &*bell {
        wake(descriptor);
    }
}

/// Writes to an event descriptor.
pub(crate) fn wake(descriptor: &OwnedFd) {
    // One that is full has been rung.
    let _ = rustix::io::write(descriptor, &1u64.to_ne_bytes());
}

/// What a queue is made of.
pub(crate) struct Parts {
    pub(crate) index: u32,
    pub(crate) guest: Arc<Guest>,
    pub(crate) layout: Layout,
    pub(crate) next_available: u16,
    pub(crate) notes: Option<Arc<Area>>,
    pub(crate) kick: OwnedFd,
    pub(crate) call: Bell,
    pub(crate) error: Bell,
    /// Wakes the thread of the session.
    pub(crate) wake: OwnedFd,
    pub(crate) stop: watch::Receiver<bool>,
    /// Who it is, for the log.
    pub(crate) name: String,
}

impl Parts {
    /// Whether memory that the front-end shares has gone away.
    fn memory_is_lost(&self) -> bool {
        self.guest.is_lost() || self.notes.as_ref().is_some_and(|area| area.is_lost())
    }
}

struct Queue {
    guest: Arc<Guest>,
    ring: RefCell<Ring>,
    notes: RefCell<Option<Notes>>,
    /// The requests that are under way, by their heads.
    underway: RefCell<Vec<bool>>,
    count: Cell<u16>,
    broken: Cell<Option<Malformed>>,
    /// Something was done since this was last looked at.
    has_done: Cell<bool>,
    /// Somebody waits for the end of a request.
    is_waiting: Cell<bool>,
    /// Rings when a request is done, if somebody waits for that. To ring it costs more than it seems: it waits until the
    /// guest's memory has all that was written there.
    done: Notify,
    disk: Disk,
}

/// Serves a queue until it is told to stop; gives the index of the next request. `None` if it cannot be served at all.
pub(crate) async fn serve(parts: Parts, disk: Disk) -> u16 {
    let mut stop = parts.stop.clone();
    let fallback = parts.next_available;
    let (next, broken) = match Queue::open(&parts, disk) {
        Ok((queue, again)) => {
            let broken = queue.run(&parts, again).await.err();
            if parts.memory_is_lost() {
                // Requests may wait for the volume's limits until the session stops them.
                wake(&parts.wake);
            }
            queue.drained().await;
            queue.tell(&parts.call);
            let next = queue.ring.borrow().next_available();
            (next, broken)
        }
        Err(broken) => (fallback, Some(broken)),
    };
    if let Some(Malformed(why)) = broken {
        if parts.memory_is_lost() {
            wake(&parts.wake);
        } else {
            tracing::warn!(
                export = parts.name,
                queue = parts.index,
                why,
                "a virtual machine's queue is broken: it is not served before the guest sets it up again"
            );
            ring_bell(&parts.error);
        }
        // It ends when the front-end, or the session, has heard of it.
        let _ = stop.wait_for(|stop| *stop).await;
    }
    next
}

impl Queue {
    /// The queue, and requests that were under way when it was last served.
    fn open(parts: &Parts, disk: Disk) -> Result<(Rc<Self>, Vec<u16>), Malformed> {
        let mut ring = Ring::new(parts.guest.clone(), parts.layout, parts.next_available)?;
        let (mut notes, mut again) = (None, Vec::new());
        if let Some(area) = &parts.notes {
            let opened = Notes::open(area.clone(), parts.index, ring.size(), ring.next_used())?;
            notes = Some(opened.0);
            again = opened.1;
            if !again.is_empty() {
                // All that were taken and not done come before the next one.
                let next = ring.next_used().wrapping_add(again.len() as u16);
                ring.skip_to(next);
            }
        }
        let queue = Self {
            guest: parts.guest.clone(),
            underway: RefCell::new(vec![false; ring.size().into()]),
            ring: RefCell::new(ring),
            notes: RefCell::new(notes),
            count: Cell::new(0),
            broken: Cell::new(None),
            has_done: Cell::new(false),
            is_waiting: Cell::new(false),
            done: Notify::new(),
            disk,
        };
        Ok((Rc::new(queue), again))
    }

    async fn run(self: &Rc<Self>, parts: &Parts, again: Vec<u16>) -> Result<(), Malformed> {
        if !again.is_empty() {
            tracing::info!(
                export = parts.name,
                queue = parts.index,
                requests = again.len(),
                "requests that were under way before are done now"
            );
        }
        for head in again {
            poll_fn(|cx| Poll::Ready(self.begin(head, cx))).await?;
        }
        let mut stop = parts.stop.clone();
        let mut last_work = reactor::now();
        self.ring.borrow_mut().want_kicks(false)?;
        while !*stop.borrow_and_update() {
            let taken = poll_fn(|cx| Poll::Ready(self.take(cx))).await?;
            let done = self.tell(&parts.call);
            if let Some(broken) = self.broken.get() {
                return Err(broken);
            }
            // Data may be gone where the ring is not.
            if parts.memory_is_lost() {
                return Err(Malformed("its memory has gone away"));
            }
            let now = reactor::now();
            if taken || done {
                last_work = now;
            }
            if now < last_work + self.poll_time() {
                reactor::yield_now().await;
                continue;
            }
            let full = self.count.get() >= self.ring.borrow().size();
            if !full && self.ring.borrow_mut().want_kicks(true)? {
                continue;
            }
            self.sleep(&parts.kick, &mut stop).await?;
            self.ring.borrow_mut().want_kicks(false)?;
            last_work = reactor::now();
        }
        Ok(())
    }

    /// How long it is looked for more to do.
    fn poll_time(&self) -> Duration {
        if self.count.get() > 0 {
            POLL_TIME_UNDERWAY
        } else {
            POLL_TIME
        }
    }

    /// Waits for a kick, the end of a request, or the order to stop.
    async fn sleep(
        &self,
        kick: &OwnedFd,
        stop: &mut watch::Receiver<bool>,
    ) -> Result<(), Malformed> {
        let kicked = pin!(reactor::readable(kick.as_fd()));
        let done = pin!(self.one_is_done());
        let stopped = pin!(stop.changed());
        let woken = select(kicked, select(done, stopped)).await;
        self.is_waiting.set(false);
        match woken {
            Either::Left((Ok(()), _)) => {
                let mut count = [0; 8];
                match rustix::io::read(kick, &mut count) {
                    Ok(1..) | Err(Errno::AGAIN | Errno::INTR) => Ok(()),
                    Ok(0) | Err(_) => Err(Malformed("its kicks cannot be read")),
                }
            }
            Either::Left((Err(_), _)) => Err(Malformed("its kicks cannot be waited for")),
            Either::Right(_) => Ok(()),
        }
    }

    /// Takes requests that wait; whether there were any.
    fn take(self: &Rc<Self>, cx: &mut Context<'_>) -> Result<bool, Malformed> {
        let waiting = self.ring.borrow().waiting()?;
        let room = self.ring.borrow().size().saturating_sub(self.count.get());
        let count = waiting.min(room).min(TAKEN_MAX);
        for _ in 0..count {
            let head = self.ring.borrow_mut().take()?;
            if let Some(notes) = &mut *self.notes.borrow_mut() {
                notes.take(head)?;
            }
            self.begin(head, cx)?;
        }
        Ok(count > 0)
    }

    /// Begins with a request, and ends it too if it is a read that need not wait.
    fn begin(self: &Rc<Self>, head: u16, cx: &mut Context<'_>) -> Result<(), Malformed> {
        let chain = self.ring.borrow().chain(head)?;
        {
            let mut underway = self.underway.borrow_mut();
            let slot = underway.get_mut(usize::from(head));
            let slot = slot.ok_or(Malformed("a request beyond the table of descriptors"))?;
            if std::mem::replace(slot, true) {
                return Err(Malformed("a request that is under way already"));
            }
        }
        self.count.set(self.count.get() + 1);
        let header = Header::read(&self.guest, &chain);
        let request = Underway {
            queue: self.clone(),
            head,
            is_done: false,
        };
        let mut serving = Box::pin(async move {
            let Queue { disk, guest, .. } = &*request.queue;
            let written = disk.serve(guest, &chain, header).await;
            request.done(written);
        });
        if header.is_read() {
            // A task costs as much as a read of what is in memory. A panic ends this request alone, as it would a task.
            let polled = catch_unwind(AssertUnwindSafe(|| serving.as_mut().poll(cx)));
            if !matches!(polled, Ok(Poll::Pending)) {
                return Ok(());
            }
        }
        drop(reactor::spawn(serving));
        Ok(())
    }

    /// Answers a request.
    fn finish(&self, head: u16, written: u32) -> Result<(), Malformed> {
        let mut ring = self.ring.borrow_mut();
        ring.put_used(head, written)?;
        let mut notes = self.notes.borrow_mut();
        if let Some(notes) = &mut *notes {
            notes.begin_done(head)?;
        }
        ring.publish()?;
        if let Some(notes) = &mut *notes {
            notes.end_done(head, ring.next_used())?;
        }
        Ok(())
    }

    /// Tells the guest of what was done, if it wants to know; whether something was.
    fn tell(&self, call: &Bell) -> bool {
        if !self.has_done.replace(false) {
            return false;
        }
        match self.ring.borrow_mut().has_to_tell() {
            Ok(true) => ring_bell(call),
            Ok(false) => {}
            Err(broken) => self.broken.set(Some(broken)),
        }
        true
    }

    /// Waits until a request is done of which the guest was not told.
    async fn one_is_done(&self) {
        self.is_waiting.set(true);
        if !self.has_done.get() {
            self.done.notified().await;
        }
    }

    /// Waits until no request is under way.
    async fn drained(&self) {
        self.is_waiting.set(true);
        while self.count.get() > 0 {
            self.done.notified().await;
        }
    }
}

/// A request under way.
struct Underway {
    queue: Rc<Queue>,
    head: u16,
    is_done: bool,
}

impl Underway {
    fn done(mut self, written: u32) {
        self.is_done = true;
        self.queue.underway.borrow_mut()[usize::from(self.head)] = false;
        if let Err(broken) = self.queue.finish(self.head, written) {
            self.queue.broken.set(Some(broken));
        }
    }
}

impl Drop for Underway {
    fn drop(&mut self) {
        if !self.is_done {
            let broken = Malformed("a request ended without an answer");
            self.queue.broken.set(Some(broken));
        }
        let queue = &self.queue;
        queue.count.set(queue.count.get() - 1);
        queue.has_done.set(true);
        if queue.is_waiting.get() {
            queue.done.notify_one();
        }
    }
}
