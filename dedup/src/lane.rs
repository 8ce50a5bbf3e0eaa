//! Lanes: the writes that arrive in the same turn of a reactor go their way as one batch.
//!
//! Every thread has a lane per engine. A write that finds nobody gathering gathers: it lets the other ready
//! tasks come first, again and again as long as that brings more writes (the workers of a queue call each
//! other one by one), then takes what has queued up. A lone write so waits for nobody.
//! Several batches of a lane can be on their way at once.
//!
//! A batch belongs to its writes: one of them drives it, and hands it over to another one when its own
//! part is done or when its future is dropped. So a dropped write disturbs no other; when the last one
//! is dropped, the batch is dropped with it and gives back what it held. A write that is dropped before
//! its batch was formed leaves the queue and changes nothing.

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

use crate::engine::Shared;
use crate::range_lock::RangeGuard;
use crate::volume::VolumeCore;
use crate::{EngineError, Result, write};

/// A batch is full with this many sub-blocks: enough to fill SIMD lanes and to share an append, few
/// enough that they stay in the cache from the hash to the drive.
pub(crate) const BATCH_BLOCKS: usize = 64;

/// After so many looks in a row without a new write a gatherer takes what there is. The worker of a queue that
/// brings the next write is called after this one has gone to the end of the line, so its write comes with
/// the second look.
const LOOKS_IN_VAIN_MAX: u32 = 2;

/// What becomes of a write: the sequence number that must be durable for it to survive a power loss,
/// and its buffer.
pub(crate) type Written = (Result<u64>, Buffer);

/// An engine, the number of one of the reactors that a test has on its thread, and their lane.
type LaneOf = (Weak<Shared>, usize, Rc<Lane>);

thread_local! {
    static LANES: RefCell<Vec<LaneOf>> = const { RefCell::new(Vec::new()) };
}

/// Writes of one thread that wait for their batch.
#[derive(Default)]
pub(crate) struct Lane {
    queue: RefCell<VecDeque<Command>>,
    /// Sub-blocks of all commands in the queue.
    blocks: Cell<usize>,
    /// Somebody is going to take the queue. That one's command is the first in it.
    gathering: Cell<bool>,
}

/// A write of whole sub-blocks.
pub(crate) struct Command {
    pub(crate) volume: Arc<VolumeCore>,
    pub(crate) start: u64,
    /// Always there, but while a drive writes from it.
    pub(crate) buf: Option<Buffer>,
    /// What it does about duplicates.
    pub(crate) verify: VerifyPolicy,
    /// It was acknowledged, and is to be compared: room for it is promised.
    pub(crate) is_again: bool,
    /// What it writes cannot be read: blocks of its own, with checksums that do not match.
    pub(crate) is_mark: bool,
    /// Covers the range, until the new mapping is in place.
    guard: Option<RangeGuard>,
    place: Rc<Place>,
}

