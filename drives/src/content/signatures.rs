//! What begins or ends like something that is in use: magic bytes of file systems, RAID members, volume
//! managers, partition tables and images, at the places where each keeps them.
//!
//! Sources: libblkid's `superblocks/` and `partitions/` (util-linux), and what is named at an entry. The
//! table only gives names: what it does not know is refused as well if it is not zero.

use super::Spot;

/// Magic bytes, and where they are.
pub(super) struct Signature {
    /// What it is, as in "holds ...".
    pub(super) what: &'static str,
    /// All places where it may be.
    pub(super) spots: &'static [Spot],
    pub(super) magic: &'static [u8],
}

const fn at(what: &'static str, spots: &'static [Spot], magic: &'static [u8]) -> Signature {
    Signature { what, spots, magic }
}

use Spot::{FromEnd, Md0, Md1, Start};

/// More telling ones first: of several that match, the first one is named.
pub(super) const SIGNATURES: &[Signature] = &[
    at("an Onefold drive", &[Start(0), Start(4096)], b"ONEFOLD\n"),
    at("a LUKS container", &[Start(0)], b"LUKS\xba\xbe"),
    // The second header of LUKS2 follows the first one's JSON area, whose size varies.
    at(
        "a LUKS2 container (its second header)",
        &[
            Start(0x4000),
            Start(0x8000),
            Start(0x1_0000),
            Start(0x2_0000),
            Start(0x4_0000),
            Start(0x8_0000),
            Start(0x10_0000),
            Start(0x20_0000),
            Start(0x40_0000),
        ],
        b"SKUL\xba\xbe",
    ),
    at("a BitLocker volume", &[Start(3)], b"-FVE-FS-"),
    // The sector of the label may be any of the first four.
    at(
        "an LVM physical volume",
        &[Start(24), Start(536), Start(1048), Start(1560)],
        b"LVM2 001",
    ),
    // Version 1.1 and 1.2 at the start, 1.0 and 0.90 at the end (md(4)).
    at(
        "a member of a Linux software RAID (md)",
        &[Start(0), Start(4096), Md1, Md0],
        &0xa92b_4efc_u32.to_le_bytes(),
    ),
    at(
        "a member of an Intel RAID (IMSM)",
        &[FromEnd(1024)],
        b"Intel Raid ISM Cfg Sig. ",
    ),
    at(
        "a member of a DDF RAID",
        &[FromEnd(512)],
        &0xde11_de11_u32.to_be_bytes(),
    ),
    at(
        "a Ceph BlueStore device",
        &[Start(0), Start(1 << 30), Start(10 << 30), Start(100 << 30)],
        b"bluestore block device",
    ),
    at("a VDO device", &[Start(0)], b"dmvdo001"),
    at(
        "a Stratis pool's device",
        &[Start(516)],
        b"!Stra0tis\x86\xff\x02^\x41rh",
    ),
    at("a dm-integrity device", &[Start(0)], b"integrt\0"),
    at("a dm-verity device", &[Start(0)], b"verity\0\0"),
    at(
        "a bcachefs file system",
        &[Start(4096 + 24)],
        b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef",
    ),
    at(
        "a bcache device",
        &[Start(4096 + 24)],
        b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81",
    ),
    at(
        "a btrfs file system",
        &[
            Start((64 << 10) + 64),
            Start((64 << 20) + 64),
            Start((256 << 30) + 64),
        ],
        b"_BHRfS_M",
    ),
    at("an XFS file system", &[Start(0)], b"XFSB"),
    at("an APFS container", &[Start(32)], b"NXSB"),
    at("an Oracle ASM disk", &[Start(32)], b"ORCLDISK"),
    at(
        "an NTFS file system",
        &[Start(3), FromEnd(509)],
        b"NTFS    ",
    ),
    at("an exFAT file system", &[Start(3)], b"EXFAT   "),
    at("a FAT file system", &[Start(82)], b"FAT32   "),
    at("a FAT file system", &[Start(54)], b"FAT1"),
    at(
        "an f2fs file system",
        &[Start(1024)],
        &0xf2f5_2010_u32.to_le_bytes(),
    ),
    at(
        "an EROFS image",
        &[Start(1024)],
        &0xe0f5_e1e2_u32.to_le_bytes(),
    ),
    at("a squashfs image", &[Start(0)], b"hsqs"),
    at("an HFS+ file system", &[Start(1024)], b"H+\0\x04"),
    at("a JFS file system", &[Start(32 << 10)], b"JFS1"),
    at(
        "a ReiserFS file system",
        &[Start((64 << 10) + 52)],
        b"ReIsEr",
    ),
    at(
        "a GFS2 file system",
        &[Start(64 << 10)],
        b"\x01\x16\x19\x70\0\0\0\x01",
    ),
    at("an ISO 9660 image", &[Start((32 << 10) + 1)], b"CD001"),
    at("a UDF file system", &[Start((32 << 10) + 1)], b"BEA01"),
    // At the end of a page; pages of 4 to 64 KiB.
    at(
        "swap space",
        &[
            Start(4086),
            Start(8182),
            Start(16_374),
            Start(32_758),
            Start(65_526),
        ],
        b"SWAPSPACE2",
    ),
    at(
        "swap space with a hibernated system",
        &[
            Start(4086),
            Start(8182),
            Start(16_374),
            Start(32_758),
            Start(65_526),
        ],
        b"S1SUSPEND",
    ),
    at("a qcow2 image", &[Start(0)], b"QFI\xfb"),
    at("a VHDX image", &[Start(0)], b"vhdxfile"),
    at("a VMDK image", &[Start(0)], b"KDMV"),
    // Logical blocks of 512 and 4096 bytes.
    at(
        "a GPT partition table",
        &[Start(512), Start(4096)],
        b"EFI PART",
    ),
    at(
        "the backup of a GPT partition table",
        &[FromEnd(512), FromEnd(4096)],
        b"EFI PART",
    ),
    // Two bytes only: after all others.
    at(
        "an ext2, ext3 or ext4 file system",
        &[Start(1024 + 56)],
        &0xef53_u16.to_le_bytes(),
    ),
    at(
        "a partition table or a boot sector",
        &[Start(510)],
        b"\x55\xaa",
    ),
];

/// Magic of a ZFS uberblock. Each of the four labels has an array of them, 1 KiB or more each.
pub(super) const ZFS_UBERBLOCK: u64 = 0x00ba_b10c;
/// Bytes of a ZFS label; its uberblocks are in the second half.
pub(super) const ZFS_LABEL_BYTES: u64 = 256 << 10;
