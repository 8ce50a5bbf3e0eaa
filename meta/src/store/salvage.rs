//! What can still be read of a store whose files are damaged, as the ground for a new one.
//!
//! * The damaged folder stays as it is. What its files need (a file that names the right manifest, a manifest made
//!   anew) is done to links and copies of them in a folder beside it.
//! * A row counts only if every table that could hold a newer version of it can be read at that place. Of what is
//!   between the places that can be read, nothing is known: those ranges of keys are *in doubt*, and so are rows that
//!   make no sense.
//! * A table that cannot be opened at all puts every key in doubt that it could have held.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rocksdb::{DB, DBRawIterator, DEFAULT_COLUMN_FAMILY_NAME, LiveFile, ReadOptions, WriteBatch};
use uuid::Uuid;

use super::database::{RocksOptions, classify, corrupt, families, keep_private, wrong_version};
use super::page::{self, Content, Page};
use super::rocks::RocksStore;
use super::rows::{
    self, KEY_CHECKPOINT, KEY_FORMAT, KEY_TOTALS, PREFIX_ANCESTRY, PREFIX_BLOCK, PREFIX_MAP,
    PREFIX_SEGMENT, PREFIX_SETTING, PREFIX_VOLUME,
};
use crate::codec::CodecError;
use crate::error::MetaError;
use crate::setting::ON_DRIVES_KEY;
use crate::types::{BlockRow, Checkpoint, MapId, MapInfo, Mapping, Pba, Totals, VolumeInfo};

/// Places that cannot be read; behind the last of them, all is in doubt.
const HOLES_MAX: usize = 10_000;
/// Bytes of rows written at a time.
const WRITE_BYTES: usize = 4 << 20;
/// The least step from a key that cannot be read to the next one to try: a page of a map.
const STEP: u128 = 1 << 24;

/// Keys from the first up to, but not including, the second; without that, to the end.
type Keys = (Vec<u8>, Option<Vec<u8>>);

/// A new store with the rows that can be read of a damaged one. It has no checkpoint yet.
pub struct Salvage {
    /// The new store's folder.
    dir: PathBuf,
    pool: Uuid,
    /// What the rows stand for, if that row could be read.
    pub checkpoint: Option<Checkpoint>,
    /// Rows that could be read.
    pub rows: u64,
    /// Tables that could not be opened.
    pub tables_lost: usize,
    in_doubt: Vec<Keys>,
    /// How much the rows are that were read, and how much they say that they are.
    found: Totals,
    totals: Option<Totals>,
    /// There are, or were, maps with parents.
    has_parents: bool,
}

/// Rows that a new store gets besides those that could be read.
#[derive(Default)]
pub struct NewRows {
    /// Volumes; `None` is none.
    pub volumes: Vec<(u32, Option<VolumeInfo>)>,
    /// Maps with a parent, or that had children; `None` is none.
    pub maps: Vec<(MapId, Option<MapInfo>)>,
    /// Settings; `None` is none.
    pub settings: Vec<(String, Option<Vec<u8>>)>,
    /// Mappings, by map and sub-block; `None` is none.
    pub map: Vec<((MapId, u64), Option<Mapping>)>,
    /// Blocks, by address.
    pub blocks: Vec<(Pba, BlockRow)>,
}

impl Salvage {
    /// Reads the store of `pool` in `damaged` as far as that is possible, and makes the folder `dir` for a new one.
    /// `dir` and `scratch` are removed first, should an earlier attempt have left them; `scratch` is gone afterwards.
    ///
    /// # Errors
    /// [`MetaError::WrongPool`], [`MetaError::NoSpace`] and others.
    pub fn make(damaged: &Path, dir: &Path, scratch: &Path, pool: Uuid) -> Result<Self, MetaError> {
        remove(dir)?;
        RocksStore::create(dir, pool)?;
        let mut salvage = Self {
            dir: dir.to_path_buf(),
            pool,
            checkpoint: None,
            rows: 0,
            tables_lost: 0,
            in_doubt: Vec::new(),
            found: Totals::default(),
            totals: None,
            has_parents: false,
        };
        let read = salvage.read(damaged, scratch);
        remove(scratch)?;
        if !read? {
            salvage.in_doubt = vec![(Vec::new(), None)];
        }
        Ok(salvage)
    }

