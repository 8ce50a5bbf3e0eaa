//! The way of a write.
//!
//! Range lock -> fingerprints -> look-up (a reference to what is known, a block for what is new, a
//! wait for what another command is writing) -> new data to the drives straight from the buffer ->
//! one journal record -> mapping installed. On every way out but success, all references and blocks
//! that the command took are given back, also when its future is dropped.

use std::sync::Arc;

use drives::BLOCK_BYTES;
use meta::{Fingerprint, MapEntry, NewBlock, Pba, Record};
use reactor::Buffer;

use crate::engine::Shared;
use crate::fingerprint::{self, Block, Hasher};
use crate::range_lock::RangeGuard;
use crate::read::coalesce;
use crate::state::{Claim, Owner};
use crate::wait::{Event, lock};
use crate::{EngineError, Result};

/// How often a write without room asks for freed blocks before it fails.
const RECLAIM_ATTEMPTS: u32 = 3;

/// The content of one sub-block to be written; `None` = zeros, which are not stored.
type Content = Option<(Fingerprint, u32)>;

/// Writes whole sub-blocks from `start` on: the buffer's length is a multiple of their size, and the
/// caller's guard covers them. The guard is held until the new mapping is in place.
///
/// `Ok` carries the sequence number that must be durable for the write to survive a power loss.
pub(crate) async fn write_sub_blocks(
    shared: &Arc<Shared>,
    volume: u32,
    guard: RangeGuard,
    start: u64,
    buf: Buffer,
) -> (Result<u64>, Buffer) {
    let contents = contents(&shared.hasher, &buf);
    let mut claims = Claims::new(shared.clone(), contents.len());
    let (result, buf) = store(&mut claims, &contents, buf).await;
    if let Err(error) = result {
        return (Err(error), buf);
    }
    let result = match claims.into_record(volume, start, &contents) {
        Ok(Some(record)) => shared.commit(record, Some(guard)).await,
        Ok(None) => Ok(lock(&shared.state).last_change),
        Err(error) => Err(error),
    };
    (result, buf)
}

fn contents(hasher: &Hasher, buf: &Buffer) -> Vec<Content> {
    let blocks = fingerprint::split(buf);
    let is_stored = |block: &&Block| !fingerprint::is_zero(*block);
    let mut fingerprints = Vec::with_capacity(blocks.len());
    hasher.batch(blocks.iter().filter(is_stored), |fingerprint| {
        fingerprints.push(fingerprint);
    });
    let mut fingerprints = fingerprints.into_iter();
    blocks
        .iter()
        .map(|block| {
            is_stored(&block).then_some(())?;
            Some((fingerprints.next()?, fingerprint::crc32c(block)))
        })
        .collect()
}

/// Gets a stable block for every content.
async fn store(claims: &mut Claims, contents: &[Content], mut buf: Buffer) -> (Result<()>, Buffer) {
    let mut attempts = 0;
    loop {
        match claims.claim(contents) {
            Ok(Round::Full) => {
                claims.give_back();
                attempts += 1;
                if attempts > RECLAIM_ATTEMPTS || !claims.shared.reclaim_space().await {
                    return (Err(claims.shared.no_space()), buf);
                }
            }
            Ok(Round::Claimed { waits }) => {
                let (result, back) = claims.write_new(buf).await;
                buf = back;
                if let Err(error) = result {
                    return (Err(error), buf);
                }
                // Only now, with nothing of our own in flight, may we wait for others: a circle of
                // commands that wait for each other cannot close.
                if waits.is_empty() {
                    return (Ok(()), buf);
                }
                for wait in waits {
                    wait.wait().await;
                }
            }
            Err(error) => return (Err(error), buf),
        }
    }
}

enum Round {
    /// Some contents need room that is not there.
    Full,
    /// All contents have a block but those that other commands are writing.
    Claimed { waits: Vec<Arc<Event>> },
}

/// The references and blocks that one command holds until its record is committed.
struct Claims {
    shared: Arc<Shared>,
    owner: Owner,
    /// Per sub-block: the block it holds one reference of.
    taken: Vec<Option<Pba>>,
    /// New blocks of this round, not yet stable, with the sub-block whose bytes they get.
    new: Vec<(usize, Pba)>,
    /// A drive may be writing to the new blocks.
    writing: bool,
}

