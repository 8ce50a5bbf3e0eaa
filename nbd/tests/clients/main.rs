//! Clients made by hand, against the real engine in memory: what they may do, and what they may not.

mod client;
mod harness;
mod hostile;
mod limits;
mod maps;
mod stories;
