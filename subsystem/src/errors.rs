//! What went wrong, as a person and as a host is told of it.
//!
//! | kind | NVMe status | do not retry |
//! |---|---|---|
//! | invalid | Invalid Field | yes |
//! | not found | Invalid Namespace or Format | yes |
//! | no space | Capacity Exceeded | yes |
//! | corrupt | Unrecovered Read Error | yes |
//! | write fault | Write Fault | no |
//! | unavailable | Namespace Not Ready | no |
//! | internal | Internal Error | no |
//!
//! Do Not Retry is set where a repetition cannot help: a Linux host repeats a command five times
//! otherwise. It is clear where the cause can pass, so that the host waits instead of failing I/O.

use std::fmt;

use dedup::{EngineError, ErrorKind};
use nvme::Status;

/// The NVMe status of an engine's error.
#[must_use]
pub fn nvme_status(kind: ErrorKind) -> Status {
    match kind {
        ErrorKind::Invalid => Status::INVALID_FIELD.with_dnr(),
        ErrorKind::NotFound => Status::INVALID_NAMESPACE.with_dnr(),
        ErrorKind::NoSpace => Status::CAPACITY_EXCEEDED.with_dnr(),
        ErrorKind::Corrupt => Status::UNRECOVERED_READ.with_dnr(),
        // Without DNR: the host tries again at once, and the engine elsewhere. If that fails too, Linux
        // tells its user of a medium error.
        ErrorKind::WriteFault => Status::WRITE_FAULT,
        ErrorKind::Unavailable => Status::NAMESPACE_NOT_READY,
        ErrorKind::Internal => Status::INTERNAL,
    }
}

/// An error on its way to a person: what happened to which object, what helps, and its kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What to do next, coarsely.
    pub kind: ErrorKind,
    /// Names the object and the remedy.
    pub message: String,
}

impl Failure {
    /// A failure of that kind.
    #[must_use]
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
        }
    }

    /// The request is wrong.
    #[must_use]
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, message)
    }

    /// Something does not answer, or is taken.
    #[must_use]
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unavailable, message)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Self {
        Self {
            kind: error.kind,
            message: error.message,
        }
    }
}

impl From<reactor::JoinError> for Failure {
    /// Work on a reactor that ended without a result: a bug, or the daemon stops.
    fn from(error: reactor::JoinError) -> Self {
        Self::new(
            ErrorKind::Internal,
            format!("the work ended early: {error}; see the daemon's log"),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_can_pass_may_be_retried() {
        for kind in ErrorKind::ALL {
            let can_pass = matches!(
                kind,
                ErrorKind::WriteFault | ErrorKind::Unavailable | ErrorKind::Internal
            );
            assert_eq!(nvme_status(kind).is_dnr(), !can_pass, "{kind}");
        }
    }

    #[test]
    fn a_full_pool_reads_as_no_space_on_the_host_and_damage_as_a_media_error() {
        assert_eq!(
            nvme_status(ErrorKind::NoSpace),
            Status::CAPACITY_EXCEEDED.with_dnr()
        );
        assert_eq!(
            nvme_status(ErrorKind::Corrupt),
            Status::UNRECOVERED_READ.with_dnr()
        );
    }
}
