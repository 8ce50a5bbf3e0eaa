//! Fused operations: Compare and Write as one (NVM Command Set 1.0, section 2.1.1).
//!
//! Guarantees:
//! - The two commands are fused only if they are next to each other in the same queue, the first before the second. A
//!   command without its partner is aborted, and changes nothing.
//! - No command reads or changes the range between the comparison and the write: the engine locks it once for both.
//! - If the first fails, the second is not executed. They are answered in order.
//! - A first command waits for its second for a bounded time.

use std::time::Duration;

use nvme::Status;
use nvme::io::{IoCommand, LbaRange, OPCODE_COMPARE};
use reactor::Buffer;

use super::{NLB_AT, SLBA_AT, damage, place_of, write_through};
use crate::admission::Access;
use crate::commands::admit::admit;
use crate::connected_queue::command::{Command, Fault, Outcome, Success};
use crate::latency::Operation;
use crate::queue::Queue;

/// Values of the FUSE field.
const ALONE: u8 = 0;
const FIRST: u8 = 1;
const SECOND: u8 = 2;

/// How long a first command waits for its second, which its host has sent at the same time: longer than
/// lost packets delay one.
pub(crate) const SECOND_TIMEOUT: Duration = Duration::from_secs(5);

/// What a worker runs.
pub(crate) enum Work<Q: Queue> {
    /// A single command.
    One(Command<Q>),
    /// The two of a fused operation.
    Both(Box<(Command<Q>, Command<Q>)>),
}

/// What to run when a command arrives; the first one of two is kept in `held` until the next arrives.
pub(crate) fn next<Q: Queue>(
    held: &mut Option<Command<Q>>,
    command: Command<Q>,
) -> Option<Work<Q>> {
    let first = held.take();
    if first.is_none() && command.sqe().fuse() == ALONE {
        return Some(Work::One(command));
    }
    let fuse = command.sqe().fuse();
    // Before the host has authenticated, fused commands are refused like others.
    let admitted = command.queue.auth.admits(command.sqe());
    match first {
        Some(first) if fuse == SECOND && admitted => {
            return Some(Work::Both(Box::new((first, command))));
        }
        Some(first) => miss(first),
        None => {}
    }
    match fuse {
        // Any other first command is refused at once, as a wrong field.
        FIRST if admitted && can_begin(&command) => *held = Some(command),
        SECOND if admitted && command.queue.handle.qid != 0 => miss(command),
        _ => return Some(Work::One(command)),
    }
    None
}

/// The second command has not arrived in time.
pub(crate) fn give_up<Q: Queue>(held: &mut Option<Command<Q>>) {
    held.take().into_iter().for_each(miss);
}

fn miss<Q: Queue>(command: Command<Q>) {
    command.answer(Err(Status::MISSING_FUSED.with_dnr().into()));
}

fn can_begin<Q: Queue>(command: &Command<Q>) -> bool {
    let queue = &command.queue;
    queue.handle.qid != 0 && command.sqe().opcode() == OPCODE_COMPARE && queue.controller.is_ready()
}

/// Works on both commands until they are answered.
pub(crate) async fn run<Q: Queue>(first: Command<Q>, second: Command<Q>) {
    let failed = || Err(Status::FAILED_FUSED.with_dnr().into());
    let (compared, written): (Outcome, Outcome) = match compare_and_write(&first, &second).await {
        Ok(true) => (Ok(Success::default()), Ok(Success::default())),
        Ok(false) => (Err(Status::COMPARE_FAILURE.with_dnr().into()), failed()),
        Err(Failed::First(fault)) => (Err(fault), failed()),
        Err(Failed::Second(fault)) => (failed(), Err(fault)),
        Err(Failed::Fields) => {
            let fault = Fault::field(Status::INVALID_FIELD, SLBA_AT);
            (Err(fault), Err(fault))
        }
    };
    first.answer(compared);
    second.answer(written);
}

/// Why nothing was written.
enum Failed {
    /// The comparison could not be made.
    First(Fault),
    /// The write could not.
    Second(Fault),
    /// They are not Compare and Write of the same blocks.
    Fields,
}

async fn compare_and_write<Q: Queue>(
    first: &Command<Q>,
    second: &Command<Q>,
) -> Result<bool, Failed> {
    let parse = |command: &Command<Q>| IoCommand::parse(&command.sqe().with_fuse(ALONE));
    let compare = parse(first).map_err(|status| Failed::First(status.into()))?;
    let write = parse(second).map_err(|status| Failed::Second(status.into()))?;
    let (nsid, range, fua) = match (compare, write) {
        (
            IoCommand::Compare { nsid, range },
            IoCommand::Write {
                nsid: other,
                range: written,
                fua,
            },
        ) if (nsid, range) == (other, written) => (nsid, range, fua),
        _ => return Err(Failed::Fields),
    };
    let volume = admit(first, nsid, Access::Read).map_err(Failed::First)?;
    admit(second, nsid, Access::Write).map_err(Failed::Second)?;
    let LbaRange { slba, blocks } = range;
    let place = place_of(&volume, slba, blocks).map_err(Failed::First)?;
    let len = usize::try_from(place.len)
        .ok()
        .filter(|&len| len <= first.queue.target.limits.transfer_bytes_max())
        .ok_or(Failed::First(Fault::field(Status::INVALID_FIELD, NLB_AT)))?;
    first.check_data_len(len).map_err(Failed::First)?;
    second.check_data_len(len).map_err(Failed::Second)?;
    if !volume.throttles.is_empty() {
        let both = 2 * len as u64;
        let held = first.hold_back(&volume.throttles, both).await;
        held.map_err(Failed::First)?;
        // What may be done to the volume may be otherwise by now.
        let again = admit(first, nsid, Access::Read).map_err(Failed::First)?;
        admit(second, nsid, Access::Write).map_err(Failed::Second)?;
        place_of(&again, slba, blocks).map_err(Failed::First)?;
    }
    let (one, other) = two_buffers(first, len).await.map_err(Failed::First)?;
    let expected = first.fetch_into(len, one).await.map_err(Failed::First)?;
    let new = second
        .fetch_into(len, other)
        .await
        .map_err(Failed::Second)?;
    let fua = fua || write_through(second);
    let written = volume
        .volume
        .compare_and_write(place.offset, &expected, &new, fua)
        .await;
    let is_equal = written.map_err(|error| Failed::First(damage(error, &volume, place.offset)))?;
    if is_equal {
        first.done(&volume, Operation::Compare, 0);
        second.done(&volume, Operation::Write, len as u64);
    }
    Ok(is_equal)
}

/// Two buffers of that length. A command does not wait for the second while it holds the first: several that did would
/// wait for each other.
async fn two_buffers<Q: Queue>(
    command: &Command<Q>,
    len: usize,
) -> Result<(Buffer, Buffer), Fault> {
    loop {
        let one = command.buffer(len).await?;
        if let Some(other) = command.queue.buffers.try_alloc(len) {
            return Ok((one, other));
        }
        drop(one);
        command.abortable(reactor::yield_now()).await?;
    }
}
