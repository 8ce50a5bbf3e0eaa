//! Measurements: a load generator that drives any NVMe/RDMA target as a host does.
//!
//! [`perf`] is what `onefold perf` runs. Its figures count commands that ended in the measured time,
//! and its content generator never repeats a sub-block by accident, so that deduplication is measured
//! and not guessed.

#![forbid(unsafe_code)]

pub mod perf;
