//! What of a volume cannot be read: looked for, told, and made so by a host.
//!
//! Guarantees:
//! * A sub-block that a host marks gets a block of its own, with a checksum that cannot match: reads of it
//!   are errors until it is written again or given back, also after a restart or a power loss. Nothing
//!   else refers to that block, so no other sub-block of the same content is harmed.
//! * Looking takes no longer under a lock than any command, however much there is to look at.

use drives::BLOCK_BYTES;

use super::Volume;
use crate::content::fingerprint;
use crate::io::MAX_COMMAND_BYTES;
use crate::io::batcher::mark_sub_blocks;
use crate::io::prepare::bring_in_to_write;
use crate::io::prepare::ready_to_map;
use crate::io::read::{Piece, read_piece};
use crate::io::span::Span;
use crate::metadata::page_map::View;
use crate::residency::pages::window;
use crate::sync::wait::{lock, yield_once};
use crate::{EngineError, Result};

/// What a marked block holds, over and over.
const MARK: &[u8; 64] = b"Onefold: a host marked this as uncorrectable; nothing is lost. \n";

/// Sub-blocks of a volume that cannot be read, as bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unreadable {
    /// First byte and how many: whole sub-blocks, in order, apart from each other.
    pub ranges: Vec<(u64, u64)>,
    /// There are more behind them.
    pub has_more: bool,
}

impl Volume {
    /// Reads a range of any length (offset and length are multiples of the LBA size) and compares what is
    /// stored with its checksums. `Corrupt` names the first byte that is damaged.
    pub async fn verify(&self, offset: u64, len: u64) -> Result<()> {
        let span = self.check(offset, len, u64::MAX)?;
        let count_max = span.count().min(MAX_COMMAND_BYTES / BLOCK_BYTES);
        let mut bounce = self.shared.bounce(count_max * BLOCK_BYTES).await;
        let mut at = span.first;
        while at < span.end {
            let piece = Piece {
                start: at,
                count: count_max.min((span.end - at) as usize),
                buffer_offset: 0,
            };
            let end = at + piece.count as u64;
            let guard = self.core.range_lock.shared(at, end).await;
            let (result, back) = read_piece(&self.shared, &self.core, piece, bounce).await;
            drop(guard);
            result?;
            bounce = back;
            at = end;
            yield_once().await;
        }
        Ok(())
    }

    /// Makes whole sub-blocks unreadable (offset and length are multiples of theirs, at most
    /// [`MAX_COMMAND_BYTES`]) until they are written or given back. Survives a power loss when it
    /// returns `Ok`.
    pub async fn mark_unreadable(&self, offset: u64, len: u64) -> Result<()> {
        let span = self.check(offset, len, MAX_COMMAND_BYTES as u64)?;
        if !span.is_whole() {
            return Err(EngineError::invalid(format!(
                "volume `{}`: {len} bytes at {offset} are not whole sub-blocks of {BLOCK_BYTES} bytes; others \
                 would become unreadable with them",
                self.info().name
            )));
        }
        if len == 0 {
            return Ok(());
        }
        let mut marks = self.shared.bounce(len as usize).await;
        for place in marks.chunks_exact_mut(MARK.len()) {
            place.copy_from_slice(MARK);
        }
        let crc32c = !fingerprint::crc32c(&fingerprint::split(&marks)[0]);
        let guard = self.core.range_lock.exclusive(span.first, span.end).await;
        ready_to_map(&self.shared, &self.core, span).await?;
        let marked = mark_sub_blocks(&self.shared, &self.core, guard, span.first, marks);
        let result = marked.await.0;
        // A record that is not durable would be taken back: nothing proves these blocks.
        self.finish(result, true).await?;
        self.list_marked(span, crc32c).await
    }

    /// What was marked is told from now on, before anybody reads it.
    async fn list_marked(&self, span: Span, crc32c: u32) -> Result<()> {
        let _guard = self.core.range_lock.shared(span.first, span.end).await;
        let shared = &self.shared;
        bring_in_to_write(shared, &self.core, span.first, span.end).await?;
        let state = lock(&shared.state);
        if let Some(entry) = state.volumes.get(&self.core.id) {
            let map = entry.map();
            for (_, mapping) in map.range(span.first, span.end, View::Visible) {
                if let Some(info) = state.blocks.look(mapping.pba)
                    && !info.fingerprint.is_some()
                    && info.crc32c == crc32c
                {
                    shared.list_damage(mapping.pba, &info);
                }
            }
        }
        Ok(())
    }

    /// What of a range is known to be unreadable, at most `count_max` parts of it. What nobody read or
    /// scrubbed since it was damaged is not known: [`Volume::verify`] looks.
    pub async fn unreadable(&self, offset: u64, len: u64, count_max: usize) -> Result<Unreadable> {
        let span = self.check(offset, len, u64::MAX)?;
        let mut found = Unreadable::default();
        let mut at = span.first;
        while at < span.end && lock(&self.shared.damage).count() > 0 {
            let range = (at, span.end);
            let visible = window(&self.shared, self.core.map(), range, View::Visible);
            let Some(window) = visible.await? else {
                return Err(EngineError::not_found(format!(
                    "volume {} was deleted",
                    self.core.id
                )));
            };
            at = {
                let state = lock(&self.shared.state);
                let damage = lock(&self.shared.damage);
                state.each_mapping(self.core.id, at, window.end, |_, sub_block, pba| {
                    if damage.contains(pba) {
                        found.add(sub_block * BLOCK_BYTES as u64, count_max);
                    }
                })
            };
            drop(window);
            if found.has_more {
                break;
            }
            yield_once().await;
        }
        Ok(found)
    }
}

impl Unreadable {
    fn add(&mut self, offset: u64, count_max: usize) {
        if self.has_more {
            return;
        }
        if let Some((first, bytes)) = self.ranges.last_mut()
            && *first + *bytes == offset
        {
            *bytes += BLOCK_BYTES as u64;
        } else if self.ranges.len() < count_max {
            self.ranges.push((offset, BLOCK_BYTES as u64));
        } else {
            self.has_more = true;
        }
    }
}
