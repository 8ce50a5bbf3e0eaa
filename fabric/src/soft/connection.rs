//! Listeners, pending connections and queue pairs of a soft device.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::task::{Context, Poll};

use roce::endpoint::{AcceptParams, Path, PathMtu, QpId, RejectReason, RequestId, SendWork};
use roce::memory::Access;

use super::device::{Shared, setup_error};
use crate::error::SetupError;
use crate::memory::FabricMemory;
use crate::provider::{
    ConnectionParams, PendingConnection, PostError, QueuePair, QueuePairHandler, RdmaListener,
    RegionKey, RemoteRights, Work,
};
use crate::waiters::Waiters;

/// A listener's waiting connections.
pub(super) struct ListenerState {
    pub(super) address: Option<IpAddr>,
    port: u16,
    backlog: usize,
    waiting: RefCell<VecDeque<SoftPending>>,
    waiters: RefCell<Waiters>,
}

impl ListenerState {
    pub(super) fn new(address: Option<IpAddr>, port: u16, backlog: usize) -> Self {
        let (waiting, waiters) = Default::default();
        Self {
            address,
            port,
            backlog,
            waiting,
            waiters,
        }
    }

    /// Queues a request, or gives it back if too many wait.
    pub(super) fn offer(&self, pending: SoftPending) -> Result<(), SoftPending> {
        let mut waiting = self.waiting.borrow_mut();
        if waiting.len() >= self.backlog {
            return Err(pending);
        }
        waiting.push_back(pending);
        self.wake();
        Ok(())
    }

    /// Lets whoever accepts look again.
    pub(super) fn wake(&self) {
        self.waiters.borrow_mut().wake_all();
    }
}

/// The user's side of a listener.
pub(super) struct SoftListener {
    shared: Rc<Shared>,
    state: Rc<ListenerState>,
}

impl SoftListener {
    pub(super) fn new(shared: Rc<Shared>, state: Rc<ListenerState>) -> Self {
        Self { shared, state }
    }
}

impl RdmaListener for SoftListener {
    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<Option<Box<dyn PendingConnection>>> {
        match self.state.waiting.borrow_mut().pop_front() {
            Some(pending) => Poll::Ready(Some(Box::new(pending))),
            None if self.shared.closed.get() => Poll::Ready(None),
            None => {
                self.state.waiters.borrow_mut().register(cx);
                Poll::Pending
            }
        }
    }
}

impl Drop for SoftListener {
    fn drop(&mut self) {
        let port = self.state.port;
        let parts = &self.shared.parts;
        let part = parts.part.index();
        parts.listening.end(part, self.state.address, port);
        let mut listeners = self.shared.listeners.borrow_mut();
        if let Some(on_port) = listeners.get_mut(&port) {
            on_port.retain(|listener| !Rc::ptr_eq(listener, &self.state));
            if on_port.is_empty() {
                listeners.remove(&port);
                // Fails only if nobody listens, as on all parts but the first.
                let _ = self
                    .shared
                    .endpoint
                    .borrow_mut()
                    .unlisten(super::device::service(port));
            }
        }
        drop(listeners);
        // Requests that nobody took are refused by being dropped.
        self.state.waiting.take();
    }
}

/// A connection that a peer asks for.
pub(super) struct SoftPending {
    shared: Rc<Shared>,
    /// None once it was answered.
    request: Option<RequestId>,
    path: Path,
    port: u16,
    private_data: Vec<u8>,
    mtu: PathMtu,
}

impl SoftPending {
    pub(super) fn new(
        shared: Rc<Shared>,
        request: RequestId,
        path: Path,
        port: u16,
        private_data: Vec<u8>,
        mtu: PathMtu,
    ) -> Self {
        Self {
            shared,
            request: Some(request),
            path,
            port,
            private_data,
            mtu,
        }
    }

    pub(super) fn refuse(mut self, reason: RejectReason) {
        self.answer(reason, &[]);
    }

    fn answer(&mut self, reason: RejectReason, private_data: &[u8]) {
        if let Some(request) = self.request.take() {
            let now = reactor::now();
            self.shared
                .endpoint
                .borrow_mut()
                .reject(now, request, reason, private_data);
            self.shared.kick();
        }
    }
}

impl PendingConnection for SoftPending {
    fn peer(&self) -> SocketAddr {
        SocketAddr::new(self.path.remote, 0)
    }

    fn local(&self) -> SocketAddr {
        SocketAddr::new(self.path.local, self.port)
    }

    fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    fn accept(
        mut self: Box<Self>,
        params: ConnectionParams,
        handler: Rc<dyn QueuePairHandler>,
    ) -> Result<Rc<dyn QueuePair>, SetupError> {
        let request = self.request.take().ok_or(SetupError::Gone)?;
        let shared = self.shared.clone();
        let mut endpoint = shared.endpoint.borrow_mut();
        let answer = AcceptParams {
            private_data: params.private_data,
        };
        let now = reactor::now();
        let accepted = endpoint.accept(now, request, answer).map_err(setup_error);
        let qp = match accepted {
            Ok(qp) => qp,
            Err(error) => {
                endpoint.reject(now, request, RejectReason::NoResources, &[]);
                drop(endpoint);
                shared.kick();
                return Err(error);
            }
        };
        // The answer leaves in the driver's next round, after these.
        for memory in params.receives {
            if let Err((error, _)) = endpoint.post_receive(qp, 0, memory) {
                endpoint.destroy(qp);
                drop(endpoint);
                shared.kick();
                return Err(SetupError::NoResources(error.to_string()));
            }
        }
        drop(endpoint);
        shared.handlers.borrow_mut().insert(qp, handler);
        shared.kick();
        Ok(Rc::new(SoftQueuePair::new(
            shared, qp, self.path, 0, self.mtu,
        )))
    }

