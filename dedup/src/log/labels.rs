//! Which opening of a pool is its last one: what the labels of its drives say of it, beside its metadata.
//!
//! Each opening begins an epoch, larger than that of the metadata and of every label. Its order, each step durable before the
//! next: the store has the new epoch; the labels have it; the store knows that they have; the journal takes records.
//!
//! Guarantees:
//! * Metadata that is older than the drives (a restored backup, a copy of the folder from before another machine opened the
//!   pool) is refused, and nothing is changed. A crash between the steps leaves the metadata newer than the labels, never
//!   older, so what is refused is always a copy.
//! * A drive that is older than the metadata (a copy of it that was put back) is refused: the store knows what was written to
//!   each label, and learns of it only when that is durable. A label that could not be written is not expected.
//! * Two openings never begin the same epoch unnoticed: each has an identifier, on the labels and in the store.
//! * No block, and no record, is written before more than half of the drives have the epoch. So any two openings meet on a
//!   drive, also when some are missing later; and one drive that fails does not stop a pool of three. A pool whose drives do
//!   not take it can be read all the same: a drive at the end of its life takes no writes, and has its data.
//! * Drives that are offline do not count, and nothing is expected of their labels. So of a pool with copies an older copy of
//!   the metadata is found by the drives that can be read, and by no other.
//! * Who wants such a copy all the same says so, up to which epoch, and the next opening goes beyond that: then the other copy
//!   is the older one.
//!
//! A clean end writes the labels once more, so a copy of a drive that was made while the pool was open is an older one then.
//! Not found here: such a copy that was put back after the program was killed, or the power was lost. What it should hold and
//! does not is found by checksums. Where the newer copy of a label is damaged, the one before it is believed.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use futures_util::future::join_all;
use meta::{Batch, Checkpoint, ChosenLabel, Label, Opening, PlaceKind, SettingChanges, Store};
use reactor::BufferPool;
use uuid::Uuid;

#[cfg(test)]
use crate::ablation::{self, Broken};
use crate::drive_io::drive_list::DriveList;
use crate::drive_io::drive_state::{Condition, DriveState};
use crate::drive_io::labels::{PoolLabels, read_label, write_opening};
use crate::pool::Shared;
use crate::pool::alerts::rfc3339;
use crate::pool::config::block_on;
use crate::pool::copies::take_offline;
use crate::{Blocking, EngineError, Result};

/// The setting that is stored with each new epoch: the epoch, little endian, and the identifier of the opening.
const OPENING_KEY: &str = "engine.opening";

/// The setting that is stored when the labels have the epoch: the same, and then for each drive epoch (4 bytes) and sequence
/// number (8 bytes) of its label, little endian.
const LABELS_KEY: &str = "engine.labels";

/// Bytes of epoch and identifier, and of what is kept of a label.
const OPENING_BYTES: usize = 20;
const MARK_BYTES: usize = 12;

/// The labels of a pool that is being opened.
pub(crate) struct Labels<'a> {
    drives: &'a DriveList,
    pool: Option<&'a PoolLabels>,
    /// Those of the drives that are online, by the index of the drive.
    found: Vec<(u16, ChosenLabel)>,
}

/// How new a label is: of two labels of a drive the larger one was written later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Mark {
    epoch: u32,
    sequence: u64,
}

/// What the store knows of labels: the opening that wrote them last, and what each said then.
struct Known<'a> {
    opening: &'a [u8],
    marks: Vec<Mark>,
}

