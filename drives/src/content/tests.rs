use std::process::Command;

use super::*;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// A sparse file of `bytes` bytes with these bytes at these places.
fn image(bytes: u64, parts: &[(u64, &[u8])]) -> File {
    let file = tempfile::tempfile().expect("a file");
    file.set_len(bytes).expect("its size");
    for (at, part) in parts {
        file.write_all_at(part, *at).expect("written");
    }
    file
}

/// What an image made by hand is, and how it is made: bytes in all, where the magic is, the magic. The places
/// are those of the formats' own documents, written down here once more and not taken from the table.
const BY_HAND: &[(&str, u64, u64, &[u8])] = &[
    ("Onefold", 64 * MIB, 0, b"ONEFOLD\n"),
    ("btrfs", 512 * MIB, 65_600, b"_BHRfS_M"),
    ("btrfs", 512 * MIB, 67_108_928, b"_BHRfS_M"),
    ("btrfs", 300 * GIB, 274_877_907_008, b"_BHRfS_M"),
    ("ext2", 64 * MIB, 1080, b"\x53\xef"),
    ("XFS", 64 * MIB, 0, b"XFSB"),
    (
        "bcachefs",
        64 * MIB,
        4120,
        &[
            0xc6, 0x85, 0x73, 0xf6, 0x66, 0xce, 0x90, 0xa9, 0xd9, 0x6a, 0x60, 0xcf, 0x80, 0x3d,
            0xf7, 0xef,
        ],
    ),
    (
        "bcache",
        64 * MIB,
        4120,
        &[
            0xc6, 0x85, 0x73, 0xf6, 0x4e, 0x1a, 0x45, 0xca, 0x82, 0x65, 0xf5, 0x7f, 0x48, 0xba,
            0x6d, 0x81,
        ],
    ),
    ("f2fs", 64 * MIB, 1024, &[0x10, 0x20, 0xf5, 0xf2]),
    ("NTFS", 64 * MIB, 3, b"NTFS    "),
    ("NTFS", 64 * MIB, 64 * MIB - 512 + 3, b"NTFS    "),
    ("exFAT", 64 * MIB, 3, b"EXFAT   "),
    ("FAT", 64 * MIB, 82, b"FAT32   "),
    ("FAT", 64 * MIB, 54, b"FAT16   "),
    ("ISO 9660", 64 * MIB, 32_769, b"CD001"),
    ("UDF", 64 * MIB, 32_769, b"BEA01"),
    ("squashfs", 64 * MIB, 0, b"hsqs"),
    ("JFS", 64 * MIB, 32_768, b"JFS1"),
    ("GFS2", 64 * MIB, 65_536, &[1, 0x16, 0x19, 0x70, 0, 0, 0, 1]),
    ("HFS+", 64 * MIB, 1024, b"H+\0\x04"),
    ("APFS", 64 * MIB, 32, b"NXSB"),
    ("LVM", 64 * MIB, 536, b"LVM2 001"),
    ("LVM", 64 * MIB, 24, b"LVM2 001"),
    ("md", 64 * MIB, 0, &[0xfc, 0x4e, 0x2b, 0xa9]),
    ("md", 64 * MIB, 4096, &[0xfc, 0x4e, 0x2b, 0xa9]),
    // Version 1.0: 8 KiB before the end, on a border of 4 KiB.
    (
        "md",
        64 * MIB + 1536,
        64 * MIB - 8192,
        &[0xfc, 0x4e, 0x2b, 0xa9],
    ),
    // Version 0.90: the last whole 64 KiB but what is behind them.
    (
        "md",
        64 * MIB + 1536,
        64 * MIB - 65_536,
        &[0xfc, 0x4e, 0x2b, 0xa9],
    ),
    (
        "IMSM",
        64 * MIB,
        64 * MIB - 1024,
        b"Intel Raid ISM Cfg Sig. 1.3.00",
    ),
    ("DDF", 64 * MIB, 64 * MIB - 512, &[0xde, 0x11, 0xde, 0x11]),
    ("LUKS", 64 * MIB, 0, b"LUKS\xba\xbe\0\x02"),
    ("LUKS2", 64 * MIB, 16_384, b"SKUL\xba\xbe\0\x02"),
    ("LUKS2", 64 * MIB, 4_194_304, b"SKUL\xba\xbe\0\x02"),
    ("BitLocker", 64 * MIB, 3, b"-FVE-FS-"),
    ("BlueStore", 64 * MIB, 0, b"bluestore block device\n"),
    ("BlueStore", 2 * GIB, GIB, b"bluestore block device\n"),
    ("VDO", 64 * MIB, 0, b"dmvdo001"),
    ("Stratis", 64 * MIB, 516, b"!Stra0tis\x86\xff\x02^\x41rh"),
    ("dm-integrity", 64 * MIB, 0, b"integrt\0"),
    ("swap", 64 * MIB, 4086, b"SWAPSPACE2"),
    ("swap", 64 * MIB, 65_526, b"SWAPSPACE2"),
    ("hibernated", 64 * MIB, 4086, b"S1SUSPEND"),
    ("ZFS", 64 * MIB, 131_072, &[0x0c, 0xb1, 0xba, 0, 0, 0, 0, 0]),
    (
        "ZFS",
        64 * MIB,
        262_144 + 131_072 + 3072,
        &[0, 0, 0, 0, 0, 0xba, 0xb1, 0x0c],
    ),
    // The last labels, of a drive whose size is no multiple of theirs.
    (
        "ZFS",
        64 * MIB + 4096,
        64 * MIB - 262_144 + 131_072,
        &[0x0c, 0xb1, 0xba, 0, 0, 0, 0, 0],
    ),
    (
        "ZFS",
        64 * MIB + 4096,
        64 * MIB - 524_288 + 131_072,
        &[0x0c, 0xb1, 0xba, 0, 0, 0, 0, 0],
    ),
    ("GPT", 64 * MIB, 512, b"EFI PART"),
    ("GPT", 64 * MIB, 4096, b"EFI PART"),
    ("backup of a GPT", 64 * MIB, 64 * MIB - 512, b"EFI PART"),
    ("backup of a GPT", 64 * MIB, 64 * MIB - 4096, b"EFI PART"),
    (
        "partition table or a boot sector",
        64 * MIB,
        510,
        b"\x55\xaa",
    ),
    ("qcow2", 64 * MIB, 0, b"QFI\xfb"),
];

