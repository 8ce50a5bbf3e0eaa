//! Subsystems while they are served, with their controllers.
//!
//! Guarantees:
//! - Controller identifiers rotate: a used identifier is used again only after all others. The first one of a run is
//!   random, so that it does not meet one that a host still remembers.
//! - A controller keeps its identifier until its last command is done.
//! - A host that connects again is admitted only when none of its earlier, ended associations can still touch a volume:
//!   a delayed write cannot overtake its own repetition. An association whose host was silent for longer than its keep-alive
//!   timeout is over, by the clock, also if this machine stood still meanwhile: no command that comes after that begins.
//! - A reset that one controller was asked to do to another one is over, and is told so, only when the last command of the other
//!   one is done.
//! - Controllers whose hosts have yet to authenticate take at most half of the places, shared between addresses
//!   ([`fabric::admission`]).
//! - Everything here is usable from every thread.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use fabric::admission::{Admission, PlaceNumber};
use nvme::Nqn;
use tokio::sync::Notify;
use uuid::Uuid;

use super::Controller;
use super::resets::{Awaited, Impacted};
use crate::catalog::SubsystemConfig;
use crate::limits::{ControllerIds, Limits};
use crate::lock::lock;

/// Controllers whose hosts have yet to authenticate: this fraction (1/4) of all controllers for unknown addresses, and
/// as much again for addresses with a ready admin queue.
const UNPROVEN_SHARE: usize = 4;
/// And this many at most.
const UNPROVEN_MAX: usize = 1024;

/// What a subsystem offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubsystemKind {
    /// Volumes as namespaces.
    Nvm,
    /// The discovery log page.
    Discovery,
}

/// The host of an association. Admin and I/O queues must name the same one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// The host's NQN.
    pub nqn: Nqn,
    /// The host identifier.
    pub id: [u8; 16],
}

/// Why a subsystem takes no other host now, and what to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Full {
    /// As many hosts are attached as may be.
    Hosts {
        hosts: usize,
        /// See [`Limits::descriptors`].
        descriptors: Option<u64>,
    },
    /// As many hosts as may wait for it have yet to authenticate.
    Unproven,
}

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Hosts { hosts, descriptors } => {
                write!(f, "{hosts} hosts are attached, and no more may be; ")?;
                match descriptors {
                    None => f.write_str("`onefold serve --hosts` allows more"),
                    Some(descriptors) => f.write_str(&crate::limits::remedy(descriptors)),
                }
            }
            Self::Unproven => f.write_str(
                "too many hosts have yet to authenticate; it can try again soon, and `onefold serve --hosts` \
                 leaves room for more",
            ),
        }
    }
}

/// A subsystem and its controllers.
pub struct Subsystem {
    /// Its name.
    pub nqn: Nqn,
    /// What it offers.
    pub kind: SubsystemKind,
    limits: Limits,
    registry: Mutex<Registry>,
    /// The controller that may use each private namespace.
    private: Mutex<BTreeMap<u32, u16>>,
    /// Notified when a controller is removed, or a queue of one that stays.
    gone: Notify,
}

struct Registry {
    controllers: BTreeMap<u16, Arc<Controller>>,
    last: u16,
    /// Controllers whose hosts have yet to authenticate, and their places.
    unproven: Admission<u16>,
    places: BTreeMap<u16, PlaceNumber>,
}

