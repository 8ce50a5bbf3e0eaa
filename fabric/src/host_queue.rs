//! A host's side of an NVMe/RDMA queue pair: commands with their data out, completions in.
//!
//! Guarantees:
//!
//! - A command is sent only when a receive for its completion is posted, and at most `depth` commands
//!   are outstanding; more wait their turn.
//! - The target reaches a command's buffer only while the command is outstanding, only in the needed
//!   direction, and only through this queue's connection.
//! - A completion that does not belong to an outstanding command, or that invalidates another key
//!   than the command's own, ends the queue.
//! - Dropping a submission's future does not disturb the queue: the command runs to its end, and its
//!   buffer goes back to its pool then.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Poll, Waker};

use nvme::command::SQE_BYTES;
use nvme::completion::CQE_BYTES;
use nvme::rdma_cm::{ADMIN_QUEUE_DEPTH, RdmaCmAccept, RdmaCmReject, RdmaCmRequest, RdmaCmStatus};
use nvme::{Cqe, SglDescriptor, Sqe};
use reactor::Buffer;

use crate::budget::{Budget, Permit};
use crate::device::Device;
use crate::memory::FabricMemory;
use crate::rdma::{
    CloseReason, Completion, ConnectionParams, QueuePair, QueuePairHandler, RemoteRights,
    SetupError, Work, WorkKind, WorkStatus,
};
use crate::waiters::Waiters;

/// Bits of a command identifier that hold the slot; those above count its uses, so that a late or
/// repeated completion is not taken for the slot's next command.
const SLOT_BITS: u32 = 10;

/// The longest queue, in entries.
const DEPTH_MAX: u16 = 1 << SLOT_BITS;

/// The connection manager's reason when the peer's application refused.
const REASON_CONSUMER: u16 = 28;

/// What a host asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostQueueParams {
    /// The queue identifier; 0 is the admin queue.
    pub qid: u16,
    /// Commands that may be outstanding (2 to 1024; admin queues at most 32).
    pub depth: u16,
    /// The controller, for I/O queues; 0 for the admin queue.
    pub cntlid: u16,
    /// Bytes of write data that the controller takes in a capsule: `IOCCSZ * 16 - 64` of an I/O
    /// queue if the controller supports SGL offsets, otherwise 0.
    pub in_capsule_bytes: usize,
}

/// Data of a command.
#[derive(Debug)]
pub enum HostData {
    /// No data.
    None,
    /// The first so many bytes of the buffer go to the target.
    ToTarget(Buffer, usize),
    /// So many bytes come from the target into the buffer.
    FromTarget(Buffer, usize),
}

/// Why a queue could not be connected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueueConnectError {
    /// A parameter is out of range.
    #[error("queue {qid} cannot have {depth} entries; ask for 2 to 1024 (admin: 2 to 32)")]
    Depth {
        /// The queue.
        qid: u16,
        /// What was asked for.
        depth: u16,
    },
    /// The connection could not be started.
    #[error("cannot connect to {peer}: {source}")]
    Setup {
        /// The target.
        peer: SocketAddr,
        /// Why.
        source: SetupError,
    },
    /// The target refused the queue.
    #[error("{peer} refused queue {qid}: {status}; check depth and number of queues")]
    Refused {
        /// The target.
        peer: SocketAddr,
        /// The queue.
        qid: u16,
        /// The target's reason.
        status: RdmaCmStatus,
    },
    /// The connection failed before it stood.
    #[error("cannot connect to {peer}: {reason}; check that a target listens there")]
    Failed {
        /// The target.
        peer: SocketAddr,
        /// Why.
        reason: CloseReason,
    },
}

/// Why a command has no completion.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostError {
    /// The queue ended; whether the command was executed is unknown.
    #[error("the connection to {peer} is gone ({reason}); connect again and repeat the command")]
    Closed {
        /// The target.
        peer: SocketAddr,
        /// Why.
        reason: CloseReason,
    },
    /// The device's tables are full.
    #[error("the device has no room for another memory region; submit fewer commands at once")]
    NoResources,
    /// The data does not lie in the buffer.
    #[error("{len} bytes of data do not fit a buffer of {buffer} bytes")]
    Length {
        /// What was asked for.
        len: usize,
        /// What the buffer holds.
        buffer: usize,
    },
}

