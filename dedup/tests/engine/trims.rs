//! Large trims: written down at once, worked off in the background.

use crate::support::{Pool, block_on, expect_kind, space};
use dedup::{Engine, ErrorKind, Volume};
use drives::BLOCK_BYTES;

const GRAIN: u64 = BLOCK_BYTES as u64;

/// A pool in which more than eight sub-blocks are trimmed in the background, four at a time.
fn pool(data_blocks: u64) -> Pool {
    let mut pool = Pool::new(data_blocks);
    pool.config.trim_at_once = 8;
    pool.config.trim_record_entries = 4;
    pool
}

/// Bytes that are still to be trimmed, and that were to be.
fn progress(engine: &Engine) -> Option<(u64, u64)> {
    let status = engine.status();
    let trimming = status.trimming.first()?;
    assert_eq!(trimming.name, "v");
    Some((
        trimming.remaining_bytes / GRAIN,
        trimming.total_bytes / GRAIN,
    ))
}

#[test]
fn a_large_trim_reads_as_zeros_at_once_and_is_freed_in_the_background() {
    let pool = pool(100);
    let (engine, volume) = pool.with_volume(64, 4096);
    pool.write(&volume, 0, &(1..=64).collect::<Vec<_>>())
        .unwrap();
    let appends = pool.media.operations();
    block_on(volume.trim(10 * GRAIN, 40 * GRAIN)).unwrap();
    assert_eq!(pool.media.operations(), appends + 1, "one record");
    assert_eq!(pool.read(&volume, 9, 42).unwrap()[..3], [10, 0, 0]);
    assert_eq!(pool.read(&volume, 48, 3).unwrap(), [0, 0, 51]);
    assert_eq!(space(&engine).0, 64);
    assert_eq!(progress(&engine), Some((40, 40)));

    block_on(engine.maintain()).unwrap();
    assert_eq!(progress(&engine), None);
    assert_eq!(space(&engine), (24, 0, 76));
    assert_eq!(engine.status().logical_bytes, 24 * GRAIN);
}

#[test]
fn zeroing_a_lot_is_done_in_the_background_too_and_its_ends_to_the_byte() {
    let pool = pool(100);
    let (engine, volume) = pool.with_volume(64, 512);
    pool.write(&volume, 0, &[7; 40]).unwrap();
    block_on(volume.write_zeroes(GRAIN - 512, 30 * GRAIN, true)).unwrap();
    assert!(progress(&engine).is_some());
    // The content is looked at behind the first LBA of a sub-block, which is zeroed in the last one.
    assert_eq!(pool.read(&volume, 0, 3).unwrap(), [7, 0, 0]);
    assert_eq!(pool.read(&volume, 29, 3).unwrap(), [0, 0, 7]);
    block_on(engine.maintain()).unwrap();
    assert_eq!(pool.read(&volume, 29, 3).unwrap(), [0, 0, 7]);
}

#[test]
fn what_is_written_where_a_trim_is_still_under_way_stays() {
    let pool = pool(100);
    let (engine, volume) = pool.with_volume(64, 512);
    pool.write(&volume, 0, &(1..=64).collect::<Vec<_>>())
        .unwrap();
    block_on(volume.trim(0, 64 * GRAIN)).unwrap();
    pool.write(&volume, 30, &[100, 101]).unwrap();
    // Part of a sub-block: the rest of it is zeros, not what was there before.
    let mut half = pool.buffers.try_alloc(512).unwrap();
    half.fill(9);
    block_on(volume.write(50 * GRAIN, half, false)).0.unwrap();
    // Trimmed again, at once and for later.
    block_on(volume.trim(31 * GRAIN, GRAIN)).unwrap();
    block_on(volume.trim(40 * GRAIN, 9 * GRAIN)).unwrap();
    let wanted = |found: Vec<u64>| {
        assert_eq!(found[28..33], [0, 0, 100, 0, 0]);
        assert!(found[40..64].iter().all(|content| *content == 0));
    };
    wanted(pool.read(&volume, 0, 64).unwrap());
    block_on(engine.maintain()).unwrap();
    wanted(pool.read(&volume, 0, 64).unwrap());
    assert_eq!(space(&engine).0, 2);
}

#[test]
fn a_trim_goes_on_after_a_restart() {
    let pool = pool(100);
    let (engine, volume) = pool.with_volume(64, 4096);
    pool.write(&volume, 0, &(1..=64).collect::<Vec<_>>())
        .unwrap();
    block_on(volume.trim(0, 60 * GRAIN)).unwrap();
    drop((engine, volume));
    // From the journal first, from the store the second time.
    for _ in 0..2 {
        let engine = pool.open();
        let volume = engine.volume("v").unwrap();
        assert_eq!(progress(&engine), Some((60, 60)));
        assert_eq!(pool.read(&volume, 0, 60).unwrap(), [0; 60]);
    }
    let engine = pool.open();
    block_on(engine.maintain()).unwrap();
    assert_eq!(space(&engine), (4, 0, 96));
    drop(engine);
    let engine = pool.open();
    assert_eq!((progress(&engine), space(&engine)), (None, (4, 0, 96)));
}

#[test]
fn what_shrinking_cut_off_never_shows_again() {
    let pool = pool(100);
    let (engine, volume) = pool.with_volume(64, 4096);
    pool.write(&volume, 0, &(1..=64).collect::<Vec<_>>())
        .unwrap();
    block_on(engine.resize_volume("v", 4 * GRAIN)).unwrap();
    assert_eq!(progress(&engine), Some((60, 60)));
    drop((engine, volume));
    let engine = pool.open();
    block_on(engine.resize_volume("v", 64 * GRAIN)).unwrap();
    let volume = engine.volume("v").unwrap();
    assert_eq!(pool.read(&volume, 0, 6).unwrap(), [1, 2, 3, 4, 0, 0]);
    pool.write(&volume, 40, &[5]).unwrap();
    block_on(engine.maintain()).unwrap();
    assert_eq!(pool.read(&volume, 39, 3).unwrap(), [0, 5, 0]);
    assert_eq!(space(&engine).0, 5);
}

