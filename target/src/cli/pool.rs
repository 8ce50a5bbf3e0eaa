//! `onefold pool ...`: what works on a pool that is not served, and backups.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use api::client::Client;
use api::pool::MakeBackup;
use api::socket::is_served;
use api::tasks::TaskKind;
use clap::{Args, Subcommand};
use dedup::{CheckOptions, CheckReport, DamageStatus, ErrorKind, SUB_BLOCK_BYTES, Watch};
use serde_json::json;
use subsystem::errors::Failure;

use super::args::PoolArg;
use super::default_pool::default_pool;
use super::labels::labels;
use super::plan::PlanArgs;
use super::pool_key::PoolKeyCommand;
use super::pool_nodes;
use super::pool_set::PoolSetArgs;
use super::repair::pool_repair;
use super::restore::pool_restore;
use super::run::converse;
use super::scrub::damage_text;
use super::{Exit, Outcome, print, print_json, progress};
use crate::exit::EXIT_INCONSISTENT;
use crate::options::POOL_VARIABLE;
use crate::size::{format_human, parse_size};

/// Memory of a check at least.
const MEMORY_MIN: u64 = 16 << 20;

/// `onefold pool ...`
#[derive(Debug, Subcommand)]
pub enum PoolCommand {
    /// Prove a pool consistent: exit 0 consistent, 2 inconsistent, 1 could not run
    #[command(
        after_help = "Example:\n  onefold pool check --pool ./onefold-data\n\n\
                            The pool must not be served at the time, unless --online is given."
    )]
    Check {
        /// The pool.
        #[command(flatten)]
        place: PoolPlace,
        /// Also read every stored block and compare its checksum
        #[arg(long, conflicts_with = "online")]
        data: bool,
        /// Memory that its tables take at most; with less it reads the maps more often
        #[arg(long, value_name = "SIZE", value_parser = parse_memory, default_value = "2G", conflicts_with = "online")]
        memory: u64,
        /// Ask the daemon that serves the pool: proves its counts against its maps, and stops nothing
        #[arg(long)]
        online: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Copy a pool's metadata (not its data) to a new folder, also while it is served
    #[command(
        after_help = "Example:\n  onefold pool backup /backups/pool-monday --pool ./onefold-data\n\n\
                            Data stay on the drives; without the metadata nobody finds them. Make a backup after every\n\
                            change of volumes and settings and as often as you can, on another drive, and keep it secret:\n\
                            it holds the pool's keys. Should the pool's folder be lost, serve the newest backup instead:\n\
                            `onefold serve --pool /backups/pool-monday` uses the same drives, after `onefold pool restore` if they\n\
                            were opened since.\n\
                            It shows the pool as it was: what was written since is lost, and what the backup refers to\n\
                            and the drives use for something else by now reads as an error; `onefold pool check --data`\n\
                            lists it. Never serve a backup while the pool itself is whole: both write to the same drives."
    )]
    Backup {
        /// The backup's folder, which must not be there, or be empty
        #[arg(value_name = "DIR")]
        dir: PathBuf,
        /// The pool.
        #[command(flatten)]
        pool: PoolArg,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Which redundancy loses data as rarely as you want, by drives, their failures and the rebuild's speed
    #[command(
        after_help = "Example:\n  onefold pool plan --drives 6x4T --afr 1.5 --loss 1e-6/y\n\nIt needs no pool. Its arithmetic is printed with the answer."
    )]
    Plan(PlanArgs),
    /// Change how many copies of all data a served pool keeps, and say how rarely it is to lose data
    #[command(
        after_help = "Examples:\n  onefold pool set --redundancy mirror=2\n  onefold pool set --loss 1e-6/y --afr 1.5\n\nCopies \
                      are made, or given up, in the background, and hosts go on meanwhile. `onefold status` says how much \
                      data lack copies yet, and how rarely data are lost."
    )]
    Set(PoolSetArgs),
    /// Share the key of fingerprints with another pool
    Key {
        /// What to do.
        #[command(subcommand)]
        command: PoolKeyCommand,
    },
    /// Make an inconsistent pool consistent: exit 0 consistent now, 2 still inconsistent, 1 could not run
    #[command(
        after_help = "Example:\n  onefold pool repair --pool ./onefold-data\n\n\
                            It says what it will do and asks. Every row that it changes is kept in a file in the pool's\n\
                            folder. Data that cannot be proven to be right reads as an error afterwards, never as\n\
                            zeros; its ranges are listed. The pool must not be served at the time."
    )]
    Repair {
        /// The pool.
        #[command(flatten)]
        place: PoolPlace,
        /// Memory that its tables take at most, but for what is damaged; with less it reads the maps more often
        #[arg(long, value_name = "SIZE", value_parser = parse_memory, default_value = "2G")]
        memory: u64,
        /// Do not ask
        #[arg(long)]
        yes: bool,
        /// Print JSON; without --yes it only says what it would do
        #[arg(long)]
        json: bool,
    },
    /// Let an older copy of a pool's metadata or drive be used, when the newer one is lost: exit 0 it can be served, 1 not
    #[command(
        after_help = "Example:\n  onefold pool restore /backups/pool-monday\n\n\
                            Drives and metadata know of each other's last start, and an older copy is refused: a backup, a\n\
                            folder from before another machine opened the pool, a drive that was put back. This says that\n\
                            what is newer is lost and the copy is to be used. What was written since is lost then. It\n\
                            changes no data, and asks first."
    )]
    Restore {
        /// The pool.
        #[command(flatten)]
        place: PoolPlace,
        /// Do not ask
        #[arg(long)]
        yes: bool,
        /// Print JSON; without --yes it only says what it would do
        #[arg(long)]
        json: bool,
    },
    /// Make the folder of a pool anew of what its drives hold, when it is lost or the drives moved
    #[command(
        after_help = "Example:\n  onefold pool import /dev/nvme1n1 /dev/nvme2n1 --pool ./onefold-data\n\n\
                            Nothing is lost that was flushed. The drives are only read; the first start of the pool takes\n\
                            them over, and the old folder, should it come back, is refused then. A pool that another machine\n\
                            may have open, or of which a drive is missing that may know more, is not imported without\n\
                            `--force` and the pool's name."
    )]
    Import {
        /// The pool's drives: all that are there
        #[arg(value_name = "DRIVE", required = true)]
        drives: Vec<PathBuf>,
        /// The folder to make, which must not be there, or be empty
        #[command(flatten)]
        pool: PoolArg,
        /// Import it though another machine may have it open or a drive is missing: what is newer there is lost
        #[arg(long, value_name = "NAME")]
        force: Option<String>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Give a served pool to another node that waits for it (`onefold serve --join`)
    #[command(
        after_help = "Example:\n  onefold pool move --pool ./onefold-data\n\nHosts that are attached to both nodes wait for a moment, and no command fails. The daemon is a standby\nfrom then on."
    )]
    Move {
        /// The pool.
        #[command(flatten)]
        pool: PoolArg,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// List the nodes that offer a pool, and say which of them serves it
    #[command(
        after_help = "Examples:\n  onefold pool nodes --pool ./onefold-data\n  onefold pool nodes rados:onefold\n  onefold pool nodes nvme+tcp://192.0.2.7:4420/nqn.2026-11.dev.onefold:sled:a#1\n\nIt asks the cluster, or the sleds, and needs no daemon."
    )]
    Nodes {
        /// A drive of the pool, where there is no folder
        #[arg(value_name = "DRIVE")]
        drive: Option<PathBuf>,
        /// The pool.
        #[command(flatten)]
        pool: PoolArg,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Say what the labels of drives say: which pool they belong to, and who opened it last; exit 1: one has none
    #[command(after_help = "Example:\n  onefold pool labels /dev/nvme1n1 /dev/nvme2n1")]
    Labels {
        /// Drives, in use or not
        #[arg(value_name = "DRIVE", required = true)]
        drives: Vec<PathBuf>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

/// The pool that is checked, repaired or restored.
#[derive(Clone, Debug, Args)]
pub struct PoolPlace {
    /// The pool's folder, as --pool names it
    #[arg(value_name = "DIR")]
    dir: Option<PathBuf>,
    /// As other commands name it.
    #[command(flatten)]
    pool: PoolArg,
}

impl PoolPlace {
    /// The pool's folder.
    ///
    /// # Errors
    /// Two different ones were named.
    pub fn dir(self) -> Result<PathBuf, Failure> {
        let Some(dir) = self.dir else {
            return Ok(self.pool.pool);
        };
        // What the variable or nobody says is no second name.
        let by_variable = std::env::var_os(POOL_VARIABLE).map(PathBuf::from);
        let unsaid = [
            Some(PathBuf::from(default_pool())),
            by_variable,
            Some(dir.clone()),
        ];
        match unsaid.contains(&Some(self.pool.pool.clone())) {
            true => Ok(dir),
            false => Err(Failure::invalid(format!(
                "'{}' and '{}' are two pools: name one",
                dir.display(),
                self.pool.pool.display()
            ))),
        }
    }
}

/// `onefold pool ...`
pub(super) fn run(command: PoolCommand) -> Outcome {
    match command {
        PoolCommand::Plan(args) => super::plan::run(args),
        PoolCommand::Key { command } => super::pool_key::run(command),
        PoolCommand::Check {
            place,
            data,
            memory,
            online,
            json,
        } => match online {
            true => check_online(&place.dir()?, json),
            false => {
                let memory_bytes = usize::try_from(memory).unwrap_or(usize::MAX);
                check(&place.dir()?, data, memory_bytes, json)
            }
        },
        PoolCommand::Set(args) => super::pool_set::run(&args),
        PoolCommand::Backup { dir, pool, json } => backup(&pool.pool, &dir, json),
        PoolCommand::Repair {
            place,
            memory,
            yes,
            json,
        } => {
            let memory_bytes = usize::try_from(memory).unwrap_or(usize::MAX);
            pool_repair(&place.dir()?, memory_bytes, yes, json)
        }
        PoolCommand::Restore { place, yes, json } => pool_restore(&place.dir()?, yes, json),
        PoolCommand::Import {
            drives,
            pool,
            force,
            json,
        } => super::import::pool_import(&drives, &pool.pool, force.as_deref(), json),
        PoolCommand::Labels { drives, json } => labels(&drives, json),
        PoolCommand::Move { pool, json } => pool_nodes::move_pool(&pool.pool, json),
        PoolCommand::Nodes { drive, pool, json } => {
            pool_nodes::nodes(drive.as_deref(), &pool.pool, json)
        }
    }
}

/// At least so much memory that a pass is worth reading the maps.
fn parse_memory(text: &str) -> Result<u64, String> {
    match parse_size(text).map_err(|error| error.to_string())? {
        bytes if bytes >= MEMORY_MIN => Ok(bytes),
        _ => Err(format!(
            "its tables need {} at least",
            format_human(MEMORY_MIN)
        )),
    }
}

/// `onefold pool check`: 0 consistent, 2 inconsistent, 1 could not run.
fn check(dir: &Path, data: bool, memory_bytes: usize, json: bool) -> Outcome {
    let told = progress::over_blocks(SUB_BLOCK_BYTES as u64);
    let options = CheckOptions {
        data,
        memory_bytes,
        watch: Watch::new(&told),
    };
    let report = dedup::check_pool(dir, options)
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
        let about = if report.passes > 1 { "about " } else { "" };
        text += &format!(
            "{about}{} blocks hold content that another block holds too (wasted, not wrong)\n",
            report.duplicate_fingerprints
        );
    }
    if report.passes > 1 {
        text += &format!(
            "the maps were read {} times, as --memory does not hold all blocks\n",
            report.passes
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
fn check_online(dir: &Path, json: bool) -> Outcome {
    let client = Client::new(dir);
    let checking = progress::of_task(&client, TaskKind::Check, "checking", client.check());
    let report = converse(checking).map_err(Exit::could_not_run)?;
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
fn backup(pool: &Path, target: &Path, json: bool) -> Outcome {
    let dir = std::path::absolute(target)
        .map_err(|error| Failure::invalid(format!("'{}' is no path: {error}", target.display())))?;
    let made = progress::spinning("copying the metadata", || match is_served(pool) {
        true => converse(Client::new(pool).backup(&MakeBackup { dir })).map(|made| made.dir),
        false => dedup::backup_pool(pool, &dir).map_err(Failure::from),
    })?;
    if json {
        print_json(&json!({"pool": pool, "dir": made}))?;
        return Ok(ExitCode::SUCCESS);
    }
    print(&format!(
        "the metadata of {} as it is now: {}\nkeep it secret, it holds the pool's keys; data stay on the drives\n",
        pool.display(),
        made.display()
    ));
    Ok(ExitCode::SUCCESS)
}
