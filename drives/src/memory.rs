//! A drive in memory, for tests and measurements.
//!
//! Guarantees: its futures are done at the first poll, on any executor; memory is taken from the system
//! in chunks of 2 MiB (huge pages where there are some) when a block of theirs is first written, and
//! given back when none of their blocks is needed any more, unless the drive was made
//! [resident](MemoryDrive::resident); transfers to different stripes of 128 KiB never wait for each
//! other, nor reads of the same one: several reactors write next to each other, as on a real drive.

use std::future::ready;
use std::rc::Rc;
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use reactor::{Buffer, BufferPool, MAX_BUFFER_BYTES};

use crate::{
    BLOCK_BYTES, Drive, DriveError, ErrorKind, Extent, GatherExtent, LocalBoxFuture, Transferred,
    check_gather, check_range, check_transfer,
};

const NAME: &str = "memory";

/// A chunk is the largest buffer of a pool: one huge page.
const CHUNK_BYTES: usize = MAX_BUFFER_BYTES;
/// What is locked at once: a large command.
const STRIPE_BYTES: usize = 128 << 10;
const STRIPE_BLOCKS: usize = STRIPE_BYTES / BLOCK_BYTES;
const STRIPES: usize = CHUNK_BYTES / STRIPE_BYTES;

/// Blocks in memory. Those never written, or discarded since, read as zeros.
pub struct MemoryDrive {
    blocks: u64,
    chunks: Vec<Chunk>,
    /// The memory of all stripes, if they keep it when nothing in them is needed.
    resident: Option<BufferPool>,
}

/// A lock is taken after that of a stripe, if both are.
#[derive(Default)]
struct Chunk {
    stripes: [Place; STRIPES],
    memory: Mutex<Memory>,
}

/// Where the stripes of a chunk have their buffers from.
#[derive(Default)]
struct Memory {
    /// Goes back to the system with its last buffer.
    pool: Option<BufferPool>,
    stripes: usize,
}

/// A stripe and its lock, on a cache line of their own.
#[derive(Default)]
#[repr(align(64))]
struct Place(RwLock<Stripe>);

/// `None` as long as none of its blocks holds content.
#[derive(Default)]
struct Stripe(Option<Content>);

struct Content {
    memory: Buffer,
    /// A bit for each block that holds content: memory behind the others may hold anything.
    written: u32,
}

const _: () = assert!(STRIPE_BLOCKS == u32::BITS as usize);

impl Content {
    /// The longest run of blocks from `first` on, within `blocks`, that are all written or all not.
    fn run(&self, first: usize, blocks: usize) -> (bool, usize) {
        let bits = self.written >> first;
        let is_written = bits & 1 == 1;
        let run = if is_written {
            bits.trailing_ones()
        } else {
            bits.trailing_zeros()
        };
        (is_written, blocks.min(run as usize))
    }
}

/// The bits of `blocks` (one at least) from `first` on.
fn bits(first: usize, blocks: usize) -> u32 {
    u32::MAX >> (STRIPE_BLOCKS - blocks) << first
}

impl Stripe {
    fn load(&self, first: usize, to: &mut [u8]) {
        let Some(content) = &self.0 else {
            to.fill(0);
            return;
        };
        let blocks = to.len() / BLOCK_BYTES;
        let mut done = 0;
        while done < blocks {
            let (is_written, run) = content.run(first + done, blocks - done);
            let to = &mut to[done * BLOCK_BYTES..][..run * BLOCK_BYTES];
            if is_written {
                to.copy_from_slice(&content.memory[(first + done) * BLOCK_BYTES..][..to.len()]);
            } else {
                to.fill(0);
            }
            done += run;
        }
    }
}

impl Chunk {
    fn store(&self, stretch: &Stretch, from: &[u8]) -> Result<(), DriveError> {
        let mut stripe = change(&self.stripes[stretch.stripe]);
        let content = match &mut stripe.0 {
            Some(content) => content,
            none => none.insert(Content {
                memory: self.new_memory()?,
                written: 0,
            }),
        };
        content.memory[stretch.first * BLOCK_BYTES..][..from.len()].copy_from_slice(from);
        content.written |= bits(stretch.first, stretch.bytes / BLOCK_BYTES);
        Ok(())
    }

