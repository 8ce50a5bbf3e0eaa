//! The engine's state in memory, and the few changes it can make.
//!
//! One mutex guards it; it is held for short sections without an await, a drive or a store in them.
//! Invariants, whenever the mutex is free:
//! * a block's count = mappings to it + references that commands under way hold (I4);
//! * a block is in the index exactly if its count is above zero (or another block of the same content
//!   took its place there);
//! * a block in `in_flight` is being written by one command, which holds all its references;
//! * a block whose count falls to zero leaves the index at once and is quarantined with the sequence
//!   number of the last record then appended: no record after that one refers to it (I3).

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use meta::{Fingerprint, MapEntry, Pba, Record, VolumeInfo, VolumeState};

use crate::index::{BlockInfo, BlockTable, Index};
use crate::map::PageMap;
use crate::range_lock::RangeLock;
use crate::space::Space;
use crate::wait::Event;
use crate::{EngineError, Result, SUB_BLOCK_BYTES};

/// Identifies a command while it writes.
pub(crate) type Owner = u64;

/// A volume in memory.
pub(crate) struct VolumeEntry {
    pub(crate) info: VolumeInfo,
    pub(crate) map: PageMap,
    pub(crate) range_lock: Arc<RangeLock>,
}

impl VolumeEntry {
    pub(crate) fn new(info: VolumeInfo) -> Self {
        Self {
            info,
            map: PageMap::default(),
            range_lock: Arc::default(),
        }
    }

    pub(crate) fn is_active(&self) -> bool {
        self.info.state == VolumeState::Active
    }

    /// Sub-blocks of the volume.
    pub(crate) fn sub_blocks(&self) -> u64 {
        self.info.size_bytes / SUB_BLOCK_BYTES as u64
    }
}

struct InFlight {
    owner: Owner,
    done: Arc<Event>,
}

/// What a look-up of new content ends in.
pub(crate) enum Claim {
    /// The content is stored (or this command is about to store it): one reference was taken.
    Known(Pba),
    /// Another command is writing the same content: wait, then look up again.
    Wait(Arc<Event>),
    /// Nobody has it: a block was allocated, holds one reference, and is marked in flight.
    New(Pba),
    /// Nobody has it and no block is free.
    Full,
}

/// Everything the engine knows.
pub(crate) struct State {
    pub(crate) volumes: BTreeMap<u32, VolumeEntry>,
    pub(crate) blocks: BlockTable,
    pub(crate) index: Index,
    pub(crate) space: Space,
    in_flight: HashMap<u64, InFlight>,
    /// A block takes at most this many references; then the content is stored once more.
    references_max: u32,
    /// Records appended and not yet in the store, in order. Bounded by the journal's capacity.
    pub(crate) recent: VecDeque<(u64, Record)>,
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
    pub(crate) read_only: Option<String>,
    /// No commands any more.
    pub(crate) closed: bool,
    next_owner: Owner,
    /// Volume numbers are not used again while the pool is open: a handle of a deleted volume, or the
    /// purge of one, must never meet another volume. `None` when all are used up.
    pub(crate) next_volume: Option<u32>,
}

impl State {
    pub(crate) fn new(data_blocks: &[u64], discard: bool, references_max: u32) -> Self {
        Self {
            volumes: BTreeMap::new(),
            blocks: BlockTable::new(data_blocks),
            index: Index::default(),
            space: Space::new(data_blocks, discard),
            in_flight: HashMap::new(),
            references_max: references_max.max(1),
            recent: VecDeque::new(),
            retry_upto: None,
            last_change: 0,
            flushed: 0,
            durable: 0,
            unflushed_bytes: 0,
            corrupt_blocks: 0,
            read_only: None,
            closed: false,
            next_owner: 0,
            next_volume: Some(1),
        }
    }

