//! Images on their way into volumes.
//!
//! Guarantees:
//! - A volume that an image is written to is one that no host sees, from before its first byte until its last one
//!   survives a loss of power; also after a crash, because the pool remembers it.
//! - An image replaces a volume's content only if nobody keeps that: no host is attached to it, no namespace is
//!   write protected, no reservation is in its way. Each piece is written only while the import is under way.
//! - What is said to be durable of an image is.
//! - One sender at a time: who resumes an import ends the session of who sent before.
//! - Changes since a snapshot come only onto what that snapshot has. They end as another snapshot, or are given up by
//!   rolling back to the first one ([`super::received`]). What a crash leaves between any two steps is one of these:
//!   the volume as it was, one that waits for the rest, or a whole one with its snapshot.

use std::sync::Arc;

use dedup::{ErrorKind, MAX_COMMAND_BYTES, SUB_BLOCK_BYTES, Volume, VolumeSpec};
use futures_util::future::join_all;
use meta::VolumeInfo;
use reactor::BufferPool;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::Target;
use super::import_sessions::{ImportBegun, SessionEnd, Sessions};
use super::received::Received;
use super::volumes::{Place, no_volume};
use crate::admission::{Access, Admission, Refusal};
use crate::catalog::WriteProtect;
use crate::describe::Describe;
use crate::errors::Failure;

/// What the keys of stored imports begin with; the volume's UUID follows.
pub(super) const KEY_PREFIX: &str = "import/";

/// The version of the stored form.
const VERSION: u32 = 1;

/// The version of an import that ends as a snapshot, or changes what one has: a program that does not know of that would
/// leave out the snapshot, or write zeros first.
const VERSION_OF_SNAPSHOTS: u32 = 2;

/// The longest name of an image.
const IMAGE_BYTES_MAX: usize = 256;

/// The least size of a volume that grows with its image.
const GROWING_BYTES_MIN: u64 = 1 << 30;

/// An image that is written to a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Import {
    /// What the image is known by to who sends it: size and time of change, mostly. It has to be the same when the
    /// import is resumed.
    pub image: String,
    /// Its length, if that is known before its end.
    pub image_bytes: Option<u64>,
    /// Up to here the image survives a loss of power.
    pub done_bytes: u64,
    /// Whether the volume grows with the image, and ends where it does.
    pub grows: bool,
    /// The snapshot of the volume that there is when the image is whole, if it is the image of one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<Received>,
    /// What it changes; it replaces all if that is nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changes: Option<Changes>,
}

/// An image that has only what differs from a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changes {
    /// The UUID of the snapshot.
    pub base: Uuid,
    /// The size that the volume gets.
    pub size_bytes: u64,
    /// Whether the volume was seen to have what the snapshot has, when no host could write any more. Nothing is
    /// written before.
    pub is_proven: bool,
}

#[derive(Serialize, Deserialize)]
struct Stored {
    version: u32,
    #[serde(flatten)]
    import: Import,
}

/// Where an image goes.
#[derive(Clone, Debug)]
pub enum Destination {
    /// A new volume.
    New(VolumeSpec, Place),
    /// In place of what the volume of that name holds.
    Over(String),
    /// To the volume of that name, which has what its snapshot of this content has, and gets this size.
    Onto {
        /// The volume's name.
        volume: String,
        /// What names the snapshot's content ([`Target::content_of`]).
        base: Uuid,
        /// The size that the volume gets, in bytes.
        size_bytes: u64,
    },
}

fn key_of(volume: Uuid) -> String {
    format!("{KEY_PREFIX}{volume}")
}

fn encode(import: &Import) -> Result<Vec<u8>, Failure> {
    let stored = Stored {
        version: match (&import.snapshot, &import.changes) {
            (None, None) => VERSION,
            _ => VERSION_OF_SNAPSHOTS,
        },
        import: import.clone(),
    };
    let encoded = serde_json::to_vec(&stored);
    encoded.map_err(|error| Failure::new(ErrorKind::Internal, format!("an import: {error}")))
}

