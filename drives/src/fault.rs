//! A drive that fails on purpose, for simulations of crashes.
//!
//! It behaves like the worst drive that keeps the promises of [`Drive`]: completions are delayed and
//! overtake each other; a write that was not flushed may be there after a power cut, or not, or in
//! parts; discarded blocks read as rubbish. Guarantees: everything is decided by the plan's seed and
//! the order in which operations begin, so a run can be repeated; there is no clock, and any executor
//! will do.

use std::collections::BTreeMap;
use std::future::{pending, poll_fn};
use std::rc::Rc;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use reactor::Buffer;

use crate::{
    BLOCK_BYTES, Drive, DriveError, ErrorKind, Extent, GatherExtent, LocalBoxFuture, SECTOR_BYTES,
    Transferred, check_gather, check_range, check_transfer,
};

const NAME: &str = "fault";

/// The content of one block.
type Block = Box<[u8; BLOCK_BYTES]>;

/// What goes wrong, and when. Operations are counted from 0, all kinds together, as they begin.
#[derive(Clone, Debug, Default)]
pub struct FaultPlan {
    /// Decides everything that is left to chance.
    pub seed: u64,
    /// These operations fail. A write that fails leaves each block old, new or mixed.
    pub fail: Vec<u64>,
    /// The power is cut in the middle of this operation: neither it nor any later one completes.
    pub power_cut: Option<u64>,
    /// Each operation is put off up to this many polls before it takes effect, and up to as many
    /// before it completes.
    pub max_delay: u32,
}

/// A drive in memory that knows what was flushed. To be crashed and opened again, any number of times.
pub struct FaultDrive {
    blocks: u64,
    plan: FaultPlan,
    state: Mutex<State>,
}

#[derive(Clone, Default)]
struct State {
    /// What survives everything.
    durable: BTreeMap<u64, Block>,
    /// Per block, what was written since, in the order in which it took effect; what has not taken
    /// effect yet comes last.
    unflushed: BTreeMap<u64, Vec<Version>>,
    operations: u64,
    /// Writes and discards in the drive's whole life: the number of the next one.
    next_write: u64,
    off: bool,
}

#[derive(Clone)]
struct Version {
    /// The write or discard that made it.
    write: u64,
    progress: Progress,
    content: Block,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Progress {
    /// Reads do not see it yet, but after a crash it may be there.
    InFlight,
    /// Reads see it.
    Effective,
    /// The writer was told: a flush that begins now must make it durable.
    Completed,
}

/// How long an operation takes, and whether it fails.
struct Fate {
    operation: u64,
    chance: ChaCha8Rng,
    before: u32,
    after: u32,
    fails: bool,
}

impl FaultDrive {
    /// A drive of `blocks` blocks, all zero.
    pub fn new(blocks: u64, plan: FaultPlan) -> Self {
        Self {
            blocks,
            plan,
            state: Mutex::default(),
        }
    }

    /// Operations begun so far. A run without faults tells how many places there are for one.
    pub fn operations(&self) -> u64 {
        self.state().operations
    }

    /// Whether the power is cut, by the plan or by [`cut_power`](Self::cut_power).
    pub fn is_off(&self) -> bool {
        self.state().off
    }

    /// No operation completes from now on.
    pub fn cut_power(&self) {
        self.state().off = true;
    }

    /// Cuts the power, and gives back the drive as it is when power returns: what was flushed, and of
    /// each later write all, nothing or some sectors.
    pub fn crash(&self, plan: FaultPlan) -> Self {
        let mut state = self.state();
        state.off = true;
        // Another stream than that of any operation.
        let mut chance = self.chance(u64::MAX);
        let kept = kept_percent(&mut chance);
        let mut durable = state.durable.clone();
        for (&block, versions) in &state.unflushed {
            let content = survivor(durable.get(&block), versions, kept, &mut chance);
            durable.insert(block, content);
        }
        let after = State {
            durable,
            ..State::default()
        };
        Self {
            blocks: self.blocks,
            plan,
            state: Mutex::new(after),
        }
    }

    /// Ends the process that uses the drive, and gives back the drive as the next process finds it:
    /// the drive has kept its power, so completed writes are there, though not flushed; of those in
    /// flight each block is old, new or mixed.
    pub fn restart(&self, plan: FaultPlan) -> Self {
        let next = self.copy(plan);
        self.state().off = true;
        next
    }

