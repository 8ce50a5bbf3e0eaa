//! The life of associations: teardown in every phase, keep alive, reset, shutdown, stop.

use std::time::Duration;

use nvme::admin::{AdminCommand, SetFeatures};
use nvme::fabrics::{CNTLID_DYNAMIC, ConnectCommand, FabricsCommand};
use nvme::{Sqe, Status, admin, properties};

use crate::harness::{CC_ENABLE, Lab, TestHost, connect, connect_data, read, story, write};

fn async_event_request() -> Sqe {
    Sqe::new(admin::OPCODE_ASYNC_EVENT_REQUEST)
}

fn keep_alive() -> Sqe {
    Sqe::new(admin::OPCODE_KEEP_ALIVE)
}

#[test]
fn an_association_ends_in_every_phase_without_a_trace() {
    story(async |lab| {
        let other = lab.attach(99).await;
        let others_queue = lab.io_queue(&other, 1).await;
        for phase in 0..6 {
            let admin = lab.queue(0, 32);
            if phase >= 1 {
                // In the middle of Connect: its data never comes.
                let command = ConnectCommand {
                    record_format: 0,
                    qid: 0,
                    sqsize: 31,
                    attributes: 0,
                    kato_ms: 0,
                };
                let _pending = admin.begin_stuck(command.to_sqe(), 1024);
                reactor::yield_now().await;
            }
            admin.close_from_host();
            let attached = lab.connect_with(&TestHost::new(phase), 5000).await;
            let mut queues = Vec::new();
            if phase >= 2 {
                attached.set_property(properties::CC, CC_ENABLE).await.ok();
                let _waiting = attached.admin.begin(async_event_request());
            }
            if phase >= 3 {
                queues.push(lab.io_queue(&attached, 1).await);
                queues.push(lab.io_queue(&attached, 2).await);
            }
            if phase >= 4 {
                let _stuck = queues[0].begin_stuck(write(1, 0, 8), 32768);
                let _working = queues[1].begin(read(1, 0, 8));
                reactor::yield_now().await;
            }
            if phase >= 5 {
                attached
                    .set_property(properties::CC, CC_ENABLE | 1 << 14)
                    .await
                    .ok();
            }
            attached.admin.close_from_host();
            for queue in &queues {
                queue.closed().await;
            }
            lab.attached_hosts_are(1).await;
            lab.still_serves(&others_queue).await;
        }
        lab.all_buffers_are_back().await;
    });
}

#[test]
fn losing_an_io_queue_leaves_the_association_alive() {
    story(async |lab| {
        let attached = lab.attach(1).await;
        let (lost, kept) = (
            lab.io_queue(&attached, 1).await,
            lab.io_queue(&attached, 2).await,
        );
        lost.close_from_host();
        lab.still_serves(&kept).await;
        // The identifier can be used again.
        loop {
            let queue = lab.queue(1, 128);
            let reply = lab.connect_io(&queue, &attached, 1).await;
            if reply.status.is_success() {
                break;
            }
            assert!(
                !reply.status.is_dnr(),
                "a host would give up: {:?}",
                reply.status
            );
            reactor::yield_now().await;
        }
    });
}

#[test]
fn a_silent_host_is_dropped_and_one_that_talks_is_not() {
    story(async |lab| {
        let silent = lab.connect_with(&TestHost::new(1), 1000).await;
        let talking = lab.connect_with(&TestHost::new(2), 1000).await;
        let forever = lab.connect_with(&TestHost::new(3), 0).await;
        talking.set_property(properties::CC, CC_ENABLE).await.ok();
        let talk = async {
            loop {
                talking.admin.call(keep_alive()).await.ok();
                reactor::sleep(Duration::from_millis(200)).await;
            }
        };
        let dropped = silent.admin.closed();
        futures_util::pin_mut!(talk, dropped);
        futures_util::future::select(talk, dropped).await;
        assert!(!talking.admin.is_closed() && !forever.admin.is_closed());
        talking.admin.call(keep_alive()).await.ok();
        lab.attached_hosts_are(2).await;
    });
}

