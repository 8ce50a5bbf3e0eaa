//! Where a journal's bytes live.

use std::io;

/// Bytes that a drive writes as one: the unit in which unsynced writes are kept or lost.
pub const SECTOR_BYTES: usize = 512;

/// A fixed-size range of bytes that can be read, written in place and made durable.
///
/// `write_at` may stay in a volatile cache until `sync` returns; at a loss of power each sector written
/// since then is kept or lost independently of all others. A crash of the process alone loses nothing
/// that a completed `write_at` wrote. Calls may come from several threads.
pub trait JournalMedia: Send + Sync {
    /// What to call it in messages: the path of the file.
    fn name(&self) -> String {
        "journal".to_owned()
    }

    /// Size in bytes; never changes.
    fn capacity(&self) -> u64;

    /// Fills `buf` from byte `offset`.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()>;

    /// Writes all of `bytes` at byte `offset`.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// From now on the journal belongs to the owner with this epoch: appends of an earlier one are refused, whenever they
    /// arrive. A media that one process alone can reach (a file, under the pool's lock) has nothing to do.
    ///
    /// # Errors
    /// When it belongs to a later owner already.
    fn own(&self, epoch: u32) -> io::Result<()> {
        let _ = epoch;
        Ok(())
    }

    /// As [`write_at`](Self::write_at), by the owner with this epoch.
    ///
    /// # Errors
    /// Also when the media belongs to a later owner; nothing is written then.
    fn append_at(&self, epoch: u32, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let _ = epoch;
        self.write_at(offset, bytes)
    }

    /// These bytes will be written before long: a media that would have to read their surroundings first may do that
    /// now. May block.
    fn will_write(&self, offset: u64, bytes: u64) {
        let _ = (offset, bytes);
    }

    /// Returns when everything written before is on stable storage.
    fn sync(&self) -> io::Result<()>;

    /// Whether [`sync`](Self::sync) does the same for the data on the pool's only drive: they are there before what is written
    /// here. Does not block.
    fn flushes_data(&self) -> bool {
        false
    }
}

/// The error of an owner whose time is over.
pub(crate) fn deposed(epoch: u32, owner: u32) -> io::Error {
    io::Error::new(
        io::ErrorKind::PermissionDenied,
        format!(
            "the journal belongs to the owner of epoch {owner}, and this is that of epoch {epoch}"
        ),
    )
}

/// The error of an access that goes beyond the end of a media.
pub(crate) fn out_of_bounds(offset: u64, len: usize, capacity: u64) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidInput,
        format!("access of {len} bytes at {offset} is beyond the capacity of {capacity} bytes"),
    )
}

/// Whether `len` bytes at `offset` are inside `capacity`.
pub(crate) fn in_bounds(offset: u64, len: usize, capacity: u64) -> bool {
    offset
        .checked_add(len as u64)
        .is_some_and(|end| end <= capacity)
}
