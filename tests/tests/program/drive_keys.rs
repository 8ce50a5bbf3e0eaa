//! Keys for drives on other nodes: a pool proves who it is, encrypts what it sends, and goes without neither where it has a key.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use rustix::process::Signal;
use tempfile::TempDir;

use crate::harness::{Daemon, NQN, Pool, fails, json, onefold, run, succeeds, wait_for};
use crate::sled::{Serving, Sled};

/// The kinds of keys, by what the files of a pool are called behind the subsystem's name.
const HOST: &str = "dhchap-secret";
const CONTROLLER: &str = "dhchap-ctrl-secret";
const TLS: &str = "tls-key";

const WRITE: [&str; 9] = [
    "--rw", "write", "--bs", "64k", "--size", "16M", "--seed", "7", "--verify",
];
const READ: [&str; 9] = [
    "--rw", "read", "--bs", "64k", "--size", "16M", "--seed", "7", "--verify",
];

/// A pool with a folder of keys, and files of keys for the other side.
struct Node {
    pool: Pool,
    folder: TempDir,
}

impl Node {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        fs::create_dir(folder.path().join("keys")).expect("a folder");
        Self {
            pool: Pool::new(),
            folder,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A command with these keys.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(onefold());
        command.args(arguments).stdin(Stdio::null());
        command.env("ONEFOLD_DRIVE_KEYS", self.path("keys"));
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("it runs")
    }

    fn serving(&self, more: &[&str]) -> Vec<String> {
        let all = [
            "serve",
            "--pool",
            self.pool.dir(),
            "--listen",
            &self.pool.address,
        ];
        let all = all.iter().chain(more);
        all.map(|argument| (*argument).to_owned()).collect()
    }

    fn serve(&self, more: &[&str]) -> Daemon {
        let arguments = self.serving(more);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let log = fs::File::create(self.path("log")).expect("a file");
        Daemon::start_as(self.command(&arguments).stderr(log))
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path("log")).expect("a log")
    }

    /// Makes a pool on a drive that cannot be had; what is said.
    fn is_refused(&self, drive: &str) -> String {
        let arguments = self.serving(&["--create", "0", "--drive", drive]);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let output = self.run(&arguments);
        assert!(!output.status.success(), "it got in");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    /// The file of a key that this pool has for a subsystem.
    fn key(&self, subsystem: &str, kind: &str) -> PathBuf {
        self.path("keys").join(format!("{subsystem}.{kind}"))
    }

    /// A new key of that kind in a file that the other side takes.
    fn make(&self, kind: &str) -> String {
        let make = match kind {
            TLS => "gen-tls-key",
            _ => "gen-dhchap-key",
        };
        let path = self.path(kind);
        write(&path, &succeeds(&["host", make]));
        path.to_str().expect("text").to_owned()
    }

    /// Gives the pool what the other side has.
    fn learns(&self, subsystem: &str, kind: &str) {
        let key = fs::read_to_string(self.path(kind)).expect("it was made");
        write(&self.key(subsystem, kind), &key);
    }

    fn forgets(&self, subsystem: &str, kind: &str) {
        fs::remove_file(self.key(subsystem, kind)).expect("it was there");
    }

    fn states(&self) -> Vec<String> {
        let drives = json(&["drive", "list", "--pool", self.pool.dir(), "--json"]);
        let drives = drives.as_array().expect("a list").iter();
        let state = |drive: &serde_json::Value| drive["state"].as_str().expect("a word").to_owned();
        drives.map(state).collect()
    }
}

/// Writes a key to a file that nobody else can read.
fn write(path: &Path, key: &str) {
    fs::write(path, key).expect("a file");
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("its mode");
}

/// The name by which targets know pools of this machine, as a target that does not admit it has its user told.
fn own_name() -> String {
    let (sled, node) = (Sled::new(), Node::new());
    let nobody = "nqn.2026-11.org.example:nobody";
    let serving = sled.serve(&["--drive", "memory=64M", "--host", nobody]);
    let told = node.is_refused(&serving.names[0]);
    let (_, name) = told.split_once("allow ").expect("the remedy");
    let (name, _) = name.split_once(" there").expect("the remedy");
    name.to_owned()
}

