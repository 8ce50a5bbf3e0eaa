//! A pool's folder, made anew of what its drives hold.
//!
//! Guarantees: the drives are read only, and nothing is left of a folder that could not be made. Drives in a cluster are taken
//! first, so that the machine that had them writes nothing behind what was read.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use dedup::ErrorKind;
use drives::{Drive, DriveError, OpenOptions};
use fabric_drives::Claim;
use meta::{Importable, Label, MayBeOlder, MetadataArea, PoolDir, PoolIdentity};
use reactor::ReactorThread;
use subsystem::errors::Failure;
use uuid::Uuid;

use crate::errors::{of_drive, of_meta};
use crate::labels;
use crate::lingering::outlast_by;
use crate::metadata::{AreaOfDrive, Patience, start_reactor};
use crate::opened_drive::OpenedDrive;
use crate::options::drive_path;
use crate::pool::check_named_once;

/// How long a drive may take to answer.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// A drive that was named.
struct Named {
    path: PathBuf,
    drive: Arc<dyn Drive>,
    label: Label,
    /// No other machine writes to it any more.
    is_fenced: bool,
}

/// What was made.
pub(crate) struct Imported {
    /// The pool's folder.
    pub(crate) dir: PathBuf,
    /// The pool.
    pub(crate) uuid: Uuid,
    /// Its drives that were named.
    pub(crate) drives: Vec<PathBuf>,
    /// Where drives of the pool were that were not named.
    pub(crate) missing: Vec<PathBuf>,
}

/// Makes the folder `target` of the metadata on these drives. `force` is the pool's name, for one that may be older than what
/// another machine or a missing drive has. Blocks.
///
/// # Errors
/// Names the drive that cannot be used, or what may be newer, and the remedy. Nothing is made then.
pub(crate) fn import(
    paths: &[PathBuf],
    target: &Path,
    force: Option<&str>,
) -> Result<Imported, Failure> {
    if PoolDir::exists(target) {
        return Err(Failure::invalid(format!(
            "'{}' holds a pool: name a new folder with --pool",
            target.display()
        )));
    }
    let target = std::path::absolute(target)
        .map_err(|error| Failure::invalid(format!("'{}' is no path: {error}", target.display())))?;
    let reactor = start_reactor()?;
    let named = open_all(&reactor, paths, force)?;
    let pool = pool_of(&named)?;
    let areas: Vec<_> = named.iter().filter_map(|one| one.area(&reactor)).collect();
    let found = Importable::look(pool, &areas).map_err(of_meta)?;
    check_owner(&found, &named, force)?;
    let (identity, missing) = with_paths(found.identity(), &named)?;
    let dir = found.write(&target, &identity).map_err(of_meta)?;
    Ok(Imported {
        dir,
        uuid: pool,
        drives: named.iter().map(|one| one.path.clone()).collect(),
        missing,
    })
}

/// Opens the drives, so that no other process has them meanwhile, and reads their labels.
fn open_all(
    reactor: &ReactorThread,
    paths: &[PathBuf],
    force: Option<&str>,
) -> Result<Vec<Named>, Failure> {
    let mut named: Vec<Named> = Vec::new();
    let paths = paths.iter().map(|path| drive_path(path));
    let paths: Vec<PathBuf> = paths.collect::<Result<_, _>>().map_err(Failure::invalid)?;
    check_named_once(&paths)?;
    for path in paths {
        let opened = path.clone();
        let buffers = reactor.handle().buffers().clone();
        let force = force.map(str::to_owned);
        let opening = reactor.handle().spawn(move || async move {
            let options = OpenOptions {
                create_bytes: None,
                expected_blocks: None,
            };
            // A daemon that was killed a moment ago has it still.
            let is_taken = |error: &DriveError| error.kind() == drives::ErrorKind::InUse;
            let open = || OpenedDrive::open(&opened, &options);
            let drive = outlast_by(is_taken, open, reactor::sleep)
                .await
                .map_err(of_drive)?;
            let label = labels::found(drive.drive(), &buffers).await?;
            let is_fenced = drive.fences_others();
            if let Some(label) = label.as_ref().filter(|_| is_fenced) {
                // Nobody loses a drive to somebody who meant another pool.
                let name = label.opening.as_ref().map(|opening| &opening.pool_name);
                let claim = match force.is_some() && name == force.as_ref() {
                    true => Claim::Forced,
                    false => Claim::Again,
                };
                let claimed = drive.claim(label.drive.pool, claim).await;
                claimed.map_err(of_drive)?;
            }
            Ok::<_, Failure>((drive.into_whole(), label, is_fenced))
        });
        let opened = opening
            .wait()
            .map_err(|error| Failure::new(ErrorKind::Internal, error.to_string()))?;
        let (drive, label, is_fenced) = opened.map_err(|mut failure| {
            if failure.kind == ErrorKind::Unavailable {
                failure.message += " (a pool that is served needs no import)";
            }
            failure
        })?;
        let Some(label) = label else {
            return Err(Failure::invalid(format!(
                "'{}' is no drive of a pool: `onefold pool labels` says what drives are",
                path.display()
            )));
        };
        if let Some(twice) = named
            .iter()
            .find(|one| one.label.drive.drive == label.drive.drive)
        {
            return Err(Failure::invalid(format!(
                "'{}' and '{}' have the label of the same drive, so one of them is a copy: name the one that belongs to the pool",
                twice.path.display(),
                path.display()
            )));
        }
        named.push(Named {
            path,
            drive,
            label,
            is_fenced,
        });
    }
    Ok(named)
}

