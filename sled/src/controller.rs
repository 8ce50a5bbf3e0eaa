//! Associations with hosts: controllers and their queues. Usable from every thread.
//!
//! Guarantees:
//! - The state machine of CC and CSTS is that of [`nvme::properties::Registers`]; a reset ends the I/O queues.
//! - Controller identifiers rotate: a used one is used again only after all others. The first one of a run is random, so
//!   that it does not meet one that a host still remembers.
//! - A controller keeps its identifier until its last command is done.
//! - Hosts that have yet to authenticate take a part of the controllers only; beyond that one of them goes for the next.
//! - A host that connects again is admitted only when none of its earlier, ended associations can still touch a drive.
//! - An association whose host was silent for longer than its keep-alive timeout is over, by the clock, also if this
//!   machine stood still meanwhile: no command that comes after that begins, whatever waits in a socket.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fabric::Transport;
use fabric::admission::{Admission, PlaceNumber};
use fabric::serving::Barriers;
use fabric::serving::keep_alive::{self, LastHeard};
use nvme::log::ErrorLog;
use nvme::properties::{ConfigurationEffect, ControllerStatus, Registers};
use nvme::{Nqn, Status};
use reactor::lock_whole as lock;
use reactor::sync::{Event, Notify};
use reservations::HostId;

use crate::limits::DISCOVERY_IDLE;

/// The largest controller identifier that a controller may have; FFF0h and above are reserved.
const CNTLID_MAX: u16 = 0xffef;

/// Controllers whose hosts have yet to authenticate: this fraction (1/4) of all for unknown addresses, and as much again for
/// addresses with a ready admin queue.
const UNPROVEN_SHARE: usize = 4;

/// What a controller is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The drives as namespaces.
    Nvm,
    /// The discovery log page.
    Discovery,
}

/// The host of an association. Admin and I/O queues must name the same one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Host {
    pub(crate) nqn: Nqn,
    pub(crate) id: [u8; 16],
}

/// A queue of an association, as tasks other than its own see it.
#[derive(Debug)]
pub(crate) struct QueueHandle {
    pub(crate) qid: u16,
    /// Its task has to end it.
    pub(crate) close: Event,
    /// A command came in since the keep-alive timer looked last.
    alive: AtomicBool,
    /// By which others wait until no command that arrived before can touch a drive.
    pub(crate) barriers: Barriers,
}

impl QueueHandle {
    pub(crate) fn new(qid: u16) -> Arc<Self> {
        Arc::new(Self {
            qid,
            close: Event::new(),
            alive: AtomicBool::new(true),
            barriers: Barriers::default(),
        })
    }

    fn saw_command(&self) {
        if !self.alive.load(Ordering::Relaxed) {
            self.alive.store(true, Ordering::Relaxed);
        }
    }
}

/// The parts of a new controller.
#[derive(Clone, Debug)]
pub(crate) struct NewController {
    pub(crate) kind: Kind,
    pub(crate) host: Host,
    pub(crate) peer: SocketAddr,
    pub(crate) local: SocketAddr,
    pub(crate) transport: Transport,
    /// Its admin queue has TLS.
    pub(crate) is_by_tls: bool,
    pub(crate) kato_ms: u32,
}

/// An association with a host.
#[derive(Debug)]
pub(crate) struct Controller {
    pub(crate) id: u16,
    pub(crate) kind: Kind,
    pub(crate) host: Host,
    pub(crate) peer: SocketAddr,
    /// The address that the host connected to.
    pub(crate) local: SocketAddr,
    pub(crate) transport: Transport,
    pub(crate) is_by_tls: bool,
    pub(crate) errors: Mutex<ErrorLog>,
    state: Mutex<State>,
    /// A copy for commands, without the lock: whether it is enabled and works.
    usable: AtomicBool,
    /// The host switched the volatile write cache off.
    write_through: AtomicBool,
    keep_alive_changed: Notify,
    heard: LastHeard,
    ending: AtomicBool,
    /// Its host has proved what it has to.
    admitted: AtomicBool,
    queue_detached: Notify,
}

