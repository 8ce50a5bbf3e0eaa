//! What a host meets: subsystems, controllers, namespaces, and the commands on them.
//!
//! From the outside to the inside, each room using only those below it:
//!
//! | room | what is in it |
//! |---|---|
//! | [`serve`] | the life of a queue: Connect, commands, the end |
//! | `commands` | what each command does |
//! | `connected_queue` | what the commands of a queue share, and who works on them |
//! | [`target`] | what there is now, how it changes, and who is told; volumes for exports ([`export`]) |
//! | [`controller`] | subsystems with their controllers, features, events |
//! | [`auth`] | who a host is |
//! | [`reservation`], [`catalog`] | which hosts may do what with a volume; how the target is configured |
//! | [`queue`], [`limits`], [`describe`], [`figures`], `counters`, [`latency`], [`throttle`], [`errors`] | what all of them use |
//!
//! Hosts reach it through [`queue::Queue`], whatever carries their commands; volumes are the engine's.
//! It knows no HTTP and no command line.
//!
//! The data plane has no panics, and every host's doings are bounded by its own association (I7).

#![forbid(unsafe_code)]

mod admission;
pub mod auth;
pub mod catalog;
mod commands;
mod connected_queue;
pub mod controller;
mod counters;
pub mod describe;
pub mod errors;
pub mod figures;
pub mod latency;
pub mod limits;
mod lock;
pub mod queue;
pub mod reservation;
pub mod serve;
pub mod target;
pub mod throttle;
pub mod trace;

pub use target::export;

/// The model number that hosts see.
pub(crate) const MODEL: &str = "Onefold";

/// The program's version, as `--version`, the API and Identify say it.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The subsystem that every pool has; new volumes are namespaces of it.
pub const DEFAULT_SUBSYSTEM_NQN: &str = "nqn.2026-11.dev.onefold:default";
