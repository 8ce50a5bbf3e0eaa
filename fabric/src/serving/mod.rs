//! What whoever serves a target's queue needs, whatever the commands do: workers that share its commands, what is in
//! flight and how others wait for that, the keep-alive timer of its association, and the proof of who its host is.

pub mod auth;
mod barriers;
mod in_flight;
pub mod keep_alive;
mod workers;

pub use barriers::Barriers;
pub use in_flight::{InFlight, Period};
pub use workers::{Call, Leadership, Worker, Workers};
