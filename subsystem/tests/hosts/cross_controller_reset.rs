//! Cross-Controller Reset: what a host with two controllers may ask one of them, and what it can rely on when it is told that
//! the other one was reset.

use std::sync::atomic::Ordering;

use nvme::admin::{
    CrossControllerReset, GetLogPage, OPCODE_ASYNC_EVENT_REQUEST, OPCODE_CROSS_CONTROLLER_RESET,
};
use nvme::features::{AsyncEvent, AsyncEventConfig};
use nvme::identify::IdentifyController;
use nvme::log::{ControllerReset, ControllerResetState, ControllerResets, NO_CONTROLLER};
use nvme::{Sqe, Status, properties};
use subsystem::limits::Limits;
use tokio::sync::oneshot;

use crate::admin::{identify, set_feature};
use crate::harness::{Attached, CC_ENABLE, FakeQueue, Lab, Reply, read, story, story_with, write};
use crate::standby::{limits, standby_of};

/// Both bits of CCRF.
const VALIDATED_AND_INITIATED: u8 = 3;

/// What names this life of a controller.
async fn instance(host: &Attached) -> CrossControllerReset {
    let page = identify(host, 0x01, 0).await.ok().data;
    let page = IdentifyController::decode(&page).expect("a page");
    assert!(page.ciu != 0 && page.cirn != 0 && page.ccrl == 4);
    CrossControllerReset {
        cntlid: page.cntlid,
        uniquifier: page.ciu,
        random: page.cirn,
    }
}

async fn ask(source: &Attached, reset: CrossControllerReset) -> Reply {
    source.admin.call(reset.to_sqe()).await
}

/// The reset is over, the host is told.
#[track_caller]
fn is_done(reply: Reply) {
    assert_eq!(reply.ok().result, 1);
}

/// The reset is under way, the host is told.
#[track_caller]
fn is_under_way(reply: Reply) {
    assert_eq!(reply.ok().result, 0);
}

async fn log(source: &Attached, retain_event: bool) -> Vec<ControllerReset> {
    let log = GetLogPage {
        lid: 0x1e,
        lsp: 0,
        retain_event,
        length: 4096,
        offset: 0,
        offset_is_index: false,
        nsid: 0,
        csi: 0,
    };
    let page = source.admin.call_in(log.to_sqe(), 4096).await.ok().data;
    ControllerResets::decode(&page).expect("a page").0
}

fn entry(of: CrossControllerReset, state: ControllerResetState, flags: u8) -> ControllerReset {
    ControllerReset {
        cntlid: of.cntlid,
        uniquifier: of.uniquifier,
        alternate: NO_CONTROLLER,
        state: state.as_u8(),
        flags,
    }
}

/// Asks for the event that a reset has ended.
async fn awaits_event(source: &Attached) -> oneshot::Receiver<Reply> {
    let wanted = AsyncEventConfig::CROSS_CONTROLLER_RESET.0;
    set_feature(source, 0x0b, wanted).await.ok();
    source.admin.begin(Sqe::new(OPCODE_ASYNC_EVENT_REQUEST)).1
}

#[track_caller]
fn is_told(event: Reply) {
    let completed = AsyncEvent::CROSS_CONTROLLER_RESET_COMPLETED.encode();
    assert_eq!(event.ok().result, u64::from(completed));
}

/// Begins a write that the drive does not finish.
async fn hanging_write(lab: &Lab, io: &FakeQueue, data: Vec<u8>) -> oneshot::Receiver<Reply> {
    lab.drive_gate.close();
    let before = lab.drive_writes.load(Ordering::Relaxed);
    let answer = io.begin_with(write(1, 0, 1), data);
    while lab.drive_writes.load(Ordering::Relaxed) == before {
        reactor::yield_now().await;
    }
    answer
}

