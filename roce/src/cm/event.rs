//! What goes in and out of a [`Manager`](super::Manager) besides time.

use std::time::Duration;

use crate::wire::cm::{CmTimeout, PrivateDataTooLong, RejectReason};
use crate::wire::{
    Bth, Deth, GSI_QKEY, GSI_QPN, Opcode, Packet, Path, PathMtu, Psn, WireError, mad,
};

/// Bounds, retry budget and timers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Connections in any state but [time wait](Self::max_time_wait). A request beyond that is
    /// rejected with "no resources".
    pub max_connections: usize,
    /// Requests of peers that the endpoint has not answered. One more is rejected with "no
    /// resources".
    pub max_pending: usize,
    /// Connections that ended and are remembered for [`time_wait`](Self::time_wait), so that late
    /// duplicates of their messages do no harm. The oldest is forgotten first.
    pub max_time_wait: usize,
    /// Services that can be listened on.
    pub max_listeners: usize,
    /// Datagrams that wait to be sent. One more is dropped: repetition brings it again.
    pub max_transmits: usize,
    /// How long a message waits for its answer before it is repeated.
    pub response_timeout: Duration,
    /// How often a message is repeated (0..=15) before the connection is given up.
    pub retries: u8,
    /// How long a request may wait for the endpoint's answer before it is rejected.
    pub pending_timeout: Duration,
    /// How long the peer may extend a wait with one MRA at most.
    pub service_timeout_max: Duration,
    /// How long an ended connection is remembered.
    pub time_wait: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            max_connections: 4096,
            max_pending: 128,
            max_time_wait: 1024,
            max_listeners: 1024,
            max_transmits: 4096,
            response_timeout: Duration::from_secs(1),
            retries: 7,
            pending_timeout: Duration::from_secs(60),
            service_timeout_max: Duration::from_secs(60),
            time_wait: Duration::from_secs(10),
        }
    }
}

/// A connection of this manager. Never used for another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnId(pub(super) u64);

/// What this side contributes to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Local {
    /// This side's queue pair, 24 bits.
    pub qpn: u32,
    /// The sequence number with which the PEER must start sending.
    pub starting_psn: Psn,
    /// READs that this side can serve at once.
    pub responder_resources: u8,
    /// READs that this side wants to have in flight at most.
    pub initiator_depth: u8,
    /// How long the peer shall wait for an acknowledgement.
    pub ack_timeout: CmTimeout,
    /// How often the peer shall repeat a packet (0..=7).
    pub retry_count: u8,
    /// How often the peer shall try again when told "receiver not ready" (0..=7, 7: without end).
    pub rnr_retry_count: u8,
}

/// What the peer contributes to a connection; the READ limits are already the smaller of both
/// sides' offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The peer's queue pair.
    pub qpn: u32,
    /// The sequence number with which THIS side must start sending.
    pub starting_psn: Psn,
    /// READs of this side that the peer serves at once: on the passive side what the peer offers,
    /// on the active side the smaller of that and what was asked for.
    pub responder_resources: u8,
    /// READs that the peer will have in flight towards this side.
    pub initiator_depth: u8,
    /// How long the peer wants this side to wait for an acknowledgement (request), or how long it
    /// takes to acknowledge (reply).
    pub ack_timeout: CmTimeout,
    /// How often the peer wants packets to be repeated (7 in a reply, which does not say).
    pub retry_count: u8,
    /// How often the peer wants this side to try again after "receiver not ready" (7: without end).
    pub rnr_retry_count: u8,
}

/// An active connection to be set up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connect {
    /// Between which addresses.
    pub path: Path,
    /// What to connect to, see [`tcp_service_id`](crate::wire::cm::tcp_service_id).
    pub service_id: u64,
    /// This side's values.
    pub local: Local,
    /// The path MTU that both sides will use.
    pub mtu: PathMtu,
    /// At most 56 bytes for the application at the other end.
    pub private_data: Vec<u8>,
}

/// The acceptance of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accept {
    /// This side's values. `responder_resources` and `initiator_depth` are lowered to what the peer
    /// asked for and offered; the acknowledgement timeout is sent as the acknowledgement delay.
    pub local: Local,
    /// At most 196 bytes for the application at the other end.
    pub private_data: Vec<u8>,
}

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DisconnectReason {
    /// This side asked for it.
    Local,
    /// The peer asked for it.
    Remote,
    /// The peer did not answer.
    Timeout,
    /// The peer began a new connection from the same queue pair: it restarted.
    Stale,
    /// The peer rejected the reply, withdrew its request, or does not know the connection any more.
    Rejected(RejectReason),
}