    fn reject(mut self: Box<Self>, private_data: &[u8]) {
        self.answer(RejectReason::Consumer, private_data);
    }
}

impl Drop for SoftPending {
    fn drop(&mut self) {
        self.answer(RejectReason::Consumer, &[]);
    }
}

/// One side of a connection.
pub(super) struct SoftQueuePair {
    shared: Rc<Shared>,
    qp: QpId,
    path: Path,
    peer_port: u16,
    mtu: PathMtu,
    disconnected: Cell<bool>,
}

impl SoftQueuePair {
    pub(super) fn new(
        shared: Rc<Shared>,
        qp: QpId,
        path: Path,
        peer_port: u16,
        mtu: PathMtu,
    ) -> Self {
        Self {
            shared,
            qp,
            path,
            peer_port,
            mtu,
            disconnected: Cell::new(false),
        }
    }
}

impl QueuePair for SoftQueuePair {
    fn post_receive(&self, id: u64, memory: FabricMemory) -> Result<(), (PostError, FabricMemory)> {
        let mut endpoint = self.shared.endpoint.borrow_mut();
        endpoint
            .post_receive(self.qp, id, memory)
            .map_err(|(e, memory)| (post_error(e), memory))
    }

    fn post_send(&self, id: u64, work: Work) -> Result<(), (PostError, Work)> {
        let bytes = work.bytes();
        let work = match work {
            Work::Send {
                data,
                len,
                invalidate,
            } => SendWork::Send {
                data,
                len,
                invalidate,
            },
            Work::Read {
                into,
                offset,
                len,
                remote,
            } => SendWork::Read {
                into,
                offset,
                len,
                remote_va: remote.address,
                rkey: remote.rkey,
            },
            Work::Write { from, len, remote } => SendWork::Write {
                from,
                offset: 0,
                len,
                remote_va: remote.address,
                rkey: remote.rkey,
            },
        };
        let mut endpoint = self.shared.endpoint.borrow_mut();
        let result = endpoint.post_send(self.shared.recently(), self.qp, id, work);
        drop(endpoint);
        self.shared.posted(bytes);
        result.map_err(|(error, work)| (post_error(error), refused_work(work)))
    }

    fn disconnect(&self) {
        if !self.disconnected.replace(true) {
            self.shared
                .endpoint
                .borrow_mut()
                .disconnect(reactor::now(), self.qp);
            self.shared.kick();
        }
    }

    fn abandon(&self) {
        if !self.disconnected.replace(true) {
            let mut endpoint = self.shared.endpoint.borrow_mut();
            endpoint.abandon(reactor::now(), self.qp);
            drop(endpoint);
            self.shared.kick();
        }
    }

    fn peer(&self) -> SocketAddr {
        SocketAddr::new(self.path.remote, self.peer_port)
    }

    fn local(&self) -> SocketAddr {
        SocketAddr::new(self.path.local, 0)
    }

    fn reads_max(&self) -> usize {
        // The endpoint itself holds READs back that the peer cannot take yet.
        usize::from(self.shared.config.endpoint.max_reads_in_flight)
    }

    fn register(
        &self,
        memory: FabricMemory,
        rights: RemoteRights,
    ) -> Result<RegionKey, (PostError, FabricMemory)> {
        let access = Access {
            remote_read: rights == RemoteRights::Read,
            remote_write: rights == RemoteRights::Write,
        };
        let mut endpoint = self.shared.endpoint.borrow_mut();
        match endpoint.register_for(self.qp, memory, access) {
            Ok(key) => Ok(RegionKey {
                rkey: key.rkey,
                address: key.va,
            }),
            Err((_, memory)) => Err((PostError::Full, memory)),
        }
    }

    fn packet_bytes(&self) -> Option<usize> {
        Some(self.mtu.bytes())
    }

    fn deregister(&self, rkey: u32) -> Option<FabricMemory> {
        self.shared.endpoint.borrow_mut().deregister(rkey)
    }
}

fn post_error(error: roce::endpoint::PostError) -> PostError {
    match error {
        roce::endpoint::PostError::NoSuchQueuePair | roce::endpoint::PostError::NotConnected => {
            PostError::NotConnected
        }
        roce::endpoint::PostError::QueueFull => PostError::Full,
        roce::endpoint::PostError::BadRange => PostError::BadRange,
        roce::endpoint::PostError::ReadsNotAllowed => PostError::ReadsNotAllowed,
    }
}

fn refused_work(work: SendWork<FabricMemory>) -> Work {
    match work {
        SendWork::Send {
            data,
            len,
            invalidate,
        } => Work::Send {
            data,
            len,
            invalidate,
        },
        SendWork::Read {
            into,
            offset,
            len,
            remote_va,
            rkey,
        } => Work::Read {
            into,
            offset,
            len,
            remote: RegionKey {
                rkey,
                address: remote_va,
            },
        },
        SendWork::Write {
            from,
            len,
            remote_va,
            rkey,
            ..
        } => Work::Write {
            from,
            len,
            remote: RegionKey {
                rkey,
                address: remote_va,
            },
        },
    }
}
