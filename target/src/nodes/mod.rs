//! The nodes that offer one pool to hosts, where all of them reach its drives: in a cluster, or on sleds.
//!
//! Guarantees:
//! - Hosts hear of the listeners of all nodes from each of them, and no two nodes give a controller the same identifier.
//! - Standbys hear of a change of what hosts see within seconds. Drives that do not answer delay only that.
//! - A node on a drained machine gives its pool away as soon as a node on another one offers it, and not before.

mod blocking;
pub(crate) mod cluster;
mod handover;
mod neighbours;
mod node;
mod turn;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dedup::ErrorKind;
use drives::nodes::{NODES_MAX, OtherNode};
use fabric::{TlsMode, TransportAddress};
use serde::{Deserialize, Serialize};
use subsystem::catalog::PortConfig;
use subsystem::describe::Description;
use subsystem::errors::Failure;
use subsystem::target::Target;
use uuid::Uuid;

use crate::again;
use crate::announcement::Place;
use crate::errors::of_drive;
use crate::pool::OpenPool;

pub(crate) use blocking::blocking;
use cluster::KnownPool;
pub(crate) use handover::Handover;
pub(crate) use neighbours::{ClusterNow, Neighbours, PoolNow};
pub(crate) use node::{Meeting, Node};
pub(crate) use turn::patience;

/// How often a standby looks for what the owner says, and the owner whether it has said all.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);

/// How often a node asks which others there are: that is a question about each number.
const OTHERS_INTERVAL: Duration = Duration::from_secs(5);

/// How long the cluster may be silent before a node that serves the pool leaves it to another one. An OSD whose process ended costs
/// less.
const CUT_OFF: Duration = Duration::from_secs(5);

/// How often it is asked.
const PULSE: Duration = Duration::from_secs(1);

/// How often a node that waits for the pool's drives says so.
const TOLD_AGAIN: Duration = Duration::from_secs(60);

/// How long changes are gathered before they are told.
const GATHER: Duration = Duration::from_millis(100);

/// Addresses that a node tells the others of at most.
const PLACES_MAX: usize = 24;

/// Bytes of a program's version at most.
const VERSION_BYTES_MAX: usize = 64;

/// Numbers of listeners of one node, in the discovery log of another one.
const PORTS_OF_NODE: u16 = u16::MAX / (NODES_MAX + 1);

/// What a node says of itself, as JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Says {
    /// The program's version.
    pub(crate) version: String,
    /// It serves the pool.
    pub(crate) serves: bool,
    /// Where hosts reach it.
    pub(crate) listeners: Vec<SaidListener>,
}

impl Says {
    /// What another node said. It is printed, so a malformed version is dropped, and so are malformed listeners.
    pub(crate) fn read(text: &[u8]) -> Self {
        let mut says: Self = serde_json::from_slice(text).unwrap_or_default();
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-+".contains(&byte);
        if says.version.len() > VERSION_BYTES_MAX || !says.version.bytes().all(is_plain) {
            says.version.clear();
        }
        says.listeners.truncate(PLACES_MAX);
        says.listeners.retain_mut(|listener| {
            let address = listener.address.parse::<TransportAddress>();
            if let Ok(address) = &address {
                listener.address = address.to_string();
            }
            address.is_ok()
        });
        says
    }
}

/// A listener of another node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SaidListener {
    /// Such as `tcp://192.0.2.5:4420`.
    pub(crate) address: String,
    /// Hosts use TLS there.
    #[serde(default)]
    pub(crate) by_tls: bool,
}

