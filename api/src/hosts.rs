//! Hosts and their keys.
//!
//! | request | answer |
//! |---|---|
//! | `GET /v1/hosts` | list of [`HostView`] |
//! | `POST /v1/hosts` with [`CreateHost`] | [`HostView`] |
//! | `GET /v1/hosts/NQN` | [`HostView`] |
//! | `PATCH /v1/hosts/NQN` with [`SetHost`] | [`HostView`] |
//! | `DELETE /v1/hosts/NQN` | the [`HostView`] that it was |
//! | `POST /v1/hosts/NQN/tls-keys` with [`AddTlsKey`] | [`TlsKeyView`]; a host that is not known becomes so |
//! | `DELETE /v1/hosts/NQN/tls-keys/ID` | the [`TlsKeyView`] that it was |
//!
//! Guarantee: answers contain no secret, only whether there is one, and its hash.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::extract::State;
use axum::routing::{get, post};
use axum::{Json, Router};
use dedup::ErrorKind;
use hyper::Method;
use nvme::Nqn;
use nvme::auth::{ConfiguredPsk, Group, Hash, Secret};
use serde::{Deserialize, Serialize};
use subsystem::catalog::{Catalog, HostAuth, HostConfig, TLS_KEYS_MAX, TlsKey};
use subsystem::errors::Failure;

use crate::client::{Client, segment};
use crate::errors::Answer;
use crate::extract::{Body, Path, given};
use crate::server::{ApiState, change, check_new, parse_nqn};

/// A host as the API shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostView {
    /// Its name.
    pub nqn: Nqn,
    /// The hash of its secret (`none` for an untransformed secret); `null` if it has none and need not authenticate.
    pub dhchap_secret: Option<String>,
    /// What tells the secret from another without showing it: the first 16 hexadecimal digits of the SHA-256 of the secret as it
    /// is written (`printf %s SECRET | sha256sum`); `null` without one.
    #[serde(default)]
    pub dhchap_secret_fingerprint: Option<String>,
    /// Since when the host has that secret: RFC 3339 in UTC; `null` if that was not noted.
    #[serde(default)]
    pub dhchap_secret_since: Option<String>,
    /// The same of the controller's secret.
    pub dhchap_ctrl_secret: Option<String>,
    /// The same.
    #[serde(default)]
    pub dhchap_ctrl_secret_fingerprint: Option<String>,
    /// The same.
    #[serde(default)]
    pub dhchap_ctrl_secret_since: Option<String>,
    /// Hashes to negotiate, the preferred one first; empty for all.
    pub dhchap_hashes: Vec<String>,
    /// The same of Diffie-Hellman groups.
    pub dhchap_groups: Vec<String>,
    /// Its TLS keys, the newest one last.
    #[serde(default)]
    pub tls_keys: Vec<TlsKeyView>,
    /// As [`SetHost::tls_only`].
    #[serde(default)]
    pub tls_only: bool,
}

/// A TLS key as the API shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TlsKeyView {
    /// Its number among those of its host; numbers are not reused.
    pub id: u32,
    /// The hash of the cipher suite that it is for: `sha256` or `sha384`.
    pub hash: String,
    /// As [`AddTlsKey::compat`].
    pub compat: bool,
    /// As [`HostView::dhchap_secret_fingerprint`].
    #[serde(default)]
    pub fingerprint: String,
    /// As [`HostView::dhchap_secret_since`].
    #[serde(default)]
    pub since: Option<String>,
}

/// The fingerprint of a secret as it is written. Secrets are random bits, 256 or more: nobody finds one by its fingerprint.
fn fingerprint(written: &str) -> String {
    let digest = openssl::sha::sha256(written.as_bytes());
    let digits = digest.iter().take(8).map(|byte| format!("{byte:02x}"));
    digits.collect()
}

/// A time in seconds since 1970 as people read it.
fn time(since: Option<u64>) -> Option<String> {
    since.map(|seconds| dedup::rfc3339(UNIX_EPOCH + Duration::from_secs(seconds)))
}

/// The time, in seconds since 1970.
pub(crate) fn now() -> Option<u64> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.ok().map(|since| since.as_secs())
}

impl TlsKeyView {
    fn new(key: &TlsKey) -> Self {
        Self {
            id: key.id,
            hash: key.psk.hash().to_string(),
            compat: key.compat,
            fingerprint: fingerprint(&key.psk.to_text()),
            since: time(key.since),
        }
    }
}

