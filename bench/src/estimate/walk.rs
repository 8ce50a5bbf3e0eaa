//! Which files and devices there are below some paths.
//!
//! Guarantees: nothing is opened for writing and no symbolic link inside a folder is followed; a file
//! with several names is met once; the walk stays on the file system of each named path; what cannot be
//! read inside a folder is noted, and the walk goes on.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{SeekFrom, seek};

use super::EstimateError;
use super::report::{Skipped, Unreadable};

/// Files with several names that are remembered, 16 bytes each and the table's own.
const LINKS_MAX: usize = 4 << 20;

/// Unreadable files that are told by name.
const UNREADABLE_MAX: usize = 20;

/// A file or device to be read.
pub(super) struct Source {
    pub(super) path: PathBuf,
    pub(super) bytes: u64,
}

/// What to do with the next file.
pub(super) type Visit<'a> = dyn FnMut(Source, &mut Skipped) + 'a;

pub(super) struct Walk {
    pub(super) skipped: Skipped,
    /// Device and inode of files with several names, and of what was named.
    met: HashSet<(u64, u64)>,
    pub(super) met_is_full: bool,
}

impl Walk {
    pub(super) fn new() -> Self {
        Self {
            skipped: Skipped::default(),
            met: HashSet::new(),
            met_is_full: false,
        }
    }

    /// Visits everything at and below `path`, which the user has named.
    ///
    /// # Errors
    /// If `path` itself cannot be used. What lies below it and cannot be read is noted instead.
    pub(super) fn visit(
        &mut self,
        path: &Path,
        visit: &mut Visit<'_>,
    ) -> Result<(), EstimateError> {
        let failed = |source| EstimateError::Path {
            path: path.to_path_buf(),
            source,
        };
        // A symbolic link that was named is followed: the user means what it leads to.
        let metadata = fs::metadata(path).map_err(failed)?;
        let kind = metadata.file_type();
        if kind.is_dir() {
            fs::read_dir(path).map_err(failed)?;
            self.folders(path, metadata.dev(), visit);
            return Ok(());
        }
        let bytes = if kind.is_file() {
            File::open(path).map_err(failed)?;
            metadata.len()
        } else if kind.is_block_device() {
            let device = File::open(path).map_err(failed)?;
            seek(&device, SeekFrom::End(0)).map_err(|errno| failed(errno.into()))?
        } else {
            return Err(EstimateError::Special {
                path: path.to_path_buf(),
            });
        };
        if self.is_new(metadata.dev(), metadata.ino()) {
            let path = path.to_path_buf();
            visit(Source { path, bytes }, &mut self.skipped);
        }
        Ok(())
    }

    fn folders(&mut self, root: &Path, device: u64, visit: &mut Visit<'_>) {
        let mut folders = vec![root.to_path_buf()];
        while let Some(folder) = folders.pop() {
            let entries = match fs::read_dir(&folder) {
                Ok(entries) => entries,
                Err(error) => {
                    note(&mut self.skipped, &folder, &error);
                    continue;
                }
            };
            for entry in entries {
                let path = match &entry {
                    Ok(entry) => entry.path(),
                    Err(_) => folder.clone(),
                };
                match entry.and_then(|entry| entry.metadata()) {
                    Ok(metadata) if metadata.is_dir() && metadata.dev() != device => {
                        self.skipped.mounts += 1;
                    }
                    Ok(metadata) if metadata.is_dir() => folders.push(path),
                    Ok(metadata) if metadata.is_file() => self.file(path, &metadata, visit),
                    Ok(_) => self.skipped.special_files += 1,
                    // It was removed meanwhile.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    Err(error) => note(&mut self.skipped, &path, &error),
                }
            }
        }
    }

    fn file(&mut self, path: PathBuf, metadata: &fs::Metadata, visit: &mut Visit<'_>) {
        if metadata.nlink() > 1 && !self.is_new(metadata.dev(), metadata.ino()) {
            return;
        }
        let bytes = metadata.len();
        visit(Source { path, bytes }, &mut self.skipped);
    }

    fn is_new(&mut self, device: u64, inode: u64) -> bool {
        if self.met.len() >= LINKS_MAX && !self.met.contains(&(device, inode)) {
            self.met_is_full = true;
            return true;
        }
        let is_new = self.met.insert((device, inode));
        if !is_new {
            self.skipped.hard_links += 1;
        }
        is_new
    }
}

/// Notes what could not be read.
pub(super) fn note(skipped: &mut Skipped, path: &Path, error: &io::Error) {
    skipped.unreadable += 1;
    if skipped.unreadable_first.len() < UNREADABLE_MAX {
        skipped.unreadable_first.push(Unreadable {
            path: path.to_path_buf(),
            reason: error.to_string(),
        });
    }
}
