//! Volumes as hosts use them: byte ranges at LBA grain over sub-blocks of 4 KiB.

mod copy;
mod unreadable;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use drives::BLOCK_BYTES;
use futures_util::lock::Mutex as AsyncMutex;
use meta::{VerifyPolicy, VolumeInfo, VolumeState};
use reactor::Buffer;

use crate::compress::Algorithm;
use crate::domain::Domains;
use crate::engine::Shared;
use crate::fingerprint::Hasher;
use crate::lane::write_sub_blocks;
use crate::range_lock::RangeLock;
use crate::ranges;
use crate::read::{Piece, read_piece};
use crate::trim::{settle, unmap};
use crate::wait::lock;
use crate::{EngineError, Result};
pub use unreadable::Unreadable;

/// The largest read, write or compare in one call, in bytes: it fits one buffer
/// with two partial sub-blocks, and one journal record.
pub const MAX_COMMAND_BYTES: usize = 1 << 20;

/// What commands need of a volume before they look at its map. Handles and state share it.
pub(crate) struct VolumeCore {
    pub(crate) id: u32,
    /// Whether what is written is fingerprinted.
    pub(crate) dedup: bool,
    /// How what is new is compressed, if it is.
    pub(crate) compression: Option<Algorithm>,
    /// What writes do about duplicates.
    pub(crate) verify: VerifyPolicy,
    domain: String,
    hasher: OnceLock<Arc<Hasher>>,
    pub(crate) range_lock: Arc<RangeLock>,
    /// Who changes what is being trimmed of the volume, or unmaps it.
    pub(crate) trim_turn: AsyncMutex<()>,
    lba_bytes: u32,
    size_bytes: AtomicU64,
    is_active: AtomicBool,
    is_whole: Arc<AtomicBool>,
    /// Sub-blocks that are being trimmed, and how many there were at most since there were any.
    trimming: AtomicU64,
    trimming_total: AtomicU64,
    info: Mutex<Arc<VolumeInfo>>,
}

impl VolumeCore {
    /// `is_whole`: whether nothing of its map is in the store only.
    pub(crate) fn new(info: Arc<VolumeInfo>, is_whole: Arc<AtomicBool>) -> Self {
        Self {
            id: info.id,
            dedup: info.dedup,
            compression: Algorithm::of(info.compression),
            verify: info.verify,
            domain: info.domain.clone(),
            hasher: OnceLock::new(),
            range_lock: Arc::default(),
            trim_turn: AsyncMutex::default(),
            trimming: AtomicU64::new(ranges::total(&info.trimming)),
            trimming_total: AtomicU64::new(ranges::total(&info.trimming)),
            lba_bytes: info.lba_bytes,
            size_bytes: AtomicU64::new(info.size_bytes),
            is_active: AtomicBool::new(info.state == VolumeState::Active),
            is_whole,
            info: Mutex::new(info),
        }
    }

    /// The name of its domain.
    pub(crate) fn name(&self) -> String {
        lock(&self.info).name.clone()
    }

    pub(crate) fn domain(&self) -> &str {
        &self.domain
    }

    /// Fingerprints for its domain.
    pub(crate) fn hasher(&self, domains: &Domains) -> &Arc<Hasher> {
        self.hasher.get_or_init(|| domains.hasher(&self.domain))
    }

    /// Size or state changed. Called under the state's lock.
    pub(crate) fn set_info(&self, info: Arc<VolumeInfo>) {
        self.size_bytes.store(info.size_bytes, Ordering::Release);
        let is_active = info.state == VolumeState::Active;
        self.is_active.store(is_active, Ordering::Release);
        let trimming = ranges::total(&info.trimming);
        let total = match trimming {
            0 => 0,
            _ => trimming.max(self.trimming_total.load(Ordering::Relaxed)),
        };
        self.trimming_total.store(total, Ordering::Relaxed);
        self.trimming.store(trimming, Ordering::Release);
        *lock(&self.info) = info;
    }

    /// Whether anything of the volume is being trimmed. Who holds a range can rely on a no for it: what
    /// is added to the list is locked first.
    pub(crate) fn is_trimming(&self) -> bool {
        self.trimming.load(Ordering::Acquire) > 0
    }

    /// Whether nothing of its map is in the store only. Who holds a range can rely on a yes for it: what
    /// is in memory of the range stays.
    pub(crate) fn is_whole(&self) -> bool {
        self.is_whole.load(Ordering::Acquire)
    }

    /// Sub-blocks that are still to be trimmed, and that were to be at most since there were any.
    pub(crate) fn trim_progress(&self) -> (u64, u64) {
        let remaining = self.trimming.load(Ordering::Acquire);
        let total = self.trimming_total.load(Ordering::Relaxed);
        (remaining, total)
    }
}

