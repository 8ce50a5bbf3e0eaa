//! Buckets on virtual time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::bucket::User;
use super::turn::{LOOK_AGAIN, Turn};
use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn limits(iops: Option<u64>, bandwidth_bytes: Option<u64>, burst_ms: u64) -> IoLimits {
    IoLimits {
        iops,
        bandwidth_bytes,
        burst_ms,
        ..IoLimits::default()
    }
}

/// A throttle as a user has it, and when it began.
fn throttle(of: &IoLimits) -> (Throttles, Instant) {
    let began = Instant::now();
    let throttle = Throttle::new(began);
    set(&throttle, began, of);
    let by = HeldBy {
        limits: vec![Arc::new(throttle)],
        guarantees: Vec::new(),
        gate: None,
        user: 0,
    };
    let held_by = Some(Arc::new(by));
    (Throttles { held_by }, began)
}

fn set(throttle: &Throttle, now: Instant, of: &IoLimits) {
    let commands = Fill::new(of.iops, of.burst_ms);
    throttle.set(now, commands, Fill::new(of.bandwidth_bytes, of.burst_ms));
}

fn by(throttles: &Throttles) -> &HeldBy {
    throttles.held_by.as_ref().expect("a limit")
}

/// The same limits as another user has them.
fn of_user(throttles: &Throttles, user: User) -> Throttles {
    let by = HeldBy {
        limits: by(throttles).limits.clone(),
        guarantees: Vec::new(),
        gate: None,
        user,
    };
    Throttles {
        held_by: Some(Arc::new(by)),
    }
}

