//! The conversation with a server over its socket: questions, and answers within a deadline.
//!
//! Guarantees: nothing here takes longer than the deadline, whatever the server does; descriptors that a server sends are
//! closed by the system, because none is asked for.
//!
//! Why this is no library: the front end of the crate `vhost` waits for an answer without a limit, and again after a time-out
//! of the socket.

use std::io::{self, IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, connect, sendmsg, socket_with,
};

use crate::message::{Answer, HEADER_BYTES, REGIONS_MAX, Request, config};

/// Pause before the next attempt at a socket whose line of connections is full: of that the system tells nobody when it ends
/// (connect(2), EAGAIN), so there is no condition to wait for.
const LINE_PAUSE: Duration = Duration::from_millis(20);

/// See the module. The answers are asked for on a thread that may block.
#[derive(Debug)]
pub(crate) struct Control {
    socket: UnixStream,
    /// The server acknowledges what has no answer (`VHOST_USER_PROTOCOL_F_REPLY_ACK`).
    pub(crate) acknowledges: bool,
}

/// Connects to a socket.
///
/// # Errors
/// Nobody listens there, or accepts within the deadline.
pub(crate) fn reach(path: &Path, deadline: Instant) -> io::Result<UnixStream> {
    let address = SocketAddrUnix::new(path)?;
    // Not blocking: connect(2) waits without a limit where the line is full.
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    loop {
        match connect(&socket, &address) {
            Ok(()) => break,
            Err(Errno::AGAIN) if Instant::now() + LINE_PAUSE < deadline => {
                thread::sleep(LINE_PAUSE)
            }
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Err(io::ErrorKind::TimedOut.into()),
            Err(errno) => return Err(errno.into()),
        }
    }
    let socket = UnixStream::from(socket);
    socket.set_nonblocking(false)?;
    Ok(socket)
}

fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    match left.is_zero() {
        true => Err(io::ErrorKind::TimedOut.into()),
        false => Ok(left),
    }
}

impl Control {
    pub(crate) fn new(socket: UnixStream) -> Self {
        Self {
            socket,
            acknowledges: false,
        }
    }

    pub(crate) fn socket(&self) -> &UnixStream {
        &self.socket
    }

    /// Asks, with descriptors beside the message; returns the payload of the answer.
    ///
    /// # Errors
    /// Names the message, and what came in place of an answer.
    fn ask_bytes(
        &self,
        request: Request,
        fds: &[BorrowedFd<'_>],
        deadline: Instant,
    ) -> Result<Vec<u8>, String> {
        let failed = |error: io::Error| {
            let why = match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                    "the server does not answer; check that it runs, and that no other client uses it".to_owned()
                }
                io::ErrorKind::UnexpectedEof => "the server closed the connection".to_owned(),
                _ => error.to_string(),
            };
            format!("{}: {why}", request.name())
        };
        let message = request.encode(self.acknowledges);
        self.send(&message, fds, deadline).map_err(failed)?;
        if request.answer() == Answer::Ack && !self.acknowledges {
            return Ok(Vec::new());
        }
        let mut header = [0; HEADER_BYTES];
        self.receive(&mut header, deadline).map_err(failed)?;
        let wrong = |why| format!("the server answers {} wrongly: {why}", request.name());
        let len = request.answer_bytes(&header).map_err(wrong)?;
        let mut payload = vec![0; len];
        self.receive(&mut payload, deadline).map_err(failed)?;
        Ok(payload)
    }

    fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>], deadline: Instant) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(REGIONS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.socket.set_write_timeout(Some(left(deadline)?))?;
        // Messages are shorter than any socket's buffer: one call sends all, or the server reads nothing.
        let sent = sendmsg(
            &self.socket,
            &[IoSlice::new(bytes)],
            &mut control,
            SendFlags::NOSIGNAL,
        )?;
        match sent == bytes.len() {
            true => Ok(()),
            false => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    fn receive(&self, mut to: &mut [u8], deadline: Instant) -> io::Result<()> {
        while !to.is_empty() {
            self.socket.set_read_timeout(Some(left(deadline)?))?;
            match (&self.socket).read(to) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(bytes) => to = &mut to[bytes..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Asks for a number, or for whether the request worked.
    ///
    /// # Errors
    /// As said, or it did not work.
    pub(crate) fn ask(
        &self,
        request: Request,
        fds: &[BorrowedFd<'_>],
        deadline: Instant,
    ) -> Result<u64, String> {
        let payload = self.ask_bytes(request, fds, deadline)?;
        if request.answer() == Answer::Ack && !self.acknowledges {
            return Ok(0);
        }
        let number = request.number(&payload);
        let wrong = |why| format!("the server answers {} wrongly: {why}", request.name());
        let number = number.map_err(wrong)?;
        match request.answer() == Answer::Ack && number != 0 {
            true => Err(format!(
                "the server refuses {}; look into its log",
                request.name()
            )),
            false => Ok(number),
        }
    }

    /// The first bytes of the device's configuration space.
    ///
    /// # Errors
    /// The server does not tell so many.
    pub(crate) fn ask_config<const N: usize>(&self, deadline: Instant) -> Result<[u8; N], String> {
        let request = Request::GetConfig { bytes: N as u32 };
        let payload = self.ask_bytes(request, &[], deadline)?;
        config(&payload).map_err(|why| format!("the server answers GET_CONFIG wrongly: {why}"))
    }
}
