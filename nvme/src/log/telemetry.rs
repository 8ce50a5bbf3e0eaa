//! The Telemetry Host-Initiated and Controller-Initiated logs (Base 2.0, sections 5.16.1.8 and 5.16.1.9): a header, then data in blocks of 512
//! bytes, in three areas that each begin with block 1 and reach further than the one before.

use crate::identify::layout::layout;

/// Bytes of the header, and of every block of data.
pub const TELEMETRY_BLOCK_BYTES: usize = 512;

layout! {
    /// The header. The numbers of blocks are those of the last block of an area; 0 is no data.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct TelemetryHeader [TELEMETRY_BLOCK_BYTES] {
        /// The log page identifier, 07h.
        0..1 => lid: u8,
        /// IEEE OUI of the vendor, least significant byte first.
        5..8 => ieee: [u8; 3],
        /// Last block of data area 1.
        8..10 => area_1_last: u16,
        /// Last block of data area 2.
        10..12 => area_2_last: u16,
        /// Last block of data area 3.
        12..14 => area_3_last: u16,
        /// Changes whenever the host has new data made.
        381..382 => generation: u8,
        /// Data that the controller made by itself is there (1) or not (0).
        382..383 => controller_data: u8,
        /// Changes whenever the controller makes new data.
        383..384 => controller_generation: u8,
        /// What was going on, in the vendor's words.
        384..512 => reason: [u8; 128],
    }
}

impl TelemetryHeader {
    /// The header.
    #[must_use]
    pub fn encode(&self) -> [u8; TELEMETRY_BLOCK_BYTES] {
        let mut header = [0; TELEMETRY_BLOCK_BYTES];
        self.put_fields(&mut header);
        header
    }

    /// Reads a header; `None` if it is shorter than 512 bytes.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        Self::take_fields(bytes.get(..TELEMETRY_BLOCK_BYTES)?)
    }
}

impl Default for TelemetryHeader {
    /// No data.
    fn default() -> Self {
        Self {
            lid: super::LogPage::TelemetryHost.as_u8(),
            ieee: [0; 3],
            area_1_last: 0,
            area_2_last: 0,
            area_3_last: 0,
            generation: 0,
            controller_data: 0,
            controller_generation: 0,
            reason: [0; 128],
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn areas_stand_where_libnvme_reads_them() {
        let header = TelemetryHeader {
            area_1_last: 1,
            area_2_last: 2,
            area_3_last: 0x0304,
            generation: 5,
            ..Default::default()
        };
        let bytes = header.encode();
        assert_eq!(bytes[0], 7);
        assert_eq!(bytes[8..14], [1, 0, 2, 0, 4, 3]);
        assert_eq!(bytes[381], 5);
    }

    proptest! {
        #[test]
        fn any_bytes_read_back_or_are_refused(
            bytes in prop::collection::vec(any::<u8>(), 500..520),
        ) {
            let header = TelemetryHeader::decode(&bytes);
            prop_assert_eq!(header.is_some(), bytes.len() >= TELEMETRY_BLOCK_BYTES);
            if let Some(header) = header {
                prop_assert_eq!(TelemetryHeader::decode(&header.encode()), Some(header));
            }
        }
    }
}
