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

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use api::drive_health::DriveHealth;
use api::drives::{AddDrive, DriveChange};
use api::http::Certificate;
use api::reliability::{Reliability, ReliabilityGoal};
use api::{ApiState, Daemon, ExportState, Reloaded};
use dedup::{ErrorKind, PoolStatus, Redundancy};
use fabric::{TlsMode, Transport, TransportAddress};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join_all, select_all};
use futures_util::lock::Mutex;
use meta::PoolDir;
use reactor::{PoolConfig, ReactorThread, RemoteJoin};
use rustix::fs::Mode;
use subsystem::catalog::{ExportConfig, PortChange, PortConfig};
use subsystem::errors::Failure;
use subsystem::figures::Report;
use subsystem::limits::Limits;
use subsystem::target::record;
use subsystem::target::{Target, TargetParts};
use tokio::sync::oneshot;

use crate::announcement::{announcement, memory_notice};
use crate::config::{self, Changes, ReadAgain, Running};
use crate::control_socket::{self, Group};
use crate::descriptors::{self, Asked};
use crate::drive_changes;
use crate::drive_health::DriveHealthWatch;
use crate::drive_watch::DriveWatch;
use crate::exports::Exports;
use crate::http::{Http, renew};
use crate::listen::{self, Everywhere, Wanted, listen_everywhere, live_bounds};
use crate::listeners::{Listeners, port_of};
use crate::logging;
use crate::machine;
use crate::mdns::Mdns;
use crate::notify;
use crate::options::{Buffers, DEFAULT_MEMORY_POOL, DEFAULT_POOL, DriveArg, ServeArgs};
use crate::output::print;
use crate::pool::{self, Create, OpenPool, PoolRequest, Serving};
use crate::recorder;
use crate::records;
use crate::reliability::{Spares, reliability};
use crate::signals::{Signals, Told};
use crate::telemetry::Sending;

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
    // Everything the daemon makes belongs to its user alone: data, keys, the control socket.
    rustix::process::umask(Mode::RWXG | Mode::RWXO);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("onefold-api")
        .enable_all()
        .build()
        .map_err(|e| internal("cannot start the control runtime", &e))?;
    let served = runtime.block_on(serve(Running::new(args.clone(), read_again)));
    recorder::drain();
    served
}

fn internal(what: &str, error: &dyn std::fmt::Display) -> Failure {
    Failure::new(ErrorKind::Internal, format!("{what}: {error}"))
}

async fn serve(running: Running) -> Result<(), Failure> {
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
    let pool = pool_request(args);
    // A pool that is there may keep listeners of its own, which are not known before it is open.
    let can_listen = listen::check(&wanted).await;
    if pool.makes_pool() {
        can_listen?;
    }
    let count = args.reactors.unwrap_or_else(default_reactors);
    let limits = limits(args, wanted.of(Transport::Tcp).count(), count);
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
}

async fn serve_on(
    running: Running,
    request: PoolRequest,
    wanted: Wanted,
    limits: Limits,
    around: &Around<'_>,
    signals: &mut Signals,
) -> Result<(), Failure> {
    let control = &around.control;
    let opening = control.spawn(move || async move { pool::open(&request).await });
    let pool = opening
        .await
        .map_err(|e| internal("opening the pool", &e))??;
    let engine = pool.engine.clone();
    let maintained = engine.clone();
    let maintenance = control.spawn(move || maintained.run_maintenance());
    let served = serve_pool(wanted, limits, running, &pool, around, signals).await;
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
    }
}