/// A sled that asks this machine's pools for what these kinds say.
struct Asking {
    sled: Sled,
    host: String,
    /// Its log.
    log: PathBuf,
}

impl Asking {
    fn new(node: &Node, name: &str, kinds: &[&str]) -> Self {
        let mut host = name.to_owned();
        for kind in kinds {
            host += &format!(",{kind}-file={}", node.make(kind));
        }
        Self {
            sled: Sled::new(),
            host,
            log: node.path("sled.log"),
        }
    }

    fn serve(&self, drive: &str) -> Serving {
        let log = fs::File::create(&self.log).expect("a file");
        self.sled
            .serve_with(&["--drive", drive, "--host", &self.host], log.into())
    }

    fn drive(&self) -> String {
        format!("{}=1G", self.sled.path("drive"))
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).expect("a log")
    }
}

#[test]
fn a_pool_and_its_sled_prove_themselves_and_encrypt_also_after_a_restart_and_without_a_daemon() {
    let (node, name) = (Node::new(), own_name());
    let kinds = [HOST, CONTROLLER, TLS];
    let asking = Asking::new(&node, &name, &kinds);
    let serving = asking.serve(&asking.drive());
    for kind in kinds {
        node.learns(&asking.sled.nqn(), kind);
    }
    let drive = &serving.names[0];
    let daemon = node.serve(&["--create", "0", "--drive", drive, "--volume", "vol0=64M"]);
    assert!(
        node.log()
            .contains("keys=\"dhchap-secret dhchap-ctrl-secret tls-key\""),
        "{}",
        node.log()
    );
    assert!(asking.log().contains("tls=true"), "{}", asking.log());
    node.pool.load(&WRITE);
    daemon.kill();
    let daemon = node.serve(&[]);
    node.pool.load(&READ);
    daemon.stop(Signal::TERM);

    let dir = node.pool.dir();
    let checked = node.run(&["pool", "check", dir, "--data"]);
    assert!(checked.status.success(), "{checked:?}");
    fs::remove_dir_all(dir).expect("it was there");
    let imported = node.run(&["pool", "import", drive, "--pool", dir]);
    assert!(imported.status.success(), "{imported:?}");
    let daemon = node.serve(&[]);
    node.pool.load(&READ);
    daemon.stop(Signal::TERM);

    // No key of either side is told.
    for kind in kinds {
        let key = fs::read_to_string(node.path(kind)).expect("it was made");
        for log in [node.log(), asking.log()] {
            assert!(!log.contains(key.trim()), "{log}");
        }
    }
    serving.daemon.stop(Signal::TERM);
}

/// What is said names the drive, the file, and these words.
#[track_caller]
fn says(told: &str, drive: &str, file: &Path, words: &[&str]) {
    let file = file.to_str().expect("text");
    for word in words.iter().chain(&[drive, file]) {
        assert!(told.contains(word), "'{word}' is not in: {told}");
    }
}

