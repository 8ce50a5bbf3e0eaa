//! Who is let in.
//!
//! Guarantees:
//! - Who comes by the pool's socket is known by the kernel: root and the daemon's own user are administrators, others
//!   (the group that may use the socket) may operate. Who comes by TCP shows a token with every request
//!   (`Authorization: Bearer TOKEN`), and has the role of that token; without one only what any program of this machine
//!   may read.
//! - What is not in the list of operations is answered to nobody.
//! - What a caller is refused says what it would need, and nothing of what is there. A wrong token is answered slowly.

use std::net::IpAddr;

use axum::Json;
use axum::extract::connect_info::ConnectInfo;
use axum::extract::{MatchedPath, Request, State};
use axum::http::StatusCode;
use axum::http::header::{ALLOW, AUTHORIZATION, WWW_AUTHENTICATE};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::caller::{Caller, Peer};
use crate::errors::ErrorBody;
use crate::operations::{self, Right};
use crate::refused::{PAUSE, count};
use crate::server::ApiState;
use crate::tokens::{self, Role, Shown};

/// What proxies say of whom they ask for.
const PASSED_ON: [&str; 4] = ["forwarded", "x-forwarded-for", "x-real-ip", "via"];

/// Why a request is not answered.
#[derive(Debug)]
enum Denied {
    /// It shows no token.
    NoToken,
    /// The token that it shows is none.
    WrongToken,
    /// The token was good once.
    Expired(String),
    /// That caller has another role.
    Role(Caller, Role, Role),
    /// The kernel does not say who is at the other end of the socket.
    Nobody,
    /// Nothing has that path.
    Path,
    /// The path has other methods.
    Method(String),
}

impl IntoResponse for Denied {
    fn into_response(self) -> Response {
        let (status, kind, message) = match &self {
            Self::NoToken => (
                StatusCode::UNAUTHORIZED,
                "unauthenticated",
                "this needs a token: make one with `onefold token create NAME`, and send it as \
                 'Authorization: Bearer TOKEN'"
                    .to_owned(),
            ),
            Self::WrongToken => (
                StatusCode::UNAUTHORIZED,
                "unauthenticated",
                "there is no such token: `onefold token list` shows those that there are"
                    .to_owned(),
            ),
            Self::Expired(name) => (
                StatusCode::UNAUTHORIZED,
                "unauthenticated",
                format!(
                    "the token '{name}' has expired: make a new one with `onefold token create`"
                ),
            ),
            Self::Role(caller, has, needs) => (
                StatusCode::FORBIDDEN,
                "forbidden",
                format!("the {caller} has the role '{has}', and this needs '{needs}'"),
            ),
            Self::Nobody => (
                StatusCode::FORBIDDEN,
                "forbidden",
                "the kernel does not say who asks: ask as root or as the daemon's user".to_owned(),
            ),
            Self::Path => (
                StatusCode::NOT_FOUND,
                "not_found",
                "the API has no such path".to_owned(),
            ),
            Self::Method(allowed) => (
                StatusCode::METHOD_NOT_ALLOWED,
                "invalid",
                format!("this path has the methods {allowed}"),
            ),
        };
        let body = ErrorBody {
            kind: kind.to_owned(),
            message,
        };
        let mut answer = (status, Json(body)).into_response();
        let header = match self {
            Self::NoToken | Self::WrongToken | Self::Expired(_) => {
                Some((WWW_AUTHENTICATE, "Bearer".to_owned()))
            }
            Self::Method(allowed) => Some((ALLOW, allowed)),
            Self::Role(..) | Self::Nobody | Self::Path => None,
        };
        if let Some((name, value)) = header
            && let Ok(value) = value.parse()
        {
            answer.headers_mut().insert(name, value);
        }
        answer
    }
}

/// Lets a request through that may be.
pub(crate) async fn admit(
    State(state): State<ApiState>,
    mut request: Request,
    next: Next,
) -> Response {
    // Nobody has a right to a path that nobody routes: nothing but this answers it.
    let Some(path) = request.extensions().get::<MatchedPath>() else {
        return Denied::Path.into_response();
    };
    let path = path.as_str().to_owned();
    match caller(&state, &request, &path) {
        Ok((caller, role)) => {
            request.extensions_mut().insert(ConnectInfo(caller));
            request.extensions_mut().insert(role);
        }
        Err(denied) => {
            if matches!(denied, Denied::WrongToken) {
                tokio::time::sleep(PAUSE).await;
            }
            return denied.into_response();
        }
    }
    next.run(request).await
}

