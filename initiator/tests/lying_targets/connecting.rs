//! Answers to a host that connects.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use fabric::{CloseReason, HostError};
use initiator::{ConnectOptions, Controller, Error, discover};
use nvme::admin::{OPCODE_GET_LOG_PAGE, OPCODE_KEEP_ALIVE, OPCODE_SET_FEATURES};
use nvme::auth::{HostKeys, Secret};
use nvme::command::FABRICS_OPCODE;
use nvme::fabrics::FabricsCommand;
use nvme::identify::{Cns, IdentifyController, IdentifyNamespace, LbaFormat};
use nvme::io::OPCODE_READ;
use nvme::log::{DISCOVERY_BYTES, DiscoveryHeader};
use nvme::properties::{CAP, CSTS};
use nvme::{Sqe, Status};

use crate::target::{
    CNTLID, Lie, Target, capabilities, controller_page, identify, namespace_page, opcode, story,
};

fn connect(wanted: impl Fn(u16) -> bool + 'static) -> impl Fn(&Sqe) -> bool + 'static {
    move |sqe| match FabricsCommand::parse(sqe) {
        Ok(FabricsCommand::Connect(connect)) if sqe.opcode() == FABRICS_OPCODE => {
            wanted(connect.qid)
        }
        _ => false,
    }
}

fn property(wanted: u32) -> impl Fn(&Sqe) -> bool + 'static {
    move |sqe| {
        let get = FabricsCommand::parse(sqe);
        sqe.opcode() == FABRICS_OPCODE
            && matches!(get, Ok(FabricsCommand::PropertyGet { offset, .. }) if offset == wanted)
    }
}

/// What connecting ends with when the target lies so.
async fn fails(target: &Target, is: impl Fn(&Sqe) -> bool + 'static, lie: Lie) -> Error {
    let what = format!("{lie:?}");
    target.lies(is, lie);
    let error = target.connect().await.expect_err(&what);
    assert!(!error.to_string().is_empty());
    // Nothing of it stays: an honest target is connected to as before.
    target.says_the_truth();
    target.connect().await.expect("an honest target");
    error
}

fn page(change: impl FnOnce(&mut IdentifyController)) -> Lie {
    let mut page = controller_page();
    change(&mut page);
    Lie::Data(page.encode().to_vec())
}

#[test]
fn a_command_is_told_what_ended_the_keep_alives_and_not_that_this_side_closed_its_queue() {
    story(async |target: Target| {
        let options = ConnectOptions {
            keep_alive: Duration::from_millis(20),
            ..target.options()
        };
        let controller = Controller::connect(&target.connector, options).await;
        let controller = controller.expect("an honest target");
        let namespace = controller.namespace(1).await.expect("its namespace");
        // The admin queue ends. The read is not answered, and its queue stands.
        target.lies_with(|sqe| match sqe.opcode() {
            OPCODE_KEEP_ALIVE => Some(Lie::HangUp),
            OPCODE_READ => Some(Lie::Silence),
            _ => None,
        });
        let (result, _) = namespace.read(0, initiator::buffer(4096).await).await;
        let error = result.expect_err("nobody answers");
        let ended = |reason: &CloseReason| *reason != CloseReason::Local;
        assert!(
            matches!(&error, Error::Queue(HostError::Closed { reason, .. }) if ended(reason)),
            "{error}"
        );
    });
}

