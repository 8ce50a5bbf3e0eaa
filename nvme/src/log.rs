//! Log pages (Base 2.0, section 5.16.1): which there are, their bytes in both directions, and the
//! piece of one that a Get Log Page command asks for.
//!
//! Encoders write zeros wherever a field is not named here; decoders ignore those places, take any
//! bytes without panicking, and give `None` for a page that is too short or contradicts itself.

mod controller_resets;
mod discovery;
mod errors;
mod persistent;
mod supported;
mod telemetry;

pub use controller_resets::{
    CONTROLLER_RESETS_BYTES, CONTROLLER_RESETS_MAX, ControllerReset, ControllerResetState,
    ControllerResets, NO_CONTROLLER,
};
pub use discovery::{
    AddressFamily, DISCOVERY_BYTES, DiscoveryEntry, DiscoveryEntryError, DiscoveryHeader,
    DiscoverySubtype, RdmaConnection, RdmaProvider, RdmaQueuePair, TRADDR_BYTES, TRSVCID_BYTES,
    TcpSecurity, Transport,
};

pub use errors::{ERROR_LOG_ENTRIES, ErrorEntry, ErrorLog, NO_LOCATION};
pub use persistent::{
    PERSISTENT_EVENT_BYTES, PERSISTENT_HEADER_BYTES, PersistentEvent, PersistentEventHeader,
    PersistentEventType, vendor_text,
};
pub use supported::{FeatureEffects, SUPPORTED_BYTES, SupportedLogPages};
pub use telemetry::{TELEMETRY_BLOCK_BYTES, TelemetryHeader};

use crate::Status;
use crate::byte_enum::byte_enum;
use crate::identify::NAMESPACE_LIST_MAX;
use crate::identify::layout::{Wire, layout};

byte_enum! {
    /// Which log page: LID, CDW10 bits 7:0 of Get Log Page.
    pub enum LogPage {
        /// 00h: [`SupportedLogPages`].
        Supported = 0x00,
        /// 01h: [`ErrorLogEntry`], the latest first.
        Error = 0x01,
        /// 02h: [`SmartLog`].
        Smart = 0x02,
        /// 03h: [`FirmwareSlotLog`].
        FirmwareSlot = 0x03,
        /// 04h: [`ChangedNamespaces`].
        ChangedNamespaces = 0x04,
        /// 05h: [`CommandEffects`].
        CommandEffects = 0x05,
        /// 07h: [`TelemetryHeader`], then blocks of data.
        TelemetryHost = 0x07,
        /// 08h: [`TelemetryHeader`], then blocks of data.
        TelemetryController = 0x08,
        /// 0Ch: [`AnaLog`](crate::ana::AnaLog).
        Ana = 0x0c,
        /// 0Dh: [`PersistentEventHeader`], then each [`PersistentEvent`] with its data.
        PersistentEvent = 0x0d,
        /// 12h: [`FeatureEffects`].
        FeatureEffects = 0x12,
        /// 13h: commands of the management interface, as [`CommandEffects`] without I/O commands.
        ManagementEffects = 0x13,
        /// 1Eh: [`ControllerResets`].
        ControllerResets = 0x1e,
        /// 70h: [`DiscoveryHeader`], then each [`DiscoveryEntry`].
        Discovery = 0x70,
        /// 80h: [`ReservationNotification`](crate::reservation::ReservationNotification).
        ReservationNotification = 0x80,
    }
}

/// Why an offset into a log page cannot be served; both mean [`Status::INVALID_FIELD`] to the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LogOffsetError {
    /// The offset is in bytes, but must be a multiple of four.
    #[error("log page offset {0} is not a multiple of 4")]
    Unaligned(u64),
    /// The offset is behind the last byte of the page.
    #[error("log page offset {offset} is past the end of a page of {page_bytes} bytes")]
    PastEnd {
        /// What was asked for, in bytes.
        offset: u64,
        /// The length of the page.
        page_bytes: usize,
    },
}

