//! Where a volume has data: its mapped ranges, out of the maps alone.
//!
//! Guarantees:
//! * What is in no range reads as zeros. Nothing is read but maps.
//! * A look takes no longer under a lock than any command, and its answer is bounded, whatever is mapped.

use drives::BLOCK_BYTES;

use super::Volume;
use crate::metadata::page_map::View;
use crate::residency::pages::window;
use crate::sync::wait::{lock, yield_once};
use crate::{EngineError, Result};

/// Mapped sub-blocks that one look passes at most: 4 GiB of data.
const LOOKED_AT_MAX: u64 = 1 << 20;

/// Mapped sub-blocks that are passed with the state locked.
const STEP: usize = 512;

/// The mapped ranges of a part of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extents {
    /// First byte and how many: whole sub-blocks, in order, apart from each other.
    pub ranges: Vec<(u64, u64)>,
    /// The byte up to which was looked: what is mapped behind it is not told.
    pub upto: u64,
}

impl Volume {
    /// The mapped ranges of `len` bytes at `offset` (both multiples of the LBA size), at most `count_max` of them.
    /// Sub-blocks count whole, also where only a part of them is asked for.
    ///
    /// # Errors
    /// The range lies outside of the volume, or its maps cannot be read.
    pub async fn extents(&self, offset: u64, len: u64, count_max: usize) -> Result<Extents> {
        let span = self.check(offset, len, u64::MAX)?;
        let mut found = Found {
            ranges: Vec::new(),
            count_max,
            full_at: None,
        };
        let (mut at, mut seen) = (span.first, 0);
        while at < span.end && found.full_at.is_none() && seen < LOOKED_AT_MAX {
            let (range, map) = ((at, span.end), self.core.map());
            let visible = window(&self.shared, map, range, View::Visible);
            let deleted = || EngineError::not_found(format!("volume {} was deleted", self.core.id));
            let window = visible.await?.ok_or_else(deleted)?;
            at = {
                let state = lock(&self.shared.state);
                let entry = state.active(self.core.id)?;
                if entry.map.id() != map {
                    // A snapshot or a rollback came in between: the window is not on this map.
                    continue;
                }
                let mut mapped = entry.map.range(at, window.end, View::Visible);
                // What is being trimmed is still mapped, and reads as zeros.
                mapped
                    .by_ref()
                    .take(STEP)
                    .filter(|(sub_block, _)| !entry.info.is_trimming(*sub_block))
                    .for_each(|(sub_block, _)| found.add(sub_block));
                seen += STEP as u64;
                mapped.next().map_or(window.end, |(next, _)| next)
            };
            drop(window);
            yield_once().await;
        }
        let grain = BLOCK_BYTES as u64;
        let upto = found.full_at.unwrap_or(at);
        Ok(Extents {
            ranges: found
                .ranges
                .iter()
                .map(|(first, count)| (first * grain, count * grain))
                .collect(),
            upto: upto.saturating_mul(grain).min(offset + len),
        })
    }
}

/// Runs of sub-blocks.
struct Found {
    ranges: Vec<(u64, u64)>,
    count_max: usize,
    /// The first sub-block for which there was no room.
    full_at: Option<u64>,
}

impl Found {
    fn add(&mut self, sub_block: u64) {
        if self.full_at.is_some() {
            return;
        }
        let has_room = self.ranges.len() < self.count_max;
        match self.ranges.last_mut() {
            Some((first, count)) if *first + *count == sub_block => *count += 1,
            _ if has_room => self.ranges.push((sub_block, 1)),
            _ => self.full_at = Some(sub_block),
        }
    }
}
