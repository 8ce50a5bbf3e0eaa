//! Labels of simulated drives, copies of metadata that are older than they are, and drives that are older than the metadata.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use drives::{Drive, FaultDrive, FaultPlan};
use meta::{ChosenLabel, DriveLabel, LABEL_BYTES, Label, MemoryMedia, MemoryStore, Opening, Store};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use reactor::BufferPool;
use uuid::Uuid;

use super::drive::ShakyDrive;
use super::{Story, executor};
use crate::drive_io::labels::{PoolLabels, read_label, write_new_label};
use crate::log::labels::older_copies;
use crate::{Engine, EngineParts, ErrorKind, Result};

/// A copy of a drive, as somebody made it who puts it back later.
pub(super) struct DriveCopy {
    at: usize,
    drive: Arc<ShakyDrive>,
    label: ChosenLabel,
    /// The pool was opened since.
    is_outlived: bool,
}

/// Journal and store.
pub(super) type Metadata = (Arc<MemoryMedia>, Arc<MemoryStore>);

pub(super) fn label(index: u16, blocks: u64) -> DriveLabel {
    DriveLabel {
        pool: Uuid::from_u128(1),
        drive: Uuid::from_u128(2 + u128::from(index)),
        index,
        blocks,
        sub_block_bytes: 4096,
    }
}

/// A drive with a label that no opening has written yet: of the first version, in every third story.
pub(super) fn labeled(
    seed: u64,
    (index, blocks): (u16, u64),
    plan: FaultPlan,
    pool: &BufferPool,
) -> Arc<ShakyDrive> {
    let drive = Rc::new(FaultDrive::new(blocks, FaultPlan::default()));
    let (writing, pool) = (drive.clone(), pool.clone());
    let write = async move {
        let label = label(index, blocks);
        if !seed.is_multiple_of(3) {
            let opening = Opening::default();
            let written = write_new_label(&*writing, label, opening, &pool).await;
            return written.expect("a drive that does not fail");
        }
        let mut buffer = pool.alloc(2 * LABEL_BYTES).await;
        let label = Label {
            drive: label,
            sequence: 0,
            opening: None,
        };
        for copy in buffer.chunks_exact_mut(LABEL_BYTES) {
            copy.copy_from_slice(&label.encode());
        }
        let both = drives::Extent {
            block: 0,
            buffer_offset: 0,
            blocks: 2,
        };
        let (written, _) = writing.write(buffer, &[both]).await;
        written.expect("a drive that does not fail");
        writing.flush().await.expect("a drive that does not fail");
    };
    // Not the story's own numbers, which so stay what they were.
    let mut rng = ChaCha8Rng::seed_from_u64(!seed);
    executor::run(&mut rng, vec![Box::pin(write)], |_| false);
    ShakyDrive::new(drive.restart(plan))
}

impl Story {
    /// What the labels are to say at the next opening.
    pub(super) fn labels(&self) -> PoolLabels {
        self.openings.set(self.openings.get() + 1);
        let drives = (0u16..).zip(&self.drives);
        PoolLabels {
            drives: drives
                .map(|(index, drive)| self.losses.label(index, drive.blocks()))
                .collect(),
            opening: Opening {
                id: Uuid::from_u128(self.openings.get()),
                ..Opening::default()
            },
            accepted_epoch: self.accepted_epoch,
        }
    }

    /// The drives as another process finds them; the process that used them is dead.
    pub(super) fn drives_beside(&mut self) -> Vec<Arc<dyn Drive>> {
        let mut beside = Vec::new();
        for at in 0..self.drives.len() {
            let plan = Self::plan(&mut self.rng);
            let drive = self.drives[at].clone();
            beside.push(drive.restart(FaultPlan::default()) as Arc<dyn Drive>);
            self.drives[at] = drive.restart(plan);
        }
        beside
    }

    /// Perhaps somebody makes a copy of a drive, in use or not.
    pub(super) fn copy_drive(&mut self) {
        // Not the story's own numbers.
        let number = self.openings.get() as usize;
        if !self.decays || self.drive_copy.is_some() || number.is_multiple_of(3) {
            return;
        }
        let at = number % self.drives.len();
        let drive = self.drives[at].copy();
        let label = self.label_of(&drive);
        self.drive_copy = Some(DriveCopy {
            at,
            drive,
            label,
            is_outlived: false,
        });
    }

