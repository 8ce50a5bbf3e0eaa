//! Bounds on hosts, as they are announced and enforced.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fabric::Transport;

/// The largest controller identifier that a controller may have; FFF0h and above are reserved (Base 2.0, figure 275).
const CNTLID_MAX: u16 = 0xffef;

/// Nodes that can offer the same subsystems at a time: each has identifiers of its own for its controllers.
pub const NODES_MAX: u16 = 16;

/// The identifiers that a node gives its controllers. A host that is attached to several nodes refuses a second controller
/// with an identifier that it knows (Linux, `drivers/nvme/host/core.c`, `nvme_validate_cntlid`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControllerIds {
    /// The lowest.
    pub first: u16,
    /// The highest.
    pub last: u16,
}

impl ControllerIds {
    /// Those of a node that is alone.
    pub const ALL: Self = Self {
        first: 1,
        last: CNTLID_MAX,
    };

    /// Those of one of [`NODES_MAX`] nodes, counted from 0.
    #[must_use]
    pub fn of_node(number: u16) -> Self {
        let each = CNTLID_MAX / NODES_MAX;
        let first = 1 + number.min(NODES_MAX - 1) * each;
        Self {
            first,
            last: first + each - 1,
        }
    }

    /// Whether it is one of them.
    pub(crate) fn contains(self, id: u16) -> bool {
        (self.first..=self.last).contains(&id)
    }

    /// The one that comes after another; the first one after the last.
    pub(crate) fn after(self, id: u16) -> u16 {
        match (self.first..self.last).contains(&id) {
            true => id + 1,
            false => self.first,
        }
    }

    /// One of them, by a random number.
    pub(crate) fn any(self, random: u16) -> u16 {
        self.first + random % (self.last - self.first + 1)
    }
}

/// Bounds on hosts, as they are announced and enforced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Identifiers of controllers.
    pub controller_ids: ControllerIds,
    /// Controllers of one subsystem at a time.
    pub controllers: usize,
    /// I/O queues of one controller.
    pub io_queues: u16,
    /// Maximum Data Transfer Size as a power of two of 4 KiB pages: 8 is 1 MiB.
    pub mdts: u8,
    /// I/O queues over RDMA.
    pub rdma: QueueLimits,
    /// I/O queues over TCP.
    pub tcp: QueueLimits,
    /// Receives that the queues of a reactor share on an RDMA device of the kernel.
    pub rdma_shared_receives: usize,
    /// Connections over TCP at one time, at each address on each reactor.
    pub tcp_connections: usize,
    /// A queue starts a command only while the queue uses at most 1/`queue_share` of its reactor's free buffers.
    pub queue_share: usize,
    /// The same for all queues of a host on a reactor together.
    pub host_share: usize,
    /// The time from a TCP connection to its ICReq.
    pub handshake_timeout: Duration,
    /// The time without a byte in the middle of a PDU, a transfer or an answer, after which a TCP connection is closed.
    pub stall_timeout: Duration,
    /// The same while buffers run short and the connection holds some.
    pub stall_timeout_short: Duration,
    /// The time to authenticate a queue, from its Connect or from the start of the exchange.
    pub auth_timeout: Duration,
    /// Command Quiesce Time: how long after the loss of its host a controller may still work on commands, as hosts are told.
    pub quiesce_time: Duration,
    /// The limit of open files, if it is the reason for fewer hosts or queues than by default.
    pub descriptors: Option<u64>,
    /// Failed authentications of a host at an address within `auth_failures_window`, after which its Connect
    /// commands are answered with Controller Busy.
    pub auth_failures_max: u32,
    /// See `auth_failures_max`.
    pub auth_failures_window: Duration,
    /// Authentications that a host may start on a queue within `auth_failures_window`; the next one fails.
    pub auth_exchanges_max: u32,
}

/// Bounds on an I/O queue of one transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueLimits {
    /// Entries (MAXCMD; CAP.MQES is one less).
    pub depth: u16,
    /// Bytes of data in a capsule (IOCCSZ).
    pub in_capsule_bytes: usize,
    /// Memory for capsules beside the buffers, for all reactors together: the receive buffers of RDMA queues, and
    /// in-capsule data over TCP while no buffer is free.
    pub capsule_bytes_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            controller_ids: ControllerIds::ALL,
            controllers: 1024,
            io_queues: 128,
            mdts: 8,
            // An RDMA queue holds a receive buffer for every entry. Both as nvmet has them.
            rdma: QueueLimits {
                depth: 256,
                in_capsule_bytes: 4096,
                capsule_bytes_max: 256 << 20,
            },
            tcp: QueueLimits {
                depth: 1024,
                in_capsule_bytes: 16 << 10,
                capsule_bytes_max: 64 << 20,
            },
            rdma_shared_receives: 1024,
            // All queues of all controllers.
            tcp_connections: 1024 * 129,
            queue_share: 16,
            host_share: 2,
            handshake_timeout: Duration::from_secs(10),
            stall_timeout: Duration::from_secs(30),
            stall_timeout_short: Duration::from_secs(2),
            auth_timeout: Duration::from_secs(60),
            // As with the drives' usual bounds: a second for a transfer, and ten for a flush after it.
            quiesce_time: Duration::from_secs(11),
            descriptors: None,
            auth_failures_max: 16,
            auth_failures_window: Duration::from_secs(60),
            auth_exchanges_max: 16,
        }
    }
}

impl Limits {
    /// The longest data transfer of a command, in bytes.
    #[must_use]
    pub fn transfer_bytes_max(&self) -> usize {
        4096usize << self.mdts.min(16)
    }

    /// The bounds of queues over that transport.
    #[must_use]
    pub fn queue(&self, transport: Transport) -> QueueLimits {
        match transport {
            Transport::Rdma => self.rdma,
            Transport::Tcp => self.tcp,
        }
    }
}

/// What to do where the limit of open files is why a host is refused.
pub(crate) fn remedy(descriptors: u64) -> String {
    format!(
        "{descriptors} open files are allowed, more of them (LimitNOFILE= of a systemd unit, `ulimit -Hn`) or fewer \
         --io-queues leave room for more hosts"
    )
}

/// Logs, once, that a host is granted fewer I/O queues than it asks for.
pub(crate) fn tell_of_fewer_queues(descriptors: u64, io_queues: u16) {
    static TOLD: AtomicBool = AtomicBool::new(false);
    if !TOLD.swap(true, Ordering::Relaxed) {
        tracing::info!(
            "a host asks for more than {io_queues} I/O queues, which is what {descriptors} open files leave for each; \
             LimitNOFILE= of a systemd unit or `ulimit -Hn` allows more, `serve --io-queues` sets a number"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_nodes_give_a_controller_the_same_identifier() {
        let nodes: Vec<_> = (0..NODES_MAX).map(ControllerIds::of_node).collect();
        for (node, next) in nodes.iter().zip(&nodes[1..]) {
            assert!(node.first < node.last && node.last < next.first);
        }
        assert!(nodes[0].first >= 1 && nodes[usize::from(NODES_MAX) - 1].last <= CNTLID_MAX);
    }

    #[test]
    fn a_node_uses_each_of_its_identifiers_before_one_comes_again() {
        let ids = ControllerIds::of_node(3);
        let mut id = ids.any(u16::MAX);
        let begin = id;
        let mut count = 0;
        loop {
            id = ids.after(id);
            assert!((ids.first..=ids.last).contains(&id));
            count += 1;
            if id == begin {
                break;
            }
        }
        assert_eq!(count, ids.last - ids.first + 1);
    }
}
