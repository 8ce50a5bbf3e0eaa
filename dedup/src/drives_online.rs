//! Drives of a pool in service: added, failing, missing.
//!
//! Guarantees: a drive is used only after it is written down that it belongs to the pool; of a drive
//! that fails or is missing it can be said which volumes have data on it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use drives::Drive;
use meta::{
    Journal, JournalConfig, JournalMedia, LoadVisitor, Mapping, Pba, Record, Store, VolumeInfo,
};
use serde::{Deserialize, Serialize};

use crate::drive_list::DRIVES_MAX;
use crate::engine::Shared;
use crate::index::BLOCKS_MAX;
use crate::recovery::data_blocks_of;
use crate::space::Space;
use crate::trouble::FailingDrive;
use crate::wait::lock;
use crate::{Engine, EngineError, Result, SUB_BLOCK_BYTES};

/// A volume with data on a drive that is in trouble.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AffectedVolume {
    /// The volume's name.
    pub name: String,
    /// Its mapped sub-blocks on the drive, in bytes.
    pub bytes: u64,
}

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

impl Engine {
    /// Adds a drive to the pool; new data goes to it from now on. `write_down` makes the pool remember
    /// the drive under the index that it is told, durably; only then the drive is used. Runs on a
    /// reactor, and may block it.
    ///
    /// # Errors
    /// `Invalid` if the pool cannot have this drive, or what `write_down` returns; the pool is as it was
    /// then.
    pub async fn add_drive(
        &self,
        drive: Arc<dyn Drive>,
        write_down: impl FnOnce(u16) -> Result<()>,
    ) -> Result<u16> {
        let shared = &self.shared;
        let _turn = shared.admin_turn.lock().await;
        let data_blocks = data_blocks_of(&*drive)?;
        let (capacity, index) = {
            let state = lock(&shared.state);
            state.check_writable()?;
            (state.space.capacity(), shared.drives.len())
        };
        let number = u16::try_from(index).ok().filter(|_| index < DRIVES_MAX);
        let Some(index) = number else {
            return Err(EngineError::invalid(format!(
                "the pool has {index} drives already: more are not possible"
            )));
        };
        if capacity + data_blocks > BLOCKS_MAX {
            return Err(EngineError::invalid(format!(
                "drive {}: the pool would have {} data blocks; at most {BLOCKS_MAX} are possible",
                drive.name(),
                capacity + data_blocks
            )));
        }
        write_down(index)?;
        let space = Space::prepare(data_blocks);
        tracing::info!(
            drive = drive.name(),
            index,
            data_blocks,
            "a drive was added"
        );
        shared.drives.add(drive);
        lock(&shared.state).add_drive(space, data_blocks);
        Ok(index)
    }

    /// Drives on which something fails, and whose data is on them.
    pub fn drive_troubles(&self) -> Vec<DriveTrouble> {
        self.shared.drive_troubles()
    }
}

impl Shared {
    fn drive_troubles(&self) -> Vec<DriveTrouble> {
        let failing = self.troubles.failing_drives();
        let Some(first) = failing.iter().map(|drive| drive.since).min() else {
            return Vec::new();
        };
        let survey = self.last_survey();
        let counted = survey.as_ref().and_then(|survey| {
            let age = Duration::from_secs(survey.age_seconds);
            SystemTime::now().checked_sub(age)
        });
        // An older one does not know what was written since.
        let is_new = counted.is_some_and(|counted| counted >= first);
        if !is_new {
            lock(&self.surveys).is_wanted = true;
        }
        let trouble = |failing: FailingDrive| {
            let index = usize::from(failing.index);
            let volumes = survey.as_ref().map(|survey| {
                let bytes_of = |volume: &crate::VolumeShares| AffectedVolume {
                    name: volume.name.clone(),
                    bytes: volume.drive_bytes.get(index).copied().unwrap_or(0),
                };
                let volumes = survey.volumes.iter().map(bytes_of);
                volumes.filter(|volume| volume.bytes > 0).collect()
            });
            DriveTrouble {
                drive: self.drive_name(failing.index),
                errors: failing.errors,
                last_error: failing.last_error,
                volumes: volumes.filter(|volumes: &Vec<_>| is_new || !volumes.is_empty()),
            }
        };
        failing.into_iter().map(trouble).collect()
    }

