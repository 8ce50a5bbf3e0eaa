//! What is configured in a pool as a file: exported, looked at, imported elsewhere.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;

use rustix::process::Signal;

use super::harness::{Daemon, NQN, Pool, fails, json, run, succeeds};

const OTHER: &str = "nqn.2026-11.x:other";
const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:6f6e6566-6f6c-4d00-8000-000000000001";

/// A pool with its daemon, and a place for files.
struct Node {
    pool: Pool,
    daemon: Daemon,
}

impl Node {
    fn new() -> Self {
        let pool = Pool::new();
        let daemon = pool.create();
        Self { pool, daemon }
    }

    /// A pool without the volume that every new one has.
    fn empty() -> Self {
        let node = Self::new();
        node.does(&["volume", "delete", "vol0", "--yes"]);
        node
    }

    fn file(&self, name: &str) -> String {
        let path = self.pool.dir.with_extension(name);
        path.to_str().expect("text").to_owned()
    }

    fn words<'a>(&'a self, words: &[&'a str]) -> Vec<&'a str> {
        [words, &["--pool", self.pool.dir()]].concat()
    }

    fn does(&self, words: &[&str]) -> String {
        succeeds(&self.words(words))
    }

    #[track_caller]
    fn refuses(&self, words: &[&str], code: i32, told: &[&str]) {
        fails(&self.words(words), code, told);
    }

    fn export(&self) -> String {
        self.does(&["config", "export", "-"])
    }

    fn tcp(&self) -> String {
        self.pool.address.replace("rdma:", "tcp:")
    }

    /// Something of everything.
    fn configure(&self) {
        let secret = self.file("key");
        fs::write(&secret, succeeds(&["host", "gen-dhchap-key"])).expect("written");
        self.does(&["subsystem", "create", OTHER, "--serial", "S1"]);
        self.does(&[
            "volume",
            "create",
            "a",
            "--size",
            "1M",
            "--subsystem",
            OTHER,
        ]);
        self.does(&[
            "volume",
            "create",
            "b",
            "--size",
            "2M",
            "--domain",
            "d",
            "--compression",
            "lz4",
            "--subsystem",
            "none",
        ]);
        self.does(&["volume", "create", "c", "--size", "4M"]);
        self.does(&[
            "namespace",
            "attach",
            OTHER,
            "b",
            "--nsid",
            "900",
            "--hosts",
            HOST,
        ]);
        self.does(&["namespace", "set", OTHER, "1", "--write-protect", "on"]);
        self.does(&["subsystem", "allow", OTHER, HOST]);
        self.does(&["host", "create", HOST, "--dhchap-secret-file", &secret]);
        self.does(&["snapshot", "schedule", "a", "--every", "1h", "--keep", "3"]);
        self.does(&["referral", "add", "tcp://192.0.2.9:8009"]);
        self.does(&["listener", "add", &self.tcp()]);
        self.does(&["ana", "set", &self.tcp(), "2", "non-optimized"]);
    }
}

#[test]
fn an_exported_configuration_makes_a_new_pool_like_the_old_one() {
    let old = Node::new();
    old.configure();
    let file = old.file("export");
    let output = run(&old.words(&["config", "export", &file]));
    assert!(output.status.success());
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(told.contains("secrets of 1 hosts are left out"), "{told}");
    let mode = fs::metadata(&file).expect("a file").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let text = fs::read_to_string(&file).expect("a text");
    assert_eq!(text, old.export());
    assert!(!text.contains("DHHC"), "{text}");
    // The new pool's daemon takes the old one's addresses.
    let tcp = old.tcp();
    old.daemon.stop(Signal::TERM);

    let new = Node::empty();
    let before = new.export();
    let import = ["config", "import", &file];
    let planned = new.does(&[&import[..], &["--dry-run"]].concat());
    assert!(
        planned.contains("create volume 'b' of 2097152 bytes")
            && planned.contains("nothing was changed"),
        "{planned}"
    );
    assert_eq!(new.export(), before, "a dry run changes nothing");
    let told = new.does(&import);
    assert!(
        told.contains(&format!("host '{HOST}' cannot connect")),
        "{told}"
    );
    assert_eq!(new.export(), text);
    assert!(new.does(&import).contains("nothing to change"));
    succeeds(&["discover", &tcp]);
    let subsystem = format!("{}/{OTHER}", new.pool.address);
    let secret = new.file("wrong");
    fs::write(&secret, succeeds(&["host", "gen-dhchap-key"])).expect("written");
    let perf = [
        "perf",
        &subsystem,
        "--hostnqn",
        HOST,
        "--rw",
        "randread",
        "--time",
        "1",
    ];
    assert!(
        !run(&perf).status.success(),
        "a host without its secret gets in"
    );

    // All of it is there after a restart, too.
    new.daemon.stop(Signal::TERM);
    let daemon = new.pool.serve(&[]);
    let again = succeeds(&["config", "export", "-", "--pool", new.pool.dir()]);
    assert_eq!(again, text);
    daemon.stop(Signal::TERM);
}

#[test]
fn secrets_travel_under_a_passphrase_and_a_file_with_mistakes_changes_nothing() {
    let old = Node::new();
    old.configure();
    let (file, passphrase, wrong) = (old.file("export"), old.file("pass"), old.file("wrong"));
    let key = old.file("key");
    fs::write(&passphrase, "correct horse\n").expect("written");
    fs::write(&wrong, "battery staple\n").expect("written");
    old.does(&["config", "export", &file, "--passphrase-file", &passphrase]);
    let text = fs::read_to_string(&file).expect("a text");
    let secret = fs::read_to_string(&key).expect("a key");
    assert!(
        !text.contains(secret.trim()) && text.contains("argon2id"),
        "{text}"
    );
    old.daemon.stop(Signal::TERM);

    let new = Node::empty();
    let before = new.export();
    new.refuses(&["config", "import", &file], 65, &["--passphrase-file"]);
    new.refuses(
        &["config", "import", &file, "--passphrase-file", &wrong],
        65,
        &[&file, "passphrase is another one"],
    );
    let mistaken = new.file("mistaken");
    let line = 1 + text
        .lines()
        .position(|line| line == "dedup = true")
        .expect("a line");
    fs::write(&mistaken, text.replacen("dedup = true", "dedupe = true", 1)).expect("written");
    let at = format!("{mistaken}:{line}: ");
    new.refuses(
        &["config", "import", &mistaken],
        65,
        &[&at, "unknown field `dedupe`"],
    );
    // Cut off behind the name of a host, it would be one that needs no secret.
    let cut = new.file("cut");
    let end = text.find("dhchap_secret").expect("a host's secret");
    fs::write(&cut, &text[..end]).expect("written");
    new.refuses(&["config", "import", &cut], 65, &["the file is not whole"]);
    assert_eq!(new.export(), before);

    new.does(&["config", "import", &file, "--passphrase-file", &passphrase]);
    let subsystem = format!("{}/{OTHER}", new.pool.address);
    let perf = [
        "perf",
        &subsystem,
        "--hostnqn",
        HOST,
        "--dhchap-secret-file",
        &key,
        "--rw",
        "randread",
        "--time",
        "1",
        "--json",
    ];
    let report = json(&perf);
    assert_eq!(report["errors"], 0, "{report:#}");
    new.daemon.stop(Signal::TERM);
}

#[test]
fn an_import_that_ends_in_the_middle_is_run_again_and_finishes() {
    let old = Node::new();
    old.configure();
    let (text, address) = (old.export(), old.tcp());
    old.daemon.stop(Signal::TERM);
    let taken = TcpListener::bind(address.trim_start_matches("tcp://")).expect("it is free");

    let new = Node::empty();
    let file = new.file("export");
    fs::write(&file, &text).expect("written");
    new.refuses(
        &["config", "import", &file],
        65,
        &[&address, "import the file again"],
    );
    assert!(
        new.does(&["subsystem", "list"]).contains(OTHER),
        "what came before is there"
    );
    // Also over a crash.
    new.daemon.kill();
    let daemon = new.pool.serve(&[]);
    drop(taken);
    succeeds(&["config", "import", &file, "--pool", new.pool.dir()]);
    let after = succeeds(&["config", "export", "-", "--pool", new.pool.dir()]);
    assert_eq!(after, text);
    assert!(after.contains(NQN));

    // What differs stays, unless it may be replaced.
    let other = text.replacen("serial = \"S1\"", "serial = \"S2\"", 1);
    fs::write(&file, &other).expect("written");
    let import = ["config", "import", &file, "--pool", new.pool.dir()];
    fails(
        &import,
        65,
        &["serial from S1 to S2", "--replace allows that"],
    );
    succeeds(&[&import[..], &["--replace"]].concat());
    assert_eq!(
        succeeds(&["config", "export", "-", "--pool", new.pool.dir()]),
        other
    );
    daemon.stop(Signal::TERM);
}
