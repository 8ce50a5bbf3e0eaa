//! What a user relies on: a standby that followed the pool has what one has that reads all of it.

use super::*;
use crate::on_drives::ahead::{Ahead, Followed};

struct Standby {
    dir: TempDir,
    ahead: Option<Ahead>,
}

impl Standby {
    fn new() -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
            ahead: None,
        }
    }

    fn folder(&self) -> std::path::PathBuf {
        self.dir.path().join("pool")
    }

    fn begin(&mut self, pool: &Pool) {
        let begun = Ahead::begin(POOL, &pool.areas(), &self.folder(), &|| true);
        self.ahead = Some(begun.unwrap());
    }

    /// How many changes it made; `None` if it has to begin anew.
    fn follow(&mut self, pool: &Pool) -> Option<u64> {
        let ahead = self.ahead.as_mut().unwrap();
        match ahead.follow(&pool.areas(), &|| true).unwrap() {
            Followed::Changes(changes) => Some(changes),
            Followed::Unreachable(error) => panic!("{error}"),
            Followed::Lost => {
                self.ahead = None;
                None
            }
        }
    }

    /// Rows and journal of the folder that it makes of what it has, and of the rest.
    fn take(&mut self, pool: &Pool) -> Result<(Rows, Vec<u8>), String> {
        let ahead = self.ahead.take().unwrap();
        let found = Importable::look_behind(POOL, &pool.areas(), Some(&ahead));
        let found = found.map_err(|error| error.to_string())?;
        assert_eq!(
            *found.identity(),
            *Importable::look(POOL, &pool.areas()).unwrap().identity()
        );
        let written = found.write_behind(ahead, found.identity());
        let folder = written.map_err(|error| error.to_string())?;
        assert_eq!(folder, self.folder());
        let entries = std::fs::read_dir(self.dir.path()).unwrap().count();
        assert_eq!(entries, 1, "nothing is left beside it");
        Ok((rows(&folder), ring(&folder)))
    }
}

#[test]
fn a_standby_that_follows_has_what_one_has_that_reads_all_of_it() {
    let (pool, open) = Pool::joined(2);
    open.store.apply(&batch(1, 3)).unwrap();
    let mut standby = Standby::new();
    standby.begin(&pool);
    assert_eq!(standby.follow(&pool), Some(1));
    open.store.apply(&batch(2, 4)).unwrap();
    open.store.put_settings(&setting("a", b"one")).unwrap();
    assert_eq!(standby.follow(&pool), Some(2));
    assert_eq!(standby.follow(&pool), Some(0));
    // A new base changes nothing for it.
    open.copies.join(&[]).unwrap();
    open.store.put_settings(&setting("b", b"two")).unwrap();
    assert_eq!(standby.follow(&pool), Some(1));
    // Neither does another owner that goes on with the drives.
    drop(open);
    let open = pool.open();
    open.store.put_settings(&setting("a", b"three")).unwrap();
    assert_eq!(standby.follow(&pool), Some(1));
    let mut newest = identity();
    newest.add_drive(DriveSpec::new("another", 1 << 20));
    open.copies
        .set_identity(&newest.to_text().unwrap())
        .unwrap();
    // The rest is made when it takes the pool.
    open.store.apply(&batch(3, 5)).unwrap();
    drop(open);
    assert!(standby.take(&pool).unwrap().0 == pool.in_folder().0);
    let identity = std::fs::read(standby.folder().join("pool.toml")).unwrap();
    let path = Path::new("pool.toml");
    assert_eq!(PoolIdentity::parse(path, &identity).unwrap(), newest);
}

#[test]
fn a_standby_has_the_records_of_the_journal_that_an_opening_reads() {
    let (pool, open) = Pool::joined(2);
    let mut standby = Standby::new();
    standby.begin(&pool);
    let media = Arc::new(JournalOnDrives::new(open.copies.clone()));
    let mut journal = Journal::create(media, 0, JournalConfig::default()).unwrap();
    let record = |n: u8| Record::Settings(setting("n", &[n]));
    for n in 0..200 {
        journal.append([&record(n)]).unwrap();
    }
    journal.sync().unwrap();
    drop((journal, open));
    standby.take(&pool).unwrap();
    let records = |folder: &Path| {
        let media = Arc::new(FileMedia::open(&folder.join("journal"), POOL).unwrap());
        let store = RocksStore::open(&folder.join("metadata"), POOL, RocksOptions::default());
        let checkpoint = store.unwrap().checkpoint().unwrap();
        Journal::open(media, checkpoint, JournalConfig::default())
            .unwrap()
            .1
    };
    let found = records(&standby.folder());
    assert_eq!(found.len(), 200);
    assert_eq!(found, records(pool.dir.path()));
}

#[test]
fn a_folder_that_was_made_ahead_goes_on_with_the_drives() {
    let (mut pool, open) = Pool::joined(2);
    let mut standby = Standby::new();
    standby.begin(&pool);
    open.store.apply(&batch(1, 3)).unwrap();
    drop(open);
    standby.take(&pool).unwrap();
    let folder = standby.folder();
    pool.dir = tempfile::tempdir().unwrap();
    for name in ["metadata", "journal"] {
        std::fs::rename(folder.join(name), pool.dir.path().join(name)).unwrap();
    }
    let open = pool.open();
    let drives = open.copies.state().drives;
    assert_eq!(drives.len(), 2, "nothing is copied anew");
    open.store.apply(&batch(2, 3)).unwrap();
    drop(open);
    assert_eq!(pool.import(&[0, 1]).unwrap(), pool.in_folder());
}

