//! What a controller needs from a queue pair, whatever carries it.
//!
//! The logic of controllers is written against [`Queue`], so that tests drive it with commands made by
//! hand, and so that a transport is nothing but an implementation of this trait.

use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use fabric::{TlsSession, Transport};
use nvme::{Cqe, Sqe, Status};
use reactor::{Buffer, BufferPool};

/// Facts about a queue, from its transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueFacts {
    /// The host's address.
    pub peer: SocketAddr,
    /// The address and port that the host came to.
    pub local: SocketAddr,
    /// The queue identifier that the transport was asked for, if it was; 0 is the admin queue.
    pub qid: Option<u16>,
    /// Commands that the host may have outstanding, if the transport was told.
    pub depth: Option<u16>,
    /// Bytes of data that a command may carry in its capsule.
    pub in_capsule_bytes: usize,
    /// What carries the queue.
    pub transport: Transport,
}

/// A target's end of a queue pair. Clones are the same queue.
pub trait Queue: Clone + 'static {
    /// A command as it arrived. It must be given back with [`Queue::complete`].
    type Capsule: 'static;

    /// Facts about the queue.
    fn facts(&self) -> QueueFacts;

    /// The submission queue entry of a command.
    fn sqe(capsule: &Self::Capsule) -> &Sqe;

    /// The Connect command succeeds, and will be completed next: the queue's identifier, and how many
    /// commands the host may have outstanding.
    fn connected(&self, qid: u16, depth: u16);

    /// The host has proved who it is, or need not: a transport gives the queue all the memory that it may have, and with
    /// `is_ready_admin` keeps room for other queues from the same address. Called before the completion by which the
    /// host learns that it may send others.
    fn proved(&self, is_ready_admin: bool) {
        let _ = is_ready_admin;
    }

    /// The queue is one of this host's: a transport may bound what the queues of a host hold together.
    fn belongs_to(&self, host_nqn: &str) {
        let _ = host_nqn;
    }

    /// What the host proved by TLS, if it came that way.
    fn tls(&self) -> Option<TlsSession> {
        None
    }

    /// The next command; `None` when the queue is closing or gone.
    fn next_command(&self) -> impl Future<Output = Option<Self::Capsule>>;

    /// Data of at least `len` bytes that came with the command, if it lies in a buffer of its own: then
    /// no other buffer is needed. It is given out once.
    fn take_data(&self, capsule: &Self::Capsule, len: usize) -> Option<Buffer> {
        let _ = (capsule, len);
        None
    }

    /// Memory for Connect and admin commands alone, if the transport has some.
    fn admin_buffers(&self) -> Option<BufferPool> {
        None
    }

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
            transport: info.transport,
        }
    }

    fn sqe(capsule: &fabric::Capsule) -> &Sqe {
        &capsule.sqe
    }

    fn connected(&self, qid: u16, depth: u16) {
        self.connected(qid, depth);
    }

    fn proved(&self, is_ready_admin: bool) {
        self.proved(is_ready_admin);
    }

    fn belongs_to(&self, host_nqn: &str) {
        self.belongs_to(host_nqn);
    }

    fn tls(&self) -> Option<TlsSession> {
        self.tls()
    }

    async fn next_command(&self) -> Option<fabric::Capsule> {
        self.next_command().await
    }

    fn take_data(&self, capsule: &fabric::Capsule, len: usize) -> Option<Buffer> {
        self.take_data(capsule, len)
    }

    fn admin_buffers(&self) -> Option<BufferPool> {
        self.admin_buffers()
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

/// Locks a mutex whose data stays valid even if a holder panicked: every change is one step.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
