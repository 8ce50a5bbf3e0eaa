//! Records survive their encoding, and nothing else is taken for a record.

mod common;

use meta::{MAP_ENTRIES_MAX, Record, UNMAP_ENTRIES_MAX};
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn every_record_reads_back(record in common::record()) {
        let mut bytes = Vec::new();
        record.encode(&mut bytes);
        prop_assert_eq!(bytes.len(), record.encoded_len());
        prop_assert_eq!(Record::decode(record.kind(), &bytes), Ok(record));
    }

    #[test]
    fn forks_and_rollbacks_of_programs_whose_maps_inherit_page_by_page_are_read(
        record in common::record(),
    ) {
        let kind = match record.kind() {
            18 => 13,
            19 => 15,
            kind => kind,
        };
        let mut bytes = Vec::new();
        record.encode(&mut bytes);
        prop_assert_eq!(Record::decode(kind, &bytes), Ok(record));
    }

    #[test]
    fn random_bytes_never_panic_and_have_one_encoding(
        kind in 0u8..10,
        bytes in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        if let Ok(record) = Record::decode(kind, &bytes) {
            let mut again = Vec::new();
            record.encode(&mut again);
            prop_assert_eq!(again, bytes);
        }
    }

    #[test]
    fn a_mutated_record_is_refused_or_is_another_record(
        record in common::record(),
        at in any::<prop::sample::Index>(),
        mask in 1u8..=255,
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = Vec::new();
        record.encode(&mut bytes);
        let index = at.index(bytes.len());
        bytes[index] ^= mask;
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        if let Ok(other) = Record::decode(record.kind(), &bytes) {
            prop_assert_ne!(other, record);
        }
    }
}

#[test]
fn a_count_that_cannot_be_true_reserves_no_memory() {
    let mut map = vec![0; 12];
    map.extend_from_slice(&u32::MAX.to_le_bytes());
    assert!(Record::decode(1, &map).is_err());
    let mut unmap = vec![0; 4];
    unmap.extend_from_slice(&u32::MAX.to_le_bytes());
    assert!(Record::decode(2, &unmap).is_err());
}

#[test]
fn the_largest_records_fit_the_usual_limit_of_a_payload() {
    let entry = meta::MapEntry {
        old: Some(meta::Pba(1)),
        new: Some(meta::NewBlock {
            pba: meta::Pba(2),
            fingerprint: meta::Fingerprint([3; 16]),
            crc32c: 4,
        }),
    };
    let map = Record::Map {
        map: 1,
        start: 0,
        entries: vec![entry; MAP_ENTRIES_MAX],
    };
    let unmap = Record::Unmap {
        map: 1,
        entries: vec![(1, meta::Pba(1)); UNMAP_ENTRIES_MAX],
    };
    let limit = meta::JournalConfig::default().payload_bytes_max as usize;
    for record in [map, unmap] {
        assert!(record.encoded_len() <= limit);
        let mut bytes = Vec::new();
        record.encode(&mut bytes);
        assert_eq!(Record::decode(record.kind(), &bytes), Ok(record));
    }
}

#[test]
fn a_range_of_sub_blocks_that_overflows_is_refused() {
    let record = Record::Map {
        map: 1,
        start: u64::MAX,
        entries: vec![meta::MapEntry {
            old: None,
            new: None,
        }],
    };
    let mut bytes = Vec::new();
    record.encode(&mut bytes);
    assert!(Record::decode(1, &bytes).is_err());
}
