//! A host's side of an NVMe/RDMA queue pair: commands with their data out, completions in.
//!
//! Guarantees:
//!
//! - A command is sent only when a receive for its completion is posted.
//! - The target reaches a command's buffer only while the command is outstanding, only in the needed
//!   direction, and only through this queue's connection.
//! - A completion that invalidates another key than the command's own ends the queue.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::Poll;

use nvme::command::SQE_BYTES;
use nvme::completion::CQE_BYTES;
use nvme::rdma_cm::{RdmaCmAccept, RdmaCmReject, RdmaCmRequest, RdmaCmStatus};
use nvme::{Cqe, SglDescriptor, Sqe};

use crate::error::CloseReason;
use crate::memory::{Budget, FabricMemory, Permit};
use crate::provider::{
    Completion, ConnectionParams, PostError, QueuePair, QueuePairHandler, RdmaDevice, RemoteRights,
    Work, WorkKind, WorkStatus,
};
use crate::queue::{
    Close, Commands, HostData, HostError, HostQueueParams, Lifecycle, Outcome, QueueConnectError,
    Reply,
};
use crate::waiters::Waiters;

/// The connection manager's reason when the peer's application refused.
const REASON_CONSUMER: u16 = 28;

/// Of so few outstanding commands each is sent with its data where it fits: one way instead of three.
const FEW_COMMANDS: usize = 4;

/// An NVMe/RDMA queue of a host.
pub(crate) struct RdmaHost {
    /// The device runs as long as the queue is open.
    _device: Rc<dyn RdmaDevice>,
    qp: OnceCell<Rc<dyn QueuePair>>,
    peer: SocketAddr,
    params: HostQueueParams,
    life: Lifecycle,
    /// Commands that may be started.
    slots_budget: Budget,
    /// SENDs that may wait for their acknowledgement: a completion can overtake it.
    sends_budget: Budget,
    commands: RefCell<Commands<Memory>>,
    sends: RefCell<VecDeque<Permit>>,
    established: Cell<bool>,
    connecting: RefCell<Waiters>,
}

/// Where the data of an outstanding command is.
struct Memory {
    /// The key of its region.
    region: Option<u32>,
    /// The write's buffer while its data travels in the capsule.
    kept: Option<FabricMemory>,
}

impl RdmaHost {
    /// Asks the target for a queue.
    pub(crate) fn start(
        device: &Rc<dyn RdmaDevice>,
        peer: SocketAddr,
        params: HostQueueParams,
    ) -> Result<Rc<Self>, QueueConnectError> {
        let HostQueueParams {
            qid, depth, cntlid, ..
        } = params;
        let request = RdmaCmRequest {
            qid,
            hrqsize: depth,
            hsqsize: depth - 1,
            cntlid,
        };
        let connection = ConnectionParams {
            private_data: request.encode().to_vec(),
            receives: (0..=depth)
                .map(|_| FabricMemory::inline(&[0; CQE_BYTES]))
                .collect(),
            receives_later: 0,
        };
        let host = Rc::new(Self {
            _device: device.clone(),
            qp: OnceCell::new(),
            peer,
            params,
            life: Lifecycle::default(),
            slots_budget: Budget::new(depth.into()),
            sends_budget: Budget::new(2 * usize::from(depth)),
            commands: RefCell::new(Commands::new(depth)),
            sends: RefCell::default(),
            established: Cell::new(false),
            connecting: RefCell::default(),
        });
        let qp = device
            .connect(peer, connection, host.clone())
            .map_err(|source| QueueConnectError::Setup { peer, source })?;
        let _ = host.qp.set(qp);
        Ok(host)
    }

