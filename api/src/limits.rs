//! Limits of commands and bytes a second, of volumes and hosts, and guarantees of them.
//!
//! | request | answer |
//! |---|---|
//! | `GET /v1/limits` | list of [`LimitView`] |
//! | `PATCH /v1/volumes/NAME/limits` with [`SetLimits`] | [`LimitView`] |
//! | `PATCH /v1/hosts/NQN/limits` with [`SetLimits`] | [`LimitView`]; the host need not have stored keys |

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use axum::routing::{get, patch};
use axum::{Json, Router};
use dedup::Engine;
use hyper::Method;
use serde::{Deserialize, Serialize};
use subsystem::errors::Failure;
use subsystem::target::Target;
use subsystem::throttle::{IoLimits, Limited};

use crate::client::{Client, segment};
use crate::errors::Answer;
use crate::extract::{Body, Path, given};
use crate::server::{ApiState, change, check_new, parse_nqn};
use crate::volumes::{find, volume_path};

/// What limits are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LimitKind {
    /// A volume.
    Volume,
    /// A host, on all of its paths and volumes.
    Host,
}

impl LimitKind {
    /// Its name: `volume` or `host`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Volume => "volume",
            Self::Host => "host",
        }
    }
}

/// The limits and guarantees of a volume or of a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitView {
    /// Whether they are of a volume or of a host.
    pub kind: LimitKind,
    /// The volume's name, or the host's NQN.
    pub name: String,
    /// Commands a second; `null` is any number.
    pub iops: Option<u64>,
    /// Bytes a second; `null` is any number.
    pub bandwidth_bytes: Option<u64>,
    /// What may be used at once after a pause: so many milliseconds' worth of the limits.
    pub burst_ms: u64,
    /// Commands that had to wait for them since the daemon started.
    pub held_commands: u64,
    /// How long all of them waited together, in nanoseconds.
    pub held_ns: u64,
    /// Commands a second that it gets whatever others ask for; `null`: what others leave.
    #[serde(default)]
    pub guarantee_iops: Option<u64>,
    /// Bytes a second that it gets whatever others ask for; `null`: what others leave.
    #[serde(default)]
    pub guarantee_bandwidth_bytes: Option<u64>,
    /// What it gets now; `null` without a guarantee.
    #[serde(default)]
    pub achieved: Option<AchievedView>,
}

/// What somebody with a guarantee gets now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AchievedView {
    /// Commands a second.
    pub iops: u64,
    /// Bytes a second.
    pub bandwidth_bytes: u64,
    /// It asks for what it is guaranteed, and gets less.
    pub is_short: bool,
}

/// What guarantees leave to all commands that are not within one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SurplusView {
    /// Bytes a second that these commands may move now, 16 KiB for each command counted in; `null`: any number.
    pub bound_bytes: Option<u64>,
    /// Commands that had to wait for guarantees of others since the daemon started.
    pub held_commands: u64,
    /// How long all of them waited together, in nanoseconds.
    pub held_ns: u64,
}

/// A change of limits and guarantees. What is left out stays; `null` takes one away.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetLimits {
    /// Commands a second.
    #[serde(
        default,
        deserialize_with = "given",
        skip_serializing_if = "Option::is_none"
    )]
    pub iops: Option<Option<u64>>,
    /// Bytes a second.
    #[serde(
        default,
        deserialize_with = "given",
        skip_serializing_if = "Option::is_none"
    )]
    pub bandwidth_bytes: Option<Option<u64>>,
    /// What may be used at once after a pause: so many milliseconds' worth of the limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst_ms: Option<u64>,
    /// Commands a second that it gets whatever others ask for.
    #[serde(
        default,
        deserialize_with = "given",
        skip_serializing_if = "Option::is_none"
    )]
    pub guarantee_iops: Option<Option<u64>>,
    /// Bytes a second that it gets whatever others ask for.
    #[serde(
        default,
        deserialize_with = "given",
        skip_serializing_if = "Option::is_none"
    )]
    pub guarantee_bandwidth_bytes: Option<Option<u64>>,
}

