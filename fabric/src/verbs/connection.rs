//! One side of a connection: from the first event of the connection manager to the last completion.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use super::VerbsConfig;
use super::device::{Adapter, Shared};
use super::parts::PartSlot;
use super::raw::{
    CmEventKind, Context, Finished, Id, IdKey, Parameters, Rings, RingsConfig, WorkCompletion,
};
use crate::error::{CloseReason, VerbsError};
use crate::memory::FabricMemory;
use crate::provider::{
    Completion, ConnectionParams, PostError, QueuePair, QueuePairHandler, RegionKey, RemoteRights,
    Work, WorkKind, WorkStatus,
};

/// How long a sender waits after 'receiver not ready': code 12 is 0.64 ms (InfiniBand specification,
/// table 45).
const RECEIVER_NOT_READY_TIMER: u8 = 12;

/// How long address and route may take to be found.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(2);

/// Where a connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    /// The way to the peer is looked for; there is no queue pair yet.
    Resolving,
    /// The peer was asked, and has not answered.
    Connecting,
    /// This side has accepted: work may be posted, and messages may arrive.
    Accepted,
    Open,
    /// Over; the device gives back what was posted.
    Draining,
    Closed,
}

/// Where a queue pair's messages arrive: those of many hosts share a queue.
#[derive(Clone, Copy)]
enum ReceivesIn {
    OwnQueue,
    SharedQueue,
}

/// One side of a connection.
pub(super) struct Connection {
    shared: Rc<Shared>,
    key: IdKey,
    peer: SocketAddr,
    /// The peer's service port on the active side, 0 on the passive one.
    stage: Cell<Stage>,
    /// Until the connection is closed.
    id: RefCell<Option<Rc<Id>>>,
    adapter: RefCell<Option<Rc<Adapter>>>,
    rings: RefCell<Option<Rings>>,
    /// On the active side, until there is a queue pair.
    params: RefCell<Option<ConnectionParams>>,
    handler: RefCell<Option<Rc<dyn QueuePairHandler>>>,
    reason: RefCell<Option<CloseReason>>,
    /// What the peer was shown when the queue pair went.
    leftover_regions: RefCell<HashMap<u32, FabricMemory>>,
    invalidation: Cell<bool>,
    reads_max: Cell<u8>,
    local: Cell<Option<SocketAddr>>,
    /// The device is lost: nothing more comes from it.
    device_gone: Cell<bool>,
    /// The peer has been told, and has not agreed yet.
    goodbye_open: Cell<bool>,
    /// On the passive side, until it is closed.
    slot: Cell<Option<PartSlot>>,
    /// In the list of connections with something to do.
    pub(super) marked: Cell<bool>,
}

impl Connection {
    /// Begins to connect.
    pub(super) fn start(
        shared: &Rc<Shared>,
        id: Id,
        peer: SocketAddr,
        params: ConnectionParams,
        handler: Rc<dyn QueuePairHandler>,
    ) -> Result<Rc<Self>, VerbsError> {
        id.resolve_address(shared.source, peer, RESOLVE_TIMEOUT)
            .map_err(|e| VerbsError::failed("the RDMA devices", "look for the peer", &e))?;
        let connection = Self::new(shared, id, peer, Stage::Resolving, handler);
        *connection.params.borrow_mut() = Some(params);
        connection.later(shared.config.connect_timeout, |connection| {
            if connection.stage.get() < Stage::Accepted {
                connection.begin_close(CloseReason::ConnectTimeout);
            }
        });
        Ok(connection)
    }

    fn new(
        shared: &Rc<Shared>,
        id: Id,
        peer: SocketAddr,
        stage: Stage,
        handler: Rc<dyn QueuePairHandler>,
    ) -> Rc<Self> {
        Rc::new(Self {
            shared: shared.clone(),
            key: id.key(),
            peer,
            stage: Cell::new(stage),
            local: Cell::new(id.local()),
            id: RefCell::new(Some(Rc::new(id))),
            adapter: RefCell::default(),
            rings: RefCell::default(),
            params: RefCell::default(),
            handler: RefCell::new(Some(handler)),
            reason: RefCell::default(),
            leftover_regions: RefCell::default(),
            invalidation: Cell::new(true),
            reads_max: Cell::new(0),
            device_gone: Cell::new(false),
            goodbye_open: Cell::new(false),
            slot: Cell::new(None),
            marked: Cell::new(false),
        })
    }

