//! Reading the ring: the chain of frames from a position, and the proof that its end is one.

use super::frame::{self, ALIGN, HEADER_BYTES, Header, KIND_WRAP};
use super::media::JournalMedia;
use crate::error::JournalError;
use crate::record::Record;
use crate::types::{Checkpoint, Position};

/// Bytes read from the media at a time.
const WINDOW_BYTES: u64 = 1 << 20;

/// What a chain of frames holds.
pub(super) struct Chain {
    pub(super) records: Vec<(u64, Record)>,
    /// Where the reader looked for each record.
    pub(super) offsets: Vec<u64>,
    /// Where the next record goes.
    pub(super) end: Position,
}

/// Reads the records that follow a checkpoint, in order, up to the first frame that is not whole, not of
/// the checkpoint's epoch or not the next in sequence.
pub(super) fn replay(
    media: &dyn JournalMedia,
    ring_bytes: u64,
    payload_bytes_max: u64,
    checkpoint: Checkpoint,
) -> Result<Chain, JournalError> {
    let mut ring = Ring::new(media, ring_bytes, payload_bytes_max);
    let mut chain = Chain {
        records: Vec::new(),
        offsets: Vec::new(),
        end: checkpoint.position,
    };
    while let Some((header, offset)) = next_frame(&mut ring, checkpoint.epoch, chain.end)? {
        let payload = ring.payload(offset, &header)?;
        let record =
            Record::decode(header.kind, payload).map_err(|error| JournalError::Damaged {
                journal: media.name(),
                seq: header.seq,
                offset,
                evidence: format!(
                    "its checksum is right, but it is unknown to this version: {error}"
                ),
            })?;
        chain.records.push((header.seq, record));
        chain.offsets.push(chain.end.offset);
        let end = normalise(offset + header.frame_bytes(), ring_bytes);
        chain.end = Position {
            seq: header.seq + 1,
            offset: end,
        };
    }
    prove_end(&mut ring, checkpoint.epoch, chain.end)?;
    Ok(chain)
}

/// Where a reader or writer really goes that stands at `offset`: a rest without room for a header is
/// skipped.
pub(super) fn normalise(offset: u64, ring_bytes: u64) -> u64 {
    if ring_bytes - offset < HEADER_BYTES as u64 {
        0
    } else {
        offset
    }
}

/// The frame of record `at.seq`, and where it is; follows a WRAP frame.
fn next_frame(
    ring: &mut Ring<'_>,
    epoch: u32,
    at: Position,
) -> Result<Option<(Header, u64)>, JournalError> {
    let expected = |header: &Header| header.epoch == epoch && header.seq == at.seq;
    let Some(header) = ring.frame(at.offset)?.filter(expected) else {
        return Ok(None);
    };
    if header.kind != KIND_WRAP {
        return Ok(Some((header, at.offset)));
    }
    if at.offset == 0 {
        return Ok(None);
    }
    let header = ring
        .frame(0)?
        .filter(expected)
        .filter(|header| header.kind != KIND_WRAP);
    Ok(header.map(|header| (header, 0)))
}

/// Looks through the whole ring for a frame that could not exist if `end` were the end: one of this
/// epoch that was written when record `end.seq` was already stable, or one of a later epoch.
fn prove_end(ring: &mut Ring<'_>, epoch: u32, end: Position) -> Result<(), JournalError> {
    let mut offset = 0;
    while offset + HEADER_BYTES as u64 <= ring.bytes {
        let suspicious = ring.header(offset)?.filter(|header| {
            header.epoch > epoch
                || (header.epoch == epoch && header.seq > end.seq && header.stable >= end.seq)
        });
        if suspicious.is_some()
            && let Some(header) = ring.frame(offset)?
        {
            let journal = ring.media.name();
            return Err(if header.epoch > epoch {
                JournalError::StoreBehind {
                    journal,
                    found: header.epoch,
                    stored: epoch,
                }
            } else {
                JournalError::Damaged {
                    journal,
                    seq: end.seq,
                    offset: end.offset,
                    evidence: format!(
                        "record {} says that all up to {} were stable",
                        header.seq, header.stable
                    ),
                }
            });
        }
        offset += ALIGN as u64;
    }
    Ok(())
}

/// Buffered reads of frames.
struct Ring<'a> {
    media: &'a dyn JournalMedia,
    bytes: u64,
    payload_bytes_max: u64,
    window: Vec<u8>,
    window_offset: u64,
}

impl<'a> Ring<'a> {
    fn new(media: &'a dyn JournalMedia, bytes: u64, payload_bytes_max: u64) -> Self {
        Self {
            media,
            bytes,
            payload_bytes_max,
            window: Vec::new(),
            window_offset: 0,
        }
    }

    /// `len` bytes at `offset`; the caller has checked that they are inside the ring.
    fn slice(&mut self, offset: u64, len: u64) -> Result<&[u8], JournalError> {
        let window_end = self.window_offset + self.window.len() as u64;
        if offset < self.window_offset || offset + len > window_end {
            let read = len.max(WINDOW_BYTES).min(self.bytes - offset);
            self.window.resize(read as usize, 0);
            self.window_offset = offset;
            let result = self.media.read_at(offset, &mut self.window);
            if let Err(source) = result {
                self.window.clear();
                return Err(JournalError::Io {
                    journal: self.media.name(),
                    action: "read the journal",
                    source,
                });
            }
        }
        let start = (offset - self.window_offset) as usize;
        Ok(&self.window[start..start + len as usize])
    }

    /// What could be a header at `offset`, with a frame that fits behind it.
    fn header(&mut self, offset: u64) -> Result<Option<Header>, JournalError> {
        if offset + HEADER_BYTES as u64 > self.bytes {
            return Ok(None);
        }
        let (bytes, payload_bytes_max) = (self.bytes, self.payload_bytes_max);
        let header = Header::parse(self.slice(offset, HEADER_BYTES as u64)?);
        Ok(header.filter(|header| {
            u64::from(header.payload_bytes) <= payload_bytes_max
                && offset + header.frame_bytes() <= bytes
        }))
    }

    /// The header of a whole frame at `offset`.
    fn frame(&mut self, offset: u64) -> Result<Option<Header>, JournalError> {
        let Some(header) = self.header(offset)? else {
            return Ok(None);
        };
        let frame = self.slice(offset, header.frame_bytes())?;
        Ok(frame::is_whole(&header, frame).then_some(header))
    }

    fn payload(&mut self, offset: u64, header: &Header) -> Result<&[u8], JournalError> {
        self.slice(
            offset + HEADER_BYTES as u64,
            u64::from(header.payload_bytes),
        )
    }
}
