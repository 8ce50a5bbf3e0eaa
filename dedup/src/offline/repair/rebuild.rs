//! A new metadata store from what is left of a damaged one, and what the journal still holds.
//!
//! * Rows that can be read are taken as they are ([`meta::Salvage`]); of keys in doubt, nothing is believed.
//! * The journal's records after the checkpoint are replayed as an opening does. Older ones, as far back as its ring
//!   goes, say what became of the keys in doubt, if what they say is on the drives.
//! * A sub-block of which neither is known is lost: it reads as an error until it is written again or trimmed. Only a
//!   journal that goes back to the pool's first record proves that it was never written.
//! * A mapping whose block has lost its row is believed if the drive holds a content with the mapping's checksum.
//!
//! Nothing of the old folder changes: the new store takes its place when all is done, and the old one is kept.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use drives::{BLOCK_BYTES, Drive};
use meta::{
    BlockRow, Checkpoint, FileMedia, History, Journal, JournalConfig, JournalMedia, MapId, Mapping,
    MetaErrorKind, NewRows, Pba, PoolDir, PoolPaths, Position, Record, RocksOptions, RocksStore,
    Salvage, Store, VolumeInfo,
};

use super::Parts;
use super::plan::{Contents, Later};
use crate::log::replay::{Data, durable_upto};
use crate::offline::lineage;
use crate::pool::boot::{self, BootId};
use crate::{EngineError, Result};

/// Sub-blocks that can be lost, to be told and marked one by one: 64 GiB.
const LOST_MAX: usize = 16 << 20;

/// Where a sub-block is mapped to of which nothing is known, before it gets its place among the lost ones.
pub(super) const UNKNOWN: Pba = Pba::new(Pba::DRIVE_MAX, Pba::BLOCK_MAX);

/// What was made, beside the pool's own files.
pub(super) struct Rebuilt {
    paths: PoolPaths,
    /// Whether the journal is a new one too.
    has_journal: bool,
    /// What a person should know.
    pub(super) notes: Vec<String>,
    is_used: bool,
}

fn new_store(paths: &PoolPaths) -> PathBuf {
    paths.dir.join("metadata.rebuilt")
}

fn new_journal(paths: &PoolPaths) -> PathBuf {
    paths.dir.join("journal.rebuilt")
}

impl Drop for Rebuilt {
    fn drop(&mut self) {
        if !self.is_used {
            // Best effort: the next attempt removes them too.
            let _ = fs::remove_dir_all(new_store(&self.paths));
            let _ = fs::remove_file(new_journal(&self.paths));
        }
    }
}

impl Rebuilt {
    /// Puts the new files in the place of the old ones, which are kept; returns where.
    ///
    /// # Errors
    /// A file cannot be renamed: the pool is damaged as before.
    pub(super) fn take_over(mut self) -> Result<PathBuf> {
        let failed = |error: std::io::Error| {
            EngineError::unavailable(format!(
                "{}: the rebuilt metadata cannot take its place: {error}",
                self.paths.dir.display()
            ))
        };
        let mut number = 0;
        let kept = loop {
            let kept = self.paths.dir.join(format!("damaged-metadata-{number}"));
            if !kept.exists() {
                break kept;
            }
            number += 1;
        };
        fs::create_dir(&kept).map_err(failed)?;
        let keep = |path: &Path, name: &str| match path.exists() {
            true => fs::rename(path, kept.join(name)).map_err(failed),
            false => Ok(()),
        };
        // A crash in between leaves a pool that lacks a part, which is repaired again: the journal of the old pool
        // goes first, so that no old store is opened with a new journal.
        if self.has_journal {
            keep(&self.paths.journal, "journal")?;
            fs::rename(new_journal(&self.paths), &self.paths.journal).map_err(failed)?;
        }
        keep(&self.paths.metadata, "metadata")?;
        fs::rename(new_store(&self.paths), &self.paths.metadata).map_err(failed)?;
        fs::File::open(&self.paths.dir)
            .and_then(|dir| dir.sync_all())
            .map_err(failed)?;
        self.is_used = true;
        Ok(kept)
    }
}

