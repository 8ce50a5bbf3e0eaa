//! The front part of a drive, as a drive: what is behind it is somebody else's.

use std::rc::Rc;
use std::sync::Arc;

use reactor::Buffer;

use crate::{
    Drive, DriveError, Extent, GatherExtent, Left, LocalBoxFuture, SmartLog, Transferred,
    check_gather, check_range, check_transfer,
};

/// The first blocks of a drive. Nothing beyond them is read, written or discarded through it.
pub struct FrontDrive {
    inner: Arc<dyn Drive>,
    blocks: u64,
    left: Arc<Left>,
}

impl FrontDrive {
    /// The first `blocks` blocks of a drive that has more, or as many.
    #[must_use]
    pub fn new(inner: Arc<dyn Drive>, blocks: u64) -> Self {
        let blocks = blocks.min(inner.blocks());
        let left = inner.left().unwrap_or_default();
        Self {
            inner,
            blocks,
            left,
        }
    }
}

impl Drive for FrontDrive {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn blocks(&self) -> u64 {
        self.blocks
    }

    fn read<'a>(
        &'a self,
        buffer: Buffer,
        extents: &'a [Extent],
    ) -> LocalBoxFuture<'a, Transferred> {
        match check_transfer(self, &buffer, extents) {
            Ok(()) => self.inner.read(buffer, extents),
            Err(error) => Box::pin(std::future::ready((Err(error), buffer))),
        }
    }

    fn write<'a>(
        &'a self,
        buffer: Buffer,
        extents: &'a [Extent],
    ) -> LocalBoxFuture<'a, Transferred> {
        match check_transfer(self, &buffer, extents) {
            Ok(()) => self.inner.write(buffer, extents),
            Err(error) => Box::pin(std::future::ready((Err(error), buffer))),
        }
    }

    fn write_many<'a>(
        &'a self,
        buffers: Rc<Vec<Buffer>>,
        extents: &'a [GatherExtent],
    ) -> LocalBoxFuture<'a, Result<(), DriveError>> {
        match check_gather(self, &buffers, extents) {
            Ok(()) => self.inner.write_many(buffers, extents),
            Err(error) => Box::pin(std::future::ready(Err(error))),
        }
    }

    fn write_flushing<'a>(
        &'a self,
        buffer: Buffer,
        extents: &'a [Extent],
    ) -> LocalBoxFuture<'a, Transferred> {
        match check_transfer(self, &buffer, extents) {
            Ok(()) => self.inner.write_flushing(buffer, extents),
            Err(error) => Box::pin(std::future::ready((Err(error), buffer))),
        }
    }

    fn flush<'a>(&'a self) -> LocalBoxFuture<'a, Result<(), DriveError>> {
        self.inner.flush()
    }

    fn discard<'a>(
        &'a self,
        block: u64,
        blocks: u64,
    ) -> LocalBoxFuture<'a, Result<(), DriveError>> {
        match check_range(self, block, blocks) {
            Ok(()) => self.inner.discard(block, blocks),
            Err(error) => Box::pin(std::future::ready(Err(error))),
        }
    }

    fn fence<'a>(&'a self) -> LocalBoxFuture<'a, Result<(), DriveError>> {
        self.inner.fence()
    }

    fn smart_log<'a>(&'a self) -> LocalBoxFuture<'a, Result<Option<SmartLog>, DriveError>> {
        self.inner.smart_log()
    }

    fn left(&self) -> Option<Arc<Left>> {
        Some(self.left.clone())
    }

    fn is_absent(&self) -> bool {
        self.inner.is_absent()
    }

    fn room_bytes(&self) -> Option<u64> {
        self.inner.room_bytes()
    }
}
