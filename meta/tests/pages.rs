//! Rows in pages, beside a store that knows no pages.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;

use common::load;
use meta::{
    BatchBuilder, Checkpoint, Fingerprint, MapEntry, MemoryStore, NewBlock, Pba, Position, Record,
    RocksOptions, RocksStore, Row, Store,
};
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use uuid::Uuid;

const POOL: Uuid = Uuid::from_u128(5);
const VOLUMES: Range<u32> = 7..9;
/// Some pages of a volume, far from its begin.
const SUB_BLOCKS: Range<u64> = (1 << 40) - 100..(1 << 40) + 300;

/// Small buffers, so that rows lie in memory, in files, and in merged files.
fn open(dir: &Path) -> RocksStore {
    let options = RocksOptions {
        write_buffer_bytes: 64 << 10,
        ..RocksOptions::default()
    };
    RocksStore::open(dir, POOL, options).unwrap()
}

/// Blocks of two drives, whole ones, with gaps, and fragments.
fn addresses() -> Vec<Pba> {
    let some = (0..150).map(|block| block + block / 20 * 7);
    let whole = (0..2).flat_map(|drive| some.clone().map(move |block| Pba::new(drive, block)));
    let packs = (0..20).map(|block| Pba::new(0, 1000 + block));
    let fragments = packs.flat_map(|pack| (0..5).map(move |slot| pack.fragment(slot * 3)));
    whole.chain(fragments).collect()
}

struct Model {
    map: BTreeMap<(u32, u64), Pba>,
    counts: BTreeMap<Pba, u32>,
    free: BTreeSet<Pba>,
    rng: ChaCha8Rng,
}

impl Model {
    fn new(seed: u64) -> Self {
        Self {
            map: BTreeMap::new(),
            counts: BTreeMap::new(),
            free: addresses().into_iter().collect(),
            rng: ChaCha8Rng::seed_from_u64(seed),
        }
    }

    fn range(&mut self) -> Range<u64> {
        let longest = *[1, 4, 70, 400].choose(&mut self.rng).unwrap();
        let start = self.rng.random_range(SUB_BLOCKS);
        start
            ..SUB_BLOCKS
                .end
                .min(start + self.rng.random_range(1..=longest))
    }

    /// A block: one that is there already, or a free one.
    fn block(&mut self) -> Option<Pba> {
        let used: Vec<Pba> = self.counts.keys().copied().collect();
        let pba = match self.rng.random_bool(0.1) {
            true => used.choose(&mut self.rng).copied(),
            false => self.free.pop_first(),
        };
        *self.counts.entry(pba?).or_default() += 1;
        pba
    }

    fn release(&mut self, pba: Pba) {
        let count = self.counts.get_mut(&pba).unwrap();
        *count -= 1;
        if *count == 0 {
            self.counts.remove(&pba);
            self.free.insert(pba);
        }
    }

    fn write(&mut self, volume: u32, range: Range<u64>) -> Record {
        let mut entries = Vec::new();
        for sub_block in range.clone() {
            let new = self.block();
            let old = match new {
                Some(pba) => self.map.insert((volume, sub_block), pba),
                None => self.map.remove(&(volume, sub_block)),
            };
            let new = new.map(|pba| NewBlock {
                pba,
                // Those of the first drive are of a volume without deduplication.
                fingerprint: match pba.drive() {
                    0 => Fingerprint::NONE,
                    _ => Fingerprint(u128::from(pba.0).to_be_bytes()),
                },
                crc32c: pba.0 as u32,
            });
            entries.push(MapEntry { old, new });
        }
        for old in entries.iter().filter_map(|entry| entry.old) {
            self.release(old);
        }
        Record::Map {
            map: volume,
            start: range.start,
            entries,
        }
    }

    fn trim(&mut self, volume: u32, range: Range<u64>) -> Record {
        let range = (volume, range.start)..(volume, range.end);
        let entries: Vec<(u64, Pba)> = self
            .map
            .range(range)
            .map(|((_, at), pba)| (*at, *pba))
            .collect();
        for (sub_block, pba) in &entries {
            self.map.remove(&(volume, *sub_block));
            self.release(*pba);
        }
        Record::Unmap {
            map: volume,
            entries,
        }
    }

    fn record(&mut self) -> Record {
        let volume = self.rng.random_range(VOLUMES);
        let range = self.range();
        match self.rng.random_bool(0.6) {
            true => self.write(volume, range),
            false => self.trim(volume, range),
        }
    }
}

/// Applies the same batch to all of these stores.
fn apply<const N: usize>(stores: [&dyn Store; N], records: Vec<Record>) {
    for store in stores {
        let seq = store.checkpoint().unwrap().position.seq;
        let records: Vec<_> = (seq..).zip(records.iter().cloned()).collect();
        let position = Position {
            seq: seq + records.len() as u64,
            offset: 0,
        };
        let checkpoint = Checkpoint {
            position,
            epoch: 1,
            last_epoch: None,
        };
        let batch = BatchBuilder::from_records(&records, checkpoint).unwrap();
        store.apply(&batch).unwrap();
    }
}