/// A TLS key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddTlsKey {
    /// The key: `NVMeTLSkey-1:HH:BASE64:`.
    pub key: SecretText,
    /// The host's nvme-cli is older than 2.14 and derives keys of version 0 in its own way.
    #[serde(default)]
    pub compat: bool,
}

/// A secret in a request: `DHHC-1:HH:BASE64:`, or a TLS key.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SecretText(pub String);

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretText")
    }
}

/// A change of a host. Fields that are left out stay; `null` deletes a secret.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetHost {
    /// The host's secret: with it, the host has to authenticate.
    #[serde(
        default,
        deserialize_with = "given",
        skip_serializing_if = "Option::is_none"
    )]
    pub dhchap_secret: Option<Option<SecretText>>,
    /// The controller's secret, for hosts that authenticate the controller too.
    #[serde(
        default,
        deserialize_with = "given",
        skip_serializing_if = "Option::is_none"
    )]
    pub dhchap_ctrl_secret: Option<Option<SecretText>>,
    /// Hashes to negotiate, the preferred one first; empty for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dhchap_hashes: Option<Vec<String>>,
    /// The same of Diffie-Hellman groups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dhchap_groups: Option<Vec<String>>,
    /// The host must use TLS, except with the discovery subsystem, and to have a TLS key made at a listener that allows
    /// both. Its associations without TLS end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls_only: Option<bool>,
}

/// A new host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreateHost {
    /// Its name.
    pub nqn: Nqn,
    /// Its keys.
    #[serde(flatten)]
    pub set: SetHost,
}

/// The routes.
pub(crate) fn routes() -> Router<ApiState> {
    Router::new()
        .route("/v1/hosts", get(list).post(create))
        .route("/v1/hosts/{nqn}", get(show).patch(set).delete(delete))
        .route("/v1/hosts/{nqn}/tls-keys", post(add_tls_key))
        .route(
            "/v1/hosts/{nqn}/tls-keys/{id}",
            axum::routing::delete(remove_tls_key),
        )
}

/// What is shown of a host: no secrets.
pub(crate) fn view(host: &HostConfig) -> HostView {
    let hash = |secret: &Option<Secret>| {
        let secret = secret.as_ref()?;
        let name = secret.transform().map_or("none", Hash::name);
        Some(name.to_owned())
    };
    let print = |secret: &Option<Secret>| Some(fingerprint(&secret.as_ref()?.to_text()));
    let auth = &host.auth;
    HostView {
        nqn: host.nqn.clone(),
        dhchap_secret: hash(&auth.dhchap_secret),
        dhchap_secret_fingerprint: print(&auth.dhchap_secret),
        dhchap_secret_since: time(auth.dhchap_secret_since),
        dhchap_ctrl_secret: hash(&auth.dhchap_ctrl_secret),
        dhchap_ctrl_secret_fingerprint: print(&auth.dhchap_ctrl_secret),
        dhchap_ctrl_secret_since: time(auth.dhchap_ctrl_secret_since),
        dhchap_hashes: auth.dhchap_hashes.iter().map(Hash::to_string).collect(),
        dhchap_groups: auth.dhchap_groups.iter().map(Group::to_string).collect(),
        tls_keys: auth.tls_keys.iter().map(TlsKeyView::new).collect(),
        tls_only: auth.tls_only,
    }
}

fn not_found(nqn: &Nqn) -> Failure {
    Failure::new(
        ErrorKind::NotFound,
        format!("host {nqn} has no stored keys; `onefold host list` shows those that have"),
    )
}

fn host_of<'a>(catalog: &'a Catalog, nqn: &Nqn) -> Result<&'a Arc<HostConfig>, Failure> {
    catalog.hosts.get(nqn).ok_or_else(|| not_found(nqn))
}

async fn list(State(state): State<ApiState>) -> Json<Vec<HostView>> {
    let catalog = state.target.catalog();
    Json(catalog.hosts.values().map(|host| view(host)).collect())
}

async fn show(State(state): State<ApiState>, Path(nqn): Path<String>) -> Answer<HostView> {
    let catalog = state.target.catalog();
    Ok(Json(view(host_of(&catalog, &parse_nqn(&nqn)?)?)))
}

