//! A target's side of an NVMe/RDMA queue pair: commands in, data and completions out.
//!
//! Guarantees:
//!
//! - A receive for the host's next command is posted before the completion that lets the host send
//!   it. At most `depth` commands are in the target's hands; one more closes the queue.
//! - Before the host has proved who it is the queue holds a few receives and a place at its listener.
//! - A completion is sent after its data; its SEND invalidates the command's own key if the command
//!   asked for that, and no other.
//! - READs in flight are bounded by their number and bytes for the queue, and by their bytes for the device.
//! - A host that does not take its data holds up itself alone: its queue gives out no further command
//!   while it holds its share of the buffers ([`QueueLimits::queue_share`]).
//! - A capsule that is too short or too long, or that points outside of itself, closes this queue.
//!   Everything else that is wrong with a command is the command's own error.
//! - However the queue ends, every buffer goes back: work in flight is flushed by the device, waiting
//!   fetches fail, `next_command` gives None, and `closed` tells when it is over.

use std::cell::{OnceCell, RefCell};
use std::rc::{Rc, Weak};

use nvme::command::SQE_BYTES;
use nvme::{Cqe, SglDescriptor, Sqe, Status};
use reactor::{Buffer, BufferPool, MAX_BUFFER_BYTES};

use super::reads::Reads;
use crate::admission::Place;
use crate::device::Device;
use crate::error::CloseReason;
use crate::memory::{Budget, FabricMemory, Held, Permit, Share};
use crate::provider::{
    Completion, PostError, QueuePair, QueuePairHandler, RegionKey, Work, WorkKind, WorkStatus,
};
use crate::queue::{
    Capsule, CapsuleData, Close, QueueInfo, QueueLimits, SubmissionQueue, TransferError,
};

/// Receives that a queue has before its host has proved who it is. Its Connect and the messages of authentication come
/// one after the other; a host that sends more at once is told to wait.
const RECEIVES_UNPROVEN: usize = 4;

/// A queue as those know it that may have to close it.
pub(super) type Slot = Rc<OnceCell<Weak<RdmaTarget>>>;

/// Responses that may wait for their acknowledgement, as a multiple of the queue's depth. A host
/// sends its next command when it has the response, and the acknowledgement can be late or lost; but
/// one that never acknowledges must not make the queue grow.
const UNACKED_PER_DEPTH: usize = 4;

/// An NVMe/RDMA queue of a target.
pub(crate) struct RdmaTarget {
    /// The device runs as long as the queue is open.
    _device: Device,
    capsule_memory: CapsuleMemory,
    place: Place<Slot>,
    qp: OnceCell<Rc<dyn QueuePair>>,
    submissions: SubmissionQueue,
    depth: u16,
    reads: Reads,
    reads_max: usize,
    /// Data of commands that were given out, and data that the host has not acknowledged.
    share: Share,
    /// Where the data of commands lies.
    buffers: Option<BufferPool>,
    state: RefCell<State>,
}

/// What the queue's capsules take of the listener's memory.
pub(crate) struct CapsuleMemory {
    pub(crate) listener: Budget,
    pub(crate) bytes: usize,
    /// Once the host has proved who it is.
    pub(crate) taken: OnceCell<Permit>,
}

#[derive(Default)]
struct State {
    /// Commands that arrived and were not completed.
    outstanding: usize,
    /// Responses sent and not acknowledged.
    unacked: usize,
}

impl RdmaTarget {
    pub(crate) fn new(
        info: QueueInfo,
        depth: u16,
        limits: QueueLimits,
        device: Device,
        capsule_memory: CapsuleMemory,
        place: Place<Slot>,
        held: Rc<Held>,
    ) -> Self {
        let (bytes_budget, read_bytes_max) = device.rdma.read_budget();
        Self {
            _device: device,
            capsule_memory,
            place,
            qp: OnceCell::new(),
            submissions: SubmissionQueue::new(info),
            depth,
            reads: Reads::new(bytes_budget, read_bytes_max),
            reads_max: limits.reads_max,
            share: Share::new(limits.queue_share, limits.host_share, held),
            buffers: reactor::current().map(|here| here.buffers().clone()),
            state: RefCell::default(),
        }
    }

    /// One receive per command that the host may have outstanding, and one so that an overrun is seen and not just
    /// held back.
    pub(crate) fn receives_in_all(&self) -> usize {
        usize::from(self.depth) + 1
    }

