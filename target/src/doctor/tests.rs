//! Machines that are made of files: a good one, and one with each fault.

use std::path::Path;

use meta::{DriveSpec, FingerprintFunction, PoolIdentity};
use tempfile::TempDir;

use super::*;

/// A machine as a fresh server with a RoCE card has it.
fn good() -> (TempDir, Machine) {
    let root = tempfile::tempdir().expect("a folder");
    let machine = Machine::at(root.path());
    for (path, text) in [
        ("/proc/sys/kernel/osrelease", "6.12.117-amd64"),
        ("/proc/sys/kernel/io_uring_disabled", "0"),
        (
            "/proc/cpuinfo",
            "processor : 0\nflags : fpu sse4_2 pclmulqdq vpclmulqdq\n",
        ),
        (
            "/proc/meminfo",
            "MemTotal: 33554432 kB\nMemAvailable: 16777216 kB\n",
        ),
        (
            "/sys/kernel/mm/transparent_hugepage/enabled",
            "always [madvise] never",
        ),
        (
            "/proc/self/limits",
            "Limit                     Soft Limit           Hard Limit           Units\n\
             Max open files            1024                 524288               files\n\
             Max locked memory         unlimited            unlimited            bytes\n",
        ),
        (
            "/sys/devices/system/clocksource/clocksource0/current_clocksource",
            "tsc",
        ),
        ("/run/systemd/timesync/synchronized", ""),
        ("/proc/sys/net/core/rmem_max", "16777216"),
        ("/proc/sys/net/core/wmem_max", "33554432"),
        ("/proc/sys/net/ipv4/tcp_rmem", "4096\t131072\t6291456"),
        ("/proc/sys/net/ipv4/tcp_wmem", "4096\t16384\t4194304"),
        ("/sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE"),
        (
            "/sys/class/infiniband/mlx5_0/ports/1/link_layer",
            "Ethernet",
        ),
        ("/dev/infiniband/rdma_cm", ""),
        ("/proc/net/tcp", SOCKETS),
        ("/sys/dev/block/259:1/partition", "1"),
        ("/sys/dev/block/259:1/start", "2048"),
        ("/sys/dev/block/259:1/alignment_offset", "0"),
        ("/sys/dev/block/queue/logical_block_size", "512"),
        ("/sys/dev/block/queue/physical_block_size", "4096"),
        ("/sys/dev/block/queue/rotational", "0"),
        ("/sys/dev/block/queue/write_cache", "write back"),
        ("/sys/dev/block/device/state", "live"),
    ] {
        set(&machine, path, text);
    }
    (root, machine)
}

/// As `/proc/net/tcp`: port 22 listens, and a connection from port 4420 is open.
const SOCKETS: &str = "  sl  local_address rem_address   st tx_queue rx_queue\n\
    0: 00000000:0016 00000000:0000 0A 00000000:00000000\n\
    1: 0100007F:1144 0100007F:D431 01 00000000:00000000\n";

fn set(machine: &Machine, path: &str, text: &str) {
    let path = machine.path(path);
    std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
    std::fs::write(path, text).expect("written");
}

const PORTS: [Port; 2] = [Port::tcp(4420, true), Port::ROCE];

fn tried() -> Tried {
    Tried {
        io_uring: Ok(()),
        firewall: Ok(String::new()),
        daemon: None,
        ports: PORTS.to_vec(),
        health: |_| Err("nobody asks here".to_owned()),
        unix_seconds: 1_800_000_000,
    }
}

fn no_pool() -> PoolFound {
    PoolFound {
        dir: "/srv/pool".into(),
        identity: None,
    }
}

fn pool_of(fingerprint: FingerprintFunction, drives: &[&Path]) -> PoolFound {
    let drives = drives.iter().map(|path| DriveSpec::new(*path, 1 << 20));
    PoolFound {
        dir: "/srv/pool".into(),
        identity: Some(Ok(PoolIdentity {
            uuid: uuid::Uuid::from_u128(1),
            sub_block_bytes: 4096,
            fingerprint,
            hash_keys: [7; 32].into(),
            drives: drives.collect(),
            spares: Vec::new(),
        })),
    }
}

/// What is wrong with a machine: the checks, their states, and that each names a remedy.
fn wrong(findings: &[Finding]) -> Vec<(&'static str, State)> {
    let wrong = findings.iter().filter(|it| it.state != State::Ok);
    let wrong = wrong.inspect(|it| assert!(it.remedy.is_some(), "{it:?}"));
    wrong.map(|it| (it.check, it.state)).collect()
}

