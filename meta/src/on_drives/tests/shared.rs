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

/// A node that takes the pool over from these drives, and how often it was told that it cannot go on. `between`: when it has read them.
fn next_node(
    reached: &[(u16, Arc<dyn MetadataArea>)],
    between: impl FnOnce(),
) -> (Arc<MetadataOnDrives>, Arc<AtomicUsize>) {
    let found = Importable::look(POOL, reached).unwrap();
    assert!(found.has_majority());
    let (store, journal) = found.to_memory().unwrap();
    between();
    let text = identity().to_text().unwrap();
    let copies = MetadataOnDrives::in_memory((POOL, &text), store, journal, 8, reached).unwrap();
    let told = Arc::<AtomicUsize>::default();
    let telling = told.clone();
    copies.share(move || {
        telling.fetch_add(1, Ordering::Relaxed);
    });
    (copies, told)
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

#[test]
fn who_takes_a_pool_without_a_drive_and_loses_another_one_then_acknowledges_nothing() {
    let (pool, open, _) = shared(3);
    open.store.put_settings(&setting(SHARED_KEY, b"1")).unwrap();
    open.store.put_settings(&setting(NAME, &[1])).unwrap();
    drop(open);
    let reached = pool.areas_of(&[0, 1]);
    // It has read all, and has written nothing yet.
    let (copies, told) = next_node(&reached, || pool.areas[1].fail_after(Some(0)));
    assert!(copies.join(&reached).is_err());
    assert_eq!(told.load(Ordering::Relaxed), 1);
    let change = StoreOnDrives::new(copies).put_settings(&setting(NAME, &[2]));
    assert!(change.is_err());
    // The two that it does not reach have all that was acknowledged.
    assert_eq!(taken_over(&pool.areas_of(&[1, 2])), Some(1));
}

#[test]
fn what_one_drive_alone_had_of_a_dead_owner_is_on_all_drives_of_the_next_one() {
    let (pool, open, _) = shared(3);
    open.store.put_settings(&setting(SHARED_KEY, b"1")).unwrap();
    open.store.put_settings(&setting(NAME, &[1])).unwrap();
    // The owner dies when one drive has the change.
    for lost in [1, 2] {
        pool.areas[lost].fail_after(Some(0));
    }
    assert!(open.store.put_settings(&setting(NAME, &[2])).is_err());
    drop(open);
    for lost in [1, 2] {
        pool.areas[lost].fail_after(None);
    }
    let (copies, _) = next_node(&pool.areas(), || {});
    copies.join(&pool.areas()).unwrap();
    let store = StoreOnDrives::new(copies.clone());
    for (lost, value) in [(0, 3), (2, 4)] {
        pool.areas[lost].fail_after(Some(0));
        store.put_settings(&setting(NAME, &[value])).unwrap();
    }
    assert_eq!(copies.state().drives, [1]);
    assert_eq!(taken_over(&pool.areas_of(&[1])), Some(4));
}

/// What happens to a drive, or to the pool.
#[derive(Clone, Debug)]
enum Step {
    Change,
    /// The drive takes so many writes, and then none.
    Fails(usize, u64),
    /// It works again.
    Works(usize),
    /// Drives that work hold the metadata again.
    Join,
    /// The node dies in the middle of a change, or of that: of each drive so many writes are done.
    Dies(bool, [u64; 3]),
    /// Another node takes the pool over from these drives, if it may. When it has read them, each takes so many writes, and then none.
    TakeOver(&'static [u16], [Option<u64>; 3]),
}

/// Drives that a node reaches.
const REACHED: [&[u16]; 7] = [&[0, 1], &[0, 2], &[1, 2], &[0], &[1], &[2], &[0, 1, 2]];

fn step() -> impl Strategy<Value = Step> {
    let takes = || prop_oneof![2 => Just(None), 1 => (0..7_u64).prop_map(Some)];
    prop_oneof![
        6 => Just(Step::Change),
        2 => (0..3_usize, 0..7_u64).prop_map(|(drive, takes)| Step::Fails(drive, takes)),
        3 => (0..3_usize).prop_map(Step::Works),
        2 => Just(Step::Join),
        2 => (any::<bool>(), [0..7_u64, 0..7_u64, 0..7_u64]).prop_map(|(joins, takes)| Step::Dies(joins, takes)),
        4 => (prop::sample::select(REACHED.to_vec()), [takes(), takes(), takes()])
            .prop_map(|(reached, takes)| Step::TakeOver(reached, takes)),
    ]
}

/// Bytes of the journal of a pool in memory, and blocks of its areas: small ones, for there are many such pools.
const SMALL_RING: u64 = 64 << 10;
const SMALL_AREA_BLOCKS: u64 = 512;

/// Three drives, and the node that has the pool, if one has it.
struct Story {
    drives: [Arc<MemoryArea>; 3],
    owner: Option<Arc<MetadataOnDrives>>,
    acknowledged: u8,
    last: u8,
}

impl Story {
    fn new() -> Self {
        let mut story = Self {
            drives: [0, 1, 2].map(|_| Arc::new(MemoryArea::new(SMALL_AREA_BLOCKS))),
            owner: None,
            acknowledged: 0,
            last: 0,
        };
        let journal = Arc::new(MemoryMedia::new(SMALL_RING));
        let store = Arc::new(MemoryStore::new());
        store.put_settings(&setting(SHARED_KEY, b"1")).unwrap();
        assert!(story.opens(store, journal, &[0, 1, 2]));
        story
    }

    fn areas(&self, reached: &[u16]) -> Vec<(u16, Arc<dyn MetadataArea>)> {
        let area = |at: &u16| self.drives[usize::from(*at)].clone() as Arc<dyn MetadataArea>;
        reached.iter().map(|at| (*at, area(at))).collect()
    }

    /// As a daemon opens a pool that nodes share; whether it serves it.
    fn opens(
        &mut self,
        store: Arc<MemoryStore>,
        journal: Arc<MemoryMedia>,
        reached: &[u16],
    ) -> bool {
        let areas = self.areas(reached);
        let text = identity().to_text().unwrap();
        let opened = MetadataOnDrives::in_memory((POOL, &text), store, journal, 8, &areas);
        let owner = opened.ok().filter(|copies| {
            copies.share(|| ());
            let joined = !copies.wants(reached.iter().copied()) || copies.join(&areas).is_ok();
            joined && copies.require_copy().is_ok()
        });
        self.owner = owner;
        self.owner.is_some()
    }

    fn change(&mut self) {
        let Some(owner) = &self.owner else {
            return;
        };
        self.last += 1;
        let change = setting(NAME, &[self.last]);
        if StoreOnDrives::new(owner.clone())
            .put_settings(&change)
            .is_ok()
        {
            self.acknowledged = self.last;
        }
    }

    fn join(&self) {
        if let Some(owner) = &self.owner {
            // Drives that do not work yet do not join.
            let _ = owner.join(&self.areas(&[0, 1, 2]));
        }
    }

    fn take_over(&mut self, reached: &[u16], takes: [Option<u64>; 3]) {
        let found = Importable::look(POOL, &self.areas(reached));
        let Some(found) = found.ok().filter(Importable::has_majority) else {
            return;
        };
        let (store, journal) = found.to_memory().unwrap();
        // It is shut out.
        self.owner = None;
        for (drive, takes) in self.drives.iter().zip(takes) {
            drive.fail_after(takes);
        }
        self.opens(store, journal, reached);
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Change => self.change(),
            Step::Fails(drive, takes) => self.drives[drive].fail_after(Some(takes)),
            Step::Works(drive) => self.drives[drive].fail_after(None),
            Step::Join => self.join(),
            Step::Dies(joins, takes) => {
                for (drive, takes) in self.drives.iter().zip(takes) {
                    drive.fail_after(Some(takes));
                }
                match joins {
                    true => self.join(),
                    false => self.change(),
                }
                self.owner = None;
                for drive in &self.drives {
                    drive.fail_after(None);
                }
            }
            Step::TakeOver(reached, takes) => self.take_over(reached, takes),
        }
    }
}

proptest! {
    /// Drives fail in the middle of any write, and come back; nodes die there, and others take the pool over, from any drives. Whichever
    /// drives a node reaches at any moment: it finds all that was acknowledged, or leaves the pool alone.
    #[test]
    fn whoever_takes_a_shared_pool_over_finds_all_that_was_acknowledged(
        steps in prop::collection::vec(step(), 1..40),
    ) {
        let mut story = Story::new();
        for step in steps {
            let told = format!("{step:?}");
            story.step(step);
            for reached in REACHED {
                if let Some(found) = taken_over(&story.areas(reached)) {
                    prop_assert!(
                        found >= story.acknowledged,
                        "{found} of {} with the drives {reached:?} after {told}", story.acknowledged
                    );
                }
            }
        }
    }
}
