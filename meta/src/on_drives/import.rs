//! Making a pool's folder of what its drives hold.
//!
//! Members have the same. Should one of them have lost writes that it took, the log that goes furthest counts, and of the journals
//! the longest that is whole.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::Builder;

use uuid::Uuid;

use super::area::{BLOCK, MetadataArea};
use super::base::{self, Pieces};
use super::change::Change;
use super::layout::Superblock;
use super::log::{Place, frame_blocks, read_frame};
use super::members::{lock, redo};
use super::state::Mark;
use crate::backup::BackupFolder;
use crate::error::MetaError;
use crate::identity::PoolIdentity;
use crate::journal::{Journal, JournalConfig, JournalMedia, MemoryMedia};
use crate::label::Opening;
use crate::store::{MemoryStore, RocksStore, Store, raw};
use crate::types::Checkpoint;

/// Blocks of the journal's image that are read at a time.
const RUN_BLOCKS: u64 = 256;

/// Bytes of rows that become one table of the store, and a piece more at most.
const TABLE_BYTES: usize = 32 << 20;

/// Changes of the log that are read before they are made.
const CHANGES_AHEAD: usize = 2;

/// The newest metadata on some drives of a pool.
pub struct Importable {
    /// Drives that hold it, those whose log goes furthest first.
    sources: Vec<Source>,
    missing: Vec<u16>,
}

/// Why what was found may not be the newest metadata of its pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MayBeOlder {
    /// The drive with that index holds the same or newer metadata, and is not among the areas.
    Missing(u16),
    /// This machine opened the pool last and did not close it: it may have it open.
    Open(String),
}

struct Source {
    area: Arc<dyn MetadataArea>,
    superblock: Superblock,
    /// The last change of its log, and the block behind it.
    change: u64,
    end: u64,
    identity: PoolIdentity,
}

impl Importable {
    /// Looks for the metadata of `pool` in these areas, each with the index of its drive. Blocks.
    ///
    /// # Errors
    /// [`MetaError::Missing`] if there is none; [`MetaError::Corrupt`] if what is there cannot be read.
    pub fn look(pool: Uuid, areas: &[(u16, Arc<dyn MetadataArea>)]) -> Result<Self, MetaError> {
        let mut found = Vec::new();
        let mut unreadable = Vec::new();
        let mut looked_at = Vec::new();
        for (index, area) in areas {
            let superblock = Superblock::read(&**area);
            if superblock.is_ok() {
                looked_at.push(*index);
            }
            match superblock {
                Ok(Some(superblock)) if superblock.pool == pool && superblock.index == *index => {
                    found.push((area.clone(), superblock));
                }
                Ok(_) => {}
                Err(error) => unreadable.push(format!("{}: {error}", area.name())),
            }
        }
        let newest = found.iter().map(|(_, found)| found.generation).max();
        found.retain(|(_, superblock)| {
            Some(superblock.generation) == newest && superblock.members.contains(&superblock.index)
        });
        let Some((_, first)) = found.first() else {
            let name = areas
                .first()
                .map_or_else(String::new, |(_, area)| area.name());
            let mut remedy = "the drives that were named hold none of the pool's metadata: name all of its drives, \
                              or restore a backup of its folder"
                .to_owned();
            for unreadable in unreadable {
                remedy += &format!("; {unreadable}");
            }
            return Err(MetaError::missing(name, remedy));
        };
        // A drive that is here has nothing newer, also if the loss of power came before its superblock.
        let missing = first.members.iter();
        let missing = missing.filter(|member| !looked_at.contains(member));
        let missing = missing.copied().collect();
        let mut sources = Vec::new();
        let mut damaged = None;
        for (area, superblock) in found {
            match Source::look(area.clone(), superblock) {
                Ok(source) => sources.push(source),
                Err(error) => {
                    tracing::warn!(drive = area.name(), "its copy of the metadata: {error}");
                    damaged = Some(MetaError::corrupt(
                        area.name(),
                        error.to_string(),
                        "name all drives of the pool: another one may hold it too; nothing was changed",
                    ));
                }
            }
        }
        sources.sort_by_key(|source| std::cmp::Reverse(source.change));
        match (sources.is_empty(), damaged) {
            (true, Some(damaged)) => Err(damaged),
            _ => Ok(Self { sources, missing }),
        }
    }

