//! A journal and a store of two different moments: whichever is the older one, it is found out.

use std::sync::Arc;

use meta::{Checkpoint, Journal, JournalError, JournalMedia, MemoryMedia, Position, Record};

use super::{SMALL, at, media, sector_record};

#[test]
fn a_store_older_than_the_journal_is_found_out() {
    // The store forgot that epoch 2 had begun.
    let media = media(65_536);
    let stored = at(Position::START, 1);
    let mut journal = Journal::create(media.clone(), 1, SMALL).unwrap();
    journal.append(&[sector_record(0)]).unwrap();
    let (mut journal, _) = Journal::open(media.clone(), stored, SMALL).unwrap();
    journal.begin(journal.next_checkpoint().unwrap()).unwrap();
    journal.append(&[sector_record(1)]).unwrap();
    let error = Journal::open(media.clone(), stored, SMALL).err().unwrap();
    assert!(
        matches!(
            error,
            JournalError::StoreBehind {
                found: 2,
                stored: 1,
                ..
            }
        ),
        "{error}"
    );

    // The store forgot a checkpoint whose records were released and overwritten.
    let media = super::media(4096);
    let mut journal = Journal::create(media.clone(), 1, SMALL).unwrap();
    for number in 0..20 {
        journal.append(&[sector_record(number)]).unwrap();
        journal.release(journal.position()).unwrap();
    }
    let error = Journal::open(media, stored, SMALL).err().unwrap();
    assert!(
        matches!(error, JournalError::Damaged { seq: 1, .. }),
        "{error}"
    );
}

/// What a store has that took all that was appended.
fn store_all(journal: &mut Journal) -> Checkpoint {
    let mut reader = journal.reader();
    while reader.read().unwrap().is_some() {}
    journal.sync().unwrap();
    let stored = reader.checkpoint();
    journal.release(stored.position).unwrap();
    stored
}

fn copy_of(media: &MemoryMedia) -> Arc<MemoryMedia> {
    let mut bytes = vec![0; media.capacity() as usize];
    media.read_at(0, &mut bytes).unwrap();
    let copy = super::media(media.capacity());
    copy.write_at(0, &bytes).unwrap();
    copy.sync().unwrap();
    copy
}

#[test]
fn a_journal_older_than_the_store_is_refused_and_opens_with_the_store_of_its_moment() {
    for bytes in [65_536, 4096] {
        let media = media(bytes);
        let mut journal = Journal::create(media.clone(), 1, SMALL).unwrap();
        let mut copies: Vec<(Checkpoint, Arc<MemoryMedia>)> = Vec::new();
        let mut seq = 0;
        // In the small ring, three laps; some moments have records after what is stored, and each life
        // has some moments.
        for number in 0..24 {
            journal.append(&[sector_record(number)]).unwrap();
            seq += 1;
            let stored = store_all(&mut journal);
            assert_eq!(stored.position.seq, seq + 1);
            copies.push((stored, copy_of(&media)));
            if number % 3 == 1 {
                journal.append(&[sector_record(100 + number)]).unwrap();
                seq += 1;
                copies.push((stored, copy_of(&media)));
            }
            if number % 5 == 4 {
                journal = Journal::open(media.clone(), stored, SMALL).unwrap().0;
                journal.settle().unwrap();
                let stored = journal.next_checkpoint().unwrap();
                journal.begin(stored).unwrap();
                copies.push((stored, copy_of(&media)));
            }
        }
        for (moment, (stored, _)) in copies.iter().enumerate() {
            for (older, (then, copy)) in copies[..=moment].iter().enumerate() {
                let opened = Journal::open(copy.clone(), *stored, SMALL);
                if then.position == stored.position {
                    // Nothing was stored between the two, but perhaps a new epoch began.
                    assert!(opened.is_ok(), "{older} with the store of {moment}");
                    continue;
                }
                let error = opened.err();
                let refused = matches!(
                    error,
                    Some(JournalError::JournalBehind { seq, .. }) if seq == stored.position.seq - 1
                );
                // A record that was in the journal then, and that the store has taken since, is the last
                // one that it has: no more is missing.
                let has_it = Journal::open(copy.clone(), *then, SMALL)
                    .is_ok_and(|(journal, _)| journal.position() == stored.position);
                assert!(
                    refused || has_it,
                    "{older} with the store of {moment}: {error:?}"
                );
                if let Some(error) = error {
                    let message = error.to_string();
                    assert!(
                        message.contains("restore `journal` and `metadata/`"),
                        "{message}"
                    );
                }
            }
        }
    }
}

#[test]
fn the_last_record_that_the_store_has_stays_however_full_the_journal_gets() {
    for first in 0..9 {
        let media = media(4096);
        let mut journal = Journal::create(media.clone(), 1, SMALL).unwrap();
        for number in 0..=first {
            journal.append(&[sector_record(number)]).unwrap();
            store_all(&mut journal);
        }
        let stored = store_all(&mut journal);
        media.sync().unwrap();
        while journal.append(&[sector_record(77)]).is_ok() {}
        while journal.append(&[Record::Durable { upto: 1 }]).is_ok() {}
        // Power fails, and of what followed only what was written over earlier laps has reached the drive.
        let end = stored.position.offset as usize;
        let next = vec![0; (4096 - end).min(512)];
        media.write_at(end as u64, &next).unwrap();
        let (_, replayed) = Journal::open(media, stored, SMALL).unwrap();
        assert_eq!(replayed, []);
    }
}

#[test]
fn a_journal_that_is_older_by_whole_laps_is_found_out() {
    // Eight records make a lap, so that records of all laps lie at the same offsets.
    let media = media(8 * 512);
    let mut journal = Journal::create(media.clone(), 1, SMALL).unwrap();
    let mut moments = Vec::new();
    for number in 0..24 {
        journal.append(&[sector_record(number)]).unwrap();
        moments.push((store_all(&mut journal), copy_of(&media)));
    }
    for (older, newer) in (8..16).map(|at| (&moments[at], &moments[at + 8])) {
        let (stored, copy) = (newer.0, older.1.clone());
        assert_eq!(older.0.position.offset, stored.position.offset);
        let error = Journal::open(copy, stored, SMALL).err().expect("an error");
        assert!(
            matches!(error, JournalError::JournalBehind { seq, .. } if seq == stored.position.seq - 1),
            "{error}"
        );
    }
}

#[test]
fn the_last_record_of_another_epoch_does_not_stand_for_that_of_the_store() {
    let media = media(65_536);
    let start = at(Position::START, 1);
    let mut journal = Journal::create(media.clone(), 1, SMALL).unwrap();
    journal.append(&[sector_record(0)]).unwrap();
    // A copy is made, then power is lost, and the record with it; the host tries again.
    let copy = copy_of(&media);
    let media = super::media(65_536);
    let (mut journal, _) = Journal::open(media.clone(), start, SMALL).unwrap();
    journal.begin(journal.next_checkpoint().unwrap()).unwrap();
    journal.append(&[sector_record(1)]).unwrap();
    let stored = store_all(&mut journal);
    assert!(Journal::open(media, stored, SMALL).is_ok());
    let error = Journal::open(copy, stored, SMALL).err().unwrap();
    assert!(
        matches!(error, JournalError::JournalBehind { seq: 1, .. }),
        "{error}"
    );
}
