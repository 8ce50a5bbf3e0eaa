//! A part of the index: entries in buckets of one cache line.
//!
//! Guarantee: what is atomic changes only while the shard is locked; it is read without.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use meta::Fingerprint;
use reactor::{prefetch, prefetch_at};

/// Entries of a bucket: one cache line.
pub(super) const SLOTS: usize = 8;
/// A shard with more than nine tenths of its slots in use grows by an eighth: 9.0 to 10.2 bytes an
/// entry.
const LOAD_MAX: (usize, usize) = (9, 10);
const GROWTH: usize = 8;
/// Bits of an entry that come from the fingerprint.
const TAG_BITS: u32 = 24;
/// Bits of an entry that hold the number of the address, counted over all drives, plus one.
pub(super) const NUMBER_BITS: u32 = 40;
/// Entries that lie behind a bucket and are counted, at most.
const PASSED_MAX: u8 = u8::MAX;
/// Buckets that a removal looks at for entries to bring back.
const GAP_BUCKETS_MAX: usize = 16;

#[derive(Clone, Copy, Default)]
#[repr(align(64))]
struct Bucket([u64; SLOTS]);

/// Entries of a shard, and how many lie behind each of its buckets. In one piece of memory: buckets, and then a byte for each of them
/// ([`passed`](Self::passed)).
pub(super) struct Shard {
    pieces: Box<[Bucket]>,
    pub(super) buckets: usize,
}

/// Bytes of a bucket.
pub(super) const BUCKET_BYTES: u64 = size_of::<Bucket>() as u64;

/// Pieces of memory of so many buckets.
fn pieces(buckets: usize) -> usize {
    buckets + buckets.div_ceil(size_of::<Bucket>())
}

/// Bytes of memory of so many buckets.
pub(super) fn bytes_of(buckets: usize) -> u64 {
    pieces(buckets) as u64 * BUCKET_BYTES
}

/// A shard, and what is told of it without a lock. One cache line. What is atomic changes while the shard is locked, so that no two cores
/// change the same line for two contents, but by chance.
#[repr(C, align(64))]
pub(super) struct LockedShard {
    /// Where the buckets are, and how many, now or a moment ago: who only asks the processor for one needs no lock.
    buckets_at: AtomicUsize,
    buckets: AtomicU32,
    /// Entries.
    used: AtomicU32,
    /// Blocks in use with a fingerprint of this shard, whether they have an entry or not.
    hashed: AtomicU32,
    pub(super) shard: Mutex<Shard>,
}

const _: () = assert!(size_of::<LockedShard>() == 64);

/// Changes a count that only who has the lock changes.
#[inline]
fn change(count: &AtomicU32, change: impl FnOnce(u32) -> u32) {
    count.store(change(count.load(Ordering::Relaxed)), Ordering::Relaxed);
}

impl LockedShard {
    pub(super) fn new() -> Self {
        let shard = Shard::new(1);
        Self {
            buckets_at: AtomicUsize::new(shard.pieces.as_ptr().addr()),
            buckets: AtomicU32::new(1),
            used: AtomicU32::new(0),
            hashed: AtomicU32::new(0),
            shard: Mutex::new(shard),
        }
    }

    /// Notes where the buckets are.
    pub(super) fn note(&self, shard: &Shard) {
        self.buckets_at
            .store(shard.pieces.as_ptr().addr(), Ordering::Relaxed);
        self.buckets.store(shard.buckets as u32, Ordering::Relaxed);
    }

    pub(super) fn used(&self) -> u32 {
        self.used.load(Ordering::Relaxed)
    }

    /// It has another number of entries now. Only while it is locked.
    #[inline]
    pub(super) fn change_used(&self, by: impl FnOnce(u32) -> u32) {
        change(&self.used, by);
    }

    pub(super) fn hashed(&self) -> u32 {
        self.hashed.load(Ordering::Relaxed)
    }

    /// Another number of blocks in use has a fingerprint of it now. Only while it is locked.
    #[inline]
    pub(super) fn change_hashed(&self, by: impl FnOnce(u32) -> u32) {
        change(&self.hashed, by);
    }

    /// Asks for the shard itself.
    #[inline]
    pub(super) fn prefetch(&self) {
        prefetch(&self.buckets_at);
    }

    /// Asks for the bucket where the look-up of a tag begins, and for as many behind it.
    #[inline]
    pub(super) fn prefetch_bucket(&self, tag: u64, behind: usize) {
        let buckets = self.buckets.load(Ordering::Relaxed) as usize;
        let at = self.buckets_at.load(Ordering::Relaxed);
        let bucket = home(tag, buckets);
        for step in 0..=behind {
            prefetch_at(at.wrapping_add((bucket + step) * size_of::<Bucket>()));
        }
        prefetch_at(at.wrapping_add(buckets * size_of::<Bucket>() + bucket));
    }
}

/// The bucket, of so many, where the look-up of a tag begins.
#[inline]
pub(super) fn home(tag: u64, buckets: usize) -> usize {
    ((tag * buckets as u64) >> TAG_BITS) as usize
}

/// Which bits of a fingerprint say what. It is uniformly distributed already.
#[derive(Clone, Copy)]
pub(super) struct Hash {
    pub(super) shard: u64,
    pub(super) tag: u64,
}

impl Hash {
    pub(super) fn new(fingerprint: &Fingerprint) -> Self {
        let word = |at: usize| {
            let mut bytes = [0; 4];
            bytes.copy_from_slice(&fingerprint.0[at..at + 4]);
            u64::from(u32::from_le_bytes(bytes))
        };
        Self {
            shard: word(0),
            tag: word(4) >> (u32::BITS - TAG_BITS),
        }
    }
}

