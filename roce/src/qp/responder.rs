//! The responder half of a queue pair: incoming SENDs, WRITEs and READs, their acknowledgements.
//!
//! Guarantees: requests are executed exactly once, in sequence; a request that comes again is
//! acknowledged or, for a READ of the same key and range, answered again; nothing is written outside
//! of a posted receive or a registered region; what is kept for repeated READs is bounded by the
//! number of READs that the connection allows.
//!
//! Acknowledgements are coalesced: a batch of packets leaves one behind, and the next `transmit`
//! sends it. READ responses leave in the order of their requests, and an acknowledgement never
//! overtakes them, because it would tell the peer that they are lost.

use std::collections::VecDeque;

use super::entry::packets;
use super::{Context, Failure, Link, Sender};
use crate::endpoint::{WcKind, WcStatus};
use crate::memory::Memory;
use crate::wire::{Aeth, NakCode, Opcode, Packet, Psn, Syndrome};

/// The message that is under way.
enum Inbound {
    None,
    /// A SEND into the front receive; so many bytes are there.
    Send {
        len: usize,
    },
    /// A WRITE; where the next byte goes, and how many are missing.
    Write {
        rkey: u32,
        va: u64,
        missing: usize,
    },
}

/// An accepted READ: kept after it was answered, because its request may come again.
struct ReadJob {
    first: Psn,
    count: u32,
    rkey: u32,
    va: u64,
    len: usize,
    /// Where this answer began: its first packet is a FIRST, whatever its place in the READ.
    start: u32,
    /// The packet to send next; `count` when all are sent.
    next: u32,
    /// Answered before: if its region is gone by now, that is no error.
    replay: bool,
}

impl ReadJob {
    fn is_active(&self) -> bool {
        self.next < self.count
    }
}

/// A negative acknowledgement to be sent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Refusal {
    Sequence,
    Rnr,
    Fatal(NakCode),
}

/// The receive queue of a queue pair.
pub(super) struct Responder<M> {
    receives: VecDeque<(u64, M)>,
    expected: Psn,
    /// Messages completed and READs accepted, modulo 2^24.
    msn: u32,
    inbound: Inbound,
    ack_pending: bool,
    refusal: Option<Refusal>,
    /// A NAK was sent for the expected packet: no other one until it comes, or until the peer went back and what
    /// it sent again has another hole.
    refused: bool,
    /// The packet that came too early last. The peer counts up, so one that is not behind it shows
    /// that the peer went back.
    early: Option<Psn>,
    reads: VecDeque<ReadJob>,
    reads_max: usize,
    reads_active: usize,
    /// No READ before this place is active.
    reads_done: usize,
}

impl<M: Memory> Responder<M> {
    pub(super) fn new() -> Self {
        Self {
            receives: VecDeque::new(),
            expected: Psn::default(),
            msn: 0,
            inbound: Inbound::None,
            ack_pending: false,
            refusal: None,
            refused: false,
            early: None,
            reads: VecDeque::new(),
            reads_max: 0,
            reads_active: 0,
            reads_done: 0,
        }
    }

    /// Bytes beside the value itself.
    pub(super) fn heap_bytes(&self) -> usize {
        self.receives.capacity() * size_of::<(u64, M)>()
            + self.reads.capacity() * size_of::<ReadJob>()
    }

    /// Begins to expect packets, when the peer is known.
    pub(super) fn start(&mut self, expected: Psn, reads_max: usize) {
        self.expected = expected;
        self.reads_max = reads_max;
    }

    pub(super) fn post(&mut self, limit: usize, wr_id: u64, memory: M) -> Result<(), M> {
        if self.receives.len() >= limit {
            return Err(memory);
        }
        self.receives.push_back((wr_id, memory));
        Ok(())
    }

    pub(super) fn can_send(&self) -> bool {
        self.ack_pending || self.refusal.is_some() || self.reads_active > 0
    }

