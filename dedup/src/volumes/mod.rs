//! Volumes as hosts use them: byte ranges at LBA grain over sub-blocks of 4 KiB.

pub(crate) mod admin;
mod copy;
mod extents;
mod fingerprints;
pub(crate) mod fork;
mod unreadable;

use std::sync::Arc;

use drives::BLOCK_BYTES;
use meta::VolumeInfo;
use reactor::Buffer;

use crate::io::MAX_COMMAND_BYTES;
use crate::io::batcher::write_sub_blocks;
use crate::io::prepare::{active_size, beyond_end, ready_to_map};
use crate::io::read::{Piece, read_piece};
use crate::io::span::Span;
use crate::io::trim::unmap;
use crate::log::append::admit;
use crate::log::flush::{flush, flush_upto};
use crate::metadata::volume::VolumeCore;
use crate::pool::Shared;
use crate::stages::{self, Stage};
use crate::{EngineError, Result};
pub use extents::Extents;
pub use unreadable::Unreadable;

/// An open volume: cheap to make, usable from every reactor.
pub struct Volume {
    shared: Arc<Shared>,
    core: Arc<VolumeCore>,
    /// What ranges are multiples of.
    grain: u32,
}

/// The grain of a handle that [`Volume::at_sectors`] gives, in bytes.
pub const SECTOR_BYTES: u32 = 512;

impl Volume {
    pub(crate) fn new(shared: Arc<Shared>, core: Arc<VolumeCore>) -> Arc<Self> {
        let grain = core.lba_bytes();
        Arc::new(Self {
            shared,
            core,
            grain,
        })
    }

    /// The same volume, for users that address it in sectors of 512 bytes whatever its LBA size is. Writes of parts of a
    /// sub-block take turns with all others on it, by every handle.
    pub fn at_sectors(&self) -> Self {
        Self {
            shared: self.shared.clone(),
            core: self.core.clone(),
            grain: SECTOR_BYTES,
        }
    }

    /// Whether both are handles of the same volume.
    pub(crate) fn is_of(&self, core: &Arc<VolumeCore>) -> bool {
        Arc::ptr_eq(&self.core, core)
    }

    /// The volume as it is now (its size and state can change).
    pub fn info(&self) -> Arc<VolumeInfo> {
        self.core.info()
    }

    /// What is mapped of it, in bytes: zeros are not. What is being trimmed counts until it is freed.
    pub fn logical_bytes(&self) -> u64 {
        self.core.pages().mapped() * BLOCK_BYTES as u64
    }

    /// Reads `buf.len()` bytes at `offset` (both multiples of the LBA size). On an error the buffer's
    /// content is zeros: damaged data is never returned. In a pool that writes through, what is returned is durable.
    pub async fn read(&self, offset: u64, mut buf: Buffer) -> (Result<()>, Buffer) {
        self.shared.hosts.work();
        let span = match self.check(offset, buf.len() as u64, MAX_COMMAND_BYTES as u64) {
            Ok(span) => span,
            Err(error) => {
                buf.fill(0);
                return (Err(error), buf);
            }
        };
        if buf.is_empty() {
            return (Ok(()), buf);
        }
        if span.is_whole() {
            return self.read_durable(span, buf).await;
        }
        let bounce = self.shared.bounce(span.count() * BLOCK_BYTES).await;
        let (result, bounce) = self.read_durable(span, bounce).await;
        let len = buf.len();
        match result {
            Ok(()) => buf.copy_from_slice(&bounce[span.head..span.head + len]),
            Err(_) => buf.fill(0),
        }
        (result, buf)
    }

    /// Writes the whole buffer at `offset` (both multiples of the LBA size). `Ok` means that it
    /// survives a crash of the process; with `fua`, in a pool that writes through, or after the next flush, also a power
    /// loss. The buffer comes back unchanged.
    pub async fn write(&self, offset: u64, buf: Buffer, fua: bool) -> (Result<()>, Buffer) {
        self.write_checked(offset, buf, None, fua).await
    }

    /// As [`Self::write`], of data of which somebody knows the CRC-32C of each sub-block of the buffer: these are stored, and
    /// not computed again. So a change of the data in memory since then is found by the first read. They are of no use
    /// where the range is not of whole sub-blocks.
    pub async fn write_checked(
        &self,
        offset: u64,
        buf: Buffer,
        checksums: Option<Box<[u32]>>,
        fua: bool,
    ) -> (Result<()>, Buffer) {
        self.shared.hosts.work();
        let checked = self.check_writable();
        let checked =
            checked.and_then(|()| self.check(offset, buf.len() as u64, MAX_COMMAND_BYTES as u64));
        let span = match checked {
            Ok(span) => span,
            Err(error) => return (Err(error), buf),
        };
        if buf.is_empty() {
            return (Ok(()), buf);
        }
        if let Err(error) = admit(&self.shared).await {
            return (self.finish(Err(error), fua).await, buf);
        }
        let (result, buf) = if span.is_whole() {
            let guard = self.core.range_lock.exclusive(span.first, span.end).await;
            match ready_to_map(&self.shared, &self.core, span).await {
                Ok(()) => {
                    let data = (buf, checksums);
                    write_sub_blocks(&self.shared, &self.core, guard, span.first, data).await
                }
                Err(error) => (Err(error), buf),
            }
        } else {
            let result = self.write_partial(span, &buf).await;
            (result, buf)
        };
        (self.finish(result, fua).await, buf)
    }

