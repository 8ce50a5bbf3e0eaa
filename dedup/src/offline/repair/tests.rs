//! A repair that is cut off.

use drives::MemoryDrive;
use meta::{BlockChange, BlockContent, Fingerprint, MemoryMedia, MemoryStore, StoreFault};

use super::*;

/// Memory for one block of the table at a time.
const MEMORY: usize = 1;

fn parts() -> (Parts, Arc<MemoryStore>) {
    let store = Arc::new(MemoryStore::new());
    let journal_config = JournalConfig {
        payload_bytes_max: 16 << 10,
        reserve_bytes: 1 << 10,
    };
    let parts = Parts {
        labels_epoch: 0,
        trusts_checksums: false,
        drives: vec![Arc::new(MemoryDrive::new(1024))],
        journal: Arc::new(MemoryMedia::new(64 << 10)),
        journal_config,
        store: store.clone(),
        hash_keys: [3; 32].into(),
        fingerprint: FingerprintFunction::Clnh,
        boot: None,
    };
    let mut batch = Batch::checkpoint_only(store.checkpoint().unwrap());
    let leak = BlockChange {
        wants_hint: false,
        delta: 1,
        lowest: 0,
        content: Some(BlockContent {
            fingerprint: Fingerprint([7; 16]),
            crc32c: 7,
        }),
    };
    batch.blocks.insert(Pba::new(0, 3), leak);
    store.apply(&batch).unwrap();
    (parts, store)
}

#[test]
fn a_crash_in_the_middle_of_a_repair_leaves_the_pool_as_it_was_or_repaired() {
    for (fault, is_repaired) in [
        (StoreFault::CrashBefore, false),
        (StoreFault::NoSpace, false),
        (StoreFault::CrashAfter, true),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let (parts, store) = parts();
        let first = plan::make(&parts, MEMORY).unwrap();
        assert_eq!(first.report.freed_blocks, 1);
        store.fail_at(store.operations(), fault);
        apply(&parts, &first, folder.path()).unwrap_err();
        // The backup was there before anything was changed.
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);

        store.revive();
        let second = plan::make(&parts, MEMORY).unwrap();
        assert_eq!(second.report.consistent, is_repaired, "{fault:?}");
        let backup = apply(&parts, &second, folder.path()).unwrap();
        assert_eq!(backup.is_some(), !is_repaired);
        assert!(plan::make(&parts, MEMORY).unwrap().report.consistent);
        let backups = if is_repaired { 1 } else { 2 };
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), backups);
    }
}

#[test]
fn segments_that_lost_their_rows_are_placed_where_they_were_made() {
    let folder = tempfile::tempdir().unwrap();
    let (parts, store) = parts();
    let whole = segments::tests::rows_of_new(0, 768, 0);
    let mut left = whole.clone();
    left.remove(7);
    left.remove(3);
    store.put_segments(segments::names(0), &left).unwrap();
    let repair = plan::make(&parts, MEMORY).unwrap();
    assert!(!repair.report.consistent);
    assert_eq!(repair.report.placed_segments, 2);
    apply(&parts, &repair, folder.path()).unwrap();
    assert_eq!(store.segments().unwrap(), whole);
    let report = plan::make(&parts, MEMORY).unwrap().report;
    assert!(report.consistent && report.placed_segments == 0);
}
