//! A budget of bytes or slots that tasks of one reactor share, first come, first served.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// A shared, bounded quantity. What does not fit waits its turn; a large request is not overtaken
/// by small ones, so it cannot starve.
#[derive(Clone, Debug)]
pub struct Budget(Rc<Inner>);

#[derive(Debug)]
struct Inner {
    total: usize,
    free: Cell<usize>,
    waiting: RefCell<VecDeque<Rc<Waiter>>>,
}

#[derive(Debug)]
struct Waiter {
    amount: usize,
    granted: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

/// A part of a [`Budget`]; goes back when it is dropped.
#[derive(Debug)]
pub struct Permit {
    budget: Budget,
    amount: usize,
}

impl Budget {
    /// A budget of `total` units.
    pub fn new(total: usize) -> Self {
        let (free, waiting) = (Cell::new(total), RefCell::default());
        Self(Rc::new(Inner {
            total,
            free,
            waiting,
        }))
    }

    /// All units, free or not.
    pub fn total(&self) -> usize {
        self.0.total
    }

    /// Units that nobody holds.
    pub fn free(&self) -> usize {
        self.0.free.get()
    }

    /// Waits for `amount` units; more than the total is cut down to the total.
    pub fn acquire(&self, amount: usize) -> impl Future<Output = Permit> + use<> {
        Acquire {
            budget: self.clone(),
            amount: amount.min(self.0.total),
            waiter: None,
        }
    }

    /// `amount` units if they are free now and nobody waits.
    pub fn try_acquire(&self, amount: usize) -> Option<Permit> {
        if !self.0.waiting.borrow().is_empty() || amount > self.0.free.get() {
            return None;
        }
        self.0.free.set(self.0.free.get() - amount);
        Some(Permit {
            budget: self.clone(),
            amount,
        })
    }

    fn release(&self, amount: usize) {
        self.0.free.set(self.0.free.get() + amount);
        self.grant();
    }

    fn grant(&self) {
        let mut waiting = self.0.waiting.borrow_mut();
        while let Some(first) = waiting.front() {
            if first.amount > self.0.free.get() {
                break;
            }
            self.0.free.set(self.0.free.get() - first.amount);
            first.granted.set(true);
            if let Some(waker) = first.waker.borrow_mut().take() {
                waker.wake();
            }
            waiting.pop_front();
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.budget.release(self.amount);
    }
}

struct Acquire {
    budget: Budget,
    amount: usize,
    waiter: Option<Rc<Waiter>>,
}

impl Future for Acquire {
    type Output = Permit;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Permit> {
        let this = &mut *self;
        match &this.waiter {
            Some(waiter) if waiter.granted.get() => {
                this.waiter = None;
                Poll::Ready(Permit {
                    budget: this.budget.clone(),
                    amount: this.amount,
                })
            }
            Some(waiter) => {
                *waiter.waker.borrow_mut() = Some(cx.waker().clone());
                Poll::Pending
            }
            None => {
                if let Some(permit) = this.budget.try_acquire(this.amount) {
                    return Poll::Ready(permit);
                }
                let waiter = Rc::new(Waiter {
                    amount: this.amount,
                    granted: Cell::new(false),
                    waker: RefCell::new(Some(cx.waker().clone())),
                });
                this.budget.0.waiting.borrow_mut().push_back(waiter.clone());
                this.waiter = Some(waiter);
                Poll::Pending
            }
        }
    }
}

impl Drop for Acquire {
    fn drop(&mut self) {
        let Some(waiter) = self.waiter.take() else {
            return;
        };
        if waiter.granted.get() {
            self.budget.release(waiter.amount);
        } else {
            self.budget
                .0
                .waiting
                .borrow_mut()
                .retain(|w| !Rc::ptr_eq(w, &waiter));
            // The one that left may have been what held the others up.
            self.budget.grant();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[test]
    fn what_does_not_fit_waits_and_is_not_overtaken() {
        let budget = Budget::new(10);
        let first = budget.acquire(8).now_or_never().expect("free");
        let mut large = Box::pin(budget.acquire(6));
        assert!((&mut large).now_or_never().is_none());
        assert!(budget.try_acquire(1).is_none(), "the large one is first");
        let mut small = Box::pin(budget.acquire(1));
        assert!((&mut small).now_or_never().is_none());
        drop(first);
        let large = large.now_or_never().expect("granted");
        let small = small.now_or_never().expect("granted");
        assert_eq!(budget.free(), 3);
        drop((large, small));
        assert_eq!(budget.free(), 10);
    }

    #[test]
    fn a_waiter_that_leaves_gives_everything_back() {
        let budget = Budget::new(4);
        let held = budget.acquire(4).now_or_never().expect("free");
        let mut gone = Box::pin(budget.acquire(4));
        let mut next = Box::pin(budget.acquire(2));
        assert!((&mut gone).now_or_never().is_none());
        assert!((&mut next).now_or_never().is_none());
        drop(held);
        assert_eq!(budget.free(), 0, "granted to the first in line");
        drop(gone);
        let next = next
            .now_or_never()
            .expect("granted when the first one left");
        drop(next);
        assert_eq!(budget.free(), 4);
    }

    #[test]
    fn more_than_everything_means_everything() {
        let budget = Budget::new(4);
        let all = budget.acquire(100).now_or_never().expect("cut down");
        assert_eq!(budget.free(), 0);
        drop(all);
        assert_eq!(budget.free(), 4);
    }
}