impl From<LogOffsetError> for Status {
    fn from(_: LogOffsetError) -> Self {
        Self::INVALID_FIELD
    }
}

/// The `length` bytes of a log page from `offset` on, with zeros behind the end of the page.
///
/// An offset at the very end is served, with zeros alone (Base 2.0 forbids only greater ones). The
/// result has `length` bytes whatever the page has: the caller bounds it, by the length of the
/// command's data buffer and the largest transfer, before asking.
///
/// # Errors
/// See [`LogOffsetError`].
pub fn slice_page(page: &[u8], offset: u64, length: usize) -> Result<Vec<u8>, LogOffsetError> {
    if !offset.is_multiple_of(4) {
        return Err(LogOffsetError::Unaligned(offset));
    }
    let rest = usize::try_from(offset)
        .ok()
        .and_then(|start| page.get(start..))
        .ok_or(LogOffsetError::PastEnd {
            offset,
            page_bytes: page.len(),
        })?;
    let mut slice = rest[..rest.len().min(length)].to_vec();
    slice.resize(length, 0);
    Ok(slice)
}

/// Bytes of an entry of the error log.
pub const ERROR_LOG_ENTRY_BYTES: usize = 64;

layout! {
    /// An entry of the Error Information log (Base 2.0, section 5.16.1.2). All zeros is no entry.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct ErrorLogEntry [ERROR_LOG_ENTRY_BYTES] {
        /// Number of the error since the controller was made; 0 is no entry.
        0..8 => error_count: u64,
        /// Submission queue of the command.
        8..10 => sqid: u16,
        /// Identifier of the command; FFFFh is no command.
        10..12 => cid: u16,
        /// Status of the command as in its completion: the phase in bit 0, the status above.
        12..14 => status_field: u16,
        /// Parameter at fault: its byte in the command in bits 7:0, the bit in 10:8; FFFFh is none.
        14..16 => parameter_location: u16,
        /// First block with the error.
        16..24 => lba: u64,
        /// Namespace of the command.
        24..28 => nsid: u32,
        /// Log page with vendor specific details; 0 is none.
        28..29 => vendor_log: u8,
        /// Transport of the command, as TRTYPE; 0 is not reported.
        29..30 => trtype: u8,
        /// Information on the command.
        32..40 => command_specific: u64,
        /// Information on the transport.
        40..42 => transport_specific: u16,
    }
}

impl ErrorLogEntry {
    /// The entry.
    #[must_use]
    pub fn encode(&self) -> [u8; ERROR_LOG_ENTRY_BYTES] {
        let mut entry = [0; ERROR_LOG_ENTRY_BYTES];
        self.put_fields(&mut entry);
        entry
    }

    /// Reads an entry; `None` if it is shorter than 64 bytes.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        Self::take_fields(bytes.get(..ERROR_LOG_ENTRY_BYTES)?)
    }
}

/// Bytes of the SMART log.
pub const SMART_LOG_BYTES: usize = 512;

