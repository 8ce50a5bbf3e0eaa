//! NVMe/TCP, on sockets of the kernel.
//!
//! From below: `socket` is the system calls; `receive` makes PDUs of the stream and `send` a stream of
//! PDUs, both without sockets; `link` is a connection, run by one task; `target` and `host` are its two
//! sides, and `transfers` the data that a target has asked for; `listener` is where hosts come in, and `shared_ports` spreads
//! them over the listeners of several reactors. [`tls`] lies
//! between `link` and `socket` where both sides want that.

pub(crate) mod host;
mod link;
pub(crate) mod listener;
mod receive;
mod send;
pub(crate) mod shared_ports;
mod socket;
pub(crate) mod target;
pub mod tls;
mod transfers;

use std::net::SocketAddr;
use std::time::Duration;

use crate::memory::{HOST_SHARE, QUEUE_SHARE};
use tls::{TLS_KEY_BYTES_MAX, TlsHostConfig, TlsMode};

/// How a host connects by TCP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TcpHostConfig {
    /// Ask for header digests.
    pub header_digest: bool,
    /// Ask for data digests.
    pub data_digest: bool,
    /// How long connecting may take, from the first packet to the target's answer (ICResp).
    pub timeout: Duration,
    /// Speak TLS with one of these keys; in clear without.
    pub tls: Option<TlsHostConfig>,
    /// As [`TcpListenerConfig::tls_key_bytes_max`].
    pub tls_key_bytes_max: u64,
    /// As [`TcpListenerConfig::paced`].
    pub paced: bool,
}

impl Default for TcpHostConfig {
    /// No digests, 10 s, in clear: what Linux does. Not paced.
    fn default() -> Self {
        Self {
            header_digest: false,
            data_digest: false,
            timeout: Duration::from_secs(10),
            tls: None,
            tls_key_bytes_max: TLS_KEY_BYTES_MAX,
            paced: false,
        }
    }
}

/// Bounds of a TCP listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpListenerConfig {
    /// Where to listen. `::` takes IPv6 alone, so that `0.0.0.0` can stand beside it.
    pub address: SocketAddr,
    /// Connections that the kernel keeps until they are looked at.
    pub backlog: u32,
    /// Whether hosts speak TLS; [`TcpListener::set_tls`](crate::TcpListener::set_tls) changes it.
    pub tls: TlsMode,
    /// Bytes that a key of TLS may protect, each way ([`TLS_KEY_BYTES_MAX`]): before that, hosts of ours change keys,
    /// and the connections of others end.
    pub tls_key_bytes_max: u64,
    /// How long a host may take from its connection to its ICReq, with a TLS handshake in between if there is one.
    pub handshake_timeout: Duration,
    /// How long a host may keep a PDU, a transfer or an answer waiting without moving a byte.
    pub stall_timeout: Duration,
    /// Connections at one time; more are closed at once.
    pub connections_max: usize,
    /// Those of them whose hosts have not proved who they are, from addresses without a ready admin queue; and as many
    /// from other addresses. Half of all connections at most.
    pub unproven_max: usize,
    /// Bytes of data that a command of an I/O queue may carry in its capsule; admin and fabrics
    /// commands may always carry 8192.
    pub in_capsule_bytes: usize,
    /// Bytes of one H2CData PDU at most: at least 4096, a multiple of 4.
    pub maxh2cdata: u32,
    /// Agree to header and data digests when a host asks for them.
    pub digests: bool,
    /// The longest queue that a host may ask for, in entries.
    pub depth_max: u16,
    /// Bytes of in-capsule data of all queues together that wait outside of the buffer pool because
    /// it is empty; what does not fit is refused with a status that the host may retry.
    pub capsule_bytes_max: usize,
    /// A queue begins its next command only if its data, that of the commands under way and that of
    /// answers which its host has not taken, are at most 1/`queue_share` of what is free in the buffer
    /// pool now. The more queues hold some the less each may, and some is left for others. At least 1.
    pub queue_share: usize,
    /// The same for all queues of a host at this listener together, but the first command of each. At
    /// least 1.
    pub host_share: usize,
    /// As `stall_timeout`, for queues that hold memory while the pool runs short.
    pub stall_timeout_short: Duration,
    /// Bytes of a pool of its own for Connect and admin commands, so that hosts can attach and stay
    /// attached whatever others hold: rounded up to a multiple of [`reactor::MAX_BUFFER_BYTES`].
    pub admin_bytes: usize,
    /// Share the port with other listeners of this process: one for each reactor.
    pub reuse_port: bool,
    /// Leave connections to the system's congestion control also where that paces them (BBR). Without
    /// it they use CUBIC there: a timer between any two bursts costs more than it gives on the short
    /// paths of storage (measured: 128 KiB reads over loopback cost half as much processor time again).
    pub paced: bool,
}

