//! Reading, writing, flushing and discarding blocks by commands that the server takes.
//!
//! Guarantees: no command moves more than a slot has room for and the device takes in one segment; commands of one transfer
//! are in flight at the same time; a transfer ends when all of its commands have; a command that no server has seen is
//! given to the next connection; a read is repeated once where its connection was lost, a write or discard never.
//!
//! The server reads and writes data where they lie if it has that memory ([`Lent`] has the rule). Others are copied.

use std::cell::RefCell;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;

use drives::{
    BLOCK_BYTES, DriveError, ErrorKind, Extent, GatherExtent, Part, Piece, Transferred, pieces,
    runs_of_many, runs_of_one,
};
use futures_util::stream::{self, StreamExt};
use reactor::Buffer;

use crate::connection::Connection;
use crate::facts::SECTOR_BYTES;
use crate::lent::Lent;
use crate::link;
use crate::memory::{LARGE_BYTES, SEGMENTS_MAX};
use crate::queue::{Claimed, Kind, Loan, Segment};
use crate::shared::Shared;

/// Commands of one transfer that are in flight.
const COMMANDS_MAX: usize = 32;

/// Attempts of a command: one more where a connection was lost.
const ATTEMPTS: u32 = 2;

/// Sectors of one discard at most: 1 GiB, so that no command works for long.
const DISCARD_SECTORS_MAX: u64 = (1 << 30) / SECTOR_BYTES;

/// Statuses (`VIRTIO_BLK_S_`, VIRTIO 1.2, section 5.2.6).
const STATUS_OK: u8 = 0;
const STATUS_UNSUPPORTED: u8 = 2;

/// Bytes that one command moves.
fn piece_bytes(shared: &Shared) -> usize {
    let most = shared.facts().segment_bytes.min(LARGE_BYTES);
    most - most % BLOCK_BYTES
}

/// One command, without its data.
#[derive(Clone, Copy)]
struct Command {
    kind: Kind,
    /// First byte on the drive.
    at: u64,
    len: usize,
}

/// The data of a command.
#[derive(Clone, Copy)]
enum Data<'a> {
    Nothing,
    Bytes(&'a [u8]),
    /// Parts of the caller's buffers.
    Blocks(&'a Blocks<'a>, &'a [Part]),
}

/// The buffers of a transfer.
struct Blocks<'a> {
    /// What the server calls the first byte of a buffer, if it has the memory.
    address: &'a dyn Fn(&Connection, usize) -> Option<u64>,
    /// Copies the data of a write into the slot's own memory.
    fill: &'a dyn Fn(&Claimed, &[Part]),
    loan: &'a Loan,
}

impl Blocks<'_> {
    /// Where the parts lie for the server; nothing if one of them does not, or they are too many.
    fn segments(&self, connection: &Connection, parts: &[Part]) -> Option<Segments> {
        if let [part] = parts {
            return self.segment(connection, part).map(Segments::One);
        }
        let most = match connection.facts.has_indirect {
            true => connection.facts.segments.min(SEGMENTS_MAX),
            false => 1,
        };
        let mut segments: Vec<Segment> = Vec::with_capacity(parts.len().min(most));
        for part in parts {
            let count = segments.len();
            let next = self.segment(connection, part)?;
            match segments.last_mut() {
                // Together they are no longer than the data of a command, which fit a segment.
                Some(last) if last.address + u64::from(last.len) == next.address => {
                    last.len += next.len;
                }
                _ if count == most => return None,
                _ => segments.push(next),
            }
        }
        Some(Segments::Many(segments))
    }

    fn segment(&self, connection: &Connection, part: &Part) -> Option<Segment> {
        let address = (self.address)(connection, part.buffer)?;
        Some(Segment {
            address: address + part.offset as u64,
            len: part.len as u32,
        })
    }
}

/// Where data lie. That they lie in one place costs no memory.
enum Segments {
    One(Segment),
    Many(Vec<Segment>),
}

impl Segments {
    fn all(&self) -> &[Segment] {
        match self {
            Self::One(segment) => std::slice::from_ref(segment),
            Self::Many(segments) => segments,
        }
    }
}

/// A command that was done: its slot, and whether that has the data; else they are in the caller's buffers.
struct Done {
    claimed: Claimed,
    is_copied: bool,
}

/// Why a command has no good end.
enum Failed {
    /// The server was not asked.
    Unsent(DriveError),
    /// The server answered with an error.
    Refused(DriveError),
    /// The server was asked, and did not answer.
    Unanswered(DriveError),
}

impl Failed {
    /// Which of several failures counts: the greatest.
    fn weight(&self) -> u8 {
        match self {
            Self::Unsent(_) => 0,
            Self::Refused(_) => 1,
            Self::Unanswered(_) => 2,
        }
    }

    /// Of a command that changes nothing.
    fn into_error(self) -> DriveError {
        match self {
            Self::Unsent(error) | Self::Refused(error) | Self::Unanswered(error) => error,
        }
    }

