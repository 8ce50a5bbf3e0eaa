//! Room for the metadata on a file system that others fill: a file of the pool's folder that holds space, and
//! is given up when the store finds no other.
//!
//! * The file `ballast` has up to [`BALLAST_BYTES_MAX`] bytes, and at most a sixteenth of the file system.
//! * It is removed when the store meets a full file system, so that the store can be opened and take what is
//!   in the journal: checkpoints, deletions and trims go on. From then on the pool is *short of room*
//!   ([`FolderRoom::is_short`]): new data must not take what was given up.
//! * It is made again when the file system has at least as much again to spare, and the shortage is over.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rand::{RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rustix::fs::FallocateFlags;
use serde::{Deserialize, Serialize};

/// The largest ballast, in bytes: the store takes some hundred thousand changes with it.
pub const BALLAST_BYTES_MAX: u64 = 64 << 20;

/// Share of the file system that the ballast has at most.
const SHARE: u64 = 16;
/// A ballast has whole units of so many bytes.
const UNIT: u64 = 1 << 20;
/// A file system with less than this to spare is full, whatever its size.
const ROOM_BYTES_MIN: u64 = 1 << 20;

/// How much room the file system has that the pool's folder is on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FolderRoom {
    /// The pool's folder.
    pub dir: PathBuf,
    /// Bytes that the pool's user can have there at all: what is used, and what is free.
    pub total_bytes: u64,
    /// Bytes that are free.
    pub available_bytes: u64,
    /// Whether the metadata found no room, and lives on what was kept for that case. New data is refused until
    /// there is room again.
    pub is_short: bool,
}

/// The file that holds space.
#[derive(Debug)]
pub(crate) struct Ballast {
    path: PathBuf,
    /// Whether the store found no room, and there was none since.
    is_short: bool,
}

impl Ballast {
    /// The ballast at `path`, in a folder that is there. Nothing is made yet.
    pub(crate) fn new(path: PathBuf) -> Self {
        Self {
            path,
            is_short: false,
        }
    }

    pub(crate) fn is_short(&self) -> bool {
        self.is_short
    }

    /// The store met a full file system: gives the space back. False if there was none to give.
    pub(crate) fn give_up(&mut self) -> bool {
        self.is_short = true;
        let given = std::fs::remove_file(&self.path).is_ok();
        if given {
            tracing::warn!(
                "{}: the file system is full: the space that is kept for the metadata is given up; free some there",
                self.dir().display()
            );
        }
        given
    }

    /// Whether nothing can be written: nothing is left to give up, and the file system is full.
    pub(crate) fn is_hopeless(&self) -> bool {
        self.is_short
            && !self.path.exists()
            && space(self.dir()).is_ok_and(|(_, available)| available < ROOM_BYTES_MIN)
    }

    /// Makes the file if there is room for it, and says how much room there is; `None` if the system does not
    /// tell.
    pub(crate) fn tend(&mut self) -> Option<FolderRoom> {
        let (total, available) = space(self.dir()).ok()?;
        let wanted = (total / SHARE / UNIT * UNIT).min(BALLAST_BYTES_MAX);
        let is_there = self.path.exists();
        if !is_there && leaves_room(wanted, available) {
            // Too small for a ballast, or filled in this moment: the next look tells.
            let is_made = wanted == 0 || make(&self.path, wanted).is_ok();
            if is_made && std::mem::take(&mut self.is_short) {
                tracing::info!("{}: the file system has room again", self.dir().display());
            }
        } else if !is_there && available < wanted.max(ROOM_BYTES_MIN) {
            self.is_short = true;
        }
        let available = space(self.dir()).map_or(available, |(_, available)| available);
        Some(FolderRoom {
            dir: self.dir().to_path_buf(),
            total_bytes: total,
            available_bytes: available,
            is_short: self.is_short,
        })
    }

    fn dir(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new("."))
    }
}

/// Whether a ballast of `wanted` bytes leaves as much to others, of what is available.
fn leaves_room(wanted: u64, available: u64) -> bool {
    available >= 2 * wanted.max(ROOM_BYTES_MIN)
}

/// Bytes of the file system of `dir` that its user can have, and those of them that are free.
fn space(dir: &Path) -> io::Result<(u64, u64)> {
    let space = rustix::fs::statvfs(dir)?;
    let used = space.f_blocks.saturating_sub(space.f_bfree);
    let bytes = |blocks: u64| blocks.saturating_mul(space.f_frsize);
    Ok((
        bytes(used.saturating_add(space.f_bavail)),
        bytes(space.f_bavail),
    ))
}

/// Makes the file whole or not at all.
fn make(path: &Path, bytes: u64) -> io::Result<()> {
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    let filled = match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes) {
        Err(rustix::io::Errno::OPNOTSUPP) => fill(&file, bytes),
        other => other.map_err(io::Error::from),
    };
    if filled.is_err() {
        std::fs::remove_file(path)?;
    }
    filled
}

/// Takes space where the file system cannot preallocate: with bytes that it cannot compress.
fn fill(file: &File, bytes: u64) -> io::Result<()> {
    let mut noise = vec![0; UNIT as usize];
    let mut random = ChaCha8Rng::seed_from_u64(bytes);
    for offset in (0..bytes).step_by(UNIT as usize) {
        random.fill_bytes(&mut noise);
        file.write_all_at(&noise, offset)?;
    }
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn a_ballast_leaves_as_much_to_others_as_it_takes() {
        assert!(leaves_room(8 << 20, 16 << 20));
        assert!(!leaves_room(8 << 20, (16 << 20) - 1));
        // A file system that is too small for a ballast is full all the same.
        assert!(!leaves_room(0, ROOM_BYTES_MIN));
        assert!(leaves_room(0, 2 * ROOM_BYTES_MIN));
    }

    #[test]
    fn a_ballast_holds_space_and_is_made_again_after_it_was_given_up() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ballast");
        let mut ballast = Ballast::new(path.clone());
        let room = ballast.tend().unwrap();
        assert!(!room.is_short, "{room:?}");
        let held = std::fs::metadata(&path).unwrap();
        assert!(held.blocks() * 512 >= UNIT && held.len() <= BALLAST_BYTES_MAX);
        assert_eq!(held.mode() & 0o777, 0o600);
        assert!(ballast.give_up());
        assert!(!path.exists() && ballast.is_short());
        assert!(!ballast.give_up());
        assert!(!ballast.tend().unwrap().is_short);
        assert!(path.exists() && !ballast.is_short());
    }

    #[test]
    fn a_file_system_that_cannot_preallocate_is_filled() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ballast");
        let file = File::create(&path).unwrap();
        fill(&file, 2 * UNIT).unwrap();
        assert!(std::fs::metadata(&path).unwrap().blocks() * 512 >= 2 * UNIT);
    }
}