/// Becomes one of the nodes of the pool that meet there. `waits`: as long as nobody answers. A node that was cut off, or that starts
/// before the pool's drives can be reached, needs nobody then.
///
/// # Errors
/// The drives cannot be reached, or this node may not use them, or there are too many nodes.
pub(crate) async fn join(meeting: Meeting, waits: bool) -> Result<Arc<Node>, Failure> {
    let mut told_at: Option<Instant> = None;
    loop {
        let meeting = meeting.clone();
        let is_told = told_at.is_some_and(|at| at.elapsed() < TOLD_AGAIN);
        match blocking(move || Ok(Node::join(meeting, is_told))).await? {
            Err(error) if waits && error.kind() == drives::ErrorKind::Unreachable => {
                if !is_told {
                    tracing::warn!(%error, "this node tries again until the pool's drives answer");
                    told_at = Some(Instant::now());
                }
                tokio::time::sleep(PULSE).await;
            }
            joined => return joined.map(Arc::new).map_err(of_drive),
        }
    }
}

/// Tells the other nodes that this one has the pool.
pub(crate) async fn has_pool(node: &Arc<Node>, pool: &OpenPool) {
    let (telling, epoch) = (node.clone(), pool.engine.opening().epoch);
    let metadata = pool.metadata.as_ref();
    let metadata = metadata.map(|metadata| Arc::downgrade(&metadata.copies));
    let dir = Arc::downgrade(&pool.dir);
    if let Err(failure) = blocking(move || telling.has_pool(epoch, metadata, dir)).await {
        tracing::warn!(%failure, "the other nodes do not know yet that this one has the pool");
    }
}

/// What the owner says of the pool, if it says something.
///
/// # Errors
/// The drives do not answer, or it cannot be understood.
pub(crate) async fn description(node: &Arc<Node>) -> Result<Option<Description>, Failure> {
    let asked = node.clone();
    let read = blocking(move || asked.description(None)).await?;
    read.map(|described| Description::decode(&described.text))
        .transpose()
}

/// Lets nodes know of each other, and standbys of the pool; ends the process if it serves the pool, is cut off from its drives, and
/// another node waits; gives the pool away where the machine is drained. Never ends by itself.
pub(crate) async fn keep(
    node: Arc<Node>,
    target: Arc<Target>,
    places: Vec<Place>,
    handover: Arc<Handover>,
) {
    let watching = watch_drives(&node, &target);
    tokio::join!(tell(&node, &target, &places, &handover), watching);
}

/// Commands of hosts wait for the drives for a while, for those in a cluster for two minutes, and Linux sends them elsewhere only when
/// their connection ends.
async fn watch_drives(node: &Arc<Node>, target: &Target) {
    let mut reached = Instant::now();
    let is_reached = |answer: &Option<Result<bool, Failure>>| matches!(answer, Some(Ok(true)));
    loop {
        let asked = node.clone();
        let mut asking = std::pin::pin!(blocking(move || Ok(asked.reaches())));
        let left = CUT_OFF.saturating_sub(reached.elapsed());
        let mut answer = tokio::time::timeout(left, &mut asking).await.ok();
        if !is_reached(&answer)
            && reached.elapsed() >= CUT_OFF
            && target.is_serving()
            && !target.catalog().elsewhere.is_empty()
        {
            again::end_cut_off(CUT_OFF);
        }
        if answer.is_none() {
            answer = Some(asking.await);
        }
        if is_reached(&answer) {
            reached = Instant::now();
        }
        tokio::time::sleep(PULSE).await;
    }
}

async fn tell(node: &Arc<Node>, target: &Arc<Target>, places: &[Place], handover: &Handover) {
    let mut changes = target.changes();
    let mut told = Told::default();
    loop {
        // The next round does what this one could not.
        match told.round(node, target, places, handover).await {
            Ok(()) => told.has_failed = false,
            Err(error) if !std::mem::replace(&mut told.has_failed, true) => {
                tracing::warn!(%error, "the nodes of the pool do not hear of each other");
            }
            Err(_) => {}
        }
        let _ = tokio::time::timeout(LOOK_INTERVAL, changes.changed()).await;
        tokio::time::sleep(GATHER).await;
    }
}

