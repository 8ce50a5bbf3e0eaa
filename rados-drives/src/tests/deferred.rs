//! Small writes that go to the cluster with the journal: nothing is lost that was flushed, whoever has the drive next.

use drives::nodes::Process;
use std::collections::BTreeMap;
use std::sync::Arc;

use conformance::Races;
use drives::{Drive, ErrorKind};
use proptest::prelude::*;
use uuid::Uuid;

use super::model::Model;
use super::{extent, filled, open, open_as, options, read, story, wait_for, write};
use crate::client::Errno;
use crate::{Claim, RadosDrive};

/// Blocks whose writes are deferred; the journal is behind them.
const DATA: u64 = 3000;

/// A block of the journal, and one in another object.
const JOURNAL: u64 = 4000;
const JOURNAL_BEHIND: u64 = 4200;

/// One that is written when the drive is opened.
const JOURNAL_BEGIN: u64 = 4001;

async fn deferring(model: &Arc<Model>, node: &str) -> RadosDrive {
    let drive = open_as(model, options(), Process::elsewhere(node)).await;
    let drive = drive.expect("it opens");
    let claimed = drive.claim(Uuid::from_u128(1), Claim::Forced).await;
    claimed.expect("it is taken");
    drive.defer_writes(0..DATA);
    // From the first block of the journal on it is known where the journal is.
    write_flushing(&drive, JOURNAL_BEGIN, 0).await;
    drive
}

async fn write_flushing(drive: &RadosDrive, block: u64, byte: u8) {
    let (result, _) = drive
        .write_flushing(filled(1, byte), &[extent(block, 1)])
        .await;
    result.expect("written");
}

#[test]
fn a_drive_that_defers_writes_does_what_every_drive_must() {
    let model = Model::new();
    story(async || {
        let drive = Arc::new(deferring(&model, "a").await);
        for seed in 0..3 {
            conformance::check(drive.clone(), Races::ReadsAreWhole, seed).await;
        }
    });
}

#[test]
fn a_small_write_goes_to_the_cluster_with_the_journal_and_to_its_place_later() {
    let model = Model::new();
    story(async || {
        let drive = deferring(&model, "a").await;
        let before = model.operations();
        write(&drive, 7, 1).await.expect("written");
        write(&drive, 2000, 2).await.expect("written");
        assert_eq!(model.operations(), before, "both wait");
        assert_eq!(read(&drive, 7).await.expect("read"), 1);
        let before = model.operations();
        write_flushing(&drive, JOURNAL, 3).await;
        assert_eq!(model.operations(), before + 1, "one for all");
        wait_for("both in their places", || {
            model.data("onefold.d.data.000000000001", (2000 % 1024) * 4096) == Some(2)
        })
        .await;
        assert_eq!(read(&drive, 7).await.expect("read"), 1);
        write(&drive, 7, 4).await.expect("written");
        write_flushing(&drive, JOURNAL, 5).await;
        drop(drive);
        let next = deferring(&model, "b").await;
        for (block, byte) in [(7, 4), (2000, 2), (JOURNAL, 5)] {
            assert_eq!(
                read(&next, block).await.expect("read"),
                byte,
                "block {block}"
            );
        }
    });
}

#[test]
fn a_large_write_and_one_beside_the_data_are_not_deferred() {
    let model = Model::new();
    story(async || {
        let drive = deferring(&model, "a").await;
        let (result, _) = drive.write(filled(64, 1), &[extent(0, 64)]).await;
        result.expect("written");
        write(&drive, DATA, 2).await.expect("written");
        drop(drive);
        let next = deferring(&model, "b").await;
        assert_eq!(read(&next, 63).await.expect("read"), 1);
        assert_eq!(read(&next, DATA).await.expect("read"), 2);
    });
}

#[test]
fn what_was_not_flushed_is_lost_with_its_owner_and_nothing_else_is() {
    let model = Model::new();
    story(async || {
        let drive = deferring(&model, "a").await;
        write(&drive, 7, 1).await.expect("written");
        drive.flush().await.expect("flushed");
        write(&drive, 7, 2).await.expect("written");
        write(&drive, 8, 3).await.expect("written");
        let next = deferring(&model, "b").await;
        assert_eq!(read(&next, 7).await.expect("read"), 1);
        assert_eq!(read(&next, 8).await.expect("read"), 0);
        let error = write(&drive, 9, 4).await;
        let lost = drive.flush().await.and(error);
        assert_eq!(
            lost.expect_err("it was taken over").kind(),
            ErrorKind::InUse
        );
        read(&drive, 8)
            .await
            .expect_err("the next owner may have written it since");
    });
}

#[test]
fn a_block_that_is_written_anew_or_discarded_is_not_what_was_deferred_before() {
    let model = Model::new();
    story(async || {
        let drive = deferring(&model, "a").await;
        for block in [7, 100, 200] {
            write(&drive, block, 1).await.expect("written");
        }
        write_flushing(&drive, JOURNAL, 1).await;
        // Too large to be deferred.
        let (result, _) = drive.write(filled(64, 2), &[extent(90, 64)]).await;
        result.expect("written");
        drive.discard(200, 1).await.expect("discarded");
        let next = deferring(&model, "b").await;
        for (block, byte) in [(7, 1), (100, 2), (200, 0)] {
            assert_eq!(
                read(&next, block).await.expect("read"),
                byte,
                "block {block}"
            );
        }
    });
}

