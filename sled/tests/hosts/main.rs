//! What hosts may rely on, over TCP, with the sled and its hosts on one reactor: by the project's own host library, and by
//! commands made by hand.

#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

mod access;
mod association;
mod data;
mod harness;
mod lies;
mod node_table;
mod reservations;
mod spy;
