//! Buckets of commands and of bytes, and the lines before them. They know no clock: times come in.

use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::HeldBack;
use crate::lock::lock;

/// Buckets count in billionths of a command or of a byte, so that a nanosecond's share is exact.
const SHARES: i128 = 1_000_000_000;

/// Who uses a limit together with others: a host or an export, by a number.
pub(super) type User = u64;

/// A place in the line of a bucket: when its command began by the clock of the line, and how many came before.
type Place = (i128, u64);

/// Users that are looked at one by one to say how long a command will have to wait.
const USERS_COUNTED: usize = 32;

/// A command that waits.
#[derive(Debug)]
struct Waiting {
    user: User,
    cost: i128,
}

/// What a user waits for, by the clock of the line.
#[derive(Debug)]
struct Share {
    /// Where its first command that waits begins.
    begins: i128,
    /// Where its last command ends.
    ends: i128,
    /// Its commands that wait.
    waiting: usize,
}

/// How a bucket fills.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Fill {
    /// Units a second; 0 is no bound.
    pub(super) rate: u64,
    /// Shares that may be unused at most.
    burst: i128,
}

impl Fill {
    /// At this rate, if there is one; after a pause so much time's worth may be used at once.
    pub(super) fn new(rate: Option<u64>, burst_ms: u64) -> Self {
        let rate = rate.unwrap_or(0);
        Self {
            rate,
            burst: i128::from(rate) * i128::from(burst_ms) * (SHARES / 1000),
        }
    }

    /// The same, and at least so many units may be used at once.
    pub(super) fn with_burst(self, units: u64) -> Self {
        Self {
            burst: self.burst.max(i128::from(units) * SHARES),
            ..self
        }
    }
}

/// A bucket, and the line before it. Times are those since its throttle was made.
///
/// The line has a clock of its own, in shares: a command begins where the one before it of the same user ended, or now,
/// which is where the command began that went on last. The one that began first goes on next (start-time fair queueing).
#[derive(Debug, Default)]
struct Bucket {
    /// Units a second; 0 is no bound.
    rate: u64,
    /// Shares that may be unused at most.
    burst: i128,
    /// Shares that came in, and those that commands went on with.
    came_in: i128,
    used: i128,
    /// Something came in that nobody used.
    has_spilled: bool,
    /// Until when it was filled.
    filled: Duration,
    line: BTreeMap<Place, Waiting>,
    /// What all commands in line cost.
    waiting: i128,
    /// Those who have commands in line, or had until a moment ago.
    users: HashMap<User, Share>,
    clock: i128,
    arrived: u64,
}

impl Bucket {
    /// What was left of the old rate stays, as far as the new one allows it.
    fn set(&mut self, now: Duration, fill: Fill) {
        let Fill { rate, burst } = fill;
        if (self.rate, self.burst) == (rate, burst) {
            return;
        }
        let is_new = self.rate == 0;
        self.fill(now);
        (self.rate, self.burst) = (rate, burst);
        if rate == 0 {
            // Who waited goes on: nobody is in line.
            self.used += std::mem::take(&mut self.waiting);
            self.line.clear();
            self.users.clear();
        }
        if is_new {
            self.came_in = self.used + burst;
        }
        self.spill();
    }

    /// What nobody waits for is kept up to the burst.
    fn spill(&mut self) {
        let most = self.used + self.waiting + self.burst;
        self.has_spilled |= self.came_in > most;
        self.came_in = self.came_in.min(most);
    }

    /// Whether something came in that nobody used, since this was asked last.
    fn take_spilled(&mut self, now: Duration) -> bool {
        self.fill(now);
        std::mem::take(&mut self.has_spilled)
    }

    /// Fills it, and lets those go on for whom there is enough.
    fn fill(&mut self, now: Duration) {
        let passed = now.saturating_sub(self.filled).as_nanos();
        self.filled = self.filled.max(now);
        // Both are far below 2^63.
        self.came_in += i128::from(self.rate) * i128::try_from(passed).unwrap_or(i128::MAX >> 64);
        self.spill();
        while let Some(first) = self.line.first_entry() {
            if self.used + first.get().cost > self.came_in {
                break;
            }
            let ((begins, _), Waiting { user, cost }) = first.remove_entry();
            self.used += cost;
            self.waiting -= cost;
            self.clock = self.clock.max(begins);
            if let Some(share) = self.users.get_mut(&user) {
                share.begins = begins + cost;
                share.waiting -= 1;
            }
        }
        if self.line.is_empty() {
            self.users.clear();
        }
    }

    /// Takes so many units, at once or by a place in line.
    fn take(&mut self, now: Duration, user: User, units: u64) -> Option<Place> {
        if self.rate == 0 {
            return None;
        }
        self.fill(now);
        let cost = i128::from(units) * SHARES;
        if self.line.is_empty() && self.used + cost <= self.came_in {
            self.used += cost;
            return None;
        }
        if self.users.len() >= 2 * USERS_COUNTED {
            let clock = self.clock;
            self.users
                .retain(|_, share| share.waiting > 0 || share.ends > clock);
        }
        let clock = self.clock;
        let share = self.users.entry(user).or_insert(Share {
            begins: clock,
            ends: clock,
            waiting: 0,
        });
        let begins = share.ends.max(clock);
        if share.waiting == 0 {
            share.begins = begins;
        }
        share.ends = begins + cost;
        share.waiting += 1;
        self.arrived += 1;
        let place = (begins, self.arrived);
        self.line.insert(place, Waiting { user, cost });
        self.waiting += cost;
        Some(place)
    }

