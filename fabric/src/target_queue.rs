//! A target's side of a queue pair: commands in, data and completions out, whatever carries them.
//!
//! Guarantees:
//!
//! - A completion is sent after its data.
//! - A host that breaks the protocol loses this queue. Everything else that is wrong with a command is
//!   the command's own error.
//! - However the queue ends, every buffer goes back, waiting fetches fail, `next_command` gives None,
//!   and `closed` tells when it is over.

use nvme::{Cqe, Status};
use reactor::{Buffer, BufferPool};

use crate::error::{CloseReason, SetupError};
use crate::queue::{
    Capsule, Close, Fetched, Holder, QueueInfo, QueueLimits, SubmissionQueue, TransferError,
};
use crate::rdma::listener::Incoming;
use crate::rdma::target::RdmaTarget;
use crate::tcp::listener::TcpListener;
use crate::tcp::target::TcpTarget;
use crate::tcp::tls::TlsSession;

/// A target's queue. Clones are the same queue; it closes when the last one is dropped.
#[derive(Clone)]
pub struct TargetQueue {
    side: Side,
}

#[derive(Clone)]
enum Side {
    Rdma(Holder<RdmaTarget>),
    Tcp(Holder<TcpTarget>),
}

impl Side {
    fn submissions(&self) -> &SubmissionQueue {
        match self {
            Self::Rdma(side) => side.submissions(),
            Self::Tcp(side) => side.submissions(),
        }
    }

    fn close(&self, reason: CloseReason) {
        match self {
            Self::Rdma(side) => side.close(reason),
            Self::Tcp(side) => side.close(reason),
        }
    }
}

impl TargetQueue {
    /// Accepts a host's request for a queue over RDMA: its first receives are posted before the host learns of it, all
    /// others when it [has proved](Self::proved) who it is. If the host does not complete the connection, the queue
    /// closes.
    ///
    /// # Errors
    /// If the host gave up, or there is no room for another queue; the host learns that.
    pub fn accept_rdma(incoming: Incoming, limits: QueueLimits) -> Result<Self, SetupError> {
        let side = Side::Rdma(incoming.into_target(limits)?);
        Ok(Self { side })
    }

    /// The next queue of a listener over TCP, when its ICReq is answered; None when the port is closed.
    pub async fn accept_tcp(listener: &TcpListener) -> Option<Self> {
        let side = Side::Tcp(listener.next_target().await?);
        Some(Self { side })
    }

    /// What the host has proven by TLS; None without TLS.
    pub fn tls(&self) -> Option<TlsSession> {
        match &self.side {
            Side::Rdma(_) => None,
            Side::Tcp(side) => side.tls(),
        }
    }

    /// Facts about the queue.
    pub fn info(&self) -> QueueInfo {
        self.side.submissions().info.get()
    }

    /// The Connect command of this queue succeeds: call it before that command is completed. On TCP
    /// this is where the queue learns how many commands (`depth`) the host may have outstanding; on
    /// RDMA the connection request said so, and a Connect must agree with it.
    pub fn connected(&self, qid: u16, depth: u16) {
        match &self.side {
            Side::Rdma(side) => side.connected(qid, depth),
            Side::Tcp(side) => side.connected(qid, depth),
        }
    }

    /// The host has proved who it is, or need not: the queue gets all the memory that it may have, and gives its
    /// [place](crate::admission) back. Call it before the command is completed by which the host learns that it may
    /// send others. With `is_ready_admin`, room is kept for other queues from the same address as long as this one is
    /// open. A queue for which there is no memory closes.
    pub fn proved(&self, is_ready_admin: bool) {
        match &self.side {
            Side::Rdma(side) => side.proved(is_ready_admin),
            Side::Tcp(side) => side.proved(is_ready_admin),
        }
    }

    /// The queue is one of this host's, by its NQN: they share a bound ([`QueueLimits::host_share`],
    /// [`TcpListenerConfig::host_share`](crate::TcpListenerConfig::host_share)).
    pub fn belongs_to(&self, host_nqn: &str) {
        match &self.side {
            Side::Rdma(side) => side.belongs_to(host_nqn),
            Side::Tcp(side) => side.belongs_to(host_nqn),
        }
    }

    /// The next command, or None when the queue is closing or gone. A queue whose host does not take
    /// its answers, or does not send what it was asked for, gives none while it holds too much memory.
    pub async fn next_command(&self) -> Option<Capsule> {
        match &self.side {
            Side::Rdma(side) => side.next_command().await,
            Side::Tcp(side) => side.next_command().await,
        }
    }

    /// Brings the first `len` bytes of a command's data from the host: from the capsule, with RDMA
    /// READs, or with R2T. The buffer that comes back is as long as `buf`, and may be another one.
    ///
    /// # Errors
    /// The status says what to complete the command with; if the queue is gone, completing it does
    /// nothing. The buffer goes back to its pool.
    pub async fn fetch(
        &self,
        capsule: &Capsule,
        len: usize,
        buf: Buffer,
    ) -> Result<Fetched, TransferError> {
        if len > buf.len() {
            let message = "the buffer is shorter than the data";
            return Err(TransferError::new(Status::INTERNAL, message));
        }
        match &self.side {
            Side::Rdma(side) => Ok(side.fetch(capsule, len, buf).await?.into()),
            Side::Tcp(side) => side.fetch(capsule, len, buf).await,
        }
    }

    /// In-capsule data of at least `len` bytes that lies in a buffer of its own: nothing has to be
    /// fetched, and no other buffer is needed. It is given out once.
    pub fn take_data(&self, capsule: &Capsule, len: usize) -> Option<Fetched> {
        match &self.side {
            // It lies in a posted receive.
            Side::Rdma(_) => None,
            Side::Tcp(_) => TcpTarget::take_data(capsule, len),
        }
    }

    /// Memory for Connect and admin commands alone, where the transport has some: it does not run out
    /// when hosts hold the buffers for data.
    pub fn admin_buffers(&self) -> Option<BufferPool> {
        match &self.side {
            // Data moves between registered memory only: the reactor's pool.
            Side::Rdma(_) => None,
            Side::Tcp(side) => Some(side.admin_buffers().clone()),
        }
    }

    /// Completes a command: sends the first `len` bytes of the buffer, then the completion. The queue
    /// fills in `sq_head`, `sq_id` and `cid`. Data that the command's SGL has no room for turns into
    /// an error status. On a queue that is gone nothing happens.
    pub fn complete(&self, capsule: Capsule, cqe: Cqe, data: Option<(Buffer, usize)>) {
        match &self.side {
            Side::Rdma(side) => side.complete(capsule, cqe, data),
            Side::Tcp(side) => side.complete(capsule, cqe, data),
        }
    }

    /// Ends the queue: no more commands come, work in flight is flushed.
    pub fn close(&self) {
        self.side.close(CloseReason::Local);
    }

    /// Waits until the connection is over, whoever ended it, and says why.
    pub async fn closed(&self) -> CloseReason {
        self.side.submissions().life.wait().await
    }

    /// Whether the queue is ending or over.
    pub fn is_closing(&self) -> bool {
        self.side.submissions().life.is_ending()
    }
}

impl std::fmt::Debug for TargetQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TargetQueue")
            .field("info", &self.info())
            .finish_non_exhaustive()
    }
}
