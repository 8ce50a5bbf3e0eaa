//! `onefold pool plan`: which redundancy loses data as rarely as is wanted.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use super::table::{Align, table};
use super::{Outcome, print, print_json};
use crate::plan::{DriveGroup, Plan, Question};
use crate::size::{format_human, parse_size};
use crate::time::{format_duration, parse_every};

/// `onefold pool plan`
#[derive(Clone, Debug, Args)]
pub struct PlanArgs {
    /// How many drives of which size (repeatable)
    #[arg(long, value_name = "COUNTxSIZE", required = true)]
    drives: Vec<DriveGroup>,
    /// How many of a hundred drives fail in a year (annualized failure rate)
    #[arg(long, value_name = "PERCENT", value_parser = parse_percent, default_value = "1")]
    afr: f64,
    /// Losses of data in a year that you accept
    #[arg(long, value_name = "NUMBER[/y]", value_parser = parse_losses, default_value = "1e-6/y")]
    loss: f64,
    /// How much of the drives is in use
    #[arg(long, value_name = "PERCENT", value_parser = parse_percent, default_value = "80")]
    fill: f64,
    /// What is copied to a new drive in a second
    #[arg(long, value_name = "SIZE", value_parser = parse_rate, default_value = "200M")]
    rebuild_rate: u64,
    /// How long it takes until another drive is in the place of one that failed [default: at once, as a spare is]
    #[arg(long, value_name = "DURATION", value_parser = parse_every)]
    replace_after: Option<Duration>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Above 0 and at most 100.
pub(super) fn parse_percent(text: &str) -> Result<f64, String> {
    let percent: Option<f64> = text.trim_end_matches('%').parse().ok();
    let percent = percent.filter(|percent| *percent > 0.0 && *percent <= 100.0);
    percent.ok_or_else(|| "write a number above 0 and up to 100, such as 1.5".to_owned())
}

pub(super) fn parse_losses(text: &str) -> Result<f64, String> {
    let losses: Option<f64> = text.strip_suffix("/y").unwrap_or(text).parse().ok();
    let losses = losses.filter(|losses| *losses > 0.0 && losses.is_finite());
    losses.ok_or_else(|| "write a number above 0, such as 1e-6/y".to_owned())
}

fn parse_rate(text: &str) -> Result<u64, String> {
    match parse_size(text).map_err(|error| error.to_string())? {
        0 => Err("a rebuild at no speed never ends: write a size such as 200M".to_owned()),
        bytes => Ok(bytes),
    }
}

pub(super) fn run(args: PlanArgs) -> Outcome {
    let question = Question {
        drives: args.drives,
        yearly_failures: args.afr / 100.0,
        wanted: args.loss,
        fill: args.fill / 100.0,
        rebuild_bytes: args.rebuild_rate,
        replace_hours: args.replace_after.unwrap_or_default().as_secs_f64() / 3600.0,
    };
    let plan = Plan::new(&question);
    match args.json {
        true => print_json(&plan)?,
        false => print(&text(&plan)),
    }
    Ok(ExitCode::SUCCESS)
}

fn text(plan: &Plan) -> String {
    let rows: Vec<_> = plan
        .choices
        .iter()
        .map(|choice| {
            let is_possible = choice.capacity_bytes > 0;
            vec![
                choice.redundancy.to_string(),
                format_human(choice.capacity_bytes),
                choice.survives_drives.to_string(),
                match is_possible {
                    true => format!("{:.1e}", choice.losses_per_year),
                    false => "-".to_owned(),
                },
                match (is_possible, choice.meets) {
                    (false, _) => "there are too few drives",
                    (true, true) => "yes",
                    (true, false) => "no",
                }
                .to_owned(),
            ]
        })
        .collect();
    let mut text = table(
        &["REDUNDANCY", "ROOM", "DRIVES LOST", "LOSSES/YEAR", "ENOUGH"],
        &rows,
        &[
            Align::Left,
            Align::Right,
            Align::Right,
            Align::Right,
            Align::Left,
        ],
    );
    let rebuild = format_duration((plan.rebuild_hours * 3600.0) as u64);
    text += &format!(
        "\nA drive fails {:.4} times a year, and has all of its data again after {rebuild}. Losses in a year are the first\n\
         failure, and one more for each copy while that is rebuilt:\n",
        plan.failures_per_year
    );
    for choice in plan
        .choices
        .iter()
        .filter(|choice| choice.capacity_bytes > 0)
    {
        text += &format!("  {}: {}\n", choice.redundancy, plan.arithmetic(choice));
    }
    text += &match plan.recommended {
        Some(redundancy) => format!(
            "At most {:.1e} losses a year: --redundancy {redundancy}\n",
            plan.wanted_losses_per_year
        ),
        None => format!(
            "At most {:.1e} losses a year: no redundancy gives that; add drives, or replace and rebuild faster\n",
            plan.wanted_losses_per_year
        ),
    };
    text + "Drives that fail together are not in it: name their failure domains.\n"
}

#[cfg(test)]
mod tests {
    use api::reliability::ANNUAL_FAILURE_PERCENT_DEFAULT;
    use clap::Parser;

    use super::*;
    use crate::plan::REBUILD_BYTES_DEFAULT;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: PlanArgs,
    }

    #[test]
    fn a_plan_takes_for_granted_what_the_status_of_a_pool_does() {
        let Line { args } = Line::parse_from(["plan", "--drives", "2x1T"]);
        assert_eq!(args.rebuild_rate, REBUILD_BYTES_DEFAULT);
        assert_eq!(args.afr, ANNUAL_FAILURE_PERCENT_DEFAULT);
    }
}