fn decode(key: &str, value: &[u8]) -> Result<Import, Failure> {
    let stored: Result<Stored, _> = serde_json::from_slice(value);
    match stored {
        Ok(stored) if stored.version <= VERSION_OF_SNAPSHOTS => Ok(stored.import),
        _ => Err(Failure::new(
            ErrorKind::Corrupt,
            format!(
                "the pool's setting '{key}' cannot be understood: it was written by a newer version, which has to \
                 resume this import; deleting the volume works too"
            ),
        )),
    }
}

/// Whether a volume waits for the rest of its image.
pub(super) fn is_incomplete(pool: &dyn Describe, volume: Uuid) -> bool {
    pool.setting(&key_of(volume)).is_some()
}

impl Target {
    /// The import of an image to a volume, if it is under way.
    ///
    /// # Errors
    /// A newer version wrote it.
    pub fn import_of(&self, volume: Uuid) -> Result<Option<Import>, Failure> {
        let key = key_of(volume);
        let stored = self.engine()?.setting(&key);
        stored.map(|value| decode(&key, &value)).transpose()
    }

    /// Refuses a volume that waits for the rest of its image.
    ///
    /// # Errors
    /// It does.
    pub fn check_complete(&self, info: &VolumeInfo) -> Result<(), Failure> {
        match self.import_of(info.uuid)? {
            None => Ok(()),
            Some(import) => Err(self.incomplete(info, &import)),
        }
    }

    fn incomplete(&self, info: &VolumeInfo, import: &Import) -> Failure {
        let name = &info.name;
        let base = import.changes.as_ref();
        let base = base.and_then(|changes| self.snapshot_of(changes.base));
        Failure::invalid(match base.map(|info| info.name) {
            None => format!(
                "volume '{name}' has only a part of an image: `onefold volume import {name} FILE --resume`, or `onefold \
                 receive {name} --resume` for a stream, brings the rest, `onefold volume delete {name}` gives it up"
            ),
            Some(base) => format!(
                "volume '{name}' has only a part of the changes since '{base}': `onefold receive {name} --resume` brings \
                 the rest, `onefold snapshot rollback {base}` gives them up"
            ),
        })
    }

    /// An image begins; returns its session. When this returns, no host sees the volume, and it reads as zeros.
    ///
    /// # Errors
    /// The volume cannot be made, or somebody keeps its content.
    pub async fn begin_import(
        &self,
        destination: Destination,
        mut import: Import,
    ) -> Result<ImportBegun, Failure> {
        if import.image.len() > IMAGE_BYTES_MAX {
            return Err(Failure::invalid(format!(
                "an image is known by at most {IMAGE_BYTES_MAX} bytes"
            )));
        }
        let mut sessions = self.importing.write().await;
        import.done_bytes = 0;
        import.changes = None;
        self.forget_imports().await?;
        match destination {
            Destination::New(mut spec, place) => {
                let uuid = spec.uuid.unwrap_or_else(Uuid::new_v4);
                self.check_free(uuid)?;
                spec.uuid = Some(uuid);
                let name = spec.name.clone();
                // Before the volume: there is no moment at which it looks whole.
                self.store_import(uuid, Some(&import)).await?;
                if let Err(failure) = self.create_volume(spec, place).await {
                    self.store_import(uuid, None).await?;
                    return Err(failure);
                }
                tracing::info!(volume = %name, "an image is being imported: no host sees the volume until it is whole");
                Ok(sessions.begin(uuid))
            }
            Destination::Over(name) => {
                let volume = self.volume_of_name(&name)?;
                let info = volume.info();
                if !volume.is_writable() {
                    return Err(Failure::invalid(format!(
                        "'{name}' is a snapshot, which stays as it is: import to a new volume"
                    )));
                }
                self.check_complete(&info)?;
                import.grows = false;
                if import
                    .image_bytes
                    .is_some_and(|bytes| bytes > info.size_bytes)
                {
                    return Err(too_large(&info));
                }
                self.check_unused(&info)?;
                self.store_import(info.uuid, Some(&import)).await?;
                self.publish(None, Some(info.uuid));
                tracing::info!(volume = %name, "an image is being imported over the volume: no host sees it until it is whole");
                volume.write_zeroes(0, info.size_bytes, false).await?;
                Ok(sessions.begin(info.uuid))
            }
            Destination::Onto {
                volume: name,
                base,
                size_bytes,
            } => {
                let volume = self.volume_of_name(&name)?;
                let info = volume.info();
                self.check_complete(&info)?;
                self.check_unused(&info)?;
                // What an export was asked for before it heard of this could come later.
                self.check_not_exported(&name, info.uuid)?;
                let base = self.base_of(&info, base)?;
                if let Some(snapshot) = &import.snapshot {
                    self.check_name_free(&info, snapshot)?;
                }
                import.grows = false;
                import.changes = Some(Changes {
                    base: base.uuid,
                    size_bytes,
                    is_proven: false,
                });
                self.store_import(info.uuid, Some(&import)).await?;
                self.publish(None, Some(info.uuid));
                self.prepare(&volume, &mut import).await?;
                tracing::info!(volume = %name, base = %base.name, "changes are being received: no host sees the volume until they are whole");
                Ok(sessions.begin(info.uuid))
            }
        }
    }

