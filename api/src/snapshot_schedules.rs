//! Snapshots that the daemon takes by itself, and deletes again.
//!
//! | request | answer |
//! |---|---|
//! | `GET /v1/snapshot-schedules` | list of [`ScheduleView`] |
//! | `PUT /v1/volumes/NAME/snapshot-schedule` with [`SnapshotSchedule`] | list of [`ScheduleView`] |
//! | `DELETE /v1/volumes/NAME/snapshot-schedule` | list of [`ScheduleView`] |
//!
//! Guarantees: schedules are stored in the pool, and followed by whoever serves it; only snapshots that a schedule took
//! (`VOLUME@auto-...`) are ever deleted by one, and no older one goes before the newer one is there; those that are due
//! together are of one moment.

use std::collections::BTreeMap;
use std::time::{Duration, UNIX_EPOCH};

use axum::extract::State;
use axum::routing::{get, put};
use axum::{Json, Router};
use dedup::{Engine, ErrorKind, rfc3339};
use hyper::Method;
use meta::VolumeInfo;
use serde::{Deserialize, Serialize};
use subsystem::errors::Failure;
use subsystem::target::volumes::no_volume;
use uuid::Uuid;

use crate::client::Client;
use crate::errors::Answer;
use crate::extract::{Body, Path};
use crate::server::{ApiState, on_control};
use crate::snapshots;
use crate::volumes::volume_path;

/// The shortest time between two snapshots, in seconds.
pub const EVERY_SECONDS_MIN: u64 = 60;
/// The longest one: a year.
pub const EVERY_SECONDS_MAX: u64 = 366 * 24 * 3600;
/// Snapshots that a schedule keeps at most.
pub const KEEP_MAX: u32 = 1000;

/// Snapshots of a schedule have names that begin so.
const PREFIX: &str = "auto-";
/// Where the pool stores schedules, by the identity of the volume.
const SCHEDULE: &str = "snapshots/schedule/";
/// The form of the values.
const VERSION: u32 = 1;
/// How often it is looked whether a snapshot is due.
const LOOK_INTERVAL: Duration = Duration::from_secs(10);
/// Volumes whose snapshots are taken together.
const TOGETHER_MAX: usize = 64;

/// Snapshots that are taken by themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SnapshotSchedule {
    /// Seconds from one to the next, [`EVERY_SECONDS_MIN`] to [`EVERY_SECONDS_MAX`]. The first one is taken at once.
    pub every_seconds: u64,
    /// How many are kept, 1 to [`KEEP_MAX`]: older ones are deleted.
    pub keep: u32,
}

/// The schedule of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScheduleView {
    /// The volume's name.
    pub volume: String,
    /// Seconds from one snapshot to the next.
    pub every_seconds: u64,
    /// How many are kept.
    pub keep: u32,
    /// How many there are.
    pub kept: u32,
    /// When the last one was taken, as a time of RFC 3339 in UTC; `null`: none yet.
    pub last: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct Stored {
    version: u32,
    value: SnapshotSchedule,
}

impl SnapshotSchedule {
    /// Whether there can be such a schedule.
    ///
    /// # Errors
    /// Names what is wrong.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        if !(EVERY_SECONDS_MIN..=EVERY_SECONDS_MAX).contains(&self.every_seconds) {
            return Err(Failure::invalid(format!(
                "a snapshot every {} seconds is not possible: use {EVERY_SECONDS_MIN} to {EVERY_SECONDS_MAX}",
                self.every_seconds
            )));
        }
        match (1..=KEEP_MAX).contains(&self.keep) {
            true => Ok(()),
            false => Err(Failure::invalid(format!(
                "{} snapshots cannot be kept: use 1 to {KEEP_MAX}",
                self.keep
            ))),
        }
    }

    /// Whether a snapshot is due, if the last one was taken then. A clock that was set back does not end a schedule.
    fn is_due(&self, last: Option<u64>, now: u64) -> bool {
        last.is_none_or(|last| now.saturating_sub(last) >= self.every_seconds || last > now)
    }
}

