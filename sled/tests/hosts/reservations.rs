//! A drive that one host has reserved is kept from others, and from a host that was shut out for good.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use drives::Drive;
use futures_util::join;
use initiator::{Controller, Error, Host, Namespace};
use nvme::Status;
use nvme::admin::SetFeatures;
use nvme::features::FeatureId;
use nvme::reservation::{
    AcquireAction, KeyPair, RegisterAction, ReleaseAction, ReservationEvent, ReservationType,
};
use sled::{Limits, ReservationFolder};

use crate::harness::{BLOCKS, Stage, assert_blocks, memory, story, submit, write_blocks};
use crate::spy::{Did, SpyDrive};

const KIND: ReservationType = ReservationType::WriteExclusive;

fn keys(current: u64, other: u64) -> KeyPair {
    KeyPair { current, other }
}

/// A host that is attached.
struct Attached {
    controller: Controller,
    namespace: Namespace,
    key: u64,
}

impl Attached {
    /// It has that key, and is not registered yet.
    async fn to(stage: &Stage, host: &Host, key: u64) -> Self {
        let controller = stage.attach(host).await.unwrap();
        Self {
            namespace: controller.namespace(1).await.unwrap(),
            controller,
            key,
        }
    }

    async fn register(&self, persist: Option<bool>) -> Result<(), Error> {
        let (register, keys) = (RegisterAction::Register, keys(0, self.key));
        self.namespace
            .register(register, false, persist, keys)
            .await
    }

    async fn acquire(&self, kind: ReservationType) -> Result<(), Error> {
        let keys = keys(self.key, 0);
        self.namespace
            .acquire(AcquireAction::Acquire, kind, keys)
            .await
    }

    async fn shut_out(&self, other: &Self) -> Result<(), Error> {
        let (action, keys) = (AcquireAction::PreemptAndAbort, keys(self.key, other.key));
        self.namespace.acquire(action, KIND, keys).await
    }

    async fn write(&self) -> Result<(), Error> {
        write_blocks(&self.namespace, 0, 1, self.key as u8, false).await
    }

    async fn is_holder(&self, host: &Host) -> bool {
        let report = self.namespace.reservation_report().await.unwrap();
        let mut registrants = report.registrants.iter();
        registrants.any(|one| one.is_holder && one.host == host.id)
    }
}

#[track_caller]
fn conflicts(result: Result<(), Error>) {
    let status = result.unwrap_err().status().unwrap();
    assert_eq!(status.code(), Status::RESERVATION_CONFLICT);
}

#[test]
fn nobody_else_changes_a_drive_that_a_host_has_reserved() {
    story(async {
        let stage = Stage::new(vec![memory(), memory()]);
        let one = Attached::to(&stage, &Host::generate(), 1).await;
        let two = Attached::to(&stage, &Host::generate(), 2).await;
        two.write().await.unwrap();
        conflicts(one.acquire(KIND).await);
        one.register(None).await.unwrap();
        one.acquire(KIND).await.unwrap();
        one.write().await.unwrap();
        conflicts(two.write().await);
        conflicts(two.namespace.write_zeroes(0, 4096).await);
        conflicts(two.namespace.trim(0, 4096).await);
        conflicts(two.namespace.flush().await);
        assert_blocks(&two.namespace, 0, 1, 1).await;
        // The other drive is nobody's.
        let other = two.controller.namespace(2).await.unwrap();
        write_blocks(&other, 0, 1, 2, false).await.unwrap();
        one.namespace
            .release(ReleaseAction::Release, KIND, 1)
            .await
            .unwrap();
        two.write().await.unwrap();
        one.acquire(ReservationType::ExclusiveAccess).await.unwrap();
        let (read, _) = two.namespace.read(0, initiator::buffer(4096).await).await;
        conflicts(read);
        assert_blocks(&one.namespace, 0, 1, 2).await;
    });
}

#[test]
fn who_shuts_a_host_out_is_answered_when_nothing_of_that_one_can_happen_any_more() {
    story(async {
        let (drive, spy) = SpyDrive::new(BLOCKS);
        let stage = Stage::new(vec![Arc::new(drive)]);
        let hosts = [Host::generate(), Host::generate()];
        let one = Attached::to(&stage, &hosts[0], 1).await;
        let two = Attached::to(&stage, &hosts[1], 2).await;
        one.register(None).await.unwrap();
        one.acquire(KIND).await.unwrap();
        two.register(None).await.unwrap();
        spy.holds_writes.store(true, Ordering::Relaxed);
        let is_answered = Cell::new(false);
        let taking = async {
            spy.holding.wait().await;
            two.shut_out(&one).await.unwrap();
            is_answered.set(true);
            assert_eq!(spy.did(), [Did::Write], "before the answer");
        };
        let letting_go = async {
            spy.holding.wait().await;
            while !two.is_holder(&hosts[1]).await {}
            assert!(!is_answered.get(), "the drive works on a write still");
            spy.holds_writes.store(false, Ordering::Relaxed);
            spy.gate.set();
        };
        let (written, (), ()) = join!(one.write(), taking, letting_go);
        written.expect("it began before");
        conflicts(one.write().await);
        two.write().await.unwrap();
        assert_blocks(&two.namespace, 0, 1, 2).await;
    });
}

