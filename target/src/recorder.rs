//! Keeps in the pool's event log what the daemon logs: each line of level info and above, whatever the log's filter says.
//!
//! Guarantees:
//! - Who logs never waits: a line goes into a bounded queue, and one thread writes it. What finds the queue full, or comes
//!   faster than `EVENTS_PER_SECOND`, is left out and counted; an event tells the number.
//! - Lines from before the pool is open are kept until then.
//! - An event has the kind that the line's field `event` names (`attach`, `detach`, `refused`, `admin`, `alert`), or else its
//!   level's name.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use api::event_log::{EventLog, NewEvent};
use tracing::field::{Field, Visit};
use tracing::{Level, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer};

/// Lines that wait to be written.
const QUEUE_MAX: usize = 1024;

/// Events that are kept of a second.
const EVENTS_PER_SECOND: u32 = 100;

/// Characters of a field that an event shows.
const FIELD_CHARS_MAX: usize = 300;

/// How long the end of the daemon waits for its last events to be written.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// The field that names the kind of an event.
const KIND_FIELD: &str = "event";

/// The way to the thread that writes.
static QUEUE: OnceLock<Queue> = OnceLock::new();

enum Message {
    Event(NewEvent),
    /// Answers when all before it is written.
    Drained(SyncSender<()>),
}

struct Queue {
    sender: SyncSender<Message>,
    /// Until a log takes what comes.
    receiver: Mutex<Option<Receiver<Message>>>,
    /// Lines that found it full.
    lost: AtomicU64,
}

impl Queue {
    fn new() -> Self {
        let (sender, receiver) = sync_channel(QUEUE_MAX);
        Self {
            sender,
            receiver: Mutex::new(Some(receiver)),
            lost: AtomicU64::new(0),
        }
    }

    fn put(&self, event: NewEvent) {
        if let Err(TrySendError::Full(_)) = self.sender.try_send(Message::Event(event)) {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The layer of the log that takes events, and the rule which lines it gets.
pub(crate) struct EventLayer;

impl EventLayer {
    /// Whether a line becomes an event. `parts` are the parts of the program.
    pub(crate) fn takes(metadata: &Metadata<'_>, parts: &[&str]) -> bool {
        let root = metadata.target().split("::").next().unwrap_or_default();
        // A complaint of this module would come back to it.
        metadata.is_event()
            && *metadata.level() <= Level::INFO
            && parts.contains(&root)
            && metadata.target() != module_path!()
    }
}

impl<S: Subscriber> Layer<S> for EventLayer {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        let mut line = LogLine::default();
        event.record(&mut line);
        let level = match *event.metadata().level() {
            Level::ERROR => "error",
            Level::WARN => "warning",
            _ => "notice",
        };
        QUEUE.get_or_init(Queue::new).put(NewEvent {
            at: timestamp(SystemTime::now()),
            kind: line.kind.unwrap_or_else(|| level.to_owned()),
            message: line.message,
            fields: line.fields,
        });
    }
}

/// What a line of the log says.
#[derive(Default)]
struct LogLine {
    kind: Option<String>,
    message: String,
    fields: BTreeMap<String, String>,
}

impl LogLine {
    fn take(&mut self, field: &Field, mut value: String) {
        match field.name() {
            "message" => self.message = value,
            KIND_FIELD => self.kind = Some(value),
            name => {
                if let Some((end, _)) = value.char_indices().nth(FIELD_CHARS_MAX) {
                    value.truncate(end);
                    value.push_str("...");
                }
                self.fields.insert(name.to_owned(), value);
            }
        }
    }
}

impl Visit for LogLine {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.take(field, format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.take(field, value.to_owned());
    }
}

/// A time as RFC 3339 writes it, with milliseconds.
fn timestamp(at: SystemTime) -> String {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = dedup::rfc3339(at);
    format!(
        "{}.{:03}Z",
        seconds.trim_end_matches('Z'),
        since.subsec_millis()
    )
}

/// Writes into this log from now on, on a thread of its own, what was logged and what will be.
pub(crate) fn begin(log: Arc<EventLog>) {
    let queue = QUEUE.get_or_init(Queue::new);
    let receiver = queue
        .receiver
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .take();
    let Some(receiver) = receiver else {
        return;
    };
    let writer = Writer::new(log, &queue.lost);
    let started = std::thread::Builder::new()
        .name("onefold-events".to_owned())
        .spawn(move || writer.run(&receiver));
    if let Err(error) = started {
        tracing::warn!(%error, "events are not kept: no thread can be started");
    }
}

/// Waits until all that was logged is written, if that goes on.
pub(crate) fn drain() {
    let (done, is_done) = sync_channel(1);
    let queue = QUEUE.get();
    if queue.is_some_and(|queue| queue.sender.try_send(Message::Drained(done)).is_ok()) {
        let _ = is_done.recv_timeout(DRAIN_TIMEOUT);
    }
}

/// Writes events, at most so many a second.
struct Writer<'a> {
    log: Arc<EventLog>,
    lost: &'a AtomicU64,
    window: Instant,
    count: u32,
    left_out: u64,
    fails: bool,
}

impl<'a> Writer<'a> {
    fn new(log: Arc<EventLog>, lost: &'a AtomicU64) -> Self {
        Self {
            log,
            lost,
            window: Instant::now(),
            count: 0,
            left_out: 0,
            fails: false,
        }
    }

