//! Schedules of snapshots in exported configurations.

use super::*;

#[test]
fn a_schedule_of_snapshots_that_differs_is_replaced_only_when_asked_and_a_wrong_one_is_named() {
    let uuid = Uuid::from_u128(7);
    let schedule = |keep| SnapshotSchedule {
        every_seconds: 3600,
        keep,
    };
    let mut pool = Pool::new("1");
    pool.volumes.push(volume("mail", uuid, 4096));
    pool.schedules.push((uuid, schedule(24)));
    let text = pool.export();
    assert!(
        text.contains("[[snapshot_schedule]]\nvolume = \"mail\""),
        "{text}"
    );
    pool.schedules[0].1 = schedule(7);
    let wrong = pool.plan(&text, None, false).expect_err("it differs");
    assert!(wrong[0].what.contains("keep from 7 to 24"), "{wrong:?}");
    let plan = pool.plan(&text, None, true).expect("it may");
    assert_eq!(plan.schedules, [(uuid, schedule(24))]);
    for (from, to, told) in [
        ("keep = 24", "keep = 0", "use 1 to"),
        ("every_seconds = 3600", "every_seconds = 1", "use 60 to"),
        ("keep = 24", "keep = 24\nkept = 1", "unknown field"),
    ] {
        let wrong = pool.plan(&text.replace(from, to), None, true);
        let wrong = wrong.expect_err("it cannot be");
        assert!(wrong[0].what.contains(told), "{wrong:?}");
    }
    let of_none = text.replace(
        "[[snapshot_schedule]]\nvolume = \"mail\"",
        "[[snapshot_schedule]]\nvolume = \"post\"",
    );
    let wrong = pool
        .plan(&of_none, None, true)
        .expect_err("there is no such volume");
    assert!(wrong[0].what.contains("'post'"), "{wrong:?}");
}
