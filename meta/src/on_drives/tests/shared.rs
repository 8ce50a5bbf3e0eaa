//! A pool that another node may take over from more than half of the drives that hold its metadata.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::journal::MemoryMedia;
use crate::setting::SHARED_KEY;
use crate::store::MemoryStore;

const NAME: &str = "n";

/// Three drives with the metadata, and how often the node was told that it cannot go on.
fn shared(drives: usize) -> (Pool, Open, Arc<AtomicUsize>) {
    let (pool, open) = Pool::joined(drives);
    open.copies.require_copy().unwrap();
    let told = Arc::<AtomicUsize>::default();
    let telling = told.clone();
    open.copies.share(move || {
        telling.fetch_add(1, Ordering::Relaxed);
    });
    (pool, open, told)
}

/// What a node that reaches these drives takes over; `None` if it leaves the pool alone.
fn taken_over(areas: &[(u16, Arc<dyn MetadataArea>)]) -> Option<u8> {
    let found = Importable::look(POOL, areas).ok()?;
    if !found.has_majority() {
        return None;
    }
    let (store, _) = found.to_memory().unwrap();
    let settings = store.settings().unwrap();
    Some(settings.get(NAME).map_or(0, |value| value[0]))
}

#[test]
fn of_three_drives_two_may_fail_one_after_the_other() {
    let (pool, open, told) = shared(3);
    let change = |value| open.store.put_settings(&setting(NAME, &[value]));
    change(1).unwrap();
    pool.areas[2].fail_after(Some(0));
    change(2).unwrap();
    pool.areas[1].fail_after(Some(0));
    change(3).unwrap();
    assert_eq!(open.copies.state().drives, [0]);
    assert_eq!(told.load(Ordering::Relaxed), 0);
    // Who does not reach the last one takes nothing over.
    assert_eq!(taken_over(&pool.areas_of(&[1, 2])), None);
    assert_eq!(taken_over(&pool.areas_of(&[0])), Some(3));
}

#[test]
fn who_loses_two_of_three_drives_at_once_cannot_acknowledge_anything_any_more() {
    let (pool, open, told) = shared(3);
    let change = |value| open.store.put_settings(&setting(NAME, &[value]));
    change(1).unwrap();
    for lost in [1, 2] {
        pool.areas[lost].fail_after(Some(0));
    }
    assert!(change(2).is_err());
    assert_eq!(told.load(Ordering::Relaxed), 1);
    assert_eq!(taken_over(&pool.areas_of(&[1, 2])), Some(1));
    // The two are there again: it is another node's by now.
    for lost in [1, 2] {
        pool.areas[lost].fail_after(None);
    }
    assert!(change(3).is_err());
    assert!(open.journal.sync().is_err());
    assert_eq!(taken_over(&pool.areas_of(&[1, 2])), Some(1));
}

#[test]
fn a_drive_that_fails_while_its_metadata_is_erased_says_nothing_older_than_before() {
    let (pool, open, _) = shared(3);
    let change = |value| open.store.put_settings(&setting(NAME, &[value]));
    change(1).unwrap();
    for (lost, value) in [(2, 2), (1, 3)] {
        pool.areas[lost].fail_after(Some(0));
        change(value).unwrap();
    }
    // It is to hold the metadata again, and takes one write.
    pool.areas[1].fail_after(Some(1));
    open.copies.join(&pool.areas_of(&[1])).unwrap();
    assert_eq!(open.copies.state().drives, [0]);
    assert_eq!(taken_over(&pool.areas_of(&[1, 2])), None);
}

#[test]
fn the_folder_of_a_shared_pool_is_opened_with_half_of_its_drives_and_not_with_fewer() {
    let (pool, open, _) = shared(3);
    open.store.put_settings(&setting(SHARED_KEY, b"1")).unwrap();
    drop(open);
    let refused = pool.try_open_with(&pool.areas_of(&[0])).map(drop);
    let refused = refused.expect_err("another node may have the pool with the two others");
    assert!(refused.to_string().contains("1 of the 3"), "{refused}");
    let open = pool.open_with(&pool.areas_of(&[0, 2]));
    assert_eq!(open.copies.state().drives, [0, 2]);
    drop(open);
    // The two that are left hold all, and the third one nothing.
    let refused = pool.try_open_with(&pool.areas_of(&[1])).map(drop);
    let refused = refused.expect_err("another node may have the pool with the two others");
    assert!(refused.to_string().contains("none of"), "{refused}");
    // One is half of the two.
    let open = pool.open_with(&pool.areas_of(&[2]));
    assert_eq!(open.copies.state().drives, [2]);
}

/// What happens to a drive, or to the pool.
#[derive(Clone, Copy, Debug)]
enum Step {
    Change,
    /// The drive takes so many writes, and then none.
    Fails(usize, u64),
    /// It works again.
    Works(usize),
    /// Drives that work hold the metadata again.
    Join,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => Just(Step::Change),
        2 => (0..3_usize, 0..7_u64).prop_map(|(drive, takes)| Step::Fails(drive, takes)),
        2 => (0..3_usize).prop_map(Step::Works),
        1 => Just(Step::Join),
    ]
}

/// Bytes of the journal of a pool in memory, and blocks of its areas: small ones, for there are many such pools.
const SMALL_RING: u64 = 64 << 10;
const SMALL_AREA_BLOCKS: u64 = 512;

proptest! {
    /// Drives fail in the middle of any write, and come back. Whichever drives another node reaches at any moment: it finds all that
    /// was acknowledged, or leaves the pool alone.
    #[test]
    fn whoever_takes_a_shared_pool_over_finds_all_that_was_acknowledged(
        steps in prop::collection::vec(step(), 1..40),
    ) {
        let drives = [0, 1, 2].map(|_| Arc::new(MemoryArea::new(SMALL_AREA_BLOCKS)));
        let areas = |reached: &[u16]| -> Vec<(u16, Arc<dyn MetadataArea>)> {
            let area = |at: &u16| drives[usize::from(*at)].clone() as Arc<dyn MetadataArea>;
            reached.iter().map(|at| (*at, area(at))).collect()
        };
        let text = identity().to_text().unwrap();
        let journal = Arc::new(MemoryMedia::new(SMALL_RING));
        let store = Arc::new(MemoryStore::new());
        let copies =
            MetadataOnDrives::in_memory((POOL, &text), store, journal, 8, &areas(&[0, 1, 2]));
        let copies = copies.unwrap();
        copies.join(&areas(&[0, 1, 2])).unwrap();
        prop_assert_eq!(copies.state().drives.len(), 3);
        copies.share(|| ());
        copies.require_copy().unwrap();
        let changed = StoreOnDrives::new(copies.clone());
        let (mut acknowledged, mut last) = (0, 0);
        for step in steps {
            match step {
                Step::Change => {
                    last += 1;
                    if changed.put_settings(&setting(NAME, &[last])).is_ok() {
                        acknowledged = last;
                    }
                }
                Step::Fails(drive, takes) => drives[drive].fail_after(Some(takes)),
                Step::Works(drive) => drives[drive].fail_after(None),
                // Drives that do not work yet do not join.
                Step::Join => drop(copies.join(&areas(&[0, 1, 2]))),
            }
            for reached in [&[0, 1][..], &[0, 2], &[1, 2], &[0], &[1], &[2], &[0, 1, 2]] {
                if let Some(found) = taken_over(&areas(reached)) {
                    prop_assert!(
                        found >= acknowledged,
                        "{found} of {acknowledged} with the drives {reached:?} after {step:?}"
                    );
                }
            }
        }
    }
}
