//! The on-disk index: contents that the index in memory has no room for, and what is known of them in memory.
//!
//! An entry of the on-disk index is a *hint*: a row in the store that leads from a fingerprint to a block
//! ([`crate::residency::on_disk_index`] looks hints up and writes them).
//!
//! Guarantees:
//! * A content in use that the index does not have *waits* here until the store has its hint, and again as
//!   long as commands hold references that the store does not know of: the last mapping that it knows of
//!   may go before theirs comes, and the row and its hint with that. Who asked the store while hints were
//!   written asks again ([`Answer`]): so nothing is missed in between.
//! * A hint is never believed: its block must be in use and have that fingerprint, as what is known of it
//!   says. A block that was found damaged is not found by a hint.
//! * What waits is bounded by what the journal holds and the store does not
//!   ([`replay_entries_max`](crate::EngineConfig::replay_entries_max)), by commands under way, and by
//!   what was loaded and waits for its hint.

use std::collections::{BTreeSet, HashMap};

use meta::{Fingerprint, Pba};

use crate::metadata::block_table::IN_FLIGHT;
use crate::metadata::index::Found;
use crate::metadata::state::State;

/// Damaged blocks that hints are kept from ([`OnDiskIndex::hidden_max`]). With more, nobody asks for hints until the pool is opened again:
/// contents that only they lead to are stored once more, and do not heal damaged blocks.
const HIDDEN_MAX: usize = 64 * 1024;

/// What the store said of a content.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer {
    /// Hints that were written since may say more.
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
    /// The store has to be asked for a hint.
    Ask,
    /// No block in use has it.
    Nowhere,
}

/// A content that the index does not have, and that the store may not have a hint for, or lose it: a block
/// that commands hold is in use even if the last mapping to it goes, and its row and hint with that.
#[derive(Clone, Copy)]
struct Waiting {
    pba: Pba,
    /// References that commands hold and no record tells of.
    held: u32,
    /// The last record that a command mapped it with; 0 if none did since it began to wait.
    record: u64,
    /// The store has the hint, or had it.
    is_hinted: bool,
}

impl Waiting {
    /// A block begins to wait; no command maps it yet.
    fn new(pba: Pba, held: u32, is_hinted: bool) -> Self {
        Self {
            pba,
            held,
            record: 0,
            is_hinted,
        }
    }

    /// Whether nothing but the store's hint is needed, if the store has all records up to `stored`: from
    /// now on there are mappings as long as the block is in use.
    fn is_over(&self, stored: u64) -> bool {
        self.is_hinted && self.held == 0 && self.record <= stored
    }
}

/// What is known of contents that are not in the index.
pub(crate) struct OnDiskIndex {
    waiting: HashMap<Fingerprint, Waiting>,
    /// Those that the store has already, and no checkpoint will write a hint for.
    pub(crate) loaded: Vec<(Pba, Fingerprint)>,
    /// How often hints were written.
    pub(crate) generation: u64,
    /// The store has hints.
    pub(crate) is_stored: bool,
    /// Contents in use that have a fingerprint.
    hashed: u64,
    /// Blocks in use whose content must not be found.
    hidden: BTreeSet<Pba>,
    /// So many at most.
    pub(crate) hidden_max: usize,
    /// There are more of them than can be known.
    is_off: bool,
    /// Contents that the store was asked for, and of those how many it had a hint for.
    pub(crate) asked: u64,
    pub(crate) answered: u64,
    /// How often a second block of a content became the one to be found, or one was hidden.
    #[cfg(test)]
    pub(crate) displaced: u64,
}

impl OnDiskIndex {
    /// `is_stored`: the store has hints.
    pub(crate) fn new(is_stored: bool) -> Self {
        Self {
            waiting: HashMap::new(),
            loaded: Vec::new(),
            generation: 0,
            is_stored,
            hashed: 0,
            hidden: BTreeSet::new(),
            hidden_max: HIDDEN_MAX,
            is_off: false,
            asked: 0,
            answered: 0,
            #[cfg(test)]
            displaced: 0,
        }
    }

    /// So many contents with a fingerprint came into use, or turned out to be.
    pub(crate) fn came(&mut self, count: u64) {
        self.hashed += count;
    }

