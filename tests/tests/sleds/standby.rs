//! What hosts and people rely on when a node of a pool on sleds dies, sleeps, or is cut off.

use std::time::{Duration, Instant};

use nvme::features::{AsyncEvent, AsyncEventConfig};
use nvme::log::{ControllerReset, ControllerResetState, ControllerResets, LogPage};
use rustix::process::{Pid, Signal, kill_process};
use tests::daemon::{Daemon, assert_consistent, onefold, text_of};
use tests::deaths::ThreeNodes;
use tests::paths::{Paths, Writer, verify, with_controllers, with_volume, write_rounds};
use tests::wait_for;

use crate::offered::{Offered, text};

/// How long anything may take before the test gives up.
const PATIENCE: Duration = Duration::from_secs(120);

/// Blocks that the host writes to: each several times.
const BLOCKS: u64 = 97;

fn signal(daemon: &Daemon, signal: Signal) {
    let process = Pid::from_raw(daemon.pid().cast_signed()).expect("a child has a number");
    kill_process(process, signal).expect("it lives");
}

/// How often the pool goes to the other node. Many times are for who has an evening.
fn turns() -> usize {
    let turns = std::env::var("ONEFOLD_TAKEOVERS").ok();
    turns.map_or(2, |count| count.parse().expect("a number"))
}

/// The median, and the longest.
fn middle_and_longest(mut times: Vec<Duration>) -> (Duration, Duration) {
    times.sort_unstable();
    (times[times.len() / 2], times[times.len() - 1])
}

#[test]
fn a_standby_takes_the_pool_over_when_its_owner_dies_and_no_command_of_a_host_fails() {
    let takeovers = turns();
    let offered = Offered::<2>::new(2, 10);
    let first = offered.start(0);
    assert!(first.ready_line().starts_with("ready"));
    let mut owner = Some(first);
    let mut pauses = Vec::new();
    for takeover in 0..takeovers {
        let there = (takeover + 1) % 2;
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
        writer.end();
        assert_eq!(standby.status()["volumes"][0]["name"], "vol0");
        owner = Some(standby);
    }
    let (median, longest) = middle_and_longest(pauses);
    eprintln!("{takeovers} takeovers: a host waited for {median:?}, {longest:?} at most");
    assert!(owner.expect("one owns it").stop().success());
    assert_consistent(&offered.pools[takeovers % 2]);
}

#[test]
fn a_third_node_goes_on_when_the_one_that_takes_the_pool_dies_on_the_way() {
    let offered = Offered::<3>::new(2, 110);
    let nodes = ThreeNodes {
        pools: &offered.pools,
        listen: &offered.listen,
        start: &|at| offered.start(at),
        signs: &[],
    };
    nodes.die_on_the_way();
}

#[test]
fn a_host_asks_a_standby_about_the_owner_that_died_and_hears_when_the_pool_is_taken_over() {
    let offered = Offered::<2>::new(2, 170);
    let [first, standby] = [0, 1].map(|at| offered.start(at));
    standby.logs("the pool's folder is prepared", PATIENCE);
    let listen = [&offered.listen[0], &offered.listen[1]].map(|listen| &**listen);
    let owner = Pid::from_raw(first.pid().cast_signed()).expect("a child has a number");
    with_controllers(&listen, async move |controllers| {
        let [lost, there] = controllers else {
            panic!("a controller for each node")
        };
        let volume = lost.namespace(1).await.expect("a volume");
        let before = write_rounds(&Paths::one(volume), BLOCKS, 20, 0, |_| ()).await;
        assert!(before.is_whole());
        let asked = there.reset_other(lost.identify()).await;
        assert!(!asked.expect("an answer"), "the owner may do anything");
        let is = async |state: ControllerResetState| {
            let page = there.log_page(LogPage::ControllerResets, 0, 4096).await;
            let page = ControllerResets::decode(&page.expect("a page")).expect("a log");
            let of_lost = |reset: &ControllerReset| reset.cntlid == lost.identify().cntlid;
            let states = page.0.iter().filter(|reset| of_lost(reset));
            let states: Vec<_> = states.map(ControllerReset::state).collect();
            assert_eq!(states, [Some(state)]);
        };
        is(ControllerResetState::InProgress).await;
        kill_process(owner, Signal::KILL).expect("it lives");
        let wanted = AsyncEventConfig::CROSS_CONTROLLER_RESET;
        let event = there.next_event(wanted, PATIENCE).await;
        let completed = AsyncEvent::CROSS_CONTROLLER_RESET_COMPLETED;
        assert_eq!(event.expect("an event"), completed);
        is(ControllerResetState::Successful).await;
        // From here on the host may repeat what it likes: nothing older comes after it.
        let volume = there.namespace(1).await.expect("a volume");
        let paths = Paths::one(volume);
        verify(&paths, before).await;
        let after = write_rounds(&paths, BLOCKS, 20, 20, |_| ()).await;
        assert!(after.is_whole());
        verify(&paths, after).await;
        let again = there.reset_other(lost.identify()).await;
        assert!(again.expect("an answer"), "this node has the pool");
    });
    first.kill_hard();
    standby.prints("ready", PATIENCE);
    assert!(standby.stop().success());
    assert_consistent(&offered.pools[1]);
}

