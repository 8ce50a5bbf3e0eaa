//! A queue pair's work requests, and the memory that they own.
//!
//! Guarantees:
//!
//! - Work is given to the device in the order in which it was posted, in batches; receives go first,
//!   so that what the batch's messages make the peer send finds one.
//! - Completions are reported in that order, also for requests that were posted without asking the
//!   device for a completion of their own.
//! - Memory stays here until its completion, or until the queue pair is destroyed. Small messages are
//!   received into a slab (of the ring, or one that queue pairs share) and copied out, so the device
//!   writes only to memory that no one else holds.
//! - A message is taken only if a receive was posted for it, and if it fits that: a peer that sends more
//!   loses its connection, also where queue pairs share their slots.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::ptr;
use std::rc::Rc;

use super::abi::*;
use super::cm::Id;
use super::domain::{Domain, WorkCompletion};
use super::memory::{Mr, Slab, Span, Window, access_of};
use super::receives::post_slots;
use super::sends::{Binding, Send, SendKind};
use super::shared_receives::SharedReceives;
use crate::error::VerbsError;
use crate::memory::FabricMemory;
use crate::provider::{Completion, PostError, RegionKey, RemoteRights, Work, WorkKind, WorkStatus};
use reactor::Buffer;

/// Work requests given to the device in one call.
pub(super) const POST_BATCH: usize = 32;

/// Set in the number of a receive; the other bits are its slot.
pub(super) const RECEIVE: u64 = 1 << 63;

/// Bytes that are copied into the work request instead of being fetched by the device: a submission
/// or completion queue entry.
const INLINE_BYTES: usize = 64;

/// Sizes of a queue pair.
#[derive(Clone, Copy, Debug)]
pub(in crate::verbs) struct RingsConfig {
    /// Receives that may be posted.
    pub(in crate::verbs) receives: usize,
    /// Bytes of the longest message that may arrive.
    pub(in crate::verbs) receive_bytes: usize,
    /// Work requests of the send queue that the device holds.
    pub(in crate::verbs) sends: usize,
    /// Work requests of the send queue in all: the device's, and those that wait for it.
    pub(in crate::verbs) sends_max: usize,
    /// READs that may be in flight; 0 if the peer takes none.
    pub(in crate::verbs) reads: u8,
    /// Regions that the peer may be shown at a time.
    pub(in crate::verbs) regions_max: usize,
}

/// A queue pair with everything that it works on.
pub(in crate::verbs) struct Rings {
    id: Rc<Id>,
    domain: Rc<Domain>,
    config: RingsConfig,
    number: u32,
    inline_bytes: usize,
    queue: usize,
    queue_entries: usize,
    /// Work of the send queue, oldest first; the device has the first `sends_posted`.
    sends: VecDeque<Send>,
    sends_posted: usize,
    /// The number of the oldest send.
    first_send: u64,
    /// Receives, oldest first; the device has the first `receives_posted`.
    receives: VecDeque<Receive>,
    receives_posted: usize,
    receiving: Receiving,
    regions: HashMap<u32, Region>,
    spare_windows: Vec<Window>,
    /// Set when a request failed: what follows is flushed.
    failed: bool,
}

struct Receive {
    id: u64,
    /// With a receive queue of its own.
    slot: usize,
    memory: FabricMemory,
}

/// Where messages arrive.
pub(super) enum Receiving {
    /// In a receive queue of the queue pair.
    Own { slab: Slab, free_slots: Vec<usize> },
    /// In one that it shares.
    Shared(Rc<SharedReceives>),
}

impl Receiving {
    fn slot_bytes(&self) -> usize {
        match self {
            Self::Own { slab, .. } => slab.slot_bytes(),
            Self::Shared(shared) => shared.slot_bytes(),
        }
    }
}

/// Memory that the peer is shown.
struct Region {
    access: Access,
    memory: FabricMemory,
    /// Set when the peer has invalidated it: the window can be bound again.
    invalidated: bool,
}

