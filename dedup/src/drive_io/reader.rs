//! Reading blocks from drives that may not be able to read all of them.

use std::error::Error;
use std::io;

use drives::{Drive, DriveError, ErrorKind};
use meta::Pba;
use reactor::Buffer;

use crate::content::fingerprint::{self, Block};
use crate::drive_io::fetch::Fetch;

/// What the system says when there is no device any more: Linux `include/uapi/asm-generic/errno-base.h`.
const ENXIO: i32 = 6;
const ENODEV: i32 = 19;

/// Blocks that a drive could not read, and why the last of them.
pub(crate) struct Unreadable {
    /// Their places among those that were asked for, in order.
    pub(crate) places: Vec<usize>,
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
    drive: &dyn Drive,
    pba: Pba,
    buf: Buffer,
    look: impl FnOnce(&Block) -> T,
) -> (Option<T>, Buffer) {
    let fetch = Fetch::new([(pba, 0)].into_iter());
    let (result, buf) = fetch.read_from(drive, buf).await;
    let block = fingerprint::split(&buf).first();
    let seen = block.filter(|_| result.is_ok()).map(look);
    (seen, buf)
}

/// Reads blocks of one drive, each to its offset in the buffer. When that fails, each is tried alone, so
/// that those at fault are known and the others are there.
pub(crate) async fn read_blocks(
    drive: &dyn Drive,
    buf: Buffer,
    blocks: &[(Pba, usize)],
) -> (Option<Unreadable>, Buffer) {
    let fetch = Fetch::new(blocks.iter().copied());
    let (result, buf) = fetch.read_from(drive, buf).await;
    match result {
        Ok(()) => (None, buf),
        Err(error) => read_each(drive, buf, blocks, error).await,
    }
}

/// Tries blocks of one drive alone that could not be read together.
pub(crate) async fn read_each(
    drive: &dyn Drive,
    mut buf: Buffer,
    blocks: &[(Pba, usize)],
    mut error: DriveError,
) -> (Option<Unreadable>, Buffer) {
    let mut places = Vec::new();
    for (place, block) in blocks.iter().enumerate() {
        let fetch = Fetch::new([*block].into_iter());
        let (result, back) = fetch.read_from(drive, buf).await;
        buf = back;
        if let Err(last) = result {
            error = last;
            places.push(place);
        }
    }
    let unreadable = (!places.is_empty()).then_some(Unreadable { places, error });
    (unreadable, buf)
}
