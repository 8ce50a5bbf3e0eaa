//! How long a reactor says that it worked.

use std::time::{Duration, Instant};

use reactor::{Config, PoolConfig};

fn config(spin: Duration) -> Config {
    Config {
        name: "busy".to_owned(),
        buffer_pool: PoolConfig { bytes: 1 << 20 },
        spin,
        ..Config::default()
    }
}

/// Works for a while, then waits for a while; how much of both the reactor took for work, and how long the work was.
fn worked_and_slept(spin: Duration) -> (Duration, Duration) {
    let work = async {
        let before = reactor::busy_time();
        let began = Instant::now();
        while began.elapsed() < Duration::from_millis(20) {
            std::hint::spin_loop();
        }
        let worked = began.elapsed();
        reactor::sleep(Duration::from_millis(500)).await;
        (reactor::busy_time() - before, worked)
    };
    reactor::run(config(spin), work).expect("a reactor")
}

#[test]
fn time_in_which_a_reactor_sleeps_or_polls_is_not_taken_for_work() {
    for spin in [Duration::ZERO, Duration::from_secs(1)] {
        let (busy, worked) = worked_and_slept(spin);
        assert!(busy >= worked, "{busy:?} of {worked:?}");
        // A machine that takes the core away does so while it works or while it waits.
        assert!(
            busy < worked + Duration::from_millis(400),
            "{busy:?} of {worked:?}"
        );
    }
}

#[test]
fn who_has_no_reactor_has_not_worked() {
    assert_eq!(reactor::busy_time(), Duration::ZERO);
}
