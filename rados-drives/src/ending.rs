//! What has begun to end, and that the end of the process waits for: locks that are given up, clients that take their leave.
//!
//! Guarantee: nothing here waits for longer than it is told to.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long the end of the process waits.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(5);

static UNDER_WAY: Mutex<usize> = Mutex::new(0);
static CHANGED: Condvar = Condvar::new();

fn under_way() -> MutexGuard<'static, usize> {
    // Each change is one step.
    UNDER_WAY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Something that ends, until it is dropped.
#[derive(Debug)]
pub(crate) struct Ending(());

impl Ending {
    pub(crate) fn begin() -> Self {
        *under_way() += 1;
        Self(())
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        *under_way() -= 1;
        CHANGED.notify_all();
    }
}

/// Waits until all that has begun to end has ended.
pub(crate) fn wait(limit: Duration) {
    let waited = CHANGED.wait_timeout_while(under_way(), limit, |count| *count > 0);
    drop(waited.unwrap_or_else(PoisonError::into_inner));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_goes_on_when_the_last_one_has_ended() {
        let endings = [Ending::begin(), Ending::begin()];
        let waiting = std::thread::spawn(|| wait(Duration::from_secs(60)));
        drop(endings);
        waiting.join().expect("it goes on");
    }
}
