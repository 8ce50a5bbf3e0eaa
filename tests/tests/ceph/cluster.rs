//! Several pools and machines in one cluster: who takes what, and how a node is emptied (`onefold cluster`).

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use tests::daemon::{Daemon, onefold, text_of};
use tests::{own_address, wait_for};

use crate::standby::join;
use crate::whole_cluster;
use tests::paths::{verify, with_volume, write_rounds};

/// How long anything may take before the test gives up.
const PATIENCE: Duration = Duration::from_secs(60);

/// Blocks that a host writes.
const BLOCKS: u64 = 31;

/// The story's machines, and the first drives of its pools.
const MACHINES: [&str; 3] = ["node-a", "node-b", "node-c"];
const POOLS: [&str; 2] = ["many-a", "many-b"];

/// What a command prints with `--json`, and its exit code.
fn asked(words: &[&str]) -> (Option<i32>, Value) {
    let output = onefold(words);
    let printed = serde_json::from_slice(&output.stdout);
    let printed = printed.unwrap_or_else(|error| panic!("{error}: {}", text_of(&output)));
    (output.status.code(), printed)
}

/// Who serves each pool of the story, and which standbys it has: those that are served.
fn pools(at: &str) -> BTreeMap<String, (String, BTreeSet<String>)> {
    let (code, pools) = asked(&["cluster", "pools", at, "--json"]);
    assert_eq!(code, Some(0), "{pools}");
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let all = pools.as_array().expect("a list").iter();
    let served =
        all.filter(|pool| pool["state"] == "served" && POOLS.contains(&&*text(&pool["pool"])));
    let seen = served.map(|pool| {
        let standbys = pool["standbys"].as_array().expect("a list").iter();
        (
            text(&pool["pool"]),
            (text(&pool["machine"]), standbys.map(text).collect()),
        )
    });
    seen.collect()
}

/// Waits until each pool has an owner among these machines, and all others as standbys. Who has it.
fn wait_for_owners(at: &str, among: &[&str]) -> BTreeMap<String, String> {
    wait_for("owners and standbys", PATIENCE, || {
        let seen = pools(at);
        let is_right = |(owner, standbys): &(String, BTreeSet<String>)| {
            let others = MACHINES.into_iter().filter(|it| it != owner);
            among.contains(&&**owner) && *standbys == others.map(str::to_owned).collect()
        };
        let all = seen.len() == POOLS.len() && seen.values().all(is_right);
        all.then(|| {
            seen.into_iter()
                .map(|(pool, (owner, _))| (pool, owner))
                .collect()
        })
    })
}

/// Drains a machine that has these pools; they go to others.
fn drain(at: &str, machine: &str, owners: &BTreeMap<String, String>) {
    let (code, drained) = asked(&["cluster", "drain", machine, at, "--json"]);
    assert_eq!(code, Some(0), "{drained}");
    let went = drained["went"].as_object().expect("pools");
    let had = owners.iter().filter(|(_, owner)| *owner == machine);
    let had: BTreeSet<&String> = had.map(|(pool, _)| pool).collect();
    assert_eq!(went.keys().collect::<BTreeSet<_>>(), had, "{drained}");
    assert!(went.values().all(|to| to != machine), "{drained}");
}

/// A machine with one daemon for each pool.
struct Node {
    daemons: Vec<Daemon>,
    listen: Vec<String>,
}

impl Node {
    /// `None` where this user may not make namespaces.
    fn start(machine: &str, number: u8, folder: &Path, drives: &[String; 2]) -> Option<Self> {
        let listen = drives.iter().zip(4420..);
        let listen: Vec<String> = listen
            .map(|(_, port)| format!("tcp://{}:{port}", own_address(number)))
            .collect();
        let daemons = drives.iter().zip(&listen).enumerate();
        let daemons = daemons.map(|(at, (drive, listen))| {
            let pool = folder.join(format!("{machine}{at}"));
            let sized = format!("{drive}=1G");
            let more = ["--create", "128M", "--drive", &sized, "--buffers", "32M"];
            Daemon::start_on(machine, None, &pool, &join(listen, &more))
        });
        let daemons = daemons.collect::<Option<Vec<_>>>()?;
        Some(Self { daemons, listen })
    }
}

