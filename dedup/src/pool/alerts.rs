//! Alerts: what is wrong with a pool now, since when, and what helps.
//!
//! Guarantees:
//! * What is wrong is logged once when it begins and once when it is over, however often it is met in between.
//! * What is over leaves the list. A drive that failed counts as well again when it works and has not failed for
//!   [`crate::EngineConfig::quiet`], so that the alert does not come and go.
//! * Memory is bounded: there are as many entries as kinds of work, and four for each drive.
//! * While nothing is wrong, a command that succeeds costs one load of an atomic.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use drives::DriveError;
use meta::FolderRoom;
use serde::{Deserialize, Serialize};

use crate::drive_io::drive_state::DriveState;
use crate::pool::fill_level::percent;
use crate::sync::wait::lock;
use crate::{ErrorKind, Result};

/// Free bytes of a drive's file system from which on it counts as having room again.
const ROOM_AGAIN_BYTES: u64 = 16 << 20;

/// How well a pool does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum HealthState {
    /// Nothing is wrong.
    #[default]
    #[serde(rename = "ok")]
    Ok,
    /// It works, and something needs attention.
    #[serde(rename = "degraded")]
    Degraded,
    /// Writes fail.
    #[serde(rename = "takes no writes")]
    TakesNoWrites,
}

impl std::fmt::Display for HealthState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Ok => "ok",
            Self::Degraded => "degraded",
            Self::TakesNoWrites => "takes no writes",
        })
    }
}

/// Something that is wrong with a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reason {
    /// What is wrong with which object.
    pub what: String,
    /// Since when: a time of RFC 3339, in UTC, to the second.
    pub since: String,
    /// What helps.
    pub remedy: String,
}

/// How a pool does, and why. What stops writes comes first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// The worst of all that is wrong.
    pub state: HealthState,
    /// What is wrong; empty if nothing is.
    pub reasons: Vec<Reason>,
    /// Writes that failed since the pool was opened, for whatever is or was wrong with the pool.
    pub refused_writes: u64,
}

/// A volume with data on a drive that is in trouble.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AffectedVolume {
    /// The volume's name.
    pub name: String,
    /// Its mapped sub-blocks on the drive, in bytes.
    pub bytes: u64,
}

/// What a drive is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Action {
    Read,
    Write,
    Flush,
}

impl Action {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Flush => "flush",
        }
    }
}

/// Work that the engine does by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Work {
    Flush,
    Checkpoint,
    Freeing,
    Loading,
    OnDiskIndex,
    Damage,
    DamageList,
    Survey,
    Rebuild,
    Move,
}

impl Work {
    /// What fails, and what that means.
    fn failure(self) -> &'static str {
        match self {
            Self::Flush => "acknowledged writes cannot be made to survive a loss of power",
            Self::Checkpoint => {
                "changes in the journal cannot be stored in the metadata; when the journal is full, writes fail"
            }
            Self::Freeing => "the space of what was trimmed and deleted cannot be freed",
            Self::Loading => "what is known of the pool's blocks cannot be loaded",
            Self::OnDiskIndex => "where contents are cannot be noted: some are stored twice",
            Self::Damage => "damaged blocks cannot be looked after",
            Self::DamageList => "the list of damaged blocks cannot be written",
            Self::Survey => "what volumes share cannot be counted",
            Self::Rebuild => {
                "a drive cannot be rebuilt, so some data have fewer copies than they should"
            }
            Self::Move => "data cannot be moved between drives",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    /// Writes found no room in the pool.
    PoolFull,
    /// The file system of the pool's folder has no room for the metadata.
    FolderFull,
    /// Writes failed for a reason that has no entry of its own.
    Writes,
    /// A drive, by its index.
    Drive(u16, Action),
    /// Some data have fewer copies than they should.
    Copies,
    Damage,
    /// A drive tells that it may fail soon, by its index.
    Health(u16),
    Fill,
    /// The file system of the pool's folder fills up.
    FolderFill,
    Work(Work),
}

#[derive(Clone, Debug)]
struct Entry {
    what: String,
    remedy: String,
    since: SystemTime,
    /// When it was met last.
    last: SystemTime,
    /// How often it was met.
    times: u64,
    /// The same worked after that.
    worked_since: bool,
    /// Writes that were refused before it began.
    refused_before: u64,
    /// What a drive's last error says.
    error: String,
    no_space: bool,
}

/// Whether it is logged here.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Log {
    Tell,
    /// Another part of the engine logs it.
    Silent,
}

