//! Maintenance: when background work has something to do.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use drives::{DriveError, ErrorKind};
use futures_util::future::{join3, join4};

use crate::Result;
use crate::background::Background;
use crate::background::deferred_dedup::merge_deferred;
use crate::background::discard::discard_freed;
use crate::background::fencing::fence_drives;
use crate::background::fill_watch::FillWatch;
use crate::background::freeing::free_slice;
use crate::background::healing::{tend_damage, tend_suspects};
use crate::background::rearranging::rearrange_if_wanted;
use crate::background::rebuild::rebuild_if_wanted;
use crate::background::scrub::scrub_if_wanted;
use crate::background::survey::survey_if_wanted;
use crate::io::verify::keep_verifying;
use crate::log::checkpoint::checkpoint;
use crate::log::flush::flush_and_note;
use crate::pool::Shared;
use crate::pool::alerts::Work;
use crate::residency::loading::{load_all, load_some};
use crate::residency::on_disk_index::write_index_entries;
use crate::residency::pages::warm_up;
use crate::sync::wait::{lock, yield_once};

/// Freeing rests so many times as long as it worked.
const FREEING_REST: u32 = 4;

/// How often background work looks for something to do.
const TICK: Duration = Duration::from_millis(100);

/// How long a rebuild that failed rests, or a move of segments.
const REBUILD_AGAIN: Duration = Duration::from_secs(5);

/// How often what is wrong is looked at, and what was found is told.
const TELL: Duration = Duration::from_secs(1);

/// Background work, until the pool is closed.
pub(crate) async fn run(shared: &Arc<Shared>, background: &Background) {
    join4(
        keep_durable(shared),
        keep_freeing(shared, background),
        keep_discarding(shared),
        join3(
            join3(
                keep_scrubbing(shared, background),
                keep_rebuilding(shared, background),
                keep_leaving(shared),
            ),
            keep_watch(shared),
            join3(
                keep_surveying(shared, background),
                keep_loading(shared),
                keep_verifying(shared),
            ),
        ),
    )
    .await;
}

/// One round of all background work but scrubs, without a clock.
pub(crate) async fn once(shared: &Arc<Shared>, background: &Background) -> Result<()> {
    let owned = shared.clone();
    shared.block_on(move || owned.look_at_folder()).await;
    load(shared).await?;
    write_index_entries(shared).await?;
    merge_deferred(shared).await?;
    while free_slice(shared, background).await? {}
    let compared = shared.verify.caught_up().await;
    flush_and_note(shared).await?;
    checkpoint(shared).await?;
    discard_freed(shared).await;
    tend_suspects(shared).await;
    rebuild_if_wanted(shared, background).await;
    rearrange_if_wanted(shared, background).await;
    tend_damage(shared).await;
    fence_drives(shared).await;
    shared.refresh_alerts();
    compared
}

/// Brings in what is known of all blocks, and as much of the maps as half of the memory takes.
pub(crate) async fn load(shared: &Arc<Shared>) -> Result<()> {
    load_all(shared).await?;
    while warm_up(shared).await? {
        yield_once().await;
    }
    Ok(())
}

/// Flushes and checkpoints when there is reason to.
async fn keep_durable(shared: &Arc<Shared>) {
    let config = &shared.config;
    let mut last_flush = reactor::now();
    let mut last_checkpoint = reactor::now();
    while !shared.is_closed() {
        reactor::sleep(TICK).await;
        let is_old = |last: Instant, interval| reactor::now().duration_since(last) >= interval;
        let (unflushed, is_flushed) = {
            let state = lock(&shared.state);
            (state.unflushed_bytes(), state.durable >= state.installed())
        };
        if is_flushed {
            last_flush = reactor::now();
        } else if unflushed > config.unflushed_bytes_max
            || is_old(last_flush, config.flush_interval)
        {
            report(shared, Work::Flush, flush_and_note(shared).await);
            last_flush = reactor::now();
        }
        let (used, capacity) = {
            let journal = lock(&shared.journal);
            (journal.used_bytes(), journal.capacity_bytes())
        };
        let unstored = shared.unstored.load(Ordering::Relaxed);
        // Only what is not stored may keep memory full.
        let is_stuck = lock(&shared.state).resident.is_stuck();
        if used * 100 > capacity * u64::from(config.checkpoint_journal_percent)
            || unstored > config.replay_entries_max / 2
            || is_stuck
            || is_old(last_checkpoint, config.checkpoint_interval)
        {
            report(shared, Work::Checkpoint, checkpoint(shared).await);
            last_checkpoint = reactor::now();
        }
    }
}

