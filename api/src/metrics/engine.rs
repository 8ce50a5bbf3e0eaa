//! The pool, its health, its memory, and its volumes.

use std::fmt;

use dedup::{DriveState, HealthState, MetadataStatus, PoolStatus, ScrubPhase};

use super::page::{Page, bytes, plain, seconds};
use crate::status::Status;

/// Space of the pool.
pub(super) fn pool(page: &mut Page<'_>, status: &Status, space: &PoolStatus) -> fmt::Result {
    page.gauges(
        plain("build_info", "The version of the daemon; always 1"),
        [(vec![("version", status.version.as_str())], 1_u64)],
    )?;
    let name = bytes("pool_capacity", "Room for data on all drives");
    page.gauge(name, space.capacity_bytes)?;
    let name = bytes("pool_used", "Data blocks in use on all drives");
    page.gauge(name, space.used_bytes)?;
    let name = bytes("pool_free", "Free for new data");
    page.gauge(name, space.free_bytes)?;
    let name = bytes(
        "pool_reclaiming",
        "Freed, and reusable after the next flush or discard",
    );
    page.gauge(name, space.reclaiming_bytes)?;
    let name = bytes(
        "pool_logical",
        "Mapped data of all volumes, before deduplication and compression",
    );
    page.gauge(name, space.logical_bytes)?;
    let name = bytes("pool_metadata", "Journal and metadata store on disk");
    page.gauge(name, space.metadata_bytes)?;
    let name = bytes(
        "pool_unflushed",
        "Acknowledged data that a loss of power could undo",
    );
    page.gauge(name, space.unflushed_bytes)?;
    let name = plain(
        "pool_dedup_ratio",
        "How often a content is mapped; 1 saves nothing",
    );
    page.gauge(name, status.pool.dedup_ratio)?;
    let name = bytes("pool_compression_saved", "What compression saves");
    page.gauge(name, status.pool.compression_saved_bytes)?;
    let name = bytes(
        "pool_compressed",
        "Compressed contents, as they are without compression",
    );
    page.gauge(name, space.compressed_bytes)?;
    let name = bytes("pool_packed", "Data blocks that hold compressed contents");
    page.gauge(name, space.packed_bytes)?;
    if let Some(reliability) = &status.reliability {
        let name = plain(
            "pool_losses_per_year",
            "Losses of data in a year that are to be expected of the pool as it is now",
        );
        page.gauge(name, reliability.losses_per_year)?;
        let name = plain(
            "pool_wanted_losses_per_year",
            "Losses of data in a year that are accepted; no sample where nobody said how many",
        );
        let wanted = reliability.wanted_losses_per_year;
        page.gauges(name, wanted.map(|wanted| (vec![], wanted)))?;
        let name = plain(
            "pool_copies_min",
            "The fewest copies on drives that are online of any data",
        );
        page.gauge(name, u64::from(reliability.copies_min))?;
    }
    if let Some(folder) = &space.folder {
        let name = bytes("pool_folder_size", "The file system of the pool's folder");
        page.gauge(name, folder.total_bytes)?;
        let name = bytes(
            "pool_folder_free",
            "Free on the file system of the pool's folder",
        );
        page.gauge(name, folder.available_bytes)?;
    }
    let drives = || {
        space
            .drives
            .iter()
            .map(|drive| (vec![("drive", drive.name.as_str())], drive))
    };
    let name = bytes("drive_capacity", "Room for data on a drive");
    page.gauges(
        name,
        drives().map(|(labels, drive)| (labels, drive.capacity_bytes)),
    )?;
    let name = bytes("drive_free", "Free for new data on a drive");
    page.gauges(
        name,
        drives().map(|(labels, drive)| (labels, drive.free_bytes)),
    )?;
    let name = bytes("drive_stale", "Data that a drive may lack");
    page.gauges(
        name,
        drives().map(|(labels, drive)| (labels, drive.stale_bytes)),
    )?;
    page.gauges(
        plain(
            "drive_online",
            "Whether a drive's copies are used: 1, or 0 while it is offline or rebuilt",
        ),
        drives().map(|(labels, drive)| (labels, u64::from(drive.state == DriveState::Online))),
    )?;
    page.gauges(
        plain(
            "drive_errors",
            "Commands of a drive that failed, and copies there that were wrong, since it was opened",
        ),
        drives().map(|(labels, drive)| (labels, drive.errors)),
    )?;
    page.counters(
        plain(
            "drive_hedged_reads",
            "Reads of a drive that took long, and that another drive with the same data answered first",
        ),
        drives().map(|(labels, drive)| (labels, drive.hedged_reads)),
    )?;
    let troubles = status.health.drives.iter();
    page.gauges(
        plain(
            "drive_failing_commands",
            "Reads, writes and flushes that failed since the drive began to fail",
        ),
        troubles.map(|trouble| (vec![("drive", trouble.drive.as_str())], trouble.errors)),
    )
}

