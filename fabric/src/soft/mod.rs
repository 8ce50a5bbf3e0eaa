//! The soft provider: RoCEv2 over plain UDP sockets, on any network interface, with no kernel module.
//!
//! One device is one `roce` endpoint and one or more UDP sockets on port 4791, driven by two kinds of
//! tasks of one reactor: a receiver per socket that drains it in batches when it is readable, and one
//! driver that sends what the endpoint has to send and serves its timer. What happens is told to the
//! queue pairs' handlers between those, so that the work they post leaves together.
//!
//! A device can have several parts, each on a reactor of its own, which share nothing but messages about
//! the beginnings and ends of connections.
//!
//! Bounds: datagrams per system call, packets per round, bytes of READ responses in flight, and what
//! [`roce::endpoint::EndpointConfig`] bounds. A packet whose ICRC is wrong is dropped before anything else looks
//! at it.

mod connection;
mod device;
mod driver;
mod guard;
mod parts;
mod socket;
mod socket_raw;
mod socket_send;
mod strict;

pub(crate) use device::{SoftDevice, SoftPart};

/// Bounds of a soft device.
#[derive(Clone, Debug)]
pub struct SoftConfig {
    /// Bytes of each socket's receive buffer. More than `net.core.rmem_max` needs CAP_NET_ADMIN;
    /// without it the device works with less.
    pub receive_buffer_bytes: usize,
    /// Bytes of each socket's send buffer. It is shared by all peers, and packets to one that takes
    /// none (a guest that is stopped, say) stay in it until their queue pair gives up.
    pub send_buffer_bytes: usize,
    /// Bytes of READ responses that may be on their way to this device. They come without being
    /// paced, so they must fit the receive buffer; the device uses a quarter of that if it is less.
    pub read_bytes_in_flight: usize,
    /// Bytes of the longest single READ: longer transfers are cut into such pieces.
    pub read_bytes_max: usize,
    /// Packets that may go into one round of sending.
    pub packets_per_round: usize,
    /// Once so many work requests were posted, they leave before more are posted, so that the peer works
    /// on them meanwhile. Fewer cost more system calls.
    pub works_per_round: usize,
    /// The same for the bytes that they send or ask for.
    pub bytes_per_round: usize,
    /// Whether the ICRC of IPv4 packets is checked in full. UDP sockets do not show the IP
    /// identification, which leaves 16 of the 32 bits; this shows it, by a raw socket beside each,
    /// which costs a second look at each packet and needs CAP_NET_RAW.
    pub strict_icrc: bool,
    /// Whether runs of packets are given to the kernel as one message (UDP_SEGMENT).
    pub segmentation_offload: bool,
    /// Bounds and timers of the RoCE endpoint.
    pub endpoint: roce::endpoint::EndpointConfig,
    /// For tests: drop about one of so many received packets, always the same ones.
    pub drop_every: Option<u32>,
    /// For tests: packets come to any part of the device, and are forwarded.
    pub scatter: bool,
}

impl Default for SoftConfig {
    fn default() -> Self {
        Self {
            receive_buffer_bytes: 16 << 20,
            send_buffer_bytes: 32 << 20,
            read_bytes_in_flight: 4 << 20,
            read_bytes_max: 128 << 10,
            packets_per_round: 256,
            works_per_round: 16,
            bytes_per_round: 128 << 10,
            strict_icrc: false,
            segmentation_offload: true,
            endpoint: roce::endpoint::EndpointConfig {
                // A target's queue of 1024 entries: receives, and a WRITE and a SEND for each of the
                // responses that it lets wait for acknowledgement. 256 hosts with some queues each.
                max_recv_wr: 1025,
                max_send_wr: 2 * 4 * 1024 + 64,
                max_qps: 4096,
                // A busy queue's READs, and their answers, leave in few messages.
                max_reads_in_flight: 64,
                // Data, and what asks for data, goes before the responses that were posted before it.
                sends_are_overtaken: true,
                ..roce::endpoint::EndpointConfig::default()
            },
            drop_every: None,
            scatter: false,
        }
    }
}

/// What happened on a soft device. Counts only rise, but for those of what exists now.
#[derive(Clone, Debug, Default)]
pub struct SoftCounters {
    /// Packets received from the sockets.
    pub packets_received: u64,
    /// Packets dropped because their ICRC was wrong.
    pub icrc_errors: u64,
    /// Those of them that were for connection management: a host that was not answered.
    pub management_icrc_errors: u64,
    /// Packets dropped on purpose ([`SoftConfig::drop_every`]).
    pub dropped_on_purpose: u64,
    /// Packets that the kernel refused to send; they are repeated like lost ones.
    pub send_errors: u64,
    /// Messages given to the kernel; each holds one or more packets.
    pub messages_sent: u64,
    /// Queue pairs that exist now.
    pub queue_pairs: usize,
    /// Bytes that they take, buffers not included.
    pub queue_pair_bytes: usize,
    /// Packets that came to another part of the device than the one they were for, and were forwarded.
    pub forwarded: u64,
    /// What the RoCE endpoint counted.
    pub endpoint: roce::endpoint::Counters,
}
