//! Reading, writing and deallocating blocks, and asking for their health, by commands that the target takes.
//!
//! Guarantees: no command moves more than the controller takes; commands of one transfer are in flight at the same time; a
//! transfer ends when all of its commands have; a read is repeated once where its association was lost; a write or discard
//! is repeated only where the target says that it did not happen.

use std::rc::Rc;
use std::sync::Arc;

use drives::{BLOCK_BYTES, DriveError, ErrorKind, Extent, Part, Transferred, pieces, runs_of_one};
use futures_util::stream::{self, StreamExt};
use initiator::{Error, Namespace};
use nvme::Status;
use nvme::log::{LogPage, SMART_LOG_BYTES, SmartLog};
use reactor::Buffer;

use crate::connect::Live;
use crate::fencing::is_conflict;
use crate::link::{self, Link};
use crate::shared::Shared;

/// Bytes of one command whose data is copied. More at a time is no faster, and needs larger buffers.
const PIECE_BYTES_MAX: usize = 128 << 10;

/// Commands of one transfer that are in flight.
const COMMANDS_MAX: usize = 32;

/// Attempts of a command: one more where an association was lost, or was replaced by a fence.
const ATTEMPTS: u32 = 2;

/// Blocks of one deallocation: 1 GiB, less than the 2^32 LBAs of a range.
const DISCARD_BLOCKS_MAX: u64 = (1 << 30) / BLOCK_BYTES as u64;

/// Bytes that one command with copied data moves.
fn piece_bytes(shared: &Shared) -> usize {
    let most = shared.facts().max_transfer.min(PIECE_BYTES_MAX);
    most - most % BLOCK_BYTES
}

/// Reads all extents, which lie in the drive and in the buffer.
pub(crate) async fn read(
    shared: &Arc<Shared>,
    mut buffer: Buffer,
    extents: &[Extent],
) -> Transferred {
    let link = match link::of(shared) {
        Ok(link) => link,
        Err(error) => return (Err(error), buffer),
    };
    // What fills the buffer goes straight into it.
    if let [extent] = extents
        && extent.buffer_offset == 0
        && extent.blocks as usize * BLOCK_BYTES == buffer.len()
        && (1..=shared.facts().max_transfer).contains(&buffer.len())
    {
        return read_into(shared, &link, extent.block * BLOCK_BYTES as u64, buffer).await;
    }
    let pieces = pieces(runs_of_one(extents), piece_bytes(shared));
    let mut reads = stream::iter(pieces)
        .map(|piece| {
            let link = &link;
            async move {
                let memory = link.buffers().alloc(piece.len).await;
                let (result, memory) = read_into(shared, link, piece.at, memory).await;
                (result, memory, piece.parts)
            }
        })
        .buffer_unordered(COMMANDS_MAX);
    let mut outcome = Ok(());
    while let Some((result, memory, parts)) = reads.next().await {
        match result {
            Err(error) => outcome = Err(error),
            Ok(()) => {
                let mut from = 0;
                for Part { offset, len, .. } in parts {
                    buffer[offset..offset + len].copy_from_slice(&memory[from..from + len]);
                    from += len;
                }
            }
        }
    }
    drop(reads);
    (outcome, buffer)
}

/// Fills a buffer.
async fn read_into(shared: &Arc<Shared>, link: &Link, at: u64, mut memory: Buffer) -> Transferred {
    let mut attempt = 1;
    loop {
        let live = match link.live(shared).await {
            Ok(live) => live,
            Err(error) => return (Err(error), memory),
        };
        let (result, back) = live.namespace.read(at, memory).await;
        memory = back;
        let Err(error) = result else {
            return (Ok(()), memory);
        };
        let is_lost = error.status().is_none();
        if is_lost {
            link.lose(shared, &live);
        }
        if !is_lost && !is_undone(shared, &live, &error) || attempt == ATTEMPTS {
            return (Err(failure(shared, "a read", &error)), memory);
        }
        attempt += 1;
    }
}