/// A host's queue. Clones are the same queue; it closes when the last one is dropped.
#[derive(Clone)]
pub struct HostQueue {
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
    qp: OnceCell<Rc<dyn QueuePair>>,
    peer: SocketAddr,
    params: HostQueueParams,
    /// Commands that may be started.
    slots_budget: Budget,
    /// SENDs that may wait for their acknowledgement: a completion can overtake it.
    sends_budget: Budget,
    state: RefCell<State>,
}

struct State {
    connected: bool,
    slots: Vec<Slot>,
    free: Vec<u16>,
    sends: VecDeque<Permit>,
    ending: Option<CloseReason>,
    closed: bool,
    waiters: Waiters,
}

#[derive(Default)]
struct Slot {
    uses: u16,
    command: Option<Command>,
}

/// A command that the target works on.
struct Command {
    reply: Rc<Reply>,
    region: Option<u32>,
    /// The write's buffer while its data travels in the capsule.
    kept: Option<FabricMemory>,
    _permit: Permit,
}

type Outcome = Result<(Cqe, Option<Buffer>), HostError>;

#[derive(Default)]
struct Reply {
    outcome: Cell<Option<Outcome>>,
    waker: RefCell<Option<Waker>>,
}

impl HostQueue {
    /// Connects a queue to a target. The Connect command is the caller's next step.
    pub async fn connect(
        device: &Device,
        peer: impl Into<SocketAddr>,
        params: HostQueueParams,
    ) -> Result<Self, QueueConnectError> {
        let (
            peer,
            HostQueueParams {
                qid, depth, cntlid, ..
            },
        ) = (peer.into(), params);
        if !(2..=DEPTH_MAX).contains(&depth) || (qid == 0 && depth > ADMIN_QUEUE_DEPTH) {
            return Err(QueueConnectError::Depth { qid, depth });
        }
        let request = RdmaCmRequest {
            qid,
            hrqsize: depth,
            hsqsize: depth - 1,
            cntlid,
        };
        let inner = Rc::new(Inner::new(device.clone(), peer, params));
        let queue = Self {
            _close: Rc::new(CloseOnDrop(inner.clone())),
            inner,
        };
        let connection = ConnectionParams {
            private_data: request.encode().to_vec(),
            receives: (0..=depth)
                .map(|_| FabricMemory::inline(&[0; CQE_BYTES]))
                .collect(),
        };
        let qp = device
            .rdma
            .connect(peer, connection, queue.inner.clone())
            .map_err(|source| QueueConnectError::Setup { peer, source })?;
        let _ = queue.inner.qp.set(qp);
        queue.connected().await?;
        Ok(queue)
    }

    async fn connected(&self) -> Result<(), QueueConnectError> {
        let peer = self.inner.peer;
        let reason = poll_fn(|cx| {
            let mut state = self.inner.state.borrow_mut();
            match (&state.ending, state.connected) {
                (Some(reason), _) => Poll::Ready(Some(reason.clone())),
                (None, true) => Poll::Ready(None),
                (None, false) => {
                    state.waiters.register(cx);
                    Poll::Pending
                }
            }
        })
        .await;
        match reason {
            None => Ok(()),
            Some(CloseReason::Refused {
                reason: REASON_CONSUMER,
                private_data,
            }) if let Some(status) = RdmaCmReject::parse(&private_data)
                .and_then(|reject| RdmaCmStatus::from_number(reject.status)) =>
            {
                let qid = self.inner.params.qid;
                Err(QueueConnectError::Refused { peer, qid, status })
            }
            Some(reason) => Err(QueueConnectError::Failed { peer, reason }),
        }
    }

    /// The target.
    pub fn peer(&self) -> SocketAddr {
        self.inner.peer
    }

    /// What the queue was connected with.
    pub fn params(&self) -> &HostQueueParams {
        &self.inner.params
    }

    /// Sends a command and waits for its completion. The queue fills in the command identifier and
    /// the data pointer. The buffer comes back with the completion, whatever its status; after an
    /// error it goes to its pool.
    pub async fn submit(&self, sqe: Sqe, data: HostData) -> Outcome {
        let inner = &self.inner;
        if let HostData::ToTarget(buf, len) | HostData::FromTarget(buf, len) = &data
            && *len > buf.len()
        {
            return Err(HostError::Length {
                len: *len,
                buffer: buf.len(),
            });
        }
        let permit = inner.slots_budget.acquire(1).await;
        let send = inner.sends_budget.acquire(1).await;
        let reply = inner.send(sqe, data, permit, send)?;
        poll_fn(|cx| match reply.outcome.take() {
            Some(outcome) => Poll::Ready(outcome),
            None => {
                *reply.waker.borrow_mut() = Some(cx.waker().clone());
                Poll::Pending
            }
        })
        .await
    }

