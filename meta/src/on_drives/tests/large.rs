//! What a user relies on: much metadata comes back whole, or not at all.

use super::*;

/// Puts settings of 60 KiB each, of which a part cannot be compressed.
fn put_many(open: &Open, count: u32, random_bytes: usize) {
    for number in 0..count {
        let mut value = vec![number as u8; 60 << 10];
        getrandom::fill(&mut value[..random_bytes]).unwrap();
        let key = format!("a{number:05}");
        open.store.put_settings(&setting(&key, &value)).unwrap();
    }
}

/// The block of the base that a drive holds.
fn base_block(area: &MemoryArea) -> u64 {
    let superblock = layout::Superblock::read(area).unwrap().unwrap();
    superblock.layout.slot(superblock.base_slot)
}

#[test]
fn a_base_of_many_tables_is_imported_with_all_of_its_rows() {
    let (pool, open) = Pool::joined(1);
    // More than the rows of two tables.
    put_many(&open, 1200, 1 << 10);
    open.copies.join(&[]).unwrap();
    open.store.apply(&batch(1, 3)).unwrap();
    let (rows, ring) = pool.import(&[0]).unwrap();
    let expected = pool.in_folder();
    // Not by `assert_eq`: it would print them.
    assert!(rows == expected.0 && ring == expected.1);
}

#[test]
fn damage_far_into_a_base_is_found_and_another_drive_has_the_same() {
    let (pool, open) = Pool::joined(2);
    put_many(&open, 60, 50 << 10);
    open.copies.join(&[]).unwrap();
    let expected = pool.in_folder();
    let damage = Arc::new(vec![1; area::BLOCK]);
    // Behind the first MiB: in the second piece.
    let far = |drive: usize| base_block(&pool.areas[drive]) + 400;
    pool.areas[0].write(far(0), damage.clone()).wait().unwrap();
    assert!(pool.import(&[0, 1]).unwrap() == expected);
    pool.areas[1].write(far(1), damage).wait().unwrap();
    let told = pool.import(&[0, 1]).unwrap_err();
    assert!(told.contains("does not match its checksum"), "{told}");
    assert!(told.contains("name all drives"), "{told}");
}

#[test]
fn an_imported_pool_has_the_newest_identity() {
    let (pool, open) = Pool::joined(1);
    let mut newest = identity();
    newest.add_drive(DriveSpec::new("another", 1 << 20));
    open.copies
        .set_identity(&newest.to_text().unwrap())
        .unwrap();
    let found = Importable::look(POOL, &pool.areas()).unwrap();
    assert_eq!(*found.identity(), newest);
}

#[test]
fn what_an_import_wrote_is_there_after_a_crash() {
    let dir = tempfile::tempdir().unwrap();
    let made = dir.path().join("made");
    RocksStore::create(&made, POOL).unwrap();
    let store = RocksStore::open_to_fill(&made, POOL).unwrap();
    store.apply(&batch(1, 3)).unwrap();
    store.put_settings(&setting("a", b"one")).unwrap();
    store.finish_filling().unwrap();
    // As it lies there, and nobody has closed it.
    let crashed = dir.path().join("crashed");
    let copied = std::process::Command::new("cp")
        .arg("-r")
        .args([&made, &crashed])
        .status();
    assert!(copied.unwrap().success());
    let store = RocksStore::open(&crashed, POOL, RocksOptions::default()).unwrap();
    assert_eq!(store.checkpoint().unwrap(), checkpoint(2));
    assert_eq!(store.settings().unwrap()["a"], b"one");
}

#[test]
fn a_change_that_is_out_of_its_order_is_not_imported() {
    let (pool, open) = Pool::joined(1);
    open.store.apply(&batch(1, 3)).unwrap();
    let superblock = layout::Superblock::read(&*pool.areas[0]).unwrap().unwrap();
    let before = change::encode_batch(&batch(1, 3));
    let position = log::LogPosition {
        lineage: superblock.lineage,
        change: superblock.base_change + 2,
        block: superblock.log_start + log::frame_blocks(&before),
    };
    let payload = change::encode_batch(&batch(8, 3));
    for (block, bytes) in log::frame(&superblock.layout, position, &payload) {
        pool.areas[0].write(block, bytes).wait().unwrap();
    }
    let told = pool.import(&[0]).unwrap_err();
    assert!(told.contains("does not follow"), "{told}");
}
