//! The way of an append, in steps that several threads take side by side:
//!
//! 1. [`Frames::encode`] makes bytes of the records;
//! 2. [`Journal::reserve`] reserves a range of the ring for them, behind those before: some nanoseconds;
//! 3. [`JournalWriter::write`] writes them there, without the journal, and counts them: from then on they are in the
//!    journal if all before them are.
//!
//! Frames of a later range may be written before those of an earlier one. After a crash there is a hole then, and
//! replay ends before it. So nobody may be told of a record before [`Journal::written_seq`] has reached it, and only
//! records up to there are synced or read back. A range that was reserved must be written, or the journal takes no more
//! records: [`JournalWriter::write`] is not to be left out.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::frame::{self, KIND_WRAP};
use super::media::JournalMedia;
use super::replay::normalise;
use super::written::Written;
use super::{Journal, SyncGate};
use crate::error::JournalError;
use crate::record::{Record, RecordRef};

/// What [`JournalWriter::prepare`] has prepared: some times what a batch for the store takes.
const PREPARED_BYTES: u64 = 32 << 20;

/// Records that are encoded, and have no range of the ring yet.
pub struct Frames {
    /// One frame after the other.
    bytes: Vec<u8>,
    /// Bytes of each.
    lengths: Vec<u32>,
    /// Bytes of the largest payload.
    payload_bytes_max: u64,
    /// No record but [`Record::Durable`]: they may use the reserve.
    is_durable_only: bool,
}

impl Frames {
    /// Encodes records in order.
    pub fn encode<'r, R>(records: impl IntoIterator<Item = R, IntoIter: Clone>) -> Self
    where
        R: Into<RecordRef<'r>>,
    {
        let records = records.into_iter().map(Into::<RecordRef<'r>>::into);
        let (mut bytes, mut count, mut payload_bytes_max) = (0, 0, 0);
        for record in records.clone() {
            let payload = record.encoded_len() as u64;
            bytes += frame::frame_bytes(payload);
            payload_bytes_max = payload_bytes_max.max(payload);
            count += 1;
        }
        let mut frames = Self {
            bytes: Vec::with_capacity(bytes as usize),
            lengths: Vec::with_capacity(count),
            payload_bytes_max,
            is_durable_only: true,
        };
        for record in records {
            let start = frames.bytes.len();
            frame::encode(&mut frames.bytes, record.kind(), |out| record.encode(out));
            frames.lengths.push((frames.bytes.len() - start) as u32);
            frames.is_durable_only &= matches!(record.as_other(), Some(Record::Durable { .. }));
        }
        frames
    }
}

/// The part of the ring where frames go, and whose they are.
#[must_use = "a range that is not written is a hole, and the journal ends before it"]
#[derive(Debug)]
pub struct ReservedRange {
    /// Sequence number of the first frame.
    first: u64,
    /// How many frames there are.
    count: u64,
    /// Where the first one goes, or a frame that leads to the beginning of the ring.
    offset: u64,
    epoch: u32,
    /// Every record up to here is stable.
    stable: u64,
}

impl ReservedRange {
    /// Sequence number of the first record.
    pub fn first(&self) -> u64 {
        self.first
    }

    /// Sequence number of the last record.
    pub fn last(&self) -> u64 {
        self.first + self.count - 1
    }
}

/// Writes frames where they were reserved, beside the journal.
#[derive(Clone)]
pub struct JournalWriter {
    media: Arc<dyn JournalMedia>,
    gate: Arc<SyncGate>,
    written: Arc<Written>,
    ring_bytes: u64,
}

impl JournalWriter {
    /// Writes frames to the range that was reserved for them, with one write (more where the ring wraps). They survive
    /// a crash of the process afterwards if all before them do. Returns [`Journal::written_seq`], which other appends may have
    /// moved.
    ///
    /// # Errors
    /// [`JournalError::Io`] if they were not written: how much of them the media holds is open, and the journal takes no more
    /// records.
    pub fn write(&self, mut frames: Frames, range: ReservedRange) -> Result<u64, JournalError> {
        if let Err(source) = self.write_frames(&mut frames, &range) {
            // No sync may say that what comes after the hole is stable.
            self.gate.failed.store(true, Ordering::Release);
            return Err(JournalError::Io {
                journal: self.media.name(),
                action: "write a record",
                source,
            });
        }
        match range.count {
            0 => Ok(self.written.upto()),
            count => Ok(self.written.add(range.first, range.first + count)),
        }
    }

    /// Frames will go to `offset` and behind it before long: has the media prepare for a while of that. Blocks.
    pub fn prepare(&self, offset: u64) {
        let bytes = PREPARED_BYTES.min(self.ring_bytes);
        let upto_end = bytes.min(self.ring_bytes - offset.min(self.ring_bytes));
        self.media.will_write(offset, upto_end);
        if bytes > upto_end {
            self.media.will_write(0, bytes - upto_end);
        }
    }

