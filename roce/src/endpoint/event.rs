//! What goes in and out of an [`Endpoint`](super::Endpoint) besides packets: identifiers, work
//! requests, completions, events and counters.

use crate::cm::ConnId;
use crate::wire::cm::RejectReason;
use crate::wire::{Path, PathMtu};

/// A queue pair of this endpoint: its 24-bit queue pair number. Numbers are random and are not
/// given to another queue pair while this one exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QpId(pub(crate) u32);

impl QpId {
    /// The queue pair number as it appears in packets.
    pub fn number(self) -> u32 {
        self.0
    }
}

/// A connection request of a peer that waits for `accept` or `reject`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub(crate) ConnId);

/// What the active side asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectParams {
    /// The service to connect to. The RDMA CM's TCP port space is `0x0106_0000 | port`.
    pub service_id: u64,
    /// At most 56 bytes for the application at the other end.
    pub private_data: Vec<u8>,
    /// The path MTU that both sides will use; the network must carry it.
    pub mtu: PathMtu,
    /// READs that the peer may have in flight towards this side; 0 means the configured maximum.
    pub responder_resources: u8,
    /// READs that this side may have in flight towards the peer; 0 means the configured maximum.
    pub initiator_depth: u8,
}

impl ConnectParams {
    /// Parameters for a service, with the endpoint's own READ limits.
    pub fn new(service_id: u64, private_data: Vec<u8>, mtu: PathMtu) -> Self {
        Self {
            service_id,
            private_data,
            mtu,
            responder_resources: 0,
            initiator_depth: 0,
        }
    }
}

/// What the passive side answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AcceptParams {
    /// At most 196 bytes for the application at the other end.
    pub private_data: Vec<u8>,
}

/// A work request for the send queue. Work requests of a queue pair are executed and completed in
/// the order in which they were posted, but for what
/// [`sends_are_overtaken`](super::EndpointConfig::sends_are_overtaken) allows.
#[derive(Debug)]
pub enum SendWork<M> {
    /// Send the first `len` bytes of `data` into the peer's next receive.
    Send {
        /// The bytes.
        data: M,
        /// How many of them, counted from the start.
        len: usize,
        /// Revokes the remote rights of this region at the peer when the message arrives.
        invalidate: Option<u32>,
    },
    /// Read remote memory.
    Read {
        /// Where the bytes go.
        into: M,
        /// Where in `into` the first byte goes.
        offset: usize,
        /// How many bytes.
        len: usize,
        /// The remote address.
        remote_va: u64,
        /// The remote key.
        rkey: u32,
    },
    /// Write remote memory.
    Write {
        /// Where the bytes come from.
        from: M,
        /// Where in `from` the first byte lies.
        offset: usize,
        /// How many bytes.
        len: usize,
        /// The remote address.
        remote_va: u64,
        /// The remote key.
        rkey: u32,
    },
}

impl<M> SendWork<M> {
    /// The memory of a work request that could not be posted.
    pub fn into_memory(self) -> M {
        match self {
            SendWork::Send { data, .. } => data,
            SendWork::Read { into, .. } => into,
            SendWork::Write { from, .. } => from,
        }
    }
}

/// Why a work request could not be posted. The caller has its memory back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// There is no such queue pair, or it was destroyed.
    #[error("the queue pair does not exist; it was destroyed or never created")]
    NoSuchQueuePair,
    /// The queue pair is not connected yet, or not any more.
    #[error("the queue pair is not connected; wait for Connected, or connect again")]
    NotConnected,
    /// The queue is full.
    #[error("the queue is full; wait for a completion before posting more")]
    QueueFull,
    /// The peer allows no READs on this connection.
    #[error("the peer allows no READs; it must accept connections with an initiator depth above 0")]
    ReadsNotAllowed,
    /// The range does not lie in the memory, or the message is longer than the endpoint allows.
    #[error("the range does not lie in the memory given, or the message is too long; post less")]
    BadRange,
}

/// What kind of work request completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WcKind {
    /// A SEND or SEND with invalidate.
    Send,
    /// A posted receive.
    Receive,
    /// An RDMA READ.
    Read,
    /// An RDMA WRITE.
    Write,
}

