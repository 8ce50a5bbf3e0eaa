//! The target: everything that this daemon offers to hosts, and its changes while hosts are attached.
//!
//! Guarantees:
//! - Hosts are told of a change after it is in force, and only those whose controllers see what changed: a command that
//!   follows the event finds the namespace as it is now.
//! - A host that may no longer use a subsystem is disconnected from it at once.
//! - Concurrent changes run one after the other; none is lost.

pub(crate) mod ana;
mod authentication;
pub(crate) mod discovery;
pub mod export;
mod export_socket;
pub(crate) mod identity;
pub mod import_sessions;
pub mod imports;
pub mod known;
pub(crate) mod live_catalog;
pub mod received;
pub mod record;
mod reservations;
mod smart;
mod standby;
pub mod tls_keys;
pub mod volumes;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use dedup::Engine;
use fabric::{KnownAddresses, TlsMode, Transport, TransportAddress};
use futures_util::lock::Mutex as AsyncMutex;
use nvme::Nqn;
use reactor::lock_whole;
use tokio::sync::{RwLock as AsyncRwLock, watch};
use uuid::Uuid;

use crate::auth::Auth;
use crate::catalog::store::PathStates;
use crate::catalog::{Catalog, PortConfig, UNIQUE_DISCOVERY_PREFIX, store};
use crate::controller::Controller;
use crate::controller::events::EventKind;
use crate::controller::saved_features;
use crate::controller::{Subsystem, SubsystemKind};
use crate::counters::Health;
use crate::describe::{Describe, Description};
use crate::errors::Failure;
use crate::figures::{AttachedHost, IoFigures, ReactorFigures, TransportFigures};
use crate::latency::Latencies;
use crate::limits::Limits;
use crate::lock::lock;
use crate::reservation;
use crate::target::live_catalog::{LiveCatalog, adopt, differences};
use crate::target::record::Record;
use crate::throttle::{Achieved, HeldBack, Limited, Surplus, ThrottleTable};
use crate::trace::{Trace, Traces};

/// A pool that is shown to hosts.
pub enum Pool {
    /// This node serves it.
    Here(Arc<Engine>),
    /// Another node serves it, and says this of it: hosts may connect, and wait ([`Target::take_over`]).
    Elsewhere(Box<Description>),
}

/// What a target is opened with.
pub struct TargetParts {
    /// The pool whose volumes are the namespaces.
    pub pool: Pool,
    /// The pool's identity: serial number and discovery name derive from it, so they are stable over
    /// restarts.
    pub pool_uuid: Uuid,
    /// The pool is new: no host knows its volumes.
    pub is_new_pool: bool,
    /// Listeners beside those that the pool stores; an unspecified address means all of its family.
    pub listeners: Vec<TransportAddress>,
    /// Use these only if the pool stores no listener.
    pub listeners_by_default: bool,
    /// The TLS mode of those of them that are TCP listeners.
    pub listeners_tls: TlsMode,
    /// Bounds.
    pub limits: Limits,
}

/// Everything that this daemon offers to hosts.
pub struct Target {
    /// The default subsystem.
    pub nvm: Arc<Subsystem>,
    /// The discovery subsystem, under its own name; it answers to the well-known one too.
    pub discovery: Arc<Subsystem>,
    /// Set when this node serves the pool.
    engine: OnceLock<Arc<Engine>>,
    /// What the node said of the pool that served it before.
    description: Mutex<Arc<Description>>,
    pool_uuid: Uuid,
    pub(crate) limits: Limits,
    pub(crate) health: Arc<Health>,
    pub(crate) traces: Arc<Traces>,
    pub(crate) throttles: ThrottleTable,
    pub(crate) reservations: reservation::Registry,
    pub(crate) auth: Auth,
    /// Addresses of hosts with a ready admin queue, for the listeners of all reactors.
    pub(crate) known: KnownAddresses,
    /// The serial number of the discovery subsystem, and of the default one of a new pool.
    pub(crate) serial: String,
    live: RwLock<Arc<LiveCatalog>>,
    /// Rises whenever namespaces or volumes changed for somebody.
    generation: AtomicU64,
    /// The same number, for those who wait for changes.
    pub(crate) published: watch::Sender<u64>,
    served: Mutex<Served>,
    /// Held while the configuration is changed.
    changing: AsyncMutex<()>,
    /// Held while it is decided whether a controller's host may have its identifier.
    pub(crate) admitting: Mutex<()>,
    /// Connect commands refused, by transport.
    connects_refused: [AtomicU64; 2],
    /// Those of them whose host is not on the subsystem's list.
    hosts_refused: [AtomicU64; 2],
    stopping: watch::Sender<bool>,
    /// The history of the pool.
    pub(crate) record: Record,
    /// Held while a host's features are saved.
    pub(crate) saving_features: AsyncMutex<()>,
    /// Held to write while an import begins or ends.
    importing: AsyncRwLock<import_sessions::Sessions>,
}

