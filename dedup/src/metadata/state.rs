//! The state of an open pool in memory, and the changes that records and commands make to it.
//!
//! One mutex guards it. It is held for short sections, without an await, a drive or the store in them. The map of a volume
//! has a lock of its own besides ([`VolumeEntry::map`]): it changes with both of them held, so who holds the state sees
//! maps that agree with counts, and a host's read takes the map's lock alone.
//! Invariants, whenever the mutex is free:
//! * The count of a block equals the mappings to it and the references that commands under way hold (I4). A row page
//!   with a block that a command holds stays in memory.
//! * Between the check of an append and the changes that it makes nothing is evicted.
//! * A block whose count is above zero is in the index, and no other block is. There are three exceptions: another
//!   block of the same content took its entry, its content was not hashed, or the index has no room
//!   ([`crate::metadata::on_disk_index`] finds it then).
//! * A block that is marked in flight is being written by one batch, which holds all its references. Its checksum
//!   field holds the number of the batch's item that is written there.
//! * A block whose count falls to zero leaves the index at once. It is quarantined with the sequence number of the
//!   last record: no later record refers to it (I3). A fragment has a count as a block has; its pack is quarantined
//!   when the last of its fragments goes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use meta::{Fingerprint, MapEntry, MapId, MapInfo, Mapping, Pba, Record, RecordRef};

use crate::metadata::ancestry::Ancestry;
use crate::metadata::block_table::{BlockInfo, BlockTable, IN_FLIGHT};
use crate::metadata::deferred_dedup::DeferredDedup;
use crate::metadata::index::Index;
use crate::metadata::on_disk_index::{Answer, OnDiskIndex, Sought};
use crate::metadata::online_count::OnlineCount;
use crate::metadata::packs::{NoBlock, OpenPack, PackCount};
use crate::metadata::page_map::View;
use crate::metadata::resident::Resident;
use crate::metadata::settings::Settings;
use crate::metadata::space::{DriveSpace, Space};
use crate::metadata::volume::{VolumeEntry, change_row};
use crate::sync::wait::Event;
use crate::{EngineError, Result, SUB_BLOCK_BYTES};

/// Mappings that are looked at in one go under the lock: about 0.2 ms.
const LOOK_MAPPINGS: usize = 8192;

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

    /// Takes the block that was added last out of the flight.
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
    /// It is new: a block was allocated, holds one reference, and is marked in flight.
    New(Pba),
    /// What is known of that address is in the store only: bring it in, then look up again. It may have
    /// the content, or be the one to be handed out next.
    Load(Pba),
    /// The store has to be asked for a hint, then look up again.
    Ask,
    /// It is new and no block is free.
    Full,
}

/// The blocks that entries name. Holes name no block.
fn addresses(entries: &[MapEntry]) -> impl Iterator<Item = Pba> + '_ {
    let new = |entry: &MapEntry| entry.new_block().map(|new| new.pba);
    entries
        .iter()
        .flat_map(move |entry| [entry.old, new(entry)])
        .flatten()
}

