//! Who may write: takeovers, owners that slept, and what was on its way.

use drives::nodes::{Ownership, Process};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use drives::{Drive, ErrorKind};
use futures_util::future::{join, join_all};
use uuid::Uuid;

use super::model::Model;
use super::{open_as, options, read, story, wait_for, write};
use crate::{Claim, Limits, OpenOptions, RadosDrive};

const POOL: Uuid = Uuid::from_u128(7);

async fn owner_on(model: &Arc<Model>, node: &str, options: OpenOptions) -> RadosDrive {
    let opened = open_as(model, options, Process::elsewhere(node)).await;
    let drive = opened.expect("it opens");
    drive.claim(POOL, Claim::Again).await.expect("claimed");
    drive
}

#[test]
fn a_living_owner_keeps_its_drive_and_is_named() {
    let model = Model::new();
    story(async || {
        let drive = owner_on(&model, "a", options()).await;
        let other = open_as(&model, options(), Process::elsewhere("b"))
            .await
            .expect("opens");
        let error = other
            .claim(POOL, Claim::Again)
            .await
            .expect_err("it is taken");
        assert_eq!(error.kind(), ErrorKind::InUse);
        assert!(error.to_string().contains("machine 'a'"), "{error}");
        write(&drive, 1, 1).await.expect("nobody was shut out");
        assert_eq!(model.blocklist(), 0);
    });
}

#[test]
fn an_owner_that_was_cut_off_loses_its_drive_and_nothing_of_it_happens_later() {
    let model = Model::new();
    story(async || {
        let told = Arc::new(AtomicU32::new(0));
        let counted = told.clone();
        let first = OpenOptions {
            on_taken_over: Some(Arc::new(move |name| {
                assert_eq!(name, "rados:p/d");
                counted.fetch_add(1, Ordering::Relaxed);
            })),
            ..options()
        };
        let first = owner_on(&model, "a", first).await;
        write(&first, 1, 1).await.expect("written");
        model.hold_changes(true);
        let error = write(&first, 1, 2).await.expect_err("it hangs");
        assert!(error.is_in_doubt(), "{error}");
        model.hold_changes(false);
        model.cut_off_all();
        let second = owner_on(&model, "b", options()).await;
        assert_eq!(read(&second, 1).await.expect("read"), 1);
        assert_eq!(
            told.load(Ordering::Relaxed),
            0,
            "the first one knows nothing yet"
        );
        model.connect_again();
        assert_eq!(model.deliver(), (0, 1), "what was on its way is refused");
        assert_eq!(read(&second, 1).await.expect("read"), 1);
        let error = write(&first, 2, 2)
            .await
            .expect_err("it is not its drive any more");
        assert_eq!(error.kind(), ErrorKind::InUse, "{error}");
        assert!(!error.is_in_doubt(), "{error}");
        read(&first, 1)
            .await
            .expect_err("what it reads may be the other's");
        first
            .flush()
            .await
            .expect_err("it must not say that data are safe");
        write(&second, 1, 3).await.expect("the new owner goes on");
        assert_eq!(told.load(Ordering::Relaxed), 1);
        drop(first);
        write(&second, 1, 4)
            .await
            .expect("the end of the old one takes nothing away");
    });
}

#[test]
fn an_owner_without_anything_to_do_is_told_by_the_renewal_of_its_lease() {
    let model = Model::new();
    story(async || {
        let told = Arc::new(AtomicU32::new(0));
        let counted = told.clone();
        let first = OpenOptions {
            on_taken_over: Some(Arc::new(move |_| {
                counted.fetch_add(1, Ordering::Relaxed);
            })),
            ..options()
        };
        let _first = owner_on(&model, "a", first).await;
        let second = open_as(&model, options(), Process::elsewhere("b"))
            .await
            .expect("opens");
        second.claim(POOL, Claim::Forced).await.expect("by force");
        wait_for("the renewal", || told.load(Ordering::Relaxed) == 1).await;
        write(&second, 1, 1).await.expect("it has the drive");
    });
}

