//! What is known of the members and of their log.

use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::area::{BLOCK, MetadataArea};
use super::dirty::DirtyBlocks;
use super::layout::{Layout, NUMBER_MAX, Superblock};
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
    /// Indexes of the members of the last generation that all of its members know of. At first there may be several of which that is not known.
    pub(super) recorded: Vec<Vec<u16>>,
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

impl State {
    /// Whether the members are half of those that were known last, or more. Then whoever takes the pool over from more than half of
    /// these meets one of the members, which knows of all changes.
    pub(super) fn is_half(&self) -> bool {
        let is_member = |index: &&u16| self.members.iter().any(|member| member.index == **index);
        let mut all = self.recorded.iter();
        all.all(|recorded| recorded.iter().filter(is_member).count() * 2 >= recorded.len())
    }

    /// Whether the drive may hold what was known last.
    pub(super) fn is_recorded(&self, index: u16) -> bool {
        self.recorded.iter().flatten().any(|known| *known == index)
    }
}

/// The state, which is locked while drives write, and what is seen of it meanwhile.
pub(super) struct Watched {
    state: Mutex<State>,
    seen: Mutex<OnDrivesState>,
}

impl Watched {
    pub(super) fn new(state: State) -> Self {
        Self {
            seen: Mutex::new(OnDrivesState::of(&state)),
            state: Mutex::new(state),
        }
    }

    /// Waits for as long as a drive takes.
    pub(super) fn lock(&self) -> Locked<'_> {
        Locked {
            state: self.state.lock().unwrap_or_else(PoisonError::into_inner),
            seen: &self.seen,
        }
    }

    /// As it was when it was locked last, if it is locked. Waits for nobody.
    pub(super) fn seen(&self) -> OnDrivesState {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.clone()
    }
}

/// The state, to be changed.
pub(super) struct Locked<'a> {
    state: MutexGuard<'a, State>,
    seen: &'a Mutex<OnDrivesState>,
}

impl Deref for Locked<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        &self.state
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.state
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let members = self.state.members.iter().map(|member| member.index);
        if !members.eq(seen.drives.iter().copied()) || seen.is_too_large != self.state.is_too_large
        {
            *seen = OnDrivesState::of(&self.state);
        }
    }
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
    /// There is one, and a sync of the journal flushes its data too.
    pub flushes_data: bool,
}

impl OnDrivesState {
    fn of(state: &State) -> Self {
        let members = || state.members.iter();
        Self {
            flushes_data: matches!(&state.members[..], [only] if only.area.flushes_data()),
            drives: members().map(|member| member.index).collect(),
            names: members().map(|member| member.area.name()).collect(),
            is_too_large: state.is_too_large,
        }
    }
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

/// Takes an area its superblocks: the newer one last, so that what it says does not become older if the area fails on the way.
pub(super) fn erase(area: &dyn MetadataArea) -> io::Result<()> {
    let newer = Superblock::read(area)?.map_or(0, |found| found.block());
    for block in [1 - newer, newer] {
        area.write(block, Arc::new(vec![0; BLOCK])).wait()?;
        area.flush().wait()?;
    }
    Ok(())
}
