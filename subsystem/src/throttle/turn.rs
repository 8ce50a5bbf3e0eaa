//! The way of a command past its limits and past the gate of guarantees.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::bucket::{Places, Throttle, User};
use super::guarantee::{Entry, Gate, Guarantee};

/// A command looks again after so long at the latest: a limit may have changed.
pub(super) const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// What a command waits for before it touches a volume: the limits of the volume and of the host, and while there are
/// guarantees, those and what others may do beside them. Mostly there is nothing of all that.
#[derive(Clone, Debug, Default)]
pub(crate) struct Throttles {
    pub(super) held_by: Option<Arc<HeldBy>>,
}

/// What holds the commands of a host, or export, on a volume.
#[derive(Debug)]
pub(super) struct HeldBy {
    pub(super) limits: Vec<Arc<Throttle>>,
    pub(super) guarantees: Vec<Arc<Guarantee>>,
    /// If anybody has a guarantee.
    pub(super) gate: Option<Arc<Gate>>,
    pub(super) user: User,
}

impl Throttles {
    /// Whether a command waits for nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.held_by.is_none()
    }

    /// A place in all lines for a command that moves so many bytes.
    pub(crate) fn queue_up(&self, now: Instant, bytes: u64) -> Turn<'_> {
        let by = self.held_by.as_ref();
        let all = by.map(|by| &*by.limits).unwrap_or_default();
        let user = by.map_or(0, |by| by.user);
        let places = all.iter().map(|it| (&**it, it.take(now, user, bytes)));
        Turn {
            by,
            places: places.collect(),
            entry: None,
            bytes,
            since: now,
            seen: now,
            waits_since: None,
            is_through: false,
        }
    }
}

/// A command's place in the lines of its limits, and then at the gate. Dropped before its turn came, it gives back what it
/// took.
pub(crate) struct Turn<'a> {
    by: Option<&'a Arc<HeldBy>>,
    pub(super) places: Vec<(&'a Throttle, Places)>,
    /// At the gate, when the limits let it.
    entry: Option<Entry<'a>>,
    bytes: u64,
    since: Instant,
    /// When it asked last.
    seen: Instant,
    /// Since when it waits at the gate, if it had to.
    waits_since: Option<Instant>,
    is_through: bool,
}

impl<'a> Turn<'a> {
    /// How long to wait before asking again; `None`: it is the command's turn.
    pub(crate) fn wait(&mut self, now: Instant) -> Option<Duration> {
        self.seen = now;
        let wait = match self.entry {
            Some(_) => None,
            None => {
                let waits = self.places.iter();
                let waits = waits.map(|(of, places)| of.wait(now, *places));
                waits.max().flatten()
            }
        };
        let wait = wait.or_else(|| self.wait_at_gate(now));
        self.is_through = wait.is_none();
        wait.map(|wait| wait.min(LOOK_AGAIN))
    }

    fn wait_at_gate(&mut self, now: Instant) -> Option<Duration> {
        let by: &'a HeldBy = self.by?;
        let gate = by.gate.as_ref()?;
        let enter = || gate.enter(now, &by.guarantees, by.user, self.bytes);
        let wait = self.entry.get_or_insert_with(enter).wait(now);
        if wait.is_some() {
            self.waits_since.get_or_insert(now);
        }
        wait
    }

    /// The command had to wait until now.
    pub(crate) fn held(&self, now: Instant) {
        let until = self.waits_since.unwrap_or(now);
        let by_limits = until.saturating_duration_since(self.since);
        if !by_limits.is_zero() {
            self.places.iter().for_each(|(of, _)| of.held(by_limits));
        }
        if let (Some(entry), Some(since)) = (&self.entry, self.waits_since) {
            entry.held(now.saturating_duration_since(since));
        }
    }

    /// What the command keeps until it is done, after its turn came; nothing while there is no guarantee.
    pub(crate) fn pass(&self, now: Instant) -> Option<Pass> {
        let is_within = self.entry.as_ref()?.is_within();
        Some(Pass::begin(self.by?.clone(), now, self.bytes, is_within))
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

/// A command that is under way while there are guarantees. They see that it is, until this is dropped.
#[derive(Debug)]
pub struct Pass {
    by: Option<Arc<HeldBy>>,
    bytes: u64,
    is_within: bool,
}

impl Pass {
    fn begin(by: Arc<HeldBy>, now: Instant, bytes: u64, is_within: bool) -> Self {
        if let Some(gate) = &by.gate {
            by.guarantees.iter().for_each(|it| it.begin(gate, now));
        }
        Self {
            by: Some(by),
            bytes,
            is_within,
        }
    }

    pub(super) fn end(&mut self, now: impl FnOnce() -> Instant) {
        let Some(by) = self.by.take() else {
            return;
        };
        let Some(gate) = &by.gate else {
            return;
        };
        gate.ended(self.is_within, self.bytes);
        if !by.guarantees.is_empty() {
            let now = now();
            let all = by.guarantees.iter();
            all.for_each(|it| it.end(gate, now, self.bytes));
        }
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        self.end(reactor::recently);
    }
}
