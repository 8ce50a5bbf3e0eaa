//! The catalog in force at one moment, with the volumes that it names.
//!
//! Guarantees:
//! - A [`LiveCatalog`] never changes. Its holder sees subsystems, namespaces and volumes that belong
//!   together; queues fetch a new one when the target's generation has risen.
//! - A controller sees a namespace only if its host may see it, and a private one only if no other
//!   controller does.
//! - A volume that waits for the rest of an image is seen by nobody.
//! - A volume that was never attached or detached is a namespace of the default subsystem, under its own identifier if
//!   that is free.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use dedup::{Engine, Volume};
use meta::VolumeInfo;
use nvme::Nqn;
use nvme::ana::AnaState;
use uuid::Uuid;

use super::{ana, imports};
use crate::catalog::{Catalog, NamespaceConfig, SubsystemConfig};
use crate::controller::Controller;
use crate::describe::Describe;

/// A catalog and its volumes.
pub(crate) struct LiveCatalog {
    pub(crate) catalog: Arc<Catalog>,
    /// Rises with every change of the catalog.
    pub(crate) discovery_generation: u64,
    /// How often paths changed.
    pub(crate) ana_changes: ana::Changes,
    volumes: HashMap<Uuid, ShownVolume>,
    /// This node serves the pool.
    is_served: bool,
}

/// A volume as hosts are shown it.
#[derive(Clone)]
pub(crate) enum ShownVolume {
    Here(Arc<Volume>),
    /// Another node serves it.
    Elsewhere(Arc<VolumeInfo>),
}

impl ShownVolume {
    pub(crate) fn info(&self) -> Arc<VolumeInfo> {
        match self {
            Self::Here(volume) => volume.info(),
            Self::Elsewhere(info) => info.clone(),
        }
    }

    /// The volume, if its commands can be done here.
    pub(crate) fn here(&self) -> Option<&Arc<Volume>> {
        match self {
            Self::Here(volume) => Some(volume),
            Self::Elsewhere(_) => None,
        }
    }
}

/// A namespace as a controller sees it.
#[derive(Clone)]
pub(crate) struct Visible<'a> {
    pub(crate) nsid: u32,
    pub(crate) config: &'a Arc<NamespaceConfig>,
    pub(crate) volume: &'a ShownVolume,
}

impl LiveCatalog {
    /// The catalog with the volumes that the engine has now; those in no subsystem come to the default one.
    pub(crate) fn new(
        catalog: &Catalog,
        pool: &dyn Describe,
        engine: Option<&Engine>,
        before: Option<&Self>,
    ) -> Self {
        let volumes = pool.volumes();
        let mut catalog = catalog.clone();
        adopt(&mut catalog, &volumes, true);
        // Snapshots are shown only where they were attached.
        let snapshots = pool.snapshots();
        let volumes = volumes
            .iter()
            .filter(|info| !imports::is_incomplete(pool, info.uuid))
            .chain(&snapshots)
            .filter_map(|info| {
                let volume = match engine {
                    Some(engine) => ShownVolume::Here(engine.volume_by_nsid(info.nsid)?),
                    None => ShownVolume::Elsewhere(Arc::new(info.clone())),
                };
                Some((info.uuid, volume))
            })
            .collect();
        let discovery_generation = match before {
            None => 1,
            Some(before) => before.discovery_generation + u64::from(*before.catalog != catalog),
        };
        let ana_changes = before.map_or_else(ana::Changes::default, |before| {
            match before.is_served == engine.is_some() {
                true => before.ana_changes.after(&before.catalog, &catalog),
                false => before.ana_changes.of_all(&catalog),
            }
        });
        Self {
            ana_changes,
            catalog: Arc::new(catalog),
            discovery_generation,
            volumes,
            is_served: engine.is_some(),
        }
    }

    /// A volume that can be used here.
    pub(crate) fn volume(&self, uuid: Uuid) -> Option<&Arc<Volume>> {
        self.volumes.get(&uuid)?.here()
    }

    /// How many blocks a volume has, to be compared with how many it has later.
    pub(crate) fn size_of(&self, volume: Uuid) -> Option<u64> {
        Some(self.volumes.get(&volume)?.info().size_bytes)
    }

    /// The configuration of a subsystem; `None` for the discovery subsystem too.
    pub(crate) fn subsystem(&self, nqn: &Nqn) -> Option<&Arc<SubsystemConfig>> {
        self.catalog.subsystems.get(nqn)
    }