/// A part of a pool that is older than another one.
#[derive(Debug)]
pub(crate) enum OlderCopy<'a> {
    /// The metadata has not seen this opening of the drives.
    Metadata(&'a Opening),
    /// The label of this drive says less than what was written to it.
    Drive(usize, &'a Label, Mark),
}

impl<'a> Labels<'a> {
    /// Reads the labels, and proves that each is its drive's. Nothing is read without `pool`: its drives have none. A drive
    /// that cannot be read is offline from here on, in memory, if others have all of its data.
    ///
    /// # Errors
    /// Names the drive whose label cannot be read, or is another's.
    pub(crate) async fn read(
        drives: &'a DriveList,
        pool: Option<&'a PoolLabels>,
        buffers: &BufferPool,
    ) -> Result<Self> {
        let mut found = Vec::new();
        let labels = pool.iter().flat_map(|pool| &pool.drives);
        for (index, (drive, label)) in (0..).zip(drives.iter().zip(labels)) {
            if drives.state(index) == DriveState::Offline {
                continue;
            }
            match read_label(&**drive, buffers).await {
                Ok([first, second]) => {
                    let chosen = label.verify(Path::new(drive.name()), &first, &second)?;
                    found.push((index, chosen));
                }
                Err(error) if drives.has_copies() && drives.is_spare(index) => {
                    let drive = drive.name();
                    tracing::error!(drive, %error, "its label cannot be read: the pool opens without the drive");
                    drives.set_condition(index, Condition::Failed);
                }
                Err(error) => {
                    let text = format!("its label cannot be read: {error}");
                    return Err(EngineError::unavailable(text));
                }
            }
        }
        Ok(Self {
            drives,
            pool,
            found,
        })
    }

    /// Compares them with the metadata: its epoch, and its settings.
    ///
    /// # Errors
    /// The metadata is older than the drives, or a drive than the metadata, and nobody said that it is to be used.
    pub(crate) fn check(&self, epoch: u32, settings: &BTreeMap<String, Vec<u8>>) -> Result<()> {
        let Some(pool) = self.pool else { return Ok(()) };
        #[cfg(test)]
        if ablation::is(Broken::EpochIgnored) {
            return Ok(());
        }
        let labels = || {
            let found = self.found.iter();
            found.map(|(index, found)| (usize::from(*index), found))
        };
        let name = |at: usize| {
            let drive = self.drives.get(at);
            drive.map_or_else(String::new, |drive| drive.name().to_owned())
        };
        refuse(
            &older_copies(labels(), epoch, settings, pool.accepted_epoch),
            epoch,
            name,
        )?;
        for older in older_copies(labels(), epoch, settings, None) {
            tracing::warn!(
                "it is used, because somebody said so: {}",
                older.told(epoch, name)
            );
        }
        let newest = self.newest();
        for (at, found) in labels() {
            let (drive, label) = (name(at), found.label.epoch());
            if found.is_half {
                tracing::warn!(
                    drive,
                    "one of the two copies of its label is damaged: it is written again"
                );
            }
            if found.label.opening.is_none() {
                tracing::info!(drive, "its label gets an epoch");
            } else if label < newest || label.saturating_add(1) < epoch {
                tracing::info!(
                    drive,
                    label,
                    pool = epoch.max(newest),
                    "its label is of an earlier opening: it could not be written since, or openings were interrupted; it is \
                     brought up to date"
                );
            }
        }
        Ok(())
    }

    /// The latest epoch on a label.
    pub(crate) fn newest(&self) -> u32 {
        let epochs = self.found.iter().map(|(_, found)| found.label.epoch());
        epochs.max().unwrap_or(0)
    }

    /// Lets the store remember which opening begins its new epoch.
    pub(crate) fn remember(&self, settings: &mut SettingChanges, checkpoint: Checkpoint) {
        let value = self
            .pool
            .map(|pool| stored(checkpoint.epoch, pool.opening.id));
        settings.insert(OPENING_KEY.to_owned(), value);
    }

    /// Writes the epoch that the store has now to the labels, and lets the store know. Returns why the pool must not be
    /// changed, if half of the drives or more did not take the epoch.
    ///
    /// # Errors
    /// The store could not be written.
    pub(crate) async fn claim(
        &self,
        (store, blocking): (&Arc<dyn Store>, Blocking),
        checkpoint: Checkpoint,
        buffers: &BufferPool,
    ) -> Result<Option<EngineError>> {
        let Some(pool) = self.pool else {
            return Ok(None);
        };
        let place = (store, blocking);
        let marks = match self.write(pool, checkpoint.epoch, place, buffers).await {
            Ok(marks) => marks,
            Err(error) => return Ok(Some(error)),
        };
        let value = known(checkpoint.epoch, pool.opening.id, &marks);
        let mut batch = Batch::checkpoint_only(checkpoint);
        batch.settings.insert(LABELS_KEY.to_owned(), Some(value));
        let store = store.clone();
        block_on(blocking, move || Ok::<_, EngineError>(store.apply(&batch)?)).await?;
        Ok(None)
    }

    /// What each label certainly says now; of drives that are offline nothing is known.
    async fn write(
        &self,
        pool: &PoolLabels,
        epoch: u32,
        place: (&Arc<dyn Store>, Blocking),
        buffers: &BufferPool,
    ) -> Result<Vec<Mark>> {
        let opening = Opening {
            epoch,
            drives: self.drives.len() as u16,
            ..pool.opening.clone()
        };
        let online = self.found.iter();
        let online = online.filter(|(index, _)| self.drives.state(*index) != DriveState::Offline);
        let writes = online.filter_map(|(index, found)| {
            let (drive, opening) = (self.drives.get(usize::from(*index))?, &opening);
            Some(async move {
                let written = write_opening(&**drive, found, opening, buffers).await;
                (*index, drive.name(), found, written)
            })
        });
        let mut marks = vec![Mark::default(); self.drives.len()];
        let (mut failed, mut asked) = (Vec::new(), 0);
        for (index, drive, found, written) in join_all(writes).await {
            let mark = match written {
                Ok(sequence) => Mark { epoch, sequence },
                Err(error) => {
                    if self.drives.has_copies()
                        && take_offline(self.drives, place, index, &error).await
                    {
                        continue;
                    }
                    tracing::warn!(drive, %error, "its label cannot be written: replace the drive soon");
                    failed.push(format!("{drive}: {error}"));
                    Mark::of(&found.label)
                }
            };
            asked += 1;
            if let Some(of_drive) = marks.get_mut(usize::from(index)) {
                *of_drive = mark;
            }
        }
        if failed.len() * 2 >= asked {
            return Err(EngineError::unavailable(format!(
                "the labels of more than half of the drives must take the pool's new epoch before it is changed, and {} of \
                 {} did not ({}): check these drives and start again, nothing was lost",
                failed.len(),
                asked,
                failed.join("; ")
            )));
        }
        Ok(marks)
    }
}

/// Writes the labels at a clean end of the pool, when nothing else is written any more.
///
/// # Errors
/// They are as they were, or some are new: what a copy of a drive lacks that was made since the opening is found by checksums.
pub(crate) async fn close(shared: &Shared) -> Result<()> {
    let Some(pool) = &shared.config.labels else {
        return Ok(());
    };
    let _held = shared.checkpoint_lock.lock().await;
    let store = shared.store.clone();
    let checkpoint = block_on(shared.blocking, move || store.checkpoint()).await?;
    let this = stored(checkpoint.epoch, pool.opening.id);
    let mut found = Vec::new();
    for (index, drive) in (0..).zip(shared.drives.iter()) {
        if shared.drives.state(index) == DriveState::Offline {
            continue;
        }
        let [first, second] = read_label(&**drive, &shared.bounces)
            .await
            .map_err(|error| {
                EngineError::unavailable(format!("its label cannot be read: {error}"))
            })?;
        let chosen = Label::choose(&first, &second).map_err(|error| {
            EngineError::corrupt(format!("{}: its label {error}", drive.name()))
        })?;
        if let Some(other) = chosen.label.opening.as_ref()
            && other.epoch >= checkpoint.epoch
            && stored(other.epoch, other.id) != this
        {
            return Err(EngineError::corrupt(format!(
                "drive {} was opened by somebody else while this pool used it ({}): use it in one place only",
                drive.name(),
                described(other)
            )));
        }
        found.push((index, chosen));
    }
    let labels = Labels {
        drives: &shared.drives,
        pool: Some(pool),
        found,
    };
    let place = (&shared.store, shared.blocking);
    let refused = labels.claim(place, checkpoint, &shared.bounces).await?;
    refused.map_or(Ok(()), Err)
}

impl Mark {
    fn of(label: &Label) -> Self {
        Self {
            epoch: label.epoch(),
            sequence: label.sequence,
        }
    }
}

impl<'a> Known<'a> {
    /// `None` for the store of a program that wrote no epochs, and after a repair that lost it.
    fn of(settings: &'a BTreeMap<String, Vec<u8>>) -> Option<Self> {
        let (opening, marks) = settings.get(LABELS_KEY)?.split_at_checked(OPENING_BYTES)?;
        let (marks, _) = marks.as_chunks::<MARK_BYTES>();
        let mark = |bytes: &[u8; MARK_BYTES]| {
            let (epoch, sequence) = bytes.split_first_chunk::<4>()?;
            Some(Mark {
                epoch: u32::from_le_bytes(*epoch),
                sequence: u64::from_le_bytes(*sequence.first_chunk()?),
            })
        };
        let marks = marks.iter().filter_map(mark).collect();
        Some(Self { opening, marks })
    }
}

fn stored(epoch: u32, id: Uuid) -> Vec<u8> {
    let mut value = epoch.to_le_bytes().to_vec();
    value.extend_from_slice(id.as_bytes());
    value
}

fn known(epoch: u32, id: Uuid, marks: &[Mark]) -> Vec<u8> {
    let mut value = stored(epoch, id);
    for mark in marks {
        value.extend_from_slice(&mark.epoch.to_le_bytes());
        value.extend_from_slice(&mark.sequence.to_le_bytes());
    }
    value
}

/// What is older in a pool whose metadata has this epoch and these settings, and whose drives (their indexes) have these
/// labels: the metadata first. Nothing is that somebody accepted, up to an epoch.
pub(crate) fn older_copies<'a>(
    labels: impl Iterator<Item = (usize, &'a ChosenLabel)> + Clone,
    epoch: u32,
    settings: &BTreeMap<String, Vec<u8>>,
    accepted: Option<u32>,
) -> Vec<OlderCopy<'a>> {
    // What says nothing of this epoch is of a repair, or of a program without labels.
    let begun = settings
        .get(OPENING_KEY)
        .filter(|value| value.starts_with(&epoch.to_le_bytes()));
    let openings = labels
        .clone()
        .filter_map(|(_, found)| found.label.opening.as_ref());
    let is_unseen = |opening: &&Opening| {
        let is_other = begun.is_some_and(|begun| *begun != stored(epoch, opening.id));
        opening.epoch > epoch || (opening.epoch == epoch && is_other)
    };
    let latest = openings
        .filter(is_unseen)
        .max_by_key(|opening| opening.epoch);
    let mut older: Vec<_> = latest.map(OlderCopy::Metadata).into_iter().collect();
    if let Some(Known { opening, marks }) = Known::of(settings) {
        // Of the labels of one epoch all are of one opening.
        let is_other = |label: &Label| {
            let of_label = label.opening.as_ref().map(|of| stored(of.epoch, of.id));
            of_label.is_some_and(|of| of[..4] == opening[..4] && of != opening)
        };
        let is_behind = |found: &ChosenLabel, mark: Mark| match found.is_half {
            // The copy that cannot be read may be the one that was written last.
            true => found.label.sequence.saturating_add(1) < mark.sequence,
            false => Mark::of(&found.label) < mark,
        };
        let behind = labels.filter_map(|(at, found)| {
            let (label, mark) = (&found.label, *marks.get(at)?);
            let is_older = is_behind(found, mark) || (label.epoch() < epoch && is_other(label));
            is_older.then_some(OlderCopy::Drive(at, label, mark))
        });
        older.extend(behind);
    }
    older.retain(|older| accepted.is_none_or(|accepted| older.epoch() > accepted));
    older
}

