//! NVMe commands to a generic character device (`/dev/ngXnY`), by io_uring's passthrough: past the block layer.
//!
//! Guarantees: memory that the device reads or writes belongs to this module until the device has answered for every command of
//! a transfer, whatever becomes of the futures; the end of a reactor waits for that, and leaks what a device never answers for.
//!
//! Such commands need submission entries of 128 bytes and completions of 32, so they have a ring of their own, made by the
//! first of them: the ring for everything else stays as small as it is. A task of the reactor waits on the one ring for
//! completions of the other. The `unsafe` here is the submission of entries.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode, squeue};

use crate::device::{DIRECTION, TO_HOST};
use crate::slab::{Key, Slab};
use crate::{Buffer, readable, sleep, spawn};

/// `NVME_URING_CMD_IO` and `NVME_URING_CMD_IO_VEC`: `_IOWR('N', 0x80, struct nvme_uring_cmd)`, and `0x81`. The structure is
/// that of the ioctl, without its result.
const IO: u32 = 0xc048_4e80;
const IO_VECTORED: u32 = 0xc048_4e81;

/// Entries of the ring's submission queue. More commands wait for the kernel to take those before them.
const ENTRIES: u32 = 256;

/// How long the kernel has until it is asked again to take what it did not take.
const SUBMIT_AGAIN_AFTER: Duration = Duration::from_millis(10);

/// How long to wait for devices when a reactor ends.
const CLOSE_PATIENCE: Duration = Duration::from_secs(10);

/// One NVMe command, and which bytes of the caller's buffers are its data.
#[derive(Clone, Debug)]
pub struct Command {
    /// The command as a submission queue has it; its identifier and where its data are are the kernel's.
    pub entry: [u8; 64],
    /// Its data, in order; none for a command without data.
    pub data: Vec<Piece>,
}

/// Bytes of one of several buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Which buffer, counted from 0.
    pub buffer: usize,
    /// Bytes from its start.
    pub offset: usize,
    /// How many.
    pub len: usize,
}

/// Sends commands whose data are in one buffer, whichever way they go, all at once.
///
/// # Errors
/// Of several, the first that failed: by the system, or by a status of the device. What was to be read into the buffer is
/// anything then, and what was to be written may have been.
pub async fn send(
    device: &Arc<OwnedFd>,
    buffer: Buffer,
    commands: &[Command],
) -> (io::Result<()>, Buffer) {
    let mut memory = Memory::Own(buffer);
    let result = match memory.check(commands) {
        Ok(()) => match transfer(device, memory, commands).await {
            Ok((result, back)) => {
                memory = back;
                result
            }
            Err((error, back)) => {
                memory = back;
                Err(error)
            }
        },
        Err(error) => Err(error),
    };
    match memory {
        Memory::Own(buffer) => (result, buffer),
        // A transfer gives back what it took.
        Memory::Shared(_) => unreachable!("it has a buffer of its own"),
    }
}

