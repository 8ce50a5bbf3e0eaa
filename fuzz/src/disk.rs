//! What a pool finds on its drives and in its folder: labels, journal, rows, identity.
//!
//! Everything there carries a checksum, which random bytes never match. So each target also makes the
//! checksum right and tries again.

use std::path::Path;
use std::sync::Arc;

use crc_fast::{CrcAlgorithm, checksum};
use meta::{
    BatchBuilder, Checkpoint, DriveSpec, FileMedia, FingerprintFunction, Journal, JournalConfig,
    JournalMedia, LABEL_BYTES, Label, LabelError, MAP_ENTRIES_MAX, MemoryMedia, MemoryStore,
    PoolIdentity, Position, Record, Row, SpareSpec, Store, TRIMMING_RANGES_MAX, UNMAP_ENTRIES_MAX,
};
use uuid::Uuid;

use crate::input::Input;

fn crc32c(bytes: &[u8]) -> [u8; 4] {
    (checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32).to_le_bytes()
}

/// Kinds that older programs wrote, and what they are read as: forks and rollbacks of maps that inherit page by page.
const KINDS_OF_OLDER_PROGRAMS: [(u8, u8); 2] = [(13, 18), (15, 19)];

/// A kind byte and the payload of a record.
pub(crate) fn record(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let kind = input.u8();
    let payload = input.rest();
    let Ok(record) = Record::decode(kind, payload) else {
        return;
    };
    let kind_now = KINDS_OF_OLDER_PROGRAMS
        .iter()
        .find(|(older, _)| *older == kind)
        .map_or(kind, |(_, now)| *now);
    assert_eq!(record.kind(), kind_now);
    match &record {
        Record::Map { entries, .. } => assert!(entries.len() <= MAP_ENTRIES_MAX),
        Record::Unmap { entries, .. } => assert!(entries.len() <= UNMAP_ENTRIES_MAX),
        Record::Trimming { ranges, .. } => assert!(ranges.len() <= TRIMMING_RANGES_MAX),
        _ => {}
    }
    // There is only one encoding of a record.
    let mut again = Vec::new();
    record.encode(&mut again);
    assert_eq!(again, payload);
    assert_eq!(record.encoded_len(), payload.len());
    let position = Position { seq: 2, offset: 0 };
    let checkpoint = Checkpoint {
        position,
        epoch: 1,
        last_epoch: None,
    };
    let _ = BatchBuilder::from_records(&[(1, record)], checkpoint);
}

/// Bytes of a journal's payload and reserve: small, so that a ring goes round often.
const JOURNAL: JournalConfig = JournalConfig {
    payload_bytes_max: 512,
    reserve_bytes: 256,
};
const RING_BYTES: usize = 2048;

/// A journal: where the checkpoint stands, then frames, each with a right checksum, that lie in the
/// ring one after the other; what is left of the input lies behind them as it is.
pub(crate) fn journal(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut checkpoint = Checkpoint {
        position: Position {
            seq: match input.u8() {
                0 => input.u64(),
                seq => u64::from(seq),
            },
            offset: u64::from(input.u8()) * 8,
        },
        epoch: u32::from(input.u8()),
        last_epoch: None,
    };
    let shape = input.u8();
    let frames = shape & 31;
    // Of a record before them, which the first frame may be or not.
    checkpoint.last_epoch = (shape & 32 != 0).then_some(checkpoint.epoch);
    let media = MemoryMedia::new(RING_BYTES as u64);
    let mut at = checkpoint.position.offset as usize;
    let mut seq = checkpoint.position.seq;
    for _ in 0..frames {
        let kind = input.u8();
        let epoch = checkpoint.epoch.wrapping_add(u32::from(input.u8() & 1));
        seq = seq.wrapping_add(u64::from(input.u8() & 3));
        let stable = seq.wrapping_sub(u64::from(input.u8()));
        let len = usize::from(input.u8());
        let frame = frame(kind, epoch, seq, stable, input.bytes(len));
        if at + frame.len() > RING_BYTES {
            at = 0;
        }
        put(&media, at, &frame);
        at += frame.len();
        seq = seq.wrapping_add(1);
    }
    put(&media, at.min(RING_BYTES), input.rest());
    open(Arc::new(media), checkpoint);
}

