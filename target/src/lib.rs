//! Onefold: an NVMe-oF target that stores every block once. The daemon and the `onefold` program.
//!
//! What a host meets, from the outside to the inside:
//!
//! | module | what it is |
//! |---|---|
//! | [`association`] | the life of a queue and of an association |
//! | `connect`, `fabrics` | Fabrics commands: Connect, properties, Disconnect |
//! | [`controller`] | the state machine of CC and CSTS, keep alive, teardown |
//! | `admin`, `identify`, `features`, `log_page`, `error_log`, `events`, `effects` | admin commands |
//! | `namespace_management`, `write_protect` | namespaces that hosts make, attach and protect |
//! | `io` | I/O commands on volumes |
//! | `line`, `crew`, `in_flight` | a connected queue on its reactor, who works on its commands |
//! | `record` | what the pool remembers of its life, and what hosts are warned of |
//! | `discovery` | where hosts can connect to |
//! | `listen` | where hosts come in, on every reactor |
//! | [`target`], [`catalog`], [`subsystem`] | what there is and how it changes, and who is connected |
//! | [`queue`] | what is needed from a transport |
//!
//! What its owner meets: [`cli`], [`serve`], [`api`], [`client`], [`status`], [`pool`]. What goes wrong
//! is told to all of them from one table: [`errors`].
//!
//! The data plane has no panics, and every host's doings are bounded by its own association (I7).

#![forbid(unsafe_code)]

mod admin;
pub mod ana;
pub mod api;
pub mod association;
mod audit;
pub mod auth;
pub mod backup;
pub mod catalog;
pub mod cli;
pub mod client;
mod command;
mod connect;
pub mod controller;
mod crew;
mod descriptors;
mod discovery;
pub mod drive_api;
mod effects;
mod error_log;
pub mod errors;
mod events;
mod fabrics;
mod features;
mod health;
pub mod host_api;
mod identify;
mod identity;
mod in_flight;
mod io;
mod lba_status;
mod line;
mod listen;
pub mod listener_api;
mod listeners;
mod log_page;
mod machine;
mod mdns;
mod namespace_management;
pub mod pool;
pub mod queue;
mod record;
pub mod reservation;
mod retry;
mod room;
pub mod serve;
mod signals;
pub mod size;
pub mod socket;
pub mod status;
pub mod subsystem;
pub mod subsystem_api;
pub mod target;
pub mod trust;
mod volumes;
mod write_protect;

/// The model number that hosts see.
pub(crate) const MODEL: &str = "Onefold";

/// The program's version, as `--version`, the API and Identify say it.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The subsystem that every pool has; new volumes are namespaces of it.
pub const DEFAULT_SUBSYSTEM_NQN: &str = "nqn.2026-11.dev.onefold:default";