/// Sends commands whose data go to the device from the buffers, or that have none, all at once. Others may read the buffers
/// meanwhile. This gives up its share of them before it is ready; if the future is dropped, when the device has answered.
///
/// # Errors
/// As [`send`]; a command that reads is refused.
pub async fn send_gathered(
    device: &Arc<OwnedFd>,
    buffers: Rc<Vec<Buffer>>,
    commands: &[Command],
) -> io::Result<()> {
    let memory = Memory::Shared(buffers);
    memory.check(commands)?;
    if commands.iter().any(|it| it.entry[0] & DIRECTION == TO_HOST) {
        let text = "buffers that others may read cannot be filled";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    match transfer(device, memory, commands).await {
        Ok((result, _)) => result,
        Err((error, _)) => Err(error),
    }
}

/// What a transfer keeps until it is over.
enum Memory {
    Own(Buffer),
    Shared(Rc<Vec<Buffer>>),
}

impl Memory {
    /// Refuses commands whose data are not in the buffers.
    fn check(&self, commands: &[Command]) -> io::Result<()> {
        let len = |index: usize| match self {
            Self::Own(buffer) => (index == 0).then(|| buffer.len()),
            Self::Shared(buffers) => buffers.get(index).map(|buffer| buffer.len()),
        };
        for piece in commands.iter().flat_map(|command| &command.data) {
            let end = piece.offset.checked_add(piece.len);
            let fits = len(piece.buffer).is_some_and(|len| end.is_some_and(|end| end <= len));
            if !fits || piece.len == 0 || u32::try_from(piece.len).is_err() {
                let text = format!("{piece:?} is not within its buffer");
                return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
            }
        }
        Ok(())
    }

    /// Where a piece is, which is in its buffer.
    fn vector(&mut self, piece: &Piece) -> libc::iovec {
        let range = piece.offset..piece.offset + piece.len;
        let start = match self {
            Self::Own(buffer) => buffer[range].as_mut_ptr(),
            // The device only reads what others may read.
            Self::Shared(buffers) => buffers[piece.buffer][range].as_ptr().cast_mut(),
        };
        libc::iovec {
            iov_base: start.cast(),
            iov_len: piece.len,
        }
    }
}

/// A transfer: some commands, and what they need.
struct Transfer {
    /// Kept open for the kernel.
    _device: Arc<OwnedFd>,
    memory: Memory,
    /// Addresses of the data of commands that have several pieces. Never grows, so that it stays where the kernel was told.
    _vectors: Vec<libc::iovec>,
    /// Commands that the device has not answered.
    in_flight: usize,
    error: Option<io::Error>,
    waker: Option<Waker>,
    /// Nobody waits any more.
    is_left: bool,
}

type Transferred = Result<(io::Result<()>, Memory), (io::Error, Memory)>;

async fn transfer(device: &Arc<OwnedFd>, memory: Memory, commands: &[Command]) -> Transferred {
    if commands.is_empty() {
        return Ok((Ok(()), memory));
    }
    let ring = match ring() {
        Ok(ring) => ring,
        Err(error) => return Err((error, memory)),
    };
    let key = ring.borrow_mut().begin(device, memory, commands);
    submit(&ring);
    let mut waiting = Waiting { ring, key };
    let done = poll_fn(|cx| waiting.ring.borrow_mut().poll(key, cx)).await;
    waiting.key = Key::NONE;
    Ok(done)
}

/// Hands to the kernel what is in the queue. What it does not take now, for lack of memory, it is asked again to take: there may be
/// nothing else under way that would lead to that.
fn submit(ring: &Rc<RefCell<Ring>>) {
    let is_taken = ring.borrow_mut().submit();
    if !is_taken {
        ask_again(ring);
    }
}

/// Has a task hand over what is in the queue, until the kernel takes it.
fn ask_again(ring: &Rc<RefCell<Ring>>) {
    if std::mem::replace(&mut ring.borrow_mut().is_asked_again, true) {
        return;
    }
    let ring = ring.clone();
    spawn(async move {
        loop {
            sleep(SUBMIT_AGAIN_AFTER).await;
            let mut ring = ring.borrow_mut();
            if ring.submit() {
                ring.is_asked_again = false;
                break;
            }
        }
    })
    .detach();
}

/// Who waits for a transfer; tells the ring when nobody does any more.
struct Waiting {
    ring: Rc<RefCell<Ring>>,
    key: Key,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let left = self.ring.borrow_mut().leave(self.key);
        // Its buffers may wake others, who may come back here: not under the borrow.
        drop(left);
    }
}

thread_local! {
    /// The ring of this thread's reactor.
    static RING: RefCell<Option<Rc<RefCell<Ring>>>> = const { RefCell::new(None) };
}

/// The ring of this thread's reactor, made by the first call.
fn ring() -> io::Result<Rc<RefCell<Ring>>> {
    if let Some(ring) = RING.with_borrow(Clone::clone) {
        return Ok(ring);
    }
    if crate::current().is_none() {
        let text = "commands to a device need a reactor: send them in a task of one";
        return Err(io::Error::other(text));
    }
    let ring = Rc::new(RefCell::new(Ring::new()?));
    let descriptor = ring.borrow().descriptor()?;
    RING.set(Some(ring.clone()));
    let keeper = Keeper(ring.clone());
    spawn(async move { keeper.keep(descriptor.as_fd()).await }).detach();
    Ok(ring)
}

/// Books completions, as long as the reactor lives; at its end it closes the ring.
struct Keeper(Rc<RefCell<Ring>>);