/// Frees what was trimmed and deleted, a fifth of the time at most, and only as long as the journal
/// has room enough for hosts: the store's part of it, compaction included, costs cores as well.
async fn keep_freeing(shared: &Arc<Shared>, background: &Background) {
    while !shared.is_closed() {
        if journal_fills(shared) {
            reactor::sleep(TICK).await;
            continue;
        }
        let began = reactor::now();
        match free_slice(shared, background).await {
            Ok(true) => {
                let worked = reactor::now().duration_since(began);
                reactor::sleep(worked * FREEING_REST).await;
            }
            ended => {
                report(shared, Work::Freeing, ended.map(drop));
                reactor::sleep(TICK).await;
            }
        }
    }
}

/// Whether the journal is fuller than checkpoints keep it: changes arrive faster than they are
/// stored.
fn journal_fills(shared: &Shared) -> bool {
    let journal = lock(&shared.journal);
    let percent = (100 + u64::from(shared.config.checkpoint_journal_percent)) / 2;
    journal.used_bytes() * 100 > journal.capacity_bytes() * percent
}

/// Brings what is known of all blocks into memory, and as much of the maps as there is room for, once.
async fn keep_loading(shared: &Arc<Shared>) {
    while !shared.is_closed() {
        let more = load_more(shared).await;
        match more {
            Ok(true) => yield_once().await,
            Ok(false) => return report(shared, Work::Loading, Ok(())),
            Err(error) => {
                report(shared, Work::Loading, Err(error));
                reactor::sleep(TICK).await;
            }
        }
    }
}

async fn load_more(shared: &Arc<Shared>) -> Result<bool> {
    if load_some(shared).await? {
        return Ok(true);
    }
    merge_deferred(shared).await?;
    warm_up(shared).await
}

async fn keep_scrubbing(shared: &Arc<Shared>, background: &Background) {
    while !shared.is_closed() {
        scrub_if_wanted(shared, background).await;
        reactor::sleep(TICK).await;
    }
}

async fn keep_rebuilding(shared: &Arc<Shared>, background: &Background) {
    while !shared.is_closed() {
        let is_well = rebuild_if_wanted(shared, background).await
            & rearrange_if_wanted(shared, background).await;
        reactor::sleep(if is_well { TICK } else { REBUILD_AGAIN }).await;
    }
}

/// Takes drives offline that were left because they did not answer.
async fn keep_leaving(shared: &Arc<Shared>) {
    while !shared.is_closed() {
        for drive in shared.drives.leaving() {
            let name = shared.drive_name(drive);
            let error =
                DriveError::new(ErrorKind::Io, &name, "does not answer; check it").in_doubt();
            shared.go_on_without(drive, &error).await;
        }
        reactor::sleep(TICK).await;
    }
}

async fn keep_surveying(shared: &Shared, background: &Background) {
    while !shared.is_closed() {
        survey_if_wanted(shared, background).await;
        reactor::sleep(TICK).await;
    }
}

/// Looks after damaged blocks, index entries, the fill level, and what else is wrong.
async fn keep_watch(shared: &Arc<Shared>) {
    let (mut fill, mut folder) = (FillWatch::default(), FillWatch::default());
    let mut told = reactor::now();
    while !shared.is_closed() {
        fill.watch(shared);
        tend_suspects(shared).await;
        tend_damage(shared).await;
        report(shared, Work::OnDiskIndex, write_index_entries(shared).await);
        if reactor::now().duration_since(told) >= TELL {
            fence_drives(shared).await;
            let owned = shared.clone();
            shared.block_on(move || owned.look_at_folder()).await;
            folder.watch_folder(shared);
            shared.refresh_alerts();
            told = reactor::now();
        }
        reactor::sleep(TICK).await;
    }
}

fn report(shared: &Shared, work: Work, result: Result<()>) {
    shared.alerts.work(work, result);
}

async fn keep_discarding(shared: &Shared) {
    while !shared.is_closed() {
        if lock(&shared.state).space().has_discards() {
            discard_freed(shared).await;
        }
        reactor::sleep(TICK).await;
    }
}
