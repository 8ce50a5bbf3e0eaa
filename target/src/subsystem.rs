//! The target and its subsystems: what hosts can connect to, and who is connected.
//!
//! Guarantees:
//! - Controller identifiers rotate: one that was used is not used again before all others were, and
//!   the first of a run is random, so that none collides with one that a host still remembers.
//! - A controller keeps its identifier until its last command is done.
//! - A host that connects again is let in only when none of its earlier, ended associations can still
//!   touch a volume: a write that was lost on the way cannot overtake its own repetition.
//! - Everything here may be used from every thread.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dedup::Engine;
use fabric::{Transport, TransportAddress};
use nvme::Nqn;
use tokio::sync::{Notify, watch};
use uuid::Uuid;

use crate::controller::Controller;
use crate::health::Health;
use crate::listen::Report;
use crate::queue::lock;
use crate::status::{AttachedHost, TransportFigures};

/// The largest controller identifier that a controller may have; FFF0h and above are reserved.
const CNTLID_MAX: u16 = 0xffef;

/// Bounds that hosts are told, and held to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Controllers of one subsystem at a time.
    pub controllers: usize,
    /// I/O queues of one controller.
    pub io_queues: u16,
    /// Maximum Data Transfer Size as a power of two of 4 KiB pages: 8 is 1 MiB.
    pub mdts: u8,
    /// I/O queues over RDMA.
    pub rdma: QueueLimits,
    /// I/O queues over TCP.
    pub tcp: QueueLimits,
    /// Receives that the queues of a reactor share on an RDMA device of the kernel.
    pub rdma_shared_receives: usize,
    /// Connections over TCP at one time, at each address on each reactor.
    pub tcp_connections: usize,
    /// A queue begins a command only if what it holds then is at most one part in so many of its reactor's
    /// free buffers.
    pub queue_share: usize,
    /// The same for all queues of a host on a reactor.
    pub host_share: usize,
    /// How long a host may take over TCP from its connection to its ICReq.
    pub handshake_timeout: Duration,
    /// How long a host may keep a PDU, a transfer or an answer waiting over TCP without moving a byte.
    pub stall_timeout: Duration,
    /// The same while buffers run short and it holds some.
    pub stall_timeout_short: Duration,
}

/// Bounds of an I/O queue, which depend on what carries it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueLimits {
    /// Entries (MAXCMD; CAP.MQES is one less).
    pub depth: u16,
    /// Bytes of data in a capsule (IOCCSZ).
    pub in_capsule_bytes: usize,
    /// Memory for capsules beside the buffers, for all reactors together: over RDMA what queues post their
    /// receives with, over TCP in-capsule data that finds no buffer.
    pub capsule_bytes_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            controllers: 1024,
            io_queues: 64,
            mdts: 8,
            // An RDMA queue holds a receive buffer for every entry. Both as nvmet has them.
            rdma: QueueLimits {
                depth: 256,
                in_capsule_bytes: 4096,
                capsule_bytes_max: 256 << 20,
            },
            tcp: QueueLimits {
                depth: 1024,
                in_capsule_bytes: 16 << 10,
                capsule_bytes_max: 64 << 20,
            },
            rdma_shared_receives: 1024,
            tcp_connections: 1024,
            queue_share: 16,
            host_share: 2,
            handshake_timeout: Duration::from_secs(10),
            stall_timeout: Duration::from_secs(30),
            stall_timeout_short: Duration::from_secs(2),
        }
    }
}

impl Limits {
    /// The longest data transfer of a command, in bytes.
    #[must_use]
    pub fn transfer_bytes_max(&self) -> usize {
        4096usize << self.mdts.min(16)
    }

    /// The bounds of queues over that transport.
    #[must_use]
    pub fn queue(&self, transport: Transport) -> QueueLimits {
        match transport {
            Transport::Rdma => self.rdma,
            Transport::Tcp => self.tcp,
        }
    }
}

/// What a target is made of.
pub struct TargetParts {
    /// The engine whose volumes are the namespaces.
    pub engine: Arc<Engine>,
    /// The pool's identity: the serial number derives from it, so it is stable over restarts.
    pub pool_uuid: Uuid,
    /// The subsystem's name.
    pub nqn: Nqn,
    /// Where hosts can come to; an unspecified address means all of its family.
    pub listeners: Vec<TransportAddress>,
    /// Bounds.
    pub limits: Limits,
}

