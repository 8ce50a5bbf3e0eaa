use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use super::semaphore::{Acquire, Permit, Semaphore};
use super::{lock, remember};

/// A queue of at most `bound` values (one at least).
pub fn channel<T>(bound: usize) -> (Sender<T>, Receiver<T>) {
    let state = State {
        values: VecDeque::new(),
        senders: 1,
        receiver_gone: false,
        waker: None,
    };
    let shared = Arc::new(Shared {
        places: Semaphore::new(bound.max(1)),
        state: Mutex::new(state),
    });
    (Sender(shared.clone()), Receiver(shared))
}

struct Shared<T> {
    /// One unit for each place in the queue.
    places: Semaphore,
    state: Mutex<State<T>>,
}

struct State<T> {
    values: VecDeque<(T, Permit)>,
    senders: usize,
    receiver_gone: bool,
    waker: Option<Waker>,
}

impl<T> Shared<T> {
    fn push(&self, value: T, place: Permit) -> Result<(), T> {
        let waker = {
            let mut state = lock(&self.state);
            if state.receiver_gone {
                return Err(value);
            }
            state.values.push_back((value, place));
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        Ok(())
    }
}

/// The side that puts values in. Clones put into the same queue.
pub struct Sender<T>(Arc<Shared<T>>);

/// The side that takes values out.
pub struct Receiver<T>(Arc<Shared<T>>);

/// A value that could not be put into the queue.
#[derive(Debug, PartialEq, Eq)]
pub enum Full<T> {
    /// There is no place now.
    Full(T),
    /// The receiver is gone.
    Closed(T),
}

impl<T> Sender<T> {
    /// Waits for a place and puts the value in. It comes back when the receiver is gone.
    pub fn send(&self, value: T) -> Send<'_, T> {
        Send {
            sender: self,
            place: self.0.places.acquire(1),
            value: Some(value),
        }
    }

    /// Puts the value in if there is a place now.
    pub fn try_send(&self, value: T) -> Result<(), Full<T>> {
        match self.0.places.try_acquire(1) {
            Some(place) => self.0.push(value, place).map_err(Full::Closed),
            None if lock(&self.0.state).receiver_gone => Err(Full::Closed(value)),
            None => Err(Full::Full(value)),
        }
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        lock(&self.0.state).senders += 1;
        Self(self.0.clone())
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let waker = {
            let mut state = lock(&self.0.state);
            state.senders -= 1;
            if state.senders == 0 {
                state.waker.take()
            } else {
                None
            }
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T> Receiver<T> {
    /// Waits for the next value; `None` when all senders are gone and the queue is empty.
    pub fn recv(&mut self) -> Recv<'_, T> {
        Recv(self)
    }

    /// The next value, if there is one now.
    pub fn try_recv(&mut self) -> Option<T> {
        let next = lock(&self.0.state).values.pop_front();
        // The place is given back here, outside the lock: that may wake a sender.
        next.map(|(value, _place)| value)
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let unread = {
            let mut state = lock(&self.0.state);
            state.receiver_gone = true;
            std::mem::take(&mut state.values)
        };
        drop(unread);
    }
}

/// Puts a value into a queue.
#[must_use = "futures do nothing unless polled"]
pub struct Send<'a, T> {
    sender: &'a Sender<T>,
    place: Acquire,
    value: Option<T>,
}

// The value is never pinned: it only moves through.
impl<T> Unpin for Send<'_, T> {}

impl<T> Future for Send<'_, T> {
    type Output = Result<(), T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let Poll::Ready(place) = Pin::new(&mut this.place).poll(cx) else {
            return Poll::Pending;
        };
        match this.value.take() {
            Some(value) => Poll::Ready(this.sender.0.push(value, place)),
            None => Poll::Ready(Ok(())),
        }
    }
}

/// Waits for the next value of a queue.
#[must_use = "futures do nothing unless polled"]
pub struct Recv<'a, T>(&'a mut Receiver<T>);

impl<T> Future for Recv<'_, T> {
    type Output = Option<T>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = lock(&self.0.0.state);
        if let Some((value, place)) = state.values.pop_front() {
            drop(state);
            drop(place);
            return Poll::Ready(Some(value));
        }
        if state.senders == 0 {
            return Poll::Ready(None);
        }
        remember(&mut state.waker, cx);
        Poll::Pending
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver").finish_non_exhaustive()
    }
}