enum Access {
    Window(Window),
    /// The device has no windows of type 2. Ending the registration ends the access.
    Registration {
        _mr: Mr,
    },
}

/// What a completion brought.
#[derive(Default)]
pub(in crate::verbs) struct Finished {
    /// In the order in which the work was posted.
    pub(in crate::verbs) completions: Vec<Completion>,
}

impl Rings {
    /// Makes the queue pair of an identifier.
    pub(in crate::verbs) fn create(
        id: &Rc<Id>,
        domain: &Rc<Domain>,
        shared: Option<&Rc<SharedReceives>>,
        config: RingsConfig,
    ) -> Result<Self, VerbsError> {
        let failed = |action, error: io::Error| VerbsError::failed(domain.name(), action, &error);
        let shared = shared.filter(|shared| config.receive_bytes <= shared.slot_bytes());
        let (receiving, queue_entries) = match shared {
            Some(shared) => (Receiving::Shared(shared.clone()), config.sends),
            None => {
                let slab = Slab::new(domain, config.receives, config.receive_bytes);
                let bytes = config.receives * config.receive_bytes;
                let slab = slab.map_err(|error| domain.registration_error(bytes, &error))?;
                let free_slots = (0..config.receives).rev().collect();
                let own = Receiving::Own { slab, free_slots };
                (own, config.sends + config.receives)
            }
        };
        let queue = domain
            .reserve(queue_entries)
            .map_err(|error| failed("make a completion queue", error))?;
        let create = |inline| id.create_queue_pair(domain, queue, config.sends, &receiving, inline);
        // Devices that cannot copy so much into a request refuse the queue pair.
        let made = create(INLINE_BYTES)
            .map(|number| (number, INLINE_BYTES))
            .or_else(|_| create(0).map(|number| (number, 0)));
        let (number, inline_bytes) = match made {
            Ok(made) => made,
            Err(error) => {
                domain.release(queue, queue_entries);
                return Err(failed("make a queue pair", error));
            }
        };
        Ok(Self {
            id: id.clone(),
            domain: domain.clone(),
            config,
            number,
            inline_bytes,
            queue,
            queue_entries,
            sends: VecDeque::new(),
            sends_posted: 0,
            first_send: 0,
            receives: VecDeque::with_capacity(config.receives),
            receives_posted: 0,
            receiving,
            regions: HashMap::new(),
            spare_windows: Vec::new(),
            failed: false,
        })
    }

    /// The queue pair's number on its device.
    pub(in crate::verbs) fn number(&self) -> u32 {
        self.number
    }

    /// Whether the peer may invalidate the regions that it is shown.
    pub(in crate::verbs) fn regions_can_be_invalidated(&self) -> bool {
        self.domain.limits().windows > 0
    }

    /// Whether the device has no more work of this queue pair.
    pub(in crate::verbs) fn is_idle(&self) -> bool {
        self.sends_posted == 0 && self.receives_posted == 0
    }

    /// Whether there is work that the device could take.
    pub(in crate::verbs) fn has_more(&self) -> bool {
        let sends = self.sends_posted < self.sends.len().min(self.config.sends);
        sends || self.receives_wait()
    }

    /// Whether receives are to be given to the device; what queue pairs share it has already.
    fn receives_wait(&self) -> bool {
        matches!(self.receiving, Receiving::Own { .. })
            && self.receives_posted < self.domain.receives_of(self.receives.len())
    }

    pub(in crate::verbs) fn post_receive(
        &mut self,
        id: u64,
        memory: FabricMemory,
    ) -> Result<(), (PostError, FabricMemory)> {
        if memory.bytes().len() > self.receiving.slot_bytes() {
            return Err((PostError::BadRange, memory));
        }
        let slot = match &mut self.receiving {
            Receiving::Own { free_slots, .. } => free_slots.pop(),
            Receiving::Shared(_) => (self.receives.len() < self.config.receives).then_some(0),
        };
        let Some(slot) = slot else {
            return Err((PostError::Full, memory));
        };
        self.receives.push_back(Receive { id, slot, memory });
        Ok(())
    }

