//! The log of administrators' changes: who, what, from, to.
//!
//! Guarantees:
//! - Every request that may change something is logged with its user, as the kernel reports it, and its outcome; each
//!   changed object with its old and new values.
//! - No secret is logged, only that one was replaced.
//! - The line is written even if the client disconnects. Changes run one at a time, so that each has one author. The
//!   exception is a change that a host makes by a command at the same time, which is also logged by itself.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use axum::body::{Body, to_bytes};
use axum::extract::connect_info::ConnectInfo;
use axum::extract::{MatchedPath, Request, State};
use axum::http::Method;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use dedup::ErrorKind;
use meta::VolumeInfo;
use serde_json::{Map, Value, json};
use subsystem::catalog::{Catalog, HostConfig, SubsystemConfig};
use subsystem::errors::Failure;
use subsystem::throttle::{IoLimits, Limited};

use crate::caller::Caller;
use crate::errors::{ErrorBody, Refusal};
use crate::hosts;
use crate::listeners::ListenerView;
use crate::server::ApiState;
use crate::tokens::{self, TokenView};

/// The longest answer that is searched for an error, in bytes; longer ones have none.
const ERROR_BYTES_MAX: usize = 64 << 10;
/// Characters of a value that a line shows.
const VALUE_CHARS_MAX: usize = 200;
/// Changed objects of one request that get a line each.
const LINES_MAX: usize = 32;

/// What changes nothing that is configured, as it is routed: long queries, and pieces of an image, whose import is logged
/// when it begins and when it ends.
const UNLOGGED: [(Method, &str); 9] = [
    (Method::POST, "/v1/check"),
    (Method::POST, "/v1/pool/known"),
    (Method::POST, "/v1/survey"),
    (Method::POST, "/v1/tasks"),
    (Method::POST, "/v1/tasks/{id}/finish"),
    (Method::PUT, "/v1/volumes/{name}/data"),
    (Method::POST, "/v1/volumes/{name}/import/parts"),
    (Method::POST, "/v1/volumes/{name}/import/known"),
    (Method::PATCH, "/v1/volumes/{name}/import"),
];

/// Whether a request may change something; the path is as it is routed.
fn changes(method: &Method, path: &str) -> bool {
    let is_unlogged = |(unlogged, at): &(Method, &str)| unlogged == method && *at == path;
    *method != Method::GET && !UNLOGGED.iter().any(is_unlogged)
}

/// Runs a request, and logs what it changed.
pub(crate) async fn record(
    State(state): State<ApiState>,
    request: Request,
    next: Next,
) -> Response {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let routed = request.extensions().get::<MatchedPath>();
    if !changes(&method, routed.map_or(path.as_str(), MatchedPath::as_str)) {
        return next.run(request).await;
    }
    let caller = request.extensions().get::<ConnectInfo<Caller>>();
    let who = caller.map_or_else(Caller::default, |info| info.0.clone());
    // It goes on if the client disconnects, as the change does.
    let work = async move {
        let _turn = state.audit.lock().await;
        let before = Snapshot::of(&state);
        let (response, error) = error_in(next.run(request).await).await;
        let asked = format!("{method} {}", readable(&path));
        match error {
            Some(error) => {
                tracing::warn!(event = "admin", %who, asked, "a change was refused: {error}")
            }
            None => log(&who, &asked, &before, &Snapshot::of(&state)),
        }
        response
    };
    match tokio::spawn(work).await {
        Ok(response) => response,
        Err(error) => {
            let failure = Failure::new(ErrorKind::Internal, error.to_string());
            Refusal::from(failure).into_response()
        }
    }
}

/// The answer, and the message of the error that it carries.
async fn error_in(response: Response) -> (Response, Option<String>) {
    let status = response.status();
    if status.is_success() {
        return (response, None);
    }
    let (parts, body) = response.into_parts();
    let bytes = to_bytes(body, ERROR_BYTES_MAX).await.unwrap_or_default();
    let body: Option<ErrorBody> = serde_json::from_slice(&bytes).ok();
    let message = body.map_or_else(|| status.to_string(), |body| body.message);
    (
        Response::from_parts(parts, Body::from(bytes)),
        Some(message),
    )
}

