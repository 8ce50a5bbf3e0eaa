//! Which of the drives that were named belong to a pool, and which others it has.

use std::path::{Path, PathBuf};

use fabric_drives::RemoteAddress;
use meta::{DriveLabel, DriveSpec, PoolIdentity};
use subsystem::errors::Failure;
use uuid::Uuid;

use super::Named;
use crate::opened_drive::is_in_cluster;

/// The pool of all of them.
pub(super) fn pool_of(named: &[Named]) -> Result<Uuid, Failure> {
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

/// Where drives of the pool are that were not named, of those that are `reached`: they may have been added since the first ones were named.
pub(super) fn others_of(
    identity: &PoolIdentity,
    named: &[Named],
    reached: impl Fn(&Path) -> bool,
) -> Vec<PathBuf> {
    let is_known = |drive: &DriveSpec| {
        let is_it = |one: &Named| one.label.drive.drive == drive.uuid || one.path == drive.path;
        named.iter().any(is_it)
    };
    let drives = identity.drives.iter();
    let others = drives.filter(|drive| !drive.is_removed && reached(&drive.path));
    let others = others.filter(|drive| !is_known(drive));
    others.map(|drive| drive.path.clone()).collect()
}

/// Whether every node of a pool reaches a drive by that path.
pub(super) fn is_reached_by_all(path: &Path) -> bool {
    is_in_cluster(path) || path.to_str().is_some_and(RemoteAddress::is_meant)
}

/// Leaves out what is a drive of the pool no more, or of another pool; the pool. `known`: that of this node's folder, which nothing
/// of another pool may take the place of.
pub(super) fn keep_one_pool(named: &mut Vec<Named>, known: Option<Uuid>) -> Result<Uuid, Failure> {
    let pools: Vec<Uuid> = named.iter().map(|one| one.label.drive.pool).collect();
    let Some(pool) = pool_among(&pools, known) else {
        return match (known, named.first()) {
            (Some(known), Some(one)) => Err(Failure::invalid(format!(
                "the folder has the pool {known}, and '{}' is a drive of the pool {}: name the drives of the folder's pool with --drive, \
                 or another folder with --pool",
                one.path.display(),
                one.label.drive.pool
            ))),
            _ => pool_of(named),
        };
    };
    named.retain(|one| {
        let is_its = one.label.drive.pool == pool;
        if !is_its {
            tracing::warn!(
                drive = %one.path.display(),
                "is a drive of another pool: it is left out, and need not be named any more"
            );
        }
        is_its
    });
    Ok(pool)
}

/// Which pool is meant by drives of these: the one that is known, or else the one of most of them.
fn pool_among(pools: &[Uuid], known: Option<Uuid>) -> Option<Uuid> {
    let count = |pool: Uuid| pools.iter().filter(|other| **other == pool).count();
    if let Some(known) = known {
        return pools.contains(&known).then_some(known);
    }
    let most = pools.iter().copied().max_by_key(|pool| count(*pool))?;
    let is_only = |pool: &Uuid| *pool == most || count(*pool) < count(most);
    pools.iter().all(is_only).then_some(most)
}

/// Whether the pool has the drive with that label.
fn has_drive(drives: &[DriveSpec], label: &DriveLabel) -> bool {
    let known = drives.get(usize::from(label.index));
    known.is_some_and(|known| known.uuid == label.drive && !known.is_removed)
}

/// Leaves out drives that the pool has no more; whether there are any.
pub(super) fn leave_out_others(named: &mut Vec<Named>, identity: &PoolIdentity) -> bool {
    let before = named.len();
    named.retain(|one| {
        let is_its = has_drive(&identity.drives, &one.label.drive);
        if !is_its {
            tracing::warn!(
                drive = %one.path.display(),
                "is no drive of the pool any more: it is left out, and need not be named any more"
            );
        }
        is_its
    });
    named.len() < before
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drives_that_were_given_to_another_pool_do_not_say_which_one_is_meant() {
        let [ours, other] = [1, 2].map(Uuid::from_u128);
        assert_eq!(pool_among(&[ours, other, ours], None), Some(ours));
        assert_eq!(pool_among(&[ours], None), Some(ours));
        assert_eq!(pool_among(&[ours, other], Some(ours)), Some(ours));
        assert_eq!(pool_among(&[other, ours, other], Some(ours)), Some(ours));
        // Who has no folder, or that of a pool that is on none of them.
        assert_eq!(pool_among(&[ours, other], None), None);
        assert_eq!(pool_among(&[other], Some(ours)), None);
        assert_eq!(pool_among(&[], Some(ours)), None);
    }

    #[test]
    fn a_drive_is_the_pools_as_long_as_no_other_one_has_its_place() {
        let mut drives = vec![DriveSpec::new("a", 100), DriveSpec::new("b", 100)];
        let label = DriveLabel {
            pool: Uuid::from_u128(1),
            drive: drives[1].uuid,
            index: 1,
            blocks: 100,
            sub_block_bytes: 4096,
        };
        assert!(has_drive(&drives, &label));
        let in_other_place = DriveLabel { index: 0, ..label };
        let behind_all = DriveLabel { index: 2, ..label };
        assert!(!has_drive(&drives, &in_other_place) && !has_drive(&drives, &behind_all));
        let replaced = DriveSpec::new("b", 100);
        assert!(!has_drive(&[drives[0].clone(), replaced], &label));
        drives[1].is_removed = true;
        assert!(!has_drive(&drives, &label));
    }
}
