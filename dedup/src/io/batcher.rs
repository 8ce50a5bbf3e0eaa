//! The batcher: writes that arrive on a thread at about the same time become one batch.
//!
//! Each thread has one batcher per engine. The first write that finds no other write collecting collects: it lets the
//! other ready tasks run first, as long as that brings more writes, and then forms a batch of all that wait. (The
//! workers of a queue call each other one by one, so their writes come one by one too.) A write that is alone waits for
//! nobody. Several batches of a batcher can be on their way at once.
//!
//! A batch belongs to its writes. One of them drives it: it polls the batch's future. When that write is done or
//! dropped, it hands the batch to another write of the batch. So a write that is dropped disturbs no other. When the
//! last write is dropped, the batch is dropped with it and gives back what it held. A write that is dropped before its
//! batch was formed leaves the queue and changes nothing.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};

use drives::{BLOCK_BYTES, LocalBoxFuture};
use meta::VerifyPolicy;
use reactor::Buffer;

use crate::hooks::{Current, Hooks};
use crate::io::write;
use crate::metadata::volume::VolumeCore;
use crate::pool::Shared;
use crate::stages::{self, Stage, Stopwatch};
use crate::sync::range_lock::RangeGuard;
use crate::{EngineError, Result};

/// A write that collects forms its batch after so many looks in a row that found no new write. The worker of a queue
/// that brings the next write runs after this one has gone to the end of the run queue, so its write is there at
/// the second look.
const LOOKS_IN_VAIN_MAX: u32 = 2;

/// What becomes of a write: the sequence number that must be durable for it to survive a power loss,
/// and its buffer.
pub(crate) type Written = (Result<u64>, Buffer);

/// An engine, the number of one of the reactors that a test has on its thread, and their batcher.
type BatcherOf = (Weak<Shared>, usize, Rc<Batcher>);

thread_local! {
    static BATCHERS: RefCell<Vec<BatcherOf>> = const { RefCell::new(Vec::new()) };
}

/// Writes of one thread that wait for their batch.
#[derive(Default)]
pub(crate) struct Batcher {
    queue: RefCell<VecDeque<Command>>,
    /// Sub-blocks of all commands in the queue.
    blocks: Cell<usize>,
    /// A write collects. Its command is the first in the queue.
    collecting: Cell<bool>,
}

/// A write of whole sub-blocks.
pub(crate) struct Command {
    pub(crate) volume: Arc<VolumeCore>,
    pub(crate) start: u64,
    /// Always there, but while a drive writes from it.
    pub(crate) buf: Option<Buffer>,
    /// The CRC-32C of each sub-block, if they are known.
    pub(crate) checksums: Option<Box<[u32]>>,
    /// What it does about duplicates.
    pub(crate) verify: VerifyPolicy,
    /// It was acknowledged, and is to be compared: room for it is promised.
    pub(crate) is_again: bool,
    /// What it writes cannot be read: blocks of its own, with checksums that do not match.
    pub(crate) is_mark: bool,
    /// Covers the range, until the new mapping is in place.
    guard: Option<RangeGuard>,
    /// If somebody watches it.
    stopwatch: Option<Rc<Stopwatch>>,
    waiter: Rc<Waiter>,
}

/// What becomes of a command that no write waits for.
pub(crate) struct CommandEnd(Rc<Waiter>);

impl CommandEnd {
    /// `None`: it has not ended.
    pub(crate) fn result(self) -> Option<Result<u64>> {
        match self.0.inner.borrow_mut().end.take() {
            Some(End::Written((result, _))) => Some(result),
            Some(End::Lost) | None => None,
        }
    }
}

impl Command {
    /// Writes again, with a comparison, what was acknowledged. The caller holds the range.
    pub(crate) fn again(volume: &Arc<VolumeCore>, start: u64, buf: Buffer) -> (Self, CommandEnd) {
        let waiter = Rc::new(Waiter::default());
        let command = Self {
            volume: volume.clone(),
            start,
            buf: Some(buf),
            checksums: None,
            verify: VerifyPolicy::Compare,
            is_again: true,
            is_mark: false,
            guard: None,
            stopwatch: None,
            waiter: waiter.clone(),
        };
        (command, CommandEnd(waiter))
    }

    /// The caller keeps others from the range from now on.
    pub(crate) fn take_guard(&mut self) -> Option<RangeGuard> {
        self.guard.take()
    }

    /// Whether somebody watches it.
    pub(crate) fn is_watched(&self) -> bool {
        self.stopwatch.is_some()
    }

