//! One command on its way: its data, its answer, and the entry in the error log when it fails.
//!
//! Guarantees: a command is answered exactly once; one whose work dies (a bug) takes its queue with
//! it, so that the host recovers instead of waiting; the host's identifier is free when it reads the
//! answer.

use std::cell::Cell;
use std::rc::Rc;

use nvme::{Cqe, Sqe, Status};
use reactor::Buffer;

use crate::error_log::ErrorEntry;
use crate::in_flight::{Interrupted, Turn};
use crate::line::Line;
use crate::queue::{Queue, lock};
use crate::retry;

/// The parameter error location of an error that no field of the command caused.
pub(crate) const NO_LOCATION: u16 = 0xffff;

/// A command that did what it was asked for.
#[derive(Default)]
pub(crate) struct Success {
    /// Dwords 0 and 1 of the completion.
    pub(crate) result: u64,
    /// Data for the host: the first so many bytes of the buffer.
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
        /// The logical block that is damaged, if it need not be the command's first one.
        lba: Option<u64>,
    },
    /// Answer with a status that is the answer to a question, and no failure: the error log gets nothing, and no
    /// other bit of the status is set.
    NotThere(Status),
    /// The queue goes away: no answer.
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

    /// The same, with this in dword 0 of the completion.
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

    /// The same, about this logical block, if there is one to be named.
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

/// A command in flight and all that it may use.
pub(crate) struct Command<Q: Queue> {
    pub(crate) line: Rc<Line<Q>>,
    /// Taken by the answer.
    capsule: Option<Q::Capsule>,
    sqe: Sqe,
    /// As long as it may touch a volume.
    turn: Cell<Option<Turn>>,
}

impl<Q: Queue> Command<Q> {
    /// Takes a command in. One whose identifier is in flight already is answered at once.
    pub(crate) fn begin(line: &Rc<Line<Q>>, capsule: Q::Capsule) -> Option<Self> {
        line.handle.saw_command();
        let sqe = *Q::sqe(&capsule);
        if !line.in_flight.begin(sqe.cid()) {
            let cqe = Cqe::new(Status::COMMAND_ID_CONFLICT.with_dnr(), 0);
            line.queue.complete(capsule, cqe, None);
            return None;
        }
        Some(Self {
            line: line.clone(),
            capsule: Some(capsule),
            sqe,
            turn: Cell::new(Some(line.in_flight.join_turn())),
        })
    }

    /// The command touches no volume any more: who waits for earlier commands need not wait for it.
    pub(crate) fn is_harmless(&self) {
        if let Some(turn) = self.turn.take() {
            self.line.in_flight.leave_turn(turn);
        }
    }

    /// The submission queue entry.
    pub(crate) fn sqe(&self) -> &Sqe {
        &self.sqe
    }

    /// Waits, unless the command is aborted meanwhile.
    pub(crate) async fn abortable<T>(&self, work: impl Future<Output = T>) -> Result<T, Fault> {
        let waiting = &self.line.handle.waiting;
        Ok(waiting.wait(self.sqe.cid(), self.sqe.nsid(), work).await?)
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

    /// The host must have prepared at least this much, and no more than a command may move (MDTS). Linux prepares
    /// more than some commands need; a host that names gigabytes waits for something else than this target would do.
    pub(crate) fn check_data_room(&self, len: usize) -> Result<(), Fault> {
        let most = self.line.target.limits.transfer_bytes_max();
        if !(len..=most).contains(&self.data_len()?) {
            return Err(Fault::field(Status::SGL_LENGTH_INVALID, DATA_POINTER_AT));
        }
        Ok(())
    }

    /// A buffer of that length, when the pool has one: this is where a busy target slows hosts down.
    pub(crate) async fn buffer(&self, len: usize) -> Result<Buffer, Fault> {
        if let Some(buffer) = self.line.buffers.try_alloc(len) {
            return Ok(buffer);
        }
        self.abortable(self.line.buffers.alloc(len)).await
    }

    /// The first `len` bytes of the host's data.
    pub(crate) async fn fetch(&self, len: usize) -> Result<Buffer, Fault> {
        if let Some(buffer) = self.take_data(len)? {
            return Ok(buffer);
        }
        let buffer = self.buffer(len).await?;
        self.fetch_into(len, buffer).await
    }

    /// As [`Self::fetch`], into this buffer of that length, if it is needed.
    pub(crate) async fn fetch_into(&self, len: usize, buffer: Buffer) -> Result<Buffer, Fault> {
        if let Some(buffer) = self.take_data(len)? {
            return Ok(buffer);
        }
        let Some(capsule) = &self.capsule else {
            return Err(Fault::Gone);
        };
        Ok(self
            .abortable(self.line.queue.fetch(capsule, len, buffer))
            .await??)
    }

    /// Data that came with the command.
    fn take_data(&self, len: usize) -> Result<Option<Buffer>, Fault> {
        let capsule = self.capsule.as_ref().ok_or(Fault::Gone)?;
        Ok(self.line.queue.take_data(capsule, len))
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
            // The queue is closing already; nobody waits for the answer.
            Err(Fault::Gone) => return,
        };
        self.line.in_flight.answering(self.sqe.cid());
        self.line.queue.complete(capsule, cqe, data);
    }

    /// Asks a host that understands it to wait before it repeats the command.
    fn delayed(&self, status: Status) -> Status {
        let (target, controller) = (&self.line.target, &self.line.controller);
        match controller.with_features(|features| features.takes_retry_delays()) {
            true => status.with_retry_delay(retry::delay(status, target.is_stopping())),
            false => status,
        }
    }

    /// Puts a failure into the error log, and says so in the status.
    fn note_error(&self, status: Status, location: u16, lba: Option<u64>) -> Status {
        tracing::debug!(controller = ?self.line.controller, qid = self.line.handle.qid, sqe = ?self.sqe, %status, "command failed");
        if status.code() == Status::ABORT_REQUESTED {
            return status;
        }
        let counters = &self.line.counters;
        counters.error_entries.add(1);
        // Status code type 2 is media and data integrity; Compare Failure (85h) is no damage.
        if status.bits() >> 8 & 7 == 2 && status.code() != Status::COMPARE_FAILURE {
            counters.media_errors.add(1);
        }
        let status = status.with_more();
        lock(&self.line.controller.errors).add(ErrorEntry {
            qid: self.line.handle.qid,
            cid: self.sqe.cid(),
            status,
            location,
            lba: if self.line.handle.qid == 0 {
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
            // The work died without an answer. The host must not wait for it.
            self.line.queue.close();
        }
        self.is_harmless();
        self.line.in_flight.end();
    }
}
