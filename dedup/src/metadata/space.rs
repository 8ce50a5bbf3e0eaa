//! Which physical blocks are free, and which only become free later.
//!
//! Guarantees: a block is handed out at most once until it is given back; a freed block waits in
//! quarantine until the record that freed it is durable (I3), and is then optionally discarded before
//! it can be allocated; a block that a drive may still write to or discard, though it failed at that, is not handed out
//! before the drive is fenced; no block is handed out that has no place; `used + reclaiming + free = capacity` at every moment.
//!
//! Allocation is next-fit: it goes on where it stopped, so that new data leaves in long runs. Reactors that allocate side by side
//! have a cursor each, in groups of their own as long as there are enough, so that none breaks the runs of another.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};

use meta::Pba;

use crate::metadata::block_table::GROUP;
use crate::metadata::packs::NoBlock;

const WORD: u64 = 64;

/// Cursors of a drive.
const CURSORS: usize = 8;

/// Of the free blocks, one of so many may be taken in advance at a time: who needs one must not find the pool full because another one
/// took more than it uses.
const AHEAD_SHARE: u64 = if cfg!(test) { 8 } else { 1024 };

/// Freed blocks that become usable in one go: nobody who wants a block waits for long.
const RELEASE_MAX: usize = if cfg!(test) { 3 } else { 256 };

/// Freed blocks that wait for a discard at most; beyond, they become free without one (I6).
const DISCARDS_MAX: usize = 1 << 20;

/// The cursor of this thread: threads share them when there are more.
fn cursor() -> usize {
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static OWN: usize = THREADS.fetch_add(1, Ordering::Relaxed) % CURSORS;
    }
    OWN.with(|own| *own)
}

/// Free and not yet free blocks of all drives.
pub(crate) struct Space {
    drives: Vec<DriveSpace>,
    /// Freed blocks with the sequence number that must be durable first; the numbers never fall.
    quarantine: VecDeque<(u64, Pba)>,
    /// Reusable, but to be discarded first if there is time.
    discards: VecDeque<Pba>,
    /// Under discard now.
    discarding: u64,
    /// Set aside: a write to them may still be under way. Those that are not in doubt stay so until the pool is opened
    /// again.
    set_aside: u64,
    /// Blocks, also of those in use, with what a drive may still do to them.
    in_doubt: BTreeMap<Pba, Doubt>,
    /// How often anything came in doubt.
    doubts: u64,
    /// Free blocks that were promised: only those to whom they were promised may take them.
    promised: u64,
    discard: bool,
    /// Only promised blocks are handed out.
    is_withheld: bool,
    /// No freed block leaves quarantine any more.
    is_frozen: bool,
}

impl Space {
    /// All data blocks of these drives are free. `discard`: whether freed blocks are discarded first.
    pub(crate) fn new(data_blocks: &[u64], discard: bool) -> Self {
        Self {
            drives: data_blocks
                .iter()
                .map(|blocks| DriveSpace::new(*blocks))
                .collect(),
            quarantine: VecDeque::new(),
            discards: VecDeque::new(),
            discarding: 0,
            set_aside: 0,
            in_doubt: BTreeMap::new(),
            doubts: 0,
            promised: 0,
            discard,
            is_withheld: false,
            is_frozen: false,
        }
    }

    /// One drive more, with the next index, as prepared by [`Space::prepare`].
    pub(crate) fn add_drive(&mut self, drive: DriveSpace) {
        self.drives.push(drive);
    }

    /// All data blocks of a drive, free. Takes a moment for a large one.
    pub(crate) fn prepare(data_blocks: u64) -> DriveSpace {
        DriveSpace::new(data_blocks)
    }

    /// Capacity and free blocks of each drive.
    pub(crate) fn by_drive(&self) -> impl Iterator<Item = (u64, u64)> {
        self.drives
            .iter()
            .map(|drive| (drive.capacity(), drive.free))
    }

