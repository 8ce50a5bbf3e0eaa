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
#[derive(Debug, Default)]
pub(crate) struct Chain {
    /// What the device reads.
    pub(crate) readable: Vec<Segment>,
    /// What it writes.
    pub(crate) writable: Vec<Segment>,
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
        let mut chain = Self::default();
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
            if descriptor.flags & WRITE != 0 {
                chain.writable.push(descriptor.segment);
            } else if chain.writable.is_empty() {
                chain.readable.push(descriptor.segment);
            } else {
                return Err(Malformed("a readable descriptor behind a writable one"));
            }
            if descriptor.flags & NEXT == 0 {
                return Ok(chain);
            }
            next = descriptor.next;
        }
        Err(Malformed("a chain that is too long, or loops"))
    }
}

/// Takes so many bytes off the front of segments; fewer if there are fewer.
pub(crate) fn take_front(segments: &mut Vec<Segment>, mut len: u64) -> Vec<Segment> {
    let mut taken = Vec::new();
    let mut whole = 0;
    for segment in segments.iter_mut() {
        if len == 0 {
            break;
        }
        let part = u64::from(segment.len).min(len) as u32;
        taken.push(Segment {
            at: segment.at,
            len: part,
        });
        len -= u64::from(part);
        if part == segment.len {
            whole += 1;
            continue;
        }
        segment.len -= part;
        // A sum beyond all addresses is outside of memory as well.
        segment.at = GuestAddress(segment.at.0.saturating_add(u64::from(part)));
    }
    segments.drain(..whole);
    taken
}

/// Bytes of all segments.
pub(crate) fn bytes_of(segments: &[Segment]) -> u64 {
    segments.iter().map(|segment| u64::from(segment.len)).sum()
}

/// Copies what the segments hold. They are as long as the buffer together.
pub(crate) fn copy_in(
    guest: &Guest,
    segments: &[Segment],
    mut to: &mut [u8],
) -> Result<(), Outside> {
    for segment in segments {
        let len = to.len().min(segment.len as usize);
        let (part, rest) = to.split_at_mut(len);
        guest.read(segment.at, part)?;
        to = rest;
    }
    match to.is_empty() {
        true => Ok(()),
        false => Err(Outside),
    }
}

/// Copies to the segments.
pub(crate) fn copy_out(
    guest: &Guest,
    segments: &[Segment],
    mut from: &[u8],
) -> Result<(), Outside> {
    for segment in segments {
        let (part, rest) = from.split_at(from.len().min(segment.len as usize));
        guest.write(segment.at, part)?;
        from = rest;
    }
    match from.is_empty() {
        true => Ok(()),
        false => Err(Outside),
    }
}
