//! Which bytes of a part are worth sending.

use std::ops::Range;

use super::GRAIN;

/// Zeros between data that are sent with it: a request costs more than these.
const GAP_BYTES_MAX: usize = 64 << 10;

/// The ranges of a part that have all its bytes that are not zero: in order, apart from each other, whole blocks of
/// [`GRAIN`] bytes but for the part's end.
pub(crate) fn data_ranges(part: &[u8]) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    let mut at = 0;
    for block in part.chunks(GRAIN as usize) {
        let end = at + block.len();
        if !is_zero(block) {
            match ranges.last_mut() {
                Some(last) if at - last.end <= GAP_BYTES_MAX => last.end = end,
                _ => ranges.push(at..end),
            }
        }
        at = end;
    }
    ranges
}

/// Whether all bytes are zero; sixteen at a time, so that a page costs some tens of nanoseconds.
pub(crate) fn is_zero(bytes: &[u8]) -> bool {
    let (words, rest) = bytes.as_chunks::<16>();
    let is_set = |word: &[u8; 16]| u128::from_ne_bytes(*word) != 0;
    !words.iter().any(is_set) && rest.iter().all(|byte| *byte == 0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A part, from what its blocks hold.
    fn part(blocks: &[bool], tail: usize) -> Vec<u8> {
        let block = |(at, is_set): (usize, &bool)| {
            let mut block = vec![0; GRAIN as usize];
            if *is_set {
                block[at * 37 % GRAIN as usize] = 1;
            }
            block
        };
        let mut part: Vec<u8> = blocks.iter().enumerate().flat_map(block).collect();
        part.truncate(part.len().saturating_sub(tail));
        part
    }

    proptest! {
        #[test]
        fn all_data_are_in_a_range_and_ranges_are_whole_blocks_worth_a_request(
            runs in proptest::collection::vec((any::<bool>(), 1usize..40), 0..12),
            tail in 0usize..4096,
        ) {
            let blocks: Vec<bool> = runs
                .into_iter()
                .flat_map(|(is_set, count)| std::iter::repeat_n(is_set, count))
                .collect();
            let part = part(&blocks, tail);
            let ranges = data_ranges(&part);
            let mut left = part.clone();
            let mut before = None;
            for range in &ranges {
                prop_assert!(range.start < range.end && range.end <= part.len());
                prop_assert!(range.start.is_multiple_of(GRAIN as usize));
                prop_assert!(range.end.is_multiple_of(GRAIN as usize) || range.end == part.len());
                if let Some(end) = before {
                    prop_assert!(range.start > end + GAP_BYTES_MAX, "they could be one");
                }
                before = Some(range.end);
                let first = &part[range.start..(range.start + GRAIN as usize).min(part.len())];
                prop_assert!(!is_zero(first), "it begins with data");
                let last = (range.end - 1) / GRAIN as usize * GRAIN as usize;
                prop_assert!(!is_zero(&part[last..range.end]), "it ends with data");
                left[range.clone()].fill(0);
            }
            prop_assert!(is_zero(&left), "data are left out");
        }

        #[test]
        fn zeros_are_told_whatever_the_length(mut bytes in proptest::collection::vec(Just(0u8), 0..70), at: usize) {
            prop_assert!(is_zero(&bytes));
            if !bytes.is_empty() {
                let at = at % bytes.len();
                bytes[at] = 1;
                prop_assert!(!is_zero(&bytes));
            }
        }
    }
}
