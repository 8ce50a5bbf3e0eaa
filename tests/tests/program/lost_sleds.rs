//! A pool with two copies on two sleds, one of which dies, stops, or cannot be reached while a host works: the host sees no
//! error and waits for nobody long, the sled gets what it missed, and nothing old that it still has meets newer data.

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use fabric::{Connector, TransportAddress};
use futures_util::future::join_all;
use initiator::{ConnectOptions, Controller, Host, Namespace};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use streams::BLOCK_BYTES;

use crate::harness::{Daemon, Pool, address, json, onefold, run, succeeds, wait_for};
use crate::sled::{Serving, Sled};
use crate::wire::Wire;

/// How long a drive may take to answer before it is left (`--drive-timeout` when nobody says otherwise).
const DRIVE_TIMEOUT: Duration = Duration::from_secs(1);

/// A command may take so much longer: that the drive is offline is written down first, and the machine is busy with other
/// tests. A host that waited for the sled itself would wait for as long as that is away.
const MARGIN: Duration = Duration::from_secs(3);

/// The keep-alive timeout of a pool's connections.
const KEEP_ALIVE: Duration = Duration::from_secs(4);

/// The place of a drive is small, so that the load writes to each place again and again, also while a sled is away.
const DRIVE: &str = "128M";

/// Blocks of the load: all of them are written again and again.
const LOAD_BLOCKS: u64 = 4096;

/// A host that writes and reads, and compares what it reads with what it wrote.
struct VerifyingLoad(Child);

impl VerifyingLoad {
    fn start(pool: &Pool) -> Self {
        let range = (LOAD_BLOCKS * BLOCK_BYTES).to_string();
        let mut load = Command::new(onefold());
        load.args(["perf", &pool.subsystem(), "--json", "--verify"]);
        load.args([
            "--rw", "randrw", "--bs", "4k", "--qd", "8", "--range", &range,
        ]);
        // Longer than the story, which ends it.
        load.args(["--time", "600"]).stdout(Stdio::piped());
        Self(load.spawn().expect("the program starts"))
    }

    /// No command failed or took too long, and nothing that was read is wrong.
    #[track_caller]
    fn ends_without_an_error(mut self) {
        let is_running = self.0.try_wait().expect("a child").is_none();
        assert!(is_running, "it saw all of that");
        let told = kill_process(Pid::from_child(&self.0), Signal::INT);
        told.expect("it runs");
        let mut text = String::new();
        let stdout = self.0.stdout.as_mut().expect("a pipe");
        stdout.read_to_string(&mut text).expect("text");
        let report: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(report["errors"], 0, "{report:#}");
        assert_eq!(report["verify_errors"], 0, "{report:#}");
        assert_eq!(report["connection_lost"], Value::Null, "{report:#}");
        assert!(report["verified_blocks"].as_u64() > Some(0), "{report:#}");
        for way in ["read", "write"] {
            let longest = report[way]["latency_ns"]["max"].as_u64();
            let longest = Duration::from_nanos(longest.expect("a number"));
            assert!(longest < DRIVE_TIMEOUT + MARGIN, "{report:#}");
        }
    }
}

impl Drop for VerifyingLoad {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A pool on two sleds. The network to the first one can be cut.
struct Story {
    sleds: [Sled; 2],
    serving: [Option<Serving>; 2],
    wire: Wire,
    drives: [String; 2],
    pool: Pool,
    daemon: Option<Daemon>,
}

impl Story {
    fn begin() -> Self {
        Self::with(None, &[])
    }

    /// The first sled listens at this address, too, and the pool knows that. `options` are more options of the pool's daemon.
    fn with(second_way: Option<&str>, options: &[&str]) -> Self {
        let sleds = [Sled::new(), Sled::new()];
        let mut ways = [second_way, None].into_iter();
        let serving = sleds.each_ref().map(|sled| {
            let drive = format!("{}={DRIVE}", sled.path("drive"));
            let mut arguments = vec!["--drive", &drive];
            arguments.extend(
                ways.next()
                    .flatten()
                    .iter()
                    .flat_map(|way| ["--listen", way]),
            );
            Some(sled.serve(&arguments))
        });
        let before = address().replace("rdma://", "tcp://");
        let wire = Wire::new(&before, &sleds[0].address);
        let second_way = second_way.map(|way| way.replace("tcp://", ","));
        let ways = before + &second_way.unwrap_or_default();
        let drives = [
            format!("nvme+{ways}/{}#1", sleds[0].nqn()),
            format!("nvme+{}/{}#1", sleds[1].address, sleds[1].nqn()),
        ];
        let pool = Pool::new();
        let mirror = ["--create", "0", "--redundancy", "mirror=2"];
        let named = ["--drive", &drives[0], "--drive", &drives[1]];
        let volume = ["--volume", "vol0=32M"];
        let daemon = pool.serve(&[&mirror[..], &named, &volume, options].concat());
        let story = Self {
            sleds,
            serving,
            wire,
            drives,
            pool,
            daemon: Some(daemon),
        };
        assert_eq!(story.states(), ["online", "online"]);
        story
    }

