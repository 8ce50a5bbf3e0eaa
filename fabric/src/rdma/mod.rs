//! The interface of an RDMA device, shaped like verbs and the RDMA connection manager.
//!
//! NVMe queue pairs are written against these traits alone. A provider implements them:
//! [`crate::soft`] does over UDP sockets, [`crate::verbs`] over libibverbs. Memory is
//! owned by a work request until its completion, receives are posted before a connection can carry
//! anything, and completions are pushed from the device's loop to the queue pair's handler.
//!
//! What every provider guarantees:
//!
//! - Work requests of a queue pair are executed, and their completions reported, in the order in
//!   which they were posted (receives among themselves likewise); but a READ or WRITE may go before
//!   SENDs that were posted before it.
//! - A handler is never called from inside a call into the device: it may post, disconnect, register
//!   at will, and callers may hold their own borrows while they post.
//! - [`QueuePairHandler::closed`] is called exactly once, last, after every posted piece of memory
//!   was handed back in a completion; then the device forgets the handler.

pub(crate) mod host;
pub(crate) mod target;

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::task::{Context, Poll};

use crate::budget::Budget;
use crate::memory::FabricMemory;
use crate::tcp::tls::TlsFailure;

/// What remote peers may do with a registered region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoteRights {
    /// Read it.
    Read,
    /// Write it.
    Write,
}

/// How a peer names a registered region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionKey {
    /// The remote key.
    pub rkey: u32,
    /// The address of the region's first byte.
    pub address: u64,
}

/// A work request of the send queue.
#[derive(Debug)]
pub enum Work {
    /// Send the first `len` bytes of `data` into the peer's next receive.
    Send {
        /// The bytes.
        data: FabricMemory,
        /// How many of them, counted from the start.
        len: usize,
        /// The peer's region whose remote rights the message revokes.
        invalidate: Option<u32>,
    },
    /// Read `len` bytes of the peer's memory into `into`, from `offset` on.
    Read {
        /// Where the bytes go.
        into: FabricMemory,
        /// Where in `into` the first byte goes.
        offset: usize,
        /// How many bytes.
        len: usize,
        /// The peer's address.
        remote: RegionKey,
    },
    /// Write the first `len` bytes of `from` into the peer's memory.
    Write {
        /// Where the bytes come from.
        from: FabricMemory,
        /// How many bytes.
        len: usize,
        /// The peer's address.
        remote: RegionKey,
    },
}

impl Work {
    /// How many bytes it moves.
    pub fn bytes(&self) -> usize {
        match self {
            Work::Send { len, .. } | Work::Read { len, .. } | Work::Write { len, .. } => *len,
        }
    }

    /// The memory of a work request that could not be posted.
    pub fn into_memory(self) -> FabricMemory {
        match self {
            Work::Send { data, .. } => data,
            Work::Read { into, .. } => into,
            Work::Write { from, .. } => from,
        }
    }
}

/// What kind of work request completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkKind {
    /// A SEND, with or without invalidation.
    Send,
    /// A receive.
    Receive,
    /// An RDMA READ.
    Read,
    /// An RDMA WRITE.
    Write,
}

/// How a work request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorkStatus {
    /// It was done.
    #[error("done")]
    Success,
    /// The connection ended before it was done.
    #[error("the connection ended before the request was done")]
    Flushed,
    /// The peer refused access to its memory.
    #[error("the peer refused access to its memory")]
    RemoteAccess,
    /// The peer did not answer.
    #[error("the peer does not answer")]
    NoAnswer,
    /// The peer had no receive posted for too long.
    #[error("the peer posts no receives")]
    ReceiverNotReady,
    /// The message does not fit the receive, or either side broke the protocol.
    #[error("the peer broke the RDMA protocol, or a message did not fit its receive")]
    Protocol,
}

/// A finished work request.
#[derive(Debug)]
pub struct Completion {
    /// As given when it was posted.
    pub id: u64,
    /// What it was.
    pub kind: WorkKind,
    /// How it ended.
    pub status: WorkStatus,
    /// Bytes transferred; for a receive, the length of the message.
    pub len: usize,
    /// For a receive: the local region whose remote rights the message revoked.
    pub invalidated: Option<u32>,
    /// The memory of the work request.
    pub memory: FabricMemory,
}

/// Why a work request could not be posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// The connection is gone, or not there yet.
    #[error("the queue pair is not connected; connect again")]
    NotConnected,
    /// Too many work requests are in progress.
    #[error("the queue pair's work queue is full; wait for a completion")]
    Full,
    /// The peer does not take READs.
    #[error("the peer does not take RDMA READs; it must offer responder resources")]
    ReadsNotAllowed,
    /// The range does not lie in the memory.
    #[error("the range does not lie in the memory given; post less")]
    BadRange,
}

