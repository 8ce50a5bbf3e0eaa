//! The lock of a pool: one process uses it, or several look at it.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::FlockOperation;

use crate::error::MetaError;

/// The lock file, locked.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    /// Locks the pool for the process that uses it, and says in the file which one that is.
    pub(crate) fn take(path: &Path) -> Result<Self, MetaError> {
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)
            .map_err(|error| MetaError::io(path, "open the lock file", error))?;
        lock(path, &mut file, FlockOperation::NonBlockingLockExclusive)?;
        // The number only helps people: a full file system must not stop the pool from opening.
        let _ = file
            .set_len(0)
            .and_then(|()| writeln!(file, "{}", std::process::id()));
        Ok(Self { _file: file })
    }

    /// Locks the pool against those who use it, and changes nothing: not even the number in the file. Others may
    /// look as well. `None` if there is no such file: nobody ever used this copy of the pool.
    pub(crate) fn look(path: &Path) -> Result<Option<Self>, MetaError> {
        match File::open(path) {
            Ok(mut file) => {
                lock(path, &mut file, FlockOperation::NonBlockingLockShared)?;
                Ok(Some(Self { _file: file }))
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
    let mut text = String::new();
    let read = file.take(32).read_to_string(&mut text);
    let pid = read.ok().and_then(|_| text.trim().parse::<u32>().ok());
    let is_alive = |pid: &u32| Path::new("/proc").join(pid.to_string()).exists();
    MetaError::Locked {
        path: path.to_path_buf(),
        pid: pid.filter(is_alive),
    }
}