    /// A block with this fingerprint is not in use any more.
    pub(crate) fn went(&mut self, pba: Pba, fingerprint: &Fingerprint) {
        self.hashed -= u64::from(fingerprint.is_some());
        if !self.hidden.is_empty() {
            self.hidden.remove(&pba);
        }
    }

    /// Contents that are not in an index with so many.
    pub(crate) fn unindexed(&self, indexed: usize) -> u64 {
        self.hashed.saturating_sub(indexed as u64)
    }

    /// Whether any content waits for its hint.
    pub(crate) fn is_waited(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// The index has no room for a new block, which a command holds.
    pub(crate) fn wait(&mut self, pba: Pba, fingerprint: Fingerprint) {
        #[cfg(test)]
        if crate::ablation::is(crate::ablation::Broken::ForgetUnindexed) {
            return;
        }
        self.waiting
            .insert(fingerprint, Waiting::new(pba, 1, false));
    }

    /// The same of a block that the store has, and no hint for it.
    pub(crate) fn wait_loaded(&mut self, pba: Pba, fingerprint: Fingerprint) {
        // Of two old blocks of the same content the other one was to be found until now.
        #[cfg(test)]
        self.displaces(self.waiting.get(&fingerprint).is_some_and(|w| w.pba != pba));
        self.waiting
            .insert(fingerprint, Waiting::new(pba, 0, false));
        self.loaded.push((pba, fingerprint));
    }

    /// A block is to be found by its content, whatever was found by it before. `is_stored`: the store has its row,
    /// and not only the journal.
    pub(crate) fn wait_instead(&mut self, pba: Pba, fingerprint: Fingerprint, is_stored: bool) {
        let same = self.waiting.get(&fingerprint).filter(|w| w.pba == pba);
        if same.is_some_and(|waiting| !waiting.is_hinted) {
            return; // it waits already
        }
        let mut waiting = Waiting::new(pba, same.map_or(0, |waiting| waiting.held), false);
        if is_stored {
            self.loaded.push((pba, fingerprint));
        } else {
            waiting.record = 1; // the checkpoint that stores its row writes its hint
        }
        self.waiting.insert(fingerprint, waiting);
    }

    /// Whether content must not be taken for stored in this block.
    pub(crate) fn is_hidden(&self, pba: Pba) -> bool {
        self.hidden.contains(&pba)
    }

    /// A command takes a reference of a block that the index does not have.
    pub(crate) fn take(&mut self, pba: Pba, fingerprint: Fingerprint) {
        #[cfg(test)]
        if crate::ablation::is(crate::ablation::Broken::ForgetHeldHints) {
            return;
        }
        if self.hidden.contains(&pba) {
            return;
        }
        let entry = self.waiting.entry(fingerprint);
        let waiting = entry.or_insert(Waiting::new(pba, 0, true));
        if waiting.pba == pba {
            waiting.held += 1;
        }
    }

    /// A command gives one back, and others stay.
    fn give_back(&mut self, pba: Pba, fingerprint: &Fingerprint, stored: u64) {
        if let Some(waiting) = self.waiting.get_mut(fingerprint)
            && waiting.pba == pba
        {
            waiting.held = waiting.held.saturating_sub(1);
            if waiting.is_over(stored) {
                self.waiting.remove(fingerprint);
            }
        }
    }

    /// A record tells of a reference that a command held.
    pub(crate) fn mapped(&mut self, pba: Pba, fingerprint: &Fingerprint, record: u64) {
        if let Some(waiting) = self.waiting.get_mut(fingerprint)
            && waiting.pba == pba
        {
            waiting.held = waiting.held.saturating_sub(1);
            waiting.record = record;
        }
    }

    /// A block leaves; another one of the same content stays.
    pub(crate) fn forget(&mut self, pba: Pba, fingerprint: &Fingerprint) {
        if !self.waiting.is_empty() && self.waiting.get(fingerprint).is_some_and(|w| w.pba == pba) {
            self.waiting.remove(fingerprint);
        }
    }

    /// Whether the store, with all records up to `stored`, has to have a hint for a block that waits.
    pub(crate) fn is_due(&self, pba: Pba, fingerprint: &Fingerprint, stored: u64) -> bool {
        let waiting = self.waiting.get(fingerprint);
        waiting.is_some_and(|waiting| waiting.pba == pba && (1..=stored).contains(&waiting.record))
    }

    /// Whether a loaded block waits, that no command mapped since.
    fn is_loaded(&self, pba: Pba, fingerprint: &Fingerprint) -> bool {
        let waiting = self.waiting.get(fingerprint);
        waiting
            .is_some_and(|waiting| waiting.pba == pba && waiting.record == 0 && !waiting.is_hinted)
    }

    /// The store has a hint for a block, and all records up to `stored`.
    pub(crate) fn hinted(&mut self, pba: Pba, fingerprint: &Fingerprint, stored: u64) {
        if let Some(waiting) = self.waiting.get_mut(fingerprint)
            && waiting.pba == pba
            && waiting.record <= stored
        {
            waiting.is_hinted = true;
            if waiting.is_over(stored) {
                self.waiting.remove(fingerprint);
            }
        }
    }

    /// Some loaded blocks that wait for their hints, to be written now.
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
        if self.hidden.len() < self.hidden_max {
            self.hidden.insert(pba);
        } else {
            self.is_off = true;
        }
    }

