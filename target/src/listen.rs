//! Where hosts come in: the listeners of every data reactor.
//!
//! An RDMA device has a part on each reactor, and deals connections out to them. TCP has a listener of the
//! same port on each reactor; each connection is served by the reactor with the fewest. A queue stays there,
//! and shares nothing with those of other reactors but the target and the engine.
//!
//! Guarantees:
//! - A port that another program has is an error that says so, on a shared port too.
//! - Without addresses to choose from, a machine that lacks one family of addresses serves the other.
//! - When the target stops, no connection is taken any more, and every listener's work ends.

mod everywhere;
mod figures;
mod service;

use std::cell::Cell;
use std::future::ready;
use std::net::IpAddr;
use std::rc::Rc;

use fabric::{
    Device, DeviceConfig, DeviceError, DevicePart, KnownAddresses, ListenError, Listener,
    ListenerConfig, LiveBounds, Provider, QueueLimits, Scheme, SharedPorts, TargetQueue,
    TcpListener, TcpListenerConfig, TlsMode, Transport, TransportAddress,
};
use futures_util::future::{Either, select};
use subsystem::errors::Failure;
use subsystem::figures::{NetworkFigures, Report, TransportFigures};
use subsystem::limits::Limits;
use tokio::sync::{Notify, mpsc, oneshot, watch};

pub(crate) use everywhere::{Everywhere, listen_everywhere};
use figures::{add_tcp, rdma_figures, tcp_figures};
pub(crate) use service::Service;

use crate::lingering::outlast;

/// RDMA connections that may wait for an answer.
const RDMA_BACKLOG: usize = 1024;

/// The schemes whose addresses RDMA devices serve.
const RDMA_SCHEMES: [Scheme; 3] = [Scheme::Rdma, Scheme::RdmaVerbs, Scheme::RdmaSoft];

/// Where to listen.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) addresses: Vec<TransportAddress>,
    /// These are all addresses of the machine: what it lacks is left out.
    pub(crate) by_default: bool,
    /// Soft RoCE checks all 32 bits of every packet's ICRC ([`fabric::SoftConfig::strict_icrc`]).
    pub(crate) strict_icrc: bool,
    /// TCP connections are paced if the system does that ([`TcpListenerConfig::paced`]).
    pub(crate) tcp_pacing: bool,
    /// Whether hosts come by TLS to those that are TCP's.
    pub(crate) tls: TlsMode,
    /// Listeners are announced on the local network.
    pub(crate) mdns: bool,
    /// The TCP listeners of all reactors, among which connections are divided.
    pub(crate) ports: SharedPorts,
}

impl Wanted {
    /// As told, or RDMA and TCP on every address of both families.
    pub(crate) fn new(told: &[TransportAddress], strict_icrc: bool, tcp_pacing: bool) -> Self {
        if !told.is_empty() {
            return Self {
                addresses: told.to_vec(),
                by_default: false,
                strict_icrc,
                tcp_pacing,
                tls: TlsMode::Off,
                mdns: false,
                ports: SharedPorts::default(),
            };
        }
        let every = [IpAddr::from([0; 4]), IpAddr::from([0; 16])];
        let of = |scheme| {
            every.map(|host| TransportAddress {
                scheme,
                host,
                port: fabric::NVME_PORT,
            })
        };
        Self {
            addresses: [of(Scheme::Rdma), of(Scheme::Tcp)].concat(),
            by_default: true,
            strict_icrc,
            tcp_pacing,
            tls: TlsMode::Off,
            mdns: false,
            ports: SharedPorts::default(),
        }
    }

    pub(crate) fn of(&self, transport: Transport) -> impl Iterator<Item = &TransportAddress> {
        self.addresses
            .iter()
            .filter(move |address| address.scheme.transport() == transport)
    }

    /// Whether the machine may lack that address: one without IPv6 still serves IPv4.
    fn may_lack(&self, address: &TransportAddress) -> bool {
        self.by_default && address.host.is_ipv6() && !has_ipv6()
    }

    /// What the other reactors listen on too, once the first one has bound these.
    pub(crate) fn shared(&self, bound: &[TransportAddress]) -> Self {
        let is_tcp = |address: &&TransportAddress| address.scheme.transport() == Transport::Tcp;
        Self {
            addresses: bound.iter().filter(is_tcp).copied().collect(),
            by_default: false,
            ..self.clone()
        }
    }
}

