//! The drives of an open pool, and where its segments lie on them.
//!
//! Drives are added and never taken away as long as the pool is open, and an index always means the same
//! drive: reading the list costs no lock.

use std::sync::{Arc, OnceLock};

use drives::Drive;
use meta::Pba;

use crate::LABEL_BLOCKS;
use crate::drive_io::segments::{Place, Rows, Segments};

/// Drives of a pool at most.
pub(crate) const DRIVES_MAX: usize = 256;

/// The drives by their index, and the places of segments.
pub(crate) struct DriveList {
    drives: Box<[OnceLock<Arc<dyn Drive>>]>,
    segments: Segments,
}

impl DriveList {
    /// Drives with the rows of the segments that were made on each. The caller has made sure that there are no more than
    /// [`DRIVES_MAX`].
    pub(crate) fn new(drives: &[Arc<dyn Drive>], segments: &[Rows]) -> Self {
        let list = Self {
            drives: (0..DRIVES_MAX).map(|_| OnceLock::new()).collect(),
            segments: Segments::new(DRIVES_MAX),
        };
        for (drive, rows) in drives.iter().zip(segments) {
            list.add(drive.clone(), rows);
        }
        list
    }

    /// Adds a drive behind the others, with the rows of its segments, which are durable; its index. `None` if there are
    /// as many as can be.
    pub(crate) fn add(&self, drive: Arc<dyn Drive>, rows: &Rows) -> Option<u16> {
        let mut drive = drive;
        for (index, place) in (0..).zip(&self.drives) {
            match place.set(drive) {
                Ok(()) => {
                    self.segments.add(index, rows);
                    return Some(index);
                }
                Err(back) => drive = back,
            }
        }
        None
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<dyn Drive>> {
        self.drives.iter().map_while(OnceLock::get)
    }

    pub(crate) fn get(&self, index: usize) -> Option<&Arc<dyn Drive>> {
        self.drives.get(index)?.get()
    }

    pub(crate) fn len(&self) -> usize {
        self.iter().count()
    }

    /// Where a block is, or the pack of a fragment; `None` if no segment has it.
    #[inline]
    pub(crate) fn place(&self, pba: Pba) -> Option<Place> {
        self.segments.place(pba)
    }

    /// Where a block is; of one that no segment has, a drive that there is not.
    #[inline]
    pub(crate) fn place_or_none(&self, pba: Pba) -> Place {
        self.place(pba).unwrap_or(Place {
            drive: u16::MAX,
            block: 0,
        })
    }

    /// Name of the drive that a block is on, and its number there among the data blocks.
    pub(crate) fn named(&self, pba: Pba) -> (&str, u64) {
        let place = self.place(pba);
        let drive = place.and_then(|place| self.get(place.drive.into()));
        let block = place.map_or(pba.block(), |place| place.block - LABEL_BLOCKS);
        (drive.map_or("?", |drive| drive.name()), block)
    }

    /// Blocks as runs on the drives. Those that follow each other should do so in the list.
    pub(crate) fn runs(&self, blocks: &[Pba]) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        for Place { drive, block } in blocks.iter().filter_map(|pba| self.place(*pba)) {
            match runs.last_mut() {
                Some(run) if run.drive == drive && run.first + run.blocks == block => {
                    run.blocks += 1;
                }
                _ => runs.push(Run {
                    drive,
                    first: block,
                    blocks: 1,
                }),
            }
        }
        runs
    }
}

/// Blocks of a drive that follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) drive: u16,
    /// The first block on the drive, the label area included.
    pub(crate) first: u64,
    pub(crate) blocks: u64,
}

#[cfg(test)]
pub(crate) mod tests {
    use drives::MemoryDrive;

    use super::*;
    use crate::drive_io::segments::rows_of_new;

    /// Drives with so many data blocks, whose segments lie where they were made.
    pub(crate) fn drives_where_they_were_made(data_blocks: &[u64]) -> DriveList {
        let drive =
            |blocks: &u64| -> Arc<dyn Drive> { Arc::new(MemoryDrive::new(LABEL_BLOCKS + blocks)) };
        let drives: Vec<_> = data_blocks.iter().map(drive).collect();
        let rows = (0u16..).zip(data_blocks);
        let rows: Vec<Rows> = rows
            .map(|(home, blocks)| rows_of_new(home, *blocks, 0))
            .collect();
        DriveList::new(&drives, &rows)
    }
}
