//! Warnings when the pool fills up, or the file system that its folder is on.

use meta::FolderRoom;

use crate::engine::Shared;
use crate::wait::lock;

/// A level counts as left only when the pool is this much emptier, in percent, so that a pool that
/// hovers at a level does not warn again and again.
const HYSTERESIS_PERCENT: u8 = 1;

/// How full a pool is: 100 when nothing is free, and only then.
pub(crate) fn percent(used: u64, capacity: u64) -> u64 {
    let percent = u128::from(used) * 100 / u128::from(capacity.max(1));
    u64::try_from(percent).unwrap_or(100)
}

/// The highest of the levels (in percent, in order) that a pool has reached.
pub(crate) fn level_reached(levels: &[u8], used: u64, capacity: u64) -> Option<u8> {
    let percent = percent(used, capacity);
    let mut reached = levels.iter().filter(|level| u64::from(**level) <= percent);
    reached.next_back().copied()
}

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
            (state.space.used(), state.space.capacity())
        };
        match self.look(&shared.config.fill_warnings, used, capacity) {
            Some(Fill::Reached(level)) => tracing::warn!(
                level_percent = level,
                used_bytes = used * crate::SUB_BLOCK_BYTES as u64,
                capacity_bytes = capacity * crate::SUB_BLOCK_BYTES as u64,
                "the pool fills up: delete or trim data, or add a drive; when it is full, writes of new data fail"
            ),
            Some(Fill::Left) => tracing::info!(
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
        match self.look(&shared.config.fill_warnings, used, room.total_bytes) {
            Some(Fill::Reached(level)) => tracing::warn!(
                level_percent = level,
                available_bytes = room.available_bytes,
                folder = %room.dir.display(),
                "the file system of the pool's folder fills up: free space there; when it is full, writes of new \
                 data fail"
            ),
            Some(Fill::Left) => tracing::info!(
                available_bytes = room.available_bytes,
                "over: the file system of the pool's folder is below all levels that are warned of"
            ),
            None => {}
        }
    }
}

/// The metadata grows slowly: with so many bytes to spare, a large file system does not fill up, whatever share of it
/// is in use.
const PLENTY_BYTES: u64 = 4 << 30;

fn is_plenty(room: &FolderRoom) -> bool {
    room.available_bytes >= PLENTY_BYTES
}

/// The highest of the levels that the file system of the pool's folder has reached.
pub(crate) fn folder_level(levels: &[u8], room: &FolderRoom) -> Option<u8> {
    let used = room.total_bytes.saturating_sub(room.available_bytes);
    level_reached(levels, used, room.total_bytes).filter(|_| !is_plenty(room))
}

impl Shared {
    /// Looks how much room the metadata has: without any, no new data is taken. Blocks.
    pub(crate) fn look_at_folder(&self) {
        let room = self.store.tend();
        let level = room
            .as_ref()
            .and_then(|room| folder_level(&self.config.fill_warnings, room));
        let is_short = room.as_ref().is_some_and(|room| room.is_short);
        self.troubles.folder(room.as_ref(), level);
        *lock(&self.folder) = room;
        lock(&self.state).space.withhold(is_short);
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

    #[test]
    fn a_pool_without_levels_never_warns() {
        assert_eq!(level_reached(&[], 10, 10), None);
        assert_eq!(level_reached(&[0, 100], 10, 10), Some(100));
        assert_eq!(level_reached(&[80], 0, 0), None);
    }
}
