//! Connections of an endpoint: what joins connection management to queue pairs.
//!
//! Guarantees: a queue pair takes packets only once its peer is known; what was posted is completed
//! before the end of its connection is reported, which happens once; a queue pair that failed sends
//! its NAK before its connection management sends the DREQ.

use std::collections::HashMap;
use std::time::Instant;

use rand::Rng;
use rand_chacha::ChaCha12Rng;

use super::parts::{Message, Part, Relay, Relays};
use super::{
    AcceptParams, ConnectParams, DisconnectReason, Endpoint, EndpointConfig, EndpointError, Event,
    QpId, RejectReason, RequestId, Transmit, WcStatus,
};
use crate::cm::{self, CmError, ConnId, Manager};
use crate::memory::Memory;
use crate::qp::{Agreement, Context, QueuePair, Sender};
use crate::wire::cm::CmTimeout;
use crate::wire::{Packet, Path, PathMtu, Psn};

/// How long the peer shall wait for our acknowledgements: 4.096 us * 2^15 = 134 ms.
const ACK_TIMEOUT_CODE: u8 = 15;

/// How often the peer shall repeat packets; 7 is the most that the field can say.
const PEER_RETRY_COUNT: u8 = 7;

/// A request that waits for the application's answer.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) path: Path,
    pub(super) mtu: PathMtu,
    peer: cm::Peer,
}

/// An active connection that waits for the peer's answer, or any connection with a queue pair.
struct Joined {
    qpn: u32,
    /// With which sequence number the peer begins.
    receive_psn: Psn,
}

/// Connection management, and which connection belongs to which queue pair.
pub(super) struct Connections {
    pub(super) manager: Manager,
    pub(super) relays: Relays,
    pub(super) pending: HashMap<ConnId, Pending>,
    joined: HashMap<ConnId, Joined>,
    /// Sequence number of the next management packet. Nobody checks it.
    management_psn: Psn,
}

impl Connections {
    pub(super) fn new(config: &EndpointConfig, part: Part, random: &mut ChaCha12Rng) -> Self {
        let manager = cm::Config {
            // A queue pair that was destroyed can leave a connection whose DREQ is not answered yet.
            max_connections: config.max_qps * 2 + config.max_pending_connects,
            max_pending: config.max_pending_connects,
            response_timeout: config.cm_timeout,
            retries: config.cm_retries,
            ..cm::Config::default()
        };
        Self {
            manager: Manager::new(manager, random.random()),
            relays: Relays::new(part),
            pending: HashMap::new(),
            joined: HashMap::new(),
            management_psn: Psn::default(),
        }
    }

    // The connection management of a part is the first part's.

    fn accept(&mut self, now: Instant, conn: ConnId, accept: cm::Accept) -> Result<(), CmError> {
        if self.relays.is_elsewhere() {
            self.relays.tell_first(Message::Accept { conn, accept });
            return Ok(());
        }
        self.manager.accept(now, conn, &accept)
    }

    fn reject(&mut self, now: Instant, conn: ConnId, reason: RejectReason, private_data: &[u8]) {
        if self.relays.is_elsewhere() {
            let private_data = private_data.to_vec();
            return self.relays.tell_first(Message::Reject {
                conn,
                reason,
                private_data,
            });
        }
        // It can only fail because the request is gone, and then there is nothing to refuse.
        let _ = self.manager.reject(now, conn, reason, private_data);
    }

    fn data_received(&mut self, now: Instant, conn: ConnId) {
        match self.relays.is_elsewhere() {
            true => self.relays.tell_first(Message::DataReceived { conn }),
            false => self.manager.data_received(now, conn),
        }
    }

    fn disconnect(&mut self, now: Instant, conn: ConnId) {
        match self.relays.is_elsewhere() {
            true => self.relays.tell_first(Message::Disconnect { conn }),
            false => self.manager.disconnect(now, conn),
        }
    }

    fn abandon(&mut self, now: Instant, conn: ConnId) {
        match self.relays.is_elsewhere() {
            true => self.relays.tell_first(Message::Abandon { conn }),
            false => self.manager.abandon(now, conn),
        }
    }
}

impl<M: Memory> Endpoint<M> {
    /// Accepts connection requests for a service from here on.
    ///
    /// # Errors
    /// If the service is listened on already, or too many are.
    pub fn listen(&mut self, service_id: u64) -> Result<(), EndpointError> {
        Ok(self.connections.manager.listen(service_id)?)
    }

    /// Refuses connection requests for a service from here on. Connections stay. False if nobody
    /// listened.
    pub fn unlisten(&mut self, service_id: u64) -> bool {
        self.connections.manager.unlisten(service_id)
    }