#[test]
fn a_whole_object_is_discarded_and_the_listing_behind_it_stays() {
    let model = Model::new();
    story(async || {
        let drive = deferring(&model, "a").await;
        write(&drive, 7, 1).await.expect("written");
        write_flushing(&drive, JOURNAL, 1).await;
        drive.discard(3072, 1024).await.expect("discarded");
        let next = deferring(&model, "b").await;
        assert_eq!(read(&next, JOURNAL).await.expect("read"), 0);
        assert_eq!(read(&next, 7).await.expect("read"), 1);
    });
}

#[test]
fn a_journal_in_two_objects_is_there_only_with_the_data_before_it() {
    let model = Model::new();
    story(async || {
        let drive = deferring(&model, "a").await;
        write(&drive, 7, 1).await.expect("written");
        let extents = [extent(JOURNAL, 1), {
            let mut behind = extent(JOURNAL_BEHIND, 1);
            behind.buffer_offset = 4096;
            behind
        }];
        model.fail_after(1, Errno(libc::EIO));
        let (result, _) = drive.write_flushing(filled(2, 9), &extents).await;
        result.expect_err("the second operation fails");
        model.fail(None);
        let next = deferring(&model, "b").await;
        assert_eq!(read(&next, 7).await.expect("read"), 1);
        assert_eq!(read(&next, JOURNAL).await.expect("read"), 9);
        assert_eq!(read(&next, JOURNAL_BEHIND).await.expect("read"), 0);
    });
}

#[test]
fn a_logging_without_an_answer_is_fenced_before_the_next_one() {
    let model = Model::new();
    story(async || {
        let drive = deferring(&model, "a").await;
        write(&drive, 7, 1).await.expect("written");
        write_flushing(&drive, JOURNAL, 1).await;
        write(&drive, 7, 2).await.expect("written");
        model.hold_changes(true);
        let (result, _) = drive
            .write_flushing(filled(1, 2), &[extent(JOURNAL, 1)])
            .await;
        assert!(result.expect_err("no answer").is_in_doubt());
        model.hold_changes(false);
        assert_eq!(read(&drive, 7).await.expect("read"), 2, "it waits again");
        write(&drive, 7, 3).await.expect("written");
        write_flushing(&drive, JOURNAL, 3).await;
        let (taken, refused) = model.deliver();
        assert_eq!(taken, 0, "an older listing came after a newer one");
        assert!(refused >= 1);
        let next = deferring(&model, "b").await;
        assert_eq!(read(&next, 7).await.expect("read"), 3);
        assert_eq!(read(&next, JOURNAL).await.expect("read"), 3);
    });
}

#[test]
fn what_was_taken_goes_to_a_cluster_that_became_full_and_what_comes_then_is_refused() {
    let model = Model::new();
    story(async || {
        let drive = deferring(&model, "a").await;
        model.refuse_growth(true);
        write(&drive, 7, 1).await.expect("taken");
        write_flushing(&drive, JOURNAL, 1).await;
        write(&drive, 8, 2).await.expect("taken");
        // The journal goes on in another object.
        write_flushing(&drive, JOURNAL_BEHIND, 2).await;
        let refused = loop {
            if let Err(error) = write(&drive, 9, 3).await {
                break error;
            }
            drive.flush().await.expect("there is room for it");
            reactor::sleep(std::time::Duration::from_millis(5)).await;
        };
        assert_eq!(refused.kind(), ErrorKind::NoSpace, "{refused}");
        for (block, byte) in [(7, 1), (8, 2)] {
            assert_eq!(read(&drive, block).await.expect("read"), byte);
        }
        model.refuse_growth(false);
        let next = deferring(&model, "b").await;
        for (block, byte) in [(7, 1), (8, 2), (JOURNAL_BEHIND, 2)] {
            assert_eq!(read(&next, block).await.expect("read"), byte);
        }
    });
}

#[test]
fn deferred_writes_that_do_not_reach_their_places_are_bounded_and_kept() {
    let model = Model::new();
    story(async || {
        let drive = deferring(&model, "a").await;
        model.refuse_objects("onefold.d.data.000000000000", Some(Errno::NO_SPACE));
        let mut deferred = 0;
        let refused = loop {
            match write(&drive, deferred, 1).await {
                Ok(()) => deferred += 1,
                Err(error) => break error,
            }
            write_flushing(&drive, JOURNAL, 1).await;
            assert!(deferred < 2000, "nothing bounds it");
        };
        assert_eq!(refused.kind(), ErrorKind::NoSpace, "{refused}");
        assert!(deferred > 0, "the first one is taken");
        assert_eq!(read(&drive, 0).await.expect("read"), 1);
        model.refuse_objects("onefold.d.data.000000000000", None);
        let next = deferring(&model, "b").await;
        assert_eq!(read(&next, deferred - 1).await.expect("read"), 1);
    });
}