layout! {
    /// The SMART / Health Information log (Base 2.0, section 5.16.1.3). Temperatures are in kelvin, 0
    /// where they are not reported.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct SmartLog [SMART_LOG_BYTES] {
        /// Bit 0 spare is low, 1 temperature, 2 unreliable, 3 read only, 4 backup of volatile memory
        /// failed.
        0..1 => critical_warning: u8,
        /// Composite temperature.
        1..3 => temperature: u16,
        /// Spare capacity left, in percent.
        3..4 => available_spare: u8,
        /// Spare capacity below which bit 0 of the warning is set, in percent.
        4..5 => available_spare_threshold: u8,
        /// Life used, in percent; may exceed 100, and 255 is that or more.
        5..6 => percentage_used: u8,
        /// Warnings of endurance groups.
        6..7 => endurance_group_warning: u8,
        /// Data read by hosts, in units of 512,000 bytes, rounded up.
        32..48 => data_units_read: u128,
        /// Data written by hosts, in units of 512,000 bytes, rounded up.
        48..64 => data_units_written: u128,
        /// Read and Compare commands.
        64..80 => host_read_commands: u128,
        /// Write commands.
        80..96 => host_write_commands: u128,
        /// Time with a command in flight, in minutes.
        96..112 => controller_busy_minutes: u128,
        /// Power cycles.
        112..128 => power_cycles: u128,
        /// Time with power, in hours.
        128..144 => power_on_hours: u128,
        /// Losses of power without notice.
        144..160 => unsafe_shutdowns: u128,
        /// Data integrity errors that were not recovered.
        160..176 => media_errors: u128,
        /// Entries ever made in the error log.
        176..192 => error_log_entries: u128,
        /// Time at the warning temperature, in minutes.
        192..196 => warning_temperature_minutes: u32,
        /// Time at the critical temperature, in minutes.
        196..200 => critical_temperature_minutes: u32,
        /// Temperature sensors 1 to 8.
        200..216 => temperature_sensors: [u16; 8],
        /// Transitions that thermal management 1 and 2 made.
        216..224 => thermal_transitions: [u32; 2],
        /// Time in thermal management 1 and 2, in seconds.
        224..232 => thermal_seconds: [u32; 2],
    }
}

/// What each bit of the critical warning says, from bit 0 on, in the words of Base 2.1, figure 207.
const CRITICAL_WARNINGS: [&str; 6] = [
    "the available spare capacity has fallen below the threshold",
    "a temperature is above or below its threshold",
    "the reliability of the NVM subsystem is degraded",
    "all media are in read-only mode",
    "the backup device of the volatile memory has failed",
    "the persistent memory region is read-only or unreliable",
];

impl SmartLog {
    /// What the critical warning says; bits that no specification names are told by their number.
    #[must_use]
    pub fn critical_warnings(&self) -> Vec<String> {
        let set = (0..u8::BITS).filter(|bit| self.critical_warning & 1 << bit != 0);
        set.map(|bit| match CRITICAL_WARNINGS.get(bit as usize) {
            Some(words) => (*words).to_owned(),
            None => format!("bit {bit} of the critical warning is set"),
        })
        .collect()
    }

    /// The composite temperature in degrees Celsius, if it is reported.
    #[must_use]
    pub fn celsius(&self) -> Option<i32> {
        const ZERO_CELSIUS_KELVIN: i32 = 273;
        (self.temperature != 0).then(|| i32::from(self.temperature) - ZERO_CELSIUS_KELVIN)
    }

    /// The page.
    #[must_use]
    pub fn encode(&self) -> [u8; SMART_LOG_BYTES] {
        let mut page = [0; SMART_LOG_BYTES];
        self.put_fields(&mut page);
        page
    }

    /// Reads a page; `None` if it is shorter than 512 bytes.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        Self::take_fields(bytes.get(..SMART_LOG_BYTES)?)
    }
}

/// Bytes of the firmware slot log.
pub const FIRMWARE_SLOT_LOG_BYTES: usize = 512;

layout! {
    /// The Firmware Slot Information log (Base 2.0, section 5.16.1.4).
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct FirmwareSlotLog [FIRMWARE_SLOT_LOG_BYTES] {
        /// Slot in use in bits 2:0, slot after the next reset in bits 6:4 (0 is not reported).
        0..1 => active: u8,
        /// Revision in each slot from 1 to 7, in ASCII; zeros are an empty slot.
        8..64 => revisions: [[u8; 8]; 7],
    }
}

impl FirmwareSlotLog {
    /// The log of a controller with one slot, which holds `revision`, cut to 8 characters.
    #[must_use]
    pub fn single(revision: &str) -> Self {
        let mut log = Self {
            active: 1,
            ..Self::default()
        };
        crate::identify::layout::ascii::put(revision, &mut log.revisions[0]);
        log
    }

