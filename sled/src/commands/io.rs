//! I/O commands on namespaces: the drives.
//!
//! Guarantees:
//! - No command reaches blocks outside of a drive, or with another length than its blocks have; the sums cannot wrap.
//! - Data go between the transport's buffer and the drive, and are copied by nobody.
//! - No command touches a drive that another host's reservation keeps its host from.
//! - A write is answered when the drive has it; with FUA, or with the write cache switched off, when it survives a loss of
//!   power.

use nvme::Status;
use nvme::identify::NSID_BROADCAST;
use nvme::io::{DSM_RANGE_BYTES, DsmRange, IoCommand, LbaRange};
use nvme::node_table::NodeTableCommand;
use nvme::reservation::ReservationCommand;
use reservations::Access;

use super::{node_table, reservation};
use crate::export::{Export, bytes_of};
use crate::limits::TRANSFER_BYTES_MAX;
use crate::queue::{Command, Fault, Outcome, Success};

/// Byte offsets in the command, for the error log.
const NSID_AT: u16 = 4;
const SLBA_AT: u16 = 40;
const NLB_AT: u16 = 48;

/// Runs an I/O command.
pub(crate) async fn run(command: &Command) -> Outcome {
    if let Some(asked) = ReservationCommand::parse(command.sqe()) {
        return reservation::run(command, asked?).await;
    }
    if let Some(asked) = NodeTableCommand::parse(command.sqe()) {
        return node_table::run(command, asked?).await;
    }
    match IoCommand::parse(command.sqe())? {
        IoCommand::Read { nsid, range, fua } => read(command, nsid, range, fua).await,
        IoCommand::Write { nsid, range, fua } => write(command, nsid, range, fua).await,
        IoCommand::Flush { nsid } => flush(command, nsid).await,
        IoCommand::WriteZeroes {
            nsid, range, fua, ..
        } => write_zeroes(command, nsid, range, fua).await,
        IoCommand::DatasetManagement {
            nsid,
            ranges,
            deallocate,
        } => dataset_management(command, nsid, ranges, deallocate).await,
        IoCommand::Compare { .. }
        | IoCommand::Verify { .. }
        | IoCommand::WriteUncorrectable { .. }
        | IoCommand::Copy { .. } => Err(Status::INVALID_OPCODE.with_dnr().into()),
    }
}

fn export(command: &Command, nsid: u32) -> Result<&Export, Fault> {
    let export = command.queue.sled.export(nsid);
    export.ok_or(Fault::field(Status::INVALID_NAMESPACE, NSID_AT))
}

/// The drive that has those blocks, and their bytes: no more than a command may move.
fn locate(command: &Command, nsid: u32, range: LbaRange) -> Result<(&Export, usize), Fault> {
    let export = export(command, nsid)?;
    if !export.has(range.slba, range.blocks) {
        return Err(Fault::field(Status::LBA_OUT_OF_RANGE, SLBA_AT));
    }
    let len = bytes_of(range.blocks);
    match len <= TRANSFER_BYTES_MAX {
        true => Ok((export, len)),
        false => Err(Fault::field(Status::INVALID_FIELD, NLB_AT)),
    }
}

/// Whether a write has to be durable when it is answered.
fn is_durable(command: &Command, fua: bool) -> bool {
    fua || command.queue.controller.is_write_through()
}

async fn read(command: &Command, nsid: u32, range: LbaRange, fua: bool) -> Outcome {
    let (export, len) = locate(command, nsid, range)?;
    command.check_data_len(len)?;
    let buffer = command.buffer(len).await?;
    let _touching = command.touch(nsid, Access::Read)?;
    let (outcome, buffer) = export.read(range.slba, range.blocks, buffer).await;
    outcome?;
    if fua {
        // What was read must be on stable media before the host sees it.
        export.flush().await?;
    }
    command.queue.sled.count_read(len);
    Ok(Success {
        result: 0,
        data: Some((buffer, len)),
    })
}

async fn flush(command: &Command, nsid: u32) -> Outcome {
    let sled = &command.queue.sled;
    if nsid == NSID_BROADCAST {
        let all = (1..=sled.namespaces()).map(|nsid| command.touch(nsid, Access::Write));
        let _touching = all.collect::<Result<Vec<_>, _>>()?;
        sled.flush().await?;
    } else {
        let export = export(command, nsid)?;
        let _touching = command.touch(nsid, Access::Write)?;
        export.flush().await?;
    }
    Ok(Success::default())
}

async fn write(command: &Command, nsid: u32, range: LbaRange, fua: bool) -> Outcome {
    let (export, len) = locate(command, nsid, range)?;
    command.check_data_len(len)?;
    let buffer = command.fetch(len).await?;
    let _touching = command.touch(nsid, Access::Write)?;
    export.write(range.slba, range.blocks, buffer).await?;
    if is_durable(command, fua) {
        export.flush().await?;
    }
    command.queue.sled.count_write(len);
    Ok(Success::default())
}

/// Writes zeros, because no drive promises that blocks it was given back read as such.
async fn write_zeroes(command: &Command, nsid: u32, range: LbaRange, fua: bool) -> Outcome {
    let (export, len) = locate(command, nsid, range)?;
    let mut buffer = command.buffer(len).await?;
    buffer[..len].fill(0);
    let _touching = command.touch(nsid, Access::Write)?;
    export.write(range.slba, range.blocks, buffer).await?;
    if is_durable(command, fua) {
        export.flush().await?;
    }
    Ok(Success::default())
}

async fn dataset_management(
    command: &Command,
    nsid: u32,
    ranges: u16,
    deallocate: bool,
) -> Outcome {
    let export = export(command, nsid)?;
    // Linux always prepares a page, whatever the number of ranges is.
    let len = usize::from(ranges) * DSM_RANGE_BYTES;
    command.check_data_room(len)?;
    let data = command.fetch(len).await?;
    let ranges = DsmRange::parse_list(&data, ranges)?;
    drop(data);
    // All ranges are checked before the first is touched.
    if !ranges
        .iter()
        .all(|range| export.has(range.slba, range.blocks))
    {
        return Err(Fault::field(Status::LBA_OUT_OF_RANGE, SLBA_AT));
    }
    let _touching = command.touch(nsid, Access::Write)?;
    if deallocate {
        for range in ranges.iter().filter(|range| range.blocks > 0) {
            export.discard(range.slba, u64::from(range.blocks)).await?;
        }
    }
    Ok(Success::default())
}
