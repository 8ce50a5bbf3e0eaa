//! Bringing rows of blocks into memory, and pinning them there.
//!
//! After an opening all rows are in the store only. They are entered in groups: then the index and the free space know
//! of them. Rows come into memory and leave it by row pages ([`crate::metadata::block_table`]): when their group is
//! entered, and when a command needs them.
//!
//! Guarantees:
//! * A group is entered once, by one task at a time ([`Shared::load_lock`]). Before that no block of it is allocated,
//!   found or changed.
//! * Row pages are read beside each other and beside everything else. A row page that is not resident does not change, so
//!   what was read is right if the page was not resident all the time. The block table notices if it was, and then it is
//!   read again.
//! * A command pins the row pages that it needs ([`Pins`]) until it is done: two commands cannot evict each other's pages
//!   for ever. So memory can be above its limit by the row pages that commands under way have pinned.

use std::collections::BTreeSet;
use std::sync::Arc;

use meta::{BlockRow, MetaError, Pba};

use crate::hooks::{Current, Hooks};
use crate::metadata::block_table::{
    BlockInfo, GROUP, IN_FLIGHT, ROW_PAGE, Ticket, group_of, row_page_of,
};
use crate::metadata::deferred_dedup::DeferredDedup;
use crate::metadata::index::Found;
use crate::metadata::state::State;
use crate::pool::Shared;
use crate::residency::on_disk_index::{index_entries_are_behind, write_index_entries};
use crate::residency::pages::evict;
use crate::sync::wait::lock;
use crate::{EngineError, Result};

/// Blocks of a group that enter the index in one go under the lock: about 50 us.
const ENTER_BLOCKS: usize = 256;

/// Row pages for which the clock makes some steps when they are not needed any more: enough to come to each
/// of them twice.
const ROW_PAGES_AT_ONCE: usize = 8;

/// Row pages that stay in memory as long as this lives. It must not end while the state is locked.
pub(crate) struct Pins {
    shared: Arc<Shared>,
    row_pages: Vec<Pba>,
}

impl Drop for Pins {
    fn drop(&mut self) {
        if !self.row_pages.is_empty() {
            let mut state = lock(&self.shared.state);
            for first in &self.row_pages {
                state.blocks.unpin(*first);
            }
            state.resident.may_move();
            for _ in 0..self.row_pages.len().div_ceil(ROW_PAGES_AT_ONCE) {
                state.evict_some();
            }
        }
    }
}

/// Row pages that are being read from the store.
struct Loading<'a> {
    shared: &'a Shared,
    tickets: Vec<Ticket>,
}

impl Drop for Loading<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.shared.state);
        for ticket in &self.tickets {
            state.blocks.end_load(*ticket);
        }
    }
}

fn info_of(row: &BlockRow) -> BlockInfo {
    let BlockRow {
        refcount: references,
        fingerprint,
        crc32c,
        has_index_entry: _,
    } = *row;
    BlockInfo {
        references,
        crc32c,
        fingerprint,
    }
}

impl Pins {
    /// Keeps what is here of the wanted row pages, which are not wanted any more then. Whether all of them are here: what
    /// takes no memory, because nothing of it is in use, cannot be kept, and is looked at again by the next call.
    fn pin(&mut self, state: &mut State, wanted: &mut BTreeSet<Pba>) -> bool {
        let mut is_all_here = true;
        wanted.retain(|first| {
            let is_resident = state.blocks.is_resident(*first);
            let is_kept = is_resident && state.blocks.pin(*first);
            if is_kept {
                self.row_pages.push(*first);
            }
            is_all_here &= is_resident;
            !is_kept
        });
        is_all_here
    }
}

/// Rows of blocks as the table has them.
fn check_rows(state: &State, rows: &[(Pba, BlockRow)]) -> Result<Vec<(Pba, BlockInfo)>> {
    if let Some((pba, row)) = rows.iter().find(|(_, row)| row.refcount >= IN_FLIGHT) {
        let count = row.refcount;
        return Err(EngineError::contradiction(format_args!(
            "block {pba} has {count} references"
        )));
    }
    if let Some((pba, _)) = rows.iter().find(|(pba, _)| !state.space().contains(*pba)) {
        return Err(EngineError::no_such_block(*pba));
    }
    Ok(rows.iter().map(|(pba, row)| (*pba, info_of(row))).collect())
}