impl Claims {
    fn new(shared: Arc<Shared>, count: usize) -> Self {
        let owner = lock(&shared.state).new_owner();
        Self {
            shared,
            owner,
            taken: vec![None; count],
            new: Vec::new(),
            writing: false,
        }
    }

    /// Looks up every content that has no block yet.
    fn claim(&mut self, contents: &[Content]) -> Result<Round> {
        let shared = self.shared.clone();
        let mut state = lock(&shared.state);
        state.check_writable()?;
        let drive = state.space.roomiest_drive();
        let mut waits = Vec::new();
        for (at, content) in contents.iter().enumerate() {
            let Some((fingerprint, crc32c)) = content else {
                continue;
            };
            if self.taken[at].is_some() {
                continue;
            }
            match state.claim(self.owner, drive, *fingerprint, *crc32c) {
                Claim::Known(pba) => self.taken[at] = Some(pba),
                Claim::New(pba) => {
                    self.taken[at] = Some(pba);
                    self.new.push((at, pba));
                }
                Claim::Wait(event) => waits.push(event),
                Claim::Full => return Ok(Round::Full),
            }
        }
        Ok(Round::Claimed { waits })
    }

    /// Writes the new blocks, and lets others share them. After an error they are given back.
    async fn write_new(&mut self, mut buf: Buffer) -> (Result<()>, Buffer) {
        let shared = self.shared.clone();
        for (at, drive) in shared.drives.iter().enumerate() {
            let extents = coalesce(
                self.new
                    .iter()
                    .filter(|(_, pba)| usize::from(pba.drive()) == at)
                    .map(|(sub_block, pba)| (*pba, sub_block * BLOCK_BYTES)),
            );
            if extents.is_empty() {
                continue;
            }
            self.writing = true;
            let (result, back) = drive.write(buf, &extents).await;
            self.writing = false;
            buf = back;
            if let Err(error) = result {
                self.give_back();
                return (Err(shared.drive_error("write", &**drive, &error)), buf);
            }
        }
        let mut state = lock(&shared.state);
        for (_, pba) in self.new.drain(..) {
            state.mark_stable(pba);
        }
        drop(state);
        (Ok(()), buf)
    }

    /// Gives everything back that this command holds.
    fn give_back(&mut self) {
        if self.taken.iter().all(Option::is_none) {
            return;
        }
        let mut state = lock(&self.shared.state);
        #[cfg(test)]
        if crate::ablation::is(crate::ablation::Broken::KeepReferences) && self.new.is_empty() {
            return;
        }
        for (_, pba) in self.new.drain(..) {
            // All references of a block in flight are this command's own.
            for taken in &mut self.taken {
                taken.take_if(|held| *held == pba);
            }
            state.abandon(pba, self.writing);
        }
        for pba in self.taken.iter_mut().filter_map(Option::take) {
            state.drop_reference(pba);
        }
        let durable = state.durable;
        state.space.release(durable);
    }

    /// Turns the claims into the record of the command; from here on the record holds the references.
    /// `None`: nothing changes.
    fn into_record(
        mut self,
        volume: u32,
        start: u64,
        contents: &[Content],
    ) -> Result<Option<Record>> {
        let shared = self.shared.clone();
        let mut state = lock(&shared.state);
        let entry = state.volumes.get(&volume);
        let entry =
            entry.ok_or_else(|| EngineError::not_found(format!("volume {volume} was deleted")))?;
        let mut entries = Vec::with_capacity(contents.len());
        for (at, content) in contents.iter().enumerate() {
            let old = entry.map.lookup(start + at as u64);
            let new = match (content, self.taken[at]) {
                (None, None) => None,
                (Some((fingerprint, crc32c)), Some(pba)) => Some(NewBlock {
                    pba,
                    fingerprint: *fingerprint,
                    crc32c: *crc32c,
                }),
                _ => return Err(EngineError::internal("a write lost track of its blocks")),
            };
            entries.push(MapEntry { old, new });
        }
        if entries
            .iter()
            .all(|entry| entry.old == entry.new.map(|new| new.pba))
        {
            for pba in self.taken.iter_mut().filter_map(Option::take) {
                state.drop_reference(pba);
            }
            return Ok(None);
        }
        self.taken.clear();
        Ok(Some(Record::Map {
            volume,
            start,
            entries,
        }))
    }
}

impl Drop for Claims {
    fn drop(&mut self) {
        self.give_back();
    }
}
