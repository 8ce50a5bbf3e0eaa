//! Stories of moves, step by step.

use std::pin::pin;
use std::sync::Arc;

use drives::{BLOCK_BYTES, Drive, MemoryDrive};
use meta::{MemoryStore, Pba, SegmentCopy, SegmentRow, StoreFault};
use reactor::BufferPool;

use super::{Moved, copy};
use crate::background::rearranging::rearrange_if_wanted;
use crate::background::tests::{block_on, data, open, poll};
use crate::drive_io::segments::SEGMENT_BLOCKS;
use crate::{Engine, LABEL_BLOCKS, Volume};

/// A pool with one copy of everything, on two drives of which the second one has a place without a segment.
fn pool() -> (Arc<Engine>, Arc<Volume>, BufferPool, Arc<MemoryStore>) {
    let store = Arc::new(MemoryStore::new());
    let row = SegmentRow::of_one(0, SegmentCopy { drive: 0, slot: 0 });
    let (first, other) = (Pba::new(0, 0), Pba::new(0, SEGMENT_BLOCKS));
    meta::Store::put_segments(&*store, first..other, &[(first, row)]).unwrap();
    let drive = || -> Arc<dyn Drive> { Arc::new(MemoryDrive::new(LABEL_BLOCKS + SEGMENT_BLOCKS)) };
    let (engine, volume, _) = open(vec![drive(), drive()], store.clone());
    let buffers = BufferPool::new(8 << 20).unwrap();
    (engine, volume, buffers, store)
}

fn write(volume: &Volume, at: u64, contents: &[u8], pool: &BufferPool) {
    let at = at * BLOCK_BYTES as u64;
    let (result, _) = block_on(volume.write(at, data(pool, contents), false));
    result.unwrap();
}

/// Whether a copy counts of which a write failed that was acknowledged.
pub(crate) fn counts_though_missed() -> bool {
    let (engine, volume, pool, _) = pool();
    let drives = &engine.shared.drives;
    // Behind the end of the drive: all that is written there fails.
    drives.begin_copy(Pba::new(0, 0), SegmentCopy { drive: 1, slot: 9 });
    write(&volume, 0, &[1, 2], &pool);
    drives.commit_copy()
}

#[test]
fn a_write_that_misses_the_copy_that_is_being_made_succeeds_and_the_copy_never_counts() {
    assert!(!counts_though_missed());
}

/// Whether a move ends while somebody uses the places that the segment had.
pub(crate) fn ends_beside_a_reader() -> bool {
    let (engine, volume, pool, _) = pool();
    write(&volume, 0, &[1, 2, 3], &pool);
    let shared = engine.shared.clone();
    // Its place, and the one where nothing lies any more.
    assert!(block_on(super::withdraw(&shared, Pba::new(1, 0))).unwrap());
    let to = SegmentCopy { drive: 1, slot: 0 };
    let row = SegmentRow::of_one(1, to);
    let mut moving = pin!(copy(&shared, Pba::new(0, 0), to, &row));
    let mut reader = None;
    for _ in 0..10_000 {
        if let Some(moved) = poll(moving.as_mut()) {
            assert_eq!(moved.unwrap(), Moved::Done);
            return reader.is_some();
        }
        // It saw the old place a moment before the segment left it.
        let is_new = shared.drives.places(Pba::new(0, 0))[0].drive == 1;
        reader = match (reader, is_new) {
            (Some(pass), true) => Some(pass),
            (Some(pass), false) => {
                drop(pass);
                None
            }
            (None, true) => None,
            (None, false) => Some(shared.drives.gate.pass()),
        };
    }
    drop(reader);
    assert_eq!(block_on(moving).unwrap(), Moved::Done);
    false
}

#[test]
fn a_place_is_given_up_only_when_all_have_left_who_may_use_it() {
    assert!(!ends_beside_a_reader());
}

#[test]
fn when_a_row_cannot_be_written_both_places_are_written_from_then_on_and_nothing_moves_any_more() {
    let (engine, volume, pool, store) = pool();
    write(&volume, 0, &[1, 2, 3], &pool);
    let shared = engine.shared.clone();
    assert!(block_on(super::withdraw(&shared, Pba::new(1, 0))).unwrap());
    let to = SegmentCopy { drive: 1, slot: 0 };
    let row = SegmentRow::of_one(1, to);
    store.fail_at(store.operations(), StoreFault::NoSpace);
    block_on(copy(&shared, Pba::new(0, 0), to, &row)).unwrap_err();
    let places = shared.drives.writable(Pba::new(0, 9));
    assert!(places.iter().map(|place| place.drive).eq([0, 1]));
    write(&volume, 8, &[4], &pool);
    let refused = block_on(engine.empty_drive(0)).unwrap_err();
    assert!(
        refused.message.contains("start the daemon again"),
        "{refused}"
    );
    let drive = Arc::new(MemoryDrive::new(LABEL_BLOCKS + SEGMENT_BLOCKS));
    block_on(engine.add_drive(drive, None, |_| panic!("it is added"))).unwrap_err();
    let all_well = block_on(rearrange_if_wanted(&shared, &engine.background));
    assert!(!all_well, "the alert says that nothing is moved");
    // The lost row is that of the new place, as if the error came after it: all is there.
    let end = Pba::new(0, SEGMENT_BLOCKS);
    meta::Store::put_segments(&*store, Pba::new(0, 0)..end, &[(Pba::new(0, 0), row)]).unwrap();
    shared.drives.settle(Pba::new(0, 0), &row);
    for (at, content) in [(0, 1), (8, 4)] {
        let buf = data(&pool, &[0]);
        let (result, buf) = block_on(volume.read(at * BLOCK_BYTES as u64, buf));
        result.unwrap();
        assert!(buf.iter().all(|byte| *byte == content));
    }
}