    fn discard(&self, stretch: &Stretch, is_resident: bool) {
        let mut stripe = change(&self.stripes[stretch.stripe]);
        let Some(content) = &mut stripe.0 else {
            return;
        };
        content.written &= !bits(stretch.first, stretch.bytes / BLOCK_BYTES);
        if !is_resident && content.written == 0 {
            stripe.0 = None;
            let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
            memory.stripes -= 1;
            if memory.stripes == 0 {
                memory.pool = None;
            }
        }
    }

    /// Memory for a stripe that has none.
    fn new_memory(&self) -> Result<Buffer, DriveError> {
        let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        let pool = match &memory.pool {
            Some(pool) => pool,
            None => memory.pool.insert(new_pool(CHUNK_BYTES)?),
        };
        let buffer = pool.try_alloc(STRIPE_BYTES).ok_or_else(no_memory)?;
        memory.stripes += 1;
        Ok(buffer)
    }
}

fn new_pool(bytes: usize) -> Result<BufferPool, DriveError> {
    BufferPool::new(bytes).map_err(|error| no_memory().with_source(error))
}

fn no_memory() -> DriveError {
    let text = "the system gives no more memory; make the drive smaller or raise the limit on address \
                space (ulimit -v)";
    DriveError::new(ErrorKind::NoSpace, NAME, text)
}

/// A part of an extent that lies in one stripe.
struct Stretch {
    chunk: usize,
    stripe: usize,
    /// Its first block, counted from the stripe's.
    first: usize,
    /// Bytes from the extent's first byte.
    offset: usize,
    bytes: usize,
}

/// The stretches of a range of blocks.
fn stretches(block: u64, blocks: u64) -> impl Iterator<Item = Stretch> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let left = blocks - done;
        if left == 0 {
            return None;
        }
        let at = block + done;
        let first = (at % STRIPE_BLOCKS as u64) as usize;
        let run = left.min((STRIPE_BLOCKS - first) as u64);
        let stripe = (at / STRIPE_BLOCKS as u64) as usize;
        let stretch = Stretch {
            chunk: stripe / STRIPES,
            stripe: stripe % STRIPES,
            first,
            offset: done as usize * BLOCK_BYTES,
            bytes: run as usize * BLOCK_BYTES,
        };
        done += run;
        Some(stretch)
    })
}

impl MemoryDrive {
    /// A drive of `blocks` blocks, all zero. Takes no memory for content yet.
    pub fn new(blocks: u64) -> Self {
        let chunks = blocks.div_ceil((STRIPES * STRIPE_BLOCKS) as u64);
        Self {
            blocks,
            chunks: (0..chunks).map(|_| Chunk::default()).collect(),
            resident: None,
        }
    }

    /// A drive of `blocks` blocks, all zero, that takes all of its memory now and keeps it: the system's
    /// work for new memory (a fault and 4 KiB of zeros for each page) is not part of what is measured
    /// then. Takes about a second for 2 GiB.
    ///
    /// # Errors
    /// `NoSpace` if the system has not that much memory to give.
    pub fn resident(blocks: u64) -> Result<Self, DriveError> {
        let mut drive = Self::new(blocks);
        let pool = new_pool(drive.chunks.len() * CHUNK_BYTES)?;
        for stripe in drive.chunks.iter().flat_map(|chunk| &chunk.stripes) {
            let mut memory = pool.try_alloc(STRIPE_BYTES).ok_or_else(no_memory)?;
            // A byte of each page is enough to have it.
            let pages = memory.iter_mut().step_by(BLOCK_BYTES);
            pages.for_each(|byte| *byte = 1);
            change(stripe).0 = Some(Content { memory, written: 0 });
        }
        drive.resident = Some(pool);
        Ok(drive)
    }

