//! A verbs device: its addresses, its kernel devices, and the tables of its connections.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};

use super::connection::{Connection, VerbsQueuePair};
use super::events::{self, Goodbye};
use super::listener::{ListenerState, VerbsListener};
use super::parts::{self, Inbox, Parts};
use super::raw::{
    Context, DeviceKey, Devices, Domain, EventChannel, Id, IdKey, Libraries, SharedReceives,
    WorkCompletion,
};
use super::{VerbsConfig, VerbsCounters};
use crate::address::{Addresses, ROCE_PORT};
use crate::error::{CloseReason, ListenError, SetupError, VerbsError};
use crate::memory::Budget;
use crate::provider::{ConnectionParams, QueuePair, QueuePairHandler, RdmaDevice, RdmaListener};
use crate::waiters::Waiters;

/// A part of a verbs device, on its way to its reactor.
pub(crate) struct VerbsPart {
    addresses: Vec<IpAddr>,
    source: Option<IpAddr>,
    config: VerbsConfig,
    parts: Parts,
    inbox: Inbox,
}

/// A part of a verbs device, held by whoever uses it. When the last holder lets go, its tasks end.
pub(crate) struct VerbsDevice {
    shared: Rc<Shared>,
}

/// What the device's tasks, queue pairs and listeners share.
pub(super) struct Shared {
    pub(super) libraries: &'static Libraries,
    pub(super) channel: Arc<EventChannel>,
    pub(super) config: VerbsConfig,
    /// The other parts.
    pub(super) parts: Parts,
    /// Who listens at this part.
    pub(super) listeners: RefCell<Vec<Rc<ListenerState>>>,
    addresses: Vec<IpAddr>,
    /// The address to connect from.
    pub(super) source: Option<IpAddr>,
    pub(super) roles: RefCell<HashMap<IdKey, Role>>,
    pub(super) adapters: RefCell<Vec<Rc<Adapter>>>,
    /// Connections with something to do.
    pub(super) marked: RefCell<Vec<Rc<Connection>>>,
    pub(super) counters: RefCell<VerbsCounters>,
    /// Wakes whoever waits for the last connection to go.
    idle: RefCell<Waiters>,
    pub(super) closed: Cell<bool>,
    driver: RefCell<Option<Waker>>,
    tasks: RefCell<Vec<reactor::JoinHandle<()>>>,
    read_budget: Budget,
}

/// A kernel device.
pub(super) struct Adapter {
    pub(super) domain: Rc<Domain>,
    /// Where messages to accepted queue pairs arrive.
    pub(super) receives: Option<Rc<SharedReceives>>,
    /// Completions that were taken when a queue pair went, and belong to others.
    pub(super) backlog: RefCell<Vec<WorkCompletion>>,
    /// By queue pair number.
    pub(super) connections: RefCell<HashMap<u32, Rc<Connection>>>,
    tasks: RefCell<Vec<reactor::JoinHandle<()>>>,
}

impl Adapter {
    /// Takes what a queue pair that was just destroyed has left in the completion queues: its number
    /// may soon be that of another one.
    pub(super) fn sweep(&self, number: u32) {
        let mut left = Vec::new();
        while matches!(self.domain.poll(&mut left), Ok(true)) {}
        let (own, others): (Vec<_>, Vec<_>) =
            left.into_iter().partition(|work| work.queue_pair == number);
        self.backlog.borrow_mut().extend(others);
        own.iter().for_each(|work| self.throw_away(work));
    }

    /// A completion of a queue pair that is gone: it was handed back when that went.
    pub(super) fn throw_away(&self, work: &WorkCompletion) {
        if let Some(receives) = &self.receives {
            receives.throw_away(work);
        }
    }

    /// Ends the tasks, which hold the device.
    pub(super) fn stop(&self) {
        for task in self.tasks.take() {
            task.abort();
        }
    }
}

/// What an identifier of the connection manager stands for.
#[derive(Clone)]
pub(super) enum Role {
    Listener(Rc<ListenerState>),
    Connection(Rc<Connection>),
    /// A connection that is over here, whose peer has not agreed yet.
    Goodbye(Goodbye),
}

/// Whether a verbs device owns an address: the error says why not. An unspecified address is owned if
/// there is any device.
pub(crate) fn owner(address: IpAddr) -> Result<(), VerbsError> {
    let (libraries, channel) = open_channel()?;
    if address.is_unspecified() {
        return Ok(());
    }
    bound_context(libraries, &channel, address).map(drop)
}

