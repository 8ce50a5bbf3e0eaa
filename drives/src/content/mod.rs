//! What a drive holds before it is taken for a pool.
//!
//! A drive is taken only if nothing on it can be in use: the system's libblkid recognises nothing, none of
//! the signatures known here is on it, and it is zero where anybody begins or ends, in samples of the rest, and
//! in what a sparse file holds. Reads are bounded, so that a drive of any size is looked at within seconds.

mod blkid;
mod by_reads;
mod signatures;

use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

pub use by_reads::{content_of, wipe_signatures};
use signatures::{SIGNATURES, ZFS_LABEL_BYTES, ZFS_UBERBLOCK};

/// Read whole at the start and at the end of a drive. Holds all of the fixed places of the formats that keep
/// to the start, LUKS2's second header included, and of those that keep to the end.
const EDGE_BYTES: u64 = 8 << 20;
/// Read around each place in between.
const PLACE_BYTES: u64 = 64 << 10;
/// Where formats keep copies between start and end: btrfs (64 MiB, 256 GiB), BlueStore (1, 10, 100 GiB), ext4
/// with blocks of 4 KiB (128 MiB) and of 1 KiB (8 MiB).
const PLACES: [u64; 7] = [
    8 << 20,
    64 << 20,
    128 << 20,
    1 << 30,
    10 << 30,
    100 << 30,
    256 << 30,
];
/// Places spread evenly over the drive, of [`PLACE_BYTES`] each: 16 MiB, some seconds on a hard disk.
const SAMPLES: u64 = 256;
/// Most bytes of data of a file that are read besides: all that a sparse file holds, if it holds not more.
const DATA_BYTES_MAX: u64 = 256 << 20;
/// Read at a time.
const PIECE_BYTES: usize = 256 << 10;

/// What is on a drive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    /// What it is, as in "holds ...".
    pub what: String,
    /// The byte where it was seen, if that is known.
    pub at: Option<u64>,
}

impl fmt::Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.at {
            Some(at) => write!(f, "{} (at byte {at})", self.what),
            None => f.write_str(&self.what),
        }
    }
}

impl Content {
    /// What a drive of `bytes` bytes holds, by a sparse copy of its [`telling_ranges`] at their places; `None` if it is
    /// blank. Blocks.
    ///
    /// # Errors
    /// The copy cannot be read.
    fn of_copy(copy: &File, bytes: u64) -> io::Result<Option<Self>> {
        look(copy, bytes)
    }
}

/// Where a drive of `bytes` bytes has to be read to know whether it holds anything: byte ranges, some 32 MiB together at most.
fn telling_ranges(bytes: u64) -> Vec<Range<u64>> {
    let mut ranges = signature_ranges(bytes);
    ranges.extend((1..=SAMPLES).map(|sample| {
        let at = bytes / (SAMPLES + 1) * sample;
        at..(at + PLACE_BYTES).min(bytes)
    }));
    ranges
}

/// Where programs recognise what a drive of `bytes` bytes holds: the start, the end, and the known places in between. In
/// order, not beyond the end.
fn signature_ranges(bytes: u64) -> Vec<Range<u64>> {
    let last = bytes.saturating_sub(EDGE_BYTES);
    let places = PLACES.iter().map(|at| *at..at + PLACE_BYTES);
    let mut ranges: Vec<Range<u64>> = places.filter(|range| range.end <= bytes).collect();
    ranges.insert(0, 0..EDGE_BYTES.min(bytes));
    ranges.push(last..bytes);
    ranges
}

/// A place on a drive, in bytes.
#[derive(Clone, Copy, Debug)]
enum Spot {
    /// From its start.
    Start(u64),
    /// From its end.
    FromEnd(u64),
    /// Where md keeps a superblock of version 1.0.
    Md1,
    /// Where md keeps a superblock of version 0.90.
    Md0,
}

impl Spot {
    /// From the start of a drive of `bytes` bytes; `None` if it is too small.
    fn offset(self, bytes: u64) -> Option<u64> {
        match self {
            Self::Start(offset) => Some(offset),
            Self::FromEnd(back) => bytes.checked_sub(back),
            Self::Md1 => Some(bytes.checked_sub(8 << 10)? / 4096 * 4096),
            Self::Md0 => (bytes / (64 << 10))
                .checked_sub(1)
                .map(|at| at * (64 << 10)),
        }
    }
}