    /// The page.
    #[must_use]
    pub fn encode(&self) -> [u8; FIRMWARE_SLOT_LOG_BYTES] {
        let mut page = [0; FIRMWARE_SLOT_LOG_BYTES];
        self.put_fields(&mut page);
        page
    }

    /// Reads a page; `None` if it is shorter than 512 bytes.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        Self::take_fields(bytes.get(..FIRMWARE_SLOT_LOG_BYTES)?)
    }
}

/// Bytes of the changed namespaces log.
pub const CHANGED_NAMESPACES_BYTES: usize = 4096;

const _: () = assert!(NAMESPACE_LIST_MAX * u32::BYTES == CHANGED_NAMESPACES_BYTES);

/// The Changed Namespace List log (Base 2.0, section 5.16.1.5).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChangedNamespaces {
    /// The namespaces that changed since the log was last read; should ascend. A list of more than
    /// 1024 is sent as [`Self::TooMany`].
    List(Vec<u32>),
    /// More than 1024 changed: the host has to look at all of them.
    TooMany,
}

impl ChangedNamespaces {
    /// The page.
    #[must_use]
    pub fn encode(&self) -> [u8; CHANGED_NAMESPACES_BYTES] {
        let nsids = match self {
            Self::List(nsids) if nsids.len() <= NAMESPACE_LIST_MAX => nsids.as_slice(),
            _ => &[crate::identify::NSID_BROADCAST],
        };
        crate::identify::encode_namespace_list(nsids)
    }

    /// Reads a page; `None` if it is shorter than 4096 bytes.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let nsids = crate::identify::decode_namespace_list(bytes)?;
        Some(match nsids.first() {
            Some(&crate::identify::NSID_BROADCAST) => Self::TooMany,
            _ => Self::List(nsids),
        })
    }
}

/// Bytes of the command effects log.
pub const COMMAND_EFFECTS_BYTES: usize = 4096;

/// The Commands Supported and Effects log (Base 2.0, section 5.16.1.6): a dword for each opcode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandEffects {
    /// Admin commands, by opcode.
    pub acs: [u32; 256],
    /// I/O commands, by opcode.
    pub iocs: [u32; 256],
}

impl CommandEffects {
    /// CSUPP: the command is supported.
    pub const SUPPORTED: u32 = 1 << 0;

    /// LBCC: it may change data.
    pub const CONTENT_CHANGE: u32 = 1 << 1;

    /// NCC: it may change the capabilities of a namespace. Linux scans again after such a command.
    pub const NAMESPACE_CAPABILITY_CHANGE: u32 = 1 << 2;

    /// NIC: it may change the number of namespaces. Linux scans again after such a command.
    pub const NAMESPACE_INVENTORY_CHANGE: u32 = 1 << 3;

    /// CCC: it may change the capabilities of the controller.
    pub const CONTROLLER_CAPABILITY_CHANGE: u32 = 1 << 4;

    /// CSP: the command concerns one namespace.
    pub const NAMESPACE_SCOPE: u32 = 1 << 20;

    /// CSP: the command concerns its controller alone.
    pub const CONTROLLER_SCOPE: u32 = 1 << 21;

    /// CSE: what may run beside it. Linux freezes all I/O around a command that has any of them.
    pub const EXECUTION_MASK: u32 = 0x7 << 16;

    /// CSE 1: no other command for the same namespace.
    pub const EXECUTION_NAMESPACE: u32 = 1 << 16;

    /// CSE 2: no other command for any namespace.
    pub const EXECUTION_CONTROLLER: u32 = 2 << 16;

    /// The page.
    #[must_use]
    pub fn encode(&self) -> Box<[u8; COMMAND_EFFECTS_BYTES]> {
        let mut page = Box::new([0; COMMAND_EFFECTS_BYTES]);
        self.acs.put(&mut page[..1024]);
        self.iocs.put(&mut page[1024..2048]);
        page
    }

