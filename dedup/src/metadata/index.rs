//! How to find a block by its content.
//!
//! [`Index`] finds a block by its fingerprint; it stores block numbers and a few bits of the fingerprint,
//! and compares the full fingerprint in the [block table](BlockTable), so a hit is always a match of all
//! 128 bits. It takes no more memory than it may: what it has no room for is found otherwise
//! ([`crate::residency::on_disk_index`]). Where that part of the table is in the store only, it says so: who looks brings it in and
//! looks again, so that nothing that is stored is ever missed.

mod shard;

use std::sync::atomic::{AtomicU64, Ordering};

use meta::{Fingerprint, Pba};
use reactor::prefetch;

use crate::metadata::block_table::{BlockTable, address};
use crate::sync::wait::{Held, lock};
use shard::{BUCKET_BYTES, Hash, LockedShard, NUMBER_BITS, SLOTS, Shard, bytes_of};

/// Entries of a shard when the pool is full, about: growing one is done in a fraction of a millisecond.
const SHARD_ENTRIES: u64 = 8192;
const SHARDS_MAX: u64 = 1 << 16;
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
    /// Memory of all shards.
    bytes: AtomicU64,
    bytes_max: u64,
}

/// The shard of a fingerprint, locked: nobody else finds, enters or removes a block with it meanwhile.
pub(crate) struct ShardGuard<'a> {
    index: &'a Index,
    of: &'a LockedShard,
    shard: Held<'a, Shard>,
    hash: Hash,
}

/// The numbers of a drive's addresses: its blocks, then the fragments in them.
struct Numbers {
    first: u64,
    blocks: u64,
}

/// Fingerprints that are looked up at a time before it is asked for what was found.
const AT_A_TIME: usize = 32;

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
        let bytes = shards.len() as u64 * (size_of::<LockedShard>() as u64 + bytes_of(1));
        Self {
            drives,
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

    /// The shard of a fingerprint, locked until this is dropped.
    #[inline]
    pub(crate) fn at(&self, fingerprint: &Fingerprint) -> ShardGuard<'_> {
        let hash = Hash::new(fingerprint);
        let of = self.shard(hash);
        ShardGuard {
            index: self,
            of,
            shard: lock(&of.shard),
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
        for pba in leaving.clone() {
            blocks.prefetch_page(pba);
        }
        for fingerprint in wanted.clone() {
            let hash = Hash::new(fingerprint);
            self.shard(hash).prefetch_bucket(hash.tag, 0);
        }
        for pba in leaving.clone() {
            blocks.prefetch(pba);
        }
        let mut wanted = wanted.peekable();
        while wanted.peek().is_some() {
            self.prefetch_found(blocks, wanted.by_ref().take(AT_A_TIME));
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
            // Something of the next bucket may come back into this one.
            self.shard(hash).prefetch_bucket(hash.tag, 1);
        }
    }

    /// Asks for the rows of blocks that some fingerprints may be those of.
    fn prefetch_found<'a>(
        &self,
        blocks: &BlockTable,
        wanted: impl Iterator<Item = &'a Fingerprint>,
    ) {
        let mut found = [Pba(0); AT_A_TIME];
        let mut count = 0;
        for fingerprint in wanted {
            let ShardGuard { shard, hash, .. } = self.at(fingerprint);
            let bucket = shard.home(hash.tag);
            for entry in shard.slots(bucket) {
                if entry >> NUMBER_BITS == hash.tag && *entry != 0 && count < found.len() {
                    found[count] = number_to_pba(&self.drives, *entry);
                    blocks.prefetch_page(found[count]);
                    count += 1;
                }
            }
            // Some entries of it may lie in the next one.
            if shard.passed(bucket) > 0 {
                prefetch(shard.slots(shard.after(bucket)));
            }
        }
        for pba in &found[..count] {
            blocks.prefetch(*pba);
        }
    }

    /// Enters a block, whose fingerprint is in the table already; false if there is no room for it. `known`:
    /// what was found by that fingerprint before, which leaves, and whose room is enough.
    #[must_use]
    pub(crate) fn insert(&self, blocks: &BlockTable, pba: Pba, known: Option<Pba>) -> bool {
        self.at(&blocks.get(pba).fingerprint).insert(pba, known)
    }

    /// How many blocks can be found. Looks at all shards, of which the largest pools have 65,536.
    pub(crate) fn len(&self) -> u64 {
        self.shards.iter().map(|it| u64::from(it.used())).sum()
    }

    /// How many blocks in use have a fingerprint, whether they can be found or not. Takes as long.
    pub(crate) fn hashed(&self) -> u64 {
        self.shards.iter().map(|it| u64::from(it.hashed())).sum()
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

impl ShardGuard<'_> {
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
                Found::Resident(number_to_pba(drives, self.shard.slots(bucket)[slot]))
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
        if self.shard.is_full(self.of.used()) {
            let more = bytes_of(self.shard.grown()) - bytes_of(self.shard.buckets);
            if !self.index.grow(more) {
                return false;
            }
            self.shard.grow();
            self.of.note(&self.shard);
        }
        self.shard.insert(entry);
        self.of.change_used(|used| used + 1);
        true
    }

    /// Removes a block; an entry of another block with the same content stays.
    pub(crate) fn remove(&mut self, pba: Pba) {
        let entry = self.index.entry(self.hash, pba);
        if self.shard.remove(entry) {
            self.of.change_used(|used| used - 1);
        }
    }

    /// A block with this fingerprint came into use, or turned out to be.
    #[inline]
    pub(crate) fn came(&mut self) {
        self.of.change_hashed(|hashed| hashed + 1);
    }

    /// One is not in use any more.
    #[inline]
    pub(crate) fn went(&mut self) {
        self.of.change_hashed(|hashed| hashed.saturating_sub(1));
    }

    /// Whether each block in use that has its fingerprint can be found here.
    #[inline]
    pub(crate) fn is_complete(&self) -> bool {
        self.of.hashed() <= self.of.used()
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
mod tests;
