//! A pool's folder, made anew of what its drives hold.
//!
//! Guarantees: the drives are read only, and nothing is left of a folder that could not be made. Drives that can fence are taken
//! first, so that the machine that had them writes nothing behind what was read: those in a cluster before anything else, because
//! the cluster knows whether that machine lives, and namespaces with reservations when it is known that it has them no more.

mod members;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use dedup::ErrorKind;
use drives::{Drive, DriveError, OpenOptions};
use fabric_drives::{Claim, Holders};
use meta::{
    Ahead, Importable, Label, LocationKind, MayBeOlder, MetaError, MetadataArea, Opening, PoolDir,
    PoolIdentity,
};
use reactor::{BufferPool, ReactorThread};
use subsystem::errors::Failure;
use uuid::Uuid;

use crate::errors::{of_drive, of_meta};
use crate::labels;
use crate::lingering::outlast_by;
use crate::metadata::{AreaOfDrive, Patience, start_reactor};
use crate::opened_drive::{ClaimedDrives, OpenedDrive, is_in_cluster};
use crate::options::drive_path;
use crate::pool::check_named_once;
use members::{is_reached_by_all, keep_one_pool, leave_out_others, others_of, pool_of};

/// How long a drive may take to answer.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// How long a node waits for a drive without which it can take the pool over: hosts wait meanwhile.
const AWAY_AFTER: Duration = Duration::from_secs(1);

/// A drive that was named.
struct Named {
    path: PathBuf,
    drive: Arc<dyn Drive>,
    label: Label,
    /// The same, if it can be claimed so that no other machine writes to it any more.
    claimable: Option<OpenedDrive>,
    /// It is.
    is_claimed: bool,
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
    /// The epoch in which the pool was opened last.
    pub(crate) epoch: u32,
    /// Those that are this process's as long as this lives.
    pub(crate) claimed: ClaimedDrives,
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
    check_free(target)?;
    Source::claim(paths, force)?.import(target, None)
}

fn check_free(target: &Path) -> Result<(), Failure> {
    match PoolDir::exists(target) {
        false => Ok(()),
        true => Err(Failure::invalid(format!(
            "'{}' holds a pool: name a new folder with --pool",
            target.display()
        ))),
    }
}

/// Drives of a pool that its folder is made of. Those in a cluster are this process's.
pub(crate) struct Source {
    reactor: ReactorThread,
    pool: Uuid,
    named: Vec<Named>,
    /// Drives that are left out because they did not answer.
    away: Vec<PathBuf>,
    force: Option<String>,
    /// The machine that opened the pool last may live, and is shut out; drives that do not answer are left out, if more than half of
    /// those with its metadata do.
    takes_over: bool,
    /// Nodes share the pool: drives that were named may be none of it any more, and it may have others, which every node reaches.
    is_shared: bool,
    /// The last epoch in which a node had the pool that shares it. Who opened it later does not, and keeps it.
    shared_until: Option<u32>,
}

impl Source {
    /// Opens the drives, and takes those in a cluster. `force` as of [`import`]. Blocks.
    ///
    /// # Errors
    /// Names the drive that cannot be used, and the remedy.
    pub(crate) fn claim(paths: &[PathBuf], force: Option<&str>) -> Result<Self, Failure> {
        let reactor = start_reactor()?;
        let how = HowToOpen {
            force,
            goes_without: false,
            skips_unlabelled: false,
        };
        let (named, away) = open_all(&reactor, paths, how)?;
        Ok(Self {
            pool: pool_of(&named)?,
            reactor,
            named,
            away,
            force: force.map(str::to_owned),
            takes_over: false,
            is_shared: false,
            shared_until: None,
        })
    }

    /// The same for a pool that nodes share. `known`: the one whose folder this node has. Drives that were named and that the pool
    /// has no more are left out. Blocks.
    ///
    /// # Errors
    /// As of [`claim`](Self::claim).
    pub(crate) fn share(paths: &[PathBuf], known: Option<Uuid>) -> Result<Self, Failure> {
        Self::shared(paths, known, false)
    }

