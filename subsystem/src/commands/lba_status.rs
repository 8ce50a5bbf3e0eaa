//! Get LBA Status: the blocks of a namespace that cannot be read.
//!
//! Guarantees: a host learns only of its own namespaces; a scan reads in slices, between which it can be aborted; the
//! answer fits the host's buffer, and says whether there is more.

use dedup::{ErrorKind, SUB_BLOCK_BYTES};
use nvme::Status;
use nvme::lba_status::{GetLbaStatus, LbaStatusAction, LbaStatusList, LbaStatusRange};

use super::admit::seen;
use crate::connected_queue::KnownVolume;
use crate::connected_queue::command::{Command, Fault, Outcome};
use crate::queue::Queue;

/// Byte offsets in the command, for the error log.
const SLBA_AT: u16 = 40;
const MNDW_AT: u16 = 48;
const ATYPE_AT: u16 = 55;

/// Bytes that are read between two checks for an abort.
const SLICE_BYTES: u64 = 16 << 20;

/// Runs Get LBA Status.
pub(crate) async fn run<Q: Queue>(command: &Command<Q>, get: GetLbaStatus) -> Outcome {
    let action = LbaStatusAction::from_u8(get.action)
        .ok_or(Fault::field(Status::INVALID_FIELD, ATYPE_AT))?;
    let asked = usize::try_from(get.length)
        .ok()
        .filter(|&asked| asked <= command.queue.target.limits.transfer_bytes_max())
        .ok_or(Fault::field(Status::INVALID_FIELD, MNDW_AT))?;
    command.check_data_room(LbaStatusList::BYTES_MIN)?;
    // A host that asks for more than it has room for gets what fits.
    let room = asked.min(command.data_len()?);
    let volume = seen(command, get.nsid)?;
    let (offset, len) =
        place(&volume, &get).ok_or(Fault::field(Status::LBA_OUT_OF_RANGE, SLBA_AT))?;
    if action == LbaStatusAction::Scan {
        scan(command, &volume, offset, len).await?;
    }
    let fitting = LbaStatusList::fitting(room);
    let found = volume.volume.unreadable(offset, len, fitting).await?;
    let lba_bytes = u64::from(volume.admission.lba_bytes);
    let within = |(first, bytes): &(u64, u64)| {
        let (start, end) = (offset.max(*first), (offset + len).min(first + bytes));
        LbaStatusRange {
            slba: start / lba_bytes,
            // As many damaged blocks as are remembered fit.
            blocks: u32::try_from((end - start) / lba_bytes).unwrap_or(u32::MAX),
        }
    };
    let list = LbaStatusList {
        ranges: found.ranges.iter().map(within).collect(),
        has_more: found.has_more,
    };
    let bytes = list.encode();
    command.send(&bytes, room).await
}

/// The bytes that are asked for, if they begin inside.
fn place(volume: &KnownVolume, get: &GetLbaStatus) -> Option<(u64, u64)> {
    let lba_bytes = u64::from(volume.admission.lba_bytes);
    let left = (volume.admission.size_bytes / lba_bytes).checked_sub(get.slba)?;
    let blocks = match u64::from(get.blocks) {
        0 => left,
        blocks => blocks,
    };
    (0 < blocks && blocks <= left).then_some((get.slba * lba_bytes, blocks * lba_bytes))
}

/// Reads the range, so that what is damaged there is known.
async fn scan<Q: Queue>(
    command: &Command<Q>,
    volume: &KnownVolume,
    offset: u64,
    len: u64,
) -> Result<(), Fault> {
    let grain = SUB_BLOCK_BYTES as u64;
    let (mut at, end) = (offset, offset + len);
    while at < end {
        let slice = (end - at).min(SLICE_BYTES);
        at = match volume.volume.verify(at, slice).await {
            Ok(()) => at + slice,
            Err(error) if error.kind == ErrorKind::Corrupt => {
                // Behind the first one that is damaged there may be others.
                let damaged = error.offset.unwrap_or(at).max(at);
                (damaged - damaged % grain).saturating_add(grain)
            }
            Err(error) => return Err(error.into()),
        };
        command.abortable(reactor::yield_now()).await?;
    }
    Ok(())
}