    /// Reads what can be read; false if nothing can.
    fn read(&mut self, damaged: &Path, scratch: &Path) -> Result<bool, MetaError> {
        let is_there = damaged.try_exists();
        if !is_there.map_err(|error| MetaError::io(damaged, "look for the folder", error))? {
            return Ok(false);
        }
        let mut known: Option<Vec<LiveFile>> = None;
        if let Ok(db) = open_leniently(damaged) {
            known = db.live_files().ok();
            if self.copy(&db)? {
                return Ok(true);
            }
        }
        // The file that names the manifest is lost, but manifests are there: the newest one is right.
        if known.is_none()
            && let Some(manifest) = newest_manifest(damaged)
        {
            link(damaged, scratch)?;
            let current = scratch.join("CURRENT");
            let _ = fs::remove_file(&current);
            fs::write(&current, format!("{manifest}\n"))
                .map_err(|error| MetaError::io(&current, "write the file", error))?;
            if let Ok(db) = open_leniently(scratch) {
                known = db.live_files().ok();
                if self.copy(&db)? {
                    return Ok(true);
                }
            }
        }
        // A manifest of all tables that can be opened.
        link(damaged, scratch)?;
        let is_known = |name: &String| {
            let mut files = known.iter().flatten();
            known.is_none() || files.any(|file| file.name.trim_start_matches('/') == name)
        };
        for old in tables(scratch)?.iter().filter(|name| !is_known(name)) {
            // It was merged into others, and not removed yet: what was deleted since would come back with it.
            let old = scratch.join(old);
            fs::remove_file(&old).map_err(|error| MetaError::io(&old, "remove the link", error))?;
        }
        let before = tables(scratch)?;
        let [(_, options), _] = families(&RocksOptions::default());
        let repaired = DB::repair(&options, scratch).and_then(|()| open_leniently(scratch));
        let Ok(db) = repaired else {
            return Ok(false);
        };
        let left = tables(scratch)?;
        let lost: Vec<&String> = before.iter().filter(|name| !left.contains(name)).collect();
        self.tables_lost = lost.len();
        self.in_doubt = match &known {
            // The manifest said which keys are in which table.
            Some(files) => files
                .iter()
                .filter(|file| file.column_family_name == DEFAULT_COLUMN_FAMILY_NAME)
                .filter(|file| !left.contains(&file.name.trim_start_matches('/').to_owned()))
                .map(|file| {
                    let end = file.end_key.as_ref().map(|key| successor(key));
                    (file.start_key.clone().unwrap_or_default(), end)
                })
                .collect(),
            None if lost.is_empty() => Vec::new(),
            None => vec![(Vec::new(), None)],
        };
        let is_any = self.copy(&db)?;
        if known.is_none() && self.in_doubt.is_empty() && self.totals.as_ref() != Some(&self.found)
        {
            // A table that was merged into others may have brought back what was deleted.
            self.in_doubt = vec![(Vec::new(), None)];
        }
        Ok(is_any)
    }

    /// Copies all rows that can be read to the new store; false if there is none, although there must be some.
    fn copy(&mut self, db: &DB) -> Result<bool, MetaError> {
        let out = self.open()?;
        let mut batch = WriteBatch::default();
        let mut options = ReadOptions::default();
        options.fill_cache(false);
        let mut rows = db.raw_iterator_opt(options);
        let mut holes: Vec<Keys> = Vec::new();
        let mut from = Vec::new();
        let mut found = 0;
        loop {
            rows.seek(&from);
            while let Some((key, value)) = rows.item() {
                found += 1;
                from = successor(key);
                match self.take(key, value)? {
                    Some(true) if !self.doubts(key) => {
                        batch.put(key, value);
                        self.rows += 1;
                    }
                    Some(false) => holes.push((key.to_vec(), Some(from.clone()))),
                    _ => {}
                }
                if batch.size_in_bytes() > WRITE_BYTES {
                    self.write(&out, std::mem::take(&mut batch))?;
                }
                rows.next();
            }
            if rows.status().is_ok() {
                break;
            }
            let next = (holes.len() < HOLES_MAX)
                .then(|| next_readable(&mut rows, &from))
                .flatten();
            holes.push((from.clone(), next.clone()));
            match next {
                Some(next) => from = next,
                None => break,
            }
        }
        self.write(&out, batch)?;
        if found == 0 {
            return Ok(false);
        }
        self.in_doubt.append(&mut holes);
        Ok(true)
    }