/// An error if anything is older.
pub(crate) fn refuse(
    older: &[OlderCopy<'_>],
    epoch: u32,
    name: impl Fn(usize) -> String,
) -> Result<()> {
    let Some(first) = older.first() else {
        return Ok(());
    };
    let remedy = match first {
        OlderCopy::Metadata(_) => {
            "use the newer metadata; if that is lost, `onefold pool restore` lets this copy be used, without what was written \
             since"
        }
        OlderCopy::Drive(..) => {
            "put the drive with the newer content in its place; if that is lost, `onefold pool restore` lets this copy be \
             used, and what it lacks reads as errors"
        }
    };
    let others = match older.len() - 1 {
        0 => String::new(),
        more => format!(" ({more} more part(s) of the pool are older copies)"),
    };
    Err(EngineError::corrupt(format!(
        "{}{others}: {remedy}; nothing was changed",
        first.told(epoch, name)
    )))
}

impl OlderCopy<'_> {
    /// Who accepts it accepts what is up to this epoch.
    pub(crate) fn epoch(&self) -> u32 {
        match self {
            Self::Metadata(opening) => opening.epoch,
            Self::Drive(_, label, mark) => mark.epoch.max(label.epoch()),
        }
    }

    /// What is wrong, in words; the metadata is of this epoch.
    pub(crate) fn told(&self, epoch: u32, name: impl Fn(usize) -> String) -> String {
        match self {
            Self::Metadata(later) if later.epoch == epoch => format!(
                "this metadata is an older copy, or another one: the drives were opened in epoch {epoch} without it ({})",
                described(later)
            ),
            Self::Metadata(later) => format!(
                "this metadata is an older copy: it is of epoch {epoch}, and the drives were opened in epoch {} since ({})",
                later.epoch,
                described(later)
            ),
            Self::Drive(at, label, mark) => {
                let said = label
                    .opening
                    .as_ref()
                    .map_or_else(String::new, |opening| format!(" ({})", described(opening)));
                format!(
                    "drive {} is an older copy: its label is of epoch {}, number {}{said}, and the pool wrote epoch {}, \
                     number {}, to it",
                    name(*at),
                    label.epoch(),
                    label.sequence,
                    mark.epoch,
                    mark.sequence
                )
            }
        }
    }
}

