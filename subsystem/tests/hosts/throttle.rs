//! Limits of volumes and hosts: what is held back holds nothing, and goes on or ends as anything else does.

use std::sync::Arc;
use std::time::Duration;

use nvme::admin::AdminCommand;
use nvme::reservation::{AcquireAction, RegisterAction, ReservationType};
use nvme::{Sqe, Status, admin};
use subsystem::limits::Limits;
use subsystem::throttle::{IoLimits, Limited};
use tokio::sync::oneshot::Receiver;

use crate::harness::{FakeQueue, Lab, Reply, open_target, read, story, write};
use crate::reservations::{acquire, registering};

/// A byte a second: a block has to wait for more than an hour.
const BYTE_BY_BYTE: IoLimits = IoLimits {
    iops: None,
    bandwidth_bytes: Some(1),
    burst_ms: 0,
    guarantee_iops: None,
    guarantee_bandwidth_bytes: None,
};

async fn set(lab: &Lab, of: &Limited, limits: Option<IoLimits>) {
    let change = lab.target.change(|catalog| {
        match limits {
            Some(limits) => catalog.limits.insert(of.clone(), Arc::new(limits)),
            None => catalog.limits.remove(of),
        };
        Ok(())
    });
    change.await.expect("a change");
}

fn volume(lab: &Lab) -> Limited {
    Limited::Volume(lab.engine.volume("vol0").expect("a volume").info().uuid)
}

/// A write that is held back.
async fn held(lab: &Lab, queue: &FakeQueue) -> Receiver<Reply> {
    let mut answer = queue.begin_with(write(1, 0, 1), vec![7; 4096]);
    for _ in 0..10 {
        reactor::yield_now().await;
    }
    assert!(answer.try_recv().is_err(), "it was not held back");
    // It has no buffer.
    lab.all_buffers_are_back().await;
    answer
}

#[test]
fn what_is_held_back_takes_nothing_from_others_and_can_be_aborted_or_left() {
    story(async |lab| {
        let (one, other) = (lab.attach(1).await, lab.attach(2).await);
        let (queue, others) = (lab.io_queue(&one, 1).await, lab.io_queue(&other, 1).await);
        let of = Limited::Host(one.host.nqn.clone());
        set(&lab, &of, Some(BYTE_BY_BYTE)).await;
        let first = held(&lab, &queue).await;
        let (cid, second) = queue.begin(read(1, 0, 1));
        reactor::yield_now().await;
        drop(second);
        // Of another host, on the same volume; and a flush of the same host.
        lab.still_serves(&others).await;
        let flush = nvme::io::IoCommand::Flush { nsid: 1 };
        queue.call(flush.to_sqe()).await.ok();
        let abort = async |cid: u16| {
            let sqe = Sqe::new(admin::OPCODE_ABORT).with_cdw(10, 1 | u32::from(cid) << 16);
            assert!(AdminCommand::parse(&sqe).is_ok());
            one.admin.call(sqe).await.ok().result
        };
        // The read was refused at once: it has no room for its data.
        assert_eq!(abort(cid).await, 1, "not there");
        assert_eq!(abort(cid - 1).await, 0, "aborted");
        let aborted = first.await.expect("an answer");
        assert_eq!(aborted.code(), Status::ABORT_REQUESTED);
        let left = held(&lab, &queue).await;
        queue.close_from_host();
        one.admin.close_from_host();
        assert!(left.await.is_err(), "nobody is there to be answered");
        lab.attached_hosts_are(1).await;
        lab.still_serves(&others).await;
    });
}

#[test]
fn when_a_limit_goes_what_it_held_back_goes_on() {
    story(async |lab| {
        let attached = lab.attach(1).await;
        let queue = lab.io_queue(&attached, 1).await;
        let of = volume(&lab);
        set(&lab, &of, Some(BYTE_BY_BYTE)).await;
        let answer = held(&lab, &queue).await;
        assert_eq!(lab.target.held_back(&of).commands, 0);
        set(&lab, &of, None).await;
        answer.await.expect("an answer").ok();
        let data = queue.call_in(read(1, 0, 1), 4096).await.ok().data;
        assert_eq!(data, vec![7; 4096]);
        let held = lab.target.held_back(&of);
        assert_eq!(held.commands, 1);
        assert!(held.wait_ns > 0);
    });
}