    /// The same, from an owner that left or let its lease end. `shared_until`: the last epoch in which one of these nodes had it, if that
    /// is known. Blocks.
    ///
    /// # Errors
    /// As of [`claim`](Self::claim).
    pub(crate) fn take_over(
        paths: &[PathBuf],
        known: Option<Uuid>,
        shared_until: Option<u32>,
    ) -> Result<Self, Failure> {
        let source = Self::shared(paths, known, true)?;
        Ok(Self {
            shared_until,
            ..source
        })
    }

    fn shared(paths: &[PathBuf], known: Option<Uuid>, takes_over: bool) -> Result<Self, Failure> {
        let reactor = start_reactor()?;
        let how = HowToOpen {
            force: None,
            goes_without: takes_over,
            skips_unlabelled: true,
        };
        let (mut named, away) = open_all(&reactor, paths, how)?;
        if named.is_empty() {
            return Err(Failure::unavailable("no drive of the pool answers"));
        }
        Ok(Self {
            pool: keep_one_pool(&mut named, known)?,
            reactor,
            named,
            away,
            force: None,
            takes_over,
            is_shared: true,
            shared_until: None,
        })
    }

    /// Takes the drives of a pool from an owner that is shut out, where nothing has to be made of them. Blocks.
    ///
    /// # Errors
    /// As of [`import`](Self::import).
    pub(crate) fn shut_out_owner(&mut self) -> Result<(), Failure> {
        if !self.takes_over {
            return Ok(());
        }
        if let Err(failure) = self.look(None) {
            tracing::warn!(%failure, "the drives do not say which others the pool has");
        }
        self.shut_others_out().map(drop)
    }

    /// The last opening that the labels know.
    pub(crate) fn newest_opening(&self) -> Option<&Opening> {
        let openings = self.named.iter();
        let openings = openings.filter_map(|one| one.label.opening.as_ref());
        openings.max_by_key(|opening| opening.epoch)
    }

    /// Makes the folder `target`. What was made `ahead` of it, for that folder, is not read again. Blocks.
    ///
    /// # Errors
    /// As of [`import`].
    pub(crate) fn import(
        mut self,
        target: &Path,
        ahead: Option<Ahead>,
    ) -> Result<Imported, Failure> {
        check_free(target)?;
        let target = std::path::absolute(target).map_err(|error| {
            Failure::invalid(format!("'{}' is no path: {error}", target.display()))
        })?;
        let mut found = self.look(ahead.as_ref())?;
        pool_of(&self.named)?;
        self.check_owner(&found)?;
        if self.shut_others_out()? {
            // Another machine may have written until then.
            found = self.look(ahead.as_ref())?;
            self.check_owner(&found)?;
        }
        let (identity, missing) = with_paths(found.identity(), &self.named)?;
        let of_ahead = ahead.and_then(|ahead| match found.write_behind(ahead, &identity) {
            Ok(dir) => {
                tracing::info!("the pool's folder is what was prepared of it, and the rest");
                Some(dir)
            }
            Err(error) => {
                tracing::warn!(%error, "what was made of the metadata ahead cannot be used: all is read anew");
                None
            }
        });
        let dir = match of_ahead {
            Some(dir) => dir,
            None => found.write(&target, &identity).map_err(of_meta)?,
        };
        Ok(Imported {
            dir,
            uuid: self.pool,
            drives: self.named.iter().map(|one| one.path.clone()).collect(),
            missing,
            epoch: self.newest_opening().map_or(0, |opening| opening.epoch),
            claimed: self.into_drives(),
        })
    }

    /// Reads the metadata, also of drives that every node reaches and that were not named; without those that the pool has no more,
    /// where nodes share it.
    fn look(&mut self, ahead: Option<&Ahead>) -> Result<Importable, Failure> {
        loop {
            let areas = areas_of(&self.named, &self.reactor);
            let found = Importable::look_behind(self.pool, &areas, ahead).map_err(of_meta)?;
            if self.is_shared && leave_out_others(&mut self.named, found.identity()) {
                continue;
            }
            let reached = match self.is_shared {
                true => is_reached_by_all,
                false => is_in_cluster,
            };
            let mut others = others_of(found.identity(), &self.named, reached);
            others.retain(|path| !self.away.contains(path));
            if others.is_empty() {
                return Ok(found);
            }
            let how = HowToOpen {
                force: self.force.as_deref(),
                goes_without: self.is_shared,
                skips_unlabelled: self.is_shared,
            };
            match open_all(&self.reactor, &others, how) {
                Ok((mut opened, _)) if self.is_shared => {
                    opened.retain(|one| one.label.drive.pool == self.pool);
                    leave_out_others(&mut opened, found.identity());
                    // What is not there now is not waited for again.
                    others.retain(|path| opened.iter().all(|one| one.path != *path));
                    self.away.extend(others);
                    self.named.extend(opened);
                }
                Ok((opened, _)) => self.named.extend(opened),
                // Whoever forces it may have lost one.
                Err(failure) if self.force.is_some() => {
                    tracing::warn!(%failure, "another drive of the pool is left out");
                    return Ok(found);
                }
                Err(failure) => return Err(failure),
            }
        }
    }

