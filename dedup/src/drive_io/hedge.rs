//! Reads of one drive. What takes long is read from another copy too, and the first answer counts.
//!
//! Guarantees:
//! - What of a buffer is not read to stays as it was, also if a drive has the buffer still.
//! - A read that another copy answered goes on until the drive has answered or is left: a drive that hangs does not stay unnoticed.
//! - Other copies are asked for so many reads at the same time at most, and none of these waits for memory. A drive that owes an
//!   answer which another copy gave is not read before it has given it, if there is another one; and what it owes counts for
//!   the bytes that it may have at the same time.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use drives::{Answer, BLOCK_BYTES, BoundedDrive, DriveError, Extent};
use futures_util::future::{Either, select};
use reactor::Buffer;

use crate::drive_io::drive_list::DriveList;
use crate::drive_io::read_times::{ReadTimes, Timed};

/// A read is hedged when it takes so many times as long as another copy usually does.
const PATIENCE_FACTOR: u32 = 8;

/// Other copies of what a drive is asked for.
pub(crate) trait Elsewhere {
    /// How long a read of another copy takes; `None` if there is none.
    fn mean(&self) -> Option<Duration>;

    /// Another drive that has all that this one is asked for in these bytes of the command's buffer, and what to ask it for, with
    /// offsets from their beginning.
    fn find(&self, drive: u16, bytes: Range<usize>) -> Option<(u16, Vec<Extent>)>;
}

/// A part of a command's buffer, and where else its content is.
#[derive(Clone, Copy)]
pub(crate) struct Part<'a> {
    /// Where it begins in the buffer, in bytes.
    pub(crate) begins: usize,
    /// `None`: nobody else is asked.
    pub(crate) elsewhere: Option<&'a dyn Elsewhere>,
}

/// What became of a command's buffer, or of a part of it.
pub(crate) enum Filled {
    /// It is here, or another one that took its place.
    Here(Buffer),
    /// A drive that was left has it.
    Left {
        /// What of it was not read to.
        beside: Beside,
        len: usize,
    },
}

impl Filled {
    /// How long the buffer is.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Here(buffer) => buffer.len(),
            Self::Left { len, .. } => *len,
        }
    }

    /// What of its content counts, with its offsets from the beginning.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = (usize, &[u8])> {
        let (here, beside) = match self {
            Self::Here(buffer) => (Some((0, &buffer[..])), &[][..]),
            Self::Left { beside, .. } => (None, &beside.pages[..]),
        };
        let beside = beside.iter().map(|(at, page)| (*at, &page[..]));
        here.into_iter().chain(beside)
    }
}

/// Reads extents of a drive to a buffer, or to another one that takes its place.
pub(crate) async fn read_one(
    drives: &DriveList,
    index: u16,
    buf: Buffer,
    extents: &[Extent],
    part: Part<'_>,
) -> (Option<(u16, DriveError)>, Filled) {
    let Some(drive) = drives.get(index.into()) else {
        return (Some((index, no_drive())), Filled::Here(buf));
    };
    // Only a drive that may be left keeps buffers; and without a reactor there is no clock.
    let bounded = drives.get_bounded(index.into());
    let Some(drive) = bounded.filter(|_| reactor::current().is_some()) else {
        let (result, buf) = drive.read(buf, extents).await;
        return (result.err().map(|error| (index, error)), Filled::Here(buf));
    };
    let (beside, len) = (Beside::of(&buf, extents), buf.len());
    let asked = Asked {
        drives,
        index,
        drive,
        extents,
    };
    match asked.read(buf, part).await {
        Ok((result, mut buf)) => {
            beside.put_back(&mut buf);
            (result.err().map(|error| (index, error)), Filled::Here(buf))
        }
        Err(error) => (Some((index, error)), Filled::Left { beside, len }),
    }
}

pub(crate) fn no_drive() -> DriveError {
    let text = "no segment of the pool has this data block";
    DriveError::new(drives::ErrorKind::Invalid, "?", text)
}

