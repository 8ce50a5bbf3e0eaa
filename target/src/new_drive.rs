//! Drives that are to belong to a pool: opened, looked at, and labelled.
//!
//! Guarantee: nothing is written to a drive that is in use, also if it is forced, or that holds something and is not forced.

use std::path::{Path, PathBuf};

use dedup::{ErrorKind, write_new_label};
use drives::{BLOCK_BYTES, OpenOptions};
use fabric_drives::Claim;
use meta::{DriveLabel, DriveSpec, Opening, PoolIdentity, is_remote_drive, metadata_blocks};
use rados_drives::RadosAddress;
use reactor::BufferPool;
use subsystem::errors::Failure;
use uuid::Uuid;

use crate::errors::of_drive;
use crate::labels;
use crate::opened_drive::{OpenedDrive, is_in_cluster, kind_of_address};
use crate::options::drive_path;

/// The smallest pool that is useful: a label area, and room for a file system.
const POOL_BYTES_MIN: u64 = 64 << 20;

/// Files that were made for drives that carry no label yet. Dropping it removes them: the drives were refused.
#[derive(Default)]
pub(crate) struct MadeFiles(Vec<PathBuf>);

impl MadeFiles {
    pub(crate) fn note(&mut self, drive: &OpenedDrive, path: &Path) {
        if drive.is_made() {
            self.0.push(path.to_owned());
        }
    }

    pub(crate) fn keep(&mut self) {
        self.0.clear();
    }
}

