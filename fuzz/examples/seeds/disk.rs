//! What lies on drives and in a pool's folder: records, journals, rows, labels, and what a pool is.

use std::path::Path;

use meta::{
    BlockRow, Checkpoint, Compression, DriveLabel, DriveSpec, Fingerprint, FingerprintFunction,
    Label, MapEntry, NewBlock, Opening, Pba, PoolIdentity, Position, Record, Row, VerifyPolicy,
    VolumeInfo, VolumePolicy, VolumeState,
};
use uuid::Uuid;

use super::Seeds;

fn volume() -> VolumeInfo {
    VolumeInfo {
        snapshot: None,
        id: 7,
        map: 7,
        name: "vol0".into(),
        nsid: 1,
        uuid: Uuid::from_u128(1),
        nguid: [2; 16],
        size_bytes: 1 << 30,
        lba_bytes: 4096,
        state: VolumeState::Active,
        dedup: true,
        verify: meta::VerifyPolicy::Compare,
        domain: "tenant".into(),
        trimming: vec![(0, 9), (1000, 2000)],
        compression: meta::Compression::Zstd,
    }
}

fn records() -> Vec<Record> {
    let new = NewBlock {
        pba: Pba::new(1, 77),
        fingerprint: Fingerprint([9; 16]),
        crc32c: 0x1234_5678,
    };
    let old = Some(Pba::new(0, 5));
    vec![
        Record::VolumeCreate(volume()),
        Record::Map {
            map: 7,
            start: 3,
            entries: vec![
                MapEntry {
                    old,
                    new: Some(new),
                },
                MapEntry {
                    old: None,
                    new: Some(new),
                },
                MapEntry { old, new: None },
            ],
        },
        Record::Unmap {
            map: 7,
            entries: vec![(3, Pba::new(1, 77)), (4, Pba::new(1, 77))],
        },
        Record::VolumeResize {
            id: 7,
            size_bytes: 2 << 30,
            trimming: vec![(5, 7)],
        },
        Record::VolumeRename {
            id: 7,
            name: "other".to_owned(),
        },
        Record::VolumePolicy {
            id: 7,
            policy: VolumePolicy {
                dedup: false,
                verify: VerifyPolicy::Background,
                compression: Compression::Zstd,
            },
        },
        Record::Trimming {
            id: 7,
            ranges: Vec::new(),
        },
        Record::Settings(
            [
                ("gone".to_owned(), None),
                ("name".to_owned(), Some(b"value".to_vec())),
            ]
            .into(),
        ),
        Record::Durable { upto: 4 },
        Record::VolumeDelete { id: 7 },
        Record::VolumeGone { id: 7 },
    ]
}

