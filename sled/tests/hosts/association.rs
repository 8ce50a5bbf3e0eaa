//! Associations: who may connect, how many, and when one is over.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use drives::BLOCK_BYTES;
use fabric::HostData;
use futures_util::future::{join, select};
use initiator::Host;
use nvme::Status;
use nvme::admin::{OPCODE_ABORT, OPCODE_ASYNC_EVENT_REQUEST, OPCODE_KEEP_ALIVE};
use nvme::fabrics::FabricsCommand;
use nvme::io::{IoCommand, LbaRange};
use nvme::properties::{CC, CSTS, ControllerStatus};
use nvme::{Nqn, Sqe};
use sled::Limits;

use crate::harness::{BLOCKS, Connect, Stage, assert_blocks, memory, story, submit, write_blocks};
use crate::spy::{Did, SpyDrive};

/// The shortest keep-alive timeout that the sled can tell from others.
const KATO_MS: u32 = 1000;

#[test]
fn a_host_that_is_silent_is_gone_only_when_its_commands_are_done() {
    story(async {
        let (drive, spy) = SpyDrive::new(BLOCKS);
        let stage = Stage::new(vec![Arc::new(drive)]);
        let host = Host::generate();
        let silent = stage.associate(&host, KATO_MS).await;
        spy.holds_writes.store(true, Ordering::Relaxed);
        let range = LbaRange { slba: 0, blocks: 1 };
        let write = IoCommand::Write {
            nsid: 1,
            range,
            fua: false,
        };
        let io = silent.io.clone();
        let lost = reactor::spawn(async move {
            let buffer = initiator::buffer(BLOCK_BYTES).await;
            let data = HostData::ToTarget(buffer, BLOCK_BYTES);
            io.submit(write.to_sqe(), data).await
        });
        spy.holding.wait().await;
        silent.admin.closed().await;
        assert!(lost.await.unwrap().is_err(), "nobody answered it");
        // The host is back at once, and waits for its own earlier write.
        let is_done = AtomicBool::new(false);
        let attaching = async {
            let controller = stage.attach(&host).await.unwrap();
            assert!(is_done.load(Ordering::Relaxed), "before its write was done");
            controller
        };
        let ending = async {
            reactor::sleep(Duration::from_millis(300)).await;
            is_done.store(true, Ordering::Relaxed);
            spy.gate.set();
        };
        let (controller, ()) = join(attaching, ending).await;
        assert_eq!(spy.did(), [Did::Write]);
        let namespace = controller.namespace(1).await.unwrap();
        write_blocks(&namespace, 0, 1, 9, false).await.unwrap();
        assert_blocks(&namespace, 0, 1, 9).await;
        controller.disconnect().await;
    });
}

#[test]
fn a_host_whose_earlier_write_does_not_end_is_told_to_come_back_and_others_are_not() {
    story(async {
        let (drive, spy) = SpyDrive::new(BLOCKS);
        let stage = Stage::new(vec![Arc::new(drive)]);
        let host = Host::generate();
        let first = stage.associate(&host, 0).await;
        spy.holds_writes.store(true, Ordering::Relaxed);
        let zeros = IoCommand::WriteZeroes {
            nsid: 1,
            range: LbaRange { slba: 0, blocks: 1 },
            fua: false,
            deallocate: false,
        };
        let io = first.io.clone();
        let lost = reactor::spawn(async move { io.submit(zeros.to_sqe(), HostData::None).await });
        spy.holding.wait().await;
        first.admin.close();
        assert!(lost.await.unwrap().is_err());
        let queue = stage.queue(0).await;
        let connect = Connect::of(&host);
        let (other, (status, _)) =
            join(stage.attach(&Host::generate()), connect.send(&queue)).await;
        assert_eq!(status, Status::CONNECT_CONTROLLER_BUSY, "without DNR");
        other.unwrap().disconnect().await;
        spy.gate.set();
        assert_eq!(connect.send(&queue).await.0, Status::SUCCESS);
    });
}

/// This reactor stands still, as that of a machine that is suspended: no timer is looked at.
fn stand_still() {
    let end = reactor::now() + Duration::from_millis(u64::from(KATO_MS) * 5 / 4);
    while reactor::now() < end {
        std::thread::yield_now();
    }
}

