//! Where a volume has data, and where two volumes differ: out of their maps alone.
//!
//! Guarantees:
//! * No data is read, and no map is brought into memory.
//! * What is in no range of [`Volume::extents`] reads as zeros. What is in no range of [`Volume::diff`] is equal in both.
//! * A look takes no longer under a lock than a command does, and its answer is bounded, whatever is mapped.
//! * Of each page of the maps, what both see at one moment between the beginning and the end of the call is compared.

use std::collections::VecDeque;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;

use drives::BLOCK_BYTES;
use futures_util::future::{MaybeDone, maybe_done};
use futures_util::poll;

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

/// Sub-blocks of a part that is read at a time: of so many all is read even if each is mapped.
const SPAN: u64 = if cfg!(test) { 24 } else { 64 << 10 };

/// The same where maps have little: 16 GiB of data.
const SPAN_MAX: u64 = if cfg!(test) { 96 } else { 4 << 20 };

/// Parts that are read side by side, the next one that is looked at counted too.
const PARTS_MAX: usize = 3;

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

/// Looks through maps in order, for what differs between two volumes or is mapped in one. While a part is looked at, the
/// next ones are read.
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
        looks: 0,
        found,
    };
    let mut span = SPAN;
    // Parts that are being read, in order; there may be a gap before the first one.
    let mut ahead = VecDeque::new();
    let read = |from: u64, upto: u64| Part {
        from,
        upto,
        reading: Box::pin(maybe_done(Lines::read(shared, cores, (from, upto)))),
    };
    // Volumes that change all the time may have to be read twice; each look comes further.
    while look.goes_on() {
        let gap_end = ahead.front().map_or(end, |part: &Part<_>| part.from);
        if look.at < gap_end {
            let mut first = read(look.at, gap_end.min(look.at.saturating_add(span)));
            let _ = poll!(&mut first.reading);
            ahead.push_front(first);
        }
        while let Some(last) = ahead.back()
            && last.upto < end
            && ahead.len() < look.parts_wanted()
        {
            let mut next = read(last.upto, end.min(last.upto.saturating_add(span)));
            let _ = poll!(&mut next.reading);
            ahead.push_back(next);
        }
        let Some(mut part) = ahead.pop_front() else {
            break; // there is always one
        };
        let lines = part.lines().await?;
        // Where there is little to read it is read in larger parts.
        span = match lines.end < part.upto {
            true => (lines.end - part.from).max(SPAN),
            false if lines.is_small() => (2 * (part.upto - part.from)).clamp(span, SPAN_MAX),
            false => span,
        };
        look.through(&lines).await?;
    }
    let at = look.at.min(end);
    Ok(look.found.upto(at))
}

/// A part of maps that is being read, or was.
struct Part<F: Future> {
    from: u64,
    upto: u64,
    reading: Pin<Box<MaybeDone<F>>>,
}

impl<T, F: Future<Output = Result<T>>> Part<F> {
    /// What was read. Call it once.
    async fn lines(&mut self) -> Result<T> {
        self.reading.as_mut().await;
        let lines = self.reading.as_mut().take_output();
        lines.unwrap_or_else(|| Err(EngineError::internal("a part of maps was asked for twice")))
    }
}

/// How far a look has come.
struct Look<'a> {
    cores: &'a [&'a VolumeCore],
    start: u64,
    end: u64,
    at: u64,
    /// Pages, those that were read counted too.
    seen: usize,
    /// Parts that were looked at.
    looks: usize,
    found: Found,
}

impl Look<'_> {
    /// Whether there is more to see, and room for it.
    fn goes_on(&self) -> bool {
        let may = self.seen < PAGES_MAX || self.at == self.start;
        self.at < self.end && self.found.full_at.is_none() && may
    }

    /// How many parts are to be read now, with that which is looked at next: not more than there seems to be room for.
    fn parts_wanted(&self) -> usize {
        let (count, parts) = (self.found.ranges.len(), self.looks.max(1));
        let room = (self.found.count_max - count) * parts;
        room.div_ceil(count.max(1)).clamp(1, PARTS_MAX)
    }

    /// Compares what was read, as far as that is what the volumes still see.
    async fn through(&mut self, lines: &Lines<'_>) -> Result<()> {
        self.seen += READ;
        self.looks += 1;
        while self.at < lines.end && self.goes_on() {
            let (first, end) = (self.at, self.end);
            let add = |at: u64, count: u64| {
                let run = at.max(first)..end.min(at + count);
                if !run.is_empty() {
                    self.found.add(run);
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

    fn add(&mut self, run: Range<u64>) {
        if self.full_at.is_some() {
            return;
        }
        let has_room = self.ranges.len() < self.count_max;
        let len = run.end - run.start;
        match self.ranges.last_mut() {
            Some((first, count)) if *first + *count == run.start => *count += len,
            _ if has_room => self.ranges.push((run.start, len)),
            _ => self.full_at = Some(run.start),
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
