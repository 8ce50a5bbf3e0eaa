//! The Persistent Event log (Base 2.0, section 5.16.1.14): a header, then events, each with a header of
//! its own and data that its type gives a form.

use crate::identify::layout::{Wire, ascii, layout, name};

/// Bytes of the log's header.
pub const PERSISTENT_HEADER_BYTES: usize = 512;

/// Bytes of an event's header.
pub const PERSISTENT_EVENT_BYTES: usize = 24;

/// LHL counts the header's bytes behind itself, EHL those behind the third byte.
const LOG_HEADER_LENGTH: u16 = PERSISTENT_HEADER_BYTES as u16 - 20;
const EVENT_HEADER_LENGTH: u8 = PERSISTENT_EVENT_BYTES as u8 - 3;

/// RV: the form of the log of Base 2.0.
const REVISION: u8 = 3;

/// What kind of event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum PersistentEventType {
    /// 01h: a SMART log page as it was.
    SmartSnapshot = 0x01,
    /// 04h: the subsystem was started.
    PowerOn = 0x04,
    /// DEh: in the vendor's words; see [`vendor_text`].
    VendorSpecific = 0xde,
}

impl PersistentEventType {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::SmartSnapshot, Self::PowerOn, Self::VendorSpecific];

    /// The value on the wire.
    #[must_use]
    pub const fn as_u8(self) -> u8 {
        self as u8
    }
}

layout! {
    /// The log's header.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct PersistentEventHeader [PERSISTENT_HEADER_BYTES] {
        /// The log page identifier, 0Dh.
        0..1 => lid: u8,
        /// TNEV: events in the log.
        4..8 => events: u32,
        /// TLL: bytes of the log, this header included.
        8..16 => log_bytes: u64,
        /// RV: the form of the log.
        16..17 => revision: u8,
        /// LHL: bytes of this header behind this field.
        18..20 => header_length: u16,
        /// When it was made, as in [`crate::features::Timestamp`].
        20..28 => timestamp: u64,
        /// Time with power, in hours.
        28..44 => power_on_hours: u128,
        /// Power cycles.
        44..52 => power_cycles: u64,
        /// PCI vendor.
        52..54 => vid: u16,
        /// PCI subsystem vendor.
        54..56 => ssvid: u16,
        /// Serial number, as in Identify Controller.
        56..76 => sn: String as ascii,
        /// Model number, as in Identify Controller.
        76..116 => mn: String as ascii,
        /// Name of the subsystem.
        116..372 => subnqn: String as name,
        /// Rises with every event.
        372..374 => generation: u16,
        /// RCI: bit 18 says that somebody has a context.
        374..378 => reporting_context: u32,
        /// The types of events that there can be, a bit each.
        480..512 => supported: [u8; 32],
    }
}

impl PersistentEventHeader {
    /// RCE: a reporting context exists.
    pub const CONTEXT_EXISTS: u32 = 1 << 18;

    /// The header.
    #[must_use]
    pub fn encode(&self) -> [u8; PERSISTENT_HEADER_BYTES] {
        let mut header = [0; PERSISTENT_HEADER_BYTES];
        self.put_fields(&mut header);
        header
    }

    /// Reads a header; `None` if it is shorter than 512 bytes, or if the subsystem's name is not UTF-8
    /// that a NUL ends.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        Self::take_fields(bytes.get(..PERSISTENT_HEADER_BYTES)?)
    }
}

impl Default for PersistentEventHeader {
    /// An empty log, with the types of [`PersistentEventType::ALL`].
    fn default() -> Self {
        let mut supported = [0; 32];
        for kind in PersistentEventType::ALL {
            let kind = usize::from(kind.as_u8());
            supported[kind / 8] |= 1 << (kind % 8);
        }
        Self {
            lid: super::LogPage::PersistentEvent.as_u8(),
            events: 0,
            log_bytes: PERSISTENT_HEADER_BYTES as u64,
            revision: REVISION,
            header_length: LOG_HEADER_LENGTH,
            timestamp: 0,
            power_on_hours: 0,
            power_cycles: 0,
            vid: 0,
            ssvid: 0,
            sn: String::new(),
            mn: String::new(),
            subnqn: String::new(),
            generation: 0,
            reporting_context: 0,
            supported,
        }
    }
}