async fn create(
    State(state): State<ApiState>,
    Body(CreateHost { nqn, set }): Body<CreateHost>,
) -> Answer<HostView> {
    check_new([&nqn])?;
    let view = change(&state, move |catalog| {
        if catalog.hosts.contains_key(&nqn) {
            return Err(Failure::invalid(format!(
                "host {nqn} has stored keys already; change them with `onefold host set`"
            )));
        }
        let mut host = HostConfig {
            nqn: nqn.clone(),
            auth: HostAuth::default(),
        };
        apply(set, &mut host.auth)?;
        let view = view(&host);
        catalog.hosts.insert(nqn, Arc::new(host));
        Ok(view)
    });
    Ok(Json(view.await?))
}

async fn set(
    State(state): State<ApiState>,
    Path(nqn): Path<String>,
    Body(set): Body<SetHost>,
) -> Answer<HostView> {
    let nqn = parse_nqn(&nqn)?;
    let view = change(&state, move |catalog| {
        let mut host = HostConfig::clone(host_of(catalog, &nqn)?);
        apply(set, &mut host.auth)?;
        let view = view(&host);
        catalog.hosts.insert(nqn, Arc::new(host));
        Ok(view)
    });
    Ok(Json(view.await?))
}

async fn delete(State(state): State<ApiState>, Path(nqn): Path<String>) -> Answer<HostView> {
    let nqn = parse_nqn(&nqn)?;
    let removed = change(&state, move |catalog| {
        catalog.hosts.remove(&nqn).ok_or_else(|| not_found(&nqn))
    });
    Ok(Json(view(&*removed.await?)))
}

async fn add_tls_key(
    State(state): State<ApiState>,
    Path(nqn): Path<String>,
    Body(request): Body<AddTlsKey>,
) -> Answer<TlsKeyView> {
    let nqn = parse_nqn(&nqn)?;
    check_new([&nqn])?;
    let added = change(&state, move |catalog| {
        let host = catalog.hosts.entry(nqn.clone()).or_insert_with(|| {
            Arc::new(HostConfig {
                nqn,
                auth: HostAuth::default(),
            })
        });
        add_key(&mut Arc::make_mut(host).auth, &request)
    });
    Ok(Json(added.await?))
}

async fn remove_tls_key(
    State(state): State<ApiState>,
    Path((nqn, id)): Path<(String, u32)>,
) -> Answer<TlsKeyView> {
    let nqn = parse_nqn(&nqn)?;
    let removed = change(&state, move |catalog| {
        let host = catalog.hosts.get_mut(&nqn).ok_or_else(|| not_found(&nqn))?;
        let keys = &mut Arc::make_mut(host).auth.tls_keys;
        let at = keys.iter().position(|key| key.id == id).ok_or_else(|| {
            Failure::new(
                ErrorKind::NotFound,
                format!(
                    "host {nqn} has no TLS key {id}; `onefold host tls-key list` shows those it has"
                ),
            )
        })?;
        Ok(TlsKeyView::new(&keys.remove(at)))
    });
    Ok(Json(removed.await?))
}

fn add_key(auth: &mut HostAuth, request: &AddTlsKey) -> Result<TlsKeyView, Failure> {
    let psk = ConfiguredPsk::parse(&request.key.0);
    let psk = psk.map_err(|error| Failure::invalid(error.to_string()))?;
    if let Some(known) = auth.tls_keys.iter().find(|key| key.psk == psk) {
        return Err(Failure::invalid(format!(
            "the host has this TLS key already: it is number {}",
            known.id
        )));
    }
    if auth.tls_keys.len() >= TLS_KEYS_MAX {
        return Err(Failure::invalid(format!(
            "the host has {TLS_KEYS_MAX} TLS keys already: remove one with `onefold host tls-key remove`"
        )));
    }
    auth.tls_keys_made = auth.tls_keys_made.saturating_add(1);
    let key = TlsKey {
        id: auth.tls_keys_made,
        psk,
        compat: request.compat,
        since: now(),
    };
    let view = TlsKeyView::new(&key);
    auth.tls_keys.push(key);
    Ok(view)
}

