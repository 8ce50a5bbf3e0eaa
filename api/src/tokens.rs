//! Tokens: what a caller over HTTP shows to be let in, and what it may do then.
//!
//! | request | answer |
//! |---|---|
//! | `GET /v1/tokens` | list of [`TokenView`] |
//! | `POST /v1/tokens` with [`CreateToken`] | [`TokenView`] |
//! | `DELETE /v1/tokens/NAME` | the [`TokenView`] that it was |
//! | `GET /v1/caller` | [`CallerView`]: who asks |
//!
//! Guarantees:
//! - The daemon never has a token to give away: who makes one keeps it, and sends its hash. A hash is enough to know a
//!   token again, and too little to make one: a token is 256 random bits, so that its hash cannot be guessed back.
//! - Whether a token is known takes the same time for every wrong one.
//! - An expired token, and one that was removed, is refused from the next request on.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::extract::State;
use axum::extract::connect_info::ConnectInfo;
use axum::routing::{delete, get};
use axum::{Extension, Json, Router};
use dedup::{Engine, ErrorKind};
use hyper::Method;
use openssl::memcmp;
use openssl::sha::sha256;
use serde::{Deserialize, Serialize};
use subsystem::errors::Failure;

use crate::caller::Caller;
use crate::client::{Client, segment};
use crate::errors::Answer;
use crate::extract::{Body, Path};
use crate::server::{ApiState, on_control};

/// Tokens of a pool.
const TOKENS_MAX: usize = 100;
/// Characters of a name.
const NAME_CHARS_MAX: usize = 64;
/// The settings that tokens are kept in: `token/NAME`.
const KEPT: &str = "token/";
/// The form of these settings.
const VERSION: u32 = 1;
/// What a token begins with, so that people and programs that look for leaked secrets know it.
const BEGINNING: &str = "onefold_";
/// Random bytes of a token.
const SECRET_BYTES: usize = 32;
/// The longest life of a token that expires: a hundred years.
const LIFETIME_MAX: u64 = 100 * 365 * 86_400;

/// What a caller may do. Each role may do what those before it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Look at everything but tokens.
    Read,
    /// Make and attach volumes, scrub, check: what takes nothing from anybody.
    Operate,
    /// Everything.
    Admin,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Operate => "operate",
            Self::Admin => "admin",
        })
    }
}

/// A token as the API shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenView {
    /// Its name.
    pub name: String,
    /// What its bearer may do.
    pub role: Role,
    /// When it was made, in seconds since 1970.
    pub created_seconds: u64,
    /// When it ends, in seconds since 1970; `null` if it does not.
    pub expires_seconds: Option<u64>,
    /// Whether it has ended.
    pub expired: bool,
}

/// Who asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallerView {
    /// The token, or the user and the process at the other end of the socket.
    pub name: String,
    /// What the caller may do.
    pub role: Role,
}

/// A new token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CreateToken {
    /// Up to 64 of a-z A-Z 0-9 . _ -
    pub name: String,
    /// What its bearer may do.
    pub role: Role,
    /// The SHA-256 of the token's text, as 64 hexadecimal digits.
    pub sha256: String,
    /// How long it counts, in seconds; for ever if it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lifetime_seconds: Option<u64>,
}

/// A token that was just made. Nobody but its holder has it.
pub struct Secret(String);

impl Secret {
    /// A token that nobody can guess.
    #[must_use]
    pub fn random() -> Self {
        let bytes = subsystem::auth::random::<SECRET_BYTES>();
        Self(format!("{BEGINNING}{}", hex(&bytes)))
    }

    /// Its text, to be shown once.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.0
    }

    /// What the daemon is told of it.
    #[must_use]
    pub fn hash(&self) -> String {
        hash_of(&self.0)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn hash_of(token: &str) -> String {
    hex(&sha256(token.as_bytes()))
}

/// A token as it is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Kept {
    version: u32,
    role: Role,
    sha256: String,
    /// Seconds since 1970.
    created: u64,
    expires: Option<u64>,
}

impl Kept {
    fn is_expired(&self, now: u64) -> bool {
        self.expires.is_some_and(|expires| expires <= now)
    }

    fn view(&self, name: &str, now: u64) -> TokenView {
        TokenView {
            name: name.to_owned(),
            role: self.role,
            created_seconds: self.created,
            expires_seconds: self.expires,
            expired: self.is_expired(now),
        }
    }
}

