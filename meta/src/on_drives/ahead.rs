//! A pool's folder that is made while another machine has the pool, so that little is left to do when this one takes it.
//!
//! It begins with a base and follows the log, of drives that the other machine writes to meanwhile. The drives must be such that
//! what was read is never lost: a cluster, and no drive whose cache power may take away.
//!
//! Guarantees:
//! * A change is made only if each member has it, and all of them the same. Whoever opens the pool next finds it there, so it is
//!   never another one: what is in the folder is a beginning of every folder that is made of these drives from now on.
//! * A base that was not read whole before its slot may be written again is none.
//! * What was made ahead is used only together with the rest of the same log. Otherwise all is read anew.

use std::io;
use std::path::Path;
use std::sync::Arc;

use uuid::Uuid;

use super::area::MetadataArea;
use super::base::{self, Pieces};
use super::change::Change;
use super::layout::{Layout, Superblock};
use super::log::{LogPosition, read_frame};
use super::members::redo;
use super::new_metadata::{Failed, NewFolder, NewMetadata, change_of, identity_of};
use super::newest::{Newest, Told};
use crate::backup::BackupFolder;
use crate::error::MetaError;
use crate::identity::PoolIdentity;
use crate::journal::FileMedia;
use crate::store::RocksStore;

/// How often the base is read while the other machine makes new ones.
const ATTEMPTS: usize = 3;

/// See the module. Dropping it removes what was made.
pub struct Ahead {
    pool: Uuid,
    store: Arc<RocksStore>,
    /// Empty.
    journal: Arc<FileMedia>,
    folder: BackupFolder,
    layout: Layout,
    /// Where the next change will be.
    next: LogPosition,
    identity: PoolIdentity,
}

impl std::fmt::Debug for Ahead {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Ahead").field(&self.next).finish()
    }
}

/// What came of following.
#[derive(Debug)]
pub enum Followed {
    /// So many changes were made; there are no more at present.
    Changes(u64),
    /// The drives, or not all of them, can be read at present.
    Unreachable(MetaError),
    /// It cannot go on: all has to be made anew.
    Lost,
}

impl Ahead {
    /// Makes store and identity of what the drives of `pool` hold, beside the folder `target`, as long as that is wanted. Blocks.
    ///
    /// # Errors
    /// As of [`Importable::look`](super::Importable::look), and of a backup; [`MetaError::Inconsistent`] if it is not wanted any
    /// more, or if a drive is missing.
    pub fn begin(
        pool: Uuid,
        areas: &[(u16, Arc<dyn MetadataArea>)],
        target: &Path,
        is_wanted: &(dyn Fn() -> bool + Sync),
    ) -> Result<Self, MetaError> {
        for _ in 0..ATTEMPTS {
            let members = members(pool, areas)?;
            let (area, superblock) = &members[0];
            let made = Self::of_base(&**area, superblock, target, is_wanted);
            let is_there = |(_, now): &Told| now.has_base_of(superblock);
            if !self::members(pool, areas)?.iter().all(is_there) {
                // What was read may be of two bases.
                continue;
            }
            return made.map_err(|failed| failed.of(&**area));
        }
        let text = "the pool's owner makes new bases faster than they can be read";
        Err(MetaError::Inconsistent(text.to_owned()))
    }

    fn of_base(
        area: &dyn MetadataArea,
        superblock: &Superblock,
        target: &Path,
        is_wanted: &(dyn Fn() -> bool + Sync),
    ) -> Result<Self, Failed> {
        let text = base::identity(area, superblock)?;
        let identity = identity_of(area, &text)?;
        let folder = BackupFolder::begin_ahead(target, identity.clone())?;
        let into = NewFolder {
            pool: superblock.pool,
            folder: &folder,
            journal: None,
        };
        into.put_rows_while(Pieces::new(area, superblock), is_wanted)?;
        let store = into.open_store()?;
        let journal = Arc::new(folder.create_journal(superblock.journal_bytes)?);
        Ok(Self {
            pool: superblock.pool,
            store,
            journal,
            folder,
            layout: superblock.layout,
            next: LogPosition::first(superblock),
            identity,
        })
    }

