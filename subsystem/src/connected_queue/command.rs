//! One command in flight: its data, its completion, and its entry in the error log if it fails.
//!
//! Guarantees: a command is answered exactly once. If its task dies (a bug), the queue closes, so that the host recovers
//! instead of waiting. The command identifier is free when the host reads the completion.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Instant;

use dedup::{Stage, Stopwatch};
use fabric::Fetched;
use fabric::serving::Period;
use nvme::log::{ErrorEntry, NO_LOCATION};
use nvme::{Cqe, Sqe, Status};
use reactor::Buffer;

use super::retry;
use crate::connected_queue::{ConnectedQueue, KnownVolume};
use crate::controller::waiting::Interrupted;
use crate::latency::Operation;
use crate::lock::lock;
use crate::queue::Queue;
use crate::throttle::{Pass, Throttles};
use crate::trace::TracedCommand;

/// The result of a command that succeeded.
#[derive(Default)]
pub(crate) struct Success {
    /// Dwords 0 and 1 of the completion.
    pub(crate) result: u64,
    /// Data for the host: a buffer, and how many of its bytes.
    pub(crate) data: Option<(Buffer, usize)>,
}

impl Success {
    /// With a result and no data.
    pub(crate) fn result(result: u64) -> Self {
        Self { result, data: None }
    }
}

/// A command that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Answer with a status.
    Status {
        /// The status.
        status: Status,
        /// Dwords 0 and 1 of the completion.
        result: u64,
        /// Byte of the command that is wrong, or [`NO_LOCATION`].
        location: u16,
        /// The damaged logical block, if it may be another one than the command's first.
        lba: Option<u64>,
    },
    /// Answer with a status that is no failure but the answer to a question: no entry in the error log, and no other bit
    /// of the status.
    NotThere(Status),
    /// The queue ends: no answer.
    Gone,
}

impl Fault {
    /// A wrong field: the byte offset of the field in the command goes to the error log.
    pub(crate) const fn field(status: Status, location: u16) -> Self {
        Self::Status {
            status: status.with_dnr(),
            result: 0,
            location,
            lba: None,
        }
    }

    /// The same, with this value in dword 0 of the completion.
    pub(crate) fn with_result(self, number: u64) -> Self {
        match self {
            Self::Status {
                status,
                result: _,
                location,
                lba,
            } => Self::Status {
                status,
                result: number,
                location,
                lba,
            },
            other => other,
        }
    }

    /// The same, about this logical block, if one is known.
    pub(crate) fn about(self, block: Option<u64>) -> Self {
        match self {
            Self::Status {
                status,
                result,
                location,
                lba: _,
            } => Self::Status {
                status,
                result,
                location,
                lba: block,
            },
            other => other,
        }
    }
}

impl From<Status> for Fault {
    fn from(status: Status) -> Self {
        Self::Status {
            status,
            result: 0,
            location: NO_LOCATION,
            lba: None,
        }
    }
}

impl From<Interrupted> for Fault {
    fn from(interrupted: Interrupted) -> Self {
        match interrupted {
            Interrupted::Aborted => Status::ABORT_REQUESTED.into(),
            Interrupted::QueueEnding => Self::Gone,
        }
    }
}

impl From<dedup::EngineError> for Fault {
    fn from(error: dedup::EngineError) -> Self {
        crate::errors::nvme_status(error.kind).into()
    }
}

/// How a command ends.
pub(crate) type Outcome = Result<Success, Fault>;

/// Offset of the data pointer in a command, for the error log.
const DATA_POINTER_AT: u16 = 24;

/// A command in flight, and everything that it uses.
pub(crate) struct Command<Q: Queue> {
    pub(crate) queue: Rc<ConnectedQueue<Q>>,
    /// Taken by the answer.
    capsule: Option<Q::Capsule>,
    sqe: Sqe,
    /// Held as long as it may touch a volume.
    period: Cell<Option<Period>>,
    /// Held until the answer, if there are guarantees.
    pass: Cell<Option<Pass>>,
    arrived: Instant,
    /// If somebody watches its host.
    stopwatch: Option<Rc<Stopwatch>>,
}

