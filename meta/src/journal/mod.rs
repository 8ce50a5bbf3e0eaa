//! The journal: an ordered sequence of records in a ring of fixed size.
//!
//! Invariants:
//!
//! * A pair of epoch and sequence number is written at most once with one content: after a failed write
//!   or sync the journal takes no more records, and every opening has a new epoch. Every frame carries the epoch of
//!   its owner, and so does every write to a media: one that several could reach refuses an earlier owner's.
//! * A record counts as appended when all before it are written: the ring has no hole before
//!   [`Journal::written_seq`].
//! * [`Journal::open`] returns a prefix of the records that were appended after its checkpoint, and that
//!   prefix contains every record for which a sync returned. If it cannot, it fails; it never skips.
//! * The ring from the record before the last released position to the end of the last record is never
//!   overwritten. Records are stable before the store takes them, so a journal that has neither that
//!   record nor one after it is older than the store, and [`Journal::open`] refuses it.
//!
//! The way of a pool's opening, each step durable before the next:
//!
//! 1. [`Store::load`](crate::Store::load) gives the rows and the [`Checkpoint`];
//! 2. [`Journal::open`] gives the records after it;
//! 3. [`Journal::settle`] makes them stable, and the engine applies all of them to the store, with a new
//!    checkpoint: [`Journal::next_checkpoint`];
//! 4. [`Journal::begin`] with that checkpoint. Only then does the journal take records.

mod append;
mod file;
mod frame;
mod history;
mod hooked;
mod media;
mod memory;
mod part;
mod replay;
mod written;

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

pub use append::{Appended, Frames, JournalWriter, ReservedRange};
pub use file::FileMedia;
pub use history::History;
pub use hooked::HookedMedia;
pub use media::{JournalMedia, SECTOR_BYTES};
pub use memory::MemoryMedia;
pub use part::JournalPart;
pub use replay::JournalReader;

use crate::error::JournalError;
use crate::record::Record;
use crate::types::{Checkpoint, Position};
use frame::{ALIGN, HEADER_BYTES};
use written::Written;

/// Bounds of a journal.
#[derive(Clone, Copy, Debug)]
pub struct JournalConfig {
    /// Largest payload of a record, in bytes. The default of 1 MiB holds the largest
    /// [`Record::Map`] and [`Record::Unmap`]. Must not be lowered while records are in the journal.
    pub payload_bytes_max: u32,
    /// Bytes of the ring that only [`Record::Durable`] may use, so that a full journal can still say
    /// what its checkpoint may take.
    pub reserve_bytes: u64,
}

impl Default for JournalConfig {
    fn default() -> Self {
        Self {
            payload_bytes_max: 1 << 20,
            reserve_bytes: 64 << 10,
        }
    }
}

/// The last sequence number that a checkpoint can have: so far from the end of the numbers that none
/// after it overflows. A million records a second reach it in 292 thousand years.
const SEQ_MAX: u64 = u64::MAX >> 1;

/// The journal of an opened pool. Frames are written, and syncs run, beside it ([`JournalWriter::write`],
/// [`Journal::prepare_sync`]).
pub struct Journal {
    media: Arc<dyn JournalMedia>,
    config: JournalConfig,
    /// Bytes of the ring: the capacity of the media, rounded down to whole units of alignment.
    ring_bytes: u64,
    epoch: u32,
    /// False between `open` and `begin`.
    begun: bool,
    /// First record that is not released.
    tail: Position,
    /// The record before `tail`, unless there is none, or it is not known.
    before_tail: Option<Before>,
    /// Where the next record goes.
    head: Position,
    /// What is written of what has its range.
    written: Arc<Written>,
    /// Where the reader looks for each record from `tail.seq` on, in units of alignment.
    offsets: VecDeque<u32>,
    /// Every record up to here is stable.
    stable: u64,
    gate: Arc<SyncGate>,
}

/// A record that was released, and must stay.
#[derive(Clone, Copy)]
struct Before {
    /// Where its frame is, or the one that leads there.
    offset: u64,
    epoch: u32,
}

