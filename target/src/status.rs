//! What `onefold status` shows, as JSON for programs and as a table for people.
//!
//! Guarantee: the JSON has exactly the fields below; outside scripts rely on them. All sizes are bytes.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use dedup::{PoolStatus, Survey, VolumeShares};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::auth::AuthFigures;
use crate::auth::tls::TlsFigures;
use crate::catalog::Catalog;
use crate::size::format_human;
use crate::trust::Health;

/// A daemon at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The daemon's version.
    pub version: String,
    /// How the pool does, and what may need somebody's attention.
    #[serde(default)]
    pub health: Health,
    /// Space of the whole pool.
    pub pool: PoolSpace,
    /// The volumes.
    pub volumes: Vec<VolumeSpace>,
    /// One entry for each association of a host (discovery not counted).
    pub hosts: Vec<AttachedHost>,
    /// What came in by each transport that is served.
    pub transports: Vec<TransportFigures>,
    /// The data-plane threads.
    pub reactors: Vec<ReactorFigures>,
    /// What volumes have alone and share, as it was counted last; `null` before the first count.
    #[serde(default)]
    pub survey: Option<Survey>,
    /// What became of authentications.
    #[serde(default)]
    pub authentication: AuthFigures,
    /// What became of TLS.
    #[serde(default)]
    pub tls: TlsFigures,
}

/// What came in by a transport, since the daemon started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransportFigures {
    /// Its name: `rdma` or `tcp`.
    pub transport: String,
    /// Controllers of hosts, discovery included, now.
    pub controllers: u64,
    /// Queues that have joined a controller, now.
    pub queues: u64,
    /// Connections accepted.
    pub accepted: u64,
    /// Connections and commands that were refused or given up.
    pub refused: RefusalFigures,
    /// Memory held for capsules of queues, in bytes.
    pub queue_bytes: u64,
    /// Its bound; beyond, connections or commands are refused in a way that hosts try again.
    pub queue_bytes_max: u64,
    /// Data of commands under way, and of answers that hosts have not taken, in bytes.
    #[serde(default)]
    pub held_bytes: u64,
    /// How often a queue had to wait with its next command because it held its share.
    #[serde(default)]
    pub held_back: u64,
}

/// What was refused, by its reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusalFigures {
    /// Connections beyond a bound on their number, that of hosts which have not proved who they are included.
    pub too_many: u64,
    /// Connections that ask for something senseless, or do not come about in time.
    pub handshake: u64,
    /// Connections that broke the protocol.
    pub violation: u64,
    /// Connections with a wrong digest.
    pub digest: u64,
    /// Connections on which nothing moved for too long.
    pub stalled: u64,
    /// Connections or commands for whose capsules there was no memory.
    pub no_memory: u64,
    /// Connect commands, whatever was wrong with them.
    pub connect: u64,
    /// Those of them whose host is not on the list of the subsystem.
    #[serde(default)]
    pub host: u64,
}

/// A data-plane thread.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReactorFigures {
    /// The thread's name.
    pub name: String,
    /// Queues that have joined a controller there, now.
    #[serde(default)]
    pub queues: u64,
    /// Reads and writes since the daemon started.
    #[serde(default)]
    pub commands: u64,
    /// Memory for data on its way, in bytes.
    pub buffer_bytes: u64,
    /// The part of it that is in use.
    pub buffer_used_bytes: u64,
    /// How often a command had to wait for a buffer.
    pub buffer_waits: u64,
}

impl TransportFigures {
    /// Adds what another reactor saw.
    pub fn add(&mut self, other: &Self) {
        self.accepted += other.accepted;
        self.queue_bytes += other.queue_bytes;
        self.queue_bytes_max += other.queue_bytes_max;
        self.held_bytes += other.held_bytes;
        self.held_back += other.held_back;
        let (mine, theirs) = (&mut self.refused, &other.refused);
        mine.too_many += theirs.too_many;
        mine.handshake += theirs.handshake;
        mine.violation += theirs.violation;
        mine.digest += theirs.digest;
        mine.stalled += theirs.stalled;
        mine.no_memory += theirs.no_memory;
    }
}

