//! Reading and writing files through the ring.
//!
//! Guarantees: buffer and file are owned by the ring until the kernel is done with them, also when a
//! future is dropped (the transfer then goes on, unseen); the buffer comes back with every outcome;
//! short transfers are continued; a file that ends before an extent does is
//! [`UnexpectedEof`](io::ErrorKind::UnexpectedEof). All functions need a reactor on this thread, and
//! give an error elsewhere.

use std::future::{Future, poll_fn};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::Buffer;
use crate::executor::{self, Core};
use crate::ring::Request;
use crate::slab::Key;

/// A stretch of a file, and where it is in the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileExtent {
    /// Bytes from the file's start.
    pub file_offset: u64,
    /// Bytes from the buffer's start.
    pub buffer_offset: usize,
    /// Bytes.
    pub len: usize,
}

/// A stretch of a file, and the buffer among several that its bytes come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GatherPiece {
    /// Bytes from the file's start.
    pub file_offset: u64,
    /// Which buffer, counted from 0.
    pub buffer: usize,
    /// Bytes from that buffer's start.
    pub buffer_offset: usize,
    /// Bytes.
    pub len: usize,
}

/// Reads all extents into the buffer, in no promised order. For files opened with O_DIRECT, offsets
/// and lengths are multiples of what the file system asks for.
///
/// # Errors
/// Of several, the first that the kernel reported; the extents' part of the buffer then holds anything.
pub async fn read(
    file: &Arc<OwnedFd>,
    buffer: Buffer,
    extents: &[FileExtent],
) -> (io::Result<()>, Buffer) {
    transfer(file, buffer, extents, false).await
}

/// Writes all extents from the buffer, in no promised order; as [`read`] otherwise. What was written
/// survives a power loss only after the file was synced.
///
/// # Errors
/// Of several, the first that the kernel reported; any part may have been written then.
pub async fn write(
    file: &Arc<OwnedFd>,
    buffer: Buffer,
    extents: &[FileExtent],
) -> (io::Result<()>, Buffer) {
    transfer(file, buffer, extents, true).await
}

/// Writes all pieces, in no promised order; as [`write()`] otherwise. Pieces that follow each other here
/// and in the file leave as one vectored write (of at most 1 MiB and 256 pieces), and all writes in one
/// submission. Others may read the buffers meanwhile, also to write them elsewhere: this gives up its share of them before
/// it is ready; if the future is dropped, when the kernel is done.
///
/// # Errors
/// As [`write()`].
pub async fn write_gathered(
    file: &Arc<OwnedFd>,
    buffers: Rc<Vec<Buffer>>,
    pieces: &[GatherPiece],
) -> io::Result<()> {
    let misfit = |piece: &&GatherPiece| {
        let extent = FileExtent {
            file_offset: piece.file_offset,
            buffer_offset: piece.buffer_offset,
            len: piece.len,
        };
        let buffer = buffers.get(piece.buffer);
        !buffer.is_some_and(|buffer| fits(&extent, buffer))
    };
    if let Some(wrong) = pieces.iter().find(misfit) {
        let text = format!("{wrong:?} is not within one of {} buffers", buffers.len());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    if pieces.iter().all(|piece| piece.len == 0) {
        return Ok(());
    }
    let core = executor::current().ok_or_else(no_reactor)?;
    let key = core
        .ring
        .borrow_mut()
        .gather(file.clone(), buffers, pieces)?;
    let flight = InFlight { core, key };
    let done = poll_fn(|cx| flight.core.ring.borrow_mut().poll_gather(key, cx)).await;
    match done {
        Some(done) => done,
        // The ring gives up an operation only when its reactor ends, with all its tasks.
        None => panic!("polled after it was done"),
    }
}

/// Gives `len` bytes from `offset` back to the file system or device; they read as zeros afterwards.
/// The size stays.
///
/// # Errors
/// `EOPNOTSUPP` where space cannot be given back.
pub async fn discard(file: &Arc<OwnedFd>, offset: u64, len: u64) -> io::Result<()> {
    if len == 0 {
        return Ok(());
    }
    request(Request::PunchHole {
        file: file.clone(),
        offset,
        len,
    })
    .await
    .map(drop)
}

/// Waits until `fd` can be read without blocking, or has an error or a hang-up to report.
///
/// # Errors
/// If the descriptor cannot be polled, or this thread is not a reactor's.
pub async fn readable(fd: BorrowedFd<'_>) -> io::Result<()> {
    poll_for(fd, libc::POLLIN).await
}

/// Waits until `fd` can be written without blocking, or has an error or a hang-up to report.
///
/// # Errors
/// If the descriptor cannot be polled, or this thread is not a reactor's.
pub async fn writable(fd: BorrowedFd<'_>) -> io::Result<()> {
    poll_for(fd, libc::POLLOUT).await
}

async fn poll_for(fd: BorrowedFd<'_>, events: i16) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    let ready = request(Request::Poll(fd.as_raw_fd(), events as u32)).await?;
    if ready & libc::POLLNVAL as u32 != 0 {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    Ok(())
}

async fn transfer(
    file: &Arc<OwnedFd>,
    buffer: Buffer,
    extents: &[FileExtent],
    write: bool,
) -> (io::Result<()>, Buffer) {
    if let Some(wrong) = extents.iter().find(|extent| !fits(extent, &buffer)) {
        let text = format!("{wrong:?} is not within a buffer of {} bytes", buffer.len());
        return (
            Err(io::Error::new(io::ErrorKind::InvalidInput, text)),
            buffer,
        );
    }
    let parts: Vec<FileExtent> = extents
        .iter()
        .filter(|extent| extent.len > 0)
        .copied()
        .collect();
    if parts.is_empty() {
        return (Ok(()), buffer);
    }
    let Some(core) = executor::current() else {
        return (Err(no_reactor()), buffer);
    };
    let begun = core
        .ring
        .borrow_mut()
        .transfer(file.clone(), buffer, parts, write);
    let key = match begun {
        Ok(key) => key,
        Err((error, buffer)) => return (Err(error), buffer),
    };
    InTransfer(InFlight { core, key }).await
}

fn fits(extent: &FileExtent, buffer: &Buffer) -> bool {
    let buffer_end = extent.buffer_offset.checked_add(extent.len);
    let file_end = extent.file_offset.checked_add(extent.len as u64);
    buffer_end.is_some_and(|end| end <= buffer.len())
        && file_end.is_some_and(|end| i64::try_from(end).is_ok())
}

async fn request(request: Request) -> io::Result<u32> {
    let core = executor::current().ok_or_else(no_reactor)?;
    let key = core.ring.borrow_mut().request(request)?;
    let mut flight = InFlight { core, key };
    let result = poll_fn(|cx| flight.core.ring.borrow_mut().poll_request(key, cx)).await;
    flight.key = Key::NONE;
    result
}

fn no_reactor() -> io::Error {
    io::Error::other("file I/O needs a reactor: call it in a task of one, or in reactor::run")
}

/// An operation in the ring; tells the ring when nobody waits any more.
struct InFlight {
    core: Rc<Core>,
    key: Key,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let forgotten = self.core.ring.borrow_mut().forget(self.key);
        drop(forgotten);
    }
}

struct InTransfer(InFlight);

impl Future for InTransfer {
    type Output = (io::Result<()>, Buffer);

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let InFlight { core, key } = &self.0;
        let polled = core.ring.borrow_mut().poll_transfer(*key, cx);
        polled.map(|done| match done {
            Some(done) => done,
            // The ring gives up an operation only when its reactor ends, with all its tasks.
            None => panic!("polled after it was done"),
        })
    }
}