    /// Reads a page; `None` if it is shorter than 4096 bytes.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let page = bytes.get(..COMMAND_EFFECTS_BYTES)?;
        Some(Self {
            acs: Wire::take(&page[..1024]),
            iocs: Wire::take(&page[1024..2048]),
        })
    }
}

impl Default for CommandEffects {
    /// No command is supported.
    fn default() -> Self {
        Self {
            acs: [0; 256],
            iocs: [0; 256],
        }
    }
}

const _: () = assert!(<[u32; 256]>::BYTES == 1024);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_log_page_identifier_reads_back() {
        let known = (0..=u8::MAX)
            .filter_map(LogPage::from_u8)
            .collect::<Vec<_>>();
        assert_eq!(known.len(), 15);
        for page in known {
            assert_eq!(LogPage::from_u8(u8::from(page)), Some(page));
        }
    }

    #[test]
    fn a_piece_of_a_page_is_padded_with_zeros() {
        let page = [1, 2, 3, 4, 5, 6, 7];
        assert_eq!(slice_page(&page, 0, 3), Ok(vec![1, 2, 3]));
        assert_eq!(slice_page(&page, 4, 8), Ok(vec![5, 6, 7, 0, 0, 0, 0, 0]));
        assert_eq!(slice_page(&page[..4], 4, 4), Ok(vec![0; 4]));
        assert_eq!(slice_page(&[], 0, 4), Ok(vec![0; 4]));
    }

    #[test]
    fn offsets_that_are_odd_or_past_the_end_are_refused() {
        assert_eq!(slice_page(&[0; 8], 2, 4), Err(LogOffsetError::Unaligned(2)));
        for offset in [12, 0xffff_ffff_ffff_f000] {
            let error = slice_page(&[0; 8], offset, 4).unwrap_err();
            assert_eq!(
                error,
                LogOffsetError::PastEnd {
                    offset,
                    page_bytes: 8
                }
            );
            assert_eq!(Status::from(error), Status::INVALID_FIELD);
        }
    }

    #[test]
    fn counters_stand_where_linux_reads_them() {
        let log = SmartLog {
            temperature: 0x0131,
            available_spare: 100,
            data_units_read: 1,
            data_units_written: 2,
            host_read_commands: 3,
            media_errors: 4,
            temperature_sensors: [5, 0, 0, 0, 0, 0, 0, 6],
            ..Default::default()
        };
        let page = log.encode();
        assert_eq!(page[..4], [0, 0x31, 1, 100]);
        assert_eq!((page[32], page[48], page[64], page[160]), (1, 2, 3, 4));
        assert_eq!((page[200], page[214]), (5, 6));
        assert_eq!(SmartLog::decode(&page), Some(log));
    }

    #[test]
    fn a_firmware_log_with_one_slot_names_it_active() {
        let page = FirmwareSlotLog::single("1.2").encode();
        assert_eq!(page[0], 1);
        assert_eq!(&page[8..17], b"1.2     \0");
        assert_eq!(
            FirmwareSlotLog::decode(&page),
            Some(FirmwareSlotLog::single("1.2"))
        );
    }

    #[test]
    fn more_than_1024_changed_namespaces_become_all_of_them() {
        let most = ChangedNamespaces::List((1..=1024).collect());
        assert_eq!(ChangedNamespaces::decode(&most.encode()), Some(most));
        let page = ChangedNamespaces::List((1..=1025).collect()).encode();
        assert_eq!(page[..8], [255, 255, 255, 255, 0, 0, 0, 0]);
        assert_eq!(
            ChangedNamespaces::decode(&page),
            Some(ChangedNamespaces::TooMany)
        );
        assert_eq!(ChangedNamespaces::TooMany.encode(), page);
        let none = ChangedNamespaces::List(vec![]);
        assert_eq!(ChangedNamespaces::decode(&none.encode()), Some(none));
    }

    #[test]
    fn effects_are_dwords_by_opcode() {
        let mut effects = CommandEffects::default();
        effects.acs[0x06] = CommandEffects::SUPPORTED;
        effects.iocs[0x01] = CommandEffects::SUPPORTED | CommandEffects::CONTENT_CHANGE;
        let page = effects.encode();
        assert_eq!((page[24], page[1028]), (1, 3));
        assert_eq!(CommandEffects::decode(&page[..]), Some(effects));
    }

    #[test]
    fn error_log_entries_stand_where_linux_reads_them() {
        let entry = ErrorLogEntry {
            error_count: 1,
            sqid: 2,
            cid: 3,
            status_field: 4,
            parameter_location: 5,
            lba: 6,
            nsid: 7,
            trtype: 3,
            command_specific: 8,
            transport_specific: 9,
            ..Default::default()
        };
        let bytes = entry.encode();
        for (at, value) in [
            (0, 1),
            (8, 2),
            (10, 3),
            (12, 4),
            (14, 5),
            (16, 6),
            (24, 7),
            (29, 3),
        ] {
            assert_eq!(bytes[at], value);
        }
        assert_eq!((bytes[32], bytes[40]), (8, 9));
        assert_eq!(ErrorLogEntry::decode(&bytes), Some(entry));
    }

    #[test]
    fn each_critical_warning_is_told_in_words() {
        let mut log = SmartLog {
            critical_warning: 0b1000_1001,
            temperature: 300,
            ..SmartLog::default()
        };
        let told = log.critical_warnings();
        assert!(told[0].contains("spare") && told[1].contains("read-only"));
        assert!(told[2].contains("bit 7"), "{told:?}");
        assert_eq!(log.celsius(), Some(27));
        (log.critical_warning, log.temperature) = (0, 0);
        assert!(log.critical_warnings().is_empty());
        assert_eq!(
            log.celsius(),
            None,
            "a target without a sensor is not frozen"
        );
    }

    proptest! {
        #[test]
        fn any_bytes_read_back_or_are_refused(
            bytes in prop_oneof![
                prop::collection::vec(any::<u8>(), 0..1100),
                prop::collection::vec(any::<u8>(), 4095..4100),
            ],
        ) {
            if let Some(entry) = ErrorLogEntry::decode(&bytes) {
                prop_assert_eq!(ErrorLogEntry::decode(&entry.encode()), Some(entry));
            }
            if let Some(log) = SmartLog::decode(&bytes) {
                prop_assert_eq!(SmartLog::decode(&log.encode()), Some(log));
                let told = log.critical_warnings().len();
                prop_assert_eq!(told, log.critical_warning.count_ones() as usize);
                prop_assert_eq!(log.celsius().is_some(), log.temperature != 0);
            }
            if let Some(log) = FirmwareSlotLog::decode(&bytes) {
                prop_assert_eq!(FirmwareSlotLog::decode(&log.encode()), Some(log));
            }
            if let Some(log) = ChangedNamespaces::decode(&bytes) {
                prop_assert_eq!(ChangedNamespaces::decode(&log.encode()), Some(log));
            }
            if let Some(effects) = CommandEffects::decode(&bytes) {
                prop_assert_eq!(CommandEffects::decode(&effects.encode()[..]), Some(effects));
            }
            let _ = DiscoveryHeader::decode(&bytes);
            let _ = DiscoveryEntry::decode(&bytes);
        }

        #[test]
        fn pieces_of_a_page_put_together_are_the_page(
            page in prop::collection::vec(any::<u8>(), 0..600),
            step in (1..64_usize).prop_map(|dwords| dwords * 4),
        ) {
            let mut read = Vec::new();
            while read.len() < page.len() {
                read.extend(slice_page(&page, read.len() as u64, step).unwrap());
            }
            prop_assert_eq!(&read[..page.len()], &page[..]);
            prop_assert!(read[page.len()..].iter().all(|byte| *byte == 0));
        }
    }
}
