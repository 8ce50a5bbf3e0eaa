//! Metadata in memory: pages of maps and rows of blocks are brought in from the store when they are needed.
//!
//! Guarantee: what a command has brought in stays in memory until the command is done. A range lock or a window keeps
//! pages of maps; pins keep rows of blocks.

pub(crate) mod lines;
pub(crate) mod loading;
pub(crate) mod on_disk_index;
pub(crate) mod pages;
pub(crate) mod rows;
