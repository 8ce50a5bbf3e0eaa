//! Several drives: added online, failing, missing; and what volumes have on them and share.

use std::collections::HashSet;
use std::sync::atomic::Ordering;

use crate::support::{Pool, TestDrive, block_on, expect_kind, plain_spec, space, spec};
use dedup::{AffectedVolume, ErrorKind, MissingDrives, Survey};
use drives::{BLOCK_BYTES, Drive};
use meta::MetaError;

const GRAIN: u64 = BLOCK_BYTES as u64;

fn free(engine: &dedup::Engine) -> Vec<u64> {
    let drives = engine.status().drives;
    drives
        .iter()
        .map(|drive| drive.free_bytes / GRAIN)
        .collect()
}

fn affected(name: &str, blocks: u64) -> AffectedVolume {
    AffectedVolume {
        name: name.to_owned(),
        bytes: blocks * GRAIN,
    }
}

#[test]
fn a_drive_that_is_added_takes_new_data_and_stays_after_a_restart() {
    let mut pool = Pool::new(40);
    let (engine, volume) = pool.with_volume(200, 4096);
    pool.write(&volume, 0, &(1..=40).collect::<Vec<_>>())
        .unwrap();
    expect_kind(pool.write(&volume, 50, &[100]), ErrorKind::NoSpace);

    let second = TestDrive::new(60);
    let index = block_on(engine.add_drive(second.clone(), None, |index| {
        assert_eq!(index, 1);
        Ok(())
    }));
    assert_eq!(index.unwrap(), 1);
    assert_eq!(space(&engine), (40, 0, 60));
    // The write that found no room does now, and duplicates are found across drives.
    pool.write(&volume, 50, &[100, 101, 1, 100]).unwrap();
    assert_eq!(free(&engine), [0, 58]);
    assert_eq!(second.written_blocks.load(Ordering::Relaxed), 2);
    pool.drives.push(second);
    drop((engine, volume));

    let engine = pool.open();
    let volume = engine.volume("v").unwrap();
    assert_eq!(free(&engine), [0, 58]);
    assert_eq!(pool.read(&volume, 48, 6).unwrap(), [0, 0, 100, 101, 1, 100]);
    assert_eq!(pool.read(&volume, 38, 2).unwrap(), [39, 40]);
}

#[test]
fn new_data_spreads_by_free_space() {
    let mut pool = Pool::new(100);
    pool.drives.push(TestDrive::new(300));
    let (engine, volume) = pool.with_volume(400, 4096);
    for at in 0..100 {
        pool.write(&volume, at * 2, &[at * 2 + 1, at * 2 + 2])
            .unwrap();
    }
    let free = free(&engine);
    assert!((48..=52).contains(&free[0]), "{free:?}");
    assert!((148..=152).contains(&free[1]), "{free:?}");
}

#[test]
fn a_drive_that_cannot_be_written_down_or_is_too_small_is_not_added() {
    let pool = Pool::new(40);
    let (engine, _volume) = pool.with_volume(200, 4096);
    let refuse = |_| Err(MetaError::Invalid("the folder is full".to_owned()).into());
    let refused = block_on(engine.add_drive(TestDrive::new(60), None, refuse));
    assert!(expect_kind(refused, ErrorKind::Invalid).contains("folder is full"));
    let none = block_on(engine.add_drive(TestDrive::new(0), None, |_| {
        panic!("a drive without room was written down")
    }));
    expect_kind(none, ErrorKind::Invalid);
    assert_eq!(free(&engine), [40]);
}

#[test]
fn a_failing_drive_is_named_with_the_volumes_that_have_data_on_it() {
    let mut pool = Pool::new(8);
    let (engine, first) = pool.with_volume(64, 4096);
    pool.write(&first, 0, &[1, 2, 3, 4, 5, 6, 7, 8]).unwrap();
    let second = TestDrive::new(100);
    block_on(engine.add_drive(second.clone(), None, |_| Ok(()))).unwrap();
    pool.drives.push(second.clone());
    let other = block_on(engine.create_volume(spec("other", 64, 4096))).unwrap();
    pool.write(&other, 0, &[11, 12, 1]).unwrap();
    pool.write(&first, 20, &[21]).unwrap();
    block_on(engine.survey()).unwrap();
    assert_eq!(engine.drive_troubles(), []);

    second.fail_writes.store(true, Ordering::Relaxed);
    expect_kind(pool.write(&first, 30, &[30]), ErrorKind::WriteFault);
    let troubles = engine.drive_troubles();
    assert_eq!(troubles.len(), 1, "{troubles:?}");
    assert_eq!(troubles[0].drive, second.name());
    assert!(troubles[0].errors > 0);
    assert!(troubles[0].last_error.contains("write"), "{troubles:?}");
    let wanted = [affected("v", 1), affected("other", 2)];
    assert_eq!(troubles[0].volumes.as_deref(), Some(&wanted[..]));
}

