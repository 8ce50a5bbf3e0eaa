//! The interface of an RDMA device, shaped like verbs and the RDMA connection manager.
//!
//! NVMe/RDMA queues are written against these traits alone. Two providers implement them: `soft` over UDP sockets,
//! `verbs` over libibverbs. A work request owns its memory until its completion. Receives are posted before a
//! connection can carry anything. The device's loop tells completions to the queue pair's handler.
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

use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::task::{Context, Poll};

use crate::error::{CloseReason, ListenError, SetupError};
use crate::memory::{Budget, FabricMemory};

pub use crate::error::WorkStatus;

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
    /// Too many work requests are in progress, or too many memory regions shown.
    #[error("the queue pair has no room for more work or memory regions; wait for a completion")]
    Full,
    /// The peer does not take READs.
    #[error("the peer does not take RDMA READs; it must offer responder resources")]
    ReadsNotAllowed,
    /// The range does not lie in the memory.
    #[error("the range does not lie in the memory given; post less")]
    BadRange,
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
    /// [`deregister`](Self::deregister), or at once if there is no room or no connection.
    fn register(
        &self,
        memory: FabricMemory,
        rights: RemoteRights,
    ) -> Result<RegionKey, (PostError, FabricMemory)>;
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
