//! A drive whose answers have a bound: who does not answer is left, if others have its data.
//!
//! Guarantees: a transfer ends within its bound, unless nobody else has the data; then it takes as long as the drive takes.
//! Who has one part of a device does not wait for it when who has another part was let down by it ([`Left`]).
//! What was left goes on by itself, and the drive is not fenced before that has ended: until then nobody knows what it does.
//! The bound is of time in which this program ran: one that was stopped for a while leaves no drive.
//! A drive has so many bytes of buffers at the same time at most, and what waits in line for that ends when the drive is left.
//! So a drive that hangs keeps little memory, and commands go on with the rest.

use std::cmp::Reverse;
use std::convert::Infallible;
use std::future::pending;
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::future::{Either, select};
use reactor::sync::{Permit, Semaphore};
use reactor::{Buffer, BufferPool};

use crate::{
    BLOCK_BYTES, Drive, DriveError, ErrorKind, Extent, GatherExtent, LocalBoxFuture, SmartLog,
    Transferred,
};

/// Looks at a transfer that takes long, before its bound is over. A drive that takes longer than one look for a flush is asked
/// for a read.
const LOOKS: u32 = 20;

/// A flush or discard may take so many times as long as a transfer: it waits for all that was written before. A flush may only
/// as long as the drive answers reads meanwhile.
pub const FLUSH_FACTOR: u32 = 10;

/// Says whether the pool can go on without the drive with an index.
type MayLeave = Box<dyn Fn(u16) -> bool + Send + Sync>;

/// Who decides whether drives are left: nobody at first, and then none is.
#[derive(Default)]
pub struct Permission(OnceLock<MayLeave>);

impl Permission {
    /// From now on this says whether the pool can go on without a drive. Once.
    pub fn ask(&self, may_leave: impl Fn(u16) -> bool + Send + Sync + 'static) {
        // The first one stays.
        let _ = self.0.set(Box::new(may_leave));
    }

    fn may_leave(&self, drive: u16) -> bool {
        self.0.get().is_some_and(|may_leave| may_leave(drive))
    }
}

/// What a device was left with, by all who have a part of it: transfers that have not ended.
#[derive(Debug, Default)]
pub struct Left(AtomicU64);

impl Left {
    /// How many there are.
    fn transfers(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    fn is_any(&self) -> bool {
        self.transfers() > 0
    }
}

/// Whether something that ended may still happen.
#[derive(Debug, Default)]
struct Doubt(AtomicBool);

impl Doubt {
    fn note(&self, is_in_doubt: bool) {
        if is_in_doubt {
            self.0.store(true, Ordering::Release);
        }
    }
}

/// What is bounded of a drive.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// How long a transfer may take.
    pub answer_max: Duration,
    /// Bytes of buffers that it has at the same time.
    pub in_flight_bytes: usize,
}

/// What a drive gave; or it was left, and has the buffer still.
pub type Answer = Result<Transferred, DriveError>;

/// A drive, and the bounds of its answers.
pub struct BoundedDrive {
    inner: Arc<dyn Drive>,
    index: u16,
    limit: Duration,
    /// Bytes of buffers.
    in_flight: Semaphore,
    permission: Arc<Permission>,
    left: Arc<Left>,
    in_doubt: Arc<Doubt>,
}

impl BoundedDrive {
    /// A drive with these bounds, for which permission is asked by this index. It shares what it was left with, if it is a part
    /// of a device ([`Drive::left`]).
    #[must_use]
    pub fn new(
        inner: Arc<dyn Drive>,
        index: u16,
        bounds: Bounds,
        permission: Arc<Permission>,
    ) -> Self {
        let left = inner.left().unwrap_or_default();
        Self::sharing(inner, index, bounds, permission, left)
    }

    /// The same for who has another part of the device.
    #[must_use]
    pub fn sharing(
        inner: Arc<dyn Drive>,
        index: u16,
        bounds: Bounds,
        permission: Arc<Permission>,
        left: Arc<Left>,
    ) -> Self {
        Self {
            inner,
            index,
            limit: bounds.answer_max,
            in_flight: Semaphore::new(bounds.in_flight_bytes),
            permission,
            left,
            in_doubt: Arc::default(),
        }
    }

    /// Whether transfers that the device was left with have not ended.
    #[must_use]
    pub fn is_left(&self) -> bool {
        self.left.is_any()
    }

