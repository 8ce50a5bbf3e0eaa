//! Who holds the metadata, and what is written to them: see the head of [the room](super).
//!
//! Locks are taken in this order: `making`, `syncing`, `state`.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use uuid::Uuid;

use super::COPIES_WANTED;
use super::area::{BLOCK, MetadataArea, PendingIo};
use super::change::{Change, encode_identity};
use super::dirty::DirtyBlocks;
use super::folder::{Folder, MemoryFolder, PoolFolder};
use super::layout::Superblock;
use super::log::{LogPosition, frame, frame_blocks, read_frame};
use super::state::{Log, Mark, Member, OnDrivesState, State, Syncing, Watched, erase};
use crate::error::MetaError;
use crate::journal::{FileMedia, JournalMedia, MemoryMedia};
use crate::setting::{ON_DRIVES_KEY, SHARED_KEY, SettingChanges};
use crate::store::{MemoryStore, RocksStore, Store};

/// Blocks of the journal that are written at a time, and writes of them that are on their way at a time.
pub(super) const RUN_BLOCKS: u64 = 256;
const WRITES_MAX: usize = 32;

/// Who holds the metadata of a pool in service, and how it gets to them: what is guaranteed says the head of `on_drives`.
pub struct MetadataOnDrives {
    pub(super) pool: Uuid,
    pub(super) folder: Box<dyn Folder>,
    pub(super) dirty: DirtyBlocks,
    /// One base is made at a time.
    pub(super) making: Mutex<()>,
    pub(super) is_making: AtomicBool,
    /// Nothing is acknowledged that no drive has.
    needs_copy: AtomicBool,
    /// Another node may take the pool over from more than half of the members.
    pub(super) needs_majority: AtomicBool,
    /// Told when this one cannot go on without losing what it acknowledges to that one.
    cut_off: OnceLock<Box<dyn Fn() + Send + Sync>>,
    is_cut_off: AtomicBool,
    /// A member is none any more whose data the journal's syncs flushed.
    lost_data: AtomicBool,
    pub(super) syncing: Mutex<Syncing>,
    pub(super) state: Watched,
}

/// Makes a change of the log again in a store that does not have it, or has it.
pub(super) fn redo(store: &dyn Store, change: &Change) -> Result<(), MetaError> {
    match change {
        Change::Batch(batch) if store.checkpoint()? == batch.checkpoint => {
            // Tried twice, and applied once. Settings may come with a checkpoint that stays as it is.
            store.put_settings(&batch.settings)
        }
        Change::Batch(batch) => store.apply(batch),
        Change::Segments(range, rows) => store.put_segments(range.clone(), rows),
        Change::Settings(changes) => store.put_settings(changes),
        Change::Identity(_) => Ok(()),
    }
}

/// Who were members last, as areas say: those of the newest generation, and, where one of these knows of an earlier one alone, of that too.
fn last_members(found: &[(u16, Arc<dyn MetadataArea>, Superblock)]) -> Vec<Vec<u16>> {
    let newest = found.iter().max_by_key(|(_, _, found)| found.generation);
    let Some((_, _, newest)) = newest else {
        return Vec::new();
    };
    let is_last = |(index, _, found): &&(u16, Arc<dyn MetadataArea>, Superblock)| {
        found.generation == newest.generation || newest.members.contains(index)
    };
    let last = found.iter().filter(is_last);
    let mut last: Vec<Vec<u16>> = last.map(|(_, _, last)| last.members.clone()).collect();
    last.dedup();
    last
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for all; who failed.
pub(super) fn wait_all(started: Vec<(u16, PendingIo)>, failed: &mut Vec<(u16, io::Error)>) {
    for (index, pending) in started {
        if let Err(error) = pending.wait() {
            failed.push((index, error));
        }
    }
}

/// What was written to those that did not fail is stable, or they failed.
pub(super) fn flush_all<'a>(
    members: impl Iterator<Item = &'a Member>,
    failed: &mut Vec<(u16, io::Error)>,
) {
    let took = members.filter(|member| failed.iter().all(|(index, _)| *index != member.index));
    let flushes = took.map(|member| (member.index, member.area.flush()));
    wait_all(flushes.collect(), failed);
}

