//! Requests under way, in memory that the front-end keeps when this program ends (`VHOST_USER_PROTOCOL_F_INFLIGHT_SHMFD`).
//!
//! A request is noted before it is worked at, and its note goes after the guest can see that it was done. Whoever serves
//! the ring next does what is still noted, in the order in which it was taken.
//!
//! Guarantees: no request is lost by a crash at any point, and only one whose answer the guest saw may be forgotten. What
//! the front-end writes there can name wrong requests of its own guest, and nothing else.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use vm_memory::AtomicAccess;

use crate::chain::Malformed;
use crate::config::QUEUES_MAX;
use crate::mapping::Mapping;
use crate::message::InflightArea;
use crate::ring::SIZE_MAX;

/// The form of the notes, for split rings.
const VERSION: u16 = 1;

// The head of a queue's part.
const HEAD_BYTES: usize = 16;
const VERSION_AT: usize = 8;
const SIZE_AT: usize = 10;
const LAST_DONE_AT: usize = 12;
const USED_AT: usize = 14;

// A request's note.
const NOTE_BYTES: usize = 16;
const IS_TAKEN_AT: usize = 0;
const NEXT_AT: usize = 6;
const ORDER_AT: usize = 8;

/// Each queue's part begins at a multiple of this.
const PART_ALIGNMENT: usize = 64;

fn part_bytes(queue_size: u16) -> usize {
    (HEAD_BYTES + NOTE_BYTES * usize::from(queue_size)).next_multiple_of(PART_ALIGNMENT)
}

fn check(queues: u16, queue_size: u16) -> io::Result<()> {
    let fits =
        (1..=QUEUES_MAX).contains(&u32::from(queues)) && (1..=SIZE_MAX).contains(&queue_size);
    match fits {
        true => Ok(()),
        false => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "requests in flight of too many queues",
        )),
    }
}

/// Memory for the notes of so many queues.
pub(crate) fn make(queues: u16, queue_size: u16) -> io::Result<(InflightArea, OwnedFd)> {
    check(queues, queue_size)?;
    let len = (part_bytes(queue_size) * usize::from(queues)) as u64;
    let file = memfd_create("onefold-inflight", MemfdFlags::CLOEXEC)?;
    ftruncate(&file, len)?;
    let area = InflightArea {
        len,
        offset: 0,
        queues,
        queue_size,
    };
    Ok((area, file))
}

/// The notes of all queues.
pub(crate) struct Area {
    mapping: Mapping,
    queues: u16,
    queue_size: u16,
}

impl Area {
    pub(crate) fn map(area: InflightArea, file: OwnedFd) -> io::Result<Self> {
        check(area.queues, area.queue_size)?;
        let needed = part_bytes(area.queue_size) * usize::from(area.queues);
        if area.len < needed as u64 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "too little memory for requests in flight",
            ));
        }
        Ok(Self {
            mapping: Mapping::new(File::from(file), area.offset, area.len)?,
            queues: area.queues,
            queue_size: area.queue_size,
        })
    }

    /// Whether its memory has gone away.
    pub(crate) fn is_lost(&self) -> bool {
        self.mapping.is_lost()
    }
}

/// The notes of one queue.
pub(crate) struct Notes {
    area: Arc<Area>,
    at: usize,
    size: u16,
    /// The order of the next request.
    order: u64,
}

type Result<T> = std::result::Result<T, Malformed>;

const OUTSIDE: Malformed = Malformed("notes of requests in flight outside of their memory");

impl Notes {
    /// The notes of a queue of that size, and the requests that are still noted, in their order. `used` is the index of
    /// its used ring.
    pub(crate) fn open(
        area: Arc<Area>,
        queue: u32,
        size: u16,
        used: u16,
    ) -> Result<(Self, Vec<u16>)> {
        if queue >= u32::from(area.queues) || size > area.queue_size {
            return Err(Malformed("a queue without room for its requests in flight"));
        }
        let at = part_bytes(area.queue_size) * queue as usize;
        let mut notes = Self {
            area,
            at,
            size,
            order: 1,
        };
        let is_known =
            notes.load::<u16>(VERSION_AT)? == VERSION && notes.load::<u16>(SIZE_AT)? == size;
        if !is_known {
            for head in 0..size {
                notes.store(0u8, note(head) + IS_TAKEN_AT)?;
            }
            notes.store(used, USED_AT)?;
            notes.store(size, SIZE_AT)?;
            notes.store(VERSION, VERSION_AT)?;
            return Ok((notes, Vec::new()));
        }
        if notes.load::<u16>(USED_AT)? != used {
            // It ended between the guest's seeing of the last answer and the note of that.
            let last = notes.load::<u16>(LAST_DONE_AT)?;
            if last < size {
                notes.store(0u8, note(last) + IS_TAKEN_AT)?;
            }
            notes.store(used, USED_AT)?;
        }
        let mut taken = Vec::new();
        for head in 0..size {
            if notes.load::<u8>(note(head) + IS_TAKEN_AT)? == 1 {
                taken.push((notes.load::<u64>(note(head) + ORDER_AT)?, head));
            }
        }
        taken.sort_unstable();
        notes.order = taken.last().map_or(0, |(order, _)| *order).wrapping_add(1);
        Ok((notes, taken.into_iter().map(|(_, head)| head).collect()))
    }

