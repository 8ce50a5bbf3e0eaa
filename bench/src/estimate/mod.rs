//! `onefold estimate`: what deduplication and compression would save on files that exist.
//!
//! Guarantees: files are only read; memory stays within the bound given, whatever there is to read, and
//! the error that this costs is stated; holes of sparse files are skipped, not read. Blocks are found
//! equal by the first 64 bits of their fingerprints, which is near enough for an estimate: among a
//! thousand million blocks about a thirtieth of one is taken for another.

mod report;
mod sample;
mod tally;
mod walk;

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use dedup::{Block, Hasher};
use drives::BLOCK_BYTES;
use meta::FingerprintFunction;
use rustix::fs::{Advice, SeekFrom, fadvise, seek};
use rustix::io::Errno;

pub use report::{Estimate, Grain, Skipped, Unreadable};

use sample::Sample;
use tally::Tally;
use walk::{Source, Walk, note};

/// Sizes of blocks that are compared.
pub const GRAINS: [usize; 4] = [4 << 10, 8 << 10, 16 << 10, 64 << 10];

/// The largest of them: files are read in whole ones.
const WINDOW_BYTES: usize = GRAINS[GRAINS.len() - 1];
/// Bytes read at a time.
const READ_BYTES: usize = 1 << 20;
/// Bytes of a table per fingerprint that it may hold: eight of the fingerprint and one of the table, and
/// the table at its fullest is doubled while the old one is still there.
const ENTRY_BYTES: usize = 32;

/// What to read, and within which bounds.
#[derive(Debug, Clone)]
pub struct Options {
    /// Files, folders and block devices.
    pub paths: Vec<PathBuf>,
    /// Memory for fingerprints.
    pub memory_bytes: usize,
    /// Blocks of data that are kept as a sample, beside that memory.
    pub sample_blocks: usize,
}

/// How far the reading is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Bytes done, holes included.
    pub done_bytes: u64,
    /// Bytes to be done; `None` while they are being counted.
    pub total_bytes: Option<u64>,
}

/// Why there is no estimate.
#[derive(Debug, thiserror::Error)]
pub enum EstimateError {
    /// A named path cannot be read.
    #[error("'{path}' cannot be read: {source}")]
    Path {
        /// The path.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A named path is no place for data.
    #[error("'{path}' is a special file; name files, folders and block devices")]
    Special {
        /// The path.
        path: PathBuf,
    },
}

/// Reads everything. Blocks its thread; `progress` is told often.
///
/// # Errors
/// If one of the paths cannot be read. Files inside folders that cannot are noted in the estimate.
pub fn run(
    options: &Options,
    progress: &mut dyn FnMut(Progress),
) -> Result<Estimate, EstimateError> {
    let mut total = 0;
    let mut counting = Walk::new();
    for path in &options.paths {
        counting.visit(path, &mut |source, _| {
            total += source.bytes;
            progress(Progress {
                done_bytes: 0,
                total_bytes: None,
            });
        })?;
    }
    drop(counting);
    let mut reader = Reader::new(options);
    let mut walk = Walk::new();
    let mut done = 0;
    for path in &options.paths {
        walk.visit(path, &mut |source, skipped| {
            let mut advance = |bytes| {
                done += bytes;
                progress(Progress {
                    done_bytes: done,
                    total_bytes: Some(total),
                });
            };
            match reader.read(&source, &mut advance) {
                Ok(()) => {}
                Err(error) => note(skipped, &source.path, &error),
            }
        })?;
    }
    Ok(Estimate {
        files: reader.files,
        logical_bytes: reader.logical_bytes,
        hole_bytes: reader.hole_bytes,
        grains: reader.tallies.iter().map(Tally::grain).collect(),
        skipped: walk.skipped,
        hard_links_inexact: walk.met_is_full,
        sample: reader.sample.into_blocks(),
    })
}

/// Reads files and counts their blocks.
struct Reader {
    hasher: Hasher,
    tallies: Vec<Tally>,
    sample: Sample,
    buffer: Vec<u8>,
    files: u64,
    logical_bytes: u64,
    hole_bytes: u64,
}

impl Reader {
    fn new(options: &Options) -> Self {
        // Half as many blocks of twice the size: each grain gets memory in this proportion.
        let parts: usize = GRAINS.iter().map(|grain| WINDOW_BYTES / grain).sum();
        let tally = |&grain: &usize| {
            let memory = options.memory_bytes / parts * (WINDOW_BYTES / grain);
            Tally::new(grain, memory / ENTRY_BYTES)
        };
        Self {
            // Estimates of the same data agree: any fixed key will do. It is no secret, so the function is BLAKE3.
            hasher: Hasher::new(
                FingerprintFunction::Blake3,
                b"onefold estimate: not for a pool",
            ),
            tallies: GRAINS.iter().map(tally).collect(),
            sample: Sample::new(options.sample_blocks),
            buffer: vec![0; READ_BYTES],
            files: 0,
            logical_bytes: 0,
            hole_bytes: 0,
        }
    }