#[derive(Debug)]
struct State {
    registers: Registers,
    kato_ms: u32,
    /// Feature 0Bh, the events that the host asks for. None is ever due: what is served does not change.
    events: u32,
    /// Feature 07h: I/O queues that were granted.
    granted_queues: Option<u16>,
    queues: BTreeMap<u16, Arc<QueueHandle>>,
}

impl Controller {
    fn new(id: u16, new: NewController) -> Self {
        Self {
            id,
            kind: new.kind,
            host: new.host,
            peer: new.peer,
            local: new.local,
            transport: new.transport,
            is_by_tls: new.is_by_tls,
            admitted: AtomicBool::new(false),
            errors: Mutex::default(),
            state: Mutex::new(State {
                registers: Registers::default(),
                kato_ms: new.kato_ms,
                events: 0,
                granted_queues: None,
                queues: BTreeMap::new(),
            }),
            usable: AtomicBool::new(false),
            write_through: AtomicBool::new(false),
            keep_alive_changed: Notify::new(),
            heard: LastHeard::new(reactor::now()),
            ending: AtomicBool::new(false),
            queue_detached: Notify::new(),
        }
    }

    pub(crate) fn is_discovery(&self) -> bool {
        self.kind == Kind::Discovery
    }

    /// Whether the association has ended; its last commands may still be on their way.
    pub(crate) fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Acquire)
    }

    /// Its host has proved what it has to. Logged, as far as it is attached to drives.
    pub(crate) fn admit(&self) {
        let is_first = !self.admitted.swap(true, Ordering::AcqRel);
        if is_first && !self.is_discovery() {
            fabric::log_of_peer!(
                info,
                "host connected",
                self.peer.ip(),
                event = "attach",
                host = %self.host.nqn,
                peer = %self.peer,
                cntlid = self.id,
                tls = self.is_by_tls,
                "host connected"
            );
        }
    }

    /// Whether its host has proved what it has to.
    pub(crate) fn is_admitted(&self) -> bool {
        self.admitted.load(Ordering::Acquire)
    }

    /// Whether it is enabled and ready: only then it takes I/O queues, and commands other than Fabrics ones.
    pub(crate) fn is_ready(&self) -> bool {
        self.usable.load(Ordering::Acquire)
    }

    /// Whether writes must be durable when they are answered.
    pub(crate) fn is_write_through(&self) -> bool {
        self.write_through.load(Ordering::Acquire)
    }

    pub(crate) fn set_write_through(&self, on: bool) {
        self.write_through.store(on, Ordering::Release);
    }

    /// CC.
    pub(crate) fn configuration(&self) -> u32 {
        lock(&self.state).registers.configuration()
    }

    /// CSTS.
    pub(crate) fn status(&self) -> ControllerStatus {
        lock(&self.state).registers.status()
    }

    /// Writes CC. After a reset all is as after Connect, and the I/O queues end.
    pub(crate) fn configure(&self, value: u32) -> ConfigurationEffect {
        let mut state = lock(&self.state);
        let effect = state.registers.configure(value);
        self.usable
            .store(state.registers.is_usable(), Ordering::Release);
        if effect.reset {
            state.events = 0;
            state.granted_queues = None;
            self.set_write_through(false);
            let queues = state.queues.values();
            queues
                .filter(|queue| queue.qid != 0)
                .for_each(|queue| queue.close.set());
        }
        effect
    }

    /// Data is durable: the shutdown that the host asked for is complete.
    pub(crate) fn shutdown_complete(&self) {
        lock(&self.state).registers.shutdown_complete();
    }

    /// The controller failed: the host sees it in CSTS.
    pub(crate) fn fail(&self) {
        let mut state = lock(&self.state);
        state.registers.fail();
        self.usable.store(false, Ordering::Release);
    }

    pub(crate) fn events(&self) -> u32 {
        lock(&self.state).events
    }

    pub(crate) fn set_events(&self, events: u32) {
        lock(&self.state).events = events;
    }

    /// I/O queues that the host was granted, if it asked for some.
    pub(crate) fn granted_queues(&self) -> Option<u16> {
        lock(&self.state).granted_queues
    }

    /// Grants I/O queues; false if some are connected already.
    pub(crate) fn grant_queues(&self, count: u16) -> bool {
        let mut state = lock(&self.state);
        if state.queues.keys().any(|qid| *qid != 0) {
            return false;
        }
        state.granted_queues = Some(count);
        true
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

    /// How long a silent host counts as alive.
    fn keep_alive(&self) -> Option<Duration> {
        let timeout = keep_alive::timeout_of(self.kato_ms());
        timeout.or(self.is_discovery().then_some(DISCOVERY_IDLE))
    }

    /// Waits until the keep-alive timer has expired. Every command on any queue restarts it.
    pub(crate) async fn keep_alive_expired(&self) {
        let changed = || self.keep_alive_changed.notified();
        keep_alive::expired(|| self.keep_alive(), changed, || self.was_alive()).await;
    }

    /// A command arrived on a queue: the host is alive (traffic-based keep alive). False if the association is over because
    /// the host was silent before; then the command must not begin.
    pub(crate) fn hears(&self, queue: &QueueHandle) -> bool {
        queue.saw_command();
        let is_in_time = self.heard.hears(reactor::recently(), || self.keep_alive());
        if !is_in_time {
            self.end_silent();
        }
        is_in_time
    }

    /// The host is taken as heard: it may compute its authentication for longer than its keep-alive timeout.
    pub(crate) fn excuse_silence(&self) {
        self.heard.again(reactor::recently());
    }

    /// Whether its host has been silent for longer than its keep-alive timeout.
    pub(crate) fn is_silent(&self, now: Instant) -> bool {
        self.heard.is_silent(now, self.keep_alive())
    }

    /// Whether the association is over because its host is silent; ends it then.
    fn is_over(&self, now: Instant) -> bool {
        let is_silent = self.is_silent(now);
        if is_silent {
            self.end_silent();
        }
        is_silent
    }

    fn end_silent(&self) {
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

    /// Adds a queue.
    ///
    /// # Errors
    /// Command Sequence Error: the queue exists, or the controller is not ready for I/O queues. Controller Busy: the
    /// association has ended, or the last commands of such a queue are ending.
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
            Some(present) if present.close.is_set() => return Err(Status::CONNECT_CONTROLLER_BUSY),
            Some(_) => return Err(Status::COMMAND_SEQUENCE.with_dnr()),
        }
        state.queues.insert(handle.qid, handle.clone());
        Ok(())
    }

    fn io_queues(&self) -> Vec<Arc<QueueHandle>> {
        let state = lock(&self.state);
        let queues = state.queues.values();
        queues.filter(|queue| queue.qid != 0).cloned().collect()
    }

    /// Removes a queue whose commands are all done.
    pub(crate) fn detach(&self, handle: &Arc<QueueHandle>) {
        let mut state = lock(&self.state);
        let present = state.queues.get(&handle.qid);
        if present.is_some_and(|present| Arc::ptr_eq(present, handle)) {
            state.queues.remove(&handle.qid);
        }
        drop(state);
        self.queue_detached.notify_all();
    }

    /// Ends the association: no queue can be added, and all queues close.
    pub(crate) fn end(&self) {
        let state = lock(&self.state);
        self.ending.store(true, Ordering::Release);
        state.queues.values().for_each(|queue| queue.close.set());
    }

    /// Waits until every queue is detached.
    pub(crate) async fn queues_gone(&self) {
        self.queue_detached
            .until(|| lock(&self.state).queues.is_empty())
            .await;
    }
}

