//! What happened between two looks at the daemon, a second.

use std::collections::HashMap;
use std::time::Instant;

use api::status::{IoFigures, Latencies, PoolSpace, Status};
use serde::Serialize;

/// The daemon's status, and when it was asked.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    pub(super) at: Instant,
    pub(super) status: Status,
}

/// Reads and writes a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct IoRates {
    /// Read commands a second.
    pub(super) reads: f64,
    /// Write commands a second.
    pub(super) writes: f64,
    /// Bytes read a second.
    pub(super) read_bytes: f64,
    /// Bytes written a second.
    pub(super) written_bytes: f64,
}

impl IoRates {
    fn between(before: &IoFigures, now: &IoFigures, seconds: f64) -> Self {
        let rate = |before: u64, now: u64| per_second(before, now, seconds);
        Self {
            reads: rate(before.read_commands, now.read_commands),
            writes: rate(before.write_commands, now.write_commands),
            read_bytes: rate(before.read_bytes, now.read_bytes),
            written_bytes: rate(before.written_bytes, now.written_bytes),
        }
    }

    fn commands(&self) -> f64 {
        self.reads + self.writes
    }
}

/// A counter that starts anew, because the daemon did, counts from zero.
fn per_second(before: u64, now: u64, seconds: f64) -> f64 {
    let more = now.checked_sub(before).unwrap_or(now);
    match seconds > 0.0 {
        true => more as f64 / seconds,
        false => 0.0,
    }
}

/// A volume.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct VolumeRates {
    #[serde(skip)]
    pub(super) uuid: String,
    pub(super) name: String,
    pub(super) size_bytes: u64,
    pub(super) logical_bytes: u64,
    #[serde(flatten)]
    pub(super) io: IoRates,
    /// How long the commands between the two looks took.
    pub(super) latency: Latencies,
}

/// A host's association with a subsystem.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct HostRates {
    pub(super) hostnqn: String,
    pub(super) address: String,
    pub(super) transport: String,
    pub(super) subsystem: String,
    pub(super) queues: u16,
    #[serde(flatten)]
    pub(super) io: IoRates,
}

/// A data-plane thread.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct ReactorRates {
    pub(super) name: String,
    pub(super) queues: u64,
    /// Reads and writes a second.
    pub(super) commands: f64,
    /// The share of the time in which it worked: 1 is a whole core.
    pub(super) busy: f64,
    pub(super) buffer_bytes: u64,
    pub(super) buffer_used_bytes: u64,
    /// How often a command had to wait for a buffer, a second.
    pub(super) buffer_waits: f64,
}

/// All of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Rates {
    pub(super) version: String,
    pub(super) uptime_seconds: u64,
    /// Between the two looks.
    pub(super) seconds: f64,
    pub(super) state: String,
    pub(super) pool: PoolSpace,
    pub(super) total: IoRates,
    /// The busiest first.
    pub(super) volumes: Vec<VolumeRates>,
    /// The busiest first.
    pub(super) hosts: Vec<HostRates>,
    pub(super) reactors: Vec<ReactorRates>,
}

impl Rates {
    /// What happened between two looks; of each table the busiest rows.
    pub(super) fn between(before: &Sample, now: &Sample, rows_max: usize) -> Self {
        let seconds = now.at.saturating_duration_since(before.at).as_secs_f64();
        let (was, is) = (&before.status, &now.status);
        let old: HashMap<&str, (IoFigures, &Latencies)> = was
            .volumes
            .iter()
            .map(|v| (v.uuid.as_str(), (v.io, &v.latency)))
            .collect();
        let none = Latencies::default();
        let volumes = is.volumes.iter().map(|volume| {
            let before = old.get(volume.uuid.as_str()).copied();
            let (before, latency) = before.unwrap_or((IoFigures::default(), &none));
            VolumeRates {
                uuid: volume.uuid.clone(),
                name: volume.name.clone(),
                size_bytes: volume.size_bytes,
                logical_bytes: volume.logical_bytes,
                io: IoRates::between(&before, &volume.io, seconds),
                latency: volume.latency.since(latency),
            }
        });
        let mut volumes: Vec<VolumeRates> = volumes.collect();
        let sum = |total: IoRates, volume: &VolumeRates| IoRates {
            reads: total.reads + volume.io.reads,
            writes: total.writes + volume.io.writes,
            read_bytes: total.read_bytes + volume.io.read_bytes,
            written_bytes: total.written_bytes + volume.io.written_bytes,
        };
        let total = volumes.iter().fold(IoRates::default(), sum);
        busiest(&mut volumes, |volume| &volume.io, rows_max);
        // Several associations of a host at one address come in the same order in both.
        let key = |host: &api::status::AttachedHost| {
            (
                host.hostnqn.clone(),
                host.subsystem.clone(),
                host.address.clone(),
                host.transport.clone(),
            )
        };
        let mut old: HashMap<_, Vec<IoFigures>> = HashMap::new();
        for host in was.hosts.iter().rev() {
            old.entry(key(host)).or_default().push(host.io);
        }
        let hosts = is.hosts.iter().map(|host| {
            let before = old
                .get_mut(&key(host))
                .and_then(Vec::pop)
                .unwrap_or_default();
            HostRates {
                hostnqn: host.hostnqn.clone(),
                address: host.address.clone(),
                transport: host.transport.clone(),
                subsystem: host.subsystem.clone(),
                queues: host.queues,
                io: IoRates::between(&before, &host.io, seconds),
            }
        });
        let mut hosts: Vec<HostRates> = hosts.collect();
        busiest(&mut hosts, |host| &host.io, rows_max);
        let old: HashMap<&str, _> = was
            .reactors
            .iter()
            .map(|it| (it.name.as_str(), it))
            .collect();
        let reactors = is.reactors.iter().take(rows_max).map(|reactor| {
            let before = old.get(reactor.name.as_str());
            let (commands, waits, busy) = before.map_or((0, 0, 0), |it| {
                (it.commands, it.buffer_waits, it.busy_micros)
            });
            ReactorRates {
                name: reactor.name.clone(),
                queues: reactor.queues,
                commands: per_second(commands, reactor.commands, seconds),
                busy: per_second(busy, reactor.busy_micros, seconds) / 1e6,
                buffer_bytes: reactor.buffer_bytes,
                buffer_used_bytes: reactor.buffer_used_bytes,
                buffer_waits: per_second(waits, reactor.buffer_waits, seconds),
            }
        });
        Self {
            version: is.version.clone(),
            uptime_seconds: is.uptime_seconds,
            seconds,
            state: is.health.verdict.state.to_string(),
            pool: is.pool.clone(),
            total,
            volumes,
            hosts,
            reactors: reactors.collect(),
        }
    }
}

