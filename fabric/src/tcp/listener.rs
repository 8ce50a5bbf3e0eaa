//! Where a target receives its hosts' TCP connections.
//!
//! Guarantees: a connection is given out when, and only when, its ICReq was answered; one that takes too
//! long for that, or for anything later that it owes, is closed; connections beyond the bound are closed
//! at once, and take nothing; a connection whose host has not proved who it is, TLS handshakes included, has one of
//! a bounded number of places ([`crate::admission`]); no error of one connection ends the listener.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::future::{Future, poll_fn};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use nvme::tcp::{MAXH2CDATA_MIN, Sender};
use reactor::net::Watch;
use reactor::sync::queue::Receiver;
use reactor::{BufferPool, JoinHandle};

use super::link::{self, Opening, Traffic, count};
use super::shared_ports::{Counted, Membership, Placed, SharedPorts};
use super::socket::Socket;
use super::target::{Slot, TcpTarget};
use super::tls::{TlsKeys, TlsMode};
use super::{LiveBounds, TcpCounters, TcpListenerConfig};
use crate::address::Transport;
use crate::admission::{Entrance, KnownAddresses};
use crate::error::{CloseReason, ListenError, TlsFailure};
use crate::memory::{Budget, Held};
use crate::queue::{Close, Holder, QueueInfo};
use crate::waiters::Waiters;

/// How long to wait when the system has no descriptor or memory for another connection.
const SHORTAGE_PAUSE: Duration = Duration::from_millis(100);
/// Connections taken before other tasks have their turn.
const ACCEPTS_IN_A_ROW: u64 = 16;
/// How often connections are looked at within the shortest time after which they count as stalled.
const STALL_LOOKS: u32 = 4;
/// A pool of which less than this part is free runs short.
const SHORT_OF: usize = 8;

/// Listens for NVMe/TCP connections. Dropping it closes the port; queues that were given out go on.
pub struct TcpListener {
    shared: Rc<Shared>,
    local: SocketAddr,
    socket: Socket,
    accepting: JoinHandle<()>,
}

/// What the connections of a listener share.
pub(super) struct Shared {
    pub(super) config: TcpListenerConfig,
    pub(super) bounds: Cell<LiveBounds>,
    pub(super) buffers: BufferPool,
    /// For queues that have not connected, and admin queues.
    pub(super) admin_buffers: BufferPool,
    pub(super) held: Rc<Held>,
    pub(super) capsule_bytes: Budget,
    pub(super) capsules_refused: Cell<u64>,
    pub(super) tls: Cell<TlsMode>,
    /// None if no connection may speak TLS.
    pub(super) keys: Option<Arc<dyn TlsKeys>>,
    pub(super) tls_handshakes: Cell<u64>,
    pub(super) tls_failures: Cell<u64>,
    pub(super) traffic: Rc<Traffic>,
    entrance: Rc<Entrance<Slot>>,
    accepted: Cell<u64>,
    refused: Cell<u64>,
    handshakes_failed: Cell<u64>,
    stalled: Cell<u64>,
    /// Of the listeners that share the port, while it is open.
    membership: RefCell<Option<Membership>>,
    /// Set when the port is closed.
    closed: Cell<bool>,
    /// Queues that nobody has taken yet.
    ready: RefCell<VecDeque<Holder<TcpTarget>>>,
    waiters: RefCell<Waiters>,
    /// Open connections, by number.
    open: RefCell<HashMap<u64, Open>>,
}

/// A connection, as the look at stalled ones sees it.
struct Open {
    target: Weak<TcpTarget>,
    progress: u64,
    /// Since when it has not moved though its host owes something.
    waiting_since: Option<Instant>,
}

impl TcpListener {
    /// Listens, in clear. Call it on the reactor that shall serve the connections.
    ///
    /// # Errors
    /// If the address is taken or not this machine's, or a bound makes no sense.
    pub fn bind(config: TcpListenerConfig) -> Result<Self, ListenError> {
        Self::listen(
            config,
            None,
            KnownAddresses::default(),
            &SharedPorts::default(),
        )
    }