    /// An image goes on where it is durable; returns where that is, and its session. What came behind it is zeros again.
    ///
    /// # Errors
    /// No import of this image is under way.
    pub async fn resume_import(
        &self,
        name: &str,
        image: &Import,
    ) -> Result<(Import, ImportBegun), Failure> {
        let mut sessions = self.importing.write().await;
        let volume = self.volume_of_name(name)?;
        let info = volume.info();
        let mut import = self.under_way(&info)?;
        if import.image != image.image || import.image_bytes != image.image_bytes {
            return Err(Failure::invalid(format!(
                "volume '{name}' has a part of an image that was known by '{}', and this one is known by '{}': it is \
                 another image, or was changed. {}",
                import.image,
                image.image,
                match &import.changes {
                    None => format!("`onefold volume delete {name}` makes room for it"),
                    Some(_) => "Going back to the snapshot makes room for it".to_owned(),
                }
            )));
        }
        self.prepare(&volume, &mut import).await?;
        let rest = info.size_bytes.saturating_sub(import.done_bytes);
        // From now on who sent before is refused.
        let begun = sessions.begin(info.uuid);
        // Changes come again as a whole; what they leave out is the base's.
        if import.changes.is_none() {
            volume.write_zeroes(import.done_bytes, rest, false).await?;
        }
        Ok((import, begun))
    }

    /// Writes a piece of the image, with the same checks as a host's write.
    ///
    /// # Errors
    /// No import is under way, the piece lies outside of the volume, or the engine refuses.
    pub async fn write_image(
        &self,
        name: &str,
        session: Uuid,
        offset: u64,
        data: &[u8],
        buffers: &BufferPool,
    ) -> Result<(), Failure> {
        let end = offset.saturating_add(data.len() as u64);
        self.grow_for(name, end).await?;
        let sessions = self.importing.read().await;
        let volume = &self.receiving(&sessions, name, session)?;
        let info = volume.info();
        if end > info.size_bytes {
            return Err(too_large(&info));
        }
        let commands = data.chunks(MAX_COMMAND_BYTES).enumerate();
        // All of them end, whatever becomes of one: one that is dropped half-way would set its blocks aside.
        let written = join_all(commands.map(|(number, chunk)| async move {
            let mut buffer = buffers.alloc(chunk.len()).await;
            buffer.copy_from_slice(chunk);
            let at = offset + (number * MAX_COMMAND_BYTES) as u64;
            volume.write(at, buffer, false).await.0
        }))
        .await;
        Ok(written.into_iter().collect::<Result<(), _>>()?)
    }

    /// The volume of an import, for what comes now.
    pub(super) fn receiving(
        &self,
        sessions: &Sessions,
        name: &str,
        session: Uuid,
    ) -> Result<Arc<Volume>, Failure> {
        let volume = self.volume_of_name(name)?;
        let info = volume.info();
        self.under_way(&info)?;
        sessions.check(&info, session)?;
        self.admit_owner(&info, Access::Write)?;
        Ok(volume)
    }