#[derive(Default)]
struct Book(BTreeMap<Key, Entry>);

impl Book {
    /// Drives whose file systems were full.
    fn drives_without_room(&self) -> impl Iterator<Item = u16> {
        self.0.iter().filter_map(|(key, entry)| match key {
            Key::Drive(index, _) if entry.no_space => Some(*index),
            _ => None,
        })
    }

    fn raise(
        &mut self,
        (key, log): (Key, Log),
        (what, remedy): (String, String),
        now: SystemTime,
        refused: u64,
    ) -> &mut Entry {
        let is_new = !self.0.contains_key(&key);
        if is_new && log == Log::Tell {
            tracing::error!(event = "alert", "{what}; {remedy}");
        }
        let entry = self.0.entry(key).or_insert_with(|| Entry {
            what: String::new(),
            remedy: String::new(),
            since: now,
            last: now,
            times: 0,
            worked_since: false,
            refused_before: refused,
            error: String::new(),
            no_space: false,
        });
        (entry.what, entry.remedy) = (what, remedy);
        (entry.last, entry.worked_since) = (now, false);
        entry.times += 1;
        entry
    }

    fn end(&mut self, key: Key, log: Log, now: SystemTime, refused: u64) {
        let Some(entry) = self.0.remove(&key) else {
            return;
        };
        if log == Log::Tell {
            tracing::info!(
                event = "alert",
                seconds = since(entry.since, now).as_secs(),
                times = entry.times,
                writes_refused = refused.saturating_sub(entry.refused_before),
                "over: {}",
                entry.what
            );
        }
    }

    fn worked(&mut self, key: Key) {
        if let Some(entry) = self.0.get_mut(&key) {
            entry.worked_since = true;
        }
    }

    /// Whether it was not met for a while.
    fn is_quiet(&self, key: Key, now: SystemTime, quiet: Duration) -> bool {
        let entry = self.0.get(&key);
        entry.is_some_and(|entry| since(entry.last, now) >= quiet)
    }

    /// What an entry means, in a pool of so many drives.
    fn state(&self, key: Key, entry: &Entry, drives: usize) -> HealthState {
        let stops = match key {
            Key::PoolFull | Key::FolderFull | Key::Writes => true,
            Key::Drive(_, Action::Write) => {
                let fails = |(key, entry): (&Key, &Entry)| {
                    matches!(key, Key::Drive(_, Action::Write)) && !entry.worked_since
                };
                !entry.worked_since && self.0.iter().filter(|it| fails(*it)).count() >= drives
            }
            _ => false,
        };
        match stops {
            true => HealthState::TakesNoWrites,
            false => HealthState::Degraded,
        }
    }

    fn verdict(&self, read_only: Option<(&str, SystemTime)>, drives: usize) -> Verdict {
        let mut all: Vec<(HealthState, Reason)> = Vec::new();
        if let Some((reason, at)) = read_only {
            let (what, remedy) = match reason.rsplit_once("; ") {
                Some((what, remedy)) => (what, remedy),
                None => (
                    reason,
                    "see the log, mend the cause, and start the daemon again",
                ),
            };
            let reason = Reason {
                what: format!("the pool is read-only: {what}"),
                since: rfc3339(at),
                remedy: remedy.to_owned(),
            };
            all.push((HealthState::TakesNoWrites, reason));
        }
        for (key, entry) in &self.0 {
            if *key == Key::Writes && read_only.is_some() {
                continue; // that is why
            }
            let reason = Reason {
                what: entry.what.clone(),
                since: rfc3339(entry.since),
                remedy: entry.remedy.clone(),
            };
            all.push((self.state(*key, entry, drives), reason));
        }
        all.sort_by_key(|(state, _)| std::cmp::Reverse(*state));
        Verdict {
            state: all.first().map_or(HealthState::Ok, |(state, _)| *state),
            reasons: all.into_iter().map(|(_, reason)| reason).collect(),
            refused_writes: 0,
        }
    }
}