    /// Refuses a pool that a process of this machine serves: the claim would end it.
    fn check_unserved(&self) -> Result<(), Failure> {
        let here = rustix::system::uname()
            .nodename()
            .to_string_lossy()
            .into_owned();
        let newest = self.newest_opening();
        let newest = newest.filter(|opening| opening.machine == here);
        let locations = newest.map_or(&[][..], |opening| &opening.locations);
        for location in locations {
            if let LocationKind::Folder(folder) = &location.at
                && let Err(MetaError::Locked { .. }) = PoolDir::look(Path::new(folder))
            {
                return Err(Failure::unavailable(format!(
                    "the pool is in use on this machine, with the folder '{folder}': a pool that is served needs no import"
                )));
            }
        }
        Ok(())
    }

    /// Claims the drives that are not claimed yet and can be; whether there are any.
    fn shut_others_out(&mut self) -> Result<bool, Failure> {
        let is_unclaimed = |one: &Named| !one.is_claimed && one.claimable.is_some();
        if !self.named.iter().any(is_unclaimed) {
            return Ok(false);
        }
        self.check_unserved()?;
        for one in &mut self.named {
            let drive = one.claimable.as_ref().filter(|_| !one.is_claimed);
            let Some(drive) = drive.and_then(OpenedDrive::share) else {
                continue;
            };
            let pool = self.pool;
            let before = one.label.clone();
            let kind = kind_of_claim(&before, self.force.as_deref(), self.takes_over);
            let buffers = self.reactor.handle().buffers().clone();
            let claiming = self.reactor.handle().spawn(move || async move {
                let after = claim(&drive, &before, kind, &buffers).await?;
                drive.stay_claimed();
                Ok::<_, Failure>(after)
            });
            let label = claiming
                .wait()
                .map_err(|error| Failure::new(ErrorKind::Internal, error.to_string()))??;
            one.label = label
                .filter(|label| label.drive.pool == pool)
                .ok_or_else(|| {
                    Failure::unavailable(format!(
                        "'{}' was given to another pool meanwhile",
                        one.path.display()
                    ))
                })?;
            one.is_claimed = true;
        }
        Ok(true)
    }

    /// What was claimed, for who opens the pool.
    pub(crate) fn into_drives(self) -> ClaimedDrives {
        let mut claimed = ClaimedDrives::default();
        for path in self.away {
            claimed.leave_out(path);
        }
        for one in self.named {
            if let Some(drive) = one.claimable.filter(|_| one.is_claimed) {
                claimed.add(one.label.drive.drive, drive);
            }
        }
        claimed
    }