    /// The process is dead: perhaps somebody puts the copy of a drive back, and perhaps it is all there is.
    pub(super) fn use_drive_copy(&mut self, is_accepted: bool) {
        let Some(copy) = self.drive_copy.take() else {
            return;
        };
        let epoch = self.store.checkpoint().expect("a store in memory").epoch;
        let settings = self.store.settings().expect("a store in memory");
        let labels = std::iter::once((copy.at, &copy.label));
        let is_older = !older_copies(labels, epoch, &settings, None).is_empty();
        // Of three drives one need not take the new epoch.
        assert!(
            is_older || !copy.is_outlived || self.drives.len() > 2,
            "the store does not know that a label was written since"
        );
        if !is_older {
            self.drive_copy = Some(copy);
            return;
        }
        let mut drives = self.drives_beside();
        drives[copy.at] = copy.drive.restart(FaultPlan::default());
        self.expect_older_copy(EngineParts {
            drives,
            ..self.parts()
        });
        let mut world = self.world.borrow_mut();
        world.tally.outdated_drives += 1;
        world.tally.closed_without += u64::from(!copy.is_outlived);
        if !is_accepted || world.tally.outdated_drives.is_multiple_of(2) {
            return;
        }
        world.tally.restored_drives += 1;
        world.has_damage = true;
        world.is_restored = true;
        let decayed = copy.drive.decayed().into_iter();
        let at = copy.at as u16;
        world.decayed.extend(decayed.map(|block| (at, block)));
        self.drives[copy.at] = copy.drive.restart(Self::plan(&mut self.rng));
        self.accepted_epoch = Some(epoch);
        self.lost_power = Some(true);
    }

    /// The pool was opened with its drives: what was copied before is older now.
    pub(super) fn outlive_copy(&mut self) {
        if let Some(copy) = &mut self.drive_copy {
            copy.is_outlived = true;
        }
    }

    pub(super) fn label_of(&self, drive: &Arc<ShakyDrive>) -> ChosenLabel {
        let slot: Rc<RefCell<Option<ChosenLabel>>> = Rc::default();
        let (found, drive, pool) = (slot.clone(), drive.copy(), self.pool.clone());
        let read = async move {
            let copies = read_label(&*drive, &pool).await;
            let [first, second] = copies.expect("a drive that does not fail");
            let chosen = Label::choose(&first, &second).expect("a label is always whole");
            *found.borrow_mut() = Some(chosen);
        };
        // Not the story's own numbers.
        let mut rng = ChaCha8Rng::seed_from_u64(0);
        executor::run(&mut rng, vec![Box::pin(read)], |_| false);
        slot.take().expect("it ended")
    }

    /// The latest epoch on a label.
    pub(super) fn newest_epoch(&self) -> u32 {
        let drives = self.drives.iter();
        let epochs = drives.map(|drive| self.label_of(drive).label.epoch());
        epochs.max().unwrap_or(0)
    }

    /// Metadata that the drives' labels have left behind does not open.
    pub(super) fn expect_outdated(&mut self, (media, store): Metadata) {
        let parts = EngineParts {
            drives: self.drives_beside(),
            journal: media,
            store,
            ..self.parts()
        };
        self.expect_older_copy(parts);
        self.world.borrow_mut().tally.outdated += 1;
    }

    pub(super) fn expect_older_copy(&mut self, parts: EngineParts) {
        let slot: Rc<RefCell<Option<Result<Arc<Engine>>>>> = Rc::default();
        let result = slot.clone();
        let open = async move { *result.borrow_mut() = Some(Engine::open(parts).await) };
        self.run_to_the_end(Box::pin(open));
        let Err(error) = slot.take().expect("it ended") else {
            panic!("a pool with an older copy was opened");
        };
        assert_eq!(error.kind, ErrorKind::Corrupt, "{error}");
        assert!(error.message.contains("older copy"), "{error}");
    }
}
