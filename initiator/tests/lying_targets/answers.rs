//! Answers to commands of a host that is attached.

use std::time::Duration;

use fabric::CloseReason;
use initiator::{CopySource, Error, Namespace};
use nvme::Status;
use nvme::admin::{OPCODE_GET_LOG_PAGE, OPCODE_IDENTIFY, OPCODE_SET_FEATURES};
use nvme::identify::Cns;
use nvme::io;
use nvme::lba_status::OPCODE_GET_LBA_STATUS;
use nvme::log::LogPage;
use nvme::node_table::{
    ENTRIES_BYTES_MAX, OPCODE_NODE_TABLE_RECEIVE, OPCODE_NODE_TABLE_SEND, TableReceive, TableSend,
};
use nvme::reservation::{
    AcquireAction, KeyPair, OPCODE_RESERVATION_ACQUIRE, OPCODE_RESERVATION_REGISTER,
    OPCODE_RESERVATION_RELEASE, OPCODE_RESERVATION_REPORT, RegisterAction, ReleaseAction,
    ReservationType,
};

use crate::target::{Lie, Target, identify, opcode, story};

/// Every call of the library that sends a command, with the opcode of what it sends and the name that errors
/// give it.
const CALLS: [(&str, u8); 19] = [
    ("Read", io::OPCODE_READ),
    ("Write", io::OPCODE_WRITE),
    ("Flush", io::OPCODE_FLUSH),
    ("Write Zeroes", io::OPCODE_WRITE_ZEROES),
    ("Dataset Management", io::OPCODE_DATASET_MANAGEMENT),
    ("Compare", io::OPCODE_COMPARE),
    ("Verify", io::OPCODE_VERIFY),
    ("Write Uncorrectable", io::OPCODE_WRITE_UNCORRECTABLE),
    ("Copy", io::OPCODE_COPY),
    ("Get LBA Status", OPCODE_GET_LBA_STATUS),
    ("Reservation Register", OPCODE_RESERVATION_REGISTER),
    ("Reservation Acquire", OPCODE_RESERVATION_ACQUIRE),
    ("Reservation Release", OPCODE_RESERVATION_RELEASE),
    ("Reservation Report", OPCODE_RESERVATION_REPORT),
    ("Node Table Send", OPCODE_NODE_TABLE_SEND),
    ("Node Table Receive", OPCODE_NODE_TABLE_RECEIVE),
    ("Identify", OPCODE_IDENTIFY),
    ("Get Log Page", OPCODE_GET_LOG_PAGE),
    ("Set Features", OPCODE_SET_FEATURES),
];

const KEYS: KeyPair = KeyPair {
    current: 1,
    other: 2,
};

async fn call(
    controller: &initiator::Controller,
    namespace: &Namespace,
    name: &str,
) -> Result<(), Error> {
    let memory = async || {
        let mut memory = initiator::buffer(4096).await;
        memory.fill(0x5a);
        memory
    };
    match name {
        "Read" => namespace.read(0, memory().await).await.0,
        "Write" => namespace.write(0, memory().await, false).await.0,
        "Flush" => namespace.flush().await,
        "Write Zeroes" => namespace.write_zeroes(0, 4096).await,
        "Dataset Management" => namespace.trim(0, 4096).await,
        "Compare" => namespace.compare(0, memory().await).await.0.map(drop),
        "Verify" => namespace.verify(0, 4096).await,
        "Write Uncorrectable" => namespace.write_uncorrectable(0, 4096).await,
        "Copy" => {
            let source = CopySource {
                namespace,
                offset: 8192,
                len: 4096,
            };
            namespace.copy(0, &[source]).await
        }
        "Get LBA Status" => namespace.unreadable(0, 4096, false).await.map(drop),
        "Reservation Register" => {
            let action = RegisterAction::Register;
            namespace.register(action, false, None, KEYS).await
        }
        "Reservation Acquire" => {
            let kind = ReservationType::WriteExclusive;
            namespace.acquire(AcquireAction::Acquire, kind, KEYS).await
        }
        "Reservation Release" => {
            let kind = ReservationType::WriteExclusive;
            namespace.release(ReleaseAction::Release, kind, 1).await
        }
        "Reservation Report" => namespace.reservation_report().await.map(drop),
        "Node Table Send" => {
            let (number, lease_ms) = (3, 1000);
            let what = TableSend::Entry { number, lease_ms };
            namespace.node_table_send(what, &[7; 20]).await
        }
        "Node Table Receive" => {
            let received = namespace.node_table_receive(TableReceive::Entries, ENTRIES_BYTES_MAX);
            received.await.map(drop)
        }
        "Identify" => controller.namespaces().await.map(drop),
        "Get Log Page" => controller.log_page(LogPage::Smart, 0, 512).await.map(drop),
        "Set Features" => controller.enable_copies_between_namespaces().await,
        name => panic!("{name} is in the table and nowhere else"),
    }
}