#[test]
fn each_known_format_is_named_with_its_place_without_help_of_the_system() {
    for (name, bytes, at, magic) in BY_HAND {
        let file = image(*bytes, &[(*at, magic)]);
        let found = signature(&file, *bytes).expect("readable");
        let found = found.unwrap_or_else(|| panic!("{name} at {at} is not known"));
        assert!(
            found.what.contains(name),
            "{name} at {at} is called {found}"
        );
        assert_eq!(found.at, Some(*at), "{name}");
        let found = look(&file, *bytes).expect("readable").expect("not blank");
        assert!(
            found.what.contains(name),
            "{name} at {at} is called {found}"
        );
    }
}

#[test]
fn no_entry_of_the_table_is_left_out_of_the_images() {
    for signature in SIGNATURES {
        let is_made = BY_HAND
            .iter()
            .any(|(_, _, _, magic)| magic.starts_with(signature.magic));
        let others = ["dm-verity", "ASM", "EROFS", "ReiserFS", "VHDX", "VMDK"];
        let is_simple = others.iter().any(|other| signature.what.contains(other));
        assert!(is_made || is_simple, "{}", signature.what);
    }
}

#[test]
fn what_nobody_recognises_and_is_not_zero_is_found() {
    let bytes = GIB + 512;
    // Of a sparse file all is read that it holds.
    for at in [
        0,
        4095,
        9000,
        MIB,
        77 * MIB + 5,
        500 * MIB - 1,
        GIB - 1,
        GIB,
        bytes - 1,
    ] {
        let found = look(&image(bytes, &[(at, b"x")]), bytes);
        let found = found.expect("readable").expect("not blank");
        assert_eq!(found.at, Some(at), "{found}");
        assert!(found.what.contains("not known"), "{found}");
    }
}

#[test]
fn a_drive_without_holes_is_looked_at_in_places_and_samples() {
    // The last samples are behind what is read from the start on.
    let bytes = GIB;
    let sample = bytes / (SAMPLES + 1) * SAMPLES;
    assert!(sample > DATA_BYTES_MAX);
    assert_eq!(
        written(&image(bytes, &[(sample, b"x")]), bytes).expect("readable"),
        Some(sample)
    );
}