#[test]
fn what_was_held_back_is_admitted_again_and_nobody_waits_for_it() {
    story(async |lab| {
        let (one, other) = (lab.attach(1).await, lab.attach(2).await);
        let (queue, others) = (lab.io_queue(&one, 1).await, lab.io_queue(&other, 1).await);
        let of = Limited::Host(one.host.nqn.clone());
        set(&lab, &of, Some(BYTE_BY_BYTE)).await;
        let answer = held(&lab, &queue).await;
        registering(&others, RegisterAction::Register, None, (0, 5))
            .await
            .ok();
        let kind = ReservationType::WriteExclusive;
        acquire(&others, AcquireAction::Acquire, kind, (5, 0))
            .await
            .ok();
        set(&lab, &of, None).await;
        let refused = answer.await.expect("an answer");
        assert_eq!(refused.code(), Status::RESERVATION_CONFLICT);
        registering(&others, RegisterAction::Unregister, None, (5, 0))
            .await
            .ok();
        // A volume that goes takes its limits with it.
        let of = volume(&lab);
        set(&lab, &of, Some(BYTE_BY_BYTE)).await;
        let answer = held(&lab, &queue).await;
        lab.target.delete_volume("vol0").await.expect("deleted");
        let refused = answer.await.expect("an answer");
        assert_eq!(refused.code(), Status::INVALID_NAMESPACE);
        assert!(lab.target.catalog().limits.is_empty());
    });
}

#[test]
fn queues_share_a_limit_and_the_pool_keeps_it() {
    story(async |lab| {
        let attached = lab.attach(1).await;
        let queues = [
            lab.io_queue(&attached, 1).await,
            lab.io_queue(&attached, 2).await,
        ];
        let limits = IoLimits {
            iops: Some(20),
            bandwidth_bytes: None,
            burst_ms: 0,
            ..IoLimits::default()
        };
        let of = volume(&lab);
        set(&lab, &of, Some(limits)).await;
        let began = reactor::now();
        let answers = (0..6).map(|at| queues[at % 2].begin_with(write(1, 0, 1), vec![1; 4096]));
        let answers: Vec<_> = answers.collect();
        for answer in answers {
            answer.await.expect("an answer").ok();
        }
        let took = reactor::now() - began;
        assert!(
            took >= Duration::from_millis(290),
            "six commands took {took:?}"
        );
        assert_eq!(lab.target.held_back(&of).commands, 6);
        drop(queues);
        let again = open_target(&lab.engine, Limits::default());
        assert_eq!(*again.catalog().limits[&of], limits);
    });
}

#[test]
fn while_there_is_a_guarantee_its_commands_are_counted_and_others_go_on() {
    story(async |lab| {
        let (one, other) = (lab.attach(1).await, lab.attach(2).await);
        let (queue, others) = (lab.io_queue(&one, 1).await, lab.io_queue(&other, 1).await);
        let of = Limited::Host(one.host.nqn.clone());
        assert_eq!(lab.target.achieved(&of), None);
        assert_eq!(lab.target.surplus(), None);
        let guarantee = IoLimits {
            guarantee_iops: Some(1000),
            ..IoLimits::default()
        };
        set(&lab, &of, Some(guarantee)).await;
        // An older command may be behind the first look, so commands go on until they are seen.
        while lab.target.achieved(&of).is_none_or(|it| it.iops == 0) {
            queue.call_out(write(1, 0, 1), vec![7; 4096]).await.ok();
            lab.still_serves(&others).await;
        }
        let surplus = lab.target.surplus().expect("there is a guarantee");
        assert_eq!(surplus.held.commands, 0, "nothing is short");
        drop((queue, others));
        let again = open_target(&lab.engine, Limits::default());
        assert_eq!(*again.catalog().limits[&of], guarantee);
        set(&lab, &of, None).await;
        assert_eq!(lab.target.achieved(&of), None);
        assert_eq!(lab.target.surplus(), None);
    });
}
