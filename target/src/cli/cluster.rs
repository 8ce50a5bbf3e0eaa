//! `onefold cluster ...`: the pools of one Ceph pool, or on the same sleds, and the machines that offer them.
//!
//! Guarantees: it asks the cluster, or the sleds, and needs no daemon; who has a pool is asked of the pool's drives, not of what was
//! noted; a sled that does not answer is named, and what the others say is told.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use dedup::ErrorKind;
use drives::nodes::Ownership;
use fabric_drives::SilentSled;
use serde_json::{Value, json};
use subsystem::errors::Failure;

use super::args::PoolArg;
use super::pool_nodes::meeting_at;
use super::table::{Align, table};
use super::{Outcome, print, print_json};
use crate::exit::exit_code;
use crate::nodes::cluster::Cluster;
use crate::nodes::{ClusterNow, Neighbours, PoolNow};

/// How often `drain` looks whether a pool went.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// How long the command waits for a pool that nobody else can have: a node may be starting.
const STAYS_AFTER: Duration = Duration::from_millis(1500);

/// How long `drain` waits, in seconds, without `--wait`. A node hears that it is drained within five seconds.
const WAIT_DEFAULT: u64 = 60;

/// Where the cluster is.
#[derive(Debug, Args)]
pub struct ClusterArg {
    /// A drive in the Ceph pool, such as rados:POOL, or drives on the sleds, such as nvme+tcp://SLED:4420/NQN#NSID; else those of --pool
    #[arg(value_name = "DRIVE")]
    drives: Vec<PathBuf>,
    /// A pool of the cluster.
    #[command(flatten)]
    pool: PoolArg,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// `onefold cluster ...`
#[derive(Debug, Subcommand)]
pub enum ClusterCommand {
    /// Say how many pools and nodes there are, and what is wrong with them
    #[command(
        after_help = "Examples:\n  onefold cluster status rados:onefold\n  onefold cluster status nvme+tcp://192.0.2.7:4420/nqn.2026-11.dev.onefold:sled:a#1\n  onefold cluster status --pool ./onefold-data\n\nOn sleds these are the pools with a drive on one of the sleds that are named. Name one drive of each sled."
    )]
    Status(ClusterArg),
    /// List the nodes, and how many pools each has and waits for
    #[command(after_help = "Example:\n  onefold cluster nodes rados:onefold")]
    Nodes(ClusterArg),
    /// List the pools, who serves each, and who waits for it
    #[command(after_help = "Example:\n  onefold cluster pools rados:onefold")]
    Pools(ClusterArg),
    /// Give all pools of a node to others, and let it take none until `cluster resume`; exit 69: one stayed
    #[command(
        after_help = "Example:\n  onefold cluster drain node-a rados:onefold\n\nEach pool goes to the node with the fewest of those that offer it. No command of a host fails. The daemons\nof a drained node are standbys, and take a pool only if no other node does for ten seconds."
    )]
    Drain {
        /// The machine's name, as `onefold cluster nodes` lists it
        node: String,
        /// Seconds to wait until its pools have gone
        #[arg(long, value_name = "SECONDS", default_value_t = WAIT_DEFAULT)]
        wait: u64,
        /// The cluster.
        #[command(flatten)]
        at: ClusterArg,
    },
    /// Let a drained node take pools again
    #[command(after_help = "Example:\n  onefold cluster resume node-a rados:onefold")]
    Resume {
        /// The machine's name
        node: String,
        /// The cluster.
        #[command(flatten)]
        at: ClusterArg,
    },
    /// Forget a pool of a Ceph cluster whose drive is gone
    #[command(after_help = "Example:\n  onefold cluster forget scratch rados:onefold")]
    Forget {
        /// The pool, by the name of its first drive, as `onefold cluster pools` lists it
        name: String,
        /// The cluster.
        #[command(flatten)]
        at: ClusterArg,
    },
}

/// Runs `onefold cluster ...`.
pub(super) fn run(command: ClusterCommand) -> Outcome {
    match command {
        ClusterCommand::Status(at) => status(&at),
        ClusterCommand::Nodes(at) => nodes(&at),
        ClusterCommand::Pools(at) => pools(&at),
        ClusterCommand::Drain { node, wait, at } => drain(&node, Duration::from_secs(wait), &at),
        ClusterCommand::Resume { node, at } => resume(&node, &at),
        ClusterCommand::Forget { name, at } => forget(&name, &at),
    }
}

