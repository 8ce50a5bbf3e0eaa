//! What whoever serves a target's queue needs, whatever the commands do: workers that share its commands, what is in
//! flight, and the keep-alive timer of its association.

mod in_flight;
pub mod keep_alive;
mod workers;

pub use in_flight::{InFlight, Period};
pub use workers::{Call, Leadership, Worker, Workers};