#[test]
fn a_machine_as_it_should_be_has_nothing_to_do() {
    let (_root, machine) = good();
    let findings = examine(&machine, &tried(), &no_pool());
    assert_eq!(wrong(&findings), [], "{findings:#?}");
    assert_eq!(worst(&findings), State::Ok);
    assert!(findings.iter().all(|it| it.remedy.is_none()));
    let drive = drives::device_findings(&machine, "/dev/nvme0n1p1", "/sys/dev/block/259:1");
    assert_eq!(wrong(&drive), []);
    assert!(drive[0].found.contains("write back"), "{drive:?}");
}

#[test]
fn each_fault_is_found_by_its_check_and_has_a_remedy() {
    use State::{Fail, Warn};
    let faults: &[(&str, &str, &str, State)] = &[
        (
            "/proc/sys/kernel/osrelease",
            "5.10.0-30-amd64",
            "kernel",
            Fail,
        ),
        ("/proc/sys/kernel/osrelease", "5.15.0", "kernel", Warn),
        ("/proc/sys/kernel/osrelease", "rolling", "kernel", Warn),
        (
            "/proc/cpuinfo",
            "flags : fpu sse4_2\n",
            "fingerprints",
            Warn,
        ),
        (
            "/proc/cpuinfo",
            "flags : fpu pclmulqdq\n",
            "checksums",
            Warn,
        ),
        (
            "/proc/meminfo",
            "MemAvailable: 1048576 kB\n",
            "memory",
            Warn,
        ),
        (
            "/sys/kernel/mm/transparent_hugepage/enabled",
            "always madvise [never]",
            "huge pages",
            Warn,
        ),
        (
            "/sys/devices/system/clocksource/clocksource0/current_clocksource",
            "hpet",
            "clock source",
            Warn,
        ),
        (
            "/proc/sys/net/core/rmem_max",
            "212992",
            "socket buffers",
            Warn,
        ),
        (
            "/proc/sys/net/core/wmem_max",
            "212992",
            "socket buffers",
            Warn,
        ),
        (
            "/proc/sys/net/ipv4/tcp_rmem",
            "4096 131072 1048576",
            "socket buffers",
            Warn,
        ),
        (
            "/sys/class/infiniband/mlx5_0/ports/1/state",
            "1: DOWN",
            "RDMA",
            Warn,
        ),
        (
            "/proc/net/tcp6",
            "  sl  local_address\n 0: 00000000000000000000000000000000:1144 00000000000000000000000000000000:0000 0A\n",
            "port",
            Warn,
        ),
        (
            "/proc/net/udp",
            "  sl  local_address\n 0: 00000000:12B7 00000000:0000 07\n",
            "port",
            Warn,
        ),
    ];
    for (path, text, check, state) in faults {
        let (_root, machine) = good();
        set(&machine, path, text);
        let findings = examine(&machine, &tried(), &no_pool());
        assert_eq!(wrong(&findings), [(*check, *state)], "{path}: {text}");
    }
}

#[test]
fn limits_are_those_that_the_daemon_can_raise_itself_to() {
    let limits = |files: &str, locked: &str| {
        let (root, machine) = good();
        let text =
            format!("Max open files  64  {files}  files\nMax locked memory  64  {locked}  bytes\n");
        set(&machine, "/proc/self/limits", &text);
        (root, machine)
    };
    let (_root, machine) = limits("4096", "8388608");
    assert_eq!(system::open_files(&machine, None).state, State::Warn);
    let locked = system::locked_memory(&machine, None);
    assert_eq!(
        locked.state,
        State::Fail,
        "a RoCE card is there: {locked:?}"
    );
    std::fs::remove_dir_all(machine.path("/sys/class/infiniband")).expect("removed");
    assert_eq!(system::locked_memory(&machine, None).state, State::Warn);
    let (_root, machine) = limits("1048576", "1073741824");
    assert_eq!(system::open_files(&machine, None).state, State::Ok);
    assert_eq!(system::locked_memory(&machine, None).state, State::Ok);
}

#[test]
fn the_limits_of_a_daemon_count_and_not_those_of_the_shell() {
    let (_root, machine) = good();
    let tight = "Max open files  64  1024  files\nMax locked memory  64  65536  bytes\n";
    set(&machine, "/proc/self/limits", tight);
    let wide =
        "Max open files  64  1048576  files\nMax locked memory  unlimited  unlimited  bytes\n";
    set(&machine, "/proc/77/limits", wide);
    let of = |daemon| {
        [
            system::open_files(&machine, daemon),
            system::locked_memory(&machine, daemon),
        ]
    };
    assert!(
        of(None)
            .iter()
            .all(|it| it.state != State::Ok && it.found.contains("this shell"))
    );
    assert!(
        of(Some(77))
            .iter()
            .all(|it| it.state == State::Ok && it.found.contains("the daemon"))
    );
    assert!(
        of(Some(78)).iter().all(|it| it.state == State::Warn),
        "it ended meanwhile"
    );
}

