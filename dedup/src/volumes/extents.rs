//! Where a volume has data, and where two volumes differ: out of their maps alone.
//!
//! Guarantees:
//! * No data is read, and no map is brought into memory.
//! * What is in no range of [`Volume::extents`] reads as zeros. What is in no range of [`Volume::diff`] is equal in both.
//! * A look takes no longer under a lock than a command does, and its answer is bounded, whatever is mapped.
//! * Of each page of the maps, what both see at one moment between the beginning and the end of the call is compared.

use std::future::Future;
use std::pin::pin;

use drives::BLOCK_BYTES;
use futures_util::future::{Either, select};

use super::Volume;
use crate::metadata::volume::VolumeCore;
use crate::pool::Shared;
use crate::residency::lines::Lines;
use crate::sync::wait::yield_once;
use crate::{EngineError, Result};

/// Pages of maps that one look compares at most: 16 GiB of data.
const PAGES_MAX: usize = if cfg!(test) { 16 } else { 1 << 16 };

/// What reading some of the maps counts, in pages.
const READ: usize = 8;

/// Ranges of a part of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extents {
    /// First byte and how many: whole sub-blocks, in order, apart from each other.
    pub ranges: Vec<(u64, u64)>,
    /// The byte up to which was looked: what is behind it is not told.
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
        let found = Found::new(count_max);
        let mut found = walk(&self.shared, &[&self.core], (span.first, span.end), found).await?;
        found.upto = found.upto.min(offset + len);
        Ok(found)
    }

    /// The ranges from `offset` (a multiple of 4096) on that may differ between two volumes of a pool, at most
    /// `count_max` of them. What is behind the end of the smaller one counts as zeros. All other bytes are equal. What is
    /// in a range is mapped to different blocks, so it differs nearly always: a content is stored twice where it is not
    /// deduplicated, not yet, or in another domain. `upto` is the end of the larger one when all is told.
    ///
    /// # Errors
    /// `Invalid` if the offset is no multiple, `NotFound` if one of them was deleted; or the maps cannot be read.
    pub async fn diff(&self, other: &Self, offset: u64, count_max: usize) -> Result<Extents> {
        if !offset.is_multiple_of(BLOCK_BYTES as u64) {
            return Err(EngineError::invalid(format!(
                "{offset} is no multiple of {BLOCK_BYTES}"
            )));
        }
        self.differences(other, (offset, u64::MAX), count_max).await
    }

    /// The same for `len` bytes at `offset`, both multiples of the grain of this handle. Sub-blocks count whole, also where
    /// only a part of them is asked for.
    ///
    /// # Errors
    /// The range lies outside of this volume, or as of [`Self::diff`].
    pub async fn diff_within(
        &self,
        other: &Self,
        offset: u64,
        len: u64,
        count_max: usize,
    ) -> Result<Extents> {
        self.check(offset, len, u64::MAX)?;
        let end = offset + len;
        let mut found = self.differences(other, (offset, end), count_max).await?;
        found.upto = found.upto.min(end);
        Ok(found)
    }

    /// What differs from one byte to another, in whole sub-blocks, as far as one of both is that long.
    async fn differences(
        &self,
        other: &Self,
        (start, end): (u64, u64),
        count_max: usize,
    ) -> Result<Extents> {
        let cores = [&*self.core, &*other.core];
        if cores.iter().any(|core| core.compares_later()) {
            // A duplicate that turns out to be none gets a block of its own.
            self.shared.verify.caught_up().await?;
        }
        let size = self.core.size_bytes().max(other.core.size_bytes());
        let grain = BLOCK_BYTES as u64;
        let range = (start / grain, end.min(size).div_ceil(grain));
        walk(&self.shared, &cores, range, Found::new(count_max)).await
    }
}

/// Looks through maps in order, for what differs between two volumes or is mapped in one. While a part is compared, the
/// next one is read.
async fn walk(
    shared: &Shared,
    cores: &[&VolumeCore],
    (start, end): (u64, u64),
    found: Found,
) -> Result<Extents> {
    let mut look = Look {
        cores,
        start,
        end,
        at: start,
        seen: 0,
        found,
    };
    let mut ahead = None;
    // Volumes that change all the time may have to be read twice; each look comes further.
    while look.goes_on() {
        let read = |from| Lines::read(shared, cores, (from, end));
        let lines = match ahead.take() {
            Some(lines) => lines,
            None => read(look.at).await?,
        };
        let next = lines.end;
        let reading = match next < end {
            true => look.beside(&lines, Box::pin(read(next))).await?,
            false => {
                look.through(&lines).await?;
                continue;
            }
        };
        let is_wanted = look.goes_on() && look.at == next;
        ahead = match reading {
            _ if !is_wanted => None,
            Either::Left(reading) => Some(reading.await?),
            Either::Right(read) => Some(read?),
        };
    }
    let at = look.at.min(end);
    Ok(look.found.upto(at))
}

/// How far a look has come.
struct Look<'a> {
    cores: &'a [&'a VolumeCore],
    start: u64,
    end: u64,
    at: u64,
    /// Pages, those that were read counted too.
    seen: usize,
    found: Found,
}

impl Look<'_> {
    /// Whether there is more to see, and room for it.
    fn goes_on(&self) -> bool {
        let may = self.seen < PAGES_MAX || self.at == self.start;
        self.at < self.end && self.found.full_at.is_none() && may
    }

    /// Compares what was read, while another future runs; that is given back if it is not through.
    async fn beside<F: Future + Unpin>(
        &mut self,
        lines: &Lines<'_>,
        other: F,
    ) -> Result<Either<F, F::Output>> {
        match select(pin!(self.through(lines)), other).await {
            Either::Left((looked, other)) => looked.map(|()| Either::Left(other)),
            Either::Right((output, looking)) => {
                looking.await?;
                Ok(Either::Right(output))
            }
        }
    }

    /// Compares what was read, as far as that is what the volumes still see.
    async fn through(&mut self, lines: &Lines<'_>) -> Result<()> {
        self.seen += READ;
        while self.at < lines.end && self.goes_on() {
            let range = self.at..self.end;
            let add = |sub_block| {
                if range.contains(&sub_block) {
                    self.found.add(sub_block);
                }
            };
            let Some(now) = lines.see(self.cores, self.at, add)? else {
                break;
            };
            self.at = now.upto;
            self.seen += now.pages;
            yield_once().await;
        }
        yield_once().await;
        Ok(())
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
    fn new(count_max: usize) -> Self {
        Self {
            ranges: Vec::new(),
            count_max,
            full_at: None,
        }
    }

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

    /// In bytes, with the sub-block up to which was looked.
    fn upto(self, end: u64) -> Extents {
        let grain = BLOCK_BYTES as u64;
        let ranges = self.ranges.into_iter();
        Extents {
            ranges: ranges
                .map(|(first, count)| (first * grain, count * grain))
                .collect(),
            upto: self.full_at.unwrap_or(end).saturating_mul(grain),
        }
    }
}

#[cfg(test)]
mod tests;
