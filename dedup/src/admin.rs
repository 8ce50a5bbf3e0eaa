//! The life of volumes: create, resize, delete; and who wants to know.
//!
//! Guarantees: a change of a volume is durable when the call returns; a deleted volume is gone for
//! hosts at once, and its blocks are freed in the background, also after a crash; what a shrunk volume
//! cut off never shows again when it grows.

use std::sync::Arc;

use meta::{Compression, Record, VerifyPolicy, VolumeInfo, VolumeState};
use uuid::Uuid;

use crate::engine::Shared;
use crate::state::State;
use crate::wait::lock;
use crate::{Engine, EngineError, Result, SUB_BLOCK_BYTES, Volume};

/// Volumes of a pool at most, those being deleted included (I6).
pub(crate) const VOLUMES_MAX: usize = 1024;

/// The largest volume: its sub-block numbers, in bytes, leave room for every calculation.
const SIZE_BYTES_MAX: u64 = 1 << 60;

/// What a volume is created from.
#[derive(Clone, Debug)]
pub struct VolumeSpec {
    /// 1 to 64 of `a-z A-Z 0-9 . _ -`.
    pub name: String,
    /// A multiple of 4096, greater than zero.
    pub size_bytes: u64,
    /// 512 or 4096.
    pub lba_bytes: u32,
    /// The namespace identifier; `None` takes the lowest free one.
    pub nsid: Option<u32>,
    /// The volume's identity; `None` makes a random one.
    pub uuid: Option<Uuid>,
    /// Whether what is written to it is deduplicated. If not, nothing is hashed, and its blocks are
    /// found by nobody; it cannot be changed later.
    pub dedup: bool,
    /// How contents that nobody has stored yet are stored.
    pub compression: Compression,
    /// What a write does about a block that has the fingerprint of new data; it cannot be changed later.
    pub verify: VerifyPolicy,
    /// Its domain: volumes share blocks within one only. Empty for the pool's own, or 1 to 64 of
    /// `a-z A-Z 0-9 . _ -`; it cannot be changed later.
    pub domain: String,
}

/// What happened to a volume, for subscribers (the target tells its hosts).
#[derive(Clone, Debug)]
pub struct VolumeChange {
    /// What happened.
    pub kind: VolumeChangeKind,
    /// The volume after the change.
    pub info: VolumeInfo,
}

/// The kinds of change of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VolumeChangeKind {
    /// It can be used from now on.
    Created,
    /// Its size changed.
    Resized,
    /// It cannot be used any more; its blocks are freed in the background.
    Deleted,
}

impl Engine {
    /// Creates a volume; durable when it returns.
    ///
    /// # Errors
    /// `Invalid` names what is wrong with the specification, or what is taken already.
    pub async fn create_volume(&self, spec: VolumeSpec) -> Result<Arc<Volume>> {
        let shared = &self.shared;
        let _turn = shared.admin_turn.lock().await;
        let info = {
            let state = lock(&shared.state);
            state.check_writable()?;
            plan(&state, spec)?
        };
        shared
            .commit(Record::VolumeCreate(info.clone()), None)
            .await?;
        shared.flush().await?;
        notify(shared, VolumeChangeKind::Created, info.clone());
        self.volume(&info.name)
            .ok_or_else(|| EngineError::internal("a new volume vanished"))
    }

    /// Changes a volume's size (a multiple of 4096, in bytes). Durable when it returns. What shrinking
    /// cuts off is gone at once, and freed by background maintenance.
    ///
    /// # Errors
    /// `NotFound`, or `Invalid` for a size that cannot be.
    pub async fn resize_volume(&self, name: &str, size_bytes: u64) -> Result<VolumeInfo> {
        let shared = &self.shared;
        check_size(name, size_bytes)?;
        let _turn = shared.admin_turn.lock().await;
        let (info, core) = {
            let state = lock(&shared.state);
            state.check_writable()?;
            let entry = find(&state, name)?;
            (VolumeInfo::clone(&entry.info), entry.core.clone())
        };
        let grain = SUB_BLOCK_BYTES as u64;
        let (new_end, old_end) = (size_bytes / grain, info.size_bytes / grain);
        {
            // Commands on the tail end first; later ones see the new size.
            let guard = core.range_lock.exclusive(new_end, u64::MAX).await;
            let _turn = core.trim_turn.lock().await;
            let record = Record::VolumeResize {
                id: info.id,
                size_bytes,
                trimming: shared.list_with(&core, (new_end, old_end)).await?,
            };
            shared.commit(record, Some(guard)).await?;
        }
        shared.flush().await?;
        let info = VolumeInfo { size_bytes, ..info };
        notify(shared, VolumeChangeKind::Resized, info.clone());
        Ok(info)
    }