/// The subsystems of the catalog as they are served, the discovery subsystem left out.
#[derive(Default)]
struct Served {
    by_nqn: BTreeMap<Nqn, Arc<Subsystem>>,
    /// Deleted subsystems whose last controllers are ending.
    leaving: Vec<Arc<Subsystem>>,
}

impl Served {
    /// Serves the subsystems of the catalog.
    fn follow(&mut self, catalog: &Catalog, limits: Limits) {
        let gone: Vec<Nqn> = self
            .by_nqn
            .keys()
            .filter(|nqn| !catalog.subsystems.contains_key(nqn))
            .cloned()
            .collect();
        for nqn in gone {
            self.leaving.extend(self.by_nqn.remove(&nqn));
        }
        self.leaving.retain(|s| s.controller_count() > 0);
        for nqn in catalog.subsystems.keys() {
            if !self.by_nqn.contains_key(nqn) {
                // A subsystem that is created again soon keeps its ending associations.
                let known = self.leaving.iter().position(|s| s.nqn == *nqn);
                let subsystem = match known {
                    Some(at) => self.leaving.swap_remove(at),
                    None => Arc::new(Subsystem::new(nqn.clone(), SubsystemKind::Nvm, limits)),
                };
                self.by_nqn.insert(nqn.clone(), subsystem);
            }
        }
    }

    fn all(&self) -> impl Iterator<Item = &Arc<Subsystem>> {
        self.by_nqn.values().chain(&self.leaving)
    }

    fn controllers(&self) -> Vec<Arc<Controller>> {
        self.all().flat_map(|s| s.controllers()).collect()
    }
}

impl std::fmt::Debug for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Target")
            .field("nqn", &self.nvm.nqn)
            .finish_non_exhaustive()
    }
}

