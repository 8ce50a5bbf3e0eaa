//! The engine by its public interface, over drives and stores in memory and pools in folders.
//!
//! One program for all of these files, because each program compiles the engine's futures anew. Tests that start other
//! processes have programs of their own: between `fork` and `exec` a child holds the locks of all pools that are open.

#[path = "../support/mod.rs"]
mod support;

mod backup;
mod check;
mod compression;
mod copy;
mod damage;
mod drives;
mod find;
mod labels;
mod loading;
mod memory;
mod mirrors;
mod moves;
mod policies;
mod reactor;
mod rebuild;
mod reopening;
mod repair;
mod settings;
mod snapshots;
mod stories;
mod trims;
mod troubles;
