//! Errors on the control interface: their HTTP status, and their JSON.
//!
//! | kind | HTTP |
//! |---|---|
//! | invalid | 400 |
//! | not found | 404 |
//! | no space | 507 |
//! | corrupt, internal | 500 |
//! | write fault, unavailable | 503 |

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use dedup::{EngineError, ErrorKind};
use serde::{Deserialize, Serialize};
use subsystem::errors::Failure;

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
    ErrorKind::ALL
        .into_iter()
        .find(|&kind| kind_name(kind) == name)
        .unwrap_or(ErrorKind::Internal)
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

/// A failure as the answer to a request.
#[derive(Debug)]
pub(crate) struct Refusal(Failure);

/// What a handler answers.
pub(crate) type Answer<T> = Result<Json<T>, Refusal>;

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        Self(failure)
    }
}

impl From<EngineError> for Refusal {
    fn from(error: EngineError) -> Self {
        Self(error.into())
    }
}

impl From<reactor::JoinError> for Refusal {
    fn from(error: reactor::JoinError) -> Self {
        Self(error.into())
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(http_status(self.0.kind))
            .unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        (status, Json(ErrorBody::from(&self.0))).into_response()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_an_error_of_http() {
        for kind in ErrorKind::ALL {
            assert!((400..600).contains(&http_status(kind)));
        }
    }

    #[test]
    fn a_failure_survives_the_way_over_the_api() {
        for kind in ErrorKind::ALL {
            let failure = Failure::new(kind, "volume 'a' ...");
            assert_eq!(Failure::from(ErrorBody::from(&failure)), failure);
        }
    }
}
