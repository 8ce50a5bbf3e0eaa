//! A journal media for tests, on which something happens after each write.

use std::io;
use std::sync::Arc;

use super::media::JournalMedia;

/// What happens after a write: its result is what the writer is told.
type Hook = dyn Fn() -> io::Result<()> + Send + Sync;

/// Another media, and a hook that is called when a write is done. The hook can fail a write that the media holds
/// all the same, or panic where a record is written and its changes are not made.
pub struct HookedMedia {
    inner: Arc<dyn JournalMedia>,
    after_write: Box<Hook>,
}

impl HookedMedia {
    /// Calls `after_write` after each write to `inner`.
    pub fn new(
        inner: Arc<dyn JournalMedia>,
        after_write: impl Fn() -> io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        Self {
            inner,
            after_write: Box::new(after_write),
        }
    }
}

impl JournalMedia for HookedMedia {
    fn name(&self) -> String {
        self.inner.name()
    }

    fn capacity(&self) -> u64 {
        self.inner.capacity()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.inner.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.inner.write_at(offset, bytes)?;
        (self.after_write)()
    }

    fn own(&self, epoch: u32) -> io::Result<()> {
        self.inner.own(epoch)
    }

    fn append_at(&self, epoch: u32, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.inner.append_at(epoch, offset, bytes)?;
        (self.after_write)()
    }

    fn will_write(&self, offset: u64, bytes: u64) {
        self.inner.will_write(offset, bytes);
    }

    fn sync(&self) -> io::Result<()> {
        self.inner.sync()
    }

    fn flushes_data(&self) -> bool {
        self.inner.flushes_data()
    }
}
