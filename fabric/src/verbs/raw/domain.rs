//! A device as one reactor uses it: protection domain, completion queues on one channel, registered
//! pools.

use std::cell::{Cell, OnceCell, RefCell};
use std::ffi::{CStr, c_void};
use std::io;
use std::mem;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::rc::Rc;

use reactor::{Buffer, BufferPool};

use super::abi::*;
use super::library::Libraries;
use super::memory::{PoolRegion, Span};
use super::set_nonblocking;
use crate::error::VerbsError;
use crate::provider::WorkStatus;

/// Completions taken from a queue in one call.
const POLL_BATCH: usize = 64;

/// An opened device. The connection manager's library opens each device once; it closes one that was
/// removed when the last identifier on it and the last [`Devices`] are gone.
#[derive(Clone, Copy)]
pub(in crate::verbs) struct Context {
    raw: NonNull<ibv_context>,
    libraries: &'static Libraries,
}

/// Which device a context is of. Only compared, never followed, and valid as long as somebody holds the
/// device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::verbs) struct DeviceKey(usize);

/// Which completion queue an event is about. Only compared, never followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::verbs) struct QueueKey(usize);

#[cfg(test)]
impl DeviceKey {
    /// For tests, which have no device.
    pub(in crate::verbs) fn of_number(number: usize) -> Self {
        Self(number)
    }
}

impl PartialEq for Context {
    fn eq(&self, other: &Self) -> bool {
        self.raw == other.raw
    }
}

impl Context {
    pub(super) fn new(raw: *mut ibv_context, libraries: &'static Libraries) -> Option<Self> {
        NonNull::new(raw).map(|raw| Self { raw, libraries })
    }

    /// The same on every reactor: the connection manager's library opens each device once.
    pub(in crate::verbs) fn key(&self) -> DeviceKey {
        DeviceKey(self.raw.as_ptr() as usize)
    }

    /// The device's name, for example `mlx5_0` or `rxe0`.
    pub(in crate::verbs) fn name(&self) -> String {
        // SAFETY: the device is open while someone holds it, and its name is NUL-terminated.
        let name = unsafe { CStr::from_ptr((*(*self.raw.as_ptr()).device).name.as_ptr()) };
        name.to_string_lossy().into_owned()
    }

    /// Whether it is an InfiniBand or RoCE device.
    pub(in crate::verbs) fn is_infiniband(&self) -> bool {
        // SAFETY: as above.
        unsafe { (*(*self.raw.as_ptr()).device).transport_type == IBV_TRANSPORT_IB }
    }

    pub(super) fn ops(&self) -> &ibv_context_ops {
        // SAFETY: the device is open while someone holds it, and its table does not change.
        unsafe { &(*self.raw.as_ptr()).ops }
    }

    fn limits(&self) -> io::Result<Limits> {
        // SAFETY: the structure is plain integers, for which zeros are valid.
        let mut raw: ibv_device_attr = unsafe { mem::zeroed() };
        // SAFETY: the device is open, and the out-pointer valid for the call.
        let code = unsafe { (self.libraries.ib.ibv_query_device)(self.raw.as_ptr(), &raw mut raw) };
        if code != 0 {
            return Err(io::Error::from_raw_os_error(code.abs()));
        }
        let size = |n: i32| usize::try_from(n).unwrap_or(0);
        let depth = |n: i32| u8::try_from(n.clamp(0, 254)).unwrap_or(0);
        let windowed = IBV_DEVICE_MEM_WINDOW_TYPE_2A | IBV_DEVICE_MEM_WINDOW_TYPE_2B;
        let windows = match raw.device_cap_flags & windowed {
            0 => 0,
            _ => size(raw.max_mw),
        };
        Ok(Limits {
            work_requests: size(raw.max_qp_wr),
            completions: size(raw.max_cqe),
            region_bytes: raw.max_mr_size,
            reads_out: depth(raw.max_qp_init_rd_atom),
            reads_in: depth(raw.max_qp_rd_atom),
            windows,
            shared_receives: match raw.max_srq {
                0 => 0,
                _ => size(raw.max_srq_wr),
            },
        })
    }
}

/// All devices that the connection manager uses, kept open.
pub(in crate::verbs) struct Devices {
    /// Null if there are none.
    list: *mut *mut ibv_context,
    count: usize,
    libraries: &'static Libraries,
}

