//! Onefold: an NVMe-oF target that stores every block once. The `onefold` program.
//!
//! | module | what it is |
//! |---|---|
//! | [`cli`] | the command line, one file for each noun |
//! | [`serve`] | `onefold serve`: the daemon, from its start to its end |
//! | `nodes`, `standby`, `again` | several nodes that offer one pool: what they say, how one takes it over, how one that lost it comes back |
//! | `serve_sled` | `onefold sled serve`: raw drives, from the start to the end |
//! | `listen`, `listeners`, `mdns` | where hosts come in, on every reactor |
//! | `http`, `control_socket` | where administrators come in |
//! | [`pool`], `new_drive`, `known_drive`, `opened_drive`, `metadata`, `import`, `room` | a pool, opened or made, its drives, and its metadata on them |
//! | [`plan`], `reliability` | how often a pool loses data: the model, and a pool in service by it |
//! | `drive_changes`, `drive_watch`, `drive_return`, `drive_health` | drives that come and go, fail, and tell that they will |
//! | `descriptors`, `machine`, `signals` | what the system gives the daemon, and tells it |
//! | `notify`, `telemetry` | what the service manager is told, and a collector of metrics |
//! | [`options`], [`config`] | the options of `onefold serve`, and the configuration file that names them |
//! | `logging`, `recorder`, `records`, `output` | what goes to standard error, to the pool's folder, and to standard output |
//! | [`doctor`] | what of this machine would keep a target from working well |
//! | [`size`], [`time`], [`exit`] | sizes and times as people write them, exit codes |
//!
//! What hosts meet is in `subsystem`, what its owner asks a daemon for in `api`.

#![forbid(unsafe_code)]

mod again;
mod announcement;
pub mod cli;
pub mod config;
mod control_socket;
mod descriptors;
pub mod doctor;
mod drive_changes;
mod drive_health;
mod drive_return;
mod drive_watch;
mod errors;
pub mod exit;
mod exports;
mod http;
mod images;
mod import;
mod known_drive;
mod labels;
mod lingering;
mod listen;
mod listeners;
mod logging;
mod machine;
mod mdns;
mod measured_drive;
mod metadata;
mod new_drive;
mod nodes;
mod notify;
mod opened_drive;
pub mod options;
mod output;
pub mod plan;
pub mod pool;
mod preparing;
mod recorder;
mod records;
mod reliability;
mod room;
pub mod serve;
mod serve_sled;
mod signals;
pub mod size;
mod standby;
mod telemetry;
pub mod time;
