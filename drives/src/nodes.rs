//! What nodes that share drives know of each other, wherever these drives are.
//!
//! Guarantees:
//! - An owner that may live is never said to have left ([`Ownership`]).
//! - Of two machines with one name that both live, one at most becomes a node ([`check_name`]). A machine that was started anew is not kept
//!   out by what is left of it from before.

use std::fmt;
use std::fs;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::{DriveError, ErrorKind};

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

/// A node that keeps its lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leased {
    /// Who it is.
    pub process: Process,
    /// For how long it renews its lease each time.
    pub lease: Duration,
}

/// How often the others are looked at in the time of a lease.
const LOOKS: u32 = 10;

/// Whoever keeps its lease so much longer than it lasts has renewed it: a part of the lease, for a renewal that was on its way.
const MARGIN: u32 = 4;

/// Leases of nodes are a few seconds. Whatever one says, nobody waits for more than this.
const LEASE_MAX: Duration = Duration::from_secs(60);

/// Whether the name of this machine is its own among the nodes of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Name {
    /// No node of another machine has it.
    Own,
    /// One has it, or had it a moment ago. Its lease.
    Unknown(Duration),
    /// A node of another machine has it, and lives.
    Taken,
}

/// What was seen so far of nodes of other machines that have the name of this one.
#[derive(Debug, Default)]
struct Namesakes {
    /// When the first look was answered that saw one.
    seen_at: Option<Instant>,
}

impl Namesakes {
    /// `nodes`: those that keep their leases, by a look that began at `asked` and was answered at `answered`. A machine that ended before
    /// the first look renews nothing, whatever is left of its nodes: all of that is over when a lease has passed.
    fn name(&mut self, own: &Process, nodes: &[Leased], asked: Instant, answered: Instant) -> Name {
        let of_others = nodes
            .iter()
            .filter(|node| node.process.is_namesake_of(own))
            .map(|node| node.lease.min(LEASE_MAX));
        let Some(lease) = of_others.max() else {
            return Name::Own;
        };
        let seen_at = *self.seen_at.get_or_insert(answered);
        let watched = asked.saturating_duration_since(seen_at);
        match watched > lease + lease / MARGIN {
            true => Name::Taken,
            false => Name::Unknown(lease),
        }
    }
}

