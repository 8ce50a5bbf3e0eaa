//! Reading, writing and discarding blocks by operations on objects.
//!
//! Guarantees: what one transfer writes to one object goes there in one operation, as far as that has room; the operations of a
//! transfer are in flight at the same time; a transfer ends when all of them have; what a fence interrupted is done again by
//! the next client.

use std::borrow::Cow;
use std::ops::Deref;
use std::sync::Arc;

use drives::{BLOCK_BYTES, DriveError, Extent, Part, Transferred, runs_of_one};
use futures_util::stream::{self, StreamExt};
use reactor::Buffer;
use reactor::sync::Permit;

use crate::client::{Change, Client, Errno, Memory, Pending};
use crate::header::{OBJECT_BYTES, object_of};
use crate::shared::Shared;

/// Bytes of one operation at most (`osd_max_write_size` is 90 MiB): what a command of a host has.
const OPERATION_BYTES_MAX: usize = 1 << 20;

/// Operations of one transfer that are in flight.
const OPERATIONS_MAX: usize = 32;

/// Bytes that an operation without data counts for.
const PLAIN_BYTES: usize = BLOCK_BYTES;

/// Bytes that follow each other in an object, and where they are in the caller's buffers.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Run {
    at: u64,
    len: usize,
    parts: Vec<Part>,
}

/// What one operation moves: runs of one object.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Operation {
    pub(crate) object: u64,
    pub(crate) bytes: usize,
    runs: Vec<Run>,
}

impl Operation {
    /// What it writes, of these buffers: each write of an operation costs the cluster something, and a copy of what lies in several
    /// places less.
    pub(crate) fn gather<'a, B: Deref<Target = [u8]>>(
        &self,
        buffers: &'a [B],
    ) -> Vec<(u64, Cow<'a, [u8]>)> {
        let bytes_of = |part: &Part| &buffers[part.buffer][part.offset..part.offset + part.len];
        let gather = |run: &Run| match &run.parts[..] {
            [part] => (run.at, Cow::Borrowed(bytes_of(part))),
            parts => {
                let parts: Vec<&[u8]> = parts.iter().map(bytes_of).collect();
                (run.at, Cow::Owned(parts.concat()))
            }
        };
        self.runs.iter().map(gather).collect()
    }
}

/// Cuts what is to be moved into operations. `is_one_run`: of one run each, as reads have it.
pub(crate) fn operations(
    moved: impl Iterator<Item = (u64, Part)>,
    is_one_run: bool,
) -> Vec<Operation> {
    let mut all: Vec<Operation> = Vec::new();
    for (mut byte, mut part) in moved {
        while part.len > 0 {
            let (object, at) = (byte / OBJECT_BYTES, byte % OBJECT_BYTES);
            let follows = |run: &Run| run.at + run.len as u64 == at;
            let has_room = |last: &&mut Operation| {
                last.object == object
                    && last.bytes < OPERATION_BYTES_MAX
                    && (!is_one_run || last.runs.last().is_some_and(follows))
            };
            let operation = match all.last_mut().filter(has_room) {
                Some(operation) => operation,
                None => {
                    all.push(Operation {
                        object,
                        bytes: 0,
                        runs: Vec::new(),
                    });
                    let last = all.len() - 1;
                    &mut all[last]
                }
            };
            let in_object = usize::try_from(OBJECT_BYTES - at).unwrap_or(usize::MAX);
            let len = part
                .len
                .min(in_object)
                .min(OPERATION_BYTES_MAX - operation.bytes);
            let piece = Part { len, ..part };
            operation.bytes += len;
            match operation.runs.last_mut() {
                Some(run) if follows(run) => {
                    run.len += len;
                    run.parts.push(piece);
                }
                _ => operation.runs.push(Run {
                    at,
                    len,
                    parts: vec![piece],
                }),
            }
            byte += len as u64;
            part.offset += len;
            part.len -= len;
        }
    }
    all
}

/// Does one operation, again if a fence interrupted it.
pub(crate) async fn run<T>(
    shared: &Shared,
    bytes: usize,
    begin: impl Fn(&dyn Client, Permit) -> Pending<T>,
) -> Result<Result<T, Errno>, DriveError> {
    loop {
        let room = shared.room.acquire(bytes).await;
        let client = shared.client_for_transfer().await?;
        let ended = begin(&*client, room).await;
        match ended.unwrap_or(Err(Errno::ENDED)) {
            Err(Errno::SHUT_OUT) => shared.was_shut_out(&client).await,
            ended => return Ok(ended),
        }
    }
}