impl MetadataOnDrives {
    /// Looks which areas, each with the index of its drive, have what the pool's folder has; `identity` is the text of its
    /// `pool.toml`. Those that do are members from here
    /// on; others become it by [`Self::join`]. Blocks.
    ///
    /// # Errors
    /// The store cannot be read or written.
    pub fn open(
        (pool, folder, identity): (Uuid, &Path, &str),
        store: Arc<RocksStore>,
        journal: Arc<FileMedia>,
        areas: &[(u16, Arc<dyn MetadataArea>)],
    ) -> Result<Arc<Self>, MetaError> {
        let folder = PoolFolder {
            pool,
            path: folder.to_path_buf(),
            store,
            journal,
        };
        Self::of_folder(pool, identity, Box::new(folder), areas)
    }

    /// The same for a pool in memory, in simulations, of that name and with the text of its identity: there is no folder, a log
    /// has `log_blocks_min` blocks at least, and whatever else is done in the background is done at once. Blocks.
    ///
    /// # Errors
    /// As of [`Self::open`].
    pub fn in_memory(
        (pool, identity): (Uuid, &str),
        store: Arc<MemoryStore>,
        journal: Arc<MemoryMedia>,
        log_blocks_min: u64,
        areas: &[(u16, Arc<dyn MetadataArea>)],
    ) -> Result<Arc<Self>, MetaError> {
        let folder = MemoryFolder {
            pool,
            store,
            journal,
            log_blocks_min,
            kept: Mutex::default(),
        };
        Self::of_folder(pool, identity, Box::new(folder), areas)
    }

    fn of_folder(
        pool: Uuid,
        identity: &str,
        folder: Box<dyn Folder>,
        areas: &[(u16, Arc<dyn MetadataArea>)],
    ) -> Result<Arc<Self>, MetaError> {
        let dirty = DirtyBlocks::new(folder.journal().capacity());
        let copies = Self {
            pool,
            folder,
            dirty,
            making: Mutex::default(),
            is_making: AtomicBool::new(false),
            needs_copy: AtomicBool::new(false),
            needs_majority: AtomicBool::new(false),
            cut_off: OnceLock::new(),
            is_cut_off: AtomicBool::new(false),
            lost_data: AtomicBool::new(false),
            syncing: Mutex::default(),
            state: Watched::new(State {
                members: Vec::new(),
                recorded: Vec::new(),
                joining: Vec::new(),
                log: None,
                identity: identity.to_owned(),
                logged: None,
                generation_max: 0,
                is_too_large: false,
            }),
        };
        copies.folder.drop_rows()?;
        copies.resume(areas)?;
        Ok(Arc::new(copies))
    }

    /// Makes those members that have what the folder has. Where none has, nothing that any area holds counts from here on.
    fn resume(&self, areas: &[(u16, Arc<dyn MetadataArea>)]) -> Result<(), MetaError> {
        let settings = self.store().settings()?;
        let mark = settings
            .get(ON_DRIVES_KEY)
            .and_then(|value| Mark::parse(value));
        let is_shared = settings.contains_key(SHARED_KEY);
        self.needs_majority.store(is_shared, Ordering::Release);
        let mut state = self.state.lock();
        self.find_members(&mut state, areas, mark, is_shared)?;
        match mark {
            Some(mark) if state.members.is_empty() && !mark.is_abandoned() => {
                self.abandon(&mut state)
            }
            _ => Ok(()),
        }
    }

    /// What the areas hold does not count any more, also of those that are not here: whatever holds the metadata later is of a
    /// larger generation.
    fn abandon(&self, state: &mut State) -> Result<(), MetaError> {
        state.generation_max += 1;
        let mark = Mark::abandoned(state.generation_max);
        self.store().put_settings(&mark.setting())
    }

