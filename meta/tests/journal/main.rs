//! The journal, against a model: what is replayed after a crash is a prefix of what was appended, it
//! contains all that was synced, and nothing stale is ever in it.

#[path = "../common/mod.rs"]
mod common;
mod moments;
mod owners;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use meta::{
    Checkpoint, Fingerprint, Journal, JournalConfig, JournalError, JournalMedia, MapEntry,
    MemoryMedia, NewBlock, Pba, Position, Record,
};
use rand::seq::IteratorRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

const SMALL: JournalConfig = JournalConfig {
    payload_bytes_max: 512,
    reserve_bytes: 128,
};

fn media(bytes: u64) -> Arc<MemoryMedia> {
    Arc::new(MemoryMedia::new(bytes))
}

fn at(position: Position, epoch: u32) -> Checkpoint {
    Checkpoint {
        position,
        epoch,
        last_epoch: None,
    }
}

/// A record of any size up to the limit, with content that does not repeat.
fn random_record(rng: &mut ChaCha8Rng) -> Record {
    if rng.random_bool(0.3) {
        return Record::Durable { upto: rng.random() };
    }
    let entries = (0..rng.random_range(0..13))
        .map(|_| MapEntry {
            old: rng.random_bool(0.5).then(|| Pba(rng.random())),
            new: Some(NewBlock {
                pba: Pba(rng.random()),
                fingerprint: Fingerprint(rng.random()),
                crc32c: rng.random(),
            }),
        })
        .collect();
    Record::Map {
        map: rng.random(),
        start: rng.random_range(0..1 << 40),
        entries,
    }
}

fn numbered(record: &[Record], first: u64) -> Vec<(u64, Record)> {
    (first..).zip(record.iter().cloned()).collect()
}

/// A journal with its truth beside it.
struct Model {
    rng: ChaCha8Rng,
    media: Arc<MemoryMedia>,
    journal: Journal,
    /// Every record there ever was and that counts: record `seq` is at `seq - 1`.
    history: Vec<Record>,
    /// Records lost by the last crash; the host tries them again.
    lost: Vec<Record>,
    /// What the store holds.
    stored: Checkpoint,
    synced: u64,
}

impl Model {
    fn new(seed: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let media = media(rng.random_range(1800..12_000));
        let stored = at(Position::START, 1);
        let journal = Journal::create(media.clone(), stored.epoch, SMALL).unwrap();
        Self {
            rng,
            media,
            journal,
            history: Vec::new(),
            lost: Vec::new(),
            stored,
            synced: 0,
        }
    }

    /// One random step; false if the media died in it.
    fn step(&mut self) -> bool {
        match self.rng.random_range(0..100) {
            0..70 => self.append(),
            70..85 => self.sync(),
            _ => self.checkpoint(),
        }
    }