#[test]
fn the_pools_of_a_node_that_died_go_on_elsewhere_and_a_drained_one_gives_its_own_away() {
    let Some((ceph, _alone)) = whole_cluster() else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let drives = POOLS.map(|name| ceph.address("pool", name, "onefold"));
    let at = ceph.address("pool", "whatever", "onefold");
    let start = |machine: &str| {
        let number = MACHINES
            .iter()
            .position(|it| *it == machine)
            .expect("one of them");
        Node::start(machine, 65 + number as u8, folder.path(), &drives)
    };
    let unknown = onefold(&["cluster", "drain", "node-z", &at]);
    assert_eq!(unknown.status.code(), Some(66), "{}", text_of(&unknown));
    let Some(first) = start(MACHINES[0]) else {
        eprintln!("skipped: this user may not make namespaces");
        return;
    };
    let mut nodes: BTreeMap<&str, Node> = BTreeMap::from([(MACHINES[0], first)]);
    for machine in MACHINES.into_iter().skip(1) {
        nodes.insert(machine, start(machine).expect("as before"));
    }
    wait_for_owners(&at, &MACHINES[..1]);
    let to = nodes[MACHINES[0]].listen[0].clone();
    let written = with_volume(&to, async |paths| {
        write_rounds(&paths, BLOCKS, 3, 0, |_| ()).await
    });

    // A node with both pools dies, and comes back.
    let died = nodes.remove(MACHINES[0]).expect("it lives");
    died.daemons.into_iter().for_each(Daemon::kill_hard);
    wait_for("new owners", PATIENCE, || {
        let seen = pools(&at);
        let moved = seen.values().all(|(owner, _)| owner != MACHINES[0]);
        (seen.len() == POOLS.len() && moved).then_some(())
    });
    nodes.insert(MACHINES[0], start(MACHINES[0]).expect("as before"));
    let owners = wait_for_owners(&at, &MACHINES[1..]);

    // The node with the first pool is drained. Nobody shuts out who has told the cluster that it gave its pool away.
    let shut_out = ceph.blocklist();
    let one = owners[POOLS[0]].clone();
    drain(&at, &one, &owners);
    let left: Vec<&str> = MACHINES.into_iter().filter(|it| *it != one).collect();
    let owners = wait_for_owners(&at, &left);
    let two = owners[POOLS[0]].clone();
    let to = nodes[&*two].listen[0].clone();
    with_volume(&to, async move |paths| verify(&paths, written).await);

    // The last one that may have a pool keeps all, and says so.
    drain(&at, &two, &owners);
    let left: Vec<&str> = left.into_iter().filter(|it| *it != two).collect();
    wait_for_owners(&at, &left);
    let last = left[0];
    let (code, kept) = asked(&["cluster", "drain", last, &at, "--wait", "1", "--json"]);
    assert_eq!(code, Some(69), "{kept}");
    for pool in POOLS {
        let why = kept["stays"][pool].as_str().expect("a reason");
        assert!(why.contains("no other node that is not drained"), "{kept}");
    }
    let (_, status) = asked(&["cluster", "status", &at, "--json"]);
    let problems = status["problems"].to_string();
    assert!(
        problems.contains(&format!("node '{last}': it is drained")),
        "{status}"
    );
    for daemon in &nodes[last].daemons {
        daemon.logs("and no other one can have its pool: it stays", PATIENCE);
    }

    // As soon as another one takes pools again, they go there.
    let (code, _) = asked(&["cluster", "resume", &one, &at, "--json"]);
    assert_eq!(code, Some(0));
    wait_for_owners(&at, &[one.as_str()]);
    assert_eq!(ceph.blocklist(), shut_out);
    let (_, listed) = asked(&["cluster", "nodes", &at, "--json"]);
    let drained = listed.as_array().expect("a list").iter();
    let drained = drained.filter(|node| node["drained"] == true).count();
    assert_eq!(drained, 2, "{listed}");
    let kept = onefold(&["cluster", "forget", POOLS[0], &at]);
    assert_eq!(kept.status.code(), Some(65), "{}", text_of(&kept));
    for daemon in nodes.into_values().flat_map(|node| node.daemons) {
        assert!(daemon.stop().success());
    }
}
