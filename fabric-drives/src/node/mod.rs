//! The nodes that offer a pool to hosts, where its drives are on sleds: one owns them, and others wait for that.
//!
//! They meet in the node tables of the drives ([`NodeTable`]). A node keeps an entry there, by which others see that it lives, what
//! it does with the pool, and what else it says. Tables are in the memory of sleds: one that starts again forgets what it knew, and
//! is told again by who lives. Who may write to a drive is not decided here but by its reservation.
//!
//! Guarantees:
//! - Two nodes that keep their entries have different numbers.
//! - Nothing is said of other nodes unless more than half of the drives answer, or of those that hold the pool's metadata now.
//! - An entry is renewed whatever the rest of the process does.
//! - A node says nothing of itself before it is known that no other machine has its name.

pub(crate) mod deciding;
pub(crate) mod entry;
mod own;
mod survey;
pub(crate) mod votes;
mod worker;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use drives::nodes::{Described, NODES_MAX, OtherNode, Ownership, Process, check_name};
use drives::{DriveError, ErrorKind};
use nvme::Nqn;
use nvme::node_table::DESCRIPTION_BYTES_MAX;
use reactor::ReactorThread;
use reactor::sync::queue;
use uuid::Uuid;

pub use deciding::Holders;
pub use entry::NodeState;
pub use survey::{SeenPool, SilentSled, Survey};

use crate::address::RemoteAddress;
use crate::keys::KeyFolder;
use crate::node_table::{NodeTable, NodeTableLimits, TableEntry, TableSeen};
use deciding::{Deciding, deciding};
use entry::{SAYS_BYTES_MAX, Said};
use own::{Description, Own};
use votes::TooFew;
use worker::{Answer, Ask, Worker};

/// What is asked of a table at a time at most.
const ASKS_MAX: usize = 16;

/// Bytes for the connections of a node.
const BUFFER_BYTES: usize = 4 << 20;

/// How long the other drives may take when enough of them have answered.
const GRACE: Duration = Duration::from_millis(150);

/// A node that met another one at a number pauses for less than this, in milliseconds, before it tries the next one.
const PAUSE_MS: u32 = 100;

/// How long a node that ends tries to say so.
const LEAVE_MAX: Duration = Duration::from_millis(500);

/// How a node meets others.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// The name that this host has for the targets.
    pub host: Nqn,
    /// Where the keys for targets are.
    pub keys: KeyFolder,
    /// How long a node that is not heard of is taken for alive.
    pub lease: Duration,
    /// How long a table may take to answer.
    pub table: NodeTableLimits,
    /// Why tables do not answer was told before.
    pub is_told: bool,
}

impl NodeOptions {
    /// A lease of 1.5 seconds, as for drives in a cluster.
    #[must_use]
    pub fn new(host: Nqn, keys: KeyFolder) -> Self {
        Self {
            host,
            keys,
            lease: Duration::from_millis(1500),
            table: NodeTableLimits::default(),
            is_told: false,
        }
    }
}

/// How tables are reached.
struct Tables {
    host: Nqn,
    keys: KeyFolder,
    limits: NodeTableLimits,
    lease: Duration,
    is_told: bool,
}

impl Tables {
    /// Begins to work on the table of a drive; its name, and where it is asked.
    fn begin(
        &self,
        at: usize,
        address: RemoteAddress,
        own: &Arc<Own>,
        reactor: &reactor::Handle,
    ) -> (String, queue::Sender<Ask>) {
        let (sender, asks) = queue::channel(ASKS_MAX);
        let name = address.to_string();
        let (host, keys, limits) = (self.host.clone(), self.keys.clone(), self.limits.clone());
        let (own, lease, is_told) = (own.clone(), self.lease, self.is_told);
        let work = move || async move {
            let worker = Worker {
                at,
                table: NodeTable::new(address, host, keys, limits),
                own,
                lease,
                asks,
                silent: None,
                is_told,
                described: None,
                is_others: false,
                drained: None,
                next: reactor::now(),
            };
            worker.run().await;
        };
        reactor.spawn(work).detach();
        (name, sender)
    }
}

