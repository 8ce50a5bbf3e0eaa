//! `onefold serve`: the daemon, from its start to its end.
//!
//! Guarantees:
//! - `ready` is printed when, and only when, hosts can connect and everything they will see is loaded: a
//!   Linux host that meets a half-loaded target would delete its controller or its namespaces.
//! - A start that fails says what is taken, missing or wrong, and leaves nothing running.
//! - SIGINT and SIGTERM end it cleanly: no new commands, those under way answered, data durable, a
//!   checkpoint written, exit 0. A second signal ends it at once; nothing acknowledged is lost then.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use dedup::ErrorKind;
use fabric::{Device, DeviceConfig, Listener, ListenerConfig, QueueLimits, TransportAddress};
use reactor::{PoolConfig, ReactorThread};
use rustix::fs::Mode;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

use crate::api::{ApiSocket, ApiState};
use crate::association::serve_queue;
use crate::cli::args::{DEFAULT_POOL, ServeArgs};
use crate::cli::print;
use crate::errors::Failure;
use crate::machine;
use crate::pool::{self, Create, OpenPool, PoolRequest};
use crate::subsystem::{Limits, Target, TargetParts};

/// Buffers of the control reactor: for labels, and for what the engine does not bounce itself.
const CONTROL_BUFFER_BYTES: usize = 8 << 20;

/// Connections that may wait for an answer.
const BACKLOG: usize = 1024;

/// How long a clean stop waits for hosts' commands before it goes on without them.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(15);

/// Runs the daemon until it is told to stop.
///
/// # Errors
/// Why it could not start, or had to stop.
pub fn run(args: &ServeArgs) -> Result<(), Failure> {
    // Everything the daemon makes belongs to its user alone: data, keys, the control socket.
    rustix::process::umask(Mode::RWXG | Mode::RWXO);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("onefold-api")
        .enable_all()
        .build()
        .map_err(|e| internal("cannot start the control runtime", &e))?;
    runtime.block_on(serve(args))
}

fn internal(what: &str, error: &dyn std::fmt::Display) -> Failure {
    Failure::new(ErrorKind::Internal, format!("{what}: {error}"))
}

/// The signals that end the daemon.
struct StopSignals {
    interrupt: Signal,
    terminate: Signal,
}