    fn append(&mut self) -> bool {
        let count = self.rng.random_range(1..=4);
        let again = self.lost.len().min(count);
        let mut records: Vec<Record> = self.lost.drain(..again).collect();
        while records.len() < count {
            records.push(random_record(&mut self.rng));
        }
        match self.journal.append(&records) {
            Ok(appended) => {
                assert_eq!(appended.first, self.history.len() as u64 + 1);
                self.history.extend(records);
                assert_eq!(appended.last, self.history.len() as u64);
                true
            }
            Err(JournalError::Full { needed, free, .. }) => {
                assert!(needed > free);
                self.checkpoint()
            }
            Err(JournalError::Io { .. }) => {
                // Not acknowledged, but it may be there.
                self.history.extend(records);
                let error = self.journal.append([] as [&Record; 0]).unwrap_err();
                assert!(matches!(error, JournalError::Failed { .. }));
                false
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn sync(&mut self) -> bool {
        match self.journal.sync() {
            Ok(upto) => {
                assert_eq!(upto, self.history.len() as u64);
                self.synced = upto;
                true
            }
            Err(JournalError::Io { .. }) => false,
            Err(error) => panic!("{error}"),
        }
    }

    /// Stores all records up to a random one, and releases them; false if the media died in it.
    fn checkpoint(&mut self) -> bool {
        // What was appended and not released can be read back at any time.
        let mut reader = self.journal.reader();
        let mut read = reader.checkpoint().position.seq;
        assert_eq!(reader.checkpoint().position, self.journal.released());
        let mut checkpoints = vec![reader.checkpoint()];
        while let Some((seq, record)) = reader.read().unwrap() {
            assert_eq!((seq, &record), (read, &self.history[seq as usize - 1]));
            let next = reader.checkpoint();
            assert_eq!(Some(next.position), self.journal.position_of(seq + 1));
            checkpoints.push(next);
            read += 1;
        }
        assert_eq!(read, self.journal.position().seq);
        let possible = checkpoints
            .into_iter()
            .filter(|checkpoint| checkpoint.position.seq >= self.stored.position.seq);
        let stored = possible.choose(&mut self.rng).unwrap();
        if !self.sync() {
            return false;
        }
        self.stored = stored;
        if self.rng.random_bool(0.9) {
            self.journal.release(stored.position).unwrap();
        }
        true
    }

    /// Opens the media as a new process does, and checks what it finds: at least the records up to
    /// `kept`.
    fn reopen(&mut self, mut kept: u64) {
        loop {
            let (journal, replayed) =
                Journal::open(self.media.clone(), self.stored, SMALL).unwrap();
            let first = self.stored.position.seq;
            let expected = &self.history[first as usize - 1..];
            assert!(
                replayed.len() <= expected.len(),
                "more was replayed than appended"
            );
            let last = first - 1 + replayed.len() as u64;
            assert_eq!(replayed, numbered(&expected[..replayed.len()], first));
            assert!(last >= kept, "kept up to {kept}, replayed to {last}");
            assert_eq!(journal.position().seq, last + 1);
            self.journal = journal;
            self.lost = self.history.split_off(last as usize);
            if self.rng.random_bool(0.1) {
                // Power fails before the process has stored anything.
                self.power_loss();
                kept = self.synced;
                continue;
            }
            self.journal.settle().unwrap();
            self.stored = self.journal.next_checkpoint().unwrap();
            self.synced = last;
            if self.rng.random_bool(0.1) {
                // Power fails after that, and before the first record.
                self.power_loss();
                kept = last;
                continue;
            }
            self.journal.begin(self.stored).unwrap();
            return;
        }
    }

    fn power_loss(&mut self) {
        self.media.power_loss(self.rng.random());
    }

    /// One life of a process, that ends in a crash of some kind.
    fn life(&mut self) {
        if self.rng.random_bool(0.7) {
            let steps = self.rng.random_range(0..30);
            let seed = self.rng.random();
            self.media.fail_at(self.media.operations() + steps, seed);
        }
        let mut alive = true;
        let mut acknowledged = 0;
        for _ in 0..self.rng.random_range(0..40) {
            acknowledged = self.history.len() as u64;
            alive = self.step();
            if !alive {
                break;
            }
        }
        if self.rng.random_bool(0.5) {
            self.power_loss();
            self.reopen(self.synced);
        } else {
            // The page cache lives on: only the batch that was being written may be lost.
            self.media.revive();
            self.reopen(if alive {
                self.history.len() as u64
            } else {
                acknowledged
            });
        }
    }
}

#[test]
fn replay_is_a_prefix_that_contains_all_that_was_synced_and_nothing_stale() {
    for seed in common::seeds(2000) {
        let result = std::panic::catch_unwind(|| {
            let mut model = Model::new(seed);
            for _ in 0..8 {
                model.life();
            }
        });
        assert!(
            result.is_ok(),
            "seed {seed}: run with ONEFOLD_FIRST_SEED={seed} ONEFOLD_SEEDS=1"
        );
    }
}

/// A script that wraps several times; `step` fails.
fn crash_at(step: u64, seed: u64, power: bool) {
    let media = media(2048);
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut stored = at(Position::START, 1);
    let mut journal = Journal::create(media.clone(), 1, SMALL).unwrap();
    media.fail_at(step, seed);
    let mut history = Vec::new();
    let mut synced = 0;
    while !media.is_dead() {
        let record = random_record(&mut rng);
        if let Err(error) = journal.append(std::slice::from_ref(&record))
            && error.is_full()
        {
            stored.position = journal.position();
            journal.release(stored.position).unwrap();
            continue;
        }
        history.push(record);
        if history.len() % 3 == 0
            && let Ok(upto) = journal.sync()
        {
            synced = upto;
        }
    }
    if power {
        media.power_loss(seed);
    } else {
        media.revive();
    }
    let (_, replayed) = Journal::open(media, stored, SMALL).unwrap();
    let first = stored.position.seq;
    assert_eq!(
        replayed,
        numbered(&history[first as usize - 1..][..replayed.len()], first)
    );
    assert!(first - 1 + replayed.len() as u64 >= synced);
}

#[test]
fn a_crash_at_every_write_and_sync_of_three_laps_loses_nothing_synced() {
    for step in 0..60 {
        for seed in 0..10 {
            crash_at(step, seed, true);
            crash_at(step, seed, false);
        }
    }
}

/// A media whose power loss the test decides sector by sector.
struct Sectors {
    cache: Mutex<Vec<u8>>,
    stable: Mutex<Vec<u8>>,
}

impl Sectors {
    fn new(bytes: usize) -> Arc<Self> {
        Arc::new(Self {
            cache: Mutex::new(vec![0; bytes]),
            stable: Mutex::new(vec![0; bytes]),
        })
    }

    /// Power is lost when only these sectors had reached the drive.
    fn power_loss_keeping(&self, sectors: &[usize]) {
        let mut cache = self.cache.lock().unwrap();
        let mut stable = self.stable.lock().unwrap();
        for sector in sectors {
            let range = sector * 512..(sector + 1) * 512;
            stable[range.clone()].copy_from_slice(&cache[range]);
        }
        cache.clone_from(&stable);
    }
}

impl JournalMedia for Sectors {
    fn capacity(&self) -> u64 {
        self.cache.lock().unwrap().len() as u64
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        buf.copy_from_slice(&self.cache.lock().unwrap()[offset as usize..][..buf.len()]);
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.cache.lock().unwrap()[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.stable
            .lock()
            .unwrap()
            .clone_from(&self.cache.lock().unwrap());
        Ok(())
    }
}

/// A record of exactly 512 bytes with its frame.
fn sector_record(number: u64) -> Record {
    let entries = (0..29).map(|i| (i, Pba(number))).collect();
    let record = Record::Unmap { map: 1, entries };
    assert_eq!(record.encoded_len(), 472);
    record
}

/// A record of two sectors with its frame, whose second sector is the same for all numbers.
fn long_record(number: u64) -> Record {
    let entries = (0..61)
        .map(|i| (i, Pba(if i == 0 { number } else { 7 })))
        .collect();
    Record::Unmap { map: 1, entries }
}

#[test]
fn a_torn_record_stays_dead_when_it_is_tried_again_and_torn_again() {
    // Epoch 4 writes a record over two sectors; power fails, and only the first sector has reached the
    // drive. The record is lost. Epoch 5 tries the same record again, as a host does; power fails, and
    // only the second sector has reached the drive. Now the record of epoch 4 is whole, byte for byte,
    // and so might be others behind it; it must stay dead, because epoch 5 never knew it.
    let config = JournalConfig {
        payload_bytes_max: 1024,
        reserve_bytes: 0,
    };
    let media = Sectors::new(8192);
    let position = Position {
        seq: 5,
        offset: 512,
    };
    let open = |epoch| Journal::open(media.clone(), at(position, epoch), config).unwrap();

    let (mut journal, _) = open(3);
    journal.begin(at(position, 4)).unwrap();
    journal.append(&[long_record(2)]).unwrap();
    media.power_loss_keeping(&[1]);

    let (mut journal, replayed) = open(4);
    assert_eq!(replayed, []);
    journal.begin(at(position, 5)).unwrap();
    journal.append(&[long_record(2)]).unwrap();
    media.power_loss_keeping(&[2]);

    assert_eq!(
        open(4).1,
        [(5, long_record(2))],
        "the old record is not whole: this shows nothing"
    );
    assert_eq!(open(5).1, [], "a record of a dead epoch came back");
}

#[test]
fn records_of_an_earlier_lap_are_not_read_behind_the_end() {
    let media = media(4096);
    let mut journal = Journal::create(media.clone(), 1, SMALL).unwrap();
    let mut last = Position::START;
    for number in 0..40 {
        journal.append(&[sector_record(number)]).unwrap();
        let (_, replayed) = Journal::open(media.clone(), at(last, 1), SMALL).unwrap();
        assert_eq!(replayed, numbered(&[sector_record(number)], number + 1));
        last = journal.position();
        journal.release(last).unwrap();
    }
}

#[test]
fn a_full_journal_says_so_writes_nothing_and_goes_on_after_a_release() {
    let media = media(4096);
    let mut journal = Journal::create(media.clone(), 1, SMALL).unwrap();
    let mut count = 0;
    let error = loop {
        match journal.append(&[sector_record(count)]) {
            Ok(_) => count += 1,
            Err(error) => break error,
        }
    };
    assert!(error.is_full(), "{error}");
    assert!(error.to_string().contains("checkpoint"), "{error}");
    let operations = media.operations();
    assert!(journal.append(&[sector_record(0)]).is_err());
    assert_eq!(media.operations(), operations);
    // Until nothing fits that changes anything.
    let small = Record::VolumeGone { id: 1 };
    while journal.append([&small]).is_ok() {}
    assert!(journal.free_bytes() < SMALL.reserve_bytes + 64);
    // The reserve still takes what a checkpoint needs to say.
    journal.append(&[Record::Durable { upto: count }]).unwrap();
    journal.release(journal.position()).unwrap();
    // The last record stays.
    assert_eq!(journal.used_bytes(), 40);
    journal
        .append(&[sector_record(0), sector_record(1)])
        .unwrap();
}

#[test]
fn a_record_above_the_limit_is_refused_whole_batch() {
    let media = media(65_536);
    let mut journal = Journal::create(media, 1, SMALL).unwrap();
    let error = journal
        .append(&[sector_record(1), long_record(1)])
        .unwrap_err();
    assert!(
        matches!(
            error,
            JournalError::TooLarge {
                bytes: 984,
                limit: 512,
                ..
            }
        ),
        "{error}"
    );
    assert_eq!(journal.last_seq(), 0);
}

/// A journal of 20 synced records and one later one, which says that they are synced.
fn twenty_synced() -> (Arc<MemoryMedia>, Journal) {
    let media = media(65_536);
    let mut journal = Journal::create(media.clone(), 1, SMALL).unwrap();
    for number in 0..20 {
        journal.append(&[sector_record(number)]).unwrap();
    }
    journal.sync().unwrap();
    journal.append(&[sector_record(20)]).unwrap();
    (media, journal)
}

#[test]
fn damage_of_any_synced_record_the_last_too_is_an_error_and_not_the_end() {
    for damaged in 1..=20 {
        for byte in [0, 4, 8, 16, 24, 31, 32, 100, 503] {
            let (media, journal) = twenty_synced();
            media.flip(journal.position_of(damaged).unwrap().offset + byte, 4);
            let error = Journal::open(media, at(Position::START, 1), SMALL)
                .err()
                .unwrap_or_else(|| panic!("byte {byte} of record {damaged}: it opened"));
            assert!(
                matches!(error, JournalError::Damaged { seq, .. } if seq == damaged),
                "byte {byte} of record {damaged}: {error}"
            );
            assert!(error.to_string().contains("restore"), "{error}");
        }
    }
}

#[test]
fn damage_behind_the_last_sync_is_a_torn_tail() {
    let media = media(65_536);
    let mut journal = Journal::create(media.clone(), 1, SMALL).unwrap();
    journal.append(&[sector_record(0)]).unwrap();
    journal.sync().unwrap();
    journal.append(&[sector_record(1)]).unwrap();
    journal.append(&[sector_record(2)]).unwrap();
    media.flip(journal.position_of(2).unwrap().offset + 40, 1);
    let (_, replayed) = Journal::open(media, at(Position::START, 1), SMALL).unwrap();
    assert_eq!(replayed, numbered(&[sector_record(0)], 1));
}

#[test]
fn no_record_is_taken_between_opening_and_a_new_epoch() {
    let media = media(65_536);
    let (mut journal, _) = Journal::open(media, Checkpoint::EMPTY, SMALL).unwrap();
    assert!(matches!(
        journal.append([] as [&Record; 0]),
        Err(JournalError::NotBegun { .. })
    ));
    assert!(matches!(journal.sync(), Err(JournalError::NotBegun { .. })));
    assert!(
        journal.begin(at(journal.position(), 0)).is_err(),
        "an epoch that is not new"
    );
    assert!(
        journal
            .begin(at(Position { seq: 2, offset: 0 }, 1))
            .is_err(),
        "another position"
    );
    journal.begin(at(journal.position(), 1)).unwrap();
    assert!(
        journal.begin(at(journal.position(), 2)).is_err(),
        "begun twice"
    );
    journal.append(&[Record::VolumeDelete { id: 1 }]).unwrap();
}

#[test]
fn after_a_failed_sync_nothing_counts_as_synced_any_more() {
    let media = media(65_536);
    let mut journal = Journal::create(media.clone(), 1, SMALL).unwrap();
    journal.append(&[sector_record(0)]).unwrap();
    let first = journal.prepare_sync().unwrap();
    let second = journal.prepare_sync().unwrap();
    media.fail_at(media.operations(), 1);
    let first = first.run();
    media.revive();
    // The system reports a lost write once; the second sync must not take that for success.
    let second = second.run();
    assert!(journal.finish_sync(second).is_err());
    assert!(journal.finish_sync(first).is_err());
    assert!(matches!(
        journal.append([] as [&Record; 0]),
        Err(JournalError::Failed { .. })
    ));
    assert_eq!(journal.stable_seq(), 0);
}

#[test]
fn a_sync_beside_appends_counts_only_what_came_before_it() {
    let media = media(65_536);
    let mut journal = Journal::create(media, 1, SMALL).unwrap();
    journal.append(&[sector_record(0)]).unwrap();
    let pending = journal.prepare_sync().unwrap();
    journal.append(&[sector_record(1)]).unwrap();
    assert_eq!(journal.finish_sync(pending.run()).unwrap(), 1);
    assert_eq!(journal.sync().unwrap(), 2);
}

#[test]
fn a_position_that_cannot_be_and_a_ring_that_is_too_small_are_refused() {
    let open = |bytes, seq, offset| {
        let stored = at(Position { seq, offset }, 1);
        Journal::open(media(bytes), stored, SMALL)
            .err()
            .map(|error| error.to_string())
    };
    assert_eq!(open(4096, 1, 0), None);
    assert!(open(4096, 0, 0).is_some());
    assert!(open(4096, 1, 4).is_some());
    assert!(open(4096, 1, 4096).is_some());
    assert!(open(512, 1, 0).is_some_and(|message| message.contains("too few")));
}

#[test]
fn only_positions_of_records_can_be_released() {
    let mut journal = Journal::create(media(65_536), 1, SMALL).unwrap();
    journal
        .append(&[sector_record(0), sector_record(1)])
        .unwrap();
    let second = journal.position_of(2).unwrap();
    assert!(
        journal
            .release(Position {
                offset: second.offset + 8,
                ..second
            })
            .is_err()
    );
    assert!(journal.release(Position { seq: 9, offset: 0 }).is_err());
    journal.release(second).unwrap();
    assert_eq!(journal.released(), second);
    assert!(journal.release(Position::START).is_err(), "released twice");
    assert_eq!(journal.position_of(1), None);
}

#[test]
fn random_bytes_on_the_media_are_never_replayed() {
    for seed in 0..200 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let media = media(8192);
        let mut noise = vec![0; 8192];
        rng.fill(&mut noise[..]);
        media.write_at(0, &noise).unwrap();
        let (_, replayed) = Journal::open(media, at(Position::START, 1), SMALL).unwrap();
        assert_eq!(replayed, []);
    }
}

#[test]
fn a_mutated_journal_gives_all_before_the_first_damage_or_an_error_if_that_was_synced() {
    let (mut refused, mut opened) = (0, 0);
    for seed in common::seeds(2000) {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let media = media(8192);
        let mut journal = Journal::create(media.clone(), 1, SMALL).unwrap();
        let history: Vec<Record> = (0..20).map(|_| random_record(&mut rng)).collect();
        // What was synced when each record was appended: its frame says so.
        let (mut synced, mut says) = (0, Vec::new());
        for (number, record) in (1..).zip(&history) {
            says.push(synced);
            journal.append(std::slice::from_ref(record)).unwrap();
            if rng.random_bool(0.2) {
                journal.sync().unwrap();
                synced = number;
            }
        }
        let ends: Vec<u64> = (2..=21)
            .map(|seq| journal.position_of(seq).unwrap().offset)
            .collect();
        let used = journal.used_bytes();
        let flips = rng.random_range(1..4);
        let mut damaged = BTreeMap::new();
        for _ in 0..flips {
            let (offset, mask) = (rng.random_range(0..used), rng.random_range(1..=255_u8));
            media.flip(offset, mask);
            *damaged.entry(offset).or_insert(0) ^= mask;
        }
        damaged.retain(|_, mask| *mask != 0);
        // The number of the record, from 0, in which a byte is.
        let record_of = |offset: &u64| ends.partition_point(|end| end <= offset);
        let records: BTreeSet<usize> = damaged.keys().map(record_of).collect();
        let whole = records.first().copied().unwrap_or(history.len());
        let is_known = |at: &usize| !records.contains(at) && says[*at] > whole as u64;
        let must_refuse = (whole + 1..history.len()).any(|at| is_known(&at));
        match Journal::open(media, at(Position::START, 1), SMALL) {
            Ok((_, replayed)) => {
                assert!(
                    !must_refuse,
                    "seed {seed}: synced record {whole} is missing"
                );
                assert_eq!(replayed, numbered(&history[..whole], 1), "seed {seed}");
                opened += 1;
            }
            Err(JournalError::Damaged { seq, .. }) => {
                assert!(must_refuse, "seed {seed}: refused for nothing");
                assert_eq!(seq, whole as u64 + 1, "seed {seed}");
                refused += 1;
            }
            Err(error) => panic!("seed {seed}: {error}"),
        }
    }
    assert!(
        refused > 0 && opened > 0,
        "{refused} refused, {opened} opened"
    );
}

/// Counts what is read.
struct Counting {
    media: MemoryMedia,
    read_bytes: AtomicU64,
}

impl JournalMedia for Counting {
    fn capacity(&self) -> u64 {
        self.media.capacity()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let bytes = buf.len() as u64;
        self.read_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.media.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.media.write_at(offset, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.media.sync()
    }
}

/// The bytes before the frame of a small write look like the header of a frame of a later epoch.
#[test]
fn an_opening_reads_a_journal_of_small_writes_a_few_times_and_not_once_for_each() {
    const RECORDS: u64 = 20_000;
    let media = Arc::new(Counting {
        media: MemoryMedia::new(8 << 20),
        read_bytes: AtomicU64::new(0),
    });
    let start = at(Position::START, 1);
    let config = JournalConfig::default();
    let mut journal = Journal::create(media.clone(), start.epoch, config).unwrap();
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    for number in 0..RECORDS {
        let new = NewBlock {
            pba: Pba(number),
            fingerprint: Fingerprint(rng.random()),
            crc32c: rng.random(),
        };
        let entry = MapEntry {
            old: None,
            new: Some(new),
        };
        let record = Record::Map {
            map: 1,
            start: number,
            entries: vec![entry],
        };
        journal.append([&record]).unwrap();
    }
    drop(journal);
    let (_, replayed) = Journal::open(media.clone(), start, config).unwrap();
    assert_eq!(replayed.len() as u64, RECORDS);
    let read = media.read_bytes.load(Ordering::Relaxed);
    assert!(read < 8 * media.capacity(), "{read} bytes were read");
}
