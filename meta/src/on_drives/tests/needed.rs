//! Pools of which another node may need what the drives have: nothing else is acknowledged.

use super::*;

#[test]
fn where_a_drive_has_to_have_it_nothing_is_acknowledged_that_none_has_and_what_was_stays_there() {
    for takes in 0..4 {
        let (pool, open) = Pool::joined(1);
        open.copies.require_copy().unwrap();
        open.store.apply(&batch(1, 3)).unwrap();
        open.journal.write_at(0, b"a record").unwrap();
        open.journal.sync().unwrap();
        let acknowledged = pool.import(&[0]).unwrap();
        pool.areas[0].fail_after(Some(takes));
        let mut failures = 0;
        for change in 2..6 {
            open.journal.write_at(change * 5000, b"more").unwrap();
            if let Err(error) = open.journal.sync() {
                assert!(error.to_string().contains("another node"), "{error}");
                failures += 1;
            }
            failures += usize::from(open.store.apply(&batch(change, 4)).is_err());
            failures += usize::from(open.store.put_settings(&setting("a", b"b")).is_err());
        }
        assert!(failures > 6, "{failures} failures after {takes} writes");
        open.journal.write_at(0, b"and more").unwrap();
        open.journal.sync().unwrap_err();
        pool.areas[0].fail_after(None);
        let (rows, _) = pool.import(&[0]).expect("it is there");
        for row in &acknowledged.0 {
            let is_there = |(key, value): &(Vec<u8>, Vec<u8>)| {
                // What was acknowledged since may have changed it.
                *key == row.0 && (*value == row.1 || takes > 0)
            };
            assert!(rows.iter().any(is_there), "a row is gone");
        }
        assert!(rows.len() >= acknowledged.0.len());
    }
}

#[test]
fn a_pool_that_needs_a_drive_for_it_is_told_that_none_has_it() {
    let pool = Pool::new(1);
    let open = pool.open();
    let error = open.copies.require_copy().unwrap_err();
    assert!(error.to_string().contains("another node"), "{error}");
    open.store.apply(&batch(1, 3)).unwrap_err();
    open.copies.join(&pool.areas()).unwrap();
    open.copies.require_copy().unwrap();
    open.store.apply(&batch(1, 3)).unwrap();
}

#[test]
fn what_has_no_room_on_the_only_drive_is_refused_and_what_is_there_stays() {
    let (pool, open) = Pool::joined(1);
    open.copies.require_copy().unwrap();
    let put = |change: u32| {
        // Random, because what repeats is compressed.
        let mut value = vec![0; 60 << 10];
        getrandom::fill(&mut value).unwrap();
        let key = format!("a{change}");
        open.store.put_settings(&setting(&key, &value))
    };
    let refused = (0..2000).find(|change| put(*change).is_err());
    let refused = refused.expect("there is no end of room");
    put(refused + 1).unwrap_err();
    open.journal.write_at(0, b"a record").unwrap();
    let (rows, _) = pool.import(&[0]).expect("it is there");
    let has = |change: u32| {
        let key = format!("a{change}");
        rows.iter().any(|(row, _)| row.ends_with(key.as_bytes()))
    };
    assert!((0..refused).all(has), "what was acknowledged is there");
}

#[test]
fn what_a_sync_of_the_journal_said_is_on_a_drive_that_loses_power() {
    let (pool, open) = Pool::joined(1);
    open.journal.write_at(8192, &[7; 4096]).unwrap();
    open.journal.sync().unwrap();
    drop(open);
    pool.areas[0].lose_power(|| false);
    let (_, ring) = pool.import(&[0]).unwrap();
    assert_eq!(ring[8192..12288], [7; 4096]);
}
