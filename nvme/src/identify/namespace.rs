//! What Identify says about a namespace: CNS 00h, 03h, 05h and 08h.

use super::IDENTIFY_BYTES;
use super::layout::layout;

/// LBA formats in the page of a namespace.
pub const LBA_FORMATS_MAX: usize = 64;

/// Where NLBAF, the 0's based number of LBA formats, stands.
const NLBAF: usize = 25;

/// Bytes of an LBA format.
const LBA_FORMAT_BYTES: usize = 4;

layout! {
    /// LBA Format (NVM Command Set 1.0 figure 98).
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct LbaFormat [LBA_FORMAT_BYTES] {
        /// Bytes of metadata for each block.
        0..2 => ms: u16,
        /// Bytes of a block, as a power of two; 0 means that the format is not available.
        2..3 => lbads: u8,
        /// Relative performance in bits 1:0; 0 is best.
        3..4 => rp: u8,
    }
}

layout! {
    /// Identify Namespace, CNS 00h (NVM Command Set 1.0 figure 97). The default, all zeros, is what
    /// the page of an NSID that is not active looks like.
    ///
    /// NLBAF is not a field: it is the number of `lbaf`.
    #[derive(Debug, Clone, PartialEq, Eq, Default)]
    pub struct IdentifyNamespace [IDENTIFY_BYTES] {
        /// Size in blocks.
        0..8 => nsze: u64,
        /// Blocks that may be allocated at once; a host takes 0 for a namespace that is gone.
        8..16 => ncap: u64,
        /// Blocks that are allocated.
        16..24 => nuse: u64,
        /// Features: bit 0 thin, 1 own atomicity fields, 2 deallocated error, 4 optimal I/O fields.
        24..25 => nsfeat: u8,
        /// Format in use: index in bits 3:0 with bits 6:5 above them; bit 4 metadata in the data.
        26..27 => flbas: u8,
        /// Metadata capabilities.
        27..28 => mc: u8,
        /// Protection information capabilities.
        28..29 => dpc: u8,
        /// Protection information settings.
        29..30 => dps: u8,
        /// Sharing: bit 0 says that several controllers may attach it.
        30..31 => nmic: u8,
        /// Reservation capabilities.
        31..32 => rescap: u8,
        /// Format progress.
        32..33 => fpi: u8,
        /// Deallocated blocks: bits 2:0 read as (1 zeros), bit 3 Write Zeroes may deallocate.
        33..34 => dlfeat: u8,
        /// Blocks written atomically, 0's based; valid with bit 1 of `nsfeat`.
        34..36 => nawun: u16,
        /// Blocks written atomically over a power failure, 0's based.
        36..38 => nawupf: u16,
        /// Blocks compared and written atomically, 0's based.
        38..40 => nacwu: u16,
        /// Atomic boundary in blocks, 0's based; 0 is none.
        40..42 => nabsn: u16,
        /// First LBA at an atomic boundary.
        42..44 => nabo: u16,
        /// Atomic boundary over a power failure in blocks, 0's based; 0 is none.
        44..46 => nabspf: u16,
        /// Optimal I/O boundary in blocks; 0 is none.
        46..48 => noiob: u16,
        /// Bytes of media that belong to the namespace.
        48..64 => nvmcap: u128,
        /// Preferred write granularity in blocks, 0's based; valid with bit 4 of `nsfeat`.
        64..66 => npwg: u16,
        /// Preferred write alignment in blocks, 0's based.
        66..68 => npwa: u16,
        /// Preferred deallocate granularity in blocks, 0's based.
        68..70 => npdg: u16,
        /// Preferred deallocate alignment in blocks, 0's based.
        70..72 => npda: u16,
        /// Optimal write size in blocks, 0's based.
        72..74 => nows: u16,
        /// Blocks in one range of Copy.
        74..76 => mssrl: u16,
        /// Blocks in one Copy.
        76..80 => mcl: u32,
        /// Ranges of one Copy, 0's based.
        80..81 => msrc: u8,
        /// ANA group; 0 is none.
        92..96 => anagrpid: u32,
        /// Attributes: bit 0 write protected.
        99..100 => nsattr: u8,
        /// NVM set; 0 is none.
        100..102 => nvmsetid: u16,
        /// Endurance group; 0 is none.
        102..104 => endgid: u16,
        /// Globally unique identifier, most significant byte first; zeros are none.
        104..120 => nguid: [u8; 16],
        /// IEEE extended unique identifier, most significant byte first; zeros are none.
        120..128 => eui64: [u8; 8],
        /// LBA formats, of which the first 64 are sent.
        128..384 => lbaf: Vec<LbaFormat> as formats,
    }
}

mod formats {
    use super::{LBA_FORMAT_BYTES, LbaFormat};

