//! A slot of a queue for one command: its data, and its way to the server and back.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use reactor::sync::Permit;

use super::{
    DEVICE_WRITES, Ended, INDIRECT, InFlight, Kind, Loan, NEXT, NO_STATUS, Queue, Segment, Slot,
};
use crate::memory::{CHAIN, DESCRIPTOR_BYTES, SEGMENTS_MAX, address};

/// A slot of a queue, for one command.
#[derive(Debug)]
pub(crate) struct Claimed {
    pub(super) queue: Arc<Queue>,
    pub(super) user: usize,
    pub(super) slot: u16,
    /// Goes to the slot when this is dropped before the server has answered.
    pub(super) permit: Option<Permit>,
}

impl Claimed {
    /// Copies data into its memory, from a byte on; the command must not be sent yet.
    pub(crate) fn fill(&self, at: usize, from: &[u8]) {
        let (data, room) = self.queue.layout.data(self.slot);
        assert!(at + from.len() <= room, "a slot was claimed for less");
        self.queue.memory.write(data + at, from);
    }

    /// Copies data out of its memory, after the answer.
    pub(crate) fn take(&self, at: usize, to: &mut [u8]) {
        let (data, room) = self.queue.layout.data(self.slot);
        assert!(at + to.len() <= room, "a slot was claimed for less");
        self.queue.memory.read(data + at, to);
    }

    /// The first bytes of its own memory, as the server knows them.
    pub(crate) fn own(&self, bytes: usize) -> Segment {
        let (data, room) = self.queue.layout.data(self.slot);
        assert!(bytes <= room, "a slot was claimed for less");
        Segment {
            address: address(data),
            len: bytes as u32,
        }
    }

    /// Gives the command to the server, with its data: at most [`SEGMENTS_MAX`], and one without tables of descriptors. The
    /// server is kicked by [`Queue::kick_if_wanted`].
    ///
    /// # Errors
    /// The queue has ended. The server knows nothing of the command.
    pub(crate) fn send(
        &self,
        kind: Kind,
        sector: u64,
        data: &[Segment],
        loan: Option<&Loan>,
    ) -> Result<(), Ended> {
        let queue = &*self.queue;
        let (memory, layout) = (&*queue.memory, &queue.layout);
        let is_indirect = layout.slots.is_indirect;
        let room = if is_indirect { SEGMENTS_MAX } else { 1 };
        assert!(data.len() <= room, "there is no room for so many segments");
        let mut header = [0; 16];
        header[..4].copy_from_slice(&kind.number().to_le_bytes());
        header[8..].copy_from_slice(&sector.to_le_bytes());
        memory.write(layout.header(self.slot), &header);
        memory.write(layout.status(self.slot), &[NO_STATUS]);
        let first = match is_indirect {
            true => 0,
            false => self.slot * CHAIN,
        };
        let put = |at: u16, segment: Segment, flags: u16| {
            let next = match flags & NEXT {
                0 => 0,
                _ => first + at + 1,
            };
            let place = match is_indirect {
                true => layout.indirect(self.slot, at),
                false => layout.descriptor(first + at),
            };
            memory.write(place, &descriptor(segment, flags, next));
        };
        let part = |at: usize, len: u32| Segment {
            address: address(at),
            len,
        };
        put(0, part(layout.header(self.slot), 16), NEXT);
        let (mut writable, data_flags) = match kind.is_from_server() {
            true => (1, NEXT | DEVICE_WRITES),
            false => (1, NEXT),
        };
        let mut count = 1;
        for segment in data {
            put(count, *segment, data_flags);
            count += 1;
            if kind.is_from_server() {
                writable += segment.len;
            }
        }
        put(count, part(layout.status(self.slot), 1), DEVICE_WRITES);
        let head = match is_indirect {
            true => {
                let table = part(
                    layout.indirect(self.slot, 0),
                    u32::from(count + 1) * DESCRIPTOR_BYTES as u32,
                );
                let bytes = descriptor(table, INDIRECT, 0);
                memory.write(layout.descriptor(self.slot), &bytes);
                self.slot
            }
            false => first,
        };
        let in_flight = InFlight {
            kind,
            user: self.user,
            since: reactor::recently(),
            writable,
            waker: None,
            abandoned: None,
            loan: loan.cloned(),
        };
        let mut state = queue.state();
        if state.is_ended {
            return Err(Ended);
        }
        state.slots[usize::from(self.slot)] = Slot::InFlight(in_flight);
        state.users[self.user].in_flight += 1;
        memory.write(layout.available_entry(state.available), &head.to_le_bytes());
        state.available = state.available.wrapping_add(1);
        memory.store(layout.available_index(), state.available, Ordering::Release);
        drop(state);
        queue.is_unkicked.store(true, Ordering::Release);
        Ok(())
    }

    /// Waits for the answer: its status.
    ///
    /// # Errors
    /// The queue ended before; what became of the command is not known.
    pub(crate) async fn answered(&self) -> Result<u8, Ended> {
        poll_fn(|cx| self.poll_answered(cx)).await
    }

    fn poll_answered(&self, cx: &mut Context<'_>) -> Poll<Result<u8, Ended>> {
        let mut state = self.queue.state();
        match &mut state.slots[usize::from(self.slot)] {
            Slot::InFlight(in_flight) => {
                match &mut in_flight.waker {
                    Some(waker) => waker.clone_from(cx.waker()),
                    none => *none = Some(cx.waker().clone()),
                }
                Poll::Pending
            }
            Slot::Done(status) => Poll::Ready(Ok(*status)),
            Slot::Free | Slot::Claimed | Slot::Lost { .. } => Poll::Ready(Err(Ended)),
        }
    }
}

impl Drop for Claimed {
    fn drop(&mut self) {
        let permit = self.permit.take();
        let mut state = self.queue.state();
        match &mut state.slots[usize::from(self.slot)] {
            Slot::InFlight(in_flight) => {
                in_flight.waker = None;
                in_flight.abandoned = permit;
            }
            // The server may still do it: nobody gets the slot again, and what it was lent stays so.
            Slot::Lost { .. } => drop(state),
            _ => {
                self.queue.free(&mut state, self.slot);
                drop(state);
                drop(permit);
            }
        }
    }
}

fn descriptor(segment: Segment, flags: u16, next: u16) -> [u8; DESCRIPTOR_BYTES] {
    let mut bytes = [0; DESCRIPTOR_BYTES];
    bytes[..8].copy_from_slice(&segment.address.to_le_bytes());
    bytes[8..12].copy_from_slice(&segment.len.to_le_bytes());
    bytes[12..14].copy_from_slice(&flags.to_le_bytes());
    bytes[14..].copy_from_slice(&next.to_le_bytes());
    bytes
}
