//! Drives on which something fails, and which volumes have data on them.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::background::Background;
use crate::background::survey::{VolumeShares, last_survey};
use crate::pool::Shared;
use crate::pool::alerts::{AffectedVolume, FailingDrive};
use crate::sync::wait::lock;

/// A drive on which something fails. It leaves the list when it works again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriveTrouble {
    /// What the drive is called: its path, mostly.
    pub drive: String,
    /// Reads, writes and flushes that failed, since it began to fail.
    pub errors: u64,
    /// What the last one failed with.
    pub last_error: String,
    /// Volumes with data on it, as the last survey found them; `None` before a survey found any.
    pub volumes: Option<Vec<AffectedVolume>>,
}

pub(crate) fn drive_troubles(shared: &Shared, background: &Background) -> Vec<DriveTrouble> {
    let failing = shared.alerts.failing_drives();
    let Some(first) = failing.iter().map(|drive| drive.since).min() else {
        return Vec::new();
    };
    let survey = last_survey(background);
    let counted = survey.as_ref().and_then(|survey| {
        let age = Duration::from_secs(survey.age_seconds);
        SystemTime::now().checked_sub(age)
    });
    // An older one does not know what was written since.
    let is_new = counted.is_some_and(|counted| counted >= first);
    if !is_new {
        lock(&background.surveys).is_wanted = true;
    }
    let trouble = |failing: FailingDrive| {
        let index = usize::from(failing.index);
        let volumes = survey.as_ref().map(|survey| {
            let bytes_of = |volume: &VolumeShares| AffectedVolume {
                name: volume.name.clone(),
                bytes: volume.drive_bytes.get(index).copied().unwrap_or(0),
            };
            let volumes = survey.volumes.iter().map(bytes_of);
            volumes.filter(|volume| volume.bytes > 0).collect()
        });
        DriveTrouble {
            drive: shared.drive_name(failing.index),
            errors: failing.errors,
            last_error: failing.last_error,
            volumes: volumes.filter(|volumes: &Vec<_>| is_new || !volumes.is_empty()),
        }
    };
    failing.into_iter().map(trouble).collect()
}