    /// A namespace, if this controller sees it.
    pub(crate) fn namespace(&self, controller: &Controller, nsid: u32) -> Option<Visible<'_>> {
        let subsystem = self.subsystem(&controller.subsystem.nqn)?;
        let config = subsystem.namespaces.get(&nsid)?;
        self.seen_by(controller, nsid, config)
    }

    /// The namespaces that this controller sees, in order.
    pub(crate) fn namespaces(&self, controller: &Controller) -> Vec<Visible<'_>> {
        let Some(subsystem) = self.subsystem(&controller.subsystem.nqn) else {
            return Vec::new();
        };
        let namespaces = subsystem.namespaces.iter();
        namespaces
            .filter_map(|(nsid, config)| self.seen_by(controller, *nsid, config))
            .collect()
    }

    /// All namespaces of a subsystem whose volumes exist, in order.
    pub(crate) fn namespaces_of(&self, subsystem: &Nqn) -> Vec<Visible<'_>> {
        let Some(subsystem) = self.subsystem(subsystem) else {
            return Vec::new();
        };
        let namespaces = subsystem.namespaces.iter();
        namespaces
            .filter_map(|(nsid, config)| {
                Some(Visible {
                    nsid: *nsid,
                    config,
                    volume: self.volumes.get(&config.volume)?,
                })
            })
            .collect()
    }

    fn seen_by<'a>(
        &'a self,
        controller: &Controller,
        nsid: u32,
        config: &'a Arc<NamespaceConfig>,
    ) -> Option<Visible<'a>> {
        if !config.shows_to(&controller.host.nqn) {
            return None;
        }
        if !config.shared && controller.subsystem.private_holder(nsid) != Some(controller.id) {
            return None;
        }
        let volume = self.volumes.get(&config.volume)?;
        Some(Visible {
            nsid,
            config,
            volume,
        })
    }

    /// How the path of this controller reaches the namespaces of a group.
    pub(crate) fn ana_state(&self, controller: &Controller, group: u32) -> AnaState {
        if !self.is_served {
            return AnaState::Inaccessible;
        }
        let port = self.catalog.ports.get(&controller.port);
        let state = port.and_then(|port| port.ana.get(&group));
        state.copied().unwrap_or_default()
    }

    /// The namespaces that a controller sees, to be compared with those that it sees later.
    pub(crate) fn view_of(&self, controller: &Controller) -> BTreeMap<u32, Arc<NamespaceConfig>> {
        self.namespaces(controller)
            .into_iter()
            .map(|visible| (visible.nsid, visible.config.clone()))
            .collect()
    }
}

/// Attaches volumes that are in no subsystem, and are not meant to be, to the default one.
pub(crate) fn adopt(catalog: &mut Catalog, volumes: &[VolumeInfo], eui64: bool) {
    let known: std::collections::HashSet<Uuid> = catalog
        .subsystems
        .values()
        .flat_map(|subsystem| subsystem.namespaces.values())
        .map(|namespace| namespace.volume)
        .chain(catalog.unattached.iter().copied())
        .collect();
    let Some(default) = catalog.default_subsystem_mut() else {
        return;
    };
    for info in volumes.iter().filter(|info| !known.contains(&info.uuid)) {
        let taken = default.namespaces.contains_key(&info.nsid);
        let nsid = match taken {
            false => info.nsid,
            true => match default.free_nsid() {
                Some(nsid) => nsid,
                None => {
                    tracing::warn!(volume = %info.name, "no namespace identifier is free: no host sees it");
                    continue;
                }
            },
        };
        let namespace = NamespaceConfig {
            eui64,
            ..NamespaceConfig::new(info.uuid)
        };
        Arc::make_mut(default)
            .namespaces
            .insert(nsid, Arc::new(namespace));
    }
}

/// The namespaces of which two views of a controller differ.
pub(crate) fn differences(
    before: &BTreeMap<u32, Arc<NamespaceConfig>>,
    after: &BTreeMap<u32, Arc<NamespaceConfig>>,
) -> Vec<u32> {
    let gone_or_changed = before
        .iter()
        .filter(|(nsid, config)| after.get(nsid) != Some(config));
    let new = after.iter().filter(|(nsid, _)| !before.contains_key(nsid));
    let mut all: Vec<u32> = gone_or_changed.chain(new).map(|(nsid, _)| *nsid).collect();
    all.sort_unstable();
    all
}
