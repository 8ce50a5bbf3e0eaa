//! What a guest asks for, and how it is done (virtio 1.2, section 5.2.6).
//!
//! Guarantees:
//! - Lengths and ranges are checked before anything is done; all ranges of a Discard are checked before the first.
//! - A request waits for the volume's limits before it has a buffer, and no longer than the front-end lets the queue run.
//! - Data are copied once, piece by piece, so that a request of any length takes a bounded amount of memory.
//! - A write is acknowledged when it survives a crash of this program; if the guest has no write-back cache, when it
//!   survives a loss of power.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use futures_util::future::{Either, select};
use futures_util::poll;
use reactor::Buffer;
use subsystem::export::{ExportError, ExportedVolume, Pass, SECTOR};
use tokio::sync::watch;

use crate::chain::{Chain, Span};
use crate::config::RANGES_MAX;
use crate::memory::{Guest, Outside};

/// Bytes of a request's header: type, a reserved word, sector.
const HEADER_BYTES: usize = 16;

/// Data that are copied at once. Whole blocks of 4 KiB stay whole.
const PIECE_BYTES: usize = 256 << 10;

/// Data of one request, at most. Linux asks for 1.25 MiB, and for less than 8 MiB whatever it is told.
const DATA_BYTES_MAX: u64 = 64 << 20;

/// Bytes of a range of Discard and Write Zeroes: sector, sectors, flags.
const RANGE_BYTES: usize = 16;

/// Bytes of the name that Get ID gives.
pub(crate) const ID_BYTES: usize = 20;

const IN: u32 = 0;
const OUT: u32 = 1;
const FLUSH: u32 = 4;
const GET_ID: u32 = 8;
const DISCARD: u32 = 11;
const WRITE_ZEROES: u32 = 13;

/// Of a range of Write Zeroes: it may be unmapped. The other bits are reserved.
const MAY_UNMAP: u32 = 1;

/// The last byte of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    Ok = 0,
    Failed = 1,
    Unsupported = 2,
}

impl From<Outside> for Status {
    fn from(_: Outside) -> Self {
        Self::Failed
    }
}

impl From<ExportError> for Status {
    fn from(error: ExportError) -> Self {
        tracing::debug!(%error, "a request of a virtual machine failed");
        Self::Failed
    }
}

/// A volume as the queues of a device use it.
pub(crate) struct Disk {
    pub(crate) volume: ExportedVolume,
    /// What Get ID gives.
    pub(crate) id: [u8; ID_BYTES],
    /// The guest knows that it has to flush.
    pub(crate) flushes: bool,
    /// The guest has the write-back cache switched on.
    pub(crate) writeback: Arc<AtomicBool>,
    /// The queue is to stop: requests are not held back any more.
    pub(crate) stop: watch::Receiver<bool>,
}

impl Disk {
    /// Waits until the volume's limits allow a request that moves so many bytes. A front-end that stops a queue waits for
    /// all of its requests, and the guest stands still meanwhile: so they go on then. What it gives is kept until the request
    /// is done.
    async fn hold_back(&self, bytes: u64) -> Option<Pass> {
        let mut held = pin!(self.volume.hold_back(bytes));
        // Most volumes have no limit.
        if let Poll::Ready(pass) = poll!(held.as_mut()) {
            return pass;
        }
        let mut stop = self.stop.clone();
        let stopped = pin!(stop.wait_for(|stop| *stop));
        match select(held, stopped).await {
            Either::Left((pass, _)) => pass,
            Either::Right(_) => None,
        }
    }

    /// Whether a write has to survive a loss of power at once.
    fn is_write_through(&self) -> bool {
        !self.flushes || !self.writeback.load(Ordering::Relaxed)
    }

    /// Does what a chain with that header asks for, and writes its status. Gives the bytes that were written to the guest's
    /// memory.
    pub(crate) async fn serve(&self, guest: &Guest, chain: &Chain, header: Header) -> u32 {
        let mut writable = chain.writable();
        let Some(room) = writable.len().checked_sub(1) else {
            // There is no place for a status.
            return 0;
        };
        let data = writable.take_front(room);
        let outcome = match header {
            Header::Of { kind, sector } => {
                let mut readable = chain.readable();
                readable.take_front(HEADER_BYTES as u64);
                self.run(guest, kind, sector, readable, data).await
            }
            Header::None => Err(Status::Failed),
        };
        let status = outcome.err().unwrap_or(Status::Ok);
        let written = writable.copy_out(guest, &[status as u8]);
        match (written, u32::try_from(room + 1)) {
            (Ok(()), Ok(written)) => written,
            _ => 0,
        }
    }

