//! Raw drives over NVMe-oF: each drive of a machine is a namespace, and nothing else is between it and its host. Pools of
//! other machines, or Linux hosts, do with them what they would do with drives of their own.
//!
//! From the outside to the inside, each room using only those below it:
//!
//! | room | what is in it |
//! |---|---|
//! | [`serve`] | the life of a queue: commands, the end |
//! | `connect` | how a queue joins a controller |
//! | `commands` | what each command does |
//! | `queue` | what the commands of a queue share; one command in flight |
//! | [`target`] | the drives, and the associations |
//! | `reserved` | who has reserved a drive, and where that is kept |
//! | `controller` | associations with hosts |
//! | [`access`] | who may use the drives, and by what they prove it |
//! | [`export`] | a drive as a namespace, and the table of the nodes that share it |
//! | [`limits`], [`identity`] | bounds on hosts, names that stay the same |
//!
//! What it guarantees:
//! - It writes nothing by itself to a drive: what that holds is its hosts' alone. All that it keeps is who has reserved a drive.
//! - What nodes tell each other by a drive's table is in memory only; a lease is measured by the sled's clock.
//! - A host whom another one shut out (Preempt and Abort) changes nothing any more from the answer on.
//! - A command succeeds only when the drive has done what it asks for. Flush and FUA are answered when the data survive a
//!   loss of power, as far as the drive keeps its promises.
//! - No command reaches blocks outside of its drive, and no host another host's association.
//! - An association is forgotten only when none of its commands can touch a drive any more. So a host that connects again
//!   meets nothing of those of its associations that have ended.
//! - Everything is bounded: controllers, queues, commands by the transport, data by the reactor's buffers.

#![forbid(unsafe_code)]

pub mod access;
mod commands;
mod connect;
mod controller;
pub mod export;
pub mod identity;
pub mod limits;
mod queue;
mod reserved;
pub mod serve;
pub mod target;

pub use access::{HostKeys, Hosts};
pub use export::{Export, NodeTable};
pub use limits::Limits;
pub use reserved::ReservationFolder;
pub use serve::serve_queue;
pub use target::{Sled, SledConfig};

/// The firmware revision that hosts see: the program's version.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");
