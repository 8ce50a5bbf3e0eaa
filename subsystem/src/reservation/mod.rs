//! The reservations of volumes: which hosts may do what with a volume that several of them have.
//!
//! A reservation belongs to a volume: it holds on every path, in every subsystem that shows the volume.
//! Hosts are known by their identifiers. What a command does, and what a host may do, says the crate `reservations`; `registry`
//! keeps that of each volume, in the pool too if it is to persist; `notifications` is what hosts are told of others' doings; `fences`
//! knows whose commands may be under way although the host was preempted.

mod fences;
mod notifications;
mod registry;

pub(crate) use fences::Fence;
pub(crate) use notifications::Notifications;
pub(crate) use registry::{KEY_PREFIX, Registry, Shared};
