//! What waits to be sent: headers and responses in one run of bytes, data where it lies.
//!
//! Guarantees: bytes leave in the order in which they were queued; data is not copied; memory of data
//! is given back as soon as its last byte has left.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::rc::Rc;

use reactor::Buffer;

/// When the run of small bytes is moved to its start again.
const COMPACT_BYTES: usize = 16 << 10;

/// Memory of data to be sent.
#[derive(Debug)]
pub(super) enum Payload {
    /// It goes back to its pool when it is sent.
    Owned(Buffer),
    /// Somebody else keeps it too.
    Shared(Rc<Buffer>),
}

impl Payload {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Owned(buffer) => buffer,
            Self::Shared(buffer) => buffer,
        }
    }
}

/// A queue of bytes.
#[derive(Debug, Default)]
pub(super) struct SendQueue {
    /// All bytes of the small segments, one after the other.
    small: Vec<u8>,
    /// How many of them have left.
    small_sent: usize,
    segments: VecDeque<Segment>,
    /// Bytes of all segments together.
    bytes: usize,
}

#[derive(Debug)]
struct Segment {
    /// None: the next bytes of `small`.
    payload: Option<Payload>,
    start: usize,
    end: usize,
    /// Commands that are answered when the segment has left.
    answers: usize,
}

impl SendQueue {
    pub(super) fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// Bytes that have not left.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Appends small bytes with `write`, which end the answers to so many commands.
    pub(super) fn push_small(&mut self, answers: usize, write: impl FnOnce(&mut Vec<u8>)) {
        let before = self.small.len();
        write(&mut self.small);
        let added = self.small.len() - before;
        self.bytes += added;
        match self.segments.back_mut() {
            Some(segment) if segment.payload.is_none() => {
                segment.end += added;
                segment.answers += answers;
            }
            _ => self.segments.push_back(Segment {
                payload: None,
                start: 0,
                end: added,
                answers,
            }),
        }
    }

    /// Appends a part of a buffer, whose last byte ends the answers to so many commands.
    pub(super) fn push_data(&mut self, payload: Payload, start: usize, end: usize, answers: usize) {
        self.bytes += end - start;
        self.segments.push_back(Segment {
            payload: Some(payload),
            start,
            end,
            answers,
        });
    }

    /// Fills in the first slices to send; gives their number and their bytes.
    pub(super) fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> (usize, usize) {
        let mut small = &self.small[self.small_sent..];
        let (mut count, mut bytes) = (0, 0);
        for (slice, segment) in slices.iter_mut().zip(&self.segments) {
            let part = match &segment.payload {
                Some(payload) => &payload.bytes()[segment.start..segment.end],
                None => {
                    let (part, rest) = small.split_at(segment.end - segment.start);
                    small = rest;
                    part
                }
            };
            *slice = IoSlice::new(part);
            count += 1;
            bytes += part.len();
        }
        (count, bytes)
    }

    /// The first bytes, as far as they lie in one place.
    pub(super) fn front(&self) -> &[u8] {
        match self.segments.front() {
            Some(segment) => self.part(segment, self.small_sent),
            None => &[],
        }
    }

    /// Copies the first bytes to `into`, as many as fit; gives their number.
    pub(super) fn copy_to(&self, into: &mut [u8]) -> usize {
        let (mut small_at, mut copied) = (self.small_sent, 0);
        for segment in &self.segments {
            let part = self.part(segment, small_at);
            let bytes = part.len().min(into.len() - copied);
            into[copied..copied + bytes].copy_from_slice(&part[..bytes]);
            copied += bytes;
            if segment.payload.is_none() {
                small_at += part.len();
            }
            if copied == into.len() {
                break;
            }
        }
        copied
    }

    /// The bytes of a segment; those of a small one begin at `small_at`.
    fn part<'a>(&'a self, segment: &'a Segment, small_at: usize) -> &'a [u8] {
        match &segment.payload {
            Some(payload) => &payload.bytes()[segment.start..segment.end],
            None => &self.small[small_at..small_at + (segment.end - segment.start)],
        }
    }

    /// So many bytes have left; gives how many commands are answered by that.
    pub(super) fn advance(&mut self, mut bytes: usize) -> usize {
        let mut answers = 0;
        while let Some(segment) = self.segments.front_mut() {
            let now = (segment.end - segment.start).min(bytes);
            segment.start += now;
            bytes -= now;
            self.bytes -= now;
            if segment.payload.is_none() {
                self.small_sent += now;
            }
            if segment.start < segment.end {
                break;
            }
            answers += segment.answers;
            self.segments.pop_front();
        }
        if self.small_sent == self.small.len() {
            self.small.clear();
            self.small_sent = 0;
        } else if self.small_sent >= COMPACT_BYTES {
            self.small.drain(..self.small_sent);
            self.small_sent = 0;
        }
        answers
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use reactor::BufferPool;

    use super::*;

    proptest! {
        #[test]
        fn bytes_leave_in_order_however_little_is_taken_at_a_time(
            parts in prop::collection::vec((any::<bool>(), 1..5000_usize, 0..2_usize), 1..30),
            takes in prop::collection::vec(1..9000_usize, 1..10), slices_max in 1..20_usize,
        ) {
            let pool = BufferPool::new(2 << 20).expect("a pool");
            let mut queue = SendQueue::default();
            let (mut expected, mut answers) = (Vec::new(), 0);
            for (n, (small, len, answered)) in parts.into_iter().enumerate() {
                let bytes: Vec<u8> = (0..len).map(|at| (at * 3 + n) as u8).collect();
                expected.extend_from_slice(&bytes);
                answers += answered;
                if small {
                    queue.push_small(answered, |out| out.extend_from_slice(&bytes));
                } else {
                    let mut buffer = pool.try_alloc(len + 7).expect("room");
                    buffer[7..].copy_from_slice(&bytes);
                    queue.push_data(Payload::Owned(buffer), 7, len + 7, answered);
                }
            }
            let (mut left, mut answered) = (Vec::new(), 0);
            for take in takes.iter().cycle() {
                if queue.is_empty() {
                    break;
                }
                let mut slices = vec![IoSlice::new(&[]); slices_max];
                let (count, bytes) = queue.slices(&mut slices);
                let all: Vec<u8> = slices[..count].iter().flat_map(|slice| slice.to_vec()).collect();
                prop_assert_eq!(all.len(), bytes);
                prop_assert_eq!(queue.front(), &*slices[0]);
                let mut copy = vec![0; bytes];
                prop_assert_eq!(queue.copy_to(&mut copy), bytes);
                prop_assert_eq!(&copy, &all);
                let taken = (*take).min(bytes);
                prop_assert_eq!(queue.bytes(), expected.len() - left.len());
                left.extend_from_slice(&all[..taken]);
                answered += queue.advance(taken);
            }
            prop_assert_eq!(left, expected);
            prop_assert_eq!(queue.bytes(), 0);
            prop_assert_eq!(answered, answers);
            prop_assert_eq!(pool.stats().free_bytes, pool.stats().total_bytes);
        }
    }
}