#[test]
fn blank_files_are_blank_whether_sparse_or_written_with_zeros() {
    for bytes in [4096, 64 << 10, MIB, 64 * MIB, 64 * MIB + 512] {
        assert_eq!(look(&image(bytes, &[]), bytes).expect("readable"), None);
        let zeros = vec![0; bytes.min(3 * MIB) as usize];
        let file = image(bytes, &[(0, &zeros)]);
        assert_eq!(look(&file, bytes).expect("readable"), None, "{bytes} bytes");
    }
}

#[test]
fn what_was_wiped_is_recognised_by_nobody() {
    for (name, bytes, at, magic) in BY_HAND {
        let file = image(*bytes, &[(*at, magic)]);
        wipe(&file, *bytes).expect("writable");
        assert_eq!(
            look(&file, *bytes).expect("readable"),
            None,
            "{name} at {at}"
        );
    }
}

/// Images made by the tools of the system; those that are not installed are named by the last assertion.
#[test]
fn what_real_tools_make_is_called_by_the_same_name_as_by_the_system() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("image");
    let made: &[(&str, &str, &str)] = &[
        ("btrfs", "btrfs", "mkfs.btrfs -q IMAGE"),
        ("ext2", "ext4", "mkfs.ext4 -q -F IMAGE"),
        ("XFS", "xfs", "mkfs.xfs -q IMAGE"),
        ("swap", "swap", "mkswap -q IMAGE"),
        ("GPT", "gpt", "echo 'label: gpt' | sfdisk -q IMAGE"),
        (
            "partition table",
            "dos",
            "echo 'label: dos' | sfdisk -q IMAGE",
        ),
        ("FAT", "vfat", "mkfs.vfat IMAGE"),
        (
            "LUKS",
            "crypto_LUKS",
            "echo x | cryptsetup luksFormat -q --pbkdf pbkdf2 --pbkdf-force-iterations 1000 IMAGE -",
        ),
    ];
    for (ours, systems, command) in made {
        let bytes = 512 * MIB;
        let _ = std::fs::remove_file(&path);
        let file = File::create_new(&path).expect("made");
        file.set_len(bytes).expect("its size");
        drop(file);
        let command = command.replace("IMAGE", &path.display().to_string());
        let ran = Command::new("sh")
            .args(["-c", &command])
            .output()
            .expect("a shell");
        let said = String::from_utf8_lossy(&ran.stderr);
        assert!(
            ran.status.success(),
            "`{command}` (./test.sh installs it): {said}"
        );
        let file = File::open(&path).expect("made");
        let found = look(&file, bytes).expect("readable").expect("not blank");
        assert!(found.what.contains(ours), "{command}: {found}");
        assert!(
            found.what.contains(&format!("`{systems}`")),
            "{command}: {found}"
        );
        let found = signature(&file, bytes).expect("readable");
        let found = found.expect("known without the system's help");
        assert!(found.what.contains(ours), "{command}: {found}");
    }
}

#[test]
fn md_members_are_recognised_by_the_system_as_well() {
    // A superblock of version 1.2 as md(4) lays it out, with its checksum: the sum of 32-bit words, folded.
    let mut block = vec![0u8; 256];
    block[..4].copy_from_slice(&0xa92b_4efc_u32.to_le_bytes());
    block[4..8].copy_from_slice(&1u32.to_le_bytes());
    block[16..32].fill(7);
    // Where the superblock is, in sectors.
    block[144..152].copy_from_slice(&8u64.to_le_bytes());
    let words = block
        .chunks(4)
        .map(|word| u64::from(u32::from_le_bytes(*word.first_chunk().expect("four bytes"))));
    let sum: u64 = words.sum();
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    block[216..220].copy_from_slice(&(sum as u32).to_le_bytes());
    let file = image(64 * MIB, &[(4096, &block)]);
    let found = look(&file, 64 * MIB).expect("readable").expect("not blank");
    assert!(found.what.contains("`linux_raid_member`"), "{found}");
    assert!(found.what.contains("software RAID"), "{found}");
}