/// Space of a pool, in bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PoolSpace {
    /// Room for data on all drives.
    pub capacity_bytes: u64,
    /// Physical data blocks in use.
    pub used_bytes: u64,
    /// Journal and metadata store.
    pub metadata_bytes: u64,
    /// Mapped sub-blocks of all volumes; zeros are not mapped.
    pub logical_bytes: u64,
    /// How often a content is mapped: `logical_bytes` by the bytes of all contents before compression;
    /// 1 for an empty pool.
    pub dedup_ratio: f64,
    /// What compression saves: without it, `used_bytes` would be that much more.
    pub compression_saved_bytes: u64,
}

/// Space of a volume, in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeSpace {
    /// The volume's name.
    pub name: String,
    /// The identifier of its namespaces, if it is the same in all subsystems that show it; `null` if none does,
    /// or if they differ.
    pub nsid: Option<u32>,
    /// Where hosts find it.
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

/// A volume as a subsystem shows it to hosts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shown {
    /// The subsystem's name.
    pub subsystem: String,
    /// The namespace's identifier there.
    pub nsid: u32,
}

/// The namespaces of all volumes that are shown to hosts.
pub(crate) fn shown(catalog: &Catalog) -> BTreeMap<Uuid, Vec<Shown>> {
    let mut shown: BTreeMap<Uuid, Vec<Shown>> = BTreeMap::new();
    for subsystem in catalog.subsystems.values() {
        for (nsid, namespace) in &subsystem.namespaces {
            shown.entry(namespace.volume).or_default().push(Shown {
                subsystem: subsystem.nqn.to_string(),
                nsid: *nsid,
            });
        }
    }
    shown
}

/// The identifier that all of these namespaces have.
pub(crate) fn common_nsid(namespaces: &[Shown]) -> Option<u32> {
    let first = namespaces.first()?.nsid;
    namespaces
        .iter()
        .all(|it| it.nsid == first)
        .then_some(first)
}

/// The namespaces of a volume for people: one identifier if it is the same everywhere.
pub(crate) fn nsid_text(namespaces: &[Shown]) -> String {
    match common_nsid(namespaces) {
        Some(nsid) => nsid.to_string(),
        None if namespaces.is_empty() => "none".to_owned(),
        None => {
            let all: Vec<String> = namespaces.iter().map(|it| it.nsid.to_string()).collect();
            all.join(",")
        }
    }
}

/// A host's association.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachedHost {
    /// The host's NQN.
    pub hostnqn: String,
    /// The subsystem that it uses.
    #[serde(default)]
    pub subsystem: String,
    /// The address it comes from.
    pub address: String,
    /// The transport: `rdma` or `tcp`.
    pub transport: String,
    /// The cipher suite of TLS; `null` without TLS.
    #[serde(default)]
    pub tls: Option<String>,
    /// Its I/O queues.
    pub queues: u16,
}

impl PoolSpace {
    /// The public figures of an engine's status.
    #[must_use]
    pub fn new(status: &PoolStatus) -> Self {
        let saved = status.compressed_bytes.saturating_sub(status.packed_bytes);
        let dedup_ratio = match status.used_bytes + saved {
            0 => 1.0,
            contents => round_ratio(status.logical_bytes as f64 / contents as f64),
        };
        Self {
            capacity_bytes: status.capacity_bytes,
            used_bytes: status.used_bytes,
            metadata_bytes: status.metadata_bytes,
            logical_bytes: status.logical_bytes,
            dedup_ratio,
            compression_saved_bytes: saved,
        }
    }
}

/// Three decimals are enough for a reader, and keep the JSON short.
fn round_ratio(ratio: f64) -> f64 {
    (ratio * 1000.0).round() / 1000.0
}

/// The parts of the pool's space that the public JSON leaves out, for the table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpaceDetail {
    /// Freed, but not reusable before the next flush, in bytes.
    pub reclaiming_bytes: u64,
    /// Free for new data, in bytes.
    pub free_bytes: u64,
    /// Why the pool takes no writes at present, if so.
    pub read_only: Option<String>,
    /// Blocks found damaged since the pool was opened.
    pub corrupt_blocks: u64,
    /// Memory that the maps of volumes may take (`serve --metadata-cache`), in bytes.
    #[serde(default)]
    pub metadata_cache_bytes: u64,
    /// Memory that they take now, in bytes.
    #[serde(default)]
    pub metadata_resident_bytes: u64,
    /// Reads of the store for parts of maps that were not in memory, since the pool was opened.
    #[serde(default)]
    pub map_page_reads: u64,
    /// Memory that the index takes, in bytes.
    #[serde(default)]
    pub index_bytes: u64,
    /// Memory that it may take (`serve --index-memory`), in bytes.
    #[serde(default)]
    pub index_bytes_max: u64,
    /// Blocks that it has.
    #[serde(default)]
    pub indexed_blocks: u64,
    /// Blocks with a fingerprint that it does not have: they are found through the store.
    #[serde(default)]
    pub unindexed_blocks: u64,
    /// Contents that the store was asked for, since the pool was opened.
    #[serde(default)]
    pub hint_lookups: u64,
    /// Those of them that the store knew.
    #[serde(default)]
    pub hint_hits: u64,
}

