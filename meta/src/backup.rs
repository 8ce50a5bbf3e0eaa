//! A copy of a pool's metadata in a folder of its own: identity, journal and store of one moment.
//!
//! The drives are no part of it: their paths in the copy are absolute, so that the folder can be opened as the
//! pool it was made of. It is made under another name, and gets its own when it is whole.

use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crate::error::MetaError;
use crate::identity::{PoolIdentity, absolute_drive_path};
use crate::journal::{FileMedia, JournalPart};
use crate::pool::{PoolDir, PoolPaths, sync_folder, write_new};

/// A file that is only in a backup that is being made.
const MARK: &str = "backup-unfinished";

/// A backup that is being made. Dropping it removes what was made so far.
#[derive(Debug)]
pub struct BackupFolder {
    target: PathBuf,
    parts: PoolPaths,
    identity: PoolIdentity,
    is_finished: bool,
}

impl PoolDir {
    /// Begins a backup of this pool in the folder `target`, which must not be there, or be empty.
    ///
    /// # Errors
    /// [`MetaError::Exists`] if there is something, [`MetaError::NoSpace`] and [`MetaError::Io`].
    pub fn begin_backup(&self, target: &Path) -> Result<BackupFolder, MetaError> {
        if self.is_temporary() {
            return Err(not_there(
                target,
                "a pool in memory keeps nothing that a backup would help",
            ));
        }
        let mut identity = self.identity().clone();
        for (index, drive) in (0u16..).zip(&mut identity.drives) {
            let path = self.drive_path(index).unwrap_or_default();
            drive.path = absolute_drive_path(&path)
                .map_err(|error| MetaError::io(&path, "tell the absolute path", error))?;
        }
        BackupFolder::begin(target, identity)
    }
}

fn with(name: &OsStr, end: &str) -> OsString {
    let mut name = name.to_os_string();
    name.push(end);
    name
}

fn not_there(target: &Path, what: &str) -> MetaError {
    MetaError::Invalid(format!("{}: {what}: name a new folder", target.display()))
}

impl BackupFolder {
    /// Begins to make the folder `target`, which must not be there, or be empty, for the pool of this identity.
    ///
    /// # Errors
    /// [`MetaError::Exists`] if there is something, [`MetaError::NoSpace`] and [`MetaError::Io`].
    pub(crate) fn begin(target: &Path, identity: PoolIdentity) -> Result<Self, MetaError> {
        let (Some(name), Some(parent)) = (target.file_name(), target.parent()) else {
            return Err(not_there(target, "that is no name of a folder"));
        };
        match fs::read_dir(target).map(|mut entries| entries.next().is_some()) {
            Ok(false) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) if error.kind() != io::ErrorKind::NotADirectory => {
                return Err(MetaError::io(target, "look into the folder", error));
            }
            Ok(true) | Err(_) => {
                return Err(MetaError::Exists {
                    path: target.to_path_buf(),
                    remedy: "a backup goes into a new folder, and never over an older one"
                        .to_owned(),
                });
            }
        }
        Self::begin_at(target, parent.join(with(name, ".unfinished")), identity)
    }

    /// The same, of a folder that may be there: it has to be gone, or empty, when this one is finished.
    ///
    /// # Errors
    /// As of [`begin`](Self::begin).
    pub(crate) fn begin_ahead(target: &Path, identity: PoolIdentity) -> Result<Self, MetaError> {
        let (Some(name), Some(parent)) = (target.file_name(), target.parent()) else {
            return Err(not_there(target, "that is no name of a folder"));
        };
        Self::begin_at(target, parent.join(with(name, ".ahead")), identity)
    }

    fn begin_at(target: &Path, dir: PathBuf, identity: PoolIdentity) -> Result<Self, MetaError> {
        // What an interrupted backup left, if that is what it is.
        if dir.join(MARK).exists() {
            fs::remove_dir_all(&dir)
                .map_err(|error| MetaError::io(&dir, "remove an unfinished backup", error))?;
        }
        DirBuilder::new()
            .mode(0o700)
            .create(&dir)
            .map_err(|error| MetaError::io(&dir, "create the folder", error))?;
        fs::write(dir.join(MARK), "")
            .map_err(|error| MetaError::io(&dir, "mark the unfinished backup", error))?;
        let folder = Self {
            target: target.to_path_buf(),
            parts: PoolPaths::new(&dir),
            identity,
            is_finished: false,
        };
        write_new(&folder.parts.identity, &folder.identity.to_text()?)?;
        Ok(folder)
    }

    /// Gives it another identity.
    ///
    /// # Errors
    /// [`MetaError::NoSpace`] and [`MetaError::Io`].
    pub(crate) fn set_identity(&mut self, identity: PoolIdentity) -> Result<(), MetaError> {
        let path = &self.parts.identity;
        fs::remove_file(path).map_err(|error| MetaError::io(path, "remove the file", error))?;
        write_new(path, &identity.to_text()?)?;
        self.identity = identity;
        Ok(())
    }

    /// Where the copy of the store is to be made; nothing is there.
    pub fn store_dir(&self) -> &Path {
        &self.parts.metadata
    }

    /// Writes the journal: what of it is needed.
    ///
    /// # Errors
    /// [`MetaError::NoSpace`] and [`MetaError::Io`].
    pub fn write_journal(&self, part: &JournalPart) -> Result<(), MetaError> {
        let media = self.create_journal(part.capacity())?;
        part.write_to(&media)
            .map_err(|error| MetaError::io(media.path(), "copy the journal", error))
    }

    /// Makes an empty journal of that size.
    ///
    /// # Errors
    /// [`MetaError::NoSpace`] and [`MetaError::Io`].
    pub(crate) fn create_journal(&self, ring_bytes: u64) -> Result<FileMedia, MetaError> {
        FileMedia::create(&self.parts.journal, self.identity.uuid, ring_bytes)
    }

    /// Gives the backup its name, durably; returns that.
    ///
    /// # Errors
    /// [`MetaError::Io`]; there is no backup then.
    pub fn finish(mut self) -> Result<PathBuf, MetaError> {
        let mark = self.parts.dir.join(MARK);
        fs::remove_file(&mark).map_err(|error| MetaError::io(&mark, "remove the file", error))?;
        sync_folder(&self.parts.metadata)?;
        sync_folder(&self.parts.dir)?;
        fs::rename(&self.parts.dir, &self.target)
            .map_err(|error| MetaError::io(&self.target, "give the backup its name", error))?;
        self.is_finished = true;
        let parent = self
            .target
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty());
        sync_folder(parent.unwrap_or(Path::new(".")))?;
        Ok(self.target.clone())
    }
}

impl Drop for BackupFolder {
    fn drop(&mut self) {
        if !self.is_finished {
            // Best effort; the next attempt removes it too.
            let _ = fs::remove_dir_all(&self.parts.dir);
        }
    }
}
