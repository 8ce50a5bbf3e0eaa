//! Where data lie: drives that are emptied and leave the pool, and how many copies there are.
//!
//! Guarantees: what is to be moved is written down before it begins, and goes on after a restart; where there is no room for
//! it nothing is begun.

use std::collections::BTreeSet;

use meta::Pba;

use crate::background::rearranging;
use crate::drive_io::arrangement::{Arrangement, NoRoom};
use crate::drive_io::drive_state::{DriveState, Redundancy, stored_copies, stored_emptying};
use crate::drive_io::labels::erase_label;
use crate::drive_io::segments::SEGMENT_BLOCKS;
use crate::residency::loading::load_all;
use crate::sync::wait::lock;
use crate::{Engine, EngineError, Result};

impl Engine {
    /// Moves all that lies on a drive to the others, in the background, and lays nothing new there; also of a drive that is
    /// offline, if others have all of its data. It goes on after a restart. When it is [empty](Self::empty_drives) the drive can be
    /// [removed](Self::remove_drive).
    ///
    /// # Errors
    /// `Invalid` for a drive that there is not, if the others have no room for its data, or if that cannot be written down.
    pub async fn empty_drive(&self, index: u16) -> Result<()> {
        let shared = &self.shared;
        let _lock = shared.admin_lock.lock().await;
        self.check_drive(index)?;
        load_all(shared).await?;
        let mut places = self.background.places.lock().await;
        shared.drives.check_rows()?;
        self.check_room(shared.drives.copies(), Some(index)).await?;
        self.set_emptying(index, true).await?;
        places.forget();
        tracing::info!(
            drive = shared.drive_name(index),
            "the drive is being emptied"
        );
        Ok(())
    }

    /// Keeps a drive that was being emptied, as far as that came; false if it was not.
    ///
    /// # Errors
    /// It cannot be written down.
    pub async fn keep_drive(&self, index: u16) -> Result<bool> {
        let shared = &self.shared;
        let _lock = shared.admin_lock.lock().await;
        let mut places = self.background.places.lock().await;
        let was = shared.drives.is_emptying(index);
        if was {
            self.set_emptying(index, false).await?;
            places.forget();
        }
        Ok(was)
    }

    async fn set_emptying(&self, index: u16, is_emptying: bool) -> Result<()> {
        let shared = &self.shared;
        let mut emptying = shared.drives.emptying();
        if let Some(of_drive) = emptying.get_mut(usize::from(index)) {
            *of_drive = is_emptying;
        }
        let store = shared.store.clone();
        let written = move || store.put_settings(&stored_emptying(&emptying));
        shared.block_on(written).await?;
        shared.drives.set_emptying(index, is_emptying);
        Ok(())
    }

    /// Whether there is room for all data with so many copies, also without one of the drives.
    async fn check_room(&self, copies: usize, without: Option<u16>) -> Result<()> {
        let shared = &self.shared;
        let store = shared.store.clone();
        let rows = shared.block_on(move || store.segments()).await?;
        let mut drives = rearranging::drives(shared);
        if let Some(of) = without.and_then(|index| drives.get_mut(usize::from(index))) {
            of.is_emptying = true;
        }
        let domains = shared.drives.domains();
        let unused: BTreeSet<Pba> = {
            let state = lock(&shared.state);
            let segments = rows.iter().map(|(segment, _)| *segment);
            let unused = segments.filter(|of| state.space().is_unused(*of, SEGMENT_BLOCKS));
            unused.collect()
        };
        let resting = BTreeSet::new();
        let all = Arrangement::new(rows, drives, domains, &resting, (copies, 0));
        let checked = all.check_room(|segment| unused.contains(&segment));
        checked.map_err(|NoRoom { missing, .. }| {
            let what = match without {
                Some(index) => format!("drive {} cannot be removed", shared.drive_name(index)),
                None => format!("there cannot be {copies} copies of all data"),
            };
            EngineError::invalid(format!(
                "{what}: the drives that stay lack places for copies of 64 MiB each ({missing}), or failure domains for them; \
                 add a drive, or delete data, first"
            ))
        })
    }

    /// Drives that were to be emptied, and are.
    pub fn empty_drives(&self) -> Vec<u16> {
        let drives = &self.shared.drives;
        let emptying = (0u16..).zip(drives.emptying());
        let emptying = emptying.filter(|(_, is_emptying)| *is_emptying);
        let empty = emptying.filter(|(index, _)| drives.segments_on(*index) == 0);
        empty.map(|(index, _)| index).collect()
    }

    /// Makes the pool forget a drive that was emptied. `write_down` makes it remember that, durably. Its index is never used again.
    ///
    /// # Errors
    /// `Invalid` if the drive is not empty, or what `write_down` returns; the drive is one of the pool then.
    pub async fn remove_drive(
        &self,
        index: u16,
        write_down: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let shared = &self.shared;
        let _lock = shared.admin_lock.lock().await;
        let _places = self.background.places.lock().await;
        if !self.empty_drives().contains(&index) {
            return Err(EngineError::invalid(format!(
                "drive {} is not empty: it cannot be removed yet",
                shared.drive_name(index)
            )));
        }
        write_down()?;
        let drive = shared.drives.get(usize::from(index));
        if let Some(drive) = drive.filter(|_| shared.drives.state(index) == DriveState::Online)
            && let Err(error) = erase_label(&**drive, &shared.bounces).await
        {
            tracing::warn!(%error, "the label of the drive that was removed stays: wipe it before it is used again");
        }
        shared.put_removed(index).await?;
        // The condition says more: after a restart it is not to be emptied.
        self.set_emptying(index, false).await
    }

    /// How many copies of all data there are to be. While data are moved some may have fewer:
    /// [`PoolStatus::at_risk_bytes`](crate::PoolStatus::at_risk_bytes) says how many.
    pub fn redundancy(&self) -> Redundancy {
        Redundancy::of(self.shared.drives.copies())
    }

    /// From now on there are to be so many copies of all data. New data that go to older segments have as many as these; copies
    /// are made, or given up, in the background. It goes on after a restart.
    ///
    /// # Errors
    /// `Invalid` if the drives have no room for as many, in different failure domains, or if that cannot be written down.
    pub async fn set_redundancy(&self, redundancy: Redundancy) -> Result<()> {
        let shared = &self.shared;
        let _lock = shared.admin_lock.lock().await;
        lock(&shared.state).check_writable()?;
        load_all(shared).await?;
        let mut places = self.background.places.lock().await;
        let copies = redundancy.copies();
        if copies == shared.drives.copies() {
            return Ok(());
        }
        shared.drives.check_rows()?;
        self.check_room(copies, None).await?;
        let store = shared.store.clone();
        let written = move || store.put_settings(&stored_copies(copies));
        shared.block_on(written).await?;
        shared.drives.set_copies(copies);
        places.forget();
        tracing::info!(%redundancy, "the redundancy of the pool changes");
        Ok(())
    }
}