    fn find_members(
        &self,
        state: &mut State,
        areas: &[(u16, Arc<dyn MetadataArea>)],
        mark: Option<Mark>,
        is_shared: bool,
    ) -> Result<(), MetaError> {
        let mut found = Vec::new();
        for (index, area) in areas {
            match Superblock::read(&**area) {
                Ok(Some(superblock))
                    if (superblock.pool, superblock.index) == (self.pool, *index)
                        && superblock.journal_bytes == self.journal().capacity() =>
                {
                    found.push((*index, area.clone(), superblock));
                }
                Ok(_) => {}
                Err(error) => tracing::error!(
                    drive = area.name(),
                    "its copy of the metadata cannot be read: {error}"
                ),
            }
        }
        // The folder knows of drives that are not here.
        let generations = found.iter().map(|(_, _, superblock)| superblock.generation);
        let generations = generations.chain(mark.map(|mark| mark.generation));
        state.generation_max = generations.max().unwrap_or(0);
        let known: Vec<u16> = found.iter().map(|(index, ..)| *index).collect();
        state.recorded = last_members(&found);
        found.retain(|(index, _, superblock)| {
            superblock.generation == state.generation_max && superblock.members.contains(index)
        });
        // A folder that was put back, or that another program changed, is copied anew.
        let mark = mark.filter(|mark| mark.generation == state.generation_max);
        if is_shared && found.is_empty() && mark.is_some_and(|mark| !mark.is_abandoned()) {
            return Err(self.too_few(
                "none of the drives that hold the pool's metadata can be used, and another node may have the pool with them",
            ));
        }
        let Some((mark, (_, _, first))) = mark.zip(found.first()) else {
            return Ok(());
        };
        let (named, first) = (first.members.len(), first.clone());
        let usable = first.members.iter().filter(|index| known.contains(index));
        let usable = usable.count();
        if is_shared && usable * 2 < named {
            return Err(self.too_few(&format!(
                "{usable} of the {named} drives that hold the pool's metadata can be used, and another node may have the pool with the others"
            )));
        }
        let fits = first.base_change <= mark.change && first.log_start <= mark.end;
        if !fits || found.iter().any(|(_, _, other)| !other.has_log_of(&first)) {
            return Ok(());
        }
        // Two changes that the folder lacks: it is an older copy.
        let is_behind = |(_, area, superblock): &(u16, Arc<dyn MetadataArea>, Superblock)| {
            let next = LogPosition {
                lineage: superblock.lineage,
                change: mark.change + 1,
                block: mark.end,
            };
            let frame = read_frame(&**area, &superblock.layout, next)?;
            let Some(payload) = frame else {
                return Ok(false);
            };
            let after = next.behind(&payload);
            Ok::<_, io::Error>(read_frame(&**area, &superblock.layout, after)?.is_some())
        };
        if found.iter().any(|found| is_behind(found).unwrap_or(true)) {
            return Ok(());
        }
        state.log = Some(Log {
            generation: first.generation,
            lineage: first.lineage,
            layout: first.layout,
            base_slot: first.base_slot,
            base_change: first.base_change,
            base_bytes: first.base_bytes,
            start: first.log_start,
            change: mark.change,
            end: mark.end,
        });
        let members = found.into_iter().map(|(index, area, superblock)| Member {
            index,
            area,
            sequence: superblock.sequence,
        });
        state.members = members.collect();
        if is_shared && !state.is_half() {
            // The last owner ended when it told them of each other. Those that were told alone are too few.
            state.members.clear();
            state.log = None;
            return Ok(());
        }
        self.redo_last(state)?;
        match state.members.len() == named {
            true => self.write_superblocks(state, false),
            // Those that are not here miss what comes.
            false => self.begin_generation(state),
        }
    }

