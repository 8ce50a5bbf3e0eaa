//! Byte ranges of commands in sub-blocks of 4 KiB.

use drives::BLOCK_BYTES;

/// A byte range in whole sub-blocks, with what it covers of the first and last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    /// First sub-block that is touched.
    pub(crate) first: u64,
    /// One past the last sub-block that is touched.
    pub(crate) end: u64,
    /// Bytes of the first sub-block before the range.
    pub(crate) head: usize,
    /// Bytes of the last sub-block after the range.
    pub(crate) tail: usize,
}

impl Span {
    pub(crate) fn new(offset: u64, len: u64) -> Self {
        let grain = BLOCK_BYTES as u64;
        let end = offset + len;
        Self {
            first: offset / grain,
            end: end.div_ceil(grain),
            head: (offset % grain) as usize,
            tail: (end.next_multiple_of(grain) - end) as usize,
        }
    }

    pub(crate) fn count(&self) -> usize {
        (self.end - self.first) as usize
    }

    pub(crate) fn is_whole(&self) -> bool {
        self.head == 0 && self.tail == 0
    }

    /// The sub-blocks that are covered from end to end.
    pub(crate) fn whole(&self) -> (u64, u64) {
        let first = self.first + u64::from(self.head > 0);
        let end = self.end - u64::from(self.tail > 0);
        (first, end.max(first))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_range_knows_its_whole_and_partial_sub_blocks() {
        let span = |first, end, head, tail| Span {
            first,
            end,
            head,
            tail,
        };
        assert_eq!(Span::new(0, 4096), span(0, 1, 0, 0));
        assert_eq!(Span::new(512, 512), span(0, 1, 512, 3072));
        assert_eq!(Span::new(4096, 4608), span(1, 3, 0, 3584));
        assert_eq!(Span::new(3584, 1024), span(0, 2, 3584, 3584));
        assert_eq!(Span::new(512, 512).whole(), (1, 1));
        assert_eq!(Span::new(3584, 1024).whole(), (1, 1));
        assert_eq!(Span::new(512, 3 * 4096).whole(), (1, 3));
        assert_eq!(Span::new(8192, 4096).whole(), (2, 3));
    }
}
