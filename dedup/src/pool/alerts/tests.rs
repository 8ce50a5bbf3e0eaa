//! The list of what is wrong, and what the log is told of it.

use std::io::Write;
use std::sync::Arc;

use tracing::subscriber::DefaultGuard;

use super::*;
use crate::EngineError;

/// What a test logs on its thread.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        lock(&self.0).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Log {
    /// Takes the log of this thread as long as the guard lives.
    pub(crate) fn watch(&self) -> DefaultGuard {
        let log = self.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(move || log.clone())
            .finish();
        tracing::subscriber::set_default(subscriber)
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        let text = String::from_utf8_lossy(&lock(&self.0)).into_owned();
        text.lines().map(str::to_owned).collect()
    }
}

fn io_error() -> DriveError {
    DriveError::new(
        drives::ErrorKind::Io,
        "/dev/x",
        "write failed: EIO; look into the log",
    )
}

fn full() -> DriveError {
    DriveError::new(
        drives::ErrorKind::NoSpace,
        "/dev/x",
        "its file system is full; free space",
    )
}

const NONE: Facts<'_> = Facts {
    used: 0,
    capacity: 100,
    free: 100,
    fill_level: None,
    damaged: 0,
    drive: &|_| None,
};

fn verdict(alerts: &Alerts, drives: usize) -> Verdict {
    lock(&alerts.book).verdict(None, drives)
}

#[test]
fn an_error_that_comes_a_thousand_times_is_one_line_and_its_end_another() {
    let log = Log::default();
    let _watch = log.watch();
    let alerts = Alerts::new(Duration::ZERO);
    for _ in 0..1000 {
        alerts.drive_failed(0, Action::Write, &io_error());
        alerts.written(&Err(EngineError::new(
            ErrorKind::WriteFault,
            "the write failed",
        )));
    }
    assert_eq!(log.lines().len(), 1, "{:?}", log.lines());
    assert!(log.lines()[0].contains("/dev/x"), "{:?}", log.lines());
    assert_eq!(verdict(&alerts, 1).state, HealthState::TakesNoWrites);
    alerts.look(&NONE);
    assert_eq!(log.lines().len(), 1, "nothing says that it works");
    alerts.drive_worked(0, Action::Write);
    alerts.look(&NONE);
    let lines = log.lines();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(
        lines[1].contains("over: a write failed") && lines[1].contains("writes_refused=1000"),
        "{lines:?}"
    );
    assert_eq!(verdict(&alerts, 1), Verdict::default());
}

#[test]
fn what_failed_a_moment_ago_is_not_over_yet() {
    let alerts = Alerts::new(Duration::from_secs(3600));
    alerts.drive_failed(0, Action::Write, &io_error());
    alerts.drive_worked(0, Action::Write);
    alerts.pool_is_full(4096);
    alerts.look(&NONE);
    assert_eq!(verdict(&alerts, 1).reasons.len(), 2);
}

#[test]
fn a_pool_takes_writes_as_long_as_one_of_its_drives_does() {
    let alerts = Alerts::new(Duration::ZERO);
    alerts.drive_failed(0, Action::Write, &io_error());
    assert_eq!(verdict(&alerts, 2).state, HealthState::Degraded);
    alerts.drive_failed(1, Action::Write, &io_error());
    assert_eq!(verdict(&alerts, 2).state, HealthState::TakesNoWrites);
    alerts.drive_worked(1, Action::Write);
    assert_eq!(verdict(&alerts, 2).state, HealthState::Degraded);
}

#[test]
fn a_drive_whose_file_system_has_room_again_is_well_though_nobody_writes() {
    let alerts = Alerts::new(Duration::ZERO);
    alerts.drive_failed(0, Action::Write, &full());
    let with_room = |bytes| {
        alerts.look(&Facts {
            drive: &|_| Some(bytes),
            ..NONE
        });
        verdict(&alerts, 1).state
    };
    assert_eq!(with_room(4096), HealthState::TakesNoWrites);
    assert_eq!(with_room(1 << 30), HealthState::Ok);
}

