//! What the service manager is told by sd_notify(3): that hosts can connect, that the configuration is being read again,
//! that the end has begun, and time and again that all threads work.
//!
//! Guarantees:
//! - A daemon that no manager started (`NOTIFY_SOCKET` is not set) tells nothing and waits for nothing.
//! - `WATCHDOG=1` is told only after each reactor, data and control, has run a task since the last time. One that hangs
//!   is enough for the manager to restart the daemon.
//! - A manager that cannot be told stops nobody: that is logged.

use std::time::Duration;

use futures_util::future::join_all;
use reactor::Handle;
use sd_notify::NotifyState;

/// How often the watchdog is told within its time: one message may be late.
const TOLD_PER_TIMEOUT: u32 = 3;

/// Hosts can connect, or: what SIGHUP asked for is done.
pub(crate) fn ready() {
    tell(&[NotifyState::Ready]);
}

/// The configuration is being read again: [`ready`] follows.
pub(crate) fn reloading() {
    // systemd 253 and newer ask for the time, to tell this reload from an earlier one.
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(_) => tell(&[NotifyState::Reloading]),
    }
}

/// A clean stop has begun.
pub(crate) fn stopping() {
    tell(&[NotifyState::Stopping]);
}

/// Tells the manager's watchdog, if it has one, as long as all reactors work. It never ends by itself but without one.
pub(crate) async fn watch(reactors: Vec<Handle>) {
    if let Some(timeout) = sd_notify::watchdog_enabled() {
        let alive = || tell(&[NotifyState::Watchdog]);
        report(&reactors, timeout / TOLD_PER_TIMEOUT, alive).await;
    }
}

/// Calls `alive` each `period`, after all reactors have run a task.
async fn report(reactors: &[Handle], period: Duration, alive: impl Fn()) {
    let mut ticks = tokio::time::interval(period.max(Duration::from_millis(1)));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        took_work(reactors).await;
        alive();
    }
}

/// Waits until every reactor has run a task. One that has stopped hangs no more: the daemon sees its end by itself.
async fn took_work(reactors: &[Handle]) {
    let task = |reactor: &Handle| reactor.spawn(|| std::future::ready(()));
    join_all(reactors.iter().map(task)).await;
}

fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "the service manager cannot be told: {states:?}");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::mpsc;

    use super::*;

    fn start(name: &str) -> reactor::ReactorThread {
        let config = reactor::Config {
            name: name.to_owned(),
            ..reactor::Config::default()
        };
        reactor::start(config).expect("a reactor")
    }

    #[tokio::test]
    async fn a_reactor_that_hangs_silences_the_watchdog_until_it_goes_on() {
        let (busy, other) = (start("busy"), start("other"));
        let handles = [busy.handle(), other.handle()];
        let told = AtomicU32::new(0);
        let period = Duration::from_millis(1);
        let watching = report(&handles, period, || {
            told.fetch_add(1, Ordering::Relaxed);
        });
        let (go_on, blocked) = mpsc::channel::<()>();
        let story = async {
            let times = |n| {
                let told = &told;
                async move {
                    while told.load(Ordering::Relaxed) < n {
                        tokio::time::sleep(period).await;
                    }
                }
            };
            times(3).await;
            let (begun, has_begun) = tokio::sync::oneshot::channel();
            let hang = busy.handle().spawn(move || {
                let _ = begun.send(());
                let _ = blocked.recv();
                std::future::ready(())
            });
            has_begun.await.expect("the reactor hangs");
            // The report that was under way may still come.
            let seen = told.load(Ordering::Relaxed);
            tokio::time::sleep(50 * period).await;
            assert!(told.load(Ordering::Relaxed) <= seen + 1);
            drop(go_on);
            hang.await.expect("it goes on");
            times(seen + 4).await;
        };
        tokio::select! {
            () = watching => unreachable!("it reports for ever"),
            () = story => {}
        }
    }
}