/// A block is found by its content from now on, if it still is what the store says.
fn enter(state: &mut State, pba: Pba, row: &BlockRow) {
    let info = state.blocks.get(pba);
    let is_used = info.references & !IN_FLIGHT > 0;
    if !is_used || !row.fingerprint.is_some() || info.fingerprint != row.fingerprint {
        return;
    }
    let State {
        blocks,
        index,
        deferred,
        on_disk_index,
        ..
    } = state;
    let newer = deferred
        .as_deref()
        .and_then(|deferred| deferred.newest(&row.fingerprint));
    let newer = newer.filter(|newer| *newer != pba);
    let is_deferred = |deferred: &Option<Box<DeferredDedup>>, known| {
        let deferred = deferred.as_deref();
        deferred.is_some_and(|deferred| deferred.is_about(known, &row.fingerprint))
    };
    // Of two old blocks of the same content both are entered, if the first one is not here to be
    // compared: either can be found.
    let known = index.find_with(blocks, &row.fingerprint, |known| {
        is_deferred(deferred, known)
    });
    let mut twins = newer;
    if let Found::Resident(known) = known {
        if known == pba || !is_deferred(deferred, known) {
            Current::observe(|| on_disk_index.displaces(known != pba));
            return; // it is there, or another old one of the same content
        }
        twins = Some(known);
    }
    if let (Some(newer), Some(deferred)) = (twins, deferred) {
        deferred.add_twin(newer, pba);
        Current::observe(|| on_disk_index.displaces(true));
    }
    // The index entry may lead to the newer one by now.
    if !index.insert(blocks, pba, known.resident()) && (newer.is_some() || !row.has_index_entry) {
        on_disk_index.wait_loaded(pba, row.fingerprint);
    }
}

/// Brings in what is known of these addresses, and keeps it here.
pub(crate) async fn pin_rows(
    shared: &Arc<Shared>,
    pbas: impl IntoIterator<Item = Pba>,
) -> Result<Pins> {
    let mut wanted: BTreeSet<Pba> = pbas.into_iter().map(row_page_of).collect();
    let mut pins = Pins {
        shared: shared.clone(),
        row_pages: Vec::new(),
    };
    loop {
        let mut loading = Loading {
            shared,
            tickets: Vec::new(),
        };
        let mut group = None;
        {
            let mut state = lock(&shared.state);
            if pins.pin(&mut state, &mut wanted) {
                return Ok(pins);
            }
            let missing = wanted.iter().filter(|it| !state.blocks.is_resident(**it));
            let missing: Vec<Pba> = missing.copied().collect();
            for first in &missing {
                if state.blocks.is_entered(*first) {
                    loading.tickets.push(state.blocks.begin_load(*first));
                } else {
                    group = Some(group_of(*first));
                }
            }
        }
        if let Some(group) = group {
            enter_group(shared, group).await?;
        }
        if !loading.tickets.is_empty() {
            load_row_pages(shared, &loading, &mut pins, &mut wanted).await?;
        }
    }
}

async fn load_row_pages(
    shared: &Shared,
    loading: &Loading<'_>,
    pins: &mut Pins,
    wanted: &mut BTreeSet<Pba>,
) -> Result<()> {
    let firsts = loading.tickets.iter().map(|ticket| ticket.first);
    let rows = rows_of(shared, firsts.collect()).await?;
    let mut state = lock(&shared.state);
    for (ticket, rows) in loading.tickets.iter().zip(&rows) {
        let infos = check_rows(&state, rows)?;
        state.blocks.load(*ticket, &infos);
    }
    pins.pin(&mut state, wanted);
    state.evict_some();
    Ok(())
}

/// The store's rows of row pages.
async fn rows_of(shared: &Shared, firsts: Vec<Pba>) -> Result<Vec<Vec<(Pba, BlockRow)>>> {
    let store = shared.store.clone();
    let rows = shared.block_on(move || {
        let rows = |first: &Pba| store.blocks(*first, Pba(first.0 + ROW_PAGE), usize::MAX);
        let rows = firsts.iter().map(rows);
        rows.collect::<std::result::Result<Vec<_>, MetaError>>()
    });
    Ok(rows.await?)
}