impl Devices {
    pub(in crate::verbs) fn open(libraries: &'static Libraries) -> Self {
        let mut count = 0;
        // SAFETY: the out-pointer is valid for the call.
        let list = unsafe { (libraries.cm.rdma_get_devices)(&raw mut count) };
        let count = match list.is_null() {
            true => 0,
            false => usize::try_from(count).unwrap_or(0),
        };
        Self {
            list,
            count,
            libraries,
        }
    }

    pub(in crate::verbs) fn iter(&self) -> impl Iterator<Item = Context> {
        // SAFETY: the library gave so many pointers.
        let raw = (0..self.count).map(|i| unsafe { *self.list.add(i) });
        raw.filter_map(|raw| Context::new(raw, self.libraries))
    }
}

impl Drop for Devices {
    fn drop(&mut self) {
        if !self.list.is_null() {
            // SAFETY: the list came from `rdma_get_devices` and is not used any more.
            unsafe { (self.libraries.cm.rdma_free_devices)(self.list) };
        }
    }
}

/// What a device can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::verbs) struct Limits {
    /// Work requests of a queue pair's send or receive queue.
    pub(in crate::verbs) work_requests: usize,
    /// Entries of a completion queue.
    pub(in crate::verbs) completions: usize,
    /// Bytes of one memory registration.
    pub(in crate::verbs) region_bytes: u64,
    /// READs that a queue pair may have in flight.
    pub(in crate::verbs) reads_out: u8,
    /// READs that the peer of a queue pair may have in flight.
    pub(in crate::verbs) reads_in: u8,
    /// Memory windows of type 2; 0 if the device has none.
    pub(in crate::verbs) windows: usize,
    /// Work requests of a shared receive queue; 0 if the device has none.
    pub(in crate::verbs) shared_receives: usize,
}

/// A finished work request, as the device reports it.
#[derive(Clone, Copy, Debug)]
pub(in crate::verbs) struct WorkCompletion {
    pub(in crate::verbs) queue_pair: u32,
    pub(in crate::verbs) status: WorkStatus,
    /// The device's own number for an error (`enum ibv_wc_status`).
    pub(in crate::verbs) code: i32,
    pub(super) id: u64,
    pub(super) len: usize,
    pub(super) invalidated: Option<u32>,
}

impl From<&ibv_wc> for WorkCompletion {
    fn from(raw: &ibv_wc) -> Self {
        let status = match raw.status {
            IBV_WC_SUCCESS => WorkStatus::Success,
            IBV_WC_WR_FLUSH_ERR => WorkStatus::Flushed,
            IBV_WC_REM_ACCESS_ERR => WorkStatus::RemoteAccess,
            IBV_WC_RETRY_EXC_ERR | IBV_WC_RESP_TIMEOUT_ERR => WorkStatus::NoAnswer,
            IBV_WC_RNR_RETRY_EXC_ERR => WorkStatus::ReceiverNotReady,
            _ => WorkStatus::Protocol,
        };
        let invalidated = raw.wc_flags & IBV_WC_WITH_INV != 0 && status == WorkStatus::Success;
        Self {
            queue_pair: raw.qp_num,
            status,
            code: raw.status,
            id: raw.wr_id,
            len: raw.byte_len as usize,
            invalidated: invalidated.then_some(raw.invalidated_rkey),
        }
    }
}

/// Something that the device reports outside of completions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::verbs) enum AsyncEvent {
    /// The device is lost.
    Fatal,
    /// A completion queue overflowed or broke: no completion of its queue pairs can be relied on.
    CompletionQueue(QueueKey),
    PortDown(u32),
    PortUp(u32),
    /// Something about a connection, which its completions or the connection manager tell as well.
    Other(String),
}

/// A protection domain and what belongs to it. Queue pairs, registrations and windows hold it.
pub(in crate::verbs) struct Domain {
    context: Context,
    name: String,
    limits: Limits,
    pd: NonNull<ibv_pd>,
    channel: NonNull<ibv_comp_channel>,
    queues: RefCell<Vec<Queue>>,
    pools: RefCell<Vec<PoolRegion>>,
    queue_entries: usize,
    /// Receives that may complete in any completion queue.
    shared_receives: Cell<usize>,
    staging: OnceCell<BufferPool>,
    staging_bytes: usize,
    /// Keeps the device open when it is removed; dropped last.
    _devices: Devices,
}

