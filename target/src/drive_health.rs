//! Asks the drives of a pool for their health, and tells when one may fail soon.
//!
//! Guarantees: a drive is asked once a minute at most, and not before it has answered the last time; one that does not answer
//! harms nobody, and what it told last is forgotten after some minutes; a warning begins and ends by what a drive tells, and never
//! by its silence; a drive that left the pool leaves no warning behind.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use api::drive_health::DriveHealth;
use dedup::Engine;
use drives::{DriveError, SmartLog};
use reactor::lock_whole as lock;

/// How often drives are asked.
const LOOK: Duration = Duration::from_secs(60);

/// How long what a drive told counts.
const FRESH: Duration = Duration::from_secs(5 * 60);

/// A drive whose media errors grew warns until there was none for this long.
const PEACE: Duration = Duration::from_secs(24 * 3600);

/// The health of the drives of a pool in service.
#[derive(Clone)]
pub(crate) struct DriveHealthWatch {
    engine: Arc<Engine>,
    book: Arc<Mutex<Book>>,
}

impl DriveHealthWatch {
    pub(crate) fn new(engine: Arc<Engine>) -> Self {
        Self {
            engine,
            book: Arc::default(),
        }
    }

    /// What drives told, by what they are called.
    pub(crate) fn all(&self) -> BTreeMap<String, DriveHealth> {
        lock(&self.book).fresh(Instant::now())
    }

    /// Asks the drives, until it is dropped; on `control`, where nobody waits for what takes long.
    pub(crate) async fn keep(self, control: reactor::Handle) {
        loop {
            self.look(&control);
            tokio::time::sleep(LOOK).await;
        }
    }

    fn look(&self, control: &reactor::Handle) {
        let names = self.engine.drive_names();
        for gone in lock(&self.book).keep_only(&names) {
            self.engine.note_drive_health(gone, None);
        }
        for (index, name) in names {
            if self.engine.is_drive_offline(index) || !lock(&self.book).ask(index, &name) {
                continue;
            }
            let (watch, engine) = (self.clone(), self.engine.clone());
            let asking = control.spawn(move || async move { engine.drive_smart_log(index).await });
            tokio::spawn(async move {
                let told = asking.await.unwrap_or(Ok(None));
                watch.take(index, &name, told);
            });
        }
    }

    fn take(&self, index: u16, name: &str, told: Result<Option<SmartLog>, DriveError>) {
        let copies = self.engine.redundancy().copies();
        let mut book = lock(&self.book);
        // Under the lock: a drive that leaves the pool meanwhile ends its warning after this.
        if let Some(health) = book.take((index, name), told, Instant::now()) {
            self.engine
                .note_drive_health(index, warning(name, &health, copies));
        }
    }
}

/// What is wrong with a drive of a pool with so many copies, and the remedy; `None` if it is well.
fn warning(name: &str, health: &DriveHealth, copies: usize) -> Option<(String, String)> {
    if health.warnings.is_empty() {
        return None;
    }
    let what = format!("drive {name} warns: {}", health.warnings.join(", "));
    let remedy = match copies {
        _ if health.is_hot_only() => "look at its cooling".to_owned(),
        2.. => format!(
            "replace it before it fails by `onefold drive replace {name} NEW`, or let a spare wait by `onefold drive spare NEW`"
        ),
        _ => format!(
            "its data have no other copy: `onefold drive add NEW`, then `onefold drive remove {name}`, and see that there is a backup"
        ),
    };
    Some((what, remedy))
}

/// What is known of one drive.
#[derive(Debug)]
struct Entry {
    name: String,
    /// It was asked, and has not answered.
    is_asked: bool,
    told: Option<(DriveHealth, Instant)>,
    /// Media errors that it had before those that are new.
    errors_before: u128,
    /// When they grew last.
    grew_at: Option<Instant>,
    /// Why it could not be asked, as the log has it.
    failure: Option<String>,
}

