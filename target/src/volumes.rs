//! Volumes as the target makes and deletes them: with the place where hosts see them.
//!
//! Guarantees: where a volume is to be seen is durable before the volume exists, so that it is never
//! seen elsewhere, whenever the daemon ends; what an interrupted creation or deletion leaves names a
//! volume that does not exist, and shows nothing.

use dedup::VolumeSpec;
use nvme::Nqn;
use uuid::Uuid;

use crate::catalog::{Catalog, NAMESPACES_MAX, NamespaceConfig};
use crate::errors::Failure;
use crate::target::Target;

/// Where hosts see a new volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// In the default subsystem, under the volume's own number.
    Default,
    /// Nowhere, until it is attached.
    Nowhere,
    /// In this subsystem, for these hosts (`None` is all of them).
    In {
        nqn: Nqn,
        hosts: Option<std::collections::BTreeSet<Nqn>>,
        shared: bool,
    },
}

impl Target {
    /// Creates a volume; gives its namespace identifier, if it has a place.
    ///
    /// # Errors
    /// What is wrong with the volume, or with its place.
    pub(crate) async fn create_volume(
        &self,
        mut spec: VolumeSpec,
        place: Place,
    ) -> Result<Option<u32>, Failure> {
        let given = spec.uuid;
        let uuid = given.unwrap_or_else(Uuid::new_v4);
        spec.uuid = Some(uuid);
        let engine = &self.engine;
        // Before anything is noted under it: that would be forgotten again for the volume that has it.
        let is_free = |catalog: &Catalog| {
            let volumes = engine.volumes();
            let named = volumes.iter().find(|info| info.uuid == uuid);
            if given.is_none() || (named.is_none() && !catalog.knows_volume(uuid)) {
                return Ok(());
            }
            let whose = named.map_or_else(
                || "a volume that is being created or deleted".to_owned(),
                |info| format!("volume '{}'", info.name),
            );
            Err(Failure::invalid(format!("UUID {uuid} is that of {whose}")))
        };
        let nsid = self
            .change(|catalog| {
                is_free(catalog)?;
                match place {
                    Place::Nowhere => {
                        catalog.unattached.insert(uuid);
                        Ok(None)
                    }
                    Place::Default => {
                        let nqn = self.nvm.nqn.clone();
                        let subsystem = catalog.subsystem(&nqn)?;
                        let free = |nsid: &u32| {
                            !subsystem.namespaces.contains_key(nsid)
                                && engine.volume_by_nsid(*nsid).is_none()
                        };
                        let nsid = spec.nsid.or_else(|| (1..=NAMESPACES_MAX).find(free));
                        spec.nsid = nsid;
                        catalog
                            .attach(&nqn, nsid, NamespaceConfig::new(uuid))
                            .map(Some)
                    }
                    Place::In { nqn, hosts, shared } => {
                        let namespace = NamespaceConfig {
                            hosts,
                            shared,
                            ..NamespaceConfig::new(uuid)
                        };
                        catalog.attach(&nqn, None, namespace).map(Some)
                    }
                }
            })
            .await?;
        if let Err(error) = engine.create_volume(spec).await {
            self.forget(uuid).await;
            return Err(error.into());
        }
        Ok(nsid)
    }

    /// Deletes a volume, and every namespace that shows it.
    ///
    /// # Errors
    /// There is none of that name, or the pool takes no changes.
    pub(crate) async fn delete_volume(&self, name: &str) -> Result<(), Failure> {
        let volume = self.engine.volume(name);
        let volume = volume.ok_or_else(|| crate::api::no_volume(name))?;
        let uuid = volume.info().uuid;
        self.engine.delete_volume(name).await?;
        self.forget(uuid).await;
        Ok(())
    }

    /// Forgets where a volume was seen that does not exist.
    async fn forget(&self, uuid: Uuid) {
        let forget = self.change(|catalog| {
            catalog.forget_volume(uuid);
            Ok(())
        });
        if let Err(error) = forget.await {
            // It shows nothing, and the next start leaves it out.
            tracing::warn!(volume = %uuid, %error, "the place of a volume that is gone is still kept");
        }
        if let Err(error) = self.forget_reservations().await {
            // They hold nothing, and the next deletion takes them along.
            tracing::warn!(volume = %uuid, %error, "reservations of a volume that is gone are still kept");
        }
    }
}
