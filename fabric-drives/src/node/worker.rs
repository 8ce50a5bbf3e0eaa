//! The task that keeps a node's entry in the table of one drive, and asks that table.
//!
//! Guarantees: an entry is renewed before anything else is asked, when it is time, also while many tables are looked at; who asks about a
//! drive that did not answer last is told so at once; a table that has an older list of drained machines than this node knows gets that
//! one, as after a start of its sled.

use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use drives::{DriveError, ErrorKind};
use reactor::sync::queue::Receiver;

use super::entry::NodeState;
use super::own::Own;
use super::survey::SeenTable;
use crate::drained::Drained;
use crate::node_table::{NodeTable, TableDescription, TableSeen};

/// An entry is renewed so many times while its lease lasts.
const RENEWALS: u32 = 4;

/// So many tables are looked at between two looks at the clock.
const LOOKED_AT: usize = 8;

/// How long a lease is that is given up, where what the entry says is to stay.
const OVER: Duration = Duration::from_millis(1);

/// Where an answer goes: the drive's place among those of the node, and what its table says.
pub(super) type Answer<T> = Sender<(usize, Result<T, DriveError>)>;

/// What is asked of a table.
pub(super) enum Ask {
    /// All entries.
    Look(Answer<TableSeen>),
    /// That it has what this node says now. False: another node has the number.
    Renew(Answer<bool>),
    /// That this node has that number no more, which it did not get with all drives.
    GiveUp(u16, Answer<()>),
    /// That this node is no more.
    Leave(Answer<()>),
    /// The description.
    Description(Answer<Option<TableDescription>>),
    /// The tables of all namespaces of the drive's sled.
    Survey(Answer<Vec<SeenTable>>),
    /// That tables of the sled have this list in place of the revision that is named. False: one has another revision, or none was named.
    Drain {
        drained: Drained,
        replaces: Vec<(u32, u64)>,
        answer: Answer<bool>,
    },
}

pub(super) struct Worker {
    pub(super) at: usize,
    pub(super) table: NodeTable,
    pub(super) own: Arc<Own>,
    pub(super) lease: Duration,
    pub(super) asks: Receiver<Ask>,
    /// Why it did not answer last.
    pub(super) silent: Option<(ErrorKind, String)>,
    /// That is not told any more before it has answered once.
    pub(super) is_told: bool,
    /// The revision of the description that it has of this node.
    pub(super) described: Option<u64>,
    /// Another node has the number; that is told once.
    pub(super) is_others: bool,
    /// Its list of drained machines and that list's revision, as they were seen last.
    pub(super) drained: Option<(u64, Drained)>,
    /// When its entry is renewed next.
    pub(super) next: Instant,
}

impl Worker {
    /// Works until nobody asks any more.
    pub(super) async fn run(mut self) {
        loop {
            let left = self.next.saturating_duration_since(reactor::now());
            if left.is_zero() {
                self.renew_in_time().await;
                continue;
            }
            match reactor::timeout(left, self.asks.recv()).await {
                Ok(Some(ask)) => self.answer(ask).await,
                Ok(None) => return,
                Err(_) => {}
            }
        }
    }

    /// An answer that nobody waits for any more is dropped.
    async fn answer(&mut self, ask: Ask) {
        let at = self.at;
        match ask {
            Ask::Look(answer) => {
                let seen = match self.check() {
                    Ok(()) => self.look().await,
                    Err(silent) => Err(silent),
                };
                let _ = answer.send((at, self.noted(seen)));
            }
            Ask::Renew(answer) => {
                let kept = match self.check() {
                    Ok(()) => self.renew().await,
                    Err(silent) => Err(silent),
                };
                let _ = answer.send((at, self.noted(kept)));
            }
            Ask::GiveUp(number, answer) => {
                let given = self.table.give_up(number, self.own.node).await;
                let _ = answer.send((at, self.noted(given)));
            }
            Ask::Leave(answer) => {
                let left = self.leave().await;
                let _ = answer.send((at, left));
            }
            Ask::Description(answer) => {
                let read = match self.check() {
                    Ok(()) => self.table.description().await,
                    Err(silent) => Err(silent),
                };
                let _ = answer.send((at, self.noted(read)));
            }
            Ask::Survey(answer) => {
                let seen = match self.check() {
                    Ok(()) => self.survey().await,
                    Err(silent) => Err(silent),
                };
                let _ = answer.send((at, self.noted_of_sled(seen)));
            }
            Ask::Drain {
                drained,
                replaces,
                answer,
            } => {
                let done = match self.check() {
                    Ok(()) => self.drain(&drained, &replaces).await,
                    Err(silent) => Err(silent),
                };
                let _ = answer.send((at, self.noted_of_sled(done)));
            }
        }
    }