    /// Refuses what may be older than what another machine or a missing drive has, unless that is forced with the pool's name.
    fn check_owner(&self, found: &Importable) -> Result<(), Failure> {
        let Some(newest) = self.newest_opening() else {
            return Ok(());
        };
        let name = &newest.pool_name;
        if self.shared_until.is_some_and(|epoch| newest.epoch > epoch) {
            return Err(Failure::unavailable(format!(
                "the machine '{}' opened the pool last, and does not share it with other nodes: start it there with --join too; if that \
                 machine is gone for good, `onefold pool import --force {name}`",
                newest.machine
            )));
        }
        if let Some(force) = &self.force {
            if force == name {
                return Ok(());
            }
            return Err(Failure::invalid(format!(
                "--force names the pool '{force}', and the drives are of the pool '{name}'"
            )));
        }
        match (self.takes_over, found.has_majority()) {
            (true, true) => return Ok(()),
            (true, false) => {
                return Err(Failure::unavailable(
                    "half of the drives that hold the pool's metadata or more do not answer, and may have newer metadata: see to them",
                ));
            }
            (false, _) => {}
        }
        let uname = rustix::system::uname();
        match found.check_newest(newest, &uname.nodename().to_string_lossy()) {
            Ok(()) => Ok(()),
            Err(MayBeOlder::Missing(index)) => {
                let drive = found.identity().drives.get(usize::from(index));
                let path = drive.map_or_else(String::new, |drive| drive.path.display().to_string());
                // Where nodes share the pool it may have been named, and be away.
                let kind = match self.is_shared {
                    true => ErrorKind::Unavailable,
                    false => ErrorKind::Invalid,
                };
                Err(Failure::new(
                    kind,
                    format!(
                        "drive number {} of the pool ('{path}') was not named, and may hold newer metadata: name it too; if it is lost, \
                 import without it: --force {name}",
                        u32::from(index) + 1
                    ),
                ))
            }
            // That machine has nothing newer: it cannot write any more, and was refused before it could be told that it had.
            Err(MayBeOlder::Open(_)) if self.named.iter().all(|one| one.is_claimed) => Ok(()),
            Err(MayBeOlder::Open(machine)) => Err(Failure::unavailable(format!(
                "the machine '{machine}' opened the pool last and did not close it: it may have it open; stop the pool there, or, if \
             that machine is gone for good, import it all the same: --force {name}"
            ))),
        }
    }
}

/// Drives of a pool that another machine has, to be read.
pub(crate) struct ReadOnly {
    pub(crate) pool: Uuid,
    /// What holds the pool's metadata, each with the index of its drive.
    pub(crate) areas: Vec<(u16, Arc<dyn MetadataArea>)>,
    _reactor: ReactorThread,
}

impl ReadOnly {
    /// Opens them; those that are not in a cluster may be away, if not all are. Blocks.
    ///
    /// # Errors
    /// A drive cannot be read, or none is one of a pool.
    pub(crate) fn open(paths: &[PathBuf]) -> Result<Self, Failure> {
        let reactor = start_reactor()?;
        let named = read_all(&reactor, paths, None)?;
        Ok(Self {
            pool: pool_of(&named)?,
            areas: areas_of(&named, &reactor),
            _reactor: reactor,
        })
    }
}

/// Opens drives to read them, as of [`ReadOnly::open`]; one that takes longer than `within` is away. Also those that every node reaches and
/// that were not named; without those that the pool has no more.
fn read_all(
    reactor: &ReactorThread,
    paths: &[PathBuf],
    within: Option<Duration>,
) -> Result<Vec<Named>, Failure> {
    let mut named: Vec<Named> = Vec::new();
    let mut others = paths.to_vec();
    let mut tried: Vec<PathBuf> = Vec::new();
    let mut away = None;
    while !others.is_empty() {
        for path in others {
            tried.push(path.clone());
            let is_in_cluster = is_in_cluster(&path);
            match Named::to_read(reactor, path, within) {
                // The others may have all that is needed, and one that is no drive of a pool any more may have been.
                Err(failure)
                    if matches!(failure.kind, ErrorKind::Unavailable | ErrorKind::Invalid)
                        && !is_in_cluster =>
                {
                    away = Some(failure);
                }
                read => named.push(read?),
            }
        }
        if let Some(failure) = away.take().filter(|_| named.is_empty()) {
            return Err(failure);
        }
        let pool = keep_one_pool(&mut named, None)?;
        loop {
            let areas = areas_of(&named, reactor);
            let found = Importable::look(pool, &areas).map_err(of_meta)?;
            if !leave_out_others(&mut named, found.identity()) {
                others = others_of(found.identity(), &named, is_reached_by_all);
                others.retain(|path| !tried.contains(path));
                break;
            }
        }
    }
    Ok(named)
}

/// Looks whether drives that were named are of the pool in this node's folder. Blocks.
///
/// # Errors
/// All that answer are of other pools: names both, and the remedy.
pub(crate) fn check_pool(paths: &[PathBuf], known: Uuid) -> Result<(), Failure> {
    let reactor = start_reactor()?;
    let read = |path: &PathBuf| Named::to_read(&reactor, path.clone(), Some(AWAY_AFTER)).ok();
    let mut named: Vec<Named> = paths.iter().filter_map(read).collect();
    match named.is_empty() {
        true => Ok(()),
        false => keep_one_pool(&mut named, Some(known)).map(drop),
    }
}

