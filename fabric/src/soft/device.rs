//! A soft device: opening its sockets, its tables, and the traits that queue pairs use.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::poll_fn;
use std::hash::BuildHasherDefault;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use roce::endpoint::{ConnectParams, Endpoint, EndpointError, Part, Path, PathMtu, QpId};
use roce::memory::RandomKeyHasher;

use super::connection::{ListenerState, SoftListener, SoftQueuePair};
use super::driver::{self, Warnings};
use super::guard::{self, AddressGuard};
use super::parts::{self, Inbox, Parts};
use super::socket::{self, Links, ReceiveBatch, Socket};
use super::socket_send::SendBatch;
use super::strict::{self, Found, Headers};
use super::{SoftConfig, SoftCounters};
use crate::address::{Addresses, ROCE_PORT};
use crate::error::{DeviceError, ListenError, SetupError};
use crate::memory::{Budget, FabricMemory};
use crate::provider::{ConnectionParams, QueuePair, QueuePairHandler, RdmaDevice, RdmaListener};
use crate::waiters::Waiters;

/// The RDMA CM's TCP port space in a service identifier; the port is in the lower 16 bits.
const SERVICE_TCP: u64 = 0x0106_0000;

/// The service identifier of a port.
pub(super) fn service(port: u16) -> u64 {
    SERVICE_TCP | u64::from(port)
}

/// Random loopback addresses tried before giving up.
const LOOPBACK_TRIES: u32 = 16;

/// How long a shutdown waits for peers to agree.
const SHUTDOWN_TIME: Duration = Duration::from_secs(3);

/// A soft device, held by whoever uses it. When the last holder lets go, its tasks end and its
/// sockets close.
pub(crate) struct SoftDevice {
    pub(super) shared: Rc<Shared>,
    tasks: RefCell<Vec<reactor::JoinHandle<()>>>,
}

/// Who is told what becomes of queue pairs; the endpoint draws their numbers at random.
type Handlers = HashMap<QpId, Rc<dyn QueuePairHandler>, BuildHasherDefault<RandomKeyHasher>>;

/// What the device's tasks, queue pairs and listeners share.
pub(super) struct Shared {
    pub(super) endpoint: RefCell<Endpoint<FabricMemory>>,
    pub(super) sockets: Vec<Socket>,
    /// For strict checks: what belongs to each socket, of those of IPv4.
    pub(super) headers: Vec<Option<RefCell<Headers>>>,
    _guards: Arc<Vec<AddressGuard>>,
    pub(super) parts: Parts,
    pub(super) config: SoftConfig,
    pub(super) handlers: RefCell<Handlers>,
    pub(super) listeners: RefCell<HashMap<u16, Vec<Rc<ListenerState>>>>,
    pub(super) sending: RefCell<SendBatch>,
    /// The message of `sending` that a full socket did not take.
    pub(super) stuck: Cell<Option<usize>>,
    /// Work that was posted since packets were sent last: requests and bytes.
    pub(super) posted: Cell<(usize, usize)>,
    pub(super) receiving: RefCell<ReceiveBatch>,
    pub(super) counters: RefCell<SoftCounters>,
    pub(super) links: RefCell<Links>,
    pub(super) warnings: Warnings,
    /// Wakes whoever waits for the last queue pair to go.
    pub(super) idle: RefCell<Waiters>,
    /// Set when the device is gone: its driver has ended.
    pub(super) closed: Cell<bool>,
    driver: RefCell<Option<Waker>>,
    /// Whether the driver has something to do.
    pub(super) due: Cell<bool>,
    read_budget: Budget,
    /// The time when the device last looked at the clock, which it does in every round.
    recently: Cell<Instant>,
}

/// A part of a soft device on its way to its reactor.
pub(crate) struct SoftPart {
    sockets: Vec<Socket>,
    guards: Arc<Vec<AddressGuard>>,
    config: SoftConfig,
    parts: Parts,
    inbox: Inbox,
}