/// Why a connection ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// This side closed it.
    Local,
    /// The peer closed it.
    Peer,
    /// The peer refused the connection.
    Refused {
        /// The connection manager's reason code; 28 means that the peer's application refused.
        reason: u16,
        /// What the peer's application said.
        private_data: Vec<u8>,
    },
    /// The peer did not answer the connection request.
    ConnectTimeout,
    /// A work request failed.
    Failed(WorkStatus),
    /// The device, or its connection manager, cannot carry the connection.
    Device(String),
    /// The peer does not know this connection any more: it restarted.
    Stale,
    /// The peer broke the protocol; the text says how.
    Violation(&'static str),
    /// The network connection failed.
    Network(std::io::ErrorKind),
    /// The peer ended the connection because of an error it saw; the text says which.
    Terminated(&'static str),
    /// Nothing moved for too long while the peer owed something.
    Stalled,
    /// The host had not proved who it is, and its place was given to another one.
    Displaced,
    /// TLS failed.
    Tls(TlsFailure),
}

impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CloseReason::Local => f.write_str("closed by this side"),
            CloseReason::Peer => f.write_str("closed by the peer"),
            CloseReason::Refused { reason, .. } => {
                write!(
                    f,
                    "refused by the peer (connection manager reason {reason})"
                )
            }
            CloseReason::ConnectTimeout => f.write_str("the peer does not answer"),
            CloseReason::Failed(status) => write!(f, "failed: {status}"),
            CloseReason::Device(what) => write!(f, "the RDMA device failed: {what}"),
            CloseReason::Stale => f.write_str("the peer does not know the connection any more"),
            CloseReason::Violation(what) => write!(f, "the peer broke the protocol: {what}"),
            CloseReason::Network(kind) => write!(f, "the network connection failed: {kind}"),
            CloseReason::Terminated(what) => write!(f, "the peer complains of {what}"),
            CloseReason::Stalled => f.write_str("the peer does not go on"),
            CloseReason::Displaced => {
                f.write_str("too many hosts had not proved who they are, and this was one of them")
            }
            CloseReason::Tls(failure) => failure.fmt(f),
        }
    }
}

/// Why a device could not be opened, with the remedy.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// Another Onefold process serves this address.
    #[error(
        "another onefold process already uses RoCE (UDP port {port}) on {address}; stop it, or use another address"
    )]
    HeldByOnefold {
        /// The address.
        address: IpAddr,
        /// The UDP port.
        port: u16,
    },
    /// Something that is not Onefold holds the port.
    #[error(
        "UDP port {port} on {address} is in use by something else, most likely the kernel's rdma_rxe; remove it (rdma link delete, modprobe -r rdma_rxe), or use another network namespace"
    )]
    PortInUse {
        /// The address.
        address: IpAddr,
        /// The UDP port.
        port: u16,
    },
    /// This machine does not have the address.
    #[error("this machine has no address {address}; use one that `ip address` shows")]
    NoSuchAddress {
        /// The address.
        address: IpAddr,
    },
    /// There is no second IPv6 loopback address to connect from.
    #[error(
        "{address} is an IPv6 address of this machine, and one machine cannot be both ends of soft RoCE over it; connect to an IPv4 address (127.0.0.1) instead"
    )]
    LocalIpv6 {
        /// The address.
        address: IpAddr,
    },
    /// There is no way to the peer.
    #[error("there is no route to {address}: {source}; check the address and `ip route`")]
    NoRoute {
        /// The address.
        address: IpAddr,
        /// What the system said.
        source: std::io::Error,
    },
    /// An address that means all addresses of a machine is none to connect to.
    #[error(
        "{address} means every address of a machine; connect to one that the target listens on"
    )]
    Unspecified {
        /// The address.
        address: IpAddr,
    },
    /// RDMA verbs cannot be used.
    #[error(transparent)]
    Verbs(#[from] crate::verbs::VerbsError),
    /// A system call failed.
    #[error("cannot {action}: {source}")]
    Io {
        /// What was being done.
        action: String,
        /// What the system said.
        source: std::io::Error,
    },
}

/// Why a device could not listen.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ListenError {
    /// This device already listens there.
    #[error("port {0} already has a listener on this device; use another port")]
    InUse(u16),
    /// The device cannot listen.
    #[error("cannot listen on port {port}: {reason}")]
    Refused {
        /// The port.
        port: u16,
        /// Why.
        reason: String,
    },
}