    /// Whether something that it was told, and that has ended, may still happen.
    #[must_use]
    pub fn is_in_doubt(&self) -> bool {
        self.in_doubt.0.load(Ordering::Acquire)
    }

    /// Reads as [`Drive::read`].
    ///
    /// # Errors
    /// The drive was left, and has the buffer still.
    pub async fn read_or_leave(&self, buffer: Buffer, extents: &[Extent]) -> Answer {
        let permit = match self.admit(buffer.capacity()).await {
            Ok(permit) => permit,
            Err(error) => return Ok((Err(error), buffer)),
        };
        let read = self.told(permit, buffer, extents);
        self.within(1, Duration::ZERO, read, |_| false).await
    }

    /// The same. What takes longer than this goes on in the future that comes back.
    ///
    /// # Errors
    /// That future.
    pub async fn begin_read(
        self: &Arc<Self>,
        buffer: Buffer,
        extents: &[Extent],
        patience: Duration,
    ) -> Result<Answer, LocalBoxFuture<'static, Answer>> {
        let Some(permit) = self.in_flight.try_acquire(self.share(buffer.capacity())) else {
            // It has much to do. Then another copy is asked soon, or nobody has one.
            let (bounded, extents) = (self.clone(), extents.to_vec());
            let mut read: LocalBoxFuture<'static, _> =
                Box::pin(async move { bounded.read_or_leave(buffer, &extents).await });
            let done = reactor::timeout(patience, &mut read).await;
            return done.map_err(|_| read);
        };
        let mut read = self.told(permit, buffer, extents);
        if let Ok(done) = reactor::timeout(patience, &mut read).await {
            return Ok(Ok(done));
        }
        let bounded = self.clone();
        Err(Box::pin(async move {
            bounded.within(1, patience, read, |_| false).await
        }))
    }

    /// What the drive is told to read, with its share of the buffers.
    fn told(
        &self,
        permit: Permit,
        buffer: Buffer,
        extents: &[Extent],
    ) -> LocalBoxFuture<'static, Transferred> {
        let (drive, extents) = (self.inner.clone(), extents.to_vec());
        Box::pin(async move {
            let transferred = drive.read(buffer, &extents).await;
            drop(permit);
            transferred
        })
    }

    /// More than the bound is the bound.
    fn share(&self, bytes: usize) -> usize {
        bytes.min(self.in_flight.total())
    }

    /// Waits until the drive may have so many bytes of buffers more.
    ///
    /// # Errors
    /// If the drive is left meanwhile: it was not told anything then.
    async fn admit(&self, bytes: usize) -> Result<Permit, DriveError> {
        let bytes = self.share(bytes);
        if let Some(permit) = self.in_flight.try_acquire(bytes) {
            return Ok(permit);
        }
        let mut line = self.in_flight.acquire(bytes);
        if reactor::current().is_none() {
            return Ok(line.await);
        }
        loop {
            if let Ok(permit) = reactor::timeout(self.limit / LOOKS, &mut line).await {
                return Ok(permit);
            }
            if self.left.is_any() && self.permission.may_leave(self.index) {
                let text = "does not answer what it was told before; check its cables, its power and what the system's log says";
                return Err(DriveError::new(ErrorKind::Io, self.inner.name(), text));
            }
        }
    }

    /// Reads a block again and again, of which nobody wants to know anything but that the drive answers: if it does not, it is
    /// left, and so is what waits for it. Does not end.
    async fn probe(&self) -> Infallible {
        let buffers = reactor::current().map(|reactor| reactor.buffers().clone());
        // Without memory for it there are transfers under way that have bounds of their own.
        while let Some(buffer) = buffers
            .as_ref()
            .and_then(|buffers| buffers.try_alloc(BLOCK_BYTES))
        {
            let drive = self.inner.clone();
            let first = Extent {
                block: 0,
                buffer_offset: 0,
                blocks: 1,
            };
            // It goes on when nobody waits any more.
            let read = reactor::spawn(async move { drive.read(buffer, &[first]).await });
            let read = self.within(1, Duration::ZERO, Box::pin(read), |_| false);
            if read.await.is_err() {
                break;
            }
            reactor::sleep(self.limit / LOOKS).await;
        }
        pending().await
    }

    /// What a transfer gives that has taken so long already, or an error if the drive was left. `is_in_doubt` says whether the
    /// drive may still do what ended.
    async fn within<T: 'static>(
        &self,
        factor: u32,
        waited: Duration,
        mut transfer: LocalBoxFuture<'static, T>,
        is_in_doubt: fn(&T) -> bool,
    ) -> Result<T, DriveError> {
        // Without a reactor there is no clock, and nobody leaves anything.
        if reactor::current().is_none() {
            let done = transfer.await;
            self.in_doubt.note(is_in_doubt(&done));
            return Ok(done);
        }
        let pause = self.limit / LOOKS;
        let mut looks = (waited.as_nanos() / pause.as_nanos().max(1)) as u32;
        loop {
            if let Ok(done) = reactor::timeout(pause, &mut transfer).await {
                self.in_doubt.note(is_in_doubt(&done));
                return Ok(done);
            }
            looks += 1;
            // What waits behind something that was left is left too.
            let is_late = looks >= LOOKS * factor || self.left.is_any();
            if is_late && self.permission.may_leave(self.index) {
                break;
            }
        }
        let (left, in_doubt) = (self.left.clone(), self.in_doubt.clone());
        left.0.fetch_add(1, Ordering::AcqRel);
        reactor::spawn(async move {
            let done = transfer.await;
            in_doubt.note(is_in_doubt(&done));
            drop(done);
            left.0.fetch_sub(1, Ordering::AcqRel);
        });
        let text = format!(
            "does not answer within {:?}; check its cables, its power and what the system's log says",
            pause * looks
        );
        Err(DriveError::new(ErrorKind::Io, self.inner.name(), text).in_doubt())
    }
}

