//! What a drive holds that is no file and no device of this machine, before it is taken for a pool.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use reactor::BufferPool;
use rustix::fs::{MemfdFlags, memfd_create};

use super::{Content, signature_ranges, telling_ranges};
use crate::{BLOCK_BYTES, Drive, DriveError, ErrorKind, Extent};

/// Bytes that are read or written at a time.
const STEP_BYTES: usize = 1 << 20;

/// What a drive holds, as [`Content`] tells of files and devices; `None` if it is blank. Reads some 32 MiB, and blocks the
/// thread while they are looked at.
///
/// # Errors
/// It cannot be read.
pub async fn content_of(drive: &dyn Drive) -> Result<Option<Content>, DriveError> {
    let bytes = drive.blocks() * BLOCK_BYTES as u64;
    let failed = |error: std::io::Error| {
        let text = format!("looking at what it holds failed: {error}");
        DriveError::new(ErrorKind::Io, drive.name(), text)
    };
    // A sparse copy of the places that tell what is there: what recognises contents reads files.
    let copy = memfd_create("onefold-content", MemfdFlags::CLOEXEC)
        .map_err(|errno| failed(errno.into()))?;
    let copy = File::from(copy);
    copy.set_len(bytes).map_err(failed)?;
    let pool = BufferPool::new(STEP_BYTES).map_err(failed)?;
    for (block, blocks) in steps(&telling_ranges(bytes)) {
        let buffer = pool.alloc(blocks as usize * BLOCK_BYTES).await;
        let (read, buffer) = drive.read(buffer, &[extent(block, blocks)]).await;
        read?;
        for (at, data) in (block..).zip(buffer.chunks(BLOCK_BYTES)) {
            if data.iter().any(|byte| *byte != 0) {
                copy.write_all_at(data, at * BLOCK_BYTES as u64)
                    .map_err(failed)?;
            }
        }
    }
    Content::of_copy(&copy, bytes).map_err(failed)
}

/// Overwrites with zeros all places where programs recognise what a drive holds. Data stay elsewhere.
///
/// # Errors
/// It cannot be written.
pub async fn wipe_signatures(drive: &dyn Drive) -> Result<(), DriveError> {
    let bytes = drive.blocks() * BLOCK_BYTES as u64;
    let pool = BufferPool::new(STEP_BYTES).map_err(|error| {
        DriveError::new(
            ErrorKind::Io,
            drive.name(),
            format!("no memory for zeros: {error}"),
        )
    })?;
    for (block, blocks) in steps(&signature_ranges(bytes)) {
        let zeros = pool.alloc_zeroed(blocks as usize * BLOCK_BYTES).await;
        let (written, _) = drive.write(zeros, &[extent(block, blocks)]).await;
        written?;
    }
    drive.flush().await
}

fn extent(block: u64, blocks: u32) -> Extent {
    Extent {
        block,
        buffer_offset: 0,
        blocks,
    }
}

/// The blocks that byte ranges touch, first block and number, at most [`STEP_BYTES`] each.
fn steps(ranges: &[Range<u64>]) -> Vec<(u64, u32)> {
    let (block, most) = (BLOCK_BYTES as u64, (STEP_BYTES / BLOCK_BYTES) as u64);
    let mut steps = Vec::new();
    for range in ranges {
        let (mut next, end) = (range.start / block, range.end.div_ceil(block));
        while next < end {
            let blocks = (end - next).min(most);
            steps.push((next, blocks as u32));
            next += blocks;
        }
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_in_whole_blocks_and_bounded_steps() {
        assert_eq!(steps(&[0..10, 8191..8193]), [(0, 1), (1, 2)]);
        let long = 3 * STEP_BYTES as u64 + 1;
        assert_eq!(
            steps(&[0..long, 0..0]),
            [(0, 256), (256, 256), (512, 256), (768, 1)]
        );
    }
}
