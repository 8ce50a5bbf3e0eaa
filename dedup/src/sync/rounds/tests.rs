//! Hosts that always have as many writes under way, and rounds of virtual time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use proptest::prelude::*;

use super::*;

/// What came of a while.
#[derive(Default)]
struct Outcome {
    acknowledged: u64,
    rounds: u64,
    in_vain: u64,
}

/// Times are in microseconds.
#[derive(Clone, Copy, Debug)]
struct Hosts {
    under_way: u64,
    /// What a round takes, and what more for each write.
    round: u64,
    each: u64,
    /// Writes that were acknowledged come back one after the other, so long apart.
    back: u64,
}

/// Writes on their way, and time.
struct World {
    start: Instant,
    now: u64,
    coming: BinaryHeap<Reverse<u64>>,
    plan: Plan,
}

impl World {
    fn at(&self, micros: u64) -> Instant {
        self.start + Duration::from_micros(micros)
    }

    /// The next write arrives, if it does until then.
    fn next(&mut self, until: u64) -> Option<u64> {
        let Reverse(next) = *self.coming.peek()?;
        if next > until {
            return None;
        }
        self.coming.pop();
        self.plan.arrive();
        Some(next)
    }

    fn pass(&mut self, until: u64) {
        while self.next(until).is_some() {}
        self.now = self.now.max(until);
    }

    fn gather(&mut self, wanted: u64, until: u64) -> bool {
        while self.plan.arrived < wanted {
            match self.next(until) {
                Some(at) => self.now = self.now.max(at),
                None => {
                    self.now = until;
                    break;
                }
            }
        }
        let are_there = self.plan.arrived >= wanted;
        self.plan.gathered(are_there);
        are_there
    }
}

impl Hosts {
    /// So many seconds of them.
    fn run(self, seconds: u64, may_gather: bool) -> Outcome {
        let mut world = World {
            start: Instant::now(),
            now: 0,
            coming: (1..=self.under_way)
                .map(|it| Reverse(it * self.back))
                .collect(),
            plan: Plan::default(),
        };
        let mut outcome = Outcome::default();
        let mut busy_until = 0;
        while world.now < seconds * 1_000_000 {
            world.pass(world.now);
            // A round has one write at least.
            if world.plan.arrived == world.plan.begun {
                world.now = world.next(u64::MAX).expect("some are under way");
                continue;
            }
            let wanted = world.plan.wanted(world.at(world.now));
            if let Some((wanted, until)) = wanted.filter(|_| may_gather) {
                let until = until.duration_since(world.start).as_micros() as u64;
                outcome.in_vain += u64::from(!world.gather(wanted, until));
            }
            let taken = world.plan.arrived - world.plan.begun;
            world.plan.begin(world.at(world.now));
            world.pass(world.now + self.round + self.each * taken);
            world.plan.end(world.at(world.now));
            outcome.acknowledged += taken;
            outcome.rounds += 1;
            busy_until = busy_until.max(world.now);
            for _ in 0..taken {
                busy_until += self.back;
                world.coming.push(Reverse(busy_until));
            }
        }
        outcome
    }
}

#[test]
fn few_writes_under_way_share_one_round_and_not_two() {
    let hosts = Hosts {
        under_way: 8,
        round: 1500,
        each: 5,
        back: 30,
    };
    let (alone, shared) = (hosts.run(10, false), hosts.run(10, true));
    assert!(
        shared.acknowledged * 10 > alone.acknowledged * 15,
        "{} of {}",
        shared.acknowledged,
        alone.acknowledged
    );
    assert!(shared.acknowledged > shared.rounds * 7);
}

#[test]
fn where_the_processors_are_short_a_round_waits_for_nobody() {
    let hosts = Hosts {
        under_way: 128,
        round: 500,
        each: 55,
        back: 40,
    };
    let (alone, shared) = (hosts.run(20, false), hosts.run(20, true));
    assert!(
        shared.acknowledged * 100 > alone.acknowledged * 95,
        "{} of {}",
        shared.acknowledged,
        alone.acknowledged
    );
}

#[test]
fn one_write_at_a_time_waits_for_nobody() {
    let hosts = Hosts {
        under_way: 1,
        round: 1000,
        each: 0,
        back: 50,
    };
    let (alone, shared) = (hosts.run(2, false), hosts.run(2, true));
    assert_eq!(shared.acknowledged, alone.acknowledged);
    assert_eq!(shared.in_vain, 0);
}

#[test]
fn rounds_that_wait_in_vain_become_rare() {
    let mut plan = Plan::default();
    let mut at_once = 0;
    for _ in 0..10 {
        plan.gathered(false);
        assert!(plan.at_once > at_once || plan.at_once == 63);
        at_once = plan.at_once;
    }
    plan.gathered(true);
    assert_eq!(plan.at_once, 0);
}

#[test]
fn a_write_that_comes_after_a_while_waits_for_nobody() {
    let start = Instant::now();
    let mut plan = Plan::default();
    for _ in 0..8 {
        plan.arrive();
    }
    plan.begin(start);
    let end = start + Duration::from_millis(2);
    plan.end(end);
    plan.arrive();
    let (wanted, until) = plan.wanted(end).expect("the others are about to come");
    assert_eq!((wanted, until), (16, end + Duration::from_millis(2)));
    assert_eq!(plan.wanted(until), None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn whatever_is_short_no_tenth_is_lost(
        under_way in 1..200_u64, round in 10..5000_u64, each in 0..100_u64, back in 5..200_u64,
    ) {
        let hosts = Hosts { under_way, round, each, back };
        let (alone, shared) = (hosts.run(20, false), hosts.run(20, true));
        prop_assert!(
            shared.acknowledged * 100 >= alone.acknowledged * 90,
            "{} of {}", shared.acknowledged, alone.acknowledged
        );
    }
}