/// Writes all runs, which lie in the drive and in the buffers.
pub(crate) async fn write<'a>(
    shared: &Arc<Shared>,
    buffers: impl Fn(usize) -> &'a Buffer,
    runs: impl Iterator<Item = (u64, Part)>,
) -> Result<(), DriveError> {
    let link = link::of(shared)?;
    let pieces = pieces(runs, piece_bytes(shared));
    let buffers = &buffers;
    let mut writes = stream::iter(pieces)
        .map(|piece| {
            let link = &link;
            async move {
                let fill = |memory: &mut Buffer| {
                    let mut to = 0;
                    for Part {
                        buffer,
                        offset,
                        len,
                    } in &piece.parts
                    {
                        memory[to..to + len]
                            .copy_from_slice(&buffers(*buffer)[*offset..offset + len]);
                        to += len;
                    }
                };
                write_from(shared, link, piece.at, piece.len, fill).await
            }
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

async fn write_from(
    shared: &Arc<Shared>,
    link: &Link,
    at: u64,
    len: usize,
    fill: impl Fn(&mut Buffer),
) -> Result<(), DriveError> {
    let write = async |namespace: Namespace| {
        let mut memory = link.buffers().alloc(len).await;
        fill(&mut memory);
        namespace.write(at, memory, false).await.0
    };
    change(shared, link, "a write", write).await?;
    link.dirt().note_write();
    Ok(())
}

/// Says that nobody needs these blocks, where the controller can be told.
pub(crate) async fn discard(
    shared: &Arc<Shared>,
    block: u64,
    blocks: u64,
) -> Result<(), DriveError> {
    if !shared.facts().can_deallocate {
        return Ok(());
    }
    let link = link::of(shared)?;
    let end = block + blocks;
    let mut next = block;
    while next < end {
        let count = (end - next).min(DISCARD_BLOCKS_MAX);
        let (at, len) = (next * BLOCK_BYTES as u64, count * BLOCK_BYTES as u64);
        let trim = async |namespace: Namespace| namespace.trim(at, len).await;
        change(shared, &link, "a deallocation", trim).await?;
        next += count;
    }
    Ok(())
}

/// A command that changes the drive.
async fn change(
    shared: &Arc<Shared>,
    link: &Link,
    what: &str,
    command: impl AsyncFn(Namespace) -> Result<(), Error>,
) -> Result<(), DriveError> {
    let mut attempt = 1;
    loop {
        let live = link.live(shared).await?;
        let under_way = link.change();
        let Err(error) = command(live.namespace.clone()).await else {
            under_way.end();
            return Ok(());
        };
        let is_refused = matches!(error, Error::Range { .. });
        if error.status().is_none() && !is_refused {
            link.lose(shared, &live);
        }
        under_way.end();
        if error.status().is_none() {
            let failed = failure(shared, what, &error);
            return Err(if is_refused {
                failed
            } else {
                failed.in_doubt()
            });
        }
        if !is_undone(shared, &live, &error) || attempt == ATTEMPTS {
            let taken_over = match is_conflict(&error) {
                true => shared.conflict(&live.namespace).await,
                false => None,
            };
            return Err(taken_over.unwrap_or_else(|| failure(shared, what, &error)));
        }
        attempt += 1;
    }
}

/// What the target's controller tells of its health. A target that does not have the page says so by a status.
pub(crate) async fn smart_log(shared: &Arc<Shared>) -> Result<Option<SmartLog>, DriveError> {
    let link = link::of(shared)?;
    // By an association that may write too: it stays, and the next write takes it.
    let live = link.live(shared).await?;
    let told = live
        .controller
        .log_page(LogPage::Smart, 0, SMART_LOG_BYTES)
        .await;
    match told {
        Ok(page) => Ok(SmartLog::decode(&page)),
        Err(error) if error.status().is_some() => Ok(None),
        Err(error) => {
            link.lose(shared, &live);
            Err(failure(shared, "reading its health", &error))
        }
    }
}

/// Whether the target refused or aborted a command because a fence took the reservation of its association: by the next
/// one it may be repeated.
fn is_undone(shared: &Shared, live: &Rc<Live>, error: &Error) -> bool {
    let refused = [Status::RESERVATION_CONFLICT, Status::ABORT_REQUESTED];
    let is_refused = error
        .status()
        .is_some_and(|status| refused.contains(&status.code()));
    is_refused && live.generation != shared.state().generation
}

fn failure(shared: &Shared, what: &str, error: &Error) -> DriveError {
    let status = error.status().map(Status::code);
    let (kind, remedy) = match status {
        Some(Status::CAPACITY_EXCEEDED) => (ErrorKind::NoSpace, ""),
        Some(Status::RESERVATION_CONFLICT) => (
            ErrorKind::InUse,
            "; another host has reserved the namespace since: only one may use it",
        ),
        Some(_) => (ErrorKind::Io, "; look into the target's log for the cause"),
        None => (ErrorKind::Io, ""),
    };
    shared.error(kind, format!("{what} failed: {error}{remedy}"))
}
