//! The state of an open pool in memory, and the changes that records and commands make to it.
//!
//! One lock guards it. It is held for short sections, without an await, a drive or the store in them. Hosts' writes *share* it, on all
//! reactors at once: what they change has locks of its own, or is atomic, so those methods take `&self`. Everything else has it
//! alone. The map of a volume has a lock of its own besides ([`VolumeEntry::map`]): it changes with both of them held, so
//! who has the state alone sees maps that agree with counts, and a host's read takes the map's lock alone.
//!
//! Order of the locks inside, from the first to the last: a shard of the index, the counts of packs, then one of free space, what waits for
//! index entries, the accounts of memory, and flights.
//!
//! Invariants, whenever nobody has the lock:
//! * The count of a block equals the mappings to it and the references that commands under way hold (I4). A row page
//!   with a block that a command holds stays in memory.
//! * Between the check of an append and the changes that it makes nothing is evicted.
//! * A block whose count is above zero is in the index, and no other block is. There are three exceptions: another
//!   block of the same content took its entry, its content was not hashed, or the index has no room
//!   ([`crate::metadata::on_disk_index`] finds it then).
//! * A block that is marked in flight is being written by one batch, which holds all its references. Its checksum
//!   field holds the number of the batch's item that is written there.
//! * A count goes to zero, and from it, only while the shard of its content in the index is locked: who finds a block there takes
//!   a reference of one that is in use.
//! * A block whose count falls to zero leaves the index at once. It is quarantined with the sequence number of the
//!   last record: no later record refers to it (I3). A fragment has a count as a block has; its pack is quarantined
//!   when the last of its fragments goes.

mod install;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::SystemTime;

use meta::{Fingerprint, MapEntry, Pba, Record, RecordRef};

use crate::hooks::{Current, Hooks};
use crate::metadata::ancestry::Ancestry;
use crate::metadata::block_table::{BlockInfo, BlockTable, IN_FLIGHT};
use crate::metadata::deferred_dedup::DeferredDedup;
use crate::metadata::flights::{Flight, Flights};
use crate::metadata::index::{Index, ShardGuard};
use crate::metadata::on_disk_index::{Answer, OnDiskIndex, Sought};
use crate::metadata::online_count::OnlineCount;
use crate::metadata::packs::{NoBlock, OpenPack, PackCount};
use crate::metadata::page_map::View;
use crate::metadata::resident::Resident;
use crate::metadata::settings::Settings;
use crate::metadata::space::{DriveSpace, Space};
use crate::metadata::volume::VolumeEntry;
use crate::sync::wait::{Event, Held, lock};
use crate::{EngineError, Result};

/// Mappings that are looked at in one go under the lock: about 0.2 ms.
const LOOK_MAPPINGS: usize = 8192;

/// Blocks that a batch takes in advance at most.
const AHEAD_MAX: u64 = 32;

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
    /// Another batch is writing the same content: wait for all of these, then look up again.
    Wait(Vec<Arc<Event>>),
    /// It is new: a block was allocated, holds one reference, and is marked in flight.
    New(Pba),
    /// What is known of that address is in the store only: bring it in, then look up again. It may have
    /// the content, or be the one to be handed out next.
    Load(Pba),
    /// The store has to be asked for an index entry, then look up again.
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

/// Parts of the state that a count of mappings has at the same time.
type Counting<'a> = (
    &'a BTreeMap<u32, VolumeEntry>,
    &'a mut Ancestry,
    &'a mut Space,
    Option<&'a mut OnlineCount>,
);