/// An opening, as people look for it.
#[must_use]
pub fn described(opening: &Opening) -> String {
    let mut text = format!(
        "{} on {}",
        rfc3339(opening.at()),
        match opening.machine.as_str() {
            "" => "an unknown machine",
            machine => machine,
        }
    );
    let paths = opening.places.iter().find_map(|place| match &place.at {
        PlaceKind::Folder(path) if !path.is_empty() => Some(path),
        _ => None,
    });
    if let Some(path) = paths {
        text += &format!(", folder {path}");
    }
    text
}

#[cfg(test)]
mod tests {
    use drives::{Drive, FaultDrive, FaultPlan};
    use futures_util::FutureExt;
    use meta::{DriveLabel, Label, MemoryStore};

    use super::*;
    use crate::LABEL_BLOCKS;
    use crate::drive_io::labels::write_new_label;
    use crate::drive_io::segments::tests::complete;

    const BLOCKS: u64 = 300;

    fn buffers() -> BufferPool {
        BufferPool::new(1 << 20).expect("memory")
    }

    fn label(index: u16) -> DriveLabel {
        DriveLabel {
            pool: Uuid::from_u128(1),
            drive: Uuid::from_u128(2 + u128::from(index)),
            index,
            blocks: BLOCKS,
            sub_block_bytes: 4096,
        }
    }