    /// What was written of the image up to there is made durable, and remembered.
    ///
    /// # Errors
    /// No import is under way, or the engine refuses.
    pub async fn keep_import(
        &self,
        name: &str,
        session: Uuid,
        done_bytes: u64,
    ) -> Result<Import, Failure> {
        let sessions = self.importing.read().await;
        let volume = self.volume_of_name(name)?;
        let info = volume.info();
        let mut import = self.under_way(&info)?;
        sessions.check(&info, session)?;
        if import.image_bytes.is_some_and(|bytes| done_bytes > bytes) {
            return Err(Failure::invalid(format!(
                "the image of volume '{name}' is shorter than {done_bytes} bytes"
            )));
        }
        volume.flush().await?;
        // Behind a smaller number that another request has stored, all is durable too.
        import.done_bytes = done_bytes;
        self.store_import(info.uuid, Some(&import)).await?;
        Ok(import)
    }

    /// The image has come whole: the volume is durable, and hosts see it. If the image is that of a snapshot, there is such
    /// a snapshot of the volume then.
    ///
    /// # Errors
    /// No import is under way, the image was announced longer, or the engine refuses: then it is not whole.
    pub async fn finish_import(
        &self,
        name: &str,
        session: Uuid,
        image_bytes: u64,
    ) -> Result<(), Failure> {
        let mut sessions = self.importing.write().await;
        let volume = self.volume_of_name(name)?;
        let info = volume.info();
        let import = self.under_way(&info)?;
        sessions.check(&info, session)?;
        if let Some(announced) = import.image_bytes.filter(|bytes| *bytes != image_bytes) {
            return Err(Failure::invalid(format!(
                "the image of volume '{name}' has {announced} bytes, and {image_bytes} came: it is not whole"
            )));
        }
        if import.grows {
            let size = image_bytes.max(1).next_multiple_of(SUB_BLOCK_BYTES as u64);
            self.engine()?.resize_volume(name, size).await?;
        } else if image_bytes > info.size_bytes {
            return Err(too_large(&info));
        }
        volume.flush().await?;
        if let Some(snapshot) = &import.snapshot {
            self.take_received(&volume, snapshot).await?;
        }
        self.store_import(info.uuid, None).await?;
        sessions.end(info.uuid, SessionEnd::Whole);
        self.publish(None, Some(info.uuid));
        tracing::info!(volume = %name, image_bytes, "an image was imported: hosts see the volume");
        Ok(())
    }

    /// Gives a volume the content and the size that it had when a snapshot was taken. Changes that are being received to
    /// it are given up, if they are changes of this snapshot.
    ///
    /// # Errors
    /// There is no such snapshot, or the volume waits for the rest of an image.
    pub async fn roll_back(&self, snapshot: &str) -> Result<(), Failure> {
        let name = snapshot.split('@').next().unwrap_or_default();
        let mut sessions = self.importing.write().await;
        let info = self.volume_of_name(name)?.info();
        let import = self.import_of(info.uuid)?;
        let Some(mut import) = import else {
            self.engine()?.rollback(snapshot).await?;
            return Ok(());
        };
        let to = self.engine()?.volume(snapshot).map(|it| it.info().uuid);
        let base = import.changes.as_ref().map(|changes| changes.base);
        if base.is_none() || to != base {
            return Err(self.incomplete(&info, &import));
        }
        sessions.end(info.uuid, SessionEnd::GivenUp);
        // Who resumes it after a crash in the middle has to bring all of it again.
        import.done_bytes = 0;
        self.store_import(info.uuid, Some(&import)).await?;
        self.engine()?.rollback(snapshot).await?;
        self.store_import(info.uuid, None).await?;
        self.publish(None, Some(info.uuid));
        tracing::info!(volume = %name, "changes that were being received are given up: hosts see the volume");
        Ok(())
    }

    /// Makes a volume ready for changes of a snapshot: it has what the snapshot has, and the size that it gets. One that
    /// was changed since is given back as it is.
    async fn prepare(&self, volume: &Arc<Volume>, import: &mut Import) -> Result<(), Failure> {
        let before = volume.info();
        let is_untouched = import.changes.as_ref().is_some_and(|it| !it.is_proven);
        let ready = self.make_ready(volume, import).await;
        let is_untouched = is_untouched && volume.info().size_bytes == before.size_bytes;
        if ready.is_err() && is_untouched {
            self.store_import(before.uuid, None).await?;
            self.publish(None, Some(before.uuid));
        }
        ready
    }

