//! Several pools and machines on the same sleds: who takes what, and how a node is emptied (`onefold cluster`).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use tests::daemon::{Daemon, onefold, text_of};
use tests::paths::{Writer, verify, with_paths, write_rounds};
use tests::sled::Sled;
use tests::{own_address, wait_for};

/// How long anything may take before the test gives up.
const PATIENCE: Duration = Duration::from_secs(120);

/// Blocks that a host writes.
const BLOCKS: u64 = 31;

/// The story's machines.
const MACHINES: [&str; 3] = ["node-a", "node-b", "node-c"];

/// What a command prints with `--json`, and its exit code.
fn asked(words: &[&str]) -> (Option<i32>, Value) {
    let output = onefold(words);
    let printed = serde_json::from_slice(&output.stdout);
    let printed = printed.unwrap_or_else(|error| panic!("{error}: {}", text_of(&output)));
    (output.status.code(), printed)
}

fn word(value: &Value) -> String {
    value.as_str().expect("a text").to_owned()
}

/// Two sleds, and pools with a copy on each: the first pool on their first drives, and so on.
struct Cell {
    sleds: Vec<Sled>,
    folder: TempDir,
    pools: u32,
    /// The address of the first machine.
    number: u8,
}

impl Cell {
    /// The sleds have the addresses from `number` on, and machines those behind.
    fn new(pools: u32, number: u8) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let sleds = (number..number + 2).map(|number| {
            let listen = format!("tcp://{}:4420", own_address(number));
            Sled::start_with_drives(folder.path(), number, &listen, None, pools)
        });
        Self {
            sleds: sleds.collect(),
            folder,
            pools,
            number: number + 2,
        }
    }

    fn listen(&self, machine: &str, pool: u32) -> String {
        let at = MACHINES.iter().position(|it| *it == machine);
        let at = at.expect("one of them") as u8;
        format!("tcp://{}:{}", own_address(self.number + at), 4420 + pool)
    }

    /// Where a host reaches a pool.
    fn listens(&self, pool: u32) -> Vec<String> {
        let all = MACHINES.iter().map(|machine| self.listen(machine, pool));
        all.collect()
    }

    /// Starts a machine's daemon of a pool; `None` where this user may not make namespaces.
    fn start_one(&self, machine: &str, pool: u32) -> Option<Daemon> {
        let listen = self.listen(machine, pool);
        let drives = self.sleds.iter().map(|sled| sled.drive_at(pool + 1));
        let drives: Vec<String> = drives.collect();
        let mut arguments = vec![
            "--join",
            "--reactors",
            "1",
            "--buffers",
            "32M",
            "--listen",
            &listen,
            "--create",
            "0",
            "--redundancy",
            "mirror=2",
            "--volume",
            "vol0=128M",
        ];
        for drive in &drives {
            arguments.extend(["--drive", drive]);
        }
        let folder = self.folder.path().join(format!("{machine}-{pool}"));
        Daemon::start_on(machine, None, &folder, &arguments)
    }

    /// Starts the daemons of a machine: one for each pool.
    fn start(&self, machine: &str) -> Option<Vec<Daemon>> {
        let daemons = (0..self.pools).map(|pool| self.start_one(machine, pool));
        daemons.collect()
    }

    /// What `onefold cluster` says, asked at this sled.
    fn ask(&self, sled: usize, words: &[&str]) -> (Option<i32>, Value) {
        let at = &self.sleds[sled].drive;
        asked(&[&["cluster"], words, &[at, "--json"]].concat())
    }

    /// Who serves each pool that is served, by its UUID, and which standbys it has.
    fn owners(&self) -> BTreeMap<String, (String, BTreeSet<String>)> {
        let (code, pools) = self.ask(0, &["pools"]);
        assert_eq!(code, Some(0), "{pools}");
        let pools = pools.as_array().expect("a list").iter();
        let served = pools.filter(|pool| pool["state"] == "served");
        let seen = served.map(|pool| {
            assert_eq!(pool["pool"], pool["uuid"]);
            let standbys = pool["standbys"].as_array().expect("a list").iter();
            let machine = word(&pool["machine"]);
            (word(&pool["pool"]), (machine, standbys.map(word).collect()))
        });
        seen.collect()
    }

    /// Waits until each pool has an owner among these machines, and all others as standbys. Who has it.
    fn wait_for_owners(&self, among: &[&str], all: &[&str]) -> BTreeMap<String, String> {
        wait_for("owners and standbys", PATIENCE, || {
            let seen = self.owners();
            let is_right = |(owner, standbys): &(String, BTreeSet<String>)| {
                let others = all.iter().filter(|it| *it != owner);
                let others: BTreeSet<String> = others.map(|&it| it.to_owned()).collect();
                among.contains(&&**owner) && *standbys == others
            };
            let is_whole = seen.len() == self.pools as usize && seen.values().all(is_right);
            is_whole.then(|| {
                let owners = seen.into_iter().map(|(pool, (owner, _))| (pool, owner));
                owners.collect()
            })
        })
    }

    /// Who serves the pool with that number.
    fn owner_of(&self, pool: u32) -> String {
        wait_for("an owner", PATIENCE, || {
            let drive = self.sleds[0].drive_at(pool + 1);
            let (code, nodes) = asked(&["pool", "nodes", &drive, "--json"]);
            assert_eq!(code, Some(0), "{nodes}");
            let mut nodes = nodes.as_array().expect("a list").iter();
            let owner = nodes.find(|node| node["serves"] == true)?;
            Some(word(&owner["machine"]))
        })
    }

    /// Drains a machine that has these pools; they go to others.
    fn drain(&self, machine: &str, owners: &BTreeMap<String, String>) {
        let (code, drained) = self.ask(0, &["drain", machine]);
        assert_eq!(code, Some(0), "{drained}");
        let went = drained["went"].as_object().expect("pools");
        let had = owners.iter().filter(|(_, owner)| *owner == machine);
        let had: BTreeSet<&String> = had.map(|(pool, _)| pool).collect();
        assert_eq!(went.keys().collect::<BTreeSet<_>>(), had, "{drained}");
        assert!(went.values().all(|to| to != machine), "{drained}");
    }
}

