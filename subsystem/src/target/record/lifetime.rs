//! Totals over the life of a pool.

use serde::{Deserialize, Serialize};

use super::{VERSION, Versioned};
use crate::counters::{Health, Totals};

/// The totals of all runs of the daemon on a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Lifetime {
    version: u32,
    /// How often the daemon served the pool.
    pub(crate) starts: u64,
    /// How often it did not end cleanly.
    pub(crate) unclean_ends: u64,
    /// How long it served, in seconds.
    pub(crate) seconds: u64,
    /// It serves now, or ended uncleanly.
    pub(super) running: bool,
    /// What hosts did.
    pub(crate) totals: Totals,
}

impl Default for Lifetime {
    fn default() -> Self {
        Self {
            version: VERSION,
            starts: 0,
            unclean_ends: 0,
            seconds: 0,
            running: false,
            totals: Totals::default(),
        }
    }
}

impl Versioned for Lifetime {
    fn version(&self) -> u32 {
        self.version
    }
}

impl Lifetime {
    /// A run begins.
    pub(super) fn begin(&mut self) {
        self.starts += 1;
        if self.running {
            self.unclean_ends += 1;
        }
        self.running = true;
    }

    /// These totals and those of the present run.
    pub(crate) fn plus(&self, run: &Health) -> Self {
        Self {
            seconds: self.seconds.saturating_add(run.seconds()),
            totals: self.totals.plus(run.totals()),
            ..self.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_that_was_not_noted_was_no_clean_one() {
        let mut life = Lifetime::default();
        life.begin();
        assert_eq!((life.starts, life.unclean_ends), (1, 0));
        life.begin();
        assert_eq!((life.starts, life.unclean_ends), (2, 1));
        life.running = false;
        life.begin();
        assert_eq!((life.starts, life.unclean_ends), (3, 1));
    }
}