    /// The same, as a copy beside the drive: who uses that goes on.
    pub fn copy(&self, plan: FaultPlan) -> Self {
        let state = self.state();
        let mut chance = self.chance(u64::MAX);
        let kept = kept_percent(&mut chance);
        let mut after = state.clone();
        for (block, versions) in &mut after.unflushed {
            let first_in_flight =
                versions.partition_point(|version| version.progress != Progress::InFlight);
            let in_flight = versions.split_off(first_in_flight);
            if !in_flight.is_empty() {
                let now = versions.last().map(|version| &version.content);
                let now = now.or_else(|| state.durable.get(block));
                let content = survivor(now, &in_flight, kept, &mut chance);
                versions.push(Version {
                    write: u64::MAX,
                    progress: Progress::Completed,
                    content,
                });
            }
            for version in versions {
                version.progress = Progress::Completed;
            }
        }
        after.operations = 0;
        after.off = false;
        Self {
            blocks: self.blocks,
            plan,
            state: Mutex::new(after),
        }
    }

    /// Nothing is in flight any more, and who used the drive is gone, or the drive is fenced: what took place counts as
    /// completed, so that the next flush makes it durable.
    pub fn settle(&self) {
        for version in self.state().unflushed.values_mut().flatten() {
            if version.progress == Progress::Effective {
                version.progress = Progress::Completed;
            }
        }
    }

    /// A flush that happens at once; false if the power is cut.
    #[must_use]
    pub fn flush_now(&self) -> bool {
        let mut state = self.state();
        if state.off {
            return false;
        }
        for (block, write) in state.completed() {
            state.make_durable(block, write);
        }
        true
    }

    /// Flips a bit of each sector of the block, unseen: what was read and flushed before does not
    /// help.
    pub fn corrupt(&self, block: u64) {
        let mut state = self.state();
        let mut content = Box::new([0; BLOCK_BYTES]);
        state.load(block, &mut content[..]);
        for sector in content.chunks_mut(SECTOR_BYTES) {
            sector[7] ^= 0x10;
        }
        state.unflushed.remove(&block);
        state.durable.insert(block, content);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn chance(&self, operation: u64) -> ChaCha8Rng {
        let mut chance = ChaCha8Rng::seed_from_u64(self.plan.seed);
        chance.set_stream(operation);
        chance
    }

    /// Counts an operation and decides what becomes of it.
    fn begin(&self) -> Fate {
        let operation = {
            let mut state = self.state();
            let operation = state.operations;
            state.operations += 1;
            if self.plan.power_cut == Some(operation) {
                state.off = true;
            }
            operation
        };
        let mut chance = self.chance(operation);
        let before = chance.random_range(0..=self.plan.max_delay);
        let after = chance.random_range(0..=self.plan.max_delay);
        Fate {
            operation,
            chance,
            before,
            after,
            fails: self.plan.fail.contains(&operation),
        }
    }

    /// Lets others run `turns` times; for ever when the power is off.
    async fn delay(&self, turns: u32) {
        for _ in 0..turns {
            let mut yielded = false;
            poll_fn(|cx| {
                if std::mem::replace(&mut yielded, true) {
                    return Poll::Ready(());
                }
                cx.waker().wake_by_ref();
                Poll::Pending
            })
            .await;
        }
        if self.is_off() {
            pending::<()>().await;
        }
    }

    fn failure(&self, fate: &Fate) -> DriveError {
        let text = format!("operation {} fails, as planned", fate.operation);
        DriveError::new(ErrorKind::Io, NAME, text)
    }
}

/// Each block of the extents, with its place in the buffer.
fn blocks_of(extents: &[Extent]) -> impl Iterator<Item = (u64, usize)> + '_ {
    extents.iter().flat_map(|extent| {
        (0..extent.blocks as usize).map(|i| {
            (
                extent.block + i as u64,
                extent.buffer_offset + i * BLOCK_BYTES,
            )
        })
    })
}

/// How much of what was not flushed survives: some crashes lose nearly all, some nearly nothing.
fn kept_percent(chance: &mut ChaCha8Rng) -> u32 {
    [5, 50, 95][chance.random_range(0..3)]
}

/// What is left of a block after the power was cut: the old content, the last one written, or some
/// sectors of each that was written since.
fn survivor(
    old: Option<&Block>,
    versions: &[Version],
    kept_percent: u32,
    chance: &mut ChaCha8Rng,
) -> Block {
    let mut content = old.cloned().unwrap_or_else(|| Box::new([0; BLOCK_BYTES]));
    let Some(last) = versions.last() else {
        return content;
    };
    if chance.random() {
        if chance.random_ratio(kept_percent, 100) {
            content.copy_from_slice(&last.content[..]);
        }
        return content;
    }
    for (i, sector) in content.chunks_mut(SECTOR_BYTES).enumerate() {
        if chance.random_ratio(kept_percent, 100) {
            let from = &versions[chance.random_range(0..versions.len())].content;
            sector.copy_from_slice(&from[i * SECTOR_BYTES..][..SECTOR_BYTES]);
        }
    }
    content
}

impl State {
    fn load(&self, block: u64, to: &mut [u8]) {
        let versions = self.unflushed.get(&block).map_or(&[][..], Vec::as_slice);
        let seen = versions
            .iter()
            .rfind(|version| version.progress > Progress::InFlight);
        match seen
            .map(|version| &version.content)
            .or_else(|| self.durable.get(&block))
        {
            Some(content) => to.copy_from_slice(&content[..]),
            None => to.fill(0),
        }
    }