layout! {
    /// An event's header.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct PersistentEvent [PERSISTENT_EVENT_BYTES] {
        /// The type, as [`PersistentEventType`].
        0..1 => kind: u8,
        /// The form of the type's data.
        1..2 => revision: u8,
        /// EHL: bytes of this header behind this field.
        2..3 => header_length: u8,
        /// The controller that it is about; 0 where it is about none.
        4..6 => cntlid: u16,
        /// When it happened, as in [`crate::features::Timestamp`].
        6..14 => timestamp: u64,
        /// Bytes of the vendor's in front of the data.
        20..22 => vendor_length: u16,
        /// EL: bytes behind this header.
        22..24 => length: u16,
    }
}

impl PersistentEvent {
    /// A header for that type, time and data of so many bytes.
    #[must_use]
    pub fn new(kind: u8, timestamp: u64, length: u16) -> Self {
        Self {
            kind,
            revision: 1,
            header_length: EVENT_HEADER_LENGTH,
            cntlid: 0,
            timestamp,
            vendor_length: 0,
            length,
        }
    }

    /// The header.
    #[must_use]
    pub fn encode(&self) -> [u8; PERSISTENT_EVENT_BYTES] {
        let mut header = [0; PERSISTENT_EVENT_BYTES];
        self.put_fields(&mut header);
        header
    }

    /// Reads a header; `None` if it is shorter than 24 bytes.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        Self::take_fields(bytes.get(..PERSISTENT_EVENT_BYTES)?)
    }
}

/// The data of a vendor specific event that is a text: one descriptor, cut to 64 KiB.
#[must_use]
pub fn vendor_text(code: u16, text: &str) -> Vec<u8> {
    /// VSEDT: an ASCII string.
    const ASCII_STRING: u8 = 2;
    let text: Vec<u8> = text
        .chars()
        .take(usize::from(u16::MAX))
        .map(|c| {
            if matches!(c, ' '..='~') {
                c as u8
            } else {
                b'?'
            }
        })
        .collect();
    let length = u16::try_from(text.len()).unwrap_or(u16::MAX);
    let mut data = vec![0; 6];
    code.put(&mut data[..2]);
    data[2] = ASCII_STRING;
    length.put(&mut data[4..6]);
    data.extend_from_slice(&text);
    data
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lengths_are_counted_as_nvme_cli_does() {
        let bytes = PersistentEventHeader::default().encode();
        assert_eq!((bytes[0], bytes[16]), (0x0d, 3));
        assert_eq!(bytes[18..20], [0xec, 0x01], "492 bytes");
        assert_eq!((bytes[480], bytes[480 + 27]), (0x12, 0x40));
        let event = PersistentEvent::new(0xde, 0x0102, 9).encode();
        assert_eq!(event[..3], [0xde, 1, 21]);
        assert_eq!((event[6], event[7], event[22]), (2, 1, 9));
    }

    #[test]
    fn a_text_is_one_ascii_descriptor() {
        assert_eq!(
            vendor_text(3, "90 %\u{e9}"),
            [&[3, 0, 2, 0, 5, 0], b"90 %?" as &[u8]].concat()
        );
        assert_eq!(vendor_text(0, &"x".repeat(70_000)).len(), 6 + 65_535);
    }

    proptest! {
        #[test]
        fn any_bytes_read_back_or_are_refused(
            bytes in prop::collection::vec(any::<u8>(), 0..520),
        ) {
            if let Some(header) = PersistentEventHeader::decode(&bytes) {
                prop_assert_eq!(PersistentEventHeader::decode(&header.encode()), Some(header));
            }
            let event = PersistentEvent::decode(&bytes);
            prop_assert_eq!(event.is_some(), bytes.len() >= PERSISTENT_EVENT_BYTES);
            if let Some(event) = event {
                prop_assert_eq!(PersistentEvent::decode(&event.encode()), Some(event));
            }
        }
    }
}