/// Serialises syncs, and remembers that one failed: the system reports a lost write to one sync only.
struct SyncGate {
    lock: Mutex<()>,
    failed: AtomicBool,
}

/// A sync that is to be run without holding the journal.
#[must_use = "the records are stable only after `run` and `Journal::finish_sync`"]
pub struct PendingSync {
    media: Arc<dyn JournalMedia>,
    gate: Arc<SyncGate>,
    upto: u64,
    needed: bool,
}

/// A sync that was run.
#[must_use = "tell the journal with `Journal::finish_sync`"]
#[derive(Debug)]
pub struct FinishedSync {
    upto: u64,
    result: io::Result<()>,
}

impl PendingSync {
    /// Makes the records stable that were appended before [`Journal::prepare_sync`]. Blocks.
    pub fn run(self) -> FinishedSync {
        if !self.needed {
            return FinishedSync {
                upto: self.upto,
                result: Ok(()),
            };
        }
        let locked = self.gate.lock.lock();
        // A sync that ended in a panic may have been told of a lost write.
        if locked.is_err() || self.gate.failed.load(Ordering::Acquire) {
            let result = Err(io::Error::other("an earlier write or sync failed"));
            return FinishedSync {
                upto: self.upto,
                result,
            };
        }
        let result = self.media.sync();
        if result.is_err() {
            self.gate.failed.store(true, Ordering::Release);
        }
        FinishedSync {
            upto: self.upto,
            result,
        }
    }
}

impl Journal {
    /// An empty journal at [`Position::START`] that takes records of `epoch` at once. For a media that
    /// holds nothing of value; the store's checkpoint must be that position and epoch.
    pub fn create(
        media: Arc<dyn JournalMedia>,
        epoch: u32,
        config: JournalConfig,
    ) -> Result<Self, JournalError> {
        let mut journal = Self::new(
            media,
            Checkpoint {
                position: Position::START,
                epoch,
                last_epoch: None,
            },
            config,
        )?;
        journal
            .media
            .own(epoch)
            .map_err(|source| JournalError::Io {
                journal: journal.media.name(),
                action: "take over the journal",
                source,
            })?;
        journal.begun = true;
        Ok(journal)
    }

    /// Reads the records after `checkpoint`, with their sequence numbers. The journal takes no records
    /// until [`Journal::begin`].
    ///
    /// # Errors
    /// [`JournalError::Damaged`], [`JournalError::StoreBehind`] or [`JournalError::JournalBehind`] if
    /// something that was stable is gone;
    /// [`JournalError::Io`] if the media cannot be read; [`JournalError::Invalid`] if the media, the
    /// configuration and the checkpoint do not go together. Nothing is written.
    pub fn open(
        media: Arc<dyn JournalMedia>,
        checkpoint: Checkpoint,
        config: JournalConfig,
    ) -> Result<(Self, Vec<(u64, Record)>), JournalError> {
        let mut journal = Self::new(media, checkpoint, config)?;
        let chain = replay::replay(
            &*journal.media,
            journal.ring_bytes,
            u64::from(config.payload_bytes_max),
            checkpoint,
        )?;
        journal.head = chain.end;
        journal.written = Arc::new(Written::new(chain.end.seq - 1));
        journal.before_tail = chain
            .last
            .zip(checkpoint.last_epoch)
            .map(|(offset, epoch)| Before { offset, epoch });
        journal.offsets = chain.offsets.into_iter().map(offset_units).collect();
        Ok((journal, chain.records))
    }

