//! How a pool does: verdict, damage, checks, scrubs, surveys.

use crate::background::online_check::{self, OnlineCheckReport};
use crate::background::scrub::{self, ScrubStatus};
use crate::background::status::{self, DeletingStatus};
use crate::background::survey::{self, Survey};
use crate::background::{drive_alerts, healing};
use crate::pool::alerts::Verdict;
use crate::pool::damage_list::DamageStatus;
use crate::sync::wait::lock;
use crate::{Copysets, DriveTrouble, Engine, EngineError, RebuildSpeed, Result};

impl Engine {
    /// How the pool does, and why.
    pub fn verdict(&self) -> Verdict {
        self.shared.verdict()
    }

    /// Drives on which something fails, and whose data is on them.
    pub fn drive_troubles(&self) -> Vec<DriveTrouble> {
        drive_alerts::drive_troubles(&self.shared, &self.background)
    }

    /// The copysets of the pool as it is now: a copy counts only if its drive is online. Looks at all segments.
    pub fn copysets(&self) -> Copysets {
        self.shared.drives.copysets(true)
    }

    /// The copysets that the pool has when all of its drives are online.
    pub fn copysets_when_online(&self) -> Copysets {
        self.shared.drives.copysets(false)
    }

    /// How fast the last drive was filled that was new to the pool; `None` if none was, or nothing worth measuring.
    pub fn rebuild_speed(&self) -> Option<RebuildSpeed> {
        *lock(&self.background.rebuild_speed)
    }

    /// Damaged blocks, and what refers to them at present. Looks through all maps if there are any, in
    /// short steps.
    pub async fn damage(&self) -> DamageStatus {
        healing::damage(&self.shared).await
    }

    /// Proves counts against maps without stopping anything. Runs on a reactor.
    ///
    /// # Errors
    /// `Invalid` if a check runs already, `Unavailable` if the pool is closed meanwhile. What is wrong
    /// with the pool is in the report.
    pub async fn check_online(&self) -> Result<OnlineCheckReport> {
        online_check::check_online(&self.shared, &self.background).await
    }

    /// Changes the levels that are warned at when the pool fills up, in percent
    /// ([`EngineConfig::fill_warnings`](crate::EngineConfig::fill_warnings)).
    ///
    /// # Errors
    /// `Invalid` if they do not rise or are above 100.
    pub fn set_fill_warnings(&self, levels: &[u8]) -> Result<()> {
        crate::pool::config::check_fill_warnings(levels)?;
        *lock(&self.shared.fill_warnings) = levels.into();
        Ok(())
    }

    /// Deleted volumes whose blocks are being freed.
    pub fn deleting(&self) -> Vec<DeletingStatus> {
        status::deleting_volumes(&self.shared, &self.background)
    }

    /// Asks background maintenance for a scrub that reads at most so many bytes per second.
    ///
    /// # Errors
    /// `Invalid` if one runs already, or for a rate that cannot be.
    pub fn start_scrub(&self, rate_bytes_per_second: u64) -> Result<()> {
        scrub::start(&self.background, rate_bytes_per_second)
    }

    /// Stops a scrub that runs. What it found stays known.
    ///
    /// # Errors
    /// `Invalid` if none runs.
    pub fn stop_scrub(&self) -> Result<()> {
        scrub::stop(&self.background)
    }

    /// The scrub that runs, or the last one.
    pub fn scrub_status(&self) -> ScrubStatus {
        scrub::status(&self.background)
    }

    /// What each volume has alone and with others, counted now.
    ///
    /// # Errors
    /// `Unavailable` if the pool is closed meanwhile.
    pub async fn survey(&self) -> Result<Survey> {
        let survey = survey::survey(&self.shared, &self.background, false).await?;
        match self.shared.is_closed() {
            true => Err(EngineError::closed()),
            false => Ok(Survey::clone(&survey)),
        }
    }

    /// How far the online check is that runs, in percent.
    #[must_use]
    pub fn check_percent(&self) -> Option<u8> {
        self.background.check_progress.percent()
    }

    /// How far the survey is that runs, in percent.
    #[must_use]
    pub fn survey_percent(&self) -> Option<u8> {
        self.background.survey_progress.percent()
    }

    /// The last survey that was made; background maintenance makes one now and then
    /// ([`crate::EngineConfig::survey_interval`]).
    pub fn last_survey(&self) -> Option<Survey> {
        survey::last_survey(&self.background)
    }
}
