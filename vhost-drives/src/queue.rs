//! A split virtqueue, seen by its driver (VIRTIO 1.2, section 2.7): commands go in, and what the server did comes out.
//!
//! Guarantees:
//! - A slot (descriptors, header, data) belongs to one command from [`Queue::claim`] until the server has answered it, also
//!   when nobody waits for it any more.
//! - What the server writes into the rings is believed only where it fits what was asked: an answer to no command, a count of
//!   answers that is larger than that of commands, or more bytes than a command has room for, is an error.
//! - When the queue ends, all who wait go on at once.
//! - Any thread may use it.

use std::future::poll_fn;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use reactor::sync::{Permit, Semaphore};
use rustix::event::{EventfdFlags, eventfd};

use crate::memory::{CHAIN, Layout, Memory, SMALL_BYTES, address};

/// Flags of a descriptor (2.7.5).
const NEXT: u16 = 1;
const DEVICE_WRITES: u16 = 2;
const INDIRECT: u16 = 4;

/// The server needs no kick (`VIRTQ_USED_F_NO_NOTIFY`, 2.7.10).
const NO_NOTIFY: u16 = 1;

/// A status that no server gives: it has not written one.
const NO_STATUS: u8 = 0xff;

/// What a command does (5.2.6). Data go to the server, or come from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    In,
    Out,
    Flush,
    GetId,
    Discard,
}

impl Kind {
    fn number(self) -> u32 {
        match self {
            Self::In => 0,
            Self::Out => 1,
            Self::Flush => 4,
            Self::GetId => 8,
            Self::Discard => 11,
        }
    }

    fn is_from_server(self) -> bool {
        matches!(self, Self::In | Self::GetId)
    }
}

/// The queue has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ended;

#[derive(Debug)]
enum Slot {
    Free,
    /// Somebody has it, and the server has not.
    Claimed,
    InFlight(InFlight),
    /// Answered with this status.
    Done(u8),
    /// The queue ended while the server had it.
    Lost,
}

#[derive(Debug)]
struct InFlight {
    /// Bytes that the server may write, the status included.
    writable: u32,
    waker: Option<Waker>,
    /// Of a command that nobody waits for.
    abandoned: Option<Permit>,
}

#[derive(Debug)]
struct State {
    /// The next place in the available ring: so many commands were given to the server.
    available: u16,
    /// The next place in the used ring: so many answers were taken.
    used: u16,
    slots: Vec<Slot>,
    free_small: Vec<u16>,
    free_large: Vec<u16>,
    is_ended: bool,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Queue {
    memory: Arc<Memory>,
    layout: Layout,
    kick: OwnedFd,
    call: OwnedFd,
    small: Semaphore,
    large: Semaphore,
    state: Mutex<State>,
}

impl Queue {
    /// A queue over its part of the memory.
    ///
    /// # Errors
    /// The system has no more descriptors.
    pub(crate) fn new(memory: Arc<Memory>, layout: Layout) -> std::io::Result<Self> {
        let event = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let slots = layout.slots;
        let state = State {
            available: 0,
            used: 0,
            slots: (0..slots.count()).map(|_| Slot::Free).collect(),
            free_small: (0..slots.small).collect(),
            free_large: (slots.small..slots.count()).collect(),
            is_ended: false,
        };
        Ok(Self {
            memory,
            layout,
            kick: event()?,
            call: event()?,
            small: Semaphore::new(usize::from(slots.small)),
            large: Semaphore::new(usize::from(slots.large)),
            state: Mutex::new(state),
        })
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    pub(crate) fn kick(&self) -> BorrowedFd<'_> {
        self.kick.as_fd()
    }

    /// Readable when the server has answered something.
    pub(crate) fn call(&self) -> BorrowedFd<'_> {
        self.call.as_fd()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // What is changed under the lock is changed whole: the checks come first.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a slot with room for so many bytes.
    ///
    /// # Errors
    /// The queue has ended.
    pub(crate) async fn claim(self: &Arc<Self>, bytes: usize) -> Result<Claimed, Ended> {
        let is_small = bytes <= SMALL_BYTES;
        let permit = match is_small {
            true => self.small.acquire(1).await,
            false => self.large.acquire(1).await,
        };
        let mut state = self.state();
        if state.is_ended {
            return Err(Ended);
        }
        let free = match is_small {
            true => state.free_small.pop(),
            false => state.free_large.pop(),
        };
        let slot = free.expect("a permit is a free slot");
        state.slots[usize::from(slot)] = Slot::Claimed;
        drop(state);
        Ok(Claimed {
            queue: self.clone(),
            slot,
            permit: Some(permit),
        })
    }

