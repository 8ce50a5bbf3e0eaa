//! Several nodes offer one pool (`onefold serve --join`), and hosts are attached to all of them.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;
use tests::ceph::Ceph;
use tests::daemon::{Daemon, assert_consistent, onefold, text_of};
use tests::deaths::ThreeNodes;
use tests::{own_address, wait_for};

use crate::{cluster, whole_cluster};
use tests::paths::{Writer, verify, with_controllers, with_volume, write_rounds};

/// How long anything may take before the test gives up.
const PATIENCE: Duration = Duration::from_secs(120);

/// What a node logs when it takes the pool.
const TAKES: &str = "this node takes it over";

/// What it logs when it has the drive.
const HAS_DRIVE: &str = "the drive is this process's now";

/// Blocks that the host writes to: each several times.
const BLOCKS: u64 = 97;

fn text(path: &Path) -> &str {
    path.to_str().expect("test folders are UTF-8")
}

pub(crate) fn join<'a>(listen: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["--join", "--reactors", "1", "--listen", listen], more].concat()
}

/// A pool that several nodes offer: a folder and a listener for each of them.
pub(crate) struct Offered<const NODES: usize> {
    pub(crate) pools: [PathBuf; NODES],
    pub(crate) listen: [String; NODES],
    drive: String,
    /// The same, with the size that it is made with.
    sized: String,
    _folder: TempDir,
}

impl<const NODES: usize> Offered<NODES> {
    pub(crate) fn new(ceph: &Ceph, name: &str, addresses: [u8; NODES]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let drive = ceph.address("pool", name, "onefold");
        Self {
            pools: std::array::from_fn(|at| folder.path().join(format!("node{at}"))),
            listen: addresses.map(|number| format!("tcp://{}:4420", own_address(number))),
            sized: format!("{drive}=2G"),
            drive,
            _folder: folder,
        }
    }

    /// Starts a node, on a machine of its own.
    pub(crate) fn start(&self, at: usize) -> Daemon {
        let create = ["--create", "128M", "--drive", &self.sized];
        Daemon::start_elsewhere(&self.pools[at], None, &join(&self.listen[at], &create))
    }

    /// The same, on a machine whose clock is off.
    fn start_with_clock(&self, offset: &str, at: usize) -> Option<Daemon> {
        let create = ["--create", "128M", "--drive", &self.sized];
        let arguments = join(&self.listen[at], &create);
        Daemon::start_with_clock(offset, &self.pools[at], &arguments)
    }
}

/// What `onefold pool nodes --json` says: numbers, and who serves.
fn nodes(drive: &str) -> Vec<(u64, bool)> {
    let output = onefold(&["pool", "nodes", drive, "--json"]);
    assert!(output.status.success(), "{}", text_of(&output));
    let nodes: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let nodes = nodes.as_array().expect("a list").iter();
    let mut nodes: Vec<_> = nodes
        .map(|node| {
            let number = node["number"].as_u64().expect("a number");
            (number, node["serves"].as_bool().expect("a state"))
        })
        .collect();
    nodes.sort_unstable();
    nodes
}