    /// Indexes of the drives that hold it, those whose log goes furthest first.
    pub fn drives(&self) -> impl Iterator<Item = u16> + '_ {
        self.sources.iter().map(|source| source.superblock.index)
    }

    /// Indexes of drives that hold the same metadata, or newer, and are not among the areas.
    pub fn missing(&self) -> &[u16] {
        &self.missing
    }

    /// Whether the pool was closed in order since it was changed.
    pub fn is_closed(&self) -> bool {
        let mut sources = self.sources.iter();
        sources.all(|source| source.superblock.is_closed)
    }

    /// Proves that there is nothing newer, and that no other machine than `machine` has the pool open. `newest`: the last opening
    /// that the labels of its drives know.
    ///
    /// # Errors
    /// The first reason why that is not certain.
    pub fn check_newest(&self, newest: &Opening, machine: &str) -> Result<(), MayBeOlder> {
        if let Some(index) = self.missing.first() {
            return Err(MayBeOlder::Missing(*index));
        }
        match newest.machine == machine || self.is_closed() {
            true => Ok(()),
            false => Err(MayBeOlder::Open(newest.machine.clone())),
        }
    }

    /// What the pool is. Its drives have the paths that they had.
    pub fn identity(&self) -> &PoolIdentity {
        &self.sources[0].identity
    }

    /// Makes the folder `target`, which must not be there, or be empty, of it: journal, store and `identity`. The drives are
    /// not changed. Returns the path. Blocks.
    ///
    /// # Errors
    /// As of a backup; [`MetaError::Corrupt`] if no drive's copy can be read.
    pub fn write(&self, target: &Path, identity: &PoolIdentity) -> Result<PathBuf, MetaError> {
        self.make(|source| {
            let folder = BackupFolder::begin(target, identity.clone())?;
            let into = NewFolder {
                pool: identity.uuid,
                folder: &folder,
            };
            self.write_to(&into, source)?;
            folder.finish()
        })
    }

    /// Makes store and journal of it in memory, for simulations.
    ///
    /// # Errors
    /// [`MetaError::Corrupt`] if no drive's copy can be read.
    pub fn to_memory(&self) -> Result<(Arc<MemoryStore>, Arc<MemoryMedia>), MetaError> {
        self.make(|source| {
            let into = NewInMemory::new(source.superblock.journal_bytes);
            self.write_to(&into, source)?;
            Ok((lock(&into.store).clone(), into.journal))
        })
    }

    /// Makes something of the first source that is whole.
    fn make<T>(
        &self,
        mut of_source: impl FnMut(&Source) -> Result<T, MetaError>,
    ) -> Result<T, MetaError> {
        let mut last = None;
        for source in &self.sources {
            match of_source(source) {
                Err(error @ (MetaError::Corrupt { .. } | MetaError::Inconsistent(_))) => {
                    tracing::warn!(
                        drive = source.area.name(),
                        "its copy of the metadata cannot be used: {error}"
                    );
                    last = Some(error);
                }
                done => return done,
            }
        }
        Err(last.unwrap_or_else(|| MetaError::Invalid("no drive has the metadata".to_owned())))
    }

    /// Writes store and journal of one source.
    fn write_to<N: NewMetadata>(&self, into: &N, source: &Source) -> Result<(), MetaError> {
        let store = source.write_store(into)?;
        // What a drive has that is not here may go on from the same change in another way: then all is copied anew.
        let generation = source.superblock.generation;
        let mark = match self.missing.is_empty() {
            true => Mark {
                generation,
                change: source.change,
                end: source.end,
            },
            false => Mark::abandoned(generation + 1),
        };
        store.put_settings(&mark.setting())?;
        let checkpoint = store.checkpoint()?;
        into.close_store(store)?;
        let media = into.create_journal(source.superblock.journal_bytes)?;
        let longest = self.sources.iter().filter_map(|source| {
            let end = source.journal_end(checkpoint)?;
            Some((end, source))
        });
        let longest = longest.max_by_key(|(end, _)| *end);
        // Where none is whole, the opening says why.
        let longest = longest.map_or(source, |(_, source)| source);
        longest
            .copy_journal(&*media)
            .map_err(|error| MetaError::io(media.name(), "write the journal", error))
    }
}

/// What is made: a store of rows, which gets the changes of the log, and a journal.
trait NewMetadata {
    type Store: Store;

    /// Makes the store of the base's pieces.
    fn put_rows(&self, pieces: Pieces<'_>) -> Result<(), Failed>;

    fn open_store(&self) -> Result<Arc<Self::Store>, MetaError>;

    /// What was written to it is durable.
    fn close_store(&self, store: Arc<Self::Store>) -> Result<(), MetaError>;

    fn create_journal(&self, bytes: u64) -> Result<Arc<dyn JournalMedia>, MetaError>;
}

struct NewFolder<'a> {
    pool: Uuid,
    folder: &'a BackupFolder,
}