/// The controllers of one kind.
#[derive(Debug)]
pub(crate) struct Registry {
    max: usize,
    table: Mutex<Table>,
    /// Rings when a controller is removed.
    gone: Notify,
}

#[derive(Debug)]
struct Table {
    controllers: BTreeMap<u16, Arc<Controller>>,
    last: u16,
    /// Controllers whose hosts have yet to authenticate, and their places.
    unproven: Admission<u16>,
    places: BTreeMap<u16, PlaceNumber>,
}

impl Table {
    fn give_place_back(&mut self, id: u16) {
        if let Some(place) = self.places.remove(&id) {
            self.unproven.leave(place);
        }
    }
}

impl Registry {
    /// For so many controllers at most.
    pub(crate) fn new(max: usize) -> Self {
        let mut random = [0; 2];
        // Without random bytes identifiers begin with 1, as those of other targets do.
        let _ = getrandom::fill(&mut random);
        Self {
            max: max.min(usize::from(CNTLID_MAX)),
            table: Mutex::new(Table {
                controllers: BTreeMap::new(),
                last: u16::from_le_bytes(random) % CNTLID_MAX,
                unproven: Admission::new(max / UNPROVEN_SHARE),
                places: BTreeMap::new(),
            }),
            gone: Notify::new(),
        }
    }

