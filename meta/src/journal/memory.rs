//! A journal media in memory that loses and tears unsynced writes at a crash.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::media::{JournalMedia, SECTOR_BYTES, deposed, in_bounds, out_of_bounds};

/// A media in memory for tests and simulations; everything it does follows from its calls and seeds.
///
/// * [`MemoryMedia::power_loss`] keeps, loses or tears every unsynced sector, independently.
/// * [`MemoryMedia::fail_at`] makes one operation fail half done, and every later one until
///   [`MemoryMedia::revive`] or [`MemoryMedia::power_loss`]: a crash at that step. After a sync that failed
///   no later sync makes stable what that one left out, though it is still read.
/// * Appends of an earlier owner are refused from [`JournalMedia::own`] on; power does not change that.
pub struct MemoryMedia {
    state: Mutex<State>,
    capacity: u64,
}

struct State {
    /// What reads return: the page cache.
    cache: Vec<u8>,
    /// What is stable.
    stable: Vec<u8>,
    /// Versions of every unsynced sector since the last sync, oldest first; bounded by the number of
    /// writes between two syncs.
    unsynced: BTreeMap<u64, Vec<[u8; SECTOR_BYTES]>>,
    /// Writes and syncs so far.
    operations: u64,
    fail_at: Option<u64>,
    dead: bool,
    /// The owner's epoch.
    owner: u32,
    /// A mistake that a test wants: appends of earlier owners are taken.
    ignores_epochs: bool,
    rng: ChaCha8Rng,
}

impl MemoryMedia {
    /// A zeroed media of `capacity` bytes, rounded up to whole sectors of [`SECTOR_BYTES`].
    pub fn new(capacity: u64) -> Self {
        let capacity = capacity.next_multiple_of(SECTOR_BYTES as u64);
        let len = usize::try_from(capacity).unwrap_or(usize::MAX);
        let state = State {
            cache: vec![0; len],
            stable: vec![0; len],
            unsynced: BTreeMap::new(),
            operations: 0,
            fail_at: None,
            dead: false,
            owner: 0,
            ignores_epochs: false,
            rng: ChaCha8Rng::seed_from_u64(0),
        };
        Self {
            state: Mutex::new(state),
            capacity,
        }
    }

    /// Writes and syncs done so far: the steps at which [`Self::fail_at`] can strike.
    pub fn operations(&self) -> u64 {
        self.lock().operations
    }

    /// Lets the write or sync number `operation` (as [`Self::operations`] counts, from 0) fail, and all
    /// after it. A failing write leaves a prefix of random length, from `seed`; a failing sync makes a
    /// random part of the sectors stable.
    pub fn fail_at(&self, operation: u64, seed: u64) {
        let mut state = self.lock();
        state.fail_at = Some(operation);
        state.rng = ChaCha8Rng::seed_from_u64(seed);
    }

    /// Whether the failure of [`Self::fail_at`] has struck.
    pub fn is_dead(&self) -> bool {
        self.lock().dead
    }

    /// The process died and another one opens the same media: nothing in the cache is lost, and
    /// operations work again.
    pub fn revive(&self) {
        let mut state = self.lock();
        state.dead = false;
        state.fail_at = None;
    }

    /// Power was lost: each unsynced sector becomes one of its versions since the last sync, or stays
    /// as it was then, or (rarely) is a mixture of two of these; all from `seed`. Operations work again.
    pub fn power_loss(&self, seed: u64) {
        let mut state = self.lock();
        state.rng = ChaCha8Rng::seed_from_u64(seed);
        // Some power losses keep nearly all, some nearly nothing: both ends find different mistakes.
        let keep_percent = *[5, 50, 95].get(state.rng.random_range(0..3)).unwrap_or(&50);
        let unsynced = std::mem::take(&mut state.unsynced);
        for (sector, versions) in unsynced {
            state.settle(sector, &versions, keep_percent);
        }
        state.cache = state.stable.clone();
        state.dead = false;
        state.fail_at = None;
    }

    /// Takes appends of earlier owners from now on, as no media may.
    pub fn ignore_epochs(&self) {
        self.lock().ignores_epochs = true;
    }

