//! Devices whose queue pairs are divided among several endpoints, so that each can live on a processor of
//! its own.
//!
//! The first part has connection management; a connection that it hands over belongs to another part from
//! then on: its queue pair, its memory, its data. Parts share nothing; they send each other [`Relay`]s, a
//! few in the life of a connection. Guarantee: a queue pair's number tells its part ([`Part::owns`]), so
//! that packets find their way without a table.

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use super::connections::Pending;
use super::{Endpoint, Event, RequestId};
use crate::cm::{self, ConnId};
use crate::memory::Memory;
use crate::wire::cm::RejectReason;
use crate::wire::{GSI_QPN, Path, PathMtu};

/// Which part of a device an endpoint is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    index: usize,
    count: usize,
}

impl Part {
    /// A device in one piece.
    pub const WHOLE: Self = Self { index: 0, count: 1 };

    /// All parts of a device; at least one.
    pub fn all(count: usize) -> impl Iterator<Item = Self> {
        let count = count.max(1);
        (0..count).map(move |index| Self { index, count })
    }

    /// Its number, from 0 on.
    pub fn index(self) -> usize {
        self.index
    }

    /// How many parts the device has.
    pub fn count(self) -> usize {
        self.count
    }

    /// The part that packets to a queue pair are for; the management queue pair is the first one's.
    #[inline]
    pub fn of(self, qpn: u32) -> usize {
        match qpn {
            GSI_QPN => 0,
            _ => qpn as usize % self.count,
        }
    }

    /// Whether packets to a queue pair are for this part.
    #[inline]
    pub fn owns(self, qpn: u32) -> bool {
        self.of(qpn) == self.index
    }

    /// The closest number not above `qpn` that is this part's.
    pub(super) fn number(self, qpn: u32) -> u32 {
        // A device has a few dozens of parts at most.
        let (index, count) = (self.index as u32, self.count as u32);
        (qpn - qpn % count).saturating_add(index)
    }
}

/// A message from one part of a device to another.
#[derive(Debug)]
pub struct Relay(pub(super) Message);

#[derive(Debug)]
pub(super) enum Message {
    /// The first part hands a connection request over.
    Offer {
        conn: ConnId,
        service_id: u64,
        private_data: Vec<u8>,
        pending: Pending,
    },
    /// What became of a connection that was handed over.
    Event(cm::Event),
    /// A part answers a request, or ends a connection.
    Accept {
        conn: ConnId,
        accept: cm::Accept,
    },
    Reject {
        conn: ConnId,
        reason: RejectReason,
        private_data: Vec<u8>,
    },
    DataReceived {
        conn: ConnId,
    },
    Disconnect {
        conn: ConnId,
    },
    Abandon {
        conn: ConnId,
    },
}

/// What a part knows of the others.
#[derive(Debug)]
pub(super) struct Relays {
    pub(super) part: Part,
    /// Messages to others, with their indices.
    pub(super) out: VecDeque<(usize, Relay)>,
    /// In the first part: which part has each connection that it handed over.
    pub(super) handed: HashMap<ConnId, usize>,
}

impl Relays {
    pub(super) fn new(part: Part) -> Self {
        Self {
            part,
            out: VecDeque::new(),
            handed: HashMap::new(),
        }
    }

    /// Whether connection management is another part's.
    pub(super) fn is_elsewhere(&self) -> bool {
        self.part.index > 0
    }

    pub(super) fn tell_first(&mut self, message: Message) {
        self.out.push_back((0, Relay(message)));
    }
}

impl<M: Memory> Endpoint<M> {
    /// Which part of a device this is.
    pub fn part(&self) -> Part {
        self.connections.relays.part
    }

    /// Hands a connection request over to another part, which reports it as its own. The values are
    /// those of the request's event.
    pub fn hand_over(
        &mut self,
        request: RequestId,
        to: usize,
        service_id: u64,
        private_data: Vec<u8>,
    ) {
        let conn = request.0;
        // The peer withdrew its request: no part has to take it.
        let Some(pending) = self.connections.pending.remove(&conn) else {
            return;
        };
        self.connections.relays.handed.insert(conn, to);
        let offer = Message::Offer {
            conn,
            service_id,
            private_data,
            pending,
        };
        self.connections.relays.out.push_back((to, Relay(offer)));
    }

    /// How many connections were handed over to other parts and have not ended.
    pub fn handed_over(&self) -> usize {
        self.connections.relays.handed.len()
    }

    /// How many connections a part of the device has, those that wait for an answer and those whose end is under way
    /// among them. Only the first part knows that of others.
    pub fn connections_of(&self, part: usize) -> usize {
        if part == self.part().index() {
            return self.qps.len() + self.connections.pending.len();
        }
        let handed = self.connections.relays.handed.values();
        handed.filter(|to| **to == part).count()
    }

    /// The next message for another part, with that part's index. They must arrive in order.
    pub fn poll_relay(&mut self) -> Option<(usize, Relay)> {
        self.connections.relays.out.pop_front()
    }

    /// Takes a message of another part.
    pub fn handle_relay(&mut self, now: Instant, relay: Relay) {
        self.now = Some(now);
        let manager = &mut self.connections.manager;
        match relay.0 {
            Message::Offer {
                conn,
                service_id,
                private_data,
                pending,
            } => {
                let Pending { path, mtu, .. } = pending;
                self.connections.pending.insert(conn, pending);
                self.report_request(conn, path, service_id, private_data, mtu);
            }
            Message::Event(event) => self.handle_connection_event(now, event),
            Message::Accept { conn, accept } => {
                if manager.accept(now, conn, &accept).is_err() {
                    // The connection ended here too: this part has reported that, or is about to.
                    manager.disconnect(now, conn);
                }
            }
            Message::Reject {
                conn,
                reason,
                private_data,
            } => {
                self.connections.relays.handed.remove(&conn);
                // It can only fail because the request is gone.
                let _ = manager.reject(now, conn, reason, &private_data);
            }
            Message::DataReceived { conn } => manager.data_received(now, conn),
            Message::Disconnect { conn } => manager.disconnect(now, conn),
            Message::Abandon { conn } => manager.abandon(now, conn),
        }
        self.handle_connection_events(now);
    }

    pub(super) fn report_request(
        &mut self,
        conn: ConnId,
        path: Path,
        service_id: u64,
        private_data: Vec<u8>,
        mtu: PathMtu,
    ) {
        self.events.push_back(Event::ConnectRequest {
            request: RequestId(conn),
            path,
            service_id,
            private_data,
            mtu,
        });
    }
}