impl ClusterArg {
    fn open(&self) -> Result<Neighbours, Failure> {
        let drives = self.drives.iter().map(PathBuf::as_path);
        Neighbours::at(meeting_at(drives, &self.pool.pool)?)
    }

    /// As it is typed.
    fn typed(&self) -> String {
        let drives: Vec<String> = self.drives.iter().map(|it| quoted(it)).collect();
        match drives.is_empty() {
            true => format!("--pool {}", quoted(&self.pool.pool)),
            false => drives.join(" "),
        }
    }
}

/// A path for a shell, which takes `?` and `&` in it for its own.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/.:,_+-=#".contains(&byte);
    match text.bytes().all(is_plain) && !text.starts_with('#') {
        true => text,
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}

fn state(pool: &PoolNow) -> &'static str {
    match &pool.owner {
        Ownership::Owned(_) => "served",
        Ownership::Silent(_) => "silent",
        Ownership::Left | Ownership::Forgotten | Ownership::GaveAway => "no owner",
        Ownership::Missing => "gone",
    }
}

/// What is wrong with it, and what to do.
fn problem(pool: &PoolNow) -> Option<String> {
    let name = &pool.name;
    let mut standbys = pool.standbys.iter();
    match &pool.owner {
        Ownership::Owned(machine) if standbys.all(|it| it == machine) => Some(format!(
            "pool '{name}': no other machine can take it from '{machine}': start `onefold serve --join` on one"
        )),
        Ownership::Owned(_) => None,
        Ownership::Silent(machine) => Some(format!(
            "pool '{name}': '{machine}' had it and does not answer: a standby takes it, if one lives"
        )),
        Ownership::Left | Ownership::Forgotten | Ownership::GaveAway => Some(format!(
            "pool '{name}': no node serves it: start `onefold serve --join`"
        )),
        Ownership::Missing => Some(format!(
            "pool '{name}': its drive is gone: if that is for good, `onefold cluster forget {name}`"
        )),
    }
}

fn to_json(pool: &PoolNow) -> Value {
    json!({
        "pool": pool.name,
        "uuid": pool.uuid,
        "state": state(pool),
        "machine": pool.machine(),
        "standbys": pool.standbys,
    })
}

/// What is known, and how each pool is. People are told of sleds that do not answer.
fn look(neighbours: &Neighbours) -> Result<(Cluster, Vec<PoolNow>), Failure> {
    let ClusterNow {
        cluster,
        pools,
        silent,
    } = neighbours.look()?;
    for sled in silent {
        eprintln!("onefold: {}", is_silent(&sled));
    }
    Ok((cluster, pools))
}

fn is_silent(SilentSled { drive, why }: &SilentSled) -> String {
    format!("the sled of '{drive}' does not answer, so pools on it alone are not seen: {why}")
}

/// What a machine has to do with pools.
#[derive(Default)]
struct Machine {
    serves: usize,
    waits: usize,
    is_drained: bool,
}

fn machines(cluster: &Cluster, pools: &[PoolNow]) -> BTreeMap<String, Machine> {
    let mut machines: BTreeMap<String, Machine> = BTreeMap::new();
    for pool in pools {
        if let Some(machine) = pool.machine() {
            machines.entry(machine.to_owned()).or_default().serves += 1;
        }
        for standby in &pool.standbys {
            machines.entry(standby.clone()).or_default().waits += 1;
        }
    }
    for machine in cluster.drained() {
        machines.entry(machine.clone()).or_default().is_drained = true;
    }
    machines
}

