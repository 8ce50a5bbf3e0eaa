//! The list of long tasks: what the daemon works at for a while, and what came of it.
//!
//! Guarantee: a task ends once. The last [`ENDED_MAX`] that have ended are known until the daemon ends; those that run are
//! bounded too.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use dedup::{ErrorKind, rfc3339};
use reactor::lock_whole;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use subsystem::errors::Failure;

/// Ended tasks that are known.
pub const ENDED_MAX: usize = 64;
/// How often work that a task follows is looked at.
pub(crate) const LOOK_INTERVAL: Duration = Duration::from_millis(200);
/// Tasks that run at one time.
const RUNNING_MAX: usize = 64;

/// What is worked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TaskKind {
    /// Counts are compared with maps.
    Check,
    /// Unique and shared data of volumes are counted.
    Survey,
    /// All data are read and proven.
    Scrub,
    /// The space of a deleted volume is freed.
    Delete,
    /// The metadata are copied to another folder.
    Backup,
    /// An image comes into a volume.
    Import,
    /// A stream comes into a volume.
    Receive,
    /// A volume is read into an image.
    Export,
    /// A snapshot is read into a stream.
    Send,
}

impl TaskKind {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Check,
        Self::Survey,
        Self::Scrub,
        Self::Delete,
        Self::Backup,
        Self::Import,
        Self::Receive,
        Self::Export,
        Self::Send,
    ];
}

impl fmt::Display for TaskKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Check => "check",
            Self::Survey => "survey",
            Self::Scrub => "scrub",
            Self::Delete => "delete",
            Self::Backup => "backup",
            Self::Import => "import",
            Self::Receive => "receive",
            Self::Export => "export",
            Self::Send => "send",
        })
    }
}

/// How a task does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TaskState {
    /// It works.
    Running,
    /// It came to its end.
    Done,
    /// It ended with an error.
    Failed,
    /// It was told to stop.
    Cancelled,
}

impl fmt::Display for TaskState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Running => "running",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        })
    }
}

/// A task as the API shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskView {
    /// Its number, counted from 1 since the daemon started.
    pub id: u64,
    /// What is worked at.
    pub kind: TaskKind,
    /// The volume or snapshot that it is about, if it is about one.
    pub object: Option<String>,
    /// How it does.
    pub state: TaskState,
    /// How far it is, in percent; `null` until that is known.
    pub percent: Option<u8>,
    /// When it began: a time of RFC 3339, in UTC.
    pub began: String,
    /// When it ended.
    pub ended: Option<String>,
    /// What came of it, as the answer to the request that asked for it.
    pub result: Option<Value>,
    /// Why it failed.
    pub error: Option<String>,
}

/// The tasks of a daemon.
#[derive(Debug, Default)]
pub struct Tasks(Mutex<List>);

#[derive(Debug, Default)]
struct List {
    made: u64,
    /// In the order in which they began.
    all: VecDeque<Arc<Task>>,
}

pub(crate) struct Task {
    pub(crate) id: u64,
    kind: TaskKind,
    object: Option<String>,
    began: SystemTime,
    progress: Box<dyn Fn() -> Option<u8> + Send + Sync>,
    cancel: Box<dyn Fn() -> Result<(), Failure> + Send + Sync>,
    /// Who does the work, if that is not the daemon.
    reader: Option<Arc<Reader>>,
    end: Mutex<Option<End>>,
}

/// A client that reads a volume, and names its task with each piece.
#[derive(Debug)]
pub(crate) struct Reader {
    bytes: u64,
    /// All before this byte was asked for.
    upto: AtomicU64,
    heard: Mutex<Instant>,
    is_cancelled: AtomicBool,
}

impl Reader {
    fn percent(&self) -> Option<u8> {
        percent(self.upto.load(Ordering::Relaxed), self.bytes)
    }

    pub(crate) fn silence(&self) -> Duration {
        lock_whole(&self.heard).elapsed()
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::Relaxed)
    }
}

/// A part of a whole.
pub(crate) fn percent(done: u64, whole: u64) -> Option<u8> {
    let whole = whole.max(1);
    u8::try_from(u128::from(done.min(whole)) * 100 / u128::from(whole)).ok()
}

