//! A drive in memory, for tests and measurements.
//!
//! Guarantees: its futures are done at the first poll, on any executor; memory is taken from the system
//! in chunks of 2 MiB (huge pages where there are some) when a block of theirs is first written, and
//! given back when none of their blocks is needed any more, unless the drive was made
//! [resident](MemoryDrive::resident); transfers to different chunks never wait for each other, nor reads
//! of the same chunk.

use std::future::ready;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use reactor::{Buffer, BufferPool, MAX_BUFFER_BYTES};

use crate::{
    BLOCK_BYTES, Drive, DriveError, ErrorKind, Extent, GatherExtent, Gathered, LocalBoxFuture,
    Transferred, check_gather, check_range, check_transfer,
};

const NAME: &str = "memory";

/// A chunk is the largest buffer of a pool: one huge page.
const CHUNK_BYTES: usize = MAX_BUFFER_BYTES;
const CHUNK_BLOCKS: usize = CHUNK_BYTES / BLOCK_BYTES;
const WORD_BITS: usize = u64::BITS as usize;

/// Blocks in memory. Those never written, or discarded since, read as zeros.
pub struct MemoryDrive {
    blocks: u64,
    chunks: Vec<RwLock<Chunk>>,
    /// Chunks keep their memory when nothing in them is needed.
    is_resident: bool,
}

/// `None` as long as none of its blocks holds content.
#[derive(Default)]
struct Chunk(Option<Box<Content>>);

struct Content {
    /// From a pool of its own, which goes back to the system with it.
    memory: Buffer,
    /// A bit for each block that holds content: memory behind the others may hold anything.
    written: [u64; CHUNK_BLOCKS / WORD_BITS],
}

impl Content {
    /// The longest run of blocks from `first` on, within `blocks`, that are all written or all not.
    fn run(&self, first: usize, blocks: usize) -> (bool, usize) {
        let is_written =
            |block: usize| (self.written[block / WORD_BITS] >> (block % WORD_BITS)) & 1;
        let kind = is_written(first);
        let run = (first..first + blocks).take_while(|&block| is_written(block) == kind);
        (kind == 1, run.count())
    }
}

impl Chunk {
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

    /// The chunk's memory, from the system if it has none yet.
    fn content(&mut self) -> Result<&mut Content, DriveError> {
        Ok(match &mut self.0 {
            Some(content) => content,
            none => none.insert(Box::new(Content {
                memory: new_memory()?,
                written: [0; CHUNK_BLOCKS / WORD_BITS],
            })),
        })
    }

    fn store(&mut self, first: usize, from: &[u8]) -> Result<(), DriveError> {
        let content = self.content()?;
        content.memory[first * BLOCK_BYTES..][..from.len()].copy_from_slice(from);
        for block in first..first + from.len() / BLOCK_BYTES {
            content.written[block / WORD_BITS] |= 1 << (block % WORD_BITS);
        }
        Ok(())
    }

    fn discard(&mut self, first: usize, blocks: usize, is_resident: bool) {
        let Some(content) = &mut self.0 else {
            return;
        };
        for block in first..first + blocks {
            content.written[block / WORD_BITS] &= !(1 << (block % WORD_BITS));
        }
        if !is_resident && content.written.iter().all(|&word| word == 0) {
            self.0 = None;
        }
    }
}

fn new_memory() -> Result<Buffer, DriveError> {
    let text = "the system gives no more memory; make the drive smaller or raise the limit on address \
                space (ulimit -v)";
    let pool = BufferPool::new(CHUNK_BYTES).map_err(|error| {
        DriveError::new(ErrorKind::NoSpace, NAME, format!("{text}: {error}")).with_source(error)
    })?;
    pool.try_alloc(CHUNK_BYTES)
        .ok_or_else(|| DriveError::new(ErrorKind::NoSpace, NAME, text))
}

/// A part of an extent that lies in one chunk.
struct Stretch {
    chunk: usize,
    /// Its first block, counted from the chunk's.
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
        let first = (at % CHUNK_BLOCKS as u64) as usize;
        let run = left.min((CHUNK_BLOCKS - first) as u64);
        let stretch = Stretch {
            chunk: (at / CHUNK_BLOCKS as u64) as usize,
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
        let chunks = blocks.div_ceil(CHUNK_BLOCKS as u64);
        Self {
            blocks,
            chunks: (0..chunks).map(|_| RwLock::default()).collect(),
            is_resident: false,
        }
    }

    /// A drive of `blocks` blocks, all zero, that takes all of its memory now and keeps it: the system's
    /// work for new memory (a fault and 4 KiB of zeros for each page) is not part of what is measured
    /// then. Takes about a second for 2 GiB.
    ///
    /// # Errors
    /// `NoSpace` if the system has not that much memory to give.
    pub fn resident(blocks: u64) -> Result<Self, DriveError> {
        let drive = Self {
            is_resident: true,
            ..Self::new(blocks)
        };
        for chunk in &drive.chunks {
            // A byte of each page is enough to have it.
            let mut chunk = change(chunk);
            let memory = &mut chunk.content()?.memory;
            memory
                .iter_mut()
                .step_by(BLOCK_BYTES)
                .for_each(|byte| *byte = 1);
        }
        Ok(drive)
    }

    /// How many blocks hold content.
    pub fn written_blocks(&self) -> u64 {
        let of_chunk = |chunk: &RwLock<Chunk>| {
            let chunk = look(chunk);
            let words = chunk.0.iter().flat_map(|content| content.written);
            words.map(|word| u64::from(word.count_ones())).sum::<u64>()
        };
        self.chunks.iter().map(of_chunk).sum()
    }

    /// Bytes of memory that its content takes.
    pub fn memory_bytes(&self) -> u64 {
        let taken = self.chunks.iter();
        let taken = taken.filter(|chunk| look(chunk).0.is_some());
        taken.count() as u64 * CHUNK_BYTES as u64
    }

    fn store(&self, block: u64, from: &[u8]) -> Result<(), DriveError> {
        for stretch in stretches(block, (from.len() / BLOCK_BYTES) as u64) {
            let from = &from[stretch.offset..][..stretch.bytes];
            change(&self.chunks[stretch.chunk]).store(stretch.first, from)?;
        }
        Ok(())
    }
}

// A panic while a chunk was locked left whole blocks or a mixed one, as a failed write does.
fn look(chunk: &RwLock<Chunk>) -> RwLockReadGuard<'_, Chunk> {
    chunk.read().unwrap_or_else(PoisonError::into_inner)
}

fn change(chunk: &RwLock<Chunk>) -> RwLockWriteGuard<'_, Chunk> {
    chunk.write().unwrap_or_else(PoisonError::into_inner)
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
                    look(&self.chunks[stretch.chunk])
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
        buffers: Vec<Buffer>,
        extents: &'a [GatherExtent],
    ) -> LocalBoxFuture<'a, Gathered> {
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
        Box::pin(ready((result, buffers)))
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
                change(&self.chunks[stretch.chunk]).discard(
                    stretch.first,
                    stretch.bytes / BLOCK_BYTES,
                    self.is_resident,
                );
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