/// A reactor's part of an RDMA device that the first one opened, and where it listens.
#[derive(Debug)]
pub(crate) struct SharedDevice {
    scheme: Scheme,
    part: DevicePart,
    addresses: Vec<TransportAddress>,
}

/// What the first reactor found: the addresses that are bound, and for each other reactor its parts of
/// the RDMA devices.
#[derive(Debug, Default)]
pub(crate) struct Ready {
    pub(crate) addresses: Vec<TransportAddress>,
    pub(crate) others: Vec<Vec<SharedDevice>>,
}

/// Those of the bounds that can be changed while listeners are open.
pub(crate) fn live_bounds(limits: &Limits) -> LiveBounds {
    LiveBounds {
        handshake_timeout: limits.handshake_timeout,
        stall_timeout: limits.stall_timeout,
        stall_timeout_short: limits.stall_timeout_short,
        queue_share: limits.queue_share,
        host_share: limits.host_share,
    }
}

/// What is bound on one reactor.
struct Bound {
    /// For queues that come; listeners have them too.
    bounds: Rc<Cell<LiveBounds>>,
    /// Each with what it was opened for.
    devices: Vec<(Scheme, Device)>,
    rdma: Vec<Open<Listener>>,
    tcp: Vec<Open<TcpListener>>,
    /// What listeners saw that are closed.
    closed: Vec<TransportFigures>,
    /// What the TCP listeners among them sent and received.
    closed_network: NetworkFigures,
}

/// A listener that takes connections, or is about to.
struct Open<L> {
    /// What it stands for; over RDMA one listener can serve both families.
    addresses: Vec<TransportAddress>,
    listener: Rc<L>,
    /// Whether its work has begun.
    accepting: bool,
    close: watch::Sender<bool>,
}

impl<L> Open<L> {
    fn new(address: TransportAddress, listener: L) -> Self {
        Self {
            addresses: vec![address],
            listener: Rc::new(listener),
            accepting: false,
            close: watch::Sender::new(false),
        }
    }
}

/// What a reactor that listens is asked.
#[derive(Debug)]
pub(crate) enum Order {
    /// What its listeners saw: a few words with those who count, instead of counters that several
    /// threads write.
    Report(oneshot::Sender<Report>),
    /// To listen at more addresses, with its parts of devices that the first reactor opened for that.
    Add(
        Wanted,
        Vec<SharedDevice>,
        oneshot::Sender<Result<Ready, Failure>>,
    ),
    /// To ask for TLS there, or not, from the next connection on.
    SetTls(TransportAddress, TlsMode, oneshot::Sender<()>),
    /// To hold hosts to other bounds.
    SetBounds(LiveBounds, oneshot::Sender<()>),
    /// To listen there no longer. Queues that came in there go on.
    Remove(TransportAddress, oneshot::Sender<()>),
}

/// A reactor's part in listening.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    /// Which of the reactors; the first one finds out whether ports are free.
    pub(crate) index: usize,
    /// How many reactors share the ports.
    pub(crate) count: usize,
}

/// Listens, tells what is bound, and serves queues until the service stops. Runs on a data reactor.
pub(crate) async fn listen<S: Service>(
    service: S,
    wanted: Wanted,
    part: Part,
    shared: Vec<SharedDevice>,
    ready: oneshot::Sender<Result<Ready, Failure>>,
    orders: mpsc::Receiver<Order>,
) {
    let mut bound = Bound::new(live_bounds(service.limits()));
    let found = bound.bind_all(&wanted, part, shared, &service);
    let failed = found.is_err();
    if ready.send(found).is_err() || failed {
        return;
    }
    let lost = Rc::new(Notify::new());
    bound.accept(&service, &lost);
    {
        let obeying = obey(&service, &mut bound, part, orders, &lost);
        let (stopped, lost) = (service.stopped(), lost.notified());
        futures_util::pin_mut!(obeying, stopped, lost);
        select(obeying, select(stopped, lost)).await;
    }
    service.drained().await;
    for (_, device) in &bound.devices {
        device.shutdown().await;
        let (soft, verbs) = (device.counters(), device.verbs_counters());
        tracing::debug!(counters = ?soft, ?verbs, "the network device closed its connections");
        // Whoever looks into a connection that did not come about finds here whether packets were lost.
        if soft.icrc_errors + soft.send_errors > 0 {
            tracing::info!(
                received = soft.packets_received,
                wrong_checksum = soft.icrc_errors,
                of_connection_management = soft.management_icrc_errors,
                not_sent = soft.send_errors,
                "soft RoCE lost packets since the start"
            );
        }
    }
}

