//! `onefold events`: what happened to a pool, its hosts and its drives, and who administered what.

use std::io::{self, Write};
use std::process::ExitCode;

use api::client::Client;
use api::event_log::Event;
use clap::Args;

use super::args::PoolArg;
use super::run::converse;
use super::{Outcome, print, print_json};

/// `onefold events`
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  onefold events\n  onefold events --follow\n  onefold events --since 1041 --json\n\n\
                  The pool keeps the latest 4096 events or fewer. Kinds are attach, detach, refused, admin and\n\
                  alert; other events have the level of the log: error, warning or notice. Where events\n\
                  are gone that were asked for, an event of the kind skipped says how many."
)]
pub struct EventsArgs {
    /// Show events after the one with this number, the oldest first [default: the latest ones]
    #[arg(long, value_name = "ID")]
    pub since: Option<u64>,
    /// Show this many at most
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub limit: u16,
    /// Keep running and print each new event, until Ctrl-C
    #[arg(long)]
    pub follow: bool,
    /// The daemon's pool.
    #[command(flatten)]
    pub pool: PoolArg,
    /// Print JSON; with --follow one line for each event
    #[arg(long)]
    pub json: bool,
}

/// `onefold events`
pub(super) fn run(args: &EventsArgs) -> Outcome {
    let client = Client::new(&args.pool.pool);
    let page = converse(client.events(args.since, args.limit.into()))?;
    if !args.follow {
        match args.json {
            true => print_json(&page)?,
            false => print(&page.events.iter().map(line).collect::<String>()),
        }
        return Ok(ExitCode::SUCCESS);
    }
    let mut stdout = io::stdout().lock();
    let mut show = |event: &Event| {
        let text = match args.json {
            true => serde_json::to_string(event).unwrap_or_default() + "\n",
            false => line(event),
        };
        // A reader that went away wants no more.
        stdout
            .write_all(text.as_bytes())
            .and_then(|()| stdout.flush())
            .is_ok()
    };
    let shown = page.events.iter().all(&mut show);
    let last = page.events.last().map(|event| event.id);
    let since = last.or(args.since).unwrap_or(page.latest);
    if shown {
        converse(client.follow_events(since, |event| show(&event)))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// An event on one line.
fn line(event: &Event) -> String {
    let fields = event
        .fields
        .iter()
        .map(|(name, value)| format!(" {name}={value}"));
    let fields: String = fields.collect();
    let text = format!("{}  {:<7}  {}{fields}", event.at, event.kind, event.message);
    // What a host named must not reach the terminal as more lines or as its commands.
    let plain = text
        .chars()
        .map(|char| if char.is_control() { ' ' } else { char });
    plain.chain(['\n']).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn an_event_is_one_line_whatever_a_host_calls_itself() {
        let event = Event {
            id: 7,
            at: "2026-11-22T15:04:15.123Z".into(),
            kind: "attach".into(),
            message: "host connected".into(),
            fields: BTreeMap::from([("host".into(), "nqn.x\n\u{1b}[2J".into())]),
        };
        assert_eq!(
            line(&event),
            "2026-11-22T15:04:15.123Z  attach   host connected host=nqn.x  [2J\n"
        );
    }
}
