//! `onefold serve`: the daemon, from its start to its end.
//!
//! Guarantees:
//! - `ready` is printed when, and only when, hosts can connect and everything they will see is loaded: a
//!   Linux host that meets a half-loaded target would delete its controller or its namespaces.
//! - A start that fails says what is taken, missing or wrong, and leaves nothing running.
//! - SIGINT, SIGTERM and the end of its terminal end it cleanly: no new commands, those under way answered, data
//!   durable, a checkpoint written, exit 0. A second signal ends it at once; nothing acknowledged is lost then.
//! - SIGHUP without a terminal (a service's reload) reads the configuration file again, and opens kept listeners that
//!   could not be served before. A file with a mistake changes nothing.

mod front;
mod joining;
mod node;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use api::ApiState;
use dedup::ErrorKind;
use fabric::{Transport, TransportAddress};
use futures_util::future::{join_all, select_all};
use futures_util::lock::Mutex;
use meta::PoolDir;
use reactor::{JoinError, PoolConfig, ReactorThread};
use rustix::fs::Mode;
use subsystem::errors::Failure;
use subsystem::limits::{ControllerIds, Limits};
use subsystem::target::record;
use subsystem::target::{Pool, Target, TargetParts};
use tokio::sync::oneshot;
use uuid::Uuid;

use crate::again;
use crate::announcement::{announcement, memory_notice};
use crate::config::{ReadAgain, Running};
use crate::control_socket::{self, Group};
use crate::descriptors::{self, Asked};
use crate::drive_health::DriveHealthWatch;
use crate::drive_watch::DriveWatch;
use crate::exports::Exports;
use crate::http::Http;
use crate::listen::{self, Wanted};
use crate::machine;
use crate::nodes::{self, Handover, Meeting, Node};
use crate::notify;
use crate::options::{Buffers, DEFAULT_MEMORY_POOL, DEFAULT_POOL, DriveArg, ServeArgs};
use crate::output::print;
use crate::pool::{self, Create, OpenPool, PoolRequest};
use crate::recorder;
use crate::records;
use crate::reliability::Spares;
use crate::signals::{Signals, Told};
use crate::telemetry::Sending;
use front::{Front, Listening};
use joining::Standby;
use node::NodeInterface;

/// Buffers of the control reactor: for labels, and for what the engine does not bounce itself.
const CONTROL_BUFFER_BYTES: usize = 8 << 20;

/// Data reactors that a machine with more cores gets, unless more are asked for.
const REACTORS_DEFAULT_MAX: usize = 8;

/// How long a clean stop waits for hosts' commands before it goes on without them.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(15);

/// Runs the daemon until it is told to stop. A reload asks `read_again` for the options.
///
/// # Errors
/// Why it could not start, or had to stop.
pub fn run(args: &ServeArgs, read_again: ReadAgain) -> Result<(), Failure> {
    again::restore_name();
    // Everything the daemon makes belongs to its user alone: data, keys, the control socket.
    rustix::process::umask(Mode::RWXG | Mode::RWXO);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("onefold-api")
        .enable_all()
        .build()
        .map_err(|e| internal("cannot start the control runtime", &e))?;
    if args.join {
        again::come_back()?;
    }
    let served = runtime.block_on(serve(Running::new(args.clone(), read_again)));
    recorder::drain();
    match served? {
        Ending::Stopped => Ok(()),
        Ending::GaveAway => {
            drop(runtime);
            // Otherwise its drives seem to have an owner until the leases end.
            rados_drives::wait_until_given_up();
            Err(again::start())
        }
    }
}

/// How the daemon ended, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Stopped,
    /// Another node is to have the pool, and this one is a standby from here on.
    GaveAway,
}

fn internal(what: &str, error: &dyn std::fmt::Display) -> Failure {
    Failure::new(ErrorKind::Internal, format!("{what}: {error}"))
}

