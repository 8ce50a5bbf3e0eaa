//! The configuration file, from its example to its reload.

use std::fs::{self, File};
use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use super::harness::{Daemon, Load, Pool, fails, json as answer, onefold, run, succeeds, wait_for};

/// A pool, its file and its log.
struct Node {
    pool: Pool,
    file: PathBuf,
    log: PathBuf,
}

impl Node {
    fn new() -> Self {
        let pool = Pool::new();
        let file = pool.dir.with_extension("toml");
        let log = pool.dir.with_extension("log");
        Self { pool, file, log }
    }

    fn path(&self) -> &str {
        self.file.to_str().expect("text")
    }

    /// The example with our addresses, and with some of its lines replaced.
    fn write(&self, replaced: &[(&str, &str)]) {
        let rdma = &self.pool.address;
        let listen = format!(
            "addresses = [\"{rdma}\", \"{}\"]",
            rdma.replace("rdma:", "tcp:")
        );
        let sample = "#addresses = [\"rdma://192.0.2.5:4420\", \"tcp://192.0.2.5:4420\"]";
        let mut text = succeeds(&["config", "example"]);
        for (from, to) in [(sample, listen.as_str())].iter().chain(replaced) {
            assert!(text.contains(from), "'{from}' is not in the example");
            text = text.replace(from, to);
        }
        fs::write(&self.file, text).expect("the file can be written");
    }

    /// Serves by the file, without a terminal.
    fn serve(&self, more: &[&str]) -> Daemon {
        let mut command = Command::new("setsid");
        command.args([&onefold(), "serve", "--pool", self.pool.dir()]);
        command.args(["--create", "1G", "--config", self.path()]);
        let log = File::create(&self.log).expect("a log");
        Daemon::start_as(command.args(more).stderr(log))
    }

    fn reload(&self) -> Value {
        answer(&["config", "reload", "--pool", self.pool.dir(), "--json"])
    }

    fn has_logged(&self, words: &str) -> bool {
        read(&self.log).contains(words)
    }

    /// Makes a volume, which the daemon logs if it logs what is done.
    fn create(&self, name: &str) {
        succeeds(&[
            "volume",
            "create",
            name,
            "--size",
            "1M",
            "--pool",
            self.pool.dir(),
        ]);
    }
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).expect("a text")
}

#[test]
fn a_file_with_mistakes_is_explained_by_lines_and_serves_nothing() {
    let node = Node::new();
    fs::write(
        &node.file,
        "[memory]\nbufers = \"64M\"\n[limits]\nhosts = \"7\"\n",
    )
    .expect("written");
    let lines = [
        format!(
            "{}:2: there is no key 'bufers' in [memory]: did you mean 'buffers'?",
            node.path()
        ),
        format!("{}:4: limits.hosts: this is a text", node.path()),
    ];
    let checked = run(&["config", "check", node.path()]);
    assert_eq!(checked.status.code(), Some(1));
    let told = String::from_utf8(checked.stdout).expect("text");
    assert!(lines.iter().all(|line| told.contains(line)), "{told}");
    let words: Vec<&str> = lines.iter().map(String::as_str).collect();
    let config = ["--create", "1G", "--config", node.path()];
    node.pool.fails_to_serve(&config, 64, &words);
    assert!(!node.pool.dir.exists());
    node.write(&[]);
    succeeds(&["config", "check", node.path()]);
    fails(
        &["config", "check", "/nowhere.toml"],
        1,
        &["'/nowhere.toml' cannot be read"],
    );
}

#[test]
fn a_reload_applies_what_can_change_and_names_what_waits() {
    let node = Node::new();
    let pool = &node.pool;
    node.write(&[
        ("filter = \"info\"", "filter = \"warn\""),
        ("#count = 4", "count = 2"),
    ]);
    let daemon = node.serve(&["--reactors", "1"]);
    node.create("quiet");
    assert!(!node.has_logged("quiet"), "by the filter of the file");

    // An option that was given stays, whatever the file says.
    node.write(&[
        ("spin = \"100us\"", "spin = \"20us\""),
        ("#count = 4", "count = 3"),
    ]);
    let changed = node.reload();
    assert_eq!(changed["applied"], json!(["log.filter"]), "{changed}");
    assert_eq!(changed["waiting"], json!(["reactors.spin"]), "{changed}");
    node.create("loud");
    wait_for("the log at its new level", || node.has_logged("loud"));

    node.write(&[("mode = \"off\"", "mode = \"required\"")]);
    let changed = node.reload();
    assert_eq!(changed["applied"], json!(["tls.mode"]), "{changed}");
    assert_eq!(
        changed["waiting"],
        json!([]),
        "the spin is as it runs: {changed}"
    );
    let tcp = pool.address.replace("rdma:", "tcp:");
    assert!(!run(&["discover", &tcp]).status.success(), "without TLS");
    succeeds(&["discover", &pool.address]);

    // A mistake changes nothing, also not what stands right beside it.
    node.write(&[
        ("mode = \"off\"", "mode = \"of\""),
        ("filter = \"info\"", "filter = \"error\""),
    ]);
    let reload = ["config", "reload", "--pool", pool.dir()];
    fails(&reload, 65, &[node.path(), "tls.mode: 'of' is not one of"]);
    wait_for("the log of the mistake", || {
        node.has_logged("'of' is not one of")
    });
    node.create("louder");
    wait_for("the log at its level", || node.has_logged("louder"));

    // By a signal, as by the command.
    daemon.signal(Signal::HUP);
    wait_for("a refused reload", || {
        read(&node.log).matches("'of' is not one of").count() > 2
    });
    node.write(&[("buffers = \"256M\"", "buffers = \"64M\"")]);
    daemon.signal(Signal::HUP);
    wait_for("a reload", || {
        node.has_logged("changed tls.mode; a restart changes memory.buffers")
    });
    succeeds(&["discover", &tcp]);
    daemon.stop(Signal::TERM);
}

