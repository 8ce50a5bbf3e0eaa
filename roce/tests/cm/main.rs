//! Connection management between two managers on virtual time, and against peers that misbehave.

mod bad_input;
mod chaos;
mod disconnecting;
mod establishing;
mod limits;
mod linux;
mod pair;
