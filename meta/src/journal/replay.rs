//! Reading the ring: the chain of frames from a position, and the proof that its end is one.

use std::sync::Arc;

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
    /// Where the record before the checkpoint is, if there are no records after it and the checkpoint
    /// asks for that one.
    pub(super) last: Option<u64>,
}

/// Reads the records that follow a checkpoint, in order, up to the first frame that is not whole, not of
/// the checkpoint's epoch or not the next in sequence.
pub(super) fn replay(
    media: &dyn JournalMedia,
    ring_bytes: u64,
    payload_bytes_max: u64,
    checkpoint: Checkpoint,
) -> Result<Chain, JournalError> {
    let mut ring = Ring::new(ring_bytes, payload_bytes_max);
    let mut chain = Chain {
        records: Vec::new(),
        offsets: Vec::new(),
        end: checkpoint.position,
        last: None,
    };
    while let Some((record, end)) = next_record(media, &mut ring, checkpoint.epoch, chain.end)? {
        chain.records.push((chain.end.seq, record));
        chain.offsets.push(chain.end.offset);
        chain.end = end;
    }
    prove_end(media, &mut ring, checkpoint.epoch, chain.end)?;
    // A record after the checkpoint was written after all those before it.
    if chain.records.is_empty() {
        chain.last = find_last(media, &mut ring, checkpoint)?;
    }
    Ok(chain)
}

/// Where the record before the checkpoint is, which was stable before the store took the checkpoint and
/// is not overwritten before there are records after it ([`Journal`](super::Journal)). Without it, the
/// journal is of an earlier moment than the store: what it lacks is lost, and must not pass for an end.
fn find_last(
    media: &dyn JournalMedia,
    ring: &mut Ring,
    checkpoint: Checkpoint,
) -> Result<Option<u64>, JournalError> {
    let Some(epoch) = checkpoint.last_epoch else {
        return Ok(None);
    };
    let Position { seq, offset: end } = checkpoint.position;
    let is_last = |header: &Header| {
        header.epoch == epoch && header.seq == seq - 1 && header.kind != KIND_WRAP
    };
    // It ends where the checkpoint is: at the beginning of the ring, if the rest behind it is too short.
    let ends_by = if end == 0 { ring.bytes } else { end };
    let longest = frame::frame_bytes(ring.payload_bytes_max) + HEADER_BYTES as u64;
    let mut offset = ends_by.saturating_sub(longest);
    while let Some(found) = ring.find_header(media, offset, is_last)? {
        let whole = ring.frame(media, found)?;
        let is_there = |header: Header| normalise(found + header.frame_bytes(), ring.bytes) == end;
        if whole.is_some_and(is_there) {
            return Ok(Some(found));
        }
        offset = found + ALIGN as u64;
    }
    Err(JournalError::JournalBehind {
        journal: media.name(),
        seq: seq - 1,
    })
}

/// The record at a position, and the position after it.
fn next_record(
    media: &dyn JournalMedia,
    ring: &mut Ring,
    epoch: u32,
    at: Position,
) -> Result<Option<(Record, Position)>, JournalError> {
    let Some((header, offset)) = next_frame(media, ring, epoch, at)? else {
        return Ok(None);
    };
    let payload = ring.payload(media, offset, &header)?;
    let record = Record::decode(header.kind, payload).map_err(|error| JournalError::Damaged {
        journal: media.name(),
        seq: header.seq,
        offset,
        evidence: format!("its checksum is right, but it is unknown to this version: {error}"),
    })?;
    let end = Position {
        seq: header.seq + 1,
        offset: normalise(offset + header.frame_bytes(), ring.bytes),
    };
    Ok(Some((record, end)))
}

/// Reads back what a journal holds, without holding the journal: from
/// [`Journal::reader`](super::Journal::reader).
pub struct JournalReader {
    media: Arc<dyn JournalMedia>,
    ring: Ring,
    next: Checkpoint,
    /// First record that is not to be read.
    end_seq: u64,
}

impl JournalReader {
    pub(super) fn new(
        media: Arc<dyn JournalMedia>,
        ring_bytes: u64,
        payload_bytes_max: u64,
        from: Checkpoint,
        end_seq: u64,
    ) -> Self {
        Self {
            media,
            ring: Ring::new(ring_bytes, payload_bytes_max),
            next: from,
            end_seq,
        }
    }

    /// The next record and its sequence number; `None` at the end. Blocks.
    ///
    /// # Errors
    /// [`JournalError::Io`], or [`JournalError::Damaged`]: what was appended is not there any more.
    pub fn read(&mut self) -> Result<Option<(u64, Record)>, JournalError> {
        let at = self.next.position;
        if at.seq >= self.end_seq {
            return Ok(None);
        }
        match next_record(&*self.media, &mut self.ring, self.next.epoch, at)? {
            Some((record, next)) => {
                self.next.position = next;
                self.next.last_epoch = Some(self.next.epoch);
                Ok(Some((at.seq, record)))
            }
            None => Err(JournalError::Damaged {
                journal: self.media.name(),
                seq: at.seq,
                offset: at.offset,
                evidence: "it was written since the pool was opened".to_owned(),
            }),
        }
    }