fn apply(set: SetHost, auth: &mut HostAuth) -> Result<(), Failure> {
    let secret = |text: Option<SecretText>| {
        let parsed = text.map(|text| Secret::parse(&text.0)).transpose();
        parsed.map_err(|error| Failure::invalid(error.to_string()))
    };
    if let Some(text) = set.dhchap_secret {
        auth.dhchap_secret = secret(text)?;
        auth.dhchap_secret_since = auth.dhchap_secret.as_ref().and_then(|_| now());
    }
    if let Some(text) = set.dhchap_ctrl_secret {
        auth.dhchap_ctrl_secret = secret(text)?;
        auth.dhchap_ctrl_secret_since = auth.dhchap_ctrl_secret.as_ref().and_then(|_| now());
    }
    if auth.dhchap_ctrl_secret.is_some() && auth.dhchap_secret.is_none() {
        return Err(Failure::invalid(
            "a controller's secret needs one of the host too: --dhchap-secret-file",
        ));
    }
    auth.tls_only = set.tls_only.unwrap_or(auth.tls_only);
    if let Some(names) = set.dhchap_hashes {
        auth.dhchap_hashes = names
            .iter()
            .map(|name| Hash::from_name(name).ok_or_else(|| unknown(name, &Hash::ALL)))
            .collect::<Result<_, _>>()?;
    }
    if let Some(names) = set.dhchap_groups {
        auth.dhchap_groups = names
            .iter()
            .map(|name| Group::from_name(name).ok_or_else(|| unknown(name, &Group::ALL)))
            .collect::<Result<_, _>>()?;
    }
    Ok(())
}

fn unknown<T: fmt::Display>(name: &str, known: &[T]) -> Failure {
    let known: Vec<_> = known.iter().map(T::to_string).collect();
    Failure::invalid(format!("'{name}' is not one of {}", known.join(", ")))
}

impl Client {
    /// Hosts that have stored keys.
    ///
    /// # Errors
    /// No daemon serves the pool, or it refuses.
    pub async fn hosts(&self) -> Result<Vec<HostView>, Failure> {
        self.get("/v1/hosts").await
    }

    /// The stored keys of a host, without secrets.
    ///
    /// # Errors
    /// Nothing is, or no daemon serves the pool.
    pub async fn host(&self, nqn: &Nqn) -> Result<HostView, Failure> {
        self.get(&host_path(nqn)).await
    }

    /// Stores a host's keys.
    ///
    /// # Errors
    /// The daemon refuses (known already, no secret), or no daemon serves the pool.
    pub async fn create_host(&self, request: &CreateHost) -> Result<HostView, Failure> {
        self.send(Method::POST, "/v1/hosts", Some(request)).await
    }

    /// Changes a host's keys.
    ///
    /// # Errors
    /// The daemon refuses, or no daemon serves the pool.
    pub async fn set_host(&self, nqn: &Nqn, request: &SetHost) -> Result<HostView, Failure> {
        self.send(Method::PATCH, &host_path(nqn), Some(request))
            .await
    }

    /// Adds a TLS key to a host.
    ///
    /// # Errors
    /// The key is malformed, or known already; or no daemon serves the pool.
    pub async fn add_tls_key(&self, nqn: &Nqn, request: &AddTlsKey) -> Result<TlsKeyView, Failure> {
        let path = host_path(nqn) + "/tls-keys";
        self.send(Method::POST, &path, Some(request)).await
    }

    /// Removes a TLS key of a host; returns what it was.
    ///
    /// # Errors
    /// There is no such key, or no daemon serves the pool.
    pub async fn remove_tls_key(&self, nqn: &Nqn, id: u32) -> Result<TlsKeyView, Failure> {
        let path = format!("{}/tls-keys/{id}", host_path(nqn));
        self.send(Method::DELETE, &path, None::<&()>).await
    }

    /// Deletes a host's keys; returns what they were.
    ///
    /// # Errors
    /// Nothing is, or no daemon serves the pool.
    pub async fn delete_host(&self, nqn: &Nqn) -> Result<HostView, Failure> {
        self.send(Method::DELETE, &host_path(nqn), None::<&()>)
            .await
    }
}

