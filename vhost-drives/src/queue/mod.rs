//! A split virtqueue, seen by its driver (VIRTIO 1.2, section 2.7): commands go in, and what the server did comes out.
//!
//! Guarantees:
//! - A slot (descriptors, header, data) belongs to one command from [`Queue::claim`] until the server has answered it, also
//!   when nobody waits for it any more. So does its share of a [`Loan`]; if the queue ends before, until it is dropped.
//! - What the server writes into the rings is believed only where it fits what was asked: an answer to no command, a count of
//!   answers that is larger than that of commands, or more bytes than a command has room for, is an error.
//! - When the queue ends, all who wait go on at once.
//! - Any thread may use it. The server has to call only if a reactor sleeps that waits for an answer: those that are awake look.

mod claimed;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Instant;

use reactor::sync::{Permit, Semaphore};
use rustix::event::{EventfdFlags, eventfd};

use crate::memory::{CHAIN, Layout, Memory, SMALL_BYTES};

pub(crate) use claimed::Claimed;

/// Flags of a descriptor (2.7.5).
const NEXT: u16 = 1;
const DEVICE_WRITES: u16 = 2;
const INDIRECT: u16 = 4;

/// The server needs no kick (`VIRTQ_USED_F_NO_NOTIFY`, 2.7.10).
const NO_NOTIFY: u16 = 1;

/// The server need not call (`VIRTQ_AVAIL_F_NO_INTERRUPT`, 2.7.7).
const NO_INTERRUPT: u16 = 1;

/// After so many answers the server is told again what to call for.
const TELL_AFTER: u16 = 1 << 13;

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

    /// For messages.
    pub(crate) fn what(self) -> &'static str {
        match self {
            Self::In => "a read",
            Self::Out => "a write",
            Self::Flush => "a flush",
            Self::Discard => "a discard",
            Self::GetId => "a question for the name",
        }
    }

    fn is_from_server(self) -> bool {
        matches!(self, Self::In | Self::GetId)
    }
}

/// A stretch of the memory that the server knows, by its address there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) address: u64,
    pub(crate) len: u32,
}

/// Stands for memory of somebody else that commands have: as long as commands share it, the server may read and write there.
pub(crate) type Loan = Arc<()>;

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
    /// The queue ended while the server had it, and what it was lent.
    Lost {
        _loan: Option<Loan>,
    },
}

#[derive(Debug)]
struct InFlight {
    kind: Kind,
    user: usize,
    since: Instant,
    /// Bytes that the server may write, the status included.
    writable: u32,
    waker: Option<Waker>,
    /// Of a command that nobody waits for.
    abandoned: Option<Permit>,
    loan: Option<Loan>,
}

#[derive(Debug)]
struct State {
    /// The next place in the available ring: so many commands were given to the server.
    available: u16,
    /// Of these, the server was kicked for so many, or did not want to be.
    kicked: u16,
    /// The next place in the used ring: so many answers were taken.
    used: u16,
    /// Where that was when the server was last told what to call for.
    told: u16,
    /// Whether it was told to call.
    calls: bool,
    slots: Vec<Slot>,
    free_small: Vec<u16>,
    free_large: Vec<u16>,
    /// The reactors that use it or did, by their numbers.
    users: Vec<User>,
    is_ended: bool,
}

/// A reactor that uses a queue.
#[derive(Debug, Default)]
struct User {
    is_asleep: bool,
    /// Its commands that the server has.
    in_flight: u16,
}