#[test]
fn another_node_goes_on_when_the_one_that_gives_the_pool_away_dies_on_the_way() {
    let offered = Offered::<3>::new(2, 120);
    let nodes = ThreeNodes {
        pools: &offered.pools,
        listen: &offered.listen,
        start: &|at| offered.start(at),
        signs: &[],
    };
    nodes.die_while_they_give();
}

#[test]
fn an_owner_that_slept_comes_back_as_a_standby_and_has_changed_nothing() {
    let offered = Offered::<2>::new(3, 20);
    let (pools, listen) = (&offered.pools, &offered.listen);
    let [sleeper, standby] = [0, 1].map(|at| offered.start(at));
    let at = listen[0].clone();
    let before = with_volume(&at, async |paths| {
        write_rounds(&paths, BLOCKS, 20, 0, |_| ()).await
    });
    assert!(before.is_whole());
    signal(&sleeper, Signal::STOP);
    standby.prints("ready", PATIENCE);
    let at = listen[1].clone();
    // Nothing was flushed: what was acknowledged is there all the same.
    with_volume(&at, async move |paths| verify(&paths, before).await);
    let after = with_volume(&at, async |paths| {
        write_rounds(&paths, BLOCKS, 20, 20, |_| ()).await
    });
    signal(&sleeper, Signal::CONT);
    let line = sleeper.prints("standby", PATIENCE);
    assert!(line.contains(&listen[0]), "{line}");
    let log = sleeper.log();
    // Who has slept for long sees first that no drive has answered it for five seconds.
    let reasons = [
        "another process has taken the drive over",
        "another node waits for the pool",
    ];
    assert!(reasons.iter().any(|why| log.contains(why)), "{log}");
    with_volume(&at, async move |paths| verify(&paths, after).await);
    assert!(standby.stop().success());
    // It is the same process, and takes the pool as any standby does.
    sleeper.prints("ready", PATIENCE);
    assert!(sleeper.stop().success());
    assert_consistent(&pools[0]);
}

#[test]
fn a_pool_is_moved_to_another_node_by_a_command_and_people_see_who_has_it() {
    let moves = turns();
    let offered = Offered::<2>::new(1, 30);
    let nodes = [0, 1].map(|at| offered.start(at));
    let both = |serves: usize| {
        wait_for("what both say", PATIENCE, || {
            let nodes = offered.nodes();
            let expected: Vec<_> = (0..2).map(|at| at == serves).collect();
            let seen: Vec<_> = nodes.iter().map(|(_, serves)| *serves).collect();
            (seen == expected).then_some(())
        });
    };
    both(0);
    let asked = onefold(&["status", "--pool", text(&offered.pools[1])]);
    let said = text_of(&asked);
    assert_eq!(asked.status.code(), Some(69), "{said}");
    assert!(said.contains("this node is a standby"), "{said}");
    let writer = Writer::start(&offered.listen);
    let mut gone = Vec::new();
    for turn in 0..moves {
        let (from, to) = (turn % 2, (turn + 1) % 2);
        // As often as it has become a standby.
        wait_for("a standby with a folder", PATIENCE, || {
            let log = nodes[to].log();
            let prepared = log.matches("the pool's folder is prepared").count();
            (prepared > turn / 2).then_some(())
        });
        let began = Instant::now();
        let moved = onefold(&["pool", "move", "--pool", text(&offered.pools[from])]);
        assert!(moved.status.success(), "{}", text_of(&moved));
        nodes[to].prints("ready", PATIENCE);
        gone.push(began.elapsed());
        writer.goes_on();
        nodes[from].prints("standby", PATIENCE);
        both(to);
    }
    let (median, longest) = middle_and_longest(gone);
    eprintln!("{moves} moves: the other node had the pool after {median:?}, {longest:?} at most");
    writer.end();
    // The pool's standby ends without a trace, and then its owner.
    let (owner, standby) = (moves % 2, (moves + 1) % 2);
    let mut nodes = nodes.map(Some);
    for at in [standby, owner] {
        let node = nodes[at].take().expect("it runs");
        assert!(node.stop().success());
    }
    assert_consistent(&offered.pools[owner]);
}