/// What is wrong, and what is being done about it.
pub(super) fn health(page: &mut Page<'_>, status: &Status, space: &PoolStatus) -> fmt::Result {
    let health = &status.health;
    let states = [
        ("ok", HealthState::Ok),
        ("degraded", HealthState::Degraded),
        ("takes_no_writes", HealthState::TakesNoWrites),
    ];
    page.gauges(
        plain("pool_health", "1 for the state that the pool is in"),
        states.map(|(name, state)| {
            (
                vec![("state", name)],
                u64::from(health.verdict.state == state),
            )
        }),
    )?;
    let reached = health.fill_warning_percent.unwrap_or(0);
    let name = plain(
        "pool_fill_warning_ratio",
        "The highest warning level that the fill has reached; 0: none",
    );
    page.gauge(name, f64::from(reached) / 100.0)?;
    let name = plain(
        "refused_writes",
        "Writes of hosts that failed for the state of the pool",
    );
    page.counter(name, health.verdict.refused_writes)?;
    let name = plain(
        "corrupt_blocks",
        "Blocks whose content did not match its checksum when read",
    );
    page.counter(name, space.corrupt_blocks)?;
    let name = plain("damaged_blocks", "Blocks that are known to be damaged now");
    page.gauge(name, health.damage.damaged_blocks)?;
    let name = plain("healed_blocks", "Damaged blocks that were healed");
    page.counter(name, health.damage.healed_blocks)?;
    let scrub = &health.scrub;
    let name = plain("scrub_running", "1 while a scrub reads");
    page.gauge(name, u64::from(scrub.phase == ScrubPhase::Running))?;
    let name = plain(
        "scrub_blocks",
        "Blocks that the running or last scrub has to read",
    );
    page.gauge(name, scrub.total_blocks)?;
    let name = plain("scrub_checked_blocks", "Blocks that it has read");
    page.gauge(name, scrub.checked_blocks)?;
    let name = plain("scrub_bad_blocks", "Damaged blocks that it found");
    page.gauge(name, scrub.bad_blocks)?;
    let verify = &health.verify;
    let name = bytes(
        "verify_waiting",
        "Acknowledged data that waits to be compared with its duplicates",
    );
    page.gauge(name, verify.waiting_bytes)?;
    let name = plain(
        "verify_compared_blocks",
        "Duplicates that were compared byte by byte",
    );
    page.counter(name, verify.compared_blocks)?;
    let name = plain(
        "verify_collisions",
        "Contents that had the fingerprint of another one",
    );
    page.counter(name, verify.collisions)?;
    let name = plain(
        "verify_failed_blocks",
        "Acknowledged data that could not be compared",
    );
    page.counter(name, verify.failed_blocks)?;
    let deleting = health.deleting.iter();
    let name = bytes(
        "deleting",
        "Mapped data of deleted volumes that is being freed",
    );
    page.gauge(name, deleting.map(|it| it.remaining_bytes).sum::<u64>())?;
    let trimming = health.trimming.iter();
    let name = bytes("trimming", "Trimmed ranges that are being worked off");
    page.gauge(name, trimming.map(|it| it.remaining_bytes).sum::<u64>())
}

/// The index, and the cache of metadata.
pub(super) fn memory(page: &mut Page<'_>, space: &PoolStatus) -> fmt::Result {
    let name = bytes(
        "index_memory",
        "Memory of the index that finds blocks by their content",
    );
    page.gauge(name, space.index_bytes)?;
    let name = bytes("index_memory_limit", "Memory that the index may take");
    page.gauge(name, space.index_bytes_max)?;
    let name = plain("index_blocks", "Blocks that the index has");
    page.gauge(name, space.indexed_blocks)?;
    let name = plain(
        "index_missing_blocks",
        "Blocks with a fingerprint that the index does not have",
    );
    page.gauge(name, space.unindexed_blocks)?;
    let name = plain(
        "on_disk_index_lookups",
        "Contents that the store was asked for, because the index did not have them",
    );
    page.counter(name, space.on_disk_index_lookups)?;
    let name = plain("on_disk_index_hits", "Those of them that the store knew");
    page.counter(name, space.on_disk_index_hits)?;
    let name = bytes(
        "metadata_cache",
        "Memory of maps and of what is known of blocks",
    );
    page.gauge(name, space.metadata_resident_bytes)?;
    let name = bytes("metadata_cache_limit", "Memory that they may take");
    page.gauge(name, space.metadata_cache_bytes)?;
    let name = bytes(
        "metadata_fixed",
        "Memory of what is never evicted: free blocks, and where rows of blocks lie",
    );
    page.gauge(name, space.metadata_fixed_bytes)?;
    let name = plain(
        "map_page_reads",
        "Reads of the store for pages of maps that were not in memory",
    );
    page.counter(name, space.map_page_reads)?;
    let name = plain("map_page_evictions", "Pages of maps that left memory");
    page.counter(name, space.map_page_evictions)
}

