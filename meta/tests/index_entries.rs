//! Index entries, beside a plain model of them: they lead to blocks that are there, until those go.

use std::collections::{BTreeMap, BTreeSet};

use meta::{
    BatchBuilder, BlockRow, Checkpoint, Fingerprint, LoadVisitor, MapEntry, Mapping, MemoryStore,
    NewBlock, Pba, Position, Record, RocksOptions, RocksStore, Store, VolumeInfo,
};
use rand::seq::{IndexedRandom, IteratorRandom};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use uuid::Uuid;

const POOL: Uuid = Uuid::from_u128(9);
const SUB_BLOCKS: u64 = 60;
const CONTENTS: u8 = 6;

/// What a store holds.
#[derive(Default)]
struct Rows {
    blocks: BTreeMap<Pba, BlockRow>,
    index: BTreeMap<Fingerprint, Pba>,
}

impl LoadVisitor for Rows {
    fn volume(&mut self, _volume: VolumeInfo) {}

    fn block(&mut self, pba: Pba, row: BlockRow) {
        self.blocks.insert(pba, row);
    }

    fn map(&mut self, _volume: u32, _sub_block: u64, _mapping: Mapping) {}

    fn index_entry(&mut self, fingerprint: Fingerprint, pba: Pba) {
        self.index.insert(fingerprint, pba);
    }
}

/// Few addresses, so that each is used by one content after the other.
fn addresses() -> impl Iterator<Item = Pba> {
    let whole = (0..12).map(|block| Pba::new(0, block * 30));
    whole.chain((0..6).map(|slot| Pba::new(1, 7).fragment(slot)))
}

/// Which block each sub-block has, and what each block holds.
#[derive(Default)]
struct Model {
    map: BTreeMap<u64, Pba>,
    blocks: BTreeMap<Pba, (u32, Fingerprint)>,
    index: BTreeMap<Fingerprint, Pba>,
}

impl Model {
    /// Maps some sub-blocks anew; what that frees can be used at once.
    fn command(&mut self, rng: &mut ChaCha8Rng) -> Record {
        let start = rng.random_range(0..SUB_BLOCKS - 4);
        let mut entries = Vec::new();
        for at in start..start + rng.random_range(1..4) {
            let old = self.map.get(&at).copied();
            let new = rng.random_bool(0.8).then(|| self.take(rng)).flatten();
            match new {
                Some(new) => self.map.insert(at, new.pba),
                None => self.map.remove(&at),
            };
            entries.push(MapEntry { old, new });
        }
        for old in entries.iter().filter_map(|entry| entry.old) {
            let (count, _) = self.blocks.get_mut(&old).unwrap();
            *count -= 1;
            if *count == 0 {
                self.blocks.remove(&old);
            }
        }
        Record::Map {
            map: 1,
            start,
            entries,
        }
    }

    /// A block that is used, or a free one with any content.
    fn take(&mut self, rng: &mut ChaCha8Rng) -> Option<NewBlock> {
        let free = addresses().filter(|pba| !self.blocks.contains_key(pba));
        let pba = match rng.random_bool(0.3) {
            true => self.blocks.keys().copied().choose(rng),
            false => free.choose(rng),
        }?;
        // Some without a fingerprint.
        let content = Fingerprint([rng.random_range(0..CONTENTS); 16]);
        let (count, fingerprint) = self.blocks.entry(pba).or_insert((0, content));
        *count += 1;
        Some(NewBlock {
            pba,
            fingerprint: *fingerprint,
            crc32c: 5,
        })
    }

    /// The rows are what they are by now; index entries were wanted for these blocks.
    fn stored(&mut self, wanted: impl Iterator<Item = Pba>, before: &BTreeMap<Pba, BlockRow>) {
        let is_same = |pba: &Pba| {
            let now = self.blocks.get(pba).map(|(_, fingerprint)| *fingerprint);
            now == before.get(pba).map(|row| row.fingerprint)
        };
        self.index.retain(|_, pba| is_same(pba));
        let mut wanted: Vec<(Fingerprint, Pba)> = wanted
            .filter_map(|pba| Some((self.blocks.get(&pba)?.1, pba)))
            .filter(|(fingerprint, pba)| {
                fingerprint.is_some() && self.index.get(fingerprint) != Some(pba)
            })
            .collect();
        wanted.sort_unstable();
        for (fingerprint, pba) in wanted {
            self.index.insert(fingerprint, pba);
        }
    }
}

