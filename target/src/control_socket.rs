//! The pool's control socket, and the group that may use it.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use api::socket::{ApiSocket, SOCKET_NAME, group_number};
use subsystem::errors::Failure;

/// The right of a group to enter a folder, in its mode (inode(7): `S_IXGRP`).
const GROUP_ENTERS: u32 = 0o010;

/// Binds the socket in a pool's folder, for the daemon's user and the members of that group.
///
/// # Errors
/// There is no such group, the daemon's user is not in it, or the folder is not writable.
pub(crate) fn bind(pool: &Path, group: Option<&str>) -> Result<ApiSocket, Failure> {
    let number = group.map(|name| {
        group_number(name).map_err(|_| {
            Failure::invalid(format!(
                "--api-group {name}: this machine has no such group: make it with `groupadd {name}`, or name another"
            ))
        })
    });
    let number = number.transpose()?;
    let socket = ApiSocket::bind(pool, number).map_err(|error| {
        let path = pool.join(SOCKET_NAME);
        let for_group = group.map_or_else(String::new, |name| {
            format!(" for the group '{name}', of which the daemon's user must be a member")
        });
        Failure::unavailable(format!(
            "the control socket '{}' cannot be made{for_group}: {error}",
            path.display()
        ))
    })?;
    if let (Some(name), Some(number), Ok(folder)) = (group, number, pool.metadata())
        && (folder.gid() != number || folder.permissions().mode() & GROUP_ENTERS == 0)
    {
        tracing::warn!(
            "members of '{name}' cannot enter the pool's folder, so they cannot use its control socket: \
             `chgrp {name} {dir} && chmod g+x {dir}` lets them",
            dir = pool.display()
        );
    }
    Ok(socket)
}