    /// A change that a drive has and the folder perhaps not is made again, and written to those that lack it.
    fn redo_last(&self, state: &mut State) -> Result<(), MetaError> {
        let Some(log) = state.log.clone() else {
            return Ok(());
        };
        let position = LogPosition {
            lineage: log.lineage,
            change: log.change + 1,
            block: log.end,
        };
        let read = |member: &Member| {
            read_frame(&*member.area, &log.layout, position)
                .ok()
                .flatten()
        };
        let Some(payload) = state.members.iter().find_map(read) else {
            return Ok(());
        };
        let change = Change::decode(&payload).map_err(|error| {
            MetaError::Inconsistent(format!("a change in the log on the drives {error}"))
        })?;
        self.append(state, &payload)?;
        redo(self.store(), &change)?;
        // Should this be an older copy of the folder all the same: its journal is the one that counts.
        let mut failed = Vec::new();
        for member in &state.members {
            if let Err(error) = self.copy_journal(&*member.area, &log.layout) {
                failed.push((member.index, error));
            }
        }
        self.drop_failed(state, &failed)?;
        match state.mark() {
            Some(mark) => self.store().put_settings(&mark),
            None => Ok(()),
        }
    }

    pub(super) fn store(&self) -> &dyn Store {
        self.folder.store()
    }

    pub(super) fn journal(&self) -> &dyn JournalMedia {
        self.folder.journal()
    }

    pub(super) fn dirty(&self) -> &DirtyBlocks {
        &self.dirty
    }

    /// Bytes of the store in the folder, about.
    pub fn store_bytes(&self) -> u64 {
        self.store().size_bytes()
    }

    /// Who holds the metadata now. Waits for no drive.
    pub fn state(&self) -> OnDrivesState {
        self.state.seen()
    }

    /// Changes the store in the folder, after the log has the change: `apply` gets the store, and the setting that is to be
    /// stored with the change, if there is one.
    pub(super) fn change(
        self: &Arc<Self>,
        encode: impl FnOnce() -> Vec<u8>,
        apply: impl FnOnce(&dyn Store, Option<SettingChanges>) -> Result<(), MetaError>,
    ) -> Result<(), MetaError> {
        let mut state = self.state.lock();
        self.check_cut_off()?;
        if state.all().next().is_none() {
            self.check_copy("no drive holds it")?;
            return apply(self.store(), None);
        }
        let bytes = encode();
        // The caller tries a change again for which the folder had no room.
        let is_logged = state.logged.as_ref() == Some(&bytes);
        if !is_logged {
            if state.logged.is_some() {
                self.give_up(
                    &mut state,
                    "the folder did not take a change that they have",
                )?;
                state.logged = None;
            }
            for _ in 0..2 {
                if state.all().next().is_none() || state.has_room(&bytes) {
                    break;
                }
                drop(state);
                self.make_base(&[])?;
                state = self.state.lock();
            }
            if !state.has_room(&bytes) {
                self.give_up(&mut state, "a change has no room in their log")?;
            }
            self.append(&mut state, &bytes)?;
        }
        let mark = state.mark();
        let is_kept = mark.is_some();
        if let Err(error) = apply(self.store(), mark) {
            state.logged = is_kept.then_some(bytes);
            state.joining.clear();
            return Err(error);
        }
        state.logged = None;
        let is_half_full = state.log.as_ref().is_some_and(|log| {
            !state.members.is_empty() && (log.end - log.start) * 2 > log.layout.log_blocks
        });
        drop(state);
        if is_half_full && !self.is_making.swap(true, Ordering::AcqRel) {
            self.make_base_beside();
        }
        Ok(())
    }

    /// A base is made while the store goes on.
    fn make_base_beside(self: &Arc<Self>) {
        let copies = self.clone();
        let work = move || {
            if let Err(error) = copies.make_base(&[]) {
                tracing::error!("the metadata on the drives cannot be written anew: {error}");
            }
            copies.is_making.store(false, Ordering::Release);
        };
        if let Err(error) = self.folder.spawn(Box::new(work)) {
            // The next change tries again, and the one that finds no room makes it itself.
            tracing::warn!("no thread to write the metadata on the drives anew: {error}");
            self.is_making.store(false, Ordering::Release);
        }
    }

