//! What a scraper reads.

use std::collections::{BTreeMap, BTreeSet};

use dedup::DriveStatus;
use meta::{FolderRoom, StoreFigures};

use subsystem::catalog::ExportKind;

use super::*;
use crate::status::tests::example;
use crate::task_list::TaskKind;

fn page() -> String {
    let space = PoolStatus {
        capacity_bytes: 64 << 30,
        drives: vec![DriveStatus {
            name: "/dev/\"a\"\n".into(),
            capacity_bytes: 64 << 30,
            domain: None,
            used_bytes: 0,
            stale_bytes: 0,
            errors: 0,
            hedged_reads: 0,
            free_bytes: 1,
            state: dedup::DriveState::Online,
            rebuild: None,
            emptying: false,
        }],
        folder: Some(FolderRoom {
            dir: "/srv/pool".into(),
            total_bytes: 2,
            available_bytes: 1,
            is_short: false,
        }),
        ..PoolStatus::default()
    };
    let mut status = example();
    status.reactors[0].in_flight = 3;
    status.reactors[0].busy_micros = 2_500_000;
    let figures = Figures {
        status,
        space,
        metadata: MetadataStatus {
            storing_microseconds: 1_500_000,
            store: Some(StoreFigures::default()),
            ..MetadataStatus::default()
        },
        drive_health: BTreeMap::from([("/dev/nvme0n1".to_owned(), ailing())]),
        networks: vec![("onefold-data0".into(), NetworkFigures::default())],
        refused: crate::Refused::default().counts(),
        work: work::Work {
            running: vec![TaskKind::Scrub],
            scrubbed_at: Some(1_790_000_000),
            exports: vec![work::Export {
                kind: ExportKind::Vhost,
                address: "/run/vm1.sock".into(),
                connections: Some(2),
            }],
        },
        sockets: Sockets::default(),
        process: Process::default(),
    };
    text_of(figures).expect("a page")
}

/// A drive that is worn.
fn ailing() -> DriveHealth {
    let log = nvme::log::SmartLog {
        critical_warning: 4,
        temperature: 311,
        available_spare: 50,
        available_spare_threshold: 10,
        percentage_used: 101,
        media_errors: 3,
        unsafe_shutdowns: 2,
        power_on_hours: 10,
        ..Default::default()
    };
    DriveHealth::new(&log, 0)
}

#[test]
fn what_drives_tell_of_their_health_is_exported() {
    let page = page();
    for (name, value) in [
        ("warning", "1"),
        ("critical_warning_bits", "4"),
        ("temperature_celsius", "38.0"),
        ("available_spare_ratio", "0.5"),
        ("available_spare_threshold_ratio", "0.1"),
        ("used_ratio", "1.01"),
        ("media_errors_total", "3"),
        ("unsafe_shutdowns_total", "2"),
        ("power_on_seconds_total", "36000"),
    ] {
        let line = format!("onefold_drive_{name}{{drive=\"/dev/nvme0n1\"}} {value}");
        assert!(page.lines().any(|is| is == line), "no '{line}' in {page}");
    }
}

