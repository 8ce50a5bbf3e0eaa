//! The requester half of a queue pair: the send queue, its window, retransmission and READ responses.
//!
//! Guarantees: work requests leave and complete in the order in which they were posted, each exactly
//! once; at most the window's number of sequence numbers is unacknowledged; a peer that makes no
//! progress is given up after a bounded time, whatever it answers.
//!
//! Sequence numbers are given out when work is posted, so going back is only moving a cursor; SENDs that
//! others may overtake get theirs when they leave.
//!
//! What is lost is noticed in one of three ways. The peer refuses a packet that came too early: go
//! back at once. A READ response comes too early: ask for the rest at once. Nothing comes: after about
//! two round trips one packet is sent again as a probe, because its answer tells how far the peer is
//! (the last packets of a burst, or a refusal, were lost); then ever later, from a window of one.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::congestion::{Mark, RoundTrip, Window};
use super::entry::{Entry, packets};
use super::{Context, Failure, Link, Sender};
use crate::endpoint::{EndpointConfig, PostError, SendWork, WcKind, WcStatus};
use crate::memory::Memory;
use crate::wire::{Aeth, Ieth, NakCode, Opcode, Packet, Psn, Reth, Syndrome};

/// An acknowledgement is asked for at least this often, so that a long message does not fill the
/// window before the peer speaks. Linux rxe asks every 64 packets.
const ACK_REQUEST_INTERVAL: u32 = 32;

/// Sequence numbers that may be posted and not yet acknowledged. Far below half of the 24-bit space
/// (2^23), where comparisons would turn around.
const POSTED_PACKETS_MAX: u32 = 1 << 21;

/// What a receiver-not-ready answer makes us wait at least: doubled with each further one, up to the
/// maximum.
const RNR_WAIT_FIRST: Duration = Duration::from_micros(500);
const RNR_WAIT_MAX: Duration = Duration::from_millis(100);

/// An empty send queue keeps room for at most so many work requests: two for each of 64 responses, so
/// that a queue of usual depth does not allocate and free all the time.
const IDLE_ROOM_MAX: usize = 128;

/// At most so many SENDs are overtaken: about what one turn of a busy queue posts.
const OVERTAKEN_MAX: usize = 64;

/// Negative acknowledgements without progress before the peer is taken for broken.
const NAKS_MAX: u32 = 1024;

/// A silent peer is asked at least so often, however late the timer is served: what was starved may
/// have been this side.
pub(super) const TRIES_MIN: u32 = 5;

/// The send queue of a queue pair.
pub(super) struct Requester<M> {
    entries: VecDeque<Entry<M>>,
    /// SENDs that READs and WRITEs may overtake. They get their sequence numbers one by one, when nothing else is
    /// left to be sent.
    held: VecDeque<Entry<M>>,
    /// Packets of those.
    held_packets: u32,
    /// The entry to send next, and within it the packet.
    cursor: usize,
    cursor_packet: u32,
    /// The oldest sequence number that is not acknowledged.
    pub(super) unacked: Psn,
    /// One past the highest sequence number that was ever sent (or, for READs, asked for).
    pub(super) high: Psn,
    /// The sequence number that the next posted work request gets.
    next: Psn,
    /// READs asked for and not complete, before the cursor.
    reads_out: usize,
    reads_max: usize,
    /// Packets of their responses that are missing.
    read_packets_out: u32,
    window: Window,
    since_ack_request: u32,
    deadline: Option<Instant>,
    /// Since when there was no progress while something was unacknowledged.
    waiting_since: Option<Instant>,
    rnr_until: Option<Instant>,
    /// Timers that ran out since the last progress.
    retries: u32,
    rnr_retries: u32,
    naks: u32,
    /// One packet was sent again to learn how far the peer is: nothing else leaves until it answers.
    probing: bool,
    /// Where and when the last negative acknowledgement made us go back: its duplicates, and those
    /// of packets that were still under way, must not make us go back again.
    went_back: Option<(Psn, Instant)>,
    /// The READ response that came too early last. Later ones belong to the same stream; an earlier
    /// one, or the same, means that the stream was asked for again and has another hole.
    early_response: Option<Psn>,
    round_trip: RoundTrip,
}