async fn serve_pool(
    wanted: Wanted,
    limits: Limits,
    running: Running,
    pool: &OpenPool,
    around: &Around<'_>,
    signals: &mut Signals,
) -> Result<(), Failure> {
    let Around {
        control,
        data,
        http,
        api_group,
    } = around;
    let target = Target::open(TargetParts {
        engine: pool.engine.clone(),
        pool_uuid: pool.uuid,
        is_new_pool: pool.created,
        listeners: wanted.addresses.clone(),
        listeners_by_default: wanted.by_default,
        listeners_tls: wanted.tls,
        limits,
    })?;
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
    let catalog = target.catalog();
    let kept = catalog.ports.values().filter(|port| !port.is_transient);
    let kept: Vec<_> = kept.map(|port| (port.address, port.tls)).collect();
    let mut wanted = wanted;
    if wanted.by_default && !kept.is_empty() {
        (wanted.addresses, wanted.by_default) = (Vec::new(), false);
    }
    let is_kept = |address: &TransportAddress| kept.iter().any(|(kept, _)| kept == address);
    wanted.addresses.retain(|address| !is_kept(address));
    let starting = start_listening(&target, wanted, kept, data);
    let Listening {
        bound,
        work,
        listeners,
    } = tokio::select! {
        started = starting => started?,
        _ = signals.stop() => return Ok(()),
    };

    let exports = Exports::new(
        target.clone(),
        control.clone(),
        data.iter().map(ReactorThread::handle).collect(),
    );
    let health = DriveHealthWatch::new(pool.engine.clone());
    let node = Arc::new(Node {
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
                    break (Ok(()), first_end.into_inner());
                }
            },
            (ended, _, others) = &mut first_end => {
                tracing::info!("stopping");
                let failure = match ended {
                    Ok(()) => Failure::unavailable(
                        "a listener closed: the log above says which and why; mend that and start again",
                    ),
                    Err(error) => internal("a data reactor ended", &error),
                };
                break (Err(failure), others);
            }
        }
    };
    notify::stopping();
    http.stopping();
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

/// What the control interface asks for.
struct Node {
    target: Arc<Target>,
    pool: Serving,
    health: DriveHealthWatch,
    dir: Arc<Mutex<PoolDir>>,
    spares: Spares,
    control: reactor::Handle,
    listeners: Listeners,
    exports: Arc<Exports>,
    certificate: Option<Certificate>,
    running: Mutex<Running>,
}

impl Node {
    /// SIGHUP, without a terminal.
    async fn reload(&self) {
        let has_file = self.running.lock().await.file().is_ok();
        let reloaded = match has_file {
            true => self.reload_file().await.map(drop),
            false => {
                let running = self.running.lock().await;
                let renewed = renew(self.certificate.as_ref(), &running.options().http);
                renewed
                    .inspect_err(|failure| tracing::error!("the old certificate stays: {failure}"))
            }
        };
        if reloaded.is_err() {
            return;
        }
        self.listeners.reload(&self.target).await;
        self.exports.serve_kept().await;
    }

    /// Reads the configuration file again.
    async fn reload_file(&self) -> Result<Reloaded, Failure> {
        let mut running = self.running.lock().await;
        let file = running.file()?;
        let read = running.read_again().map_err(Failure::invalid);
        let reloaded = match read {
            Ok(wanted) => match wanted.check_here() {
                Ok(()) => self.apply(&mut running, file, &wanted).await,
                Err(why) => Err(Failure::invalid(why)),
            },
            Err(failure) => Err(failure),
        };
        match reloaded {
            Ok(changes) => {
                tracing::info!("the configuration file was read again: {changes}");
                Ok(changes.into())
            }
            Err(failure) => {
                let why = failure.to_string().replace('\n', "; ");
                tracing::error!("the configuration file was read again, and not applied: {why}");
                Err(failure)
            }
        }
    }

