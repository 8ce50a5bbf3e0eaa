//! Limits of commands and bytes a second, of a volume or of a host, over all reactors.
//!
//! A limit is a bucket of commands or of bytes. It fills at the limit's rate, up to what may be used at once. A command
//! that finds too little in it gets a place in line, and goes on when what those before it and it cost has come in.
//!
//! Guarantees:
//! - Over any time, commands that go on cost no more than the rate times that time, and one burst, and one command.
//! - Hosts that want more of a volume than its limit get the same each, up to one command of each, however many commands
//!   and queues they have. An export is such a host. Who wants less gets what it wants, and the others share the rest.
//! - Commands of one host go on in the order in which they came, whichever reactor they are on. One that is given up gives
//!   its cost to those behind it.
//! - A command that waits has no data, no buffer and no lock: it holds its place in its queue, whose depth bounds how
//!   many wait.
//! - What has no limit takes no lock and reads no clock.

use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, HashMap};
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nvme::Nqn;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::errors::Failure;
use crate::lock::lock;

/// A command looks again after so long at the latest: a limit may have changed.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Buckets count in billionths of a command or of a byte, so that a nanosecond's share is exact.
const SHARES: i128 = 1_000_000_000;

/// What may be used at once after a pause, if nothing else was said, in milliseconds of the limit.
pub const BURST_MS_DEFAULT: u64 = 100;

/// The longest burst: an hour.
pub const BURST_MS_MAX: u64 = 3_600_000;

/// What a volume or a host may do in a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IoLimits {
    /// Commands a second; `None` is any number.
    #[serde(default)]
    pub iops: Option<u64>,
    /// Bytes a second; `None` is any number.
    #[serde(default)]
    pub bandwidth_bytes: Option<u64>,
    /// What may be used at once after a pause: so many milliseconds' worth of the limit.
    #[serde(default = "burst_default")]
    pub burst_ms: u64,
}

fn burst_default() -> u64 {
    BURST_MS_DEFAULT
}

impl Default for IoLimits {
    fn default() -> Self {
        Self {
            iops: None,
            bandwidth_bytes: None,
            burst_ms: BURST_MS_DEFAULT,
        }
    }
}

impl IoLimits {
    /// Whether nothing is limited.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.iops.is_none() && self.bandwidth_bytes.is_none()
    }

    /// Whether such limits are possible; `of` names whose they are.
    ///
    /// # Errors
    /// Names what is wrong.
    pub fn check(&self, of: &str) -> Result<(), Failure> {
        let zero = |limit: Option<u64>| limit == Some(0);
        if zero(self.iops) || zero(self.bandwidth_bytes) {
            return Err(Failure::invalid(format!(
                "{of}: a limit of 0 would let nothing through; say 'off' (null) for no limit"
            )));
        }
        if self.burst_ms > BURST_MS_MAX {
            return Err(Failure::invalid(format!(
                "{of}: a burst of {} ms is not possible; use at most {BURST_MS_MAX} ms",
                self.burst_ms
            )));
        }
        Ok(())
    }
}

/// How often and how long commands were held back since the daemon started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeldBack {
    /// Commands that had to wait for a limit.
    pub commands: u64,
    /// How long all of them waited together, in nanoseconds.
    pub wait_ns: u64,
}

/// Who uses a limit together with others: a host or an export, by a number.
type User = u64;

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

/// A bucket, and the line before it. Times are those since its throttle was made.
///
/// The line has a clock of its own, in shares: a command begins where the one before it of the same user ended, or now,
/// which is where the command began that went on last. The one that began first goes on next (start-time fair queueing).
#[derive(Debug, Default)]
struct Bucket {
    /// Units a second; 0 is no limit.
    rate: u64,
    /// Shares that may be unused at most.
    burst: i128,
    /// Shares that came in, and those that commands went on with.
    came_in: i128,
    used: i128,
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
    /// What was left of the old limit stays, as far as the new one allows it.
    fn set(&mut self, now: Duration, rate: Option<u64>, burst_ms: u64) {
        let rate = rate.unwrap_or(0);
        let burst = i128::from(rate) * i128::from(burst_ms) * (SHARES / 1000);
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
        self.came_in = self.came_in.min(self.used + self.waiting + self.burst);
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

/// The limits of one volume, or of one host.
#[derive(Debug)]
pub(crate) struct Throttle {
    since: Instant,
    buckets: Mutex<Buckets>,
    held_commands: AtomicU64,
    held_ns: AtomicU64,
}

/// A command's places in the lines of a throttle.
#[derive(Clone, Copy, Debug)]
struct Places {
    commands: Option<Place>,
    bytes: Option<Place>,
}

impl Throttle {
    fn new(now: Instant) -> Self {
        Self {
            since: now,
            buckets: Mutex::default(),
            held_commands: AtomicU64::default(),
            held_ns: AtomicU64::default(),
        }
    }

    fn set(&self, now: Instant, limits: &IoLimits) {
        let now = now.saturating_duration_since(self.since);
        let mut buckets = lock(&self.buckets);
        buckets.commands.set(now, limits.iops, limits.burst_ms);
        buckets
            .bytes
            .set(now, limits.bandwidth_bytes, limits.burst_ms);
    }

    fn is_limited(&self) -> bool {
        let buckets = lock(&self.buckets);
        buckets.commands.rate > 0 || buckets.bytes.rate > 0
    }

    fn take(&self, now: Instant, user: User, bytes: u64) -> Places {
        let now = now.saturating_duration_since(self.since);
        let mut buckets = lock(&self.buckets);
        Places {
            commands: buckets.commands.take(now, user, 1),
            bytes: buckets.bytes.take(now, user, bytes),
        }
    }

    fn wait(&self, now: Instant, places: Places) -> Option<Duration> {
        let now = now.saturating_duration_since(self.since);
        let mut buckets = lock(&self.buckets);
        let commands = buckets.commands.wait(now, places.commands);
        commands.max(buckets.bytes.wait(now, places.bytes))
    }

    fn give_back(&self, now: Instant, places: Places, bytes: u64) {
        let now = now.saturating_duration_since(self.since);
        let mut buckets = lock(&self.buckets);
        buckets.commands.give_back(now, places.commands, 1);
        buckets.bytes.give_back(now, places.bytes, bytes);
    }

    fn held(&self, waited: Duration) {
        let ns = u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX);
        self.held_commands.fetch_add(1, Ordering::Relaxed);
        self.held_ns.fetch_add(ns, Ordering::Relaxed);
    }

    fn held_back(&self) -> HeldBack {
        HeldBack {
            commands: self.held_commands.load(Ordering::Relaxed),
            wait_ns: self.held_ns.load(Ordering::Relaxed),
        }
    }
}

/// What a command waits for before it touches a volume: the limits of the volume and of the host. Mostly there are none.
#[derive(Clone, Debug, Default)]
pub(crate) struct Throttles {
    limits: Option<Arc<[Arc<Throttle>]>>,
    user: User,
}

impl Throttles {
    /// Whether nothing is limited.
    pub(crate) fn is_empty(&self) -> bool {
        self.limits.is_none()
    }

