//! NVMe/TCP queues over real sockets on loopback: hosts that behave, and hosts that do not.

#[path = "../common/mod.rs"]
mod common;

mod bad_input;
mod harness;
mod limits;
mod lying_targets;
mod queues;
mod tls;
mod tls_hostile;
