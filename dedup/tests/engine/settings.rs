//! Settings that are kept with the pool.

use crate::support::{Pool, block_on, expect_kind, spec};
use dedup::{ErrorKind, SETTINGS_BYTES_MAX};

fn set(key: &str, value: &[u8]) -> (String, Option<Vec<u8>>) {
    (key.to_owned(), Some(value.to_vec()))
}

#[test]
fn settings_are_there_after_a_crash_from_the_journal_and_from_the_store() {
    let pool = Pool::new(64);
    let engine = pool.open();
    assert_eq!(engine.setting("subsystem/a"), None);
    let both = vec![set("subsystem/b", b"2"), set("subsystem/a", b"1")];
    block_on(engine.change_settings(both)).unwrap();
    block_on(engine.change_settings(vec![set("host/x", b"key")])).unwrap();
    block_on(engine.checkpoint()).unwrap();
    let later = vec![("subsystem/b".to_owned(), None), set("subsystem/c", b"")];
    block_on(engine.change_settings(later)).unwrap();

    for engine in [engine, pool.open(), pool.open()] {
        assert_eq!(engine.setting("host/x").as_deref(), Some(&b"key"[..]));
        let subsystems = engine.settings("subsystem/");
        let keys: Vec<_> = subsystems.iter().map(|(key, _)| key.as_str()).collect();
        assert_eq!(keys, ["subsystem/a", "subsystem/c"]);
        assert_eq!(&*subsystems[0].1, b"1");
        drop(engine);
    }
}

#[test]
fn settings_that_cannot_be_are_refused_and_change_nothing() {
    let pool = Pool::new(64);
    let engine = pool.open();
    let refused = |changes| {
        let result = block_on(engine.change_settings(changes));
        expect_kind(result, ErrorKind::Invalid)
    };
    for key in ["", "two words", "\u{e4}", &"k".repeat(513)] {
        let message = refused(vec![set("good", b"1"), set(key, b"1")]);
        assert!(message.contains("printable ASCII"), "{message}");
    }
    let message = refused(vec![set("large", &vec![0; (64 << 10) + 1])]);
    assert!(message.contains("`large`: 65537 bytes"), "{message}");
    let value = vec![0; 60 << 10];
    let large = |at: usize| set(&format!("large/{at}"), &value);
    refused((0..5).map(large).collect());
    assert_eq!(engine.settings(""), []);

    let many = |at: usize| set(&format!("many/{at:04}"), &value[..12 << 10]);
    let room = SETTINGS_BYTES_MAX / ((12 << 10) + "many/0000".len());
    for at in 0..room {
        block_on(engine.change_settings(vec![many(at)])).unwrap();
    }
    let message = refused(vec![many(room)]);
    assert!(message.contains("16777216"), "{message}");
    // What goes makes room.
    let change = vec![("many/0000".to_owned(), None), many(room)];
    block_on(engine.change_settings(change)).unwrap();
    block_on(engine.create_volume(spec("v", 8, 4096))).unwrap();
}