/// Does what it is asked for as long as the reactor listens.
async fn obey<S: Service>(
    service: &S,
    bound: &mut Bound,
    part: Part,
    mut orders: mpsc::Receiver<Order>,
    lost: &Rc<Notify>,
) {
    while let Some(order) = orders.recv().await {
        // Who asked may have lost patience.
        match order {
            Order::Report(answer) => {
                let _ = answer.send(bound.report(service));
            }
            Order::Add(wanted, shared, answer) => {
                let found = bound.bind_all(&wanted, part, shared, service);
                bound.accept(service, lost);
                let _ = answer.send(found);
            }
            Order::SetTls(address, mode, answer) => {
                bound.set_tls(address, mode);
                let _ = answer.send(());
            }
            Order::SetBounds(bounds, answer) => {
                bound.set_bounds(bounds);
                let _ = answer.send(());
            }
            Order::Remove(address, answer) => {
                bound.remove(address);
                let _ = answer.send(());
            }
        }
    }
    std::future::pending().await
}

impl Bound {
    fn new(bounds: LiveBounds) -> Self {
        Self {
            bounds: Rc::new(Cell::new(bounds)),
            devices: Vec::new(),
            rdma: Vec::new(),
            tcp: Vec::new(),
            closed: Vec::new(),
            closed_network: NetworkFigures::default(),
        }
    }

    fn set_bounds(&self, bounds: LiveBounds) {
        self.bounds.set(bounds);
        self.tcp
            .iter()
            .for_each(|open| open.listener.set_bounds(bounds));
    }

    /// Lets the listeners take connections that do not yet.
    fn accept<S: Service>(&mut self, service: &S, lost: &Rc<Notify>) {
        for open in self.rdma.iter_mut().filter(|open| !open.accepting) {
            open.accepting = true;
            let (service, listener) = (service.clone(), open.listener.clone());
            let (close, lost) = (open.close.subscribe(), lost.clone());
            let bounds = self.bounds.clone();
            drop(reactor::spawn(async move {
                let accepting = accept_rdma(service.clone(), listener, bounds);
                until_closed(&service, close, accepting, &lost).await;
            }));
        }
        for open in self.tcp.iter_mut().filter(|open| !open.accepting) {
            open.accepting = true;
            let (service, listener) = (service.clone(), open.listener.clone());
            let (close, lost) = (open.close.subscribe(), lost.clone());
            drop(reactor::spawn(async move {
                let accepting = accept_tcp(service.clone(), listener);
                until_closed(&service, close, accepting, &lost).await;
            }));
        }
    }

    /// Listens at an address no longer.
    fn remove(&mut self, address: TransportAddress) {
        let mut closed = close_at(&mut self.rdma, address, rdma_figures);
        let mut network = self.closed_network;
        closed.extend(close_at(&mut self.tcp, address, |listener| {
            add_tcp(&mut network, listener);
            tcp_figures(listener)
        }));
        self.closed_network = network;
        for mut figures in closed {
            // What its queues hold is theirs; what has happened stays counted.
            (figures.queue_bytes, figures.queue_bytes_max) = (0, 0);
            figures.held_bytes = 0;
            figures.transport = address.scheme.transport().to_string();
            self.closed.push(figures);
        }
        // One sum for each transport is enough.
        let mut sums: Vec<TransportFigures> = Vec::new();
        for figures in self.closed.drain(..) {
            match sums.iter_mut().find(|s| s.transport == figures.transport) {
                Some(sum) => sum.add(&figures),
                None => sums.push(figures),
            }
        }
        self.closed = sums;
    }

    fn set_tls(&self, address: TransportAddress, mode: TlsMode) {
        let mut here = self.tcp.iter();
        if let Some(open) = here.find(|open| open.addresses.contains(&address)) {
            open.listener.set_tls(mode);
        }
    }
}