/// Seconds since 1970.
#[must_use]
pub fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// The tokens of a pool, by name. One that a newer version keeps in another form is nobody's: it lets nobody in.
fn kept(engine: &Engine) -> Vec<(String, Kept)> {
    let parse = |(key, value): (String, std::sync::Arc<[u8]>)| {
        let name = key.strip_prefix(KEPT)?.to_owned();
        let kept: Kept = serde_json::from_slice(&value).ok()?;
        (kept.version == VERSION).then_some((name, kept))
    };
    let settings = engine.settings(KEPT);
    settings.into_iter().filter_map(parse).collect()
}

/// The tokens of a pool as they are shown.
pub(crate) fn views(engine: &Engine) -> Vec<TokenView> {
    let now = now();
    let kept = kept(engine);
    kept.iter()
        .map(|(name, kept)| kept.view(name, now))
        .collect()
}

/// What a text that is shown as a token is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Shown {
    /// The token of that name.
    Known(String, Role),
    /// The token of that name, too late.
    Expired(String),
    /// No token.
    Unknown,
}

/// Looks for a token.
pub(crate) fn look(engine: &Engine, text: &str) -> Shown {
    find(&kept(engine), text, now())
}

fn find(tokens: &[(String, Kept)], text: &str, now: u64) -> Shown {
    let hash = hash_of(text);
    let mut shown = Shown::Unknown;
    // All are compared, so that the time tells nothing of which one was almost right.
    for (name, kept) in tokens {
        let is_same_length = kept.sha256.len() == hash.len();
        if is_same_length && memcmp::eq(kept.sha256.as_bytes(), hash.as_bytes()) {
            shown = match kept.is_expired(now) {
                true => Shown::Expired(name.clone()),
                false => Shown::Known(name.clone(), kept.role),
            };
        }
    }
    shown
}

/// The routes.
pub(crate) fn routes() -> Router<ApiState> {
    Router::new()
        .route("/v1/tokens", get(list).post(create))
        .route("/v1/tokens/{name}", delete(remove))
        .route("/v1/caller", get(caller))
}

async fn caller(
    Extension(ConnectInfo(caller)): Extension<ConnectInfo<Caller>>,
    Extension(role): Extension<Role>,
) -> Json<CallerView> {
    let name = caller.to_string();
    Json(CallerView { name, role })
}

async fn list(State(state): State<ApiState>) -> Json<Vec<TokenView>> {
    Json(views(&state.engine))
}

async fn create(
    State(state): State<ApiState>,
    Body(request): Body<CreateToken>,
) -> Answer<TokenView> {
    check(&request)?;
    let CreateToken {
        name,
        role,
        sha256,
        lifetime_seconds,
    } = request;
    let created = now();
    let token = Kept {
        version: VERSION,
        role,
        sha256,
        created,
        expires: lifetime_seconds.map(|seconds| created.saturating_add(seconds)),
    };
    let key = format!("{KEPT}{name}");
    if state.engine.setting(&key).is_some() {
        let why = format!("there is a token '{name}': remove it first, or choose another name");
        return Err(Failure::invalid(why).into());
    }
    if state.engine.settings_count(KEPT) >= TOKENS_MAX {
        let why = format!("there are {TOKENS_MAX} tokens: remove those that nobody uses");
        return Err(Failure::invalid(why).into());
    }
    let view = token.view(&name, created);
    let value = serde_json::to_vec(&token).map_err(|e| Failure::invalid(e.to_string()))?;
    change(&state, key, Some(value)).await?;
    Ok(Json(view))
}

fn check(request: &CreateToken) -> Result<(), Failure> {
    let name = &request.name;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
    if !(1..=NAME_CHARS_MAX).contains(&name.len()) || !name.chars().all(is_plain) {
        return Err(Failure::invalid(format!(
            "'{name}' cannot be the name of a token: use 1 to 64 of a-z A-Z 0-9 . _ -"
        )));
    }
    let hash = &request.sha256;
    let is_hex = |c: char| matches!(c, '0'..='9' | 'a'..='f');
    if hash.len() != 64 || !hash.chars().all(is_hex) {
        return Err(Failure::invalid(
            "sha256 must be the hash of the token: 64 digits of 0-9 a-f",
        ));
    }
    let lifetimes = 1..=LIFETIME_MAX;
    if request
        .lifetime_seconds
        .is_some_and(|it| !lifetimes.contains(&it))
    {
        return Err(Failure::invalid(
            "a token that expires lives for a second to a hundred years",
        ));
    }
    Ok(())
}

