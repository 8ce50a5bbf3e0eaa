//! How full a pool is, and the file system that its folder is on.

use meta::FolderRoom;

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

/// The metadata grows slowly: with so many bytes to spare, a large file system does not fill up, whatever share of it
/// is in use.
const PLENTY_BYTES: u64 = 4 << 30;

/// Whether a file system has so much to spare.
pub(crate) fn is_plenty(room: &FolderRoom) -> bool {
    room.available_bytes >= PLENTY_BYTES
}

/// The highest of the levels that the file system of the pool's folder has reached.
pub(crate) fn folder_level(levels: &[u8], room: &FolderRoom) -> Option<u8> {
    let used = room.total_bytes.saturating_sub(room.available_bytes);
    level_reached(levels, used, room.total_bytes).filter(|_| !is_plenty(room))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_without_levels_never_warns() {
        assert_eq!(level_reached(&[], 10, 10), None);
        assert_eq!(level_reached(&[0, 100], 10, 10), Some(100));
        assert_eq!(level_reached(&[80], 0, 0), None);
    }
}
