//! The history of a pool: what it held and what hosts did, in three rings, by the second for an hour, by the minute for a
//! week, by the hour for a year.
//!
//! Guarantees:
//! - Bounded: about 2 MiB, in memory and in the file `history` of the pool's folder. The oldest rows go first.
//! - A row's place follows from its time, and it has a checksum: what a crash left half-written is no row, and harms no
//!   other. A file of the version before this one is rewritten at once, one of any other is left as it is.
//! - A clock that is set back writes over the rows of that time; rows of the future are not shown.
//!
//! The file gets what is new once a minute, and nothing is synced: after a power cut the last minutes may be missing.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Mutex;

use openssl::sha::sha256;
use reactor::lock_whole;
use serde::{Deserialize, Serialize};
use subsystem::latency::Latency;

/// The file's name in the pool's folder.
pub(crate) const FILE: &str = "history";
/// A file that is being rewritten.
const NEW_FILE: &str = "history.new";
/// What the file begins with; the last digit is its version.
const MAGIC: &[u8; 16] = b"onefold history2";
/// The version before: its rows have no latencies.
const MAGIC_BEFORE: &[u8; 16] = b"onefold history1";
/// Where the rows begin, in bytes.
const ROWS_AT: u64 = 4096;
/// Words of 8 bytes for the figures of a row.
const FIGURES: usize = 10;
/// The same, in the version before.
const FIGURES_BEFORE: usize = 8;
/// Bytes of a row in the file: its time, its figures, and the first eight bytes of the SHA-256 of those.
const ROW_BYTES: usize = 8 * (1 + FIGURES + 1);
const ROW_BYTES_BEFORE: usize = 8 * (1 + FIGURES_BEFORE + 1);
/// How often the file gets what is new.
const SAVE_INTERVAL: u64 = 60;

/// How long a row is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Step {
    /// Kept for an hour.
    Second,
    /// Kept for a week.
    #[default]
    Minute,
    /// Kept for a year of 366 days.
    Hour,
}

impl Step {
    const ALL: [Self; 3] = [Self::Second, Self::Minute, Self::Hour];

    const fn seconds(self) -> u64 {
        match self {
            Self::Second => 1,
            Self::Minute => 60,
            Self::Hour => 3600,
        }
    }

    /// Rows that are kept.
    const fn rows(self) -> usize {
        match self {
            Self::Second => 3600,
            Self::Minute => 7 * 24 * 60,
            Self::Hour => 366 * 24,
        }
    }
}

/// Rows of the history, by columns that have one figure for each row. What is not known has no row.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryPage {
    /// How long a row is, in seconds.
    pub step_seconds: u64,
    /// When each row begins, in seconds since 1970.
    pub at: Vec<u64>,
    /// Room for data on all drives, at the end of the row.
    pub capacity_bytes: Vec<u64>,
    /// Data blocks in use, at the end of the row.
    pub used_bytes: Vec<u64>,
    /// What would be in use without deduplication and compression, at the end of the row.
    pub logical_bytes: Vec<u64>,
    /// What compression saves, at the end of the row.
    pub compression_saved_bytes: Vec<u64>,
    /// Read commands of hosts within the row.
    pub read_commands: Vec<u64>,
    /// Write commands of hosts within the row.
    pub write_commands: Vec<u64>,
    /// Bytes that hosts read within the row.
    pub read_bytes: Vec<u64>,
    /// Bytes that hosts wrote within the row.
    pub written_bytes: Vec<u64>,
    /// Half of the reads within the row took at most this long, in microseconds; 0: there were none.
    pub read_p50_us: Vec<u64>,
    /// 99 of a hundred did.
    pub read_p99_us: Vec<u64>,
    /// Half of the writes.
    pub write_p50_us: Vec<u64>,
    /// 99 of a hundred.
    pub write_p99_us: Vec<u64>,
}