fn only(throttles: &Throttles) -> &Throttle {
    &by(throttles).limits[0]
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
    set(only(&throttles), later, &limits(Some(10), None, 0));
    assert_eq!(comes(&mut turns[9], later) - later, 9 * SECOND / 10);
    let mut last = throttles.queue_up(later, 0);
    set(only(&throttles), later, &IoLimits::default());
    assert_eq!(last.wait(later), None);
    assert!(!only(&throttles).is_limited());
    // A limit that comes back has forgotten who waited.
    drop(last);
    set(only(&throttles), later, &limits(Some(10), None, 100));
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
    let mut ends: Vec<_> = ends.collect();
    ends.sort_unstable();
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

/// A host that always has so many commands of these bytes on its way.
struct Host {
    throttles: Throttles,
    depth: usize,
    bytes: u64,
    /// How long it takes from an answer to the next command.
    pause: Duration,
}

/// What hosts got done in that time. Each command looks again when it was told to, as on a reactor.
fn done(hosts: &[Host], began: Instant, time: Duration) -> Vec<u64> {
    let mut done = vec![0; hosts.len()];
    let mut turns: Vec<(usize, Option<Turn<'_>>)> = Vec::new();
    let mut looks = BinaryHeap::new();
    for (host, it) in hosts.iter().enumerate() {
        for _ in 0..it.depth {
            looks.push(Reverse((began, turns.len())));
            turns.push((host, None));
        }
    }
    while let Some(Reverse((now, at))) = looks.pop() {
        if now > began + time {
            break;
        }
        let (host, turn) = &mut turns[at];
        let it = &hosts[*host];
        let queued = turn.get_or_insert_with(|| it.throttles.queue_up(now, it.bytes));
        let next = match queued.wait(now) {
            Some(wait) => {
                assert!(!wait.is_zero(), "it would look for ever");
                now + wait
            }
            None => {
                done[*host] += 1;
                *turn = None;
                now + it.pause
            }
        };
        looks.push(Reverse((next, at)));
    }
    done
}

fn host(throttles: &Throttles, user: User, depth: usize, bytes: u64) -> Host {
    Host {
        throttles: of_user(throttles, user),
        depth,
        bytes,
        pause: Duration::from_micros(50),
    }
}

#[test]
fn two_hosts_of_a_limited_volume_get_half_each_however_much_they_ask() {
    let (throttles, began) = throttle(&limits(Some(200), None, 0));
    let hosts = [host(&throttles, 1, 256, 4096), host(&throttles, 2, 2, 4096)];
    let done = done(&hosts, began, 10 * SECOND);
    assert!(
        done.iter().all(|done| (990..=1010).contains(done)),
        "{done:?}"
    );
}

#[test]
fn bytes_are_shared_by_size_and_not_by_commands() {
    let (throttles, began) = throttle(&limits(None, Some(64 << 20), 0));
    let hosts = [
        host(&throttles, 1, 32, 4096),
        host(&throttles, 2, 4, 1 << 20),
    ];
    let done = done(&hosts, began, 10 * SECOND);
    let bytes = [done[0] * 4096, done[1] << 20];
    let half = 320 << 20;
    assert!(
        bytes.iter().all(|bytes| bytes.abs_diff(half) <= 4 << 20),
        "{bytes:?}"
    );
}

#[test]
fn what_a_host_does_not_want_is_for_the_others() {
    let (throttles, began) = throttle(&limits(Some(1000), None, 10));
    let slow = Host {
        pause: Duration::from_millis(100),
        ..host(&throttles, 1, 1, 4096)
    };
    let hosts = [
        slow,
        host(&throttles, 2, 64, 4096),
        host(&throttles, 3, 8, 4096),
    ];
    let done = done(&hosts, began, 10 * SECOND);
    assert!((90..=100).contains(&done[0]), "it hardly waits: {done:?}");
    assert!(done[1].abs_diff(done[2]) <= 100, "{done:?}");
    let all: u64 = done.iter().sum();
    assert!((9900..=10_012).contains(&all), "{done:?}");
}

#[test]
fn who_comes_later_does_not_wait_behind_all_that_another_has_in_line() {
    let (throttles, began) = throttle(&limits(Some(100), None, 0));
    let _many: Vec<_> = (0..1000).map(|_| throttles.queue_up(began, 0)).collect();
    let later = began + SECOND;
    let other = of_user(&throttles, 1);
    let mut turn = other.queue_up(later, 0);
    let waited = comes(&mut turn, later) - later;
    assert!(waited <= Duration::from_millis(20), "{waited:?}");
    // It saved nothing up while it was away.
    let turns: Vec<_> = (0..3).map(|_| other.queue_up(later + SECOND, 0)).collect();
    let waits = turns
        .into_iter()
        .map(|mut turn| comes(&mut turn, later + SECOND));
    let waits: Vec<_> = waits.map(|at| at - later - SECOND).collect();
    assert!(waits[2] >= Duration::from_millis(40), "{waits:?}");
}

#[test]
fn more_users_than_are_counted_are_served_all_the_same() {
    let (throttles, began) = throttle(&limits(Some(1000), None, 0));
    let hosts: Vec<_> = (0..100).map(|user| host(&throttles, user, 3, 0)).collect();
    let done = done(&hosts, began, 10 * SECOND);
    assert!(
        done.iter().all(|done| (95..=105).contains(done)),
        "{done:?}"
    );
}

#[test]
fn a_host_has_one_share_for_all_of_its_queues_and_an_export_one_of_its_own() {
    let table = ThrottleTable::default();
    let volume = Uuid::from_u128(1);
    let some = Arc::new(limits(Some(1), None, 0));
    table.apply(&[(Limited::Volume(volume), some)].into_iter().collect());
    let names = ["nqn.2026-11.x:a", "nqn.2026-11.x:b"].map(|name| name.parse().expect("a name"));
    let user = |of| by(&table.of(volume, of)).user;
    assert_eq!(user(By::Host(&names[0])), user(By::Host(&names[0])));
    assert_ne!(user(By::Host(&names[0])), user(By::Host(&names[1])));
    assert_ne!(user(By::Export(1)), user(By::Export(2)));
    assert!(!table.of(volume, By::Export(1)).is_empty());
    assert!(table.of(Uuid::from_u128(2), By::Export(1)).is_empty());
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

    /// Hosts that always have commands in line get the same, up to a command of each.
    #[test]
    fn hosts_that_always_wait_get_the_same(
        hosts in prop::collection::vec((1_usize..40, 1_u64..64), 2..6),
        rate in 1_u64..2000,
    ) {
        let (throttles, began) = throttle(&limits(None, Some(rate << 12), 0));
        let hosts: Vec<Host> = (1..).zip(&hosts).map(|(user, (depth, blocks))| Host {
            pause: Duration::ZERO,
            // One alone would have none in line while it is answered.
            ..host(&throttles, user, depth + 1, blocks << 12)
        }).collect();
        let done = done(&hosts, began, 20 * SECOND);
        let bytes: Vec<u64> = done.iter().zip(&hosts).map(|(done, host)| done * host.bytes).collect();
        let largest = hosts.iter().map(|host| host.bytes).max().unwrap_or_default();
        let (most, least) = (bytes.iter().max(), bytes.iter().min());
        let apart = most.unwrap_or(&0) - least.unwrap_or(&0);
        // The last looks at the end of the time may be missing.
        prop_assert!(apart <= 3 * largest + (rate << 12) / 5, "{bytes:?}");
        let all: u64 = bytes.iter().sum();
        prop_assert!(all <= 20 * (rate << 12) + largest, "{bytes:?}");
        let outstanding: u64 = hosts.iter().map(|host| host.bytes).sum();
        prop_assert!(all + (rate << 12) / 5 + outstanding >= 20 * (rate << 12), "{bytes:?}");
    }
}