#[test]
fn a_key_that_is_missing_or_wrong_is_told_with_its_file_and_the_remedy() {
    let (node, name) = (Node::new(), own_name());
    let asking = Asking::new(&node, &name, &[HOST, TLS]);
    let serving = asking.serve(&asking.drive());
    let (drive, nqn) = (&serving.names[0], asking.sled.nqn());
    let [host, controller, tls] = [HOST, CONTROLLER, TLS].map(|kind| node.key(&nqn, kind));

    says(&node.is_refused(drive), drive, &tls, &["requires TLS"]);
    write(&tls, &succeeds(&["host", "gen-tls-key"]));
    says(&node.is_refused(drive), drive, &tls, &["same key"]);
    node.learns(&nqn, TLS);
    says(
        &node.is_refused(drive),
        drive,
        &host,
        &["asks", "write it to"],
    );
    write(&host, &succeeds(&["host", "gen-dhchap-key"]));
    says(&node.is_refused(drive), drive, &host, &["compare", &name]);
    node.learns(&nqn, HOST);
    write(&controller, &succeeds(&["host", "gen-dhchap-key"]));
    says(&node.is_refused(drive), drive, &controller, &["compare"]);
    fs::remove_file(&controller).expect("it was there");

    write(&tls, "NVMeTLSkey-1:01:nonsense:");
    says(&node.is_refused(drive), drive, &tls, &["gen-tls-key"]);
    node.learns(&nqn, TLS);
    fs::set_permissions(&tls, fs::Permissions::from_mode(0o640)).expect("its mode");
    says(&node.is_refused(drive), drive, &tls, &["chmod 600"]);
    fs::set_permissions(&tls, fs::Permissions::from_mode(0o600)).expect("its mode");

    let by_rdma = drive.replace("nvme+tcp://", "nvme+rdma://");
    says(
        &node.is_refused(&by_rdma),
        &by_rdma,
        &tls,
        &["RDMA has none"],
    );
    assert!(!asking.log().contains("host connected"), "{}", asking.log());
    let daemon = node.serve(&["--create", "0", "--drive", drive, "--volume", "vol0=64M"]);
    node.pool.load(&WRITE);
    daemon.stop(Signal::TERM);
    serving.daemon.stop(Signal::TERM);
}

#[test]
fn a_pool_with_a_key_goes_without_it_to_no_sled_that_asks_for_none() {
    let (node, name) = (Node::new(), own_name());
    let asking = Asking::new(&node, &name, &[]);
    let serving = asking.serve(&asking.drive());
    let (drive, nqn) = (&serving.names[0], asking.sled.nqn());
    node.make(TLS);
    node.learns(&nqn, TLS);
    let tls = node.key(&nqn, TLS);
    let told = node.is_refused(drive);
    says(&told, drive, &tls, &["without TLS nothing is sent"]);
    node.forgets(&nqn, TLS);
    for kind in [HOST, CONTROLLER] {
        node.make(kind);
        node.learns(&nqn, kind);
    }
    let controller = node.key(&nqn, CONTROLLER);
    let told = node.is_refused(drive);
    says(&told, drive, &controller, &["does not authenticate"]);
    // In the first case nothing came, in the second nothing was asked for after Connect.
    node.forgets(&nqn, CONTROLLER);
    node.forgets(&nqn, HOST);
    let daemon = node.serve(&["--create", "0", "--drive", drive, "--volume", "vol0=64M"]);
    node.pool.load(&WRITE);
    // A key that comes later counts from the next connection on; the pool goes back behind none that it had.
    daemon.stop(Signal::TERM);
    serving.daemon.stop(Signal::TERM);
}

#[test]
fn a_key_that_is_changed_while_the_pool_is_in_use_takes_the_drive_back_once_both_sides_have_it() {
    let (node, name) = (Node::new(), own_name());
    let asking = Asking::new(&node, &name, &[HOST]);
    let serving = asking.serve(&asking.drive());
    let (drive, nqn) = (serving.names[0].clone(), asking.sled.nqn());
    node.learns(&nqn, HOST);
    let local = format!("{}=1G", node.path("local").display());
    let mirror = ["--create", "0", "--redundancy", "mirror=2", "--volume"];
    let drives = ["vol0=64M", "--drive", &local, "--drive", &drive];
    let daemon = node.serve(&[&mirror[..], &drives].concat());
    node.pool.load(&WRITE);

    // The sled reads its file again, and ends nothing.
    node.make(HOST);
    serving.daemon.signal(Signal::HUP);
    wait_for("the sled to read its keys", || {
        asking.log().contains("read again")
    });
    node.pool.load(&WRITE);
    assert_eq!(node.states(), ["online", "online"]);

    // A new connection is needed, and the pool has the old key.
    serving.daemon.kill();
    let serving = asking.serve(&asking.sled.path("drive"));
    node.pool.load(&WRITE);
    wait_for("the drive to be left", || {
        node.states() == ["online", "offline"]
    });
    let online = ["drive", "online", "--pool", node.pool.dir(), &drive];
    wait_for("the sled to refuse it", || {
        run(&online);
        asking.log().contains("authentication failed")
    });
    node.learns(&nqn, HOST);
    wait_for("the drive to be used again", || {
        run(&online);
        node.states() == ["online", "online"]
    });
    node.pool.load(&READ);
    let host = node.key(&nqn, HOST);
    says(&node.log(), &drive, &host, &["compare"]);

    // A key that is gone is not gone without.
    node.forgets(&nqn, HOST);
    serving.daemon.kill();
    let open = Asking {
        host: name,
        ..asking
    };
    let serving = open.serve(&open.sled.path("drive"));
    node.pool.load(&WRITE);
    wait_for("the drive to be left", || {
        node.states() == ["online", "offline"]
    });
    wait_for("the pool to say why", || {
        run(&online);
        node.log()
            .contains("is gone, by which the drive was reached before")
    });
    assert!(!open.log().contains("host connected"), "{}", open.log());
    daemon.stop(Signal::TERM);
    serving.daemon.stop(Signal::TERM);
}

