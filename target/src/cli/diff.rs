//! `onefold volume diff` and `onefold volume zero-map`: ranges of volumes, told as they are found.

use std::process::ExitCode;

use api::client::Client;
use api::images::ByteRange;
use clap::Args;
use indicatif::ProgressBar;
use subsystem::errors::Failure;

use super::args::PoolArg;
use super::progress;
use super::run::converse;
use super::{Outcome, print};
use crate::size::format_human;

/// `onefold volume diff`
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  onefold volume diff db@monday db@tuesday\n  onefold volume diff db@monday db --json\n\n\
                  It compares maps, so it reads no data. What is in no range is equal in both. What is in a range may be \
                  equal, too, but rarely is: the same content can be stored twice, as by volumes without deduplication or \
                  of other domains. Behind the end of the smaller one, zeros are compared. Of a volume that hosts write, \
                  each range is that of some moment while this runs; snapshots do not change."
)]
pub struct DiffArgs {
    /// A volume, or a snapshot of one
    #[arg(value_name = "VOLUME[@NAME]")]
    a: String,
    /// Another one
    #[arg(value_name = "VOLUME[@NAME]")]
    b: String,
    /// The daemon's pool.
    #[command(flatten)]
    pool: PoolArg,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// `onefold volume zero-map`
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  onefold volume zero-map vm1@monday --json\n\n\
                  They are what was never written, was trimmed, or was written with zeros, in whole blocks of 4 KiB."
)]
pub struct ZeroMapArgs {
    /// A volume, or a snapshot of one
    #[arg(value_name = "VOLUME[@NAME]")]
    name: String,
    /// The daemon's pool.
    #[command(flatten)]
    pool: PoolArg,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// `onefold volume diff`
pub(super) fn run_diff(args: &DiffArgs) -> Outcome {
    let client = Client::new(&args.pool.pool);
    let told = async {
        let mut told = Told::new(args.json, "changed");
        let mut at = 0;
        loop {
            let found = client.diff(&args.a, &args.b, at).await?;
            for range in found.ranges {
                told.add(range);
            }
            at = found.upto;
            told.bar.set_length(found.size_bytes);
            told.print(at);
            if at >= found.size_bytes {
                told.end();
                return Ok::<_, Failure>(());
            }
        }
    };
    converse(told)?;
    Ok(ExitCode::SUCCESS)
}

/// `onefold volume zero-map`
pub(super) fn run_zero_map(args: &ZeroMapArgs) -> Outcome {
    let client = Client::new(&args.pool.pool);
    let told = async {
        let mut told = Told::new(args.json, "zero");
        let size_bytes = client.volume(&args.name).await?.size_bytes;
        told.bar.set_length(size_bytes);
        // Up to here all is told, or stored.
        let mut done = 0;
        let mut at = 0;
        while at < size_bytes {
            let rest = ByteRange {
                offset: at,
                length: size_bytes - at,
            };
            let found = client.extents(&args.name, rest).await?;
            for stored in found.ranges {
                told.add(between(done, stored.offset));
                done = stored.offset + stored.length;
            }
            at = found.upto;
            told.add(between(done, at));
            done = done.max(at);
            told.print(at);
        }
        told.end();
        Ok::<_, Failure>(())
    };
    converse(told)?;
    Ok(ExitCode::SUCCESS)
}

/// The bytes from one up to another; none if there are none between.
fn between(offset: u64, end: u64) -> ByteRange {
    ByteRange {
        offset,
        length: end.saturating_sub(offset),
    }
}

/// Ranges on their way to standard output: one is kept, in case that the next one begins where it ends.
struct Told {
    json: bool,
    /// What the ranges are.
    what: &'static str,
    last: Option<ByteRange>,
    /// Text to be printed.
    text: String,
    ranges: u64,
    bytes: u64,
    bar: ProgressBar,
}

impl Told {
    fn new(json: bool, what: &'static str) -> Self {
        Self {
            json,
            what,
            last: None,
            text: String::new(),
            ranges: 0,
            bytes: 0,
            bar: progress::bar(Some(0)),
        }
    }

    fn add(&mut self, range: ByteRange) {
        if range.length == 0 {
            return;
        }
        match &mut self.last {
            Some(last) if last.offset + last.length == range.offset => last.length += range.length,
            _ => {
                self.tell();
                self.last = Some(range);
            }
        }
    }

    /// The range that is kept is whole.
    fn tell(&mut self) {
        let Some(ByteRange { offset, length }) = self.last.take() else {
            return;
        };
        let before = match (self.json, self.ranges) {
            (true, 0) => "{\"ranges\": [\n".to_owned(),
            (true, _) => ",\n".to_owned(),
            (false, 0) => format!("{:>16} {:>16}\n", "OFFSET", "LENGTH"),
            (false, _) => String::new(),
        };
        let range = match self.json {
            true => format!("  {{\"offset\": {offset}, \"length\": {length}}}"),
            false => format!("{offset:>16} {length:>16}\n"),
        };
        self.text.push_str(&before);
        self.text.push_str(&range);
        self.ranges += 1;
        self.bytes += length;
    }

    /// Prints what is told so far.
    fn print(&mut self, at: u64) {
        self.bar.set_position(at);
        let text = std::mem::take(&mut self.text);
        self.bar.suspend(|| print(&text));
    }

    fn end(mut self) {
        self.tell();
        self.bar.finish_and_clear();
        let Self {
            what,
            text,
            ranges,
            bytes,
            ..
        } = self;
        let end = match (self.json, ranges) {
            (true, 0) => format!("{{\"ranges\": [], \"{what}_bytes\": 0}}\n"),
            (true, _) => format!("\n], \"{what}_bytes\": {bytes}}}\n"),
            (false, _) => format!(
                "{what}: {} ({bytes} bytes) in {ranges} range{}\n",
                format_human(bytes),
                if ranges == 1 { "" } else { "s" }
            ),
        };
        print(&(text + &end));
    }
}
