//! The progress bar of `onefold perf`, on standard error where that is a terminal.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bench::perf::{Limit, Phase, Progress};
use indicatif::{ProgressBar, ProgressStyle};

use crate::size::format_human;

/// How often the bar is drawn. It is drawn by a thread of its own: a slow terminal must not hold up the load.
const REDRAW: Duration = Duration::from_millis(250);

/// Steps of a bar that shows time.
const MILLISECONDS: fn(Duration) -> u64 = |time| time.as_millis().try_into().unwrap_or(u64::MAX);

/// A bar, until it is dropped.
pub(super) struct Shown {
    ends: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Shown {
    fn drop(&mut self) {
        drop(self.ends.take());
        if let Some(thread) = self.thread.take() {
            // A thread that died has drawn nothing more, and that is all that it does.
            let _ = thread.join();
        }
    }
}

/// Shows how far a run has come. Nothing is shown where standard error is no terminal.
pub(super) fn show(progress: Progress, limit: Limit) -> Shown {
    let bar = ProgressBar::no_length();
    if bar.is_hidden() {
        return Shown {
            ends: None,
            thread: None,
        };
    }
    let (ends, ended) = channel();
    let thread = std::thread::spawn(move || {
        let mut shown = Phase::Connecting;
        let mut last = (Instant::now(), 0, 0);
        let mut begun = Instant::now();
        while ended.recv_timeout(REDRAW) == Err(RecvTimeoutError::Timeout) {
            let phase = progress.phase();
            if phase != shown {
                shown = phase;
                begun = Instant::now();
                last = (begun, 0, 0);
                bar.set_style(style(phase));
                match (phase, limit) {
                    (Phase::Load, Limit::Time(time)) => bar.set_length(MILLISECONDS(time)),
                    (Phase::Load, Limit::Bytes(bytes)) => bar.set_length(bytes),
                    _ => bar.unset_length(),
                }
            }
            let (now, commands, bytes) = (Instant::now(), progress.commands(), progress.bytes());
            let seconds = now.saturating_duration_since(last.0).as_secs_f64();
            let per_second = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
            let done = match (phase, limit) {
                (Phase::Load, Limit::Time(_)) => MILLISECONDS(begun.elapsed()),
                _ => bytes,
            };
            bar.set_position(done);
            bar.set_message(match phase {
                Phase::Connecting => "connecting".to_owned(),
                Phase::Load => format!(
                    "{:.0} commands/s, {}/s",
                    per_second(commands, last.1),
                    format_human(per_second(bytes, last.2) as u64)
                ),
                Phase::ReadBack => format!("{} read back and compared", format_human(bytes)),
            });
            last = (now, commands, bytes);
            bar.tick();
        }
        bar.finish_and_clear();
    });
    Shown {
        ends: Some(ends),
        thread: Some(thread),
    }
}

fn style(phase: Phase) -> ProgressStyle {
    let template = match phase {
        Phase::Load => "{bar:40} {elapsed} {msg}",
        Phase::Connecting | Phase::ReadBack => "{spinner} {elapsed} {msg}",
    };
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}
