//! Bringing into memory what the store holds, while the pool is in use.
//!
//! An opened pool knows nothing of its blocks. A command first brings in what it changes: the chunks of
//! the blocks that are mapped in its range ([`crate::paging`] has the maps). Background work brings in
//! everything else. What is not loaded was not changed since the pool was opened, so the store has the
//! truth of it, and what is loaded stays.
//!
//! Guarantees:
//! * Blocks are handed out only where it is known which ones are free.
//! * A content that is written before its older block is loaded is stored once more, and the two become
//!   one afterwards: what refers to the new block is mapped to the older one, if their bytes are equal,
//!   by an ordinary record. Memory for that is bounded by [`LATE_MAX`]; beyond, writes wait. (A content
//!   that is on its way to the drive at the moment when the last piece is loaded stays stored twice.)

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use drives::BLOCK_BYTES;
use meta::{BlockRow, MapEntry, MetaError, NewBlock, Pba, Record};

use crate::Result;
use crate::engine::Shared;
use crate::index::{BlockInfo, CHUNK, IN_FLIGHT};
use crate::pack_read::Fetch;
use crate::recovery::{damaged, outside};
use crate::state::State;
use crate::wait::{lock, yield_once};

/// Mappings to new blocks that are remembered until everything is loaded.
const LATE_MAX: usize = if cfg!(test) { 40 } else { 1 << 20 };
/// Blocks of a chunk that enter the index in one go under the lock: about 50 us.
const ENTER_BLOCKS: usize = 256;

/// What was stored before everything was loaded.
#[derive(Default)]
pub(crate) struct Late {
    /// New blocks that have a fingerprint.
    blocks: HashSet<Pba>,
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

    pub(crate) fn add_block(&mut self, pba: Pba) {
        self.blocks.insert(pba);
    }

