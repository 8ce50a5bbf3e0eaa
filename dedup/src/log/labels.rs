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

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use futures_util::future::join_all;
use meta::{Batch, Checkpoint, ChosenLabel, Label, LocationKind, Opening, SettingChanges, Store};
use reactor::BufferPool;
use uuid::Uuid;

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
    /// that cannot be read is offline from here on, in memory, if others have all of its data, or it has none.
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
                Err(error) if drives.is_spare(index) => {
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
        let into = (store, blocking);
        let marks = match self.write(pool, checkpoint.epoch, into, buffers).await {
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
        store: (&Arc<dyn Store>, Blocking),
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
                        && take_offline(self.drives, store, index, &error).await
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
    let store = (&shared.store, shared.blocking);
    let refused = labels.claim(store, checkpoint, &shared.bounces).await?;
    refused.map_or(Ok(()), Err)
}

/// From here on nothing is expected of the label of the drive with that index: another drive takes its place, whose label knows
/// less. Durable when this returns.
///
/// # Errors
/// The store cannot be read or written.
pub(crate) async fn expect_nothing_of(shared: &Shared, index: u16) -> Result<()> {
    let store = shared.store.clone();
    let changed = move || {
        let settings = store.settings()?;
        let Some(Known { opening, mut marks }) = Known::of(&settings) else {
            return Ok(());
        };
        let Some(mark) = marks.get_mut(usize::from(index)) else {
            return Ok(());
        };
        *mark = Mark::default();
        let value = [opening, &encoded(&marks)].concat();
        let changes = SettingChanges::from([(LABELS_KEY.to_owned(), Some(value))]);
        Ok(store.put_settings(&changes)?)
    };
    block_on(shared.blocking, changed).await
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

/// Whether metadata with these settings are those that began that opening: nobody opened the pool in between who wrote a label.
#[must_use]
pub fn is_of_opening(settings: &BTreeMap<String, Vec<u8>>, opening: &Opening) -> bool {
    let began = settings.get(OPENING_KEY);
    began.is_some_and(|began| began.starts_with(&stored(opening.epoch, opening.id)))
}

fn stored(epoch: u32, id: Uuid) -> Vec<u8> {
    let mut value = epoch.to_le_bytes().to_vec();
    value.extend_from_slice(id.as_bytes());
    value
}

fn known(epoch: u32, id: Uuid, marks: &[Mark]) -> Vec<u8> {
    [stored(epoch, id), encoded(marks)].concat()
}

fn encoded(marks: &[Mark]) -> Vec<u8> {
    let mut value = Vec::with_capacity(marks.len() * MARK_BYTES);
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
            "use the newer metadata: the folder that is named, or, if the drives hold it, one that `onefold pool import` makes of them \
             (a node of several makes it by itself, with --join); only if both are lost, `onefold pool restore` lets this copy be used, \
             without what was written since"
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
    let paths = opening
        .locations
        .iter()
        .find_map(|location| match &location.at {
            LocationKind::Folder(path) if !path.is_empty() => Some(path),
            _ => None,
        });
    if let Some(path) = paths {
        text += &format!(", folder {path}");
    }
    text
}
