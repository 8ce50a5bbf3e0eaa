//! Clones, snapshots and rollbacks: maps become parents of new ones, whatever their size.
//!
//! Guarantees: each is one record, also for several volumes, so after a crash all of it took place or nothing (I2);
//! commands on any part of the volumes end first, and hosts wait for that record only; what is forked is durable when
//! the call returns; a snapshot never changes, so rolling back to it can be done again.

use std::collections::BTreeSet;
use std::sync::Arc;

use meta::{FORKS_MAX, Fork, MAP_DEPTH_MAX, Record, SnapshotOf, VolumeInfo};
use uuid::Uuid;

use crate::log::append::commit;
use crate::log::flush::flush;
use crate::metadata::state::State;
use crate::metadata::volume::{SNAPSHOTS_MAX, VOLUMES_MAX, VolumeCore, VolumeEntry};
use crate::pool::Shared;
use crate::pool::volume_change::VolumeChangeKind;
use crate::sync::range_lock::{RangeGuard, RangeLock};
use crate::sync::wait::lock;
use crate::volumes::admin::{VolumeSpec, check_name, find, find_volume, notify, plan};
use crate::{EngineError, Result};

/// Locks the whole of volumes, at one moment. Commands that came first end first.
async fn lock_all(cores: &[&Arc<VolumeCore>]) -> Vec<RangeGuard> {
    let locks: Vec<&Arc<RangeLock>> = cores.iter().map(|core| &core.range_lock).collect();
    let mut guards = Vec::with_capacity(locks.len());
    for acquired in RangeLock::all(&locks) {
        guards.push(acquired.await);
    }
    guards
}

/// An error if a map of the volume cannot have children.
fn check_depth(state: &State, entry: &VolumeEntry) -> Result<()> {
    match state.line_of(entry.info.map).len() > MAP_DEPTH_MAX as usize {
        false => Ok(()),
        true => Err(EngineError::invalid(format!(
            "`{}` is the end of a chain of {MAP_DEPTH_MAX} snapshots and clones, which is the bound: delete some \
             of them, and try again when background work has merged what they left",
            entry.info.name
        ))),
    }
}

/// Numbers of volumes and maps that are free: the first of so many.
fn numbers(state: &State, count: u32) -> Result<u32> {
    let first = state.next_volume;
    let first = first.filter(|first| first.checked_add(count).is_some());
    first.ok_or_else(|| {
        EngineError::invalid(
            "all of the pool's volume numbers are used up; make it in another pool",
        )
    })
}

/// Makes a new volume with the content that a volume has now: its map becomes the parent of two new ones, whatever its
/// size. Hosts' commands wait for one record. Durable when it returns.
///
/// # Errors
/// `NotFound`, or `Invalid` if the new name is taken or the volume has too many ancestors.
pub(crate) async fn fork(
    shared: &Arc<Shared>,
    name: &str,
    clone: String,
    uuid: Option<Uuid>,
) -> Result<VolumeInfo> {
    let _lock = shared.admin_lock.lock().await;
    let (core, planned) = {
        let state = lock(&shared.state);
        state.check_writable()?;
        let entry = find(&state, name)?;
        check_depth(&state, entry)?;
        numbers(&state, 2)?;
        let planned = plan(&state, VolumeSpec::like(&entry.info, clone, uuid))?;
        (entry.core.clone(), planned)
    };
    let map = planned.id + 1;
    let clone = fork_all(shared, &[(core, planned, map)]).await?;
    flush(shared).await?;
    let clone = clone.into_iter().next();
    let clone = clone.ok_or_else(|| EngineError::internal("a fork made nothing"))?;
    notify(shared, VolumeChangeKind::Created, clone.clone());
    Ok(clone)
}

/// Forks volumes at one moment: each gets a map of this number, and the planned clone its own.
async fn fork_all(
    shared: &Arc<Shared>,
    wanted: &[(Arc<VolumeCore>, VolumeInfo, u32)],
) -> Result<Vec<VolumeInfo>> {
    let cores: Vec<&Arc<VolumeCore>> = wanted.iter().map(|(core, ..)| core).collect();
    let guards = lock_all(&cores).await;
    let mut trim_locks = Vec::with_capacity(cores.len());
    for core in &cores {
        trim_locks.push(core.trim_lock.lock().await);
    }
    let forks: Result<Vec<Fork>> = {
        let state = lock(&shared.state);
        let forks = wanted.iter().map(|(core, planned, map)| {
            let entry = state.active(core.id)?;
            Ok(Fork {
                parent: entry.map().info(),
                volume: core.id,
                map: *map,
                clone: VolumeInfo {
                    // The size may have changed since it was planned.
                    size_bytes: entry.info.size_bytes,
                    trimming: entry.info.trimming.clone(),
                    ..planned.clone()
                },
            })
        });
        forks.collect()
    };
    let forks = forks?;
    let ids: Vec<u32> = forks.iter().map(|fork| fork.clone.id).collect();
    commit(shared, Record::Fork(forks), None, None).await?;
    drop((guards, trim_locks));
    let state = lock(&shared.state);
    let made = ids.iter().filter_map(|id| state.volumes.get(id));
    Ok(made.map(|entry| VolumeInfo::clone(&entry.info)).collect())
}

