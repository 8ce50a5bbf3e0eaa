//! Transports of NVMe over Fabrics.
//!
//! Two layers, each of which can be replaced without a change to the other:
//!
//! - [`rdma`] is an interface shaped like verbs (device, listener, pending connection, queue pair,
//!   memory, completion). [`soft`] provides it over plain UDP sockets with the RoCEv2 engine of the
//!   `roce` crate, [`verbs`] over RDMA devices of the kernel; a [`Device`] has what fits its addresses.
//! - [`TargetQueue`] and [`HostQueue`] are NVMe/RDMA queue pairs on top of that interface, and
//!   [`Listener`] is where a target receives its hosts' connections.
//!
//! What the crate guarantees:
//!
//! - Everything is bounded: commands by the queue's depth, bytes of READ responses in flight by the
//!   device's budget, pending connections by the listener's backlog, datagrams by the batch.
//! - A peer that breaks the protocol loses its own queue and nothing else.
//! - Every piece of memory given to a queue comes back to its pool, however the queue ends.
//! - Data is copied once, between the packet and the buffer (in-capsule data: once more).
//! - All of it lives on one reactor thread: the types are `Rc`s inside and are not `Send`.
//!
//! `unsafe` is confined to `soft/socket.rs` and `verbs/raw/`.

#![deny(unsafe_code)]

mod address;
mod budget;
mod device;
mod host_queue;
mod listener;
mod memory;
pub mod rdma;
pub mod soft;
mod target_queue;
pub mod verbs;
mod waiters;

pub use address::{AddressError, Scheme, TransportAddress};
pub use budget::{Budget, Permit};
pub use device::{Device, DeviceConfig, Provider};
pub use host_queue::{HostData, HostError, HostQueue, HostQueueParams, QueueConnectError};
pub use listener::{Incoming, Listener, ListenerConfig};
pub use memory::FabricMemory;
pub use rdma::{CloseReason, DeviceError, ListenError};
pub use soft::{Addresses, SoftConfig, SoftCounters};
pub use target_queue::{AcceptError, Capsule, QueueInfo, QueueLimits, TargetQueue, TransferError};
pub use verbs::{VerbsConfig, VerbsCounters, VerbsError};

/// The service port of NVMe/RDMA and NVMe/TCP that IANA assigned.
pub const NVME_PORT: u16 = 4420;