/// An open volume: cheap to make, usable from every reactor.
pub struct Volume {
    shared: Arc<Shared>,
    core: Arc<VolumeCore>,
}

/// A byte range in whole sub-blocks, with what it covers of the first and last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    /// First sub-block that is touched.
    first: u64,
    /// One past the last sub-block that is touched.
    end: u64,
    /// Bytes of the first sub-block before the range.
    head: usize,
    /// Bytes of the last sub-block after the range.
    tail: usize,
}

impl Span {
    fn new(offset: u64, len: u64) -> Self {
        let grain = BLOCK_BYTES as u64;
        let end = offset + len;
        Self {
            first: offset / grain,
            end: end.div_ceil(grain),
            head: (offset % grain) as usize,
            tail: (end.next_multiple_of(grain) - end) as usize,
        }
    }

    fn count(&self) -> usize {
        (self.end - self.first) as usize
    }

    fn is_whole(&self) -> bool {
        self.head == 0 && self.tail == 0
    }

    /// The sub-blocks that are covered from end to end.
    fn whole(&self) -> (u64, u64) {
        let first = self.first + u64::from(self.head > 0);
        let end = self.end - u64::from(self.tail > 0);
        (first, end.max(first))
    }
}

impl Volume {
    pub(crate) fn new(shared: Arc<Shared>, core: Arc<VolumeCore>) -> Arc<Self> {
        Arc::new(Self { shared, core })
    }

    /// Whether both are handles of the same volume.
    pub(crate) fn is_of(&self, core: &Arc<VolumeCore>) -> bool {
        Arc::ptr_eq(&self.core, core)
    }

    /// The volume as it is now (its size and state can change).
    pub fn info(&self) -> Arc<VolumeInfo> {
        lock(&self.core.info).clone()
    }

    /// What is mapped of it, in bytes: zeros are not. What is being trimmed counts until it is freed.
    pub fn logical_bytes(&self) -> u64 {
        crate::status::logical_bytes(&self.shared, self.core.id)
    }

