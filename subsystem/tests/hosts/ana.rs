//! Two paths to the same namespaces, and what their states mean to a host.

use fabric::Transport;
use nvme::admin::{GetFeatures, GetLogPage, Identify, OPCODE_ASYNC_EVENT_REQUEST, SetFeatures};
use nvme::ana::{AnaLog, AnaState, RETURN_GROUPS_ONLY};
use nvme::features::{AsyncEvent, AsyncEventConfig};
use nvme::identify::{IdentifyController, IdentifyNamespace};
use nvme::io::IoCommand;
use nvme::reservation::ReservationCommand;
use nvme::{Sqe, Status};
use subsystem::catalog::{Catalog, PortConfig};
use subsystem::errors::Failure;
use subsystem::limits::Limits;

use crate::harness::{Attached, FakeQueue, Lab, open_target, read, story, write};

/// A host on the listener for RDMA (1) and on that for TCP (2).
struct Paths {
    rdma: Attached,
    tcp: Attached,
    rdma_io: FakeQueue,
    tcp_io: FakeQueue,
}

impl Paths {
    async fn new(lab: &mut Lab) -> Self {
        let rdma = lab.attach(1).await;
        let rdma_io = lab.io_queue(&rdma, 1).await;
        lab.transport = Transport::Tcp;
        let tcp = lab.attach(1).await;
        let tcp_io = lab.io_queue(&tcp, 1).await;
        Self {
            rdma,
            tcp,
            rdma_io,
            tcp_io,
        }
    }
}

async fn set(
    lab: &Lab,
    listener: &str,
    group: u32,
    state: AnaState,
) -> Result<PortConfig, Failure> {
    let change = |catalog: &mut Catalog| catalog.set_ana(listener, group, state).cloned();
    lab.target.change(change).await
}

async fn move_namespace(lab: &Lab, nsid: u32, group: u32) {
    let nqn = lab.target.nvm.nqn.clone();
    let moved = lab.target.change(|catalog| {
        catalog.namespace_mut(&nqn, nsid)?.ana_group = group;
        Ok(())
    });
    moved.await.expect("there is such a group");
}

fn log_piece(length: u64, offset: u64, lsp: u8, retain_event: bool) -> Sqe {
    GetLogPage {
        lid: 0x0c,
        lsp,
        retain_event,
        length,
        offset,
        offset_is_index: false,
        nsid: 0,
        csi: 0,
    }
    .to_sqe()
}

async fn ana_log(host: &Attached) -> AnaLog {
    let reply = host.admin.call_in(log_piece(4096, 0, 0, false), 4096).await;
    AnaLog::decode(&reply.ok().data).expect("a page")
}

/// Identifier, state and namespaces of each group.
fn shape(log: &AnaLog) -> Vec<(u32, AnaState, Vec<u32>)> {
    let groups = log.groups.iter();
    groups
        .map(|group| (group.id, group.state, group.nsids.clone()))
        .collect()
}

fn identify(cns: u8, nsid: u32) -> Sqe {
    Identify {
        cns,
        cntid: 0,
        nsid,
        csi: 0,
        specific_id: 0,
    }
    .to_sqe()
}

#[test]
fn a_path_that_does_not_reach_a_namespace_sends_the_host_to_the_other_one() {
    story(async |mut lab| {
        let paths = Paths::new(&mut lab).await;
        let written = vec![7; 4096];
        for (state, status) in [
            (AnaState::Inaccessible, Status::ASYMMETRIC_INACCESSIBLE),
            (AnaState::PersistentLoss, Status::ASYMMETRIC_PERSISTENT_LOSS),
            (AnaState::Change, Status::ASYMMETRIC_TRANSITION),
        ] {
            set(&lab, "1", 1, state).await.expect("a listener");
            let report = ReservationCommand::Report {
                nsid: 1,
                length: 64,
                extended: true,
            };
            let replies = [
                paths.rdma_io.call_in(read(1, 0, 1), 4096).await,
                paths.rdma_io.call_out(write(1, 0, 1), vec![1; 4096]).await,
                paths
                    .rdma_io
                    .call(IoCommand::Flush { nsid: 1 }.to_sqe())
                    .await,
                paths.rdma_io.call_in(report.to_sqe(), 64).await,
            ];
            for reply in replies {
                assert_eq!(reply.code(), status);
                assert!(!reply.status.is_dnr(), "the host may try the other path");
            }
            // The other path works, and what is no namespace is none on any path.
            let reply = paths.tcp_io.call_out(write(1, 0, 1), written.clone()).await;
            reply.ok();
            let reply = paths.rdma_io.call_in(read(9, 0, 1), 4096).await;
            reply.refused(Status::INVALID_NAMESPACE);
            // What tells about the namespace still does.
            let page = paths.rdma.admin.call_in(identify(0, 1), 4096).await.ok();
            let page = IdentifyNamespace::decode(&page.data).expect("a page");
            assert_eq!((page.anagrpid, page.nsze > 0), (1, true));
            assert_eq!(
                page.nuse > 0,
                state == AnaState::Change,
                "used blocks, {state}"
            );
        }
        for state in [AnaState::NonOptimized, AnaState::Optimized] {
            set(&lab, "1", 1, state).await.expect("a listener");
            let data = paths.rdma_io.call_in(read(1, 0, 1), 4096).await.ok().data;
            assert_eq!(data, written);
        }
    });
}

