//! The Cross-Controller Reset log (TP8028; Base 2.3, section 5.2.12.3.1): what became of the resets of other controllers that a
//! controller was asked for.

use crate::byte_enum::byte_enum;
use crate::identify::layout::layout;

/// Bytes of the page with as many entries as it can have.
pub const CONTROLLER_RESETS_BYTES: usize = 4096;

/// Entries of the page at most: what its bytes have room for.
pub const CONTROLLER_RESETS_MAX: usize = (CONTROLLER_RESETS_BYTES - HEADER_BYTES) / ENTRY_BYTES;

/// ACID of an entry that names no other controller.
pub const NO_CONTROLLER: u16 = 0xffff;

const HEADER_BYTES: usize = 8;

const ENTRY_BYTES: usize = 8;

byte_enum! {
    /// How far a reset is: CCRS.
    pub enum ControllerResetState {
        /// 0: it is under way.
        InProgress = 0,
        /// 1: no command of that controller can take effect any more.
        Successful = 1,
        /// 2: it failed.
        Failed = 2,
    }
}

layout! {
    /// An entry: a reset of another controller.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct ControllerReset [ENTRY_BYTES] {
        /// ICID: the controller's identifier.
        0..2 => cntlid: u16,
        /// CIU: its Controller Instance Uniquifier, as the host sent it.
        2..3 => uniquifier: u8,
        /// ACID: a controller that the host should ask instead; FFFFh is none.
        4..6 => alternate: u16,
        /// CCRS: see [`ControllerResetState`].
        6..7 => state: u8,
        /// CCRF: [`Self::VALIDATED`] and [`Self::INITIATED`].
        7..8 => flags: u8,
    }
}

impl ControllerReset {
    /// CCRF bit 0: the controller was found to be what the host says.
    pub const VALIDATED: u8 = 1 << 0;

    /// CCRF bit 1: the reset has begun.
    pub const INITIATED: u8 = 1 << 1;

    /// How far it is; `None` for what the specification does not define.
    #[must_use]
    pub const fn state(&self) -> Option<ControllerResetState> {
        ControllerResetState::from_u8(self.state)
    }
}

/// The page.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ControllerResets(pub Vec<ControllerReset>);

impl ControllerResets {
    /// The page, with the first [`CONTROLLER_RESETS_MAX`] entries.
    #[must_use]
    pub fn encode(&self) -> Box<[u8; CONTROLLER_RESETS_BYTES]> {
        let mut page = Box::new([0; CONTROLLER_RESETS_BYTES]);
        let (header, entries) = page.split_at_mut(HEADER_BYTES);
        let mut count = 0_u16;
        for (slot, reset) in entries.chunks_exact_mut(ENTRY_BYTES).zip(&self.0) {
            reset.put_fields(slot);
            count += 1;
        }
        header[..2].copy_from_slice(&count.to_le_bytes());
        page
    }

    /// Reads a page; `None` if it is shorter than the entries that it says it has, or says that it has more than fit.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (header, entries) = bytes.split_at_checked(HEADER_BYTES)?;
        let count = usize::from(u16::from_le_bytes([header[0], header[1]]));
        if count > CONTROLLER_RESETS_MAX {
            return None;
        }
        let entries = entries.get(..count * ENTRY_BYTES)?;
        let entries = entries.chunks_exact(ENTRY_BYTES);
        Some(Self(
            entries
                .map(ControllerReset::take_fields)
                .collect::<Option<_>>()?,
        ))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RESET: ControllerReset = ControllerReset {
        cntlid: 1,
        uniquifier: 2,
        alternate: NO_CONTROLLER,
        state: ControllerResetState::Successful as u8,
        flags: ControllerReset::VALIDATED | ControllerReset::INITIATED,
    };

    #[test]
    fn a_page_has_511_entries_at_most() {
        assert_eq!(CONTROLLER_RESETS_MAX, 511);
        let most = ControllerResets(vec![RESET; CONTROLLER_RESETS_MAX]);
        let more = ControllerResets(vec![RESET; CONTROLLER_RESETS_MAX + 1]);
        assert_eq!(more.encode(), most.encode());
        let mut page = most.encode();
        assert_eq!(ControllerResets::decode(&page[..]), Some(most));
        page[..2].copy_from_slice(&512_u16.to_le_bytes());
        assert_eq!(ControllerResets::decode(&page[..]), None);
    }

    proptest! {
        #[test]
        fn any_bytes_read_back_or_are_refused(
            count in prop_oneof![0..20_u16, any::<u16>()],
            rest in prop::collection::vec(any::<u8>(), 0..100),
        ) {
            let page = [&count.to_le_bytes()[..], &rest].concat();
            let log = ControllerResets::decode(&page);
            let is_whole = page.len() >= HEADER_BYTES + usize::from(count) * ENTRY_BYTES;
            prop_assert_eq!(log.is_some(), is_whole);
            if let Some(log) = log {
                prop_assert_eq!(ControllerResets::decode(&log.encode()[..]), Some(log));
            }
        }
    }
}