#[test]
fn a_pool_goes_over_with_one_of_three_sleds_lost_and_stays_where_it_is_with_two_lost() {
    let mut offered = Offered::<2>::new(3, 40);
    let [first, standby] = [0, 1].map(|at| offered.start(at));
    standby.logs("the pool's folder is prepared", PATIENCE);
    let at = offered.listen[0].clone();
    let before = with_volume(&at, async |paths| {
        write_rounds(&paths, BLOCKS, 20, 0, |_| ()).await
    });
    assert!(before.is_whole());
    offered.sleds[2].kill();
    let after = with_volume(&at, async |paths| {
        write_rounds(&paths, BLOCKS, 20, 20, |_| ()).await
    });
    assert!(after.is_whole(), "two sleds have all that is written");
    first.kill_hard();
    standby.prints("ready", PATIENCE);
    let mut all = before;
    all.extend(after);
    let at = offered.listen[1].clone();
    let seen = all.clone();
    with_volume(&at, async move |paths| verify(&paths, seen).await);
    let first = offered.start(0);
    assert!(first.ready_line().starts_with("standby"));
    offered.sleds[1].kill();
    standby.kill_hard();
    // One sled of three does not say whether another node has the pool with the others.
    first.logs("whether the pool has an owner is not known", PATIENCE);
    offered.sleds[1].start();
    first.prints("ready", PATIENCE);
    let at = offered.listen[0].clone();
    with_volume(&at, async move |paths| verify(&paths, all).await);
    assert!(first.stop().success());
}

#[test]
fn with_one_of_two_sleds_lost_the_other_one_decides_and_the_lost_one_alone_does_not() {
    let mut offered = Offered::<2>::new(2, 140);
    let [first, standby] = [0, 1].map(|at| offered.start(at));
    standby.logs("the pool's folder is prepared", PATIENCE);
    let at = offered.listen[0].clone();
    let mut all = with_volume(&at, async |paths| {
        write_rounds(&paths, BLOCKS, 20, 0, |_| ()).await
    });
    offered.sleds[1].kill();
    // The owner goes on, and the other sled says that the lost one has nothing newer.
    let after = with_volume(&at, async |paths| {
        write_rounds(&paths, BLOCKS, 20, 20, |_| ()).await
    });
    assert!(all.is_whole() && after.is_whole());
    all.extend(after);
    first.kill_hard();
    standby.prints("ready", PATIENCE);
    let owner = standby;
    let at = offered.listen[1].clone();
    let seen = all.clone();
    with_volume(&at, async move |paths| verify(&paths, seen).await);
    let after = with_volume(&at, async |paths| {
        write_rounds(&paths, BLOCKS, 20, 40, |_| ()).await
    });
    assert!(after.is_whole());
    all.extend(after);
    // A node that starts now waits for the sled that is there, and for nothing else, and the pool can go there.
    let next = offered.start(0);
    assert!(next.ready_line().starts_with("standby"));
    wait_for("a standby that the owner knows", PATIENCE, || {
        let moved = onefold(&["pool", "move", "--pool", text(&offered.pools[1])]);
        moved.status.success().then_some(())
    });
    next.prints("ready", PATIENCE);
    let standby = owner;
    standby.prints("standby", PATIENCE);
    // What the lost sled has is older, so nobody takes the pool with that one alone.
    offered.sleds[0].stands_still(true);
    next.kill_hard();
    offered.sleds[1].start();
    wait_for("the node on the sled", PATIENCE, || {
        let nodes = onefold(&["pool", "nodes", &offered.sleds[1].drive, "--json"]);
        let nodes: serde_json::Value = serde_json::from_slice(&nodes.stdout).ok()?;
        nodes.as_array().filter(|nodes| !nodes.is_empty()).map(drop)
    });
    let said = |what| standby.log().matches(what).count();
    let (takes, knows_not) = (
        "this node takes it over",
        "whether the pool has an owner is not known",
    );
    let (taken, asked) = (said(takes), said(knows_not));
    wait_for("it to ask the drives", PATIENCE, || {
        (said(knows_not) > asked + 2).then_some(())
    });
    assert_eq!(said(takes), taken);
    offered.sleds[0].stands_still(false);
    standby.prints("ready", PATIENCE);
    with_volume(&at, async move |paths| verify(&paths, all).await);
    assert!(standby.stop().success());
    assert_consistent(&offered.pools[1]);
}

