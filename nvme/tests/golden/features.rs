//! Features and events (Base 2.0 sections 5.2 and 5.27.1), the controller's properties (section 3.1.3), and the
//! data of other commands.

use nvme::fabrics::{CONNECT_DATA_BYTES, ConnectData};
use nvme::features::{
    AsyncEvent, AsyncEventConfig, FeatureId, HOST_BEHAVIOR_BYTES, HostBehavior, NumberOfQueues,
    Select, TIMESTAMP_BYTES, Timestamp,
};
use nvme::io::{COPY_RANGE_BYTES, CopyFormat, CopyRange, DSM_RANGE_BYTES, DsmRange};
use nvme::lba_status::{LbaStatusList, LbaStatusRange};
use nvme::properties::{self, Capabilities, Configuration, ControllerStatus};
use nvme::rdma_cm::{PRIVATE_DATA_BYTES, RdmaCmAccept, RdmaCmReject, RdmaCmRequest};
use nvme::reservation::{KEY_PAIR_BYTES, KeyPair};
use nvme::{Cqe, Nqn, Status};

use crate::Golden;

#[test]
fn every_feature_has_the_number_of_the_specification() {
    // Exhaustive: a new feature does not compile until its number stands here.
    let number = |feature| match feature {
        FeatureId::Arbitration => 0x01,
        FeatureId::PowerManagement => 0x02,
        FeatureId::LbaRangeType => 0x03,
        FeatureId::TemperatureThreshold => 0x04,
        FeatureId::ErrorRecovery => 0x05,
        FeatureId::VolatileWriteCache => 0x06,
        FeatureId::NumberOfQueues => 0x07,
        FeatureId::InterruptCoalescing => 0x08,
        FeatureId::InterruptVector => 0x09,
        FeatureId::WriteAtomicity => 0x0a,
        FeatureId::AsyncEventConfig => 0x0b,
        FeatureId::AutonomousPowerState => 0x0c,
        FeatureId::HostMemoryBuffer => 0x0d,
        FeatureId::Timestamp => 0x0e,
        FeatureId::KeepAliveTimer => 0x0f,
        FeatureId::HostThermalManagement => 0x10,
        FeatureId::NonOperationalPowerState => 0x11,
        FeatureId::ReadRecoveryLevel => 0x12,
        FeatureId::HostBehavior => 0x16,
        FeatureId::SanitizeConfig => 0x17,
        FeatureId::EnduranceGroupEvent => 0x18,
        FeatureId::CommandSetProfile => 0x19,
        FeatureId::SoftwareProgress => 0x80,
        FeatureId::HostIdentifier => 0x81,
        FeatureId::ReservationNotificationMask => 0x82,
        FeatureId::ReservationPersistence => 0x83,
        FeatureId::NamespaceWriteProtection => 0x84,
    };
    for value in 0..=u8::MAX {
        if let Some(feature) = FeatureId::from_u8(value) {
            let numbers = (number(feature), feature.as_u8());
            assert_eq!(numbers, (value, value), "{feature:?}");
        }
    }
    assert_eq!(Select::Current.as_u8(), 0);
    assert_eq!(Select::Default.as_u8(), 1);
    assert_eq!(Select::Saved.as_u8(), 2);
    assert_eq!(Select::Supported.as_u8(), 3);
    assert_eq!(Select::SAVEABLE, 1);
    assert_eq!(Select::NAMESPACE_SPECIFIC, 2);
    assert_eq!(Select::CHANGEABLE, 4);
}

#[test]
fn values_of_features_are_as_the_specification_lays_them_out() {
    // 07h: NSQA in 15:0, NCQA in 31:16, both 0's based.
    let queues = NumberOfQueues {
        submission: 3,
        completion: 9,
    };
    assert_eq!(queues.encode(), 0x0008_0002);
    assert_eq!(NumberOfQueues::decode(0x0008_0002), Some(queues));

    // 0Bh, as OAES: critical warnings by their bits, then notices.
    assert_eq!(AsyncEventConfig::SMART_SPARE.0, 0x1);
    assert_eq!(AsyncEventConfig::SMART_UNRELIABLE.0, 0x4);
    assert_eq!(AsyncEventConfig::SMART_READ_ONLY.0, 0x8);
    assert_eq!(AsyncEventConfig::SMART.0, 0xff);
    assert_eq!(AsyncEventConfig::NAMESPACE_ATTRIBUTE.0, 0x100);
    assert_eq!(AsyncEventConfig::FIRMWARE_ACTIVATION.0, 0x200);
    assert_eq!(AsyncEventConfig::ANA_CHANGE.0, 0x800);
    assert_eq!(AsyncEventConfig::CROSS_CONTROLLER_RESET.0, 0x10_0000);
    assert_eq!(AsyncEventConfig::DISCOVERY_CHANGE.0, 0x8000_0000);

    // 0Eh: milliseconds in 47:0, synch in 48, origin in 51:49.
    let mut page = Golden::new(TIMESTAMP_BYTES);
    let mut milliseconds = [0; 8];
    milliseconds[..6].copy_from_slice(&page.bytes::<6>(5, 0));
    let time = Timestamp {
        milliseconds: u64::from_le_bytes(milliseconds),
        may_have_stopped: true,
        set_by_host: false,
    };
    page.set(6, 0b0001);
    page.is(&time.encode());
    assert_eq!(Timestamp::decode(&page.bytes), Some(time));
    let other = Timestamp {
        milliseconds: 0,
        may_have_stopped: false,
        set_by_host: true,
    };
    assert_eq!(other.encode(), [0, 0, 0, 0, 0, 0, 0b0010, 0]);

    // 16h: ACRE, ETDAS, LBAFEE, then CDFE at 5:4.
    for (byte, behavior) in [
        (
            0,
            HostBehavior {
                retry_delays: true,
                telemetry_area_4: false,
                extended_lba_formats: false,
                copy_formats: 0,
            },
        ),
        (
            1,
            HostBehavior {
                retry_delays: false,
                telemetry_area_4: true,
                extended_lba_formats: false,
                copy_formats: 0,
            },
        ),
        (
            2,
            HostBehavior {
                retry_delays: false,
                telemetry_area_4: false,
                extended_lba_formats: true,
                copy_formats: 0,
            },
        ),
    ] {
        let mut page = Golden::new(HOST_BEHAVIOR_BYTES);
        page.set(byte, 1);
        let behavior = HostBehavior {
            copy_formats: page.u16(5, 4),
            ..behavior
        };
        page.is(&behavior.encode());
        assert_eq!(HostBehavior::decode(&page.bytes), Some(behavior));
    }
}