    /// How many blocks hold content.
    pub fn written_blocks(&self) -> u64 {
        let stripes = self.chunks.iter().flat_map(|chunk| &chunk.stripes);
        let of_stripe = |stripe: &Place| {
            let written = look(stripe).0.as_ref().map_or(0, |content| content.written);
            u64::from(written.count_ones())
        };
        stripes.map(of_stripe).sum()
    }

    /// Bytes of memory that its content takes.
    pub fn memory_bytes(&self) -> u64 {
        let is_taken = |chunk: &&Chunk| {
            let memory = chunk.memory.lock().unwrap_or_else(PoisonError::into_inner);
            memory.pool.is_some()
        };
        match &self.resident {
            Some(pool) => pool.stats().total_bytes as u64,
            None => self.chunks.iter().filter(is_taken).count() as u64 * CHUNK_BYTES as u64,
        }
    }

    fn store(&self, block: u64, from: &[u8]) -> Result<(), DriveError> {
        for stretch in stretches(block, (from.len() / BLOCK_BYTES) as u64) {
            let from = &from[stretch.offset..][..stretch.bytes];
            self.chunks[stretch.chunk].store(&stretch, from)?;
        }
        Ok(())
    }
}

// A panic while a stripe was locked left whole blocks or a mixed one, as a failed write does.
fn look(stripe: &Place) -> RwLockReadGuard<'_, Stripe> {
    stripe.0.read().unwrap_or_else(PoisonError::into_inner)
}

fn change(stripe: &Place) -> RwLockWriteGuard<'_, Stripe> {
    stripe.0.write().unwrap_or_else(PoisonError::into_inner)
}

impl Drive for MemoryDrive {
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
        let result = check_transfer(self, &buffer, extents).map(|()| {
            for extent in extents {
                for stretch in stretches(extent.block, u64::from(extent.blocks)) {
                    let at = extent.buffer_offset + stretch.offset;
                    look(&self.chunks[stretch.chunk].stripes[stretch.stripe])
                        .load(stretch.first, &mut buffer[at..][..stretch.bytes]);
                }
            }
        });
        Box::pin(ready((result, buffer)))
    }

    fn write<'a>(
        &'a self,
        buffer: Buffer,
        extents: &'a [Extent],
    ) -> LocalBoxFuture<'a, Transferred> {
        let result = check_transfer(self, &buffer, extents).and_then(|()| {
            extents.iter().try_for_each(|extent| {
                let bytes = extent.blocks as usize * BLOCK_BYTES;
                self.store(extent.block, &buffer[extent.buffer_offset..][..bytes])
            })
        });
        Box::pin(ready((result, buffer)))
    }

    fn write_many<'a>(
        &'a self,
        buffers: Rc<Vec<Buffer>>,
        extents: &'a [GatherExtent],
    ) -> LocalBoxFuture<'a, Result<(), DriveError>> {
        let result = check_gather(self, &buffers, extents).and_then(|()| {
            extents.iter().try_for_each(|extent| {
                let buffer = &buffers[extent.buffer as usize];
                let bytes = extent.blocks as usize * BLOCK_BYTES;
                self.store(
                    extent.block,
                    &buffer[extent.buffer_offset as usize..][..bytes],
                )
            })
        });
        Box::pin(ready(result))
    }

    fn flush<'a>(&'a self) -> LocalBoxFuture<'a, Result<(), DriveError>> {
        Box::pin(ready(Ok(())))
    }

    fn discard<'a>(
        &'a self,
        block: u64,
        blocks: u64,
    ) -> LocalBoxFuture<'a, Result<(), DriveError>> {
        let result = check_range(self, block, blocks).map(|()| {
            for stretch in stretches(block, blocks) {
                self.chunks[stretch.chunk].discard(&stretch, self.resident.is_some());
            }
        });
        Box::pin(ready(result))
    }
}

impl std::fmt::Debug for MemoryDrive {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MemoryDrive({} blocks)", self.blocks)
    }
}
