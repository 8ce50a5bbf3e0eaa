//! Copies by reference, and other commands on what is stored.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::support::{Pool, block_on, expect_kind, plain_spec, space, spec};
use dedup::{Engine, ErrorKind, Unreadable, Volume, VolumeSpec};
use drives::BLOCK_BYTES;
use meta::Compression;

const GRAIN: u64 = BLOCK_BYTES as u64;

fn create(engine: &Engine, spec: VolumeSpec) -> Arc<Volume> {
    block_on(engine.create_volume(spec)).unwrap()
}

/// Copies sub-blocks.
fn copy(
    pool: &Pool,
    (to, at): (&Volume, u64),
    (from, source): (&Volume, u64),
    count: u64,
) -> Result<(), dedup::EngineError> {
    let (at, source, len) = (at * GRAIN, source * GRAIN, count * GRAIN);
    block_on(to.copy(at, from, source, len, &pool.buffers))
}

/// Blocks that were written to the drive so far.
fn written(pool: &Pool) -> u64 {
    pool.drive().written_blocks.load(Ordering::Relaxed)
}

#[test]
fn a_copy_moves_no_data_takes_no_space_and_survives_a_crash() {
    let pool = Pool::new(700);
    let (engine, volume) = pool.with_volume(2000, 4096);
    let other = create(&engine, spec("w", 2000, 4096));
    let contents: Vec<u64> = (0..600)
        .map(|at| [0, at, at / 2 + 1][at as usize % 3])
        .collect();
    for (at, part) in (0..).zip(contents.chunks(200)) {
        pool.write(&volume, at * 200, part).unwrap();
    }
    pool.write(&other, 0, &[7; 200]).unwrap();
    let (before, used) = (written(&pool), space(&engine).0);
    copy(&pool, (&other, 5), (&volume, 0), 600).unwrap();
    copy(&pool, (&volume, 1000), (&volume, 3), 597).unwrap();
    assert_eq!((written(&pool), space(&engine).0), (before, used));
    drop((engine, volume, other));

    // Nothing was flushed: each mapping is proven by what its block holds.
    let engine = pool.open();
    let (volume, other) = (engine.volume("v").unwrap(), engine.volume("w").unwrap());
    assert_eq!(pool.read(&other, 0, 5).unwrap(), [7; 5]);
    for at in (0..600).step_by(200) {
        let expected = &contents[at as usize..at as usize + 200];
        assert_eq!(pool.read(&other, at + 5, 200).unwrap(), expected);
    }
    assert_eq!(pool.read(&volume, 1000, 197).unwrap(), contents[3..200]);
    // Each goes its own way from here on.
    pool.write(&volume, 0, &[9; 200]).unwrap();
    assert_eq!(pool.read(&other, 5, 200).unwrap(), contents[..200]);
    block_on(other.trim(0, 2000 * GRAIN)).unwrap();
    block_on(volume.trim(0, 2000 * GRAIN)).unwrap();
    block_on(engine.maintain()).unwrap();
    assert_eq!(space(&engine).0, 0, "every reference was counted");
}

#[test]
fn holes_of_the_source_are_holes_of_the_copy() {
    let pool = Pool::new(64);
    let (engine, volume) = pool.with_volume(100_000, 4096);
    pool.write(&volume, 50_000, &[1, 2, 3]).unwrap();
    pool.write(&volume, 10, &[4]).unwrap();
    copy(&pool, (&volume, 49_990), (&volume, 0), 40_000).unwrap();
    assert_eq!(pool.read(&volume, 49_999, 5).unwrap(), [0, 4, 0, 0, 0]);
    block_on(engine.maintain()).unwrap();
    assert_eq!(space(&engine).0, 1);
}

