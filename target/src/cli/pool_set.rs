//! `onefold pool set`: how many copies a pool in use keeps, and how rarely it is to lose data.

use std::process::ExitCode;
use std::time::Duration;

use api::client::Client;
use api::pool::{PoolView, SetPool};
use api::reliability::SetReliability;
use clap::{ArgGroup, Args};
use dedup::Redundancy;

use super::args::PoolArg;
use super::plan::{parse_losses, parse_percent};
use super::reliability::reliability_text;
use super::run::converse;
use super::{Outcome, print, print_json};
use crate::size::format_human;
use crate::time::parse_every;

/// `onefold pool set`
#[derive(Clone, Debug, Args)]
#[command(group(
    ArgGroup::new("changes")
        .args(["redundancy", "loss", "afr", "replace_after"])
        .required(true)
        .multiple(true)
))]
pub struct PoolSetArgs {
    /// Copies of all data: none, mirror=2 or mirror=3, each copy on a drive of its own
    #[arg(long)]
    redundancy: Option<Redundancy>,
    /// Losses of data in a year that you accept; `onefold status` says whether there are no more
    #[arg(long, value_name = "NUMBER[/y]|off", value_parser = parse_loss)]
    loss: Option<LossArg>,
    /// How many of a hundred drives fail in a year (annualized failure rate) [default: 1]
    #[arg(long, value_name = "PERCENT", value_parser = parse_percent)]
    afr: Option<f64>,
    /// How long it takes until another drive is in the place of one that failed, where no spare waits [default: 1d]
    #[arg(long, value_name = "DURATION", value_parser = parse_every)]
    replace_after: Option<Duration>,
    /// The daemon's pool.
    #[command(flatten)]
    pool: PoolArg,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Losses of data in a year, or none that are wanted.
#[derive(Clone, Copy, Debug, PartialEq)]
struct LossArg(Option<f64>);

fn parse_loss(text: &str) -> Result<LossArg, String> {
    match text {
        "off" => Ok(LossArg(None)),
        _ => match parse_losses(text) {
            Ok(losses) => Ok(LossArg(Some(losses))),
            Err(error) => Err(format!("{error}, or off")),
        },
    }
}

impl PoolSetArgs {
    fn request(&self) -> SetPool {
        let changes = SetReliability {
            losses_per_year: self.loss.map(|LossArg(losses)| losses),
            annual_failure_percent: self.afr,
            replace_seconds: self.replace_after.map(|after| after.as_secs()),
        };
        SetPool {
            redundancy: self.redundancy,
            reliability: Some(changes).filter(|changes| *changes != SetReliability::default()),
        }
    }
}

pub(super) fn run(args: &PoolSetArgs) -> Outcome {
    let set = converse(Client::new(&args.pool.pool).set_pool(&args.request()))?;
    match args.json {
        true => print_json(&set)?,
        false => print(&text(&set)),
    }
    Ok(ExitCode::SUCCESS)
}

fn text(set: &PoolView) -> String {
    let mut text = format!("redundancy {}", set.redundancy);
    if set.at_risk_bytes > 0 {
        let lacking = format_human(set.at_risk_bytes);
        text += &format!(", {lacking} lack copies yet: `onefold status` tells");
    }
    text.push('\n');
    text + &reliability_text(&set.reliability, set.redundancy)
}