/// Everything the engine knows.
pub(crate) struct State {
    pub(crate) volumes: BTreeMap<u32, VolumeEntry>,
    pub(crate) ancestry: Ancestry,
    pub(crate) blocks: BlockTable,
    pub(crate) index: Index,
    /// What the index has no room for.
    pub(crate) on_disk_index: OnDiskIndex,
    pub(crate) space: Space,
    pub(crate) packs: PackCount,
    /// What of maps is in memory.
    pub(crate) resident: Resident,
    /// The volume and sub-block that background work brought maps in up to.
    pub(crate) warmed_upto: (u32, u64),
    /// What is stored before everything is loaded; `None` afterwards.
    pub(crate) deferred: Option<Box<DeferredDedup>>,
    in_flight: Vec<Flight>,
    /// Appends whose records are checked and not yet installed: nothing leaves memory meanwhile.
    pub(crate) appending: u32,
    /// A block takes at most this many references; then the content is stored once more.
    references_max: u32,
    /// End of a batch that the store had no room for: exactly that batch is tried again.
    pub(crate) retry_upto: Option<u64>,
    /// Sequence number of the last record that changes something, installed or on its way into the journal.
    pub(crate) last_change: u64,
    /// That of the last one whose changes were made.
    pub(crate) installed: u64,
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
    /// Called with the reason when it becomes so.
    pub(crate) when_read_only: Option<fn(&str)>,
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
        (index, on_disk_index): (Index, OnDiskIndex),
    ) -> Self {
        Self {
            volumes: BTreeMap::new(),
            ancestry: Ancestry::default(),
            blocks: BlockTable::new(data_blocks),
            index,
            on_disk_index,
            space: Space::new(data_blocks, discard),
            packs: PackCount::default(),
            resident,
            warmed_upto: (0, 0),
            deferred: None,
            in_flight: Vec::new(),
            appending: 0,
            references_max: references_max.clamp(1, IN_FLIGHT - 1),
            retry_upto: None,
            last_change: 0,
            installed: 0,
            flushed: 0,
            durable: 0,
            unflushed_bytes: 0,
            corrupt_blocks: 0,
            online: None,
            read_only: None,
            read_only_since: None,
            when_read_only: None,
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
        self.index.add_drive(data_blocks);
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

    /// From here on other batches find the flight that writes these blocks. Returns its number, if there are any.
    pub(crate) fn take_off(&mut self, flight: Flight) -> Option<u64> {
        let number = flight.number;
        (!flight.runs.is_empty()).then(|| {
            self.in_flight.push(flight);
            number
        })
    }

    /// The blocks of a flight are written, or abandoned. Set the event when the state is not locked any more:
    /// it wakes those that wait for the flight.
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

    /// Gives mappings of a volume to `each`, with the volume's name; returns where to go on.
    pub(crate) fn each_mapping(
        &self,
        volume: u32,
        start: u64,
        end: u64,
        mut each: impl FnMut(&str, u64, Pba),
    ) -> u64 {
        let Some(entry) = self.volumes.get(&volume) else {
            return u64::MAX;
        };
        let map = entry.map();
        for (count, (at, mapping)) in map.range(start, end, View::Visible).enumerate() {
            if count == LOOK_MAPPINGS {
                return at;
            }
            each(&entry.info.name, at, mapping.pba);
        }
        end
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
            Sought::Indexed(pba) | Sought::Unindexed(pba) => Some(pba),
            Sought::NotResident(pba) => return Claim::Load(pba),
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
                    self.on_disk_index.take(pba, fingerprint);
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
        let mut allocate = |is_resident: &dyn Fn(Pba) -> bool| {
            space.allocate(flight.drive, has_promise, is_resident)
        };
        let allocated = match pack {
            Some(pack) => pack.allocate(|| allocate(&|pba| blocks.is_resident(pba.fragment(0)))),
            None => allocate(&|pba| blocks.is_resident(pba)),
        };
        let pba = match allocated {
            Ok(pba) => pba,
            Err(NoBlock::Full) => return Claim::Full,
            Err(NoBlock::NotResident(pba)) => return Claim::Load(pba),
        };
        self.packs.add(pba);
        let info = BlockInfo {
            references: 1 | IN_FLIGHT,
            crc32c: item,
            fingerprint,
        };
        self.blocks.create(pba, info);
        if fingerprint.is_some() {
            self.on_disk_index.came(1);
            if !self.index.insert(&self.blocks, pba, known) {
                self.on_disk_index.wait(pba, fingerprint);
            }
            #[cfg(test)]
            self.on_disk_index
                .displaces(known.is_some() || wanted.is_distinct);
            if let Some(deferred) = &mut self.deferred {
                deferred.add_block(pba, fingerprint);
            }
        }
        flight.add(pba);
        Claim::New(pba)
    }

    /// Of the blocks that a flight would get next, those of which only the store knows.
    pub(crate) fn not_resident_ahead(
        &self,
        flight: &Flight,
        count: usize,
    ) -> impl Iterator<Item = Pba> {
        let ahead = self.space.ahead(flight.drive, count);
        ahead.filter(|pba| !self.blocks.is_resident(*pba))
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
            self.on_disk_index.forget(pba, &fingerprint);
        }
    }

    /// A block is not in use any more, and not found any more.
    fn leaves(&mut self, pba: Pba) {
        self.unindex(pba);
        self.on_disk_index
            .went(pba, &self.blocks.get(pba).fingerprint);
    }

    /// A block in use can be found by its content again.
    pub(crate) fn index_again(&mut self, pba: Pba) {
        self.on_disk_index.show(pba);
        let fingerprint = self.blocks.get(pba).fingerprint;
        if fingerprint.is_some()
            && self
                .index
                .find(&self.blocks, &fingerprint)
                .resident()
                .is_none()
            && !self.index.insert(&self.blocks, pba, None)
        {
            self.on_disk_index.wait_loaded(pba, fingerprint);
        }
    }

    /// Of several blocks of the same content this one is found from now on, if it is in use. `is_stored`: the store
    /// has its row, and not only the journal.
    pub(crate) fn takes_over(&mut self, pba: Pba, is_stored: bool) {
        let BlockInfo {
            references,
            fingerprint,
            ..
        } = self.blocks.get(pba);
        let is_stable = references > 0 && references & IN_FLIGHT == 0;
        let is_found = || self.index.has(&fingerprint, pba);
        if !is_stable || !fingerprint.is_some() || self.on_disk_index.is_hidden(pba) || is_found() {
            return;
        }
        let known = self.index.find(&self.blocks, &fingerprint).resident();
        if !self.index.insert(&self.blocks, pba, known) {
            self.on_disk_index.wait_instead(pba, fingerprint, is_stored);
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

    /// A command gives back references that it holds of stable blocks; what is free and durable can be used again.
    pub(crate) fn give_back_all(&mut self, blocks: impl Iterator<Item = Pba>) {
        for pba in blocks {
            self.give_back(pba);
        }
        self.space.release(self.durable);
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
        if !self.blocks.is_resident(pba) {
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
    pub(crate) fn not_resident(&self, record: RecordRef<'_>) -> Vec<Pba> {
        if self.blocks.is_whole() {
            return Vec::new();
        }
        let missing = |pba: &Pba| !self.blocks.is_resident(*pba);
        if let Some((_, _, entries)) = record.as_map() {
            return addresses(entries).filter(missing).collect();
        }
        match record.as_other() {
            Some(Record::Own { entries, .. }) => addresses(entries).filter(missing).collect(),
            Some(Record::Unmap { entries, .. } | Record::Hide { entries, .. }) => entries
                .iter()
                .map(|(_, pba)| *pba)
                .filter(|pba| !pba.is_hole())
                .filter(missing)
                .collect(),
            _ => Vec::new(),
        }
    }

    /// Makes a record's changes. Its new blocks' references pass from the command to the map.
    pub(crate) fn install(&mut self, record: RecordRef<'_>) {
        if let Some((map, start, entries)) = record.as_map() {
            let new_blocks = entries.iter().filter_map(MapEntry::new_block);
            self.unflushed_bytes += (new_blocks.count() * SUB_BLOCK_BYTES) as u64;
            self.install_map(map, start, entries);
        } else if let Some(record) = record.as_other() {
            self.install_other(record);
        }
    }

    fn install_other(&mut self, record: &Record) {
        match record {
            Record::Own {
                map,
                start,
                entries,
            } => {
                self.install_map(*map, *start, entries);
                self.lifted_to(*map);
                #[cfg(test)]
                if crate::ablation::is(crate::ablation::Broken::CopyUncounted) {
                    let new = entries.iter().filter_map(MapEntry::new_block);
                    new.for_each(|new| self.drop_reference(new.pba));
                }
            }
            Record::Unmap { map, entries } => {
                for (at, _) in entries {
                    self.unmap(*map, *at, None);
                }
            }
            Record::Hide { map, entries } => {
                for (at, _) in entries {
                    self.unmap(*map, *at, Some(Mapping::HOLE));
                }
            }
            Record::Fork(forks) => {
                forks.iter().for_each(|fork| self.install_fork(fork));
                self.volume_changed();
            }
            Record::Rollback { .. } => {
                self.install_rollback(record);
                self.volume_changed();
            }
            Record::Reparent(info) => self.install_reparent(info),
            Record::MapGone { id } => self.install_map_gone(*id),
            Record::VolumeCreate(info) => {
                self.add_volume(info.clone(), MapInfo::root(info.map), 0);
                self.volume_changed();
            }
            Record::VolumeRename { id, .. } => {
                if let Some(entry) = self.volumes.get_mut(id) {
                    entry.change(|info| change_row(info, record));
                }
                self.name_snapshots(*id);
            }
            Record::VolumeResize { id, .. }
            | Record::VolumePolicy { id, .. }
            | Record::Trimming { id, .. } => {
                if let Some(entry) = self.volumes.get_mut(id) {
                    entry.change(|info| change_row(info, record));
                }
            }
            Record::VolumeDelete { id } => {
                if let Some(entry) = self.volumes.get_mut(id) {
                    entry.change(|info| change_row(info, record));
                    self.volume_changed();
                }
            }
            Record::VolumeGone { id } => {
                if let Some(entry) = self.volumes.remove(id) {
                    self.ancestry.forget_head(entry.info.map);
                    entry.map().leaves(&mut self.resident);
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
    fn install_map(&mut self, map: MapId, start: u64, entries: &[MapEntry]) {
        let record = self.last_change;
        if self.on_disk_index.is_waited() {
            for new in entries.iter().filter_map(MapEntry::new_block) {
                self.on_disk_index.mapped(new.pba, &new.fingerprint, record);
            }
        }
        if let Some(deferred) = &mut self.deferred {
            for (at, entry) in MapEntry::numbered(start, entries) {
                if let Some(new) = entry.new_block() {
                    deferred.add_mapping(map, at, new.pba);
                }
            }
        }
        let mut replaced = std::mem::take(&mut self.replaced);
        let mut missing = None;
        if let Some(mut to) = self.ancestry.map_mut(&self.volumes, map) {
            let resident = &mut self.resident;
            let each = |old| replaced.push(old);
            let done = to.replace_run(start, entries, record, resident, each);
            missing = done.err();
            if let Some(online) = &mut self.online {
                for ((at, entry), old) in MapEntry::numbered(start, entries).zip(&replaced) {
                    online.changed(map, at, *old, entry.new_block().map(|new| new.pba));
                }
            }
        } else {
            // A volume that is gone maps nothing: the new references are void.
            let new = |entry: &MapEntry| entry.new_block().map(|new| new.pba);
            replaced.extend(entries.iter().map(new));
        }
        for new in entries[..replaced.len()]
            .iter()
            .filter_map(MapEntry::new_block)
        {
            self.blocks.pass_on(new.pba, record);
        }
        for old in replaced.drain(..).flatten() {
            self.drop_reference(old);
        }
        self.replaced = replaced;
        if let Some(at) = missing {
            self.miss_page(map, at);
        }
    }

    /// `to`: nothing, or a hole.
    fn unmap(&mut self, map: MapId, at: u64, to: Option<Mapping>) {
        let record = self.last_change;
        #[cfg(test)]
        let to = to.filter(|_| !crate::ablation::is(crate::ablation::Broken::UnmappedInherits));
        let replaced = match self.ancestry.map_mut(&self.volumes, map) {
            Some(mut from) => from.replace(at, to, record, &mut self.resident),
            None => return, // a volume that is gone maps nothing
        };
        let Ok(old) = replaced else {
            return self.miss_page(map, at);
        };
        if let Some(online) = &mut self.online {
            online.changed(map, at, old, None);
        }
        if let Some(old) = old {
            self.drop_reference(old);
        }
    }

    /// A change of a page that should have been brought in.
    fn miss_page(&mut self, map: MapId, at: u64) {
        let name = self.volume_of(map).map(|entry| entry.info.name.clone());
        let name = name.map_or_else(|| format!("map {map}"), |name| format!("volume `{name}`"));
        #[cfg(test)]
        panic!("sub-block {at} of {name} was changed and is not in memory");
        #[cfg(not(test))]
        self.make_read_only(format!(
            "sub-block {at} of {name} was changed and is not in memory: restart the daemon, \
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
            if let Some(tell) = self.when_read_only {
                tell(&reason);
            }
            self.space.freeze();
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