    async fn make_ready(&self, volume: &Arc<Volume>, import: &mut Import) -> Result<(), Failure> {
        let info = volume.info();
        let Some(changes) = &mut import.changes else {
            return Ok(());
        };
        let size = changes.size_bytes;
        if !changes.is_proven {
            let base = self.snapshot_of(changes.base).ok_or_else(|| {
                Failure::invalid(format!(
                    "the snapshot of volume '{}' that these changes were made of is gone",
                    info.name
                ))
            })?;
            self.check_unchanged(volume, &base).await?;
            // Before the size changes: later it would look as if somebody had changed it.
            changes.is_proven = true;
            self.store_import(info.uuid, Some(import)).await?;
        }
        if size != info.size_bytes {
            self.engine()?.resize_volume(&info.name, size).await?;
        }
        Ok(())
    }

    /// Takes snapshots of one moment, none of a volume that waits for the rest of an image.
    ///
    /// # Errors
    /// One does, or the engine refuses.
    pub async fn take_snapshots(
        &self,
        names: &[&str],
        created: u64,
    ) -> Result<Vec<VolumeInfo>, Failure> {
        // No import begins meanwhile.
        let _sessions = self.importing.read().await;
        for name in names {
            let of = name.split('@').next().unwrap_or_default();
            if let Some(volume) = self.engine()?.volume(of) {
                self.check_complete(&volume.info())?;
            }
        }
        Ok(self.engine()?.create_snapshots(names, created).await?)
    }

    /// Forgets what volumes that no longer exist waited for.
    pub(super) async fn forget_import(&self, volume: Uuid) -> Result<(), Failure> {
        let mut sessions = self.importing.write().await;
        sessions.end(volume, SessionEnd::GivenUp);
        drop(sessions);
        match is_incomplete(&**self.engine()?, volume) {
            true => self.store_import(volume, None).await,
            false => Ok(()),
        }
    }

    /// A volume for its owner's own commands, which a reservation of hosts keeps out as it does any host that is not
    /// registered.
    ///
    /// # Errors
    /// There is no such volume, or it may not be read now.
    pub fn open_to_read(&self, name: &str) -> Result<Arc<Volume>, Failure> {
        let volume = self.volume_of_name(name)?;
        let info = volume.info();
        self.check_complete(&info)?;
        self.admit_owner(&info, Access::Read)?;
        Ok(volume)
    }

    pub(super) fn volume_of_name(&self, name: &str) -> Result<Arc<Volume>, Failure> {
        self.engine()?.volume(name).ok_or_else(|| no_volume(name))
    }

    fn under_way(&self, info: &VolumeInfo) -> Result<Import, Failure> {
        self.import_of(info.uuid)?.ok_or_else(|| {
            Failure::invalid(format!(
                "no image is being imported to volume '{}': it is whole",
                info.name
            ))
        })
    }

    /// Refuses the number of a volume that exists, or that the catalog knows.
    fn check_free(&self, uuid: Uuid) -> Result<(), Failure> {
        let volumes = self.engine()?.volumes();
        let is_taken = volumes.iter().any(|info| info.uuid == uuid);
        match is_taken || self.catalog().knows_volume(uuid) {
            false => Ok(()),
            true => Err(Failure::invalid(format!(
                "UUID {uuid} is that of a volume; name another one, or none to get a random one"
            ))),
        }
    }

    /// Refuses to replace what somebody keeps.
    fn check_unused(&self, info: &VolumeInfo) -> Result<(), Failure> {
        self.admit_owner(info, Access::Write)?;
        let viewers = self.viewers(info.uuid);
        match viewers.first() {
            None => Ok(()),
            Some((controller, nsid)) => Err(Failure::invalid(format!(
                "volume '{}' is in use: host '{}' is attached to it as namespace {nsid} of '{}'. Disconnect it there, \
                 or `onefold namespace detach {} {nsid}`",
                info.name, controller.host.nqn, controller.subsystem.nqn, controller.subsystem.nqn
            ))),
        }
    }

