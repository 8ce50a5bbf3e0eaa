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

    /// Appends small bytes with `write`, which end the answers to so many commands.
    pub(super) fn push_small(&mut self, answers: usize, write: impl FnOnce(&mut Vec<u8>)) {
        let before = self.small.len();
        write(&mut self.small);
        let added = self.small.len() - before;
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

    /// So many bytes have left; gives how many commands are answered by that.
    pub(super) fn advance(&mut self, mut bytes: usize) -> usize {
        let mut answers = 0;
        while let Some(segment) = self.segments.front_mut() {
            let now = (segment.end - segment.start).min(bytes);
            segment.start += now;
            bytes -= now;
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