fn sub_block_of(rng: &mut ChaCha8Rng) -> u64 {
    rng.random_range(SUB_BLOCKS.start - 70..SUB_BLOCKS.end + 70)
}

/// Compares everything that can be asked of two stores.
fn compare(disk: &dyn Store, memory: &dyn Store, rng: &mut ChaCha8Rng, seed: u64) {
    assert_eq!(load(disk).unwrap(), load(memory).unwrap(), "seed {seed}");
    assert_eq!(
        disk.totals().unwrap(),
        memory.totals().unwrap(),
        "seed {seed}"
    );
    let addresses = addresses();
    for _ in 0..20 {
        let count_max = *[0, 1, 7, 1000].choose(rng).unwrap();
        let mut address = || Pba(addresses.choose(rng).unwrap().0 + rng.random_range(0..70));
        let (first, end) = (address(), address());
        assert_eq!(
            disk.blocks(first, end, count_max).unwrap(),
            memory.blocks(first, end, count_max).unwrap(),
            "seed {seed}: {first}..{end}, {count_max}"
        );
        let page = Pba(first.0 & !63);
        for (first, end) in [(page, Pba(page.0 + 64)), (first, Pba(first.0 + 1))] {
            assert_eq!(
                disk.blocks(first, end, 64).unwrap(),
                memory.blocks(first, end, 64).unwrap(),
                "seed {seed}: {first}..{end}"
            );
        }
        assert_eq!(
            disk.last_block(end).unwrap(),
            memory.last_block(end).unwrap(),
            "seed {seed}: {end}"
        );
        let (first, end) = (sub_block_of(rng), sub_block_of(rng));
        let page = first & !63;
        for (first, end) in [
            (first, end),
            (page, page + 64),
            (first, first + 1),
            (0, u64::MAX),
        ] {
            let volume = rng.random_range(VOLUMES.start - 1..VOLUMES.end + 1);
            assert_eq!(
                disk.mappings(volume, first, end, count_max).unwrap(),
                memory.mappings(volume, first, end, count_max).unwrap(),
                "seed {seed}: volume {volume}, {first}..{end}, {count_max}"
            );
            let part = *[8, 64, 256].choose(rng).unwrap();
            let rows_max = *[1, 3, usize::MAX].choose(rng).unwrap();
            let most = (rows_max, count_max);
            assert_eq!(
                disk.mapped_parts(volume, first, end, part).unwrap(),
                memory.mapped_parts(volume, first, end, part).unwrap(),
                "seed {seed}: parts of {part} of volume {volume}, {first}..{end}"
            );
            let mut cuts = [first, end, sub_block_of(rng), sub_block_of(rng)];
            cuts.sort_unstable();
            let ranges = [cuts[0]..cuts[1], cuts[2]..cuts[3]];
            assert_eq!(
                disk.map_rows(volume, &ranges, most).unwrap(),
                memory.map_rows(volume, &ranges, most).unwrap(),
                "seed {seed}: rows of volume {volume}, {ranges:?}, {most:?}"
            );
            let found = disk.map_rows(volume, &ranges, (usize::MAX, usize::MAX));
            let found = found.unwrap();
            let all = disk.mappings(volume, 0, u64::MAX, usize::MAX).unwrap();
            let is_asked = |row: u64| {
                let mut asked = ranges.iter().filter(|range| !range.is_empty());
                asked.any(|range| range.start / 64 <= row && row <= (range.end - 1) / 64)
            };
            let asked = all
                .iter()
                .map(|(at, _)| at / 64)
                .filter(|row| is_asked(*row));
            let mut asked: Vec<u64> = asked.collect();
            assert_eq!(found.count(), asked.len(), "seed {seed}: {ranges:?}");
            asked.dedup();
            assert_eq!(found.parts(64).collect::<Vec<_>>(), asked, "seed {seed}");
        }
    }
}

#[test]
fn a_store_in_pages_answers_as_one_without_whatever_is_asked_of_it() {
    for seed in common::seeds(100).take(4) {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("metadata");
        RocksStore::create(&dir, POOL).unwrap();
        let memory = MemoryStore::new();
        let mut disk = open(&dir);
        let mut model = Model::new(seed);
        for round in 0..60 {
            let count = model.rng.random_range(1..5);
            let records = (0..count).map(|_| model.record()).collect();
            apply([&disk, &memory], records);
            if round % 3 == 0 {
                compare(&disk, &memory, &mut model.rng, seed);
            }
            if model.rng.random_bool(0.1) {
                drop(disk);
                disk = open(&dir);
            }
        }
        compare(&disk, &memory, &mut model.rng, seed);
    }
}

/// An entry as programs wrote it that knew no runs.
fn entry(number: u64, content: &[&[u8]]) -> Vec<u8> {
    [&[(number % 64) as u8], content.concat().as_slice()].concat()
}