    /// Where a number of this queue's part is in the area.
    fn place<T>(&self, at: usize) -> Result<usize> {
        let is_within = at + size_of::<T>() <= part_bytes(self.size);
        is_within.then_some(self.at + at).ok_or(OUTSIDE)
    }

    fn load<T: AtomicAccess>(&self, at: usize) -> Result<T> {
        let loaded = self.area.mapping.load(self.place::<T>(at)?);
        loaded.map_err(|_| OUTSIDE)
    }

    fn store<T: AtomicAccess>(&self, value: T, at: usize) -> Result<()> {
        let stored = self.area.mapping.store(self.place::<T>(at)?, value);
        stored.map_err(|_| OUTSIDE)
    }

    /// A request is taken.
    pub(crate) fn take(&mut self, head: u16) -> Result<()> {
        self.store(self.order, note(head) + ORDER_AT)?;
        self.order = self.order.wrapping_add(1);
        self.store(1u8, note(head) + IS_TAKEN_AT)
    }

    /// The guest is about to see that a request was done.
    pub(crate) fn begin_done(&mut self, head: u16) -> Result<()> {
        let before = self.load::<u16>(LAST_DONE_AT)?;
        self.store(before, note(head) + NEXT_AT)?;
        self.store(head, LAST_DONE_AT)
    }

    /// The guest can see it; its used ring is there now.
    pub(crate) fn end_done(&mut self, head: u16, used: u16) -> Result<()> {
        self.store(0u8, note(head) + IS_TAKEN_AT)?;
        self.store(used, USED_AT)
    }
}

/// Where the note of a request is.
fn note(head: u16) -> usize {
    HEAD_BYTES + NOTE_BYTES * usize::from(head)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn area() -> Arc<Area> {
        let (area, file) = make(2, 8).expect("memory");
        Arc::new(Area::map(area, file).expect("mapped"))
    }

    fn open(area: &Arc<Area>, used: u16) -> (Notes, Vec<u16>) {
        Notes::open(area.clone(), 1, 8, used).expect("notes")
    }

    #[test]
    fn what_was_taken_and_not_done_is_done_again_in_its_order() {
        let area = area();
        let (mut notes, again) = open(&area, 7);
        assert!(again.is_empty());
        for head in [5, 2, 6] {
            notes.take(head).expect("taken");
        }
        notes.begin_done(2).expect("noted");
        notes.end_done(2, 8).expect("noted");
        assert_eq!(open(&area, 8).1, [5, 6]);
    }

    #[test]
    fn what_the_guest_saw_done_is_not_done_again_wherever_the_program_ended() {
        let area = area();
        let (mut notes, _) = open(&area, 0);
        for head in [1, 3] {
            notes.take(head).expect("taken");
        }
        notes.begin_done(3).expect("noted");
        // The end comes before the guest can see it ...
        assert_eq!(open(&area, 0).1, [1, 3]);
        // ... or after.
        assert_eq!(open(&area, 1).1, [1]);
    }

    #[test]
    fn notes_that_are_none_harm_nobody() {
        let (told, file) = make(2, 8).expect("memory");
        let small = InflightArea { len: 8, ..told };
        let copy = || file.try_clone().expect("a descriptor");
        assert!(Area::map(small, copy()).is_err());
        let beyond = InflightArea {
            offset: 4096,
            ..told
        };
        assert!(Area::map(beyond, copy()).is_err());
        let many = InflightArea {
            queues: 1000,
            ..told
        };
        assert!(Area::map(many, copy()).is_err());
        let area = Arc::new(Area::map(told, file).expect("mapped"));
        assert!(Notes::open(area.clone(), 2, 8, 0).is_err());
        assert!(Notes::open(area.clone(), 0, 16, 0).is_err());
        let (notes, _) = open(&area, 0);
        notes.store(500u16, LAST_DONE_AT).expect("stored");
        assert!(open(&area, 9).1.is_empty());
    }
}