/// What becomes of a command that no write waits for.
pub(crate) struct CommandEnd(Rc<Place>);

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
        let place = Rc::new(Place::default());
        let command = Self {
            volume: volume.clone(),
            start,
            buf: Some(buf),
            verify: VerifyPolicy::Compare,
            is_again: true,
            is_mark: false,
            guard: None,
            place: place.clone(),
        };
        (command, CommandEnd(place))
    }

    /// Who has it keeps others from the range from now on.
    pub(crate) fn take_guard(&mut self) -> Option<RangeGuard> {
        self.guard.take()
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
        self.place.end(end);
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

/// What a write has to do besides waiting.
enum Role {
    Gather,
    Drive(Driven),
}

/// A batch and the writes in it.
struct Driven {
    batch: LocalBoxFuture<'static, ()>,
    places: Vec<Rc<Place>>,
}

/// Where a write waits.
#[derive(Default)]
struct Place {
    inner: RefCell<PlaceInner>,
}

#[derive(Default)]
struct PlaceInner {
    end: Option<End>,
    role: Option<Role>,
    waker: Option<Waker>,
    /// Nobody waits here any more.
    is_left: bool,
}

impl Place {
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

/// This thread's lane for an engine.
fn lane_of(shared: &Arc<Shared>) -> Rc<Lane> {
    // A test may have several reactors on its thread.
    #[cfg(test)]
    let reactor = crate::schedules::reactor();
    #[cfg(not(test))]
    let reactor = 0;
    LANES.with_borrow_mut(|lanes| {
        let known = lanes.iter().find(|(engine, of, _)| {
            std::ptr::eq(engine.as_ptr(), Arc::as_ptr(shared)) && *of == reactor
        });
        if let Some((_, _, lane)) = known {
            return lane.clone();
        }
        lanes.retain(|(engine, _, _)| engine.strong_count() > 0);
        let lane = Rc::new(Lane::default());
        lanes.push((Arc::downgrade(shared), reactor, lane.clone()));
        lane
    })
}

/// Writes whole sub-blocks from `start` on: the buffer's length is a multiple of their size, and the
/// guard covers them. The guard is held until the new mapping is in place.
pub(crate) fn write_sub_blocks(
    shared: &Arc<Shared>,
    volume: &Arc<VolumeCore>,
    guard: RangeGuard,
    start: u64,
    buf: Buffer,
) -> Write {
    begin(shared, volume, guard, start, buf, false)
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
    begin(shared, volume, guard, start, buf, true)
}

fn begin(
    shared: &Arc<Shared>,
    volume: &Arc<VolumeCore>,
    guard: RangeGuard,
    start: u64,
    buf: Buffer,
    is_mark: bool,
) -> Write {
    let lane = lane_of(shared);
    let place = Rc::new(Place::default());
    let command = Command {
        volume: volume.clone(),
        start,
        buf: Some(buf),
        verify: volume.verify,
        is_again: false,
        is_mark,
        guard: Some(guard),
        place: place.clone(),
    };
    lane.blocks.set(lane.blocks.get() + command.count());
    lane.queue.borrow_mut().push_back(command);
    let gathers = !lane.gathering.replace(true);
    Write {
        shared: shared.clone(),
        lane,
        place,
        role: gathers.then_some(Role::Gather),
        patience: gathers.then(Patience::default),
    }
}

/// A write on its way.
pub(crate) struct Write {
    shared: Arc<Shared>,
    lane: Rc<Lane>,
    place: Rc<Place>,
    role: Option<Role>,
    /// As long as it gathers.
    patience: Option<Patience>,
}

/// How long a gatherer lets other tasks come first.
#[derive(Default)]
struct Patience {
    /// Sub-blocks that waited when it last looked.
    seen: usize,
    /// Looks in a row that found nothing new.
    in_vain: u32,
}

impl Patience {
    /// Whether it waits on, now that so many sub-blocks wait.
    fn lasts(&mut self, waiting: usize) -> bool {
        self.in_vain = match waiting > self.seen {
            true => 0,
            false => self.in_vain + 1,
        };
        self.seen = waiting;
        waiting < BATCH_BLOCKS && self.in_vain < LOOKS_IN_VAIN_MAX
    }
}

impl Lane {
    /// Forms a batch of what waits; who is left over gets a new gatherer.
    fn form_batch(&self, shared: &Arc<Shared>) -> Driven {
        let mut queue = self.queue.borrow_mut();
        let mut blocks = 0;
        let mut count = 0;
        for command in queue.iter() {
            if count > 0 && blocks + command.count() > BATCH_BLOCKS {
                break;
            }
            blocks += command.count();
            count += 1;
        }
        self.blocks.set(self.blocks.get().saturating_sub(blocks));
        let commands: Vec<Command> = queue.drain(..count).collect();
        drop(queue);
        self.pass_gathering_on();
        let places = commands.iter().map(|command| command.place.clone());
        Driven {
            places: places.collect(),
            batch: Box::pin(write::run(shared.clone(), commands)),
        }
    }

    /// The first in the queue gathers from now on.
    fn pass_gathering_on(&self) {
        // Who waits in the queue has not left: leaving takes the command out.
        let heir = self
            .queue
            .borrow()
            .front()
            .map(|command| command.place.clone());
        let refused = match heir {
            Some(heir) => heir.give(Role::Gather).is_some(),
            None => true,
        };
        self.gathering.set(!refused);
    }
}

impl Write {
    fn take_role(&mut self) -> Option<Role> {
        let role = self.role.take();
        role.or_else(|| self.place.inner.borrow_mut().role.take())
    }
}

impl Future for Write {
    type Output = Written;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Written> {
        let waiting = self.lane.blocks.get();
        if let Some(patience) = &mut self.patience
            && patience.lasts(waiting)
        {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.patience = None;
        let mut role = self.take_role();
        if let Some(Role::Gather) = role {
            role = Some(Role::Drive(self.lane.form_batch(&self.shared)));
        }
        if let Some(Role::Drive(mut driven)) = role
            && driven.batch.as_mut().poll(cx).is_pending()
        {
            self.role = Some(Role::Drive(driven));
        }
        let mut inner = self.place.inner.borrow_mut();
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
        self.place.inner.borrow_mut().is_left = true;
        let place = &self.place;
        let waiting = {
            let mut queue = self.lane.queue.borrow_mut();
            let at = queue
                .iter()
                .position(|command| Rc::ptr_eq(&command.place, place));
            at.and_then(|at| queue.remove(at))
        };
        if let Some(command) = &waiting {
            let blocks = &self.lane.blocks;
            blocks.set(blocks.get().saturating_sub(command.count()));
        }
        drop(waiting);
        match self.take_role() {
            Some(Role::Gather) => self.lane.pass_gathering_on(),
            Some(Role::Drive(driven)) => {
                let places = driven.places.clone();
                let mut role = Some(Role::Drive(driven));
                for place in places {
                    role = role.and_then(|role| place.give(role));
                }
                // With nobody left to drive it, the batch ends here.
                drop(role);
            }
            None => {}
        }
    }
}