    /// Memory of it, in bytes. None of it is evicted.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let drives: usize = self.drives.iter().map(DriveSpace::memory_bytes).sum();
        let waiting = self.quarantine.capacity() * size_of::<(u64, Pba)>()
            + self.discards.capacity() * size_of::<Pba>();
        (drives + waiting) as u64
    }

    /// Whether one of the drives has that address.
    pub(crate) fn contains(&self, pba: Pba) -> bool {
        self.drives
            .get(usize::from(pba.drive()))
            .is_some_and(|drive| pba.is_within(drive.blocks))
    }

    /// Of a drive on which nothing was handed out yet, it is known only about how many blocks are used, and
    /// that they are before `end`: nothing is handed out from a group of these before
    /// [`learn`](Self::learn).
    pub(crate) fn forget(&mut self, drive: u16, end: u64, used: u64) {
        self.drives[usize::from(drive)].forget(end, used);
    }

    /// In the group that begins with a block, these are the used ones, in order.
    pub(crate) fn learn(&mut self, first: Pba, used: impl Iterator<Item = Pba>) {
        let drive = &mut self.drives[usize::from(first.drive())];
        drive.learn(first.block(), used.map(Pba::block));
    }

    /// Whether all of these blocks, which are whole groups or end with the drive, are free, and nobody was promised them.
    pub(crate) fn is_unused(&self, first: Pba, blocks: u64) -> bool {
        let drive = self.drives.get(usize::from(first.drive()));
        let count = drive.and_then(|drive| drive.unused(first.block(), blocks));
        count.is_some_and(|count| self.free() >= self.promised + count)
    }

    /// These blocks have no place from now on: none is handed out before [`place`](Self::place). False if one of them is
    /// in use, or was promised.
    pub(crate) fn withdraw(&mut self, first: Pba, blocks: u64) -> bool {
        let is_unused = self.is_unused(first, blocks);
        if is_unused {
            self.drives[usize::from(first.drive())].withdraw(first.block(), blocks);
        }
        is_unused
    }

    /// Blocks that had no place have one now, and are free.
    pub(crate) fn place(&mut self, first: Pba, blocks: u64) {
        if let Some(drive) = self.drives.get_mut(usize::from(first.drive())) {
            drive.place(first.block(), blocks);
        }
    }

    /// Whether a block can be handed out now, as far as is known.
    pub(crate) fn has_free_group(&self) -> bool {
        let has = |drive: &DriveSpace| drive.group_free.iter().any(|free| *free > 0);
        self.drives.iter().any(has)
    }

    /// The drive with the largest share of free blocks.
    pub(crate) fn roomiest_drive(&self) -> usize {
        let share =
            |drive: &DriveSpace| (drive.free as u128) * 1_000_000 / drive.capacity().max(1) as u128;
        let best = self
            .drives
            .iter()
            .enumerate()
            .max_by_key(|(at, drive)| (share(drive), usize::MAX - at));
        best.map_or(0, |(at, _)| at)
    }

    /// Hands out no more blocks, or again: the metadata has no room for what they would hold.
    pub(crate) fn withhold(&mut self, is_withheld: bool) {
        self.is_withheld = is_withheld;
    }

    pub(crate) fn is_withheld(&self) -> bool {
        self.is_withheld
    }

    /// Promises free blocks; false if there are not as many.
    pub(crate) fn promise(&mut self, blocks: u64) -> bool {
        let is_possible = self.free() >= self.promised + blocks;
        self.promised += if is_possible { blocks } else { 0 };
        is_possible
    }

    /// The promise was used, or is not needed.
    pub(crate) fn take_promise_back(&mut self, blocks: u64) {
        self.promised -= blocks;
    }

    /// Takes the next free block, on the preferred drive if it has one. Not if what the block table has
    /// of it is not `is_resident`.
    pub(crate) fn allocate(
        &mut self,
        preferred: usize,
        has_promise: bool,
        is_resident: impl Fn(Pba) -> bool,
    ) -> Result<Pba, NoBlock> {
        let run = self.allocate_run(preferred, has_promise, 1, is_resident);
        run.map(|(pba, _)| pba)
    }

    /// The same, with free blocks right behind it: at most `count_max` together, and few where few are free. Returns the first one and how
    /// many they are. What is not used is [put back](Self::put_back).
    pub(crate) fn allocate_run(
        &mut self,
        preferred: usize,
        has_promise: bool,
        count_max: u64,
        is_resident: impl Fn(Pba) -> bool,
    ) -> Result<(Pba, u64), NoBlock> {
        let free = self.free();
        let is_kept = self.is_withheld || (self.promised > 0 && free <= self.promised);
        if is_kept && !has_promise {
            return Err(NoBlock::Full);
        }
        let ahead_max = match has_promise {
            true => 0,
            false => (free.saturating_sub(self.promised) / AHEAD_SHARE).min(count_max - 1),
        };
        let (count, cursor) = (self.drives.len(), cursor());
        for at in (0..count).map(|step| (preferred + step) % count) {
            if let Some(block) = self.drives[at].next_free(cursor) {
                let pba = Pba::new(at as u16, block);
                if !is_resident(pba) {
                    return Err(NoBlock::NotResident(pba));
                }
                let drive = &mut self.drives[at];
                drive.take(cursor, block);
                let behind = (1..=ahead_max).take_while(|more| {
                    let next = block + more;
                    let goes_on = !next.is_multiple_of(GROUP) && drive.is_free(next);
                    let takes = goes_on && is_resident(Pba::new(at as u16, next));
                    if takes {
                        drive.take(cursor, next);
                    }
                    takes
                });
                let behind = behind.count() as u64;
                return Ok((pba, 1 + behind));
            }
        }
        Err(NoBlock::Full)
    }

    /// Blocks at the end of a run that was taken in advance, and that nobody used: free again, and handed out next.
    pub(crate) fn put_back(&mut self, first: Pba, count: u64) {
        let drive = &mut self.drives[usize::from(first.drive())];
        drive.put_back(cursor(), first.block(), first.block() + count);
    }

    /// The next free blocks that [`allocate`](Self::allocate) would hand out, at most so many, of one
    /// group.
    pub(crate) fn ahead(&self, preferred: usize, count: usize) -> impl Iterator<Item = Pba> {
        let (drives, cursor) = (self.drives.len(), cursor());
        let order = (0..drives).map(move |step| (preferred + step) % drives);
        let next = order
            .filter_map(|at| Some((at, self.drives[at].next_free(cursor)?)))
            .next();
        next.into_iter()
            .flat_map(move |(at, first)| {
                let drive = &self.drives[at];
                let end = (first / GROUP + 1) * GROUP;
                let next = move |block: &u64| drive.first_free(block + 1, end);
                std::iter::successors(Some(first), next)
                    .map(move |block| Pba::new(at as u16, block))
            })
            .take(count)
    }

    /// Nobody knows whether the drive will still write to a block, or discard it: when it is given back, it waits until
    /// the drive is fenced.
    pub(crate) fn doubt(&mut self, pba: Pba, drive: u16) {
        self.doubts += 1;
        let number = self.doubts;
        let doubt = self.in_doubt.entry(pba).or_default();
        doubt.drives.retain(|(of, _)| *of != drive);
        doubt.drives.push((drive, number));
    }

    /// Drives that have something in doubt, and a number to tell it from what comes in doubt later.
    pub(crate) fn doubtful_drives(&self) -> (BTreeSet<u16>, u64) {
        let drives = self.in_doubt.values().flat_map(|doubt| &doubt.drives);
        let drives = drives.map(|(drive, _)| *drive);
        (drives.collect(), self.doubts)
    }

    /// A drive does nothing any more that was in doubt when this number was told. Returns how many blocks that makes free.
    pub(crate) fn fenced(&mut self, drive: u16, number: u64) -> u64 {
        let mut over = Vec::new();
        self.in_doubt.retain(|pba, doubt| {
            let is_over = |(of, doubt): &(u16, u64)| *of == drive && *doubt <= number;
            doubt.drives.retain(|of| !is_over(of));
            if doubt.drives.is_empty() {
                over.push((*pba, doubt.is_free));
            }
            !doubt.drives.is_empty()
        });
        let mut freed = 0;
        for (pba, _) in over.iter().filter(|(_, is_free)| *is_free) {
            self.set_aside -= 1;
            self.give_back(*pba);
            freed += 1;
        }
        freed
    }

    /// Gives a block back that nothing was ever recorded of.
    pub(crate) fn give_back(&mut self, pba: Pba) {
        if let Some(doubt) = self.in_doubt.get_mut(&pba) {
            debug_assert!(!doubt.is_free, "block {pba} was freed twice");
            doubt.is_free = true;
            self.set_aside += 1;
            return;
        }
        self.drives[usize::from(pba.drive())].free(pba.block());
    }

    /// Nothing refers to a block any more; it can be reused when record `sequence` is durable.
    pub(crate) fn quarantine(&mut self, pba: Pba, sequence: u64) {
        debug_assert!(
            self.quarantine
                .back()
                .is_none_or(|(last, _)| *last <= sequence)
        );
        self.quarantine.push_back((sequence, pba));
    }

    /// A block that must not be used again before the pool is reopened.
    pub(crate) fn set_aside(&mut self, pba: Pba) {
        tracing::warn!(
            drive = pba.drive(),
            block = pba.block(),
            "a write was dropped half-way: block set aside"
        );
        self.set_aside += 1;
    }

    /// From now on what is freed stays as it is on the drives, until the pool is opened again: the journal may
    /// hold a record of which nobody knows, and that refers to it.
    pub(crate) fn freeze(&mut self) {
        self.is_frozen = true;
    }

    /// Lets go some of what was freed by records up to `durable`. Returns whether there is more.
    pub(crate) fn release(&mut self, durable: u64) -> bool {
        if self.is_frozen {
            return false;
        }
        for _ in 0..RELEASE_MAX {
            let front = self.quarantine.front().copied();
            let Some((_, pba)) = front.filter(|(sequence, _)| *sequence <= durable) else {
                return false;
            };
            self.quarantine.pop_front();
            if self.discard && self.discards.len() < DISCARDS_MAX {
                self.discards.push_back(pba);
            } else {
                self.give_back(pba);
            }
        }
        let next = self.quarantine.front();
        next.is_some_and(|(sequence, _)| *sequence <= durable)
    }

    /// Up to `max` blocks to discard now; pass them to `finish_discards` when that is done.
    pub(crate) fn take_discards(&mut self, max: usize) -> Vec<Pba> {
        let count = max.min(self.discards.len());
        let taken: Vec<Pba> = self.discards.drain(..count).collect();
        self.discarding += taken.len() as u64;
        taken
    }

    /// These blocks are discarded (or could not be): they are free.
    pub(crate) fn finish_discards(&mut self, taken: &[Pba]) {
        self.discarding -= taken.len() as u64;
        for pba in taken {
            self.give_back(*pba);
        }
    }

    /// Frees what waits for a discard, without one: space is short. Returns how many blocks.
    pub(crate) fn skip_discards(&mut self) -> usize {
        let count = self.discards.len();
        while let Some(pba) = self.discards.pop_front() {
            self.give_back(pba);
        }
        count
    }

    /// Whether a flush (or a discard) would make blocks free.
    pub(crate) fn has_reclaimable(&self) -> bool {
        !self.quarantine.is_empty() || !self.discards.is_empty() || self.discarding > 0
    }

    /// Whether blocks wait for a discard.
    pub(crate) fn has_discards(&self) -> bool {
        !self.discards.is_empty()
    }

    /// Blocks that have addresses, with a place or without.
    pub(crate) fn addresses(&self) -> u64 {
        self.drives.iter().map(|drive| drive.blocks).sum()
    }

    pub(crate) fn capacity(&self) -> u64 {
        self.drives.iter().map(DriveSpace::capacity).sum()
    }

    pub(crate) fn free(&self) -> u64 {
        self.drives.iter().map(|drive| drive.free).sum()
    }

    pub(crate) fn reclaiming(&self) -> u64 {
        (self.quarantine.len() + self.discards.len()) as u64 + self.discarding + self.set_aside
    }

    /// Blocks that something refers to.
    pub(crate) fn used(&self) -> u64 {
        self.capacity()
            .saturating_sub(self.free() + self.reclaiming())
    }
}

