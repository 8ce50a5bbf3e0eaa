//! Transfers to and from several drives at once.
//!
//! Drives share the buffers that they write from. A drive owns the buffer that it reads to: so one of which several drives have
//! parts is cut into the longest equal parts that belong to one drive each, and made whole again when all are done. Nobody
//! copies, and no drive waits for another one.
//!
//! Guarantee: what of a buffer is not read to stays as it was, also if a drive was left that has the buffer still.

use std::rc::Rc;

use drives::{BLOCK_BYTES, DriveError, Extent, GatherExtent, take_back};
use futures_util::future::join_all;
use reactor::{Buffer, BufferPool};

use crate::drive_io::drive_list::DriveList;
use crate::drive_io::hedge::{Elsewhere, Filled, Part, no_drive, read_one};
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

/// Reads all extents to the buffer, all drives at once. After an error of a drive its extents hold anything; what lies beside
/// them stays.
pub(crate) async fn read(
    drives: &DriveList,
    buf: Buffer,
    groups: &[OfDrive<Extent>],
) -> (Failures, Buffer) {
    read_hedged(drives, buf, groups, None).await
}

/// The same, and what takes long is asked elsewhere too.
pub(crate) async fn read_hedged(
    drives: &DriveList,
    buf: Buffer,
    groups: &[OfDrive<Extent>],
    elsewhere: Option<&dyn Elsewhere>,
) -> (Failures, Buffer) {
    match groups {
        [] => (Vec::new(), buf),
        [one] => {
            let whole = Part {
                begins: 0,
                elsewhere,
            };
            let pool = buf.pool();
            let (failed, buf) = read_one(drives, one.drive, buf, &one.extents, whole).await;
            let buf = match buf {
                Filled::Here(buf) => buf,
                left => one_buffer(&pool, vec![left]).await,
            };
            (failed.into_iter().collect(), buf)
        }
        _ => read_scattered(drives, buf, groups, elsewhere).await,
    }
}

async fn write_one(
    drives: &DriveList,
    group: &OfDrive<GatherExtent>,
    buffers: Rc<Vec<Buffer>>,
) -> Option<(u16, DriveError)> {
    let result = match drives.get(group.drive.into()) {
        Some(drive) => drive.write_many(buffers, &group.extents).await,
        None => Err(no_drive()),
    };
    result.err().map(|error| (group.drive, error))
}

async fn read_scattered(
    drives: &DriveList,
    buf: Buffer,
    groups: &[OfDrive<Extent>],
    elsewhere: Option<&dyn Elsewhere>,
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
    let pool = buf.pool();
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
                Some(drive) => {
                    let of_buffer = Part {
                        begins: at * part_bytes,
                        elsewhere,
                    };
                    read_one(drives, drive, part, extents, of_buffer).await
                }
                None => (None, Filled::Here(part)),
            }
        }
    });
    let (failed, parts): (Vec<_>, Vec<Filled>) = join_all(transfers).await.into_iter().unzip();
    (failures(failed), whole(&pool, parts).await)
}