    /// Whether a row makes sense; `None` if the new store gets one of its own.
    fn take(&mut self, key: &[u8], value: &[u8]) -> Result<Option<bool>, MetaError> {
        match key {
            KEY_FORMAT => {
                let Ok((version, found)) = rows::parse_format(value) else {
                    return Ok(None);
                };
                // A newer program's rows would not make sense here, and be thrown away.
                let found = found.ok_or_else(|| wrong_version(&self.dir, version))?;
                self.has_parents = rows::has_parents(version);
                if found != self.pool {
                    return Err(MetaError::WrongPool {
                        path: self.dir.clone(),
                        found,
                        expected: self.pool,
                        remedy: "put the metadata of this pool back in its place".to_owned(),
                    });
                }
                return Ok(None);
            }
            KEY_CHECKPOINT => {
                if !self.doubts(key) {
                    self.checkpoint = rows::parse_checkpoint(value).ok();
                }
                return Ok(None);
            }
            KEY_TOTALS => {
                self.totals = rows::parse_totals(value).ok();
                return Ok(None);
            }
            _ => {}
        }
        let makes_sense = |parsed: Result<(), CodecError>| parsed.is_ok();
        Ok(Some(match key.first() {
            Some(&PREFIX_BLOCK) => makes_sense(rows::blocks(key, value).map(|blocks| {
                blocks.for_each(|(pba, _)| self.found.add_block(pba));
            })),
            Some(&PREFIX_MAP) => {
                let parsed = rows::parse_map_key(key)
                    .and_then(|(map, _)| Ok((map, rows::mappings(key, value)?)));
                makes_sense(parsed.map(|(map, mappings)| {
                    let mapped = mappings.filter(|(_, mapping)| !mapping.is_hole());
                    mapped.for_each(|_| self.found.add_mapping(map));
                }))
            }
            Some(&PREFIX_VOLUME) => makes_sense(rows::parse_volume(key, value).map(drop)),
            Some(&PREFIX_ANCESTRY) => makes_sense(rows::parse_ancestry(key, value).map(drop)),
            Some(&PREFIX_SETTING) => makes_sense(rows::parse_setting(key, value).map(drop)),
            Some(&PREFIX_SEGMENT) => makes_sense(rows::parse_segment(key, value).map(drop)),
            _ => false,
        }))
    }

    fn doubts(&self, key: &[u8]) -> bool {
        let is_in = |(first, end): &Keys| {
            first.as_slice() <= key && end.as_ref().is_none_or(|end| key < end.as_slice())
        };
        self.in_doubt.iter().any(is_in)
    }

    /// Whether nothing is known of a mapping, if the rows are all there is.
    #[must_use]
    pub fn doubts_mapping(&self, map: MapId, sub_block: u64) -> bool {
        self.doubts(&rows::map_key(map, sub_block))
    }

    /// Whether rows of volumes may be lost.
    #[must_use]
    pub fn doubts_volumes(&self) -> bool {
        self.doubts_any(PREFIX_VOLUME)
    }

    /// Whether rows of maps that have parents may be lost.
    #[must_use]
    pub fn doubts_maps(&self) -> bool {
        self.has_parents && self.doubts_any(PREFIX_ANCESTRY)
    }

    /// Whether settings may be lost.
    #[must_use]
    pub fn doubts_settings(&self) -> bool {
        self.doubts_any(PREFIX_SETTING)
    }

