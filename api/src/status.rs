//! What `onefold status` shows, as JSON.
//!
//! | request | answer |
//! |---|---|
//! | `GET /v1/status` | [`Status`] |
//! | `GET /v1/space` | [`SpaceDetail`] |
//!
//! Guarantee: the JSON has exactly the fields below; outside scripts rely on them. All sizes are bytes.
//!
//! Latencies are those since the start, as the first line of `zpool iostat` is; with the buckets of two looks a reader makes
//! those of the time between them ([`Latency::since`]), whoever else looks.

use axum::extract::State;
use axum::routing::get;
use axum::{Json, Router};
use dedup::{DriveStatus, Engine, PoolStatus, Survey};
use meta::VolumeInfo;
use serde::{Deserialize, Serialize};
use subsystem::auth::{AuthFigures, TlsFigures};
use subsystem::errors::Failure;
pub use subsystem::figures::{
    AttachedHost, IoFigures, PoolSpace, ReactorFigures, RefusalFigures, Report, SpaceDetail,
    TransportFigures,
};
pub use subsystem::latency::{Latencies, Latency, Operation};
use subsystem::target::Target;

use crate::client::Client;
use crate::health::{Health, health_of};
use crate::limits::{self, LimitView, SurplusView};
use crate::listeners::ListenerView;
use crate::pool::reliability_of;
use crate::rates::Rates;
pub use crate::rates::VolumeRates;
use crate::reliability::Reliability;
use crate::server::ApiState;
use crate::volumes::{Shown, common_nsid, logical_bytes, shown};

/// A daemon at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The daemon's version.
    pub version: String,
    /// How long the daemon runs, in seconds.
    #[serde(default)]
    pub uptime_seconds: u64,
    /// The health of the pool.
    #[serde(default)]
    pub health: Health,
    /// Space of the whole pool.
    pub pool: PoolSpace,
    /// How rarely the pool loses data as it is now, and is to; `null` of a daemon that does not know.
    #[serde(default)]
    pub reliability: Option<Reliability>,
    /// The drives, and their space.
    #[serde(default)]
    pub drives: Vec<DriveStatus>,
    /// The volumes.
    pub volumes: Vec<VolumeSpace>,
    /// What volumes and hosts may do in a second, and what that held back.
    #[serde(default)]
    pub limits: Vec<LimitView>,
    /// What guarantees leave to all commands that are not within one; `null` without a guarantee.
    #[serde(default)]
    pub surplus: Option<SurplusView>,
    /// Where hosts can come in.
    #[serde(default)]
    pub listeners: Vec<ListenerView>,
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
    /// What hosts did to it since the daemon started.
    #[serde(default)]
    pub io: IoFigures,
    /// What they do to it in a second, of late; `null` in the daemon's first seconds, and the volume's.
    #[serde(default)]
    pub rates: Option<VolumeRates>,
    /// How long their commands took since then, by operation.
    #[serde(default)]
    pub latency: Latencies,
}

/// The routes.
pub(crate) fn routes() -> Router<ApiState> {
    Router::new()
        .route("/v1/status", get(status))
        .route("/v1/space", get(space))
}

/// Hosts and volumes at this moment, and the pool as it is given; the health is left to [`health_of`].
fn status_of(
    target: &Target,
    engine: &Engine,
    rates: &Rates,
    (space, reliability): (PoolStatus, Reliability),
    reports: Vec<Report>,
) -> Status {
    let mut shown = shown(&target.catalog());
    let volume = |info: &VolumeInfo| {
        let namespaces = shown.remove(&info.uuid).unwrap_or_default();
        let (io, latency) = target.volume_io(info.uuid);
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
            io,
            rates: rates.of(info.uuid),
            latency,
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
        uptime_seconds: target.uptime_seconds(),
        listeners: target
            .catalog()
            .ports
            .values()
            .map(|port| ListenerView::new(port))
            .collect(),
        pool: PoolSpace::new(&space),
        reliability: Some(reliability),
        drives: space.drives,
        volumes,
        limits: limits::all(target, engine),
        surplus: limits::surplus(target),
        hosts: target.attached_hosts(),
        transports: target.transport_figures(&transports),
        reactors,
        health: Health::default(),
        survey: engine.last_survey(),
        authentication: target.auth_figures(),
        tls: target.tls_figures(),
    }
}

