//! Transports of NVMe over Fabrics.
//!
//! Two transports under the same queues:
//!
//! - [`TargetQueue`] and [`HostQueue`] are what a target and a host see of a queue pair, whatever
//!   carries it. A target receives its hosts at a [`Listener`] (RDMA) or a [`TcpListener`]; a host
//!   connects through a [`Connector`].
//! - [`rdma`] is an interface shaped like verbs (device, listener, pending connection, queue pair,
//!   memory, completion), with the NVMe/RDMA queues on top of it. [`soft`] provides it over plain UDP
//!   sockets with the RoCEv2 engine of the `roce` crate, [`verbs`] over RDMA devices of the kernel; a
//!   [`Device`] has what fits its addresses.
//! - [`tcp`] carries the queues over sockets of the kernel.
//!
//! What the crate guarantees:
//!
//! - Everything is bounded: commands by the queue's depth, bytes of READ responses in flight by the
//!   device's budget, connections by their listener, what one system call moves by the batch.
//! - A peer that breaks the protocol loses its own queue and nothing else.
//! - Every piece of memory given to a queue comes back to its pool, however the queue ends.
//! - Data is copied once, between the packet or socket and the buffer (in-capsule data: once more).
//! - All of it lives on one reactor thread: the types are `Rc`s inside and are not `Send`.
//!
//! `unsafe` is confined to `soft/socket*`, `tcp/tls/raw.rs` and `verbs/raw/`.

#![deny(unsafe_code)]

mod address;
pub mod admission;
mod budget;
mod commands;
mod connector;
mod device;
mod host_queue;
mod intake;
mod lifecycle;
mod listener;
mod listening;
mod memory;
pub mod peer_log;
pub mod rdma;
mod share;
pub mod soft;
mod target_queue;
pub mod tcp;
pub mod verbs;
mod waiters;

pub use address::{AddressError, Scheme, Transport, TransportAddress};
pub use admission::KnownAddresses;
pub use budget::{Budget, Permit};
pub use connector::Connector;
pub use device::{Device, DeviceConfig, DevicePart, Provider};
pub use host_queue::{HostData, HostError, HostQueue, HostQueueParams, QueueConnectError};
pub use listener::{Incoming, Listener, ListenerConfig, ListenerCounters};
pub use memory::FabricMemory;
pub use rdma::{CloseReason, DeviceError, ListenError};
pub use soft::{Addresses, SoftConfig, SoftCounters};
pub use target_queue::{AcceptError, Capsule, QueueInfo, QueueLimits, TargetQueue, TransferError};
pub use tcp::listener::TcpListener;
pub use tcp::tls::{
    TLS_KEY_BYTES_MAX, TlsFailure, TlsHostConfig, TlsKeys, TlsMode, TlsSession, TlsSuite,
};
pub use tcp::{TcpCounters, TcpHostConfig, TcpListenerConfig};
pub use verbs::{VerbsConfig, VerbsCounters, VerbsError};

/// The service port of NVMe/RDMA and NVMe/TCP that IANA assigned.
pub const NVME_PORT: u16 = 4420;