    /// Starts to connect. `Connected`, `Rejected` or `Disconnected` follows. Receives can be posted
    /// at once, work for the send queue after `Connected`.
    ///
    /// # Errors
    /// If there is no room for another connection, or the parameters do not fit.
    pub fn connect(
        &mut self,
        now: Instant,
        path: Path,
        params: ConnectParams,
    ) -> Result<QpId, EndpointError> {
        self.now = Some(now);
        self.check_room()?;
        let qpn = self.random_qpn();
        let receive_psn = self.random_psn();
        let reads_max = self.config.max_reads_in_flight;
        let offer = |wanted: u8| {
            if wanted == 0 {
                reads_max
            } else {
                wanted.min(reads_max)
            }
        };
        let local = cm::Local {
            responder_resources: offer(params.responder_resources),
            initiator_depth: offer(params.initiator_depth),
            ..self.local(qpn, receive_psn)
        };
        let ConnectParams {
            service_id,
            private_data,
            mtu,
            ..
        } = params;
        let connect = cm::Connect {
            path,
            service_id,
            local,
            mtu,
            private_data,
        };
        let conn = self.connections.manager.connect(now, connect)?;
        self.join(conn, QueuePair::new(qpn, path, mtu), qpn, receive_psn);
        Ok(QpId(qpn))
    }

    /// Accepts a connection request. Post receives right after it: the peer may send as soon as it
    /// has the answer, before `Established`. Work for the send queue can be posted, too; it leaves
    /// when the peer is ready.
    ///
    /// # Errors
    /// If the request is gone, there is no room for another queue pair, or the private data does
    /// not fit. In the latter two cases the request still waits for an answer.
    pub fn accept(
        &mut self,
        now: Instant,
        request: RequestId,
        params: AcceptParams,
    ) -> Result<QpId, EndpointError> {
        self.now = Some(now);
        let conn = request.0;
        let Some(&Pending {
            path, mtu, peer, ..
        }) = self.connections.pending.get(&conn)
        else {
            return Err(EndpointError::NoSuchRequest);
        };
        self.check_room()?;
        let qpn = self.random_qpn();
        let receive_psn = self.random_psn();
        let accept = cm::Accept {
            local: self.local(qpn, receive_psn),
            private_data: params.private_data,
        };
        match self.connections.accept(now, conn, accept) {
            Ok(()) => {}
            Err(CmError::NoSuchConnection | CmError::WrongState) => {
                self.connections.pending.remove(&conn);
                return Err(EndpointError::NoSuchRequest);
            }
            Err(error) => return Err(error.into()),
        }
        self.connections.pending.remove(&conn);
        let mut qp = QueuePair::new(qpn, path, mtu);
        qp.ready_to_receive(self.agreement(&peer, receive_psn));
        self.join(conn, qp, qpn, receive_psn);
        Ok(QpId(qpn))
    }

    /// Refuses a connection request. Private data beyond 148 bytes is cut off. Unknown requests are
    /// ignored: their peer gave up.
    pub fn reject(
        &mut self,
        now: Instant,
        request: RequestId,
        reason: RejectReason,
        private_data: &[u8],
    ) {
        self.now = Some(now);
        if self.connections.pending.remove(&request.0).is_some() {
            let private_data = &private_data[..private_data.len().min(148)];
            self.connections
                .reject(now, request.0, reason, private_data);
        }
    }

    /// Ends a connection: everything posted completes as `Flushed`, the peer is told, and
    /// `Disconnected` follows when it agreed or fell silent. Without effect on a connection that
    /// has ended.
    pub fn disconnect(&mut self, now: Instant, qp: QpId) {
        self.now = Some(now);
        self.with_qp(now, qp.0, |qp, context| {
            if !qp.is_closed() {
                qp.close(context);
                qp.farewell.disconnect = true;
            }
            Ok(())
        });
    }

    /// As [`disconnect`](Self::disconnect), but a peer that has not confirmed the connection gets one message and is not
    /// waited for: its address may be forged.
    pub fn abandon(&mut self, now: Instant, qp: QpId) {
        self.now = Some(now);
        self.with_qp(now, qp.0, |qp, context| {
            if !qp.is_closed() {
                qp.close(context);
                qp.farewell.disconnect = true;
                qp.farewell.abandon = true;
            }
            Ok(())
        });
    }