/// What this node told others, and heard of them.
#[derive(Default)]
struct Told {
    says: Option<Says>,
    description: Option<Description>,
    /// The revision of the owner's description that was read.
    revision: Option<Vec<u8>>,
    /// When it asked for other nodes.
    asked_at: Option<Instant>,
    /// The revision of what is noted that was read, and what this node noted there.
    noted: Option<(Vec<u8>, KnownPool)>,
    /// This machine is to have no pool.
    is_drained: bool,
    /// A machine that is not drained offers the pool too.
    can_go: bool,
    /// This node served the pool when it looked last.
    served: bool,
    has_failed: bool,
    /// What was told of what cannot be noted, or of a pool that stays.
    warned: bool,
}

impl Told {
    async fn round(
        &mut self,
        node: &Arc<Node>,
        target: &Arc<Target>,
        places: &[Place],
        handover: &Handover,
    ) -> Result<(), Failure> {
        let serves = target.is_serving();
        match serves {
            true => self.describe(node, target).await?,
            false => self.show(node, target).await?,
        }
        let says = Says {
            version: subsystem::VERSION.to_owned(),
            serves,
            listeners: places
                .iter()
                .take(PLACES_MAX)
                .map(SaidListener::of)
                .collect(),
        };
        if self.says.as_ref() != Some(&says) {
            let text = serde_json::to_vec(&says)
                .map_err(|error| Failure::new(ErrorKind::Internal, error.to_string()))?;
            let saying = node.clone();
            blocking(move || saying.say(&text)).await?;
            self.says = Some(says);
        }
        // Who has just taken a pool says so at once: others may be about to take one too.
        let is_new_owner = serves && !std::mem::replace(&mut self.served, serves);
        if self
            .asked_at
            .is_some_and(|at| at.elapsed() < OTHERS_INTERVAL && !is_new_owner)
        {
            return Ok(());
        }
        self.asked_at = Some(Instant::now());
        let asked = node.clone();
        let others = blocking(move || asked.others()).await?;
        let listeners = others.iter().flat_map(|other| {
            let says = Says::read(&other.says);
            let said = (0u16..).zip(says.listeners);
            said.filter_map(|(at, said)| said.port(other.number, at))
                .collect::<Vec<_>>()
        });
        target.set_elsewhere(listeners.collect()).await?;
        if let Some(Description { pool, .. }) = self.description.as_ref().filter(|_| serves) {
            let pool = *pool;
            match self.note(node, pool, &others).await {
                Ok(()) => self.leave_if_drained(handover),
                Err(failure) => self.warn(&failure.to_string()),
            }
        }
        Ok(())
    }

    /// As the owner: gives the pool away if this machine is drained.
    fn leave_if_drained(&mut self, handover: &Handover) {
        match (self.is_drained, self.can_go && handover.is_possible()) {
            (false, _) => self.warned = false,
            (true, true) => {
                tracing::info!("this machine is drained: its pool goes to another one");
                handover.begin();
            }
            (true, false) => {
                self.warn("this machine is drained, and no other one can have its pool: it stays")
            }
        }
    }

    fn warn(&mut self, what: &str) {
        if !std::mem::replace(&mut self.warned, true) {
            tracing::warn!("{what}");
        }
    }

    /// As the owner: notes who has the pool and who offers it.
    async fn note(
        &mut self,
        node: &Arc<Node>,
        pool: Uuid,
        others: &[OtherNode],
    ) -> Result<(), Failure> {
        let others: BTreeSet<String> = others.iter().map(|other| other.machine.clone()).collect();
        let now = KnownPool {
            drive: node.drive().to_owned(),
            machine: node.machine(),
            standbys: others,
        };
        let known = self.noted.as_ref().filter(|(_, noted)| *noted == now);
        let known = known.map(|(revision, _)| revision.clone());
        let (node, noting) = (node.clone(), now.clone());
        let work = move || node.neighbours().note(known.as_deref(), pool, &noting);
        let read = tokio::task::spawn_blocking(work).await;
        let read = read.map_err(|error| Failure::new(ErrorKind::Internal, error.to_string()))?;
        if let Some((revision, cluster)) = read? {
            self.is_drained = cluster.is_drained(&now.machine);
            self.can_go = now.standbys.iter().any(|it| !cluster.is_drained(it));
            self.noted = Some((revision, now));
        }
        Ok(())
    }

