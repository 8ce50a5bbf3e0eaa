//! Creating, resizing, renaming and deleting volumes, and telling subscribers of it.
//!
//! Guarantees: a change of a volume is durable when the call returns; a deleted volume is gone for
//! hosts at once, and its blocks are freed in the background, also after a crash; what a shrunk volume
//! cut off never shows again when it grows.

use std::sync::Arc;

use meta::{Compression, Record, VerifyPolicy, VolumeInfo, VolumePolicy, VolumeState};
use uuid::Uuid;

use crate::io::trim::list_with;
use crate::log::append::commit;
use crate::log::flush::flush;
use crate::metadata::state::State;
use crate::metadata::volume::{VOLUMES_MAX, VolumeEntry};
use crate::pool::Shared;
use crate::pool::volume_change::{VolumeChange, VolumeChangeKind};
use crate::sync::wait::lock;
use crate::{EngineError, Result, SUB_BLOCK_BYTES};

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
    /// not in the index.
    pub dedup: bool,
    /// How new contents are stored.
    pub compression: Compression,
    /// What a write does about a block that has the fingerprint of new data.
    pub verify: VerifyPolicy,
    /// Its domain: volumes share blocks within one only. Empty for the pool's own, or 1 to 64 of
    /// `a-z A-Z 0-9 . _ -`; it cannot be changed later.
    pub domain: String,
}

impl VolumeSpec {
    /// Whether such a volume is possible, in a pool that has nothing of its name and numbers.
    ///
    /// # Errors
    /// `Invalid` names what is wrong.
    pub fn check(&self) -> Result<()> {
        check_name(&self.name, "volume")?;
        if !self.domain.is_empty() {
            check_name(&self.domain, "domain")?;
        }
        check_size(&self.name, self.size_bytes)?;
        let invalid = |what: String| {
            Err(EngineError::invalid(format!(
                "volume `{}`: {what}",
                self.name
            )))
        };
        if ![512, 4096].contains(&self.lba_bytes) {
            return invalid(format!(
                "LBAs of {} bytes are not possible; use 512 or 4096",
                self.lba_bytes
            ));
        }
        match self.nsid {
            Some(nsid) if nsid == 0 || nsid as usize > VOLUMES_MAX => invalid(format!(
                "namespace identifier {nsid} is not possible; use 1 to {VOLUMES_MAX}"
            )),
            _ => match self.uuid {
                Some(uuid) if uuid.is_nil() => invalid(format!(
                    "UUID {uuid} identifies nothing; name another one, or none to get a random one"
                )),
                _ => Ok(()),
            },
        }
    }

    /// That of another volume of the same kind.
    pub(super) fn like(info: &VolumeInfo, name: String, uuid: Option<Uuid>) -> Self {
        Self {
            name,
            size_bytes: info.size_bytes,
            lba_bytes: info.lba_bytes,
            nsid: None,
            uuid,
            dedup: info.dedup,
            compression: info.compression,
            verify: info.verify,
            domain: info.domain.clone(),
        }
    }
}

/// What of a volume's policy changes; `None` stays.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyChange {
    /// Whether what is written is deduplicated.
    pub dedup: Option<bool>,
    /// How new contents are stored.
    pub compression: Option<Compression>,
    /// What a write does about a block that has the fingerprint of new data.
    pub verify: Option<VerifyPolicy>,
    /// Its domain, which cannot change: another one than it has is refused.
    pub domain: Option<String>,
}

impl PolicyChange {
    /// The policy that it makes of that of a volume.
    fn of(&self, info: &VolumeInfo) -> Result<VolumePolicy> {
        let policy = info.policy();
        match &self.domain {
            // The key of its domain proves what is stored already.
            Some(domain) if *domain != info.domain => {
                let name = &info.name;
                let option = match domain.as_str() {
                    "" => String::new(),
                    domain => format!(" --domain {domain}"),
                };
                Err(EngineError::invalid(format!(
                    "the domain of volume `{name}` cannot change: its blocks are fingerprinted with that domain's key; \
                     copy it to a new volume (`onefold volume export {name} - | onefold volume import NEW -{option}`)"
                )))
            }
            _ => Ok(VolumePolicy {
                dedup: self.dedup.unwrap_or(policy.dedup),
                verify: self.verify.unwrap_or(policy.verify),
                compression: self.compression.unwrap_or(policy.compression),
            }),
        }
    }
}

/// Creates a volume; durable when it returns.
///
/// # Errors
/// `Invalid` names what is wrong with the specification, or what is taken already.
pub(crate) async fn create(shared: &Arc<Shared>, spec: VolumeSpec) -> Result<VolumeInfo> {
    let _lock = shared.admin_lock.lock().await;
    let info = {
        let state = lock(&shared.state);
        state.check_writable()?;
        plan(&state, spec)?
    };
    commit(shared, Record::VolumeCreate(info.clone()), None, None).await?;
    flush(shared).await?;
    notify(shared, VolumeChangeKind::Created, info.clone());
    Ok(info)
}