#[test]
fn figures_have_a_name_a_unit_and_a_sample() {
    let page = page();
    for line in [
        "# TYPE onefold_pool_capacity_bytes gauge",
        "# UNIT onefold_pool_capacity_bytes bytes",
        "onefold_pool_capacity_bytes 68719476736",
        "onefold_pool_health{state=\"ok\"} 1",
        "onefold_pool_losses_per_year 0.015",
        "onefold_pool_wanted_losses_per_year 0.000001",
        "onefold_pool_copies_min 1",
        "onefold_volume_size_bytes{volume=\"vol0\"} 68719476736",
        "onefold_refused_total{transport=\"rdma\",reason=\"host\"} 0",
        "onefold_reactor_buffer_bytes{reactor=\"onefold-data0\"} 1048576",
        "onefold_drive_free_bytes{drive=\"/dev/\\\"a\\\"\\n\"} 1",
        "onefold_drive_online{drive=\"/dev/\\\"a\\\"\\n\"} 1",
        "onefold_drive_errors{drive=\"/dev/\\\"a\\\"\\n\"} 0",
        "onefold_drive_hedged_reads_total{drive=\"/dev/\\\"a\\\"\\n\"} 0",
        "onefold_volume_commands_total{volume=\"vol0\",operation=\"read\"} 100",
        "onefold_volume_data_bytes_total{volume=\"vol0\",operation=\"write\"} 204800",
        "onefold_limit_held_commands_total{kind=\"volume\",name=\"vol0\"} 7",
        "onefold_limit_held_seconds_total{kind=\"volume\",name=\"vol0\"} 1.5",
        "onefold_guarantee_short{kind=\"volume\",name=\"vol0\"} 1",
        "onefold_guarantee_held_commands_total 9",
        "onefold_guarantee_held_seconds_total 2.5",
        "# TYPE onefold_volume_latency_seconds histogram",
        "onefold_volume_latency_seconds_count{volume=\"vol0\",operation=\"read\"} 100",
        "onefold_volume_latency_seconds_sum{volume=\"vol0\",operation=\"write\"} 0.015",
        "onefold_volume_latency_seconds_bucket{le=\"0.000065536\",volume=\"vol0\",operation=\"read\"} 0",
        "onefold_volume_latency_seconds_bucket{le=\"0.000131072\",volume=\"vol0\",operation=\"read\"} 99",
        "onefold_volume_latency_seconds_bucket{le=\"+Inf\",volume=\"vol0\",operation=\"read\"} 100",
        "onefold_rdma_retransmits_total{reactor=\"onefold-data0\"} 0",
        "onefold_checkpoint_seconds_total 1.5",
        "# TYPE onefold_journal_records counter",
        "onefold_rocksdb_pending_compaction_bytes 0",
        "onefold_reactor_in_flight_commands{reactor=\"onefold-data0\"} 3",
        "onefold_reactor_busy_seconds_total{reactor=\"onefold-data0\"} 2.5",
        "onefold_api_refused_total{reason=\"wrong_token\"} 0",
        "process_cpu_seconds_total 0.0",
        "process_start_time_seconds 0.0",
        "onefold_tasks_running{kind=\"scrub\"} 1",
        "onefold_tasks_running{kind=\"delete\"} 0",
        "onefold_scrub_last_seconds 1790000000",
        "onefold_export_served{kind=\"vhost\",address=\"/run/vm1.sock\"} 1",
        "onefold_export_connections{kind=\"vhost\",address=\"/run/vm1.sock\"} 2",
        "# EOF",
    ] {
        assert!(page.lines().any(|is| is == line), "no '{line}' in {page}");
    }
}

/// The rules of OpenMetrics and of naming that `promtool check metrics` holds too.
#[test]
fn every_name_is_there_once_and_says_its_unit() {
    let page = page();
    let mut types = BTreeMap::new();
    for line in page.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("a type");
            assert_eq!(types.insert(name, kind), None, "{name} is there twice");
            let ours = name.starts_with("onefold_") || name.starts_with("process_");
            assert!(ours, "{name}");
            let is_plain = |c: char| c.is_ascii_lowercase() || c == '_';
            assert!(name.chars().all(is_plain), "{name}");
        }
    }
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let name = line.split(['{', ' ']).next().expect("a name");
        let family = types.keys().find(|family| {
            let rest = name.strip_prefix(**family);
            rest.is_some_and(|rest| ["", "_total", "_bucket", "_sum", "_count"].contains(&rest))
        });
        let family = family.unwrap_or_else(|| panic!("'{line}' has no type"));
        assert_eq!(
            name.ends_with("_total"),
            types[*family] == "counter",
            "{line}"
        );
    }
    let helped: BTreeSet<&str> = page
        .lines()
        .filter_map(|line| line.strip_prefix("# HELP ")?.split_once(' '))
        .map(|(name, help)| {
            assert!(!help.ends_with('.') && help.len() > 5, "{name}: {help}");
            name
        })
        .collect();
    assert_eq!(helped, types.keys().copied().collect());
}

/// Names of ours in a text: `onefold_...` and `process_...`.
fn names_in(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let is_ours = |word: &&str| word.starts_with("onefold_") || word.starts_with("process_");
    words.filter(is_ours).collect()
}

#[test]
fn the_dashboard_and_the_alerts_ask_for_nothing_that_is_not_exported() {
    let page = page();
    // By the types: a family has no sample where nothing fails.
    let types = page.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let exported: BTreeSet<String> = types
        .filter_map(|line| line.split_once(' '))
        .flat_map(|(name, kind)| match kind {
            "counter" => vec![format!("{name}_total")],
            "histogram" => ["bucket", "sum", "count"]
                .map(|end| format!("{name}_{end}"))
                .into(),
            _ => vec![name.to_owned()],
        })
        .collect();
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../packaging/monitoring");
    for file in ["alerts.yml", "grafana-dashboard.json"] {
        let path = format!("{folder}/{file}");
        let text = std::fs::read_to_string(&path).expect(&path);
        let asked = names_in(&text);
        assert!(asked.len() > 10, "{file} asks for figures");
        let unknown: Vec<_> = asked
            .iter()
            .filter(|name| !exported.contains(**name))
            .collect();
        assert!(unknown.is_empty(), "{file}: {unknown:?} is not exported");
    }
}
