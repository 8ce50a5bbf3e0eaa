//! READs that bring the data of a command.
//!
//! Guarantees:
//!
//! - A transfer is cut into pieces, and its pieces are asked for together: one that fits the bounds costs one round
//!   trip, however long it is.
//! - READs in flight are bounded by what the connection allows, their bytes by the queue's share, and the bytes of all
//!   queues by what the device's receive buffers hold.
//! - A READ that nobody waits for any more runs to its end; its memory goes back to its pool then.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use nvme::Status;
use reactor::{BUFFER_ALIGNMENT, Buffer};

use crate::memory::{Budget, FabricMemory, Permit};
use crate::provider::{QueuePair, RegionKey, Work, WorkStatus};
use crate::queue::TransferError;

/// A queue may take this fraction of the bytes of READ responses that its device may have on their way, so that hosts
/// that died in the middle of their transfers do not hold up those that live.
const QUEUE_SHARE: usize = 8;

/// The READs of a queue.
pub(super) struct Reads {
    /// READs in flight: as many as the limits and the connection allow.
    count: OnceCell<Budget>,
    /// Bytes of this queue's READs in flight.
    queue_bytes: Budget,
    /// Bytes of the READs of all queues of the device in flight.
    device_bytes: Budget,
    /// Bytes of the longest READ: a power of two, so that a buffer can be cut there.
    piece_bytes: usize,
    next: Cell<u64>,
    /// In the order in which they were posted, which is that of their ends.
    in_flight: RefCell<VecDeque<InFlight>>,
}

/// A READ that the device works on. The permits go back when it is done, even if whoever waited for it is gone.
struct InFlight {
    id: u64,
    result: Rc<ReadResult>,
    _permits: [Permit; 3],
}

#[derive(Default)]
struct ReadResult {
    done: Cell<Option<(WorkStatus, FabricMemory)>>,
    waker: RefCell<Option<Waker>>,
}

impl Reads {
    /// With the bytes that a device may have on their way, and those of its longest READ.
    pub(super) fn new(device_bytes: Budget, read_bytes_max: usize) -> Self {
        let longest = read_bytes_max.max(BUFFER_ALIGNMENT);
        let piece_bytes = 1 << longest.ilog2();
        Self {
            count: OnceCell::new(),
            queue_bytes: Budget::new((device_bytes.total() / QUEUE_SHARE).max(piece_bytes)),
            device_bytes,
            piece_bytes,
            next: Cell::new(0),
            in_flight: RefCell::default(),
        }
    }

    /// The connection is made, and allows so many READs in flight.
    pub(super) fn allow(&self, count: usize) {
        // A queue gets one connection.
        let _ = self.count.set(Budget::new(count.max(1)));
    }

    /// Reads `len` bytes of the host's memory to the beginning of a buffer.
    pub(super) async fn fetch(
        &self,
        qp: &dyn QueuePair,
        from: RegionKey,
        len: usize,
        buffer: Buffer,
    ) -> Result<Buffer, TransferError> {
        if len <= self.piece_bytes {
            let read = self.post(qp, from, len, buffer).await?;
            return read.wait().await;
        }
        let pieces = buffer.split(self.piece_bytes);
        let mut posted = Vec::with_capacity(pieces.len());
        let mut unused = Vec::new();
        for (index, piece) in pieces.into_iter().enumerate() {
            let offset = index * self.piece_bytes;
            if offset >= len {
                unused.push(piece);
                continue;
            }
            let remote = RegionKey {
                address: from.address.wrapping_add(offset as u64),
                ..from
            };
            let bytes = (len - offset).min(self.piece_bytes);
            posted.push(self.post(qp, remote, bytes, piece).await?);
        }
        let mut read = Vec::with_capacity(posted.len() + unused.len());
        for result in posted {
            read.push(result.wait().await?);
        }
        read.append(&mut unused);
        Buffer::join(read).map_err(|_| TransferError::GONE)
    }