fn is_result_in_doubt(result: &Result<(), DriveError>) -> bool {
    result.as_ref().is_err_and(DriveError::is_in_doubt)
}

impl Drive for BoundedDrive {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn blocks(&self) -> u64 {
        self.inner.blocks()
    }

    fn is_absent(&self) -> bool {
        self.inner.is_absent()
    }

    fn room_bytes(&self) -> Option<u64> {
        self.inner.room_bytes()
    }

    /// Without a bound: nobody waits for it, and a drive that is slow to tell is none that fails.
    fn smart_log<'a>(&'a self) -> LocalBoxFuture<'a, Result<Option<SmartLog>, DriveError>> {
        self.inner.smart_log()
    }

    fn read<'a>(
        &'a self,
        buffer: Buffer,
        extents: &'a [Extent],
    ) -> LocalBoxFuture<'a, Transferred> {
        let (pool, len) = (buffer.pool(), buffer.len());
        Box::pin(async move {
            match self.read_or_leave(buffer, extents).await {
                Ok(transferred) => transferred,
                // The drive has the buffer: who asked gets another one, which holds anything.
                Err(error) => (Err(error), pool.alloc(len).await),
            }
        })
    }

    fn write<'a>(
        &'a self,
        buffer: Buffer,
        extents: &'a [Extent],
    ) -> LocalBoxFuture<'a, Transferred> {
        let gathered = |extent: &Extent| GatherExtent {
            block: extent.block,
            buffer: 0,
            // Buffers are shorter than 4 GiB: the drive refuses what does not fit.
            buffer_offset: u32::try_from(extent.buffer_offset).unwrap_or(u32::MAX),
            blocks: extent.blocks,
        };
        let extents: Vec<GatherExtent> = extents.iter().map(gathered).collect();
        let buffers = Rc::new(vec![buffer]);
        Box::pin(async move {
            let result = self.write_many(buffers.clone(), &extents).await;
            let mut buffers = take_back(buffers).await;
            (result, buffers.remove(0))
        })
    }

    fn write_many<'a>(
        &'a self,
        buffers: Rc<Vec<Buffer>>,
        extents: &'a [GatherExtent],
    ) -> LocalBoxFuture<'a, Result<(), DriveError>> {
        let (drive, extents) = (self.inner.clone(), extents.to_vec());
        Box::pin(async move {
            let permit = self
                .admit(buffers.iter().map(Buffer::capacity).sum())
                .await?;
            let write = Box::pin(async move {
                let result = drive.write_many(buffers, &extents).await;
                drop(permit);
                result
            });
            let written = self
                .within(1, Duration::ZERO, write, is_result_in_doubt)
                .await;
            written.and_then(|result| result)
        })
    }

    fn write_flushing<'a>(
        &'a self,
        buffer: Buffer,
        extents: &'a [Extent],
    ) -> LocalBoxFuture<'a, Transferred> {
        let (drive, extents) = (self.inner.clone(), extents.to_vec());
        let (pool, len) = (buffer.pool(), buffer.len());
        Box::pin(async move {
            let permit = match self.admit(buffer.capacity()).await {
                Ok(permit) => permit,
                Err(error) => return (Err(error), buffer),
            };
            let write = Box::pin(async move {
                let written = drive.write_flushing(buffer, &extents).await;
                drop(permit);
                written
            });
            let is_in_doubt = |(result, _): &Transferred| is_result_in_doubt(result);
            let written = self.within(FLUSH_FACTOR, Duration::ZERO, write, is_in_doubt);
            match written.await {
                Ok(written) => written,
                // The drive has the buffer: who asked gets another one, which holds anything.
                Err(error) => (Err(error), pool.alloc(len).await),
            }
        })
    }

    fn flush<'a>(&'a self) -> LocalBoxFuture<'a, Result<(), DriveError>> {
        let drive = self.inner.clone();
        let mut flush: LocalBoxFuture<'static, _> = Box::pin(async move { drive.flush().await });
        Box::pin(async move {
            if reactor::current().is_none() {
                let flushed = self.within(1, Duration::ZERO, flush, |_| false);
                return flushed.await.and_then(|result| result);
            }
            let first_look = self.limit / LOOKS;
            if let Ok(result) = reactor::timeout(first_look, &mut flush).await {
                return result;
            }
            let flushed = pin!(self.within(FLUSH_FACTOR, first_look, flush, |_| false));
            let probe = pin!(self.probe());
            match select(flushed, probe).await {
                Either::Left((flushed, _)) => flushed.and_then(|result| result),
                Either::Right((never, _)) => match never {},
            }
        })
    }

    fn discard<'a>(
        &'a self,
        block: u64,
        blocks: u64,
    ) -> LocalBoxFuture<'a, Result<(), DriveError>> {
        let drive = self.inner.clone();
        let discard = Box::pin(async move { drive.discard(block, blocks).await });
        Box::pin(async move {
            let discarded = self
                .within(FLUSH_FACTOR, Duration::ZERO, discard, is_result_in_doubt)
                .await;
            discarded.and_then(|result| result)
        })
    }

    fn fence<'a>(&'a self) -> LocalBoxFuture<'a, Result<(), DriveError>> {
        Box::pin(async move {
            let under_way = self.left.transfers();
            if under_way > 0 {
                let text = format!(
                    "does not answer: {under_way} transfers that it was told before have not ended; check it"
                );
                return Err(DriveError::new(ErrorKind::Io, self.name(), text));
            }
            // What ends in doubt during the fence is not settled by it.
            if !self.in_doubt.0.swap(false, Ordering::AcqRel) {
                return Ok(());
            }
            let fenced = self.inner.fence().await;
            self.in_doubt.note(fenced.is_err());
            fenced
        })
    }
}