    /// Applies what can change while the daemon runs.
    async fn apply(
        &self,
        running: &mut Running,
        file: PathBuf,
        wanted: &ServeArgs,
    ) -> Result<Changes, Failure> {
        let (applied, waiting) = running.differences(wanted);
        let names = config::names(&applied);
        let has = |key: &str| names.iter().any(|name| name == key);
        // What can fail comes first: then nothing else has changed.
        renew(self.certificate.as_ref(), &wanted.http)?;
        if has("listen.addresses") {
            self.listen_at(&running.options().listen, wanted).await?;
        }
        if has("pool.warn_at") {
            self.pool.engine.set_fill_warnings(&wanted.warn_at)?;
        }
        if has("log.filter") {
            logging::set(&wanted.log).map_err(Failure::invalid)?;
        }
        if has("tls.mode") {
            self.set_tls(wanted.tls).await?;
        }
        if names
            .iter()
            .any(|name| name.starts_with("timeouts.") || name.starts_with("limits."))
        {
            self.listeners
                .set_bounds(live_bounds(&wanted.bounds.limits()))
                .await;
        }
        running.applied(&applied, wanted);
        Ok(Changes::from(Reloaded {
            file,
            applied: names,
            waiting: config::names(&waiting),
        }))
    }

    /// Sets whether hosts come by TLS to the listeners of the options. Those that the pool keeps have a mode of their
    /// own.
    async fn set_tls(&self, tls: TlsMode) -> Result<(), Failure> {
        let catalog = self.target.catalog();
        let ports = catalog.ports.values().filter(|port| port.is_transient);
        let is_tcp = |port: &&Arc<PortConfig>| port.address.scheme.transport() == Transport::Tcp;
        for port in ports.filter(is_tcp) {
            let (target, id) = (self.target.clone(), port.id);
            self.listeners
                .set(target, &self.control, id, tls_of(port.address, tls))
                .await?;
        }
        Ok(())
    }

    /// Listens at the addresses that are wanted instead of those that were. Listeners that the pool keeps stay.
    async fn listen_at(
        &self,
        were: &[TransportAddress],
        wanted: &ServeArgs,
    ) -> Result<(), Failure> {
        let catalog = self.target.catalog();
        let mut added = Vec::new();
        for address in wanted
            .listen
            .iter()
            .filter(|address| !were.contains(address))
        {
            if port_of(&catalog, *address).is_some()
                || added.iter().any(|(known, _)| known == address)
            {
                continue;
            }
            let (target, set) = (self.target.clone(), tls_of(*address, wanted.tls));
            match self
                .listeners
                .add(target, &self.control, *address, set, false)
                .await
            {
                Ok(port) => added.push((*address, port.id)),
                Err(failure) => {
                    for (_, id) in added {
                        // It was there a moment ago; a daemon that stops needs it no longer.
                        let _ = self
                            .listeners
                            .remove(self.target.clone(), &self.control, id)
                            .await;
                    }
                    return Err(failure);
                }
            }
        }
        for address in were
            .iter()
            .filter(|address| !wanted.listen.contains(address))
        {
            let port = port_of(&catalog, *address).filter(|port| port.is_transient);
            if let Some(port) = port {
                self.listeners
                    .remove(self.target.clone(), &self.control, port.id)
                    .await?;
            }
        }
        Ok(())
    }
}

/// The TLS mode of the options, for a listener at that address.
fn tls_of(address: TransportAddress, tls: TlsMode) -> PortChange {
    PortChange {
        tls: (address.scheme.transport() == Transport::Tcp).then_some(tls),
        ..PortChange::default()
    }
}

