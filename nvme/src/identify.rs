//! The data structures of Identify: which there are, and their bytes in both directions.
//!
//! Every page is 4096 bytes. Encoders write zeros wherever a field is not named here; decoders ignore
//! those places, take any bytes without panicking, and give `None` for a page that is too short or
//! contradicts itself. Fields keep the specification's abbreviations, since that is how hosts,
//! `nvme-cli` and people name them; "0's based" means that 0 stands for one.

mod controller;
pub(crate) mod layout;
mod namespace;

pub use controller::{
    CommandSetCombinations, ControllerType, IdentifyController, IdentifyNvmController, PowerState,
};
pub use namespace::{
    IdentifyIndependentNamespace, IdentifyNamespace, IdentifyNvmNamespace, LBA_FORMATS_MAX,
    LbaFormat, NamespaceDescriptor, decode_descriptor_list, encode_descriptor_list,
};

use crate::byte_enum::byte_enum;

/// Bytes of every Identify data structure.
pub const IDENTIFY_BYTES: usize = 4096;

/// Identifiers in one namespace list (Base 2.0, section 4.4).
pub const NAMESPACE_LIST_MAX: usize = 1024;

/// The NSID that means all namespaces.
pub const NSID_BROADCAST: u32 = 0xffff_ffff;

/// The command set identifier of the NVM command set.
pub const CSI_NVM: u8 = 0;

const _: () = assert!(NAMESPACE_LIST_MAX * size_of::<u32>() == IDENTIFY_BYTES);

byte_enum! {
    /// What an Identify command asks for: CDW10 bits 7:0 (Base 2.0 figure 273).
    pub enum Cns {
        /// 00h: the NVM command set's view of an active namespace.
        Namespace = 0x00,
        /// 01h: the controller.
        Controller = 0x01,
        /// 02h: the active namespaces above an NSID.
        ActiveNamespaces = 0x02,
        /// 03h: the identifiers of a namespace.
        NamespaceDescriptors = 0x03,
        /// 05h: what a command set adds about an active namespace.
        CsiNamespace = 0x05,
        /// 06h: what a command set adds about the controller.
        CsiController = 0x06,
        /// 07h: the active namespaces of a command set.
        CsiActiveNamespaces = 0x07,
        /// 08h: what is true of an active namespace whatever its command set.
        CsiIndependentNamespace = 0x08,
        /// 10h: the allocated namespaces above an NSID.
        AllocatedNamespaces = 0x10,
        /// 11h: the NVM command set's view of an allocated namespace.
        AllocatedNamespace = 0x11,
        /// 12h: the controllers that a namespace is attached to.
        AttachedControllers = 0x12,
        /// 13h: the controllers of the subsystem.
        Controllers = 0x13,
        /// 1Ch: the command sets that may be enabled together.
        CommandSets = 0x1c,
    }
}

/// Writes a namespace list: the first 1024 of `nsids`, which should ascend, then zeros.
#[must_use]
pub fn encode_namespace_list(nsids: &[u32]) -> [u8; IDENTIFY_BYTES] {
    let mut page = [0; IDENTIFY_BYTES];
    for (slot, nsid) in page.chunks_exact_mut(4).zip(nsids) {
        slot.copy_from_slice(&nsid.to_le_bytes());
    }
    page
}

/// Reads a namespace list up to its first zero; `None` if the page is shorter than 4096 bytes.
///
/// The order is the controller's: a list that does not ascend is returned as it is.
#[must_use]
pub fn decode_namespace_list(bytes: &[u8]) -> Option<Vec<u32>> {
    let page = bytes.get(..IDENTIFY_BYTES)?;
    let nsids = page.chunks_exact(4).map(<u32 as layout::Wire>::take);
    Some(nsids.take_while(|nsid| *nsid != 0).collect())
}