    fn new(
        media: Arc<dyn JournalMedia>,
        checkpoint: Checkpoint,
        config: JournalConfig,
    ) -> Result<Self, JournalError> {
        let capacity = media.capacity();
        let ring_bytes = capacity - capacity % ALIGN as u64;
        let invalid = |detail: String| JournalError::Invalid {
            journal: media.name(),
            detail,
        };
        // A record that does not fit before the end wastes less than its own length there, and the one
        // before the first stays.
        let least = 3 * frame::frame_bytes(u64::from(config.payload_bytes_max))
            + config.reserve_bytes
            + ALIGN as u64;
        if ring_bytes < least {
            return Err(invalid(format!(
                "{capacity} bytes are too few, at least {least} are needed"
            )));
        }
        // Offsets are remembered as 32-bit counts of 8 bytes.
        let most = u64::from(u32::MAX) * ALIGN as u64;
        if ring_bytes > most {
            return Err(invalid(format!(
                "{capacity} bytes are too many, at most {most} are possible"
            )));
        }
        let position = checkpoint.position;
        if position.seq == 0
            || position.seq > SEQ_MAX
            || !position.offset.is_multiple_of(ALIGN as u64)
            || position.offset > ring_bytes - HEADER_BYTES as u64
        {
            return Err(invalid(format!(
                "the metadata store says that record {} is at byte {}, where none can be; \
                 the journal and `metadata/` do not belong together",
                position.seq, position.offset
            )));
        }
        Ok(Self {
            media,
            config,
            ring_bytes,
            epoch: checkpoint.epoch,
            begun: false,
            tail: position,
            before_tail: None,
            head: position,
            written: Arc::new(Written::new(position.seq - 1)),
            offsets: VecDeque::new(),
            stable: position.seq - 1,
            gate: Arc::new(SyncGate {
                lock: Mutex::new(()),
                failed: AtomicBool::new(false),
            }),
        })
    }

    /// Starts a new epoch at the end of what was replayed, and releases all of that.
    ///
    /// `checkpoint` must be in the store already, durably, with every replayed record applied: it is
    /// [`Journal::next_checkpoint`], or one of a later epoch.
    ///
    /// # Errors
    /// [`JournalError::NotBegun`] if it is another one; [`JournalError::Io`] if the media has a later owner.
    pub fn begin(&mut self, checkpoint: Checkpoint) -> Result<(), JournalError> {
        let expected = self.next_checkpoint_above(checkpoint.epoch.saturating_sub(1));
        if self.begun || expected != Some(checkpoint) {
            return Err(JournalError::NotBegun {
                journal: self.media.name(),
                detail: format!(
                    "cannot begin at {checkpoint:?} after epoch {} with the end at {:?}",
                    self.epoch, self.head
                ),
            });
        }
        self.media
            .own(checkpoint.epoch)
            .map_err(|source| JournalError::Io {
                journal: self.media.name(),
                action: "take over the journal",
                source,
            })?;
        self.before_tail = self.last();
        self.epoch = checkpoint.epoch;
        self.tail = self.head;
        self.offsets.clear();
        self.stable = self.head.seq - 1;
        self.begun = true;
        Ok(())
    }

    /// The checkpoint of a store to which every replayed record is applied, and with which
    /// [`Journal::begin`] may be called: at the end, of a new epoch. `None` when 2^32 openings are used up.
    pub fn next_checkpoint(&self) -> Option<Checkpoint> {
        self.next_checkpoint_above(self.epoch)
    }

    /// The same, of an epoch beyond this one too: somebody else knows that it was begun.
    pub fn next_checkpoint_above(&self, epoch: u32) -> Option<Checkpoint> {
        Some(Checkpoint {
            position: self.head,
            epoch: self.epoch.max(epoch).checked_add(1)?,
            last_epoch: self.last().map(|last| last.epoch),
        })
    }

    /// Makes what was replayed stable: a killed process left it in the system's cache, perhaps. It is written
    /// again first, because a sync of that process may have failed: Linux then takes what it could not write
    /// for clean, still reads it from its cache, and the next sync says that all is well. Blocks.
    ///
    /// # Errors
    /// [`JournalError::Io`]; what the journal holds is as it was.
    pub fn settle(&self) -> Result<(), JournalError> {
        if self.offsets.is_empty() {
            return Ok(());
        }
        let (tail, head) = (self.tail.offset, self.head.offset);
        let written = if tail < head {
            self.write_again(tail, head)
        } else {
            self.write_again(tail, self.ring_bytes)
                .and_then(|()| self.write_again(0, head))
        };
        written
            .and_then(|()| self.media.sync())
            .map_err(|source| JournalError::Io {
                journal: self.media.name(),
                action: "sync records",
                source,
            })
    }