/// The rows of pages as programs wrote them that knew no runs: keys and entries.
fn pages_without_runs(store: &dyn Store) -> Vec<(Vec<u8>, Vec<Vec<u8>>)> {
    let mut pages = Vec::new();
    let blocks = store.blocks(Pba(0), Pba(u64::MAX), usize::MAX).unwrap();
    for page in blocks.chunk_by(|(a, _), (b, _)| a.0 / 64 == b.0 / 64) {
        let entries = page.iter().map(|(pba, row)| {
            let count = row.refcount | u32::from(row.has_index_entry) << 31;
            let (count, sum) = (count.to_le_bytes(), row.crc32c.to_le_bytes());
            entry(pba.0, &[&count, &row.fingerprint.0, &sum])
        });
        pages.push((Row::Blocks(page.to_vec()).encode().0, entries.collect()));
    }
    for map in VOLUMES {
        let mappings = store.mappings(map, 0, u64::MAX, usize::MAX).unwrap();
        for page in mappings.chunk_by(|(a, _), (b, _)| a / 64 == b / 64) {
            let entries = page.iter().map(|(at, mapping)| {
                let (pba, sum) = (mapping.pba.0.to_le_bytes(), mapping.crc32c.to_le_bytes());
                entry(*at, &[&pba, &sum])
            });
            let entries = entries.collect();
            let mappings = page.to_vec();
            pages.push((Row::Mappings { map, mappings }.encode().0, entries));
        }
    }
    pages
}

#[test]
fn rows_and_changes_of_programs_that_knew_no_runs_are_read_and_changed() {
    for seed in common::seeds(100).take(4) {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("metadata");
        RocksStore::create(&dir, POOL).unwrap();
        let memory = MemoryStore::new();
        let mut model = Model::new(seed);
        for _ in 0..20 {
            let records = (0..3).map(|_| model.record()).collect();
            apply([&memory], records);
        }
        {
            let mut options = rocksdb::Options::default();
            options.set_merge_operator_associative("not to be called", |_, _, _| None);
            let families = ["default", "hints"].map(|name| (name, options.clone()));
            let db = rocksdb::DB::open_cf_with_opts(&options, &dir, families).unwrap();
            let format = Row::Format {
                pool: POOL,
                version: 4,
            };
            let checkpoint = Row::Checkpoint(memory.checkpoint().unwrap());
            let totals = Row::Totals(memory.totals().unwrap());
            for (key, value) in [format, checkpoint, totals].map(|row| row.encode()) {
                db.put(key, value).unwrap();
            }
            for (number, (key, entries)) in pages_without_runs(&memory).into_iter().enumerate() {
                // Of every other page a part is still a change.
                let (row, change) = entries.split_at(match number % 2 {
                    0 => entries.len(),
                    _ => entries.len().div_ceil(2),
                });
                db.put(&key, row.concat()).unwrap();
                if !change.is_empty() {
                    db.merge(&key, change.concat()).unwrap();
                }
            }
        }
        let reader = RocksStore::open_read_only(&dir, POOL, RocksOptions::default()).unwrap();
        compare(&reader, &memory, &mut model.rng, seed);
        drop(reader);
        let disk = open(&dir);
        compare(&disk, &memory, &mut model.rng, seed);
        for _ in 0..10 {
            let record = model.record();
            apply([&disk, &memory], vec![record]);
            compare(&disk, &memory, &mut model.rng, seed);
        }
    }
}

#[test]
fn when_the_last_entry_of_a_page_goes_its_row_goes() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("metadata");
    RocksStore::create(&dir, POOL).unwrap();
    let memory = MemoryStore::new();
    let disk = open(&dir);
    let mut model = Model::new(3);
    for _ in 0..30 {
        let records = (0..3).map(|_| model.record()).collect();
        apply([&disk, &memory], records);
    }
    assert!(model.map.len() > 100);
    // In pieces that hold whole pages, parts of them, and single entries.
    for piece in [1, 70, 400] {
        for volume in VOLUMES {
            while let Some(start) = model
                .map
                .keys()
                .find(|key| key.0 == volume)
                .map(|key| key.1)
            {
                let record = model.trim(volume, start..start + piece);
                apply([&disk, &memory], vec![record]);
                if piece == 1 && model.map.len().is_multiple_of(10) {
                    break;
                }
            }
        }
    }
    assert!(model.map.is_empty() && model.counts.is_empty());
    assert_eq!(load(&disk).unwrap(), load(&memory).unwrap());
    assert_eq!(disk.last_block(Pba(u64::MAX)).unwrap(), None);
    drop(disk);
    // What is deleted must not be looked at: nothing of a page may be left to merge.
    let mut options = rocksdb::Options::default();
    options.set_merge_operator_associative("none", |_, _, _| None);
    let db = rocksdb::DB::open_cf_with_opts(
        &options,
        &dir,
        [
            ("default", options.clone()),
            ("hints", rocksdb::Options::default()),
        ],
    )
    .unwrap();
    let keys = db
        .iterator(rocksdb::IteratorMode::Start)
        .map(|row| row.unwrap().0);
    let keys: Vec<Box<[u8]>> = keys.collect();
    assert_eq!(keys, [b"c", b"f", b"t"].map(|key| Box::from(&key[..])));
}
