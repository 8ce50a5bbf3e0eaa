//! The io_uring ring: what is submitted, and what is complete.
//!
//! Guarantees: memory that the kernel reads or writes belongs to this module from submission to
//! completion, whatever becomes of the futures; [`Ring::close`] returns when nothing is in flight any
//! more (and leaks what a device never answers for, rather than free it). `unsafe` here is the
//! submission of entries and the registration of buffers.

mod gather;
mod operation;

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode, squeue};

use crate::file::{FileExtent, GatherPiece};
use crate::shared::Shared;
use crate::slab::{Key, Slab};
use crate::{Buffer, BufferPool};
use gather::Gather;
use operation::{Operation, Simple, Transfer, Waiter, Watched};

/// User data of the poll on the reactor's eventfd.
const WAKEUP: u64 = u64::MAX;
/// User data of entries whose completion nobody waits for.
const IGNORED: u64 = u64::MAX - 1;
/// poll(2) events of a watched descriptor. Errors and hang-ups are always reported.
const WATCHED_EVENTS: u32 = (libc::POLLIN | libc::POLLOUT | libc::POLLRDHUP) as u32;
/// The kernel's limit on one registered buffer.
const FIXED_BYTES_MAX: usize = 1 << 30;
/// How long to wait for devices when a reactor stops.
const CLOSE_PATIENCE: Duration = Duration::from_secs(10);

pub(crate) struct Ring {
    uring: IoUring,
    operations: Slab<Operation>,
    /// Entries that did not fit into the submission queue, in order.
    backlog: VecDeque<squeue::Entry>,
    /// The pool whose memory is registered. After `uring`, so that it is dropped after it.
    registered: Option<BufferPool>,
    eventfd: RawFd,
    closed: bool,
    /// Keeps the eventfd open.
    _shared: Arc<Shared>,
}

/// What a look at the completions brought: to be woken and dropped when the ring is no longer
/// borrowed.
#[derive(Default)]
pub(crate) struct Reaped {
    wakers: Vec<Waker>,
    dropped: Vec<Operation>,
}

impl Reaped {
    /// Wakes and drops; keeps the room.
    pub(crate) fn finish(&mut self) {
        self.wakers.drain(..).for_each(Waker::wake);
        self.dropped.clear();
    }
}

/// What an operation without a buffer does.
pub(crate) enum Request {
    /// Wait until the descriptor is ready for these poll(2) events.
    Poll(RawFd, u32),
    /// Give the bytes back, keep the size.
    PunchHole {
        file: Arc<OwnedFd>,
        offset: u64,
        len: u64,
    },
}

impl Ring {
    /// A ring for the calling thread, with the pool of `shared` registered if the kernel permits.
    pub(crate) fn new(entries: u32, shared: &Arc<Shared>) -> io::Result<Self> {
        let uring = setup(entries.clamp(8, 32 * 1024)).map_err(explain)?;
        let params = uring.params();
        // The last of these came with Linux 5.13, as multishot poll did.
        if !(params.is_feature_nodrop()
            && params.is_feature_ext_arg()
            && params.is_feature_resource_tagging())
        {
            let text = "this kernel's io_uring is too old: Linux 5.13 or newer is needed";
            return Err(io::Error::new(io::ErrorKind::Unsupported, text));
        }
        let registered = match register(&uring, &shared.buffers) {
            Ok(()) => Some(shared.buffers.clone()),
            Err(error) => {
                tracing::debug!(
                    reactor = shared.name,
                    %error,
                    "the buffer pool is not registered with the ring (the limit on locked memory, \
                     RLIMIT_MEMLOCK, is one cause); I/O goes on without"
                );
                None
            }
        };
        let mut ring = Self {
            uring,
            operations: Slab::new(),
            backlog: VecDeque::new(),
            registered,
            eventfd: shared.eventfd().as_raw_fd(),
            closed: false,
            _shared: shared.clone(),
        };
        ring.arm_wakeup();
        Ok(ring)
    }

    /// Whether completions are there, or can be had by entering the kernel.
    pub(crate) fn has_events(&self) -> bool {
        // SAFETY: no `CompletionQueue` or `SubmissionQueue` lives beyond one expression in this
        // module, and the ring is on its own thread: these are the only ones now. They are only
        // looked at.
        unsafe {
            if !self.uring.completion_shared().is_empty() {
                return true;
            }
            let submission = self.uring.submission_shared();
            submission.taskrun() || submission.cq_overflow()
        }
    }