#[test]
fn a_standby_that_is_too_far_behind_or_that_follows_another_log_begins_anew() {
    let (pool, open) = Pool::joined(1);
    let mut standby = Standby::new();
    standby.begin(&pool);
    // More than the log has room for.
    for change in 0..600 {
        let mut value = vec![0; 60 << 10];
        getrandom::fill(&mut value).unwrap();
        let key = format!("a{:02}", change % 7);
        open.store.put_settings(&setting(&key, &value)).unwrap();
        if change % 50 == 0 {
            open.copies.join(&[]).unwrap();
        }
    }
    assert_eq!(standby.follow(&pool), None);
    standby.begin(&pool);
    standby.follow(&pool).unwrap();
    // A folder that the drives know nothing of: all is copied anew.
    open.copies.leave(0).unwrap();
    open.copies.join(&pool.areas()).unwrap();
    open.store.put_settings(&setting("z", b"later")).unwrap();
    if standby.follow(&pool).is_none() {
        standby.begin(&pool);
    }
    assert!(standby.take(&pool).unwrap().0 == pool.in_folder().0);
}

#[test]
fn what_not_all_drives_have_is_not_followed_and_what_was_made_ahead_of_it_is_not_used() {
    let (pool, open) = Pool::joined(2);
    let mut standby = Standby::new();
    standby.begin(&pool);
    open.store.put_settings(&setting("a", b"both")).unwrap();
    assert_eq!(standby.follow(&pool), Some(1));
    // One of two has the change.
    let superblock = layout::Superblock::read(&*pool.areas[0]).unwrap().unwrap();
    let position = standby.ahead.as_ref().unwrap().next();
    let change = change::encode_settings(&setting("a", b"one of them"));
    for (block, bytes) in log::frame(&superblock.layout, position, &change) {
        pool.areas[0].write(block, bytes).wait().unwrap();
    }
    assert_eq!(standby.follow(&pool), Some(0));
    // Another change is at that position in the end.
    drop(open);
    let open = pool.open_with(&pool.areas_of(&[1]));
    open.store
        .put_settings(&setting("a", b"the other"))
        .unwrap();
    drop(open);
    let open = pool.open();
    open.copies.join(&pool.areas()).unwrap();
    if standby.follow(&pool).is_none() {
        standby.begin(&pool);
    }
    drop(open);
    assert!(standby.take(&pool).unwrap().0 == pool.in_folder().0);
}

#[test]
fn a_folder_of_an_older_standby_is_not_needed_and_one_that_is_not_wanted_leaves_nothing() {
    let (pool, open) = Pool::joined(1);
    open.store.apply(&batch(1, 3)).unwrap();
    let mut standby = Standby::new();
    let given_up = Ahead::begin(POOL, &pool.areas(), &standby.folder(), &|| false);
    assert!(given_up.is_err());
    assert_eq!(std::fs::read_dir(standby.dir.path()).unwrap().count(), 0);
    standby.begin(&pool);
    standby.ahead = None;
    assert_eq!(std::fs::read_dir(standby.dir.path()).unwrap().count(), 0);
    // What a standby left that was killed.
    standby.begin(&pool);
    let (left, kept) = (
        standby.dir.path().join("pool.ahead"),
        pool.dir.path().join("kept"),
    );
    let copied = std::process::Command::new("cp")
        .arg("-r")
        .args([&left, &kept])
        .status();
    assert!(copied.unwrap().success());
    standby.ahead = None;
    std::fs::rename(kept, left).unwrap();
    standby.begin(&pool);
    drop(open);
    assert!(standby.take(&pool).unwrap().0 == pool.in_folder().0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Whenever a standby looks, and whatever owners do in between.
    #[test]
    fn whenever_a_standby_looks_it_has_what_one_has_that_reads_all(
        steps in prop::collection::vec((step(), 0..3_u8), 1..30),
    ) {
        let (pool, mut open) = Pool::joined(2);
        let mut standby = Standby::new();
        standby.begin(&pool);
        let mut next_batch = 1;
        for (step, looks) in steps {
            match step {
                Step::Setting(value) => open.store.put_settings(&setting("n", &[value])).unwrap(),
                Step::Batch(seed) => {
                    open.store.apply(&batch(next_batch, seed)).unwrap();
                    next_batch += 1;
                }
                Step::Append(value) => {
                    let offset = u64::from(value) * 61;
                    open.journal.append_at(1, offset, &value.to_le_bytes()).unwrap();
                }
                Step::Sync => open.journal.sync().unwrap(),
                Step::Reopen => {
                    drop(open);
                    open = pool.open();
                }
                Step::Base => open.copies.join(&[]).unwrap(),
                Step::Leave(drive) if open.copies.state().drives.len() > 1 => {
                    open.copies.leave(drive).unwrap();
                }
                Step::Leave(_) => {}
                Step::Join => open.copies.join(&pool.areas()).unwrap(),
            }
            if looks == 0 && standby.follow(&pool).is_none() {
                standby.begin(&pool);
            }
        }
        drop(open);
        let expected = pool.import(&[0, 1]).unwrap();
        if standby.follow(&pool).is_none() {
            standby.begin(&pool);
        }
        prop_assert_eq!(standby.take(&pool).unwrap().0, expected.0);
    }
}
