//! Listeners, and the connections that peers ask them for.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::task::{Context, Poll};

use super::connection::{Connection, VerbsQueuePair};
use super::device::Shared;
use super::parts::{PartSlot, Request};
use super::raw::{self, DeviceKey, Id, IdKey, Parameters};
use crate::error::SetupError;
use crate::provider::{
    ConnectionParams, PendingConnection, QueuePair, QueuePairHandler, RdmaListener,
};
use crate::waiters::Waiters;

/// A listener: what it listens on, and who waits.
pub(super) struct ListenerState {
    /// One for each address; none while the device of an address is removed, and on every part but the
    /// first, which deals requests out.
    ids: RefCell<Vec<(IpAddr, Id)>>,
    /// None: all of the device's.
    address: Option<IpAddr>,
    port: u16,
    backlog: usize,
    waiting: RefCell<VecDeque<VerbsPending>>,
    waiters: RefCell<Waiters>,
    /// Set when the device behind it is gone.
    closed: Cell<bool>,
}

impl ListenerState {
    pub(super) fn new(address: Option<IpAddr>, port: u16, backlog: usize) -> Rc<Self> {
        Rc::new(Self {
            ids: RefCell::default(),
            address,
            port,
            backlog,
            waiting: RefCell::default(),
            waiters: RefCell::default(),
            closed: Cell::new(false),
        })
    }

    /// The address, if it is not all of the device's.
    pub(super) fn address(&self) -> Option<IpAddr> {
        self.address
    }

    /// Whether connections to an address and a port are for it.
    pub(super) fn takes(&self, local: IpAddr, port: u16) -> bool {
        self.port == port && self.address.is_none_or(|address| address == local)
    }

    /// The service port.
    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// How many requests may wait.
    pub(super) fn backlog(&self) -> usize {
        self.backlog
    }

    /// Listens with one more identifier.
    pub(super) fn add(&self, address: IpAddr, id: Id) {
        self.ids.borrow_mut().push((address, id));
    }

    /// Lets go of an identifier, and says on which address and device it listened.
    pub(super) fn remove(&self, key: IdKey) -> Option<(IpAddr, Option<raw::Context>)> {
        let mut ids = self.ids.borrow_mut();
        let index = ids.iter().position(|(_, id)| id.key() == key)?;
        let (address, id) = ids.swap_remove(index);
        Some((address, id.context()))
    }

    /// Queues a request. If too many wait, it is refused by being dropped, and the answer is false.
    pub(super) fn offer(&self, pending: VerbsPending) -> bool {
        if self.waiting.borrow().len() >= self.backlog {
            return false;
        }
        self.waiting.borrow_mut().push_back(pending);
        self.waiters.borrow_mut().wake_all();
        true
    }

    /// Refuses what waits for a kernel device that is lost, and lets go of it.
    pub(super) fn forget_device(&self, device: DeviceKey) {
        let is_its = |pending: &VerbsPending| pending.device() == Some(device);
        let waiting = self.waiting.take();
        let (lost, others): (Vec<_>, Vec<_>) = waiting.into_iter().partition(is_its);
        self.waiting.borrow_mut().extend(others);
        drop(lost);
    }

    /// No more requests come.
    pub(super) fn close(&self) {
        self.closed.set(true);
        self.waiters.borrow_mut().wake_all();
    }
}

/// The user's side of a listener.
pub(super) struct VerbsListener {
    shared: Rc<Shared>,
    state: Rc<ListenerState>,
}

impl VerbsListener {
    pub(super) fn new(shared: &Rc<Shared>, state: Rc<ListenerState>) -> Self {
        let shared = shared.clone();
        Self { shared, state }
    }
}

impl RdmaListener for VerbsListener {
    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<Option<Box<dyn PendingConnection>>> {
        match self.state.waiting.borrow_mut().pop_front() {
            Some(pending) => Poll::Ready(Some(Box::new(pending))),
            None if self.state.closed.get() || self.shared.closed.get() => Poll::Ready(None),
            None => {
                self.state.waiters.borrow_mut().register(cx);
                Poll::Pending
            }
        }
    }
}

impl Drop for VerbsListener {
    fn drop(&mut self) {
        for (_, id) in self.state.ids.take() {
            self.shared.forget_id(id.key());
        }
        self.shared.forget_listener(&self.state);
        // Requests that nobody took are refused by being dropped.
        drop(self.state.waiting.take());
    }
}

/// A connection that a peer asks for.
pub(super) struct VerbsPending {
    shared: Rc<Shared>,
    /// None once it was answered.
    id: Option<Id>,
    peer: IpAddr,
    local: SocketAddr,
    private_data: Vec<u8>,
    responder_resources: u8,
    initiator_depth: u8,
    slot: Option<PartSlot>,
}

impl VerbsPending {
    /// A request that this part shall answer; None if it has no addresses.
    pub(super) fn new(shared: &Rc<Shared>, request: Request) -> Option<Self> {
        let id = request.id.keep();
        let (peer, local) = (id.peer()?.ip(), id.local()?);
        Some(Self {
            shared: shared.clone(),
            id: Some(id),
            peer,
            local,
            private_data: request.private_data,
            responder_resources: request.responder_resources,
            initiator_depth: request.initiator_depth,
            slot: Some(request.slot),
        })
    }

    fn device(&self) -> Option<DeviceKey> {
        let context = self.id.as_ref().and_then(Id::context);
        context.map(|context| context.key())
    }

    fn answer(&mut self, private_data: &[u8]) {
        if let Some(id) = self.id.take()
            && let Err(error) = id.reject(private_data)
        {
            tracing::debug!(peer = %self.peer, %error, "the peer has given up already");
        }
    }
}

impl PendingConnection for VerbsPending {
    fn peer(&self) -> SocketAddr {
        SocketAddr::new(self.peer, 0)
    }

    fn local(&self) -> SocketAddr {
        self.local
    }

    fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    fn accept(
        mut self: Box<Self>,
        params: ConnectionParams,
        handler: Rc<dyn QueuePairHandler>,
    ) -> Result<Rc<dyn QueuePair>, SetupError> {
        let (Some(mut id), Some(slot)) = (self.id.take(), self.slot.take()) else {
            return Err(SetupError::Gone);
        };
        // What happened to it before is not repeated here, but then it cannot be accepted any more.
        if let Err(error) = id.move_to(&self.shared.channel) {
            tracing::debug!(peer = %self.peer, %error, "the peer has given up already");
            return Err(SetupError::Gone);
        }
        let asked = Parameters {
            private_data: &[],
            responder_resources: self.responder_resources,
            initiator_depth: self.initiator_depth,
        };
        let accepted = Connection::accept(&self.shared, id, self.peer, &asked, params, handler);
        match accepted {
            Ok(connection) => {
                connection.keep_slot(slot);
                self.shared.know(&connection);
                Ok(Rc::new(VerbsQueuePair(connection)))
            }
            Err(error) => {
                self.shared.counters.borrow_mut().refused += 1;
                Err(SetupError::NoResources(error.to_string()))
            }
        }
    }

    fn reject(mut self: Box<Self>, private_data: &[u8]) {
        self.answer(private_data);
    }
}

impl Drop for VerbsPending {
    fn drop(&mut self) {
        self.answer(&[]);
    }
}
