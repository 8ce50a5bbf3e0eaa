//! Reservations: which hosts may do what with a namespace that several of them have (Base 2.0, section
//! 8.19).
//!
//! A reservation belongs to a volume: it holds on every path, in every subsystem that shows the volume.
//! Hosts are known by their identifiers. `state` decides what a command does; `registry` keeps the
//! states, in the pool too if they are to persist; `notifications` is what hosts are told of others' doings.

mod notifications;
mod registry;
mod state;
#[cfg(test)]
mod tests;

pub(crate) use notifications::Notifications;
pub(crate) use registry::{KEY_PREFIX, Registry, Watch};
pub use state::{Access, Effects, HostId, REGISTRANTS_MAX, Request, Reservations};