/// What drives may still do to a block.
#[derive(Default)]
struct Doubt {
    /// Indexes of the drives, each with a number that is larger than those of all earlier ones.
    drives: Vec<(u16, u64)>,
    /// Nothing refers to the block any more.
    is_free: bool,
}

/// One drive's bitmap: a set bit is a block that cannot be handed out.
pub(crate) struct DriveSpace {
    blocks: u64,
    free: u64,
    /// Where each of those who allocate goes on, if it ever did; and where somebody last did.
    cursors: [Option<u64>; CURSORS],
    last: u64,
    words: Vec<u64>,
    group_free: Vec<u16>,
    /// Groups of which nothing is known yet.
    unknown: usize,
    /// Groups without a place; empty if there are none.
    withdrawn: Vec<bool>,
    withdrawn_blocks: u64,
}

impl DriveSpace {
    fn new(blocks: u64) -> Self {
        let groups = blocks.div_ceil(GROUP);
        let mut space = Self {
            blocks,
            free: blocks,
            cursors: [None; CURSORS],
            last: 0,
            words: vec![0; (groups * GROUP / WORD) as usize],
            group_free: vec![GROUP as u16; groups as usize],
            unknown: 0,
            withdrawn: Vec::new(),
            withdrawn_blocks: 0,
        };
        // The last group may be larger than what is left of the drive.
        for block in blocks..groups * GROUP {
            space.words[(block / WORD) as usize] |= 1 << (block % WORD);
            space.group_free[(block / GROUP) as usize] -= 1;
        }
        space
    }

