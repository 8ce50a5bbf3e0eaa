//! Appends that are written side by side, and owners that do not know that they are deposed.
//!
//! Each story reserves ranges for records in order, writes them in any order, and ends in a crash or in a take-over, after
//! which the old owner goes on writing what it had in mind. What was told before is there afterwards, and nothing that
//! nobody appended.

use std::sync::Arc;

use meta::{Checkpoint, Frames, Journal, MemoryMedia, Position, Record, ReservedRange};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{SMALL, at, common, media, random_record};

/// A rule that is broken on purpose.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Broken {
    Nothing,
    /// A record is told when it is written, though one before it is not.
    BelieveHoles,
    /// The media takes what an earlier owner writes.
    IgnoreEpochs,
}

/// An owner of the journal, and what it knows.
struct Owner {
    journal: Journal,
    /// Records that have a range, from `first` on.
    history: Vec<Record>,
    first: u64,
    /// Those that are to be written.
    open: Vec<(Frames, ReservedRange)>,
    /// Up to which record it has told somebody.
    told: u64,
    synced: u64,
}

impl Owner {
    fn new(journal: Journal) -> Self {
        let last = journal.last_seq();
        Self {
            journal,
            history: Vec::new(),
            first: last + 1,
            open: Vec::new(),
            told: last,
            synced: last,
        }
    }

    fn reserve(&mut self, rng: &mut ChaCha8Rng) {
        let count = rng.random_range(1..3);
        let records: Vec<Record> = (0..count).map(|_| random_record(rng)).collect();
        let frames = Frames::encode(&records);
        let Ok(range) = self.journal.reserve(&frames) else {
            return; // it is full
        };
        self.history.extend(records);
        assert_eq!(range.last(), self.first + self.history.len() as u64 - 1);
        self.open.push((frames, range));
    }

    /// Writes some of what is to be written; false if the media refuses.
    fn write(&mut self, rng: &mut ChaCha8Rng, broken: Broken) -> bool {
        if self.open.is_empty() {
            return true;
        }
        let (frames, range) = self.open.swap_remove(rng.random_range(0..self.open.len()));
        let last = range.last();
        let Ok(written) = self.journal.writer().write(frames, range) else {
            return false;
        };
        assert_eq!(written, self.journal.written_seq());
        let told = match broken {
            Broken::BelieveHoles => last,
            _ => written,
        };
        self.told = self.told.max(told);
        true
    }

    fn work(&mut self, rng: &mut ChaCha8Rng, broken: Broken) {
        for _ in 0..rng.random_range(0..20) {
            match rng.random_range(0..10) {
                0..5 => self.reserve(rng),
                5..9 => assert!(self.write(rng, broken), "the owner is refused"),
                _ => self.synced = self.journal.sync().unwrap(),
            }
            assert!(self.synced <= self.journal.written_seq());
        }
    }

    /// What is found must be a beginning of what it appended, and have what it told (`upto`).
    fn check(&self, found: &[(u64, Record)], upto: u64) -> Result<(), String> {
        let last = self.first - 1 + found.len() as u64;
        let appended = (self.first..).zip(self.history.iter().cloned());
        let expected: Vec<_> = appended.take(found.len()).collect();
        if found != expected {
            return Err(format!(
                "{} records are not those that were appended",
                found.len()
            ));
        }
        match last < upto {
            true => Err(format!("told up to {upto}, found up to {last}")),
            false => Ok(()),
        }
    }
}

fn story(seed: u64, broken: Broken) -> Result<(), String> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let media: Arc<MemoryMedia> = media(8192);
    if broken == Broken::IgnoreEpochs {
        media.ignore_epochs();
    }
    let mut stored: Checkpoint = at(Position::START, 1);
    let mut owner = Owner::new(Journal::create(media.clone(), 1, SMALL).unwrap());
    for _ in 0..4 {
        owner.work(&mut rng, broken);
        let is_alive: bool = rng.random();
        let loses_power = !is_alive && rng.random::<bool>();
        if loses_power {
            media.power_loss(rng.random());
        }
        let opened = Journal::open(media.clone(), stored, SMALL);
        let (mut journal, found) = opened.map_err(|error| error.to_string())?;
        owner.check(
            &found,
            if loses_power {
                owner.synced
            } else {
                owner.told
            },
        )?;
        journal.settle().unwrap();
        stored = journal.next_checkpoint().unwrap();
        journal.begin(stored).unwrap();
        let mut next = Owner::new(journal);
        if is_alive {
            // The old one has not heard of it, and writes between what the new one writes.
            next.work(&mut rng, broken);
            while !owner.open.is_empty() {
                let takes = owner.write(&mut rng, broken);
                if takes && broken != Broken::IgnoreEpochs {
                    return Err("a deposed owner is not refused".to_owned());
                }
            }
        }
        owner = next;
    }
    let (_, found) = Journal::open(media, stored, SMALL).map_err(|error| error.to_string())?;
    owner.check(&found, owner.told)
}

#[test]
fn what_was_told_is_there_however_appends_were_written_and_whoever_writes_too_late() {
    for seed in common::seeds(2000) {
        if let Err(wrong) = story(seed, Broken::Nothing) {
            panic!("seed {seed}: {wrong}; run with ONEFOLD_FIRST_SEED={seed} ONEFOLD_SEEDS=1");
        }
    }
}

#[test]
fn holes_that_are_believed_and_epochs_that_are_ignored_are_found_out() {
    for broken in [Broken::BelieveHoles, Broken::IgnoreEpochs] {
        let found = (0..500).filter(|seed| story(*seed, broken).is_err());
        assert!(found.count() > 0, "no story needs this rule");
    }
}
