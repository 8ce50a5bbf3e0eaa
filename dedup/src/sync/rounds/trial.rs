//! Which of two ways acknowledges more: rounds that gather, or rounds that begin at once.
//!
//! One way is kept. Now and then the other one is tried for as many rounds, between two periods of the same length in the way that is kept, and
//! takes its place if it acknowledged more than both. The longer nothing changes, the more rarely it is tried. What hosts
//! send may change at any time, so a period counts only if there was always something to do.
//!
//! Guarantees: no more than one period of [`INTERVAL_MIN`] is in the way that is not kept.

use std::time::Instant;

/// Rounds of a period.
const ROUNDS: u32 = 32;

/// The first ones of them do not count: what is under way has to find its new order.
const ROUNDS_BEFORE: u32 = 4;

/// Periods in the way that is kept, between two that try the other one.
const INTERVAL_MIN: u32 = 8;
const INTERVAL_MAX: u32 = 128;

/// How much more the other way has to acknowledge, in percent.
const MORE: u128 = 3;

/// See the module.
pub(super) struct Trial {
    /// The way that is kept.
    gathers: bool,
    phase: Phase,
    interval: u32,
    period: Period,
}

/// What the period is for. Rates are flushes acknowledged in a second.
enum Phase {
    /// In the way that is kept, and so many follow.
    Kept(u32),
    /// In the other way; the one before had this rate.
    Tried(u128),
    /// In the way that is kept; the one before the trial had this rate, and the trial that one.
    Compared { before: u128, tried: u128 },
}

#[derive(Default)]
struct Period {
    rounds: u32,
    /// The end of its rounds that do not count.
    began: Option<Instant>,
    acknowledged: u64,
}

impl Default for Trial {
    fn default() -> Self {
        Self {
            gathers: true,
            phase: Phase::Kept(0),
            interval: INTERVAL_MIN,
            period: Period::default(),
        }
    }
}

impl Trial {
    /// Whether rounds gather now.
    pub(super) fn gathers(&self) -> bool {
        match self.phase {
            Phase::Tried(_) => !self.gathers,
            Phase::Kept(_) | Phase::Compared { .. } => self.gathers,
        }
    }

    /// For a while there was nothing to do.
    pub(super) fn was_idle(&mut self) {
        self.period = Period::default();
    }

    /// A round has acknowledged so many.
    pub(super) fn round(&mut self, acknowledged: u64, now: Instant) {
        let period = &mut self.period;
        period.rounds += 1;
        match period.began {
            None if period.rounds >= ROUNDS_BEFORE => period.began = Some(now),
            None => {}
            Some(_) => period.acknowledged += acknowledged,
        }
        if period.rounds < ROUNDS {
            return;
        }
        let rate = period.rate(now);
        self.period = Period::default();
        self.next(rate);
    }

    fn next(&mut self, rate: u128) {
        self.phase = match self.phase {
            Phase::Kept(0) => Phase::Tried(rate),
            Phase::Kept(left) => Phase::Kept(left - 1),
            Phase::Tried(before) => Phase::Compared {
                before,
                tried: rate,
            },
            Phase::Compared { before, tried } => {
                let is_better = tried * 100 > before.max(rate) * (100 + MORE);
                self.gathers ^= is_better;
                self.interval = match is_better {
                    true => INTERVAL_MIN,
                    false => INTERVAL_MAX.min(self.interval * 2),
                };
                Phase::Kept(self.interval)
            }
        };
    }
}

impl Period {
    fn rate(&self, now: Instant) -> u128 {
        let took = self.began.map(|began| now.saturating_duration_since(began));
        let took = took.map_or(1, |took| took.as_nanos().max(1));
        u128::from(self.acknowledged) * 1_000_000_000 / took
    }
}