impl<M: Memory> Requester<M> {
    pub(super) fn new(start: Psn, reads_max: usize) -> Self {
        Self {
            entries: VecDeque::new(),
            held: VecDeque::new(),
            held_packets: 0,
            cursor: 0,
            cursor_packet: 0,
            unacked: start,
            high: start,
            next: start,
            reads_out: 0,
            reads_max,
            read_packets_out: 0,
            window: Window::new(),
            since_ack_request: 0,
            deadline: None,
            waiting_since: None,
            rnr_until: None,
            retries: 0,
            rnr_retries: 0,
            naks: 0,
            probing: false,
            went_back: None,
            early_response: None,
            round_trip: RoundTrip::default(),
        }
    }

    /// Bytes beside the value itself.
    pub(super) fn heap_bytes(&self) -> usize {
        (self.entries.capacity() + self.held.capacity()) * size_of::<Entry<M>>()
    }

    pub(super) fn post(
        &mut self,
        config: &EndpointConfig,
        mtu: usize,
        wr_id: u64,
        work: SendWork<M>,
    ) -> Result<(), (PostError, SendWork<M>)> {
        let (len, offset, capacity) = match &work {
            SendWork::Send { data, len, .. } => (*len, 0, data.bytes().len()),
            SendWork::Read {
                into, offset, len, ..
            } => (*len, *offset, into.bytes().len()),
            SendWork::Write {
                from, offset, len, ..
            } => (*len, *offset, from.bytes().len()),
        };
        let fits = offset.checked_add(len).is_some_and(|end| end <= capacity);
        if !fits || len > config.max_message_bytes {
            return Err((PostError::BadRange, work));
        }
        if self.reads_max == 0 && matches!(work, SendWork::Read { .. }) {
            return Err((PostError::ReadsNotAllowed, work));
        }
        let count = packets(len, mtu);
        let posted = self.next.diff(self.unacked).unsigned_abs() + self.held_packets;
        let full = self.entries.len() + self.held.len() >= config.max_send_wr;
        if full || posted + count > POSTED_PACKETS_MAX {
            return Err((PostError::QueueFull, work));
        }
        let (kind, memory, remote_va, rkey, invalidate) = match work {
            SendWork::Send {
                data, invalidate, ..
            } => (WcKind::Send, data, 0, 0, invalidate),
            SendWork::Read {
                into,
                remote_va,
                rkey,
                ..
            } => (WcKind::Read, into, remote_va, rkey, None),
            SendWork::Write {
                from,
                remote_va,
                rkey,
                ..
            } => (WcKind::Write, from, remote_va, rkey, None),
        };
        let entry = Entry {
            wr_id,
            kind,
            memory,
            offset,
            len,
            remote_va,
            rkey,
            invalidate,
            first: self.next,
            count,
            received: 0,
        };
        if config.sends_are_overtaken && kind == WcKind::Send {
            if self.held.len() == OVERTAKEN_MAX {
                self.number_held();
            }
            self.held_packets += count;
            self.held.push_back(entry);
        } else {
            self.next += count;
            self.entries.push_back(entry);
        }
        Ok(())
    }

    /// Gives the oldest waiting SEND its sequence numbers: nothing overtakes it from now on.
    fn number_held(&mut self) {
        if let Some(mut entry) = self.held.pop_front() {
            self.held_packets -= entry.count;
            entry.first = self.next;
            self.next += entry.count;
            self.entries.push_back(entry);
        }
    }

    /// Whether a packet could be sent now.
    #[inline]
    pub(super) fn can_send(&self, config: &EndpointConfig) -> bool {
        self.rnr_until.is_none() && self.next_is_sendable(config)
    }

    #[inline]
    fn next_is_sendable(&self, config: &EndpointConfig) -> bool {
        match self.entries.get(self.cursor) {
            Some(entry) => self.sendable(config, entry, self.cursor_packet),
            None => !self.held.is_empty() && self.is_in_window(config, self.next),
        }
    }

    #[inline]
    fn sendable(&self, config: &EndpointConfig, entry: &Entry<M>, packet: u32) -> bool {
        if entry.is_read() && !self.may_ask(config) {
            return false;
        }
        // A READ that is asked for again begins where its responses ended.
        let psn = if entry.is_read() {
            entry.expected()
        } else {
            entry.first + packet
        };
        self.is_in_window(config, psn)
    }

    /// Whether another READ may be asked for beside those that are.
    #[inline]
    fn may_ask(&self, config: &EndpointConfig) -> bool {
        self.reads_out < self.reads_max && self.read_packets_out < config.max_read_packets
    }

