//! The engine's state in memory, and the few changes it can make.
//!
//! One mutex guards it; it is held for short sections without an await, a drive or a store in them.
//! Invariants, whenever the mutex is free:
//! * a block's count = mappings to it + references that commands under way hold (I4); each is told to the
//!   block table as what it is, and what commands hold keeps the block's chunk in memory;
//! * between the check of an append and the changes that it makes nothing leaves memory;
//! * a block is in the index exactly if its count is above zero (or another block of the same content
//!   took its place there, or its content was not hashed, or the index has no room:
//!   [`crate::hints`] finds it then);
//! * a block that is marked in flight is being written by one batch, which holds all its references;
//!   its checksum field then holds the number of the batch's item that is written there;
//! * a block whose count falls to zero leaves the index at once and is quarantined with the sequence
//!   number of the last record then appended: no record after that one refers to it (I3). A fragment has
//!   a count as a block has; its pack is quarantined when the last of its fragments goes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use meta::{Fingerprint, MapEntry, Mapping, Pba, Record, RecordRef, VolumeInfo, VolumeState};

use crate::block_table::{BlockInfo, BlockTable, IN_FLIGHT};
use crate::hints::{Answer, Hints, Sought};
use crate::index::Index;
use crate::load::Late;
use crate::map::{NotHere, PageMap};
use crate::online::OnlineCount;
use crate::packing::{NoBlock, OpenPack, PackCount};
use crate::resident::Resident;
use crate::settings::Settings;
use crate::space::{DriveSpace, Space};
use crate::volume::VolumeCore;
use crate::wait::Event;
use crate::{EngineError, Result, SUB_BLOCK_BYTES};

/// A volume in memory.
pub(crate) struct VolumeEntry {
    pub(crate) info: Arc<VolumeInfo>,
    pub(crate) map: PageMap,
    pub(crate) core: Arc<VolumeCore>,
}

impl VolumeEntry {
    pub(crate) fn new(info: VolumeInfo) -> Self {
        let map = PageMap::new(info.id);
        Self::with_map(info, map)
    }

    /// One whose map is in the store only.
    pub(crate) fn stored(info: VolumeInfo, mapped: u64) -> Self {
        let map = PageMap::stored(info.id, mapped);
        Self::with_map(info, map)
    }

    fn with_map(info: VolumeInfo, map: PageMap) -> Self {
        let info = Arc::new(info);
        Self {
            core: Arc::new(VolumeCore::new(info.clone(), map.whole_flag())),
            info,
            map,
        }
    }

    pub(crate) fn is_active(&self) -> bool {
        self.info.state == VolumeState::Active
    }

    /// Where a sub-block's content is stored; `None` reads as zeros.
    ///
    /// # Errors
    /// Its page of the map must be brought in first.
    pub(crate) fn find(&self, sub_block: u64) -> std::result::Result<Option<Mapping>, NotHere> {
        if !self.info.trimming.is_empty() && self.info.is_trimming(sub_block) {
            return Ok(None);
        }
        self.map.find(sub_block)
    }

    /// As [`find`](Self::find), of sub-blocks that follow each other, in order.
    ///
    /// # Errors
    /// A page of the map must be brought in first; `each` was given what is before it.
    #[inline]
    pub(crate) fn find_run(
        &self,
        start: u64,
        end: u64,
        mut each: impl FnMut(u64, Option<Mapping>),
    ) -> std::result::Result<(), NotHere> {
        if self.info.trimming.is_empty() {
            return self.map.find_run(start, end, each);
        }
        for at in start..end {
            each(at, self.find(at)?);
        }
        Ok(())
    }

    /// Whether a sub-block, which was brought in, has its content there.
    pub(crate) fn is_mapped_to(&self, sub_block: u64, pba: Pba) -> bool {
        let found = self.find(sub_block);
        found.is_ok_and(|mapping| mapping.is_some_and(|mapping| mapping.pba == pba))
    }

    /// Sub-blocks of the volume.
    #[cfg(test)]
    pub(crate) fn sub_blocks(&self) -> u64 {
        self.info.size_bytes / SUB_BLOCK_BYTES as u64
    }

    fn change(&mut self, change: impl FnOnce(&mut VolumeInfo)) {
        change(Arc::make_mut(&mut self.info));
        self.core.set_info(self.info.clone());
    }
}

