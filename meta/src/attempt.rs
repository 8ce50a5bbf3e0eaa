//! An attempt to make a pool: what it added to the file system, so that a refusal takes that away again.
//!
//! Guarantees: nothing that was there before is removed, and nothing of another attempt.

use std::fs;
use std::path::{Path, PathBuf};

use crate::lock::Lock;

/// What was added. Dropping it removes that; [`Attempt::keep`] makes it stay.
#[derive(Debug)]
pub(crate) struct Attempt {
    /// The pool's folder and those above it that were missing, the deepest first.
    folders: Vec<PathBuf>,
    files: Vec<PathBuf>,
    /// Of the folder, once it is held.
    pub(crate) lock: Option<Lock>,
}

impl Attempt {
    /// Before the folder `dir` is made.
    pub(crate) fn new(dir: &Path) -> Self {
        let is_missing = |folder: &&Path| !folder.as_os_str().is_empty() && !folder.exists();
        let folders = dir.ancestors().take_while(is_missing);
        Self {
            folders: folders.map(Path::to_owned).collect(),
            files: Vec::new(),
            lock: None,
        }
    }

    /// It makes a file in the folder that it holds.
    pub(crate) fn adds(&mut self, file: PathBuf) {
        self.files.push(file);
    }

    /// What was added stays.
    pub(crate) fn keep(&mut self) {
        self.folders.clear();
        self.files.clear();
        self.lock.iter_mut().for_each(Lock::keep);
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        // Best effort: what is left stops nobody.
        for file in &self.files {
            let _ = fs::remove_file(file);
        }
        self.lock.take().into_iter().for_each(Lock::undo);
        for folder in &self.folders {
            // Only if nobody has put anything else into it.
            let _ = fs::remove_dir(folder);
        }
    }
}
