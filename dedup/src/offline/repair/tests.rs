//! A repair that is cut off.

use drives::MemoryDrive;
use meta::{
    BlockChange, BlockContent, Compression, Fingerprint, MapChange, Mapping, MemoryMedia,
    MemoryStore, SegmentRow, StoreFault, VerifyPolicy, VolumeChange, VolumeState,
};

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
        wants_index_entry: false,
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
    let whole = crate::drive_io::layout::tests::rows_of_new(0, 768, 0);
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

#[test]
fn what_stands_for_lost_data_is_in_a_segment_that_lies_somewhere() {
    let folder = tempfile::tempdir().unwrap();
    let (parts, store) = parts();
    // The first segments lie nowhere, and a volume refers to a block of which nothing is known.
    let mut rows = crate::drive_io::layout::tests::rows_of_new(0, 768, 0);
    for (_, row) in rows.iter_mut().take(11) {
        *row = SegmentRow::unplaced(0);
    }
    store.put_segments(segments::names(0), &rows).unwrap();
    let mut batch = Batch::checkpoint_only(store.checkpoint().unwrap());
    let volume = VolumeInfo {
        id: 1,
        map: 1,
        name: "v".to_owned(),
        nsid: 1,
        uuid: Default::default(),
        nguid: [0; 16],
        size_bytes: 1 << 20,
        lba_bytes: 4096,
        state: VolumeState::Active,
        dedup: true,
        verify: VerifyPolicy::Trust,
        domain: String::new(),
        compression: Compression::Off,
        trimming: Vec::new(),
        snapshot: None,
    };
    batch.volumes.insert(1, VolumeChange::Put(volume));
    batch.maps.insert(1, Some(MapInfo::root(1)));
    let mapping = Mapping {
        pba: Pba::new(0, 11 * 64 + 5),
        crc32c: 9,
    };
    let change = MapChange {
        old: None,
        new: Some(mapping),
    };
    batch.map.insert((1, 0), change);
    store.apply(&batch).unwrap();
    let repair = plan::make(&parts, MEMORY).unwrap();
    assert_eq!(repair.report.lost_sub_blocks, 1);
    apply(&parts, &repair, folder.path()).unwrap();
    let blocks = store.blocks(Pba(0), Pba(u64::MAX), 9).unwrap();
    assert_eq!(blocks.len(), 1);
    assert_eq!(blocks[0].0.block() / 64, 11, "{:?}", blocks[0].0);
}