    fn free(&self, state: &mut State, slot: u16) {
        state.slots[usize::from(slot)] = Slot::Free;
        match slot < self.layout.slots.small {
            true => state.free_small.push(slot),
            false => state.free_large.push(slot),
        }
    }

    /// Takes what the server has answered.
    ///
    /// # Errors
    /// What the server wrote makes no sense. Nothing of it was taken that does not.
    pub(crate) fn collect(&self) -> Result<(), String> {
        let mut wakers = Vec::new();
        let mut permits = Vec::new();
        let collected = self.collect_into(&mut wakers, &mut permits);
        // Outside of the lock.
        wakers.into_iter().for_each(Waker::wake);
        drop(permits);
        collected
    }

    fn collect_into(
        &self,
        wakers: &mut Vec<Waker>,
        permits: &mut Vec<Permit>,
    ) -> Result<(), String> {
        let mut guard = self.state();
        let state = &mut *guard;
        if state.is_ended {
            return Ok(());
        }
        loop {
            let index: u16 = self
                .memory
                .load(self.layout.used_index(), Ordering::Acquire);
            let answers = index.wrapping_sub(state.used);
            let in_flight = state.available.wrapping_sub(state.used);
            if answers == 0 {
                return Ok(());
            }
            if answers > in_flight {
                return Err(format!(
                    "it answered {answers} commands where it had {in_flight}"
                ));
            }
            let mut entry = [0; 8];
            self.memory
                .read(self.layout.used_entry(state.used), &mut entry);
            let [a, b, c, d, e, f, g, h] = entry;
            let id = u32::from_le_bytes([a, b, c, d]);
            let len = u32::from_le_bytes([e, f, g, h]);
            let slot = self.slot_of(id);
            let in_flight = slot.and_then(|slot| match state.slots.get_mut(usize::from(slot)) {
                Some(Slot::InFlight(in_flight)) => Some((slot, in_flight)),
                _ => None,
            });
            let Some((slot, in_flight)) = in_flight else {
                return Err(format!("it answered command {id}, which it did not have"));
            };
            if len > in_flight.writable {
                return Err(format!(
                    "it wrote {len} bytes of an answer that has room for {}",
                    in_flight.writable
                ));
            }
            state.used = state.used.wrapping_add(1);
            wakers.extend(in_flight.waker.take());
            match in_flight.abandoned.take() {
                Some(permit) => {
                    permits.push(permit);
                    self.free(state, slot);
                }
                None => {
                    let mut status = [0];
                    self.memory.read(self.layout.status(slot), &mut status);
                    state.slots[usize::from(slot)] = Slot::Done(status[0]);
                }
            }
        }
    }

    /// The slot whose first descriptor has this number.
    fn slot_of(&self, id: u32) -> Option<u16> {
        let id = u16::try_from(id).ok()?;
        match self.layout.slots.is_indirect {
            true => Some(id),
            false => id.is_multiple_of(CHAIN).then_some(id / CHAIN),
        }
    }

    /// Nothing more is sent by it, and nothing taken: whoever waits goes on.
    pub(crate) fn end(&self) {
        let mut wakers = Vec::new();
        let mut permits = Vec::new();
        let mut state = self.state();
        state.is_ended = true;
        for slot in &mut state.slots {
            if let Slot::InFlight(in_flight) = slot {
                wakers.extend(in_flight.waker.take());
                permits.extend(in_flight.abandoned.take());
                *slot = Slot::Lost;
            }
        }
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
        drop(permits);
    }

    /// Whether the server has answered all that it was given; or, if it stopped at `base`, all that it took.
    pub(crate) fn is_answered(&self, base: Option<u16>) -> bool {
        let available = self.state().available;
        let used: u16 = self
            .memory
            .load(self.layout.used_index(), Ordering::Acquire);
        used == available || base == Some(used)
    }
}

/// A slot of a queue, for one command.
#[derive(Debug)]
pub(crate) struct Claimed {
    queue: Arc<Queue>,
    slot: u16,
    /// Goes to the slot when this is dropped before the server has answered.
    permit: Option<Permit>,
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