    fn memory_bytes(&self) -> usize {
        size_of_val(&*self.words) + size_of_val(&*self.group_free) + size_of_val(&*self.withdrawn)
    }

    fn forget(&mut self, end: u64, used: u64) {
        self.free = self.capacity().saturating_sub(used);
        self.unknown = end.div_ceil(GROUP) as usize;
        self.group_free[..self.unknown].fill(0);
        self.words[..self.unknown * (GROUP / WORD) as usize].fill(u64::MAX);
    }

    fn learn(&mut self, first: u64, used: impl Iterator<Item = u64>) {
        let mut used = used.peekable();
        let group = (first / GROUP) as usize;
        let is_withdrawn = self.is_withdrawn(group);
        for block in first..(first + GROUP).min(self.blocks) {
            if used.next_if_eq(&block).is_none() && !is_withdrawn {
                self.words[(block / WORD) as usize] &= !(1 << (block % WORD));
                self.group_free[group] += 1;
            }
        }
        self.unknown -= 1;
        if self.unknown == 0 {
            // What the store said before was only a sum.
            self.free = self.group_free.iter().map(|free| u64::from(*free)).sum();
        }
    }

    /// Blocks that have a place.
    fn capacity(&self) -> u64 {
        self.blocks - self.withdrawn_blocks
    }