/// This process among the nodes of a pool. Its calls block, and are not for reactors.
pub struct Node {
    drives: Vec<(String, queue::Sender<Ask>)>,
    /// Drives of the pool that it was not started with. It has an entry with them, and asks them nothing.
    beside: Mutex<Vec<(String, queue::Sender<Ask>)>>,
    tables: Tables,
    /// For each sled the places of its drives among those.
    sleds: Vec<Vec<usize>>,
    /// Those that decide where half of all do not answer.
    deciding: Mutex<Option<Deciding>>,
    own: Arc<Own>,
    lease: Duration,
    answer_max: Duration,
    number: u16,
    descriptions: AtomicU32,
    reactor: Option<ReactorThread>,
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let drives: Vec<_> = self.drives.iter().map(|(name, _)| name).collect();
        f.debug_struct("Node")
            .field("drives", &drives)
            .field("number", &self.number)
            .finish_non_exhaustive()
    }
}

impl Node {
    /// Becomes one of the nodes of the pool with these drives.
    ///
    /// # Errors
    /// Half of the drives do not answer, or of those that hold its metadata ([`ErrorKind::Unreachable`]); their targets have no node tables
    /// ([`ErrorKind::Invalid`]); there are [`NODES_MAX`] nodes, or one of another machine with the name of this one
    /// ([`ErrorKind::InUse`]).
    pub fn join(
        drives: Vec<RemoteAddress>,
        holders: Option<&Holders>,
        options: NodeOptions,
    ) -> Result<Self, DriveError> {
        let mut node = Self::begin(drives, options, Process::own())?;
        if let Some(holders) = holders {
            node.decide_by(holders);
        }
        node.number = node.find_number()?;
        // Another machine may have started at the same moment.
        node.check_name()?;
        Ok(node)
    }

    /// No other machine has the name of this one.
    fn check_name(&self) -> Result<(), DriveError> {
        let look = || votes::living(&self.look()?).map_err(|few| self.too_few(few));
        check_name(self.drive(), &self.own.process(), look)
    }

    /// Asks the tables, and has no entry.
    fn begin(
        drives: Vec<RemoteAddress>,
        options: NodeOptions,
        process: Process,
    ) -> Result<Self, DriveError> {
        let NodeOptions {
            host,
            keys,
            lease,
            table: limits,
            is_told,
        } = options;
        let config = reactor::Config {
            name: "nodes".to_owned(),
            buffer_pool: reactor::PoolConfig {
                bytes: BUFFER_BYTES,
            },
            ..reactor::Config::default()
        };
        let reactor = reactor::start(config).map_err(|error| {
            let name = drives.first().map_or_else(String::new, ToString::to_string);
            DriveError::new(ErrorKind::Io, &name, format!("its nodes: {error}"))
        })?;
        let own = Arc::new(Own::new(process));
        let answer_max = limits.connect + limits.command * 2;
        let sleds = survey::by_sled(&drives);
        let tables = Tables {
            host,
            keys,
            limits,
            lease,
            is_told,
        };
        let drives = (0..).zip(drives);
        let drives = drives.map(|(at, it)| tables.begin(at, it, &own, &reactor.handle()));
        Ok(Self {
            drives: drives.collect(),
            beside: Mutex::default(),
            tables,
            deciding: Mutex::default(),
            sleds,
            own,
            lease,
            answer_max,
            number: 0,
            descriptions: AtomicU32::new(0),
            reactor: Some(reactor),
        })
    }

    fn find_number(&self) -> Result<u16, DriveError> {
        let mut answers = self.ask(Ask::Look);
        let unfit = |answer: &&mut Option<Result<TableSeen, DriveError>>| {
            let unfit = |answer: &Result<_, DriveError>| {
                let kind = answer.as_ref().err().map(DriveError::kind);
                kind == Some(ErrorKind::Invalid)
            };
            answer.as_ref().is_some_and(unfit)
        };
        // One on which nodes cannot meet is no drive of a pool that they share.
        if let Some(Some(Err(error))) = answers.iter_mut().find(unfit).map(Option::take) {
            return Err(error);
        }
        self.check_name()?;
        let tables = self.look()?;
        let free = votes::free_numbers(&tables, NODES_MAX).map_err(|few| self.too_few(few))?;
        for number in free {
            self.own.set_number(Some(number));
            let kept = self.ask(Ask::Renew);
            let is_others = |kept: &Result<bool, DriveError>| matches!(kept, Ok(false));
            let is_met = kept.iter().flatten().any(is_others);
            let is_kept = |kept: Option<_>| matches!(kept, Some(Ok(true))).then_some(());
            let kept = self.deciding(kept.into_iter().map(is_kept).collect());
            if kept.is_some() && !is_met {
                return Ok(number);
            }
            self.own.set_number(None);
            let _ = self.ask(|answer| Ask::GiveUp(number, answer));
            // Another node that started at the same moment tries the same numbers.
            let pause = getrandom::u32().unwrap_or(number.into()) % PAUSE_MS;
            std::thread::sleep(Duration::from_millis(pause.into()));
        }
        let text = format!("{NODES_MAX} nodes offer it to hosts, and no more can: end one of them");
        Err(DriveError::new(ErrorKind::InUse, self.drive(), text))
    }