/// What the file or device of `bytes` bytes holds; `None` if it is blank. Blocks.
///
/// # Errors
/// It cannot be read.
pub(crate) fn look(file: &File, bytes: u64) -> io::Result<Option<Content>> {
    if next_data(file, 0)?.is_none() {
        // A file that was just made, or never written.
        return Ok(None);
    }
    let known = signature(file, bytes)?;
    if let Some(called) = blkid::recognise(file) {
        let called = format!("what the system calls {called}");
        return Ok(Some(match known {
            Some(known) => Content {
                what: format!("{}, {called}", known.what),
                at: known.at,
            },
            None => Content {
                what: called,
                at: None,
            },
        }));
    }
    if known.is_some() {
        return Ok(known);
    }
    let written = written(file, bytes)?;
    Ok(written.map(|at| Content {
        what: "data of a kind that is not known".to_owned(),
        at: Some(at),
    }))
}

/// Overwrites with zeros all places where formats are recognised, so that nobody takes the drive for what it
/// was. Blocks, and syncs.
///
/// # Errors
/// It cannot be written.
pub(crate) fn wipe(file: &File, bytes: u64) -> io::Result<()> {
    let zeros = vec![0; PIECE_BYTES];
    for Range { mut start, end } in signature_ranges(bytes) {
        while start < end {
            let len = (end - start).min(PIECE_BYTES as u64);
            file.write_all_at(&zeros[..len as usize], start)?;
            start += len;
        }
    }
    file.sync_data()
}

/// What a signature on the drive says.
fn signature(file: &File, bytes: u64) -> io::Result<Option<Content>> {
    let mut found = [0; 32];
    for signature in SIGNATURES {
        for at in signature.spots.iter().filter_map(|spot| spot.offset(bytes)) {
            let magic = signature.magic;
            let found = &mut found[..magic.len()];
            if at + magic.len() as u64 <= bytes {
                file.read_exact_at(found, at)?;
                if found == magic {
                    return Ok(Some(Content {
                        what: signature.what.to_owned(),
                        at: Some(at),
                    }));
                }
            }
        }
    }
    zfs_label(file, bytes)
}

/// Two of ZFS's labels are at the start, two at the end, which is rounded down to whole labels.
fn zfs_label(file: &File, bytes: u64) -> io::Result<Option<Content>> {
    let labels = bytes / ZFS_LABEL_BYTES;
    let half = ZFS_LABEL_BYTES / 2;
    let mut uberblocks = vec![0; half as usize];
    for label in [
        Some(0),
        Some(1),
        labels.checked_sub(2),
        labels.checked_sub(1),
    ] {
        let Some(label) = label.filter(|label| *label < labels) else {
            continue;
        };
        let start = label * ZFS_LABEL_BYTES + half;
        file.read_exact_at(&mut uberblocks, start)?;
        let is_magic = |block: &[u8]| {
            let magic = block.first_chunk().copied().unwrap_or_default();
            u64::from_le_bytes(magic) == ZFS_UBERBLOCK || u64::from_be_bytes(magic) == ZFS_UBERBLOCK
        };
        if let Some(at) = uberblocks.chunks(1024).position(is_magic) {
            return Ok(Some(Content {
                what: "a member of a ZFS pool".to_owned(),
                at: Some(start + at as u64 * 1024),
            }));
        }
    }
    Ok(None)
}

/// A byte that is not zero, or one close to it.
fn written(file: &File, bytes: u64) -> io::Result<Option<u64>> {
    for range in telling_ranges(bytes) {
        if let Some(at) = not_zero(file, range, u64::MAX)? {
            return Ok(Some(at));
        }
    }
    not_zero(file, 0..bytes, DATA_BYTES_MAX)
}

/// A byte of the range that is not zero; holes are not read, and not more than `most` bytes.
fn not_zero(file: &File, range: Range<u64>, mut most: u64) -> io::Result<Option<u64>> {
    let mut piece = vec![0; PIECE_BYTES];
    let mut at = range.start;
    while most > 0 {
        at = match next_data(file, at)? {
            Some(data) if data < range.end => data,
            _ => return Ok(None),
        };
        let len = (range.end - at).min(PIECE_BYTES as u64).min(most);
        let piece = &mut piece[..len as usize];
        file.read_exact_at(piece, at)?;
        if let Some(byte) = piece.iter().position(|byte| *byte != 0) {
            return Ok(Some(at + byte as u64));
        }
        at += len;
        most -= len;
    }
    Ok(None)
}

/// The next byte from `at` on that is not in a hole; `None` if all up to the end is one. A device has none.
fn next_data(file: &File, at: u64) -> io::Result<Option<u64>> {
    match seek(file, SeekFrom::Data(at)) {
        Ok(data) => Ok(Some(data)),
        Err(Errno::NXIO) => Ok(None),
        Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(Some(at)),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests;
