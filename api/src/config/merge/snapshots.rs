//! Schedules of snapshots, from a file into the settings of a pool.

use std::collections::BTreeSet;

use uuid::Uuid;

use super::{At, Merge, Present, fields};
use crate::snapshot_schedules::SnapshotSchedule;

impl Merge<'_> {
    /// The schedules that are new or others, each with its volume.
    pub(super) fn schedules(&mut self, present: Present<'_>) -> Vec<(Uuid, SnapshotSchedule)> {
        let mut steps = Vec::new();
        let mut seen = BTreeSet::new();
        for At {
            line,
            value: wanted,
        } in &self.import.wanted.schedules
        {
            let (line, volume) = (*line, &wanted.volume);
            let object = format!("the schedule of snapshots of volume '{volume}'");
            if !self.is_first(&mut seen, volume.as_str(), line, &object) {
                continue;
            }
            let Some(uuid) = self.volume_uuid(present, volume) else {
                let what = format!(
                    "{object} is of none: it is neither in the file nor in the pool; add its [[volume]]"
                );
                self.wrong(line, what);
                continue;
            };
            let schedule = wanted.schedule();
            if let Err(failure) = schedule.check() {
                self.wrong(line, failure.message);
                continue;
            }
            let mut known = present.schedules.iter();
            let is_taken = match known.find(|(of, _)| *of == uuid) {
                None => {
                    self.changes.push(format!("set {object}"));
                    true
                }
                Some((_, known)) => self.may_replace(line, &object, &fields(known, &schedule)),
            };
            if is_taken {
                steps.push((uuid, schedule));
            }
        }
        steps
    }
}