/// A drive that is asked for extents.
struct Asked<'a> {
    drives: &'a DriveList,
    index: u16,
    drive: &'a Arc<BoundedDrive>,
    extents: &'a [Extent],
}

impl Asked<'_> {
    async fn read(self, buf: Buffer, part: Part<'_>) -> Answer {
        let times = self.drives.read_times(self.index);
        let timed = times.map(|times| times.begin(reactor::recently()));
        let end = |timed: Option<Timed>| {
            if let Some(timed) = timed {
                timed.end(reactor::now());
            }
        };
        let patience = part
            .elsewhere
            .and_then(|others| Some((others, others.mean()?)));
        let patience = patience.and_then(|(others, mean)| Some((others, self.patience(mean)?)));
        let Some((others, patience)) = patience else {
            let answer = self.drive.read_or_leave(buf, self.extents).await;
            end(timed);
            return answer;
        };
        let (pool, len) = (buf.pool(), buf.len());
        let first = match self.drive.begin_read(buf, self.extents, patience).await {
            Ok(answer) => {
                end(timed);
                return answer;
            }
            Err(first) => Box::pin(async move {
                let answer = first.await;
                end(timed);
                answer
            }),
        };
        let hedge = || {
            let permit = self.drives.hedges.begin()?;
            let (other, extents) = others.find(self.index, part.begins..part.begins + len)?;
            let drive = self.drives.get(other.into())?;
            Some((permit, other, drive, extents, pool.try_alloc(len)?))
        };
        let Some((_permit, other, other_drive, extents, buffer)) = hedge() else {
            return first.await;
        };
        match select(first, other_drive.read(buffer, &extents)).await {
            Either::Left((answer, _)) => answer,
            Either::Right(((Ok(()), buffer), first)) => {
                let owed = times.map(ReadTimes::owe);
                let (suspects, index) = (self.drives.suspects.clone(), self.index);
                reactor::spawn(async move {
                    if let Err(error) = first.await.and_then(|(result, _)| result) {
                        suspects.add_error(index, error);
                    }
                    drop(owed);
                });
                Ok((Ok(()), buffer))
            }
            Either::Right(((Err(error), buffer), first)) => {
                drop(buffer);
                self.drives.suspects.add_error(other, error);
                first.await
            }
        }
    }

    /// How long the drive may take until another copy is asked, where a read of that takes so long. `None`: as long as it takes.
    fn patience(&self, mean: Duration) -> Option<Duration> {
        let (hedge_after, answer_max) = self.drives.patience()?;
        let usual = mean.saturating_mul(PATIENCE_FACTOR).max(hedge_after);
        Some(usual.min(answer_max))
    }
}

/// What of a buffer is not read to. A drive that is left keeps the buffer, and this goes to the one that takes its place.
pub(crate) struct Beside {
    /// Bytes from the buffer's start, and what is there.
    pages: Vec<(usize, Vec<u8>)>,
}

impl Beside {
    /// Mostly there is nothing.
    fn of(buf: &[u8], extents: &[Extent]) -> Self {
        let bytes = |extent: &Extent| extent.blocks as usize * BLOCK_BYTES;
        let mut pages = Vec::new();
        if extents.iter().map(bytes).sum::<usize>() < buf.len() {
            let ranges: Vec<_> = extents
                .iter()
                .map(|extent| extent.buffer_offset..extent.buffer_offset + bytes(extent))
                .collect();
            for (at, page) in (0..).step_by(BLOCK_BYTES).zip(buf.chunks(BLOCK_BYTES)) {
                if !ranges.iter().any(|range| range.contains(&at)) {
                    pages.push((at, page.to_vec()));
                }
            }
        }
        Self { pages }
    }

    fn put_back(self, buf: &mut [u8]) {
        for (at, page) in self.pages {
            if let Some(place) = buf.get_mut(at..at + page.len()) {
                place.copy_from_slice(&page);
            }
        }
    }
}
