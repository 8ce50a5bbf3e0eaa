//! The memory that a connection shares with its server: rings, headers and data of all queues, in one file.
//!
//! Guarantees: the file is sealed, so that the server cannot cut it off; all of it is there from the start; accesses are
//! checked, and volatile, because the server may change the memory at any time, against the rules too.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;

use reactor::SharedPages;
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, memfd_create};
use vm_memory::mmap::MmapRegion;
use vm_memory::{AtomicAccess, Bytes, FileOffset, VolatileMemory};

use crate::message::RingAddresses;

/// Where the memory begins in the addresses that the server is told, those of a guest and those of this side alike. The
/// server only translates them.
pub(crate) const BASE: u64 = 1 << 32;

/// Its length is a multiple of a huge page: servers that pass memory on to devices do so in these units.
const UNIT_BYTES: usize = 2 << 20;

/// Bytes of the data of one block, and of the longest command.
pub(crate) const SMALL_BYTES: usize = 4096;
pub(crate) const LARGE_BYTES: usize = 128 << 10;

/// Entries of a queue. Servers tell no maximum; this is what every one of them takes.
pub(crate) const ENTRIES: u16 = 128;

/// Descriptors of a command: header, data, status (VIRTIO 1.2, section 5.2.6).
pub(crate) const CHAIN: u16 = 3;

/// Bytes of a descriptor (2.7.5).
pub(crate) const DESCRIPTOR_BYTES: usize = 16;

/// Segments of the data of a command at most: those of the longest one, if each of its blocks is elsewhere.
pub(crate) const SEGMENTS_MAX: usize = LARGE_BYTES / SMALL_BYTES;

/// Bytes of what each slot has besides its data: a table of descriptors, the header, and the status.
const CONTROL_BYTES: usize = 640;
const HEADER_AT: usize = DESCRIPTOR_BYTES * (SEGMENTS_MAX + 2);
const STATUS_AT: usize = HEADER_AT + 32;

/// Where the parts of a queue are, from its start: descriptors, then from 2 KiB the available ring, then on pages of their own
/// the used ring and what belongs to slots.
const AVAILABLE_AT: usize = DESCRIPTOR_BYTES * ENTRIES as usize;
const USED_AT: usize = 4096;
const CONTROL_AT: usize = 8192;
const DATA_AT: usize = CONTROL_AT + CONTROL_BYTES * ENTRIES as usize;

const _: () = {
    // Flags, index, entries of 2 bytes, and one number: the answer to be called for.
    assert!(AVAILABLE_AT + 4 + 2 * ENTRIES as usize + 2 <= USED_AT);
    // The same with entries of 8 bytes; there the number is that of the command to be kicked for.
    assert!(USED_AT + 4 + 8 * ENTRIES as usize + 2 <= CONTROL_AT);
    // A table is no longer than the queue (2.7.5.3.1).
    assert!(STATUS_AT < CONTROL_BYTES && SEGMENTS_MAX + 2 <= ENTRIES as usize);
};

/// How many commands of each length a queue has in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slots {
    pub(crate) small: u16,
    pub(crate) large: u16,
    /// Each has one entry of the queue, which points to its descriptors; otherwise it has three.
    pub(crate) is_indirect: bool,
}

impl Slots {
    pub(crate) const fn new(is_indirect: bool) -> Self {
        let (small, large) = match is_indirect {
            true => (100, 28),
            false => (28, 14),
        };
        Self {
            small,
            large,
            is_indirect,
        }
    }

    pub(crate) fn count(self) -> u16 {
        self.small + self.large
    }

    /// Bytes of a queue, a multiple of 4096.
    const fn queue_bytes(self) -> usize {
        DATA_AT + self.small as usize * SMALL_BYTES + self.large as usize * LARGE_BYTES
    }
}

/// Bytes that a reactor's queue has at most.
pub(crate) const QUEUE_BYTES_MAX: usize = Slots::new(true).queue_bytes();

/// The places of one queue in the memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    start: usize,
    pub(crate) slots: Slots,
}

impl Layout {
    pub(crate) fn new(queue: u16, slots: Slots) -> Self {
        Self {
            start: usize::from(queue) * slots.queue_bytes(),
            slots,
        }
    }

    pub(crate) fn addresses(&self) -> RingAddresses {
        RingAddresses {
            descriptors: address(self.start),
            available: address(self.start + AVAILABLE_AT),
            used: address(self.start + USED_AT),
        }
    }

    pub(crate) fn descriptor(&self, index: u16) -> usize {
        self.start + usize::from(index) * DESCRIPTOR_BYTES
    }

    pub(crate) fn available_flags(&self) -> usize {
        self.start + AVAILABLE_AT
    }

    pub(crate) fn available_index(&self) -> usize {
        self.start + AVAILABLE_AT + 2
    }

    pub(crate) fn available_entry(&self, at: u16) -> usize {
        self.start + AVAILABLE_AT + 4 + usize::from(at % ENTRIES) * 2
    }

    pub(crate) fn used_flags(&self) -> usize {
        self.start + USED_AT
    }

    pub(crate) fn used_index(&self) -> usize {
        self.start + USED_AT + 2
    }

    pub(crate) fn used_entry(&self, at: u16) -> usize {
        self.start + USED_AT + 4 + usize::from(at % ENTRIES) * 8
    }

    /// The answer that the server is to call for (`used_event`, 2.7.10).
    pub(crate) fn call_event(&self) -> usize {
        self.start + AVAILABLE_AT + 4 + usize::from(ENTRIES) * 2
    }

