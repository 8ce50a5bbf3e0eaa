//! What the commands of a queue share, and one command in flight: its data, its completion, and its entry in the error log
//! if it fails.
//!
//! Guarantees:
//! - A command is answered exactly once. If its task dies (a bug), the queue closes, so that the host recovers instead of
//!   waiting.
//! - A command identifier is in flight once, and free again when the host reads the completion.

use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;

use fabric::serving::auth::QueueAuth;
use fabric::serving::{InFlight, Period, Workers};
use fabric::{Capsule, TargetQueue};
use futures_util::future::{Either, select};
use nvme::log::{ErrorEntry, NO_LOCATION};
use nvme::{Cqe, Sqe, Status};
use reactor::sync::Event;
use reactor::{Buffer, BufferPool, lock_whole as lock};
use reservations::{Access, HostId};

use crate::access::HostKeys;
use crate::controller::{Controller, QueueHandle};
use crate::limits::{EVENT_REQUESTS_MAX, TRANSFER_BYTES_MAX};
use crate::reserved::{Reserved, Watched};
use crate::target::Sled;

/// Byte offsets in a command, for the error log.
const NSID_AT: u16 = 4;
const DATA_POINTER_AT: u16 = 24;

/// A queue that has joined its controller. Of its reactor alone.
pub(crate) struct ConnectedQueue {
    pub(crate) sled: Arc<Sled>,
    pub(crate) controller: Arc<Controller>,
    pub(crate) handle: Arc<QueueHandle>,
    pub(crate) transport: TargetQueue,
    /// Where data lie on their way.
    pub(crate) buffers: BufferPool,
    pub(crate) in_flight: InFlight,
    pub(crate) workers: Workers,
    pub(crate) auth: QueueAuth<HostKeys>,
    /// What the host may do with each drive, in the order of their namespaces.
    watched: Vec<Watched>,
    /// Set once: no command begins any more, and none waits for memory.
    pub(crate) ending: Event,
    is_ending: Cell<bool>,
    /// Asynchronous Event Requests. They wait without a task, and hold nothing but their identifiers.
    events: RefCell<Vec<Capsule>>,
}

impl ConnectedQueue {
    pub(crate) fn new(
        sled: Arc<Sled>,
        controller: Arc<Controller>,
        handle: Arc<QueueHandle>,
        transport: TargetQueue,
        buffers: BufferPool,
        auth: QueueAuth<HostKeys>,
    ) -> Rc<Self> {
        let id = HostId::from_bytes(controller.host.id);
        let watch = |reserved: &Arc<Reserved>| Watched::new(reserved.clone(), id);
        Rc::new(Self {
            watched: sled.reserved().iter().map(watch).collect(),
            sled,
            controller,
            handle,
            transport,
            buffers,
            in_flight: InFlight::default(),
            workers: Workers::default(),
            auth,
            ending: Event::new(),
            is_ending: Cell::new(false),
            events: RefCell::default(),
        })
    }

    /// Its host has proved what it has to, or need not.
    pub(crate) fn proved(&self) {
        let (controller, is_admin) = (&self.controller, self.handle.qid == 0);
        self.transport.belongs_to(controller.host.nqn.as_str());
        self.transport
            .proved(is_admin && !controller.is_discovery());
        self.auth.done();
        if is_admin {
            self.sled.registry(controller.kind).proved(controller.id);
            controller.admit();
        }
    }

    /// The reservations of a drive, as this host meets them.
    pub(crate) fn watched(&self, nsid: u32) -> Result<&Watched, Fault> {
        let at = nsid.checked_sub(1).and_then(|at| usize::try_from(at).ok());
        let watched = at.and_then(|at| self.watched.get(at));
        watched.ok_or(Fault::field(Status::INVALID_NAMESPACE, NSID_AT))
    }

    /// Whether it takes no commands any more.
    pub(crate) fn is_ending(&self) -> bool {
        self.is_ending.get()
    }

    /// Takes no commands any more, and forgets those that wait.
    pub(crate) fn end(&self) {
        self.is_ending.set(true);
        self.ending.set();
        let requests = std::mem::take(&mut *self.events.borrow_mut());
        drop(requests);
    }

    /// Answers all Asynchronous Event Requests, as a reset of the controller does.
    pub(crate) fn abort_event_requests(&self) {
        let requests = std::mem::take(&mut *self.events.borrow_mut());
        requests.into_iter().for_each(|request| self.abort(request));
    }