/// What is wrong with the pool.
pub(crate) struct Alerts {
    book: Mutex<Book>,
    /// Whether it has anything that a success can end.
    is_watched: AtomicBool,
    refused: AtomicU64,
    /// How long something must not have failed before it can count as over.
    quiet: Duration,
}

/// A drive on which something fails.
pub(crate) struct FailingDrive {
    pub(crate) index: u16,
    pub(crate) errors: u64,
    pub(crate) last_error: String,
    pub(crate) since: SystemTime,
}

impl Alerts {
    pub(crate) fn new(quiet: Duration) -> Self {
        Self {
            book: Mutex::default(),
            is_watched: AtomicBool::new(false),
            refused: AtomicU64::new(0),
            quiet,
        }
    }

    pub(crate) fn is_watched(&self) -> bool {
        self.is_watched.load(Ordering::Relaxed)
    }

    fn change<T>(&self, change: impl FnOnce(&mut Book, SystemTime, u64) -> T) -> T {
        let mut book = lock(&self.book);
        let refused = self.refused.load(Ordering::Relaxed);
        let result = change(&mut book, SystemTime::now(), refused);
        let is_watched = |key: &Key| matches!(key, Key::Writes | Key::Drive(..));
        self.is_watched
            .store(book.0.keys().any(is_watched), Ordering::Relaxed);
        result
    }

    /// Work of the engine failed, or succeeded.
    pub(crate) fn work(&self, work: Work, result: Result<()>) {
        match result {
            Err(error) => self.change(|book, now, refused| {
                let text = (
                    work.failure().to_owned(),
                    format!("{error}; it is tried again and again"),
                );
                book.raise((Key::Work(work), Log::Tell), text, now, refused);
            }),
            Ok(()) => self.change(|book, now, refused| {
                book.end(Key::Work(work), Log::Tell, now, refused);
                if work == Work::Checkpoint {
                    // The journal has room again.
                    book.end(Key::Writes, Log::Tell, now, refused);
                }
            }),
        }
    }

    pub(crate) fn drive_failed(&self, index: u16, action: Action, error: &DriveError) {
        let text = error.to_string();
        let (what, own_remedy) = text.split_once("; ").unwrap_or((&text, ""));
        let remedy = match error.kind() {
            // Only the drive knows what it lies on.
            drives::ErrorKind::NoSpace if !own_remedy.is_empty() => own_remedy,
            drives::ErrorKind::NoSpace => "make room where the drive's data lie",
            _ => {
                "check the drive: the kernel's log has the cause; `onefold status` names the volumes with data on it"
            }
        };
        let what = format!("a {} failed: {what}", action.name());
        self.change(|book, now, refused| {
            let key = (Key::Drive(index, action), Log::Tell);
            let entry = book.raise(key, (what, remedy.to_owned()), now, refused);
            entry.error = format!("{}: {text}", action.name());
            entry.no_space = error.kind() == drives::ErrorKind::NoSpace;
        });
    }

    /// What a drive tells of its own health: what is wrong and the remedy, or that it is well.
    pub(crate) fn drive_health(&self, index: u16, warning: Option<(String, String)>) {
        let key = Key::Health(index);
        self.change(|book, now, refused| match warning {
            Some(text) => drop(book.raise((key, Log::Tell), text, now, refused)),
            None => book.end(key, Log::Tell, now, refused),
        });
    }

    pub(crate) fn drive_worked(&self, index: usize, action: Action) {
        if let Ok(index) = u16::try_from(index)
            && self.is_watched()
        {
            lock(&self.book).worked(Key::Drive(index, action));
        }
    }

