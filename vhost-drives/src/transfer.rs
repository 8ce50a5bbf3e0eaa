//! Reading, writing, flushing and discarding blocks by commands that the server takes.
//!
//! Guarantees: no command moves more than a slot has room for and the device takes in one segment; commands of one transfer
//! are in flight at the same time; a transfer ends when all of its commands have; a command that no server has seen is
//! given to the next connection; a read is repeated once where its connection was lost, a write or discard never.

use std::sync::Arc;

use drives::{BLOCK_BYTES, DriveError, ErrorKind, Extent, Part, Transferred, pieces, runs_of_one};
use futures_util::stream::{self, StreamExt};
use reactor::Buffer;

use crate::connection::Ending;
use crate::facts::SECTOR_BYTES;
use crate::link;
use crate::memory::LARGE_BYTES;
use crate::queue::{Claimed, Kind};
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

/// Why a command has no good end.
enum Failed {
    /// The server was not asked.
    Unsent(DriveError),
    /// The server was asked, and did not answer.
    Unanswered(DriveError),
    /// The server answered with an error.
    Refused(DriveError),
}

impl Failed {
    fn into_error(self) -> DriveError {
        match self {
            Self::Unsent(error) | Self::Unanswered(error) | Self::Refused(error) => error,
        }
    }
}

impl Command {
    fn what(&self) -> &'static str {
        match self.kind {
            Kind::In => "a read",
            Kind::Out => "a write",
            Kind::Flush => "a flush",
            Kind::Discard => "a discard",
            Kind::GetId => "a question for the name",
        }
    }

    /// Gives it to the server once.
    async fn run(&self, shared: &Arc<Shared>, fill: impl Fn(&Claimed)) -> Result<Claimed, Failed> {
        let connection = shared.connected().await.map_err(Failed::Unsent)?;
        let error =
            |text: String| shared.error(ErrorKind::Io, format!("{} failed: {text}", self.what()));
        let unsent = |_| Failed::Unsent(error(connection.why().to_owned()));
        let queue = link::queue_of(shared, &connection)
            .map_err(|text| Failed::Unsent(shared.error(ErrorKind::Invalid, text)))?;
        let claimed = queue.claim(self.len).await.map_err(unsent)?;
        fill(&claimed);
        let sent = claimed.send(self.kind, self.at / SECTOR_BYTES, self.len);
        sent.map_err(unsent)?;
        let limit = shared.limits.command;
        let answered = reactor::timeout(limit, claimed.answered()).await;
        let status = match answered {
            Ok(Ok(status)) => status,
            Ok(Err(_)) => return Err(Failed::Unanswered(error(connection.why().to_owned()))),
            Err(_) => {
                let ending = Ending {
                    text: format!("the server did not answer {} within {limit:?}", self.what()),
                    is_lie: false,
                };
                shared.lose(&connection, ending);
                return Err(Failed::Unanswered(error(connection.why().to_owned())));
            }
        };
        let text = match status {
            STATUS_OK => return Ok(claimed),
            STATUS_UNSUPPORTED => "the device does not support it",
            _ => "the device reports an error; look into the server's log for the cause",
        };
        Err(Failed::Refused(error(text.to_owned())))
    }
}

/// Reads all extents, which lie in the drive and in the buffer.
pub(crate) async fn read(
    shared: &Arc<Shared>,
    mut buffer: Buffer,
    extents: &[Extent],
) -> Transferred {
    let pieces = pieces(runs_of_one(extents), piece_bytes(shared));
    let mut reads = stream::iter(pieces)
        .map(|piece| async move { (read_piece(shared, piece.at, piece.len).await, piece.parts) })
        .buffer_unordered(COMMANDS_MAX);
    let mut outcome = Ok(());
    while let Some((result, parts)) = reads.next().await {
        match result {
            Err(error) => outcome = Err(error),
            Ok(claimed) => {
                let mut from = 0;
                for Part { offset, len, .. } in parts {
                    claimed.take(from, &mut buffer[offset..offset + len]);
                    from += len;
                }
            }
        }
    }
    drop(reads);
    (outcome, buffer)
}

async fn read_piece(shared: &Arc<Shared>, at: u64, len: usize) -> Result<Claimed, DriveError> {
    let command = Command {
        kind: Kind::In,
        at,
        len,
    };
    let mut attempt = 1;
    loop {
        match command.run(shared, |_| {}).await {
            Ok(claimed) => return Ok(claimed),
            Err(Failed::Unsent(_) | Failed::Unanswered(_)) if attempt < ATTEMPTS => attempt += 1,
            Err(failed) => return Err(failed.into_error()),
        }
    }
}

/// A command that changes the drive.
async fn change(
    shared: &Arc<Shared>,
    command: Command,
    fill: impl Fn(&Claimed),
) -> Result<(), DriveError> {
    let mut attempt = 1;
    loop {
        match command.run(shared, &fill).await {
            Ok(_) => return Ok(()),
            Err(Failed::Unsent(_)) if attempt < ATTEMPTS => attempt += 1,
            Err(Failed::Unanswered(error)) => return Err(error.in_doubt()),
            Err(failed) => return Err(failed.into_error()),
        }
    }
}

/// Writes all runs, which lie in the drive and in the buffers.
pub(crate) async fn write<'a>(
    shared: &Arc<Shared>,
    buffers: impl Fn(usize) -> &'a Buffer,
    runs: impl Iterator<Item = (u64, Part)>,
) -> Result<(), DriveError> {
    let pieces = pieces(runs, piece_bytes(shared));
    let buffers = &buffers;
    let mut writes = stream::iter(pieces)
        .map(|piece| async move {
            let fill = |claimed: &Claimed| {
                let mut to = 0;
                for part in &piece.parts {
                    let bytes = &buffers(part.buffer)[part.offset..part.offset + part.len];
                    claimed.fill(to, bytes);
                    to += part.len;
                }
            };
            let command = Command {
                kind: Kind::Out,
                at: piece.at,
                len: piece.len,
            };
            change(shared, command, fill).await?;
            shared.note_write();
            Ok(())
        })
        .buffer_unordered(COMMANDS_MAX);
    let mut outcome: Result<(), DriveError> = Ok(());
    while let Some(result) = writes.next().await {
        // One in doubt says more than one that is not.
        if let Err(error) = result
            && !outcome.as_ref().is_err_and(DriveError::is_in_doubt)
        {
            outcome = Err(error);
        }
    }
    outcome
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
    let mut attempt = 1;
    loop {
        match command.run(shared, |_| {}).await {
            Ok(_) => break,
            // Whether something was lost with the connection is checked below.
            Err(Failed::Unsent(_)) if attempt < ATTEMPTS => attempt += 1,
            Err(failed) => {
                let error = failed.into_error();
                shared.note_failed_flush(&error);
                return Err(error);
            }
        }
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
        change(shared, command, |claimed| claimed.fill(0, &segment)).await?;
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
