//! What is known of a target's queue, and its bounds.

use std::net::SocketAddr;

use crate::address::Transport;
use crate::memory::{HOST_SHARE, QUEUE_SHARE};

/// Bounds of an accepted NVMe/RDMA queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueLimits {
    /// Bytes of data that a command may carry in its capsule. The controller announces it as
    /// `IOCCSZ = (64 + in_capsule_bytes) / 16`.
    pub in_capsule_bytes: usize,
    /// READs in flight at most; the host's own limit applies too.
    pub reads_max: usize,
    /// A queue begins its next command only if its data, that of the commands under way and that which
    /// its host has not acknowledged, are at most one part in so many of what is free in the reactor's
    /// buffer pool now. At least 1.
    pub queue_share: usize,
    /// The same for all queues of a host on the reactor together, but the first command of each. At least 1.
    pub host_share: usize,
}

impl Default for QueueLimits {
    fn default() -> Self {
        Self {
            in_capsule_bytes: 4096,
            reads_max: 64,
            queue_share: QUEUE_SHARE,
            host_share: HOST_SHARE,
        }
    }
}

/// Facts about a queue. What the transport does not say before the Connect command is None until
/// its Connect command has succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueInfo {
    /// The host's address.
    pub peer: SocketAddr,
    /// The address and port that the host connected to.
    pub local: SocketAddr,
    /// The queue identifier; 0 is the admin queue.
    pub qid: Option<u16>,
    /// Commands that the host may have outstanding.
    pub depth: Option<u16>,
    /// The controller that the host named (RDMA only; kernels before 6.12 say 0 for I/O queues).
    pub cntlid: Option<u16>,
    /// Bytes of data that a command of an I/O queue may carry in its capsule. On TCP admin and
    /// fabrics commands may carry 8192.
    pub in_capsule_bytes: usize,
    /// The transport.
    pub transport: Transport,
}