#[test]
fn a_standby_takes_the_pool_over_when_its_owner_dies_and_no_command_of_a_host_fails() {
    let Some((ceph, _beside)) = cluster() else {
        return;
    };
    // Many rounds are for who has an evening.
    let takeovers = std::env::var("ONEFOLD_TAKEOVERS").ok();
    let takeovers: usize = takeovers.map_or(2, |count| count.parse().expect("a number"));
    let offered = Offered::new(ceph, "joined", [54, 55]);
    let first = offered.start(0);
    assert!(first.ready_line().starts_with("ready"));
    let mut owner = Some(first);
    let mut pauses = Vec::new();
    for takeover in 0..takeovers {
        let (here, there) = (takeover % 2, (takeover + 1) % 2);
        // What it has of the pool in its folder is older, from the second time on.
        let standby = offered.start(there);
        assert!(standby.ready_line().starts_with("standby"));
        standby.logs("the pool's folder is prepared", PATIENCE);
        let writer = Writer::start(&offered.listen);
        owner.take().expect("one owns it").kill_hard();
        pauses.push(writer.goes_on());
        standby.prints("ready", PATIENCE);
        let log = standby.log();
        assert!(log.contains("is what was prepared of it"), "{log}");
        // From the first look until the pool is open the drive is this node's.
        let (_, taken) = log.rsplit_once(TAKES).expect("it took the pool");
        let claims = taken.matches(HAS_DRIVE).count();
        assert_eq!(claims, 1, "{taken}");
        writer.end();
        assert_eq!(standby.status()["volumes"][0]["name"], "vol0", "of {here}");
        owner = Some(standby);
    }
    pauses.sort_unstable();
    let (median, longest) = (pauses[pauses.len() / 2], pauses[pauses.len() - 1]);
    eprintln!("{takeovers} takeovers: a host waited for {median:?}, {longest:?} at most");
    assert!(owner.expect("one owns it").stop().success());
    assert_consistent(&offered.pools[takeovers % 2]);
}

#[test]
fn a_third_node_goes_on_when_the_one_that_takes_the_pool_dies_on_the_way() {
    let Some((ceph, _beside)) = cluster() else {
        return;
    };
    let offered = Offered::new(ceph, "third", [65, 66, 67]);
    let nodes = ThreeNodes {
        pools: &offered.pools,
        listen: &offered.listen,
        start: &|at| offered.start(at),
        // One that waited for the lease of the turn before goes on without another word.
        signs: &[HAS_DRIVE],
    };
    nodes.die_on_the_way();
}

#[test]
fn another_node_goes_on_when_the_one_that_gives_the_pool_away_dies_on_the_way() {
    let Some((ceph, _beside)) = cluster() else {
        return;
    };
    let offered = Offered::new(ceph, "given", [71, 72, 73]);
    let nodes = ThreeNodes {
        pools: &offered.pools,
        listen: &offered.listen,
        start: &|at| offered.start(at),
        signs: &[HAS_DRIVE],
    };
    nodes.die_while_they_give();
}

#[test]
fn an_owner_that_slept_comes_back_as_a_standby_and_has_changed_nothing() {
    let Some((ceph, _beside)) = cluster() else {
        return;
    };
    let offered = Offered::new(ceph, "slept", [56, 57]);
    let (pools, listen) = (&offered.pools, &offered.listen);
    let [sleeper, standby] = [0, 1].map(|at| offered.start(at));
    let at = listen[0].clone();
    let before = with_volume(&at, async |paths| {
        write_rounds(&paths, BLOCKS, 20, 0, |_| ()).await
    });
    let process = Pid::from_raw(sleeper.pid().cast_signed()).expect("a child has a number");
    kill_process(process, Signal::STOP).expect("it lives");
    standby.prints("ready", PATIENCE);
    let at = listen[1].clone();
    with_volume(&at, async move |paths| verify(&paths, before).await);
    let after = with_volume(&at, async |paths| {
        write_rounds(&paths, BLOCKS, 20, 20, |_| ()).await
    });
    kill_process(process, Signal::CONT).expect("it sleeps");
    let line = sleeper.prints("standby", PATIENCE);
    assert!(line.contains(&listen[0]), "{line}");
    let log = sleeper.log();
    assert!(
        log.contains("another process has taken the drive over"),
        "{log}"
    );
    with_volume(&at, async move |paths| verify(&paths, after).await);
    assert!(standby.stop().success());
    // It is the same process, and takes the pool as any standby does.
    sleeper.prints("ready", PATIENCE);
    assert!(sleeper.stop().success());
    assert_consistent(&pools[0]);
}

