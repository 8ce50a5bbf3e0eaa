//! Work that the engine does by itself, and what it tells of its state.
//!
//! Guarantee: background work holds locks for short steps only, so no command waits long for it.

pub(crate) mod bring_near;
pub(crate) mod copies;
pub(crate) mod deferred_dedup;
pub(crate) mod discard;
pub(crate) mod drive_alerts;
pub(crate) mod fencing;
pub(crate) mod fill_watch;
pub(crate) mod freeing;
pub(crate) mod healing;
pub(crate) mod maintenance;
pub(crate) mod merging;
pub(crate) mod moving;
pub(crate) mod online_check;
mod progress;
pub(crate) mod rearranging;
pub(crate) mod rebuild;
pub(crate) mod rebuild_speed;
pub(crate) mod scrub;
pub(crate) mod status;
pub(crate) mod survey;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Mutex;

use futures_util::lock::Mutex as AsyncMutex;
use progress::Progress;
use rearranging::Places;
use rebuild::Running;
use rebuild_speed::RebuildSpeed;
use scrub::Scrub;
use survey::Surveys;

/// What background work remembers.
#[derive(Default)]
pub(crate) struct Background {
    pub(crate) scrub: Mutex<Scrub>,
    pub(crate) surveys: Mutex<Surveys>,
    /// One rebuild at a time.
    pub(crate) rebuilding: AsyncMutex<()>,
    /// Where segments lie, for who changes that. Taken before `drive_states`, and behind the lock of rebuilds.
    pub(crate) places: AsyncMutex<Places>,
    /// The rebuild that runs.
    pub(crate) rebuild: Mutex<Option<Running>>,
    /// How fast the last drive was filled, if any was.
    pub(crate) rebuild_speed: Mutex<Option<RebuildSpeed>>,
    /// Of the online check that runs, or of the last one.
    pub(crate) check_progress: Progress,
    /// Of the survey that runs, or of the last one.
    pub(crate) survey_progress: Progress,
    /// Mappings that deleted volumes had in the beginning.
    pub(crate) deleting: Mutex<BTreeMap<u32, u64>>,
}