    /// Its number, from 0 to [`NODES_MAX`] - 1.
    #[must_use]
    pub fn number(&self) -> u16 {
        self.number
    }

    /// How long an owner that does not answer is taken for alive.
    #[must_use]
    pub fn lease(&self) -> Duration {
        self.lease
    }

    /// The name of its machine, as other nodes are told it.
    #[must_use]
    pub fn machine(&self) -> String {
        self.own.process().node
    }

    /// The first drive.
    #[must_use]
    pub fn drive(&self) -> &str {
        self.drives.first().map_or("", |(name, _)| name)
    }

    /// Asks all tables; an answer that did not come in time is none. Those that are missing when enough have answered have
    /// [`GRACE`].
    fn ask<T>(&self, ask: impl Fn(Answer<T>) -> Ask) -> Vec<Option<Result<T, DriveError>>> {
        self.ask_within(self.answer_max, ask)
    }

    fn ask_within<T>(
        &self,
        within: Duration,
        ask: impl Fn(Answer<T>) -> Ask,
    ) -> Vec<Option<Result<T, DriveError>>> {
        let asks = |answer: &Answer<T>| {
            let all = (0..self.drives.len()).map(|at| (at, ask(answer.clone())));
            all.collect()
        };
        self.gather(within, Some(GRACE), asks)
    }

