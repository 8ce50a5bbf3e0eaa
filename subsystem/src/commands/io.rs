//! I/O commands on namespaces: the volumes of the pool.
//!
//! Guarantees:
//! - No command reaches bytes outside of a volume, or with another length than its blocks have; the sums cannot wrap.
//! - A write is answered when it survives a crash of the daemon; with FUA, or with the write cache
//!   switched off, when it survives a loss of power.
//! - Only [`crate::errors`] decides which status an engine error becomes.

pub(crate) mod copy;
pub(crate) mod fused;

use std::rc::Rc;

use dedup::{EngineError, ErrorKind, MAX_COMMAND_BYTES, SUB_BLOCK_BYTES};
use fabric::Fetched;
use nvme::Status;
use nvme::io::{DSM_RANGE_BYTES, DsmRange, IoCommand, LbaRange};
use nvme::reservation::ReservationCommand;

use super::admit::{admit, elsewhere};
use super::reservation;
use crate::admission::{Access, Place};
use crate::connected_queue::KnownVolume;
use crate::connected_queue::command::{Command, Fault, Outcome, Success};
use crate::latency::Operation;
use crate::queue::Queue;

/// All namespaces.
const NSID_ALL: u32 = 0xffff_ffff;

/// Byte offsets in the command, for the error log.
const SLBA_AT: u16 = 40;
const NLB_AT: u16 = 48;

/// What one Write Uncorrectable marks at most: WUSL.
pub(crate) const UNCORRECTABLE_BYTES_MAX: usize = MAX_COMMAND_BYTES;

/// Runs an I/O command.
pub(crate) async fn run<Q: Queue>(command: &Command<Q>) -> Outcome {
    if let Some(asked) = ReservationCommand::parse(command.sqe()) {
        return reservation::run(command, asked?).await;
    }
    match IoCommand::parse(command.sqe())? {
        IoCommand::Read { nsid, range, fua } => read(command, nsid, range, fua).await,
        IoCommand::Write { nsid, range, fua } => write(command, nsid, range, fua).await,
        IoCommand::Compare { nsid, range } => compare(command, nsid, range).await,
        IoCommand::Flush { nsid } => flush(command, nsid).await,
        IoCommand::WriteZeroes {
            nsid,
            range,
            fua,
            deallocate: _,
        } => {
            // Zeros are never stored, so the blocks are deallocated whether the host asks or not.
            let (volume, place) = reach(command, nsid, Access::Write, range).await?;
            volume
                .volume
                .write_zeroes(place.offset, place.len, fua || write_through(command))
                .await?;
            command.done(&volume, Operation::WriteZeroes, 0);
            Ok(Success::default())
        }
        IoCommand::DatasetManagement {
            nsid,
            ranges,
            deallocate,
        } => dataset_management(command, nsid, ranges, deallocate).await,
        IoCommand::Verify { nsid, range } => verify(command, nsid, range).await,
        IoCommand::WriteUncorrectable { nsid, range } => {
            write_uncorrectable(command, nsid, range).await
        }
        IoCommand::Copy {
            nsid,
            slba,
            ranges,
            format,
            fua,
        } => {
            let ask = copy::Ask {
                nsid,
                slba,
                ranges,
                format,
                fua,
            };
            copy::run(command, ask).await
        }
    }
}

/// The volume and the bytes in it that a range of blocks stands for.
fn locate<Q: Queue>(
    command: &Command<Q>,
    nsid: u32,
    access: Access,
    range: LbaRange,
) -> Result<(Rc<KnownVolume>, Place), Fault> {
    let volume = admit(command, nsid, access)?;
    let place = place_of(&volume, range.slba, range.blocks)?;
    Ok((volume, place))
}

