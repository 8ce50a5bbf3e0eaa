//! Log pages: Base 2.0 section 5.16.1, NVMe-oF 1.1 section 5.3.

use nvme::Nqn;
use nvme::ana::{AnaGroup, AnaLog, AnaState};
use nvme::log::{
    AddressFamily, COMMAND_EFFECTS_BYTES, CONTROLLER_RESETS_BYTES, ChangedNamespaces,
    CommandEffects, ControllerReset, ControllerResetState, ControllerResets, DISCOVERY_BYTES,
    DiscoveryEntry, DiscoveryHeader, DiscoverySubtype, ERROR_LOG_ENTRY_BYTES, ErrorLogEntry,
    FIRMWARE_SLOT_LOG_BYTES, FeatureEffects, FirmwareSlotLog, LogPage, PERSISTENT_EVENT_BYTES,
    PERSISTENT_HEADER_BYTES, PersistentEvent, PersistentEventHeader, PersistentEventType,
    RdmaConnection, RdmaProvider, RdmaQueuePair, SMART_LOG_BYTES, SUPPORTED_BYTES, SmartLog,
    SupportedLogPages, TELEMETRY_BLOCK_BYTES, TcpSecurity, TelemetryHeader, Transport,
};
use nvme::reservation::{
    RESERVATION_LOG_BYTES, ReportedRegistrant, ReservationEvent, ReservationNotification,
    ReservationReport, ReservationType,
};

use crate::Golden;

#[test]
fn every_log_page_has_the_number_of_the_specification() {
    // Exhaustive: a new page does not compile until its number stands here.
    let number = |page| match page {
        LogPage::Supported => 0x00,
        LogPage::Error => 0x01,
        LogPage::Smart => 0x02,
        LogPage::FirmwareSlot => 0x03,
        LogPage::ChangedNamespaces => 0x04,
        LogPage::CommandEffects => 0x05,
        LogPage::TelemetryHost => 0x07,
        LogPage::TelemetryController => 0x08,
        LogPage::Ana => 0x0c,
        LogPage::PersistentEvent => 0x0d,
        LogPage::FeatureEffects => 0x12,
        LogPage::ManagementEffects => 0x13,
        LogPage::ControllerResets => 0x1e,
        LogPage::Discovery => 0x70,
        LogPage::ReservationNotification => 0x80,
    };
    for value in 0..=u8::MAX {
        if let Some(page) = LogPage::from_u8(value) {
            assert_eq!((number(page), page.as_u8()), (value, value), "{page:?}");
        }
    }
}

#[test]
fn the_error_log_is_as_the_specification_lays_it_out() {
    let mut page = Golden::new(ERROR_LOG_ENTRY_BYTES);
    let entry = ErrorLogEntry {
        error_count: page.u64(7, 0),
        sqid: page.u16(9, 8),
        cid: page.u16(11, 10),
        status_field: page.u16(13, 12),
        parameter_location: page.u16(15, 14),
        lba: page.u64(23, 16),
        nsid: page.u32(27, 24),
        vendor_log: page.u8(28),
        trtype: page.u8(29),
        command_specific: page.u64(39, 32),
        transport_specific: page.u16(41, 40),
    };
    page.is(&entry.encode());
    assert_eq!(ErrorLogEntry::decode(&page.bytes), Some(entry));
}

#[test]
fn the_health_log_is_as_the_specification_lays_it_out() {
    let mut page = Golden::new(SMART_LOG_BYTES);
    let log = SmartLog {
        critical_warning: page.u8(0),
        temperature: page.u16(2, 1),
        available_spare: page.u8(3),
        available_spare_threshold: page.u8(4),
        percentage_used: page.u8(5),
        endurance_group_warning: page.u8(6),
        data_units_read: page.u128(47, 32),
        data_units_written: page.u128(63, 48),
        host_read_commands: page.u128(79, 64),
        host_write_commands: page.u128(95, 80),
        controller_busy_minutes: page.u128(111, 96),
        power_cycles: page.u128(127, 112),
        power_on_hours: page.u128(143, 128),
        unsafe_shutdowns: page.u128(159, 144),
        media_errors: page.u128(175, 160),
        error_log_entries: page.u128(191, 176),
        warning_temperature_minutes: page.u32(195, 192),
        critical_temperature_minutes: page.u32(199, 196),
        temperature_sensors: std::array::from_fn(|n| page.u16(201 + 2 * n, 200 + 2 * n)),
        thermal_transitions: [page.u32(219, 216), page.u32(223, 220)],
        thermal_seconds: [page.u32(227, 224), page.u32(231, 228)],
    };
    page.is(&log.encode());
    assert_eq!(SmartLog::decode(&page.bytes), Some(log));
}