#[test]
fn a_write_that_hung_has_ended_when_its_host_is_told_that_the_controller_was_reset() {
    story(async |lab| {
        let (lost, source) = (lab.attach(1).await, lab.attach(1).await);
        let lost_io = lab.io_queue(&lost, 1).await;
        let io = lab.io_queue(&source, 1).await;
        let named = instance(&lost).await;
        let mut event = awaits_event(&source).await;
        let _answer = hanging_write(&lab, &lost_io, vec![1; 4096]).await;

        is_under_way(ask(&source, named).await);
        lost.admin.closed().await;
        lost_io.closed().await;
        let under_way = entry(
            named,
            ControllerResetState::InProgress,
            VALIDATED_AND_INITIATED,
        );
        assert_eq!(log(&source, false).await, [under_way]);
        let again = ask(&source, named).await;
        assert_eq!(again.code(), Status::CROSS_CONTROLLER_RESET_IN_PROGRESS);
        event.try_recv().expect_err("the write still hangs");
        assert_eq!(lab.target.nvm.controller_count(), 2);

        lab.drive_gate.open();
        is_told(event.await.expect("an event"));
        assert_eq!(lab.target.nvm.controller_count(), 1);
        let done = entry(
            named,
            ControllerResetState::Successful,
            VALIDATED_AND_INITIATED,
        );
        assert_eq!(log(&source, true).await, [done]);
        assert_eq!(log(&source, false).await, [done], "the page was retained");
        assert_eq!(log(&source, false).await, []);
        // What is written from here on stays.
        io.call_out(write(1, 0, 1), vec![2; 4096]).await.ok();
        assert_eq!(
            io.call_in(read(1, 0, 1), 4096).await.ok().data,
            vec![2; 4096]
        );
        lab.attached_hosts_are(1).await;
    });
}

#[test]
fn a_reset_that_ends_soon_is_told_by_the_command_itself() {
    story(async |lab| {
        let (lost, source) = (lab.attach(1).await, lab.attach(1).await);
        let lost_io = lab.io_queue(&lost, 1).await;
        let named = instance(&lost).await;
        let mut event = awaits_event(&source).await;
        let _answer = hanging_write(&lab, &lost_io, vec![1; 4096]).await;
        let mut answer = source.admin.begin(named.to_sqe()).1;
        lost.admin.closed().await;
        answer.try_recv().expect_err("the write still hangs");
        assert_eq!(log(&source, true).await, []);
        lab.drive_gate.open();
        is_done(answer.await.expect("an answer"));
        assert_eq!(lab.target.nvm.controller_count(), 1);
        assert_eq!(log(&source, true).await, []);
        // It is gone by now, and the host may ask as often as it likes.
        is_done(ask(&source, named).await);
        event.try_recv().expect_err("there is nothing to tell");
    });
}

#[test]
fn a_host_resets_neither_a_controller_of_another_host_nor_the_one_that_it_asks() {
    story(async |lab| {
        let (other, source) = (lab.attach(1).await, lab.attach(2).await);
        let others_io = lab.io_queue(&other, 1).await;
        let (others, own) = (instance(&other).await, instance(&source).await);
        ask(&source, others).await.refused(Status::INVALID_FIELD);
        ask(&source, own).await.refused(Status::INVALID_FIELD);
        let no_uniquifier = CrossControllerReset {
            uniquifier: 0,
            ..others
        };
        let no_random = CrossControllerReset {
            random: 0,
            ..others
        };
        for wrong in [no_uniquifier, no_random] {
            ask(&source, wrong).await.refused(Status::INVALID_FIELD);
        }
        for cntlid in [0, 0xfff0, 0xffff] {
            let nobodys = CrossControllerReset { cntlid, ..others };
            ask(&source, nobodys).await.refused(Status::INVALID_FIELD);
        }
        // Another life of that controller is over, and this one goes on.
        let earlier = CrossControllerReset {
            random: !others.random,
            ..others
        };
        is_done(ask(&source, earlier).await);
        lab.still_serves(&others_io).await;
        lab.attached_hosts_are(2).await;
        assert_eq!(log(&source, true).await, []);
    });
}