    /// A stage has ended, for who watches it.
    pub(crate) fn ended(&self, stage: Stage) {
        if let Some(stopwatch) = &self.stopwatch {
            stopwatch.ended(stage);
        }
    }

    /// Sub-blocks that it writes.
    pub(crate) fn count(&self) -> usize {
        self.buf.as_ref().map_or(0, |buf| buf.len() / BLOCK_BYTES)
    }

    /// Lets the next holder of the range go on, then tells the write.
    pub(crate) fn finish(mut self, result: Result<u64>) {
        self.end(result);
    }

    fn end(&mut self, result: Result<u64>) {
        drop(self.guard.take());
        let end = match self.buf.take() {
            Some(buf) => End::Written((result, buf)),
            None => End::Lost,
        };
        self.waiter.end(end);
    }
}

impl Drop for Command {
    /// A batch that panicked leaves its commands unfinished.
    fn drop(&mut self) {
        if self.guard.is_some() {
            self.end(Err(EngineError::internal("a batch of writes was dropped")));
        }
    }
}

enum End {
    Written(Written),
    /// The batch panicked while a drive had the buffer.
    Lost,
}

/// What a write does besides waiting.
enum Role {
    Collect,
    Drive(Driven),
}

/// A batch and the writes in it.
struct Driven {
    batch: LocalBoxFuture<'static, ()>,
    waiters: Vec<Rc<Waiter>>,
}

/// A write that waits for its end, or for something to do.
#[derive(Default)]
struct Waiter {
    inner: RefCell<WaiterInner>,
}

#[derive(Default)]
struct WaiterInner {
    end: Option<End>,
    role: Option<Role>,
    waker: Option<Waker>,
    /// The write was dropped.
    is_left: bool,
}

