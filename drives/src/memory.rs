//! A drive in memory, for tests and simulations.

use std::collections::HashMap;
use std::future::ready;
use std::sync::{Mutex, MutexGuard, PoisonError};

use reactor::Buffer;

use crate::{
    BLOCK_BYTES, Drive, DriveError, Extent, LocalBoxFuture, Transferred, check_range,
    check_transfer,
};

/// The content of one block.
pub(crate) type Block = Box<[u8; BLOCK_BYTES]>;

/// Blocks in memory. Those never written take no space and read as zeros. Its futures are done at the
/// first poll, on any executor.
pub struct MemoryDrive {
    blocks: u64,
    content: Mutex<HashMap<u64, Block>>,
}

impl MemoryDrive {
    /// A drive of `blocks` blocks, all zero.
    pub fn new(blocks: u64) -> Self {
        Self {
            blocks,
            content: Mutex::new(HashMap::new()),
        }
    }

    /// How many blocks hold content.
    pub fn written_blocks(&self) -> usize {
        self.content().len()
    }

    fn content(&self) -> MutexGuard<'_, HashMap<u64, Block>> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The block at `block` of `content` is copied to `to`.
pub(crate) fn load(content: &HashMap<u64, Block>, block: u64, to: &mut [u8]) {
    match content.get(&block) {
        Some(bytes) => to.copy_from_slice(&bytes[..]),
        None => to.fill(0),
    }
}

/// `from` becomes the block at `block` of `content`.
pub(crate) fn store(content: &mut HashMap<u64, Block>, block: u64, from: &[u8]) {
    content
        .entry(block)
        .or_insert_with(|| Box::new([0; BLOCK_BYTES]))
        .copy_from_slice(from);
}

/// Each block of the extents, with its place in the buffer.
pub(crate) fn blocks_of(extents: &[Extent]) -> impl Iterator<Item = (u64, usize)> + '_ {
    extents.iter().flat_map(|extent| {
        (0..extent.blocks as usize).map(|i| {
            (
                extent.block + i as u64,
                extent.buffer_offset + i * BLOCK_BYTES,
            )
        })
    })
}

impl Drive for MemoryDrive {
    fn name(&self) -> &str {
        "memory"
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
            let content = self.content();
            for (block, at) in blocks_of(extents) {
                load(&content, block, &mut buffer[at..at + BLOCK_BYTES]);
            }
        });
        Box::pin(ready((result, buffer)))
    }

    fn write<'a>(
        &'a self,
        buffer: Buffer,
        extents: &'a [Extent],
    ) -> LocalBoxFuture<'a, Transferred> {
        let result = check_transfer(self, &buffer, extents).map(|()| {
            let mut content = self.content();
            for (block, at) in blocks_of(extents) {
                store(&mut content, block, &buffer[at..at + BLOCK_BYTES]);
            }
        });
        Box::pin(ready((result, buffer)))
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
            self.content()
                .retain(|&at, _| at < block || at - block >= blocks);
        });
        Box::pin(ready(result))
    }
}

impl std::fmt::Debug for MemoryDrive {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MemoryDrive({} blocks)", self.blocks)
    }
}
