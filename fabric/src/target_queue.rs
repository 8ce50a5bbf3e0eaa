//! A target's side of an NVMe/RDMA queue pair: commands in, data and completions out.
//!
//! Guarantees:
//!
//! - A receive for the host's next command is posted before the completion that lets the host send
//!   it. At most `depth` commands are in the target's hands; one more closes the queue.
//! - A completion is sent after its data; its SEND invalidates the command's own key if the command
//!   asked for that, and no other.
//! - READs are cut into pieces; pieces in flight are bounded per queue by their number and
//!   bytes, and per device by their bytes, so that responses fit the receive buffers.
//! - A capsule that is too short or too long, or that points outside of itself, closes this queue.
//!   Everything else that is wrong with a command is the command's own error.
//! - However the queue ends, every buffer goes back: work in flight is flushed by the device, waiting
//!   fetches fail, `next_command` gives None, and `closed` tells when it is over.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Poll, Waker};

use nvme::command::SQE_BYTES;
use nvme::{Cqe, SglDescriptor, Sqe, Status};
use reactor::Buffer;

use crate::address::Scheme;
use crate::budget::{Budget, Permit};
use crate::device::Device;
use crate::memory::FabricMemory;
use crate::rdma::{
    CloseReason, Completion, QueuePair, QueuePairHandler, RegionKey, SetupError, Work, WorkKind,
    WorkStatus,
};
use crate::waiters::Waiters;

/// Responses that may wait for their acknowledgement, as a multiple of the queue's depth. A host
/// sends its next command when it has the response, and the acknowledgement can be late or lost; but
/// one that never acknowledges must not make the queue grow.
const UNACKED_PER_DEPTH: usize = 4;

/// A queue may take this fraction of the bytes of READ responses that its device may have on their
/// way.
const QUEUE_SHARE: usize = 8;

/// Bounds of an accepted queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueLimits {
    /// Bytes of data that a command may carry in its capsule. The controller announces it as
    /// `IOCCSZ = (64 + in_capsule_bytes) / 16`.
    pub in_capsule_bytes: usize,
    /// READs in flight at most; the host's own limit applies too.
    pub reads_max: usize,
}

impl Default for QueueLimits {
    fn default() -> Self {
        Self {
            in_capsule_bytes: 4096,
            reads_max: 16,
        }
    }
}

/// Facts about a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueInfo {
    /// The host's address.
    pub peer: SocketAddr,
    /// The address and port that the host connected to.
    pub local: SocketAddr,
    /// The queue identifier; 0 is the admin queue.
    pub qid: u16,
    /// Commands that the host may have outstanding.
    pub depth: u16,
    /// The controller that the host named (kernels before 6.12 say 0 for I/O queues).
    pub cntlid: u16,
    /// Bytes of data that a command may carry in its capsule.
    pub in_capsule_bytes: usize,
    /// The transport.
    pub transport: Scheme,
}

/// Why a queue could not be accepted.
pub type AcceptError = SetupError;

/// Why data of a command could not be fetched.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot fetch the data of a command: {message}")]
pub struct TransferError {
    /// What to complete the command with.
    pub status: Status,
    /// What went wrong.
    pub message: &'static str,
}

/// A command as it arrived, with its in-capsule data.
#[derive(Debug)]
pub struct Capsule {
    /// The submission queue entry.
    pub sqe: Sqe,
    memory: FabricMemory,
    len: usize,
}

impl Capsule {
    /// What followed the submission queue entry in the capsule.
    pub fn in_capsule(&self) -> &[u8] {
        self.memory
            .bytes()
            .get(SQE_BYTES..self.len)
            .unwrap_or_default()
    }
}

/// A target's queue. Clones are the same queue; it closes when the last one is dropped.
#[derive(Clone)]
pub struct TargetQueue {
    inner: Rc<Inner>,
    _close: Rc<CloseOnDrop>,
}

struct CloseOnDrop(Rc<Inner>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.close(CloseReason::Local);
    }
}

