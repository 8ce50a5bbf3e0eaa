//! The pool folder: its identity, its lock, and a creation that leaves no half-made pool behind.
//!
//! | name         | what                                                                           |
//! |--------------|--------------------------------------------------------------------------------|
//! | `pool.toml`  | identity, drives and the hash keys (mode 0600); the pool exists if this does      |
//! | `lock`       | locked by the process that uses the pool, and holds its id                       |
//! | `journal`    | the journal ([`FileMedia`])                                                      |
//! | `metadata/`  | the store ([`RocksStore`])                                                       |
//! | `ballast`    | space that the store gets when the file system is full                           |
//! | `damaged`    | blocks that are known to be damaged                                              |
//! | `restored`   | up to which epoch the drives may be newer than this folder, because somebody said so |
//! | `drive0`     | usual place of the default drive                                                 |
//! | `*.new`      | only while the pool is being made                                                |
//! | `*.new.tmp`  | only while the pool is being made or a drive is added                            |
//!
//! A pool is made in this order: `pool.toml.new`, the drives' labels (by the caller), `journal`,
//! `metadata/`, and at last `pool.toml.new` becomes `pool.toml`. If that is interrupted, the next
//! attempt takes over the identities in `pool.toml.new`, so that drives labelled by the first attempt fit.
//! An attempt that is refused before a drive may be labelled leaves nothing that it made.
//! Nothing is ever removed unless `pool.toml.new` proves that it belongs to an unfinished creation.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use uuid::Uuid;

use crate::attempt::Attempt;
use crate::error::MetaError;
use crate::identity::{
    DOMAIN_KEYS_MAX, DriveSpec, PoolIdentity, SpareSpec, encode, read_identity, resolved, validate,
    validate_spares,
};
use crate::journal::FileMedia;
use crate::lock::{self, Lock};
use crate::store::{RocksOptions, RocksStore, raw};
use crate::types::FingerprintFunction;

/// Usual size of the journal's ring, in bytes: 128 MiB, replayed in about two seconds.
pub const JOURNAL_BYTES_DEFAULT: u64 = 128 << 20;

/// Smallest journal ring, in bytes: room for a few of the largest records.
const JOURNAL_BYTES_MIN: u64 = 4 << 20;

/// What a new pool shall be.
#[derive(Clone, Debug)]
pub struct PoolSpec {
    /// Unit of deduplication in bytes: a power of two, at least 4096; fixed for ever.
    pub sub_block_bytes: u32,
    /// How its fingerprints are computed; fixed for ever.
    pub fingerprint: FingerprintFunction,
    /// Bytes of the journal's ring.
    pub journal_bytes: u64,
    /// Its drives, in order.
    pub drives: Vec<DriveSpec>,
}

impl PoolSpec {
    /// A pool of 4 KiB sub-blocks with BLAKE3 and the default journal.
    pub fn new(drives: Vec<DriveSpec>) -> Self {
        Self {
            sub_block_bytes: 4096,
            fingerprint: FingerprintFunction::Blake3,
            journal_bytes: JOURNAL_BYTES_DEFAULT,
            drives,
        }
    }
}

/// Where the parts of a pool are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolPaths {
    /// The folder.
    pub dir: PathBuf,
    /// `pool.toml`.
    pub identity: PathBuf,
    /// `lock`.
    pub lock: PathBuf,
    /// `journal`.
    pub journal: PathBuf,
    /// `metadata`.
    pub metadata: PathBuf,
    /// `ballast`.
    pub ballast: PathBuf,
    /// `damaged`: the list of blocks that are known to be damaged.
    pub damaged: PathBuf,
    /// `restored`.
    pub restored: PathBuf,
    /// `drive0`.
    pub default_drive: PathBuf,
    /// `onefold.sock`.
    pub socket: PathBuf,
}

impl PoolPaths {
    /// The parts of the pool in folder `dir`.
    pub fn new(dir: &Path) -> Self {
        Self {
            dir: dir.to_path_buf(),
            identity: dir.join("pool.toml"),
            lock: dir.join("lock"),
            journal: dir.join("journal"),
            metadata: dir.join("metadata"),
            ballast: dir.join("ballast"),
            damaged: dir.join("damaged"),
            restored: dir.join("restored"),
            default_drive: dir.join("drive0"),
            socket: dir.join("onefold.sock"),
        }
    }

    fn new_identity(&self) -> PathBuf {
        self.dir.join("pool.toml.new")
    }
}