/// As [`locate`], when the limits of volume and host allow a command that moves no data.
async fn reach<Q: Queue>(
    command: &Command<Q>,
    nsid: u32,
    access: Access,
    range: LbaRange,
) -> Result<(Rc<KnownVolume>, Place), Fault> {
    let (volume, place) = locate(command, nsid, access, range)?;
    if volume.throttles.is_empty() {
        return Ok((volume, place));
    }
    command.hold_back(&volume.throttles, 0).await?;
    locate(command, nsid, access, range)
}

/// As [`locate_data`], when the limits of volume and host allow it.
async fn reach_data<Q: Queue>(
    command: &Command<Q>,
    nsid: u32,
    access: Access,
    range: LbaRange,
) -> Result<(Rc<KnownVolume>, u64, usize), Fault> {
    let (volume, offset, len) = locate_data(command, nsid, access, range)?;
    if volume.throttles.is_empty() {
        return Ok((volume, offset, len));
    }
    command.hold_back(&volume.throttles, len as u64).await?;
    locate_data(command, nsid, access, range)
}

/// The volume, when the limits of volume and host allow a command that moves no data.
async fn reach_volume<Q: Queue>(
    command: &Command<Q>,
    nsid: u32,
    access: Access,
) -> Result<Rc<KnownVolume>, Fault> {
    let volume = admit(command, nsid, access)?;
    if volume.throttles.is_empty() {
        return Ok(volume);
    }
    command.hold_back(&volume.throttles, 0).await?;
    admit(command, nsid, access)
}

fn place_of(volume: &KnownVolume, slba: u64, blocks: u32) -> Result<Place, Fault> {
    let place = volume.admission.place(slba, blocks);
    place.ok_or(Fault::field(Status::LBA_OUT_OF_RANGE, SLBA_AT))
}

/// Where the data of a command goes, and its length: checked against MDTS and what the host prepared.
fn locate_data<Q: Queue>(
    command: &Command<Q>,
    nsid: u32,
    access: Access,
    range: LbaRange,
) -> Result<(Rc<KnownVolume>, u64, usize), Fault> {
    let (volume, place) = locate(command, nsid, access, range)?;
    let len = usize::try_from(place.len)
        .ok()
        .filter(|&len| len <= command.queue.target.limits.transfer_bytes_max())
        .ok_or(Fault::field(Status::INVALID_FIELD, NLB_AT))?;
    command.check_data_len(len)?;
    Ok((volume, place.offset, len))
}

/// The fault of a command that reads from a byte on: a damaged block in the middle is named.
fn damage(error: EngineError, volume: &KnownVolume, offset: u64) -> Fault {
    let lba_bytes = u64::from(volume.admission.lba_bytes);
    let lba = error.offset.map(|at| at.max(offset) / lba_bytes);
    Fault::from(error).about(lba)
}

/// Whether the host switched the volatile write cache off.
fn write_through<Q: Queue>(command: &Command<Q>) -> bool {
    command.queue.controller.is_write_through()
}

async fn read<Q: Queue>(command: &Command<Q>, nsid: u32, range: LbaRange, fua: bool) -> Outcome {
    let (volume, offset, len) = reach_data(command, nsid, Access::Read, range).await?;
    let buffer = command.buffer(len).await?;
    let (result, buffer) = volume.volume.read(offset, buffer).await;
    result.map_err(|error| damage(error, &volume, offset))?;
    if fua {
        // What was read must be on stable media before the host sees it.
        volume.volume.flush().await?;
    }
    command.done(&volume, Operation::Read, len as u64);
    Ok(Success {
        result: 0,
        data: Some((buffer, len)),
    })
}

async fn write<Q: Queue>(command: &Command<Q>, nsid: u32, range: LbaRange, fua: bool) -> Outcome {
    let (volume, offset, len) = reach_data(command, nsid, Access::Write, range).await?;
    let Fetched { buffer, checksums } = command.fetch_checked(len).await?;
    let fua = fua || write_through(command);
    let written = volume
        .volume
        .write_checked(offset, buffer, checksums, fua)
        .await;
    written.0?;
    command.done(&volume, Operation::Write, len as u64);
    Ok(Success::default())
}

