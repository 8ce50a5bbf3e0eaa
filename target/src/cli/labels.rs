//! `onefold pool labels`: what the labels of drives say, whoever they belong to. It reads only, also drives in use.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use dedup::{described, rfc3339};
use meta::{ChosenLabel, LocationKind, MetadataPart};
use serde_json::{Value, json};

use super::{Outcome, print, print_json};
use crate::labels::look;
use crate::size::format_human;

/// Says what the labels of these drives are; exit 1 if one has none.
pub(super) fn labels(drives: &[PathBuf], json: bool) -> Outcome {
    let mut has_all = true;
    let mut rows = Vec::new();
    for path in drives {
        let label = look(path)?;
        has_all &= label.is_ok();
        let said = label.as_ref().map_err(ToString::to_string);
        match json {
            true => rows.push(row(path, said)),
            false => print(&text(path, said)),
        }
    }
    if json {
        print_json(&rows)?;
    }
    Ok(match has_all {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

fn text(path: &Path, label: Result<&ChosenLabel, String>) -> String {
    let shown = path.display();
    let found = match label {
        Ok(found) => found,
        Err(why) => return format!("{shown}: no drive of a pool: its label {why}\n"),
    };
    let drive = found.label.drive;
    let number = u32::from(drive.index) + 1;
    let size = format_human(drive.blocks.saturating_mul(dedup::SUB_BLOCK_BYTES as u64));
    let mut text = String::new();
    let _ = match &found.label.opening {
        Some(opening) => writeln!(
            text,
            "{shown}: drive number {number} of {} of the pool '{}' ({}), {size}",
            opening.drives, opening.pool_name, drive.pool
        ),
        None => writeln!(
            text,
            "{shown}: drive number {number} of the pool {}, {size}",
            drive.pool
        ),
    };
    let _ = writeln!(text, "  drive {}", drive.drive);
    let _ = match &found.label.opening {
        None => writeln!(
            text,
            "  its label is of a program before epochs: it is renewed when the pool is opened"
        ),
        Some(opening) if opening.epoch == 0 => writeln!(text, "  the pool was never opened"),
        Some(opening) => writeln!(
            text,
            "  opened last in epoch {}: {}",
            opening.epoch,
            described(opening)
        ),
    };
    if found.is_half {
        text += "  one of the two copies of the label is damaged\n";
    }
    text
}

fn row(path: &Path, label: Result<&ChosenLabel, String>) -> Value {
    let found = match label {
        Ok(found) => found,
        Err(why) => return json!({"path": path, "label": null, "why": format!("its label {why}")}),
    };
    let drive = found.label.drive;
    let opening = found.label.opening.as_ref().map(|opening| {
        let locations = opening.locations.iter().map(|location| {
            let part = match location.part {
                MetadataPart::Journal => "journal",
                MetadataPart::Checkpoint => "checkpoint",
            };
            match &location.at {
                LocationKind::Folder(path) => json!({"part": part, "kind": "folder", "path": path}),
                LocationKind::Other(kind, _) => json!({"part": part, "kind": kind}),
            }
        });
        json!({
            "epoch": opening.epoch,
            "id": opening.id,
            "at": rfc3339(opening.at()),
            "machine": opening.machine,
            "pool_name": opening.pool_name,
            "drives": opening.drives,
            "metadata": locations.collect::<Vec<_>>(),
        })
    });
    json!({
        "path": path,
        "label": {
            "pool_uuid": drive.pool,
            "drive_uuid": drive.drive,
            "number": u32::from(drive.index) + 1,
            "size_bytes": drive.blocks.saturating_mul(dedup::SUB_BLOCK_BYTES as u64),
            "sequence": found.label.sequence,
            "damaged_copy": found.is_half,
            "opening": opening,
        },
    })
}