/// What hosts did since the daemon started.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// Read and write commands, bytes read and written.
    pub(crate) counts: [u64; 4],
    /// How long reads and writes took.
    pub(crate) latencies: [Latency; 2],
}

/// A row: its beginning, four figures at its end, four sums of what happened within it, and of its reads and writes the
/// 50th and 99th percentile in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Row {
    at: u64,
    levels: [u64; 4],
    sums: [u64; 4],
    latencies: [[u32; 2]; 2],
}

/// The 50th and 99th percentile, in microseconds.
fn percentiles(latency: &Latency) -> [u32; 2] {
    [500, 990].map(|permille| {
        let us = latency.permille_ns(permille).div_ceil(1000);
        u32::try_from(us).unwrap_or(u32::MAX)
    })
}

impl Row {
    /// Adds what happened later within the same row.
    fn add(&mut self, later: &Self) {
        self.levels = later.levels;
        for (sum, more) in self.sums.iter_mut().zip(later.sums) {
            *sum = sum.saturating_add(more);
        }
        // They are those of the whole row already, as far as this daemon saw it.
        for (mine, theirs) in self.latencies.iter_mut().zip(later.latencies) {
            if theirs != [0, 0] {
                *mine = theirs;
            }
        }
    }

    fn to_bytes(self) -> [u8; ROW_BYTES] {
        let mut bytes = [0; ROW_BYTES];
        let packed = self
            .latencies
            .map(|[p50, p99]| u64::from(p99) << 32 | u64::from(p50));
        let figures = [self.at].into_iter().chain(self.levels);
        let figures = figures.chain(self.sums).chain(packed);
        for (place, figure) in bytes.chunks_exact_mut(8).zip(figures) {
            place.copy_from_slice(&figure.to_le_bytes());
        }
        let (figures, sum) = bytes.split_at_mut(ROW_BYTES - 8);
        sum.copy_from_slice(&sha256(figures)[..8]);
        bytes
    }

    /// A row of this version or of the one before, whose last figures are missing.
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (figures, sum) = bytes.split_at_checked(bytes.len().checked_sub(8)?)?;
        if sha256(figures)[..8] != *sum {
            return None;
        }
        let mut numbers = figures.chunks_exact(8).map(|number| {
            let number: Result<[u8; 8], _> = number.try_into();
            number.map_or(0, u64::from_le_bytes)
        });
        let mut next = || numbers.next().unwrap_or(0);
        Some(Self {
            at: next(),
            levels: [next(), next(), next(), next()],
            sums: [next(), next(), next(), next()],
            latencies: [next(), next()].map(|packed| [packed as u32, (packed >> 32) as u32]),
        })
    }
}

/// The rows of one step. A row with the time 0 is none.
#[derive(Debug)]
struct Ring {
    step: Step,
    rows: Vec<Row>,
    /// Places that the file does not have yet.
    unsaved: Vec<usize>,
    /// The row that is being filled, and what hosts had done when it began.
    begun: (u64, [Latency; 2]),
}

impl Ring {
    fn new(step: Step) -> Self {
        Self {
            step,
            rows: vec![Row::default(); step.rows()],
            unsaved: Vec::new(),
            begun: Default::default(),
        }
    }

    fn place(&self, at: u64) -> usize {
        let place = at / self.step.seconds() % self.step.rows() as u64;
        usize::try_from(place).unwrap_or(0)
    }

    /// Adds a second; `before` is what hosts had done when it began, `now` what they have done at its end.
    fn add(&mut self, second: &Row, before: &[Latency; 2], now: &[Latency; 2]) {
        let at = second.at - second.at % self.step.seconds();
        if self.begun.0 != at {
            self.begun = (at, before.clone());
        }
        let [reads, writes] = &self.begun.1;
        let latencies = [now[0].since(reads), now[1].since(writes)];
        let second = Row {
            at,
            latencies: latencies.map(|latency| percentiles(&latency)),
            ..*second
        };
        let place = self.place(at);
        let row = &mut self.rows[place];
        match row.at == at {
            true => row.add(&second),
            false => *row = second,
        }
        if self.unsaved.last() != Some(&place) {
            self.unsaved.push(place);
        }
    }