#[test]
fn bounds_warnings_and_addresses_change_while_hosts_stay_attached() {
    let node = Node::new();
    let pool = &node.pool;
    let tcp = pool.address.replace("rdma:", "tcp:");
    let more = tcp.replace(":4420", ":4421");
    let at = |addresses: &[&str]| format!("addresses = {addresses:?}");
    let first = at(&[&pool.address, &tcp]);
    node.write(&[("handshake = \"10s\"", "handshake = \"1h\"")]);
    let daemon = node.serve(&[]);
    let load = Load::start(pool, &pool.subsystem(), "nqn.2026-11.x:stays");
    succeeds(&[
        "listener",
        "add",
        &tcp.replace(":4420", ":4422"),
        "--pool",
        pool.dir(),
    ]);

    node.write(&[
        ("handshake = \"10s\"", "handshake = \"1s\""),
        ("queue_share = 16", "queue_share = 8"),
        ("warn_at = [80, 90, 95]", "warn_at = [1, 2]"),
        (&first, &at(&[&pool.address, &tcp, &more])),
    ]);
    let changed = node.reload();
    let keys = [
        "pool.warn_at",
        "listen.addresses",
        "limits.queue_share",
        "timeouts.handshake",
    ];
    assert_eq!(changed["applied"], json!(keys), "{changed}");
    assert_eq!(changed["waiting"], json!([]), "{changed}");
    pool.load(&[
        "--rw", "write", "--bs", "128k", "--size", "64M", "--seed", "7",
    ]);
    wait_for("a warning at the new level", || {
        node.has_logged("the pool fills up")
    });
    succeeds(&["discover", &more]);
    // At the first value nobody would close it while this story lasts.
    for address in [&tcp, &more] {
        let mut silent =
            TcpStream::connect(address.trim_start_matches("tcp://")).expect("a connection");
        let patience = Some(Duration::from_secs(120));
        silent.set_read_timeout(patience).expect("a limit");
        assert_eq!(silent.read(&mut [0]).expect("its end"), 0, "{address}");
    }

    // An address that cannot be changes nothing, also not what stands right beside it.
    let taken = TcpListener::bind(tcp.replace(":4420", ":4423").trim_start_matches("tcp://"))
        .expect("free");
    let taken_at = format!("tcp://{}", taken.local_addr().expect("an address"));
    node.write(&[
        (
            &first,
            &at(&[
                &pool.address,
                &tcp,
                &tcp.replace(":4420", ":4424"),
                &taken_at,
            ]),
        ),
        ("filter = \"info\"", "filter = \"error\""),
    ]);
    fails(
        &["config", "reload", "--pool", pool.dir()],
        65,
        &[&taken_at],
    );
    assert!(
        !run(&["discover", &tcp.replace(":4420", ":4424")])
            .status
            .success()
    );
    succeeds(&["discover", &more]);

    node.write(&[(&first, &at(&[&pool.address, &tcp]))]);
    let changed = node.reload();
    assert!(
        changed["applied"]
            .as_array()
            .expect("a list")
            .contains(&json!("listen.addresses")),
        "{changed}"
    );
    assert!(!run(&["discover", &more]).status.success(), "it is removed");
    succeeds(&["discover", &tcp.replace(":4420", ":4422")]);
    let hosts = &pool.status()["hosts"];
    assert_eq!(hosts[0]["hostnqn"], "nqn.2026-11.x:stays", "{hosts}");
    drop(load);
    daemon.stop(Signal::TERM);
}

#[test]
fn without_a_file_there_is_nothing_to_read_again() {
    let pool = Pool::new();
    let daemon = pool.create();
    let reload = ["config", "reload", "--pool", pool.dir()];
    fails(&reload, 65, &["started without --config"]);
    daemon.stop(Signal::TERM);
}