    /// Whether another block of its content is the one to be found now.
    #[cfg(test)]
    pub(crate) fn displaces(&mut self, is_displaced: bool) {
        self.displaced += u64::from(is_displaced);
    }

    /// It may be taken for stored there again.
    pub(crate) fn show(&mut self, pba: Pba) {
        self.hidden.remove(&pba);
    }
}

impl State {
    /// A command takes one reference more of a block, however it came to know it.
    pub(crate) fn take(&mut self, pba: Pba) {
        self.blocks.take(pba);
        let fingerprint = self.blocks.get(pba).fingerprint;
        if fingerprint.is_some() && !self.index.has(&fingerprint, pba) {
            self.on_disk_index.take(pba, fingerprint);
        }
    }

    /// It gives one back, that is still counted.
    pub(crate) fn hints_give_back(&mut self, pba: Pba) {
        if self.on_disk_index.is_waited() {
            let fingerprint = self.blocks.get(pba).fingerprint;
            let stored = self.resident.stored();
            self.on_disk_index.give_back(pba, &fingerprint, stored);
        }
    }

    /// Looks for a content; `answer`: what the store said of it, if it was asked.
    #[inline]
    pub(crate) fn seek(&self, fingerprint: &Fingerprint, answer: Option<Answer>) -> Sought {
        match self.index.find(&self.blocks, fingerprint) {
            Found::Resident(pba) => Sought::Indexed(pba),
            Found::Stored(pba) => Sought::NotResident(pba),
            Found::Nowhere => self.seek_unindexed(fingerprint, answer),
        }
    }

    fn seek_unindexed(&self, fingerprint: &Fingerprint, answer: Option<Answer>) -> Sought {
        let hints = &self.on_disk_index;
        if !hints.waiting.is_empty()
            && let Some(waiting) = hints.waiting.get(fingerprint)
        {
            return match self.blocks.is_resident(waiting.pba) {
                true => Sought::Unindexed(waiting.pba),
                false => Sought::NotResident(waiting.pba),
            };
        }
        if !hints.is_stored || hints.is_off {
            return Sought::Nowhere;
        }
        // Blocks that are not entered may have hints, too.
        if hints.unindexed(self.index.len()) == 0 && self.deferred.is_none() {
            return Sought::Nowhere;
        }
        let is_current = |answer: &Answer| {
            #[cfg(test)]
            if crate::ablation::is(crate::ablation::Broken::BelieveOldAnswers) {
                return true;
            }
            answer.generation == hints.generation
        };
        let Some(answer) = answer.filter(is_current) else {
            return Sought::Ask;
        };
        let pba = answer.pba.filter(|pba| self.space.contains(*pba));
        let Some(pba) = pba.filter(|pba| !hints.hidden.contains(pba)) else {
            return Sought::Nowhere;
        };
        match self.blocks.look(pba) {
            None => Sought::NotResident(pba),
            Some(info) => {
                let is_it = info.references & !IN_FLIGHT > 0 && info.fingerprint == *fingerprint;
                #[cfg(test)]
                let is_it = is_it || crate::ablation::is(crate::ablation::Broken::BelieveHints);
                match is_it {
                    true => Sought::Unindexed(pba),
                    false => Sought::Nowhere,
                }
            }
        }
    }
}
