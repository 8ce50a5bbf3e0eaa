//! A controller: the target's end of an association with one host.
//!
//! An association begins with the Connect of an admin queue and ends with that queue, with the
//! keep-alive timeout, or with the daemon. Its I/O queues come and go in between.
//!
//! Guarantees:
//! - The state machine of CC and CSTS follows NVM Express Base 2.0, section 3.5: a configuration that
//!   cannot work raises the fatal status, a reset ends the I/O queues and waiting requests, a
//!   shutdown makes data durable before it is reported complete.
//! - A reset makes it another instance, at the moment when the queues of the one before begin to close.
//! - `Controller::end` ends it in any state: it counts as ended at once, and is forgotten when its last command is done.

pub(crate) mod events;
pub(crate) mod features;
pub(crate) mod instance;
pub(crate) mod resets;
pub(crate) mod saved_features;
pub(crate) mod snapshots;
mod subsystem;
pub(crate) mod waiting;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fabric::serving::Barriers;
use fabric::serving::keep_alive::{self, LastHeard};
use fabric::{TlsSession, Transport};
use nvme::log::ErrorLog;
use nvme::properties::{Capabilities, ControllerStatus, Registers, VERSION_1_4};
use nvme::{Nqn, Status};
use tokio::sync::{Notify, watch};

use crate::catalog::Catalog;
use crate::counters::ControllerCounters;
use crate::limits::{Limits, QueueLimits};
use crate::lock::lock;
use crate::reservation::Notifications;
use events::{EventKind, Events};
use features::FeatureState;
use instance::Instance;
use resets::{Awaited, Impacted, Resets};
use saved_features::Values;
use snapshots::Snapshots;
pub use subsystem::{Host, Subsystem, SubsystemKind};
use waiting::Waiting;

/// How long a discovery controller without a keep-alive timeout lives without a command: the idle
/// time that nvmet gives one (NVMET_DISC_KATO_MS).
const DISCOVERY_IDLE: Duration = Duration::from_secs(120);

/// CAP.TO: the longest time to become ready, in units of 500 ms. As nvmet.
const READY_TIMEOUT_500MS: u8 = 15;

/// Controllers made so far.
static MADE: AtomicU64 = AtomicU64::new(0);

/// A queue of an association, as tasks other than its own see it.
#[derive(Debug)]
pub(crate) struct QueueHandle {
    pub(crate) qid: u16,
    pub(crate) waiting: Waiting,
    close: watch::Sender<bool>,
    /// A command came in since the keep-alive timer looked last.
    alive: AtomicBool,
    /// By which others wait until no command that arrived before can touch a volume.
    pub(crate) barriers: Barriers,
}

impl QueueHandle {
    pub(crate) fn new(qid: u16) -> Arc<Self> {
        Arc::new(Self {
            qid,
            waiting: Waiting::default(),
            close: watch::Sender::new(false),
            alive: AtomicBool::new(true),
            barriers: Barriers::default(),
        })
    }

    fn saw_command(&self) {
        if !self.alive.load(Ordering::Relaxed) {
            self.alive.store(true, Ordering::Relaxed);
        }
    }

    /// Asks the queue's task to end it.
    pub(crate) fn close(&self) {
        self.close.send_replace(true);
    }

    fn is_closing(&self) -> bool {
        *self.close.borrow()
    }

    /// Waits for [`QueueHandle::close`].
    pub(crate) async fn close_requested(&self) {
        let mut close = self.close.subscribe();
        let _ = close.wait_for(|close| *close).await;
    }
}

/// A discovery log that a host reads in pieces: the log as it was when the host read its beginning.
#[derive(Clone, Debug)]
pub(crate) struct DiscoveryReading {
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) generation: u64,
}

/// The parts of a new controller.
pub(crate) struct NewController {
    pub(crate) subsystem: Arc<Subsystem>,
    /// The subsystem name that the host used in Connect.
    pub(crate) known_as: Nqn,
    pub(crate) host: Host,
    pub(crate) peer: SocketAddr,
    pub(crate) local: SocketAddr,
    pub(crate) transport: Transport,
    pub(crate) tls: Option<TlsSession>,
    pub(crate) port: u16,
    pub(crate) kato_ms: u32,
    pub(crate) limits: Limits,
    /// The features that the host saved.
    pub(crate) saved: Values,
}