impl Named {
    /// What is behind the engine's part of the drive.
    fn area(&self, reactor: &ReactorThread) -> Option<(u16, Arc<dyn MetadataArea>)> {
        let first_block = self.label.drive.blocks;
        let blocks = self.drive.blocks().checked_sub(first_block)?;
        let area = AreaOfDrive {
            drive: self.drive.clone(),
            first_block,
            blocks,
            left: None,
            waits_for_room: false,
        };
        (blocks > 0).then(|| {
            (
                self.label.drive.index,
                area.on(&reactor.handle(), Patience::Short(ANSWER_MAX)),
            )
        })
    }
}

/// The pool of all of them.
fn pool_of(named: &[Named]) -> Result<Uuid, Failure> {
    let mut pools = named.iter().map(|one| (one, one.label.drive.pool));
    let Some((first, pool)) = pools.next() else {
        return Err(Failure::invalid("name the pool's drives"));
    };
    match pools.find(|(_, other)| *other != pool) {
        None => Ok(pool),
        Some((other, found)) => Err(Failure::invalid(format!(
            "'{}' is a drive of the pool {pool}, and '{}' one of the pool {found}: name the drives of one pool",
            first.path.display(),
            other.path.display()
        ))),
    }
}

/// Refuses what may be older than what another machine or a missing drive has, unless that is forced with the pool's name.
fn check_owner(found: &Importable, named: &[Named], force: Option<&str>) -> Result<(), Failure> {
    let openings = named.iter().filter_map(|one| one.label.opening.as_ref());
    let Some(newest) = openings.max_by_key(|opening| opening.epoch) else {
        return Ok(());
    };
    let name = &newest.pool_name;
    if let Some(force) = force {
        if force == name {
            return Ok(());
        }
        return Err(Failure::invalid(format!(
            "--force names the pool '{force}', and the drives are of the pool '{name}'"
        )));
    }
    let uname = rustix::system::uname();
    match found.check_newest(newest, &uname.nodename().to_string_lossy()) {
        Ok(()) => Ok(()),
        Err(MayBeOlder::Missing(index)) => {
            let drive = found.identity().drives.get(usize::from(index));
            let path = drive.map_or_else(String::new, |drive| drive.path.display().to_string());
            Err(Failure::invalid(format!(
                "drive number {} of the pool ('{path}') was not named, and may hold newer metadata: name it too; if it is lost, \
                 import without it: --force {name}",
                u32::from(index) + 1
            )))
        }
        // That machine has nothing newer: it cannot write any more, and was refused before it could be told that it had.
        Err(MayBeOlder::Open(_)) if named.iter().all(|one| one.is_fenced) => Ok(()),
        Err(MayBeOlder::Open(machine)) => Err(Failure::unavailable(format!(
            "the machine '{machine}' opened the pool last and did not close it: it may have it open; stop the pool there, or, if \
             that machine is gone for good, import it all the same: --force {name}"
        ))),
    }
}

/// The identity with the paths that were named, and the paths of drives that were not.
fn with_paths(
    identity: &PoolIdentity,
    named: &[Named],
) -> Result<(PoolIdentity, Vec<PathBuf>), Failure> {
    let mut identity = identity.clone();
    for one in named {
        let label = &one.label.drive;
        let known = identity.drives.get_mut(usize::from(label.index));
        let Some(known) = known.filter(|known| known.uuid == label.drive && !known.is_removed)
        else {
            return Err(Failure::invalid(format!(
                "'{}' is no drive of the pool any more: another one took its place, or it was removed; leave it out",
                one.path.display()
            )));
        };
        known.path.clone_from(&one.path);
    }
    let is_named = |uuid: Uuid| named.iter().any(|one| one.label.drive.drive == uuid);
    let missing = identity.drives.iter();
    let missing = missing.filter(|drive| !drive.is_removed && !is_named(drive.uuid));
    let missing = missing.map(|drive| drive.path.clone()).collect();
    Ok((identity, missing))
}