/// What a manager reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Passive side: a peer wants to connect. Call `accept` or `reject`.
    ConnectRequest {
        /// The connection.
        conn: ConnId,
        /// Between which addresses.
        path: Path,
        /// The service asked for; somebody listens on it.
        service_id: u64,
        /// The path MTU that the peer chose.
        mtu: PathMtu,
        /// The peer's values.
        peer: Peer,
        /// The 56 bytes of private data after the RDMA IP CM header.
        private_data: Vec<u8>,
    },
    /// Active side: the peer accepted. Call `establish` (or `reject`).
    ReplyReceived {
        /// The connection.
        conn: ConnId,
        /// The peer's values.
        peer: Peer,
        /// The 196 bytes of private data.
        private_data: Vec<u8>,
    },
    /// Passive side: the RTU, or data in its stead, was received.
    Established {
        /// The connection.
        conn: ConnId,
    },
    /// Active side: the peer refused. The connection is gone.
    Rejected {
        /// The connection.
        conn: ConnId,
        /// Why.
        reason: RejectReason,
        /// The 148 bytes of private data.
        private_data: Vec<u8>,
    },
    /// A connection request came from this connection's peer, for the same queue pair: the peer restarted, or the
    /// request is forged. Find out whether the peer is there.
    Contested {
        /// The connection.
        conn: ConnId,
    },
    /// The connection ended, or was never established. It is gone.
    Disconnected {
        /// The connection.
        conn: ConnId,
        /// Why.
        reason: DisconnectReason,
    },
}

impl Event {
    /// Whose event it is.
    pub fn conn(&self) -> ConnId {
        match self {
            Self::ConnectRequest { conn, .. }
            | Self::ReplyReceived { conn, .. }
            | Self::Established { conn }
            | Self::Rejected { conn, .. }
            | Self::Contested { conn }
            | Self::Disconnected { conn, .. } => *conn,
        }
    }
}

/// A datagram to be sent on the general services queue pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Between which addresses.
    pub path: Path,
    /// The peer's queue pair: 1, unless it sent from another.
    pub dest_qpn: u32,
    /// The datagram.
    pub mad: [u8; mad::LEN],
}

impl Transmit {
    /// The packet that carries this datagram. `psn` is any counter: nobody checks it.
    pub fn packet(&self, psn: Psn) -> Packet<'_> {
        let bth = Bth::new(Opcode::UdSendOnly, self.dest_qpn, psn);
        let mut packet = Packet::new(bth, &self.mad);
        packet.deth = Some(Deth {
            qkey: GSI_QKEY,
            src_qpn: GSI_QPN,
        });
        packet
    }
}

/// Why a call was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CmError {
    /// The connection ended, or never was.
    #[error("the connection does not exist any more; connect again")]
    NoSuchConnection,
    /// The connection is in a state that has no use for the call.
    #[error("the connection is in another state; the peer may have gone on meanwhile")]
    WrongState,
    /// A bound of the configuration is reached.
    #[error("{what} is reached ({limit}); close others, or raise the limit")]
    Limit {
        /// Which.
        what: &'static str,
        /// The bound.
        limit: usize,
    },
    /// Somebody already listens on the service.
    #[error("service {0:#x} is listened on already; use another port")]
    ServiceInUse(u64),
    /// Too much private data.
    #[error(transparent)]
    PrivateData(#[from] PrivateDataTooLong),
    /// The path's addresses are of different families.
    #[error("the local and the remote address are of different families; use the same for both")]
    MixedFamilies,
}

/// Why a datagram was dropped without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Dropped {
    /// It did not parse.
    #[error(transparent)]
    Malformed(#[from] WireError),
    /// It is not a datagram for the general services queue pair, or has another Q_Key.
    #[error("the datagram is not addressed to the general services queue pair with its key")]
    NotGsi,
    /// It fits no connection of its sender.
    #[error("the message fits no connection with this peer")]
    Unknown,
    /// The connection has no use for it in its state: a late duplicate.
    #[error("the connection has no use for the message in its state")]
    Unexpected,
}
