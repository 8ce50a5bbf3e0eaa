//! What each command does.

pub(crate) mod admin;
mod authentication;
mod discovery;
mod effects;
pub(crate) mod fabrics;
mod features;
mod identify;
pub(crate) mod io;
mod log_page;
mod node_table;
mod reservation;