    /// Gives the command to the server, with so many bytes of data.
    ///
    /// # Errors
    /// The queue has ended. The server knows nothing of the command.
    pub(crate) fn send(&self, kind: Kind, sector: u64, data_bytes: usize) -> Result<(), Ended> {
        let queue = &*self.queue;
        let (memory, layout) = (&*queue.memory, &queue.layout);
        let (data, room) = layout.data(self.slot);
        assert!(data_bytes <= room, "a slot was claimed for less");
        let mut header = [0; 16];
        header[..4].copy_from_slice(&kind.number().to_le_bytes());
        header[8..].copy_from_slice(&sector.to_le_bytes());
        memory.write(layout.header(self.slot), &header);
        memory.write(layout.status(self.slot), &[NO_STATUS]);
        let mut writable = 1;
        let data_flags = match kind.is_from_server() {
            true => {
                writable += data_bytes as u32;
                DEVICE_WRITES
            }
            false => 0,
        };
        let parts = [
            (layout.header(self.slot), 16, 0),
            (data, data_bytes as u32, data_flags),
            (layout.status(self.slot), 1, DEVICE_WRITES),
        ];
        let is_indirect = layout.slots.is_indirect;
        let first = match is_indirect {
            true => 0,
            false => self.slot * CHAIN,
        };
        let place = |at: u16| match is_indirect {
            true => layout.indirect(self.slot, at),
            false => layout.descriptor(first + at),
        };
        let mut count = 0;
        let parts = parts.into_iter().filter(|(_, len, _)| *len > 0);
        let last = if data_bytes > 0 { 2 } else { 1 };
        for (at, len, flags) in parts {
            let (flags, next) = match count < last {
                true => (flags | NEXT, first + count + 1),
                false => (flags, 0),
            };
            memory.write(place(count), &descriptor(at, len, flags, next));
            count += 1;
        }
        let head = match is_indirect {
            true => {
                let table = descriptor(
                    layout.indirect(self.slot, 0),
                    u32::from(count) * 16,
                    INDIRECT,
                    0,
                );
                memory.write(layout.descriptor(self.slot), &table);
                self.slot
            }
            false => first,
        };
        let mut state = queue.state();
        if state.is_ended {
            return Err(Ended);
        }
        state.slots[usize::from(self.slot)] = Slot::InFlight(InFlight {
            writable,
            waker: None,
            abandoned: None,
        });
        memory.write(layout.available_entry(state.available), &head.to_le_bytes());
        state.available = state.available.wrapping_add(1);
        memory.store(layout.available_index(), state.available, Ordering::Release);
        drop(state);
        // The index is seen by the server before its wish is looked at (2.7.13.4).
        fence(Ordering::SeqCst);
        let flags: u16 = memory.load(layout.used_flags(), Ordering::Acquire);
        if flags & NO_NOTIFY == 0 {
            // A counter that is full has kicked enough.
            let _ = rustix::io::write(&queue.kick, &1_u64.to_ne_bytes());
        }
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
            Slot::Free | Slot::Claimed | Slot::Lost => Poll::Ready(Err(Ended)),
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
            _ => {
                self.queue.free(&mut state, self.slot);
                drop(state);
                drop(permit);
            }
        }
    }
}