impl NewMetadata for NewFolder<'_> {
    type Store = RocksStore;

    fn put_rows(&self, pieces: Pieces<'_>) -> Result<(), Failed> {
        let pieces = Mutex::new(pieces);
        let next_run = || {
            let (mut run, mut bytes) = (Vec::new(), 0);
            let mut pieces = lock(&pieces);
            while bytes < TABLE_BYTES
                && let Some(piece) = pieces.read_next()?
            {
                bytes += piece.len();
                run.push(piece);
            }
            let is_over = run.is_empty();
            let show = move |put: &mut raw::Put<'_, Failed>| {
                let mut pieces = run.iter();
                pieces.try_for_each(|piece| {
                    piece.each_row(&mut |key, value| put_row(put, key, value))
                })
            };
            Ok((!is_over).then(|| Box::new(show) as raw::Run<'_, Failed>))
        };
        raw::restore(self.folder.store_dir(), &next_run)
    }

    fn open_store(&self) -> Result<Arc<RocksStore>, MetaError> {
        let store = RocksStore::open_to_fill(self.folder.store_dir(), self.pool)?;
        Ok(Arc::new(store))
    }

    fn close_store(&self, store: Arc<RocksStore>) -> Result<(), MetaError> {
        store.finish_filling()
    }

    fn create_journal(&self, bytes: u64) -> Result<Arc<dyn JournalMedia>, MetaError> {
        Ok(Arc::new(self.folder.create_journal(bytes)?))
    }
}

struct NewInMemory {
    store: Mutex<Arc<MemoryStore>>,
    journal: Arc<MemoryMedia>,
}

impl NewInMemory {
    fn new(journal_bytes: u64) -> Self {
        Self {
            store: Mutex::default(),
            journal: Arc::new(MemoryMedia::new(journal_bytes)),
        }
    }
}

impl NewMetadata for NewInMemory {
    type Store = MemoryStore;

    fn put_rows(&self, mut pieces: Pieces<'_>) -> Result<(), Failed> {
        let mut all = Vec::new();
        let mut put = |key: &[u8], value: &[u8]| {
            all.push((key.to_vec(), value.to_vec()));
            Ok(())
        };
        while let Some(piece) = pieces.read_next()? {
            piece.each_row(&mut |key, value| put_row(&mut put, key, value))?;
        }
        *lock(&self.store) = Arc::new(MemoryStore::of_rows(&all)?);
        Ok(())
    }

    fn open_store(&self) -> Result<Arc<MemoryStore>, MetaError> {
        Ok(lock(&self.store).clone())
    }

    fn close_store(&self, _: Arc<MemoryStore>) -> Result<(), MetaError> {
        Ok(())
    }

    fn create_journal(&self, _: u64) -> Result<Arc<dyn JournalMedia>, MetaError> {
        Ok(self.journal.clone())
    }
}

/// Puts a row of a base into a store that has no hints: the rows must not say that there are.
fn put_row(put: &mut raw::Put<'_, Failed>, key: &[u8], value: &[u8]) -> Result<(), Failed> {
    match key.is_empty() {
        // The identity.
        true => Ok(()),
        false => put(key, &raw::without_hints(key, value)),
    }
}

impl Source {
    fn look(area: Arc<dyn MetadataArea>, superblock: Superblock) -> io::Result<Self> {
        // Whether all of it can be read is seen when it is written.
        let mut text = base::identity(&*area, &superblock)?;
        let end = each_change(&*area, &superblock, |number, change| {
            if Change::is_identity(change)
                && let Change::Identity(identity) = change_of(number, change)?
            {
                text = identity;
            }
            Ok::<_, io::Error>(())
        })?;
        let path = PathBuf::from(area.name());
        let identity = PoolIdentity::parse(&path, text.as_bytes()).map_err(io::Error::other)?;
        Ok(Self {
            area,
            superblock,
            change: end.0,
            end: end.1,
            identity,
        })
    }

    /// Makes the store of the base, and of the changes of the log.
    fn write_store<N: NewMetadata>(&self, into: &N) -> Result<Arc<N::Store>, MetaError> {
        let made = into
            .put_rows(Pieces::new(&*self.area, &self.superblock))
            .and_then(|()| {
                let store = into.open_store()?;
                self.redo_log(&*store)?;
                Ok(store)
            });
        made.map_err(|failed| match failed {
            Failed::Drive(error) => MetaError::corrupt(
                self.area.name(),
                error.to_string(),
                "name all drives of the pool: another one may hold it too; nothing was changed",
            ),
            Failed::Store(error) => error,
        })
    }

