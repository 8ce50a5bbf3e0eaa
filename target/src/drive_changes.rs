//! Drives of a pool in service: added, taken offline, used again, replaced; and its spares.
//!
//! Guarantees: the pool remembers a drive before it uses it, also in the copies of its metadata on drives; and nothing is written
//! to one that holds something else.

use std::path::Path;

use api::drives::{AddDrive, DriveChange};
use dedup::{Engine, ErrorKind, Redundancy};
use fabric_drives::Claim;
use futures_util::lock::Mutex;
use meta::{DriveSpec, Opening, PoolDir, SHARED_KEY, SpareSpec, is_remote_drive};
use reactor::BufferPool;
use subsystem::errors::Failure;

use crate::errors::{of_drive, of_meta};
use crate::known_drive::KnownDrive;
use crate::new_drive::{MadeFiles, NewDrive, check_one_home, check_size, label_of, open_named};
use crate::opened_drive::OpenedDrive;
use crate::pool::{LABEL_BUFFER_BYTES, Serving, canonical, own_drives};

/// Adds a drive to a pool in service: a file or a block device that holds nothing yet, or whatever it holds
/// if that is forced. Blocks for some moments: not for a reactor that serves hosts.
///
/// # Errors
/// Names what is wrong with the drive, and what to do about it.
pub(crate) async fn add_drive(
    pool: &Serving,
    dir: &mut PoolDir,
    add: AddDrive,
) -> Result<(), Failure> {
    let engine = &pool.engine;
    let count = check_permanent(dir)?;
    let index = u16::try_from(count).map_err(|_| {
        Failure::invalid(format!(
            "the pool has {count} drives, and no more are possible: make another pool"
        ))
    })?;
    let checked = check_new(engine, dir, &add, index, 0).await?;
    let (spec, drive) = checked.take().await?;
    let domain = spec.domain.clone();
    let before = dir.identity().clone();
    let mut after = before.clone();
    after.add_drive(spec.clone());
    pool.note(&after).await?;
    let (drive, area) = drive.into_parts(&spec);
    let write_down = |_| Ok(dir.add_drive(spec).map(drop)?);
    if let Err(error) = engine.add_drive(drive, domain, write_down).await {
        pool.note(&before).await?;
        return Err(error.into());
    }
    pool.set_area(index, area).await
}

/// Adds a spare to a pool in service: a file or a block device that holds nothing yet. Nothing is written to it before it
/// takes the place of a drive.
///
/// # Errors
/// As [`add_drive`]; the pool has no copies, from which it could be filled, or no drive that it is large enough for.
pub(crate) async fn add_spare(
    engine: &Engine,
    dir: &mut PoolDir,
    add: AddDrive,
) -> Result<(), Failure> {
    let drives = check_permanent(dir)?;
    if engine.redundancy() == Redundancy::None {
        return Err(Failure::invalid(
            "the pool has one copy of all data, so a spare could not be filled when a drive fails: use `onefold drive add`",
        ));
    }
    if add.force {
        return Err(Failure::invalid(
            "a spare must hold nothing: wipe it first (`wipefs --all` and `blkdiscard`, or `rm` for a file)",
        ));
    }
    let mut new = check_new(engine, dir, &add, 0, 0).await?;
    let mut needed = u64::MAX;
    let removed: Vec<u16> = dir.identity().removed().collect();
    for index in (0u16..)
        .take(drives)
        .filter(|index| !removed.contains(index))
    {
        needed = needed.min(engine.blocks_needed(index).await?);
    }
    let blocks = new.drive.drive.drive().blocks();
    if blocks < needed {
        return Err(Failure::invalid(format!(
            "'{}' has {blocks} blocks of 4 KiB, and what lies on the pool's drives needs {needed} or more: name a larger one",
            add.path.display()
        )));
    }
    dir.add_spare(SpareSpec {
        path: new.spec.path,
        domain: add.domain,
    })
    .map_err(of_meta)?;
    new.made.keep();
    tracing::info!(spare = %add.path.display(), "a spare was added");
    Ok(())
}

/// Refuses a pool that keeps no list of its drives; returns how many it has.
fn check_permanent(dir: &PoolDir) -> Result<usize, Failure> {
    match dir.is_temporary() {
        true => Err(Failure::invalid(
            "a pool in memory takes no other drives: start one on a larger `--drive memory=SIZE`",
        )),
        false => Ok(dir.identity().drives.len()),
    }
}

/// A drive that may belong to the pool, if nobody uses it and it holds nothing.
struct Checked {
    spec: DriveSpec,
    drive: NewDrive,
    made: MadeFiles,
}

impl Checked {
    /// Writes its label.
    async fn take(mut self) -> Result<(DriveSpec, OpenedDrive), Failure> {
        self.made.keep();
        let drive = self.drive.take(&label_buffers()?).await?;
        Ok((self.spec, drive))
    }
}

