//! The volumes of a pool: handles, creation, resizing, renaming, deletion.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use meta::VolumeInfo;
use uuid::Uuid;

use crate::sync::wait::lock;
use crate::volumes::{Volume, admin, fork};
use crate::{Engine, EngineError, PolicyChange, Result, VolumeChange, VolumeSpec};

/// Handles of all volumes that can be used, as they were after so many changes.
#[derive(Default)]
pub(super) struct Namespaces {
    changes: Option<u64>,
    by_nsid: Vec<Option<Arc<Volume>>>,
}

impl Engine {
    /// All volumes that can be used, in order of namespace identifiers. Snapshots are none.
    pub fn volumes(&self) -> Vec<VolumeInfo> {
        let state = lock(&self.shared.state);
        let active = state.volumes.values().filter(|entry| entry.is_active());
        let active = active.filter(|entry| entry.info.snapshot.is_none());
        let mut volumes: Vec<_> = active.map(|entry| VolumeInfo::clone(&entry.info)).collect();
        volumes.sort_unstable_by_key(|info| info.nsid);
        volumes
    }

    /// All snapshots, the oldest first; their names are `VOLUME@NAME`.
    pub fn snapshots(&self) -> Vec<VolumeInfo> {
        let state = lock(&self.shared.state);
        let active = state.volumes.values().filter(|entry| entry.is_active());
        let active = active.filter(|entry| entry.info.snapshot.is_some());
        active.map(|entry| VolumeInfo::clone(&entry.info)).collect()
    }

    /// The volume of that name, or the snapshot if it is `VOLUME@NAME`.
    pub fn volume(&self, name: &str) -> Option<Arc<Volume>> {
        let nsid = {
            let state = lock(&self.shared.state);
            let mut active = state.volumes.values().filter(|entry| entry.is_active());
            active.find(|entry| entry.info.name == name)?.info.nsid
        };
        self.volume_by_nsid(nsid)
    }

    /// The volume behind a namespace identifier. Costs no more than a look into a table.
    pub fn volume_by_nsid(&self, nsid: u32) -> Option<Arc<Volume>> {
        let now = self.shared.volume_changes.load(Ordering::Acquire);
        let known = self
            .namespaces
            .read()
            .unwrap_or_else(|_| reactor::end_half_changed());
        if known.changes == Some(now) {
            return known.by_nsid.get(nsid as usize)?.clone();
        }
        drop(known);
        let mut namespaces = self
            .namespaces
            .write()
            .unwrap_or_else(|_| reactor::end_half_changed());
        self.renew(&mut namespaces);
        namespaces.by_nsid.get(nsid as usize)?.clone()
    }

    /// Volumes that stay keep their handles.
    fn renew(&self, namespaces: &mut Namespaces) {
        let state = lock(&self.shared.state);
        let mut old = std::mem::take(&mut namespaces.by_nsid);
        // The count cannot change while the state is locked.
        namespaces.changes = Some(self.shared.volume_changes.load(Ordering::Acquire));
        for entry in state.volumes.values().filter(|entry| entry.is_active()) {
            let nsid = entry.info.nsid as usize;
            if namespaces.by_nsid.len() <= nsid {
                namespaces.by_nsid.resize(nsid + 1, None);
            }
            let kept = old.get_mut(nsid).and_then(Option::take);
            let kept = kept.filter(|volume| volume.is_of(&entry.core));
            let volume =
                kept.unwrap_or_else(|| Volume::new(self.shared.clone(), entry.core.clone()));
            namespaces.by_nsid[nsid] = Some(volume);
        }
    }

    /// Calls back on every change of a volume, on the thread that made it: do not block.
    pub fn on_change(&self, callback: Box<dyn Fn(&VolumeChange) + Send + Sync>) {
        lock(&self.shared.subscribers).push(callback);
    }

