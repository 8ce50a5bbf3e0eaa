//! Pools, volumes and drives; what goes wrong with them; hosts and loads.

use std::os::unix::fs::{FileExt, PermissionsExt};
use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;

use super::harness::*;

#[test]
fn a_second_start_finds_the_same_volume_with_the_same_identity() {
    let pool = Pool::new();
    let daemon = pool.create();
    let first = json(&["volume", "list", "--pool", pool.dir(), "--json"]);
    assert_eq!(first[0]["name"], "vol0");
    assert_eq!(first[0]["nsid"], 1);
    assert_eq!(first[0]["lba_bytes"], 4096);
    // It fits: 1 MiB is for the label, and an overwrite needs a block for a moment.
    assert_eq!(first[0]["size_bytes"], 1007u64 << 20);
    daemon.stop(Signal::TERM);
    let daemon = pool.create();
    assert_eq!(
        json(&["volume", "list", "--pool", pool.dir(), "--json"]),
        first
    );
    daemon.stop(Signal::INT);
    pool.is_consistent();
    let mode = |name: &str| {
        let metadata = std::fs::metadata(pool.dir.join(name)).expect(name);
        metadata.permissions().mode() & 0o777
    };
    assert_eq!((mode("pool.toml"), mode("drive0")), (0o600, 0o600));
    assert!(
        !pool.dir.join("onefold.sock").exists(),
        "the socket goes with the daemon"
    );
}

#[test]
fn status_has_the_promised_shape_and_its_bytes_add_up() {
    let pool = Pool::new();
    let _daemon = pool.create();
    let status = json(&["status", "--pool", pool.dir(), "--json"]);
    let keys = |value: &Value| -> Vec<String> {
        value
            .as_object()
            .expect("an object")
            .keys()
            .cloned()
            .collect()
    };
    assert_eq!(
        keys(&status),
        [
            "authentication",
            "drives",
            "health",
            "hosts",
            "limits",
            "listeners",
            "pool",
            "reactors",
            "reliability",
            "surplus",
            "survey",
            "tls",
            "transports",
            "uptime_seconds",
            "version",
            "volumes"
        ]
    );
    assert_eq!(
        keys(&status["pool"]),
        [
            "at_risk_bytes",
            "capacity_bytes",
            "compression_saved_bytes",
            "dedup_ratio",
            "fingerprint",
            "free_bytes",
            "logical_bytes",
            "metadata_bytes",
            "rebuild",
            "reclaiming_bytes",
            "redundancy",
            "used_bytes",
        ]
    );
    assert_eq!(
        keys(&status["volumes"][0]),
        [
            "io",
            "latency",
            "logical_bytes",
            "name",
            "namespaces",
            "nsid",
            "rates",
            "size_bytes",
            "uuid",
            "zero_bytes"
        ]
    );
    assert_eq!(status["health"]["state"], "ok");
    let text = succeeds(&["status", "--pool", pool.dir()]);
    assert!(text.contains("\nHealth: ok\n"), "{text}");
    assert!(text.contains("No host is attached."), "{text}");
    let socket = std::fs::metadata(pool.dir.join("onefold.sock")).expect("a socket");
    assert_eq!(socket.permissions().mode() & 0o777, 0o600);
}

#[test]
fn a_pool_keeps_the_fingerprint_that_it_was_made_with() {
    let of = |pool: &Pool| -> String {
        let status = json(&["status", "--pool", pool.dir(), "--json"]);
        let name = status["pool"]["fingerprint"]
            .as_str()
            .expect("a name")
            .to_owned();
        let text = succeeds(&["status", "--pool", pool.dir()]);
        let row = text
            .lines()
            .find(|line| line.contains("fingerprint"))
            .expect("a row");
        assert!(row.contains(&name), "{text}");
        name
    };
    for (asked, other) in [("blake3", "clnh"), ("clnh", "blake3")] {
        let pool = Pool::new();
        let daemon = pool.serve(&["--create", "256M", "--fingerprint", asked]);
        assert_eq!(of(&pool), asked);
        daemon.stop(Signal::TERM);
        let daemon = pool.serve(&["--fingerprint", other]);
        assert_eq!(of(&pool), asked);
        daemon.stop(Signal::TERM);
        pool.is_consistent();
    }
    Pool::new().fails_to_serve(&["--fingerprint", "md5"], 64, &["use clnh or blake3"]);
}