/// Writes all extents, gathered from the buffers, all drives at once; several may write the same blocks.
pub(crate) async fn write(
    drives: &DriveList,
    buffers: Vec<Buffer>,
    groups: &[OfDrive<GatherExtent>],
) -> (Failures, Vec<Buffer>) {
    let buffers = Rc::new(buffers);
    let failed = match groups {
        [] => Failures::new(),
        [one] => {
            let failed = write_one(drives, one, buffers.clone()).await;
            failed.into_iter().collect()
        }
        _ => {
            let transfers = groups
                .iter()
                .map(|group| write_one(drives, group, buffers.clone()));
            failures(join_all(transfers).await)
        }
    };
    (failed, take_back(buffers).await)
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

/// The buffer that was cut into these parts, all of them and in order; or, if a drive that was left has some or others took
/// their places, another one of the same content.
async fn whole(pool: &BufferPool, parts: Vec<Filled>) -> Buffer {
    let mut here = Vec::with_capacity(parts.len());
    let mut parts = parts.into_iter();
    let left = loop {
        match parts.next() {
            Some(Filled::Here(part)) => here.push(part),
            left => break left,
        }
    };
    let here = match (&left, here) {
        (None, here) => match Buffer::join(here) {
            Ok(whole) => return whole,
            Err(here) => here,
        },
        (Some(_), here) => here,
    };
    let here = here.into_iter().map(Filled::Here);
    one_buffer(pool, here.chain(left).chain(parts).collect()).await
}

/// Another buffer with the content of these parts, one behind the other. Who waits for it holds none of its pool meanwhile: others
/// may wait for what these parts have.
async fn one_buffer(pool: &BufferPool, parts: Vec<Filled>) -> Buffer {
    let len = parts.iter().map(Filled::len).sum();
    let free = pool.try_alloc(len);
    let begins = parts.iter().scan(0, |at, part| {
        let begins = *at;
        *at += part.len();
        Some(begins)
    });
    let pieces = begins.zip(&parts).flat_map(|(begins, part)| {
        let pieces = part.pieces();
        pieces.map(move |(at, piece)| (begins + at, piece))
    });
    if let Some(mut whole) = free {
        pieces.for_each(|(at, piece)| whole[at..][..piece.len()].copy_from_slice(piece));
        return whole;
    }
    let kept: Vec<(usize, Vec<u8>)> = pieces.map(|(at, piece)| (at, piece.to_vec())).collect();
    drop(parts);
    let mut whole = pool.alloc(len).await;
    for (at, piece) in kept {
        whole[at..][..piece.len()].copy_from_slice(&piece);
    }
    whole
}

#[cfg(test)]
pub(crate) mod tests {
    use std::future::Future;
    use std::sync::Arc;
    use std::sync::atomic::Ordering;
    use std::task::{Context, Waker};
    use std::time::Duration;

    use conformance::SlowDrive;
    use drives::{Bounds, Drive};
    use futures_util::FutureExt;
    use meta::Pba;

    use super::*;
    use crate::LABEL_BLOCKS;
    use crate::drive_io::fetch::Fetch;
    use crate::drive_io::layout::tests::complete;

    fn two() -> ([Arc<SlowDrive>; 2], DriveList) {
        let slow = [
            SlowDrive::new(LABEL_BLOCKS + 100),
            SlowDrive::new(LABEL_BLOCKS + 100),
        ];
        let drives = slow.clone().map(|drive| drive as Arc<dyn Drive>);
        let segments = complete(&Vec::new(), &[100, 100], 1, 0).unwrap();
        (slow, DriveList::new(&drives, &segments, &[]))
    }

    /// Polls once while the first drive holds back its answer: both have been asked then. It is done after that.
    fn while_the_first_waits<T>(
        slow: &[Arc<SlowDrive>; 2],
        transfer: impl Future<Output = T>,
    ) -> T {
        let asked = || [0, 1].map(|at| slow[at].asked());
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
        let offsets = (0..).step_by(BLOCK_BYTES);
        let mut fetch = Fetch::new(&drives, pbas.iter().copied().zip(offsets));
        let (failed, buf) = while_the_first_waits(&slow, fetch.read(buf));
        assert!(failed.is_empty(), "{failed:?}");
        assert_eq!(buf.len(), 27 * BLOCK_BYTES);
        for (at, block) in buf.chunks(BLOCK_BYTES).enumerate().take(pbas.len()) {
            assert!(block.iter().all(|byte| *byte == at as u8 + 1), "block {at}");
        }
    }

    /// Commands that have all memory of a pool, half of whose blocks the drive has that does not answer. All end while it does not.
    fn all_memory_is_in_flight_when_a_drive_hangs<T: 'static>(
        begin: impl Fn(Rc<DriveList>, Buffer, u64) -> drives::LocalBoxFuture<'static, T>,
    ) {
        let (slow, drives) = two();
        let bounds = Bounds {
            answer_max: Duration::from_millis(50),
            in_flight_bytes: 16 * BLOCK_BYTES,
        };
        let drives = Rc::new(drives.bound(bounds, Duration::ZERO));
        drives.permission().ask(|drive| drive == 0);
        reactor::run(reactor::Config::default(), async move {
            let pool = BufferPool::new(1 << 21).expect("memory");
            slow[0].holds_back.store(true, Ordering::Relaxed);
            let mut commands = Vec::new();
            while let Some(mut buffer) = pool.try_alloc(8 * BLOCK_BYTES) {
                let number = commands.len() as u64;
                buffer.fill(number as u8);
                commands.push(reactor::spawn(begin(drives.clone(), buffer, number)));
            }
            assert_eq!(pool.stats().free_bytes, 0);
            for command in commands {
                drop(command.await.expect("no panic"));
            }
            let kept = pool.stats().total_bytes - pool.stats().free_bytes;
            assert!(
                (1..=16 * BLOCK_BYTES).contains(&kept),
                "{kept} bytes are at the drive"
            );
            slow[0].holds_back.store(false, Ordering::Relaxed);
            while pool.stats().free_bytes < pool.stats().total_bytes {
                reactor::yield_now().await;
            }
        })
        .expect("a reactor");
    }

    #[test]
    fn reads_get_on_though_all_memory_is_in_flight_when_a_drive_hangs() {
        all_memory_is_in_flight_when_a_drive_hangs(|drives, buffer, number| {
            Box::pin(async move {
                let mut groups = Vec::new();
                for at in 0..7 {
                    let drive = u16::from(at < 4);
                    let place = Place { drive, block: at };
                    add(&mut groups, place, at as usize * BLOCK_BYTES);
                }
                let (failed, buffer) = read(&drives, buffer, &groups).await;
                assert!(failed.len() == 1 && failed[0].0 == 0, "{failed:?}");
                assert_eq!(buffer.len(), 8 * BLOCK_BYTES);
                let (read, beside) = (&buffer[..4 * BLOCK_BYTES], &buffer[7 * BLOCK_BYTES..]);
                assert!(read.iter().all(|byte| *byte == 0), "what was read is there");
                assert!(
                    beside.iter().all(|byte| *byte == number as u8),
                    "what was not read to stays"
                );
            })
        });
    }

    #[test]
    fn writes_get_on_though_all_memory_is_in_flight_when_a_drive_hangs() {
        all_memory_is_in_flight_when_a_drive_hangs(|drives, buffer, number| {
            Box::pin(async move {
                let group = |drive| OfDrive {
                    drive,
                    extents: vec![GatherExtent {
                        block: 8 * (number % 4),
                        buffer: 0,
                        buffer_offset: 0,
                        blocks: 8,
                    }],
                };
                let (failed, buffers) = write(&drives, vec![buffer], &[group(0), group(1)]).await;
                assert!(failed.len() == 1 && failed[0].0 == 0, "{failed:?}");
                let buffer = buffers.first().expect("one went there");
                assert_eq!(buffer.len(), 8 * BLOCK_BYTES);
                assert!(
                    buffer.iter().all(|byte| *byte == number as u8),
                    "the data are there"
                );
            })
        });
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