    /// How long the command at this place still has to wait: about so long, and not before the next one goes on.
    fn wait(&mut self, now: Duration, place: Option<Place>) -> Option<Duration> {
        let place = place.filter(|_| self.rate != 0)?;
        self.fill(now);
        let own = self.line.get(&place)?;
        let (_, next) = self.line.first_key_value()?;
        let (begins, _) = place;
        let before = |share: &Share| (share.ends.min(begins) - share.begins).max(0);
        let counted = self.users.values().take(USERS_COUNTED).map(before);
        let others = self.users.len().saturating_sub(USERS_COUNTED);
        let ahead = counted.sum::<i128>() + others as i128 * (begins - self.clock).max(0);
        let missing = (self.used + (ahead + own.cost).max(next.cost) - self.came_in).max(1);
        let rate = i128::from(self.rate);
        let ns = u64::try_from((missing + rate - 1) / rate).unwrap_or(u64::MAX);
        Some(Duration::from_nanos(ns))
    }

    /// The command gave up: what it took is for those behind it.
    fn give_back(&mut self, now: Duration, place: Option<Place>, units: u64) {
        if self.rate == 0 {
            return;
        }
        self.fill(now);
        let Some(Waiting { user, cost }) = place.and_then(|place| self.line.remove(&place)) else {
            // It had what it needs of this bucket, and waited for another one.
            self.came_in += i128::from(units) * SHARES;
            self.spill();
            return;
        };
        self.waiting -= cost;
        if let (Some(share), Some((begins, _))) = (self.users.get_mut(&user), place) {
            share.waiting -= 1;
            if share.ends == begins + cost {
                share.ends = begins;
            }
        }
        self.spill();
    }
}

#[derive(Debug, Default)]
struct Buckets {
    commands: Bucket,
    bytes: Bucket,
}

/// A bucket of commands and one of bytes that commands take from together, on all reactors.
#[derive(Debug)]
pub(super) struct Throttle {
    since: Instant,
    buckets: Mutex<Buckets>,
    held_commands: AtomicU64,
    held_ns: AtomicU64,
}

/// A command's places in the lines of a throttle.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places {
    commands: Option<Place>,
    pub(super) bytes: Option<Place>,
}

impl Places {
    /// Whether there was enough for the command at once.
    pub(super) fn are_none(&self) -> bool {
        self.commands.is_none() && self.bytes.is_none()
    }
}

impl Throttle {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            since: now,
            buckets: Mutex::default(),
            held_commands: AtomicU64::default(),
            held_ns: AtomicU64::default(),
        }
    }

    pub(super) fn set(&self, now: Instant, commands: Fill, bytes: Fill) {
        let now = now.saturating_duration_since(self.since);
        let mut buckets = lock(&self.buckets);
        buckets.commands.set(now, commands);
        buckets.bytes.set(now, bytes);
    }

    /// Whether each bucket that fills had more than was used, since this was asked last.
    pub(super) fn take_spilled(&self, now: Instant) -> bool {
        let now = now.saturating_duration_since(self.since);
        let mut buckets = lock(&self.buckets);
        let Buckets { commands, bytes } = &mut *buckets;
        let spilled = |bucket: &mut Bucket| bucket.take_spilled(now) || bucket.rate == 0;
        let (commands, bytes) = (spilled(commands), spilled(bytes));
        commands && bytes
    }

    pub(super) fn is_limited(&self) -> bool {
        let buckets = lock(&self.buckets);
        buckets.commands.rate > 0 || buckets.bytes.rate > 0
    }

    pub(super) fn take(&self, now: Instant, user: User, bytes: u64) -> Places {
        let now = now.saturating_duration_since(self.since);
        let mut buckets = lock(&self.buckets);
        Places {
            commands: buckets.commands.take(now, user, 1),
            bytes: buckets.bytes.take(now, user, bytes),
        }
    }

    pub(super) fn wait(&self, now: Instant, places: Places) -> Option<Duration> {
        let now = now.saturating_duration_since(self.since);
        let mut buckets = lock(&self.buckets);
        let commands = buckets.commands.wait(now, places.commands);
        commands.max(buckets.bytes.wait(now, places.bytes))
    }

    pub(super) fn give_back(&self, now: Instant, places: Places, bytes: u64) {
        let now = now.saturating_duration_since(self.since);
        let mut buckets = lock(&self.buckets);
        buckets.commands.give_back(now, places.commands, 1);
        buckets.bytes.give_back(now, places.bytes, bytes);
    }

    pub(super) fn held(&self, waited: Duration) {
        let ns = u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX);
        self.held_commands.fetch_add(1, Ordering::Relaxed);
        self.held_ns.fetch_add(ns, Ordering::Relaxed);
    }

    pub(super) fn held_back(&self) -> HeldBack {
        HeldBack {
            commands: self.held_commands.load(Ordering::Relaxed),
            wait_ns: self.held_ns.load(Ordering::Relaxed),
        }
    }
}
