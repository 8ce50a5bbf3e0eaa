//! Copies of blocks that were not flushed, when a pool is opened: each is proven, and those that are wrong are written again
//! from one that is right.
//!
//! Guarantee: after that, all copies on drives that are online hold what the records say. A drive that cannot be written
//! is offline, or the pool does not open. Of a pack of which no copy is right as a whole, all copies stay as they are: each
//! of its contents is read from one that has it.

use std::collections::BTreeMap;
use std::sync::Arc;

use drives::BLOCK_BYTES;
use meta::{Pba, Store};
use reactor::BufferPool;

use crate::drive_io::drive_list::DriveList;
use crate::drive_io::scatter::{self, OfDrive};
use crate::drive_io::segments::Place;
use crate::log::replay::Proof;
use crate::pool::config::Blocking;
use crate::pool::copies::take_offline;
use crate::{EngineError, Result};

/// Of contents that some copy holds, which copies do, by their drives.
#[derive(Default)]
pub(super) struct ProvenCopies(BTreeMap<Pba, Vec<(u16, bool)>>);

impl ProvenCopies {
    /// What the copies of a content turned out to be: the last record about an address counts.
    pub(super) fn note(&mut self, pba: Pba, proofs: &[(u16, Proof)]) {
        let holds = |(drive, proof): &(u16, Proof)| (*drive, *proof == Proof::Holds);
        let copies: Vec<_> = proofs.iter().map(holds).collect();
        // Where none holds it there is nothing to copy, and with a single one nothing to copy to.
        match copies.len() > 1 && copies.iter().any(|(_, holds)| *holds) {
            true => self.0.insert(pba, copies),
            false => self.0.remove(&pba),
        };
    }

    /// Copies that are to be written again, each with one that is right: places of whole blocks.
    pub(super) fn wrong(&self, drives: &DriveList) -> Vec<(Place, Place)> {
        let mut blocks: BTreeMap<Pba, BTreeMap<u16, bool>> = BTreeMap::new();
        for (pba, copies) in &self.0 {
            let of_block = blocks.entry(pba.container()).or_default();
            for (drive, holds) in copies {
                *of_block.entry(*drive).or_insert(true) &= *holds;
            }
        }
        let mut wrong = Vec::new();
        for (pba, copies) in blocks {
            let places = drives.places(pba);
            let place = |drive: u16| places.iter().find(|place| place.drive == drive).copied();
            let right = copies.iter().find(|(_, holds)| **holds);
            let Some(source) = right.and_then(|(drive, _)| place(*drive)) else {
                continue;
            };
            let others = copies.iter().filter(|(_, holds)| !**holds);
            wrong.extend(others.filter_map(|(drive, _)| Some((place(*drive)?, source))));
        }
        wrong
    }
}

/// Writes a copy of a block again.
///
/// # Errors
/// `Unavailable` if the right copy cannot be read any more, or a drive that must not go offline cannot be written.
pub(super) async fn rewrite(
    drives: &DriveList,
    store: (&Arc<dyn Store>, Blocking),
    (wrong, source): (Place, Place),
    bounces: &BufferPool,
) -> Result<()> {
    let of = |place: Place| OfDrive {
        drive: place.drive,
        extents: vec![place.extent()],
    };
    let buf = bounces.alloc(BLOCK_BYTES).await;
    let (failed, buf) = scatter::read(drives, buf, &[of(source)]).await;
    if let Some((_, error)) = failed.into_iter().next() {
        return Err(EngineError::unavailable(format!(
            "a block that was not flushed cannot be read any more: {error}; check the drive and try again"
        )));
    }
    let Some(drive) = drives.get(wrong.drive.into()) else {
        return Ok(());
    };
    let (written, _) = drive.write(buf, &of(wrong).extents).await;
    match written {
        Err(error) if !take_offline(drives, store, wrong.drive, &error).await => {
            Err(EngineError::unavailable(format!(
                "drive {} cannot be written: {error}; check it and try again",
                drive.name()
            )))
        }
        _ => Ok(()),
    }
}