/// A pool folder that this process holds. Dropping it gives the lock back.
#[derive(Debug)]
pub struct PoolDir {
    paths: PoolPaths,
    identity: PoolIdentity,
    /// Made by [`PoolCreation::finish_temporary`].
    is_temporary: bool,
    /// Made by [`PoolDir::look`].
    is_read_only: bool,
    /// `None` if nobody ever used the pool, so that there is no lock, and none may be made.
    _lock: Option<Lock>,
}

impl PoolDir {
    /// Makes a pool at once; [`PoolDir::begin`] lets the caller label the drives in between.
    ///
    /// # Errors
    /// As for [`PoolDir::begin`] and [`PoolCreation::finish`].
    pub fn create(dir: &Path, spec: &PoolSpec) -> Result<Self, MetaError> {
        Self::begin(dir, spec)?.finish()
    }

    /// Begins to make a pool in `dir`, which is made too if it is not there.
    ///
    /// # Errors
    /// [`MetaError::Exists`] if there is a pool, or parts of one that has lost its `pool.toml`;
    /// [`MetaError::Locked`]; [`MetaError::Invalid`] for a senseless `spec`; [`MetaError::NoSpace`] and
    /// [`MetaError::Io`].
    pub fn begin(dir: &Path, spec: &PoolSpec) -> Result<PoolCreation, MetaError> {
        validate(spec.sub_block_bytes, &spec.drives).map_err(MetaError::Invalid)?;
        if spec.journal_bytes < JOURNAL_BYTES_MIN {
            return Err(MetaError::Invalid(format!(
                "a journal of {} bytes is too small; at least {JOURNAL_BYTES_MIN} bytes are needed",
                spec.journal_bytes
            )));
        }
        let paths = PoolPaths::new(dir);
        let mut attempt = Attempt::new(dir);
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(dir)
            .map_err(|error| MetaError::io(dir, "create the pool folder", error))?;
        attempt.lock = Some(Lock::take(&paths.lock)?);
        if paths.identity.exists() {
            return Err(MetaError::Exists {
                path: paths.identity,
                remedy: "there is a pool in this folder: open it, or choose another folder"
                    .to_owned(),
            });
        }
        let unfinished = paths.new_identity().exists();
        if unfinished {
            remove_parts(&paths)?;
        } else if let Some(part) = [&paths.journal, &paths.metadata]
            .into_iter()
            .find(|p| p.exists())
        {
            return Err(MetaError::Exists {
                path: part.clone(),
                remedy: "this folder holds a pool that has lost its pool.toml: restore that file from a \
                         copy, or choose another folder"
                    .to_owned(),
            });
        }
        let mut identity = PoolIdentity {
            uuid: Uuid::new_v4(),
            sub_block_bytes: spec.sub_block_bytes,
            fingerprint: spec.fingerprint,
            hash_keys: random_key()?.into(),
            drives: spec.drives.clone(),
            spares: Vec::new(),
        };
        if unfinished && let Ok(earlier) = read_identity(&paths.new_identity()) {
            take_over(&mut identity, &earlier);
        }
        // Drives may carry labels of an earlier attempt: its identities stay, whatever becomes of this one.
        if !unfinished {
            attempt.adds(paths.new_identity());
        }
        write_new(&paths.new_identity(), &encode(&identity)?)?;
        sync_folder(dir)?;
        Ok(PoolCreation {
            paths,
            identity,
            journal_bytes: spec.journal_bytes,
            attempt,
        })
    }

    /// Opens the pool in `dir` and locks it.
    ///
    /// # Errors
    /// [`MetaError::Missing`], [`MetaError::Locked`], [`MetaError::WrongVersion`],
    /// [`MetaError::Corrupt`] or [`MetaError::Io`].
    pub fn open(dir: &Path) -> Result<Self, MetaError> {
        Self::open_in(PoolPaths::new(dir), |path| Lock::take(path).map(Some))
    }

    /// Opens the pool in `dir` to look at it: nothing in the folder is changed or made, so that it may be on a
    /// file system that takes no writes. No process can use it meanwhile, but others can look.
    ///
    /// # Errors
    /// As for [`PoolDir::open`].
    pub fn look(dir: &Path) -> Result<Self, MetaError> {
        let mut pool = Self::open_in(PoolPaths::new(dir), Lock::look)?;
        pool.is_read_only = true;
        Ok(pool)
    }