#[test]
fn the_keep_alive_timeout_can_be_changed_to_anything_while_connected() {
    story(async |lab| {
        let attached = lab.attach(1).await;
        let set = async |kato_ms: u32| {
            let set = SetFeatures {
                fid: 0x0f,
                save: false,
                dwords: [kato_ms, 0, 0, 0, 0],
                nsid: 0,
            };
            attached.admin.call(set.to_sqe()).await.ok();
        };
        // Keep Alive is answered although there is no timeout: an error would stop a host's timer.
        attached.admin.call(keep_alive()).await.ok();
        set(u32::MAX).await;
        attached.admin.call(keep_alive()).await.ok();
        set(1).await;
        attached.admin.closed().await;
        lab.nobody_is_attached().await;
    });
}

#[test]
fn a_reset_ends_queues_and_waiting_requests_and_the_controller_can_be_enabled_again() {
    story(async |lab| {
        let attached = lab.attach(1).await;
        let queue = lab.io_queue(&attached, 1).await;
        let (_, event) = attached.admin.begin(async_event_request());
        attached.set_property(properties::CC, 0).await.ok();
        queue.closed().await;
        assert_eq!(
            event.await.expect("an answer").code(),
            Status::ABORT_REQUESTED
        );
        assert_eq!(
            attached.property(properties::CSTS, false).await.ok().result,
            0
        );
        attached
            .admin
            .call(keep_alive())
            .await
            .refused(Status::COMMAND_SEQUENCE);
        attached.set_property(properties::CC, CC_ENABLE).await.ok();
        attached.admin.call(keep_alive()).await.ok();
    });
}

#[test]
fn a_shutdown_is_complete_when_data_is_durable() {
    story(async |lab| {
        let attached = lab.attach(1).await;
        let queue = lab.io_queue(&attached, 1).await;
        queue.call_out(write(1, 0, 1), vec![7; 4096]).await.ok();
        attached
            .set_property(properties::CC, CC_ENABLE | 1 << 14)
            .await
            .ok();
        let status = attached.property(properties::CSTS, false).await.ok().result;
        assert_eq!(status >> 2 & 3, 2, "shutdown complete");
        assert_eq!(lab.engine.status().unflushed_bytes, 0);
    });
}

#[test]
fn disconnect_ends_an_io_queue_and_no_other() {
    story(async |lab| {
        let attached = lab.attach(1).await;
        let (gone, kept) = (
            lab.io_queue(&attached, 1).await,
            lab.io_queue(&attached, 2).await,
        );
        gone.call(FabricsCommand::disconnect()).await.ok();
        gone.closed().await;
        attached
            .admin
            .call(FabricsCommand::disconnect())
            .await
            .refused(Status::INVALID_QUEUE_TYPE);
        lab.still_serves(&kept).await;
    });
}

#[test]
fn a_host_comes_back_only_when_its_lost_writes_can_do_no_harm() {
    story(async |lab| {
        let attached = lab.attach(1).await;
        let queue = lab.io_queue(&attached, 1).await;
        for block in 0..32 {
            let _lost = queue.begin_with(write(1, block, 1), vec![1; 4096]);
        }
        reactor::yield_now().await;
        attached.admin.close_from_host();
        // Connects as soon as it may; what it writes now must not be undone by the past.
        let again = lab.attach(1).await;
        let queue = lab.io_queue(&again, 1).await;
        for block in 0..32 {
            queue.call_out(write(1, block, 1), vec![2; 4096]).await.ok();
        }
        assert_eq!(
            lab.target.attached_hosts().len(),
            1,
            "the old association is gone"
        );
        for block in 0..32 {
            assert_eq!(
                queue.call_in(read(1, block, 1), 4096).await.ok().data,
                vec![2; 4096]
            );
        }
    });
}

