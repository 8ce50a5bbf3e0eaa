//! A process on a node: it waits until the pool has no owner, takes it over, and serves it until it ends. What is said and decided is
//! `node/votes.rs` and `node/deciding.rs`; the order of things mirrors `target/src/standby.rs` (`take`, `prepare_folder`),
//! `target/src/import.rs` (`Source`) and `target/src/pool.rs`, labels `dedup/src/log/labels.rs`.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::{Duration, Instant};

use drives::nodes::{NODES_MAX, Ownership, Process};
use nvme::node_table::NodeEntries;
use rand::Rng;
use reservations::HostId;
use uuid::Uuid;

use super::drives::{Drives, Failed, Place};
use super::media::{Block, Folder, Importable, Label, Read, Record};
use super::metadata::Metadata;
use super::world::{Answer, Ask, Ms, Op, Sim};
use super::{Broken, is_broken};
use crate::Claim;
use crate::node::deciding::{Deciding, Holders, deciding};
use crate::node::entry::{NodeState, Said};
use crate::node::votes;
use crate::node_table::TableEntry;

const LEASE: Ms = 1500;
const RENEWAL: Ms = 500;
const LOOK: Ms = 400;
/// How long a standby leaves the pool to each one before it (target/src/nodes/turn.rs).
const TURN: Ms = 500;
/// How long a table may take.
const TABLE: Ms = 250;
/// How often an owner looks whether it was shut out.
const SUCCESSORS: Ms = 1000;
/// How long a process that gave the pool away leaves it to others.
const YIELD: Ms = 3000;

/// See the module.
pub(super) struct Member {
    place: Place,
    node: Uuid,
    process: Process,
    number: Cell<Option<u16>>,
    state: Cell<NodeState>,
    by: RefCell<Option<Deciding>>,
    names: Vec<String>,
    /// Sleds that did not answer last.
    silent: RefCell<BTreeSet<usize>>,
    /// As they are open now: each attempt to take the pool opens them anew.
    drives: RefCell<Rc<Drives>>,
    /// Somebody wants it to give the pool away.
    pub(super) is_to_leave: Cell<bool>,
}

/// From whom the pool is taken.
#[derive(Clone, Copy, PartialEq, Eq)]
enum From {
    Nobody,
    Owner,
}

impl Member {
    /// Starts a process. `identity` tells it from others of its machine.
    pub(super) fn start(sim: &Sim, node: usize, identity: u32) -> Rc<Self> {
        let process = sim.with(|world| {
            let process = world.truth.next_process();
            world.machines[node].process = Some(process);
            process
        });
        let place = Place::new(sim, node, process);
        let drives = Drives::new(&place);
        let text = format!("n{node} boot-{node}/pid:1 {identity} {identity}");
        let member = Rc::new(Self {
            node: Uuid::from_u128(process.into()),
            process: Process::parse(&text).expect("a process"),
            number: Cell::new(None),
            state: Cell::new(NodeState::Standby),
            by: RefCell::default(),
            names: drives
                .all()
                .iter()
                .map(|drive| format!("d{drive}"))
                .collect(),
            silent: RefCell::default(),
            drives: RefCell::new(drives),
            place,
            is_to_leave: Cell::new(false),
        });
        let (waits, keeps, looks) = (member.clone(), member.clone(), member.clone());
        sim.spawn(node, process, async move { waits.wait().await });
        sim.spawn(node, process, async move { keeps.keep().await });
        sim.spawn(
            node,
            process,
            async move { looks.look_for_successors().await },
        );
        member
    }

    fn drives(&self) -> Rc<Drives> {
        self.drives.borrow().clone()
    }

    fn note(&self, what: impl FnOnce() -> String) {
        let process = self.place.process;
        let told = |world: &mut super::world::World| {
            world.tell(|| format!("process {process}: {}", what()))
        };
        self.place.sim.with(told);
    }

    fn coin(&self, of: u64) -> bool {
        self.place.sim.with(|world| world.coin(of))
    }

    /// What nodes guess is wrong now and then, as long as anything fails.
    fn lies(&self) -> bool {
        self.place.sim.with(|world| !world.is_calm && world.coin(4))
    }

    /// The clock of this machine begins somewhere.
    fn now(&self) -> Instant {
        let now = self.place.sim.with(|world| world.now);
        super::world::beginning() + Duration::from_millis(now)
    }