#[test]
fn with_sleds_lost_one_after_the_other_the_last_one_is_enough_for_the_next_node() {
    let mut offered = Offered::<2>::new(3, 150);
    let [first, standby] = [0, 1].map(|at| offered.start(at));
    standby.logs("the pool's folder is prepared", PATIENCE);
    let at = offered.listen[0].clone();
    let mut all = with_volume(&at, async |paths| {
        write_rounds(&paths, BLOCKS, 20, 0, |_| ()).await
    });
    for (lost, from) in [(2, 20), (0, 40)] {
        offered.sleds[lost].kill();
        // When these are acknowledged the others know that it is lost.
        let after = with_volume(&at, async move |paths| {
            write_rounds(&paths, BLOCKS, 20, from, |_| ()).await
        });
        assert!(after.is_whole());
        all.extend(after);
    }
    first.kill_hard();
    standby.prints("ready", PATIENCE);
    let at = offered.listen[1].clone();
    with_volume(&at, async move |paths| verify(&paths, all).await);
    // A check looks at all drives.
    offered.sleds[0].start();
    offered.sleds[2].start();
    assert!(standby.stop().success());
    assert_consistent(&offered.pools[1]);
}

#[test]
fn a_node_that_loses_two_of_three_sleds_at_once_ends_and_its_host_goes_on_when_they_are_back() {
    let mut offered = Offered::<2>::new(3, 70);
    let [first, standby] = [0, 1].map(|at| offered.start(at));
    standby.logs("the pool's folder is prepared", PATIENCE);
    let writer = Writer::start(&offered.listen);
    offered.sleds[0].kill();
    offered.sleds[1].kill();
    let ends = "this process ends now, so that hosts go to another node";
    first.logs(ends, PATIENCE);
    // Nothing that a host was told is lost, and nothing new was told: the two drives may be another node's by now.
    offered.sleds[0].start();
    offered.sleds[1].start();
    writer.goes_on();
    writer.end();
    for node in [first, standby] {
        assert!(node.stop().success());
    }
}

#[test]
fn a_drive_that_was_away_during_a_takeover_comes_back_to_the_next_owner() {
    let mut offered = Offered::<2>::new(3, 80);
    let [first, standby] = [0, 1].map(|at| offered.start(at));
    let at = offered.listen[0].clone();
    let before = with_volume(&at, async |paths| {
        write_rounds(&paths, BLOCKS, 20, 0, |_| ()).await
    });
    offered.sleds[2].kill();
    let after = with_volume(&at, async |paths| {
        write_rounds(&paths, BLOCKS, 20, 20, |_| ()).await
    });
    first.kill_hard();
    standby.prints("ready", PATIENCE);
    // It still has the reservation of the node that died.
    offered.sleds[2].start();
    let pool = text(&offered.pools[1]);
    let online = ["drive", "online", &offered.sleds[2].drive, "--pool", pool];
    wait_for("the drive", PATIENCE, || {
        onefold(&online).status.success().then_some(())
    });
    wait_for("both copies of everything", PATIENCE, || {
        let status = standby.status();
        let drives = status["drives"].as_array().expect("a list").clone();
        let is_online = |drive: &serde_json::Value| drive["state"] == "online";
        drives.iter().all(is_online).then_some(())
    });
    let mut all = before;
    all.extend(after);
    let at = offered.listen[1].clone();
    with_volume(&at, async move |paths| verify(&paths, all).await);
    assert!(standby.stop().success());
    assert_consistent(&offered.pools[1]);
}

