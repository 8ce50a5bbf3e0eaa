//! Data that the target has asked its host for with R2T.
//!
//! Guarantees: data is taken only for an R2T that is open, for its command, in order, and not beyond
//! its end; a tag is not used again until it has come round 64 times; whoever stops waiting for a
//! transfer gets no data any more, and the data may still come.

use std::cell::RefCell;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use nvme::Status;
use nvme::tcp::{Data, FatalError, FatalStatus};
use reactor::Buffer;

use super::receive::{Checked, Destination, Sink};
use crate::queue::{Fetched, TransferError};

/// Bits of a transfer tag that hold the slot in the table; those above count its uses.
const SLOT_BITS: u32 = 10;
/// Transfers at one time, also those that nobody waits for: as many as the longest queue has commands.
const SLOTS_MAX: usize = 1 << SLOT_BITS;

/// TTAG.
pub(super) type Tag = u16;

/// The open transfers of a connection.
#[derive(Debug, Default)]
pub(super) struct Transfers {
    slots: Vec<Entry>,
    free: Vec<u16>,
    open: usize,
    /// Open transfers whose data is worth a receive of its own.
    large: usize,
}

#[derive(Debug, Default)]
struct Entry {
    uses: u16,
    transfer: Option<Transfer>,
}

#[derive(Debug)]
struct Transfer {
    cid: u16,
    received: usize,
    length: usize,
    /// Where the data goes; out while a PDU of it arrives, or when nobody waits.
    buffer: Option<Buffer>,
    damaged: bool,
    /// The CRC-32C of each block so far, as long as all are known.
    checksums: Option<Vec<u32>>,
    result: Rc<RefCell<Outcome>>,
}

/// How a transfer goes.
#[derive(Debug, Default)]
pub(super) enum Outcome {
    /// Under way.
    #[default]
    Open,
    /// Under way, and somebody waits.
    Awaited(Waker),
    /// The end.
    Done(Result<Fetched, TransferError>),
    /// Nobody waits any more.
    Abandoned,
}

/// Transfers of this size or more are received straight into their buffers.
const LARGE_BYTES: usize = 16 << 10;

