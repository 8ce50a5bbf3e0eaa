//! A connected queue: what its commands share on its reactor.
//!
//! Guarantee: other reactors reach it only through [`QueueHandle`] and the target, and a command that succeeds writes to
//! neither of them: it writes to its own queue's counters.

pub(crate) mod command;
mod retry;
pub(crate) use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use dedup::Volume;
use fabric::serving::auth::QueueAuth;
use fabric::serving::{InFlight, Workers};
use nvme::ana::AnaState;
use reactor::BufferPool;

use crate::admission::Admission;
use crate::catalog::{HostConfig, NamespaceConfig};
use crate::controller::{Controller, QueueHandle};
use crate::counters::{QueueCounters, VolumeCounters};
use crate::latency::Operation;
use crate::queue::Queue;
use crate::target::Target;
use crate::throttle::{By, Throttles};
pub(crate) use retry::DELAYS_100MS;

/// A connected queue.
pub(crate) struct ConnectedQueue<Q: Queue> {
    pub(crate) target: Arc<Target>,
    pub(crate) controller: Arc<Controller>,
    pub(crate) handle: Arc<QueueHandle>,
    /// The transport's end of it.
    pub(crate) transport: Q,
    /// Memory for data between hosts and drives. A host that uses much of it waits for buffers.
    pub(crate) buffers: BufferPool,
    pub(crate) in_flight: InFlight,
    pub(crate) workers: Workers,
    pub(crate) counters: Arc<QueueCounters>,
    pub(crate) auth: QueueAuth<HostConfig>,
    volumes: RefCell<Remembered>,
}

/// A namespace and its volume as they were when the target last changed.
pub(crate) struct KnownVolume {
    pub(crate) volume: Arc<Volume>,
    /// What the host may do to it.
    pub(crate) admission: Admission,
    /// Its settings in the subsystem.
    pub(crate) config: Arc<NamespaceConfig>,
    /// The ANA state of the controller's path.
    pub(crate) ana: AnaState,
    /// What its commands wait for.
    pub(crate) throttles: Throttles,
    /// What this reactor does to it.
    counters: Arc<VolumeCounters>,
}

/// Why a queue has no namespace of an identifier.
pub(crate) enum Unreachable {
    /// Its controller sees none.
    Unknown,
    /// Another node serves the pool.
    Elsewhere,
}

#[derive(Default)]
struct Remembered {
    generation: u64,
    /// Those that commands named, by NSID: at most [`VOLUMES_MAX`](dedup::VOLUMES_MAX) volumes and
    /// [`SNAPSHOTS_MAX`](dedup::SNAPSHOTS_MAX) snapshots.
    volumes: Vec<(u32, Rc<KnownVolume>)>,
}

impl<Q: Queue> ConnectedQueue<Q> {
    pub(crate) fn new(
        target: Arc<Target>,
        controller: Arc<Controller>,
        handle: Arc<QueueHandle>,
        transport: Q,
        buffers: BufferPool,
        auth: QueueAuth<HostConfig>,
    ) -> Rc<Self> {
        let counters = target.health.enrol(&here());
        controller.counters.enrol(counters.clone());
        Rc::new(Self {
            auth,
            counters,
            target,
            controller,
            handle,
            transport,
            buffers,
            in_flight: InFlight::default(),
            workers: Workers::default(),
            volumes: RefCell::default(),
        })
    }

    /// The namespace of that identifier.
    ///
    /// # Errors
    /// This queue's controller does not see it, or another node serves it.
    pub(crate) fn namespace(&self, nsid: u32) -> Result<Rc<KnownVolume>, Unreachable> {
        // Read before the look-up: the next command sees a change in between.
        let generation = self.target.generation();
        let mut known = self.volumes.borrow_mut();
        if known.generation != generation {
            known.generation = generation;
            known.volumes.clear();
        }
        let place = match known.volumes.binary_search_by_key(&nsid, |(id, _)| *id) {
            Ok(at) => return Ok(known.volumes[at].1.clone()),
            Err(place) => place,
        };
        let live = self.target.live();
        let visible = live.namespace(&self.controller, nsid);
        let visible = visible.ok_or(Unreachable::Unknown)?;
        let volume = visible.volume.here().ok_or(Unreachable::Elsewhere)?.clone();
        let info = volume.info();
        let volume = Rc::new(KnownVolume {
            volume,
            config: visible.config.clone(),
            ana: live.ana_state(&self.controller, visible.config.ana_group),
            admission: Admission {
                size_bytes: info.size_bytes,
                lba_bytes: info.lba_bytes,
                write_protect: visible.config.write_protect,
                reservations: reservations::Watch::new(
                    self.target.reservations.of(info.uuid),
                    reservations::HostId::from_bytes(self.controller.host.id),
                ),
            },
            throttles: self
                .target
                .throttles
                .of(info.uuid, By::Host(&self.controller.host.nqn)),
            counters: self.target.health.enrol_volume(info.uuid),
        });
        known.volumes.insert(place, (nsid, volume.clone()));
        Ok(volume)
    }

    /// Counts a command that succeeded, with the bytes that it moved between host and target.
    pub(crate) fn count(
        &self,
        volume: &KnownVolume,
        operation: Operation,
        bytes: u64,
        took: Duration,
    ) {
        self.counters.count(operation, bytes);
        volume.counters.count(operation, bytes, took);
    }
}

/// The name of this reactor.
fn here() -> String {
    reactor::current().map_or_else(String::new, |reactor| reactor.name().to_owned())
}

impl<Q: Queue> Drop for ConnectedQueue<Q> {
    fn drop(&mut self) {
        self.target.health.retire(&self.counters);
        self.controller.counters.retire(&self.counters);
    }
}