    /// Asks all tables; those that did not answer last only if that is said (`node/worker.rs`).
    async fn tables(&self, op: impl Fn() -> Op, is_renewal: bool) -> Vec<Option<Answer>> {
        let asked = self.drives().all().into_iter();
        let asked: Vec<usize> = asked
            .filter(|sled| is_renewal || !self.silent.borrow().contains(sled))
            .collect();
        let asks = asked.iter().map(|sled| Ask {
            sled: *sled,
            host: HostId::nil(),
            boot: None,
            op: op(),
        });
        let answered = self.place.gather(asks.collect(), TABLE).await;
        let mut answers: Vec<Option<Answer>> = self.names.iter().map(|_| None).collect();
        let mut silent = self.silent.borrow_mut();
        for (sled, answer) in asked.into_iter().zip(answered) {
            match answer {
                Some(_) => silent.remove(&sled),
                None => silent.insert(sled),
            };
            answers[sled] = answer;
        }
        answers
    }

    fn deciding<T>(&self, answers: Vec<Option<T>>) -> Option<Vec<Option<T>>> {
        deciding(answers, self.by.borrow().as_ref(), self.now())
    }

    /// What the tables say, if they say enough.
    async fn look(&self) -> Option<Vec<Option<Vec<TableEntry>>>> {
        let seen = self.tables(|| Op::List, false).await.into_iter();
        let seen = seen.map(|answer| match answer {
            Some(Answer::Entries(entries)) => Some(read(entries)),
            _ => None,
        });
        self.deciding(seen.collect())
    }

    /// As of `OnSleds`: where half of all do not answer, those with the metadata decide.
    async fn owner(&self) -> Option<Ownership> {
        if let Some(answers) = self.look().await {
            return votes::ownership(&answers, self.node, &self.process).ok();
        }
        let read = self.drives().read(&self.drives().all()).await;
        let found = Importable::look(&read)?;
        if found.known.len() * 2 <= found.members {
            return None;
        }
        let answered = found.known.iter().map(|drive| self.names[*drive].clone());
        let holders = Holders {
            answered: answered.collect(),
            all: found.members,
        };
        let names: Vec<&str> = self.names.iter().map(String::as_str).collect();
        *self.by.borrow_mut() = Some(Deciding::new(&holders, &names, self.now()));
        let answers = self.look().await?;
        votes::ownership(&answers, self.node, &self.process).ok()
    }

    /// Tells all tables what this node says; whether enough heard it, and whether another node has the number.
    async fn tell(&self, is_renewal: bool) -> (bool, bool) {
        let Some(number) = self.number.get() else {
            return (false, false);
        };
        let said = Said {
            process: self.process.clone(),
            state: self.state.get(),
            says: Vec::new(),
        };
        let (text, node) = (Rc::new(said.to_bytes()), self.node.into_bytes());
        let keep = || Op::Keep {
            number,
            node,
            lease: LEASE,
            text: text.clone(),
        };
        let kept = self.tables(keep, is_renewal).await;
        let is_met = kept
            .iter()
            .any(|kept| matches!(kept, Some(Answer::Refused(_))));
        let kept = kept.into_iter();
        let kept = kept.map(|kept| matches!(kept, Some(Answer::Done)).then_some(()));
        (self.deciding(kept.collect()).is_some(), is_met)
    }

    async fn set_state(&self, state: NodeState) -> bool {
        self.state.set(state);
        self.tell(false).await.0
    }

    async fn find_number(&self) {
        loop {
            let _ = self.owner().await;
            let free = self.look().await;
            let free = free.and_then(|answers| votes::free_numbers(&answers, NODES_MAX).ok());
            for number in free.unwrap_or_default() {
                self.number.set(Some(number));
                let (is_told, is_met) = self.tell(false).await;
                if is_told && !is_met {
                    return;
                }
                self.number.set(None);
                let node = self.node.into_bytes();
                self.tables(|| Op::GiveUp { number, node }, false).await;
                let pause = self.place.sim.with(|world| world.rng.random_range(1..100));
                self.place.pause(pause).await;
            }
            self.place.pause(LOOK).await;
        }
    }

    /// Keeps the entry.
    async fn keep(&self) {
        loop {
            match self.number.get() {
                Some(_) => drop(self.tell(true).await),
                None => drop(self.tables(|| Op::List, true).await),
            }
            self.place.pause(RENEWAL).await;
        }
    }

    async fn look_for_successors(&self) {
        loop {
            self.place.pause(SUCCESSORS).await;
            for drive in self.drives().all() {
                self.drives().of(drive).look().await;
                if self.place.check().is_err() {
                    return self.end();
                }
            }
        }
    }

    /// The process ends, and its machine starts another one.
    fn end(&self) {
        let (node, sim) = (self.place.node, &self.place.sim);
        sim.with(|world| world.kill(node));
        super::start_later(sim, node);
    }

