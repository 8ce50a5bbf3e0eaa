//! The event log of a pool: a ring of records in two files of the pool's folder.
//!
//! Guarantees:
//! - Bounded: at most [`EVENTS_MAX`] events in memory, each of at most [`RECORD_BYTES_MAX`] bytes as it is written, and
//!   at most twice `FILE_BYTES_MAX` on the file system. The oldest go first.
//! - A line that a crash left half-written is dropped at the next start, with no harm to those before it.
//! - Numbers rise, over restarts too. A file that cannot be written costs no event in memory.
//! - Nobody misses events without being told: where events behind a number are gone, one of the kind [`SKIPPED`] stands
//!   for them and says how many.
//!
//! A record is a line of JSON: `tail` shows the file. Lines go to `events`; when it is full it becomes `events.old`, in
//! place of the one before. Nothing is synced: after a power cut the last events may be missing.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

/// Who follows the events at a time: each one holds a connection.
pub(crate) const STREAMS_MAX: usize = 64;

/// Events that are kept in memory, and answered.
pub const EVENTS_MAX: usize = 4096;

/// Bytes of an event as it is written. Longer messages are cut, then fields go.
pub const RECORD_BYTES_MAX: usize = 4096;

/// Bytes of a file that is full.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Bytes of a file that are read: what is behind them is no log that this program wrote.
const READ_BYTES_MAX: u64 = 2 * FILE_BYTES_MAX;

/// Characters of a message that is too long for a record.
const MESSAGE_CHARS_MAX: usize = 400;

/// The largest number that is read from a file. No pool comes there: it is beyond a billion events a second for a
/// century.
const ID_MAX: u64 = 1 << 62;

/// The kind of an event that stands for others that are gone. It is made for who asks, and is not in the log.
pub const SKIPPED: &str = "skipped";

/// The files' names in the pool's folder.
const FILE: &str = "events";
const OLD_FILE: &str = "events.old";

/// The files of a log, in the pool's folder.
pub const FILES: [&str; 2] = [FILE, OLD_FILE];

/// An event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Its number in the pool: each event has a larger one than those before it.
    pub id: u64,
    /// When: RFC 3339 in UTC, with milliseconds.
    pub at: String,
    /// What: `attach`, `detach`, `refused`, `admin` or `alert`; `skipped` for events that are gone, as many as its field
    /// `count` says; of all others the level of the log: `error`, `warning` or `notice`.
    pub kind: String,
    /// For people.
    pub message: String,
    /// What it is about: `host`, `subsystem`, `who`, `drive` and so on.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub fields: BTreeMap<String, String>,
}

impl Event {
    /// Stands for so many events that are gone, in front of the one that comes behind them.
    fn skipped(count: u64, next: &Self) -> Self {
        Self {
            id: next.id - 1,
            at: next.at.clone(),
            kind: SKIPPED.to_owned(),
            message: format!(
                "{count} events before the next one are gone: the pool keeps the latest {EVENTS_MAX} at most"
            ),
            fields: BTreeMap::from([("count".to_owned(), count.to_string())]),
        }
    }
}

/// An event that has no number yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewEvent {
    /// As [`Event::at`].
    pub at: String,
    /// As [`Event::kind`].
    pub kind: String,
    /// As [`Event::message`].
    pub message: String,
    /// As [`Event::fields`].
    pub fields: BTreeMap<String, String>,
}

/// Some events.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventPage {
    /// The oldest first.
    pub events: Vec<Event>,
    /// The number of the oldest event that is kept; `null` if there is none. Older ones are gone.
    pub oldest: Option<u64>,
    /// The number of the latest event; 0 if there was none.
    pub latest: u64,
}

/// The event log of a pool. Usable from every thread.
#[derive(Debug)]
pub struct EventLog {
    ring: Mutex<Ring>,
    /// The number of the latest event.
    latest: watch::Sender<u64>,
    streams: Arc<Semaphore>,
}

#[derive(Debug, Default)]
struct Ring {
    events: VecDeque<Arc<Event>>,
    next: u64,
    file: Option<LogFile>,
}