/// Takes an address from the listeners; one that stands for no other closes. Gives what those saw.
fn close_at<L>(
    all: &mut Vec<Open<L>>,
    address: TransportAddress,
    mut figures: impl FnMut(&L) -> TransportFigures,
) -> Vec<TransportFigures> {
    let mut seen = Vec::new();
    all.retain_mut(|open| {
        open.addresses.retain(|served| *served != address);
        let stays = !open.addresses.is_empty();
        if !stays {
            seen.push(figures(&open.listener));
            open.close.send_replace(true);
        }
        stays
    });
    seen
}

impl Bound {
    /// Listens at the addresses that are wanted, beside those that are there; all of them or none.
    fn bind_all<S: Service>(
        &mut self,
        wanted: &Wanted,
        part: Part,
        shared: Vec<SharedDevice>,
        service: &S,
    ) -> Result<Ready, Failure> {
        let mut found = Ready {
            addresses: Vec::new(),
            others: (1..part.count).map(|_| Vec::new()).collect(),
        };
        let bound = self.try_bind_all(wanted, part, shared, service, &mut found);
        if let Err(failure) = bound {
            found.addresses.iter().for_each(|a| self.remove(*a));
            return Err(failure);
        }
        Ok(found)
    }

    fn try_bind_all<S: Service>(
        &mut self,
        wanted: &Wanted,
        part: Part,
        shared: Vec<SharedDevice>,
        service: &S,
        found: &mut Ready,
    ) -> Result<(), Failure> {
        let limits = service.limits();
        let at = At {
            part,
            limits,
            known: service.known_addresses(),
        };
        for SharedDevice {
            scheme,
            part: device,
            addresses,
        } in shared
        {
            let device = device
                .start()
                .map_err(|e| Failure::unavailable(e.to_string()))?;
            if let Some(device) = device {
                self.devices.push((scheme, device.clone()));
                listen_rdma(device, &addresses, at, self, found)?;
            }
        }
        for scheme in RDMA_SCHEMES {
            bind_rdma(wanted, scheme, at, self, found)?;
        }
        bind_tcp(wanted, part, service, self, found)?;
        if found.addresses.is_empty() && part.index == 0 && wanted.by_default {
            return Err(Failure::unavailable(
                "this machine has no address to serve: set one up, or name it with --listen",
            ));
        }
        Ok(())
    }

    /// The device that was opened for the same scheme and serves these addresses.
    fn device_for(&self, scheme: Scheme, hosts: &[IpAddr]) -> Option<Device> {
        let serves = |device: &Device, host: &IpAddr| {
            device
                .addresses()
                .iter()
                .any(|has| has == host || (has.is_unspecified() && has.is_ipv4() == host.is_ipv4()))
        };
        self.devices
            .iter()
            .find(|(of, device)| *of == scheme && hosts.iter().all(|host| serves(device, host)))
            .map(|(_, device)| device.clone())
    }
}

/// What RDMA listeners of a reactor are made with.
#[derive(Clone, Copy)]
struct At<'a> {
    part: Part,
    limits: &'a Limits,
    known: &'a KnownAddresses,
}

/// Opens a device for the addresses of one scheme, if there are any, and listens on them.
fn bind_rdma(
    wanted: &Wanted,
    scheme: Scheme,
    at: At<'_>,
    bound: &mut Bound,
    found: &mut Ready,
) -> Result<(), Failure> {
    let At { part, limits, .. } = at;
    // Where this reactor listens already with its part of a device that the first one opened, it is done.
    let asked: Vec<TransportAddress> = wanted
        .addresses
        .iter()
        .filter(|address| address.scheme == scheme && !found.addresses.contains(address))
        .copied()
        .collect();
    let mut hosts: Vec<IpAddr> = asked.iter().map(|address| address.host).collect();
    if hosts.is_empty() {
        return Ok(());
    }
    hosts.sort_unstable();
    hosts.dedup();
    if let Some(device) = bound.device_for(scheme, &hosts) {
        return listen_rdma(device, &asked, at, bound, found);
    }
    if part.index > 0 {
        // Its part of the device did not start: the first reactor serves these hosts.
        return Ok(());
    }
    let mut config = device_config(wanted, scheme, hosts);
    config.verbs.shared_receives = limits.rdma_shared_receives;
    let (device, parts) =
        Device::open_parts(config, part.count).map_err(|e| Failure::unavailable(e.to_string()))?;
    let families = device.addresses();
    let has_family = |host: IpAddr| families.iter().any(|has| has.is_ipv4() == host.is_ipv4());
    let addresses: Vec<_> = asked.into_iter().filter(|a| has_family(a.host)).collect();
    for (other, part) in found.others.iter_mut().zip(parts) {
        other.push(SharedDevice {
            scheme,
            part,
            addresses: addresses.clone(),
        });
    }
    bound.devices.push((scheme, device.clone()));
    listen_rdma(device, &addresses, at, bound, found)
}

