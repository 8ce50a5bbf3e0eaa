//! Bounds on hosts, as they are announced and enforced.

use std::time::Duration;

use fabric::Transport;
use fabric::serving::auth::AuthLimits;

/// Maximum Data Transfer Size as a power of two of 4 KiB pages: 1 MiB, as much as io_uring moves at once without splitting
/// on most devices.
pub const MDTS: u8 = 8;
/// The longest data transfer of a command, in bytes.
pub const TRANSFER_BYTES_MAX: usize = drives::BLOCK_BYTES << MDTS;
/// Asynchronous Event Requests that a controller holds. As nvmet.
pub const EVENT_REQUESTS_MAX: usize = 4;
/// The longest admin queue, where the transport does not say (Linux `NVME_AQ_DEPTH`).
pub(crate) const ADMIN_QUEUE_DEPTH: u16 = 32;

/// The time from a queue's creation to a successful Connect. Hosts send it at once, and give up after 60 s.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a host that connects again waits for the last commands of its ended associations; then it is told to try
/// again.
pub(crate) const EARLIER_ASSOCIATIONS_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a stopping target waits for a queue's commands before it closes the queue.
pub(crate) const QUIESCE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a discovery controller without a keep-alive timeout lives without a command (nvmet's NVMET_DISC_KATO_MS).
pub(crate) const DISCOVERY_IDLE: Duration = Duration::from_secs(120);

/// Bounds on hosts that authenticate, and on TLS handshakes that fail: as of Onefold's own target.
pub(crate) const AUTH_LIMITS: AuthLimits = AuthLimits {
    timeout: Duration::from_secs(60),
    failures_max: 16,
    window: Duration::from_secs(60),
    exchanges_max: 16,
};

/// Bounds on hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Controllers at one time, of all hosts; as many again for discovery.
    pub controllers: usize,
    /// I/O queues of one controller.
    pub io_queues: u16,
    /// I/O queues over RDMA.
    pub rdma: QueueLimits,
    /// I/O queues over TCP.
    pub tcp: QueueLimits,
}

/// Bounds on an I/O queue of one transport. The listener enforces both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueLimits {
    /// Entries (MAXCMD; CAP.MQES is one less).
    pub depth: u16,
    /// Bytes of data in a capsule (IOCCSZ).
    pub in_capsule_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            controllers: 128,
            io_queues: 128,
            rdma: QueueLimits {
                depth: 256,
                in_capsule_bytes: 4096,
            },
            tcp: QueueLimits {
                depth: 1024,
                in_capsule_bytes: 16 << 10,
            },
        }
    }
}

impl Limits {
    /// The bounds of queues over that transport.
    #[must_use]
    pub fn queue(&self, transport: Transport) -> QueueLimits {
        match transport {
            Transport::Rdma => self.rdma,
            Transport::Tcp => self.tcp,
        }
    }
}