/// A frame as `meta/src/journal/frame.rs` describes it.
fn frame(kind: u8, epoch: u32, seq: u64, stable: u64, payload: &[u8]) -> Vec<u8> {
    let mut content = Vec::new();
    content.extend((payload.len() as u32).to_le_bytes());
    content.extend(epoch.to_le_bytes());
    content.extend([kind, 0, 0, 0]);
    content.extend(seq.to_le_bytes());
    content.extend(stable.to_le_bytes());
    content.extend(payload);
    content.resize((content.len() + 4).next_multiple_of(8) - 4, 0);
    let mut frame = crc32c(&content).to_vec();
    frame.extend(content);
    frame
}

fn put(media: &MemoryMedia, at: usize, bytes: &[u8]) {
    let bytes = &bytes[..bytes.len().min(RING_BYTES - at)];
    media.write_at(at as u64, bytes).expect("it fits");
}

/// Opens a journal as a pool does: replay, apply, begin, append, and once more.
fn open(media: Arc<MemoryMedia>, checkpoint: Checkpoint) {
    let Ok((mut journal, records)) = Journal::open(media.clone(), checkpoint, JOURNAL) else {
        return;
    };
    let mut expected = checkpoint.position.seq;
    for (seq, _) in &records {
        assert_eq!(*seq, expected, "a gap");
        expected += 1;
    }
    assert_eq!(journal.position().seq, expected);
    assert!(journal.used_bytes() <= journal.capacity_bytes());
    let Some(begun) = journal.next_checkpoint() else {
        return;
    };
    if let Ok(batch) = BatchBuilder::from_records(&records, begun) {
        // The store may find that the records make no sense, but must say so.
        let _ = MemoryStore::new().apply(&batch);
    }
    journal.begin(begun).expect("as the journal itself says");
    let durable = Record::Durable { upto: 0 };
    let appended = journal
        .append(std::slice::from_ref(&durable))
        .expect("there is room for it in an empty ring");
    assert_eq!(appended.first, expected);
    drop(journal);
    let (_, again) = Journal::open(media, begun, JOURNAL).expect("what was begun opens");
    assert_eq!(again, [(expected, durable)], "and holds what was appended");
}

/// A row of the store, or a change of one: the length of its key, the key, the value.
pub(crate) fn row(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let len = usize::from(input.u8() & 31);
    let (key, value) = (input.bytes(len), input.rest());
    if let Ok(row) = Row::decode(key, value) {
        let (same_key, only) = row.encode();
        assert_eq!(same_key, key);
        match row {
            // They may be divided into other runs than this program's.
            Row::Blocks(_) | Row::Mappings { .. } => {
                let merged = Row::merge(key, Some(value), &[], true);
                assert_eq!(merged.as_ref(), Some(&only));
                assert_eq!(Row::decode(key, &only), Ok(row));
            }
            _ => assert_eq!(only, value),
        }
    }
    // What RocksDB may merge, it can merge in any order, and with any row.
    if let Some(change) = Row::merge(key, None, &[value], false) {
        let again = Row::merge(key, None, &[&change], false);
        assert_eq!(again.as_ref(), Some(&change), "a change has one encoding");
        assert_eq!(Row::merge(key, None, &[value, value], false), Some(change));
        let row = Row::merge(key, None, &[value], true).expect("it makes sense");
        if row.is_empty() {
            return;
        }
        assert_eq!(
            Row::merge(key, Some(&row), &[value], true),
            Some(row.clone())
        );
        if let Ok(decoded) = Row::decode(key, &row) {
            assert_eq!(decoded.encode(), (key.to_vec(), row));
        }
    }
}

