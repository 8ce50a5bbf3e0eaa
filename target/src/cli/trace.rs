//! `onefold trace`: the commands of a host as they are answered, and where their time goes.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::process::ExitCode;

use api::client::Client;
use api::trace::{TracedCommand, TracedCommands};
use clap::Args;
use nvme::Nqn;

use super::args::PoolArg;
use super::ask::tell;
use super::run::converse;
use super::table::{Align, table};
use super::{Outcome, print};

/// The stages, in the order in which a write comes by, as [`TracedCommand::stages_ns`] names them.
const STAGES: [&str; 8] = [
    "receive", "data", "wait", "hash", "index", "drive", "journal", "send",
];

/// Lines after which the headings come again.
const LINES_PER_HEADING: usize = 40;

/// Operations that the summary tells apart; a host can send any opcode.
const OPERATIONS_MAX: usize = 64;

/// `onefold trace`
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  onefold trace nqn.2014-08.org.nvmexpress:uuid:…\n  \
                  onefold trace nqn.2014-08.org.nvmexpress:uuid:… --count 1000 --json\n\n\
                  Times are microseconds: from the command's arrival until somebody works on it (receive), its\n\
                  buffer and data (data), other commands on the same blocks or of its batch (wait), fingerprints\n\
                  and checksums (hash), maps and index (index), drives (drive), journal (journal), and the answer\n\
                  (send). Ctrl-C ends it with a summary. Hosts wait for nobody who watches: if too many commands\n\
                  come, some are left out. `onefold status` lists the hosts."
)]
pub struct TraceArgs {
    /// The host's NQN; it may attach later
    #[arg(value_name = "HOST")]
    pub host: Nqn,
    /// End after this many commands
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// Show only commands that took longer, in microseconds
    #[arg(long, value_name = "MICROSECONDS", default_value_t = 0)]
    pub longer_than: u64,
    /// The daemon's pool.
    #[command(flatten)]
    pub pool: PoolArg,
    /// Print a line of JSON for each command, and no summary
    #[arg(long)]
    pub json: bool,
}

/// `onefold trace`
pub(super) fn run(args: &TraceArgs) -> Outcome {
    let client = Client::new(&args.pool.pool);
    let mut shown = Shown::new(args);
    converse(async {
        let tracing = client.trace(&args.host, |some| shown.take(some));
        tokio::select! {
            ended = tracing => ended,
            _ = tokio::signal::ctrl_c() => Ok(()),
        }
    })?;
    if !args.json {
        print(&shown.summary());
    }
    if shown.left_out > 0 {
        tell([format!(
            "{} commands were left out: more came than could be shown.",
            shown.left_out
        )]);
    }
    Ok(ExitCode::SUCCESS)
}

/// What is shown so far.
struct Shown<'a> {
    args: &'a TraceArgs,
    commands: u64,
    left_out: u64,
    lines: usize,
    sums: BTreeMap<String, Sum>,
}

/// The commands of one operation.
#[derive(Default)]
struct Sum {
    count: u64,
    total_ns: u128,
    longest_ns: u64,
    stages_ns: [u128; STAGES.len()],
}

impl<'a> Shown<'a> {
    fn new(args: &'a TraceArgs) -> Self {
        Self {
            args,
            commands: 0,
            left_out: 0,
            lines: 0,
            sums: BTreeMap::new(),
        }
    }

    /// Shows some; whether more are wanted.
    fn take(&mut self, some: TracedCommands) -> bool {
        self.left_out += some.left_out;
        let mut text = String::new();
        let longer = |command: &&TracedCommand| command.total_ns / 1000 >= self.args.longer_than;
        let left = self
            .args
            .count
            .map_or(u64::MAX, |count| count - self.commands);
        let left = usize::try_from(left).unwrap_or(usize::MAX);
        let wanted: Vec<_> = some.commands.iter().filter(longer).take(left).collect();
        for command in wanted {
            self.commands += 1;
            if self.args.json {
                text += &(serde_json::to_string(command).unwrap_or_default() + "\n");
                continue;
            }
            if self.lines.is_multiple_of(LINES_PER_HEADING) {
                text += &heading();
            }
            self.lines += 1;
            text += &line(command);
            self.count(command);
        }
        let mut stdout = io::stdout().lock();
        let written = stdout
            .write_all(text.as_bytes())
            .and_then(|()| stdout.flush());
        // A reader that went away wants no more.
        written.is_ok() && self.args.count.is_none_or(|count| self.commands < count)
    }