#[test]
fn what_comes_after_a_silence_that_was_too_long_never_happens_though_nobody_looked_meanwhile() {
    const KATO_MS: u32 = 1000;
    story(async |lab| {
        let host = TestHost::new(1);
        let silent = lab.connect_with(&host, KATO_MS).await;
        silent.set_property(properties::CC, CC_ENABLE).await.ok();
        let queues = [
            lab.io_queue(&silent, 1).await,
            lab.io_queue(&silent, 2).await,
        ];
        // This reactor stands still, as that of a machine that is suspended. The host waits by its own clock, and gives up.
        let end = reactor::now() + Duration::from_millis(u64::from(KATO_MS) * 5 / 4);
        while reactor::now() < end {
            std::thread::yield_now();
        }
        let late = queues[0].try_call_out(write(1, 0, 1), vec![1; 4096]);
        assert!(late.await.is_none(), "its association is over");
        queues[1].closed().await;
        silent.admin.closed().await;
        let again = lab.attach(1).await;
        let queue = lab.io_queue(&again, 1).await;
        let reply = queue.call_in(read(1, 0, 1), 4096).await.ok();
        assert_eq!(reply.data, vec![0; 4096], "it was never written");
        lab.attached_hosts_are(1).await;
    });
}

#[test]
fn a_stopping_target_answers_what_it_works_on_and_closes_every_queue() {
    story(async |lab: Lab| {
        let attached = lab.attach(1).await;
        let queue = lab.io_queue(&attached, 1).await;
        let (_, waiting) = attached.admin.begin(async_event_request());
        let (_, stuck) = queue.begin_stuck(write(1, 0, 1), 4096);
        queue.call_out(write(1, 1, 1), vec![3; 4096]).await.ok();
        lab.target.stop();
        lab.target.drained().await;
        assert!(queue.is_closed() && attached.admin.is_closed());
        assert!(
            waiting.await.is_err(),
            "no answer: the host repeats it elsewhere"
        );
        assert!(stuck.await.is_err());
        lab.all_buffers_are_back().await;
    });
}

#[test]
fn a_connect_that_never_gets_its_data_does_not_hold_up_others() {
    story(async |lab| {
        let command = ConnectCommand {
            record_format: 0,
            qid: 0,
            sqsize: 31,
            attributes: 0,
            kato_ms: 0,
        };
        let stuck: Vec<_> = (0..100).map(|_| lab.queue(0, 32)).collect();
        for queue in &stuck {
            let _pending = queue.begin_stuck(command.to_sqe(), 1024);
        }
        reactor::yield_now().await;
        let data = connect_data(&TestHost::new(1), CNTLID_DYNAMIC);
        connect(&lab.queue(0, 32), command, data).await.ok();
        stuck.iter().for_each(|queue| queue.close_from_host());
        lab.all_buffers_are_back().await;
    });
}

#[test]
fn abort_ends_what_waits_and_says_so_when_there_is_nothing_to_abort() {
    story(async |lab| {
        let attached = lab.attach(1).await;
        let queue = lab.io_queue(&attached, 1).await;
        let (cid, stuck) = queue.begin_stuck(write(1, 0, 1), 4096);
        let (event_cid, event) = attached.admin.begin(async_event_request());
        reactor::yield_now().await;
        reactor::yield_now().await;
        let abort = async |sqid: u16, cid: u16| {
            let sqe =
                Sqe::new(admin::OPCODE_ABORT).with_cdw(10, u32::from(sqid) | u32::from(cid) << 16);
            assert_eq!(
                AdminCommand::parse(&sqe),
                Ok(AdminCommand::Abort { sqid, cid })
            );
            attached.admin.call(sqe).await.ok().result
        };
        assert_eq!(abort(1, cid).await, 0, "aborted");
        assert_eq!(
            stuck.await.expect("an answer").code(),
            Status::ABORT_REQUESTED
        );
        assert_eq!(abort(0, event_cid).await, 0, "aborted");
        assert_eq!(
            event.await.expect("an answer").code(),
            Status::ABORT_REQUESTED
        );
        assert_eq!(abort(1, cid).await, 1, "not there any more");
        assert_eq!(abort(7, 1).await, 1, "no such queue");
        lab.still_serves(&queue).await;
        lab.all_buffers_are_back().await;
    });
}