/// Everything the engine knows.
pub(crate) struct State {
    pub(crate) volumes: BTreeMap<u32, VolumeEntry>,
    pub(crate) ancestry: Ancestry,
    pub(crate) blocks: BlockTable,
    pub(crate) index: Index,
    /// What the index has no room for.
    pub(crate) on_disk_index: OnDiskIndex,
    space: Mutex<Space>,
    packs: Mutex<PackCount>,
    /// What of maps is in memory.
    pub(crate) resident: Resident,
    /// The volume and sub-block that background work brought maps in up to.
    pub(crate) warmed_upto: (u32, u64),
    /// What is stored before everything is loaded; `None` afterwards.
    pub(crate) deferred: Option<Box<DeferredDedup>>,
    flights: Flights,
    /// Appends whose records are checked and not yet installed: nothing leaves memory meanwhile.
    appending: AtomicU32,
    /// A block takes at most this many references; then the content is stored once more.
    references_max: u32,
    /// End of a batch that the store had no room for: exactly that batch is tried again.
    pub(crate) retry_upto: Option<u64>,
    /// Sequence number of the last record that changes something, installed or on its way into the journal.
    last_change: AtomicU64,
    /// That of the last one whose changes were made.
    installed: AtomicU64,
    /// The data of everything up to this sequence number is on stable drives.
    pub(crate) flushed: u64,
    /// Everything up to this sequence number survives a power loss.
    pub(crate) durable: u64,
    unflushed_bytes: AtomicU64,
    pub(crate) corrupt_blocks: u64,
    /// Mappings that an online check counts.
    pub(crate) online: Option<Box<OnlineCount>>,
    /// Why it takes no changes, and since when.
    read_only: OnceLock<(String, SystemTime)>,
    /// Called with the reason when it becomes so.
    pub(crate) when_read_only: Option<fn(&str)>,
    /// No commands any more.
    pub(crate) closed: bool,
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
            space: Mutex::new(Space::new(data_blocks, discard)),
            packs: Mutex::default(),
            resident,
            warmed_upto: (0, 0),
            deferred: None,
            flights: Flights::default(),
            appending: AtomicU32::new(0),
            references_max: references_max.clamp(1, IN_FLIGHT - 1),
            retry_upto: None,
            last_change: AtomicU64::new(0),
            installed: AtomicU64::new(0),
            flushed: 0,
            durable: 0,
            unflushed_bytes: AtomicU64::new(0),
            corrupt_blocks: 0,
            online: None,
            read_only: OnceLock::new(),
            when_read_only: None,
            closed: false,
            volume_changes: Arc::default(),
            next_volume: Some(1),
            settings: Settings::default(),
        }
    }

    /// One drive more, with the next index.
    pub(crate) fn add_drive(&mut self, space: DriveSpace, data_blocks: u64) {
        self.index.add_drive(data_blocks);
        self.blocks.add_drive(data_blocks);
        self.space().add_drive(space);
    }

    /// What a count of mappings looks at, and what it changes.
    pub(crate) fn for_count(&mut self) -> Counting<'_> {
        let space = self.space.get_mut();
        (
            &self.volumes,
            &mut self.ancestry,
            space.unwrap_or_else(PoisonError::into_inner),
            self.online.as_deref_mut(),
        )
    }

    /// Free blocks, locked.
    #[inline]
    pub(crate) fn space(&self) -> Held<'_, Space> {
        lock(&self.space)
    }

    /// How many packs and fragments there are, locked.
    pub(crate) fn packs(&self) -> Held<'_, PackCount> {
        lock(&self.packs)
    }

    /// Sequence number of the last record that changes something, installed or on its way into the journal.
    #[inline]
    pub(crate) fn last_change(&self) -> u64 {
        self.last_change.load(Ordering::Acquire)
    }

    /// A record with this number changes something.
    pub(crate) fn will_change(&self, sequence: u64) {
        self.last_change.fetch_max(sequence, Ordering::AcqRel);
    }

    /// That of the last one whose changes were made.
    pub(crate) fn installed(&self) -> u64 {
        self.installed.load(Ordering::Acquire)
    }

    /// The changes of this one were made.
    pub(crate) fn has_installed(&self, sequence: u64) {
        self.installed.fetch_max(sequence, Ordering::AcqRel);
    }

    /// Bytes of data that were written and not flushed.
    pub(crate) fn unflushed_bytes(&self) -> u64 {
        self.unflushed_bytes.load(Ordering::Acquire)
    }

    /// So many of them were flushed.
    pub(crate) fn has_flushed(&self, bytes: u64) {
        let less = |unflushed: u64| Some(unflushed.saturating_sub(bytes));
        let counter = &self.unflushed_bytes;
        _ = counter.fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
    }

    /// An append is checked: nothing leaves memory before it ends.
    pub(crate) fn begin_append(&self) {
        self.appending.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn end_append(&self) {
        self.appending.fetch_sub(1, Ordering::AcqRel);
    }

    /// Whether the records of an append are checked and not yet installed.
    pub(crate) fn is_appending(&self) -> bool {
        self.appending.load(Ordering::Acquire) > 0
    }

    /// Whether commands that share the state may write: background work needs to be told of each change otherwise.
    pub(crate) fn is_shareable(&self) -> bool {
        self.deferred.is_none() && self.online.is_none()
    }

    /// Blocks for a batch, none so far.
    pub(crate) fn new_flight(&self) -> Flight {
        // Each drive has two tables.
        let drive = match self.blocks.tables() {
            2 => 0,
            _ => self.space().roomiest_drive(),
        };
        self.flights.begin(drive)
    }

    /// A batch has all the blocks that it gets. Returns the number of its flight, if it has any.
    pub(crate) fn take_off(&self, flight: Flight) -> Option<u64> {
        let Flight {
            number,
            runs,
            ahead: (first, end),
            ..
        } = flight;
        if first < end {
            self.space().put_back(Pba(first), end - first);
        }
        if runs.is_empty() {
            if let Some(done) = self.flights.end(number) {
                done.set();
            }
            return None;
        }
        self.flights.is_whole(number, runs);
        Some(number)
    }

    /// The blocks of a flight are written, or abandoned. Set the event when the state is not locked any more:
    /// it wakes those that wait for the flight.
    pub(crate) fn land(&self, number: u64) -> Option<Arc<Event>> {
        let runs = self.flights.take_runs(number)?;
        runs.iter().for_each(|pba| self.blocks.land(pba));
        self.flights.end(number)
    }

    /// An error if the pool takes no changes.
    pub(crate) fn check_writable(&self) -> Result<()> {
        match self.read_only() {
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
        let PackCount {
            packs, fragments, ..
        } = *self.packs();
        self.space().used().saturating_sub(packs) + fragments
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

    /// Looks content up and takes a reference, or a new block (a fragment of `pack`, if it goes there). Nobody else looks for
    /// the same content meanwhile.
    pub(crate) fn claim(
        &self,
        flight: &mut Flight,
        wanted: Wanted,
        pack: Option<&mut OpenPack>,
    ) -> Claim {
        let fingerprint = wanted.fingerprint;
        let mut shard = match fingerprint.is_some() {
            true => Some(self.index.at(&fingerprint)),
            false => None,
        };
        let sought = match &shard {
            Some(shard) => self.seek_at(shard, &fingerprint, wanted.answer),
            None => Sought::Nowhere,
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
            if is_in_flight && !is_own {
                // It may have landed by now: then there is nothing to wait for.
                return Claim::Wait(self.flights.of(pba, flight.number));
            }
            if has_room {
                self.blocks.take(pba);
                // Something may have left the index since.
                if sought == Sought::Unindexed(pba)
                    && !shard.is_some_and(|mut shard| shard.insert(pba, None))
                {
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
        let allocated = match pack {
            Some(pack) => pack.allocate(|| {
                let is_resident = |pba: Pba| self.blocks.is_resident(pba.fragment(0));
                self.space()
                    .allocate(flight.drive, wanted.has_promise, is_resident)
            }),
            None => self.allocate(flight, wanted.has_promise),
        };
        let pba = match allocated {
            Ok(pba) => pba,
            Err(NoBlock::Full) => return Claim::Full,
            Err(NoBlock::NotResident(pba)) => return Claim::Load(pba),
        };
        if pba.is_fragment() {
            self.packs().add(pba);
        }
        let info = BlockInfo {
            references: 1 | IN_FLIGHT,
            crc32c: wanted.item,
            fingerprint,
        };
        self.blocks.create(pba, info);
        if let Some(shard) = &mut shard {
            shard.came();
            if !shard.insert(pba, known) {
                self.on_disk_index.wait(pba, fingerprint);
            }
            let is_displaced = known.is_some() || wanted.is_distinct;
            Current::observe(|| self.on_disk_index.displaces(is_displaced));
        }
        flight.add(pba);
        Claim::New(pba)
    }

    /// A block for new content. Who needs several gets them at once: each time twice as many as the last time.
    #[inline]
    fn allocate(
        &self,
        flight: &mut Flight,
        has_promise: bool,
    ) -> std::result::Result<Pba, NoBlock> {
        if let Some(pba) = flight.next_ahead() {
            return Ok(pba);
        }
        let wanted = (flight.ahead_count * 2).clamp(1, AHEAD_MAX);
        let is_resident = |pba: Pba| self.blocks.is_resident(pba);
        let run = self
            .space()
            .allocate_run(flight.drive, has_promise, wanted, is_resident);
        let (first, count) = run?;
        flight.ahead = (first.0 + 1, first.0 + count);
        flight.ahead_count = count;
        Ok(first)
    }

    /// A block with that content is new: to be told where the state is not shared.
    pub(crate) fn note_new(&mut self, pba: Pba, fingerprint: Fingerprint) {
        if let Some(deferred) = &mut self.deferred
            && fingerprint.is_some()
        {
            deferred.add_block(pba, fingerprint);
        }
    }

    /// Of the blocks that a flight would get next, those of which only the store knows.
    pub(crate) fn not_resident_ahead(&self, flight: &Flight, count: usize) -> Vec<Pba> {
        let ahead: Vec<Pba> = self.space().ahead(flight.drive, count).collect();
        let ahead = ahead.into_iter();
        ahead.filter(|pba| !self.blocks.is_resident(*pba)).collect()
    }

    /// A block in flight was not written, and will not be: all its references are void.
    /// `may_be_written`: a write to it may still be under way, so it is not used again.
    pub(crate) fn abandon(&self, pba: Pba, may_be_written: bool) {
        let BlockInfo {
            references,
            fingerprint,
            ..
        } = self.blocks.get(pba);
        let freed = {
            let mut shard = self.shard_of(&fingerprint);
            let mut packs = self.packs_of(pba);
            self.leaves(shard.as_mut(), pba, &fingerprint);
            self.blocks.let_go(pba, references & !IN_FLIGHT);
            self.blocks.clear(pba);
            self.empties(packs.as_deref_mut(), pba)
        };
        let Some(block) = freed else {
            return;
        };
        if may_be_written {
            self.space().set_aside(block);
        } else {
            self.space().give_back(block);
        }
    }

    /// The shard of a content in the index, locked; `None`: it has no fingerprint.
    #[inline]
    fn shard_of(&self, fingerprint: &Fingerprint) -> Option<ShardGuard<'_>> {
        fingerprint.is_some().then(|| self.index.at(fingerprint))
    }

    /// Of a fragment, the counts of packs, locked: what is left in a pack does not change meanwhile.
    #[inline]
    fn packs_of(&self, pba: Pba) -> Option<Held<'_, PackCount>> {
        pba.is_fragment().then(|| self.packs())
    }

    /// An address has no references any more. Returns the block that nothing is in now.
    #[inline]
    fn empties(&self, packs: Option<&mut PackCount>, pba: Pba) -> Option<Pba> {
        match packs {
            Some(packs) => packs.remove(&self.blocks, pba),
            None => Some(pba),
        }
    }

    /// Content that is written again is not taken for stored there.
    pub(crate) fn unindex(&self, pba: Pba) {
        let fingerprint = self.blocks.get(pba).fingerprint;
        if let Some(mut shard) = self.shard_of(&fingerprint) {
            shard.remove(pba);
            self.on_disk_index.forget(pba, &fingerprint);
        }
    }

    /// A block is not in use any more, and not found any more.
    #[inline]
    fn leaves(&self, shard: Option<&mut ShardGuard<'_>>, pba: Pba, fingerprint: &Fingerprint) {
        if let Some(shard) = shard {
            shard.remove(pba);
            shard.went();
            self.on_disk_index.forget(pba, fingerprint);
        }
        self.on_disk_index.show(pba);
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

    /// A command gives back a reference that it holds of a stable block.
    pub(crate) fn give_back(&self, pba: Pba) {
        self.give_back_unindexed(pba);
        let freed = self.lose(pba, |blocks| blocks.let_go(pba, 1));
        self.quarantine(freed.as_slice());
    }

    /// A command gives back references that it holds of stable blocks; some of what is free and durable can be used again.
    pub(crate) fn give_back_all(&self, blocks: impl Iterator<Item = Pba>) {
        for pba in blocks {
            self.give_back(pba);
        }
        self.release();
    }

    /// An address has one reference less. The last one goes while nobody looks for its content, so who finds it there
    /// can take a reference. `before` is done before that. Returns the block that nothing is in any more, to be quarantined.
    #[inline]
    fn lose(&self, pba: Pba, before: impl FnOnce(&BlockTable)) -> Option<Pba> {
        if self.blocks.lose_one_of_several(pba) {
            before(&self.blocks);
            return None;
        }
        let fingerprint = self.blocks.get(pba).fingerprint;
        let mut shard = self.shard_of(&fingerprint);
        let mut packs = self.packs_of(pba);
        before(&self.blocks);
        let Some(left) = self.blocks.lose(pba) else {
            drop((shard, packs));
            // Only a store that contradicts itself can say so.
            self.make_read_only(format!(
                "block {pba} has more mappings than references: stop the daemon, and run `onefold pool \
                 check` and `onefold pool repair`"
            ));
            return None;
        };
        if left > 0 {
            return None;
        }
        self.leaves(shard.as_mut(), pba, &fingerprint);
        self.empties(packs.as_deref_mut(), pba)
    }

    /// Nothing refers to these blocks any more.
    fn quarantine(&self, freed: &[Pba]) {
        if freed.is_empty() {
            return;
        }
        let mut space = self.space();
        // The number is read with the space locked, so those of the quarantine never fall.
        let last = self.last_change();
        for block in freed {
            space.quarantine(*block, last);
        }
    }

    /// A record takes a mapping of a block away.
    fn drop_reference(&self, pba: Pba, record: u64) -> Option<Pba> {
        if !self.blocks.is_resident(pba) {
            let what = format!(
                "what is known of block {pba} was not at hand when a record changed it: restart, and run \
                 `onefold pool check`"
            );
            Current::must_not_happen(&what);
            self.make_read_only(what);
            return None;
        }
        self.lose(pba, |blocks| blocks.changed(pba, record))
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

    /// Numbers from this one on are free.
    pub(crate) fn saw_volume(&mut self, id: u32) {
        self.next_volume = self
            .next_volume
            .and_then(|next| Some(next.max(id.checked_add(1)?)));
    }

    /// Everything up to `sequence` survives a power loss from now on: what was freed before is to be [released](Self::release).
    pub(crate) fn set_durable(&mut self, sequence: u64) {
        self.durable = self.durable.max(sequence);
    }

    /// Some of the blocks that durable records freed can be used again. Returns whether there are more.
    pub(crate) fn release(&self) -> bool {
        self.space().release(self.durable)
    }

    /// Why the pool takes no changes, if it takes none.
    pub(crate) fn read_only(&self) -> Option<&str> {
        self.read_only.get().map(|(reason, _)| &**reason)
    }

    /// Since when.
    pub(crate) fn read_only_since(&self) -> Option<SystemTime> {
        self.read_only.get().map(|(_, since)| *since)
    }

    /// Takes no changes any more, for this reason (the first one stays).
    pub(crate) fn make_read_only(&self, reason: String) {
        if self.read_only().is_some() {
            return;
        }
        tracing::error!(%reason, "the pool is read-only from now on");
        // Before any command can see it.
        if let Some(tell) = self.when_read_only {
            tell(&reason);
        }
        self.space().freeze();
        // Of two reasons at one moment the first one stays.
        _ = self.read_only.set((reason, SystemTime::now()));
    }

    /// Whether any command is writing blocks.
    #[cfg(test)]
    pub(crate) fn is_quiet(&self) -> bool {
        self.flights.is_empty()
    }
}