/// The daemon at this moment, by what its reactors report.
pub(crate) async fn status_now(state: &ApiState, reports: Vec<Report>) -> Status {
    let space = state.engine.status();
    let reliability = reliability_of(state, &space);
    let of_pool = (space, reliability);
    let mut status = status_of(&state.target, &state.engine, &state.rates, of_pool, reports);
    status.health = health_of(&state.engine).await;
    status
}

async fn status(State(state): State<ApiState>) -> Json<Status> {
    let reports = state.daemon.reports().await;
    Json(status_now(&state, reports).await)
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
    use subsystem::DEFAULT_SUBSYSTEM_NQN;

    use super::*;
    use crate::limits::{AchievedView, LimitKind};

    /// A hundred reads, of which one took 2 ms, and half as many writes.
    const LATENCY_EXAMPLE: &str = include_str!("latency_example.json");

    pub(crate) fn example() -> Status {
        Status {
            version: "0.1.0".into(),
            uptime_seconds: 3600,
            pool: PoolSpace::new(&PoolStatus {
                capacity_bytes: 64 << 30,
                used_bytes: 4 << 20,
                free_bytes: (64 << 30) - (5 << 20),
                reclaiming_bytes: 1 << 20,
                logical_bytes: 12 << 20,
                metadata_bytes: 77,
                ..PoolStatus::default()
            }),
            reliability: Some(Reliability {
                losses_per_year: 0.015,
                losses_per_year_when_online: 0.015,
                wanted_losses_per_year: Some(1e-6),
                is_met: Some(false),
                copies_min: 1,
                annual_failure_percent: 1.5,
                replace_seconds: 86_400,
                rebuild_seconds: 1,
                rebuild_bytes_per_second: 200 << 20,
                is_rebuild_measured: false,
                is_in_cluster: false,
                remedy: Some("keep two copies".into()),
            }),
            drives: vec![DriveStatus {
                name: "/srv/pool/drive0".into(),
                capacity_bytes: 64 << 30,
                domain: None,
                used_bytes: 0,
                stale_bytes: 0,
                errors: 0,
                hedged_reads: 0,
                free_bytes: (64 << 30) - (5 << 20),
                state: dedup::DriveState::Online,
                rebuild: None,
                emptying: false,
            }],
            listeners: vec![ListenerView {
                id: 1,
                address: "rdma://0.0.0.0:4420".parse().expect("an address"),
                kept: false,
                tls: fabric::TlsMode::Off,
                ana: std::collections::BTreeMap::new(),
            }],
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
                io: IoFigures {
                    read_commands: 100,
                    write_commands: 50,
                    read_bytes: 409_600,
                    written_bytes: 204_800,
                },
                rates: Some(VolumeRates {
                    over_seconds: 5,
                    read_commands: 20,
                    write_commands: 10,
                    read_bytes: 81_920,
                    written_bytes: 40_960,
                }),
                latency: serde_json::from_str(LATENCY_EXAMPLE).expect("latencies"),
            }],
            limits: vec![LimitView {
                kind: LimitKind::Volume,
                name: "vol0".into(),
                iops: Some(1000),
                bandwidth_bytes: None,
                burst_ms: 100,
                held_commands: 7,
                held_ns: 1_500_000_000,
                guarantee_iops: Some(500),
                guarantee_bandwidth_bytes: None,
                achieved: Some(AchievedView {
                    iops: 480,
                    bandwidth_bytes: 1_966_080,
                    is_short: true,
                }),
            }],
            surplus: Some(SurplusView {
                bound_bytes: Some(1 << 20),
                held_commands: 9,
                held_ns: 2_500_000_000,
            }),
            hosts: vec![AttachedHost {
                hostnqn: "nqn.2014-08.org.nvmexpress:uuid:1".into(),
                subsystem: DEFAULT_SUBSYSTEM_NQN.into(),
                address: "192.0.2.7".into(),
                transport: "rdma".into(),
                tls: None,
                queues: 4,
                io: IoFigures::default(),
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

    /// The same as JSON: outside scripts rely on it.
    const EXAMPLE: &str = include_str!("status_example.json");

    #[test]
    fn the_json_has_exactly_the_promised_fields() {
        let json = serde_json::to_value(example()).expect("a status is always JSON");
        let promised: serde_json::Value = serde_json::from_str(EXAMPLE).expect("JSON");
        assert_eq!(json, promised);
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