    /// Makes the changes that came since, as long as that is wanted. Blocks.
    ///
    /// # Errors
    /// The store does not take a change: it is of no use any more.
    pub fn follow(
        &mut self,
        areas: &[(u16, Arc<dyn MetadataArea>)],
        is_wanted: &dyn Fn() -> bool,
    ) -> Result<Followed, MetaError> {
        let members = match members(self.pool, areas) {
            Ok(members) => members,
            Err(error) => return Ok(Followed::Unreachable(error)),
        };
        if !members.iter().all(|(_, superblock)| self.is_of(superblock)) {
            return Ok(Followed::Lost);
        }
        let mut changes = 0;
        while is_wanted() {
            let payload = match self.read_next(&members) {
                Ok(Some(payload)) => payload,
                Ok(None) => {
                    let fits = members.iter().all(|(_, superblock)| self.fits(superblock));
                    return Ok(match fits {
                        true => Followed::Changes(changes),
                        false => Followed::Lost,
                    });
                }
                Err(error) => return Ok(Followed::Unreachable(error)),
            };
            self.make(&payload)
                .map_err(|failed| failed.of(&*members[0].0))?;
            changes += 1;
        }
        Ok(Followed::Changes(changes))
    }

    /// The next change, if all members have it.
    fn read_next(&self, members: &[Told]) -> Result<Option<Vec<u8>>, MetaError> {
        let mut next: Option<Vec<u8>> = None;
        for (area, _) in members {
            let frame = read_frame(&**area, &self.layout, self.next);
            let frame = frame
                .map_err(|error| MetaError::io(area.name(), "read the log of changes", error))?;
            match (frame, &next) {
                (None, _) => return Ok(None),
                (Some(frame), Some(next)) if frame != *next => return Ok(None),
                (Some(frame), _) => next = Some(frame),
            }
        }
        Ok(next)
    }

    fn make(&mut self, payload: &[u8]) -> Result<(), Failed> {
        let change = change_of(self.next.change, payload)?;
        if let Change::Identity(text) = &change {
            let path = self.folder.store_dir();
            self.identity = PoolIdentity::parse(path, text.as_bytes()).map_err(io::Error::other)?;
        }
        redo(&*self.store, &change)?;
        self.next = self.next.behind(payload);
        Ok(())
    }

    /// Whether it is of the same log.
    fn is_of(&self, superblock: &Superblock) -> bool {
        let this = (self.pool, self.next.lineage, self.layout);
        this == (superblock.pool, superblock.lineage, superblock.layout)
    }

    /// Whether the log there goes on where this ends: what comes next is not gone.
    pub(super) fn fits(&self, superblock: &Superblock) -> bool {
        self.is_of(superblock) && superblock.base_change < self.next.change
    }

    /// Where the next change will be.
    pub(super) fn next(&self) -> LogPosition {
        self.next
    }

    /// What the pool is, as far as it is known here.
    pub(super) fn identity(&self) -> &PoolIdentity {
        &self.identity
    }

    pub(super) fn into_parts(self) -> (BackupFolder, Arc<RocksStore>, Arc<FileMedia>) {
        (self.folder, self.store, self.journal)
    }
}

/// All members of the newest generation.
fn members(pool: Uuid, areas: &[(u16, Arc<dyn MetadataArea>)]) -> Result<Vec<Told>, MetaError> {
    let Newest { found, missing, .. } = Newest::among(pool, areas)?;
    let is_whole = missing.is_empty() && found.len() == found[0].1.members.len();
    let (first, others) = (&found[0].1, &found[1..]);
    match is_whole && others.iter().all(|(_, other)| other.has_log_of(first)) {
        true => Ok(found),
        false => Err(MetaError::Inconsistent(
            "the drives that hold the pool's metadata are not all here, or do not hold the same"
                .to_owned(),
        )),
    }
}
