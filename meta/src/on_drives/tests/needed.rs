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
        pool.areas[0].fail_after(None);
        let (rows, _) = pool.import(&[0]).expect("it is there");
        for row in &acknowledged.0 {
            assert!(rows.contains(row) || takes > 0, "a row is gone");
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
