//! One error type with a coarse kind: what the caller should do next.

use std::fmt;

use meta::Pba;

/// What every fallible operation of the engine returns.
pub type Result<T> = std::result::Result<T, EngineError>;

/// What to do about an error. The target maps it to an NVMe status, the API to an HTTP status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The request itself is wrong; repeating it will not help.
    Invalid,
    /// The named object does not exist (any more).
    NotFound,
    /// The pool has no room for new data; deleting, trimming or adding space helps.
    NoSpace,
    /// Stored data is damaged; writing the same place again helps.
    Corrupt,
    /// A drive did not take new data; another try takes other blocks of it.
    WriteFault,
    /// A drive, the journal or the metadata store does not work now; retry later or elsewhere.
    Unavailable,
    /// The engine contradicts itself: a bug.
    Internal,
}

impl ErrorKind {
    /// Every kind, in the order of their declaration.
    pub const ALL: [Self; 7] = [
        Self::Invalid,
        Self::NotFound,
        Self::NoSpace,
        Self::Corrupt,
        Self::WriteFault,
        Self::Unavailable,
        Self::Internal,
    ];

    /// Whether a write failed for a reason that lies with the pool, and not with the command.
    pub(crate) fn is_of_the_pool(self) -> bool {
        match self {
            Self::Invalid | Self::NotFound | Self::Corrupt => false,
            Self::NoSpace | Self::WriteFault | Self::Unavailable | Self::Internal => true,
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Invalid => "invalid request",
            Self::NotFound => "not found",
            Self::NoSpace => "no space",
            Self::Corrupt => "corrupt data",
            Self::WriteFault => "write fault",
            Self::Unavailable => "unavailable",
            Self::Internal => "internal error",
        })
    }
}

/// An error of the engine: its kind, and a message that names the object and the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind}: {message}")]
pub struct EngineError {
    /// What the caller should do next.
    pub kind: ErrorKind,
    /// What happened to which object, and what helps.
    pub message: String,
    /// The first byte of the volume that it is about, if it is about a part of a command's range only.
    pub offset: Option<u64>,
}

impl EngineError {
    /// An error of the given kind.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            offset: None,
        }
    }

    /// The same, about what begins at this byte of the volume.
    pub(crate) fn at(self, offset: u64) -> Self {
        Self {
            offset: Some(offset),
            ..self
        }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, message)
    }

    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::NotFound, message)
    }

    pub(crate) fn corrupt(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Corrupt, message)
    }

    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unavailable, message)
    }

    pub(crate) fn closed() -> Self {
        Self::unavailable("the pool is being closed; connect again later")
    }

    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Internal, message)
    }

    /// Rows or records of the pool's metadata contradict each other.
    pub(crate) fn contradiction(what: impl fmt::Display) -> Self {
        Self::corrupt(format!(
            "the pool's metadata contradicts itself: {what}; run `onefold pool check` and \
             restore `metadata/` and `journal` from one copy"
        ))
    }

    /// The metadata names a block that no drive of the pool has.
    pub(crate) fn no_such_block(pba: Pba) -> Self {
        Self::corrupt(format!(
            "data block {} of drive number {} is in use, but there is no such block: a drive is missing, or \
             smaller than it was; put the right one back, nothing was changed",
            pba.block(),
            pba.drive()
        ))
    }
}

impl From<meta::MetaError> for EngineError {
    fn from(error: meta::MetaError) -> Self {
        use meta::MetaErrorKind as Meta;
        let kind = match error.kind() {
            Meta::Missing => ErrorKind::NotFound,
            Meta::Exists | Meta::WrongVersion | Meta::WrongPool | Meta::Invalid => {
                ErrorKind::Invalid
            }
            // A full file system under the metadata can be freed: who waits gets on. It is not the pool that is
            // full, and a read needs no room at all.
            Meta::Locked | Meta::Io | Meta::NoPermission | Meta::NoSpace => ErrorKind::Unavailable,
            Meta::Corrupt => ErrorKind::Corrupt,
            _ => ErrorKind::Internal,
        };
        Self::new(kind, error.to_string())
    }
}

impl From<meta::JournalError> for EngineError {
    fn from(error: meta::JournalError) -> Self {
        use meta::JournalError as Journal;
        let kind = match error {
            Journal::Damaged { .. }
            | Journal::StoreBehind { .. }
            | Journal::JournalBehind { .. } => ErrorKind::Corrupt,
            Journal::Io { .. } | Journal::Failed { .. } | Journal::Full { .. } => {
                ErrorKind::Unavailable
            }
            Journal::Invalid { .. } => ErrorKind::Invalid,
            _ => ErrorKind::Internal,
        };
        Self::new(kind, error.to_string())
    }
}

/// What a drive's error means for a command.
pub(crate) fn of_drive(error: &drives::DriveError) -> ErrorKind {
    match error.kind() {
        drives::ErrorKind::NoSpace => ErrorKind::NoSpace,
        drives::ErrorKind::Invalid => ErrorKind::Internal,
        _ => ErrorKind::Unavailable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kind that is declared behind this one. A new kind does not compile until it has its place here.
    fn next(kind: ErrorKind) -> Option<ErrorKind> {
        match kind {
            ErrorKind::Invalid => Some(ErrorKind::NotFound),
            ErrorKind::NotFound => Some(ErrorKind::NoSpace),
            ErrorKind::NoSpace => Some(ErrorKind::Corrupt),
            ErrorKind::Corrupt => Some(ErrorKind::WriteFault),
            ErrorKind::WriteFault => Some(ErrorKind::Unavailable),
            ErrorKind::Unavailable => Some(ErrorKind::Internal),
            ErrorKind::Internal => None,
        }
    }

    #[test]
    fn the_list_of_kinds_has_every_one() {
        let all: Vec<ErrorKind> =
            std::iter::successors(Some(ErrorKind::Invalid), |it| next(*it)).collect();
        assert_eq!(all, ErrorKind::ALL);
    }
}
