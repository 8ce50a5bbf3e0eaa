use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use super::lock;

/// A bounded quantity that tasks share, first come, first served: a large request is not overtaken
/// by small ones. Clones are the same semaphore.
#[derive(Clone, Debug)]
pub struct Semaphore(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    total: usize,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    free: usize,
    next_ticket: u64,
    /// Those in line, by ticket: the lowest has waited longest.
    waiting: BTreeMap<u64, (usize, Waker)>,
    /// Those that were served and not polled since.
    granted: BTreeSet<u64>,
}

impl State {
    fn grant(&mut self) -> Vec<Waker> {
        let mut wakers = Vec::new();
        while let Some(first) = self.waiting.first_entry() {
            let amount = first.get().0;
            if amount > self.free {
                break;
            }
            self.free -= amount;
            let (ticket, (_, waker)) = first.remove_entry();
            self.granted.insert(ticket);
            wakers.push(waker);
        }
        wakers
    }
}

impl Semaphore {
    /// A semaphore of `total` units, all free.
    pub fn new(total: usize) -> Self {
        let state = State {
            free: total,
            next_ticket: 0,
            waiting: BTreeMap::new(),
            granted: BTreeSet::new(),
        };
        Self(Arc::new(Inner {
            total,
            state: Mutex::new(state),
        }))
    }

    /// All units, free or not.
    pub fn total(&self) -> usize {
        self.0.total
    }

    /// Units that nobody holds.
    pub fn free(&self) -> usize {
        lock(&self.0.state).free
    }

    /// Waits for `amount` units; more than the total is cut down to the total.
    pub fn acquire(&self, amount: usize) -> Acquire {
        Acquire {
            semaphore: self.clone(),
            amount: amount.min(self.0.total),
            ticket: None,
        }
    }

    /// `amount` units, if they are free now and nobody waits.
    pub fn try_acquire(&self, amount: usize) -> Option<Permit> {
        let mut state = lock(&self.0.state);
        if !state.waiting.is_empty() || amount > state.free {
            return None;
        }
        state.free -= amount;
        drop(state);
        Some(Permit {
            semaphore: self.clone(),
            amount,
        })
    }

    fn release(&self, amount: usize) {
        let wakers = {
            let mut state = lock(&self.0.state);
            state.free += amount;
            state.grant()
        };
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// Units of a [`Semaphore`]; they go back when it is dropped.
#[derive(Debug)]
pub struct Permit {
    semaphore: Semaphore,
    amount: usize,
}

impl Permit {
    /// How many units it holds.
    pub fn amount(&self) -> usize {
        self.amount
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.semaphore.release(self.amount);
    }
}

/// Waits for units of a [`Semaphore`]. The place in the line is taken at the first poll.
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Acquire {
    semaphore: Semaphore,
    amount: usize,
    ticket: Option<u64>,
}

impl Future for Acquire {
    type Output = Permit;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Permit> {
        let this = &mut *self;
        let mut state = lock(&this.semaphore.0.state);
        match this.ticket {
            None if state.waiting.is_empty() && this.amount <= state.free => {
                state.free -= this.amount;
            }
            None => {
                let ticket = state.next_ticket;
                state.next_ticket += 1;
                state
                    .waiting
                    .insert(ticket, (this.amount, cx.waker().clone()));
                this.ticket = Some(ticket);
                return Poll::Pending;
            }
            Some(ticket) if state.granted.remove(&ticket) => this.ticket = None,
            Some(ticket) => {
                if let Some((_, waker)) = state.waiting.get_mut(&ticket) {
                    waker.clone_from(cx.waker());
                }
                return Poll::Pending;
            }
        }
        drop(state);
        Poll::Ready(Permit {
            semaphore: this.semaphore.clone(),
            amount: this.amount,
        })
    }
}

impl Drop for Acquire {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket else { return };
        let wakers = {
            let mut state = lock(&self.semaphore.0.state);
            state.waiting.remove(&ticket);
            if state.granted.remove(&ticket) {
                state.free += self.amount;
            }
            // The one that left may have been what held the others up.
            state.grant()
        };
        wakers.into_iter().for_each(Waker::wake);
    }
}