#[test]
fn what_comes_after_a_silence_that_was_too_long_never_happens_though_nobody_looked_meanwhile() {
    story(async {
        let (drive, spy) = SpyDrive::new(BLOCKS);
        let stage = Stage::new(vec![Arc::new(drive)]);
        let silent = stage.associate(&Host::generate(), KATO_MS).await;
        stand_still();
        let write = IoCommand::Write {
            nsid: 1,
            range: LbaRange { slba: 0, blocks: 1 },
            fua: false,
        };
        let data = HostData::ToTarget(initiator::buffer(BLOCK_BYTES).await, BLOCK_BYTES);
        let written = silent.io.submit(write.to_sqe(), data).await;
        assert!(written.is_err(), "its association is over");
        silent.admin.closed().await;
        assert_eq!(spy.did(), []);
    });
}

#[test]
fn a_host_that_comes_again_waits_for_its_earlier_commands_when_their_time_is_over() {
    story(async {
        let (drive, spy) = SpyDrive::new(BLOCKS);
        let stage = Stage::new(vec![Arc::new(drive)]);
        let host = Host::generate();
        let silent = stage.associate(&host, KATO_MS).await;
        spy.holds_writes.store(true, Ordering::Relaxed);
        let zeros = IoCommand::WriteZeroes {
            nsid: 1,
            range: LbaRange { slba: 0, blocks: 1 },
            fua: false,
            deallocate: false,
        };
        let io = silent.io.clone();
        let lost = reactor::spawn(async move { io.submit(zeros.to_sqe(), HostData::None).await });
        spy.holding.wait().await;
        stand_still();
        let queue = stage.queue(0).await;
        let connecting = async {
            let (status, _) = Connect::of(&host).send(&queue).await;
            assert_eq!(status, Status::SUCCESS);
            assert_eq!(spy.did(), [Did::Write], "before it was admitted");
        };
        let ending = async {
            assert!(lost.await.unwrap().is_err(), "its queue was closed");
            spy.gate.set();
        };
        join(connecting, ending).await;
    });
}

#[test]
fn a_host_that_says_something_stays_and_one_without_a_timeout_too() {
    story(async {
        let stage = Stage::new(vec![memory()]);
        let quiet = stage.associate(&Host::generate(), 0).await;
        let speaks = stage.associate(&Host::generate(), KATO_MS).await;
        let silent = stage.associate(&Host::generate(), KATO_MS).await;
        // Traffic on any queue counts.
        let speaking = async {
            loop {
                let flush = IoCommand::Flush { nsid: 1 }.to_sqe();
                assert_eq!(submit(&speaks.io, flush).await, Status::SUCCESS);
                reactor::sleep(Duration::from_millis(100)).await;
            }
        };
        let over = std::pin::pin!(silent.admin.closed());
        select(std::pin::pin!(speaking), over).await;
        assert!(!speaks.admin.is_closing());
        assert!(!quiet.admin.is_closing() && !quiet.io.is_closing());
    });
}

#[test]
fn only_named_hosts_may_connect_and_only_they_find_the_sled() {
    story(async {
        let named = Host::generate();
        let hosts = BTreeSet::from([named.nqn.clone()]);
        let stage = Stage::with(vec![memory()], Some(hosts), Limits::default());
        let other = Host::generate();
        let refused = stage.attach(&other).await.unwrap_err();
        let status = refused.status().unwrap();
        assert_eq!(status.code(), Status::CONNECT_INVALID_HOST);
        assert!(status.is_dnr());
        let connector = Stage::connector();
        let found = |host: Host| initiator::discover(&connector, stage.address, host);
        assert_eq!(found(other).await.unwrap().len(), 1);
        assert_eq!(found(named.clone()).await.unwrap().len(), 2);
        let controller = stage.attach(&named).await.unwrap();
        controller.disconnect().await;
    });
}

#[test]
fn no_more_hosts_and_queues_attach_than_may() {
    story(async {
        let limits = Limits {
            controllers: 2,
            io_queues: 1,
            ..Limits::default()
        };
        let stage = Stage::with(vec![memory()], None, limits);
        let first = stage.attach(&Host::generate()).await.unwrap();
        assert_eq!(first.io_queues(), 1);
        let second = stage.attach(&Host::generate()).await.unwrap();
        let third = stage.attach(&Host::generate()).await.unwrap_err();
        assert_eq!(third.status(), Some(Status::CONNECT_CONTROLLER_BUSY));
        first.disconnect().await;
        // The place is free when the association is gone.
        let host = Host::generate();
        let third = loop {
            match stage.attach(&host).await {
                Ok(controller) => break controller,
                Err(_) => reactor::sleep(Duration::from_millis(5)).await,
            }
        };
        third.disconnect().await;
        second.disconnect().await;
    });
}

