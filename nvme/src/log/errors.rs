//! The error log of a controller (log page 01h): its last failures, newest first.
//!
//! Guarantee: memory is bounded by [`ERROR_LOG_ENTRIES`]; the error count never goes back while the
//! association lives.

use std::collections::VecDeque;

use crate::Status;
use crate::log::{ERROR_LOG_ENTRY_BYTES, ErrorLogEntry};

/// Entries that are kept (ELPE is one less).
pub const ERROR_LOG_ENTRIES: usize = 64;

/// The parameter error location of an error that no field of the command caused.
pub const NO_LOCATION: u16 = 0xffff;

/// A failed command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorEntry {
    /// Its queue.
    pub qid: u16,
    /// Its identifier.
    pub cid: u16,
    /// How it ended.
    pub status: Status,
    /// The byte of the command that was wrong; FFFFh if none was.
    pub location: u16,
    /// The first logical block it was about.
    pub lba: u64,
    /// Its namespace.
    pub nsid: u32,
}

/// The last failures.
#[derive(Debug, Default)]
pub struct ErrorLog {
    count: u64,
    entries: VecDeque<(u64, ErrorEntry)>,
}

impl ErrorLog {
    /// Adds a failure; the oldest one leaves if there are too many.
    pub fn add(&mut self, entry: ErrorEntry) {
        self.count += 1;
        self.entries.truncate(ERROR_LOG_ENTRIES - 1);
        self.entries.push_front((self.count, entry));
    }

    /// The page, always as long as it can be; `trtype` is the transport of the controller's queues (TRTYPE), which entries
    /// name whose error was one of the transport.
    #[must_use]
    pub fn encode(&self, trtype: u8) -> Vec<u8> {
        let is_of_transport = |status: Status| {
            matches!(
                status.code(),
                Status::DATA_TRANSFER_ERROR | Status::TRANSIENT_TRANSPORT
            )
        };
        let mut page: Vec<u8> = self
            .iter()
            .flat_map(|(error_count, entry)| {
                ErrorLogEntry {
                    error_count,
                    sqid: entry.qid,
                    cid: entry.cid,
                    // As in the completion: the status stands above the phase bit.
                    status_field: entry.status.bits() << 1,
                    parameter_location: entry.location,
                    lba: entry.lba,
                    nsid: entry.nsid,
                    trtype: match is_of_transport(entry.status) {
                        true => trtype,
                        false => 0,
                    },
                    ..Default::default()
                }
                .encode()
            })
            .collect();
        page.resize(ERROR_LOG_ENTRIES * ERROR_LOG_ENTRY_BYTES, 0);
        page
    }

    /// The failures with their error counts, newest first.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &ErrorEntry)> {
        self.entries.iter().map(|(count, entry)| (*count, entry))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_64_are_kept_in_order() {
        let mut log = ErrorLog::default();
        for cid in 0..100 {
            let status = Status::INVALID_FIELD;
            log.add(ErrorEntry {
                qid: 1,
                cid,
                status,
                location: 40,
                lba: 0,
                nsid: 1,
            });
        }
        let kept: Vec<_> = log
            .iter()
            .map(|(count, entry)| (count, entry.cid))
            .collect();
        assert_eq!(kept.len(), ERROR_LOG_ENTRIES);
        assert_eq!(kept.first(), Some(&(100, 99)));
        assert_eq!(kept.last(), Some(&(37, 36)));
    }
}