/// The first error, when all have ended.
async fn all<T>(
    transfers: impl Iterator<Item = impl Future<Output = Result<T, DriveError>>>,
    mut each: impl FnMut(T),
) -> Result<(), DriveError> {
    let mut transfers = stream::iter(transfers).buffer_unordered(OPERATIONS_MAX);
    let mut result: Result<(), DriveError> = Ok(());
    while let Some(ended) = transfers.next().await {
        match (ended, &result) {
            (Ok(value), _) => each(value),
            // What is in doubt counts more.
            (Err(error), Err(known)) if known.is_in_doubt() || !error.is_in_doubt() => {}
            (Err(error), _) => result = Err(error),
        }
    }
    result
}

/// What one operation reads, into memory of that length; what was never written is zeros. Again if a fence interrupted it. Without the
/// memory, if the client lost it.
async fn read_into(
    shared: &Shared,
    operation: &Operation,
    mut memory: Memory,
) -> (Result<(), DriveError>, Option<Memory>) {
    let name = object_of(&shared.drive, operation.object);
    let at = operation.runs.first().map_or(0, |run| run.at);
    loop {
        let room = shared.room.acquire(operation.bytes).await;
        let client = match shared.client_for_transfer().await {
            Ok(client) => client,
            Err(error) => return (Err(error), Some(memory)),
        };
        let Ok((read, filled)) = client.read(&name, at, memory, room).await else {
            return (Err(shared.failed(Errno::ENDED, false)), None);
        };
        memory = filled;
        let found = match read {
            Ok(found) => found,
            Err(Errno::SHUT_OUT) => {
                shared.was_shut_out(&client).await;
                continue;
            }
            Err(error) if error.is_missing() => 0,
            Err(error) => return (Err(shared.failed(error, false)), Some(memory)),
        };
        if let Some(unwritten) = memory.bytes().get_mut(found..) {
            unwritten.fill(0);
        }
        return (Ok(()), Some(memory));
    }
}

/// The operation, if it reads what fills a buffer of this length.
fn fills(operations: &[Operation], len: usize) -> Option<&Operation> {
    let [operation] = operations else {
        return None;
    };
    let is_whole = |part: &Part| part.offset == 0 && part.len == len;
    match &operation.runs[..] {
        [run] if matches!(&run.parts[..], [part] if is_whole(part)) => Some(operation),
        _ => None,
    }
}

pub(crate) async fn read(shared: &Arc<Shared>, buffer: Buffer, extents: &[Extent]) -> Transferred {
    // The cluster is asked for what is in memory too: it refuses an owner whose time is over.
    let overlay = shared.deferred.overlay(extents);
    let operations = operations(runs_of_one(extents), true);
    let (result, mut buffer) = match fills(&operations, buffer.len()) {
        Some(operation) => read_whole(shared, operation, buffer).await,
        None => read_pieces(shared, &operations, buffer).await,
    };
    overlay.put(&mut buffer);
    (result, buffer)
}

/// Straight into the buffer.
async fn read_whole(shared: &Shared, operation: &Operation, buffer: Buffer) -> Transferred {
    let (pool, len) = (buffer.pool(), buffer.len());
    match read_into(shared, operation, Memory::Buffer(buffer)).await {
        (result, Some(Memory::Buffer(buffer))) => (result, buffer),
        (result, _) => (result, pool.alloc(len).await),
    }
}

async fn read_pieces(shared: &Shared, operations: &[Operation], mut buffer: Buffer) -> Transferred {
    let reading = operations.iter().map(|operation| async move {
        let memory = Memory::Piece(vec![0; operation.bytes]);
        let (result, memory) = read_into(shared, operation, memory).await;
        result.map(|()| (operation, memory))
    });
    let result = all(reading, |(operation, memory)| {
        let Some(mut memory) = memory else { return };
        let mut found = &*memory.bytes();
        for part in operation.runs.iter().flat_map(|run| &run.parts) {
            let (bytes, rest) = found.split_at(part.len);
            buffer[part.offset..part.offset + part.len].copy_from_slice(bytes);
            found = rest;
        }
    })
    .await;
    (result, buffer)
}

