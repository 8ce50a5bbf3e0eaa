//! The verbs provider: RDMA devices of the kernel (RNICs, and the software device rxe) through
//! libibverbs and librdmacm, which are loaded when they are first wanted.
//!
//! One device is one event channel of the RDMA connection manager and, per kernel device that
//! connections arrive on, one protection domain with completion queues on one channel. Tasks of one
//! reactor wait for those channels: nothing spins, and no thread is started. What queue pairs post in
//! one turn of the reactor is given to the device together at its end. A device can have several parts,
//! each on a reactor of its own with all of that: the first one deals out connections.
//!
//! - A reactor's buffer pool is registered once for each kernel device, without remote rights. The
//!   pages are pinned: a pool takes all of its memory at once. Other pools are registered when a
//!   buffer of theirs first comes along.
//! - A peer is shown a single buffer at a time, through a memory window of type 2 that the peer
//!   invalidates with its answer: that costs a work request and no system call. Where the peer did
//!   not, the window is freed (a system call) before the memory is handed back. Devices without such
//!   windows register each buffer for itself (a system call at both ends).
//! - Accepted queue pairs share a receive queue, where the device has such: memory for messages does not
//!   grow with the hosts. What each may send is still counted, as the interface wants it: a host that
//!   sends more than it was granted loses its connection. Small messages are received into a slab and
//!   copied out.
//! - READs in flight are bounded by what both devices take; work beyond the send queue waits in the
//!   queue pair, up to a bound.
//!
//! - A device that is removed takes its connections with it and nothing else; listeners on its address
//!   listen again when a device owns it. The kernel's rxe waits with its removal until every process
//!   has closed it, which librdmacm does only if another RDMA device is left.
//!
//! All `unsafe` is in `raw/`.

mod connection;
mod device;
mod events;
mod listener;
mod parts;
#[allow(
    unsafe_code,
    reason = "the C libraries are called here and nowhere else"
)]
mod raw;

use std::time::Duration;

pub(crate) use device::{VerbsDevice, VerbsPart, owner, source_towards};

/// Bounds of a verbs device; of each of its parts, where it has several.
#[derive(Clone, Debug)]
pub struct VerbsConfig {
    /// Entries of a completion queue; queue pairs that do not fit get another one.
    pub completion_entries: usize,
    /// Messages from hosts that may have arrived at a kernel device and wait to be looked at, over all
    /// accepted queue pairs: the entries of a shared receive queue. When all are taken, hosts are told to
    /// send again (a host on the kernel's rxe cannot: it repeats registrations that it did before, fails, and
    /// connects again). 0, and for devices without such queues: each queue pair has receives of its own.
    pub shared_receives: usize,
    /// Bytes of each; queue pairs with longer messages have receives of their own.
    pub shared_receive_bytes: usize,
    /// Bytes for messages that do not lie in a buffer pool (commands with their data in the capsule),
    /// taken when the first one comes.
    pub staging_bytes: usize,
    /// Work requests of a send queue per receive of its queue pair, and how many more wait in memory.
    /// A target answers each command with a WRITE and a SEND.
    pub sends_per_receive: usize,
    /// As many as these of the work requests that do not fit the send queue wait, for each one that
    /// fits.
    pub waiting_per_send: usize,
    /// Bytes of READs that may be in flight, over all queue pairs.
    pub read_bytes_in_flight: usize,
    /// Bytes of the longest single READ: longer transfers are cut into such pieces.
    pub read_bytes_max: usize,
    /// How long a peer may take to answer a connection request.
    pub connect_timeout: Duration,
    /// After what time without an acknowledgement a queue pair repeats itself, as the exponent of
    /// InfiniBand specification 9.7.6.1.3: 4.096 us * 2^this. The connection manager's own choice is
    /// seconds, which one lost packet then costs; after seven times this the connection ends.
    pub acknowledgement_timeout: u8,
    /// How long a queue pair may take to give its work back, and the peer to agree to a disconnect.
    pub close_timeout: Duration,
}

impl Default for VerbsConfig {
    fn default() -> Self {
        Self {
            completion_entries: 32_768,
            shared_receives: 1024,
            shared_receive_bytes: 64 + 4096,
            staging_bytes: 8 << 20,
            sends_per_receive: 4,
            waiting_per_send: 2,
            read_bytes_in_flight: 32 << 20,
            read_bytes_max: 256 << 10,
            connect_timeout: Duration::from_secs(10),
            acknowledgement_timeout: 17,
            close_timeout: Duration::from_secs(2),
        }
    }
}

/// What happened on a verbs device. Counts only rise.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerbsCounters {
    /// Completions taken from the device.
    pub completions: u64,
    /// Times that the completion channel woke the reactor.
    pub wakeups: u64,
    /// Calls that gave work requests to the device; each holds one or more.
    pub posts: u64,
    /// Connections that stood.
    pub connections: u64,
    /// Connection requests that were refused because too many waited or there was no room.
    pub refused: u64,
    /// Work requests that failed, without those that were flushed after a failure.
    pub failed_requests: u64,
    /// Events of the devices: ports that went down or came up, errors.
    pub device_events: u64,
}