impl Entry {
    fn of(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            is_asked: false,
            told: None,
            errors_before: 0,
            grew_at: None,
            failure: None,
        }
    }

    /// What a drive tells with this log page.
    fn judge(&mut self, log: &SmartLog, now: Instant) -> DriveHealth {
        let errors = log.media_errors;
        let last = self
            .told
            .as_ref()
            .map(|(last, _)| last.media_and_data_integrity_errors);
        match last {
            Some(last) if errors > u128::from(last) => self.grew_at = Some(now),
            Some(_) => {}
            None => self.errors_before = errors,
        }
        let is_over = self
            .grew_at
            .is_none_or(|at| now.saturating_duration_since(at) >= PEACE);
        // Another drive at the same place counts from its own beginning.
        if is_over || errors < self.errors_before {
            (self.errors_before, self.grew_at) = (errors, None);
        }
        let new = u64::try_from(errors - self.errors_before).unwrap_or(u64::MAX);
        DriveHealth::new(log, new)
    }
}

/// What is known of each drive, by its index.
#[derive(Debug, Default)]
struct Book(BTreeMap<u16, Entry>);

impl Book {
    /// Forgets drives that are not among these; returns their indexes.
    fn keep_only(&mut self, names: &[(u16, String)]) -> Vec<u16> {
        let is_there = |index: &u16, entry: &Entry| {
            let mut names = names.iter();
            names.any(|(there, name)| there == index && *name == entry.name)
        };
        let all = self.0.iter();
        let gone = all.filter(|(index, entry)| !is_there(index, entry));
        let gone: Vec<u16> = gone.map(|(index, _)| *index).collect();
        for index in &gone {
            self.0.remove(index);
        }
        gone
    }

    /// Whether the drive may be asked now; if so, it counts as asked.
    fn ask(&mut self, index: u16, name: &str) -> bool {
        let entry = self.0.entry(index).or_insert_with(|| Entry::of(name));
        !std::mem::replace(&mut entry.is_asked, true)
    }

    /// Notes what a drive told; returns its health if it told that. An answer of a drive that is not there any more tells nothing.
    fn take(
        &mut self,
        (index, name): (u16, &str),
        told: Result<Option<SmartLog>, DriveError>,
        now: Instant,
    ) -> Option<DriveHealth> {
        let entry = self.0.get_mut(&index).filter(|entry| entry.name == name)?;
        entry.is_asked = false;
        match told {
            Ok(Some(log)) => {
                let health = entry.judge(&log, now);
                entry.told = Some((health.clone(), now));
                entry.failure = None;
                Some(health)
            }
            Ok(None) => None,
            Err(error) => {
                let failure = Some(error.to_string());
                if entry.failure != failure {
                    tracing::info!(drive = name, "its health is not known: {error}");
                    entry.failure = failure;
                }
                None
            }
        }
    }

    fn fresh(&self, now: Instant) -> BTreeMap<String, DriveHealth> {
        let told = self.0.values().filter_map(|entry| {
            let (health, at) = entry.told.as_ref()?;
            let is_fresh = now.saturating_duration_since(*at) < FRESH;
            is_fresh.then(|| (entry.name.clone(), health.clone()))
        });
        told.collect()
    }
}

#[cfg(test)]
mod tests {
    use drives::ErrorKind;

    use super::*;

    const NAME: &str = "/dev/nvme0n1";

    fn names(names: &[&str]) -> Vec<(u16, String)> {
        let names = names.iter().map(|name| (*name).to_owned());
        (0u16..).zip(names).collect()
    }

    /// A drive that is well, with so many media errors in its life.
    fn log(media_errors: u128) -> SmartLog {
        SmartLog {
            available_spare: 100,
            available_spare_threshold: 10,
            media_errors,
            ..SmartLog::default()
        }
    }

    /// Asks the drive, which answers with this.
    fn tells(book: &mut Book, log: SmartLog, now: Instant) -> DriveHealth {
        assert!(book.ask(0, NAME), "it may be asked");
        let told = book.take((0, NAME), Ok(Some(log)), now);
        told.expect("it told its health")
    }