/// Who asks, and in which role, if that caller may.
fn caller(state: &ApiState, request: &Request, path: &str) -> Result<(Caller, Role), Denied> {
    let operation = operations::find(request.method(), path)
        .ok_or_else(|| Denied::Method(operations::methods(path)))?;
    let refused = &state.refused;
    let came_by = request.extensions();
    let (caller, has, needed) = match came_by.get::<Peer>() {
        Some(Peer(peer)) => {
            let Some(needed) = needed(operation.right, request, peer.ip()) else {
                return Ok((Caller::Unknown, Role::Read));
            };
            let text = bearer(request).ok_or_else(|| {
                count(&refused.no_token);
                Denied::NoToken
            })?;
            match tokens::look(&state.engine, text) {
                Shown::Known(name, role) => (Caller::Token { name, peer: *peer }, role, needed),
                Shown::Expired(name) => {
                    count(&refused.expired_token);
                    tracing::warn!(%peer, token = name, "a token was refused: it has expired");
                    return Err(Denied::Expired(name));
                }
                Shown::Unknown => {
                    refused.wrong_token(peer.ip());
                    return Err(Denied::WrongToken);
                }
            }
        }
        None => {
            let caller = came_by.get::<ConnectInfo<Caller>>();
            let caller = caller.ok_or(Denied::NoToken)?.0.clone();
            let Caller::Process { uid, .. } = caller else {
                return Err(Denied::Nobody);
            };
            let needed = match operation.right {
                Right::Anybody => Role::Read,
                Right::Local(role) | Right::Of(role) => role,
            };
            (
                caller,
                role_of(uid, rustix::process::geteuid().as_raw()),
                needed,
            )
        }
    };
    if has < needed {
        count(&refused.role);
        tracing::warn!(event = "refused", who = %caller, asked = %path, "a request was refused: its role is '{has}'");
        return Err(Denied::Role(caller, has, needed));
    }
    Ok((caller, has))
}

/// What a user may do by the socket, whose file lets nobody else in than these and its group.
fn role_of(uid: u32, daemon: u32) -> Role {
    match uid == 0 || uid == daemon {
        true => Role::Admin,
        false => Role::Operate,
    }
}

/// The role that a request from an address needs; `None` if it needs no token. What a proxy of this machine passes on
/// comes from somewhere else.
fn needed(right: Right, request: &Request, from: IpAddr) -> Option<Role> {
    let is_passed_on = PASSED_ON
        .iter()
        .any(|it| request.headers().contains_key(*it));
    match right {
        Right::Anybody => None,
        Right::Local(_) if from.to_canonical().is_loopback() && !is_passed_on => None,
        Right::Local(role) | Right::Of(role) => Some(role),
    }
}

/// The token that a request shows.
fn bearer(request: &Request) -> Option<&str> {
    let header = request.headers().get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = header.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(headers: &[(&str, &str)]) -> Request {
        let add = |request: axum::http::request::Builder, (name, value): &(&str, &str)| {
            request.header(*name, *value)
        };
        let request = headers.iter().fold(Request::builder(), add);
        request.body(axum::body::Body::empty()).expect("a request")
    }

    #[test]
    fn what_is_told_without_a_token_is_told_to_this_machine_only_and_the_page_to_anybody() {
        let address = |text: &str| -> IpAddr { text.parse().expect("an address") };
        let plain = request(&[]);
        for here in ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"] {
            let asked = |right, request: &Request| needed(right, request, address(here));
            assert_eq!(asked(Right::Local(Role::Read), &plain), None);
            let of = asked(Right::Of(Role::Read), &plain);
            assert_eq!(of, Some(Role::Read), "{here}");
            // A proxy of this machine asks for somebody else.
            for header in PASSED_ON {
                let passed_on = request(&[(header, "192.0.2.7")]);
                let local = asked(Right::Local(Role::Read), &passed_on);
                assert_eq!(local, Some(Role::Read), "{here} {header}");
            }
        }
        for far in ["192.0.2.7", "0.0.0.0", "2001:db8::1", "::ffff:192.0.2.7"] {
            let local = needed(Right::Local(Role::Read), &plain, address(far));
            assert_eq!(local, Some(Role::Read), "{far}");
            assert_eq!(needed(Right::Anybody, &plain, address(far)), None, "{far}");
        }
    }

    #[test]
    fn by_the_socket_root_and_the_daemons_user_administer_and_its_group_operates() {
        assert_eq!(role_of(0, 990), Role::Admin);
        assert_eq!(role_of(990, 990), Role::Admin);
        assert_eq!(role_of(1000, 990), Role::Operate);
        assert_eq!(role_of(1000, 0), Role::Operate);
    }

    #[test]
    fn only_a_bearer_shows_a_token() {
        for (header, token) in [
            ("Bearer abc", Some("abc")),
            ("bearer  abc ", Some("abc")),
            ("Bearer ", None),
            ("Bearer", None),
            ("Basic abc", None),
            ("abc", None),
        ] {
            let request = request(&[("authorization", header)]);
            assert_eq!(bearer(&request), token, "{header}");
        }
    }
}
