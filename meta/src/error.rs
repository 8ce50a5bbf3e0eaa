//! Errors: what is wrong, with which file, and what to do about it.

use std::io;
use std::path::{Path, PathBuf};

/// Something about a pool folder, a store or a drive label that stops the caller.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MetaError {
    /// A file of the pool is not there.
    #[error("{path}: missing; {remedy}", path = .path.display())]
    Missing {
        /// The file.
        path: PathBuf,
        /// What to do.
        remedy: String,
    },
    /// Something is there that must not be overwritten.
    #[error("{path}: already exists; {remedy}", path = .path.display())]
    Exists {
        /// The file or folder.
        path: PathBuf,
        /// What to do.
        remedy: String,
    },
    /// A file was written by another version of the format.
    #[error(
        "{path}: format version {found}, this program reads version {supported}; \
         use the program version that wrote it, the file was left as it is",
        path = .path.display()
    )]
    WrongVersion {
        /// The file.
        path: PathBuf,
        /// Version in the file.
        found: u64,
        /// Version that this program reads and writes.
        supported: u64,
    },
    /// A file belongs to another pool.
    #[error("{path}: belongs to pool {found}, not to pool {expected}; {remedy}", path = .path.display())]
    WrongPool {
        /// The file.
        path: PathBuf,
        /// Pool named in the file.
        found: uuid::Uuid,
        /// Pool that was opened.
        expected: uuid::Uuid,
        /// What to do.
        remedy: String,
    },
    /// A live process uses the pool.
    #[error(
        "{path}: the pool is in use by process {}; stop that process first",
        .pid.map_or_else(|| "(unknown)".to_owned(), |pid| pid.to_string()),
        path = .path.display()
    )]
    Locked {
        /// The lock file.
        path: PathBuf,
        /// Process that holds the lock, if it has said so.
        pid: Option<u32>,
    },
    /// A file is damaged. Nothing was changed.
    #[error("{path}: damaged: {detail}; {remedy}", path = .path.display())]
    Corrupt {
        /// The file or folder.
        path: PathBuf,
        /// What was found.
        detail: String,
        /// What to do.
        remedy: String,
    },
    /// The file system is full.
    #[error(
        "{path}: no space left on the file system ({detail}); free some space there and try again, \
         nothing was lost",
        path = .path.display()
    )]
    NoSpace {
        /// The file or folder that could not grow.
        path: PathBuf,
        /// What was attempted.
        detail: String,
    },
    /// The user who runs this may not do that.
    #[error(
        "{path}: no permission to {action}: run this as the user that the pool belongs to, or as root",
        path = .path.display()
    )]
    NoPermission {
        /// The file or folder.
        path: PathBuf,
        /// What was attempted, as a verb phrase.
        action: String,
    },
    /// The operating system refused.
    #[error("{path}: cannot {action}: {source}", path = .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was attempted, as a verb phrase.
        action: String,
        /// What the system said.
        source: io::Error,
    },
    /// An argument makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// Records contradict each other or the rows in the store: applying them would break the counts.
    #[error(
        "metadata would become inconsistent: {0}; nothing was applied, run `onefold pool check` on the \
         stopped pool and report this as a bug"
    )]
    Inconsistent(String),
}

/// What a [`MetaError`] means for the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MetaErrorKind {
    /// See [`MetaError::Missing`].
    Missing,
    /// See [`MetaError::Exists`].
    Exists,
    /// See [`MetaError::WrongVersion`].
    WrongVersion,
    /// See [`MetaError::WrongPool`].
    WrongPool,
    /// See [`MetaError::Locked`].
    Locked,
    /// See [`MetaError::Corrupt`].
    Corrupt,
    /// See [`MetaError::NoSpace`].
    NoSpace,
    /// See [`MetaError::NoPermission`].
    NoPermission,
    /// See [`MetaError::Io`].
    Io,
    /// See [`MetaError::Invalid`].
    Invalid,
    /// See [`MetaError::Inconsistent`].
    Inconsistent,
}

impl MetaError {
    /// The kind without the details.
    pub fn kind(&self) -> MetaErrorKind {
        match self {
            Self::Missing { .. } => MetaErrorKind::Missing,
            Self::Exists { .. } => MetaErrorKind::Exists,
            Self::WrongVersion { .. } => MetaErrorKind::WrongVersion,
            Self::WrongPool { .. } => MetaErrorKind::WrongPool,
            Self::Locked { .. } => MetaErrorKind::Locked,
            Self::Corrupt { .. } => MetaErrorKind::Corrupt,
            Self::NoSpace { .. } => MetaErrorKind::NoSpace,
            Self::NoPermission { .. } => MetaErrorKind::NoPermission,
            Self::Io { .. } => MetaErrorKind::Io,
            Self::Invalid(_) => MetaErrorKind::Invalid,
            Self::Inconsistent(_) => MetaErrorKind::Inconsistent,
        }
    }

