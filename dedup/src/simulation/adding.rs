//! Drives that are added to the pool while it is in use.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use drives::{FaultDrive, FaultPlan};
use meta::DriveLabel;
use rand::Rng;
use reactor::BufferPool;

use super::drive::ShakyDrive;
use super::{DRIVES_MAX, Story, Task, labels};
use crate::drive_io::labels::write_new_label;
use crate::{Engine, ErrorKind, LABEL_BLOCKS};

impl Story {
    /// Perhaps adds a drive while `tasks` go on; what is returned has it when the pool remembers it.
    pub(super) fn add_one(
        &mut self,
        engine: &Arc<Engine>,
        tasks: &mut Vec<Task>,
    ) -> Rc<RefCell<Option<Arc<ShakyDrive>>>> {
        let added: Rc<RefCell<Option<Arc<ShakyDrive>>>> = Rc::default();
        if self.drives.len() < DRIVES_MAX && self.rng.random_range(0..4) == 0 {
            let blocks = LABEL_BLOCKS + self.rng.random_range(1..100);
            // Its power is cut with that of the others only: they are what a life is watched by.
            let plan = FaultPlan {
                power_cut: None,
                ..Self::plan(&mut self.rng)
            };
            let drive = ShakyDrive::new(FaultDrive::new(blocks, plan));
            let label = labels::label(self.drives.len() as u16, blocks);
            let added = added.clone();
            let (engine, pool) = (engine.clone(), self.pool.clone());
            tasks.push(Box::pin(add_drive(engine, drive, label, pool, added)));
        }
        added
    }
}

/// Adds a drive to the pool; `added` is what the pool remembers of it.
async fn add_drive(
    engine: Arc<Engine>,
    drive: Arc<ShakyDrive>,
    label: DriveLabel,
    pool: BufferPool,
    added: Rc<RefCell<Option<Arc<ShakyDrive>>>>,
) {
    let labeled = write_new_label(&*drive, label, engine.opening(), &pool).await;
    labeled.expect("a drive that does not fail yet");
    let remembered = drive.clone();
    let write_down = |_| {
        *added.borrow_mut() = Some(remembered);
        Ok(())
    };
    if let Err(error) = engine.add_drive(drive, None, write_down).await {
        assert_eq!(error.kind, ErrorKind::Unavailable, "{error}");
    }
}
