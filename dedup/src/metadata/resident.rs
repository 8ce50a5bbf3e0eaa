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
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use meta::{MapId, Pba};

use crate::sync::wait::{Held, lock};

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

/// The accounts of what is in memory. Who shares the state changes them, too.
pub(crate) struct Resident {
    accounts: Mutex<Accounts>,
    limit: u64,
    /// Writes have to wait.
    is_crowded: Arc<AtomicBool>,
    /// What [`Resident::wants_eviction`] looks at first.
    bytes: AtomicU64,
    has_stale: AtomicBool,
}

struct Accounts {
    bytes: u64,
    /// A part of `bytes`: where what is stored is noted.
    directory_bytes: u64,
    /// A part of `bytes`: what is noted of row pages of blocks.
    pages_bytes: u64,
    clock: VecDeque<Key>,
    stale: usize,
    /// Steps since something was evicted.
    idle: usize,
    next_ticket: u32,
    /// The store has what all records up to this one changed.
    stored: u64,
    /// Reads of the store for pages, and pages that left memory.
    reads: u64,
    evictions: u64,
}

impl Resident {
    pub(crate) fn new(limit: u64) -> Self {
        Self {
            accounts: Mutex::new(Accounts {
                bytes: 0,
                directory_bytes: 0,
                pages_bytes: 0,
                clock: VecDeque::new(),
                stale: 0,
                idle: 0,
                next_ticket: 0,
                stored: 0,
                reads: 0,
                evictions: 0,
            }),
            limit,
            is_crowded: Arc::default(),
            bytes: AtomicU64::new(0),
            has_stale: AtomicBool::new(false),
        }
    }

