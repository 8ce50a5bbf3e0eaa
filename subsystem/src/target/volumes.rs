//! Creates and deletes volumes together with their namespaces.
//!
//! Guarantees: a volume's namespace is stored before the volume exists, so that no crash lets it appear elsewhere. An
//! interrupted creation or deletion leaves only a namespace of a volume that does not exist, which no host sees.

use dedup::{ErrorKind, VolumeSpec};
use nvme::Nqn;
use uuid::Uuid;

use super::Target;
use crate::catalog::{Catalog, NAMESPACES_MAX, NamespaceConfig};
use crate::errors::Failure;

/// Where hosts see a new volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the default subsystem, under the volume's own number.
    Default,
    /// Nowhere, until it is attached.
    Nowhere,
    /// In this subsystem, for these hosts (`None` is all of them).
    In {
        /// Its name.
        nqn: Nqn,
        /// The hosts that see it.
        hosts: Option<std::collections::BTreeSet<Nqn>>,
        /// Several controllers may use it at a time.
        shared: bool,
    },
}

impl Target {
    /// Creates a volume; returns its namespace identifier, if it is in a subsystem.
    ///
    /// # Errors
    /// What is wrong with the volume, or with its place.
    pub async fn create_volume(
        &self,
        mut spec: VolumeSpec,
        place: Place,
    ) -> Result<Option<u32>, Failure> {
        let given = spec.uuid;
        let uuid = given.unwrap_or_else(Uuid::new_v4);
        spec.uuid = Some(uuid);
        let engine = self.engine()?;
        // Checked first: undoing a failed creation would delete the namespaces of the volume that has this UUID.
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
            Err(Failure::invalid(format!(
                "UUID {uuid} is that of {whose}; name another one, or none to get a random one"
            )))
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

    /// Makes new volumes with the content of a volume, or of a snapshot, one after the other.
    ///
    /// # Errors
    /// What is wrong with the first name that cannot be; the volumes before it are there.
    pub async fn clone_volume(
        &self,
        name: &str,
        clones: &[String],
        place: &Place,
    ) -> Result<(), Failure> {
        // No import begins meanwhile.
        let _sessions = self.importing.read().await;
        let origin = self.engine()?.volume(name).ok_or_else(|| no_volume(name))?;
        self.check_complete(&origin.info())?;
        for clone in clones {
            let uuid = Uuid::new_v4();
            self.change(|catalog| {
                let namespace = NamespaceConfig::new(uuid);
                match place {
                    Place::Nowhere => {
                        catalog.unattached.insert(uuid);
                        Ok(())
                    }
                    Place::Default => {
                        let nqn = self.nvm.nqn.clone();
                        catalog.attach(&nqn, None, namespace).map(drop)
                    }
                    Place::In { nqn, hosts, shared } => {
                        let namespace = NamespaceConfig {
                            hosts: hosts.clone(),
                            shared: *shared,
                            ..namespace
                        };
                        catalog.attach(nqn, None, namespace).map(drop)
                    }
                }
            })
            .await?;
            if let Err(error) = self.engine()?.clone_volume(name, clone, Some(uuid)).await {
                self.forget(uuid).await;
                return Err(error.into());
            }
        }
        Ok(())
    }

    /// Deletes a volume or a snapshot, and every namespace that shows it.
    ///
    /// # Errors
    /// There is none of that name, it is exported, changes of it are on their way, or the pool takes no changes.
    pub async fn delete_volume(&self, name: &str) -> Result<(), Failure> {
        let volume = self.engine()?.volume(name);
        let volume = volume.ok_or_else(|| no_volume(name))?;
        let uuid = volume.info().uuid;
        self.check_not_exported(name, uuid)?;
        {
            // No stream of changes begins meanwhile.
            let _sessions = self.importing.read().await;
            self.check_no_base(name, uuid)?;
            self.engine()?.delete_volume(name).await?;
        }
        self.forget(uuid).await;
        if let Err(error) = self.forget_import(uuid).await {
            // No volume waits for it, and the next import removes it.
            tracing::warn!(volume = %uuid, %error, "the import of a deleted volume is still stored");
        }
        if let Err(error) = self.forget_received(uuid).await {
            // It names the content of nothing, and goes with the next one that is received.
            tracing::warn!(snapshot = %uuid, %error, "where a deleted snapshot came from is still stored");
        }
        Ok(())
    }

    /// Refuses if a volume is exported.
    pub(super) fn check_not_exported(&self, name: &str, uuid: Uuid) -> Result<(), Failure> {
        let catalog = self.catalog();
        let mut exports = catalog.exports.values();
        match exports.find(|export| export.volume == uuid) {
            None => Ok(()),
            Some(export) => Err(Failure::invalid(format!(
                "'{name}' is exported at '{address}': end that first with `onefold export delete {address}`",
                address = export.address
            ))),
        }
    }

    /// Deletes the namespaces and reservations of a volume that does not exist.
    async fn forget(&self, uuid: Uuid) {
        self.health.forget_volume(uuid);
        let forget = self.change(|catalog| {
            catalog.forget_volume(uuid);
            Ok(())
        });
        if let Err(error) = forget.await {
            // No host sees it, and the next start ignores it.
            tracing::warn!(volume = %uuid, %error, "the namespaces of a deleted volume are still stored");
        }
        if let Err(error) = self.forget_reservations().await {
            // They protect nothing, and the next deletion removes them.
            tracing::warn!(volume = %uuid, %error, "the reservations of a deleted volume are still stored");
        }
    }
}

/// There is no volume of that name.
#[must_use]
pub fn no_volume(name: &str) -> Failure {
    Failure::new(
        ErrorKind::NotFound,
        format!("there is no volume '{name}': `onefold volume list` shows those there are"),
    )
}