/// Changes a volume's size (a multiple of 4096, in bytes). Durable when it returns. What shrinking
/// cuts off is gone at once, and freed by background maintenance.
///
/// # Errors
/// `NotFound`, or `Invalid` for a size that cannot be.
pub(crate) async fn resize(
    shared: &Arc<Shared>,
    name: &str,
    size_bytes: u64,
) -> Result<VolumeInfo> {
    check_size(name, size_bytes)?;
    let _lock = shared.admin_lock.lock().await;
    let (info, core) = {
        let state = lock(&shared.state);
        state.check_writable()?;
        let entry = find_volume(&state, name)?;
        (VolumeInfo::clone(&entry.info), entry.core.clone())
    };
    let grain = SUB_BLOCK_BYTES as u64;
    let (new_end, old_end) = (size_bytes / grain, info.size_bytes / grain);
    {
        // Commands on the tail end first; later ones see the new size.
        let guard = core.range_lock.exclusive(new_end, u64::MAX).await;
        let _lock = core.trim_lock.lock().await;
        let record = Record::VolumeResize {
            id: info.id,
            size_bytes,
            trimming: list_with(shared, &core, (new_end, old_end)).await?,
        };
        commit(shared, record, Some(guard), None).await?;
    }
    flush(shared).await?;
    let info = VolumeInfo { size_bytes, ..info };
    notify(shared, VolumeChangeKind::Resized, info.clone());
    Ok(info)
}

/// Gives a volume another name. Durable when it returns; its identity, data and namespaces stay.
///
/// # Errors
/// `NotFound`, or `Invalid` for a name that cannot be or that another volume has.
pub(crate) async fn rename(shared: &Arc<Shared>, name: &str, new: &str) -> Result<VolumeInfo> {
    check_name(new, "volume")?;
    let _lock = shared.admin_lock.lock().await;
    let info = {
        let state = lock(&shared.state);
        state.check_writable()?;
        let info = VolumeInfo::clone(&find_volume(&state, name)?.info);
        if name != new && find(&state, new).is_ok() {
            return Err(EngineError::invalid(format!(
                "volume `{name}` cannot be called `{new}`: another volume has that name"
            )));
        }
        info
    };
    let record = Record::VolumeRename {
        id: info.id,
        name: new.to_owned(),
    };
    commit(shared, record, None, None).await?;
    flush(shared).await?;
    let info = VolumeInfo {
        name: new.to_owned(),
        ..info
    };
    notify(shared, VolumeChangeKind::Renamed, info.clone());
    Ok(info)
}

/// Changes what becomes of what is written to a volume from now on; what was written stays as it is. Durable when it
/// returns. Writes under way, and comparisons of those that were acknowledged, end first.
///
/// # Errors
/// `NotFound`, or `Invalid` for a snapshot and for what cannot change.
pub(crate) async fn set_policy(
    shared: &Arc<Shared>,
    name: &str,
    change: &PolicyChange,
) -> Result<VolumeInfo> {
    let _lock = shared.admin_lock.lock().await;
    let (mut info, core) = {
        let state = lock(&shared.state);
        state.check_writable()?;
        let entry = find_volume(&state, name)?;
        (VolumeInfo::clone(&entry.info), entry.core.clone())
    };
    let policy = change.of(&info)?;
    if policy == info.policy() {
        return Ok(info);
    }
    // A write follows one policy from its look at the content to its record, and one that is compared later keeps its
    // range until then.
    let guard = core.range_lock.exclusive(0, u64::MAX).await;
    let record = Record::VolumePolicy {
        id: info.id,
        policy,
    };
    commit(shared, record, Some(guard), None).await?;
    flush(shared).await?;
    info.set_policy(policy);
    notify(shared, VolumeChangeKind::PolicyChanged, info.clone());
    Ok(info)
}

