//! Log pages that tell a pool's life, and the events that point to them.

use nvme::admin::GetLogPage;
use nvme::log::{
    PersistentEvent, PersistentEventHeader, PersistentEventType, SmartLog, TelemetryHeader,
};
use nvme::{Sqe, Status, admin, properties};
use subsystem::limits::Limits;

use crate::admin::set_feature;
use crate::harness::{Attached, CC_ENABLE, Reply, open_target, read, story, write};

const TELEMETRY: u8 = 0x07;
const PERSISTENT: u8 = 0x0d;

async fn piece(attached: &Attached, lid: u8, lsp: u8, offset: u64, length: usize) -> Reply {
    let command = GetLogPage {
        lid,
        lsp,
        retain_event: false,
        length: length as u64,
        offset,
        offset_is_index: false,
        nsid: 0xffff_ffff,
        csi: 0,
    };
    attached.admin.call_in(command.to_sqe(), length).await
}

async fn smart(attached: &Attached) -> SmartLog {
    let page = piece(attached, 0x02, 0, 0, 512).await.ok().data;
    SmartLog::decode(&page).expect("a page")
}

async fn next_event(attached: &Attached) -> u64 {
    let (_, event) = attached
        .admin
        .begin(Sqe::new(admin::OPCODE_ASYNC_EVENT_REQUEST));
    event.await.expect("an answer").ok().result
}

#[test]
fn telemetry_is_made_when_it_is_asked_for_and_read_in_pieces() {
    story(async |lab| {
        let (attached, other) = (lab.attach(1).await, lab.attach(2).await);
        let header = async |attached: &Attached, lsp| {
            let page = piece(attached, TELEMETRY, lsp, 0, 512).await.ok().data;
            TelemetryHeader::decode(&page).expect("a header")
        };
        assert_eq!(header(&attached, 0).await, TelemetryHeader::default());
        let made = header(&attached, 1).await;
        assert!(made.area_1_last > 0 && made.area_1_last < made.area_2_last);
        assert_eq!((made.area_3_last, made.generation), (made.area_2_last, 1));
        let blocks = usize::from(made.area_3_last) + 1;
        let mut all = Vec::new();
        for block in 0..blocks {
            let reply = piece(&attached, TELEMETRY, 0, block as u64 * 512, 512).await;
            all.extend(reply.ok().data);
        }
        let whole = piece(&attached, TELEMETRY, 0, 0, blocks * 512).await.ok();
        assert_eq!(whole.data, all, "the pieces are of one moment");
        let area_1 = &all[512..(usize::from(made.area_1_last) + 1) * 512];
        let status: serde_json::Value = serde_json::from_slice(area_1).expect("JSON");
        assert_eq!(status["onefold"], subsystem::VERSION);
        assert!(status["pool"]["capacity_bytes"].as_u64() > Some(0));
        let text = String::from_utf8(all).expect("a text");
        let hosts = [&attached.host, &other.host].map(|host| text.contains(host.nqn.as_str()));
        assert_eq!(hosts, [true, false], "it says nothing about other hosts");

        piece(&attached, TELEMETRY, 0, 256, 512)
            .await
            .refused(Status::INVALID_FIELD);
        piece(&attached, TELEMETRY, 0, (blocks as u64 + 1) * 512, 512)
            .await
            .refused(Status::INVALID_FIELD);
        assert_eq!(header(&attached, 1).await.generation, 2);
        assert_eq!(header(&other, 0).await, TelemetryHeader::default());
        attached.set_property(properties::CC, 0).await.ok();
        attached.set_property(properties::CC, CC_ENABLE).await.ok();
        assert_eq!(
            header(&attached, 0).await.area_3_last,
            0,
            "gone with the reset"
        );
    });
}

#[test]
fn the_controller_makes_no_telemetry_by_itself_and_says_so() {
    const BY_CONTROLLER: u8 = 0x08;
    story(async |lab| {
        let attached = lab.attach(1).await;
        // Data of the other page are none of this one.
        piece(&attached, TELEMETRY, 1, 0, 512).await.ok();
        let page = piece(&attached, BY_CONTROLLER, 0, 0, 4096).await.ok().data;
        let header = TelemetryHeader::decode(&page).expect("a header");
        let expected = TelemetryHeader {
            lid: BY_CONTROLLER,
            ..Default::default()
        };
        assert_eq!(header, expected);
        assert_eq!(page[512..], [0; 3584]);
        for offset in [4, 516, 1024] {
            let reply = piece(&attached, BY_CONTROLLER, 0, offset, 512).await;
            reply.refused(Status::INVALID_FIELD);
        }
    });
}

