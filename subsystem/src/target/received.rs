//! Snapshots that came from other pools, and the parts of streams that are no data.
//!
//! A snapshot has a UUID of its own in each pool, because hosts may see both. What is the same of the same content
//! everywhere is its *content id*: the UUID of the first snapshot that had it. A setting for each received snapshot keeps
//! it, so that later changes find what they are changes of.

use std::sync::Arc;

use dedup::Volume;
use meta::VolumeInfo;
use reactor::BufferPool;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::Target;
use crate::errors::Failure;

/// What the keys of content ids begin with; the snapshot's UUID follows.
const KEY_PREFIX: &str = "received/";

/// Bytes of contents that are repeated by one call at most: it keeps others from beginning and ending imports.
pub const SAME_BYTES_MAX: u64 = 1 << 30;

/// A snapshot as it was where it came from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Received {
    /// Its name behind the `@`.
    pub name: String,
    /// Its content id.
    pub content: Uuid,
    /// When it was taken, in seconds since 1970.
    pub created: u64,
}

/// A part of a volume that changes without data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Its first byte.
    pub offset: u64,
    /// How many bytes it has.
    pub length: u64,
    /// Where the volume has the same content already; `None` is zeros.
    pub same_as: Option<u64>,
}

fn key_of(snapshot: Uuid) -> String {
    format!("{KEY_PREFIX}{snapshot}")
}

impl Target {
    /// What names the content of a snapshot in every pool that received it.
    #[must_use]
    pub fn content_of(&self, snapshot: Uuid) -> Uuid {
        let stored = self.describe(|pool| pool.setting(&key_of(snapshot)));
        let bytes = stored.and_then(|value| <[u8; 16]>::try_from(&*value).ok());
        bytes.map_or(snapshot, Uuid::from_bytes)
    }

    /// The snapshot with this UUID.
    pub(super) fn snapshot_of(&self, uuid: Uuid) -> Option<VolumeInfo> {
        let mut all = self.describe(|pool| pool.snapshots()).into_iter();
        all.find(|info| info.uuid == uuid)
    }

    /// The snapshot of a volume that has a content.
    pub(super) fn base_of(
        &self,
        volume: &VolumeInfo,
        content: Uuid,
    ) -> Result<VolumeInfo, Failure> {
        let name = &volume.name;
        let of = |info: &VolumeInfo| info.name.split('@').next() == Some(name);
        let mut all = self.engine()?.snapshots().into_iter().filter(of);
        all.find(|info| self.content_of(info.uuid) == content)
            .ok_or_else(|| {
                Failure::invalid(format!(
                    "volume '{name}' has no snapshot with the content that these changes are made of: receive that one \
                     first, or send all with `onefold send` without --from"
                ))
            })
    }

    /// Refuses a volume that is not what its snapshot is.
    pub(super) async fn check_unchanged(
        &self,
        volume: &Volume,
        base: &VolumeInfo,
    ) -> Result<(), Failure> {
        let snapshot = self.volume_of_name(&base.name)?;
        let size = volume.info().size_bytes;
        let mut at = 0;
        let mut is_equal = size == base.size_bytes;
        while is_equal && at < size {
            let found = volume.diff(&snapshot, at, 1).await?;
            is_equal = found.ranges.is_empty();
            at = found.upto;
        }
        match is_equal {
            true => Ok(()),
            false => Err(Failure::invalid(format!(
                "volume '{}' was changed since its snapshot '{base}', which the stream has the changes of: `onefold \
                 snapshot rollback {base}` takes that back, a clone keeps it",
                volume.info().name,
                base = base.name
            ))),
        }
    }

    /// Writes parts of an image that are zeros, or that the volume has elsewhere, in their order.
    ///
    /// # Errors
    /// No import is under way, a part lies outside of the volume or overlaps what it repeats, or the engine refuses. Parts
    /// before it are written then.
    pub async fn write_parts(
        &self,
        name: &str,
        session: Uuid,
        parts: &[Part],
        buffers: &BufferPool,
    ) -> Result<(), Failure> {
        let sessions = self.importing.read().await;
        let volume = self.receiving(&sessions, name, session)?;
        let same = parts.iter().filter(|part| part.same_as.is_some());
        let same_bytes = same.fold(0_u64, |sum, part| sum.saturating_add(part.length));
        if same_bytes > SAME_BYTES_MAX {
            return Err(Failure::invalid(format!(
                "{same_bytes} bytes are repeated at a time, and at most {SAME_BYTES_MAX} can be"
            )));
        }
        for part in parts {
            match part.same_as {
                None => volume.write_zeroes(part.offset, part.length, false).await?,
                Some(from) => {
                    let copied = volume.copy(part.offset, &volume, from, part.length, buffers);
                    copied.await?;
                }
            }
        }
        Ok(())
    }

    /// Refuses a snapshot whose name another one of the volume has.
    pub(super) fn check_name_free(
        &self,
        volume: &VolumeInfo,
        received: &Received,
    ) -> Result<(), Failure> {
        let name = format!("{}@{}", volume.name, received.name);
        let mut all = self.engine()?.snapshots().into_iter();
        let Some(there) = all.find(|info| info.name == name) else {
            return Ok(());
        };
        Err(Failure::invalid(
            match self.content_of(there.uuid) == received.content {
                true => format!("snapshot '{name}' is there already: it was received before"),
                false => format!(
                    "volume '{}' has another snapshot '{name}' already: delete that first with `onefold snapshot delete \
                     {name}`, or send one of another name",
                    volume.name
                ),
            },
        ))
    }

    /// Takes the snapshot that was received. Its content id is stored first, so that no crash lets it be without.
    pub(super) async fn take_received(
        &self,
        volume: &Arc<Volume>,
        received: &Received,
    ) -> Result<(), Failure> {
        self.forget_lost().await?;
        let name = format!("{}@{}", volume.info().name, received.name);
        let there = self.engine()?.volume(&name).map(|it| it.info());
        // A crash came behind the snapshot: nobody else takes one of a volume that is not whole. What was resumed since
        // wrote the same again, perhaps to other blocks.
        if let Some(info) = there
            && self.content_of(info.uuid) == received.content
        {
            self.engine()?.rollback(&name).await?;
            return Ok(());
        }
        self.check_name_free(&volume.info(), received)?;
        let uuid = Uuid::new_v4();
        let content = received.content.as_bytes().to_vec();
        let stored = self
            .engine()?
            .change_settings(vec![(key_of(uuid), Some(content))]);
        stored.await?;
        let taken = self
            .engine()?
            .create_snapshot_as(&name, uuid, received.created);
        Ok(taken.await?)
    }

    /// Forgets the content id of a snapshot that was deleted.
    pub(super) async fn forget_received(&self, snapshot: Uuid) -> Result<(), Failure> {
        let key = key_of(snapshot);
        match self.engine()?.setting(&key) {
            None => Ok(()),
            Some(_) => Ok(self.engine()?.change_settings(vec![(key, None)]).await?),
        }
    }

    /// Forgets the content ids of snapshots that are gone: a crash came between two changes.
    async fn forget_lost(&self) -> Result<(), Failure> {
        let snapshots = self.engine()?.snapshots();
        let is_there = |key: &str| snapshots.iter().any(|info| key_of(info.uuid) == *key);
        let stored = self.engine()?.settings(KEY_PREFIX).into_iter();
        let gone: Vec<_> = stored.filter(|(key, _)| !is_there(key)).collect();
        if gone.is_empty() {
            return Ok(());
        }
        let gone = gone.into_iter().map(|(key, _)| (key, None)).collect();
        Ok(self.engine()?.change_settings(gone).await?)
    }
}