#[test]
fn an_area_that_does_not_hold_what_was_logged_is_refused_by_name_and_nothing_is_written() {
    let model = Model::new();
    story(async || {
        let drive = deferring(&model, "a").await;
        model.refuse_objects("onefold.d.data.000000000000", Some(Errno::NO_SPACE));
        write(&drive, 7, 1).await.expect("written");
        write_flushing(&drive, JOURNAL, 1).await;
        model.refuse_objects("onefold.d.data.000000000000", None);
        let object = "onefold.d.data.000000000003";
        for (at, words) in [
            ((4 << 20) + 4096, "that was logged there"),
            (4 << 20, "no sound listing"),
        ] {
            model.flip(object, at);
            let next = open(&model).await;
            let claimed = next.claim(Uuid::from_u128(1), Claim::Forced).await;
            let error = claimed.expect_err("it is damaged");
            assert_eq!(error.kind(), ErrorKind::Truncated, "{error}");
            assert!(error.to_string().contains(object), "{error}");
            assert!(error.to_string().contains(words), "{error}");
            assert!(error.to_string().contains("backup"), "{error}");
            model.flip(object, at);
        }
        let next = deferring(&model, "c").await;
        assert_eq!(read(&next, 7).await.expect("read"), 1);
    });
}

/// What a story does.
#[derive(Clone, Debug)]
enum Step {
    /// Writes so many blocks.
    Write(u64, u32),
    Discard(u64, u64),
    /// Writes the journal, and flushes with it.
    Journal,
    Flush,
    /// What is logged goes to its place.
    Pause,
    /// Another node takes the drive.
    TakeOver,
    /// The cluster does not answer this change, and the next flush fails.
    Lose,
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..40_u64, 1..6_u32).prop_map(|(block, blocks)| Step::Write(block * 37 % 1100, blocks)),
        2 => (0..1000_u64).prop_map(|block| Step::Write(block, 40)),
        1 => (0..1100_u64, 1..60_u64).prop_map(|(block, blocks)| Step::Discard(block, blocks)),
        4 => Just(Step::Journal),
        1 => Just(Step::Flush),
        1 => Just(Step::Pause),
        2 => Just(Step::TakeOver),
        1 => Just(Step::Lose),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn the_next_owner_reads_of_each_block_what_was_flushed_or_written_since(
        steps in proptest::collection::vec(any_step(), 1..60),
    ) {
        let model = Model::new();
        story(async || run(&model, &steps).await);
    }
}

async fn run(model: &Arc<Model>, steps: &[Step]) {
    let mut drive = deferring(model, "n").await;
    // Of each block what it may hold, the newest one last.
    let mut blocks: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
    for (number, step) in steps.iter().enumerate() {
        let byte = (number % 255) as u8 + 1;
        match step {
            Step::Write(block, count) => {
                let (result, _) = drive
                    .write(filled(*count as usize, byte), &[extent(*block, *count)])
                    .await;
                result.expect("written");
                for block in *block..*block + u64::from(*count) {
                    blocks.entry(block).or_insert_with(|| vec![0]).push(byte);
                }
            }
            Step::Discard(block, count) => {
                drive.discard(*block, *count).await.expect("discarded");
                for block in *block..*block + *count {
                    blocks.insert(block, vec![0]);
                }
            }
            Step::Journal => {
                write_flushing(&drive, JOURNAL, byte).await;
                keep_newest(&mut blocks);
            }
            Step::Flush => {
                drive.flush().await.expect("flushed");
                keep_newest(&mut blocks);
            }
            Step::Pause => {
                let unplaced = || drive.shared.deferred.state().unplaced_bytes();
                wait_for("all in place", || unplaced() == 0).await;
            }
            Step::Lose => {
                write(&drive, 3, byte)
                    .await
                    .expect("it waits, or is written");
                blocks.entry(3).or_insert_with(|| vec![0]).push(byte);
                model.hold_changes(true);
                let flushed = drive.flush().await;
                model.hold_changes(false);
                // Another thing may have fenced it.
                if flushed.is_ok() {
                    keep_newest(&mut blocks);
                }
            }
            Step::TakeOver => {
                let next = deferring(model, "n").await;
                model.deliver();
                drop(std::mem::replace(&mut drive, next));
                for (block, bytes) in &mut blocks {
                    let found = read(&drive, *block).await.expect("read");
                    assert!(
                        bytes.contains(&found),
                        "block {block} holds {found}, and may hold {bytes:?}"
                    );
                    *bytes = vec![found];
                }
            }
        }
        let newest = blocks.iter().nth(number % blocks.len().max(1));
        if let Some((block, bytes)) = newest {
            let found = read(&drive, *block).await.expect("read");
            assert_eq!(Some(&found), bytes.last(), "block {block} after {step:?}");
        }
    }
}

fn keep_newest(blocks: &mut BTreeMap<u64, Vec<u8>>) {
    for bytes in blocks.values_mut() {
        bytes.drain(..bytes.len() - 1);
    }
}
