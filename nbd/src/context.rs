//! What metadata contexts say: ranges of a volume as the lengths and flags of a reply.

/// Of `base:allocation`: nothing is stored, and it reads as zeros.
pub(crate) const HOLE_OF_ZEROS: u32 = 3;
/// Of `qemu:dirty-bitmap`: it may have changed.
pub(crate) const CHANGED: u32 = 1;

/// The longest extent that a reply has: what fits, in whole blocks.
const EXTENT_BYTES_MAX: u64 = (u32::MAX - (u32::MAX % 4096)) as u64;

/// What is asked for and what was found: flags from the first byte on. The list ends at `upto`, and says at least one byte
/// if there is one.
///
/// `ranges` (first byte, how many) are in order and apart; they have the flags `inside`, what lies between them `outside`.
pub(crate) fn describe(
    (start, upto): (u64, u64),
    ranges: &[(u64, u64)],
    (inside, outside): (u32, u32),
    one: bool,
) -> Vec<(u32, u32)> {
    let mut list = Vec::new();
    let mut at = start;
    let mut add = |end: u64, flags: u32| {
        let end = end.min(upto);
        while at < end {
            let len = (end - at).min(EXTENT_BYTES_MAX);
            // It is at most the bound, which fits.
            list.push((len as u32, flags));
            at += len;
        }
    };
    for (first, len) in ranges {
        add(*first, outside);
        add(first.saturating_add(*len), inside);
    }
    add(upto, outside);
    if one {
        list.truncate(1);
    }
    list
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_lies_between_ranges_is_told_too() {
        let told = describe((1024, 16384), &[(0, 4096), (8192, 4096)], (0, 3), false);
        assert_eq!(told, [(3072, 0), (4096, 3), (4096, 0), (4096, 3)]);
        let told = describe((1024, 16384), &[(0, 4096)], (0, 3), true);
        assert_eq!(told, [(3072, 0)]);
        let told = describe((4096, 8192), &[(4096, 40960)], (1, 0), false);
        assert_eq!(told, [(4096, 1)], "it is cut where the question ends");
    }

    proptest! {
        #[test]
        fn extents_cover_what_was_looked_at_without_gaps(
            start in 0u64..64, len in 1u64..64, ranges in proptest::collection::vec((1u64..9, 1u64..9), 0..9),
        ) {
            let mut at = 0;
            let ranges: Vec<_> = ranges.into_iter().map(|(gap, len)| {
                let range = (at + gap, len);
                at += gap + len;
                range
            }).collect();
            let told = describe((start, start + len), &ranges, (7, 9), false);
            let mut at = start;
            for (len, flags) in told {
                for byte in at..at + u64::from(len) {
                    let is_inside = ranges.iter().any(|(first, len)| (*first..first + len).contains(&byte));
                    prop_assert_eq!(flags, if is_inside { 7 } else { 9 });
                }
                at += u64::from(len);
            }
            prop_assert_eq!(at, start + len);
        }
    }
}