    /// The states of the drives, in their order.
    fn states(&self) -> Vec<String> {
        let drives = json(&["drive", "list", "--pool", self.pool.dir(), "--json"]);
        let drives = drives.as_array().expect("a list").iter();
        let state = |drive: &Value| drive["state"].as_str().expect("a word").to_owned();
        drives.map(state).collect()
    }

    fn written(&self) -> u64 {
        let io = &self.pool.status()["volumes"][0]["io"]["write_commands"];
        io.as_u64().expect("a number")
    }

    /// The first sled goes away under a load that verifies all it reads, stays away for so long while the same blocks are
    /// written again, and comes back. `goes` and `comes` do that to it.
    fn goes_on_without_a_sled(
        mut self,
        away: Duration,
        goes: impl FnOnce(&mut Self),
        comes: impl FnOnce(&mut Self),
    ) {
        let load = VerifyingLoad::start(&self.pool);
        let before = self.written();
        wait_for("the load", || self.written() > before);
        goes(&mut self);
        let gone = Instant::now();
        wait_for("the drive to be left", || {
            self.states() == ["offline", "online"]
        });
        let written = self.written();
        wait_for("the time that the sled is away", || gone.elapsed() >= away);
        wait_for("more of the load", || self.written() > written);
        comes(&mut self);
        wait_for("the drive to be usable", || {
            let online = [
                "drive",
                "online",
                "--pool",
                self.pool.dir(),
                &self.drives[0],
            ];
            run(&online).status.success()
        });
        wait_for("the rebuild", || self.states() == ["online", "online"]);
        // What comes late comes in the time that a drive gets, and is met by writes of all blocks.
        let written = self.written();
        wait_for("all blocks of the load", || {
            self.written() > written + LOAD_BLOCKS
        });
        load.ends_without_an_error();
        assert_eq!(self.states(), ["online", "online"]);
        self.ends_with_equal_copies();
    }

    /// Every copy of every block is read and proven, by the daemon and without it.
    fn ends_with_equal_copies(mut self) {
        let dir = self.pool.dir().to_owned();
        succeeds(&["scrub", "start", "--pool", &dir]);
        let mut scrub = Value::Null;
        wait_for("the scrub", || {
            let output = run(&["scrub", "status", "--pool", &dir, "--json"]);
            scrub = serde_json::from_slice(&output.stdout).expect("JSON");
            scrub["phase"] != "running"
        });
        assert_eq!(scrub["phase"], "finished", "{scrub:#}");
        assert_eq!(scrub["bad_blocks"], 0, "{scrub:#}");
        assert_eq!(scrub["damage"]["healed_blocks"], 0, "{scrub:#}");
        self.daemon.take().expect("it runs").stop(Signal::TERM);
        self.pool.is_consistent();
        for serving in self.serving.iter_mut().filter_map(Option::take) {
            serving.daemon.stop(Signal::TERM);
        }
    }

