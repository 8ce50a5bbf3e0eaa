//! vhost-user-blk: a volume is the disk of a virtual machine, whose memory it reads and writes.
//!
//! The virtual machine monitor (the *front-end*: QEMU, cloud-hypervisor) connects to a socket, shares the guest's memory
//! and the rings of its queues in it, and two event descriptors for each queue. Requests then pass through memory alone.
//!
//! | file | what is in it |
//! |---|---|
//! | `server` | the socket, and the thread that talks with the front-end |
//! | `session` | what the front-end says, and what the device becomes by it |
//! | `queue` | a queue as a task on a reactor: takes requests, answers them, tells the guest |
//! | `request` | what a guest asks for, and how it is done |
//! | `ring`, `chain` | the split virtqueue, and the descriptors of a request |
//! | `inflight` | requests under way, in memory that outlives this program |
//! | `config` | features, and the configuration space |
//! | `message`, `connection` | the protocol's messages, and how they come with descriptors |
//! | `memory`, `mapping` | the guest's memory, and what happens when it goes away while it is used |
//!
//! Guarantees:
//! - Whatever is in the guest's memory, and whatever the front-end says, harms nobody but that guest: indices, addresses,
//!   lengths and loops are checked where they are used, and all work is bounded by the size of a queue.
//! - Data are copied from the guest before the engine sees them. The guest can change its memory at any time: between
//!   fingerprint and write it could otherwise make a block that others get by deduplication.
//! - Memory that goes away while it is used (its file is cut off) ends that front-end's connection alone.
//! - A queue polls for a bounded while after its last request; an idle guest costs nothing.
//!
//! The front-end itself is trusted as far as the mode of the socket says.
//!
//! The words are those of virtio 1.2 (sections 2.7 and 5.2) and of QEMU's docs/interop/vhost-user.rst.

#![deny(unsafe_code)]

mod chain;
mod config;
mod connection;
mod inflight;
#[allow(unsafe_code)]
mod mapping;
mod memory;
mod message;
mod queue;
mod request;
mod ring;
mod server;
mod session;

pub use server::{Parts, Server};
