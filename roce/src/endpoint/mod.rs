//! An endpoint: all queue pairs, memory regions and connections of one device.
//!
//! Pure: packets, time and entropy come in as arguments; packets, a timer and events go out.
//!
//! Guarantees:
//! - Every work request that was taken is reported once, with its memory, before the end of its
//!   connection is; also if the connection fails, is ended, or its queue pair is destroyed.
//! - A packet counts only for the queue pair that it names, and only from that queue pair's peer. A
//!   peer that breaks the rules ends its own queue pair and disturbs no other.
//! - Everything is bounded by [`EndpointConfig`]; the path of a packet allocates nothing.
//!
//! How to drive it: give packets to `handle_packet` as they come, then take events, answer them with
//! work, and call `poll_transmit` until it has nothing left; call `handle_timeout` at `poll_timeout`.

mod config;
mod connections;
mod event;
mod parts;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Instant;

pub use config::EndpointConfig;
use connections::Connections;
pub use event::{
    AcceptParams, ConnectParams, Counters, DisconnectReason, Event, PostError, QpId, RequestId,
    SendWork, Transmit, WcKind, WcStatus,
};

pub use parts::{Part, Relay};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha12Rng;

use crate::cm::CmError;
use crate::memory::{Access, Memory, RandomKeyMap, RegionKey, RegionTable, RegisterError};
use crate::qp::{Context, Failure, QueuePair, Sender};
pub use crate::wire::cm::RejectReason;
use crate::wire::{GSI_QPN, PKEY_DEFAULT, Packet, QPN_MAX};
pub use crate::wire::{Path, PathMtu};

/// Room for the largest header: BTH and RETH, or BTH, DETH and a management datagram's.
const HEADER_BYTES_MAX: usize = 64;

/// The table has room for all queue pairs that are allowed from the start, up to this many (1 MiB).
const TABLE_ROOM_MAX: usize = 1 << 16;

/// The bits of a partition key that name the partition; the highest says full member.
const PKEY_MASK: u16 = 0x7fff;

/// Why a listener, a connection or an answer could not be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// The table of queue pairs is full.
    #[error("all {limit} queue pairs are in use; disconnect some or raise max_qps")]
    TooManyQueuePairs {
        /// The configured maximum.
        limit: usize,
    },
    /// The request is unknown: it was answered, or its peer gave up.
    #[error("the connection request is gone; its peer gave up or it was answered before")]
    NoSuchRequest,
    /// Connection management refused.
    #[error(transparent)]
    Connection(#[from] CmError),
}

/// Whether a packet is of the partition that all queue pairs belong to.
fn is_of_partition(packet: &Packet<'_>) -> bool {
    packet.bth.pkey & PKEY_MASK == PKEY_DEFAULT & PKEY_MASK
}

/// All queue pairs, memory regions and connections of one device.
pub struct Endpoint<M: Memory> {
    config: EndpointConfig,
    random: ChaCha12Rng,
    /// Boxed, and with room for all of them from the start: a table that moved its queue pairs when it
    /// grows would hold all hosts up.
    qps: RandomKeyMap<Box<QueuePair<M>>>,
    regions: RegionTable<M>,
    /// Queue pairs with something to send, each once, in the order of their turns.
    ring: VecDeque<u32>,
    /// When to look at which queue pair. Entries whose time is not the queue pair's `timer_queued`
    /// are out of date: moving a deadline back costs nothing.
    timers: BinaryHeap<Reverse<(Instant, u32)>>,
    events: VecDeque<Event<M>>,
    counters: Counters,
    /// The header of the packet being sent.
    header: Vec<u8>,
    connections: Connections,
    /// The latest time that was given, for calls without one.
    now: Option<Instant>,
}

/// What the endpoint has to do about a queue pair after each use of it, beside its turn and its timer.
enum Next {
    Nothing,
    /// The peer's connection management is to be told, or the queue pair forgotten.
    Farewell,
    Failed {
        failure: Failure,
        /// Its last packets have to leave before that.
        can_send: bool,
    },
}