/// All that this daemon offers to hosts.
pub struct Target {
    /// The subsystem whose namespaces are the pool's volumes.
    pub nvm: Arc<Subsystem>,
    /// The discovery subsystem.
    pub discovery: Arc<Subsystem>,
    pub(crate) engine: Arc<Engine>,
    pub(crate) listeners: Vec<TransportAddress>,
    pub(crate) limits: Limits,
    pub(crate) health: Health,
    /// Generation of the discovery log page.
    generation: AtomicU64,
    /// Rises with every change of a volume.
    volumes_generation: AtomicU64,
    /// Connect commands refused, by transport.
    connects_refused: [AtomicU64; 2],
    stopping: watch::Sender<bool>,
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
    /// [`serve_queue`](crate::association::serve_queue). It watches the engine's volumes and tells
    /// attached hosts what changes.
    #[must_use]
    pub fn new(parts: TargetParts) -> Arc<Self> {
        let TargetParts {
            engine,
            pool_uuid,
            nqn,
            listeners,
            limits,
        } = parts;
        let serial = serial_number(pool_uuid);
        let discovery_nqn = crate::discovery::well_known_nqn();
        let target = Arc::new(Self {
            nvm: Arc::new(Subsystem::new(nqn, SubsystemKind::Nvm, serial, limits)),
            discovery: Arc::new(Subsystem::new(
                discovery_nqn,
                SubsystemKind::Discovery,
                serial,
                limits,
            )),
            engine,
            listeners,
            limits,
            health: Health::new(),
            generation: AtomicU64::new(1),
            volumes_generation: AtomicU64::new(1),
            connects_refused: Default::default(),
            stopping: watch::Sender::new(false),
        });
        let weak = Arc::downgrade(&target);
        target.engine.on_change(Box::new(move |change| {
            if let Some(target) = weak.upgrade() {
                // Before hosts hear of it: their next command meets the volume as it is now.
                target.volumes_generation.fetch_add(1, Ordering::AcqRel);
                target.nvm.namespace_changed(change.info.nsid);
            }
        }));
        target
    }

    /// The subsystem of that name.
    #[must_use]
    pub fn subsystem(&self, nqn: &Nqn) -> Option<&Arc<Subsystem>> {
        [&self.nvm, &self.discovery]
            .into_iter()
            .find(|subsystem| subsystem.nqn == *nqn)
    }

    /// The generation of the discovery log page: it rises whenever the page changes.
    pub fn discovery_generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// The discovery log page changed: tells the hosts that asked for it.
    pub fn discovery_changed(&self) {
        self.generation.fetch_add(1, Ordering::AcqRel);
        for controller in self.discovery.controllers() {
            controller.events.discovery_changed();
        }
    }

    /// Rises whenever a volume was made, changed or deleted.
    pub(crate) fn volumes_generation(&self) -> u64 {
        self.volumes_generation.load(Ordering::Acquire)
    }

    /// Stops: queues take no more commands, finish those that the engine works on, and close.
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
        self.nvm.all_gone().await;
        self.discovery.all_gone().await;
    }

    /// Counts a Connect command that was refused.
    pub(crate) fn connect_refused(&self, transport: Transport) {
        self.connects_refused[transport as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// What came in by each transport, of which the reactors report their parts.
    pub(crate) fn transport_figures(&self, reports: &[Report]) -> Vec<TransportFigures> {
        let mut controllers = self.nvm.controllers();
        controllers.extend(self.discovery.controllers());
        let mut all = Vec::new();
        for transport in [Transport::Rdma, Transport::Tcp] {
            let name = transport.to_string();
            let parts = || {
                let parts = reports.iter().flat_map(|report| &report.transports);
                parts.filter(|part| part.transport == name)
            };
            if parts().next().is_none() {
                continue;
            }
            let here = || controllers.iter().filter(|c| c.transport == transport);
            let mut sum = TransportFigures {
                transport: name.clone(),
                controllers: here().count() as u64,
                queues: here().map(|c| c.queue_count() as u64).sum(),
                ..TransportFigures::default()
            };
            parts().for_each(|part| sum.add(part));
            sum.refused.connect = self.connects_refused[transport as usize].load(Ordering::Relaxed);
            all.push(sum);
        }
        all
    }

    /// The hosts with an association to the volumes' subsystem.
    #[must_use]
    pub fn attached_hosts(&self) -> Vec<AttachedHost> {
        self.nvm
            .controllers()
            .iter()
            .filter(|controller| !controller.is_ending())
            .map(|controller| AttachedHost {
                hostnqn: controller.host.nqn.to_string(),
                address: controller.peer.ip().to_canonical().to_string(),
                transport: controller.transport.to_string(),
                queues: controller.io_queue_count(),
            })
            .collect()
    }
}

/// Twenty characters from the pool's identity.
fn serial_number(pool: Uuid) -> [u8; 20] {
    let text = pool.simple().to_string();
    let mut serial = [b' '; 20];
    for (to, from) in serial.iter_mut().zip(text.bytes()) {
        *to = from;
    }
    serial
}

/// What a subsystem offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubsystemKind {
    /// The pool's volumes as namespaces.
    Nvm,
    /// The discovery log page.
    Discovery,
}