    fn pool(drives: u16, id: u128) -> PoolLabels {
        PoolLabels {
            drives: (0..drives).map(label).collect(),
            opening: Opening {
                id: Uuid::from_u128(id),
                ..Opening::default()
            },
            accepted_epoch: None,
        }
    }

    /// New drives of a pool, that fail as these plans say when it is opened.
    fn drives(plans: &[FaultPlan]) -> Vec<Arc<FaultDrive>> {
        let new = |(index, plan): (u16, &FaultPlan)| {
            let drive = FaultDrive::new(BLOCKS, FaultPlan::default());
            let memory = buffers();
            let written = write_new_label(&drive, label(index), Opening::default(), &memory);
            written.now_or_never().expect("at once").expect("written");
            Arc::new(drive.restart(plan.clone()))
        };
        (0..).zip(plans).map(new).collect()
    }

    fn list_of(drives: &[Arc<FaultDrive>]) -> DriveList {
        let drives = drives.iter();
        let drives: Vec<_> = drives
            .map(|drive| drive.clone() as Arc<dyn Drive>)
            .collect();
        let sizes = vec![BLOCKS - LABEL_BLOCKS; drives.len()];
        let segments = complete(&Vec::new(), &sizes, 1, 0).expect("segments");
        DriveList::new(&drives, &segments, &[])
    }

    fn store() -> Arc<dyn Store> {
        Arc::new(MemoryStore::new())
    }

    fn claim(drives: &[Arc<FaultDrive>], pool: &PoolLabels, epoch: u32) -> Result<Vec<Mark>> {
        let (drives, buffers) = (list_of(drives), buffers());
        let claim = async {
            let labels = Labels::read(&drives, Some(pool), &buffers).await?;
            let place = (&store(), Blocking::Inline);
            labels.write(pool, epoch, place, &buffers).await
        };
        claim.now_or_never().expect("nothing waits")
    }

    fn epochs(drives: &[Arc<FaultDrive>]) -> Vec<u32> {
        let (drives, pool) = (list_of(drives), pool(drives.len() as u16, 0));
        let labels = Labels::read(&drives, Some(&pool), &buffers()).now_or_never();
        let labels = labels.expect("nothing waits").expect("whole labels");
        labels.found.iter().map(|(_, f)| f.label.epoch()).collect()
    }

