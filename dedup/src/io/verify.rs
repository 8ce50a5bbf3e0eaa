//! Verifying duplicates: comparing the bytes of what was found by its fingerprint.
//!
//! What a volume's [`VerifyPolicy`] promises, should two contents ever have the same fingerprint:
//! * `trust`: nothing. The key is secret, and 2^-53 is the chance of an accident in a pool of 1 PiB.
//! * `compare`: both stay right, always. The block is read from its drive while the batch writes its new
//!   ones, and a write is acknowledged when all its duplicates are equal byte by byte. Content that
//!   differs, or whose twin cannot be read or is damaged, gets a block of its own, which is the one that
//!   is found from then on.
//! * `background`: both stay right in all that anybody can read and that was flushed. A write is
//!   acknowledged at once; its range stays locked and the bytes that found a twin stay in memory until
//!   they are written again in the way of `compare`: reads and changes of the range, flushes and writes
//!   with FUA wait for that. A crash before may leave a colliding write with its twin's content, at most
//!   [`crate::EngineConfig::verify_bytes_max`] of unflushed writes; a write that failed with the journal
//!   may be among them, so flushes vouch for nothing from then on. When that memory is in use, or
//!   background maintenance does not run, a write compares before it is acknowledged.
//!
//! Two contents of one batch are compared in memory, under `compare` and `background`. If another batch is writing the
//! content, the write waits for that batch, as always, and then compares.
//!
//! [`crate::pool::comparisons`] has the memory for comparisons and the queue of those that are to come.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use drives::BLOCK_BYTES;
use meta::{Pba, VerifyPolicy};
use reactor::Buffer;

use crate::content::fingerprint;
use crate::drive_io::reader::read_blocks;
use crate::io::batcher::Command;
use crate::io::write::{Batch, Crc, Item, Progress};
use crate::pool::Shared;
use crate::pool::alerts::Action;
use crate::pool::comparisons::{Kept, KeptPiece, Pending, Room};
use crate::pool::config::BATCH_BLOCKS_MAX;
use crate::sync::wait::lock;
use crate::{EngineError, ErrorKind, MAX_COMMAND_BYTES, Result};

/// How often an acknowledged write is tried to be compared: a drive may fail once.
const ATTEMPTS: u32 = 3;

// What one batch reads back fits one buffer.
const _: () = assert!(BATCH_BLOCKS_MAX * BLOCK_BYTES <= reactor::MAX_BUFFER_BYTES);
const _: () = assert!(MAX_COMMAND_BYTES + 2 * BLOCK_BYTES <= reactor::MAX_BUFFER_BYTES);

/// What is left to do before the block of an item is known to hold its content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Check {
    /// Nothing.
    #[default]
    Done,
    /// Compare with what the drive holds.
    Stored,
    /// Compare with that other item of the batch, whose block it shares.
    Within(u32),
    /// It differs from what is found by its fingerprint: it needs a block of its own.
    Distinct,
}

/// A block that was found by its fingerprint, and the item that shares it.
pub(crate) struct Candidate {
    item: u32,
    pub(crate) pba: Pba,
}

/// What the drives hold at the candidates, one block after the other.
pub(crate) struct Found {
    pub(crate) buf: Buffer,
    /// Indexes of those that could not be read.
    pub(crate) unreadable: Vec<usize>,
}

/// Reads candidates from their drives. A drive that fails only makes them unusable.
pub(crate) async fn read(shared: &Shared, candidates: impl Iterator<Item = Pba>) -> Found {
    let buffers = &shared.verify.buffers;
    let offsets = (0..).step_by(BLOCK_BYTES);
    let blocks: Vec<(Pba, usize)> = candidates.zip(offsets).collect();
    let buf = buffers.alloc(blocks.len() * BLOCK_BYTES).await;
    let (failed, buf) = read_blocks(&shared.drives, buf, &blocks).await;
    let mut unreadable = Vec::new();
    for failed in failed {
        if failed.is_medium() {
            let mut state = lock(&shared.state);
            for index in &failed.indexes {
                shared.found_wrong_copy(&mut state, blocks[*index].0);
            }
        }
        // Its content is stored again.
        shared.drive_failed(failed.drive, Action::Read, &failed.error);
        unreadable.extend(failed.indexes);
    }
    Found { buf, unreadable }
}

impl Batch {
    /// Compares items that share the new block of another item of the batch.
    pub(crate) fn compare_within(&mut self) {
        for at in 0..self.items.len() {
            if let Check::Within(other) = self.items[at].check
                && self.items[at].taken.is_some()
            {
                self.shared.verify.compared.fetch_add(1, Ordering::Relaxed);
                let is_equal = self.block(at) == self.block(other as usize);
                self.settle(at, is_equal);
            }
        }
    }

    /// Blocks to be read and compared before anybody is told; what can be compared later is kept for it.
    pub(crate) fn candidates(&mut self) -> Vec<Candidate> {
        let mut candidates = Vec::new();
        for number in 0..self.jobs.len() {
            let items = self.jobs[number].items.clone();
            let is_open = |item: &Item| item.check == Check::Stored && item.taken.is_some();
            let open = self.items[items.clone()]
                .iter()
                .filter(|item| is_open(item));
            let count = open.count();
            if count == 0 || self.keep_for_later(number, count) {
                continue;
            }
            candidates.extend(items.filter_map(|at| {
                let item = self.items.get(at).filter(|item| is_open(item))?;
                let item_number = at as u32;
                item.taken.map(|pba| Candidate {
                    item: item_number,
                    pba,
                })
            }));
        }
        candidates
    }

