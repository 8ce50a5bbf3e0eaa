//! What a pool's folder keeps of what happened: its event log and its history.

use std::path::Path;
use std::sync::Arc;

use api::event_log::{self, EventLog};
use api::history::{self, History};

use crate::pool::OpenPool;

/// The pool's event log. One that cannot be opened keeps no pool from being served.
pub(crate) fn events(pool: &OpenPool) -> Arc<EventLog> {
    let opened = match pool.is_temporary {
        true => Ok(EventLog::in_memory()),
        false => EventLog::open(&pool.paths.dir),
    };
    Arc::new(opened.unwrap_or_else(|error| {
        tracing::warn!(%error, "the pool's event log cannot be opened: events are lost at the end");
        EventLog::in_memory()
    }))
}

/// The pool's history. One that cannot be opened keeps no pool from being served.
pub(crate) fn history(pool: &OpenPool) -> Arc<History> {
    let opened = match pool.is_temporary {
        true => Ok(History::in_memory()),
        false => History::open(&pool.paths.dir),
    };
    Arc::new(opened.unwrap_or_else(|error| {
        tracing::warn!(%error, "the pool's history cannot be opened: what comes is lost at the end");
        History::in_memory()
    }))
}

/// Moves them from one folder to another one of the same pool: they are this node's. What cannot be moved is lost.
pub(crate) fn move_to(from: &Path, to: &Path) {
    for name in event_log::FILES.into_iter().chain([history::FILE]) {
        let (from, to) = (from.join(name), to.join(name));
        if from.exists()
            && let Err(error) = std::fs::rename(&from, &to)
        {
            tracing::warn!(file = %from.display(), %error, "it is not kept");
        }
    }
}
