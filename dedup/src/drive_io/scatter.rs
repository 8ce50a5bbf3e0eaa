//! Transfers to and from several drives at once.
//!
//! A drive owns the buffer of a transfer as long as it works on it. So a buffer of which several drives have parts is cut
//! into the longest equal parts that belong to one drive each, and made whole again when all are done: nobody
//! copies, and no drive waits for another one.

use drives::{BLOCK_BYTES, DriveError, Extent, GatherExtent};
use futures_util::future::join_all;
use reactor::Buffer;

use crate::drive_io::drive_list::DriveList;
use crate::drive_io::segments::Place;

/// What is to be moved from or to one drive.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct OfDrive<E> {
    /// Index of the drive.
    pub(crate) drive: u16,
    pub(crate) extents: Vec<E>,
}

/// The drives that failed.
pub(crate) type Failures = Vec<(u16, DriveError)>;

/// Adds an extent to those of its drive.
pub(crate) fn of_drive<E>(groups: &mut Vec<OfDrive<E>>, drive: u16) -> &mut Vec<E> {
    // Mostly there is one, and the last one goes on.
    let at = match groups.iter().rposition(|group| group.drive == drive) {
        Some(at) => at,
        None => {
            let extents = Vec::new();
            groups.push(OfDrive { drive, extents });
            groups.len() - 1
        }
    };
    &mut groups[at].extents
}

/// Adds a block to what is read; one that goes on where the last one of its drive ended makes that longer.
pub(crate) fn add(groups: &mut Vec<OfDrive<Extent>>, place: Place, buffer_offset: usize) {
    let Place { drive, block } = place;
    let extents = of_drive(groups, drive);
    if let Some(last) = extents.last_mut()
        && last.block + u64::from(last.blocks) == block
        && last.buffer_offset + last.blocks as usize * BLOCK_BYTES == buffer_offset
    {
        last.blocks += 1;
        return;
    }
    extents.push(Extent {
        block,
        buffer_offset,
        blocks: 1,
    });
}

/// Reads all extents to the buffer, all drives at once. After an error of a drive its extents hold anything.
pub(crate) async fn read(
    drives: &DriveList,
    buf: Buffer,
    groups: &[OfDrive<Extent>],
) -> (Failures, Buffer) {
    match groups {
        [] => (Vec::new(), buf),
        [one] => {
            let (failed, buf) = read_one(drives, one.drive, buf, &one.extents).await;
            (failed.into_iter().collect(), buf)
        }
        _ => read_scattered(drives, buf, groups).await,
    }
}

async fn read_one(
    drives: &DriveList,
    index: u16,
    buf: Buffer,
    extents: &[Extent],
) -> (Option<(u16, DriveError)>, Buffer) {
    let (result, buf) = match drives.get(index.into()) {
        Some(drive) => drive.read(buf, extents).await,
        None => (Err(no_drive()), buf),
    };
    (result.err().map(|error| (index, error)), buf)
}

async fn write_one(
    drives: &DriveList,
    index: u16,
    buffers: Vec<Buffer>,
    extents: &[GatherExtent],
) -> (Option<(u16, DriveError)>, Vec<Buffer>) {
    let (result, buffers) = match drives.get(index.into()) {
        Some(drive) => drive.write_many(buffers, extents).await,
        None => (Err(no_drive()), buffers),
    };
    (result.err().map(|error| (index, error)), buffers)
}

fn no_drive() -> DriveError {
    let text = "no segment of the pool has this data block";
    DriveError::new(drives::ErrorKind::Invalid, "?", text)
}

async fn read_scattered(
    drives: &DriveList,
    buf: Buffer,
    groups: &[OfDrive<Extent>],
) -> (Failures, Buffer) {
    let pages = buf.capacity() / BLOCK_BYTES;
    let owners = owners_of(
        pages,
        groups.iter().flat_map(|group| {
            let ranges = group.extents.iter();
            ranges.map(|e| (group.drive, e.buffer_offset / BLOCK_BYTES, e.blocks))
        }),
    );
    let part_pages = longest_part(&owners);
    let part_bytes = part_pages * BLOCK_BYTES;
    let parts = buf.split(part_bytes);
    let mut extents: Vec<Vec<Extent>> = parts.iter().map(|_| Vec::new()).collect();
    for extent in groups.iter().flat_map(|group| &group.extents) {
        for (part, cut) in cuts(extent.buffer_offset, extent.blocks, part_bytes) {
            extents[part].push(Extent {
                block: extent.block + u64::from(cut.skipped),
                buffer_offset: cut.offset,
                blocks: cut.blocks,
            });
        }
    }
    let transfers = parts.into_iter().zip(&extents).enumerate();
    let transfers = transfers.map(|(at, (part, extents))| {
        let owner = owners[at * part_pages..(at + 1) * part_pages]
            .iter()
            .find_map(|owner| *owner);
        async move {
            match owner {
                Some(drive) => read_one(drives, drive, part, extents).await,
                None => (None, part),
            }
        }
    });
    let (failed, parts): (Vec<_>, Vec<Buffer>) = join_all(transfers).await.into_iter().unzip();
    (failures(failed), whole(parts))
}