    #[inline]
    fn is_in_window(&self, config: &EndpointConfig, psn: Psn) -> bool {
        let window = if self.probing {
            1
        } else {
            self.window.size(config)
        };
        let ahead = psn.diff(self.unacked);
        ahead < 0 || ahead.unsigned_abs() < window
    }

    /// When `handle_timeout` wants to be called.
    #[inline]
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.rnr_until.or(self.deadline)
    }

    /// Sends at most `limit` packets and returns how many.
    pub(super) fn transmit(
        &mut self,
        link: &Link,
        context: &mut Context<'_, M>,
        limit: usize,
        sender: &mut Sender<'_>,
    ) -> usize {
        let mut sent = 0;
        while sent < limit && !sender.is_full() && self.can_send(context.config) {
            self.transmit_one(link, context, sender);
            sent += 1;
        }
        sent
    }

    fn transmit_one(&mut self, link: &Link, context: &mut Context<'_, M>, sender: &mut Sender<'_>) {
        if self.cursor == self.entries.len() {
            self.number_held();
        }
        let index = self.cursor;
        let is_read = self.entries[index].is_read();
        let packet = if is_read {
            self.entries[index].received
        } else {
            self.cursor_packet
        };
        let is_last = is_read || packet + 1 == self.entries[index].count;
        // Move the cursor first: whether an acknowledgement must be asked for depends on what can
        // follow this packet.
        if is_last {
            self.cursor += 1;
            self.cursor_packet = 0;
            if is_read {
                self.reads_out += 1;
                self.read_packets_out += self.entries[index].missing();
            }
        } else {
            self.cursor_packet = packet + 1;
        }
        self.since_ack_request += 1;
        let more = self.next_is_sendable(context.config);
        let ack_request = is_read || !more || self.since_ack_request >= ACK_REQUEST_INTERVAL;
        if ack_request {
            self.since_ack_request = 0;
        }

        let entry = &self.entries[index];
        let psn = entry.first + packet;
        let done = packet as usize * link.mtu;
        let remote = (
            entry.remote_va.wrapping_add(done as u64),
            (entry.len - done) as u32,
        );
        let mut reth = None;
        let mut ieth = None;
        let opcode = match entry.kind {
            WcKind::Read => {
                reth = Some(Reth {
                    va: remote.0,
                    rkey: entry.rkey,
                    len: remote.1,
                });
                Opcode::ReadRequest
            }
            WcKind::Write => {
                if packet == 0 {
                    reth = Some(Reth {
                        va: entry.remote_va,
                        rkey: entry.rkey,
                        len: remote.1,
                    });
                }
                match (packet == 0, is_last) {
                    (true, true) => Opcode::WriteOnly,
                    (true, false) => Opcode::WriteFirst,
                    (false, false) => Opcode::WriteMiddle,
                    (false, true) => Opcode::WriteLast,
                }
            }
            WcKind::Send | WcKind::Receive => {
                if is_last {
                    ieth = entry.invalidate.map(Ieth);
                }
                match (packet == 0, is_last, ieth.is_some()) {
                    (true, true, false) => Opcode::SendOnly,
                    (true, true, true) => Opcode::SendOnlyInvalidate,
                    (true, false, _) => Opcode::SendFirst,
                    (false, false, _) => Opcode::SendMiddle,
                    (false, true, false) => Opcode::SendLast,
                    (false, true, true) => Opcode::SendLastInvalidate,
                }
            }
        };
        let payload = if is_read {
            &[][..]
        } else {
            let end = entry.len.min(done + link.mtu);
            // The memory may have been swapped for a shorter one by its owner's `Memory`
            // implementation; then the peer sees a short packet and refuses it.
            let range = entry.offset + done..entry.offset + end;
            entry.memory.bytes().get(range).unwrap_or_default()
        };
        sender.packet(
            link.path,
            Packet {
                reth,
                ieth,
                ..link.packet(opcode, psn, ack_request, payload)
            },
        );

        let end = if is_read { entry.end() } else { psn.next() };
        if psn.diff(self.high) < 0 {
            context.counters.retransmits += 1;
        } else if ack_request {
            self.round_trip.begin(psn, context.now);
        }
        if end.diff(self.high) > 0 {
            self.high = end;
        }
        if self.deadline.is_none() {
            self.deadline = Some(context.now + self.timeout(context.config));
            self.waiting_since.get_or_insert(context.now);
        }
    }

    /// Takes an acknowledgement, positive or negative.
    pub(super) fn handle_acknowledge(
        &mut self,
        psn: Psn,
        aeth: Aeth,
        context: &mut Context<'_, M>,
        link: &Link,
    ) -> Result<(), Failure> {
        if psn.diff(self.high) > 0 || psn.next().diff(self.unacked) < 0 {
            // Never sent, or acknowledged long ago: an old packet that the network kept.
            return Ok(());
        }
        match aeth.syndrome {
            Syndrome::Ack { .. } => {
                if psn.diff(self.high) < 0 {
                    self.acknowledged(psn.next(), context, link);
                }
                Ok(())
            }
            Syndrome::Rnr { timer } => self.handle_rnr(psn, timer, context, link),
            Syndrome::Nak(code) => self.handle_nak(psn, code, context, link),
        }
    }

    fn handle_rnr(
        &mut self,
        psn: Psn,
        timer: u8,
        context: &mut Context<'_, M>,
        link: &Link,
    ) -> Result<(), Failure> {
        let outside = psn.diff(self.unacked) < 0 || psn.diff(self.high) >= 0;
        if outside || self.rnr_until.is_some() || !self.acknowledged(psn, context, link) {
            return Ok(());
        }
        context.counters.rnr_received += 1;
        self.rnr_retries += 1;
        if self.rnr_retries > context.config.rnr_retry_count {
            return Err(Failure::local(WcStatus::RnrRetryExceeded));
        }
        self.go_back(psn);
        // At least as long as the peer asks, and longer each time: a peer that is busy for a second
        // must not use up all tries with a timer of microseconds.
        let patience = RNR_WAIT_FIRST * (1 << (self.rnr_retries - 1).min(16));
        let wait = Syndrome::rnr_delay(timer).max(patience.min(RNR_WAIT_MAX));
        self.rnr_until = Some(context.now + wait);
        // The peer lives: its silence is measured anew when the wait is over.
        self.deadline = None;
        self.waiting_since = None;
        self.retries = 0;
        self.probing = false;
        Ok(())
    }

    fn handle_nak(
        &mut self,
        psn: Psn,
        code: NakCode,
        context: &mut Context<'_, M>,
        link: &Link,
    ) -> Result<(), Failure> {
        if psn.diff(self.unacked) < 0 || !self.acknowledged(psn, context, link) {
            return Ok(());
        }
        context.counters.naks_received += 1;
        if psn.diff(self.high) >= 0 {
            // All that was sent has arrived: there is nothing to send again, and no request that failed.
            return Ok(());
        }
        match code {
            NakCode::SequenceError => {
                self.naks += 1;
                if self.naks > NAKS_MAX {
                    return Err(Failure::local(WcStatus::RetryExceeded));
                }
                self.go_back_once(psn, context);
                Ok(())
            }
            NakCode::InvalidRequest => Err(Failure::local(WcStatus::RemoteInvalidRequest)),
            NakCode::RemoteAccess => Err(Failure::local(WcStatus::RemoteAccess)),
            NakCode::RemoteOperation => Err(Failure::local(WcStatus::RemoteOperation)),
            NakCode::InvalidRdRequest => Err(Failure::local(WcStatus::BadResponse)),
        }
    }

    /// Takes a packet of a READ response.
    pub(super) fn handle_read_response(
        &mut self,
        packet: &Packet<'_>,
        context: &mut Context<'_, M>,
        link: &Link,
    ) -> Result<(), Failure> {
        let psn = packet.bth.psn;
        if psn.diff(self.unacked) < 0 || psn.diff(self.high) >= 0 {
            return Ok(());
        }
        // A response acknowledges what was sent before its READ. If an earlier response is missing,
        // this one comes too early.
        if !self.advance(psn, context, link) {
            let same_stream = self.early_response.is_some_and(|early| psn.diff(early) > 0);
            if same_stream || self.go_back_once(self.unacked, context) {
                self.early_response = Some(psn);
            }
            return Ok(());
        }
        let now = context.now;
        let Some(entry) = self.entries.front_mut() else {
            return Ok(());
        };
        if !entry.is_read() || entry.expected() != psn {
            context.counters.unexpected += 1;
            return Ok(());
        }
        let done = entry.received as usize * link.mtu;
        let expected_len = (entry.len - done).min(link.mtu);
        let is_final = entry.received + 1 == entry.count;
        let acknowledges = packet
            .aeth
            .is_none_or(|aeth| matches!(aeth.syndrome, Syndrome::Ack { .. }));
        if packet.payload.len() != expected_len
            || packet.bth.opcode.is_last() != is_final
            || !acknowledges
        {
            return Err(Failure::local(WcStatus::BadResponse));
        }
        let start = entry.offset + done;
        let Some(target) = entry
            .memory
            .bytes_mut()
            .get_mut(start..start + expected_len)
        else {
            return Err(Failure::local(WcStatus::LocalLength));
        };
        target.copy_from_slice(packet.payload);
        entry.received += 1;
        // The answer to what was asked for before this side went back may come still.
        self.read_packets_out -= u32::from(self.cursor > 0);
        self.unacked = psn.next();
        if is_final {
            self.complete_front(context, link);
        }
        self.progressed(1, now, context.config);
        Ok(())
    }

    /// The peer acknowledged everything before `psn`, in a packet of its own. False if READ responses
    /// before `psn` are missing, in which case they are asked for again.
    fn acknowledged(&mut self, psn: Psn, context: &mut Context<'_, M>, link: &Link) -> bool {
        let complete = self.advance(psn, context, link);
        if !complete {
            self.go_back_once(self.unacked, context);
        }
        complete
    }

    /// The peer has everything before `psn`. Completes what that covers; false if READ responses
    /// before `psn` are missing.
    fn advance(&mut self, psn: Psn, context: &mut Context<'_, M>, link: &Link) -> bool {
        let before = self.unacked;
        let mut complete = true;
        while let Some(entry) = self.entries.front() {
            if entry.is_read() {
                // Only responses complete a READ.
                complete = psn.diff(entry.expected()) <= 0;
                break;
            }
            let end = entry.end();
            if psn.diff(end) < 0 {
                if psn.diff(self.unacked) > 0 {
                    self.unacked = psn;
                    self.skip_acknowledged();
                }
                break;
            }
            self.unacked = end;
            self.complete_front(context, link);
        }
        if self.unacked != before {
            let packets = self.unacked.distance_from(before);
            self.progressed(packets, context.now, context.config);
        }
        complete
    }

    /// After going back, acknowledgements of the first transmission can overtake the cursor.
    fn skip_acknowledged(&mut self) {
        if self.cursor == 0
            && let Some(front) = self.entries.front()
        {
            let acknowledged = self.unacked.diff(front.first).unsigned_abs();
            self.cursor_packet = self.cursor_packet.max(acknowledged);
        }
    }

    fn complete_front(&mut self, context: &mut Context<'_, M>, link: &Link) {
        let Some(entry) = self.entries.pop_front() else {
            return;
        };
        if self.cursor > 0 {
            self.cursor -= 1;
            self.reads_out -= usize::from(entry.is_read());
        } else {
            self.cursor_packet = 0;
        }
        complete(entry, WcStatus::Success, context, link);
        // The memory of a burst is freed, so that idle queue pairs stay small.
        if self.entries.is_empty() && self.entries.capacity() > IDLE_ROOM_MAX {
            self.entries.shrink_to(IDLE_ROOM_MAX / 2);
        }
        if self.held.is_empty() && self.held.capacity() > IDLE_ROOM_MAX {
            self.held.shrink_to(IDLE_ROOM_MAX / 2);
        }
    }

    fn progressed(&mut self, packets: u32, now: Instant, config: &EndpointConfig) {
        // The probe left behind all others: what its answer does not cover was lost. If it covers
        // everything, nothing was lost but an acknowledgement.
        if std::mem::take(&mut self.probing) && self.unacked != self.high {
            self.window.lost(config);
        }
        self.window.acknowledged(packets, config);
        self.retries = 0;
        self.rnr_retries = 0;
        self.naks = 0;
        self.went_back = None;
        self.early_response = None;
        self.round_trip.end(self.unacked, now);
        if self.unacked == self.high || self.rnr_until.is_some() {
            self.deadline = None;
            self.waiting_since = None;
        } else {
            self.deadline = Some(now + self.timeout(config));
            self.waiting_since = Some(now);
        }
    }

    /// The network marked a packet of this queue pair as having met congestion.
    pub(super) fn congested(&mut self, mark: Mark, now: Instant, config: &EndpointConfig) {
        let round_trip = self.round_trip.smoothed();
        self.window.marked(mark, now, round_trip, config);
    }

    fn timeout(&self, config: &EndpointConfig) -> Duration {
        // To probe for a READ repeats all of its answer, so it is not done early.
        let is_read = self.entries.front().is_some_and(Entry::is_read);
        if self.retries == 0 && !is_read {
            return self.round_trip.probe_timeout(config);
        }
        let backoff = 1u32 << self.retries.saturating_sub(1).min(16);
        (self.round_trip.timeout(config) * backoff).min(config.ack_timeout_max)
    }

    /// Goes back because the peer said so, but not twice for the same loss: then it is false.
    fn go_back_once(&mut self, psn: Psn, context: &Context<'_, M>) -> bool {
        let pause = self.round_trip.smoothed().unwrap_or_default() / 2;
        let pause = pause.min(context.config.ack_timeout_min / 2);
        let recently = self.went_back.is_some_and(|(last, at)| {
            last == psn && context.now.saturating_duration_since(at) < pause
        });
        if recently {
            return false;
        }
        self.went_back = Some((psn, context.now));
        self.probing = false;
        if self.go_back(psn) {
            self.window.lost(context.config);
        }
        if self.rnr_until.is_none() {
            self.deadline = Some(context.now + self.timeout(context.config));
            self.waiting_since.get_or_insert(context.now);
        }
        true
    }

    /// Moves the cursor back so that `psn` is sent next; false if it is not past it.
    fn go_back(&mut self, psn: Psn) -> bool {
        let mut index = 0;
        while let Some(entry) = self.entries.get(index) {
            if psn.diff(entry.end()) < 0 {
                break;
            }
            index += 1;
        }
        let Some(entry) = self.entries.get(index) else {
            return false;
        };
        let packet = psn.diff(entry.first).max(0).unsigned_abs();
        if (index, packet) >= (self.cursor, self.cursor_packet) {
            return false;
        }
        for read in self.entries.range(index..self.cursor) {
            if read.is_read() {
                self.reads_out -= 1;
                self.read_packets_out -= read.missing();
            }
        }
        self.cursor = index;
        self.cursor_packet = if entry.is_read() { 0 } else { packet };
        self.since_ack_request = 0;
        self.round_trip.forget_sample();
        true
    }

    pub(super) fn handle_timeout(&mut self, context: &mut Context<'_, M>) -> Result<(), Failure> {
        if let Some(until) = self.rnr_until {
            if until <= context.now {
                self.rnr_until = None;
            }
            return Ok(());
        }
        if self.deadline.is_none_or(|deadline| deadline > context.now) {
            return Ok(());
        }
        if self.unacked == self.high {
            self.deadline = None;
            self.waiting_since = None;
            return Ok(());
        }
        context.counters.ack_timeouts += 1;
        self.retries += 1;
        let waited = self.waiting_since.map_or(Duration::ZERO, |since| {
            context.now.saturating_duration_since(since)
        });
        if self.retries > TRIES_MIN && waited >= context.config.give_up_after {
            return Err(Failure::local(WcStatus::RetryExceeded));
        }
        self.went_back = None;
        self.early_response = None;
        self.go_back(self.unacked);
        self.probing = true;
        if self.retries > 1 {
            // The probe was not answered either.
            self.window.silence(context.config);
        }
        self.deadline = Some(context.now + self.timeout(context.config));
        Ok(())
    }

    /// Ends everything: the oldest work request with `status`, the others flushed.
    pub(super) fn flush(&mut self, status: WcStatus, context: &mut Context<'_, M>, link: &Link) {
        let mut status = status;
        for entry in self.entries.drain(..).chain(self.held.drain(..)) {
            complete(entry, status, context, link);
            status = WcStatus::Flushed;
        }
        self.held_packets = 0;
        self.cursor = 0;
        self.cursor_packet = 0;
        self.reads_out = 0;
        self.read_packets_out = 0;
        self.unacked = self.next;
        self.high = self.next;
        self.deadline = None;
        self.waiting_since = None;
        self.rnr_until = None;
    }
}

fn complete<M: Memory>(
    entry: Entry<M>,
    status: WcStatus,
    context: &mut Context<'_, M>,
    link: &Link,
) {
    let len = if status == WcStatus::Success {
        entry.len
    } else {
        0
    };
    context.complete(
        link,
        entry.wr_id,
        entry.kind,
        status,
        len,
        None,
        entry.memory,
    );
}