impl fmt::Debug for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task")
            .field("id", &self.id)
            .field("kind", &self.kind)
            .finish_non_exhaustive()
    }
}

#[derive(Clone, Debug)]
struct End {
    at: SystemTime,
    state: TaskState,
    result: Option<Value>,
    error: Option<String>,
}

impl Task {
    pub(crate) fn view(&self) -> TaskView {
        let end = lock_whole(&self.end).clone();
        let state = end.as_ref().map_or(TaskState::Running, |end| end.state);
        TaskView {
            id: self.id,
            kind: self.kind,
            object: self.object.clone(),
            state,
            percent: match state {
                TaskState::Running => (self.progress)(),
                TaskState::Done => Some(100),
                TaskState::Failed | TaskState::Cancelled => None,
            },
            began: rfc3339(self.began),
            ended: end.as_ref().map(|end| rfc3339(end.at)),
            result: end.as_ref().and_then(|end| end.result.clone()),
            error: end.and_then(|end| end.error),
        }
    }

    pub(crate) fn is_running(&self) -> bool {
        lock_whole(&self.end).is_none()
    }

    /// Tells it to stop.
    pub(crate) fn cancel(&self) -> Result<(), Failure> {
        match self.is_running() {
            true => (self.cancel)(),
            false => Err(Failure::invalid(format!(
                "task {} has ended already",
                self.id
            ))),
        }
    }

    /// It has ended; if it had before, that stays.
    pub(crate) fn ends(&self, state: TaskState, result: Option<Value>, error: Option<String>) {
        lock_whole(&self.end).get_or_insert_with(|| End {
            at: SystemTime::now(),
            state,
            result,
            error,
        });
    }

    /// Who does the work, if that is a client that reads.
    ///
    /// # Errors
    /// The daemon does it.
    pub(crate) fn reader(&self) -> Result<&Arc<Reader>, Failure> {
        self.reader.as_ref().ok_or_else(|| {
            let text = format!("task {} ({}) is the daemon's own work", self.id, self.kind);
            Failure::invalid(text)
        })
    }

    /// Its reader asks for what lies before this byte.
    ///
    /// # Errors
    /// It was told to stop, or is no reader's.
    pub(crate) fn reads(&self, upto: u64) -> Result<(), Failure> {
        let reader = self.reader()?;
        if reader.is_cancelled() {
            let text = format!("the {} was cancelled (task {})", self.kind, self.id);
            return Err(Failure::unavailable(text));
        }
        reader.upto.fetch_max(upto, Ordering::Relaxed);
        *lock_whole(&reader.heard) = Instant::now();
        Ok(())
    }
}

impl Tasks {
    /// Something begins. What the engine does by itself is bounded there.
    pub(crate) fn begin(
        &self,
        kind: TaskKind,
        object: Option<String>,
        progress: impl Fn() -> Option<u8> + Send + Sync + 'static,
        cancel: impl Fn() -> Result<(), Failure> + Send + Sync + 'static,
    ) -> Arc<Task> {
        self.add(kind, object, Box::new(progress), Box::new(cancel), None)
    }

    /// A client begins to read a volume of that many bytes.
    pub(crate) fn begin_reading(&self, kind: TaskKind, object: String, bytes: u64) -> Arc<Task> {
        let reader = Arc::new(Reader {
            bytes,
            upto: AtomicU64::new(0),
            heard: Mutex::new(Instant::now()),
            is_cancelled: AtomicBool::new(false),
        });
        let (seen, stopped) = (reader.clone(), reader.clone());
        let cancel = move || {
            stopped.is_cancelled.store(true, Ordering::Relaxed);
            Ok(())
        };
        let progress = Box::new(move || seen.percent());
        self.add(kind, Some(object), progress, Box::new(cancel), Some(reader))
    }

