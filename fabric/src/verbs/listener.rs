//! Listeners, and the connections that peers ask them for.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::task::{Context, Poll};

use super::connection::{Connection, VerbsQueuePair};
use super::device::Shared;
use super::raw::{self, Id, IdKey, Parameters};
use crate::rdma::{
    ConnectionParams, PendingConnection, QueuePair, QueuePairHandler, RdmaListener, SetupError,
};
use crate::waiters::Waiters;

/// A listener: what it listens on, and who waits.
pub(super) struct ListenerState {
    /// One for each address; none while the device of an address is removed.
    ids: RefCell<Vec<(IpAddr, Id)>>,
    port: u16,
    backlog: usize,
    waiting: RefCell<VecDeque<VerbsPending>>,
    waiters: RefCell<Waiters>,
    /// Set when the device behind it is gone.
    closed: Cell<bool>,
}

impl ListenerState {
    pub(super) fn new(port: u16, backlog: usize) -> Rc<Self> {
        Rc::new(Self {
            ids: RefCell::default(),
            port,
            backlog,
            waiting: RefCell::default(),
            waiters: RefCell::default(),
            closed: Cell::new(false),
        })
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
            self.shared.forget_listener(id.key());
        }
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
}

impl VerbsPending {
    /// A request as the connection manager tells it; None if it has no addresses.
    pub(super) fn new(
        shared: &Rc<Shared>,
        id: Id,
        private_data: Vec<u8>,
        responder_resources: u8,
        initiator_depth: u8,
    ) -> Option<Self> {
        let (peer, local) = (id.peer()?.ip(), id.local()?);
        Some(Self {
            shared: shared.clone(),
            id: Some(id),
            peer,
            local,
            private_data,
            responder_resources,
            initiator_depth,
        })
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
        let id = self.id.take().ok_or(SetupError::Gone)?;
        let asked = Parameters {
            private_data: &[],
            responder_resources: self.responder_resources,
            initiator_depth: self.initiator_depth,
        };
        let accepted = Connection::accept(&self.shared, id, self.peer, &asked, params, handler);
        match accepted {
            Ok(connection) => {
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
