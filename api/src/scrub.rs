//! The scrub: all data are read in the background and compared with their checksums and fingerprints.
//!
//! | request | answer |
//! |---|---|
//! | `GET /v1/scrub` | [`ScrubView`] |
//! | `POST /v1/scrub` with [`StartScrub`] | [`ScrubView`] |
//! | `DELETE /v1/scrub` | [`ScrubView`] |
//! | `PUT /v1/scrub/schedule` with [`ScrubSchedule`] | [`ScrubView`] |
//! | `DELETE /v1/scrub/schedule` | [`ScrubView`] |
//!
//! Guarantee: the last [`RUNS_MAX`] scrubs and the schedule are stored in the pool.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::extract::State;
use axum::routing::{get, put};
use axum::{Json, Router};
use dedup::{DamageStatus, Engine, SCRUB_RATE_DEFAULT, ScrubPhase, ScrubStatus, rfc3339};
use hyper::Method;
use serde::{Deserialize, Serialize};
use subsystem::errors::Failure;

use crate::client::Client;
use crate::errors::Answer;
use crate::extract::Body;
use crate::server::ApiState;
use crate::settings::{store, stored};
use crate::tasks;

/// Scrubs that are known.
pub const RUNS_MAX: usize = 32;
/// The longest time between two scrubs, in days.
pub const EVERY_DAYS_MAX: u16 = 366;

/// Where the pool stores them.
const HISTORY: &str = "scrub/history";
const SCHEDULE: &str = "scrub/schedule";
/// How often it is looked whether a scrub is due.
const LOOK_INTERVAL: Duration = Duration::from_secs(60);
const SECONDS_OF_A_DAY: u64 = 24 * 3600;

/// A scrub, and all the damage that is known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubView {
    /// Its progress.
    #[serde(flatten)]
    pub scrub: ScrubStatus,
    /// All damaged blocks, and the ranges of volumes that refer to them.
    pub damage: DamageStatus,
    /// The last scrubs that ended, the newest last.
    #[serde(default)]
    pub history: Vec<ScrubRun>,
    /// When scrubs begin by themselves; `null` for never.
    #[serde(default)]
    pub schedule: Option<ScrubSchedule>,
}

/// A scrub that ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubRun {
    /// When it began, in seconds since 1970.
    pub began_at: u64,
    /// The same as a time of RFC 3339, in UTC.
    pub began: String,
    /// When it ended.
    pub ended: String,
    /// The same in seconds since 1970; 0 of a scrub that an older version ran.
    #[serde(default)]
    pub ended_at: u64,
    /// How it ended.
    pub phase: ScrubPhase,
    /// Blocks that it read and compared.
    pub checked_blocks: u64,
    /// Damaged blocks that it found.
    pub bad_blocks: u64,
}

/// Scrubs that begin by themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScrubSchedule {
    /// Days from the beginning of one to that of the next, 1 to [`EVERY_DAYS_MAX`]. Without an earlier one it begins at
    /// once.
    pub every_days: u16,
    /// Bytes per second that they read at most.
    #[serde(default = "default_rate")]
    pub rate_bytes_per_second: u64,
}

impl ScrubSchedule {
    /// Whether there can be such a schedule.
    ///
    /// # Errors
    /// Names what is wrong.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        match (1..=EVERY_DAYS_MAX).contains(&self.every_days) {
            true => Ok(dedup::check_scrub_rate(self.rate_bytes_per_second)?),
            false => Err(Failure::invalid(format!(
                "a scrub every {} days is not possible: use 1 to {EVERY_DAYS_MAX}",
                self.every_days
            ))),
        }
    }

    /// Whether the next one is due, at a time in seconds since 1970.
    fn is_due(&self, last: Option<&ScrubRun>, now: u64) -> bool {
        let pause = u64::from(self.every_days) * SECONDS_OF_A_DAY;
        last.is_none_or(|last| now.saturating_sub(last.began_at) >= pause)
    }
}

/// The scrubs that the pool remembers, the newest last.
fn history(engine: &Engine) -> Result<Vec<ScrubRun>, Failure> {
    Ok(stored(engine, HISTORY)?.unwrap_or_default())
}