/// What the store says of row pages; some may have come into memory, and be changed, by now.
pub(crate) async fn stored_infos(
    shared: &Shared,
    firsts: Vec<Pba>,
) -> Result<Vec<(Pba, BlockInfo)>> {
    let rows = rows_of(shared, firsts).await?;
    check_rows(&lock(&shared.state), &rows.concat())
}

/// Lets index and free space know of a group of blocks, if they do not. Nothing waits between the
/// first and the last change of the state, so a command that is dropped leaves a whole group or none.
pub(crate) async fn enter_group(shared: &Arc<Shared>, first: Pba) -> Result<()> {
    let _lock = shared.load_lock.lock().await;
    if index_entries_are_behind(shared) {
        write_index_entries(shared).await?;
    }
    if lock(&shared.state).blocks.is_entered(first) {
        return Ok(());
    }
    let store = shared.store.clone();
    let end = Pba(first.0 + GROUP);
    let rows = shared.block_on(move || {
        let mut rows = store.blocks(first, end, usize::MAX)?;
        rows.extend(store.blocks(first.fragment(0), end.fragment(0), usize::MAX)?);
        Ok::<_, MetaError>(rows)
    });
    let rows = rows.await?;
    let mut pins = Pins {
        shared: shared.clone(),
        row_pages: Vec::new(),
    };
    {
        let mut state = lock(&shared.state);
        let infos = check_rows(&state, &rows)?;
        let whole = rows.iter().filter(|(pba, _)| !pba.is_fragment());
        let mut used: BTreeSet<Pba> = whole.map(|(pba, _)| *pba).collect();
        let fragments = rows.iter().filter(|(pba, _)| pba.is_fragment());
        if let Some((pba, _)) = fragments
            .clone()
            .find(|(pba, _)| used.contains(&pba.container()))
        {
            let block = pba.container();
            return Err(EngineError::contradiction(format_args!(
                "block {block} holds two things at once"
            )));
        }
        for (pba, _) in fragments {
            state.packs().add_found(*pba);
            used.insert(pba.container());
        }
        let fingerprints = infos.iter().map(|(_, info)| &info.fingerprint);
        for fingerprint in fingerprints.filter(|it| it.is_some()) {
            state.index.at(fingerprint).came();
        }
        state.blocks.enter(first, &infos);
        state.space().learn(first, used.into_iter());
        // What is entered below is compared with what is here.
        let mut row_pages: BTreeSet<Pba> = rows.iter().map(|(pba, _)| row_page_of(*pba)).collect();
        pins.pin(&mut state, &mut row_pages);
    }
    for rows in rows.chunks(ENTER_BLOCKS) {
        let mut state = lock(&shared.state);
        let damage = lock(&shared.damage);
        for (pba, row) in rows {
            if damage.describes(*pba, &state.blocks.get(*pba)) {
                state.on_disk_index.hide(*pba);
            } else {
                enter(&mut state, *pba, row);
            }
        }
    }
    drop(pins);
    evict(shared);
    Ok(())
}

