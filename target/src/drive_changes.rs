//! Drives of a pool in service: added, taken offline, used again, replaced.
//!
//! Guarantee: the pool remembers a drive before it uses it, and nothing is written to one that holds something else.

use std::path::Path;

use api::drives::{AddDrive, DriveChange};
use dedup::{Engine, ErrorKind};
use meta::{DriveSpec, Opening, PoolDir};
use reactor::BufferPool;
use subsystem::errors::Failure;

use crate::opened_drive::OpenedDrive;
use crate::options::DriveArg;
use crate::pool::{
    LABEL_BUFFER_BYTES, MadeFiles, NewDrive, canonical, label_of, open_drive, open_named,
    own_drives,
};

/// Adds a drive to a pool in service: a file or a block device that holds nothing yet, or whatever it holds
/// if `is_forced`. Blocks for some moments: not for a reactor that serves hosts.
///
/// # Errors
/// Names what is wrong with the drive, and what to do about it.
pub(crate) async fn add_drive(
    engine: &Engine,
    dir: &mut PoolDir,
    named: &DriveArg,
    is_forced: bool,
) -> Result<u16, Failure> {
    let Some((path, size_bytes)) = named.place() else {
        return Err(Failure::invalid(
            "a memory drive cannot be added: its data would be lost at the end; name a file or a device",
        ));
    };
    let identity = dir.identity();
    if dir.is_temporary() {
        return Err(Failure::invalid(
            "a pool in memory takes no other drives: start one on a larger `--drive memory=SIZE`",
        ));
    }
    let index = u16::try_from(identity.drives.len()).map_err(|_| {
        Failure::invalid(format!(
            "the pool has {} drives, and no more are possible: make another pool",
            identity.drives.len()
        ))
    })?;
    let named = (path.as_path(), size_bytes, is_forced);
    let (spec, drive) = take_new(engine, dir, named, index).await?;
    let write_down = |_| Ok(dir.add_drive(spec).map(drop)?);
    Ok(engine.add_drive(drive.into_drive(), write_down).await?)
}

/// Opens a drive that is to be the one with that index of a pool in service, and writes its label.
async fn take_new(
    engine: &Engine,
    dir: &PoolDir,
    (path, size_bytes, is_forced): (&Path, Option<u64>, bool),
    index: u16,
) -> Result<(DriveSpec, OpenedDrive), Failure> {
    let buffers = BufferPool::new(LABEL_BUFFER_BYTES)
        .map_err(|e| Failure::unavailable(format!("no memory for buffers: {e}")))?;
    // Checked before it is opened: the pool's own drives are open, and the error would say that they are in use.
    if own_drives(dir).contains(&canonical(path)) {
        return Err(Failure::invalid(format!(
            "'{}' is a drive of this pool already (`onefold drive list` shows them): name another one",
            path.display()
        )));
    }
    let (spec, drive) = open_named(path, size_bytes, None).await?;
    check_not_own_volume(engine, &drive)?;
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
        is_forced,
        is_retry: false,
    };
    drive.check(&buffers).await?;
    made.keep();
    let drive = drive.take(&buffers).await?;
    Ok((spec, drive))
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
    let at = own_drives(dir)
        .iter()
        .position(|own| *own == canonical(path));
    let index = at.and_then(|at| u16::try_from(at).ok());
    index.ok_or_else(|| {
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
    engine: &Engine,
    dir: &mut PoolDir,
    path: &Path,
    change: DriveChange,
) -> Result<(), Failure> {
    let index = index_of(dir, path)?;
    match change {
        DriveChange::Offline => engine.take_drive_offline(index).await?,
        DriveChange::Online if engine.is_drive_absent(index) => {
            let buffers = BufferPool::new(LABEL_BUFFER_BYTES)
                .map_err(|e| Failure::unavailable(format!("no memory for buffers: {e}")))?;
            let spec = dir.identity().drives[usize::from(index)].clone();
            let drive = open_drive(dir, index, &spec, &buffers).await?;
            let is_known = || Ok(());
            engine
                .replace_drive(index, drive.into_drive(), is_known)
                .await?;
        }
        DriveChange::Online => {
            // The rebuild compares all that the drive should have.
            if engine.is_drive_offline(index) {
                fabric_drives::forget_losses(&canonical(path));
            }
            engine.rebuild_drive(index).await?;
        }
        DriveChange::Replace(AddDrive {
            path,
            size_bytes,
            force,
        }) => {
            engine.check_can_go_offline(index)?;
            let named = (path.as_path(), size_bytes, force);
            let (spec, drive) = take_new(engine, dir, named, index).await?;
            let write_down = || Ok(dir.replace_drive(index, spec)?);
            engine
                .replace_drive(index, drive.into_drive(), write_down)
                .await?;
        }
    }
    Ok(())
}