#[test]
fn a_node_whose_clock_is_a_year_off_takes_a_pool_over_and_so_does_the_next_one() {
    let Some((ceph, _beside)) = cluster() else {
        return;
    };
    for (offset, name, addresses) in [("+400d", "ahead", [74, 75]), ("-400d", "behind", [76, 77])] {
        let offered = Offered::new(ceph, name, addresses);
        let right = offered.start(0);
        let Some(wrong) = offered.start_with_clock(offset, 1) else {
            return;
        };
        wrong.logs("the pool's folder is prepared", PATIENCE);
        let year = |node: &Daemon| node.log().chars().take(4).collect::<String>();
        assert_ne!(year(&right), year(&wrong), "its clock is right");
        let writer = Writer::start(&offered.listen);
        right.kill_hard();
        writer.goes_on();
        wrong.prints("ready", PATIENCE);
        let right = offered.start(0);
        assert!(right.ready_line().starts_with("standby"));
        writer.goes_on();
        wrong.kill_hard();
        writer.goes_on();
        writer.end();
        right.prints("ready", PATIENCE);
        assert!(right.stop().success());
        assert_consistent(&offered.pools[0]);
    }
}

#[test]
fn a_pool_is_moved_to_another_node_by_a_command() {
    let Some((ceph, _beside)) = cluster() else {
        return;
    };
    let offered = Offered::new(ceph, "moved", [58, 59]);
    let (pools, listen, drive) = (&offered.pools, &offered.listen, &offered.drive);
    let create = ["--create", "128M", "--drive", &offered.sized];
    let first = Daemon::start(&pools[0], None, &join(&listen[0], &create));
    let move_first = ["pool", "move", "--pool", text(&pools[0])];
    let alone = onefold(&move_first);
    assert_eq!(alone.status.code(), Some(69), "{}", text_of(&alone));
    assert!(
        text_of(&alone).contains("serve --join"),
        "{}",
        text_of(&alone)
    );
    let second = Daemon::start(&pools[1], None, &join(&listen[1], &["--drive", drive]));
    wait_for("what both say", PATIENCE, || {
        (nodes(drive) == [(0, true), (1, false)]).then_some(())
    });
    // Who asks the standby is told who has the pool, and its folder is nobody else's.
    let asked = onefold(&["status", "--pool", text(&pools[1])]);
    let said = text_of(&asked);
    assert_eq!(asked.status.code(), Some(69), "{said}");
    assert!(
        said.contains("this node is a standby: the machine '"),
        "{said}"
    );
    let third = format!("tcp://{}:4421", own_address(59));
    let refused = Daemon::try_start(&pools[1], None, &join(&third, &["--drive", drive]));
    let refused = refused.expect_err("the folder is in use");
    assert!(
        refused.contains("another daemon uses the folder"),
        "{refused}"
    );
    // What a host may see is changed while it is attached to both.
    let created = onefold(&[
        "volume",
        "create",
        "more",
        "--size",
        "1G",
        "--pool",
        text(&pools[0]),
    ]);
    assert!(created.status.success(), "{}", text_of(&created));
    let at = listen[1].clone();
    with_controllers(&[&at], async |controllers| {
        let began = Instant::now();
        while controllers[0].namespaces().await.expect("a list") != [1, 2] {
            assert!(
                began.elapsed() < PATIENCE,
                "the standby hears nothing of it"
            );
            reactor::sleep(Duration::from_millis(20)).await;
        }
    });
    let writer = Writer::start(listen);
    let began = Instant::now();
    let moved = onefold(&move_first);
    assert!(moved.status.success(), "{}", text_of(&moved));
    second.prints("ready", PATIENCE);
    eprintln!("the pool was moved in {:?}", began.elapsed());
    writer.goes_on();
    writer.end();
    first.prints("standby", PATIENCE);
    wait_for("what both say", PATIENCE, || {
        let mut serves: Vec<bool> = nodes(drive).into_iter().map(|(_, serves)| serves).collect();
        serves.sort_unstable();
        (serves == [false, true]).then_some(())
    });
    // And back, to the same process.
    let back = onefold(&["pool", "move", "--pool", text(&pools[1])]);
    assert!(back.status.success(), "{}", text_of(&back));
    first.prints("ready", PATIENCE);
    second.prints("standby", PATIENCE);
    assert!(first.stop().success());
    second.prints("ready", PATIENCE);
    let made_anew = |log: &str| log.matches("is made anew").count();
    let before = made_anew(&second.log());
    assert!(before > 0, "the other node had the pool");
    assert!(second.stop().success());
    // Nobody had the pool meanwhile: the node uses what its folder has.
    let again = Daemon::start(&pools[1], None, &join(&listen[1], &["--drive", drive]));
    assert!(again.ready_line().starts_with("ready"));
    assert_eq!(made_anew(&again.log()), before);
    assert!(again.stop().success());
    assert_consistent(&pools[1]);
}