impl Ring {
    /// Up to so many events behind the one with that number, the oldest first. Where some are gone, one that says so
    /// stands for them.
    fn behind(&self, since: u64, limit: usize) -> Vec<Arc<Event>> {
        let first = self.events.partition_point(|event| event.id <= since);
        let (mut events, mut last) = (Vec::new(), since);
        for event in self.events.iter().skip(first) {
            if events.len() >= limit {
                break;
            }
            // Numbers rise by one: what is between two was there.
            if let gone @ 1.. = event.id - last - 1 {
                events.push(Arc::new(Event::skipped(gone, event)));
            }
            events.push(event.clone());
            last = event.id;
        }
        events.truncate(limit);
        events
    }
}

impl EventLog {
    /// A log that is lost at the end, for a pool in memory.
    #[must_use]
    pub fn in_memory() -> Self {
        Self::of(Ring {
            next: 1,
            ..Ring::default()
        })
    }

    /// The log in a pool's folder; a new one if there is none.
    ///
    /// # Errors
    /// The files cannot be read or written.
    pub fn open(dir: &Path) -> io::Result<Self> {
        let (path, old) = (dir.join(FILE), dir.join(OLD_FILE));
        let mut events: VecDeque<Arc<Event>> = VecDeque::new();
        for path in [&old, &path] {
            for event in read(path)? {
                // One of the two may be somebody's copy of before.
                if events.back().is_some_and(|last| last.id >= event.id) {
                    continue;
                }
                if events.len() >= EVENTS_MAX {
                    events.pop_front();
                }
                events.push_back(Arc::new(event));
            }
        }
        let next = events.back().map_or(0, |event| event.id) + 1;
        Ok(Self::of(Ring {
            events,
            next,
            file: Some(LogFile::open(path, old)?),
        }))
    }

    fn of(ring: Ring) -> Self {
        Self {
            latest: watch::Sender::new(ring.next - 1),
            ring: Mutex::new(ring),
            streams: Arc::new(Semaphore::new(STREAMS_MAX)),
        }
    }

    fn ring(&self) -> MutexGuard<'_, Ring> {
        // A half-made change is an event that is not in the file.
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an event. It blocks as long as the file system does: call it where nobody waits.
    ///
    /// # Errors
    /// The file cannot be written; the event is there until the program ends.
    pub fn add(&self, new: NewEvent) -> io::Result<()> {
        let (written, id) = {
            let mut ring = self.ring();
            let id = ring.next;
            let (event, line) = bounded(id, new);
            ring.next += 1;
            if ring.events.len() >= EVENTS_MAX {
                ring.events.pop_front();
            }
            ring.events.push_back(Arc::new(event));
            let file = ring.file.as_mut();
            (file.map_or(Ok(()), |file| file.append(&line)), id)
        };
        self.latest.send_replace(id);
        written
    }

    /// The number of the latest event; 0 if there was none.
    #[must_use]
    pub fn latest(&self) -> u64 {
        *self.latest.borrow()
    }

    /// Up to so many events behind that one, the oldest first; without it the latest.
    #[must_use]
    pub fn page(&self, since: Option<u64>, limit: usize) -> EventPage {
        let ring = self.ring();
        let events = match since {
            Some(since) => ring.behind(since, limit),
            None => {
                let latest = ring.events.len().saturating_sub(limit);
                ring.events.iter().skip(latest).cloned().collect()
            }
        };
        EventPage {
            events: events.iter().map(|event| Event::clone(event)).collect(),
            oldest: ring.events.front().map(|event| event.id),
            latest: ring.next - 1,
        }
    }

    /// The number after which a follower continues that has seen the event with the number `seen`: that one. If no
    /// event has that number yet, a power cut took the last events: then all that are kept may be new.
    pub(crate) fn resume(&self, seen: u64) -> u64 {
        let ring = self.ring();
        match seen < ring.next {
            true => seen,
            false => ring.events.front().map_or(ring.next, |event| event.id) - 1,
        }
    }

    /// A place among those who follow; `None` if all are taken.
    pub(crate) fn follower(self: Arc<Self>) -> Option<Follower> {
        let permit = self.streams.clone().try_acquire_owned().ok()?;
        Some(Follower {
            news: self.latest.subscribe(),
            log: self,
            _permit: permit,
        })
    }
}

/// Somebody who waits for events.
#[derive(Debug)]
pub(crate) struct Follower {
    log: Arc<EventLog>,
    news: watch::Receiver<u64>,
    _permit: OwnedSemaphorePermit,
}

