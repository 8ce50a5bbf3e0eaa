//! How much may go on beyond guarantees, so that each guarantee is kept. Pure: times and counts come in.
//!
//! mClock (Gulati et al., OSDI 2010) orders the commands before one device by tags of reservations, limits and weights. Here
//! no queue is in front of everything and nobody knows what the node can do: the commands of all reactors go straight into
//! the engine. So its order is kept, and its queue is replaced by feedback. What is within a guarantee goes on at once. All
//! else is the *surplus*. It is unbounded while each guarantee is kept, and gets one common bound, of cost a second, when one
//! is not. The bound falls by what is missing and rises again at a constant rate (additive increase, multiplicative
//! decrease), so it stays near what the guarantees leave, and finds by itself what the node can do now.
//!
//! A bound of a rate, and not of commands in flight: with so many in flight of others, a volume with few commands
//! outstanding gets few through whatever its guarantee is, and a host that sends its data slowly would hold room that others
//! wait for. Below what the node can do, a rate leaves the engine without a queue, and the rest is for who is guaranteed it.
//!
//! A guarantee is *missed* when all of this is so:
//! - more came into its buckets than its commands used (so over time it gets its rate exactly, however few commands it is),
//! - commands of it are outstanding, and
//! - it gets less than most (85 %) of what it asks for: of what as many commands as it has outstanding would get if they
//!   took as long as they take when others are held back most, and of what it would get if they took no time.
//!
//! What waits in sockets and rings because a reactor has its hands full is not seen as outstanding. So while the reactor of
//! its commands does nothing but work, a guarantee that is not used counts as missed too, until others are held back so far
//! that the reactor has time again.
//!
//! So a volume that asks for less than its guarantee, or has too few commands outstanding ever to reach it, holds others
//! back only as far as that helps. What is known of that is forgotten from time to time, and learned again.

use std::time::Duration;

/// Beside its bytes a command costs as much as so many of them.
const COMMAND_COST: u64 = 16 << 10;

/// What a command costs that moves so many bytes.
pub(super) const fn cost(bytes: u64) -> u64 {
    bytes.saturating_add(COMMAND_COST)
}

/// Rates are means over about so long.
const MEAN_OVER: Duration = Duration::from_millis(100);

/// What the node can do is the mean over about so long, of the time when it did most.
const CAPACITY_OVER: Duration = Duration::from_millis(500);

/// In so long, what is believed that the node can do falls to about a third, if it does nothing.
const CAPACITY_FADES: Duration = Duration::from_secs(20);

/// What is always left to the surplus, of what the node can do.
const LEAST: f64 = 0.05;

/// A bound falls by at least so much of itself, and at most.
const FALL_LEAST: f64 = 0.05;
const FALL_MOST: f64 = 0.5;

/// So much of what the node can do a bound rises in a second, and so much more in each second since it fell last; and so
/// much while no command within a guarantee is outstanding.
const RISE: f64 = 0.1;
const RISE_MORE: f64 = 0.5;
const RISE_ALONE: f64 = 3.0;

/// A bound that is so many times what the node can do bounds nothing.
const ENOUGH: f64 = 2.0;

/// A bound does not fall again before the commands are done that were under way, which takes so long at least and at most.
const FALLS_AFTER_LEAST: Duration = Duration::from_millis(100);
const FALLS_AFTER_MOST: Duration = Duration::from_secs(1);

/// Others are held back most for so long before it is learned how long commands take then, and for up to so many seconds
/// more while commands take long.
const SETTLES: Duration = Duration::from_millis(200);
const SETTLES_MORE: f64 = 1.5;

/// For so long it is remembered.
const REMEMBERED: Duration = Duration::from_secs(15);

/// Commands that take more seconds are as good as those that do not end.
const TAKES_MOST: f64 = 5.0;

/// Who gets this much of what it asks for is not held up by others.
const SERVED: f64 = 0.85;

/// What happened to the commands of a guarantee in a step.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    /// Commands that ended, and their bytes.
    pub(super) ended: u64,
    pub(super) ended_bytes: u64,
    /// How long commands were outstanding, all together.
    pub(super) outstanding_ns: u128,
    /// How long any was.
    pub(super) busy_ns: u64,
    /// More came into its buckets than its commands used.
    pub(super) is_unused: bool,
    /// Its commands came to reactors that had their hands full.
    pub(super) is_crowded: bool,
}

