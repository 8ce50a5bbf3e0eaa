//! What several of the tests need. Each test program uses a part of it.
#![allow(dead_code)]

use std::collections::BTreeMap;

use meta::{
    BlockRow, Checkpoint, Compression, Fingerprint, Fork, LoadVisitor, MAP_DEPTH_MAX, MapEntry,
    MapInfo, Mapping, MetaError, NewBlock, Pba, Record, SettingChanges, SnapshotOf, Store,
    VerifyPolicy, VolumeInfo, VolumeState,
};
use proptest::prelude::*;
use rand::{Rng, RngCore};
use uuid::Uuid;

/// Seeds that a simulation runs: `ONEFOLD_SEEDS` of them, or `usual`.
pub(crate) fn seeds(usual: u64) -> std::ops::Range<u64> {
    let first = number("ONEFOLD_FIRST_SEED").unwrap_or(0);
    first..first + number("ONEFOLD_SEEDS").unwrap_or(usual)
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

pub(crate) fn pba() -> impl Strategy<Value = Pba> {
    any::<u64>().prop_map(Pba)
}

pub(crate) fn new_block() -> impl Strategy<Value = NewBlock> {
    (pba(), prop::option::of(any::<[u8; 16]>()), any::<u32>()).prop_map(
        |(pba, fingerprint, crc32c)| NewBlock {
            pba,
            fingerprint: fingerprint.map_or(Fingerprint::NONE, Fingerprint),
            crc32c,
        },
    )
}

/// Ranges as a volume has them: in order, none empty, none touching the next.
pub(crate) fn ranges() -> impl Strategy<Value = Vec<(u64, u64)>> {
    prop::collection::vec((1u64..1 << 40, 1u64..1 << 40), 0..5).prop_map(|steps| {
        let mut at = 0;
        let range = |(gap, len)| {
            let first = at + gap;
            at = first + len;
            (first, at)
        };
        steps.into_iter().map(range).collect()
    })
}

/// A volume and its map, which mostly has the same number.
fn volume_and_map() -> impl Strategy<Value = (u32, u32)> {
    prop_oneof![any::<u32>().prop_map(|id| (id, id)), any::<(u32, u32)>()]
}

fn map_info() -> impl Strategy<Value = MapInfo> {
    (any::<u32>(), any::<u32>(), 1..=MAP_DEPTH_MAX, any::<bool>()).prop_map(
        |(id, parent, depth, is_root)| match is_root || parent == id {
            true => MapInfo::root(id),
            false => MapInfo {
                id,
                parent: Some(parent),
                depth,
            },
        },
    )
}

pub(crate) fn volume_info() -> impl Strategy<Value = VolumeInfo> {
    (
        volume_and_map(),
        "[a-zé0-9-]{0,60}",
        any::<u32>(),
        any::<u128>(),
        any::<u64>(),
        any::<bool>(),
        any::<bool>(),
        prop::sample::select(&[
            VerifyPolicy::Trust,
            VerifyPolicy::Compare,
            VerifyPolicy::Background,
        ]),
        "[a-zé0-9-]{0,60}",
        prop::sample::select(&[Compression::Off, Compression::Lz4, Compression::Zstd]),
        (ranges(), prop::option::of(any::<(u32, u64)>())),
    )
        .prop_map(
            |(
                (id, map),
                name,
                nsid,
                uuid,
                size_bytes,
                deleting,
                dedup,
                verify,
                domain,
                compression,
                (trimming, snapshot),
            )| {
                let snapshot = snapshot.map(|(volume, created)| SnapshotOf { volume, created });
                VolumeInfo {
                    snapshot,
                    dedup,
                    verify,
                    domain,
                    compression,
                    trimming,
                    id,
                    map,
                    name,
                    nsid,
                    uuid: Uuid::from_u128(uuid),
                    nguid: uuid.to_be_bytes(),
                    size_bytes,
                    lba_bytes: 4096,
                    state: if deleting {
                        VolumeState::Deleting
                    } else {
                        VolumeState::Active
                    },
                }
            },
        )
}

/// Any change of settings.
fn settings() -> impl Strategy<Value = SettingChanges> {
    let value = prop::option::of(prop::collection::vec(any::<u8>(), 0..40));
    prop::collection::btree_map("[!-~]{1,20}", value, 0..6)
}

/// Any record, sensible or not.
pub(crate) fn record() -> impl Strategy<Value = Record> {
    let entry = (prop::option::of(pba()), prop::option::of(new_block()))
        .prop_map(|(old, new)| MapEntry { old, new });
    prop_oneof![
        (
            any::<u32>(),
            0..u64::MAX - 100,
            prop::collection::vec(entry, 0..20)
        )
            .prop_map(|(volume, start, entries)| Record::Map {
                map: volume,
                start,
                entries
            }),
        (
            any::<u32>(),
            prop::collection::vec((any::<u64>(), pba()), 0..20)
        )
            .prop_map(|(volume, entries)| Record::Unmap {
                map: volume,
                entries
            }),
        (
            any::<u32>(),
            0..u64::MAX - 100,
            prop::collection::vec(
                (prop::option::of(pba()), prop::option::of(new_block())),
                0..20
            )
        )
            .prop_map(|(map, start, entries)| {
                let entry = |(old, new)| MapEntry { old, new };
                Record::Own {
                    map,
                    start,
                    entries: entries.into_iter().map(entry).collect(),
                }
            }),
        (
            any::<u32>(),
            prop::collection::vec((any::<u64>(), pba()), 0..20)
        )
            .prop_map(|(map, entries)| Record::Hide { map, entries }),
        (map_info(), any::<u32>(), any::<u32>(), volume_info()).prop_map(
            |(parent, volume, map, clone)| {
                let fork = Fork {
                    parent,
                    volume,
                    map,
                    clone,
                };
                Record::Fork(vec![fork; map as usize % 3])
            }
        ),
        (map_info(), any::<[u32; 4]>(), any::<u64>(), ranges()).prop_map(
            |(parent, [snapshot, snapshot_map, volume, map], size_bytes, trimming)| {
                Record::Rollback {
                    parent,
                    snapshot,
                    snapshot_map,
                    volume,
                    map,
                    size_bytes,
                    trimming,
                }
            }
        ),
        map_info().prop_map(Record::Reparent),
        any::<u32>().prop_map(|id| Record::MapGone { id }),
        volume_info().prop_map(Record::VolumeCreate),
        (any::<u32>(), any::<u64>(), ranges()).prop_map(|(id, size_bytes, trimming)| {
            Record::VolumeResize {
                id,
                size_bytes,
                trimming,
            }
        }),
        (any::<u32>(), "[a-z0-9._-]{1,64}")
            .prop_map(|(id, name)| Record::VolumeRename { id, name }),
        (any::<u32>(), volume_info()).prop_map(|(id, info)| {
            let policy = info.policy();
            Record::VolumePolicy { id, policy }
        }),
        (any::<u32>(), ranges()).prop_map(|(id, ranges)| Record::Trimming { id, ranges }),
        any::<u32>().prop_map(|id| Record::VolumeDelete { id }),
        any::<u32>().prop_map(|id| Record::VolumeGone { id }),
        settings().prop_map(Record::Settings),
        any::<u64>().prop_map(|upto| Record::Durable { upto }),
    ]
}

/// All rows of a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rows {
    pub(crate) volumes: BTreeMap<u32, VolumeInfo>,
    pub(crate) blocks: BTreeMap<Pba, BlockRow>,
    pub(crate) map: BTreeMap<(u32, u64), Mapping>,
    pub(crate) settings: BTreeMap<String, Vec<u8>>,
}

