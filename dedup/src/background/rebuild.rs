//! The rebuild: what a drive lacks is copied to it, so that it can be online.
//!
//! Guarantees: from its beginning on all that is written goes to the drive too. Then all blocks in use that have a copy there
//! are looked at, those first that most refers to, because most would be lost with them: one that differs is written from a
//! copy that is proven, with a reference held, so that it is not used for anything else meanwhile. On a drive that is new to
//! the pool nothing is compared. What is freed and not looked at is durably freed before the
//! drive is online. A restart begins anew, and so does a drive that went offline, or was replaced, on the way.

use std::cell::Cell;
use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Instant;

use drives::{BLOCK_BYTES, DriveError, Extent};
use futures_util::future::join;
use futures_util::stream::{self, StreamExt};
use meta::Pba;
use reactor::Buffer;
use serde::{Deserialize, Serialize};

use crate::background::Background;
use crate::background::copies::{Content, is_whole, siblings};
use crate::background::rebuild_speed;
use crate::background::scrub::{LOOK_BLOCKS, blocks_to_scrub};
use crate::content::fingerprint;
use crate::drive_io::drive_list::DriveList;
use crate::drive_io::scatter::{self, OfDrive};
use crate::log::flush::flush;
use crate::metadata::block_table::{IN_FLIGHT, address};
use crate::pool::Shared;
use crate::pool::alerts::{Action, Work};
use crate::pool::damage_list::Known;
use crate::residency::loading::load_all;
use crate::residency::rows::pin_rows;
use crate::sync::wait::{lock, pause, yield_once};
use crate::{EngineError, Result};

/// Blocks that are compared at a time: 1 MiB.
const PIECE_BLOCKS: usize = 256;

/// So many of them at the same time: while one is proven, drives read the next one.
const PIECES_AT_ONCE: usize = 3;

/// Blocks at a time while hosts are at work: 128 KiB, so that no command waits for long behind it at a drive. A rest as long
/// as that took follows.
const GENTLE_BLOCKS: usize = 32;

/// How far a rebuild is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RebuildStatus {
    /// Bytes that were looked at.
    pub done_bytes: u64,
    /// Bytes that are to be: what the pool had in use when it began.
    pub total_bytes: u64,
    /// Bytes that differed, and were written.
    pub written_bytes: u64,
}

/// A rebuild that runs.
#[derive(Clone, Copy)]
pub(crate) struct Running {
    drive: u16,
    number: u64,
    /// The drive is new to the pool: all is copied to it.
    is_new: bool,
    status: RebuildStatus,
}

impl Running {
    /// How far it is, if it is the one that a drive waits for.
    pub(crate) fn of(self, drives: &DriveList, drive: u16) -> Option<RebuildStatus> {
        let is_it = self.drive == drive && drives.rebuild(drive) == Some(self.number);
        is_it.then_some(self.status)
    }
}

/// Rebuilds the drives that wait for it, one after the other. Whether none of that failed.
pub(crate) async fn rebuild_if_wanted(shared: &Arc<Shared>, background: &Background) -> bool {
    let mut all_well = true;
    let _rebuilding = background.rebuilding.lock().await;
    for drive in 0..shared.drives.len() as u16 {
        let Some(number) = shared.drives.rebuild(drive) else {
            continue;
        };
        let name = shared.drive_name(drive);
        tracing::info!(drive = name, "the drive is being rebuilt");
        let began = Instant::now();
        let rebuilt = rebuild(shared, background, (drive, number)).await;
        let running = lock(&background.rebuild).take();
        let status = running.map_or_else(RebuildStatus::default, |running| running.status);
        if let (Ok(true), Some(Running { is_new: true, .. })) = (&rebuilt, running) {
            rebuild_speed::note(shared, background, status.written_bytes, began.elapsed()).await;
        }
        match &rebuilt {
            Ok(true) => tracing::info!(
                drive = name,
                compared_bytes = status.done_bytes,
                written_bytes = status.written_bytes,
                "the drive is online again"
            ),
            Ok(false) => {
                tracing::info!(drive = name, "the rebuild was interrupted: it begins anew")
            }
            Err(_) => all_well = false,
        }
        shared.alerts.work(Work::Rebuild, rebuilt.map(drop));
    }
    all_well
}