struct Queue {
    raw: NonNull<ibv_cq>,
    entries: usize,
    /// Entries that queue pairs may fill at worst: more would be lost.
    reserved: usize,
}

impl Domain {
    /// Opens a domain on a device. Its completion queues have about so many entries each; messages
    /// that do not lie in a pool are copied through so many bytes.
    pub(in crate::verbs) fn open(
        context: Context,
        queue_entries: usize,
        staging_bytes: usize,
    ) -> Result<Rc<Self>, VerbsError> {
        let name = context.name();
        let failed = |action, error: io::Error| VerbsError::failed(&name, action, &error);
        let limits = context
            .limits()
            .map_err(|error| failed("ask for the limits", error))?;
        let ib = &context.libraries.ib;
        // SAFETY: the device is open.
        let pd = NonNull::new(unsafe { (ib.ibv_alloc_pd)(context.raw.as_ptr()) })
            .ok_or_else(|| failed("make a protection domain", io::Error::last_os_error()))?;
        // SAFETY: the device is open.
        let channel = unsafe { (ib.ibv_create_comp_channel)(context.raw.as_ptr()) };
        let Some(channel) = NonNull::new(channel) else {
            let error = failed("make a completion channel", io::Error::last_os_error());
            // SAFETY: nothing uses the protection domain yet.
            unsafe { (ib.ibv_dealloc_pd)(pd.as_ptr()) };
            return Err(error);
        };
        let domain = Rc::new(Self {
            context,
            limits,
            pd,
            channel,
            queues: RefCell::default(),
            pools: RefCell::default(),
            queue_entries: queue_entries.min(limits.completions).max(1),
            shared_receives: Cell::new(0),
            staging: OnceCell::new(),
            staging_bytes,
            _devices: Devices::open(context.libraries),
            name: name.clone(),
        });
        set_nonblocking(domain.channel_fd())
            .and_then(|()| set_nonblocking(domain.async_fd()))
            .map_err(|error| failed("set up its channels", error))?;
        Ok(domain)
    }

    pub(in crate::verbs) fn context(&self) -> &Context {
        &self.context
    }

    pub(in crate::verbs) fn name(&self) -> &str {
        &self.name
    }

    pub(in crate::verbs) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// How many of so many receives a queue pair's own queue takes at a time; the others wait.
    pub(super) fn receives_of(&self, receives: usize) -> usize {
        receives.min(self.limits.work_requests)
    }

