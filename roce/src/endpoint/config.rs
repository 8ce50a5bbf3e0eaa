//! The bounds and clocks of an [`Endpoint`](super::Endpoint).
//!
//! Guarantee: everything an endpoint keeps is bounded by these numbers; a peer cannot make it grow.

use std::time::Duration;

/// The largest window, in packets: half of the 24-bit sequence space would be the protocol's limit,
/// and this stays far below it.
pub(crate) const MAX_WINDOW: u32 = 1 << 16;

/// No wait for an acknowledgement is shorter than this: timers that ring for every packet help nobody.
const LEAST_TIMEOUT: Duration = Duration::from_micros(100);

/// Bounds, retry budget and timers of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointConfig {
    /// Queue pairs that may exist at once, connecting and closing ones included.
    pub max_qps: usize,
    /// Connection requests that may wait for the application's answer at once; more are dropped,
    /// and the peer's connection management repeats them.
    pub max_pending_connects: usize,
    /// Memory regions that may be registered at once.
    pub max_regions: usize,
    /// Send-side work requests (SEND, READ, WRITE) a queue pair holds at most.
    pub max_send_wr: usize,
    /// Receives a queue pair holds at most.
    pub max_recv_wr: usize,
    /// The longest message (SEND, READ or WRITE), in bytes, in either direction.
    pub max_message_bytes: usize,
    /// READs in flight per queue pair, as requester and as responder (1..=255); the connection uses
    /// the smaller of both sides' offers.
    pub max_reads_in_flight: u8,
    /// Sequence numbers a queue pair leaves unacknowledged at most. Linux rxe uses 128.
    pub max_unacked_packets: u32,
    /// While so many packets of READ responses are missing, a queue pair asks for no more of them: they come in
    /// bursts, as fast as the peer can send.
    pub max_read_packets: u32,
    /// How long to wait for an acknowledgement before the path was measured. From then on the wait
    /// follows the round trip, and doubles while nothing comes.
    pub ack_timeout: Duration,
    /// The shortest wait for an acknowledgement, however fast the path is. A first probe of one packet
    /// is sent after half of it.
    pub ack_timeout_min: Duration,
    /// The longest wait for an acknowledgement.
    pub ack_timeout_max: Duration,
    /// How long a peer may be silent before the queue pair fails: long enough for a virtual machine
    /// that is paused, or a reactor that is starved. It is asked at least five times meanwhile.
    pub give_up_after: Duration,
    /// How often one message is tried again when the peer says that it has no receive posted.
    pub rnr_retry_count: u32,
    /// The timer code that this side's receiver-not-ready answers carry (0..=31). Code 12 is
    /// 0.64 ms; code 0 would be 655 ms.
    pub rnr_timer: u8,
    /// How long a connection management message waits for its answer.
    pub cm_timeout: Duration,
    /// How often an unanswered connection management message is repeated (0..=15).
    pub cm_retries: u8,
    /// Bytes that one queue pair may send before the next one has its turn.
    pub transmit_quantum_bytes: usize,
    /// READs and WRITEs may be sent before SENDs that were posted earlier and have not left yet (never the
    /// other way round). Packets of one kind then follow each other, and runs of equal packets are cheap
    /// to send. For users whose SENDs do not ask the peer for something that a later WRITE answers, or
    /// for what a later READ brings.
    pub sends_are_overtaken: bool,
    /// At least so long between two congestion notifications of a queue pair. DCQCN's receivers use
    /// 50 us.
    pub notification_interval: Duration,
}

impl Default for EndpointConfig {
    fn default() -> Self {
        Self {
            max_qps: 1024,
            max_pending_connects: 1024,
            max_regions: 65_536,
            max_send_wr: 1024,
            max_recv_wr: 1024,
            max_message_bytes: 16 << 20,
            max_reads_in_flight: 16,
            max_unacked_packets: 128,
            max_read_packets: 64,
            ack_timeout: Duration::from_millis(10),
            ack_timeout_min: Duration::from_millis(4),
            ack_timeout_max: Duration::from_millis(500),
            give_up_after: Duration::from_secs(8),
            rnr_retry_count: 64,
            rnr_timer: 12,
            cm_timeout: Duration::from_millis(1000),
            cm_retries: 7,
            transmit_quantum_bytes: 64 << 10,
            sends_are_overtaken: false,
            notification_interval: Duration::from_micros(50),
        }
    }
}

impl EndpointConfig {
    /// The same configuration with every number brought into the range that the protocol and the
    /// implementation can serve.
    pub(crate) fn clamped(mut self) -> Self {
        self.max_reads_in_flight = self.max_reads_in_flight.max(1);
        self.max_unacked_packets = self.max_unacked_packets.clamp(1, MAX_WINDOW);
        self.max_read_packets = self.max_read_packets.max(1);
        self.max_message_bytes = self.max_message_bytes.clamp(1, 1 << 30);
        self.ack_timeout = self.ack_timeout.max(LEAST_TIMEOUT);
        self.ack_timeout_min = self.ack_timeout_min.clamp(LEAST_TIMEOUT, self.ack_timeout);
        self.ack_timeout_max = self.ack_timeout_max.max(self.ack_timeout);
        self.rnr_timer = self.rnr_timer.min(31);
        self.cm_retries = self.cm_retries.min(15);
        self.transmit_quantum_bytes = self.transmit_quantum_bytes.max(1);
        self
    }
}