/// New blocks of a batch that are not written yet. Others that want their content wait for `done`.
pub(crate) struct Flight {
    number: u64,
    /// The drive that is asked first.
    drive: usize,
    /// First address and one past the last, of blocks that follow each other.
    runs: Vec<(u64, u64)>,
    done: Arc<Event>,
}

impl Flight {
    fn contains(&self, pba: Pba) -> bool {
        let holds = |(first, end): &(u64, u64)| (*first..*end).contains(&pba.0);
        self.runs.iter().any(holds)
    }

    fn add(&mut self, pba: Pba) {
        match self.runs.last_mut() {
            Some((_, end)) if *end == pba.0 => *end += 1,
            _ => self.runs.push((pba.0, pba.0 + 1)),
        }
    }

    /// The block that was added last does not take off.
    pub(crate) fn stay(&mut self, pba: Pba) {
        if let Some((first, end)) = self.runs.last_mut() {
            debug_assert_eq!(*end, pba.0 + 1);
            *end -= 1;
            if first == end {
                self.runs.pop();
            }
        }
    }
}

/// Content that an item of a batch needs a block for.
#[derive(Clone, Copy)]
pub(crate) struct Wanted {
    /// Without one, it is always new.
    pub(crate) fingerprint: Fingerprint,
    pub(crate) item: u32,
    /// It differs from what is found by its fingerprint: it is new, and found from now on.
    pub(crate) is_distinct: bool,
    /// Room for it was promised.
    pub(crate) has_promise: bool,
    /// What the store said of it, if it was asked.
    pub(crate) answer: Option<Answer>,
}

/// What a look-up of new content ends in.
pub(crate) enum Claim {
    /// The content is stored: one reference was taken.
    Known { pba: Pba, crc32c: u32 },
    /// This batch is about to store it, from that item: one reference was taken.
    Own { pba: Pba, item: u32 },
    /// Another batch is writing the same content: wait, then look up again.
    Wait(Arc<Event>),
    /// Nobody has it: a block was allocated, holds one reference, and is marked in flight.
    New(Pba),
    /// What is known of that address is in the store only: bring it in, then look up again. It may have
    /// the content, or be the one to be handed out next.
    Load(Pba),
    /// The store has to be asked for a hint, then look up again.
    Ask,
    /// Nobody has it and no block is free.
    Full,
}

/// Everything the engine knows.
pub(crate) struct State {
    pub(crate) volumes: BTreeMap<u32, VolumeEntry>,
    pub(crate) blocks: BlockTable,
    pub(crate) index: Index,
    /// What the index has no room for.
    pub(crate) hints: Hints,
    pub(crate) space: Space,
    pub(crate) packs: PackCount,
    /// What of maps is in memory.
    pub(crate) resident: Resident,
    /// The volume and sub-block that background work brought maps in up to.
    pub(crate) warmed_upto: (u32, u64),
    /// What is stored before everything is loaded; `None` afterwards.
    pub(crate) late: Option<Box<Late>>,
    in_flight: Vec<Flight>,
    /// Records are checked and not yet installed: nothing leaves memory.
    pub(crate) is_appending: bool,
    /// A block takes at most this many references; then the content is stored once more.
    references_max: u32,
    /// End of a batch that the store had no room for: exactly that batch is tried again.
    pub(crate) retry_upto: Option<u64>,
    /// Sequence number of the last record that changes something.
    pub(crate) last_change: u64,
    /// The data of everything up to this sequence number is on stable drives.
    pub(crate) flushed: u64,
    /// Everything up to this sequence number survives a power loss.
    pub(crate) durable: u64,
    pub(crate) unflushed_bytes: u64,
    pub(crate) corrupt_blocks: u64,
    /// Mappings that an online check counts.
    pub(crate) online: Option<Box<OnlineCount>>,
    pub(crate) read_only: Option<String>,
    pub(crate) read_only_since: Option<SystemTime>,
    /// No commands any more.
    pub(crate) closed: bool,
    next_flight: u64,
    /// What a record takes out of the map, while it is installed.
    replaced: Vec<Option<Pba>>,
    /// How often a volume was created or deleted.
    pub(crate) volume_changes: Arc<AtomicU64>,
    /// Volume numbers are not used again while the pool is open: a handle of a deleted volume, or the
    /// purge of one, must never meet another volume. `None` when all are used up.
    pub(crate) next_volume: Option<u32>,
    pub(crate) settings: Settings,
}