#[test]
fn what_must_not_be_shared_is_read_and_written() {
    let pool = Pool::new(100);
    let (engine, volume) = pool.with_volume(64, 4096);
    let plain = create(&engine, plain_spec("plain", 64));
    let domain = "other".to_owned();
    let apart = create(
        &engine,
        VolumeSpec {
            domain,
            ..spec("apart", 64, 4096)
        },
    );
    pool.write(&volume, 0, &[1, 0, 2, 1]).unwrap();
    assert_eq!(space(&engine).0, 2);
    copy(&pool, (&plain, 0), (&volume, 0), 4).unwrap();
    assert_eq!(space(&engine).0, 2 + 3, "copies of its own");
    copy(&pool, (&apart, 4), (&volume, 0), 4).unwrap();
    assert_eq!(space(&engine).0, 5 + 2, "deduplicated within its domain");
    copy(&pool, (&plain, 10), (&plain, 0), 4).unwrap();
    assert_eq!(space(&engine).0, 7 + 3);
    copy(&pool, (&volume, 20), (&plain, 10), 4).unwrap();
    assert_eq!(space(&engine).0, 10, "what is known was found");
    drop((volume, plain, apart, engine));
    let engine = pool.open();
    for (name, at) in [("plain", 0), ("apart", 4), ("plain", 10), ("v", 20)] {
        let volume = engine.volume(name).unwrap();
        assert_eq!(pool.read(&volume, at, 4).unwrap(), [1, 0, 2, 1], "{name}");
    }
}

#[test]
fn blocks_of_512_bytes_are_copied_to_any_place() {
    let pool = Pool::new(200);
    let (engine, volume) = pool.with_volume(64, 512);
    let mut buf = pool.buffers.try_alloc(20 * 512).unwrap();
    for (at, block) in buf.chunks_exact_mut(512).enumerate() {
        block.fill(at as u8 + 1);
    }
    block_on(volume.write(5 * 512, buf, false)).0.unwrap();
    let firsts = |offset: u64, count: usize| {
        let buf = pool.buffers.try_alloc(count * 512).unwrap();
        let (result, buf) = block_on(volume.read(offset * 512, buf));
        result.unwrap();
        let firsts = buf.chunks_exact(512).map(|block| block[511]);
        firsts.collect::<Vec<u8>>()
    };
    let before = firsts(5, 20);
    // Of the same phase: one sub-block by reference, and the ends by data.
    let used = space(&engine).0;
    block_on(volume.copy(101 * 512, &volume, 5 * 512, 20 * 512, &pool.buffers)).unwrap();
    assert_eq!(firsts(100, 22), [&[0][..], &before, &[0]].concat());
    assert_eq!(space(&engine).0, used, "its ends hold what the source's do");
    // Of another phase.
    block_on(volume.copy(203 * 512, &volume, 5 * 512, 20 * 512, &pool.buffers)).unwrap();
    assert_eq!(firsts(202, 22), [&[0][..], &before, &[0]].concat());
    block_on(volume.copy(7 * 512, &volume, 5 * 512, 2 * 512, &pool.buffers)).unwrap();
    assert_eq!(firsts(5, 5), [1, 2, 1, 2, 5]);
}

#[test]
fn fragments_of_packs_are_referred_to_as_well() {
    let pool = Pool::new(100);
    let engine = pool.open();
    let compression = Compression::Lz4;
    let packed = create(
        &engine,
        VolumeSpec {
            compression,
            ..spec("packed", 64, 4096)
        },
    );
    let plain = create(&engine, spec("plain", 64, 4096));
    pool.write(&packed, 0, &[1, 2, 3, 4]).unwrap();
    let (before, used) = (written(&pool), space(&engine).0);
    assert!(used < 4, "they share a block");
    copy(&pool, (&plain, 8), (&packed, 0), 4).unwrap();
    assert_eq!((written(&pool), space(&engine).0), (before, used));
    pool.write(&packed, 0, &[9; 4]).unwrap();
    drop((packed, plain, engine));
    let engine = pool.open();
    let plain = engine.volume("plain").unwrap();
    assert_eq!(pool.read(&plain, 8, 4).unwrap(), [1, 2, 3, 4]);
}