impl<Q: Queue> Command<Q> {
    /// Begins a command. One whose identifier is in flight already is answered at once; one that comes when its association is
    /// over is not answered: the queue closes.
    pub(crate) fn begin(queue: &Rc<ConnectedQueue<Q>>, capsule: Q::Capsule) -> Option<Self> {
        match queue.auth.is_awaited() {
            // A host that computes its authentication sends nothing meanwhile.
            true => queue.controller.excuse_silence(),
            false => queue.controller.is_used_by(&queue.handle),
        }
        if !queue.controller.hears(&queue.handle) {
            return None;
        }
        let sqe = *Q::sqe(&capsule);
        let arrived = Q::arrived(&capsule);
        let host = &queue.controller.host.nqn;
        let stopwatch = queue.target.traces.begin(host, arrived);
        if !queue.in_flight.begin(sqe.cid()) {
            let cqe = Cqe::new(Status::COMMAND_ID_CONFLICT.with_dnr(), 0);
            queue.transport.complete(capsule, cqe, None);
            return None;
        }
        queue.counters.begun_commands.add(1);
        Some(Self {
            queue: queue.clone(),
            capsule: Some(capsule),
            sqe,
            period: Cell::new(Some(queue.in_flight.enter_period())),
            pass: Cell::new(None),
            arrived,
            stopwatch,
        })
    }

    /// The command touches no volume any more: nobody has to wait for it.
    pub(crate) fn is_harmless(&self) {
        if let Some(period) = self.period.take() {
            self.queue.in_flight.leave_period(period);
        }
    }

    /// The command has done to the volume what it should, with so many bytes between host and target. It is counted with
    /// the time that it took.
    pub(crate) fn done(&self, volume: &KnownVolume, operation: Operation, bytes: u64) {
        let took = reactor::now().saturating_duration_since(self.arrived);
        self.queue.count(volume, operation, bytes, took);
    }

    /// What somebody who watches it measures its time with.
    pub(crate) fn stopwatch(&self) -> Option<&Rc<Stopwatch>> {
        self.stopwatch.as_ref()
    }

    fn ended(&self, stage: Stage) {
        if let Some(stopwatch) = &self.stopwatch {
            stopwatch.ended(stage);
        }
    }

    /// The submission queue entry.
    pub(crate) fn sqe(&self) -> &Sqe {
        &self.sqe
    }

    /// Waits, unless the command is aborted meanwhile.
    pub(crate) async fn abortable<T>(&self, work: impl Future<Output = T>) -> Result<T, Fault> {
        let waiting = &self.queue.handle.waiting;
        Ok(waiting.wait(self.sqe.cid(), self.sqe.nsid(), work).await?)
    }

    /// Waits until the limits of the volume and of the host allow a command that moves so many bytes. It holds nothing
    /// meanwhile, and nobody waits for it; so what it may do to the volume is to be asked again afterwards.
    pub(crate) async fn hold_back(&self, throttles: &Throttles, bytes: u64) -> Result<(), Fault> {
        let now = reactor::now();
        let mut turn = throttles.queue_up(now, bytes);
        let Some(mut wait) = turn.wait(now) else {
            self.pass.set(turn.pass(now));
            return Ok(());
        };
        self.is_harmless();
        self.abortable(async {
            loop {
                reactor::sleep(wait).await;
                match turn.wait(reactor::now()) {
                    Some(more) => wait = more,
                    None => break,
                }
            }
        })
        .await?;
        let now = reactor::now();
        turn.held(now);
        self.pass.set(turn.pass(now));
        self.period.set(Some(self.queue.in_flight.enter_period()));
        self.ended(Stage::Wait);
        Ok(())
    }

    /// Bytes of data that the host has prepared for this command.
    pub(crate) fn data_len(&self) -> Result<usize, Fault> {
        let at_pointer = |status| Fault::field(status, DATA_POINTER_AT);
        Ok(self.sqe.sgl().map_err(at_pointer)?.length() as usize)
    }

    /// The host must have prepared exactly this much.
    pub(crate) fn check_data_len(&self, len: usize) -> Result<(), Fault> {
        if self.data_len()? != len {
            return Err(Fault::field(Status::SGL_LENGTH_INVALID, DATA_POINTER_AT));
        }
        Ok(())
    }

    /// The host must have prepared at least this much, and no more than a command may transfer (MDTS). Linux prepares more
    /// than some commands need.
    pub(crate) fn check_data_room(&self, len: usize) -> Result<(), Fault> {
        let most = self.queue.target.limits.transfer_bytes_max();
        if !(len..=most).contains(&self.data_len()?) {
            return Err(Fault::field(Status::SGL_LENGTH_INVALID, DATA_POINTER_AT));
        }
        Ok(())
    }

    /// Waits for a buffer of that length. This is where a busy target slows hosts down.
    pub(crate) async fn buffer(&self, len: usize) -> Result<Buffer, Fault> {
        let buffer = match self.queue.buffers.try_alloc(len) {
            Some(buffer) => buffer,
            None => self.abortable(self.queue.buffers.alloc(len)).await?,
        };
        self.ended(Stage::Data);
        Ok(buffer)
    }

    /// The first `len` bytes of the host's data.
    pub(crate) async fn fetch(&self, len: usize) -> Result<Buffer, Fault> {
        Ok(self.fetch_checked(len).await?.buffer)
    }