/// The local address from which a peer is reached.
pub(crate) fn source_towards(peer: IpAddr) -> io::Result<IpAddr> {
    let any: IpAddr = match peer {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    // Sends nothing: the system only looks up the route. The port does not matter.
    socket.connect((peer, ROCE_PORT))?;
    Ok(socket.local_addr()?.ip())
}

fn open_channel() -> Result<(&'static Libraries, Arc<EventChannel>), VerbsError> {
    let libraries = Libraries::get()?;
    if libraries.device_names().is_empty() {
        return Err(VerbsError::NoDevice);
    }
    let channel = EventChannel::open(libraries).map_err(|error| {
        let reason = error.to_string();
        VerbsError::NoConnectionManager { reason }
    })?;
    Ok((libraries, channel))
}

/// The device that owns an address.
fn bound_context(
    libraries: &Libraries,
    channel: &Arc<EventChannel>,
    address: IpAddr,
) -> Result<Context, VerbsError> {
    let not_owned = |reason: String| VerbsError::NotOwned {
        address,
        devices: libraries.device_names(),
        reason,
    };
    let id = Id::create(channel).map_err(|error| not_owned(error.to_string()))?;
    id.bind(SocketAddr::new(address, 0))
        .map_err(|error| not_owned(error.to_string()))?;
    id.context()
        .ok_or_else(|| not_owned("the address belongs to none of them".into()))
}

impl VerbsPart {
    /// All parts of a device, one for each of so many reactors.
    pub(crate) fn all(
        addresses: &Addresses,
        config: &VerbsConfig,
        count: usize,
    ) -> Result<Vec<Self>, VerbsError> {
        let (addresses, source) = match addresses {
            Addresses::Wildcard => (
                vec![Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()],
                None,
            ),
            Addresses::Specific(list) => {
                let first = list.iter().find(|address| !address.is_unspecified());
                (list.clone(), first.copied().filter(|_| list.len() == 1))
            }
            Addresses::ToReach(peer) => {
                let source = source_towards(*peer).map_err(|e| {
                    VerbsError::failed("the RDMA devices", "find a route to the peer", &e)
                })?;
                (vec![source], Some(source))
            }
        };
        let parts = parts::join(count).into_iter();
        let of_part = |(parts, inbox)| Self {
            addresses: addresses.clone(),
            source,
            config: config.clone(),
            parts,
            inbox,
        };
        Ok(parts.map(of_part).collect())
    }
}

impl VerbsDevice {
    /// Opens a part's devices and starts its tasks on the current reactor.
    pub(crate) fn start(part: VerbsPart) -> Result<Rc<Self>, VerbsError> {
        let VerbsPart {
            addresses,
            source,
            config,
            parts,
            inbox,
        } = part;
        let (libraries, channel) = open_channel()?;
        // Held until the adapters hold their devices.
        let devices = Devices::open(libraries);
        let mut contexts = Vec::new();
        for &address in &addresses {
            if address.is_unspecified() {
                contexts.extend(devices.iter().filter(Context::is_infiniband));
            } else {
                contexts.push(bound_context(libraries, &channel, address)?);
            }
        }
        let read_budget = Budget::new(config.read_bytes_in_flight.max(4096));
        let shared = Rc::new(Shared {
            libraries,
            channel,
            config,
            parts,
            listeners: RefCell::default(),
            addresses,
            source,
            roles: RefCell::default(),
            adapters: RefCell::default(),
            marked: RefCell::default(),
            counters: RefCell::default(),
            idle: RefCell::default(),
            closed: Cell::new(false),
            driver: RefCell::default(),
            tasks: RefCell::default(),
            read_budget,
        });
        let tasks = [
            reactor::spawn(events::drive(shared.clone())),
            reactor::spawn(events::manage(shared.clone())),
            reactor::spawn(events::hear(shared.clone(), inbox)),
        ];
        shared.tasks.borrow_mut().extend(tasks);
        let device = Rc::new(Self { shared });
        for context in contexts {
            device.shared.adapter(context)?;
        }
        Ok(device)
    }

    pub(crate) fn addresses(&self) -> Vec<IpAddr> {
        self.shared.addresses.clone()
    }

    /// The names of the kernel devices in use.
    pub(crate) fn names(&self) -> Vec<String> {
        let adapters = self.shared.adapters.borrow();
        adapters
            .iter()
            .map(|a| a.domain.name().to_owned())
            .collect()
    }

    /// Whether requests to an address arrive here.
    pub(crate) fn serves(&self, address: IpAddr) -> bool {
        let of_family = |own: &IpAddr| own.is_unspecified() && own.is_ipv4() == address.is_ipv4();
        self.shared.addresses.contains(&address)
            || (self.shared.addresses.iter().any(of_family) && owner(address).is_ok())
    }

    pub(crate) fn counters(&self) -> VerbsCounters {
        self.shared.counters.borrow().clone()
    }

    /// Disconnects everything and waits a bounded time for the peers to agree.
    pub(crate) async fn shutdown(&self) {
        let roles: Vec<Role> = self.shared.roles.borrow().values().cloned().collect();
        for role in roles {
            if let Role::Connection(connection) = role {
                connection.begin_close(CloseReason::Local);
            }
        }
        let idle = poll_fn(|cx| {
            if self.shared.is_idle() {
                return Poll::Ready(());
            }
            self.shared.idle.borrow_mut().register(cx);
            Poll::Pending
        });
        let limit = self.shared.config.close_timeout * 2;
        let _ = reactor::timeout(limit, idle).await;
    }
}

impl Drop for VerbsDevice {
    fn drop(&mut self) {
        for task in self.shared.tasks.take() {
            task.abort();
        }
        for adapter in self.shared.adapters.borrow().iter() {
            adapter.stop();
        }
    }
}

impl Shared {
    /// The kernel device of a context, opened if it is new: the reactor's buffer pool is registered
    /// with it.
    pub(super) fn adapter(self: &Rc<Self>, context: Context) -> Result<Rc<Adapter>, VerbsError> {
        if let Some(adapter) = self.adapter_of(context.key()) {
            return Ok(adapter);
        }
        if !context.is_infiniband() {
            let device = context.name();
            let kind = "neither an InfiniBand nor a RoCE device";
            return Err(VerbsError::Unsupported { device, kind });
        }
        let config = &self.config;
        let domain = Domain::open(context, config.completion_entries, config.staging_bytes)?;
        if let Some(here) = reactor::current() {
            domain.register_pool(here.buffers())?;
        }
        let (slots, slot_bytes) = (config.shared_receives, config.shared_receive_bytes);
        let receives = SharedReceives::create(&domain, slots, slot_bytes)?;
        let (limits, shares) = (domain.limits(), receives.is_some());
        tracing::info!(
            device = domain.name(),
            ?limits,
            shares,
            "RDMA device opened"
        );
        let adapter = Rc::new(Adapter {
            domain,
            receives,
            backlog: RefCell::default(),
            connections: RefCell::default(),
            tasks: RefCell::default(),
        });
        self.adapters.borrow_mut().push(adapter.clone());
        let tasks = [
            reactor::spawn(events::complete(self.clone(), adapter.clone())),
            reactor::spawn(events::watch(self.clone(), adapter.clone())),
        ];
        adapter.tasks.borrow_mut().extend(tasks);
        Ok(adapter)
    }

    /// This part's side of a kernel device, if it is open.
    pub(super) fn adapter_of(&self, device: DeviceKey) -> Option<Rc<Adapter>> {
        let adapters = self.adapters.borrow();
        let mut known = adapters.iter();
        let its = |adapter: &&Rc<Adapter>| adapter.domain.context().key() == device;
        known.find(its).cloned()
    }

    /// Whether this part has a kernel device open.
    pub(super) fn is_open(&self, context: &Context) -> bool {
        self.adapter_of(context.key()).is_some()
    }

    /// Closes a kernel device again that was opened for a connection that did not come about.
    pub(super) fn close_unused(&self, context: Option<Context>) {
        let adapter = context.and_then(|context| self.adapter_of(context.key()));
        if let Some(adapter) = adapter.filter(|a| a.connections.borrow().is_empty()) {
            self.let_go(&adapter, "its first connection did not come about");
        }
    }

    /// Makes the driver look after a connection soon.
    pub(super) fn mark(&self, connection: &Rc<Connection>) {
        if connection.marked.replace(true) || self.closed.get() {
            return;
        }
        self.marked.borrow_mut().push(connection.clone());
        if let Some(waker) = self.driver.take() {
            waker.wake();
        }
    }

    pub(super) fn set_driver_waker(&self, waker: &Waker) {
        let mut driver = self.driver.borrow_mut();
        match &mut *driver {
            Some(current) => current.clone_from(waker),
            None => *driver = Some(waker.clone()),
        }
    }

    /// Lets events find a connection.
    pub(super) fn know(&self, connection: &Rc<Connection>) {
        let role = Role::Connection(connection.clone());
        self.roles.borrow_mut().insert(connection.key(), role);
    }

    /// Takes a closed connection out of the tables. If the peer has not agreed yet, its identifier
    /// stays for a while, so that the connection manager can repeat itself.
    pub(super) fn forget(
        self: &Rc<Self>,
        connection: &Connection,
        id: Option<Rc<Id>>,
        goodbye: bool,
    ) {
        let key = connection.key();
        self.roles.borrow_mut().remove(&key);
        if let Some(id) = id.filter(|_| goodbye && !self.closed.get()) {
            self.roles.borrow_mut().insert(key, Role::Goodbye(id));
            let weak = Rc::downgrade(self);
            let limit = self.config.close_timeout;
            reactor::spawn(async move {
                reactor::sleep(limit).await;
                if let Some(shared) = weak.upgrade() {
                    shared.end_goodbye(key);
                }
            })
            .detach();
        }
        self.wake_if_idle();
    }

    /// Lets go of an identifier whose peer has agreed, or does not answer.
    pub(super) fn end_goodbye(&self, key: IdKey) {
        let is_goodbye = matches!(self.roles.borrow().get(&key), Some(Role::Goodbye(_)));
        if is_goodbye {
            let role = self.roles.borrow_mut().remove(&key);
            drop(role);
        }
        self.wake_if_idle();
    }

    /// Events of a listener's identifier are nobody's any more.
    pub(super) fn forget_id(&self, key: IdKey) {
        self.roles.borrow_mut().remove(&key);
    }

    /// Takes a listener out of the tables.
    pub(super) fn forget_listener(&self, listener: &Rc<ListenerState>) {
        let (index, listening) = (self.parts.index(), &self.parts.listening);
        listening.end(index, listener.address(), listener.port());
        let mut listeners = self.listeners.borrow_mut();
        listeners.retain(|known| !Rc::ptr_eq(known, listener));
    }

    fn is_idle(&self) -> bool {
        let is_listener = |role: &Role| matches!(role, Role::Listener(_));
        self.roles.borrow().values().all(is_listener)
    }

    fn wake_if_idle(&self) {
        if self.is_idle() {
            self.idle.borrow_mut().wake_all();
        }
    }

    /// Lets a listener listen on an address.
    pub(super) fn listen_on(
        &self,
        listener: &Rc<ListenerState>,
        address: IpAddr,
    ) -> Result<(), ListenError> {
        let port = listener.port();
        let refused = |reason: io::Error| match reason.kind() {
            io::ErrorKind::AddrInUse => ListenError::InUse(port),
            _ => ListenError::Refused {
                port,
                reason: reason.to_string(),
            },
        };
        let id = Id::create(&self.channel).map_err(refused)?;
        id.bind(SocketAddr::new(address, port)).map_err(refused)?;
        id.listen(listener.backlog()).map_err(refused)?;
        let role = Role::Listener(listener.clone());
        self.roles.borrow_mut().insert(id.key(), role);
        listener.add(address, id);
        Ok(())
    }
}

impl RdmaDevice for VerbsDevice {
    fn listen(
        &self,
        address: Option<IpAddr>,
        port: u16,
        backlog: usize,
    ) -> Result<Box<dyn RdmaListener>, ListenError> {
        let shared = &self.shared;
        let same = |known: &Rc<ListenerState>| (known.address(), known.port()) == (address, port);
        if shared.listeners.borrow().iter().any(same) {
            return Err(ListenError::InUse(port));
        }
        let state = ListenerState::new(address, port, backlog);
        shared.listeners.borrow_mut().push(state.clone());
        // From here on an error takes back what was done.
        let listener = Box::new(VerbsListener::new(shared, state.clone()));
        let parts = &shared.parts;
        parts.listening.begin(parts.index(), address, port);
        if parts.index() > 0 {
            // The first part deals requests out.
            return Ok(listener);
        }
        let own = &shared.addresses;
        let wildcard = own.iter().any(IpAddr::is_unspecified);
        match address {
            Some(address) => shared.listen_on(&state, address)?,
            // One listener on the IPv6 wildcard takes both families, where there is IPv6.
            None if wildcard => match shared.listen_on(&state, Ipv6Addr::UNSPECIFIED.into()) {
                Err(ListenError::Refused { .. }) => {
                    shared.listen_on(&state, Ipv4Addr::UNSPECIFIED.into())?;
                }
                other => other?,
            },
            None => {
                for &address in own {
                    shared.listen_on(&state, address)?;
                }
            }
        }
        Ok(listener)
    }

    fn connect(
        &self,
        peer: SocketAddr,
        params: ConnectionParams,
        handler: Rc<dyn QueuePairHandler>,
    ) -> Result<Rc<dyn QueuePair>, SetupError> {
        let unreachable = |reason: String| SetupError::Unreachable { peer, reason };
        let id = Id::create(&self.shared.channel)
            .map_err(|error| SetupError::NoResources(error.to_string()))?;
        let connection = Connection::start(&self.shared, id, peer, params, handler)
            .map_err(|error| unreachable(error.to_string()))?;
        self.shared.know(&connection);
        Ok(Rc::new(VerbsQueuePair(connection)))
    }

    fn read_budget(&self) -> (Budget, usize) {
        let budget = self.shared.read_budget.clone();
        let piece = self.shared.config.read_bytes_max.min(budget.total());
        (budget, piece)
    }
}