    pub(super) fn put(formats: &[LbaFormat], out: &mut [u8]) {
        for (slot, format) in out.chunks_exact_mut(LBA_FORMAT_BYTES).zip(formats) {
            format.put_fields(slot);
        }
    }

    pub(super) fn take(bytes: &[u8]) -> Option<Vec<LbaFormat>> {
        bytes
            .chunks_exact(LBA_FORMAT_BYTES)
            .map(LbaFormat::take_fields)
            .collect()
    }
}

const _: () = assert!(LBA_FORMATS_MAX * LBA_FORMAT_BYTES == 384 - 128);

impl IdentifyNamespace {
    /// The page. An empty list of formats is sent as one format of zeros, as 0 is 0's based.
    #[must_use]
    pub fn encode(&self) -> Box<[u8; IDENTIFY_BYTES]> {
        let mut page = Box::new([0; IDENTIFY_BYTES]);
        self.put_fields(&mut page[..]);
        let formats = self.lbaf.len().clamp(1, LBA_FORMATS_MAX);
        page[NLBAF] = u8::try_from(formats - 1).unwrap_or(0);
        page
    }

    /// Reads a page; `None` if it is shorter than 4096 bytes or claims more than 64 formats.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let page = bytes.get(..IDENTIFY_BYTES)?;
        let formats = usize::from(page[NLBAF]) + 1;
        if formats > LBA_FORMATS_MAX {
            return None;
        }
        let mut namespace = Self::take_fields(page)?;
        namespace.lbaf.truncate(formats);
        Some(namespace)
    }

    /// The format in use; `None` if `flbas` points behind the list.
    #[must_use]
    pub fn lba_format(&self) -> Option<LbaFormat> {
        // Bits 6:5 count only with more than 16 formats.
        let high = if self.lbaf.len() > 16 {
            (self.flbas >> 5) & 0x3
        } else {
            0
        };
        self.lbaf
            .get(usize::from(high << 4 | self.flbas & 0xf))
            .copied()
    }

    /// Bytes of a block; `None` if there is no such format, or its size is below 512 bytes (which
    /// the specification excludes) or above 2^31.
    #[must_use]
    pub fn lba_bytes(&self) -> Option<u32> {
        match self.lba_format()?.lbads {
            shift @ 9..=31 => Some(1 << shift),
            _ => None,
        }
    }
}

layout! {
    /// I/O Command Set Independent Identify Namespace, CNS 08h (Base 2.0 figure 280).
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct IdentifyIndependentNamespace [IDENTIFY_BYTES] {
        /// Features that all command sets share; bit 4 rotational media.
        0..1 => nsfeat: u8,
        /// Sharing: bit 0 says that several controllers may attach it.
        1..2 => nmic: u8,
        /// Reservation capabilities.
        2..3 => rescap: u8,
        /// Format progress.
        3..4 => fpi: u8,
        /// ANA group; 0 is none.
        4..8 => anagrpid: u32,
        /// Attributes: bit 0 write protected.
        8..9 => nsattr: u8,
        /// NVM set; 0 is none.
        10..12 => nvmsetid: u16,
        /// Endurance group; 0 is none.
        12..14 => endgid: u16,
        /// Status: bit 0 ready. Linux leaves out a namespace that is not.
        14..15 => nstat: u8,
    }
}

impl IdentifyIndependentNamespace {
    /// The page.
    #[must_use]
    pub fn encode(&self) -> Box<[u8; IDENTIFY_BYTES]> {
        let mut page = Box::new([0; IDENTIFY_BYTES]);
        self.put_fields(&mut page[..]);
        page
    }

    /// Reads a page; `None` if it is shorter than 4096 bytes.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        Self::take_fields(bytes.get(..IDENTIFY_BYTES)?)
    }
}

layout! {
    /// Identify Namespace for the NVM command set, CNS 05h with CSI 0 (NVM Command Set 1.0,
    /// section 4.1.5).
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct IdentifyNvmNamespace [IDENTIFY_BYTES] {
        /// Storage tag mask.
        0..8 => lbstm: u64,
        /// Protection information capabilities beyond `dpc`.
        8..9 => pic: u8,
        /// For each LBA format, the storage tag's bits in 6:0 and the protection format in 8:7.
        12..268 => elbaf: [u32; LBA_FORMATS_MAX],
    }
}

impl Default for IdentifyNvmNamespace {
    fn default() -> Self {
        Self {
            lbstm: 0,
            pic: 0,
            elbaf: [0; LBA_FORMATS_MAX],
        }
    }
}

impl IdentifyNvmNamespace {
    /// The page.
    #[must_use]
    pub fn encode(&self) -> Box<[u8; IDENTIFY_BYTES]> {
        let mut page = Box::new([0; IDENTIFY_BYTES]);
        self.put_fields(&mut page[..]);
        page
    }