impl SpaceDetail {
    /// The details of an engine's status.
    #[must_use]
    pub fn new(status: &PoolStatus) -> Self {
        Self {
            reclaiming_bytes: status.reclaiming_bytes,
            free_bytes: status.free_bytes,
            read_only: status.read_only.clone(),
            corrupt_blocks: status.corrupt_blocks,
            metadata_cache_bytes: status.metadata_cache_bytes,
            metadata_resident_bytes: status.metadata_resident_bytes,
            map_page_reads: status.map_page_reads,
            index_bytes: status.index_bytes,
            index_bytes_max: status.index_bytes_max,
            indexed_blocks: status.indexed_blocks,
            unindexed_blocks: status.unindexed_blocks,
            hint_lookups: status.hint_lookups,
            hint_hits: status.hint_hits,
        }
    }
}

/// The table for people. Exact bytes stand beside the rounded figures, so that sums can be checked.
#[must_use]
pub fn render(status: &Status, detail: &SpaceDetail, pool_dir: &str) -> String {
    let mut text = format!("onefold {}, pool {pool_dir}\n", status.version);
    text += &crate::cli::verdict_text(&status.health.verdict);
    text.push('\n');
    let pool = &status.pool;
    let bytes_row = |label: &str, bytes: u64| {
        vec![
            label.to_owned(),
            format_human(bytes),
            format!("{bytes} bytes"),
        ]
    };
    let mut rows = vec![
        used_row(pool),
        bytes_row("reclaiming", detail.reclaiming_bytes),
        bytes_row("free", detail.free_bytes),
        bytes_row("capacity", pool.capacity_bytes),
        bytes_row("metadata", pool.metadata_bytes),
        bytes_row("logical", pool.logical_bytes),
    ];
    rows.push(vec![
        "dedup ratio".into(),
        format!("{:.2}", pool.dedup_ratio),
        String::new(),
    ]);
    rows.push(bytes_row(
        "saved by compression",
        pool.compression_saved_bytes,
    ));
    text += &table(
        &["POOL", "", ""],
        &rows,
        &[Align::Left, Align::Right, Align::Right],
    );
    text += "Reclaiming: freed, and free for new data when a flush has made that durable.\n";
    let _ = writeln!(
        text,
        "\nMaps in memory: {} of {} at most; parts of them were read {} times.",
        format_human(detail.metadata_resident_bytes),
        format_human(detail.metadata_cache_bytes),
        detail.map_page_reads
    );
    let _ = writeln!(
        text,
        "Index: {} blocks in {} of {} at most; {} blocks are not in it, the store was asked {} times and knew {}.",
        detail.indexed_blocks,
        format_human(detail.index_bytes),
        format_human(detail.index_bytes_max),
        detail.unindexed_blocks,
        detail.hint_lookups,
        detail.hint_hits,
    );
    if detail.corrupt_blocks > 0 {
        let _ = writeln!(
            text,
            "\nDamaged blocks found while reading: {}",
            detail.corrupt_blocks
        );
    }
    text += &crate::cli::health_text(&status.health);
    text.push('\n');
    let rows: Vec<_> = status
        .volumes
        .iter()
        .map(|v| {
            vec![
                v.name.clone(),
                nsid_text(&v.namespaces),
                format_human(v.size_bytes),
                format_human(v.logical_bytes),
                format_human(v.zero_bytes),
                v.uuid.clone(),
            ]
        })
        .collect();
    text += &table(
        &["VOLUME", "NSID", "SIZE", "LOGICAL", "ZERO", "UUID"],
        &rows,
        &[
            Align::Left,
            Align::Right,
            Align::Right,
            Align::Right,
            Align::Right,
            Align::Left,
        ],
    );
    text += "Zero: reads as zeros, because it was never written, trimmed or written with zeros; it takes no space.\n";
    if let Some(survey) = &status.survey {
        text += &survey_text(survey);
    }
    text.push('\n');
    if status.hosts.is_empty() {
        text += "No host is attached.\n";
        return text;
    }
    let rows: Vec<_> = status
        .hosts
        .iter()
        .map(|h| {
            vec![
                h.hostnqn.clone(),
                h.address.clone(),
                match &h.tls {
                    Some(suite) => format!("{}, {suite}", h.transport),
                    None => h.transport.clone(),
                },
                h.queues.to_string(),
            ]
        })
        .collect();
    text += &table(
        &["HOST", "ADDRESS", "TRANSPORT", "QUEUES"],
        &rows,
        &[Align::Left, Align::Left, Align::Left, Align::Right],
    );
    text
}