/// A controller. Usable from every thread.
pub struct Controller {
    /// Its identifier in the subsystem.
    pub id: u16,
    /// The host it belongs to.
    pub host: Host,
    /// The host's address.
    pub peer: SocketAddr,
    /// The address that the host connected to.
    pub local: SocketAddr,
    /// The transport of its queues.
    pub transport: Transport,
    /// The TLS session of its admin queue, if there is one: then all its queues use TLS.
    pub tls: Option<TlsSession>,
    /// The identifier of the listener that the host connected to (PORTID); 0 if unknown.
    pub port: u16,
    /// Later controllers have higher numbers, whatever their identifiers are.
    pub(crate) order: u64,
    pub(crate) subsystem: Arc<Subsystem>,
    /// The subsystem name that the host used in Connect: the discovery subsystem has two. Identify shows it, so that the
    /// host can disconnect by that name.
    pub(crate) known_as: Nqn,
    pub(crate) limits: Limits,
    pub(crate) events: Events,
    /// What its queues did.
    pub(crate) counters: ControllerCounters,
    pub(crate) errors: Mutex<ErrorLog>,
    /// The discovery log that the host is reading.
    pub(crate) discovery: Mutex<Option<DiscoveryReading>>,
    pub(crate) reservations: Notifications,
    pub(crate) snapshots: Mutex<Snapshots>,
    /// The resets of other controllers that its host asked it for.
    pub(crate) resets: Mutex<Resets>,
    state: Mutex<State>,
    /// Its host has authenticated, or need not: other parts of the target take it into account.
    admitted: AtomicBool,
    /// Its host has proved its name.
    proven: AtomicBool,
    /// A copy for commands, without the lock: whether the controller is enabled and works.
    usable: AtomicBool,
    /// The same: whether the host switched the volatile write cache off.
    write_through: AtomicBool,
    keep_alive_changed: Notify,
    heard: LastHeard,
    /// Whether an I/O queue was used.
    has_io: AtomicBool,
    ending: watch::Sender<bool>,
    /// Notified when a queue is detached.
    queue_detached: Notify,
}

struct State {
    registers: Registers,
    instance: Instance,
    kato_ms: u32,
    features: FeatureState,
    queues: BTreeMap<u16, Arc<QueueHandle>>,
}

/// What the caller has to do after a change of the configuration.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ConfigurationChange {
    /// Nothing more.
    Done,
    /// Make data durable, then call [`Controller::shutdown_complete`].
    Shutdown,
}

impl std::fmt::Display for Controller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({} from {})", self.id, self.host.nqn, self.peer)
    }
}

impl std::fmt::Debug for Controller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Controller")
            .field("id", &self.id)
            .field("host", &self.host.nqn)
            .field("peer", &self.peer)
            .finish_non_exhaustive()
    }
}

impl Controller {
    pub(crate) fn new(id: u16, new: NewController) -> Arc<Self> {
        let features = FeatureState::starting_with(new.saved);
        let events = Events::default();
        events.set_wanted(features.saved_events());
        let write_through = AtomicBool::new(!features.write_cache());
        Arc::new(Self {
            id,
            host: new.host,
            peer: new.peer,
            local: new.local,
            transport: new.transport,
            tls: new.tls,
            port: new.port,
            order: MADE.fetch_add(1, Ordering::Relaxed),
            subsystem: new.subsystem,
            known_as: new.known_as,
            limits: new.limits,
            events,
            counters: ControllerCounters::default(),
            errors: Mutex::default(),
            discovery: Mutex::default(),
            reservations: Notifications::default(),
            snapshots: Mutex::default(),
            resets: Mutex::default(),
            state: Mutex::new(State {
                registers: Registers::default(),
                instance: Instance::new(),
                kato_ms: new.kato_ms,
                features,
                queues: BTreeMap::new(),
            }),
            admitted: AtomicBool::new(false),
            proven: AtomicBool::new(false),
            usable: AtomicBool::new(false),
            write_through,
            keep_alive_changed: Notify::new(),
            heard: LastHeard::new(reactor::now()),
            has_io: AtomicBool::new(false),
            ending: watch::Sender::new(false),
            queue_detached: Notify::new(),
        })
    }