    fn doubts_any(&self, prefix: u8) -> bool {
        let (low, high) = ([prefix], [prefix + 1]);
        let touches = |(first, end): &Keys| {
            first.as_slice() < &high[..] && end.as_ref().is_none_or(|end| end.as_slice() > &low[..])
        };
        self.in_doubt.iter().any(touches)
    }

    /// Whether anything is in doubt.
    #[must_use]
    pub fn has_doubts(&self) -> bool {
        !self.in_doubt.is_empty()
    }

    /// The new store's folder.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Gives the new store these rows and its checkpoint, durably. Counts of blocks and totals are still to be made
    /// right.
    ///
    /// # Errors
    /// [`MetaError::NoSpace`] and others.
    pub fn finish(&self, new: &NewRows, checkpoint: Checkpoint) -> Result<(), MetaError> {
        let out = self.open()?;
        let mut batch = WriteBatch::default();
        for (id, info) in &new.volumes {
            match info {
                Some(info) => batch.put(rows::volume_key(*id), rows::volume(info)),
                None => batch.delete(rows::volume_key(*id)),
            }
        }
        for (id, info) in &new.maps {
            match info {
                Some(info) => batch.put(rows::ancestry_key(*id), rows::ancestry(info)),
                None => batch.delete(rows::ancestry_key(*id)),
            }
        }
        for (key, value) in &new.settings {
            match value {
                Some(value) => batch.put(rows::setting_key(key), value),
                None => batch.delete(rows::setting_key(key)),
            }
        }
        let blocks = new
            .blocks
            .iter()
            .map(|(pba, row)| (rows::block_key(*pba), pba.0, Some(*row)));
        // What drives hold is not what this store has.
        batch.delete(rows::setting_key(ON_DRIVES_KEY));
        self.put_pages(&out, &mut batch, blocks)?;
        let map = new.map.iter();
        let map = map.map(|((map, at), to)| (rows::map_key(*map, *at), *at, *to));
        self.put_pages(&out, &mut batch, map)?;
        let has_parents = self.has_parents || new.maps.iter().any(|(_, info)| info.is_some());
        batch.put(KEY_FORMAT, rows::format(self.pool, has_parents));
        batch.put(KEY_CHECKPOINT, rows::checkpoint(checkpoint));
        batch.put(KEY_TOTALS, rows::totals(&Totals::default()));
        self.write(&out, batch)?;
        out.flush()
            .map_err(|error| classify(&self.dir, "write the new metadata store", error))?;
        keep_private(&self.dir);
        Ok(())
    }

    /// Entries of pages, those of a page one after the other.
    fn put_pages<K: AsRef<[u8]> + PartialEq, C: Content>(
        &self,
        out: &DB,
        batch: &mut WriteBatch,
        entries: impl Iterator<Item = (K, u64, Option<C>)>,
    ) -> Result<(), MetaError> {
        let mut entries = entries.peekable();
        while let Some((key, number, content)) = entries.next() {
            let stored = out
                .get(&key)
                .map_err(|error| classify(&self.dir, "read the new metadata store", error))?;
            let mut page = Page::new();
            page.read_row(stored.as_deref())
                .map_err(|error| corrupt(&self.dir, "new", error))?;
            page.put(page::position(number), content);
            while let Some((_, number, content)) = entries.next_if(|(next, _, _)| *next == key) {
                page.put(page::position(number), content);
            }
            let row = page.row();
            match row.is_empty() {
                true => batch.delete(&key),
                false => batch.put(&key, row),
            }
            if batch.size_in_bytes() > WRITE_BYTES {
                self.write(out, std::mem::take(batch))?;
            }
        }
        Ok(())
    }

    fn open(&self) -> Result<DB, MetaError> {
        let families = families(&RocksOptions::default());
        let options = families[0].1.clone();
        DB::open_cf_with_opts(&options, &self.dir, families)
            .map_err(|error| classify(&self.dir, "open the new metadata store", error))
    }