    fn run(mut self, receiver: &Receiver<Message>) {
        loop {
            match receiver.recv_timeout(Duration::from_secs(1)) {
                Ok(Message::Event(event)) => self.take(event, Instant::now()),
                Ok(Message::Drained(done)) => {
                    self.tell_left_out();
                    let _ = done.send(());
                }
                Err(RecvTimeoutError::Timeout) => self.tell_left_out(),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn take(&mut self, event: NewEvent, now: Instant) {
        if now.saturating_duration_since(self.window) >= Duration::from_secs(1) {
            (self.window, self.count) = (now, 0);
            self.tell_left_out();
        }
        if self.count >= EVENTS_PER_SECOND {
            self.left_out += 1;
            return;
        }
        self.count += 1;
        self.write(event);
    }

    fn tell_left_out(&mut self) {
        let left_out = std::mem::take(&mut self.left_out) + self.lost.swap(0, Ordering::Relaxed);
        if left_out > 0 {
            self.write(NewEvent {
                at: timestamp(SystemTime::now()),
                kind: "notice".to_owned(),
                message: "more happened than events are kept of a second: see the log".to_owned(),
                fields: BTreeMap::from([("left_out".to_owned(), left_out.to_string())]),
            });
        }
    }

    fn write(&mut self, event: NewEvent) {
        let written = self.log.add(event);
        if let (Err(error), false) = (&written, self.fails) {
            tracing::warn!(%error, "events cannot be written into the pool's folder: they are lost at a restart");
        }
        self.fails = written.is_err();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(message: &str) -> NewEvent {
        NewEvent {
            message: message.to_owned(),
            ..NewEvent::default()
        }
    }

    #[test]
    fn a_storm_of_lines_costs_a_bounded_number_of_events_and_is_counted() {
        let (log, lost) = (Arc::new(EventLog::in_memory()), AtomicU64::new(7));
        let mut writer = Writer::new(log.clone(), &lost);
        let now = Instant::now();
        for number in 0..1000 {
            writer.take(event(&number.to_string()), now);
        }
        assert_eq!(log.latest(), u64::from(EVENTS_PER_SECOND));
        writer.take(event("later"), now + Duration::from_secs(2));
        let page = log.page(Some(u64::from(EVENTS_PER_SECOND)), 9);
        assert_eq!(page.events.len(), 2);
        let left_out = 1000 - u64::from(EVENTS_PER_SECOND) + 7;
        assert_eq!(page.events[0].fields["left_out"], left_out.to_string());
        assert_eq!(page.events[1].message, "later");
    }

    #[test]
    fn times_have_milliseconds() {
        let at = UNIX_EPOCH + Duration::from_millis(1_795_359_855_042);
        assert_eq!(timestamp(at), "2026-11-22T15:04:15.042Z");
    }
}
