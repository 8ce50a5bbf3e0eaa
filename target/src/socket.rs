//! Where a daemon's API listens: `onefold.sock` in the pool's folder.
//!
//! A unix socket's address holds 107 bytes of path, a pool's folder may be deeper: then the address
//! goes through this process's own descriptor of the folder.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

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

/// Whether a daemon serves the pool in `pool`, and answers.
#[must_use]
pub fn is_served(pool: &Path) -> bool {
    SocketPath::of_pool(pool).is_ok_and(|socket| UnixStream::connect(socket.as_path()).is_ok())
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

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
