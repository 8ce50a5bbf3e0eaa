//! NBD: a volume is a network block device, for backup tools, converters of images and hosts that speak nothing else.
//!
//! | file | what is in it |
//! |---|---|
//! | `server` | where clients come in |
//! | `session` | a connection: handshake, requests, replies, the end |
//! | `request` | what a client asks for, and how it is done |
//! | [`handshake`] | options and their answers, pure |
//! | [`wire`] | requests and replies as bytes, pure |
//! | `context` | what is allocated and what changed, as a client is told, pure |
//! | `socket`, `inbox`, `outbox` | bytes that come and go |
//!
//! It speaks fixed newstyle with structured replies and metadata contexts: `base:allocation`, and
//! `qemu:dirty-bitmap:NAME` for each snapshot of the volume, which says what changed since it was taken.
//!
//! Guarantees:
//! - Whatever a client sends harms nobody else: lengths and ranges are checked where they are used, and all that it can
//!   make this program keep has a bound ([`Bounds`]).
//! - Requests pass the same admission as those of hosts. Their order is the client's matter: they are done at the same time.
//! - An idle connection has no buffer, and a client that does not take its replies holds none for long.
//!
//! The words are those of doc/proto.md of the NBD project.

#![forbid(unsafe_code)]

mod context;
pub mod handshake;
mod inbox;
mod outbox;
mod request;
mod server;
mod session;
mod socket;
pub mod wire;

pub use server::{Bounds, Parts, Server};
