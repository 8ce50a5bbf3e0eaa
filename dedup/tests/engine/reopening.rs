//! What an opening makes of blocks that were acknowledged and not flushed: after the end of the program alone
//! nothing is undone, after a loss of power what never arrived is.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::support::{Pool, block_on, expect_kind, plain_spec, spec};
use dedup::{BootId, DamagedRange, Engine, ErrorKind, Volume};
use drives::BLOCK_BYTES;
use meta::HookedMedia;
use uuid::Uuid;

/// A start of the machine.
fn start(number: u128) -> Option<BootId> {
    BootId::from_uuid(Uuid::from_u128(number))
}

/// A pool whose program ended at once: content 1 is flushed, and contents 2 and 3 were written over it and
/// beside it, and not flushed.
fn ended(boot: Option<BootId>) -> Pool {
    let mut pool = Pool::new(64);
    pool.boot = boot;
    let (engine, volume) = pool.with_volume(64, 4096);
    pool.write(&volume, 0, &[1]).unwrap();
    block_on(engine.flush()).unwrap();
    pool.write(&volume, 0, &[2, 3]).unwrap();
    drop((engine, volume));
    pool
}

fn open(pool: &Pool) -> (Arc<Engine>, Arc<Volume>) {
    let engine = pool.open();
    let volume = engine.volume("v").unwrap();
    (engine, volume)
}

fn damaged(engine: &Engine) -> Vec<DamagedRange> {
    block_on(engine.damage()).ranges
}

fn first_block() -> Vec<DamagedRange> {
    vec![DamagedRange {
        volume: "v".to_owned(),
        offset: 0,
        bytes: BLOCK_BYTES as u64,
    }]
}

#[test]
fn a_pool_that_writes_through_loses_nothing_that_was_answered_with_the_power() {
    let mut lost = 0;
    for (seed, write_through) in (0..8).flat_map(|seed| [(seed, true), (seed, false)]) {
        let mut pool = Pool::new(64);
        pool.config.write_through = write_through;
        let (engine, volume) = pool.with_volume(64, 4096);
        let block = BLOCK_BYTES as u64;
        pool.write(&volume, 0, &[1, 2, 3, 4]).unwrap();
        block_on(engine.flush()).unwrap();
        let change = match seed % 4 {
            0 => pool.write(&volume, 1, &[9]),
            1 => block_on(volume.write_zeroes(block, block, false)),
            2 => block_on(volume.trim(block, block)),
            _ => block_on(volume.copy(block, &volume, 3 * block, block, &pool.buffers)),
        };
        change.unwrap();
        let answered = pool.read(&volume, 0, 4).unwrap();
        drop((engine, volume));
        pool.media.power_loss(seed);
        let (_engine, volume) = open(&pool);
        let found = pool.read(&volume, 0, 4).unwrap();
        match write_through {
            true => assert_eq!(found, answered, "seed {seed}"),
            false => lost += usize::from(found != answered),
        }
    }
    assert!(
        lost > 0,
        "a loss of power takes what is not on stable storage"
    );
}

#[test]
fn when_only_the_program_ended_nothing_acknowledged_is_undone() {
    let pool = ended(start(1));
    let (engine, volume) = open(&pool);
    assert_eq!(pool.read(&volume, 0, 2).unwrap(), [2, 3]);
    assert_eq!(damaged(&engine), []);
}

#[test]
fn a_block_that_cannot_be_read_after_a_crash_is_an_error_and_never_older_data() {
    // Whether power was lost or not: what cannot be read may be there.
    for now in [start(1), start(2), None] {
        let pool = ended(start(1));
        pool.drive().lose_content(2);
        let (engine, volume) = open(&pool);
        assert_eq!(damaged(&engine), first_block(), "{now:?}");
        expect_kind(pool.read(&volume, 0, 1), ErrorKind::Corrupt);
        assert_eq!(pool.read(&volume, 1, 1).unwrap(), [3], "{now:?}");
        // The drive can read it again: a cable was loose.
        pool.drive().find_all();
        assert_eq!(pool.read(&volume, 0, 2).unwrap(), [2, 3], "{now:?}");
    }
}

#[test]
fn a_block_that_rotted_after_a_crash_of_the_program_is_an_error_and_never_older_data() {
    let pool = ended(start(1));
    pool.drive().corrupt_content(2);
    for _ in 0..2 {
        let (engine, volume) = open(&pool);
        expect_kind(pool.read(&volume, 0, 1), ErrorKind::Corrupt);
        assert_eq!(pool.read(&volume, 1, 1).unwrap(), [3]);
        assert_eq!(damaged(&engine), first_block());
        // It stays so over another end of the program.
    }
}

#[test]
fn what_never_arrived_before_a_loss_of_power_is_undone_also_where_nobody_knows() {
    for (before, now) in [
        (start(1), start(2)),
        (start(1), None),
        (None, start(1)),
        (None, None),
    ] {
        let mut pool = ended(before);
        pool.drive().corrupt_content(2);
        pool.boot = now;
        let (engine, volume) = open(&pool);
        let found = pool.read(&volume, 0, 2).unwrap();
        assert_eq!(found, [1, 3], "{before:?} {now:?}");
        assert_eq!(damaged(&engine), []);
        // From here on it is known.
        pool.write(&volume, 0, &[4]).unwrap();
        drop((engine, volume));
        pool.drive().corrupt_content(4);
        let (engine, volume) = open(&pool);
        let is_known = now.is_some();
        assert_eq!(pool.read(&volume, 0, 1).is_err(), is_known, "{now:?}");
        assert_eq!(damaged(&engine).is_empty(), !is_known);
    }
}