/// The routes.
pub(crate) fn routes() -> Router<ApiState> {
    Router::new()
        .route("/v1/limits", get(list))
        .route("/v1/volumes/{name}/limits", patch(set_of_volume))
        .route("/v1/hosts/{nqn}/limits", patch(set_of_host))
}

fn view(target: &Target, of: &Limited, name: String, limits: &IoLimits) -> LimitView {
    let held = target.held_back(of);
    LimitView {
        kind: match of {
            Limited::Volume(_) => LimitKind::Volume,
            Limited::Host(_) => LimitKind::Host,
        },
        name,
        iops: limits.iops,
        bandwidth_bytes: limits.bandwidth_bytes,
        burst_ms: limits.burst_ms,
        held_commands: held.commands,
        held_ns: held.wait_ns,
        guarantee_iops: limits.guarantee_iops,
        guarantee_bandwidth_bytes: limits.guarantee_bandwidth_bytes,
        achieved: target.achieved(of).map(|it| AchievedView {
            iops: it.iops,
            bandwidth_bytes: it.bandwidth_bytes,
            is_short: it.is_short,
        }),
    }
}

/// What guarantees leave to all others; `None` without any.
pub(crate) fn surplus(target: &Target) -> Option<SurplusView> {
    let surplus = target.surplus()?;
    Some(SurplusView {
        bound_bytes: surplus.bound,
        held_commands: surplus.held.commands,
        held_ns: surplus.held.wait_ns,
    })
}

/// All limits that there are.
pub(crate) fn all(target: &Target, engine: &Engine) -> Vec<LimitView> {
    let volumes = engine.volumes();
    let catalog = target.catalog();
    let limits = catalog.limits.iter().filter_map(|(of, limits)| {
        let name = match of {
            // That of a volume that is being deleted is none any more.
            Limited::Volume(uuid) => {
                let volume = volumes.iter().find(|info| info.uuid == *uuid)?;
                volume.name.clone()
            }
            Limited::Host(nqn) => nqn.to_string(),
        };
        Some(view(target, of, name, limits))
    });
    limits.collect()
}

/// The limits that the catalog keeps.
type KeptLimits = BTreeMap<Limited, Arc<IoLimits>>;

/// Changes the limits of a volume or a host, which `label` names in errors. What limits nothing is not kept, but is to be
/// possible all the same.
fn apply(
    kept: &mut KeptLimits,
    of: &Limited,
    label: &str,
    set: &SetLimits,
) -> Result<IoLimits, Failure> {
    if *set == SetLimits::default() {
        return Err(Failure::invalid(
            "nothing is to be changed: say a limit or a guarantee of commands or of bytes, or the burst",
        ));
    }
    let known = kept.get(of);
    let known = known.map_or_else(IoLimits::default, |known| **known);
    let limits = IoLimits {
        iops: set.iops.unwrap_or(known.iops),
        bandwidth_bytes: set.bandwidth_bytes.unwrap_or(known.bandwidth_bytes),
        burst_ms: set.burst_ms.unwrap_or(known.burst_ms),
        guarantee_iops: set.guarantee_iops.unwrap_or(known.guarantee_iops),
        guarantee_bandwidth_bytes: set
            .guarantee_bandwidth_bytes
            .unwrap_or(known.guarantee_bandwidth_bytes),
    };
    limits.check(label)?;
    match limits.is_none() {
        true => kept.remove(of),
        false => kept.insert(of.clone(), Arc::new(limits)),
    };
    Ok(limits)
}

async fn list(State(state): State<ApiState>) -> Json<Vec<LimitView>> {
    Json(all(&state.target, &state.engine))
}

async fn set(
    state: &ApiState,
    of: Limited,
    name: String,
    set: SetLimits,
) -> Result<LimitView, Failure> {
    let limited = of.clone();
    let label = match of {
        Limited::Volume(_) => format!("volume '{name}'"),
        Limited::Host(_) => format!("host '{name}'"),
    };
    let applied = change(state, move |catalog| {
        apply(&mut catalog.limits, &limited, &label, &set)
    });
    let limits = applied.await?;
    Ok(view(&state.target, &of, name, &limits))
}