#[test]
fn a_clock_that_nobody_sets_is_told_and_one_that_was_never_set_fails() {
    let (_root, machine) = good();
    assert_eq!(system::time(&machine, 3600).state, State::Fail);
    std::fs::remove_file(machine.path("/run/systemd/timesync/synchronized")).expect("removed");
    assert_eq!(system::time(&machine, 1_800_000_000).state, State::Warn);
}

#[test]
fn an_io_uring_that_cannot_be_used_says_who_switched_it_off() {
    let (_root, machine) = good();
    let refused = Err("operation not permitted".to_owned());
    for (disabled, part) in [
        ("0", "seccomp"),
        ("1", "io_uring_group"),
        ("2", "sysctl kernel.io_uring_disabled=0"),
    ] {
        set(&machine, "/proc/sys/kernel/io_uring_disabled", disabled);
        let finding = system::io_uring(&machine, &refused);
        assert_eq!(finding.state, State::Fail);
        assert!(finding.remedy.expect("one").contains(part), "{disabled}");
    }
}

#[test]
fn the_ports_of_a_daemon_that_serves_the_pool_are_its_own() {
    let (_root, machine) = good();
    let text = "  sl  local_address\n 0: 00000000:1144 00000000:0000 0A\n";
    set(&machine, "/proc/net/tcp", text);
    assert_eq!(wrong(&network::ports(&machine, &PORTS, false)).len(), 1);
    assert_eq!(wrong(&network::ports(&machine, &PORTS, true)), []);
    // It was told to listen at one more, and does not.
    let more = [Port::tcp(4420, true), Port::tcp(4430, true)];
    assert_eq!(
        wrong(&network::ports(&machine, &more, true)),
        [("port", State::Warn)]
    );
}

#[test]
fn a_firewall_is_asked_for_the_ports_that_others_reach() {
    let (_root, machine) = good();
    let with = |policy: &str, rules: &str| {
        let text = format!(
            "table inet filter {{\n\tchain input {{\n\t\ttype filter hook input priority filter; policy {policy};\n\
             \t\tct state established,related accept\n{rules}\t}}\n\tchain output {{\n\
             \t\ttype filter hook output priority filter; policy accept;\n\t}}\n}}\n"
        );
        network::firewall(&machine, &Ok(text), &PORTS)
    };
    assert_eq!(with("accept", "").state, State::Ok);
    let closed = with("drop", "\t\ttcp dport 22 accept\n");
    assert_eq!(closed.state, State::Warn);
    assert!(
        closed.found.contains("tcp dport 4420 and udp dport 4791"),
        "{closed:?}"
    );
    let half = with("drop", "\t\ttcp dport { 22, 4400-4500 } accept\n");
    assert!(half.found.contains("accepts udp dport 4791"), "{half:?}");
    let open = with(
        "drop",
        "\t\ttcp dport 4420 accept\n\t\tudp dport 4791 counter packets 1 bytes 2 accept\n",
    );
    assert_eq!(open.state, State::Ok, "{open:?}");
    let last = with("accept", "\t\treject with icmpx admin-prohibited\n");
    assert_eq!(last.state, State::Warn, "{last:?}");
    let unknown = network::firewall(&machine, &Err("nft is not installed".to_owned()), &PORTS);
    assert_eq!(unknown.state, State::Warn);
    // What only this machine reaches needs no rule; what others reach needs one, whatever its number is.
    let rules = "chain input {\ntype filter hook input priority filter; policy drop;\ntcp dport 4430 accept\n}\n";
    let rules = Ok(rules.to_owned());
    let ports = [Port::tcp(4430, true), Port::tcp(8420, false)];
    assert_eq!(network::firewall(&machine, &rules, &ports).state, State::Ok);
    let open = [Port::tcp(8420, true)];
    let closed = network::firewall(&machine, &rules, &open);
    assert!(closed.found.contains("tcp dport 8420"), "{closed:?}");
    set(&machine, "/proc/net/ip_tables_names", "nat\nfilter\n");
    let older = network::firewall(&machine, &Ok(String::new()), &PORTS);
    assert!(
        older.state == State::Warn && older.found.contains("iptables"),
        "{older:?}"
    );
}

#[test]
fn a_pool_whose_fingerprints_the_processor_cannot_make_fails() {
    let (_root, machine) = good();
    set(&machine, "/proc/cpuinfo", "flags : sse4_2\n");
    let features = processor::Features::of(&machine);
    let of = |function| processor::fingerprints(&features, &pool_of(function, &[])).state;
    assert_eq!(of(FingerprintFunction::Clnh), State::Fail);
    assert_eq!(of(FingerprintFunction::Blake3), State::Ok);
}

#[test]
fn the_processor_of_this_machine_is_seen_as_the_engine_sees_it() {
    let features = processor::Features::of(&Machine::this());
    assert_eq!(features.suited(), dedup::Hasher::suited(), "{features:?}");
}