/// Deletes a volume or a snapshot: gone for hosts at once and for good. Its blocks are freed by background
/// maintenance.
///
/// # Errors
/// `NotFound` if there is none of that name, `Invalid` for a volume that has snapshots.
pub(crate) async fn delete(shared: &Arc<Shared>, name: &str) -> Result<()> {
    let _lock = shared.admin_lock.lock().await;
    let info = {
        let state = lock(&shared.state);
        state.check_writable()?;
        let info = &find(&state, name)?.info;
        check_has_no_snapshots(&state, info)?;
        VolumeInfo::clone(info)
    };
    commit(shared, Record::VolumeDelete { id: info.id }, None, None).await?;
    flush(shared).await?;
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

pub(super) fn notify(shared: &Shared, kind: VolumeChangeKind, info: VolumeInfo) {
    let what = match kind {
        VolumeChangeKind::Created if info.snapshot.is_some() => "a snapshot was taken",
        VolumeChangeKind::Deleted if info.snapshot.is_some() => {
            "a snapshot was deleted: its blocks are freed in the background"
        }
        VolumeChangeKind::RolledBack => "a volume was rolled back to a snapshot",
        VolumeChangeKind::Created => "a volume was created",
        VolumeChangeKind::Resized => "a volume was resized",
        VolumeChangeKind::Renamed => "a volume was renamed",
        VolumeChangeKind::PolicyChanged => "what is written to a volume follows another policy",
        VolumeChangeKind::Deleted => "a volume was deleted: its blocks are freed in the background",
    };
    tracing::info!(volume = %info.name, size_bytes = info.size_bytes, "{what}");
    let change = VolumeChange { kind, info };
    for subscriber in lock(&shared.subscribers).iter() {
        subscriber(&change);
    }
}

/// The volume, or the snapshot, of that name.
pub(super) fn find<'a>(state: &'a State, name: &str) -> Result<&'a VolumeEntry> {
    let what = match name.contains('@') {
        true => "snapshot",
        false => "volume",
    };
    state
        .volumes
        .values()
        .find(|entry| entry.is_active() && entry.info.name == name)
        .ok_or_else(|| EngineError::not_found(format!("there is no {what} `{name}`")))
}

/// The volume of that name, which is no snapshot.
pub(super) fn find_volume<'a>(state: &'a State, name: &str) -> Result<&'a VolumeEntry> {
    let entry = find(state, name)?;
    match entry.info.snapshot {
        None => Ok(entry),
        Some(_) => Err(EngineError::invalid(format!(
            "`{name}` is a snapshot, which stays as it is; `onefold volume clone {name} NEW` makes a volume of it"
        ))),
    }
}

fn check_has_no_snapshots(state: &State, info: &VolumeInfo) -> Result<()> {
    let is_of = |entry: &&VolumeEntry| {
        let of = entry.info.snapshot;
        entry.is_active() && of.is_some_and(|of| of.volume == info.id)
    };
    let mut snapshots = state.volumes.values().filter(is_of);
    let Some(first) = snapshots.next() else {
        return Ok(());
    };
    Err(EngineError::invalid(format!(
        "volume `{}` has {} snapshots, `{first}` among them: delete them first (`onefold snapshot delete {first}`)",
        info.name,
        1 + snapshots.count(),
        first = first.info.name
    )))
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

/// Whether a volume, a snapshot or a domain may have this name. `of` says which of them it is.
///
/// # Errors
/// `Invalid` says what a name may have.
pub fn check_name(name: &str, of: &str) -> Result<()> {
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
pub(super) fn plan(state: &State, spec: VolumeSpec) -> Result<VolumeInfo> {
    spec.check()?;
    let name = spec.name;
    let invalid = |what: String| Err(EngineError::invalid(format!("volume `{name}`: {what}")));
    let volumes = state.volumes.values();
    let volumes = volumes.filter(|entry| entry.info.snapshot.is_none());
    if volumes.count() >= VOLUMES_MAX {
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
        return invalid("there is one of that name already; choose another name".to_owned());
    }
    let is_taken = |nsid: u32| active().any(|info| info.nsid == nsid);
    let nsid = match spec.nsid {
        Some(nsid) if is_taken(nsid) => {
            return invalid(format!(
                "namespace identifier {nsid} is taken; name another one, or none to get the lowest free one"
            ));
        }
        Some(nsid) => nsid,
        // One of the first numbers is free: there are fewer volumes than numbers.
        None => (1..=VOLUMES_MAX as u32)
            .find(|nsid| !is_taken(*nsid))
            .unwrap_or(1),
    };
    let uuid = spec.uuid.unwrap_or_else(Uuid::new_v4);
    if let Some(entry) = state.volumes.values().find(|entry| entry.info.uuid == uuid) {
        return invalid(match entry.is_active() {
            true => format!(
                "UUID {uuid} is that of volume '{}'; name another one, or none to get a random one",
                entry.info.name
            ),
            false => format!(
                "UUID {uuid} is that of the deleted volume '{}', whose space is not freed yet: try again then",
                entry.info.name
            ),
        });
    }
    let Some(id) = state.next_volume else {
        return invalid(
            "all of the pool's volume numbers are used up; make it in another pool".to_owned(),
        );
    };
    Ok(VolumeInfo {
        id,
        map: id,
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
        snapshot: None,
        name,
    })
}
