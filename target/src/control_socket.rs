//! The pool's control socket, the group that may use it, and the one that systemd may have made beside it.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::Path;

use api::socket::{ApiSocket, SOCKET_NAME, group_number};
use listenfd::ListenFd;
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
    let socket = match given()? {
        Some(given) => socket.also(given).map_err(|error| unusable(&error))?,
        None => socket,
    };
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

/// The socket that systemd made for the API (`onefold.socket`), if it made one: sd_listen_fds(3).
fn given() -> Result<Option<UnixListener>, Failure> {
    let taken = ListenFd::from_env().take_unix_listener(0);
    let Some(taken) = taken.map_err(|error| unusable(&error))? else {
        return Ok(None);
    };
    let given = taken.try_clone().map_err(|error| unusable(&error));
    // Its number stays open: a standby asks for it once more when it has the pool.
    std::mem::forget(taken);
    given.map(Some)
}

fn unusable(error: &std::io::Error) -> Failure {
    Failure::invalid(format!(
        "the socket that the service manager gave (LISTEN_FDS) cannot be used for the API: {error}; it has to be a unix \
         stream socket: `systemctl cat onefold.socket`"
    ))
}