    /// A place in all lines for a command that moves so many bytes.
    pub(crate) fn queue_up(&self, now: Instant, bytes: u64) -> Turn<'_> {
        let all = self.limits.as_deref().unwrap_or_default();
        let places = all.iter().map(|it| (&**it, it.take(now, self.user, bytes)));
        Turn {
            places: places.collect(),
            bytes,
            since: now,
            seen: now,
            is_through: false,
        }
    }
}

/// A command's place in the lines of its limits. Dropped before its turn came, it gives back what it took.
pub(crate) struct Turn<'a> {
    places: Vec<(&'a Throttle, Places)>,
    bytes: u64,
    since: Instant,
    /// When it asked last.
    seen: Instant,
    is_through: bool,
}

impl Turn<'_> {
    /// How long to wait before asking again; `None`: it is the command's turn.
    pub(crate) fn wait(&mut self, now: Instant) -> Option<Duration> {
        self.seen = now;
        let waits = self.places.iter().map(|(of, places)| of.wait(now, *places));
        let wait = waits.max().flatten();
        self.is_through = wait.is_none();
        wait.map(|wait| wait.min(LOOK_AGAIN))
    }

    /// The command had to wait until now.
    pub(crate) fn held(&self, now: Instant) {
        let waited = now.saturating_duration_since(self.since);
        self.places.iter().for_each(|(of, _)| of.held(waited));
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if !self.is_through {
            for (of, places) in &self.places {
                of.give_back(self.seen, *places, self.bytes);
            }
        }
    }
}

/// What limits are of.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Limited {
    /// A volume.
    Volume(Uuid),
    /// A host, on all of its paths and volumes.
    Host(Nqn),
}

/// Who commands of a volume come from: all of them share its limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum By<'a> {
    /// A host, on all of its paths and queues.
    Host(&'a Nqn),
    /// An export of that number.
    Export(u16),
}

/// The throttles of all that ever had a limit since the daemon started, with what they held back.
#[derive(Debug, Default)]
pub(crate) struct ThrottleTable {
    all: Mutex<HashMap<Limited, Arc<Throttle>>>,
    /// Makes the numbers of users, which nobody can foresee: no host can choose a name with another's number.
    numbers: RandomState,
}

impl ThrottleTable {
    /// These are the limits from now on. Commands that wait for one that is no more go on soon.
    pub(crate) fn apply(&self, limits: &BTreeMap<Limited, Arc<IoLimits>>) {
        let now = reactor::now();
        let mut all = lock(&self.all);
        for of in limits.keys() {
            if !all.contains_key(of) {
                all.insert(of.clone(), Arc::new(Throttle::new(now)));
            }
        }
        let none = IoLimits::default();
        for (of, throttle) in all.iter() {
            throttle.set(now, limits.get(of).map_or(&none, |limits| &**limits));
        }
    }

    /// What a command of this host, or export, on this volume has to wait for.
    pub(crate) fn of(&self, volume: Uuid, by: By<'_>) -> Throttles {
        let all = lock(&self.all);
        let limited = |of: Limited| all.get(&of).filter(|it| it.is_limited()).cloned();
        let host = match by {
            By::Host(nqn) => Some(Limited::Host(nqn.clone())),
            By::Export(_) => None,
        };
        let both = [Some(Limited::Volume(volume)), host].into_iter().flatten();
        let found: Vec<_> = both.filter_map(limited).collect();
        Throttles {
            limits: (!found.is_empty()).then(|| found.into()),
            user: self.numbers.hash_one(by),
        }
    }

    /// What a limit held back since the daemon started.
    pub(crate) fn held_back(&self, of: &Limited) -> HeldBack {
        let all = lock(&self.all);
        all.get(of).map(|it| it.held_back()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