async fn remove(State(state): State<ApiState>, Path(name): Path<String>) -> Answer<TokenView> {
    let tokens = views(&state.engine);
    let token = tokens.into_iter().find(|token| token.name == name);
    let view = token.ok_or_else(|| {
        let why = format!("there is no token '{name}': `onefold token list` shows them");
        Failure::new(ErrorKind::NotFound, why)
    })?;
    change(&state, format!("{KEPT}{name}"), None).await?;
    Ok(Json(view))
}

async fn change(state: &ApiState, key: String, value: Option<Vec<u8>>) -> Result<(), Failure> {
    let engine = state.engine.clone();
    let work = move || async move { engine.change_settings(vec![(key, value)]).await };
    on_control(state, work).await
}

impl Client {
    /// The tokens.
    ///
    /// # Errors
    /// No daemon serves the pool.
    pub async fn tokens(&self) -> Result<Vec<TokenView>, Failure> {
        self.get("/v1/tokens").await
    }

    /// Makes a token known.
    ///
    /// # Errors
    /// There is one of that name, there are too many, or no daemon serves the pool.
    pub async fn create_token(&self, request: &CreateToken) -> Result<TokenView, Failure> {
        self.send(Method::POST, "/v1/tokens", Some(request)).await
    }

    /// Removes a token; returns what it was.
    ///
    /// # Errors
    /// There is none of that name, or no daemon serves the pool.
    pub async fn remove_token(&self, name: &str) -> Result<TokenView, Failure> {
        let path = format!("/v1/tokens/{}", segment(name));
        self.send(Method::DELETE, &path, None::<&()>).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(secret: &Secret, role: Role, expires: Option<u64>) -> Kept {
        Kept {
            version: VERSION,
            role,
            sha256: secret.hash(),
            created: 1,
            expires,
        }
    }

    #[test]
    fn a_token_is_known_by_its_whole_text_until_it_expires() {
        let (read, admin) = (Secret::random(), Secret::random());
        let tokens = [
            ("prometheus".to_owned(), token(&read, Role::Read, None)),
            ("ann".to_owned(), token(&admin, Role::Admin, Some(100))),
        ];
        let shown = |text: &str, now| find(&tokens, text, now);
        assert_eq!(
            shown(read.text(), 1000),
            Shown::Known("prometheus".into(), Role::Read)
        );
        assert_eq!(
            shown(admin.text(), 99),
            Shown::Known("ann".into(), Role::Admin)
        );
        assert_eq!(shown(admin.text(), 100), Shown::Expired("ann".into()));
        let text = read.text();
        for wrong in ["", "onefold_", &text[..text.len() - 1], &admin.hash()] {
            assert_eq!(shown(wrong, 1), Shown::Unknown, "{wrong}");
        }
    }

    #[test]
    fn a_token_has_256_bits_and_does_not_show_itself() {
        let secret = Secret::random();
        assert_eq!(secret.text().len(), BEGINNING.len() + 64);
        assert_ne!(secret.text(), Secret::random().text());
        assert_eq!(format!("{secret:?}"), "Secret");
    }

    #[test]
    fn what_cannot_be_a_token_is_refused_by_what_is_wrong() {
        let right = CreateToken {
            name: "a".into(),
            role: Role::Read,
            sha256: Secret::random().hash(),
            lifetime_seconds: Some(1),
        };
        assert_eq!(check(&right), Ok(()));
        let refused = |request| check(&request).expect_err("it is wrong").message;
        for name in ["", "a/b", "a b", "é", &"a".repeat(65)] {
            let name = name.to_owned();
            let request = CreateToken {
                name,
                ..right.clone()
            };
            assert!(refused(request).contains("name of a token"));
        }
        for sha256 in ["", "ab", &"A".repeat(64), &"g".repeat(64)] {
            let sha256 = sha256.to_owned();
            let request = CreateToken {
                sha256,
                ..right.clone()
            };
            assert!(refused(request).contains("sha256"));
        }
        for seconds in [0, u64::MAX] {
            let lifetime_seconds = Some(seconds);
            let request = CreateToken {
                lifetime_seconds,
                ..right.clone()
            };
            assert!(refused(request).contains("a hundred years"));
        }
    }
}