/// Opens a drive that is to be the one with that index of a pool in service, where data need so many blocks. Writes nothing to
/// it.
async fn check_new(
    engine: &Engine,
    dir: &PoolDir,
    add: &AddDrive,
    index: u16,
    needed: u64,
) -> Result<Checked, Failure> {
    let path = add.path.as_path();
    let buffers = label_buffers()?;
    // Checked before it is opened: the pool's own drives are open, and the error would say that they are in use.
    if own_drives(dir)
        .iter()
        .any(|(_, own)| *own == canonical(path))
    {
        return Err(Failure::invalid(format!(
            "'{}' is a drive of this pool already (`onefold drive list` shows them): name another one",
            path.display()
        )));
    }
    let own = own_drives(dir);
    let own = own.iter().map(|(_, own)| own.as_path());
    check_one_home(own.chain([path]))?;
    if is_shared(engine) && !is_remote_drive(path) {
        return Err(Failure::invalid(format!(
            "other nodes may take the pool over (--join), and do not reach '{}': name a drive on a sled",
            path.display()
        )));
    }
    let (mut spec, drive) = open_named(path, add.size_bytes, None, needed).await?;
    check_not_own_volume(engine, &drive)?;
    check_size(is_shared(engine), path, drive.drive().blocks())?;
    spec.domain.clone_from(&add.domain);
    let mut made = MadeFiles::default();
    made.note(&drive, &spec.path);
    for warning in crate::room::shortages(std::slice::from_ref(&spec.path)) {
        tracing::warn!("{warning}");
    }
    let mut identity = dir.identity().clone();
    match identity.drives.get_mut(usize::from(index)) {
        Some(place) => *place = spec.clone(),
        None => identity.drives.push(spec.clone()),
    }
    let drive = NewDrive {
        path: spec.path.clone(),
        label: label_of(&identity, index)?,
        opening: Opening {
            drives: identity.drives.len() as u16,
            ..engine.opening()
        },
        drive,
        is_forced: add.force,
        is_retry: false,
    };
    drive.check(&buffers).await?;
    Ok(Checked { spec, drive, made })
}

fn label_buffers() -> Result<BufferPool, Failure> {
    BufferPool::new(LABEL_BUFFER_BYTES)
        .map_err(|e| Failure::unavailable(format!("no memory for buffers: {e}")))
}

/// Refuses a namespace that is a volume of the pool: what is written to it would be written to it.
fn check_not_own_volume(engine: &Engine, drive: &OpenedDrive) -> Result<(), Failure> {
    let uuid = drive.namespace_uuid();
    let volumes = engine.volumes();
    match volumes.iter().find(|volume| uuid == Some(volume.uuid)) {
        None => Ok(()),
        Some(volume) => Err(Failure::invalid(format!(
            "'{}' is the volume '{}' of this pool: a pool cannot lie in itself; name another drive",
            drive.drive().name(),
            volume.name
        ))),
    }
}

/// The index of the drive at a path.
fn index_of(dir: &PoolDir, path: &Path) -> Result<u16, Failure> {
    let own = own_drives(dir);
    let known = own.into_iter().find(|(_, own)| *own == canonical(path));
    known.map(|(index, _)| index).ok_or_else(|| {
        Failure::new(
            ErrorKind::NotFound,
            format!(
                "'{}' is not a drive of this pool: `onefold drive list` shows them",
                path.display()
            ),
        )
    })
}

/// Changes a drive of a pool with copies.
///
/// # Errors
/// Names why the drive cannot be changed, and what to do.
pub(crate) async fn change_drive(
    pool: &Serving,
    dir: &mut PoolDir,
    path: &Path,
    change: DriveChange,
) -> Result<(), Failure> {
    let engine = &pool.engine;
    if matches!(change, DriveChange::Remove) {
        return remove(engine, dir, path).await;
    }
    let index = index_of(dir, path)?;
    match change {
        DriveChange::Offline => engine.take_drive_offline(index).await?,
        DriveChange::Online => {
            engine.keep_drive(index).await?;
            // It may have been used again without anybody's doing.
            if !engine.is_drive_offline(index) {
                return Ok(());
            }
            let opened = match engine.is_drive_absent(index) {
                true => {
                    let known = KnownDrive::of(dir, index)?;
                    Some(known.open(claim_in(engine), &label_buffers()?).await?)
                }
                false => None,
            };
            bring_online(pool, dir, index, opened).await?;
        }
        DriveChange::Replace(add) => replace(pool, dir, index, add).await?,
        DriveChange::Remove => {}
    }
    Ok(())
}