#[test]
fn a_copy_of_what_cannot_be_copied_says_why_and_changes_nothing() {
    let pool = Pool::new(64);
    let (engine, volume) = pool.with_volume(64, 4096);
    pool.write(&volume, 0, &[1, 2, 3, 4]).unwrap();
    expect_kind(
        copy(&pool, (&volume, 2), (&volume, 0), 3),
        ErrorKind::Invalid,
    );
    expect_kind(
        copy(&pool, (&volume, 62), (&volume, 0), 3),
        ErrorKind::Invalid,
    );
    expect_kind(
        copy(&pool, (&volume, 0), (&volume, 62), 3),
        ErrorKind::Invalid,
    );
    assert_eq!(pool.read(&volume, 0, 6).unwrap(), [1, 2, 3, 4, 0, 0]);
    // What is damaged is not spread, once that is known.
    pool.drive().corrupt_content(2);
    expect_kind(block_on(volume.verify(0, 4 * GRAIN)), ErrorKind::Corrupt);
    let copied = copy(&pool, (&volume, 10), (&volume, 0), 4);
    expect_kind(copied, ErrorKind::Corrupt);
    assert_eq!(pool.read(&volume, 11, 3).unwrap(), [0, 0, 0]);
    drop(engine);
}

#[test]
fn a_content_with_all_its_references_is_stored_once_more_by_a_copy() {
    let mut pool = Pool::new(64);
    pool.config.references_max = 3;
    let (engine, volume) = pool.with_volume(64, 4096);
    pool.write(&volume, 0, &[1, 2]).unwrap();
    // One mapping more than two blocks take: a reference too many of either would save the third block.
    for at in 1..7 {
        copy(&pool, (&volume, at * 2), (&volume, 0), 2).unwrap();
    }
    assert_eq!(pool.read(&volume, 0, 14).unwrap(), [1, 2].repeat(7));
    assert_eq!(
        space(&engine).0,
        6,
        "seven mappings, three to a block, of two contents"
    );
    drop((volume, engine));
    assert_eq!(
        pool.read(&pool.open().volume("v").unwrap(), 12, 2).unwrap(),
        [1, 2]
    );
}

#[test]
fn a_write_on_condition_is_made_only_if_all_is_as_expected() {
    let pool = Pool::new(64);
    let (_engine, volume) = pool.with_volume(64, 512);
    pool.write(&volume, 1, &[1, 2]).unwrap();
    let swap = |offset, from: &[u8], to: &[u8]| {
        block_on(volume.compare_and_write(offset, from, to, false)).unwrap()
    };
    let old = [pool.buffer(&[1]), pool.buffer(&[2])]
        .map(|buf| buf.to_vec())
        .concat();
    let new = pool.buffer(&[3, 4]).to_vec();
    assert!(!swap(GRAIN, &new, &old));
    assert_eq!(pool.read(&volume, 1, 2).unwrap(), [1, 2]);
    assert!(swap(GRAIN, &old, &new));
    assert_eq!(pool.read(&volume, 0, 4).unwrap(), [0, 3, 4, 0]);
    // A part of a sub-block, over an end.
    let end = 2 * GRAIN - 512;
    let found = |from: u64, len: usize| {
        let buf = pool.buffers.try_alloc(len).unwrap();
        let (result, buf) = block_on(volume.read(from, buf));
        result.unwrap();
        buf.to_vec()
    };
    let (before, part) = (found(GRAIN, 8192), found(end, 1024));
    assert!(!swap(end, &[5; 1024], &part));
    assert!(swap(end, &part, &[5; 1024]));
    let mut expected = before;
    expected[4096 - 512..4096 + 512].fill(5);
    assert_eq!(found(GRAIN, 8192), expected);
}