/// The drives on which the pool's metadata are, as those say that answer now; `None` if they are half of them or fewer: the others may
/// know better. Blocks.
///
/// # Errors
/// None of these drives answers, or one is none of a pool.
pub(crate) fn holders(paths: &[PathBuf]) -> Result<Option<Holders>, Failure> {
    let reactor = start_reactor()?;
    let named = read_all(&reactor, paths, Some(AWAY_AFTER))?;
    let (found, all) =
        meta::holders(pool_of(&named)?, &areas_of(&named, &reactor)).map_err(of_meta)?;
    let is_one = |one: &&Named| found.contains(&one.label.drive.index);
    let answered = named.iter().filter(is_one);
    let answered = answered.map(|one| one.path.display().to_string());
    let holders = Holders {
        answered: answered.collect(),
        all,
    };
    Ok((found.len() * 2 > all).then_some(holders))
}

/// What holds metadata of these drives.
fn areas_of(named: &[Named], reactor: &ReactorThread) -> Vec<(u16, Arc<dyn MetadataArea>)> {
    named.iter().filter_map(|one| one.area(reactor)).collect()
}

/// Opens a drive that another machine may have, and reads its label. Blocks.
fn open_to_read(
    reactor: &ReactorThread,
    path: &Path,
    within: Option<Duration>,
) -> Result<(Arc<dyn Drive>, Option<Label>), Failure> {
    let path = path.to_owned();
    let buffers = reactor.handle().buffers().clone();
    let reading = reactor.handle().spawn(move || async move {
        let drive = open_within(&path, within).await.map_err(of_drive)?;
        let label = labels::found(drive.drive(), &buffers).await?;
        Ok::<_, Failure>((drive.into_whole(), label))
    });
    reading
        .wait()
        .map_err(|error| Failure::new(ErrorKind::Internal, error.to_string()))?
}

/// Opens a drive that was made before; one that takes longer than `within` does not answer. On a reactor.
async fn open_within(path: &Path, within: Option<Duration>) -> Result<OpenedDrive, DriveError> {
    let options = OpenOptions {
        create_bytes: None,
        expected_blocks: None,
    };
    let opening = OpenedDrive::open(path, &options);
    let Some(within) = within else {
        return opening.await;
    };
    reactor::timeout(within, opening).await.unwrap_or_else(|_| {
        let (name, text) = (path.to_string_lossy(), "it does not answer");
        Err(DriveError::new(drives::ErrorKind::Unreachable, &name, text))
    })
}

/// How drives are opened that are to be taken.
#[derive(Clone, Copy)]
struct HowToOpen<'a> {
    /// As of [`import`].
    force: Option<&'a str>,
    /// Those that do not answer are left out.
    goes_without: bool,
    /// And so are those without a label.
    skips_unlabelled: bool,
}