/// What can be changed of a listener that is open. Each is as in [`TcpListenerConfig`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiveBounds {
    /// For connections that come from now on.
    pub handshake_timeout: Duration,
    /// For all connections.
    pub stall_timeout: Duration,
    /// For all connections.
    pub stall_timeout_short: Duration,
    /// For queues that come from now on.
    pub queue_share: usize,
    /// For queues that come from now on.
    pub host_share: usize,
}

impl TcpListenerConfig {
    /// Those of its bounds that can be changed later.
    #[must_use]
    pub fn live_bounds(&self) -> LiveBounds {
        LiveBounds {
            handshake_timeout: self.handshake_timeout,
            stall_timeout: self.stall_timeout,
            stall_timeout_short: self.stall_timeout_short,
            queue_share: self.queue_share,
            host_share: self.host_share,
        }
    }

    /// The usual bounds: 1024 connections, 256 of hosts that have not proved who they are, 16 KiB in a capsule, 1 MiB in an H2CData PDU, queues of up
    /// to 1024 entries, 64 MiB of capsules beside the pool, 10 s for a handshake, 30 s of silence (2 s
    /// when memory runs short), a sixteenth of the free memory for a queue and half of it for a host,
    /// 4 MiB for admin queues. Not paced. No TLS.
    pub fn new(address: SocketAddr) -> Self {
        Self {
            address,
            backlog: 1024,
            tls: TlsMode::Off,
            tls_key_bytes_max: TLS_KEY_BYTES_MAX,
            handshake_timeout: Duration::from_secs(10),
            stall_timeout: Duration::from_secs(30),
            connections_max: 1024,
            unproven_max: 256,
            in_capsule_bytes: 16 << 10,
            maxh2cdata: 1 << 20,
            digests: true,
            depth_max: 1024,
            capsule_bytes_max: 64 << 20,
            queue_share: QUEUE_SHARE,
            host_share: HOST_SHARE,
            stall_timeout_short: Duration::from_secs(2),
            admin_bytes: 4 << 20,
            reuse_port: false,
            paced: false,
        }
    }
}

/// What happened at a listener so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpCounters {
    /// Connections accepted.
    pub accepted: u64,
    /// Connections open now.
    pub open: u64,
    /// Connections closed because there were too many, or too many of hosts that had not proved who they are.
    pub refused: u64,
    /// Connections that ended before their handshake was done.
    pub handshakes_failed: u64,
    /// TLS handshakes that succeeded.
    pub tls_handshakes: u64,
    /// Connections that TLS ended, or whose TLS handshake failed.
    pub tls_failures: u64,
    /// Connections closed because the host broke the protocol.
    pub violations: u64,
    /// Header or data digests that were wrong.
    pub digest_errors: u64,
    /// Connections closed because nothing moved for too long.
    pub stalled: u64,
    /// Commands whose in-capsule data found no memory.
    pub capsules_refused: u64,
    /// Bytes of in-capsule data that wait outside of the buffer pool now.
    pub queue_bytes: u64,
    /// Their bound.
    pub queue_bytes_max: u64,
    /// Bytes for the data of commands under way, and of answers that hosts have not taken, now.
    pub held_bytes: u64,
    /// How often a queue had to wait with its next command because it held its share.
    pub held_back: u64,
    /// Bytes received.
    pub received_bytes: u64,
    /// Bytes sent.
    pub sent_bytes: u64,
    /// Receive system calls.
    pub receives: u64,
    /// Send system calls.
    pub sends: u64,
}