    fn receive(&self) -> FabricMemory {
        FabricMemory::capsule(SQE_BYTES + self.submissions.info.get().in_capsule_bytes)
    }

    /// The receives to post before the connection is accepted.
    pub(crate) fn first_receives(&self) -> Vec<FabricMemory> {
        let count = self.receives_in_all().min(RECEIVES_UNPROVEN);
        (0..count).map(|_| self.receive()).collect()
    }

    /// The host has proved who it is: posts the rest of the receives. If they cannot be had any more, the queue closes.
    pub(crate) fn proved(&self, is_ready_admin: bool) {
        let memory = &self.capsule_memory;
        if memory.taken.get().is_some() {
            return;
        }
        let Some(permit) = memory.listener.try_acquire(memory.bytes) else {
            let info = self.submissions.info.get();
            crate::log_of_peer!(
                warn,
                "no memory for capsules",
                info.peer.ip(),
                peer = %info.peer,
                qid = info.qid,
                bytes = memory.bytes,
                "queue closed: its capsules find no memory; `onefold serve --rdma-capsules` allows more"
            );
            return self.close(CloseReason::Local);
        };
        let _ = memory.taken.set(permit);
        self.place.proved(is_ready_admin);
        let Some(qp) = self.qp.get() else { return };
        for _ in RECEIVES_UNPROVEN..self.receives_in_all() {
            match qp.post_receive(0, self.receive()) {
                Ok(()) => {}
                // A connection that has ended says itself why.
                Err((PostError::NotConnected, _)) => return,
                Err(_) => return self.close(CloseReason::Local),
            }
        }
    }

    pub(crate) fn attach(&self, qp: Rc<dyn QueuePair>) {
        // Called once, right after the queue pair was made.
        self.reads.allow(self.reads_max.min(qp.reads_max()));
        let _ = self.qp.set(qp);
    }

    pub(crate) fn submissions(&self) -> &SubmissionQueue {
        &self.submissions
    }

    pub(crate) fn belongs_to(&self, host_nqn: &str) {
        self.share.belongs_to(host_nqn);
    }

    /// The next command; none while the queue holds its share of the buffers.
    pub(crate) async fn next_command(&self) -> Option<Capsule> {
        let may_begin = |sqe: &Sqe| {
            self.share
                .may_take(data_bytes(sqe), 0, || self.free_bytes())
        };
        let capsule = self.submissions.next_command(may_begin).await?;
        self.share.take(data_bytes(&capsule.sqe));
        Some(capsule)
    }

    fn free_bytes(&self) -> usize {
        self.buffers
            .as_ref()
            .map_or(usize::MAX, |buffers| buffers.stats().free_bytes)
    }

    /// Memory went back.
    fn holds_less(&self, bytes: usize) {
        self.share.give_back(bytes);
        if self.share.look_again() {
            self.submissions.look_again();
        }
    }

    /// What the Connect command says was agreed on when the connection was made.
    pub(crate) fn connected(&self, qid: u16, depth: u16) {
        let info = self.submissions.info.get();
        if info.qid != Some(qid) || depth > self.depth {
            crate::log_of_peer!(warn, "Connect does not fit", info.peer.ip(), peer = %info.peer, qid, depth, asked_qid = info.qid, "Connect does not fit the connection");
        }
    }

    pub(crate) async fn fetch(
        &self,
        capsule: &Capsule,
        len: usize,
        mut buf: Buffer,
    ) -> Result<Buffer, TransferError> {
        let error = |status, message| Err(TransferError { status, message });
        match capsule.sqe.sgl() {
            Ok(SglDescriptor::InCapsule { offset: 0, length }) => {
                let data = in_capsule(capsule);
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
                let Some(qp) = self.qp.get().filter(|_| !self.submissions.life.is_ending()) else {
                    return Err(TransferError::GONE);
                };
                let from = RegionKey { rkey: key, address };
                self.reads.fetch(&**qp, from, len, buf).await
            }
            Ok(_) => error(Status::SGL_TYPE_INVALID, "the SGL is not an RDMA one"),
            Err(status) => error(status, "the SGL is invalid"),
        }
    }

    pub(crate) fn complete(&self, capsule: Capsule, cqe: Cqe, data: Option<(Buffer, usize)>) {
        let begun = data_bytes(&capsule.sqe);
        self.answer(capsule, cqe, data);
        self.holds_less(begun);
    }