pub(crate) async fn write<B: Deref<Target = [u8]>>(
    shared: &Arc<Shared>,
    buffers: &[B],
    moved: impl Iterator<Item = (u64, Part)>,
) -> Result<(), DriveError> {
    write_operations(shared, buffers, &operations(moved, false)).await
}

/// The same, of what was cut already.
pub(crate) async fn write_operations<B: Deref<Target = [u8]>>(
    shared: &Arc<Shared>,
    buffers: &[B],
    operations: &[Operation],
) -> Result<(), DriveError> {
    let writing = operations.iter().map(|operation| async move {
        let name = object_of(&shared.drive, operation.object);
        let begin = |client: &dyn Client, room| {
            let gathered = operation.gather(buffers);
            let changes = gathered.iter().map(|(at, data)| Change::Write(*at, data));
            client.change(&name, &changes.collect::<Vec<_>>(), room)
        };
        let written = run(shared, operation.bytes, begin).await?;
        written.map_err(|error| shared.failed(error, true))
    });
    all(writing, |()| ()).await
}

/// Zeros, or objects that go.
pub(crate) async fn discard(
    shared: &Arc<Shared>,
    block: u64,
    blocks: u64,
) -> Result<(), DriveError> {
    let (first, end) = (
        block * BLOCK_BYTES as u64,
        (block + blocks) * BLOCK_BYTES as u64,
    );
    let objects = first / OBJECT_BYTES..end.div_ceil(OBJECT_BYTES);
    let discarding = objects.map(|object| async move {
        let name = object_of(&shared.drive, object);
        let begins = object * OBJECT_BYTES;
        let (from, to) = (first.max(begins), end.min(begins + OBJECT_BYTES));
        let change = match to - from {
            OBJECT_BYTES if !shared.deferred.keeps(object).await => Change::Remove,
            bytes => Change::Zero(from - begins, bytes),
        };
        let begin = |client: &dyn Client, room| client.change(&name, &[change], room);
        match run(shared, PLAIN_BYTES, begin).await? {
            Err(error) if error.is_missing() => Ok(()),
            ended => ended.map_err(|error| shared.failed(error, true)),
        }
    });
    all(discarding, |()| ()).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(buffer: usize, offset: usize, len: usize) -> Part {
        Part {
            buffer,
            offset,
            len,
        }
    }

    fn lens(operations: &[Operation]) -> Vec<(u64, Vec<(u64, usize)>)> {
        let runs = |operation: &Operation| {
            let runs = operation.runs.iter();
            runs.map(|run| (run.at, run.len)).collect()
        };
        operations.iter().map(|it| (it.object, runs(it))).collect()
    }

    #[test]
    fn what_goes_to_one_object_is_one_operation_and_neighbours_are_one_run() {
        let moved = [
            (0, part(0, 0, 4096)),
            (4096, part(1, 0, 8192)),
            (65536, part(0, 4096, 4096)),
            (OBJECT_BYTES - 4096, part(2, 0, 8192)),
        ];
        let all = operations(moved.into_iter(), false);
        let last = OBJECT_BYTES - 4096;
        assert_eq!(
            lens(&all),
            [
                (0, vec![(0, 12288), (65536, 4096), (last, 4096)]),
                (1, vec![(0, 4096)])
            ]
        );
        assert_eq!(all[0].runs[0].parts, [part(0, 0, 4096), part(1, 0, 8192)]);
        assert_eq!(all[1].runs[0].parts, [part(2, 4096, 4096)]);
        let reads = operations(moved.into_iter(), true);
        let runs: Vec<usize> = reads.iter().map(|operation| operation.runs.len()).collect();
        assert_eq!(runs, [1, 1, 1, 1]);
    }

    #[test]
    fn no_operation_moves_more_than_it_may() {
        let all = operations([(0, part(0, 0, 3 << 20))].into_iter(), false);
        let bytes: Vec<usize> = all.iter().map(|operation| operation.bytes).collect();
        assert_eq!(bytes, [1 << 20, 1 << 20, 1 << 20]);
        assert!(operations([(0, part(0, 0, 0))].into_iter(), true).is_empty());
    }
}