impl Shard {
    /// With so many buckets, without entries.
    pub(super) fn new(buckets: usize) -> Self {
        Self {
            pieces: vec![Bucket::default(); pieces(buckets)].into(),
            buckets,
        }
    }

    #[inline]
    pub(super) fn home(&self, tag: u64) -> usize {
        home(tag, self.buckets)
    }

    #[inline]
    pub(super) fn slots(&self, bucket: usize) -> &[u64; SLOTS] {
        &self.pieces[bucket].0
    }

    #[inline]
    fn slots_mut(&mut self, bucket: usize) -> &mut [u64; SLOTS] {
        &mut self.pieces[bucket].0
    }

    /// Entries that lie behind a bucket because it was full, at most [`PASSED_MAX`]: then it is not known any more.
    #[inline]
    pub(super) fn passed(&self, bucket: usize) -> u8 {
        let (piece, word, byte) = self.passed_at(bucket);
        self.pieces[piece].0[word].to_ne_bytes()[byte]
    }

    #[inline]
    fn set_passed(&mut self, bucket: usize, passed: u8) {
        let (piece, word, byte) = self.passed_at(bucket);
        let word = &mut self.pieces[piece].0[word];
        let mut bytes = word.to_ne_bytes();
        bytes[byte] = passed;
        *word = u64::from_ne_bytes(bytes);
    }

    /// Where that is: piece of memory, word and byte in it.
    #[inline]
    fn passed_at(&self, bucket: usize) -> (usize, usize, usize) {
        const WORD: usize = size_of::<u64>();
        let piece = self.buckets + bucket / size_of::<Bucket>();
        (piece, bucket / WORD % SLOTS, bucket % WORD)
    }

    #[inline]
    pub(super) fn after(&self, bucket: usize) -> usize {
        if bucket + 1 == self.buckets {
            0
        } else {
            bucket + 1
        }
    }

    /// Where an entry with this tag is that `is_wanted`: bucket and slot.
    #[inline]
    pub(super) fn find(
        &self,
        tag: u64,
        mut is_wanted: impl FnMut(u64) -> bool,
    ) -> Option<(usize, usize)> {
        let mut bucket = self.home(tag);
        for _ in 0..self.buckets {
            for (slot, entry) in self.slots(bucket).iter().enumerate() {
                if entry >> NUMBER_BITS == tag && *entry != 0 && is_wanted(*entry) {
                    return Some((bucket, slot));
                }
            }
            if self.passed(bucket) == 0 {
                return None;
            }
            bucket = self.after(bucket);
        }
        None
    }

    /// The load is below one: there is a free slot.
    pub(super) fn insert(&mut self, entry: u64) {
        let mut bucket = self.home(entry >> NUMBER_BITS);
        loop {
            let free = self.slots_mut(bucket).iter_mut().find(|slot| **slot == 0);
            if let Some(slot) = free {
                *slot = entry;
                return;
            }
            self.set_passed(bucket, self.passed(bucket).saturating_add(1));
            bucket = self.after(bucket);
        }
    }

    pub(super) fn remove(&mut self, entry: u64) -> bool {
        let tag = entry >> NUMBER_BITS;
        let Some((found, slot)) = self.find(tag, |other| other == entry) else {
            return false;
        };
        self.slots_mut(found)[slot] = 0;
        self.comes_back(self.home(tag), found);
        self.close_gap(found, slot);
        true
    }

    /// An entry of bucket `home` does not lie in bucket `at` any more, behind all in between.
    fn comes_back(&mut self, home: usize, at: usize) {
        let mut bucket = home;
        while bucket != at {
            let passed = self.passed(bucket);
            if passed != PASSED_MAX {
                self.set_passed(bucket, passed - 1);
            }
            bucket = self.after(bucket);
        }
    }

    /// Brings an entry back that once found this slot taken, and so on from its slot: what is looked
    /// for in vain ends at the first bucket that nothing lies behind, and that stays near only so.
    fn close_gap(&mut self, mut gap: usize, mut slot: usize) {
        let mut at = gap;
        for _ in 0..GAP_BUCKETS_MAX {
            if self.passed(at) == 0 {
                return;
            }
            at = self.after(at);
            let came_by = |entry: &u64| {
                *entry != 0
                    && self.distance(self.home(entry >> NUMBER_BITS), at) >= self.distance(gap, at)
            };
            let behind = self.slots(at).iter().position(came_by);
            if let Some(behind) = behind {
                let entry = std::mem::take(&mut self.slots_mut(at)[behind]);
                self.slots_mut(gap)[slot] = entry;
                self.comes_back(gap, at);
                (gap, slot) = (at, behind);
            }
        }
    }

    /// Buckets from one forward to another.
    fn distance(&self, from: usize, to: usize) -> usize {
        if to >= from {
            to - from
        } else {
            to + self.buckets - from
        }
    }

    /// Whether one entry more than so many makes it grow.
    pub(super) fn is_full(&self, used: u32) -> bool {
        (used as usize + 1) * LOAD_MAX.1 > self.buckets * SLOTS * LOAD_MAX.0
    }

    /// Buckets that it has when it has grown.
    pub(super) fn grown(&self) -> usize {
        self.buckets + (self.buckets / GROWTH).max(1)
    }

    pub(super) fn grow(&mut self) {
        let old = std::mem::replace(self, Self::new(self.grown()));
        for bucket in 0..old.buckets {
            for entry in old.slots(bucket).iter().filter(|entry| **entry != 0) {
                self.insert(*entry);
            }
        }
    }
}