    fn write(&self, out: &DB, batch: WriteBatch) -> Result<(), MetaError> {
        out.write(batch)
            .map_err(|error| classify(&self.dir, "write the new metadata store", error))
    }
}

/// The least key behind this one.
fn successor(key: &[u8]) -> Vec<u8> {
    [key, &[0]].concat()
}

/// Opens what is there for reading, also if files have another size than the manifest says.
fn open_leniently(dir: &Path) -> Result<DB, rocksdb::Error> {
    let [(name, mut rows), (index, of_index)] = families(&RocksOptions::default());
    rows.set_paranoid_checks(false);
    let names = DB::list_cf(&rows, dir)?;
    let mut families = vec![(name, rows.clone()), (index, of_index)];
    families.retain(|(name, _)| names.iter().any(|known| known == name));
    DB::open_cf_with_opts_for_read_only(&rows, dir, families, false)
}

/// The first key from `from` on, about, that can be read from.
fn next_readable(rows: &mut DBRawIterator<'_>, from: &[u8]) -> Option<Vec<u8>> {
    let mut is_readable = |number: u128| {
        rows.seek(key_of(number));
        rows.valid() || rows.status().is_ok()
    };
    let mut bad = number_of(from);
    let mut step = STEP;
    let mut good = loop {
        let next = bad.checked_add(step)?;
        if is_readable(next) {
            break next;
        }
        bad = next;
        step = step.checked_mul(2)?;
    };
    while good - bad > STEP {
        let middle = bad + (good - bad) / 2;
        match is_readable(middle) {
            true => good = middle,
            false => bad = middle,
        }
    }
    Some(key_of(good))
}

/// The beginning of a key as a number.
fn number_of(key: &[u8]) -> u128 {
    let mut bytes = [0; 16];
    let len = key.len().min(bytes.len());
    bytes[..len].copy_from_slice(&key[..len]);
    u128::from_be_bytes(bytes)
}

/// The least key that begins like this number.
fn key_of(number: u128) -> Vec<u8> {
    let bytes = number.to_be_bytes();
    let len = bytes
        .iter()
        .rposition(|byte| *byte != 0)
        .map_or(0, |last| last + 1);
    bytes[..len].to_vec()
}

fn newest_manifest(dir: &Path) -> Option<String> {
    let names = fs::read_dir(dir).ok()?.flatten();
    let names = names.filter_map(|entry| entry.file_name().into_string().ok());
    let number = |name: &String| name.strip_prefix("MANIFEST-")?.parse::<u64>().ok();
    names
        .filter(|name| number(name).is_some())
        .max_by_key(number)
}

/// Names of the tables in a folder.
fn tables(dir: &Path) -> Result<Vec<String>, MetaError> {
    let entries =
        fs::read_dir(dir).map_err(|error| MetaError::io(dir, "read the folder", error))?;
    let names = entries
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok());
    Ok(names.filter(|name| name.ends_with(".sst")).collect())
}

/// Links the tables of a store into a new folder, and copies its other files there.
fn link(from: &Path, to: &Path) -> Result<(), MetaError> {
    remove(to)?;
    let io = |error| MetaError::io(to, "copy what is left of the metadata store", error);
    DirBuilder::new().mode(0o700).create(to).map_err(io)?;
    for entry in
        fs::read_dir(from).map_err(|error| MetaError::io(from, "read the folder", error))?
    {
        let path = entry.map_err(io)?.path();
        let (Some(name), true) = (path.file_name(), path.is_file()) else {
            continue;
        };
        let text = name.to_string_lossy();
        if text == "LOCK" || text.starts_with("LOG") {
            continue;
        }
        let is_linked = text.ends_with(".sst") && fs::hard_link(&path, to.join(name)).is_ok();
        if !is_linked {
            fs::copy(&path, to.join(name)).map_err(io)?;
        }
    }
    Ok(())
}

fn remove(dir: &Path) -> Result<(), MetaError> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(MetaError::io(
            dir,
            "remove what an earlier attempt left",
            error,
        )),
        _ => Ok(()),
    }
}