    /// Writes a change to the log of all members and of who joins.
    fn append(&self, state: &mut State, bytes: &[u8]) -> Result<(), MetaError> {
        let Some(log) = state.log.clone().filter(|_| state.all().next().is_some()) else {
            return Ok(());
        };
        let position = LogPosition {
            lineage: log.lineage,
            change: log.change + 1,
            block: log.end,
        };
        let mut failed = Vec::new();
        let frames = frame(&log.layout, position, bytes);
        let writes = state.all().flat_map(|member| {
            let write =
                |(block, bytes): &(u64, Arc<Vec<u8>>)| member.area.write(*block, bytes.clone());
            frames
                .iter()
                .map(move |frame| (member.index, write(frame)))
                .collect::<Vec<_>>()
        });
        wait_all(writes.collect(), &mut failed);
        flush_all(state.all(), &mut failed);
        if let Some(log) = &mut state.log {
            log.change += 1;
            log.end += frame_blocks(bytes);
        }
        self.drop_failed(state, &failed)
    }

    /// Those that failed are no members any more, and the others know.
    fn drop_failed(&self, state: &mut State, failed: &[(u16, io::Error)]) -> Result<(), MetaError> {
        let before = state.members.len();
        for (index, error) in failed {
            if let Some(member) = state.all().find(|member| member.index == *index) {
                tracing::error!(
                    event = "alert",
                    drive = member.area.name(),
                    "the drive does not hold the pool's metadata any more: {error}"
                );
                if member.area.flushes_data() {
                    self.lost_data.store(true, Ordering::Release);
                }
            }
            state.remove(&[*index]);
        }
        match before == state.members.len() {
            true => Ok(()),
            false => self.begin_generation(state),
        }
    }

    /// The members that there are now are those of a new generation.
    pub(super) fn begin_generation(&self, state: &mut State) -> Result<(), MetaError> {
        self.check_half(state)?;
        if state.members.is_empty() {
            return self.give_up(state, "no drive takes it");
        }
        if let Some(log) = &mut state.log {
            log.generation = state.generation_max + 1;
            state.generation_max = log.generation;
        }
        self.write_superblocks(state, false)?;
        match state.mark() {
            Some(mark) => self.store().put_settings(&mark),
            None => Ok(()),
        }
    }

    /// Writes the superblocks of all members.
    fn write_superblocks(&self, state: &mut State, is_closed: bool) -> Result<(), MetaError> {
        let Some(log) = state.log.clone() else {
            return Ok(());
        };
        let members: Vec<u16> = state.members.iter().map(|member| member.index).collect();
        let mut failed = Vec::new();
        // Those that knew of the last generation first: when another one knows of this, none of them is left that does not.
        for is_recorded in [true, false] {
            let recorded: Vec<u16> = state.recorded.concat();
            let is_of_wave = |index: u16| recorded.contains(&index) == is_recorded;
            let wave = state.members.iter_mut();
            let wave = wave.filter(|member| failed.is_empty() && is_of_wave(member.index));
            let writes = wave.map(|member| {
                member.sequence += 1;
                let superblock = Superblock {
                    pool: self.pool,
                    index: member.index,
                    is_closed,
                    sequence: member.sequence,
                    generation: log.generation,
                    lineage: log.lineage,
                    journal_bytes: self.journal().capacity(),
                    layout: log.layout,
                    base_slot: log.base_slot,
                    base_change: log.base_change,
                    base_bytes: log.base_bytes,
                    log_start: log.start,
                    members: members.clone(),
                };
                let write = member.area.write(superblock.block(), superblock.bytes());
                (member.index, write)
            });
            let writes: Vec<_> = writes.collect();
            if !writes.is_empty() {
                wait_all(writes, &mut failed);
                let of_wave = state.members.iter();
                let of_wave = of_wave.filter(|member| is_of_wave(member.index));
                flush_all(of_wave, &mut failed);
            }
        }
        match failed.is_empty() {
            true => {
                state.recorded = vec![members];
                Ok(())
            }
            // Fewer each time.
            false => self.drop_failed(state, &failed),
        }
    }

