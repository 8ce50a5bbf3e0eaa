//! Sleds, and the nodes of a pool on their drives.

use std::path::{Path, PathBuf};

use serde_json::Value;
use tempfile::TempDir;
use tests::daemon::{Daemon, onefold, text_of};
use tests::own_address;
use tests::sled::Sled;

pub(crate) fn text(path: &Path) -> &str {
    path.to_str().expect("test folders are UTF-8")
}

/// A pool that several nodes offer: a folder and a listener for each of them.
pub(crate) struct Offered<const NODES: usize> {
    pub(crate) sleds: Vec<Sled>,
    pub(crate) pools: [PathBuf; NODES],
    pub(crate) listen: [String; NODES],
    _folder: TempDir,
}

impl<const NODES: usize> Offered<NODES> {
    /// The pool's copies are on all of so many sleds, which have the addresses from `number` on; nodes have those behind.
    pub(crate) fn new(sleds: u8, number: u8) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let listens = number + sleds..;
        let mut listens = listens.map(|number| format!("tcp://{}:4420", own_address(number)));
        Self {
            sleds: (number..number + sleds)
                .map(|number| {
                    let listen = format!("tcp://{}:4420", own_address(number));
                    Sled::start_new(folder.path(), number, &listen, None)
                })
                .collect(),
            pools: std::array::from_fn(|at| folder.path().join(format!("node{at}"))),
            listen: std::array::from_fn(|_| listens.next().expect("there are more")),
            _folder: folder,
        }
    }

    /// How a node is started.
    pub(crate) fn arguments(&self, at: usize) -> Vec<String> {
        let redundancy = match self.sleds.len() {
            1 => "none".to_owned(),
            copies => format!("mirror={copies}"),
        };
        let usual = ["--join", "--reactors", "1", "--listen", &self.listen[at]];
        let create = ["--create", "0", "--redundancy", &redundancy];
        let volume = ["--volume", "vol0=128M"];
        let mut arguments: Vec<String> = [&usual[..], &create, &volume]
            .concat()
            .into_iter()
            .map(str::to_owned)
            .collect();
        for sled in &self.sleds {
            arguments.extend(["--drive".to_owned(), sled.drive.clone()]);
        }
        arguments
    }

    /// Starts a node, on a machine of its own.
    pub(crate) fn start(&self, at: usize) -> Daemon {
        let arguments = self.arguments(at);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let machine = format!("node{at}");
        Daemon::start_on(&machine, None, &self.pools[at], &arguments)
            .unwrap_or_else(|| Daemon::start(&self.pools[at], None, &arguments))
    }

    /// What `onefold pool nodes --json` says: machines, and who serves.
    pub(crate) fn nodes(&self) -> Vec<(String, bool)> {
        let output = onefold(&["pool", "nodes", &self.sleds[0].drive, "--json"]);
        assert!(output.status.success(), "{}", text_of(&output));
        let nodes: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let nodes = nodes.as_array().expect("a list").iter();
        let mut nodes: Vec<_> = nodes
            .map(|node| {
                let machine = node["machine"].as_str().expect("a name").to_owned();
                (machine, node["serves"].as_bool().expect("a state"))
            })
            .collect();
        nodes.sort_unstable();
        nodes
    }
}
