//! What the black-box tests share: the daemon as a process, networks of their own, and guests with
//! real Linux kernels.
//!
//! Everything here cleans up after itself when it is dropped, also when a test fails: processes are
//! killed, network namespaces deleted, pools removed. Nothing waits a fixed time: every wait is for a
//! condition, with a deadline that turns into a message that says what was awaited.

#![forbid(unsafe_code)]

pub mod daemon;
pub mod lab;

use std::time::{Duration, Instant};

/// Polls `condition` until it holds; panics with `what` after `limit`.
///
/// # Panics
/// When the condition does not hold within `limit`: the test has failed.
pub fn wait_for<T>(what: &str, limit: Duration, mut condition: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(
            Instant::now() < deadline,
            "waited {limit:?} in vain for {what}"
        );
        // A poll interval between looks at another process, not a wait for something to have happened.
        std::thread::sleep(Duration::from_millis(20));
    }
}