    /// Reads a page; `None` if it is shorter than 4096 bytes.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        Self::take_fields(bytes.get(..IDENTIFY_BYTES)?)
    }
}

/// Bytes in front of each identifier: NIDT, NIDL and two that are reserved.
const DESCRIPTOR_HEADER_BYTES: usize = 4;

/// An identifier of a namespace, CNS 03h (Base 2.0 figure 277). Linux refuses a length other than the
/// one each type has, and ignores a namespace of which another one has an equal identifier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NamespaceDescriptor {
    /// Type 1: IEEE extended unique identifier, most significant byte first.
    Eui64([u8; 8]),
    /// Type 2: globally unique identifier, most significant byte first.
    Nguid([u8; 16]),
    /// Type 3: UUID in the byte order of RFC 4122.
    Uuid([u8; 16]),
    /// Type 4: the command set; mandatory if the host enabled all of them by CC.CSS.
    Csi(u8),
}

impl NamespaceDescriptor {
    /// Type and bytes of the identifier.
    fn parts(&self) -> (u8, &[u8]) {
        match self {
            Self::Eui64(id) => (1, id),
            Self::Nguid(id) => (2, id),
            Self::Uuid(id) => (3, id),
            Self::Csi(csi) => (4, std::slice::from_ref(csi)),
        }
    }
}

/// Writes descriptors one after the other, then zeros; the ones that no longer fit are left out.
#[must_use]
pub fn encode_descriptor_list(descriptors: &[NamespaceDescriptor]) -> Box<[u8; IDENTIFY_BYTES]> {
    let mut page = Box::new([0; IDENTIFY_BYTES]);
    let mut rest = &mut page[..];
    for descriptor in descriptors {
        let (kind, id) = descriptor.parts();
        let Some((slot, behind)) = rest.split_at_mut_checked(DESCRIPTOR_HEADER_BYTES + id.len())
        else {
            break;
        };
        slot[0] = kind;
        slot[1] = u8::try_from(id.len()).unwrap_or(0);
        slot[DESCRIPTOR_HEADER_BYTES..].copy_from_slice(id);
        rest = behind;
    }
    page
}

