//! How to find a block by its content.
//!
//! [`Index`] finds a block by its fingerprint; it stores block numbers and a few bits of the fingerprint,
//! and compares the full fingerprint in the [block table](BlockTable), so a hit is always a match of all
//! 128 bits. It takes no more memory than it may: what it has no room for is found otherwise
//! ([`crate::residency::on_disk_index`]). Where that part of the table is in the store only, it says so: who looks brings it in and
//! looks again, so that nothing that is stored is ever missed.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use meta::{Fingerprint, Pba};
use reactor::{prefetch, prefetch_at};

use crate::metadata::block_table::{BlockTable, address};
use crate::sync::wait::{Held, lock};

/// Entries of a bucket: one cache line.
const SLOTS: usize = 8;
/// Entries of a shard when the pool is full, about: growing one is done in a fraction of a millisecond.
const SHARD_ENTRIES: u64 = 8192;
const SHARDS_MAX: u64 = 1 << 16;
/// A shard with more than nine tenths of its slots in use grows by an eighth: 9.0 to 10.2 bytes an
/// entry.
const LOAD_MAX: (usize, usize) = (9, 10);
const GROWTH: usize = 8;
/// Bits of an entry that come from the fingerprint.
const TAG_BITS: u32 = 24;
/// Bits of an entry that hold the number of the address, counted over all drives, plus one.
const NUMBER_BITS: u32 = 40;
/// Numbers of a block: its own, and those of its fragments.
const NUMBERS: u64 = 1 + Pba::SLOTS;
/// Data blocks of all drives of a pool together at most: 240 TiB.
pub(crate) const BLOCKS_MAX: u64 = ((1 << NUMBER_BITS) - 1) / NUMBERS;

/// What a look-up finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// The block with this content.
    Resident(Pba),
    /// Perhaps this one: that part of the block table is in the store only.
    Stored(Pba),
    /// No block in use has the content.
    Nowhere,
}

impl Found {
    /// The block, if it is known to be the one.
    pub(crate) fn resident(self) -> Option<Pba> {
        match self {
            Self::Resident(pba) => Some(pba),
            Self::Stored(_) | Self::Nowhere => None,
        }
    }
}

/// Finds blocks by content.
///
/// An entry is 24 bits of the fingerprint and 40 bits of the block's number. Other bits of the
/// fingerprint name the shard. The 24 bits name the bucket in it (or the one before, if that was full)
/// and, what is left of them, tell the entries of a bucket apart but for one look-up in thousands. So a
/// shard grows without a look at anything but itself, and as each grows alone, growth never takes long.
pub(crate) struct Index {
    shards: Vec<LockedShard>,
    drives: Vec<Numbers>,
    len: AtomicUsize,
    /// Memory of all shards.
    bytes: AtomicU64,
    bytes_max: u64,
}

/// The shard of a fingerprint, locked: nobody else finds, enters or removes a block with it meanwhile.
pub(crate) struct Place<'a> {
    index: &'a Index,
    shard: Held<'a, Shard>,
    hash: Hash,
}

/// The numbers of a drive's addresses: its blocks, then the fragments in them.
struct Numbers {
    first: u64,
    blocks: u64,
}

#[derive(Clone, Copy, Default)]
#[repr(align(64))]
struct Bucket([u64; SLOTS]);

/// Memory of a bucket, and of what says whether entries lie behind it.
const BUCKET_BYTES: u64 = (size_of::<Bucket>() + size_of::<u8>()) as u64;

struct Shard {
    buckets: Box<[Bucket]>,
    /// Per bucket: entries that lie behind it because it was full, at most [`PASSED_MAX`]: then it is
    /// not known any more.
    passed: Box<[u8]>,
    used: usize,
}

/// A shard, and where its buckets are: who only asks the processor for one needs no lock. Two cache lines.
#[repr(C, align(64))]
struct LockedShard {
    /// Addresses and number of the buckets, now or a moment ago.
    buckets_at: AtomicUsize,
    passed_at: AtomicUsize,
    buckets: AtomicUsize,
    shard: Mutex<Shard>,
}

const _: () = assert!(size_of::<LockedShard>() == 128);

impl LockedShard {
    fn new() -> Self {
        let shard = Shard::new();
        Self {
            buckets_at: AtomicUsize::new(shard.buckets.as_ptr().addr()),
            passed_at: AtomicUsize::new(shard.passed.as_ptr().addr()),
            buckets: AtomicUsize::new(shard.buckets.len()),
            shard: Mutex::new(shard),
        }
    }