impl Keeper {
    async fn keep(&self, descriptor: BorrowedFd<'_>) {
        while readable(descriptor).await.is_ok() {
            let reaped = self.0.borrow_mut().reap();
            submit(&self.0);
            reaped.finish();
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        // The thread may be ending, and the cell with it.
        let _ = RING.try_with(|ring| ring.take());
        let reaped = self.0.borrow_mut().close();
        reaped.finish();
    }
}

/// What is to be woken and dropped when the ring is not borrowed any more.
#[derive(Default)]
struct Reaped {
    wakers: Vec<Waker>,
    left: Vec<Transfer>,
}

impl Reaped {
    fn finish(self) {
        self.wakers.into_iter().for_each(Waker::wake);
        drop(self.left);
    }
}

struct Ring {
    uring: IoUring<squeue::Entry128, cqueue::Entry32>,
    transfers: Slab<Transfer>,
    /// A task tries to submit again.
    is_asked_again: bool,
}

impl Ring {
    fn new() -> io::Result<Self> {
        let mut builder = IoUring::<squeue::Entry128, cqueue::Entry32>::builder();
        let built = builder.setup_clamp().build(ENTRIES);
        let uring = built.map_err(|error| match error.raw_os_error() {
            Some(libc::EINVAL) => {
                let text = "this kernel sends no commands to devices by io_uring: Linux 5.19 or newer is needed";
                io::Error::new(io::ErrorKind::Unsupported, text)
            }
            _ => error,
        })?;
        Ok(Self {
            uring,
            transfers: Slab::new(),
            is_asked_again: false,
        })
    }

    /// The ring's descriptor once more: it can be read when completions are there.
    fn descriptor(&self) -> io::Result<OwnedFd> {
        // SAFETY: the ring has the descriptor, and lives as long as this borrow.
        let own = unsafe { BorrowedFd::borrow_raw(self.uring.as_raw_fd()) };
        own.try_clone_to_owned()
    }

    /// Hands to the kernel what is in the queue. False if it did not take all of it.
    fn submit(&mut self) -> bool {
        if !self.uring.submission().is_empty()
            && let Err(error) = self.uring.submit()
        {
            tracing::debug!(%error, "commands to a device wait for the kernel");
        }
        self.uring.submission().is_empty()
    }

    /// Puts the commands of a transfer into the queue. Its pieces have been checked to lie in the buffers.
    fn begin(&mut self, device: &Arc<OwnedFd>, mut memory: Memory, commands: &[Command]) -> Key {
        let pieces = commands.iter().flat_map(|command| &command.data);
        let vectors: Vec<libc::iovec> = pieces.map(|piece| memory.vector(piece)).collect();
        let mut first = 0;
        let entries: Vec<([u8; 80], u32)> = commands
            .iter()
            .map(|command| {
                let data = &vectors[first..first + command.data.len()];
                first += command.data.len();
                packed(&command.entry, data)
            })
            .collect();
        let file = Fd(device.as_raw_fd());
        let key = self.transfers.insert(Transfer {
            _device: device.clone(),
            memory,
            _vectors: vectors,
            in_flight: commands.len(),
            error: None,
            waker: None,
            is_left: false,
        });
        for (bytes, operation) in entries {
            let entry = opcode::UringCmd80::new(file, operation).cmd(bytes).build();
            self.push(key, &entry.user_data(u64::from(key.index)));
        }
        key
    }

    /// Puts an entry into the queue; when the kernel does not take what is there, the command fails.
    fn push(&mut self, key: Key, entry: &squeue::Entry128) {
        for is_last in [false, true] {
            // SAFETY: the entry refers to the descriptor, the memory and the vectors of the transfer that its user data name, which
            // is removed only after all its commands were answered; `close` leaks those that are not.
            let pushed = unsafe { self.uring.submission().push(entry) };
            if pushed.is_ok() {
                return;
            }
            let submitted = self.uring.submit();
            if is_last && let Some(transfer) = self.transfers.get_mut(key) {
                transfer.in_flight -= 1;
                let error = submitted.err();
                let error = error.unwrap_or_else(|| io::ErrorKind::ResourceBusy.into());
                transfer.error.get_or_insert(error);
            }
        }
    }