    /// Posts a READ as soon as the bounds allow it.
    async fn post(
        &self,
        qp: &dyn QueuePair,
        remote: RegionKey,
        len: usize,
        into: Buffer,
    ) -> Result<Rc<ReadResult>, TransferError> {
        let count = self.count.get().ok_or(TransferError::GONE)?;
        let permits = [
            count.acquire(1).await,
            self.queue_bytes.acquire(len).await,
            self.device_bytes.acquire(len).await,
        ];
        let id = self.next.get();
        self.next.set(id + 1);
        let work = Work::Read {
            into: FabricMemory::Buffer(into),
            offset: 0,
            len,
            remote,
        };
        if qp.post_send(id, work).is_err() {
            let message = "the queue does not take another READ";
            return Err(TransferError::new(Status::DATA_TRANSFER_ERROR, message));
        }
        let result = Rc::new(ReadResult::default());
        self.in_flight.borrow_mut().push_back(InFlight {
            id,
            result: result.clone(),
            _permits: permits,
        });
        Ok(result)
    }

    /// A READ has ended.
    pub(super) fn completed(&self, id: u64, status: WorkStatus, memory: FabricMemory) {
        let mut in_flight = self.in_flight.borrow_mut();
        let at = in_flight.iter().position(|read| read.id == id);
        let read = at.and_then(|at| in_flight.remove(at));
        drop(in_flight);
        if let Some(read) = read {
            read.result.set(status, memory);
        }
    }

    /// The connection is over: whoever waits is told, also if a provider forgot to flush a READ.
    pub(super) fn end(&self) {
        for read in self.in_flight.take() {
            read.result
                .set(WorkStatus::Flushed, FabricMemory::inline(&[]));
        }
    }
}