    fn add(
        &self,
        kind: TaskKind,
        object: Option<String>,
        progress: Box<dyn Fn() -> Option<u8> + Send + Sync>,
        cancel: Box<dyn Fn() -> Result<(), Failure> + Send + Sync>,
        reader: Option<Arc<Reader>>,
    ) -> Arc<Task> {
        let mut list = lock_whole(&self.0);
        let running = list.all.iter().filter(|task| task.is_running()).count();
        let mut too_many = (list.all.len() - running + 1).saturating_sub(ENDED_MAX);
        list.all.retain(|task| {
            let goes = too_many > 0 && !task.is_running();
            too_many -= usize::from(goes);
            !goes
        });
        list.made += 1;
        let task = Arc::new(Task {
            id: list.made,
            kind,
            object,
            began: SystemTime::now(),
            progress,
            cancel,
            reader,
            end: Mutex::new(None),
        });
        list.all.push_back(task.clone());
        task
    }

    /// Whether work may begin for somebody who asks.
    ///
    /// # Errors
    /// Too much runs already.
    pub(crate) fn check_room(&self) -> Result<(), Failure> {
        let running = self.all().iter().filter(|task| task.is_running()).count();
        match running < RUNNING_MAX {
            true => Ok(()),
            false => Err(Failure::unavailable(format!(
                "{running} tasks run already: wait for one, or end one with `onefold task cancel`"
            ))),
        }
    }

    /// All that are known, the newest last.
    pub(crate) fn all(&self) -> Vec<Arc<Task>> {
        lock_whole(&self.0).all.iter().cloned().collect()
    }

    pub(crate) fn find(&self, id: u64) -> Result<Arc<Task>, Failure> {
        let list = lock_whole(&self.0);
        let task = list.all.iter().find(|task| task.id == id).cloned();
        task.ok_or_else(|| {
            let text = format!("there is no task {id}: `onefold task list` shows those there are");
            Failure::new(ErrorKind::NotFound, text)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begin(tasks: &Tasks) -> Arc<Task> {
        tasks.begin(TaskKind::Check, None, || Some(40), || Ok(()))
    }

    #[test]
    fn the_last_tasks_are_known_and_those_that_run_are_bounded() {
        let tasks = Tasks::default();
        let first = begin(&tasks);
        assert_eq!(first.view().percent, Some(40));
        for _ in 0..3 * ENDED_MAX {
            begin(&tasks).ends(TaskState::Done, None, None);
        }
        let known = tasks.all().len();
        assert_eq!(known, ENDED_MAX + 1, "those that have ended, and the first");
        assert!(tasks.find(first.id).is_ok() && tasks.find(2).is_err());
        let newest = tasks
            .find(3 * ENDED_MAX as u64 + 1)
            .expect("the newest")
            .view();
        assert_eq!((newest.state, newest.percent), (TaskState::Done, Some(100)));
        for _ in 1..RUNNING_MAX {
            tasks.check_room().expect("there is room");
            begin(&tasks);
        }
        let refused = tasks.check_room().unwrap_err().message;
        assert!(refused.contains("onefold task cancel"), "{refused}");
    }

    #[test]
    fn a_task_that_has_ended_cannot_be_told_to_stop() {
        let tasks = Tasks::default();
        let task = begin(&tasks);
        task.cancel().expect("it runs");
        task.ends(TaskState::Cancelled, None, None);
        assert!(task.cancel().unwrap_err().message.contains("has ended"));
        assert_eq!(task.view().percent, None);
        task.ends(TaskState::Done, None, None);
        assert_eq!(task.view().state, TaskState::Cancelled, "it ends once");
    }

    #[test]
    fn a_reader_is_followed_by_what_it_asks_for_and_refused_when_it_was_cancelled() {
        let tasks = Tasks::default();
        let task = tasks.begin_reading(TaskKind::Send, "vm1@a".to_owned(), 8 << 20);
        task.reads(4 << 20).expect("it may");
        task.reads(2 << 20).expect("pieces come in any order");
        assert_eq!(task.view().percent, Some(50));
        task.cancel().expect("it runs");
        let refused = task.reads(6 << 20).unwrap_err().message;
        assert!(refused.contains("send was cancelled (task 1)"), "{refused}");
        assert!(begin(&tasks).reads(1).is_err(), "a check reads by itself");
    }
}