impl LoadVisitor for Rows {
    fn volume(&mut self, volume: VolumeInfo) {
        assert!(self.volumes.insert(volume.id, volume).is_none());
    }

    fn block(&mut self, pba: Pba, row: BlockRow) {
        assert!(self.blocks.insert(pba, row).is_none());
    }

    fn map(&mut self, volume: u32, sub_block: u64, mapping: Mapping) {
        assert!(self.map.insert((volume, sub_block), mapping).is_none());
    }
}

pub(crate) fn load(store: &dyn Store) -> Result<(Rows, Checkpoint), MetaError> {
    let mut rows = Rows::default();
    let checkpoint = store.load(&mut rows)?;
    rows.settings = store.settings()?;
    Ok((rows, checkpoint))
}

/// The simplest possible engine: makes random commands, keeps the truth in maps, and says what an
/// engine would journal. Applying its records one after the other is its definition of the rows.
#[derive(Clone, Default)]
pub(crate) struct NaivePool {
    pub(crate) rows: Rows,
    free: Vec<Pba>,
    next_block: u64,
    next_volume: u32,
}

/// The content of a block, as its fingerprint and checksum; few contents, so that many are duplicates.
fn content(rng: &mut impl Rng) -> (Fingerprint, u32) {
    let number: u32 = rng.random_range(0..40);
    (Fingerprint(u128::from(number).to_be_bytes()), number)
}