impl ReadResult {
    fn set(&self, status: WorkStatus, memory: FabricMemory) {
        self.done.set(Some((status, memory)));
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// The buffer with the data.
    async fn wait(&self) -> Result<Buffer, TransferError> {
        let (status, memory) = poll_fn(|cx| match self.done.take() {
            Some(done) => Poll::Ready(done),
            None => {
                *self.waker.borrow_mut() = Some(cx.waker().clone());
                Poll::Pending
            }
        })
        .await;
        memory
            .into_buffer()
            .filter(|_| status == WorkStatus::Success)
            .ok_or(TransferError::GONE)
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::pin::pin;
    use std::task::Context;

    use reactor::BufferPool;

    use super::*;
    use crate::provider::{PostError, RemoteRights};

    const PIECE: usize = 128 << 10;
    const MIB: usize = 1 << 20;

    /// A queue pair that notes what is posted, and whose READs end when the test says so.
    #[derive(Default)]
    struct Noting(RefCell<VecDeque<(u64, Work)>>);

    impl QueuePair for Noting {
        fn post_receive(
            &self,
            _: u64,
            memory: FabricMemory,
        ) -> Result<(), (PostError, FabricMemory)> {
            Err((PostError::Full, memory))
        }

        fn post_send(&self, id: u64, work: Work) -> Result<(), (PostError, Work)> {
            self.0.borrow_mut().push_back((id, work));
            Ok(())
        }

        fn disconnect(&self) {}

        fn peer(&self) -> SocketAddr {
            SocketAddr::from(([192, 0, 2, 1], 0))
        }

        fn local(&self) -> SocketAddr {
            SocketAddr::from(([192, 0, 2, 2], 0))
        }

        fn reads_max(&self) -> usize {
            64
        }

        fn register(
            &self,
            memory: FabricMemory,
            _: RemoteRights,
        ) -> Result<RegionKey, (PostError, FabricMemory)> {
            Err((PostError::Full, memory))
        }

        fn deregister(&self, _: u32) -> Option<FabricMemory> {
            None
        }
    }

    impl Noting {
        /// Ends the oldest READ with what the host has at its address: the number of each block of 4 KiB.
        fn answer(&self, reads: &Reads) {
            let (id, work) = self.0.borrow_mut().pop_front().expect("a READ is posted");
            let Work::Read {
                mut into,
                len,
                remote,
                ..
            } = work
            else {
                panic!("{work:?}")
            };
            for (index, block) in into.bytes_mut()[..len].chunks_mut(4096).enumerate() {
                block.fill((remote.address as usize / 4096 + index) as u8);
            }
            reads.completed(id, WorkStatus::Success, into);
        }

        fn posted(&self) -> usize {
            self.0.borrow().len()
        }

        fn posted_bytes(&self) -> usize {
            self.0.borrow().iter().map(|(_, work)| work.bytes()).sum()
        }
    }

    fn reads(device_bytes: usize, count: usize) -> Reads {
        let reads = Reads::new(Budget::new(device_bytes), PIECE);
        reads.allow(count);
        reads
    }

    const FROM: RegionKey = RegionKey {
        rkey: 7,
        address: 0,
    };

    /// Fetches so many bytes with all posted READs answered at once, again and again: gives how often.
    fn round_trips(reads: &Reads, len: usize, mut look: impl FnMut(&Noting)) -> usize {
        let pool = BufferPool::new(8 << 20).expect("a pool");
        let qp = Noting::default();
        let buffer = pool.try_alloc(len).expect("room");
        let mut context = Context::from_waker(Waker::noop());
        let mut fetching = pin!(reads.fetch(&qp, FROM, len, buffer));
        let mut trips = 0;
        let fetched = loop {
            if let Poll::Ready(fetched) = fetching.as_mut().poll(&mut context) {
                break fetched.expect("the data");
            }
            look(&qp);
            trips += 1;
            for _ in 0..qp.posted() {
                qp.answer(reads);
            }
        };
        assert_eq!(fetched.len(), len);
        for (index, block) in fetched.chunks(4096).enumerate() {
            assert!(block.iter().all(|byte| *byte == index as u8), "{index}");
        }
        drop(fetched);
        let stats = pool.stats();
        assert_eq!(stats.free_bytes, stats.total_bytes);
        trips
    }

    #[test]
    fn the_pieces_of_a_large_write_are_asked_for_together() {
        assert_eq!(round_trips(&reads(64 << 20, 64), MIB, |_| ()), 1);
        assert_eq!(round_trips(&reads(64 << 20, 64), PIECE + 4096, |_| ()), 1);
        assert_eq!(round_trips(&reads(64 << 20, 64), 4096, |_| ()), 1);
    }

    #[test]
    fn reads_in_flight_stay_within_what_connection_queue_and_device_allow() {
        let trips = round_trips(&reads(64 << 20, 2), MIB, |qp| {
            assert!(qp.posted() <= 2);
        });
        assert_eq!(trips, 4, "two of eight pieces at a time");
        // A queue has an eighth of the device's bytes.
        let trips = round_trips(&reads(4 << 20, 64), MIB, |qp| {
            assert!(qp.posted_bytes() <= 512 << 10);
        });
        assert_eq!(trips, 2);
        let busy = reads(64 << 20, 64);
        let held = busy.device_bytes.try_acquire((64 << 20) - PIECE);
        let trips = round_trips(&busy, MIB, |qp| {
            assert!(qp.posted_bytes() <= PIECE);
        });
        assert_eq!(trips, 8, "others have the rest of the device's bytes");
        drop(held);
    }

    #[test]
    fn a_transfer_that_is_given_up_leaves_its_memory_to_the_reads_in_flight() {
        let reads = reads(64 << 20, 64);
        let pool = BufferPool::new(2 << 20).expect("a pool");
        let qp = Noting::default();
        let buffer = pool.try_alloc(MIB).expect("room");
        {
            let mut context = Context::from_waker(Waker::noop());
            let fetching = pin!(reads.fetch(&qp, FROM, MIB, buffer));
            assert!(fetching.poll(&mut context).is_pending());
        }
        assert_eq!(qp.posted(), 8);
        for left in (0..8).rev() {
            qp.answer(&reads);
            let stats = pool.stats();
            assert_eq!(stats.total_bytes - stats.free_bytes, left * PIECE);
        }
    }

    #[test]
    fn the_end_of_the_connection_ends_a_transfer() {
        let reads = reads(64 << 20, 64);
        let pool = BufferPool::new(2 << 20).expect("a pool");
        let qp = Noting::default();
        let buffer = pool.try_alloc(MIB).expect("room");
        let mut context = Context::from_waker(Waker::noop());
        let mut fetching = pin!(reads.fetch(&qp, FROM, MIB, buffer));
        assert!(fetching.as_mut().poll(&mut context).is_pending());
        qp.answer(&reads);
        reads.end();
        let Poll::Ready(outcome) = fetching.poll(&mut context) else {
            panic!("it waits")
        };
        assert_eq!(outcome.err(), Some(TransferError::GONE));
    }
}
