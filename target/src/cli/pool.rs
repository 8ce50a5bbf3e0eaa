//! `onefold pool check` and `onefold pool backup`.

use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;

use api::client::Client;
use api::pool::MakeBackup;
use api::socket::is_served;
use dedup::{CheckOptions, CheckReport, DamageStatus, ErrorKind};
use subsystem::errors::Failure;

use super::run::converse;
use super::scrub::damage_text;
use super::{Exit, Outcome, print, print_json};
use crate::exit::EXIT_INCONSISTENT;

/// `onefold pool check`: 0 consistent, 2 inconsistent, 1 could not run.
pub(super) fn check(dir: &Path, data: bool, json: bool) -> Outcome {
    let report = dedup::check_pool(dir, CheckOptions { data })
        .map_err(|error| Exit::could_not_run(unless_online(error.into(), dir)))?;
    if json {
        print_json(&report).map_err(Exit::could_not_run)?;
    } else {
        print(&check_text(&report, dir));
    }
    Ok(if report.consistent {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(EXIT_INCONSISTENT)
    })
}

/// A pool that a daemon serves can be checked all the same.
fn unless_online(mut failure: Failure, dir: &Path) -> Failure {
    if failure.kind == ErrorKind::Unavailable && is_served(dir) {
        failure.message += ", or check the pool while it is served: --online";
    }
    failure
}

fn check_text(report: &CheckReport, dir: &Path) -> String {
    let mut text = format!(
        "{}: {}\nvolumes {}, mappings {}, blocks {}, journal records {}, data blocks compared {}\n",
        dir.display(),
        verdict(&Checked {
            findings: report.findings_total - report.findings_of_data,
            damage: &report.damage,
            not_looked_at: &report.not_looked_at,
        }),
        report.volumes,
        report.mappings,
        report.blocks,
        report.journal_records,
        report.data_blocks_checked,
    );
    if report.unproven > 0 {
        text += &format!(
            "{} sub-blocks whose unflushed data was lost return to their old content when the pool is opened\n",
            report.unproven
        );
    }
    if report.duplicate_fingerprints > 0 {
        text += &format!(
            "{} blocks hold content that another block holds too (wasted, not wrong)\n",
            report.duplicate_fingerprints
        );
    }
    for finding in &report.findings {
        text += &format!("{}: {}\n", finding.object, finding.detail);
    }
    let more = report
        .findings_total
        .saturating_sub(report.findings.len() as u64);
    if more > 0 {
        text += &format!("... and {more} more\n");
    }
    text + &advice(&report.damage, &report.not_looked_at)
}

/// What a check's verdict is made of.
struct Checked<'a> {
    /// Findings about maps, counts and files.
    findings: u64,
    /// Damaged data.
    damage: &'a DamageStatus,
    /// What was not looked at.
    not_looked_at: &'a [String],
}

/// One verdict, offline as online.
fn verdict(checked: &Checked<'_>) -> &'static str {
    if checked.findings > 0 {
        "INCONSISTENT"
    } else if checked.damage.damaged_blocks > 0 {
        "DAMAGED DATA (maps and counts are consistent)"
    } else if checked.not_looked_at.is_empty() {
        "consistent"
    } else {
        "consistent, as far as it was looked at"
    }
}

/// What is damaged, what helps, and what was not looked at.
fn advice(damage: &DamageStatus, not_looked_at: &[String]) -> String {
    let mut text = damage_text(damage);
    if damage.damaged_blocks > 0 {
        text += "What helps: write these ranges again from a backup, or trim them. A repair cannot bring data back.\n";
    }
    for what in not_looked_at {
        text += &format!("not looked at: {what}\n");
    }
    text
}

/// `onefold pool check --online`: 0 consistent, 2 inconsistent, 1 could not run.
pub(super) fn check_online(dir: &Path, json: bool) -> Outcome {
    let report = converse(Client::new(dir).check()).map_err(Exit::could_not_run)?;
    if json {
        print_json(&report).map_err(Exit::could_not_run)?;
    } else {
        let verdict = verdict(&Checked {
            findings: report.findings_total,
            damage: &report.damage,
            not_looked_at: &report.not_looked_at,
        });
        let mut text = format!(
            "{}: {verdict} (counts and maps of the running daemon)\nmappings {}, blocks {}\n",
            dir.display(),
            report.mappings,
            report.blocks
        );
        for finding in &report.findings {
            let _ = writeln!(text, "{}: {}", finding.object, finding.detail);
        }
        let more = report.findings_total - report.findings.len() as u64;
        if more > 0 {
            let _ = writeln!(text, "... and {more} more");
        }
        text += &advice(&report.damage, &report.not_looked_at);
        print(&text);
    }
    Ok(match report.consistent {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(EXIT_INCONSISTENT),
    })
}

/// `onefold pool backup`: by the daemon if one serves the pool.
pub(super) fn backup(pool: &Path, target: &Path) -> Outcome {
    let dir = std::path::absolute(target)
        .map_err(|error| Failure::invalid(format!("'{}' is no path: {error}", target.display())))?;
    let made = match is_served(pool) {
        true => converse(Client::new(pool).backup(&MakeBackup { dir }))?.dir,
        false => dedup::backup_pool(pool, &dir).map_err(Failure::from)?,
    };
    print(&format!(
        "the metadata of {} as it is now: {}\nkeep it secret, it holds the pool's keys; data stay on the drives\n",
        pool.display(),
        made.display()
    ));
    Ok(ExitCode::SUCCESS)
}