impl Daemon for Node {
    fn reload_config(&self) -> BoxFuture<'_, Result<Reloaded, Failure>> {
        self.reload_file().boxed()
    }

    fn reports(&self) -> BoxFuture<'_, Vec<Report>> {
        self.listeners.reports().boxed()
    }

    fn add_listener(
        &self,
        address: TransportAddress,
        set: PortChange,
    ) -> BoxFuture<'_, Result<PortConfig, Failure>> {
        let (target, control) = (self.target.clone(), &self.control);
        self.listeners
            .add(target, control, address, set, true)
            .boxed()
    }

    fn set_listener(&self, id: u16, set: PortChange) -> BoxFuture<'_, Result<PortConfig, Failure>> {
        let (target, control) = (self.target.clone(), &self.control);
        self.listeners.set(target, control, id, set).boxed()
    }

    fn remove_listener(&self, id: u16) -> BoxFuture<'_, Result<PortConfig, Failure>> {
        let (target, control) = (self.target.clone(), &self.control);
        self.listeners.remove(target, control, id).boxed()
    }

    fn exports(&self) -> BoxFuture<'_, BTreeMap<u16, ExportState>> {
        self.exports.states().boxed()
    }

    fn create_export(&self, export: ExportConfig) -> BoxFuture<'_, Result<ExportConfig, Failure>> {
        self.exports.create(export).boxed()
    }

    fn delete_export(&self, id: u16) -> BoxFuture<'_, Result<ExportConfig, Failure>> {
        self.exports.delete(id).boxed()
    }

    fn add_drive(&self, add: AddDrive) -> BoxFuture<'_, Result<(), Failure>> {
        let (pool, dir) = (self.pool.clone(), self.dir.clone());
        let work = move || async move {
            let mut dir = dir.lock().await;
            match add.spare {
                true => drive_changes::add_spare(&pool.engine, &mut dir, add).await,
                false => drive_changes::add_drive(&pool, &mut dir, add).await,
            }
        };
        let work = self.control.spawn(work);
        async move { work.await? }.boxed()
    }

    fn change_drive(
        &self,
        path: PathBuf,
        change: DriveChange,
    ) -> BoxFuture<'_, Result<(), Failure>> {
        let (pool, dir) = (self.pool.clone(), self.dir.clone());
        let work = move || async move {
            let mut dir = dir.lock().await;
            drive_changes::change_drive(&pool, &mut dir, &path, change).await
        };
        let work = self.control.spawn(work);
        async move { work.await? }.boxed()
    }

    fn metadata_drives(&self) -> Vec<String> {
        let metadata = self.pool.metadata.as_ref();
        metadata.map_or_else(Vec::new, |metadata| metadata.copies.state().names)
    }

    fn drive_health(&self) -> BTreeMap<String, DriveHealth> {
        self.health.all()
    }

    fn set_redundancy(&self, redundancy: Redundancy) -> BoxFuture<'_, Result<(), Failure>> {
        let engine = self.pool.engine.clone();
        let work = move || async move { engine.set_redundancy(redundancy).await };
        let work = self.control.spawn(work);
        async move { Ok(work.await??) }.boxed()
    }

    fn reliability(&self, goal: &ReliabilityGoal, space: &PoolStatus) -> Reliability {
        reliability(&self.pool.engine, goal, space, self.spares.of(&self.dir))
    }
}

/// What came of listening.
struct Listening {
    bound: Vec<TransportAddress>,
    /// The reactors' work, which ends when the target stops.
    work: Vec<RemoteJoin<()>>,
    listeners: Listeners,
}

/// Lets every data reactor listen. Of the listeners that the pool keeps some may be missing: a network card that is gone must not keep the pool from
/// being served.
async fn start_listening(
    target: &Arc<Target>,
    wanted: Wanted,
    kept: Vec<(TransportAddress, TlsMode)>,
    data: &[ReactorThread],
) -> Result<Listening, Failure> {
    let how = wanted.clone();
    let mdns = match how.mdns {
        true => Some(Mdns::start(target.discovery.nqn.clone())?),
        false => None,
    };
    let Everywhere {
        mut bound,
        work,
        reactors,
    } = listen_everywhere(target, wanted, data).await?;
    let listeners = Listeners::new(reactors, &how, mdns);
    for (address, tls) in kept {
        match listeners.open_soon(address, tls).await {
            Ok(()) => bound.push(address),
            Err(error) => {
                tracing::error!(
                    %address, %error,
                    "a listener that the pool keeps is not served: a reload (SIGHUP) tries again, \
                     `onefold listener remove` forgets it"
                );
                listeners.note_missing(address).await;
            }
        }
    }
    if bound.is_empty() {
        return Err(Failure::unavailable(
            "none of the pool's listeners can be served (see the log): name an address with --listen",
        ));
    }
    listeners.announce(&bound);
    Ok(Listening {
        bound,
        work,
        listeners,
    })
}