/// Whether the drive is online now, by the rebuild with that number.
async fn rebuild(
    shared: &Arc<Shared>,
    background: &Background,
    (drive, number): (u16, u64),
) -> Result<bool> {
    load_all(shared).await?;
    // Batches that chose their copies before do not write to the drive.
    shared.drives.gate.drain().await;
    let total = lock(&shared.state).contents() * BLOCK_BYTES as u64;
    let status = RebuildStatus {
        total_bytes: total,
        ..RebuildStatus::default()
    };
    let is_new = shared.drives.take_newness(drive);
    *lock(&background.rebuild) = Some(Running {
        drive,
        number,
        is_new,
        status,
    });
    for first in by_references(shared).await {
        let found = blocks_to_scrub(shared, first).await?;
        let blocks: Vec<Pba> = found.into_iter().map(|(pba, _)| pba).collect();
        let goes_on = || !shared.is_closed() && is_current(shared, drive, number);
        let note = |blocks: usize, written: u64| {
            if let Some(Running { status, .. }) = &mut *lock(&background.rebuild) {
                status.written_bytes += written;
                status.done_bytes += (blocks * BLOCK_BYTES) as u64;
                status.total_bytes = status.total_bytes.max(status.done_bytes);
            }
        };
        if !catch_up_all(shared, (drive, is_new), &blocks, goes_on, note).await? {
            return Ok(false);
        }
    }
    // What was freed before it was looked at must not come back after a crash.
    flush(shared).await?;
    // And what was copied, of which no record tells.
    if let Some(to) = shared.drives.get(drive.into())
        && let Err(error) = to.flush().await
    {
        return Err(give_up(shared, drive, &[], (Action::Flush, &error)).await);
    }
    shared.put_online(drive, number).await
}

/// Brings the copies of blocks on a drive up to date, as long as `goes_on`: in small pieces, with rests, while hosts are at
/// work, else in large ones, the next as soon as one is done, so that neither drive waits for the other. `note` is told of
/// each piece how many blocks were looked at and how many bytes were written. Whether it came to the end.
pub(super) async fn catch_up_all(
    shared: &Arc<Shared>,
    to: (u16, bool),
    blocks: &[Pba],
    goes_on: impl Fn() -> bool,
    mut note: impl FnMut(usize, u64),
) -> Result<bool> {
    let mut left = blocks;
    while !left.is_empty() {
        if !goes_on() {
            return Ok(false);
        }
        if shared.hosts.were_at_work() {
            let (now, later) = left.split_at(left.len().min(GENTLE_BLOCKS));
            left = later;
            let began = Instant::now();
            note(now.len(), catch_up(shared, to, now).await?);
            pause(began.elapsed()).await;
            continue;
        }
        let (begun, failed) = (Cell::new(0), Cell::new(false));
        let may_begin = |_: &&[Pba]| {
            let may = !failed.get() && goes_on() && !shared.hosts.were_at_work();
            std::future::ready(may)
        };
        let pieces = stream::iter(left.chunks(PIECE_BLOCKS)).take_while(may_begin);
        let copied = pieces.map(|piece| {
            begun.set(begun.get() + piece.len());
            async move { (piece.len(), catch_up(shared, to, piece).await) }
        });
        let mut copied = std::pin::pin!(copied.buffer_unordered(PIECES_AT_ONCE));
        let mut error = None;
        // All that have begun end: each gives back what it holds.
        while let Some((blocks, written)) = copied.next().await {
            match written {
                Ok(written) => note(blocks, written),
                Err(first) => {
                    failed.set(true);
                    error.get_or_insert(first);
                }
            }
            yield_once().await;
        }
        if let Some(error) = error {
            return Err(error);
        }
        left = left.get(begun.get()..).unwrap_or_default();
    }
    Ok(true)
}