    /// Waits for the target's answer.
    pub(crate) async fn connected(&self) -> Result<(), QueueConnectError> {
        let peer = self.peer;
        let reason = poll_fn(|cx| match (self.life.reason(), self.established.get()) {
            (Some(reason), _) => Poll::Ready(Some(reason)),
            (None, true) => Poll::Ready(None),
            (None, false) => {
                self.connecting.borrow_mut().register(cx);
                Poll::Pending
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
                let qid = self.params.qid;
                Err(QueueConnectError::Refused { peer, qid, status })
            }
            Some(reason) => Err(QueueConnectError::Failed { peer, reason }),
        }
    }

    pub(crate) fn life(&self) -> &Lifecycle {
        &self.life
    }

    pub(crate) async fn submit(&self, sqe: Sqe, data: HostData) -> Outcome {
        let permit = self.slots_budget.acquire(1).await;
        let send = self.sends_budget.acquire(1).await;
        match self.send(sqe, data, permit, send) {
            Ok(reply) => reply.wait().await,
            Err(PostError::NotConnected) => {
                // A queue pair that broke takes nothing any more, and says why when its work has come back.
                if !self.life.is_ending() {
                    self.life.wait().await;
                }
                Err(self.gone())
            }
            Err(_) => Err(HostError::NoResources),
        }
    }

    fn gone(&self) -> HostError {
        HostError::closed(self.peer, &self.life)
    }

    fn send(
        &self,
        mut sqe: Sqe,
        data: HostData,
        permit: Permit,
        send: Permit,
    ) -> Result<Rc<Reply>, PostError> {
        let Some(qp) = self.qp.get().filter(|_| !self.life.is_ending()) else {
            return Err(PostError::NotConnected);
        };
        // There is a free slot whenever there is a permit.
        let Some(cid) = self.commands.borrow_mut().next_cid() else {
            return Err(PostError::Full);
        };
        let (capsule, kept, region) = self.prepare(&mut sqe, data, &**qp)?;
        sqe.set_cid(cid);
        let mut capsule = capsule.unwrap_or_else(|| FabricMemory::inline(&[0; SQE_BYTES]));
        capsule.bytes_mut()[..SQE_BYTES].copy_from_slice(&sqe.0);
        let len = capsule.bytes().len();
        let work = Work::Send {
            data: capsule,
            len,
            invalidate: None,
        };
        if let Err((error, _)) = qp.post_send(0, work) {
            if let Some(rkey) = region {
                qp.deregister(rkey);
            }
            return Err(error);
        }
        self.sends.borrow_mut().push_back(send);
        let memory = Memory { region, kept };
        Ok(self.commands.borrow_mut().begin(memory, permit))
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
    ) -> Result<(Option<FabricMemory>, Option<FabricMemory>, Option<u32>), PostError> {
        let (buf, len, rights) = match data {
            HostData::None => {
                sqe.set_sgl(&SglDescriptor::NONE);
                return Ok((None, None, None));
            }
            HostData::ToTarget(buf, len)
                if len <= self.params.in_capsule_bytes && !self.is_better_fetched(len, qp) =>
            {
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
            .map_err(|(error, _)| error)?;
        sqe.set_sgl(&SglDescriptor::Keyed {
            address: region.address,
            length: len as u32,
            key: region.rkey,
            invalidate: qp.regions_can_be_invalidated(),
        });
        Ok((None, None, Some(region.rkey)))
    }

    /// Whether data that fits a capsule makes it a long and a short packet, and would alone be one packet
    /// like those of other commands: when there are others, these travel together, and are cheaper even
    /// with the READ that asks for them.
    fn is_better_fetched(&self, len: usize, qp: &dyn QueuePair) -> bool {
        let outstanding = self.slots_budget.total() - self.slots_budget.free();
        let divides = |packet: usize| len <= packet && SQE_BYTES + len > packet;
        outstanding > FEW_COMMANDS && qp.packet_bytes().is_some_and(divides)
    }

    fn fail_commands(&self) {
        let error = self.gone();
        let commands = self.commands.borrow_mut().take_all();
        let sends = self.sends.take();
        for command in commands {
            command.end(|memory| {
                if let (Some(rkey), Some(qp)) = (memory.region, self.qp.get()) {
                    qp.deregister(rkey);
                }
                Err(error.clone())
            });
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
        let mut commands = self.commands.borrow_mut();
        let kept = commands
            .get(cqe.cid)
            .ok_or("a completion of a command that is not outstanding")?;
        if invalidated.is_some() && invalidated != kept.region {
            return Err("a completion that invalidates a wrong key");
        }
        let command = commands.take(cqe.cid);
        drop(commands);
        if let Some(command) = command {
            command.end(|memory| {
                let memory = match (memory.region, self.qp.get()) {
                    (Some(rkey), Some(qp)) => qp.deregister(rkey),
                    _ => memory.kept,
                };
                Ok((cqe, memory.and_then(FabricMemory::into_buffer)))
            });
        }
        Ok(())
    }
}

impl Close for RdmaHost {
    fn close(&self, reason: CloseReason) {
        if !self.life.end(reason) {
            return;
        }
        self.connecting.borrow_mut().wake_all();
        if let Some(qp) = self.qp.get() {
            qp.disconnect();
        }
        self.fail_commands();
    }
}

impl QueuePairHandler for RdmaHost {
    fn established(&self, private_data: &[u8]) {
        if RdmaCmAccept::parse(private_data).is_none() {
            return self.close(CloseReason::Violation(
                "the target's acceptance is malformed",
            ));
        }
        self.established.set(true);
        self.connecting.borrow_mut().wake_all();
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
                let permit = self.sends.borrow_mut().pop_front();
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
        self.life.over(reason);
        self.connecting.borrow_mut().wake_all();
        self.fail_commands();
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::error::{ListenError, SetupError};
    use crate::provider::{RdmaListener, RegionKey};

    /// A device, and its one queue pair: the connection stands, but it broke, and its work has not come back yet.
    #[derive(Clone, Default)]
    struct Broken(Rc<RefCell<Option<Rc<dyn QueuePairHandler>>>>);

    impl RdmaDevice for Broken {
        fn listen(
            &self,
            _: Option<IpAddr>,
            _: u16,
            _: usize,
        ) -> Result<Box<dyn RdmaListener>, ListenError> {
            unreachable!("a host does not listen")
        }

        fn connect(
            &self,
            _: SocketAddr,
            _: ConnectionParams,
            handler: Rc<dyn QueuePairHandler>,
        ) -> Result<Rc<dyn QueuePair>, SetupError> {
            self.0.replace(Some(handler));
            Ok(Rc::new(self.clone()))
        }

        fn read_budget(&self) -> (Budget, usize) {
            (Budget::new(0), 0)
        }
    }

    impl QueuePair for Broken {
        fn post_receive(
            &self,
            _: u64,
            memory: FabricMemory,
        ) -> Result<(), (PostError, FabricMemory)> {
            Err((PostError::NotConnected, memory))
        }

        fn post_send(&self, _: u64, work: Work) -> Result<(), (PostError, Work)> {
            Err((PostError::NotConnected, work))
        }

        fn disconnect(&self) {}

        fn peer(&self) -> SocketAddr {
            SocketAddr::from(([192, 0, 2, 1], 4420))
        }

        fn local(&self) -> SocketAddr {
            SocketAddr::from(([192, 0, 2, 2], 0))
        }

        fn reads_max(&self) -> usize {
            0
        }

        fn register(
            &self,
            memory: FabricMemory,
            _: RemoteRights,
        ) -> Result<RegionKey, (PostError, FabricMemory)> {
            Err((PostError::NotConnected, memory))
        }

        fn deregister(&self, _: u32) -> Option<FabricMemory> {
            None
        }
    }

    #[test]
    fn a_command_for_a_connection_that_breaks_is_told_what_broke_it() {
        let config = reactor::Config::default();
        let told = reactor::run(config, async {
            let device = Broken::default();
            let params = HostQueueParams {
                qid: 1,
                depth: 4,
                cntlid: 1,
                in_capsule_bytes: 0,
            };
            let peer = QueuePair::peer(&device);
            let host = RdmaHost::start(&(Rc::new(device.clone()) as _), peer, params)
                .expect("a connection begins");
            let asking = host.clone();
            let command =
                reactor::spawn(
                    async move { asking.submit(Sqe([0; SQE_BYTES]), HostData::None).await },
                );
            reactor::yield_now().await;
            let handler = device.0.take().expect("the host listens to its connection");
            handler.closed(CloseReason::Device("it was removed".into()));
            command.await.expect("the task is not aborted")
        })
        .expect("a reactor");
        let error = told.expect_err("nothing answers").to_string();
        assert!(error.contains("it was removed"), "{error}");
    }
}