#[test]
fn an_error_status_of_any_command_is_an_error_that_names_it() {
    // For good and not, of every status code type, and numbers that nobody knows.
    let statuses = [
        Status::INTERNAL,
        Status::INVALID_FIELD.with_dnr(),
        Status::RESERVATION_CONFLICT.with_dnr(),
        Status::CAPACITY_EXCEEDED.with_dnr().with_more(),
        Status::WRITE_FAULT,
        Status::UNRECOVERED_READ.with_dnr(),
        Status::ASYMMETRIC_INACCESSIBLE,
        Status::from_bits(0x0ff),
        Status::from_bits(0x7ff).with_dnr(),
    ];
    story(async |target: Target| {
        let (controller, namespace) = target.attached().await;
        for (name, code) in CALLS {
            for said in statuses {
                target.lies(opcode(code), Lie::Status(said));
                match call(&controller, &namespace, name).await {
                    Err(
                        error @ Error::Status {
                            command, status, ..
                        },
                    ) => {
                        assert_eq!((command, status), (name, said));
                        assert!(error.to_string().contains(name), "{error}");
                    }
                    other => panic!("{name} ended with {said}, and is {other:?}"),
                }
                // It was an answer like any other: the queue goes on.
                target.says_the_truth();
                let again = call(&controller, &namespace, name).await;
                assert!(again.is_ok(), "{name} after {said}: {again:?}");
            }
        }
    });
}

#[test]
fn an_error_status_of_either_half_of_compare_and_write_is_told() {
    story(async |target: Target| {
        let (_controller, namespace) = target.attached().await;
        let swap = async || {
            let (expected, new) = (initiator::buffer(4096).await, initiator::buffer(4096).await);
            namespace.compare_and_write(0, expected, new, false).await
        };
        for (code, name) in [(io::OPCODE_COMPARE, "Compare"), (io::OPCODE_WRITE, "Write")] {
            let status = Status::INTERNAL;
            target.lies(opcode(code), Lie::Status(status));
            let error = swap().await.expect_err(name);
            assert_eq!(error.status(), Some(status), "{name}: {error}");
        }
        let differs = Status::COMPARE_FAILURE.with_dnr();
        target.lies(opcode(io::OPCODE_COMPARE), Lie::Status(differs));
        assert_eq!(swap().await, Ok(false));
        target.says_the_truth();
        assert_eq!(swap().await, Ok(true));
    });
}

#[test]
fn what_is_read_is_what_the_target_has() {
    story(async |target: Target| {
        let (_controller, namespace) = target.attached().await;
        let mut data = initiator::buffer(131_072).await;
        let pattern = |at: usize| (at / 4096 * 31 + at) as u8;
        for (at, byte) in data.iter_mut().enumerate() {
            *byte = pattern(at);
        }
        namespace.write(65536, data, true).await.0.expect("written");
        let (read, data) = namespace
            .read(65536, initiator::buffer(131_072).await)
            .await;
        read.expect("read");
        assert!(
            data.iter()
                .enumerate()
                .all(|(at, byte)| *byte == pattern(at))
        );
    });
}

#[test]
fn a_command_that_is_not_answered_ends_in_time_and_its_queue_with_it() {
    story(async |target: Target| {
        for (name, code) in CALLS {
            target.says_the_truth();
            let limit = Duration::from_millis(50);
            let mut options = target.options();
            options.command_timeout = Duration::from_secs(30);
            let patient = initiator::Controller::connect(&target.connector, options).await;
            drop(patient.expect("an honest target"));
            // Connecting has to be done in that time too, so a busy machine may need some tries.
            let mut options = target.options();
            options.command_timeout = limit;
            let controller = loop {
                let connecting = initiator::Controller::connect(&target.connector, options.clone());
                match connecting.await {
                    Ok(controller) => break controller,
                    Err(Error::Timeout { .. }) => options.command_timeout *= 2,
                    Err(error) => panic!("{error}"),
                }
            };
            let namespace = controller.namespace(1).await.expect("its namespace");
            target.lies(opcode(code), Lie::Silence);
            match call(&controller, &namespace, name).await {
                Err(Error::Timeout { command, .. }) => assert_eq!(command, name),
                other => panic!("{name}: {other:?}"),
            }
            // What the target may still write into memory is gone with the queue.
            let again = call(&controller, &namespace, name).await;
            assert!(matches!(again, Err(Error::Queue(_))), "{name}: {again:?}");
        }
    });
}