    /// Takes a request packet. An error ends the connection.
    pub(super) fn handle_request(
        &mut self,
        packet: &Packet<'_>,
        context: &mut Context<'_, M>,
        link: &Link,
    ) -> Result<(), Failure> {
        let ahead = packet.bth.psn.diff(self.expected);
        if ahead > 0 {
            context.counters.out_of_sequence += 1;
            let psn = packet.bth.psn;
            let went_back = self
                .early
                .replace(psn)
                .is_some_and(|early| psn.diff(early) <= 0);
            if !self.refused || went_back {
                self.refused = true;
                self.refusal = Some(Refusal::Sequence);
            }
            return Ok(());
        }
        if ahead < 0 {
            context.counters.duplicates += 1;
            if packet.bth.opcode == Opcode::ReadRequest {
                self.handle_duplicate_read(packet, link);
            } else {
                self.ack_pending = true;
            }
            return Ok(());
        }
        match self.execute(packet, context, link) {
            Ok(()) => {
                self.refused = false;
                self.early = None;
                if self.refusal == Some(Refusal::Rnr) {
                    self.refusal = None;
                }
                if packet.bth.ack_request && packet.bth.opcode != Opcode::ReadRequest {
                    self.ack_pending = true;
                }
                Ok(())
            }
            Err(Refused::NotReady) => {
                self.refused = true;
                self.early = None;
                self.refusal = Some(Refusal::Rnr);
                Ok(())
            }
            Err(Refused::Fatal(code, status)) => {
                self.refusal = Some(Refusal::Fatal(code));
                if code == NakCode::RemoteAccess {
                    context.counters.access_violations += 1;
                }
                Err(Failure::remote(status))
            }
        }
    }

    fn execute(
        &mut self,
        packet: &Packet<'_>,
        context: &mut Context<'_, M>,
        link: &Link,
    ) -> Result<(), Refused> {
        let opcode = packet.bth.opcode;
        let begins = opcode.is_first();
        let ends = opcode.is_last();
        let len = packet.payload.len();
        // FIRST and MIDDLE fill the MTU exactly; LAST carries at least one byte.
        let length_fits = if ends {
            len <= link.mtu
        } else {
            len == link.mtu
        };
        if !length_fits || (ends && !begins && len == 0) {
            return Err(Refused::INVALID);
        }
        match opcode {
            Opcode::SendFirst
            | Opcode::SendMiddle
            | Opcode::SendLast
            | Opcode::SendOnly
            | Opcode::SendLastInvalidate
            | Opcode::SendOnlyInvalidate => {
                self.execute_send(packet, begins, ends, context, link)?
            }
            Opcode::WriteFirst | Opcode::WriteMiddle | Opcode::WriteLast | Opcode::WriteOnly => {
                self.execute_write(packet, begins, ends, context, link)?
            }
            Opcode::ReadRequest => return self.execute_read(packet, context, link),
            // Immediate data and atomics are not offered.
            _ => return Err(Refused::INVALID),
        }
        self.expected = self.expected.next();
        if ends {
            self.msn = (self.msn + 1) & 0x00ff_ffff;
        }
        Ok(())
    }

    fn execute_send(
        &mut self,
        packet: &Packet<'_>,
        begins: bool,
        ends: bool,
        context: &mut Context<'_, M>,
        link: &Link,
    ) -> Result<(), Refused> {
        let done = match (&self.inbound, begins) {
            (Inbound::None, true) => 0,
            (Inbound::Send { len }, false) => *len,
            _ => return Err(Refused::INVALID),
        };
        let Some((_, memory)) = self.receives.front_mut() else {
            return Err(Refused::NotReady);
        };
        let len = done + packet.payload.len();
        if len > context.config.max_message_bytes {
            return Err(Refused::INVALID);
        }
        let Some(target) = memory.bytes_mut().get_mut(done..len) else {
            return Err(Refused::Fatal(
                NakCode::InvalidRequest,
                WcStatus::LocalLength,
            ));
        };
        target.copy_from_slice(packet.payload);
        if !ends {
            self.inbound = Inbound::Send { len };
            return Ok(());
        }
        let invalidated = packet.ieth.map(|ieth| ieth.0);
        if let Some(rkey) = invalidated
            && !context.regions.invalidate(link.qpn, rkey)
        {
            return Err(Refused::ACCESS);
        }
        self.inbound = Inbound::None;
        if let Some((wr_id, memory)) = self.receives.pop_front() {
            let kind = WcKind::Receive;
            context.complete(
                link,
                wr_id,
                kind,
                WcStatus::Success,
                len,
                invalidated,
                memory,
            );
        }
        Ok(())
    }

