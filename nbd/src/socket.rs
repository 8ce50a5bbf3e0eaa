//! The socket of a connection: nothing here blocks.
//!
//! One task uses it, which may wait for both directions at a time.

use std::cell::Cell;
use std::future::poll_fn;
use std::io::{self, ErrorKind, IoSlice};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use reactor::net::Watch;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, recv, sendmsg, sockopt};

/// After how much silence the kernel asks whether the peer is still there.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
/// How long it waits before it asks again.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// How often it asks in vain before the connection has failed.
const KEEPALIVE_PROBES: u32 = 6;

/// A connected socket that this reactor watches.
pub(crate) struct Socket {
    fd: Arc<OwnedFd>,
    watch: Watch,
    readable: Cell<bool>,
    writable: Cell<bool>,
    /// The peer sends no more than is there.
    ended: Cell<bool>,
}

/// Sets up the socket of a connection that came by TCP.
pub(crate) fn set_up_tcp(fd: &OwnedFd) -> io::Result<()> {
    // All replies of a turn leave together already.
    sockopt::set_tcp_nodelay(fd, true)?;
    // A client that is gone without a word gives its place back.
    sockopt::set_socket_keepalive(fd, true)?;
    sockopt::set_tcp_keepidle(fd, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(fd, KEEPALIVE_INTERVAL)?;
    Ok(sockopt::set_tcp_keepcnt(fd, KEEPALIVE_PROBES)?)
}

impl Socket {
    /// # Errors
    /// This thread is no reactor's, or the reactor stops.
    pub(crate) fn new(fd: OwnedFd) -> io::Result<Self> {
        let fd = Arc::new(fd);
        Ok(Self {
            watch: Watch::new(&fd)?,
            fd,
            readable: Cell::new(true),
            writable: Cell::new(true),
            ended: Cell::new(false),
        })
    }

    /// Takes what was reported, until it is what somebody waits for. There is one place for a waker: the task's.
    fn poll(&self, cx: &Context<'_>, mine: &Cell<bool>) -> Poll<io::Result<()>> {
        loop {
            if mine.get() {
                return Poll::Ready(Ok(()));
            }
            let ready = match self.watch.poll_ready(cx) {
                Poll::Ready(ready) => ready?,
                Poll::Pending => return Poll::Pending,
            };
            for (is_ready, known) in [
                (ready.readable, &self.readable),
                (ready.writable, &self.writable),
                (ready.ended, &self.ended),
            ] {
                if is_ready && !known.replace(true) && !std::ptr::eq(known, mine) {
                    // Who waits for that may have been polled before.
                    cx.waker().wake_by_ref();
                }
            }
        }
    }

    /// Waits until something may have come.
    pub(crate) async fn readable(&self) -> io::Result<()> {
        poll_fn(|cx| self.poll(cx, &self.readable)).await
    }

    /// Receives something; 0 is the end.
    pub(crate) async fn receive(&self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            self.readable().await?;
            match rustix::io::retry_on_intr(|| recv(&self.fd, &mut *into, RecvFlags::DONTWAIT)) {
                Ok((_, bytes)) => {
                    // All that was there. What comes later is reported, but the end is not reported again.
                    let is_all = bytes < into.len() && !self.ended.get();
                    self.readable.set(!is_all);
                    return Ok(bytes);
                }
                Err(error) if is_would_block(error) => self.readable.set(false),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Sends what the kernel takes now; 0 if that is nothing.
    pub(crate) fn send(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let mut nothing = SendAncillaryBuffer::default();
        match rustix::io::retry_on_intr(|| sendmsg(&self.fd, slices, &mut nothing, flags)) {
            Ok(bytes) => {
                let all: usize = slices.iter().map(|slice| slice.len()).sum();
                self.writable.set(bytes == all);
                Ok(bytes)
            }
            Err(error) if is_would_block(error) => {
                self.writable.set(false);
                Ok(0)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Whether the kernel may take something now.
    pub(crate) fn is_writable(&self) -> bool {
        self.writable.get()
    }

    /// Waits until the kernel may take something.
    pub(crate) async fn writable(&self) -> io::Result<()> {
        poll_fn(|cx| self.poll(cx, &self.writable)).await
    }

    /// Waits until the peer sends no more than is there.
    pub(crate) async fn ended(&self) {
        // A reactor that stops drops who waits.
        let _ = poll_fn(|cx| self.poll(cx, &self.ended)).await;
    }

    /// Sends all of it.
    pub(crate) async fn send_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            self.writable().await?;
            let sent = self.send(&[IoSlice::new(bytes)])?;
            bytes = &bytes[sent..];
        }
        Ok(())
    }
}

fn is_would_block(error: rustix::io::Errno) -> bool {
    io::Error::from(error).kind() == ErrorKind::WouldBlock
}
