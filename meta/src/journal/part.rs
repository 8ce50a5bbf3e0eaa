//! Copying what is needed of a journal, while others append to it.

use std::io;
use std::sync::Arc;

use super::media::JournalMedia;

/// Bytes copied at a time.
const COPY_BYTES: u64 = 1 << 20;

/// The records of a journal up to a moment: [`Journal::needed`](super::Journal::needed). They stay as they are until
/// the next release.
pub struct JournalPart {
    media: Arc<dyn JournalMedia>,
    /// From and to which byte of the ring, in the order in which they were written.
    ranges: Vec<(u64, u64)>,
}

impl JournalPart {
    pub(super) fn new(media: Arc<dyn JournalMedia>, ranges: Vec<(u64, u64)>) -> Self {
        Self { media, ranges }
    }

    /// Bytes of the journal's medium.
    pub fn capacity(&self) -> u64 {
        self.media.capacity()
    }

    /// Writes them to a medium of the same capacity that holds zeros, durably. Blocks.
    ///
    /// # Errors
    /// What reading, writing or syncing gives.
    pub fn write_to(&self, copy: &dyn JournalMedia) -> io::Result<()> {
        let mut buffer = vec![0; COPY_BYTES as usize];
        for (first, end) in &self.ranges {
            for start in (*first..*end).step_by(COPY_BYTES as usize) {
                let bytes = (end - start).min(COPY_BYTES) as usize;
                let buffer = &mut buffer[..bytes];
                self.media.read_at(start, buffer)?;
                copy.write_at(start, buffer)?;
            }
        }
        copy.sync()
    }
}
