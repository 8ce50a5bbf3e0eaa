//! RoCEv2 as pure state machines: packets and their ICRC, reliable-connection queue pairs, memory
//! regions and connection management.
//!
//! Nothing here opens a socket, reads a clock or draws entropy: bytes, time and seeds come in as
//! arguments, so that a whole session can be replayed from a seed.

#![forbid(unsafe_code)]

pub mod cm;
pub mod endpoint;
pub mod memory;
mod qp;
pub mod wire;

pub use endpoint::{
    AcceptParams, ConnectParams, Counters, DisconnectReason, Endpoint, EndpointConfig,
    EndpointError, Event, PostError, QpId, RequestId, SendWork, Transmit, WcKind, WcStatus,
};
pub use memory::{Access, Memory, RegionKey, RegisterError};
pub use wire::cm::RejectReason;
pub use wire::{Path, PathMtu, icrc};
