//! Pools in a real Ceph cluster, whose daemons run on this machine.

mod cluster;
mod drives;
mod full;
mod kept;
mod osds;
mod standby;
mod takeover;

use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use tests::ceph::Ceph;

/// Who fills the cluster has it alone.
static USERS: RwLock<()> = RwLock::new(());

/// The cluster, beside other stories.
fn cluster() -> Option<(&'static Ceph, RwLockReadGuard<'static, ()>)> {
    let guard = USERS.read().unwrap_or_else(|broken| broken.into_inner());
    Some((Ceph::shared()?, guard))
}

/// The cluster, for this story alone.
fn whole_cluster() -> Option<(&'static Ceph, RwLockWriteGuard<'static, ()>)> {
    let guard = USERS.write().unwrap_or_else(|broken| broken.into_inner());
    Some((Ceph::shared()?, guard))
}
