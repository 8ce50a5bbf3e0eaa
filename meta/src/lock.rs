//! The lock of a pool: one process uses it, or several look at it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;

use crate::error::MetaError;

/// The lock file, locked.
#[derive(Debug)]
pub(crate) struct Lock {
    file: File,
    /// Where taking it made the file.
    new_at: Option<PathBuf>,
}

impl Lock {
    /// Locks the pool for the process that uses it, and says in the file which one that is.
    pub(crate) fn take(path: &Path) -> Result<Self, MetaError> {
        let mut held = loop {
            let new_at = (!path.exists()).then(|| path.to_owned());
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .open(path)
                .map_err(|error| MetaError::io(path, "open the lock file", error))?;
            if let Some(held) = Self::of_open_file(path, file, new_at)? {
                break held;
            }
        };
        // The number only helps people: a full file system must not stop the pool from opening.
        let _ = held
            .file
            .set_len(0)
            .and_then(|()| writeln!(held.file, "{}", std::process::id()));
        Ok(held)
    }

    /// Locks a lock file that was opened at `path`. `None` if it is not there any more: who held it before may have removed
    /// it in between, and then it keeps nobody out.
    fn of_open_file(
        path: &Path,
        mut file: File,
        new_at: Option<PathBuf>,
    ) -> Result<Option<Self>, MetaError> {
        lock(path, &mut file, FlockOperation::NonBlockingLockExclusive)?;
        let held = Self { file, new_at };
        Ok(held.is_at(path).then_some(held))
    }

    /// Its file stays, whoever made it.
    pub(crate) fn keep(&mut self) {
        self.new_at = None;
    }

    /// Gives the lock back, and removes its file if taking it made that.
    pub(crate) fn undo(self) {
        if let Some(path) = &self.new_at {
            // Best effort: a file that nobody locks is in nobody's way.
            let _ = fs::remove_file(path);
        }
    }

    fn is_at(&self, path: &Path) -> bool {
        match (self.file.metadata(), fs::metadata(path)) {
            (Ok(held), Ok(there)) => (held.dev(), held.ino()) == (there.dev(), there.ino()),
            _ => false,
        }
    }

    /// Locks the pool against those who use it, and changes nothing: not even the number in the file. Others may
    /// look as well. `None` if there is no such file: nobody ever used this copy of the pool.
    pub(crate) fn look(path: &Path) -> Result<Option<Self>, MetaError> {
        match File::open(path) {
            Ok(mut file) => {
                lock(path, &mut file, FlockOperation::NonBlockingLockShared)?;
                Ok(Some(Self { file, new_at: None }))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(MetaError::io(path, "open the lock file", error)),
        }
    }
}

fn lock(path: &Path, file: &mut File, operation: FlockOperation) -> Result<(), MetaError> {
    match rustix::fs::flock(&*file, operation) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(held(path, file)),
        Err(error) => Err(MetaError::io(path, "lock the pool", error.into())),
    }
}

/// Who holds the lock, as far as its file tells: it may be between locking and writing, and who only looks at a
/// pool leaves the number of its last user.
fn held(path: &Path, file: &mut File) -> MetaError {
    let is_alive = |pid: &u32| Path::new("/proc").join(pid.to_string()).exists();
    MetaError::Locked {
        path: path.to_path_buf(),
        pid: number_in(file).filter(is_alive),
    }
}

/// The number of a process that a lock file has.
fn number_in(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.take(32).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

/// The process that a lock file names, if it has that file open. Takes no lock: a process that begins would find it, and end. `None`
/// also if that process may not be looked at.
pub(crate) fn user(path: &Path) -> Option<u32> {
    let pid = number_in(&mut File::open(path).ok()?)?;
    let own = fs::metadata(path).ok()?;
    let opened = fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
    let is_it = |file: io::Result<fs::DirEntry>| {
        let opened = file.and_then(|file| fs::metadata(file.path()));
        opened.is_ok_and(|opened| (opened.dev(), opened.ino()) == (own.dev(), own.ino()))
    };
    opened.into_iter().any(is_it).then_some(pid)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn a_lock_whose_file_was_removed_between_opening_and_locking_is_none() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("lock");
        let opened = || {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false);
            options.open(&path).expect("a lock file")
        };
        let locked = |file| Lock::of_open_file(&path, file, None).expect("nobody holds it");
        assert!(locked(opened()).is_some());
        let early = opened();
        fs::remove_file(&path).expect("it is there");
        assert!(locked(early).is_none(), "its file is gone");
        let early = opened();
        fs::remove_file(&path).expect("it is there");
        let _other = opened();
        assert!(locked(early).is_none(), "another file is in its place");
    }

    #[test]
    fn a_lock_file_names_who_has_it_and_not_who_had_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("lock");
        assert_eq!(user(&path), None);
        let held = Lock::take(&path).expect("nobody holds it");
        assert_eq!(user(&path), Some(std::process::id()));
        drop(held);
        assert!(path.exists());
        assert_eq!(user(&path), None);
    }

    #[test]
    fn a_lock_whose_file_comes_and_goes_is_held_by_one_at_a_time() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("lock");
        let (holders, taken) = (AtomicU32::new(0), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while taken.load(Ordering::SeqCst) < 2000 {
                        let Ok(lock) = Lock::take(&path) else {
                            continue;
                        };
                        let others = holders.fetch_add(1, Ordering::SeqCst);
                        taken.fetch_add(1, Ordering::SeqCst);
                        std::thread::yield_now();
                        holders.fetch_sub(1, Ordering::SeqCst);
                        lock.undo();
                        assert_eq!(others, 0, "two hold the lock");
                    }
                });
            }
        });
    }
}
