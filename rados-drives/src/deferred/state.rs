//! What is known of the deferred writes of a drive, without any transfer.
//!
//! A block that is written goes through three states: it *waits* in memory, it is *logged* beside the journal, it is *in place*.
//! Logged blocks that are in place are *listed* until a listing without them is in the cluster.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use drives::BLOCK_BYTES;

use super::listing::{AREA_BYTES, ListedRun, Listing, RUNS_MAX, crc32c};

/// Bytes that wait at most.
const WAITING_BYTES_MAX: usize = 1 << 20;

/// Bytes at most that are logged and not in place, with those that wait.
const LOGGED_BYTES_MAX: usize = 2 << 20;

/// One block's bytes.
#[derive(Clone)]
pub(crate) struct Content {
    bytes: Arc<Vec<u8>>,
    at: usize,
    /// Counts the writes.
    version: u64,
}

impl Content {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[self.at..self.at + BLOCK_BYTES]
    }
}

/// Blocks that follow each other, and their bytes.
struct Run {
    block: u64,
    blocks: u32,
    bytes: Arc<Vec<u8>>,
    at: usize,
    version: u64,
}

impl Run {
    fn bytes(&self) -> &[u8] {
        &self.bytes[self.at..self.at + self.blocks as usize * BLOCK_BYTES]
    }
}

/// What was logged by one operation.
struct Logged {
    sequence: u64,
    runs: Vec<Run>,
    listed: Vec<ListedRun>,
    bytes: usize,
    /// It is in place, since the listing with that sequence number was made.
    placed_at: Option<u64>,
}

/// What is about to be logged.
pub(crate) struct Logging {
    runs: Vec<Run>,
    listed: Vec<ListedRun>,
    sequence: u64,
    /// The listing.
    pub(crate) listing: Vec<u8>,
    /// Bytes from the area's begin, and the data that go there.
    pub(crate) at: u32,
    pub(crate) data: Vec<u8>,
}

/// Blocks that are to be put in place, with the newest logged bytes of each.
pub(crate) struct Placing {
    upto: u64,
    pub(crate) contents: Vec<(u64, Content)>,
}

#[derive(Default)]
pub(crate) struct State {
    /// Of each block that is not in place, the newest bytes.
    blocks: BTreeMap<u64, Content>,
    waiting: Vec<Run>,
    waiting_bytes: usize,
    logged: VecDeque<Logged>,
    /// Of the newest listing.
    sequence: u64,
    version: u64,
}

fn overlaps(run: (u64, u32), blocks: &Range<u64>) -> bool {
    run.0 < blocks.end && blocks.start < run.0 + u64::from(run.1)
}

impl State {
    pub(crate) fn behind(sequence: u64) -> Self {
        Self {
            sequence,
            ..Self::default()
        }
    }

    /// Takes a write: for each run its first block, and its bytes. False if there is no room for it.
    pub(crate) fn put(&mut self, runs: &[(u64, &[u8])]) -> bool {
        let bytes: usize = runs.iter().map(|(_, bytes)| bytes.len()).sum();
        let unplaced = self
            .logged
            .iter()
            .filter(|logged| logged.placed_at.is_none());
        let (logged_bytes, listed) = unplaced.fold((0, 0), |(bytes, listed), logged| {
            (bytes + logged.bytes, listed + logged.listed.len())
        });
        if self.waiting_bytes + bytes > WAITING_BYTES_MAX
            || logged_bytes + self.waiting_bytes + bytes > LOGGED_BYTES_MAX
            || listed + self.waiting.len() + runs.len() > RUNS_MAX
        {
            return false;
        }
        self.version += 1;
        self.waiting_bytes += bytes;
        let pieces: Vec<&[u8]> = runs.iter().map(|(_, bytes)| *bytes).collect();
        let all = Arc::new(pieces.concat());
        let mut at = 0;
        for (block, bytes) in runs {
            let blocks = bytes.len() / BLOCK_BYTES;
            for number in 0..blocks {
                let content = Content {
                    bytes: all.clone(),
                    at: at + number * BLOCK_BYTES,
                    version: self.version,
                };
                self.blocks.insert(block + number as u64, content);
            }
            self.waiting.push(Run {
                block: *block,
                blocks: blocks as u32,
                bytes: all.clone(),
                at,
                version: self.version,
            });
            at += bytes.len();
        }
        true
    }

