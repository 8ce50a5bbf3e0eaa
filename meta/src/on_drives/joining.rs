//! New bases, and areas that become members by them: see the head of [the room](super).

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::COPIES_WANTED;
use super::area::{BLOCK, MetadataArea};
use super::base::{BaseError, ToAreas, Writer};
use super::dirty::DirtyBlocks;
use super::layout::Layout;
use super::members::{MetadataOnDrives, RUN_BLOCKS, flush_all, lock, wait_all};
use super::state::{Log, Member, erase};
use crate::error::MetaError;

impl MetadataOnDrives {
    /// Makes areas members that are not, each with the index of its drive, as far as members are wanted: copies all to them. The
    /// pool can be in use. Blocks.
    ///
    /// # Errors
    /// The store cannot be copied.
    pub fn join(&self, areas: &[(u16, Arc<dyn MetadataArea>)]) -> Result<(), MetaError> {
        self.make_base(areas)
    }

    /// Makes a new base, for the members and for those of `candidates` that are to be some.
    pub(super) fn make_base(
        &self,
        candidates: &[(u16, Arc<dyn MetadataArea>)],
    ) -> Result<(), MetaError> {
        let _making = lock(&self.making);
        let Some(base) = self.begin_base(candidates)? else {
            return Ok(());
        };
        let made = self.write_base(&base);
        self.folder.drop_rows()?;
        let mut syncing = lock(&self.syncing);
        let since = syncing.since.take();
        let mut state = self.state.lock();
        let (bytes, mut failed) = match made {
            Ok(made) => made,
            Err(BaseError::Rows(error)) => {
                state.joining.clear();
                return Err(error);
            }
            Err(BaseError::NoDrive) => {
                state.joining.clear();
                return self.give_up(&mut state, "no drive takes it");
            }
            Err(BaseError::TooLarge) => {
                state.is_too_large = true;
                return self.give_up(&mut state, "it is larger than what is kept for it on them");
            }
        };
        // What was synced since is small, and nothing is synced while it is written.
        let runs = since.map_or_else(Vec::new, |since| since.take(RUN_BLOCKS));
        for run in runs {
            let offset = run.start * BLOCK as u64;
            let bytes = self.journal_bytes(offset, (run.end - run.start) as usize * BLOCK);
            let bytes = Arc::new(bytes.map_err(|error| self.unreadable(error))?);
            let writes = state.joining.iter().map(|member| {
                let block = base.layout.journal() + run.start;
                (member.index, member.area.write(block, bytes.clone()))
            });
            wait_all(writes.collect(), &mut failed);
        }
        flush_all(state.all(), &mut failed);
        for (index, error) in &failed {
            if let Some(member) = state.all().find(|member| member.index == *index) {
                tracing::error!(drive = member.area.name(), "it takes no metadata: {error}");
            }
            state.remove(&[*index]);
        }
        let joined = std::mem::take(&mut state.joining);
        state.members.extend(joined);
        let Some(log) = &mut state.log else {
            return Ok(());
        };
        log.base_slot = base.slot;
        log.base_change = base.change;
        log.base_bytes = bytes;
        log.start = base.end;
        self.begin_generation(&mut state)
    }

    fn unreadable(&self, error: io::Error) -> MetaError {
        MetaError::io(self.journal().name(), "read the journal", error)
    }