impl State {
    /// Whether the server has to call.
    fn wants_calls(&self) -> bool {
        let waits = |user: &User| user.is_asleep && user.in_flight > 0;
        self.users.iter().any(waits)
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Queue {
    memory: Arc<Memory>,
    layout: Layout,
    has_event_index: bool,
    kick: OwnedFd,
    call: OwnedFd,
    small: Semaphore,
    large: Semaphore,
    /// Something was given to the server that it was not kicked for.
    is_unkicked: AtomicBool,
    /// As in the state, for who only looks: answers that were taken, and the end.
    taken: AtomicU16,
    is_ended: AtomicBool,
    state: Mutex<State>,
}

impl Queue {
    /// A queue over its part of the memory.
    ///
    /// # Errors
    /// The system has no more descriptors.
    pub(crate) fn new(
        memory: Arc<Memory>,
        layout: Layout,
        has_event_index: bool,
    ) -> std::io::Result<Self> {
        let event = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let slots = layout.slots;
        let state = State {
            available: 0,
            kicked: 0,
            used: 0,
            told: 0,
            calls: false,
            slots: (0..slots.count()).map(|_| Slot::Free).collect(),
            free_small: (0..slots.small).collect(),
            free_large: (slots.small..slots.count()).collect(),
            users: Vec::new(),
            is_ended: false,
        };
        Ok(Self {
            memory,
            layout,
            has_event_index,
            kick: event()?,
            call: event()?,
            small: Semaphore::new(usize::from(slots.small)),
            large: Semaphore::new(usize::from(slots.large)),
            is_unkicked: AtomicBool::new(false),
            taken: AtomicU16::new(0),
            is_ended: AtomicBool::new(false),
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

    /// The server is told whether it has to call.
    fn tell_wish(&self, state: &mut State) {
        state.calls = state.wants_calls();
        let (place, wish) = match (self.has_event_index, state.calls) {
            (false, false) => (self.layout.available_flags(), NO_INTERRUPT),
            (false, true) => (self.layout.available_flags(), 0),
            // An answer of the past does not come for a long time.
            (true, false) => (self.layout.call_event(), state.used.wrapping_sub(1)),
            (true, true) => (self.layout.call_event(), state.used),
        };
        state.told = state.used;
        self.memory.store(place, wish, Ordering::Release);
    }

    /// A reactor uses it from here on, and is awake: its number here.
    pub(crate) fn join(&self) -> usize {
        let mut state = self.state();
        state.users.push(User::default());
        self.tell_wish(&mut state);
        state.users.len() - 1
    }

    /// A reactor is about to sleep: from here on the server calls, if that one waits for something. False if there is an answer
    /// already.
    pub(crate) fn fall_asleep(&self, user: usize) -> bool {
        let mut state = self.state();
        state.users[user].is_asleep = true;
        if state.users[user].in_flight == 0 {
            return true;
        }
        self.tell_wish(&mut state);
        drop(state);
        // The wish is seen by the server before its answers are looked at (2.7.7.2).
        fence(Ordering::SeqCst);
        !self.has_answers()
    }

    /// That reactor is awake again.
    pub(crate) fn wake_up(&self, user: usize) {
        let mut state = self.state();
        state.users[user].is_asleep = false;
        if state.calls {
            self.tell_wish(&mut state);
        }
    }

    /// Whether the server has answered something that was not taken.
    #[inline]
    pub(crate) fn has_answers(&self) -> bool {
        let place = self.layout.used_index();
        let index: u16 = self.memory.load(place, Ordering::Acquire);
        index != self.taken.load(Ordering::Relaxed) && !self.is_ended.load(Ordering::Relaxed)
    }

    /// Kicks the server if it was given something, and wants to be told.
    #[inline]
    pub(crate) fn kick_if_wanted(&self) {
        if !self.is_unkicked.load(Ordering::Relaxed)
            || !self.is_unkicked.swap(false, Ordering::AcqRel)
        {
            return;
        }
        let mut state = self.state();
        let new = state.available;
        let old = std::mem::replace(&mut state.kicked, new);
        drop(state);
        // What it was given is seen by the server before its wish is looked at (2.7.13.4).
        fence(Ordering::SeqCst);
        let wish = match self.has_event_index {
            true => self.layout.kick_event(),
            false => self.layout.used_flags(),
        };
        let wish: u16 = self.memory.load(wish, Ordering::Acquire);
        let is_wanted = match self.has_event_index {
            // It is among those that are new (2.7.10.1).
            true => new.wrapping_sub(wish).wrapping_sub(1) < new.wrapping_sub(old),
            false => wish & NO_NOTIFY == 0,
        };
        if is_wanted {
            // A counter that is full has kicked enough.
            let _ = rustix::io::write(&self.kick, &1_u64.to_ne_bytes());
        }
    }

    /// The command that has been with the server for longest, and since when.
    pub(crate) fn oldest(&self) -> Option<(Instant, Kind)> {
        let state = self.state();
        let in_flight = state.slots.iter().filter_map(|slot| match slot {
            Slot::InFlight(in_flight) => Some((in_flight.since, in_flight.kind)),
            _ => None,
        });
        in_flight.min_by_key(|(since, _)| *since)
    }

    /// Waits for a slot with room for so many bytes, for the reactor with this number.
    ///
    /// # Errors
    /// The queue has ended.
    pub(crate) async fn claim(
        self: &Arc<Self>,
        user: usize,
        bytes: usize,
    ) -> Result<Claimed, Ended> {
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
            user,
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

    /// Takes what the server has answered. `wakers` is room for those that are woken, and is empty again afterwards.
    ///
    /// # Errors
    /// What the server wrote makes no sense. Nothing of it was taken that does not.
    pub(crate) fn collect(&self, wakers: &mut Vec<Waker>) -> Result<(), String> {
        let mut permits = Vec::new();
        let collected = self.collect_into(wakers, &mut permits);
        // Outside of the lock.
        wakers.drain(..).for_each(Waker::wake);
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
                let since_told = state.used.wrapping_sub(state.told);
                let is_told = match state.wants_calls() {
                    // As long as the server is told now and then, no answer of the past comes again.
                    false => since_told < TELL_AFTER,
                    // What it was to call for was taken by a reactor that is awake.
                    true => since_told == 0,
                };
                if is_told {
                    return Ok(());
                }
                self.tell_wish(state);
                // What it answered before it saw that is looked for once more.
                fence(Ordering::SeqCst);
                continue;
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
            self.taken.store(state.used, Ordering::Relaxed);
            in_flight.loan = None;
            let user = in_flight.user;
            wakers.extend(in_flight.waker.take());
            let abandoned = in_flight.abandoned.take();
            state.users[user].in_flight -= 1;
            match abandoned {
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
        self.is_ended.store(true, Ordering::Relaxed);
        for slot in &mut state.slots {
            if let Slot::InFlight(in_flight) = slot {
                wakers.extend(in_flight.waker.take());
                permits.extend(in_flight.abandoned.take());
                *slot = Slot::Lost {
                    _loan: in_flight.loan.take(),
                };
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

#[cfg(test)]
mod tests;