impl NaivePool {
    /// A random command, carried out; its record.
    pub(crate) fn command(&mut self, rng: &mut impl RngCore) -> Record {
        let active: Vec<u32> = self
            .rows
            .volumes
            .values()
            .filter(|volume| volume.state == VolumeState::Active)
            .map(|volume| volume.id)
            .collect();
        let deleting: Vec<u32> = self
            .rows
            .volumes
            .values()
            .filter(|volume| volume.state == VolumeState::Deleting)
            .map(|volume| volume.id)
            .collect();
        if let Some(id) = deleting.first()
            && rng.random_bool(0.5)
        {
            return self.continue_delete(*id, rng);
        }
        let dice = rng.random_range(0..100);
        if active.is_empty() || (dice < 4 && active.len() < 4) {
            return self.create_volume(rng);
        }
        let volume = active[rng.random_range(0..active.len())];
        match dice {
            0..70 => self.write(volume, rng),
            70..90 => self.trim(volume, rng),
            90..94 => {
                let size_bytes = rng.random_range(64 * 4096..1 << 40);
                let end = rng.random_range(1..1000);
                let trimming = vec![(0, end), (end + 1, 2 * end + 1)];
                if let Some(info) = self.rows.volumes.get_mut(&volume) {
                    info.size_bytes = size_bytes;
                    info.trimming = trimming.clone();
                }
                Record::VolumeResize {
                    id: volume,
                    size_bytes,
                    trimming,
                }
            }
            94..96 => {
                if let Some(info) = self.rows.volumes.get_mut(&volume) {
                    info.trimming.pop();
                }
                let ranges = self.rows.volumes[&volume].trimming.clone();
                Record::Trimming { id: volume, ranges }
            }
            96..97 => {
                if let Some(info) = self.rows.volumes.get_mut(&volume) {
                    info.state = VolumeState::Deleting;
                }
                Record::VolumeDelete { id: volume }
            }
            97..98 => self.change_settings(rng),
            _ => Record::Durable {
                upto: rng.random_range(0..1000),
            },
        }
    }

    fn create_volume(&mut self, rng: &mut impl RngCore) -> Record {
        self.next_volume += 1;
        let id = self.next_volume;
        let uuid = Uuid::from_u128(u128::from(rng.next_u64()));
        let info = VolumeInfo {
            dedup: true,
            verify: VerifyPolicy::Trust,
            domain: String::new(),
            compression: Compression::Off,
            id,
            map: id,
            name: format!("vol{id}"),
            nsid: id,
            uuid,
            nguid: *uuid.as_bytes(),
            size_bytes: 64 * 4096,
            lba_bytes: 4096,
            state: VolumeState::Active,
            trimming: Vec::new(),
            snapshot: None,
        };
        self.rows.volumes.insert(id, info.clone());
        Record::VolumeCreate(info)
    }