    /// Makes `len` bytes at `offset` (multiples of the LBA size) read as zeros, to the byte. Any length
    /// inside the volume is allowed.
    pub async fn write_zeroes(&self, offset: u64, len: u64, fua: bool) -> Result<()> {
        self.check_writable()?;
        let span = self.check(offset, len, u64::MAX)?;
        if len == 0 {
            return Ok(());
        }
        let result = match admit(&self.shared).await {
            Ok(()) => self.zero_span(offset, len, span).await,
            Err(error) => Err(error),
        };
        self.finish(result, fua).await
    }

    /// Gives the whole sub-blocks inside the range back: they read as zeros. Partial ones at its ends
    /// keep their content. Any length inside the volume is allowed; space of a long one becomes free in
    /// the background.
    pub async fn trim(&self, offset: u64, len: u64) -> Result<()> {
        self.check_writable()?;
        let (first, end) = self.check(offset, len, u64::MAX)?.whole();
        admit(&self.shared).await?;
        let result = unmap(&self.shared, &self.core, first, end).await;
        self.make_durable(result, false).await
    }

    /// Every write that was acknowledged before this call survives a power loss when it returns `Ok`.
    pub async fn flush(&self) -> Result<()> {
        if self.core.compares_later() {
            self.shared.verify.caught_up().await?;
        }
        let flushed = flush(&self.shared).await;
        stages::ended(Stage::Journal);
        flushed
    }

    /// Whether hosts may change it: a snapshot stays as it is.
    pub fn is_writable(&self) -> bool {
        !self.core.is_snapshot
    }

    fn check_writable(&self) -> Result<()> {
        match self.is_writable() {
            true => Ok(()),
            false => Err(EngineError::invalid(format!(
                "snapshot `{name}` cannot be written; write to a clone of it (`onefold volume clone {name} NEW`)",
                name = self.core.name()
            ))),
        }
    }

    /// Whether the stored bytes at `offset` equal the buffer's (both multiples of the LBA size).
    pub async fn compare(&self, offset: u64, buf: Buffer) -> (Result<bool>, Buffer) {
        let span = match self.check(offset, buf.len() as u64, MAX_COMMAND_BYTES as u64) {
            Ok(span) => span,
            Err(error) => return (Err(error), buf),
        };
        if buf.is_empty() {
            return (Ok(true), buf);
        }
        let bounce = self.shared.bounce(span.count() * BLOCK_BYTES).await;
        let (result, bounce) = self.read_durable(span, bounce).await;
        (
            result.map(|()| bounce[span.head..span.head + buf.len()] == buf[..]),
            buf,
        )
    }

    /// Writes `new` at `offset` if what is stored there equals `expected`, as one: nothing changes the
    /// range in between, and nobody reads a part of it. Both are as long, multiples of the LBA size, at
    /// most [`MAX_COMMAND_BYTES`]. `Ok(false)`: it does not equal it, and nothing was written.
    pub async fn compare_and_write(
        &self,
        offset: u64,
        expected: &[u8],
        new: &[u8],
        fua: bool,
    ) -> Result<bool> {
        self.check_writable()?;
        let span = self.check(offset, expected.len() as u64, MAX_COMMAND_BYTES as u64)?;
        if expected.len() != new.len() {
            return Err(EngineError::invalid(
                "what is compared is as long as what is written",
            ));
        }
        if new.is_empty() {
            return Ok(true);
        }
        admit(&self.shared).await?;
        let bounce = self.shared.bounce(span.count() * BLOCK_BYTES).await;
        let guard = self.core.range_lock.exclusive(span.first, span.end).await;
        ready_to_map(&self.shared, &self.core, span).await?;
        let (result, mut bounce) = self.read_span(span, bounce).await;
        result?;
        let range = span.head..span.head + new.len();
        if bounce[range.clone()] != *expected {
            let seen = self.core.last_changes.of(span.first, span.end);
            drop(guard);
            return self.is_durable(seen).await.map(|()| false);
        }
        bounce[range].copy_from_slice(new);
        let data = (bounce, None);
        let written = write_sub_blocks(&self.shared, &self.core, guard, span.first, data);
        let result = written.await.0;
        self.finish(result, fua).await.map(|()| true)
    }

