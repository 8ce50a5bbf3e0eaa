//! One load on a device: requests of one size, so many of them always under way.
//!
//! A written block of 4 KiB bears its own number, which no other run gives again, and its place on the disk; who reads what
//! was filled before looks whether the place is right.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use hdrhistogram::Histogram;
use rand::{RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::front_end::{DEPTH_MAX, FrontEnd};

/// Grain of deduplication.
const BLOCK_BYTES: usize = 4096;
/// Contents that duplicates repeat.
const DUPLICATES: u64 = 1024;
/// The clock is looked at after so many requests, while nothing has to be waited for.
const LOOK_EVERY: u64 = 64;
/// Latencies are kept up to a minute.
const LATENCY_MAX_NS: u64 = 60_000_000_000;

/// What is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pattern {
    /// Writes all of the range in order, once.
    Fill,
    /// Reads at random.
    Read,
    /// Writes at random what nobody wrote before.
    WriteUnique,
    /// Writes at random what was written before.
    WriteDuplicates,
}

/// How it is done.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    pub(crate) pattern: Pattern,
    pub(crate) block_bytes: usize,
    pub(crate) depth: u16,
    /// Bytes of the disk that are used.
    pub(crate) range: u64,
    pub(crate) time: Duration,
    /// The client sleeps until it is called, as a guest does; else it polls.
    pub(crate) sleeps: bool,
    /// The range was filled by [`Pattern::Fill`], and reads look at what they read.
    pub(crate) verify: bool,
}

/// What came of it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Outcome {
    pub(crate) requests: u64,
    pub(crate) seconds: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
}

struct Run<'a> {
    load: &'a Load,
    front_end: FrontEnd,
    random: ChaCha8Rng,
    /// The number of the next content.
    content: u64,
    /// The next block of a fill.
    next: u64,
    blocks: u64,
    /// Where the request of each place is, and since when.
    underway: Vec<(u64, Instant)>,
    latencies: Histogram<u64>,
}

fn invalid(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

/// Runs a load on the device behind a socket.
pub(crate) fn run(path: &Path, huge_pages: bool, load: &Load) -> io::Result<Outcome> {
    let front_end = FrontEnd::connect(path, huge_pages, load.block_bytes)?;
    let blocks = load.range.min(front_end.size_bytes()) / load.block_bytes as u64;
    if blocks == 0 || !(1..=DEPTH_MAX).contains(&load.depth) {
        return Err(invalid(format!(
            "a disk of {} bytes is too small, or a depth of {} too great",
            front_end.size_bytes(),
            load.depth
        )));
    }
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let seed = since_1970.unwrap_or_default().as_nanos() as u64;
    let latencies = Histogram::new_with_bounds(1, LATENCY_MAX_NS, 3).map_err(io::Error::other)?;
    let run = Run {
        load,
        front_end,
        random: ChaCha8Rng::seed_from_u64(seed),
        content: seed,
        next: 0,
        blocks,
        underway: vec![(0, Instant::now()); load.depth.into()],
        latencies,
    };
    run.go()
}

impl Run<'_> {
    fn go(mut self) -> io::Result<Outcome> {
        let is_write = self.load.pattern != Pattern::Read;
        let mut base = vec![0; self.load.block_bytes];
        ChaCha8Rng::seed_from_u64(1)
            .fill_bytes(&mut base[..BLOCK_BYTES.min(self.load.block_bytes)]);
        for at in (BLOCK_BYTES..base.len()).step_by(BLOCK_BYTES) {
            base.copy_within(..BLOCK_BYTES, at);
        }
        for place in 0..self.load.depth {
            self.front_end.put_data(place, 0, &base)?;
            self.front_end.prepare(place, is_write)?;
        }
        let begun = Instant::now();
        let end = begun + self.load.time;
        let (mut count, mut done, mut now) = (0, 0, begun);
        for place in 0..self.load.depth {
            count += u64::from(self.begin(place, now)?);
        }
        self.front_end.publish()?;
        let mut is_over = false;
        let mut looked_at = 0;
        while done < count {
            let mut fresh = 0;
            while let Some(place) = self.front_end.take_done()? {
                if fresh == 0 {
                    now = Instant::now();
                    is_over = self.load.pattern != Pattern::Fill && now >= end;
                }
                fresh += 1;
                self.end(place, now)?;
                if !is_over {
                    count += u64::from(self.begin(place, now)?);
                }
            }
            done += fresh;
            if fresh > 0 {
                self.front_end.publish()?;
                if done - looked_at >= LOOK_EVERY {
                    looked_at = done;
                    self.front_end.want_no_calls()?;
                }
            } else if self.load.sleeps {
                self.front_end.sleep()?;
            } else if now.elapsed() > super::STALLED {
                return Err(invalid("the target does not answer".to_owned()));
            } else {
                std::hint::spin_loop();
            }
        }
        let microseconds = |at: f64| self.latencies.value_at_quantile(at) as f64 / 1e3;
        Ok(Outcome {
            requests: done,
            seconds: begun.elapsed().as_secs_f64(),
            p50_us: microseconds(0.5),
            p99_us: microseconds(0.99),
        })
    }

    /// Begins a request in a place; false if there is nothing left to do.
    fn begin(&mut self, place: u16, now: Instant) -> io::Result<bool> {
        let block = match self.load.pattern {
            Pattern::Fill if self.next == self.blocks => return Ok(false),
            Pattern::Fill => {
                self.next += 1;
                self.next - 1
            }
            _ => self.random.next_u64() % self.blocks,
        };
        let at = block * self.load.block_bytes as u64;
        if self.load.pattern != Pattern::Read {
            for within in (0..self.load.block_bytes).step_by(BLOCK_BYTES) {
                let mut stamp = [0; 16];
                self.content += 1;
                let (number, written_at) = match self.load.pattern {
                    Pattern::WriteDuplicates => (self.content % DUPLICATES, 0),
                    _ => (self.content, at + within as u64),
                };
                stamp[..8].copy_from_slice(&number.to_le_bytes());
                stamp[8..].copy_from_slice(&written_at.to_le_bytes());
                self.front_end.put_data(place, within, &stamp)?;
            }
        }
        self.underway[usize::from(place)] = (at, now);
        self.front_end.offer(place, at)?;
        Ok(true)
    }

    fn end(&mut self, place: u16, now: Instant) -> io::Result<()> {
        let (at, since) = *self
            .underway
            .get(usize::from(place))
            .ok_or_else(|| invalid("the target answers what was not asked".to_owned()))?;
        self.latencies
            .saturating_record(now.saturating_duration_since(since).as_nanos() as u64);
        if self.load.verify && self.load.pattern == Pattern::Read {
            let [_, written_at] = self.front_end.data_words(place, 0)?;
            if u64::from_le(written_at) != at {
                return Err(invalid(format!(
                    "the target gives the block of {} for that of {at}",
                    u64::from_le(written_at)
                )));
            }
        }
        Ok(())
    }
}