/// What a schedule took and did not delete yet, the oldest first: name without that of the volume, and time.
type Taken = Vec<(String, u64)>;

/// The name of a snapshot that a schedule takes now.
fn name_of(now: u64, taken: &Taken) -> String {
    let time = rfc3339(UNIX_EPOCH + Duration::from_secs(now));
    let time: String = time.chars().filter(char::is_ascii_alphanumeric).collect();
    let plain = format!("{PREFIX}{time}");
    let is_free = |name: &String| taken.iter().all(|(taken, _)| taken != name);
    let mut names = (1..).map(|at| match at {
        1 => plain.clone(),
        _ => format!("{plain}-{at}"),
    });
    names.find(is_free).unwrap_or(plain)
}

/// The names that are too many.
fn too_many(schedule: SnapshotSchedule, taken: &Taken) -> impl Iterator<Item = &str> {
    let count = taken.len().saturating_sub(schedule.keep as usize);
    taken[..count].iter().map(|(name, _)| name.as_str())
}

/// What a schedule took of each volume.
fn all_taken(engine: &Engine) -> BTreeMap<u32, Taken> {
    let mut taken: BTreeMap<u32, Taken> = BTreeMap::new();
    for info in engine.snapshots() {
        let name = info.name.split_once('@').map(|(_, name)| name);
        let name = name.filter(|name| name.starts_with(PREFIX));
        if let (Some(of), Some(name)) = (info.snapshot, name) {
            let it = (name.to_owned(), of.created);
            taken.entry(of.volume).or_default().push(it);
        }
    }
    taken
}

/// The schedules that the pool stores, with their volumes.
fn stored(engine: &Engine) -> Result<Vec<(VolumeInfo, SnapshotSchedule)>, Failure> {
    let volumes = engine.volumes();
    let mut all = Vec::new();
    for (key, bytes) in engine.settings(SCHEDULE) {
        let parsed = serde_json::from_slice::<Stored>(&bytes).ok();
        let parsed = parsed.filter(|it| it.version == VERSION).ok_or_else(|| {
            let text = format!(
                "the pool's setting '{key}' cannot be understood: serve the pool with the version that wrote it"
            );
            Failure::new(ErrorKind::Corrupt, text)
        })?;
        let uuid = key[SCHEDULE.len()..].parse::<Uuid>().ok();
        let volume = volumes.iter().find(|info| Some(info.uuid) == uuid);
        // That of a deleted volume is forgotten with the next change.
        all.extend(volume.map(|info| (info.clone(), parsed.value)));
    }
    Ok(all)
}

/// The schedules that the pool stores, each with its volume's identity.
pub(crate) fn all_of(engine: &Engine) -> Result<Vec<(Uuid, SnapshotSchedule)>, Failure> {
    let all = stored(engine)?.into_iter();
    Ok(all.map(|(info, schedule)| (info.uuid, schedule)).collect())
}

