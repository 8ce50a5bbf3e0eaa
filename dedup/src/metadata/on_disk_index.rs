//! The on-disk index: contents that the index in memory has no room for, and what is known of them in memory.
//!
//! An *index entry* is an entry of the on-disk index: a row in the store that leads from a fingerprint to a block
//! ([`crate::residency::on_disk_index`] looks index entries up and writes them). The index in memory is *the index*.
//!
//! Guarantees:
//! * A content in use that the index does not have *waits* here until the store has its index entry, and again as
//!   long as commands hold references that the store does not know of: the last mapping that it knows of
//!   may go before theirs comes, and the row and its index entry with that. Who asked the store while index entries were
//!   written asks again ([`Answer`]): so nothing is missed in between.
//! * An index entry is never believed: its block must be in use and have that fingerprint, as what is known of it
//!   says. A block that was found damaged is not found by an index entry.
//! * What waits is bounded by what the journal holds and the store does not
//!   ([`replay_entries_max`](crate::EngineConfig::replay_entries_max)), by commands under way, and by
//!   what was loaded and waits for its index entry.

use std::collections::{BTreeSet, HashMap};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use meta::{Fingerprint, Pba};

use crate::hooks::{Current, Hooks};
use crate::metadata::block_table::IN_FLIGHT;
use crate::metadata::index::{Found, ShardGuard};
use crate::metadata::state::State;
use crate::sync::wait::{Held, lock};

/// Damaged blocks that index entries are kept from ([`OnDiskIndex::hidden_max`]). With more, nobody asks for index entries until
/// the pool is opened again: contents that only they lead to are stored once more, and do not heal damaged blocks.
const HIDDEN_MAX: usize = 64 * 1024;

/// What the store said of a content.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer {
    /// Index entries that were written since may say more.
    pub(crate) generation: u64,
    pub(crate) pba: Option<Pba>,
}

/// What is known of a content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sought {
    /// The index leads to this block, which has it.
    Indexed(Pba),
    /// This block has it, and the index does not know.
    Unindexed(Pba),
    /// Perhaps this block, of which only the store knows: bring that in, then look again.
    NotResident(Pba),
    /// The store has to be asked for an index entry.
    Ask,
    /// No block in use has it.
    Nowhere,
}

/// A content that the index does not have, and that the store may not have an index entry for, or lose it: a block
/// that commands hold is in use even if the last mapping to it goes, and its row and index entry with that.
#[derive(Clone, Copy)]
struct Waiting {
    pba: Pba,
    /// References that commands hold and no record tells of.
    held: u32,
    /// The last record that a command mapped it with; 0 if none did since it began to wait.
    record: u64,
    /// The store has the index entry, or had it.
    has_index_entry: bool,
}

impl Waiting {
    /// A block begins to wait; no command maps it yet.
    fn new(pba: Pba, held: u32, has_index_entry: bool) -> Self {
        Self {
            pba,
            held,
            record: 0,
            has_index_entry,
        }
    }

    /// Whether nothing but the store's index entry is needed, if the store has all records up to `stored`: from
    /// now on there are mappings as long as the block is in use.
    fn is_over(&self, stored: u64) -> bool {
        self.has_index_entry && self.held == 0 && self.record <= stored
    }
}

/// What is known of contents that are not in the index.
///
/// What commands change has locks of its own. What waits for one content changes only while its shard of the index is locked, or
/// the state is.
pub(crate) struct OnDiskIndex {
    waiting: Counted<HashMap<Fingerprint, Waiting>>,
    /// Those that the store has already, and no checkpoint will write an index entry for.
    pub(crate) loaded: Vec<(Pba, Fingerprint)>,
    /// How often index entries were written.
    pub(crate) generation: u64,
    /// The store has index entries.
    pub(crate) is_stored: bool,
    /// Blocks in use whose content must not be found.
    hidden: Counted<BTreeSet<Pba>>,
    /// So many at most.
    pub(crate) hidden_max: usize,
    /// There are more of them than can be known.
    is_off: bool,
    /// Contents that the store was asked for, and of those how many it had an index entry for.
    pub(crate) asked: u64,
    pub(crate) answered: u64,
    /// How often a second block of a content became the one to be found, or one was hidden.
    displaced: AtomicU64,
}

/// Something that is empty most of the time: whoever looks then takes no lock.
#[derive(Default)]
struct Counted<T> {
    all: Mutex<T>,
    count: AtomicUsize,
}

impl<T> Counted<T> {
    fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    fn look<R>(&self, look: impl FnOnce(&T) -> R) -> R {
        look(&lock(&self.all))
    }
}

impl Counted<HashMap<Fingerprint, Waiting>> {
    /// What waits, and whether there is anything afterwards.
    fn change<R>(&self, change: impl FnOnce(&mut HashMap<Fingerprint, Waiting>) -> R) -> R {
        let mut all: Held<'_, _> = lock(&self.all);
        let result = change(&mut all);
        self.count.store(all.len(), Ordering::Release);
        result
    }