    async fn wait(&self) {
        self.find_number().await;
        let mut silent_since: Option<Ms> = None;
        let mut yields_until: Option<Ms> = None;
        loop {
            let seen = self.owner().await;
            self.note(|| format!("sees {seen:?}"));
            self.place.sim.with(|world| {
                let is_forgotten = world.is_calm && matches!(seen, Some(Ownership::Forgotten));
                world.truth.is_forgotten |= is_forgotten;
            });
            let now = self.place.sim.with(|world| world.now);
            let patience = LEASE + TURN * Ms::from(self.number.get().unwrap_or(0));
            let is_over = |since: Ms| now.saturating_sub(since) >= patience;
            let from = match seen {
                None => {
                    silent_since = None;
                    None
                }
                Some(Ownership::Owned(_)) => {
                    silent_since = None;
                    self.lies().then_some(From::Owner)
                }
                Some(Ownership::Left) => Some(From::Owner),
                Some(Ownership::GaveAway) => {
                    let until = *yields_until.get_or_insert(now + YIELD);
                    (now >= until).then_some(From::Owner)
                }
                Some(Ownership::Silent(_)) => {
                    let since = *silent_since.get_or_insert(now);
                    (is_over(since) || self.lies()).then_some(From::Owner)
                }
                Some(Ownership::Forgotten | Ownership::Missing) => {
                    let since = *silent_since.get_or_insert(now);
                    let from = is_over(since) || self.lies();
                    from.then(|| match self.lies() {
                        true => From::Owner,
                        false => From::Nobody,
                    })
                }
            };
            if let Some(from) = from
                && self.begin_to_take().await
            {
                self.note(|| "takes the pool".to_owned());
                let taken = self.take(from).await;
                self.note(|| format!("{taken:?}"));
                match taken {
                    Ok(()) | Err(Failed::Ends) => return self.end(),
                    Err(Failed::NotTaken) => {}
                }
                let state = match self.state.get().epoch() {
                    0 => NodeState::Standby,
                    epoch => NodeState::Left(epoch),
                };
                self.set_state(state).await;
                let pause = self
                    .place
                    .sim
                    .with(|world| world.rng.random_range(100..LOOK));
                self.place.pause(pause).await;
            }
            let more = self
                .place
                .sim
                .with(|world| world.rng.random_range(0..LOOK / 8));
            self.place.pause(LOOK + more).await;
        }
    }

    async fn begin_to_take(&self) -> bool {
        let before = self.state.get();
        let is_told = self.set_state(NodeState::Takes(before.epoch())).await;
        let is_first = match is_told {
            true => match self.owner().await {
                Some(Ownership::Owned(_)) => self.lies(),
                Some(_) => true,
                None => false,
            },
            false => false,
        };
        if !is_first {
            self.set_state(before).await;
        }
        is_first
    }

    /// Takes the pool, and serves it.
    async fn take(&self, from: From) -> Result<(), Failed> {
        self.look().await.ok_or(Failed::NotTaken)?;
        *self.drives.borrow_mut() = Drives::new(&self.place);
        let all = self.drives().all();
        let named = self.drives().read(&all).await;
        if named.is_empty() || from == From::Nobody && named.len() < all.len() {
            return Err(Failed::NotTaken);
        }
        let node = self.place.node;
        let known = self
            .place
            .sim
            .with(|world| world.machines[node].folder.clone());
        let is_newest = |named: &[Read]| {
            let newest = named.iter().map(|(_, media)| media.label).max();
            known
                .as_ref()
                .filter(|folder| Some(folder.opening()) == newest)
        };
        let mut folder = None;
        let mut claimed = Vec::new();
        if is_newest(&named).is_some() {
            claimed = self.claim(&named, from).await?;
            folder = is_newest(&claimed).cloned();
        }
        let folder = match folder {
            Some(folder) => folder,
            None => {
                let before = self.check_newest(&named, from)?;
                if claimed.is_empty() {
                    claimed = self.claim(&named, from).await?;
                }
                // The former owner may have written until then.
                match is_broken(Broken::ReadBeforeTaken) {
                    true => before.folder(),
                    false => self.check_newest(&claimed, from)?.folder(),
                }
            }
        };
        self.open(folder, claimed).await
    }

    /// Drives that this process has from now on, and what they hold.
    async fn claim(&self, named: &[Read], from: From) -> Result<Vec<Read>, Failed> {
        let claim = match from {
            From::Nobody => Claim::Again,
            From::Owner => Claim::Moved,
        };
        let mut drives = Vec::new();
        for (drive, _) in named {
            self.drives().claim(*drive, claim).await?;
            drives.push(*drive);
        }
        let read = self.drives().read(&drives).await;
        match read.len() == drives.len() {
            true => Ok(read),
            false => Err(Failed::NotTaken),
        }
    }