    /// A write found no room in a pool of so many bytes.
    pub(crate) fn pool_is_full(&self, capacity_bytes: u64) {
        let text = (
            format!(
                "the pool is full, and writes of new data fail: all of its {capacity_bytes} bytes are in use"
            ),
            "delete or trim data, or add a drive".to_owned(),
        );
        self.change(|book, now, refused| {
            book.raise((Key::PoolFull, Log::Tell), text, now, refused);
        });
    }

    /// How much room the metadata has; `level`: the fill level to be warned of, in percent, that is reached.
    pub(crate) fn folder(&self, room: Option<&FolderRoom>, level: Option<u8>) {
        let folder = room.map_or_else(String::new, |room| room.dir.display().to_string());
        let is_full = room.is_some_and(|room| room.is_short);
        let full = is_full.then(|| {
            (
                format!(
                    "the file system of the pool's folder {folder} is full, and writes of new data fail"
                ),
                "free space there".to_owned(),
            )
        });
        let fill = level.filter(|_| !is_full).map(|level| {
            (
                format!(
                    "the file system of the pool's folder {folder} is more than {level} % full"
                ),
                "free space there: when it is full, writes of new data fail".to_owned(),
            )
        });
        self.change(|book, at, refused| {
            let both = [
                (Key::FolderFull, Log::Tell, full),
                (Key::FolderFill, Log::Silent, fill),
            ];
            for (key, log, is_so) in both {
                match is_so {
                    Some(text) => drop(book.raise((key, log), text, at, refused)),
                    None => book.end(key, log, at, refused),
                }
            }
        });
    }

    /// Drives that are not online, and what each is.
    pub(crate) fn drives_off(&self, off: &[(String, DriveState)]) {
        let list: Vec<String> = off
            .iter()
            .map(|(drive, state)| format!("drive {drive} is {state}"))
            .collect();
        let first = off.iter().find(|(_, state)| *state == DriveState::Offline);
        let remedy = match first {
            Some((drive, _)) => format!(
                "use it again by `onefold drive online {drive}`, or replace it by `onefold drive replace {drive} NEW`"
            ),
            None => {
                "wait for the end of the rebuild: `onefold status` shows how far it is".to_owned()
            }
        };
        let what = format!(
            "{}: some data have fewer copies than they should",
            list.join(", ")
        );
        self.change(|book, now, refused| match off.is_empty() {
            true => book.end(Key::Copies, Log::Tell, now, refused),
            false => drop(book.raise((Key::Copies, Log::Tell), (what, remedy), now, refused)),
        });
    }

    /// What became of a host's write.
    pub(crate) fn written(&self, result: &Result<()>) {
        let error = match result {
            Ok(()) if self.is_watched() => return lock(&self.book).worked(Key::Writes),
            Ok(()) => return,
            Err(error) => error,
        };
        if !error.kind.is_of_the_pool() {
            return;
        }
        self.refused.fetch_add(1, Ordering::Relaxed);
        let explains = |key: &Key| match error.kind {
            ErrorKind::NoSpace => {
                matches!(
                    key,
                    Key::PoolFull | Key::FolderFull | Key::Drive(_, Action::Write)
                )
            }
            ErrorKind::Unavailable => matches!(key, Key::Drive(..)),
            _ => matches!(key, Key::Drive(_, Action::Write)),
        };
        if lock(&self.book).0.keys().any(explains) {
            return;
        }
        let text = (
            format!("writes fail: {error}"),
            "see the log for the cause".to_owned(),
        );
        self.change(|book, now, refused| {
            let entry = book.raise((Key::Writes, Log::Tell), text, now, refused);
            if entry.times == 1 {
                entry.refused_before = refused.saturating_sub(1);
            }
        });
    }

    /// How a pool of so many drives does, and why; `read_only`: why it takes no changes, and since when.
    pub(crate) fn verdict(&self, read_only: Option<(&str, SystemTime)>, drives: usize) -> Verdict {
        let mut verdict = lock(&self.book).verdict(read_only, drives);
        verdict.refused_writes = self.refused.load(Ordering::Relaxed);
        verdict
    }

