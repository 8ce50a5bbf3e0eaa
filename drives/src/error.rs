//! Why a drive could not do what it was asked.

use std::io;

/// What to do about a [`DriveError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The request makes no sense for this drive: an error of the caller.
    Invalid,
    /// There is no such file or device.
    NotFound,
    /// Another process uses it.
    InUse,
    /// It is not what it was: shorter than it should be.
    Truncated,
    /// The file system below has no room left (drives are sparse files).
    NoSpace,
    /// Nobody answers where it is: it may be there later.
    Unreachable,
    /// The drive failed; it may work again, or need replacement.
    Io,
}

/// A drive's error. The message names the drive and the remedy.
#[derive(Debug, thiserror::Error)]
#[error("drive {drive}: {message}")]
pub struct DriveError {
    kind: ErrorKind,
    drive: String,
    message: String,
    is_in_doubt: bool,
    #[source]
    source: Option<io::Error>,
}

impl DriveError {
    /// What to do about it.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The drive's name.
    pub fn drive(&self) -> &str {
        &self.drive
    }

    /// What is wrong, and the remedy, without the drive's name.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// An error with a message that names the remedy.
    pub fn new(kind: ErrorKind, drive: &str, message: impl Into<String>) -> Self {
        Self {
            kind,
            drive: drive.to_owned(),
            message: message.into(),
            is_in_doubt: false,
            source: None,
        }
    }

    /// Whether the drive may still do what it was asked for: nobody knows what became of it, as after a time-out or a
    /// connection that broke.
    pub fn is_in_doubt(&self) -> bool {
        self.is_in_doubt
    }

    /// The same error of something that the drive may still do.
    #[must_use]
    pub fn in_doubt(self) -> Self {
        Self {
            is_in_doubt: true,
            ..self
        }
    }

    pub(crate) fn invalid(drive: &str, message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, drive, message)
    }

    pub(crate) fn with_source(mut self, source: io::Error) -> Self {
        self.source = Some(source);
        self
    }
}
