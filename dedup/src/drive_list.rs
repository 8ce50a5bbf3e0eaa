//! The drives of an open pool, and what befell them.
//!
//! Drives are added and never taken away as long as the pool is open, and an index always means the same
//! drive: reading the list costs no lock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use drives::{Drive, DriveError};

use crate::wait::lock;

/// Drives of a pool at most.
pub(crate) const DRIVES_MAX: usize = 256;

/// A drive, and what failed on it since the pool was opened.
struct Slot {
    drive: Arc<dyn Drive>,
    errors: AtomicU64,
    last_error: Mutex<String>,
}

/// The drives by their index.
pub(crate) struct DriveList(Box<[OnceLock<Slot>]>);

impl DriveList {
    /// The caller has made sure that there are no more than [`DRIVES_MAX`].
    pub(crate) fn new(drives: Vec<Arc<dyn Drive>>) -> Self {
        let list = Self((0..DRIVES_MAX).map(|_| OnceLock::new()).collect());
        for drive in drives {
            list.add(drive);
        }
        list
    }

    /// Adds a drive behind the others; its index. `None` if there are as many as can be.
    pub(crate) fn add(&self, drive: Arc<dyn Drive>) -> Option<u16> {
        let mut slot = Slot {
            drive,
            errors: AtomicU64::new(0),
            last_error: Mutex::default(),
        };
        for (index, place) in (0..).zip(&self.0) {
            match place.set(slot) {
                Ok(()) => return Some(index),
                Err(back) => slot = back,
            }
        }
        None
    }

    fn slots(&self) -> impl Iterator<Item = &Slot> {
        self.0.iter().map_while(OnceLock::get)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<dyn Drive>> {
        self.slots().map(|slot| &slot.drive)
    }

    pub(crate) fn get(&self, index: usize) -> Option<&Arc<dyn Drive>> {
        self.0.get(index)?.get().map(|slot| &slot.drive)
    }

    pub(crate) fn len(&self) -> usize {
        self.slots().count()
    }

    /// Remembers that something failed on a drive.
    pub(crate) fn failed(&self, drive: &dyn Drive, action: &str, error: &DriveError) {
        let of_it = |slot: &&Slot| std::ptr::addr_eq(Arc::as_ptr(&slot.drive), drive);
        if let Some(slot) = self.slots().find(of_it) {
            slot.errors.fetch_add(1, Ordering::Relaxed);
            *lock(&slot.last_error) = format!("{action}: {error}");
        }
    }

    /// Index, errors, and the last one, of drives on which something failed.
    pub(crate) fn failing(&self) -> Vec<(usize, u64, String)> {
        let slots = self.slots().enumerate();
        slots
            .filter_map(|(index, slot)| {
                let errors = slot.errors.load(Ordering::Relaxed);
                (errors > 0).then(|| (index, errors, lock(&slot.last_error).clone()))
            })
            .collect()
    }
}