fn busiest<T>(rows: &mut Vec<T>, io: impl Fn(&T) -> &IoRates, rows_max: usize) {
    // Equal ones stay in their order, so that idle rows do not jump.
    rows.sort_by(|a, b| io(b).commands().total_cmp(&io(a).commands()));
    rows.truncate(rows_max);
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use api::status::Operation;

    use super::*;

    /// Two looks, two seconds apart, between which the first volume was read.
    pub(in super::super) fn samples() -> (Sample, Sample) {
        let text = include_str!("../../../../api/src/status_example.json");
        let status: Status = serde_json::from_str(text).expect("a status");
        let before = Sample {
            at: Instant::now(),
            status,
        };
        let mut now = before.clone();
        now.at += Duration::from_secs(2);
        let io = &mut now.status.volumes[0].io;
        (io.read_commands, io.read_bytes) = (io.read_commands + 3000, io.read_bytes + (12 << 20));
        // Those 3000 took 1.7 ms, which none did before.
        let more = r#"{"read": {"commands": 3000, "total_ns": 5100000000, "mean_ns": 0, "p50_ns": 0, "p99_ns": 0,
            "p999_ns": 0, "buckets": [{"below_ns": 1835008, "commands": 3000}]}}"#;
        let more: Latencies = serde_json::from_str(more).expect("latencies");
        now.status.volumes[0].latency.add(&more);
        let io = &mut now.status.hosts[0].io;
        (io.read_commands, io.read_bytes) = (io.read_commands + 3000, io.read_bytes + (12 << 20));
        now.status.reactors[0].commands += 3000;
        now.status.reactors[0].busy_micros += 500_000;
        let mut idle = now.status.volumes[0].clone();
        (idle.name, idle.uuid, idle.io) = ("idle".into(), "idle".into(), IoFigures::default());
        now.status.volumes.insert(0, idle);
        (before, now)
    }

    #[test]
    fn rates_are_differences_by_the_time_between_two_looks() {
        let (before, now) = samples();
        let rates = Rates::between(&before, &now, 10);
        let names: Vec<&str> = rates.volumes.iter().map(|v| v.name.as_str()).collect();
        assert_eq!(names, ["vol0", "idle"], "the busiest first");
        assert_eq!(rates.volumes[0].io.reads, 1500.0);
        assert_eq!(rates.volumes[0].io.read_bytes, f64::from(6 << 20));
        let latency = &rates.volumes[0].latency;
        let read = latency.of(Operation::Read);
        assert_eq!((read.commands(), read.mean_ns()), (3000, 1_700_000));
        assert_eq!(
            read.permille_ns(500),
            1_835_008,
            "of those since the first look"
        );
        assert!(!latency.0.contains_key(&Operation::Write), "{latency:?}");
        assert_eq!(rates.hosts[0].io.reads, 1500.0);
        assert_eq!(rates.reactors[0].commands, 1500.0);
        assert_eq!(rates.reactors[0].busy, 0.25, "half a second of two");
        assert_eq!(rates.total.reads, 1500.0);
        assert_eq!(Rates::between(&before, &now, 1).volumes.len(), 1);
    }

    #[test]
    fn a_daemon_that_was_restarted_gives_no_nonsense() {
        let (before, now) = samples();
        let rates = Rates::between(&now, &before, 10);
        assert_eq!(rates.total.reads, 0.0, "no time has passed");
        let mut later = before.clone();
        later.at = now.at + Duration::from_secs(1);
        let rates = Rates::between(&now, &later, 10);
        assert_eq!(rates.total.reads, 100.0, "counted from zero");
    }
}
