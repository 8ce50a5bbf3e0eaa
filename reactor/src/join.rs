//! Results of tasks, for whoever waits for them.

use std::any::Any;
use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use crate::executor::{Core, expect_current};
use crate::sync::{oneshot, remember};

/// Why a task gave no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    /// It was aborted.
    #[error("the task was aborted")]
    Aborted,
    /// It panicked, with this message.
    #[error("the task panicked: {0}")]
    Panicked(String),
    /// Its reactor has stopped.
    #[error("the task's reactor has stopped")]
    Stopped,
}

/// A new task of this thread's reactor. It begins at a later turn, not within this call.
///
/// # Panics
/// Outside a reactor.
pub fn spawn<F: Future + 'static>(future: F) -> JoinHandle<F::Output> {
    let core = expect_current("spawn");
    let state = Rc::new(RefCell::new(State {
        result: None,
        aborted: false,
        ended: false,
        joiner: None,
    }));
    let end = End(state.clone());
    let task = core.spawn(Box::pin(async move {
        let mut future = pin!(future);
        let caught = poll_fn(|cx| {
            if end.0.borrow().aborted {
                return Poll::Ready(Err(JoinError::Aborted));
            }
            poll_caught(future.as_mut(), cx)
        })
        .await;
        end.0.borrow_mut().result = Some(caught);
    }));
    JoinHandle { state, task }
}

/// A new task of `core`, whose result goes to another thread.
pub(crate) fn spawn_for_remote<F: Future + 'static>(
    core: &Core,
    future: F,
    result: oneshot::Sender<Result<F::Output, JoinError>>,
) {
    core.spawn(Box::pin(async move {
        let mut future = pin!(future);
        let caught = poll_fn(|cx| poll_caught(future.as_mut(), cx)).await;
        // Nobody may be waiting any more.
        let _ = result.send(caught);
    }));
}

fn poll_caught<F: Future>(
    future: Pin<&mut F>,
    cx: &mut Context<'_>,
) -> Poll<Result<F::Output, JoinError>> {
    match catch_unwind(AssertUnwindSafe(|| future.poll(cx))) {
        Ok(polled) => polled.map(Ok),
        Err(panic) => {
            let message = message_of(&*panic);
            tracing::error!(message, "a task panicked");
            Poll::Ready(Err(JoinError::Panicked(message)))
        }
    }
}

fn message_of(panic: &(dyn Any + Send)) -> String {
    if let Some(text) = panic.downcast_ref::<&str>() {
        (*text).to_owned()
    } else if let Some(text) = panic.downcast_ref::<String>() {
        text.clone()
    } else {
        "no message".to_owned()
    }
}

struct State<T> {
    result: Option<Result<T, JoinError>>,
    aborted: bool,
    ended: bool,
    joiner: Option<Waker>,
}

/// Dropped with the task, after its future: whoever waits then finds the result, or that there is
/// none because the reactor dropped the task.
struct End<T>(Rc<RefCell<State<T>>>);

impl<T> Drop for End<T> {
    fn drop(&mut self) {
        let joiner = {
            let mut state = self.0.borrow_mut();
            state.ended = true;
            state.result.get_or_insert(Err(JoinError::Stopped));
            state.joiner.take()
        };
        if let Some(joiner) = joiner {
            joiner.wake();
        }
    }
}

/// Waits for a task of the same reactor. Dropping it lets the task go on.
pub struct JoinHandle<T> {
    state: Rc<RefCell<State<T>>>,
    task: Waker,
}

impl<T> JoinHandle<T> {
    /// Drops the task's future at its next turn; a task that has ended stays as it is.
    pub fn abort(&self) {
        self.state.borrow_mut().aborted = true;
        self.task.wake_by_ref();
    }

    /// Whether the task has ended.
    pub fn is_finished(&self) -> bool {
        self.state.borrow().ended
    }

    /// Lets the task go on without anyone waiting for it.
    pub fn detach(self) {}
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, JoinError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.state.borrow_mut();
        if state.ended {
            return Poll::Ready(state.result.take().unwrap_or(Err(JoinError::Stopped)));
        }
        remember(&mut state.joiner, cx);
        Poll::Pending
    }
}

impl<T> std::fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JoinHandle")
            .field("finished", &self.is_finished())
            .finish()
    }
}

/// Waits for a task of another thread's reactor, on any executor. Dropping it lets the task go on.
#[derive(Debug)]
pub struct RemoteJoin<T>(pub(crate) oneshot::Receiver<Result<T, JoinError>>);

impl<T> RemoteJoin<T> {
    /// Blocks this thread until the task has ended. Not for tasks of a reactor: they would block
    /// their neighbours, and for ever if the task is of the same reactor.
    ///
    /// # Errors
    /// If the task gave no result.
    pub fn wait(self) -> Result<T, JoinError> {
        debug_assert!(
            crate::executor::current().is_none(),
            "a reactor's thread must not block"
        );
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let mut cx = Context::from_waker(&waker);
        let mut this = pin!(self);
        loop {
            match this.as_mut().poll(&mut cx) {
                Poll::Ready(result) => return result,
                Poll::Pending => thread::park(),
            }
        }
    }

    /// Lets the task go on without anyone waiting for it.
    pub fn detach(self) {}
}

impl<T> Future for RemoteJoin<T> {
    type Output = Result<T, JoinError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0)
            .poll(cx)
            .map(|received| received.unwrap_or(Err(JoinError::Stopped)))
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
