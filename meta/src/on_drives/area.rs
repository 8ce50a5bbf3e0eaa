//! The blocks of a drive that keep metadata, seen from here.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of a block.
pub(crate) const BLOCK: usize = 4096;

/// A run of blocks of 4096 bytes of one drive. Must not be used on a thread that serves hosts.
pub trait MetadataArea: Send + Sync {
    /// What the drive is called in messages.
    fn name(&self) -> String;

    /// How many blocks there are.
    fn blocks(&self) -> u64;

    /// Fills `bytes`, whole blocks, from that block on. Blocks.
    ///
    /// # Errors
    /// The drive cannot be read, or the blocks are not among the area's.
    fn read(&self, block: u64, bytes: &mut [u8]) -> io::Result<()>;

    /// Begins to write whole blocks from that block on.
    fn write(&self, block: u64, bytes: Arc<Vec<u8>>) -> PendingIo;

    /// Begins to make what was written before survive a loss of power.
    fn flush(&self) -> PendingIo;
}

/// Work of an area on its way.
#[must_use = "its outcome is known only after `wait`"]
pub struct PendingIo(Box<dyn FnOnce() -> io::Result<()> + Send>);

impl PendingIo {
    /// Work that `wait` waits for.
    pub fn new(wait: impl FnOnce() -> io::Result<()> + Send + 'static) -> Self {
        Self(Box::new(wait))
    }

    /// Blocks until it is done, or takes too long.
    ///
    /// # Errors
    /// It failed, or it is not known what becomes of it.
    pub fn wait(self) -> io::Result<()> {
        (self.0)()
    }
}

/// The error of an access beyond an area's end.
pub(crate) fn beyond(area: &dyn MetadataArea, block: u64, blocks: u64) -> io::Error {
    let text = format!(
        "blocks {block} + {blocks} are not among the {} of the metadata area",
        area.blocks()
    );
    io::Error::new(io::ErrorKind::InvalidInput, text)
}

/// An area in memory, for tests. What was written and not flushed can be lost, and it can stop to take writes, or lie.
pub struct MemoryArea {
    state: Mutex<Memory>,
}

struct Memory {
    stable: Vec<u8>,
    /// As it is read.
    now: Vec<u8>,
    /// Writes and flushes that it still takes; `None`: any number.
    left: Option<u64>,
    /// It says that it took writes, and does not.
    forgets: bool,
}

impl MemoryArea {
    /// An area of so many blocks of zeros.
    #[must_use]
    pub fn new(blocks: u64) -> Self {
        let bytes = vec![0; blocks as usize * BLOCK];
        Self {
            state: Mutex::new(Memory {
                stable: bytes.clone(),
                now: bytes,
                left: None,
                forgets: false,
            }),
        }
    }

    /// From now on it takes so many writes and flushes, and fails all others.
    pub fn fail_after(&self, count: Option<u64>) {
        self.lock().left = count;
    }

    /// From now on it forgets what is written, and says that all is well.
    pub fn forget(&self) {
        self.lock().forgets = true;
    }

    /// Power is lost: of what was not flushed only the blocks that `keeps` is told to keep are there.
    pub fn lose_power(&self, mut keeps: impl FnMut() -> bool) {
        let mut state = self.lock();
        let state = &mut *state;
        let blocks = state.stable.chunks_mut(BLOCK).zip(state.now.chunks(BLOCK));
        for (stable, now) in blocks {
            if stable != now && keeps() {
                stable.copy_from_slice(now);
            }
        }
        state.now.clone_from(&state.stable);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Memory> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn range(&self, block: u64, len: usize) -> io::Result<std::ops::Range<usize>> {
        let blocks = (len / BLOCK) as u64;
        let end = block.checked_add(blocks);
        if !len.is_multiple_of(BLOCK) || end.is_none_or(|end| end > self.blocks()) {
            return Err(beyond(self, block, blocks));
        }
        let start = block as usize * BLOCK;
        Ok(start..start + len)
    }
}

impl Memory {
    fn takes(&mut self) -> io::Result<()> {
        match &mut self.left {
            None => Ok(()),
            Some(0) => Err(io::Error::other("it takes no more")),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
        }
    }
}

impl MetadataArea for MemoryArea {
    fn name(&self) -> String {
        "memory".to_owned()
    }

    fn blocks(&self) -> u64 {
        (self.lock().now.len() / BLOCK) as u64
    }

    fn read(&self, block: u64, bytes: &mut [u8]) -> io::Result<()> {
        let range = self.range(block, bytes.len())?;
        bytes.copy_from_slice(&self.lock().now[range]);
        Ok(())
    }

    fn write(&self, block: u64, bytes: Arc<Vec<u8>>) -> PendingIo {
        let written = self.range(block, bytes.len()).and_then(|range| {
            let mut state = self.lock();
            state.takes()?;
            if !state.forgets {
                state.now[range].copy_from_slice(&bytes);
            }
            Ok(())
        });
        PendingIo::new(move || written)
    }

    fn flush(&self) -> PendingIo {
        let mut state = self.lock();
        let taken = state.takes();
        if taken.is_ok() {
            let Memory { stable, now, .. } = &mut *state;
            stable.clone_from(now);
        }
        PendingIo::new(move || taken)
    }
}
