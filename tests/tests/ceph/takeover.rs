//! Another node goes on with a pool in the cluster, by `onefold pool import`.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tests::daemon::{Daemon, assert_consistent, onefold, text_of};
use tests::{own_address, wait_for};

use crate::cluster;
use tests::paths::{Written, verify, with_namespace, with_volume, write_rounds};

/// How long anything may take before the test gives up.
const PATIENCE: Duration = Duration::from_secs(120);

/// Between two looks.
const AGAIN: Duration = Duration::from_millis(20);

/// Blocks that the host writes to: each several times.
const BLOCKS: u64 = 97;

/// Rounds before the daemon stands still.
const ROUNDS: u64 = 60;

fn text(path: &Path) -> &str {
    path.to_str().expect("test folders are UTF-8")
}

fn serve(pool: &Path, listen: &str, more: &[&str]) -> Daemon {
    let usual = ["--listen", listen, "--reactors", "1"];
    Daemon::start(pool, None, &[&usual[..], more].concat())
}

/// A host writes, and the daemon is killed in the middle of a write after so many rounds.
fn write_until_killed(daemon: Daemon, listen: &str, count: u32) -> Written {
    let (told, rounds) = mpsc::channel();
    let at = listen.to_owned();
    let host = thread::spawn(move || {
        with_volume(&at, async move |paths| {
            let each = |number| {
                // The story goes on, whether it counts them still or not.
                let _ = told.send(number);
            };
            write_rounds(&paths, BLOCKS, u64::MAX, 0, each).await
        })
    });
    for _ in 0..count {
        rounds.recv_timeout(PATIENCE).expect("the host writes");
    }
    daemon.kill_hard();
    let written = host.join().expect("the host ended");
    assert!(written.acknowledged() > 0);
    written
}

#[test]
fn a_node_that_is_killed_and_starts_again_puts_in_place_what_it_had_deferred() {
    let Some((ceph, _beside)) = cluster() else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let listen = format!("tcp://{}:4420", own_address(48));
    let pool = folder.path().join("pool");
    let drive = format!("{}=2G", ceph.address("pool", "again", "onefold"));
    let mut daemon = serve(&pool, &listen, &["--create", "128M", "--drive", &drive]);
    // Now and then a node dies when all that it deferred is in place already.
    let mut recoveries = 0;
    for restart in 1..=5 {
        let written = write_until_killed(daemon, &listen, 20 + restart * 7 % 23);
        daemon = serve(&pool, &listen, &[]);
        let log = daemon.log();
        if log.contains("what the last owner deferred is in place") {
            recoveries += 1;
        }
        assert!(
            !log.contains("blocks that were written before the program ended"),
            "{log}"
        );
        with_volume(&listen, async move |paths| verify(&paths, written).await);
    }
    assert!(recoveries > 0, "nothing was deferred at five deaths");
    assert!(daemon.stop().success());
    assert_consistent(&pool);
}

#[test]
fn what_was_acknowledged_without_a_flush_is_there_on_the_next_node() {
    let Some((ceph, _beside)) = cluster() else {
        return;
    };
    // Many rounds are for who has an evening.
    let takeovers = std::env::var("ONEFOLD_TAKEOVERS").ok();
    let takeovers: u32 = takeovers.map_or(3, |count| count.parse().expect("a number"));
    let folder = tempfile::tempdir().expect("a folder");
    let listen = format!("tcp://{}:4420", own_address(51));
    let drive = ceph.address("pool", "killed", "onefold");
    let mut pool = folder.path().join("node0");
    let sized = format!("{drive}=2G");
    let mut daemon = serve(&pool, &listen, &["--create", "128M", "--drive", &sized]);
    let mut longest = Duration::ZERO;
    for takeover in 1..=takeovers {
        let written = write_until_killed(daemon, &listen, 20 + takeover * 7 % 23);
        // What the machine had in its folder is of no use to the next one.
        std::fs::remove_dir_all(&pool).expect("the folder is lost");
        pool = folder.path().join(format!("node{takeover}"));
        let began = Instant::now();
        let imported = onefold(&["pool", "import", &drive, "--pool", text(&pool)]);
        assert!(imported.status.success(), "{}", text_of(&imported));
        daemon = serve(&pool, &listen, &[]);
        longest = longest.max(began.elapsed());
        with_volume(&listen, async move |paths| verify(&paths, written).await);
    }
    eprintln!("{takeovers} takeovers, the longest took {longest:?}");
    assert!(daemon.stop().success());
    assert_consistent(&pool);
}

/// Has the thread that renews the lease of a process wait long for every answer, until what is returned is dropped. So its first
/// message does not end the process before that sends what it has for its hosts.
fn slow_down_renewals(process: Pid) -> Tracer {
    let threads = format!("/proc/{}/task", process.as_raw_nonzero());
    let threads = std::fs::read_dir(threads).expect("it lives");
    let is_renewer = |thread: &PathBuf| {
        let name = std::fs::read_to_string(thread.join("comm"));
        name.is_ok_and(|name| name.trim() == "rados lease")
    };
    let mut threads = threads.map(|thread| thread.expect("a thread").path());
    let renewer = threads.find(is_renewer).expect("one renews the lease");
    let number = renewer.file_name().expect("a number");
    let mut tracer = Command::new("strace")
        .args(["-e", "inject=futex:delay_exit=5000000", "-o", "/dev/null"])
        .arg("-p")
        .arg(number)
        .stderr(Stdio::piped())
        .spawn()
        .expect("strace, which test.sh installs");
    let said = tracer.stderr.take().expect("it is piped");
    let mut line = String::new();
    BufReader::new(said).read_line(&mut line).expect("text");
    assert!(line.contains("attached"), "{line}");
    Tracer(tracer)
}