    /// See [`JournalMedia::flushes_data`].
    #[must_use]
    pub fn flushes_data(&self) -> bool {
        self.media.flushes_data()
    }

    /// Writes what the media holds there to the same offsets.
    fn write_again(&self, mut from: u64, to: u64) -> io::Result<()> {
        /// What is held in memory at a time.
        const PIECE_BYTES: u64 = 64 << 10;
        let mut piece = vec![0; PIECE_BYTES.min(to - from) as usize];
        while from < to {
            let len = PIECE_BYTES.min(to - from);
            let piece = &mut piece[..len as usize];
            self.media.read_at(from, piece)?;
            self.media.write_at(from, piece)?;
            from += len;
        }
        Ok(())
    }

    /// The last record that was appended or replayed, or the one before the first.
    fn last(&self) -> Option<Before> {
        let (offset, epoch) = (self.offsets.back(), self.epoch);
        let last = offset.map(|units| Before {
            offset: u64::from(*units) * ALIGN as u64,
            epoch,
        });
        last.or(self.before_tail)
    }

    fn check_usable(&self) -> Result<(), JournalError> {
        if !self.begun {
            return Err(JournalError::NotBegun {
                journal: self.media.name(),
                detail: "takes no records before a new epoch has begun".to_owned(),
            });
        }
        if self.gate.failed.load(Ordering::Acquire) {
            return Err(JournalError::Failed {
                journal: self.media.name(),
            });
        }
        Ok(())
    }

    /// Bytes from `from` forward to `to`, around the end of the ring.
    fn distance(&self, from: u64, to: u64) -> u64 {
        if to >= from {
            to - from
        } else {
            self.ring_bytes - from + to
        }
    }

    /// Makes everything appended so far stable, and returns the last stable sequence number. Blocks;
    /// [`Journal::prepare_sync`] does not hold the journal meanwhile.
    ///
    /// # Errors
    /// [`JournalError::Io`]; the journal then takes no more records.
    pub fn sync(&mut self) -> Result<u64, JournalError> {
        let finished = self.prepare_sync()?.run();
        self.finish_sync(finished)
    }

    /// A sync of everything up to [`Journal::written_seq`], to be run elsewhere; hand its result to
    /// [`Journal::finish_sync`].
    ///
    /// # Errors
    /// As for [`Journal::reserve`], except that there is always room.
    pub fn prepare_sync(&self) -> Result<PendingSync, JournalError> {
        self.check_usable()?;
        let upto = self.written_seq();
        Ok(PendingSync {
            media: Arc::clone(&self.media),
            gate: Arc::clone(&self.gate),
            upto,
            needed: upto > self.stable,
        })
    }

    /// Takes note of a sync, and returns the last stable sequence number.
    ///
    /// # Errors
    /// [`JournalError::Io`] if the sync failed; the journal then takes no more records.
    pub fn finish_sync(&mut self, finished: FinishedSync) -> Result<u64, JournalError> {
        match finished.result {
            Ok(()) => {
                self.stable = self.stable.max(finished.upto);
                Ok(self.stable)
            }
            Err(source) => {
                self.gate.failed.store(true, Ordering::Release);
                Err(JournalError::Io {
                    journal: self.media.name(),
                    action: "sync records",
                    source,
                })
            }
        }
    }