    /// Answers a peer's request.
    pub(super) fn accept(
        shared: &Rc<Shared>,
        id: Id,
        peer: IpAddr,
        asked: &Parameters<'_>,
        params: ConnectionParams,
        handler: Rc<dyn QueuePairHandler>,
    ) -> Result<Rc<Self>, VerbsError> {
        let peer = SocketAddr::new(peer, 0);
        let context = id.context();
        let was_open = context.is_none_or(|context| shared.is_open(&context));
        let connection = Self::new(shared, id, peer, Stage::Accepted, handler);
        let set_up = connection.set_up(
            (params.receives, params.receives_later),
            asked.initiator_depth,
            ReceivesIn::SharedQueue,
        );
        // A request may be seen after its device was removed: what it made open would keep the kernel
        // from letting it go.
        let close_again = || shared.close_unused(context.filter(|_| !was_open));
        let (id, adapter) = set_up.inspect_err(|_| close_again())?;
        let limits = adapter.domain.limits();
        // The initiator depth of the answer must not be 0 if the peer takes READs: hosts leave remote
        // reads off otherwise.
        let answer = Parameters {
            private_data: &params.private_data,
            responder_resources: asked.responder_resources.min(limits.reads_in),
            initiator_depth: connection.reads_max.get(),
        };
        let name = adapter.domain.name();
        if let Err(error) = id.accept(&answer) {
            // Breaks the circle of a connection that its adapter knows. The identifier refuses the
            // peer when it goes.
            if let Some(rings) = connection.rings.take() {
                adapter.connections.borrow_mut().remove(&rings.number());
            }
            close_again();
            return Err(VerbsError::failed(name, "accept a connection", &error));
        }
        connection.set_timer(&id);
        Ok(connection)
    }

    /// It is counted at its reactor until it is closed.
    pub(super) fn keep_slot(&self, slot: PartSlot) {
        self.slot.set(Some(slot));
    }

    /// Makes the queue pair and posts its receives.
    fn set_up(
        self: &Rc<Self>,
        (receives, later): (Vec<FabricMemory>, usize),
        reads: u8,
        receives_in: ReceivesIn,
    ) -> Result<(Rc<Id>, Rc<Adapter>), VerbsError> {
        let id = self.id.borrow().clone().ok_or(VerbsError::NoDevice)?;
        let context = id.context().ok_or(VerbsError::NoDevice)?;
        let adapter = self.shared.adapter(context)?;
        let limits = adapter.domain.limits();
        let config = sizes(
            &self.shared.config,
            &receives,
            later,
            reads.min(limits.reads_out),
            limits,
        );
        let name = adapter.domain.name();
        let timeout = self.shared.config.acknowledgement_timeout;
        if let Err(error) = id.set_acknowledgement_timeout(timeout) {
            // An old kernel or library: a lost packet costs seconds there.
            tracing::debug!(peer = %self.peer, %error, "the acknowledgement timeout stays as it is");
        }
        let shared = match receives_in {
            ReceivesIn::OwnQueue => None,
            ReceivesIn::SharedQueue => adapter.receives.as_ref(),
        };
        let mut rings = Rings::create(&id, &adapter.domain, shared, config)?;
        for memory in receives {
            if let Err((error, _)) = rings.post_receive(0, memory) {
                let error = std::io::Error::other(error);
                return Err(VerbsError::failed(name, "post receives", &error));
            }
        }
        rings
            .flush()
            .map_err(|error| VerbsError::failed(name, "post receives", &error))?;
        self.reads_max.set(config.reads);
        self.invalidation.set(rings.regions_can_be_invalidated());
        self.local.set(id.local());
        adapter
            .connections
            .borrow_mut()
            .insert(rings.number(), self.clone());
        *self.rings.borrow_mut() = Some(rings);
        *self.adapter.borrow_mut() = Some(adapter.clone());
        Ok((id, adapter))
    }

    /// The device, once it is known.
    pub(super) fn context(&self) -> Option<Context> {
        self.id.borrow().as_ref()?.context()
    }

    pub(super) fn key(&self) -> IdKey {
        self.key
    }

