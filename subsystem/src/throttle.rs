//! Limits of commands and bytes a second, of a volume or of a host, over all reactors, and guarantees of them.
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
//! - What has no limit takes no lock and reads no clock, as long as nothing has a guarantee.
//!
//! A *guarantee* is what a volume or a host gets when others would take all that the node can do: see `control`, which says
//! how much those others may, and `guarantee`, where commands wait for that. A command that has passed its limits comes there,
//! so nobody is held back for what its own limit keeps from it.

mod bucket;
mod control;
mod crowd;
mod guarantee;
mod turn;

use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, HashMap};
use std::hash::BuildHasher;
use std::sync::{Arc, Mutex};

use nvme::Nqn;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::errors::Failure;
use crate::lock::lock;
use bucket::{Fill, Throttle};
use control::Rates;
use guarantee::{Gate, Guarantee};
use turn::HeldBy;

pub use guarantee::{Achieved, Surplus};
pub use turn::Pass;
pub(crate) use turn::Throttles;

/// What may be used at once after a pause, if nothing else was said, in milliseconds of the limit.
pub const BURST_MS_DEFAULT: u64 = 100;

/// The longest burst: an hour.
pub const BURST_MS_MAX: u64 = 3_600_000;

/// What a volume or a host may do in a second, and what it can rely on.
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
    /// Commands a second that it gets whatever others ask for; `None`: what others leave.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guarantee_iops: Option<u64>,
    /// Bytes a second that it gets whatever others ask for; `None`: what others leave. With both, it gets the one that is
    /// less for its commands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guarantee_bandwidth_bytes: Option<u64>,
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
            guarantee_iops: None,
            guarantee_bandwidth_bytes: None,
        }
    }
}

impl IoLimits {
    /// Whether nothing is limited, and nothing guaranteed.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.iops.is_none() && self.bandwidth_bytes.is_none() && !self.is_guaranteed()
    }

    /// Whether something is guaranteed.
    #[must_use]
    pub fn is_guaranteed(&self) -> bool {
        self.guarantee_iops.is_some() || self.guarantee_bandwidth_bytes.is_some()
    }

    fn guaranteed(&self) -> Rates {
        Rates {
            iops: self.guarantee_iops,
            bandwidth_bytes: self.guarantee_bandwidth_bytes,
        }
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
        let pairs = [
            ("commands", self.guarantee_iops, self.iops),
            (
                "bytes",
                self.guarantee_bandwidth_bytes,
                self.bandwidth_bytes,
            ),
        ];
        for (what, guarantee, limit) in pairs {
            match (guarantee, limit) {
                (Some(0), _) => {
                    return Err(Failure::invalid(format!(
                        "{of}: a guarantee of 0 {what} a second guarantees nothing; say 'off' (null) for no guarantee"
                    )));
                }
                (Some(guarantee), Some(limit)) if guarantee > limit => {
                    return Err(Failure::invalid(format!(
                        "{of}: a guarantee of {guarantee} {what} a second is above its own limit of {limit}, which holds \
                         all the same; lower the guarantee, or raise the limit"
                    )));
                }
                _ => {}
            }
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

/// The throttles of all that ever had a limit since the daemon started, with what they held back, and the guarantees that
/// there are.
#[derive(Debug)]
pub(crate) struct ThrottleTable {
    all: Mutex<Table>,
    gate: Arc<Gate>,
    /// Makes the numbers of users, which nobody can foresee: no host can choose a name with another's number.
    numbers: RandomState,
}

#[derive(Debug, Default)]
struct Table {
    limits: HashMap<Limited, Arc<Throttle>>,
    guarantees: HashMap<Limited, Arc<Guarantee>>,
}

impl Default for ThrottleTable {
    fn default() -> Self {
        Self {
            all: Mutex::default(),
            gate: Arc::new(Gate::new(reactor::now())),
            numbers: RandomState::new(),
        }
    }
}

impl ThrottleTable {
    /// These are the limits and guarantees from now on. Commands that wait for one that is no more go on soon.
    pub(crate) fn apply(&self, limits: &BTreeMap<Limited, Arc<IoLimits>>) {
        let now = reactor::now();
        let mut all = lock(&self.all);
        let Table {
            limits: throttles,
            guarantees,
        } = &mut *all;
        for of in limits.keys() {
            if !throttles.contains_key(of) {
                throttles.insert(of.clone(), Arc::new(Throttle::new(now)));
            }
        }
        let none = IoLimits::default();
        for (of, throttle) in throttles.iter() {
            let limits = limits.get(of).map_or(&none, |limits| &**limits);
            let commands = Fill::new(limits.iops, limits.burst_ms);
            let bytes = Fill::new(limits.bandwidth_bytes, limits.burst_ms);
            throttle.set(now, commands, bytes);
        }
        guarantees.retain(|of, _| limits.get(of).is_some_and(|it| it.is_guaranteed()));
        for (of, limits) in limits.iter().filter(|(_, limits)| limits.is_guaranteed()) {
            let guarantee = guarantees.entry(of.clone());
            let guarantee = guarantee.or_insert_with(|| Arc::new(self.gate.guarantee(now)));
            guarantee.set(now, limits.guaranteed());
        }
        self.gate.set(now, guarantees.values().cloned().collect());
    }

    /// What a command of this host, or export, on this volume has to wait for.
    pub(crate) fn of(&self, volume: Uuid, by: By<'_>) -> Throttles {
        let all = lock(&self.all);
        let host = match by {
            By::Host(nqn) => Some(Limited::Host(nqn.clone())),
            By::Export(_) => None,
        };
        let both: Vec<_> = std::iter::once(Limited::Volume(volume))
            .chain(host)
            .collect();
        let limits = both.iter().filter_map(|of| all.limits.get(of));
        let limits: Vec<_> = limits.filter(|it| it.is_limited()).cloned().collect();
        let gate = (!all.guarantees.is_empty()).then(|| self.gate.clone());
        let held_by = (!limits.is_empty() || gate.is_some()).then(|| {
            let guarantees = both.iter().filter_map(|of| all.guarantees.get(of));
            Arc::new(HeldBy {
                limits,
                guarantees: guarantees.cloned().collect(),
                gate,
                user: self.numbers.hash_one(by),
            })
        });
        Throttles { held_by }
    }

    /// What a limit held back since the daemon started.
    pub(crate) fn held_back(&self, of: &Limited) -> HeldBack {
        let all = lock(&self.all);
        let throttle = all.limits.get(of);
        throttle.map(|it| it.held_back()).unwrap_or_default()
    }

    /// What a guarantee is worth now; `None` without one.
    pub(crate) fn achieved(&self, of: &Limited) -> Option<Achieved> {
        self.gate.look(reactor::now());
        let all = lock(&self.all);
        Some(all.guarantees.get(of)?.achieved())
    }

    /// What guarantees leave to all others; `None` without any.
    pub(crate) fn surplus(&self) -> Option<Surplus> {
        let is_any = !lock(&self.all).guarantees.is_empty();
        is_any.then(|| self.gate.surplus(reactor::now()))
    }
}

#[cfg(test)]
mod guarantee_tests;
#[cfg(test)]
mod tests;
