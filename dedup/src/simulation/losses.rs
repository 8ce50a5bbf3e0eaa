//! Drives of a pool with copies that are lost with a crash, or missing at openings: any one of them.
//!
//! The pool is opened without the drive if the others have all that was acknowledged, as the rows and settings of its store
//! say, and is refused by the drive's name otherwise, unchanged. A drive that was missing comes back as it was, at an opening or
//! while the pool is in use: nothing on it is believed before it is rebuilt. Or an empty one takes its place, or it stays missing.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use drives::{AbsentDrive, Drive, FaultDrive, FaultPlan};
use meta::{DriveLabel, MemoryStore, Pba, SegmentCopy, Store};
use rand::Rng;
use uuid::Uuid;

use super::copies::copy_of;
use super::drive::ShakyDrive;
use super::world::Actor;
use super::{Story, Task, labels, mirrors};
use crate::background::rebuild::rebuild_if_wanted;
use crate::drive_io::drive_state::{DriveState, conditions_of};
use crate::drive_io::labels::write_new_label;
use crate::sync::wait::yield_once;
use crate::{Engine, EngineParts, ErrorKind, Result};

/// Which drive is missing, and which ones are others than those that the pool was made with.
#[derive(Default)]
pub(super) struct Losses {
    missing: Option<usize>,
    identities: BTreeMap<usize, Uuid>,
}

/// What becomes of the drive that is missing while the pool is in use.
pub(super) enum Comeback {
    /// Nothing.
    None,
    /// It is opened again.
    Reopened,
    /// Another drive takes its place, when the pool remembers that.
    Replaced(Arc<ShakyDrive>, DriveLabel, Rc<Cell<bool>>),
}

impl Losses {
    pub(super) fn is_missing(&self, at: usize) -> bool {
        self.missing == Some(at)
    }

    /// What the pool knows of the drive with that index.
    pub(super) fn label(&self, index: u16, blocks: u64) -> DriveLabel {
        let label = labels::label(index, blocks);
        let drive = self.identities.get(&usize::from(index)).copied();
        DriveLabel {
            drive: drive.unwrap_or(label.drive),
            ..label
        }
    }
}

fn name(at: usize) -> String {
    format!("the drive with index {at}")
}

fn absent(at: usize, blocks: u64) -> Arc<dyn Drive> {
    let reason = "it is not there".to_owned();
    Arc::new(AbsentDrive::new(name(at), blocks, reason))
}

impl Story {
    /// The drives as a program finds them.
    pub(super) fn drives_there(&self) -> Vec<Arc<dyn Drive>> {
        let drives = self.drives.iter().enumerate();
        let there = drives.map(|(at, drive)| match self.losses.is_missing(at) {
            true => absent(at, drive.blocks()),
            false => drive.clone() as Arc<dyn Drive>,
        });
        there.collect()
    }

    /// The process is dead: perhaps a drive is lost, and perhaps one that was missing is back.
    pub(super) fn lose_drive(&mut self) {
        if !mirrors::is_mirrored(self.seed) {
            return;
        }
        if self.losses.missing.is_some() && self.rng.random_range(0..5) == 0 {
            self.losses.missing = None;
            self.world.borrow_mut().tally.returned += 1;
        }
        let rows = self.store.segments().expect("rows of a store in memory");
        // The first opening of a pool needs all of its drives.
        if rows.is_empty() || self.rng.random_range(0..5) > 1 {
            return;
        }
        let at = self.rng.random_range(0..self.drives.len());
        if self.losses.is_missing(at) {
            return;
        }
        // The drives may have a change that the folder lacks, which the opening makes: then it depends on that.
        let imported = self.imported();
        let of_folder = self.can_be_missed(at, &self.store);
        if imported.is_some_and(|store| self.can_be_missed(at, &store) != of_folder) {
            return;
        }
        if !of_folder {
            self.expect_refused(at);
        } else if self.losses.missing.is_none() {
            let plan = FaultPlan {
                power_cut: None,
                ..Self::plan(&mut self.rng)
            };
            // It may keep its power: a network is between it and the pool.
            self.drives[at] = match self.rng.random() {
                true => self.drives[at].crash(plan),
                false => self.drives[at].restart(plan),
            };
            self.drives[at].settle();
            self.lose_area(at);
            self.losses.missing = Some(at);
            self.world.borrow_mut().tally.lost += 1;
        }
    }

    /// Whether all segments with a copy on a drive have one on another drive that is there, and has all that was acknowledged.
    fn can_be_missed(&self, at: usize, store: &MemoryStore) -> bool {
        let settings = store.settings().expect("a store in memory");
        let conditions = conditions_of(&settings, self.drives.len());
        let rows = store.segments().expect("a store in memory");
        let is_there = |copy: &SegmentCopy| {
            let drive = usize::from(copy.drive);
            let condition = conditions.get(drive);
            let is_online = condition.is_some_and(|of| of.state() == DriveState::Online);
            drive != at && is_online && !self.losses.is_missing(drive)
        };
        // Rows of a drive that the pool does not remember are nobody's.
        let is_known = |pba: &Pba| usize::from(pba.drive()) < self.drives.len();
        let mut rows = rows.iter().filter(|(pba, _)| is_known(pba));
        // What is offline already is not missed.
        conditions[at].state() == DriveState::Offline
            || rows.all(|(_, row)| {
                let mut copies = row.copies().iter();
                let is_here = copies.any(|copy| usize::from(copy.drive) == at);
                !is_here || row.copies().iter().any(is_there)
            })
    }

