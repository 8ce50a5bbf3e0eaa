//! The journal of a pool whose drives have copies of the metadata.

use std::io;
use std::sync::Arc;

use super::members::MetadataOnDrives;
use crate::journal::JournalMedia;

/// The journal's file in the folder; what is written there goes to every member when it is synced.
pub struct JournalOnDrives(Arc<MetadataOnDrives>);

impl JournalOnDrives {
    /// The journal in the folder, and its images on the drives.
    #[must_use]
    pub fn new(copies: Arc<MetadataOnDrives>) -> Self {
        Self(copies)
    }

    fn file(&self) -> &dyn JournalMedia {
        self.0.journal()
    }
}

impl JournalMedia for JournalOnDrives {
    fn name(&self) -> String {
        self.file().name()
    }

    fn capacity(&self) -> u64 {
        self.file().capacity()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.file().read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let written = self.file().write_at(offset, bytes);
        // What a write that failed left is copied too: the image is what the file is.
        self.0.dirty().mark(offset, bytes.len());
        written
    }

    fn own(&self, epoch: u32) -> io::Result<()> {
        self.file().own(epoch)
    }

    fn append_at(&self, epoch: u32, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let written = self.file().append_at(epoch, offset, bytes);
        self.0.dirty().mark(offset, bytes.len());
        written
    }

    fn will_write(&self, offset: u64, bytes: u64) {
        self.file().will_write(offset, bytes);
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync_journal()
    }

    fn flushes_data(&self) -> bool {
        self.0.state().flushes_data
    }
}