pub(super) fn add(seeds: &mut Seeds) {
    // Checkpoint: record 1 at byte 0, epoch 1; then the number of frames.
    let mut journal = vec![1, 0, 1, records().len() as u8];
    for record in records() {
        let mut payload = Vec::new();
        record.encode(&mut payload);
        let mut input = vec![record.kind()];
        input.extend(&payload);
        seeds.add("record", format!("kind-{}", record.kind()), input);
        // Kind, epoch, skipped sequence numbers, distance of what is stable, length.
        journal.extend([record.kind(), 0, 0, 1, payload.len() as u8]);
        journal.extend(payload);
    }
    seeds.add("journal", "each-kind".into(), journal.clone());
    journal[3] = 3;
    seeds.add("journal", "torn".into(), journal);
    // Near the end of the ring: a frame that sends the reader to its beginning.
    let mut wrapped = vec![9, 253, 2, 3, 0xff, 0, 0, 1, 0];
    for _ in 0..2 {
        wrapped.extend([7, 0, 0, 1, 8, 1, 0, 0, 0, 0, 0, 0, 0]);
    }
    seeds.add("journal", "wrapped".into(), wrapped);

    let checkpoint = Checkpoint {
        position: Position { seq: 9, offset: 64 },
        epoch: 3,
        last_epoch: None,
    };
    let block = BlockRow {
        refcount: 2,
        fingerprint: Fingerprint([9; 16]),
        crc32c: 5,
        has_index_entry: false,
    };
    let blocks = [77, 79, 127].map(|number| (Pba::new(1, number), block));
    let blocks = Row::Blocks(blocks.to_vec());
    // Runs with fingerprints, and without.
    let block_runs = (64..70).map(|number| {
        let mut row = block;
        if number > 66 {
            row.fingerprint = Fingerprint::NONE;
        }
        (Pba::new(1, number), row)
    });
    let block_runs = Row::Blocks(block_runs.collect());
    let mapping = meta::Mapping {
        pba: Pba::new(1, 77),
        crc32c: 5,
    };
    let mappings = Row::Mappings {
        map: 7,
        mappings: [64, 66, 100].map(|number| (number, mapping)).to_vec(),
    };
    // Runs of addresses that rise, and of the same one.
    let mapping_runs = (64..70).map(|number| {
        let pba = Pba::new(1, 77 + number.min(67));
        (number, meta::Mapping { pba, crc32c: 5 })
    });
    let mapping_runs = Row::Mappings {
        map: 7,
        mappings: mapping_runs.collect(),
    };
    let mut totals = meta::Totals::default();
    totals.add_mapping(7);
    totals.add_block(Pba::new(1, 77));
    let format = |version| Row::Format {
        pool: Uuid::from_u128(1),
        version,
    };
    for (name, row) in [
        // Without forks, with forks; of older programs.
        ("format-7", format(7)),
        ("format-8", format(8)),
        ("format", format(4)),
        ("format-5", format(5)),
        ("format-6", format(6)),
        ("checkpoint", Row::Checkpoint(checkpoint)),
        ("volume", Row::Volume(volume())),
        ("blocks", blocks),
        ("mappings", mappings),
        ("blocks-runs", block_runs),
        ("mappings-runs", mapping_runs),
        (
            "setting",
            Row::Setting("subsystem/nqn".into(), b"{}".to_vec()),
        ),
        ("totals", Row::Totals(totals)),
    ] {
        let (key, value) = row.encode();
        let mut input = vec![key.len() as u8];
        input.extend(key);
        input.extend(value);
        seeds.add("row", name.into(), input);
    }
    let mut change = vec![13, b'm'];
    change.extend(7_u32.to_be_bytes());
    change.extend(1_u64.to_be_bytes());
    change.extend([0x83, 0x84, 5]);
    change.extend([9; 12]);
    change.push(0x86);
    seeds.add("row", "change".into(), change.clone());
    // What is gone, as a run too.
    change.extend([0xC8, 3]);
    seeds.add("row", "change-runs".into(), change);
    let mut label = Label {
        drive: DriveLabel {
            pool: Uuid::from_u128(1),
            drive: Uuid::from_u128(2),
            index: 0,
            blocks: 65536,
            sub_block_bytes: 4096,
        },
        sequence: 0,
        opening: None,
    };
    // The checksum at the end is made by the target, and the zeros before it are filled up.
    seeds.add("label", "drive".into(), label.encode()[..60].to_vec());
    label.opening = Some(Opening {
        epoch: 7,
        drives: 2,
        machine: "node1".to_owned(),
        locations: Opening::in_folder(Path::new("/var/lib/onefold")),
        ..Opening::default()
    });
    seeds.add("label", "opened".into(), label.encode()[..320].to_vec());
    let mut header = b"OFJRNL\r\n".to_vec();
    header.extend(1_u32.to_le_bytes());
    header.extend(Uuid::from_u128(1).as_bytes());
    header.extend((64_u64 << 20).to_le_bytes());
    seeds.add("label", "journal".into(), header);

    let identity = PoolIdentity {
        uuid: Uuid::from_u128(1),
        sub_block_bytes: 4096,
        fingerprint: FingerprintFunction::Blake3,
        hash_keys: [7; 32].into(),
        drives: vec![
            DriveSpec {
                uuid: Uuid::from_u128(2),
                ..DriveSpec::new("drive0", 262_144)
            },
            DriveSpec {
                uuid: Uuid::from_u128(3),
                ..DriveSpec::new("/dev/disk/by-id/x", 1)
            },
        ],
        spares: Vec::new(),
    };
    let text = identity.to_text().expect("an identity");
    seeds.add("pool", "two-drives".into(), text.into_bytes());
    let clnh = PoolIdentity {
        fingerprint: FingerprintFunction::Clnh,
        ..identity
    };
    let text = clnh.to_text().expect("an identity");
    seeds.add("pool", "clnh".into(), text.into_bytes());
    let mut made = vec![7; 48];
    made.extend([12, 1]);
    made.resize(48 + 2 + 16, 3);
    made.extend([0, 0, 1, 0, 4, 6]);
    made.extend(b"drive0");
    seeds.add("pool", "made".into(), made);
}
