//! What a controller needs from a queue pair, on every transport.
//!
//! The logic of controllers is written against [`Queue`], so that tests can drive it with commands made
//! by hand, and so that a transport is only an implementation of this trait.

use std::time::Instant;

use fabric::{Fetched, QueueInfo, TlsSession};
use nvme::{Cqe, Sqe, Status};
use reactor::{Buffer, BufferPool};

/// The target's end of a queue pair. Clones are the same queue.
pub trait Queue: Clone + 'static {
    /// A command as it arrived. It must be given back with [`Queue::complete`].
    type Capsule: 'static;

    /// What the transport knows of the queue.
    fn info(&self) -> QueueInfo;

    /// The submission queue entry of a command.
    fn sqe(capsule: &Self::Capsule) -> &Sqe;

    /// When a command arrived.
    fn arrived(capsule: &Self::Capsule) -> Instant {
        let _ = capsule;
        reactor::recently()
    }

    /// The Connect command succeeds, and will be completed next: the queue's identifier, and how many
    /// commands the host may have outstanding.
    fn connected(&self, qid: u16, depth: u16);

    /// The host has authenticated, or need not. The transport now grants the queue all the memory that it may have; with
    /// `is_ready_admin` it also reserves room for other queues from the same address. Called before the completion
    /// after which the host may send other commands.
    fn proved(&self, is_ready_admin: bool) {
        let _ = is_ready_admin;
    }

    /// Names the queue's host: a transport may bound the memory of all queues of a host together.
    fn belongs_to(&self, host_nqn: &str) {
        let _ = host_nqn;
    }

    /// The TLS session, if the host connected with TLS.
    fn tls(&self) -> Option<TlsSession> {
        None
    }

    /// The next command; `None` when the queue is closing or gone.
    fn next_command(&self) -> impl Future<Output = Option<Self::Capsule>>;

    /// In-capsule data of at least `len` bytes, if they are in a buffer of their own: then no other buffer is needed. They
    /// are handed out once.
    fn take_data(&self, capsule: &Self::Capsule, len: usize) -> Option<Fetched> {
        let _ = (capsule, len);
        None
    }

    /// Memory for Connect and admin commands only, if the transport has some.
    fn admin_buffers(&self) -> Option<BufferPool> {
        None
    }

    /// Transfers the first `len` bytes of the command's data from the host into `buf`.
    ///
    /// # Errors
    /// The status to complete the command with; also, and soon, when the queue ends meanwhile.
    fn fetch(
        &self,
        capsule: &Self::Capsule,
        len: usize,
        buf: Buffer,
    ) -> impl Future<Output = Result<Fetched, Status>>;

    /// Sends the first `len` bytes of the data, then the completion; the queue fills in the head, the
    /// queue identifier and the command identifier. On a queue that is gone nothing happens.
    fn complete(&self, capsule: Self::Capsule, cqe: Cqe, data: Option<(Buffer, usize)>);

    /// Ends the queue.
    fn close(&self);
}

impl Queue for fabric::TargetQueue {
    type Capsule = fabric::Capsule;

    fn info(&self) -> QueueInfo {
        self.info()
    }

    fn sqe(capsule: &fabric::Capsule) -> &Sqe {
        &capsule.sqe
    }

    fn arrived(capsule: &fabric::Capsule) -> Instant {
        capsule.arrived
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

    fn take_data(&self, capsule: &fabric::Capsule, len: usize) -> Option<Fetched> {
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
    ) -> Result<Fetched, Status> {
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