/// What is guaranteed, in a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Rates {
    pub(super) iops: Option<u64>,
    pub(super) bandwidth_bytes: Option<u64>,
}

/// What a guarantee gets and asks for: means.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Demand {
    pub(super) iops: f64,
    pub(super) bandwidth_bytes: f64,
    outstanding: f64,
    busy: f64,
    /// What was learned when others were held back most.
    alone: Option<Alone>,
    is_unused: bool,
    is_crowded: bool,
}

/// What a guarantee gets when others are held back most.
#[derive(Clone, Copy, Debug)]
struct Alone {
    /// Seconds that a command takes.
    takes: f64,
    /// Commands a second.
    iops: f64,
    since: Duration,
}

impl Demand {
    fn add(&mut self, passed: Duration, seen: &Seen) {
        let seconds = passed.as_secs_f64();
        let mix = |mean: &mut f64, sample: f64| *mean += (sample - *mean) * part(passed, MEAN_OVER);
        mix(&mut self.iops, seen.ended as f64 / seconds);
        mix(&mut self.bandwidth_bytes, seen.ended_bytes as f64 / seconds);
        mix(
            &mut self.outstanding,
            seen.outstanding_ns as f64 / 1e9 / seconds,
        );
        mix(&mut self.busy, seen.busy_ns as f64 / 1e9 / seconds);
        self.is_unused = seen.is_unused;
        self.is_crowded = seen.is_crowded;
    }

    /// Seconds that a command takes (Little's law); for ever if hardly any ends.
    fn takes(&self) -> f64 {
        let takes = self.outstanding / self.iops;
        match takes <= TAKES_MOST {
            true => takes,
            false => f64::INFINITY,
        }
    }

    /// Notes how long commands take; others are held back most for so long.
    fn learn(&mut self, now: Duration, least_for: Option<Duration>) {
        let takes = self.takes();
        // What was under way before is done by then, also what this one's commands had to wait for.
        let settled = SETTLES + Duration::from_secs_f64((2.0 * takes).min(SETTLES_MORE));
        let is_least = least_for.is_some_and(|time| time >= settled);
        match &mut self.alone {
            // Only where even that is not enough it matters what it can use.
            _ if is_least => {
                let alone = Alone {
                    takes,
                    iops: self.iops,
                    since: now,
                };
                self.alone = self.is_unused.then_some(alone);
            }
            // They end again.
            Some(alone) if alone.takes.is_infinite() && takes.is_finite() => self.alone = None,
            Some(alone) if now.saturating_sub(alone.since) > REMEMBERED => self.alone = None,
            Some(alone) => {
                alone.takes = alone.takes.min(takes);
                alone.iops = alone.iops.max(self.iops);
            }
            None => {}
        }
    }

    /// Whether commands came, or were outstanding.
    fn is_there(&self) -> bool {
        self.iops > 0.5 || self.outstanding > 0.001
    }

    /// Commands a second that it asks for, as far as that is known: what as many commands as it has outstanding would get
    /// if they took as long as when others are held back most, and not more than if they took no time.
    fn asks(&self) -> f64 {
        let in_no_time = self.iops / (1.0 - self.busy).max(1e-6);
        match self.alone {
            // What waits unseen would come.
            Some(alone) if self.is_crowded => alone.iops,
            None if self.is_crowded => f64::INFINITY,
            Some(alone) if self.is_there() => in_no_time.min(self.outstanding / alone.takes),
            _ => in_no_time,
        }
    }

    /// Whether others take from it what it is guaranteed.
    fn is_missed(&self) -> bool {
        self.is_unused && self.is_there() && self.iops < SERVED * self.asks()
    }

    /// How much of the guarantee it gets.
    fn share(&self, of: &Rates) -> f64 {
        let share = |is: f64, of: Option<u64>| of.map_or(0.0, |of| is / of.max(1) as f64);
        share(self.iops, of.iops).max(share(self.bandwidth_bytes, of.bandwidth_bytes))
    }

    /// The cost a second that it is short of.
    fn missing(&self, of: &Rates) -> f64 {
        let is = self.bandwidth_bytes + self.iops * COMMAND_COST as f64;
        let times = (1.0 / self.share(of)).min(self.asks() / self.iops);
        match times.is_finite() {
            true => is * (times - 1.0).max(0.0),
            // Nothing ends: as much as can be.
            false => f64::INFINITY,
        }
    }