    fn of(&self, fingerprint: &Fingerprint) -> Option<Waiting> {
        match self.is_empty() {
            true => None,
            false => self.look(|all| all.get(fingerprint).copied()),
        }
    }
}

impl Counted<BTreeSet<Pba>> {
    fn change<R>(&self, change: impl FnOnce(&mut BTreeSet<Pba>) -> R) -> R {
        let mut all: Held<'_, _> = lock(&self.all);
        let result = change(&mut all);
        self.count.store(all.len(), Ordering::Release);
        result
    }

    fn has(&self, pba: Pba) -> bool {
        !self.is_empty() && self.look(|all| all.contains(&pba))
    }
}

impl OnDiskIndex {
    /// `is_stored`: the store has index entries.
    pub(crate) fn new(is_stored: bool) -> Self {
        Self {
            waiting: Counted::default(),
            loaded: Vec::new(),
            generation: 0,
            is_stored,
            hidden: Counted::default(),
            hidden_max: HIDDEN_MAX,
            is_off: false,
            asked: 0,
            answered: 0,
            displaced: AtomicU64::new(0),
        }
    }

    /// Whether any content waits for its index entry.
    pub(crate) fn is_waited(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// The index has no room for a new block, which a command holds.
    pub(crate) fn wait(&self, pba: Pba, fingerprint: Fingerprint) {
        let new = Waiting::new(pba, 1, false);
        self.waiting.change(|all| all.insert(fingerprint, new));
    }

    /// The same of a block that the store has, and no index entry for it.
    pub(crate) fn wait_loaded(&mut self, pba: Pba, fingerprint: Fingerprint) {
        // Of two old blocks of the same content the other one was to be found until now.
        Current::observe(|| {
            self.displaces(self.waiting.of(&fingerprint).is_some_and(|w| w.pba != pba));
        });
        let new = Waiting::new(pba, 0, false);
        self.waiting.change(|all| all.insert(fingerprint, new));
        self.loaded.push((pba, fingerprint));
    }

    /// A block is to be found by its content, whatever was found by it before. `is_stored`: the store has its row,
    /// and not only the journal.
    pub(crate) fn wait_instead(&mut self, pba: Pba, fingerprint: Fingerprint, is_stored: bool) {
        let same = self.waiting.of(&fingerprint).filter(|w| w.pba == pba);
        if same.is_some_and(|waiting| !waiting.has_index_entry) {
            return; // it waits already
        }
        let mut waiting = Waiting::new(pba, same.map_or(0, |waiting| waiting.held), false);
        if is_stored {
            self.loaded.push((pba, fingerprint));
        } else {
            waiting.record = 1; // the checkpoint that stores its row writes its index entry
        }
        self.waiting.change(|all| all.insert(fingerprint, waiting));
    }

    /// Whether content must not be taken for stored in this block.
    pub(crate) fn is_hidden(&self, pba: Pba) -> bool {
        self.hidden.has(pba)
    }

    /// A command takes a reference of a block that the index does not have.
    pub(crate) fn take(&self, pba: Pba, fingerprint: Fingerprint) {
        if self.is_hidden(pba) {
            return;
        }
        self.waiting.change(|all| {
            let waiting = all.entry(fingerprint).or_insert(Waiting::new(pba, 0, true));
            if waiting.pba == pba {
                waiting.held += 1;
            }
        });
    }

    /// A command gives one back, and others stay.
    fn give_back(&self, pba: Pba, fingerprint: &Fingerprint, stored: u64) {
        self.waiting.change(|all| {
            if let Some(waiting) = all.get_mut(fingerprint)
                && waiting.pba == pba
            {
                waiting.held = waiting.held.saturating_sub(1);
                if waiting.is_over(stored) {
                    all.remove(fingerprint);
                }
            }
        });
    }

    /// A record tells of a reference that a command held.
    pub(crate) fn mapped(&self, pba: Pba, fingerprint: &Fingerprint, record: u64) {
        self.waiting.change(|all| {
            if let Some(waiting) = all.get_mut(fingerprint)
                && waiting.pba == pba
            {
                waiting.held = waiting.held.saturating_sub(1);
                waiting.record = record;
            }
        });
    }

    /// A block leaves; another one of the same content stays.
    pub(crate) fn forget(&self, pba: Pba, fingerprint: &Fingerprint) {
        if self.waiting.of(fingerprint).is_some_and(|w| w.pba == pba) {
            self.waiting.change(|all| all.remove(fingerprint));
        }
    }

    /// Whether the store, with all records up to `stored`, has to have an index entry for a block that waits.
    pub(crate) fn is_due(&self, pba: Pba, fingerprint: &Fingerprint, stored: u64) -> bool {
        let waiting = self.waiting.of(fingerprint);
        waiting.is_some_and(|waiting| waiting.pba == pba && (1..=stored).contains(&waiting.record))
    }

    /// Whether a loaded block waits, that no command mapped since.
    fn is_loaded(&self, pba: Pba, fingerprint: &Fingerprint) -> bool {
        let waiting = self.waiting.of(fingerprint);
        waiting.is_some_and(|waiting| {
            waiting.pba == pba && waiting.record == 0 && !waiting.has_index_entry
        })
    }

    /// The store has an index entry for a block, and all records up to `stored`.
    pub(crate) fn note_index_entry(&mut self, pba: Pba, fingerprint: &Fingerprint, stored: u64) {
        self.waiting.change(|all| {
            if let Some(waiting) = all.get_mut(fingerprint)
                && waiting.pba == pba
                && waiting.record <= stored
            {
                waiting.has_index_entry = true;
                if waiting.is_over(stored) {
                    all.remove(fingerprint);
                }
            }
        });
    }

    /// Some loaded blocks that wait for their index entries, to be written now.
    pub(crate) fn take_loaded(&mut self, count_max: usize) -> Vec<(Pba, Fingerprint)> {
        let mut some = Vec::new();
        while some.len() < count_max
            && let Some((pba, fingerprint)) = self.loaded.pop()
        {
            if self.is_loaded(pba, &fingerprint) {
                some.push((pba, fingerprint));
            }
        }
        some
    }

    /// Content must not be taken for stored in this block, which is in use.
    pub(crate) fn hide(&mut self, pba: Pba) {
        let hidden_max = self.hidden_max;
        let has_room = self.hidden.change(|all| {
            let has_room = all.len() < hidden_max;
            if has_room {
                all.insert(pba);
            }
            has_room
        });
        self.is_off |= !has_room;
    }

    /// Whether another block of its content is the one to be found now: tests want to know.
    pub(crate) fn displaces(&self, is_displaced: bool) {
        let count = u64::from(is_displaced);
        self.displaced.fetch_add(count, Ordering::Relaxed);
    }

    /// How often that was so.
    #[cfg(test)]
    pub(crate) fn displaced(&self) -> u64 {
        self.displaced.load(Ordering::Relaxed)
    }

    /// It may be taken for stored there again.
    pub(crate) fn show(&self, pba: Pba) {
        if !self.hidden.is_empty() {
            self.hidden.change(|all| all.remove(&pba));
        }
    }
}

impl State {
    /// A command takes one reference more of a block, however it came to know it.
    pub(crate) fn take(&self, pba: Pba) {
        self.blocks.take(pba);
        let fingerprint = self.blocks.get(pba).fingerprint;
        if fingerprint.is_some() && !self.index.has(&fingerprint, pba) {
            self.on_disk_index.take(pba, fingerprint);
        }
    }