impl Follower {
    /// Waits for events behind the one with that number; up to so many, the oldest first.
    pub(crate) async fn after(&self, since: u64, limit: usize) -> Vec<Arc<Event>> {
        let mut news = self.news.clone();
        loop {
            // An error means that the log is gone, which this value holds.
            let _ = news.wait_for(|latest| *latest > since).await;
            let events = self.log.ring().behind(since, limit);
            if !events.is_empty() {
                return events;
            }
        }
    }
}

/// The event and its line, cut so that the line keeps its bound.
fn bounded(id: u64, new: NewEvent) -> (Event, Vec<u8>) {
    let NewEvent {
        at,
        kind,
        message,
        fields,
    } = new;
    let mut event = Event {
        id,
        at,
        kind,
        message,
        fields,
    };
    let mut line = line_of(&event);
    if line.len() > RECORD_BYTES_MAX {
        if let Some((end, _)) = event.message.char_indices().nth(MESSAGE_CHARS_MAX) {
            event.message.truncate(end);
            event.message.push_str("...");
        }
        line = line_of(&event);
    }
    if line.len() > RECORD_BYTES_MAX {
        event.fields.clear();
        line = line_of(&event);
    }
    (event, line)
}

fn line_of(event: &Event) -> Vec<u8> {
    // A record of texts and a number is always JSON.
    let mut line = serde_json::to_vec(event).unwrap_or_default();
    line.push(b'\n');
    line
}

/// The events of a file, those that can be read. No file has none.
fn read(path: &Path) -> io::Result<Vec<Event>> {
    let text = match whole_lines(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        text => text?,
    };
    let lines = text.split(|byte| *byte == b'\n');
    let mut last = 0;
    let events = lines.filter_map(|line| serde_json::from_slice::<Event>(line).ok());
    // What does not rise was not written by this program.
    let rising = events.filter(|event| {
        let before = last;
        last = last.max(event.id.min(ID_MAX));
        event.id > before && event.id <= ID_MAX
    });
    Ok(rising.collect())
}

/// The file that lines are added to.
#[derive(Debug)]
struct LogFile {
    path: PathBuf,
    old: PathBuf,
    file: File,
    bytes: u64,
}

impl LogFile {
    fn open(path: PathBuf, old: PathBuf) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        let mut file = options.create(true).append(true).read(true).open(&path)?;
        let mut bytes = file.metadata()?.len();
        let whole = whole_lines(&path)?.len() as u64;
        if whole < bytes {
            // A line without an end would take the next one with it.
            file.set_len(whole)?;
            bytes = whole;
        }
        file.flush()?;
        Ok(Self {
            path,
            old,
            file,
            bytes,
        })
    }

    fn append(&mut self, line: &[u8]) -> io::Result<()> {
        if self.bytes + line.len() as u64 > FILE_BYTES_MAX {
            fs::rename(&self.path, &self.old)?;
            *self = Self::open(self.path.clone(), self.old.clone())?;
        }
        let before = self.bytes;
        match self.file.write_all(line) {
            Ok(()) => {
                self.bytes += line.len() as u64;
                Ok(())
            }
            Err(error) => {
                // Half a line would take the next one with it.
                let _ = self.file.set_len(before);
                Err(error)
            }
        }
    }
}