impl Target {
    /// A target that hosts can connect to as soon as queues are handed to
    /// `serve_queue`. It watches the engine's volumes and tells
    /// attached hosts what changes.
    ///
    /// # Errors
    /// A setting of the pool cannot be parsed; the message names it.
    pub fn open(parts: TargetParts) -> Result<Arc<Self>, Failure> {
        let TargetParts {
            pool,
            pool_uuid,
            is_new_pool,
            listeners,
            listeners_by_default,
            listeners_tls,
            limits,
        } = parts;
        let (engine, description) = match pool {
            Pool::Here(engine) => (Some(engine), Description::empty(pool_uuid)),
            Pool::Elsewhere(description) => (None, *description),
        };
        let described: &dyn Describe = match &engine {
            Some(engine) => &**engine,
            None => &description,
        };
        saved_features::check(described)?;
        let record = Record::open(described)?;
        let serial = serial_number(pool_uuid);
        let default: Nqn = own_name(crate::DEFAULT_SUBSYSTEM_NQN.to_owned())?;
        let mut catalog = standby::load(described, &serial)?;
        if engine.is_some() {
            // The power came back.
            catalog.end_power_cycle();
        }
        if catalog.ports.is_empty() || !listeners_by_default {
            add_transient_ports(&mut catalog, &listeners, listeners_tls)?;
            restore_paths(&mut catalog, store::load_paths(described)?);
        }
        adopt(&mut catalog, &described.volumes(), is_new_pool);
        catalog.check()?;
        let live = LiveCatalog::new(&catalog, described, engine.as_deref(), None);
        let throttles = ThrottleTable::default();
        throttles.apply(&live.catalog.limits);
        let mut served = Served::default();
        served.follow(&live.catalog, limits);
        let nvm = served.by_nqn.get(&default).cloned();
        let nvm = nvm.ok_or_else(|| crate::catalog::no_subsystem(&default))?;
        let discovery_nqn = own_name(format!("{UNIQUE_DISCOVERY_PREFIX}{pool_uuid}"))?;
        let discovery = Subsystem::new(discovery_nqn, SubsystemKind::Discovery, limits);
        let reservations = reservation::Registry::load(described)?;
        let target = Arc::new(Self {
            nvm,
            discovery: Arc::new(discovery),
            engine: OnceLock::new(),
            description: Mutex::new(Arc::new(description)),
            pool_uuid,
            limits,
            health: Arc::new(Health::new()),
            traces: Arc::default(),
            throttles,
            reservations,
            auth: Auth::new(&limits),
            serial,
            live: RwLock::new(Arc::new(live)),
            generation: AtomicU64::new(1),
            published: watch::Sender::new(1),
            served: Mutex::new(served),
            known: KnownAddresses::default(),
            changing: AsyncMutex::new(()),
            admitting: Mutex::default(),
            connects_refused: Default::default(),
            hosts_refused: Default::default(),
            stopping: watch::Sender::new(false),
            record,
            saving_features: AsyncMutex::new(()),
            importing: AsyncRwLock::default(),
        });
        if let Some(engine) = engine {
            // It is set here alone, or when a standby takes its pool over.
            let _ = target.engine.set(engine);
            target.follow_volumes();
        }
        Ok(target)
    }

    /// Tells hosts what changes of the engine's volumes.
    fn follow_volumes(self: &Arc<Self>) {
        let weak = Arc::downgrade(self);
        if let Some(engine) = self.engine.get() {
            engine.on_change(Box::new(move |change| {
                if let Some(target) = weak.upgrade() {
                    target.publish(None, Some(change.info.uuid));
                }
            }));
        }
    }

    /// Bounds that hosts are told, and held to.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The serial number that the default subsystem of a new pool has.
    #[must_use]
    pub fn serial(&self) -> &str {
        &self.serial
    }

    /// Addresses of hosts with a ready admin queue, for the listeners of all reactors.
    #[must_use]
    pub fn known_addresses(&self) -> &KnownAddresses {
        &self.known
    }

    /// The configuration now.
    #[must_use]
    pub fn catalog(&self) -> Arc<Catalog> {
        self.live().catalog.clone()
    }

