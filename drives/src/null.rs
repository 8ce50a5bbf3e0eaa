//! A drive that keeps nothing, to measure what stands above drives with more data than memory.

use std::future::ready;

use reactor::Buffer;

use crate::{
    BLOCK_BYTES, Drive, DriveError, Extent, GatherExtent, Gathered, LocalBoxFuture, Transferred,
    check_gather, check_range, check_transfer,
};

/// Takes every write and forgets it; **all blocks read as zeros**, whatever was written. So whoever
/// checks what it reads finds damage everywhere, and nothing that was stored here can be recovered.
#[derive(Debug)]
pub struct NullDrive {
    blocks: u64,
}

impl NullDrive {
    /// A drive of `blocks` blocks, which take no memory.
    pub fn new(blocks: u64) -> Self {
        Self { blocks }
    }
}

impl Drive for NullDrive {
    fn name(&self) -> &str {
        "null"
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
                let bytes = extent.blocks as usize * BLOCK_BYTES;
                buffer[extent.buffer_offset..][..bytes].fill(0);
            }
        });
        Box::pin(ready((result, buffer)))
    }

    fn write<'a>(
        &'a self,
        buffer: Buffer,
        extents: &'a [Extent],
    ) -> LocalBoxFuture<'a, Transferred> {
        let result = check_transfer(self, &buffer, extents);
        Box::pin(ready((result, buffer)))
    }

    fn write_many<'a>(
        &'a self,
        buffers: Vec<Buffer>,
        extents: &'a [GatherExtent],
    ) -> LocalBoxFuture<'a, Gathered> {
        let result = check_gather(self, &buffers, extents);
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
        Box::pin(ready(check_range(self, block, blocks)))
    }
}
