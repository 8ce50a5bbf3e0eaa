//! A drive that is not there, in the place of one that a pool goes on without.

use std::future::ready;
use std::path::Path;
use std::rc::Rc;

use reactor::Buffer;

use crate::{Drive, DriveError, ErrorKind, Extent, GatherExtent, LocalBoxFuture, Transferred};

/// A drive that cannot be used. All that is asked of it fails with the reason.
pub struct AbsentDrive {
    name: String,
    blocks: u64,
    reason: String,
}

impl AbsentDrive {
    /// The drive of that name and with so many blocks, as the pool remembers it, and why it cannot be used.
    #[must_use]
    pub fn new(name: String, blocks: u64, reason: String) -> Self {
        Self {
            name,
            blocks,
            reason,
        }
    }

    /// In the place of one that was removed from its pool.
    #[must_use]
    pub fn removed(path: &Path, blocks: u64) -> Self {
        let reason = "it was removed from the pool".to_owned();
        Self::new(path.display().to_string(), blocks, reason)
    }

    fn error(&self) -> DriveError {
        DriveError::new(ErrorKind::Io, &self.name, &self.reason)
    }
}

impl Drive for AbsentDrive {
    fn name(&self) -> &str {
        &self.name
    }

    fn blocks(&self) -> u64 {
        self.blocks
    }

    fn is_absent(&self) -> bool {
        true
    }

    fn read<'a>(&'a self, buffer: Buffer, _: &'a [Extent]) -> LocalBoxFuture<'a, Transferred> {
        Box::pin(ready((Err(self.error()), buffer)))
    }

    fn write<'a>(&'a self, buffer: Buffer, _: &'a [Extent]) -> LocalBoxFuture<'a, Transferred> {
        Box::pin(ready((Err(self.error()), buffer)))
    }

    fn write_many<'a>(
        &'a self,
        _: Rc<Vec<Buffer>>,
        _: &'a [GatherExtent],
    ) -> LocalBoxFuture<'a, Result<(), DriveError>> {
        Box::pin(ready(Err(self.error())))
    }

    fn flush<'a>(&'a self) -> LocalBoxFuture<'a, Result<(), DriveError>> {
        Box::pin(ready(Err(self.error())))
    }

    fn discard<'a>(&'a self, _: u64, _: u64) -> LocalBoxFuture<'a, Result<(), DriveError>> {
        Box::pin(ready(Err(self.error())))
    }
}