    /// Changes one byte of the stable and the cached content, as a decaying drive would.
    pub fn flip(&self, offset: u64, mask: u8) {
        let mut state = self.lock();
        if let Ok(index) = usize::try_from(offset) {
            if let Some(byte) = state.cache.get_mut(index) {
                *byte ^= mask;
            }
            if let Some(byte) = state.stable.get_mut(index) {
                *byte ^= mask;
            }
        }
    }

    fn write(&self, state: &mut State, offset: u64, bytes: &[u8]) -> io::Result<()> {
        if !in_bounds(offset, bytes.len(), self.capacity) {
            return Err(out_of_bounds(offset, bytes.len(), self.capacity));
        }
        if state.step()? {
            let written = state.rng.random_range(0..=bytes.len());
            state.write(offset as usize, &bytes[..written]);
            return Err(io::Error::other("simulated failure of a write"));
        }
        state.write(offset as usize, bytes);
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Decides what becomes stable of one unsynced sector.
    fn settle(&mut self, sector: u64, versions: &[[u8; SECTOR_BYTES]], keep_percent: u32) {
        let start = sector as usize * SECTOR_BYTES;
        let Some(newest) = versions.last() else {
            return;
        };
        let dice = self.rng.random_range(0..100);
        if dice < keep_percent {
            self.stable[start..start + SECTOR_BYTES].copy_from_slice(newest);
        } else if dice % 4 == 0 {
            let version = versions[self.rng.random_range(0..versions.len())];
            self.stable[start..start + SECTOR_BYTES].copy_from_slice(&version);
        } else if dice % 16 == 1 {
            let cut = self.rng.random_range(0..SECTOR_BYTES);
            self.stable[start..start + cut].copy_from_slice(&newest[..cut]);
        }
    }

    fn write(&mut self, start: usize, bytes: &[u8]) {
        self.cache[start..start + bytes.len()].copy_from_slice(bytes);
        if bytes.is_empty() {
            return;
        }
        let first = start / SECTOR_BYTES;
        let last = (start + bytes.len() - 1) / SECTOR_BYTES;
        for sector in first..=last {
            let mut version = [0; SECTOR_BYTES];
            version.copy_from_slice(&self.cache[sector * SECTOR_BYTES..][..SECTOR_BYTES]);
            self.unsynced
                .entry(sector as u64)
                .or_default()
                .push(version);
        }
    }

    fn check_owner(&self, epoch: u32) -> io::Result<()> {
        match epoch < self.owner && !self.ignores_epochs {
            true => Err(deposed(epoch, self.owner)),
            false => Ok(()),
        }
    }

    /// Counts an operation; true if it is the one that fails.
    fn step(&mut self) -> io::Result<bool> {
        if self.dead {
            return Err(io::Error::other("the simulated process is dead"));
        }
        let strikes = self.fail_at == Some(self.operations);
        self.operations += 1;
        self.dead |= strikes;
        Ok(strikes)
    }
}

impl JournalMedia for MemoryMedia {
    fn name(&self) -> String {
        "journal in memory".to_owned()
    }

    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        if !in_bounds(offset, buf.len(), self.capacity) {
            return Err(out_of_bounds(offset, buf.len(), self.capacity));
        }
        let start = offset as usize;
        let len = buf.len();
        buf.copy_from_slice(&self.lock().cache[start..start + len]);
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.write(&mut self.lock(), offset, bytes)
    }

    fn own(&self, epoch: u32) -> io::Result<()> {
        let mut state = self.lock();
        state.check_owner(epoch)?;
        state.owner = epoch;
        Ok(())
    }

    fn append_at(&self, epoch: u32, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.lock();
        state.check_owner(epoch)?;
        self.write(&mut state, offset, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.lock();
        if state.step()? {
            // As Linux does: what could not be written counts as clean, and reads still return it.
            let unsynced = std::mem::take(&mut state.unsynced);
            for (sector, versions) in unsynced {
                state.settle(sector, &versions, 50);
            }
            return Err(io::Error::other("simulated failure of a sync"));
        }
        let unsynced = std::mem::take(&mut state.unsynced);
        for (sector, versions) in unsynced {
            if let Some(newest) = versions.last() {
                let start = sector as usize * SECTOR_BYTES;
                state.stable[start..start + SECTOR_BYTES].copy_from_slice(newest);
            }
        }
        Ok(())
    }
}
