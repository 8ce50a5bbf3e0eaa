//! Volumes that compress: what it saves, whom it may not harm, and what becomes of the blocks.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::support::folder;
use crate::support::{Pool, block_on, expect_kind, space, spec};
use dedup::{CheckOptions, Engine, ErrorKind, ScrubPhase, Volume, VolumeSpec, check_pool};
use drives::BLOCK_BYTES;
use meta::Compression;
use rand::{RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;

const GRAIN: u64 = BLOCK_BYTES as u64;

fn create(engine: &Engine, name: &str, compression: Compression) -> Arc<Volume> {
    let spec = VolumeSpec {
        compression,
        ..spec(name, 256, 4096)
    };
    block_on(engine.create_volume(spec)).unwrap()
}

/// A pool with a volume that compresses by LZ4, and one that does not.
fn pair(pool: &Pool) -> (Arc<Engine>, Arc<Volume>, Arc<Volume>) {
    let engine = pool.open();
    let packed = create(&engine, "packed", Compression::Lz4);
    let plain = create(&engine, "plain", Compression::Off);
    (engine, packed, plain)
}

/// Contents before compression, and the blocks that they are in.
fn packs(engine: &Engine) -> (u64, u64) {
    let status = engine.status();
    (status.compressed_bytes / GRAIN, status.packed_bytes / GRAIN)
}

/// Writes bytes, and reads them back.
fn round_trip(pool: &Pool, volume: &Volume, sub_block: u64, bytes: &[u8]) {
    let mut buf = pool.buffers.try_alloc(bytes.len()).unwrap();
    buf.copy_from_slice(bytes);
    block_on(volume.write(sub_block * GRAIN, buf, false))
        .0
        .unwrap();
    let mut buf = pool.buffers.try_alloc(bytes.len()).unwrap();
    buf.fill(0xee);
    let (result, buf) = block_on(volume.read(sub_block * GRAIN, buf));
    result.unwrap();
    assert!(buf[..] == *bytes);
}

#[test]
fn contents_that_compress_share_blocks_and_come_back_also_after_a_restart() {
    let pool = Pool::new(100);
    let (engine, packed, _) = pair(&pool);
    let contents: Vec<u64> = (1..=30).collect();
    pool.write(&packed, 3, &contents).unwrap();
    // At most fifteen contents share a block.
    assert_eq!(space(&engine), (2, 0, 98));
    assert_eq!(packs(&engine), (30, 2));
    assert_eq!(pool.drive().written_blocks.load(Ordering::Relaxed), 2);
    assert_eq!(engine.status().logical_bytes, 30 * GRAIN);
    assert_eq!(pool.read(&packed, 3, 30).unwrap(), contents);
    assert_eq!(pool.read(&packed, 20, 1).unwrap(), [18]);
    drop(packed);
    drop(engine);
    // Nothing was flushed: the opening proves every fragment against its fingerprint.
    let engine = pool.open();
    let packed = engine.volume("packed").unwrap();
    assert_eq!(packed.info().compression, Compression::Lz4);
    assert_eq!(pool.read(&packed, 0, 34).unwrap()[3..33], contents);
    block_on(engine.load()).unwrap();
    assert_eq!((space(&engine).0, packs(&engine)), (2, (30, 2)));
    // A read of whole LBAs in between, and one across blocks of both kinds.
    pool.write(&packed, 10, &[77]).unwrap();
    let expected: Vec<u64> = [&contents[..7], &[77], &contents[8..]].concat();
    assert_eq!(pool.read(&packed, 3, 30).unwrap(), expected);
}

#[test]
fn duplicates_are_found_between_compressed_and_plain_volumes_both_ways() {
    let pool = Pool::new(100);
    let (engine, packed, plain) = pair(&pool);
    pool.write(&packed, 0, &[1, 2, 3, 4]).unwrap();
    assert_eq!(space(&engine).0, 1);
    // What is packed is shared by the plain volume, and what that has alone is stored as it is.
    pool.write(&plain, 0, &[4, 3, 5, 1]).unwrap();
    assert_eq!((space(&engine).0, packs(&engine)), (2, (4, 1)));
    pool.write(&plain, 10, &[6, 7]).unwrap();
    pool.write(&packed, 10, &[7, 8, 6, 9, 5]).unwrap();
    assert_eq!((space(&engine).0, packs(&engine)), (5, (6, 2)));
    assert_eq!(pool.read(&plain, 0, 4).unwrap(), [4, 3, 5, 1]);
    assert_eq!(pool.read(&packed, 10, 5).unwrap(), [7, 8, 6, 9, 5]);
    // One goes, the other stays.
    block_on(engine.delete_volume("packed")).unwrap();
    block_on(engine.maintain()).unwrap();
    assert_eq!(pool.read(&plain, 0, 4).unwrap(), [4, 3, 5, 1]);
    assert_eq!(pool.read(&plain, 10, 2).unwrap(), [6, 7]);
    assert_eq!((space(&engine).0, packs(&engine)), (4, (3, 1)));
}

#[test]
fn what_does_not_compress_and_what_is_alone_is_stored_as_it_is() {
    let pool = Pool::new(200);
    let (engine, packed, _) = pair(&pool);
    let mut noise = vec![0; 20 * BLOCK_BYTES];
    ChaCha8Rng::seed_from_u64(1).fill_bytes(&mut noise);
    round_trip(&pool, &packed, 0, &noise);
    assert_eq!((space(&engine).0, packs(&engine)), (20, (0, 0)));
    pool.write(&packed, 30, &[1]).unwrap();
    pool.write(&packed, 31, &[1, 1, 2, 1]).unwrap();
    assert_eq!((space(&engine).0, packs(&engine)), (22, (0, 0)));
    // Among noise, what compresses finds its like.
    noise[4 * BLOCK_BYTES..5 * BLOCK_BYTES].fill(4);
    noise[9 * BLOCK_BYTES..10 * BLOCK_BYTES].fill(9);
    round_trip(&pool, &packed, 40, &noise);
    assert_eq!((space(&engine).0, packs(&engine)), (23, (2, 1)));
}

#[test]
fn zstd_saves_where_lz4_finds_nothing() {
    let pool = Pool::new(200);
    let (engine, packed, _) = pair(&pool);
    let small = create(&engine, "small", Compression::Zstd);
    // Letters without order: hardly a string comes again, but there are only twelve of them.
    let mut letters = vec![0; 16 * BLOCK_BYTES];
    ChaCha8Rng::seed_from_u64(2).fill_bytes(&mut letters);
    letters
        .iter_mut()
        .for_each(|byte| *byte = b'a' + *byte % 12);
    let (first, second) = letters.split_at(8 * BLOCK_BYTES);
    round_trip(&pool, &packed, 0, first);
    assert_eq!((space(&engine).0, packs(&engine)), (8, (0, 0)));
    round_trip(&pool, &small, 0, second);
    let (compressed, in_blocks) = packs(&engine);
    assert_eq!((compressed, space(&engine).0), (8, 8 + in_blocks));
    assert_eq!(in_blocks, 4);
}

#[test]
fn volumes_without_deduplication_compress_too() {
    let pool = Pool::new(100);
    let engine = pool.open();
    let spec = VolumeSpec {
        compression: Compression::Lz4,
        dedup: false,
        ..spec("v", 256, 4096)
    };
    let volume = block_on(engine.create_volume(spec)).unwrap();
    pool.write(&volume, 0, &[1, 1, 1, 1]).unwrap();
    assert_eq!((space(&engine).0, packs(&engine)), (1, (4, 1)));
    drop((volume, engine));
    let engine = pool.open();
    let volume = engine.volume("v").unwrap();
    assert_eq!(pool.read(&volume, 0, 4).unwrap(), [1; 4]);
}

#[test]
fn a_block_is_free_when_the_last_of_its_fragments_is_gone_and_not_before_that_is_durable() {
    let pool = Pool::new(10);
    let (engine, packed, plain) = pair(&pool);
    pool.write(&packed, 0, &[1, 2, 3]).unwrap();
    pool.write(&plain, 0, &[2]).unwrap();
    assert_eq!(space(&engine), (1, 0, 9));
    pool.write(&packed, 0, &[9]).unwrap();
    block_on(packed.trim(2 * GRAIN, GRAIN)).unwrap();
    block_on(packed.write_zeroes(GRAIN, GRAIN, false)).unwrap();
    // One mapping is left, of the plain volume.
    block_on(engine.maintain()).unwrap();
    assert_eq!((space(&engine), packs(&engine)), ((2, 0, 8), (1, 1)));
    assert_eq!(pool.read(&plain, 0, 1).unwrap(), [2]);
    pool.write(&plain, 0, &[0]).unwrap();
    assert_eq!((space(&engine), packs(&engine)), ((1, 1, 8), (0, 0)));
    block_on(engine.maintain()).unwrap();
    assert_eq!(space(&engine), (1, 0, 9));
}

#[test]
fn a_full_pool_refuses_what_needs_a_block_and_packs_what_still_fits() {
    let pool = Pool::new(4);
    let (engine, packed, plain) = pair(&pool);
    pool.write(&plain, 0, &[1, 2, 3]).unwrap();
    // Thirty contents need two blocks: one is there.
    let many: Vec<u64> = (100..130).collect();
    expect_kind(pool.write(&packed, 0, &many), ErrorKind::NoSpace);
    assert_eq!((space(&engine), packs(&engine)), ((3, 0, 1), (0, 0)));
    assert_eq!(pool.read(&packed, 0, 30).unwrap(), [0; 30]);
    pool.write(&packed, 0, &many[..15]).unwrap();
    assert_eq!((space(&engine), packs(&engine)), ((4, 0, 0), (15, 1)));
    expect_kind(pool.write(&packed, 40, &[50, 51]), ErrorKind::NoSpace);
    assert_eq!(pool.read(&packed, 0, 15).unwrap(), many[..15]);
}

#[test]
fn a_damaged_fragment_is_an_error_for_itself_and_a_damaged_header_for_all() {
    let pool = Pool::new(50);
    let (engine, packed, plain) = pair(&pool);
    pool.write(&packed, 0, &[1, 2, 3, 4, 5]).unwrap();
    pool.write(&plain, 7, &[1, 5]).unwrap();
    // The header takes twelve bytes; a bit of what follows belongs to the first fragment in the block.
    pool.drive().corrupt_all_at(20);
    let is_read: Vec<bool> = (0..5).map(|at| pool.read(&packed, at, 1).is_ok()).collect();
    assert_eq!(is_read.iter().filter(|is_read| !**is_read).count(), 1);
    expect_kind(pool.read(&packed, 0, 5), ErrorKind::Corrupt);
    assert_eq!(block_on(engine.damage()).damaged_blocks, 1);
    // Written again, the content is whole again; a fragment is never written over in place.
    pool.write(&packed, 20, &[1, 2, 3, 4, 5]).unwrap();
    assert_eq!(pool.read(&packed, 20, 5).unwrap(), [1, 2, 3, 4, 5]);
    block_on(engine.maintain()).unwrap();
    assert_eq!(block_on(engine.damage()).healed_blocks, 0);
    assert_eq!((space(&engine).0, packs(&engine)), (2, (5, 1)));

    pool.drive().corrupt_all_at(20);
    assert_eq!(pool.read(&packed, 0, 5).unwrap(), [1, 2, 3, 4, 5]);
    pool.drive().corrupt_all_at(1);
    for at in 0..5 {
        expect_kind(pool.read(&packed, at, 1), ErrorKind::Corrupt);
    }
    expect_kind(pool.read(&plain, 7, 1), ErrorKind::Corrupt);
}

#[test]
fn a_scrub_reads_fragments_and_names_those_that_are_damaged() {
    let pool = Pool::new(50);
    let (engine, packed, _) = pair(&pool);
    pool.write(&packed, 0, &(1..=40).collect::<Vec<_>>())
        .unwrap();
    let scrub = |engine: &Arc<Engine>| {
        engine.start_scrub(1 << 30).unwrap();
        let engine = engine.clone();
        reactor::run(reactor::Config::default(), async move {
            let engine = Rc::new(engine);
            let maintenance = reactor::spawn((*engine).clone().run_maintenance());
            while engine.scrub_status().phase == ScrubPhase::Running {
                reactor::sleep(std::time::Duration::from_millis(5)).await;
            }
            drop(maintenance);
            engine.scrub_status()
        })
        .unwrap()
    };
    let status = scrub(&engine);
    assert_eq!((status.checked_blocks, status.bad_blocks), (40, 0));
    pool.drive().corrupt_all_at(1);
    let status = scrub(&engine);
    assert_eq!((status.checked_blocks, status.bad_blocks), (40, 40));
    let report = reactor::run(reactor::Config::default(), async move {
        engine.check_online().await.unwrap()
    })
    .unwrap();
    // Counts are right; that data is damaged is a part of the verdict.
    assert!(
        !report.consistent && report.findings_total == 0,
        "{report:?}"
    );
    assert_eq!(report.damage.ranges[0].bytes, 40 * 4096);
    assert_eq!((report.blocks, report.mappings), (40, 40));
}

#[test]
fn a_pool_with_packs_checks_clean_and_its_damage_is_found() {
    let (_keep, dir) = folder::filled();
    {
        let (pool, engine) = folder::open(&dir);
        let packed = create(&engine, "packed", Compression::Zstd);
        let buffers = Pool::new(1);
        buffers
            .write(&packed, 0, &(20..60).collect::<Vec<_>>())
            .unwrap();
        buffers.write(&packed, 5, &[70, 71, 0, 72]).unwrap();
        drop((packed, engine, pool));
    }
    let check = || {
        check_pool(
            &dir,
            CheckOptions {
                data: true,
                ..CheckOptions::default()
            },
        )
        .unwrap()
    };
    let report = check();
    assert!(report.consistent, "{report:?}");
    assert_eq!((report.blocks, report.data_blocks_checked), (44, 44));
    let (pool, engine) = folder::open(&dir);
    block_on(engine.shutdown()).unwrap();
    drop((engine, pool));
    let report = check();
    assert!(
        report.consistent && report.data_blocks_checked == 44,
        "{report:?}"
    );
}
