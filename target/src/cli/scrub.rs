//! `onefold scrub ...`: the scrub of a running daemon, and the damage that is known.

use std::fmt::Write as _;
use std::process::ExitCode;

use api::client::Client;
use api::scrub::{ScrubSchedule, ScrubView, StartScrub};
use clap::Subcommand;
use dedup::{DamageStatus, ScrubPhase, ScrubStatus};

use super::args::PoolArg;
use super::run::converse;
use super::{Outcome, print, print_json};
use crate::exit::EXIT_INCONSISTENT;
use crate::size::{format_human, parse_size};

/// Earlier scrubs that are shown; `--json` has all.
const RUNS_SHOWN: usize = 5;

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
    /// Show its progress, and what is damaged: exit 0 no damage known, 2 damage
    #[command(after_help = "Example:\n  onefold scrub status --json")]
    Status {
        /// The daemon's pool.
        #[command(flatten)]
        pool: PoolArg,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Let scrubs begin by themselves, every so many days
    #[command(
        after_help = "Examples:\n  onefold scrub schedule --every-days 30 --rate 100M\n  onefold scrub schedule --off\n\n\
                      Days count from the beginning of the last scrub; if there was none, one begins now."
    )]
    Schedule {
        /// Days from one to the next, 1 to 366
        #[arg(long, value_name = "N", required_unless_present = "off")]
        every_days: Option<u16>,
        /// Bytes per second that they read at most
        #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "100M")]
        rate: u64,
        /// No scrub begins by itself any more
        #[arg(long, conflicts_with_all = ["every_days", "rate"])]
        off: bool,
        /// The daemon's pool.
        #[command(flatten)]
        pool: PoolArg,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Stop it; the damage that it found stays listed
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
pub(super) fn run(command: ScrubCommand) -> Outcome {
    let (view, json, tells_damage) = match command {
        ScrubCommand::Start { rate, pool, json } => {
            let request = StartScrub {
                rate_bytes_per_second: rate,
            };
            let view = converse(Client::new(&pool.pool).start_scrub(&request))?;
            (view, json, false)
        }
        ScrubCommand::Schedule {
            every_days,
            rate,
            off: _,
            pool,
            json,
        } => {
            let client = Client::new(&pool.pool);
            let view = match every_days {
                Some(every_days) => converse(client.schedule_scrubs(&ScrubSchedule {
                    every_days,
                    rate_bytes_per_second: rate,
                }))?,
                None => converse(client.unschedule_scrubs())?,
            };
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

fn view_text(view: &ScrubView) -> String {
    let mut text = match view.scrub.phase {
        // What the pool remembers is below.
        ScrubPhase::Never if !view.history.is_empty() => String::new(),
        ScrubPhase::Never => "No scrub has run yet.\n".to_owned(),
        _ => scrub_line(&view.scrub),
    };
    text += &damage_text(&view.damage);
    for run in view.history.iter().rev().take(RUNS_SHOWN) {
        let how = match run.phase {
            ScrubPhase::Finished => "finished",
            ScrubPhase::Never | ScrubPhase::Running | ScrubPhase::Stopped => "was stopped",
        };
        let _ = writeln!(
            text,
            "Scrub of {}: {how} at {}, {} blocks, {} damaged",
            run.began, run.ended, run.checked_blocks, run.bad_blocks
        );
    }
    if let Some(schedule) = &view.schedule {
        let rate = format_human(schedule.rate_bytes_per_second);
        let _ = writeln!(
            text,
            "One begins every {} days, at most {rate}/s",
            schedule.every_days
        );
    }
    text
}

pub(super) fn scrub_line(scrub: &ScrubStatus) -> String {
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
        ScrubPhase::Never => "No scrub has run since the daemon started; `onefold scrub status` shows earlier ones.\n".to_owned(),
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
