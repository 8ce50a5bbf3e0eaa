//! Copies that could not be read, or did not match their checksum, when another copy gave the block: to be looked at, and
//! healed from the other one, behind the command that met them.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use drives::DriveError;
use meta::Pba;

/// Blocks that are kept at most. A scrub finds what is beyond.
const BLOCKS_MAX: usize = 4096;

/// Errors of drives that are kept at most until they are told.
const ERRORS_MAX: usize = 64;

/// Blocks with a copy that is wrong, and what drives said.
#[derive(Default)]
pub(crate) struct Suspects {
    found: Mutex<Found>,
    is_any: AtomicBool,
}

/// What was found since it was last asked for.
#[derive(Default)]
pub(crate) struct Found {
    pub(crate) blocks: BTreeSet<Pba>,
    pub(crate) errors: Vec<(u16, DriveError)>,
}

impl Suspects {
    /// What a panic leaves is a shorter list, which is no worse.
    fn lock(&self) -> MutexGuard<'_, Found> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One of the copies of these blocks is wrong.
    pub(crate) fn add(&self, blocks: impl IntoIterator<Item = Pba>) {
        let mut found = self.lock();
        let room = BLOCKS_MAX.saturating_sub(found.blocks.len());
        found.blocks.extend(blocks.into_iter().take(room));
        self.is_any.store(true, Ordering::Release);
    }

    /// A drive failed, and others had what it was asked for.
    pub(crate) fn add_error(&self, drive: u16, error: DriveError) {
        let mut found = self.lock();
        if found.errors.len() < ERRORS_MAX {
            found.errors.push((drive, error));
        }
        self.is_any.store(true, Ordering::Release);
    }

    pub(crate) fn take(&self) -> Found {
        match self.is_any.swap(false, Ordering::AcqRel) {
            true => std::mem::take(&mut self.lock()),
            false => Found::default(),
        }
    }
}