    fn settings_of<const N: usize>(rows: [(&str, Vec<u8>); N]) -> BTreeMap<String, Vec<u8>> {
        let rows = rows.into_iter();
        rows.map(|(key, value)| (key.to_owned(), value)).collect()
    }

    fn found(at: usize, opening: Opening, sequence: u64) -> ChosenLabel {
        ChosenLabel {
            label: Label {
                drive: label(at as u16),
                sequence,
                opening: Some(opening),
            },
            next_copy: 0,
            is_half: false,
        }
    }

    fn opening(epoch: u32, id: u128) -> Opening {
        Opening {
            epoch,
            id: Uuid::from_u128(id),
            ..Opening::default()
        }
    }

    #[test]
    fn an_epoch_that_half_of_the_drives_do_not_take_is_not_begun() {
        // An opening reads two copies, writes one and flushes.
        let fails = |write: bool| FaultPlan {
            fail: vec![if write { 2 } else { 3 }],
            ..FaultPlan::default()
        };
        for write in [true, false] {
            let three = drives(&[FaultPlan::default(), fails(write), FaultPlan::default()]);
            let marks = claim(&three, &pool(3, 1), 7).unwrap();
            let certain = [(7, 3), (0, 2), (7, 3)];
            assert_eq!(
                marks,
                certain.map(|(epoch, sequence)| Mark { epoch, sequence })
            );
            let [first, second, third] = epochs(&three)[..] else {
                panic!("three drives")
            };
            assert_eq!((first, third), (7, 7));
            assert!(!write || second == 0, "it failed to write");
            let two = drives(&[FaultPlan::default(), fails(write)]);
            let error = claim(&two, &pool(2, 1), 7).unwrap_err();
            assert!(error.message.contains("1 of 2 did not"), "{error}");
            let one = drives(&[fails(write)]);
            assert!(claim(&one, &pool(1, 1), 7).is_err());
        }
    }

    #[test]
    fn a_power_cut_between_and_within_the_writes_of_labels_leaves_each_whole() {
        for seed in 0..20 {
            for cut in 2..4 {
                for at in 0..3 {
                    let plan = |drive| FaultPlan {
                        seed,
                        power_cut: (drive == at).then_some(cut),
                        ..FaultPlan::default()
                    };
                    let before = drives(&[plan(0), plan(1), plan(2)]);
                    let (all, pool, memory) = (list_of(&before), pool(3, 1), buffers());
                    let claim = async {
                        let labels = Labels::read(&all, Some(&pool), &memory).await?;
                        let place = (&store(), Blocking::Inline);
                        labels.write(&pool, 7, place, &memory).await
                    };
                    // The drive without power never answers.
                    assert!(claim.now_or_never().is_none());
                    let after = before.iter().map(|drive| drive.crash(FaultPlan::default()));
                    let after: Vec<_> = after.map(Arc::new).collect();
                    let epochs = epochs(&after);
                    assert!(
                        epochs.iter().all(|epoch| [0, 7].contains(epoch)),
                        "{epochs:?}"
                    );
                    // And the next opening brings all of them to its own.
                    super::tests::claim(&after, &pool, 8).unwrap();
                    assert_eq!(super::tests::epochs(&after), [8; 3]);
                }
            }
        }
    }

    #[test]
    fn metadata_that_has_not_seen_the_last_opening_is_an_older_copy() {
        let settings = settings_of([(OPENING_KEY, stored(7, Uuid::from_u128(5)))]);
        let is_older = |epoch, of_label: &Opening, accepted| {
            let found = found(0, of_label.clone(), 1);
            let labels = std::iter::once((0, &found));
            let older = older_copies(labels, epoch, &settings, accepted);
            matches!(older[..], [OlderCopy::Metadata(_)])
        };
        assert!(!is_older(7, &opening(7, 5), None), "the same opening");
        assert!(!is_older(7, &opening(6, 4), None), "an earlier one");
        assert!(is_older(7, &opening(8, 6), None), "a later one");
        assert!(is_older(7, &opening(7, 6), None), "another one beside it");
        assert!(
            !is_older(8, &opening(8, 6), None),
            "of a repair: nobody knows better"
        );
        assert!(!is_older(7, &opening(8, 6), Some(8)), "it is accepted");
        assert!(!is_older(7, &opening(7, 6), Some(7)), "it is accepted");
        assert!(
            is_older(7, &opening(9, 6), Some(8)),
            "there was one more since"
        );
    }