#[test]
fn what_a_controller_had_under_way_before_a_reset_has_ended_when_its_host_is_told_so() {
    story(async |lab| {
        let (reset, source) = (lab.attach(1).await, lab.attach(1).await);
        let io = lab.io_queue(&reset, 1).await;
        let before = instance(&reset).await;
        let mut event = awaits_event(&source).await;
        let _answer = hanging_write(&lab, &io, vec![1; 4096]).await;
        reset.set_property(properties::CC, 0).await.ok();
        reset.set_property(properties::CC, CC_ENABLE).await.ok();
        let after = instance(&reset).await;
        assert_ne!(after.uniquifier, before.uniquifier);
        assert_ne!(after.random, before.random);

        is_under_way(ask(&source, before).await);
        event.try_recv().expect_err("the write still hangs");
        lab.drive_gate.open();
        is_told(event.await.expect("an event"));
        assert_eq!(
            log(&source, false).await[0].state(),
            Some(ControllerResetState::Successful)
        );
        // The controller itself lives, and takes queues again.
        assert_eq!(instance(&reset).await, after);
        let io = lab.io_queue(&reset, 1).await;
        lab.still_serves(&io).await;
        is_done(ask(&source, before).await);
        lab.attached_hosts_are(2).await;
    });
}

#[test]
fn of_two_controllers_that_are_to_reset_each_other_the_first_one_does() {
    story(async |lab| {
        let (one, two) = (lab.attach(1).await, lab.attach(1).await);
        let (first, second) = (instance(&one).await, instance(&two).await);
        let asked = one.admin.begin(second.to_sqe()).1;
        let _never = two.admin.begin(first.to_sqe());
        is_done(asked.await.expect("an answer"));
        two.admin.closed().await;
        lab.attached_hosts_are(1).await;
        assert_eq!(instance(&one).await, first);
    });
}

#[test]
fn a_host_that_goes_while_it_waits_for_a_reset_leaves_nothing_behind() {
    story(async |lab| {
        let (lost, source) = (lab.attach(1).await, lab.attach(1).await);
        let io = lab.io_queue(&lost, 1).await;
        let named = instance(&lost).await;
        let _answer = hanging_write(&lab, &io, vec![1; 4096]).await;
        let _asked = source.admin.begin(named.to_sqe());
        lost.admin.closed().await;
        source.admin.close_from_host();
        // It does not wait for the write of the other one.
        while lab.target.nvm.controller_count() == 2 {
            reactor::yield_now().await;
        }
        lab.drive_gate.open();
        lab.nobody_is_attached().await;
        lab.all_buffers_are_back().await;
    });
}

#[test]
fn a_reset_of_the_controller_that_was_asked_forgets_what_it_was_asked() {
    story(async |lab| {
        let standby = standby_of(&lab.target);
        let engine = lab.engine.clone();
        let lab = lab.with_target(standby.clone());
        let source = lab.attach(1).await;
        is_under_way(ask(&source, elsewhere(0)).await);
        assert_eq!(log(&source, true).await.len(), 1);
        source.set_property(properties::CC, 0).await.ok();
        source.set_property(properties::CC, CC_ENABLE).await.ok();
        assert_eq!(log(&source, true).await, []);
        let mut event = awaits_event(&source).await;
        standby.take_over(engine).await.expect("taken");
        event.try_recv().expect_err("it was forgotten");
    });
}

/// A controller of the node with that number.
fn elsewhere(node: u16) -> CrossControllerReset {
    CrossControllerReset {
        cntlid: limits(node).controller_ids.first + 7,
        uniquifier: 9,
        random: 0x1122_3344_5566_7788,
    }
}

