use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use super::{Closed, lock, remember};

/// A channel for one value.
pub fn channel<T>() -> (Sender<T>, Receiver<T>) {
    let state = State {
        value: None,
        sender_gone: false,
        receiver_gone: false,
        waker: None,
    };
    let shared = Arc::new(Mutex::new(state));
    (Sender(shared.clone()), Receiver(shared))
}

/// The side that gives the value.
#[derive(Debug)]
pub struct Sender<T>(Arc<Mutex<State<T>>>);

/// The side that waits for the value: a future of `Result<T, Closed>`.
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Receiver<T>(Arc<Mutex<State<T>>>);

#[derive(Debug)]
struct State<T> {
    value: Option<T>,
    sender_gone: bool,
    receiver_gone: bool,
    waker: Option<Waker>,
}

impl<T> Sender<T> {
    /// Gives the value; it comes back when nobody waits for it any more.
    pub fn send(self, value: T) -> Result<(), T> {
        let mut state = lock(&self.0);
        if state.receiver_gone {
            return Err(value);
        }
        state.value = Some(value);
        Ok(())
        // Dropping `self` wakes the receiver.
    }

    /// Whether the receiver has been dropped.
    pub fn is_closed(&self) -> bool {
        lock(&self.0).receiver_gone
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let waker = {
            let mut state = lock(&self.0);
            state.sender_gone = true;
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T> Receiver<T> {
    /// The value, if it is there now.
    pub fn try_recv(&mut self) -> Option<T> {
        lock(&self.0).value.take()
    }
}

impl<T> Future for Receiver<T> {
    type Output = Result<T, Closed>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = lock(&self.0);
        match state.value.take() {
            Some(value) => Poll::Ready(Ok(value)),
            None if state.sender_gone => Poll::Ready(Err(Closed)),
            None => {
                remember(&mut state.waker, cx);
                Poll::Pending
            }
        }
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let mut state = lock(&self.0);
        state.receiver_gone = true;
        let unread = (state.value.take(), state.waker.take());
        drop(state);
        drop(unread);
    }
}
