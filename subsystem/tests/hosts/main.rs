//! Hosts that are made by hand: controllers and queues driven with submission queue entries over a
//! queue in memory, against a real engine on a drive in memory. No network, no sleeping: everything
//! that a test waits for is awaited.

mod admin;
mod ana;
mod announced;
mod association;
mod auth;
mod bad_input;
mod commands;
mod conflicts;
mod connect;
mod cross_controller_reset;
mod drive;
mod every_command;
mod harness;
mod identity;
mod io;
mod known;
mod limits;
mod log_lines;
mod logs;
mod misuse;
mod received;
mod reservations;
mod standby;
mod subsystems;
mod throttle;
mod tls;
mod trace;
