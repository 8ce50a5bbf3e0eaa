//! Sockets of exports, in the file system.

use std::io::{self, ErrorKind};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};

/// Makes the socket of an export. One that nobody listens at is left from a program that was killed.
///
/// # Errors
/// The path is taken, or no socket can be there.
pub fn bind_socket(path: &str) -> io::Result<UnixListener> {
    let taken = match UnixListener::bind(path) {
        Err(error) if error.kind() == ErrorKind::AddrInUse => error,
        bound => return bound,
    };
    if !std::fs::symlink_metadata(path)?.file_type().is_socket() {
        let text = "there is a file, and it is no socket: name another path";
        return Err(io::Error::new(ErrorKind::AddrInUse, text));
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path)?;
            UnixListener::bind(path)
        }
        Ok(_) => {
            let text = "a program listens there: name another path";
            Err(io::Error::new(ErrorKind::AddrInUse, text))
        }
        Err(_) => Err(taken),
    }
}