    /// Copies the store, and lets those that join have the log from here on. `None`: there is nobody to make a base for.
    fn begin_base(
        &self,
        candidates: &[(u16, Arc<dyn MetadataArea>)],
    ) -> Result<Option<NewBase>, MetaError> {
        let mut syncing = lock(&self.syncing);
        let mut state = self.state.lock();
        if state.is_too_large || state.logged.is_some() {
            return Ok(None);
        }
        // Half of those that were members have to be some, where nodes share the pool. Of the others the largest first: all members have the
        // room of the smallest.
        let needs_majority = self.needs_majority.load(Ordering::Acquire);
        let was_member = |index: &u16| needs_majority && state.is_recorded(*index);
        let mut others: Vec<_> = candidates.iter().collect();
        others.sort_by_key(|(index, area)| (!was_member(index), std::cmp::Reverse(area.blocks())));
        let largest = others.first().map_or(0, |(_, area)| area.blocks());
        let others = others.into_iter();
        let others = others.filter(|(index, _)| state.members.iter().all(|m| m.index != *index));
        let others = others.filter(|(_, area)| match (&state.log, state.members.is_empty()) {
            (Some(log), false) => log.layout.blocks() <= Some(area.blocks()),
            _ => area.blocks() >= largest / 2,
        });
        let mut joining: Vec<Member> = others
            .take(COPIES_WANTED.saturating_sub(state.members.len()))
            .map(|(index, area)| Member {
                index: *index,
                area: area.clone(),
                sequence: 0,
            })
            .collect();
        // What they had is overwritten.
        joining.retain(|member| {
            let erased = erase(&*member.area);
            if let Err(error) = &erased {
                tracing::error!(drive = member.area.name(), "it takes no metadata: {error}");
            }
            erased.is_ok()
        });
        // What was asked for is no new base for those that hold one.
        if joining.is_empty() && !candidates.is_empty() {
            return Ok(None);
        }
        if state.members.is_empty() {
            let Some(blocks) = joining.iter().map(|member| member.area.blocks()).min() else {
                return Ok(None);
            };
            let Some(layout) = Layout::of(
                blocks,
                self.journal().capacity(),
                self.folder.log_blocks_min(),
            ) else {
                tracing::warn!(
                    "what is kept for metadata on the drives has no room for the journal"
                );
                return Ok(None);
            };
            let lineage = getrandom::u64().map_err(|error| {
                MetaError::Invalid(format!("the system gives no random numbers: {error}"))
            })?;
            state.log = Some(Log {
                generation: state.generation_max,
                lineage,
                layout,
                base_slot: 1,
                base_change: 0,
                base_bytes: 0,
                start: 0,
                change: 0,
                end: 0,
            });
        }
        let Some(log) = state.log.clone() else {
            return Ok(None);
        };
        self.folder.keep_rows()?;
        syncing.since = Some(DirtyBlocks::new(self.journal().capacity()));
        state.joining = joining;
        let areas = state.all();
        Ok(Some(NewBase {
            slot: 1 - log.base_slot,
            layout: log.layout,
            change: log.change,
            end: log.end,
            identity: state.identity.clone(),
            areas: areas
                .map(|member| (member.index, member.area.clone()))
                .collect(),
            joining: state
                .joining
                .iter()
                .map(|member| (member.index, member.area.clone()))
                .collect(),
        }))
    }

    /// Writes the base to all, and the journal to those that join; returns the bytes of the base and who failed.
    fn write_base(&self, base: &NewBase) -> Result<(u64, Vec<(u16, io::Error)>), BaseError> {
        let mut failed = Vec::new();
        let mut note = |index: u16, _: &dyn MetadataArea, error: &io::Error| {
            failed.push((index, io::Error::new(error.kind(), error.to_string())));
        };
        let first = base.layout.slot(base.slot);
        let mut out = ToAreas {
            areas: base.areas.clone(),
            next: first,
            end: first + base.layout.slot_blocks,
            failed: &mut note,
        };
        let mut writer = Writer::new(&mut out, &base.identity)?;
        self.folder
            .show_rows(&mut |key, value| writer.row(key, value))?;
        let bytes = writer.finish()?;
        for (index, area) in &base.joining {
            if let Err(error) = self.copy_journal(&**area, &base.layout) {
                failed.push((*index, error));
            }
        }
        let flushes = base.areas.iter();
        let flushes = flushes.map(|(index, area)| (*index, area.flush()));
        wait_all(flushes.collect(), &mut failed);
        Ok((bytes, failed))
    }

    /// Makes an image of the whole journal. What is right already is not written: a new file of a drive stays sparse.
    pub(super) fn copy_journal(&self, area: &dyn MetadataArea, layout: &Layout) -> io::Result<()> {
        let mut there = vec![0; RUN_BLOCKS as usize * BLOCK];
        for block in (0..layout.journal_blocks).step_by(RUN_BLOCKS as usize) {
            let blocks = RUN_BLOCKS.min(layout.journal_blocks - block);
            let bytes = self.journal_bytes(block * BLOCK as u64, blocks as usize * BLOCK)?;
            let there = &mut there[..bytes.len()];
            area.read(layout.journal() + block, there)?;
            if *there != bytes {
                area.write(layout.journal() + block, Arc::new(bytes))
                    .wait()?;
            }
        }
        Ok(())
    }
}

/// A base that is being made.
struct NewBase {
    slot: u64,
    layout: Layout,
    change: u64,
    end: u64,
    identity: String,
    areas: Vec<(u16, Arc<dyn MetadataArea>)>,
    joining: Vec<(u16, Arc<dyn MetadataArea>)>,
}
