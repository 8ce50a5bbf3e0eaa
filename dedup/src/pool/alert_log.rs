//! What the log is told by range, and not once for each block or command that met it.
//!
//! Guarantees: what is found is gathered, and told once by [`AlertLog::tell`] with as few lines as there are drives
//! and volumes; a range of a volume that was told is not told again before [`AlertLog::forget`]; memory is bounded by
//! [`RANGES_MAX`] ranges for each of [`VOLUMES_MAX`] volumes and of the drives.

use std::collections::BTreeMap;

use meta::Pba;

use crate::SUB_BLOCK_BYTES;
use crate::ranges::{Range, total, with, within};

/// Ranges that are remembered of a drive or volume; what is beyond is told with the next gap.
const RANGES_MAX: usize = 1024;
/// Volumes whose ranges are remembered.
const VOLUMES_MAX: usize = 1024;
/// Ranges that one line names.
const NAMED_MAX: usize = 8;

/// What was met in a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Met {
    /// Reads ended with an error, because blocks are damaged.
    Unreadable,
    /// Acknowledged duplicates could not be compared.
    Uncompared,
}

#[derive(Default)]
struct Volume {
    /// Sub-blocks that were told.
    told: Vec<Range>,
    /// Those that are not told yet.
    new: Vec<Range>,
    /// Commands that met them since the last line.
    commands: u64,
    /// What the first of them was told.
    error: String,
}

/// What was found and not told yet.
#[derive(Default)]
pub(crate) struct AlertLog {
    /// Damaged data blocks, by the drive's index.
    blocks: BTreeMap<u16, Vec<Range>>,
    /// Those that were written again from another copy of their content.
    healed: BTreeMap<u16, Vec<Range>>,
    volumes: BTreeMap<(Met, String), Volume>,
}

impl AlertLog {
    /// A damaged block was found.
    pub(crate) fn block(&mut self, pba: Pba) {
        note(&mut self.blocks, pba.drive(), pba.block());
    }

    /// A damaged data block of the drive with that index was written again from another copy of its content.
    pub(crate) fn healed(&mut self, drive: u16, block: u64) {
        note(&mut self.healed, drive, block);
    }

    /// A command met sub-blocks of a volume.
    pub(crate) fn volume(
        &mut self,
        met: Met,
        name: &str,
        ranges: impl Iterator<Item = Range>,
        error: &str,
    ) {
        let key = (met, name.to_owned());
        if self.volumes.len() >= VOLUMES_MAX && !self.volumes.contains_key(&key) {
            return;
        }
        let volume = self.volumes.entry(key).or_default();
        volume.commands += 1;
        for range in ranges {
            let is_known = within(&volume.told, range).any(|told| told == range);
            if is_known || volume.told.len() + volume.new.len() >= RANGES_MAX {
                continue;
            }
            if volume.new.is_empty() {
                error.clone_into(&mut volume.error);
            }
            volume.new = with(&volume.new, range);
        }
    }

    /// Tells the log what is new. `drive` gives the name of the drive with an index.
    pub(crate) fn tell(&mut self, drive: impl Fn(u16) -> String) {
        for (index, ranges) in std::mem::take(&mut self.blocks) {
            tracing::error!(
                drive = drive(index),
                blocks = total(&ranges),
                "damaged data blocks were found: {}; reading what they hold is an error until it is written again, \
                 and `onefold scrub status` names the volumes",
                named(&ranges, 1)
            );
        }
        for (index, ranges) in std::mem::take(&mut self.healed) {
            tracing::info!(
                drive = drive(index),
                blocks = total(&ranges),
                "damaged data blocks were written again from another copy of their content: {}",
                named(&ranges, 1)
            );
        }
        for ((met, name), volume) in &mut self.volumes {
            let new = std::mem::take(&mut volume.new);
            if new.is_empty() {
                continue;
            }
            for range in &new {
                volume.told = with(&volume.told, *range);
            }
            let commands = std::mem::take(&mut volume.commands);
            let bytes = named(&new, SUB_BLOCK_BYTES as u64);
            let first = std::mem::take(&mut volume.error);
            match met {
                Met::Unreadable => tracing::error!(
                    volume = name,
                    commands,
                    first,
                    "damaged data were not returned: bytes {bytes} cannot be read; write them again from a copy, \
                     and check the drive"
                ),
                Met::Uncompared => tracing::error!(
                    volume = name,
                    commands,
                    first,
                    "acknowledged duplicates could not be compared: bytes {bytes}; compare them with their copy"
                ),
            }
        }
    }