/// The journal, checkpoints, and RocksDB.
pub(super) fn metadata(page: &mut Page<'_>, metadata: &MetadataStatus) -> fmt::Result {
    let name = bytes("journal_capacity", "The journal's ring");
    page.gauge(name, metadata.journal_bytes)?;
    let name = bytes(
        "journal_used",
        "The part of it with records that the store does not have",
    );
    page.gauge(name, metadata.journal_used_bytes)?;
    let name = plain(
        "journal_records",
        "Records that were appended to the journal in the life of the pool",
    );
    page.counter(name, metadata.journal_records)?;
    let name = plain(
        "journal_unsynced_records",
        "Records that a loss of power could undo",
    );
    page.gauge(name, metadata.journal_unsynced_records)?;
    let name = plain(
        "checkpoint_waiting_changes",
        "Changes of mappings that are in the journal and not in the store",
    );
    page.gauge(name, metadata.unstored_changes)?;
    let name = plain(
        "checkpoint_batches",
        "Batches of changes that went from the journal into the store",
    );
    page.counter(name, metadata.stored_batches)?;
    let name = plain("checkpoint_changes", "Changes of mappings in them");
    page.counter(name, metadata.stored_changes)?;
    let name = seconds("checkpoint", "How long that took");
    page.counter(name, metadata.storing_microseconds as f64 / 1e6)?;
    let Some(store) = metadata.store else {
        return Ok(());
    };
    let name = bytes(
        "rocksdb_write_buffer",
        "Rows that are in memory and in RocksDB's log only",
    );
    page.gauge(name, store.write_buffer_bytes)?;
    let name = bytes("rocksdb_cache", "RocksDB's cache of what it read");
    page.gauge(name, store.cache_bytes)?;
    let name = bytes(
        "rocksdb_table_reader",
        "Memory of RocksDB's indexes and filters outside of its cache",
    );
    page.gauge(name, store.table_reader_bytes)?;
    let name = bytes("rocksdb_file", "RocksDB's files with rows");
    page.gauge(name, store.file_bytes)?;
    let name = plain(
        "rocksdb_unsorted_files",
        "Files that are not sorted into a level yet",
    );
    page.gauge(name, store.unsorted_files)?;
    let name = bytes(
        "rocksdb_pending_compaction",
        "What compactions have to rewrite, about",
    );
    page.gauge(name, store.pending_compaction_bytes)?;
    let name = plain("rocksdb_running_compactions", "Compactions that run now");
    page.gauge(name, store.running_compactions)?;
    let name = plain(
        "rocksdb_running_flushes",
        "Write buffers that are being written to files now",
    );
    page.gauge(name, store.running_flushes)?;
    let name = plain(
        "rocksdb_stopped",
        "1 while RocksDB takes no writes, because compactions are behind",
    );
    page.gauge(name, u64::from(store.is_stopped))?;
    let name = plain(
        "rocksdb_background_errors",
        "Errors of RocksDB's background work",
    );
    page.counter(name, store.background_errors)
}

/// The volumes.
pub(super) fn volumes(page: &mut Page<'_>, status: &Status) -> fmt::Result {
    let volumes = || {
        status
            .volumes
            .iter()
            .map(|volume| (vec![("volume", volume.name.as_str())], volume))
    };
    let name = bytes("volume_size", "The size of a volume as hosts see it");
    page.gauges(
        name,
        volumes().map(|(labels, volume)| (labels, volume.size_bytes)),
    )?;
    let name = bytes("volume_logical", "Mapped data of a volume");
    page.gauges(
        name,
        volumes().map(|(labels, volume)| (labels, volume.logical_bytes)),
    )?;
    let counted = || {
        let counted = status.survey.iter().flat_map(|survey| &survey.volumes);
        counted.map(|shares| (vec![("volume", shares.name.as_str())], shares))
    };
    let name = bytes(
        "volume_unique",
        "Data that a volume alone refers to, as the last survey counted it",
    );
    page.gauges(
        name,
        counted().map(|(labels, shares)| (labels, shares.unique_bytes)),
    )?;
    let name = bytes(
        "volume_shared",
        "Data that a volume shares with others, as the last survey counted it",
    );
    page.gauges(
        name,
        counted().map(|(labels, shares)| (labels, shares.shared_bytes)),
    )?;
    let name = bytes(
        "volume_related",
        "Of that, data that snapshots and clones of it, or what it comes from, refer to",
    );
    page.gauges(
        name,
        counted().map(|(labels, shares)| (labels, shares.related_bytes)),
    )
}
