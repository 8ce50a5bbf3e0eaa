//! The backup of what a repair changes: one line of text per row, before and after.
//!
//! It is complete and on stable storage before anything is changed.

use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use meta::{BlockRow, Checkpoint, MapInfo, Mapping, VolumeInfo};

use super::{Change, Plan};
use crate::{EngineError, Result};

/// Repairs that may begin within one second.
const NAMES_MAX: u32 = 100;

/// Writes the backup into the folder; returns its path.
pub(super) fn write(dir: &Path, checkpoint: Checkpoint, plan: &Plan) -> Result<PathBuf> {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs());
    let (path, file) = create(dir, now)?;
    write_rows(file, now, checkpoint, plan)
        .and_then(|()| File::open(dir)?.sync_all())
        .map_err(|error| failed(&path, &error))?;
    Ok(path)
}

fn failed(path: &Path, error: &io::Error) -> EngineError {
    EngineError::unavailable(format!(
        "{}: the backup cannot be written: {error}; nothing was changed",
        path.display()
    ))
}

/// A new file named with the date: `repair-20261121-164500.txt`.
fn create(dir: &Path, now: u64) -> Result<(PathBuf, File)> {
    let [year, month, day, hour, minute, second] = date(now);
    let stem = format!("repair-{year:04}{month:02}{day:02}-{hour:02}{minute:02}{second:02}");
    let mut number = 0;
    loop {
        let name = match number {
            0 => format!("{stem}.txt"),
            _ => format!("{stem}-{number}.txt"),
        };
        let path = dir.join(name);
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path);
        match file {
            Ok(file) => return Ok((path, file)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && number < NAMES_MAX => {
                number += 1;
            }
            Err(error) => return Err(failed(&path, &error)),
        }
    }
}

fn write_rows(file: File, now: u64, checkpoint: Checkpoint, plan: &Plan) -> io::Result<()> {
    let mut out = BufWriter::new(file);
    let [year, month, day, hour, minute, second] = date(now);
    writeln!(
        out,
        "# Rows that a repair changed on {year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC: \
         what they were => what they became; 'none' is no row.\n\
         # A block is DRIVE:BLOCK, counted in blocks of 4096 bytes from the end of the drive's label area."
    )?;
    writeln!(
        out,
        "checkpoint {} => {}",
        of_checkpoint(checkpoint),
        of_checkpoint(plan.batch.checkpoint)
    )?;
    for change in &plan.changes {
        match change {
            Change::Volume { id, before, after } => {
                let (before, after) = (of_volume(before.as_deref()), of_volume(after.as_deref()));
                writeln!(out, "volume {id}: {before} => {after}")?;
            }
            Change::Block { pba, before, after } => {
                writeln!(
                    out,
                    "block {pba}: {} => {}",
                    of_block(*before),
                    of_block(*after)
                )?;
            }
            Change::Map { id, before, after } => {
                writeln!(out, "map {id}: {} => {}", of_map(*before), of_map(*after))?;
            }
            Change::Mapping {
                map,
                sub_block,
                before,
                after,
            } => {
                let (before, after) = (of_mapping(*before), of_mapping(*after));
                writeln!(out, "mapping {map} {sub_block}: {before} => {after}")?;
            }
        }
    }
    let file = out.into_inner().map_err(io::IntoInnerError::into_error)?;
    file.sync_all()
}

fn of_checkpoint(checkpoint: Checkpoint) -> String {
    let Checkpoint {
        position, epoch, ..
    } = checkpoint;
    format!(
        "record={} offset={} epoch={epoch}",
        position.seq, position.offset
    )
}

fn of_volume(info: Option<&VolumeInfo>) -> String {
    let Some(info) = info else {
        return "none".to_owned();
    };
    let mut nguid = String::new();
    for byte in info.nguid {
        let _ = write!(nguid, "{byte:02x}");
    }
    format!(
        "name={} nsid={} uuid={} nguid={nguid} size_bytes={} lba_bytes={} state={:?} map={}",
        info.name, info.nsid, info.uuid, info.size_bytes, info.lba_bytes, info.state, info.map
    )
}

fn of_map(info: Option<MapInfo>) -> String {
    match info {
        None => "none".to_owned(),
        Some(MapInfo { parent, depth, .. }) => match parent {
            Some(parent) => format!("parent={parent} depth={depth}"),
            None => "parent=none depth=0".to_owned(),
        },
    }
}

fn of_mapping(mapping: Option<Mapping>) -> String {
    mapping.map_or_else(
        || "none".to_owned(),
        |Mapping { pba, crc32c }| match pba.is_hole() {
            true => "hole".to_owned(),
            false => format!("{pba} crc32c={crc32c:08x}"),
        },
    )
}

fn of_block(row: Option<BlockRow>) -> String {
    row.map_or_else(
        || "none".to_owned(),
        |row| {
            format!(
                "references={} fingerprint={} crc32c={:08x}",
                row.refcount, row.fingerprint, row.crc32c
            )
        },
    )
}

/// Year, month, day, hour, minute and second (UTC) of a time in seconds since 1970, by the proleptic
/// Gregorian calendar: days are counted from 0000-03-01, so that a leap day ends its year.
fn date(seconds: u64) -> [u64; 6] {
    /// Days from 0000-03-01 to 1970-01-01.
    const TO_1970: u64 = 719_468;
    /// Days in 400 years.
    const ERA: u64 = 146_097;
    let day = seconds / 86_400 + TO_1970;
    let of_day = seconds % 86_400;
    let of_era = day % ERA;
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    // Months from March on have 153 days in every five.
    let from_march = (5 * of_year + 2) / 153;
    let day_of_month = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 {
        from_march + 3
    } else {
        from_march - 9
    };
    let year = day / ERA * 400 + year_of_era + u64::from(month <= 2);
    [
        year,
        month,
        day_of_month,
        of_day / 3600,
        of_day / 60 % 60,
        of_day % 60,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_date_in_a_backup_is_that_of_the_calendar() {
        assert_eq!(date(0), [1970, 1, 1, 0, 0, 0]);
        assert_eq!(date(951_782_400), [2000, 2, 29, 0, 0, 0]);
        assert_eq!(date(951_868_800), [2000, 3, 1, 0, 0, 0]);
        assert_eq!(date(1_709_251_199), [2024, 2, 29, 23, 59, 59]);
        assert_eq!(date(4_107_542_400), [2100, 3, 1, 0, 0, 0]);
        assert_eq!(date(1_795_279_545), [2026, 11, 21, 16, 45, 45]);
    }
}
