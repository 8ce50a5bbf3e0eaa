//! `onefold estimate`: what a pool would save on existing data.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use api::client::Client;
use api::images::Bytes;
use bench::estimate::{Estimate, EstimateError, Grain, Options, Progress};
use clap::Args;
use dedup::{Block, ErrorKind, MAX_COMMAND_BYTES, SUB_BLOCK_BYTES};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use subsystem::errors::Failure;

use super::run::converse;
use super::table::{Align, table};
use super::{Exit, Outcome, print, print_json};
use crate::exit::EXIT_FAILED;
use crate::size::{format_human, parse_size};

/// `onefold estimate`
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  onefold estimate /var/lib/libvirt/images\n  onefold estimate /dev/vg0/db --json\n  \
                  onefold estimate vm.img --against /var/lib/onefold/a --against /var/lib/onefold/b\n\n\
                  Only reads. Folders are searched on their own file system; symbolic links and special files in\n\
                  them are left out, and files with several names are read once. Exit 1 if something could not be read."
)]
pub struct EstimateArgs {
    /// Files, folders and block devices
    #[arg(value_name = "PATH", required = true)]
    pub paths: Vec<PathBuf>,
    /// Memory for fingerprints; beyond it the result is estimated from a sample, and its error is printed
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "512M")]
    pub memory: u64,
    /// The folder of a pool whose daemon runs: say how much of the data it has already (several: once for each)
    #[arg(long, value_name = "POOL")]
    pub against: Vec<PathBuf>,
    /// The domain of the volume that the data would go to, in those pools
    #[arg(
        long,
        value_name = "NAME",
        default_value = "",
        requires = "against",
        hide_default_value = true
    )]
    pub domain: String,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Blocks that pools are asked for: for these what was found of them errs by less than one percent of the data in 95 of 100 cases.
const SAMPLE_BLOCKS: usize = 16 << 10;

/// Blocks of one request.
const ASKED_BLOCKS: usize = MAX_COMMAND_BYTES / SUB_BLOCK_BYTES;

/// What a pool has of the data.
#[derive(Debug, Serialize)]
struct Against {
    /// Its folder.
    pool: PathBuf,
    /// The part of the data (not of zeros) that it has.
    known: f64,
    /// Its error, plus or minus: what 95 of 100 estimates keep.
    error: f64,
}

/// Least memory: enough for an error below two percent.
const MEMORY_MIN: u64 = 1 << 20;

/// How often the bar is drawn.
const REDRAW: Duration = Duration::from_millis(100);

/// Runs an estimate.
pub(super) fn run(args: EstimateArgs) -> Outcome {
    let memory_bytes = usize::try_from(args.memory.max(MEMORY_MIN))
        .map_err(|_| Failure::invalid("--memory is more than this machine can address"))?;
    // Before all data are read: a pool that does not answer now is told at once.
    for pool in &args.against {
        let asked = Bytes::from_static(&[0; SUB_BLOCK_BYTES]);
        converse(Client::new(pool).count_known(&args.domain, asked))?;
    }
    let options = Options {
        paths: args.paths,
        memory_bytes,
        sample_blocks: match args.against.is_empty() {
            true => 0,
            false => SAMPLE_BLOCKS,
        },
    };
    // Hidden by itself where standard error is no terminal.
    let bar = ProgressBar::new_spinner().with_message("counting");
    let mut drawn = Instant::now();
    let mut show = |progress: Progress| {
        if drawn.elapsed() < REDRAW {
            return;
        }
        drawn = Instant::now();
        match progress.total_bytes {
            None => bar.tick(),
            Some(total) => {
                if bar.length() != Some(total) {
                    bar.set_style(bar_style());
                    bar.set_length(total);
                }
                bar.set_position(progress.done_bytes);
            }
        }
    };
    let result = bench::estimate::run(&options, &mut show);
    bar.finish_and_clear();
    let estimate = result.map_err(|error| {
        let failure = match &error {
            EstimateError::Special { .. } => Failure::invalid(error.to_string()),
            EstimateError::Path { source, .. } => match source.kind() {
                std::io::ErrorKind::NotFound => {
                    Failure::new(ErrorKind::NotFound, error.to_string())
                }
                _ => Failure::unavailable(error.to_string()),
            },
        };
        Exit::from(failure)
    })?;
    let compared = args
        .against
        .into_iter()
        .map(|pool| ask(pool, &args.domain, &estimate.sample));
    let against = compared.collect::<Result<Vec<Against>, Failure>>()?;
    if args.json {
        #[derive(Serialize)]
        struct Compared<'a> {
            #[serde(flatten)]
            estimate: &'a Estimate,
            #[serde(skip_serializing_if = "Vec::is_empty")]
            against: Vec<Against>,
        }
        print_json(&Compared {
            estimate: &estimate,
            against,
        })?;
    } else {
        print(&(render(&estimate) + &rendered(&against, estimate.sample.len())));
    }
    Ok(match estimate.skipped.unreadable {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::from(EXIT_FAILED),
    })
}

