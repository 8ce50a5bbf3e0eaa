//! Which parts of a volume changed when.
//!
//! Guarantee: whoever saw a mapping of a range, with the range locked, finds here a record that is not before the one that
//! made it. So in a pool that writes through, a host reads only what is durable: the read waits until that record is.
//!
//! Parts that are far apart share a number. A read may wait for a change of another part then, and never for too few.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use meta::{Record, RecordRef};

use crate::metadata::state::State;
use crate::metadata::volume::VolumeCore;

/// Sub-blocks of a region: 128 KiB.
const REGION: u64 = 32;
/// Numbers; regions that are this far apart share one.
const NUMBERS: usize = 4096;

/// The last records that changed a volume, by region.
#[derive(Default)]
pub(crate) struct LastChanges {
    /// Of the whole volume.
    whole: AtomicU64,
    /// Made by the first change; pools that do not write through have none.
    regions: OnceLock<Box<[AtomicU64]>>,
}

/// The numbers of the regions of a range; each once.
fn numbers(first: u64, end: u64) -> impl Iterator<Item = usize> {
    let regions = first / REGION..end.div_ceil(REGION);
    regions
        .take(NUMBERS)
        .map(|region| (region % NUMBERS as u64) as usize)
}

impl LastChanges {
    /// A record changes a range. It is called before the change is seen.
    fn changed(&self, first: u64, end: u64, record: u64) {
        let make = || (0..NUMBERS).map(|_| AtomicU64::new(0)).collect();
        let regions = self.regions.get_or_init(make);
        for at in numbers(first, end) {
            regions[at].fetch_max(record, Ordering::Release);
        }
    }

    /// A record changes all of the volume.
    fn changed_whole(&self, record: u64) {
        self.whole.fetch_max(record, Ordering::Release);
    }

    /// No record after this one has changed the range.
    pub(crate) fn of(&self, first: u64, end: u64) -> u64 {
        let whole = self.whole.load(Ordering::Acquire);
        let Some(regions) = self.regions.get() else {
            return whole;
        };
        let of_regions = numbers(first, end).map(|at| regions[at].load(Ordering::Acquire));
        of_regions.fold(whole, u64::max)
    }
}

impl State {
    /// Notes what a record changes of volumes, before it is installed. It is not after the record `last`.
    pub(crate) fn note_changes(&self, record: RecordRef<'_>, last: u64) {
        let volume = |id: &u32| self.volumes.get(id).map(|entry| &*entry.core);
        let whole = |core: Option<&VolumeCore>| {
            if let Some(core) = core {
                core.last_changes.changed_whole(last);
            }
        };
        if let Some((map, start, entries)) = record.as_map() {
            if let Some(entry) = self.volume_of(map) {
                let end = start + entries.len() as u64;
                entry.core.last_changes.changed(start, end, last);
            }
            return;
        }
        match record.as_other() {
            Some(Record::Unmap { map, entries } | Record::Hide { map, entries }) => {
                if let Some(entry) = self.volume_of(*map) {
                    let changes = &entry.core.last_changes;
                    entries
                        .iter()
                        .for_each(|(at, _)| changes.changed(*at, at + 1, last));
                }
            }
            // What was being trimmed before reads as zeros already.
            Some(Record::Trimming { id, ranges }) => {
                if let Some(entry) = self.volumes.get(id) {
                    let known = &entry.info.trimming;
                    let is_new = |(first, end): &&(u64, u64)| {
                        !known.iter().any(|old| old.0 <= *first && *end <= old.1)
                    };
                    for (first, end) in ranges.iter().filter(is_new) {
                        entry.core.last_changes.changed(*first, *end, last);
                    }
                }
            }
            Some(Record::Rollback { volume: id, .. } | Record::VolumeResize { id, .. }) => {
                whole(volume(id));
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_has_the_last_record_of_its_parts_and_of_the_whole() {
        let changes = LastChanges::default();
        assert_eq!(changes.of(0, u64::MAX), 0);
        changes.changed(40, 41, 7);
        changes.changed(30, 34, 5);
        assert_eq!(changes.of(0, 1), 5);
        assert_eq!(changes.of(63, 64), 7);
        assert_eq!(changes.of(0, 64), 7);
        assert_eq!(changes.of(64, 65), 0);
        changes.changed_whole(6);
        assert_eq!(changes.of(64, 65), 6);
        assert_eq!(changes.of(0, 64), 7);
    }

    #[test]
    fn a_range_longer_than_all_numbers_is_told_of_every_part() {
        let changes = LastChanges::default();
        let wrap = REGION * NUMBERS as u64;
        changes.changed(5 * wrap + 3, 9 * wrap, 4);
        for at in [0, 1, wrap - 1, 100 * wrap] {
            assert_eq!(changes.of(at, at + 1), 4);
        }
    }
}