    pub(in crate::verbs) fn post_send(
        &mut self,
        id: u64,
        work: Work,
    ) -> Result<(), (PostError, Work)> {
        if self.sends.len() >= self.config.sends_max {
            return Err((PostError::Full, work));
        }
        let (memory, offset, len) = match &work {
            Work::Send { data, len, .. } => (data, 0, *len),
            Work::Read {
                into, offset, len, ..
            } => (into, *offset, *len),
            Work::Write { from, len, .. } => (from, 0, *len),
        };
        let end = offset.checked_add(len);
        if end.is_none_or(|end| end > memory.bytes().len()) || u32::try_from(len).is_err() {
            return Err((PostError::BadRange, work));
        }
        let is_send = matches!(work, Work::Send { .. });
        if matches!(work, Work::Read { .. }) && self.config.reads == 0 {
            return Err((PostError::ReadsNotAllowed, work));
        }
        let inline = is_send && len <= self.inline_bytes;
        let placed = match (inline, memory) {
            (true, _) => Ok((None, None)),
            (false, FabricMemory::Buffer(buffer)) => {
                self.domain.span_of(buffer).map(|span| (Some(span), None))
            }
            (false, other) => self.stage(other, offset, len),
        };
        let (span, staged) = match placed {
            Ok(placed) => placed,
            Err(error) => {
                tracing::warn!(%error, "a work request was not posted");
                return Err((PostError::Full, work));
            }
        };
        let (what, memory) = match work {
            Work::Send {
                data, invalidate, ..
            } => (SendKind::Send { invalidate }, data),
            Work::Read {
                into,
                offset,
                remote,
                ..
            } => (SendKind::Read { offset, remote }, into),
            Work::Write { from, remote, .. } => (SendKind::Write { remote }, from),
        };
        self.sends.push_back(Send {
            id,
            what,
            memory,
            staged,
            span,
            len,
        });
        Ok(())
    }

    /// Registered memory for a message that lies in no pool, with a copy of it.
    fn stage(
        &self,
        memory: &FabricMemory,
        offset: usize,
        len: usize,
    ) -> Result<(Option<Span>, Option<Buffer>), VerbsError> {
        let Some(mut buffer) = self.domain.stage(len.max(1)) else {
            let error = io::Error::from(io::ErrorKind::OutOfMemory);
            let name = self.domain.name();
            return Err(VerbsError::failed(name, "copy a message", &error));
        };
        buffer[..len].copy_from_slice(&memory.bytes()[offset..offset + len]);
        let span = self.domain.span_of(&buffer)?;
        Ok((Some(span), Some(buffer)))
    }

    /// Gives the device what was posted, as far as it has room; says how many calls that took.
    ///
    /// # Errors
    /// The queue pair is unusable then.
    pub(in crate::verbs) fn flush(&mut self) -> io::Result<u64> {
        // After a failure the rest stays here, and goes back when the queue pair is closed.
        if self.failed {
            return Ok(0);
        }
        let flushed = self.flush_all();
        self.failed |= flushed.is_err();
        flushed
    }

    fn flush_all(&mut self) -> io::Result<u64> {
        let mut calls = 0;
        while self.receives_wait() {
            self.flush_receives()?;
            calls += 1;
        }
        while self.sends_posted < self.sends.len().min(self.config.sends) {
            self.flush_sends()?;
            calls += 1;
        }
        Ok(calls)
    }

    fn flush_receives(&mut self) -> io::Result<()> {
        let Receiving::Own { slab, .. } = &self.receiving else {
            return Ok(());
        };
        let (qp, post) = self.call(|ops| ops.post_recv)?;
        let at_once = self.domain.receives_of(self.receives.len());
        let waiting = self.receives.iter().take(at_once);
        let waiting = waiting.skip(self.receives_posted);
        let waiting = waiting.map(|receive| (receive.slot, receive.memory.bytes().len()));
        let count = post_slots(slab, RECEIVE, waiting, |requests, bad| {
            // SAFETY: the queue pair is alive; requests and places are valid for the call, which copies
            // them. The slots belong to this ring and are written by nobody else until their completion.
            unsafe { post(qp, requests, bad) }
        })?;
        self.receives_posted += count;
        Ok(())
    }