impl Outcome {
    pub(super) fn poll(
        outcome: &RefCell<Self>,
        cx: &Context<'_>,
    ) -> Poll<Result<Fetched, TransferError>> {
        let mut outcome = outcome.borrow_mut();
        match std::mem::take(&mut *outcome) {
            Self::Done(done) => Poll::Ready(done),
            Self::Abandoned => Poll::Ready(Err(TransferError::GONE)),
            Self::Open | Self::Awaited(_) => {
                *outcome = Self::Awaited(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    fn set(outcome: &RefCell<Self>, done: Result<Fetched, TransferError>) {
        let mut outcome = outcome.borrow_mut();
        let before = std::mem::replace(&mut *outcome, Self::Done(done));
        match before {
            Self::Awaited(waker) => {
                drop(outcome);
                waker.wake();
            }
            // The buffer goes back to its pool.
            Self::Abandoned => *outcome = Self::Abandoned,
            Self::Open | Self::Done(_) => {}
        }
    }
}

impl Transfers {
    /// Whether any is open.
    pub(super) fn any_open(&self) -> bool {
        self.open > 0
    }

    /// Whether a large one is open.
    pub(super) fn any_large(&self) -> bool {
        self.large > 0
    }

    /// Opens a transfer of `length` bytes for a command; None if there are too many.
    pub(super) fn open(
        &mut self,
        cid: u16,
        length: usize,
        buffer: Buffer,
    ) -> Option<(Tag, Rc<RefCell<Outcome>>)> {
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.slots.len() < SLOTS_MAX => {
                self.slots.push(Entry::default());
                (self.slots.len() - 1) as u16
            }
            None => return None,
        };
        let result = Rc::new(RefCell::default());
        let slot = &mut self.slots[usize::from(index)];
        slot.uses = slot.uses.wrapping_add(1);
        slot.transfer = Some(Transfer {
            cid,
            received: 0,
            length,
            buffer: Some(buffer),
            damaged: false,
            checksums: Some(Vec::new()),
            result: Rc::clone(&result),
        });
        self.open += 1;
        self.large += usize::from(length >= LARGE_BYTES);
        Some((index | (slot.uses << SLOT_BITS), result))
    }

    fn find(&mut self, tag: Tag) -> Option<&mut Transfer> {
        let index = tag & (SLOTS_MAX as u16 - 1);
        let slot = self.slots.get_mut(usize::from(index))?;
        if slot.uses << SLOT_BITS != tag & !(SLOTS_MAX as u16 - 1) {
            return None;
        }
        slot.transfer.as_mut()
    }

    /// Judges an H2CData PDU; says where its data goes.
    pub(super) fn data(&mut self, data: &Data) -> Result<Sink<Tag>, FatalError> {
        let unknown = FatalError::field(10, "H2CData with a tag that no open R2T has");
        let transfer = self.find(data.ttag).ok_or(unknown)?;
        if transfer.cid != data.cid {
            return Err(FatalError::field(
                8,
                "H2CData for another command than its R2T's",
            ));
        }
        let (offset, length) = (data.offset as usize, data.length as usize);
        let out_of_range = |what| FatalError::new(FatalStatus::DataOutOfRange, what);
        if offset != transfer.received {
            return Err(out_of_range("H2CData that leaves a gap or overlaps"));
        }
        if length > transfer.length - transfer.received {
            return Err(out_of_range("H2CData beyond the end of its R2T"));
        }
        if data.last && length < transfer.length - transfer.received {
            return Err(FatalError::field(1, "LAST before the end of the R2T"));
        }
        Ok(Sink {
            destination: transfer
                .buffer
                .take()
                .map_or(Destination::Nowhere, Destination::Buffer),
            start: offset,
            wants_checksums: true,
            tag: data.ttag,
        })
    }

    /// The data of an H2CData PDU is there.
    pub(super) fn arrived(
        &mut self,
        tag: Tag,
        destination: Destination,
        bytes: usize,
        checked: Checked,
    ) {
        let Some(transfer) = self.find(tag) else {
            return;
        };
        transfer.received += bytes;
        transfer.damaged |= checked.is_damaged;
        transfer.checksums = match (transfer.checksums.take(), checked.checksums) {
            // Mostly all of a transfer comes in one PDU.
            (Some(before), Some(now)) if before.is_empty() => Some(now),
            (Some(mut before), Some(now)) => {
                before.extend(now);
                Some(before)
            }
            _ => None,
        };
        let abandoned = matches!(*transfer.result.borrow(), Outcome::Abandoned);
        if let Destination::Buffer(buffer) = destination
            && !abandoned
        {
            transfer.buffer = Some(buffer);
        }
        if transfer.received < transfer.length {
            return;
        }
        let index = tag & (SLOTS_MAX as u16 - 1);
        let Some(transfer) = self.slots[usize::from(index)].transfer.take() else {
            return;
        };
        self.free.push(index);
        self.open -= 1;
        self.large -= usize::from(transfer.length >= LARGE_BYTES);
        let done = match (transfer.buffer, transfer.damaged) {
            (Some(buffer), false) => Ok(Fetched {
                buffer,
                checksums: transfer.checksums.map(Vec::into_boxed_slice),
            }),
            (Some(_), true) => Err(TransferError::new(
                Status::TRANSIENT_TRANSPORT,
                "the data digest is wrong",
            )),
            (None, _) => Err(TransferError::GONE),
        };
        Outcome::set(&transfer.result, done);
    }

    /// Nobody waits for this one any more: its buffer goes back now, or when the PDU that fills it is
    /// there.
    pub(super) fn abandon(&mut self, tag: Tag) {
        if let Some(transfer) = self.find(tag) {
            *transfer.result.borrow_mut() = Outcome::Abandoned;
            transfer.buffer = None;
        }
    }

    /// The connection ends: whoever waits is told.
    pub(super) fn end(&mut self) {
        let ended = std::mem::take(self);
        for transfer in ended.slots.into_iter().filter_map(|slot| slot.transfer) {
            Outcome::set(&transfer.result, Err(TransferError::GONE));
        }
    }
}