/// A file up to the end of its last whole line, of what is read of it.
fn whole_lines(path: &Path) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    File::open(path)?
        .take(READ_BYTES_MAX)
        .read_to_end(&mut text)?;
    let end = text.iter().rposition(|byte| *byte == b'\n');
    text.truncate(end.map_or(0, |end| end + 1));
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(message: &str) -> NewEvent {
        NewEvent {
            at: "2026-11-22T15:04:15.123Z".into(),
            kind: "attach".into(),
            message: message.into(),
            fields: BTreeMap::from([("host".into(), "nqn.x".into())]),
        }
    }

    fn messages(log: &EventLog, since: Option<u64>, limit: usize) -> Vec<String> {
        let page = log.page(since, limit);
        page.events.into_iter().map(|event| event.message).collect()
    }

    #[test]
    fn events_are_there_after_a_restart_and_numbers_go_on() {
        let dir = tempfile::tempdir().expect("a folder");
        let log = EventLog::open(dir.path()).expect("opened");
        assert_eq!((log.latest(), log.page(None, 9).oldest), (0, None));
        for text in ["a", "b", "c"] {
            log.add(event(text)).expect("written");
        }
        drop(log);
        let log = EventLog::open(dir.path()).expect("opened");
        log.add(event("d")).expect("written");
        assert_eq!(messages(&log, None, 2), ["c", "d"]);
        assert_eq!(messages(&log, Some(1), 2), ["b", "c"]);
        let page = log.page(Some(0), 100);
        assert_eq!((page.oldest, page.latest), (Some(1), 4));
        assert_eq!(page.events[3].fields["host"], "nqn.x");
    }

    #[test]
    fn a_line_that_a_crash_tore_is_dropped_and_harms_no_other() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join(FILE);
        let log = EventLog::open(dir.path()).expect("opened");
        log.add(event("a")).expect("written");
        log.add(event("b")).expect("written");
        drop(log);
        let whole = fs::read(&path).expect("read");
        let second = whole
            .iter()
            .position(|byte| *byte == b'\n')
            .expect("two lines")
            + 1;
        for end in second..whole.len() {
            fs::write(&path, &whole[..end]).expect("torn");
            let log = EventLog::open(dir.path()).expect("opened");
            log.add(event("c")).expect("written");
            drop(log);
            let log = EventLog::open(dir.path()).expect("opened");
            assert_eq!(messages(&log, None, 9), ["a", "c"], "torn at {end}");
            assert_eq!(log.latest(), 2);
        }
    }

    #[test]
    fn garbage_in_the_files_costs_only_itself() {
        let dir = tempfile::tempdir().expect("a folder");
        let good = |id| String::from_utf8(line_of(&bounded(id, event("x")).0)).expect("text");
        let text = format!(
            "\u{0}\u{1}\n{}{{\"id\":9}}\n[]\n{}{}",
            good(7),
            good(3),
            good(8)
        );
        fs::write(dir.path().join(FILE), text).expect("written");
        fs::write(dir.path().join(OLD_FILE), [0xff; 4096]).expect("written");
        let log = EventLog::open(dir.path()).expect("opened");
        let ids: Vec<u64> = log
            .page(None, 9)
            .events
            .iter()
            .map(|event| event.id)
            .collect();
        assert_eq!(ids, [7, 8]);
    }

    #[test]
    fn both_files_are_read_again_after_a_restart() {
        let dir = tempfile::tempdir().expect("a folder");
        let log = EventLog::open(dir.path()).expect("opened");
        let long = "x".repeat(RECORD_BYTES_MAX / 2);
        while !dir.path().join(OLD_FILE).exists() {
            log.add(event(&long)).expect("written");
        }
        let before = log.page(None, usize::MAX);
        drop(log);
        let log = EventLog::open(dir.path()).expect("opened");
        assert_eq!(log.page(None, usize::MAX), before);
        assert_eq!(
            (before.oldest, before.events.len() as u64),
            (Some(1), before.latest)
        );
    }

    #[test]
    fn a_file_in_the_place_of_another_costs_only_what_does_not_go_on() {
        let dir = tempfile::tempdir().expect("a folder");
        let lines = |ids: &[u64]| {
            let line = |id: &u64| line_of(&bounded(*id, event("x")).0);
            ids.iter().flat_map(line).collect::<Vec<u8>>()
        };
        fs::write(dir.path().join(OLD_FILE), lines(&[5, 6, u64::MAX])).expect("written");
        fs::write(dir.path().join(FILE), lines(&[2, 6, 7])).expect("written");
        let log = EventLog::open(dir.path()).expect("opened");
        log.add(event("next")).expect("written");
        let events = log.page(Some(4), 9).events;
        let ids: Vec<u64> = events.iter().map(|event| event.id).collect();
        assert_eq!(ids, [5, 6, 7, 8]);
    }

    #[test]
    fn the_log_stays_bounded_however_much_happens() {
        let dir = tempfile::tempdir().expect("a folder");
        let log = EventLog::open(dir.path()).expect("opened");
        let long = "é".repeat(RECORD_BYTES_MAX);
        let count = EVENTS_MAX + 500;
        for number in 0..count {
            let mut event = event(&long);
            event.fields.insert("number".into(), number.to_string());
            log.add(event).expect("written");
        }
        for file in [FILE, OLD_FILE] {
            let bytes = fs::metadata(dir.path().join(file)).expect("there").len();
            assert!(bytes <= FILE_BYTES_MAX, "{file}: {bytes}");
        }
        let page = log.page(Some(500), usize::MAX);
        assert_eq!(page.events.len(), EVENTS_MAX);
        assert_eq!(page.latest, count as u64);
        assert_eq!(page.oldest, Some(501));
        assert!(page.events[0].message.ends_with("..."));
        let mut huge = event(&long);
        huge.fields.insert("blob".into(), long.clone());
        assert!(bounded(1, huge).1.len() <= RECORD_BYTES_MAX);
    }

    #[test]
    fn events_that_are_gone_are_counted_where_they_were() {
        let log = EventLog::in_memory();
        let add = |count: usize| {
            for _ in 0..count {
                log.add(event("x")).expect("kept");
            }
        };
        add(EVENTS_MAX);
        assert_eq!(
            log.page(Some(0), 1).events[0].kind,
            "attach",
            "none is gone"
        );
        add(20);
        let page = log.page(Some(8), 2);
        let [skipped, first] = &page.events[..] else {
            panic!("{page:?}");
        };
        assert_eq!((skipped.kind.as_str(), skipped.id), (SKIPPED, 20));
        assert_eq!(skipped.fields["count"], "12");
        assert_eq!((first.kind.as_str(), first.id), ("attach", 21));
        // Who takes them one by one comes to the same events.
        assert_eq!(log.page(Some(8), 1).events, page.events[..1]);
        assert_eq!(log.page(Some(skipped.id), 1).events, page.events[1..]);
        assert_eq!(log.page(None, 1).events[0].kind, "attach", "the latest one");
        assert_eq!(log.page(Some(log.latest()), 1).events, []);
    }

    #[test]
    fn events_that_a_damaged_file_has_lost_are_counted_too() {
        let dir = tempfile::tempdir().expect("a folder");
        let line = |id| line_of(&bounded(id, event("x")).0);
        fs::write(dir.path().join(FILE), [line(7), line(11)].concat()).expect("written");
        let log = EventLog::open(dir.path()).expect("opened");
        let told: Vec<(u64, String)> = log
            .page(Some(6), 9)
            .events
            .into_iter()
            .map(|event| (event.id, event.kind))
            .collect();
        let wanted = [(7, "attach"), (10, SKIPPED), (11, "attach")];
        assert_eq!(told, wanted.map(|(id, kind)| (id, kind.to_owned())));
    }

    #[test]
    fn who_saw_more_than_there_is_begins_with_what_is_kept() {
        let log = EventLog::in_memory();
        assert_eq!((log.resume(0), log.resume(9)), (0, 0));
        for text in ["a", "b", "c"] {
            log.add(event(text)).expect("kept");
        }
        assert_eq!((log.resume(2), log.resume(3)), (2, 3));
        assert_eq!(log.resume(4), 0, "its numbers are of a log that was longer");
    }

    #[tokio::test]
    async fn who_reads_too_slowly_is_told_how_many_events_are_gone() {
        let log = Arc::new(EventLog::in_memory());
        log.add(event("seen")).expect("kept");
        let follower = log.clone().follower().expect("a place");
        assert_eq!(follower.after(0, 9).await[0].message, "seen");
        for _ in 0..EVENTS_MAX + 7 {
            log.add(event("missed")).expect("kept");
        }
        let next = follower.after(1, 2).await;
        assert_eq!((next[0].kind.as_str(), next[1].id), (SKIPPED, 9));
        assert_eq!(next[0].fields["count"], "7");
    }

    #[tokio::test]
    async fn who_follows_sees_each_event_once_and_places_are_bounded() {
        let log = Arc::new(EventLog::in_memory());
        log.add(event("a")).expect("kept");
        let follower = log.clone().follower().expect("a place");
        let first = follower.after(0, 9).await;
        assert_eq!((first.len(), first[0].message.as_str()), (1, "a"));
        let waiting = follower.after(1, 9);
        let adding = async {
            log.add(event("b")).expect("kept");
        };
        let (second, ()) = futures_util::join!(waiting, adding);
        assert_eq!((second.len(), second[0].id), (1, 2));
        let others: Vec<_> = (1..STREAMS_MAX)
            .map_while(|_| log.clone().follower())
            .collect();
        assert_eq!(others.len(), STREAMS_MAX - 1);
        assert!(log.clone().follower().is_none());
        drop(follower);
        assert!(log.clone().follower().is_some());
    }
}