/// Writes all extents, gathered from the buffers, all drives at once.
pub(crate) async fn write(
    drives: &DriveList,
    buffers: Vec<Buffer>,
    groups: &[OfDrive<GatherExtent>],
) -> (Failures, Vec<Buffer>) {
    match groups {
        [] => (Vec::new(), buffers),
        [one] => {
            let (failed, buffers) = write_one(drives, one.drive, buffers, &one.extents).await;
            (failed.into_iter().collect(), buffers)
        }
        _ => write_scattered(drives, buffers, groups).await,
    }
}

/// What one drive writes: its parts of the buffers, and where they belong.
#[derive(Default)]
struct Share {
    parts: Vec<Buffer>,
    /// The buffer and the part of it, for each of them.
    places: Vec<(usize, usize)>,
    extents: Vec<GatherExtent>,
}

async fn write_scattered(
    drives: &DriveList,
    buffers: Vec<Buffer>,
    groups: &[OfDrive<GatherExtent>],
) -> (Failures, Vec<Buffer>) {
    let mut shares: Vec<Share> = groups.iter().map(|_| Share::default()).collect();
    let mut back: Vec<Vec<Option<Buffer>>> = Vec::with_capacity(buffers.len());
    for (number, buf) in buffers.into_iter().enumerate() {
        let own = |group: &&OfDrive<GatherExtent>| {
            let mut extents = group.extents.iter();
            extents.any(|extent| extent.buffer as usize == number)
        };
        let of_this = groups.iter().filter(own).count();
        let pages = buf.capacity() / BLOCK_BYTES;
        let ranges = groups.iter().enumerate().flat_map(|(at, group)| {
            let of_this = group.extents.iter();
            let of_this = of_this.filter(|extent| extent.buffer as usize == number);
            of_this.map(move |e| (at as u16, e.buffer_offset as usize / BLOCK_BYTES, e.blocks))
        });
        let owners = owners_of(pages, ranges);
        let part_pages = match of_this {
            0 | 1 => pages,
            _ => longest_part(&owners),
        };
        let part_bytes = part_pages * BLOCK_BYTES;
        let mut parts = Vec::new();
        for (at, part) in buf.split(part_bytes).into_iter().enumerate() {
            let pages = &owners[at * part_pages..(at + 1) * part_pages];
            let Some(owner) = pages.iter().find_map(|owner| *owner) else {
                parts.push(Some(part));
                continue;
            };
            let (share, group) = (&mut shares[usize::from(owner)], &groups[usize::from(owner)]);
            let of_this = group.extents.iter();
            for extent in of_this.filter(|extent| extent.buffer as usize == number) {
                let pieces = cuts(extent.buffer_offset as usize, extent.blocks, part_bytes);
                for (_, cut) in pieces.filter(|(part, _)| *part == at) {
                    share.extents.push(GatherExtent {
                        block: extent.block + u64::from(cut.skipped),
                        buffer: share.parts.len() as u32,
                        buffer_offset: cut.offset as u32,
                        blocks: cut.blocks,
                    });
                }
            }
            share.parts.push(part);
            share.places.push((number, at));
            parts.push(None);
        }
        back.push(parts);
    }
    let transfers = shares
        .into_iter()
        .zip(groups)
        .map(|(share, group)| async move {
            let (failed, parts) = write_one(drives, group.drive, share.parts, &share.extents).await;
            (failed, share.places.into_iter().zip(parts))
        });
    let mut failed = Vec::new();
    for (failure, parts) in join_all(transfers).await {
        failed.push(failure);
        for ((buffer, at), part) in parts {
            back[buffer][at] = Some(part);
        }
    }
    let buffers = back.into_iter();
    let buffers = buffers.map(|parts| whole(parts.into_iter().flatten().collect()));
    (failures(failed), buffers.collect())
}