/// How much of a sample a pool has.
fn ask(pool: PathBuf, domain: &str, sample: &[Block]) -> Result<Against, Failure> {
    let client = Client::new(&pool);
    let mut found = 0;
    for blocks in sample.chunks(ASKED_BLOCKS) {
        let asked = Bytes::copy_from_slice(blocks.as_flattened());
        found += converse(client.count_known(domain, asked))?.known;
    }
    let asked = sample.len().max(1) as f64;
    let known = found as f64 / asked;
    Ok(Against {
        pool,
        known,
        // Of a share that was sampled; two standard deviations are 95 of 100 cases.
        error: 2.0 * (known * (1.0 - known) / asked).sqrt(),
    })
}

fn rendered(against: &[Against], asked: usize) -> String {
    if against.is_empty() {
        return String::new();
    }
    let rows: Vec<Vec<String>> = against
        .iter()
        .map(|one| {
            let percent = |part: f64| format!("{:.1} %", part * 100.0);
            let error = format!("± {}", percent(one.error));
            vec![one.pool.display().to_string(), percent(one.known), error]
        })
        .collect();
    let align = [Align::Left, Align::Right, Align::Left];
    format!(
        "\n{}\nOf DATA in blocks of 4 KiB, by a sample of {asked}.\n",
        table(&["POOL", "HAS ALREADY", ""], &rows, &align)
    )
}

fn bar_style() -> ProgressStyle {
    ProgressStyle::with_template("{bar:40} {bytes}/{total_bytes} {binary_bytes_per_sec} {eta} left")
        .unwrap_or_else(|_| ProgressStyle::default_bar())
}

fn render(estimate: &Estimate) -> String {
    let skipped = &estimate.skipped;
    let mut text = format!(
        "{} in {} files, {} of it holes\n\n",
        format_human(estimate.logical_bytes),
        estimate.files,
        format_human(estimate.hole_bytes),
    );
    let rows: Vec<Vec<String>> = estimate.grains.iter().map(row).collect();
    let headings = [
        "BLOCK",
        "ZEROS",
        "DATA",
        "STORED ONCE",
        "SAVED",
        "AND COMPRESSED",
        "SAVED",
    ];
    text += &table(&headings, &rows, &[Align::Right; 7]);
    text += "\nSAVED is the part of DATA; zeros are never stored. Onefold's blocks have 4 KiB. Every file \
             begins a block,\nso the ends of small files take more room in larger blocks.\n";
    if estimate
        .grains
        .iter()
        .any(|grain| grain.deduplicated_error_bytes > 0)
    {
        text += "Estimated from a sample: --memory takes more for a smaller error.\n";
    }
    for (count, what) in [
        (skipped.special_files, "special files and symbolic links"),
        (skipped.hard_links, "further names of files already read"),
        (skipped.mounts, "other file systems mounted there"),
        (skipped.unreadable, "files or folders that cannot be read"),
    ] {
        if count > 0 {
            text += &format!("Left out: {count} {what}\n");
        }
    }
    for unreadable in &skipped.unreadable_first {
        text += &format!("  '{}': {}\n", unreadable.path.display(), unreadable.reason);
    }
    if estimate.hard_links_inexact {
        text += "Too many files with several names: some may have been read more than once.\n";
    }
    text
}

fn row(grain: &Grain) -> Vec<String> {
    let data = grain.nonzero_bytes();
    let saved = |stored: u64| match data {
        0 => "-".to_owned(),
        _ => format!("{:.1} %", 100.0 - stored as f64 / data as f64 * 100.0),
    };
    let with_error = |bytes: u64, error: u64| match error {
        0 => format_human(bytes),
        _ => format!("{} ± {}", format_human(bytes), format_human(error)),
    };
    vec![
        format_human(grain.block_bytes),
        format_human(grain.zero_blocks * grain.block_bytes),
        format_human(data),
        with_error(grain.deduplicated_bytes, grain.deduplicated_error_bytes),
        saved(grain.deduplicated_bytes),
        with_error(grain.compressed_bytes, grain.compressed_error_bytes),
        saved(grain.compressed_bytes),
    ]
}
