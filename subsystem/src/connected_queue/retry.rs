//! The delay before a host repeats a command that failed (CRD in the status, which selects one of CRDT1 to CRDT3 of
//! Identify Controller).
//!
//! A Linux host repeats a command five times. Without a delay that takes a millisecond, and I/O fails although the cause
//! would have passed in a moment.

use nvme::Status;

/// CRDT1 to CRDT3, in units of 100 ms.
pub(crate) const DELAYS_100MS: [u16; 3] = [5, 20, 50];

/// The number of the delay for a status, from 1; 0 is none.
pub(crate) fn delay(status: Status, stopping: bool) -> u8 {
    if status.is_success() || status.is_dnr() || status.retry_delay() != 0 {
        return status.retry_delay();
    }
    match status.code() {
        // The host asked for this one.
        Status::ABORT_REQUESTED => 0,
        // The engine writes elsewhere next time, at once.
        Status::WRITE_FAULT => 0,
        // A restart takes a moment.
        _ if stopping => 2,
        // The pool waits for a person, or for its drives.
        Status::NAMESPACE_NOT_READY => 3,
        Status::INTERNAL | Status::COMMAND_INTERRUPTED | Status::TRANSIENT_TRANSPORT => 1,
        // ANA states and the like: hosts use another path, by rules of their own.
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_passes_is_waited_for_and_what_is_final_is_not() {
        let status = Status::NAMESPACE_NOT_READY;
        assert_eq!(delay(status, false), 3);
        assert_eq!(delay(status, true), 2);
        assert_eq!(delay(status.with_dnr(), true), 0);
        assert_eq!(delay(Status::INTERNAL, false), 1);
        assert_eq!(delay(Status::WRITE_FAULT, true), 0);
        assert_eq!(delay(Status::ABORT_REQUESTED, true), 0);
        assert_eq!(delay(Status::SUCCESS, true), 0);
    }

    #[test]
    fn five_tries_outlast_a_restart() {
        let longest = u32::from(DELAYS_100MS[1]) * 100 * 5;
        assert!(longest >= 10_000);
    }
}