/// Takes snapshots, each named `VOLUME@NAME` and with its own UUID, all at one moment. Durable when it returns.
///
/// # Errors
/// `NotFound` for a volume; `Invalid` if a name cannot be or is taken, a volume is named twice, or has too many
/// ancestors.
pub(crate) async fn snapshot(
    shared: &Arc<Shared>,
    names: &[(&str, Uuid)],
    created: u64,
) -> Result<Vec<VolumeInfo>> {
    if names.is_empty() || names.len() > FORKS_MAX {
        return Err(EngineError::invalid(format!(
            "{} snapshots at one moment are not possible; name 1 to {FORKS_MAX}",
            names.len()
        )));
    }
    let _lock = shared.admin_lock.lock().await;
    let planned = {
        let state = lock(&shared.state);
        state.check_writable()?;
        plan_snapshots(&state, names, created)?
    };
    let made = fork_all(shared, &planned).await?;
    flush(shared).await?;
    for info in &made {
        notify(shared, VolumeChangeKind::Created, info.clone());
    }
    Ok(made)
}

/// The rows of new snapshots, with their volumes and the maps that these get.
fn plan_snapshots(
    state: &State,
    names: &[(&str, Uuid)],
    created: u64,
) -> Result<Vec<(Arc<VolumeCore>, VolumeInfo, u32)>> {
    let snapshots = state.volumes.values();
    let snapshots = snapshots.filter(|entry| entry.info.snapshot.is_some());
    let mut nsids: BTreeSet<u32> = snapshots.map(|entry| entry.info.nsid).collect();
    if nsids.len() + names.len() > SNAPSHOTS_MAX {
        return Err(EngineError::invalid(format!(
            "snapshot `{}`: the pool has {} snapshots, those being deleted included, and cannot have more than \
             {SNAPSHOTS_MAX}; delete some first",
            names[0].0,
            nsids.len()
        )));
    }
    let first = numbers(state, 2 * names.len() as u32)?;
    let mut planned: Vec<(Arc<VolumeCore>, VolumeInfo, u32)> = Vec::with_capacity(names.len());
    for (&(full, uuid), id) in names.iter().zip((first..).step_by(2)) {
        let Some((of, name)) = full.split_once('@') else {
            return Err(EngineError::invalid(format!(
                "`{}` is no name for a snapshot; use VOLUME@NAME",
                full.chars().take(80).collect::<String>().escape_default()
            )));
        };
        check_name(name, "snapshot")?;
        let entry = find_volume(state, of)?;
        check_depth(state, entry)?;
        if find(state, full).is_ok() {
            return Err(EngineError::invalid(format!(
                "snapshot `{full}`: there is one of that name already; choose another name, or delete it first \
                 (`onefold snapshot delete {full}`)"
            )));
        }
        if planned.iter().any(|(core, ..)| core.id == entry.info.id) {
            return Err(EngineError::invalid(format!(
                "volume `{of}` is named twice; two snapshots of one moment would be the same: name it once"
            )));
        }
        let mut free = VOLUMES_MAX as u32 + 1..;
        let nsid = free.find(|nsid| !nsids.contains(nsid));
        let nsid = nsid.unwrap_or(u32::MAX); // there are more numbers than snapshots
        nsids.insert(nsid);
        let info = VolumeInfo {
            id,
            map: id,
            name: name.to_owned(),
            nsid,
            uuid,
            nguid: *uuid.as_bytes(),
            snapshot: Some(SnapshotOf {
                volume: entry.info.id,
                created,
            }),
            ..VolumeInfo::clone(&entry.info)
        };
        planned.push((entry.core.clone(), info, id + 1));
    }
    Ok(planned)
}

/// Gives a volume what it had when a snapshot of it was taken. Durable when it returns.
///
/// # Errors
/// `NotFound` if there is no such snapshot, `Invalid` if it has too many ancestors.
pub(crate) async fn rollback(shared: &Arc<Shared>, name: &str) -> Result<VolumeInfo> {
    let _lock = shared.admin_lock.lock().await;
    let (snapshot, volume) = {
        let state = lock(&shared.state);
        state.check_writable()?;
        let entry = find(&state, name)?;
        let Some(SnapshotOf { volume, .. }) = entry.info.snapshot else {
            return Err(EngineError::invalid(format!(
                "`{name}` is no snapshot; name one as VOLUME@NAME"
            )));
        };
        check_depth(&state, entry)?;
        (entry.core.clone(), state.active(volume)?.core.clone())
    };
    let guards = lock_all(&[&snapshot, &volume]).await;
    let trim_locks = (
        snapshot.trim_lock.lock().await,
        volume.trim_lock.lock().await,
    );
    let record = {
        let state = lock(&shared.state);
        let entry = state.active(snapshot.id)?;
        let first = numbers(&state, 2)?;
        Record::Rollback {
            parent: entry.map().info(),
            snapshot: snapshot.id,
            snapshot_map: first,
            volume: volume.id,
            map: first + 1,
            size_bytes: entry.info.size_bytes,
            trimming: entry.info.trimming.clone(),
        }
    };
    commit(shared, record, None, None).await?;
    drop((guards, trim_locks));
    flush(shared).await?;
    let info = VolumeInfo::clone(&volume.info());
    notify(shared, VolumeChangeKind::RolledBack, info.clone());
    Ok(info)
}