/// Ends when it is dropped.
struct Tracer(Child);

impl Drop for Tracer {
    fn drop(&mut self) {
        // It may have ended with what it traced.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_node_that_stood_still_while_another_took_its_pool_ends_and_changes_nothing() {
    let Some((ceph, _beside)) = cluster() else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let (first, second) = (folder.path().join("first"), folder.path().join("second"));
    let [old, new] = [52, 53].map(|number| format!("tcp://{}:4420", own_address(number)));
    let drive = ceph.address("pool", "stopped", "onefold");
    let sized = format!("{drive}=2G");
    let volumes = [
        "--create", "0", "--volume", "vol0=64M", "--volume", "vol1=64M",
    ];
    let sleeper = serve(&first, &old, &[&volumes[..], &["--drive", &sized]].concat());
    // A host that has nothing to do before the daemon sleeps.
    let (attached, late) = (Arc::new(Barrier::new(2)), Arc::new(AtomicBool::new(false)));
    let (has_attached, is_late, at) = (attached.clone(), late.clone(), old.clone());
    let late_host = thread::spawn(move || {
        with_namespace(&at, 2, async move |paths| {
            has_attached.wait();
            while !is_late.load(Ordering::Acquire) {
                reactor::sleep(AGAIN).await;
            }
            write_rounds(&paths, BLOCKS, 1, 0, |_| ()).await
        })
    });
    attached.wait();
    let (told, rounds) = mpsc::channel();
    let host = thread::spawn(move || {
        with_volume(&old, async move |paths| {
            let each = |number| {
                // The story goes on, whether it counts them still or not.
                let _ = told.send(number);
            };
            write_rounds(&paths, BLOCKS, u64::MAX, 0, each).await
        })
    });
    for _ in 0..ROUNDS {
        rounds.recv_timeout(PATIENCE).expect("the host writes");
    }
    let process = Pid::from_raw(sleeper.pid().cast_signed()).expect("a child has a number");
    let import = ["pool", "import", &drive, "--pool", text(&second)];
    let refused = onefold(&import);
    let why = text_of(&refused);
    assert_eq!(refused.status.code(), Some(69), "{why}");
    assert!(why.contains("has it open on the machine"), "{why}");
    // Nor is another pool made there, whatever is forced.
    let other = folder.path().join("other");
    let make = [
        "serve",
        "--create",
        "0",
        "--listen",
        &new,
        "--pool",
        text(&other),
        "--drive",
        &drive,
    ];
    for (forced, code, words) in [
        (
            &[][..],
            65,
            &["serves now", "--join", "onefold pool import"][..],
        ),
        (&["--force", &drive], 69, &["stop that daemon first"]),
    ] {
        let refused = onefold(&[&make[..], forced].concat());
        let why = text_of(&refused);
        assert_eq!(refused.status.code(), Some(code), "{why}");
        assert!(words.iter().all(|word| why.contains(word)), "{why}");
    }
    // Who forces it with another pool's name takes nothing away.
    let mistaken = onefold(&[&import[..], &["--force", "another"]].concat());
    assert!(!mistaken.status.success(), "{}", text_of(&mistaken));
    rounds.iter().take(ROUNDS as usize).for_each(drop);
    kill_process(process, Signal::STOP).expect("it lives");
    wait_for("the end of its lease", PATIENCE, || {
        onefold(&import).status.success().then_some(())
    });
    // These wait in the first one's socket until it wakes.
    late.store(true, Ordering::Release);
    ceph.log_answers();
    let successor = serve(&second, &new, &[]);
    let _slow = slow_down_renewals(process);
    // The first one wakes with writes in its hands, and connected to its hosts.
    kill_process(process, Signal::CONT).expect("it sleeps");
    let written = host.join().expect("the host ended");
    assert!(written.acknowledged() > 0);
    let late = late_host.join().expect("the host ended");
    assert_eq!(late.acknowledged(), 0, "the pool was another one's");
    let (status, log) = sleeper.ended(PATIENCE);
    assert_eq!(status.code(), Some(69), "{log}");
    assert!(
        log.contains("another process has taken the drive over"),
        "{log}"
    );
    // It did not only end: it sent what it had, and the storage took none of it.
    let refused = wait_for("writes that are refused", PATIENCE, || {
        Some(ceph.refused_writes("stopped")).filter(|refused| *refused > 0)
    });
    eprintln!("the storage refused {refused} writes of the daemon that slept");
    with_volume(&new, async move |paths| verify(&paths, written).await);
    let nothing = with_namespace(&new, 2, async |paths| paths.is_empty(BLOCKS).await);
    assert!(nothing, "a late write changed the volume");
    // Its folder is of an earlier owner now, also when the other one has ended.
    let again = with_volume(&new, async |paths| {
        write_rounds(&paths, BLOCKS, 10, 0, |_| ()).await
    });
    assert!(again.acknowledged() > 0);
    assert!(successor.stop().success());
    assert_consistent(&second);
    let stale = Daemon::try_start(&first, None, &["--listen", &new]);
    let refusal = stale.expect_err("an older copy must not be served");
    assert!(refusal.contains("older copy"), "{refusal}");
    // The drives hold what was written since: `pool restore`, which gives that up, is named last.
    let import = refusal.find("onefold pool import");
    let restore = refusal.find("only if both are lost, `onefold pool restore`");
    assert!(import.is_some() && import < restore, "{refusal}");
    let successor = serve(&second, &new, &[]);
    with_volume(&new, async move |paths| verify(&paths, again).await);
    assert!(successor.stop().success());
}