/// Each drive that failed once, with its first error.
fn failures(failed: Vec<Option<(u16, DriveError)>>) -> Failures {
    let mut failures = Failures::new();
    for (drive, error) in failed.into_iter().flatten() {
        if failures.iter().all(|(known, _)| *known != drive) {
            failures.push((drive, error));
        }
    }
    failures
}

/// Who has each page of a buffer.
fn owners_of(pages: usize, ranges: impl Iterator<Item = (u16, usize, u32)>) -> Vec<Option<u16>> {
    let mut owners = vec![None; pages];
    for (owner, first, blocks) in ranges {
        for page in owners.iter_mut().skip(first).take(blocks as usize) {
            *page = Some(owner);
        }
    }
    owners
}

/// The longest equal parts of which each has one owner at most.
fn longest_part(owners: &[Option<u16>]) -> usize {
    let mut part = owners.len();
    while part > 1 {
        let mut parts = owners.chunks(part);
        let has_one = |part: &[Option<u16>]| {
            let mut known = part.iter().flatten();
            let first = known.next();
            known.all(|owner| Some(owner) == first)
        };
        if parts.all(has_one) {
            break;
        }
        part /= 2;
    }
    part
}

/// A piece of an extent that lies in one part of a buffer.
struct Cut {
    /// Blocks of the extent before it.
    skipped: u32,
    /// Bytes from the part's start.
    offset: usize,
    blocks: u32,
}

/// An extent by the parts of its buffer.
fn cuts(offset: usize, blocks: u32, part_bytes: usize) -> impl Iterator<Item = (usize, Cut)> {
    let mut skipped = 0;
    std::iter::from_fn(move || {
        if skipped == blocks {
            return None;
        }
        let at = offset + skipped as usize * BLOCK_BYTES;
        let left = (part_bytes - at % part_bytes) / BLOCK_BYTES;
        let cut = Cut {
            skipped,
            offset: at % part_bytes,
            blocks: (blocks - skipped).min(left as u32),
        };
        skipped += cut.blocks;
        Some((at / part_bytes, cut))
    })
}

/// The buffer that was cut into these parts, all of them and in order.
fn whole(parts: Vec<Buffer>) -> Buffer {
    Buffer::join(parts).expect("all parts that the buffer was cut into, in order")
}

#[cfg(test)]
mod tests {
    use std::future::{Future, poll_fn};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::task::{Context, Poll, Waker};

    use drives::{Drive, LocalBoxFuture, MemoryDrive, Transferred};
    use futures_util::FutureExt;
    use meta::Pba;
    use reactor::BufferPool;

    use super::*;
    use crate::LABEL_BLOCKS;
    use crate::drive_io::fetch::Fetch;
    use crate::drive_io::segments::tests::complete;

    /// A drive that holds its answers back as long as it is told to.
    struct SlowDrive {
        inner: MemoryDrive,
        holds_back: AtomicBool,
        /// Transfers that it was asked for.
        asked: AtomicU64,
    }

    impl SlowDrive {
        fn new() -> Arc<Self> {
            Arc::new(Self {
                inner: MemoryDrive::new(LABEL_BLOCKS + 100),
                holds_back: AtomicBool::new(false),
                asked: AtomicU64::new(0),
            })
        }

        async fn answer(&self) {
            self.asked.fetch_add(1, Ordering::Relaxed);
            poll_fn(|cx| {
                if !self.holds_back.load(Ordering::Relaxed) {
                    return Poll::Ready(());
                }
                cx.waker().wake_by_ref();
                Poll::Pending
            })
            .await;
        }
    }

    impl Drive for SlowDrive {
        fn name(&self) -> &str {
            "slow"
        }

        fn blocks(&self) -> u64 {
            self.inner.blocks()
        }

