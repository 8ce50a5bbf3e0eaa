//! Measurements: of the engine beside the machine's own limits, and of any target as a host sees it.
//!
//! `onefold bench` runs [`engine`], [`drive`], [`transports`] and [`exports`], `onefold perf` runs [`perf`], and `onefold estimate`
//! runs [`estimate`]: what deduplication would save. What the others write never repeats a sub-block by accident, so that
//! deduplication is measured and not guessed.

#![forbid(unsafe_code)]

mod daemon;
pub mod drive;
pub mod engine;
pub mod estimate;
pub mod exports;
pub mod machine;
pub mod perf;
pub mod transports;

pub use daemon::{BenchError, RunOptions};