    fn open_in(
        paths: PoolPaths,
        lock: impl FnOnce(&Path) -> Result<Option<Lock>, MetaError>,
    ) -> Result<Self, MetaError> {
        let is_there = paths.identity.try_exists();
        let is_there =
            is_there.map_err(|error| MetaError::io(&paths.identity, "look for the pool", error))?;
        if !is_there {
            let remedy = if paths.new_identity().exists() {
                "the creation of this pool was interrupted: create it again"
            } else if paths.journal.exists() || paths.metadata.exists() {
                "the rest of a pool is there: restore this file from a copy"
            } else {
                "there is no pool here: create one with `onefold serve --pool DIR --create SIZE`"
            };
            return Err(MetaError::missing(paths.identity, remedy));
        }
        let lock = lock(&paths.lock)?;
        let identity = read_identity(&paths.identity)?;
        Ok(Self {
            paths,
            identity,
            is_temporary: false,
            is_read_only: false,
            _lock: lock,
        })
    }

    /// Whether there is a pool in `dir`.
    pub fn exists(dir: &Path) -> bool {
        PoolPaths::new(dir).identity.exists()
    }

    /// What the pool in a folder is, which a daemon may have open.
    ///
    /// # Errors
    /// There is none, or what says so is damaged.
    pub fn read_identity(dir: &Path) -> Result<PoolIdentity, MetaError> {
        read_identity(&PoolPaths::new(dir).identity)
    }

    /// The number of the process that uses the pool in a folder now, as far as can be seen from here. Keeps nobody from using it.
    pub fn user(dir: &Path) -> Option<u32> {
        lock::user(&PoolPaths::new(dir).lock)
    }

    /// Where its parts are.
    pub fn paths(&self) -> &PoolPaths {
        &self.paths
    }

    /// What it is.
    pub fn identity(&self) -> &PoolIdentity {
        &self.identity
    }

    /// Whether it goes when this is dropped ([`PoolCreation::finish_temporary`]).
    pub fn is_temporary(&self) -> bool {
        self.is_temporary
    }

    /// Path of the drive with this index, relative ones resolved.
    pub fn drive_path(&self, index: u16) -> Option<PathBuf> {
        self.identity
            .drives
            .get(usize::from(index))
            .map(|drive| resolved(&self.paths.dir, &drive.path))
    }

    /// Makes the pool remember one drive more, durably, behind the others; its index. The drive carries
    /// its label already, durably.
    ///
    /// # Errors
    /// [`MetaError::Invalid`] for a senseless drive, [`MetaError::NoSpace`] and [`MetaError::Io`]; the
    /// pool is as it was then.
    pub fn add_drive(&mut self, drive: DriveSpec) -> Result<u16, MetaError> {
        self.change_drives(|identity| identity.add_drive(drive))?;
        Ok((self.identity.drives.len() - 1) as u16)
    }

    /// Makes the pool remember another drive under the index of one, durably. It carries its label already, durably. A
    /// spare at its path becomes the drive.
    ///
    /// # Errors
    /// As [`add_drive`](Self::add_drive), and [`MetaError::Invalid`] if there is no drive with that index.
    pub fn replace_drive(&mut self, index: u16, drive: DriveSpec) -> Result<(), MetaError> {
        if usize::from(index) >= self.identity.drives.len() {
            return Err(MetaError::Invalid(format!("the pool has no drive {index}")));
        }
        self.change_drives(|identity| identity.replace_drive(index, drive))
    }

    /// Makes the pool remember that a drive was removed, durably: nothing of the pool lies there, and its index is not used
    /// again.
    ///
    /// # Errors
    /// As [`replace_drive`](Self::replace_drive).
    pub fn remove_drive(&mut self, index: u16) -> Result<(), MetaError> {
        if usize::from(index) >= self.identity.drives.len() {
            return Err(MetaError::Invalid(format!("the pool has no drive {index}")));
        }
        self.change_drives(|identity| identity.drives[usize::from(index)].is_removed = true)
    }

    /// Makes the pool remember a spare, durably.
    ///
    /// # Errors
    /// As [`add_drive`](Self::add_drive).
    pub fn add_spare(&mut self, spare: SpareSpec) -> Result<(), MetaError> {
        self.change_drives(|identity| identity.spares.push(spare))
    }

    /// Makes the pool forget the spare at a path, durably; one that there is not is forgotten already.
    ///
    /// # Errors
    /// As [`add_drive`](Self::add_drive).
    pub fn forget_spare(&mut self, path: &Path) -> Result<(), MetaError> {
        self.change_drives(|identity| identity.spares.retain(|spare| spare.path != path))
    }