    /// Of a command that changes the drive.
    fn into_error_of_change(self) -> DriveError {
        match self {
            Self::Unanswered(error) => error.in_doubt(),
            failed => failed.into_error(),
        }
    }
}

impl Command {
    /// Gives it to a server; to another one, if the first was not asked.
    async fn run(&self, shared: &Arc<Shared>, data: Data<'_>) -> Result<Done, Failed> {
        let mut attempt = 1;
        loop {
            match self.run_once(shared, data).await {
                Err(Failed::Unsent(_)) if attempt < ATTEMPTS => attempt += 1,
                result => return result,
            }
        }
    }

    async fn run_once(&self, shared: &Arc<Shared>, data: Data<'_>) -> Result<Done, Failed> {
        let connection = shared.connected().await.map_err(Failed::Unsent)?;
        let error = |text: &str| {
            let text = format!("{} failed: {text}", self.kind.what());
            shared.error(ErrorKind::Io, text)
        };
        let unsent = |_| Failed::Unsent(error(connection.why()));
        let (queue, user) = link::queue_of(shared, &connection)
            .map_err(|text| Failed::Unsent(shared.error(ErrorKind::Invalid, text)))?;
        let lent = match data {
            Data::Blocks(blocks, parts) => blocks.segments(&connection, parts),
            _ => None,
        };
        let is_copied = lent.is_none();
        let claimed = queue.claim(user, if is_copied { self.len } else { 0 });
        let claimed = claimed.await.map_err(unsent)?;
        let send = |segments: &[Segment], loan: Option<&Loan>| {
            claimed.send(self.kind, self.at / SECTOR_BYTES, segments, loan)
        };
        let sent = match (data, lent) {
            (Data::Nothing, _) => send(&[], None),
            (Data::Bytes(bytes), _) => {
                claimed.fill(0, bytes);
                send(&[claimed.own(self.len)], None)
            }
            (Data::Blocks(blocks, _), Some(segments)) => send(segments.all(), Some(blocks.loan)),
            (Data::Blocks(blocks, parts), None) => {
                (blocks.fill)(&claimed, parts);
                send(&[claimed.own(self.len)], None)
            }
        };
        sent.map_err(unsent)?;
        let status = claimed.answered().await;
        let status = status.map_err(|_| Failed::Unanswered(error(connection.why())))?;
        let text = match status {
            STATUS_OK => return Ok(Done { claimed, is_copied }),
            STATUS_UNSUPPORTED => "the device does not support it",
            _ => "the device reports an error; look into the server's log for the cause",
        };
        Err(Failed::Refused(error(text)))
    }
}