async fn set_of_volume(
    State(state): State<ApiState>,
    Path(name): Path<String>,
    Body(request): Body<SetLimits>,
) -> Answer<LimitView> {
    let info = find(&state, &name)?;
    if info.snapshot.is_some() {
        return Err(Failure::invalid(format!(
            "'{name}' is a snapshot, which has no limits of its own; limit the hosts that read it (`onefold host limit`)"
        ))
        .into());
    }
    let of = Limited::Volume(info.uuid);
    Ok(Json(set(&state, of, name, request).await?))
}

async fn set_of_host(
    State(state): State<ApiState>,
    Path(nqn): Path<String>,
    Body(request): Body<SetLimits>,
) -> Answer<LimitView> {
    let nqn = parse_nqn(&nqn)?;
    check_new([&nqn])?;
    let name = nqn.to_string();
    Ok(Json(set(&state, Limited::Host(nqn), name, request).await?))
}

impl Client {
    /// All limits.
    ///
    /// # Errors
    /// No daemon serves the pool, or it refuses.
    pub async fn limits(&self) -> Result<Vec<LimitView>, Failure> {
        self.get("/v1/limits").await
    }

    /// Changes the limits of a volume.
    ///
    /// # Errors
    /// The daemon refuses, or no daemon serves the pool.
    pub async fn set_volume_limits(
        &self,
        name: &str,
        request: &SetLimits,
    ) -> Result<LimitView, Failure> {
        let path = format!("{}/limits", volume_path(name)?);
        self.send(Method::PATCH, &path, Some(request)).await
    }

    /// Changes the limits of a host.
    ///
    /// # Errors
    /// The daemon refuses, or no daemon serves the pool.
    pub async fn set_host_limits(
        &self,
        nqn: &nvme::Nqn,
        request: &SetLimits,
    ) -> Result<LimitView, Failure> {
        let path = format!("/v1/hosts/{}/limits", segment(nqn.as_str()));
        self.send(Method::PATCH, &path, Some(request)).await
    }
}

#[cfg(test)]
mod tests {
    use subsystem::throttle::BURST_MS_MAX;

    use super::*;

    #[test]
    fn limits_that_cannot_be_are_refused_also_where_nothing_is_limited() {
        let of = Limited::Volume(uuid::Uuid::nil());
        let mut kept = KeptLimits::default();
        let mut set = |set| apply(&mut kept, &of, "volume 'a'", &set);
        let burst = |burst_ms| SetLimits {
            burst_ms: Some(burst_ms),
            ..SetLimits::default()
        };
        let refused = set(burst(BURST_MS_MAX + 1)).expect_err("too long");
        assert!(refused.message.contains("volume 'a'"), "{refused:?}");
        set(burst(BURST_MS_MAX)).expect("possible");
    }

    #[test]
    fn a_guarantee_above_the_limit_of_the_same_volume_is_refused_by_name_whichever_comes_later() {
        let of = Limited::Volume(uuid::Uuid::nil());
        let mut kept = KeptLimits::default();
        let mut set = |set| apply(&mut kept, &of, "volume 'a'", &set);
        let guarantee = |iops| SetLimits {
            guarantee_iops: Some(iops),
            ..SetLimits::default()
        };
        let limit = |iops| SetLimits {
            iops: Some(iops),
            ..SetLimits::default()
        };
        set(guarantee(Some(1000))).expect("possible");
        let refused = set(limit(Some(999))).expect_err("below its guarantee");
        assert!(refused.message.contains("volume 'a'"), "{refused:?}");
        assert!(refused.message.contains("999"), "{refused:?}");
        set(limit(Some(1000))).expect("as much as its guarantee");
        set(guarantee(Some(1001))).expect_err("above its limit");
        set(guarantee(Some(0))).expect_err("nothing");
        set(guarantee(Some(u64::MAX))).expect_err("above its limit");
        set(limit(None)).expect("no limit");
        set(guarantee(Some(u64::MAX))).expect("more than any node can do, but possible");
        let limits = set(guarantee(None)).expect("none");
        assert!(limits.is_none() && kept.is_empty());
    }
}
