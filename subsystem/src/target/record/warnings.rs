//! The warnings about a pool that hosts get.

use dedup::PoolSummary;
use nvme::features::AsyncEventConfig;

use crate::controller::events::EventKind;

/// A fill level ends only when the pool is this much emptier, in percent, so that a pool at the level does not warn
/// again and again.
const HYSTERESIS_PERCENT: u8 = 1;

/// What is wrong with a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Warnings {
    /// Free space in percent: the spare of a target whose namespaces are thin.
    pub(crate) spare_percent: u8,
    /// Free space below which each level of `serve --warn-at` is reached, the first one first.
    thresholds: Vec<u8>,
    /// Levels that are reached.
    levels: usize,
    read_only: bool,
    damaged: bool,
}

/// What is to be told.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct News {
    pub(super) events: Vec<EventKind>,
    pub(super) texts: Vec<String>,
}

impl Warnings {
    pub(crate) fn of(pool: &PoolSummary) -> Self {
        let free = pool.capacity_bytes - pool.used_bytes.min(pool.capacity_bytes);
        let spare_percent = spare_percent(free, pool.capacity_bytes);
        let levels = pool.fill_warnings.iter();
        let thresholds: Vec<u8> = levels.map(|level| 100 - level.min(&100)).collect();
        Self {
            levels: levels_reached(&thresholds, spare_percent),
            spare_percent,
            thresholds,
            read_only: pool.is_read_only,
            damaged: pool.damaged_blocks > 0,
        }
    }

    /// Of a pool that another node serves: hosts hear of it there.
    pub(crate) fn unknown() -> Self {
        Self {
            spare_percent: 100,
            ..Self::default()
        }
    }

    /// Free space below which the first level is reached, in percent; 0 for a pool that never warns.
    pub(crate) fn spare_threshold(&self) -> u8 {
        self.thresholds.first().copied().unwrap_or(0)
    }

    /// The SMART log's critical warning.
    pub(crate) fn critical_warning(&self) -> u8 {
        let bits = [
            (self.levels > 0, AsyncEventConfig::SMART_SPARE),
            (self.damaged, AsyncEventConfig::SMART_UNRELIABLE),
            (self.read_only, AsyncEventConfig::SMART_READ_ONLY),
        ];
        let set = bits.into_iter().filter(|(is_set, _)| *is_set);
        // They are the low eight bits of the configuration of events.
        set.fold(0, |warning, (_, bit)| warning | bit.0 as u8)
    }

    /// The events of what is wrong now.
    pub(crate) fn events(&self) -> Vec<EventKind> {
        let mut events = Vec::new();
        if self.levels > 0 {
            events.push(EventKind::SpareBelowThreshold);
        }
        if self.read_only || self.damaged {
            events.push(EventKind::Unreliable);
        }
        events
    }

    /// Takes over the present warnings, and returns the new ones.
    pub(super) fn update(&mut self, now: &Self) -> News {
        let mut news = News::default();
        let mut next = now.clone();
        if now.levels > self.levels {
            news.events.push(EventKind::SpareBelowThreshold);
            let threshold = now.thresholds.get(now.levels - 1).copied().unwrap_or(0);
            news.texts.push(format!(
                "the pool fills up: {} % are free, less than {threshold} %",
                now.spare_percent
            ));
        } else {
            let with_margin = now.spare_percent.saturating_sub(HYSTERESIS_PERCENT);
            next.levels = levels_reached(&now.thresholds, with_margin).min(self.levels);
        }
        let unreliable = [
            (now.damaged, self.damaged, "blocks of the pool are damaged"),
            (now.read_only, self.read_only, "the pool takes no writes"),
        ];
        for (is_so, was_so, text) in unreliable {
            if is_so && !was_so {
                news.events.push(EventKind::Unreliable);
                news.texts.push(text.to_owned());
            }
        }
        *self = next;
        news
    }
}

fn spare_percent(free_bytes: u64, capacity_bytes: u64) -> u8 {
    match capacity_bytes {
        0 => 100,
        capacity => (u128::from(free_bytes) * 100 / u128::from(capacity)).min(100) as u8,
    }
}

fn levels_reached(thresholds: &[u8], spare_percent: u8) -> usize {
    let reached = thresholds.iter().filter(|below| spare_percent < **below);
    reached.count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(used_percent: u64) -> PoolSummary {
        PoolSummary {
            capacity_bytes: 100 << 20,
            used_bytes: used_percent << 20,
            fill_warnings: vec![80, 90],
            ..PoolSummary::default()
        }
    }

    #[test]
    fn the_spare_is_what_the_pool_has_left() {
        assert_eq!(spare_percent(1, 0), 100);
        assert_eq!(spare_percent(0, 100), 0);
        assert_eq!(spare_percent(u64::MAX / 2, u64::MAX), 49);
    }

    #[test]
    fn every_level_is_told_once_and_the_warning_stays_while_it_is_so() {
        let mut told = Warnings::default();
        let mut tell = |used| told.update(&Warnings::of(&pool(used))).events;
        assert_eq!(tell(80), []);
        assert_eq!(tell(81), [EventKind::SpareBelowThreshold]);
        assert_eq!(tell(82), []);
        // Hovering at the level says nothing new.
        assert_eq!(tell(80), []);
        assert_eq!(tell(81), []);
        assert_eq!(tell(95), [EventKind::SpareBelowThreshold]);
        assert_eq!(tell(50), []);
        assert_eq!(tell(99), [EventKind::SpareBelowThreshold]);
        let now = Warnings::of(&pool(99));
        assert_eq!((now.critical_warning(), now.spare_threshold()), (1, 20));
        assert_eq!(Warnings::of(&pool(80)).critical_warning(), 0);
    }

    #[test]
    fn a_pool_that_lost_data_or_takes_no_writes_is_unreliable() {
        let mut told = Warnings::default();
        let mut status = pool(1);
        assert_eq!(told.update(&Warnings::of(&status)), News::default());
        status.damaged_blocks = 1;
        let now = Warnings::of(&status);
        assert_eq!(now.critical_warning(), 4);
        assert_eq!(told.update(&now).events, [EventKind::Unreliable]);
        status.is_read_only = true;
        let now = Warnings::of(&status);
        assert_eq!(now.critical_warning(), 12);
        assert_eq!(now.events(), [EventKind::Unreliable]);
        assert_eq!(told.update(&now).events, [EventKind::Unreliable]);
        assert_eq!(told.update(&now).events, []);
    }

    #[test]
    fn a_pool_without_levels_never_warns_of_its_fill() {
        let status = PoolSummary {
            fill_warnings: Vec::new(),
            ..pool(100)
        };
        let now = Warnings::of(&status);
        assert_eq!((now.spare_threshold(), now.critical_warning()), (0, 0));
    }
}
