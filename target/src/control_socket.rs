//! The pool's control socket, and the group that may use it.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use api::socket::{ApiSocket, SOCKET_NAME, group_number};
use rustix::fs::{Gid, MemfdFlags, fchown, memfd_create};
use subsystem::errors::Failure;

/// The right of a group to enter a folder, in its mode (inode(7): `S_IXGRP`).
const GROUP_ENTERS: u32 = 0o010;

/// A group that may use the socket.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    name: String,
    number: u32,
}

impl Group {
    /// The group of that name, if the daemon's user may give it a file.
    ///
    /// # Errors
    /// There is no such group, or the daemon's user is not in it.
    pub(crate) fn find(name: &str) -> Result<Self, Failure> {
        let number = group_number(name).map_err(|_| {
            Failure::invalid(format!(
                "--api-group {name}: this machine has no such group: make it with `groupadd {name}`, or name another"
            ))
        })?;
        // Only the kernel knows all that decides this: a file in memory shows it.
        let given = memfd_create("group", MemfdFlags::CLOEXEC)
            .and_then(|file| fchown(&file, None, Some(Gid::from_raw(number))));
        given.map_err(|_| {
            Failure::invalid(format!(
                "--api-group {name}: the daemon's user is not in that group: add it with `usermod --append --groups \
                 {name} USER`, or name another group"
            ))
        })?;
        Ok(Self {
            name: name.to_owned(),
            number,
        })
    }
}

/// Binds the socket in a pool's folder, for the daemon's user and the members of that group.
///
/// # Errors
/// The folder is not writable.
pub(crate) fn bind(pool: &Path, group: Option<&Group>) -> Result<ApiSocket, Failure> {
    let socket = ApiSocket::bind(pool, group.map(|group| group.number)).map_err(|error| {
        let path = pool.join(SOCKET_NAME);
        Failure::unavailable(format!(
            "the control socket '{}' cannot be made: {error}",
            path.display()
        ))
    })?;
    if let (Some(Group { name, number }), Ok(folder)) = (group, pool.metadata())
        && (folder.gid() != *number || folder.permissions().mode() & GROUP_ENTERS == 0)
    {
        tracing::warn!(
            "members of '{name}' cannot enter the pool's folder, so they cannot use its control socket: \
             `chgrp {name} {dir} && chmod g+x {dir}` lets them",
            dir = pool.display()
        );
    }
    Ok(socket)
}
