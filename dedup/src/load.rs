//! Bringing into memory what the store holds, while the pool is in use.
//!
//! An opened pool knows nothing of its blocks. A command first brings in what it changes: what is known of
//! the blocks that are mapped in its range ([`crate::paging`] has the maps, [`crate::chunks`] the blocks).
//! Background work enters all others into index and free space.
//!
//! Guarantees:
//! * Blocks are handed out only where it is known which ones are free.
//! * A content that is written before its older block is loaded is stored once more, and the two become
//!   one afterwards: what refers to the new block is mapped to the older one, if their bytes are equal,
//!   by an ordinary record. Memory for that is bounded by [`LATE_MAX`]; beyond, writes wait. (A content
//!   that is on its way to the drive at the moment when the last piece is loaded stays stored twice.)

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use drives::BLOCK_BYTES;
use meta::{Fingerprint, MapEntry, NewBlock, Pba, Record};

use crate::Result;
use crate::engine::Shared;
use crate::pack_read::Fetch;
use crate::wait::{lock, yield_once};

/// Mappings to new blocks that are remembered until everything is loaded.
const LATE_MAX: usize = if cfg!(test) { 40 } else { 1 << 20 };

/// What was stored before everything was loaded.
#[derive(Default)]
pub(crate) struct Late {
    /// New blocks that have a fingerprint.
    blocks: HashMap<Pba, Fingerprint>,
    /// The last one of each fingerprint.
    newest: HashMap<Fingerprint, Pba>,
    /// Volume and sub-block that were mapped to one of them.
    mappings: Vec<(u32, u64, Pba)>,
    /// The older block of the same fingerprint.
    twins: HashMap<Pba, Pba>,
}

impl Late {
    /// Whether writes have to wait until everything is loaded.
    fn is_full(&self) -> bool {
        self.blocks.len().max(self.mappings.len()) >= LATE_MAX
    }

    pub(crate) fn add_block(&mut self, pba: Pba, fingerprint: Fingerprint) {
        self.blocks.insert(pba, fingerprint);
        self.newest.insert(fingerprint, pba);
    }

    /// The block that was new with this content, and may still have it.
    pub(crate) fn newest(&self, fingerprint: &Fingerprint) -> Option<Pba> {
        self.newest.get(fingerprint).copied()
    }

    /// Whether a block was new with this content, and may still have it.
    pub(crate) fn is_about(&self, pba: Pba, fingerprint: &Fingerprint) -> bool {
        self.blocks.get(&pba) == Some(fingerprint)
    }

    /// A new block and an older one have the same content.
    pub(crate) fn add_twin(&mut self, new: Pba, old: Pba) {
        self.twins.insert(new, old);
    }

    pub(crate) fn add_mapping(&mut self, volume: u32, sub_block: u64, pba: Pba) {
        if self.blocks.contains_key(&pba) {
            self.mappings.push((volume, sub_block, pba));
        }
    }

    /// What is to be mapped to an older block.
    fn merges(self) -> Vec<Merge> {
        let Self {
            mappings, twins, ..
        } = self;
        let merge = |(volume, sub_block, new)| {
            let old = *twins.get(&new)?;
            Some(Merge {
                volume,
                sub_block,
                new,
                old,
            })
        };
        mappings.into_iter().filter_map(merge).collect()
    }
}

/// A mapping to a new block, and the older block that it is to lead to.
pub(crate) struct Merge {
    volume: u32,
    sub_block: u64,
    new: Pba,
    old: Pba,
}

impl Shared {
    /// Brings in what is known of blocks, to be used soon.
    pub(crate) async fn bring_in_blocks(
        self: &Arc<Self>,
        blocks: impl Iterator<Item = Pba>,
    ) -> Result<()> {
        if !self.is_partial.load(Ordering::Acquire) {
            return Ok(());
        }
        let away: Vec<Pba> = {
            let state = lock(&self.state);
            blocks.filter(|pba| !state.blocks.is_here(*pba)).collect()
        };
        self.keep_here(away).await.map(drop)
    }