    /// Ends the queue; outstanding commands fail.
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
                    state.waiters.register(cx);
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

impl std::fmt::Debug for HostQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HostQueue")
            .field("peer", &self.inner.peer)
            .field("params", &self.inner.params)
            .finish_non_exhaustive()
    }
}

impl Inner {
    fn new(device: Device, peer: SocketAddr, params: HostQueueParams) -> Self {
        let depth = usize::from(params.depth);
        Self {
            _device: device,
            qp: OnceCell::new(),
            peer,
            params,
            slots_budget: Budget::new(depth),
            sends_budget: Budget::new(2 * depth),
            state: RefCell::new(State {
                connected: false,
                slots: (0..depth).map(|_| Slot::default()).collect(),
                free: (0..params.depth).rev().collect(),
                sends: VecDeque::with_capacity(2 * depth),
                ending: None,
                closed: false,
                waiters: Waiters::default(),
            }),
        }
    }

    fn gone(&self, state: &State) -> HostError {
        let reason = state.ending.clone().unwrap_or(CloseReason::Local);
        HostError::Closed {
            peer: self.peer,
            reason,
        }
    }

    fn send(
        &self,
        mut sqe: Sqe,
        data: HostData,
        permit: Permit,
        send: Permit,
    ) -> Result<Rc<Reply>, HostError> {
        let mut state = self.state.borrow_mut();
        let Some(qp) = self.qp.get().filter(|_| state.ending.is_none()) else {
            return Err(self.gone(&state));
        };
        let (capsule, kept, region) = self.prepare(&mut sqe, data, &**qp)?;
        // There is a free slot whenever there is a permit.
        let Some(slot_index) = state.free.pop() else {
            return Err(HostError::NoResources);
        };
        let slot = &mut state.slots[usize::from(slot_index)];
        slot.uses = slot.uses.wrapping_add(1);
        let cid = slot_index | (slot.uses << SLOT_BITS);
        sqe.set_cid(cid);
        let reply = Rc::new(Reply::default());
        slot.command = Some(Command {
            reply: reply.clone(),
            region,
            kept,
            _permit: permit,
        });

        let mut capsule = capsule.unwrap_or_else(|| FabricMemory::inline(&[0; SQE_BYTES]));
        capsule.bytes_mut()[..SQE_BYTES].copy_from_slice(&sqe.0);
        let len = capsule.bytes().len();
        if qp
            .post_send(
                0,
                Work::Send {
                    data: capsule,
                    len,
                    invalidate: None,
                },
            )
            .is_err()
        {
            state.slots[usize::from(slot_index)].command = None;
            state.free.push(slot_index);
            if let Some(rkey) = region {
                qp.deregister(rkey);
            }
            return Err(self.gone(&state));
        }
        state.sends.push_back(send);
        Ok(reply)
    }

    /// Fills in the data pointer: in the capsule if it fits, otherwise a region for the target.
    /// Gives the capsule if it is more than the queue entry, the buffer if it is not in a region, and
    /// the region's key.
    #[allow(clippy::type_complexity)]
    fn prepare(
        &self,
        sqe: &mut Sqe,
        data: HostData,
        qp: &dyn QueuePair,
    ) -> Result<(Option<FabricMemory>, Option<FabricMemory>, Option<u32>), HostError> {
        let (buf, len, rights) = match data {
            HostData::None => {
                sqe.set_sgl(&SglDescriptor::NONE);
                return Ok((None, None, None));
            }
            HostData::ToTarget(buf, len) if len <= self.params.in_capsule_bytes => {
                sqe.set_sgl(&SglDescriptor::InCapsule {
                    offset: 0,
                    length: len as u32,
                });
                let mut capsule = FabricMemory::capsule(SQE_BYTES + len);
                capsule.bytes_mut()[SQE_BYTES..].copy_from_slice(&buf[..len]);
                return Ok((Some(capsule), Some(FabricMemory::Buffer(buf)), None));
            }
            HostData::ToTarget(buf, len) => (buf, len, RemoteRights::Read),
            HostData::FromTarget(buf, len) => (buf, len, RemoteRights::Write),
        };
        let region = qp
            .register(FabricMemory::Buffer(buf), rights)
            .map_err(|_| HostError::NoResources)?;
        sqe.set_sgl(&SglDescriptor::Keyed {
            address: region.address,
            length: len as u32,
            key: region.rkey,
            invalidate: qp.regions_can_be_invalidated(),
        });
        Ok((None, None, Some(region.rkey)))
    }

