//! The drives of an open pool.
//!
//! Drives are added and never taken away as long as the pool is open, and an index always means the same
//! drive: reading the list costs no lock.

use std::sync::{Arc, OnceLock};

use drives::Drive;

/// Drives of a pool at most.
pub(crate) const DRIVES_MAX: usize = 256;

/// The drives by their index.
pub(crate) struct DriveList(Box<[OnceLock<Arc<dyn Drive>>]>);

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
        let mut drive = drive;
        for (index, place) in (0..).zip(&self.0) {
            match place.set(drive) {
                Ok(()) => return Some(index),
                Err(back) => drive = back,
            }
        }
        None
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<dyn Drive>> {
        self.0.iter().map_while(OnceLock::get)
    }

    pub(crate) fn get(&self, index: usize) -> Option<&Arc<dyn Drive>> {
        self.0.get(index)?.get()
    }

    pub(crate) fn len(&self) -> usize {
        self.iter().count()
    }

    /// The index of one of them.
    pub(crate) fn index_of(&self, drive: &dyn Drive) -> Option<u16> {
        let mut drives = (0..).zip(self.iter());
        let found = drives.find(|(_, it)| std::ptr::addr_eq(Arc::as_ptr(it), drive));
        found.map(|(index, _)| index)
    }
}