#[test]
fn what_a_fence_leaves_behind_changes_nothing_and_the_drive_goes_on() {
    let model = Model::new();
    story(async || {
        let drive = owner_on(&model, "a", options()).await;
        write(&drive, 1, 1).await.expect("written");
        drive.fence().await.expect("nothing is in doubt");
        assert_eq!(model.blocklist(), 0);
        model.hold_changes(true);
        let error = write(&drive, 1, 2).await.expect_err("it hangs");
        assert!(error.is_in_doubt(), "{error}");
        model.hold_changes(false);
        drive.fence().await.expect("fenced");
        write(&drive, 1, 3).await.expect("by the next client");
        assert_eq!(model.deliver(), (0, 1));
        assert_eq!(read(&drive, 1).await.expect("read"), 3);
        assert_eq!(model.blocklist(), 1);
    });
}

#[test]
fn an_owner_that_fences_its_own_writes_does_not_take_back_what_another_had_meanwhile() {
    let model = Model::new();
    story(async || {
        let told = Arc::new(AtomicU32::new(0));
        for is_gone in [true, false] {
            let counted = told.clone();
            let first = OpenOptions {
                on_taken_over: Some(Arc::new(move |_| {
                    counted.fetch_add(1, Ordering::Relaxed);
                })),
                ..options()
            };
            let first = owner_on(&model, "a", first).await;
            model.hold_changes(true);
            write(&first, 1, 2).await.expect_err("it hangs");
            model.hold_changes(false);
            model.cut_off_all();
            let second = owner_on(&model, "b", options()).await;
            write(&second, 1, 3).await.expect("written");
            let before = told.load(Ordering::Relaxed);
            let second = match is_gone {
                true => {
                    drop(second);
                    let next = open_as(&model, options(), Process::elsewhere("c")).await;
                    let next = next.expect("it opens");
                    wait_for_owner_to_leave(&next).await;
                    None
                }
                false => Some(second),
            };
            model.connect_again();
            let error = first.fence().await.expect_err("its knowledge is old");
            assert_eq!(error.kind(), ErrorKind::InUse, "{error}");
            write(&first, 1, 4)
                .await
                .expect_err("it is not its drive any more");
            wait_for("the news", || told.load(Ordering::Relaxed) == before + 1).await;
            model.deliver();
            drop(second);
        }
    });
}

/// Returns when the drive can be had, and leaves it.
async fn wait_for_owner_to_leave(drive: &RadosDrive) {
    drive
        .claim(POOL, Claim::Again)
        .await
        .expect("the owner left");
}

#[test]
fn a_fence_is_never_taken_for_somebody_else_and_writes_wait_for_its_end() {
    let model = Model::new();
    story(async || {
        let told = Arc::new(AtomicU32::new(0));
        let counted = told.clone();
        let hasty = OpenOptions {
            limits: Limits {
                lease: Duration::from_millis(3),
                ..options().limits
            },
            on_taken_over: Some(Arc::new(move |_| {
                counted.fetch_add(1, Ordering::Relaxed);
            })),
            ..options()
        };
        let drive = owner_on(&model, "a", hasty).await;
        for round in 0..40 {
            model.hold_changes(true);
            write(&drive, 1, 2).await.expect_err("it hangs");
            model.hold_changes(false);
            // Beside writes that the fence interrupts.
            let beside = join_all((10..20).map(|block| write(&drive, block, round)));
            let (fenced, written) = join(drive.fence(), beside).await;
            fenced.expect("fenced");
            for written in written {
                written.expect("by one client or the other");
            }
            model.deliver();
        }
        assert_eq!(told.load(Ordering::Relaxed), 0, "nobody else has the drive");
        assert_eq!(model.blocklist(), 40);
    });
}