impl State {
    pub(crate) fn new(
        data_blocks: &[u64],
        discard: bool,
        references_max: u32,
        resident: Resident,
        (index, hints): (Index, Hints),
    ) -> Self {
        Self {
            volumes: BTreeMap::new(),
            blocks: BlockTable::new(data_blocks),
            index,
            hints,
            space: Space::new(data_blocks, discard),
            packs: PackCount::default(),
            resident,
            warmed_upto: (0, 0),
            late: None,
            in_flight: Vec::new(),
            is_appending: false,
            references_max: references_max.clamp(1, IN_FLIGHT - 1),
            retry_upto: None,
            last_change: 0,
            flushed: 0,
            durable: 0,
            unflushed_bytes: 0,
            corrupt_blocks: 0,
            online: None,
            read_only: None,
            read_only_since: None,
            closed: false,
            next_flight: 0,
            replaced: Vec::new(),
            volume_changes: Arc::default(),
            next_volume: Some(1),
            settings: Settings::default(),
        }
    }

    /// One drive more, with the next index.
    pub(crate) fn add_drive(&mut self, space: DriveSpace, data_blocks: u64) {
        self.index.add_drive(self.space.capacity(), data_blocks);
        self.blocks.add_drive(data_blocks);
        self.space.add_drive(space);
    }

    /// Blocks for a batch, none so far.
    pub(crate) fn new_flight(&mut self) -> Flight {
        self.next_flight += 1;
        Flight {
            number: self.next_flight,
            drive: self.space.roomiest_drive(),
            runs: Vec::new(),
            done: Arc::default(),
        }
    }

    /// From here on others find who writes these blocks. Returns the flight's number, if there are any.
    pub(crate) fn take_off(&mut self, flight: Flight) -> Option<u64> {
        let number = flight.number;
        (!flight.runs.is_empty()).then(|| {
            self.in_flight.push(flight);
            number
        })
    }

    /// The blocks of a flight are written, or abandoned. Who waits for that is told by the event: set
    /// it when the state is not locked any more.
    pub(crate) fn land(&mut self, number: u64) -> Option<Arc<Event>> {
        let at = self.in_flight.iter().position(|f| f.number == number)?;
        let flight = self.in_flight.swap_remove(at);
        for pba in flight.runs.iter().flat_map(|(first, end)| *first..*end) {
            self.blocks.entry(Pba(pba)).references &= !IN_FLIGHT;
        }
        Some(flight.done)
    }

    /// An error if the pool takes no changes.
    pub(crate) fn check_writable(&self) -> Result<()> {
        match &self.read_only {
            None => Ok(()),
            Some(reason) => Err(EngineError::unavailable(format!(
                "the pool is read-only: {reason}"
            ))),
        }
    }

    /// A volume that can be used.
    pub(crate) fn active(&self, volume: u32) -> Result<&VolumeEntry> {
        if self.closed {
            return Err(EngineError::closed());
        }
        self.volumes
            .get(&volume)
            .filter(|entry| entry.is_active())
            .ok_or_else(|| EngineError::not_found(format!("volume {volume} was deleted")))
    }

    /// Contents that are stored: whole blocks and fragments.
    pub(crate) fn contents(&self) -> u64 {
        self.space.used().saturating_sub(self.packs.packs) + self.packs.fragments
    }

