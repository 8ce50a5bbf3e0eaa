//! NVMe and NVMe-oF as bytes: wire formats and typed commands, and nothing else.
//!
//! Bytes come in, a typed value or an NVMe status comes out; no sockets, no clock, no state. What a
//! command *means* (does the range lie in the namespace, may this host do it) is the target's to say;
//! what is *well formed* is said here. The parsers take any bytes without panicking, and reserved
//! bits that the specification tells a receiver to ignore are ignored.
//!
//! Authentication and the keys of TLS ([`auth`]) are computed by OpenSSL, from what the caller gives.
//!
//! Numbers are from NVM Express Base 2.0, NVMe over Fabrics 1.1, the NVM Command Set 1.0 and the
//! RDMA and TCP transports 1.0, the Boot Specification 1.0; where Linux decides, its file is named.

#![forbid(unsafe_code)]

pub mod admin;
pub mod ana;
pub mod auth;
mod byte_enum;
pub mod command;
pub mod completion;
pub mod fabrics;
pub mod features;
pub mod identify;
pub mod io;
pub mod lba_status;
pub mod log;
pub mod nbft;
pub mod node_table;
pub mod nqn;
pub mod properties;
pub mod rdma_cm;
pub mod reservation;
pub mod sgl;
pub mod status;
pub mod tcp;

pub use command::Sqe;
pub use completion::Cqe;
pub use nqn::Nqn;
pub use sgl::SglDescriptor;
pub use status::Status;