#[test]
fn a_pool_that_lacks_a_drive_tells_whose_data_is_on_it() {
    let mut pool = Pool::new(100);
    let (engine, volume) = pool.with_volume(200, 4096);
    pool.write(&volume, 0, &(1..=60).collect::<Vec<_>>())
        .unwrap();
    let second = TestDrive::new(100);
    block_on(engine.add_drive(second.clone(), None, |_| Ok(()))).unwrap();
    pool.drives.push(second);
    let other = block_on(engine.create_volume(spec("other", 64, 4096))).unwrap();
    pool.write(&other, 0, &[101, 102, 103]).unwrap();
    block_on(engine.create_volume(spec("empty", 64, 4096))).unwrap();
    block_on(engine.checkpoint()).unwrap();
    // What is in the journal only counts as well.
    pool.write(&other, 1, &[0]).unwrap();
    pool.write(&other, 8, &[1, 105]).unwrap();
    drop((engine, volume, other));
    let look_up = |drive| {
        MissingDrives::look_up(
            &*pool.store,
            pool.media.clone(),
            pool.config.journal,
            &[drive],
        )
        .unwrap()
    };
    let on_second = look_up(1);
    assert_eq!(on_second.affected, [affected("other", 3)]);
    assert_eq!(on_second.unaffected, ["v", "empty"]);
    let on_first = look_up(0);
    assert_eq!(on_first.affected, [affected("v", 60), affected("other", 1)]);
    // Looking changes nothing.
    let engine = pool.open();
    let other = engine.volume("other").unwrap();
    assert_eq!(
        pool.read(&other, 0, 10).unwrap(),
        [101, 0, 103, 0, 0, 0, 0, 0, 1, 105]
    );
}

/// A volume's name, unique, and shared blocks.
fn shares(survey: &Survey) -> Vec<(&str, u64, u64)> {
    let volumes = survey.volumes.iter();
    volumes
        .map(|volume| {
            (
                volume.name.as_str(),
                volume.unique_bytes / GRAIN,
                volume.shared_bytes / GRAIN,
            )
        })
        .collect()
}

#[test]
fn what_volumes_share_is_told_exactly_on_a_small_pool() {
    let pool = Pool::new(2000);
    let (engine, first) = pool.with_volume(600, 4096);
    let second = block_on(engine.create_volume(spec("second", 600, 4096))).unwrap();
    let plain = block_on(engine.create_volume(plain_spec("plain", 64))).unwrap();
    assert_eq!(engine.last_survey(), None);
    // 200 of its own, twice each; 100 of both; 300 of the second one.
    let one: Vec<u64> = (1..=200).chain(1..=200).chain(1000..1100).collect();
    let two: Vec<u64> = (1000..1100).chain(2000..2300).collect();
    for (volume, contents) in [(&first, &one), (&second, &two)] {
        for (at, chunk) in (0..).step_by(100).zip(contents.chunks(100)) {
            pool.write(volume, at, chunk).unwrap();
        }
    }
    pool.write(&plain, 0, &[1, 1, 2]).unwrap();
    let survey = block_on(engine.survey()).unwrap();
    assert_eq!(survey.sampled_one_in, 1);
    assert_eq!(
        shares(&survey),
        [("v", 200, 100), ("second", 300, 100), ("plain", 3, 0)]
    );
    assert!(survey.volumes.iter().all(|volume| volume.error_bytes == 0));
    let distinct: HashSet<u64> = one.iter().chain(&two).copied().collect();
    assert_eq!(survey.used_bytes, (distinct.len() as u64 + 3) * GRAIN);
    assert_eq!(survey.shared_bytes, 100 * GRAIN);
    assert_eq!(survey.used_bytes, engine.status().used_bytes);
    let logical: u64 = survey
        .volumes
        .iter()
        .map(|volume| volume.logical_bytes)
        .sum();
    assert_eq!(logical, engine.status().logical_bytes);
    assert_eq!(
        engine.last_survey().map(|last| last.volumes),
        Some(survey.volumes)
    );

    // With the second one deleted, all is the first one's own; its blocks count until they are freed.
    block_on(engine.delete_volume("second")).unwrap();
    block_on(engine.maintain()).unwrap();
    let survey = block_on(engine.survey()).unwrap();
    assert_eq!(shares(&survey), [("v", 300, 0), ("plain", 3, 0)]);
    assert_eq!(survey.shared_bytes, 0);
}

#[test]
fn a_full_pool_of_several_drives_refuses_new_data_alone_and_recovers() {
    let mut pool = Pool::new(40);
    pool.drives.push(TestDrive::new(30));
    pool.config.fill_warnings = vec![80, 90];
    let (engine, volume) = pool.with_volume(200, 4096);
    pool.write(&volume, 0, &(1..=60).collect::<Vec<_>>())
        .unwrap();
    assert_eq!(engine.status().fill_warning_percent, Some(80));
    pool.write(&volume, 60, &(61..=70).collect::<Vec<_>>())
        .unwrap();
    assert_eq!((space(&engine), free(&engine)), ((70, 0, 0), vec![0, 0]));
    expect_kind(pool.write(&volume, 100, &[100]), ErrorKind::NoSpace);
    // Reads, duplicates, zeros, trims and deletions need no space.
    pool.write(&volume, 100, &[70, 0, 1]).unwrap();
    assert_eq!(pool.read(&volume, 99, 4).unwrap(), [0, 70, 0, 1]);
    let other = block_on(engine.create_volume(spec("other", 8, 4096))).unwrap();
    pool.write(&other, 0, &[5]).unwrap();
    block_on(engine.delete_volume("other")).unwrap();
    block_on(volume.trim(10 * GRAIN, 30 * GRAIN)).unwrap();
    pool.write(&volume, 110, &[200, 201]).unwrap();
    block_on(engine.maintain()).unwrap();
    assert_eq!(space(&engine), (42, 0, 28));
    assert_eq!(engine.status().fill_warning_percent, None);
    assert_eq!(pool.read(&volume, 108, 4).unwrap(), [0, 0, 200, 201]);
}