fn rows_of(store: &dyn Store) -> Rows {
    let mut rows = Rows::default();
    store.load(&mut rows).unwrap();
    rows
}

/// Batches with random wishes, and index entries that are written between them.
fn compare(
    mut store: Box<dyn Store>,
    reopen: Option<&dyn Fn() -> Box<dyn Store>>,
    seed: u64,
    batches: u64,
) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut model = Model::default();
    let mut seq = 1;
    assert!(!store.has_index_entries().unwrap());
    for _ in 0..batches {
        let before = rows_of(&*store).blocks;
        if rng.random_bool(0.2) {
            // Some of them are not there, or hold something else.
            let some = addresses().choose_multiple(&mut rng, 5);
            let mut some: Vec<(Pba, Fingerprint)> = some
                .into_iter()
                .map(|pba| match model.blocks.get(&pba) {
                    Some((_, fingerprint)) if fingerprint.is_some() => (pba, *fingerprint),
                    _ => (pba, Fingerprint([77; 16])),
                })
                .collect();
            some.sort_unstable();
            store.put_index_entries(&some).unwrap();
            model.stored(some.iter().map(|(pba, _)| *pba), &before);
        }
        let count = rng.random_range(1..8);
        let records: Vec<(u64, Record)> = (seq..seq + count)
            .map(|seq| (seq, model.command(&mut rng)))
            .collect();
        seq += count;
        let checkpoint = Checkpoint {
            position: Position { seq, offset: 0 },
            epoch: 1,
            last_epoch: None,
        };
        let mut batch = BatchBuilder::from_records(&records, checkpoint).unwrap();
        let written = batch.blocks.iter();
        let written = written.filter(|(_, change)| change.content.is_some() && rng.random());
        let wanted: Vec<Pba> = written.map(|(pba, _)| pba).collect();
        batch.want_index_entries(wanted.iter().copied());
        store.apply(&batch).unwrap();
        model.stored(wanted.into_iter(), &before);

        let rows = rows_of(&*store);
        assert_eq!(rows.index, model.index, "seed {seed}, record {seq}");
        let entries = rows.blocks.iter().filter(|(_, row)| row.has_index_entry);
        let entries: BTreeSet<Pba> = entries.map(|(pba, _)| *pba).collect();
        assert_eq!(
            entries,
            model.index.values().copied().collect(),
            "seed {seed}, record {seq}"
        );
        assert_eq!(store.has_index_entries().unwrap(), !model.index.is_empty());
        let mut contents: Vec<_> = (0..CONTENTS + 2).map(|c| Fingerprint([c; 16])).collect();
        contents.push(*contents.choose(&mut rng).unwrap());
        let wanted: Vec<_> = contents
            .iter()
            .map(|f| model.index.get(f).copied())
            .collect();
        assert_eq!(store.index_entries(&contents).unwrap(), wanted);
        if let Some(open) = reopen.filter(|_| rng.random_bool(0.05)) {
            drop(store);
            store = open();
        }
    }
}

#[test]
fn an_index_entry_leads_to_the_block_that_it_was_last_written_for_until_that_block_goes() {
    for seed in 0..40 {
        compare(Box::new(MemoryStore::new()), None, seed, 60);
    }
}

#[test]
fn index_entries_on_disk_do_so_over_restarts() {
    let root = tempfile::tempdir().unwrap();
    for seed in 0..4 {
        let dir = root.path().join(seed.to_string());
        RocksStore::create(&dir, POOL).unwrap();
        let options = RocksOptions {
            write_buffer_bytes: 64 << 10,
            ..RocksOptions::default()
        };
        let open =
            || -> Box<dyn Store> { Box::new(RocksStore::open(&dir, POOL, options).unwrap()) };
        compare(open(), Some(&open), seed, 150);
    }
}
