//! Subsystems while they are served: who is connected, and the bounds that hosts are held to.
//!
//! Guarantees:
//! - Controller identifiers rotate: one that was used is not used again before all others were, and
//!   the first of a run is random, so that none collides with one that a host still remembers.
//! - A controller keeps its identifier until its last command is done.
//! - A host that connects again is let in only when none of its earlier, ended associations can still
//!   touch a volume: a write that was lost on the way cannot overtake its own repetition.
//! - Controllers whose hosts have yet to authenticate take half of the places at most, and addresses share those
//!   ([`fabric::admission`]).
//! - Everything here may be used from every thread.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fabric::Transport;
use fabric::admission::{Admission, PlaceNumber};
use nvme::Nqn;
use tokio::sync::Notify;
use uuid::Uuid;

use crate::catalog::SubsystemConfig;
use crate::controller::Controller;
use crate::queue::lock;
pub use crate::target::{Target, TargetParts};

/// The largest controller identifier that a controller may have; FFF0h and above are reserved.
const CNTLID_MAX: u16 = 0xffef;

/// Controllers whose hosts have yet to authenticate: one part in so many of all controllers for unknown addresses, and
/// as many for addresses with a ready admin queue.
const UNPROVEN_SHARE: usize = 4;
/// And so many at most.
const UNPROVEN_MAX: usize = 1024;

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
    /// How long a host may take to authenticate a queue, from its Connect or the beginning of the exchange.
    pub auth_timeout: Duration,
    /// The limit of open files, where it is the reason why there are fewer hosts or queues than by default.
    pub descriptors: Option<u64>,
    /// Failed authentications of a host at an address within `auth_failures_window`, after which its Connect
    /// commands are answered with Controller Busy.
    pub auth_failures_max: u32,
    /// See `auth_failures_max`.
    pub auth_failures_window: Duration,
    /// Authentications that a host may begin on a queue within `auth_failures_window`; the next one fails.
    pub auth_exchanges_max: u32,
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
            io_queues: 128,
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
            // All queues of all controllers.
            tcp_connections: 1024 * 129,
            queue_share: 16,
            host_share: 2,
            handshake_timeout: Duration::from_secs(10),
            stall_timeout: Duration::from_secs(30),
            stall_timeout_short: Duration::from_secs(2),
            auth_timeout: Duration::from_secs(60),
            descriptors: None,
            auth_failures_max: 16,
            auth_failures_window: Duration::from_secs(60),
            auth_exchanges_max: 16,
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

/// What a subsystem offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubsystemKind {
    /// Volumes as namespaces.
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
    limits: Limits,
    registry: Mutex<Registry>,
    /// The one controller that may use each private namespace.
    private: Mutex<BTreeMap<u32, u16>>,
    /// Notified when a controller is gone.
    gone: Notify,
}

struct Registry {
    controllers: BTreeMap<u16, Arc<Controller>>,
    last: u16,
    /// It is logged once when hosts begin to be refused for lack of room, not for each of them.
    told_that_it_is_full: bool,
    /// Controllers whose hosts have yet to authenticate, and their places.
    unproven: Admission<u16>,
    places: BTreeMap<u16, PlaceNumber>,
}

impl Subsystem {
    pub(crate) fn new(nqn: Nqn, kind: SubsystemKind, limits: Limits) -> Self {
        // Random bytes of a version-4 UUID: good enough to not meet the identifiers of the last run.
        let random = Uuid::new_v4().into_bytes();
        let last = u16::from_le_bytes([random[0], random[1]]) % CNTLID_MAX;
        let registry = Mutex::new(Registry {
            last,
            controllers: BTreeMap::new(),
            told_that_it_is_full: false,
            unproven: Admission::new((limits.controllers / UNPROVEN_SHARE).min(UNPROVEN_MAX)),
            places: BTreeMap::new(),
        });
        Self {
            nqn,
            kind,
            limits,
            registry,
            private: Mutex::default(),
            gone: Notify::new(),
        }
    }