    fn execute_write(
        &mut self,
        packet: &Packet<'_>,
        begins: bool,
        ends: bool,
        context: &mut Context<'_, M>,
        link: &Link,
    ) -> Result<(), Refused> {
        let (rkey, va, missing) = match (&self.inbound, begins, packet.reth) {
            (Inbound::None, true, Some(reth)) => {
                let len = reth.len as usize;
                if len > context.config.max_message_bytes {
                    return Err(Refused::INVALID);
                }
                // The whole range, before the first byte is written. A WRITE of nothing names no
                // memory (InfiniBand: its key is not checked).
                if len > 0
                    && context
                        .regions
                        .write(link.qpn, reth.rkey, reth.va, len)
                        .is_err()
                {
                    return Err(Refused::ACCESS);
                }
                (reth.rkey, reth.va, len)
            }
            (Inbound::Write { rkey, va, missing }, false, None) => (*rkey, *va, *missing),
            _ => return Err(Refused::INVALID),
        };
        let len = packet.payload.len();
        // The message must be as long as it said, to the byte.
        if len > missing || (ends && len != missing) {
            return Err(Refused::INVALID);
        }
        if len > 0 {
            match context.regions.write(link.qpn, rkey, va, len) {
                Ok(target) => target.copy_from_slice(packet.payload),
                Err(_) => return Err(Refused::ACCESS),
            }
        }
        self.inbound = if ends {
            Inbound::None
        } else {
            Inbound::Write {
                rkey,
                va: va.wrapping_add(len as u64),
                missing: missing - len,
            }
        };
        Ok(())
    }

    fn execute_read(
        &mut self,
        packet: &Packet<'_>,
        context: &mut Context<'_, M>,
        link: &Link,
    ) -> Result<(), Refused> {
        let Some(reth) = packet.reth else {
            return Err(Refused::INVALID);
        };
        let len = reth.len as usize;
        if !matches!(self.inbound, Inbound::None)
            || !packet.payload.is_empty()
            || self.reads_max == 0
            || len > context.config.max_message_bytes
        {
            return Err(Refused::INVALID);
        }
        if len > 0
            && context
                .regions
                .read(link.qpn, reth.rkey, reth.va, len)
                .is_err()
        {
            return Err(Refused::ACCESS);
        }
        if self.reads.len() >= self.reads_max {
            match self.reads.front() {
                // The peer has more READs in flight than it was allowed.
                Some(oldest) if oldest.is_active() && !oldest.replay => {
                    return Err(Refused::INVALID);
                }
                Some(oldest) => self.reads_active -= usize::from(oldest.is_active()),
                None => {}
            }
            self.reads.pop_front();
            self.reads_done = self.reads_done.saturating_sub(1);
        }
        let count = packets(len, link.mtu);
        let first = self.expected;
        let (rkey, va) = (reth.rkey, reth.va);
        let job = ReadJob {
            first,
            count,
            rkey,
            va,
            len,
            start: 0,
            next: 0,
            replay: false,
        };
        self.reads.push_back(job);
        self.reads_active += 1;
        self.expected = first + count;
        self.msn = (self.msn + 1) & 0x00ff_ffff;
        Ok(())
    }

    /// Answers a READ again from where its requester stopped, if key and range are the same.
    fn handle_duplicate_read(&mut self, packet: &Packet<'_>, link: &Link) {
        let Some(reth) = packet.reth else { return };
        let psn = packet.bth.psn;
        let covers = |job: &ReadJob| {
            let index = psn.diff(job.first);
            index >= 0 && index.unsigned_abs() < job.count
        };
        let Some(place) = self.reads.iter().rposition(covers) else {
            return;
        };
        let job = &mut self.reads[place];
        let index = psn.diff(job.first).unsigned_abs();
        let done = index as usize * link.mtu;
        let same = reth.rkey == job.rkey
            && reth.va == job.va.wrapping_add(done as u64)
            && reth.len as usize == job.len - done;
        if !same || (job.is_active() && job.next <= index) {
            return;
        }
        if !job.is_active() {
            self.reads_active += 1;
            job.replay = true;
        }
        job.start = index;
        job.next = index;
        self.reads_done = self.reads_done.min(place);
    }

    /// Sends READ responses, and a NAK, until `limit` packets are sent; `sent` counts them.
    pub(super) fn transmit(
        &mut self,
        link: &Link,
        context: &mut Context<'_, M>,
        limit: usize,
        sender: &mut Sender<'_>,
        sent: &mut usize,
    ) -> Result<(), Failure> {
        while *sent < limit && !sender.is_full() && self.reads_active > 0 {
            *sent += self.transmit_read(link, context, limit - *sent, sender)?;
        }
        // A NAK first: the peer loses time until it has it.
        if *sent < limit && self.refusal.is_some() {
            *sent += usize::from(self.acknowledge(link, context, sender));
        }
        Ok(())
    }