    /// The number of a new write or discard.
    fn number_write(&mut self) -> u64 {
        self.next_write += 1;
        self.next_write
    }

    fn put(&mut self, block: u64, write: u64, content: Block) {
        let version = Version {
            write,
            progress: Progress::InFlight,
            content,
        };
        self.unflushed.entry(block).or_default().push(version);
    }

    /// What `write` wrote to `block` goes one step further.
    fn advance(&mut self, block: u64, write: u64, progress: Progress) {
        let Some(versions) = self.unflushed.get_mut(&block) else {
            return;
        };
        let Some(at) = versions.iter().position(|version| version.write == write) else {
            return;
        };
        versions[at].progress = progress;
        if progress == Progress::Effective {
            // Behind those that took effect before it, in front of those still in flight.
            let version = versions.remove(at);
            let end = versions.partition_point(|other| other.progress != Progress::InFlight);
            versions.insert(end, version);
        }
    }

    fn remove(&mut self, block: u64, write: u64) {
        if let Some(versions) = self.unflushed.get_mut(&block) {
            versions.retain(|version| version.write != write);
            if versions.is_empty() {
                self.unflushed.remove(&block);
            }
        }
    }

    /// Per block, the last write that a flush which begins now must make durable.
    fn completed(&self) -> Vec<(u64, u64)> {
        let last = |versions: &[Version]| {
            let last = versions
                .iter()
                .rfind(|version| version.progress == Progress::Completed);
            last.map(|version| version.write)
        };
        self.unflushed
            .iter()
            .filter_map(|(&block, versions)| Some((block, last(versions)?)))
            .collect()
    }

    fn make_durable(&mut self, block: u64, write: u64) {
        let Some(versions) = self.unflushed.get_mut(&block) else {
            return;
        };
        let Some(at) = versions.iter().position(|version| version.write == write) else {
            // A flush that ran beside this one has done it.
            return;
        };
        if let Some(version) = versions.drain(..=at).next_back() {
            self.durable.insert(block, version.content);
        }
        if self.unflushed.get(&block).is_some_and(Vec::is_empty) {
            self.unflushed.remove(&block);
        }
    }
}

/// A write in flight. If its future is dropped, chance decides whether it took place.
struct Writing<'a> {
    drive: &'a FaultDrive,
    fate: Fate,
    write: u64,
    blocks: Vec<u64>,
    done: bool,
}

impl Writing<'_> {
    fn advance(&self, progress: Progress) {
        let mut state = self.drive.state();
        for &block in &self.blocks {
            state.advance(block, self.write, progress);
        }
    }

    /// Each block is now old, new or mixed.
    fn fail(&mut self) -> DriveError {
        let write = self.write;
        let mut state = self.drive.state();
        for &block in &self.blocks {
            let mut mixed = Box::new([0; BLOCK_BYTES]);
            state.load(block, &mut mixed[..]);
            let written = state.unflushed.get(&block).and_then(|versions| {
                versions
                    .iter()
                    .find(|version| version.write == write)
                    .cloned()
            });
            let Some(written) = written else { continue };
            let content = survivor(Some(&mixed), &[written], 50, &mut self.fate.chance);
            state.remove(block, write);
            state.put(block, write, content);
            state.advance(block, write, Progress::Effective);
        }
        drop(state);
        self.done = true;
        self.drive.failure(&self.fate)
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        if self.done || self.drive.is_off() {
            return;
        }
        if self.fate.chance.random() {
            self.advance(Progress::Effective);
        } else {
            let mut state = self.drive.state();
            for &block in &self.blocks {
                state.remove(block, self.write);
            }
        }
    }
}

impl FaultDrive {
    /// One write, of any number of buffers: each block with the bytes that begin with its content.
    async fn write_blocks<'a>(
        &self,
        written: impl Iterator<Item = (u64, &'a [u8])>,
    ) -> Result<(), DriveError> {
        if self.is_off() {
            pending::<()>().await;
        }
        let fate = self.begin();
        let mut blocks = Vec::new();
        let write = {
            let mut state = self.state();
            let write = state.number_write();
            for (block, bytes) in written {
                let mut content = Box::new([0; BLOCK_BYTES]);
                content.copy_from_slice(&bytes[..BLOCK_BYTES]);
                state.put(block, write, content);
                blocks.push(block);
            }
            write
        };
        self.finish_write(fate, write, blocks).await
    }