    fn count(&mut self, command: &TracedCommand) {
        let is_known = self.sums.contains_key(&command.operation);
        let name = match is_known || self.sums.len() < OPERATIONS_MAX {
            true => command.operation.as_str(),
            false => "others",
        };
        let sum = self.sums.entry(name.to_owned()).or_default();
        sum.count += 1;
        sum.total_ns += u128::from(command.total_ns);
        sum.longest_ns = sum.longest_ns.max(command.total_ns);
        for (stage, spent) in STAGES.iter().zip(&mut sum.stages_ns) {
            *spent += u128::from(command.stages_ns.get(*stage).copied().unwrap_or(0));
        }
    }

    /// The mean of each operation, by stages.
    fn summary(&self) -> String {
        if self.sums.is_empty() {
            return "no commands\n".to_owned();
        }
        let rows = self.sums.iter().map(|(operation, sum)| {
            let mean = |spent: u128| micros(spent as f64 / sum.count.max(1) as f64);
            let own = [
                operation.clone(),
                sum.count.to_string(),
                micros(sum.longest_ns as f64),
                mean(sum.total_ns),
            ];
            own.into_iter().chain(sum.stages_ns.map(mean)).collect()
        });
        let rows: Vec<Vec<String>> = rows.collect();
        let headings = [&["MEAN OF", "COMMANDS", "LONGEST", "TOTAL"][..], &STAGES].concat();
        let mut align = vec![Align::Right; headings.len()];
        align[0] = Align::Left;
        format!("\n{}", table(&headings, &rows, &align))
    }
}

fn micros(nanoseconds: f64) -> String {
    format!("{:.1}", nanoseconds / 1000.0)
}

fn heading() -> String {
    let stages: String = STAGES.iter().map(|stage| format!(" {stage:>8}")).collect();
    format!(
        "{:<20} {:>3} {:<12} {:>4} {:>12} {:>6} {:>9}{stages}\n",
        "ANSWERED", "Q", "COMMAND", "NSID", "LBA", "BLOCKS", "TOTAL"
    )
}

/// A command on one line.
fn line(command: &TracedCommand) -> String {
    let of = |stage: &&str| command.stages_ns.get(*stage).copied();
    let stages = STAGES.iter().map(of).map(|spent| match spent {
        Some(spent) => format!(" {:>8}", micros(spent as f64)),
        None => format!(" {:>8}", "-"),
    });
    let stages: String = stages.collect();
    let TracedCommand {
        at,
        qid,
        operation,
        nsid,
        lba,
        blocks,
        ..
    } = command;
    let total = micros(command.total_ns as f64);
    let text = format!(
        "{at:<20} {qid:>3} {operation:<12} {nsid:>4} {lba:>12} {blocks:>6} {total:>9}{stages}"
    );
    match command.failed {
        true => format!("{text}  {}\n", command.status),
        false => text + "\n",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(operation: &str, drive_ns: u64) -> TracedCommand {
        TracedCommand {
            at: "2026-11-22T15:04:15Z".into(),
            operation: operation.into(),
            total_ns: drive_ns + 1000,
            stages_ns: BTreeMap::from([("drive".into(), drive_ns), ("send".into(), 1000)]),
            ..TracedCommand::default()
        }
    }

    fn args(count: Option<u64>, longer_than: u64) -> TraceArgs {
        TraceArgs {
            host: "nqn.2026-11.test:h".parse().expect("a name"),
            count,
            longer_than,
            pool: PoolArg { pool: "x".into() },
            json: false,
        }
    }

    #[test]
    fn a_line_has_its_times_under_their_headings() {
        let line = line(&command("read", 40_500));
        let heading = heading();
        let under = |word: &str| {
            let end = heading.find(word).expect("a heading") + word.len();
            line[..end].rsplit(' ').next().expect("a word").to_owned()
        };
        assert_eq!(under("drive"), "40.5");
        assert_eq!(under("TOTAL"), "41.5");
        assert_eq!(under("journal"), "-");
    }

    #[test]
    fn the_summary_has_the_mean_of_each_operation_and_its_longest_command() {
        let args = args(Some(3), 5);
        let mut shown = Shown::new(&args);
        let commands = vec![
            command("read", 10_000),
            command("read", 30_000),
            command("read", 1000),
            command("write", 5000),
            command("write", 5000),
        ];
        let more = shown.take(TracedCommands {
            commands,
            left_out: 2,
        });
        assert!(!more, "three are shown, the quick one is not");
        let summary = shown.summary();
        let row = |name: &str| -> Vec<String> {
            let line = summary.lines().find(|line| line.starts_with(name));
            let words = line.expect("a row").split_whitespace();
            words.map(str::to_owned).collect()
        };
        assert_eq!(row("read")[..4], ["read", "2", "31.0", "21.0"]);
        assert_eq!(row("write")[..4], ["write", "1", "6.0", "6.0"]);
        assert_eq!(shown.left_out, 2);
    }
}