/// Reads descriptors up to the first of length 0, leaving out types that are not known here.
///
/// `None` if the page is shorter than 4096 bytes, a known type has a wrong length, or a descriptor
/// reaches over the end.
#[must_use]
pub fn decode_descriptor_list(bytes: &[u8]) -> Option<Vec<NamespaceDescriptor>> {
    let mut rest = bytes.get(..IDENTIFY_BYTES)?;
    let mut descriptors = Vec::new();
    while let Some((header, behind)) = rest.split_at_checked(DESCRIPTOR_HEADER_BYTES) {
        let (kind, length) = (header[0], usize::from(header[1]));
        if length == 0 {
            break;
        }
        let (id, behind) = behind.split_at_checked(length)?;
        match kind {
            1 => descriptors.push(NamespaceDescriptor::Eui64(id.try_into().ok()?)),
            2 => descriptors.push(NamespaceDescriptor::Nguid(id.try_into().ok()?)),
            3 => descriptors.push(NamespaceDescriptor::Uuid(id.try_into().ok()?)),
            4 => descriptors.push(NamespaceDescriptor::Csi(
                *<&[u8; 1]>::try_from(id).ok()?.first()?,
            )),
            _ => {}
        }
        rest = behind;
    }
    Some(descriptors)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn four_kib() -> IdentifyNamespace {
        IdentifyNamespace {
            nsze: 0x0102,
            ncap: 0x0102,
            dlfeat: 9,
            anagrpid: 1,
            nguid: [0xaa; 16],
            lbaf: vec![LbaFormat {
                ms: 0,
                lbads: 12,
                rp: 0,
            }],
            ..Default::default()
        }
    }

    #[test]
    fn the_upper_bits_of_the_format_in_use_count_with_more_than_16_formats() {
        let format = |lbads| LbaFormat {
            ms: 0,
            lbads,
            rp: 0,
        };
        // Format 10h: bits 3:0 are 0, bits 6:5 are 1.
        let mut namespace = IdentifyNamespace {
            flbas: 1 << 5,
            lbaf: (0..17).map(format).collect(),
            ..four_kib()
        };
        assert_eq!(namespace.lba_format(), Some(format(16)));
        namespace.lbaf.truncate(16);
        assert_eq!(namespace.lba_format(), Some(format(0)));
    }

    #[test]
    fn fields_stand_where_linux_reads_them() {
        let page = four_kib().encode();
        assert_eq!(page[..2], [2, 1]);
        assert_eq!(page[8..10], [2, 1]);
        assert_eq!(page[25..27], [0, 0]);
        assert_eq!(page[33], 9);
        assert_eq!(page[92], 1);
        assert_eq!(page[104..120], [0xaa; 16]);
        assert_eq!(page[128..132], [0, 0, 12, 0]);
        let namespace = IdentifyIndependentNamespace {
            nstat: 1,
            nmic: 1,
            ..Default::default()
        };
        let page = namespace.encode();
        assert_eq!(page[..16], [0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0]);
        assert_eq!(
            IdentifyIndependentNamespace::decode(&page[..]),
            Some(namespace)
        );
        let mut namespace = IdentifyNvmNamespace::default();
        namespace.elbaf[63] = 0x0102_0304;
        let page = namespace.encode();
        assert_eq!(page[264..268], [4, 3, 2, 1]);
        assert_eq!(IdentifyNvmNamespace::decode(&page[..]), Some(namespace));
    }

    #[test]
    fn the_size_of_a_block_comes_from_the_format_in_use() {
        let mut namespace = four_kib();
        assert_eq!(namespace.lba_bytes(), Some(4096));
        namespace.flbas = 1;
        assert_eq!(namespace.lba_bytes(), None);
        namespace.lbaf.push(LbaFormat {
            ms: 8,
            lbads: 9,
            rp: 0,
        });
        assert_eq!(namespace.lba_bytes(), Some(512));
        for lbads in [0, 8, 32, 255] {
            namespace.lbaf[1].lbads = lbads;
            assert_eq!(namespace.lba_bytes(), None);
        }
        namespace.lbaf.resize(
            33,
            LbaFormat {
                ms: 0,
                lbads: 16,
                rp: 0,
            },
        );
        namespace.flbas = 0x40;
        assert_eq!(namespace.lba_bytes(), Some(65536));
    }

    #[test]
    fn more_formats_than_there_is_room_for_are_refused() {
        let mut page = four_kib().encode();
        page[25] = 63;
        assert_eq!(
            IdentifyNamespace::decode(&page[..]).map(|ns| ns.lbaf.len()),
            Some(64)
        );
        page[25] = 64;
        assert_eq!(IdentifyNamespace::decode(&page[..]), None);
    }

    #[test]
    fn descriptors_have_the_lengths_that_linux_demands() {
        let list = [
            NamespaceDescriptor::Eui64([1; 8]),
            NamespaceDescriptor::Nguid([2; 16]),
            NamespaceDescriptor::Uuid([3; 16]),
            NamespaceDescriptor::Csi(0),
        ];
        let page = encode_descriptor_list(&list);
        assert_eq!(page[..4], [1, 8, 0, 0]);
        assert_eq!(page[12..16], [2, 16, 0, 0]);
        assert_eq!(page[32..36], [3, 16, 0, 0]);
        assert_eq!(page[52..58], [4, 1, 0, 0, 0, 0]);
        assert_eq!(decode_descriptor_list(&page[..]), Some(list.to_vec()));
    }

    #[test]
    fn descriptors_of_wrong_length_are_refused_and_unknown_ones_skipped() {
        let mut page = [0; IDENTIFY_BYTES];
        page[..2].copy_from_slice(&[1, 7]);
        assert_eq!(decode_descriptor_list(&page), None);
        page[..2].copy_from_slice(&[9, 7]);
        page[11..16].copy_from_slice(&[4, 1, 0, 0, 2]);
        assert_eq!(
            decode_descriptor_list(&page),
            Some(vec![NamespaceDescriptor::Csi(2)])
        );
        // Unknown ones up to the end, the last of which reaches over it.
        for slot in page.chunks_exact_mut(128) {
            slot[..2].copy_from_slice(&[9, 124]);
        }
        assert_eq!(decode_descriptor_list(&page), Some(vec![]));
        page[IDENTIFY_BYTES - 127] = 125;
        assert_eq!(decode_descriptor_list(&page), None);
    }

    #[test]
    fn descriptors_that_do_not_fit_are_left_out() {
        let list = vec![NamespaceDescriptor::Uuid([3; 16]); 300];
        let decoded = decode_descriptor_list(&encode_descriptor_list(&list)[..]).unwrap();
        assert_eq!(decoded.len(), IDENTIFY_BYTES / 20);
    }

    proptest! {
        #[test]
        fn decoded_pages_encode_to_what_they_were(
            mut bytes in prop::collection::vec(any::<u8>(), IDENTIFY_BYTES),
            formats in 0..64_u8,
        ) {
            bytes[NLBAF] = formats;
            let namespace = IdentifyNamespace::decode(&bytes).unwrap();
            let page = namespace.encode();
            prop_assert_eq!(&page[..81], &bytes[..81]);
            prop_assert_eq!(&page[99..132], &bytes[99..132]);
            prop_assert_eq!(IdentifyNamespace::decode(&page[..]), Some(namespace));
        }
    }
}
