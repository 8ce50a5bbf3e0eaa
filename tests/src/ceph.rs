//! A Ceph cluster for stories: real daemons, with their data in memory.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use crate::daemon::in_network;
use crate::lab::TARGET_V4;
use crate::wait_for;

/// A cluster of `tests/lab/ceph.sh`. It ends with the process that started it, or when it is dropped.
#[derive(Debug)]
pub struct Ceph {
    /// The network namespace that its daemons are in.
    network: Option<String>,
    folder: tempfile::TempDir,
    process: Child,
    orders: Mutex<Orders>,
}

/// What is said to the cluster's script, and what it answers.
#[derive(Debug)]
struct Orders {
    /// The cluster ends when there is nobody who may give any.
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Orders {
    /// Whether it says that the cluster can be used.
    fn is_ready(&mut self) -> bool {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("text");
        line.trim() == "ready"
    }
}

impl Ceph {
    /// The cluster of all stories of this program; nothing, where Ceph is not installed.
    ///
    /// # Panics
    /// It is not installed, or does not start, where `CI=true`.
    pub fn shared() -> Option<&'static Self> {
        static CLUSTER: OnceLock<Option<Ceph>> = OnceLock::new();
        CLUSTER.get_or_init(|| Self::start(None)).as_ref()
    }

    /// A cluster in a network of its own, at the target's address there: nodes of the network reach it.
    ///
    /// # Panics
    /// As of [`Ceph::shared`].
    pub fn in_network(name: &str) -> Option<Self> {
        Self::start(Some(name))
    }