    /// The same, with the checksums of its blocks if the transport knows them.
    pub(crate) async fn fetch_checked(&self, len: usize) -> Result<Fetched, Fault> {
        if let Some(data) = self.take_data(len)? {
            return Ok(data);
        }
        let buffer = self.buffer(len).await?;
        self.transfer(len, buffer).await
    }

    /// As [`Self::fetch`], into this buffer of that length, if it is needed.
    pub(crate) async fn fetch_into(&self, len: usize, buffer: Buffer) -> Result<Buffer, Fault> {
        if let Some(data) = self.take_data(len)? {
            return Ok(data.buffer);
        }
        Ok(self.transfer(len, buffer).await?.buffer)
    }

    async fn transfer(&self, len: usize, buffer: Buffer) -> Result<Fetched, Fault> {
        let Some(capsule) = &self.capsule else {
            return Err(Fault::Gone);
        };
        let fetched = self.abortable(self.queue.transport.fetch(capsule, len, buffer));
        let fetched = fetched.await??;
        self.ended(Stage::Data);
        Ok(fetched)
    }

    /// Data that came with the command.
    fn take_data(&self, len: usize) -> Result<Option<Fetched>, Fault> {
        let capsule = self.capsule.as_ref().ok_or(Fault::Gone)?;
        let data = self.queue.transport.take_data(capsule, len);
        if data.is_some() {
            self.ended(Stage::Data);
        }
        Ok(data)
    }

    /// Sends `bytes` to the host, which must have room for `room` bytes; the rest is zeros.
    pub(crate) async fn send(&self, bytes: &[u8], room: usize) -> Outcome {
        self.check_data_room(room)?;
        let mut buffer = self.buffer(room).await?;
        let len = bytes.len().min(room);
        buffer[..len].copy_from_slice(&bytes[..len]);
        buffer[len..].fill(0);
        Ok(Success {
            result: 0,
            data: Some((buffer, room)),
        })
    }

    /// Answers the host.
    pub(crate) fn answer(mut self, outcome: Outcome) {
        let Some(capsule) = self.capsule.take() else {
            return;
        };
        let (cqe, data) = match outcome {
            Ok(success) => (Cqe::new(Status::SUCCESS, success.result), success.data),
            Err(Fault::Status {
                status,
                result,
                location,
                lba,
            }) => {
                let status = self.delayed(self.note_error(status, location, lba));
                (Cqe::new(status, result), None)
            }
            Err(Fault::NotThere(status)) => (Cqe::new(status, 0), None),
            // The queue closes already; nobody waits for the completion.
            Err(Fault::Gone) => return,
        };
        self.queue.in_flight.answering(self.sqe.cid());
        let status = cqe.status;
        self.queue.transport.complete(capsule, cqe, data);
        if let Some(stopwatch) = &self.stopwatch {
            stopwatch.ended(Stage::Send);
            let qid = self.queue.handle.qid;
            let command = TracedCommand::new(qid, &self.sqe, status, stopwatch);
            let host = &self.queue.controller.host.nqn;
            self.queue.target.traces.tell(host, &command);
        }
    }

    /// Adds a retry delay for hosts that honour it.
    fn delayed(&self, status: Status) -> Status {
        let (target, controller) = (&self.queue.target, &self.queue.controller);
        match controller.with_features(|features| features.takes_retry_delays()) {
            true => status.with_retry_delay(retry::delay(status, target.is_stopping())),
            false => status,
        }
    }

    /// Adds a failure to the error log, and marks the status (More).
    fn note_error(&self, status: Status, location: u16, lba: Option<u64>) -> Status {
        tracing::debug!(controller = ?self.queue.controller, qid = self.queue.handle.qid, sqe = ?self.sqe, %status, "command failed");
        if status.code() == Status::ABORT_REQUESTED {
            return status;
        }
        let counters = &self.queue.counters;
        counters.error_entries.add(1);
        // Status code type 2 is media and data integrity; Compare Failure (85h) is no damage.
        if status.bits() >> 8 & 7 == 2 && status.code() != Status::COMPARE_FAILURE {
            counters.media_errors.add(1);
        }
        let status = status.with_more();
        lock(&self.queue.controller.errors).add(ErrorEntry {
            qid: self.queue.handle.qid,
            cid: self.sqe.cid(),
            status,
            location,
            lba: if self.queue.handle.qid == 0 {
                0
            } else {
                lba.unwrap_or(self.sqe.slba())
            },
            nsid: self.sqe.nsid(),
        });
        status
    }
}

impl<Q: Queue> Drop for Command<Q> {
    fn drop(&mut self) {
        if self.capsule.is_some() {
            // The task died without an answer. The host must not wait for it.
            self.queue.transport.close();
        }
        self.is_harmless();
        self.queue.counters.ended_commands.add(1);
        self.queue.in_flight.end();
    }
}