#[test]
fn a_pool_that_somebody_serves_without_sharing_it_is_taken_from_nobody() {
    let offered = Offered::<2>::new(1, 90);
    let first = offered.start(0);
    assert!(first.stop().success());
    let listen = ["--listen", &offered.listen[0], "--reactors", "1"];
    let alone = Daemon::start(&offered.pools[0], None, &listen);
    // It keeps no entry: what is known of the pool's nodes is that the last one left.
    let arguments = offered.arguments(1);
    let machine = std::thread::spawn({
        let pool = offered.pools[1].clone();
        move || {
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            Daemon::start_on("node1", None, &pool, &arguments)
        }
    });
    wait_for("the standby's answer", PATIENCE, || {
        let log = std::fs::read_to_string(offered.pools[1].with_extension("log"));
        let log = log.unwrap_or_default();
        log.contains("does not share it with other nodes")
            .then_some(())
    });
    let at = offered.listen[0].clone();
    let written = with_volume(&at, async |paths| {
        write_rounds(&paths, BLOCKS, 20, 0, |_| ()).await
    });
    assert!(written.is_whole());
    // When it ends the pool is taken by hand, or by its own machine.
    assert!(alone.stop().success());
    let shared = offered.start(0);
    if shared.ready_line().starts_with("standby") {
        // The other one was just trying.
        shared.prints("ready", PATIENCE);
    }
    with_volume(&at, async move |paths| verify(&paths, written).await);
    let standby = machine.join().expect("it starts");
    for node in standby.into_iter().chain([shared]) {
        assert!(node.stop().success());
    }
}

#[test]
fn of_nodes_that_start_at_one_moment_one_makes_the_pool_and_the_others_are_standbys() {
    let offered = Offered::<3>::new(3, 100);
    let nodes = std::thread::scope(|scope| {
        let starting = [0, 1, 2].map(|at| {
            let offered = &offered;
            scope.spawn(move || offered.start(at))
        });
        starting.map(|starting| starting.join().expect("it starts"))
    });
    let is_owner = |node: &&Daemon| node.ready_line().starts_with("ready");
    assert_eq!(nodes.iter().filter(is_owner).count(), 1);
    wait_for("all nodes", PATIENCE, || {
        let seen = offered.nodes();
        let owners = seen.iter().filter(|(_, serves)| *serves).count();
        (seen.len() == 3 && owners == 1).then_some(())
    });
    let (owners, standbys): (Vec<_>, Vec<_>) = nodes.into_iter().partition(|node| is_owner(&node));
    for node in standbys.into_iter().chain(owners) {
        assert!(node.stop().success());
    }
}

#[test]
fn sleds_that_start_again_forget_the_nodes_and_hear_of_them_again() {
    let mut offered = Offered::<2>::new(1, 50);
    let [first, standby] = [0, 1].map(|at| offered.start(at));
    standby.logs("the pool's folder is prepared", PATIENCE);
    let writer = Writer::start(&offered.listen);
    offered.sleds[0].kill();
    offered.sleds[0].start();
    writer.goes_on();
    wait_for("the nodes on the sled", PATIENCE, || {
        (offered.nodes().len() == 2).then_some(())
    });
    // One of them has the pool: it may have gone to the other one meanwhile.
    wait_for("an owner", PATIENCE, || {
        let owners = offered.nodes().into_iter().filter(|(_, serves)| *serves);
        (owners.count() == 1).then_some(())
    });
    writer.end();
    for node in [standby, first] {
        assert!(node.stop().success());
    }
}

#[test]
fn who_cannot_join_is_told_why() {
    let folder = tempfile::tempdir().expect("a folder");
    let pool = folder.path().join("pool");
    let mixed = Offered::<1>::new(1, 60);
    let local = format!("{}=2G", text(&folder.path().join("drive")));
    let join = ["--join", "--listen", &mixed.listen[0], "--drive"];
    let both = [&join[..], &[&mixed.sleds[0].drive, "--drive", &local]].concat();
    let refused = Daemon::try_start(&pool, None, &both);
    let refused = refused.expect_err("no other node reaches a file");
    assert!(refused.contains("all on sleds"), "{refused}");
    // Nobody made the pool, and nobody says that this node is to make it.
    let drive = [&join[..], &[&mixed.sleds[0].drive]].concat();
    let refused = Daemon::try_start(&pool, None, &drive);
    let refused = refused.expect_err("there is no such pool");
    assert!(refused.contains("no node has made the pool"), "{refused}");
}