    /// Reads `buf.len()` bytes at `offset` (both multiples of the LBA size). On an error the buffer's
    /// content is zeros: damaged data is never returned.
    pub async fn read(&self, offset: u64, mut buf: Buffer) -> (Result<()>, Buffer) {
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
            let _guard = self.core.range_lock.shared(span.first, span.end).await;
            return self.read_span(span, buf).await;
        }
        let bounce = self.shared.bounce(span.count() * BLOCK_BYTES).await;
        let _guard = self.core.range_lock.shared(span.first, span.end).await;
        let (result, bounce) = self.read_span(span, bounce).await;
        let len = buf.len();
        match result {
            Ok(()) => buf.copy_from_slice(&bounce[span.head..span.head + len]),
            Err(_) => buf.fill(0),
        }
        (result, buf)
    }

    /// Writes the whole buffer at `offset` (both multiples of the LBA size). `Ok` means that it
    /// survives a crash of the process; with `fua`, or after the next flush, also a power loss. The
    /// buffer comes back unchanged.
    pub async fn write(&self, offset: u64, buf: Buffer, fua: bool) -> (Result<()>, Buffer) {
        let span = match self.check(offset, buf.len() as u64, MAX_COMMAND_BYTES as u64) {
            Ok(span) => span,
            Err(error) => return (Err(error), buf),
        };
        if buf.is_empty() {
            return (Ok(()), buf);
        }
        let (result, buf) = if span.is_whole() {
            let guard = self.core.range_lock.exclusive(span.first, span.end).await;
            match self.ready_to_map(span).await {
                Ok(()) => write_sub_blocks(&self.shared, &self.core, guard, span.first, buf).await,
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
        let span = self.check(offset, len, u64::MAX)?;
        if len == 0 {
            return Ok(());
        }
        let result = self.zero_span(offset, len, span).await;
        self.finish(result, fua).await
    }

    /// Gives the whole sub-blocks inside the range back: they read as zeros. Partial ones at its ends
    /// keep their content. Any length inside the volume is allowed; space of a long one becomes free in
    /// the background.
    pub async fn trim(&self, offset: u64, len: u64) -> Result<()> {
        let (first, end) = self.check(offset, len, u64::MAX)?.whole();
        unmap(&self.shared, &self.core, first, end).await.map(drop)
    }

    /// Every write that was acknowledged before this call survives a power loss when it returns `Ok`.
    pub async fn flush(&self) -> Result<()> {
        if self.core.verify == VerifyPolicy::Background {
            self.shared.verify.caught_up().await?;
        }
        self.shared.flush().await
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
        let _guard = self.core.range_lock.shared(span.first, span.end).await;
        let (result, bounce) = self.read_span(span, bounce).await;
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
        let span = self.check(offset, expected.len() as u64, MAX_COMMAND_BYTES as u64)?;
        if expected.len() != new.len() {
            return Err(EngineError::invalid(
                "what is compared is as long as what is written",
            ));
        }
        if new.is_empty() {
            return Ok(true);
        }
        let bounce = self.shared.bounce(span.count() * BLOCK_BYTES).await;
        let guard = self.core.range_lock.exclusive(span.first, span.end).await;
        self.ready_to_map(span).await?;
        let (result, mut bounce) = self.read_span(span, bounce).await;
        result?;
        let range = span.head..span.head + new.len();
        if bounce[range.clone()] != *expected {
            return Ok(false);
        }
        bounce[range].copy_from_slice(new);
        let written = write_sub_blocks(&self.shared, &self.core, guard, span.first, bounce);
        let result = written.await.0;
        self.finish(result, fua).await.map(|()| true)
    }

    /// The range, if it is one of this volume's.
    fn check(&self, offset: u64, len: u64, len_max: u64) -> Result<Span> {
        let lba = u64::from(self.core.lba_bytes);
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
        let size = self.active_size()?;
        if offset.checked_add(len).is_none_or(|end| end > size) {
            return Err(self.beyond_end(size));
        }
        Ok(Span::new(offset, len))
    }

    /// The volume's size, if it can be used.
    fn active_size(&self) -> Result<u64> {
        if self.shared.is_closed() {
            return Err(EngineError::closed());
        }
        if !self.core.is_active.load(Ordering::Acquire) {
            let id = self.core.id;
            return Err(EngineError::not_found(format!("volume {id} was deleted")));
        }
        Ok(self.core.size_bytes.load(Ordering::Acquire))
    }

    /// Whether the range is still inside: the volume can shrink, or go, while a command waits for its
    /// range. Shrinking takes the range lock of what it cuts off.
    fn check_end(&self, span: Span) -> Result<()> {
        let size = self.active_size()?;
        if span.end > size / BLOCK_BYTES as u64 {
            return Err(self.beyond_end(size));
        }
        Ok(())
    }

    /// Whether the range, which is locked, can be mapped to something new.
    async fn ready_to_map(&self, span: Span) -> Result<()> {
        self.check_end(span)?;
        self.shared
            .bring_in_to_write(&self.core, span.first, span.end)
            .await?;
        settle(&self.shared, &self.core, span.first, span.end).await
    }

    fn beyond_end(&self, size: u64) -> EngineError {
        EngineError::invalid(format!(
            "volume `{}`: the range goes beyond its size of {size} bytes",
            self.info().name
        ))
    }

    async fn read_span(&self, span: Span, buf: Buffer) -> (Result<()>, Buffer) {
        let piece = Piece {
            start: span.first,
            count: span.count(),
            buffer_offset: 0,
        };
        read_piece(&self.shared, &self.core, piece, buf).await
    }

    /// Reads the sub-blocks at the ends, changes their part, and writes all: for LBAs of 512 bytes.
    async fn write_partial(&self, span: Span, data: &[u8]) -> Result<u64> {
        // The bounce buffer comes before the range lock: who holds a range never waits for memory.
        let mut bounce = self.shared.bounce(span.count() * BLOCK_BYTES).await;
        let guard = self.core.range_lock.exclusive(span.first, span.end).await;
        self.ready_to_map(span).await?;
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
        write_sub_blocks(&self.shared, &self.core, guard, span.first, bounce)
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
        if fua {
            if self.core.verify == VerifyPolicy::Background {
                self.shared.verify.caught_up().await?;
            }
            self.shared.flush_upto(sequence).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_range_knows_its_whole_and_partial_sub_blocks() {
        let span = |first, end, head, tail| Span {
            first,
            end,
            head,
            tail,
        };
        assert_eq!(Span::new(0, 4096), span(0, 1, 0, 0));
        assert_eq!(Span::new(512, 512), span(0, 1, 512, 3072));
        assert_eq!(Span::new(4096, 4608), span(1, 3, 0, 3584));
        assert_eq!(Span::new(3584, 1024), span(0, 2, 3584, 3584));
        assert_eq!(Span::new(512, 512).whole(), (1, 1));
        assert_eq!(Span::new(3584, 1024).whole(), (1, 1));
        assert_eq!(Span::new(512, 3 * 4096).whole(), (1, 3));
        assert_eq!(Span::new(8192, 4096).whole(), (2, 3));
    }
}
