//! A drive that keeps 16 bytes of each block, so that far more data than memory can be stored.
//!
//! All contents of the benchmark are one template with 16 bytes of their own at the start: this drive
//! keeps those, and reads give the template with them. Whatever else is written is not kept, and reads
//! of blocks that were never written are zeros.

use std::future::ready;
use std::rc::Rc;
use std::sync::{PoisonError, RwLock};

use drives::{
    BLOCK_BYTES, Drive, DriveError, ErrorKind, Extent, GatherExtent, LocalBoxFuture, Transferred,
};
use reactor::Buffer;

use super::content::{STAMP_BYTES, Stamp};

const NAME: &str = "stamps";

/// Blocks under one lock.
const CHUNK_BLOCKS: usize = 1 << 16;

pub(super) struct StampDrive {
    blocks: u64,
    template: Box<[u8; BLOCK_BYTES]>,
    /// Made when first written.
    chunks: Vec<RwLock<Vec<Stamp>>>,
}

impl StampDrive {
    /// A drive of `blocks` blocks for contents made of `template`.
    pub(super) fn new(blocks: u64, template: Box<[u8; BLOCK_BYTES]>) -> Self {
        let chunks = blocks.div_ceil(CHUNK_BLOCKS as u64);
        Self {
            blocks,
            template,
            chunks: (0..chunks).map(|_| RwLock::default()).collect(),
        }
    }

    /// Bytes of memory it takes.
    pub(super) fn memory_bytes(&self) -> u64 {
        let held = |chunk: &RwLock<Vec<Stamp>>| {
            let chunk = chunk.read().unwrap_or_else(PoisonError::into_inner);
            (chunk.capacity() * STAMP_BYTES) as u64
        };
        self.chunks.iter().map(held).sum()
    }

    fn check(&self, block: u64, blocks: u64) -> Result<(), DriveError> {
        match block.checked_add(blocks) {
            Some(end) if end <= self.blocks => Ok(()),
            _ => Err(DriveError::new(
                ErrorKind::Invalid,
                NAME,
                format!(
                    "blocks {block} + {blocks} are not among its {}",
                    self.blocks
                ),
            )),
        }
    }

    fn place(block: u64) -> (usize, usize) {
        let chunk = (block / CHUNK_BLOCKS as u64) as usize;
        (chunk, (block % CHUNK_BLOCKS as u64) as usize)
    }

    fn load(&self, block: u64, to: &mut [u8]) {
        let (chunk, at) = Self::place(block);
        let chunk = self.chunks[chunk]
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        match chunk.get(at) {
            Some(stamp) if *stamp != [0; STAMP_BYTES] => {
                to.copy_from_slice(&self.template[..]);
                to[..STAMP_BYTES].copy_from_slice(stamp);
            }
            _ => to.fill(0),
        }
    }

    fn store(&self, block: u64, from: &[u8]) {
        let (chunk, at) = Self::place(block);
        let mut chunk = self.chunks[chunk]
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        if chunk.is_empty() {
            chunk.resize(CHUNK_BLOCKS, [0; STAMP_BYTES]);
        }
        chunk[at].copy_from_slice(&from[..STAMP_BYTES]);
    }

    fn store_all(&self, extents: &[Extent], buffer: &[u8]) -> Result<(), DriveError> {
        for extent in extents {
            self.check(extent.block, u64::from(extent.blocks))?;
            let bytes = &buffer[extent.buffer_offset..][..extent.blocks as usize * BLOCK_BYTES];
            for (block, from) in (extent.block..).zip(bytes.chunks_exact(BLOCK_BYTES)) {
                self.store(block, from);
            }
        }
        Ok(())
    }
}

impl Drive for StampDrive {
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
        let result = extents.iter().try_for_each(|extent| {
            self.check(extent.block, u64::from(extent.blocks))?;
            let bytes = extent.blocks as usize * BLOCK_BYTES;
            let to = &mut buffer[extent.buffer_offset..][..bytes];
            for (block, to) in (extent.block..).zip(to.chunks_exact_mut(BLOCK_BYTES)) {
                self.load(block, to);
            }
            Ok(())
        });
        Box::pin(ready((result, buffer)))
    }

    fn write<'a>(
        &'a self,
        buffer: Buffer,
        extents: &'a [Extent],
    ) -> LocalBoxFuture<'a, Transferred> {
        let result = self.store_all(extents, &buffer);
        Box::pin(ready((result, buffer)))
    }

    fn write_many<'a>(
        &'a self,
        buffers: Rc<Vec<Buffer>>,
        extents: &'a [GatherExtent],
    ) -> LocalBoxFuture<'a, Result<(), DriveError>> {
        let result = extents.iter().try_for_each(|extent| {
            let in_buffer = Extent {
                block: extent.block,
                buffer_offset: extent.buffer_offset as usize,
                blocks: extent.blocks,
            };
            self.store_all(&[in_buffer], &buffers[extent.buffer as usize])
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
        Box::pin(ready(self.check(block, blocks)))
    }
}