#[test]
fn the_pools_of_a_node_that_died_go_to_two_others_and_a_drained_one_gives_its_own_away() {
    let cell = Cell::new(2, 120);
    let at = cell.sleds[0].drive.clone();
    let nothing = onefold(&["cluster", "drain", "node-z", &at]);
    assert_eq!(nothing.status.code(), Some(66), "{}", text_of(&nothing));
    let Some(first) = cell.start(MACHINES[0]) else {
        eprintln!("skipped: this user may not make namespaces");
        return;
    };
    let mut nodes: BTreeMap<&str, Vec<Daemon>> = BTreeMap::from([(MACHINES[0], first)]);
    for machine in &MACHINES[1..] {
        nodes.insert(machine, cell.start(machine).expect("as before"));
    }
    cell.wait_for_owners(&MACHINES[..1], &MACHINES);
    let unknown = onefold(&["cluster", "drain", "node-z", &at]);
    assert_eq!(unknown.status.code(), Some(66), "{}", text_of(&unknown));
    assert!(text_of(&unknown).contains("known are node-a, node-b, node-c"));
    let all = cell.listens(0);
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let written = with_paths(&all, async |paths| {
        write_rounds(&paths, BLOCKS, 3, 0, |_| ()).await
    });

    for daemon in nodes.iter().skip(1).flat_map(|(_, daemons)| daemons) {
        daemon.logs("the pool's folder is prepared", PATIENCE);
    }

    // A node with both pools dies: each of the others has one of them then.
    let died = nodes.remove(MACHINES[0]).expect("it lives");
    died.into_iter().for_each(Daemon::kill_hard);
    let owners = cell.wait_for_owners(&MACHINES[1..], &MACHINES[1..]);
    let machines: BTreeSet<&String> = owners.values().collect();
    assert_eq!(machines.len(), 2, "{owners:?}");
    nodes.insert(MACHINES[0], cell.start(MACHINES[0]).expect("as before"));
    let owners = cell.wait_for_owners(&MACHINES[1..], &MACHINES);
    let (_, status) = cell.ask(1, &["status"]);
    let expected = serde_json::json!({
        "pools": 2, "served": 2, "nodes": 3, "drained": 0, "problems": []
    });
    assert_eq!(status, expected);

    // The node with the first pool is drained while a host writes there.
    let one = cell.owner_of(0);
    let writer = Writer::start(&cell.listens(0));
    cell.drain(&one, &owners);
    writer.goes_on();
    writer.end();
    let left: Vec<&str> = MACHINES.into_iter().filter(|it| *it != one).collect();
    let owners = cell.wait_for_owners(&left, &MACHINES);
    // A node says that it has the pool a moment before it answers: a host waits for that.
    let seen = with_paths(&all, async |paths| {
        write_rounds(&paths, BLOCKS, 3, 3, |_| ()).await
    });
    assert!(written.is_whole() && seen.is_whole());

    // Both sleds tell it, whichever is asked: a person sees it on any of them.
    let (_, listed) = cell.ask(1, &["nodes"]);
    let of_machine = |machine: &str| {
        let mut nodes = listed.as_array().expect("a list").iter();
        let node = nodes.find(|node| node["machine"] == machine);
        node.expect("it is listed").clone()
    };
    assert_eq!(of_machine(&one)["drained"], true, "{listed}");
    assert_eq!(of_machine(&one)["serves"], 0, "{listed}");
    assert_eq!(of_machine(left[0])["drained"], false, "{listed}");

    // The last one that may have a pool keeps all, and says so.
    let two = left[0];
    cell.drain(two, &owners);
    let last = left[1];
    cell.wait_for_owners(&[last], &MACHINES);
    let (code, kept) = cell.ask(0, &["drain", last, "--wait", "1"]);
    assert_eq!(code, Some(69), "{kept}");
    for why in kept["stays"].as_object().expect("pools").values() {
        assert!(
            word(why).contains("no other node that is not drained"),
            "{kept}"
        );
    }
    for daemon in &nodes[last] {
        daemon.logs("and no other one can have its pool: it stays", PATIENCE);
    }

    // As soon as another one takes pools again, they go there, and not to the one that is still drained.
    let (code, _) = cell.ask(0, &["resume", &one]);
    assert_eq!(code, Some(0));
    cell.wait_for_owners(&[one.as_str()], &MACHINES);
    with_paths(&all, async move |paths| verify(&paths, seen).await);
    let kept = onefold(&["cluster", "forget", "scratch", &at]);
    assert_eq!(kept.status.code(), Some(65), "{}", text_of(&kept));
    assert!(text_of(&kept).contains("nothing has to be forgotten"));
    for daemon in nodes.into_values().flatten() {
        assert!(daemon.stop().success());
    }
}