/// Who an association belongs to. Admin and I/O queues must name the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// The host's NQN.
    pub nqn: Nqn,
    /// The host identifier.
    pub id: [u8; 16],
}

/// A subsystem and its controllers.
pub struct Subsystem {
    /// Its name.
    pub nqn: Nqn,
    /// What it offers.
    pub kind: SubsystemKind,
    /// ASCII, padded with blanks; the same after every restart.
    pub serial: [u8; 20],
    limits: Limits,
    registry: Mutex<Registry>,
    /// Notified when a controller is gone.
    gone: Notify,
}

#[derive(Default)]
struct Registry {
    controllers: BTreeMap<u16, Arc<Controller>>,
    last: u16,
}

impl Subsystem {
    fn new(nqn: Nqn, kind: SubsystemKind, serial: [u8; 20], limits: Limits) -> Self {
        // Random bytes of a version-4 UUID: good enough to not meet the identifiers of the last run.
        let random = Uuid::new_v4().into_bytes();
        let last = u16::from_le_bytes([random[0], random[1]]) % CNTLID_MAX;
        let registry = Mutex::new(Registry {
            controllers: BTreeMap::new(),
            last,
        });
        Self {
            nqn,
            kind,
            serial,
            limits,
            registry,
            gone: Notify::new(),
        }
    }

    /// Adds a controller that `make` builds around a new identifier; `None` when there are as many as
    /// allowed.
    pub(crate) fn add(&self, make: impl FnOnce(u16) -> Arc<Controller>) -> Option<Arc<Controller>> {
        let mut registry = lock(&self.registry);
        if registry.controllers.len() >= self.limits.controllers {
            return None;
        }
        let id = registry.free_id()?;
        registry.last = id;
        let controller = make(id);
        registry.controllers.insert(id, controller.clone());
        Some(controller)
    }

    /// The controller of that identifier, if its association is alive.
    pub(crate) fn controller(&self, id: u16) -> Option<Arc<Controller>> {
        let controller = lock(&self.registry).controllers.get(&id).cloned()?;
        (!controller.is_ending()).then_some(controller)
    }

    /// All controllers, those that are ending included.
    pub(crate) fn controllers(&self) -> Vec<Arc<Controller>> {
        lock(&self.registry).controllers.values().cloned().collect()
    }

    /// Controllers now, those whose last commands are on their way included.
    pub fn controller_count(&self) -> usize {
        lock(&self.registry).controllers.len()
    }

    /// Forgets a controller that has ended.
    pub(crate) fn remove(&self, id: u16) {
        lock(&self.registry).controllers.remove(&id);
        self.gone.notify_waiters();
    }

    /// Waits until no ended association of this host is left.
    pub(crate) async fn earlier_associations_gone(&self, host: &Host) {
        self.wait_until(|controller| !(controller.is_ending() && controller.host == *host))
            .await;
    }

    async fn all_gone(&self) {
        self.wait_until(|_| false).await;
    }

    async fn wait_until(&self, holds: impl Fn(&Controller) -> bool) {
        loop {
            let mut gone = std::pin::pin!(self.gone.notified());
            gone.as_mut().enable();
            if lock(&self.registry)
                .controllers
                .values()
                .all(|controller| holds(controller))
            {
                return;
            }
            gone.await;
        }
    }

    fn namespace_changed(&self, nsid: u32) {
        for controller in self.controllers() {
            controller.events.namespace_changed(nsid);
        }
    }
}

impl Registry {
    fn free_id(&self) -> Option<u16> {
        let after = |id: u16| if id >= CNTLID_MAX { 1 } else { id + 1 };
        let mut id = after(self.last);
        // One more try than there are controllers always meets a free identifier.
        for _ in 0..=self.controllers.len() {
            if !self.controllers.contains_key(&id) {
                return Some(id);
            }
            id = after(id);
        }
        None
    }
}