#[test]
fn features_of_a_namespace_are_out_of_reach_with_it() {
    story(async |mut lab| {
        let paths = Paths::new(&mut lab).await;
        set(&lab, "1", 1, AnaState::Inaccessible)
            .await
            .expect("a listener");
        for fid in [0x82, 0x83, 0x84] {
            let get = GetFeatures {
                fid,
                select: 0,
                cdw11: 0,
                nsid: 1,
            };
            let set = SetFeatures {
                fid,
                save: false,
                dwords: [0; 5],
                nsid: 1,
            };
            for sqe in [get.to_sqe(), set.to_sqe()] {
                let reply = paths.rdma.admin.call(sqe).await;
                assert_eq!(reply.code(), Status::ASYMMETRIC_INACCESSIBLE);
                paths.tcp.admin.call(sqe).await.ok();
            }
        }
    });
}

#[test]
fn only_the_path_that_changed_is_told_and_its_log_says_what_changed() {
    story(async |mut lab| {
        lab.create_volume("vol1", 16 << 20, 4096).await;
        let paths = Paths::new(&mut lab).await;
        let optimized = vec![(1, AnaState::Optimized, vec![1, 2])];
        for host in [&paths.rdma, &paths.tcp] {
            let wanted = SetFeatures {
                fid: 0x0b,
                save: false,
                dwords: [AsyncEventConfig::ANA_CHANGE.0, 0, 0, 0, 0],
                nsid: 0,
            };
            host.admin.call(wanted.to_sqe()).await.ok();
            assert_eq!(shape(&ana_log(host).await), optimized);
        }
        let before = ana_log(&paths.rdma).await.change_count;
        let event = |host: &Attached| host.admin.begin(Sqe::new(OPCODE_ASYNC_EVENT_REQUEST)).1;
        let (told, mut untold) = (event(&paths.rdma), event(&paths.tcp));
        set(&lab, "rdma://0.0.0.0:4420", 1, AnaState::NonOptimized)
            .await
            .expect("a listener");
        let told = told.await.expect("an event").ok();
        assert_eq!(told.result, u64::from(AsyncEvent::ANA_CHANGED.encode()));
        let log = ana_log(&paths.rdma).await;
        assert_eq!(shape(&log), [(1, AnaState::NonOptimized, vec![1, 2])]);
        assert_eq!(log.change_count, before + 1);
        assert_eq!(log.groups[0].change_count, log.change_count);
        assert_eq!(shape(&ana_log(&paths.tcp).await), optimized);

        // A namespace that comes to another group takes that group's state, on each path its own.
        set(&lab, "2", 128, AnaState::Inaccessible)
            .await
            .expect("a listener");
        assert!(untold.try_recv().is_err(), "no namespace is in that group");
        move_namespace(&lab, 2, 128).await;
        let expected = [
            (1, AnaState::Optimized, vec![1]),
            (128, AnaState::Inaccessible, vec![2]),
        ];
        assert_eq!(shape(&ana_log(&paths.tcp).await), expected);
        let reply = paths.tcp_io.call_in(read(2, 0, 1), 4096).await;
        assert_eq!(reply.code(), Status::ASYMMETRIC_INACCESSIBLE);
        paths.tcp_io.call_in(read(1, 0, 1), 4096).await.ok();
        paths.rdma_io.call_in(read(2, 0, 1), 4096).await.ok();
    });
}