#[test]
fn a_cluster_that_stands_still_takes_the_pool_from_nobody_and_costs_hosts_no_command() {
    let Some((ceph, _alone)) = whole_cluster() else {
        return;
    };
    let offered = Offered::new(ceph, "still", [61, 62]);
    let listen = &offered.listen;
    let [owner, standby] = [0, 1].map(|at| offered.start(at));
    wait_for("what both say", PATIENCE, || {
        (nodes(&offered.drive) == [(0, true), (1, false)]).then_some(())
    });
    owner.logs("other nodes offer the pool", PATIENCE);
    // Longer than a lease, and short enough that the owner waits.
    let writer = Writer::start(listen);
    let still = ceph.stand_still();
    // How long it stands still is what the story is about.
    thread::sleep(Duration::from_secs(3));
    drop(still);
    writer.goes_on();
    writer.end();
    assert!(!owner.log().contains("ends now"), "{}", owner.log());
    assert!(
        !standby.log().contains("takes it over"),
        "{}",
        standby.log()
    );
    assert_eq!(owner.status()["volumes"][0]["name"], "vol0");
    // So long that the owner lets its hosts go: one of both has the pool afterwards.
    let writer = Writer::start(listen);
    let still = ceph.stand_still();
    owner.logs("this process ends now", PATIENCE);
    drop(still);
    writer.goes_on();
    writer.end();
    wait_for("one owner", PATIENCE, || {
        let mut serves: Vec<bool> = nodes(&offered.drive)
            .into_iter()
            .map(|(_, serves)| serves)
            .collect();
        serves.sort_unstable();
        (serves == [false, true]).then_some(())
    });
    assert!(owner.stop().success());
    assert!(standby.stop().success());
}

#[test]
fn a_full_cluster_takes_the_pool_from_nobody_and_a_move_ends_when_it_has_room() {
    let Some((ceph, _alone)) = whole_cluster() else {
        return;
    };
    let offered = Offered::new(ceph, "filled", [50, 51]);
    let [owner, standby] = [0, 1].map(|at| offered.start(at));
    let serve = |wanted: [(u64, bool); 2]| {
        wait_for("who serves", PATIENCE, || {
            (nodes(&offered.drive) == wanted).then_some(())
        });
    };
    serve([(0, true), (1, false)]);
    owner.logs("other nodes offer the pool", PATIENCE);
    ceph.set_full(true);
    // All the time, for longer than two leases.
    let full_since = Instant::now();
    while full_since.elapsed() < Duration::from_secs(4) {
        assert_eq!(nodes(&offered.drive), [(0, true), (1, false)]);
    }
    for (node, words) in [(&owner, "not renewed"), (&standby, "takes it over")] {
        assert!(!node.log().contains(words), "{}", node.log());
    }
    // Its metadata may have to wait for room.
    let moved = onefold(&["pool", "move", "--pool", text(&offered.pools[0])]);
    assert!(moved.status.success(), "{}", text_of(&moved));
    ceph.set_full(false);
    serve([(0, false), (1, true)]);
    assert!(owner.stop().success());
    assert!(standby.stop().success());
}