    fn transmit_read(
        &mut self,
        link: &Link,
        context: &mut Context<'_, M>,
        limit: usize,
        sender: &mut Sender<'_>,
    ) -> Result<usize, Failure> {
        let msn = self.msn;
        let mut waiting = self.reads.iter_mut().skip(self.reads_done);
        let Some(job) = waiting.find(|job| {
            self.reads_done += usize::from(!job.is_active());
            job.is_active()
        }) else {
            self.reads_active = 0;
            return Ok(0);
        };
        let read = if job.len == 0 {
            Ok(&[][..])
        } else {
            context.regions.read(link.qpn, job.rkey, job.va, job.len)
        };
        let Ok(bytes) = read else {
            let replay = job.replay;
            let at = job.first + job.next;
            job.next = job.count;
            self.reads_active -= 1;
            if replay {
                // The peer had its answer before the region went away: a late duplicate.
                return Ok(0);
            }
            // The owner took the region away while the peer was reading it.
            context.counters.access_violations += 1;
            for job in &mut self.reads {
                job.next = job.count;
            }
            self.reads_active = 0;
            self.expected = at;
            self.refusal = Some(Refusal::Fatal(NakCode::RemoteAccess));
            return Err(Failure::remote(WcStatus::RemoteAccess));
        };
        let mut sent = 0;
        while sent < limit && !sender.is_full() && job.next < job.count {
            let index = job.next;
            let is_last = index + 1 == job.count;
            let opcode = match (index == job.start, is_last) {
                (true, true) => Opcode::ReadResponseOnly,
                (true, false) => Opcode::ReadResponseFirst,
                (false, false) => Opcode::ReadResponseMiddle,
                (false, true) => Opcode::ReadResponseLast,
            };
            let begin = index as usize * link.mtu;
            let payload = &bytes[begin..job.len.min(begin + link.mtu)];
            let aeth = (opcode != Opcode::ReadResponseMiddle).then_some(Aeth {
                syndrome: Syndrome::ACK,
                msn,
            });
            let packet = link.packet(opcode, job.first + index, false, payload);
            sender.packet(link.path, Packet { aeth, ..packet });
            context.counters.retransmits += u64::from(job.replay);
            job.next += 1;
            sent += 1;
        }
        if job.next == job.count {
            self.reads_active -= 1;
        }
        Ok(sent)
    }

    /// Sends the acknowledgement of the peer's requests, unless responses of earlier READs have to leave first. True if
    /// a packet was sent.
    pub(super) fn acknowledge(
        &mut self,
        link: &Link,
        context: &mut Context<'_, M>,
        sender: &mut Sender<'_>,
    ) -> bool {
        if self.reads_active > 0 {
            return false;
        }
        let (psn, syndrome) = match self.refusal.take() {
            Some(Refusal::Rnr) => {
                context.counters.rnr_sent += 1;
                (
                    self.expected,
                    Syndrome::Rnr {
                        timer: context.config.rnr_timer,
                    },
                )
            }
            Some(Refusal::Sequence) => {
                context.counters.naks_sent += 1;
                (self.expected, Syndrome::Nak(NakCode::SequenceError))
            }
            Some(Refusal::Fatal(code)) => {
                context.counters.naks_sent += 1;
                (self.expected, Syndrome::Nak(code))
            }
            None if self.ack_pending => (self.expected.prev(), Syndrome::ACK),
            None => return false,
        };
        // A NAK acknowledges everything before it, too.
        self.ack_pending = false;
        let aeth = Some(Aeth {
            syndrome,
            msn: self.msn,
        });
        sender.packet(
            link.path,
            Packet {
                aeth,
                ..link.packet(Opcode::Acknowledge, psn, false, &[])
            },
        );
        true
    }

    /// Hands all receives back. `status` goes to the oldest.
    pub(super) fn flush(&mut self, status: WcStatus, context: &mut Context<'_, M>, link: &Link) {
        let mut status = status;
        for (wr_id, memory) in self.receives.drain(..) {
            context.complete(link, wr_id, WcKind::Receive, status, 0, None, memory);
            status = WcStatus::Flushed;
        }
        self.inbound = Inbound::None;
    }

    /// Drops all answers that are still to be sent.
    pub(super) fn silence(&mut self) {
        self.ack_pending = false;
        self.refusal = None;
        self.reads.clear();
        self.reads_active = 0;
        self.reads_done = 0;
    }
}

/// Why a request packet was not executed.
enum Refused {
    NotReady,
    Fatal(NakCode, WcStatus),
}

impl Refused {
    const INVALID: Self = Self::Fatal(NakCode::InvalidRequest, WcStatus::RemoteInvalidRequest);
    const ACCESS: Self = Self::Fatal(NakCode::RemoteAccess, WcStatus::RemoteAccess);
}