fn descriptor(at: usize, len: u32, flags: u16, next: u16) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&address(at).to_le_bytes());
    bytes[8..12].copy_from_slice(&len.to_le_bytes());
    bytes[12..14].copy_from_slice(&flags.to_le_bytes());
    bytes[14..].copy_from_slice(&next.to_le_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use proptest::prelude::*;

    use super::*;
    use crate::memory::Slots;

    fn queue(is_indirect: bool) -> Arc<Queue> {
        let slots = Slots::new(is_indirect);
        let memory = Arc::new(Memory::new(1, slots).expect("memory"));
        Arc::new(Queue::new(memory, Layout::new(0, slots)).expect("a queue"))
    }

    fn claim(queue: &Arc<Queue>, bytes: usize) -> Claimed {
        let claimed = queue.claim(bytes).now_or_never();
        claimed.expect("a free slot").expect("not ended")
    }

    /// What a server would do: puts answers into the used ring.
    fn answer(queue: &Queue, index: u16, answers: &[(u32, u32)]) {
        for (at, (id, len)) in (0..).zip(answers) {
            let entry = [id.to_le_bytes(), len.to_le_bytes()].concat();
            let place = queue
                .layout
                .used_entry(index.wrapping_sub(answers.len() as u16).wrapping_add(at));
            queue.memory.write(place, &entry);
        }
        queue
            .memory
            .store(queue.layout.used_index(), index, Ordering::Release);
    }

    #[test]
    fn an_answer_ends_the_command_that_it_is_for() {
        for is_indirect in [true, false] {
            let queue = queue(is_indirect);
            let step = if is_indirect { 1 } else { u32::from(CHAIN) };
            let commands = [claim(&queue, 4096), claim(&queue, 0)];
            for command in &commands {
                command.send(Kind::Out, 8, 4096).expect("sent");
            }
            queue
                .memory
                .write(queue.layout.status(commands[1].slot), &[2]);
            answer(&queue, 1, &[(u32::from(commands[1].slot) * step, 1)]);
            queue.collect().expect("an answer");
            assert_eq!(commands[1].answered().now_or_never(), Some(Ok(2)));
            assert_eq!(commands[0].answered().now_or_never(), None);
            queue.end();
            assert_eq!(commands[0].answered().now_or_never(), Some(Err(Ended)));
        }
    }

    #[test]
    fn a_slot_of_a_command_that_was_dropped_is_used_again_after_its_answer_only() {
        let queue = queue(false);
        let all: Vec<_> = (0..queue.layout.slots.large)
            .map(|_| claim(&queue, 65536))
            .collect();
        all[0].send(Kind::In, 0, 65536).expect("sent");
        let id = u32::from(all[0].slot * CHAIN);
        drop(all);
        let again: Vec<_> = (1..queue.layout.slots.large)
            .map(|_| claim(&queue, 65536))
            .collect();
        let mut next = Box::pin(queue.claim(65536));
        assert!(
            next.as_mut().now_or_never().is_none(),
            "the server may still write to it"
        );
        answer(&queue, 1, &[(id, 65537)]);
        queue.collect().expect("an answer");
        assert!(next.now_or_never().is_some());
        drop(again);
    }

    #[test]
    fn answers_that_make_no_sense_are_errors_and_end_nothing() {
        let queue = queue(true);
        let command = claim(&queue, 4096);
        command.send(Kind::In, 0, 4096).expect("sent");
        let id = u32::from(command.slot);
        type Lie<'a> = (u16, &'a [(u32, u32)], &'a str);
        let lies: [Lie; 5] = [
            (2, &[(id, 1), (id, 1)], "answered 2 commands where it had 1"),
            (40_000, &[], "where it had 1"),
            (1, &[(id + 1, 1)], "which it did not have"),
            (1, &[(70_000, 1)], "which it did not have"),
            (1, &[(id, 4098)], "room for 4097"),
        ];
        for (index, answers, reason) in lies {
            answer(&queue, index, answers);
            let error = queue.collect().expect_err(reason);
            assert!(error.contains(reason), "{error}");
            assert_eq!(command.answered().now_or_never(), None);
        }
        // The same answer twice.
        answer(&queue, 1, &[(id, 4097)]);
        queue.collect().expect("an answer");
        let other = claim(&queue, 0);
        other.send(Kind::Flush, 0, 0).expect("sent");
        answer(&queue, 2, &[(id, 1)]);
        queue.collect().expect_err("it was answered already");
    }

    #[test]
    fn a_stopped_ring_is_settled_when_what_was_taken_is_answered() {
        let queue = queue(true);
        let commands: Vec<_> = (0..3).map(|_| claim(&queue, 0)).collect();
        for command in &commands {
            command.send(Kind::Flush, 0, 0).expect("sent");
        }
        assert!(!queue.is_answered(None));
        assert!(!queue.is_answered(Some(2)), "two were taken");
        answer(&queue, 2, &[(0, 1), (0, 1)]);
        assert!(queue.is_answered(Some(2)));
        assert!(!queue.is_answered(None));
        answer(&queue, 3, &[(0, 1)]);
        assert!(queue.is_answered(None));
    }

    proptest! {
        #[test]
        fn whatever_is_in_the_used_ring_nothing_panics(
            is_indirect: bool, index: u16, entries in prop::collection::vec((0u32..140, 0u32..5000), 0..128),
        ) {
            let queue = queue(is_indirect);
            let commands: Vec<_> = (0..20).map(|at| claim(&queue, at * 300)).collect();
            for command in &commands {
                command.send(Kind::In, 0, 300).expect("sent");
            }
            answer(&queue, index, &entries);
            if queue.collect().is_ok() {
                prop_assert!(index <= 20);
            }
            queue.end();
            prop_assert!(commands.iter().all(|c| c.answered().now_or_never().is_some()));
        }
    }
}
