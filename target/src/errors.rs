//! One table: from what went wrong to what the caller is told.
//!
//! | kind | NVMe status | do not retry | HTTP | exit code |
//! |---|---|---|---|---|
//! | invalid | Invalid Field | yes | 400 | 65 |
//! | not found | Invalid Namespace or Format | yes | 404 | 66 |
//! | no space | Capacity Exceeded | yes | 507 | 73 |
//! | corrupt | Unrecovered Read Error | yes | 500 | 74 |
//! | unavailable | Namespace Not Ready | no | 503 | 69 |
//! | internal | Internal Error | no | 500 | 70 |
//!
//! Do Not Retry is set where a repetition cannot help: a Linux host repeats a command five times
//! otherwise. It is clear where the cause can pass, so that the host waits instead of failing I/O.
//! Exit codes follow sysexits(3), except that 1 means 'could not run' and 2 'inconsistent'.

use std::fmt;

use dedup::{EngineError, ErrorKind};
use nvme::Status;
use serde::{Deserialize, Serialize};

/// Exit code of a command line that cannot be understood (EX_USAGE): clap's own 2 would read as
/// 'inconsistent' to a caller of `pool check`.
pub const EXIT_USAGE: u8 = 64;
/// Exit code of a command that could not do its work for a reason that has no kind.
pub const EXIT_FAILED: u8 = 1;
/// Exit code of `pool check` for a pool that contradicts itself, and of `perf` for wrong data.
pub const EXIT_INCONSISTENT: u8 = 2;
/// Exit code of `perf` after Ctrl-C or SIGTERM: 128 and the number of SIGINT, as shells say it.
pub const EXIT_INTERRUPTED: u8 = 130;

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

/// The HTTP status code of an engine's error.
#[must_use]
pub fn http_status(kind: ErrorKind) -> u16 {
    match kind {
        ErrorKind::Invalid => 400,
        ErrorKind::NotFound => 404,
        ErrorKind::NoSpace => 507,
        ErrorKind::Corrupt | ErrorKind::Internal => 500,
        ErrorKind::Unavailable | ErrorKind::WriteFault => 503,
    }
}

/// The exit code of an engine's error.
#[must_use]
pub fn exit_code(kind: ErrorKind) -> u8 {
    match kind {
        ErrorKind::Invalid => 65,
        ErrorKind::NotFound => 66,
        ErrorKind::NoSpace => 73,
        ErrorKind::Corrupt => 74,
        ErrorKind::Unavailable | ErrorKind::WriteFault => 69,
        ErrorKind::Internal => 70,
    }
}

/// The kind's name in the API's JSON.
#[must_use]
pub fn kind_name(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Invalid => "invalid",
        ErrorKind::NotFound => "not_found",
        ErrorKind::NoSpace => "no_space",
        ErrorKind::Corrupt => "corrupt",
        ErrorKind::WriteFault => "write_fault",
        ErrorKind::Unavailable => "unavailable",
        ErrorKind::Internal => "internal",
    }
}

/// The kind of that name; what a newer daemon may invent counts as internal.
#[must_use]
pub fn kind_from_name(name: &str) -> ErrorKind {
    [
        ErrorKind::Invalid,
        ErrorKind::NotFound,
        ErrorKind::NoSpace,
        ErrorKind::Corrupt,
        ErrorKind::WriteFault,
        ErrorKind::Unavailable,
    ]
    .into_iter()
    .find(|&kind| kind_name(kind) == name)
    .unwrap_or(ErrorKind::Internal)
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

/// An error as the API's JSON carries it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// One of the names of [`kind_name`].
    pub kind: String,
    /// For people.
    pub message: String,
}

impl From<&Failure> for ErrorBody {
    fn from(failure: &Failure) -> Self {
        Self {
            kind: kind_name(failure.kind).to_owned(),
            message: failure.message.clone(),
        }
    }
}

impl From<ErrorBody> for Failure {
    fn from(body: ErrorBody) -> Self {
        Self {
            kind: kind_from_name(&body.kind),
            message: body.message,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [ErrorKind; 7] = [
        ErrorKind::Invalid,
        ErrorKind::NotFound,
        ErrorKind::NoSpace,
        ErrorKind::Corrupt,
        ErrorKind::WriteFault,
        ErrorKind::Unavailable,
        ErrorKind::Internal,
    ];

    #[test]
    fn only_what_can_pass_may_be_retried() {
        for kind in KINDS {
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

    #[test]
    fn no_kind_exits_with_a_code_that_means_something_else() {
        for kind in KINDS {
            assert!(![0, EXIT_FAILED, EXIT_INCONSISTENT, EXIT_USAGE].contains(&exit_code(kind)));
            assert!((400..600).contains(&http_status(kind)));
        }
    }

    #[test]
    fn a_failure_survives_the_way_over_the_api() {
        for kind in KINDS {
            let failure = Failure::new(kind, "volume 'a' ...");
            assert_eq!(Failure::from(ErrorBody::from(&failure)), failure);
        }
    }
}