    /// Gives the space of every record before `upto` but the last back to the ring. Call it only when the
    /// store holds a checkpoint with exactly this position, durably, and took it when the records were
    /// stable.
    ///
    /// # Errors
    /// [`JournalError::Invalid`] if `upto` is not the position of a record in the journal or of its end.
    pub fn release(&mut self, upto: Position) -> Result<(), JournalError> {
        if self.position_of(upto.seq) != Some(upto) {
            return Err(JournalError::Invalid {
                journal: self.media.name(),
                detail: format!(
                    "cannot release up to {upto:?}: not between {:?} and {:?}",
                    self.tail, self.head
                ),
            });
        }
        let released = (upto.seq - self.tail.seq) as usize;
        if let Some(last) = self.offsets.drain(..released).next_back() {
            self.before_tail = Some(Before {
                offset: u64::from(last) * ALIGN as u64,
                epoch: self.epoch,
            });
        }
        self.tail = upto;
        // What the store holds is stable, synced here or not. Later frames say so: should the store lose
        // this checkpoint, the next opening finds frames that could not follow the older one.
        self.stable = self.stable.max(upto.seq - 1);
        Ok(())
    }

    /// Reads what is written and not released, up to here; appends may go on meanwhile, a release
    /// of what is still to be read may not.
    pub fn reader(&self) -> JournalReader {
        JournalReader::new(
            Arc::clone(&self.media),
            self.ring_bytes,
            u64::from(self.config.payload_bytes_max),
            Checkpoint {
                position: self.tail,
                epoch: self.epoch,
                last_epoch: self.before_tail.map(|before| before.epoch),
            },
            self.written_seq() + 1,
        )
    }

    /// What of the journal is needed to open the pool as it is at this moment: everything that is not
    /// overwritten before the next [`Journal::release`].
    pub fn needed(&self) -> JournalPart {
        let start = self.floor();
        let end = self
            .position_of(self.written_seq() + 1)
            .map_or(start, |end| end.offset);
        let ranges = match start <= end {
            true => vec![(start, end)],
            false => vec![(start, self.ring_bytes), (0, end)],
        };
        JournalPart::new(Arc::clone(&self.media), ranges)
    }

    /// Where the next record goes.
    pub fn position(&self) -> Position {
        self.head
    }

    /// First position that is not released.
    pub fn released(&self) -> Position {
        self.tail
    }

    /// The position of record `seq`, if it is in the journal, or of the end, if `seq` is the next one:
    /// what a checkpoint stores that holds every record before `seq`.
    pub fn position_of(&self, seq: u64) -> Option<Position> {
        if seq == self.head.seq {
            return Some(self.head);
        }
        let index = usize::try_from(seq.checked_sub(self.tail.seq)?).ok()?;
        let units = *self.offsets.get(index)?;
        Some(Position {
            seq,
            offset: u64::from(units) * ALIGN as u64,
        })
    }

    /// Sequence number of the last record that has a range of the ring or was replayed; 0 if there never was one.
    pub fn last_seq(&self) -> u64 {
        self.head.seq - 1
    }

    /// Every record up to this sequence number survives a loss of power, here or in the store.
    pub fn stable_seq(&self) -> u64 {
        self.stable
    }

    /// Epoch of the records that are appended.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Bytes of the ring.
    pub fn capacity_bytes(&self) -> u64 {
        self.ring_bytes
    }

    /// Bytes that must not be overwritten: from the last released record to the end, wasted rests at the
    /// end of the ring included.
    pub fn used_bytes(&self) -> u64 {
        self.distance(self.floor(), self.head.offset)
    }

    /// Where the bytes begin that must not be overwritten.
    fn floor(&self) -> u64 {
        self.before_tail
            .map_or(self.tail.offset, |before| before.offset)
    }

    /// Bytes that frames may still take, the reserve included. One unit of alignment always stays free,
    /// so that a full ring and an empty one differ.
    pub fn free_bytes(&self) -> u64 {
        self.ring_bytes - self.used_bytes() - ALIGN as u64
    }

    /// The media.
    pub fn media(&self) -> &Arc<dyn JournalMedia> {
        &self.media
    }
}

/// A byte offset in units of alignment; `Journal::new` has checked that the ring is small enough.
fn offset_units(offset: u64) -> u32 {
    (offset / ALIGN as u64) as u32
}