    fn is_withdrawn(&self, group: usize) -> bool {
        self.withdrawn.get(group).copied().unwrap_or(false)
    }

    /// The groups of these blocks, and how many blocks these have.
    fn groups(&self, first: u64, blocks: u64) -> (std::ops::Range<usize>, u64) {
        let end = (first + blocks).min(self.blocks);
        let groups = (first / GROUP) as usize..end.div_ceil(GROUP) as usize;
        (groups, end.saturating_sub(first))
    }

    /// How many blocks these are, if all of them are free.
    fn unused(&self, first: u64, blocks: u64) -> Option<u64> {
        let (groups, count) = self.groups(first, blocks);
        let free = groups.map(|group| self.group_free.get(group).copied().unwrap_or(0));
        let free: u64 = free.map(u64::from).sum();
        (count > 0 && free == count).then_some(count)
    }

    fn withdraw(&mut self, first: u64, blocks: u64) {
        let (groups, count) = self.groups(first, blocks);
        self.withdrawn.resize(self.group_free.len(), false);
        for group in groups {
            self.withdrawn[group] = true;
            self.group_free[group] = 0;
            let words = (GROUP / WORD) as usize;
            self.words[group * words..][..words].fill(u64::MAX);
        }
        self.withdrawn_blocks += count;
        self.free = self.free.saturating_sub(count);
    }

