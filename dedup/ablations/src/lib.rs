//! For tests: the engine once more, with every rule that can be broken on purpose.
//!
//! The sources of `dedup` have no trace of that. `build.rs` makes a copy of them, in which each text of `rules/` takes the place
//! of another one, and `noticed.rs` says who notices that a rule is broken. A rule looks like the breaks of `tests/breaks/`, but
//! all rules are compiled together, and tried in every run of the tests: `is_broken()` asks whether this one is broken.

// Tests of the engine are run in `dedup`: here they are functions that nobody calls.
#![cfg_attr(test, allow(dead_code, missing_docs))]

#[cfg(test)]
mod ablation;
#[cfg(test)]
mod noticed;

#[cfg(test)]
include!(concat!(env!("OUT_DIR"), "/src/lib.rs"));
