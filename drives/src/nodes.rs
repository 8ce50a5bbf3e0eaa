//! What nodes that share drives know of each other, wherever these drives are.
//!
//! Guarantee: an owner that may live is never said to have left ([`Ownership`]).

use std::fmt;
use std::fs;

/// Nodes at a time.
pub const NODES_MAX: u16 = 16;

/// Who owns a drive, as far as can be seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ownership {
    /// There is no such drive.
    Missing,
    /// A process of that machine keeps its lease.
    Owned(String),
    /// Its owner has not renewed its lease, and did not leave: it may live.
    Silent(String),
    /// Nobody has it: its owner left, or ended on this machine.
    Left,
    /// Nothing is known of an owner where nodes meet: it may have left, or it was forgotten there, or nodes never shared the drive.
    Forgotten,
    /// It has left, and its owner was this process, which was started anew since (execve(2)).
    GaveAway,
}

/// Another node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherNode {
    /// Its number, from 0.
    pub number: u16,
    /// Its machine's name.
    pub machine: String,
    /// What it says of itself.
    pub says: Vec<u8>,
}

/// What the owner says of its pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Described {
    /// Another one has another revision.
    pub revision: Vec<u8>,
    /// Only the program knows what it means.
    pub text: Vec<u8>,
}

/// A process of one machine, as it can be told from all others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// The machine's name, for messages.
    pub node: String,
    /// The boot of the machine (`/proc/sys/kernel/random/boot_id`), and the number of the namespace of its processes.
    world: String,
    pid: u32,
    /// When it was started (field 22 of `/proc/PID/stat`).
    started: u64,
}

/// What can be seen of a process from here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// It is this one.
    Own,
    /// It is there.
    Alive,
    /// It has ended.
    Gone,
    /// It is on another machine or in another container, or the machine was started since.
    Unknown,
}

/// Bytes of a name that nodes are told, at most.
const NAME_BYTES_MAX: usize = 128;

/// Whether a text may be the name of a machine or of a drive. Others wrote it, it is printed, and it may be a part of an object's name.
#[must_use]
pub fn is_name(text: &str) -> bool {
    (1..=NAME_BYTES_MAX).contains(&text.len()) && text.chars().all(|c| is_plain(&c))
}

/// Bytes of a machine's name, of its boot, and of a namespace, at most.
const WORD_BYTES_MAX: usize = 64;

/// Bytes of the text of a process at most: three such words, two numbers, and what is between them.
const TEXT_BYTES_MAX: usize = 3 * WORD_BYTES_MAX + 64;

/// Whether a word of a process may have it.
fn is_plain(c: &char) -> bool {
    c.is_ascii_alphanumeric() || "._-:".contains(*c)
}

/// When a process was started, if it is there and is no zombie.
fn started(process: &str) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name before may have anything in it, also brackets and spaces.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace();
    let state = fields.next()?;
    let started = fields.nth(18)?.parse().ok()?;
    (!matches!(state, "Z" | "X")).then_some(started)
}

impl Process {
    /// This one.
    #[must_use]
    pub fn own() -> Self {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let namespace = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
        let plain = |text: &str| {
            let kept = text.chars().filter(is_plain);
            kept.take(WORD_BYTES_MAX).collect::<String>()
        };
        let node = plain(&rustix::system::uname().nodename().to_string_lossy());
        Self {
            node: if node.is_empty() {
                "unnamed".to_owned()
            } else {
                node
            },
            world: format!("{}/{}", plain(&boot), plain(&namespace.to_string_lossy())),
            pid: std::process::id(),
            // What /proc/PID is depends on who mounted it: a process of a container may see that of the machine.
            started: started("self").unwrap_or(0),
        }
    }

    /// The one that a text names. Others wrote it, and its words are printed: it has nothing but what [`own`](Self::own) has.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let is_plain = |c: char| is_plain(&c) || " /".contains(c);
        if text.len() > TEXT_BYTES_MAX || !text.chars().all(is_plain) {
            return None;
        }
        let mut words = text.split(' ');
        let process = Self {
            node: words.next()?.to_owned(),
            world: words.next()?.to_owned(),
            pid: words.next()?.parse().ok()?,
            started: words.next()?.parse().ok()?,
        };
        words.next().is_none().then_some(process)
    }

    /// What became of it, seen from this process.
    #[must_use]
    pub fn seen(&self) -> Seen {
        let own = Self::own();
        if *self == own {
            return Seen::Own;
        }
        if self.world != own.world || self.world.starts_with('/') {
            return Seen::Unknown;
        }
        match started(&self.pid.to_string()) == Some(self.started) {
            true => Seen::Alive,
            false => Seen::Gone,
        }
    }

    /// For tests: one on another machine of that name.
    #[must_use]
    pub fn elsewhere(node: &str) -> Self {
        Self {
            node: node.to_owned(),
            world: "boot/pid:1".to_owned(),
            pid: 1,
            started: 1,
        }
    }

    /// For tests: one of this machine that has ended.
    #[must_use]
    pub fn ended() -> Self {
        Self {
            started: u64::MAX,
            ..Self::own()
        }
    }
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            node,
            world,
            pid,
            started,
        } = self;
        write!(f, "{node} {world} {pid} {started}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_no_process_writes_names_none() {
        let own = Process::own();
        assert_eq!(Process::parse(&own.to_string()), Some(own));
        let long = "a".repeat(TEXT_BYTES_MAX);
        for text in [
            "",
            "a b/c 1",
            "a b/c 1 2 3",
            "a b/c -1 2",
            "\u{1b}[2J b/c 1 2",
            "a\nb c/d 1 2",
            &format!("{long} b/c 1 2"),
        ] {
            assert_eq!(Process::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_name_is_short_and_has_nothing_that_a_terminal_obeys() {
        let long = "a".repeat(NAME_BYTES_MAX);
        assert!(is_name("node-a.lab_1:2") && is_name(&long));
        for text in [
            "",
            "a b",
            "a/b",
            "\u{1b}[2J",
            "a\n",
            "\u{e4}",
            &format!("{long}a"),
        ] {
            assert!(!is_name(text), "{text:?}");
        }
    }

    #[test]
    fn a_process_knows_itself_one_that_ended_and_what_it_cannot_see() {
        assert_eq!(Process::own().seen(), Seen::Own);
        assert_eq!(Process::ended().seen(), Seen::Gone);
        assert_eq!(Process::elsewhere("b").seen(), Seen::Unknown);
        let parent = std::os::unix::process::parent_id();
        let parent = Process {
            pid: parent,
            started: started(&parent.to_string()).expect("it waits for this one"),
            ..Process::own()
        };
        assert_eq!(parent.seen(), Seen::Alive);
    }
}
