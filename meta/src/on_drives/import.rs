//! Making a pool's folder of what its drives hold.
//!
//! Members have the same. Should one of them have lost writes that it took, the log that goes furthest counts, and of the journals
//! the longest that is whole.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::thread::Builder;

use uuid::Uuid;

use super::ahead::Ahead;
use super::area::{BLOCK, MetadataArea};
use super::base::{self, Pieces};
use super::change::Change;
use super::layout::{Layout, Superblock};
use super::log::{LogPosition, read_frame};
use super::members::{lock, redo};
use super::new_metadata::{Failed, NewFolder, NewInMemory, NewMetadata, change_of, identity_of};
use super::newest::Newest;
use super::state::Mark;
use crate::backup::BackupFolder;
use crate::error::MetaError;
use crate::identity::PoolIdentity;
use crate::journal::{Journal, JournalConfig, JournalMedia, MemoryMedia};
use crate::label::Opening;
use crate::store::{MemoryStore, Store};
use crate::types::Checkpoint;

/// Blocks of the journal's image that are read at a time.
const RUN_BLOCKS: u64 = 256;

/// Blocks of it that are read at a time into memory, and bytes of the largest that is looked at there: most have 128 MiB.
const LOADED_BLOCKS: u64 = 2048;
const LOADED_BYTES_MAX: u64 = 256 << 20;

/// Changes of the log that are read before they are made.
const CHANGES_AHEAD: usize = 2;

/// The newest metadata on some drives of a pool.
pub struct Importable {
    /// Drives that hold it, those whose log goes furthest first.
    sources: Vec<Source>,
    missing: Vec<u16>,
    has_majority: bool,
}

/// Why what was found may not be the newest metadata of its pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MayBeOlder {
    /// The drive with that index holds the same or newer metadata, and is not among the areas.
    Missing(u16),
    /// This machine opened the pool last and did not close it: it may have it open.
    Open(String),
}