/// The first addresses of all windows of the block table, those first to whose blocks most refers. What is not in memory
/// comes last, in the order of its addresses; what gets into a window meanwhile is written to the drive as it comes.
async fn by_references(shared: &Arc<Shared>) -> Vec<Pba> {
    let mut windows: Vec<(Reverse<u64>, Pba)> = Vec::new();
    let tables = lock(&shared.state).blocks.tables();
    for table in 0..tables {
        let mut at = 0;
        loop {
            let (references, is_last) = {
                let blocks = &lock(&shared.state).blocks;
                let used = blocks.used_in(table, at, LOOK_BLOCKS);
                let references = used.map(|(_, info)| u64::from(info.references & !IN_FLIGHT));
                (references.sum(), !blocks.has(table, at + LOOK_BLOCKS))
            };
            windows.push((Reverse(references), address(table, at)));
            if is_last {
                break;
            }
            at += LOOK_BLOCKS;
            yield_once().await;
        }
    }
    windows.sort_unstable();
    windows.into_iter().map(|(_, first)| first).collect()
}

/// Whether a rebuild goes on: its drive did not go offline meanwhile.
fn is_current(shared: &Shared, drive: u16, number: u64) -> bool {
    shared.drives.rebuild(drive) == Some(number)
}

/// Compares the copies of blocks on a drive with others, and writes those that differ, or all if the drive is new; returns
/// how many bytes.
async fn catch_up(
    shared: &Arc<Shared>,
    (drive, is_new): (u16, bool),
    blocks: &[Pba],
) -> Result<u64> {
    let mut blocks: Vec<Pba> = blocks
        .iter()
        .filter(|pba| shared.drives.place_on(drive, **pba).is_some())
        .copied()
        .collect();
    // Contents of a pack are looked at together.
    blocks.dedup_by_key(|pba| pba.container());
    if blocks.is_empty() {
        return Ok(0);
    }
    // Buffers before references: who waits for memory must not keep blocks. All at once: nor other memory.
    let bytes = blocks.len() * BLOCK_BYTES;
    let (source, target) = match is_new {
        true => (shared.bounce(bytes).await, None),
        false => {
            let half = bytes.next_power_of_two();
            let mut halves = shared.bounce(2 * half).await.split(half).into_iter();
            match (halves.next(), halves.next()) {
                (Some(source), target) => (source, target),
                _ => return Err(EngineError::internal("a buffer has no half")),
            }
        }
    };
    let _pins = pin_rows(shared, blocks.iter().flat_map(|pba| siblings(*pba))).await?;
    let held = hold(shared, &blocks);
    let result = copy_held(shared, drive, &held, (source, target)).await;
    let state = lock(&shared.state);
    for (_, contents) in &held {
        for content in contents {
            state.give_back(content.pba);
        }
    }
    drop(state);
    result
}

/// Takes references on all contents of blocks; those that are not in use, or about to be written, are left out.
fn hold(shared: &Shared, blocks: &[Pba]) -> Vec<(Pba, Vec<Content>)> {
    let mut state = lock(&shared.state);
    let mut held = Vec::with_capacity(blocks.len());
    for pba in blocks {
        let mut contents = Vec::new();
        for pba in siblings(*pba) {
            let known = Known::of(&state.blocks.get(pba));
            if crate::background::healing::hold(&mut state, pba, &known) {
                contents.push(Content { pba, known });
            }
        }
        if !contents.is_empty() {
            held.push((pba.container(), contents));
        }
    }
    held
}