    async fn look(&mut self) -> Result<TableSeen, DriveError> {
        let seen = self.table.look().await?;
        self.drained = Some((seen.drained_revision, seen.drained.clone()));
        self.own.note_drained(&seen.drained);
        Ok(seen)
    }

    async fn survey(&mut self) -> Result<Vec<SeenTable>, DriveError> {
        let mut tables = Vec::new();
        for namespaces in self.table.namespaces().await?.chunks(LOOKED_AT) {
            if reactor::now() >= self.next {
                self.renew_in_time().await;
            }
            for (namespace, seen) in self.table.look_at(namespaces).await? {
                self.own.note_drained(&seen.drained);
                tables.push(SeenTable {
                    sled: self.table.sled().to_owned(),
                    namespace,
                    seen,
                });
            }
        }
        Ok(tables)
    }

    async fn drain(
        &mut self,
        drained: &Drained,
        replaces: &[(u32, u64)],
    ) -> Result<bool, DriveError> {
        let mut all = true;
        for (namespace, replaces) in replaces {
            all &= self.table.drain(*namespace, *replaces, drained).await?;
        }
        Ok(all)
    }

    fn check(&self) -> Result<(), DriveError> {
        match &self.silent {
            None => Ok(()),
            Some((kind, why)) => Err(DriveError::new(*kind, self.table.name(), why.clone())),
        }
    }

    fn noted<T>(&mut self, answered: Result<T, DriveError>) -> Result<T, DriveError> {
        match &answered {
            Ok(_) => (self.silent, self.is_told) = (None, false),
            Err(error) => {
                // What it had may be gone when it answers again.
                self.described = None;
                self.drained = None;
                if self.silent.is_none() && !self.is_told {
                    tracing::warn!(%error, "the drive's node table cannot be used");
                }
                self.silent = Some((error.kind(), error.message().to_owned()));
            }
        }
        answered
    }

    /// What was asked of other namespaces too: what is wrong with those is not of this drive.
    fn noted_of_sled<T>(&mut self, answered: Result<T, DriveError>) -> Result<T, DriveError> {
        match answered {
            Err(error) if error.kind() != ErrorKind::Unreachable => Err(error),
            answered => self.noted(answered),
        }
    }

    async fn renew_in_time(&mut self) {
        let was_silent = self.silent.is_some();
        let kept = self.renew().await;
        self.next = reactor::now() + self.lease / RENEWALS;
        if self.noted(kept).is_ok() && was_silent {
            tracing::info!(
                drive = self.table.name(),
                "the drive's node table can be used again"
            );
        }
    }

    async fn renew(&mut self) -> Result<bool, DriveError> {
        let Some((number, text)) = self.own.entry() else {
            return self.look().await.map(|_| true);
        };
        let kept = self
            .table
            .keep(number, self.own.node, self.lease, &text)
            .await?;
        if !kept && !std::mem::replace(&mut self.is_others, true) {
            tracing::warn!(
                drive = self.table.name(),
                number,
                "another node has the number of this one: a host that is attached to both may refuse one of them"
            );
        }
        self.is_others = !kept;
        if let Some(description) = self.own.description()
            && self.described != Some(description.revision)
        {
            let (pool, revision) = (description.pool, description.revision);
            // An older one than that which is there: another node has the pool, and the drives tell this one.
            let _ = self
                .table
                .describe(pool, revision, &description.text)
                .await?;
            self.described = Some(revision);
        }
        let all = self.own.drained();
        if let Some((revision, there)) = &self.drained
            && *there != all
        {
            // Somebody else changes it too: the next look tells what it is then.
            let (namespace, revision) = (self.table.namespace(), *revision);
            self.drained = None;
            let _ = self.table.drain(namespace, revision, &all).await?;
        }
        Ok(kept)
    }

    async fn leave(&mut self) -> Result<(), DriveError> {
        self.check()?;
        let Some((number, text)) = self.own.entry() else {
            return Ok(());
        };
        match self.own.state() {
            NodeState::Left(_) => {
                let kept = self.table.keep(number, self.own.node, OVER, &text).await;
                kept.map(drop)
            }
            _ => self.table.give_up(number, self.own.node).await,
        }
    }
}