impl SoftPart {
    /// Opens the sockets of a device of `count` parts, of one where the kernel cannot divide packets.
    pub(crate) fn open_all(
        addresses: &Addresses,
        config: &SoftConfig,
        count: usize,
    ) -> Result<Vec<Self>, DeviceError> {
        let count = count.max(1);
        let (mut sockets, guards) = open_sockets(addresses, config, count)?;
        let guards = Arc::new(guards);
        let count = sockets.iter().map(Vec::len).min().unwrap_or(1);
        sockets
            .iter_mut()
            .for_each(|of_address| of_address.truncate(count));
        let mut parts = parts::join(count, &config.endpoint);
        // Of each address the sockets of all parts, in order: the last part takes the last ones.
        parts.reverse();
        let parts = parts.into_iter().map(|(parts, inbox)| Self {
            sockets: sockets.iter_mut().filter_map(Vec::pop).collect(),
            guards: guards.clone(),
            config: config.clone(),
            parts,
            inbox,
        });
        let mut parts: Vec<Self> = parts.collect();
        parts.reverse();
        Ok(parts)
    }

    /// Whether a device could be opened and started: opens all that one part needs, and closes it.
    pub(crate) fn check(addresses: &Addresses, config: &SoftConfig) -> Result<(), DeviceError> {
        for part in Self::open_all(addresses, config, 1)? {
            for socket in &part.sockets {
                open_headers(socket, config, part.parts.part)?;
            }
        }
        Ok(())
    }
}

impl SoftDevice {
    /// Starts a part's tasks on the current reactor.
    pub(crate) fn start(part: SoftPart) -> Result<Rc<Self>, DeviceError> {
        let SoftPart {
            sockets,
            guards,
            config,
            parts,
            inbox,
        } = part;
        let part = parts.part;
        let mut receiving = ReceiveBatch::new();
        for socket in sockets.iter().filter(|_| part.index() == 0) {
            report_probe(socket, strict::probe(socket, &mut receiving));
        }
        let headers = sockets
            .iter()
            .map(|socket| open_headers(socket, &config, part))
            .collect::<Result<_, _>>()?;
        let mut seed = [0; 32];
        fill_random(&mut seed)?;
        let receive_buffer = sockets
            .iter()
            .map(Socket::receive_buffer)
            .min()
            .unwrap_or(0);
        let in_flight = config
            .read_bytes_in_flight
            .min(receive_buffer / 4)
            .max(4096);
        let endpoint = Endpoint::with_part(config.endpoint.clone(), seed, part);
        let shared = Rc::new(Shared {
            endpoint: RefCell::new(endpoint),
            sockets,
            headers,
            _guards: guards,
            parts,
            config,
            handlers: RefCell::default(),
            listeners: RefCell::default(),
            sending: RefCell::default(),
            stuck: Cell::new(None),
            posted: Cell::default(),
            receiving: RefCell::new(receiving),
            counters: RefCell::default(),
            links: RefCell::default(),
            warnings: Warnings::default(),
            idle: RefCell::default(),
            closed: Cell::new(false),
            driver: RefCell::default(),
            due: Cell::new(false),
            read_budget: Budget::new(in_flight),
            recently: Cell::new(reactor::now()),
        });
        let mut tasks = vec![reactor::spawn(driver::drive(shared.clone()))];
        for index in 0..shared.sockets.len() {
            tasks.push(reactor::spawn(driver::receive(shared.clone(), index)));
        }
        if part.count() > 1 {
            let Inbox { relays, misrouted } = inbox;
            tasks.push(reactor::spawn(driver::take_relays(shared.clone(), relays)));
            tasks.push(reactor::spawn(driver::take_misrouted(
                shared.clone(),
                misrouted,
            )));
        }
        Ok(Rc::new(Self {
            shared,
            tasks: RefCell::new(tasks),
        }))
    }

    pub(crate) fn addresses(&self) -> Vec<IpAddr> {
        self.shared.sockets.iter().map(Socket::address).collect()
    }

    pub(crate) fn counters(&self) -> SoftCounters {
        let mut counters = self.shared.counters.borrow().clone();
        let endpoint = self.shared.endpoint.borrow();
        (counters.queue_pairs, counters.queue_pair_bytes) = endpoint.queue_pairs();
        counters.endpoint = endpoint.counters().clone();
        counters
    }

