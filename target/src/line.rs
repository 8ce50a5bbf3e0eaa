//! What the commands of one queue share on its reactor.
//!
//! Guarantee: nothing in here is shared with another reactor but through [`QueueHandle`] and the
//! target, and a command that succeeds writes to neither of them but to its own queue's counters.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use dedup::Volume;
use nvme::ana::AnaState;
use reactor::BufferPool;

use crate::auth::exchange::QueueAuth;
use crate::catalog::NamespaceConfig;
use crate::controller::{Controller, QueueHandle};
use crate::crew::Crew;
use crate::health::QueueCounters;
use crate::in_flight::InFlight;
use crate::queue::Queue;
use crate::reservation;
use crate::subsystem::Target;

/// Volumes that a queue remembers. Hosts rarely use more on one queue; if they do, all are looked up
/// again.
const VOLUMES_REMEMBERED: usize = 64;

/// A connected queue.
pub(crate) struct Line<Q: Queue> {
    pub(crate) target: Arc<Target>,
    pub(crate) controller: Arc<Controller>,
    pub(crate) handle: Arc<QueueHandle>,
    pub(crate) queue: Q,
    /// Memory for data between hosts and drives; waiting for it is the backpressure.
    pub(crate) buffers: BufferPool,
    pub(crate) in_flight: InFlight,
    pub(crate) crew: Crew,
    pub(crate) counters: Arc<QueueCounters>,
    pub(crate) auth: QueueAuth,
    volumes: RefCell<Remembered>,
}

/// A namespace and its volume as they were when the target last changed.
pub(crate) struct KnownVolume {
    pub(crate) volume: Arc<Volume>,
    pub(crate) size_bytes: u64,
    pub(crate) lba_bytes: u32,
    /// How the subsystem shows it.
    pub(crate) config: Arc<NamespaceConfig>,
    /// How the controller's path reaches it.
    pub(crate) ana: AnaState,
    /// What reservations let the host do.
    pub(crate) reservations: reservation::Watch,
}

#[derive(Default)]
struct Remembered {
    generation: u64,
    volumes: Vec<(u32, Rc<KnownVolume>)>,
}

impl<Q: Queue> Line<Q> {
    pub(crate) fn new(
        target: Arc<Target>,
        controller: Arc<Controller>,
        handle: Arc<QueueHandle>,
        queue: Q,
        buffers: BufferPool,
        auth: QueueAuth,
    ) -> Rc<Self> {
        Rc::new(Self {
            auth,
            counters: target.health.enrol(&here()),
            target,
            controller,
            handle,
            queue,
            buffers,
            in_flight: InFlight::default(),
            crew: Crew::default(),
            volumes: RefCell::default(),
        })
    }

    /// The namespace of that identifier, if this queue's controller sees it. The engine checks ranges
    /// again, so a volume that changed a moment ago does no harm.
    pub(crate) fn namespace(&self, nsid: u32) -> Option<Rc<KnownVolume>> {
        // Before the look-up: a change in between is seen at the next command.
        let generation = self.target.generation();
        let mut known = self.volumes.borrow_mut();
        if known.generation != generation || known.volumes.len() >= VOLUMES_REMEMBERED {
            known.generation = generation;
            known.volumes.clear();
        }
        if let Some((_, volume)) = known.volumes.iter().find(|(id, _)| *id == nsid) {
            return Some(volume.clone());
        }
        let world = self.target.world();
        let visible = world.namespace(&self.controller, nsid)?;
        let info = visible.volume.info();
        let volume = Rc::new(KnownVolume {
            size_bytes: info.size_bytes,
            lba_bytes: info.lba_bytes,
            volume: visible.volume.clone(),
            config: visible.config.clone(),
            ana: world.ana_state(&self.controller, visible.config.ana_group),
            reservations: reservation::Watch::new(
                self.target.reservations.of(info.uuid),
                reservation::HostId::from_bytes(self.controller.host.id),
            ),
        });
        known.volumes.push((nsid, volume.clone()));
        Some(volume)
    }
}

/// The name of this reactor.
fn here() -> String {
    reactor::current().map_or_else(String::new, |reactor| reactor.name().to_owned())
}

impl<Q: Queue> Drop for Line<Q> {
    fn drop(&mut self) {
        self.target.health.retire(&self.counters);
    }
}