#[test]
fn a_drive_of_a_pool_that_another_machine_serves_is_not_overwritten_by_force() {
    let offered = Offered::<1>::new(1, 190);
    let owner = offered.start(0);
    let drive = offered.sleds[0].drive.clone();
    let folder = tempfile::tempdir().expect("a folder");
    let pool = folder.path().join("pool");
    let listen = format!("tcp://{}:4420", tests::own_address(195));
    let create = [
        "serve",
        "--pool",
        text(&pool),
        "--create",
        "0",
        "--listen",
        &listen,
    ];
    for forced in [&[][..], &["--force", &drive]] {
        let refused = onefold(&[&create[..], &["--drive", &drive], forced].concat());
        let said = text_of(&refused);
        assert_eq!(refused.status.code(), Some(69), "{said}");
        assert!(said.contains("serves a pool with it now"), "{said}");
        assert!(
            said.contains("--join") && !said.contains("--force"),
            "{said}"
        );
    }
    assert_eq!(offered.nodes().len(), 1);
    assert!(owner.stop().success());
    // A folder of before takes nothing from the node that has the pool now, also if both are on one machine.
    let copy = folder.path().join("copy");
    let copied = std::process::Command::new("cp")
        .args(["-r", text(&offered.pools[0]), text(&copy)])
        .status();
    assert!(copied.expect("cp").success());
    let owner = offered.start(0);
    let reserved = || std::fs::read_dir(&offered.sleds[0].reservations).expect("a folder");
    let held = |file: std::io::Result<std::fs::DirEntry>| {
        std::fs::read(file.expect("an entry").path()).expect("a reservation")
    };
    let before: Vec<_> = reserved().map(held).collect();
    let refused = onefold(&["serve", "--pool", text(&copy), "--listen", &listen]);
    let said = text_of(&refused);
    assert_eq!(refused.status.code(), Some(69), "{said}");
    assert!(said.contains("serves a pool with it now"), "{said}");
    assert_eq!(reserved().map(held).collect::<Vec<_>>(), before);
    assert!(owner.stop().success());
    assert_consistent(&offered.pools[0]);
}

#[test]
fn a_standby_goes_on_with_the_drives_that_the_pool_has_by_then() {
    let mut offered = Offered::<2>::new(3, 200);
    let [first, standby] = [0, 1].map(|at| offered.start(at));
    standby.logs("the pool's folder is prepared", PATIENCE);
    let at = offered.listen[0].clone();
    let all = with_volume(&at, async |paths| {
        write_rounds(&paths, BLOCKS, 20, 0, |_| ()).await
    });
    let folder = tempfile::tempdir().expect("a folder");
    let listen = format!("tcp://{}:4420", tests::own_address(206));
    let fourth = tests::sled::Sled::start_new(folder.path(), 206, &listen, None);
    let pool = text(&offered.pools[0]);
    let old = offered.sleds[2].drive.clone();
    let replace = ["drive", "replace", &old, &fourth.drive, "--pool", pool];
    let replaced = onefold(&replace);
    assert!(replaced.status.success(), "{}", text_of(&replaced));
    wait_for("the drive's copies", PATIENCE, || {
        let status = first.status();
        let drives = status["drives"].as_array().expect("a list").clone();
        let is_online = |drive: &serde_json::Value| drive["state"] == "online";
        drives.iter().all(is_online).then_some(())
    });
    first.kill_hard();
    standby.prints("ready", PATIENCE);
    assert!(standby.log().contains("is no drive of the pool any more"));
    let pool = text(&offered.pools[1]);
    let drives = onefold(&["drive", "list", "--pool", pool]);
    let drives = text_of(&drives);
    assert!(
        drives.contains(&fourth.drive) && !drives.contains(&old),
        "{drives}"
    );
    assert!(!drives.contains("offline"), "{drives}");
    let at = offered.listen[1].clone();
    with_volume(&at, async move |paths| verify(&paths, all).await);
    offered.sleds[2].kill();
    assert!(standby.stop().success());
    assert_consistent(&offered.pools[1]);
}