    /// Takes an event of the connection manager. Called by the device's loop only.
    pub(super) fn event(self: &Rc<Self>, what: CmEventKind) {
        let id = self.id.borrow().clone();
        let Some(id) = id else { return };
        match what {
            CmEventKind::AddressResolved if self.stage.get() == Stage::Resolving => {
                if let Err(error) = id.resolve_route(RESOLVE_TIMEOUT) {
                    tracing::warn!(peer = %self.peer, %error, "no route to the peer");
                    self.begin_close(CloseReason::ConnectTimeout);
                }
            }
            CmEventKind::RouteResolved if self.stage.get() == Stage::Resolving => {
                if let Err(error) = self.ask() {
                    tracing::warn!(peer = %self.peer, %error, "the connection was not started");
                    self.begin_close(CloseReason::Device(error.to_string()));
                }
            }
            CmEventKind::Established {
                private_data,
                initiator_depth,
            } => self.established(&id, &private_data, initiator_depth),
            CmEventKind::Rejected {
                reason,
                private_data,
            } => self.begin_close(CloseReason::Refused {
                reason,
                private_data,
            }),
            CmEventKind::Failed { step, error } => {
                tracing::info!(peer = %self.peer, step, %error, "no connection");
                self.begin_close(CloseReason::ConnectTimeout);
            }
            CmEventKind::Disconnected => {
                self.begin_close(CloseReason::Peer);
                self.goodbye_open.set(false);
            }
            CmEventKind::DeviceRemoved => self.device_lost("it was removed"),
            CmEventKind::TimewaitOver => self.goodbye_open.set(false),
            CmEventKind::AddressResolved
            | CmEventKind::RouteResolved
            | CmEventKind::Request { .. } => {}
            CmEventKind::Other(number) => {
                tracing::debug!(peer = %self.peer, number, "event of the connection manager");
            }
        }
    }

    /// Sends the connection request, now that the way is known.
    fn ask(self: &Rc<Self>) -> Result<(), VerbsError> {
        let params = self.params.take();
        let ConnectionParams {
            private_data,
            receives,
            receives_later,
        } = params.ok_or(VerbsError::NoDevice)?;
        let receives = (receives, receives_later);
        let (id, adapter) = self.set_up(receives, u8::MAX, ReceivesIn::OwnQueue)?;
        let limits = adapter.domain.limits();
        let request = Parameters {
            private_data: &private_data,
            responder_resources: limits.reads_in,
            initiator_depth: self.reads_max.get(),
        };
        self.stage.set(Stage::Connecting);
        let name = adapter.domain.name();
        id.connect(&request)
            .map_err(|error| VerbsError::failed(name, "connect", &error))
    }

    fn established(self: &Rc<Self>, id: &Id, private_data: &[u8], initiator_depth: u8) {
        let passive = self.stage.get() == Stage::Accepted;
        if !passive && self.stage.get() != Stage::Connecting {
            return;
        }
        if !passive {
            self.reads_max
                .set(self.reads_max.get().min(initiator_depth));
            self.set_timer(id);
        }
        self.stage.set(Stage::Open);
        self.shared.counters.borrow_mut().connections += 1;
        let handler = self.handler.borrow().clone();
        if let Some(handler) = handler {
            handler.established(if passive { &[] } else { private_data });
        }
    }

    fn set_timer(&self, id: &Id) {
        if let Err(error) = id.set_receiver_not_ready_timer(RECEIVER_NOT_READY_TIMER) {
            // Without it a sender that comes too early waits 0.65 s, which receives posted ahead
            // should never let happen.
            tracing::debug!(peer = %self.peer, %error, "the receiver-not-ready timer stays as it is");
        }
    }

