//! A host's side of a queue pair: commands with their data out, completions in, whatever carries them.
//!
//! Guarantees:
//!
//! - At most `depth` commands are outstanding; more wait their turn.
//! - A completion that does not belong to an outstanding command ends the queue.
//! - Dropping a submission's future does not disturb the queue: the command runs to its end, and its
//!   buffer goes back to its pool then.

use std::net::SocketAddr;
use std::rc::Rc;

use nvme::rdma_cm::{ADMIN_QUEUE_DEPTH, RdmaCmStatus};
use nvme::{Cqe, Sqe};
use reactor::Buffer;

use crate::address::Transport;
use crate::commands::{DEPTH_MAX, Outcome};
use crate::connector::Connector;
use crate::lifecycle::Lifecycle;
use crate::rdma::host::RdmaHost;
use crate::rdma::{CloseReason, SetupError};
use crate::tcp::host::TcpHost;

/// What a host asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostQueueParams {
    /// The queue identifier; 0 is the admin queue.
    pub qid: u16,
    /// Commands that may be outstanding (2 to 1024; admin queues at most 32).
    pub depth: u16,
    /// The controller, for I/O queues; 0 for the admin queue.
    pub cntlid: u16,
    /// Bytes of write data that the controller takes in a capsule: `IOCCSZ * 16 - 64` of an I/O
    /// queue if the controller supports SGL offsets, otherwise 0.
    pub in_capsule_bytes: usize,
}

/// Data of a command.
#[derive(Debug)]
pub enum HostData {
    /// No data.
    None,
    /// The first so many bytes of the buffer go to the target.
    ToTarget(Buffer, usize),
    /// So many bytes come from the target into the buffer.
    FromTarget(Buffer, usize),
}

/// Why a queue could not be connected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueueConnectError {
    /// A parameter is out of range.
    #[error("queue {qid} cannot have {depth} entries; ask for 2 to 1024 (admin: 2 to 32)")]
    Depth {
        /// The queue.
        qid: u16,
        /// What was asked for.
        depth: u16,
    },
    /// The connection could not be started.
    #[error("cannot connect to {peer}: {source}")]
    Setup {
        /// The target.
        peer: SocketAddr,
        /// Why.
        source: SetupError,
    },
    /// The target refused the queue.
    #[error("{peer} refused queue {qid}: {status}; check depth and number of queues")]
    Refused {
        /// The target.
        peer: SocketAddr,
        /// The queue.
        qid: u16,
        /// The target's reason.
        status: RdmaCmStatus,
    },
    /// The connection failed before it stood.
    #[error("cannot connect to {peer}: {reason}; check that a target listens there")]
    Failed {
        /// The target.
        peer: SocketAddr,
        /// Why.
        reason: CloseReason,
    },
}

/// Why a command has no completion.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostError {
    /// The queue ended; whether the command was executed is unknown.
    #[error("the connection to {peer} is gone ({reason}); connect again and repeat the command")]
    Closed {
        /// The target.
        peer: SocketAddr,
        /// Why.
        reason: CloseReason,
    },
    /// The device's tables are full.
    #[error("the device has no room for another memory region; submit fewer commands at once")]
    NoResources,
    /// The data does not lie in the buffer.
    #[error("{len} bytes of data do not fit a buffer of {buffer} bytes")]
    Length {
        /// What was asked for.
        len: usize,
        /// What the buffer holds.
        buffer: usize,
    },
}

impl HostError {
    /// The queue has ended, as its lifecycle says.
    pub(crate) fn closed(peer: SocketAddr, life: &Lifecycle) -> Self {
        let reason = life.reason().unwrap_or(CloseReason::Local);
        Self::Closed { peer, reason }
    }
}

/// A host's queue. Clones are the same queue; it closes when the last one is dropped.
#[derive(Clone)]
pub struct HostQueue {
    side: Side,
    peer: SocketAddr,
    params: HostQueueParams,
    _close: Rc<CloseOnDrop>,
}

#[derive(Clone)]
enum Side {
    Rdma(Rc<RdmaHost>),
    Tcp(Rc<TcpHost>),
}

struct CloseOnDrop(Side);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.close(CloseReason::Local);
    }
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
                let side = RdmaHost::start(device, peer, params)?;
                let close = CloseOnDrop(Side::Rdma(side.clone()));
                side.connected().await?;
                return Ok(Self::new(close, peer, params));
            }
            Connector::Tcp(config) => Side::Tcp(TcpHost::connect(config, peer, params).await?),
        };
        Ok(Self::new(CloseOnDrop(side), peer, params))
    }

    fn new(close: CloseOnDrop, peer: SocketAddr, params: HostQueueParams) -> Self {
        Self {
            side: close.0.clone(),
            peer,
            params,
            _close: Rc::new(close),
        }
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
        self.side.close(CloseReason::Local);
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
