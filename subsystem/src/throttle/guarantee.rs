//! The commands that guarantees are for, and what all other commands wait for while a guarantee is not kept.
//!
//! Guarantees:
//! - Without a guarantee nothing here is reached.
//! - A command within a guarantee of its volume or host never waits for others. All others wait in one line, which is fair
//!   between hosts as that of a limit is, and only while the [`Control`] says so.
//! - A command that waits goes on when the line or its guarantee lets it, whichever is first. What it does not use is for
//!   those behind it.
//! - Steps are made by the commands that come and look: no task runs for it, and nothing happens while nobody asks.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, TryLockError};
use std::time::{Duration, Instant};

use super::HeldBack;
use super::bucket::{Fill, Places, Throttle, User};
use super::control::{Control, Demand, Rates, Seen, cost};
use super::crowd::is_crowded;
use crate::lock::lock;

/// A step is made when so much time has passed.
const STEP: Duration = Duration::from_millis(10);

/// What a guarantee lets go on at once after a pause: so much time's worth, and so many commands and bytes at least.
const BURST_MS: u64 = 20;
const BURST_COMMANDS: u64 = 1;
const BURST_BYTES: u64 = dedup::MAX_COMMAND_BYTES as u64;

/// What the line of the surplus lets go on at once: so much time's worth, and so much cost at least.
const SURPLUS_BURST_MS: u64 = 10;
const SURPLUS_BURST: u64 = 64 << 10;

/// What a volume or a host is sure of, and what it gets.
#[derive(Debug)]
pub(super) struct Guarantee {
    throttle: Throttle,
    load: Mutex<Load>,
}

#[derive(Debug, Default)]
struct Load {
    rates: Rates,
    demand: Demand,
    /// Commands outstanding now.
    outstanding: u64,
    /// Until when that is in what was seen, since the gate was made.
    counted: Duration,
    seen: Seen,
}

impl Load {
    fn count(&mut self, now: Duration) {
        let passed = now.saturating_sub(self.counted).as_nanos();
        self.counted = self.counted.max(now);
        self.seen.outstanding_ns += u128::from(self.outstanding) * passed;
        if self.outstanding > 0 {
            self.seen.busy_ns += u64::try_from(passed).unwrap_or(u64::MAX);
        }
    }
}

/// What a guarantee is worth at the moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Achieved {
    /// Commands a second.
    pub iops: u64,
    /// Bytes a second.
    pub bandwidth_bytes: u64,
    /// It asks for what it is guaranteed, and gets less.
    pub is_short: bool,
}

/// What happened to the surplus.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Surplus {
    /// The cost a second that it may have now; `None`: it is not held back.
    pub bound: Option<u64>,
    /// What was held back since the daemon started.
    pub held: HeldBack,
}

/// What all commands of a node pass while there is a guarantee.
#[derive(Debug)]
pub(super) struct Gate {
    since: Instant,
    /// The line of the surplus; its bytes are cost.
    surplus: Throttle,
    /// The cost of commands that ended since the last step, within guarantees and beyond. Ended, and not begun: what a node
    /// can do is what it gets done.
    guaranteed_cost: AtomicU64,
    surplus_cost: AtomicU64,
    /// When the next step is due, in nanoseconds.
    step_at: AtomicU64,
    steps: Mutex<Steps>,
}

#[derive(Debug, Default)]
struct Steps {
    control: Control,
    all: Vec<Arc<Guarantee>>,
}

impl Gate {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            since: now,
            surplus: Throttle::new(now),
            guaranteed_cost: AtomicU64::default(),
            surplus_cost: AtomicU64::default(),
            step_at: AtomicU64::default(),
            steps: Mutex::default(),
        }
    }

    fn at(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.since)
    }

    /// A guarantee of these rates, that is not among those of the gate yet.
    pub(super) fn guarantee(&self, now: Instant) -> Guarantee {
        Guarantee {
            throttle: Throttle::new(now),
            load: Mutex::new(Load {
                counted: self.at(now),
                ..Load::default()
            }),
        }
    }

    /// These are the guarantees from now on.
    pub(super) fn set(&self, now: Instant, all: Vec<Arc<Guarantee>>) {
        let mut steps = lock(&self.steps);
        if all.is_empty() || steps.all.is_empty() {
            // Who waits goes on.
            self.guaranteed_cost.store(0, Ordering::Relaxed);
            self.surplus_cost.store(0, Ordering::Relaxed);
            steps.control = Control::new(self.at(now));
            self.bound(now, None);
        }
        steps.all = all;
    }

    fn bound(&self, now: Instant, bound: Option<u64>) {
        let fill = Fill::new(bound, SURPLUS_BURST_MS).with_burst(SURPLUS_BURST);
        self.surplus.set(now, Fill::default(), fill);
    }

    /// Makes a step, if one is due and nobody makes it.
    pub(super) fn look(&self, now: Instant) {
        let at = self.at(now);
        let at_ns = u64::try_from(at.as_nanos()).unwrap_or(u64::MAX);
        if at_ns < self.step_at.load(Ordering::Relaxed) {
            return;
        }
        let mut steps = match self.steps.try_lock() {
            Ok(steps) => steps,
            Err(TryLockError::WouldBlock) => return,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        };
        let next = at_ns.saturating_add(STEP.as_nanos() as u64);
        self.step_at.store(next, Ordering::Relaxed);
        let Steps { control, all } = &mut *steps;
        if all.is_empty() {
            return;
        }
        let mut loads: Vec<_> = all
            .iter()
            .map(|it| {
                let is_unused = it.throttle.take_spilled(now);
                let mut load = lock(&it.load);
                load.count(at);
                let mut seen = std::mem::take(&mut load.seen);
                seen.is_unused = is_unused;
                (load, seen)
            })
            .collect();
        let demands = loads
            .iter_mut()
            .map(|(load, seen)| (load.rates, *seen, &mut load.demand));
        let demands = demands.map(|(rates, seen, demand)| (demand, rates, seen));
        let (guaranteed, surplus) = (
            self.guaranteed_cost.swap(0, Ordering::Relaxed),
            self.surplus_cost.swap(0, Ordering::Relaxed),
        );
        let bound = control.step(at, guaranteed, surplus, demands);
        drop(loads);
        self.bound(now, bound);
    }

    /// A command is done that moved so many bytes.
    pub(super) fn ended(&self, is_within: bool, bytes: u64) {
        let counter = match is_within {
            true => &self.guaranteed_cost,
            false => &self.surplus_cost,
        };
        counter.fetch_add(cost(bytes), Ordering::Relaxed);
    }

    /// What happened to the surplus.
    pub(super) fn surplus(&self, now: Instant) -> Surplus {
        self.look(now);
        Surplus {
            bound: lock(&self.steps).control.bound(),
            held: self.surplus.held_back(),
        }
    }

    /// A place for a command that moves so many bytes, whose volume and host have these guarantees.
    pub(super) fn enter<'a>(
        &'a self,
        now: Instant,
        own: &'a [Arc<Guarantee>],
        user: User,
        bytes: u64,
    ) -> Entry<'a> {
        self.look(now);
        let places = |it: &'a Arc<Guarantee>| (&**it, it.throttle.take(now, user, bytes));
        let own: Vec<_> = own.iter().map(places).collect();
        let mut entry = Entry {
            gate: self,
            own,
            surplus: None,
            bytes,
            seen: now,
            is_in: false,
            is_within: false,
        };
        let is_within = entry.own.iter().any(|(_, places)| places.are_none());
        if is_within {
            entry.goes_on(true);
        } else {
            let places = self.surplus.take(now, user, cost(bytes));
            match places.are_none() {
                true => entry.goes_on(false),
                false => entry.surplus = Some(places),
            }
        }
        entry
    }
}