    /// Asks some tables, by their places. `grace`: how long the others may take when more than half of those have answered.
    fn gather<T>(
        &self,
        within: Duration,
        grace: Option<Duration>,
        asks: impl FnOnce(&Answer<T>) -> Vec<(usize, Ask)>,
    ) -> Vec<Option<Result<T, DriveError>>> {
        let (sender, answers) = channel();
        let asks = asks(&sender);
        let asked = asks.len();
        for (at, ask) in asks {
            // One that has so much to do does not answer in time.
            let _ = self.drives[at].1.try_send(ask);
        }
        drop(sender);
        let mut all: Vec<Option<Result<T, DriveError>>> = Vec::new();
        all.resize_with(self.drives.len(), || None);
        let mut deadline = Instant::now() + within;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match answers.recv_timeout(left) {
                Ok((at, answer)) => all[at] = Some(answer),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return all,
            }
            let good = all.iter().flatten().filter(|answer| answer.is_ok()).count();
            if let Some(grace) = grace.filter(|_| good * 2 > asked) {
                deadline = deadline.min(Instant::now() + grace);
            }
        }
    }

    /// What the tables say; an error of the first one if too few say anything.
    fn look(&self) -> Result<Vec<Option<Vec<TableEntry>>>, DriveError> {
        let seen = self.tables()?;
        let entries = seen.into_iter().map(|seen| Some(seen?.entries));
        Ok(entries.collect())
    }

    fn tables(&self) -> Result<Vec<Option<TableSeen>>, DriveError> {
        let mut errors = Vec::new();
        let seen = self.ask(Ask::Look).into_iter().map(|answer| {
            let answer = answer?.map_err(|error| errors.push(error));
            answer.ok()
        });
        let seen: Vec<Option<TableSeen>> = seen.collect();
        let answered = errors
            .iter()
            .filter(|error| error.kind() != ErrorKind::Unreachable);
        let all_answered = answered.count() + seen.iter().flatten().count() == seen.len();
        self.deciding(seen).ok_or_else(|| {
            let worst = self.worst(errors.into_iter());
            match all_answered {
                true => worst,
                // As long as one does not answer, waiting may mend it.
                false => DriveError::new(ErrorKind::Unreachable, worst.drive(), worst.message()),
            }
        })
    }

    /// The answers that count, if they are enough.
    fn deciding<T>(&self, answers: Vec<Option<T>>) -> Option<Vec<Option<T>>> {
        let by = self.deciding.lock().unwrap_or_else(PoisonError::into_inner);
        deciding(answers, by.as_ref(), Instant::now())
    }

    /// For some seconds these drives decide where half of all do not answer.
    pub fn decide_by(&self, holders: &Holders) {
        let drives: Vec<&str> = self.drives().collect();
        let by = Deciding::new(holders, &drives, Instant::now());
        *self.deciding.lock().unwrap_or_else(PoisonError::into_inner) = Some(by);
    }

    /// Has an entry with these drives too, as long as they are named: the pool has got them since this node was started, and other nodes
    /// may ask them instead of drives that it has lost.
    pub fn enter_also(&self, drives: &[RemoteAddress]) {
        let Some(reactor) = &self.reactor else {
            return;
        };
        let mut beside = self.beside.lock().unwrap_or_else(PoisonError::into_inner);
        let names: Vec<String> = drives.iter().map(ToString::to_string).collect();
        beside.retain(|(name, _)| names.contains(name));
        for (name, address) in names.iter().zip(drives) {
            let mut known = self.drives.iter().chain(beside.iter());
            if known.all(|(known, _)| known != name) {
                let at = self.drives.len();
                let address = address.clone();
                beside.push(self.tables.begin(at, address, &self.own, &reactor.handle()));
            }
        }
    }

    /// The addresses of its drives.
    pub fn drives(&self) -> impl Iterator<Item = &str> {
        self.drives.iter().map(|(name, _)| name.as_str())
    }

    /// Why drives did not answer: what cannot be mended by waiting is told first.
    fn worst(&self, errors: impl Iterator<Item = DriveError>) -> DriveError {
        let worst = errors.min_by_key(|error| error.kind() == ErrorKind::Unreachable);
        worst.unwrap_or_else(|| self.too_few(TooFew))
    }

    fn too_few(&self, TooFew: TooFew) -> DriveError {
        let text = "half of the pool's drives or more do not answer in time: see to their sleds";
        DriveError::new(ErrorKind::Unreachable, self.drive(), text)
    }

    /// Whether this node reaches half of the drives or more, or of those that hold the metadata: as long as it does, it can serve the
    /// pool.
    #[must_use]
    pub fn reaches(&self) -> bool {
        let seen = self.ask(Ask::Look);
        let seen: Vec<_> = seen.into_iter().map(|seen| seen?.ok()).collect();
        let answered = seen.iter().flatten().count();
        let by = self.deciding.lock().unwrap_or_else(PoisonError::into_inner);
        let by = by.as_ref();
        answered * 2 >= self.drives.len() || by.is_some_and(|by| by.is_half(&seen, Instant::now()))
    }

    /// Who owns the pool.
    ///
    /// # Errors
    /// Too few drives answer.
    pub fn owner(&self) -> Result<Ownership, DriveError> {
        let tables = self.look()?;
        let seen = votes::ownership(&tables, self.own.node, &self.own.process());
        seen.map_err(|few| self.too_few(few))
    }

    /// The latest epoch in which a node opened the pool that told the others of it; 0 if none is known.
    ///
    /// # Errors
    /// Too few drives answer.
    pub fn last_epoch(&self) -> Result<u32, DriveError> {
        let epoch = votes::last_epoch(&self.look()?);
        epoch.map_err(|few| self.too_few(few))
    }

    /// The other nodes that keep their entries.
    ///
    /// # Errors
    /// Too few drives answer.
    pub fn others(&self) -> Result<Vec<OtherNode>, DriveError> {
        let others = votes::others(&self.look()?, self.own.node);
        others.map_err(|few| self.too_few(few))
    }

    /// Tells the others what this node does with the pool.
    ///
    /// # Errors
    /// Too few drives answer. They are told as soon as they do.
    pub fn set_state(&self, state: NodeState) -> Result<(), DriveError> {
        self.own.set_state(state);
        self.tell()
    }

    /// Says that this node takes the pool, unless another one does; whether that is so. Of two that do it at the same time, one or
    /// none takes it.
    ///
    /// # Errors
    /// Too few drives answer.
    pub fn begin_to_take(&self) -> Result<bool, DriveError> {
        let before = self.own.state();
        let is_first = self
            .set_state(NodeState::Takes(before.epoch()))
            .and_then(|()| self.owner())
            .map(|owner| !matches!(owner, Ownership::Owned(_)));
        if !matches!(is_first, Ok(true)) {
            self.own.set_state(before);
            // They are told soon in any case.
            let _ = self.tell();
        }
        is_first
    }

    /// Says that this node did not take the pool. If it opened it, others have to know in which epoch.
    pub fn end_to_take(&self) {
        let state = match self.own.state().epoch() {
            0 => NodeState::Standby,
            epoch => NodeState::Left(epoch),
        };
        // They are told soon in any case.
        let _ = self.set_state(state);
    }

    /// Says something of itself to the other nodes, in at most 3,700 bytes.
    ///
    /// # Errors
    /// It is too long, or too few drives answer.
    pub fn say(&self, text: &[u8]) -> Result<(), DriveError> {
        if text.len() > SAYS_BYTES_MAX {
            let text = format!("a node says at most {SAYS_BYTES_MAX} bytes of itself");
            return Err(DriveError::new(ErrorKind::Invalid, self.drive(), text));
        }
        self.own.say(text);
        self.tell()
    }

    fn tell(&self) -> Result<(), DriveError> {
        let told = self.ask(Ask::Renew);
        let told = told.into_iter().map(|told| told?.ok()).collect();
        let told = self.deciding(told);
        told.map(drop).ok_or_else(|| self.too_few(TooFew))
    }

    /// Describes the pool for other nodes, as its owner.
    ///
    /// # Errors
    /// It is too long, this node does not serve the pool, or too few drives answer.
    pub fn describe(&self, pool: Uuid, text: &[u8]) -> Result<(), DriveError> {
        if text.len() > DESCRIPTION_BYTES_MAX {
            let text = format!(
                "{} bytes are said of its pool, and at most {DESCRIPTION_BYTES_MAX} can be",
                text.len()
            );
            return Err(DriveError::new(ErrorKind::Invalid, self.drive(), text));
        }
        let NodeState::Serves(epoch) = self.own.state() else {
            let text = "this node does not serve the pool that it describes";
            return Err(DriveError::new(ErrorKind::InUse, self.drive(), text));
        };
        let number = self.descriptions.fetch_add(1, Ordering::Relaxed) + 1;
        self.own.describe(Description {
            pool,
            revision: u64::from(epoch) << 32 | u64::from(number),
            text: text.to_vec(),
        });
        self.tell()
    }

    /// What the owner says of the pool, if that is another revision than the one that is known.
    ///
    /// # Errors
    /// Too few drives answer.
    pub fn description(&self, known: Option<&[u8]>) -> Result<Option<Described>, DriveError> {
        let tables = self.tables()?;
        let newest = tables.iter().flatten().map(|seen| seen.revision).max();
        let newest = newest.unwrap_or(0);
        if newest == 0 || known == Some(&newest.to_le_bytes()[..]) {
            return Ok(None);
        }
        let read = self.ask(Ask::Description);
        let read = read.into_iter().flatten().filter_map(|read| read.ok()?);
        let read = read.max_by_key(|description| description.revision);
        Ok(read.map(|description| Described {
            revision: description.revision.to_le_bytes().to_vec(),
            text: description.text,
        }))
    }
}

