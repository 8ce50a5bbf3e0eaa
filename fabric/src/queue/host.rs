//! What a host asks of a queue, and why it does not get it.

use std::net::SocketAddr;

use nvme::rdma_cm::RdmaCmStatus;
use reactor::Buffer;

use super::Lifecycle;
use crate::error::{CloseReason, SetupError};

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
