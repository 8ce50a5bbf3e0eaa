//! Copy: ranges of this and other namespaces, to consecutive blocks.
//!
//! Guarantees:
//! - All ranges are checked before the first block is copied; the announced limits on their number and lengths are
//!   enforced.
//! - No data are moved where the engine can map the existing blocks ([`dedup::Volume::copy`]), and
//!   never for a range that allows fast copies only.
//! - A copy can be aborted, and ends with its queue, between two slices. Dword 0 of the completion of a
//!   failed copy names the source range that was not copied.

use std::rc::Rc;

use dedup::SUB_BLOCK_BYTES;
use nvme::Status;
use nvme::io::{COPY_RANGE_BYTES, COPY_RANGES_MAX, CopyFormat, CopyRange};

use super::{damage, place_of, reach_volume, write_through};
use crate::admission::{Access, Place};
use crate::commands::admit::admit;
use crate::connected_queue::KnownVolume;
use crate::connected_queue::command::{Command, Fault, Outcome, Success};
use crate::latency::Operation;
use crate::queue::Queue;

/// Byte offset of dword 12, for the error log.
const FORMAT_AT: u16 = 49;

/// MSSRL: blocks of one source range at most.
pub(crate) const RANGE_BLOCKS_MAX: u16 = u16::MAX;
/// MSRC, zero based: source ranges at most.
pub(crate) const RANGES_MAX: u8 = (COPY_RANGES_MAX - 1) as u8;
/// Bytes of one Copy at most: they take some seconds where data have to be moved, and hosts wait that long.
const COPY_BYTES_MAX: u64 = 4 << 30;
/// Bytes that are copied between two checks for an abort.
const SLICE_BYTES: u64 = 16 << 20;

/// MCL: blocks of one Copy at most.
pub(crate) const fn copy_blocks_max(lba_bytes: u32) -> u32 {
    (COPY_BYTES_MAX / lba_bytes as u64) as u32
}

/// The command's fields.
pub(super) struct Ask {
    pub(super) nsid: u32,
    pub(super) slba: u64,
    pub(super) ranges: u16,
    pub(super) format: CopyFormat,
    pub(super) fua: bool,
}

/// A source range, and where it goes.
struct Part {
    source: Rc<KnownVolume>,
    from: Place,
    to: u64,
}

pub(super) async fn run<Q: Queue>(command: &Command<Q>, ask: Ask) -> Outcome {
    let target = reach_volume(command, ask.nsid, Access::Write).await?;
    let controller = &command.queue.controller;
    let enabled = controller.with_features(|features| features.copy_formats());
    if ask.format != CopyFormat::SameNamespace && enabled & ask.format.bit() == 0 {
        return Err(Fault::field(Status::INVALID_FIELD, FORMAT_AT));
    }
    let len = usize::from(ask.ranges) * COPY_RANGE_BYTES;
    command.check_data_room(len)?;
    let data = command.fetch(len).await?;
    let ranges = CopyRange::parse_list(&data, ask.ranges, ask.format)?;
    drop(data);
    let parts = check(command, &ask, &target, &ranges)?;
    for (number, part) in (0..).zip(&parts) {
        let copied = copy_part(command, &target, part).await;
        copied.map_err(|fault| fault.with_result(number))?;
    }
    if ask.fua || write_through(command) {
        target.volume.flush().await?;
    }
    command.done(&target, Operation::Copy, 0);
    Ok(Success::default())
}

/// The parts to be copied, if all of them can be.
fn check<Q: Queue>(
    command: &Command<Q>,
    ask: &Ask,
    target: &Rc<KnownVolume>,
    ranges: &[CopyRange],
) -> Result<Vec<Part>, Fault> {
    let too_much = Fault::from(Status::COMMAND_SIZE_LIMIT.with_dnr());
    let mut blocks = 0;
    for range in ranges {
        if range.blocks > u32::from(RANGE_BLOCKS_MAX) {
            return Err(too_much);
        }
        // At most 256 times 65536.
        blocks += range.blocks;
    }
    if blocks > copy_blocks_max(target.admission.lba_bytes) {
        return Err(too_much);
    }
    let whole = place_of(target, ask.slba, blocks)?;
    let mut to = whole.offset;
    let mut parts = Vec::with_capacity(ranges.len());
    for (number, range) in (0..).zip(ranges) {
        let part = check_range(command, ask, (target, whole), range, to);
        let part = part.map_err(|fault| fault.with_result(number))?;
        to += part.from.len;
        parts.push(part);
    }
    Ok(parts)
}

fn check_range<Q: Queue>(
    command: &Command<Q>,
    ask: &Ask,
    (target, whole): (&Rc<KnownVolume>, Place),
    range: &CopyRange,
    to: u64,
) -> Result<Part, Fault> {
    let nsid = match ask.format {
        CopyFormat::SameNamespace => ask.nsid,
        CopyFormat::AnyNamespace => range.nsid,
    };
    let source = admit(command, nsid, Access::Read)?;
    if source.admission.lba_bytes != target.admission.lba_bytes {
        return Err(Status::INCOMPATIBLE_NAMESPACE.with_dnr().into());
    }
    let from = place_of(&source, range.slba, range.blocks)?;
    let is_same = source.volume.info().id == target.volume.info().id;
    if is_same && from.offset < whole.offset + whole.len && whole.offset < from.offset + from.len {
        return Err(Status::OVERLAPPING_IO_RANGE.with_dnr().into());
    }
    let grain = SUB_BLOCK_BYTES as u64;
    let is_fast = from.offset.is_multiple_of(grain)
        && to.is_multiple_of(grain)
        && from.len.is_multiple_of(grain)
        && target.volume.shares_with(&source.volume);
    if range.fast_only && !is_fast {
        return Err(Status::FAST_COPY_NOT_POSSIBLE.with_dnr().into());
    }
    Ok(Part { source, from, to })
}

async fn copy_part<Q: Queue>(
    command: &Command<Q>,
    target: &KnownVolume,
    part: &Part,
) -> Result<(), Fault> {
    let Part { source, from, to } = part;
    let mut done = 0;
    while done < from.len {
        // Slices end between sub-blocks of the source.
        let first = from.offset + done;
        let end = (first - first % SLICE_BYTES + SLICE_BYTES).min(from.offset + from.len);
        let copy = target.volume.copy(
            to + done,
            &source.volume,
            first,
            end - first,
            &command.queue.buffers,
        );
        copy.await.map_err(|error| damage(error, source, first))?;
        done = end - from.offset;
        command.abortable(reactor::yield_now()).await?;
    }
    Ok(())
}