#[test]
fn events_are_as_the_specification_lays_them_out() {
    // Dword 0 of the completion: log page in 23:16, information in 15:8, type in 2:0.
    for (event, dword) in [
        (AsyncEvent::NAMESPACE_CHANGED, 0x04_00_02),
        (AsyncEvent::FIRMWARE_ACTIVATION, 0x03_01_02),
        (AsyncEvent::ANA_CHANGED, 0x0c_03_02),
        (AsyncEvent::DISCOVERY_CHANGED, 0x70_f0_02),
        (AsyncEvent::RELIABILITY, 0x02_00_01),
        (AsyncEvent::SPARE_BELOW_THRESHOLD, 0x02_02_01),
        (AsyncEvent::RESERVATION, 0x80_00_06),
    ] {
        assert_eq!(event.encode(), dword, "{event:?}");
        assert_eq!(AsyncEvent::decode(dword), Some(event));
    }
}

#[test]
fn properties_are_as_the_specification_lays_them_out() {
    assert_eq!(properties::CAP, 0x00);
    assert_eq!(properties::VS, 0x08);
    assert_eq!(properties::CC, 0x14);
    assert_eq!(properties::CSTS, 0x1c);
    assert_eq!(properties::NSSR, 0x20);
    assert_eq!(properties::CRTO, 0x68);

    let configuration = Configuration {
        enable: true,
        command_set: 6,
        page_size: 9,
        arbitration: 5,
        shutdown: 2,
        sq_entry_log2: 6,
        cq_entry_log2: 4,
    };
    // EN 0, CSS 6:4, MPS 10:7, AMS 13:11, SHN 15:14, IOSQES 19:16, IOCQES 23:20.
    let bits = 1 | 6 << 4 | 9 << 7 | 5 << 11 | 2 << 14 | 6 << 16 | 4 << 20;
    assert_eq!(configuration.encode(), bits);
    assert_eq!(Configuration::decode(bits), configuration);

    // RDY 0, CFS 1, SHST 3:2.
    for (status, bits) in [
        ((true, false, 0), 0b0001),
        ((false, true, 0), 0b0010),
        ((false, false, 1), 0b0100),
        ((false, false, 2), 0b1000),
    ] {
        let (ready, fatal, shutdown) = status;
        let status = ControllerStatus {
            ready,
            fatal,
            shutdown,
        };
        assert_eq!(status.encode(), bits);
        assert_eq!(ControllerStatus::decode(bits), status);
    }
}

#[test]
fn capabilities_are_as_the_specification_lays_them_out() {
    // MQES 15:0, CQR 16, TO 31:24, CSS 44:37 (its bit 0 the NVM command set, bit 6 one or more of them), MPSMIN
    // 51:48, MPSMAX 55:52.
    for (flags, bits) in [
        ((true, false, false), 1 << 16),
        ((false, true, false), 1 << 37),
        ((false, false, true), 1 << 43),
    ] {
        let (contiguous_queues, nvm_command_set, command_sets) = flags;
        let capabilities = Capabilities {
            max_queue_entries: 0x0403,
            contiguous_queues,
            timeout_500ms: 0x1e,
            nvm_command_set,
            command_sets,
            page_size_min: 2,
            page_size_max: 5,
        };
        let bits = 0x0403 | 0x1e << 24 | 2 << 48 | 5 << 52 | bits;
        assert_eq!(capabilities.encode(), bits);
        assert_eq!(Capabilities::decode(bits), capabilities);
    }
}