    fn flush_sends(&mut self) -> io::Result<()> {
        let (qp, post) = self.call(|ops| ops.post_send)?;
        let mut places = [ibv_sge::default(); POST_BATCH];
        // SAFETY: the structure is plain integers and pointers, for which zeros are valid.
        let mut requests: [ibv_send_wr; POST_BATCH] = unsafe { std::mem::zeroed() };
        let room = (self.config.sends - self.sends_posted).min(POST_BATCH);
        let count = (self.sends.len() - self.sends_posted).min(room);
        let next = self.first_send + self.sends_posted as u64;
        let waiting = self.sends.iter_mut().skip(self.sends_posted).take(count);
        for (index, (send, (place, request))) in waiting
            .zip(places.iter_mut().zip(&mut requests))
            .enumerate()
        {
            request.wr_id = next + index as u64;
            // A WRITE's or a binding's end is seen in that of the next request.
            let quiet = matches!(send.what, SendKind::Write { .. } | SendKind::Bind(_));
            if !quiet || index + 1 == count {
                request.send_flags = IBV_SEND_SIGNALED;
            }
            send.describe(request, place);
        }
        chain(&mut requests[..count], |request, next| request.next = next);
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair is alive; requests and places are valid for the call, which copies
        // them and inline data. Other memory is owned by this ring until its completion, or until the
        // queue pair is destroyed.
        let code = unsafe { post(qp, requests.as_mut_ptr(), &raw mut bad) };
        result(code)?;
        for send in self.sends.iter().skip(self.sends_posted).take(count) {
            if let SendKind::Bind(binding) = &send.what {
                // SAFETY: the window is alive: it is freed after its binding is taken back. The
                // library wants the new key noted once the binding is posted.
                unsafe { (*binding.window).rkey = binding.rkey };
            }
        }
        self.sends_posted += count;
        Ok(())
    }

    /// The queue pair and one of its device's functions.
    fn call<F>(
        &self,
        pick: impl FnOnce(&ibv_context_ops) -> Option<F>,
    ) -> io::Result<(*mut ibv_qp, F)> {
        let function = pick(self.domain.context().ops());
        match (self.id.queue_pair(), function) {
            (Some(qp), Some(function)) => Ok((qp, function)),
            _ => Err(io::Error::from(io::ErrorKind::NotConnected)),
        }
    }

    /// Takes what a completion ends, in order; says how it ended.
    pub(in crate::verbs) fn complete(
        &mut self,
        work: &WorkCompletion,
        finished: &mut Finished,
    ) -> WorkStatus {
        if work.id & RECEIVE == 0 {
            self.complete_sends(work, finished);
            return work.status;
        }
        let shared = match &self.receiving {
            Receiving::Own { .. } => None,
            Receiving::Shared(shared) => Some(shared.clone()),
        };
        match shared {
            None => self.complete_receive(work, finished),
            Some(shared) => self.complete_shared(&shared, work, finished),
        }
    }

    /// A message in a shared slot belongs to the oldest receive that was posted here.
    fn complete_shared(
        &mut self,
        shared: &SharedReceives,
        work: &WorkCompletion,
        finished: &mut Finished,
    ) -> WorkStatus {
        let Some(slot) = SharedReceives::slot_of(work) else {
            return work.status;
        };
        let Some(Receive { id, mut memory, .. }) = self.receives.pop_front() else {
            // The peer sent more than it was granted.
            shared.throw_away(work);
            return match work.status {
                WorkStatus::Success => WorkStatus::ReceiverNotReady,
                other => other,
            };
        };
        let status = match work.status {
            // The slot is longer than what was posted.
            WorkStatus::Success if work.len > memory.bytes().len() => WorkStatus::Protocol,
            other => other,
        };
        let len = match status {
            WorkStatus::Success => work.len,
            _ => 0,
        };
        shared.take(slot, len, memory.bytes_mut());
        self.received(id, status, len, work.invalidated, memory, finished);
        status
    }

