//! Where hosts come in: the listeners of every data reactor.
//!
//! RDMA has one device, on the first reactor. TCP has a listener of the same port on each reactor, and
//! the kernel spreads connections over them; a queue stays where it came in, and shares nothing with
//! those of other reactors but the target and the engine.
//!
//! Guarantees:
//! - A port that another program has is an error that says so, on a shared port too.
//! - Without addresses to choose from, a machine that lacks one family of addresses serves the other.
//! - When the target stops, no connection is taken any more, and every listener's work ends.

use std::net::IpAddr;
use std::sync::Arc;

use fabric::{
    Device, DeviceConfig, Listener, ListenerConfig, QueueLimits, Scheme, TcpListener,
    TcpListenerConfig, Transport, TransportAddress,
};
use futures_util::future::{join_all, select};
use tokio::sync::oneshot;

use crate::association::serve_queue;
use crate::errors::Failure;
use crate::subsystem::{Limits, Target};

/// RDMA connections that may wait for an answer.
const RDMA_BACKLOG: usize = 1024;

/// Where to listen.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) addresses: Vec<TransportAddress>,
    /// These are all addresses of the machine: what it lacks is left out.
    pub(crate) by_default: bool,
}

impl Wanted {
    /// As told, or RDMA and TCP on every address of both families.
    pub(crate) fn new(told: &[TransportAddress]) -> Self {
        if !told.is_empty() {
            return Self {
                addresses: told.to_vec(),
                by_default: false,
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
        }
    }

    /// Whether more than one reactor finds work here.
    pub(crate) fn spreads(&self) -> bool {
        self.of(Transport::Tcp).next().is_some()
    }

    fn of(&self, transport: Transport) -> impl Iterator<Item = &TransportAddress> {
        self.addresses
            .iter()
            .filter(move |address| address.scheme.transport() == transport)
    }

    /// What the other reactors listen on too, once the first one has bound these.
    pub(crate) fn shared(bound: &[TransportAddress]) -> Self {
        let shared = Self {
            addresses: bound.to_vec(),
            by_default: false,
        };
        Self {
            addresses: shared.of(Transport::Tcp).copied().collect(),
            by_default: false,
        }
    }
}

/// What is bound on one reactor.
struct Bound {
    device: Option<Device>,
    rdma: Vec<Listener>,
    tcp: Vec<TcpListener>,
    addresses: Vec<TransportAddress>,
}

/// A reactor's part in listening.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    /// Which of the reactors; the first one finds out whether ports are free.
    pub(crate) index: usize,
    /// How many reactors share the ports.
    pub(crate) count: usize,
}

/// Listens, tells what is bound, and serves queues until the target stops. Runs on a data reactor.
pub(crate) async fn listen(
    target: Arc<Target>,
    wanted: Wanted,
    part: Part,
    ready: oneshot::Sender<Result<Vec<TransportAddress>, Failure>>,
) {
    let bound = match bind(&wanted, part, &target.limits) {
        Ok(bound) => bound,
        Err(failure) => {
            let _ = ready.send(Err(failure));
            return;
        }
    };
    let rdma = bound.rdma.into_iter().map(|listener| {
        let target = target.clone();
        reactor::spawn(async move { accept_rdma(target, listener).await })
    });
    let tcp = bound.tcp.into_iter().map(|listener| {
        let target = target.clone();
        reactor::spawn(async move { accept_tcp(target, listener).await })
    });
    let accepting: Vec<_> = rdma.chain(tcp).collect();
    if ready.send(Ok(bound.addresses)).is_err() {
        return;
    }
    join_all(accepting).await;
    target.drained().await;
    if let Some(device) = bound.device {
        device.shutdown().await;
        // Whoever looks into a connection that did not come about finds here whether packets were lost.
        tracing::info!(counters = ?device.counters(), "the network device closed its connections");
    }
}

fn bind(wanted: &Wanted, part: Part, limits: &Limits) -> Result<Bound, Failure> {
    let mut bound = Bound {
        device: None,
        rdma: Vec::new(),
        tcp: Vec::new(),
        addresses: Vec::new(),
    };
    bind_rdma(wanted, limits, &mut bound)?;
    bind_tcp(wanted, part, limits, &mut bound)?;
    if bound.addresses.is_empty() {
        return Err(Failure::unavailable(
            "this machine has no address to serve: set one up, or name it with --listen",
        ));
    }
    Ok(bound)
}