    fn write_frames(&self, frames: &mut Frames, range: &ReservedRange) -> io::Result<()> {
        let ReservedRange { epoch, stable, .. } = *range;
        let (mut head, mut start) = (range.offset, range.offset);
        // Bytes up to `written` are written, those up to `sealed` are sealed.
        let (mut written, mut sealed) = (0, 0);
        for (seq, length) in (range.first..).zip(&frames.lengths) {
            let frame = sealed..sealed + *length as usize;
            if head + u64::from(*length) > self.ring_bytes {
                self.write_at(epoch, start, &frames.bytes[written..sealed])?;
                let mut wrap = Vec::new();
                frame::encode(&mut wrap, KIND_WRAP, |_| {});
                frame::seal(&mut wrap, epoch, seq, stable);
                self.write_at(epoch, head, &wrap)?;
                (head, start, written) = (0, 0, sealed);
            }
            frame::seal(&mut frames.bytes[frame], epoch, seq, stable);
            sealed += *length as usize;
            head += u64::from(*length);
            let next = normalise(head, self.ring_bytes);
            if next != head {
                self.write_at(epoch, start, &frames.bytes[written..sealed])?;
                (head, start, written) = (next, next, sealed);
            }
        }
        self.write_at(epoch, start, &frames.bytes[written..sealed])
    }

    fn write_at(&self, epoch: u32, offset: u64, bytes: &[u8]) -> io::Result<()> {
        match bytes.is_empty() {
            true => Ok(()),
            false => self.media.append_at(epoch, offset, bytes),
        }
    }
}

/// What [`Journal::append`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// Sequence number of the first record.
    pub first: u64,
    /// Sequence number of the last record.
    pub last: u64,
}

impl Journal {
    /// What writes the frames of this journal.
    pub fn writer(&self) -> JournalWriter {
        JournalWriter {
            media: Arc::clone(&self.media),
            gate: Arc::clone(&self.gate),
            written: Arc::clone(&self.written),
            ring_bytes: self.ring_bytes,
        }
    }

    /// Reserves a range of the ring for frames, behind all that were reserved so far.
    ///
    /// # Errors
    /// [`JournalError::Full`] and [`JournalError::TooLarge`] reserve nothing and can be cured; after
    /// [`JournalError::Failed`] the journal takes no more records.
    pub fn reserve(&mut self, frames: &Frames) -> Result<ReservedRange, JournalError> {
        self.check_usable()?;
        let limit = u64::from(self.config.payload_bytes_max);
        if frames.payload_bytes_max > limit {
            return Err(JournalError::TooLarge {
                journal: self.media.name(),
                bytes: frames.payload_bytes_max,
                limit,
            });
        }
        let reserve = match frames.is_durable_only {
            true => 0,
            false => self.config.reserve_bytes,
        };
        let free = self.free_bytes().saturating_sub(reserve);
        let (mut head, mut needed) = (self.head.offset, 0);
        for length in &frames.lengths {
            let (_, end, takes) = self.layout(head, u64::from(*length));
            needed += takes;
            head = end;
        }
        if needed > free {
            return Err(JournalError::Full {
                journal: self.media.name(),
                needed,
                free,
            });
        }
        let range = ReservedRange {
            first: self.head.seq,
            count: frames.lengths.len() as u64,
            offset: self.head.offset,
            epoch: self.epoch,
            stable: self.stable,
        };
        let mut head = self.head.offset;
        for length in &frames.lengths {
            self.offsets.push_back(super::offset_units(head));
            (_, head, _) = self.layout(head, u64::from(*length));
        }
        self.head.offset = head;
        self.head.seq += range.count;
        Ok(range)
    }

    /// Where a frame goes for which a reader looks at `head`, where it looks for the next one, and how many bytes of the
    /// ring that takes.
    fn layout(&self, head: u64, frame: u64) -> (u64, u64, u64) {
        let fits = head + frame <= self.ring_bytes;
        let start = if fits { head } else { 0 };
        let end = normalise(start + frame, self.ring_bytes);
        let skipped = if fits { 0 } else { self.ring_bytes - head };
        let rest = if end == 0 {
            self.ring_bytes - start - frame
        } else {
            0
        };
        (start, end, skipped + frame + rest)
    }

    /// Every record up to this sequence number is written, and survives a crash of the process. Later ones may be written
    /// too, behind one that is not.
    pub fn written_seq(&self) -> u64 {
        self.written.upto()
    }

    /// Appends records in order, all steps at once. They survive a crash of the process when this returns (if nobody else
    /// is between two steps of an append), and a loss of power after a later sync.
    ///
    /// # Errors
    /// Those of [`Self::reserve`] and [`JournalWriter::write`].
    pub fn append<'r, R>(
        &mut self,
        records: impl IntoIterator<Item = R, IntoIter: Clone>,
    ) -> Result<Appended, JournalError>
    where
        R: Into<RecordRef<'r>>,
    {
        let frames = Frames::encode(records);
        let range = self.reserve(&frames)?;
        let (first, count) = (range.first, range.count);
        self.writer().write(frames, range)?;
        Ok(Appended {
            first,
            last: first + count - 1,
        })
    }
}
