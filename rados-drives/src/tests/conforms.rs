//! What every kind of drive must do, and what a cluster makes of it.

use drives::nodes::Process;
use std::sync::Arc;

use conformance::Races;
use drives::{Drive, ErrorKind};
use uuid::Uuid;

use super::model::Model;
use super::{BYTES, extent, filled, open, open_as, options, read, story, write};
use crate::client::Errno;
use crate::{Claim, OpenOptions, RadosDrive};

async fn owned(model: &Arc<Model>) -> RadosDrive {
    let drive = open(model).await;
    let claimed = drive.claim(Uuid::from_u128(1), Claim::First).await;
    claimed.expect("nobody has it");
    drive
}

#[test]
fn a_drive_in_a_cluster_does_what_every_drive_must() {
    let model = Model::new();
    story(async || {
        let drive = owned(&model).await;
        let drive = Arc::new(drive);
        for seed in 0..3 {
            conformance::check(drive.clone(), Races::ReadsAreWhole, seed).await;
        }
        let fail = |fails: bool| model.fail(fails.then_some(Errno(libc::EIO)));
        conformance::check_failures(drive, fail).await;
    });
}

#[test]
fn a_drive_that_is_opened_with_a_size_is_made_when_it_is_claimed_and_not_before() {
    let model = Model::new();
    story(async || {
        let drive = open(&model).await;
        assert!(drive.is_new());
        assert_eq!(read(&drive, 3).await.expect("read"), 0);
        assert!(model.objects().is_empty(), "nothing is made by looking");
        drive
            .claim(Uuid::from_u128(1), Claim::First)
            .await
            .expect("claimed");
        write(&drive, 1, 7).await.expect("written");
        drop(drive);
        let again = OpenOptions {
            create_bytes: None,
            ..options()
        };
        let drive = open_as(&model, again.clone(), Process::own())
            .await
            .expect("it is there");
        assert!(!drive.is_new());
        assert_eq!(drive.blocks(), BYTES / 4096);
        assert_eq!(read(&drive, 1).await.expect("read"), 7);
        let larger = OpenOptions {
            expected_blocks: Some(BYTES / 4096 + 1),
            ..again
        };
        let error = open_as(&model, larger, Process::own())
            .await
            .expect_err("it is smaller");
        assert_eq!(error.kind(), ErrorKind::Truncated);
    });
}

#[test]
fn a_drive_that_is_not_there_asks_for_a_size_and_one_that_is_no_drive_is_refused() {
    let model = Model::new();
    story(async || {
        let none = OpenOptions {
            create_bytes: None,
            ..options()
        };
        let error = open_as(&model, none, Process::own())
            .await
            .expect_err("nothing is there");
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.to_string().contains("rados:p/d=1T"), "{error}");
        let vast = OpenOptions {
            create_bytes: Some((1 << 60) + 4096),
            ..options()
        };
        let error = open_as(&model, vast, Process::own())
            .await
            .expect_err("positions would overflow");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        model.set_attribute("onefold.d.header", "onefold.size", b"much");
        let error = open_as(&model, options(), Process::own())
            .await
            .expect_err("no size");
        assert_eq!(error.kind(), ErrorKind::Truncated);
        assert!(error.to_string().contains("onefold.d.header"), "{error}");
    });
}

#[test]
fn what_is_discarded_gives_its_objects_back() {
    let model = Model::new();
    story(async || {
        let drive = owned(&model).await;
        for block in [1000, 1024, 2047, 2048] {
            write(&drive, block, 9).await.expect("written");
        }
        assert_eq!(model.objects().len(), 4, "{:?}", model.objects());
        drive.discard(1001, 2048 - 1001).await.expect("discarded");
        assert_eq!(model.objects().len(), 3, "{:?}", model.objects());
        for (block, byte) in [(1000, 9), (1024, 0), (2047, 0), (2048, 9)] {
            assert_eq!(
                read(&drive, block).await.expect("read"),
                byte,
                "block {block}"
            );
        }
    });
}

#[test]
fn a_cluster_that_is_full_or_forbids_something_is_told_with_the_remedy() {
    let model = Model::new();
    story(async || {
        let drive = owned(&model).await;
        for (errno, kind, words) in [
            (Errno::NO_SPACE, ErrorKind::NoSpace, "ceph df"),
            (Errno::NO_QUOTA, ErrorKind::NoSpace, "quota"),
            (
                Errno::NOT_PERMITTED,
                ErrorKind::Io,
                "ceph auth caps client.admin",
            ),
        ] {
            model.fail(Some(errno));
            let error = write(&drive, 1, 7).await.expect_err("it fails");
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.to_string().contains(words), "{error}");
            assert!(!error.is_in_doubt(), "{error}");
            model.fail(None);
        }
        write(&drive, 1, 8).await.expect("it works again");
    });
}

#[test]
fn a_transfer_over_several_objects_comes_back_as_it_was() {
    let model = Model::new();
    story(async || {
        let drive = owned(&model).await;
        let mut buffer = filled(512, 0);
        buffer
            .iter_mut()
            .zip(0_u32..)
            .for_each(|(byte, at)| *byte = (at / 4096) as u8 ^ at as u8);
        let expected = buffer.to_vec();
        let (written, buffer) = drive.write(buffer, &[extent(900, 512)]).await;
        written.expect("written");
        drop(buffer);
        let (result, buffer) = drive.read(filled(512, 1), &[extent(900, 512)]).await;
        result.expect("read");
        assert!(*buffer == expected[..]);
    });
}
