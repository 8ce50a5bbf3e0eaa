//! Drives that hold the metadata, and are missing while the pool goes on without them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, mpsc};

use super::members::lock;
use super::*;

/// A pool whose metadata the second of two drives holds alone.
fn on_the_second() -> Pool {
    let (pool, open) = Pool::joined(2);
    open.store.apply(&batch(1, 3)).unwrap();
    open.copies.leave(0).unwrap();
    open.store.put_settings(&setting("a", b"there")).unwrap();
    assert_eq!(open.copies.state().drives, [1]);
    pool
}

#[test]
fn a_drive_that_was_missing_while_the_folder_went_on_alone_holds_nothing_when_it_comes_back() {
    let pool = on_the_second();
    let open = pool.open_with(&[]);
    open.store.apply(&batch(2, 4)).unwrap();
    open.store.put_settings(&setting("a", b"gone on")).unwrap();
    drop(open);
    let open = pool.open_with(&pool.areas_of(&[1]));
    assert!(open.copies.state().drives.is_empty(), "it lacks changes");
    open.copies.join(&pool.areas_of(&[1])).unwrap();
    assert_eq!(pool.import(&[1]).unwrap(), pool.in_folder());
}

#[test]
fn what_a_drive_holds_that_was_missing_is_never_imported_beside_what_others_hold_since() {
    let pool = on_the_second();
    // It had more changes than the other one gets.
    let open = pool.open_with(&pool.areas_of(&[1]));
    for value in 0..9 {
        open.store.put_settings(&setting("b", &[value])).unwrap();
    }
    drop(open);
    let open = pool.open_with(&pool.areas_of(&[0]));
    open.copies.join(&pool.areas_of(&[0])).unwrap();
    open.store.apply(&batch(2, 4)).unwrap();
    assert_eq!(pool.import(&[0, 1]).unwrap(), pool.in_folder());
    assert_eq!(pool.import(&[0]).unwrap(), pool.in_folder());
    drop(open);
    let open = pool.open();
    assert_eq!(open.copies.state().drives, [0]);
}

#[test]
fn a_drive_that_is_missing_during_an_import_goes_on_from_nothing_that_was_imported_without_it() {
    let (mut pool, open) = Pool::joined(2);
    open.store.apply(&batch(1, 3)).unwrap();
    drop(open);
    let found = Importable::look(POOL, &pool.areas_of(&[0])).unwrap();
    assert_eq!(found.missing(), [1]);
    let target = tempfile::tempdir().unwrap();
    let folder = target.path().join("imported");
    found.write(&folder, found.identity()).unwrap();
    pool.dir = target;
    for name in ["metadata", "journal"] {
        std::fs::rename(folder.join(name), pool.dir.path().join(name)).unwrap();
    }
    // The other one has the same changes, and goes on elsewhere.
    let open = pool.open();
    assert!(open.copies.state().drives.is_empty(), "all is copied anew");
    open.copies.join(&pool.areas()).unwrap();
    assert_eq!(pool.import(&[0, 1]).unwrap(), pool.in_folder());
}

#[test]
fn contents_can_be_given_index_entries_again_after_an_import() {
    let (pool, open) = Pool::joined(1);
    open.store.apply(&batch(1, 3)).unwrap();
    let blocks = open.store.blocks(Pba(0), Pba(u64::MAX), 10).unwrap();
    let entries = [(blocks[0].0, blocks[0].1.fingerprint)];
    open.store.put_index_entries(&entries).unwrap();
    // What is copied from here on says that there are index entries, which stay in the folder.
    open.copies.leave(0).unwrap();
    open.copies.join(&pool.areas()).unwrap();
    let found = Importable::look(POOL, &pool.areas()).unwrap();
    let target = tempfile::tempdir().unwrap();
    let folder = target.path().join("imported");
    found.write(&folder, found.identity()).unwrap();
    let store = RocksStore::open(&folder.join("metadata"), POOL, RocksOptions::default());
    let store = store.unwrap();
    assert!(crate::check(&store).unwrap().index_agrees);
    store.put_index_entries(&entries).unwrap();
    assert_eq!(
        store.index_entries(&[entries[0].1]).unwrap(),
        [Some(entries[0].0)]
    );
}