#[test]
fn a_new_pool_that_its_file_system_cannot_hold_is_served_with_a_warning() {
    let pool = Pool::new();
    let log = pool.dir.with_extension("log");
    let folder = pool.dir.parent().expect("its folder");
    let system = rustix::fs::statvfs(folder).expect("statvfs");
    let more_than_free = system.f_blocks * system.f_frsize + (1 << 30);
    let size = more_than_free.to_string();
    let arguments = [
        "serve",
        "--pool",
        pool.dir(),
        "--listen",
        &pool.address,
        "--create",
        &size,
    ];
    let errors = std::fs::File::create(&log).expect("a log");
    let daemon = Daemon::start_with(&arguments, errors.into());
    let text = std::fs::read_to_string(&log).expect("the log");
    let warning = text.lines().find(|line| line.contains("may take"));
    let warning = warning.unwrap_or_else(|| panic!("no warning in:\n{text}"));
    for words in ["WARN", pool.dir(), "free space there"] {
        assert!(warning.contains(words), "{words}: {warning}");
    }
    daemon.stop(Signal::TERM);
}

#[test]
fn who_may_not_read_a_pool_is_told_so() {
    use std::os::unix::process::CommandExt;
    let pool = Pool::new();
    pool.create().stop(Signal::TERM);
    // The program where everybody can run it, and a user who owns nothing here.
    let place = tempfile::tempdir().expect("a folder");
    let everybody = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(place.path(), everybody.clone()).expect("its mode");
    let program = place.path().join("onefold");
    std::fs::copy(onefold(), &program).expect("a copy");
    let folder = pool.dir.parent().expect("its folder");
    std::fs::set_permissions(folder, everybody).expect("its mode");
    let mut command = std::process::Command::new(&program);
    command.args(["pool", "check", pool.dir()]);
    if rustix::process::geteuid().is_root() {
        command.uid(65_534).gid(65_534);
    } else {
        let nobody = std::fs::Permissions::from_mode(0o000);
        std::fs::set_permissions(&pool.dir, nobody).expect("its mode");
    }
    let output = command.output().expect("it runs");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    let owner = std::fs::Permissions::from_mode(0o700);
    std::fs::set_permissions(&pool.dir, owner).expect("its mode");
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("no permission"), "{errors}");
    pool.is_consistent();
}

#[test]
fn a_backup_is_made_with_and_without_a_daemon_and_served_as_the_pool() {
    let pool = Pool::new();
    let place = tempfile::tempdir().expect("a folder");
    let backup = |name: &str| place.path().join(name).display().to_string();
    let daemon = pool.create();
    succeeds(&[
        "volume",
        "create",
        "kept",
        "--size",
        "1G",
        "--pool",
        pool.dir(),
    ]);
    let text = succeeds(&["pool", "backup", &backup("one"), "--pool", pool.dir()]);
    assert!(text.contains(&backup("one")), "{text}");
    fails(
        &["pool", "backup", &backup("one"), "--pool", pool.dir()],
        65,
        &["new folder"],
    );
    succeeds(&[
        "volume",
        "create",
        "later",
        "--size",
        "1G",
        "--pool",
        pool.dir(),
    ]);
    daemon.stop(Signal::TERM);
    succeeds(&["pool", "backup", &backup("two"), "--pool", pool.dir()]);
    let served = format!("folder {}", backup("one"));
    for (name, has_later) in [("one", false), ("two", true)] {
        let dir = backup(name);
        if has_later {
            // The drives were opened with the other one since.
            let serve = ["serve", "--pool", &dir, "--listen", &pool.address];
            fails(&serve, 74, &["older copy", &served, "pool restore"]);
            fails(&["pool", "restore", &dir], 1, &["--yes"]);
            fails(&serve, 74, &["older copy"]);
            let text = succeeds(&["pool", "restore", &dir, "--yes"]);
            assert!(text.contains("It can be served now"), "{text}");
        }
        let report = json(&["pool", "check", &dir, "--data", "--json"]);
        assert_eq!(report["consistent"], true, "{report}");
        let listen = &pool.address;
        let daemon = Daemon::start(&["serve", "--pool", &dir, "--listen", listen]);
        let volumes = succeeds(&["volume", "list", "--pool", &dir]);
        assert!(volumes.contains("kept"), "{volumes}");
        assert_eq!(volumes.contains("later"), has_later, "{volumes}");
        daemon.stop(Signal::TERM);
    }
}