#[test]
fn a_pool_of_which_nothing_unflushed_can_be_read_opens_and_tells_each_range() {
    let pool = ended(start(1));
    pool.drive().fail_reads.store(true, Ordering::Relaxed);
    let (engine, volume) = open(&pool);
    assert_eq!(damaged(&engine)[0].bytes, 2 * BLOCK_BYTES as u64);
    // The cable is in again. What is listed is read before it is believed.
    pool.drive().fail_reads.store(false, Ordering::Relaxed);
    block_on(engine.maintain()).unwrap();
    assert_eq!(damaged(&engine), []);
    assert_eq!(pool.read(&volume, 0, 2).unwrap(), [2, 3]);
}

#[test]
fn new_writes_are_not_mapped_to_what_an_opening_found_damaged_and_heal_it() {
    let folder = tempfile::tempdir().unwrap();
    let mut pool = ended(start(1));
    pool.config.damage_file = Some(folder.path().join("damaged"));
    pool.drive().corrupt_content(2);
    drop(open(&pool));
    // The journal tells nothing of it any more; the list does.
    let (engine, volume) = open(&pool);
    assert_eq!(damaged(&engine), first_block());
    pool.write(&volume, 20, &[2]).unwrap();
    assert_eq!(pool.read(&volume, 20, 1).unwrap(), [2]);
    block_on(engine.maintain()).unwrap();
    assert_eq!(damaged(&engine), []);
    assert_eq!(pool.read(&volume, 0, 2).unwrap(), [2, 3]);
}

#[test]
fn new_writes_that_an_index_entry_leads_to_a_damaged_block_are_not_mapped_to_it() {
    let mut pool = Pool::new(64);
    pool.boot = start(1);
    pool.config.index_bytes_max = 0;
    let (engine, volume) = pool.with_volume(64, 4096);
    pool.write(&volume, 0, &[2]).unwrap();
    // The store has the index entry; the next record refers to the same block, and is not flushed.
    block_on(engine.checkpoint()).unwrap();
    pool.write(&volume, 1, &[2]).unwrap();
    drop((engine, volume));
    pool.drive().corrupt_content(2);
    let (engine, volume) = open(&pool);
    pool.write(&volume, 20, &[2]).unwrap();
    assert_eq!(pool.read(&volume, 20, 1).unwrap(), [2]);
    assert_eq!(engine.status().damaged_blocks, 1);
}

#[test]
fn what_was_written_over_before_the_program_ended_is_no_damage() {
    let pool = ended(start(1));
    let (engine, volume) = open(&pool);
    pool.write(&volume, 0, &[4]).unwrap();
    pool.write(&volume, 0, &[5]).unwrap();
    drop((engine, volume));
    pool.drive().lose_content(4);
    let (engine, volume) = open(&pool);
    assert_eq!(pool.read(&volume, 0, 2).unwrap(), [5, 3]);
    block_on(engine.maintain()).unwrap();
    assert_eq!(engine.status().damaged_blocks, 0);
}

#[test]
fn other_content_with_the_same_checksum_is_not_taken_for_what_was_written() {
    // A multiple of the polynomial 11EDC6F41h of CRC-32C: no checksum changes with it. The lowest bit of a
    // byte is the first.
    let polynomial: u64 = 0x1_1edc_6f41;
    let mut twist = [0_u8; 5];
    for at in 0..33 {
        let bit = polynomial >> (32 - at) & 1;
        twist[at / 8] |= (bit as u8) << (at % 8);
    }
    let apply = |bytes: &mut [u8]| {
        for (byte, twist) in bytes[100..].iter_mut().zip(twist) {
            *byte ^= twist;
        }
    };
    let pool = ended(None);
    // As a block without a fingerprint, it passes.
    let (engine, _) = open(&pool);
    let plain = block_on(engine.create_volume(plain_spec("plain", 8))).unwrap();
    pool.write(&plain, 0, &[7]).unwrap();
    pool.write(engine.volume("v").as_ref().unwrap(), 0, &[8])
        .unwrap();
    drop((engine, plain));
    pool.drive().change_content(7, apply);
    pool.drive().change_content(8, apply);
    let (engine, volume) = open(&pool);
    let plain = engine.volume("plain").unwrap();
    assert_eq!(
        pool.read(&plain, 0, 1).unwrap(),
        [7],
        "the checksum differs"
    );
    assert_eq!(pool.read(&volume, 0, 1).unwrap(), [2]);
}

#[test]
fn a_write_that_failed_with_the_journal_is_old_or_new_after_a_restart_and_never_an_error() {
    let mut pool = Pool::new(256);
    pool.boot = start(1);
    let fails = Arc::new(AtomicBool::new(false));
    let lies = fails.clone();
    // It has what it says it could not write.
    let journal = HookedMedia::new(pool.media.clone(), move || {
        match lies.load(Ordering::Relaxed) {
            true => Err(io::Error::other("simulated failure")),
            false => Ok(()),
        }
    });
    let engine = pool.try_open_on(Arc::new(journal)).unwrap();
    let volume = block_on(engine.create_volume(spec("v", 64, 4096))).unwrap();
    let (old, new): (Vec<u64>, Vec<u64>) = ((1..65).collect(), (101..165).collect());
    pool.write(&volume, 0, &old).unwrap();
    block_on(engine.maintain()).unwrap();
    fails.store(true, Ordering::Relaxed);
    expect_kind(pool.write(&volume, 0, &new), ErrorKind::Unavailable);
    // Background work goes on as far as it can.
    let _ = block_on(engine.maintain());
    assert_eq!(pool.read(&volume, 0, 64).unwrap(), old);
    drop((engine, volume));
    let (engine, volume) = open(&pool);
    let found = pool.read(&volume, 0, 64).unwrap();
    assert!(found == old || found == new, "{found:?}");
    assert_eq!(damaged(&engine), []);
}