    fn start(network: Option<&str>) -> Option<Self> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("lab/ceph.sh");
        let folder = tempfile::tempdir().expect("a folder");
        let mut process = in_network(network, script.as_os_str())
            .arg(folder.path())
            .args(network.map(|_| ["3", TARGET_V4]).into_iter().flatten())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("bash");
        let output = process.stdout.take().expect("it is piped");
        let orders = Orders {
            input: process.stdin.take(),
            output: BufReader::new(output),
        };
        let ceph = Self {
            network: network.map(str::to_owned),
            folder,
            process,
            orders: Mutex::new(orders),
        };
        if ceph.orders().is_ready() {
            return Some(ceph);
        }
        let must_run = std::env::var("CI").is_ok_and(|ci| ci == "true");
        assert!(!must_run, "there is no cluster; test.sh installs Ceph");
        eprintln!("skipped: Ceph is not installed, or does not run here");
        None
    }

    fn orders(&self) -> MutexGuard<'_, Orders> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The address of a drive there.
    pub fn address(&self, pool: &str, name: &str, user: &str) -> String {
        let conf = self.path("ceph.conf");
        format!("rados:{pool}/{name}?conf={}&user={user}", conf.display())
    }

    /// Its configuration, as a client reads it.
    ///
    /// # Panics
    /// The cluster's folder is gone.
    pub fn conf(&self) -> String {
        std::fs::read_to_string(self.path("ceph.conf")).expect("the cluster's folder")
    }

    /// Ends a daemon as `kill -9` does.
    ///
    /// # Panics
    /// There is no such daemon.
    pub fn kill(&self, daemon: &str) {
        let process = self.process_of(daemon);
        rustix::process::kill_process(process, rustix::process::Signal::KILL).expect("it lives");
    }

    /// Puts a new and empty OSD in the place of one that was killed. Returns when it has its copies of everything.
    ///
    /// # Panics
    /// It gets none.
    pub fn replace_osd(&self, number: u32) {
        let mut orders = self.orders();
        let input = orders.input.as_mut().expect("the cluster runs");
        writeln!(input, "{number}").expect("its script listens");
        assert!(orders.is_ready(), "the cluster has no new OSD {number}");
    }

    /// Lets all OSDs that live stand still until what is returned is dropped.
    ///
    /// # Panics
    /// The cluster's folder is gone.
    #[must_use]
    pub fn stand_still(&self) -> StandsStill<'_> {
        self.tell_osds(rustix::process::Signal::STOP);
        StandsStill(self)
    }

    fn tell_osds(&self, signal: rustix::process::Signal) {
        let folder = std::fs::read_dir(self.folder.path()).expect("the cluster's folder");
        for file in folder {
            let name = file.expect("a file").file_name();
            let daemon = name.to_str().and_then(|name| name.strip_suffix(".pid"));
            if let Some(daemon) = daemon.filter(|daemon| daemon.starts_with("osd.")) {
                // Another story may have ended it.
                let _ = rustix::process::kill_process(self.process_of(daemon), signal);
            }
        }
    }

    fn process_of(&self, daemon: &str) -> rustix::process::Pid {
        let number = std::fs::read_to_string(self.path(&format!("{daemon}.pid")));
        let number: i32 = number
            .expect("its number")
            .trim()
            .parse()
            .expect("a number");
        rustix::process::Pid::from_raw(number).expect("a process")
    }

    /// Runs Ceph's own tool as its administrator.
    ///
    /// # Panics
    /// It fails.
    pub fn ceph(&self, arguments: &[&str]) -> Vec<u8> {
        let output = in_network(self.network.as_deref(), OsStr::new("ceph"))
            .arg("-c")
            .arg(self.path("ceph.conf"))
            .args(arguments)
            .output()
            .expect("ceph");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "ceph {arguments:?}: {said}");
        output.stdout
    }

    /// Lets the OSDs count as full, or not any more, whatever they hold. Returns when the pool is so.
    ///
    /// # Panics
    /// It does not become so.
    pub fn set_full(&self, is_full: bool) {
        // Each ratio has to be above the one before it.
        let ratios = [
            ("nearfull", "0.85"),
            ("backfillfull", "0.9"),
            ("full", "0.95"),
        ];
        let lowest = ["0.00000001", "0.00000002", "0.00000003"];
        match is_full {
            true => ratios.iter().zip(lowest).for_each(|((name, _), ratio)| {
                self.ceph(&["osd", &format!("set-{name}-ratio"), ratio]);
            }),
            false => ratios.iter().rev().for_each(|(name, ratio)| {
                self.ceph(&["osd", &format!("set-{name}-ratio"), ratio]);
            }),
        }
        wait_for("the pool's flag", Duration::from_secs(60), || {
            let dump = self.ceph(&["osd", "dump", "--format", "json"]);
            let dump: serde_json::Value = serde_json::from_slice(&dump).expect("JSON");
            let flags = dump["pools"][0]["flags_names"].as_str().expect("flags");
            (flags.split(',').any(|flag| flag == "full") == is_full).then_some(())
        });
    }

    /// How many clients are shut out.
    ///
    /// # Panics
    /// The cluster does not say.
    pub fn blocklist(&self) -> usize {
        self.shut_out_until().len()
    }

    /// Until when each client that is shut out is so.
    ///
    /// # Panics
    /// The cluster does not say.
    pub fn shut_out_until(&self) -> Vec<String> {
        let listed = self.ceph(&["osd", "blocklist", "ls", "--format", "json"]);
        // Addresses, and ranges of them in a list behind the first one.
        let lists = serde_json::Deserializer::from_slice(&listed);
        let lists = lists.into_iter::<Vec<serde_json::Value>>();
        let all = lists.flat_map(|list| list.expect("a list"));
        let until = all.map(|entry| entry["until"].as_str().expect("a time").to_owned());
        until.collect()
    }

    /// Has OSDs log what they answer, for [`refused_writes`](Self::refused_writes).
    ///
    /// # Panics
    /// They do not.
    pub fn log_answers(&self) {
        self.ceph(&["tell", "osd.*", "config", "set", "debug_ms", "1"]);
    }

    /// How many writes to a drive's objects OSDs refused, because they came from who was shut out.
    ///
    /// # Panics
    /// The cluster's folder is gone.
    pub fn refused_writes(&self, drive: &str) -> usize {
        let folder = std::fs::read_dir(self.folder.path()).expect("the cluster's folder");
        let logs = folder
            .map(|file| file.expect("a file").path())
            .filter(|path| {
                let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
                name.starts_with("osd.") && name.ends_with(".log")
            });
        let is_one = |line: &&str| {
            // ESHUTDOWN is what a client that is on the blocklist is answered.
            ["osd_op_reply(", drive, "write", " = -108 "]
                .iter()
                .all(|words| line.contains(words))
        };
        let refused = logs.map(|log| {
            let log = std::fs::read(log).expect("a log");
            String::from_utf8_lossy(&log).lines().filter(is_one).count()
        });
        refused.sum()
    }
}

/// A cluster whose OSDs stand still.
#[derive(Debug)]
pub struct StandsStill<'a>(&'a Ceph);

impl Drop for StandsStill<'_> {
    fn drop(&mut self) {
        self.0.tell_osds(rustix::process::Signal::CONT);
    }
}

impl Drop for Ceph {
    fn drop(&mut self) {
        // It ends the daemons when there is nobody any more who writes to it.
        drop(self.orders().input.take());
        let _ = self.process.wait();
    }
}