async fn copy_held(
    shared: &Arc<Shared>,
    drive: u16,
    held: &[(Pba, Vec<Content>)],
    (source, target): (Buffer, Option<Buffer>),
) -> Result<u64> {
    let drives = &shared.drives;
    let hashers = shared.domains.in_use();
    let mut groups: Vec<OfDrive<Extent>> = Vec::new();
    for (at, (pba, _)) in held.iter().enumerate() {
        if let Some(place) = drives.readable(*pba).first() {
            scatter::add(&mut groups, *place, at * BLOCK_BYTES);
        }
    }
    let mut of_target: Vec<OfDrive<Extent>> = Vec::new();
    for (at, (pba, _)) in held.iter().enumerate() {
        if let Some(place) = drives.place_on(drive, *pba) {
            scatter::add(&mut of_target, place, at * BLOCK_BYTES);
        }
    }
    let there = async {
        let (failed, target) = scatter::read(drives, target?, &of_target).await;
        failed.is_empty().then_some(target)
    };
    // What cannot be read here is not proven below.
    let ((_, mut source), there) = join(scatter::read(drives, source, &groups), there).await;
    let mut proven = vec![false; held.len()];
    for (at, (pba, contents)) in held.iter().enumerate() {
        let pbas = || contents.iter().map(|content| content.pba);
        for (attempt, place) in drives.readable(*pba).iter().enumerate() {
            if attempt > 0 {
                // The copy before is wrong: it is looked at behind this.
                drives.suspects.add(pbas());
                let mut again = Vec::new();
                scatter::add(&mut again, *place, at * BLOCK_BYTES);
                (_, source) = scatter::read(drives, source, &again).await;
            }
            let block = fingerprint::split(&source).get(at);
            proven[at] = block.is_some_and(|block| is_whole(&hashers, contents, block));
            if proven[at] {
                break;
            }
        }
        let is_listed = |content: &Content| lock(&shared.damage).contains(content.pba);
        if !proven[at] && !contents.iter().any(is_listed) {
            // They are looked at, and healed or listed as damaged, before the rebuild begins anew.
            drives.suspects.add(pbas());
            return Err(EngineError::unavailable(format!(
                "block {pba} cannot be read from any other copy: check the other drives"
            )));
        }
    }
    let mut to_write: Vec<OfDrive<Extent>> = Vec::new();
    for (at, (pba, _)) in held.iter().enumerate() {
        let is_same = there
            .as_ref()
            .is_some_and(|there| block(&source, at) == block(there, at));
        if proven[at]
            && !is_same
            && let Some(place) = drives.place_on(drive, *pba)
        {
            scatter::add(&mut to_write, place, at * BLOCK_BYTES);
        }
    }
    let (Some(group), Some(to)) = (to_write.first(), drives.get(drive.into())) else {
        return Ok(0);
    };
    let blocks: u64 = group
        .extents
        .iter()
        .map(|extent| u64::from(extent.blocks))
        .sum();
    let (written, _) = to.write(source, &group.extents).await;
    match written {
        Ok(()) => Ok(blocks * BLOCK_BYTES as u64),
        Err(error) => Err(give_up(shared, drive, held, (Action::Write, &error)).await),
    }
}

/// The drive cannot be written: it is offline again, if it has copies only.
pub(super) async fn give_up(
    shared: &Arc<Shared>,
    drive: u16,
    held: &[(Pba, Vec<Content>)],
    (action, error): (Action, &DriveError),
) -> EngineError {
    if error.is_in_doubt() {
        let state = lock(&shared.state);
        for (pba, _) in held {
            state.space().doubt(*pba, drive);
        }
    }
    shared.drive_failed(drive, action, error);
    shared.go_on_without(drive, error).await;
    EngineError::unavailable(format!(
        "the rebuild of a drive ended, because it cannot be written: {error}; replace it"
    ))
}

fn block(buf: &Buffer, at: usize) -> Option<&fingerprint::Block> {
    fingerprint::split(buf).get(at)
}
