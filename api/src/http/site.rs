//! Which requests belong here, and what browsers may do with the answers.

use std::net::IpAddr;

use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, HOST, HeaderName, HeaderValue, ORIGIN, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::http::uri::Authority;
use axum::http::{Request, StatusCode};
use axum::response::{IntoResponse, Response};

/// What browsers are told with every answer: no frames, no guessing of types, nothing of other origins, nothing kept.
const HEADERS: [(HeaderName, &str); 6] = [
    (
        CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
    ),
    (X_FRAME_OPTIONS, "DENY"),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (REFERRER_POLICY, "no-referrer"),
    (CACHE_CONTROL, "no-store"),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    ),
];

/// The names of this machine.
#[derive(Debug)]
pub(super) struct Site {
    names: Vec<String>,
}

/// Why a request is refused.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Stranger {
    /// It names no host, or more than one.
    NoHost,
    /// It is for a host that this machine is not known as.
    Host(String),
    /// A page of another origin sent it.
    Origin(String),
}

impl Site {
    /// A site of these names; `localhost` and addresses are always known.
    pub(super) fn new(names: Vec<String>) -> Self {
        let mut names: Vec<String> = names.iter().map(|name| name.to_ascii_lowercase()).collect();
        names.push("localhost".to_owned());
        Self { names }
    }

    /// Whether a request is for this site, and from it.
    pub(super) fn admit<B>(&self, request: &Request<B>) -> Result<(), Stranger> {
        let mut hosts = request.headers().get_all(HOST).iter();
        let host = hosts.next().ok_or(Stranger::NoHost)?;
        if hosts.next().is_some() {
            return Err(Stranger::NoHost);
        }
        let authority = host.to_str().ok().and_then(|host| host.parse().ok());
        let authority: Authority = authority.ok_or(Stranger::NoHost)?;
        if !self.is_known(authority.host()) {
            return Err(Stranger::Host(authority.host().to_owned()));
        }
        for origin in request.headers().get_all(ORIGIN) {
            let of = origin.to_str().ok().and_then(|text| text.split_once("://"));
            if of.is_none_or(|(_, of)| !of.eq_ignore_ascii_case(authority.as_str())) {
                let origin = String::from_utf8_lossy(origin.as_bytes()).into_owned();
                return Err(Stranger::Origin(origin));
            }
        }
        Ok(())
    }

    fn is_known(&self, host: &str) -> bool {
        let literal = host.trim_start_matches('[').trim_end_matches(']');
        literal.parse::<IpAddr>().is_ok()
            || self
                .names
                .iter()
                .any(|name| name.eq_ignore_ascii_case(host))
    }
}

impl IntoResponse for Stranger {
    fn into_response(self) -> Response {
        let (status, why) = match self {
            Self::NoHost => (
                StatusCode::BAD_REQUEST,
                "the request names no host, or more than one".to_owned(),
            ),
            Self::Host(host) => (
                StatusCode::MISDIRECTED_REQUEST,
                format!(
                    "this daemon is not known as '{host}': use its address, or start it with --http-name {host}"
                ),
            ),
            Self::Origin(origin) => (
                StatusCode::FORBIDDEN,
                format!("requests of pages of '{origin}' are not answered"),
            ),
        };
        (status, why + "\n").into_response()
    }
}

/// The answer with what browsers are told.
pub(super) fn guarded(mut answer: Response) -> Response {
    for (name, value) in HEADERS {
        answer
            .headers_mut()
            .insert(name, HeaderValue::from_static(value));
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admitted(headers: &[(&str, &str)]) -> Result<(), Stranger> {
        let mut request = Request::builder().uri("/metrics");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let site = Site::new(vec!["Store.example.org".to_owned()]);
        site.admit(&request.body(()).expect("a request"))
    }

    #[test]
    fn a_request_is_for_an_address_or_a_name_of_this_machine() {
        for host in [
            "127.0.0.1:8420",
            "[::1]:8420",
            "192.0.2.7",
            "localhost:8420",
            "store.EXAMPLE.org",
        ] {
            assert_eq!(admitted(&[("host", host)]), Ok(()), "{host}");
        }
        for host in [
            "evil.example:8420",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
        ] {
            let refused = admitted(&[("host", host)]);
            assert!(matches!(refused, Err(Stranger::Host(_))), "{host}");
        }
        for headers in [
            &[][..],
            &[("host", "")],
            &[("host", "a b")],
            &[("host", "127.0.0.1"), ("host", "127.0.0.1")],
        ] {
            assert_eq!(admitted(headers), Err(Stranger::NoHost), "{headers:?}");
        }
    }

    #[test]
    fn pages_of_other_origins_get_no_answer() {
        let from = |origin| admitted(&[("host", "127.0.0.1:8420"), ("origin", origin)]);
        assert_eq!(from("http://127.0.0.1:8420"), Ok(()));
        for origin in [
            "null",
            "http://evil.example",
            "http://127.0.0.1:80",
            "http://localhost:8420",
        ] {
            assert_eq!(from(origin), Err(Stranger::Origin(origin.into())));
        }
    }
}