#[test]
fn who_takes_a_drive_from_one_that_has_just_taken_it_waits_for_the_writes_of_the_first_one_too() {
    story(async {
        let (drive, spy) = SpyDrive::new(BLOCKS);
        let stage = Stage::new(vec![Arc::new(drive)]);
        let hosts = [Host::generate(), Host::generate(), Host::generate()];
        let one = Attached::to(&stage, &hosts[0], 1).await;
        let two = Attached::to(&stage, &hosts[1], 2).await;
        let three = Attached::to(&stage, &hosts[2], 3).await;
        for host in [&one, &two, &three] {
            host.register(None).await.unwrap();
        }
        one.acquire(KIND).await.unwrap();
        spy.holds_writes.store(true, Ordering::Relaxed);
        let taking = async {
            spy.holding.wait().await;
            two.shut_out(&one).await.unwrap();
        };
        let taking_it_then = async {
            spy.holding.wait().await;
            while !two.is_holder(&hosts[1]).await {}
            three.shut_out(&two).await.unwrap();
            assert_eq!(spy.did(), [Did::Write], "before the answer");
        };
        let letting_go = async {
            spy.holding.wait().await;
            while !three.is_holder(&hosts[2]).await {}
            spy.holds_writes.store(false, Ordering::Relaxed);
            spy.gate.set();
        };
        let (written, (), (), ()) = join!(one.write(), taking, taking_it_then, letting_go);
        written.expect("it began before");
    });
}

#[test]
fn a_host_that_was_shut_out_stays_so_when_the_sled_starts_again() {
    story(async {
        let dir = tempfile::tempdir().unwrap();
        let folder = ReservationFolder::open(dir.path()).unwrap();
        let drive: Arc<dyn Drive> = memory();
        let start = || {
            let (folder, drives) = (Some(folder.clone()), vec![drive.clone()]);
            Stage::keeping(folder, drives, None, Limits::default())
        };
        let hosts = [Host::generate(), Host::generate()];
        let stage = start();
        let one = Attached::to(&stage, &hosts[0], 1).await;
        let two = Attached::to(&stage, &hosts[1], 2).await;
        one.register(Some(true)).await.unwrap();
        one.acquire(KIND).await.unwrap();
        two.register(None).await.unwrap();
        two.shut_out(&one).await.unwrap();
        stage.sled.stop();
        stage.sled.drained().await;
        let stage = start();
        let one = Attached::to(&stage, &hosts[0], 1).await;
        let two = Attached::to(&stage, &hosts[1], 2).await;
        conflicts(one.write().await);
        two.write().await.unwrap();
        // Until it is over.
        two.namespace
            .release(ReleaseAction::Clear, KIND, 2)
            .await
            .unwrap();
        one.write().await.unwrap();
    });
}

#[test]
fn a_host_is_told_what_a_sled_does_not_do() {
    story(async {
        let stage = Stage::new(vec![memory()]);
        let nameless = Host {
            id: [0; 16],
            ..Host::generate()
        };
        let host = Attached::to(&stage, &nameless, 1).await;
        let refused = host.register(None).await.unwrap_err();
        assert_eq!(refused.status().unwrap().code(), Status::INVALID_FIELD);
        let host = Attached::to(&stage, &Host::generate(), 1).await;
        // This sled was given no folder.
        let refused = host.register(Some(true)).await.unwrap_err();
        assert_eq!(refused.status().unwrap().code(), Status::INVALID_FIELD);
        let set = |feature: FeatureId, value| SetFeatures {
            fid: feature.as_u8(),
            save: false,
            dwords: [value, 0, 0, 0, 0],
            nsid: 1,
        };
        let raw = stage.associate(&Host::generate(), 0).await;
        let (mask, all) = (
            FeatureId::ReservationNotificationMask,
            ReservationEvent::MASK_ALL,
        );
        let masked = submit(&raw.admin, set(mask, all).to_sqe()).await;
        assert_eq!(masked, Status::SUCCESS);
        // No event is ever sent.
        let unmasked = submit(&raw.admin, set(mask, 0).to_sqe()).await;
        assert_eq!(unmasked, Status::FEATURE_NOT_CHANGEABLE);
        let persist = set(FeatureId::ReservationPersistence, 1);
        let refused = submit(&raw.admin, persist.to_sqe()).await;
        assert_eq!(refused, Status::INVALID_FIELD);
    });
}