/// When the last scrub ended that read everything, in seconds since 1970, if the pool remembers one.
pub(crate) fn last_finished(engine: &Engine) -> Option<u64> {
    finished_of(&history(engine).ok()?)
}

fn finished_of(runs: &[ScrubRun]) -> Option<u64> {
    let last = runs.iter().rfind(|run| run.phase == ScrubPhase::Finished)?;
    // An older version stored no second of the end.
    Some(last.ended_at.max(last.began_at))
}

/// The schedule that the pool stores.
pub(crate) fn schedule_of(engine: &Engine) -> Result<Option<ScrubSchedule>, Failure> {
    stored(engine, SCHEDULE)
}

/// Stores a schedule, or that there is none.
pub(crate) async fn set_schedule(
    state: &ApiState,
    schedule: Option<ScrubSchedule>,
) -> Result<(), Failure> {
    schedule.as_ref().map_or(Ok(()), ScrubSchedule::check)?;
    store(state, SCHEDULE, schedule.as_ref()).await
}

/// Begins a scrub; the pool remembers it when it has ended.
fn begin(state: &ApiState, rate_bytes_per_second: u64) -> Result<(), Failure> {
    state.engine.start_scrub(rate_bytes_per_second)?;
    let began = SystemTime::now();
    let noted = state.clone();
    tasks::follow_scrub(state, move |status| async move {
        if let Err(error) = note(&noted, began, &status).await {
            tracing::warn!(%error, "the scrub is not in the history of scrubs");
        }
    });
    Ok(())
}

async fn note(state: &ApiState, began: SystemTime, status: &ScrubStatus) -> Result<(), Failure> {
    let ended = SystemTime::now();
    let mut runs: Vec<ScrubRun> = history(&state.engine)?;
    runs.push(ScrubRun {
        began_at: seconds(began),
        began: rfc3339(began),
        ended: rfc3339(ended),
        ended_at: seconds(ended),
        phase: status.phase,
        checked_blocks: status.checked_blocks,
        bad_blocks: status.bad_blocks,
    });
    runs.drain(..runs.len().saturating_sub(RUNS_MAX));
    store(state, HISTORY, Some(&runs)).await
}