    /// From here on the drives have no metadata. The folder knows first, so that no opening takes what they have for what it is.
    pub(super) fn give_up(&self, state: &mut State, why: &str) -> Result<(), MetaError> {
        self.check_copy(why)?;
        if state.log.take().is_none() {
            return Ok(());
        }
        self.abandon(state)?;
        tracing::error!(
            event = "alert",
            "the pool's metadata is in its folder alone now, and the pool cannot be imported from its drives: {why}"
        );
        let gone = state.members.drain(..).chain(state.joining.drain(..));
        for member in gone {
            // Best effort: the labels say too that it is old.
            let _ = erase(&*member.area);
        }
        Ok(())
    }

    /// The journal in the folder is stable, and so is all of it on every member.
    pub(super) fn sync_journal(&self) -> io::Result<()> {
        let syncing = lock(&self.syncing);
        let (members, layout) = {
            let state = self.state.lock();
            let layout = state.log.as_ref().map(|log| log.layout);
            (state.members.clone(), layout)
        };
        if members.is_empty() {
            self.check_copy("no drive holds it")
                .map_err(io::Error::other)?;
        }
        self.check_cut_off().map_err(io::Error::other)?;
        self.check_data()?;
        let Some(layout) = layout.filter(|_| !members.is_empty() || syncing.since.is_some()) else {
            return self.journal().sync();
        };
        let runs = self.dirty.take(RUN_BLOCKS);
        let mut failed = Vec::new();
        let mut writes = Vec::new();
        // The first blocks of the journal take the data along. The others come after them.
        let (with_data, plain): (Vec<&Member>, Vec<&Member>) = members
            .iter()
            .partition(|member| member.area.flushes_data());
        for run in &runs {
            let offset = run.start * BLOCK as u64;
            let bytes = self.journal_bytes(offset, (run.end - run.start) as usize * BLOCK)?;
            if let Some(since) = &syncing.since {
                since.mark(offset, bytes.len());
            }
            let bytes = Arc::new(bytes);
            if writes.len() >= WRITES_MAX {
                wait_all(std::mem::take(&mut writes), &mut failed);
            }
            let block = layout.journal() + run.start;
            for member in &plain {
                writes.push((member.index, member.area.write(block, bytes.clone())));
            }
            for member in &with_data {
                let write = member.area.write_with_data(block, bytes.clone());
                match runs.len() {
                    1 => writes.push((member.index, write)),
                    _ => wait_all(vec![(member.index, write)], &mut failed),
                }
            }
        }
        // Meanwhile, and whatever it gives, the writes have to end.
        let synced = self.journal().sync();
        wait_all(writes, &mut failed);
        flush_all(plain.into_iter(), &mut failed);
        if !failed.is_empty() {
            let dropped = self.drop_failed(&mut self.state.lock(), &failed);
            dropped.map_err(io::Error::other)?;
            self.check_data()?;
        }
        synced
    }

    /// An error where who relies on a sync has data that nobody flushes.
    fn check_data(&self) -> io::Result<()> {
        match self.lost_data.load(Ordering::Acquire) {
            false => Ok(()),
            true => Err(io::Error::other(
                "the drive that flushes data with the journal does not hold the metadata any more; see to it, and start the \
                 daemon again",
            )),
        }
    }

    /// From now on a drive has whatever is acknowledged. If the last one cannot hold the metadata any more, changes fail, and
    /// what it has stays.
    ///
    /// # Errors
    /// None holds them now.
    pub fn require_copy(&self) -> Result<(), MetaError> {
        self.needs_copy.store(true, Ordering::Release);
        match self.state.lock().members.is_empty() {
            true => self.check_copy("no drive holds it, or has room for it"),
            false => Ok(()),
        }
    }