    /// Hands new entries to the kernel, and lets it post completions that it holds back.
    pub(crate) fn submit(&mut self) -> io::Result<()> {
        self.drain_backlog();
        let submission = self.uring.submission();
        let quiet = submission.is_empty() && !submission.taskrun() && !submission.cq_overflow();
        drop(submission);
        if quiet {
            return Ok(());
        }
        forgive(self.uring.submit())
    }

    /// As [`submit`](Self::submit), and waits for a completion, for at most `timeout`.
    pub(crate) fn submit_and_wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.drain_backlog();
        if !self.backlog.is_empty() || !self.uring.completion().is_empty() {
            return self.submit();
        }
        let result = match timeout {
            None => self.uring.submit_and_wait(1),
            Some(timeout) => {
                let timespec = Timespec::from(timeout);
                let args = SubmitArgs::new().timespec(&timespec);
                self.uring.submitter().submit_with_args(1, &args)
            }
        };
        forgive(result)
    }

    /// Books all completions that are there.
    pub(crate) fn reap(&mut self, reaped: &mut Reaped) {
        if self.uring.completion().is_empty() {
            return;
        }
        loop {
            let next = self.uring.completion().next();
            let Some(entry) = next else { break };
            self.complete(entry.user_data(), entry.result(), entry.flags(), reaped);
        }
    }

    fn complete(&mut self, user_data: u64, result: i32, flags: u32, reaped: &mut Reaped) {
        match user_data {
            WAKEUP if !cqueue::more(flags) && !self.closed => self.arm_wakeup(),
            WAKEUP | IGNORED => {}
            _ => {
                let (index, part) = (user_data as u32, (user_data >> 32) as usize);
                let Some(key) = self.operations.key_at(index) else {
                    return;
                };
                self.complete_operation(key, part, result, cqueue::more(flags), reaped);
            }
        }
    }

    fn complete_operation(
        &mut self,
        key: Key,
        part: usize,
        result: i32,
        more: bool,
        reaped: &mut Reaped,
    ) {
        let Some(operation) = self.operations.get_mut(key) else {
            return;
        };
        let waiter = match operation {
            Operation::Transfer(transfer) => {
                if transfer.part_done(part, result) {
                    self.submit_part(key, part);
                    return;
                }
                if transfer.in_flight > 0 {
                    return;
                }
                &mut transfer.waiter
            }
            Operation::Gather(gather) => {
                if gather.part_done(part, result) {
                    self.submit_gathered(key, part);
                    return;
                }
                if gather.in_flight > 0 {
                    return;
                }
                &mut gather.waiter
            }
            Operation::Simple(simple) => {
                simple.result = Some(result);
                &mut simple.waiter
            }
            Operation::Watched(watched) => {
                watched.armed = more;
                match u32::try_from(result) {
                    Ok(events) => watched.events |= events,
                    Err(_) => watched.error = Some(-result),
                }
                if more && matches!(watched.waiter, Waiter::Gone) {
                    return;
                }
                &mut watched.waiter
            }
        };
        if matches!(waiter, Waiter::Gone) {
            reaped.dropped.extend(self.operations.remove(key));
        } else {
            reaped.wakers.extend(waiter.take());
        }
    }

    /// Begins a transfer. Every extent has been checked to lie in the buffer, and is not empty.
    pub(crate) fn transfer(
        &mut self,
        file: Arc<OwnedFd>,
        buffer: Buffer,
        parts: Vec<FileExtent>,
        write: bool,
    ) -> Result<Key, (io::Error, Buffer)> {
        if self.closed {
            return Err((stopped(), buffer));
        }
        let count = parts.len() as u32;
        let key = self.operations.insert(Operation::Transfer(Transfer {
            file,
            buffer,
            write,
            parts,
            in_flight: count,
            error: None,
            waiter: Waiter::NotYet,
        }));
        for part in 0..count {
            self.submit_part(key, part as usize);
        }
        Ok(key)
    }

    /// Submits what is left of a part.
    fn submit_part(&mut self, key: Key, part: usize) {
        let Some(Operation::Transfer(transfer)) = self.operations.get_mut(key) else {
            return;
        };
        let FileExtent {
            file_offset,
            buffer_offset,
            len,
        } = transfer.parts[part];
        let base = self
            .registered
            .as_ref()
            .and_then(|pool| pool.offset_of(&transfer.buffer));
        let memory = &mut transfer.buffer[buffer_offset..buffer_offset + len];
        let (address, len) = (memory.as_mut_ptr(), len as u32);
        let file = Fd(transfer.file.as_raw_fd());
        let fixed = base.map(|base| (base / FIXED_BYTES_MAX) as u16);
        let entry = match (transfer.write, fixed) {
            (false, None) => opcode::Read::new(file, address, len)
                .offset(file_offset)
                .build(),
            (true, None) => opcode::Write::new(file, address, len)
                .offset(file_offset)
                .build(),
            (false, Some(index)) => opcode::ReadFixed::new(file, address, len, index)
                .offset(file_offset)
                .build(),
            (true, Some(index)) => opcode::WriteFixed::new(file, address, len, index)
                .offset(file_offset)
                .build(),
        };
        self.push(entry.user_data(u64::from(key.index) | (part as u64) << 32));
    }

    /// The outcome of a transfer, once all its parts are done.
    pub(crate) fn poll_transfer(
        &mut self,
        key: Key,
        cx: &Context<'_>,
    ) -> Poll<Option<(io::Result<()>, Buffer)>> {
        match self.operations.get_mut(key) {
            Some(Operation::Transfer(transfer)) if transfer.in_flight > 0 => {
                transfer.waiter.remember(cx);
                return Poll::Pending;
            }
            Some(Operation::Transfer(_)) => {}
            _ => return Poll::Ready(None),
        }
        Poll::Ready(match self.operations.remove(key) {
            Some(Operation::Transfer(transfer)) => {
                Some((transfer.error.map_or(Ok(()), Err), transfer.buffer))
            }
            _ => None,
        })
    }

    /// Begins a write of several buffers. Every piece has been checked to lie in its buffer, and one
    /// at least has bytes.
    pub(crate) fn gather(
        &mut self,
        file: Arc<OwnedFd>,
        buffers: Rc<Vec<Buffer>>,
        pieces: &[GatherPiece],
    ) -> io::Result<Key> {
        if self.closed {
            return Err(stopped());
        }
        let gather = Gather::new(file, buffers, pieces);
        let parts = gather.parts.len();
        let key = self.operations.insert(Operation::Gather(gather));
        for part in 0..parts {
            self.submit_gathered(key, part);
        }
        Ok(key)
    }

    /// Submits what is left of a part of a gathering write.
    fn submit_gathered(&mut self, key: Key, part: usize) {
        let Some(Operation::Gather(gather)) = self.operations.get_mut(key) else {
            return;
        };
        let at = gather.parts[part];
        let vectors = &gather.vectors[at.first..at.first + at.pieces];
        let file = Fd(gather.file.as_raw_fd());
        let base = match vectors {
            [_] => self
                .registered
                .as_ref()
                .and_then(|pool| pool.offset_of(&gather.buffers[at.buffer])),
            _ => None,
        };
        let entry = match (vectors, base) {
            // A single piece of registered memory spares the pinning of its pages.
            ([one], Some(base)) => {
                let index = (base / FIXED_BYTES_MAX) as u16;
                let address = one.iov_base.cast::<u8>().cast_const();
                opcode::WriteFixed::new(file, address, one.iov_len as u32, index)
                    .offset(at.file_offset)
                    .build()
            }
            _ => opcode::Writev::new(file, vectors.as_ptr(), vectors.len() as u32)
                .offset(at.file_offset)
                .build(),
        };
        self.push(entry.user_data(u64::from(key.index) | (part as u64) << 32));
    }

    /// The outcome of a gathering write, once all its parts are done, and its share of the buffers is given up.
    pub(crate) fn poll_gather(
        &mut self,
        key: Key,
        cx: &Context<'_>,
    ) -> Poll<Option<io::Result<()>>> {
        match self.operations.get_mut(key) {
            Some(Operation::Gather(gather)) if gather.in_flight > 0 => {
                gather.waiter.remember(cx);
                return Poll::Pending;
            }
            Some(Operation::Gather(_)) => {}
            _ => return Poll::Ready(None),
        }
        Poll::Ready(match self.operations.remove(key) {
            Some(Operation::Gather(gather)) => Some(gather.error.map_or(Ok(()), Err)),
            _ => None,
        })
    }

    /// Begins an operation without a buffer.
    pub(crate) fn request(&mut self, request: Request) -> io::Result<Key> {
        if self.closed {
            return Err(stopped());
        }
        let (entry, file) = match request {
            Request::Poll(fd, events) => (opcode::PollAdd::new(Fd(fd), events).build(), None),
            Request::PunchHole { file, offset, len } => {
                let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                let entry = opcode::Fallocate::new(Fd(file.as_raw_fd()), len);
                (entry.offset(offset).mode(mode).build(), Some(file))
            }
        };
        let simple = Simple {
            _file: file,
            result: None,
            waiter: Waiter::NotYet,
        };
        let key = self.operations.insert(Operation::Simple(simple));
        self.push(entry.user_data(u64::from(key.index)));
        Ok(key)
    }

    /// The outcome of an operation without a buffer.
    pub(crate) fn poll_request(&mut self, key: Key, cx: &Context<'_>) -> Poll<io::Result<u32>> {
        let result = match self.operations.get_mut(key) {
            Some(Operation::Simple(simple)) => match simple.result {
                Some(result) => result,
                None => {
                    simple.waiter.remember(cx);
                    return Poll::Pending;
                }
            },
            _ => return Poll::Ready(Err(stopped())),
        };
        self.operations.remove(key);
        Poll::Ready(u32::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result)))
    }

    /// Begins to watch a descriptor.
    pub(crate) fn watch(&mut self, file: Arc<OwnedFd>) -> io::Result<Key> {
        if self.closed {
            return Err(stopped());
        }
        let fd = file.as_raw_fd();
        let key = self.operations.insert(Operation::Watched(Watched {
            file,
            events: 0,
            error: None,
            armed: true,
            waiter: Waiter::NotYet,
        }));
        self.push_watch(key, fd);
        Ok(key)
    }

    fn push_watch(&mut self, key: Key, fd: RawFd) {
        // A multishot poll is edge-triggered: it reports once for everything that happens.
        let entry = opcode::PollAdd::new(Fd(fd), WATCHED_EVENTS).multi(true);
        self.push(entry.build().user_data(u64::from(key.index)));
    }

    /// What happened to a watched descriptor since the last look.
    pub(crate) fn poll_watch(&mut self, key: Key, cx: &Context<'_>) -> Poll<io::Result<u32>> {
        let Some(Operation::Watched(watched)) = self.operations.get_mut(key) else {
            return Poll::Ready(Err(stopped()));
        };
        if let Some(error) = watched.error {
            return Poll::Ready(Err(io::Error::from_raw_os_error(error)));
        }
        let events = std::mem::take(&mut watched.events);
        let rearm = !std::mem::replace(&mut watched.armed, true);
        let fd = watched.file.as_raw_fd();
        if events == 0 {
            watched.waiter.remember(cx);
        }
        if rearm {
            self.push_watch(key, fd);
        }
        match events {
            0 => Poll::Pending,
            events => Poll::Ready(Ok(events)),
        }
    }

    /// The future of an operation was dropped. What is to be dropped with it comes back; the rest
    /// stays until the kernel is done.
    pub(crate) fn forget(&mut self, key: Key) -> Option<Forgotten> {
        let cancel = match self.operations.get_mut(key)? {
            Operation::Transfer(transfer) if transfer.in_flight > 0 => {
                // Transfers end by themselves, soon.
                transfer.waiter = Waiter::Gone;
                false
            }
            Operation::Gather(gather) if gather.in_flight > 0 => {
                gather.waiter = Waiter::Gone;
                false
            }
            Operation::Simple(simple) if simple.result.is_none() => {
                simple.waiter = Waiter::Gone;
                true
            }
            Operation::Watched(watched) if watched.armed => {
                watched.waiter = Waiter::Gone;
                true
            }
            Operation::Transfer(_)
            | Operation::Gather(_)
            | Operation::Simple(_)
            | Operation::Watched(_) => {
                return self.operations.remove(key).map(Forgotten);
            }
        };
        if cancel {
            self.cancel(u64::from(key.index));
        }
        None
    }

    fn cancel(&mut self, user_data: u64) {
        self.push(
            opcode::AsyncCancel::new(user_data)
                .build()
                .user_data(IGNORED),
        );
    }

    fn arm_wakeup(&mut self) {
        // Multishot polls are edge-triggered: every write to the eventfd completes once, and the
        // counter need not be read (it would take 2^64 writes to fill it).
        let entry = opcode::PollAdd::new(Fd(self.eventfd), libc::POLLIN as u32).multi(true);
        self.push(entry.build().user_data(WAKEUP));
    }

    fn push(&mut self, entry: squeue::Entry) {
        if !self.backlog.is_empty() || !self.try_push(&entry) {
            self.backlog.push_back(entry);
            self.drain_backlog();
        }
    }

    fn try_push(&mut self, entry: &squeue::Entry) -> bool {
        // SAFETY: an entry refers to descriptors and memory of the operation in `self.operations`
        // that its user data names, which is removed only after its completion; `close` leaks those
        // that never complete. Polls and cancellations refer to no memory.
        unsafe { self.uring.submission().push(entry).is_ok() }
    }

    /// Moves entries from the backlog into the queue, entering the kernel when it is full. What the
    /// kernel does not take now stays for the next turn.
    fn drain_backlog(&mut self) {
        while let Some(entry) = self.backlog.pop_front() {
            if self.try_push(&entry) {
                continue;
            }
            let submitted = self.uring.submit().is_ok_and(|count| count > 0);
            if !submitted || !self.try_push(&entry) {
                self.backlog.push_front(entry);
                return;
            }
        }
    }

    /// Cancels what can be cancelled and waits for the rest.
    pub(crate) fn close(&mut self, reaped: &mut Reaped) {
        self.closed = true;
        for key in self.operations.keys() {
            reaped
                .dropped
                .extend(self.forget(key).map(|Forgotten(operation)| operation));
        }
        let end = Instant::now() + CLOSE_PATIENCE;
        while self.operations.len() > 0 {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || self.submit_and_wait(Some(left)).is_err() {
                break;
            }
            self.reap(reaped);
        }
        if self.operations.len() > 0 {
            tracing::error!(
                operations = self.operations.len(),
                "a device did not answer in time; the memory of these operations is given up"
            );
            std::mem::forget(std::mem::replace(&mut self.operations, Slab::new()));
            // The kernel may still write to the pool: it must stay mapped. The operations that were
            // given up hold buffers, and those hold their pool.
        }
    }
}