#[test]
fn firmware_slots_and_effects_are_as_the_specification_lays_them_out() {
    let mut page = Golden::new(FIRMWARE_SLOT_LOG_BYTES);
    let log = FirmwareSlotLog {
        active: page.u8(0),
        revisions: std::array::from_fn(|slot| page.bytes(15 + 8 * slot, 8 + 8 * slot)),
    };
    page.is(&log.encode());
    assert_eq!(FirmwareSlotLog::decode(&page.bytes), Some(log));

    let mut page = Golden::new(COMMAND_EFFECTS_BYTES);
    let effects = CommandEffects {
        acs: std::array::from_fn(|opcode| page.u32(3 + 4 * opcode, 4 * opcode)),
        iocs: std::array::from_fn(|opcode| page.u32(1027 + 4 * opcode, 1024 + 4 * opcode)),
    };
    page.is(&effects.encode()[..]);
    assert_eq!(CommandEffects::decode(&page.bytes), Some(effects));

    let mut page = Golden::new(SUPPORTED_BYTES);
    let dwords: [u32; 256] = std::array::from_fn(|id| page.u32(3 + 4 * id, 4 * id));
    page.is(&SupportedLogPages(dwords).encode());
    page.is(&FeatureEffects(dwords).encode());

    // Figures 210 and 'FID Supported and Effects': the bits of a dword.
    assert_eq!(CommandEffects::SUPPORTED, 0x1);
    assert_eq!(CommandEffects::CONTENT_CHANGE, 0x2);
    assert_eq!(CommandEffects::NAMESPACE_CAPABILITY_CHANGE, 0x4);
    assert_eq!(CommandEffects::NAMESPACE_INVENTORY_CHANGE, 0x8);
    assert_eq!(CommandEffects::CONTROLLER_CAPABILITY_CHANGE, 0x10);
    assert_eq!(CommandEffects::EXECUTION_MASK, 0x7_0000);
    assert_eq!(CommandEffects::NAMESPACE_SCOPE, 0x10_0000);
    assert_eq!(CommandEffects::CONTROLLER_SCOPE, 0x20_0000);
    assert_eq!(FeatureEffects::SUPPORTED, 0x1);
    assert_eq!(FeatureEffects::CONTENT_CHANGE, 0x2);
    assert_eq!(FeatureEffects::NAMESPACE_CAPABILITY_CHANGE, 0x4);
    assert_eq!(FeatureEffects::NAMESPACE_SCOPE, 0x10_0000);
    assert_eq!(FeatureEffects::CONTROLLER_SCOPE, 0x20_0000);
    assert_eq!(SupportedLogPages::SUPPORTED, 0x1);
    assert_eq!(SupportedLogPages::INDEX_OFFSET, 0x2);
    assert_eq!(SupportedLogPages::ESTABLISH_AND_READ_HEADER, 0x1_0000);
}

#[test]
fn resets_of_controllers_are_as_the_specification_lays_them_out() {
    let mut page = Golden::new(CONTROLLER_RESETS_BYTES);
    // NE 1:0; then entries of ICID 1:0, CIU 2, ACID 5:4, CCRS 6, CCRF 7.
    page.set(0, 3);
    let states = [
        ControllerResetState::InProgress,
        ControllerResetState::Successful,
        ControllerResetState::Failed,
    ];
    let mut resets = Vec::new();
    for (number, state) in states.into_iter().enumerate() {
        let at = 8 + 8 * number;
        resets.push(ControllerReset {
            cntlid: page.u16(at + 1, at),
            uniquifier: page.u8(at + 2),
            alternate: page.u16(at + 5, at + 4),
            state: number as u8,
            flags: page.u8(at + 7),
        });
        page.set(at + 6, number as u8);
        assert_eq!(resets[number].state(), Some(state));
    }
    let log = ControllerResets(resets);
    page.is(&log.encode()[..]);
    assert_eq!(ControllerResets::decode(&page.bytes), Some(log));
    assert_eq!(ControllerReset::VALIDATED, 1);
    assert_eq!(ControllerReset::INITIATED, 2);
}

