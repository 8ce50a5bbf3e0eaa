//! A number that only grows, and tasks that wait until it has reached theirs.

use std::future::Future;
use std::pin::Pin;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use crate::sync::wait::lock;

/// The number, and who waits for it.
pub(crate) struct Watermark {
    /// As in `inner`: most tasks see here that they need not wait.
    level: AtomicU64,
    inner: Mutex<Inner>,
}

struct Inner {
    level: u64,
    /// It grows no more.
    is_closed: bool,
    waiters: Vec<(u64, Waker)>,
}

impl Watermark {
    pub(crate) fn new(level: u64) -> Self {
        Self {
            level: AtomicU64::new(level),
            inner: Mutex::new(Inner {
                level,
                is_closed: false,
                waiters: Vec::new(),
            }),
        }
    }

    /// It has reached `level`, or had before: those who wait for no more go on.
    pub(crate) fn reach(&self, level: u64) {
        let mut gone = Vec::new();
        {
            let mut inner = lock(&self.inner);
            if level <= inner.level {
                return;
            }
            inner.level = level;
            self.level.store(level, Ordering::Release);
            if !inner.waiters.is_empty() {
                gone.extend(inner.waiters.extract_if(.., |(wanted, _)| *wanted <= level));
            }
        }
        gone.into_iter().for_each(|(_, waker)| waker.wake());
    }

    /// It grows no more: nobody waits for it any longer.
    pub(crate) fn close(&self) {
        let waiters = {
            let mut inner = lock(&self.inner);
            inner.is_closed = true;
            std::mem::take(&mut inner.waiters)
        };
        waiters.into_iter().for_each(|(_, waker)| waker.wake());
    }

    /// Whether it grows no more.
    pub(crate) fn is_closed(&self) -> bool {
        lock(&self.inner).is_closed
    }

    /// Whether it has reached `level`.
    pub(crate) fn has_reached(&self, level: u64) -> bool {
        self.level.load(Ordering::Acquire) >= level
    }

    /// How far it has come.
    pub(crate) fn reached(&self) -> u64 {
        self.level.load(Ordering::Acquire)
    }

    /// Waits until it has reached `wanted`; false if it never will.
    pub(crate) fn wait(&self, wanted: u64) -> Reached<'_> {
        Reached {
            watermark: self,
            wanted,
        }
    }
}

pub(crate) struct Reached<'a> {
    watermark: &'a Watermark,
    wanted: u64,
}

impl Future for Reached<'_> {
    type Output = bool;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<bool> {
        let Self { watermark, wanted } = *self;
        if watermark.has_reached(wanted) {
            return Poll::Ready(true);
        }
        let mut inner = lock(&watermark.inner);
        if inner.level >= wanted {
            return Poll::Ready(true);
        }
        if inner.is_closed {
            return Poll::Ready(false);
        }
        let waits = |(other, waker): &(u64, Waker)| *other == wanted && waker.will_wake(cx.waker());
        if !inner.waiters.iter().any(waits) {
            inner.waiters.push((wanted, cx.waker().clone()));
        }
        Poll::Pending
    }
}
