//! Transports of NVMe over Fabrics: queues between hosts and targets, over RDMA and over TCP.
//!
//! From above:
//!
//! - [`TargetQueue`] and [`HostQueue`] are what a target and a host see of a queue, whatever carries it. A target
//!   receives its hosts at a [`Listener`] (RDMA) or a [`TcpListener`]; a host connects through a [`Connector`].
//! - `rdma` carries queues over a [`Device`], [`tcp`] over sockets of the kernel.
//! - A [`Device`] is an RDMA device with a provider for each of its addresses: [`soft`] is RoCEv2 over plain UDP
//!   sockets by the `roce` crate, [`verbs`] the RDMA devices of the kernel. Both implement the interface in
//!   [`provider`], which is shaped like verbs.
//! - `queue` is what every queue has, whatever carries it; `memory` is the memory of its data, and the bounds on it;
//!   `error` says why something failed; `address`, [`admission`], `listening` and [`peer_log`] are about peers.
//!
//! Each uses those below it alone (`tests/tests/arrows/tables.rs` holds this).
//!
//! What the crate guarantees:
//!
//! - Everything is bounded: commands by the queue's depth, bytes of READ responses in flight by the device's budget,
//!   connections by their listener, what one system call moves by the batch.
//! - A peer that breaks the protocol loses its own queue and nothing else.
//! - Every piece of memory given to a queue comes back to its pool, however the queue ends.
//! - Data is copied once, between the packet or socket and the buffer (in-capsule data: once more).
//! - All of it lives on one reactor thread: the types are `Rc`s inside and are not `Send`.
//!
//! `unsafe` is confined to `soft/socket*`, `tcp/tls/raw.rs` and `verbs/raw/`.

#![deny(unsafe_code)]

mod address;
pub mod admission;
mod connector;
mod device;
pub mod discovery;
mod error;
mod host_queue;
mod listening;
mod memory;
pub mod peer_log;
pub mod provider;
mod queue;
mod rdma;
pub mod serving;
pub mod soft;
mod target_queue;
pub mod tcp;
pub mod verbs;
mod waiters;

pub use address::{
    AddressError, Addresses, NVME_PORT, ROCE_PORT, Scheme, Transport, TransportAddress,
};
pub use admission::KnownAddresses;
pub use connector::Connector;
pub use device::{Device, DeviceConfig, DevicePart, Provider};
pub use error::{CloseReason, DeviceError, ListenError, SetupError, TlsFailure, VerbsError};
pub use host_queue::HostQueue;
pub use memory::{Budget, FabricMemory, Permit};
pub use queue::{
    Capsule, Fetched, HostData, HostError, HostQueueParams, QueueConnectError, QueueInfo,
    QueueLimits, TransferError,
};
pub use rdma::listener::{Incoming, Listener, ListenerConfig, ListenerCounters};
pub use soft::{SoftConfig, SoftCounters};
pub use target_queue::TargetQueue;
pub use tcp::listener::TcpListener;
pub use tcp::shared_ports::SharedPorts;
pub use tcp::tls::{TLS_KEY_BYTES_MAX, TlsHostConfig, TlsKeys, TlsMode, TlsSession, TlsSuite};
pub use tcp::{LiveBounds, TcpCounters, TcpHostConfig, TcpListenerConfig};
pub use verbs::{VerbsConfig, VerbsCounters};