    /// Adds a controller; `None` when there are as many as may be. Of a host that has yet to authenticate: its address, and whether
    /// that is a known one. Another such controller may have to go for it.
    pub(crate) fn add(
        &self,
        new: NewController,
        unproven: Option<(IpAddr, bool)>,
    ) -> Option<Arc<Controller>> {
        let mut table = lock(&self.table);
        if table.controllers.len() >= self.max {
            return None;
        }
        let mut id = table.last;
        loop {
            id = if id >= CNTLID_MAX { 1 } else { id + 1 };
            // There are fewer controllers than identifiers.
            if !table.controllers.contains_key(&id) {
                break;
            }
        }
        let mut displaced = None;
        if let Some((address, is_known)) = unproven {
            let (place, other) = table.unproven.admit(address, is_known, true, id).ok()?;
            table.places.insert(id, place);
            displaced = other;
        }
        table.last = id;
        let controller = Arc::new(Controller::new(id, new));
        table.controllers.insert(id, controller.clone());
        let displaced = displaced.and_then(|id| {
            table.places.remove(&id);
            table.controllers.get(&id).cloned()
        });
        drop(table);
        if let Some(displaced) = displaced {
            tracing::debug!(
                controller = displaced.id,
                "closed: too many hosts have yet to authenticate"
            );
            displaced.end();
        }
        Some(controller)
    }

    /// The host of a controller has proved what it has to.
    pub(crate) fn proved(&self, id: u16) {
        lock(&self.table).give_place_back(id);
    }

    /// The controller of that identifier, if its association is alive.
    pub(crate) fn get(&self, id: u16) -> Option<Arc<Controller>> {
        let controller = lock(&self.table).controllers.get(&id).cloned()?;
        let is_alive = !controller.is_ending() && !controller.is_over(reactor::now());
        is_alive.then_some(controller)
    }

    /// Forgets a controller that has ended.
    pub(crate) fn remove(&self, id: u16) {
        let mut table = lock(&self.table);
        table.controllers.remove(&id);
        table.give_place_back(id);
        drop(table);
        self.gone.notify_all();
    }

    /// Waits until no ended association of this host is left. Those that were never admitted do not count: none of their commands
    /// touched a drive, and the peer need not have been the host. One that is over is ended now, because its connections may
    /// not have told yet.
    pub(crate) async fn earlier_associations_gone(&self, host: &Host) {
        let now = reactor::now();
        let is_earlier = |controller: &Controller| {
            controller.host == *host
                && controller.is_admitted()
                && (controller.is_ending() || controller.is_over(now))
        };
        self.gone
            .until(|| {
                let table = lock(&self.table);
                !table.controllers.values().any(|other| is_earlier(other))
            })
            .await;
    }

    /// The I/O queues of these hosts, also of their associations that have ended and have commands under way.
    pub(crate) fn io_queues_of(&self, is_one: impl Fn(&HostId) -> bool) -> Vec<Arc<QueueHandle>> {
        let table = lock(&self.table);
        let of_hosts =
            |controller: &&Arc<Controller>| is_one(&HostId::from_bytes(controller.host.id));
        let controllers = table.controllers.values().filter(of_hosts);
        controllers
            .flat_map(|controller| controller.io_queues())
            .collect()
    }

    /// Ends the associations of all who use this host's identifier and have another name.
    pub(crate) fn end_others_called(&self, host: &Host) {
        let table = lock(&self.table);
        let is_other =
            |other: &&Arc<Controller>| other.host.id == host.id && other.host.nqn != host.nqn;
        let others: Vec<_> = table
            .controllers
            .values()
            .filter(is_other)
            .cloned()
            .collect();
        drop(table);
        others.iter().for_each(|other| other.end());
    }

    /// Waits until no controller is left.
    pub(crate) async fn all_gone(&self) {
        self.gone
            .until(|| lock(&self.table).controllers.is_empty())
            .await;
    }
}