    fn close(&self, reason: CloseReason) {
        let mut state = self.state.borrow_mut();
        if state.ending.is_some() {
            return;
        }
        state.ending = Some(reason);
        state.waiters.wake_all();
        drop(state);
        if let Some(qp) = self.qp.get() {
            qp.disconnect();
        }
        self.fail_commands();
    }

    fn fail_commands(&self) {
        let mut state = self.state.borrow_mut();
        let error = self.gone(&state);
        let commands: Vec<_> = state
            .slots
            .iter_mut()
            .filter_map(|s| s.command.take())
            .collect();
        let sends = std::mem::take(&mut state.sends);
        drop(state);
        for command in commands {
            if let (Some(rkey), Some(qp)) = (command.region, self.qp.get()) {
                qp.deregister(rkey);
            }
            command.reply.set(Err(error.clone()));
        }
        drop(sends);
    }

    fn response(&self, memory: &FabricMemory, len: usize, invalidated: Option<u32>) {
        if let Err(violation) = self.try_response(memory, len, invalidated) {
            tracing::warn!(peer = %self.peer, qid = self.params.qid, violation, "queue closed");
            self.close(CloseReason::Violation(violation));
        }
    }

    fn try_response(
        &self,
        memory: &FabricMemory,
        len: usize,
        invalidated: Option<u32>,
    ) -> Result<(), &'static str> {
        let cqe = memory
            .bytes()
            .get(..len)
            .filter(|bytes| bytes.len() == CQE_BYTES)
            .and_then(Cqe::decode)
            .ok_or("a response that is not a completion queue entry")?;
        let mut state = self.state.borrow_mut();
        let slot_index = cqe.cid & (DEPTH_MAX - 1);
        let slot = state
            .slots
            .get_mut(usize::from(slot_index))
            .filter(|slot| slot.uses << SLOT_BITS == cqe.cid & !(DEPTH_MAX - 1))
            .ok_or("a completion of a command that is not outstanding")?;
        let command = slot
            .command
            .take_if(|command| invalidated.is_none() || invalidated == command.region)
            .ok_or("a completion of a finished command, or one that invalidates a wrong key")?;
        state.free.push(slot_index);
        drop(state);
        let memory = match (command.region, self.qp.get()) {
            (Some(rkey), Some(qp)) => qp.deregister(rkey),
            _ => command.kept,
        };
        command
            .reply
            .set(Ok((cqe, memory.and_then(FabricMemory::into_buffer))));
        Ok(())
    }
}

impl QueuePairHandler for Inner {
    fn established(&self, private_data: &[u8]) {
        if RdmaCmAccept::parse(private_data).is_none() {
            return self.close(CloseReason::Violation(
                "the target's acceptance is malformed",
            ));
        }
        let mut state = self.state.borrow_mut();
        state.connected = true;
        state.waiters.wake_all();
    }

    fn completed(&self, completion: Completion) {
        let Completion {
            kind,
            status,
            len,
            invalidated,
            memory,
            ..
        } = completion;
        match kind {
            WorkKind::Send => {
                let permit = self.state.borrow_mut().sends.pop_front();
                drop(permit);
            }
            WorkKind::Receive if status == WorkStatus::Success => {
                self.response(&memory, len, invalidated);
                if let Some(qp) = self.qp.get() {
                    // Fails only when the queue is over, which `closed` will tell.
                    let _ = qp.post_receive(0, memory);
                }
            }
            WorkKind::Receive | WorkKind::Read | WorkKind::Write => {}
        }
    }

    fn closed(&self, reason: CloseReason) {
        let mut state = self.state.borrow_mut();
        state.ending.get_or_insert(reason);
        state.closed = true;
        state.waiters.wake_all();
        drop(state);
        self.fail_commands();
    }
}

impl Reply {
    fn set(&self, outcome: Outcome) {
        self.outcome.set(Some(outcome));
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}