    pub(crate) fn add_mapping(&mut self, volume: u32, sub_block: u64, pba: Pba) {
        if self.blocks.contains(&pba) {
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

impl State {
    /// A block is found by its content from now on, if it still is what the store says.
    fn enter(&mut self, pba: Pba, row: &BlockRow) {
        let info = self.blocks.get(pba);
        let is_used = info.references & !IN_FLIGHT > 0;
        if !is_used || !row.fingerprint.is_some() || info.fingerprint != row.fingerprint {
            return;
        }
        let known = self.index.find(&self.blocks, &row.fingerprint);
        if let Some(known) = known {
            let late = self.late.as_mut();
            let late = late.filter(|late| known != pba && late.blocks.contains(&known));
            let Some(late) = late else {
                return; // it is there, or another old one of the same content
            };
            late.twins.insert(known, pba);
        }
        self.index.insert(&self.blocks, pba, known);
    }
}

/// The first block of the chunk of this one, or of the block that this fragment is in.
fn chunk_of(pba: Pba) -> Pba {
    Pba::new(pba.drive(), pba.block() - pba.block() % CHUNK)
}

impl Shared {
    /// Brings in what is known of blocks.
    pub(crate) async fn bring_in_blocks(&self, blocks: impl Iterator<Item = Pba>) -> Result<()> {
        if self.loaded.load(Ordering::Acquire) {
            return Ok(());
        }
        let chunks: BTreeSet<Pba> = {
            let state = lock(&self.state);
            let unloaded = blocks.filter(|pba| !state.blocks.is_loaded(*pba));
            unloaded.map(chunk_of).collect()
        };
        for first in chunks {
            self.load_chunk(first).await?;
        }
        Ok(())
    }

    /// As [`bring_in_blocks`](Self::bring_in_blocks), for a write: it may have to wait until everything is
    /// loaded, so that what is remembered of such writes stays bounded.
    pub(crate) async fn bring_in_blocks_to_write(
        &self,
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

    /// Loads the blocks of a chunk. Nothing waits between the first and the last change of the state, so
    /// a command that is dropped leaves a whole chunk or none.
    pub(crate) async fn load_chunk(&self, first: Pba) -> Result<()> {
        let _turn = self.load_turn.lock().await;
        if lock(&self.state).blocks.is_loaded(first) {
            return Ok(());
        }
        let store = self.store.clone();
        let end = Pba(first.0 + CHUNK);
        let rows = self.block_on(move || {
            let mut rows = store.blocks(first, end, usize::MAX)?;
            rows.extend(store.blocks(first.fragment(0), end.fragment(0), usize::MAX)?);
            Ok::<_, MetaError>(rows)
        });
        let rows = rows.await?;
        if let Some((pba, row)) = rows.iter().find(|(_, row)| row.refcount >= IN_FLIGHT) {
            let count = row.refcount;
            return Err(damaged(format_args!("block {pba} has {count} references")));
        }
        {
            let mut state = lock(&self.state);
            if let Some((pba, _)) = rows.iter().find(|(pba, _)| !state.space.contains(*pba)) {
                return Err(outside(*pba));
            }
            let infos = rows.iter().map(|(pba, row)| {
                let BlockRow {
                    refcount: references,
                    fingerprint,
                    crc32c,
                } = *row;
                let info = BlockInfo {
                    references,
                    crc32c,
                    fingerprint,
                };
                (*pba, info)
            });
            let whole = rows.iter().filter(|(pba, _)| !pba.is_fragment());
            let mut used: BTreeSet<Pba> = whole.map(|(pba, _)| *pba).collect();
            let fragments = rows.iter().filter(|(pba, _)| pba.is_fragment());
            if let Some((pba, _)) = fragments
                .clone()
                .find(|(pba, _)| used.contains(&pba.container()))
            {
                let block = pba.container();
                return Err(damaged(format_args!(
                    "block {block} holds two things at once"
                )));
            }
            for (pba, _) in fragments {
                state.packs.add_found(*pba);
                used.insert(pba.container());
            }
            state.blocks.load(first, infos);
            state.space.learn(first, used.into_iter());
        }
        for rows in rows.chunks(ENTER_BLOCKS) {
            let mut state = lock(&self.state);
            let damage = lock(&self.damage);
            for (pba, row) in rows {
                if !damage.describes(*pba, &state.blocks.get(*pba)) {
                    state.enter(*pba, row);
                }
            }
        }
        Ok(())
    }

    /// Loads some more blocks; false when all are loaded.
    pub(crate) async fn load_some(&self) -> Result<bool> {
        if self.loaded.load(Ordering::Acquire) {
            return Ok(false);
        }
        let next = lock(&self.state).blocks.next_unloaded();
        match next {
            Some(first) => self.load_chunk(first).await?,
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
    pub(crate) async fn load_all(&self) -> Result<()> {
        while self.load_some().await? {
            yield_once().await;
        }
        Ok(())
    }

    /// Loads until a block can be handed out; false if everything is loaded and none can.
    pub(crate) async fn find_free(&self) -> Result<bool> {
        loop {
            let next = {
                let state = lock(&self.state);
                if state.space.has_free_group() {
                    return Ok(true);
                }
                state.blocks.next_unloaded()
            };
            match next {
                Some(first) => self.load_chunk(first).await?,
                None => return Ok(false),
            }
        }
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
        let info = {
            let mut state = lock(&self.state);
            let entry = state.volumes.get(&volume).filter(|entry| entry.is_active());
            let is_there = entry.is_some_and(|entry| entry.is_mapped_to(sub_block, new));
            let (info, other) = (state.blocks.get(old), state.blocks.get(new));
            let is_same = (info.fingerprint, info.crc32c) == (other.fingerprint, other.crc32c);
            if !is_there || !is_same || !state.can_share(old) {
                return Ok(());
            }
            state.blocks.entry(old).references += 1;
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
            state.drop_reference(pba);
            let durable = state.durable;
            state.space.release(durable);
        }
    }
}