#[test]
fn a_volume_of_another_node_is_a_drive_by_the_keys_that_hosts_have() {
    let (node, name) = (Node::new(), own_name());
    let other = Pool::new();
    let tcp = other.address.replace("rdma://", "tcp://");
    let create = ["--create", "1G", "--volume", "vol0=512M", "--listen", &tcp];
    let target = other.serve(&[&create[..], &["--tls", "required"]].concat());
    let dir = other.dir();
    let (secret, controller) = (node.make(HOST), node.make(CONTROLLER));
    let files = [
        "--dhchap-secret-file",
        &secret,
        "--dhchap-ctrl-secret-file",
        &controller,
    ];
    let host = ["host", "create", "--pool", dir, &name];
    succeeds(&[&host[..], &files].concat());
    let tls = node.make(TLS);
    succeeds(&[
        "host", "tls-key", "add", "--pool", dir, &name, "--file", &tls,
    ]);
    for kind in [HOST, CONTROLLER, TLS] {
        node.learns(NQN, kind);
    }
    let drive = format!("nvme+{tcp}/{NQN}#1");
    let daemon = node.serve(&["--create", "0", "--drive", &drive, "--volume", "vol0=64M"]);
    node.pool.load(&WRITE);
    let hosts = json(&["status", "--pool", dir, "--json"]);
    let attached = hosts["hosts"].as_array().expect("a list");
    assert!(!attached.is_empty(), "{hosts:#}");
    assert!(
        attached.iter().all(|host| !host["tls"].is_null()),
        "{hosts:#}"
    );
    assert_ne!(hosts["authentication"]["succeeded"], 0, "{hosts:#}");
    daemon.kill();
    let daemon = node.serve(&[]);
    node.pool.load(&READ);
    daemon.stop(Signal::TERM);
    target.stop(Signal::TERM);
}

#[test]
fn a_sled_takes_no_key_from_a_file_that_others_can_read_or_that_holds_none() {
    let (node, sled) = (Node::new(), Sled::new());
    let key = node.make(TLS);
    let host = |options: &str| format!("nqn.2026-11.org.example:a{options}");
    let refused = |options: &str, words: &[&str]| {
        let host = host(options);
        let arguments = ["--drive", "memory=64M", "--host", &host];
        fails(&sled.arguments(&arguments), 65, words);
    };
    let with_key = format!(",tls-key-file={key}");
    refused(
        &format!(",dhchap-secret-file={key}"),
        &[&key, "gen-dhchap-key"],
    );
    refused(&format!("{with_key}x"), &[&key, "No such file"]);
    let mode = |mode| fs::Permissions::from_mode(mode);
    fs::set_permissions(&key, mode(0o644)).expect("its mode");
    refused(&with_key, &[&key, "chmod 600"]);
    fs::set_permissions(&key, mode(0o600)).expect("its mode");
    let twice = [host(&with_key), host("")];
    let arguments = [
        "--drive",
        "memory=64M",
        "--host",
        &twice[0],
        "--host",
        &twice[1],
    ];
    fails(&sled.arguments(&arguments), 65, &["twice"]);
}