    /// From now on another node may take the pool over, from more than half of the drives that hold the metadata: so of these never more
    /// than half are left out at once. Where that cannot be, `cut_off` is called, and changes fail from then on.
    pub fn share(&self, cut_off: impl Fn() + Send + Sync + 'static) {
        self.needs_majority.store(true, Ordering::Release);
        // It is called once.
        let _ = self.cut_off.set(Box::new(cut_off));
    }

    /// From now on no other node takes the pool over by itself.
    pub fn end_sharing(&self) {
        self.needs_majority.store(false, Ordering::Release);
    }

    /// The members are enough of those that there were.
    fn check_half(&self, state: &State) -> Result<(), MetaError> {
        let is_enough = !state.members.is_empty() && state.is_half();
        if is_enough || !self.needs_majority.load(Ordering::Acquire) {
            return Ok(());
        }
        self.is_cut_off.store(true, Ordering::Release);
        if let Some(cut_off) = self.cut_off.get() {
            cut_off();
        }
        self.check_cut_off()
    }

    fn check_cut_off(&self) -> Result<(), MetaError> {
        match self.is_cut_off.load(Ordering::Acquire) {
            false => Ok(()),
            true => Err(self.too_few(
                "more than half of the drives that held it did not take a change at once, and another node may have the pool with them",
            )),
        }
    }

    fn too_few(&self, why: &str) -> MetaError {
        MetaError::Io {
            path: "the pool's metadata on its drives".into(),
            action: "change what another node would need".to_owned(),
            source: io::Error::other(format!(
                "{why}; see to the drives, and start the daemon again"
            )),
        }
    }

    /// An error where a drive has to have the metadata, and none can, for this reason.
    fn check_copy(&self, why: &str) -> Result<(), MetaError> {
        match self.needs_copy.load(Ordering::Acquire) {
            false => Ok(()),
            true => Err(MetaError::Io {
                path: "the pool's metadata on its drives".into(),
                action: "keep what another node would need".to_owned(),
                source: io::Error::other(format!(
                    "{why}; see to the drives, and start the daemon again"
                )),
            }),
        }
    }

    /// Bytes of the journal's file; zeros behind its end.
    pub(super) fn journal_bytes(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        let there = (self.journal().capacity() - offset).min(len as u64) as usize;
        self.journal().read_at(offset, &mut bytes[..there])?;
        Ok(bytes)
    }

    /// Whether some of these could be members, and are not. Waits for no drive.
    pub fn wants(&self, areas: impl IntoIterator<Item = u16>) -> bool {
        let seen = self.state.seen();
        let is_short = seen.drives.len() < COPIES_WANTED && !seen.is_too_large;
        is_short && areas.into_iter().any(|index| !seen.drives.contains(&index))
    }

    /// A drive is no member any more: it leaves the pool, or is offline. Nothing is written to it. Blocks.
    ///
    /// # Errors
    /// The store in the folder cannot be written.
    pub fn leave(&self, index: u16) -> Result<(), MetaError> {
        let _syncing = lock(&self.syncing);
        let mut state = self.state.lock();
        let was_member = state.members.iter().any(|member| member.index == index);
        state.remove(&[index]);
        match was_member {
            true => self.begin_generation(&mut state),
            false => Ok(()),
        }
    }

    /// The pool's identity is this text from now on. Blocks.
    ///
    /// # Errors
    /// As of a change of the store.
    pub fn set_identity(self: &Arc<Self>, text: &str) -> Result<(), MetaError> {
        self.state.lock().identity = text.to_owned();
        self.change(
            || encode_identity(text),
            |store, mark| mark.map_or(Ok(()), |mark| store.put_settings(&mark)),
        )
    }

    /// The pool is closed in order: nobody needs to wait for who has it open. Blocks.
    pub fn close(&self) {
        let _syncing = lock(&self.syncing);
        let mut state = self.state.lock();
        if state.logged.is_none()
            && let Err(error) = self.write_superblocks(&mut state, true)
        {
            tracing::warn!("the drives do not know that the pool was closed: {error}");
        }
    }
}