#[test]
fn a_target_that_lies_while_a_host_connects_is_not_connected_to() {
    story(async |target: Target| {
        let target = &target;
        let status = |error: &Error| error.status().map(Status::code);
        let refusal = Status::CONNECT_INVALID_HOST;
        for admin in [true, false] {
            let of = move || connect(move |qid| (qid == 0) == admin);
            let error = fails(target, of(), Lie::Status(refusal.with_dnr())).await;
            assert_eq!(status(&error), Some(refusal), "{error}");
            let error = fails(target, of(), Lie::HangUp).await;
            assert!(matches!(error, Error::Queue(_)), "{error}");
            // It wants to authenticate this host, which has no secret; or a channel that this host does not know.
            for bits in [1 << 17, 1 << 18, 3 << 17] {
                let result = u64::from(CNTLID) | bits;
                let error = fails(target, of(), Lie::Result(result)).await;
                assert!(
                    matches!(error, Error::Authentication { .. } | Error::NoSecret { .. }),
                    "{error}"
                );
            }
        }
        // Another controller than the page says.
        let error = fails(target, connect(|qid| qid == 0), Lie::Result(9)).await;
        assert!(matches!(error, Error::Protocol { .. }), "{error}");

        let larger_pages = Lie::Result(capabilities(2, 1));
        let error = fails(target, property(CAP), larger_pages).await;
        assert!(error.to_string().contains("page"), "{error}");
        for (what, of) in [("CAP", CAP), ("CSTS", CSTS)] {
            let error = fails(target, property(of), Lie::Status(Status::INVALID_FIELD)).await;
            assert_eq!(status(&error), Some(Status::INVALID_FIELD), "{what}");
        }
        let error = fails(target, property(CSTS), Lie::Result(0b10)).await;
        assert!(error.to_string().contains("CSTS.CFS"), "{error}");
        // It never gets ready: CAP.TO says how long that may take (here 1 s).
        let error = fails(target, property(CSTS), Lie::Result(0)).await;
        assert!(matches!(error, Error::Timeout { .. }), "{error}");

        let of = || identify(Cns::Controller);
        for lie in [
            Lie::Data(vec![0; 4096]),
            Lie::Data(vec![0xff; 4096]),
            Lie::Data(controller_page().encode()[..64].to_vec()),
            page(|page| page.cntlid = CNTLID + 1),
        ] {
            let error = fails(target, of(), lie).await;
            let clear = matches!(error, Error::Protocol { .. } | Error::Queue(_));
            assert!(clear, "{error}");
        }
        // Queues of one entry.
        let error = fails(target, of(), page(|page| page.maxcmd = 1)).await;
        assert!(matches!(error, Error::Connect(_)), "{error}");
        let no = Lie::Status(Status::INTERNAL);
        let error = fails(target, opcode(OPCODE_SET_FEATURES), no).await;
        assert_eq!(status(&error), Some(Status::INTERNAL), "{error}");
    });
}

#[test]
fn a_host_that_wants_to_know_its_target_leaves_one_that_proves_nothing() {
    story(async |target: Target| {
        let secret = || Secret::from_random(None, &[7; 64]);
        let options = ConnectOptions {
            keys: Some(Arc::new(HostKeys::new(secret(), Some(secret())))),
            ..target.options()
        };
        let error = Controller::connect(&target.connector, options).await;
        let error = error.expect_err("it asks for nothing").to_string();
        assert!(error.contains("it does not authenticate"), "{error}");
    });
}

#[test]
fn what_a_target_announces_is_bounded_before_it_is_used() {
    story(async |target: Target| {
        for (what, lie) in [
            ("no limit", page(|page| page.mdts = 0)),
            ("the largest exponent", page(|page| page.mdts = 255)),
            (
                "more bytes than a number holds",
                page(|page| page.mdts = 60),
            ),
            ("no capsule at all", page(|page| page.ioccsz = 0)),
            ("a capsule for more", page(|page| page.ioccsz = 300)),
            ("data far behind the command", page(|page| page.icdoff = 9)),
            ("no SGL that is known", page(|page| page.sgls = 0)),
        ] {
            target.lies(identify(Cns::Controller), lie);
            let controller = target.connect().await.expect(what);
            let most = controller.max_transfer_bytes();
            assert!((4096..=1 << 20).contains(&most), "{what}: {most}");
            let namespace = controller.namespace(1).await.expect(what);
            // Small enough for any capsule that was announced, and not.
            for len in [4096, 65536] {
                let mut data = initiator::buffer(len).await;
                data.fill(0xc3);
                namespace.write(0, data, false).await.0.expect(what);
                let (read, data) = namespace.read(0, initiator::buffer(len).await).await;
                read.expect(what);
                assert!(data.iter().all(|byte| *byte == 0xc3), "{what}");
            }
        }
        target.says_the_truth();
        // More queues than were asked for; and all that can be said.
        for granted in [0xffff_ffff, 0x0063_0063, 0] {
            target.lies(opcode(OPCODE_SET_FEATURES), Lie::Result(granted));
            let mut options = target.options();
            options.io_queues = 2;
            let controller = Controller::connect(&target.connector, options).await;
            let queues = controller.expect("queues").io_queues();
            let expected = if granted == 0 { 1 } else { 2 };
            assert_eq!(queues, expected, "{granted:#x}");
        }
    });
}