    fn change_drives(&mut self, change: impl FnOnce(&mut PoolIdentity)) -> Result<(), MetaError> {
        if self.is_read_only {
            return Err(MetaError::Invalid(
                "the pool was opened to look at it".to_owned(),
            ));
        }
        if self.is_temporary {
            return Err(MetaError::Invalid(
                "this pool is in memory, and keeps no list of its drives".to_owned(),
            ));
        }
        let mut identity = self.identity.clone();
        change(&mut identity);
        validate(identity.sub_block_bytes, &identity.drives).map_err(MetaError::Invalid)?;
        validate_spares(&identity).map_err(MetaError::Invalid)?;
        write_new(&self.paths.identity, &encode(&identity)?)?;
        sync_folder(&self.paths.dir)?;
        self.identity = identity;
        Ok(())
    }

    /// Makes the pool remember the key of a domain, durably. Nothing of that domain may be stored.
    ///
    /// # Errors
    /// [`MetaError::Invalid`] if there are too many, or the pool is not to be changed, [`MetaError::NoSpace`] and
    /// [`MetaError::Io`]; the pool is as it was then.
    pub fn set_domain_key(&mut self, domain: &str, key: [u8; 32]) -> Result<(), MetaError> {
        let refused = match (self.is_read_only, self.is_temporary) {
            (true, _) => Some("the pool was opened to look at it".to_owned()),
            (_, true) => Some("this pool is in memory, and keeps no keys".to_owned()),
            _ => None,
        };
        if let Some(why) = refused {
            return Err(MetaError::Invalid(why));
        }
        let mut identity = self.identity.clone();
        let domains = &mut identity.hash_keys.domains;
        domains.insert(domain.to_owned(), key);
        if domains.len() > DOMAIN_KEYS_MAX {
            return Err(MetaError::Invalid(format!(
                "a pool has at most {DOMAIN_KEYS_MAX} keys of other pools"
            )));
        }
        write_new(&self.paths.identity, &encode(&identity)?)?;
        sync_folder(&self.paths.dir)?;
        self.identity = identity;
        Ok(())
    }

    /// Opens the journal file.
    ///
    /// # Errors
    /// As for [`FileMedia::open`].
    pub fn open_journal(&self) -> Result<FileMedia, MetaError> {
        let (path, pool) = (&self.paths.journal, self.identity.uuid);
        match self.is_read_only {
            true => FileMedia::open_read_only(path, pool),
            false => FileMedia::open(path, pool),
        }
    }

    /// Opens the store, perhaps to change it in the folder alone: drives that hold copies of it count as older from here on.
    ///
    /// # Errors
    /// As for [`RocksStore::open`].
    pub fn open_store(&self, options: RocksOptions) -> Result<RocksStore, MetaError> {
        let store = self.open_served_store(options)?;
        if !self.is_read_only {
            raw::leave_drives_behind(&store)?;
        }
        Ok(store)
    }

    /// Opens the store of which [`MetadataOnDrives`](crate::MetadataOnDrives) keeps copies, or to read it.
    ///
    /// # Errors
    /// As for [`RocksStore::open`].
    pub fn open_served_store(&self, options: RocksOptions) -> Result<RocksStore, MetaError> {
        let paths = &self.paths;
        if self.is_read_only {
            return RocksStore::open_read_only(&paths.metadata, self.identity.uuid, options);
        }
        RocksStore::open_with_ballast(&paths.metadata, self.identity.uuid, options, &paths.ballast)
    }
}

impl Drop for PoolDir {
    fn drop(&mut self) {
        if self.is_temporary {
            // Best effort: the next creation in this folder clears what is left.
            let _ = remove_parts(&self.paths);
            let _ = fs::remove_file(self.paths.new_identity());
            let _ = fs::remove_file(&self.paths.lock);
            // Only if nobody has put anything else into it.
            let _ = fs::remove_dir(&self.paths.dir);
        }
    }
}

/// A pool that is being made. Dropping it removes what was made for it. From [`Self::will_label`] on, dropping it leaves
/// the folder as an interrupted creation does: the next attempt clears it.
#[derive(Debug)]
pub struct PoolCreation {
    paths: PoolPaths,
    identity: PoolIdentity,
    journal_bytes: u64,
    attempt: Attempt,
}

impl PoolCreation {
    /// What the pool will be. If an earlier attempt was interrupted, this is that attempt's identity.
    pub fn identity(&self) -> &PoolIdentity {
        &self.identity
    }

    /// Where its parts will be.
    pub fn paths(&self) -> &PoolPaths {
        &self.paths
    }