    fn read(&mut self, source: &Source, advance: &mut dyn FnMut(u64)) -> io::Result<()> {
        let file = open(&source.path)?;
        // A hint that reads come in order: without it they are only slower.
        let _ = fadvise(&file, 0, None, Advice::Sequential);
        self.files += 1;
        self.logical_bytes += source.bytes;
        let mut at = 0;
        while at < source.bytes {
            let data = next_data(&file, at, source.bytes)?;
            // Whole windows, so that blocks of every size lie as they would.
            let window = WINDOW_BYTES as u64;
            let start = data.start / window * window;
            if start > at {
                self.skip(start - at);
                advance(start - at);
                at = start;
            }
            let end = data.end.next_multiple_of(window).min(source.bytes);
            while at < end {
                let bytes = self.read_windows(&file, at, end)?;
                advance(bytes);
                at += bytes;
            }
        }
        let _ = fadvise(&file, 0, None, Advice::DontNeed);
        Ok(())
    }

    /// Counts zeros that need not be read: whole windows, or up to a file's end.
    fn skip(&mut self, bytes: u64) {
        self.hole_bytes += bytes;
        for tally in &mut self.tallies {
            tally.add_zeros(bytes.div_ceil(tally.block_bytes() as u64));
        }
    }

    /// Reads up to a buffer's worth at `at`, and counts its blocks.
    fn read_windows(&mut self, file: &File, at: u64, end: u64) -> io::Result<u64> {
        let bytes = (end - at).min(READ_BYTES as u64) as usize;
        let mut filled = 0;
        while filled < bytes {
            match file.read_at(&mut self.buffer[filled..bytes], at + filled as u64) {
                // It became shorter meanwhile: the rest counts as zeros.
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        let padded = bytes.next_multiple_of(BLOCK_BYTES);
        self.buffer[filled..padded].fill(0);
        let (blocks, _) = self.buffer[..padded].as_chunks::<BLOCK_BYTES>();
        for window in blocks.chunks(WINDOW_BYTES / BLOCK_BYTES) {
            count_window(&self.hasher, &mut self.tallies, &mut self.sample, window);
        }
        Ok(bytes as u64)
    }
}

/// The zero fingerprint: blocks of zeros are not hashed, and no other block has it.
const ZERO: [u8; 16] = [0; 16];

/// Counts the blocks of a window, or of what is left of one at a file's end.
fn count_window(hasher: &Hasher, tallies: &mut [Tally], sample: &mut Sample, blocks: &[Block]) {
    let mut prints = [ZERO; WINDOW_BYTES / BLOCK_BYTES];
    hasher.look(blocks, |at, fingerprint| {
        prints[at] = fingerprint.map_or(ZERO, |fingerprint| fingerprint.0);
    });
    for (block, print) in blocks.iter().zip(&prints) {
        if *print != ZERO {
            sample.offer(block);
        }
    }
    for tally in tallies {
        let per_block = tally.block_bytes() / BLOCK_BYTES;
        for (block, prints) in blocks.chunks(per_block).zip(prints.chunks(per_block)) {
            match key_of(prints) {
                None => tally.add_zeros(1),
                Some(key) => add_padded(tally, key, block),
            }
        }
    }
}

/// A file's end is compressed with the zeros behind it, as it would be stored.
fn add_padded(tally: &mut Tally, key: u64, blocks: &[Block]) {
    let bytes = blocks.as_flattened();
    if bytes.len() == tally.block_bytes() {
        return tally.add(key, bytes);
    }
    let mut padded = bytes.to_vec();
    padded.resize(tally.block_bytes(), 0);
    tally.add(key, &padded);
}

/// The key of a block of one or several sub-blocks; `None` if all of it is zeros.
fn key_of(prints: &[[u8; 16]]) -> Option<u64> {
    if prints.iter().all(|print| *print == ZERO) {
        return None;
    }
    let first = |bytes: &[u8]| bytes.first_chunk().map(|half| u64::from_le_bytes(*half));
    match prints {
        [one] => first(one),
        several => first(blake3::hash(several.as_flattened()).as_bytes()),
    }
}

fn open(path: &Path) -> io::Result<File> {
    File::open(path)
}

/// The next stretch at or behind `at` that may hold data, within the first `end` bytes; empty and at the
/// end if there is none.
fn next_data(file: &File, at: u64, end: u64) -> io::Result<std::ops::Range<u64>> {
    let start = match seek(file, SeekFrom::Data(at)) {
        Ok(start) => start.min(end),
        Err(Errno::NXIO) => end,
        // No holes are known here: devices, and some file systems.
        Err(_) => return Ok(at..end),
    };
    if start >= end {
        return Ok(end..end);
    }
    match seek(file, SeekFrom::Hole(start)) {
        Ok(hole) => Ok(start..hole.clamp(start + 1, end)),
        Err(_) => Ok(start..end),
    }
}
