//! Deferred writes: small writes go to the cluster together with the pool's journal, and to their own objects later.
//!
//! An operation costs a cluster much more than the bytes that it moves, and what a host waits for is the time that it takes. A
//! write of data and the record of it are two, one after the other. So a small write waits in memory here until the
//! journal is written, and goes along: into an area behind the data of the same object, by the same operation, which
//! happens as a whole or not at all. In the background it is written to its own place, together with others. This room knows
//! what becomes of each write; [`logging`](crate::logging) does it.
//!
//! | file | what is in it |
//! |---|---|
//! | `listing` | the block that says what is logged, and where |
//! | `state` | what waits, what is logged, and what is in place |
//! | `recovery` | what the next owner puts in place |
//!
//! Guarantees:
//! * A read that begins after a write was taken gives what was written.
//! * Whoever claims the drive next puts in place what was logged and is not, before anything else is read or written.
//! * Memory is bounded: 1 MiB waits, and 2 MiB wait or are logged and not in place. Beyond that writes are not deferred, and neither are
//!   they as long as the cluster does not take what is to be put in place.

mod listing;
mod recovery;
mod state;

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use drives::{BLOCK_BYTES, Extent, Part};
use reactor::Buffer;

use crate::header::object_of;
pub(crate) use listing::{AREA_AT, AREA_BYTES, ASIDE, LISTING_AT};
pub(crate) use recovery::{NotRecovered, OBJECTS, Recovered, recover, text_of};
pub(crate) use state::{Content, Logging, State};

/// Bytes at most of a write that is deferred, and of one of its runs: a larger one is worth an operation, and its bytes would move
/// twice.
const WRITE_BYTES_MAX: usize = 128 << 10;
const RUN_BYTES_MAX: usize = 32 << 10;

/// Deferred writes of a drive.
#[derive(Default)]
pub(crate) struct Deferred {
    /// Writes of these blocks are deferred; empty: of none.
    blocks: OnceLock<Range<u64>>,
    state: Mutex<State>,
    /// Held by who logs.
    pub(crate) objects: futures_util::lock::Mutex<Objects>,
    /// The next logging finds an object that is prepared.
    pub(crate) is_ready: AtomicBool,
    /// Held by who puts in place.
    pub(crate) placing: futures_util::lock::Mutex<()>,
    /// A task puts in place.
    pub(crate) is_placing: AtomicBool,
    /// The last attempt to do so failed. Who writes next is told why, by a write that is not deferred.
    pub(crate) is_stuck: AtomicBool,
    /// Something was logged, so who has the drive next has to look.
    pub(crate) has_logged: Arc<AtomicBool>,
}

/// Objects with a listing and an area.
#[derive(Default)]
pub(crate) struct Objects {
    /// Those that may have them, as the header says, beside the one aside; `None`: it says nothing.
    pub(crate) named: Option<Range<u64>>,
    /// Those that are as large as they get: in a cluster that is full what was taken can be logged there all the same.
    pub(crate) prepared: BTreeSet<u64>,
}

/// The name of an object with a listing.
pub(crate) fn name_of(drive: &str, object: u64) -> String {
    match object {
        ASIDE => format!("onefold.{drive}.deferred"),
        number => object_of(drive, number),
    }
}

impl Deferred {
    /// From now on writes of these blocks are deferred. Once.
    pub(crate) fn begin(&self, blocks: Range<u64>) {
        // The first one stays.
        let _ = self.blocks.set(blocks);
    }

    /// Whether writes are deferred.
    pub(crate) fn is_begun(&self) -> bool {
        self.blocks.get().is_some()
    }

    /// Goes on from what an earlier owner logged, all of which is in place.
    pub(crate) fn go_on(&self, recovered: Recovered) {
        *self.state() = State::behind(recovered.sequence);
        if let Some(mut objects) = self.objects.try_lock() {
            objects.named = recovered.objects;
        }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        // A change that panics has a bug, and none of them is left half made.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a write, unless it is too large, of blocks that are not deferred, or there is no room.
    pub(crate) fn take(&self, buffers: &[Buffer], moved: &[(u64, Part)]) -> bool {
        let Some(deferred) = self.blocks.get() else {
            return false;
        };
        let bytes: usize = moved.iter().map(|(_, part)| part.len).sum();
        let is_small = |(at, part): &(u64, Part)| {
            let blocks = blocks_of(*at, part.len);
            let is_inside = deferred.start <= blocks.start && blocks.end <= deferred.end;
            is_inside && part.len <= RUN_BYTES_MAX
        };
        if bytes > WRITE_BYTES_MAX
            || !moved.iter().all(is_small)
            || self.is_stuck.load(Ordering::Relaxed)
            || !self.is_ready.load(Ordering::Relaxed)
        {
            return false;
        }
        let runs = moved.iter().map(|(at, part)| {
            let bytes = &buffers[part.buffer][part.offset..part.offset + part.len];
            (at / BLOCK_BYTES as u64, bytes)
        });
        let runs: Vec<(u64, &[u8])> = runs.collect();
        self.state().put(&runs)
    }

    /// What is not in place of what is to be read, with where it goes in the buffer. To be taken before anything is read.
    pub(crate) fn overlay(&self, extents: &[Extent]) -> Overlay {
        let mut overlay = Overlay(Vec::new());
        if !self.is_begun() {
            return overlay;
        }
        let state = self.state();
        if !state.is_any() {
            return overlay;
        }
        for extent in extents {
            let blocks = extent.block..extent.block + u64::from(extent.blocks);
            let contents = state.contents(blocks).map(|(block, content)| {
                let before = (block - extent.block) as usize * BLOCK_BYTES;
                (extent.buffer_offset + before, content)
            });
            overlay.0.extend(contents);
        }
        overlay
    }

    /// Whether an object is kept when all of its data are discarded: there may be a listing behind them.
    pub(crate) async fn keeps(&self, object: u64) -> bool {
        let objects = self.objects.lock().await;
        objects
            .named
            .as_ref()
            .is_some_and(|named| named.contains(&object))
    }
}

fn blocks_of(at: u64, len: usize) -> Range<u64> {
    let first = at / BLOCK_BYTES as u64;
    first..first + (len / BLOCK_BYTES) as u64
}

/// Blocks that are not in place, for one read.
pub(crate) struct Overlay(Vec<(usize, Content)>);

impl Overlay {
    pub(crate) fn put(self, buffer: &mut Buffer) {
        for (at, content) in self.0 {
            buffer[at..at + BLOCK_BYTES].copy_from_slice(content.bytes());
        }
    }
}
