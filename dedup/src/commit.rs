//! Group commit: the records of many commands leave as one append to the journal.
//!
//! Guarantees: a record is appended and installed exactly once, or its references are given back and
//! its command gets an error; records of overlapping ranges are appended in the order of their range
//! locks (a guard travels with its record until the mapping is in place); dropping a command's future
//! changes neither.
//!
//! The first command that finds nobody leading leads: it lets the others of this turn queue up, then
//! appends for all.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use meta::{JournalError, Record};

use crate::engine::Shared;
use crate::range_lock::RangeGuard;
use crate::wait::{Slot, lock, yield_once};
use crate::{EngineError, Result};

/// Records per append at most.
const GROUP_MAX: usize = 256;

/// Checkpoints that one group waits for when the journal is full.
const ROOM_ATTEMPTS: u32 = 4;

/// Records that wait for the next append.
#[derive(Default)]
pub(crate) struct CommitQueue {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    pending: VecDeque<Request>,
    leading: bool,
}

struct Request {
    record: Record,
    guard: Option<RangeGuard>,
    done: Arc<Slot<Message>>,
}

impl Request {
    /// Lets the next holder of the range go on, then tells the command.
    fn finish(self, result: Result<u64>) {
        drop(self.guard);
        self.done.set(Message::Done(result));
    }
}

enum Message {
    /// The record is appended and installed, or it failed.
    Done(Result<u64>),
    /// The leader went away: lead.
    Lead,
}

enum Progress {
    /// Nothing is pending, and nobody leads.
    Drained,
    /// The journal has no room for the first record.
    Full,
}

impl Shared {
    /// Appends a record and makes its changes; returns its sequence number. On an error the references
    /// that the record holds are given back. `guard` is held until the changes are in place.
    pub(crate) async fn commit(
        self: &Arc<Self>,
        record: Record,
        guard: Option<RangeGuard>,
    ) -> Result<u64> {
        let done = Slot::new();
        let leads = {
            let mut inner = lock(&self.commits.inner);
            inner.pending.push_back(Request {
                record,
                guard,
                done: done.clone(),
            });
            !std::mem::replace(&mut inner.leading, true)
        };
        let waiter = Waiter { shared: self, done };
        if leads {
            self.lead(true).await;
        }
        loop {
            match waiter.done.take().await {
                Message::Done(result) => return result,
                Message::Lead => self.lead(false).await,
            }
        }
    }

    /// Appends what nobody waits for any more (its commands were dropped).
    pub(crate) async fn commit_orphans(self: &Arc<Self>) {
        let leads = {
            let mut inner = lock(&self.commits.inner);
            !inner.pending.is_empty() && !std::mem::replace(&mut inner.leading, true)
        };
        if leads {
            self.lead(false).await;
        }
    }

    async fn lead(self: &Arc<Self>, gather: bool) {
        let mut leader = Leader {
            shared: self,
            leads: true,
        };
        if gather {
            yield_once().await;
        }
        let mut attempts = 0;
        loop {
            match self.append_pending() {
                Progress::Drained => break,
                Progress::Full => {
                    attempts += 1;
                    let result = self.checkpoint().await;
                    if let Err(error) = result {
                        self.fail_pending(&EngineError::unavailable(format!(
                            "the journal is full, and its changes cannot be stored: {}",
                            error.message
                        )));
                    } else if attempts >= ROOM_ATTEMPTS {
                        self.fail_pending(&EngineError::unavailable(
                            "the journal stays full; it is too small for this load, retry later",
                        ));
                    }
                }
            }
        }
        leader.leads = false;
    }

    /// Appends and installs what is pending, group after group. Nothing in here waits.
    fn append_pending(&self) -> Progress {
        let mut group_max = GROUP_MAX;
        loop {
            let mut group: Vec<Request> = {
                let mut inner = lock(&self.commits.inner);
                if inner.pending.is_empty() {
                    inner.leading = false;
                    return Progress::Drained;
                }
                let count = group_max.min(inner.pending.len());
                inner.pending.drain(..count).collect()
            };
            let records: Vec<Record> = group
                .iter_mut()
                .map(|request| std::mem::replace(&mut request.record, Record::Durable { upto: 0 }))
                .collect();
            match self.append_group(&records) {
                Ok(first) => {
                    for (sequence, request) in (first..).zip(group) {
                        request.finish(Ok(sequence));
                    }
                    group_max = GROUP_MAX;
                }
                Err(error) if is_size(&error) && (group.len() > 1 || error.is_full()) => {
                    group_max = group.len().div_ceil(2);
                    let is_alone = group.len() == 1;
                    let mut inner = lock(&self.commits.inner);
                    for (mut request, record) in group.into_iter().zip(records).rev() {
                        request.record = record;
                        inner.pending.push_front(request);
                    }
                    if is_alone {
                        return Progress::Full;
                    }
                }
                Err(error) => self.fail_group(group, &records, &error),
            }
        }
    }

    /// One append; its changes are made before anyone else can append.
    fn append_group(&self, records: &[Record]) -> std::result::Result<u64, JournalError> {
        let mut journal = lock(&self.journal);
        let appended = journal.append(records)?;
        let mut state = lock(&self.state);
        state.last_change = appended.last;
        for (sequence, record) in (appended.first..).zip(records) {
            state.install(record);
            state.recent.push_back((sequence, record.clone()));
        }
        Ok(appended.first)
    }

    fn fail_group(&self, group: Vec<Request>, records: &[Record], error: &JournalError) {
        let failure = {
            let mut state = lock(&self.state);
            for record in records {
                state.undo(record);
            }
            if is_size(error) {
                EngineError::internal(format!("a record does not fit the journal: {error}"))
            } else {
                // What the journal holds is not known any more: only opening it again can tell.
                state.make_read_only(error.to_string());
                EngineError::unavailable(error.to_string())
            }
        };
        for request in group {
            request.finish(Err(failure.clone()));
        }
    }

    fn fail_pending(&self, error: &EngineError) {
        let failed: Vec<Request> = lock(&self.commits.inner).pending.drain(..).collect();
        {
            let mut state = lock(&self.state);
            for request in &failed {
                state.undo(&request.record);
            }
        }
        for request in failed {
            request.finish(Err(error.clone()));
        }
    }

    /// The leader goes away without having finished: append what there is, or let another one lead.
    fn abdicate(&self) {
        if let Progress::Full = self.append_pending() {
            let mut inner = lock(&self.commits.inner);
            let heir = inner
                .pending
                .iter()
                .find(|request| Arc::strong_count(&request.done) > 1);
            match heir.map(|request| request.done.clone()) {
                Some(done) => {
                    drop(inner);
                    done.set(Message::Lead);
                }
                None => inner.leading = false,
            }
        }
    }
}

/// Whether the error is about room: nothing was written.
fn is_size(error: &JournalError) -> bool {
    matches!(
        error,
        JournalError::Full { .. } | JournalError::TooLarge { .. }
    )
}

struct Leader<'a> {
    shared: &'a Shared,
    leads: bool,
}

impl Drop for Leader<'_> {
    fn drop(&mut self) {
        if self.leads {
            self.shared.abdicate();
        }
    }
}

/// A command that waits for its record; passes leadership on if it is dropped just then.
struct Waiter<'a> {
    shared: &'a Shared,
    done: Arc<Slot<Message>>,
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        if let Some(Message::Lead) = self.done.try_take() {
            self.shared.abdicate();
        }
    }
}
