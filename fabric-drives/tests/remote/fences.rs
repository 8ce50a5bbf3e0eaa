//! What is in doubt is settled by a fence, and two owners never write to one namespace.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use drives::{BLOCK_BYTES, Drive, ErrorKind};
use fabric_drives::{Claim, Limits, OpenOptions, RemoteDrive};
use futures_util::FutureExt;
use nvme::Nqn;
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
        let drive = Arc::new(sled.open().await.expect("it opens"));
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

/// What is told of a drive that was taken over.
#[derive(Clone, Default)]
struct Told(Arc<AtomicUsize>);

impl Told {
    fn times(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }

    /// How a drive is opened on that machine.
    fn on_machine(&self, host: &str) -> OpenOptions {
        let told = self.0.clone();
        OpenOptions {
            host: Nqn::new(&format!("nqn.2026-11.org.example:{host}")).expect("a name"),
            on_taken_over: Some(Arc::new(move |_| {
                told.fetch_add(1, Ordering::AcqRel);
            })),
            limits: Limits {
                look: Duration::from_millis(20),
                ..options().limits
            },
            ..options()
        }
    }
}

/// The same namespace, which this process takes for another one from here on.
fn seems_to_be(sled: &Sled, number: u128) {
    // Other stories of this process have namespaces, too.
    let address = sled.address();
    let port = address
        .split([':', '/'])
        .find_map(|part| part.parse::<u16>().ok());
    let port = port.expect("it listens");
    sled.media().uuid = Uuid::from_u128(number << 64 | u128::from(port)).into_bytes();
}

/// Opens the namespace as if by another process, which is on that machine.
async fn open_on(sled: &Sled, told: &Told, host: &str, number: u128) -> RemoteDrive {
    seems_to_be(sled, number);
    let address = sled.address().parse().expect("an address");
    let opened = RemoteDrive::open(address, told.on_machine(host)).await;
    opened.expect("it may be looked at")
}

#[test]
fn an_opening_on_another_machine_keeps_its_namespace_until_it_is_moved_and_is_told_then() {
    let sled = Sled::start(4096);
    story(async || {
        let told = [Told::default(), Told::default()];
        let first = open_on(&sled, &told[0], "a", 1).await;
        first.claim(OWNER, Claim::First).await.expect("free");
        write(&first, 5, 1).await.expect("its own");
        let second = open_on(&sled, &told[1], "b", 2).await;
        let refused = second.claim(OWNER, Claim::Again).await;
        let refused = refused.expect_err("the first one may live");
        assert_eq!(refused.kind(), ErrorKind::InUse);
        assert!(refused.to_string().contains("another machine"), "{refused}");
        write(&first, 5, 2).await.expect("it was left alone");
        second.claim(OWNER, Claim::Moved).await.expect("by force");
        write(&second, 5, 3).await.expect("its own now");
        for _ in 0..2 {
            let refused = write(&first, 5, 4).await.expect_err("shut out");
            assert_eq!(refused.kind(), ErrorKind::InUse);
            assert_eq!(told[0].times(), 1, "before anybody hears of the failure");
        }
        assert_eq!(read(&second, 5).await.expect("read"), 3);
        assert_eq!(told[1].times(), 0);
    });
}

#[test]
fn an_owner_that_does_nothing_hears_that_its_namespace_was_moved() {
    let sled = Sled::start(4096);
    story(async || {
        let told = Told::default();
        let first = open_on(&sled, &told, "a", 1).await;
        first.claim(OWNER, Claim::First).await.expect("free");
        let second = open_on(&sled, &Told::default(), "b", 2).await;
        second.claim(OWNER, Claim::Moved).await.expect("by force");
        while told.times() == 0 {
            reactor::sleep(Duration::from_millis(1)).await;
        }
    });
}

#[test]
fn an_owner_whose_first_reactor_has_ended_hears_of_it_too() {
    let sled = Sled::start(4096);
    story(async || {
        let told = Told::default();
        let first = Arc::new(open_on(&sled, &told, "a", 1).await);
        // A node claims the drives of a pool before it has the reactors that serve it.
        let early = reactor::start(reactor::Config::default()).expect("a reactor");
        let claiming = first.clone();
        let claimed = early
            .handle()
            .spawn(move || async move { claiming.claim(OWNER, Claim::First).await });
        claimed.await.expect("it runs").expect("free");
        drop(early);
        let second = open_on(&sled, &Told::default(), "b", 2).await;
        second.claim(OWNER, Claim::Moved).await.expect("by force");
        while told.times() == 0 {
            reactor::sleep(Duration::from_millis(1)).await;
        }
    });
}

#[test]
fn an_opening_that_was_away_while_another_one_had_its_namespace_does_not_take_it_back() {
    for (has_doubts, is_there) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut sled = Sled::start(4096);
        story(async || {
            let told = Told::default();
            let first = open_on(&sled, &told, "a", 1).await;
            first.claim(OWNER, Claim::First).await.expect("free");
            if has_doubts {
                doubtful_write(&sled, &first).await;
            }
            sled.die();
            sled.come_back();
            let second = open_on(&sled, &Told::default(), "b", 2).await;
            second.claim(OWNER, Claim::Moved).await.expect("by force");
            write(&second, 5, 3).await.expect("its own now");
            // One that leaves so soon gives nothing up: the first one may not know yet that it was shut out.
            let _there = Some(second).filter(|_| is_there);
            seems_to_be(&sled, 1);
            match has_doubts {
                true => first.fence().await.expect_err("shut out"),
                false => write(&first, 5, 4).await.expect_err("shut out"),
            };
            assert_eq!(told.times(), 1);
            let media = sled.media();
            assert!(media.is_reserved() && media.disk[5 * BLOCK_BYTES] == 3);
        });
    }
}

#[test]
fn a_namespace_that_was_given_to_another_owner_is_not_taken_back_and_only_that_drive_is_lost() {
    let mut sled = Sled::start(4096);
    story(async || {
        let told = Told::default();
        let first = open_on(&sled, &told, "a", 1).await;
        first.claim(OWNER, Claim::First).await.expect("free");
        sled.die();
        sled.come_back();
        let second = open_on(&sled, &Told::default(), "a", 2).await;
        let other = Uuid::from_u128(9 << 100);
        second.claim(other, Claim::Forced).await.expect("by force");
        write(&second, 5, 3).await.expect("its own now");
        seems_to_be(&sled, 1);
        let refused = write(&first, 5, 4).await.expect_err("another one's");
        assert_eq!(refused.kind(), ErrorKind::InUse);
        assert_eq!(sled.media().disk[5 * BLOCK_BYTES], 3);
        assert_eq!(told.times(), 0, "its other drives are its own");
    });
}

#[test]
fn a_namespace_that_is_kept_for_the_next_opening_is_nobody_elses_meanwhile() {
    let sled = Sled::start(4096);
    story(async || {
        let told = Told::default();
        let first = open_on(&sled, &told, "a", 1).await;
        first.claim(OWNER, Claim::First).await.expect("free");
        let second = open_on(&sled, &told, "b", 2).await;
        second.claim(OWNER, Claim::Moved).await.expect("by force");
        second.keep_reservation();
        drop(second);
        write(&first, 5, 4).await.expect_err("shut out");
        let third = open_on(&sled, &told, "b", 3).await;
        third.claim(OWNER, Claim::Again).await.expect("its own");
        write(&third, 5, 5).await.expect("its own");
    });
}