impl Subsystem {
    pub(crate) fn new(nqn: Nqn, kind: SubsystemKind, limits: Limits) -> Self {
        // Random bytes of a version-4 UUID: good enough to not meet the identifiers of the last run.
        let random = Uuid::new_v4().into_bytes();
        let last = limits
            .controller_ids
            .any(u16::from_le_bytes([random[0], random[1]]));
        let registry = Mutex::new(Registry {
            last,
            controllers: BTreeMap::new(),
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

    /// Adds a controller that `make` builds around a new identifier. Of a host that has yet to authenticate: its
    /// address, and whether that is a known one. Another such controller may have to go for it.
    pub(crate) fn add(
        &self,
        unproven: Option<(IpAddr, bool)>,
        make: impl FnOnce(u16) -> Arc<Controller>,
    ) -> Result<Arc<Controller>, Full> {
        let mut registry = lock(&self.registry);
        let full = Full::Hosts {
            hosts: self.limits.controllers,
            descriptors: self.limits.descriptors,
        };
        if registry.controllers.len() >= self.limits.controllers {
            return Err(full);
        }
        let id = registry.free_id(self.limits.controller_ids).ok_or(full)?;
        let mut displaced = None;
        if let Some((address, is_known)) = unproven {
            let admitted = registry.unproven.admit(address, is_known, true, id);
            let (place, other) = admitted.map_err(|_| Full::Unproven)?;
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
        Ok(controller)
    }

    /// The host of a controller has authenticated.
    pub(crate) fn proved(&self, id: u16) {
        lock(&self.registry).give_place_back(id);
    }

    /// The controller of that identifier, if its association is alive.
    pub(crate) fn controller(&self, id: u16) -> Option<Arc<Controller>> {
        let controller = lock(&self.registry).controllers.get(&id).cloned()?;
        let is_alive = !controller.is_ending() && !controller.is_silent();
        is_alive.then_some(controller)
    }

    /// All controllers, those that are ending included.
    pub(crate) fn controllers(&self) -> Vec<Arc<Controller>> {
        lock(&self.registry).controllers.values().cloned().collect()
    }

    /// Admitted controllers: they have not ended, and their hosts have authenticated or need not.
    pub(crate) fn admitted_controllers(&self) -> Vec<Arc<Controller>> {
        let mut controllers = self.controllers();
        controllers.retain(|controller| controller.is_admitted() && !controller.is_ending());
        controllers
    }

    /// Controllers now, ending ones included.
    pub fn controller_count(&self) -> usize {
        lock(&self.registry).controllers.len()
    }

    /// Forgets a controller that has ended.
    pub(crate) fn remove(&self, id: u16) {
        let mut registry = lock(&self.registry);
        registry.controllers.remove(&id);
        registry.give_place_back(id);
        drop(registry);
        self.settle_resets();
    }

    /// The controller of that identifier, also one whose association has ended.
    pub(crate) fn registered(&self, id: u16) -> Option<Arc<Controller>> {
        lock(&self.registry).controllers.get(&id).cloned()
    }

    /// Whether no command of that controller is under way in this process.
    pub(crate) fn is_over(&self, impacted: &Impacted) -> bool {
        let present = self.registered(impacted.id);
        present.is_none_or(|controller| controller.has_ended(impacted.instance))
    }

    /// Waits until no command of that controller is under way in this process.
    pub(crate) async fn until_over(&self, impacted: &Impacted) {
        loop {
            let mut gone = std::pin::pin!(self.gone.notified());
            gone.as_mut().enable();
            if self.is_over(impacted) {
                return;
            }
            gone.await;
        }
    }

    /// Commands of some controller have ended: resets that waited for them are over.
    pub(crate) fn settle_resets(&self) {
        for controller in self.controllers() {
            controller.settle_resets(Awaited::Commands, |impacted| self.is_over(impacted));
        }
        self.gone.notify_waiters();
    }

    /// Waits until no ended association of this host is left. Associations that were never admitted do not count: none of
    /// their commands touched a volume, and the peer need not have been the host. One whose time is over ends now.
    pub(crate) async fn earlier_associations_gone(&self, host: &Host) {
        let admitted = self.admitted_controllers();
        let of_host = admitted.iter().filter(|other| other.host == *host);
        of_host
            .filter(|other| other.is_silent())
            .for_each(|other| other.end_silent());
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

    /// Decides which controller may use each private namespace. A holder keeps it until it ends, or until its host
    /// connects again on the same path: then the connection was lost, and the host waits for its namespace.
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

    fn free_id(&self, ids: ControllerIds) -> Option<u16> {
        let mut id = ids.after(self.last);
        // One more try than there are controllers always meets a free identifier.
        for _ in 0..=self.controllers.len() {
            if !self.controllers.contains_key(&id) {
                return Some(id);
            }
            id = ids.after(id);
        }
        None
    }
}