    /// Asks for what the look-ups and changes of a batch are going to read.
    pub(crate) fn prefetch<'a>(
        &self,
        fingerprints: impl Iterator<Item = &'a Fingerprint> + Clone,
        old: impl Iterator<Item = Pba> + Clone,
    ) {
        let fingerprints = fingerprints.filter(|fingerprint| fingerprint.is_some());
        self.index.prefetch(&self.blocks, fingerprints, old);
    }

    /// Looks content up and takes a reference, or a new block (a place in `pack`, if it goes there).
    pub(crate) fn claim(
        &mut self,
        flight: &mut Flight,
        wanted: Wanted,
        pack: Option<&mut OpenPack>,
    ) -> Claim {
        let Wanted {
            fingerprint,
            item,
            has_promise,
            ..
        } = wanted;
        let sought = match fingerprint.is_some() {
            true => self.seek(&fingerprint, wanted.answer),
            false => Sought::Nowhere,
        };
        let known = match sought {
            Sought::Here(pba) | Sought::Unindexed(pba) => Some(pba),
            Sought::Away(pba) => return Claim::Load(pba),
            Sought::Ask if !wanted.is_distinct => return Claim::Ask,
            Sought::Ask | Sought::Nowhere => None,
        };
        if let Some(pba) = known.filter(|_| !wanted.is_distinct) {
            let info = self.blocks.get(pba);
            let is_in_flight = info.references & IN_FLIGHT != 0;
            let is_own = is_in_flight && flight.contains(pba);
            let has_room = info.references & !IN_FLIGHT < self.references_max;
            #[cfg(test)]
            let shares = crate::ablation::is(crate::ablation::Broken::ShareInFlight);
            #[cfg(not(test))]
            let shares = false;
            if is_in_flight && !is_own && !shares {
                let other = self.in_flight.iter().find(|other| other.contains(pba));
                if let Some(other) = other {
                    return Claim::Wait(other.done.clone());
                }
                debug_assert!(false, "nobody writes block {pba}, which is in flight");
            }
            if has_room {
                self.blocks.take(pba);
                // Something may have left the index since.
                if sought == Sought::Unindexed(pba) && !self.index.insert(&self.blocks, pba, None) {
                    self.hints.take(pba, fingerprint);
                }
                let crc32c = info.crc32c;
                return if is_own {
                    Claim::Own { pba, item: crc32c }
                } else {
                    Claim::Known { pba, crc32c }
                };
            }
            // As many references as can be counted: a second copy takes over in the index.
        }
        let Self { space, blocks, .. } = self;
        let mut allocate =
            |is_here: &dyn Fn(Pba) -> bool| space.allocate(flight.drive, has_promise, is_here);
        let allocated = match pack {
            Some(pack) => pack.allocate(|| allocate(&|pba| blocks.is_here(pba.fragment(0)))),
            None => allocate(&|pba| blocks.is_here(pba)),
        };
        let pba = match allocated {
            Ok(pba) => pba,
            Err(NoBlock::Full) => return Claim::Full,
            Err(NoBlock::Away(pba)) => return Claim::Load(pba),
        };
        self.packs.add(pba);
        let info = BlockInfo {
            references: 1 | IN_FLIGHT,
            crc32c: item,
            fingerprint,
        };
        self.blocks.create(pba, info);
        if fingerprint.is_some() {
            self.hints.came(1);
            if !self.index.insert(&self.blocks, pba, known) {
                self.hints.wait(pba, fingerprint);
            }
            #[cfg(test)]
            self.hints.displaces(known.is_some() || wanted.is_distinct);
            if let Some(late) = &mut self.late {
                late.add_block(pba, fingerprint);
            }
        }
        flight.add(pba);
        Claim::New(pba)
    }

    /// Of the blocks that a flight would get next, those of which only the store knows.
    pub(crate) fn away_ahead(&self, flight: &Flight, count: usize) -> impl Iterator<Item = Pba> {
        let ahead = self.space.ahead(flight.drive, count);
        ahead.filter(|pba| !self.blocks.is_here(*pba))
    }

    /// A block in flight was not written, and will not be: all its references are void.
    /// `may_be_written`: a write to it may still be under way, so it is not used again.
    pub(crate) fn abandon(&mut self, pba: Pba, may_be_written: bool) {
        self.leaves(pba);
        let references = self.blocks.get(pba).references & !IN_FLIGHT;
        self.blocks.let_go(pba, references).references = 0;
        let Some(block) = self.packs.remove(&self.blocks, pba) else {
            return;
        };
        if may_be_written {
            self.space.set_aside(block);
        } else {
            self.space.give_back(block);
        }
    }

    /// Content that is written again is not taken for stored there.
    pub(crate) fn unindex(&mut self, pba: Pba) {
        let fingerprint = self.blocks.get(pba).fingerprint;
        if fingerprint.is_some() {
            self.index.remove(&self.blocks, pba);
            self.hints.forget(pba, &fingerprint);
        }
    }

    /// A block is not in use any more, and nobody finds it.
    fn leaves(&mut self, pba: Pba) {
        self.unindex(pba);
        self.hints.went(pba, &self.blocks.get(pba).fingerprint);
    }

    /// A block in use can be found by its content again.
    pub(crate) fn index_again(&mut self, pba: Pba) {
        self.hints.show(pba);
        let fingerprint = self.blocks.get(pba).fingerprint;
        if fingerprint.is_some()
            && self.index.find(&self.blocks, &fingerprint).here().is_none()
            && !self.index.insert(&self.blocks, pba, None)
        {
            self.hints.wait_loaded(pba, fingerprint);
        }
    }

    /// Whether a block that is in use takes one more reference.
    pub(crate) fn can_share(&self, pba: Pba) -> bool {
        let references = self.blocks.get(pba).references;
        references & IN_FLIGHT == 0 && (1..self.references_max).contains(&references)
    }

    /// A command gives back a reference of a block that may have been abandoned: then it has none.
    pub(crate) fn give_back_if_any(&mut self, pba: Pba) {
        if self.blocks.get(pba).references > 0 {
            self.give_back(pba);
        }
    }

    /// A command gives back a reference that it holds of a stable block.
    pub(crate) fn give_back(&mut self, pba: Pba) {
        self.hints_give_back(pba);
        let info = self.blocks.let_go(pba, 1);
        let left = info.lose();
        self.lost(pba, left);
    }

    /// An address has one reference less; `None`: it had none.
    fn lost(&mut self, pba: Pba, left: Option<u32>) {
        let Some(left) = left else {
            // Only a store that contradicts itself can say so.
            return self.make_read_only(format!(
                "block {pba} has more mappings than references: stop the daemon, and run `onefold pool \
                 check` and `onefold pool repair`"
            ));
        };
        if left == 0 {
            self.leaves(pba);
            if let Some(block) = self.packs.remove(&self.blocks, pba) {
                self.space.quarantine(block, self.last_change);
            }
        }
    }

    /// A record takes a mapping of a block away.
    fn drop_reference(&mut self, pba: Pba) {
        if !self.blocks.is_here(pba) {
            #[cfg(test)]
            panic!("block {pba} was not at hand");
            #[cfg(not(test))]
            return self.make_read_only(format!(
                "what is known of block {pba} was not at hand when a record changed it: restart, and run \
                 `onefold pool check`"
            ));
        }
        let info = self.blocks.change(pba, self.last_change);
        let left = info.lose();
        self.lost(pba, left);
    }

    /// Addresses that a record is about, and that are in the store only: it cannot be installed before
    /// they are here.
    pub(crate) fn away(&self, record: RecordRef<'_>) -> Vec<Pba> {
        if self.blocks.is_whole() {
            return Vec::new();
        }
        let away = |pba: &Pba| !self.blocks.is_here(*pba);
        if let Some((_, _, entries)) = record.as_map() {
            let new = |entry: &MapEntry| entry.new.map(|new| new.pba);
            let addresses = entries.iter().flat_map(|entry| [entry.old, new(entry)]);
            return addresses.flatten().filter(away).collect();
        }
        match record.as_other() {
            Some(Record::Unmap { entries, .. }) => {
                entries.iter().map(|(_, pba)| *pba).filter(away).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Makes a record's changes. Its new blocks' references pass from the command to the map.
    pub(crate) fn install(&mut self, record: RecordRef<'_>) {
        if let Some((volume, start, entries)) = record.as_map() {
            self.install_map(volume, start, entries);
        } else if let Some(record) = record.as_other() {
            self.install_other(record);
        }
    }

    fn install_other(&mut self, record: &Record) {
        match record {
            Record::Unmap { volume, entries } => {
                for (at, _) in entries {
                    self.unmap(*volume, *at);
                }
            }
            Record::VolumeCreate(info) => {
                self.saw_volume(info.id);
                self.volumes.insert(info.id, VolumeEntry::new(info.clone()));
                self.volume_changed();
            }
            Record::VolumeResize {
                id,
                size_bytes,
                trimming,
            } => {
                if let Some(entry) = self.volumes.get_mut(id) {
                    entry.change(|info| {
                        info.size_bytes = *size_bytes;
                        info.trimming.clone_from(trimming);
                    });
                }
            }
            Record::Trimming { id, ranges } => {
                if let Some(entry) = self.volumes.get_mut(id) {
                    entry.change(|info| info.trimming.clone_from(ranges));
                }
            }
            Record::VolumeDelete { id } => {
                if let Some(entry) = self.volumes.get_mut(id) {
                    entry.change(|info| info.state = VolumeState::Deleting);
                    self.volume_changed();
                }
            }
            Record::VolumeGone { id } => {
                if let Some(entry) = self.volumes.remove(id) {
                    entry.map.leaves(&mut self.resident);
                }
            }
            Record::Settings(changes) => self.settings.install(changes),
            Record::Map { .. } | Record::Durable { .. } => {}
        }
    }

    fn volume_changed(&self) {
        self.volume_changes.fetch_add(1, Ordering::Release);
    }

    /// All that refer to a new block pass to the map before any old one goes.
    fn install_map(&mut self, volume: u32, start: u64, entries: &[MapEntry]) {
        let record = self.last_change;
        let new_blocks = entries.iter().filter_map(|entry| entry.new);
        self.unflushed_bytes += (new_blocks.clone().count() * SUB_BLOCK_BYTES) as u64;
        if self.hints.is_waited() {
            for new in new_blocks {
                self.hints.mapped(new.pba, &new.fingerprint, record);
            }
        }
        if let Some(late) = &mut self.late {
            for (at, entry) in MapEntry::numbered(start, entries) {
                if let Some(new) = entry.new {
                    late.add_mapping(volume, at, new.pba);
                }
            }
        }
        let mut replaced = std::mem::take(&mut self.replaced);
        let mut missing = None;
        if let Some(entry) = self.volumes.get_mut(&volume) {
            let resident = &mut self.resident;
            let each = |old| replaced.push(old);
            let done = entry
                .map
                .replace_run(start, entries, record, resident, each);
            missing = done.err().map(|at| (entry.info.name.clone(), at));
            if let Some(online) = &mut self.online {
                for ((at, entry), old) in MapEntry::numbered(start, entries).zip(&replaced) {
                    online.changed(volume, at, *old, entry.new.map(|new| new.pba));
                }
            }
        } else {
            // A volume that is gone maps nothing: the new references are void.
            replaced.extend(entries.iter().map(|entry| entry.new.map(|new| new.pba)));
        }
        for new in entries[..replaced.len()]
            .iter()
            .filter_map(|entry| entry.new)
        {
            self.blocks.pass_on(new.pba, record);
        }
        for old in replaced.drain(..).flatten() {
            self.drop_reference(old);
        }
        self.replaced = replaced;
        if let Some((name, at)) = missing {
            self.miss_page(&name, at);
        }
    }

    fn unmap(&mut self, volume: u32, at: u64) {
        let record = self.last_change;
        let Some(entry) = self.volumes.get_mut(&volume) else {
            return; // a volume that is gone maps nothing
        };
        let replaced = entry.map.replace(at, None, record, &mut self.resident);
        let Ok(old) = replaced else {
            let name = entry.info.name.clone();
            return self.miss_page(&name, at);
        };
        if let Some(online) = &mut self.online {
            online.changed(volume, at, old, None);
        }
        if let Some(old) = old {
            self.drop_reference(old);
        }
    }

    /// A change of a page that should have been brought in.
    fn miss_page(&mut self, volume: &str, at: u64) {
        self.make_read_only(format!(
            "sub-block {at} of volume `{volume}` was changed and is not in memory: restart the daemon, \
             nothing is lost"
        ));
    }

    /// Numbers from this one on are free.
    pub(crate) fn saw_volume(&mut self, id: u32) {
        self.next_volume = self
            .next_volume
            .and_then(|next| Some(next.max(id.checked_add(1)?)));
    }

    /// Everything up to `sequence` survives a power loss from now on.
    pub(crate) fn set_durable(&mut self, sequence: u64) {
        self.durable = self.durable.max(sequence);
        self.space.release(self.durable);
    }

    /// Takes no changes any more, for this reason (the first one stays).
    pub(crate) fn make_read_only(&mut self, reason: String) {
        if self.read_only.is_none() {
            tracing::error!(%reason, "the pool is read-only from now on");
            self.read_only = Some(reason);
            self.read_only_since = Some(SystemTime::now());
        }
    }

    /// Whether any command is writing blocks.
    #[cfg(test)]
    pub(crate) fn is_quiet(&self) -> bool {
        self.in_flight.is_empty()
    }
}