    /// Rows and conditions, for messages.
    pub(super) fn what_lies_where(&self) -> String {
        let settings = self.store.settings().expect("a store in memory");
        let conditions = conditions_of(&settings, self.drives.len());
        let rows = self.store.segments().expect("a store in memory");
        let missing = self.losses.missing;
        format!("missing: {missing:?}, drives: {conditions:?}, segments: {rows:?}")
    }

    /// The pool does not open without this drive, and nothing is changed then.
    fn expect_refused(&mut self, at: usize) {
        let drives = self.drives.iter().enumerate();
        let drives =
            drives.map(
                |(other, drive)| match self.losses.is_missing(other) || other == at {
                    true => absent(other, drive.blocks()),
                    false => drive.copy() as Arc<dyn Drive>,
                },
            );
        let store = Arc::new(self.store.copy());
        let parts = EngineParts {
            drives: drives.collect(),
            journal: Arc::new(copy_of(&self.media)),
            store: store.clone(),
            ..self.parts()
        };
        let slot: Rc<RefCell<Option<Result<Arc<Engine>>>>> = Rc::default();
        let result = slot.clone();
        let open = async move { *result.borrow_mut() = Some(Engine::open(parts).await) };
        self.run_to_the_end(Box::pin(open));
        let Err(error) = slot.take().expect("it ended") else {
            panic!("a pool was opened without the only drive with some data, {at}");
        };
        assert_eq!(error.kind, ErrorKind::Unavailable, "{error}");
        let is_named = error.message.contains(&name(at));
        let names_other = self
            .losses
            .missing
            .is_some_and(|other| error.message.contains(&name(other)));
        assert!(is_named || names_other, "{error}");
        assert!(
            store.has_rows_of(&self.store),
            "an opening that was refused changed the store"
        );
        self.world.borrow_mut().tally.lost_refused += 1;
    }

    /// Perhaps the drive that is missing comes back while the pool is in use, or another one takes its place.
    pub(super) fn comeback(&mut self, actor: Actor) -> (Comeback, Option<Task>) {
        let Some(at) = self.losses.missing else {
            return (Comeback::None, None);
        };
        let yields = self.rng.random_range(0..200);
        match self.rng.random_range(0..3) {
            0 => {
                let drive = self.drives[at].clone();
                let task = reopen(actor, at as u16, drive, yields);
                (Comeback::Reopened, Some(Box::pin(task)))
            }
            1 => {
                let blocks = self.drives[at].blocks();
                let plan = FaultPlan {
                    power_cut: None,
                    ..Self::plan(&mut self.rng)
                };
                let drive = ShakyDrive::new(FaultDrive::new(blocks, plan));
                let label = DriveLabel {
                    drive: Uuid::from_u128(self.rng.random()),
                    ..labels::label(at as u16, blocks)
                };
                let is_noted = Rc::new(Cell::new(false));
                let replaced = (drive.clone(), label, is_noted.clone());
                let task = replace(actor, at as u16, replaced, yields);
                let comeback = Comeback::Replaced(drive, label, is_noted);
                (comeback, Some(Box::pin(task)))
            }
            _ => (Comeback::None, None),
        }
    }

    /// The pool is not in use any more: what it remembers of that.
    pub(super) fn came_back(&mut self, comeback: Comeback) {
        let Some(at) = self.losses.missing else {
            return;
        };
        match comeback {
            Comeback::Reopened => {
                self.losses.missing = None;
                self.world.borrow_mut().tally.returned += 1;
            }
            Comeback::Replaced(drive, label, is_noted) if is_noted.get() => {
                self.losses.missing = None;
                self.losses.identities.insert(at, label.drive);
                self.drives[at] = drive;
                self.replace_area(at);
                self.world.borrow_mut().tally.replaced += 1;
            }
            Comeback::Replaced(..) | Comeback::None => {}
        }
    }
}

/// A drive that was missing is opened again after some yields, and rebuilt.
async fn reopen(actor: Actor, at: u16, drive: Arc<ShakyDrive>, yields: u32) {
    for _ in 0..yields {
        yield_once().await;
    }
    // Refused where the pool takes no changes any more.
    if actor.engine.reopen_drive(at, drive).await.is_ok() {
        rebuild(&actor.engine).await;
    }
}

/// An empty drive takes the place of one after some yields, and is rebuilt.
async fn replace(
    actor: Actor,
    at: u16,
    (drive, label, is_noted): (Arc<ShakyDrive>, DriveLabel, Rc<Cell<bool>>),
    yields: u32,
) {
    for _ in 0..yields {
        yield_once().await;
    }
    let engine = &actor.engine;
    let labeled = write_new_label(&*drive, label, engine.opening(), &actor.pool).await;
    labeled.expect("a drive that does not fail");
    let write_down = || {
        is_noted.set(true);
        Ok(())
    };
    // Refused as above.
    if engine
        .replace_drive(at, drive.clone(), None, write_down)
        .await
        .is_ok()
    {
        rebuild(engine).await;
    }
}

async fn rebuild(engine: &Engine) {
    rebuild_if_wanted(&engine.shared, &engine.background).await;
}