    /// The range, if it is one of this volume's.
    fn check(&self, offset: u64, len: u64, len_max: u64) -> Result<Span> {
        let lba = u64::from(self.grain);
        if !offset.is_multiple_of(lba) || !len.is_multiple_of(lba) {
            return Err(EngineError::invalid(format!(
                "volume `{}`: {len} bytes at {offset} are not whole blocks of {lba} bytes",
                self.info().name
            )));
        }
        if len > len_max {
            return Err(EngineError::invalid(format!(
                "volume `{}`: {len} bytes are more than the {len_max} bytes of one command; split it",
                self.info().name
            )));
        }
        let size = active_size(&self.shared, &self.core)?;
        if offset.checked_add(len).is_none_or(|end| end > size) {
            return Err(beyond_end(&self.core, size));
        }
        Ok(Span::new(offset, len))
    }

    /// Reads for a host. In a pool that writes through, what a host has seen is never undone, by a loss of power or by a node that
    /// takes the pool over: a write that is not durable yet is waited out here.
    async fn read_durable(&self, span: Span, buf: Buffer) -> (Result<()>, Buffer) {
        let guard = self.core.range_lock.shared(span.first, span.end).await;
        let (result, mut buf) = self.read_span(span, buf).await;
        if !self.shared.config.write_through || result.is_err() {
            return (result, buf);
        }
        let seen = self.core.last_changes.of(span.first, span.end);
        drop(guard);
        // In memory of its own: the commands of other pools do not carry the room for a flush.
        let result = Box::pin(self.is_durable(seen)).await;
        if result.is_err() {
            buf.fill(0);
        }
        (result, buf)
    }

    /// Waits until changes up to this record are durable, in a pool that writes through.
    async fn is_durable(&self, record: u64) -> Result<()> {
        match self.shared.config.write_through {
            true => flush_upto(&self.shared, record).await,
            false => Ok(()),
        }
    }

    fn read_span(
        &self,
        span: Span,
        buf: Buffer,
    ) -> impl Future<Output = (Result<()>, Buffer)> + '_ {
        let piece = Piece {
            start: span.first,
            count: span.count(),
            buffer_offset: 0,
        };
        read_piece(&self.shared, &self.core, piece, buf)
    }

    /// Reads the sub-blocks at the ends, changes their part, and writes all: for LBAs of 512 bytes.
    async fn write_partial(&self, span: Span, data: &[u8]) -> Result<u64> {
        // The bounce buffer comes before the range lock: a command that holds a range never waits for memory.
        let mut bounce = self.shared.bounce(span.count() * BLOCK_BYTES).await;
        let guard = self.core.range_lock.exclusive(span.first, span.end).await;
        ready_to_map(&self.shared, &self.core, span).await?;
        let last = span.count() - 1;
        let ends = [
            (span.head > 0, 0),
            (span.tail > 0 && (last > 0 || span.head == 0), last),
        ];
        for (_, at) in ends.into_iter().filter(|(is_partial, _)| *is_partial) {
            let piece = Piece {
                start: span.first + at as u64,
                count: 1,
                buffer_offset: at * BLOCK_BYTES,
            };
            let (result, back) = read_piece(&self.shared, &self.core, piece, bounce).await;
            bounce = back;
            result?;
        }
        bounce[span.head..span.head + data.len()].copy_from_slice(data);
        let data = (bounce, None);
        write_sub_blocks(&self.shared, &self.core, guard, span.first, data)
            .await
            .0
    }

    async fn zero_span(&self, offset: u64, len: u64, span: Span) -> Result<u64> {
        const ZEROS: [u8; BLOCK_BYTES] = [0; BLOCK_BYTES];
        let end = offset + len;
        let grain = BLOCK_BYTES as u64;
        let (first, last) = span.whole();
        if first == last && !span.is_whole() && span.count() == 1 {
            return self.write_partial(span, &ZEROS[..len as usize]).await;
        }
        let mut sequence = unmap(&self.shared, &self.core, first, last).await?;
        if span.head > 0 {
            let head = first * grain - offset;
            let part = Span::new(offset, head);
            sequence = self.write_partial(part, &ZEROS[..head as usize]).await?;
        }
        if span.tail > 0 {
            let tail = end - last * grain;
            let part = Span::new(end - tail, tail);
            sequence = self.write_partial(part, &ZEROS[..tail as usize]).await?;
        }
        Ok(sequence)
    }

    async fn finish(&self, result: Result<u64>, fua: bool) -> Result<()> {
        let result = self.make_durable(result, fua).await;
        self.shared.written(&result);
        result
    }

    async fn make_durable(&self, result: Result<u64>, fua: bool) -> Result<()> {
        let sequence = result?;
        if fua || self.shared.config.write_through {
            if self.core.compares_later() {
                self.shared.verify.caught_up().await?;
            }
            flush_upto(&self.shared, sequence).await?;
            stages::ended(Stage::Journal);
        }
        Ok(())
    }
}