#[test]
fn namespaces_that_cannot_be_are_not_opened() {
    story(async |target: Target| {
        let controller = target.connect().await.expect("an honest target");
        let with = |change: fn(&mut IdentifyNamespace)| {
            let mut page = namespace_page();
            change(&mut page);
            page.encode().to_vec()
        };
        let format = |lbads| {
            let mut page = namespace_page();
            page.lbaf = vec![LbaFormat {
                ms: 0,
                lbads,
                rp: 0,
            }];
            page.encode().to_vec()
        };
        let mut formats = with(|_| {});
        formats[25] = 64;
        for (what, page) in [
            ("no blocks", with(|page| page.nsze = 0)),
            (
                "more bytes than there are",
                with(|page| page.nsze = u64::MAX),
            ),
            ("a format that is not there", with(|page| page.flbas = 5)),
            ("65 formats", formats),
            ("blocks of one byte", format(0)),
            ("blocks of 256 bytes", format(8)),
            ("blocks of 128 KiB", format(17)),
            ("blocks of 2 GiB", format(31)),
            ("blocks of no size that a number holds", format(200)),
        ] {
            target.lies(identify(Cns::Namespace), Lie::Data(page));
            let error = controller.namespace(1).await.expect_err(what);
            let clear = matches!(error, Error::Protocol { .. } | Error::NoNamespace { .. });
            assert!(clear, "{what}: {error}");
        }
        target.says_the_truth();
        controller.namespace(1).await.expect("its namespace");
    });
}

#[test]
fn a_discovery_log_without_end_is_an_error() {
    story(async |target: Target| {
        let log = |generation, records, record_format| {
            let header = DiscoveryHeader {
                generation,
                records,
                record_format,
            };
            Lie::Data(header.encode().to_vec())
        };
        let read = async || {
            let host = initiator::Host::generate();
            discover(&target.connector, target.address, host).await
        };
        for (what, lie) in [
            ("records without end", log(1, u64::MAX, 0)),
            ("more than anybody has", log(1, 5000, 0)),
            ("records of another form", log(1, 0, 7)),
            ("half a header", Lie::Data(vec![0xff; DISCOVERY_BYTES / 2])),
        ] {
            target.lies(opcode(OPCODE_GET_LOG_PAGE), lie);
            let error = read().await.expect_err(what);
            let clear = matches!(error, Error::Protocol { .. } | Error::Queue(_));
            assert!(clear, "{what}: {error}");
        }
        // One that changes whenever it is looked at.
        let (generation, reads) = (Cell::new(0), Rc::new(Cell::new(0)));
        let counted = reads.clone();
        target.lies_with(move |sqe| {
            let is = sqe.opcode() == OPCODE_GET_LOG_PAGE;
            is.then(|| {
                counted.set(counted.get() + 1);
                generation.set(generation.get() + 1);
                log(generation.get(), 0, 0)
            })
        });
        let error = read().await.expect_err("it changes");
        assert!(matches!(error, Error::Protocol { .. }), "{error}");
        assert!(reads.get() < 100, "{} reads", reads.get());
        // Records of no transport that is known here, and nonsense, are left out.
        target.lies_with(move |sqe| {
            let is = sqe.opcode() == OPCODE_GET_LOG_PAGE;
            is.then(|| match sqe.cdw(12) {
                0 => log(1, 3, 0),
                _ => Lie::Data(vec![0xee; DISCOVERY_BYTES]),
            })
        });
        assert_eq!(read().await, Ok(Vec::new()));
    });
}
