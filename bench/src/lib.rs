//! Measurements: of the engine beside the machine's own limits, and of any target as a host sees it.
//!
//! [`engine`] is what `onefold bench engine` runs, [`perf`] what `onefold perf` runs, and [`estimate`] what
//! `onefold estimate` runs: what deduplication would save. The contents of the first two never
//! repeat a sub-block by accident, so that deduplication is measured and not guessed.

#![forbid(unsafe_code)]

pub mod engine;
pub mod estimate;
pub mod machine;
pub mod perf;
pub mod transports;
