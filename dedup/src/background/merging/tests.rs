//! A story of mappings that hide others and are not on stable drives yet.

use std::sync::Arc;

use drives::{BLOCK_BYTES, FaultDrive, FaultPlan};
use meta::{Journal, JournalConfig, Record};
use reactor::BufferPool;

use super::merge_slice;
use crate::LABEL_BLOCKS;
use crate::background::tests::{block_on, data, open};
use crate::log::checkpoint::checkpoint;
use crate::sync::wait::lock;

/// What the records of a journal say, in order, from some time on.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Said {
    /// All up to this record is durable.
    Durable(u64),
    /// A map loses mappings.
    Unmapped,
}

/// A parent loses what its only child hides. Whether that is before it is on stable drives, and what is said of it after
/// the last record that hides something. `is_stored`: the store has that record before.
pub(crate) fn drop_some(is_stored: bool) -> (bool, u64, Vec<Said>) {
    let pool = BufferPool::new(8 << 20).unwrap();
    let drive = FaultDrive::new(LABEL_BLOCKS + 200, FaultPlan::default());
    let (engine, volume, media) = open(vec![Arc::new(drive)], Arc::default());
    // So many records that what there is to merge is looked at again.
    let write = |content: u8| {
        for at in 0..8 {
            let (result, _) =
                block_on(volume.write(at * BLOCK_BYTES as u64, data(&pool, &[content]), false));
            result.unwrap();
        }
    };
    write(1);
    block_on(engine.create_snapshots(&["v@a"], 1)).unwrap();
    block_on(engine.delete_volume("v@a")).unwrap();
    block_on(engine.maintain()).unwrap();
    let of_parent = || {
        let state = lock(&engine.shared.state);
        let parents = state.ancestry.parents.values();
        parents.map(|parent| parent.map.mapped()).sum::<u64>()
    };
    assert_eq!(of_parent(), 8, "the volume's map has a parent");
    write(2);
    let written = lock(&engine.shared.state).last_change();
    let before = engine.shared.store.checkpoint().unwrap();
    if is_stored {
        block_on(checkpoint(&engine.shared)).unwrap();
    }
    while block_on(merge_slice(&engine.shared)).unwrap() {}
    assert_eq!(of_parent(), 0, "nothing was dropped");
    let is_early = lock(&engine.shared.state).flushed < written;
    // As who has a copy of the store that is older.
    let opened = Journal::open(media, before, JournalConfig::default());
    let records = opened.unwrap().1.into_iter();
    let said = records.filter_map(|(sequence, record)| match record {
        Record::Durable { upto } if sequence > written => Some(Said::Durable(upto)),
        Record::Unmap { .. } => Some(Said::Unmapped),
        _ => None,
    });
    (is_early, written, said.collect())
}

#[test]
fn what_hides_a_mapping_of_a_parent_is_on_stable_drives_before_that_goes() {
    assert!(!drop_some(false).0);
}

#[test]
fn an_older_copy_of_the_store_hears_from_the_journal_that_what_hides_a_mapping_is_durable() {
    for is_stored in [false, true] {
        let (_, written, said) = drop_some(is_stored);
        let at = said.iter().position(|said| *said == Said::Unmapped);
        let before = &said[..at.expect("nothing was dropped")];
        let is_told = |said: &Said| matches!(said, Said::Durable(upto) if *upto >= written);
        assert!(before.iter().any(is_told), "{is_stored}: {said:?}");
    }
}