/// What is used, and how much of the pool that is: 100 % when nothing is free, and only then.
fn used_row(pool: &PoolSpace) -> Vec<String> {
    let percent = u128::from(pool.used_bytes) * 100 / u128::from(pool.capacity_bytes.max(1));
    vec![
        "used".to_owned(),
        format!("{percent} %, {}", format_human(pool.used_bytes)),
        format!("{} bytes", pool.used_bytes),
    ]
}

/// What volumes have alone and share, all of it as it was when it was counted; how the figures add up, and
/// how exact they are.
fn survey_text(survey: &Survey) -> String {
    let row = |shares: &VolumeShares| {
        vec![
            shares.name.clone(),
            format_human(shares.logical_bytes),
            format_human(shares.unique_bytes),
            format_human(shares.shared_bytes),
        ]
    };
    let rows: Vec<_> = survey.volumes.iter().map(row).collect();
    let mut text = format!("\nWhat volumes shared {} s ago:\n", survey.age_seconds);
    text += &table(
        &["VOLUME", "LOGICAL", "UNIQUE", "SHARED"],
        &rows,
        &[Align::Left, Align::Right, Align::Right, Align::Right],
    );
    let unique: u64 = survey.volumes.iter().map(|v| v.unique_bytes).sum();
    let exactness = match survey.sampled_one_in {
        0 | 1 => "exact".to_owned(),
        several => {
            let error = survey.volumes.iter().map(|v| v.error_bytes).max();
            let error = format_human(error.unwrap_or(0));
            format!("from one block in {several}, each figure within {error} in 19 of 20 cases")
        }
    };
    text += "Unique: in this volume alone, and free when it is deleted. Shared: in other volumes too.\n";
    let _ = writeln!(
        text,
        "Unique {} + shared {} = used {} then ({exactness}).",
        format_human(unique),
        format_human(survey.shared_bytes),
        format_human(survey.used_bytes)
    );
    text
}

/// How a column is aligned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Text.
    Left,
    /// Figures.
    Right,
}