    fn accounts(&self) -> Held<'_, Accounts> {
        lock(&self.accounts)
    }

    /// Memory in use, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.accounts().bytes
    }

    /// Memory that there is, in bytes.
    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    /// Up to which record the store has everything.
    pub(crate) fn stored(&self) -> u64 {
        self.accounts().stored
    }

    /// The store has everything up to this record from now on.
    pub(crate) fn set_stored(&self, sequence: u64) {
        let mut accounts = self.accounts();
        accounts.stored = accounts.stored.max(sequence);
        accounts.idle = 0;
    }

    /// The store was read for a page.
    pub(crate) fn was_read(&self) {
        self.accounts().reads += 1;
    }

    /// Reads of the store for pages, and pages that left memory, so far.
    pub(crate) fn reads_and_evictions(&self) -> (u64, u64) {
        let accounts = self.accounts();
        (accounts.reads, accounts.evictions)
    }

    /// A flag that says whether writes have to wait.
    pub(crate) fn crowded_flag(&self) -> Arc<AtomicBool> {
        self.is_crowded.clone()
    }

    /// Whether more is in memory than should be.
    pub(crate) fn is_full(&self) -> bool {
        self.accounts().is_full(self.limit)
    }

    /// Something that could not leave perhaps can.
    pub(crate) fn may_move(&self) {
        self.accounts().idle = 0;
    }

    /// Whether the clock went round without finding anything that could leave.
    pub(crate) fn is_stuck(&self) -> bool {
        self.accounts().is_stuck(self.limit)
    }

    /// Whether what notes where something is stored takes more than its share.
    pub(crate) fn is_directory_full(&self) -> bool {
        self.accounts().directory_bytes > self.limit / 4
    }

    /// For what comes into memory.
    pub(crate) fn ticket(&self) -> u32 {
        let mut accounts = self.accounts();
        accounts.next_ticket = accounts.next_ticket.wrapping_add(1);
        accounts.next_ticket
    }

    /// It came into memory.
    pub(crate) fn add(&self, key: Key, bytes: u64) {
        let mut accounts = self.accounts();
        accounts.clock.push_back(key);
        let bytes = accounts.bytes + bytes;
        self.set_bytes(&mut accounts, bytes);
    }

    /// So many left memory otherwise than by the clock.
    pub(crate) fn dropped(&self, count: u64, bytes: u64) {
        let mut accounts = self.accounts();
        accounts.stale += count as usize;
        let bytes = accounts.bytes.saturating_sub(bytes);
        self.set_bytes(&mut accounts, bytes);
    }

    /// A part of the directory came.
    pub(crate) fn directory_grows(&self, bytes: u64) {
        let mut accounts = self.accounts();
        accounts.directory_bytes += bytes;
        let bytes = accounts.bytes + bytes;
        self.set_bytes(&mut accounts, bytes);
    }

    /// A part of the directory went.
    pub(crate) fn directory_shrinks(&self, bytes: u64) {
        let mut accounts = self.accounts();
        accounts.directory_bytes = accounts.directory_bytes.saturating_sub(bytes);
        let bytes = accounts.bytes.saturating_sub(bytes);
        self.set_bytes(&mut accounts, bytes);
    }

    /// What is noted of row pages of blocks takes so much now.
    pub(crate) fn set_pages_bytes(&self, pages_bytes: u64) {
        let mut accounts = self.accounts();
        let before = std::mem::replace(&mut accounts.pages_bytes, pages_bytes);
        if before != pages_bytes {
            let bytes = (accounts.bytes + pages_bytes).saturating_sub(before);
            self.set_bytes(&mut accounts, bytes);
        }
    }

    #[cfg(test)]
    pub(crate) fn pages_bytes(&self) -> u64 {
        self.accounts().pages_bytes
    }

    fn set_bytes(&self, accounts: &mut Accounts, bytes: u64) {
        accounts.bytes = bytes;
        self.bytes.store(bytes, Ordering::Relaxed);
        self.has_stale
            .store(accounts.stale > STALE_MIN, Ordering::Relaxed);
        if !accounts.is_full(self.limit) {
            accounts.idle = 0;
        }
        let is_crowded = bytes > self.limit.saturating_add(self.limit / 4);
        if self.is_crowded.load(Ordering::Relaxed) != is_crowded {
            self.is_crowded.store(is_crowded, Ordering::Release);
        }
    }

    /// Whether the clock has something to do, if so much more came into memory.
    pub(super) fn wants_eviction(&self, bytes: u64) -> bool {
        // The directory is a part of all bytes: where these are few, it is small.
        let bytes = self.bytes.load(Ordering::Relaxed) + bytes;
        if bytes <= self.limit / 4 && !self.has_stale.load(Ordering::Relaxed) {
            return false;
        }
        let accounts = self.accounts();
        bytes > self.limit && !accounts.is_stuck(self.limit)
            || accounts.has_many_stale()
            || accounts.directory_bytes > self.limit / 4
    }

    /// Whether a step of the clock is worth its while.
    pub(super) fn wants_step(&self) -> bool {
        let accounts = self.accounts();
        let may_evict = accounts.is_full(self.limit) && !accounts.is_stuck(self.limit);
        may_evict || accounts.has_many_stale()
    }

    /// The key that the clock comes to next.
    pub(super) fn next_key(&self) -> Option<Key> {
        self.accounts().clock.pop_front()
    }

    /// What became of that key.
    pub(super) fn settle(&self, key: Key, fate: Fate) {
        let mut accounts = self.accounts();
        match fate {
            Fate::Stale => accounts.stale = accounts.stale.saturating_sub(1),
            Fate::Kept => {
                accounts.clock.push_back(key);
                accounts.idle += usize::from(accounts.is_full(self.limit));
            }
            Fate::Evicted(bytes) => {
                accounts.idle = 0;
                accounts.evictions += u64::from(matches!(key, Key::Page { .. }));
                let bytes = accounts.bytes.saturating_sub(bytes);
                self.set_bytes(&mut accounts, bytes);
            }
        }
    }
}

impl Accounts {
    fn has_many_stale(&self) -> bool {
        self.stale > STALE_MIN.max(self.clock.len() / 2)
    }

    fn is_full(&self, limit: u64) -> bool {
        self.bytes > limit
    }

    fn is_stuck(&self, limit: u64) -> bool {
        self.is_full(limit) && self.idle >= 2 * self.clock.len()
    }
}