    /// Makes the changes of the log in the store, while the next ones are read.
    fn redo_log(&self, store: &dyn Store) -> Result<(), Failed> {
        let (sender, changes) = mpsc::sync_channel(CHANGES_AHEAD);
        std::thread::scope(|scope| {
            let read = move || {
                each_change(&*self.area, &self.superblock, |number, change| {
                    let taken = sender.send(change_of(number, change)?);
                    taken.map_err(|_| io::Error::other("a change before it could not be made"))
                })
            };
            let reading = Builder::new().name("metadata log".to_owned());
            let reading = reading.spawn_scoped(scope, read)?;
            for change in changes {
                redo(store, &change)?;
            }
            let read = reading.join();
            read.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            Ok(())
        })
    }

    /// The last record of its journal, behind that checkpoint; `None` if it does not fit it.
    fn journal_end(&self, checkpoint: Checkpoint) -> Option<u64> {
        let image = Arc::new(Image {
            area: self.area.clone(),
            first: self.superblock.layout.journal(),
            bytes: self.superblock.journal_bytes,
        });
        match Journal::open(image, checkpoint, JournalConfig::default()) {
            Ok((journal, _)) => Some(journal.last_seq()),
            Err(error) => {
                tracing::warn!(drive = self.area.name(), "its copy of the journal: {error}");
                None
            }
        }
    }

    fn copy_journal(&self, media: &dyn JournalMedia) -> io::Result<()> {
        let layout = &self.superblock.layout;
        let mut bytes = vec![0; RUN_BLOCKS as usize * BLOCK];
        for block in (0..layout.journal_blocks).step_by(RUN_BLOCKS as usize) {
            let blocks = RUN_BLOCKS.min(layout.journal_blocks - block);
            let bytes = &mut bytes[..blocks as usize * BLOCK];
            self.area.read(layout.journal() + block, bytes)?;
            let offset = block * BLOCK as u64;
            let there = (media.capacity() - offset).min(bytes.len() as u64) as usize;
            media.write_at(offset, &bytes[..there])?;
        }
        media.sync()
    }
}

/// The journal as a drive has it, to be read.
struct Image {
    area: Arc<dyn MetadataArea>,
    first: u64,
    bytes: u64,
}

impl JournalMedia for Image {
    fn name(&self) -> String {
        format!("the journal on {}", self.area.name())
    }

    fn capacity(&self) -> u64 {
        self.bytes
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let end = offset.checked_add(buf.len() as u64);
        if end.is_none_or(|end| end > self.bytes) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let block = BLOCK as u64;
        let first = offset / block;
        let blocks = (offset + buf.len() as u64).div_ceil(block) - first;
        let mut bytes = vec![0; blocks as usize * BLOCK];
        self.area.read(self.first + first, &mut bytes)?;
        let start = (offset - first * block) as usize;
        buf.copy_from_slice(&bytes[start..start + buf.len()]);
        Ok(())
    }

    fn write_at(&self, _: u64, _: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

/// Why no store was made.
enum Failed {
    /// The drive cannot be read, or is damaged.
    Drive(io::Error),
    Store(MetaError),
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Self {
        Self::Drive(error)
    }
}

impl From<MetaError> for Failed {
    fn from(error: MetaError) -> Self {
        Self::Store(error)
    }
}

fn change_of(number: u64, bytes: &[u8]) -> io::Result<Change> {
    Change::decode(bytes).map_err(|error| {
        let text = format!("change {number} of its log {error}");
        io::Error::new(io::ErrorKind::InvalidData, text)
    })
}

/// Shows every change of the log, its number and its bytes; returns the number of the last one, and the block behind it.
fn each_change<E: From<io::Error>>(
    area: &dyn MetadataArea,
    superblock: &Superblock,
    mut change: impl FnMut(u64, &[u8]) -> Result<(), E>,
) -> Result<(u64, u64), E> {
    let mut place = Place {
        lineage: superblock.lineage,
        change: superblock.base_change + 1,
        block: superblock.log_start,
    };
    while let Some(payload) = read_frame(area, &superblock.layout, place)? {
        change(place.change, &payload)?;
        place.change += 1;
        place.block += frame_blocks(&payload);
    }
    Ok((place.change - 1, place.block))
}