    /// Notes where the buckets are.
    fn note(&self, shard: &Shard) {
        self.buckets_at
            .store(shard.buckets.as_ptr().addr(), Ordering::Relaxed);
        self.passed_at
            .store(shard.passed.as_ptr().addr(), Ordering::Relaxed);
        self.buckets.store(shard.buckets.len(), Ordering::Relaxed);
    }

    /// Asks for the shard itself.
    #[inline]
    fn prefetch(&self) {
        prefetch(&self.buckets_at);
        prefetch_at(std::ptr::from_ref(self).addr() + 64);
    }

    /// Asks for the bucket where the look-up of a tag begins.
    #[inline]
    fn prefetch_bucket(&self, tag: u64) {
        let bucket = home(tag, self.buckets.load(Ordering::Relaxed));
        let buckets = self.buckets_at.load(Ordering::Relaxed);
        prefetch_at(buckets.wrapping_add(bucket * size_of::<Bucket>()));
        let passed = self.passed_at.load(Ordering::Relaxed);
        prefetch_at(passed.wrapping_add(bucket));
    }
}

/// The bucket, of so many, where the look-up of a tag begins.
#[inline]
fn home(tag: u64, buckets: usize) -> usize {
    ((tag * buckets as u64) >> TAG_BITS) as usize
}

const PASSED_MAX: u8 = u8::MAX;

/// Buckets that a removal looks at for entries to bring back.
const GAP_BUCKETS_MAX: usize = 16;

/// Which bits of a fingerprint say what. It is uniformly distributed already.
#[derive(Clone, Copy)]
struct Hash {
    shard: u64,
    tag: u64,
}