    /// The common way of writes and discards, whose new contents have been put in flight.
    async fn finish_write(
        &self,
        fate: Fate,
        write: u64,
        blocks: Vec<u64>,
    ) -> Result<(), DriveError> {
        let mut writing = Writing {
            drive: self,
            fate,
            write,
            blocks,
            done: false,
        };
        self.delay(writing.fate.before).await;
        if writing.fate.fails {
            return Err(writing.fail());
        }
        writing.advance(Progress::Effective);
        self.delay(writing.fate.after).await;
        writing.advance(Progress::Completed);
        writing.done = true;
        Ok(())
    }
}

impl Drive for FaultDrive {
    fn name(&self) -> &str {
        NAME
    }

    fn blocks(&self) -> u64 {
        self.blocks
    }

    fn read<'a>(
        &'a self,
        mut buffer: Buffer,
        extents: &'a [Extent],
    ) -> LocalBoxFuture<'a, Transferred> {
        Box::pin(async move {
            if let Err(error) = check_transfer(self, &buffer, extents) {
                return (Err(error), buffer);
            }
            let fate = self.begin();
            self.delay(fate.before).await;
            for (block, at) in blocks_of(extents) {
                let to = &mut buffer[at..at + BLOCK_BYTES];
                if fate.fails {
                    to.fill(0xdd);
                } else {
                    self.state().load(block, to);
                }
            }
            self.delay(fate.after).await;
            let result = if fate.fails {
                Err(self.failure(&fate))
            } else {
                Ok(())
            };
            (result, buffer)
        })
    }

    fn write<'a>(
        &'a self,
        buffer: Buffer,
        extents: &'a [Extent],
    ) -> LocalBoxFuture<'a, Transferred> {
        Box::pin(async move {
            if let Err(error) = check_transfer(self, &buffer, extents) {
                return (Err(error), buffer);
            }
            let written = blocks_of(extents).map(|(block, at)| (block, &buffer[at..]));
            let result = self.write_blocks(written).await;
            (result, buffer)
        })
    }

    fn write_many<'a>(
        &'a self,
        buffers: Rc<Vec<Buffer>>,
        extents: &'a [GatherExtent],
    ) -> LocalBoxFuture<'a, Result<(), DriveError>> {
        Box::pin(async move {
            check_gather(self, &buffers, extents)?;
            let written = extents.iter().flat_map(|extent| {
                let buffer = &buffers[extent.buffer as usize];
                (0..extent.blocks as usize).map(move |i| {
                    let at = extent.buffer_offset as usize + i * BLOCK_BYTES;
                    (extent.block + i as u64, &buffer[at..])
                })
            });
            self.write_blocks(written).await
        })
    }

    fn flush<'a>(&'a self) -> LocalBoxFuture<'a, Result<(), DriveError>> {
        Box::pin(async move {
            let fate = self.begin();
            let completed = self.state().completed();
            self.delay(fate.before).await;
            if fate.fails {
                return Err(self.failure(&fate));
            }
            {
                let mut state = self.state();
                for (block, write) in completed {
                    state.make_durable(block, write);
                }
            }
            self.delay(fate.after).await;
            Ok(())
        })
    }

    fn discard<'a>(
        &'a self,
        block: u64,
        blocks: u64,
    ) -> LocalBoxFuture<'a, Result<(), DriveError>> {
        Box::pin(async move {
            check_range(self, block, blocks)?;
            if self.is_off() {
                pending::<()>().await;
            }
            let mut fate = self.begin();
            let mut discarded = Vec::new();
            let write = {
                let mut state = self.state();
                let write = state.number_write();
                let range = block..block + blocks;
                // Blocks never written stay zero: they say as much as rubbish, and take no memory.
                discarded.extend(state.durable.range(range.clone()).map(|(&block, _)| block));
                discarded.extend(state.unflushed.range(range).map(|(&block, _)| block));
                discarded.sort_unstable();
                discarded.dedup();
                for &block in &discarded {
                    let mut content = Box::new([0; BLOCK_BYTES]);
                    if fate.chance.random() {
                        fate.chance.fill(&mut content[..]);
                    }
                    state.put(block, write, content);
                }
                write
            };
            self.finish_write(fate, write, discarded).await
        })
    }
}

impl std::fmt::Debug for FaultDrive {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FaultDrive")
            .field("blocks", &self.blocks)
            .field("plan", &self.plan)
            .finish_non_exhaustive()
    }
}
