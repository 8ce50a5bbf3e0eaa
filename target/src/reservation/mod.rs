//! Reservations: which hosts may do what with a namespace that several of them have.

mod state;
#[cfg(test)]
mod tests;

pub use state::{Access, Effects, HostId, REGISTRANTS_MAX, Request, Reservations};