    #[test]
    fn old_media_errors_are_no_warning_and_new_ones_are_until_a_day_has_none() {
        let (mut book, start) = (Book::default(), Instant::now());
        assert!(tells(&mut book, log(3), start).warnings.is_empty());
        let later = start + LOOK;
        assert_eq!(tells(&mut book, log(4), later).warnings.len(), 1);
        let health = tells(&mut book, log(6), later + LOOK);
        assert_eq!(health.new_media_and_data_integrity_errors, 3);
        let quiet = tells(&mut book, log(6), later + PEACE);
        assert!(!quiet.warnings.is_empty(), "the last ones are younger");
        let over = tells(&mut book, log(6), later + LOOK + PEACE);
        assert!(over.warnings.is_empty());
        assert_eq!(over.media_and_data_integrity_errors, 6);
        let another = tells(&mut book, log(0), later + 2 * PEACE);
        assert!(another.warnings.is_empty(), "it is another drive");
    }

    #[test]
    fn a_drive_that_does_not_answer_is_not_asked_again_and_what_it_told_is_forgotten() {
        let (mut book, start) = (Book::default(), Instant::now());
        tells(&mut book, log(0), start);
        assert!(book.ask(0, NAME), "once more");
        assert!(!book.ask(0, NAME), "it has not answered");
        assert!(book.ask(1, "/dev/nvme1n1"), "others are asked");
        assert_eq!(book.fresh(start + FRESH - LOOK).len(), 1);
        assert!(book.fresh(start + FRESH).is_empty());
        book.take((0, NAME), Ok(Some(log(0))), start + FRESH);
        assert!(book.ask(0, NAME), "it has answered");
        assert_eq!(book.fresh(start + FRESH)[NAME].power_on_hours, 0);
    }

    #[test]
    fn silence_and_errors_are_no_sign_of_health() {
        let (mut book, start) = (Book::default(), Instant::now());
        let warns = SmartLog {
            critical_warning: 1,
            ..log(0)
        };
        tells(&mut book, warns, start);
        for told in [
            Ok(None),
            Err(DriveError::new(ErrorKind::Io, NAME, "no answer")),
        ] {
            assert!(book.ask(0, NAME));
            let told = book.take((0, NAME), told, start);
            assert_eq!(told, None, "nothing is judged");
            assert!(!book.fresh(start)[NAME].warnings.is_empty());
        }
    }

    #[test]
    fn a_drive_that_left_is_forgotten_and_its_late_answer_is_not_taken_for_anothers() {
        let (mut book, start) = (Book::default(), Instant::now());
        tells(&mut book, log(0), start);
        assert!(book.ask(0, NAME));
        assert_eq!(book.keep_only(&names(&["/dev/nvme7n1"])), [0]);
        assert!(book.ask(0, "/dev/nvme7n1"), "the new one is asked");
        assert_eq!(book.take((0, NAME), Ok(Some(log(9))), start), None);
        assert!(book.fresh(start).is_empty());
        assert!(book.keep_only(&names(&["/dev/nvme7n1"])).is_empty());
    }

    #[test]
    fn the_remedy_fits_what_is_wrong_and_the_copies_that_there_are() {
        let health = |critical_warning| {
            let log = SmartLog {
                critical_warning,
                ..log(0)
            };
            DriveHealth::new(&log, 0)
        };
        assert_eq!(warning(NAME, &health(0), 2), None);
        let remedy = |bits, copies| warning(NAME, &health(bits), copies).expect("a warning").1;
        assert!(remedy(4, 2).contains("onefold drive replace /dev/nvme0n1 NEW"));
        assert!(remedy(4, 1).contains("onefold drive remove /dev/nvme0n1"));
        assert!(remedy(2, 2).contains("cooling"));
        let (what, _) = warning(NAME, &health(4), 2).expect("a warning");
        assert!(
            what.contains(NAME) && what.contains("reliability"),
            "{what}"
        );
    }
}