    async fn run(
        &self,
        guest: &Guest,
        kind: u32,
        sector: u64,
        from_guest: Span<'_>,
        mut to_guest: Span<'_>,
    ) -> Result<(), Status> {
        match kind {
            IN => self.read(guest, sector, to_guest).await,
            OUT => self.write(guest, sector, from_guest).await,
            FLUSH => Ok(self.volume.flush().await?),
            GET_ID => {
                let len = to_guest.len().min(ID_BYTES as u64) as usize;
                Ok(to_guest
                    .take_front(len as u64)
                    .copy_out(guest, &self.id[..len])?)
            }
            DISCARD => {
                let ranges = self.ranges(guest, from_guest, 0)?;
                let _pass = self.hold_back(0).await;
                for (at, len) in ranges {
                    self.volume.trim(at, len).await?;
                }
                Ok(())
            }
            WRITE_ZEROES => {
                let ranges = self.ranges(guest, from_guest, MAY_UNMAP)?;
                let _pass = self.hold_back(0).await;
                for (at, len) in ranges {
                    let durable = self.is_write_through();
                    self.volume.write_zeroes(at, len, durable).await?;
                }
                Ok(())
            }
            _ => Err(Status::Unsupported),
        }
    }

    /// Where the data of a request go, in bytes.
    fn place(&self, is_write: bool, sector: u64, len: u64) -> Result<u64, Status> {
        let at = sector.checked_mul(SECTOR).ok_or(Status::Failed)?;
        if len > DATA_BYTES_MAX {
            return Err(Status::Failed);
        }
        self.volume.check(is_write, at, len)?;
        Ok(at)
    }

    async fn buffer(&self, len: usize) -> Buffer {
        match self.volume.buffers().try_alloc(len) {
            Some(buffer) => buffer,
            None => self.volume.buffers().alloc(len).await,
        }
    }

    async fn read(&self, guest: &Guest, sector: u64, mut to: Span<'_>) -> Result<(), Status> {
        let mut left = to.len();
        let mut at = self.place(false, sector, left)?;
        let _pass = self.hold_back(left).await;
        while left > 0 {
            let len = piece(at, left);
            let buffer = self.buffer(len).await;
            let (result, buffer) = self.volume.read(at, buffer).await;
            result?;
            to.take_front(len as u64).copy_out(guest, &buffer)?;
            (at, left) = (at + len as u64, left - len as u64);
        }
        Ok(())
    }

    async fn write(&self, guest: &Guest, sector: u64, mut from: Span<'_>) -> Result<(), Status> {
        let mut left = from.len();
        let mut at = self.place(true, sector, left)?;
        let _pass = self.hold_back(left).await;
        while left > 0 {
            let len = piece(at, left);
            let mut buffer = self.buffer(len).await;
            from.take_front(len as u64).copy_in(guest, &mut buffer)?;
            let durable = self.is_write_through();
            self.volume.write(at, buffer, durable).await.0?;
            (at, left) = (at + len as u64, left - len as u64);
        }
        Ok(())
    }

    /// The ranges of a request, in bytes, all of them within the volume.
    fn ranges(
        &self,
        guest: &Guest,
        from: Span<'_>,
        flags_max: u32,
    ) -> Result<Vec<(u64, u64)>, Status> {
        let len = from.len();
        let is_list = len > 0 && len.is_multiple_of(RANGE_BYTES as u64);
        if !is_list || len > u64::from(RANGES_MAX) * RANGE_BYTES as u64 {
            return Err(Status::Failed);
        }
        let mut list = vec![0; len as usize];
        from.copy_in(guest, &mut list)?;
        let (ranges, _) = list.as_chunks::<RANGE_BYTES>();
        let parse = |range: &[u8; RANGE_BYTES]| {
            let [sector @ .., a0, a1, a2, a3, b0, b1, b2, b3] = *range;
            let sectors = u32::from_le_bytes([a0, a1, a2, a3]);
            if u32::from_le_bytes([b0, b1, b2, b3]) & !flags_max != 0 {
                return Err(Status::Unsupported);
            }
            let at = u64::from_le_bytes(sector).checked_mul(SECTOR);
            let at = at.ok_or(Status::Failed)?;
            let len = u64::from(sectors) * SECTOR;
            self.volume.check(true, at, len)?;
            Ok((at, len))
        };
        ranges.iter().map(parse).collect()
    }
}

/// Type and sector of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Header {
    Of {
        kind: u32,
        sector: u64,
    },
    /// There is none.
    None,
}

impl Header {
    pub(crate) fn read(guest: &Guest, chain: &Chain) -> Self {
        let head = chain.readable().take_front(HEADER_BYTES as u64);
        let mut bytes = [0; HEADER_BYTES];
        if head.copy_in(guest, &mut bytes).is_err() {
            return Self::None;
        }
        let [k0, k1, k2, k3, _, _, _, _, sector @ ..] = bytes;
        Self::Of {
            kind: u32::from_le_bytes([k0, k1, k2, k3]),
            sector: u64::from_le_bytes(sector),
        }
    }

    /// Whether it may be done at once, where nothing has to be waited for. Writes are gathered: they wait for those behind
    /// them.
    pub(crate) fn is_read(self) -> bool {
        matches!(self, Self::Of { kind: IN, .. })
    }
}

/// Bytes of the next piece: up to the end of a block, if there are more.
fn piece(at: u64, left: u64) -> usize {
    let whole = PIECE_BYTES as u64 - at % 4096;
    left.min(whole) as usize
}