    /// As [`bring_in_blocks`](Self::bring_in_blocks), for a write: it may have to wait until everything is
    /// loaded, so that what is remembered of such writes stays bounded.
    pub(crate) async fn bring_in_blocks_to_write(
        self: &Arc<Self>,
        blocks: impl Iterator<Item = Pba>,
    ) -> Result<()> {
        let is_full = {
            let state = lock(&self.state);
            state.late.as_ref().is_some_and(|late| late.is_full())
        };
        match is_full {
            true => self.load_all().await,
            false => self.bring_in_blocks(blocks).await,
        }
    }

    /// Loads some more blocks; false when all are loaded.
    pub(crate) async fn load_some(self: &Arc<Self>) -> Result<bool> {
        if self.loaded.load(Ordering::Acquire) {
            return Ok(false);
        }
        let next = lock(&self.state).blocks.next_unentered();
        match next {
            Some(first) => {
                self.enter_group(first).await?;
                self.write_hints().await?;
            }
            None => {
                let late = {
                    let mut state = lock(&self.state);
                    self.loaded.store(true, Ordering::Release);
                    state.late.take()
                };
                if let Some(late) = late {
                    lock(&self.merges).extend(late.merges());
                    tracing::info!("all blocks are known");
                }
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Loads all blocks: for work that looks at all of them, and may wait.
    pub(crate) async fn load_all(self: &Arc<Self>) -> Result<()> {
        while self.load_some().await? {
            yield_once().await;
        }
        Ok(())
    }

    /// Maps what was stored once more while its older block was not loaded to that one.
    pub(crate) async fn merge_late(self: &Arc<Self>) -> Result<()> {
        loop {
            let Some(merge) = lock(&self.merges).pop() else {
                return Ok(());
            };
            self.merge(&merge).await?;
            yield_once().await;
        }
    }

    async fn merge(self: &Arc<Self>, merge: &Merge) -> Result<()> {
        let Merge {
            volume,
            sub_block,
            new,
            old,
        } = *merge;
        let core = match lock(&self.state).volumes.get(&volume) {
            Some(entry) => entry.core.clone(),
            None => return Ok(()),
        };
        let buf = self.bounce(2 * BLOCK_BYTES).await;
        let guard = core.range_lock.exclusive(sub_block, sub_block + 1).await;
        self.bring_in(&core, sub_block, sub_block + 1).await?;
        let _here = self.keep_here([old, new]).await?;
        let info = {
            let mut state = lock(&self.state);
            let entry = state.volumes.get(&volume).filter(|entry| entry.is_active());
            let is_there = entry.is_some_and(|entry| entry.is_mapped_to(sub_block, new));
            let (info, other) = (state.blocks.get(old), state.blocks.get(new));
            let is_same = (info.fingerprint, info.crc32c) == (other.fingerprint, other.crc32c);
            if !is_there || !is_same || !state.can_share(old) {
                return Ok(());
            }
            state.take(old);
            info
        };
        // Given back on every way out but success.
        let mut taken = Taken {
            shared: self,
            pba: Some(old),
        };
        let mut buf = buf;
        for (at, pba) in [old, new].into_iter().enumerate() {
            let Some(drive) = self.drives.get(usize::from(pba.drive())) else {
                return Ok(());
            };
            let fetch = Fetch::new([(pba, at * BLOCK_BYTES)].into_iter());
            let (result, back) = drive.read(buf, fetch.extents()).await;
            buf = back;
            if result.is_err() {
                return Ok(()); // two copies are waste, no damage
            }
            fetch.unpack(&mut buf);
        }
        let (first, second) = buf.split_at(BLOCK_BYTES);
        if first != second {
            return Ok(());
        }
        let entry = MapEntry {
            old: Some(new),
            new: Some(NewBlock {
                pba: old,
                fingerprint: info.fingerprint,
                crc32c: info.crc32c,
            }),
        };
        let record = Record::Map {
            volume,
            start: sub_block,
            entries: vec![entry],
        };
        self.commit(record, Some(guard)).await?;
        taken.pba = None;
        Ok(())
    }
}

/// A reference that is given back.
struct Taken<'a> {
    shared: &'a Shared,
    pba: Option<Pba>,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if let Some(pba) = self.pba {
            let mut state = lock(&self.shared.state);
            state.give_back(pba);
            let durable = state.durable;
            state.space.release(durable);
        }
    }
}
