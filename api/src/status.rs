//! What `onefold status` shows, as JSON.
//!
//! | request | answer |
//! |---|---|
//! | `GET /v1/status` | [`Status`] |
//! | `GET /v1/space` | [`SpaceDetail`] |
//!
//! Guarantee: the JSON has exactly the fields below; outside scripts rely on them. All sizes are bytes.

use axum::extract::State;
use axum::routing::get;
use axum::{Json, Router};
use dedup::{Engine, Survey};
use meta::VolumeInfo;
use serde::{Deserialize, Serialize};
use subsystem::auth::{AuthFigures, TlsFigures};
use subsystem::errors::Failure;
pub use subsystem::figures::{
    AttachedHost, PoolSpace, ReactorFigures, RefusalFigures, Report, SpaceDetail, TransportFigures,
};
use subsystem::target::Target;

use crate::client::Client;
use crate::health::{Health, health_of};
use crate::server::ApiState;
use crate::volumes::{Shown, common_nsid, logical_bytes, shown};

/// A daemon at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The daemon's version.
    pub version: String,
    /// The health of the pool.
    #[serde(default)]
    pub health: Health,
    /// Space of the whole pool.
    pub pool: PoolSpace,
    /// The volumes.
    pub volumes: Vec<VolumeSpace>,
    /// One entry for each association of a host (discovery not counted).
    pub hosts: Vec<AttachedHost>,
    /// The figures of each transport.
    pub transports: Vec<TransportFigures>,
    /// The data-plane threads.
    pub reactors: Vec<ReactorFigures>,
    /// The last count of unique and shared data; `null` before the first one.
    #[serde(default)]
    pub survey: Option<Survey>,
    /// Results of authentications.
    #[serde(default)]
    pub authentication: AuthFigures,
    /// Results of TLS handshakes.
    #[serde(default)]
    pub tls: TlsFigures,
}

/// Space of a volume, in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeSpace {
    /// The volume's name.
    pub name: String,
    /// The identifier of its namespaces, if it is the same in all subsystems that show it; `null` if none does,
    /// or if they differ.
    pub nsid: Option<u32>,
    /// Its namespaces.
    #[serde(default)]
    pub namespaces: Vec<Shown>,
    /// Its identity, stable for its life.
    pub uuid: String,
    /// Its size as hosts see it.
    pub size_bytes: u64,
    /// Its mapped sub-blocks.
    pub logical_bytes: u64,
    /// The rest: zeros, whether they were written, trimmed or never written; they take no space.
    #[serde(default)]
    pub zero_bytes: u64,
}

/// The routes.
pub(crate) fn routes() -> Router<ApiState> {
    Router::new()
        .route("/v1/status", get(status))
        .route("/v1/space", get(space))
}

/// Hosts, volumes, space at this moment; the health is left to [`health_of`].
fn status_of(target: &Target, engine: &Engine, reports: Vec<Report>) -> Status {
    let space = engine.status();
    let mut shown = shown(&target.catalog());
    let volume = |info: &VolumeInfo| {
        let namespaces = shown.remove(&info.uuid).unwrap_or_default();
        VolumeSpace {
            name: info.name.clone(),
            nsid: common_nsid(&namespaces),
            namespaces,
            uuid: info.uuid.to_string(),
            size_bytes: info.size_bytes,
            logical_bytes: logical_bytes(&space, info.nsid),
            zero_bytes: info
                .size_bytes
                .saturating_sub(logical_bytes(&space, info.nsid)),
        }
    };
    let volumes = engine.volumes().iter().map(volume).collect();
    let (mut transports, mut reactors) = (Vec::new(), Vec::new());
    for report in reports {
        transports.extend(report.transports);
        reactors.push(report.reactor);
    }
    Status {
        version: subsystem::VERSION.to_owned(),
        pool: PoolSpace::new(&space),
        volumes,
        hosts: target.attached_hosts(),
        transports: target.transport_figures(&transports),
        reactors,
        health: Health::default(),
        survey: engine.last_survey(),
        authentication: target.auth_figures(),
        tls: target.tls_figures(),
    }
}

/// The daemon at this moment.
pub(crate) async fn status_now(state: &ApiState) -> Status {
    let reports = state.daemon.reports().await;
    let mut status = status_of(&state.target, &state.engine, reports);
    status.health = health_of(&state.engine).await;
    status
}

async fn status(State(state): State<ApiState>) -> Json<Status> {
    Json(status_now(&state).await)
}

async fn space(State(state): State<ApiState>) -> Json<SpaceDetail> {
    Json(SpaceDetail::new(&state.engine.status()))
}

impl Client {
    /// Volumes, hosts, space.
    ///
    /// # Errors
    /// No daemon serves the pool, or it refuses.
    pub async fn status(&self) -> Result<Status, Failure> {
        self.get("/v1/status").await
    }

