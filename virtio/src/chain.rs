//! The descriptors of a request (virtio 1.2, section 2.7.5).
//!
//! Guarantee: a chain that loops, is too long, or leaves its table is an error; what it describes is not looked at here.

use vm_memory::{Address, GuestAddress};

use crate::memory::{Guest, Outside};

/// Descriptors of a request at most, those of an indirect table included.
pub(crate) const DESCRIPTORS_MAX: usize = 1024;

/// Bytes of a descriptor.
const DESCRIPTOR_BYTES: u64 = 16;

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

/// A piece of guest memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) at: GuestAddress,
    pub(crate) len: u32,
}

/// What a request is made of.
#[derive(Debug)]
pub(crate) struct Chain {
    segments: Vec<Segment>,
    /// So many of them the device reads; it writes the rest.
    readable: usize,
}

/// Segments that most requests have: header, data, status, and one more.
const SEGMENTS_USUAL: usize = 4;

/// A range of the bytes that segments are made of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span<'a> {
    segments: &'a [Segment],
    /// Bytes of the first segment that are before it; fewer than that has, if there is one.
    skip: u32,
    len: u64,
}

/// It is no chain of descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed(pub(crate) &'static str);

#[derive(Clone, Copy)]
struct Table {
    at: GuestAddress,
    len: u16,
    is_indirect: bool,
}

struct Descriptor {
    segment: Segment,
    flags: u16,
    next: u16,
}

impl Table {
    fn get(self, guest: &Guest, index: u16) -> Result<Descriptor, Malformed> {
        if index >= self.len {
            return Err(Malformed("a descriptor beyond its table"));
        }
        let at = self.at.checked_add(u64::from(index) * DESCRIPTOR_BYTES);
        let at = at.ok_or(Malformed("a table beyond the end of all addresses"))?;
        let mut bytes = [0; DESCRIPTOR_BYTES as usize];
        guest
            .read(at, &mut bytes)
            .map_err(|_| Malformed("a table outside of memory"))?;
        let word = |from: usize| u16::from_le_bytes([bytes[from], bytes[from + 1]]);
        let [at @ .., _, _, _, _, _, _, _, _] = bytes;
        let len = [bytes[8], bytes[9], bytes[10], bytes[11]];
        Ok(Descriptor {
            segment: Segment {
                at: GuestAddress(u64::from_le_bytes(at)),
                len: u32::from_le_bytes(len),
            },
            flags: word(12),
            next: word(14),
        })
    }
}

impl Chain {
    /// The chain that begins at a descriptor of a ring's table.
    pub(crate) fn read(
        guest: &Guest,
        table: GuestAddress,
        size: u16,
        head: u16,
    ) -> Result<Self, Malformed> {
        let mut chain = Self {
            segments: Vec::with_capacity(SEGMENTS_USUAL),
            readable: 0,
        };
        let mut table = Table {
            at: table,
            len: size,
            is_indirect: false,
        };
        let mut next = head;
        for _ in 0..DESCRIPTORS_MAX {
            let descriptor = table.get(guest, next)?;
            if descriptor.flags & INDIRECT != 0 {
                if table.is_indirect || descriptor.flags & NEXT != 0 {
                    return Err(Malformed("an indirect table within a chain"));
                }
                let Segment { at, len } = descriptor.segment;
                let count = u64::from(len) / DESCRIPTOR_BYTES;
                if !u64::from(len).is_multiple_of(DESCRIPTOR_BYTES)
                    || count == 0
                    || count > DESCRIPTORS_MAX as u64
                {
                    return Err(Malformed("an indirect table of a wrong length"));
                }
                table = Table {
                    at,
                    len: count as u16,
                    is_indirect: true,
                };
                next = 0;
                continue;
            }
            if descriptor.flags & WRITE == 0 {
                if chain.readable < chain.segments.len() {
                    return Err(Malformed("a readable descriptor behind a writable one"));
                }
                chain.readable += 1;
            }
            chain.segments.push(descriptor.segment);
            if descriptor.flags & NEXT == 0 {
                return Ok(chain);
            }
            next = descriptor.next;
        }
        Err(Malformed("a chain that is too long, or loops"))
    }