impl Hash {
    fn new(fingerprint: &Fingerprint) -> Self {
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
    fn new() -> Self {
        Self {
            buckets: vec![Bucket::default()].into(),
            passed: vec![0].into(),
            used: 0,
        }
    }

    #[inline]
    fn home(&self, tag: u64) -> usize {
        home(tag, self.buckets.len())
    }

    #[inline]
    fn after(&self, bucket: usize) -> usize {
        if bucket + 1 == self.buckets.len() {
            0
        } else {
            bucket + 1
        }
    }

    /// Where an entry with this tag is that `is_wanted`: bucket and slot.
    #[inline]
    fn find(&self, tag: u64, mut is_wanted: impl FnMut(u64) -> bool) -> Option<(usize, usize)> {
        let mut bucket = self.home(tag);
        for _ in 0..self.buckets.len() {
            for (slot, entry) in self.buckets[bucket].0.iter().enumerate() {
                if entry >> NUMBER_BITS == tag && *entry != 0 && is_wanted(*entry) {
                    return Some((bucket, slot));
                }
            }
            if self.passed[bucket] == 0 {
                return None;
            }
            bucket = self.after(bucket);
        }
        None
    }

    /// The load is below one: there is a free slot.
    fn insert(&mut self, entry: u64) {
        let mut bucket = self.home(entry >> NUMBER_BITS);
        loop {
            let free = self.buckets[bucket].0.iter_mut().find(|slot| **slot == 0);
            if let Some(slot) = free {
                *slot = entry;
                self.used += 1;
                return;
            }
            self.passed[bucket] = self.passed[bucket].saturating_add(1);
            bucket = self.after(bucket);
        }
    }

    fn remove(&mut self, entry: u64) -> bool {
        let tag = entry >> NUMBER_BITS;
        let Some((found, slot)) = self.find(tag, |other| other == entry) else {
            return false;
        };
        self.buckets[found].0[slot] = 0;
        self.used -= 1;
        self.comes_back(self.home(tag), found);
        self.close_gap(found, slot);
        true
    }

    /// An entry of bucket `home` does not lie in bucket `at` any more, behind all in between.
    fn comes_back(&mut self, home: usize, at: usize) {
        let mut bucket = home;
        while bucket != at {
            if self.passed[bucket] != PASSED_MAX {
                self.passed[bucket] -= 1;
            }
            bucket = self.after(bucket);
        }
    }

    /// Brings an entry back that once found this place taken, and so on from its place: what is looked
    /// for in vain ends at the first bucket that nothing lies behind, and that stays near only so.
    fn close_gap(&mut self, mut gap: usize, mut slot: usize) {
        let mut at = gap;
        for _ in 0..GAP_BUCKETS_MAX {
            if self.passed[at] == 0 {
                return;
            }
            at = self.after(at);
            let came_by = |entry: &u64| {
                *entry != 0
                    && self.distance(self.home(entry >> NUMBER_BITS), at) >= self.distance(gap, at)
            };
            let behind = self.buckets[at].0.iter().position(came_by);
            if let Some(behind) = behind {
                let entry = std::mem::take(&mut self.buckets[at].0[behind]);
                self.buckets[gap].0[slot] = entry;
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
            to + self.buckets.len() - from
        }
    }

    fn is_full(&self) -> bool {
        (self.used + 1) * LOAD_MAX.1 > self.buckets.len() * SLOTS * LOAD_MAX.0
    }

    /// Buckets that it gets more when it grows.
    fn growth(&self) -> usize {
        (self.buckets.len() / GROWTH).max(1)
    }

    fn grow(&mut self) {
        let buckets = self.buckets.len() + self.growth();
        let old = std::mem::replace(
            self,
            Self {
                buckets: vec![Bucket::default(); buckets].into(),
                passed: vec![0; buckets].into(),
                used: 0,
            },
        );
        for entry in old.buckets.iter().flat_map(|bucket| bucket.0) {
            if entry != 0 {
                self.insert(entry);
            }
        }
    }
}

impl Index {
    /// For drives of these sizes (in data blocks), together at most [`BLOCKS_MAX`]. It takes so much
    /// memory at most, and always some entries.
    pub(crate) fn new(data_blocks: &[u64], bytes_max: u64) -> Self {
        let blocks: u64 = data_blocks.iter().sum();
        let entries = blocks.min(bytes_max / BUCKET_BYTES * SLOTS as u64);
        let shards = (entries / SHARD_ENTRIES).clamp(1, SHARDS_MAX);
        let mut first = 0;
        let drives = data_blocks.iter().map(|blocks| {
            let numbers = Numbers {
                first,
                blocks: *blocks,
            };
            first += blocks * NUMBERS;
            numbers
        });
        let drives = drives.collect();
        let shards = (0..shards.next_power_of_two()).map(|_| LockedShard::new());
        let shards: Vec<LockedShard> = shards.collect();
        let bytes = shards.len() as u64 * (size_of::<LockedShard>() as u64 + BUCKET_BYTES);
        Self {
            drives,
            len: AtomicUsize::new(0),
            bytes: AtomicU64::new(bytes),
            shards,
            bytes_max: bytes_max.max(bytes),
        }
    }

    /// One drive more, with the next index, behind so many blocks of the others. The number of shards
    /// stays what the pool's size was when it was opened: growing one takes longer in a pool that grew.
    pub(crate) fn add_drive(&mut self, blocks: u64) {
        let last = self.drives.last();
        let first = last.map_or(0, |last| last.first + last.blocks * NUMBERS);
        self.drives.push(Numbers { first, blocks });
    }

    #[inline]
    fn shard(&self, hash: Hash) -> &LockedShard {
        &self.shards[hash.shard as usize & (self.shards.len() - 1)]
    }

    /// The place of a fingerprint, kept from others until it is dropped.
    #[inline]
    pub(crate) fn at(&self, fingerprint: &Fingerprint) -> Place<'_> {
        let hash = Hash::new(fingerprint);
        Place {
            index: self,
            shard: lock(&self.shard(hash).shard),
            hash,
        }
    }

    fn entry(&self, hash: Hash, pba: Pba) -> u64 {
        let drive = &self.drives[usize::from(pba.drive())];
        let before = if pba.is_fragment() { drive.blocks } else { 0 };
        let number = drive.first + before + pba.number() + 1;
        debug_assert!(number >> NUMBER_BITS == 0);
        hash.tag << NUMBER_BITS | number
    }

    /// Whether a block with this fingerprint is in it.
    pub(crate) fn has(&self, fingerprint: &Fingerprint, pba: Pba) -> bool {
        self.at(fingerprint).has(pba)
    }

    /// The block with this fingerprint.
    pub(crate) fn find(&self, blocks: &BlockTable, fingerprint: &Fingerprint) -> Found {
        self.at(fingerprint).find(blocks, fingerprint)
    }

    /// The same, where `knows` says of a block in the store only whether it has that fingerprint; if it
    /// does not know, the block may be found as [`Found::Stored`].
    pub(crate) fn find_with(
        &self,
        blocks: &BlockTable,
        fingerprint: &Fingerprint,
        knows: impl Fn(Pba) -> bool,
    ) -> Found {
        self.at(fingerprint).find_with(blocks, fingerprint, knows)
    }

    /// Asks for what the look-ups of these fingerprints, and the removal of these blocks, are going to read:
    /// what does not depend on each other comes at the same time.
    pub(crate) fn prefetch<'a>(
        &self,
        blocks: &BlockTable,
        wanted: impl Iterator<Item = &'a Fingerprint> + Clone,
        leaving: impl Iterator<Item = Pba> + Clone,
    ) {
        // A lock waits for all that was asked for before it: shards come first, all at the same time.
        for fingerprint in wanted.clone() {
            self.shard(Hash::new(fingerprint)).prefetch();
        }
        for fingerprint in wanted.clone() {
            let hash = Hash::new(fingerprint);
            self.shard(hash).prefetch_bucket(hash.tag);
        }
        for pba in leaving.clone() {
            blocks.prefetch(pba);
        }
        for fingerprint in wanted {
            let Place { shard, hash, .. } = self.at(fingerprint);
            let bucket = shard.home(hash.tag);
            for entry in shard.buckets[bucket].0 {
                if entry >> NUMBER_BITS == hash.tag && entry != 0 {
                    blocks.prefetch(number_to_pba(&self.drives, entry));
                }
            }
            // Some entries of it may lie in the next one.
            if shard.passed[bucket] > 0 {
                prefetch(&shard.buckets[shard.after(bucket)]);
            }
        }
        let hashes = leaving.filter_map(|pba| {
            let info = blocks.look(pba)?;
            let leaves = info.references == 1 && info.fingerprint.is_some();
            leaves.then(|| Hash::new(&info.fingerprint))
        });
        for hash in hashes.clone() {
            self.shard(hash).prefetch();
        }
        for hash in hashes {
            self.shard(hash).prefetch_bucket(hash.tag);
        }
    }