    /// The rest of the pool's space.
    ///
    /// # Errors
    /// No daemon serves the pool, or it refuses.
    pub async fn space_detail(&self) -> Result<SpaceDetail, Failure> {
        self.get("/v1/space").await
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use dedup::PoolStatus;
    use subsystem::DEFAULT_SUBSYSTEM_NQN;

    use super::*;

    pub(crate) fn example() -> Status {
        Status {
            version: "0.1.0".into(),
            pool: PoolSpace::new(&PoolStatus {
                capacity_bytes: 64 << 30,
                used_bytes: 4 << 20,
                logical_bytes: 12 << 20,
                metadata_bytes: 77,
                ..PoolStatus::default()
            }),
            volumes: vec![VolumeSpace {
                name: "vol0".into(),
                nsid: Some(1),
                namespaces: vec![Shown {
                    subsystem: DEFAULT_SUBSYSTEM_NQN.into(),
                    nsid: 1,
                }],
                uuid: "6f6e6566-6f6c-4d00-8000-000000000001".into(),
                size_bytes: 64 << 30,
                logical_bytes: 12 << 20,
                zero_bytes: (64 << 30) - (12 << 20),
            }],
            hosts: vec![AttachedHost {
                hostnqn: "nqn.2014-08.org.nvmexpress:uuid:1".into(),
                subsystem: DEFAULT_SUBSYSTEM_NQN.into(),
                address: "192.0.2.7".into(),
                transport: "rdma".into(),
                tls: None,
                queues: 4,
            }],
            transports: vec![TransportFigures {
                transport: "rdma".into(),
                queues: 5,
                ..TransportFigures::default()
            }],
            reactors: vec![ReactorFigures {
                name: "onefold-data0".into(),
                buffer_bytes: 1 << 20,
                ..ReactorFigures::default()
            }],
            health: Health::default(),
            survey: None,
            authentication: AuthFigures::default(),
            tls: TlsFigures::default(),
        }
    }

    #[test]
    fn the_json_has_exactly_the_promised_fields() {
        let json = serde_json::to_value(example()).expect("a status is always JSON");
        assert_eq!(
            json,
            serde_json::json!({
                "version": "0.1.0",
                "pool": {
                    "capacity_bytes": 64u64 << 30,
                    "used_bytes": 4 << 20,
                    "metadata_bytes": 77,
                    "logical_bytes": 12 << 20,
                    "dedup_ratio": 3.0,
                    "compression_saved_bytes": 0,
                    "fingerprint": "blake3",
                },
                "volumes": [{
                    "name": "vol0",
                    "nsid": 1,
                    "namespaces": [{"subsystem": DEFAULT_SUBSYSTEM_NQN, "nsid": 1}],
                    "uuid": "6f6e6566-6f6c-4d00-8000-000000000001",
                    "size_bytes": 64u64 << 30,
                    "logical_bytes": 12 << 20,
                    "zero_bytes": (64u64 << 30) - (12 << 20),
                }],
                "hosts": [{
                    "hostnqn": "nqn.2014-08.org.nvmexpress:uuid:1",
                    "subsystem": DEFAULT_SUBSYSTEM_NQN,
                    "address": "192.0.2.7",
                    "transport": "rdma",
                    "tls": null,
                    "queues": 4,
                }],
                "transports": [{
                    "transport": "rdma",
                    "controllers": 0,
                    "queues": 5,
                    "accepted": 0,
                    "refused": {
                        "too_many": 0,
                        "handshake": 0,
                        "violation": 0,
                        "digest": 0,
                        "stalled": 0,
                        "no_memory": 0,
                        "connect": 0,
                        "host": 0,
                    },
                    "queue_bytes": 0,
                    "queue_bytes_max": 0,
                    "held_bytes": 0,
                    "held_back": 0,
                }],
                "reactors": [{
                    "name": "onefold-data0",
                    "queues": 0,
                    "commands": 0,
                    "buffer_bytes": 1 << 20,
                    "buffer_used_bytes": 0,
                    "buffer_waits": 0,
                }],
                "health": {
                    "state": "ok",
                    "reasons": [],
                    "refused_writes": 0,
                    "fill_warning_percent": null,
                    "damage": {"damaged_blocks": 0, "healed_blocks": 0, "ranges_total": 0, "ranges": []},
                    "scrub": {
                        "phase": "never",
                        "total_blocks": 0,
                        "checked_blocks": 0,
                        "bad_blocks": 0,
                        "rate_bytes_per_second": 0,
                        "seconds": 0,
                        "eta_seconds": null,
                    },
                    "deleting": [],
                    "drives": [],
                    "trimming": [],
                    "verify": {
                        "waiting_bytes": 0,
                        "compared_blocks": 0,
                        "collisions": 0,
                        "failed_blocks": 0,
                    },
                },
                "survey": null,
                "authentication": { "succeeded": 0, "failed": 0, "held_off": 0 },
                "tls": { "succeeded": 0, "failed": 0, "held_off": 0, "refused": 0 },
            })
        );
    }

    #[test]
    fn what_is_wrong_comes_before_the_figures() {
        let mut status = example();
        status.health.verdict.state = dedup::HealthState::TakesNoWrites;
        let json = serde_json::to_string(&status).expect("JSON");
        let health = json.find("\"health\":{\"state\":\"takes no writes\"");
        assert!(health < json.find("\"pool\""), "{json}");
        assert!(health.is_some(), "{json}");
    }
}
