//! Warnings when the pool fills up, or the file system that its folder is on.

use crate::pool::Shared;
use crate::pool::fill_level::{is_plenty, level_reached, percent};
use crate::sync::wait::lock;

/// A level counts as left only when the pool is this much emptier, in percent, so that a pool that
/// hovers at a level does not warn again and again.
const HYSTERESIS_PERCENT: u8 = 1;

/// What there is to tell of a pool's fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fill {
    /// It reached this level, in percent.
    Reached(u8),
    /// It is below all levels again.
    Left,
}

/// What was warned of last.
#[derive(Default)]
pub(crate) struct FillWatch {
    warned: Option<u8>,
}

impl FillWatch {
    /// What to tell now: each level is named once when it is reached.
    fn look(&mut self, levels: &[u8], used: u64, capacity: u64) -> Option<Fill> {
        let reached = level_reached(levels, used, capacity);
        if reached > self.warned {
            self.warned = reached;
            return Some(Fill::Reached(reached?));
        }
        let before = self.warned;
        let with_margin = used.saturating_add(capacity / 100 * u64::from(HYSTERESIS_PERCENT));
        self.warned = level_reached(levels, with_margin, capacity).min(self.warned);
        (before.is_some() && self.warned.is_none()).then_some(Fill::Left)
    }

    /// Warns in the log if there is reason to.
    pub(crate) fn watch(&mut self, shared: &Shared) {
        let (used, capacity) = {
            let state = lock(&shared.state);
            let space = state.space();
            (space.used(), space.capacity())
        };
        match self.look(&shared.fill_warnings(), used, capacity) {
            Some(Fill::Reached(level)) => tracing::warn!(
                event = "alert",
                level_percent = level,
                used_bytes = used * crate::SUB_BLOCK_BYTES as u64,
                capacity_bytes = capacity * crate::SUB_BLOCK_BYTES as u64,
                "the pool fills up: delete or trim data, or add a drive; when it is full, writes of new data fail"
            ),
            Some(Fill::Left) => tracing::info!(
                event = "alert",
                used_percent = percent(used, capacity),
                "over: the pool is below all levels that are warned of"
            ),
            None => {}
        }
    }

    /// Warns in the log if there is reason to, of the file system of the pool's folder.
    pub(crate) fn watch_folder(&mut self, shared: &Shared) {
        let Some(room) = lock(&shared.folder).clone() else {
            return;
        };
        let used = room.total_bytes.saturating_sub(room.available_bytes);
        let used = if is_plenty(&room) { 0 } else { used };
        match self.look(&shared.fill_warnings(), used, room.total_bytes) {
            Some(Fill::Reached(level)) => tracing::warn!(
                event = "alert",
                level_percent = level,
                available_bytes = room.available_bytes,
                folder = %room.dir.display(),
                "the file system of the pool's folder fills up: free space there; when it is full, writes of new \
                 data fail"
            ),
            Some(Fill::Left) => tracing::info!(
                event = "alert",
                available_bytes = room.available_bytes,
                "over: the file system of the pool's folder is below all levels that are warned of"
            ),
            None => {}
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
        assert_eq!(warned(800), Some(Fill::Reached(80)));
        assert_eq!(warned(801), None);
        // Hovering at the level says nothing new.
        assert_eq!(warned(795), None);
        assert_eq!(warned(805), None);
        // A jump names the highest level only.
        assert_eq!(warned(960), Some(Fill::Reached(95)));
        assert_eq!(warned(920), None);
        assert_eq!(warned(950), Some(Fill::Reached(95)));
        assert_eq!(warned(100), Some(Fill::Left));
        assert_eq!(warned(90), None);
        assert_eq!(warned(850), Some(Fill::Reached(80)));
        assert_eq!(warned(900), Some(Fill::Reached(90)));
    }
}
