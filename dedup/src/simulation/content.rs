//! Sectors whose bytes follow from a number, and the number from the bytes.

use super::model::{Content, SECTORS};

/// Bytes of a sector.
pub(super) const SECTOR: usize = 512;

/// Writes the bytes of sector content `number`; zero = zeros. Some contents are noise, some compress well
/// and some a little: that follows from the number, too.
pub(super) fn fill(sector: &mut [u8], number: u32) {
    let is_noise = match number / SECTORS as u32 % 3 {
        0 => number != 0,
        1 => false,
        _ => number.is_multiple_of(4),
    };
    let mut word = u64::from(number);
    for chunk in sector.chunks_exact_mut(8) {
        chunk.copy_from_slice(&word.to_le_bytes());
        if is_noise {
            word = word
                .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                .wrapping_add(u64::from(number))
                | 1;
        }
    }
}

/// The number of a sector's content; `None` for bytes that nobody ever wrote.
pub(super) fn number(sector: &[u8]) -> Option<u32> {
    let word = u64::from_le_bytes(sector[..8].try_into().unwrap());
    let number = u32::try_from(word).ok()?;
    let mut wanted = [0; SECTOR];
    fill(&mut wanted, number);
    (sector == wanted).then_some(number)
}

/// The content of a sub-block.
pub(super) fn content(bytes: &[u8]) -> Option<Content> {
    let mut content = [0; SECTORS];
    for (at, sector) in bytes.chunks_exact(SECTOR).enumerate() {
        content[at] = number(sector)?;
    }
    Some(content)
}

#[test]
fn a_sector_tells_its_number_and_any_mixture_tells_none() {
    let mut sector = [0; SECTOR];
    for wanted in [0, 1, 77, u32::MAX] {
        fill(&mut sector, wanted);
        assert_eq!(number(&sector), Some(wanted));
        sector[300] ^= 1;
        assert_eq!(number(&sector), None);
    }
}