fn seconds(at: SystemTime) -> u64 {
    at.duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

/// Begins scrubs by the schedule, for as long as it is polled.
pub async fn keep_schedule(state: ApiState) {
    loop {
        if let Err(error) = begin_if_due(&state) {
            tracing::warn!(%error, "no scrub begins by the schedule");
        }
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}

fn begin_if_due(state: &ApiState) -> Result<(), Failure> {
    let Some(schedule) = schedule_of(&state.engine)? else {
        return Ok(());
    };
    let runs = history(&state.engine)?;
    let is_free = state.engine.scrub_status().phase != ScrubPhase::Running;
    match is_free && schedule.is_due(runs.last(), seconds(SystemTime::now())) {
        true => begin(state, schedule.rate_bytes_per_second),
        false => Ok(()),
    }
}

/// How to scrub.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StartScrub {
    /// Bytes per second that it reads at most.
    #[serde(default = "default_rate")]
    pub rate_bytes_per_second: u64,
}

fn default_rate() -> u64 {
    SCRUB_RATE_DEFAULT
}

/// The routes.
pub(crate) fn routes() -> Router<ApiState> {
    Router::new()
        .route("/v1/scrub", get(scrub).post(start_scrub).delete(stop_scrub))
        .route("/v1/scrub/schedule", put(schedule).delete(unschedule))
}

async fn view_of(engine: &Engine) -> Answer<ScrubView> {
    Ok(Json(ScrubView {
        scrub: engine.scrub_status(),
        damage: engine.damage().await,
        history: history(engine)?,
        schedule: schedule_of(engine)?,
    }))
}

async fn scrub(State(state): State<ApiState>) -> Answer<ScrubView> {
    view_of(&state.engine).await
}

async fn schedule(
    State(state): State<ApiState>,
    Body(request): Body<ScrubSchedule>,
) -> Answer<ScrubView> {
    set_schedule(&state, Some(request)).await?;
    begin_if_due(&state)?;
    view_of(&state.engine).await
}

async fn unschedule(State(state): State<ApiState>) -> Answer<ScrubView> {
    set_schedule(&state, None).await?;
    view_of(&state.engine).await
}

async fn start_scrub(
    State(state): State<ApiState>,
    Body(request): Body<StartScrub>,
) -> Answer<ScrubView> {
    begin(&state, request.rate_bytes_per_second)?;
    view_of(&state.engine).await
}

async fn stop_scrub(State(state): State<ApiState>) -> Answer<ScrubView> {
    state.engine.stop_scrub()?;
    view_of(&state.engine).await
}

impl Client {
    /// The progress of the scrub, and all damage.
    ///
    /// # Errors
    /// No daemon serves the pool, or it refuses.
    pub async fn scrub(&self) -> Result<ScrubView, Failure> {
        self.get("/v1/scrub").await
    }

    /// Starts a scrub.
    ///
    /// # Errors
    /// One runs already, or no daemon serves the pool.
    pub async fn start_scrub(&self, request: &StartScrub) -> Result<ScrubView, Failure> {
        self.send(Method::POST, "/v1/scrub", Some(request)).await
    }

    /// Stops the scrub.
    ///
    /// # Errors
    /// None runs, or no daemon serves the pool.
    pub async fn stop_scrub(&self) -> Result<ScrubView, Failure> {
        self.send(Method::DELETE, "/v1/scrub", None::<&()>).await
    }

    /// Lets scrubs begin by themselves.
    ///
    /// # Errors
    /// There can be no such schedule, or no daemon serves the pool.
    pub async fn schedule_scrubs(&self, schedule: &ScrubSchedule) -> Result<ScrubView, Failure> {
        self.send(Method::PUT, "/v1/scrub/schedule", Some(schedule))
            .await
    }

    /// Ends the schedule; a scrub that runs goes on.
    ///
    /// # Errors
    /// No daemon serves the pool, or it refuses.
    pub async fn unschedule_scrubs(&self) -> Result<ScrubView, Failure> {
        self.send(Method::DELETE, "/v1/scrub/schedule", None::<&()>)
            .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scrub_that_was_stopped_is_not_the_last_one_that_read_everything() {
        let run = |began_at, ended_at, phase| ScrubRun {
            began_at,
            began: rfc3339(UNIX_EPOCH),
            ended: rfc3339(UNIX_EPOCH),
            ended_at,
            phase,
            checked_blocks: 1,
            bad_blocks: 0,
        };
        let old = run(3, 0, ScrubPhase::Finished);
        let new = run(5, 7, ScrubPhase::Finished);
        let stopped = run(8, 9, ScrubPhase::Stopped);
        assert_eq!(finished_of(&[]), None);
        assert_eq!(finished_of(std::slice::from_ref(&stopped)), None);
        assert_eq!(finished_of(std::slice::from_ref(&old)), Some(3));
        assert_eq!(finished_of(&[old, new, stopped]), Some(7));
    }

    #[test]
    fn a_scrub_is_due_when_its_days_have_passed_since_the_last_one_began() {
        let schedule = ScrubSchedule {
            every_days: 2,
            rate_bytes_per_second: SCRUB_RATE_DEFAULT,
        };
        let began = UNIX_EPOCH + Duration::from_secs(1_000_000);
        let run = ScrubRun {
            began_at: seconds(began),
            began: rfc3339(began),
            ended: rfc3339(began),
            ended_at: 0,
            phase: ScrubPhase::Stopped,
            checked_blocks: 0,
            bad_blocks: 0,
        };
        assert!(schedule.is_due(None, 0));
        assert!(!schedule.is_due(Some(&run), 1_000_000 + 2 * SECONDS_OF_A_DAY - 1));
        assert!(schedule.is_due(Some(&run), 1_000_000 + 2 * SECONDS_OF_A_DAY));
        assert!(!schedule.is_due(Some(&run), 0), "a clock that was set back");
        for every_days in [0, EVERY_DAYS_MAX + 1] {
            assert!(
                ScrubSchedule {
                    every_days,
                    ..schedule
                }
                .check()
                .is_err()
            );
        }
        assert!(
            ScrubSchedule {
                rate_bytes_per_second: 1,
                ..schedule
            }
            .check()
            .is_err()
        );
    }
}