    /// Whether the association has ended; its last commands may still be on their way.
    pub fn is_ending(&self) -> bool {
        *self.ending.borrow()
    }

    /// Whether its host has authenticated, or need not.
    pub fn is_admitted(&self) -> bool {
        self.admitted.load(Ordering::Acquire)
    }

    /// Whether its host has proved its name, by authentication or by a TLS key.
    pub(crate) fn is_proven(&self) -> bool {
        self.proven.load(Ordering::Acquire)
    }

    /// Marks it as admitted; returns whether it was not before. Only for `Target::admit`.
    pub(crate) fn admit(&self, proven: bool) -> bool {
        if proven {
            self.proven.store(true, Ordering::Release);
        }
        !self.admitted.swap(true, Ordering::AcqRel)
    }

    /// Whether this authenticated queue makes its host's address a known one: it is an admin queue, and not one of a
    /// discovery controller, which every host gets.
    pub(crate) fn is_ready_admin(&self, handle: &QueueHandle) -> bool {
        handle.qid == 0 && !self.is_discovery()
    }

    /// Whether both belong to the same host, which came from and to the same addresses.
    pub(crate) fn is_same_path(&self, other: &Self) -> bool {
        self.host == other.host
            && self.transport == other.transport
            && self.local == other.local
            && self.peer.ip() == other.peer.ip()
    }

    /// I/O queues now.
    pub fn io_queue_count(&self) -> u16 {
        let state = lock(&self.state);
        let count = state.queues.keys().filter(|&&qid| qid != 0).count();
        u16::try_from(count).unwrap_or(u16::MAX)
    }

    /// Queues now, the admin queue included.
    pub(crate) fn queue_count(&self) -> usize {
        lock(&self.state).queues.len()
    }

    /// Whether it offers the discovery log page instead of namespaces.
    pub(crate) fn is_discovery(&self) -> bool {
        self.subsystem.kind == SubsystemKind::Discovery
    }

    /// Bounds of its I/O queues.
    pub(crate) fn queue_limits(&self) -> QueueLimits {
        self.limits.queue(self.transport)
    }

    /// CAP.
    pub(crate) fn capabilities(&self) -> Capabilities {
        Capabilities {
            max_queue_entries: self.queue_limits().depth.saturating_sub(1),
            contiguous_queues: true,
            timeout_500ms: READY_TIMEOUT_500MS,
            nvm_command_set: true,
            command_sets: true,
            page_size_min: 0,
            page_size_max: 0,
        }
    }

    /// VS.
    pub(crate) fn version(&self) -> u32 {
        VERSION_1_4
    }

    /// CC.
    pub(crate) fn configuration(&self) -> u32 {
        lock(&self.state).registers.configuration()
    }

    /// CSTS.
    pub(crate) fn status(&self) -> ControllerStatus {
        lock(&self.state).registers.status()
    }

    /// Whether it is enabled and ready: only then it takes I/O queues, and commands other than
    /// Fabrics ones.
    pub(crate) fn is_ready(&self) -> bool {
        self.usable.load(Ordering::Acquire)
    }

    /// Whether writes must be durable when they are answered.
    pub(crate) fn is_write_through(&self) -> bool {
        self.write_through.load(Ordering::Acquire)
    }