    fn change_settings(&mut self, rng: &mut impl RngCore) -> Record {
        let mut changes = SettingChanges::new();
        for _ in 0..rng.random_range(1..3) {
            let key = format!("key/{}", rng.random_range(0..4));
            let value = rng
                .random_bool(0.7)
                .then(|| vec![rng.random(); rng.random_range(0..9)]);
            match &value {
                Some(value) => self.rows.settings.insert(key.clone(), value.clone()),
                None => self.rows.settings.remove(&key),
            };
            changes.insert(key, value);
        }
        Record::Settings(changes)
    }

    fn write(&mut self, volume: u32, rng: &mut impl RngCore) -> Record {
        let start = rng.random_range(0..60);
        let count = rng.random_range(1..=4);
        let mut freed = Vec::new();
        let mut entries = Vec::new();
        for sub_block in start..start + count {
            let old = self.rows.map.get(&(volume, sub_block)).map(|old| old.pba);
            let new = if rng.random_bool(0.1) {
                None
            } else {
                Some(self.refer(rng))
            };
            match new {
                Some(NewBlock { pba, crc32c, .. }) => {
                    let mapping = Mapping { pba, crc32c };
                    self.rows.map.insert((volume, sub_block), mapping)
                }
                None => self.rows.map.remove(&(volume, sub_block)),
            };
            freed.extend(old);
            entries.push(MapEntry { old, new });
        }
        for old in freed {
            self.release(old);
        }
        Record::Map {
            map: volume,
            start,
            entries,
        }
    }

    fn trim(&mut self, volume: u32, rng: &mut impl RngCore) -> Record {
        let start: u64 = rng.random_range(0..60);
        let entries: Vec<(u64, Pba)> = self
            .rows
            .map
            .range((volume, start)..(volume, start + 8))
            .map(|((_, sub_block), mapping)| (*sub_block, mapping.pba))
            .collect();
        self.unmap(volume, entries)
    }

    fn continue_delete(&mut self, id: u32, rng: &mut impl RngCore) -> Record {
        let entries: Vec<(u64, Pba)> = self
            .rows
            .map
            .range((id, 0)..=(id, u64::MAX))
            .take(rng.random_range(1..20))
            .map(|((_, sub_block), mapping)| (*sub_block, mapping.pba))
            .collect();
        if entries.is_empty() {
            self.rows.volumes.remove(&id);
            return Record::VolumeGone { id };
        }
        self.unmap(id, entries)
    }

    fn unmap(&mut self, volume: u32, entries: Vec<(u64, Pba)>) -> Record {
        for (sub_block, pba) in &entries {
            self.rows.map.remove(&(volume, *sub_block));
            self.release(*pba);
        }
        Record::Unmap {
            map: volume,
            entries,
        }
    }

    /// A reference to a block with some content: one that has it, or a new one.
    fn refer(&mut self, rng: &mut impl RngCore) -> NewBlock {
        let (fingerprint, crc32c) = content(rng);
        let known = self
            .rows
            .blocks
            .iter_mut()
            .find(|(_, row)| row.fingerprint == fingerprint);
        let pba = match known {
            Some((pba, row)) => {
                row.refcount += 1;
                *pba
            }
            None => {
                let pba = self.free.pop().unwrap_or_else(|| {
                    self.next_block += 1;
                    Pba::new((self.next_block % 3) as u16, self.next_block)
                });
                self.rows.blocks.insert(
                    pba,
                    BlockRow {
                        refcount: 1,
                        fingerprint,
                        crc32c,
                        has_index_entry: false,
                    },
                );
                pba
            }
        };
        NewBlock {
            pba,
            fingerprint,
            crc32c,
        }
    }

    fn release(&mut self, pba: Pba) {
        if let Some(row) = self.rows.blocks.get_mut(&pba) {
            row.refcount -= 1;
            if row.refcount == 0 {
                self.rows.blocks.remove(&pba);
                self.free.push(pba);
            }
        }
    }
}
