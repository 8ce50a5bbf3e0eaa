//! What the ring still holds of the past: records that were released long ago, and are not overwritten yet.
//!
//! A store that is damaged is rebuilt with them. Each record ends where the next one begins, and its sequence number
//! is one less: so they are found from the last one backwards, whatever epochs they are of.

use std::collections::HashMap;

use super::JournalConfig;
use super::frame::{ALIGN, Header, KIND_WRAP};
use super::media::JournalMedia;
use super::replay::{Ring, normalise};
use crate::error::JournalError;
use crate::record::Record;
use crate::types::Position;

/// Sequence numbers and epochs beyond are no frames: they only look like some.
const SEQ_LIKELY: u64 = 1 << 48;
const EPOCH_LIKELY: u32 = 1 << 24;

/// Records without a gap, up to a position.
#[derive(Debug, Default)]
pub struct History {
    /// The oldest first.
    pub records: Vec<(u64, Record)>,
    /// Where the next one would be.
    pub end: Option<Position>,
    /// Epoch of the last one.
    pub epoch: u32,
}

impl History {
    /// Reads the records before `end`, which is a position and the epoch of the record before it; without that, the
    /// last ones that there are.
    ///
    /// # Errors
    /// [`JournalError::Io`] if the media cannot be read.
    pub fn read(
        media: &dyn JournalMedia,
        config: JournalConfig,
        end: Option<(Position, u32)>,
    ) -> Result<Self, JournalError> {
        let capacity = media.capacity();
        let ring_bytes = capacity - capacity % ALIGN as u64;
        let mut ring = Ring::new(ring_bytes, u64::from(config.payload_bytes_max));
        let frames = Frames::find(media, &mut ring)?;
        let Some((end, epoch)) = end.or_else(|| frames.end(ring_bytes)) else {
            return Ok(Self::default());
        };
        let mut history = Self {
            records: Vec::new(),
            end: Some(end),
            epoch,
        };
        let (mut looks, mut next) = (vec![end.offset], (end.seq, epoch));
        while let Some((offset, header)) = frames.before(&looks, next) {
            let payload = ring.payload(media, offset, &header)?;
            let Ok(record) = Record::decode(header.kind, payload) else {
                break;
            };
            history.records.push((header.seq, record));
            next = (header.seq, header.epoch);
            looks = vec![offset];
            if offset == 0 {
                looks.extend(frames.wraps.get(&header.seq).into_iter().flatten());
            }
        }
        history.records.reverse();
        Ok(history)
    }
}

/// All whole frames of a ring.
struct Frames {
    /// Records by where they end.
    by_end: HashMap<u64, Vec<(u64, Header)>>,
    /// Where frames are that lead to record so-and-so at the beginning of the ring.
    wraps: HashMap<u64, Vec<u64>>,
}

impl Frames {
    fn find(media: &dyn JournalMedia, ring: &mut Ring) -> Result<Self, JournalError> {
        let is_likely = |header: &Header| {
            (1..SEQ_LIKELY).contains(&header.seq)
                && header.stable <= header.seq
                && header.epoch < EPOCH_LIKELY
        };
        let mut frames = Self {
            by_end: HashMap::new(),
            wraps: HashMap::new(),
        };
        let mut offset = 0;
        while let Some(found) = ring.find_header(media, offset, is_likely)? {
            let Some(header) = ring.frame(media, found)? else {
                offset = found + ALIGN as u64;
                continue;
            };
            offset = found + header.frame_bytes();
            if header.kind == KIND_WRAP {
                frames.wraps.entry(header.seq).or_default().push(found);
            } else {
                let end = normalise(offset, ring.bytes());
                frames.by_end.entry(end).or_default().push((found, header));
            }
        }
        Ok(frames)
    }

    /// Where the last record ends, and its epoch.
    fn end(&self, ring_bytes: u64) -> Option<(Position, u32)> {
        let all = self.by_end.values().flatten();
        let (offset, last) = all.max_by_key(|(_, header)| (header.epoch, header.seq))?;
        let end = Position {
            seq: last.seq + 1,
            offset: normalise(offset + last.frame_bytes(), ring_bytes),
        };
        Some((end, last.epoch))
    }

    /// The record before the one with this number and epoch that a reader looks for at one of these offsets.
    fn before(&self, looks: &[u64], (seq, epoch): (u64, u32)) -> Option<(u64, Header)> {
        let ends = looks.iter().filter_map(|look| self.by_end.get(look));
        let fitting = ends
            .flatten()
            .filter(|(_, header)| header.seq + 1 == seq && header.epoch <= epoch);
        fitting.max_by_key(|(_, header)| header.epoch).copied()
    }
}
