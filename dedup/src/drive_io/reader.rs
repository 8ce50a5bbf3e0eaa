//! Reading blocks from drives that may not be able to read all of them.

use std::error::Error;
use std::io;

use drives::{BLOCK_BYTES, DriveError, ErrorKind};
use meta::Pba;
use reactor::Buffer;

use crate::content::fingerprint::{self, Block};
use crate::drive_io::drive_list::DriveList;
use crate::drive_io::fetch::Fetch;
use crate::drive_io::scatter::Failures;

/// What the system says when there is no device any more: Linux `include/uapi/asm-generic/errno-base.h`.
const ENXIO: i32 = 6;
const ENODEV: i32 = 19;

/// Blocks that a drive could not read, and why the last of them.
pub(crate) struct Unreadable {
    /// Index of the drive.
    pub(crate) drive: u16,
    /// Their indexes among those that were asked for, in order.
    pub(crate) indexes: Vec<usize>,
    pub(crate) error: DriveError,
}

impl Unreadable {
    /// Whether the blocks are at fault, and not the drive as a whole.
    pub(crate) fn is_medium(&self) -> bool {
        let source = self
            .error
            .source()
            .and_then(|error| error.downcast_ref::<io::Error>());
        let is_gone = source
            .and_then(io::Error::raw_os_error)
            .is_some_and(|code| [ENXIO, ENODEV].contains(&code));
        self.error.kind() == ErrorKind::Io && !is_gone
    }
}

/// Reads a block to the beginning of the buffer and has a look at it; `None` if it cannot be read.
pub(crate) async fn read_one<T>(
    drives: &DriveList,
    pba: Pba,
    buf: Buffer,
    look: impl FnOnce(&Block) -> T,
) -> (Option<T>, Buffer) {
    let mut fetch = Fetch::new(drives, [(pba, 0)].into_iter());
    let (failed, buf) = fetch.read(buf).await;
    let block = fingerprint::split(&buf).first();
    let seen = block.filter(|_| failed.is_empty()).map(look);
    (seen, buf)
}

/// Reads a block to an offset of the buffer from one copy after the other, until it is right. `None` if no copy can be read,
/// false if none that can is right.
pub(crate) async fn read_proven(
    drives: &DriveList,
    (pba, at): (Pba, usize),
    mut buf: Buffer,
    is_right: impl Fn(&Block) -> bool,
) -> (Option<bool>, Buffer) {
    let mut seen = None;
    // The copies are those of one moment, and nothing else comes there meanwhile.
    let _pass = drives.gate.pass();
    for place in drives.readable(pba).iter() {
        let mut fetch = Fetch::of_copy(drives, *place, (pba, at));
        let failed;
        (failed, buf) = fetch.read(buf).await;
        if !failed.is_empty() {
            continue;
        }
        let block = fingerprint::split(&buf).get(at / BLOCK_BYTES);
        let is_good = block.is_some_and(&is_right);
        if is_good {
            return (Some(true), buf);
        }
        seen = Some(false);
    }
    (seen, buf)
}

/// Reads blocks, each to its offset in the buffer, from all drives at once. Where that fails, each block of the drive is
/// tried alone, so that those at fault are known and the others are there. Returns what failed by drive.
pub(crate) async fn read_blocks(
    drives: &DriveList,
    buf: Buffer,
    blocks: &[(Pba, usize)],
) -> (Vec<Unreadable>, Buffer) {
    let mut fetch = Fetch::new(drives, blocks.iter().copied());
    let (failed, buf) = fetch.read(buf).await;
    match failed.is_empty() {
        true => (Vec::new(), buf),
        false => read_each(drives, buf, blocks, failed).await,
    }
}

/// Tries those of the blocks alone that are on drives which could not read them together. What cannot be read, by drive.
pub(crate) async fn read_each(
    drives: &DriveList,
    mut buf: Buffer,
    blocks: &[(Pba, usize)],
    failed: Failures,
) -> (Vec<Unreadable>, Buffer) {
    let mut unreadable = Vec::new();
    for (drive, mut error) in failed {
        let mut indexes = Vec::new();
        for (index, block) in blocks.iter().enumerate() {
            let mut fetch = Fetch::new(drives, [*block].into_iter());
            if fetch.only_drive() != Some(drive) {
                continue;
            }
            let (failed, back) = fetch.read(buf).await;
            buf = back;
            if let Some((_, last)) = failed.into_iter().next() {
                error = last;
                indexes.push(index);
            }
        }
        if !indexes.is_empty() {
            unreadable.push(Unreadable {
                drive,
                indexes,
                error,
            });
        }
    }
    (unreadable, buf)
}