/// Opens the drives, so that no other process has them meanwhile, and reads their labels. Those that do not answer and are left out are
/// returned too.
fn open_all(
    reactor: &ReactorThread,
    paths: &[PathBuf],
    how: HowToOpen<'_>,
) -> Result<(Vec<Named>, Vec<PathBuf>), Failure> {
    let HowToOpen {
        force,
        goes_without,
        skips_unlabelled,
    } = how;
    let mut named: Vec<Named> = Vec::new();
    let mut away = Vec::new();
    let paths = paths.iter().map(|path| drive_path(path));
    let paths: Vec<PathBuf> = paths.collect::<Result<_, _>>().map_err(Failure::invalid)?;
    check_named_once(&paths)?;
    for path in paths {
        let opened = path.clone();
        let buffers = reactor.handle().buffers().clone();
        let force = force.map(str::to_owned);
        let opening = reactor.handle().spawn(move || async move {
            // A daemon that was killed a moment ago has it still.
            let is_taken = |error: &DriveError| error.kind() == drives::ErrorKind::InUse;
            let may_be_away = goes_without && !is_in_cluster(&opened);
            let within = may_be_away.then_some(AWAY_AFTER);
            let open = || open_within(&opened, within);
            let drive = match outlast_by(is_taken, open, reactor::sleep).await {
                Err(error) if goes_without && !is_in_cluster(&opened) && is_away(error.kind()) => {
                    tracing::warn!(%error, "the pool is taken over without this drive");
                    return Ok(None);
                }
                opened => opened.map_err(of_drive)?,
            };
            let mut label = labels::found(drive.drive(), &buffers).await?;
            let before = label.as_ref().filter(|_| drive.must_be_claimed());
            let is_claimed = before.is_some();
            if let Some(before) = before {
                let kind = kind_of_claim(before, force.as_deref(), false);
                label = claim(&drive, before, kind, &buffers).await?;
            }
            let claimable = drive.share();
            Ok::<_, Failure>(Some((drive.into_whole(), label, claimable, is_claimed)))
        });
        let opened = opening
            .wait()
            .map_err(|error| Failure::new(ErrorKind::Internal, error.to_string()))?;
        let opened = opened.map_err(|mut failure| {
            if failure.kind == ErrorKind::Unavailable {
                failure.message += " (a pool that is served needs no import)";
            }
            failure
        })?;
        let Some((drive, label, claimable, is_claimed)) = opened else {
            away.push(path);
            continue;
        };
        let Some(label) = label else {
            if skips_unlabelled && !is_in_cluster(&path) {
                tracing::warn!(
                    drive = %path.display(),
                    "is no drive of a pool any more: it is left out, and need not be named any more"
                );
                continue;
            }
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
            claimable,
            is_claimed,
        });
    }
    Ok((named, away))
}

/// Whether a drive that cannot be opened may be there again later, as far as is known.
fn is_away(kind: drives::ErrorKind) -> bool {
    use drives::ErrorKind::{Io, NotFound, Unreachable};
    matches!(kind, Io | NotFound | Unreachable)
}

/// How a drive with that label is claimed.
fn kind_of_claim(before: &Label, force: Option<&str>, takes_over: bool) -> Claim {
    let opening = before.opening.as_ref();
    let name = opening.map(|opening| opening.pool_name.as_str());
    // Nobody loses a drive to somebody who meant another pool.
    match takes_over || force.is_some() && name == force {
        true => Claim::Moved,
        false => Claim::Again,
    }
}

/// Claims a drive of a pool, and reads its label once more: another machine may have had it until then. On a reactor.
async fn claim(
    drive: &OpenedDrive,
    before: &Label,
    kind: Claim,
    buffers: &BufferPool,
) -> Result<Option<Label>, Failure> {
    let claimed = drive.claim(before.drive.pool, kind).await;
    claimed.map_err(of_drive)?;
    labels::found(drive.drive(), buffers).await
}

/// Whether one of these drives is one of a pool. Blocks.
///
/// # Errors
/// One cannot be read.
pub(crate) fn is_any_labelled(paths: &[PathBuf]) -> Result<bool, Failure> {
    let reactor = start_reactor()?;
    for path in paths {
        let (_, label) = open_to_read(&reactor, path, None)?;
        if label.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

impl Named {
    /// A drive that another machine may have.
    fn to_read(
        reactor: &ReactorThread,
        path: PathBuf,
        within: Option<Duration>,
    ) -> Result<Self, Failure> {
        let (drive, label) = open_to_read(reactor, &path, within)?;
        let Some(label) = label else {
            return Err(Failure::invalid(format!(
                "'{}' is no drive of a pool",
                path.display()
            )));
        };
        Ok(Self {
            path,
            drive,
            label,
            claimable: None,
            is_claimed: false,
        })
    }

    /// What is behind the engine's part of the drive.
    fn area(&self, reactor: &ReactorThread) -> Option<(u16, Arc<dyn MetadataArea>)> {
        let first_block = self.label.drive.blocks;
        let blocks = self.drive.blocks().checked_sub(first_block)?;
        let area = AreaOfDrive {
            drive: self.drive.clone(),
            first_block,
            blocks,
            left: None,
            is_in_cluster: false,
            flushes_data: false,
        };
        (blocks > 0).then(|| {
            (
                self.label.drive.index,
                area.on(&reactor.handle(), Patience::Short(ANSWER_MAX)) as Arc<dyn MetadataArea>,
            )
        })
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
