use drives::{Drive, FaultDrive, FaultPlan};
use futures_util::FutureExt;
use meta::{DriveLabel, Label, MemoryStore};

use super::*;
use crate::LABEL_BLOCKS;
use crate::drive_io::labels::write_new_label;
use crate::drive_io::layout::tests::complete;

const BLOCKS: u64 = 300;

fn buffers() -> BufferPool {
    BufferPool::new(1 << 20).expect("memory")
}

fn label(index: u16) -> DriveLabel {
    DriveLabel {
        pool: Uuid::from_u128(1),
        drive: Uuid::from_u128(2 + u128::from(index)),
        index,
        blocks: BLOCKS,
        sub_block_bytes: 4096,
    }
}

fn pool(drives: u16, id: u128) -> PoolLabels {
    PoolLabels {
        drives: (0..drives).map(label).collect(),
        opening: Opening {
            id: Uuid::from_u128(id),
            ..Opening::default()
        },
        accepted_epoch: None,
    }
}

/// New drives of a pool, that fail as these plans say when it is opened.
fn drives(plans: &[FaultPlan]) -> Vec<Arc<FaultDrive>> {
    let new = |(index, plan): (u16, &FaultPlan)| {
        let drive = FaultDrive::new(BLOCKS, FaultPlan::default());
        let memory = buffers();
        let written = write_new_label(&drive, label(index), Opening::default(), &memory);
        written.now_or_never().expect("at once").expect("written");
        Arc::new(drive.restart(plan.clone()))
    };
    (0..).zip(plans).map(new).collect()
}

fn list_of(drives: &[Arc<FaultDrive>]) -> DriveList {
    let drives = drives.iter();
    let drives: Vec<_> = drives
        .map(|drive| drive.clone() as Arc<dyn Drive>)
        .collect();
    let sizes = vec![BLOCKS - LABEL_BLOCKS; drives.len()];
    let segments = complete(&Vec::new(), &sizes, 1, 0).expect("segments");
    DriveList::new(&drives, &segments, &[])
}

fn store() -> Arc<dyn Store> {
    Arc::new(MemoryStore::new())
}

fn claim(drives: &[Arc<FaultDrive>], pool: &PoolLabels, epoch: u32) -> Result<Vec<Mark>> {
    let (drives, buffers) = (list_of(drives), buffers());
    let claim = async {
        let labels = Labels::read(&drives, Some(pool), &buffers).await?;
        let store = (&store(), Blocking::Inline);
        labels.write(pool, epoch, store, &buffers).await
    };
    claim.now_or_never().expect("nothing waits")
}

fn epochs(drives: &[Arc<FaultDrive>]) -> Vec<u32> {
    let (drives, pool) = (list_of(drives), pool(drives.len() as u16, 0));
    let labels = Labels::read(&drives, Some(&pool), &buffers()).now_or_never();
    let labels = labels.expect("nothing waits").expect("whole labels");
    labels.found.iter().map(|(_, f)| f.label.epoch()).collect()
}

fn settings_of<const N: usize>(rows: [(&str, Vec<u8>); N]) -> BTreeMap<String, Vec<u8>> {
    let rows = rows.into_iter();
    rows.map(|(key, value)| (key.to_owned(), value)).collect()
}

fn found(at: usize, opening: Opening, sequence: u64) -> ChosenLabel {
    ChosenLabel {
        label: Label {
            drive: label(at as u16),
            sequence,
            opening: Some(opening),
        },
        next_copy: 0,
        is_half: false,
    }
}

fn opening(epoch: u32, id: u128) -> Opening {
    Opening {
        epoch,
        id: Uuid::from_u128(id),
        ..Opening::default()
    }
}

#[test]
fn an_epoch_that_half_of_the_drives_do_not_take_is_not_begun() {
    // An opening reads two copies, writes one and flushes.
    let fails = |write: bool| FaultPlan {
        fail: vec![if write { 2 } else { 3 }],
        ..FaultPlan::default()
    };
    for write in [true, false] {
        let three = drives(&[FaultPlan::default(), fails(write), FaultPlan::default()]);
        let marks = claim(&three, &pool(3, 1), 7).unwrap();
        let certain = [(7, 3), (0, 2), (7, 3)];
        assert_eq!(
            marks,
            certain.map(|(epoch, sequence)| Mark { epoch, sequence })
        );
        let [first, second, third] = epochs(&three)[..] else {
            panic!("three drives")
        };
        assert_eq!((first, third), (7, 7));
        assert!(!write || second == 0, "it failed to write");
        let two = drives(&[FaultPlan::default(), fails(write)]);
        let error = claim(&two, &pool(2, 1), 7).unwrap_err();
        assert!(error.message.contains("1 of 2 did not"), "{error}");
        let one = drives(&[fails(write)]);
        assert!(claim(&one, &pool(1, 1), 7).is_err());
    }
}

#[test]
fn a_power_cut_between_and_within_the_writes_of_labels_leaves_each_whole() {
    for seed in 0..20 {
        for cut in 2..4 {
            for at in 0..3 {
                let plan = |drive| FaultPlan {
                    seed,
                    power_cut: (drive == at).then_some(cut),
                    ..FaultPlan::default()
                };
                let before = drives(&[plan(0), plan(1), plan(2)]);
                let (all, pool, memory) = (list_of(&before), pool(3, 1), buffers());
                let claim = async {
                    let labels = Labels::read(&all, Some(&pool), &memory).await?;
                    let store = (&store(), Blocking::Inline);
                    labels.write(&pool, 7, store, &memory).await
                };
                // The drive without power never answers.
                assert!(claim.now_or_never().is_none());
                let after = before.iter().map(|drive| drive.crash(FaultPlan::default()));
                let after: Vec<_> = after.map(Arc::new).collect();
                let epochs = epochs(&after);
                assert!(
                    epochs.iter().all(|epoch| [0, 7].contains(epoch)),
                    "{epochs:?}"
                );
                // And the next opening brings all of them to its own.
                super::tests::claim(&after, &pool, 8).unwrap();
                assert_eq!(super::tests::epochs(&after), [8; 3]);
            }
        }
    }
}