/// Makes sure that no node of another machine lives that has the name of this machine: commands, and nodes among themselves, tell machines
/// apart by their names. `look`: the nodes that keep their leases now. Blocks for little more than the time of a lease, and only if there is a
/// node with this name that may live.
///
/// Who joins asks before others see it, and once more when they do: of two that start at the same moment one sees the other one.
///
/// # Errors
/// There is one ([`ErrorKind::InUse`]), or `look` fails.
pub fn check_name(
    drive: &str,
    own: &Process,
    mut look: impl FnMut() -> Result<Vec<Leased>, DriveError>,
) -> Result<(), DriveError> {
    let mut namesakes = Namesakes::default();
    let mut is_told = false;
    loop {
        let asked = Instant::now();
        let nodes = look()?;
        match namesakes.name(own, &nodes, asked, Instant::now()) {
            Name::Own => return Ok(()),
            Name::Unknown(lease) => {
                if !std::mem::replace(&mut is_told, true) {
                    tracing::info!(
                        drive,
                        name = own.node,
                        ?lease,
                        "a node of the pool has the name of this machine, and was started on another one, or before this one started: \
                         this node waits until it is known whether that one lives"
                    );
                }
                // Nothing tells when a lease that somebody else keeps ends: it can only be asked again.
                std::thread::sleep(lease / LOOKS);
            }
            Name::Taken => {
                let text = format!(
                    "another machine has the name of this one, '{}', and offers the pool now: give this machine a name of its own \
                     (`hostnamectl hostname NAME`), and start again",
                    own.node
                );
                return Err(DriveError::new(ErrorKind::InUse, drive, text));
            }
        }
    }
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
    /// This one. It is asked for at each look at the others, and stays what it is.
    #[must_use]
    pub fn own() -> Self {
        static OWN: OnceLock<Process> = OnceLock::new();
        OWN.get_or_init(Self::found).clone()
    }

    fn found() -> Self {
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

    /// Whether it is of another machine that has the same name. Where a boot is not known, nothing is.
    #[must_use]
    pub fn is_namesake_of(&self, other: &Self) -> bool {
        let boots = [self.boot(), other.boot()];
        self.node == other.node && boots[0] != boots[1] && boots.iter().all(|boot| !boot.is_empty())
    }

    /// The boot of its machine; empty if it is not known.
    fn boot(&self) -> &str {
        self.world.split_once('/').map_or("", |(boot, _)| boot)
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

    const LEASE: Duration = Duration::from_secs(8);

    fn leased(process: Process) -> Leased {
        Leased {
            process,
            lease: LEASE,
        }
    }

    /// A node of another machine with the name of this one.
    fn namesake() -> Process {
        Process::elsewhere(&Process::own().node)
    }

    /// What a look says that was made so long after the first one, and answered at once.
    fn seen_after(namesakes: &mut Namesakes, began: Instant, after: Duration) -> Name {
        let now = began + after;
        namesakes.name(&Process::own(), &[leased(namesake())], now, now)
    }

    #[test]
    fn a_name_is_taken_by_another_machine_and_not_by_this_one_or_by_one_that_says_nothing_of_itself()
     {
        let own = Process::own();
        assert!(namesake().is_namesake_of(&own));
        let in_container = Process {
            world: format!("{}/pid:1", own.boot()),
            ..own.clone()
        };
        let unknown = Process {
            world: "/pid:1".to_owned(),
            ..own.clone()
        };
        let unsaid = Process {
            world: String::new(),
            ..own.clone()
        };
        let other = Process::elsewhere("another name");
        for free in [
            &own,
            &Process::ended(),
            &in_container,
            &unknown,
            &unsaid,
            &other,
        ] {
            assert!(!free.is_namesake_of(&own), "{free}");
            assert!(!own.is_namesake_of(free), "{free}");
        }
    }

    #[test]
    fn a_machine_that_crashed_and_started_again_waits_for_its_last_lease_and_is_not_refused() {
        let began = Instant::now();
        let mut namesakes = Namesakes::default();
        for tenth in 0..=10 {
            let name = seen_after(&mut namesakes, began, LEASE / 10 * tenth);
            assert_eq!(name, Name::Unknown(LEASE), "it is left of this machine");
        }
        let now = began + LEASE + Duration::from_secs(1);
        let others = [leased(Process::elsewhere("b")), leased(Process::own())];
        assert_eq!(
            namesakes.name(&Process::own(), &others, now, now),
            Name::Own
        );
    }

    #[test]
    fn whoever_keeps_a_lease_for_longer_than_it_lasts_lives() {
        let began = Instant::now();
        let mut namesakes = Namesakes::default();
        seen_after(&mut namesakes, began, Duration::ZERO);
        let name = seen_after(&mut namesakes, began, LEASE);
        assert_eq!(name, Name::Unknown(LEASE), "a renewal may have been late");
        assert_eq!(seen_after(&mut namesakes, began, LEASE * 2), Name::Taken);
        // One that says that its lease lasts for a month is not waited for.
        let mut namesakes = Namesakes::default();
        let says = Leased {
            lease: Duration::from_secs(30 << 20),
            ..leased(namesake())
        };
        let mut look = |at| namesakes.name(&Process::own(), std::slice::from_ref(&says), at, at);
        assert_eq!(look(began), Name::Unknown(LEASE_MAX));
        assert_eq!(look(began + LEASE_MAX * 2), Name::Taken);
        // An answer that comes late says nothing of when the node was seen.
        let mut namesakes = Namesakes::default();
        let nodes = [leased(namesake())];
        let mut look = |asked: u32, answered: u32| {
            let [asked, answered] = [asked, answered].map(|leases| began + LEASE * leases);
            namesakes.name(&Process::own(), &nodes, asked, answered)
        };
        assert_eq!(look(0, 3), Name::Unknown(LEASE));
        assert_eq!(look(3, 9), Name::Unknown(LEASE));
        assert_eq!(look(9, 9), Name::Taken);
    }

    #[test]
    fn who_waits_for_a_name_ends_with_an_answer_and_names_what_is_to_be_done() {
        let own = Process::own();
        let mut looks = 0;
        let left = check_name("d", &own, || {
            looks += 1;
            Ok(match looks {
                1 => vec![leased_shortly()],
                _ => Vec::new(),
            })
        });
        assert!(left.is_ok() && looks == 2);
        let lives = check_name("d", &own, || Ok(vec![leased_shortly()]));
        let error = lives.expect_err("it lives");
        assert_eq!(error.kind(), ErrorKind::InUse);
        for word in ["drive d", &own.node, "hostnamectl hostname NAME"] {
            assert!(error.to_string().contains(word), "{error}");
        }
        let silent = || DriveError::new(ErrorKind::Unreachable, "d", "nobody answers");
        let failed = check_name("d", &own, || Err(silent())).expect_err("nobody answers");
        assert_eq!(failed.kind(), ErrorKind::Unreachable);
    }

    fn leased_shortly() -> Leased {
        Leased {
            lease: Duration::from_millis(20),
            ..leased(namesake())
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