    /// Changes the state, and the copies of it for commands.
    fn change<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        let mut state = lock(&self.state);
        let result = f(&mut state);
        self.usable
            .store(state.registers.is_usable(), Ordering::Release);
        self.write_through
            .store(!state.features.write_cache(), Ordering::Release);
        result
    }

    /// Writes CC.
    pub(crate) fn configure(&self, value: u32) -> ConfigurationChange {
        self.change(|state| self.configure_state(state, value))
    }

    fn configure_state(&self, state: &mut State, value: u32) -> ConfigurationChange {
        let change = state.registers.configure(value);
        if change.unsupported {
            fabric::log_of_peer!(warn, "configuration", self.peer.ip(), controller = %self, configuration = format_args!("{value:#x}"), "the host asks for a configuration that is not supported");
        }
        if change.reset {
            self.reset(state);
        }
        match change.shutdown {
            true => ConfigurationChange::Shutdown,
            false => ConfigurationChange::Done,
        }
    }

    /// A controller reset: I/O queues end, waiting requests are aborted, all is as after Connect.
    fn reset(&self, state: &mut State) {
        state.features = state.features.reset();
        self.events.set_wanted(state.features.saved_events());
        self.reservations.reset();
        lock(&self.snapshots).clear();
        lock(&self.resets).clear();
        // The closing queues below are those of the instance before.
        state.instance = state.instance.next();
        for queue in state.queues.values().filter(|queue| queue.qid != 0) {
            queue.close();
        }
        if let Some(admin) = state.queues.get(&0) {
            admin.waiting.abort_all();
        }
    }

    /// Data is durable: the shutdown that the host asked for is complete.
    pub(crate) fn shutdown_complete(&self) {
        lock(&self.state).registers.shutdown_complete();
    }

    /// Which life of the controller this is.
    pub(crate) fn instance(&self) -> Instance {
        lock(&self.state).instance
    }

    /// Whether no command of this instance, which the controller has or had, can be under way on its I/O queues. The admin
    /// queue goes with the controller.
    pub(crate) fn has_ended(&self, instance: Instance) -> bool {
        let state = lock(&self.state);
        let mut queues = state.queues.values();
        state.instance != instance && !queues.any(|queue| queue.qid != 0 && queue.is_closing())
    }

    /// What resets of other controllers waited for may have happened. The host is told of those that are over now.
    pub(crate) fn settle_resets(&self, awaited: Awaited, is_over: impl Fn(&Impacted) -> bool) {
        let mut over = lock(&self.resets).awaiting(awaited);
        over.retain(is_over);
        if !over.is_empty() && lock(&self.resets).ended(&over) {
            self.events.raise(EventKind::ControllerResetCompleted);
        }
    }

    /// Uses the feature values.
    pub(crate) fn with_features<T>(&self, f: impl FnOnce(&mut FeatureState) -> T) -> T {
        self.change(|state| f(&mut state.features))
    }

    /// The keep-alive timeout as the host set it, in milliseconds; 0 is none.
    pub(crate) fn kato_ms(&self) -> u32 {
        lock(&self.state).kato_ms
    }

    /// Sets the keep-alive timeout and starts it anew.
    pub(crate) fn set_kato_ms(&self, kato_ms: u32) {
        lock(&self.state).kato_ms = kato_ms;
        self.heard.again(reactor::now());
        self.keep_alive_changed.notify_one();
    }

    /// How long a silent host counts as alive: the timeout, rounded up to the granularity.
    fn keep_alive(&self) -> Option<Duration> {
        match self.kato_ms() {
            0 if self.is_discovery() => Some(DISCOVERY_IDLE),
            kato_ms => keep_alive::timeout_of(kato_ms),
        }
    }

    /// Waits until the keep-alive timer has expired. Every command on any queue restarts it.
    pub(crate) async fn keep_alive_expired(&self) {
        keep_alive::expired(
            || self.keep_alive(),
            || self.keep_alive_changed.notified(),
            || self.was_alive(),
        )
        .await;
    }

    /// A command arrived on a queue: the host is alive (traffic-based keep alive). False if the association is over because
    /// the host was silent before, by the clock: then the command must not begin, whatever this machine did meanwhile.
    pub(crate) fn hears(&self, queue: &QueueHandle) -> bool {
        queue.saw_command();
        let is_in_time = self.heard.hears(reactor::recently(), || self.keep_alive());
        if !is_in_time {
            self.end_silent();
        }
        is_in_time
    }

    /// A command arrives on a queue that may run it.
    pub(crate) fn is_used_by(&self, queue: &QueueHandle) {
        if queue.qid != 0 && !self.has_io.load(Ordering::Relaxed) {
            self.has_io.store(true, Ordering::Relaxed);
        }
    }

    /// The host's silence up to now does not count, if nothing of it was on its way to a namespace meanwhile.
    pub(crate) fn excuse_silence(&self) {
        if !self.has_io.load(Ordering::Relaxed) {
            self.heard.again(reactor::recently());
        }
    }

    /// Whether its host has been silent for longer than its keep-alive timeout, by the clock.
    pub(crate) fn is_silent(&self) -> bool {
        self.heard.is_silent(reactor::now(), self.keep_alive())
    }

    /// Ends the association of a host that is silent, or that asks for it elsewhere. No connection may have told yet.
    pub(crate) fn end_silent(&self) {
        self.fail();
        self.end();
    }

    /// Whether a command arrived on any queue since the last call.
    fn was_alive(&self) -> bool {
        let state = lock(&self.state);
        let queues = state.queues.values();
        // All queues are asked, because asking clears their flags.
        let alive = queues.filter(|queue| queue.alive.swap(false, Ordering::Relaxed));
        alive.count() > 0
    }

    /// The controller failed: the host sees it in CSTS.
    pub(crate) fn fail(&self) {
        self.change(|state| state.registers.fail());
    }

    /// Adds a queue.
    ///
    /// # Errors
    /// Command Sequence Error: the queue exists, or the controller is not ready for I/O queues.
    /// Controller Busy: the association has ended.
    pub(crate) fn attach(&self, handle: &Arc<QueueHandle>) -> Result<(), Status> {
        let mut state = lock(&self.state);
        if self.is_ending() {
            return Err(Status::CONNECT_CONTROLLER_BUSY);
        }
        if handle.qid != 0 && !state.registers.is_usable() {
            return Err(Status::COMMAND_SEQUENCE.with_dnr());
        }
        match state.queues.get(&handle.qid) {
            None => {}
            // Its last commands are ending: the identifier is free in a moment.
            Some(present) if present.is_closing() => return Err(Status::CONNECT_CONTROLLER_BUSY),
            Some(_) => return Err(Status::COMMAND_SEQUENCE.with_dnr()),
        }
        state.queues.insert(handle.qid, handle.clone());
        Ok(())
    }

    /// Removes a queue whose commands are all done.
    pub(crate) fn detach(&self, handle: &Arc<QueueHandle>) {
        let mut state = lock(&self.state);
        if state
            .queues
            .get(&handle.qid)
            .is_some_and(|present| Arc::ptr_eq(present, handle))
        {
            state.queues.remove(&handle.qid);
        }
        drop(state);
        self.queue_detached.notify_waiters();
        if !self.is_ending() {
            // It may have been the last queue from before a reset. A controller that ends settles them when it is removed.
            self.subsystem.settle_resets();
        }
    }

    /// The queue of that identifier.
    pub(crate) fn queue(&self, qid: u16) -> Option<Arc<QueueHandle>> {
        lock(&self.state).queues.get(&qid).cloned()
    }

    /// The I/O queues now.
    pub(crate) fn io_queues(&self) -> Vec<Arc<QueueHandle>> {
        let state = lock(&self.state);
        let queues = state.queues.values();
        queues.filter(|queue| queue.qid != 0).cloned().collect()
    }

    /// Ends the association: no queue can be added, and all queues close.
    pub(crate) fn end(&self) {
        let state = lock(&self.state);
        self.ending.send_replace(true);
        for queue in state.queues.values() {
            queue.close();
        }
    }

    /// Waits until every queue is detached.
    pub(crate) async fn queues_gone(&self) {
        loop {
            let mut detached = std::pin::pin!(self.queue_detached.notified());
            detached.as_mut().enable();
            if lock(&self.state).queues.is_empty() {
                return;
            }
            detached.await;
        }
    }
}