    /// The outcome of a transfer, once all its commands are answered.
    fn poll(&mut self, key: Key, cx: &Context<'_>) -> Poll<(io::Result<()>, Memory)> {
        let transfer = self.transfers.get_mut(key);
        if let Some(transfer) = transfer.filter(|transfer| transfer.in_flight > 0) {
            transfer.waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        match self.transfers.remove(key) {
            Some(Transfer { error, memory, .. }) => {
                Poll::Ready((error.map_or(Ok(()), Err), memory))
            }
            // The ring gives up a transfer only when its reactor ends, with all its tasks.
            None => Poll::Pending,
        }
    }

    /// Nobody waits for a transfer any more. What can be dropped comes back.
    fn leave(&mut self, key: Key) -> Option<Transfer> {
        let transfer = self.transfers.get_mut(key)?;
        transfer.is_left = true;
        match transfer.in_flight {
            0 => self.transfers.remove(key),
            _ => None,
        }
    }

    /// Books all answers that are there.
    fn reap(&mut self) -> Reaped {
        let mut reaped = Reaped::default();
        loop {
            let next = self.uring.completion().next();
            let Some(answer) = next else { break };
            let key = self.transfers.key_at(answer.user_data() as u32);
            let Some((key, transfer)) =
                key.and_then(|key| Some((key, self.transfers.get_mut(key)?)))
            else {
                continue;
            };
            transfer.in_flight -= 1;
            if let Some(error) = failure(answer.result()) {
                // Those after the first are often its consequences.
                transfer.error.get_or_insert(error);
            }
            if transfer.in_flight > 0 {
                continue;
            }
            reaped.wakers.extend(transfer.waker.take());
            if transfer.is_left {
                reaped.left.extend(self.transfers.remove(key));
            }
        }
        reaped
    }

    /// Waits for what is under way.
    fn close(&mut self) -> Reaped {
        let end = Instant::now() + CLOSE_PATIENCE;
        let mut all = Reaped::default();
        while self.is_busy() {
            let left = end.saturating_duration_since(Instant::now());
            let timespec = Timespec::from(left);
            let args = SubmitArgs::new().timespec(&timespec);
            // Of the queue, too.
            let waited = self.uring.submitter().submit_with_args(1, &args);
            let reaped = self.reap();
            all.wakers.extend(reaped.wakers);
            all.left.extend(reaped.left);
            let is_broken = waited.is_err_and(|error| {
                !matches!(
                    error.raw_os_error(),
                    Some(libc::EINTR | libc::ETIME | libc::EBUSY)
                )
            });
            if left.is_zero() || is_broken {
                break;
            }
        }
        if self.is_busy() {
            tracing::error!(
                "a device did not answer in time; the memory of its commands is given up"
            );
            std::mem::forget(std::mem::replace(&mut self.transfers, Slab::new()));
        }
        all
    }

    fn is_busy(&mut self) -> bool {
        let keys = self.transfers.keys();
        let mut keys = keys.into_iter();
        keys.any(|key| {
            let transfer = self.transfers.get_mut(key);
            transfer.is_some_and(|transfer| transfer.in_flight > 0)
        })
    }
}

/// What an answer means: a number of the system's, or a status of the device.
fn failure(result: i32) -> Option<io::Error> {
    match result {
        0 => None,
        1.. => Some(io::Error::other(format!(
            "the device answers with the NVMe status {result:#x}"
        ))),
        _ => Some(io::Error::from_raw_os_error(-result)),
    }
}

/// A command as the ring has it, and which operation that is.
fn packed(entry: &[u8; 64], data: &[libc::iovec]) -> ([u8; 80], u32) {
    let (address, len, operation) = match data {
        [] => (0, 0, IO),
        [one] => (one.iov_base as u64, one.iov_len as u32, IO),
        several => (several.as_ptr() as u64, several.len() as u32, IO_VECTORED),
    };
    // `struct nvme_uring_cmd` has the words of the command at the same places; the rest is zeros.
    let mut bytes = [0; 80];
    bytes[0] = entry[0];
    bytes[4..16].copy_from_slice(&entry[4..16]);
    bytes[24..32].copy_from_slice(&address.to_ne_bytes());
    bytes[36..40].copy_from_slice(&len.to_ne_bytes());
    bytes[40..64].copy_from_slice(&entry[40..]);
    (bytes, operation)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_packed_with_its_words_and_the_place_of_its_data() {
        let mut entry = [0; 64];
        entry[..8].copy_from_slice(&[2, 0x40, 9, 9, 1, 0, 0, 0]);
        entry[24..40].fill(0xee);
        entry[40..48].copy_from_slice(&7u64.to_le_bytes());
        let vector = |address: usize, iov_len| libc::iovec {
            iov_base: std::ptr::without_provenance_mut(address),
            iov_len,
        };
        let one = [vector(0x1000, 8192)];
        let (bytes, operation) = packed(&entry, &one);
        assert_eq!(operation, IO);
        assert_eq!(bytes[..8], [2, 0, 0, 0, 1, 0, 0, 0]);
        assert_eq!(bytes[8..24], [0; 16]);
        assert_eq!(bytes[24..32], 0x1000_u64.to_ne_bytes());
        assert_eq!(bytes[32..40], (8192_u64 << 32).to_ne_bytes());
        assert_eq!(bytes[40..48], 7_u64.to_le_bytes());
        let several = [one[0], vector(0x9000, 4096)];
        let (bytes, operation) = packed(&entry, &several);
        assert_eq!(operation, IO_VECTORED);
        assert_eq!(bytes[24..32], (several.as_ptr() as u64).to_ne_bytes());
        assert_eq!(bytes[36..40], 2_u32.to_ne_bytes());
    }

    #[test]
    fn a_command_to_what_is_no_device_fails_and_its_buffer_comes_back() {
        let config = crate::Config::default();
        let story = async {
            let file = tempfile::tempfile().expect("a file");
            let file: Arc<OwnedFd> = Arc::new(file.into());
            let pool = crate::BufferPool::new(1 << 20).expect("memory");
            let piece = |offset, len| Piece {
                buffer: 0,
                offset,
                len,
            };
            let command = |data| Command {
                entry: [1; 64],
                data,
            };
            for _ in 0..2 * ENTRIES {
                let buffer = pool.alloc(8192).await;
                let commands = [
                    command(vec![piece(0, 4096)]),
                    command(vec![piece(4096, 4096)]),
                ];
                let (result, buffer) = send(&file, buffer, &commands).await;
                result.expect_err("a file takes no commands");
                assert_eq!(buffer.len(), 8192);
            }
            let buffers = Rc::new(vec![pool.alloc(4096).await]);
            let too_long = [command(vec![piece(0, 8192)])];
            let error = send_gathered(&file, buffers.clone(), &too_long).await;
            let error = error.expect_err("beyond the buffer");
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
            let fits = [command(vec![piece(0, 4096)])];
            send_gathered(&file, buffers.clone(), &fits)
                .await
                .expect_err("a file");
            let mut fills = fits.clone();
            fills[0].entry = [2; 64];
            let error = send_gathered(&file, buffers.clone(), &fills).await;
            let error = error.expect_err("others have the buffer");
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
            assert!(Rc::into_inner(buffers).is_some(), "its share is given up");
            assert_eq!(pool.stats().free_bytes, pool.stats().total_bytes);
        };
        crate::run(config, story).expect("a reactor");
    }
    #[test]
    fn what_the_kernel_does_not_take_at_once_is_handed_to_it_again() {
        let story = async {
            let file: Arc<OwnedFd> = Arc::new(tempfile::tempfile().expect("a file").into());
            let pool = crate::BufferPool::new(1 << 20).expect("memory");
            let ring = ring().expect("a ring");
            let piece = Piece {
                buffer: 0,
                offset: 0,
                len: 4096,
            };
            let commands = [Command {
                entry: [1; 64],
                data: vec![piece],
            }];
            let memory = Memory::Own(pool.alloc(4096).await);
            let key = ring.borrow_mut().begin(&file, memory, &commands);
            // As after a call that the kernel refused.
            ask_again(&ring);
            let done = poll_fn(|cx| ring.borrow_mut().poll(key, cx)).await;
            done.0.expect_err("a file takes no commands");
            drop(done.1);
            assert!(ring.borrow_mut().submit());
            while ring.borrow().is_asked_again {
                crate::yield_now().await;
            }
        };
        crate::run(crate::Config::default(), story).expect("a reactor");
    }
}