    /// Drives on which something fails, by their index.
    pub(crate) fn failing_drives(&self) -> Vec<FailingDrive> {
        let mut found: Vec<FailingDrive> = Vec::new();
        for (key, entry) in &lock(&self.book).0 {
            let Key::Drive(index, _) = key else {
                continue;
            };
            match found.last_mut().filter(|last| last.index == *index) {
                Some(last) => {
                    last.errors += entry.times;
                    last.since = last.since.min(entry.since);
                    last.last_error = entry.error.clone();
                }
                None => found.push(FailingDrive {
                    index: *index,
                    errors: entry.times,
                    last_error: entry.error.clone(),
                    since: entry.since,
                }),
            }
        }
        found
    }

    /// Notes what the engine's state says, and ends what is over.
    pub(crate) fn look(&self, now: &Facts<'_>) {
        let fill = (now.fill_level.is_some()).then(|| {
            let percent = percent(now.used, now.capacity);
            (
                format!("the pool is {percent} % full"),
                "delete or trim data, or add a drive: when it is full, writes of new data fail"
                    .to_owned(),
            )
        });
        let damage = (now.damaged > 0).then(|| {
            (
                format!(
                    "{} blocks are damaged: reading what they hold is an error",
                    now.damaged
                ),
                "`onefold scrub status` names the volumes and ranges: write them again from a copy, and check the drive"
                    .to_owned(),
            )
        });
        // They are asked by system calls, which may take long: not under the lock.
        let full: Vec<u16> = lock(&self.book).drives_without_room().collect();
        let rooms: BTreeMap<u16, Option<u64>> = full
            .into_iter()
            .map(|index| (index, (now.drive)(index)))
            .collect();
        let has_room = |index: u16| {
            let bytes = rooms.get(&index).copied().flatten();
            bytes.is_some_and(|bytes| bytes >= ROOM_AGAIN_BYTES)
        };
        self.change(|book, at, refused| {
            for (key, is_so) in [(Key::Fill, fill), (Key::Damage, damage)] {
                match is_so {
                    Some(text) => drop(book.raise((key, Log::Silent), text, at, refused)),
                    None if key == Key::Fill => book.end(key, Log::Silent, at, refused),
                    None => book.end(key, Log::Tell, at, refused),
                }
            }
            let keys = book.0.keys().copied();
            let quiet: Vec<Key> = keys
                .filter(|key| book.is_quiet(*key, at, self.quiet))
                .collect();
            for key in quiet {
                let Some(entry) = book.0.get(&key) else {
                    continue;
                };
                let is_over = match key {
                    Key::PoolFull => now.free > 0,
                    Key::Writes => entry.worked_since,
                    Key::Drive(index, _) => {
                        entry.worked_since || (entry.no_space && has_room(index))
                    }
                    // Who raised it ends it.
                    Key::FolderFull
                    | Key::Copies
                    | Key::Damage
                    | Key::Health(_)
                    | Key::Fill
                    | Key::FolderFill
                    | Key::Work(_) => false,
                };
                if is_over {
                    book.end(key, Log::Tell, at, refused);
                }
            }
        });
    }
}

/// What the engine's state says; sizes in blocks.
pub(crate) struct Facts<'a> {
    pub(crate) used: u64,
    pub(crate) capacity: u64,
    pub(crate) free: u64,
    pub(crate) fill_level: Option<u8>,
    pub(crate) damaged: u64,
    /// Free bytes of the file system of a drive's file.
    pub(crate) drive: &'a dyn Fn(u16) -> Option<u64>,
}

fn since(then: SystemTime, now: SystemTime) -> Duration {
    // A clock that was set back makes it 0.
    now.duration_since(then).unwrap_or_default()
}

/// A time as RFC 3339 writes it, in UTC, to the second.
#[must_use]
pub fn rfc3339(at: SystemTime) -> String {
    let seconds = since(UNIX_EPOCH, at).as_secs();
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Years that begin in March end with the day that leap years have more. 400 years have 146,097 days,
    // and day 0 of these eras is the 1st of March of the year 0, 719,468 days before 1970.
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = (month_from_march + 2) % 12 + 1;
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z",
        second / 3600,
        second / 60 % 60,
        second % 60
    )
}

#[cfg(test)]
pub(crate) mod tests;
