//! What a controller needs from a queue pair, whatever carries it; and the commands in flight on one.
//!
//! The logic of controllers is written against [`Queue`], so that tests drive it with commands made by
//! hand, and so that a transport is nothing but an implementation of this trait.
//!
//! Guarantees of [`Commands`]:
//! - A command identifier is in flight at most once per queue.
//! - A command is aborted only while it waits (for a buffer, for its data, for an event), never while
//!   the engine works on it: the engine's futures run to their end.
//! - [`Commands::drained`] becomes true only when no command of the queue can touch a volume any more.

use std::collections::HashMap;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use nvme::{Cqe, Sqe, Status};
use reactor::Buffer;
use tokio::sync::watch;

/// Facts about a queue, from its transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueFacts {
    /// The host's address.
    pub peer: SocketAddr,
    /// The address and port that the host came to.
    pub local: SocketAddr,
    /// The queue identifier that the transport was asked for; 0 is the admin queue.
    pub qid: u16,
    /// Commands that the host may have outstanding.
    pub depth: u16,
    /// Bytes of data that a command may carry in its capsule.
    pub in_capsule_bytes: usize,
    /// The transport's name, such as `rdma`.
    pub transport: &'static str,
}

/// A target's end of a queue pair. Clones are the same queue.
pub trait Queue: Clone + 'static {
    /// A command as it arrived. It must be given back with [`Queue::complete`].
    type Capsule: 'static;

    /// Facts about the queue.
    fn facts(&self) -> QueueFacts;

    /// The submission queue entry of a command.
    fn sqe(capsule: &Self::Capsule) -> &Sqe;

    /// The next command; `None` when the queue is closing or gone.
    fn next_command(&self) -> impl Future<Output = Option<Self::Capsule>>;

    /// Brings the first `len` bytes of the command's data from the host.
    ///
    /// # Errors
    /// The status to complete the command with; also, and soon, when the queue ends meanwhile.
    fn fetch(
        &self,
        capsule: &Self::Capsule,
        len: usize,
        buf: Buffer,
    ) -> impl Future<Output = Result<Buffer, Status>>;

    /// Sends the first `len` bytes of the data, then the completion; the queue fills in the head, the
    /// queue identifier and the command identifier. On a queue that is gone nothing happens.
    fn complete(&self, capsule: Self::Capsule, cqe: Cqe, data: Option<(Buffer, usize)>);

    /// Ends the queue.
    fn close(&self);
}

impl Queue for fabric::TargetQueue {
    type Capsule = fabric::Capsule;

    fn facts(&self) -> QueueFacts {
        let info = self.info();
        QueueFacts {
            peer: info.peer,
            local: info.local,
            qid: info.qid,
            depth: info.depth,
            in_capsule_bytes: info.in_capsule_bytes,
            transport: match info.transport {
                fabric::Scheme::Rdma => "rdma",
            },
        }
    }

    fn sqe(capsule: &fabric::Capsule) -> &Sqe {
        &capsule.sqe
    }

    async fn next_command(&self) -> Option<fabric::Capsule> {
        self.next_command().await
    }

    async fn fetch(
        &self,
        capsule: &fabric::Capsule,
        len: usize,
        buf: Buffer,
    ) -> Result<Buffer, Status> {
        self.fetch(capsule, len, buf).await.map_err(|error| {
            tracing::debug!(queue = ?self, %error, "data did not come");
            error.status
        })
    }

    fn complete(&self, capsule: fabric::Capsule, cqe: Cqe, data: Option<(Buffer, usize)>) {
        self.complete(capsule, cqe, data);
    }

    fn close(&self) {
        self.close();
    }
}

/// The commands in flight on one queue. Shared between the queue's reactor and those who abort
/// commands or wait for the queue to drain.
#[derive(Debug)]
pub struct Commands {
    table: Mutex<Table>,
    in_flight: watch::Sender<usize>,
}

#[derive(Debug, Default)]
struct Table {
    /// Set once: every command that waits, now or later, ends without an answer.
    ending: bool,
    entries: HashMap<u16, Entry>,
}

#[derive(Debug, Default)]
struct Entry {
    abort_requested: bool,
    /// Whether the command is somewhere where it may be aborted.
    waiting: bool,
    waker: Option<Waker>,
}

/// Why a command that waited does not go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interrupted {
    /// The host or a reset asked for it: answer Command Abort Requested.
    Aborted,
    /// The queue is going away: no answer can reach the host.
    QueueEnding,
}

impl Entry {
    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

/// Locks a mutex whose data stays valid even if a holder panicked: every change below is one step.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Default for Commands {
    fn default() -> Self {
        Self {
            table: Mutex::default(),
            in_flight: watch::Sender::new(0),
        }
    }
}

impl Commands {
    /// Takes a command identifier into use.
    ///
    /// # Errors
    /// Command ID Conflict: it is in flight already.
    pub fn begin(self: &Arc<Self>, cid: u16) -> Result<InFlight, Status> {
        let mut table = lock(&self.table);
        if table.entries.contains_key(&cid) {
            return Err(Status::COMMAND_ID_CONFLICT.with_dnr());
        }
        table.entries.insert(cid, Entry::default());
        self.in_flight.send_modify(|count| *count += 1);
        Ok(InFlight {
            commands: self.clone(),
            cid,
            answered: false,
        })
    }