#[test]
fn faults_of_a_drive_are_named_with_it() {
    let faults = [
        ("/sys/dev/block/259:1/start", "63", State::Warn),
        ("/sys/dev/block/259:1/alignment_offset", "512", State::Warn),
        (
            "/sys/dev/block/queue/logical_block_size",
            "8192",
            State::Fail,
        ),
        (
            "/sys/dev/block/queue/physical_block_size",
            "16384",
            State::Warn,
        ),
        ("/sys/dev/block/queue/rotational", "1", State::Warn),
        ("/sys/dev/block/device/state", "dead", State::Fail),
        ("/sys/dev/block/device/ioerr_cnt", "0x1f", State::Warn),
    ];
    for (path, text, state) in faults {
        let (_root, machine) = good();
        set(&machine, path, text);
        let found = drives::device_findings(&machine, "/dev/nvme0n1p1", "/sys/dev/block/259:1");
        assert_eq!(wrong(&found), [("drive", state)], "{path}: {text}");
        assert!(found.iter().all(|it| it.found.contains("/dev/nvme0n1p1")));
    }
}

#[test]
fn a_drive_that_is_gone_fails_and_a_file_is_a_drive() {
    let (root, machine) = good();
    let file = root.path().join("drive0");
    std::fs::write(&file, [0; 4096]).expect("written");
    let gone = root.path().join("gone");
    let pool = pool_of(FingerprintFunction::Clnh, &[&file, &gone]);
    let found = drives::of_pool(&machine, &pool, tried().health);
    assert_eq!(wrong(&found), [("drive", State::Fail)], "{found:?}");
    assert_eq!(found[0].state, State::Ok);
}

#[test]
fn a_pool_that_cannot_be_read_is_not_called_good() {
    let folder = tempfile::tempdir().expect("a folder");
    assert!(PoolFound::in_folder(folder.path()).identity.is_none());
    std::fs::write(folder.path().join("pool.toml"), "version = \"many\"").expect("written");
    let (_root, machine) = good();
    let findings = drives::of_pool(
        &machine,
        &PoolFound::in_folder(folder.path()),
        tried().health,
    );
    assert_eq!(wrong(&findings), [("pool", State::Warn)]);
}

#[test]
fn a_cache_that_the_kernel_does_not_flush_fails() {
    let (_root, machine) = good();
    let cache = "/sys/dev/block/device/scsi_disk/0:0:0:0/cache_type";
    set(&machine, cache, "write back");
    let found = || drives::device_findings(&machine, "/dev/sda1", "/sys/dev/block/259:1");
    assert_eq!(wrong(&found()), [], "it is flushed");
    set(
        &machine,
        "/sys/dev/block/queue/write_cache",
        "write through",
    );
    assert_eq!(wrong(&found()), [("drive", State::Fail)]);
    set(&machine, cache, "write through");
    assert_eq!(wrong(&found()), [], "it has none");
}

/// As smartctl 7.3 prints it of a good NVMe drive.
const SMART: &str = r#"{"smartctl": {"exit_status": 0}, "smart_status": {"passed": true, "nvme": {"value": 0}},
    "nvme_smart_health_information_log": {"critical_warning": 0, "temperature": 41, "available_spare": 100,
    "available_spare_threshold": 10, "percentage_used": 3, "media_errors": 0},
    "temperature": {"current": 41}}"#;

#[test]
fn the_health_of_a_drive_is_what_it_says_itself() {
    let told = |from: &str, to: &str| {
        assert!(SMART.contains(from), "{from}");
        let told = serde_json::from_str(&SMART.replace(from, to)).expect("JSON");
        drives::health("/dev/nvme0n1", &Ok(told))
    };
    let good = told("41", "41");
    assert_eq!(good.state, State::Ok);
    assert!(good.found.contains("worn to 3 %, 41 °C"), "{good:?}");
    for (from, to, state) in [
        ("\"passed\": true", "\"passed\": false", State::Fail),
        (
            "\"critical_warning\": 0",
            "\"critical_warning\": 4",
            State::Fail,
        ),
        (
            "\"available_spare\": 100",
            "\"available_spare\": 9",
            State::Fail,
        ),
        (
            "\"percentage_used\": 3",
            "\"percentage_used\": 97",
            State::Warn,
        ),
        ("\"media_errors\": 0", "\"media_errors\": 2", State::Warn),
        ("\"passed\": true,", "", State::Warn),
    ] {
        let found = told(from, to);
        assert_eq!(found.state, state, "{found:?}");
        assert!(found.remedy.is_some(), "{found:?}");
    }
    let unknown = drives::health("/dev/sda", &Err("`smartctl` cannot be run".to_owned()));
    assert_eq!(unknown.state, State::Warn);
    assert!(
        unknown
            .remedy
            .is_some_and(|it| it.contains("smartmontools"))
    );
}
