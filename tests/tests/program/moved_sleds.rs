//! A pool on sleds that another node takes over by hand: the first node is shut out before anything is read, however it comes back.

use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::process::Signal;

use crate::harness::{Daemon, Pool, fails, onefold, wait_for};
use crate::sled::{Serving, Sled};

const WRITE: [&str; 6] = ["--rw", "write", "--size", "32M", "--seed", "5"];
const READ: [&str; 7] = ["--rw", "read", "--size", "32M", "--seed", "5", "--verify"];
const OTHER: [&str; 6] = ["--rw", "write", "--size", "8M", "--seed", "6"];

/// Becomes the program on a machine of another name and identity: what names that ($0) lies over the files with these.
const ON_OTHER_MACHINE: &str = r#"
  echo other >/proc/sys/kernel/hostname || exit
  for file in /etc/nvme/hostnqn /etc/machine-id; do
    [ ! -e "$file" ] || mount --bind "$0" "$file" || exit
  done
  exec "$@""#;

/// A pool with two copies on two sleds, and where another node has it.
struct Story {
    _sleds: [(Sled, Serving); 2],
    drives: [String; 2],
    first: Pool,
    second: Pool,
    machine: PathBuf,
}

impl Story {
    fn begin() -> (Self, Daemon) {
        let sleds = [Sled::new(), Sled::new()].map(|sled| {
            let drive = format!("{}=1G", sled.path("drive"));
            let serving = sled.serve(&["--drive", &drive]);
            (sled, serving)
        });
        let drives = sleds
            .each_ref()
            .map(|(_, serving)| serving.names[0].clone());
        let first = Pool::new();
        let create = ["--create", "0", "--redundancy", "mirror=2"];
        let named = ["--drive", &drives[0], "--drive", &drives[1]];
        let volumes = ["--volume", "vol0=64M", "--volume", "busy=16M"];
        let daemon = first.serve(&[&create[..], &named, &volumes].concat());
        let machine = PathBuf::from(sleds[0].0.path("machine"));
        let name = "nqn.2026-11.org.example:other\n";
        std::fs::write(&machine, name).expect("written");
        let story = Self {
            _sleds: sleds,
            drives,
            first,
            second: Pool::new(),
            machine,
        };
        (story, daemon)
    }

    /// The program on the other machine, by who may make one of this one.
    fn on_other_machine(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("unshare");
        command.args(["--uts", "--mount", "sh", "-c", ON_OTHER_MACHINE]);
        command.arg(&self.machine).arg(onefold()).args(arguments);
        command
    }

    /// The pool's import on the other machine.
    fn import(&self, more: &[&str]) -> (ExitStatus, String) {
        let [one, two] = &self.drives;
        let import = ["pool", "import", one, two, "--pool", self.second.dir()];
        let arguments = [&import[..], more].concat();
        let output = self.on_other_machine(&arguments).output();
        let output = output.expect("the program starts");
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status, errors)
    }

    fn serve_second(&self) -> Daemon {
        let (dir, address) = (self.second.dir(), &self.second.address);
        let serve = ["serve", "--pool", dir, "--listen", address];
        Daemon::start_as(&mut self.on_other_machine(&serve))
    }
}

/// Waits for the end of a daemon that lost its pool.
#[track_caller]
fn ends_by_itself(daemon: &mut Daemon) {
    let mut ended = None;
    wait_for("the first node to end", || {
        ended = daemon.child.try_wait().expect("a child");
        ended.is_some()
    });
    assert_eq!(ended.and_then(|status| status.code()), Some(69));
}

/// Whether this user may make a machine of this one.
fn may_have_other_machines() -> bool {
    let tried = Command::new("unshare")
        .args(["--uts", "--mount", "true"])
        .stderr(Stdio::null())
        .status();
    tried.is_ok_and(|status| status.success())
}

#[test]
fn a_node_that_slept_while_another_one_took_its_pool_ends_and_changes_nothing() {
    if !may_have_other_machines() {
        eprintln!("left out: this user may not make namespaces");
        return;
    }
    let (story, mut daemon) = Story::begin();
    story.first.load(&WRITE);
    daemon.halt();
    let (refused, errors) = story.import(&[]);
    assert_eq!(refused.code(), Some(69), "{errors}");
    assert!(errors.contains("may have it open"), "{errors}");
    let (imported, errors) = story.import(&["--force", "pool"]);
    assert!(imported.success(), "{errors}");
    // It is shut out from here on, though nobody serves the pool.
    daemon.signal(Signal::CONT);
    ends_by_itself(&mut daemon);
    let second = story.serve_second();
    story.second.load(&READ);
    story.second.load(&OTHER);
    story
        .first
        .fails_to_serve(&[], 69, &["open on another machine"]);
    second.stop(Signal::TERM);
    story.first.fails_to_serve(&[], 74, &["older copy"]);
    let second = story.serve_second();
    story.second.load(&[&OTHER[..], &["--verify"]].concat());
    second.stop(Signal::TERM);
}

#[test]
fn a_node_that_works_when_another_one_takes_its_pool_ends_before_a_host_is_told_more() {
    if !may_have_other_machines() {
        eprintln!("left out: this user may not make namespaces");
        return;
    }
    let (story, mut daemon) = Story::begin();
    story.first.load(&WRITE);
    let [one, two] = &story.drives;
    let import = ["pool", "import", one, two, "--pool", story.second.dir()];
    fails(&import, 69, &["a pool that is served needs no import"]);
    let mut load = load_that_is_cut_off(&story.first);
    let (imported, errors) = story.import(&["--force", "pool"]);
    assert!(imported.success(), "{errors}");
    ends_by_itself(&mut daemon);
    let _ = load.kill();
    let _ = load.wait();
    let second = story.serve_second();
    story.second.load(&READ);
    second.stop(Signal::TERM);
}

/// A host that writes to the second volume for as long as the pool is there.
fn load_that_is_cut_off(pool: &Pool) -> Child {
    let before = written(pool);
    let mut load = Command::new(onefold());
    load.args([
        "perf",
        &pool.subsystem(),
        "--nsid",
        "2",
        "--rw",
        "randwrite",
    ]);
    load.args(["--bs", "4k", "--time", "600"]);
    let child = load.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let child = child.expect("the program starts");
    wait_for("the load", || written(pool) > before);
    child
}

fn written(pool: &Pool) -> u64 {
    let io = &pool.status()["volumes"][1]["io"]["write_commands"];
    io.as_u64().expect("a number")
}