    /// Forgets a queue pair: what was posted completes as `Flushed`, and nothing else is reported of
    /// it from here on (what was reported before can still be in the queue of events). If the
    /// connection was still up, the peer is told.
    pub fn destroy(&mut self, qp: QpId) {
        let Some(now) = self.now else { return };
        self.with_qp(now, qp.0, |qp, context| {
            if !qp.is_closed() {
                qp.close(context);
                qp.farewell.disconnect = true;
            }
            qp.farewell.reported = true;
            qp.farewell.forget = true;
            Ok(())
        });
    }

    pub(super) fn handle_management(&mut self, now: Instant, path: Path, packet: &Packet<'_>) {
        let manager = &mut self.connections.manager;
        let elsewhere = self.connections.relays.is_elsewhere();
        if elsewhere || manager.handle_packet(now, path, packet).is_err() {
            self.counters.management_dropped += 1;
        }
        self.handle_connection_events(now);
    }

    pub(super) fn handle_connection_timeouts(&mut self, now: Instant) {
        self.connections.manager.handle_timeout(now);
        self.handle_connection_events(now);
    }

    pub(super) fn transmit_management(
        &mut self,
        limit: usize,
        sink: &mut dyn FnMut(Transmit<'_>),
    ) -> usize {
        let mut sent = 0;
        while sent < limit
            && let Some(transmit) = self.connections.manager.poll_transmit()
        {
            let psn = self.connections.management_psn;
            self.connections.management_psn = psn.next();
            let mut sender = Sender {
                header: &mut self.header,
                sink,
                quantum: usize::MAX,
            };
            sender.packet(transmit.path, transmit.packet(psn));
            sent += 1;
        }
        sent
    }

    /// Data of the peer stands for its confirmation.
    pub(super) fn established_by_data(&mut self, now: Instant, qpn: u32) {
        let Some(conn) = self.qps.get(&qpn).and_then(|qp| qp.conn) else {
            return;
        };
        self.connections.data_received(now, conn);
        self.established(now, qpn);
    }

    /// A queue pair failed and was flushed.
    pub(super) fn failed(&mut self, qpn: u32, status: WcStatus) {
        let Some(qp) = self.qps.get_mut(&qpn) else {
            return;
        };
        qp.farewell.disconnect = true;
        self.report_end(qpn, DisconnectReason::Error(status));
    }

    /// A queue pair that ended has nothing more to send.
    pub(super) fn say_farewell(&mut self, now: Instant, qpn: u32) {
        let Some(qp) = self.qps.get_mut(&qpn) else {
            return;
        };
        let farewell = qp.farewell;
        qp.farewell.disconnect = false;
        let conn = qp.conn;
        if farewell.forget {
            self.qps.remove(&qpn);
            if let Some(conn) = conn {
                self.connections.joined.remove(&conn);
            }
        }
        if farewell.disconnect
            && let Some(conn) = conn
        {
            match farewell.abandon {
                true => self.connections.abandon(now, conn),
                false => self.connections.disconnect(now, conn),
            }
            self.handle_connection_events(now);
        }
    }

    pub(super) fn handle_connection_events(&mut self, now: Instant) {
        while let Some(event) = self.connections.manager.poll_event() {
            let relays = &mut self.connections.relays;
            let conn = event.conn();
            let Some(&part) = relays.handed.get(&conn) else {
                self.handle_connection_event(now, event);
                continue;
            };
            if matches!(event, cm::Event::Disconnected { .. }) {
                relays.handed.remove(&conn);
            }
            let relay = Relay(Message::Event(event));
            relays.out.push_back((part, relay));
        }
    }

    pub(super) fn handle_connection_event(&mut self, now: Instant, event: cm::Event) {
        match event {
            cm::Event::ConnectRequest {
                conn,
                path,
                service_id,
                mtu,
                peer,
                private_data,
            } => {
                self.connections
                    .pending
                    .insert(conn, Pending { path, mtu, peer });
                self.report_request(conn, path, service_id, private_data, mtu);
            }
            cm::Event::ReplyReceived {
                conn,
                peer,
                private_data,
            } => {
                self.reply_received(now, conn, &peer, private_data);
            }
            cm::Event::Established { conn } => {
                if let Some(joined) = self.connections.joined.get(&conn) {
                    self.established(now, joined.qpn);
                }
            }
            cm::Event::Rejected {
                conn,
                reason,
                private_data,
            } => {
                let Some(joined) = self.connections.joined.remove(&conn) else {
                    return;
                };
                self.close(now, joined.qpn);
                let qp = QpId(joined.qpn);
                let removed = self.qps.remove(&joined.qpn);
                if removed.is_some_and(|removed| !removed.farewell.reported) {
                    self.events.push_back(Event::Rejected {
                        qp,
                        reason,
                        private_data,
                    });
                }
            }
            cm::Event::Contested { conn } => {
                if let Some(joined) = self.connections.joined.get(&conn) {
                    self.with_qp(now, joined.qpn, |qp, context| {
                        qp.probe(context);
                        Ok(())
                    });
                }
            }
            cm::Event::Disconnected { conn, reason } => {
                self.connections.pending.remove(&conn);
                let Some(joined) = self.connections.joined.remove(&conn) else {
                    return;
                };
                if let Some(qp) = self.qps.get_mut(&joined.qpn) {
                    qp.conn = None;
                }
                self.close(now, joined.qpn);
                self.report_end(joined.qpn, reason.into());
            }
        }
    }

    fn reply_received(
        &mut self,
        now: Instant,
        conn: ConnId,
        peer: &cm::Peer,
        private_data: Vec<u8>,
    ) {
        let joined = self.connections.joined.get(&conn);
        let Some((qpn, receive_psn)) = joined.map(|joined| (joined.qpn, joined.receive_psn)) else {
            // The queue pair was destroyed meanwhile.
            self.connections.manager.disconnect(now, conn);
            return;
        };
        let agreement = self.agreement(peer, receive_psn);
        let Some(qp) = self.qps.get_mut(&qpn).filter(|qp| !qp.is_closed()) else {
            return;
        };
        qp.ready_to_receive(agreement);
        qp.ready_to_send();
        if self.connections.manager.establish(now, conn).is_ok() {
            self.counters.connections += 1;
            self.events.push_back(Event::Connected {
                qp: QpId(qpn),
                private_data,
            });
        }
    }

    fn established(&mut self, now: Instant, qpn: u32) {
        let Some(qp) = self.qps.get_mut(&qpn) else {
            return;
        };
        if qp.is_waiting_for_peer() {
            qp.ready_to_send();
            self.counters.connections += 1;
            self.events.push_back(Event::Established { qp: QpId(qpn) });
            self.after(now, qpn);
        }
    }

    /// Flushes a queue pair whose connection is gone.
    fn close(&mut self, now: Instant, qpn: u32) {
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
        qp.close(&mut context);
    }

    fn report_end(&mut self, qpn: u32, reason: DisconnectReason) {
        let Some(qp) = self.qps.get_mut(&qpn) else {
            return;
        };
        if !qp.farewell.reported {
            qp.farewell.reported = true;
            self.events.push_back(Event::Disconnected {
                qp: QpId(qpn),
                reason,
            });
        }
    }

    fn join(&mut self, conn: ConnId, mut qp: QueuePair<M>, qpn: u32, receive_psn: Psn) {
        qp.conn = Some(conn);
        self.qps.insert(qpn, Box::new(qp));
        self.connections
            .joined
            .insert(conn, Joined { qpn, receive_psn });
    }

    fn check_room(&self) -> Result<(), EndpointError> {
        let limit = self.config.max_qps;
        if self.qps.len() >= limit {
            return Err(EndpointError::TooManyQueuePairs { limit });
        }
        Ok(())
    }

    fn local(&self, qpn: u32, receive_psn: Psn) -> cm::Local {
        cm::Local {
            qpn,
            starting_psn: receive_psn,
            responder_resources: self.config.max_reads_in_flight,
            // Never 0 in a reply: Linux hosts leave remote reads off then, and refuse ours.
            initiator_depth: self.config.max_reads_in_flight,
            ack_timeout: CmTimeout::from_code(ACK_TIMEOUT_CODE),
            retry_count: PEER_RETRY_COUNT,
            rnr_retry_count: PEER_RETRY_COUNT,
        }
    }

    fn agreement(&self, peer: &cm::Peer, receive_psn: Psn) -> Agreement {
        let limit = self.config.max_reads_in_flight;
        Agreement {
            remote_qpn: peer.qpn,
            send_psn: peer.starting_psn,
            receive_psn,
            initiator_depth: usize::from(peer.responder_resources.min(limit)),
            responder_resources: usize::from(peer.initiator_depth.min(limit)),
        }
    }

    fn random_psn(&mut self) -> Psn {
        Psn::new(self.random.random())
    }
}

impl From<cm::DisconnectReason> for DisconnectReason {
    fn from(reason: cm::DisconnectReason) -> Self {
        match reason {
            cm::DisconnectReason::Local => Self::Local,
            cm::DisconnectReason::Remote => Self::Remote,
            cm::DisconnectReason::Timeout => Self::Timeout,
            cm::DisconnectReason::Stale => Self::Stale,
            cm::DisconnectReason::Rejected(reason) => Self::Rejected(reason),
        }
    }
}
