//! The history of a pool over all runs of the daemon: starts, data read and written, events.
//!
//! Guarantees:
//! - It is stored in the pool's settings, in bounded space, and written rarely: at the start, at a clean end, after an
//!   event, and every `SAVE_INTERVAL`.
//! - Hosts are told of a warning when it begins, and again when it gets worse.
//! - Nothing in it names a host: every host may read it.

mod events;
mod lifetime;
mod warnings;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::{FutureExt, pin_mut, select_biased};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::describe::Describe;
use crate::errors::Failure;
use crate::lock::lock;
use crate::target::Target;
use events::Events;
pub(crate) use events::{now_ms, timestamp};
use lifetime::Lifetime;
pub(crate) use warnings::Warnings;

/// How often the pool's state is checked.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);

/// How often totals are written without an event. A crash loses at most that much.
const SAVE_INTERVAL: Duration = Duration::from_secs(600);

/// Keys of the settings.
const LIFETIME_KEY: &str = "record/lifetime";
const EVENTS_KEY: &str = "record/events";

/// The form of the settings' values.
const VERSION: u32 = 1;

/// The history. Usable from every thread.
#[derive(Debug, Default)]
pub(crate) struct Record {
    state: Mutex<State>,
}

#[derive(Clone, Debug, Default)]
struct State {
    lifetime: Lifetime,
    events: Events,
    /// The warnings that hosts were told of.
    told: Warnings,
    /// Something is to be written.
    is_news: bool,
}

impl Record {
    /// What the pool remembers.
    ///
    /// # Errors
    /// A setting that cannot be read; it is named.
    pub(crate) fn open(pool: &dyn Describe) -> Result<Self, Failure> {
        let record = Self::default();
        record.open_again(pool)?;
        Ok(record)
    }

    /// What the pool remembers now, where another node recorded it.
    ///
    /// # Errors
    /// As of [`Record::open`]; then nothing has changed.
    pub(crate) fn open_again(&self, pool: &dyn Describe) -> Result<(), Failure> {
        let state = State {
            lifetime: read(pool, LIFETIME_KEY)?,
            events: read(pool, EVENTS_KEY)?,
            ..State::default()
        };
        *lock(&self.state) = state;
        Ok(())
    }

    /// What earlier runs have left.
    pub(crate) fn lifetime(&self) -> Lifetime {
        lock(&self.state).lifetime.clone()
    }

    /// The events, the latest first.
    pub(crate) fn events(&self) -> Events {
        lock(&self.state).events.clone()
    }
}

/// A setting's value; the default one if there is none.
fn read<T: DeserializeOwned + Default + Versioned>(
    pool: &dyn Describe,
    key: &str,
) -> Result<T, Failure> {
    let Some(value) = pool.setting(key) else {
        return Ok(T::default());
    };
    let unreadable = |why: &dyn std::fmt::Display| {
        Failure::invalid(format!(
            "the pool's setting '{key}' (its history) cannot be read: {why}; \
             open the pool with the version of onefold that wrote it"
        ))
    };
    let document: T = serde_json::from_slice(&value).map_err(|error| unreadable(&error))?;
    match document.version() {
        VERSION => Ok(document),
        other => Err(unreadable(&format_args!("it has version {other}"))),
    }
}

/// A value that says which form it has.
trait Versioned: Serialize {
    fn version(&self) -> u32;
}

fn change<T: Versioned>(key: &str, value: &T) -> Result<(String, Option<Vec<u8>>), Failure> {
    let bytes = serde_json::to_vec(value)
        .map_err(|error| Failure::invalid(format!("'{key}' cannot be written: {error}")))?;
    Ok((key.to_owned(), Some(bytes)))
}

impl Target {
    /// Records a start of the daemon.
    ///
    /// # Errors
    /// The engine's.
    pub async fn begin_record(&self) -> Result<(), Failure> {
        {
            let mut state = lock(&self.record.state);
            state.lifetime.begin();
            state.events.power_on();
        }
        let smart = self.smart_log();
        lock(&self.record.state).events.smart(&smart);
        self.save_record(false).await
    }

    /// Records a clean end; an end that is not recorded counts as an unsafe shutdown.
    ///
    /// # Errors
    /// The engine's.
    pub async fn end_record(&self) -> Result<(), Failure> {
        self.save_record(true).await
    }

    /// Notes what the totals are; also, at a clean end, that it is one.
    async fn save_record(&self, is_end: bool) -> Result<(), Failure> {
        let changes = {
            let mut state = lock(&self.record.state);
            state.is_news = false;
            let mut now = state.lifetime.plus(&self.health);
            now.running = !is_end;
            vec![
                change(LIFETIME_KEY, &now)?,
                change(EVENTS_KEY, &state.events)?,
            ]
        };
        Ok(self.engine()?.change_settings(changes).await?)
    }

    /// What is wrong with the pool, as far as this node knows.
    pub(crate) fn warnings(&self) -> Warnings {
        let engine = self.engine();
        engine.map_or_else(
            |_| Warnings::unknown(),
            |engine| Warnings::of(&engine.summary()),
        )
    }

    /// Checks whether the pool fills up, takes no writes or has lost data, and tells attached hosts.
    pub fn look_at_pool(&self) {
        let now = self.warnings();
        let news = {
            let mut state = lock(&self.record.state);
            let news = state.told.update(&now);
            for text in &news.texts {
                state.events.text(text);
            }
            state.is_news |= !news.texts.is_empty();
            news
        };
        if news.texts.is_empty() {
            return;
        }
        let smart = self.smart_log();
        lock(&self.record.state).events.smart(&smart);
        for controller in self.controllers() {
            for kind in &news.events {
                controller.events.raise(*kind);
            }
        }
    }
}

/// Watches the pool and writes the history until the target stops. Runs on the control reactor.
pub async fn keep(target: Arc<Target>) {
    let mut saved_at = reactor::now();
    let stopped = target.stopped().fuse();
    pin_mut!(stopped);
    loop {
        let pause = reactor::sleep(LOOK_INTERVAL).fuse();
        pin_mut!(pause);
        select_biased! {
            () = stopped => return,
            () = pause => {}
        }
        target.look_at_pool();
        fabric::peer_log::sweep();
        let is_due = reactor::now().saturating_duration_since(saved_at) >= SAVE_INTERVAL;
        if is_due || lock(&target.record.state).is_news {
            saved_at = reactor::now();
            if let Err(error) = target.save_record(false).await {
                tracing::warn!(%error, "the pool's history was not written");
            }
        }
    }
}