/// The two copies of a drive's label, and the header of a journal file.
pub(crate) fn label(bytes: &[u8]) {
    let right = |bytes: &[u8], crc_at: usize| {
        let mut block = bytes.to_vec();
        block.resize(LABEL_BYTES, 0);
        let crc = crc32c(&block[..crc_at]);
        block[crc_at..crc_at + 4].copy_from_slice(&crc);
        block
    };
    let raw = Label::decode(bytes);
    let block = right(bytes, LABEL_BYTES - 4);
    for copy in [bytes, &block] {
        if let Ok(label) = Label::decode(copy) {
            assert_eq!(Label::decode(&label.encode()).as_ref(), Ok(&label));
            let newer = Label {
                sequence: label.sequence.saturating_add(1),
                ..label.clone()
            };
            let chosen = Label::choose(copy, &newer.encode()).expect("two labels");
            // A label of the first version has no number.
            let is_first = newer.opening.is_none() || newer.sequence == label.sequence;
            assert_eq!(chosen.label, if is_first { label } else { newer });
            assert_eq!(
                (chosen.next_copy, chosen.is_half),
                (usize::from(is_first), false)
            );
        }
    }
    assert!(raw.is_ok() || Label::choose(bytes, &[]).is_err());
    assert_ne!(
        Label::decode(&block),
        Err(LabelError::Blank),
        "it has a checksum"
    );
    let name = Path::new("journal");
    let _ = FileMedia::check_header(name, bytes, Uuid::nil());
    let header = right(bytes, 36);
    let pool = Uuid::from_slice(&header[12..28]).expect("16 bytes");
    if let Ok(ring_bytes) = FileMedia::check_header(name, &header, pool) {
        assert!(
            ring_bytes.checked_add(4096).is_some(),
            "a file that cannot be"
        );
    }
}

/// A `pool.toml`; and an identity made from the same bytes, which must survive its file.
pub(crate) fn pool(bytes: &[u8]) {
    let name = Path::new("pool.toml");
    if let Ok(identity) = PoolIdentity::parse(name, bytes) {
        let text = identity.to_text().expect("what was read can be written");
        let again = PoolIdentity::parse(name, text.as_bytes()).expect("and read again");
        assert_eq!(again, identity);
    }
    let mut input = Input::new(bytes);
    let mut hash_key = [0; 32];
    let taken = input.bytes(32);
    hash_key[..taken.len()].copy_from_slice(taken);
    let identity = PoolIdentity {
        uuid: Uuid::from_u128(input.u128()),
        sub_block_bytes: 1_u32.rotate_left(u32::from(input.u8())),
        fingerprint: match hash_key[0] & 1 {
            0 => FingerprintFunction::Blake3,
            _ => FingerprintFunction::Clnh,
        },
        hash_keys: hash_key.into(),
        drives: (0..input.u8() & 3)
            .map(|number| DriveSpec {
                uuid: Uuid::from_u128(input.u128()),
                blocks: u64::from(input.u32()) << (input.u8() & 31),
                path: {
                    let len = usize::from(input.u8() & 63);
                    String::from_utf8_lossy(input.bytes(len))
                        .into_owned()
                        .into()
                },
                domain: match input.u8() & 1 {
                    0 => None,
                    _ => Some("psu-a".to_owned()),
                },
                metadata_blocks: u64::from(number == 1) << 14,
                is_removed: number == 2,
            })
            .collect(),
        spares: (0..input.u8() & 1)
            .map(|_| SpareSpec {
                path: "spare".into(),
                domain: None,
            })
            .collect(),
    };
    let text = identity.to_text().expect("paths are text");
    if let Ok(again) = PoolIdentity::parse(name, text.as_bytes()) {
        assert_eq!(again, identity);
    }
}