    /// The same, with the keys of hosts that speak TLS.
    ///
    /// # Errors
    /// As [`bind`](Self::bind).
    pub fn bind_with_keys(
        config: TcpListenerConfig,
        keys: Arc<dyn TlsKeys>,
    ) -> Result<Self, ListenError> {
        let ports = SharedPorts::default();
        Self::listen(config, Some(keys), KnownAddresses::default(), &ports)
    }

    /// The same, with a table of known addresses that it shares with other listeners; and where it shares its port
    /// ([`TcpListenerConfig::reuse_port`]) with those that have the same `ports`, each connection is served by the one
    /// whose reactor has the fewest.
    ///
    /// # Errors
    /// As [`bind`](Self::bind).
    pub fn bind_knowing(
        config: TcpListenerConfig,
        keys: Option<Arc<dyn TlsKeys>>,
        known: KnownAddresses,
        ports: &SharedPorts,
    ) -> Result<Self, ListenError> {
        Self::listen(config, keys, known, ports)
    }

    /// Whether nobody listens at an address, and this machine has it: listens for a moment.
    ///
    /// # Errors
    /// As [`bind`](Self::bind).
    pub fn check(address: SocketAddr) -> Result<(), ListenError> {
        // Not shared: another daemon that shares its port would otherwise be no reason.
        let socket = Socket::listen(address, 1, false, false);
        socket
            .map(drop)
            .map_err(|error| cannot_listen(address, &error))
    }

    fn listen(
        config: TcpListenerConfig,
        keys: Option<Arc<dyn TlsKeys>>,
        known: KnownAddresses,
        ports: &SharedPorts,
    ) -> Result<Self, ListenError> {
        let refused = |reason: String| ListenError::Refused {
            port: config.address.port(),
            reason,
        };
        if config.maxh2cdata < MAXH2CDATA_MIN || !config.maxh2cdata.is_multiple_of(4) {
            let text = "MAXH2CDATA must be a multiple of 4 and at least 4096";
            return Err(refused(text.to_owned()));
        }
        if config.tls != TlsMode::Off && keys.is_none() {
            return Err(refused("TLS needs keys: use bind_with_keys".to_owned()));
        }
        let here =
            reactor::current().ok_or_else(|| refused("a listener needs a reactor".to_owned()))?;
        let listening = || -> io::Result<_> {
            let socket = Socket::listen(
                config.address,
                config.backlog,
                config.reuse_port,
                config.paced,
            )?;
            let watch = Watch::new(socket.descriptor())?;
            Ok((socket.local()?, socket, watch))
        };
        let (local, socket, watch) =
            listening().map_err(|error| cannot_listen(config.address, &error))?;
        let admin_buffers = BufferPool::new(config.admin_bytes)
            .map_err(|error| refused(format!("no memory for admin commands: {error}")))?;
        let shared = Rc::new(Shared {
            config,
            bounds: Cell::new(config.live_bounds()),
            buffers: here.buffers().clone(),
            admin_buffers,
            held: Rc::default(),
            capsule_bytes: Budget::new(config.capsule_bytes_max),
            capsules_refused: Cell::new(0),
            tls: Cell::new(config.tls),
            keys,
            tls_handshakes: Cell::new(0),
            tls_failures: Cell::new(0),
            traffic: Rc::default(),
            // Half of the connections are for hosts that have proved who they are.
            entrance: Rc::new(Entrance::new(
                config.unproven_max.min(config.connections_max / 2),
                known,
            )),
            accepted: Cell::new(0),
            refused: Cell::new(0),
            handshakes_failed: Cell::new(0),
            stalled: Cell::new(0),
            membership: RefCell::default(),
            closed: Cell::new(false),
            ready: RefCell::default(),
            waiters: RefCell::default(),
            open: RefCell::default(),
        });
        if config.reuse_port {
            let (membership, moved) = ports.join(local);
            *shared.membership.borrow_mut() = Some(membership);
            let taking = take_moved(shared.clone(), moved, ports.clone(), local);
            drop(reactor::spawn(taking));
        }
        let accepting = take_connections(shared.clone(), socket.clone(), watch);
        let accepting = reactor::spawn(accepting);
        drop(reactor::spawn(end_stalled(shared.clone())));
        Ok(Self {
            shared,
            local,
            socket,
            accepting,
        })
    }

