//! `onefold doctor`: what of this machine would keep a target from working well, and what to do about it.
//!
//! Guarantees: it only looks; each check takes what it looks at as an argument (a folder that stands for `/`, a text, a
//! number), so that a test can make a machine that is good or bad; what cannot be looked at is said, and never called good.

mod drives;
mod network;
mod processor;
mod system;

use std::io;
use std::path::{Path, PathBuf};

use meta::PoolIdentity;
use serde::Serialize;
use serde_json::Value;

/// How bad a finding is. The worst one is the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// As it should be.
    Ok,
    /// It works, slower or with less than it could; or it cannot be looked at.
    Warn,
    /// It does not work.
    Fail,
}

impl State {
    /// Its name, as people and scripts read it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }
}

/// What a check found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The check: `kernel`, `open files`, `drive` and so on.
    pub check: &'static str,
    /// How bad it is.
    pub state: State,
    /// What there is.
    pub found: String,
    /// What to do; `null` if nothing is wrong.
    pub remedy: Option<String>,
}

impl Finding {
    fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self {
            check,
            state: State::Ok,
            found: found.into(),
            remedy: None,
        }
    }

    fn warn(check: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            check,
            state: State::Warn,
            found: found.into(),
            remedy: Some(remedy.into()),
        }
    }

    fn fail(check: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            state: State::Fail,
            ..Self::warn(check, found, remedy)
        }
    }
}

/// The machine's files: the folder that stands for `/`.
#[derive(Clone, Debug)]
pub struct Machine {
    root: PathBuf,
}

impl Machine {
    /// This machine.
    #[must_use]
    pub fn this() -> Self {
        Self::at(Path::new("/"))
    }

    fn at(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
        }
    }

    fn path(&self, absolute: &str) -> PathBuf {
        self.root.join(absolute.trim_start_matches('/'))
    }

    /// A small file's text without the blanks around it; `None` if it cannot be read.
    fn read(&self, absolute: &str) -> Option<String> {
        let text = std::fs::read_to_string(self.path(absolute)).ok()?;
        Some(text.trim().to_owned())
    }

    /// The first number in a file.
    fn number(&self, absolute: &str) -> Option<u64> {
        self.read(absolute)?.split_whitespace().next()?.parse().ok()
    }

    fn exists(&self, absolute: &str) -> bool {
        self.path(absolute).exists()
    }

    /// The names in a folder, sorted; none if there is no such folder.
    fn names(&self, absolute: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.path(absolute)).into_iter().flatten();
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    }
}

/// What has to be tried, because no file tells.
#[derive(Debug)]
pub struct Tried {
    /// Whether a ring of io_uring could be made.
    pub io_uring: Result<(), String>,
    /// The rules of the firewall (`nft list ruleset`); an error says why they are not known.
    pub firewall: Result<String, String>,
    /// The process that serves the pool, if one does: then the ports are its own, and its limits count.
    pub daemon: Option<u32>,
    /// Where hosts and programs come in: where the daemon listens, or what the configuration says.
    pub ports: Vec<Port>,
    /// What `smartctl` prints of a drive.
    pub health: fn(&Path) -> Result<Value, String>,
    /// The time of this machine, in seconds since 1970.
    pub unix_seconds: u64,
}

/// A protocol below NVMe over fabrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// NVMe over TCP, and HTTP.
    Tcp,
    /// RoCEv2.
    Udp,
}

/// A port at which the daemon is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port {
    /// Its protocol.
    pub protocol: Protocol,
    /// Its number.
    pub number: u16,
    /// Whether other machines reach it: then a firewall has to let it in.
    pub is_open: bool,
}

impl Port {
    /// The port of RoCEv2 (IANA). Connections of RDMA are told apart within it.
    pub const ROCE: Self = Self {
        protocol: Protocol::Udp,
        number: 4791,
        is_open: true,
    };

    /// A port of TCP.
    #[must_use]
    pub const fn tcp(number: u16, is_open: bool) -> Self {
        Self {
            protocol: Protocol::Tcp,
            number,
            is_open,
        }
    }
}

impl std::fmt::Display for Port {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let protocol = match self.protocol {
            Protocol::Tcp => "TCP",
            Protocol::Udp => "UDP",
        };
        write!(f, "{protocol} {}", self.number)
    }
}

/// The pool whose drives are looked at: its folder, and what its identity says or why it cannot be read.
#[derive(Debug)]
pub struct PoolFound {
    /// Its folder.
    pub dir: PathBuf,
    /// `None`: there is no pool.
    pub identity: Option<Result<PoolIdentity, String>>,
}

impl PoolFound {
    /// Reads the identity of the pool in a folder, without taking its lock.
    #[must_use]
    pub fn in_folder(dir: &Path) -> Self {
        let path = meta::PoolPaths::new(dir).identity;
        let identity = match std::fs::read(&path) {
            Ok(text) => Some(PoolIdentity::parse(&path, &text).map_err(|error| error.to_string())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => Some(Err(format!("{}: {error}", path.display()))),
        };
        Self {
            dir: dir.to_owned(),
            identity,
        }
    }
}

/// All checks, in the order in which people read them.
#[must_use]
pub fn examine(machine: &Machine, tried: &Tried, pool: &PoolFound) -> Vec<Finding> {
    let mut findings = vec![
        system::kernel(machine),
        system::io_uring(machine, &tried.io_uring),
        processor::fingerprints(&processor::Features::of(machine), pool),
        processor::checksums(&processor::Features::of(machine)),
        system::memory(machine),
        system::huge_pages(machine),
        system::open_files(machine, tried.daemon),
        system::locked_memory(machine, tried.daemon),
        system::clock_source(machine),
        system::time(machine, tried.unix_seconds),
    ];
    findings.extend(network::socket_buffers(machine));
    findings.extend(network::rdma(machine));
    findings.extend(network::ports(
        machine,
        &tried.ports,
        tried.daemon.is_some(),
    ));
    findings.push(network::firewall(machine, &tried.firewall, &tried.ports));
    findings.extend(drives::of_pool(machine, pool, tried.health));
    findings
}

/// The worst state of all.
#[must_use]
pub fn worst(findings: &[Finding]) -> State {
    let states = findings.iter().map(|finding| finding.state);
    states.max().unwrap_or(State::Ok)
}

#[cfg(test)]
mod tests;
