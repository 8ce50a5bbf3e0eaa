//! The process behind a socket, and whether it has ended.
//!
//! Guarantees: the one `unsafe` call here fills a structure of ours and touches nothing else; a process that has ended is
//! never mixed up with a later one of the same number, because its descriptor (pidfd) is taken when it is connected to.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// Who listened at the socket when it was connected to.
#[derive(Debug)]
pub(crate) struct Peer {
    /// 0 where it is not visible from here, as that of another PID namespace; 1 where the system opened the socket for it.
    number: i32,
    process: Option<OwnedFd>,
}

impl Peer {
    /// The process at the other end.
    pub(crate) fn of(socket: &UnixStream) -> Self {
        let number = process_of(socket).unwrap_or(0);
        let process = Pid::from_raw(number)
            .filter(|_| number > 1)
            .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        Self { number, process }
    }

    /// Whether the process is known to have ended.
    pub(crate) fn is_gone(&self) -> bool {
        let readable = |process| events(process, PollFlags::IN).contains(PollFlags::IN);
        self.process.as_ref().is_some_and(readable)
    }

    /// What to end, for messages.
    pub(crate) fn remedy(&self) -> String {
        match &self.process {
            Some(_) => format!(
                "end the server (process {}) and start it again",
                self.number
            ),
            None => {
                "which process the server is cannot be told from here: end it, and start this daemon again"
                    .to_owned()
            }
        }
    }
}

/// Whether the other end of a socket is closed, by its process or with it. This end has closed one direction at most.
pub(crate) fn is_hung_up(socket: &UnixStream) -> bool {
    events(socket, PollFlags::empty()).contains(PollFlags::HUP)
}

/// What a descriptor has to report now.
fn events(fd: &impl AsFd, wanted: PollFlags) -> PollFlags {
    let mut fds = [PollFd::new(fd, wanted)];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    match poll(&mut fds, Some(&now)) {
        Ok(_) => fds[0].revents(),
        Err(_) => PollFlags::empty(),
    }
}

/// The number of the process that called listen(2) for the other end (unix(7), `SO_PEERCRED`).
fn process_of(socket: &UnixStream) -> io::Result<i32> {
    let mut credentials = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut bytes = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: both pointers are to variables of ours that live through the call, and `bytes` is the size of the first.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut credentials).cast(),
            &raw mut bytes,
        )
    };
    match result {
        0 => Ok(credentials.pid),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_other_end_is_seen_to_close_also_after_this_one_was_half_closed() {
        let (this, other) = UnixStream::pair().expect("a pair");
        let peer = Peer::of(&this);
        assert_eq!(peer.number, std::process::id() as i32);
        assert!(!peer.is_gone(), "this process lives");
        this.shutdown(std::net::Shutdown::Write)
            .expect("half closed");
        assert!(!is_hung_up(&this));
        drop(other);
        assert!(is_hung_up(&this));
    }
}
