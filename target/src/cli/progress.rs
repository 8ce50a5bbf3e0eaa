//! Progress on standard error, where that is a terminal: of images, of the daemon's tasks, and of other work that takes
//! a while.

use std::time::Duration;

use api::client::Client;
use api::tasks::{TaskKind, TaskState};
use indicatif::{ProgressBar, ProgressStyle};
use subsystem::errors::Failure;

/// How often a spinner turns.
const TICK: Duration = Duration::from_millis(100);

/// How often the daemon is asked how far a task is.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

fn styled(bar: ProgressBar, template: &str) -> ProgressBar {
    let style = ProgressStyle::with_template(template);
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// A bar over the bytes of an image; without its length it counts them.
pub(super) fn bar(bytes: Option<u64>) -> ProgressBar {
    match bytes {
        Some(bytes) => styled(
            ProgressBar::new(bytes),
            "{bar:40} {percent}% {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta}",
        ),
        None => styled(
            ProgressBar::no_length(),
            "{spinner} {binary_bytes} {binary_bytes_per_sec} {elapsed}",
        ),
    }
}

/// Something goes on whose end nobody can foretell: what it is, and for how long.
pub(super) fn spinner(what: &'static str) -> ProgressBar {
    let bar = styled(ProgressBar::new_spinner(), "{spinner} {msg} {elapsed}").with_message(what);
    bar.enable_steady_tick(TICK);
    bar
}

/// Runs work that has no progress of its own.
pub(super) fn spinning<T>(what: &'static str, work: impl FnOnce() -> T) -> T {
    let bar = spinner(what);
    let done = work();
    bar.finish_and_clear();
    done
}

/// Waits for work that the daemon does as a task of this kind, and shows how far it is.
pub(super) async fn of_task<T>(
    client: &Client,
    kind: TaskKind,
    what: &'static str,
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let bar = spinner(what);
    let mut work = std::pin::pin!(work);
    let done = loop {
        if let Ok(done) = tokio::time::timeout(LOOK_INTERVAL, &mut work).await {
            break done;
        }
        if bar.is_hidden() {
            continue;
        }
        // Who cannot be told how far it is still waits for its end.
        let tasks = client.tasks().await.unwrap_or_default();
        let of_kind =
            |task: &&api::tasks::TaskView| task.kind == kind && task.state == TaskState::Running;
        if let Some(percent) = tasks
            .iter()
            .rev()
            .find(of_kind)
            .and_then(|task| task.percent)
        {
            if bar.length().is_none() {
                bar.set_length(100);
                let style = ProgressStyle::with_template("{bar:40} {percent}% {msg} {elapsed}");
                bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            }
            bar.set_position(percent.into());
        }
    };
    bar.finish_and_clear();
    done
}

/// A bar over the blocks that an offline tool reads, of `block_bytes` each. It shows nothing before the first one.
pub(super) fn over_blocks(block_bytes: u64) -> impl Fn(u64, u64) {
    let bar = spinner("reading the metadata");
    move |done, all| {
        if bar.length() != Some(all * block_bytes) {
            bar.disable_steady_tick();
            bar.set_length(all * block_bytes);
            let style = ProgressStyle::with_template(
                "{bar:40} {percent}% {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta}",
            );
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        }
        bar.set_position(done * block_bytes);
        if done >= all {
            bar.finish_and_clear();
        }
    }
}