fn status(at: &ClusterArg) -> Outcome {
    let ClusterNow {
        cluster,
        pools,
        silent,
    } = at.open()?.look()?;
    let machines = machines(&cluster, &pools);
    let served = pools
        .iter()
        .filter(|pool| matches!(pool.owner, Ownership::Owned(_)));
    let served = served.count();
    let drained = machines
        .values()
        .filter(|machine| machine.is_drained)
        .count();
    let kept = machines
        .iter()
        .filter(|(_, machine)| machine.is_drained && machine.serves > 0);
    let kept = kept.map(|(name, machine)| {
        format!(
            "node '{name}': it is drained, and no other node that is not drained takes its pools ({})",
            machine.serves
        )
    });
    let silent = silent.iter().map(is_silent);
    let problems = pools.iter().filter_map(problem);
    let problems: Vec<String> = problems.chain(kept).chain(silent).collect();
    if at.json {
        print_json(&json!({
            "pools": pools.len(),
            "served": served,
            "nodes": machines.len(),
            "drained": drained,
            "problems": problems,
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut text = format!(
        "pools  {}, {served} of them served\nnodes  {}, {drained} of them drained\n",
        pools.len(),
        machines.len()
    );
    for problem in problems {
        text += &format!("! {problem}\n");
    }
    print(&text);
    Ok(ExitCode::SUCCESS)
}

fn nodes(at: &ClusterArg) -> Outcome {
    let (cluster, pools) = look(&at.open()?)?;
    let machines = machines(&cluster, &pools);
    if at.json {
        let listed = machines.iter().map(|(name, machine)| {
            json!({
                "machine": name,
                "serves": machine.serves,
                "waits": machine.waits,
                "drained": machine.is_drained,
            })
        });
        print_json(&listed.collect::<Vec<_>>())?;
        return Ok(ExitCode::SUCCESS);
    }
    if machines.is_empty() {
        print(NOTHING);
        return Ok(ExitCode::SUCCESS);
    }
    let rows: Vec<Vec<String>> = machines
        .iter()
        .map(|(name, machine)| {
            let state = if machine.is_drained {
                "drained"
            } else {
                "takes pools"
            };
            vec![
                name.clone(),
                machine.serves.to_string(),
                machine.waits.to_string(),
                state.to_owned(),
            ]
        })
        .collect();
    let align = [Align::Left, Align::Right, Align::Right, Align::Left];
    print(&table(
        &["MACHINE", "SERVES", "STANDBY FOR", "STATE"],
        &rows,
        &align,
    ));
    Ok(ExitCode::SUCCESS)
}

/// Printed where nothing is noted.
const NOTHING: &str =
    "no pool is known here: `onefold serve --join` with drives here makes one known\n";

fn pools(at: &ClusterArg) -> Outcome {
    let (_, pools) = look(&at.open()?)?;
    if at.json {
        print_json(&pools.iter().map(to_json).collect::<Vec<_>>())?;
        return Ok(ExitCode::SUCCESS);
    }
    if pools.is_empty() {
        print(NOTHING);
        return Ok(ExitCode::SUCCESS);
    }
    let rows: Vec<Vec<String>> = pools
        .iter()
        .map(|pool| {
            let standbys: Vec<&str> = pool.standbys.iter().map(String::as_str).collect();
            vec![
                pool.name.clone(),
                pool.machine().unwrap_or("-").to_owned(),
                state(pool).to_owned(),
                standbys.join(" "),
            ]
        })
        .collect();
    let align = [Align::Left; 4];
    print(&table(
        &["POOL", "MACHINE", "STATE", "STANDBYS"],
        &rows,
        &align,
    ));
    Ok(ExitCode::SUCCESS)
}

/// Fails if there is no such machine.
fn check_known(cluster: &Cluster, pools: &[PoolNow], machine: &str) -> Result<(), Failure> {
    let mut known = cluster.machines();
    for pool in pools {
        // A standby of a pool whose owner nobody knows.
        known.extend(pool.standbys.iter().map(String::as_str));
    }
    if known.contains(machine) {
        return Ok(());
    }
    let known: Vec<&str> = known.into_iter().collect();
    let known = match known.is_empty() {
        true => "none is known".to_owned(),
        false => format!("known are {}", known.join(", ")),
    };
    Err(Failure::new(
        ErrorKind::NotFound,
        format!("no node '{machine}' has or offers a pool here: {known}"),
    ))
}

fn drain(machine: &str, wait: Duration, at: &ClusterArg) -> Outcome {
    let neighbours = at.open()?;
    let (cluster, before) = look(&neighbours)?;
    check_known(&cluster, &before, machine)?;
    neighbours.set_drained(machine, true)?;
    let has = |pool: &PoolNow| pool.machine() == Some(machine);
    let mut waiting: BTreeSet<String> = before
        .iter()
        .filter(|pool| has(pool))
        .map(|pool| pool.name.clone())
        .collect();
    let mut went: BTreeMap<String, String> = BTreeMap::new();
    let began = Instant::now();
    let mut stays: BTreeMap<String, &str> = BTreeMap::new();
    while !waiting.is_empty() {
        let ClusterNow { cluster, pools, .. } = neighbours.look()?;
        stays.clear();
        let is_able = |it: &String| it != machine && !cluster.is_drained(it);
        let mut may_go = false;
        for pool in pools.iter().filter(|pool| waiting.contains(&pool.name)) {
            if let Ownership::Owned(to) = &pool.owner
                && to != machine
            {
                if !at.json {
                    print(&format!("pool '{}' went to {to}\n", pool.name));
                }
                went.insert(pool.name.clone(), to.clone());
                continue;
            }
            let can_go = neighbours.waits(pool, is_able)?;
            may_go |= can_go;
            let why = match can_go {
                true => "it had no time to go: ask again, and look at the log of its node",
                false => {
                    "no other node that is not drained offers it: start `onefold serve --join` there"
                }
            };
            stays.insert(pool.name.clone(), why);
        }
        waiting.retain(|name| !went.contains_key(name));
        let limit = if may_go { wait } else { wait.min(STAYS_AFTER) };
        if waiting.is_empty() || began.elapsed() >= limit {
            break;
        }
        // The cluster tells nobody of a new owner: it has to be asked again.
        thread::sleep(LOOK_INTERVAL);
    }
    let code = match stays.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(exit_code(ErrorKind::Unavailable)),
    };
    if at.json {
        print_json(&json!({ "machine": machine, "went": went, "stays": stays }))?;
        return Ok(code);
    }
    for (name, why) in &stays {
        print(&format!("pool '{name}' stays: {why}\n"));
    }
    print(&format!(
        "'{machine}' is drained: it takes no pool as long as another node can, until `onefold cluster resume {machine} {}`\n",
        at.typed()
    ));
    Ok(code)
}

fn resume(machine: &str, at: &ClusterArg) -> Outcome {
    let neighbours = at.open()?;
    let (cluster, pools) = look(&neighbours)?;
    check_known(&cluster, &pools, machine)?;
    neighbours.set_drained(machine, false)?;
    if at.json {
        print_json(&json!({ "machine": machine }))?;
        return Ok(ExitCode::SUCCESS);
    }
    print(&format!(
        "'{machine}' takes pools again, when they have no owner\n"
    ));
    Ok(ExitCode::SUCCESS)
}

fn forget(name: &str, at: &ClusterArg) -> Outcome {
    let neighbours = at.open()?;
    let registry = neighbours.registry()?;
    let (_, pools) = look(&neighbours)?;
    let pool = pools.iter().find(|pool| pool.name == name).ok_or_else(|| {
        Failure::new(
            ErrorKind::NotFound,
            format!("no pool '{name}' is known here: `onefold cluster pools` lists them"),
        )
    })?;
    if pool.owner != Ownership::Missing {
        return Err(Failure::invalid(format!(
            "the drive of the pool '{name}' is there ({}): only a pool whose drive is gone can be forgotten",
            state(pool)
        ))
        .into());
    }
    Cluster::change(registry, |cluster| Ok(cluster.forget(name)))?;
    if at.json {
        print_json(&json!({ "pool": name }))?;
        return Ok(ExitCode::SUCCESS);
    }
    print(&format!("the pool '{name}' is forgotten\n"));
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_to_be_typed_is_quoted_where_a_shell_takes_it_for_its_own() {
        for (path, typed) in [
            ("rados:onefold/db", "rados:onefold/db"),
            ("rados:onefold?user=onefold", "'rados:onefold?user=onefold'"),
            (
                "nvme+tcp://sled1:4420/nqn.2026-11.dev.onefold:sled:one#1",
                "nvme+tcp://sled1:4420/nqn.2026-11.dev.onefold:sled:one#1",
            ),
            ("it's", "'it'\\''s'"),
        ] {
            assert_eq!(quoted(Path::new(path)), typed);
        }
    }
}
