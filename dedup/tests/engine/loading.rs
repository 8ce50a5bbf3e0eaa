//! A pool in use while its maps and its index are still being brought into memory.

use crate::support::{Pool, block_on, expect_kind, space};
use dedup::ErrorKind;

/// Data blocks of which the last ones lie in another part of the table than the first.
const BLOCKS: u64 = 5000;

#[test]
fn what_is_written_again_before_it_is_loaded_is_stored_once_in_the_end() {
    let pool = Pool::new(BLOCKS);
    let (engine, volume) = pool.with_volume(128, 4096);
    let contents: Vec<u64> = (1..=40).collect();
    pool.write(&volume, 0, &contents).unwrap();
    block_on(engine.shutdown()).unwrap();
    drop((volume, engine));

    let engine = pool.open();
    assert_eq!(space(&engine).0, 40, "known before anything is loaded");
    assert_eq!(engine.status().logical_bytes, 40 * 4096);
    let volume = engine.volume("v").unwrap();
    pool.write(&volume, 60, &contents[..20]).unwrap();
    // Again, from the new blocks.
    pool.write(&volume, 90, &contents[..10]).unwrap();
    assert_eq!(space(&engine).0, 60, "nobody knew yet");
    block_on(engine.maintain()).unwrap();
    assert_eq!(space(&engine).0, 40);
    assert_eq!(pool.read(&volume, 0, 40).unwrap(), contents);
    assert_eq!(pool.read(&volume, 60, 20).unwrap(), contents[..20]);
    assert_eq!(pool.read(&volume, 90, 10).unwrap(), contents[..10]);

    // The older blocks are the ones that are found from then on, also after a crash.
    drop((volume, engine));
    let engine = pool.open();
    block_on(engine.load()).unwrap();
    let volume = engine.volume("v").unwrap();
    pool.write(&volume, 110, &contents[..5]).unwrap();
    assert_eq!(space(&engine).0, 40);
}

#[test]
fn copies_that_differ_on_the_drive_stay_apart() {
    let pool = Pool::new(BLOCKS);
    let (engine, volume) = pool.with_volume(128, 4096);
    pool.write(&volume, 0, &[1, 2, 3]).unwrap();
    block_on(engine.shutdown()).unwrap();
    drop((volume, engine));
    // The older block of a content is damaged, and nobody has found that yet.
    pool.drive().corrupt_content(2);

    let engine = pool.open();
    let volume = engine.volume("v").unwrap();
    pool.write(&volume, 60, &[1, 2, 3]).unwrap();
    block_on(engine.maintain()).unwrap();
    assert_eq!(space(&engine).0, 4);
    assert_eq!(pool.read(&volume, 60, 3).unwrap(), [1, 2, 3]);
    expect_kind(pool.read(&volume, 1, 1), ErrorKind::Corrupt);
}

#[test]
fn an_opened_pool_reads_overwrites_and_trims_what_it_did_not_load_yet() {
    let pool = Pool::new(BLOCKS);
    let (engine, volume) = pool.with_volume(3000, 4096);
    for at in (0..3000).step_by(100) {
        let contents: Vec<u64> = (at + 1..=at + 100).collect();
        pool.write(&volume, at, &contents).unwrap();
    }
    block_on(engine.shutdown()).unwrap();
    drop((volume, engine));

    let engine = pool.open();
    let volume = engine.volume("v").unwrap();
    assert_eq!(pool.read(&volume, 1500, 2).unwrap(), [1501, 1502]);
    pool.write(&volume, 2100, &[9001, 7]).unwrap();
    block_on(volume.trim(2500 * 4096, 100 * 4096)).unwrap();
    assert_eq!(space(&engine).0 + space(&engine).1, 3001);
    assert_eq!(pool.read(&volume, 2099, 4).unwrap(), [2100, 9001, 7, 2103]);
    assert_eq!(pool.read(&volume, 2499, 2).unwrap(), [2500, 0]);
    block_on(engine.maintain()).unwrap();
    // Of 3000 one content was overwritten with a new one, one with a known one, and 100 were trimmed.
    assert_eq!(space(&engine).0, 2899);
    assert_eq!(pool.read(&volume, 2099, 4).unwrap(), [2100, 9001, 7, 2103]);
    assert_eq!(pool.read(&volume, 2999, 1).unwrap(), [3000]);
}
