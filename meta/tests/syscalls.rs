//! What a journal in a file asks of the kernel, seen from outside by strace, and what it makes of a refusal.

#[path = "../../drives/tests/strace/mod.rs"]
mod strace;

use std::path::Path;
use std::sync::Arc;

use meta::{Checkpoint, FileMedia, Journal, JournalConfig, JournalError, JournalMedia, Record};
use uuid::Uuid;

const RING_BYTES: u64 = 4 << 20;
const POOL: Uuid = Uuid::from_u128(7);

/// What the test `name` synced of its journal under strace.
fn syncs(name: &str, faults: &[&str]) -> Vec<String> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("journal");
    strace::run(name, folder.path(), &path, "fdatasync,fsync", faults)
        .into_iter()
        // The new file is synced with fsync, once, when it is made.
        .filter(|line| line.contains("fdatasync("))
        .collect()
}

fn made(folder: &Path) -> Arc<FileMedia> {
    Arc::new(FileMedia::create(&folder.join("journal"), POOL, RING_BYTES).expect("made"))
}

fn journal(folder: &Path) -> Journal {
    Journal::create(made(folder), 1, JournalConfig::default()).expect("made")
}

#[test]
fn a_sync_of_the_journal_syncs_the_data_of_its_file() {
    let Some(folder) = strace::folder() else {
        let syncs = syncs("a_sync_of_the_journal_syncs_the_data_of_its_file", &[]);
        assert_eq!(syncs.len(), 3, "{syncs:?}");
        assert!(syncs.iter().all(|line| line.ends_with("= 0")), "{syncs:?}");
        return;
    };
    let media = made(&folder);
    media.write_at(0, b"x").expect("written");
    media.sync().expect("synced");
    let mut journal = Journal::create(media.clone(), 1, JournalConfig::default()).expect("made");
    journal
        .append([&Record::Durable { upto: 0 }])
        .expect("written");
    assert_eq!(journal.sync().expect("synced"), 1);
    drop(journal);
    // A later process makes stable what it found.
    let stored = Checkpoint {
        epoch: 1,
        ..Checkpoint::EMPTY
    };
    let (journal, replayed) =
        Journal::open(media, stored, JournalConfig::default()).expect("opened");
    assert_eq!(replayed.len(), 1);
    journal.settle().expect("synced");
}

#[test]
fn a_journal_whose_sync_failed_once_is_never_called_stable_again() {
    let Some(folder) = strace::folder() else {
        let syncs = syncs(
            "a_journal_whose_sync_failed_once_is_never_called_stable_again",
            &["fdatasync:error=EIO:when=1"],
        );
        assert_eq!(syncs.len(), 1, "the kernel is not asked again: {syncs:?}");
        return;
    };
    let mut journal = journal(&folder);
    journal
        .append([&Record::Durable { upto: 0 }])
        .expect("written");
    // A sync that was prepared before the first one failed, and runs after it.
    let late = journal.prepare_sync().expect("in use");
    let error = journal.sync().expect_err("the kernel refused");
    assert!(matches!(&error, JournalError::Io { .. }), "{error}");
    let late = late.run();
    assert!(journal.finish_sync(late).is_err(), "a write was lost");
    assert!(journal.sync().is_err(), "a write was lost");
    assert!(journal.append([&Record::Durable { upto: 0 }]).is_err());
}