    /// The first sled.
    fn sled(&self) -> &Daemon {
        &self.serving[0].as_ref().expect("it runs").daemon
    }
}

#[test]
fn hosts_notice_nothing_when_a_sled_is_killed_and_started_again() {
    Story::begin().goes_on_without_a_sled(
        Duration::ZERO,
        |story| story.serving[0].take().expect("it runs").daemon.kill(),
        |story| {
            let drive = story.sleds[0].path("drive");
            story.serving[0] = Some(story.sleds[0].serve(&["--drive", &drive]));
        },
    );
}

#[test]
fn hosts_notice_nothing_when_a_sled_stops_for_a_moment() {
    Story::begin().goes_on_without_a_sled(
        KEEP_ALIVE + Duration::from_secs(1),
        |story| story.sled().halt(),
        |story| story.sled().signal(Signal::CONT),
    );
}

#[test]
fn hosts_notice_nothing_when_the_network_to_a_sled_is_cut_and_mended() {
    Story::begin().goes_on_without_a_sled(
        KEEP_ALIVE * 2,
        |story| story.wire.cut(),
        |story| story.wire.mend(),
    );
}

#[test]
fn a_sled_with_a_second_address_is_used_again_by_that_while_the_first_one_cannot_be_reached() {
    let second = address().replace("rdma://", "tcp://");
    Story::with(Some(&second), &[]).goes_on_without_a_sled(
        Duration::ZERO,
        |story| story.wire.cut(),
        // Nobody mends it.
        |_| {},
    );
}

#[test]
fn a_sled_that_was_away_is_used_again_without_anybody_and_one_that_somebody_took_out_of_use_is_not()
{
    const RETURN: Duration = Duration::from_millis(500);
    let mut story = Story::with(None, &["--drive-return", "500ms"]);
    let load = VerifyingLoad::start(&story.pool);
    wait_for("the load", || story.written() > 0);
    for time in 1..=2 {
        story.serving[0].take().expect("it runs").daemon.kill();
        wait_for("the drive to be left", || {
            story.states() == ["offline", "online"]
        });
        let told = |words: &str| {
            let all = ["events", "--limit", "4096", "--pool", story.pool.dir()];
            succeeds(&all).matches(words).count()
        };
        wait_for("an attempt while the sled is away", || {
            told("cannot be used again yet") == time
        });
        // What cannot be reached is not filled: that would count as a failure, and it is given up after some of them.
        assert_eq!(told("answers, and is used again"), time - 1);
        let drive = story.sleds[0].path("drive");
        story.serving[0] = Some(story.sleds[0].serve(&["--drive", &drive]));
        wait_for("the rebuild", || story.states() == ["online", "online"]);
    }
    load.ends_without_an_error();
    let dir = story.pool.dir().to_owned();
    // This one has not failed: it would be tried at once.
    let other = story.drives[1].clone();
    succeeds(&["drive", "offline", "--pool", &dir, &other]);
    let taken = Instant::now();
    wait_for("several times what a drive that failed waits", || {
        taken.elapsed() > 4 * RETURN
    });
    assert_eq!(story.states(), ["online", "offline"]);
    succeeds(&["drive", "online", "--pool", &dir, &other]);
    wait_for("the rebuild", || story.states() == ["online", "online"]);
    // Nothing to do.
    succeeds(&["drive", "online", "--pool", &dir, &other]);
    story.ends_with_equal_copies();
}

/// A machine that stands still, with what it was sent still on its way: its clock goes on, and nobody is told.
#[test]
fn what_was_on_its_way_to_a_sled_that_stood_still_never_meets_newer_data() {
    const SILENCE: Duration = Duration::from_secs(1);
    const BLOCKS: u64 = 64;
    let sled = Sled::new();
    let serving = sled.serve(&["--drive", "memory=64M"]);
    let far = address().replace("rdma://", "tcp://");
    let wire = Wire::new(&far, &sled.address);
    let host = Host::generate();
    let told = reactor::run(reactor::Config::default(), async {
        let attach = async |address: &str| {
            let address: TransportAddress = address.parse().expect("an address");
            let connector = Connector::to_reach(&address).expect("a connector");
            let nqn = sled.nqn().parse().expect("a name");
            let options = ConnectOptions {
                keep_alive: SILENCE,
                ..ConnectOptions::new(address.socket_addr(), nqn, host.clone())
            };
            let controller = Controller::connect(&connector, options).await;
            let controller = controller.expect("the sled takes its host");
            controller.namespace(1).await.expect("its drive")
        };
        let write = async |namespace: &Namespace, byte: u8| {
            let writes = (0..BLOCKS).map(async |block| {
                let mut buffer = initiator::buffer(BLOCK_BYTES as usize).await;
                buffer.fill(byte);
                namespace.write(block * BLOCK_BYTES, buffer, false).await.0
            });
            join_all(writes).await
        };
        let read = async |namespace: &Namespace| {
            let reads = (0..BLOCKS).map(async |block| {
                let buffer = initiator::buffer(BLOCK_BYTES as usize).await;
                let (done, buffer) = namespace.read(block * BLOCK_BYTES, buffer).await;
                done.expect("it answers");
                buffer[0]
            });
            join_all(reads).await
        };
        let before = attach(&far).await;
        assert!(write(&before, 1).await.iter().all(Result::is_ok));
        serving.daemon.halt();
        wire.cut();
        let began = Instant::now();
        let lost = write(&before, 2).await;
        assert!(lost.iter().all(Result::is_err), "nobody answers");
        drop(before);
        // Three times the timeout, and one for the sled to end what it does: then a host counts on it that it is over.
        let settled = began.max(Instant::now()) + SILENCE * 4;
        reactor::sleep_until(settled).await;
        serving.daemon.signal(Signal::CONT);
        let after = attach(&sled.address).await;
        assert!(write(&after, 3).await.iter().all(Result::is_ok));
        // The queue of the writes comes first; the sled does not hear on the other one yet that the host has left.
        let open = wire.open();
        wire.mend_but_for(1);
        while wire.open() == open {
            reactor::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(read(&after).await, [3; BLOCKS as usize]);
        wire.mend();
        while wire.open() > 0 {
            reactor::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(read(&after).await, [3; BLOCKS as usize]);
    });
    told.expect("a reactor");
    serving.daemon.stop(Signal::TERM);
}