#[test]
fn a_drive_that_tells_of_its_end_is_named_once_and_its_recovery_too() {
    let log = Log::default();
    let _watch = log.watch();
    let alerts = Alerts::new(Duration::ZERO);
    let tells = |what: &str| Some((what.to_owned(), "replace it".to_owned()));
    alerts.drive_health(1, None);
    alerts.drive_health(0, tells("drive /dev/a: 91 % of its life is used"));
    alerts.drive_health(0, tells("drive /dev/a: 92 % of its life is used"));
    alerts.drive_health(1, None);
    alerts.look(&NONE);
    let told = verdict(&alerts, 2);
    assert_eq!(told.state, HealthState::Degraded, "hosts are served");
    assert_eq!(told.reasons.len(), 1);
    assert_eq!(
        told.reasons[0].what,
        "drive /dev/a: 92 % of its life is used"
    );
    assert_eq!(told.reasons[0].remedy, "replace it");
    alerts.drive_health(0, None);
    alerts.drive_health(0, None);
    assert_eq!(verdict(&alerts, 2), Verdict::default());
    let lines = log.lines();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[0].contains("alert") && lines[0].contains("/dev/a"));
    assert!(lines[1].contains("over: drive /dev/a"), "{lines:?}");
}

#[test]
fn a_full_pool_is_named_until_it_has_room_and_damage_until_there_is_none() {
    let alerts = Alerts::new(Duration::ZERO);
    alerts.pool_is_full(409_600);
    let full = Facts {
        used: 100,
        free: 0,
        fill_level: Some(95),
        damaged: 3,
        ..NONE
    };
    alerts.look(&full);
    let found = verdict(&alerts, 1);
    assert_eq!(found.state, HealthState::TakesNoWrites);
    assert!(
        found.reasons[0].what.contains("the pool is full"),
        "{found:?}"
    );
    let all = format!("{found:?}");
    assert!(
        all.contains("3 blocks are damaged") && all.contains("100 % full"),
        "{all}"
    );
    assert!(found.reasons.iter().all(|reason| !reason.remedy.is_empty()));
    alerts.look(&NONE);
    assert_eq!(verdict(&alerts, 1), Verdict::default());
}

#[test]
fn background_work_that_fails_is_named_until_it_succeeds() {
    let log = Log::default();
    let _watch = log.watch();
    let alerts = Alerts::new(Duration::from_secs(3600));
    for _ in 0..100 {
        alerts.work(
            Work::Checkpoint,
            Err(EngineError::unavailable("no room on the disk")),
        );
        alerts.written(&Err(EngineError::unavailable("the journal is full")));
    }
    let found = verdict(&alerts, 1);
    assert_eq!(found.state, HealthState::TakesNoWrites, "{found:?}");
    assert!(
        found.reasons[1].remedy.contains("no room on the disk"),
        "{found:?}"
    );
    assert_eq!(log.lines().len(), 2, "{:?}", log.lines());
    alerts.work(Work::Checkpoint, Ok(()));
    assert_eq!(verdict(&alerts, 1), Verdict::default());
    assert_eq!(log.lines().len(), 4, "{:?}", log.lines());
}

#[test]
fn a_read_only_pool_takes_no_writes_and_says_since_when() {
    let book = Book::default();
    let at = UNIX_EPOCH + Duration::from_secs(1_795_359_855);
    let found = book.verdict(Some(("the journal failed; check the disk", at)), 1);
    assert_eq!(found.state, HealthState::TakesNoWrites);
    let wanted = Reason {
        what: "the pool is read-only: the journal failed".into(),
        since: "2026-11-22T15:04:15Z".into(),
        remedy: "check the disk".into(),
    };
    assert_eq!(found.reasons, [wanted]);
}

#[test]
fn times_are_written_as_rfc_3339_does() {
    let at = |seconds| rfc3339(UNIX_EPOCH + Duration::from_secs(seconds));
    assert_eq!(at(0), "1970-01-01T00:00:00Z");
    assert_eq!(at(951_782_399), "2000-02-28T23:59:59Z");
    assert_eq!(at(951_782_400), "2000-02-29T00:00:00Z");
    assert_eq!(at(978_220_800), "2000-12-31T00:00:00Z");
    assert_eq!(at(4_107_542_400), "2100-03-01T00:00:00Z");
}