#[test]
fn changed_namespaces_are_a_list_or_all_of_them() {
    let mut page = Golden::new(4096);
    let list = ChangedNamespaces::List(vec![page.u32(3, 0), page.u32(7, 4)]);
    page.is(&list.encode());
    assert_eq!(ChangedNamespaces::decode(&page.bytes), Some(list));

    let mut page = Golden::new(4096);
    page.set_all(0, &[0xff; 4]);
    page.is(&ChangedNamespaces::TooMany.encode());
}

#[test]
fn telemetry_is_as_the_specification_lays_it_out() {
    let mut page = Golden::new(TELEMETRY_BLOCK_BYTES);
    let header = TelemetryHeader {
        lid: page.u8(0),
        ieee: page.bytes(7, 5),
        area_1_last: page.u16(9, 8),
        area_2_last: page.u16(11, 10),
        area_3_last: page.u16(13, 12),
        generation: page.u8(381),
        controller_data: page.u8(382),
        controller_generation: page.u8(383),
        reason: page.bytes(511, 384),
    };
    page.is(&header.encode());
    assert_eq!(TelemetryHeader::decode(&page.bytes), Some(header));
}

#[test]
fn persistent_events_are_as_the_specification_lays_them_out() {
    let mut page = Golden::new(PERSISTENT_HEADER_BYTES);
    let header = PersistentEventHeader {
        lid: page.u8(0),
        events: page.u32(7, 4),
        log_bytes: page.u64(15, 8),
        revision: page.u8(16),
        header_length: page.u16(19, 18),
        timestamp: page.u64(27, 20),
        power_on_hours: page.u128(43, 28),
        power_cycles: page.u64(51, 44),
        vid: page.u16(53, 52),
        ssvid: page.u16(55, 54),
        sn: page.text(75, 56, b' '),
        mn: page.text(115, 76, b' '),
        subnqn: page.text(371, 116, 0),
        generation: page.u16(373, 372),
        reporting_context: page.u32(377, 374),
        supported: page.bytes(511, 480),
    };
    page.is(&header.encode());
    assert_eq!(PersistentEventHeader::decode(&page.bytes), Some(header));

    let mut page = Golden::new(PERSISTENT_EVENT_BYTES);
    let event = PersistentEvent {
        kind: page.u8(0),
        revision: page.u8(1),
        header_length: page.u8(2),
        cntlid: page.u16(5, 4),
        timestamp: page.u64(13, 6),
        vendor_length: page.u16(21, 20),
        length: page.u16(23, 22),
    };
    page.is(&event.encode());
    assert_eq!(PersistentEvent::decode(&page.bytes), Some(event));

    let number = |kind| match kind {
        PersistentEventType::SmartSnapshot => 0x01,
        PersistentEventType::PowerOn => 0x04,
        PersistentEventType::VendorSpecific => 0xde,
    };
    for kind in PersistentEventType::ALL {
        assert_eq!(kind.as_u8(), number(kind), "{kind:?}");
    }
    // LHL and EHL count what stands behind them: 512 - 20 and 24 - 3 bytes.
    assert_eq!(PersistentEventHeader::default().header_length, 492);
    assert_eq!(PersistentEvent::new(1, 2, 3).header_length, 21);
}

#[test]
fn paths_are_as_the_specification_lays_them_out() {
    let mut page = Golden::new(16 + 2 * 32 + 3 * 4);
    let log = AnaLog {
        change_count: page.u64(7, 0),
        groups: vec![
            AnaGroup {
                id: page.u32(19, 16),
                change_count: page.u64(31, 24),
                state: AnaState::NonOptimized,
                nsids: vec![page.u32(51, 48), page.u32(55, 52)],
            },
            AnaGroup {
                id: page.u32(59, 56),
                change_count: page.u64(71, 64),
                state: AnaState::Change,
                nsids: vec![page.u32(91, 88)],
            },
        ],
    };
    page.set_all(8, &[2, 0]);
    page.set_all(20, &[2, 0, 0, 0]);
    page.set(32, 0x02);
    page.set_all(60, &[1, 0, 0, 0]);
    page.set(72, 0x0f);
    page.is(&log.encode(false));
    assert_eq!(AnaLog::decode(&page.bytes), Some(log));
    let number = |state| match state {
        AnaState::Optimized => 0x1,
        AnaState::NonOptimized => 0x2,
        AnaState::Inaccessible => 0x3,
        AnaState::PersistentLoss => 0x4,
        AnaState::Change => 0xf,
    };
    for state in AnaState::ALL {
        assert_eq!(state as u8, number(state), "{state:?}");
    }
}

