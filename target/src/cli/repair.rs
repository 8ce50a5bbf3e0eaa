//! `onefold pool repair`: says what it will do, asks, does it, and says what it did.
//!
//! Exit 0: the pool is consistent now. 2: it is not, because nobody agreed to the repair or because it
//! cannot be repaired. 1: it could not be looked at.

use std::fmt::Write as _;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use dedup::{ErrorKind, Repair, RepairReport};
use serde::Serialize;
use subsystem::errors::Failure;

use super::ask::answer;
use super::{Exit, Outcome, print, print_json, progress};
use crate::exit::EXIT_INCONSISTENT;
use crate::size::format_human;

/// What `--json` prints.
#[derive(Serialize)]
struct Outline<'a> {
    /// What was found, and what is done about it.
    #[serde(flatten)]
    report: &'a RepairReport,
    /// Whether it was done.
    repaired: bool,
    /// Where the changed rows are as they were.
    backup: Option<PathBuf>,
}

/// Repairs the pool in `dir`, with tables of so many bytes.
pub(super) fn pool_repair(dir: &Path, memory_bytes: usize, yes: bool, json: bool) -> Outcome {
    let looked = progress::spinning("looking for what is wrong", || {
        Repair::plan(dir, memory_bytes)
    });
    let repair = looked.map_err(|error| match error.kind {
        ErrorKind::Corrupt => Exit {
            failure: error.into(),
            code: EXIT_INCONSISTENT,
        },
        _ => Exit::could_not_run(error.into()),
    })?;
    let report = repair.report().clone();
    if !json {
        print(&plan_text(&report, dir));
    }
    let agreed = report.consistent || yes || (!json && agree()?);
    let backup = match agreed {
        true => progress::spinning("repairing", || repair.apply())
            .map_err(|error| Exit::could_not_run(error.into()))?,
        false => None,
    };
    if json {
        let outline = Outline {
            report: &report,
            repaired: backup.is_some(),
            backup,
        };
        print_json(&outline)?;
    } else if let Some(backup) = backup {
        print(&format!(
            "repaired; the {} changed rows as they were: {}\n",
            report.changed_rows,
            backup.display()
        ));
    }
    if agreed {
        return Ok(ExitCode::SUCCESS);
    }
    Err(Exit {
        failure: Failure::invalid("nothing was changed: repeat it with --yes to repair the pool"),
        code: EXIT_INCONSISTENT,
    })
}

/// Asks on a terminal; without one nobody agreed.
fn agree() -> Result<bool, Failure> {
    if !std::io::stdin().is_terminal() {
        return Ok(false);
    }
    Ok(answer("Repair the pool? Type 'yes': ")? == "yes")
}

fn plan_text(report: &RepairReport, dir: &Path) -> String {
    let shown = dir.display();
    if report.consistent {
        return format!(
            "{shown}: maps and counts are consistent, nothing to repair\nnot looked at: data: `onefold pool check \
             --data` reads it; what is damaged there is brought back by writing it again\n"
        );
    }
    let mut text = format!("{shown}: INCONSISTENT. A repair\n");
    if !report.rebuilt.is_empty() {
        let _ = writeln!(
            text,
            "  makes a new metadata store of what can be read, and keeps the damaged files in the pool's folder:"
        );
    }
    for note in &report.rebuilt {
        let _ = writeln!(text, "    {note}");
    }
    let mut line = |count: u64, what: &str| {
        if count > 0 {
            let _ = writeln!(text, "  {count} {what}");
        }
    };
    line(
        report.freed_blocks,
        "blocks that nothing refers to: frees them",
    );
    line(
        report.corrected_counts,
        "blocks with a wrong count: sets it to the number of mappings",
    );
    line(
        report.placed_segments,
        "segments of which nothing says where they lie: takes them to be where they were made",
    );
    line(
        report.dropped_mappings,
        "mappings behind the end of their volume: removes them",
    );
    line(
        report.journal_records,
        "records of the journal: moves them into the metadata store",
    );
    for volume in &report.recovered_volumes {
        let _ = writeln!(
            text,
            "  {} mappings of a volume that is not known: makes it volume '{}', NSID {}, {}; hosts will see it",
            volume.mappings,
            volume.name,
            volume.nsid,
            format_human(volume.size_bytes)
        );
    }
    if report.lost_sub_blocks > 0 {
        let _ = writeln!(
            text,
            "  DATA IS LOST: {} sub-blocks in {} ranges; reading them will be an error until they are \
             written again or trimmed",
            report.lost_sub_blocks, report.lost_ranges
        );
        for lost in &report.lost {
            let _ = writeln!(
                text,
                "    volume '{}', bytes {} to {}: {}",
                lost.volume,
                lost.offset,
                lost.offset + lost.bytes - 1,
                lost.reason
            );
        }
        let more = report.lost_ranges - report.lost.len() as u64;
        if more > 0 {
            let _ = writeln!(text, "    ... and {more} ranges more");
        }
    }
    let _ = writeln!(
        text,
        "It changes {} rows at once, and keeps them as they were in a file beside the pool.",
        report.changed_rows
    );
    text
}