fn bind_rdma(wanted: &Wanted, limits: &Limits, bound: &mut Bound) -> Result<(), Failure> {
    let mut hosts: Vec<IpAddr> = wanted.of(Transport::Rdma).map(|a| a.host).collect();
    if hosts.is_empty() {
        return Ok(());
    }
    hosts.sort_unstable();
    hosts.dedup();
    let config = match wanted.by_default {
        true => DeviceConfig::wildcard(),
        false => DeviceConfig::on(hosts),
    };
    let device = Device::open(config).map_err(|e| Failure::unavailable(e.to_string()))?;
    let families = device.addresses();
    let has_family = |host: IpAddr| families.iter().any(|has| has.is_ipv4() == host.is_ipv4());
    let mut taken: Vec<(Option<IpAddr>, u16)> = Vec::new();
    for address in wanted.of(Transport::Rdma).filter(|a| has_family(a.host)) {
        bound.addresses.push(*address);
        // One listener on a port takes both families, if the device has both.
        let host = Some(address.host).filter(|host| !host.is_unspecified());
        if taken.contains(&(host, address.port)) || taken.contains(&(None, address.port)) {
            continue;
        }
        taken.push((host, address.port));
        let config = ListenerConfig {
            address: host,
            backlog: RDMA_BACKLOG,
            depth_max: limits.rdma.depth,
            ..ListenerConfig::new(address.port)
        };
        let listener = Listener::bind_with(&device, config)
            .map_err(|e| Failure::unavailable(format!("{address}: {e}")))?;
        bound.rdma.push(listener);
    }
    bound.device = Some(device);
    Ok(())
}

fn bind_tcp(
    wanted: &Wanted,
    part: Part,
    limits: &Limits,
    bound: &mut Bound,
) -> Result<(), Failure> {
    for address in wanted.of(Transport::Tcp) {
        let usual = TcpListenerConfig::new(address.socket_addr());
        let config = TcpListenerConfig {
            in_capsule_bytes: limits.tcp.in_capsule_bytes,
            depth_max: limits.tcp.depth,
            capsule_bytes_max: usual.capsule_bytes_max / part.count.max(1),
            reuse_port: part.count > 1,
            ..usual
        };
        // A shared port is also shared with whoever else asks for that: an exclusive look comes first.
        let alone = TcpListenerConfig {
            reuse_port: false,
            ..config
        };
        let free = match part.index {
            0 if config.reuse_port => TcpListener::bind(alone).map(drop),
            _ => Ok(()),
        };
        match free.and_then(|()| TcpListener::bind(config)) {
            Ok(listener) => {
                bound.addresses.push(*address);
                bound.tcp.push(listener);
            }
            // A machine without IPv6 still serves IPv4.
            Err(error) if wanted.by_default && address.host.is_ipv6() && !has_ipv6() => {
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

async fn accept_rdma(target: Arc<Target>, listener: Listener) {
    let limits = QueueLimits {
        in_capsule_bytes: target.limits.rdma.in_capsule_bytes,
        ..QueueLimits::default()
    };
    let accepting = async {
        while let Some(incoming) = listener.accept().await {
            let peer = incoming.peer;
            match incoming.accept(limits) {
                Ok(queue) => drop(reactor::spawn(serve_queue(target.clone(), queue))),
                Err(error) => tracing::warn!(%peer, %error, "connection refused"),
            }
        }
        tracing::error!("the network device closed");
    };
    until_stopped(&target, accepting).await;
}

async fn accept_tcp(target: Arc<Target>, listener: TcpListener) {
    let accepting = async {
        while let Some(queue) = listener.accept().await {
            drop(reactor::spawn(serve_queue(target.clone(), queue)));
        }
        tracing::error!(address = %listener.local_addr(), "the TCP listener closed");
    };
    until_stopped(&target, accepting).await;
}

async fn until_stopped(target: &Target, accepting: impl Future<Output = ()>) {
    futures_util::pin_mut!(accepting);
    let stopped = target.stopped();
    futures_util::pin_mut!(stopped);
    select(accepting, stopped).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(wanted: &Wanted) -> Vec<String> {
        wanted.addresses.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn without_addresses_both_transports_are_served_on_all() {
        let wanted = Wanted::new(&[]);
        assert_eq!(
            shown(&wanted),
            [
                "rdma://0.0.0.0:4420",
                "rdma://[::]:4420",
                "tcp://0.0.0.0:4420",
                "tcp://[::]:4420"
            ]
        );
        assert!(wanted.spreads());
        assert_eq!(
            shown(&Wanted::shared(&wanted.addresses)),
            ["tcp://0.0.0.0:4420", "tcp://[::]:4420"]
        );
    }

    #[test]
    fn addresses_are_taken_as_told() {
        let told = ["rdma://192.0.2.1:4420".parse().expect("an address")];
        let wanted = Wanted::new(&told);
        assert_eq!(shown(&wanted), ["rdma://192.0.2.1:4420"]);
        assert!(!wanted.spreads(), "RDMA stays on the first reactor");
    }
}