#[test]
fn a_completion_is_as_the_specification_lays_it_out() {
    // Dwords 0 and 1, SQHD at 9:8, SQID at 11:10, CID at 13:12, phase and status at 15:14.
    let mut page = Golden::new(16);
    let result = page.u64(7, 0);
    let cqe = Cqe {
        result,
        sq_head: page.u16(9, 8),
        sq_id: page.u16(11, 10),
        cid: page.u16(13, 12),
        status: Status::LBA_OUT_OF_RANGE.with_dnr(),
    };
    // SC 8:1, SCT 11:9, CRD 13:12, M 14, DNR 15 of the last half word.
    page.set_all(14, &(0x80_u16 << 1 | 1 << 15).to_le_bytes());
    page.is(&cqe.encode());
    assert_eq!(Cqe::decode(&page.bytes), Some(cqe));
}

#[test]
fn the_data_of_commands_are_as_the_specification_lays_them_out() {
    // Dataset Management: attributes 3:0, length 7:4, first block 15:8.
    let mut page = Golden::new(DSM_RANGE_BYTES);
    let range = DsmRange {
        blocks: page.u32(7, 4),
        slba: page.u64(15, 8),
    };
    page.is(&range.encode());
    assert_eq!(DsmRange::parse_list(&page.bytes, 1), Ok(vec![range]));

    // Copy, format 0: first block 15:8, blocks (0's based) 17:16. Format 2: also the namespace in 3:0 and, in
    // bit 15 of 23:22, fast copies only.
    for format in [CopyFormat::SameNamespace, CopyFormat::AnyNamespace] {
        let names = format == CopyFormat::AnyNamespace;
        let mut page = Golden::new(COPY_RANGE_BYTES);
        let range = CopyRange {
            nsid: if names { page.u32(3, 0) } else { 0 },
            slba: page.u64(15, 8),
            blocks: u32::from(page.u16(17, 16)) + 1,
            fast_only: names,
        };
        if names {
            page.set_all(22, &[0, 0x80]);
        }
        page.is(&range.encode(format));
        let read = CopyRange::parse_list(&page.bytes, 1, format);
        assert_eq!(read, Ok(vec![range]));
    }

    // Reservation Register and Acquire: the current key 7:0, the other one 15:8.
    let mut page = Golden::new(KEY_PAIR_BYTES);
    let keys = KeyPair {
        current: page.u64(7, 0),
        other: page.u64(15, 8),
    };
    page.is(&keys.encode());
    assert_eq!(KeyPair::decode(&page.bytes), Some(keys));

    // Get LBA Status: count 3:0, CMPC 4; of each range the first block 7:0 and the count 11:8 of 16 bytes.
    let mut page = Golden::new(8 + 2 * 16);
    let mut range = |start: usize| LbaStatusRange {
        slba: page.u64(start + 7, start),
        blocks: page.u32(start + 11, start + 8),
    };
    let ranges = vec![range(8), range(24)];
    let list = LbaStatusList {
        ranges,
        has_more: false,
    };
    page.set_all(0, &[2, 0, 0, 0]);
    // CMPC 2h: the action was done for the whole range; 1h: the data are full.
    page.set(4, 2);
    page.is(&list.encode());
    assert_eq!(LbaStatusList::decode(&page.bytes), Some(list));
}

#[test]
fn what_makes_connections_is_as_the_specification_lays_it_out() {
    // Connect's data: HOSTID 15:0, CNTLID 17:16, SUBNQN 511:256, HOSTNQN 767:512.
    let mut page = Golden::new(CONNECT_DATA_BYTES);
    let (subsystem, host) = ("nqn.2026-11.dev.onefold:s", "nqn.2026-11.dev.onefold:h");
    let data = ConnectData {
        host_id: page.bytes(15, 0),
        cntlid: page.u16(17, 16),
        subsystem: Nqn::new(subsystem).expect("a name"),
        host: Nqn::new(host).expect("a name"),
    };
    page.set_all(256, subsystem.as_bytes());
    page.set_all(512, host.as_bytes());
    page.is(&data.encode());
    assert_eq!(ConnectData::parse(&page.bytes), Ok(data));

    // NVMe/RDMA Transport 1.0: RECFMT 1:0, QID 3:2, HRQSIZE 5:4, HSQSIZE 7:6, CNTLID 9:8.
    let request = RdmaCmRequest {
        qid: 0x0102,
        hrqsize: 0x80,
        hsqsize: 0x7f,
        cntlid: 0x0304,
    };
    let mut page = Golden::new(PRIVATE_DATA_BYTES);
    page.set_all(2, &[2, 1, 0x80, 0, 0x7f, 0, 4, 3]);
    page.is(&request.encode());
    // RECFMT 1:0, CRQSIZE 3:2.
    let mut page = Golden::new(PRIVATE_DATA_BYTES);
    page.set_all(2, &[0x34, 0x12]);
    page.is(&RdmaCmAccept { crqsize: 0x1234 }.encode());
    // RECFMT 1:0, STS 3:2.
    assert_eq!(RdmaCmReject { status: 0x0107 }.encode(), [0, 0, 7, 1]);
}