    /// Aborts a command that waits; false if it does not.
    pub(crate) fn abort_waiting(&self, cid: u16) -> bool {
        let mut events = self.events.borrow_mut();
        let Some(at) = events.iter().position(|request| request.sqe.cid() == cid) else {
            return false;
        };
        let request = events.swap_remove(at);
        drop(events);
        self.abort(request);
        true
    }

    fn abort(&self, capsule: Capsule) {
        self.in_flight.answering(capsule.sqe.cid());
        let cqe = Cqe::new(Status::ABORT_REQUESTED, 0);
        self.transport.complete(capsule, cqe, None);
    }
}

/// The result of a command that succeeded.
#[derive(Default)]
pub(crate) struct Success {
    /// Dwords 0 and 1 of the completion.
    pub(crate) result: u64,
    /// Data for the host: a buffer, and how many of its bytes.
    pub(crate) data: Option<(Buffer, usize)>,
}

impl Success {
    /// With a result and no data.
    pub(crate) fn result(result: u64) -> Self {
        Self { result, data: None }
    }
}

/// Why a command has no success to tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Answer with a status; the error log names the byte of the command that was wrong.
    Status(Status, u16),
    /// Answer with a status that is no failure but the answer to a question: no entry in the error log, and no other bit
    /// of the status.
    NotThere(Status),
    /// Keep it: it waits for an event.
    Held,
    /// The queue ends: no answer.
    Gone,
}

impl Fault {
    /// A wrong field, at a byte offset in the command.
    pub(crate) const fn field(status: Status, location: u16) -> Self {
        Self::Status(status.with_dnr(), location)
    }
}

impl From<Status> for Fault {
    fn from(status: Status) -> Self {
        Self::Status(status, NO_LOCATION)
    }
}

/// How a command ends.
pub(crate) type Outcome = Result<Success, Fault>;

/// A command in flight.
pub(crate) struct Command {
    pub(crate) queue: Rc<ConnectedQueue>,
    /// Taken by the answer.
    capsule: Option<Capsule>,
    sqe: Sqe,
}

impl Command {
    /// Begins a command. One whose identifier is in flight already is answered at once; one that comes when its association
    /// is over is not answered: the queue closes.
    pub(crate) fn begin(queue: &Rc<ConnectedQueue>, capsule: Capsule) -> Option<Self> {
        if queue.auth.is_awaited() {
            queue.controller.excuse_silence();
        }
        if !queue.controller.hears(&queue.handle) {
            return None;
        }
        let sqe = capsule.sqe;
        if !queue.in_flight.begin(sqe.cid()) {
            let cqe = Cqe::new(Status::COMMAND_ID_CONFLICT.with_dnr(), 0);
            queue.transport.complete(capsule, cqe, None);
            return None;
        }
        Some(Self {
            queue: queue.clone(),
            capsule: Some(capsule),
            sqe,
        })
    }

    /// The submission queue entry.
    pub(crate) fn sqe(&self) -> &Sqe {
        &self.sqe
    }

