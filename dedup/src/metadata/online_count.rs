//! The count of an online check: mappings to the blocks of a window, kept true while commands change them.

use meta::{MapId, Pba};

/// Mappings to the blocks of a window, counted so far.
pub(crate) struct OnlineCount {
    pub(crate) first: Pba,
    pub(crate) counts: Vec<u32>,
    /// Everything before this map and sub-block is counted.
    pub(crate) cursor: (MapId, u64),
}

impl OnlineCount {
    pub(crate) fn count(&mut self, pba: Pba) -> Option<&mut u32> {
        let at = pba.0.checked_sub(self.first.0)?;
        self.counts.get_mut(usize::try_from(at).ok()?)
    }

    /// A mapping changes.
    pub(crate) fn changed(&mut self, map: MapId, at: u64, old: Option<Pba>, new: Option<Pba>) {
        if (map, at) >= self.cursor {
            return;
        }
        if let Some(count) = old.and_then(|pba| self.count(pba)) {
            *count = count.saturating_sub(1);
        }
        if let Some(count) = new.and_then(|pba| self.count(pba)) {
            *count += 1;
        }
    }
}