    fn place(&mut self, first: u64, blocks: u64) {
        let (groups, count) = self.groups(first, blocks);
        for group in groups {
            if let Some(is_withdrawn) = self.withdrawn.get_mut(group) {
                *is_withdrawn = false;
            }
        }
        self.withdrawn_blocks -= count;
        for block in first..first + count {
            self.free(block);
        }
    }

    fn is_free(&self, block: u64) -> bool {
        self.words[(block / WORD) as usize] & (1 << (block % WORD)) == 0
    }

    fn occupy(&mut self, block: u64) -> bool {
        if !self.is_free(block) {
            return false;
        }
        self.words[(block / WORD) as usize] |= 1 << (block % WORD);
        self.group_free[(block / GROUP) as usize] -= 1;
        self.free = self.free.saturating_sub(1);
        true
    }

    fn free(&mut self, block: u64) {
        assert!(!self.is_free(block), "block {block} was freed twice");
        self.words[(block / WORD) as usize] &= !(1 << (block % WORD));
        self.group_free[(block / GROUP) as usize] += 1;
        self.free += 1;
    }

    /// The block that is to be handed out next by a cursor.
    fn next_free(&self, cursor: usize) -> Option<u64> {
        // As long as not everything is known, the number is an estimate.
        if self.free == 0 && self.unknown == 0 {
            return None;
        }
        let own = self.cursors[cursor];
        let from = own.unwrap_or(self.last);
        let is_others = |group: u64| {
            let is_own = own.is_some_and(|own| own / GROUP == group);
            let others = (0..).zip(&self.cursors).filter(|(at, _)| *at != cursor);
            let mut others = others.filter_map(|(_, at)| *at);
            !is_own && others.any(|at| at / GROUP == group)
        };
        let alone = self.search(from, |group| !is_others(group));
        alone.or_else(|| self.search(from, |_| true))
    }

    /// The first free block from one on, and then from the start on, of groups that may be used.
    fn search(&self, cursor: u64, may_use: impl Fn(u64) -> bool) -> Option<u64> {
        let groups = self.group_free.len() as u64;
        let first = (cursor / GROUP) % groups;
        // One step more than there are groups: the first one again, from its start.
        for step in 0..=groups {
            let group = (first + step) % groups;
            if self.group_free[group as usize] == 0 || !may_use(group) {
                continue;
            }
            let from = if step == 0 {
                cursor.max(group * GROUP)
            } else {
                group * GROUP
            };
            let block = self.first_free(from, (group + 1) * GROUP);
            if block.is_some() {
                return block;
            }
        }
        None
    }

    /// Hands a free block out; the next one of this cursor is behind it.
    fn take(&mut self, cursor: usize, block: u64) {
        self.occupy(block);
        self.last = self.behind(block);
        self.cursors[cursor] = Some(self.last);
    }

    /// Blocks that a cursor handed out last are free again: it goes on there, if nobody has used it since.
    fn put_back(&mut self, cursor: usize, first: u64, end: u64) {
        (first..end).for_each(|block| self.free(block));
        let behind = self.behind(end - 1);
        if self.cursors[cursor] == Some(behind) {
            self.cursors[cursor] = Some(first);
        }
        if self.last == behind {
            self.last = first;
        }
    }

    /// Where it goes on after a block.
    fn behind(&self, block: u64) -> u64 {
        if block + 1 < self.blocks {
            block + 1
        } else {
            0
        }
    }

    fn first_free(&self, from: u64, end: u64) -> Option<u64> {
        let mut block = from;
        while block < end {
            let free = !self.words[(block / WORD) as usize] >> (block % WORD);
            if free != 0 {
                return Some(block + u64::from(free.trailing_zeros()));
            }
            block = (block / WORD + 1) * WORD;
        }
        None
    }
}

#[cfg(test)]
mod tests;