/// The device of one scheme for these addresses.
fn device_config(wanted: &Wanted, scheme: Scheme, hosts: Vec<IpAddr>) -> DeviceConfig {
    let config = match wanted.by_default {
        true => DeviceConfig::wildcard(),
        false => DeviceConfig::on(hosts),
    };
    let mut config = config.provided_by(match scheme {
        Scheme::RdmaVerbs => Provider::Verbs,
        Scheme::RdmaSoft => Provider::Soft,
        Scheme::Rdma | Scheme::Tcp => Provider::Auto,
    });
    config.soft.strict_icrc = wanted.strict_icrc;
    config
}

/// Whether listeners can be opened at all the addresses that are wanted: opens what can be opened without a pool, and
/// closes it. A port that is taken may be let go of soon ([`crate::lingering`]).
///
/// # Errors
/// Names the address, and what to do about it.
pub(crate) async fn check(wanted: &Wanted) -> Result<(), Failure> {
    for scheme in RDMA_SCHEMES {
        let of_scheme = wanted.addresses.iter().filter(|a| a.scheme == scheme);
        let mut hosts: Vec<IpAddr> = of_scheme.map(|address| address.host).collect();
        hosts.sort_unstable();
        hosts.dedup();
        if !hosts.is_empty() {
            let config = device_config(wanted, scheme, hosts);
            let is_taken = |error: &DeviceError| matches!(error, DeviceError::PortInUse { .. });
            outlast(is_taken, || ready(Device::check(&config)))
                .await
                .map_err(|error| Failure::unavailable(error.to_string()))?;
        }
    }
    for address in wanted.of(Transport::Tcp) {
        let is_taken = |error: &ListenError| matches!(error, ListenError::Taken { .. });
        let check = || ready(TcpListener::check(address.socket_addr()));
        match outlast(is_taken, check).await {
            Err(error) if !wanted.may_lack(address) => {
                return Err(Failure::unavailable(format!("{address}: {error}")));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Listens on addresses of a device.
fn listen_rdma(
    device: Device,
    addresses: &[TransportAddress],
    at: At<'_>,
    bound: &mut Bound,
    found: &mut Ready,
) -> Result<(), Failure> {
    let At { part, limits, .. } = at;
    let from = bound.rdma.len();
    for address in addresses {
        found.addresses.push(*address);
        // One listener on a port takes both families, if the device has both.
        let host = Some(address.host).filter(|host| !host.is_unspecified());
        let known = bound.rdma[from..].iter_mut().find(|open| {
            let first = open.addresses[0];
            first.port == address.port
                && (first.host.is_unspecified() || first.host == address.host)
        });
        if let Some(open) = known {
            open.addresses.push(*address);
            continue;
        }
        let config = ListenerConfig {
            address: host,
            backlog: RDMA_BACKLOG,
            depth_max: limits.rdma.depth,
            capsule_bytes_max: limits.rdma.capsule_bytes_max / part.count.max(1),
            ..ListenerConfig::new(address.port)
        };
        let listener = Listener::bind_knowing(&device, config, at.known.clone())
            .map_err(|e| Failure::unavailable(format!("{address}: {e}")))?;
        bound.rdma.push(Open::new(*address, listener));
    }
    Ok(())
}

fn bind_tcp<S: Service>(
    wanted: &Wanted,
    part: Part,
    service: &S,
    bound: &mut Bound,
    found: &mut Ready,
) -> Result<(), Failure> {
    let (limits, bounds) = (service.limits(), bound.bounds.get());
    for address in wanted.of(Transport::Tcp) {
        let config = TcpListenerConfig {
            in_capsule_bytes: limits.tcp.in_capsule_bytes,
            queue_share: bounds.queue_share,
            host_share: bounds.host_share,
            handshake_timeout: bounds.handshake_timeout,
            stall_timeout: bounds.stall_timeout,
            stall_timeout_short: bounds.stall_timeout_short,
            depth_max: limits.tcp.depth,
            capsule_bytes_max: limits.tcp.capsule_bytes_max / part.count.max(1),
            connections_max: limits.tcp_connections,
            reuse_port: part.count > 1,
            paced: wanted.tcp_pacing,
            tls: wanted.tls,
            ..TcpListenerConfig::new(address.socket_addr())
        };
        // A shared port would also be shared with whoever else asks for that, such as another daemon.
        let is_free = match part.index == 0 && config.reuse_port {
            true => TcpListener::check(config.address),
            false => Ok(()),
        };
        let (keys, known) = (service.keys(), service.known_addresses().clone());
        let bind = |()| TcpListener::bind_knowing(config, keys, known, &wanted.ports);
        match is_free.and_then(bind) {
            Ok(listener) => {
                found.addresses.push(*address);
                bound.tcp.push(Open::new(*address, listener));
            }
            Err(error) if wanted.may_lack(address) => {
                tracing::info!(%address, %error, "not served");
            }
            Err(error) => return Err(Failure::unavailable(format!("{address}: {error}"))),
        }
    }
    Ok(())
}

/// Whether the kernel has IPv6.
fn has_ipv6() -> bool {
    std::net::UdpSocket::bind((std::net::Ipv6Addr::UNSPECIFIED, 0)).is_ok()
}

/// Takes connections until the device closes.
async fn accept_rdma<S: Service>(service: S, listener: Rc<Listener>, bounds: Rc<Cell<LiveBounds>>) {
    while let Some(incoming) = listener.accept().await {
        let peer = incoming.peer;
        let bounds = bounds.get();
        let limits = QueueLimits {
            in_capsule_bytes: service.limits().rdma.in_capsule_bytes,
            queue_share: bounds.queue_share,
            host_share: bounds.host_share,
            ..QueueLimits::default()
        };
        match TargetQueue::accept_rdma(incoming, limits) {
            Ok(queue) => drop(reactor::spawn(service.serve(queue))),
            Err(error) => {
                fabric::log_of_peer!(
                    warn,
                    "connection refused",
                    peer.ip(),
                    %peer,
                    %error,
                    "connection refused; if that is for lack of memory, `onefold serve --rdma-capsules` gives more"
                );
            }
        }
    }
    tracing::error!("the network device closed");
}

/// Takes connections until the listener closes.
async fn accept_tcp<S: Service>(service: S, listener: Rc<TcpListener>) {
    while let Some(queue) = TargetQueue::accept_tcp(&listener).await {
        drop(reactor::spawn(service.serve(queue)));
    }
    tracing::error!(address = %listener.local_addr(), "the TCP listener closed");
}

/// Takes connections until the target stops or the listener is closed on purpose. One that ends by
/// itself is told: the daemon does not carry on without it as if nothing had happened.
async fn until_closed<S: Service>(
    service: &S,
    mut close: watch::Receiver<bool>,
    accepting: impl Future<Output = ()>,
    lost: &Notify,
) {
    let stopped = service.stopped();
    let closed = close.wait_for(|close| *close);
    futures_util::pin_mut!(accepting, stopped, closed);
    if let Either::Left(_) = select(accepting, select(stopped, closed)).await {
        lost.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(wanted: &Wanted) -> Vec<String> {
        wanted.addresses.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn without_addresses_both_transports_are_served_on_all() {
        let wanted = Wanted::new(&[], false, false);
        assert_eq!(
            shown(&wanted),
            [
                "rdma://0.0.0.0:4420",
                "rdma://[::]:4420",
                "tcp://0.0.0.0:4420",
                "tcp://[::]:4420"
            ]
        );
        assert_eq!(
            shown(&wanted.shared(&wanted.addresses)),
            ["tcp://0.0.0.0:4420", "tcp://[::]:4420"]
        );
        let paced = Wanted::new(&[], false, true);
        assert!(
            paced.shared(&paced.addresses).tcp_pacing,
            "on every reactor"
        );
    }

    #[test]
    fn addresses_are_taken_as_told() {
        let told = ["rdma://192.0.2.1:4420".parse().expect("an address")];
        let wanted = Wanted::new(&told, false, false);
        assert_eq!(shown(&wanted), ["rdma://192.0.2.1:4420"]);
    }
}