/// The machine of the node that has the pool with the drive at this address, if one lives that is not this process. On a reactor.
///
/// # Errors
/// Its target does not answer, or has no node tables.
pub async fn owner_at(
    drive: RemoteAddress,
    options: NodeOptions,
) -> Result<Option<String>, DriveError> {
    let table = NodeTable::new(drive, options.host, options.keys, options.table);
    let own = Process::own();
    let mut entries = table.look().await?.entries;
    entries.retain(|entry| Said::parse(&entry.text).is_some_and(|said| said.process != own));
    Ok(
        match votes::ownership(&[Some(entries)], Uuid::nil(), &own) {
            Ok(Ownership::Owned(machine)) => Some(machine),
            Ok(_) | Err(TooFew) => None,
        },
    )
}

/// The nodes of the pool with these drives, for who is none of them. Blocks.
///
/// # Errors
/// As of [`Node::join`].
pub fn nodes_of(
    drives: Vec<RemoteAddress>,
    options: NodeOptions,
) -> Result<Vec<OtherNode>, DriveError> {
    Node::begin(drives, options, Process::own())?.others()
}

impl Drop for Node {
    /// Says that this node ends, where it can be said soon.
    fn drop(&mut self) {
        if let NodeState::Serves(epoch) = self.own.state() {
            self.own.set_state(NodeState::Left(epoch));
        }
        let beside = self.beside.lock().unwrap_or_else(PoisonError::into_inner);
        let beside = std::mem::take(&mut *{ beside });
        for (_, asks) in &beside {
            let (answer, _) = channel();
            // Best effort: its lease ends.
            let _ = asks.try_send(Ask::Leave(answer));
        }
        let _ = self.ask_within(LEAVE_MAX, Ask::Leave);
        drop(beside);
        self.drives.clear();
        if let Some(reactor) = self.reactor.take() {
            reactor.stop_and_join();
        }
    }
}
