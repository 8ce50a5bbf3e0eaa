//! Where a daemon's API listens: `onefold.sock` in the pool's folder. Only the socket's owner can use it (mode 0600), and
//! the members of a group if one is named (mode 0660). Beside it there may be a socket that a service manager has made, with
//! a path and rights of its own.
//!
//! A unix socket's address holds 107 bytes of path, a pool's folder may be deeper: then the address
//! goes through this process's own descriptor of the folder.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use axum::Router;
use futures_util::FutureExt;
use futures_util::future::{OptionFuture, join};
use tokio::net::UnixListener;

use crate::caller::Caller;

/// The socket's name in the pool's folder.
pub const SOCKET_NAME: &str = "onefold.sock";

/// `sun_path` holds 108 bytes including the final zero.
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// A path of the socket that fits an address, valid as long as this value lives.
#[derive(Debug)]
pub struct SocketPath {
    path: PathBuf,
    _folder: Option<File>,
}

impl SocketPath {
    /// The socket of the pool in `pool`.
    ///
    /// # Errors
    /// The folder cannot be opened (only tried when its path is too long).
    pub fn of_pool(pool: &Path) -> io::Result<Self> {
        let path = pool.join(SOCKET_NAME);
        if path.as_os_str().len() <= SOCKET_PATH_BYTES_MAX {
            return Ok(Self {
                path,
                _folder: None,
            });
        }
        let folder = File::open(pool)?;
        let path = PathBuf::from(format!(
            "/proc/self/fd/{}/{SOCKET_NAME}",
            folder.as_raw_fd()
        ));
        Ok(Self {
            path,
            _folder: Some(folder),
        })
    }

    /// The path to bind or to connect to.
    #[must_use]
    pub fn as_path(&self) -> &Path {
        &self.path
    }
}

/// The number of a group of this machine, by its name.
///
/// # Errors
/// `/etc/group` cannot be read, or has no such group.
pub fn group_number(name: &str) -> io::Result<u32> {
    let text = std::fs::read_to_string("/etc/group")?;
    number_in(&text, name).ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// The number of a group in the text of `/etc/group`.
fn number_in(groups: &str, name: &str) -> Option<u32> {
    groups.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next()? == name).then(|| fields.nth(1)?.parse().ok())?
    })
}

/// Whether a daemon serves the pool in `pool`, and answers.
#[must_use]
pub fn is_served(pool: &Path) -> bool {
    SocketPath::of_pool(pool).is_ok_and(|socket| UnixStream::connect(socket.as_path()).is_ok())
}

/// The process of the daemon that serves the pool in `pool`, if one answers.
#[must_use]
pub fn daemon_of(pool: &Path) -> Option<u32> {
    let socket = SocketPath::of_pool(pool).ok()?;
    let stream = UnixStream::connect(socket.as_path()).ok()?;
    let daemon = rustix::net::sockopt::socket_peercred(&stream).ok()?;
    u32::try_from(daemon.pid.as_raw_nonzero().get()).ok()
}

/// A bound socket, not yet served.
#[derive(Debug)]
pub struct ApiSocket {
    listener: UnixListener,
    path: PathBuf,
    given: Option<UnixListener>,
}

impl ApiSocket {
    /// Binds the socket of the pool in `pool`, in place of one that a killed daemon left, for its owner and the members
    /// of `group`. The caller holds the pool's lock, so no live daemon loses its socket.
    ///
    /// # Errors
    /// The folder is not writable, or the daemon's user is not in the group.
    pub fn bind(pool: &Path, group: Option<u32>) -> io::Result<Self> {
        let path = SocketPath::of_pool(pool)?;
        match std::fs::remove_file(path.as_path()) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let listener = UnixListener::bind(path.as_path())?;
        if group.is_some() {
            chown(path.as_path(), None, group)?;
        }
        let mode = if group.is_some() { 0o660 } else { 0o600 };
        std::fs::set_permissions(path.as_path(), std::fs::Permissions::from_mode(mode))?;
        Ok(Self {
            listener,
            path: pool.join(SOCKET_NAME),
            given: None,
        })
    }

    /// Serves a socket that a service manager made, too. Its file is the manager's: it stays.
    ///
    /// # Errors
    /// It is not a socket that takes connections.
    pub fn also(self, given: std::os::unix::net::UnixListener) -> io::Result<Self> {
        given.set_nonblocking(true)?;
        let given = Some(UnixListener::from_std(given)?);
        Ok(Self { given, ..self })
    }

    /// Serves until `stop` is ready, then removes the socket.
    ///
    /// # Errors
    /// The socket fails.
    pub async fn serve(
        self,
        routes: Router,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> io::Result<()> {
        let stop = stop.shared();
        let at = |listener, stop| {
            let service = routes
                .clone()
                .into_make_service_with_connect_info::<Caller>();
            axum::serve(listener, service)
                .with_graceful_shutdown(stop)
                .into_future()
        };
        let given = OptionFuture::from(self.given.map(|given| at(given, stop.clone())));
        let (served, given) = join(at(self.listener, stop), given).await;
        let _ = std::fs::remove_file(&self.path);
        served.and(given.unwrap_or(Ok(())))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::{SOCKET_NAME, SocketPath, UnixStream, is_served, number_in};

    #[test]
    fn a_group_has_the_number_of_the_systems_list() {
        let groups = "root:x:0:\nbroken\nonefold:x:990:ann,bob\n";
        assert_eq!(number_in(groups, "onefold"), Some(990));
        assert_eq!(number_in(groups, "onefol"), None);
        assert_eq!(number_in(groups, "broken"), None);
    }

    #[test]
    fn a_pool_far_down_the_tree_can_still_be_reached() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let deep = root.path().join("d".repeat(100)).join("e".repeat(100));
        std::fs::create_dir_all(&deep).expect("folders");
        let path = SocketPath::of_pool(&deep).expect("a path");
        let _listener = UnixListener::bind(path.as_path()).expect("bind");
        assert!(deep.join(SOCKET_NAME).exists());
        let again = SocketPath::of_pool(&deep).expect("a path");
        UnixStream::connect(again.as_path()).expect("connect");
        assert!(is_served(&deep) && !is_served(root.path()));
    }
}
