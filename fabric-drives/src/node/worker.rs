//! The task that keeps a node's entry in the table of one drive, and asks that table.
//!
//! Guarantees: an entry is renewed before anything else is asked, when it is time; who asks about a drive that did not answer last is
//! told so at once.

use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use drives::{DriveError, ErrorKind};
use reactor::sync::queue::Receiver;

use super::entry::NodeState;
use super::own::Own;
use crate::node_table::{NodeTable, TableDescription, TableSeen};

/// An entry is renewed so many times while its lease lasts.
const RENEWALS: u32 = 4;

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
}

pub(super) struct Worker {
    pub(super) at: usize,
    pub(super) table: NodeTable,
    pub(super) own: Arc<Own>,
    pub(super) lease: Duration,
    pub(super) asks: Receiver<Ask>,
    /// Why it did not answer last.
    pub(super) silent: Option<String>,
    /// The revision of the description that it has of this node.
    pub(super) described: Option<u64>,
    /// Another node has the number; that is told once.
    pub(super) is_others: bool,
}

impl Worker {
    /// Works until nobody asks any more.
    pub(super) async fn run(mut self) {
        let mut next = Instant::now();
        loop {
            let left = next.saturating_duration_since(reactor::now());
            if left.is_zero() {
                self.renew_in_time().await;
                next = reactor::now() + self.lease / RENEWALS;
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
                    Ok(()) => self.table.look().await,
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
        }
    }

    fn check(&self) -> Result<(), DriveError> {
        match &self.silent {
            None => Ok(()),
            Some(why) => Err(DriveError::new(
                ErrorKind::Unreachable,
                self.table.name(),
                why.clone(),
            )),
        }
    }

    fn noted<T>(&mut self, answered: Result<T, DriveError>) -> Result<T, DriveError> {
        match &answered {
            Ok(_) => self.silent = None,
            Err(error) => {
                // What it had may be gone when it answers again.
                self.described = None;
                if self.silent.is_none() {
                    tracing::warn!(%error, "the drive's node table cannot be used");
                }
                self.silent = Some(error.message().to_owned());
            }
        }
        answered
    }

    async fn renew_in_time(&mut self) {
        let was_silent = self.silent.is_some();
        let kept = self.renew().await;
        if self.noted(kept).is_ok() && was_silent {
            tracing::info!(
                drive = self.table.name(),
                "the drive's node table can be used again"
            );
        }
    }

    async fn renew(&mut self) -> Result<bool, DriveError> {
        let Some((number, text)) = self.own.entry() else {
            return self.table.look().await.map(|_| true);
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