    /// Disconnects everything and waits a bounded time for the peers to agree.
    pub(crate) async fn shutdown(&self) {
        let now = reactor::now();
        let all: Vec<QpId> = self.shared.handlers.borrow().keys().copied().collect();
        for qp in all {
            self.shared.endpoint.borrow_mut().disconnect(now, qp);
        }
        self.shared.kick();
        let idle = poll_fn(|cx| {
            if self.shared.is_idle() {
                return Poll::Ready(());
            }
            self.shared.idle.borrow_mut().register(cx);
            Poll::Pending
        });
        let _ = reactor::timeout(SHUTDOWN_TIME, idle).await;
        // What was still queued (the answer to a peer's own disconnect) leaves in the next round.
        self.shared.kick();
        reactor::yield_now().await;
    }

    /// The local address to reach a peer from, and the path MTU.
    fn path_to(&self, peer: SocketAddr) -> Result<(Path, PathMtu), SetupError> {
        let unreachable = |reason: String| SetupError::Unreachable { peer, reason };
        let route = socket::route(peer.ip()).map_err(|e| unreachable(e.to_string()))?;
        let of_family = |s: &&Socket| s.address().is_ipv4() == peer.is_ipv4();
        let mut sockets = self.shared.sockets.iter().filter(of_family);
        let socket = sockets
            .clone()
            .find(|s| s.address() == route.local || s.address().is_unspecified())
            .or_else(|| sockets.next())
            .ok_or_else(|| unreachable("the device has no address of that family".into()))?;
        let local = if socket.address().is_unspecified() {
            route.local
        } else {
            socket.address()
        };
        let mtu = PathMtu::for_interface(route.mtu)
            .ok_or_else(|| unreachable(format!("the path's MTU of {} is too small", route.mtu)))?;
        Ok((
            Path {
                local,
                remote: peer.ip(),
            },
            mtu,
        ))
    }
}

impl Drop for SoftDevice {
    fn drop(&mut self) {
        for task in self.tasks.take() {
            task.abort();
        }
    }
}

impl Shared {
    /// Whether no connection is left, nor one of another part that says goodbye through this one.
    pub(super) fn is_idle(&self) -> bool {
        self.handlers.borrow().is_empty() && self.endpoint.borrow().handed_over() == 0
    }

    /// Makes the driver run soon.
    pub(super) fn kick(&self) {
        if !self.due.replace(true)
            && let Some(waker) = self.driver.take()
        {
            waker.wake();
        }
    }

    /// Work of so many bytes was posted: it leaves in the driver's next round, or at once if much is
    /// there.
    pub(super) fn posted(&self, bytes: usize) {
        self.kick();
        let (works, sum) = self.posted.get();
        let (works, sum) = (works + 1, sum.saturating_add(bytes));
        self.posted.set((works, sum));
        if works >= self.config.works_per_round || sum >= self.config.bytes_per_round {
            self.send_gathered();
        }
    }

    /// The time, remembered for [`recently`](Self::recently).
    pub(super) fn look_at_clock(&self) -> Instant {
        let now = reactor::now();
        self.recently.set(now);
        now
    }

    /// The time of this round: for what is done often, and needs no better one.
    pub(super) fn recently(&self) -> Instant {
        self.recently.get()
    }

    pub(super) fn set_driver_waker(&self, waker: &Waker) {
        let mut driver = self.driver.borrow_mut();
        match &mut *driver {
            Some(current) => current.clone_from(waker),
            None => *driver = Some(waker.clone()),
        }
    }
}

impl RdmaDevice for SoftDevice {
    fn listen(
        &self,
        address: Option<IpAddr>,
        port: u16,
        backlog: usize,
    ) -> Result<Box<dyn RdmaListener>, ListenError> {
        let mut listeners = self.shared.listeners.borrow_mut();
        let on_port = listeners.entry(port).or_default();
        if on_port.iter().any(|listener| listener.address == address) {
            return Err(ListenError::InUse(port));
        }
        // Connection management is the first part's.
        if on_port.is_empty() && self.shared.parts.part.index() == 0 {
            let service = service(port);
            self.shared
                .endpoint
                .borrow_mut()
                .listen(service)
                .map_err(|error| ListenError::Refused {
                    port,
                    reason: error.to_string(),
                })?;
        }
        let state = Rc::new(ListenerState::new(address, port, backlog));
        on_port.push(state.clone());
        let parts = &self.shared.parts;
        let part = parts.part.index();
        parts.listening.begin(part, address, port);
        Ok(Box::new(SoftListener::new(self.shared.clone(), state)))
    }