#[test]
fn the_log_can_be_read_in_pieces_and_without_namespaces() {
    story(async |mut lab| {
        for volume in ["vol1", "vol2"] {
            lab.create_volume(volume, 16 << 20, 4096).await;
        }
        let paths = Paths::new(&mut lab).await;
        move_namespace(&lab, 2, 5).await;
        let admin = &paths.rdma.admin;
        let whole = admin
            .call_in(log_piece(4096, 0, 0, true), 4096)
            .await
            .ok()
            .data;
        // A header, and two groups with three namespaces together.
        let end = 16 + 2 * 32 + 3 * 4;
        assert!(whole[end..].iter().all(|byte| *byte == 0));
        let mut pieces = Vec::new();
        while pieces.len() < end {
            let piece = log_piece(8, pieces.len() as u64, 0, true);
            pieces.extend(admin.call_in(piece, 8).await.ok().data);
        }
        assert_eq!(pieces[..end], whole[..end]);
        let groups = log_piece(4096, 0, RETURN_GROUPS_ONLY, true);
        let groups = AnaLog::decode(&admin.call_in(groups, 4096).await.ok().data);
        let groups = groups.expect("a page").groups;
        assert_eq!(groups.len(), 2);
        assert!(groups.iter().all(|group| group.nsids.is_empty()));
        // nvme-cli reads as much as the log may ever have, in pieces of a page.
        let longest = 16 + 32 * 128 + 4 * 1024;
        for offset in (0..longest).step_by(4096) {
            let piece = log_piece(4096, offset, 0, true);
            admin.call_in(piece, 4096).await.ok();
        }
        let behind = log_piece(8, longest + 4, 0, true);
        let reply = admin.call_in(behind, 8).await;
        reply.refused(Status::INVALID_FIELD);
    });
}

#[test]
fn the_controller_announces_what_linux_checks_before_it_uses_several_paths() {
    story(async |lab| {
        let host = lab.attach(1).await;
        let page = host.admin.call_in(identify(1, 0), 4096).await.ok().data;
        let page = IdentifyController::decode(&page).expect("a page");
        assert_ne!(page.cmic & 1 << 3, 0);
        assert_eq!(page.anacap & 0x1f, 0x1f);
        assert!(page.anatt > 0);
        assert_eq!((page.anagrpmax, page.nanagrpid), (128, 128));
        assert_ne!(page.oaes & AsyncEventConfig::ANA_CHANGE.0, 0);
        // drivers/nvme/host/multipath.c: a log that exceeds the largest transfer switches ANA off.
        assert!(page.mnan > 0 && page.mnan <= page.nn);
        let log_bytes = 16 + 32 * page.nanagrpid + 4 * page.mnan;
        assert!(log_bytes <= 4096 << page.mdts);
    });
}

#[test]
fn groups_and_listeners_that_are_not_there_are_refused_by_name() {
    story(async |lab| {
        for (listener, group, part) in [
            ("1", 0, "group 0"),
            ("1", 129, "group 129"),
            ("7", 1, "listener '7'"),
            ("tcp://192.0.2.9:4420", 1, "tcp://192.0.2.9:4420"),
            ("nonsense", 1, "nonsense"),
        ] {
            let error = set(&lab, listener, group, AnaState::Change).await;
            let error = error.expect_err("there is none");
            assert!(error.message.contains(part), "{}", error.message);
        }
        let view = set(&lab, "2", 3, AnaState::Change)
            .await
            .expect("there is one");
        assert_eq!(view.ana.get(&3), Some(&AnaState::Change));
        let view = set(&lab, "2", 3, AnaState::Optimized)
            .await
            .expect("there is one");
        assert!(view.ana.is_empty(), "what is usual is not kept");
    });
}

#[test]
fn states_of_listeners_from_the_command_line_hold_again_after_a_restart() {
    story(async |mut lab| {
        set(&lab, "rdma://0.0.0.0:4420", 1, AnaState::Inaccessible)
            .await
            .expect("a listener");
        set(&lab, "2", 3, AnaState::NonOptimized)
            .await
            .expect("a listener");
        let before = lab.target.catalog();
        lab.target = open_target(&lab.engine, Limits::default());
        assert_eq!(lab.target.catalog().ports, before.ports);
        // And nothing is left of a state that is not there any more.
        for (listener, group) in [("1", 1), ("2", 3)] {
            set(&lab, listener, group, AnaState::Optimized)
                .await
                .expect("a listener");
        }
        lab.target = open_target(&lab.engine, Limits::default());
        assert!(
            lab.target
                .catalog()
                .ports
                .values()
                .all(|port| port.ana.is_empty())
        );
    });
}