    /// Enters a block, whose fingerprint is in the table already; false if there is no room for it. `known`:
    /// what was found by that fingerprint before, which leaves, and whose room is enough.
    #[must_use]
    pub(crate) fn insert(&self, blocks: &BlockTable, pba: Pba, known: Option<Pba>) -> bool {
        self.at(&blocks.get(pba).fingerprint).insert(pba, known)
    }

    /// How many blocks can be found.
    pub(crate) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// Bytes of memory.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Bytes of memory that it may take.
    pub(crate) fn bytes_max(&self) -> u64 {
        self.bytes_max.max(BUCKET_BYTES)
    }

    /// Takes so much memory; false if it may not.
    fn grow(&self, bytes: u64) -> bool {
        let more = |taken: u64| Some(taken + bytes).filter(|all| *all <= self.bytes_max);
        self.bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
            .is_ok()
    }
}

impl Place<'_> {
    /// Whether a block with this fingerprint is in the index.
    pub(crate) fn has(&self, pba: Pba) -> bool {
        let entry = self.index.entry(self.hash, pba);
        let is_it = |other| other == entry;
        self.shard.find(self.hash.tag, is_it).is_some()
    }

    /// The block with this fingerprint.
    #[inline]
    pub(crate) fn find(&self, blocks: &BlockTable, fingerprint: &Fingerprint) -> Found {
        self.find_with(blocks, fingerprint, |_| false)
    }

    /// As [`Index::find_with`].
    #[inline]
    pub(crate) fn find_with(
        &self,
        blocks: &BlockTable,
        fingerprint: &Fingerprint,
        knows: impl Fn(Pba) -> bool,
    ) -> Found {
        let drives = &self.index.drives;
        let mut stored = None;
        let has_content = |entry| {
            let pba = number_to_pba(drives, entry);
            match blocks.look(pba) {
                Some(info) => info.fingerprint == *fingerprint,
                None => {
                    stored.get_or_insert(pba);
                    knows(pba)
                }
            }
        };
        match self.shard.find(self.hash.tag, has_content) {
            Some((bucket, slot)) => {
                Found::Resident(number_to_pba(drives, self.shard.buckets[bucket].0[slot]))
            }
            None => stored.map_or(Found::Nowhere, Found::Stored),
        }
    }

    /// As [`Index::insert`].
    #[must_use]
    pub(crate) fn insert(&mut self, pba: Pba, known: Option<Pba>) -> bool {
        if let Some(known) = known {
            self.remove(known);
        }
        let entry = self.index.entry(self.hash, pba);
        if self.shard.is_full() {
            if !self.index.grow(self.shard.growth() as u64 * BUCKET_BYTES) {
                return false;
            }
            self.shard.grow();
            self.index.shard(self.hash).note(&self.shard);
        }
        self.shard.insert(entry);
        self.index.len.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// Removes a block; an entry of another block with the same content stays.
    pub(crate) fn remove(&mut self, pba: Pba) {
        let entry = self.index.entry(self.hash, pba);
        if self.shard.remove(entry) {
            self.index.len.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[inline]
fn number_to_pba(drives: &[Numbers], entry: u64) -> Pba {
    let number = (entry & ((1 << NUMBER_BITS) - 1)) - 1;
    let drive = drives.partition_point(|drive| drive.first <= number) - 1;
    let Numbers { first, blocks } = drives[drive];
    match (number - first).checked_sub(blocks) {
        None => address(drive * 2, number - first),
        Some(fragment) => address(drive * 2 + 1, fragment),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;
    use crate::metadata::block_table::BlockInfo;

    proptest! {
        #[test]
        fn the_index_agrees_with_a_plain_map(steps in proptest::collection::vec((0u8..20, any::<bool>()), 1..200)) {
            let blocks = BlockTable::new(&[20_000, 30_000]);
            let index = Index::new(&[20_000, 30_000], u64::MAX);
            let mut model = HashMap::new();
            for (number, (content, insert)) in steps.into_iter().enumerate() {
                let fingerprint = Fingerprint([content; 16]);
                if insert {
                    let block = Pba::new(number as u16 % 2, number as u64 * 37);
                    let pba = if number % 3 == 0 { block } else { block.fragment(number as u8 % 15) };
                    blocks.set(pba, BlockInfo { references: 1, crc32c: 0, fingerprint });
                    let known = index.find(&blocks, &fingerprint).resident();
                    assert!(index.insert(&blocks, pba, known));
                    model.insert(content, pba);
                } else if let Some(pba) = model.remove(&content) {
                    remove(&index, &blocks, pba);
                }
                prop_assert_eq!(index.len(), model.len());
                for content in 0u8..20 {
                    let found = index.find(&blocks, &Fingerprint([content; 16])).resident();
                    prop_assert_eq!(found.map(|p| p.0), model.get(&content).map(|p| p.0));
                }
            }
        }
    }

    #[test]
    fn removing_a_second_copy_leaves_the_one_that_can_be_found() {
        let blocks = BlockTable::new(&[100]);
        let index = Index::new(&[100], u64::MAX);
        let fingerprint = Fingerprint([3; 16]);
        let (a, b) = (Pba::new(0, 1), Pba::new(0, 2));
        for pba in [a, b] {
            blocks.set(
                pba,
                BlockInfo {
                    references: 1,
                    crc32c: 0,
                    fingerprint,
                },
            );
            let known = index.find(&blocks, &fingerprint).resident();
            assert!(index.insert(&blocks, pba, known));
        }
        remove(&index, &blocks, a);
        assert_eq!(index.find(&blocks, &fingerprint), Found::Resident(b));
    }

    fn remove(index: &Index, blocks: &BlockTable, pba: Pba) {
        index.at(&blocks.get(pba).fingerprint).remove(pba);
    }

    fn spread(number: u64) -> Fingerprint {
        let mut fingerprint = [0; 16];
        let digest = blake3::hash(&number.to_le_bytes());
        fingerprint.copy_from_slice(&digest.as_bytes()[..16]);
        Fingerprint(fingerprint)
    }

    #[test]
    fn what_is_not_there_is_missed_soon_however_often_contents_were_replaced() {
        // A shard that holds 8192 entries at a load of 0.85.
        let mut shard = Shard {
            buckets: vec![Bucket::default(); 1205].into(),
            passed: vec![0; 1205].into(),
            used: 0,
        };
        let entry = |number: u64| {
            let hash = Hash::new(&spread(number));
            hash.tag << NUMBER_BITS | (number + 1)
        };
        for number in 0..8192 {
            shard.insert(entry(number));
        }
        // Buckets that are looked at for contents that are not there.
        let looked_at = |shard: &Shard| {
            let of = |number: u64| {
                let mut bucket = shard.home(Hash::new(&spread(number)).tag);
                let mut count = 1;
                while shard.passed[bucket] > 0 {
                    bucket = shard.after(bucket);
                    count += 1;
                }
                count
            };
            (1_000_000..1_004_000).map(of).sum::<usize>() as f64 / 4000.0
        };
        let before = looked_at(&shard);
        for number in 8192..20 * 8192 {
            assert!(shard.remove(entry(number - 8192)));
            shard.insert(entry(number));
        }
        let after = looked_at(&shard);
        assert!(after < before * 1.2, "{before} buckets, later {after}");
        assert_eq!(shard.used, 8192);
        for number in 19 * 8192..20 * 8192 {
            assert!(shard.remove(entry(number)));
        }
        assert!(shard.passed.iter().all(|passed| *passed == 0));
    }

    #[test]
    fn a_full_index_takes_no_more_until_something_leaves_and_finds_what_it_took() {
        const BLOCKS: u64 = 60_000;
        for bytes_max in [0, 1000, 100_000, 300_000] {
            let blocks = BlockTable::new(&[BLOCKS]);
            let index = Index::new(&[BLOCKS], bytes_max);
            let smallest = index.memory_bytes();
            let mut taken = Vec::new();
            for number in 0..BLOCKS {
                let pba = Pba::new(0, number);
                blocks.set(
                    pba,
                    BlockInfo {
                        references: 1,
                        crc32c: 0,
                        fingerprint: spread(number),
                    },
                );
                if index.insert(&blocks, pba, None) {
                    taken.push(number);
                }
            }
            assert!(index.memory_bytes() <= bytes_max.max(smallest));
            assert_eq!(index.bytes_max(), bytes_max.max(smallest));
            assert_eq!(index.len(), taken.len());
            // Nearly all of the room is used.
            assert!(taken.len() as u64 >= bytes_max / 13);
            for number in 0..BLOCKS {
                let found = index.find(&blocks, &spread(number)).resident();
                let is_taken = taken.binary_search(&number).is_ok();
                assert_eq!(found, is_taken.then(|| Pba::new(0, number)));
            }
            // A second copy takes the place of the first one, and the room of one that left is used.
            let (first, second) = (Pba::new(0, taken[0]), Pba::new(0, taken[1]));
            let other = blocks.get(second);
            blocks.set(first, other);
            remove(&index, &blocks, second);
            let fingerprint = spread(taken[0]);
            blocks.set(
                first,
                BlockInfo {
                    fingerprint,
                    ..other
                },
            );
            blocks.set(
                second,
                BlockInfo {
                    fingerprint,
                    ..other
                },
            );
            assert!(index.insert(&blocks, second, Some(first)));
            assert_eq!(index.find(&blocks, &fingerprint), Found::Resident(second));
            assert_eq!(index.len(), taken.len() - 1);
        }
    }

    #[test]
    fn a_large_index_forgets_nothing_and_takes_about_ten_bytes_an_entry() {
        const BLOCKS: u64 = 120_000;
        // Two drives, so that numbers are not addresses.
        let sizes = [50_000, BLOCKS - 50_000];
        let blocks = BlockTable::new(&sizes);
        let index = Index::new(&sizes, u64::MAX);
        let pba = |number: u64| match number.checked_sub(sizes[0]) {
            None => Pba::new(0, number),
            Some(block) => Pba::new(1, block),
        };
        for number in 0..BLOCKS {
            blocks.set(
                pba(number),
                BlockInfo {
                    references: 1,
                    crc32c: 0,
                    fingerprint: spread(number),
                },
            );
            assert!(index.insert(&blocks, pba(number), None));
        }
        assert_eq!(index.len() as u64, BLOCKS);
        let bytes = index.memory_bytes() as f64 / BLOCKS as f64;
        assert!((8.0..11.0).contains(&bytes), "{bytes} bytes an entry");
        for number in (0..BLOCKS).step_by(3) {
            remove(&index, &blocks, pba(number));
        }
        for number in 0..BLOCKS {
            let found = index.find(&blocks, &spread(number)).resident();
            let wanted = (number % 3 != 0).then(|| pba(number));
            assert_eq!(found, wanted, "block {number}");
        }
        let none: Vec<_> = (BLOCKS..BLOCKS + 10).map(spread).collect();
        index.prefetch(&blocks, none.iter(), std::iter::empty());
        assert!(
            none.iter()
                .all(|f| index.find(&blocks, f) == Found::Nowhere)
        );
        for number in 0..BLOCKS {
            remove(&index, &blocks, pba(number));
        }
        assert_eq!(index.len(), 0);
    }
}
