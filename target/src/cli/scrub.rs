//! `onefold scrub ...` and `onefold pool check --online`: questions to a running daemon about its data.

use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;

use clap::Subcommand;
use dedup::{DamageStatus, HealthState, Reason, ScrubPhase, ScrubStatus, Verdict};

use super::args::PoolArg;
use super::commands::{Checked, advice, converse, verdict};
use super::{Exit, Outcome, print, print_json};
use crate::client::Client;
use crate::errors::EXIT_INCONSISTENT;
use crate::size::{format_human, parse_size};
use crate::trust::{Health, ScrubView, StartScrub};

/// `onefold scrub ...`
#[derive(Debug, Subcommand)]
pub enum ScrubCommand {
    /// Read all data in the background, and compare it with its checksums and fingerprints
    #[command(after_help = "Example:\n  onefold scrub start --rate 200M")]
    Start {
        /// Bytes per second that it reads at most
        #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "100M")]
        rate: u64,
        /// The daemon's pool.
        #[command(flatten)]
        pool: PoolArg,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show how far it is, and what is damaged: exit 0 no damage known, 2 damage
    #[command(after_help = "Example:\n  onefold scrub status --json")]
    Status {
        /// The daemon's pool.
        #[command(flatten)]
        pool: PoolArg,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Stop it; what it found stays known
    #[command(after_help = "Example:\n  onefold scrub stop")]
    Stop {
        /// The daemon's pool.
        #[command(flatten)]
        pool: PoolArg,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

/// `onefold scrub ...`
pub(super) fn scrub(command: ScrubCommand) -> Outcome {
    let (view, json, tells_damage) = match command {
        ScrubCommand::Start { rate, pool, json } => {
            let request = StartScrub {
                rate_bytes_per_second: rate,
            };
            let view = converse(Client::new(&pool.pool).start_scrub(&request))?;
            (view, json, false)
        }
        ScrubCommand::Status { pool, json } => {
            (converse(Client::new(&pool.pool).scrub())?, json, true)
        }
        ScrubCommand::Stop { pool, json } => {
            (converse(Client::new(&pool.pool).stop_scrub())?, json, false)
        }
    };
    if json {
        print_json(&view)?;
    } else {
        print(&view_text(&view));
    }
    Ok(match tells_damage && view.damage.damaged_blocks > 0 {
        true => ExitCode::from(EXIT_INCONSISTENT),
        false => ExitCode::SUCCESS,
    })
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

fn view_text(view: &ScrubView) -> String {
    scrub_line(&view.scrub) + &damage_text(&view.damage)
}

fn scrub_line(scrub: &ScrubStatus) -> String {
    let rate = format_human(scrub.rate_bytes_per_second);
    let percent = scrub.checked_blocks.saturating_mul(100) / scrub.total_blocks.max(1);
    let figures = format!(
        "{} of {} blocks ({}%), {} damaged, {} s",
        scrub.checked_blocks,
        scrub.total_blocks,
        percent.min(100),
        scrub.bad_blocks,
        scrub.seconds
    );
    match scrub.phase {
        ScrubPhase::Never => "No scrub ran since the daemon started.\n".to_owned(),
        ScrubPhase::Running => {
            let eta = scrub
                .eta_seconds
                .map_or_else(String::new, |eta| format!(", about {eta} s left"));
            format!("A scrub runs: {figures}{eta}, at most {rate}/s\n")
        }
        ScrubPhase::Finished => format!("The last scrub finished: {figures}\n"),
        ScrubPhase::Stopped => format!("The last scrub was stopped: {figures}\n"),
    }
}

pub(super) fn damage_text(damage: &DamageStatus) -> String {
    let mut text = String::new();
    if damage.healed_blocks > 0 {
        let _ = writeln!(
            text,
            "{} damaged blocks were healed: their content was written again",
            damage.healed_blocks
        );
    }
    if damage.damaged_blocks > 0 {
        let _ = writeln!(
            text,
            "DAMAGED: {} blocks; reading what refers to them is an error until it is written again:",
            damage.damaged_blocks
        );
    }
    for range in &damage.ranges {
        let last = range.offset + range.bytes - 1;
        let _ = writeln!(
            text,
            "  volume '{}', bytes {} to {last}",
            range.volume, range.offset
        );
    }
    let more = damage.ranges_total - damage.ranges.len() as u64;
    if more > 0 {
        let _ = writeln!(text, "  ... and {more} ranges more");
    }
    text
}

/// The verdict on a pool and its reasons, one a line.
pub(crate) fn verdict_text(verdict: &Verdict) -> String {
    let state = match verdict.state {
        HealthState::Ok => verdict.state.to_string(),
        _ => verdict.state.to_string().to_uppercase(),
    };
    let refused = match verdict.refused_writes {
        0 => String::new(),
        several => format!(" ({several} writes failed since the start)"),
    };
    let mut text = format!("Health: {state}{refused}\n");
    for Reason {
        what,
        since,
        remedy,
    } in &verdict.reasons
    {
        let _ = writeln!(text, "  since {since}: {what}; {remedy}");
    }
    text
}

/// What `onefold status` says about a pool's health in detail, below its table; nothing if all is well.
pub(crate) fn health_text(health: &Health) -> String {
    let mut text = String::new();
    if health.damage != DamageStatus::default() {
        text += &format!("\n{}", damage_text(&health.damage));
    }
    for trouble in &health.drives {
        let whose = match &trouble.volumes {
            None => "its volumes are being counted".to_owned(),
            Some(volumes) if volumes.is_empty() => "no volume has data on it".to_owned(),
            Some(volumes) => {
                let named = volumes
                    .iter()
                    .map(|volume| format!("'{}' ({})", volume.name, format_human(volume.bytes)));
                format!(
                    "volumes with data on it: {}",
                    named.collect::<Vec<_>>().join(", ")
                )
            }
        };
        let _ = writeln!(
            text,
            "\nDRIVE {} FAILS: {} errors, the last one: {}; {whose}",
            trouble.drive, trouble.errors, trouble.last_error
        );
    }
    if health.scrub.phase == ScrubPhase::Running {
        text += &format!("\n{}", scrub_line(&health.scrub));
    }
    let verify = &health.verify;
    if verify.collisions + verify.failed_blocks > 0 {
        let _ = writeln!(
            text,
            "\nOf {} duplicates compared, {} had another content and were stored apart; {} could not be \
             compared (the log names them).",
            verify.compared_blocks, verify.collisions, verify.failed_blocks
        );
    }
    for volume in &health.deleting {
        let _ = writeln!(
            text,
            "\nFreeing the deleted volume '{}': {} of {} left",
            volume.name,
            format_human(volume.remaining_bytes),
            format_human(volume.total_bytes)
        );
    }
    for volume in &health.trimming {
        let _ = writeln!(
            text,
            "\nFreeing what was trimmed of volume '{}': {} of {} left to look through",
            volume.name,
            format_human(volume.remaining_bytes),
            format_human(volume.total_bytes)
        );
    }
    text
}
