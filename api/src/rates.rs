//! What hosts did to each volume in a second, of late.
//!
//! Guarantee: a rate is the mean between two looks, which are [`LOOK_SECONDS`] or more apart, so that two readers at one
//! time see the same. A volume that was not there at both has none.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Instant;

use reactor::lock_whole;
use serde::{Deserialize, Serialize};
use subsystem::figures::IoFigures;
use uuid::Uuid;

/// How often is looked, in seconds.
pub const LOOK_SECONDS: u64 = 5;

/// What hosts did to a volume in a second, as the mean of the last seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeRates {
    /// The seconds that it is the mean of.
    pub over_seconds: u64,
    /// Read commands a second.
    pub read_commands: u64,
    /// Write commands a second.
    pub write_commands: u64,
    /// Bytes a second that were read.
    pub read_bytes: u64,
    /// Bytes a second that hosts sent.
    pub written_bytes: u64,
}

/// The rates of all volumes.
#[derive(Debug, Default)]
pub struct Rates(Mutex<Looks>);

#[derive(Debug, Default)]
struct Looks {
    last: Option<(Instant, HashMap<Uuid, IoFigures>)>,
    rates: HashMap<Uuid, VolumeRates>,
}

impl Rates {
    /// Whether it is time to look.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        let looks = lock_whole(&self.0);
        let last = looks.last.as_ref();
        last.is_none_or(|(at, _)| now.duration_since(*at).as_secs() >= LOOK_SECONDS)
    }

    /// Takes what hosts did to the volumes since the daemon started.
    pub(crate) fn look(&self, now: Instant, figures: HashMap<Uuid, IoFigures>) {
        let mut looks = lock_whole(&self.0);
        if let Some((at, before)) = &looks.last {
            let millis = u64::try_from(now.duration_since(*at).as_millis()).unwrap_or(u64::MAX);
            let both = figures.iter().filter_map(|(volume, later)| {
                Some((*volume, between(before.get(volume)?, later, millis)))
            });
            looks.rates = both.collect();
        }
        looks.last = Some((now, figures));
    }

    /// Those of a volume.
    pub(crate) fn of(&self, volume: Uuid) -> Option<VolumeRates> {
        lock_whole(&self.0).rates.get(&volume).copied()
    }
}

fn between(before: &IoFigures, later: &IoFigures, millis: u64) -> VolumeRates {
    let rate = |of: fn(&IoFigures) -> u64| {
        let done = u128::from(of(later).saturating_sub(of(before)));
        u64::try_from(done * 1000 / u128::from(millis.max(1))).unwrap_or(u64::MAX)
    };
    VolumeRates {
        over_seconds: millis.div_ceil(1000),
        read_commands: rate(|it| it.read_commands),
        write_commands: rate(|it| it.write_commands),
        read_bytes: rate(|it| it.read_bytes),
        written_bytes: rate(|it| it.written_bytes),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn rates_are_the_mean_between_two_looks_and_a_new_volume_has_none() {
        let (rates, begin) = (Rates::default(), Instant::now());
        let (old, new) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let figures = |reads: u64| IoFigures {
            read_commands: reads,
            read_bytes: reads * 4096,
            ..IoFigures::default()
        };
        assert!(rates.is_due(begin));
        rates.look(begin, HashMap::from([(old, figures(100))]));
        assert_eq!(rates.of(old), None, "one look has no rate");
        let later = begin + Duration::from_secs(LOOK_SECONDS);
        assert!(!rates.is_due(later - Duration::from_millis(1)) && rates.is_due(later));
        rates.look(
            later,
            HashMap::from([(old, figures(600)), (new, figures(7))]),
        );
        let wanted = VolumeRates {
            over_seconds: 5,
            read_commands: 100,
            read_bytes: 409_600,
            ..VolumeRates::default()
        };
        assert_eq!(rates.of(old), Some(wanted));
        assert_eq!(rates.of(new), None);
        // Figures that begin again, as those of a volume that came back, are no rate below zero.
        rates.look(
            later + Duration::from_secs(10),
            HashMap::from([(old, figures(0))]),
        );
        assert_eq!(rates.of(old).map(|it| it.read_commands), Some(0));
    }
}
