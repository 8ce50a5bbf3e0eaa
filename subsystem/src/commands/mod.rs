//! What each command does.
//!
//! [`admin`], [`io`] and [`fabrics`] take a command of their kind apart and call the others.

pub(crate) mod admin;
pub(crate) mod admit;
mod authentication;
mod cross_controller_reset;
mod effects;
pub(crate) mod fabrics;
mod features;
mod identify;
pub(crate) mod io;
mod lba_status;
mod log_page;
mod namespace_management;
mod reservation;
mod reservation_features;
mod write_protect;