    /// Takes a completion. Called by the device's loop only.
    pub(super) fn completed(self: &Rc<Self>, work: &WorkCompletion, finished: &mut Finished) {
        let handler = self.handler.borrow().clone();
        let status = match &mut *self.rings.borrow_mut() {
            Some(rings) => rings.complete(work, finished),
            None => {
                if let Some(adapter) = &*self.adapter.borrow() {
                    adapter.throw_away(work);
                }
                work.status
            }
        };
        for completion in finished.completions.drain(..) {
            if let Some(handler) = &handler {
                handler.completed(completion);
            }
        }
        if status != WorkStatus::Success && self.stage.get() < Stage::Draining {
            self.shared.counters.borrow_mut().failed_requests += 1;
            tracing::debug!(peer = %self.peer, %status, code = work.code, "a work request failed");
            self.begin_close(CloseReason::Failed(status));
        }
        let due = match (&*self.rings.borrow(), self.stage.get()) {
            (Some(rings), Stage::Draining) => rings.is_idle(),
            (Some(rings), _) => rings.has_more(),
            (None, _) => false,
        };
        if due {
            self.shared.mark(self);
        }
    }

    /// Ends the connection; what was posted comes back before the handler learns of it.
    pub(super) fn begin_close(self: &Rc<Self>, reason: CloseReason) {
        if self.stage.get() >= Stage::Draining {
            return;
        }
        self.say_goodbye(reason);
        // A device that is dead gives nothing back: the queue pair is destroyed then.
        self.later(self.shared.config.close_timeout, |connection| {
            if connection.stage.get() == Stage::Draining {
                tracing::info!(peer = %connection.peer, "the device did not give all work back in time");
                connection.finish();
            }
        });
        self.shared.mark(self);
    }

    /// Ends the connection at once, without waiting for the device or the peer, because the device's
    /// loop ends.
    pub(super) fn abandon(self: &Rc<Self>) {
        if self.stage.get() < Stage::Draining {
            self.say_goodbye(CloseReason::Local);
        }
        self.finish();
    }

    fn say_goodbye(&self, reason: CloseReason) {
        let before = self.stage.replace(Stage::Draining);
        let by_peer = reason == CloseReason::Peer;
        self.reason.borrow_mut().get_or_insert(reason);
        let id = self.id.borrow().clone();
        if let (Some(rings), Some(id)) = (&mut *self.rings.borrow_mut(), id) {
            // What was posted before leaves before; the peer may still take it.
            let _ = rings.flush();
            // Also moves the queue pair into its error state, which flushes what is left; without a
            // connection it says no, and that is done directly.
            let told = id.disconnect().is_ok();
            self.goodbye_open
                .set(!self.device_gone.get() && told && !by_peer && before >= Stage::Accepted);
            if let Err(error) = id.fail_queue_pair() {
                tracing::debug!(peer = %self.peer, %error, "the queue pair has ended already");
            }
        }
    }

    /// The device is gone, and gives nothing back. Called by the device's loop only.
    pub(super) fn device_lost(self: &Rc<Self>, why: &str) {
        self.device_gone.set(true);
        self.begin_close(CloseReason::Device(why.to_owned()));
        self.shared.mark(self);
    }

    /// Does what is due. Called by the device's loop only.
    pub(super) fn work(self: &Rc<Self>) {
        if self.stage.get() == Stage::Draining {
            let idle = match &*self.rings.borrow() {
                Some(rings) => rings.is_idle() || self.device_gone.get(),
                None => true,
            };
            if idle {
                self.finish();
            }
            return;
        }
        let flushed = match &mut *self.rings.borrow_mut() {
            Some(rings) if self.stage.get() >= Stage::Accepted => rings.flush(),
            _ => Ok(0),
        };
        match flushed {
            Ok(calls) => self.shared.counters.borrow_mut().posts += calls,
            Err(error) => {
                tracing::warn!(peer = %self.peer, %error, "the device takes no more work");
                self.begin_close(CloseReason::Device(error.to_string()));
            }
        }
    }

    /// Destroys the queue pair and tells the handler, once. Called by the device's loop only.
    pub(super) fn finish(self: &Rc<Self>) {
        if self.stage.replace(Stage::Closed) == Stage::Closed {
            return;
        }
        let mut finished = Finished::default();
        if let Some(mut rings) = self.rings.take() {
            let (flushed, regions) = rings.close();
            if let Some(adapter) = self.adapter.take() {
                adapter.connections.borrow_mut().remove(&rings.number());
                adapter.sweep(rings.number());
            }
            finished = flushed;
            *self.leftover_regions.borrow_mut() = regions;
        }
        if let Some(params) = self.params.take() {
            finished
                .completions
                .extend(params.receives.into_iter().map(|memory| Completion {
                    id: 0,
                    kind: WorkKind::Receive,
                    status: WorkStatus::Flushed,
                    len: 0,
                    invalidated: None,
                    memory,
                }));
        }
        drop(self.slot.take());
        let id = self.id.take();
        self.shared.forget(self, id, self.goodbye_open.get());
        let handler = self.handler.take();
        let reason = self.reason.take().unwrap_or(CloseReason::Local);
        if let Some(handler) = handler {
            for completion in finished.completions {
                handler.completed(completion);
            }
            handler.closed(reason);
        }
    }