impl StopSignals {
    fn new() -> Result<Self, Failure> {
        let on = |kind| signal(kind).map_err(|e| internal("cannot wait for signals", &e));
        Ok(Self {
            interrupt: on(SignalKind::interrupt())?,
            terminate: on(SignalKind::terminate())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

async fn serve(args: &ServeArgs) -> Result<(), Failure> {
    let mut signals = StopSignals::new()?;
    let control = start_reactor("onefold-control", CONTROL_BUFFER_BYTES, Duration::ZERO)?;
    let buffer_bytes = usize::try_from(args.buffers)
        .map_err(|_| Failure::invalid("--buffers is more than this machine can address"))?;
    let data = start_reactor(
        "onefold-data0",
        buffer_bytes,
        reactor::Config::default().spin,
    )?;
    let outcome = serve_on(args, &control, &data, &mut signals).await;
    // The threads end after everything that lives on them: tasks drop their queues and drives there.
    let stopped = tokio::task::spawn_blocking(move || {
        data.stop_and_join();
        control.stop_and_join();
    });
    let _ = stopped.await;
    outcome
}

fn start_reactor(
    name: &str,
    buffer_bytes: usize,
    spin: Duration,
) -> Result<ReactorThread, Failure> {
    let config = reactor::Config {
        name: name.to_owned(),
        buffer_pool: PoolConfig {
            bytes: buffer_bytes,
        },
        spin,
        ..reactor::Config::default()
    };
    reactor::start(config)
        .map_err(|e| Failure::unavailable(format!("the reactor '{name}' cannot start: {e}")))
}

async fn serve_on(
    args: &ServeArgs,
    control: &ReactorThread,
    data: &ReactorThread,
    signals: &mut StopSignals,
) -> Result<(), Failure> {
    let control = control.handle();
    let request = pool_request(args);
    let opening = control.spawn(move || async move { pool::open(&request).await });
    let pool = opening
        .await
        .map_err(|e| internal("opening the pool", &e))??;
    let engine = pool.engine.clone();
    let maintained = engine.clone();
    let maintenance = control.spawn(move || maintained.run_maintenance());
    let served = serve_pool(args, &pool, &control, data, signals).await;
    // However serving ended: what hosts were promised becomes durable.
    let closing = control.spawn(move || async move { engine.shutdown().await });
    let closed = closing
        .await
        .map_err(|e| internal("closing the pool", &e))?;
    let _ = maintenance.await;
    served?;
    closed?;
    tracing::info!("stopped cleanly");
    Ok(())
}

fn pool_request(args: &ServeArgs) -> PoolRequest {
    let create = match (args.create, &args.pool) {
        (Some(0), _) | (None, None) => Create::Default,
        (Some(bytes), _) => Create::Bytes(bytes),
        (None, Some(_)) => Create::No,
    };
    PoolRequest {
        dir: args
            .pool
            .clone()
            .unwrap_or_else(|| PathBuf::from(DEFAULT_POOL)),
        create,
        drives: args.drives.clone(),
        volumes: args.volumes.clone(),
    }
}

async fn serve_pool(
    args: &ServeArgs,
    pool: &OpenPool,
    control: &reactor::Handle,
    data: &ReactorThread,
    signals: &mut StopSignals,
) -> Result<(), Failure> {
    let data = data.handle();
    let limits = Limits::default();
    let wanted = listen_addresses(args);
    let nqn = crate::DEFAULT_SUBSYSTEM_NQN
        .parse()
        .map_err(|e| internal("the subsystem's name", &e))?;
    let target = Target::new(TargetParts {
        engine: pool.engine.clone(),
        pool_uuid: pool.uuid(),
        nqn,
        listeners: wanted.clone(),
        limits,
    });
    let dir = &pool.dir.paths().dir;
    let api = ApiSocket::bind(dir).map_err(|e| {
        Failure::unavailable(format!(
            "the control socket '{}' cannot be made: {e}",
            dir.join(crate::socket::SOCKET_NAME).display()
        ))
    })?;

    let (ready, is_ready) = oneshot::channel();
    let (listening, fabric_target) = (wanted.clone(), target.clone());
    let wildcard = args.listen.is_empty();
    let mut fabric = data.spawn(move || listen(fabric_target, listening, wildcard, ready));
    let bound = tokio::select! {
        bound = is_ready => bound.map_err(|e| internal("listening", &e))??,
        () = signals.next() => return Ok(()),
    };

    let (stop_api, api_stopped) = oneshot::channel::<()>();
    let state = ApiState {
        target: target.clone(),
        engine: pool.engine.clone(),
        control: control.clone(),
    };
    let api = tokio::spawn(api.serve(state, async {
        let _ = api_stopped.await;
    }));

    print(&announcement(&bound));
    let outcome = tokio::select! {
        () = signals.next() => Ok(()),
        ended = &mut fabric => Err(match ended {
            Ok(()) => Failure::unavailable("the network device closed: see the log"),
            Err(error) => internal("the data reactor ended", &error),
        }),
    };
    tracing::info!("stopping");
    target.stop();
    if outcome.is_ok() {
        let drained = async {
            target.drained().await;
            let _ = fabric.await;
        };
        tokio::select! {
            drained = tokio::time::timeout(DRAIN_TIMEOUT, drained) => if drained.is_err() {
                tracing::warn!("hosts' commands are still under way: stopping without them");
            },
            () = signals.next() => tracing::warn!("told to stop again: not waiting for hosts"),
        }
    }
    let _ = stop_api.send(());
    let _ = tokio::time::timeout(Duration::from_secs(1), api).await;
    outcome
}

/// Where to listen: as told, or on every address of both families.
fn listen_addresses(args: &ServeArgs) -> Vec<TransportAddress> {
    if !args.listen.is_empty() {
        return args.listen.clone();
    }
    [IpAddr::from([0; 4]), IpAddr::from([0; 16])]
        .into_iter()
        .map(|host| TransportAddress::rdma(host, fabric::NVME_PORT))
        .collect()
}

/// Opens the device, listens, and serves queues until the target stops. Runs on the data reactor.
async fn listen(
    target: Arc<Target>,
    wanted: Vec<TransportAddress>,
    wildcard: bool,
    ready: oneshot::Sender<Result<Vec<TransportAddress>, Failure>>,
) {
    let (device, listeners, bound) = match bind(&wanted, wildcard, &target.limits) {
        Ok(bound) => bound,
        Err(failure) => {
            let _ = ready.send(Err(failure));
            return;
        }
    };
    let accepting: Vec<_> = listeners
        .into_iter()
        .map(|listener| reactor::spawn(accept(target.clone(), listener)))
        .collect();
    if ready.send(Ok(bound)).is_err() {
        return;
    }
    for task in accepting {
        let _ = task.await;
    }
    target.drained().await;
    device.shutdown().await;
    // Whoever looks into a connection that did not come about finds here whether packets were lost.
    tracing::info!(counters = ?device.counters(), "the network device closed its connections");
}

type Bound = (Device, Vec<Listener>, Vec<TransportAddress>);

fn bind(wanted: &[TransportAddress], wildcard: bool, limits: &Limits) -> Result<Bound, Failure> {
    let config = match wildcard {
        true => DeviceConfig::wildcard(),
        false => {
            let mut hosts: Vec<IpAddr> = wanted.iter().map(|address| address.host).collect();
            hosts.sort_unstable();
            hosts.dedup();
            DeviceConfig::on(hosts)
        }
    };
    let device = Device::open(config).map_err(|e| Failure::unavailable(e.to_string()))?;
    // A machine without IPv6 still serves IPv4.
    let families = device.addresses();
    let bound: Vec<TransportAddress> = wanted
        .iter()
        .filter(|address| {
            families
                .iter()
                .any(|has| has.is_ipv4() == address.host.is_ipv4())
        })
        .copied()
        .collect();
    let mut listeners = Vec::new();
    let mut taken: Vec<(Option<IpAddr>, u16)> = Vec::new();
    for address in &bound {
        // One listener on a port takes both families, if the device has both.
        let host = Some(address.host).filter(|host| !host.is_unspecified());
        if taken.contains(&(host, address.port)) || taken.contains(&(None, address.port)) {
            continue;
        }
        taken.push((host, address.port));
        let config = ListenerConfig {
            address: host,
            backlog: BACKLOG,
            depth_max: limits.queue_depth,
            ..ListenerConfig::new(address.port)
        };
        let listener = Listener::bind_with(&device, config)
            .map_err(|e| Failure::unavailable(format!("{address}: {e}")))?;
        listeners.push(listener);
    }
    Ok((device, listeners, bound))
}

async fn accept(target: Arc<Target>, listener: Listener) {
    let limits = QueueLimits {
        in_capsule_bytes: target.limits.in_capsule_bytes,
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
    futures_util::pin_mut!(accepting);
    let stopped = target.stopped();
    futures_util::pin_mut!(stopped);
    futures_util::future::select(accepting, stopped).await;
}

/// What people and scripts read at the start.
fn announcement(bound: &[TransportAddress]) -> String {
    let listed: Vec<String> = bound.iter().map(ToString::to_string).collect();
    let mut text = format!("ready {}\n", listed.join(" "));
    let own = machine::addresses();
    let mut reachable: Vec<(IpAddr, u16)> = Vec::new();
    for address in bound {
        let hosts: Vec<IpAddr> = match address.host.is_unspecified() {
            true => own
                .iter()
                .copied()
                .filter(|ip| ip.is_ipv4() == address.host.is_ipv4())
                .collect(),
            false => vec![address.host],
        };
        for host in hosts {
            if !reachable.contains(&(host, address.port)) {
                reachable.push((host, address.port));
            }
        }
    }
    if reachable.is_empty() {
        text += "This machine has no address that other machines can reach.\n";
        return text;
    }
    text +=
        "From a Linux host (kernel modules nvme-rdma, and rdma_rxe if it has no RDMA hardware):\n";
    for (host, port) in reachable {
        text += &format!(
            "  nvme discover -t rdma -a {host} -s {port}\n  nvme connect -t rdma -a {host} -s {port} -n {}\n",
            crate::DEFAULT_SUBSYSTEM_NQN
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_is_ready_and_the_rest_can_be_typed_on_a_host() {
        let bound = ["rdma://192.0.2.9:4420", "rdma://[2001:db8::9]:4421"]
            .map(|address| address.parse().expect("an address"));
        let text = announcement(&bound);
        assert!(
            text.starts_with("ready rdma://192.0.2.9:4420 rdma://[2001:db8::9]:4421\n"),
            "{text}"
        );
        assert!(
            text.contains("nvme discover -t rdma -a 192.0.2.9 -s 4420\n"),
            "{text}"
        );
        assert!(
            text.contains(
                "nvme connect -t rdma -a 2001:db8::9 -s 4421 -n nqn.2026-11.dev.onefold:default\n"
            ),
            "{text}"
        );
    }
}
