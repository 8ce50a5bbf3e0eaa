//! The labels of a pool's drives, as the program writes and reads them: who opened the pool, from where, and when.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use dedup::{ErrorKind, PoolLabels, read_label};
use drives::{Drive, block_device_of};
use meta::{
    ChosenLabel, DriveLabel, LABEL_BYTES, Label, LabelError, Opening, PoolDir, is_remote_drive,
};
use reactor::BufferPool;
use subsystem::errors::Failure;
use uuid::Uuid;

use crate::errors::{of_drive, of_meta};
use crate::opened_drive::kind_of_address;

/// An opening of the pool in this folder, now; the engine knows its epoch.
pub(crate) fn opening(dir: &Path) -> Opening {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let path = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    let name = path.file_name().unwrap_or_default();
    Opening {
        epoch: 0,
        id: Uuid::new_v4(),
        at_seconds: now.map_or(0, |since| since.as_secs()),
        drives: 0,
        pool_name: name.to_string_lossy().into_owned(),
        machine: rustix::system::uname()
            .nodename()
            .to_string_lossy()
            .into_owned(),
        locations: Opening::in_folder(&path),
    }
}

/// What the labels of a pool's drives are to say from now on; of one in memory nothing.
pub(crate) fn of_pool(dir: &PoolDir) -> Result<Option<PoolLabels>, Failure> {
    if dir.is_temporary() {
        return Ok(None);
    }
    let identity = dir.identity();
    let indexes = (0u16..).take(identity.drives.len());
    Ok(Some(PoolLabels {
        drives: indexes.filter_map(|index| identity.label(index)).collect(),
        opening: opening(&dir.paths().dir),
        accepted_epoch: dir.accepted_epoch().map_err(of_meta)?,
    }))
}

/// Proves that a drive is the one that is expected there.
pub(crate) async fn verify(
    drive: &dyn Drive,
    path: &Path,
    label: &DriveLabel,
    buffers: &BufferPool,
) -> Result<(), Failure> {
    let [first, second] = read_label(drive, buffers).await.map_err(of_drive)?;
    label.verify(path, &first, &second).map_err(of_meta)?;
    Ok(())
}

/// The label on a drive; `None` if there is none.
pub(crate) async fn found(
    drive: &dyn Drive,
    buffers: &BufferPool,
) -> Result<Option<Label>, Failure> {
    let [first, second] = read_label(drive, buffers).await.map_err(of_drive)?;
    Ok(Label::choose(&first, &second)
        .ok()
        .map(|chosen| chosen.label))
}

/// The label of a drive that nobody has opened, or somebody else has; `Err` inside if it carries none.
///
/// # Errors
/// The drive is not there, or cannot be read.
pub(crate) fn look(path: &Path) -> Result<Result<ChosenLabel, LabelError>, Failure> {
    let failed = |error: std::io::Error| {
        let kind = match error.kind() {
            std::io::ErrorKind::NotFound => ErrorKind::NotFound,
            std::io::ErrorKind::PermissionDenied => ErrorKind::Unavailable,
            std::io::ErrorKind::UnexpectedEof => ErrorKind::Invalid,
            _ => ErrorKind::Unavailable,
        };
        let remedy = match kind {
            ErrorKind::NotFound => "name a drive that is there",
            ErrorKind::Invalid => "it is too small for a drive of a pool",
            _ => "run this as root, or as the user that the pool belongs to",
        };
        Failure::new(kind, format!("'{}': {error}: {remedy}", path.display()))
    };
    if is_remote_drive(path) {
        return Err(Failure::invalid(format!(
            "'{}' is {}, and this command reads files and devices only: `onefold drive list` and the daemon's log tell of it",
            path.display(),
            kind_of_address(path)
        )));
    }
    let block = block_device_of(path);
    let file = File::open(block.as_deref().unwrap_or(path)).map_err(failed)?;
    drives::forget_cached(&file).map_err(failed)?;
    let mut copies = [[0; LABEL_BYTES]; 2];
    for (offset, copy) in (0..).step_by(LABEL_BYTES).zip(&mut copies) {
        file.read_exact_at(copy, offset).map_err(failed)?;
    }
    Ok(Label::choose(&copies[0], &copies[1]))
}
