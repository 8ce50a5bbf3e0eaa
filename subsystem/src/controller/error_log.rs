//! The error log of a controller: its last failures, newest first.
//!
//! Guarantee: memory is bounded by [`ERROR_LOG_ENTRIES`]; the error count never goes back while the
//! association lives.

use std::collections::VecDeque;

use nvme::Status;

/// Entries that are kept (ELPE is one less).
pub(crate) const ERROR_LOG_ENTRIES: usize = 64;

/// A failed command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ErrorEntry {
    /// Its queue.
    pub(crate) qid: u16,
    /// Its identifier.
    pub(crate) cid: u16,
    /// How it ended.
    pub(crate) status: Status,
    /// The byte of the command that was wrong; FFFFh if none was.
    pub(crate) location: u16,
    /// The first logical block it was about.
    pub(crate) lba: u64,
    /// Its namespace.
    pub(crate) nsid: u32,
}

/// The last failures.
#[derive(Debug, Default)]
pub(crate) struct ErrorLog {
    count: u64,
    entries: VecDeque<(u64, ErrorEntry)>,
}

impl ErrorLog {
    /// Adds a failure; the oldest one leaves if there are too many.
    pub(crate) fn add(&mut self, entry: ErrorEntry) {
        self.count += 1;
        self.entries.truncate(ERROR_LOG_ENTRIES - 1);
        self.entries.push_front((self.count, entry));
    }

    /// The failures with their error counts, newest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &ErrorEntry)> {
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
