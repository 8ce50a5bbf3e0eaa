//! What is in doubt is settled by a fence, and two owners never write to one namespace.

use std::sync::atomic::Ordering;

use drives::{Drive, ErrorKind};
use fabric_drives::{Claim, RemoteDrive};
use futures_util::FutureExt;
use uuid::Uuid;

use crate::sled::{Sled, options, read, story, write};

const OWNER: Uuid = Uuid::from_u128(0x0001_0002_0003_0004_0005_0006_0007_0008);

/// A write that the target has and does not answer.
async fn doubtful_write(sled: &Sled, drive: &RemoteDrive) {
    sled.holds_writes.store(true, Ordering::Release);
    let error = write(drive, 5, 1).await.expect_err("no answer");
    assert!(error.is_in_doubt(), "{error}");
    sled.holds_writes.store(false, Ordering::Release);
    assert_eq!(sled.held.load(Ordering::Acquire), 1);
}

#[test]
fn a_fence_by_reservation_aborts_what_was_in_doubt() {
    let sled = Sled::start(4096);
    story(async || {
        let drive = sled.open().await.expect("it opens");
        drive.claim(OWNER, Claim::First).await.expect("free");
        write(&drive, 6, 6).await.expect("the drive is its owner's");
        doubtful_write(&sled, &drive).await;
        drive.fence().await.expect("fenced");
        sled.media().let_go();
        assert_eq!(read(&drive, 5).await.expect("read"), 0, "it never happens");
        write(&drive, 5, 2).await.expect("the drive is usable");
        assert_eq!(read(&drive, 5).await.expect("read"), 2);
    });
}

#[test]
fn reactors_that_write_during_a_fence_notice_nothing() {
    let sled = Sled::start(4096);
    story(async || {
        let drive = std::sync::Arc::new(sled.open().await.expect("it opens"));
        drive.claim(OWNER, Claim::First).await.expect("free");
        let other = reactor::start(reactor::Config::default()).expect("a reactor");
        let on_other = |block| {
            let drive = drive.clone();
            other
                .handle()
                .spawn(move || async move { write(&drive, block, 9).await })
        };
        on_other(8).await.expect("it runs").expect("written");
        doubtful_write(&sled, &drive).await;
        drive.fence().await.expect("fenced");
        // Its connection is of before the fence.
        on_other(9).await.expect("it runs").expect("written");
        assert_eq!(read(&drive, 9).await.expect("read"), 9);
    });
}

#[test]
fn a_fence_without_reservations_waits_until_the_target_has_given_up() {
    let sled = Sled::start(4096).without_reservations();
    story(async || {
        let drive = sled.open().await.expect("it opens");
        drive.fence().await.expect("nothing is in doubt");
        let began = std::time::Instant::now();
        doubtful_write(&sled, &drive).await;
        drive.fence().await.expect("fenced");
        // Three keep-alive timeouts, and one for the controller that does not tell how long it needs; all of that after the
        // write was given up.
        let waited = began.elapsed();
        assert!(waited >= options().limits.keep_alive * 4, "{waited:?}");
        write(&drive, 5, 2).await.expect("the drive is usable");
    });
}

#[test]
fn a_connection_that_was_lost_when_nothing_was_under_way_leaves_nothing_to_wait_for() {
    let mut sled = Sled::start(4096).without_reservations();
    story(async || {
        let drive = sled.open().await.expect("it opens");
        write(&drive, 5, 1).await.expect("written");
        sled.die();
        sled.come_back();
        assert_eq!(read(&drive, 5).await.expect("by a new connection"), 1);
        let fenced = drive.fence().now_or_never();
        assert!(matches!(fenced, Some(Ok(()))), "it waits for nothing");
    });
}

#[test]
fn the_next_opening_by_the_same_owner_fences_what_a_killed_process_left() {
    let sled = Sled::start(4096);
    // Its process: nobody ends its connections in order.
    let killed = reactor::start(reactor::Config::default()).expect("a reactor");
    let (address, held) = (sled.address(), sled.held.clone());
    sled.holds_writes.store(true, Ordering::Release);
    let writing = killed.handle().spawn(move || async move {
        let address = address.parse().expect("an address");
        let drive = RemoteDrive::open(address, options())
            .await
            .expect("it opens");
        drive.claim(OWNER, Claim::First).await.expect("free");
        reactor::spawn(async move { write(&drive, 5, 1).await }).detach();
        while held.load(Ordering::Acquire) == 0 {
            reactor::yield_now().await;
        }
    });
    writing.wait().expect("it runs");
    killed.stop_and_join();
    sled.holds_writes.store(false, Ordering::Release);
    story(async || {
        let drive = sled.open().await.expect("it opens");
        drive.claim(OWNER, Claim::Again).await.expect("its own");
        sled.media().let_go();
        assert_eq!(read(&drive, 5).await.expect("read"), 0);
        write(&drive, 5, 2).await.expect("written");
    });
}

#[test]
fn a_namespace_of_another_owner_is_taken_only_by_force_and_the_other_one_is_told() {
    let sled = Sled::start(4096);
    let first = reactor::start(reactor::Config::default()).expect("a reactor");
    let address = sled.address();
    let claiming = first.handle().spawn(move || async move {
        let address = address.parse().expect("an address");
        let drive = RemoteDrive::open(address, options())
            .await
            .expect("it opens");
        drive.claim(OWNER, Claim::First).await.expect("free");
        // As if it were another process: nobody gives the reservation up.
        std::mem::forget(drive);
    });
    claiming.wait().expect("it runs");
    // The same namespace, which this process takes for another one.
    sled.media().uuid = [3; 16];
    story(async || {
        let drive = sled.open().await.expect("it may be looked at");
        let other = Uuid::from_u128(9 << 100);
        let error = drive.claim(other, Claim::First).await.expect_err("taken");
        assert_eq!(error.kind(), ErrorKind::InUse);
        assert!(write(&drive, 5, 1).await.is_err(), "the target refuses it");
        drive.claim(other, Claim::Forced).await.expect("forced");
        write(&drive, 5, 1).await.expect("its own now");
    });
}

#[test]
fn a_drive_that_nobody_has_any_more_gives_its_reservation_up() {
    let sled = Sled::start(4096);
    story(async || {
        let drive = sled.open().await.expect("it opens");
        drive.claim(OWNER, Claim::First).await.expect("free");
        drop(drive);
        let other = Uuid::from_u128(9 << 100);
        loop {
            let drive = sled.open().await.expect("it opens");
            if drive.claim(other, Claim::First).await.is_ok() {
                break;
            }
        }
    });
}

#[test]
fn a_target_that_forgot_the_reservation_gets_it_again() {
    let mut sled = Sled::start(4096);
    story(async || {
        let drive = sled.open().await.expect("it opens");
        drive.claim(OWNER, Claim::First).await.expect("free");
        sled.die();
        sled.media().forget_reservations();
        sled.come_back();
        assert_eq!(read(&drive, 5).await.expect("by a new connection"), 0);
        write(&drive, 5, 1).await.expect("written");
        assert!(sled.media().is_reserved());
    });
}
