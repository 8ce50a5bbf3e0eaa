//! Copies between volumes of a pool: by reference where blocks may be shared, else their data are read and written.

use std::sync::Arc;

use drives::BLOCK_BYTES;
use reactor::BufferPool;

use super::Volume;
use crate::io::MAX_COMMAND_BYTES;
use crate::io::copy::copy_piece;
use crate::log::append::admit;
use crate::log::flush::flush;
use crate::sync::wait::yield_once;
use crate::{EngineError, Result};

const GRAIN: u64 = BLOCK_BYTES as u64;

impl Volume {
    /// Makes `len` bytes at `offset` what `source` has at `source_offset` (all multiples of both LBA
    /// sizes). The ranges do not overlap. `Ok` means that it survives a crash of the process, and in a pool that writes through, or
    /// after the next flush, a power loss; after an error some of it may be done. `buffers` are for data that
    /// have to be moved, at most [`MAX_COMMAND_BYTES`] at a time.
    pub async fn copy(
        &self,
        offset: u64,
        source: &Volume,
        source_offset: u64,
        len: u64,
        buffers: &BufferPool,
    ) -> Result<()> {
        self.check_writable()?;
        self.check(offset, len, u64::MAX)?;
        source.check(source_offset, len, u64::MAX)?;
        if !Arc::ptr_eq(&self.shared, &source.shared) {
            return Err(EngineError::invalid("a copy cannot leave its pool"));
        }
        if self.is_of(&source.core) && offset.abs_diff(source_offset) < len {
            return Err(EngineError::invalid(format!(
                "volume `{}`: {len} bytes at {source_offset} cannot be copied to {offset}, which overlaps them",
                self.info().name
            )));
        }
        let is_aligned = offset % GRAIN == source_offset % GRAIN;
        let shares = is_aligned && source.shares_with(self);
        let head = (offset.next_multiple_of(GRAIN) - offset).min(len);
        let mut done = 0;
        while done < len {
            let whole = (len - done) / GRAIN;
            let bytes = if !shares {
                (len - done).min(MAX_COMMAND_BYTES as u64)
            } else if done < head {
                head - done
            } else if whole == 0 {
                len - done
            } else {
                let first = ((offset + done) / GRAIN, (source_offset + done) / GRAIN);
                admit(&self.shared).await?;
                let piece =
                    copy_piece(&self.shared, &self.core, &source.core, first, whole).await?;
                done += piece.mapped * GRAIN;
                piece.to_move * GRAIN
            };
            if bytes > 0 {
                let buf = buffers.alloc(bytes as usize).await;
                let (read, buf) = source.read(source_offset + done, buf).await;
                read?;
                self.write(offset + done, buf, false).await.0?;
                done += bytes;
            }
            yield_once().await;
        }
        if self.shared.config.write_through {
            flush(&self.shared).await?;
        }
        Ok(())
    }

    /// Whether blocks of this volume can be mapped in that one, and the other way round: both are
    /// deduplicated, in the same domain.
    pub fn shares_with(&self, other: &Volume) -> bool {
        let (one, other) = (&self.core, &other.core);
        one.dedup() && other.dedup() && one.domain() == other.domain()
    }
}