impl Next {
    /// Gives a queue pair its turn to send and its timer, and says what else has to be done about it.
    #[inline]
    fn plan<M: Memory>(
        qp: &mut QueuePair<M>,
        qpn: u32,
        config: &EndpointConfig,
        ring: &mut VecDeque<u32>,
        timers: &mut BinaryHeap<Reverse<(Instant, u32)>>,
        failure: Option<Failure>,
    ) -> Self {
        let can_send = qp.can_send(config);
        if can_send && !qp.scheduled {
            qp.scheduled = true;
            ring.push_back(qpn);
        }
        if let Some(deadline) = qp.deadline()
            && qp.timer_queued.is_none_or(|queued| deadline < queued)
        {
            qp.timer_queued = Some(deadline);
            timers.push(Reverse((deadline, qpn)));
        }
        match failure {
            Some(failure) => Self::Failed { failure, can_send },
            None if qp.farewell.is_due(can_send) => Self::Farewell,
            None => Self::Nothing,
        }
    }
}

impl<M: Memory> Endpoint<M> {
    /// Makes an endpoint. The seed must be fresh entropy: it makes keys, queue pair numbers and the
    /// device's identity unguessable, and different from those before a restart.
    pub fn new(config: EndpointConfig, seed: [u8; 32]) -> Self {
        Self::with_part(config, seed, Part::WHOLE)
    }

    /// Makes the endpoint of a part of a device. Only the first one listens and connects; the bounds are
    /// of each. Seeds must differ.
    pub fn with_part(config: EndpointConfig, seed: [u8; 32], part: Part) -> Self {
        let config = config.clamped();
        let mut random = ChaCha12Rng::from_seed(seed);
        Self {
            connections: Connections::new(&config, part, &mut random),
            regions: RegionTable::new(config.max_regions),
            random,
            qps: RandomKeyMap::with_capacity_and_hasher(
                config.max_qps.min(TABLE_ROOM_MAX),
                Default::default(),
            ),
            ring: VecDeque::new(),
            timers: BinaryHeap::new(),
            events: VecDeque::new(),
            counters: Counters::default(),
            header: Vec::with_capacity(HEADER_BYTES_MAX),
            now: None,
            config,
        }
    }

    /// Takes one packet: a UDP payload whose ICRC was verified and cut off.
    ///
    /// A packet that does not parse, is for nobody, or comes from another address than its queue
    /// pair's peer is counted and dropped, as Linux rxe does.
    pub fn handle_packet(&mut self, now: Instant, path: Path, packet: &[u8]) {
        self.handle_packets(now, path, false, [packet]);
    }

    /// Takes one packet as [`handle_packet`](Self::handle_packet) does, one that the network marked as
    /// having met congestion (CE in its IP header).
    pub fn handle_marked_packet(&mut self, now: Instant, path: Path, packet: &[u8]) {
        self.handle_packets(now, path, true, [packet]);
    }