#[test]
fn what_a_host_marks_is_unreadable_until_it_is_written_and_harms_nobody_else() {
    let folder = tempfile::tempdir().unwrap();
    let mut pool = Pool::new(64);
    pool.config.damage_file = Some(folder.path().join("damaged"));
    let (engine, volume) = pool.with_volume(64, 512);
    let other = create(&engine, spec("w", 64, 4096));
    pool.write(&volume, 0, &[1, 2, 3, 4]).unwrap();
    pool.write(&other, 0, &[1, 2, 3, 4]).unwrap();
    expect_kind(
        block_on(volume.mark_unreadable(512, 512)),
        ErrorKind::Invalid,
    );
    block_on(volume.mark_unreadable(GRAIN, 2 * GRAIN)).unwrap();
    let marked = Unreadable {
        ranges: vec![(GRAIN, 2 * GRAIN)],
        has_more: false,
    };
    let known = |volume: &Volume| block_on(volume.unreadable(0, 64 * GRAIN, 10)).unwrap();
    assert_eq!(known(&volume), marked);
    assert_eq!(known(&other), Unreadable::default());
    expect_kind(pool.read(&volume, 0, 4), ErrorKind::Corrupt);
    block_on(engine.maintain()).unwrap();
    drop((volume, other, engine));

    // The power goes: what was marked stays so.
    pool.media.power_loss(1);
    let engine = pool.open();
    let (volume, other) = (engine.volume("v").unwrap(), engine.volume("w").unwrap());
    assert_eq!(known(&volume), marked);
    for (at, content) in [(0, 1), (3, 4)] {
        assert_eq!(pool.read(&volume, at, 1).unwrap(), [content]);
    }
    for at in [1, 2] {
        expect_kind(pool.read(&volume, at, 1), ErrorKind::Corrupt);
        let error = block_on(volume.verify(0, 64 * GRAIN)).unwrap_err();
        assert_eq!(error.offset, Some(at * GRAIN));
        pool.write(&volume, at, &[9]).unwrap();
    }
    block_on(volume.verify(0, 64 * GRAIN)).unwrap();
    assert_eq!(pool.read(&volume, 0, 4).unwrap(), [1, 9, 9, 4]);
    assert_eq!(pool.read(&other, 0, 4).unwrap(), [1, 2, 3, 4]);
    block_on(engine.maintain()).unwrap();
    assert_eq!(known(&volume), Unreadable::default());
    assert_eq!(space(&engine).0, 5, "1, 2, 3, 4 and 9");
}

#[test]
fn a_volume_that_is_not_deduplicated_can_be_marked_and_what_is_marked_cannot_be_copied() {
    let pool = Pool::new(64);
    let engine = pool.open();
    let plain = create(&engine, plain_spec("plain", 64));
    let volume = create(&engine, spec("v", 64, 4096));
    pool.write(&plain, 0, &[1, 2]).unwrap();
    pool.write(&volume, 0, &[1, 2]).unwrap();
    block_on(plain.mark_unreadable(0, GRAIN)).unwrap();
    block_on(volume.mark_unreadable(GRAIN, GRAIN)).unwrap();
    expect_kind(
        copy(&pool, (&volume, 8), (&plain, 0), 2),
        ErrorKind::Corrupt,
    );
    expect_kind(
        copy(&pool, (&volume, 8), (&volume, 0), 2),
        ErrorKind::Corrupt,
    );
    assert_eq!(pool.read(&volume, 8, 2).unwrap(), [1, 0]);
    // More parts than asked for.
    block_on(volume.mark_unreadable(10 * GRAIN, GRAIN)).unwrap();
    let known = block_on(volume.unreadable(0, 64 * GRAIN, 1)).unwrap();
    assert_eq!((known.ranges, known.has_more), (vec![(GRAIN, GRAIN)], true));
    let known = block_on(volume.unreadable(2 * GRAIN, 8 * GRAIN, 1)).unwrap();
    assert_eq!((known.ranges, known.has_more), (vec![], false));
    block_on(volume.trim(0, 64 * GRAIN)).unwrap();
    assert_eq!(pool.read(&volume, 0, 12).unwrap(), [0; 12]);
}