    /// What the device reads.
    pub(crate) fn readable(&self) -> Span<'_> {
        Span::whole(&self.segments[..self.readable])
    }

    /// What it writes.
    pub(crate) fn writable(&self) -> Span<'_> {
        Span::whole(&self.segments[self.readable..])
    }
}

impl<'a> Span<'a> {
    fn whole(segments: &'a [Segment]) -> Self {
        let mut whole = Self {
            segments,
            skip: 0,
            len: segments.iter().map(|segment| u64::from(segment.len)).sum(),
        };
        whole.skip_empty();
        whole
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Takes so many bytes off the front; fewer if there are fewer.
    pub(crate) fn take_front(&mut self, len: u64) -> Self {
        let front = Self {
            len: len.min(self.len),
            ..*self
        };
        self.len -= front.len;
        let mut left = front.len;
        while let Some((first, rest)) = self.segments.split_first() {
            let in_first = u64::from(first.len - self.skip);
            if left < in_first {
                // It is less than what the segment has.
                self.skip += left as u32;
                break;
            }
            left -= in_first;
            (self.segments, self.skip) = (rest, 0);
        }
        front
    }

    fn skip_empty(&mut self) {
        self.take_front(0);
    }

    /// Where its bytes are, in pieces.
    fn pieces(self) -> impl Iterator<Item = (GuestAddress, usize)> {
        let mut left = self.len;
        let mut skip = self.skip;
        self.segments.iter().map_while(move |segment| {
            if left == 0 {
                return None;
            }
            let len = u64::from(segment.len - skip).min(left);
            // A sum beyond all addresses is outside of memory as well.
            let at = GuestAddress(segment.at.0.saturating_add(u64::from(skip)));
            (left, skip) = (left - len, 0);
            Some((at, len as usize))
        })
    }

    /// Copies what it holds to a buffer of its length.
    pub(crate) fn copy_in(self, guest: &Guest, mut to: &mut [u8]) -> Result<(), Outside> {
        for (at, len) in self.pieces() {
            let (part, rest) = to.split_at_mut(len.min(to.len()));
            guest.read(at, part)?;
            to = rest;
        }
        match to.is_empty() {
            true => Ok(()),
            false => Err(Outside),
        }
    }

    /// Copies a buffer of its length to it.
    pub(crate) fn copy_out(self, guest: &Guest, mut from: &[u8]) -> Result<(), Outside> {
        for (at, len) in self.pieces() {
            let (part, rest) = from.split_at(len.min(from.len()));
            guest.write(at, part)?;
            from = rest;
        }
        match from.is_empty() {
            true => Ok(()),
            false => Err(Outside),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bytes_of(span: Span<'_>) -> Vec<u64> {
        let bytes = |(at, len): (GuestAddress, usize)| at.0..at.0 + len as u64;
        span.pieces().flat_map(bytes).collect()
    }

    proptest! {
        #[test]
        fn what_is_taken_off_segments_is_their_bytes_in_order(
            segments in prop::collection::vec((0u64..1 << 40, 0u32..20), 0..6),
            parts in prop::collection::vec(0u64..30, 0..8),
        ) {
            let segments: Vec<Segment> = segments
                .into_iter()
                .map(|(at, len)| Segment { at: GuestAddress(at), len })
                .collect();
            let mut rest = Span::whole(&segments);
            let all = bytes_of(rest);
            prop_assert_eq!(all.len() as u64, rest.len());
            let mut taken = Vec::new();
            for part in parts {
                let front = rest.take_front(part);
                prop_assert_eq!(front.len(), part.min(all.len() as u64 - taken.len() as u64));
                prop_assert_eq!(bytes_of(front).len() as u64, front.len());
                taken.extend(bytes_of(front));
            }
            taken.extend(bytes_of(rest));
            prop_assert_eq!(taken, all);
        }
    }
}