    /// The name of the drive with that index.
    pub(crate) fn drive_name(&self, index: u16) -> String {
        let drive = self.drives.get(usize::from(index));
        drive.map_or_else(String::new, |drive| drive.name().to_owned())
    }
}

/// What a pool that lacks drives has on them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MissingDrives {
    /// Volumes with data there, and how much.
    pub affected: Vec<AffectedVolume>,
    /// Names of the others.
    pub unaffected: Vec<String>,
}

impl MissingDrives {
    /// Finds out from journal and store, which both stay as they are, which volumes have data on the
    /// drives with these indexes.
    ///
    /// # Errors
    /// Those of loading the store and of reading the journal.
    pub fn look_up(
        store: &dyn Store,
        journal: Arc<dyn JournalMedia>,
        config: JournalConfig,
        drives: &[u16],
    ) -> Result<Self> {
        let mut usage = Usage {
            drives,
            volumes: BTreeMap::new(),
            mappings: BTreeMap::new(),
        };
        let checkpoint = store.load(&mut usage)?;
        let (_, records) = Journal::open(journal, checkpoint, config)?;
        for (_, record) in &records {
            usage.replay(record);
        }
        let (affected, unaffected) = usage
            .volumes
            .iter()
            .map(|(id, name)| AffectedVolume {
                name: name.clone(),
                bytes: u64::try_from(usage.mappings.get(id).copied().unwrap_or(0)).unwrap_or(0)
                    * SUB_BLOCK_BYTES as u64,
            })
            .partition::<Vec<_>, _>(|volume| volume.bytes > 0);
        Ok(Self {
            affected,
            unaffected: unaffected.into_iter().map(|volume| volume.name).collect(),
        })
    }
}

/// Mappings of each volume to some drives.
struct Usage<'a> {
    drives: &'a [u16],
    volumes: BTreeMap<u32, String>,
    mappings: BTreeMap<u32, i64>,
}

impl Usage<'_> {
    fn count(&mut self, volume: u32, pba: Pba, change: i64) {
        if self.drives.contains(&pba.drive()) {
            *self.mappings.entry(volume).or_default() += change;
        }
    }

    fn replay(&mut self, record: &Record) {
        match record {
            Record::Map {
                volume, entries, ..
            } => {
                for entry in entries {
                    if let Some(old) = entry.old {
                        self.count(*volume, old, -1);
                    }
                    if let Some(new) = entry.new {
                        self.count(*volume, new.pba, 1);
                    }
                }
            }
            Record::Unmap { volume, entries } => {
                for (_, old) in entries {
                    self.count(*volume, *old, -1);
                }
            }
            Record::VolumeCreate(info) => {
                self.volumes.insert(info.id, info.name.clone());
            }
            Record::VolumeDelete { id } | Record::VolumeGone { id } => {
                self.volumes.remove(id);
            }
            Record::VolumeResize { .. }
            | Record::Trimming { .. }
            | Record::Settings(_)
            | Record::Durable { .. } => {}
        }
    }
}

impl LoadVisitor for Usage<'_> {
    fn volume(&mut self, volume: VolumeInfo) {
        if volume.state == meta::VolumeState::Active {
            self.volumes.insert(volume.id, volume.name);
        }
    }

    fn block(&mut self, _pba: Pba, _row: meta::BlockRow) {}

    fn map(&mut self, volume: u32, _sub_block: u64, mapping: Mapping) {
        self.count(volume, mapping.pba, 1);
    }
}