#[test]
fn what_another_machine_may_have_open_or_a_missing_drive_newer_is_told() {
    let (pool, open) = Pool::joined(2);
    let newest = crate::label::Opening {
        machine: "one".to_owned(),
        ..crate::label::Opening::default()
    };
    let check = |drives: &[u16], machine| {
        let found = Importable::look(POOL, &pool.areas_of(drives)).unwrap();
        found.check_newest(&newest, machine)
    };
    assert_eq!(check(&[0, 1], "one"), Ok(()));
    let other = Err(MayBeOlder::Open("one".to_owned()));
    assert_eq!(check(&[0, 1], "two"), other);
    assert_eq!(check(&[0], "one"), Err(MayBeOlder::Missing(1)));
    open.copies.close();
    assert_eq!(check(&[0, 1], "two"), Ok(()));
}

#[test]
fn a_drive_that_lost_power_before_it_was_a_member_is_not_missed_where_it_is_named() {
    let (pool, open) = Pool::joined(2);
    open.store.put_settings(&setting("a", b"one")).unwrap();
    let nothing = Arc::new(vec![0; 2 * area::BLOCK]);
    pool.areas[1].write(0, nothing).wait().unwrap();
    assert_eq!(pool.import(&[0, 1]).unwrap(), pool.in_folder());
    assert_eq!(pool.import(&[0]), Err("missing [1]".to_owned()));
}

/// An area whose writes take as long as somebody wants.
struct Held {
    inner: Arc<MemoryArea>,
    asked: mpsc::Sender<()>,
    answer: Arc<Mutex<mpsc::Receiver<()>>>,
    holds: Arc<AtomicBool>,
}

impl MetadataArea for Held {
    fn name(&self) -> String {
        self.inner.name()
    }

    fn blocks(&self) -> u64 {
        self.inner.blocks()
    }

    fn read(&self, block: u64, bytes: &mut [u8]) -> std::io::Result<()> {
        self.inner.read(block, bytes)
    }

    fn write(&self, block: u64, bytes: Arc<Vec<u8>>) -> PendingIo {
        let write = self.inner.write(block, bytes);
        if !self.holds.swap(false, Ordering::SeqCst) {
            return write;
        }
        let (asked, answer) = (self.asked.clone(), self.answer.clone());
        PendingIo::new(move || {
            asked.send(()).expect("the test listens");
            lock(&answer).recv().expect("the test goes on");
            write.wait()
        })
    }

    fn flush(&self) -> PendingIo {
        self.inner.flush()
    }
}

#[test]
fn who_holds_the_metadata_is_told_while_a_drive_does_not_answer() {
    let pool = Pool::new(1);
    let open = pool.open();
    let ((asked, is_asked), (go_on, answer)) = (mpsc::channel(), mpsc::channel());
    let holds = Arc::<AtomicBool>::default();
    let area = Held {
        inner: pool.areas[0].clone(),
        asked,
        answer: Arc::new(Mutex::new(answer)),
        holds: holds.clone(),
    };
    open.copies.join(&[(0, Arc::new(area))]).unwrap();
    assert_eq!(open.copies.state().drives, [0]);
    holds.store(true, Ordering::SeqCst);
    let store = StoreOnDrives::new(open.copies.clone());
    let changing = std::thread::spawn(move || store.put_settings(&setting("a", b"b")));
    is_asked.recv().unwrap();
    // A daemon asks this every few seconds, on a thread that must not stand still.
    assert_eq!(open.copies.state().drives, [0]);
    assert!(!open.copies.wants([0]));
    go_on.send(()).unwrap();
    changing.join().unwrap().unwrap();
    open.copies.leave(0).unwrap();
    assert!(open.copies.state().drives.is_empty() && open.copies.wants([0]));
}