    fn complete_receive(&mut self, work: &WorkCompletion, finished: &mut Finished) -> WorkStatus {
        let slot = (work.id & !RECEIVE) as usize;
        let posted = self.receives.iter().take(self.receives_posted);
        // The first one, unless the device is out of order.
        let Some(index) = posted.into_iter().position(|receive| receive.slot == slot) else {
            return work.status;
        };
        let Some(Receive { id, mut memory, .. }) = self.receives.remove(index) else {
            return work.status;
        };
        self.receives_posted -= 1;
        let success = work.status == WorkStatus::Success;
        let len = match success {
            true => work.len.min(memory.bytes().len()),
            false => 0,
        };
        if let Receiving::Own { slab, free_slots } = &mut self.receiving {
            slab.copy_out(slot, len, memory.bytes_mut());
            free_slots.push(slot);
        }
        self.received(id, work.status, len, work.invalidated, memory, finished);
        work.status
    }

    fn received(
        &mut self,
        id: u64,
        status: WorkStatus,
        len: usize,
        invalidated: Option<u32>,
        memory: FabricMemory,
        finished: &mut Finished,
    ) {
        if let Some(rkey) = invalidated
            && let Some(region) = self.regions.get_mut(&rkey)
        {
            region.invalidated = true;
        }
        finished.completions.push(Completion {
            id,
            kind: WorkKind::Receive,
            status,
            len,
            invalidated,
            memory,
        });
    }

    fn complete_sends(&mut self, work: &WorkCompletion, finished: &mut Finished) {
        let Some(index) = work.id.checked_sub(self.first_send) else {
            return;
        };
        if index >= self.sends_posted as u64 {
            return;
        }
        for at in 0..=index {
            let Some(send) = self.sends.pop_front() else {
                return;
            };
            self.sends_posted -= 1;
            self.first_send += 1;
            let status = match (at == index, self.failed) {
                (true, _) => work.status,
                // Requests without a completion of their own succeeded if a later one got an answer,
                // and were flushed if an earlier one failed.
                (false, false) => WorkStatus::Success,
                (false, true) => WorkStatus::Flushed,
            };
            finished.completions.extend(send.finish(status));
        }
        self.failed |= work.status != WorkStatus::Success;
    }

    /// Shows the peer a buffer; the memory comes back if that is not possible.
    pub(in crate::verbs) fn register(
        &mut self,
        memory: FabricMemory,
        rights: RemoteRights,
    ) -> Result<RegionKey, FabricMemory> {
        if self.regions.len() >= self.config.regions_max {
            return Err(memory);
        }
        let FabricMemory::Buffer(buffer) = &memory else {
            return Err(memory);
        };
        let address = buffer.as_ptr() as u64;
        let shown = match self.regions_can_be_invalidated() {
            true => self.bind(buffer, rights),
            false => self.register_alone(buffer, rights),
        };
        match shown {
            Ok((rkey, access)) => {
                let region = Region {
                    access,
                    memory,
                    invalidated: false,
                };
                self.regions.insert(rkey, region);
                Ok(RegionKey { rkey, address })
            }
            Err(error) => {
                tracing::warn!(device = self.domain.name(), %error, "memory cannot be shown to a peer");
                Err(memory)
            }
        }
    }