#[test]
fn a_volume_may_be_cut_into_any_number_of_pieces_while_it_is_trimmed() {
    let pool = pool(2000);
    let (engine, volume) = pool.with_volume(2000, 4096);
    let all: Vec<u64> = (1..=250).collect();
    for at in 0..8 {
        pool.write(&volume, at * 250, &all).unwrap();
    }
    block_on(volume.trim(0, 2000 * GRAIN)).unwrap();
    for at in 0..200 {
        pool.write(&volume, at * 10, &[1000 + at]).unwrap();
    }
    for at in 0..200 {
        assert_eq!(pool.read(&volume, at * 10, 2).unwrap(), [1000 + at, 0]);
    }
    block_on(engine.maintain()).unwrap();
    assert_eq!(space(&engine).0, 200);
    assert_eq!(pool.read(&volume, 1989, 3).unwrap(), [0, 1199, 0]);
}

#[test]
fn a_write_finds_the_room_of_a_trim_that_is_still_under_way() {
    let pool = pool(64);
    let (engine, volume) = pool.with_volume(64, 4096);
    pool.write(&volume, 0, &(1..=64).collect::<Vec<_>>())
        .unwrap();
    expect_kind(pool.write(&volume, 0, &[100]), ErrorKind::NoSpace);
    block_on(volume.trim(0, 32 * GRAIN)).unwrap();
    pool.write(&volume, 60, &[100]).unwrap();
    assert_eq!(pool.read(&volume, 59, 2).unwrap(), [60, 100]);
    assert_eq!(pool.read(&volume, 0, 32).unwrap(), [0; 32]);
    block_on(engine.maintain()).unwrap();
    assert_eq!(space(&engine), (32, 0, 32));
}

#[test]
fn a_volume_that_is_being_trimmed_can_be_deleted() {
    let pool = pool(100);
    let (engine, volume) = pool.with_volume(64, 4096);
    pool.write(&volume, 0, &(1..=64).collect::<Vec<_>>())
        .unwrap();
    block_on(volume.trim(0, 32 * GRAIN)).unwrap();
    block_on(engine.delete_volume("v")).unwrap();
    block_on(engine.maintain()).unwrap();
    assert_eq!(space(&engine), (0, 0, 100));
    assert!(engine.volumes().is_empty());
}

#[test]
fn a_volume_has_data_where_it_was_written_and_neither_trimmed_nor_zeroed() {
    let pool = pool(4000);
    let (engine, volume) = pool.with_volume(2000, 4096);
    let extents = |volume: &Volume, offset, len, count_max| {
        let found = block_on(volume.extents(offset * GRAIN, len * GRAIN, count_max)).unwrap();
        let ranges = found.ranges.iter();
        let ranges: Vec<_> = ranges.map(|(at, len)| (at / GRAIN, len / GRAIN)).collect();
        (ranges, found.upto / GRAIN)
    };
    assert_eq!(extents(&volume, 0, 2000, 9), (vec![], 2000));

    for first in (0..1000).step_by(200) {
        let contents: Vec<u64> = (first + 1..=first + 200).collect();
        pool.write(&volume, 10 + first, &contents).unwrap();
    }
    pool.write(&volume, 1500, &[7, 0, 8]).unwrap();
    let all = vec![(10, 1000), (1500, 1), (1502, 1)];
    assert_eq!(extents(&volume, 0, 2000, 9), (all.clone(), 2000));
    assert_eq!(extents(&volume, 0, 2000, 1), (all[..1].to_vec(), 1500));
    assert_eq!(extents(&volume, 0, 2000, 0), (vec![], 10));
    assert_eq!(extents(&volume, 500, 300, 9), (vec![(500, 300)], 800));

    // Much is trimmed in the background, and reads as zeros at once.
    block_on(volume.trim(100 * GRAIN, 400 * GRAIN)).unwrap();
    assert!(progress(&engine).is_some());
    let trimmed = (vec![(10, 90), (500, 510), (1500, 1), (1502, 1)], 2000);
    assert_eq!(extents(&volume, 0, 2000, 9), trimmed);
    block_on(engine.maintain()).unwrap();
    assert_eq!(extents(&volume, 0, 2000, 9), trimmed);

    // A clone has what its origin had then.
    let clone = block_on(engine.clone_volume("v", "c", None)).unwrap();
    block_on(volume.trim(0, 2000 * GRAIN)).unwrap();
    pool.write(&clone, 1999, &[9]).unwrap();
    block_on(clone.trim(500 * GRAIN, 10 * GRAIN)).unwrap();
    assert_eq!(extents(&volume, 0, 2000, 9), (vec![], 2000));
    let of_clone = vec![(10, 90), (510, 500), (1500, 1), (1502, 1), (1999, 1)];
    assert_eq!(extents(&clone, 0, 2000, 9), (of_clone.clone(), 2000));

    // The maps of a pool that is opened are in its store only.
    drop((volume, clone, engine));
    let engine = pool.open();
    let clone = engine.volume("c").unwrap();
    assert_eq!(extents(&clone, 0, 2000, 9), (of_clone, 2000));
    let outside = block_on(clone.extents(GRAIN, 2000 * GRAIN, 9));
    expect_kind(outside, ErrorKind::Invalid);
}