    fn answer(&self, capsule: Capsule, mut cqe: Cqe, data: Option<(Buffer, usize)>) {
        let mut state = self.state.borrow_mut();
        state.outstanding = state.outstanding.saturating_sub(1);
        let Some(qp) = self.qp.get().filter(|_| !self.submissions.life.is_ending()) else {
            return;
        };
        let Capsule {
            sqe,
            data: received,
            ..
        } = capsule;
        let CapsuleData::Received { memory, .. } = received else {
            return;
        };
        state.unacked += 1;
        cqe.sq_head = self.submissions.next_head(self.depth);
        cqe.sq_id = self.submissions.info.get().qid.unwrap_or_default();
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
                self.share.take(from.len());
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
        let received = qp.post_receive(0, memory).map_err(|(error, _)| error);
        let post_send = |work| qp.post_send(0, work).map_err(|(error, _)| error);
        let written = write.map_or(Ok(()), post_send);
        let response = FabricMemory::inline(&cqe.encode());
        let len = response.bytes().len();
        let sent = post_send(Work::Send {
            data: response,
            len,
            invalidate,
        });
        // A connection that has ended says itself why.
        let is_refused = |posted: &Result<(), PostError>| {
            posted.is_err_and(|error| error != PostError::NotConnected)
        };
        if [received, written, sent].iter().any(is_refused) {
            self.close(CloseReason::Violation(
                "the host does not acknowledge its responses",
            ));
        }
    }

    fn command(&self, memory: FabricMemory, len: usize) {
        let mut state = self.state.borrow_mut();
        if self.submissions.life.is_ending() {
            return;
        }
        let checked = check_capsule(memory.bytes(), len).and_then(|sqe| {
            let depth = usize::from(self.depth);
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
                drop(state);
                let data = CapsuleData::Received { memory, len };
                self.submissions.arrived(Capsule::new(sqe, data));
            }
            Err(violation) => {
                drop(state);
                let info = self.submissions.info.get();
                crate::log_of_peer!(warn, "violation", info.peer.ip(), peer = %info.peer, qid = info.qid, violation, "queue closed");
                self.close(CloseReason::Violation(violation));
            }
        }
    }
}

impl Close for RdmaTarget {
    fn close(&self, reason: CloseReason) {
        let is_displaced = reason == CloseReason::Displaced;
        if !self.submissions.end(reason) {
            return;
        }
        match self.qp.get() {
            Some(qp) if is_displaced => qp.abandon(),
            Some(qp) => qp.disconnect(),
            None => {}
        }
    }
}

/// Bytes of memory that the data of a command takes.
fn data_bytes(sqe: &Sqe) -> usize {
    match sqe.sgl() {
        // Whatever its descriptor says: it gets no buffer.
        Ok(SglDescriptor::Keyed { .. }) if !sqe.moves_data() => 0,
        Ok(SglDescriptor::Keyed { length, .. } | SglDescriptor::InCapsule { length, .. }) => {
            (length as usize).min(MAX_BUFFER_BYTES)
        }
        Ok(SglDescriptor::Transport { .. }) | Err(_) => 0,
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

/// What followed the submission queue entry in the capsule.
fn in_capsule(capsule: &Capsule) -> &[u8] {
    match &capsule.data {
        CapsuleData::Received { memory, len } => {
            memory.bytes().get(SQE_BYTES..*len).unwrap_or_default()
        }
        _ => &[],
    }
}

impl QueuePairHandler for RdmaTarget {
    fn established(&self, _private_data: &[u8]) {
        self.place.answered();
    }

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
            WorkKind::Receive => {}
            WorkKind::Write => self.holds_less(memory.bytes().len()),
            WorkKind::Send => {
                let mut state = self.state.borrow_mut();
                state.unacked = state.unacked.saturating_sub(1);
            }
            WorkKind::Read => {
                self.reads.completed(id, status, memory);
            }
        }
    }

    fn closed(&self, reason: CloseReason) {
        self.submissions.end(reason.clone());
        self.submissions.life.over(reason);
        self.reads.end();
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
            let data = CapsuleData::Received { memory, len };
            let capsule = Capsule::new(sqe, data);
            if let Ok(SglDescriptor::InCapsule { offset, length }) = sqe.sgl() {
                prop_assert_eq!(offset, 0);
                prop_assert!(length as usize <= in_capsule(&capsule).len());
            }
        }
    }
}