    /// The next connection whose ICReq was answered; None when the port is closed.
    pub(crate) async fn next_target(&self) -> Option<Holder<TcpTarget>> {
        poll_fn(|cx| {
            if let Some(queue) = self.shared.ready.borrow_mut().pop_front() {
                return Poll::Ready(Some(queue));
            }
            if self.shared.closed.get() {
                return Poll::Ready(None);
            }
            self.shared.waiters.borrow_mut().register(cx);
            Poll::Pending
        })
        .await
    }

    /// Whether hosts speak TLS, from the next connection on. A listener without keys stays in clear.
    pub fn set_tls(&self, mode: TlsMode) {
        if self.shared.keys.is_some() {
            self.shared.tls.set(mode);
        }
    }

    /// Changes the bounds that can be changed while it is open.
    pub fn set_bounds(&self, bounds: LiveBounds) {
        self.shared.bounds.set(bounds);
    }

    /// Where it listens, with the port that the system chose if the configured one was 0.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// What happened so far.
    pub fn counters(&self) -> TcpCounters {
        let shared = &self.shared;
        let traffic = &shared.traffic;
        TcpCounters {
            accepted: shared.accepted.get(),
            open: shared.open.borrow().len() as u64,
            refused: (shared.refused.get()).wrapping_add(shared.entrance.turned_away()),
            handshakes_failed: shared.handshakes_failed.get(),
            tls_handshakes: shared.tls_handshakes.get(),
            tls_failures: shared.tls_failures.get(),
            violations: traffic.violations.get(),
            digest_errors: traffic.digest_errors.get(),
            stalled: shared.stalled.get(),
            capsules_refused: shared.capsules_refused.get(),
            queue_bytes: (shared.capsule_bytes.total() - shared.capsule_bytes.free()) as u64,
            queue_bytes_max: shared.capsule_bytes.total() as u64,
            held_bytes: shared.held_bytes() as u64,
            held_back: shared.held.held_back.get(),
            received_bytes: traffic.received_bytes.get(),
            sent_bytes: traffic.sent_bytes.get(),
            receives: traffic.receives.get(),
            sends: traffic.sends.get(),
        }
    }
}

impl Drop for TcpListener {
    fn drop(&mut self) {
        self.accepting.abort();
        self.socket.stop_listening();
        self.shared.close();
    }
}

impl std::fmt::Debug for TcpListener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TcpListener")
            .field("local", &self.local)
            .finish_non_exhaustive()
    }
}

impl Shared {
    fn close(&self) {
        self.closed.set(true);
        // From here on no other listener moves a connection here.
        drop(self.membership.take());
        let untaken = self.ready.take();
        drop(untaken);
        self.waiters.borrow_mut().wake_all();
    }

    /// Bytes of buffers that wait for hosts.
    fn held_bytes(&self) -> usize {
        let open = self.open.borrow();
        let targets = open.values().filter_map(|open| open.target.upgrade());
        targets.map(|target| target.held_bytes()).sum()
    }

    /// Gives a queue out.
    fn give(&self, queue: Holder<TcpTarget>) {
        if self.closed.get() {
            return;
        }
        self.ready.borrow_mut().push_back(queue);
        self.waiters.borrow_mut().wake_all();
    }
}

/// Takes connections that came in at other listeners of the port. Those that come when this one has closed are moved on.
async fn take_moved(
    shared: Rc<Shared>,
    mut moved: Receiver<Placed>,
    ports: SharedPorts,
    local: SocketAddr,
) {
    while let Some(Placed { socket, counted }) = moved.recv().await {
        match shared.closed.get() {
            false => shared.accepted(socket, Some(counted)),
            true => ports.move_on(local, socket),
        }
    }
}