#[test]
fn volumes_are_created_resized_and_deleted_while_the_daemon_runs() {
    let pool = Pool::new();
    let daemon = pool.serve(&["--create", "1G", "--volume", "db=2G,lba=512"]);
    let at = |arguments: &[&str]| {
        let mut all = vec!["volume"];
        all.extend(arguments);
        all.extend(["--pool", pool.dir()]);
        all.into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let ask = |arguments: &[&str]| {
        let all = at(arguments);
        succeeds(&all.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let refuse = |arguments: &[&str], code, words: &[&str]| {
        let all = at(arguments);
        fails(
            &all.iter().map(String::as_str).collect::<Vec<_>>(),
            code,
            words,
        );
    };
    assert!(ask(&["list"]).contains("db"));
    assert!(ask(&["create", "scratch", "--size", "10T"]).contains("NSID 2"));
    ask(&["create", "raw", "--size", "1G", "--dedup", "off"]);
    let raw: Value = serde_json::from_str(&ask(&["show", "raw", "--json"])).expect("JSON");
    assert_eq!(raw["dedup"], false);
    assert!(ask(&["show", "raw"]).contains("dedup        off"));
    refuse(&["create", "scratch", "--size", "1G"], 65, &["scratch"]);
    refuse(&["create", "odd", "--size", "1000"], 65, &[]);
    refuse(&["create", "a/b", "--size", "1G"], 65, &[]);
    ask(&["resize", "scratch", "--size", "20T"]);
    refuse(&["resize", "scratch", "--size", "1T"], 65, &["--shrink"]);
    ask(&["resize", "scratch", "--size", "1T", "--shrink"]);
    let load = [
        "--nsid", "2", "--rw", "write", "--bs", "128k", "--size", "32M",
    ];
    pool.load(&load);
    assert_eq!(pool.figure("used_bytes"), 32 << 20);
    ask(&["delete", "scratch", "--yes"]);
    wait_for("the deleted volume's space", || {
        pool.figure("used_bytes") == 0
    });
    refuse(
        &["delete", "scratch", "--yes"],
        66,
        &["scratch", "volume list"],
    );
    refuse(&["show", "../status"], 65, &[]);
    let show: Value = serde_json::from_str(&ask(&["show", "db", "--json"])).expect("JSON");
    assert_eq!(show["lba_bytes"], 512);
    assert_eq!(show["dedup"], true);
    daemon.stop(Signal::TERM);
    pool.is_consistent();
}

#[test]
fn what_is_taken_missing_or_wrong_is_said() {
    let (one, two) = (Pool::new(), Pool::new());
    let daemon = one.create();
    let pid = daemon.child.id().to_string();
    one.fails_to_serve(&[], 69, &[&pid, "stop that process"]);
    fails(&["pool", "check", one.dir()], 1, &[&pid, "--online"]);
    let taken = [
        "serve",
        "--pool",
        two.dir(),
        "--create",
        "1G",
        "--listen",
        &one.address,
    ];
    fails(&taken, 69, &["4791", "127."]);
    daemon.stop(Signal::TERM);

    fails(
        &["status", "--pool", one.dir()],
        69,
        &["no daemon", "onefold serve"],
    );
    fails(
        &["serve", "--pool", "/nowhere/pool"],
        66,
        &["/nowhere/pool", "--create"],
    );
    fails(&["pool", "check", "/nowhere/pool"], 1, &["/nowhere/pool"]);
    fails(&["serve", "--listen", "rdma://nonsense"], 64, &["nonsense"]);
    let elsewhere = [
        "serve",
        "--pool",
        one.dir(),
        "--listen",
        "rdma://203.0.113.77:4420",
    ];
    fails(&elsewhere, 69, &["203.0.113.77"]);
    one.fails_to_serve(&["--drive", "/dev/null"], 65, &["/dev/null"]);
    fails(
        &[
            "serve",
            "--pool",
            Pool::new().dir(),
            "--create",
            "4k",
            "--listen",
            &one.address,
        ],
        65,
        &["64M"],
    );
}

#[test]
fn a_start_that_can_be_refused_at_once_makes_no_pool() {
    let (pool, other) = (Pool::new(), Pool::new());
    let daemon = other.create();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("bound").port().to_string();
    let taken = format!("tcp://127.0.0.1:{port}");
    let same = ",uuid=6f6e6566-6f6c-4d00-8000-00000000e001";
    let same = [format!("one=1G{same}"), format!("two=1G{same}")];
    let drive = format!("{}-drive=1G", pool.dir());
    let refused: [(&[&str], i32, &[&str]); 14] = [
        (
            &["--drive", &drive, "--drive", &drive],
            65,
            &["-drive'", "named twice"],
        ),
        (&["--api-group", "nobodys"], 65, &["nobodys", "groupadd"]),
        (&["--volume", "b@d=1G"], 64, &["b@d"]),
        (&["--volume", "odd=1000"], 64, &["odd", "4096"]),
        (&["--volume", "v=1G,domain=a b"], 64, &["a b"]),
        (
            &["--volume", "v=1G", "--volume", "v=2G"],
            65,
            &["'v'", "twice"],
        ),
        (
            &["--volume", &same[0], "--volume", &same[1]],
            65,
            &["'one'", "'two'", "uuid"],
        ),
        (
            &["--listen", "tcp://203.0.113.77:4420"],
            69,
            &["203.0.113.77", "ip address"],
        ),
        (
            &["--listen", "rdma://203.0.113.77:4420"],
            69,
            &["203.0.113.77"],
        ),
        (&["--listen", &taken], 69, &[&port, "in use"]),
        (&["--listen", &other.address], 69, &["4791", "127."]),
        (&["--http", "0.0.0.0:0"], 65, &["--http-tls-certificate"]),
        (
            &["--http-tls-certificate", "/nowhere"],
            65,
            &["--http-tls-key"],
        ),
        (&["--warn-at", "90,80"], 65, &["must rise"]),
    ];
    for (words, code, told) in refused {
        pool.fails_to_serve(&[&["--create", "1G"], words].concat(), code, told);
        assert!(!pool.dir.exists(), "{words:?} made a pool");
    }
    if rustix::process::geteuid().is_root() {
        let mut other_user = Command::new("setpriv");
        other_user.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
        other_user.args([&onefold(), "serve", "--create", "1G", "--pool", pool.dir()]);
        other_user.args(["--listen", &pool.address, "--api-group", "daemon"]);
        let output = other_user.output().expect("setpriv runs");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(65), "{errors}");
        assert!(errors.contains("not in that group"), "{errors}");
    }
    daemon.stop(Signal::TERM);
    pool.create().stop(Signal::TERM);
}

#[test]
fn a_refusal_names_the_object_and_what_to_do() {
    let pool = Pool::new();
    let _daemon = pool.create();
    let refused = |arguments: &[&str], words: &[&str]| {
        let all = [arguments, &["--pool", pool.dir()]].concat();
        fails(&all, 65, words);
    };
    let elsewhere = "rdma://203.0.113.9:4420";
    succeeds(&["referral", "add", elsewhere, "--pool", pool.dir()]);
    refused(
        &["referral", "add", elsewhere],
        &[elsewhere, "`onefold referral list`"],
    );
    const UUID: &str = "6f6e6566-6f6c-4d00-8000-00000000000a";
    let create = |name| ["volume", "create", name, "--size", "64M"];
    let identified = |name| [&create(name)[..], &["--uuid", UUID]].concat();
    succeeds(&[&identified("a")[..], &["--pool", pool.dir()]].concat());
    refused(&create("a"), &["`a`", "choose another name"]);
    refused(&identified("b"), &[UUID, "of volume 'a'; name another one"]);
    let (_, port) = pool.address.rsplit_once(':').expect("a port");
    let served = pool.address.clone();
    refused(
        &["listener", "add", &served],
        &[&served, "`onefold listener set`"],
    );
    let other = served.replace(port, "4421");
    refused(
        &["listener", "add", &other, "--tls", "required"],
        &[&other, "leave --tls out"],
    );
    refused(
        &["drive", "add", "memory=64M"],
        &["memory drive", "name a file or a device"],
    );
    let memory = Pool::new();
    let arguments = [
        "--create",
        "1G",
        "--drive",
        "memory=64M",
        "--drive",
        "x=64M",
    ];
    memory.fails_to_serve(&arguments, 65, &["memory drive", "the only --drive"]);
}

#[test]
fn a_drive_that_is_missing_truncated_or_of_another_pool_is_never_written() {
    let (one, two) = (Pool::new(), Pool::new());
    let daemon = one.create();
    let load = [
        "--bs", "64k", "--size", "8M", "--range", "8M", "--seed", "5",
    ];
    one.load(&[&load[..], &["--rw", "write"]].concat());
    daemon.stop(Signal::TERM);
    two.create().stop(Signal::TERM);
    let (drive, other) = (one.dir.join("drive0"), two.dir.join("drive0"));
    let aside = one.dir.join("aside");
    std::fs::rename(&drive, &aside).expect("a rename");
    one.fails_to_serve(&[], 66, &["drive0"]);
    assert!(!drive.exists(), "no empty drive is made in its place");

    std::fs::rename(&other, &drive).expect("a rename");
    one.fails_to_serve(&[], 65, &["drive0", "belongs to pool"]);
    assert_eq!(run(&["pool", "check", one.dir()]).status.code(), Some(2));
    std::fs::rename(&drive, &other).expect("a rename");

    std::fs::rename(&aside, &drive).expect("a rename");
    let file = std::fs::OpenOptions::new()
        .write(true)
        .open(&drive)
        .expect("the drive");
    file.set_len(1 << 29).expect("truncation");
    one.fails_to_serve(&[], 74, &["drive0"]);
    assert_eq!(run(&["pool", "check", one.dir()]).status.code(), Some(2));
    file.set_len(1 << 30).expect("its size again");
    let daemon = one.serve(&[]);
    one.load(&[&load[..], &["--rw", "read", "--verify"]].concat());
    daemon.stop(Signal::TERM);

    // A new pool does not take a drive that holds something.
    let taken = format!("{}", other.display());
    let third = Pool::new();
    let arguments = ["--create", "1G", "--drive", &taken];
    third.fails_to_serve(&arguments, 65, &["holds", "nothing was written"]);
    two.serve(&[]).stop(Signal::TERM);
}

#[test]
fn pool_parts_of_another_version_or_damaged_are_named_and_left_alone() {
    let pool = Pool::new();
    pool.create().stop(Signal::TERM);
    let identity = pool.dir.join("pool.toml");
    let whole = std::fs::read_to_string(&identity).expect("an identity");
    // The version depends on the fingerprint, and that on the machine.
    let version = |line: &&str| line.starts_with("format_version = ");
    let version = whole.lines().find(version).expect("it has a version");
    let changed = |from: &str, to: &str| {
        assert!(whole.contains(from), "'{from}' is not in: {whole}");
        whole.replace(from, to)
    };
    let damaged: [(String, i32, &str); 3] = [
        (changed(version, "format_version = 99"), 65, "99"),
        (changed("hash_key = \"", "hash_key = \"0"), 74, "pool.toml"),
        (String::new(), 74, "pool.toml"),
    ];
    for (text, code, word) in damaged {
        std::fs::write(&identity, &text).expect("a write");
        pool.fails_to_serve(&[], code, &["pool.toml", word]);
        assert_eq!(
            std::fs::read_to_string(&identity).expect("it is there"),
            text
        );
    }
    std::fs::write(&identity, whole).expect("a write");
    pool.serve(&[]).stop(Signal::TERM);
    pool.is_consistent();
}

#[test]
fn one_good_copy_of_a_drives_label_is_enough_and_none_is_refused() {
    let pool = Pool::new();
    pool.create().stop(Signal::TERM);
    let file = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(pool.dir.join("drive0"))
        .expect("the drive");
    let damage = |at: u64| {
        let mut old = [0; 64];
        file.read_exact_at(&mut old, at).expect("it is long enough");
        file.write_all_at(&[0x5a; 64], at).expect("a write");
        old
    };
    let second = (damage(0), damage(4096)).1;
    pool.fails_to_serve(&[], 74, &["drive0"]);
    file.write_all_at(&second, 4096).expect("a write");
    pool.serve(&[]).stop(Signal::TERM);
    pool.is_consistent();
}

#[test]
fn several_drives_make_one_pool() {
    let pool = Pool::new();
    let folder = pool.dir.parent().expect("a parent").to_owned();
    let drive = |name: &str| format!("{}=256M", folder.join(name).display());
    let (a, b) = (drive("a"), drive("b"));
    let daemon = pool.serve(&["--create", "1G", "--drive", &a, "--drive", &b]);
    let status = json(&["status", "--pool", pool.dir(), "--json"]);
    assert_eq!(
        status["pool"]["capacity_bytes"],
        (512u64 << 20) - (2 << 20),
        "less the label areas"
    );
    daemon.stop(Signal::TERM);
    let named = format!("{}", folder.join("b").display());
    pool.serve(&["--drive", &named]).stop(Signal::TERM);

    let [a, b, aside] = ["a", "b", "aside"].map(|name| folder.join(name));
    for (from, to) in [(&a, &aside), (&b, &a), (&aside, &b)] {
        std::fs::rename(from, to).expect("a rename");
    }
    let words = [
        "drive number 2 of the pool",
        "drive number 1 of the pool",
        "pool.toml",
    ];
    pool.fails_to_serve(&[], 74, &words);
}

#[test]
fn a_host_discovers_the_target_and_its_data_survives_a_kill() {
    let pool = Pool::new();
    let daemon = pool.create();
    let offers = json(&["discover", &pool.address, "--json"]);
    // The discovery service itself, and the subsystem.
    assert_eq!(offers.as_array().map(Vec::len), Some(2), "{offers}");
    assert_eq!(
        (&offers[0]["kind"], &offers[1]["kind"]),
        (&"discovery".into(), &"nvme".into())
    );
    assert_eq!(
        (&offers[1]["subsystem"], &offers[1]["port"]),
        (&NQN.into(), &"4420".into())
    );
    assert!(
        pool.address
            .contains(offers[1]["address"].as_str().expect("text"))
    );

    let load = |pattern: &str, size: &str| {
        let subsystem = pool.subsystem();
        let arguments = ["perf", &subsystem, "--rw", pattern, "--size", size];
        let more = [
            "--range", "64M", "--dup", "50", "--qd", "8", "--verify", "--json",
        ];
        json(&[&arguments[..], &more[..]].concat())
    };
    let report = load("randwrite", "16M");
    assert_eq!(
        (&report["errors"], &report["verify_errors"]),
        (&0.into(), &0.into()),
        "{report}"
    );
    assert_eq!(report["write"]["bytes"], 16 << 20);
    let before = json(&["status", "--pool", pool.dir(), "--json"]);
    assert!(
        before["pool"]["dedup_ratio"].as_f64().expect("a number") > 1.2,
        "{before}"
    );
    daemon.kill();

    pool.is_consistent();
    let daemon = pool.serve(&[]);
    let after = json(&["status", "--pool", pool.dir(), "--json"]);
    assert_eq!(
        volumes_of(&after),
        volumes_of(&before),
        "what was acknowledged is there"
    );
    assert_eq!(
        after["pool"]["logical_bytes"],
        before["pool"]["logical_bytes"]
    );
    load("randrw", "16M");
    daemon.stop(Signal::TERM);
    pool.is_consistent();
}

#[test]
fn a_load_without_its_target_or_namespace_says_so() {
    let pool = Pool::new();
    let subsystem = pool.subsystem();
    let _daemon = pool.create();
    let perf = |more: &[&str], code, words: &[&str]| {
        let arguments = [&["perf", &subsystem, "--rw", "read", "--time", "1"], more].concat();
        fails(&arguments, code, words);
    };
    perf(&["--nsid", "7"], 1, &["7"]);
    perf(&["--bs", "1000"], 1, &["--bs"]);
    perf(&["--dup", "60", "--zero", "60"], 65, &["100"]);
    let other = format!("{}/nqn.2026-11.dev.onefold:other", pool.address);
    fails(
        &["perf", &other, "--rw", "read", "--time", "1"],
        1,
        &["Connect"],
    );
}

#[test]
fn help_has_an_example_and_usage_errors_have_their_own_code() {
    for command in ["serve", "status", "discover", "perf"] {
        let help = succeeds(&[command, "--help"]);
        assert!(
            help.contains("Example") && help.contains("onefold"),
            "{help}"
        );
    }
    assert!(succeeds(&["--version"]).starts_with("onefold "));
    fails(&["serve", "--create", "lots"], 64, &["lots"]);
    fails(&["nonsense"], 64, &["nonsense"]);
}

#[test]
fn the_log_says_who_changed_what_and_who_was_refused() {
    let pool = Pool::new();
    let path = pool.dir.with_extension("log");
    let log = std::fs::File::create(&path).expect("a log");
    let arguments = [
        "serve",
        "--pool",
        pool.dir(),
        "--listen",
        &pool.address,
        "--create",
        "1G",
    ];
    let _daemon = Daemon::start_with(&arguments, log.into());
    let line = |words: &[&str]| {
        wait_for(&words.join(" "), || {
            let text = std::fs::read_to_string(&path).expect("the log");
            text.lines()
                .any(|line| words.iter().all(|word| line.contains(word)))
        });
    };
    let uid = format!("uid {}", rustix::process::getuid().as_raw());
    let at = |arguments: &[&str]| run(&[arguments, &["--pool", pool.dir()]].concat());
    assert!(
        at(&["volume", "create", "a", "--size", "1G"])
            .status
            .success()
    );
    line(&["added volume 'a'", "size_bytes 1073741824", &uid]);
    assert!(
        at(&["volume", "resize", "a", "--size", "2G"])
            .status
            .success()
    );
    line(&[
        "changed volume 'a': size_bytes from 1073741824 to 2147483648",
        &uid,
    ]);
    let host = "nqn.2014-08.org.nvmexpress:uuid:6f6e6566-6f6c-4d00-8000-000000000001";
    assert!(at(&["subsystem", "allow", NQN, host]).status.success());
    line(&[
        "changed subsystem",
        "allow_any_host from yes to no",
        host,
        &uid,
    ]);
    assert!(
        !at(&["volume", "resize", "b", "--size", "2G"])
            .status
            .success()
    );
    line(&["a change was refused", "there is no volume 'b'", &uid]);

    let other = "nqn.2014-08.org.nvmexpress:uuid:6f6e6566-6f6c-4d00-8000-000000000002";
    let load = [
        "perf",
        &pool.subsystem(),
        "--rw",
        "read",
        "--size",
        "4k",
        "--hostnqn",
        other,
    ];
    assert!(!run(&load).status.success());
    line(&[
        "Connect was refused: the host is not on the subsystem's list; `onefold subsystem allow`",
        other,
        NQN,
    ]);
    let text = std::fs::read_to_string(&path).expect("the log");
    assert!(!text.contains("host connected"), "{text}");
}

#[test]
fn a_mistyped_log_filter_is_an_error_and_not_silence() {
    let output = std::process::Command::new(onefold())
        .args(["volume", "list"])
        .env("ONEFOLD_LOG", "inof")
        .output()
        .expect("the program starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(64), "{errors}");
    assert!(
        errors.contains("ONEFOLD_LOG: 'inof' is no filter"),
        "{errors}"
    );
}
