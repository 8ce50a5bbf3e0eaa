//! The `onefold` program as its owner uses it: started, asked, stopped, killed, misused. Every daemon
//! listens on a loopback address of its own, so that stories run side by side.

use std::io::{BufRead, BufReader};
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

const ONEFOLD: &str = env!("CARGO_BIN_EXE_onefold");
const NQN: &str = "nqn.2026-11.dev.onefold:default";

/// A loopback address that no other story uses.
fn address() -> String {
    static NEXT: AtomicU16 = AtomicU16::new(1);
    let [pid_high, pid_low] = (std::process::id() as u16).to_be_bytes();
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    // 127.1.0.0 and up: away from what a host of this machine takes at random is not possible, but
    // two of the same are one in millions.
    let host = Ipv4Addr::new(127, pid_high | 0x80, pid_low, number as u8);
    format!("rdma://{host}:4420")
}

fn run(arguments: &[&str]) -> Output {
    Command::new(ONEFOLD)
        .args(arguments)
        .output()
        .expect("the program starts")
}

#[track_caller]
fn succeeds(arguments: &[&str]) -> String {
    let output = run(arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{arguments:?}: {:?} {errors}",
        output.status
    );
    String::from_utf8(output.stdout).expect("text")
}

/// The command fails with that exit code, and its message holds those words.
#[track_caller]
fn fails(arguments: &[&str], code: i32, words: &[&str]) {
    let output = run(arguments);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {errors}");
    for word in words {
        assert!(errors.contains(word), "'{word}' is not in: {errors}");
    }
}

fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&succeeds(arguments)).expect("JSON")
}

/// A pool folder and how it is served.
struct Pool {
    _folder: TempDir,
    dir: PathBuf,
    address: String,
}

impl Pool {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let dir = folder.path().join("pool");
        Self {
            _folder: folder,
            dir,
            address: address(),
        }
    }

    fn dir(&self) -> &str {
        self.dir.to_str().expect("text")
    }

    fn subsystem(&self) -> String {
        format!("{}/{NQN}", self.address)
    }

    fn serve(&self, more: &[&str]) -> Daemon {
        let mut arguments = vec!["serve", "--pool", self.dir(), "--listen", &self.address];
        arguments.extend(more);
        Daemon::start(&arguments)
    }

    fn create(&self) -> Daemon {
        self.serve(&["--create", "1G"])
    }

    fn fails_to_serve(&self, more: &[&str], code: i32, words: &[&str]) {
        let mut arguments = vec!["serve", "--pool", self.dir(), "--listen", &self.address];
        arguments.extend(more);
        fails(&arguments, code, words);
    }

    fn is_consistent(&self) {
        let report = json(&["pool", "check", self.dir(), "--data", "--json"]);
        assert_eq!(report["consistent"], true, "{report}");
    }
}

/// A daemon that is ready.
struct Daemon {
    child: Child,
}

impl Daemon {
    fn start(arguments: &[&str]) -> Self {
        Self::start_with(arguments, Stdio::inherit())
    }