#[test]
fn a_connection_that_ends_instead_of_an_answer_is_told() {
    story(async |target: Target| {
        for (name, code) in CALLS {
            target.says_the_truth();
            let (controller, namespace) = target.attached().await;
            target.lies(opcode(code), Lie::HangUp);
            match call(&controller, &namespace, name).await {
                Err(Error::Queue(fabric::HostError::Closed { reason, .. })) => {
                    assert!(!matches!(reason, CloseReason::Local), "{name}: {reason}");
                }
                other => panic!("{name}: {other:?}"),
            }
        }
    });
}

#[test]
fn lists_and_pages_that_make_no_sense_are_errors() {
    story(async |target: Target| {
        let list = |nsids: &[u32]| nvme::identify::encode_namespace_list(nsids).to_vec();
        let full: Vec<u32> = (1..=1024).collect();
        for (what, nsids) in [
            ("it descends", vec![2, 1]),
            ("it has one twice in a row", vec![1, 1]),
            ("it begins again and again", full.clone()),
        ] {
            let (controller, _) = target.attached().await;
            target.lies(identify(Cns::ActiveNamespaces), Lie::Data(list(&nsids)));
            match controller.namespaces().await {
                Err(Error::Protocol { command, .. }) => assert_eq!(command, "Identify"),
                other => panic!("{what}: {other:?}"),
            }
            target.says_the_truth();
        }
        // A report that says it is longer each time that it is read, and one that cannot be.
        let (_controller, namespace) = target.attached().await;
        let mut registrants = 1000_u16;
        target.lies_with(move |sqe| {
            let is = sqe.opcode() == OPCODE_RESERVATION_REPORT;
            is.then(|| {
                registrants = registrants.saturating_add(1000);
                let mut report = vec![0; (sqe.cdw(10) as usize + 1) * 4];
                report[5..7].copy_from_slice(&registrants.to_le_bytes());
                Lie::Data(report)
            })
        });
        let error = namespace.reservation_report().await.expect_err("too long");
        assert!(matches!(error, Error::Protocol { .. }), "{error}");
        // Unreadable ranges: more of them than fit, and an answer that nobody knows.
        for header in [[0xff, 0xff, 0, 0, 2, 0, 0, 0], [0, 0, 0, 0, 9, 0, 0, 0]] {
            let mut page = header.to_vec();
            page.resize(4096, 0);
            target.lies(opcode(OPCODE_GET_LBA_STATUS), Lie::Data(page));
            let error = namespace.unreadable(0, 4096, false).await;
            let error = error.expect_err("no such list");
            assert!(matches!(error, Error::Protocol { .. }), "{error}");
        }
    });
}

/// Over TCP the host knows what arrived; over RDMA the target writes into its memory, and only what decodes can
/// be judged. Either way nothing of another answer is taken for this one's.
#[test]
fn pages_that_are_cut_short_are_no_pages() {
    story(async |target: Target| {
        let whole = crate::target::namespace_page().encode();
        for len in [4, 16, 24, 64] {
            let (controller, _) = target.attached().await;
            // The buffers of the pool hold what came before: a whole page of this namespace.
            target.lies(identify(Cns::Namespace), Lie::Data(whole[..len].to_vec()));
            let error = controller.namespace(1).await.expect_err("cut short");
            let clear = matches!(
                error,
                Error::Protocol { .. } | Error::NoNamespace { .. } | Error::Queue(_)
            );
            assert!(clear, "{len} bytes: {error}");
            target.says_the_truth();
        }
        let (controller, _) = target.attached().await;
        let list = nvme::identify::encode_namespace_list(&[1, 2, 3]);
        target.lies(
            identify(Cns::ActiveNamespaces),
            Lie::Data(list[..8].to_vec()),
        );
        match controller.namespaces().await {
            // What was sent, and nothing behind it.
            Ok(nsids) => assert_eq!(nsids, [1, 2]),
            Err(error) => assert!(matches!(error, Error::Queue(_)), "{error}"),
        }
    });
}