#[test]
fn metadata_that_has_not_seen_the_last_opening_is_an_older_copy() {
    let settings = settings_of([(OPENING_KEY, stored(7, Uuid::from_u128(5)))]);
    let is_older = |epoch, of_label: &Opening, accepted| {
        let found = found(0, of_label.clone(), 1);
        let labels = std::iter::once((0, &found));
        let older = older_copies(labels, epoch, &settings, accepted);
        matches!(older[..], [OlderCopy::Metadata(_)])
    };
    assert!(!is_older(7, &opening(7, 5), None), "the same opening");
    assert!(!is_older(7, &opening(6, 4), None), "an earlier one");
    assert!(is_older(7, &opening(8, 6), None), "a later one");
    assert!(is_older(7, &opening(7, 6), None), "another one beside it");
    assert!(
        !is_older(8, &opening(8, 6), None),
        "of a repair: nobody knows better"
    );
    assert!(!is_older(7, &opening(8, 6), Some(8)), "it is accepted");
    assert!(!is_older(7, &opening(7, 6), Some(7)), "it is accepted");
    assert!(
        is_older(7, &opening(9, 6), Some(8)),
        "there was one more since"
    );
}

#[test]
fn a_drive_whose_label_says_less_than_was_written_to_it_is_an_older_copy() {
    let marks = [(7, 12), (5, 9)].map(|(epoch, sequence)| Mark { epoch, sequence });
    let settings = settings_of([
        (OPENING_KEY, stored(8, Uuid::from_u128(6))),
        (LABELS_KEY, known(7, Uuid::from_u128(5), &marks)),
    ]);
    let is_older = |at: usize, of_label: Opening, sequence, accepted| {
        let found = found(at, of_label, sequence);
        let older = older_copies(std::iter::once((at, &found)), 8, &settings, accepted);
        matches!(older[..], [OlderCopy::Drive(..)])
    };
    assert!(!is_older(0, opening(7, 5), 12, None), "as it was written");
    assert!(
        !is_older(0, opening(8, 6), 13, None),
        "the next opening was interrupted when the label was written"
    );
    assert!(is_older(0, opening(6, 4), 11, None), "from before");
    assert!(is_older(0, opening(7, 5), 11, None), "of the same opening");
    assert!(
        is_older(0, opening(6, 4), 20, None),
        "of an earlier epoch, whatever its number"
    );
    assert!(
        is_older(0, opening(7, 4), 12, None),
        "written by another copy of the metadata"
    );
    assert!(
        !is_older(1, opening(5, 3), 9, None),
        "it could not be written since"
    );
    assert!(is_older(1, opening(4, 2), 8, None), "older than that");
    let mut torn = found(0, opening(6, 4), 11);
    torn.is_half = true;
    let is_torn_older = |torn: &ChosenLabel| {
        let labels = std::iter::once((0, torn));
        !older_copies(labels, 8, &settings, None).is_empty()
    };
    assert!(!is_torn_older(&torn), "the damaged copy was the newer one");
    torn.label.sequence = 10;
    assert!(is_torn_older(&torn), "whatever the damaged copy said");
    assert!(!is_older(2, opening(3, 1), 1, None), "it was added since");
    assert!(!is_older(0, opening(6, 4), 11, Some(7)), "it is accepted");
    assert!(
        is_older(0, opening(6, 4), 11, Some(6)),
        "something else was accepted, earlier"
    );
}

#[test]
fn a_torn_copy_beside_one_that_cannot_be_read_is_a_drive_to_try_again_and_no_lost_label() {
    let memory = buffers();
    let [drive] = &drives(&[FaultPlan::default()])[..] else {
        panic!("one drive")
    };
    let torn = drive.write(
        memory.try_alloc(4096).expect("memory"),
        &[drives::Extent {
            block: 1,
            buffer_offset: 0,
            blocks: 1,
        }],
    );
    torn.now_or_never().expect("at once").0.expect("written");
    let fails = FaultPlan {
        fail: vec![0, 1],
        ..FaultPlan::default()
    };
    let drive = [Arc::new(drive.restart(fails))];
    let error = claim(&drive, &pool(1, 3), 4).unwrap_err();
    assert_eq!(error.kind, crate::ErrorKind::Unavailable, "{error}");
    claim(&drive, &pool(1, 3), 4).unwrap();
}

#[test]
fn a_label_without_an_epoch_gets_one_in_both_copies() {
    let drive = Arc::new(FaultDrive::new(BLOCKS, FaultPlan::default()));
    let old = Label {
        drive: label(0),
        sequence: 0,
        opening: None,
    };
    let memory = buffers();
    for copy in 0..2 {
        let write = crate::drive_io::labels::write_copy(&*drive, &old, copy, &memory);
        write.now_or_never().expect("at once").expect("written");
    }
    claim(std::slice::from_ref(&drive), &pool(1, 3), 4).unwrap();
    let copies = read_label(&*drive, &memory).now_or_never();
    let copies = copies.expect("at once").expect("read");
    for copy in copies {
        let label = Label::decode(&copy).expect("a whole copy");
        let opening = label.opening.expect("of the new version");
        assert_eq!((opening.epoch, opening.drives), (4, 1));
    }
}