    /// Takes packets of one peer as [`handle_packet`](Self::handle_packet) does, `marked` ones or not. Those to one
    /// queue pair that follow each other need one look at the tables, so packets that the kernel merged (GRO) are
    /// best given together.
    pub fn handle_packets<'p>(
        &mut self,
        now: Instant,
        path: Path,
        marked: bool,
        packets: impl IntoIterator<Item = &'p [u8]>,
    ) {
        self.now = Some(now);
        let mut packets = packets.into_iter();
        let mut first = packets.next();
        while let Some(packet) = first {
            first = self.take_run(now, path, marked, packet, &mut packets);
        }
    }

    /// Takes a packet, and those behind it that are for the same queue pair. Gives the first one that is not.
    fn take_run<'p>(
        &mut self,
        now: Instant,
        path: Path,
        marked: bool,
        first: &'p [u8],
        others: &mut impl Iterator<Item = &'p [u8]>,
    ) -> Option<&'p [u8]> {
        self.counters.packets_received += 1;
        let Ok(mut packet) = Packet::parse(first) else {
            self.counters.malformed += 1;
            return others.next();
        };
        let qpn = packet.bth.dest_qpn;
        if qpn == GSI_QPN {
            self.handle_management(now, path, &packet);
            return others.next();
        }
        let Some(qp) = self.qps.get(&qpn) else {
            self.counters.unknown_qp += 1;
            return others.next();
        };
        if qp.path() != path {
            self.counters.wrong_address += 1;
            return others.next();
        }
        // The peer's first packet can overtake its confirmation.
        if qp.is_waiting_for_peer() && packet.bth.opcode.is_request() && is_of_partition(&packet) {
            self.established_by_data(now, qpn);
        }
        let mut next = None;
        self.with_qp(now, qpn, |qp, context| {
            loop {
                let handled = match is_of_partition(&packet) {
                    true => {
                        if marked {
                            qp.congested(packet.bth.opcode, packet.bth.psn, context);
                        }
                        qp.handle_packet(&packet, context)
                    }
                    false => {
                        context.counters.malformed += 1;
                        Ok(())
                    }
                };
                next = others.next();
                handled?;
                packet = match next.map(Packet::parse) {
                    Some(Ok(packet)) if packet.bth.dest_qpn == qpn && !qp.is_waiting_for_peer() => {
                        packet
                    }
                    _ => return Ok(()),
                };
                context.counters.packets_received += 1;
            }
        });
        next
    }

    /// Does what is due. Call it when the time of [`poll_timeout`](Self::poll_timeout) has come.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.now = Some(now);
        while let Some(&Reverse((at, qpn))) = self.timers.peek()
            && at <= now
        {
            self.timers.pop();
            let Some(qp) = self.qps.get_mut(&qpn) else {
                continue;
            };
            if qp.timer_queued != Some(at) {
                continue;
            }
            qp.timer_queued = None;
            self.with_qp(now, qpn, QueuePair::handle_timeout);
        }
        self.handle_connection_timeouts(now);
    }

    /// When `handle_timeout` wants to be called next. It may be early, never late.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let queue_pairs = self.timers.peek().map(|Reverse((at, _))| *at);
        match (queue_pairs, self.connections.manager.poll_timeout()) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        }
    }

    /// Gives at most `limit` packets to the sink and returns how many. Queue pairs take turns of
    /// [`transmit_quantum_bytes`](EndpointConfig::transmit_quantum_bytes); within a turn the packets of
    /// a message follow each other.
    ///
    /// Call it after a batch of packets, not after each: acknowledgements are coalesced until then.
    ///
    /// The payloads are memory of work requests and regions. This call drops none of it, so bytes that a
    /// memory holds behind a pointer stay where they are until another method is called.
    pub fn poll_transmit(
        &mut self,
        now: Instant,
        limit: usize,
        sink: &mut dyn FnMut(Transmit<'_>),
    ) -> usize {
        let mut sent = self.transmit_management(limit, sink);
        while sent < limit
            && let Some(qpn) = self.ring.pop_front()
        {
            let Some(qp) = self.qps.get_mut(&qpn) else {
                continue;
            };
            qp.scheduled = false;
            let mut context = Context {
                now,
                config: &self.config,
                regions: &mut self.regions,
                events: &mut self.events,
                counters: &mut self.counters,
            };
            let mut sender = Sender {
                header: &mut self.header,
                sink,
                quantum: self.config.transmit_quantum_bytes,
            };
            let (count, failure) = match qp.transmit(&mut context, limit - sent, &mut sender) {
                Ok(count) => (count, None),
                Err((count, failure)) => (count, Some(failure)),
            };
            sent += count;
            let (ring, timers) = (&mut self.ring, &mut self.timers);
            let next = Next::plan(qp, qpn, &self.config, ring, timers, failure);
            self.follow(now, qpn, next);
        }
        self.counters.packets_sent += sent as u64;
        sent
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event<M>> {
        self.events.pop_front()
    }

    /// Posts memory for one incoming SEND.
    ///
    /// # Errors
    /// [`PostError`] with the memory.
    pub fn post_receive(&mut self, qp: QpId, wr_id: u64, memory: M) -> Result<(), (PostError, M)> {
        match self.qps.get_mut(&qp.0) {
            Some(qp) => qp.post_receive(&self.config, wr_id, memory),
            None => Err((PostError::NoSuchQueuePair, memory)),
        }
    }

    /// Posts a SEND, READ or WRITE.
    ///
    /// # Errors
    /// [`PostError`] with the work.
    pub fn post_send(
        &mut self,
        now: Instant,
        qp: QpId,
        wr_id: u64,
        work: SendWork<M>,
    ) -> Result<(), (PostError, SendWork<M>)> {
        let Some(queue_pair) = self.qps.get_mut(&qp.0) else {
            return Err((PostError::NoSuchQueuePair, work));
        };
        queue_pair.post_send(&self.config, wr_id, work)?;
        let (ring, timers) = (&mut self.ring, &mut self.timers);
        let next = Next::plan(queue_pair, qp.0, &self.config, ring, timers, None);
        self.follow(now, qp.0, next);
        Ok(())
    }

    /// Makes memory reachable for peers, through any queue pair of this endpoint.
    ///
    /// # Errors
    /// [`RegisterError`] with the memory.
    pub fn register(&mut self, memory: M, access: Access) -> Result<RegionKey, (RegisterError, M)> {
        self.regions
            .register(&mut self.random, memory, access, None)
    }

    /// Makes memory reachable for the peer of one queue pair only.
    ///
    /// # Errors
    /// [`RegisterError`] with the memory.
    pub fn register_for(
        &mut self,
        qp: QpId,
        memory: M,
        access: Access,
    ) -> Result<RegionKey, (RegisterError, M)> {
        self.regions
            .register(&mut self.random, memory, access, Some(qp.0))
    }

    /// Ends all remote access to a region and hands its memory back. None if there is no such
    /// region.
    pub fn deregister(&mut self, rkey: u32) -> Option<M> {
        self.regions.deregister(rkey)
    }

    /// How many queue pairs exist, connecting and closing ones included, and how many bytes they take,
    /// posted memory not included. Looks at each of them.
    pub fn queue_pairs(&self) -> (usize, usize) {
        // The table has a key, a pointer and a control byte for each of its places.
        let place = size_of::<u32>() + size_of::<usize>() + 1;
        let table = self.qps.capacity() * place;
        let each = self.qps.values().map(|qp| qp.bytes());
        (self.qps.len(), table + each.sum::<usize>())
    }

    /// What happened since the start.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Lets a queue pair work, then does what follows from it.
    fn with_qp(
        &mut self,
        now: Instant,
        qpn: u32,
        work: impl FnOnce(&mut QueuePair<M>, &mut Context<'_, M>) -> Result<(), Failure>,
    ) {
        let Some(qp) = self.qps.get_mut(&qpn) else {
            return;
        };
        let mut context = Context {
            now,
            config: &self.config,
            regions: &mut self.regions,
            events: &mut self.events,
            counters: &mut self.counters,
        };
        let failure = work(qp, &mut context).err();
        let next = Next::plan(
            qp,
            qpn,
            &self.config,
            &mut self.ring,
            &mut self.timers,
            failure,
        );
        self.follow(now, qpn, next);
    }

    /// After anything was done with a queue pair: its turn to send, its timer, its end.
    fn after(&mut self, now: Instant, qpn: u32) {
        let Some(qp) = self.qps.get_mut(&qpn) else {
            return;
        };
        let (ring, timers) = (&mut self.ring, &mut self.timers);
        let next = Next::plan(qp, qpn, &self.config, ring, timers, None);
        self.follow(now, qpn, next);
    }

    /// The rare part of that, apart: most packets need no second look at the table.
    #[inline]
    fn follow(&mut self, now: Instant, qpn: u32, next: Next) {
        let due = match next {
            Next::Nothing => false,
            Next::Farewell => true,
            Next::Failed { failure, can_send } => {
                self.failed(qpn, failure.status);
                let qp = self.qps.get(&qpn);
                qp.is_some_and(|qp| qp.farewell.is_due(can_send))
            }
        };
        if due {
            self.say_farewell(now, qpn);
        }
    }

    /// A queue pair number that no queue pair has.
    fn random_qpn(&mut self) -> u32 {
        loop {
            // 0 and 1 are the management queue pairs, the highest means multicast.
            let qpn = self.part().number(self.random.random_range(2..QPN_MAX));
            let reserved = qpn <= GSI_QPN || qpn >= QPN_MAX;
            if !reserved && !self.qps.contains_key(&qpn) {
                return qpn;
            }
        }
    }
}