async fn serve(running: Running) -> Result<Ending, Failure> {
    let args = running.options();
    let mut signals = Signals::new().map_err(|e| internal("cannot wait for signals", &e))?;
    let control = start_reactor(
        "onefold-control",
        CONTROL_BUFFER_BYTES.into(),
        Duration::ZERO,
    )?;
    args.check_here().map_err(Failure::invalid)?;
    let told = TransportAddress::distinct(&args.listen)
        .map_err(|error| Failure::invalid(error.to_string()))?;
    let mut wanted = Wanted::new(&told, args.strict_icrc, args.tcp_pacing);
    (wanted.mdns, wanted.tls) = (args.mdns, args.tls);
    let api_group = args
        .http
        .api_group
        .as_deref()
        .map(Group::find)
        .transpose()?;
    let mut pool = pool_request(args);
    // A pool that is there may keep listeners of its own, which are not known before it is open.
    let can_listen = listen::check(&wanted).await;
    if pool.makes_pool() {
        can_listen?;
    }
    let count = args.reactors.unwrap_or_else(default_reactors);
    let mut limits = limits(args, wanted.of(Transport::Tcp).count(), count);
    let meeting = Meeting::find(&pool.dir, &pool.drives)?;
    if args.join && meeting.is_none() {
        if PoolDir::exists(&pool.dir) {
            return Err(Failure::invalid(format!(
                "--join is for a pool whose drives another node reaches too, and the drives of the pool in the folder '{}' are local: \
                 choose another folder with --pool, or by `dir` in the table [pool] of the configuration",
                pool.dir.display()
            )));
        }
        return Err(Failure::invalid(
            "--join is for a pool whose drives another node reaches too: all on sleds (--drive nvme+tcp://...), or in a cluster \
             (--drive rados:POOL)",
        ));
    }
    // A pool on sleds is for one node, if nobody says that it is not.
    let meeting = meeting.filter(|meeting| args.join || matches!(meeting, Meeting::Cluster(_)));
    let is_shared = matches!(meeting, Some(Meeting::Sleds(_)));
    pool.shared = is_shared.then_some(again::end_for_others);
    // Who makes a pool is told at once that its cluster does not answer.
    let waits = args.join || PoolDir::exists(&pool.dir);
    let node = match meeting {
        Some(meeting) => tokio::select! {
            joined = nodes::join(meeting, waits) => Some(joined?),
            _ = signals.stop() => return Ok(Ending::Stopped),
        },
        None => None,
    };
    if let Some(node) = &node {
        if args.join {
            tracing::info!(
                number = node.number(),
                "this node is one of those that offer the pool"
            );
        }
        limits.controller_ids = ControllerIds::of_node(node.number());
    }
    // Before drives are opened: their servers get what is shared then.
    let buffers = args.buffer_memory.of_each(args.buffers, count)?;
    let mut data = Vec::new();
    for index in 0..count {
        let name = format!("onefold-data{index}");
        data.push(start_reactor(&name, buffers.clone(), args.spin)?);
    }
    let http = Http::start(&running.options().http).await?;
    let reactors = data.iter().chain([&control]).map(ReactorThread::handle);
    let watching = tokio::spawn(notify::watch(reactors.collect()));
    let around = Around {
        control: control.handle(),
        data: &data,
        http: &http,
        api_group: api_group.as_ref(),
        node: node.as_ref(),
        handover: Arc::new(Handover::new(node.clone().filter(|_| args.join))),
    };
    let outcome = serve_on(running, pool, wanted, limits, &around, &mut signals).await;
    http.end().await;
    // The threads end after everything that lives on them: tasks drop their queues and drives there.
    let stopped = tokio::task::spawn_blocking(move || {
        data.into_iter().for_each(ReactorThread::stop_and_join);
        control.stop_and_join();
    });
    let _ = stopped.await;
    watching.abort();
    outcome
}

/// What hosts may take, with as many connections as this process can have descriptors for.
fn limits(args: &ServeArgs, tcp_addresses: usize, reactors: usize) -> Limits {
    let mut limits = args.bounds.limits();
    let descriptors = descriptors::raise();
    if tcp_addresses > 0 {
        let asked = Asked {
            hosts: args.bounds.hosts.is_some(),
            io_queues: args.bounds.io_queues.is_some(),
        };
        descriptors::fit(descriptors, &mut limits, asked);
    }
    if args.bounds.tcp_connections.is_none() {
        let sockets = tcp_addresses.max(1) * reactors;
        limits.tcp_connections = descriptors::connections(descriptors, &limits, sockets);
    }
    if tcp_addresses > 0
        && let Some(shortage) = descriptors::shortage(descriptors, &limits)
    {
        tracing::warn!("{shortage}");
    }
    limits
}

/// One for each core, within reason.
pub(crate) fn default_reactors() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| cores.get().min(REACTORS_DEFAULT_MAX))
}

pub(crate) fn start_reactor(
    name: &str,
    buffers: Buffers,
    spin: Duration,
) -> Result<ReactorThread, Failure> {
    let config = reactor::Config {
        name: name.to_owned(),
        buffer_pool: PoolConfig {
            bytes: buffers.bytes,
        },
        shared_memory: buffers.memory,
        spin,
        ..reactor::Config::default()
    };
    reactor::start(config)
        .map_err(|e| Failure::unavailable(format!("the reactor '{name}' cannot start: {e}")))
}

/// Who works for the daemon, and who may ask it.
struct Around<'a> {
    control: reactor::Handle,
    data: &'a [ReactorThread],
    http: &'a Http,
    api_group: Option<&'a Group>,
    /// This node among others, if there may be others.
    node: Option<&'a Arc<Node>>,
    handover: Arc<Handover>,
}