    #[test]
    fn a_drive_whose_label_says_less_than_was_written_to_it_is_an_older_copy() {
        let marks = [(7, 12), (5, 9)].map(|(epoch, sequence)| Mark { epoch, sequence });
        let settings = settings_of([
            (OPENING_KEY, stored(8, Uuid::from_u128(6))),
            (LABELS_KEY, known(7, Uuid::from_u128(5), &marks)),
        ]);
        let is_older = |at: usize, of_label: Opening, sequence, accepted| {
            let found = found(at, of_label, sequence);
            let older = older_copies(std::iter::once((at, &found)), 8, &settings, accepted);
            matches!(older[..], [OlderCopy::Drive(..)])
        };
        assert!(!is_older(0, opening(7, 5), 12, None), "as it was written");
        assert!(
            !is_older(0, opening(8, 6), 13, None),
            "the next opening was interrupted when the label was written"
        );
        assert!(is_older(0, opening(6, 4), 11, None), "from before");
        assert!(is_older(0, opening(7, 5), 11, None), "of the same opening");
        assert!(
            is_older(0, opening(6, 4), 20, None),
            "of an earlier epoch, whatever its number"
        );
        assert!(
            is_older(0, opening(7, 4), 12, None),
            "written by another copy of the metadata"
        );
        assert!(
            !is_older(1, opening(5, 3), 9, None),
            "it could not be written since"
        );
        assert!(is_older(1, opening(4, 2), 8, None), "older than that");
        let mut torn = found(0, opening(6, 4), 11);
        torn.is_half = true;
        let is_torn_older = |torn: &ChosenLabel| {
            let labels = std::iter::once((0, torn));
            !older_copies(labels, 8, &settings, None).is_empty()
        };
        assert!(!is_torn_older(&torn), "the damaged copy was the newer one");
        torn.label.sequence = 10;
        assert!(is_torn_older(&torn), "whatever the damaged copy said");
        assert!(!is_older(2, opening(3, 1), 1, None), "it was added since");
        assert!(!is_older(0, opening(6, 4), 11, Some(7)), "it is accepted");
        assert!(
            is_older(0, opening(6, 4), 11, Some(6)),
            "something else was accepted, earlier"
        );
    }

    #[test]
    fn a_torn_copy_beside_one_that_cannot_be_read_is_a_drive_to_try_again_and_no_lost_label() {
        let memory = buffers();
        let [drive] = &drives(&[FaultPlan::default()])[..] else {
            panic!("one drive")
        };
        let torn = drive.write(
            memory.try_alloc(4096).expect("memory"),
            &[drives::Extent {
                block: 1,
                buffer_offset: 0,
                blocks: 1,
            }],
        );
        torn.now_or_never().expect("at once").0.expect("written");
        let fails = FaultPlan {
            fail: vec![0, 1],
            ..FaultPlan::default()
        };
        let drive = [Arc::new(drive.restart(fails))];
        let error = claim(&drive, &pool(1, 3), 4).unwrap_err();
        assert_eq!(error.kind, crate::ErrorKind::Unavailable, "{error}");
        claim(&drive, &pool(1, 3), 4).unwrap();
    }

    #[test]
    fn a_label_without_an_epoch_gets_one_in_both_copies() {
        let drive = Arc::new(FaultDrive::new(BLOCKS, FaultPlan::default()));
        let old = Label {
            drive: label(0),
            sequence: 0,
            opening: None,
        };
        let memory = buffers();
        for copy in 0..2 {
            let write = crate::drive_io::labels::write_copy(&*drive, &old, copy, &memory);
            write.now_or_never().expect("at once").expect("written");
        }
        claim(std::slice::from_ref(&drive), &pool(1, 3), 4).unwrap();
        let copies = read_label(&*drive, &memory).now_or_never();
        let copies = copies.expect("at once").expect("read");
        for copy in copies {
            let label = Label::decode(&copy).expect("a whole copy");
            let opening = label.opening.expect("of the new version");
            assert_eq!((opening.epoch, opening.drives), (4, 1));
        }
    }
}
