//! Policies of volumes, changed at run time: what is written from then on follows them, and nothing else changes.

use crate::support::{Pool, block_on, expect_kind, space, spec};
use dedup::{ErrorKind, PolicyChange, VolumeSpec};
use meta::{Compression, VerifyPolicy};

fn dedup(is_on: bool) -> PolicyChange {
    PolicyChange {
        dedup: Some(is_on),
        ..PolicyChange::default()
    }
}

#[test]
fn what_is_written_follows_the_policy_of_its_time_also_after_a_restart() {
    let pool = Pool::new(200);
    let (engine, volume) = pool.with_volume(64, 4096);
    let set = |change: &PolicyChange| block_on(engine.set_volume_policy("v", change)).unwrap();
    pool.write(&volume, 0, &[1, 2]).unwrap();
    assert!(!set(&dedup(false)).dedup);
    // Content that is stored already is stored again, and old blocks stay shared with nobody's help.
    pool.write(&volume, 2, &[1, 2, 3, 3]).unwrap();
    assert_eq!(space(&engine).0, 6);
    set(&dedup(true));
    // 1 and 2 have blocks with fingerprints, 3 has none.
    pool.write(&volume, 6, &[1, 2, 3, 3]).unwrap();
    assert_eq!(space(&engine).0, 7);
    set(&PolicyChange {
        compression: Some(Compression::Lz4),
        verify: Some(VerifyPolicy::Background),
        ..PolicyChange::default()
    });
    let compressed: Vec<u64> = (10..25).collect();
    pool.write(&volume, 10, &compressed).unwrap();
    assert_eq!(space(&engine).0, 8);
    drop(volume);
    drop(engine);
    // Nothing was flushed: contents are proven, with their fingerprints or without.
    let engine = pool.open();
    let volume = engine.volume("v").unwrap();
    let info = volume.info();
    assert_eq!(
        (info.dedup, info.compression, info.verify),
        (true, Compression::Lz4, VerifyPolicy::Background)
    );
    let wanted = [&[1, 2, 1, 2, 3, 3, 1, 2, 3, 3][..], &compressed].concat();
    assert_eq!(pool.read(&volume, 0, wanted.len()).unwrap(), wanted);
    block_on(engine.load()).unwrap();
    assert_eq!(space(&engine).0, 8);
    block_on(volume.trim(0, 64 * 4096)).unwrap();
    block_on(engine.maintain()).unwrap();
    block_on(engine.checkpoint()).unwrap();
    block_on(engine.maintain()).unwrap();
    assert_eq!(space(&engine), (0, 0, 200));
}

#[test]
fn a_policy_that_cannot_be_is_refused_with_what_to_do_instead() {
    let pool = Pool::new(200);
    let engine = pool.open();
    let other = VolumeSpec {
        domain: "a".to_owned(),
        ..spec("v", 64, 4096)
    };
    let volume = block_on(engine.create_volume(other)).unwrap();
    pool.write(&volume, 0, &[1]).unwrap();
    let set = |name, change: &PolicyChange| block_on(engine.set_volume_policy(name, change));
    for (domain, remedy) in [("b", "import NEW - --domain b`"), ("", "import NEW -`")] {
        let change = PolicyChange {
            domain: Some(domain.to_owned()),
            ..dedup(false)
        };
        let error = set("v", &change).expect_err("another domain");
        assert_eq!(error.kind, ErrorKind::Invalid);
        assert!(error.message.contains(remedy), "{error}");
        assert!(volume.info().dedup, "nothing changed");
    }
    let same = PolicyChange {
        domain: Some("a".to_owned()),
        ..PolicyChange::default()
    };
    assert_eq!(set("v", &same).unwrap(), *volume.info());
    expect_kind(set("w", &dedup(false)).map(drop), ErrorKind::NotFound);
    block_on(engine.create_snapshots(&["v@s"], 1)).unwrap();
    let error = set("v@s", &dedup(false)).expect_err("a snapshot");
    assert!(error.message.contains("volume clone v@s"), "{error}");
    set("v", &dedup(false)).unwrap();
    // A snapshot keeps its policy, a clone of it begins with that, and a rollback changes none.
    assert!(engine.volume("v@s").unwrap().info().dedup);
    let clone = block_on(engine.clone_volume("v@s", "c", None)).unwrap();
    assert!(clone.info().dedup);
    block_on(engine.rollback("v@s")).unwrap();
    assert!(!volume.info().dedup);
    pool.write(&volume, 1, &[1]).unwrap();
    assert_eq!(space(&engine).0, 2);
}
