//! Reading and writing the labels of drives.
//!
//! Guarantee: of the two copies one is always whole. One is written at a time, and the next one only when that is durable.

use drives::{BLOCK_BYTES, Drive, DriveError, Extent};
use meta::{ChosenLabel, DriveLabel, LABEL_BYTES, Label, Opening};
use reactor::BufferPool;

/// Copies of a label, one block each, from the drive's first block on.
const COPIES: usize = 2;

const _: () = assert!(LABEL_BYTES == BLOCK_BYTES);

/// What the labels of a pool's drives are to say.
#[derive(Clone, Debug)]
pub struct PoolLabels {
    /// Which drives they are, in the order of their indexes.
    pub drives: Vec<DriveLabel>,
    /// This opening, but for its epoch and the number of drives: the engine knows these.
    pub opening: Opening,
    /// Labels up to this epoch may be of a later epoch than the metadata: somebody restored an older copy, and said so.
    pub accepted_epoch: Option<u32>,
}

/// The two copies on a drive, empty where one cannot be read.
///
/// # Errors
/// One of them cannot be read, and the other one is no label.
pub async fn read_label(
    drive: &dyn Drive,
    buffers: &BufferPool,
) -> Result<[Vec<u8>; COPIES], DriveError> {
    let mut copies = [Vec::new(), Vec::new()];
    let mut failed = None;
    // A second time, for a read that fails once: a copy that is not read is written over next.
    for copy in (0..COPIES).flat_map(|copy| [copy, copy]) {
        let bytes = &mut copies[copy];
        if !bytes.is_empty() {
            continue;
        }
        let buffer = buffers.alloc(LABEL_BYTES).await;
        let (result, buffer) = drive.read(buffer, &[extent_of(copy)]).await;
        match result {
            Ok(()) => *bytes = buffer.to_vec(),
            Err(error) => failed = Some(error),
        }
    }
    match failed {
        // The copy that cannot be read may be the label: nobody knows that there is none.
        Some(error)
            if copies.iter().any(Vec::is_empty)
                && Label::choose(&copies[0], &copies[1]).is_err() =>
        {
            Err(error)
        }
        _ => Ok(copies),
    }
}

/// Writes both copies of the label of a drive that becomes one of a pool, durably.
///
/// # Errors
/// The drive's.
pub async fn write_new_label(
    drive: &dyn Drive,
    label: DriveLabel,
    opening: Opening,
    buffers: &BufferPool,
) -> Result<(), DriveError> {
    // Whatever the drive was before, it is newer than that.
    let [first, second] = read_label(drive, buffers).await?;
    let earlier = Label::choose(&first, &second).map_or(0, |chosen| chosen.label.sequence);
    let mut label = Label {
        drive: label,
        sequence: earlier,
        opening: Some(opening),
    };
    for copy in 0..COPIES {
        label.sequence = label.sequence.saturating_add(1);
        write_copy(drive, &label, copy, buffers).await?;
    }
    Ok(())
}

/// Overwrites both copies of a label with zeros, durably: the drive is no pool's.
///
/// # Errors
/// The drive's.
pub(crate) async fn erase_label(drive: &dyn Drive, buffers: &BufferPool) -> Result<(), DriveError> {
    for copy in 0..COPIES {
        let mut buffer = buffers.alloc(LABEL_BYTES).await;
        buffer.fill(0);
        let (result, _) = drive.write(buffer, &[extent_of(copy)]).await;
        result?;
    }
    drive.flush().await
}

/// Writes the next copy of a label with this opening, durably; of one that knew none both, so that no older program takes
/// the drive for its own.
///
/// The sequence number of what was written.
///
/// # Errors
/// The drive's. The label is what it was, or the new one.
pub(crate) async fn write_opening(
    drive: &dyn Drive,
    found: &ChosenLabel,
    opening: &Opening,
    buffers: &BufferPool,
) -> Result<u64, DriveError> {
    let is_upgrade = found.label.opening.is_none();
    let mut label = Label {
        drive: found.label.drive,
        sequence: found.label.sequence.saturating_add(1),
        opening: Some(opening.clone()),
    };
    write_copy(drive, &label, found.next_copy, buffers).await?;
    if is_upgrade {
        label.sequence = label.sequence.saturating_add(1);
        write_copy(drive, &label, COPIES - 1 - found.next_copy, buffers).await?;
    }
    Ok(label.sequence)
}

pub(crate) async fn write_copy(
    drive: &dyn Drive,
    label: &Label,
    copy: usize,
    buffers: &BufferPool,
) -> Result<(), DriveError> {
    let mut buffer = buffers.alloc(LABEL_BYTES).await;
    buffer.copy_from_slice(&label.encode());
    let (result, _) = drive.write(buffer, &[extent_of(copy)]).await;
    result?;
    drive.flush().await
}

fn extent_of(copy: usize) -> Extent {
    Extent {
        block: copy as u64,
        buffer_offset: 0,
        blocks: 1,
    }
}