#[test]
fn the_discovery_log_is_as_the_specification_lays_it_out() {
    let mut page = Golden::new(DISCOVERY_BYTES);
    let header = DiscoveryHeader {
        generation: page.u64(7, 0),
        records: page.u64(15, 8),
        // The only form is 0, at 17:16.
        record_format: 0,
    };
    page.is(&header.encode());
    assert_eq!(DiscoveryHeader::decode(&page.bytes), Some(header));
    page.set(16, 1);
    assert_eq!(DiscoveryHeader::decode(&page.bytes), None);

    let rdma = |page: &mut Golden| {
        page.set_all(768, &[2, 5, 1]);
        Transport::Rdma {
            qptype: RdmaQueuePair::ReliableDatagram,
            prtype: RdmaProvider::Iwarp,
            cms: RdmaConnection::RdmaCm,
            pkey: page.u16(777, 776),
        }
    };
    let tcp = |page: &mut Golden| {
        page.set(768, 2);
        Transport::Tcp {
            sectype: TcpSecurity::Tls13,
        }
    };
    for trtype in [Transport::TRTYPE_RDMA, Transport::TRTYPE_TCP] {
        let mut page = Golden::new(DISCOVERY_BYTES);
        page.set_all(0, &[trtype, 2, 3]);
        let name = b"nqn.2026-11.dev.onefold:at256";
        page.set_all(256, name);
        let entry = DiscoveryEntry {
            transport: match trtype {
                1 => rdma(&mut page),
                _ => tcp(&mut page),
            },
            adrfam: AddressFamily::Ipv6,
            subtype: DiscoverySubtype::CurrentDiscovery,
            treq: page.u8(3),
            portid: page.u16(5, 4),
            cntlid: page.u16(7, 6),
            asqsz: page.u16(9, 8),
            eflags: page.u16(11, 10),
            trsvcid: page.text(63, 32, b' '),
            subnqn: Nqn::new(std::str::from_utf8(name).expect("ASCII")).expect("a name"),
            traddr: page.text(767, 512, b' '),
        };
        page.is(&entry.encode().expect("a sendable entry")[..]);
        assert_eq!(DiscoveryEntry::decode(&page.bytes), Some(entry));
    }
}

#[test]
fn reservations_are_as_the_specification_lays_them_out() {
    let mut page = Golden::new(RESERVATION_LOG_BYTES);
    let notification = ReservationNotification {
        count: page.u64(7, 0),
        event: Some((ReservationEvent::ReservationReleased, page.u32(15, 12))),
        more: page.u8(9),
    };
    page.set(8, 2);
    page.is(&notification.encode());
    let decoded = ReservationNotification::decode(&page.bytes);
    assert_eq!(decoded, Some(notification));

    // Figure 'Reservation Status data structure': registrants from byte 24 on, 24 bytes each.
    let mut page = Golden::new(24 + 2 * 24);
    page.set_all(4, &[5, 2, 0]);
    page.set(9, 1);
    let mut registrant = |start: usize, is_holder| {
        let mut host = [0; 16];
        host[..8].copy_from_slice(&page.bytes::<8>(start + 15, start + 8));
        page.set(start + 2, u8::from(is_holder));
        ReportedRegistrant {
            cntlid: page.u16(start + 1, start),
            is_holder,
            host,
            key: page.u64(start + 23, start + 16),
        }
    };
    let registrants = vec![registrant(24, false), registrant(48, true)];
    let report = ReservationReport {
        generation: page.u32(3, 0),
        kind: Some(ReservationType::WriteExclusiveAllRegistrants),
        persist: true,
        registrants,
    };
    page.is(&report.encode(false));
    assert_eq!(ReservationReport::decode(&page.bytes, false), Some(report));

    // The extended one: from byte 64 on, 64 bytes each, the key before the host.
    let mut page = Golden::new(64 + 64);
    page.set_all(4, &[6, 1, 0]);
    page.set(64 + 2, 1);
    let report = ReservationReport {
        generation: page.u32(3, 0),
        kind: Some(ReservationType::ExclusiveAccessAllRegistrants),
        persist: false,
        registrants: vec![ReportedRegistrant {
            cntlid: page.u16(65, 64),
            is_holder: true,
            key: page.u64(79, 72),
            host: page.bytes(95, 80),
        }],
    };
    page.is(&report.encode(true));
    assert_eq!(ReservationReport::decode(&page.bytes, true), Some(report));
}