    /// Binds a window, on its way before the next SEND.
    fn bind(&mut self, buffer: &Buffer, rights: RemoteRights) -> io::Result<(u32, Access)> {
        if self.sends.len() >= self.config.sends_max {
            return Err(io::Error::from(io::ErrorKind::WouldBlock));
        }
        let span = self.domain.span_of(buffer).map_err(io::Error::other)?;
        let mut window = match self.spare_windows.pop() {
            Some(window) => window,
            None => Window::allocate(&self.domain)?,
        };
        let rkey = window.next_key();
        self.sends.push_back(Send {
            id: 0,
            what: SendKind::Bind(Binding {
                window: window.raw(),
                rkey,
                access: access_of(rights),
            }),
            memory: FabricMemory::inline(&[]),
            staged: None,
            span: Some(span),
            len: buffer.len(),
        });
        Ok((rkey, Access::Window(window)))
    }

    /// Registers a buffer for itself.
    fn register_alone(&self, buffer: &Buffer, rights: RemoteRights) -> io::Result<(u32, Access)> {
        let start = ptr::NonNull::from(&**buffer).cast();
        let access = IBV_ACCESS_LOCAL_WRITE | access_of(rights);
        // SAFETY: the buffer is kept beside its registration until that ends, and its pool's mapping
        // by the buffer; the domain is held by this ring.
        let mr = unsafe { Mr::register(&self.domain, start, buffer.len(), access)? };
        Ok((mr.rkey(), Access::Registration { _mr: mr }))
    }

    /// Ends the peer's access to a region and gives its memory back.
    pub(in crate::verbs) fn deregister(&mut self, rkey: u32) -> Option<FabricMemory> {
        let Region {
            access,
            memory,
            invalidated,
        } = self.regions.remove(&rkey)?;
        match access {
            Access::Window(window) if invalidated => self.spare_windows.push(window),
            // Freeing a window ends the access before the call returns.
            Access::Window(window) => {
                self.take_back_binding(&window);
                drop(window);
            }
            Access::Registration { _mr: mr } => drop(mr),
        }
        Some(memory)
    }

    /// Forgets a binding that the device does not have yet.
    fn take_back_binding(&mut self, window: &Window) {
        let waiting = self.sends.iter().skip(self.sends_posted);
        let is_its =
            |send: &Send| matches!(&send.what, SendKind::Bind(b) if b.window == window.raw());
        if let Some(index) = waiting.into_iter().position(is_its) {
            self.sends.remove(self.sends_posted + index);
        }
    }

    /// Destroys the queue pair: the peer reaches nothing through it any more. Gives back what was
    /// posted, in order, as flushed, and by their keys the regions that the peer was shown.
    pub(in crate::verbs) fn close(&mut self) -> (Finished, HashMap<u32, FabricMemory>) {
        // Windows first: a device need not let go of a queue pair that has some.
        self.spare_windows.clear();
        let regions = self.regions.drain();
        let regions = regions
            .map(|(rkey, region)| (rkey, region.memory))
            .collect();
        self.id.destroy_queue_pair();
        let entries = std::mem::take(&mut self.queue_entries);
        self.domain.release(self.queue, entries);
        self.sends_posted = 0;
        self.receives_posted = 0;
        let mut finished = Finished::default();
        for send in self.sends.drain(..) {
            finished
                .completions
                .extend(send.finish(WorkStatus::Flushed));
        }
        for Receive { id, memory, .. } in self.receives.drain(..) {
            finished.completions.push(Completion {
                id,
                kind: WorkKind::Receive,
                status: WorkStatus::Flushed,
                len: 0,
                invalidated: None,
                memory,
            });
        }
        (finished, regions)
    }
}

impl Drop for Rings {
    fn drop(&mut self) {
        // The memory goes back to its pools after the queue pair is gone.
        drop(self.close());
    }
}

/// Links requests that are given to the device in one call.
pub(super) fn chain<T>(requests: &mut [T], set: impl Fn(&mut T, *mut T)) {
    let mut next: *mut T = ptr::null_mut();
    for request in requests.iter_mut().rev() {
        set(request, next);
        next = request;
    }
}

/// The result of a function that gives 0 or a positive error number.
pub(super) fn result(code: i32) -> io::Result<()> {
    match code {
        0 => Ok(()),
        _ => Err(io::Error::from_raw_os_error(code.abs())),
    }
}