async fn take_connections(shared: Rc<Shared>, socket: Socket, watch: Watch) {
    let mut in_a_row = 0;
    let failed = loop {
        match socket.accept() {
            Ok(connection) => {
                shared.came_in(connection);
                in_a_row += 1;
                if in_a_row % ACCEPTS_IN_A_ROW == 0 {
                    reactor::yield_now().await;
                }
            }
            Err(error) => match error.raw_os_error() {
                Some(libc::EAGAIN) => {
                    let ready = poll_fn(|cx| watch.poll_ready(cx)).await;
                    if let Err(error) = ready {
                        break error;
                    }
                }
                Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM) => {
                    tracing::warn!(%error, "a connection has to wait; raise the limit (ulimit -n)");
                    reactor::sleep(SHORTAGE_PAUSE).await;
                }
                Some(libc::EBADF | libc::EINVAL | libc::ENOTSOCK) => break error,
                // The connection failed before it was taken (accept(2) lists such errors).
                _ => tracing::debug!(%error, "a connection failed before it was accepted"),
            },
        }
    };
    tracing::error!(error = %failed, "the listener ends");
    shared.close();
}

impl Shared {
    /// A connection came in here: another listener of the port may serve it.
    fn came_in(self: &Rc<Self>, socket: Socket) {
        let placed = match &*self.membership.borrow() {
            None => Some((socket, None)),
            Some(membership) => membership
                .place(socket)
                .map(|Placed { socket, counted }| (socket, Some(counted))),
        };
        if let Some((socket, counted)) = placed {
            self.accepted(socket, counted);
        }
    }

    fn accepted(self: &Rc<Self>, socket: Socket, counted: Option<Counted>) {
        count(&self.accepted, 1);
        if self.open.borrow().len() >= self.config.connections_max {
            count(&self.refused, 1);
            let refused = self.refused.get();
            // A flood must not flood the log too.
            if refused.is_power_of_two() {
                let connections_max = self.config.connections_max;
                tracing::warn!(
                    connections_max,
                    refused,
                    "too many connections: closed at once; `onefold serve --tcp-connections` allows more"
                );
            }
            return;
        }
        let prepare = || -> io::Result<_> {
            let (peer, local) = (socket.peer()?, socket.local()?);
            Ok((peer, local, Watch::new(socket.descriptor())?))
        };
        // A connection that is gone already has no peer.
        let Ok((peer, local, watch)) = prepare() else {
            count(&self.handshakes_failed, 1);
            return;
        };
        let info = QueueInfo {
            peer,
            local,
            qid: None,
            depth: None,
            cntlid: None,
            in_capsule_bytes: self.config.in_capsule_bytes,
            transport: Transport::Tcp,
        };
        let target = Rc::new(TcpTarget::new(info, self.clone()));
        // TCP's own handshake has shown that the address is not forged.
        let admitted = self.entrance.admit(peer.ip(), true, Rc::downgrade(&target));
        let Ok((place, displaced)) = admitted else {
            return;
        };
        target.keep_place(place);
        if let Some(displaced) = displaced.and_then(|target| target.upgrade()) {
            displaced.close(CloseReason::Displaced);
        }
        let number = self.accepted.get();
        let open = Open {
            target: Rc::downgrade(&target),
            progress: 0,
            waiting_since: None,
        };
        self.open.borrow_mut().insert(number, open);
        let shared = self.clone();
        drop(reactor::spawn(async move {
            shared.serve(target, socket, watch).await;
            drop(counted);
            shared.open.borrow_mut().remove(&number);
        }));
    }