    /// Nothing is damaged any more: what is found next is told again.
    pub(crate) fn forget(&mut self) {
        self.volumes.retain(|_, volume| {
            volume.told.clear();
            !volume.new.is_empty()
        });
    }
}

fn note(drives: &mut BTreeMap<u16, Vec<Range>>, drive: u16, block: u64) {
    let ranges = drives.entry(drive).or_default();
    if ranges.len() < RANGES_MAX {
        *ranges = with(ranges, (block, block + 1));
    }
}

/// Ranges for people, in units of so many: `0 to 4095, 8192 to 12287 and 3 more ranges`.
fn named(ranges: &[Range], unit: u64) -> String {
    let name = |(first, end): &Range| match end - first {
        1 if unit == 1 => first.to_string(),
        _ => format!("{} to {}", first * unit, end * unit - 1),
    };
    let names: Vec<String> = ranges.iter().take(NAMED_MAX).map(name).collect();
    match ranges.len().saturating_sub(NAMED_MAX) {
        0 => names.join(", "),
        more => format!("{} and {more} more ranges", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use meta::Pba;

    use super::*;

    #[test]
    fn neighbours_are_named_as_one_range_and_many_ranges_are_counted() {
        assert_eq!(named(&[(3, 4), (7, 9)], 1), "3, 7 to 8");
        assert_eq!(named(&[(0, 1), (2, 3)], 4096), "0 to 4095, 8192 to 12287");
        let many: Vec<Range> = (0..11).map(|at| (2 * at, 2 * at + 1)).collect();
        let text = named(&many, 1);
        assert!(
            text.starts_with("0, 2, 4") && text.ends_with("14 and 3 more ranges"),
            "{text}"
        );
    }

    #[test]
    fn damage_is_logged_by_range_and_once() {
        let log = crate::pool::alerts::tests::Log::default();
        let _watch = log.watch();
        let mut alert_log = AlertLog::default();
        for block in 100..1100 {
            alert_log.block(Pba::new(0, block));
        }
        for round in 0..3 {
            for at in 0..1000 {
                alert_log.volume(
                    Met::Unreadable,
                    "a",
                    [(at, at + 1)].into_iter(),
                    "the first one",
                );
            }
            alert_log.tell(|_| "/dev/x".into());
            let lines = log.lines();
            assert_eq!(lines.len(), 2, "round {round}: {lines:?}");
        }
        let lines = log.lines();
        assert!(
            lines[0].contains("100 to 1099") && lines[0].contains("/dev/x"),
            "{lines:?}"
        );
        assert!(
            lines[1].contains("bytes 0 to 4095999") && lines[1].contains("commands=1000"),
            "{lines:?}"
        );
        // What is damaged again after it was mended is told again.
        alert_log.forget();
        alert_log.volume(Met::Unreadable, "a", [(7, 8)].into_iter(), "again");
        alert_log.tell(|_| String::new());
        assert_eq!(log.lines().len(), 3);
    }

    #[test]
    fn what_is_gathered_is_bounded() {
        let mut alert_log = AlertLog::default();
        for at in 0..5000u64 {
            alert_log.block(Pba::new(0, 2 * at));
            alert_log.volume(Met::Unreadable, "a", [(2 * at, 2 * at + 1)].into_iter(), "");
            alert_log.volume(Met::Uncompared, &at.to_string(), [(0, 1)].into_iter(), "");
        }
        assert_eq!(alert_log.blocks[&0].len(), RANGES_MAX);
        assert!(alert_log.volumes.len() <= VOLUMES_MAX);
        assert!(
            alert_log
                .volumes
                .values()
                .all(|volume| volume.new.len() <= RANGES_MAX)
        );
    }
}