    fn check_newest(&self, read: &[Read], from: From) -> Result<Importable, Failed> {
        let found = Importable::look(read).ok_or(Failed::NotTaken)?;
        let is_enough = match from {
            From::Owner => found.has_majority,
            From::Nobody => !found.is_any_missing(),
        };
        if !is_enough {
            self.note(|| {
                format!(
                    "finds the metadata on {:?} of {}",
                    found.known, found.members
                )
            });
            self.place.sim.with(|world| world.truth.seen.too_few += 1);
            return Err(Failed::NotTaken);
        }
        Ok(found)
    }

    async fn open(&self, folder: Folder, claimed: Vec<Read>) -> Result<(), Failed> {
        let mut online: Vec<usize> = claimed.iter().map(|(drive, _)| *drive).collect();
        let newest = claimed.iter().map(|(_, media)| media.label).max();
        let newest = newest.unwrap_or_default();
        let epoch = newest.epoch.max(folder.opening().epoch) + 1;
        if !self.set_state(NodeState::Takes(epoch)).await {
            return Err(Failed::NotTaken);
        }
        let known = folder.opening();
        if newest.epoch > known.epoch || newest.epoch == known.epoch && newest != known {
            return Err(Failed::NotTaken);
        }
        let areas = self.drives().read(&online).await;
        let mut metadata = Metadata::open(&self.drives(), folder, &areas).await?;
        let process = self.place.process;
        if metadata.members().is_empty() {
            let node = self.place.node;
            self.place
                .sim
                .with(|world| world.truth.copies_anew = Some(node));
        }
        metadata.change(Record::Opening(epoch, process)).await?;
        let label = Label { epoch, process };
        let labels = online.iter().map(|drive| (*drive, Block::Label(label)));
        let failed = self.drives().write(labels.collect()).await?;
        if failed.len() == online.len() {
            return Err(Failed::Ends);
        }
        // Others have the data of those that failed.
        online.retain(|drive| !failed.contains(drive));
        metadata.leave(&failed).await?;
        if metadata.wants(&online) {
            metadata.join(&online).await?;
        }
        if metadata.members().is_empty() {
            return Err(Failed::Ends);
        }
        self.place
            .sim
            .with(|world| world.truth.take(process, epoch, metadata.records()));
        self.set_state(NodeState::Serves(epoch)).await;
        self.serve(metadata, epoch, online).await
    }

    async fn serve(
        &self,
        mut metadata: Metadata,
        epoch: u32,
        mut online: Vec<usize>,
    ) -> Result<(), Failed> {
        let process = self.place.process;
        loop {
            self.place.check()?;
            let write = self.place.sim.with(|world| world.truth.next_write());
            metadata.change(Record::Write(write)).await?;
            self.place.check()?;
            self.note(|| format!("acknowledges {write} on {:?}", metadata.members()));
            self.place.sim.with(|world| {
                let is_calm = world.is_calm;
                world.truth.acknowledge(process, write, is_calm);
            });
            if self.is_to_leave.get() {
                self.set_state(NodeState::Left(epoch)).await;
                self.drives().release().await;
                return Ok(());
            }
            if metadata.wants(&self.drives().all()) && self.coin(3) {
                self.bring_back(&mut online).await?;
                if metadata.wants(&online) {
                    metadata.join(&online).await?;
                }
            }
            let pause = self.place.sim.with(|world| world.rng.random_range(1..250));
            self.place.pause(pause).await;
        }
    }

    /// Drives that failed, and answer, are used again.
    async fn bring_back(&self, online: &mut Vec<usize>) -> Result<(), Failed> {
        for drive in self.drives().all() {
            let is_online = online.contains(&drive);
            let usable = match is_online {
                true => self.drives().of(drive).fence().await.is_ok(),
                // A drive that was left out is claimed as at a start.
                false => self.drives().claim(drive, Claim::Again).await.is_ok(),
            };
            self.place.check()?;
            if usable && !is_online {
                online.push(drive);
            }
        }
        Ok(())
    }
}

/// A table as it is received.
fn read(entries: NodeEntries) -> Vec<TableEntry> {
    let milliseconds = |ms: u32| Duration::from_millis(ms.into());
    let entries = entries.entries.into_iter().map(|entry| TableEntry {
        number: entry.number,
        node: Uuid::from_bytes(entry.node),
        age: milliseconds(entry.age_ms),
        lease: milliseconds(entry.lease_ms),
        text: entry.text,
    });
    entries.collect()
}
