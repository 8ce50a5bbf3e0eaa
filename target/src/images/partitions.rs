//! Which blocks an image's partition table was made for.
//!
//! A table counts in the blocks of the disk that it was made on. On a disk with other blocks its partitions are not where
//! it says, and nothing boots.

/// The bytes of an MBR's signature, and of its four entries.
const SIGNATURE_AT: usize = 510;
const ENTRIES_AT: usize = 446;
const ENTRY_BYTES: usize = 16;
/// The type of the one partition of a protective MBR (UEFI 2.10, section 5.2.3).
const PROTECTIVE: u8 = 0xee;

/// A partition table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Partitions {
    /// A GPT for blocks of so many bytes.
    Gpt(u32),
    /// An MBR, which is made for blocks of 512 bytes.
    Mbr,
    /// There is none.
    None,
}

impl Partitions {
    /// What the first bytes of an image have.
    pub(crate) fn of(head: &[u8]) -> Self {
        // The header is in the second block (UEFI 2.10, section 5.3.2).
        for lba_bytes in [512, 4096] {
            if head.get(lba_bytes..lba_bytes + 8) == Some(b"EFI PART") {
                return Self::Gpt(lba_bytes as u32);
            }
        }
        match is_mbr(head) {
            true => Self::Mbr,
            false => Self::None,
        }
    }

    /// The bytes of the blocks that it was made for.
    pub(crate) const fn lba_bytes(self) -> Option<u32> {
        match self {
            Self::Gpt(bytes) => Some(bytes),
            Self::Mbr => Some(512),
            Self::None => None,
        }
    }
}

impl std::fmt::Display for Partitions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Gpt(bytes) => write!(f, "a GPT made for {bytes}-byte blocks"),
            Self::Mbr => f.write_str("an MBR made for 512-byte blocks"),
            Self::None => f.write_str("no partition table"),
        }
    }
}

/// Whether the first block is an MBR that has a partition. Boot sectors of file systems have its signature too.
fn is_mbr(head: &[u8]) -> bool {
    if head.get(SIGNATURE_AT..SIGNATURE_AT + 2) != Some(&[0x55, 0xaa]) {
        return false;
    }
    let entries = head[ENTRIES_AT..SIGNATURE_AT].chunks_exact(ENTRY_BYTES);
    let mut has_partition = false;
    for entry in entries {
        let is_used = entry[4] != 0 && entry[4] != PROTECTIVE;
        // Whether it is booted from is all that the first byte says.
        if !matches!(entry[0], 0 | 0x80) {
            return false;
        }
        has_partition |= is_used && entry[12..16] != [0; 4];
    }
    has_partition
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An MBR with one partition of that type.
    fn mbr(kind: u8) -> Vec<u8> {
        let mut head = vec![0; 8192];
        head[ENTRIES_AT] = 0x80;
        head[ENTRIES_AT + 4] = kind;
        head[ENTRIES_AT + 12] = 1;
        head[SIGNATURE_AT..SIGNATURE_AT + 2].copy_from_slice(&[0x55, 0xaa]);
        head
    }

    #[test]
    fn the_place_of_a_gpt_tells_which_blocks_it_was_made_for() {
        for (lba_bytes, at) in [(512, 512), (4096, 4096)] {
            let mut head = mbr(PROTECTIVE);
            head[at..at + 8].copy_from_slice(b"EFI PART");
            assert_eq!(Partitions::of(&head), Partitions::Gpt(lba_bytes));
            assert_eq!(Partitions::of(&head).lba_bytes(), Some(lba_bytes));
        }
    }

    #[test]
    fn an_mbr_has_a_partition_and_a_file_system_has_none() {
        assert_eq!(Partitions::of(&mbr(0x83)), Partitions::Mbr);
        // Its GPT is gone.
        assert_eq!(Partitions::of(&mbr(PROTECTIVE)), Partitions::None);
        let mut boot_sector = mbr(0x83);
        boot_sector[ENTRIES_AT + ENTRY_BYTES] = b'N';
        assert_eq!(Partitions::of(&boot_sector), Partitions::None);
        for len in [0, 100, 511, 512, 600, 4096] {
            assert_eq!(Partitions::of(&vec![0; len]), Partitions::None);
            Partitions::of(&mbr(0x83)[..len]);
        }
        assert_eq!(Partitions::of(&mbr(0x83)[..512]), Partitions::Mbr);
    }
}