    /// The same, with its log there.
    fn start_with(arguments: &[&str], log: Stdio) -> Self {
        let mut child = Command::new(ONEFOLD)
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .expect("the program starts");
        let mut first = String::new();
        let stdout = child.stdout.take().expect("a pipe");
        let mut stdout = BufReader::new(stdout);
        stdout.read_line(&mut first).expect("a line");
        assert!(first.starts_with("ready rdma"), "'{first}'");
        // The rest is read away, so that the daemon never waits for the pipe.
        std::thread::spawn(move || std::io::copy(&mut stdout, &mut std::io::sink()));
        Self { child }
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).expect("the daemon lives");
    }

    /// Asks it to stop, and expects a clean end.
    #[track_caller]
    fn stop(mut self, signal: Signal) {
        self.signal(signal);
        let status = self.child.wait().expect("it ends");
        assert!(status.success(), "{status:?}");
    }

    fn kill(mut self) {
        self.child.kill().expect("it lives");
        self.child.wait().expect("it ends");
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_second_start_finds_the_same_volume_with_the_same_identity() {
    let pool = Pool::new();
    let daemon = pool.create();
    let first = json(&["volume", "list", "--pool", pool.dir(), "--json"]);
    assert_eq!(first[0]["name"], "vol0");
    assert_eq!(first[0]["nsid"], 1);
    assert_eq!(first[0]["lba_bytes"], 4096);
    assert_eq!(first[0]["size_bytes"], 1u64 << 30);
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
            "health",
            "hosts",
            "pool",
            "reactors",
            "survey",
            "tls",
            "transports",
            "version",
            "volumes"
        ]
    );
    assert_eq!(
        keys(&status["pool"]),
        [
            "capacity_bytes",
            "compression_saved_bytes",
            "dedup_ratio",
            "logical_bytes",
            "metadata_bytes",
            "used_bytes"
        ]
    );
    assert_eq!(
        keys(&status["volumes"][0]),
        [
            "logical_bytes",
            "name",
            "nsid",
            "size_bytes",
            "uuid",
            "zero_bytes"
        ]
    );
    let text = succeeds(&["status", "--pool", pool.dir()]);
    assert!(text.contains("No host is attached."), "{text}");
    let socket = std::fs::metadata(pool.dir.join("onefold.sock")).expect("a socket");
    assert_eq!(socket.permissions().mode() & 0o777, 0o600);
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
    ask(&["delete", "scratch", "--yes"]);
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
    fails(&["pool", "check", one.dir()], 1, &[&pid]);
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
fn a_drive_that_is_missing_truncated_or_of_another_pool_is_never_written() {
    let (one, two) = (Pool::new(), Pool::new());
    one.create().stop(Signal::TERM);
    two.create().stop(Signal::TERM);
    let (drive, other) = (one.dir.join("drive0"), two.dir.join("drive0"));
    let aside = one.dir.join("aside");
    std::fs::rename(&drive, &aside).expect("a rename");
    one.fails_to_serve(&[], 66, &["drive0"]);

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
    one.serve(&[]).stop(Signal::TERM);

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
    let damaged: [(String, i32, &str); 3] = [
        (
            whole.replace("format_version = 1", "format_version = 99"),
            65,
            "99",
        ),
        (
            whole.replace("hash_key = \"", "hash_key = \"0"),
            74,
            "pool.toml",
        ),
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
        after["volumes"], before["volumes"],
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
    assert!(Path::new(ONEFOLD).exists());
}

#[test]
fn subsystems_hosts_and_listeners_are_there_again_after_a_kill() {
    const OTHER: &str = "nqn.2026-11.x:other";
    const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:6f6e6566-6f6c-4d00-8000-000000000001";
    let pool = Pool::new();
    let daemon = pool.create();
    let at = |words: &[&str]| {
        let mut arguments = words.to_vec();
        arguments.extend(["--pool", pool.dir()]);
        succeeds(&arguments)
    };
    let shown = |words: &[&str]| {
        let mut arguments = words.to_vec();
        arguments.extend(["--pool", pool.dir(), "--json"]);
        json(&arguments)
    };
    at(&["subsystem", "create", OTHER, "--serial", "S1"]);
    at(&[
        "volume",
        "create",
        "a",
        "--size",
        "1M",
        "--subsystem",
        OTHER,
    ]);
    at(&[
        "volume",
        "create",
        "b",
        "--size",
        "1M",
        "--subsystem",
        "none",
    ]);
    at(&[
        "namespace",
        "attach",
        OTHER,
        "b",
        "--nsid",
        "900",
        "--hosts",
        HOST,
    ]);
    at(&["namespace", "set", OTHER, "1", "--write-protect", "on"]);
    at(&["subsystem", "allow", OTHER, HOST]);
    at(&["referral", "add", "tcp://192.0.2.9:8009"]);
    let more = pool.address.replace("rdma://", "tcp://");
    at(&["listener", "add", &more]);
    // By the new listener, which came while the daemon ran: the one that may not connect sees neither.
    let offers = |address: &str| {
        let found = json(&["discover", address, "--json"]);
        let offers = found.as_array().expect("a list").iter();
        let names = offers.map(|offer| offer["subsystem"].as_str().expect("a name").to_owned());
        names.collect::<std::collections::BTreeSet<_>>()
    };
    let offered = offers(&more);
    assert!(
        offered.contains(NQN) && !offered.contains(OTHER),
        "{offered:?}"
    );
    assert!(
        offered.contains("nqn.2014-08.org.nvmexpress.discovery"),
        "the referral"
    );

    let everything = || {
        let words: [&[&str]; 4] = [
            &["subsystem", "list"],
            &["namespace", "list"],
            &["referral", "list"],
            &["volume", "list"],
        ];
        words.map(shown)
    };
    let before = everything();
    assert_eq!(before[1].as_array().map(Vec::len), Some(3), "{}", before[1]);
    assert_eq!(shown(&["subsystem", "show", OTHER])["hosts"][0], HOST);
    daemon.kill();
    let daemon = pool.serve(&[]);
    assert_eq!(everything(), before);
    assert_eq!(offers(&more), offered, "the listener is there again");

    fails(
        &["listener", "add", &more, "--pool", pool.dir()],
        65,
        &["already"],
    );
    at(&["listener", "remove", &more]);
    fails(&["discover", &more], 69, &["refused"]);
    fails(
        &["subsystem", "delete", NQN, "--pool", pool.dir()],
        65,
        &["default"],
    );
    fails(
        &["namespace", "detach", OTHER, "7", "--pool", pool.dir()],
        66,
        &["no namespace 7", "onefold namespace list"],
    );
    at(&["volume", "delete", "b", "--yes"]);
    let left = shown(&["namespace", "list", OTHER]);
    assert_eq!(left.as_array().map(Vec::len), Some(1), "{left}");
    at(&["subsystem", "delete", OTHER]);
    daemon.stop(Signal::TERM);
    pool.is_consistent();
}

#[test]
fn tls_keys_and_listeners_are_there_after_a_restart_and_keys_are_never_shown() {
    const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:6f6e6566-6f6c-4d00-8000-000000000001";
    let pool = Pool::new();
    let key_file = pool.dir.with_extension("key");
    let log_file = pool.dir.with_extension("log");
    let mut keys = Vec::new();
    let serve = |more: &[&str]| {
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(&log_file)
            .expect("a log");
        let mut arguments = vec!["serve", "--pool", pool.dir(), "--listen", &pool.address];
        arguments.extend(more);
        Daemon::start_with(&arguments, log.into())
    };
    let daemon = serve(&["--create", "1G"]);
    let told = std::cell::RefCell::new(String::new());
    let at = |words: &[&str]| {
        let mut arguments = words.to_vec();
        arguments.extend(["--pool", pool.dir(), "--json"]);
        let text = succeeds(&arguments);
        told.borrow_mut().push_str(&text);
        serde_json::from_str::<Value>(&text).expect("JSON")
    };
    let file = key_file.to_str().expect("text");
    for (number, hash) in [(1, "sha256"), (2, "sha384")] {
        let key = succeeds(&["host", "gen-tls-key", "--hash", hash]);
        std::fs::write(&key_file, &key).expect("a file");
        keys.push(key.split(':').nth(2).expect("a key").to_owned());
        let added = at(&["host", "tls-key", "add", HOST, "--file", file]);
        assert_eq!(
            (&added["id"], &added["hash"]),
            (&number.into(), &hash.into())
        );
    }
    fails(
        &[
            "host",
            "tls-key",
            "add",
            HOST,
            "--file",
            file,
            "--pool",
            pool.dir(),
        ],
        65,
        &["number 2"],
    );
    std::fs::write(&key_file, "DHHC-1:00:c2VjcmV0:").expect("a file");
    fails(
        &[
            "host",
            "tls-key",
            "add",
            HOST,
            "--file",
            file,
            "--pool",
            pool.dir(),
        ],
        65,
        &["gen-tls-key"],
    );
    let secure = pool.address.replace("rdma://", "tcp://");
    at(&["listener", "add", &secure, "--tls", "allowed"]);
    let set = at(&[
        "listener",
        "set",
        &secure,
        "--tls",
        "required",
        "--ana",
        "1=non-optimized",
    ]);
    assert_eq!(
        (&set["tls"], &set["ana"]["1"]),
        (&"required".into(), &"non-optimized".into())
    );
    at(&["listener", "set", &pool.address, "--ana", "2=inaccessible"]);
    fails(
        &[
            "listener",
            "set",
            &pool.address,
            "--tls",
            "required",
            "--pool",
            pool.dir(),
        ],
        65,
        &["only TCP"],
    );
    fails(
        &["listener", "set", &secure, "--pool", pool.dir()],
        65,
        &["--tls"],
    );
    let before = [at(&["host", "show", HOST]), at(&["listener", "list"])];
    daemon.kill();
    let daemon = serve(&[]);
    assert_eq!(
        [at(&["host", "show", HOST]), at(&["listener", "list"])],
        before
    );
    // In clear nobody gets in, which is counted.
    fails(&["discover", &secure], 69, &[]);
    let status = at(&["status"]);
    assert_eq!(status["tls"]["failed"], 1, "{status}");
    assert_eq!(at(&["host", "tls-key", "remove", HOST, "1"])["id"], 1);
    assert_eq!(at(&["host", "tls-key", "list", HOST])[0]["id"], 2);
    daemon.stop(Signal::TERM);
    let told = told.into_inner() + &std::fs::read_to_string(&log_file).expect("a log");
    assert!(told.contains("which this port requires"), "it is logged");
    for key in keys {
        assert!(!told.contains(&key), "a key was shown");
    }
    for entry in walk(&pool.dir) {
        let mode = entry.permissions().mode();
        assert_eq!(mode & 0o077, 0, "{entry:?}");
    }
}

#[test]
fn soft_roce_listeners_come_and_go_while_a_host_writes() {
    let pool = Pool::new();
    let at_first = pool.address.replace("rdma://", "rdma+soft://");
    let arguments = [
        "serve",
        "--pool",
        pool.dir(),
        "--create",
        "1G",
        "--reactors",
        "2",
        "--volume",
        "a=64M",
        "--volume",
        "b=64M",
        "--listen",
        &at_first,
    ];
    let daemon = Daemon::start(&arguments);
    let load = |address: &str, nsid: &str, size: &str| {
        let subsystem = format!("{address}/{NQN}");
        let mut command = Command::new(ONEFOLD);
        command
            .args(["perf", &subsystem, "--rw", "randwrite", "--size", size])
            .args(["--nsid", nsid, "--range", "32M", "--queues", "2"])
            .args(["--verify", "--json"])
            .stdout(Stdio::piped());
        command.spawn().expect("the program starts")
    };
    let is_right = |load: Child| {
        let output = load.wait_with_output().expect("it ends");
        assert!(output.status.success(), "{:?}", output.status);
        let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(
            (&report["errors"], &report["verify_errors"]),
            (&0.into(), &0.into()),
            "{report}"
        );
    };
    let hosts = || json(&["status", "--pool", pool.dir(), "--json"])["hosts"].clone();
    let mut first = load(&at_first, "1", "256M");
    while hosts().as_array().is_none_or(Vec::is_empty) {
        assert!(first.try_wait().expect("a child").is_none(), "it attaches");
    }
    // On the device that is there, by another port; and on a device of its own, by another address.
    let port = at_first.replace(":4420", ":4421");
    let elsewhere = address().replace("rdma://", "rdma+soft://");
    for _ in 0..2 {
        for more in [&port, &elsewhere] {
            succeeds(&["listener", "add", more, "--pool", pool.dir()]);
            is_right(load(more, "2", "4M"));
            succeeds(&["listener", "remove", more, "--pool", pool.dir()]);
            let gone = format!("{more}/{NQN}");
            let late = run(&["perf", &gone, "--rw", "read", "--size", "1M"]);
            assert!(!late.status.success(), "nobody listens there any more");
        }
    }
    is_right(first);
    is_right(load(&at_first, "1", "4M"));
    daemon.stop(Signal::TERM);
    pool.is_consistent();
}

/// Everything in a folder.
fn walk(folder: &Path) -> Vec<std::fs::Metadata> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let entry = entry.expect("an entry");
        let metadata = entry.metadata().expect("it is there");
        if metadata.is_dir() {
            found.extend(walk(&entry.path()));
        }
        found.push(metadata);
    }
    found
}