/// Aligns rows under their headings, two spaces between columns, no blanks at line ends.
#[must_use]
pub fn table(headings: &[&str], rows: &[Vec<String>], align: &[Align]) -> String {
    let width_of = |column: usize| {
        rows.iter()
            .filter_map(|row| row.get(column))
            .map(|cell| cell.chars().count())
            .chain([headings[column].chars().count()])
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..headings.len()).map(width_of).collect();
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let mut line = String::new();
        for (column, cell) in cells.enumerate().take(widths.len()) {
            let gap = " ".repeat(widths[column].saturating_sub(cell.chars().count()));
            if column > 0 {
                line += "  ";
            }
            match align.get(column) {
                Some(Align::Right) => line = line + &gap + cell,
                _ => line = line + cell + &gap,
            }
        }
        line.truncate(line.trim_end().len());
        line + "\n"
    };
    let mut text = line(&mut headings.iter().copied());
    for row in rows {
        text += &line(&mut row.iter().map(String::as_str));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Status {
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
                    subsystem: crate::DEFAULT_SUBSYSTEM_NQN.into(),
                    nsid: 1,
                }],
                uuid: "6f6e6566-6f6c-4d00-8000-000000000001".into(),
                size_bytes: 64 << 30,
                logical_bytes: 12 << 20,
                zero_bytes: (64 << 30) - (12 << 20),
            }],
            hosts: vec![AttachedHost {
                hostnqn: "nqn.2014-08.org.nvmexpress:uuid:1".into(),
                subsystem: crate::DEFAULT_SUBSYSTEM_NQN.into(),
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
                },
                "volumes": [{
                    "name": "vol0",
                    "nsid": 1,
                    "namespaces": [{"subsystem": crate::DEFAULT_SUBSYSTEM_NQN, "nsid": 1}],
                    "uuid": "6f6e6566-6f6c-4d00-8000-000000000001",
                    "size_bytes": 64u64 << 30,
                    "logical_bytes": 12 << 20,
                    "zero_bytes": (64u64 << 30) - (12 << 20),
                }],
                "hosts": [{
                    "hostnqn": "nqn.2014-08.org.nvmexpress:uuid:1",
                    "subsystem": crate::DEFAULT_SUBSYSTEM_NQN,
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
    fn an_empty_pool_has_a_ratio_of_one() {
        assert_eq!(PoolSpace::new(&PoolStatus::default()).dedup_ratio, 1.0);
    }

    #[test]
    fn what_compression_saves_does_not_count_as_deduplication() {
        let space = PoolSpace::new(&PoolStatus {
            logical_bytes: 20 * 4096,
            used_bytes: 6 * 4096,
            compressed_bytes: 8 * 4096,
            packed_bytes: 4 * 4096,
            ..PoolStatus::default()
        });
        assert_eq!(space.compression_saved_bytes, 4 * 4096);
        assert_eq!(space.dedup_ratio, 2.0);
    }

    #[test]
    fn what_is_wrong_comes_first_with_its_time_and_remedy() {
        let mut status = example();
        let reason = dedup::Reason {
            what: "the pool is full".into(),
            since: "2026-11-22T15:04:15Z".into(),
            remedy: "add a drive".into(),
        };
        status.health.verdict = dedup::Verdict {
            state: dedup::HealthState::TakesNoWrites,
            reasons: vec![reason],
            refused_writes: 7,
        };
        status.pool.used_bytes = status.pool.capacity_bytes;
        let text = render(&status, &SpaceDetail::default(), "/srv/pool");
        let second = text.lines().nth(1).expect("a second line");
        assert_eq!(
            second,
            "Health: TAKES NO WRITES (7 writes failed since the start)"
        );
        let third = text.lines().nth(2).expect("a third line");
        assert_eq!(
            third,
            "  since 2026-11-22T15:04:15Z: the pool is full; add a drive"
        );
        assert!(text.contains("100 %, 64.0 GiB"), "{text}");
        let json = serde_json::to_string(&status).expect("JSON");
        let health = json.find("\"health\":{\"state\":\"takes no writes\"");
        assert!(health < json.find("\"pool\""), "{json}");
        assert!(health.is_some(), "{json}");
    }

    #[test]
    fn the_identifiers_of_a_volume_are_those_of_its_namespaces() {
        let shown = |nsids: &[u32]| -> Vec<Shown> {
            let shown = nsids.iter().map(|nsid| Shown {
                subsystem: format!("nqn.2026-11.dev:{nsid}"),
                nsid: *nsid,
            });
            shown.collect()
        };
        assert_eq!(nsid_text(&shown(&[])), "none");
        assert_eq!(nsid_text(&shown(&[7, 7])), "7");
        assert_eq!(nsid_text(&shown(&[7, 9])), "7,9");
        assert_eq!(common_nsid(&shown(&[7, 9])), None);
    }

    #[test]
    fn the_table_is_aligned_and_its_bytes_add_up() {
        let detail = SpaceDetail {
            reclaiming_bytes: 1 << 20,
            free_bytes: (64 << 30) - (5 << 20),
            ..SpaceDetail::default()
        };
        let text = render(&example(), &detail, "/srv/pool");
        let bytes_of = |label: &str| -> u64 {
            let line = text.lines().find(|l| l.starts_with(label)).expect(label);
            let fields: Vec<_> = line.split_whitespace().collect();
            fields[fields.len() - 2].parse().expect("bytes")
        };
        assert_eq!(
            bytes_of("used") + bytes_of("reclaiming") + bytes_of("free"),
            bytes_of("capacity")
        );
        assert!(text.contains("VOLUME  NSID"), "{text}");
        assert!(text.lines().all(|l| l == l.trim_end()), "{text}");
        let column = |line: &str, word: &str| line.find(word).expect("the word is in the line");
        let heading = text.lines().find(|l| l.starts_with("HOST")).expect("hosts");
        let row = text
            .lines()
            .find(|l| l.starts_with("nqn."))
            .expect("a host");
        assert_eq!(column(heading, "ADDRESS"), column(row, "192.0.2.7"));
    }
}