    /// Deletes a volume: gone for hosts at once and for good. Its blocks are freed by background
    /// maintenance.
    ///
    /// # Errors
    /// `NotFound` if there is none of that name.
    pub async fn delete_volume(&self, name: &str) -> Result<()> {
        let shared = &self.shared;
        let _turn = shared.admin_turn.lock().await;
        let info = {
            let state = lock(&shared.state);
            state.check_writable()?;
            VolumeInfo::clone(&find(&state, name)?.info)
        };
        shared
            .commit(Record::VolumeDelete { id: info.id }, None)
            .await?;
        shared.flush().await?;
        notify(
            shared,
            VolumeChangeKind::Deleted,
            VolumeInfo {
                state: VolumeState::Deleting,
                ..info
            },
        );
        Ok(())
    }
}

fn notify(shared: &Shared, kind: VolumeChangeKind, info: VolumeInfo) {
    let what = match kind {
        VolumeChangeKind::Created => "a volume was created",
        VolumeChangeKind::Resized => "a volume was resized",
        VolumeChangeKind::Deleted => "a volume was deleted: its blocks are freed in the background",
    };
    tracing::info!(volume = %info.name, size_bytes = info.size_bytes, "{what}");
    let change = VolumeChange { kind, info };
    for subscriber in lock(&shared.subscribers).iter() {
        subscriber(&change);
    }
}

fn find<'a>(state: &'a State, name: &str) -> Result<&'a crate::state::VolumeEntry> {
    state
        .volumes
        .values()
        .find(|entry| entry.is_active() && entry.info.name == name)
        .ok_or_else(|| EngineError::not_found(format!("there is no volume `{name}`")))
}

fn check_size(name: &str, size_bytes: u64) -> Result<()> {
    if size_bytes == 0
        || size_bytes > SIZE_BYTES_MAX
        || !size_bytes.is_multiple_of(SUB_BLOCK_BYTES as u64)
    {
        return Err(EngineError::invalid(format!(
            "volume `{name}`: a size of {size_bytes} bytes is not possible; it must be a multiple of 4096 \
             from 4096 to 2^60"
        )));
    }
    Ok(())
}

fn check_name(name: &str, of: &str) -> Result<()> {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if name.is_empty() || name.len() > 64 || !name.bytes().all(is_allowed) {
        return Err(EngineError::invalid(format!(
            "`{}` is no name for a {of}; use 1 to 64 of a-z A-Z 0-9 . _ -",
            name.chars().take(80).collect::<String>().escape_default()
        )));
    }
    Ok(())
}

/// The row of a new volume.
fn plan(state: &State, spec: VolumeSpec) -> Result<VolumeInfo> {
    check_name(&spec.name, "volume")?;
    if !spec.domain.is_empty() {
        check_name(&spec.domain, "domain")?;
    }
    check_size(&spec.name, spec.size_bytes)?;
    let name = spec.name;
    let invalid = |what: String| Err(EngineError::invalid(format!("volume `{name}`: {what}")));
    if ![512, 4096].contains(&spec.lba_bytes) {
        return invalid(format!(
            "LBAs of {} bytes are not possible; use 512 or 4096",
            spec.lba_bytes
        ));
    }
    if state.volumes.len() >= VOLUMES_MAX {
        return invalid(format!(
            "the pool has {VOLUMES_MAX} volumes already; delete one first"
        ));
    }
    let active = || {
        state
            .volumes
            .values()
            .filter(|entry| entry.is_active())
            .map(|entry| &entry.info)
    };
    if active().any(|info| info.name == name) {
        return invalid("there is one of that name already".to_owned());
    }
    let is_taken = |nsid: u32| active().any(|info| info.nsid == nsid);
    let nsid = match spec.nsid {
        Some(nsid) if nsid == 0 || nsid as usize > VOLUMES_MAX => {
            return invalid(format!(
                "namespace identifier {nsid} is not possible; use 1 to {VOLUMES_MAX}"
            ));
        }
        Some(nsid) if is_taken(nsid) => {
            return invalid(format!("namespace identifier {nsid} is taken"));
        }
        Some(nsid) => nsid,
        // One of the first numbers is free: there are fewer volumes than numbers.
        None => (1..=VOLUMES_MAX as u32)
            .find(|nsid| !is_taken(*nsid))
            .unwrap_or(1),
    };
    let uuid = spec.uuid.unwrap_or_else(Uuid::new_v4);
    if uuid.is_nil() {
        return invalid(format!("UUID {uuid} identifies nothing"));
    }
    if let Some(entry) = state.volumes.values().find(|entry| entry.info.uuid == uuid) {
        return invalid(match entry.is_active() {
            true => format!("UUID {uuid} is that of volume '{}'", entry.info.name),
            false => format!(
                "UUID {uuid} is that of the deleted volume '{}', whose space is not freed yet: try again then",
                entry.info.name
            ),
        });
    }
    let Some(id) = state.next_volume else {
        return invalid("all volume numbers are used up".to_owned());
    };
    Ok(VolumeInfo {
        id,
        nsid,
        uuid,
        // Derived, so that it never changes either; hosts take it as an opaque identifier.
        nguid: *uuid.as_bytes(),
        size_bytes: spec.size_bytes,
        lba_bytes: spec.lba_bytes,
        state: VolumeState::Active,
        dedup: spec.dedup,
        verify: spec.verify,
        domain: spec.domain,
        trimming: Vec::new(),
        compression: spec.compression,
        name,
    })
}
