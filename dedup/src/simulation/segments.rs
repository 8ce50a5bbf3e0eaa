//! Segments that lie elsewhere than where they were made, as in a pool whose data was moved.

use std::sync::Arc;

use drives::Drive;
use meta::{MemoryStore, Pba, SegmentCopy, SegmentRow, Store};
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

use super::drive::ShakyDrive;
use crate::LABEL_BLOCKS;
use crate::drive_io::layout::tests::rows_of_new;
use crate::drive_io::segments::{SEGMENT_BLOCKS, names};

/// An empty store. In every second story its segments lie at each other's places.
pub(super) fn store(seed: u64, drives: &[Arc<ShakyDrive>]) -> MemoryStore {
    let store = MemoryStore::new();
    if seed.is_multiple_of(2) {
        return store;
    }
    let mut rows = Vec::new();
    for (home, drive) in (0..).zip(drives) {
        rows.extend(rows_of_new(home, drive.blocks() - LABEL_BLOCKS, 0));
    }
    let is_whole = |copy: &SegmentCopy| {
        let end = LABEL_BLOCKS + (u64::from(copy.slot) + 1) * SEGMENT_BLOCKS;
        end <= drives[usize::from(copy.drive)].blocks()
    };
    let copies = rows.iter().map(|(_, row)| row.copies()[0]);
    let mut places: Vec<_> = copies.filter(is_whole).collect();
    // Not the story's own numbers, which so stay what they were.
    places.shuffle(&mut ChaCha8Rng::seed_from_u64(!seed));
    for (_, row) in rows
        .iter_mut()
        .filter(|(_, row)| is_whole(&row.copies()[0]))
    {
        *row = SegmentRow::of_one(0, places.pop().expect("as many places as segments"));
    }
    for home in 0..drives.len() as u16 {
        let names = names(home);
        let own: Vec<_> = rows
            .iter()
            .filter(|(pba, _)| names.contains(pba))
            .copied()
            .collect();
        store.put_segments(names, &own).expect("a store in memory");
    }
    store
}

/// Where a block or the pack of a fragment is, as the store says: drive and block there.
pub(super) fn place(store: &dyn Store, pba: Pba) -> (u16, u64) {
    let offset = pba.block() % SEGMENT_BLOCKS;
    let name = Pba::new(pba.drive(), pba.block() - offset);
    let rows = store.segments().expect("rows of a store in memory");
    let row = rows.iter().find(|(first, _)| *first == name);
    let copy = row
        .expect("a block in use has a segment with a row")
        .1
        .copies()[0];
    let slot = LABEL_BLOCKS + u64::from(copy.slot) * SEGMENT_BLOCKS;
    (copy.drive, slot + offset)
}