async fn serve_on(
    running: Running,
    request: PoolRequest,
    wanted: Wanted,
    limits: Limits,
    around: &Around<'_>,
    signals: &mut Signals,
) -> Result<Ending, Failure> {
    let control = &around.control;
    let mut front = None;
    let joined = match around.node.filter(|_| running.options().join) {
        Some(node) => {
            let standby = Standby {
                request: &request,
                wanted: &wanted,
                limits,
                around,
                node,
            };
            let waited = standby.wait(&mut front, signals).await;
            if !matches!(waited, Ok(Some(_)))
                && let Some(front) = front.take()
            {
                front.end().await;
            }
            match waited? {
                Some(pool) => Some(pool),
                None => return Ok(Ending::Stopped),
            }
        }
        None => None,
    };
    let pool = match joined {
        Some(pool) => pool,
        None => open_pool(request, control).await?,
    };
    if let Some(node) = around.node {
        nodes::has_pool(node, &pool).await;
    }
    let engine = pool.engine.clone();
    let maintained = engine.clone();
    let maintenance = control.spawn(move || maintained.run_maintenance());
    let served = serve_pool(front, wanted, limits, running, &pool, around, signals).await;
    // However serving ended: what hosts were promised becomes durable.
    let metadata = pool.metadata.clone();
    let closing = control.spawn(move || async move {
        let closed = engine.shutdown().await;
        if let Some(metadata) = metadata.filter(|_| closed.is_ok()) {
            reactor::unblock(move || metadata.copies.close()).await;
        }
        closed
    });
    let closed = closing
        .await
        .map_err(|e| internal("closing the pool", &e))?;
    let _ = maintenance.await;
    fabric::peer_log::end();
    let ending = served?;
    closed?;
    tracing::info!("stopped cleanly");
    Ok(ending)
}

/// Why a listener's work ended before the target stopped.
fn listener_closed(ended: Result<(), JoinError>) -> Failure {
    match ended {
        Ok(()) => Failure::unavailable(
            "a listener closed: the log above says which and why; mend that and start again",
        ),
        Err(error) => internal("a data reactor ended", &error),
    }
}

async fn open_pool(request: PoolRequest, control: &reactor::Handle) -> Result<OpenPool, Failure> {
    let opening = control.spawn(move || async move { pool::open(&request).await });
    let opened = opening.await;
    opened.map_err(|e| internal("opening the pool", &e))?
}

/// The target of a pool that is open, or that another node serves.
fn open_target(
    (pool, pool_uuid): (Pool, Uuid),
    is_new_pool: bool,
    wanted: &Wanted,
    limits: Limits,
) -> Result<Arc<Target>, Failure> {
    Target::open(TargetParts {
        pool,
        pool_uuid,
        is_new_pool,
        listeners: wanted.addresses.clone(),
        listeners_by_default: wanted.by_default,
        listeners_tls: wanted.tls,
        limits,
    })
}

fn pool_request(args: &ServeArgs) -> PoolRequest {
    let create = match (args.create, &args.pool) {
        (Some(0), _) | (None, None) => Create::Default,
        (Some(bytes), _) => Create::Bytes(bytes),
        (None, Some(_)) => Create::No,
    };
    let default = match args.drives.iter().any(DriveArg::is_memory) {
        true => DEFAULT_MEMORY_POOL,
        false => DEFAULT_POOL,
    };
    PoolRequest {
        dir: args.pool.clone().unwrap_or_else(|| PathBuf::from(default)),
        create,
        fingerprint: args.fingerprint,
        redundancy: args.redundancy,
        drives: args.drives.clone(),
        force: args.force.clone(),
        volumes: args.volumes.clone(),
        warn_at: args.warn_at.clone(),
        metadata_cache_bytes: args.metadata_cache,
        drive_answer_max: args.bounds.drive_timeout,
        hedge_after: args.bounds.hedge_after,
        index_bytes_max: args
            .index_memory
            .unwrap_or_else(machine::half_of_memory_bytes),
        shared: None,
    }
}

