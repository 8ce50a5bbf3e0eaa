//! Warnings when the pool fills up.

use crate::engine::Shared;
use crate::wait::lock;

/// A level counts as left only when the pool is this much emptier, in percent, so that a pool that
/// hovers at a level does not warn again and again.
const HYSTERESIS_PERCENT: u8 = 1;

/// The highest of the levels (in percent, in order) that a pool has reached.
pub(crate) fn level_reached(levels: &[u8], used: u64, capacity: u64) -> Option<u8> {
    let percent = u128::from(used) * 100 / u128::from(capacity.max(1));
    let mut reached = levels.iter().filter(|level| u128::from(**level) <= percent);
    reached.next_back().copied()
}

/// What was warned of last.
#[derive(Default)]
pub(crate) struct FillWatch {
    warned: Option<u8>,
}

impl FillWatch {
    /// The level to warn of now: each is named once when it is reached.
    fn look(&mut self, levels: &[u8], used: u64, capacity: u64) -> Option<u8> {
        let reached = level_reached(levels, used, capacity);
        if reached > self.warned {
            self.warned = reached;
            return reached;
        }
        let with_margin = used.saturating_add(capacity / 100 * u64::from(HYSTERESIS_PERCENT));
        self.warned = level_reached(levels, with_margin, capacity).min(self.warned);
        None
    }

    /// Warns in the log if there is reason to.
    pub(crate) fn watch(&mut self, shared: &Shared) {
        let (used, capacity) = {
            let state = lock(&shared.state);
            (state.space.used(), state.space.capacity())
        };
        if let Some(level) = self.look(&shared.config.fill_warnings, used, capacity) {
            tracing::warn!(
                level_percent = level,
                used_bytes = used * crate::SUB_BLOCK_BYTES as u64,
                capacity_bytes = capacity * crate::SUB_BLOCK_BYTES as u64,
                "the pool fills up: delete or trim data, or add a drive; when it is full, writes of new data fail"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_level_is_warned_of_once_when_it_is_crossed() {
        let levels = [80, 90, 95];
        let mut watch = FillWatch::default();
        let mut warned = |used| watch.look(&levels, used, 1000);
        assert_eq!(warned(799), None);
        assert_eq!(warned(800), Some(80));
        assert_eq!(warned(801), None);
        // Hovering at the level says nothing new.
        assert_eq!(warned(795), None);
        assert_eq!(warned(805), None);
        // A jump names the highest level only.
        assert_eq!(warned(960), Some(95));
        assert_eq!(warned(920), None);
        assert_eq!(warned(950), Some(95));
        assert_eq!(warned(100), None);
        assert_eq!(warned(850), Some(80));
        assert_eq!(warned(900), Some(90));
    }

    #[test]
    fn a_pool_without_levels_never_warns() {
        assert_eq!(level_reached(&[], 10, 10), None);
        assert_eq!(level_reached(&[0, 100], 10, 10), Some(100));
        assert_eq!(level_reached(&[80], 0, 0), None);
    }
}