    /// From here on the command may touch the drive, until what is returned is dropped. Who takes the drive from its host waits
    /// for that.
    ///
    /// # Errors
    /// Another host has a reservation that keeps this one out.
    pub(crate) fn touch(&self, nsid: u32, access: Access) -> Result<Touching<'_>, Fault> {
        let in_flight = &self.queue.in_flight;
        // Before the look: who takes the drive in between waits for this command, or this command sees that.
        let touching = Touching {
            in_flight,
            period: in_flight.enter_period(),
        };
        match self.queue.watched(nsid)?.admits(access) {
            true => Ok(touching),
            false => Err(Status::RESERVATION_CONFLICT.with_dnr().into()),
        }
    }

    fn data_len(&self) -> Result<usize, Fault> {
        let at_pointer = |status| Fault::field(status, DATA_POINTER_AT);
        Ok(self.sqe.sgl().map_err(at_pointer)?.length() as usize)
    }

    /// The host must have prepared exactly so many bytes.
    pub(crate) fn check_data_len(&self, len: usize) -> Result<(), Fault> {
        match self.data_len()? == len {
            true => Ok(()),
            false => Err(Fault::field(Status::SGL_LENGTH_INVALID, DATA_POINTER_AT)),
        }
    }

    /// The host must have prepared at least so many, and no more than a command may transfer (MDTS). Linux prepares more
    /// than some commands need.
    pub(crate) fn check_data_room(&self, len: usize) -> Result<(), Fault> {
        match (len..=TRANSFER_BYTES_MAX).contains(&self.data_len()?) {
            true => Ok(()),
            false => Err(Fault::field(Status::SGL_LENGTH_INVALID, DATA_POINTER_AT)),
        }
    }

    /// Waits for a buffer of that length. This is where a busy sled slows hosts down.
    pub(crate) async fn buffer(&self, len: usize) -> Result<Buffer, Fault> {
        let buffers = &self.queue.buffers;
        match buffers.try_alloc(len) {
            Some(buffer) => Ok(buffer),
            None => match select(pin!(buffers.alloc(len)), self.queue.ending.wait()).await {
                Either::Left((buffer, _)) => Ok(buffer),
                Either::Right(_) => Err(Fault::Gone),
            },
        }
    }

    /// The first `len` bytes of the host's data.
    pub(crate) async fn fetch(&self, len: usize) -> Result<Buffer, Fault> {
        let capsule = self.capsule.as_ref().ok_or(Fault::Gone)?;
        let transport = &self.queue.transport;
        if let Some(data) = transport.take_data(capsule, len) {
            return Ok(data.buffer);
        }
        let buffer = self.buffer(len).await?;
        // It fails soon when the queue ends.
        let fetched = transport.fetch(capsule, len, buffer).await;
        Ok(fetched.map_err(|error| Fault::from(error.status))?.buffer)
    }

    /// Sends `bytes` to the host, which must have room for `room` bytes; the rest is zeros.
    pub(crate) async fn send(&self, bytes: &[u8], room: usize) -> Outcome {
        self.check_data_room(room)?;
        let mut buffer = self.buffer(room).await?;
        let len = bytes.len().min(room);
        buffer[..len].copy_from_slice(&bytes[..len]);
        buffer[len..].fill(0);
        Ok(Success {
            result: 0,
            data: Some((buffer, room)),
        })
    }

    /// Whether one more request for events may wait.
    pub(crate) fn may_wait_for_events(&self) -> bool {
        self.queue.events.borrow().len() < EVENT_REQUESTS_MAX
    }

    /// Answers the host.
    pub(crate) fn answer(mut self, outcome: Outcome) {
        let Some(capsule) = self.capsule.take() else {
            return;
        };
        let (cqe, data) = match outcome {
            Ok(success) => (Cqe::new(Status::SUCCESS, success.result), success.data),
            Err(Fault::Status(status, location)) => {
                (Cqe::new(self.note_error(status, location), 0), None)
            }
            Err(Fault::NotThere(status)) => (Cqe::new(status, 0), None),
            Err(Fault::Held) => {
                // Its identifier stays in use.
                self.queue.events.borrow_mut().push(capsule);
                return;
            }
            // The queue closes already; nobody waits for the completion.
            Err(Fault::Gone) => return,
        };
        self.queue.in_flight.answering(self.sqe.cid());
        self.queue.transport.complete(capsule, cqe, data);
    }

    /// Adds a failure to the error log, and marks the status (More).
    fn note_error(&self, status: Status, location: u16) -> Status {
        let qid = self.queue.handle.qid;
        tracing::debug!(controller = self.queue.controller.id, qid, sqe = ?self.sqe, %status, "command failed");
        self.queue.sled.count_error(status);
        let status = status.with_more();
        lock(&self.queue.controller.errors).add(ErrorEntry {
            qid,
            cid: self.sqe.cid(),
            status,
            location,
            lba: if qid == 0 { 0 } else { self.sqe.slba() },
            nsid: self.sqe.nsid(),
        });
        status
    }
}

/// A command may touch a drive as long as this is there.
#[must_use = "the drive may be touched only as long as this is there"]
pub(crate) struct Touching<'a> {
    in_flight: &'a InFlight,
    period: Period,
}

impl Drop for Touching<'_> {
    fn drop(&mut self) {
        self.in_flight.leave_period(self.period);
    }
}

impl Drop for Command {
    fn drop(&mut self) {
        if self.capsule.is_some() {
            // The task died without an answer. The host must not wait for it.
            self.queue.transport.close();
        }
        self.queue.in_flight.end();
    }
}