/// Whether journal and store can be read at all. Nothing is changed.
pub(super) fn is_needed(pool: &PoolDir) -> Result<bool> {
    let is_damage = |kind| matches!(kind, MetaErrorKind::Corrupt | MetaErrorKind::Missing);
    let paths = pool.paths();
    let journal = FileMedia::open_read_only(&paths.journal, pool.identity().uuid);
    if let Err(error) = journal {
        return if is_damage(error.kind()) {
            Ok(true)
        } else {
            Err(error.into())
        };
    }
    let options = RocksOptions::default();
    let store = RocksStore::open_read_only(&paths.metadata, pool.identity().uuid, options);
    match store.and_then(|store| store.load(&mut Nothing)) {
        Ok(_) => Ok(false),
        Err(error) if is_damage(error.kind()) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

struct Nothing;

impl meta::LoadVisitor for Nothing {
    fn volume(&mut self, _: VolumeInfo) {}
    fn block(&mut self, _: Pba, _: BlockRow) {}
    fn map(&mut self, _: u32, _: u64, _: Mapping) {}
}

/// What the journal says.
struct Told {
    /// After the checkpoint.
    records: Vec<(u64, Record)>,
    /// Before it, without a gap.
    past: Vec<(u64, Record)>,
    /// What the new store's checkpoint is: all records are in it.
    next: Checkpoint,
    /// Whether later records may be lost.
    is_cut: bool,
}

impl Told {
    /// Whether it begins with the pool's first record.
    fn is_complete(&self) -> bool {
        let first = self.past.first().or(self.records.first());
        first.is_some_and(|(seq, _)| *seq == 1)
    }
}

/// Makes the new store, and opens it: parts that a plan can be made from.
pub(super) fn make(pool: &PoolDir, drives: Vec<Arc<dyn Drive>>) -> Result<(Parts, Rebuilt)> {
    let (paths, uuid) = (pool.paths(), pool.identity().uuid);
    let scratch = paths.dir.join("metadata.scratch");
    let mut rebuilt = Rebuilt {
        paths: paths.clone(),
        has_journal: false,
        notes: Vec::new(),
        is_used: false,
    };
    let salvage = Salvage::make(&paths.metadata, &new_store(paths), &scratch, uuid)?;
    let (media, left) = match pool.open_journal() {
        Ok(media) => (media, None),
        Err(error)
            if matches!(
                error.kind(),
                MetaErrorKind::Corrupt | MetaErrorKind::Missing
            ) =>
        {
            rebuilt.has_journal = true;
            let _ = fs::remove_file(new_journal(paths));
            let (media, left) = FileMedia::recover(&paths.journal, &new_journal(paths), uuid)?;
            (media, Some(left))
        }
        Err(error) => return Err(error.into()),
    };
    let mut media = Arc::new(media);
    let told = told(&media, left, salvage.checkpoint)?;
    if salvage.rows == 0 && !told.is_complete() {
        return Err(EngineError::corrupt(format!(
            "{}: nothing of it can be read, and the journal does not go back to the pool's beginning: restore the \
             newest backup; nothing was changed",
            paths.metadata.display()
        )));
    }
    if told.next.last_epoch.is_none() && told.next.position.seq > 1 {
        // Nothing of the journal can be used: an empty one goes on.
        rebuilt.has_journal = true;
        let path = new_journal(paths);
        let _ = fs::remove_file(&path);
        media = Arc::new(FileMedia::create(&path, uuid, media.capacity())?);
    }
    // Without a checkpoint it cannot be opened.
    salvage.finish(&NewRows::default(), told.next)?;
    let parts = Parts {
        drives,
        journal: media,
        journal_config: JournalConfig::default(),
        store: Arc::new(RocksStore::open_read_only(
            salvage.dir(),
            uuid,
            RocksOptions::default(),
        )?),
        hash_keys: pool.identity().hash_keys.clone(),
        fingerprint: pool.identity().fingerprint,
        boot: BootId::current(),
        labels_epoch: 0,
        trusts_checksums: true,
    };
    let rows = rows_of(&parts, &salvage, &told, &mut rebuilt.notes)?;
    let Parts {
        drives,
        journal,
        hash_keys,
        fingerprint,
        ..
    } = parts;
    salvage.finish(&rows, told.next)?;
    let parts = Parts {
        drives,
        journal,
        journal_config: JournalConfig::default(),
        store: Arc::new(RocksStore::open(
            salvage.dir(),
            uuid,
            RocksOptions::default(),
        )?),
        hash_keys,
        fingerprint,
        boot: BootId::current(),
        labels_epoch: 0,
        trusts_checksums: true,
    };
    rebuilt.notes.insert(
        0,
        format!(
            "{} rows of the metadata store can be read{}; the journal tells of {} changes more",
            salvage.rows,
            match salvage.tables_lost {
                0 => String::new(),
                tables => format!(", {tables} of its tables cannot"),
            },
            told.records.len() + told.past.len()
        ),
    );
    if told.is_cut {
        rebuilt.notes.push(
            "the journal does not tell all that came after the last checkpoint: what was written since may be lost, and \
             nobody knows which ranges that are; volumes are as they were then: compare them with a backup"
                .to_owned(),
        );
    }
    Ok((parts, rebuilt))
}

/// Reads the journal, from its first record that is left to its end.
fn told(media: &Arc<FileMedia>, left: Option<u64>, checkpoint: Option<Checkpoint>) -> Result<Told> {
    let config = JournalConfig::default();
    let read = |end| History::read(&**media, config, end);
    if let Some(checkpoint) = checkpoint
        && let Ok((journal, records)) = Journal::open(media.clone(), checkpoint, config)
    {
        let position = checkpoint.position;
        let past = match checkpoint.last_epoch {
            Some(epoch) => read(Some((position, epoch)))?.records,
            None => Vec::new(),
        };
        let end = journal.position().offset;
        return Ok(Told {
            next: crate::log::recovery::next_checkpoint(&journal, 0)?,
            records,
            past,
            // Behind the last record that is left, there may have been more.
            is_cut: left.is_some_and(|left| {
                left < media.capacity() && end + u64::from(config.payload_bytes_max) + 64 > left
            }),
        });
    }
    let latest = read(None)?;
    let first = latest.records.first().map(|(seq, _)| *seq);
    let reaches = |checkpoint: Checkpoint| {
        let seq = checkpoint.position.seq;
        first.is_some_and(|first| first <= seq) && latest.end.is_some_and(|end| end.seq >= seq)
    };
    let epoch = latest
        .epoch
        .max(checkpoint.map_or(0, |checkpoint| checkpoint.epoch));
    match (latest.end, checkpoint) {
        (Some(position), checkpoint) if checkpoint.is_none_or(reaches) => {
            let from = checkpoint.map_or(0, |checkpoint| checkpoint.position.seq);
            let (past, records) = latest.records.into_iter().partition(|(seq, _)| *seq < from);
            Ok(Told {
                records,
                past,
                next: Checkpoint {
                    position,
                    epoch: epoch + 1,
                    last_epoch: Some(latest.epoch),
                },
                is_cut: left.is_some(),
            })
        }
        (_, Some(checkpoint)) => Ok(Told {
            records: Vec::new(),
            past: Vec::new(),
            next: Checkpoint {
                position: Position {
                    seq: checkpoint.position.seq,
                    offset: 0,
                },
                epoch: epoch + 1,
                last_epoch: None,
            },
            is_cut: true,
        }),
        (_, None) => Err(EngineError::corrupt(
            "neither the metadata store nor the journal says how far the pool had come: restore the newest backup; \
             nothing was changed",
        )),
    }
}

/// What the rows are that could not be read, as far as the journal and the drives tell.
fn rows_of(
    parts: &Parts,
    salvage: &Salvage,
    told: &Told,
    notes: &mut Vec<String>,
) -> Result<NewRows> {
    let stored: BTreeMap<u32, VolumeInfo> = parts
        .store
        .volumes()?
        .into_iter()
        .map(|info| (info.id, info))
        .collect();
    let all = || told.past.iter().chain(&told.records);
    let created = all().filter_map(|(_, record)| match record {
        Record::VolumeCreate(info) => Some(info),
        _ => None,
    });
    let mut contents = Contents::new(parts, stored.values().chain(created))?;
    // Volumes and settings: the last record of each says what it is.
    let lost_power = match salvage.checkpoint {
        Some(checkpoint) => {
            boot::may_have_lost_power(&parts.store.settings()?, checkpoint, parts.boot)
        }
        None => true,
    };
    let stored_maps = parts.store.maps()?;
    let stored_maps = stored_maps
        .into_iter()
        .map(|info| (info.id, info))
        .collect();
    let mut later = Later::new((&stored, &stored_maps));
    let mut settings = BTreeMap::new();
    let durable = durable_upto(&told.records);
    for (_, record) in all() {
        if let Record::Settings(changes) = record {
            settings.extend(changes.clone());
        }
    }
    for (seq, record) in &told.past {
        later.apply(*seq, record, Data::Durable, &mut contents)?;
    }
    // A row that could be read knows better.
    later
        .map
        .retain(|(map, at), _| salvage.doubts_mapping(*map, *at));
    for (seq, record) in &told.records {
        let data = Data::of(*seq, durable, lost_power);
        later.apply(*seq, record, data, &mut contents)?;
    }
    let mut rows = NewRows {
        settings: settings.into_iter().collect(),
        ..NewRows::default()
    };
    let ids: BTreeSet<u32> = stored.keys().chain(later.volumes.keys()).copied().collect();
    for id in ids {
        rows.volumes.push((id, later.volumes.get(&id).cloned()));
    }
    let ids: BTreeSet<MapId> = stored_maps
        .keys()
        .chain(later.maps.keys())
        .copied()
        .collect();
    for id in ids {
        rows.maps.push((id, later.maps.get(&id).copied()));
    }
    let mut map: BTreeMap<(MapId, u64), Option<Mapping>> = BTreeMap::new();
    let mut blocks = BTreeMap::new();
    for (key, to) in &later.map {
        let mapping = match to {
            Some((pba, _)) if pba.is_hole() => Mapping::HOLE,
            Some((pba, content)) => {
                let is_doubtful = salvage.doubts_mapping(key.0, key.1);
                if is_doubtful && !contents.holds(*pba, content) {
                    unknown()
                } else {
                    let row = BlockRow {
                        refcount: 1,
                        fingerprint: content.fingerprint,
                        crc32c: content.crc32c,
                        has_index_entry: false,
                    };
                    blocks.insert(*pba, row);
                    Mapping {
                        pba: *pba,
                        crc32c: content.crc32c,
                    }
                }
            }
            None => {
                map.insert(*key, None);
                continue;
            }
        };
        map.insert(*key, Some(mapping));
    }
    let knows_all = told.is_complete();
    if salvage.has_doubts() && !knows_all {
        lose(salvage, &later, &mut map)?;
    }
    if salvage.doubts_settings() && !knows_all {
        notes.push(
            "settings may be lost: look through subsystems, hosts, their secrets and lists, and listeners before \
             hosts come back"
                .to_owned(),
        );
    }
    if salvage.doubts_maps() && !knows_all {
        notes.push(
            "which volumes are clones of which may be lost: compare clones with a backup"
                .to_owned(),
        );
    }
    if salvage.doubts_volumes() && !knows_all {
        notes.push(
            "volumes may be lost: what is mapped of them comes back as recovered-N".to_owned(),
        );
    }
    rows.map = map.into_iter().collect();
    rows.blocks = blocks.into_iter().collect();
    Ok(rows)
}

fn unknown() -> Mapping {
    Mapping {
        pba: UNKNOWN,
        crc32c: 0,
    }
}

/// Marks the sub-blocks of which nothing is known.
fn lose(
    salvage: &Salvage,
    later: &Later,
    map: &mut BTreeMap<(MapId, u64), Option<Mapping>>,
) -> Result<()> {
    let mut lost = 0;
    // A parent is as large as the largest volume that inherits from it.
    let mut sizes: BTreeMap<MapId, u64> = BTreeMap::new();
    for info in later.volumes.values() {
        for map in lineage(&later.maps, info.map) {
            let size = sizes.entry(map).or_default();
            *size = info.size_bytes.max(*size);
        }
    }
    for (id, size_bytes) in sizes {
        for at in 0..size_bytes / BLOCK_BYTES as u64 {
            if !salvage.doubts_mapping(id, at) || map.contains_key(&(id, at)) {
                continue;
            }
            lost += 1;
            if lost > LOST_MAX {
                return Err(EngineError::corrupt(format!(
                    "nothing is known of more than {} GiB of volumes: restore the newest backup; nothing was changed",
                    (LOST_MAX * BLOCK_BYTES) >> 30
                )));
            }
            map.insert((id, at), Some(unknown()));
        }
    }
    Ok(())
}