/// Runs a command for each piece, and returns when all have ended.
async fn each<'a, F>(pieces: &'a [Piece], run: impl Fn(&'a Piece) -> F) -> Result<(), Failed>
where
    F: Future<Output = Result<(), Failed>>,
{
    if let [piece] = pieces {
        return run(piece).await;
    }
    let mut commands = stream::iter(pieces).map(run).buffer_unordered(COMMANDS_MAX);
    let mut outcome: Result<(), Failed> = Ok(());
    while let Some(result) = commands.next().await {
        let so_far = outcome.as_ref().err().map(Failed::weight);
        if let Err(failed) = result
            && so_far.is_none_or(|weight| weight < failed.weight())
        {
            outcome = Err(failed);
        }
    }
    outcome
}

/// Reads all extents, which lie in the drive and in the buffer.
pub(crate) async fn read(
    shared: &Arc<Shared>,
    mut buffer: Buffer,
    extents: &[Extent],
) -> Transferred {
    let pieces = pieces(runs_of_one(extents), piece_bytes(shared));
    let mut attempt = 1;
    loop {
        let lent = Lent::new(shared, RefCell::new(buffer));
        let outcome = read_pieces(shared, &pieces, &lent).await;
        buffer = lent.give_back().await;
        match outcome {
            Err(Failed::Unanswered(_)) if attempt < ATTEMPTS => attempt += 1,
            outcome => return (outcome.map_err(Failed::into_error), buffer),
        }
    }
}

async fn read_pieces(
    shared: &Arc<Shared>,
    pieces: &[Piece],
    lent: &Lent<'_, RefCell<Buffer>>,
) -> Result<(), Failed> {
    let blocks = Blocks {
        address: &|connection, _| connection.address_of(&lent.get().borrow()),
        fill: &|_, _| {},
        loan: lent.loan(),
    };
    let blocks = &blocks;
    each(pieces, |piece| async move {
        let command = Command {
            kind: Kind::In,
            at: piece.at,
            len: piece.len,
        };
        let data = Data::Blocks(blocks, &piece.parts);
        let done = command.run(shared, data).await?;
        if done.is_copied {
            let mut buffer = lent.get().borrow_mut();
            let mut from = 0;
            for Part { offset, len, .. } in &piece.parts {
                done.claimed.take(from, &mut buffer[*offset..offset + len]);
                from += len;
            }
        }
        Ok(())
    })
    .await
}

/// Writes all extents, which lie in the drive and in the buffer.
pub(crate) async fn write(shared: &Arc<Shared>, buffer: Buffer, extents: &[Extent]) -> Transferred {
    let lent = Lent::new(shared, buffer);
    let (buffers, runs) = (std::slice::from_ref(lent.get()), runs_of_one(extents));
    let outcome = write_runs(shared, buffers, runs, lent.loan()).await;
    (outcome, lent.give_back().await)
}

/// Writes all extents, which lie in the drive and in the buffers.
pub(crate) async fn write_many(
    shared: &Arc<Shared>,
    buffers: Rc<Vec<Buffer>>,
    extents: &[GatherExtent],
) -> Result<(), DriveError> {
    let lent = Lent::new(shared, buffers);
    let runs = runs_of_many(extents);
    write_runs(shared, lent.get(), runs, lent.loan()).await
}

async fn write_runs(
    shared: &Arc<Shared>,
    buffers: &[Buffer],
    runs: impl Iterator<Item = (u64, Part)>,
    loan: &Loan,
) -> Result<(), DriveError> {
    let pieces = pieces(runs, piece_bytes(shared));
    let blocks = Blocks {
        address: &|connection, at| connection.address_of(&buffers[at]),
        fill: &|claimed, parts| {
            let mut to = 0;
            for part in parts {
                let bytes = &buffers[part.buffer][part.offset..part.offset + part.len];
                claimed.fill(to, bytes);
                to += part.len;
            }
        },
        loan,
    };
    let blocks = &blocks;
    let written = each(&pieces, |piece| async move {
        let command = Command {
            kind: Kind::Out,
            at: piece.at,
            len: piece.len,
        };
        command
            .run(shared, Data::Blocks(blocks, &piece.parts))
            .await?;
        shared.note_write();
        Ok(())
    });
    written.await.map_err(Failed::into_error_of_change)
}

/// Makes what was written durable. One command does it for all queues: a device has one cache (5.2.6.2).
pub(crate) async fn flush(shared: &Arc<Shared>) -> Result<(), DriveError> {
    shared.check_losses()?;
    if !shared.facts().has_cache {
        return Ok(());
    }
    let begun = shared.begin_flush();
    let command = Command {
        kind: Kind::Flush,
        at: 0,
        len: 0,
    };
    // Whether something was lost with an earlier connection is checked below.
    if let Err(failed) = command.run(shared, Data::Nothing).await {
        let error = failed.into_error();
        shared.note_failed_flush(&error);
        return Err(error);
    }
    shared.check_losses()?;
    shared.end_flush(begun);
    Ok(())
}

/// Says that nobody needs these blocks, where the device can be told.
pub(crate) async fn discard(
    shared: &Arc<Shared>,
    block: u64,
    blocks: u64,
) -> Result<(), DriveError> {
    let Some(limits) = shared.facts().discard else {
        return Ok(());
    };
    let per_block = BLOCK_BYTES as u64 / SECTOR_BYTES;
    let steps = discards(
        block * per_block,
        (block + blocks) * per_block,
        limits.alignment,
        limits
            .sectors
            .min(DISCARD_SECTORS_MAX.max(limits.alignment)),
    );
    for (sector, sectors) in steps {
        // One segment: first sector, sectors, flags (5.2.6).
        let mut segment = [0; 16];
        segment[..8].copy_from_slice(&sector.to_le_bytes());
        segment[8..12].copy_from_slice(&(sectors as u32).to_le_bytes());
        let command = Command {
            kind: Kind::Discard,
            at: 0,
            len: segment.len(),
        };
        let discarded = command.run(shared, Data::Bytes(&segment)).await;
        discarded.map_err(Failed::into_error_of_change)?;
        shared.note_write();
    }
    Ok(())
}

/// The parts of `first..end` that begin and end at multiples of `alignment`, of at most `most` sectors, which is no less than
/// that: first sector and sectors, which fit 32 bits as the device's limits do.
fn discards(first: u64, end: u64, alignment: u64, most: u64) -> impl Iterator<Item = (u64, u64)> {
    let most = most - most % alignment;
    let end = end - end % alignment;
    let mut next = first.div_ceil(alignment).saturating_mul(alignment);
    std::iter::from_fn(move || {
        let sectors = end.checked_sub(next).filter(|left| *left > 0)?.min(most);
        let step = (next, sectors);
        next += sectors;
        Some(step)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn discards_touch_whole_units_inside_of_the_range_only() {
        let all =
            |first, end, alignment, most| discards(first, end, alignment, most).collect::<Vec<_>>();
        assert_eq!(all(8, 32, 8, 16), [(8, 16), (24, 8)]);
        assert_eq!(all(8, 40, 16, 50), [(16, 16)]);
        assert_eq!(all(8, 16, 2048, 4096), []);
        assert_eq!(all(0, 96, 1, 40), [(0, 40), (40, 40), (80, 16)]);
        assert_eq!(all(1, 5, 3, 7), [(3, 0); 0]);
    }
}