/// Enters groups until a block can be handed out; false if everything is entered and none can.
pub(crate) async fn find_free(shared: &Arc<Shared>) -> Result<bool> {
    loop {
        let next = {
            let state = lock(&shared.state);
            if state.space().has_free_group() {
                return Ok(true);
            }
            state.blocks.next_unentered()
        };
        match next {
            Some(first) => enter_group(shared, first).await?,
            None => return Ok(false),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::future::{Future, poll_fn};
    use std::task::Poll;

    use drives::{Drive, Extent, MemoryDrive};
    use meta::{Compression, JournalConfig, MemoryMedia, MemoryStore, VerifyPolicy};
    use reactor::BufferPool;

    use crate::metadata::block_table::{Eviction, ROW_PAGE_BYTES};
    use crate::{
        BOUNCE_BYTES_MIN, Blocking, Engine, EngineConfig, EngineParts, SUB_BLOCK_BYTES, Volume,
        VolumeSpec,
    };

    use super::*;

    /// Blocks of the stories' volumes: many times the memory that there is for them.
    pub(crate) const BLOCKS: u32 = 600;
    const CACHE_BYTES: u64 = 4 * ROW_PAGE_BYTES;

    /// A pool in memory with little memory for metadata.
    pub(crate) struct Pool {
        pub(crate) store: Arc<MemoryStore>,
        media: Arc<MemoryMedia>,
        drive: Arc<MemoryDrive>,
        buffers: BufferPool,
        pub(crate) blocking: Blocking,
        pub(crate) config: EngineConfig,
    }

    impl Pool {
        pub(crate) fn new() -> Self {
            Self {
                store: Arc::new(MemoryStore::new()),
                media: Arc::new(MemoryMedia::new(256 << 10)),
                drive: Arc::new(MemoryDrive::new(
                    crate::LABEL_BLOCKS + 3 * u64::from(BLOCKS),
                )),
                buffers: BufferPool::new(4 << 20).unwrap(),
                blocking: Blocking::Inline,
                config: EngineConfig {
                    bounce_bytes: BOUNCE_BYTES_MIN,
                    metadata_cache_bytes: CACHE_BYTES,
                    journal: JournalConfig {
                        payload_bytes_max: 16 << 10,
                        reserve_bytes: 1 << 10,
                    },
                    ..EngineConfig::default()
                },
            }
        }

        pub(crate) async fn open(&self) -> Arc<Engine> {
            let engine = Engine::open(EngineParts {
                drives: vec![self.drive.clone()],
                journal: self.media.clone(),
                store: self.store.clone(),
                hash_keys: [9; 32].into(),
                fingerprint: meta::FingerprintFunction::Clnh,
                blocking: self.blocking,
                boot: None,
                config: self.config.clone(),
            });
            engine.await.unwrap()
        }

        pub(crate) async fn volume(
            &self,
            engine: &Arc<Engine>,
            name: &str,
            compression: Compression,
        ) -> Arc<Volume> {
            let spec = VolumeSpec {
                name: name.to_owned(),
                size_bytes: u64::from(BLOCKS) * SUB_BLOCK_BYTES as u64,
                lba_bytes: 4096,
                nsid: None,
                uuid: None,
                dedup: true,
                compression,
                verify: VerifyPolicy::Trust,
                domain: String::new(),
            };
            engine.create_volume(spec).await.unwrap()
        }

        /// Writes content `first`, `first + 1`, ... to a volume, 24 blocks at a time.
        pub(crate) async fn write(&self, volume: &Volume, first: u32) {
            for start in (0..BLOCKS).step_by(24) {
                self.write_some(volume, start, first + start, 24).await;
            }
        }

        /// Writes contents from `first` on to so many blocks of a volume.
        pub(crate) async fn write_some(
            &self,
            volume: &Volume,
            start: u32,
            first: u32,
            count: usize,
        ) {
            let mut buf = self.buffers.alloc(count * SUB_BLOCK_BYTES).await;
            buf.fill(0);
            for (content, block) in (first..).zip(buf.chunks_exact_mut(SUB_BLOCK_BYTES)) {
                for word in block.chunks_exact_mut(64) {
                    word[..4].copy_from_slice(&(content + 1).to_le_bytes());
                }
            }
            let offset = u64::from(start) * SUB_BLOCK_BYTES as u64;
            volume.write(offset, buf, false).await.0.unwrap();
        }

        /// The number at the beginning of a block of a volume: its content and one.
        pub(crate) async fn read(&self, volume: &Volume, at: u32) -> Result<u32> {
            let buf = self.buffers.alloc(SUB_BLOCK_BYTES).await;
            let offset = u64::from(at) * SUB_BLOCK_BYTES as u64;
            let (result, buf) = volume.read(offset, buf).await;
            result.map(|()| number_of(&buf))
        }

        /// Changes the block with a content on the drive.
        pub(crate) async fn damage(&self, content: u32) {
            for block in crate::LABEL_BLOCKS..self.drive.blocks() {
                let extents = [Extent {
                    block,
                    buffer_offset: 0,
                    blocks: 1,
                }];
                let buf = self.buffers.alloc(SUB_BLOCK_BYTES).await;
                let (read, mut buf) = self.drive.read(buf, &extents).await;
                read.unwrap();
                if number_of(&buf) == content + 1 {
                    buf[100] ^= 1;
                    self.drive.write(buf, &extents).await.0.unwrap();
                    return;
                }
            }
            panic!("content {content} is nowhere");
        }
    }

    fn number_of(block: &[u8]) -> u32 {
        block
            .first_chunk()
            .map_or(0, |bytes| u32::from_le_bytes(*bytes))
    }

    pub(crate) fn used_blocks(engine: &Engine) -> u64 {
        engine.status().used_bytes / SUB_BLOCK_BYTES as u64
    }

    pub(crate) async fn is_right(engine: &Engine) {
        let report = engine.check_online().await.unwrap();
        assert_eq!(report.findings_total, 0, "{report:?}");
    }

    /// Memory for what is noted of row pages is a part of what is told, and of what has a bound.
    fn all_is_counted(engine: &Engine) {
        let state = lock(&engine.shared.state);
        assert!(state.blocks.pages_bytes() > 0);
        assert_eq!(state.resident.pages_bytes(), state.blocks.pages_bytes());
    }

    #[test]
    fn with_memory_for_a_hundredth_of_the_blocks_no_duplicate_is_missed_and_every_block_is_freed() {
        reactor::run(reactor::Config::default(), async {
            for compression in [Compression::Off, Compression::Lz4] {
                let pool = Pool::new();
                let engine = pool.open().await;
                let first = pool.volume(&engine, "first", compression).await;
                pool.write(&first, 0).await;
                engine.maintain().await.unwrap();
                let used = used_blocks(&engine);
                all_is_counted(&engine);
                evict(&engine.shared);
                all_is_counted(&engine);
                assert!(engine.status().metadata_resident_bytes <= CACHE_BYTES);
                assert!(!lock(&engine.shared.state).blocks.is_whole());

                // The same again is found, block by block, while the pool is in use and after a restart.
                let second = pool.volume(&engine, "second", compression).await;
                pool.write(&second, 0).await;
                engine.maintain().await.unwrap();
                assert_eq!(used_blocks(&engine), used);
                is_right(&engine).await;
                engine.shutdown().await.unwrap();
                let engine = pool.open().await;
                engine.load().await.unwrap();
                let third = pool.volume(&engine, "third", compression).await;
                pool.write(&third, 0).await;
                assert_eq!(used_blocks(&engine), used);

                // Half of it is replaced: what nobody refers to any more goes, what is shared stays.
                pool.write(&third, BLOCKS / 2).await;
                engine.maintain().await.unwrap();
                is_right(&engine).await;
                for name in ["first", "second"] {
                    engine.delete_volume(name).await.unwrap();
                }
                engine.maintain().await.unwrap();
                is_right(&engine).await;
                evict(&engine.shared);
                let status = engine.status();
                assert!(status.metadata_resident_bytes <= CACHE_BYTES);
                assert_eq!(status.indexed_blocks, u64::from(BLOCKS));
                engine.delete_volume("third").await.unwrap();
                engine.maintain().await.unwrap();
                assert_eq!(
                    (used_blocks(&engine), engine.status().indexed_blocks),
                    (0, 0)
                );
                assert!(lock(&engine.shared.state).blocks.is_whole());
            }
        })
        .unwrap();
    }

    #[test]
    fn what_takes_no_memory_when_it_is_wanted_is_in_memory_when_all_is() {
        reactor::run(reactor::Config::default(), async {
            let mut pool = Pool::new();
            pool.blocking = Blocking::Yielding;
            let engine = pool.open().await;
            let shared = &engine.shared;
            let first = pool.volume(&engine, "first", Compression::Off).await;
            pool.write(&first, 0).await;
            engine.maintain().await.unwrap();
            evict(shared);
            let is_here = |pba: Pba| lock(&shared.state).blocks.is_resident(pba);
            let evicted = (0..u64::from(BLOCKS)).map(|at| Pba::new(0, at));
            let evicted = evicted.into_iter().find(|pba| !is_here(*pba)).unwrap();
            let unused = row_page_of(Pba::new(0, u64::from(BLOCKS + BLOCKS / 2)));
            assert!(is_here(unused), "nothing of it is in use");

            let mut pinning = Box::pin(pin_rows(shared, [evicted, unused]));
            poll_fn(|context| {
                assert!(pinning.as_mut().poll(context).is_pending());
                Poll::Ready(())
            })
            .await;
            let second = pool.volume(&engine, "second", Compression::Off).await;
            pool.write(&second, BLOCKS).await;
            engine.maintain().await.unwrap();
            while lock(&shared.state).blocks.evict(unused, u64::MAX) == Eviction::Stays {}
            assert!(!is_here(unused), "some of it is in use");
            let _pins = pinning.await.unwrap();
            assert!(is_here(evicted) && is_here(unused));
        })
        .unwrap();
    }
}