    /// Adds a controller that `make` builds around a new identifier; `None` when there are as many as
    /// allowed. Of a host that has yet to authenticate: its address, and whether that is a known one. Another such
    /// controller may have to go for it.
    pub(crate) fn add(
        &self,
        unproven: Option<(IpAddr, bool)>,
        make: impl FnOnce(u16) -> Arc<Controller>,
    ) -> Option<Arc<Controller>> {
        let mut registry = lock(&self.registry);
        if registry.controllers.len() >= self.limits.controllers {
            let told = std::mem::replace(&mut registry.told_that_it_is_full, true);
            drop(registry);
            if !told {
                self.tell_that_it_is_full();
            }
            return None;
        }
        registry.told_that_it_is_full = false;
        let id = registry.free_id()?;
        let mut displaced = None;
        if let Some((address, is_known)) = unproven {
            let admitted = registry.unproven.admit(address, is_known, true, id);
            let (place, other) = admitted.ok()?;
            registry.places.insert(id, place);
            displaced = other;
        }
        registry.last = id;
        let controller = make(id);
        registry.controllers.insert(id, controller.clone());
        let displaced = displaced.and_then(|id| {
            registry.places.remove(&id);
            registry.controllers.get(&id).cloned()
        });
        drop(registry);
        if let Some(displaced) = displaced {
            tracing::debug!(controller = ?displaced, "closed: too many hosts have yet to authenticate");
            displaced.end();
        }
        Some(controller)
    }

    fn tell_that_it_is_full(&self) {
        let (subsystem, hosts) = (&self.nqn, self.limits.controllers);
        let remedy = match self.limits.descriptors {
            None => "`serve --hosts` sets how many may".to_owned(),
            Some(descriptors) => crate::descriptors::remedy(descriptors),
        };
        tracing::warn!(%subsystem, hosts, "a host is refused: as many are attached as may be; {remedy}");
    }

    /// The host of a controller has authenticated.
    pub(crate) fn proved(&self, id: u16) {
        lock(&self.registry).give_place_back(id);
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

    /// Those that others take notice of: they have not ended, and their hosts have authenticated or need not.
    pub(crate) fn admitted_controllers(&self) -> Vec<Arc<Controller>> {
        let mut controllers = self.controllers();
        controllers.retain(|controller| controller.is_admitted() && !controller.is_ending());
        controllers
    }

    /// Controllers now, those whose last commands are on their way included.
    pub fn controller_count(&self) -> usize {
        lock(&self.registry).controllers.len()
    }

    /// Forgets a controller that has ended.
    pub(crate) fn remove(&self, id: u16) {
        let mut registry = lock(&self.registry);
        registry.controllers.remove(&id);
        registry.give_place_back(id);
        drop(registry);
        self.gone.notify_waiters();
    }

    /// Waits until no ended association of this host is left. One that was never admitted is not waited for: none
    /// of its commands touched a volume, and whoever connected need not have been the host.
    pub(crate) async fn earlier_associations_gone(&self, host: &Host) {
        let is_earlier = |controller: &Controller| {
            controller.is_ending() && controller.is_admitted() && controller.host == *host
        };
        self.wait_until(|controller| !is_earlier(controller)).await;
    }

    /// Waits until no controller is left.
    pub(crate) async fn all_gone(&self) {
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

    /// The controller that may use a private namespace.
    pub(crate) fn private_holder(&self, nsid: u32) -> Option<u16> {
        lock(&self.private).get(&nsid).copied()
    }

    /// Decides which controller may use each private namespace. One that has it keeps it until it ends,
    /// or until its host comes again on the same path: then the connection was lost, and the host is
    /// waiting for its namespace.
    pub(crate) fn assign_private(&self, config: &SubsystemConfig) {
        let mut live = self.admitted_controllers();
        live.sort_unstable_by_key(|controller| controller.order);
        let mut private = lock(&self.private);
        let holders = config
            .namespaces
            .iter()
            .filter(|(_, namespace)| !namespace.shared)
            .filter_map(|(nsid, namespace)| {
                let may = || live.iter().filter(|c| namespace.shows_to(&c.host.nqn));
                let now = private.get(nsid);
                let first = may().find(|c| Some(&c.id) == now).or(may().next())?;
                let holder = may().rev().find(|c| c.is_same_path(first))?;
                Some((*nsid, holder.id))
            });
        *private = holders.collect();
    }
}

impl Registry {
    fn give_place_back(&mut self, id: u16) {
        if let Some(place) = self.places.remove(&id) {
            self.unproven.leave(place);
        }
    }

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