    /// As the owner.
    async fn describe(&mut self, node: &Arc<Node>, target: &Target) -> Result<(), Failure> {
        let now = target.description()?;
        if self.description.as_ref() != Some(&now) {
            let bytes = now.encode()?;
            let (describing, pool) = (node.clone(), now.pool);
            blocking(move || describing.describe(pool, &bytes)).await?;
            self.description = Some(now);
        }
        Ok(())
    }

    /// As a standby.
    async fn show(&mut self, node: &Arc<Node>, target: &Target) -> Result<(), Failure> {
        let (asked, known) = (node.clone(), self.revision.clone());
        let read = blocking(move || asked.description(known.as_deref())).await?;
        if let Some(described) = read {
            target.show(Description::decode(&described.text)?).await?;
            self.revision = Some(described.revision);
        }
        Ok(())
    }
}

impl SaidListener {
    fn of(place: &Place) -> Self {
        Self {
            address: place.address().to_string(),
            by_tls: place.by_tls,
        }
    }

    /// As hosts are told of it; `None` if it makes no sense.
    fn port(&self, node: u16, at: u16) -> Option<PortConfig> {
        let address: TransportAddress = self.address.parse().ok()?;
        let id = (node + 1).checked_mul(PORTS_OF_NODE)?.checked_add(at)?;
        Some(PortConfig {
            is_transient: true,
            tls: match self.by_tls {
                true => TlsMode::Required,
                false => TlsMode::Off,
            },
            ..PortConfig::new(id, address)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn what_a_node_says_is_a_version_and_addresses_or_is_dropped() {
        let said = |version: &str, address: &str| {
            let listener = SaidListener {
                address: address.to_owned(),
                by_tls: false,
            };
            let says = Says {
                version: version.to_owned(),
                serves: true,
                listeners: vec![listener],
            };
            Says::read(&serde_json::to_vec(&says).expect("JSON"))
        };
        let plain = said("1.2.3-rc.1+f0a", "tcp://192.0.2.5:4420");
        assert_eq!(plain.version, "1.2.3-rc.1+f0a");
        assert_eq!(plain.listeners[0].address, "tcp://192.0.2.5:4420");
        let long = "1".repeat(VERSION_BYTES_MAX + 1);
        for version in ["\u{1b}[2J", "1\n2", "1 2", &long] {
            let read = said(version, "tcp://192.0.2.5:4420\u{7}");
            assert_eq!(
                (&*read.version, read.listeners.len()),
                ("", 0),
                "{version:?}"
            );
            assert!(read.serves);
        }
        assert_eq!(Says::read(b"\xff"), Says::default());
    }

    #[test]
    fn hosts_are_told_of_each_listener_of_each_node_by_a_number_of_its_own() {
        let said = SaidListener {
            address: "tcp://192.0.2.5:4420".to_owned(),
            by_tls: true,
        };
        let places = u16::try_from(PLACES_MAX).expect("few");
        let mut ids = BTreeSet::new();
        for node in 0..NODES_MAX {
            for at in 0..places {
                let port = said.port(node, at).expect("there are numbers enough");
                assert_eq!(port.tls, TlsMode::Required);
                assert!(ids.insert(port.id), "{} comes twice", port.id);
            }
        }
        let senseless = SaidListener {
            address: "nowhere".to_owned(),
            by_tls: false,
        };
        assert!(senseless.port(0, 0).is_none());
    }
}
