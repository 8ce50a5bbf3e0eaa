//! What is known of the members and of their log.

use std::io;
use std::sync::Arc;

use super::area::{BLOCK, MetadataArea};
use super::dirty::DirtyBlocks;
use super::layout::{Layout, NUMBER_MAX};
use super::log::frame_blocks;
use crate::codec::Reader;
use crate::setting::{ON_DRIVES_KEY, SettingChanges};

/// What the next sync of the journal has to know.
#[derive(Default)]
pub(super) struct Syncing {
    /// Blocks that were synced since areas began to join: those get them at the end.
    pub(super) since: Option<DirtyBlocks>,
}

#[derive(Clone)]
pub(super) struct Member {
    pub(super) index: u16,
    pub(super) area: Arc<dyn MetadataArea>,
    /// Of its superblock.
    pub(super) sequence: u64,
}

pub(super) struct State {
    pub(super) members: Vec<Member>,
    /// Areas that get the log already, and have no base yet.
    pub(super) joining: Vec<Member>,
    pub(super) log: Option<Log>,
    pub(super) identity: String,
    /// A change that the log has, and the store in the folder perhaps not.
    pub(super) logged: Option<Vec<u8>>,
    /// The largest generation that any area had.
    pub(super) generation_max: u64,
    /// The rows have no room in a base.
    pub(super) is_too_large: bool,
}

/// Which log there is, and how far it goes.
#[derive(Clone, Debug)]
pub(super) struct Log {
    pub(super) generation: u64,
    pub(super) lineage: u64,
    pub(super) layout: Layout,
    pub(super) base_slot: u64,
    pub(super) base_change: u64,
    pub(super) base_bytes: u64,
    pub(super) start: u64,
    /// The last change, and the block behind it.
    pub(super) change: u64,
    pub(super) end: u64,
}

/// What the store in the folder knows of the areas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) generation: u64,
    pub(super) change: u64,
    pub(super) end: u64,
}

/// Who holds the metadata of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnDrivesState {
    /// Indexes of the drives, in no order.
    pub drives: Vec<u16>,
    /// What these drives are called.
    pub names: Vec<String>,
    /// The metadata has no room on the drives.
    pub is_too_large: bool,
}

impl Mark {
    pub(super) fn of(log: &Log) -> Self {
        Self {
            generation: log.generation,
            change: log.change,
            end: log.end,
        }
    }

    /// That of a folder from which no area has anything, and whose next members are of a larger generation.
    pub(super) fn abandoned(generation: u64) -> Self {
        Self {
            generation,
            change: 0,
            end: 0,
        }
    }

    pub(super) fn is_abandoned(self) -> bool {
        self == Self::abandoned(self.generation)
    }

    pub(super) fn setting(self) -> SettingChanges {
        let numbers = [self.generation, self.change, self.end];
        let value: Vec<u8> = numbers.into_iter().flat_map(u64::to_le_bytes).collect();
        SettingChanges::from([(ON_DRIVES_KEY.to_owned(), Some(value))])
    }

    pub(super) fn parse(value: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(value);
        let mut number = || reader.u64().ok().filter(|number| *number <= NUMBER_MAX);
        let (generation, change, end) = (number()?, number()?, number()?);
        reader.end().ok()?;
        Some(Self {
            generation,
            change,
            end,
        })
    }
}

impl State {
    pub(super) fn mark(&self) -> Option<SettingChanges> {
        let log = self.log.as_ref().filter(|_| !self.members.is_empty())?;
        Some(Mark::of(log).setting())
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().chain(&self.joining)
    }

    pub(super) fn remove(&mut self, failed: &[u16]) {
        let stays = |member: &Member| !failed.contains(&member.index);
        self.members.retain(stays);
        self.joining.retain(stays);
    }

    pub(super) fn has_room(&self, bytes: &[u8]) -> bool {
        let needed = frame_blocks(bytes);
        self.log
            .as_ref()
            .is_none_or(|log| log.end - log.start + needed <= log.layout.log_blocks)
    }
}

/// Takes an area its superblocks.
pub(super) fn erase(area: &dyn MetadataArea) -> io::Result<()> {
    area.write(0, Arc::new(vec![0; 2 * BLOCK])).wait()?;
    area.flush().wait()
}