/// The path of a host.
fn host_path(nqn: &Nqn) -> String {
    format!("/v1/hosts/{}", segment(nqn.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_tells_to_keep_from_to_take_away() {
        let parse = |text| serde_json::from_str::<SetHost>(text).unwrap();
        assert_eq!(parse("{}"), SetHost::default());
        assert_eq!(parse(r#"{"dhchap_secret":null}"#).dhchap_secret, Some(None));
        let set = parse(r#"{"dhchap_secret":"DHHC-1:00:x:"}"#);
        assert_eq!(
            serde_json::from_str::<SetHost>(&serde_json::to_string(&set).unwrap()).unwrap(),
            set
        );
        assert!(
            !format!("{set:?}").contains("DHHC"),
            "a request shows its secret"
        );
    }

    #[test]
    fn what_is_shown_of_a_host_has_no_secret_in_it() {
        let secret = Secret::from_random(Some(Hash::Sha512), &[7; 64]);
        let mut auth = HostAuth::default();
        let set = SetHost {
            dhchap_secret: Some(Some(SecretText(secret.to_text().to_string()))),
            dhchap_hashes: Some(vec!["sha384".to_owned()]),
            ..SetHost::default()
        };
        apply(set, &mut auth).unwrap();
        let nqn: Nqn = "nqn.2026-11.test:host".parse().unwrap();
        let host = HostConfig { nqn, auth };
        let shown = serde_json::to_string(&view(&host)).unwrap() + &format!("{host:?}");
        assert!(shown.contains(r#""dhchap_secret":"sha512""#), "{shown}");
        assert!(
            !shown.contains("BwcH") && !shown.contains("7, 7"),
            "{shown}"
        );
    }

    #[test]
    fn a_secret_is_told_from_another_by_its_fingerprint_and_date() {
        // printf %s DHHC-1 | sha256sum
        assert_eq!(fingerprint("DHHC-1"), "0be86a247946acb3");
        let mut auth = HostAuth::default();
        let mut store = |number: u8| {
            let text = Secret::from_random(None, &[number; 64]).to_text();
            let set = SetHost {
                dhchap_secret: Some(Some(SecretText(text.to_string()))),
                ..SetHost::default()
            };
            apply(set, &mut auth).expect("a secret");
            let nqn: Nqn = "nqn.2026-11.test:host".parse().expect("a name");
            let auth = auth.clone();
            view(&HostConfig { nqn, auth })
        };
        let (one, other, again) = (store(1), store(2), store(1));
        assert!(one.dhchap_secret_since.is_some() && one.dhchap_ctrl_secret_since.is_none());
        assert_ne!(
            one.dhchap_secret_fingerprint,
            other.dhchap_secret_fingerprint
        );
        assert_eq!(
            one.dhchap_secret_fingerprint,
            again.dhchap_secret_fingerprint
        );
    }

    #[test]
    fn tls_keys_are_numbered_shown_without_their_bytes_and_bounded() {
        let mut auth = HostAuth::default();
        let request = |number: u8| AddTlsKey {
            key: SecretText(
                ConfiguredPsk::from_random(Hash::Sha256, &[number; 64])
                    .to_text()
                    .to_string(),
            ),
            compat: number == 2,
        };
        assert!(!format!("{:?}", request(7)).contains("BwcH"));
        for number in 1..=8 {
            let view = add_key(&mut auth, &request(number)).expect("a new key");
            assert_eq!((view.id, view.compat), (number.into(), number == 2));
        }
        let refused = add_key(&mut auth, &request(7)).unwrap_err().to_string();
        assert!(refused.contains("number 7"), "{refused}");
        let refused = add_key(&mut auth, &request(9)).unwrap_err().to_string();
        assert!(refused.contains("tls-key remove"), "{refused}");
        // A number is not used again, and what is no key is not shown.
        auth.tls_keys.clear();
        assert_eq!(add_key(&mut auth, &request(9)).expect("a new key").id, 9);
        let wrong = AddTlsKey {
            key: SecretText("DHHC-1:00:secret:".to_owned()),
            compat: false,
        };
        let refused = add_key(&mut auth, &wrong).unwrap_err().to_string();
        assert!(refused.contains("NVMeTLSkey-1") && !refused.contains("secret"));
        let nqn: Nqn = "nqn.2026-11.test:host".parse().unwrap();
        let host = HostConfig { nqn, auth };
        let shown = serde_json::to_string(&view(&host)).unwrap() + &format!("{host:?}");
        assert!(shown.contains(r#""hash":"sha256""#), "{shown}");
        assert!(
            !shown.contains("CQkJ") && !shown.contains("9, 9"),
            "{shown}"
        );
    }

    #[test]
    fn senseless_keys_are_refused_with_what_would_be_right() {
        let refused = |set| {
            apply(set, &mut HostAuth::default())
                .unwrap_err()
                .to_string()
        };
        let text = |text: &str| Some(Some(SecretText(text.to_owned())));
        let set = SetHost {
            dhchap_secret: text("secret"),
            ..SetHost::default()
        };
        assert!(refused(set).contains("DHHC-1"));
        let secret = Secret::from_random(None, &[7; 64]).to_text();
        let set = SetHost {
            dhchap_ctrl_secret: text(&secret),
            ..SetHost::default()
        };
        assert!(refused(set).contains("--dhchap-secret-file"));
        let set = SetHost {
            dhchap_groups: Some(vec!["ffdhe1024".to_owned()]),
            ..SetHost::default()
        };
        assert!(refused(set).contains("ffdhe2048"));
    }
}