async fn serve_pool(
    front: Option<Front>,
    wanted: Wanted,
    limits: Limits,
    running: Running,
    pool: &OpenPool,
    around: &Around<'_>,
    signals: &mut Signals,
) -> Result<Ending, Failure> {
    let Around {
        control,
        data,
        http,
        api_group,
        ..
    } = around;
    let (target, listening) = match front {
        Some(Front { target, listening }) => {
            // Hosts are attached, and wait.
            target.take_over(pool.engine.clone()).await?;
            (target, Some(listening))
        }
        None => {
            let is_new_pool = pool.created;
            let pool = (Pool::Here(pool.engine.clone()), pool.uuid);
            (open_target(pool, is_new_pool, &wanted, limits)?, None)
        }
    };
    let kept = target.clone();
    let keeping = control.spawn(move || async move { kept.keep().await });
    if let Err(error) = keeping.await.map_err(|e| internal("keeping", &e))? {
        tracing::warn!(%error, "how volumes are shown is not kept yet: the next change keeps it");
    }
    let telemetry = running.options().telemetry.clone();
    let return_after = running.options().bounds.drive_return;
    let dir = &pool.paths.dir;
    let api = control_socket::bind(dir, *api_group)?;

    let events = records::events(pool);
    recorder::begin(events.clone());
    let listening = match listening {
        Some(listening) => listening,
        None => tokio::select! {
            opened = Front::open(target.clone(), wanted, around) => opened?.listening,
            _ = signals.stop() => return Ok(Ending::Stopped),
        },
    };
    let Listening {
        bound,
        work,
        listeners,
        _told,
    } = listening;

    let exports = Exports::new(
        target.clone(),
        control.clone(),
        data.iter().map(ReactorThread::handle).collect(),
    );
    let health = DriveHealthWatch::new(pool.engine.clone());
    let handover = around.handover.clone();
    let node = Arc::new(NodeInterface {
        handover: handover.clone(),
        health: health.clone(),
        exports: exports.clone(),
        certificate: http.certificate(),
        target: target.clone(),
        pool: pool.serving(),
        dir: pool.dir.clone(),
        spares: Spares::default(),
        control: control.clone(),
        listeners,
        running: Mutex::new(running),
    });
    let (stop_api, api_stopped) = oneshot::channel::<()>();
    let state = ApiState {
        target: target.clone(),
        engine: pool.engine.clone(),
        dir: pool.dir.clone(),
        control: control.clone(),
        daemon: node.clone(),
        events,
        tasks: Arc::default(),
        history: records::history(pool),
        rates: Arc::default(),
        refused: Arc::default(),
        audit: Arc::default(),
    };
    api::tasks::follow_deletions(&state);
    let scrubs = tokio::spawn(api::scrub::keep_schedule(state.clone()));
    let snapshots = tokio::spawn(api::snapshot_schedules::keep(state.clone()));
    let watch = DriveWatch::new(pool.serving(), pool.dir.clone());
    let drive_watch = tokio::spawn(watch.keep(control.clone(), return_after));
    let health_watch = tokio::spawn(health.keep(control.clone()));
    let history = state.history.clone();
    let looking = tokio::spawn(api::history::keep(state.clone()));
    let _sending = Sending::start(&telemetry, &state);
    let api = tokio::spawn(api.serve(api::router(state.clone()), async {
        let _ = api_stopped.await;
    }));

    let recording = target.clone();
    let begun = control.spawn(move || async move { recording.begin_record().await });
    begun.await??;
    let recording = target.clone();
    let kept = control.spawn(move || record::keep(recording));

    exports.serve_kept().await;
    http.serve(state);
    print(&announcement(&bound, &target.catalog()));
    if pool.is_temporary {
        print(&memory_notice(&pool.paths.dir));
    }
    notify::ready();
    let mut first_end = select_all(work);
    let (outcome, listening) = loop {
        tokio::select! {
            told = signals.next() => match told {
                Told::Reload => {
                    notify::reloading();
                    node.reload().await;
                    notify::ready();
                }
                Told::Stop(by) => {
                    tracing::info!("stopping ({by})");
                    break (Ok(Ending::Stopped), first_end.into_inner());
                }
            },
            () = handover.asked() => {
                tracing::info!("stopping: another node is to have the pool");
                break (Ok(Ending::GaveAway), first_end.into_inner());
            }
            (ended, _, others) = &mut first_end => {
                tracing::info!("stopping");
                break (Err(listener_closed(ended)), others);
            }
        }
    };
    notify::stopping();
    http.waiting("the daemon stops");
    target.stop();
    exports.stop().await;
    if outcome.is_ok() {
        let drained = async {
            target.drained().await;
            join_all(listening).await;
        };
        tokio::select! {
            drained = tokio::time::timeout(DRAIN_TIMEOUT, drained) => if drained.is_err() {
                tracing::warn!("hosts' commands are still under way: stopping without them");
            },
            () = signals.insists() => tracing::warn!("told to stop again: not waiting for hosts"),
        }
    }
    let _ = kept.await;
    let ended = control.spawn(move || async move { target.end_record().await });
    if let Ok(Err(error)) = ended.await {
        tracing::warn!(%error, "the clean end was not noted: it will count as an unsafe shutdown");
    }
    scrubs.abort();
    snapshots.abort();
    drive_watch.abort();
    health_watch.abort();
    looking.abort();
    if let Err(error) = history.save() {
        tracing::warn!(%error, "the last minute of the history is not kept");
    }
    let _ = stop_api.send(());
    let _ = tokio::time::timeout(Duration::from_secs(1), api).await;
    outcome
}