#[test]
fn a_queue_joins_only_the_controller_of_its_own_host() {
    story(async {
        let stage = Stage::new(vec![memory()]);
        let host = Host::generate();
        let owner = stage.associate(&host, 0).await;
        let queue = stage.queue(2).await;
        let io = |host: &Host, cntlid: u16| Connect {
            qid: 2,
            cntlid,
            ..Connect::of(host)
        };
        let wrong = Status::CONNECT_INVALID_PARAMETERS.with_dnr();
        let stranger = io(&Host::generate(), owner.cntlid);
        assert_eq!(stranger.send(&queue).await.0, wrong);
        let namesake = Host {
            id: [9; 16],
            ..host.clone()
        };
        assert_eq!(io(&namesake, owner.cntlid).send(&queue).await.0, wrong);
        let nobodys = io(&host, owner.cntlid.wrapping_add(1));
        assert_eq!(nobodys.send(&queue).await.0, wrong);
        let elsewhere = Connect {
            subsystem: Nqn::new("nqn.2026-11.org.example:other").unwrap(),
            ..io(&host, owner.cntlid)
        };
        assert_eq!(elsewhere.send(&queue).await.0, wrong);
        let right = io(&host, owner.cntlid);
        assert_eq!(right.send(&queue).await.0, Status::SUCCESS);
        let again = stage.queue(2).await;
        let taken = right.send(&again).await.0;
        assert_eq!(taken, Status::COMMAND_SEQUENCE.with_dnr());
    });
}

#[test]
fn requests_for_events_wait_until_they_are_aborted_or_the_controller_is_reset() {
    story(async {
        let stage = Stage::new(vec![memory()]);
        let host = stage.associate(&Host::generate(), 0).await;
        let waiting = |count: usize| {
            let requests = (0..count).map(|_| {
                let admin = host.admin.clone();
                let request = Sqe::new(OPCODE_ASYNC_EVENT_REQUEST);
                reactor::spawn(async move { submit(&admin, request).await })
            });
            requests.collect::<Vec<_>>()
        };
        let requests = waiting(4);
        // They are on their way when this task goes on, and there before what is sent after them.
        reactor::yield_now().await;
        let keep_alive = submit(&host.admin, Sqe::new(OPCODE_KEEP_ALIVE)).await;
        assert_eq!(keep_alive, Status::SUCCESS);
        // One more than may wait is refused.
        let fifth = submit(&host.admin, Sqe::new(OPCODE_ASYNC_EVENT_REQUEST)).await;
        assert_eq!(fifth, Status::ASYNC_EVENT_LIMIT);
        assert!(requests.iter().all(|request| !request.is_finished()));
        let nobody = Sqe::new(OPCODE_ABORT).with_cdw(10, 0x7777 << 16);
        let (cqe, _) = host.admin.submit(nobody, HostData::None).await.unwrap();
        assert_eq!((cqe.status, cqe.result & 1), (Status::SUCCESS, 1));
        let reset = FabricsCommand::property_set(CC, false, 0x0046_0000);
        assert_eq!(submit(&host.admin, reset).await, Status::SUCCESS);
        for request in requests {
            assert_eq!(request.await.unwrap(), Status::ABORT_REQUESTED);
        }
        host.io.closed().await;
        assert!(!host.admin.is_closing(), "a reset ends I/O queues alone");
    });
}

#[test]
fn a_shutdown_makes_data_durable_before_it_is_complete() {
    story(async {
        let (drive, spy) = SpyDrive::new(BLOCKS);
        let stage = Stage::new(vec![Arc::new(drive)]);
        let host = stage.associate(&Host::generate(), 0).await;
        let shutdown = FabricsCommand::property_set(CC, false, 0x0046_4001);
        assert_eq!(submit(&host.admin, shutdown).await, Status::SUCCESS);
        let status = FabricsCommand::property_get(CSTS, false);
        let (cqe, _) = host.admin.submit(status, HostData::None).await.unwrap();
        assert_eq!(ControllerStatus::decode(cqe.result as u32).shutdown, 2);
        assert_eq!(spy.did(), [Did::Flush]);
    });
}

#[test]
fn a_sled_that_stops_answers_what_is_under_way_and_takes_nobody() {
    story(async {
        let (drive, spy) = SpyDrive::new(BLOCKS);
        let stage = Stage::new(vec![Arc::new(drive)]);
        let controller = stage.attach(&Host::generate()).await.unwrap();
        let namespace = controller.namespace(1).await.unwrap();
        spy.holds_writes.store(true, Ordering::Relaxed);
        let writing = write_blocks(&namespace, 0, 1, 1, false);
        let stopping = async {
            spy.holding.wait().await;
            stage.sled.stop();
            spy.gate.set();
        };
        let (written, ()) = join(writing, stopping).await;
        written.expect("it was under way");
        stage.sled.drained().await;
        assert!(stage.attach(&Host::generate()).await.is_err());
    });
}