/// The buffers that were shared with drives: these, or, of a drive that was left and still has them, others of the same content.
/// Those are of a pool of their own, which ends with them: who waited for memory of the buffers' pool could wait for what waits
/// as well.
pub async fn take_back(buffers: Rc<Vec<Buffer>>) -> Vec<Buffer> {
    let shared = match Rc::try_unwrap(buffers) {
        Ok(buffers) => return buffers,
        Err(shared) => shared,
    };
    let own = BufferPool::new(shared.iter().map(Buffer::capacity).sum());
    // The largest ones first: then all fit.
    let mut order: Vec<usize> = (0..shared.len()).collect();
    order.sort_by_key(|at| Reverse(shared[*at].capacity()));
    let mut copies: Vec<(usize, Buffer)> = Vec::with_capacity(shared.len());
    for at in order {
        let buffer = &shared[at];
        let copy = own.as_ref().ok();
        let mut copy = match copy.and_then(|own| own.try_alloc(buffer.len())) {
            Some(copy) => copy,
            // The system has no memory. Then it takes as long as it takes.
            None => buffer.pool().alloc(buffer.len()).await,
        };
        copy.copy_from_slice(buffer);
        copies.push((at, copy));
    }
    copies.sort_by_key(|(at, _)| *at);
    copies.into_iter().map(|(_, copy)| copy).collect()
}