/// Why a connection could not be started or accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SetupError {
    /// The request is gone: the peer gave up or the device closed.
    #[error("the connection request is gone; the peer gave up")]
    Gone,
    /// The device's tables are full.
    #[error("the device has no room for another queue pair: {0}; close some connections")]
    NoResources(String),
    /// There is no way to the peer from this device.
    #[error("{peer} cannot be reached from this device: {reason}")]
    Unreachable {
        /// The peer.
        peer: SocketAddr,
        /// Why.
        reason: String,
    },
}

/// What a side brings to a connection.
#[derive(Debug)]
pub struct ConnectionParams {
    /// Data for the application at the other end.
    pub private_data: Vec<u8>,
    /// Receives to post before anything can arrive; their completions carry `id` 0.
    pub receives: Vec<FabricMemory>,
    /// Receives of that length that will be posted beside them later.
    pub receives_later: usize,
}

/// What becomes of a queue pair. Called by the device's loop only, never from inside a call.
pub trait QueuePairHandler {
    /// The connection stands. `private_data` is what the passive side said (empty on that side).
    /// On the passive side receives may complete before this.
    fn established(&self, private_data: &[u8]);
    /// A work request ended; its memory comes back.
    fn completed(&self, completion: Completion);
    /// The connection is over. Nothing is called after this.
    fn closed(&self, reason: CloseReason);
}

/// One side of a reliable connection. Dropping the last handle does not end the connection:
/// [`disconnect`](Self::disconnect) does.
pub trait QueuePair {
    /// Posts a receive.
    fn post_receive(&self, id: u64, memory: FabricMemory) -> Result<(), (PostError, FabricMemory)>;
    /// Posts a work request to the send queue.
    fn post_send(&self, id: u64, work: Work) -> Result<(), (PostError, Work)>;
    /// Ends the connection. Work in progress is handed back as flushed, then the handler learns
    /// that the connection closed.
    fn disconnect(&self);
    /// The same, without waiting for a peer that has not confirmed the connection: its address may be forged.
    fn abandon(&self) {
        self.disconnect();
    }
    /// The peer; the port is the service port on the active side and 0 on the passive one.
    fn peer(&self) -> SocketAddr;
    /// This side's address.
    fn local(&self) -> SocketAddr;
    /// How many READs may be in flight.
    fn reads_max(&self) -> usize;
    /// Lets the peer of this queue pair access memory. The memory comes back with
    /// [`deregister`](Self::deregister), or at once if there is no room.
    fn register(
        &self,
        memory: FabricMemory,
        rights: RemoteRights,
    ) -> Result<RegionKey, FabricMemory>;
    /// Whether the peer may invalidate regions with its messages; a peer that does it elsewhere breaks
    /// the connection.
    fn regions_can_be_invalidated(&self) -> bool {
        true
    }
    /// The bytes of data in a packet, if packets as long as those before them are much cheaper to send
    /// than others.
    fn packet_bytes(&self) -> Option<usize> {
        None
    }
    /// Ends all access to a region and hands its memory back.
    fn deregister(&self, rkey: u32) -> Option<FabricMemory>;
}

/// A connection that a peer asks for. Dropping it unanswered refuses it.
pub trait PendingConnection {
    /// Who asks.
    fn peer(&self) -> SocketAddr;
    /// Which local address and port it asked.
    fn local(&self) -> SocketAddr;
    /// What the peer's application said.
    fn private_data(&self) -> &[u8];
    /// Accepts.
    fn accept(
        self: Box<Self>,
        params: ConnectionParams,
        handler: Rc<dyn QueuePairHandler>,
    ) -> Result<Rc<dyn QueuePair>, SetupError>;
    /// Refuses; the peer gets `private_data` and the connection manager's reason 28 (the application
    /// refused).
    fn reject(self: Box<Self>, private_data: &[u8]);
}

/// Where peers' connection requests arrive. Dropping it closes the port; connections go on.
pub trait RdmaListener {
    /// The next request, or None once the device has closed.
    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<Option<Box<dyn PendingConnection>>>;
}

/// A device: one port of the fabric, on one reactor.
pub trait RdmaDevice {
    /// Listens on a service port of the RDMA CM's TCP port space. At most `backlog` requests wait
    /// for an answer; more are refused. With an address only requests to that address are taken.
    fn listen(
        &self,
        address: Option<IpAddr>,
        port: u16,
        backlog: usize,
    ) -> Result<Box<dyn RdmaListener>, ListenError>;
    /// Starts a connection. The handler learns how it goes.
    fn connect(
        &self,
        peer: SocketAddr,
        params: ConnectionParams,
        handler: Rc<dyn QueuePairHandler>,
    ) -> Result<Rc<dyn QueuePair>, SetupError>;
    /// How many bytes of READ responses may be on their way to this device, over all queue pairs,
    /// and the longest single READ (bytes) worth posting. Whoever posts READs takes the bytes from
    /// this budget first.
    fn read_budget(&self) -> (Budget, usize);
}