impl Waiter {
    fn end(&self, end: End) {
        let waker = {
            let mut inner = self.inner.borrow_mut();
            inner.end = Some(end);
            inner.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Gives the role to this write, or back if it has left or ended.
    fn give(&self, role: Role) -> Option<Role> {
        let waker = {
            let mut inner = self.inner.borrow_mut();
            if inner.is_left || inner.end.is_some() {
                return Some(role);
            }
            inner.role = Some(role);
            inner.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        None
    }
}

/// This thread's batcher for an engine.
fn batcher_of(shared: &Arc<Shared>) -> Rc<Batcher> {
    let reactor = Current::reactor();
    BATCHERS.with_borrow_mut(|batchers| {
        let known = batchers.iter().find(|(engine, of, _)| {
            std::ptr::eq(engine.as_ptr(), Arc::as_ptr(shared)) && *of == reactor
        });
        if let Some((_, _, batcher)) = known {
            return batcher.clone();
        }
        batchers.retain(|(engine, _, _)| engine.strong_count() > 0);
        let batcher = Rc::new(Batcher::default());
        batchers.push((Arc::downgrade(shared), reactor, batcher.clone()));
        batcher
    })
}

/// Data of whole sub-blocks, with the CRC-32C of each if they are known.
pub(crate) type Data = (Buffer, Option<Box<[u32]>>);

/// Writes whole sub-blocks from `start` on: the buffer's length is a multiple of their size, and the
/// guard covers them. The guard is held until the new mapping is in place.
pub(crate) fn write_sub_blocks(
    shared: &Arc<Shared>,
    volume: &Arc<VolumeCore>,
    guard: RangeGuard,
    start: u64,
    data: Data,
) -> Write {
    begin(shared, volume, guard, start, data, false)
}

/// As [`write_sub_blocks`], of sub-blocks that cannot be read from then on. What the buffer holds goes to
/// blocks of their own.
pub(crate) fn mark_sub_blocks(
    shared: &Arc<Shared>,
    volume: &Arc<VolumeCore>,
    guard: RangeGuard,
    start: u64,
    buf: Buffer,
) -> Write {
    begin(shared, volume, guard, start, (buf, None), true)
}

fn begin(
    shared: &Arc<Shared>,
    volume: &Arc<VolumeCore>,
    guard: RangeGuard,
    start: u64,
    (buf, checksums): Data,
    is_mark: bool,
) -> Write {
    let batcher = batcher_of(shared);
    let waiter = Rc::new(Waiter::default());
    let command = Command {
        volume: volume.clone(),
        start,
        // A list of another length is of other blocks.
        checksums: checksums.filter(|known| known.len() == buf.len() / BLOCK_BYTES),
        buf: Some(buf),
        verify: volume.verify(),
        is_again: false,
        is_mark,
        guard: Some(guard),
        stopwatch: stages::current(),
        waiter: waiter.clone(),
    };
    batcher.blocks.set(batcher.blocks.get() + command.count());
    batcher.queue.borrow_mut().push_back(command);
    let collects = !batcher.collecting.replace(true);
    Write {
        shared: shared.clone(),
        batcher,
        waiter,
        role: collects.then_some(Role::Collect),
        patience: collects.then(Patience::default),
    }
}

/// A write on its way.
pub(crate) struct Write {
    shared: Arc<Shared>,
    batcher: Rc<Batcher>,
    waiter: Rc<Waiter>,
    role: Option<Role>,
    /// As long as it collects.
    patience: Option<Patience>,
}

/// How long a write that collects lets other tasks run first.
#[derive(Default)]
struct Patience {
    /// Sub-blocks that waited when it last looked.
    seen: usize,
    /// Looks in a row that found nothing new.
    in_vain: u32,
}

impl Patience {
    /// Whether it waits on, now that so many sub-blocks wait of those that make a batch full.
    fn lasts(&mut self, waiting: usize, batch_blocks: usize) -> bool {
        self.in_vain = match waiting > self.seen {
            true => 0,
            false => self.in_vain + 1,
        };
        self.seen = waiting;
        waiting < batch_blocks && self.in_vain < LOOKS_IN_VAIN_MAX
    }
}

impl Batcher {
    /// Forms a batch of what waits. If writes are left over, the first of them collects from now on.
    fn form_batch(&self, shared: &Arc<Shared>) -> Driven {
        let mut queue = self.queue.borrow_mut();
        let mut blocks = 0;
        let mut count = 0;
        for command in queue.iter() {
            if count > 0 && blocks + command.count() > shared.config.batch_blocks {
                break;
            }
            blocks += command.count();
            count += 1;
        }
        self.blocks.set(self.blocks.get().saturating_sub(blocks));
        let commands: Vec<Command> = queue.drain(..count).collect();
        drop(queue);
        self.pass_collecting_on();
        let waiters = commands.iter().map(|command| command.waiter.clone());
        Driven {
            waiters: waiters.collect(),
            batch: Box::pin(write::run(shared.clone(), commands)),
        }
    }

    /// The first write in the queue collects from now on.
    fn pass_collecting_on(&self) {
        // A write in the queue was not dropped: that takes its command out.
        let next = self
            .queue
            .borrow()
            .front()
            .map(|command| command.waiter.clone());
        let refused = match next {
            Some(next) => next.give(Role::Collect).is_some(),
            None => true,
        };
        self.collecting.set(!refused);
    }
}

impl Write {
    fn take_role(&mut self) -> Option<Role> {
        let role = self.role.take();
        role.or_else(|| self.waiter.inner.borrow_mut().role.take())
    }
}

impl Future for Write {
    type Output = Written;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Written> {
        let waiting = self.batcher.blocks.get();
        let batch_blocks = self.shared.config.batch_blocks;
        if let Some(patience) = &mut self.patience
            && patience.lasts(waiting, batch_blocks)
        {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.patience = None;
        let mut role = self.take_role();
        if let Some(Role::Collect) = role {
            role = Some(Role::Drive(self.batcher.form_batch(&self.shared)));
        }
        if let Some(Role::Drive(mut driven)) = role
            && driven.batch.as_mut().poll(cx).is_pending()
        {
            self.role = Some(Role::Drive(driven));
        }
        let mut inner = self.waiter.inner.borrow_mut();
        match inner.end.take() {
            // A batch that is not at its end is handed over when this is dropped.
            Some(End::Written(written)) => Poll::Ready(written),
            Some(End::Lost) => panic!("the batch of a write panicked"),
            None => {
                inner.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Drop for Write {
    fn drop(&mut self) {
        self.waiter.inner.borrow_mut().is_left = true;
        let waiter = &self.waiter;
        let waiting = {
            let mut queue = self.batcher.queue.borrow_mut();
            let at = queue
                .iter()
                .position(|command| Rc::ptr_eq(&command.waiter, waiter));
            at.and_then(|at| queue.remove(at))
        };
        if let Some(command) = &waiting {
            let blocks = &self.batcher.blocks;
            blocks.set(blocks.get().saturating_sub(command.count()));
        }
        drop(waiting);
        match self.take_role() {
            Some(Role::Collect) => self.batcher.pass_collecting_on(),
            Some(Role::Drive(driven)) => {
                let waiters = driven.waiters.clone();
                let mut role = Some(Role::Drive(driven));
                for waiter in waiters {
                    role = role.and_then(|role| waiter.give(role));
                }
                // With nobody left to drive it, the batch ends here.
                drop(role);
            }
            None => {}
        }
    }
}