async fn compare<Q: Queue>(command: &Command<Q>, nsid: u32, range: LbaRange) -> Outcome {
    let (volume, offset, len) = reach_data(command, nsid, Access::Read, range).await?;
    let buffer = command.fetch(len).await?;
    let (result, _buffer) = volume.volume.compare(offset, buffer).await;
    match result.map_err(|error| damage(error, &volume, offset))? {
        true => {
            command.done(&volume, Operation::Compare, 0);
            Ok(Success::default())
        }
        false => Err(Status::COMPARE_FAILURE.with_dnr().into()),
    }
}

async fn verify<Q: Queue>(command: &Command<Q>, nsid: u32, range: LbaRange) -> Outcome {
    let (volume, Place { offset, len }) = reach(command, nsid, Access::Read, range).await?;
    let verified = volume.volume.verify(offset, len).await;
    verified.map_err(|error| damage(error, &volume, offset))?;
    command.done(&volume, Operation::Verify, 0);
    Ok(Success::default())
}

/// Marks whole sub-blocks: with smaller blocks, others would become unreadable with those that are named.
async fn write_uncorrectable<Q: Queue>(
    command: &Command<Q>,
    nsid: u32,
    range: LbaRange,
) -> Outcome {
    let (volume, Place { offset, len }) = reach(command, nsid, Access::Write, range).await?;
    let grain = SUB_BLOCK_BYTES as u64;
    if !offset.is_multiple_of(grain) {
        return Err(Fault::field(Status::INVALID_FIELD, SLBA_AT));
    }
    if !len.is_multiple_of(grain) || len > UNCORRECTABLE_BYTES_MAX as u64 {
        return Err(Fault::field(Status::INVALID_FIELD, NLB_AT));
    }
    volume.volume.mark_unreadable(offset, len).await?;
    command.done(&volume, Operation::WriteUncorrectable, 0);
    Ok(Success::default())
}

async fn flush<Q: Queue>(command: &Command<Q>, nsid: u32) -> Outcome {
    match nsid {
        // What is durable for one is durable for all, which is more than is asked for. Reservations of others, paths
        // and masks say nothing about that: what they keep from the host is not changed by it, and what the host
        // wrote before they did must not stay behind. No volume has it in its figures.
        NSID_ALL => match command.queue.target.engine() {
            Ok(engine) => engine.flush().await?,
            Err(_) => return Err(elsewhere()),
        },
        nsid => {
            let volume = admit(command, nsid, Access::Flush)?;
            volume.volume.flush().await?;
            command.done(&volume, Operation::Flush, 0);
        }
    }
    Ok(Success::default())
}

async fn dataset_management<Q: Queue>(
    command: &Command<Q>,
    nsid: u32,
    ranges: u16,
    deallocate: bool,
) -> Outcome {
    let volume = reach_volume(command, nsid, Access::Write).await?;
    // Linux always prepares a page, whatever the number of ranges is.
    let len = usize::from(ranges) * DSM_RANGE_BYTES;
    command.check_data_room(len)?;
    let data = command.fetch(len).await?;
    let ranges = DsmRange::parse_list(&data, ranges)?;
    drop(data);
    // All ranges are checked before the first is touched.
    let places = ranges
        .iter()
        .filter(|range| range.blocks > 0)
        .map(|range| place_of(&volume, range.slba, range.blocks))
        .collect::<Result<Vec<_>, _>>()?;
    if deallocate {
        for place in places {
            match volume.volume.trim(place.offset, place.len).await {
                // The volume became smaller meanwhile: what it no longer has is deallocated.
                Err(error) if error.kind == ErrorKind::Invalid => {}
                result => result?,
            }
        }
        command.done(&volume, Operation::Trim, 0);
    }
    Ok(Success::default())
}
