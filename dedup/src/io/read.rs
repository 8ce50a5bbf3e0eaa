//! The way of a read: map -> physical blocks -> drive, straight into the caller's buffer, and every
//! block's checksum verified (I8: damaged data is never returned).

use std::sync::Arc;

use drives::BLOCK_BYTES;
use meta::{Mapping, Pba};
use reactor::Buffer;

use crate::content::fingerprint::{self, Block};
use crate::drive_io::fetch::Fetch;
use crate::drive_io::reader::{read_each, read_proven};
use crate::io::prepare::active_size;
use crate::metadata::page_map::NotResident;
use crate::metadata::volume::VolumeCore;
use crate::pool::Shared;
use crate::pool::alert_log::Met;
use crate::pool::alerts::Action;
use crate::residency::pages::bring_in;
use crate::residency::rows::pin_rows;
use crate::stages::{self, Stage};
use crate::sync::wait::lock;
use crate::{EngineError, Result};

/// Consecutive sub-blocks of a volume, and where in a buffer they go.
#[derive(Clone, Copy)]
pub(crate) struct Piece {
    pub(crate) start: u64,
    pub(crate) count: usize,
    pub(crate) buffer_offset: usize,
}

/// One mapped sub-block of a read.
#[derive(Clone, Copy)]
struct Stored {
    sub_block: u64,
    buffer_offset: usize,
    pba: Pba,
    crc32c: u32,
}

impl Stored {
    /// What is to be read: its address, and the offset in the buffer that it goes to.
    fn to_read(self) -> (Pba, usize) {
        (self.pba, self.buffer_offset)
    }
}

/// Reads sub-blocks of a volume into a buffer. The caller holds the range lock.
///
/// On an error the whole buffer is zeroed.
pub(crate) async fn read_piece(
    shared: &Arc<Shared>,
    volume: &VolumeCore,
    piece: Piece,
    mut buf: Buffer,
) -> (Result<()>, Buffer) {
    stages::ended(Stage::Wait);
    let stored = match find(shared, volume, piece, &mut buf).await {
        Ok(stored) => stored,
        Err(error) => {
            buf.fill(0);
            return (Err(error), buf);
        }
    };
    stages::ended(Stage::Index);
    let mut fetch = Fetch::new(&shared.drives, stored.iter().copied().map(Stored::to_read));
    let (failed, mut buf) = fetch.read(buf).await;
    for drive in fetch.worked(&failed) {
        shared.alerts.drive_worked(drive.into(), Action::Read);
    }
    drop(fetch);
    let mut unreadable = Vec::new();
    if !failed.is_empty() {
        let blocks: Vec<_> = stored.iter().copied().map(Stored::to_read).collect();
        let of_drives;
        (of_drives, buf) = read_each(&shared.drives, buf, &blocks, failed).await;
        for failed in of_drives {
            let error = shared.drive_error(Action::Read, failed.drive, &failed.error);
            if !failed.is_medium() {
                buf.fill(0);
                return (Err(error), buf);
            }
            unreadable.extend(failed.indexes.into_iter().map(|index| blocks[index].1));
        }
    }
    stages::ended(Stage::Drive);
    let mut bad = not_right(&stored, &unreadable, &buf);
    if !bad.is_empty() && shared.drives.has_copies() {
        buf = read_other_copies(shared, &mut bad, buf).await;
    }
    let result = tell_damage(shared, volume, &bad).await;
    stages::ended(Stage::Hash);
    if result.is_err() {
        buf.fill(0);
    }
    (result, buf)
}

/// Finds what is stored, and zeroes what is not. Reads the store once for each page of the map that is
/// not in memory.
async fn find(
    shared: &Shared,
    volume: &VolumeCore,
    piece: Piece,
    buf: &mut Buffer,
) -> Result<Vec<Stored>> {
    let end = piece.start + piece.count as u64;
    for _ in 0..2 {
        active_size(shared, volume)?;
        let found = look_up(volume, piece, buf);
        if let Ok(stored) = found {
            return Ok(stored);
        }
        // The range is locked: what comes in stays.
        bring_in(shared, volume, piece.start, end).await?;
    }
    Err(EngineError::internal(format!(
        "the map of volume {} does not stay in memory",
        volume.id
    )))
}

fn look_up(
    volume: &VolumeCore,
    piece: Piece,
    buf: &mut Buffer,
) -> std::result::Result<Vec<Stored>, NotResident> {
    let mut stored = Vec::with_capacity(piece.count);
    let end = piece.start + piece.count as u64;
    volume.find_run(piece.start, end, |sub_block, mapping| {
        let at = (sub_block - piece.start) as usize;
        let buffer_offset = piece.buffer_offset + at * BLOCK_BYTES;
        match mapping {
            Some(Mapping { pba, crc32c }) => stored.push(Stored {
                sub_block,
                buffer_offset,
                pba,
                crc32c,
            }),
            None => buf[buffer_offset..buffer_offset + BLOCK_BYTES].fill(0),
        }
    })?;
    Ok(stored)
}

/// Blocks that cannot be read (`unreadable`: where they belong in the buffer), or do not match their checksum.
fn not_right(stored: &[Stored], unreadable: &[usize], buf: &[u8]) -> Vec<Stored> {
    let is_bad = |s: &&Stored| {
        unreadable.contains(&s.buffer_offset)
            || fingerprint::crc32c(&buf[s.buffer_offset..s.buffer_offset + BLOCK_BYTES]) != s.crc32c
    };
    stored.iter().filter(is_bad).copied().collect()
}

/// Reads blocks from another copy that matches their checksum; those that have none stay in the list.
async fn read_other_copies(shared: &Shared, bad: &mut Vec<Stored>, mut buf: Buffer) -> Buffer {
    let mut lost = Vec::new();
    for block in bad.drain(..) {
        let is_right = |bytes: &Block| fingerprint::crc32c(bytes) == block.crc32c;
        let seen;
        (seen, buf) = read_proven(&shared.drives, block.to_read(), buf, is_right).await;
        match seen {
            Some(true) => shared.drives.suspects.add([block.pba]),
            _ => lost.push(block),
        }
    }
    *bad = lost;
    buf
}

/// Tells of blocks that no copy has; an error if there are any.
async fn tell_damage(shared: &Arc<Shared>, volume: &VolumeCore, bad: &[Stored]) -> Result<()> {
    let Some(first) = bad.first() else {
        return Ok(());
    };
    let count = bad.len() as u64;
    let blocks = bad.iter().map(|s| s.pba);
    let pins = pin_rows(shared, blocks).await;
    let name = {
        let mut state = lock(&shared.state);
        state.corrupt_blocks += count;
        for block in bad.iter().filter(|_| pins.is_ok()) {
            shared.found_damage(&mut state, block.pba);
        }
        state
            .volumes
            .get(&volume.id)
            .map_or_else(String::new, |entry| entry.info.name.clone())
    };
    let (drive, data_block) = shared.drives.named(first.pba);
    let error = EngineError::corrupt(format!(
        "volume `{name}`: {count} sub-block(s) from byte {} cannot be read or do not match their checksum \
         (drive {drive}, data block {data_block}); restore them from a copy and write them again, and check the drive",
        first.sub_block * BLOCK_BYTES as u64,
    ));
    let ranges = bad.iter().map(|s| (s.sub_block, s.sub_block + 1));
    lock(&shared.alert_log).volume(Met::Unreadable, &name, ranges, &error.message);
    Err(error.at(first.sub_block * BLOCK_BYTES as u64))
}