    /// Compares with what was read.
    pub(crate) fn compare(&mut self, candidates: &[Candidate], found: &Found) {
        let stored = fingerprint::split(&found.buf);
        for (index, (candidate, stored)) in candidates.iter().zip(stored).enumerate() {
            let at = candidate.item as usize;
            if found.unreadable.contains(&index) {
                self.settle(at, false);
                continue;
            }
            self.shared.verify.compared.fetch_add(1, Ordering::Relaxed);
            let is_equal = self.block(at) == Some(stored);
            if !is_equal
                && matches!(self.items[at].crc, Crc::Known(crc) if crc != fingerprint::crc32c(stored))
            {
                // Not what was written there: no collision, but damage.
                let mut state = lock(&self.shared.state);
                self.shared.found_wrong_copy(&mut state, candidate.pba);
            } else if !is_equal {
                self.shared.verify.collided(candidate.pba);
            }
            self.settle(at, is_equal);
        }
    }

    /// The bytes of an item, while its command has its buffer.
    fn block(&self, item: usize) -> Option<&fingerprint::Block> {
        let job = self.jobs.iter().find(|job| job.items.contains(&item))?;
        job.blocks().get(item - job.items.start)
    }

    /// An item keeps its block, or tries again for one of its own.
    fn settle(&mut self, at: usize, is_equal: bool) {
        let item = &mut self.items[at];
        if is_equal {
            item.check = Check::Done;
            return;
        }
        item.check = Check::Distinct;
        item.crc = Crc::Unknown;
        if let Some(pba) = item.taken.take() {
            lock(&self.shared.state).give_back(pba);
        }
        let job = self.jobs.iter_mut().find(|job| job.items.contains(&at));
        if let Some(job) = job
            && matches!(job.progress, Progress::Claimed)
        {
            job.progress = Progress::Begun;
        }
    }

    /// Keeps the bytes of a job's open items, so that they can be compared when it was told; false if
    /// its policy or the room does not allow that.
    fn keep_for_later(&mut self, number: usize, count: usize) -> bool {
        let job = &mut self.jobs[number];
        let Some(command) = &job.command else {
            return false;
        };
        if command.verify != VerifyPolicy::Background {
            return false;
        }
        let Some(room) = Room::reserve(&self.shared, count) else {
            return false;
        };
        let mut pieces: Vec<KeptPiece> = Vec::new();
        for (index, item) in self.items[job.items.clone()].iter_mut().enumerate() {
            if item.check != Check::Stored || item.taken.is_none() {
                continue;
            }
            item.check = Check::Done;
            let Some(block) = job.blocks().get(index) else {
                continue;
            };
            let at = command.start + index as u64;
            match pieces.last_mut() {
                Some(last) if last.end() == at => last.bytes.extend_from_slice(block),
                _ => pieces.push(KeptPiece {
                    start: at,
                    bytes: block.to_vec(),
                }),
            }
        }
        job.kept.push(Kept {
            pieces,
            _room: room,
        });
        true
    }
}

/// Queues an acknowledged write to be compared; its range stays locked until then.
pub(crate) fn compare_later(shared: &Arc<Shared>, command: &mut Command, kept: Vec<Kept>) {
    let guard = command.take_guard();
    shared.verify.push(Pending {
        shared: shared.clone(),
        volume: command.volume.clone(),
        kept,
        is_done: Arc::default(),
        is_compared: false,
        error: String::new(),
        _guard: guard,
    });
}

/// Compares acknowledged writes, until [`Verify::end`].
pub(crate) async fn keep_verifying(shared: &Arc<Shared>) {
    let Some(_duty) = shared.verify.go_on_duty() else {
        return;
    };
    while let Some(mut pending) = shared.verify.next().await {
        for _ in 0..ATTEMPTS {
            match write_again(shared, &pending).await {
                Ok(()) => pending.is_compared = true,
                // What is gone need not be right.
                Err(error) if error.kind == ErrorKind::NotFound => pending.is_compared = true,
                Err(error) => pending.error = error.to_string(),
            }
            if pending.is_compared {
                break;
            }
        }
    }
}

/// Writes the kept bytes where they are already, with a comparison: only what differs changes.
async fn write_again(shared: &Arc<Shared>, pending: &Pending) -> Result<()> {
    let mut commands = Vec::new();
    let mut ends = Vec::new();
    for piece in pending.pieces() {
        let mut buf = shared.verify.buffers.alloc(piece.bytes.len()).await;
        buf.copy_from_slice(&piece.bytes);
        let (command, end) = Command::again(&pending.volume, piece.start, buf);
        commands.push(command);
        ends.push(end);
    }
    crate::io::write::run(shared.clone(), commands).await;
    let lost = || Err(EngineError::internal("a comparison had no end"));
    ends.into_iter()
        .try_for_each(|end| end.result().unwrap_or_else(lost).map(drop))
}

#[cfg(test)]
pub(crate) mod tests;