    fn connect(
        &self,
        peer: SocketAddr,
        params: ConnectionParams,
        handler: Rc<dyn QueuePairHandler>,
    ) -> Result<Rc<dyn QueuePair>, SetupError> {
        if self.shared.parts.part.index() > 0 {
            let reason = "connections begin at the first part of a device".into();
            return Err(SetupError::Unreachable { peer, reason });
        }
        let (path, mtu) = self.path_to(peer)?;
        let service = service(peer.port());
        let mut endpoint = self.shared.endpoint.borrow_mut();
        let request = ConnectParams::new(service, params.private_data, mtu);
        let qp = endpoint
            .connect(reactor::now(), path, request)
            .map_err(setup_error)?;
        for memory in params.receives {
            if let Err((error, _)) = endpoint.post_receive(qp, 0, memory) {
                endpoint.destroy(qp);
                return Err(SetupError::NoResources(error.to_string()));
            }
        }
        drop(endpoint);
        self.shared.handlers.borrow_mut().insert(qp, handler);
        self.shared.kick();
        Ok(Rc::new(SoftQueuePair::new(
            self.shared.clone(),
            qp,
            path,
            peer.port(),
            mtu,
        )))
    }

    fn read_budget(&self) -> (Budget, usize) {
        let budget = self.shared.read_budget.clone();
        let piece = self.shared.config.read_bytes_max.min(budget.total());
        (budget, piece)
    }
}

pub(super) fn setup_error(error: EndpointError) -> SetupError {
    match error {
        EndpointError::NoSuchRequest => SetupError::Gone,
        other => SetupError::NoResources(other.to_string()),
    }
}

/// Of each address the sockets of all parts, and the claims on the addresses.
type Opened = (Vec<Vec<Socket>>, Vec<AddressGuard>);

fn open_sockets(
    addresses: &Addresses,
    config: &SoftConfig,
    parts: usize,
) -> Result<Opened, DeviceError> {
    match addresses {
        Addresses::Wildcard => {
            let mut opened = open_all(&[Ipv4Addr::UNSPECIFIED.into()], config, parts)?;
            match open_all(&[Ipv6Addr::UNSPECIFIED.into()], config, parts) {
                Ok((sockets, guards)) => {
                    opened.0.extend(sockets);
                    opened.1.extend(guards);
                }
                // A kernel without IPv6 serves IPv4 alone.
                Err(DeviceError::Io { source, .. })
                    if source.raw_os_error() == Some(libc::EAFNOSUPPORT) => {}
                Err(DeviceError::NoSuchAddress { .. }) => {}
                Err(error) => return Err(error),
            }
            Ok(opened)
        }
        Addresses::Specific(list) => open_all(list, config, parts),
        Addresses::ToReach(peer) => {
            let route = socket::route(*peer).map_err(|source| DeviceError::NoRoute {
                address: *peer,
                source,
            })?;
            if !peer.is_loopback() && route.local != *peer {
                open_all(&[route.local], config, parts)
            } else if peer.is_ipv6() {
                Err(DeviceError::LocalIpv6 { address: *peer })
            } else {
                open_loopback(config, parts)
            }
        }
    }
}

fn open_all(list: &[IpAddr], config: &SoftConfig, parts: usize) -> Result<Opened, DeviceError> {
    let mut opened: Opened = Default::default();
    for &address in list {
        let (sockets, guard) = open_one(address, config, parts)?;
        opened.0.push(sockets);
        opened.1.push(guard);
    }
    Ok(opened)
}