    /// Path of the drive with this index, relative ones resolved.
    pub fn drive_path(&self, index: u16) -> Option<PathBuf> {
        self.identity
            .drives
            .get(usize::from(index))
            .map(|drive| resolved(&self.paths.dir, &drive.path))
    }

    /// From now on the identity must survive whatever happens, because drives get its labels.
    pub fn will_label(&mut self) {
        self.attempt.keep();
    }

    /// Makes journal and store, and then the pool. Call it when the drives carry their labels, durably.
    ///
    /// # Errors
    /// [`MetaError::NoSpace`], [`MetaError::Io`]; there is no pool then.
    pub fn finish(mut self) -> Result<PoolDir, MetaError> {
        self.will_label();
        if let Err(error) = self.make() {
            // Best effort, to give the space back at once; the next attempt does it too.
            let _ = remove_parts(&self.paths);
            return Err(error);
        }
        Ok(PoolDir {
            paths: self.paths,
            identity: self.identity,
            is_temporary: false,
            is_read_only: false,
            _lock: self.attempt.lock.take(),
        })
    }

    /// Makes journal and store, but never a pool that could be opened again: for drives that keep
    /// nothing. What was made is removed when the folder's handle is dropped, or after a crash by the
    /// next creation here.
    ///
    /// # Errors
    /// As [`Self::finish`].
    pub fn finish_temporary(mut self) -> Result<PoolDir, MetaError> {
        if let Err(error) = self.make_parts() {
            let _ = remove_parts(&self.paths);
            return Err(error);
        }
        self.attempt.keep();
        Ok(PoolDir {
            paths: self.paths,
            identity: self.identity,
            is_temporary: true,
            is_read_only: false,
            _lock: self.attempt.lock.take(),
        })
    }

    fn make_parts(&self) -> Result<(), MetaError> {
        let pool = self.identity.uuid;
        FileMedia::create(&self.paths.journal, pool, self.journal_bytes)?;
        RocksStore::create(&self.paths.metadata, pool)
    }

    fn make(&self) -> Result<(), MetaError> {
        self.make_parts()?;
        sync_folder(&self.paths.dir)?;
        fs::rename(self.paths.new_identity(), &self.paths.identity)
            .map_err(|error| MetaError::io(&self.paths.identity, "create the file", error))?;
        sync_folder(&self.paths.dir)
    }
}

/// Takes the identities of an interrupted attempt, so that what it labelled fits this one.
fn take_over(identity: &mut PoolIdentity, earlier: &PoolIdentity) {
    identity.uuid = earlier.uuid;
    identity.hash_keys = earlier.hash_keys.clone();
    for drive in &mut identity.drives {
        if let Some(same) = earlier.drives.iter().find(|other| other.path == drive.path) {
            drive.uuid = same.uuid;
        }
    }
}

/// Removes journal and store of an unfinished creation.
fn remove_parts(paths: &PoolPaths) -> Result<(), MetaError> {
    let absent = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
    // Best effort: it is in nobody's way.
    let _ = fs::remove_file(&paths.ballast);
    match fs::remove_file(&paths.journal) {
        Err(error) if !absent(&error) => {
            return Err(MetaError::io(
                &paths.journal,
                "remove the unfinished journal",
                error,
            ));
        }
        _ => {}
    }
    match fs::remove_dir_all(&paths.metadata) {
        Err(error) if !absent(&error) => Err(MetaError::io(
            &paths.metadata,
            "remove the unfinished metadata store",
            error,
        )),
        _ => Ok(()),
    }
}

/// Writes a file that only its owner can read, durably.
pub(crate) fn write_new(path: &Path, text: &str) -> Result<(), MetaError> {
    let io = |error| MetaError::io(path, "write the file", error);
    // A new file and a rename: a crash leaves the earlier attempt's identity or this one's, whole.
    let temporary = path.with_extension("new.tmp");
    match fs::remove_file(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(io(error)),
        _ => {}
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&temporary)
        .map_err(io)?;
    file.write_all(text.as_bytes())
        .and_then(|()| file.sync_all())
        .map_err(io)?;
    fs::rename(&temporary, path).map_err(io)
}

pub(crate) fn sync_folder(dir: &Path) -> Result<(), MetaError> {
    File::open(dir)
        .and_then(|folder| folder.sync_all())
        .map_err(|error| MetaError::io(dir, "sync the folder", error))
}

fn random_key() -> Result<[u8; 32], MetaError> {
    let mut key = [0; 32];
    getrandom::fill(&mut key).map_err(|error| {
        MetaError::Invalid(format!(
            "the system gives no random numbers for a hash key: {error}"
        ))
    })?;
    Ok(key)
}
