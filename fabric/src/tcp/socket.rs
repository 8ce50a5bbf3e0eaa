//! TCP sockets: the few system calls that connections are made of. Nothing here blocks.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::sockopt;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendFlags, Shutdown, SocketFlags, SocketType, accept_with,
    bind, connect, getpeername, getsockname, ipproto, listen, sendmsg, shutdown, socket_with,
};

const FLAGS: SocketFlags = SocketFlags::NONBLOCK.union(SocketFlags::CLOEXEC);

/// After how much silence the kernel asks whether the peer is still there.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
/// How long it waits before it asks again.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// How often it asks in vain before the connection has failed.
const KEEPALIVE_PROBES: u32 = 6;

/// Congestion controls that send by a timer of each connection, by the beginning of their names.
const PACING: &str = "bbr";
/// What connections use in their place: the kernel's usual one.
const NOT_PACING: &str = "cubic";

/// A TCP socket. The descriptor is shared with the ring that watches it.
#[derive(Clone, Debug)]
pub(super) struct Socket(Arc<OwnedFd>);

fn family(address: SocketAddr) -> AddressFamily {
    match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    }
}

fn inet(address: impl TryInto<SocketAddr>) -> io::Result<SocketAddr> {
    address
        .try_into()
        .map_err(|_| io::Error::other("not an internet address"))
}

/// Lets a socket send as fast as the path takes it, where the system would pace it.
fn do_not_pace(fd: &OwnedFd) -> io::Result<()> {
    if sockopt::tcp_congestion(fd)?.starts_with(PACING) {
        // A kernel that lacks it paces: that costs speed alone.
        let _ = sockopt::set_tcp_congestion(fd, NOT_PACING);
    }
    Ok(())
}

impl Socket {
    fn new(address: SocketAddr, paced: bool) -> io::Result<Self> {
        let fd = socket_with(
            family(address),
            SocketType::STREAM,
            FLAGS,
            Some(ipproto::TCP),
        )?;
        if !paced {
            do_not_pace(&fd)?;
        }
        Ok(Self(Arc::new(fd)))
    }

    /// A socket that listens. Its connections are paced if it is. One on `::` leaves IPv4 to others.
    pub(super) fn listen(
        address: SocketAddr,
        backlog: u32,
        reuse_port: bool,
        paced: bool,
    ) -> io::Result<Self> {
        let socket = Self::new(address, paced)?;
        let fd = &*socket.0;
        // A restarted target takes its port back from connections in TIME_WAIT.
        sockopt::set_socket_reuseaddr(fd, true)?;
        if reuse_port {
            sockopt::set_socket_reuseport(fd, true)?;
        }
        if address.is_ipv6() {
            sockopt::set_ipv6_v6only(fd, true)?;
        }
        bind(fd, &address)?;
        listen(fd, i32::try_from(backlog).unwrap_or(i32::MAX))?;
        Ok(socket)
    }

    /// The next connection.
    pub(super) fn accept(&self) -> io::Result<Self> {
        let socket = Self(Arc::new(accept_with(&*self.0, FLAGS)?));
        socket.set_up()?;
        Ok(socket)
    }

    /// Begins to connect; when the socket is writable, [`connected`](Self::connected) says how it went.
    pub(super) fn connect(address: SocketAddr, paced: bool) -> io::Result<Self> {
        let socket = Self::new(address, paced)?;
        match connect(&*socket.0, &address) {
            Ok(()) | Err(rustix::io::Errno::INPROGRESS) => {}
            Err(error) => return Err(error.into()),
        }
        socket.set_up()?;
        Ok(socket)
    }

    /// How connecting went.
    pub(super) fn connected(&self) -> io::Result<()> {
        sockopt::socket_error(&*self.0)??;
        Ok(())
    }

    fn set_up(&self) -> io::Result<()> {
        let fd = &*self.0;
        // A turn's answers leave in one call: nothing is won by holding a part of them back.
        sockopt::set_tcp_nodelay(fd, true)?;
        // A peer that is gone without a word is noticed, also on an idle queue without keep-alive.
        sockopt::set_socket_keepalive(fd, true)?;
        sockopt::set_tcp_keepidle(fd, KEEPALIVE_IDLE)?;
        sockopt::set_tcp_keepintvl(fd, KEEPALIVE_INTERVAL)?;
        Ok(sockopt::set_tcp_keepcnt(fd, KEEPALIVE_PROBES)?)
    }

    pub(super) fn descriptor(&self) -> &Arc<OwnedFd> {
        &self.0
    }

    pub(super) fn local(&self) -> io::Result<SocketAddr> {
        inet(getsockname(&*self.0)?)
    }

    pub(super) fn peer(&self) -> io::Result<SocketAddr> {
        match getpeername(&*self.0)? {
            Some(address) => inet(address),
            None => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Receives into both, one after the other. 0 is the end.
    pub(super) fn receive(&self, first: &mut [u8], then: &mut [u8]) -> io::Result<usize> {
        let mut slices = [IoSliceMut::new(first), IoSliceMut::new(then)];
        let slices = if slices[0].is_empty() {
            &mut slices[1..]
        } else {
            &mut slices[..]
        };
        Ok(rustix::io::retry_on_intr(|| {
            rustix::io::readv(&*self.0, slices)
        })?)
    }

    /// Sends what the kernel takes.
    pub(super) fn send(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let mut nothing = SendAncillaryBuffer::default();
        let sent = rustix::io::retry_on_intr(|| sendmsg(&*self.0, slices, &mut nothing, flags))?;
        Ok(sent)
    }

    /// Gives the port of a listening socket up, also while the ring still holds the descriptor.
    pub(super) fn stop_listening(&self) {
        // Fails only if it does not listen any more.
        let _ = shutdown(&*self.0, Shutdown::Both);
    }

    /// Tells the peer that nothing more comes.
    pub(super) fn end_sending(&self) {
        // Fails only if the connection is gone.
        let _ = shutdown(&*self.0, Shutdown::Write);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_not_paced_at_either_end_unless_that_is_asked_for() {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let system = sockopt::tcp_congestion(&*Socket::new(any, true).expect("a socket").0);
        let system = system.expect("its congestion control");
        for paced in [false, true] {
            let listening = Socket::listen(any, 1, false, paced).expect("a free port");
            let address = listening.local().expect("its address");
            let connecting = Socket::connect(address, paced).expect("it begins");
            let accepted = loop {
                match listening.accept() {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        std::thread::yield_now();
                    }
                    accepted => break accepted.expect("a connection"),
                }
            };
            for socket in [connecting, accepted] {
                let used = sockopt::tcp_congestion(&*socket.0).expect("its congestion control");
                match system.starts_with(PACING) && !paced {
                    true => assert_eq!(used, NOT_PACING),
                    false => assert_eq!(used, system),
                }
            }
        }
    }
}