    /// Runs a connection to its end; gives its queue out when it is initialized.
    async fn serve(&self, target: Rc<TcpTarget>, socket: Socket, watch: Watch) {
        let opening = match self.tls.get() {
            TlsMode::Off => Opening::Clear,
            TlsMode::Allowed | TlsMode::Required => Opening::Either,
        };
        let connection = link::drive(target.clone(), socket, watch, Sender::Host, opening);
        let mut connection = pin!(connection);
        let initialized = poll_fn(|cx| {
            let over = connection.as_mut().poll(cx).is_ready();
            match (over, target.is_initialized()) {
                (_, true) => Poll::Ready(true),
                (true, false) => Poll::Ready(false),
                (false, false) => Poll::Pending,
            }
        });
        match reactor::timeout(self.bounds.get().handshake_timeout, initialized).await {
            Ok(true) if target.submissions().life.is_over() => {}
            Ok(true) => {
                self.give(Holder::from(target));
                connection.await;
            }
            Ok(false) => count(&self.handshakes_failed, 1),
            Err(_) => {
                count(&self.handshakes_failed, 1);
                if target.is_handshaking() {
                    target.close(CloseReason::Tls(TlsFailure::Stalled));
                } else {
                    let peer = target.submissions().info.get().peer;
                    crate::log_of_peer!(warn, "no ICReq", peer.ip(), %peer, "a connection without an ICReq: closed");
                    target.close(CloseReason::Stalled);
                }
                connection.await;
            }
        }
    }
}

/// Closes connections on which nothing moves though their hosts owe something; also after the port is
/// closed, as long as there are any.
async fn end_stalled(shared: Rc<Shared>) {
    while !(shared.closed.get() && shared.open.borrow().is_empty()) {
        let LiveBounds {
            stall_timeout,
            stall_timeout_short,
            ..
        } = shared.bounds.get();
        let pause = stall_timeout.min(stall_timeout_short) / STALL_LOOKS;
        reactor::sleep(pause).await;
        let now = reactor::now();
        let short = [&shared.buffers, &shared.admin_buffers].map(runs_short);
        let mut stalled = Vec::new();
        for open in shared.open.borrow_mut().values_mut() {
            let Some(target) = open.target.upgrade() else {
                continue;
            };
            // A host that sends a byte now and then does not get on either.
            let progress = target.progress() / link::PDU_PROGRESS;
            if progress != open.progress || !target.is_waiting() {
                open.progress = progress;
                open.waiting_since = None;
                continue;
            }
            let since = *open.waiting_since.get_or_insert(now);
            let needed = short[usize::from(std::ptr::eq(target.pool(), &shared.admin_buffers))]
                && target.held_bytes() > 0;
            let patience = match needed {
                true => stall_timeout_short.min(stall_timeout),
                false => stall_timeout,
            };
            if now.saturating_duration_since(since) >= patience {
                stalled.push(target);
            }
        }
        for target in stalled {
            let info = target.submissions().info.get();
            crate::log_of_peer!(warn, "stalled", info.peer.ip(), peer = %info.peer, qid = info.qid, "the host sent or read nothing for --stall-timeout: connection closed");
            count(&shared.stalled, 1);
            target.close(CloseReason::Stalled);
        }
    }
}

/// Why a socket cannot listen, and what to do about it.
fn cannot_listen(address: SocketAddr, error: &io::Error) -> ListenError {
    let reason = match error.kind() {
        io::ErrorKind::AddrInUse => return ListenError::Taken { address },
        io::ErrorKind::AddrNotAvailable => format!(
            "this machine has no address {}; use one that `ip address` shows",
            address.ip()
        ),
        io::ErrorKind::InvalidInput if is_link_local(address.ip()) => format!(
            "{} is an address of one link alone, and which one cannot be said here; use [::] or another address",
            address.ip()
        ),
        _ => error.to_string(),
    };
    ListenError::Refused {
        port: address.port(),
        reason,
    }
}

/// Whether an address is one of a single link, which it does not name.
fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

/// Whether others may have to wait for memory.
fn runs_short(pool: &BufferPool) -> bool {
    let stats = pool.stats();
    stats.waiting > 0 || stats.free_bytes < stats.total_bytes / SHORT_OF
}