    /// Asks for a command to be aborted. True if it will be; false if it is not there, or if it is at
    /// a point from which it goes on to its end.
    pub fn abort(&self, cid: u16) -> bool {
        let mut table = lock(&self.table);
        let Some(entry) = table.entries.get_mut(&cid) else {
            return false;
        };
        if !entry.waiting {
            return false;
        }
        entry.abort_requested = true;
        entry.wake();
        true
    }

    /// Aborts what waits now: the controller is reset.
    pub fn abort_waiting(&self) {
        let mut table = lock(&self.table);
        for entry in table.entries.values_mut().filter(|entry| entry.waiting) {
            entry.abort_requested = true;
            entry.wake();
        }
    }

    /// Ends what waits, now and from now on, without an answer: the queue is going away.
    pub fn end(&self) {
        let mut table = lock(&self.table);
        table.ending = true;
        table.entries.values_mut().for_each(Entry::wake);
    }

    /// Commands in flight.
    pub fn count(&self) -> usize {
        *self.in_flight.borrow()
    }

    /// Waits until no command is in flight.
    pub async fn drained(&self) {
        let mut count = self.in_flight.subscribe();
        // The sender lives in `self`, so this cannot fail.
        let _ = count.wait_for(|count| *count == 0).await;
    }
}

/// A command in flight; dropping it says that the command is over.
#[derive(Debug)]
pub struct InFlight {
    commands: Arc<Commands>,
    cid: u16,
    answered: bool,
}

impl InFlight {
    /// Waits for `work`, which is dropped if the command is aborted meanwhile.
    ///
    /// # Errors
    /// Why it does not go on.
    pub async fn abortable<T>(&self, work: impl Future<Output = T>) -> Result<T, Interrupted> {
        let mut work = pin!(work);
        let result = poll_fn(|cx| {
            {
                let mut table = lock(&self.commands.table);
                if table.ending {
                    return Poll::Ready(Err(Interrupted::QueueEnding));
                }
                if let Some(entry) = table.entries.get_mut(&self.cid) {
                    entry.waiting = true;
                    if entry.abort_requested {
                        return Poll::Ready(Err(Interrupted::Aborted));
                    }
                    if !entry
                        .waker
                        .as_ref()
                        .is_some_and(|waker| waker.will_wake(cx.waker()))
                    {
                        entry.waker = Some(cx.waker().clone());
                    }
                }
            }
            work.as_mut().poll(cx).map(Ok)
        })
        .await;
        let mut table = lock(&self.commands.table);
        if let Some(entry) = table.entries.get_mut(&self.cid) {
            entry.waiting = false;
            entry.waker = None;
            // An abort that was promised is kept, also when the work finished at the same moment.
            if entry.abort_requested && result.is_ok() {
                return Err(Interrupted::Aborted);
            }
        }
        result
    }

    /// The command is about to be completed: from the completion on, the host may use its identifier
    /// again. It still counts as in flight.
    pub fn answering(&mut self) {
        if !self.answered {
            self.answered = true;
            lock(&self.commands.table).entries.remove(&self.cid);
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.answering();
        self.commands
            .in_flight
            .send_modify(|count| *count = count.saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::task::Context;

    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn an_identifier_is_in_flight_once_and_free_again_when_answered() {
        let commands = Arc::new(Commands::default());
        let mut first = commands.begin(7).expect("free");
        assert_eq!(
            commands.begin(7).err().map(Status::code),
            Some(Status::COMMAND_ID_CONFLICT)
        );
        first.answering();
        let _second = commands.begin(7).expect("answered");
        assert_eq!(commands.count(), 2);
        drop(first);
        assert_eq!(commands.count(), 1);
        assert!(
            commands.begin(7).is_err(),
            "the end of the first must not free the second's"
        );
    }

    #[test]
    fn what_waits_can_be_aborted_and_what_works_cannot() {
        let commands = Arc::new(Commands::default());
        let command = commands.begin(1).expect("free");
        assert!(!commands.abort(1), "it does not wait");
        assert!(!commands.abort(2), "it is not there");
        {
            let mut waiting = pin!(command.abortable(pending::<()>()));
            let mut cx = Context::from_waker(Waker::noop());
            assert!(waiting.as_mut().poll(&mut cx).is_pending());
            assert!(commands.abort(1));
            assert_eq!(
                waiting.as_mut().poll(&mut cx),
                Poll::Ready(Err(Interrupted::Aborted))
            );
        }
        assert!(!commands.abort(1), "it works again");
    }

    #[test]
    fn a_queue_that_ends_takes_along_what_waits_later_too() {
        let commands = Arc::new(Commands::default());
        let command = commands.begin(1).expect("free");
        commands.end();
        assert_eq!(
            command.abortable(ready(())).now_or_never(),
            Some(Err(Interrupted::QueueEnding))
        );
        assert!(commands.drained().now_or_never().is_none());
        drop(command);
        assert!(commands.drained().now_or_never().is_some());
    }
}
