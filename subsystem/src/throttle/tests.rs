//! Buckets on virtual time.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn limits(iops: Option<u64>, bandwidth_bytes: Option<u64>, burst_ms: u64) -> IoLimits {
    IoLimits {
        iops,
        bandwidth_bytes,
        burst_ms,
    }
}

/// A throttle, and when it began.
fn throttle(of: &IoLimits) -> (Throttles, Instant) {
    let began = Instant::now();
    let throttle = Throttle::new(began);
    throttle.set(began, of);
    (Throttles(Some([Arc::new(throttle)].into())), began)
}

fn only(throttles: &Throttles) -> &Throttle {
    &throttles.0.as_ref().expect("a limit")[0]
}

/// When a turn comes.
fn comes(turn: &mut Turn<'_>, mut now: Instant) -> Instant {
    while let Some(wait) = turn.wait(now) {
        now += wait;
    }
    now
}

#[test]
fn a_burst_goes_at_once_and_the_rest_at_the_rate_in_the_order_of_their_coming() {
    let (throttles, began) = throttle(&limits(Some(100), None, 100));
    let mut turns: Vec<_> = (0..30).map(|_| throttles.queue_up(began, 4096)).collect();
    let ends: Vec<_> = turns
        .iter_mut()
        .map(|turn| comes(turn, began) - began)
        .collect();
    assert!(ends[..10].iter().all(Duration::is_zero), "{ends:?}");
    for (at, end) in (1..).zip(&ends[10..]) {
        assert_eq!(*end, Duration::from_millis(10 * at));
    }
    // After a pause there is one burst, not what could have come in meanwhile.
    let later = began + 60 * SECOND;
    let at_once = (0..30).filter(|_| throttles.queue_up(later, 1).wait(later).is_none());
    assert_eq!(at_once.count(), 10);
}

#[test]
fn a_command_that_is_larger_than_the_burst_waits_for_its_size_and_others_wait_for_it() {
    let (throttles, began) = throttle(&limits(None, Some(1 << 20), 0));
    let mut large = throttles.queue_up(began, 2 << 20);
    let mut small = throttles.queue_up(began, 1 << 19);
    assert_eq!(comes(&mut large, began) - began, 2 * SECOND);
    assert_eq!(comes(&mut small, began) - began, 5 * SECOND / 2);
}

#[test]
fn what_gives_up_leaves_its_time_to_those_behind_it() {
    let (throttles, began) = throttle(&limits(Some(1), None, 0));
    let first = throttles.queue_up(began, 0);
    let mut second = throttles.queue_up(began, 0);
    drop(first);
    assert_eq!(comes(&mut second, began) - began, SECOND);
}

#[test]
fn a_limit_that_changes_counts_for_those_that_wait_already() {
    let (throttles, began) = throttle(&limits(Some(1), None, 0));
    let mut turns: Vec<_> = (0..10).map(|_| throttles.queue_up(began, 0)).collect();
    assert!(turns[9].wait(began).is_some_and(|wait| wait <= LOOK_AGAIN));
    let later = began + SECOND;
    only(&throttles).set(later, &limits(Some(10), None, 0));
    assert_eq!(comes(&mut turns[9], later) - later, 9 * SECOND / 10);
    let mut last = throttles.queue_up(later, 0);
    only(&throttles).set(later, &IoLimits::default());
    assert_eq!(last.wait(later), None);
    assert!(!only(&throttles).is_limited());
    // A limit that comes back has forgotten who waited.
    drop(last);
    only(&throttles).set(later, &limits(Some(10), None, 100));
    assert_eq!(throttles.queue_up(later, 0).wait(later), None);
}

#[test]
fn reactors_together_get_the_rate_and_no_more() {
    let (throttles, began) = throttle(&limits(Some(1000), Some(4096 * 500), 0));
    let mut turns: Vec<Turn<'_>> = std::thread::scope(|scope| {
        let reactor = || {
            let of = (0..250).map(|_| throttles.queue_up(began, 4096));
            of.collect::<Vec<_>>()
        };
        let reactors: Vec<_> = (0..4).map(|_| scope.spawn(reactor)).collect();
        let turns = reactors.into_iter();
        turns.flat_map(|it| it.join().expect("a reactor")).collect()
    });
    turns.sort_unstable_by_key(|turn| turn.places[0].1.bytes);
    let ends = turns.iter_mut().map(|turn| comes(turn, began) - began);
    // The bytes bound it: 500 blocks a second.
    for (at, end) in (1..).zip(ends) {
        assert_eq!(end, Duration::from_millis(2 * at));
    }
}

#[test]
fn limits_that_let_nothing_through_are_refused() {
    for wrong in [
        limits(Some(0), None, 0),
        limits(None, Some(0), 0),
        limits(Some(1), None, BURST_MS_MAX + 1),
    ] {
        assert!(wrong.check("volume 'a'").is_err(), "{wrong:?}");
    }
    limits(Some(1), Some(1), BURST_MS_MAX)
        .check("a")
        .expect("possible");
}

proptest! {
    /// Over any time no more goes on than the rate, one burst and one command allow.
    #[test]
    fn no_more_goes_on_than_the_limit_says(
        rate in 1u64..10_000,
        burst_ms in 0u64..2000,
        asked in prop::collection::vec((0u64..50_000_000, 0u64..200), 1..100),
    ) {
        let (throttles, began) = throttle(&limits(None, Some(rate), burst_ms));
        let mut now = began;
        let mut gone: Vec<(Duration, u64)> = Vec::new();
        let mut line: VecDeque<(Turn<'_>, u64)> = VecDeque::new();
        let mut arrives = began;
        let end = (3_600_000_000_000, 0);
        for (pause_ns, bytes) in asked.into_iter().chain([end]) {
            arrives += Duration::from_nanos(pause_ns);
            // Who came before goes on as time passes.
            while let Some((turn, bytes)) = line.front_mut() {
                match turn.wait(now) {
                    None => {
                        gone.push((now - began, *bytes));
                        line.pop_front();
                    }
                    Some(wait) if now + wait <= arrives => now += wait,
                    Some(_) => break,
                }
            }
            now = arrives;
            line.push_back((throttles.queue_up(now, bytes), bytes));
        }
        for first in 0..gone.len() {
            let mut sum = 0;
            for (at, bytes) in &gone[first..] {
                sum += bytes;
                let passed = (*at - gone[first].0).as_nanos() as f64 / 1e9;
                let allowed = rate as f64 * (passed + burst_ms as f64 / 1000.0) + gone[first].1 as f64;
                prop_assert!(sum as f64 <= allowed + 1.0, "{sum} of {allowed} in {passed} s");
            }
        }
    }
}