    /// The file has none of the rows.
    fn save_all(&mut self) {
        self.unsaved = (0..self.rows.len()).collect();
    }

    /// Takes a row out of a file, if it belongs to that place.
    fn restore(&mut self, place: usize, row: Row) {
        if row.at > 0 && row.at.is_multiple_of(self.step.seconds()) && self.place(row.at) == place {
            self.rows[place] = row;
        }
    }

    /// The rows behind `since` and up to `now` that are kept, the oldest first.
    fn since(&self, since: u64, now: u64) -> Vec<Row> {
        let kept = self.step.seconds() * self.step.rows() as u64;
        let oldest = now.saturating_sub(kept).max(since);
        let is_shown = |row: &&Row| row.at > oldest && row.at <= now;
        let mut rows: Vec<Row> = self.rows.iter().filter(is_shown).copied().collect();
        rows.sort_unstable_by_key(|row| row.at);
        rows
    }
}

/// The history of a pool. Usable from every thread.
#[derive(Debug)]
pub struct History(Mutex<Rings>);

#[derive(Debug)]
struct Rings {
    rings: [Ring; 3],
    /// What hosts had done at the last look.
    seen: Option<Seen>,
    file: Option<File>,
    saved: u64,
}

impl History {
    /// A history that is lost at the end, for a pool in memory.
    #[must_use]
    pub fn in_memory() -> Self {
        Self(Mutex::new(Rings {
            rings: Step::ALL.map(Ring::new),
            seen: None,
            file: None,
            saved: 0,
        }))
    }

    /// The history in a pool's folder; a new one if there is none.
    ///
    /// # Errors
    /// The file cannot be read or written, or another version wrote it.
    pub fn open(dir: &Path) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).mode(0o600);
        let path = dir.join(FILE);
        let mut file = options.open(&path)?;
        let rows: usize = Step::ALL.map(Step::rows).iter().sum();
        let length = ROWS_AT + (rows * ROW_BYTES) as u64;
        let mut bytes = Vec::new();
        (&mut file).take(length).read_to_end(&mut bytes)?;
        let is_before = bytes.starts_with(MAGIC_BEFORE);
        if !bytes.is_empty() && !bytes.starts_with(MAGIC) && !is_before {
            return Err(io::Error::other("another version wrote the file 'history'"));
        }
        let mut rings = Step::ALL.map(Ring::new);
        let row_bytes = if is_before {
            ROW_BYTES_BEFORE
        } else {
            ROW_BYTES
        };
        let mut stored = bytes
            .get(ROWS_AT as usize..)
            .unwrap_or_default()
            .chunks(row_bytes);
        for ring in &mut rings {
            for place in 0..ring.rows.len() {
                if let Some(row) = stored.next().and_then(Row::from_bytes) {
                    ring.restore(place, row);
                }
            }
        }
        if is_before {
            let new = dir.join(NEW_FILE);
            file = options.truncate(true).open(&new)?;
            rings.iter_mut().for_each(Ring::save_all);
            save(&mut rings, &file)?;
            file.write_all_at(MAGIC, 0)?;
            fs::rename(&new, &path)?;
        }
        file.write_all_at(MAGIC, 0)?;
        file.set_len(length)?;
        Ok(Self(Mutex::new(Rings {
            rings,
            seen: None,
            file: Some(file),
            saved: 0,
        })))
    }

    /// Adds how it is at this second, and what happened since the last look.
    ///
    /// # Errors
    /// The file cannot be written. The rows are in memory all the same, and the next save writes them.
    pub(crate) fn look(&self, now: u64, levels: [u64; 4], seen: Seen) -> io::Result<()> {
        let mut all = lock_whole(&self.0);
        let before = all.seen.replace(seen.clone());
        let before = before.unwrap_or_else(|| seen.clone());
        let rose = |index: usize| seen.counts[index].saturating_sub(before.counts[index]);
        let row = Row {
            at: now,
            levels,
            sums: std::array::from_fn(rose),
            ..Row::default()
        };
        for ring in &mut all.rings {
            ring.add(&row, &before.latencies, &seen.latencies);
        }
        match now.abs_diff(all.saved) < SAVE_INTERVAL {
            true => Ok(()),
            false => all.save(now),
        }
    }

    /// Writes what the file does not have yet.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save(&self) -> io::Result<()> {
        let mut all = lock_whole(&self.0);
        let saved = all.saved;
        all.save(saved)
    }

    /// The rows behind `since` and up to `now`.
    pub(crate) fn page(&self, step: Step, since: u64, now: u64) -> HistoryPage {
        let rows = {
            let all = lock_whole(&self.0);
            let ring = all.rings.iter().find(|ring| ring.step == step);
            ring.map_or_else(Vec::new, |ring| ring.since(since, now))
        };
        let column = |figure: fn(&Row) -> u64| rows.iter().map(figure).collect();
        HistoryPage {
            step_seconds: step.seconds(),
            at: column(|row| row.at),
            capacity_bytes: column(|row| row.levels[0]),
            used_bytes: column(|row| row.levels[1]),
            logical_bytes: column(|row| row.levels[2]),
            compression_saved_bytes: column(|row| row.levels[3]),
            read_commands: column(|row| row.sums[0]),
            write_commands: column(|row| row.sums[1]),
            read_bytes: column(|row| row.sums[2]),
            written_bytes: column(|row| row.sums[3]),
            read_p50_us: column(|row| row.latencies[0][0].into()),
            read_p99_us: column(|row| row.latencies[0][1].into()),
            write_p50_us: column(|row| row.latencies[1][0].into()),
            write_p99_us: column(|row| row.latencies[1][1].into()),
        }
    }
}