#[test]
fn persistent_events_are_read_in_a_context_and_survive_a_restart() {
    story(async |lab| {
        lab.target.begin_record().await.expect("a record");
        let attached = lab.attach(1).await;
        let read = async |lsp, length| piece(&attached, PERSISTENT, lsp, 0, length).await;
        read(0, 512).await.refused(Status::COMMAND_SEQUENCE);
        read(2, 512).await.ok();
        let page = read(1, 4096).await.ok().data;
        read(1, 4096).await.refused(Status::COMMAND_SEQUENCE);
        read(3, 512).await.refused(Status::COMMAND_SEQUENCE);
        assert_eq!(read(0, 4096).await.ok().data, page);
        read(2, 512).await.ok();
        read(0, 512).await.refused(Status::COMMAND_SEQUENCE);

        let header = PersistentEventHeader::decode(&read(3, 512).await.ok().data).expect("one");
        assert_eq!((header.events, header.power_cycles), (2, 1));
        assert_eq!(header.subnqn, subsystem::DEFAULT_SUBSYSTEM_NQN);
        let kinds = |page: &[u8], count: u32| {
            let mut at = 512;
            let mut kinds = Vec::new();
            for _ in 0..count {
                let event = PersistentEvent::decode(&page[at..]).expect("an event");
                kinds.push(event.kind);
                at += 24 + usize::from(event.length);
            }
            (kinds, at as u64)
        };
        let (found, length) = kinds(&page, header.events);
        let [smart, power_on] = [
            PersistentEventType::SmartSnapshot,
            PersistentEventType::PowerOn,
        ]
        .map(PersistentEventType::as_u8);
        assert_eq!((found, length), (vec![smart, power_on], header.log_bytes));

        // nvme-cli reads as much as it is told to in pieces, each with the action of the first one.
        read(2, 512).await.ok();
        let at = async |lsp, offset| piece(&attached, PERSISTENT, lsp, offset, 4096).await;
        let whole = at(1, 0).await.ok().data;
        assert_eq!(at(0, 0).await.ok().data, whole);
        for lsp in [0, 1] {
            assert_eq!(
                at(lsp, 4096).await.ok().data,
                vec![0; 4096],
                "behind the end"
            );
            at(lsp, 61_440).await.ok();
            at(lsp, 65_540).await.refused(Status::INVALID_FIELD);
        }
        at(1, 0).await.refused(Status::COMMAND_SEQUENCE);

        // The next daemon goes on where this one ended.
        lab.target.end_record().await.expect("a record");
        open_target(&lab.engine, Limits::default())
            .begin_record()
            .await
            .expect("a record");
        let third = open_target(&lab.engine, Limits::default());
        third.begin_record().await.expect("a record");
        third.end_record().await.expect("a record");
        let again = open_target(&lab.engine, Limits::default());
        let lab = lab.with_target(again);
        let attached = lab.attach(1).await;
        let page = piece(&attached, PERSISTENT, 1, 0, 8192).await.ok().data;
        let header = PersistentEventHeader::decode(&page).expect("a header");
        assert_eq!((header.events, header.power_cycles), (6, 3));
        assert_eq!(
            kinds(&page, 6).0,
            [smart, power_on, smart, power_on, smart, power_on]
        );
        let log = crate::logs::smart(&attached).await;
        assert_eq!(
            (log.power_cycles, log.unsafe_shutdowns),
            (3, 1),
            "the second one did not end cleanly"
        );
    });
}

#[test]
fn what_hosts_did_is_counted_over_restarts() {
    story(async |lab| {
        lab.target.begin_record().await.expect("a record");
        let attached = lab.attach(1).await;
        let queue = lab.io_queue(&attached, 1).await;
        let write_1m = || queue.call_out(write(1, 0, 256), vec![1; 1 << 20]);
        write_1m().await.ok();
        queue.call_in(read(1, 0, 1), 4096).await.ok();
        lab.target.end_record().await.expect("a record");
        let next = open_target(&lab.engine, Limits::default());
        let lab = lab.with_target(next);
        let attached = lab.attach(1).await;
        let queue = lab.io_queue(&attached, 1).await;
        queue
            .call_out(write(1, 0, 256), vec![2; 1 << 20])
            .await
            .ok();
        let page = smart(&attached).await;
        assert_eq!((page.host_write_commands, page.host_read_commands), (2, 1));
        assert_eq!(page.data_units_written, (2u128 << 20).div_ceil(512_000));
    });
}

#[test]
fn hosts_hear_that_the_pool_fills_up_at_every_level_once() {
    story(async |lab| {
        const SPARE: u64 = 0x0002_0201;
        lab.create_volume("big", 1 << 30, 4096).await;
        let (attached, other) = (lab.attach(1).await, lab.attach(2).await);
        set_feature(&attached, 0x0b, 1).await.ok();
        let queue = lab.io_queue(&attached, 1).await;
        let mut number = 0u64;
        let mut slba = 0;
        let mut fill_below = async |spare: u8| {
            while smart(&other).await.available_spare >= spare {
                let mut data = vec![0; 1 << 20];
                for block in data.chunks_mut(4096) {
                    number += 1;
                    block[..8].copy_from_slice(&number.to_le_bytes());
                }
                queue.call_out(write(2, slba, 256), data).await.ok();
                slba += 256;
            }
            lab.target.look_at_pool();
        };
        let page = smart(&attached).await;
        assert_eq!(
            page.available_spare_threshold, 20,
            "100 less the first level"
        );
        assert_eq!(page.critical_warning, 0);
        fill_below(20).await;
        assert_eq!(next_event(&attached).await, SPARE);
        // Further down: nothing new before the page is read, then the next level.
        fill_below(18).await;
        assert_eq!(smart(&attached).await.critical_warning, 1);
        fill_below(10).await;
        assert_eq!(next_event(&attached).await, SPARE);
        smart(&attached).await;

        // Who begins to listen hears what is so; who never did hears nothing.
        let late = lab.attach(3).await;
        set_feature(&late, 0x0b, 1).await.ok();
        assert_eq!(next_event(&late).await, SPARE);
        let (_, mut silent) = other
            .admin
            .begin(Sqe::new(admin::OPCODE_ASYNC_EVENT_REQUEST));
        assert!(silent.try_recv().is_err(), "it did not ask for that");

        // It is remembered.
        let page = piece(&attached, PERSISTENT, 1, 0, 8192).await.ok().data;
        let text = String::from_utf8_lossy(&page);
        assert!(text.contains("are free, less than 20 %"), "{text}");
        assert!(text.contains("are free, less than 10 %"), "{text}");
    });
}
