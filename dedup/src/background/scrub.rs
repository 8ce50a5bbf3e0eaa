//! The scrub: reads all data in the background at a bounded rate, and proves it.
//!
//! Every copy of every block in use is read and compared with its CRC-32C and, where it has one, its fingerprint. A
//! block that differs is read once more with a reference held, so that one that was freed and written
//! anew meanwhile is no false alarm; what stays wrong goes to the list of damaged blocks
//! ([`crate::Engine::damage`]). Nothing is kept locked while it reads, and no faster than the rate is
//! read, however far it fell behind: hosts lose at most that much of the drives' speed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use drives::BLOCK_BYTES;
use meta::{Fingerprint, Pba};
use serde::{Deserialize, Serialize};

use crate::background::Background;
use crate::background::healing::{Verdict, examine};
use crate::content::fingerprint;
use crate::drive_io::fetch::Fetch;
use crate::hooks::{Current, Hooks};
use crate::metadata::block_table::{BlockInfo, IN_FLIGHT, address, table_of};
use crate::pool::Shared;
use crate::residency::loading::load_all;
use crate::residency::rows::stored_infos;
use crate::sync::wait::{lock, yield_once};
use crate::{EngineError, Result};

/// Blocks read at a time: 1 MiB.
const READ_BLOCKS: usize = 256;
/// Blocks, used or not, that are looked at in one go under the lock: some 20 us.
pub(super) const LOOK_BLOCKS: u64 = 8192;
/// The slowest and the fastest rate, in bytes per second.
const RATE_MIN: u64 = 1 << 20;
const RATE_MAX: u64 = 1 << 40;

/// Bytes per second that a scrub reads, if no other rate is given: a TiB in three hours.
pub const SCRUB_RATE_DEFAULT: u64 = 100 << 20;

/// How far a scrub is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ScrubPhase {
    /// None was started since the pool was opened.
    #[default]
    Never,
    /// It reads.
    Running,
    /// It read everything.
    Finished,
    /// It was stopped before its end.
    Stopped,
}

/// A scrub at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubStatus {
    /// How far it is.
    pub phase: ScrubPhase,
    /// Blocks that it has to read: those in use when it began.
    pub total_blocks: u64,
    /// Blocks that it has read and compared.
    pub checked_blocks: u64,
    /// Damaged blocks that it found.
    pub bad_blocks: u64,
    /// Its bound, in bytes per second.
    pub rate_bytes_per_second: u64,
    /// Seconds since it began, until its end.
    pub seconds: u64,
    /// Seconds until it will have ended, at the rate so far.
    pub eta_seconds: Option<u64>,
}

/// The scrub of an engine.
#[derive(Default)]
pub(crate) struct Scrub {
    status: ScrubStatus,
    began: Option<Instant>,
    /// Asked for, and not begun.
    is_wanted: bool,
    is_unwanted: bool,
}

/// Whether a scrub can read so many bytes per second.
///
/// # Errors
/// `Invalid` for a rate that cannot be.
pub fn check_scrub_rate(rate_bytes_per_second: u64) -> Result<()> {
    match (RATE_MIN..=RATE_MAX).contains(&rate_bytes_per_second) {
        true => Ok(()),
        false => Err(EngineError::invalid(format!(
            "a scrub of {rate_bytes_per_second} bytes per second is not possible; use 1 MiB to 1 TiB"
        ))),
    }
}

/// Asks background maintenance for a scrub that reads at most so many bytes per second.
///
/// # Errors
/// `Invalid` if one runs already, or for a rate that cannot be.
pub(crate) fn start(background: &Background, rate_bytes_per_second: u64) -> Result<()> {
    check_scrub_rate(rate_bytes_per_second)?;
    let mut scrub = lock(&background.scrub);
    if scrub.status.phase == ScrubPhase::Running {
        return Err(EngineError::invalid(
            "a scrub runs already; stop it first, or wait for its end",
        ));
    }
    *scrub = Scrub {
        status: ScrubStatus {
            phase: ScrubPhase::Running,
            rate_bytes_per_second,
            ..ScrubStatus::default()
        },
        is_wanted: true,
        ..Scrub::default()
    };
    Ok(())
}

/// Stops a scrub that runs. What it found stays known.
///
/// # Errors
/// `Invalid` if none runs.
pub(crate) fn stop(background: &Background) -> Result<()> {
    let mut scrub = lock(&background.scrub);
    if scrub.status.phase != ScrubPhase::Running {
        return Err(EngineError::invalid("no scrub runs"));
    }
    scrub.is_unwanted = true;
    Ok(())
}

/// The scrub that runs, or the last one.
pub(crate) fn status(background: &Background) -> ScrubStatus {
    let scrub = lock(&background.scrub);
    let mut status = scrub.status.clone();
    // Blocks may have come since it began.
    status.total_blocks = status.total_blocks.max(status.checked_blocks);
    if status.phase == ScrubPhase::Running
        && let Some(began) = scrub.began
    {
        let elapsed = reactor::now().saturating_duration_since(began);
        status.seconds = elapsed.as_secs();
        let left = status.total_blocks.saturating_sub(status.checked_blocks);
        status.eta_seconds = (status.checked_blocks > 0).then(|| {
            let left = elapsed.as_secs_f64() * left as f64 / status.checked_blocks as f64;
            left.ceil() as u64
        });
    }
    status
}