#[test]
fn a_drive_that_could_not_be_fenced_stays_in_doubt() {
    let model = Model::new();
    story(async || {
        let drive = owner_on(&model, "a", options()).await;
        model.hold_changes(true);
        write(&drive, 1, 2).await.expect_err("it hangs");
        model.fail(Some(crate::client::Errno(libc::EIO)));
        drive.fence().await.expect_err("the cluster does not do it");
        model.hold_changes(false);
        model.fail(None);
        write(&drive, 2, 2).await.expect_err("it is not fenced");
        drive.fence().await.expect("fenced");
        assert_eq!(model.deliver(), (0, 1));
    });
}

#[test]
fn the_next_process_of_a_machine_does_not_wait_for_the_lease_of_one_that_ended() {
    let model = Model::new();
    story(async || {
        let long = OpenOptions {
            limits: Limits {
                lease: Duration::from_secs(3600),
                ..options().limits
            },
            ..options()
        };
        let first = open_as(&model, long.clone(), Process::ended())
            .await
            .expect("opens");
        first.claim(POOL, Claim::First).await.expect("claimed");
        let began = Instant::now();
        let second = open_as(&model, long, Process::own()).await.expect("opens");
        second
            .claim(POOL, Claim::Again)
            .await
            .expect("claimed at once");
        assert!(began.elapsed() < Duration::from_secs(600));
        assert_eq!(model.blocklist(), 1);
        write(&first, 1, 1).await.expect_err("it ended");
    });
}

#[test]
fn an_owner_that_left_is_not_shut_out_and_one_that_left_something_is() {
    let model = Model::new();
    story(async || {
        let drive = owner_on(&model, "a", options()).await;
        write(&drive, 1, 1).await.expect("written");
        drop(drive);
        let drive = owner_on(&model, "b", options()).await;
        assert_eq!(model.blocklist(), 0);
        model.hold_changes(true);
        write(&drive, 1, 2).await.expect_err("it hangs");
        model.hold_changes(false);
        drop(drive);
        let drive = owner_on(&model, "c", options()).await;
        assert_eq!(model.deliver(), (0, 1));
        assert_eq!(read(&drive, 1).await.expect("read"), 1);
    });
}

#[test]
fn a_header_that_does_not_say_who_wrote_last_is_refused_unless_it_is_forced() {
    let model = Model::new();
    story(async || {
        drop(owner_on(&model, "a", options()).await);
        model.set_attribute("onefold.d.header", "onefold.owner", b"somebody");
        let drive = open_as(&model, options(), Process::own())
            .await
            .expect("opens");
        let error = drive
            .claim(POOL, Claim::Again)
            .await
            .expect_err("it is damaged");
        assert!(error.to_string().contains("onefold.d.header"), "{error}");
        drive.claim(POOL, Claim::Forced).await.expect("by force");
    });
}

#[test]
fn a_user_who_may_not_shut_others_out_is_told_so_when_it_opens_a_drive_or_joins_its_nodes() {
    let model = Model::new();
    story(async || {
        let drive = owner_on(&model, "a", options()).await;
        model.forbid_shutting_out(true);
        let opened = open_as(&model, options(), Process::elsewhere("b")).await;
        let opened = opened.expect_err("it could never take it over");
        let joined = super::nodes::join_as(&model, Process::elsewhere("b"));
        let joined = joined.expect_err("nor could this node");
        for error in [opened, joined] {
            let text = error.to_string();
            assert!(text.contains("ceph osd blocklist"), "{text}");
            assert!(text.contains("mon 'profile rbd'"), "{text}");
            assert!(text.contains("replaces the caps"), "{text}");
        }
        assert_eq!(model.blocklist(), 0, "nobody was shut out by asking");
        write(&drive, 1, 1).await.expect("who has it goes on");
    });
}

#[test]
fn whoever_looks_sees_a_living_owner_and_one_that_left() {
    let model = Model::new();
    story(async || {
        let drive = owner_on(&model, "a", options()).await;
        let other = open_as(&model, options(), Process::elsewhere("b")).await;
        let other = other.expect("it opens");
        let seen = other.owner().await.expect("the cluster says");
        assert_eq!(seen, Ownership::Owned("a".to_owned()));
        drop(drive);
        wait_for_owner_to_leave(&other).await;
    });
}
