//! Identify and log pages, as the host side reads them from a target that it need not trust.

use nvme::ana::AnaLog;
use nvme::identify::{
    CommandSetCombinations, IDENTIFY_BYTES, IdentifyController, IdentifyIndependentNamespace,
    IdentifyNamespace, IdentifyNvmController, IdentifyNvmNamespace, LBA_FORMATS_MAX,
    NAMESPACE_LIST_MAX, decode_descriptor_list, decode_namespace_list, encode_descriptor_list,
    encode_namespace_list,
};
use nvme::log::{
    ChangedNamespaces, CommandEffects, ControllerResets, DISCOVERY_BYTES, DiscoveryEntry,
    DiscoveryHeader, ErrorLogEntry, FirmwareSlotLog, SmartLog, slice_page,
};
use nvme::node_table::{DescriptionPiece, NodeEntries};
use nvme::reservation::{ReservationNotification, ReservationReport};

use crate::input::Input;

/// A page of 4096 bytes: the input, filled up with zeros. Shorter ones are refused.
pub(crate) fn identify(bytes: &[u8]) {
    if bytes.len() < IDENTIFY_BYTES {
        assert_eq!(IdentifyController::decode(bytes), None);
        assert_eq!(IdentifyNamespace::decode(bytes), None);
        assert_eq!(decode_namespace_list(bytes), None);
        assert_eq!(decode_descriptor_list(bytes), None);
    }
    let mut page = bytes.to_vec();
    page.resize(bytes.len().max(IDENTIFY_BYTES), 0);
    if let Some(controller) = IdentifyController::decode(&page) {
        let again = IdentifyController::decode(&controller.encode()[..]);
        assert_eq!(again.as_ref(), Some(&controller));
        let _ = controller.controller_type();
    }
    if let Some(controller) = IdentifyNvmController::decode(&page) {
        let again = IdentifyNvmController::decode(&controller.encode()[..]);
        assert_eq!(again, Some(controller));
    }
    if let Some(namespace) = IdentifyNamespace::decode(&page) {
        assert!((1..=LBA_FORMATS_MAX).contains(&namespace.lbaf.len()));
        if let Some(lba_bytes) = namespace.lba_bytes() {
            assert!(lba_bytes >= 512 && lba_bytes.is_power_of_two());
        }
        let again = IdentifyNamespace::decode(&namespace.encode()[..]);
        assert_eq!(again, Some(namespace));
    }
    if let Some(namespace) = IdentifyNvmNamespace::decode(&page) {
        let again = IdentifyNvmNamespace::decode(&namespace.encode()[..]);
        assert_eq!(again, Some(namespace));
    }
    if let Some(namespace) = IdentifyIndependentNamespace::decode(&page) {
        let again = IdentifyIndependentNamespace::decode(&namespace.encode()[..]);
        assert_eq!(again, Some(namespace));
    }
    if let Some(sets) = CommandSetCombinations::decode(&page) {
        assert_eq!(
            CommandSetCombinations::decode(&sets.encode()[..]),
            Some(sets)
        );
    }
    if let Some(list) = decode_namespace_list(&page) {
        assert!(list.len() <= NAMESPACE_LIST_MAX);
        assert_eq!(
            decode_namespace_list(&encode_namespace_list(&list)),
            Some(list)
        );
    }
    if let Some(list) = decode_descriptor_list(&page) {
        let again = decode_descriptor_list(&encode_descriptor_list(&list)[..]);
        assert_eq!(again, Some(list));
    }
}

/// A log page; its first 8 bytes also say which piece of the page somebody wants.
pub(crate) fn log(bytes: &[u8]) {
    if let Some(header) = DiscoveryHeader::decode(bytes) {
        assert_eq!(DiscoveryHeader::decode(&header.encode()), Some(header));
    }
    for entry in bytes.chunks(DISCOVERY_BYTES) {
        let Some(entry) = DiscoveryEntry::decode(entry) else {
            continue;
        };
        let again = entry.encode().expect("what was read can be written");
        assert_eq!(DiscoveryEntry::decode(&again[..]), Some(entry));
    }
    if let Some(entry) = ErrorLogEntry::decode(bytes) {
        assert_eq!(ErrorLogEntry::decode(&entry.encode()), Some(entry));
    }
    if let Some(page) = SmartLog::decode(bytes) {
        assert_eq!(SmartLog::decode(&page.encode()), Some(page));
    }
    if let Some(page) = FirmwareSlotLog::decode(bytes) {
        assert_eq!(FirmwareSlotLog::decode(&page.encode()), Some(page));
    }
    if let Some(page) = ChangedNamespaces::decode(bytes) {
        assert_eq!(ChangedNamespaces::decode(&page.encode()), Some(page));
    }
    if let Some(page) = CommandEffects::decode(bytes) {
        assert_eq!(CommandEffects::decode(&page.encode()[..]), Some(page));
    }
    if let Some(page) = ControllerResets::decode(bytes) {
        assert_eq!(ControllerResets::decode(&page.encode()[..]), Some(page));
    }
    if let Some(log) = AnaLog::decode(bytes) {
        assert_eq!(AnaLog::decode(&log.encode(false)).as_ref(), Some(&log));
        let groups = AnaLog::decode(&log.encode(true)).map(|log| log.groups.len());
        assert_eq!(groups, Some(log.groups.len()));
    }
    if let Some(page) = ReservationNotification::decode(bytes) {
        assert_eq!(ReservationNotification::decode(&page.encode()), Some(page));
    }
    for extended in [false, true] {
        if let Some(report) = ReservationReport::decode(bytes, extended) {
            let again = report.encode(extended);
            assert_eq!(
                ReservationReport::total_bytes(&again, extended),
                Some(again.len())
            );
            assert_eq!(ReservationReport::decode(&again, extended), Some(report));
        }
    }
    if let Some(entries) = NodeEntries::decode(bytes) {
        assert_eq!(NodeEntries::decode(&entries.encode()), Some(entries));
    }
    for offset in [0, 100] {
        if let Some(Some(piece)) = DescriptionPiece::decode(bytes, offset) {
            let again = piece.encode();
            assert_eq!(DescriptionPiece::decode(&again, offset), Some(Some(piece)));
        }
    }
    let mut input = Input::new(bytes);
    let (offset, length) = (input.u64(), usize::from(input.u16()));
    let page = input.rest();
    match slice_page(page, offset, length) {
        Ok(piece) => assert_eq!(piece.len(), length),
        Err(_) => assert!(!offset.is_multiple_of(4) || offset > page.len() as u64),
    }
}
