//! Errors of drives and of metadata, as people and programs are told of them.

use dedup::ErrorKind;
use drives::DriveError;
use meta::{MetaError, MetaErrorKind};
use subsystem::errors::Failure;

pub(crate) fn of_meta(error: MetaError) -> Failure {
    if error.kind() == MetaErrorKind::NoSpace {
        return Failure::new(ErrorKind::NoSpace, error.to_string());
    }
    dedup::EngineError::from(error).into()
}

pub(crate) fn of_drive(error: DriveError) -> Failure {
    let kind = match error.kind() {
        drives::ErrorKind::Invalid => ErrorKind::Invalid,
        drives::ErrorKind::NotFound => ErrorKind::NotFound,
        drives::ErrorKind::Truncated => ErrorKind::Corrupt,
        drives::ErrorKind::NoSpace => ErrorKind::NoSpace,
        drives::ErrorKind::InUse | drives::ErrorKind::Unreachable | drives::ErrorKind::Io => {
            ErrorKind::Unavailable
        }
    };
    Failure::new(kind, error.to_string())
}