/// Writes a controller list (CNS 12h and 13h): a count, then up to 2047 identifiers; more are left out.
#[must_use]
pub fn encode_controller_list(cntlids: &[u16]) -> [u8; IDENTIFY_BYTES] {
    let mut page = [0; IDENTIFY_BYTES];
    let mut count = 0_u16;
    for (slot, cntlid) in page[2..].chunks_exact_mut(2).zip(cntlids) {
        slot.copy_from_slice(&cntlid.to_le_bytes());
        count += 1;
    }
    page[..2].copy_from_slice(&count.to_le_bytes());
    page
}

/// Reads a controller list; `None` if the page is shorter than 4096 bytes or claims more than 2047.
#[must_use]
pub fn decode_controller_list(bytes: &[u8]) -> Option<Vec<u16>> {
    let page = bytes.get(..IDENTIFY_BYTES)?;
    let count = usize::from(<u16 as layout::Wire>::take(&page[..2]));
    if count > (IDENTIFY_BYTES - 2) / 2 {
        return None;
    }
    let cntlids = page[2..].chunks_exact(2).map(<u16 as layout::Wire>::take);
    Some(cntlids.take(count).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_cns_value_reads_back_and_the_others_are_unknown() {
        let known = (0..=u8::MAX).filter_map(Cns::from_u8).collect::<Vec<_>>();
        assert_eq!(known.len(), 13);
        for cns in known {
            assert_eq!(Cns::from_u8(u8::from(cns)), Some(cns));
        }
        assert_eq!(Cns::from_u8(0xff), None);
    }

    #[test]
    fn a_namespace_list_ends_at_its_first_zero_or_at_1024() {
        assert_eq!(
            decode_namespace_list(&encode_namespace_list(&[])),
            Some(vec![])
        );
        let many = (1..=1030).collect::<Vec<u32>>();
        let list = decode_namespace_list(&encode_namespace_list(&many)).unwrap();
        assert_eq!(list, many[..NAMESPACE_LIST_MAX]);
        assert_eq!(decode_namespace_list(&[1; 4095]), None);
    }

    #[test]
    fn a_controller_list_begins_with_its_count() {
        let page = encode_controller_list(&[1, 0x203]);
        assert_eq!(page[..8], [2, 0, 1, 0, 3, 2, 0, 0]);
        let page = encode_controller_list(&[7; 3000]);
        assert_eq!(page[..2], 2047_u16.to_le_bytes());
        assert_eq!(page[4094..], [7, 0]);
        assert_eq!(decode_controller_list(&page), Some(vec![7; 2047]));
        assert_eq!(decode_controller_list(&page[1..]), None);
        assert_eq!(decode_controller_list(&[0xff; 4096]), None);
        // One more than there is room for.
        let mut page = page;
        page[..2].copy_from_slice(&2048u16.to_le_bytes());
        assert_eq!(decode_controller_list(&page), None);
    }

    proptest! {
        #[test]
        fn a_namespace_list_reads_back(nsids in prop::collection::vec(1..=u32::MAX, 0..1024)) {
            prop_assert_eq!(decode_namespace_list(&encode_namespace_list(&nsids)), Some(nsids));
        }

        #[test]
        fn no_bytes_make_a_decoder_panic(
            // The whole pages are what gets past the check of the length.
            bytes in prop_oneof![
                prop::collection::vec(any::<u8>(), 0..64),
                prop::collection::vec(any::<u8>(), 4095..4100),
            ],
        ) {
            let _ = decode_namespace_list(&bytes);
            let _ = decode_controller_list(&bytes);
            let _ = decode_descriptor_list(&bytes);
            let _ = IdentifyController::decode(&bytes);
            let _ = IdentifyNvmController::decode(&bytes);
            let _ = IdentifyNamespace::decode(&bytes);
            let _ = IdentifyNvmNamespace::decode(&bytes);
            let _ = IdentifyIndependentNamespace::decode(&bytes);
            let _ = CommandSetCombinations::decode(&bytes);
        }
    }
}
