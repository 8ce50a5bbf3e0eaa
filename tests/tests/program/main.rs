//! The `onefold` program as its owner uses it: started, asked, loaded, stopped, killed, misused. Every daemon
//! listens on a loopback address of its own, so that stories run side by side.

mod asks;
mod config_file;
mod configuration;
mod data;
mod harness;
mod http;
mod loads;
mod pools;
mod service;
mod signals;
mod used_drives;
