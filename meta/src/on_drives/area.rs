//! The blocks of a drive that keep metadata, seen from here.

use std::collections::BTreeMap;
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

    /// Whether it can [write with the drive's data](Self::write_with_data).
    fn flushes_data(&self) -> bool {
        false
    }

    /// As [`Self::write`], and a flush of the area and of the data that were written to the drive before, as one: the blocks are
    /// there, whenever power is lost, only if those data are.
    ///
    /// # Errors
    /// Also where it cannot do that.
    fn write_with_data(&self, block: u64, bytes: Arc<Vec<u8>>) -> PendingIo {
        let _ = (block, bytes);
        PendingIo::new(|| Err(io::ErrorKind::Unsupported.into()))
    }
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

/// Bytes that a drive writes as one: what a loss of power keeps or loses.
const SECTOR: usize = 512;

/// An area in memory, for tests and simulations. What was written and not flushed can be lost, and it can stop to take writes,
/// or lie. It takes memory for blocks that were written only.
pub struct MemoryArea {
    blocks: u64,
    state: Mutex<Memory>,
}

#[derive(Clone, Default)]
struct Memory {
    stable: BTreeMap<u64, Vec<u8>>,
    /// What was written to each block since the last flush, the last one as it is read.
    unflushed: BTreeMap<u64, Vec<Vec<u8>>>,
    /// Writes and flushes that it still takes; `None`: any number.
    left: Option<u64>,
    /// It says that it took writes, and does not.
    forgets: bool,
}

impl MemoryArea {
    /// An area of so many blocks of zeros.
    #[must_use]
    pub fn new(blocks: u64) -> Self {
        Self {
            blocks,
            state: Mutex::default(),
        }
    }

    /// The area as it is read now, apart from this one, and flushed; it takes all writes.
    #[must_use]
    pub fn copy(&self) -> Self {
        let mut state = self.lock().clone();
        state.flush();
        state.left = None;
        state.forgets = false;
        Self {
            blocks: self.blocks,
            state: Mutex::new(state),
        }
    }

    /// From now on it takes so many writes and flushes, and fails all others. Of the first write that fails it takes the first
    /// half.
    pub fn fail_after(&self, count: Option<u64>) {
        self.lock().left = count;
    }

    /// From now on it forgets what is written, and says that all is well.
    pub fn forget(&self) {
        self.lock().forgets = true;
    }

    /// Power is lost: of each write that was not flushed only the sectors that `keeps` is told to keep are there.
    pub fn lose_power(&self, mut keeps: impl FnMut() -> bool) {
        let mut state = self.lock();
        for (block, versions) in std::mem::take(&mut state.unflushed) {
            let stable = state.stable.entry(block).or_insert_with(|| vec![0; BLOCK]);
            for version in versions {
                let sectors = stable.chunks_mut(SECTOR).zip(version.chunks(SECTOR));
                for (stable, written) in sectors {
                    if keeps() {
                        stable.copy_from_slice(written);
                    }
                }
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Memory> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The numbers of the blocks of an access.
    fn range(&self, block: u64, len: usize) -> io::Result<std::ops::Range<u64>> {
        let blocks = (len / BLOCK) as u64;
        let end = block.checked_add(blocks).filter(|end| *end <= self.blocks);
        match end.filter(|_| len.is_multiple_of(BLOCK)) {
            Some(end) => Ok(block..end),
            None => Err(beyond(self, block, blocks)),
        }
    }
}

/// What becomes of a write or a flush.
enum Taken {
    Whole,
    /// The first one that is not taken.
    Half,
    Nothing,
}

impl Memory {
    fn take(&mut self) -> Taken {
        match &mut self.left {
            None => Taken::Whole,
            Some(u64::MAX) => Taken::Nothing,
            Some(left) => {
                *left = left.wrapping_sub(1);
                match *left {
                    u64::MAX => Taken::Half,
                    _ => Taken::Whole,
                }
            }
        }
    }

    fn put(&mut self, blocks: impl Iterator<Item = u64>, bytes: &[u8]) {
        if self.forgets {
            return;
        }
        for (block, bytes) in blocks.zip(bytes.chunks(BLOCK)) {
            let versions = self.unflushed.entry(block).or_default();
            versions.push(bytes.to_vec());
        }
    }

    fn flush(&mut self) {
        for (block, mut versions) in std::mem::take(&mut self.unflushed) {
            self.stable.extend(versions.pop().map(|last| (block, last)));
        }
    }
}

fn refused() -> io::Error {
    io::Error::other("it takes no more")
}

impl MetadataArea for MemoryArea {
    fn name(&self) -> String {
        "memory".to_owned()
    }

    fn blocks(&self) -> u64 {
        self.blocks
    }

    fn read(&self, block: u64, bytes: &mut [u8]) -> io::Result<()> {
        let range = self.range(block, bytes.len())?;
        let state = self.lock();
        for (block, bytes) in range.zip(bytes.chunks_mut(BLOCK)) {
            let written = state.unflushed.get(&block).and_then(|all| all.last());
            match written.or_else(|| state.stable.get(&block)) {
                Some(content) => bytes.copy_from_slice(content),
                None => bytes.fill(0),
            }
        }
        Ok(())
    }

    fn write(&self, block: u64, bytes: Arc<Vec<u8>>) -> PendingIo {
        let written = self.range(block, bytes.len()).and_then(|range| {
            let mut state = self.lock();
            match state.take() {
                Taken::Whole => {
                    state.put(range, &bytes);
                    Ok(())
                }
                Taken::Half => {
                    let half = (range.end - range.start) / 2;
                    state.put(range.take(half as usize), &bytes);
                    Err(refused())
                }
                Taken::Nothing => Err(refused()),
            }
        });
        PendingIo::new(move || written)
    }

    fn flush(&self) -> PendingIo {
        let mut state = self.lock();
        let taken = match state.take() {
            Taken::Whole => {
                state.flush();
                Ok(())
            }
            Taken::Half | Taken::Nothing => Err(refused()),
        };
        PendingIo::new(move || taken)
    }
}