#[test]
fn a_standby_tells_that_another_nodes_controller_was_reset_when_it_has_the_pool_and_not_before() {
    story(async |lab| {
        let standby = standby_of(&lab.target);
        let engine = lab.engine.clone();
        let lab = lab.with_target(standby.clone());
        let source = lab.attach(1).await;
        let mut event = awaits_event(&source).await;
        // A number goes from node to node, so its own range says nothing: node 1 is this one.
        let asked = [0, 1, 2, 3].map(elsewhere);
        for reset in asked {
            is_under_way(ask(&source, reset).await);
        }
        let again = ask(&source, asked[2]).await;
        assert_eq!(again.code(), Status::CROSS_CONTROLLER_RESET_IN_PROGRESS);
        let fifth = ask(&source, elsewhere(4)).await;
        assert_eq!(fifth.code(), Status::LIMIT_EXCEEDED);
        // Nothing is known of them, and what ends here says nothing about them.
        lab.attach(1).await.admin.close_from_host();
        lab.attached_hosts_are(1).await;
        let waiting = asked.map(|reset| entry(reset, ControllerResetState::InProgress, 0));
        assert_eq!(log(&source, false).await, waiting);
        event.try_recv().expect_err("another node has the pool");

        standby.take_over(engine).await.expect("taken");
        is_told(event.await.expect("an event"));
        let done = asked.map(|reset| {
            entry(
                reset,
                ControllerResetState::Successful,
                VALIDATED_AND_INITIATED,
            )
        });
        assert_eq!(log(&source, false).await, done);
        assert_eq!(log(&source, false).await, []);
        is_done(ask(&source, elsewhere(4)).await);
    });
}

#[test]
fn a_controller_that_ends_on_a_standby_is_reset_like_any_other() {
    story(async |lab| {
        let standby = standby_of(&lab.target);
        let lab = lab.with_target(standby);
        let (lost, source) = (lab.attach(1).await, lab.attach(1).await);
        let named = instance(&lost).await;
        is_done(ask(&source, named).await);
        lost.admin.closed().await;
        lab.attached_hosts_are(1).await;
    });
}

#[test]
fn a_node_that_cannot_write_to_the_pool_does_not_say_what_became_of_another_nodes_controller() {
    story_with(limits(0), async |lab| {
        let (lost, source) = (lab.attach(1).await, lab.attach(1).await);
        is_done(ask(&source, elsewhere(1)).await);
        // As a node that has lost the pool, and has not noticed yet.
        lab.drive_gate.break_off();
        let refused = ask(&source, elsewhere(1)).await;
        assert!(!refused.status.is_success());
        assert_eq!(log(&source, true).await, []);
        // What is its own it knows.
        is_done(ask(&source, instance(&lost).await).await);
    });
}

#[test]
fn the_time_that_hosts_are_told_is_the_one_that_was_set() {
    let limits = |quiesce_time| Limits {
        quiesce_time,
        ..Limits::default()
    };
    for (set, told) in [(0, 0), (1234, 1234), (600_000, u16::MAX)] {
        let set = std::time::Duration::from_millis(set);
        story_with(limits(set), async |lab| {
            let host = lab.attach(1).await;
            let page = identify(&host, 0x01, 0).await.ok().data;
            let page = IdentifyController::decode(&page).expect("a page");
            assert_eq!(page.cqt, told);
        });
    }
}

#[test]
fn the_discovery_controller_resets_nobody() {
    story(async |lab| {
        let host = lab.discover(1).await;
        let page = identify(&host, 0x01, 0).await.ok().data;
        let page = IdentifyController::decode(&page).expect("a page");
        assert_eq!((page.ciu, page.cirn, page.ccrl, page.cqt), (0, 0, 0, 0));
        let sqe = Sqe::new(OPCODE_CROSS_CONTROLLER_RESET);
        host.admin.call(sqe).await.refused(Status::INVALID_OPCODE);
    });
}
