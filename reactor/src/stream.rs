//! Copying to memory that is not going to be read soon. The `unsafe` here is the few instructions that do it.

/// Copies to memory past the caches: what is overwritten is not read from memory first, and nothing else leaves
/// the caches for it. For runs of many KiB that go where a drive would put them; who reads them soon waits
/// longer. Where the instructions are not known it is a plain copy.
///
/// # Panics
/// If the lengths differ.
pub fn copy_past_caches(to: &mut [u8], from: &[u8]) {
    assert_eq!(to.len(), from.len(), "a copy of another length");
    #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
    {
        let begin = to.as_ptr().align_offset(LINE_BYTES).min(to.len());
        let lines = (to.len() - begin) / LINE_BYTES * LINE_BYTES;
        let (head, rest) = to.split_at_mut(begin);
        let (lines, tail) = rest.split_at_mut(lines);
        let (from_head, from_rest) = from.split_at(begin);
        let (from_lines, from_tail) = from_rest.split_at(lines.len());
        head.copy_from_slice(from_head);
        copy_lines(lines, from_lines);
        tail.copy_from_slice(from_tail);
    }
    #[cfg(not(all(target_arch = "x86_64", target_feature = "sse2")))]
    to.copy_from_slice(from);
}

/// A line of the cache.
#[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
const LINE_BYTES: usize = 64;

/// Copies whole lines, to where lines begin.
#[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
fn copy_lines(to: &mut [u8], from: &[u8]) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    for (to, from) in to
        .chunks_exact_mut(LINE_BYTES)
        .zip(from.chunks_exact(LINE_BYTES))
    {
        let from = from.as_ptr().cast::<__m128i>();
        let to = to.as_mut_ptr().cast::<__m128i>();
        debug_assert!(to.is_aligned());
        // SAFETY: four vectors are a line, so all of them lie in the two slices, of which nobody else writes
        // either; a load may be unaligned, and `to` is the beginning of a line, so aligned for stores.
        unsafe {
            let line = [
                _mm_loadu_si128(from),
                _mm_loadu_si128(from.add(1)),
                _mm_loadu_si128(from.add(2)),
                _mm_loadu_si128(from.add(3)),
            ];
            _mm_stream_si128(to, line[0]);
            _mm_stream_si128(to.add(1), line[1]);
            _mm_stream_si128(to.add(2), line[2]);
            _mm_stream_si128(to.add(3), line[3]);
        }
    }
    // SAFETY: a fence has no operands. These stores are not ordered with others without it: who locks or
    // reads the memory next must find them.
    unsafe { _mm_sfence() }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::copy_past_caches;

    proptest! {
        #[test]
        fn exactly_the_bytes_are_copied_wherever_they_begin_and_end(
            len in 0..700_usize, to_begin in 0..130_usize, from_begin in 0..130_usize,
        ) {
            let from: Vec<u8> = (0..from_begin + len).map(|at| (at * 7 + 1) as u8).collect();
            let mut to = vec![0xee; to_begin + len + 70];
            copy_past_caches(&mut to[to_begin..to_begin + len], &from[from_begin..]);
            prop_assert!(to[..to_begin].iter().all(|byte| *byte == 0xee));
            prop_assert_eq!(&to[to_begin..to_begin + len], &from[from_begin..]);
            prop_assert!(to[to_begin + len..].iter().all(|byte| *byte == 0xee));
        }
    }
}