#[test]
fn a_standby_takes_a_pool_over_that_got_a_drive_meanwhile() {
    let Some((ceph, _beside)) = cluster() else {
        return;
    };
    let offered = Offered::new(ceph, "grown", [63, 64]);
    let (pools, listen) = (&offered.pools, &offered.listen);
    let [owner, standby] = [0, 1].map(|at| offered.start(at));
    standby.logs("the pool's folder is prepared", PATIENCE);
    let another = format!("{}=2G", ceph.address("pool", "another", "onefold"));
    let at = text(&pools[0]);
    let added = onefold(&["drive", "add", &another, "--pool", at]);
    assert!(added.status.success(), "{}", text_of(&added));
    let at = listen[0].clone();
    let written = with_volume(&at, async |paths| {
        write_rounds(&paths, BLOCKS, 20, 0, |_| ()).await
    });
    owner.kill_hard();
    standby.prints("ready", PATIENCE);
    let at = listen[1].clone();
    with_volume(&at, async move |paths| verify(&paths, written).await);
    let drives = standby.status()["drives"].as_array().map(Vec::len);
    assert_eq!(drives, Some(2), "{}", standby.status());
    assert!(standby.stop().success());
    assert_consistent(&pools[1]);
}

#[test]
fn a_node_that_starts_before_its_cluster_answers_waits_for_it() {
    let Some((ceph, _beside)) = cluster() else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let (pool, conf) = (folder.path().join("pool"), folder.path().join("conf"));
    let right = ceph.conf();
    let monitor = right.lines().find(|line| line.starts_with("mon host"));
    let monitor = monitor.expect("a client needs one");
    // Nobody listens there.
    let wrong = right.replace(monitor, "mon host = v2:127.0.0.1:1");
    std::fs::write(&conf, &wrong).expect("a file");
    let listen = format!("tcp://{}:4422", own_address(60));
    let drive = format!("rados:pool/early?conf={}&user=onefold=2G", conf.display());
    let start = ["--listen", &listen, "--reactors", "1"];
    let new = ["--create", "128M", "--drive", &drive];
    let refused = Daemon::try_start(&pool, None, &[&start[..], &new].concat());
    let refused = refused.expect_err("who makes a pool is told at once");
    assert!(refused.contains("monitors do not answer"), "{refused}");
    // One that other nodes may have already, and one that is there.
    for (starts, more) in [(1, &[&["--join"], &new[..]].concat()[..]), (2, &[])] {
        std::fs::write(&conf, &wrong).expect("a file");
        thread::scope(|scope| {
            let starting = scope.spawn(|| Daemon::start(&pool, None, &[&start[..], more].concat()));
            let waits = "this node tries again until the pool's drives answer";
            wait_for(waits, PATIENCE, || {
                let log = std::fs::read_to_string(pool.with_extension("log")).unwrap_or_default();
                (log.matches(waits).count() == starts).then_some(())
            });
            std::fs::write(&conf, &right).expect("a file");
            let daemon = starting.join().expect("it gets ready");
            assert!(daemon.ready_line().starts_with("ready"));
            assert!(daemon.stop().success());
        });
    }
}

#[test]
fn who_cannot_join_is_told_why() {
    let folder = tempfile::tempdir().expect("a folder");
    let pool = folder.path().join("pool");
    let local = folder.path().join("drive");
    let local = format!("{}=2G", text(&local));
    let listen = format!("tcp://{}:4420", own_address(60));
    let refused = Daemon::try_start(
        &pool,
        None,
        &join(&listen, &["--create", "1G", "--drive", &local]),
    );
    let refused = refused.expect_err("no other node reaches a file");
    assert!(refused.contains("rados:POOL"), "{refused}");
    let Some((ceph, _beside)) = cluster() else {
        return;
    };
    // A drive that is not there is made only if somebody says so.
    let drive = ceph.address("pool", "missing", "onefold");
    let refused = Daemon::try_start(&pool, None, &join(&listen, &["--drive", &drive]));
    let refused = refused.expect_err("there is no such drive");
    assert!(refused.contains("--create SIZE"), "{refused}");
    // One folder is one node's.
    let sized = format!("{drive}=2G");
    let first = Daemon::start(
        &pool,
        None,
        &join(&listen, &["--create", "0", "--drive", &sized]),
    );
    let again = format!("tcp://{}:4421", own_address(60));
    let refused = Daemon::try_start(&pool, None, &join(&again, &["--drive", &drive]));
    let refused = refused.expect_err("the folder is in use");
    assert!(refused.contains(text(&pool)), "{refused}");
    assert!(first.stop().success());
}