    /// Whether the owner of the target may use a volume so: by the same door as hosts.
    fn admit_owner(&self, info: &VolumeInfo, access: Access) -> Result<(), Failure> {
        let catalog = self.catalog();
        let namespaces = catalog.subsystems.values().flat_map(|it| &it.namespaces);
        let mut shown = namespaces.filter(|(_, namespace)| namespace.volume == info.uuid);
        let protected = shown.find(|(_, namespace)| namespace.write_protect != WriteProtect::Off);
        let admission = Admission {
            size_bytes: info.size_bytes,
            lba_bytes: info.lba_bytes,
            write_protect: protected.map_or(WriteProtect::Off, |(_, it)| it.write_protect),
            // No host has this identifier.
            reservations: reservations::Watch::new(
                self.reservations.of(info.uuid),
                reservations::HostId::nil(),
            ),
        };
        admission.admit(access).map_err(|refusal| {
            let name = &info.name;
            Failure::invalid(match refusal {
                Refusal::WriteProtected => format!(
                    "volume '{name}' is write protected in one of its namespaces: `onefold namespace set` can change that"
                ),
                Refusal::Reserved => format!(
                    "a host has reserved volume '{name}': `onefold reservation show {name}` tells which, and \
                     `onefold reservation clear {name}` takes it away"
                ),
            })
        })
    }

    /// A volume that grows with its image has room up to there.
    async fn grow_for(&self, name: &str, end: u64) -> Result<(), Failure> {
        let is_too_small = || {
            let info = self.volume_of_name(name)?.info();
            let grows = self.under_way(&info)?.grows;
            Ok::<_, Failure>(grows && end > info.size_bytes)
        };
        if !is_too_small()? {
            return Ok(());
        }
        let _alone = self.importing.write().await;
        if is_too_small()? {
            let size = end.checked_next_power_of_two().unwrap_or(end);
            let size = size.max(GROWING_BYTES_MIN);
            self.engine()?.resize_volume(name, size).await?;
        }
        Ok(())
    }

    /// Refuses a snapshot that changes on their way into a volume are changes of: only with it can they be resumed or
    /// given up.
    pub(super) fn check_no_base(&self, name: &str, snapshot: Uuid) -> Result<(), Failure> {
        for volume in self.engine()?.volumes() {
            let import = self.import_of(volume.uuid)?;
            let changes = import.and_then(|import| import.changes);
            if changes.is_some_and(|changes| changes.base == snapshot) {
                let volume = volume.name;
                return Err(Failure::invalid(format!(
                    "volume '{volume}' has only a part of the changes since '{name}': bring the rest first with \
                     `onefold receive {volume} --resume`, or give them up with `onefold snapshot rollback {name}`"
                )));
            }
        }
        Ok(())
    }

    /// Imports to volumes that are gone: a crash came between two changes.
    async fn forget_imports(&self) -> Result<(), Failure> {
        let volumes = self.engine()?.volumes();
        let is_there = |key: &str| volumes.iter().any(|info| key_of(info.uuid) == *key);
        let stored = self.engine()?.settings(KEY_PREFIX).into_iter();
        let gone = stored.filter(|(key, _)| !is_there(key));
        let gone: Vec<_> = gone.map(|(key, _)| (key, None)).collect();
        match gone.is_empty() {
            true => Ok(()),
            false => Ok(self.engine()?.change_settings(gone).await?),
        }
    }

    async fn store_import(&self, volume: Uuid, import: Option<&Import>) -> Result<(), Failure> {
        let value = import.map(encode).transpose()?;
        let changed = self
            .engine()?
            .change_settings(vec![(key_of(volume), value)]);
        Ok(changed.await?)
    }
}

fn too_large(info: &VolumeInfo) -> Failure {
    Failure::invalid(format!(
        "the image is larger than volume '{}', which has {} bytes: `onefold volume resize` or --size make it larger",
        info.name, info.size_bytes
    ))
}