/// Both ends of a connection need UDP port 4791, so a host on the target's own machine needs an
/// address of its own: any of 127.0.0.0/8 is one, without configuration.
fn open_loopback(config: &SoftConfig, parts: usize) -> Result<Opened, DeviceError> {
    let mut tries = 0;
    loop {
        let mut random = [0; 3];
        fill_random(&mut random)?;
        // Not 127.0.x.x, which people use, and no host part of 0 or 255.
        let address = Ipv4Addr::new(127, random[0].max(1), random[1], random[2].clamp(1, 254));
        tries += 1;
        match open_one(address.into(), config, parts) {
            Ok((sockets, guard)) => return Ok((vec![sockets], vec![guard])),
            Err(DeviceError::HeldByOnefold { .. }) if tries < LOOPBACK_TRIES => {}
            Err(error) => return Err(error),
        }
    }
}

fn open_one(
    address: IpAddr,
    config: &SoftConfig,
    parts: usize,
) -> Result<(Vec<Socket>, AddressGuard), DeviceError> {
    if let Some(address) = guard::overlapping(address) {
        return Err(DeviceError::HeldByOnefold {
            address,
            port: ROCE_PORT,
        });
    }
    let guard = AddressGuard::take(address).map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => DeviceError::HeldByOnefold {
            address,
            port: ROCE_PORT,
        },
        _ => DeviceError::Io {
            action: format!("claim {address} for RoCE"),
            source,
        },
    })?;
    let mut sockets = vec![open_socket(address, config)?];
    if parts > 1 {
        let divided = match config.scatter {
            true => Ok(()),
            false => sockets[0].spread(parts),
        };
        match divided {
            Ok(()) => {
                for _ in 1..parts {
                    sockets.push(open_socket(address, config)?);
                }
            }
            Err(error) => tracing::warn!(%address, %error,
                "the kernel cannot divide RoCE packets among sockets: one reactor serves RDMA"),
        }
    }
    Ok((sockets, guard))
}

fn open_socket(address: IpAddr, config: &SoftConfig) -> Result<Socket, DeviceError> {
    let socket = Socket::open(
        address,
        config.receive_buffer_bytes,
        config.send_buffer_bytes,
        config.segmentation_offload,
    );
    socket.map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => DeviceError::PortInUse {
            address,
            port: ROCE_PORT,
        },
        io::ErrorKind::AddrNotAvailable => DeviceError::NoSuchAddress { address },
        _ => {
            let action = format!("open UDP port {ROCE_PORT} on {address}");
            DeviceError::Io { action, source }
        }
    })
}

/// Says what the test of a socket at the start found, where that is worth knowing.
fn report_probe(socket: &Socket, found: io::Result<Found>) {
    let address = socket.address();
    match found {
        Ok(Found::Right) => {}
        Ok(Found::Wrong { ip_id }) => tracing::warn!(%address, ip_id,
            "packets leave this machine with an IP identification that is not 0, which RoCE's ICRC \
             covers: hosts with kernel or hardware RoCE will drop them all. Look for a rule that \
             mangles or translates UDP port 4791 (nft list ruleset), or use another interface"),
        Ok(Found::Nothing) => tracing::debug!(%address,
            "packets to this machine itself do not arrive; their IP identification is not tested"),
        // Without the right to look there is nothing to say: most users do not have it.
        Err(error) => tracing::debug!(%address, %error, "the IP identification is not tested"),
    }
}

/// The raw socket beside a UDP socket, if strict checks are asked for and make a difference.
fn open_headers(
    socket: &Socket,
    config: &SoftConfig,
    part: Part,
) -> Result<Option<RefCell<Headers>>, DeviceError> {
    let IpAddr::V4(address) = socket.address() else {
        return Ok(None);
    };
    if !config.strict_icrc {
        return Ok(None);
    }
    match Headers::open(address, config.receive_buffer_bytes, part) {
        Ok(headers) => Ok(Some(RefCell::new(headers))),
        Err(source) => Err(DeviceError::Io {
            action: format!(
                "check the ICRC in full on {address}: that needs a raw socket and CAP_NET_RAW (run \
                 as root, or setcap cap_net_raw+ep on the program), or switch strict checks off"
            ),
            source,
        }),
    }
}

fn fill_random(bytes: &mut [u8]) -> Result<(), DeviceError> {
    getrandom::fill(bytes).map_err(|error| DeviceError::Io {
        action: "draw random numbers".into(),
        source: io::Error::other(error),
    })
}