    /// Runs `then` after a while, if the connection is still there.
    fn later(self: &Rc<Self>, time: Duration, then: impl FnOnce(&Rc<Self>) + 'static) {
        let weak = Rc::downgrade(self);
        reactor::spawn(async move {
            reactor::sleep(time).await;
            if let Some(connection) = weak.upgrade() {
                then(&connection);
            }
        })
        .detach();
    }

    fn is_open(&self) -> bool {
        matches!(self.stage.get(), Stage::Accepted | Stage::Open)
    }
}

/// Sizes of a queue pair for these receives, and so many later.
fn sizes(
    config: &VerbsConfig,
    receives: &[FabricMemory],
    later: usize,
    reads: u8,
    limits: &super::raw::Limits,
) -> RingsConfig {
    let longest = receives.iter().map(|memory| memory.bytes().len()).max();
    let count = receives.len() + later;
    let sends = (count * config.sends_per_receive + 64).min(limits.work_requests);
    RingsConfig {
        receives: count.max(1),
        receive_bytes: longest.unwrap_or(1),
        sends,
        sends_max: sends * (1 + config.waiting_per_send),
        reads,
        regions_max: count.max(1),
    }
}

/// The queue pair's side of a connection. The connection itself is held by the device until it is
/// closed.
pub(super) struct VerbsQueuePair(pub(super) Rc<Connection>);

impl QueuePair for VerbsQueuePair {
    fn post_receive(&self, id: u64, memory: FabricMemory) -> Result<(), (PostError, FabricMemory)> {
        if !self.0.is_open() {
            return Err((PostError::NotConnected, memory));
        }
        match &mut *self.0.rings.borrow_mut() {
            Some(rings) => rings.post_receive(id, memory)?,
            None => return Err((PostError::NotConnected, memory)),
        }
        self.0.shared.mark(&self.0);
        Ok(())
    }

    fn post_send(&self, id: u64, work: Work) -> Result<(), (PostError, Work)> {
        if !self.0.is_open() {
            return Err((PostError::NotConnected, work));
        }
        match &mut *self.0.rings.borrow_mut() {
            Some(rings) => rings.post_send(id, work)?,
            None => return Err((PostError::NotConnected, work)),
        }
        self.0.shared.mark(&self.0);
        Ok(())
    }

    fn disconnect(&self) {
        self.0.begin_close(CloseReason::Local);
    }

    fn peer(&self) -> SocketAddr {
        self.0.peer
    }

    fn local(&self) -> SocketAddr {
        let unknown = IpAddr::from(Ipv4Addr::UNSPECIFIED);
        let ip = self.0.local.get().map_or(unknown, |local| local.ip());
        SocketAddr::new(ip, 0)
    }

    fn reads_max(&self) -> usize {
        usize::from(self.0.reads_max.get())
    }

    fn register(
        &self,
        memory: FabricMemory,
        rights: RemoteRights,
    ) -> Result<RegionKey, (PostError, FabricMemory)> {
        if !self.0.is_open() {
            return Err((PostError::NotConnected, memory));
        }
        let key = match &mut *self.0.rings.borrow_mut() {
            Some(rings) => rings
                .register(memory, rights)
                .map_err(|memory| (PostError::Full, memory))?,
            None => return Err((PostError::NotConnected, memory)),
        };
        self.0.shared.mark(&self.0);
        Ok(key)
    }

    fn regions_can_be_invalidated(&self) -> bool {
        self.0.invalidation.get()
    }

    fn deregister(&self, rkey: u32) -> Option<FabricMemory> {
        match &mut *self.0.rings.borrow_mut() {
            Some(rings) => rings.deregister(rkey),
            None => self.0.leftover_regions.borrow_mut().remove(&rkey),
        }
    }
}