/// A path with its escapes undone.
fn readable(path: &str) -> String {
    let mut text = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let [first, after @ ..] = rest {
        let escaped = after.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        let escaped = escaped.and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match escaped.filter(|byte| *first == b'%' && !byte.is_ascii_control()) {
            Some(byte) => {
                text.push(byte);
                rest = &after[2..];
            }
            None => {
                text.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&text).into_owned()
}

fn log(who: &Caller, asked: &str, before: &Snapshot, after: &Snapshot) {
    let differences = before.differences(after);
    if differences.is_empty() {
        tracing::info!(event = "admin", %who, "an administrator asked for {asked}");
    }
    for difference in differences.iter().take(LINES_MAX) {
        tracing::info!(event = "admin", %who, "an administrator {difference}");
    }
    if let Some(more @ 1..) = differences.len().checked_sub(LINES_MAX) {
        tracing::info!(event = "admin", %who, "an administrator changed {more} objects more by {asked}");
    }
}

/// What is configured at one moment.
struct Snapshot {
    catalog: Arc<Catalog>,
    volumes: Vec<VolumeInfo>,
    drives: Vec<String>,
    tokens: BTreeMap<String, Arc<TokenView>>,
}

/// Kind and name of an object, and what it was and is.
type Pairs<'a> = Vec<(&'static str, String, Option<Value>, Option<Value>)>;

impl Snapshot {
    fn of(state: &ApiState) -> Self {
        let drives = state.engine.status().drives;
        Self {
            catalog: state.target.catalog(),
            volumes: [state.engine.volumes(), state.engine.snapshots()].concat(),
            drives: drives.into_iter().map(|drive| drive.name).collect(),
            tokens: tokens::views(&state.engine)
                .into_iter()
                .map(|token| (token.name.clone(), Arc::new(token)))
                .collect(),
        }
    }

    /// The differences, one text for each object.
    fn differences(&self, after: &Self) -> Vec<String> {
        let mut pairs: Pairs<'_> = Vec::new();
        let by_uuid = |volumes: &[VolumeInfo]| -> BTreeMap<_, _> {
            let all = volumes
                .iter()
                .map(|info| (info.uuid, Arc::new(info.clone())));
            all.collect()
        };
        let (old, new) = (by_uuid(&self.volumes), by_uuid(&after.volumes));
        let name_of = |uuid: &uuid::Uuid| {
            old.get(uuid)
                .or_else(|| new.get(uuid))
                .map(|info| info.name.clone())
        };
        compare(&mut pairs, "volume", &old, &new, |info| {
            (info.name.clone(), volume_value(info))
        });
        let (was, is) = (&self.catalog, &after.catalog);
        compare(
            &mut pairs,
            "subsystem",
            &was.subsystems,
            &is.subsystems,
            |subsystem| {
                let names = |uuid: &uuid::Uuid| name_of(uuid).unwrap_or_else(|| uuid.to_string());
                (
                    subsystem.nqn.to_string(),
                    subsystem_value(subsystem, &names),
                )
            },
        );
        compare(&mut pairs, "host", &was.hosts, &is.hosts, |host| {
            (host.nqn.to_string(), host_value(host))
        });
        compare(&mut pairs, "listener", &was.ports, &is.ports, |port| {
            (port.address.to_string(), to_value(&ListenerView::new(port)))
        });
        compare(
            &mut pairs,
            "referral",
            &was.referrals,
            &is.referrals,
            |referral| {
                let value = json!({"id": referral.id, "nqn": referral.nqn});
                (referral.address.to_string(), value)
            },
        );
        compare(&mut pairs, "export", &was.exports, &is.exports, |export| {
            let volume = name_of(&export.volume);
            let volume = volume.unwrap_or_else(|| export.volume.to_string());
            let value = json!({
                "id": export.id,
                "volume": volume,
                "kind": export.kind,
                "read_only": export.read_only,
            });
            (export.address.clone(), value)
        });
        let names = |of: &Limited| match of {
            Limited::Volume(uuid) => name_of(uuid).unwrap_or_else(|| uuid.to_string()),
            Limited::Host(nqn) => nqn.to_string(),
        };
        let limits = |catalog: &Catalog| -> BTreeMap<Limited, Arc<(String, IoLimits)>> {
            let all = catalog.limits.iter();
            all.map(|(of, limits)| (of.clone(), Arc::new((names(of), **limits))))
                .collect()
        };
        compare(
            &mut pairs,
            "limits of",
            &limits(was),
            &limits(is),
            |(name, limits)| (name.clone(), to_value(limits)),
        );
        compare(&mut pairs, "token", &self.tokens, &after.tokens, |token| {
            (token.name.clone(), to_value(token))
        });
        for name in after
            .drives
            .iter()
            .filter(|name| !self.drives.contains(name))
        {
            pairs.push(("drive", name.clone(), None, Some(json!({}))));
        }
        let mut texts: Vec<String> = pairs.into_iter().filter_map(text_of).collect();
        for (host, new) in &is.hosts {
            let secrets = was.hosts.get(host).map(|old| replaced_secrets(old, new));
            for secret in secrets.unwrap_or_default() {
                texts.push(format!("replaced the {secret} of host '{host}'"));
            }
        }
        texts
    }
}

fn compare<K: Ord + Clone, T: PartialEq>(
    pairs: &mut Pairs<'_>,
    kind: &'static str,
    old: &BTreeMap<K, Arc<T>>,
    new: &BTreeMap<K, Arc<T>>,
    view: impl Fn(&T) -> (String, Value),
) {
    let keys: BTreeSet<&K> = old.keys().chain(new.keys()).collect();
    for key in keys {
        let (was, is) = (old.get(key), new.get(key));
        if let (Some(was), Some(is)) = (was, is)
            && (Arc::ptr_eq(was, is) || was == is)
        {
            continue;
        }
        let was = was.map(|it| view(it));
        let is = is.map(|it| view(it));
        let name = is.as_ref().or(was.as_ref()).map(|(name, _)| name.clone());
        let value = |it: Option<(String, Value)>| it.map(|(_, value)| value);
        pairs.push((kind, name.unwrap_or_default(), value(was), value(is)));
    }
}

fn text_of(
    (kind, name, was, is): (&'static str, String, Option<Value>, Option<Value>),
) -> Option<String> {
    let with = |done: &str, value: &Value| match fields(value) {
        fields if fields.is_empty() => format!("{done} {kind} '{name}'"),
        fields => format!("{done} {kind} '{name}': {fields}"),
    };
    match (was, is) {
        (None, None) => None,
        (None, Some(is)) => Some(with("added", &is)),
        (Some(was), None) => Some(with("removed", &was)),
        (Some(was), Some(is)) => {
            let changed = changed_fields(&was, &is);
            // A replaced secret has a line of its own.
            (!changed.is_empty()).then(|| format!("changed {kind} '{name}': {changed}"))
        }
    }
}

/// The fields in which two values differ, each as `NAME from A to B`.
pub(crate) fn changed_fields(was: &Value, is: &Value) -> String {
    let none = Map::new();
    let (was, is) = (
        was.as_object().unwrap_or(&none),
        is.as_object().unwrap_or(&none),
    );
    let keys: BTreeSet<&String> = was.keys().chain(is.keys()).collect();
    let changed = keys.into_iter().filter_map(|key| {
        let (from, to) = (was.get(key), is.get(key));
        if from == to {
            return None;
        }
        // Of a part that was there before, only what is otherwise.
        if let (Some(from @ Value::Object(_)), Some(to @ Value::Object(_))) = (from, to) {
            return Some(format!("{key} ({})", changed_fields(from, to)));
        }
        let text = |value: Option<&Value>| value.map_or_else(|| "none".to_owned(), short);
        Some(format!("{key} from {} to {}", text(from), text(to)))
    });
    changed.collect::<Vec<_>>().join(", ")
}

/// The fields of an object.
fn fields(value: &Value) -> String {
    let fields = value.as_object().into_iter().flatten();
    let fields = fields.map(|(key, value)| format!("{key} {}", short(value)));
    fields.collect::<Vec<_>>().join(", ")
}

/// A value in words, on one line, cut where it is long.
fn short(value: &Value) -> String {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Null => "not set".to_owned(),
        Value::Bool(is) => if *is { "yes" } else { "no" }.to_owned(),
        Value::Number(number) => number.to_string(),
        Value::Array(items) if items.is_empty() => "empty".to_owned(),
        Value::Array(items) => items.iter().map(short).collect::<Vec<_>>().join(" and "),
        Value::Object(_) => format!("({})", fields(value)),
    };
    match text.char_indices().nth(VALUE_CHARS_MAX) {
        None => text,
        Some((at, _)) => format!("{}...", &text[..at]),
    }
}

fn to_value(view: &impl serde::Serialize) -> Value {
    serde_json::to_value(view).unwrap_or_default()
}

fn volume_value(info: &VolumeInfo) -> Value {
    json!({
        "name": info.name,
        "uuid": info.uuid,
        "size_bytes": info.size_bytes,
        "lba_bytes": info.lba_bytes,
        "dedup": info.dedup,
        "compression": info.compression,
        "verify": info.verify,
        "domain": info.domain,
    })
}

/// Its fields, and each namespace as a field of its own.
fn subsystem_value(subsystem: &SubsystemConfig, name_of: &dyn Fn(&uuid::Uuid) -> String) -> Value {
    let mut value = to_value(subsystem);
    if let Some(fields) = value.as_object_mut() {
        for (nsid, namespace) in &subsystem.namespaces {
            let mut shown = to_value(&**namespace);
            if let Some(shown) = shown.as_object_mut() {
                shown.insert("volume".to_owned(), name_of(&namespace.volume).into());
            }
            fields.insert(format!("namespace {nsid}"), shown);
        }
    }
    value
}

fn host_value(host: &HostConfig) -> Value {
    to_value(&hosts::view(host))
}

/// Secrets that were replaced, even if their visible properties are the same.
fn replaced_secrets(old: &HostConfig, new: &HostConfig) -> Vec<&'static str> {
    let (old, new) = (&old.auth, &new.auth);
    let mut replaced = Vec::new();
    if old.dhchap_secret.is_some()
        && new.dhchap_secret.is_some()
        && old.dhchap_secret != new.dhchap_secret
    {
        replaced.push("secret");
    }
    let (was, is) = (&old.dhchap_ctrl_secret, &new.dhchap_ctrl_secret);
    if was.is_some() && is.is_some() && was != is {
        replaced.push("controller's secret");
    }
    replaced
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_names_only_what_is_otherwise() {
        let was = json!({"name": "a", "size_bytes": 4096, "hosts": []});
        let is = json!({"name": "a", "size_bytes": 8192, "hosts": ["nqn.x", "nqn.y"]});
        let text = text_of(("volume", "a".into(), Some(was.clone()), Some(is)));
        let wanted =
            "changed volume 'a': hosts from empty to nqn.x and nqn.y, size_bytes from 4096 to 8192";
        assert_eq!(text.as_deref(), Some(wanted));
        let removed = text_of(("volume", "a".into(), Some(was.clone()), None)).expect("a text");
        assert!(removed.starts_with("removed volume 'a': "), "{removed}");
        assert_eq!(
            text_of(("volume", "a".into(), Some(was.clone()), Some(was))),
            None
        );
    }

    #[test]
    fn namespaces_are_told_in_words() {
        let shown = json!({"volume": "vol0", "shared": true, "hosts": null});
        let was = json!({"namespace 1": shown});
        let added = text_of(("subsystem", "s".into(), None, Some(was.clone())));
        let wanted = "added subsystem 's': namespace 1 (hosts not set, shared yes, volume vol0)";
        assert_eq!(added.as_deref(), Some(wanted));
        let is = json!({"namespace 1": {"volume": "vol0", "shared": false, "hosts": ["nqn.x"]}});
        let changed = text_of(("subsystem", "s".into(), Some(was.clone()), Some(is)));
        let wanted = "changed subsystem 's': namespace 1 (hosts from not set to nqn.x, shared from yes to no)";
        assert_eq!(changed.as_deref(), Some(wanted));
        let detached = text_of(("subsystem", "s".into(), Some(was), Some(json!({}))));
        let wanted = "changed subsystem 's': \
                      namespace 1 from (hosts not set, shared yes, volume vol0) to none";
        assert_eq!(detached.as_deref(), Some(wanted));
    }

    #[test]
    fn long_values_are_cut_and_escapes_undone() {
        assert!(short(&Value::from("é".repeat(1000))).ends_with("..."));
        assert_eq!(readable("/v1/hosts/nqn%3Aa%0a%"), "/v1/hosts/nqn:a%0a%");
    }

    #[test]
    fn questions_are_no_changes() {
        assert!(!changes(&Method::GET, "/v1/volumes"));
        assert!(!changes(&Method::POST, "/v1/check"));
        assert!(changes(&Method::POST, "/v1/volumes"));
        assert!(changes(&Method::DELETE, "/v1/hosts/a"));
    }
}
