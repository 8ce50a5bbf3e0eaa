//! A segment moves: what it holds is copied to another place, and then it lies there.
//!
//! Guarantees: from the beginning on all that is written to the segment goes to the new place too. All blocks in use are copied,
//! each proven, and are on stable storage there before the row says so; a copy that a write missed never counts. Nothing else
//! is laid at the old place before all have left who may use it for this segment, and nothing that is in doubt can happen
//! there. A crash leaves the segment at the old place or at the new one, and both hold all that was acknowledged. When a row
//! could not be written nobody knows which one it says: both are written from then on, and nothing is moved any more.

use std::sync::Arc;

use meta::{Pba, SegmentCopy, SegmentRow};

use crate::background::rebuild::{catch_up_all, give_up};
use crate::background::scrub::{LOOK_BLOCKS, blocks_to_scrub};
use crate::drive_io::drive_list::DriveList;
use crate::drive_io::drive_state::DriveState;
use crate::drive_io::segments::{SEGMENT_BLOCKS, segment_of};
use crate::log::flush::flush;
use crate::pool::Shared;
use crate::pool::alerts::Action;
use crate::sync::wait::lock;
use crate::{EngineError, Result};

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moved {
    /// The segment lies where the row says, and nobody uses the places that it left.
    Done,
    /// It lies where it lay: its new place went offline, a write missed that, or the pool is being closed.
    GivenUp,
}

/// The copy that is being made, until it counts.
struct Making<'a> {
    drives: &'a DriveList,
    is_settled: bool,
}

impl Drop for Making<'_> {
    fn drop(&mut self) {
        if !self.is_settled {
            self.drives.give_up_copy();
        }
    }
}

/// Copies a segment to a place that nothing uses; then it lies where the row says. One at a time, and not beside a rebuild.
///
/// # Errors
/// Some block cannot be read from any copy, the new place cannot be written, or the row.
pub(super) async fn copy(
    shared: &Arc<Shared>,
    segment: Pba,
    to: SegmentCopy,
    row: &SegmentRow,
) -> Result<Moved> {
    let drives = &shared.drives;
    let rebuilds = drives.rebuilds(to.drive);
    let is_online =
        || drives.state(to.drive) == DriveState::Online && drives.rebuilds(to.drive) == rebuilds;
    drives.begin_copy(segment, to);
    let mut making = Making {
        drives,
        is_settled: false,
    };
    // Batches that chose their copies before do not write to the new place.
    drives.gate.drain().await;
    for first in windows(segment) {
        let found = blocks_to_scrub(shared, first).await?;
        let blocks = found.into_iter().map(|(pba, _)| pba);
        let blocks: Vec<Pba> = blocks.filter(|pba| segment_of(*pba) == segment).collect();
        let goes_on = || !shared.is_closed() && is_online();
        if !catch_up_all(shared, (to.drive, true), &blocks, goes_on, |_, _| ()).await? {
            return Ok(Moved::GivenUp);
        }
    }
    // What was freed before it was looked at must not come back after a crash, and no record tells of what was copied.
    flush(shared).await?;
    if let Some(drive) = drives.get(to.drive.into())
        && let Err(error) = drive.flush().await
    {
        return Err(give_up(shared, to.drive, &[], (Action::Flush, &error)).await);
    }
    {
        let _changing = shared.drive_states.lock().await;
        if !is_online() || !drives.commit_copy() {
            return Ok(Moved::GivenUp);
        }
        // If that fails nobody knows what the row says: all places stay those of the segment, and are written.
        making.is_settled = true;
        write_down(shared, segment, *row).await?;
        drives.settle(segment, row);
    }
    leave_places(shared).await;
    Ok(Moved::Done)
}

/// A segment that is not in use lies nowhere from now on. False if one of its blocks is in use.
///
/// # Errors
/// The row cannot be written: the segment is not used until the pool is opened again.
pub(super) async fn withdraw(shared: &Arc<Shared>, segment: Pba) -> Result<bool> {
    // From here on none of its blocks is handed out.
    let is_unused = lock(&shared.state)
        .space()
        .withdraw(segment, SEGMENT_BLOCKS);
    if is_unused {
        let row = SegmentRow::unplaced(epoch(shared).await?);
        write_down(shared, segment, row).await?;
        shared.drives.settle(segment, &row);
        leave_places(shared).await;
    }
    Ok(is_unused)
}

/// A segment that lies nowhere lies where the row says from now on, and its blocks are free.
///
/// # Errors
/// The row cannot be written: the places are used for nothing until the pool is opened again.
pub(super) async fn place(shared: &Arc<Shared>, segment: Pba, row: &SegmentRow) -> Result<()> {
    write_down(shared, segment, *row).await?;
    shared.drives.settle(segment, row);
    lock(&shared.state).space().place(segment, SEGMENT_BLOCKS);
    Ok(())
}

/// A segment has the copies of this row only from now on, of which one can be read at least. False if none can.
///
/// # Errors
/// The row cannot be written.
pub(super) async fn drop_copies(
    shared: &Arc<Shared>,
    segment: Pba,
    row: &SegmentRow,
) -> Result<bool> {
    {
        let _changing = shared.drive_states.lock().await;
        let is_online = |copy: &SegmentCopy| shared.drives.state(copy.drive) == DriveState::Online;
        if !row.copies().iter().any(is_online) {
            return Ok(false);
        }
        write_down(shared, segment, *row).await?;
        shared.drives.settle(segment, row);
    }
    leave_places(shared).await;
    Ok(true)
}

/// The pool's epoch, for new rows.
pub(super) async fn epoch(shared: &Arc<Shared>) -> Result<u32> {
    let store = shared.store.clone();
    let checkpoint = shared.block_on(move || store.checkpoint()).await?;
    Ok(checkpoint.epoch)
}

async fn write_down(shared: &Arc<Shared>, segment: Pba, row: SegmentRow) -> Result<()> {
    let store = shared.store.clone();
    let end = Pba::new(segment.drive(), segment.block() + SEGMENT_BLOCKS);
    let written = move || store.put_segments(segment..end, &[(segment, row)]);
    let written = shared.block_on(written).await;
    written.map_err(|error| {
        shared.drives.lose_sight();
        EngineError::unavailable(format!(
            "where a segment lies cannot be written down: {error}; see to the pool's folder, and start the daemon again"
        ))
    })
}

/// All have left who may use the places that a segment had.
async fn leave_places(shared: &Arc<Shared>) {
    shared.drives.gate.drain().await;
}

/// The first addresses of windows of the block table that hold a segment's blocks, and the contents of its packs.
fn windows(segment: Pba) -> impl Iterator<Item = Pba> {
    let step = LOOK_BLOCKS as usize;
    let blocks = (0..SEGMENT_BLOCKS).step_by(step);
    let blocks = blocks.map(move |at| Pba::new(segment.drive(), segment.block() + at));
    let contents = (0..SEGMENT_BLOCKS * Pba::SLOTS).step_by(step);
    let contents = contents.map(move |at| {
        let block = Pba::new(segment.drive(), segment.block() + at / Pba::SLOTS);
        block.fragment((at % Pba::SLOTS) as u8)
    });
    blocks.chain(contents)
}

#[cfg(test)]
pub(crate) mod tests;