#[test]
fn a_sled_that_starts_again_hears_who_is_drained_and_one_that_is_gone_is_named() {
    let mut cell = Cell::new(1, 130);
    let machines = &MACHINES[..2];
    let Some(first) = cell.start(machines[0]) else {
        eprintln!("skipped: this user may not make namespaces");
        return;
    };
    let second = cell.start(machines[1]).expect("as before");
    let owners = cell.wait_for_owners(&machines[..1], machines);
    cell.drain(machines[0], &owners);
    cell.wait_for_owners(&machines[1..], machines);
    // Whoever begins to take a pool is named as its owner, and needs both sleds until it has it.
    for daemon in &second {
        daemon.prints("ready", PATIENCE);
    }
    cell.sleds[1].kill();
    let drives = [cell.sleds[0].drive.as_str(), cell.sleds[1].drive.as_str()];
    let (code, status) = asked(&["cluster", "status", drives[0], drives[1], "--json"]);
    assert_eq!(code, Some(0), "{status}");
    assert_eq!(
        (&status["served"], &status["drained"]),
        (&1.into(), &1.into())
    );
    let problems = status["problems"].to_string();
    assert!(
        problems.contains(&format!("the sled of '{}' does not answer", drives[1])),
        "{status}"
    );
    // The folder names all drives of the pool.
    let folder = cell.folder.path().join("node-b-0");
    let made = folder.join("pool.toml");
    wait_for("the folder", PATIENCE, || made.exists().then_some(()));
    let folder = folder.to_str().expect("test folders are UTF-8");
    let listed = onefold(&["cluster", "nodes", "--pool", folder]);
    let printed = text_of(&listed);
    assert!(listed.status.success(), "{printed}");
    assert!(
        printed.contains("does not answer") && printed.contains("drained"),
        "{printed}"
    );
    let silent = onefold(&["cluster", "pools", drives[1]]);
    assert_eq!(silent.status.code(), Some(69), "{}", text_of(&silent));
    // Its table is empty when it is back; the nodes write into it what they know.
    cell.sleds[1].start();
    wait_for("the drained node on the sled", PATIENCE, || {
        let (code, nodes) = cell.ask(1, &["nodes"]);
        assert_eq!(code, Some(0), "{nodes}");
        let mut nodes = nodes.as_array().expect("a list").iter();
        let is_drained = |node: &Value| node["machine"] == "node-a" && node["drained"] == true;
        nodes.any(is_drained).then_some(())
    });
    let (code, _) = cell.ask(1, &["resume", "node-a"]);
    assert_eq!(code, Some(0));
    for daemon in first.into_iter().chain(second) {
        assert!(daemon.stop().success());
    }
}
