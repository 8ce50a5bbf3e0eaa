//! One measured run: so many commands in flight on one reactor, for a time or a number of commands.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use dedup::{EngineError, ErrorKind, Volume};
use drives::{BLOCK_BYTES, Drive, DriveError, Extent};
use futures_util::future::join_all;
use hdrhistogram::Histogram;
use reactor::Buffer;

use super::content::{Deck, Mix, Numbers};
use crate::machine::thread_seconds;

/// What a run writes to or reads from.
#[derive(Clone)]
pub(crate) enum Goal {
    /// A volume of the engine.
    Volume(Arc<Volume>),
    /// A drive itself, without the engine.
    Drive(Arc<dyn Drive>),
}

/// What a command does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Act {
    Read,
    Write(Mix),
}

/// Where commands go, in whole command sizes from the start of the volume or drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Places {
    /// One after the other, and again from the start.
    InOrder,
    /// Anywhere.
    Random,
    /// Every place once, in an order that looks random.
    Shuffled,
}

/// A prime of xxHash (`PRIME64_1`): its multiples meet every place once whatever their number, and
/// neighbours in time lie far apart.
const STRIDE: u64 = 0x9e37_79b1_85eb_ca87;

/// When a run ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Until {
    Time(Duration),
    Commands(u64),
}

/// A run to be made.
#[derive(Clone)]
pub(crate) struct Load {
    pub(crate) goal: Goal,
    pub(crate) act: Act,
    pub(crate) places: Places,
    pub(crate) block_bytes: usize,
    /// So many percent of each sub-block are zeros, at its end.
    pub(crate) compressible: u32,
    pub(crate) depth: usize,
    /// Bytes of the volume or drive that are used, from its start.
    pub(crate) range_bytes: u64,
    pub(crate) until: Until,
    pub(crate) numbers: Arc<Numbers>,
    /// Latencies of commands that were under way in one of these are told apart.
    pub(crate) windows: Option<Arc<Windows>>,
}

/// Moments in which something else takes place beside a run, one after the other.
#[derive(Debug, Default)]
pub(crate) struct Windows {
    begun: AtomicU64,
    ended: AtomicU64,
}

impl Windows {
    /// One begins. The last one has ended.
    pub(crate) fn begin(&self) {
        self.begun.fetch_add(1, Ordering::SeqCst);
    }

    /// It ends.
    pub(crate) fn end(&self) {
        self.ended.fetch_add(1, Ordering::SeqCst);
    }

    /// How many have ended: what a command notes when it begins.
    fn ended(&self) -> u64 {
        self.ended.load(Ordering::SeqCst)
    }

    /// Whether one was open at some moment since so many had ended.
    fn was_open_since(&self, ended: u64) -> bool {
        self.begun.load(Ordering::SeqCst) > ended
    }
}

/// What a run gave.
#[derive(Debug, Clone)]
pub(crate) struct Run {
    pub(crate) commands: u64,
    pub(crate) seconds: f64,
    /// Processor time of the reactor's thread.
    pub(crate) core_seconds: f64,
    /// Processor time of all other threads of the process meanwhile.
    pub(crate) helper_seconds: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    /// Of the commands that were under way in a window.
    pub(crate) within: Within,
}

/// Commands that were under way in a window of [`Windows`].
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Within {
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    pub(super) longest_us: f64,
}

impl Run {
    pub(crate) fn per_second(&self) -> f64 {
        self.commands as f64 / self.seconds
    }

    /// How much of its core the thread had.
    pub(crate) fn core_share(&self) -> f64 {
        self.core_seconds / self.seconds
    }

    /// Processor time of the reactor's thread for a command, microseconds.
    pub(crate) fn core_us(&self) -> f64 {
        self.core_seconds / self.commands.max(1) as f64 * 1e6
    }

    /// Processor time of all other threads for a command, microseconds.
    pub(crate) fn helper_us(&self) -> f64 {
        self.helper_seconds / self.commands.max(1) as f64 * 1e6
    }
}

/// Why a run gave nothing.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The engine refused.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The drive refused.
    #[error(transparent)]
    Drive(#[from] DriveError),
    /// More commands than buffers: an error of the benchmark.
    #[error("the benchmark has too few buffers for its depth")]
    Buffers,
}

/// Latencies beyond ten seconds are counted as ten seconds.
const LATENCY_MAX_NS: u64 = 10_000_000_000;

struct Shared {
    load: Load,
    deck: Rc<Deck>,
    slots: u64,
    begun: Cell<u64>,
    end: Option<Instant>,
    latencies: RefCell<Histogram<u64>>,
    /// Of the commands in a window alone.
    within: RefCell<Histogram<u64>>,
    failed: RefCell<Option<LoadError>>,
}