    /// It gives one back, that is still counted.
    pub(crate) fn give_back_unindexed(&self, pba: Pba) {
        if self.on_disk_index.is_waited() {
            let fingerprint = self.blocks.get(pba).fingerprint;
            let stored = self.resident.stored();
            self.on_disk_index.give_back(pba, &fingerprint, stored);
        }
    }

    /// Looks for a content; `answer`: what the store said of it, if it was asked.
    #[inline]
    pub(crate) fn seek(&self, fingerprint: &Fingerprint, answer: Option<Answer>) -> Sought {
        self.seek_at(&self.index.at(fingerprint), fingerprint, answer)
    }

    /// The same in its shard of the index.
    #[inline]
    pub(super) fn seek_at(
        &self,
        shard: &ShardGuard<'_>,
        fingerprint: &Fingerprint,
        answer: Option<Answer>,
    ) -> Sought {
        match shard.find(&self.blocks, fingerprint) {
            Found::Resident(pba) => Sought::Indexed(pba),
            Found::Stored(pba) => Sought::NotResident(pba),
            Found::Nowhere => self.seek_unindexed(shard, fingerprint, answer),
        }
    }

    fn seek_unindexed(
        &self,
        shard: &ShardGuard<'_>,
        fingerprint: &Fingerprint,
        answer: Option<Answer>,
    ) -> Sought {
        let on_disk = &self.on_disk_index;
        if let Some(waiting) = on_disk.waiting.of(fingerprint) {
            return match self.blocks.is_resident(waiting.pba) {
                true => Sought::Unindexed(waiting.pba),
                false => Sought::NotResident(waiting.pba),
            };
        }
        if !on_disk.is_stored || on_disk.is_off {
            return Sought::Nowhere;
        }
        // Blocks that are not entered may have index entries, too.
        if shard.is_complete() && self.deferred.is_none() {
            return Sought::Nowhere;
        }
        let is_current = |answer: &Answer| answer.generation == on_disk.generation;
        let Some(answer) = answer.filter(is_current) else {
            return Sought::Ask;
        };
        let pba = answer.pba.filter(|pba| self.space().contains(*pba));
        let Some(pba) = pba.filter(|pba| !on_disk.is_hidden(*pba)) else {
            return Sought::Nowhere;
        };
        match self.blocks.look(pba) {
            None => Sought::NotResident(pba),
            Some(info) => {
                let is_it = info.references & !IN_FLIGHT > 0 && info.fingerprint == *fingerprint;
                match is_it {
                    true => Sought::Unindexed(pba),
                    false => Sought::Nowhere,
                }
            }
        }
    }
}
