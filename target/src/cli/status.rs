//! `onefold status`: a daemon at one moment, as a table for people.

use std::fmt::Write as _;
use std::process::ExitCode;

use api::client::Client;
use api::status::{PoolSpace, SpaceDetail, Status};
use api::tasks::TaskKind;
use api::volumes::{Shown, common_nsid};
use clap::Args;
use dedup::{Survey, VolumeShares};

use super::args::PoolArg;
use super::health::{health_text, verdict_text};
use super::limit::{guarantees_text, limits_text};
use super::reliability::reliability_text;
use super::run::converse;
use super::table::{Align, table};
use super::{Outcome, print, print_json, progress};
use crate::size::format_human;
use crate::time::format_duration;

/// `onefold status`
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  onefold status --pool /srv/pool --json")]
pub struct StatusArgs {
    /// The daemon's pool.
    #[command(flatten)]
    pub pool: PoolArg,
    /// Count first what volumes have alone and what they share, instead of showing the last figures
    #[arg(long)]
    pub survey: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `onefold status`
pub(super) fn run(args: &StatusArgs) -> Outcome {
    let pool = &args.pool.pool;
    let client = Client::new(pool);
    if args.survey {
        let surveying = client.survey();
        converse(progress::of_task(
            &client,
            TaskKind::Survey,
            "counting what volumes share",
            surveying,
        ))?;
    }
    if args.json {
        print_json(&converse(client.status())?)?;
    } else {
        let talk = async { Ok((client.status().await?, client.space_detail().await?)) };
        let (status, detail) = converse(talk)?;
        print(&render(&status, &detail, &pool.display().to_string()));
    }
    Ok(ExitCode::SUCCESS)
}

/// The namespaces of a volume for people: one identifier if it is the same everywhere.
pub(super) fn nsid_text(namespaces: &[Shown]) -> String {
    match common_nsid(namespaces) {
        Some(nsid) => nsid.to_string(),
        None if namespaces.is_empty() => "none".to_owned(),
        None => {
            let all: Vec<String> = namespaces.iter().map(|it| it.nsid.to_string()).collect();
            all.join(",")
        }
    }
}

/// The table for people. Exact bytes stand beside the rounded figures, so that sums can be checked.
fn render(status: &Status, detail: &SpaceDetail, pool_dir: &str) -> String {
    let mut text = format!(
        "onefold {}, pool {pool_dir}, up {}\n",
        status.version,
        format_duration(status.uptime_seconds)
    );
    text += &verdict_text(&status.health.verdict);
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
    rows.push(vec![
        "fingerprint".into(),
        pool.fingerprint.to_string(),
        String::new(),
    ]);
    rows.push(vec![
        "redundancy".into(),
        pool.redundancy.to_string(),
        String::new(),
    ]);
    if pool.at_risk_bytes > 0 {
        rows.push(bytes_row("fewer copies than that", pool.at_risk_bytes));
    }
    text += &table(
        &["POOL", "", ""],
        &rows,
        &[Align::Left, Align::Right, Align::Right],
    );
    if let Some(rebuild) = &pool.rebuild {
        let _ = writeln!(
            text,
            "A drive is being rebuilt: {} of {} compared, {} written.",
            format_human(rebuild.done_bytes),
            format_human(rebuild.total_bytes),
            format_human(rebuild.written_bytes)
        );
    }
    if let Some(reliability) = &status.reliability {
        text += &reliability_text(reliability, pool.redundancy);
    }
    text += "Reclaiming: freed, and free for new data when a flush has made that durable.\n";
    let _ = writeln!(
        text,
        "\nMaps in memory: {} of {} at most; parts of them were read {} times. Free blocks: {}.",
        format_human(detail.metadata_resident_bytes),
        format_human(detail.metadata_cache_bytes),
        detail.map_page_reads,
        format_human(detail.metadata_fixed_bytes)
    );
    let _ = writeln!(
        text,
        "Index: {} blocks in {} of {} at most; {} blocks are not in it, the store was asked {} times and knew {}.",
        detail.indexed_blocks,
        format_human(detail.index_bytes),
        format_human(detail.index_bytes_max),
        detail.unindexed_blocks,
        detail.on_disk_index_lookups,
        detail.on_disk_index_hits,
    );
    if detail.corrupt_blocks > 0 {
        let _ = writeln!(
            text,
            "\nDamaged blocks found while reading: {}",
            detail.corrupt_blocks
        );
    }
    text += &health_text(&status.health);
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
    text += &limits_text(&status.limits);
    text += &guarantees_text(&status.limits, status.surplus.as_ref());
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
                h.subsystem.clone(),
            ]
        })
        .collect();
    text += &table(
        &["HOST", "ADDRESS", "TRANSPORT", "QUEUES", "SUBSYSTEM"],
        &rows,
        &[
            Align::Left,
            Align::Left,
            Align::Left,
            Align::Right,
            Align::Left,
        ],
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
            format_human(shares.related_bytes),
            format_human(shares.shared_bytes.saturating_sub(shares.related_bytes)),
        ]
    };
    let rows: Vec<_> = survey.volumes.iter().map(row).collect();
    let mut text = format!("\nWhat volumes shared {} s ago:\n", survey.age_seconds);
    text += &table(
        &["VOLUME", "LOGICAL", "UNIQUE", "RELATED", "OTHERS"],
        &rows,
        &[
            Align::Left,
            Align::Right,
            Align::Right,
            Align::Right,
            Align::Right,
        ],
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
    text += "Unique: in this volume alone, and free when it is deleted. Related: shared with snapshots or clones, or with what \
             it is a clone or snapshot of. Others: shared with other volumes only.\n";
    let _ = writeln!(
        text,
        "Unique {} + shared {} = used {} then ({exactness}).",
        format_human(unique),
        format_human(survey.shared_bytes),
        format_human(survey.used_bytes)
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::volumes::Shown;

    fn example() -> Status {
        let text = include_str!("../../../api/src/status_example.json");
        serde_json::from_str(text).expect("a status")
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
}