    /// Whether its guarantee is missed, for those who look.
    pub(super) fn is_short(&self, of: &Rates) -> bool {
        self.is_missed() && self.share(of) < SERVED
    }
}

/// How much of a mean over `over` the last step is.
fn part(passed: Duration, over: Duration) -> f64 {
    1.0 - (-passed.as_secs_f64() / over.as_secs_f64()).exp()
}

/// The same, of a mean that began so long ago.
fn part_since(passed: Duration, over: Duration, age: Duration) -> f64 {
    part(passed, over).max((passed.as_secs_f64() / age.as_secs_f64()).min(1.0))
}

/// What the surplus may cost a second, step by step.
#[derive(Debug, Default)]
pub(super) struct Control {
    /// When the first guarantee was made.
    since: Duration,
    /// When the last step was.
    at: Duration,
    /// `None`: as much as it likes.
    bound: Option<f64>,
    /// What ended, in cost a second.
    surplus: f64,
    all: f64,
    capacity: f64,
    /// When the bound fell last, and until when it does not fall again.
    fell: Duration,
    settles_until: Duration,
    /// Since when the surplus has the least.
    least_since: Option<Duration>,
}

impl Control {
    /// The first guarantee is made now.
    pub(super) fn new(now: Duration) -> Self {
        Self {
            since: now,
            at: now,
            ..Self::default()
        }
    }

    /// The cost a second that the surplus may have from `now` on. `guaranteed` and `surplus` are what ended since the last
    /// step.
    pub(super) fn step<'a>(
        &mut self,
        now: Duration,
        guaranteed: u64,
        surplus: u64,
        all: impl Iterator<Item = (&'a mut Demand, Rates, Seen)>,
    ) -> Option<u64> {
        let passed = now.saturating_sub(self.at);
        if passed.is_zero() {
            return self.bound();
        }
        self.at = now;
        let seconds = passed.as_secs_f64();
        let rate = |cost: u64| cost as f64 / seconds;
        let age = now.saturating_sub(self.since);
        self.surplus += (rate(surplus) - self.surplus) * part_since(passed, MEAN_OVER, age);
        let ended = rate(guaranteed.saturating_add(surplus));
        self.all += (ended - self.all) * part_since(passed, CAPACITY_OVER, age);
        let faded = self.capacity * (1.0 - part(passed, CAPACITY_FADES));
        self.capacity = faded.max(self.all);
        let least_for = self.least_since.map(|since| now.saturating_sub(since));
        let (mut missing, mut under_way, mut is_there) = (None, Duration::ZERO, false);
        for (demand, rates, seen) in all {
            demand.add(passed, &seen);
            demand.learn(now, least_for);
            is_there |= demand.is_there();
            if demand.is_missed() {
                *missing.get_or_insert(0.0) += demand.missing(&rates);
                let takes = Duration::try_from_secs_f64(demand.takes());
                under_way = under_way.max(takes.unwrap_or(FALLS_AFTER_MOST));
            }
        }
        let least = (self.capacity * LEAST).max(COMMAND_COST as f64);
        match missing {
            Some(missing) if now >= self.settles_until => {
                let is = self.bound.unwrap_or(f64::INFINITY).min(self.surplus);
                let fall = (missing / is.max(1.0)).clamp(FALL_LEAST, FALL_MOST);
                self.bound = Some(is * (1.0 - fall));
                self.fell = now;
                self.settles_until = now + under_way.clamp(FALLS_AFTER_LEAST, FALLS_AFTER_MOST);
            }
            Some(_) => {}
            None => {
                let since = now.saturating_sub(self.fell).as_secs_f64();
                let rise = match is_there {
                    true => RISE + RISE_MORE * since,
                    false => RISE_ALONE,
                };
                let enough = ENOUGH * self.capacity;
                let risen = self
                    .bound
                    .map(|bound| bound + rise * seconds * self.capacity);
                self.bound = risen.filter(|bound| *bound <= enough);
            }
        }
        self.bound = self.bound.map(|bound| bound.max(least));
        // The least falls a little as what the node can do fades.
        let has_least = self.bound.is_some_and(|bound| bound <= 1.2 * least);
        self.least_since = has_least.then(|| self.least_since.unwrap_or(now));
        self.bound()
    }

    /// The cost a second that the surplus may have.
    pub(super) fn bound(&self) -> Option<u64> {
        // It is finite and not negative; a larger one is the largest.
        self.bound.map(|bound| (bound as u64).max(1))
    }
}