    /// The catalog in force now.
    pub(crate) fn live(&self) -> Arc<LiveCatalog> {
        self.live
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Rises whenever a namespace or a volume was made, changed or deleted.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    fn next_generation(&self) {
        let before = self.generation.fetch_add(1, Ordering::AcqRel);
        self.published.send_replace(before + 1);
    }

    /// Changes the configuration. The result of `change` is checked and stored; when this returns it is in force, and
    /// hosts were told.
    ///
    /// # Errors
    /// The error of `change`, or what is wrong with its result; then nothing changed.
    pub async fn change<T>(
        &self,
        change: impl FnOnce(&mut Catalog) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let _changing = self.changing.lock().await;
        let mut next = Catalog::clone(&self.catalog());
        let result = change(&mut next)?;
        next.check()?;
        store::save(self.engine()?, &next).await?;
        self.publish(Some(next), None);
        Ok(result)
    }

    /// Stores the configuration in force, such as the namespaces of an older pool's volumes.
    ///
    /// # Errors
    /// The engine refuses.
    pub async fn keep(&self) -> Result<(), Failure> {
        self.reservations.forget_ended(self.engine()?).await?;
        self.change(|_| Ok(())).await
    }

    /// Puts a new catalog into force, or the present one after this volume changed, and tells the hosts concerned.
    fn publish(&self, next: Option<Catalog>, volume: Option<Uuid>) {
        // A panic in the middle would leave some hosts attached that are not allowed any more.
        let mut served = lock_whole(&self.served);
        let before = self.live();
        let views: Vec<_> = served
            .controllers()
            .into_iter()
            .filter(|controller| !controller.is_ending())
            .map(|controller| (before.view_of(&controller), controller))
            .collect();
        let next = next.as_ref().unwrap_or(&before.catalog);
        let engine = self.engine.get().map(|engine| &**engine);
        let after = self.describe(|pool| LiveCatalog::new(next, pool, engine, Some(&before)));
        let after = Arc::new(after);
        *self.live.write().unwrap_or_else(PoisonError::into_inner) = after.clone();
        served.follow(&after.catalog, self.limits);
        for (nqn, subsystem) in &served.by_nqn {
            if let Some(config) = after.subsystem(nqn) {
                subsystem.assign_private(config);
            }
        }
        self.forget_generated(&after.catalog);
        self.throttles.apply(&after.catalog.limits);
        // Before hosts are told: their next command must see the new state.
        self.next_generation();
        for (seen, controller) in views {
            let config = after.subsystem(&controller.subsystem.nqn);
            let in_clear = controller.tls.is_none();
            if in_clear && after.catalog.has_to_use_tls(&controller.host.nqn) {
                tracing::info!(%controller, "the host must use TLS from now on");
                controller.end();
                continue;
            }
            if !config.is_some_and(|config| config.allows(&controller.host.nqn)) {
                tracing::info!(%controller, "the host may not use the subsystem any more");
                controller.end();
                continue;
            }
            let sees = after.view_of(&controller);
            for nsid in differences(&seen, &sees) {
                controller.events.namespace_changed(nsid);
            }
            if ana::states(&before, &controller) != ana::states(&after, &controller) {
                controller.events.raise(EventKind::AnaChanged);
            }
            // Another node may have changed the size of any.
            let is_resized = |uuid| before.size_of(uuid) != after.size_of(uuid);
            let of_volume = sees.iter().filter(|(_, namespace)| {
                Some(namespace.volume) == volume || is_resized(namespace.volume)
            });
            for (nsid, _) in of_volume {
                controller.events.namespace_changed(*nsid);
            }
        }
        self.tell_discovery(&before, &after);
    }

    /// Tells the discovery controllers whose log page changed.
    fn tell_discovery(&self, before: &LiveCatalog, after: &LiveCatalog) {
        let controllers = self.discovery.controllers();
        let changed: Vec<_> = controllers
            .iter()
            .filter(|controller| {
                discovery::entries(self, &before.catalog, controller)
                    != discovery::entries(self, &after.catalog, controller)
            })
            .collect();
        for controller in changed {
            controller.events.discovery_changed();
        }
    }

    /// A controller was admitted or ended: private namespaces may go to another one.
    pub(crate) fn controllers_changed(&self, subsystem: &Subsystem) {
        let served = lock(&self.served);
        let live = self.live();
        let Some(config) = live.subsystem(&subsystem.nqn) else {
            return;
        };
        if config.namespaces.values().all(|namespace| namespace.shared) {
            return;
        }
        let views: Vec<_> = subsystem
            .controllers()
            .into_iter()
            .map(|controller| (live.view_of(&controller), controller))
            .collect();
        subsystem.assign_private(config);
        self.next_generation();
        for (seen, controller) in views {
            for nsid in differences(&seen, &live.view_of(&controller)) {
                controller.events.namespace_changed(nsid);
            }
        }
        drop(served);
    }

    /// Forgets the reservations of volumes that are no longer there.
    ///
    /// # Errors
    /// The pool takes no changes.
    pub async fn forget_reservations(&self) -> Result<(), dedup::EngineError> {
        self.reservations.forget_deleted(self.engine()?).await
    }

    /// The subsystem of that name.
    #[must_use]
    pub fn subsystem(&self, nqn: &Nqn) -> Option<Arc<Subsystem>> {
        if nqn.is_discovery() || *nqn == self.discovery.nqn {
            return Some(self.discovery.clone());
        }
        lock(&self.served).by_nqn.get(nqn).cloned()
    }

    /// Whether a host may connect to a subsystem; to the discovery subsystem every host may.
    pub(crate) fn allows(&self, subsystem: &Subsystem, host: &Nqn) -> bool {
        subsystem.kind == SubsystemKind::Discovery
            || self
                .live()
                .subsystem(&subsystem.nqn)
                .is_some_and(|config| config.allows(host))
    }

    /// The serial number that a controller's host sees.
    pub(crate) fn serial_of(&self, controller: &Controller) -> String {
        let live = self.live();
        let config = live.subsystem(&controller.subsystem.nqn);
        config.map_or(&self.serial, |config| &config.serial).clone()
    }

    /// Stops: queues take no more commands, finish those in the engine, and close.
    pub fn stop(&self) {
        self.stopping.send_replace(true);
    }

    /// Whether [`Target::stop`] was called.
    pub fn is_stopping(&self) -> bool {
        *self.stopping.borrow()
    }

    /// Waits for [`Target::stop`].
    pub async fn stopped(&self) {
        let mut stopping = self.stopping.subscribe();
        let _ = stopping.wait_for(|stopping| *stopping).await;
    }

    /// Waits until every association has ended and no command can touch a volume.
    pub async fn drained(&self) {
        let all: Vec<_> = lock(&self.served).all().cloned().collect();
        for subsystem in all {
            subsystem.all_gone().await;
        }
        self.discovery.all_gone().await;
    }

    /// Counts a Connect command that was refused.
    pub(crate) fn connect_refused(&self, transport: Transport, is_about_host: bool) {
        self.connects_refused[transport as usize].fetch_add(1, Ordering::Relaxed);
        if is_about_host {
            self.hosts_refused[transport as usize].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The figures of each transport, summed over the reactors' parts.
    #[must_use]
    pub fn transport_figures(&self, parts: &[TransportFigures]) -> Vec<TransportFigures> {
        let mut controllers = self.controllers();
        controllers.extend(self.discovery.controllers());
        let mut all = Vec::new();
        for transport in [Transport::Rdma, Transport::Tcp] {
            let name = transport.to_string();
            let of_transport = || parts.iter().filter(|part| part.transport == name);
            if of_transport().next().is_none() {
                continue;
            }
            let here = || {
                let admitted = controllers.iter().filter(|c| c.is_admitted());
                admitted.filter(|c| c.transport == transport)
            };
            let mut sum = TransportFigures {
                transport: name.clone(),
                controllers: here().count() as u64,
                queues: here().map(|c| c.queue_count() as u64).sum(),
                ..TransportFigures::default()
            };
            of_transport().for_each(|part| sum.add(part));
            let refused = |counters: &[AtomicU64; 2]| {
                let counter = &counters[transport as usize];
                counter.load(Ordering::Relaxed)
            };
            sum.refused.connect = refused(&self.connects_refused);
            sum.refused.host = refused(&self.hosts_refused);
            all.push(sum);
        }
        all
    }

    /// The figures of the reactor that this runs on.
    #[must_use]
    pub fn reactor_figures(&self) -> ReactorFigures {
        let Some(reactor) = reactor::current() else {
            return ReactorFigures::default();
        };
        let buffers = reactor.buffers().stats();
        let of_queues = self.health.of_reactor(reactor.name());
        ReactorFigures {
            name: reactor.name().to_owned(),
            queues: of_queues.queues,
            commands: of_queues.totals.commands(),
            in_flight: of_queues.in_flight,
            busy_micros: u64::try_from(reactor::busy_time().as_micros()).unwrap_or(u64::MAX),
            buffer_bytes: buffers.total_bytes as u64,
            buffer_used_bytes: (buffers.total_bytes - buffers.free_bytes) as u64,
            buffer_waits: buffers.waits_total,
        }
    }

    /// Ends the associations of hosts that connected to a listener.
    pub fn end_controllers_of(&self, port: u16) {
        let mut controllers = self.controllers();
        controllers.extend(self.discovery.controllers());
        for controller in controllers.iter().filter(|c| c.port == port) {
            tracing::info!(%controller, port, "its listener is removed");
            controller.end();
        }
    }

    /// The controllers of all subsystems but the discovery one.
    #[must_use]
    pub fn controllers(&self) -> Vec<Arc<Controller>> {
        lock(&self.served).controllers()
    }

    /// The hosts with an association to a subsystem, discovery not counted, nor hosts that have yet to
    /// authenticate.
    #[must_use]
    pub fn attached_hosts(&self) -> Vec<AttachedHost> {
        self.controllers()
            .iter()
            .filter(|controller| controller.is_admitted() && !controller.is_ending())
            .map(|controller| AttachedHost {
                hostnqn: controller.host.nqn.to_string(),
                subsystem: controller.subsystem.nqn.to_string(),
                address: controller.peer.ip().to_canonical().to_string(),
                transport: controller.transport.to_string(),
                tls: controller.tls.as_ref().map(|tls| tls.suite.to_string()),
                queues: controller.io_queue_count(),
                io: controller.counters.totals().into(),
            })
            .collect()
    }

    /// What hosts did to a volume since the daemon started, and how long their commands took.
    #[must_use]
    pub fn volume_io(&self, volume: Uuid) -> (IoFigures, Latencies) {
        let (totals, latencies) = self.health.of_volume(volume);
        (totals.into(), latencies)
    }

    /// What a limit held back since the daemon started.
    #[must_use]
    pub fn held_back(&self, of: &Limited) -> HeldBack {
        self.throttles.held_back(of)
    }

    /// What a guarantee is worth now; `None` without one.
    #[must_use]
    pub fn achieved(&self, of: &Limited) -> Option<Achieved> {
        self.throttles.achieved(of)
    }

    /// What guarantees leave to all others; `None` without any guarantee.
    #[must_use]
    pub fn surplus(&self) -> Option<Surplus> {
        self.throttles.surplus()
    }

    /// What hosts did to all volumes since the daemon started.
    #[must_use]
    pub fn io(&self) -> IoFigures {
        self.health.totals().into()
    }

    /// How long the commands of hosts took since the daemon started, on all volumes, also those that were deleted.
    #[must_use]
    pub fn latencies(&self) -> Latencies {
        self.health.latencies()
    }

    /// Watches the commands of a host from now on; it may come later.
    ///
    /// # Errors
    /// Too many watch already.
    pub fn trace(&self, host: Nqn) -> Result<Trace, Failure> {
        self.traces.watch(host)
    }

    /// How long the daemon runs, in seconds.
    #[must_use]
    pub fn uptime_seconds(&self) -> u64 {
        self.health.seconds()
    }
}

/// A name that this program made.
fn own_name(text: String) -> Result<Nqn, Failure> {
    text.parse()
        .map_err(|e| Failure::new(dedup::ErrorKind::Internal, format!("'{text}': {e}")))
}

/// Adds listeners that are not stored, with free identifiers.
fn add_transient_ports(
    catalog: &mut Catalog,
    listeners: &[TransportAddress],
    tls: TlsMode,
) -> Result<(), Failure> {
    for address in listeners {
        if catalog.ports.values().any(|port| port.address == *address) {
            continue;
        }
        let id = catalog.free_port_id()?;
        let port = PortConfig {
            is_transient: true,
            tls: match address.scheme.transport() {
                Transport::Tcp => tls,
                Transport::Rdma => TlsMode::Off,
            },
            ..PortConfig::new(id, *address)
        };
        catalog.ports.insert(id, Arc::new(port));
    }
    Ok(())
}

/// Restores the ANA states of listeners that are not stored.
fn restore_paths(catalog: &mut Catalog, paths: Vec<PathStates>) {
    for PathStates { address, ana } in paths {
        let mut ports = catalog.ports.values_mut();
        if let Some(port) = ports.find(|port| port.is_transient && port.address == address) {
            Arc::make_mut(port).ana = ana;
        }
    }
}

/// Twenty characters from the pool's identity.
fn serial_number(pool: Uuid) -> String {
    let mut text = pool.simple().to_string();
    text.truncate(20);
    text
}