impl Drop for MadeFiles {
    fn drop(&mut self) {
        for path in &self.0 {
            // Best effort: they are sparse, and hold nothing.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// A drive of so many blocks, of which some are kept for metadata, unless data need `needed` blocks.
fn divided(path: impl Into<PathBuf>, blocks: u64, needed: u64) -> DriveSpec {
    let kept = match metadata_blocks(blocks) {
        kept if blocks - kept >= needed => kept,
        _ => 0,
    };
    DriveSpec {
        metadata_blocks: kept,
        ..DriveSpec::new(path, blocks - kept)
    }
}

/// Opens a drive that is to belong to a pool, where data need `needed` blocks. A file that is not there is made, with the size that is
/// named with it, or else with `file_bytes`.
pub(crate) async fn open_named(
    path: &Path,
    size_bytes: Option<u64>,
    file_bytes: Option<u64>,
    needed: u64,
) -> Result<(DriveSpec, OpenedDrive), Failure> {
    let what = format!("drive '{}'", path.display());
    let path = drive_path(path).map_err(Failure::invalid)?;
    let can_be_made = !is_remote_drive(&path) || is_in_cluster(&path);
    if size_bytes.is_some() && !can_be_made {
        return Err(Failure::invalid(format!(
            "{what} is {}, which has its size: leave out the size",
            kind_of_address(&path)
        )));
    }
    let create_bytes = match size_bytes {
        None if path.exists() || !can_be_made => None,
        // One that is there keeps its size.
        None if is_in_cluster(&path) => file_bytes,
        None => match file_bytes {
            Some(bytes) => Some(usable_size(bytes, &what)?),
            None => {
                return Err(Failure::new(
                    ErrorKind::NotFound,
                    format!(
                        "{what} is not there: name a file or device that is, or PATH=SIZE to make a file"
                    ),
                ));
            }
        },
        Some(bytes) => Some(usable_size(bytes, &what)?),
    };
    let options = OpenOptions {
        create_bytes,
        expected_blocks: None,
    };
    let drive = OpenedDrive::open(&path, &options).await.map_err(of_drive)?;
    let blocks = drive.drive().blocks();
    usable_size(blocks * BLOCK_BYTES as u64, &what)?;
    let spec = divided(path, blocks, needed);
    if is_in_cluster(&spec.path) && spec.metadata_blocks == 0 {
        return Err(Failure::invalid(format!(
            "{what} has {} bytes, and a drive in a cluster needs 1 GiB or more, because it holds the pool's metadata too: give it a \
             size, such as 'rados:POOL/NAME=1T'; it takes the room of what is stored",
            blocks * BLOCK_BYTES as u64
        )));
    }
    Ok((spec, drive))
}

/// Refuses drives of which some are in a cluster and some are not: another node could not go on with the pool, although it would have
/// to write as if one did.
pub(crate) fn check_one_home<'a>(paths: impl IntoIterator<Item = &'a Path>) -> Result<(), Failure> {
    let (inside, outside): (Vec<&Path>, Vec<&Path>) =
        paths.into_iter().partition(|path| is_in_cluster(path));
    let (Some(inside), Some(outside)) = (inside.first(), outside.first()) else {
        return Ok(());
    };
    Err(Failure::invalid(format!(
        "'{}' is in a Ceph cluster, and '{}' is not: all drives of a pool are in a cluster, or none of them, so that another node has \
         what it needs; make a pool of its own, and copy volumes with `onefold send`",
        inside.display(),
        outside.display()
    )))
}

/// A size in whole blocks that is large enough.
pub(crate) fn usable_size(bytes: u64, what: &str) -> Result<u64, Failure> {
    let whole = bytes - bytes % BLOCK_BYTES as u64;
    if whole < POOL_BYTES_MIN {
        return Err(Failure::invalid(format!(
            "{what} has {bytes} bytes, and needs at least {}",
            crate::size::format_exact(POOL_BYTES_MIN)
        )));
    }
    Ok(whole)
}

pub(crate) fn label_of(identity: &PoolIdentity, index: u16) -> Result<DriveLabel, Failure> {
    identity
        .label(index)
        .ok_or_else(|| Failure::new(ErrorKind::Internal, format!("drive {index} has no label")))
}

/// How people make a drive empty.
fn how_to_wipe(path: &Path) -> String {
    let in_cluster = path
        .to_str()
        .and_then(|text| text.parse::<RadosAddress>().ok());
    match in_cluster {
        None => "`wipefs --all` and `blkdiscard`, or `rm` for a file".to_owned(),
        Some(drive) => format!(
            "`rados -p {pool} ls | grep -E '^onefold\\.{name}\\.(header|deferred|node\\.[0-9]+|data\\.[0-9a-f]{{12}})$' | xargs rados -p {pool} rm`",
            pool = drive.pool(),
            // Another drive's name may begin with this one, or differ from it by a dot.
            name = drive.name().replace('.', "\\.")
        ),
    }
}

/// Bytes of a drive of a pool that nodes share, at least: smaller ones hold no metadata.
const SHARED_DRIVE_BYTES_MIN: u64 = 1 << 30;

/// Refuses a drive with so many blocks that is too small for a pool that other nodes may take over, if it is one.
pub(crate) fn check_size(is_shared: bool, path: &Path, blocks: u64) -> Result<(), Failure> {
    let bytes = blocks * BLOCK_BYTES as u64;
    if !is_shared || bytes >= SHARED_DRIVE_BYTES_MIN {
        return Ok(());
    }
    Err(Failure::invalid(format!(
        "other nodes may take the pool over (--join), and its drives need 1 GiB or more, so that they hold the pool's metadata too: \
         '{}' has {bytes} bytes; name a larger one",
        path.display()
    )))
}

/// The same of all drives of a new pool.
pub(crate) fn check_specs(is_shared: bool, specs: &[DriveSpec]) -> Result<(), Failure> {
    let mut specs = specs.iter();
    specs.try_for_each(|it| check_size(is_shared, &it.path, it.blocks + it.metadata_blocks))
}

/// Why a drive with a pool that another node serves cannot belong to a new one.
fn served(name: &str, holds: &str, machine: &str) -> String {
    format!(
        "drive '{name}' holds {holds}, which the machine '{machine}' serves now: nothing was written; add --join to be its standby, or stop \
         the daemon there and go on with the pool here by `onefold pool import '{name}'`, or name another drive"
    )
}

/// What a drive holds, if anything is recognised there; `own` is the pool that it may belong to.
async fn holds(
    drive: &OpenedDrive,
    path: &Path,
    own: Option<Uuid>,
    buffers: &BufferPool,
) -> Result<Option<String>, Failure> {
    if let Some(found) = labels::found(drive.drive(), buffers).await? {
        let pool = match own == Some(found.drive.pool) {
            true => "this Onefold pool".to_owned(),
            false => format!("the Onefold pool {}", found.drive.pool),
        };
        return Ok(Some(format!("a drive of {pool}")));
    }
    let content = drive.content(path).await.map_err(of_drive)?;
    Ok(content.map(|content| content.to_string()))
}

/// Refuses a drive that is in use, or holds anything, and is to be overwritten by a measurement.
pub(crate) async fn check_unneeded(
    drive: &OpenedDrive,
    path: &Path,
    buffers: &BufferPool,
) -> Result<(), Failure> {
    drive.check_unused(path).map_err(of_drive)?;
    match holds(drive, path, None, buffers).await? {
        None => Ok(()),
        Some(holds) => Err(Failure::invalid(format!(
            "drive '{}' holds {holds}: nothing was written; name another drive, or, if nobody needs what is there, wipe it \
             first ({})",
            drive.drive().name(),
            how_to_wipe(path)
        ))),
    }
}

/// A drive that is to belong to a pool.
pub(crate) struct NewDrive {
    pub(crate) drive: OpenedDrive,
    pub(crate) path: PathBuf,
    pub(crate) label: DriveLabel,
    /// What its label says of the pool.
    pub(crate) opening: Opening,
    /// It is taken whatever it holds.
    pub(crate) is_forced: bool,
    /// It was taken for this pool before.
    pub(crate) is_retry: bool,
}

impl NewDrive {
    /// Refuses a drive that is in use, or holds anything. Writes nothing.
    pub(crate) async fn check(&self, buffers: &BufferPool) -> Result<(), Failure> {
        self.drive.check_unused(&self.path).map_err(of_drive)?;
        if self.is_retry {
            return Ok(());
        }
        let name = self.drive.drive().name();
        let holds = match self.is_forced {
            true => None,
            false => self.holds(buffers).await?,
        };
        if !self.is_forced && holds.is_none() {
            return Ok(());
        }
        if let Some(user) = self.drive.user_elsewhere().await {
            return Err(Failure::unavailable(format!(
                "drive '{name}' is in use, and nothing was written: {user}"
            )));
        }
        let owner = self.drive.living_owner().await.map_err(of_drive)?;
        let Some(holds) = holds else {
            return owner.map_or(Ok(()), |machine| {
                Err(Failure::unavailable(format!(
                    "drive '{name}' is in use by a daemon on the machine '{machine}': nothing was written, whatever --force says; \
                     stop that daemon first"
                )))
            });
        };
        Err(Failure::invalid(match owner {
            Some(machine) => served(name, &holds, &machine),
            None => format!(
                "drive '{name}' holds {holds}: nothing was written; {}name another drive, or, if nobody needs what is \
                 there, wipe it first ({}) or let it be overwritten with `--force {name}`",
                match is_in_cluster(&self.path) {
                    true => format!("go on with its pool by `onefold pool import '{name}'`, "),
                    false => String::new(),
                },
                how_to_wipe(&self.path)
            ),
        }))
    }

    async fn holds(&self, buffers: &BufferPool) -> Result<Option<String>, Failure> {
        holds(&self.drive, &self.path, Some(self.label.pool), buffers).await
    }

    /// Writes the labels, over what else is recognised there if that is forced.
    pub(crate) async fn take(self, buffers: &BufferPool) -> Result<OpenedDrive, Failure> {
        let claim = match (self.is_retry, self.is_forced) {
            (true, _) => Claim::Again,
            (false, true) => Claim::Forced,
            (false, false) => Claim::First,
        };
        let claimed = self.drive.claim(self.label.pool, claim).await;
        claimed.map_err(of_drive)?;
        if self.is_forced && !self.is_retry {
            let holds = self.holds(buffers).await;
            if let Ok(Some(holds)) = holds {
                tracing::warn!(
                    drive = self.drive.drive().name(),
                    holds,
                    "overwritten, as --force says"
                );
            }
            let wiped = self.drive.wipe_signatures(&self.path).await;
            wiped.map_err(of_drive)?;
        }
        write_new_label(self.drive.drive(), self.label, self.opening, buffers)
            .await
            .map_err(of_drive)?;
        Ok(self.drive)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drive_in_a_cluster_is_wiped_with_all_of_its_objects_and_no_other_drives() {
        let told = how_to_wipe(Path::new("rados:p/a.b"));
        assert!(told.contains("-p p ls"), "{told}");
        let kinds = "^onefold\\.a\\.b\\.(header|deferred|node\\.[0-9]+|data\\.[0-9a-f]{12})$";
        assert!(told.contains(kinds), "{told}");
    }

    #[test]
    fn who_serves_a_pool_is_named_with_the_ways_to_go_on() {
        let told = served("rados:p", "a drive of the Onefold pool", "node-a");
        for word in ["'node-a'", "--join", "onefold pool import 'rados:p'"] {
            assert!(told.contains(word), "{told}");
        }
    }

    #[test]
    fn drives_of_a_pool_that_nodes_share_have_room_for_its_metadata() {
        let specs = [1 << 20, 1 << 17].map(|blocks| DriveSpec {
            metadata_blocks: 1 << 17,
            ..DriveSpec::new("sled", blocks)
        });
        assert!(check_specs(true, &specs).is_ok(), "1 GiB with its metadata");
        let small = [specs[0].clone(), DriveSpec::new("small", (1 << 18) - 1)];
        let refused = check_specs(true, &small).expect_err("no room for metadata");
        assert!(refused.message.contains("'small'"), "{}", refused.message);
        assert!(check_specs(false, &small).is_ok());
    }
}
