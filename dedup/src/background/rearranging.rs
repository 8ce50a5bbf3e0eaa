//! Segments are moved where they should lie: from drives that are being emptied, and to drives that were added; and they get as
//! many copies as they should have.
//!
//! Guarantees: one step at a time, none beside a rebuild; hosts feel a step as they feel a rebuild. A drive that is being
//! emptied stays so after a restart. What fails is tried again.

use std::collections::BTreeSet;
use std::sync::Arc;

use meta::{Pba, SegmentCopy, SegmentRow};

use crate::background::Background;
use crate::background::moving::{self, Moved, epoch};
use crate::drive_io::arrangement::{Arrangement, DriveFacts, NoRoom, Step};
use crate::drive_io::data_blocks_of;
use crate::drive_io::drive_state::DriveState;
use crate::drive_io::segments::SEGMENT_BLOCKS;
use crate::pool::Shared;
use crate::pool::alerts::Work;
use crate::residency::loading::load_all;
use crate::sync::wait::lock;
use crate::{EngineError, Result};

/// What is known of where segments lie.
#[derive(Default)]
pub(crate) struct Places {
    /// `None`: the store says it.
    arrangement: Option<Arrangement>,
    /// Places where nothing is laid before the pool is opened again: writes that were missed there may happen yet.
    spoiled: BTreeSet<SegmentCopy>,
    /// Places that segments left, or did not come to, where something may happen yet.
    in_doubt: BTreeSet<SegmentCopy>,
}

impl Places {
    /// Somebody else changes rows, or drives.
    pub(crate) fn forget(&mut self) {
        self.arrangement = None;
    }

    /// Places where nothing is to be laid, though no segment lies there.
    pub(crate) fn resting(&self) -> BTreeSet<SegmentCopy> {
        self.spoiled.union(&self.in_doubt).copied().collect()
    }
}

/// Takes all steps that there are to be taken. Whether none failed.
pub(crate) async fn rearrange_if_wanted(shared: &Arc<Shared>, background: &Background) -> bool {
    while !shared.is_closed() {
        let step = {
            let _alone = background.rebuilding.lock().await;
            let mut places = background.places.lock().await;
            let done = take_step(shared, &mut places).await;
            if done.is_err() {
                places.forget();
            }
            done
        };
        match step {
            Ok(true) => {}
            Ok(false) => {
                shared.alerts.work(Work::Move, Ok(()));
                return true;
            }
            Err(error) => {
                shared.alerts.work(Work::Move, Err(error));
                return false;
            }
        }
    }
    true
}

/// Whether a step was taken.
async fn take_step(shared: &Arc<Shared>, places: &mut Places) -> Result<bool> {
    shared.drives.check_rows()?;
    let drives = drives(shared);
    if places.arrangement.is_none() {
        load_all(shared).await?;
        let store = shared.store.clone();
        let rows = shared.block_on(move || store.segments()).await?;
        let (resting, epoch) = (places.resting(), epoch(shared).await?);
        let domains = shared.drives.domains();
        let wanted = (shared.drives.copies(), epoch);
        places.arrangement = Some(Arrangement::new(rows, drives, domains, &resting, wanted));
    } else if let Some(all) = &mut places.arrangement {
        all.set_drives(drives);
    }
    settle_doubts(shared, places);
    let Some(all) = &mut places.arrangement else {
        return Ok(false);
    };
    if !all.may_have_steps() {
        return Ok(false);
    }
    let is_unused = |segment: Pba| {
        lock(&shared.state)
            .space()
            .is_unused(segment, SEGMENT_BLOCKS)
    };
    let step = all.next(is_unused).map_err(|none| no_room(shared, none))?;
    let Some(step) = step else {
        return Ok(false);
    };
    tracing::debug!(?step, "a segment is moved");
    let (segment, row) = match step {
        Step::Copy { segment, to, row } => {
            // Used for nothing else if this future is dropped on the way.
            places.spoiled.insert(to);
            all.rest(to);
            let moved = moving::copy(shared, segment, to, &row).await;
            if !matches!(moved, Ok(Moved::Done)) {
                shared.drives.gate.drain().await;
                if !shared.drives.is_incoming_spoiled() {
                    places.spoiled.remove(&to);
                    places.in_doubt.insert(to);
                }
                return moved.map(|_| true);
            }
            places.spoiled.remove(&to);
            (segment, row)
        }
        Step::Withdraw { segment } => {
            if !moving::withdraw(shared, segment).await? {
                return Ok(true);
            }
            (segment, SegmentRow::unplaced(0))
        }
        Step::Place { segment, row } => {
            moving::place(shared, segment, &row).await?;
            (segment, row)
        }
        Step::Drop { segment, row } => {
            if !moving::drop_copies(shared, segment, &row).await? {
                return Ok(true);
            }
            (segment, row)
        }
    };
    let before = all.row(segment);
    let before = before.as_ref().map_or(&[][..], SegmentRow::copies);
    let left = before.iter().filter(|copy| !row.copies().contains(copy));
    let left: Vec<SegmentCopy> = left.copied().collect();
    all.did(segment, row);
    places.in_doubt.extend(left);
    settle_doubts(shared, places);
    Ok(true)
}

/// Places that segments left are free when nothing can happen there any more.
fn settle_doubts(shared: &Shared, places: &mut Places) {
    if places.in_doubt.is_empty() {
        return;
    }
    let (doubtful, _) = lock(&shared.state).space().doubtful_drives();
    let Some(all) = &mut places.arrangement else {
        return;
    };
    places.in_doubt.retain(|copy| {
        let is_in_doubt = doubtful.contains(&copy.drive) || shared.drives.is_in_doubt(copy.drive);
        if !is_in_doubt {
            all.vacate(*copy);
        }
        is_in_doubt
    });
}

/// The drives as they are now.
pub(crate) fn drives(shared: &Shared) -> Vec<DriveFacts> {
    let drives = (0u16..).zip(shared.drives.iter());
    let of = drives.map(|(index, drive)| DriveFacts {
        data_blocks: match drive.is_absent() {
            true => 0,
            false => data_blocks_of(&**drive).unwrap_or(0),
        },
        is_online: shared.drives.state(index) == DriveState::Online,
        is_emptying: shared.drives.is_emptying(index),
    });
    of.collect()
}

fn no_room(shared: &Shared, NoRoom { drive, .. }: NoRoom) -> EngineError {
    EngineError::invalid(match drive {
        Some(drive) => format!(
            "drive {} cannot be emptied: the other drives have no room for its data; add a drive or delete data, or keep it \
             (`onefold drive online`)",
            shared.drive_name(drive)
        ),
        None => format!(
            "the drives have no room for {} copies of all data: add a drive or delete data, or set the redundancy back \
             (`onefold pool set`)",
            shared.drives.copies()
        ),
    })
}
