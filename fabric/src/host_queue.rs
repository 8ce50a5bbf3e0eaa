//! A host's side of a queue pair: commands with their data out, completions in, whatever carries them.
//!
//! Guarantees:
//!
//! - At most `depth` commands are outstanding; more wait their turn.
//! - A completion that does not belong to an outstanding command ends the queue.
//! - Dropping a submission's future does not disturb the queue: the command runs to its end, and its
//!   buffer goes back to its pool then.

use std::net::SocketAddr;

use nvme::rdma_cm::ADMIN_QUEUE_DEPTH;
use nvme::{Cqe, Sqe};
use reactor::Buffer;

use crate::address::Transport;
use crate::connector::Connector;
use crate::error::CloseReason;
use crate::queue::{
    Close, DEPTH_MAX, Holder, HostData, HostError, HostQueueParams, Lifecycle, Outcome,
    QueueConnectError,
};
use crate::rdma::host::RdmaHost;
use crate::tcp::host::TcpHost;

/// A host's queue. Clones are the same queue; it closes when the last one is dropped.
#[derive(Clone)]
pub struct HostQueue {
    side: Side,
    peer: SocketAddr,
    params: HostQueueParams,
}

#[derive(Clone)]
enum Side {
    Rdma(Holder<RdmaHost>),
    Tcp(Holder<TcpHost>),
}

impl Side {
    fn life(&self) -> &Lifecycle {
        match self {
            Self::Rdma(side) => side.life(),
            Self::Tcp(side) => side.life(),
        }
    }

    fn close(&self, reason: CloseReason) {
        match self {
            Self::Rdma(side) => side.close(reason),
            Self::Tcp(side) => side.close(reason),
        }
    }
}

impl HostQueue {
    /// Connects a queue to a target. The Connect command is the caller's next step.
    pub async fn connect(
        connector: &Connector,
        peer: impl Into<SocketAddr>,
        params: HostQueueParams,
    ) -> Result<Self, QueueConnectError> {
        let (peer, HostQueueParams { qid, depth, .. }) = (peer.into(), params);
        if !(2..=DEPTH_MAX).contains(&depth) || (qid == 0 && depth > ADMIN_QUEUE_DEPTH) {
            return Err(QueueConnectError::Depth { qid, depth });
        }
        let side = match connector {
            Connector::Rdma(device) => {
                let side = Holder::from(RdmaHost::start(device.rdma(), peer, params)?);
                side.connected().await?;
                Side::Rdma(side)
            }
            Connector::Tcp(config) => {
                Side::Tcp(TcpHost::connect(config, peer, params).await?.into())
            }
        };
        Ok(Self { side, peer, params })
    }

    /// What carries it.
    pub fn transport(&self) -> Transport {
        match &self.side {
            Side::Rdma(_) => Transport::Rdma,
            Side::Tcp(_) => Transport::Tcp,
        }
    }

    /// The target.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// What the queue was connected with.
    pub fn params(&self) -> &HostQueueParams {
        &self.params
    }

    /// Sends a command and waits for its completion. The queue fills in the command identifier and
    /// the data pointer. The buffer comes back with the completion, whatever its status; after an
    /// error it goes to its pool.
    pub async fn submit(
        &self,
        sqe: Sqe,
        data: HostData,
    ) -> Result<(Cqe, Option<Buffer>), HostError> {
        if let HostData::ToTarget(buf, len) | HostData::FromTarget(buf, len) = &data
            && *len > buf.len()
        {
            return Err(HostError::Length {
                len: *len,
                buffer: buf.len(),
            });
        }
        let outcome: Outcome = match &self.side {
            Side::Rdma(side) => side.submit(sqe, data).await,
            Side::Tcp(side) => side.submit(sqe, data).await,
        };
        outcome
    }

    /// Ends the queue; outstanding commands fail.
    pub fn close(&self) {
        self.close_because(CloseReason::Local);
    }

    /// Begins to end the queue for this reason, which its commands are told.
    pub fn close_because(&self, reason: CloseReason) {
        self.side.close(reason);
    }

    /// Waits until the connection is over, whoever ended it, and says why.
    pub async fn closed(&self) -> CloseReason {
        self.side.life().wait().await
    }

    /// Whether the queue is ending or over.
    pub fn is_closing(&self) -> bool {
        self.side.life().is_ending()
    }
}

impl std::fmt::Debug for HostQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HostQueue")
            .field("peer", &self.peer)
            .field("params", &self.params)
            .finish_non_exhaustive()
    }
}
