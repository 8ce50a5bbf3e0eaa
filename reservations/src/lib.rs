//! Reservations: which hosts may do what with a namespace that several of them have (NVMe Base 2.0, section 8.19).
//! They are for every target alike, whatever its namespaces are.
//!
//! | file | what is in it |
//! |---|---|
//! | `state` | what a reservation is, and how a command changes it: without I/O |
//! | `stored` | the same as bytes, for a target that keeps it through a loss of power |
//! | `current` | what is in force now, for all queues of a target |
#![forbid(unsafe_code)]

mod current;
mod state;
mod stored;
#[cfg(test)]
mod tests;

pub use current::{Current, Watch};
pub use state::{Access, Effects, HostId, REGISTRANTS_MAX, Request, Reservations};
pub use stored::NotStored;
