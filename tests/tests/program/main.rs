//! The `onefold` program as its owner uses it: started, asked, loaded, stopped, killed, misused. Every daemon
//! listens on a loopback address of its own, so that stories run side by side.

mod asks;
mod config_file;
mod configuration;
mod configuration_export;
mod data;
mod events;
mod exchanges;
mod exports;
mod harness;
mod http;
mod http_tls;
mod images;
mod import;
mod labels;
mod limits;
mod loads;
mod lost_sleds;
mod lying_peers;
mod mirrors;
mod moves;
mod nbd;
mod nbft;
mod operate;
mod pools;
mod remote_drives;
mod service;
mod signals;
mod sled;
mod snapshots;
mod streams;
mod tasks;
mod telemetry;
mod used_drives;
mod vhost_drives;
mod wire;