struct Inner {
    /// The device runs as long as the queue is open.
    _device: Device,
    /// What the queue's capsules take of the listener's memory.
    _capsule_bytes: Permit,
    qp: OnceCell<Rc<dyn QueuePair>>,
    info: QueueInfo,
    /// Reads of this queue in flight, by number.
    reads_budget: Budget,
    /// Reads of this queue in flight, in bytes: a share of the device's, so that hosts that died in
    /// the middle of their transfers do not hold up those that live.
    share_budget: Budget,
    /// Reads of all queues of the device in flight, in bytes.
    bytes_budget: Budget,
    read_bytes_max: usize,
    state: RefCell<State>,
}

#[derive(Default)]
struct State {
    ready: VecDeque<Capsule>,
    /// Commands that arrived and were not completed.
    outstanding: usize,
    /// Responses sent and not acknowledged.
    unacked: usize,
    sq_head: u16,
    next_read: u64,
    reads: HashMap<u64, ReadInFlight>,
    /// Set when the queue takes and answers no more commands.
    ending: Option<CloseReason>,
    /// Set when the device has let go of the queue.
    closed: bool,
    next_command: Waiters,
    on_closed: Waiters,
}

/// A READ that the device works on. The permits go back when it is done, even if whoever waited for
/// it is gone.
struct ReadInFlight {
    result: Rc<ReadResult>,
    _permits: [Permit; 3],
}

#[derive(Default)]
struct ReadResult {
    done: Cell<Option<(WorkStatus, FabricMemory)>>,
    waker: RefCell<Option<Waker>>,
}

impl TargetQueue {
    pub(crate) fn new(
        info: QueueInfo,
        limits: QueueLimits,
        device: Device,
        capsule_bytes: Permit,
    ) -> Self {
        let (bytes_budget, read_bytes_max) = device.rdma.read_budget();
        let inner = Rc::new(Inner {
            _device: device,
            _capsule_bytes: capsule_bytes,
            qp: OnceCell::new(),
            info,
            reads_budget: Budget::new(limits.reads_max.max(1)),
            share_budget: Budget::new((bytes_budget.total() / QUEUE_SHARE).max(read_bytes_max)),
            bytes_budget,
            read_bytes_max: read_bytes_max.max(1),
            state: RefCell::default(),
        });
        Self {
            _close: Rc::new(CloseOnDrop(inner.clone())),
            inner,
        }
    }

    /// The receives to post before the connection is accepted: one per command that the host may
    /// have outstanding, and one so that an overrun is seen and not just held back.
    pub(crate) fn receives(info: &QueueInfo) -> Vec<FabricMemory> {
        let bytes = SQE_BYTES + info.in_capsule_bytes;
        (0..=info.depth)
            .map(|_| FabricMemory::capsule(bytes))
            .collect()
    }

    pub(crate) fn handler(&self) -> Rc<dyn QueuePairHandler> {
        self.inner.clone()
    }

    pub(crate) fn attach(&self, qp: Rc<dyn QueuePair>) {
        // Called once, right after the queue pair was made.
        let _ = self.inner.qp.set(qp);
    }

    /// Facts about the queue.
    pub fn info(&self) -> &QueueInfo {
        &self.inner.info
    }