    /// An I/O error on `path`; a full file system becomes [`MetaError::NoSpace`].
    pub(crate) fn io(path: impl AsRef<Path>, action: &str, source: io::Error) -> Self {
        let path = path.as_ref().to_path_buf();
        if is_no_space(&source) {
            Self::NoSpace {
                path,
                detail: format!("while trying to {action}"),
            }
        } else if source.kind() == io::ErrorKind::PermissionDenied {
            Self::NoPermission {
                path,
                action: action.to_owned(),
            }
        } else {
            Self::Io {
                path,
                action: action.to_owned(),
                source,
            }
        }
    }

    pub(crate) fn corrupt(
        path: impl AsRef<Path>,
        detail: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self::Corrupt {
            path: path.as_ref().to_path_buf(),
            detail: detail.into(),
            remedy: remedy.into(),
        }
    }

    pub(crate) fn missing(path: impl AsRef<Path>, remedy: impl Into<String>) -> Self {
        Self::Missing {
            path: path.as_ref().to_path_buf(),
            remedy: remedy.into(),
        }
    }
}

/// Whether an error of the system says that the file system (or the user's quota on it) is full.
pub(crate) fn is_no_space(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}

/// Something about the journal that stops the caller.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// The ring has no room. Checkpoint, release, and append again. Nothing was written.
    #[error(
        "{journal}: full: {needed} bytes needed, {free} free; checkpoint the pool and release space first"
    )]
    Full {
        /// The journal.
        journal: String,
        /// Bytes that the records take.
        needed: u64,
        /// Bytes that they may take.
        free: u64,
    },
    /// A record is larger than the journal takes. Nothing was written.
    #[error(
        "{journal}: a record of {bytes} bytes is larger than the limit of {limit} bytes; split it"
    )]
    TooLarge {
        /// The journal.
        journal: String,
        /// Bytes of the record's payload.
        bytes: u64,
        /// Bytes that a payload may have.
        limit: u64,
    },
    /// Reading, writing or syncing failed. After a failed write or sync every later append and sync
    /// fails too, because what is on the media is no longer known; open the pool again to recover.
    #[error(
        "{journal}: cannot {action}: {source}; restart on a healthy drive to recover, nothing acknowledged is lost"
    )]
    Io {
        /// The journal.
        journal: String,
        /// What was attempted, as a verb phrase.
        action: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// An earlier write or sync failed.
    #[error(
        "{journal}: an earlier write or sync failed, no more records are taken; restart to recover"
    )]
    Failed {
        /// The journal.
        journal: String,
    },
    /// [`Journal::begin`](crate::Journal::begin) was not called yet, or was called wrongly.
    #[error("{journal}: {detail}")]
    NotBegun {
        /// The journal.
        journal: String,
        /// What is wrong.
        detail: String,
    },
    /// Records that were on stable storage cannot be read any more.
    #[error(
        "{journal}: damaged: record {seq} at byte {offset} was stable, and cannot be read any more \
         ({evidence}); nothing was changed: check the drive that holds it and restore the pool from a copy"
    )]
    Damaged {
        /// The journal.
        journal: String,
        /// Sequence number of the first unreadable record.
        seq: u64,
        /// Where it should be, as a byte offset in the ring.
        offset: u64,
        /// How it is known.
        evidence: String,
    },
    /// The journal is newer than the store: the store has lost a checkpoint.
    #[error(
        "{journal}: holds records of epoch {found}, but the metadata store knows only epoch {stored}: the \
         store has lost durable changes or comes from an older copy; nothing was changed: check the drive that \
         holds `metadata/`, and restore both from the same moment"
    )]
    StoreBehind {
        /// The journal.
        journal: String,
        /// Epoch found in the journal.
        found: u32,
        /// Epoch in the store.
        stored: u32,
    },
    /// The store is newer than the journal: the journal has lost durable records.
    #[error(
        "{journal}: does not hold record {seq}, the last one that the metadata store has from it: the journal \
         has lost durable changes or comes from an older copy; nothing was changed: check the drive that holds it, \
         and restore `journal` and `metadata/` from the same moment"
    )]
    JournalBehind {
        /// The journal.
        journal: String,
        /// Sequence number of the record.
        seq: u64,
    },
    /// The journal and its configuration or position do not go together.
    #[error("{journal}: {detail}")]
    Invalid {
        /// The journal.
        journal: String,
        /// What is wrong.
        detail: String,
    },
}

impl JournalError {
    /// Whether a checkpoint and a release can cure it.
    pub fn is_full(&self) -> bool {
        matches!(self, Self::Full { .. })
    }
}