/// An operation that is complete, whose result nobody wants: to be dropped when the ring is no longer
/// borrowed.
pub(crate) struct Forgotten(Operation);

fn setup(entries: u32) -> io::Result<IoUring> {
    // Completions are posted when this thread asks for them (Linux 6.1), or at least without
    // interrupting it (5.19); both spare the thread signals and locks.
    let mut best = IoUring::builder();
    best.setup_clamp()
        .setup_submit_all()
        .setup_single_issuer()
        .setup_defer_taskrun();
    let mut good = IoUring::builder();
    good.setup_clamp().setup_submit_all().setup_coop_taskrun();
    let mut plain = IoUring::builder();
    plain.setup_clamp();
    best.setup_taskrun_flag()
        .build(entries)
        .or_else(|error| retry(error, || good.setup_taskrun_flag().build(entries)))
        .or_else(|error| retry(error, || plain.build(entries)))
}

/// Tries with fewer flags if the kernel did not know some.
fn retry(error: io::Error, other: impl FnOnce() -> io::Result<IoUring>) -> io::Result<IoUring> {
    if error.raw_os_error() == Some(libc::EINVAL) {
        other()
    } else {
        Err(error)
    }
}

fn explain(error: io::Error) -> io::Error {
    let remedy = match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            "this process may not use it: let the container's seccomp profile allow \
             io_uring_setup, io_uring_enter and io_uring_register, and set the sysctl \
             kernel.io_uring_disabled to 0"
        }
        Some(libc::ENOSYS) => {
            "this kernel has none: Linux 5.13 or newer with CONFIG_IO_URING is needed"
        }
        Some(libc::ENOMEM) => "no memory for it: raise the limit on locked memory (ulimit -l)",
        Some(libc::EMFILE | libc::ENFILE) => "no file descriptor is left: raise ulimit -n",
        _ => "the kernel refused",
    };
    io::Error::new(
        error.kind(),
        format!("cannot set up io_uring: {remedy} ({error})"),
    )
}

fn register(uring: &IoUring, pool: &BufferPool) -> io::Result<()> {
    let (base, bytes) = pool.memory();
    let pieces: Vec<libc::iovec> = (0..bytes)
        .step_by(FIXED_BYTES_MAX)
        .map(|offset| libc::iovec {
            // No buffer crosses from one piece to the next: buffers are aligned to their size.
            iov_base: base.as_ptr().wrapping_add(offset).cast(),
            iov_len: FIXED_BYTES_MAX.min(bytes - offset),
        })
        .collect();
    // SAFETY: the memory is the pool's whole mapping; the ring keeps the pool until it is closed.
    unsafe { uring.submitter().register_buffers(&pieces) }
}

/// Errors of an enter after which the next turn simply tries again.
fn forgive(result: io::Result<usize>) -> io::Result<()> {
    match result {
        Ok(_) => Ok(()),
        Err(error) => match error.raw_os_error() {
            // A signal; the timeout; completions to be reaped first; memory short for a moment.
            Some(libc::EINTR | libc::ETIME | libc::EBUSY | libc::EAGAIN) => Ok(()),
            _ => Err(error),
        },
    }
}

fn stopped() -> io::Error {
    io::Error::other("the reactor is stopping")
}