/// Rebuilds a drive that is offline; it was opened anew if it could not be opened with the pool.
async fn bring_online(
    pool: &Serving,
    dir: &PoolDir,
    index: u16,
    opened: Option<(KnownDrive, OpenedDrive)>,
) -> Result<(), Failure> {
    if let Some((known, opened)) = opened {
        let (drive, area) = opened.into_parts(&known.spec);
        pool.engine.reopen_drive(index, drive).await?;
        return pool.set_area(index, area).await;
    }
    // The rebuild compares all that the drive should have.
    let path = canonical(&dir.drive_path(index).unwrap_or_default());
    fabric_drives::forget_losses(&path).await;
    vhost_drives::forget_losses(&path);
    Ok(pool.engine.rebuild_drive(index).await?)
}

/// How a drive of the pool in service is claimed. One that could not be reached when this node took a shared pool over has the
/// reservation of the node before.
fn claim_in(engine: &Engine) -> Claim {
    match is_shared(engine) {
        true => Claim::Moved,
        false => Claim::Again,
    }
}

/// Whether other nodes may take the pool over by themselves.
fn is_shared(engine: &Engine) -> bool {
    engine.setting(SHARED_KEY).is_some()
}

/// Uses a drive that failed again, if it answers. That may take long, so nobody else is kept from changing drives meanwhile.
///
/// # Errors
/// It does not answer, what it was told before may still happen, or it is not among those that failed.
pub(crate) async fn use_again(
    pool: &Serving,
    dir: &Mutex<PoolDir>,
    index: u16,
) -> Result<(), Failure> {
    let engine = &pool.engine;
    let known = KnownDrive::of(&*dir.lock().await, index)?;
    let opened = match engine.is_drive_absent(index) {
        true => {
            let known = known.clone();
            Some(known.open(claim_in(engine), &label_buffers()?).await?)
        }
        false => {
            let tried = engine.try_drive(index, &label_buffers()?).await;
            tried.map_err(of_drive)?;
            None
        }
    };
    let dir = dir.lock().await;
    let is_as_before = engine.failed_drives().contains(&index)
        && !engine.is_drive_emptying(index)
        && KnownDrive::of(&dir, index)? == known;
    if !is_as_before {
        return Err(Failure::unavailable(format!(
            "'{}' was changed meanwhile",
            known.path.display()
        )));
    }
    bring_online(pool, &dir, index, opened).await
}

/// Puts another drive in the place of one; without a failure domain of its own it has that of the other one.
///
/// # Errors
/// As [`change_drive`].
pub(crate) async fn replace(
    pool: &Serving,
    dir: &mut PoolDir,
    index: u16,
    add: AddDrive,
) -> Result<(), Failure> {
    let engine = &pool.engine;
    engine.check_can_go_offline(index)?;
    let of_index = dir.identity().drives.get(usize::from(index));
    let old_domain = of_index.and_then(|drive| drive.domain.clone());
    let add = AddDrive {
        domain: add.domain.or(old_domain),
        ..add
    };
    let needed = engine.blocks_needed(index).await?;
    let checked = check_new(engine, dir, &add, index, needed).await?;
    if checked.drive.drive.drive().blocks() < needed {
        return Err(Failure::invalid(format!(
            "'{}' has {} blocks of 4 KiB, and what lies on the drive that it is to replace needs {needed}: name a larger one",
            add.path.display(),
            checked.drive.drive.drive().blocks(),
        )));
    }
    let (spec, drive) = checked.take().await?;
    let domain = spec.domain.clone();
    let before = dir.identity().clone();
    let mut after = before.clone();
    after.replace_drive(index, spec.clone());
    pool.set_area(index, None).await?;
    pool.note(&after).await?;
    let (drive, area) = drive.into_parts(&spec);
    let write_down = || Ok(dir.replace_drive(index, spec)?);
    let replaced = engine.replace_drive(index, drive, domain, write_down).await;
    if let Err(error) = replaced {
        pool.note(&before).await?;
        return Err(error.into());
    }
    pool.set_area(index, area).await
}

/// Makes the pool forget a spare, or begins to empty a drive, which leaves the pool when nothing lies there any more.
async fn remove(engine: &Engine, dir: &mut PoolDir, path: &Path) -> Result<(), Failure> {
    let own = canonical(path);
    let spares = &dir.identity().spares;
    if let Some(spare) = spares.iter().find(|spare| canonical(&spare.path) == own) {
        let spare = spare.path.clone();
        dir.forget_spare(&spare).map_err(of_meta)?;
        tracing::info!(spare = %spare.display(), "a spare was removed");
        return Ok(());
    }
    check_permanent(dir)?;
    let index = index_of(dir, path)?;
    Ok(engine.empty_drive(index).await?)
}

/// Makes the pool forget a drive on which nothing lies any more.
///
/// # Errors
/// It is not empty, or that cannot be written down.
pub(crate) async fn let_go(pool: &Serving, dir: &mut PoolDir, index: u16) -> Result<(), Failure> {
    pool.set_area(index, None).await?;
    let write_down = || Ok(dir.remove_drive(index)?);
    Ok(pool.engine.remove_drive(index, write_down).await?)
}