    /// Whether anything is not in place.
    pub(crate) fn is_any(&self) -> bool {
        !self.blocks.is_empty()
    }

    /// The newest bytes of those blocks that are not in place.
    pub(crate) fn contents(&self, blocks: Range<u64>) -> impl Iterator<Item = (u64, Content)> {
        let found = self.blocks.range(blocks);
        found.map(|(block, content)| (*block, content.clone()))
    }

    /// Whether an opening of the drive may write some of these blocks, or they are not in place.
    pub(crate) fn concerns(&self, blocks: &Range<u64>) -> bool {
        let listed = self.logged.iter().flat_map(|logged| &logged.listed);
        self.blocks.range(blocks.clone()).next().is_some()
            || listed
                .into_iter()
                .any(|run| overlaps((run.block, run.blocks), blocks))
    }

    pub(crate) fn waits(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Bytes that are logged and not in place.
    pub(crate) fn unplaced_bytes(&self) -> usize {
        let unplaced = self
            .logged
            .iter()
            .filter(|logged| logged.placed_at.is_none());
        unplaced.map(|logged| logged.bytes).sum()
    }

    /// What waits is to be logged in this object; `None` if its area has no room.
    pub(crate) fn begin_logging(&mut self, object: u64) -> Option<Logging> {
        let bytes = u32::try_from(self.waiting_bytes).ok()?;
        let at = self.room_for(object, bytes)?;
        let runs = std::mem::take(&mut self.waiting);
        self.waiting_bytes = 0;
        self.sequence += 1;
        let mut data: Vec<u8> = Vec::with_capacity(bytes as usize);
        let mut listed: Vec<ListedRun> = Vec::with_capacity(runs.len());
        for run in &runs {
            match listed.last_mut() {
                Some(last) if last.block + u64::from(last.blocks) == run.block => {
                    last.blocks += run.blocks;
                }
                _ => listed.push(ListedRun {
                    block: run.block,
                    object,
                    at: at + data.len() as u32,
                    blocks: run.blocks,
                    crc32c: 0,
                }),
            }
            data.extend_from_slice(run.bytes());
        }
        for run in &mut listed {
            let from = (run.at - at) as usize;
            run.crc32c = crc32c(&data[from..from + run.bytes() as usize]);
        }
        let unplaced = self
            .logged
            .iter()
            .filter(|logged| logged.placed_at.is_none());
        let before = unplaced.flat_map(|logged| logged.listed.iter().copied());
        let listing = Listing {
            sequence: self.sequence,
            runs: before.chain(listed.iter().copied()).collect(),
        };
        Some(Logging {
            listing: listing.encode(),
            runs,
            listed,
            sequence: self.sequence,
            at,
            data,
        })
    }

    /// Where so many bytes go: the first ones that hold nothing which is not in place. What is in place is overwritten by the
    /// operation that has a listing without it.
    fn room_for(&self, object: u64, bytes: u32) -> Option<u32> {
        let unplaced = || {
            let unplaced = self
                .logged
                .iter()
                .filter(|logged| logged.placed_at.is_none());
            let listed = unplaced.flat_map(|logged| &logged.listed);
            listed.filter(|run| run.object == object)
        };
        let is_free = |at: &u32| {
            let end = at.checked_add(bytes).filter(|end| *end <= AREA_BYTES);
            end.is_some_and(|end| {
                unplaced().all(|run| run.at + run.bytes() <= *at || end <= run.at)
            })
        };
        let ends = unplaced().map(|run| run.at + run.bytes());
        std::iter::once(0).chain(ends).filter(is_free).min()
    }

    /// It is not known to be logged: it waits again.
    pub(crate) fn give_back(&mut self, logging: Logging) {
        let mut runs = logging.runs;
        self.waiting_bytes += logging.data.len();
        runs.append(&mut self.waiting);
        self.waiting = runs;
    }

    /// It is logged, and only that is listed which was not in place before.
    pub(crate) fn logged(&mut self, logging: Logging) {
        self.logged
            .retain(|logged| logged.placed_at.is_none_or(|at| at >= logging.sequence));
        if !logging.runs.is_empty() {
            self.logged.push_back(Logged {
                sequence: logging.sequence,
                bytes: logging.data.len(),
                runs: logging.runs,
                listed: logging.listed,
                placed_at: None,
            });
        }
    }

    /// What is logged, and not in place.
    pub(crate) fn begin_placing(&self) -> Option<Placing> {
        let mut contents = BTreeMap::new();
        let mut upto = None;
        for logged in self
            .logged
            .iter()
            .filter(|logged| logged.placed_at.is_none())
        {
            upto = Some(logged.sequence);
            for run in &logged.runs {
                for number in 0..run.blocks {
                    let content = Content {
                        bytes: run.bytes.clone(),
                        at: run.at + number as usize * BLOCK_BYTES,
                        version: run.version,
                    };
                    contents.insert(run.block + u64::from(number), content);
                }
            }
        }
        upto.map(|upto| Placing {
            upto,
            contents: contents.into_iter().collect(),
        })
    }

    /// It is in place.
    pub(crate) fn placed(&mut self, placing: &Placing) {
        for logged in &mut self.logged {
            if logged.sequence <= placing.upto && logged.placed_at.is_none() {
                logged.placed_at = Some(self.sequence);
                logged.runs = Vec::new();
            }
        }
        for (block, content) in &placing.contents {
            let is_newest = |newest: &Content| newest.version == content.version;
            if self.blocks.get(block).is_some_and(is_newest) {
                self.blocks.remove(block);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OBJECT: u64 = 3;

    /// How many writes of so many blocks are taken, each of which is logged, or all of which wait.
    fn taken(blocks: usize, are_logged: bool) -> usize {
        let mut state = State::default();
        let bytes = vec![7; blocks * BLOCK_BYTES];
        let mut count = 0;
        // No two of them are neighbours.
        while state.put(&[(count as u64 * 1000, &bytes)]) {
            count += 1;
            if are_logged {
                let logging = state.begin_logging(OBJECT).expect("there is room");
                let listing = Listing::decode(&logging.listing, u64::from(u32::MAX));
                let listing = listing.expect("a listing");
                assert_eq!(listing.runs.len(), count, "all are listed");
                state.logged(logging);
            }
            assert!(count < 10_000, "nothing bounds it");
        }
        count
    }

    #[test]
    fn what_is_deferred_is_bounded_in_bytes_and_in_runs() {
        assert_eq!(taken(32, false), WAITING_BYTES_MAX / (32 * BLOCK_BYTES));
        assert_eq!(taken(32, true), LOGGED_BYTES_MAX / (32 * BLOCK_BYTES));
        assert_eq!(taken(1, false), RUNS_MAX);
        assert_eq!(taken(1, true), RUNS_MAX);
    }

    #[test]
    fn what_is_in_place_is_listed_until_a_listing_without_it_is_there() {
        let mut state = State::default();
        let block = [7; BLOCK_BYTES];
        assert!(state.put(&[(5, &block)]));
        let logging = state.begin_logging(OBJECT).expect("there is room");
        state.logged(logging);
        let placing = state.begin_placing().expect("it is not in place");
        // A listing that was made before it was in place names it.
        let before = state.begin_logging(OBJECT).expect("there is room");
        state.placed(&placing);
        state.logged(before);
        assert!(!state.is_any(), "it is in place");
        assert!(state.concerns(&(5..6)), "it is listed");
        let without = state.begin_logging(OBJECT).expect("there is room");
        state.logged(without);
        assert!(!state.concerns(&(5..6)));
    }
}
