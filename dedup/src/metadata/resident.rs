//! What of the maps and of the rows of blocks is in memory, and what is evicted when memory is full (I6).
//!
//! One clock (second chance) goes round over all pages of maps and row pages of blocks. A page that was used since the
//! clock last passed gets another round. Of the rest, a page that the store has too is evicted, and read again when it
//! is needed. Nothing is ever written to evict a page.
//!
//! Guarantees, whenever the state is not locked:
//! * What is not in memory is in the store as it was when it left, and nobody changed it since: what is
//!   changed has to be in memory, and what the store does not have yet ([`Resident::stored`]) stays.
//! * A row page stays as long as a command holds a reference on a block of it, or has pinned it
//!   ([`crate::residency::rows`]). Nothing is evicted between the check of an append and the changes that it makes.
//! * What commands under way have looked up, or are about to change, stays: the range lock of a volume
//!   keeps the pages of its ranges, a [`Window`](crate::residency::pages::Window) those of a walk through a map.
//! * So a page that is being read from the store cannot have been in memory, changed, stored and evicted
//!   since the reading began: who reads it holds a range, or a window, that it belongs to.
//! * Above the limit are only what was changed and is not stored yet, and what commands hold. A quarter
//!   above it, writes wait for a checkpoint.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use meta::{MapId, Pba};

/// Keys that lead nowhere any more, and are borne besides as many again as there are others.
const STALE_MIN: usize = 1024;

/// Something that can leave memory. `ticket` tells what is there now from what was there before.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Key {
    /// A page of a map.
    Page { map: MapId, ticket: u32, page: u64 },
    /// A row page of what is known of blocks, by its first address: it leaves memory in no other way.
    RowPage(Pba),
}

/// What became of a key that the clock came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// What it named is not there any more.
    Stale,
    /// It stays for another round.
    Kept,
    /// It left memory: so many bytes.
    Evicted(u64),
}

/// The accounts of what is in memory.
pub(crate) struct Resident {
    bytes: u64,
    limit: u64,
    /// A part of `bytes`: where what is stored is noted.
    directory_bytes: u64,
    clock: VecDeque<Key>,
    stale: usize,
    /// Steps since something was evicted.
    idle: usize,
    next_ticket: u32,
    /// The store has what all records up to this one changed.
    stored: u64,
    /// Reads of the store for pages, and pages that left memory.
    pub(crate) reads: u64,
    pub(crate) evictions: u64,
    /// Writes have to wait.
    is_crowded: Arc<AtomicBool>,
}

impl Resident {
    pub(crate) fn new(limit: u64) -> Self {
        Self {
            bytes: 0,
            limit,
            directory_bytes: 0,
            clock: VecDeque::new(),
            stale: 0,
            idle: 0,
            next_ticket: 0,
            stored: 0,
            reads: 0,
            evictions: 0,
            is_crowded: Arc::default(),
        }
    }

    /// Memory in use, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Memory that there is, in bytes.
    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    /// Up to which record the store has everything.
    pub(crate) fn stored(&self) -> u64 {
        self.stored
    }

    /// The store has everything up to this record from now on.
    pub(crate) fn set_stored(&mut self, sequence: u64) {
        self.stored = self.stored.max(sequence);
        self.idle = 0;
    }

    /// A flag that says whether writes have to wait.
    pub(crate) fn crowded_flag(&self) -> Arc<AtomicBool> {
        self.is_crowded.clone()
    }

    /// Whether more is in memory than should be.
    pub(crate) fn is_full(&self) -> bool {
        self.bytes > self.limit
    }

    /// Something that could not leave perhaps can.
    pub(crate) fn may_move(&mut self) {
        self.idle = 0;
    }

    /// Whether the clock went round without finding anything that could leave.
    pub(crate) fn is_stuck(&self) -> bool {
        self.is_full() && self.idle >= 2 * self.clock.len()
    }

    /// Whether what notes where something is stored takes more than its share.
    pub(crate) fn is_directory_full(&self) -> bool {
        self.directory_bytes > self.limit / 4
    }

    /// For what comes into memory.
    pub(crate) fn ticket(&mut self) -> u32 {
        self.next_ticket = self.next_ticket.wrapping_add(1);
        self.next_ticket
    }

    /// It came into memory.
    pub(crate) fn add(&mut self, key: Key, bytes: u64) {
        self.clock.push_back(key);
        self.set_bytes(self.bytes + bytes);
    }

    /// So many left memory otherwise than by the clock.
    pub(crate) fn dropped(&mut self, count: u64, bytes: u64) {
        self.stale += count as usize;
        self.set_bytes(self.bytes.saturating_sub(bytes));
    }

    /// A part of the directory came.
    pub(crate) fn directory_grows(&mut self, bytes: u64) {
        self.directory_bytes += bytes;
        self.set_bytes(self.bytes + bytes);
    }

    /// A part of the directory went.
    pub(crate) fn directory_shrinks(&mut self, bytes: u64) {
        self.directory_bytes = self.directory_bytes.saturating_sub(bytes);
        self.set_bytes(self.bytes.saturating_sub(bytes));
    }

    fn set_bytes(&mut self, bytes: u64) {
        self.bytes = bytes;
        if !self.is_full() {
            self.idle = 0;
        }
        let is_crowded = bytes > self.limit.saturating_add(self.limit / 4);
        if self.is_crowded.load(Ordering::Relaxed) != is_crowded {
            self.is_crowded.store(is_crowded, Ordering::Release);
        }
    }

    /// Whether a step of the clock is worth its while.
    pub(super) fn wants_step(&self) -> bool {
        (self.is_full() && !self.is_stuck()) || self.stale > STALE_MIN.max(self.clock.len() / 2)
    }

    /// The key that the clock comes to next.
    pub(super) fn next_key(&mut self) -> Option<Key> {
        self.clock.pop_front()
    }

    /// What became of that key.
    pub(super) fn settle(&mut self, key: Key, fate: Fate) {
        match fate {
            Fate::Stale => self.stale = self.stale.saturating_sub(1),
            Fate::Kept => {
                self.clock.push_back(key);
                self.idle += usize::from(self.is_full());
            }
            Fate::Evicted(bytes) => {
                self.idle = 0;
                self.evictions += u64::from(matches!(key, Key::Page { .. }));
                self.set_bytes(self.bytes.saturating_sub(bytes));
            }
        }
    }
}