    /// Creates a volume; durable when it returns.
    ///
    /// # Errors
    /// `Invalid` names what is wrong with the specification, or what is taken already.
    pub async fn create_volume(&self, spec: VolumeSpec) -> Result<Arc<Volume>> {
        let info = admin::create(&self.shared, spec).await?;
        self.volume(&info.name)
            .ok_or_else(|| EngineError::internal("a new volume vanished"))
    }

    /// Makes a new volume with the content that the volume, or the snapshot, `name` has now, at once whatever its size:
    /// both share what they have, and each changes what is its own. Durable when it returns. `uuid`: `None` makes a
    /// random one.
    ///
    /// # Errors
    /// `NotFound`, or `Invalid` if the new name is taken or the volume is a clone of too many clones.
    pub async fn clone_volume(
        &self,
        name: &str,
        clone: &str,
        uuid: Option<Uuid>,
    ) -> Result<Arc<Volume>> {
        let info = fork::fork(&self.shared, name, clone.to_owned(), uuid).await?;
        self.volume(&info.name)
            .ok_or_else(|| EngineError::internal("a new volume vanished"))
    }

    /// Takes snapshots of one volume or of several, each named `VOLUME@NAME`, all at one moment while hosts write, and
    /// at once whatever their size. After a crash all of them are there, or none. Durable when it returns. `created`:
    /// the time, in seconds since 1970.
    ///
    /// # Errors
    /// `NotFound` for a volume, `Invalid` if a name cannot be, is taken, or names a volume twice.
    pub async fn create_snapshots(&self, names: &[&str], created: u64) -> Result<Vec<VolumeInfo>> {
        let named: Vec<_> = names.iter().map(|name| (*name, Uuid::new_v4())).collect();
        fork::snapshot(&self.shared, &named, created).await
    }

    /// The same for one snapshot that has this UUID, which no volume has had.
    ///
    /// # Errors
    /// As those of several.
    pub async fn create_snapshot_as(&self, name: &str, uuid: Uuid, created: u64) -> Result<()> {
        fork::snapshot(&self.shared, &[(name, uuid)], created)
            .await
            .map(drop)
    }

    /// Gives a volume the content and the size that it had when the snapshot `VOLUME@NAME` was taken, at once. What
    /// was written since is lost; commands under way end first, later ones see the old content. Snapshots stay, later
    /// ones too. Durable when it returns.
    ///
    /// # Errors
    /// `NotFound` if there is no such snapshot.
    pub async fn rollback(&self, snapshot: &str) -> Result<VolumeInfo> {
        fork::rollback(&self.shared, snapshot).await
    }

    /// Changes a volume's size (a multiple of 4096, in bytes). Durable when it returns. What shrinking
    /// cuts off is gone at once, and freed by background maintenance.
    ///
    /// # Errors
    /// `NotFound`, or `Invalid` for a size that cannot be.
    pub async fn resize_volume(&self, name: &str, size_bytes: u64) -> Result<VolumeInfo> {
        admin::resize(&self.shared, name, size_bytes).await
    }

    /// Gives a volume another name. Durable when it returns; its identity, data and namespaces stay.
    ///
    /// # Errors
    /// `NotFound`, or `Invalid` for a name that cannot be or that another volume has.
    pub async fn rename_volume(&self, name: &str, new: &str) -> Result<VolumeInfo> {
        admin::rename(&self.shared, name, new).await
    }

    /// Changes what becomes of what is written to a volume from now on; what was written stays as it is. Durable when
    /// it returns. Writes under way end first.
    ///
    /// # Errors
    /// `NotFound`, or `Invalid` for a snapshot and for what cannot change.
    pub async fn set_volume_policy(&self, name: &str, change: &PolicyChange) -> Result<VolumeInfo> {
        admin::set_policy(&self.shared, name, change).await
    }

    /// Deletes a volume, or a snapshot: gone for hosts at once and for good. Its blocks are freed by background
    /// maintenance. Clones of it stay.
    ///
    /// # Errors
    /// `NotFound` if there is none of that name, `Invalid` for a volume that has snapshots.
    pub async fn delete_volume(&self, name: &str) -> Result<()> {
        admin::delete(&self.shared, name).await
    }
}
