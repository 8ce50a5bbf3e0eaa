//! fio with verification in a guest with a real kernel, while the daemon is killed again and again.
//!
//! `./test.sh` runs it shortly, `tests/lab/fio.sh MINUTES` for as long as wanted; `ONEFOLD_FIO_SECONDS` is how long.

#![allow(
    clippy::print_stdout,
    reason = "the figures of a long run are its result"
)]

use std::time::{Duration, Instant};

use tests::{
    daemon::{Daemon, assert_consistent},
    lab::{Guest, GuestSpec, Network, TARGET_V4, steadily},
};

/// Seconds of load, unless the environment says another number.
const SECONDS: u64 = 600;
/// Between two kills.
const KILL_INTERVAL: Duration = Duration::from_secs(20);
/// Booting an emulated guest on a busy machine.
const BOOT_LIMIT: Duration = Duration::from_secs(600);
/// The last round, which begins in time and ends later.
const ROUND_LIMIT: Duration = Duration::from_secs(900);

#[test]
#[ignore = "boots a guest: ./test.sh and tests/lab/fio.sh prepare the lab and run it"]
fn fio_reads_only_what_it_wrote_whenever_the_daemon_is_killed() {
    let seconds = match std::env::var("ONEFOLD_FIO_SECONDS") {
        Ok(text) => text.parse().expect("ONEFOLD_FIO_SECONDS is a number"),
        Err(_) => SECONDS,
    };
    steadily(|| {
        let network = Network::new(1, 1500);
        let folder = tempfile::tempdir().expect("a folder");
        let pool = folder.path().join("pool");
        let listen = format!("tcp://{TARGET_V4}:4420");
        let new = [
            "--listen",
            &listen,
            "--create",
            "1G",
            "--volume",
            "vol0=512M,lba=512",
        ];
        let mut daemon = Daemon::start(&pool, Some(network.name()), &new);
        let duration = seconds.to_string();
        let limit = BOOT_LIMIT + Duration::from_secs(seconds) + ROUND_LIMIT;
        let mut guest = Guest::start(
            &network,
            &GuestSpec {
                name: "patient",
                kernel: "6.12",
                number: 0,
                cpus: 1,
                story: "fio_kills",
                arguments: &[TARGET_V4, &duration],
                limit_seconds: limit.as_secs() as u32,
                files: &[],
            },
        );
        guest.await_signal("running", BOOT_LIMIT);
        let end = Instant::now() + Duration::from_secs(seconds);
        let mut kills = 0;
        while Instant::now() + KILL_INTERVAL < end {
            // The load between two kills is what the story is about.
            std::thread::sleep(KILL_INTERVAL);
            daemon.kill_hard();
            daemon = Daemon::start(&pool, Some(network.name()), &["--listen", &listen]);
            kills += 1;
        }
        println!("{}", guest.finish(ROUND_LIMIT));
        println!("the daemon was killed {kills} times in {seconds} s");
        assert!(kills > 0, "{seconds} s are too short for a kill");
        assert!(daemon.stop().success(), "the daemon stops cleanly");
        assert_consistent(&pool);
    });
}