/// A command at the gate. Dropped before it is in, it gives back what it took.
pub(super) struct Entry<'a> {
    gate: &'a Gate,
    own: Vec<(&'a Guarantee, Places)>,
    /// Its place in the line of the surplus.
    surplus: Option<Places>,
    bytes: u64,
    seen: Instant,
    is_in: bool,
    is_within: bool,
}

impl Entry<'_> {
    /// How long to wait before asking again; `None`: the command goes on.
    pub(super) fn wait(&mut self, now: Instant) -> Option<Duration> {
        self.seen = now;
        let places = self.surplus.filter(|_| !self.is_in)?;
        self.gate.look(now);
        let waits = self.own.iter();
        let waits = waits.map(|(of, places)| of.throttle.wait(now, *places));
        // That of the line comes last: what is within a guarantee is no surplus.
        let own: Option<Duration> = match waits.min() {
            Some(None) => {
                self.gate.surplus.give_back(now, places, cost(self.bytes));
                self.goes_on(true);
                return None;
            }
            own => own.flatten(),
        };
        let Some(wait) = self.gate.surplus.wait(now, places) else {
            self.goes_on(false);
            return None;
        };
        Some(own.map_or(wait, |own| own.min(wait)))
    }

    /// The command goes on. It leaves the lines of those guarantees that do not let it.
    fn goes_on(&mut self, is_within: bool) {
        (self.is_in, self.is_within) = (true, is_within);
        for (of, places) in &self.own {
            if of.throttle.wait(self.seen, *places).is_some() {
                of.throttle.give_back(self.seen, *places, self.bytes);
            }
        }
    }

    /// Whether it went on within a guarantee.
    pub(super) fn is_within(&self) -> bool {
        self.is_within
    }

    /// The command waited so long.
    pub(super) fn held(&self, waited: Duration) {
        self.gate.surplus.held(waited);
    }
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        if !self.is_in {
            for (of, places) in &self.own {
                of.throttle.give_back(self.seen, *places, self.bytes);
            }
            if let Some(places) = self.surplus {
                let cost = cost(self.bytes);
                self.gate.surplus.give_back(self.seen, places, cost);
            }
        }
    }
}

impl Guarantee {
    pub(super) fn set(&self, now: Instant, rates: Rates) {
        let commands = Fill::new(rates.iops, BURST_MS).with_burst(BURST_COMMANDS);
        let bytes = Fill::new(rates.bandwidth_bytes, BURST_MS).with_burst(BURST_BYTES);
        self.throttle.set(now, commands, bytes);
        lock(&self.load).rates = rates;
    }

    /// What it is worth now.
    pub(super) fn achieved(&self) -> Achieved {
        let load = lock(&self.load);
        let demand = &load.demand;
        Achieved {
            iops: demand.iops.round() as u64,
            bandwidth_bytes: demand.bandwidth_bytes.round() as u64,
            is_short: demand.is_short(&load.rates),
        }
    }

    /// A command of it went into the engine.
    pub(super) fn begin(&self, gate: &Gate, now: Instant) {
        let is_crowded = is_crowded(now);
        let mut load = lock(&self.load);
        load.count(gate.at(now));
        load.seen.is_crowded |= is_crowded;
        load.outstanding += 1;
    }

    /// A command of it is done.
    pub(super) fn end(&self, gate: &Gate, now: Instant, bytes: u64) {
        let mut load = lock(&self.load);
        load.count(gate.at(now));
        load.outstanding = load.outstanding.saturating_sub(1);
        load.seen.ended += 1;
        load.seen.ended_bytes += bytes;
    }
}