/// Takes and deletes snapshots by the schedules, for as long as it is polled.
pub async fn keep(state: ApiState) {
    loop {
        if let Err(error) = follow(&state, snapshots::now()).await {
            tracing::warn!(%error, "no snapshots are taken by the schedules");
        }
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}

/// Takes what is due, then deletes what is too many.
async fn follow(state: &ApiState, now: u64) -> Result<(), Failure> {
    let mut schedules = stored(&state.engine)?;
    // One that waits for the rest of an image, or of changes, would keep the others from theirs; what it has may be what
    // it goes back to.
    schedules.retain(|(info, _)| state.target.check_complete(info).is_ok());
    if schedules.is_empty() {
        return Ok(());
    }
    let taken = all_taken(&state.engine);
    let none = Taken::new();
    let of = |info: &VolumeInfo| taken.get(&info.id).unwrap_or(&none);
    let due = schedules.iter().filter(|(info, schedule)| {
        let last = of(info).iter().map(|(_, created)| *created).max();
        schedule.is_due(last, now)
    });
    let due: Vec<String> = due
        .map(|(info, _)| format!("{}@{}", info.name, name_of(now, of(info))))
        .collect();
    for together in due.chunks(TOGETHER_MAX) {
        snapshots::take(state, together.to_vec(), now).await?;
    }
    let taken = all_taken(&state.engine);
    for (info, schedule) in &schedules {
        let Some(taken) = taken.get(&info.id) else {
            continue;
        };
        for name in too_many(*schedule, taken) {
            snapshots::discard(state, &format!("{}@{name}", info.name)).await?;
        }
    }
    Ok(())
}

/// The routes.
pub(crate) fn routes() -> Router<ApiState> {
    Router::new()
        .route("/v1/snapshot-schedules", get(list))
        .route(
            "/v1/volumes/{name}/snapshot-schedule",
            put(set).delete(unset),
        )
}

fn views(engine: &Engine) -> Result<Vec<ScheduleView>, Failure> {
    let taken = all_taken(engine);
    let schedules = stored(engine)?.into_iter();
    let views = schedules.map(|(info, schedule)| {
        let taken = taken.get(&info.id);
        let last = taken.and_then(|taken| taken.iter().map(|(_, created)| *created).max());
        ScheduleView {
            volume: info.name,
            every_seconds: schedule.every_seconds,
            keep: schedule.keep,
            kept: taken.map_or(0, |taken| taken.len() as u32),
            last: last.map(|last| rfc3339(UNIX_EPOCH + Duration::from_secs(last))),
        }
    });
    let mut views: Vec<_> = views.collect();
    views.sort_by(|a, b| a.volume.cmp(&b.volume));
    Ok(views)
}

async fn list(State(state): State<ApiState>) -> Answer<Vec<ScheduleView>> {
    Ok(Json(views(&state.engine)?))
}

/// Stores a volume's schedule, or that there is none.
async fn store(
    state: &ApiState,
    name: &str,
    schedule: Option<SnapshotSchedule>,
) -> Result<(), Failure> {
    let volumes = state.engine.volumes();
    let volume = volumes.iter().find(|info| info.name == name);
    let volume = volume.ok_or_else(|| no_volume(name))?;
    store_all(state, vec![(volume.uuid, schedule)]).await
}

/// Stores schedules of volumes, which are followed from the next look on.
///
/// # Errors
/// The pool cannot store them.
pub(crate) async fn set_all(
    state: &ApiState,
    schedules: Vec<(Uuid, SnapshotSchedule)>,
) -> Result<(), Failure> {
    let all = schedules.into_iter();
    store_all(state, all.map(|(of, it)| (of, Some(it))).collect()).await
}

/// Stores schedules as one change, and forgets those of volumes that are gone.
async fn store_all(
    state: &ApiState,
    schedules: Vec<(Uuid, Option<SnapshotSchedule>)>,
) -> Result<(), Failure> {
    let key = |uuid: &Uuid| format!("{SCHEDULE}{uuid}");
    let volumes = state.engine.volumes();
    let known: Vec<String> = volumes.iter().map(|info| key(&info.uuid)).collect();
    let stored = state.engine.settings(SCHEDULE).into_iter();
    let gone = stored.filter(|(key, _)| !known.contains(key));
    let mut changes: Vec<_> = gone.map(|(key, _)| (key, None)).collect();
    for (uuid, schedule) in schedules {
        let bytes = schedule.map(|value| {
            let stored = Stored {
                version: VERSION,
                value,
            };
            serde_json::to_vec(&stored)
                .map_err(|e| Failure::new(ErrorKind::Internal, e.to_string()))
        });
        changes.push((key(&uuid), bytes.transpose()?));
    }
    let engine = state.engine.clone();
    on_control(state, move || async move {
        engine.change_settings(changes).await
    })
    .await
}

async fn set(
    State(state): State<ApiState>,
    Path(name): Path<String>,
    Body(request): Body<SnapshotSchedule>,
) -> Answer<Vec<ScheduleView>> {
    request.check()?;
    store(&state, &name, Some(request)).await?;
    follow(&state, snapshots::now()).await?;
    Ok(Json(views(&state.engine)?))
}

async fn unset(
    State(state): State<ApiState>,
    Path(name): Path<String>,
) -> Answer<Vec<ScheduleView>> {
    store(&state, &name, None).await?;
    Ok(Json(views(&state.engine)?))
}

impl Client {
    /// The schedules of all volumes.
    ///
    /// # Errors
    /// No daemon serves the pool, or it refuses.
    pub async fn snapshot_schedules(&self) -> Result<Vec<ScheduleView>, Failure> {
        self.get("/v1/snapshot-schedules").await
    }

    /// Lets snapshots of a volume be taken by themselves.
    ///
    /// # Errors
    /// There can be no such schedule, or no daemon serves the pool.
    pub async fn schedule_snapshots(
        &self,
        volume: &str,
        schedule: &SnapshotSchedule,
    ) -> Result<Vec<ScheduleView>, Failure> {
        let path = format!("{}/snapshot-schedule", volume_path(volume)?);
        self.send(Method::PUT, &path, Some(schedule)).await
    }

    /// Ends the schedule of a volume; its snapshots stay.
    ///
    /// # Errors
    /// There is no such volume, or no daemon serves the pool.
    pub async fn unschedule_snapshots(&self, volume: &str) -> Result<Vec<ScheduleView>, Failure> {
        let path = format!("{}/snapshot-schedule", volume_path(volume)?);
        self.send(Method::DELETE, &path, None::<&()>).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOURLY: SnapshotSchedule = SnapshotSchedule {
        every_seconds: 3600,
        keep: 24,
    };

    /// What a schedule has after looks at these times; and the times at which it took one.
    fn live(schedule: SnapshotSchedule, looks: impl Iterator<Item = u64>) -> (Taken, Vec<u64>) {
        let (mut taken, mut times) = (Taken::new(), Vec::new());
        for now in looks {
            let last = taken.iter().map(|(_, created)| *created).max();
            if schedule.is_due(last, now) {
                taken.push((name_of(now, &taken), now));
                times.push(now);
            }
            let gone: Vec<String> = too_many(schedule, &taken).map(str::to_owned).collect();
            taken.retain(|(name, _)| !gone.contains(name));
        }
        (taken, times)
    }

    #[test]
    fn a_week_of_hours_leaves_the_last_day() {
        let start = 1_700_000_000;
        let (taken, times) = live(HOURLY, (0..7 * 24 * 360).map(|at| start + at * 10));
        assert_eq!(times.len(), 7 * 24);
        assert!(times.windows(2).all(|pair| pair[1] - pair[0] == 3600));
        let kept: Vec<u64> = taken.iter().map(|(_, created)| *created).collect();
        assert_eq!(kept, times[times.len() - 24..]);
        assert_eq!(taken[0].0, "auto-20231120T221320Z");
    }

    #[test]
    fn a_node_that_was_off_takes_one_and_not_one_for_each_hour_missed() {
        let (taken, times) = live(HOURLY, [0, 100 * 3600, 100 * 3600 + 10].into_iter());
        assert_eq!((taken.len(), times), (2, vec![0, 100 * 3600]));
    }

    #[test]
    fn a_clock_that_was_set_back_ends_no_schedule_and_takes_no_name_twice() {
        let (taken, _) = live(HOURLY, [10_000, 5_000, 10_000].into_iter());
        let names: Vec<&str> = taken.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names.len(), 2, "{names:?}");
        let same = vec![(name_of(7, &Taken::new()), 7)];
        assert_ne!(name_of(7, &same), same[0].0);
    }

    #[test]
    fn a_schedule_that_cannot_be_names_what_can() {
        for (every_seconds, keep) in [(59, 1), (EVERY_SECONDS_MAX + 1, 1), (60, 0), (60, 1001)] {
            let schedule = SnapshotSchedule {
                every_seconds,
                keep,
            };
            let refused = schedule.check().expect_err("it cannot be");
            assert!(refused.to_string().contains("use "), "{refused}");
        }
        assert!(HOURLY.check().is_ok());
    }
}