    /// What a checkpoint stores that holds every record read so far; its position is that of the next one.
    /// The records are to be stable before ([`Journal::prepare_sync`](super::Journal::prepare_sync)).
    pub fn checkpoint(&self) -> Checkpoint {
        self.next
    }
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
    media: &dyn JournalMedia,
    ring: &mut Ring,
    epoch: u32,
    at: Position,
) -> Result<Option<(Header, u64)>, JournalError> {
    let expected = |header: &Header| header.epoch == epoch && header.seq == at.seq;
    let Some(header) = ring.frame(media, at.offset)?.filter(expected) else {
        return Ok(None);
    };
    if header.kind != KIND_WRAP {
        return Ok(Some((header, at.offset)));
    }
    if at.offset == 0 {
        return Ok(None);
    }
    let header = ring
        .frame(media, 0)?
        .filter(expected)
        .filter(|header| header.kind != KIND_WRAP);
    Ok(header.map(|header| (header, 0)))
}

/// Looks through the whole ring for a frame that could not exist if `end` were the end: one of this
/// epoch that was written when record `end.seq` was already stable, or one of a later epoch.
fn prove_end(
    media: &dyn JournalMedia,
    ring: &mut Ring,
    epoch: u32,
    end: Position,
) -> Result<(), JournalError> {
    let is_suspicious = |header: &Header| {
        header.epoch > epoch
            || (header.epoch == epoch && header.seq > end.seq && header.stable >= end.seq)
    };
    let mut offset = 0;
    while let Some(found) = ring.find_header(media, offset, is_suspicious)? {
        offset = found;
        if let Some(header) = ring.frame(media, offset)? {
            let journal = media.name();
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
pub(super) struct Ring {
    bytes: u64,
    payload_bytes_max: u64,
    window: Vec<u8>,
    window_offset: u64,
}

impl Ring {
    /// Bytes of the ring.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn new(bytes: u64, payload_bytes_max: u64) -> Self {
        Self {
            bytes,
            payload_bytes_max,
            window: Vec::new(),
            window_offset: 0,
        }
    }

    /// `len` bytes at `offset`; the caller has checked that they are inside the ring.
    fn slice(
        &mut self,
        media: &dyn JournalMedia,
        offset: u64,
        len: u64,
    ) -> Result<&[u8], JournalError> {
        let window_end = self.window_offset + self.window.len() as u64;
        if offset < self.window_offset || offset + len > window_end {
            let read = len.max(WINDOW_BYTES).min(self.bytes - offset);
            self.window.resize(read as usize, 0);
            self.window_offset = offset;
            let result = media.read_at(offset, &mut self.window);
            if let Err(source) = result {
                self.window.clear();
                return Err(JournalError::Io {
                    journal: media.name(),
                    action: "read the journal",
                    source,
                });
            }
        }
        let start = (offset - self.window_offset) as usize;
        Ok(&self.window[start..start + len as usize])
    }

    /// What could be a header at `offset`, with a frame that fits behind it.
    fn header(
        &mut self,
        media: &dyn JournalMedia,
        offset: u64,
    ) -> Result<Option<Header>, JournalError> {
        if offset + HEADER_BYTES as u64 > self.bytes {
            return Ok(None);
        }
        let (bytes, payload_bytes_max) = (self.bytes, self.payload_bytes_max);
        let header = Header::parse(self.slice(media, offset, HEADER_BYTES as u64)?);
        Ok(header.filter(|header| {
            u64::from(header.payload_bytes) <= payload_bytes_max
                && offset + header.frame_bytes() <= bytes
        }))
    }

    /// Where the next bytes from `offset` on are that could be a header that `is_wanted`.
    pub(super) fn find_header(
        &mut self,
        media: &dyn JournalMedia,
        mut offset: u64,
        is_wanted: impl Fn(&Header) -> bool,
    ) -> Result<Option<u64>, JournalError> {
        while offset + HEADER_BYTES as u64 <= self.bytes {
            // What looks like a header and is none is as frequent as records are: the window is looked
            // at to its end before more is read.
            let window_end = self.window_offset + self.window.len() as u64;
            let len = match window_end.checked_sub(offset) {
                Some(left) if offset >= self.window_offset && left >= HEADER_BYTES as u64 => left,
                _ => WINDOW_BYTES.min(self.bytes - offset),
            };
            let bytes = self.slice(media, offset, len)?;
            // Nearly no offset has one: this loop runs for every eight bytes of the ring.
            let offsets = (0..=bytes.len() - HEADER_BYTES).step_by(ALIGN);
            let mut found = offsets.filter(|at| {
                let header = bytes.get(*at..).and_then(Header::parse);
                header.is_some_and(|header| is_wanted(&header))
            });
            if let Some(at) = found.next() {
                return Ok(Some(offset + at as u64));
            }
            // A header may begin in the last bytes of the window.
            offset += (bytes.len() - HEADER_BYTES + ALIGN) as u64;
        }
        Ok(None)
    }

    /// The header of a whole frame at `offset`.
    pub(super) fn frame(
        &mut self,
        media: &dyn JournalMedia,
        offset: u64,
    ) -> Result<Option<Header>, JournalError> {
        let Some(header) = self.header(media, offset)? else {
            return Ok(None);
        };
        let frame = self.slice(media, offset, header.frame_bytes())?;
        Ok(frame::is_whole(&header, frame).then_some(header))
    }

    pub(super) fn payload(
        &mut self,
        media: &dyn JournalMedia,
        offset: u64,
        header: &Header,
    ) -> Result<&[u8], JournalError> {
        self.slice(
            media,
            offset + HEADER_BYTES as u64,
            u64::from(header.payload_bytes),
        )
    }
}