/// Runs a scrub if one is wanted.
pub(crate) async fn scrub_if_wanted(shared: &Arc<Shared>, background: &Background) {
    let rate = {
        let total = lock(&shared.state).contents();
        let mut scrub = lock(&background.scrub);
        if !std::mem::take(&mut scrub.is_wanted) {
            return;
        }
        scrub.began = Some(reactor::now());
        scrub.status.total_blocks = total;
        scrub.status.rate_bytes_per_second
    };
    tracing::info!(rate_bytes_per_second = rate, "a scrub begins");
    let is_through = scrub_all(shared, background, rate).await;
    let mut scrub = lock(&background.scrub);
    scrub.status.phase = match is_through {
        true => ScrubPhase::Finished,
        false => ScrubPhase::Stopped,
    };
    let began = scrub.began.unwrap_or_else(reactor::now);
    scrub.status.seconds = reactor::now().saturating_duration_since(began).as_secs();
    if is_through {
        // Blocks came and went meanwhile.
        scrub.status.total_blocks = scrub.status.checked_blocks;
    }
    let status = &scrub.status;
    tracing::info!(
        checked_blocks = status.checked_blocks,
        bad_blocks = status.bad_blocks,
        seconds = status.seconds,
        "{}",
        match is_through {
            true => "the scrub is through",
            false => "the scrub was stopped before its end",
        }
    );
}

/// Whether it came to its end.
async fn scrub_all(shared: &Arc<Shared>, background: &Background, rate: u64) -> bool {
    if let Err(error) = load_all(shared).await {
        tracing::warn!(%error, "a scrub cannot begin");
        return false;
    }
    let mut due = reactor::now();
    let tables = lock(&shared.state).blocks.tables();
    for table in 0..tables {
        let mut at = 0;
        loop {
            if shared.is_closed() || lock(&background.scrub).is_unwanted {
                return false;
            }
            let found = blocks_to_scrub(shared, address(table, at)).await;
            let found = match found {
                Ok(found) => found,
                Err(error) => {
                    tracing::warn!(%error, "a scrub cannot go on");
                    return false;
                }
            };
            for blocks in found.chunks(READ_BLOCKS) {
                scrub_blocks(shared, background, blocks).await;
                // Time that was lost is not caught up.
                let cost = (blocks.len() * BLOCK_BYTES) as f64 / rate as f64;
                due = due.max(reactor::now()) + Duration::from_secs_f64(cost);
                match Current::HAS_CLOCK {
                    true => reactor::sleep_until(due).await,
                    false => yield_once().await,
                }
                if shared.is_closed() || lock(&background.scrub).is_unwanted {
                    return false;
                }
            }
            at += LOOK_BLOCKS;
            if !lock(&shared.state).blocks.has(table, at) {
                break;
            }
        }
    }
    true
}

/// Blocks in use among the next addresses. What is in the store only stays there: what it says is
/// looked at again before anything is said to be damaged.
pub(super) async fn blocks_to_scrub(shared: &Shared, first: Pba) -> Result<Vec<(Pba, BlockInfo)>> {
    let is_written = |info: &BlockInfo| info.references & IN_FLIGHT == 0;
    let (mut found, missing) = {
        let state = lock(&shared.state);
        let (table, from) = (table_of(first), first.number());
        let window = state.blocks.used_in(table, from, LOOK_BLOCKS);
        let here: Vec<_> = window.filter(|(_, info)| is_written(info)).collect();
        let missing = state.blocks.stored_in(table, from, from + LOOK_BLOCKS);
        (here, missing.collect::<Vec<Pba>>())
    };
    if !missing.is_empty() {
        found.extend(stored_infos(shared, missing).await?);
        found.sort_unstable_by_key(|(pba, _)| *pba);
    }
    Ok(found)
}

/// Reads and compares blocks.
async fn scrub_blocks(shared: &Arc<Shared>, background: &Background, blocks: &[(Pba, BlockInfo)]) {
    if blocks.is_empty() {
        return;
    }
    let mut buf = shared.bounce(blocks.len() * BLOCK_BYTES).await;
    // All copies, a drive after the other.
    let mut of_drives: BTreeMap<u16, Vec<(Pba, BlockInfo)>> = BTreeMap::new();
    for block in blocks {
        for place in shared.drives.readable(block.0).iter() {
            of_drives.entry(place.drive).or_default().push(*block);
        }
    }
    let mut suspects = BTreeMap::new();
    for (drive, blocks) in of_drives {
        let offsets = (0..).step_by(BLOCK_BYTES);
        let blocks_and_offsets = blocks.iter().map(|(pba, _)| *pba).zip(offsets);
        let mut fetch = Fetch::of_drive(&shared.drives, drive, blocks_and_offsets);
        let failed;
        (failed, buf) = fetch.read(buf).await;
        suspects.extend(match failed.is_empty() {
            true => suspects_among(shared, &blocks, &buf),
            // One of them cannot be read: which one, tells only a look at each.
            false => blocks,
        });
    }
    let mut bad = 0;
    for (pba, info) in suspects {
        let (verdict, back) = examine(shared, pba, &info, buf).await;
        buf = back;
        bad += u64::from(verdict == Verdict::Bad);
    }
    let mut scrub = lock(&background.scrub);
    scrub.status.checked_blocks += blocks.len() as u64;
    scrub.status.bad_blocks += bad;
}

/// Those whose content is not what it should be, and those that are listed as damaged.
fn suspects_among(
    shared: &Shared,
    blocks: &[(Pba, BlockInfo)],
    buf: &[u8],
) -> Vec<(Pba, BlockInfo)> {
    let wanted: Vec<(Fingerprint, u32)> = blocks
        .iter()
        .map(|(_, info)| (info.fingerprint, info.crc32c))
        .collect();
    let proven = shared
        .domains
        .in_use()
        .prove_all(fingerprint::split(buf), &wanted);
    let damage = lock(&shared.damage);
    blocks
        .iter()
        .zip(proven)
        .filter(|((pba, _), is_proven)| !is_proven || damage.contains(*pba))
        .map(|(block, _)| *block)
        .collect()
}
