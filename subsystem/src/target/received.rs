//! Snapshots that came from other pools, and the parts of streams that are no data.
//!
//! A snapshot has a UUID of its own in each pool, because hosts may see both. What is the same of the same content
//! everywhere is its *content id*: the UUID of the first snapshot that had it. A setting for each received snapshot keeps
//! it, so that later changes find what they are changes of.

use std::sync::Arc;

use dedup::Volume;
use meta::VolumeInfo;
use reactor::BufferPool;
use uuid::Uuid;

use super::Target;
use crate::errors::Failure;

/// What the keys of content ids begin with; the snapshot's UUID follows.
const KEY_PREFIX: &str = "received/";

/// A snapshot as it was where it came from.
#[derive(Clone, Debug, PartialEq, Eq)]
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
        let stored = self.engine.setting(&key_of(snapshot));
        let bytes = stored.and_then(|value| <[u8; 16]>::try_from(&*value).ok());
        bytes.map_or(snapshot, Uuid::from_bytes)
    }

    /// The name of the snapshot with this UUID.
    pub(super) fn snapshot_of(&self, uuid: Uuid) -> Option<String> {
        let mut all = self.engine.snapshots().into_iter();
        all.find(|info| info.uuid == uuid).map(|info| info.name)
    }

    /// The snapshot of a volume that has a content.
    pub(super) fn base_of(&self, volume: &VolumeInfo, content: Uuid) -> Result<VolumeInfo, Failure> {
        let name = &volume.name;
        let of = |info: &VolumeInfo| info.name.split('@').next() == Some(name);
        let mut all = self.engine.snapshots().into_iter().filter(of);
        all.find(|info| self.content_of(info.uuid) == content)
            .ok_or_else(|| {
                Failure::invalid(format!(
                    "volume '{name}' has no snapshot with the content that these changes are made of: receive that one \
                     first, or send all with `onefold send` without --from"
                ))
            })
    }

    /// Refuses a volume that is not what its snapshot is.
    pub(super) async fn check_unchanged(&self, volume: &Volume, base: &VolumeInfo) -> Result<(), Failure> {
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
    /// No import is under way, a part lies outside of the volume, or the engine refuses.
    pub async fn write_parts(
        &self,
        name: &str,
        session: Uuid,
        parts: &[Part],
        buffers: &BufferPool,
    ) -> Result<(), Failure> {
        let sessions = self.importing.read().await;
        let volume = self.receiving(&sessions, name, session)?;
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

    /// Takes the snapshot that was received, and returns the setting that names its content.
    pub(super) async fn take_received(
        &self,
        volume: &Arc<Volume>,
        received: &Received,
    ) -> Result<(String, Option<Vec<u8>>), Failure> {
        self.forget_lost().await?;
        let name = format!("{}@{}", volume.info().name, received.name);
        let there = self.engine.volume(&name).map(|it| it.info());
        let snapshot = match there {
            // A crash came between the snapshot and the setting: nobody else takes one of a volume that is not whole.
            Some(info) => {
                self.check_unchanged(volume, &info).await?;
                info
            }
            None => {
                let made = self.engine.create_snapshots(&[&name], received.created);
                let made = made.await?.into_iter().next();
                made.ok_or_else(|| {
                    Failure::new(
                        dedup::ErrorKind::Internal,
                        format!("snapshot '{name}' vanished"),
                    )
                })?
            }
        };
        let content = received.content.as_bytes().to_vec();
        Ok((key_of(snapshot.uuid), Some(content)))
    }

    /// Forgets the content id of a snapshot that was deleted.
    pub(super) async fn forget_received(&self, snapshot: Uuid) -> Result<(), Failure> {
        let key = key_of(snapshot);
        match self.engine.setting(&key) {
            None => Ok(()),
            Some(_) => Ok(self.engine.change_settings(vec![(key, None)]).await?),
        }
    }

    /// Forgets the content ids of snapshots that are gone: a crash came between two changes.
    async fn forget_lost(&self) -> Result<(), Failure> {
        let snapshots = self.engine.snapshots();
        let is_there = |key: &str| snapshots.iter().any(|info| key_of(info.uuid) == *key);
        let stored = self.engine.settings(KEY_PREFIX).into_iter();
        let gone: Vec<_> = stored.filter(|(key, _)| !is_there(key)).collect();
        if gone.is_empty() {
            return Ok(());
        }
        let gone = gone.into_iter().map(|(key, _)| (key, None)).collect();
        Ok(self.engine.change_settings(gone).await?)
    }
}