    /// The next command, or None when the queue is closing or gone.
    pub async fn next_command(&self) -> Option<Capsule> {
        poll_fn(|cx| {
            let mut state = self.inner.state.borrow_mut();
            if state.ending.is_some() {
                return Poll::Ready(None);
            }
            match state.ready.pop_front() {
                Some(capsule) => Poll::Ready(Some(capsule)),
                None => {
                    state.next_command.register(cx);
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// Brings the first `len` bytes of a command's data from the host into `buf`: from the capsule,
    /// or with RDMA READs.
    ///
    /// # Errors
    /// The status says what to complete the command with; if the queue is gone, completing it does
    /// nothing. The buffer goes back to its pool.
    pub async fn fetch(
        &self,
        capsule: &Capsule,
        len: usize,
        mut buf: Buffer,
    ) -> Result<Buffer, TransferError> {
        let error = |status, message| Err(TransferError { status, message });
        if len > buf.len() {
            return error(Status::INTERNAL, "the buffer is shorter than the data");
        }
        match capsule.sqe.sgl() {
            Ok(SglDescriptor::InCapsule { offset: 0, length }) => {
                let data = capsule.in_capsule();
                if len > length as usize || len > data.len() {
                    return error(Status::SGL_LENGTH_INVALID, "the capsule holds less data");
                }
                buf[..len].copy_from_slice(&data[..len]);
                Ok(buf)
            }
            Ok(SglDescriptor::InCapsule { .. }) => error(
                Status::SGL_OFFSET_INVALID,
                "the in-capsule offset is not zero",
            ),
            Ok(SglDescriptor::Keyed {
                address,
                length,
                key,
                ..
            }) => {
                if len > length as usize {
                    return error(Status::SGL_LENGTH_INVALID, "the SGL names less data");
                }
                if address.checked_add(len as u64).is_none() {
                    return error(Status::DATA_TRANSFER_ERROR, "the SGL's address range wraps");
                }
                self.inner
                    .read(RegionKey { rkey: key, address }, len, buf)
                    .await
            }
            Ok(_) => error(Status::SGL_TYPE_INVALID, "the SGL is not an RDMA one"),
            Err(status) => Err(TransferError {
                status,
                message: "the SGL is invalid",
            }),
        }
    }

    /// Completes a command: sends the first `len` bytes of the buffer, then the completion. The queue
    /// fills in `sq_head`, `sq_id` and `cid`. Data that the command's SGL has no room for turns into
    /// an error status. On a queue that is gone nothing happens.
    pub fn complete(&self, capsule: Capsule, cqe: Cqe, data: Option<(Buffer, usize)>) {
        self.inner.complete(capsule, cqe, data);
    }

    /// Ends the queue: no more commands come, work in flight is flushed.
    pub fn close(&self) {
        self.inner.close(CloseReason::Local);
    }

    /// Waits until the connection is over, whoever ended it, and says why.
    pub async fn closed(&self) -> CloseReason {
        poll_fn(|cx| {
            let mut state = self.inner.state.borrow_mut();
            match (&state.ending, state.closed) {
                (Some(reason), true) => Poll::Ready(reason.clone()),
                _ => {
                    state.on_closed.register(cx);
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// Whether the queue is ending or over.
    pub fn is_closing(&self) -> bool {
        self.inner.state.borrow().ending.is_some()
    }
}

impl std::fmt::Debug for TargetQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TargetQueue")
            .field("info", &self.inner.info)
            .finish_non_exhaustive()
    }
}

impl Inner {
    async fn read(
        &self,
        from: RegionKey,
        len: usize,
        buf: Buffer,
    ) -> Result<Buffer, TransferError> {
        let gone = TransferError {
            status: Status::DATA_TRANSFER_ERROR,
            message: "the connection ended before the data came",
        };
        let mut memory = FabricMemory::Buffer(buf);
        let mut offset = 0;
        while offset < len {
            let piece = (len - offset).min(self.read_bytes_max);
            let permits = [
                self.reads_budget.acquire(1).await,
                self.share_budget.acquire(piece).await,
                self.bytes_budget.acquire(piece).await,
            ];
            let remote = RegionKey {
                rkey: from.rkey,
                address: from.address.wrapping_add(offset as u64),
            };
            let result = self.post_read(memory, offset, piece, remote, permits)?;
            let (status, back) = result.wait().await;
            if status != WorkStatus::Success {
                return Err(gone);
            }
            memory = back;
            offset += piece;
        }
        memory.into_buffer().ok_or(gone)
    }

    fn post_read(
        &self,
        into: FabricMemory,
        offset: usize,
        len: usize,
        remote: RegionKey,
        permits: [Permit; 3],
    ) -> Result<Rc<ReadResult>, TransferError> {
        let error = TransferError {
            status: Status::DATA_TRANSFER_ERROR,
            message: "the queue does not take another READ",
        };
        let mut state = self.state.borrow_mut();
        let Some(qp) = self.qp.get().filter(|_| state.ending.is_none()) else {
            return Err(error);
        };
        let id = state.next_read;
        state.next_read += 1;
        if qp
            .post_send(
                id,
                Work::Read {
                    into,
                    offset,
                    len,
                    remote,
                },
            )
            .is_err()
        {
            return Err(error);
        }
        let result = Rc::new(ReadResult::default());
        state.reads.insert(
            id,
            ReadInFlight {
                result: result.clone(),
                _permits: permits,
            },
        );
        Ok(result)
    }

    fn complete(&self, capsule: Capsule, mut cqe: Cqe, data: Option<(Buffer, usize)>) {
        let mut state = self.state.borrow_mut();
        state.outstanding = state.outstanding.saturating_sub(1);
        let Some(qp) = self.qp.get().filter(|_| state.ending.is_none()) else {
            return;
        };
        let Capsule { sqe, memory, .. } = capsule;
        state.sq_head = (state.sq_head + 1) % self.info.depth.max(1);
        state.unacked += 1;
        cqe.sq_head = state.sq_head;
        cqe.sq_id = self.info.qid;
        cqe.cid = sqe.cid();
        drop(state);

        let (write, invalidate) = match sqe.sgl() {
            Ok(SglDescriptor::Keyed {
                address,
                length,
                key,
                invalidate,
            }) => {
                let remote = RegionKey { rkey: key, address };
                (Some((remote, length as usize)), invalidate.then_some(key))
            }
            _ => (None, None),
        };
        let write = match (data, write) {
            (None, _) | (Some((_, 0)), _) => None,
            (Some((from, len)), Some((remote, room))) if len <= room && len <= from.len() => {
                Some(Work::Write {
                    from: FabricMemory::Buffer(from),
                    len,
                    remote,
                })
            }
            (Some(_), Some(_)) => {
                cqe.status = Status::SGL_LENGTH_INVALID.with_dnr();
                None
            }
            (Some(_), None) => {
                cqe.status = Status::SGL_TYPE_INVALID.with_dnr();
                None
            }
        };
        // The receive first: the host may send its next command as soon as it has the response.
        let mut posted = qp.post_receive(0, memory).is_ok();
        if let Some(write) = write {
            posted &= qp.post_send(0, write).is_ok();
        }
        let response = FabricMemory::inline(&cqe.encode());
        let len = response.bytes().len();
        posted &= qp
            .post_send(
                0,
                Work::Send {
                    data: response,
                    len,
                    invalidate,
                },
            )
            .is_ok();
        if !posted {
            self.close(CloseReason::Violation(
                "the host does not acknowledge its responses",
            ));
        }
    }

    fn close(&self, reason: CloseReason) {
        let mut state = self.state.borrow_mut();
        if state.ending.is_some() {
            return;
        }
        tracing::debug!(peer = %self.info.peer, qid = self.info.qid, %reason, "queue ends");
        state.end(reason);
        drop(state);
        if let Some(qp) = self.qp.get() {
            qp.disconnect();
        }
    }

    fn command(&self, memory: FabricMemory, len: usize) {
        let mut state = self.state.borrow_mut();
        if state.ending.is_some() {
            return;
        }
        let checked = check_capsule(memory.bytes(), len).and_then(|sqe| {
            let depth = usize::from(self.info.depth);
            if state.outstanding >= depth {
                Err("more commands outstanding than the queue has entries")
            } else if state.unacked > UNACKED_PER_DEPTH * depth {
                Err("the host does not acknowledge its responses")
            } else {
                Ok(sqe)
            }
        });
        match checked {
            Ok(sqe) => {
                state.outstanding += 1;
                state.ready.push_back(Capsule { sqe, memory, len });
                state.next_command.wake_all();
            }
            Err(violation) => {
                drop(state);
                tracing::warn!(peer = %self.info.peer, qid = self.info.qid, violation, "queue closed");
                self.close(CloseReason::Violation(violation));
            }
        }
    }
}

/// Takes a capsule apart, or says how it breaks the protocol.
fn check_capsule(bytes: &[u8], len: usize) -> Result<Sqe, &'static str> {
    let message = bytes.get(..len).ok_or("a capsule longer than announced")?;
    let Some(entry) = message.first_chunk::<SQE_BYTES>() else {
        return Err("a capsule shorter than a submission queue entry");
    };
    let sqe = Sqe(*entry);
    if let Ok(SglDescriptor::InCapsule { offset, length }) = sqe.sgl() {
        if offset != 0 {
            return Err("in-capsule data at an offset");
        }
        if length as usize > len - SQE_BYTES {
            return Err("in-capsule data beyond the capsule");
        }
    }
    Ok(sqe)
}

impl State {
    fn end(&mut self, reason: CloseReason) {
        if self.ending.is_none() {
            self.ending = Some(reason);
        }
        self.ready.clear();
        self.next_command.wake_all();
    }
}

impl QueuePairHandler for Inner {
    fn established(&self, _private_data: &[u8]) {}

    fn completed(&self, completion: Completion) {
        let Completion {
            id,
            kind,
            status,
            len,
            memory,
            ..
        } = completion;
        match kind {
            WorkKind::Receive if status == WorkStatus::Success => self.command(memory, len),
            WorkKind::Receive | WorkKind::Write => {}
            WorkKind::Send => {
                let mut state = self.state.borrow_mut();
                state.unacked = state.unacked.saturating_sub(1);
            }
            WorkKind::Read => {
                let read = self.state.borrow_mut().reads.remove(&id);
                if let Some(read) = read {
                    read.result.set(status, memory);
                }
            }
        }
    }

    fn closed(&self, reason: CloseReason) {
        let mut state = self.state.borrow_mut();
        state.end(reason);
        state.closed = true;
        state.on_closed.wake_all();
        // Nothing is in flight any more; this is for a provider that forgot to flush a READ.
        let reads = std::mem::take(&mut state.reads);
        drop(state);
        for read in reads.into_values() {
            read.result
                .set(WorkStatus::Flushed, FabricMemory::inline(&[]));
        }
    }
}

impl ReadResult {
    fn set(&self, status: WorkStatus, memory: FabricMemory) {
        self.done.set(Some((status, memory)));
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    async fn wait(&self) -> (WorkStatus, FabricMemory) {
        poll_fn(|cx| match self.done.take() {
            Some(done) => Poll::Ready(done),
            None => {
                *self.waker.borrow_mut() = Some(cx.waker().clone());
                Poll::Pending
            }
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_capsule_is_a_command_with_its_data_inside_or_a_violation(
            bytes in prop::collection::vec(any::<u8>(), 0..256),
            kind in prop::sample::select(vec![0x00, 0x01, 0x32, 0x40, 0x4f, 0x5a]),
            small: bool,
            len in 0_usize..300,
        ) {
            let mut bytes = bytes;
            if bytes.len() >= SQE_BYTES {
                bytes[39] = kind;
                if small {
                    // An in-capsule descriptor that may be right.
                    bytes[24..32].fill(0);
                    bytes[33..36].fill(0);
                }
            }
            let Ok(sqe) = check_capsule(&bytes, len) else { return Ok(()) };
            prop_assert!((SQE_BYTES..=bytes.len()).contains(&len));
            let memory = FabricMemory::Capsule(bytes.into_boxed_slice());
            let capsule = Capsule { sqe, memory, len };
            if let Ok(SglDescriptor::InCapsule { offset, length }) = sqe.sgl() {
                prop_assert_eq!(offset, 0);
                prop_assert!(length as usize <= capsule.in_capsule().len());
            }
        }
    }
}
