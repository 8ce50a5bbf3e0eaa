//! Who works on the commands of a queue.
//!
//! One worker leads: it takes the next command from the queue and works on it. As long as commands
//! are done without waiting it goes on with the next one, within one poll. When a command has to wait,
//! the worker first passes the lead on, to a worker that rests or to a new one; when its command is
//! done it rests. So a command costs no task of its own, and none waits behind another.
//!
//! Guarantees:
//! - There are at most as many workers as commands in flight, plus the one that leads; those that
//!   were not needed lately go home ([`Crew::shrink`]).
//! - A lead that ends, for whatever reason, is noticed ([`Crew::lost`]).

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Poll, Waker};

use crate::association::run;
use crate::command::Command;
use crate::io::fused::{self, Work};
use crate::line::Line;
use crate::queue::Queue;

/// Commands that a lead works on before it lets other tasks of the reactor have a turn.
const COMMANDS_PER_POLL: u32 = 32;

/// The workers of one queue. Of the queue's reactor alone.
#[derive(Default)]
pub(crate) struct Crew {
    resting: RefCell<Vec<Rc<Seat>>>,
    /// The fewest that rested at once since the last [`Crew::shrink`].
    fewest_resting: Cell<usize>,
    /// Nobody leads any more.
    lost: Cell<bool>,
    on_lost: RefCell<Option<Waker>>,
}

/// Where a worker rests.
#[derive(Default)]
struct Seat {
    call: Cell<Option<Call>>,
    waker: RefCell<Option<Waker>>,
}

/// What a resting worker is told.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Call {
    Lead,
    GoHome,
}

impl Seat {
    fn call(&self, call: Call) {
        self.call.set(Some(call));
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    async fn called(&self) -> Call {
        poll_fn(|cx| match self.call.take() {
            Some(call) => Poll::Ready(call),
            None => {
                *self.waker.borrow_mut() = Some(cx.waker().clone());
                Poll::Pending
            }
        })
        .await
    }
}

impl Crew {
    /// Waits until nobody leads any more: the queue has ended, or a worker has died.
    pub(crate) async fn lost(&self) {
        poll_fn(|cx| {
            if self.lost.get() {
                return Poll::Ready(());
            }
            *self.on_lost.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Sends those home that were not needed since the last call.
    pub(crate) fn shrink(&self) {
        let needless = self.fewest_resting.get();
        let mut resting = self.resting.borrow_mut();
        // The ones at the front have rested longest.
        let needless = needless.min(resting.len());
        let gone: Vec<_> = resting.drain(..needless).collect();
        self.fewest_resting.set(resting.len());
        drop(resting);
        gone.iter().for_each(|seat| seat.call(Call::GoHome));
    }

    /// Sends all home that rest.
    pub(crate) fn dismiss(&self) {
        self.fewest_resting.set(usize::MAX);
        self.shrink();
    }

    fn rest(&self, seat: &Rc<Seat>) {
        self.resting.borrow_mut().push(seat.clone());
    }

    /// A worker that rests; it does so no longer.
    fn wake_one(&self) -> Option<Rc<Seat>> {
        let mut resting = self.resting.borrow_mut();
        let seat = resting.pop();
        self.fewest_resting
            .set(self.fewest_resting.get().min(resting.len()));
        seat
    }
}

/// Begins to work on the commands of a queue.
pub(crate) fn begin<Q: Queue>(line: &Rc<Line<Q>>) {
    drop(reactor::spawn(work(line.clone())));
}

/// The lead. Dropped without being passed on it is lost.
struct Lead<'a, Q: Queue> {
    line: &'a Rc<Line<Q>>,
    held: bool,
}

impl<Q: Queue> Lead<'_, Q> {
    fn pass_on(&mut self) {
        self.held = false;
        match self.line.crew.wake_one() {
            Some(seat) => seat.call(Call::Lead),
            None => begin(self.line),
        }
    }
}

impl<Q: Queue> Drop for Lead<'_, Q> {
    fn drop(&mut self) {
        if self.held {
            let crew = &self.line.crew;
            crew.lost.set(true);
            if let Some(waker) = crew.on_lost.take() {
                waker.wake();
            }
        }
    }
}

/// A worker's life; it begins as the lead.
async fn work<Q: Queue>(line: Rc<Line<Q>>) {
    let seat = Rc::new(Seat::default());
    let mut lead = Lead {
        line: &line,
        held: true,
    };
    let mut commands = 0;
    // The first command of a fused operation: who leads keeps it until the next one is there.
    let mut held = None;
    loop {
        let next = line.queue.next_command();
        let next = match &held {
            None => next.await,
            Some(_) => match reactor::timeout(fused::SECOND_TIMEOUT, next).await {
                Ok(next) => next,
                Err(_) => {
                    fused::give_up(&mut held);
                    continue;
                }
            },
        };
        let Some(capsule) = next else {
            return;
        };
        if line.handle.waiting.is_ending() {
            // The queue is about to be closed: the host repeats the command elsewhere.
            return;
        }
        let Some(command) = Command::begin(&line, capsule) else {
            continue;
        };
        let Some(work) = fused::next(&mut held, command) else {
            continue;
        };
        let mut running = pin!(async {
            match work {
                Work::One(command) => run(command).await,
                Work::Both(both) => Box::pin(fused::run(both.0, both.1)).await,
            }
        });
        poll_fn(|cx| {
            let polled = running.as_mut().poll(cx);
            if polled.is_pending() && lead.held {
                lead.pass_on();
            }
            // Not polled again at once: a write lets the next commands come before it goes on.
            polled
        })
        .await;
        if !lead.held {
            line.crew.rest(&seat);
            if seat.called().await == Call::GoHome {
                return;
            }
            lead.held = true;
            commands = 0;
        } else {
            commands += 1;
            if commands == COMMANDS_PER_POLL {
                commands = 0;
                reactor::yield_now().await;
            }
        }
    }
}