    pub(crate) fn new_owner(&mut self) -> Owner {
        self.next_owner += 1;
        self.next_owner
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
            return Err(EngineError::unavailable(
                "the pool is being closed; connect again later",
            ));
        }
        self.volumes
            .get(&volume)
            .filter(|entry| entry.is_active())
            .ok_or_else(|| EngineError::not_found(format!("volume {volume} was deleted")))
    }

    /// Looks content up and takes a reference, or a new block.
    pub(crate) fn claim(
        &mut self,
        owner: Owner,
        drive: usize,
        fingerprint: Fingerprint,
        crc32c: u32,
    ) -> Claim {
        if let Some(pba) = self.index.find(&self.blocks, &fingerprint) {
            match self.in_flight.get(&pba.0) {
                #[cfg(test)]
                Some(_) if crate::ablation::is(crate::ablation::Broken::ShareInFlight) => {}
                Some(writer) if writer.owner != owner => return Claim::Wait(writer.done.clone()),
                _ => {}
            }
            let info = self.blocks.entry(pba);
            if info.references < self.references_max {
                info.references += 1;
                return Claim::Known(pba);
            }
            // As many references as can be counted: a second copy takes over in the index.
        }
        let Some(pba) = self.space.allocate(drive) else {
            return Claim::Full;
        };
        *self.blocks.entry(pba) = BlockInfo {
            references: 1,
            crc32c,
            fingerprint,
        };
        self.index.insert(&self.blocks, pba);
        self.in_flight.insert(
            pba.0,
            InFlight {
                owner,
                done: Arc::new(Event::default()),
            },
        );
        Claim::New(pba)
    }

    /// The block is written: others may share it.
    pub(crate) fn mark_stable(&mut self, pba: Pba) {
        if let Some(writer) = self.in_flight.remove(&pba.0) {
            writer.done.set();
        }
    }

    /// The block was not written, and will not be: its references are void, who waits retries by
    /// itself. `may_be_written`: a write to it may still be under way, so it is not used again.
    pub(crate) fn abandon(&mut self, pba: Pba, may_be_written: bool) {
        self.index.remove(&self.blocks, pba);
        self.blocks.entry(pba).references = 0;
        if may_be_written {
            self.space.set_aside(pba);
        } else {
            self.space.give_back(pba);
        }
        self.mark_stable(pba);
    }

    /// Drops one reference of a stable block.
    pub(crate) fn drop_reference(&mut self, pba: Pba) {
        let info = self.blocks.entry(pba);
        debug_assert!(
            info.references > 0,
            "block {pba:?} has no reference to drop"
        );
        info.references -= 1;
        if info.references == 0 {
            self.index.remove(&self.blocks, pba);
            self.space.quarantine(pba, self.last_change);
        }
    }

    /// Makes a record's changes. Its new blocks' references pass from the command to the map.
    pub(crate) fn install(&mut self, record: &Record) {
        match record {
            Record::Map {
                volume,
                start,
                entries,
            } => {
                for (at, entry) in (*start..).zip(entries) {
                    self.install_entry(*volume, at, entry);
                }
            }
            Record::Unmap { volume, entries } => {
                for (at, _) in entries {
                    self.map_one(*volume, *at, None);
                }
            }
            Record::VolumeCreate(info) => {
                self.saw_volume(info.id);
                self.volumes.insert(info.id, VolumeEntry::new(info.clone()));
            }
            Record::VolumeResize { id, size_bytes } => {
                if let Some(entry) = self.volumes.get_mut(id) {
                    entry.info.size_bytes = *size_bytes;
                }
            }
            Record::VolumeDelete { id } => {
                if let Some(entry) = self.volumes.get_mut(id) {
                    entry.info.state = VolumeState::Deleting;
                }
            }
            Record::VolumeGone { id } => {
                self.volumes.remove(id);
            }
            Record::Durable { .. } => {}
        }
    }

    fn install_entry(&mut self, volume: u32, at: u64, entry: &MapEntry) {
        if entry.new.is_some() {
            self.unflushed_bytes += SUB_BLOCK_BYTES as u64;
        }
        self.map_one(volume, at, entry.new.map(|new| new.pba));
    }

    fn map_one(&mut self, volume: u32, at: u64, new: Option<Pba>) {
        let old = match self.volumes.get_mut(&volume) {
            Some(entry) => entry.map.replace(at, new),
            None => new, // a volume that is gone maps nothing: the new reference is void
        };
        if let Some(old) = old {
            self.drop_reference(old);
        }
    }

    /// Numbers from this one on are free.
    pub(crate) fn saw_volume(&mut self, id: u32) {
        self.next_volume = self
            .next_volume
            .and_then(|next| Some(next.max(id.checked_add(1)?)));
    }

    /// Gives the references back that a record's new mappings hold: it was not appended.
    pub(crate) fn undo(&mut self, record: &Record) {
        if let Record::Map { entries, .. } = record {
            for pba in entries
                .iter()
                .filter_map(|entry| entry.new.map(|new| new.pba))
            {
                self.drop_reference(pba);
            }
        }
        self.space.release(self.durable);
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
        }
    }

    /// Whether any command is writing blocks.
    #[cfg(test)]
    pub(crate) fn is_quiet(&self) -> bool {
        self.in_flight.is_empty()
    }
}