    pub(super) fn libraries(&self) -> &'static Libraries {
        self.context.libraries
    }

    pub(super) fn pd(&self) -> *mut ibv_pd {
        self.pd.as_ptr()
    }

    /// Readable when an armed completion queue has something.
    pub(in crate::verbs) fn channel_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as the channel, which the borrow keeps.
        unsafe { BorrowedFd::borrow_raw(self.channel.as_ref().fd) }
    }

    /// Readable when the device has an event. All reactors' domains on a device share it.
    pub(in crate::verbs) fn async_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the device is open as long as this domain, which the borrow keeps.
        unsafe { BorrowedFd::borrow_raw((*self.context.raw.as_ptr()).async_fd) }
    }

    /// Completion queues that are made from now on have room for so many receives beside what queue
    /// pairs reserve.
    pub(super) fn expect_shared_receives(&self, receives: usize) {
        self.shared_receives.set(receives);
    }

    /// Room for so many completions: the number of a queue that has it. A further queue is made when
    /// the others are full.
    pub(in crate::verbs) fn reserve(&self, entries: usize) -> io::Result<usize> {
        let mut queues = self.queues.borrow_mut();
        let free = |queue: &Queue| queue.entries - queue.reserved;
        if let Some(index) = queues.iter().position(|queue| free(queue) >= entries) {
            queues[index].reserved += entries;
            return Ok(index);
        }
        let shared = self.shared_receives.get();
        let size = self.queue_entries.max(entries + shared);
        let size_raw = i32::try_from(size).unwrap_or(i32::MAX);
        // SAFETY: device and channel are open.
        let raw = unsafe {
            (self.libraries().ib.ibv_create_cq)(
                self.context.raw.as_ptr(),
                size_raw,
                ptr::null_mut(),
                self.channel.as_ptr(),
                0,
            )
        };
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        queues.push(Queue {
            raw,
            entries: size,
            reserved: entries + shared,
        });
        drop(queues);
        self.arm()?;
        Ok(self.queues.borrow().len() - 1)
    }

    /// Gives back what [`reserve`](Self::reserve) gave.
    pub(in crate::verbs) fn release(&self, queue: usize, entries: usize) {
        if let Some(queue) = self.queues.borrow_mut().get_mut(queue) {
            queue.reserved = queue.reserved.saturating_sub(entries);
        }
    }

    pub(super) fn queue(&self, index: usize) -> io::Result<*mut ibv_cq> {
        let queues = self.queues.borrow();
        let queue = queues.get(index).map(|queue| queue.raw.as_ptr());
        queue.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
    }

    /// Whether a completion queue is one of this domain's.
    pub(in crate::verbs) fn has_queue(&self, key: QueueKey) -> bool {
        let queues = self.queues.borrow();
        queues.iter().any(|q| q.raw.as_ptr() as usize == key.0)
    }

    /// Asks for an event on the channel at the next completion of any queue.
    pub(in crate::verbs) fn arm(&self) -> io::Result<()> {
        let notify = self.context.ops().req_notify_cq;
        let notify = notify.ok_or_else(|| io::Error::from(io::ErrorKind::Unsupported))?;
        for queue in self.queues.borrow().iter() {
            // SAFETY: the queue is alive.
            let code = unsafe { notify(queue.raw.as_ptr(), 0) };
            if code != 0 {
                return Err(io::Error::from_raw_os_error(code.abs()));
            }
        }
        Ok(())
    }

    /// Takes the channel's events, which say no more than that it is time to look.
    ///
    /// # Errors
    /// The device is lost.
    pub(in crate::verbs) fn take_channel_events(&self) -> io::Result<()> {
        let ib = &self.libraries().ib;
        let mut queue = ptr::null_mut();
        let mut context: *mut c_void = ptr::null_mut();
        loop {
            // SAFETY: the channel is open and the out-pointers are valid; an event's queue is alive,
            // since destroying one waits for the acknowledgement of its events.
            unsafe {
                let code =
                    (ib.ibv_get_cq_event)(self.channel.as_ptr(), &raw mut queue, &raw mut context);
                if code != 0 {
                    return none_left();
                }
                (ib.ibv_ack_cq_events)(queue, 1);
            }
        }
    }

    /// Takes a batch of completions from every queue; true if there may be more.
    pub(in crate::verbs) fn poll(&self, into: &mut Vec<WorkCompletion>) -> io::Result<bool> {
        let poll = self.context.ops().poll_cq;
        let poll = poll.ok_or_else(|| io::Error::from(io::ErrorKind::Unsupported))?;
        let mut batch = [ibv_wc::default(); POLL_BATCH];
        let mut more = false;
        for queue in self.queues.borrow().iter() {
            // SAFETY: the queue is alive, and the batch has room for as many as are asked for.
            let count = unsafe { poll(queue.raw.as_ptr(), POLL_BATCH as i32, batch.as_mut_ptr()) };
            let Ok(count) = usize::try_from(count) else {
                return Err(io::Error::other("the completion queue is broken"));
            };
            into.extend(batch.iter().take(count).map(WorkCompletion::from));
            more |= count == POLL_BATCH;
        }
        Ok(more)
    }

    /// The device's next event, if there is one.
    ///
    /// # Errors
    /// The device is lost.
    pub(in crate::verbs) fn next_async_event(&self) -> io::Result<Option<AsyncEvent>> {
        let ib = &self.libraries().ib;
        let mut raw = ibv_async_event {
            element: ptr::null_mut(),
            event_type: 0,
        };
        // SAFETY: the device is open, and the out-pointer valid for the call.
        let code = unsafe { (ib.ibv_get_async_event)(self.context.raw.as_ptr(), &raw mut raw) };
        if code != 0 {
            return none_left().map(|()| None);
        }
        // The union's port number is an int in the first bytes of the pointer's place.
        let port = u32::from_ne_bytes(
            *(raw.element as usize)
                .to_ne_bytes()
                .first_chunk()
                .unwrap_or(&[0; 4]),
        );
        let event = match raw.event_type {
            IBV_EVENT_DEVICE_FATAL => AsyncEvent::Fatal,
            IBV_EVENT_CQ_ERR => AsyncEvent::CompletionQueue(QueueKey(raw.element as usize)),
            IBV_EVENT_PORT_ERR => AsyncEvent::PortDown(port),
            IBV_EVENT_PORT_ACTIVE => AsyncEvent::PortUp(port),
            IBV_EVENT_COMM_EST => AsyncEvent::Other("communication established".into()),
            other => {
                // SAFETY: the function gives a NUL-terminated constant for every number, or null.
                let text = unsafe { (ib.ibv_event_type_str)(other) };
                AsyncEvent::Other(match text.is_null() {
                    true => format!("event {other}"),
                    // SAFETY: as above.
                    false => unsafe { CStr::from_ptr(text) }
                        .to_string_lossy()
                        .into_owned(),
                })
            }
        };
        // SAFETY: the event was given by the call above, and is acknowledged once.
        unsafe { (ib.ibv_ack_async_event)(&raw mut raw) };
        Ok(Some(event))
    }

    /// Registers a pool, unless it is registered already.
    pub(in crate::verbs) fn register_pool(&self, pool: &BufferPool) -> Result<(), VerbsError> {
        let (_, bytes) = pool.memory();
        let region = PoolRegion::register(self, pool.clone(), self.limits.region_bytes);
        let region = region.map_err(|error| self.registration_error(bytes, &error))?;
        self.pools.borrow_mut().push(region);
        Ok(())
    }

    /// Where a buffer is; its pool is registered first if that is new.
    pub(super) fn span_of(&self, buffer: &Buffer) -> Result<Span, VerbsError> {
        let found = |pools: &[PoolRegion]| pools.iter().find_map(|pool| pool.find(buffer));
        if let Some(span) = found(&self.pools.borrow()) {
            return Ok(span);
        }
        self.register_pool(&buffer.pool())?;
        found(&self.pools.borrow()).ok_or_else(|| {
            let error = io::Error::from(io::ErrorKind::NotFound);
            VerbsError::failed(&self.name, "find registered memory", &error)
        })
    }

    /// A registered buffer for a message that lies elsewhere, if one is free.
    pub(super) fn stage(&self, len: usize) -> Option<Buffer> {
        if self.staging.get().is_none() {
            let pool = BufferPool::new(self.staging_bytes).ok()?;
            // Nobody else can have set it: the domain lives on one thread.
            let _ = self.staging.set(pool);
        }
        self.staging.get()?.try_alloc(len)
    }

    /// Says what a failed registration means.
    pub(in crate::verbs) fn registration_error(
        &self,
        bytes: usize,
        error: &io::Error,
    ) -> VerbsError {
        let limit = locked_memory_limit();
        match error.raw_os_error() {
            Some(libc::ENOMEM | libc::EAGAIN) if limit < u64::MAX => VerbsError::LockedMemory {
                device: self.name.clone(),
                bytes,
                limit,
            },
            _ => VerbsError::failed(&self.name, "register memory", error),
        }
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        self.pools.get_mut().clear();
        let ib = &self.libraries().ib;
        // SAFETY: whoever used queues, channel or protection domain held this domain, and is gone; all
        // events of the queues were acknowledged when they were taken.
        unsafe {
            for queue in self.queues.get_mut().drain(..) {
                (ib.ibv_destroy_cq)(queue.raw.as_ptr());
            }
            (ib.ibv_destroy_comp_channel)(self.channel.as_ptr());
            (ib.ibv_dealloc_pd)(self.pd.as_ptr());
        }
    }
}

/// The bytes that this process may lock; `u64::MAX` if there is no limit.
fn locked_memory_limit() -> u64 {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the out-pointer is valid for the call.
    match unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) } {
        0 => limit.rlim_cur,
        _ => u64::MAX,
    }
}

/// Why a channel that never blocks gave nothing.
fn none_left() -> io::Result<()> {
    let error = io::Error::last_os_error();
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(()),
        _ => Err(error),
    }
}