    /// The command that the server wants to be kicked for (`avail_event`, 2.7.10).
    pub(crate) fn kick_event(&self) -> usize {
        self.start + USED_AT + 4 + usize::from(ENTRIES) * 8
    }

    fn control(&self, slot: u16) -> usize {
        self.start + CONTROL_AT + usize::from(slot) * CONTROL_BYTES
    }

    /// Entry `at` of the slot's own table of descriptors.
    pub(crate) fn indirect(&self, slot: u16, at: u16) -> usize {
        self.control(slot) + usize::from(at) * DESCRIPTOR_BYTES
    }

    pub(crate) fn header(&self, slot: u16) -> usize {
        self.control(slot) + HEADER_AT
    }

    pub(crate) fn status(&self, slot: u16) -> usize {
        self.control(slot) + STATUS_AT
    }

    /// Where the slot's data are, and how many bytes it has for them.
    pub(crate) fn data(&self, slot: u16) -> (usize, usize) {
        let data = self.start + DATA_AT;
        match slot.checked_sub(self.slots.small) {
            None => (data + usize::from(slot) * SMALL_BYTES, SMALL_BYTES),
            Some(large) => {
                let large_at = data + usize::from(self.slots.small) * SMALL_BYTES;
                (large_at + usize::from(large) * LARGE_BYTES, LARGE_BYTES)
            }
        }
    }
}

/// What the server calls a place in the memory.
pub(crate) fn address(at: usize) -> u64 {
    BASE + at as u64
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Memory {
    file: File,
    region: MmapRegion<()>,
}

impl Memory {
    /// Memory for so many queues.
    ///
    /// # Errors
    /// The system has not so much.
    pub(crate) fn new(queues: u16, slots: Slots, pages: SharedPages) -> io::Result<Self> {
        let bytes = usize::from(queues.max(1)) * slots.queue_bytes();
        let bytes = bytes.next_multiple_of(UNIT_BYTES);
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let flags = match pages {
            SharedPages::Usual => flags,
            SharedPages::Huge => flags | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB,
        };
        let file = File::from(memfd_create("onefold-vhost-drive", flags)?);
        fallocate(&file, FallocateFlags::empty(), 0, bytes as u64)?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        fcntl_add_seals(&file, seals)?;
        let offset = FileOffset::new(file.try_clone()?, 0);
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let region = MmapRegion::build(Some(offset), bytes, access, libc::MAP_SHARED);
        let region = region.map_err(io::Error::other)?;
        Ok(Self { file, region })
    }

    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    pub(crate) fn len(&self) -> u64 {
        self.region.size() as u64
    }

    /// Copies out of it. Places come from a [`Layout`] for its queues.
    #[inline]
    pub(crate) fn read(&self, at: usize, to: &mut [u8]) {
        let part = self.region.get_slice(at, to.len()).expect(INSIDE);
        part.copy_to(to);
    }

    /// Copies into it.
    #[inline]
    pub(crate) fn write(&self, at: usize, from: &[u8]) {
        let part = self.region.get_slice(at, from.len()).expect(INSIDE);
        part.copy_from(from);
    }

    #[inline]
    pub(crate) fn load<T: AtomicAccess>(&self, at: usize, order: Ordering) -> T {
        let all = self.region.as_volatile_slice();
        all.load(at, order).expect(INSIDE)
    }

    #[inline]
    pub(crate) fn store<T: AtomicAccess>(&self, at: usize, value: T, order: Ordering) {
        let all = self.region.as_volatile_slice();
        all.store(value, at, order).expect(INSIDE);
    }
}

/// Why an access cannot fail: no place is taken from what the server says.
const INSIDE: &str = "a layout's places are inside of its memory";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_places_of_the_queues_overlap_and_all_are_inside() {
        for is_indirect in [true, false] {
            let slots = Slots::new(is_indirect);
            let entries = slots.count() * if is_indirect { 1 } else { CHAIN };
            assert!(entries <= ENTRIES);
            let memory = Memory::new(3, slots, SharedPages::Usual).expect("memory");
            let mut places = Vec::new();
            for queue in 0..3 {
                let layout = Layout::new(queue, slots);
                let at = layout.addresses();
                places.push(((at.descriptors - BASE) as usize, AVAILABLE_AT));
                places.push(((at.available - BASE) as usize, 6 + 2 * usize::from(ENTRIES)));
                places.push(((at.used - BASE) as usize, 6 + 8 * usize::from(ENTRIES)));
                for slot in 0..slots.count() {
                    places.push((layout.indirect(slot, 0), 16 * (SEGMENTS_MAX + 2)));
                    places.push((layout.header(slot), 16));
                    places.push((layout.status(slot), 1));
                    places.push(layout.data(slot));
                }
            }
            places.sort_unstable();
            for pair in places.windows(2) {
                assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{pair:?}");
            }
            let last = places.last().expect("places");
            assert!((last.0 + last.1) as u64 <= memory.len());
        }
    }

    #[test]
    fn the_file_can_be_neither_cut_off_nor_unsealed() {
        let memory = Memory::new(1, Slots::new(true), SharedPages::Usual).expect("memory");
        memory.file.set_len(0).expect_err("sealed");
        fcntl_add_seals(&memory.file, SealFlags::WRITE).expect_err("sealed");
        memory.write(5, b"abc");
        let mut back = [0; 3];
        memory.read(5, &mut back);
        assert_eq!(&back, b"abc");
    }
}