impl Rings {
    fn save(&mut self, now: u64) -> io::Result<()> {
        self.saved = now;
        match &self.file {
            Some(file) => save(&mut self.rings, file),
            None => {
                self.rings.iter_mut().for_each(|it| it.unsaved.clear());
                Ok(())
            }
        }
    }
}

/// Writes the rows that the file does not have yet.
fn save(rings: &mut [Ring], file: &File) -> io::Result<()> {
    // Each place once: however long the file cannot be written, there are no more of them than rows.
    for ring in rings.iter_mut() {
        ring.unsaved.sort_unstable();
        ring.unsaved.dedup();
    }
    let mut at = ROWS_AT;
    for ring in rings {
        // Rows beside each other go in one write.
        for run in ring.unsaved.chunk_by(|one, next| next - one == 1) {
            let bytes: Vec<u8> = run
                .iter()
                .flat_map(|place| ring.rows[*place].to_bytes())
                .collect();
            file.write_all_at(&bytes, at + (run[0] * ROW_BYTES) as u64)?;
        }
        ring.unsaved.clear();
        at += (ring.rows.len() * ROW_BYTES) as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A Monday in November 2026, at midnight.
    const BEGIN: u64 = 1_795_392_000;
    const YEAR: u64 = 366 * 86_400;

    /// So many writes, each of which took 100 us.
    fn seen(counts: [u64; 4], writes: u64) -> Seen {
        let json = serde_json::json!({
            "commands": 0, "total_ns": 0, "mean_ns": 0, "p50_ns": 0, "p99_ns": 0, "p999_ns": 0,
            "buckets": [{"below_ns": 114_688, "commands": writes}],
        });
        let writes = serde_json::from_value(json).expect("a latency");
        Seen {
            counts,
            latencies: [Latency::default(), writes],
        }
    }

    /// Looks at each of these seconds: as many bytes are in use as seconds have gone by, and each has three writes.
    fn live(history: &History, seconds: impl Iterator<Item = u64>) {
        for second in seconds {
            let gone = second - BEGIN;
            let seen = seen([0, 3 * gone, 0, 4096 * gone], 3 * gone);
            let looked = history.look(second, [u64::MAX, gone, 2 * gone, 0], seen);
            looked.expect("it is kept");
        }
    }

    #[test]
    fn a_year_is_kept_by_the_hour_a_week_by_the_minute_an_hour_by_the_second() {
        let history = History::in_memory();
        let end = BEGIN + YEAR + 30 * 86_400;
        // Once a minute is enough for the long ones; the last two hours by the second.
        live(&history, (BEGIN..end - 7200).step_by(60));
        live(&history, end - 7200..=end);
        for (step, rows) in [
            (Step::Hour, 366 * 24),
            (Step::Minute, 10_080),
            (Step::Second, 3600),
        ] {
            let page = history.page(step, 0, end);
            assert_eq!(page.at.len(), rows, "{step:?}");
            assert_eq!(page.at.last(), Some(&end), "{step:?}");
            assert!(
                page.at
                    .is_sorted_by(|one, next| next - one == step.seconds())
            );
            // Levels are those of the end of a row, sums those of all of it.
            let row = rows - 2;
            assert_eq!(page.write_commands[row], 3 * step.seconds(), "{step:?}");
            assert_eq!(page.written_bytes[row], 4096 * step.seconds());
            assert_eq!((page.write_p50_us[row], page.write_p99_us[row]), (115, 115));
            assert_eq!((page.read_p50_us[row], page.read_p99_us[row]), (0, 0));
            assert_eq!(
                page.used_bytes[row],
                page.at[row] + step.seconds() - 1 - BEGIN
            );
        }
        let few = history.page(Step::Second, end - 5, end);
        assert_eq!(few.at, (end - 4..=end).collect::<Vec<_>>());
    }

    #[test]
    fn it_survives_a_restart_and_counts_begin_anew() {
        let folder = tempfile::tempdir().expect("a folder");
        let history = History::open(folder.path()).expect("a new one");
        live(&history, BEGIN..BEGIN + 200);
        history.save().expect("saved");
        drop(history);
        let history = History::open(folder.path()).expect("the same");
        let now = BEGIN + 299;
        // The daemon counts from 0 again.
        history.look(now, [9; 4], seen([5; 4], 5)).expect("kept");
        history.look(now, [9; 4], seen([7; 4], 5)).expect("kept");
        let page = history.page(Step::Second, 0, now);
        assert_eq!(page.at.len(), 201);
        assert_eq!((page.used_bytes[199], page.used_bytes[200]), (199, 9));
        assert_eq!(
            page.write_commands[200], 2,
            "what was counted before is not known"
        );
        let minutes = history.page(Step::Minute, 0, now);
        assert_eq!(minutes.write_commands, [3 * 59, 180, 180, 60, 2]);
        let size = folder.path().join(FILE).metadata().expect("a file").len();
        assert!(size < 5 << 19, "{size}");
    }

    #[test]
    fn a_row_that_was_not_written_whole_is_none_and_harms_no_other() {
        let folder = tempfile::tempdir().expect("a folder");
        let history = History::open(folder.path()).expect("a new one");
        live(&history, BEGIN..BEGIN + 100);
        history.save().expect("saved");
        drop(history);
        let path = folder.path().join(FILE);
        let mut bytes = std::fs::read(&path).expect("a file");
        let place = (BEGIN + 7) % Step::Second.rows() as u64;
        bytes[ROWS_AT as usize + place as usize * ROW_BYTES + 20] ^= 1;
        std::fs::write(&path, &bytes).expect("written");
        let history = History::open(folder.path()).expect("the same");
        let page = history.page(Step::Second, 0, BEGIN + 99);
        assert_eq!(page.at.len(), 99);
        assert!(!page.at.contains(&(BEGIN + 7)));
        // A file that ends too early has what is there.
        std::fs::write(&path, &bytes[..ROWS_AT as usize + 3]).expect("written");
        let history = History::open(folder.path()).expect("the same");
        assert!(history.page(Step::Second, 0, BEGIN + 99).at.is_empty());
        std::fs::write(&path, b"onefold history3").expect("written");
        let refused = History::open(folder.path()).expect_err("of another version");
        assert!(refused.to_string().contains("another version"), "{refused}");
    }

    #[test]
    fn a_row_has_the_percentiles_of_all_of_it() {
        let history = History::in_memory();
        let slow = |slow: u64| {
            let json = serde_json::json!({
                "commands": 0, "total_ns": 0, "mean_ns": 0, "p50_ns": 0, "p99_ns": 0, "p999_ns": 0,
                "buckets": [{"below_ns": 2048, "commands": 90}, {"below_ns": 5_242_880, "commands": slow}],
            });
            let reads = serde_json::from_value(json).expect("a latency");
            Seen {
                latencies: [reads, Latency::default()],
                ..Seen::default()
            }
        };
        // The first look is the beginning. Then one slow read in each second of a minute, and nothing in the next one.
        for second in 0..120 {
            let looked = history.look(BEGIN + second, [0; 4], slow(second.min(59)));
            looked.expect("kept");
        }
        let page = history.page(Step::Minute, 0, BEGIN + 119);
        assert_eq!(
            (&page.read_p50_us[..], &page.read_p99_us[..]),
            (&[5243, 0][..], &[5243, 0][..])
        );
        let page = history.page(Step::Second, 0, BEGIN + 119);
        assert_eq!((page.read_p99_us[59], page.read_p99_us[60]), (5243, 0));
    }

    #[test]
    fn a_file_of_the_version_before_is_rewritten_and_keeps_its_rows() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(FILE);
        let mut bytes = vec![0; ROWS_AT as usize];
        bytes[..16].copy_from_slice(MAGIC_BEFORE);
        let rows: usize = Step::ALL.map(Step::rows).iter().sum();
        bytes.resize(bytes.len() + rows * ROW_BYTES_BEFORE, 0);
        let place = (BEGIN + 7) % Step::Second.rows() as u64;
        let place = ROWS_AT as usize + place as usize * ROW_BYTES_BEFORE;
        let figures = [BEGIN + 7, 1, 2, 3, 4, 5, 6, 7, 8];
        let mut row: Vec<u8> = figures
            .iter()
            .flat_map(|it: &u64| it.to_le_bytes())
            .collect();
        row.extend_from_slice(&sha256(&row)[..8]);
        bytes[place..place + ROW_BYTES_BEFORE].copy_from_slice(&row);
        std::fs::write(&path, &bytes).expect("written");
        for _ in 0..2 {
            let history = History::open(folder.path()).expect("it can be read");
            let page = history.page(Step::Second, 0, BEGIN + 9);
            assert_eq!(
                (&page.at[..], &page.used_bytes[..]),
                (&[BEGIN + 7][..], &[2][..])
            );
            assert_eq!(
                (&page.written_bytes[..], &page.read_p99_us[..]),
                (&[8][..], &[0][..])
            );
            let bytes = std::fs::read(&path).expect("a file");
            assert!(bytes.starts_with(MAGIC));
        }
        assert!(!folder.path().join(NEW_FILE).exists());
    }

    #[test]
    fn a_clock_that_is_set_back_writes_over_what_it_meets_and_shows_no_future() {
        let history = History::in_memory();
        live(&history, BEGIN + 1000..BEGIN + 1100);
        live(&history, BEGIN + 1050..BEGIN + 1060);
        let page = history.page(Step::Second, 0, BEGIN + 1059);
        assert_eq!(page.at.last(), Some(&(BEGIN + 1059)));
        assert_eq!(page.at.len(), 60);
    }
}