/// What is copied of a journal.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Copied {
    Whole,
    /// What an opening reads.
    Needed,
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
        Self::look_behind(pool, areas, None)
    }

    /// The same, where some of it is in a folder already: only what came since is looked at.
    ///
    /// # Errors
    /// As of [`look`](Self::look).
    pub fn look_behind(
        pool: Uuid,
        areas: &[(u16, Arc<dyn MetadataArea>)],
        ahead: Option<&Ahead>,
    ) -> Result<Self, MetaError> {
        let Newest {
            found,
            missing,
            members,
            known,
        } = Newest::among(pool, areas)?;
        let mut sources = Vec::new();
        let mut damaged = None;
        for (area, superblock) in found {
            match Source::look(area.clone(), superblock, ahead) {
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
            _ => Ok(Self {
                sources,
                missing,
                has_majority: known.len() * 2 > members,
            }),
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

    /// Whether more than half of the drives that hold the metadata are among the areas, and knew of it or of what was before. In a pool
    /// that nodes share ([`MetadataOnDrives::share`](super::MetadataOnDrives::share)) there is nothing newer then.
    pub fn has_majority(&self) -> bool {
        self.has_majority
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
                journal: None,
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
        self.write_rest(into, (source, Copied::Whole), store)
    }

    /// Makes a folder of one that was made ahead, and of what came since. As [`write`](Self::write) otherwise. Where that fails, all of it can be written still.
    ///
    /// # Errors
    /// As of [`write`](Self::write); [`MetaError::Inconsistent`] if what was made ahead is of another log.
    pub fn write_behind(
        &self,
        ahead: Ahead,
        identity: &PoolIdentity,
    ) -> Result<PathBuf, MetaError> {
        let source = &self.sources[0];
        if !ahead.fits(&source.superblock) {
            let text = "the pool's drives have another log since, or have lost what comes next";
            return Err(MetaError::Inconsistent(text.to_owned()));
        }
        let from = ahead.next();
        let (mut folder, store, journal) = ahead.into_parts();
        let redone = source.redo_log(from, &*store);
        redone.map_err(|failed| failed.of(&*source.area))?;
        folder.set_identity(identity.clone())?;
        let into = NewFolder {
            pool: identity.uuid,
            folder: &folder,
            journal: Some(journal),
        };
        self.write_rest(&into, (source, Copied::Needed), store)?;
        folder.finish()
    }

    /// Writes what is beside the rows of the base and of the log.
    fn write_rest<N: NewMetadata>(
        &self,
        into: &N,
        (source, copied): (&Source, Copied),
        store: Arc<N::Store>,
    ) -> Result<(), MetaError> {
        // What a drive has that is not here may go on from the same change in another way: then all is copied anew.
        let generation = source.superblock.generation;
        let shortest = self.sources.iter().min_by_key(|source| source.change);
        let shortest = shortest.filter(|shortest| {
            self.missing.is_empty() && source.change.saturating_sub(shortest.change) <= 1
        });
        let mark = match shortest {
            // Whoever opens the folder writes the change to those that lack it: what comes behind a gap is not found.
            Some(Source { change, end, .. }) => Mark {
                generation,
                change: *change,
                end: *end,
            },
            None => Mark::abandoned(generation + 1),
        };
        store.put_settings(&mark.setting())?;
        let checkpoint = store.checkpoint()?;
        into.close_store(store)?;
        let media = into.create_journal(source.superblock.journal_bytes)?;
        let whole = self.sources.iter().filter_map(|source| {
            let journal = source.journal(checkpoint)?;
            Some((journal, source))
        });
        let longest = whole.max_by_key(|(journal, _)| journal.last_seq());
        let written = match longest {
            Some((journal, _)) if copied == Copied::Needed => journal.needed().write_to(&*media),
            // Where none is whole, the opening says why.
            longest => {
                let source = longest.map_or(source, |(_, source)| source);
                source.copy_journal(&*media)
            }
        };
        written.map_err(|error| MetaError::io(media.name(), "write the journal", error))
    }
}

impl Source {
    fn look(
        area: Arc<dyn MetadataArea>,
        superblock: Superblock,
        ahead: Option<&Ahead>,
    ) -> io::Result<Self> {
        // Whether all of it can be read is seen when it is written.
        let (from, mut identity) = match ahead.filter(|ahead| ahead.fits(&superblock)) {
            Some(ahead) => (ahead.next(), ahead.identity().clone()),
            None => {
                let text = base::identity(&*area, &superblock)?;
                (LogPosition::first(&superblock), identity_of(&*area, &text)?)
            }
        };
        let end = each_change(&*area, &superblock.layout, from, |number, change| {
            if Change::is_identity(change)
                && let Change::Identity(text) = change_of(number, change)?
            {
                identity = identity_of(&*area, &text)?;
            }
            Ok::<_, io::Error>(())
        })?;
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
                self.redo_log(LogPosition::first(&self.superblock), &*store)?;
                Ok(store)
            });
        made.map_err(|failed| failed.of(&*self.area))
    }

    /// Makes the changes of the log from there on in the store, while the next ones are read.
    fn redo_log(&self, from: LogPosition, store: &dyn Store) -> Result<(), Failed> {
        let (sender, changes) = mpsc::sync_channel(CHANGES_AHEAD);
        std::thread::scope(|scope| {
            let read = move || {
                each_change(
                    &*self.area,
                    &self.superblock.layout,
                    from,
                    |number, change| {
                        let taken = sender.send(change_of(number, change)?);
                        taken.map_err(|_| io::Error::other("a change before it could not be made"))
                    },
                )
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

    /// Its journal, behind that checkpoint; `None` if it does not fit it.
    fn journal(&self, checkpoint: Checkpoint) -> Option<Journal> {
        let mut image = Image {
            area: self.area.clone(),
            first: self.superblock.layout.journal(),
            bytes: self.superblock.journal_bytes,
            loaded: None,
        };
        let loaded = image.load().map_err(|error| error.to_string());
        let opened = loaded.and_then(|()| {
            let opened = Journal::open(Arc::new(image), checkpoint, JournalConfig::default());
            opened.map_err(|error| error.to_string())
        });
        match opened {
            Ok((journal, _)) => Some(journal),
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
    /// What it holds.
    loaded: Option<Vec<u8>>,
}

impl Image {
    /// Reads it at once, if it is not too large: an opening looks at all of it, a piece at a time.
    fn load(&mut self) -> io::Result<()> {
        if self.bytes > LOADED_BYTES_MAX {
            return Ok(());
        }
        let mut loaded = vec![0; self.bytes.next_multiple_of(BLOCK as u64) as usize];
        let runs = loaded.chunks_mut(LOADED_BLOCKS as usize * BLOCK);
        for (block, run) in (self.first..).step_by(LOADED_BLOCKS as usize).zip(runs) {
            self.area.read(block, run)?;
        }
        self.loaded = Some(loaded);
        Ok(())
    }
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
        if let Some(loaded) = &self.loaded {
            let start = offset as usize;
            buf.copy_from_slice(&loaded[start..start + buf.len()]);
            return Ok(());
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

/// Shows every change of the log from a position on, its number and its bytes; returns the number of the last one, and the block
/// behind it.
fn each_change<E: From<io::Error>>(
    area: &dyn MetadataArea,
    layout: &Layout,
    from: LogPosition,
    mut change: impl FnMut(u64, &[u8]) -> Result<(), E>,
) -> Result<(u64, u64), E> {
    let mut position = from;
    while let Some(payload) = read_frame(area, layout, position)? {
        change(position.change, &payload)?;
        position = position.behind(&payload);
    }
    Ok((position.change - 1, position.block))
}