        fn read<'a>(
            &'a self,
            buffer: Buffer,
            extents: &'a [Extent],
        ) -> LocalBoxFuture<'a, Transferred> {
            Box::pin(async move {
                self.answer().await;
                self.inner.read(buffer, extents).await
            })
        }

        fn write<'a>(
            &'a self,
            buffer: Buffer,
            extents: &'a [Extent],
        ) -> LocalBoxFuture<'a, Transferred> {
            Box::pin(async move {
                self.answer().await;
                self.inner.write(buffer, extents).await
            })
        }

        fn flush<'a>(&'a self) -> LocalBoxFuture<'a, Result<(), DriveError>> {
            self.inner.flush()
        }

        fn discard<'a>(
            &'a self,
            block: u64,
            blocks: u64,
        ) -> LocalBoxFuture<'a, Result<(), DriveError>> {
            self.inner.discard(block, blocks)
        }
    }

    fn two() -> ([Arc<SlowDrive>; 2], DriveList) {
        let slow = [SlowDrive::new(), SlowDrive::new()];
        let drives = slow.clone().map(|drive| drive as Arc<dyn Drive>);
        let segments = complete(&Vec::new(), &[100, 100], 1, 0).unwrap();
        (slow, DriveList::new(&drives, &segments, &[]))
    }

    /// Polls once while the first drive holds back its answer: both have been asked then. It is done after that.
    fn while_the_first_waits<T>(
        slow: &[Arc<SlowDrive>; 2],
        transfer: impl Future<Output = T>,
    ) -> T {
        let asked = || [0, 1].map(|at| slow[at].asked.load(Ordering::Relaxed));
        slow[0].holds_back.store(true, Ordering::Relaxed);
        let before = asked();
        let mut transfer = std::pin::pin!(transfer);
        let mut context = Context::from_waker(Waker::noop());
        assert!(transfer.as_mut().poll(&mut context).is_pending());
        let after = asked();
        assert!(after[0] > before[0] && after[1] > before[1], "{after:?}");
        slow[0].holds_back.store(false, Ordering::Relaxed);
        transfer.now_or_never().expect("nobody holds back")
    }

    #[test]
    fn what_a_command_writes_to_and_reads_from_two_drives_goes_out_at_once() {
        let (slow, drives) = two();
        let pool = BufferPool::new(1 << 21).expect("memory");
        // Blocks of both drives in turns, in two buffers; the last ones in a long run of one drive.
        let pbas: Vec<Pba> = (0..24)
            .map(|at| match at {
                0..16 => Pba::new((at % 2) as u16, at * 3),
                _ => Pba::new(1, 60 + at),
            })
            .collect();
        let mut buffers: Vec<Buffer> = Vec::new();
        for _ in 0..2 {
            buffers.push(pool.try_alloc(12 * BLOCK_BYTES).expect("memory"));
        }
        let mut groups = Vec::new();
        for (at, pba) in pbas.iter().enumerate() {
            let (buffer, page) = (at / 12, at % 12);
            buffers[buffer][page * BLOCK_BYTES..][..BLOCK_BYTES].fill(at as u8 + 1);
            let place = drives.places(*pba)[0];
            of_drive(&mut groups, place.drive).push(GatherExtent {
                block: place.block,
                buffer: buffer as u32,
                buffer_offset: (page * BLOCK_BYTES) as u32,
                blocks: 1,
            });
        }
        let written = write(&drives, buffers, &groups);
        let (failed, mut buffers) = while_the_first_waits(&slow, written);
        assert!(failed.is_empty(), "{failed:?}");
        assert!(buffers.iter().all(|buf| buf.len() == 12 * BLOCK_BYTES));
        assert!(buffers[1][..BLOCK_BYTES].iter().all(|byte| *byte == 13));
        drop(buffers.pop());
        drop(buffers);
        assert_eq!(pool.stats().free_bytes, pool.stats().total_bytes);
        // Longer than what is wanted, and not as long as its memory.
        let buf = pool.try_alloc(27 * BLOCK_BYTES).expect("memory");
        let places = (0..).step_by(BLOCK_BYTES);
        let mut fetch = Fetch::new(&drives, pbas.iter().copied().zip(places));
        let (failed, buf) = while_the_first_waits(&slow, fetch.read(&drives, buf));
        assert!(failed.is_empty(), "{failed:?}");
        assert_eq!(buf.len(), 27 * BLOCK_BYTES);
        for (at, block) in buf.chunks(BLOCK_BYTES).enumerate().take(pbas.len()) {
            assert!(block.iter().all(|byte| *byte == at as u8 + 1), "block {at}");
        }
    }

    #[test]
    fn a_buffer_is_cut_no_finer_than_its_drives_need() {
        let one = [Some(1), None, Some(1), None];
        assert_eq!(longest_part(&one), 4);
        let halves = [Some(1), Some(1), None, Some(2)];
        assert_eq!(longest_part(&halves), 2);
        let mixed = [Some(1), Some(2), Some(2), Some(2)];
        assert_eq!(longest_part(&mixed), 1);
    }
}