/// How a work request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WcStatus {
    /// It was done.
    Success,
    /// The connection ended before it was done; whether the peer saw it is unknown.
    Flushed,
    /// The message was longer than the receive it arrived for.
    LocalLength,
    /// The peer answered with something that breaks the protocol.
    BadResponse,
    /// The peer found the request invalid.
    RemoteInvalidRequest,
    /// The peer refused access to its memory.
    RemoteAccess,
    /// The peer failed to carry the request out.
    RemoteOperation,
    /// The peer did not answer, however often the request was repeated.
    RetryExceeded,
    /// The peer never posted a receive, however often the request was repeated.
    RnrRetryExceeded,
}

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DisconnectReason {
    /// This side called `disconnect`, and the peer agreed or fell silent.
    Local,
    /// The peer asked for it.
    Remote,
    /// The connection could not be set up: the peer did not answer.
    Timeout,
    /// A work request failed or the peer broke the protocol; the status says how.
    Error(WcStatus),
    /// The peer does not know this connection (it restarted).
    Stale,
    /// The peer took its request or its reply back.
    Rejected(RejectReason),
}

/// What the endpoint reports. The application takes these with `poll_event`.
#[derive(Debug)]
pub enum Event<M> {
    /// A peer wants to connect; answer with `accept` or `reject`.
    ConnectRequest {
        /// Names the request in the answer.
        request: RequestId,
        /// Between which addresses.
        path: Path,
        /// The service asked for.
        service_id: u64,
        /// The application's part of the private data (after the RDMA CM's own header).
        private_data: Vec<u8>,
        /// The path MTU that the peer chose.
        mtu: PathMtu,
    },
    /// Active side: the peer accepted; work can be posted.
    Connected {
        /// Which queue pair.
        qp: QpId,
        /// What the peer's application said with its acceptance.
        private_data: Vec<u8>,
    },
    /// Passive side: the peer is ready; what was posted to be sent goes out from here on.
    Established {
        /// Which queue pair.
        qp: QpId,
    },
    /// Active side: the peer refused. The queue pair is gone.
    Rejected {
        /// Which queue pair.
        qp: QpId,
        /// The reason of the connection manager.
        reason: RejectReason,
        /// What the peer's application said with its refusal.
        private_data: Vec<u8>,
    },
    /// The connection ended. All its completions were reported before this event; the queue pair
    /// still exists until `destroy`.
    Disconnected {
        /// Which queue pair.
        qp: QpId,
        /// Why.
        reason: DisconnectReason,
    },
    /// A work request ended; its memory comes back.
    Completion {
        /// Which queue pair.
        qp: QpId,
        /// As given when it was posted.
        wr_id: u64,
        /// What it was.
        kind: WcKind,
        /// How it ended.
        status: WcStatus,
        /// Bytes transferred; for a receive, the length of the message.
        len: usize,
        /// For a receive: the region whose remote rights the message revoked.
        invalidated: Option<u32>,
        /// The memory of the work request.
        memory: M,
    },
}

/// One packet to be sent. The sender takes `header` and `payload`, adds `pad` zero bytes and the ICRC, for
/// which it knows the IP identification.
#[derive(Clone, Copy, Debug)]
pub struct Transmit<'a> {
    /// Between which addresses.
    pub path: Path,
    /// Everything before the payload.
    pub header: &'a [u8],
    /// The payload, without padding.
    pub payload: &'a [u8],
    /// Zero bytes to append after the payload (0..=3).
    pub pad: u8,
}

/// What happened since the endpoint was made. Counts only rise.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets handed to the sink.
    pub packets_sent: u64,
    /// Packets given to `handle_packet`.
    pub packets_received: u64,
    /// Packets sent again, or READs asked for again.
    pub retransmits: u64,
    /// Acknowledgement timers that ran out.
    pub ack_timeouts: u64,
    /// Negative acknowledgements sent (receiver-not-ready not included).
    pub naks_sent: u64,
    /// Negative acknowledgements received (receiver-not-ready not included).
    pub naks_received: u64,
    /// Receiver-not-ready answers sent.
    pub rnr_sent: u64,
    /// Receiver-not-ready answers received.
    pub rnr_received: u64,
    /// Packets received with the network's mark of congestion.
    pub marks_received: u64,
    /// Congestion notifications sent: peers whose packets came marked were told.
    pub notifications_sent: u64,
    /// Congestion notifications received: the queue pair sends less for a while.
    pub notifications_received: u64,
    /// Request packets received again.
    pub duplicates: u64,
    /// Request packets received ahead of their turn, and dropped.
    pub out_of_sequence: u64,
    /// Packets dropped because they did not parse.
    pub malformed: u64,
    /// Packets dropped because their queue pair is unknown.
    pub unknown_qp: u64,
    /// Packets dropped because they came from another address than their queue pair's peer.
    pub wrong_address: u64,
    /// Packets dropped because the state of their queue pair has no use for them.
    pub unexpected: u64,
    /// Remote accesses refused: unknown key, outside of the region, or without the right.
    pub access_violations: u64,
    /// Queue pairs that failed.
    pub qp_errors: u64,
    /// Connections set up.
    pub connections: u64,
    /// Connection management packets dropped: malformed, or of no use for any connection.
    pub management_dropped: u64,
}
