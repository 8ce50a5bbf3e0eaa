//! What the black-box tests share: the daemon as a process, networks of their own, and guests with
//! real Linux kernels.
//!
//! Everything here cleans up after itself when it is dropped, also when a test fails: processes are
//! killed, network namespaces deleted, pools removed. Nothing waits a fixed time: every wait is for a
//! condition, with a deadline that turns into a message that says what was awaited.

#![forbid(unsafe_code)]

pub mod browser;
pub mod ceph;
pub mod daemon;
pub mod deaths;
pub mod guide;
pub mod host;
pub mod lab;
pub mod paths;
pub mod sled;
pub mod write_log;

use std::{
    net::Ipv4Addr,
    time::{Duration, Instant},
};

/// A loopback address for one story of a test program: two programs that run at the same time on one
/// machine, and two stories of one program (by `number`, 1 to 254), do not share it.
pub fn own_address(number: u8) -> Ipv4Addr {
    let [_, _, high, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, 0x40 | high & 0x3f, low, number)
}

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