/// Runs it on this reactor.
///
/// # Errors
/// The first command that failed.
pub(super) async fn run(load: Load, deck: Rc<Deck>) -> Result<Run, LoadError> {
    let start = Instant::now();
    let core_start = thread_seconds();
    let depth = load.depth;
    let shared = Rc::new(Shared {
        slots: load.range_bytes / load.block_bytes as u64,
        end: match load.until {
            Until::Time(time) => Some(start + time),
            Until::Commands(_) => None,
        },
        begun: Cell::new(0),
        latencies: RefCell::new(histogram()),
        within: RefCell::new(histogram()),
        failed: RefCell::default(),
        load,
        deck,
    });
    let tasks = (0..depth).map(|_| {
        let shared = shared.clone();
        reactor::spawn(async move { shared.work().await })
    });
    for ended in join_all(tasks).await {
        if ended.is_err() {
            let error = EngineError::new(ErrorKind::Internal, "a task of the load panicked");
            shared
                .failed
                .borrow_mut()
                .get_or_insert(LoadError::Engine(error));
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    let core_seconds = thread_seconds() - core_start;
    if let Some(error) = shared.failed.borrow_mut().take() {
        return Err(error);
    }
    let latencies = shared.latencies.borrow();
    let within = shared.within.borrow();
    let us = |of: &Histogram<u64>, quantile| of.value_at_quantile(quantile) as f64 / 1e3;
    Ok(Run {
        commands: latencies.len(),
        seconds,
        core_seconds,
        helper_seconds: 0.0, // the caller adds it: it is that of all reactors together
        p50_us: us(&latencies, 0.5),
        p99_us: us(&latencies, 0.99),
        within: Within {
            p50_us: us(&within, 0.5),
            p99_us: us(&within, 0.99),
            longest_us: within.max() as f64 / 1e3,
        },
    })
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_MAX_NS, 3)
        .expect("the bounds are constants that the histogram takes")
}

/// Place number `command` of `slots` in shuffled order.
fn shuffled(command: u64, slots: u64) -> u64 {
    let place = u128::from(command) * u128::from(STRIDE) % u128::from(slots);
    place as u64
}

impl Shared {
    async fn work(&self) {
        let mut now = Instant::now();
        loop {
            let command = self.begun.get();
            let is_over = match self.load.until {
                Until::Time(_) => self.end.is_some_and(|end| now >= end),
                Until::Commands(count) => command >= count,
            };
            if is_over || self.failed.borrow().is_some() {
                return;
            }
            self.begun.set(command + 1);
            let Some(mut card) = self.deck.take() else {
                self.failed.borrow_mut().get_or_insert(LoadError::Buffers);
                return;
            };
            if let Act::Write(mix) = self.load.act {
                self.deck.stamp(&mut card, mix, &self.load.numbers, command);
            }
            let slot = match self.load.places {
                Places::InOrder => command % self.slots,
                Places::Random => self.deck.chance().below(self.slots),
                Places::Shuffled => shuffled(command, self.slots),
            };
            let windows = self.load.windows.as_ref();
            let ended = windows.map(|windows| windows.ended());
            let start = Instant::now();
            let (result, card) = self.issue(slot, card).await;
            now = Instant::now();
            self.deck.give(card);
            match result {
                Ok(()) => {
                    let took = now.duration_since(start).as_nanos() as u64;
                    self.latencies.borrow_mut().saturating_record(took.max(1));
                    let within = windows.zip(ended);
                    if within.is_some_and(|(windows, ended)| windows.was_open_since(ended)) {
                        self.within.borrow_mut().saturating_record(took.max(1));
                    }
                }
                Err(error) => {
                    self.failed.borrow_mut().get_or_insert(error);
                }
            }
            if self.load.windows.is_some() {
                // Commands that are done at once would leave no turn to the other load of the reactor.
                reactor::yield_now().await;
            }
        }
    }

    async fn issue(&self, slot: u64, card: Buffer) -> (Result<(), LoadError>, Buffer) {
        let offset = slot * self.load.block_bytes as u64;
        match &self.load.goal {
            Goal::Volume(volume) => {
                let (result, card) = match self.load.act {
                    Act::Read => volume.read(offset, card).await,
                    Act::Write(_) => volume.write(offset, card, false).await,
                };
                (result.map_err(LoadError::from), card)
            }
            Goal::Drive(drive) => {
                let extents = [Extent {
                    block: offset / BLOCK_BYTES as u64,
                    buffer_offset: 0,
                    blocks: (self.load.block_bytes / BLOCK_BYTES) as u32,
                }];
                let (result, card) = match self.load.act {
                    Act::Read => drive.read(card, &extents).await,
                    Act::Write(_) => drive.write(card, &extents).await,
                };
                (result.map_err(LoadError::from), card)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_meets_the_windows_that_are_open_while_it_is_under_way() {
        let windows = Windows::default();
        let before = windows.ended();
        assert!(!windows.was_open_since(before));
        windows.begin();
        let inside = windows.ended();
        assert!(windows.was_open_since(before) && windows.was_open_since(inside));
        windows.end();
        let after = windows.ended();
        assert!(windows.was_open_since(before) && windows.was_open_since(inside));
        assert!(!windows.was_open_since(after));
    }

    #[test]
    fn shuffled_places_are_all_places_once() {
        for slots in [1, 2, 1000, 1 << 16, 20_000] {
            let mut met = vec![false; slots as usize];
            for command in 0..slots {
                let place = shuffled(command, slots) as usize;
                assert!(
                    !std::mem::replace(&mut met[place], true),
                    "{slots} {command}"
                );
            }
        }
    }
}
