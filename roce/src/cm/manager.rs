//! The manager of all connections: tables, timers, and what the endpoint calls.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha12Rng;

use super::connection::{Connection, State};
use super::event::{
    Accept, CmError, Config, ConnId, Connect, DisconnectReason, Dropped, Event, Transmit,
};
use crate::wire::cm::{CmTimeout, Message, PrivateData, RejectReason};
use crate::wire::{GSI_QKEY, GSI_QPN, Opcode, PKEY_DEFAULT, Packet, Path};

/// The connection management of one endpoint.
#[derive(Debug)]
pub struct Manager {
    pub(super) config: Config,
    random: ChaCha12Rng,
    /// Identifies this start of the program to peers.
    pub(super) ca_guid: u64,
    next_conn: u64,
    pub(super) services: BTreeSet<u64>,
    pub(super) connections: BTreeMap<ConnId, Connection>,
    by_comm_id: BTreeMap<u32, ConnId>,
    /// Passive connections by whose request they are: address, communication id, adapter.
    by_requester: BTreeMap<(IpAddr, u32, u64), ConnId>,
    /// Connections that are not over, by the peer's queue pair: address, adapter, number.
    by_peer_qp: BTreeMap<(IpAddr, u64, u32), ConnId>,
    /// Requests that the endpoint has not answered.
    pending: usize,
    /// Connections that are over, oldest first.
    time_wait: VecDeque<ConnId>,
    timers: BTreeSet<(Instant, ConnId)>,
    transmits: VecDeque<Transmit>,
    events: VecDeque<Event>,
}

impl Manager {
    /// A manager without connections. The seed must be different for each start of the program:
    /// peers take connections from a known adapter and queue pair for stale ones.
    pub fn new(mut config: Config, seed: [u8; 32]) -> Self {
        config.retries = config.retries.min(15);
        config.response_timeout = config.response_timeout.max(Duration::from_micros(1));
        let mut random = ChaCha12Rng::from_seed(seed);
        let ca_guid = random.random();
        Self {
            config,
            random,
            ca_guid,
            next_conn: 1,
            services: BTreeSet::new(),
            connections: BTreeMap::new(),
            by_comm_id: BTreeMap::new(),
            by_requester: BTreeMap::new(),
            by_peer_qp: BTreeMap::new(),
            pending: 0,
            time_wait: VecDeque::new(),
            timers: BTreeSet::new(),
            transmits: VecDeque::new(),
            events: VecDeque::new(),
        }
    }

    /// Accepts requests for a service from here on.
    ///
    /// # Errors
    /// If the service is listened on already, or too many are.
    pub fn listen(&mut self, service_id: u64) -> Result<(), CmError> {
        if self.services.contains(&service_id) {
            return Err(CmError::ServiceInUse(service_id));
        }
        check_limit(
            "max_listeners",
            self.services.len(),
            self.config.max_listeners,
        )?;
        self.services.insert(service_id);
        Ok(())
    }

    /// Rejects requests for a service from here on. Requests that were reported stay. Says whether
    /// the service was listened on.
    pub fn unlisten(&mut self, service_id: u64) -> bool {
        self.services.remove(&service_id)
    }

    /// Asks a peer for a connection.
    ///
    /// # Errors
    /// If the private data is too long, the addresses do not fit together, or too many connections
    /// exist.
    pub fn connect(&mut self, now: Instant, connect: Connect) -> Result<ConnId, CmError> {
        let Path { local, remote } = connect.path;
        if local.to_canonical().is_ipv4() != remote.to_canonical().is_ipv4() {
            return Err(CmError::MixedFamilies);
        }
        check_limit("max_connections", self.live(), self.config.max_connections)?;
        let connection = Connection {
            state: State::ReqSent,
            active: true,
            path: connect.path,
            management_qpn: GSI_QPN,
            local_comm_id: self.new_comm_id(),
            remote_comm_id: 0,
            transaction_id: self.random.random(),
            local: connect.local,
            peer_guid: 0,
            peer: None,
            message: None,
            retries_left: self.config.retries,
            extensions_left: self.config.retries,
            deadline: None,
        };
        let timeout = CmTimeout::at_least(self.config.response_timeout);
        let request = connection.request(&connect, self.ca_guid, timeout, self.config.retries)?;
        let conn = self.insert(connection);
        self.send_and_repeat(now, conn, &request);
        Ok(conn)
    }

    /// Accepts a request: sends the REP, and repeats it until the RTU arrives.
    ///
    /// # Errors
    /// If the request is gone or answered, or the private data is too long (then the request still
    /// waits).
    pub fn accept(&mut self, now: Instant, conn: ConnId, accept: &Accept) -> Result<(), CmError> {
        let ca_guid = self.ca_guid;
        let connection = self.in_state(conn, &[State::ReqReceived])?;
        let reply = connection.reply(accept, ca_guid)?;
        connection.local = accept.local;
        self.set_state(conn, State::RepSent);
        self.send_and_repeat(now, conn, &reply);
        Ok(())
    }

    /// Rejects a request, or a reply that was received; no event follows.
    ///
    /// # Errors
    /// If the request is gone or answered, or the private data exceeds 148 bytes (then the request
    /// still waits).
    pub fn reject(
        &mut self,
        _now: Instant,
        conn: ConnId,
        reason: RejectReason,
        private_data: &[u8],
    ) -> Result<(), CmError> {
        let private_data = PrivateData::new(private_data)?;
        self.in_state(conn, &[State::ReqReceived, State::RepReceived])?;
        self.send_rejection(conn, reason, private_data);
        self.forget(conn);
        Ok(())
    }

    /// Active side, after [`Event::ReplyReceived`]: the queue pair is ready, send the RTU.
    ///
    /// # Errors
    /// If the connection is gone or in another state.
    pub fn establish(&mut self, _now: Instant, conn: ConnId) -> Result<(), CmError> {
        let connection = self.in_state(conn, &[State::RepReceived])?;
        let ready = connection.ready_to_use();
        // The request is answered and never repeated again.
        connection.message = None;
        self.set_state(conn, State::Established);
        self.set_timer(conn, None);
        self.send(conn, &ready);
        Ok(())
    }

    /// Passive side: data of the peer arrived on the queue pair, so it has the REP. Cheap and
    /// without effect if the connection is established already or gone.
    pub fn data_received(&mut self, _now: Instant, conn: ConnId) {
        if let Ok(connection) = self.in_state(conn, &[State::RepSent]) {
            // The reply arrived and is never repeated again.
            connection.message = None;
            self.set_state(conn, State::Established);
            self.set_timer(conn, None);
            self.events.push_back(Event::Established { conn });
        }
    }

    /// Ends a connection in any state: sends a DREQ (or REJ), repeats it, and reports
    /// [`Event::Disconnected`] at the end. Without effect if it is gone or being ended.
    pub fn disconnect(&mut self, now: Instant, conn: ConnId) {
        let Some(connection) = self.connections.get(&conn) else {
            return;
        };
        match connection.state {
            // The peer does not know this side's communication id yet, or has not agreed: a
            // disconnect request would mean nothing to it.
            State::ReqSent => self.withdraw(conn, RejectReason::Timeout, DisconnectReason::Local),
            State::ReqReceived | State::RepReceived => {
                self.withdraw(conn, RejectReason::Consumer, DisconnectReason::Local);
            }
            State::RepSent | State::Established => {
                let request = connection.disconnect_request();
                self.set_state(conn, State::DreqSent);
                self.send_and_repeat(now, conn, &request);
            }
            State::DreqSent | State::TimeWait => {}
        }
    }

    /// Ends a connection whose peer may never have asked for it: one that was not confirmed is refused once and
    /// forgotten, where [`disconnect`](Self::disconnect) would repeat itself for seconds. Others are disconnected.
    pub fn abandon(&mut self, now: Instant, conn: ConnId) {
        let state = self.connections.get(&conn).map(|known| known.state);
        match state {
            Some(State::RepSent) => {
                self.withdraw(conn, RejectReason::Consumer, DisconnectReason::Local);
            }
            _ => self.disconnect(now, conn),
        }
    }

    /// Takes a packet for queue pair 1.
    ///
    /// # Errors
    /// Says why it was dropped; for counting.
    pub fn handle_packet(
        &mut self,
        now: Instant,
        path: Path,
        packet: &Packet<'_>,
    ) -> Result<(), Dropped> {
        // The highest bit of a partition key says full member; it is not part of the partition.
        let partition = packet.bth.pkey | 0x8000;
        match packet.deth {
            Some(deth)
                if packet.bth.opcode == Opcode::UdSendOnly
                    && packet.bth.dest_qpn == GSI_QPN
                    && partition == PKEY_DEFAULT
                    && deth.qkey == GSI_QKEY =>
            {
                self.handle_mad(now, path, deth.src_qpn, packet.payload)
            }
            _ => Err(Dropped::NotGsi),
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) wants to be called next.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Repeats what was not answered in time, and gives up what was repeated often enough.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some((at, conn)) = self.timers.first().copied()
            && at <= now
        {
            self.timeout(now, conn);
        }
    }

    /// The next datagram to be sent.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        self.transmits.pop_front()
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Connections in any state but time wait.
    pub fn live(&self) -> usize {
        self.connections.len() - self.time_wait.len()
    }

    /// Requests that the endpoint has not answered.
    pub fn pending(&self) -> usize {
        self.pending
    }

    fn timeout(&mut self, now: Instant, conn: ConnId) {
        self.set_timer(conn, None);
        let Some(connection) = self.connections.get_mut(&conn) else {
            return;
        };
        let state = connection.state;
        let repeats = matches!(state, State::ReqSent | State::RepSent | State::DreqSent);
        if repeats && connection.retries_left > 0 {
            connection.retries_left -= 1;
            self.send_again(conn);
            self.set_timer(conn, Some(now + self.config.response_timeout));
            return;
        }
        match state {
            State::DreqSent => self.end(now, conn, DisconnectReason::Local),
            State::TimeWait => self.forget(conn),
            State::Established => {}
            State::ReqSent | State::RepReceived | State::ReqReceived | State::RepSent => {
                self.withdraw(conn, RejectReason::Timeout, DisconnectReason::Timeout);
            }
        }
    }

    // What follows keeps the tables consistent. Only these functions change states and timers.

    /// The connection, if it exists and is in one of the states.
    fn in_state(&mut self, conn: ConnId, states: &[State]) -> Result<&mut Connection, CmError> {
        match self.connections.get_mut(&conn) {
            Some(connection) if states.contains(&connection.state) => Ok(connection),
            Some(connection) if connection.state != State::TimeWait => Err(CmError::WrongState),
            _ => Err(CmError::NoSuchConnection),
        }
    }

    pub(super) fn new_comm_id(&mut self) -> u32 {
        loop {
            let id = self.random.random();
            if id != 0 && !self.by_comm_id.contains_key(&id) {
                return id;
            }
        }
    }

    pub(super) fn insert(&mut self, connection: Connection) -> ConnId {
        let conn = ConnId(self.next_conn);
        self.next_conn += 1;
        self.by_comm_id.insert(connection.local_comm_id, conn);
        if !connection.active {
            self.by_requester.insert(requester_of(&connection), conn);
        }
        if connection.state == State::ReqReceived {
            self.pending += 1;
        }
        self.connections.insert(conn, connection);
        self.index_peer_qp(conn);
        conn
    }

    /// Makes the connection found by the peer's queue pair, once that is known.
    pub(super) fn index_peer_qp(&mut self, conn: ConnId) {
        let Some(connection) = self.connections.get(&conn) else {
            return;
        };
        if let Some(peer) = connection.peer {
            let key = (connection.path.remote, connection.peer_guid, peer.qpn);
            self.by_peer_qp.insert(key, conn);
        }
    }

    pub(super) fn by_comm_id(&self, local_comm_id: u32) -> Option<ConnId> {
        self.by_comm_id.get(&local_comm_id).copied()
    }

    pub(super) fn by_requester(&self, remote: IpAddr, comm_id: u32, guid: u64) -> Option<ConnId> {
        self.by_requester.get(&(remote, comm_id, guid)).copied()
    }

    /// A passive connection whose requester has this communication id, whatever its adapter.
    pub(super) fn by_requester_id(&self, remote: IpAddr, comm_id: u32) -> Option<ConnId> {
        let range = (remote, comm_id, 0)..=(remote, comm_id, u64::MAX);
        self.by_requester.range(range).next().map(|(_, conn)| *conn)
    }

    pub(super) fn by_peer_qp(&self, remote: IpAddr, guid: u64, qpn: u32) -> Option<ConnId> {
        self.by_peer_qp.get(&(remote, guid, qpn)).copied()
    }

    /// Whether one more request can be taken. The events are counted too: an endpoint that does not
    /// take them must not make them pile up.
    pub(super) fn has_room_for_request(&self) -> bool {
        self.pending < self.config.max_pending
            && self.live() < self.config.max_connections
            && self.events.len() < self.config.max_connections.saturating_mul(4)
    }

    /// Whether one more event may wait that nobody would miss.
    pub(super) fn has_room_for_event(&self) -> bool {
        self.events.len() < self.config.max_connections.saturating_mul(4)
    }

    pub(super) fn set_state(&mut self, conn: ConnId, state: State) {
        let Some(connection) = self.connections.get_mut(&conn) else {
            return;
        };
        let before = std::mem::replace(&mut connection.state, state);
        if before == State::ReqReceived && state != State::ReqReceived {
            self.pending -= 1;
        }
    }

    pub(super) fn set_timer(&mut self, conn: ConnId, deadline: Option<Instant>) {
        let Some(connection) = self.connections.get_mut(&conn) else {
            return;
        };
        if let Some(before) = std::mem::replace(&mut connection.deadline, deadline) {
            self.timers.remove(&(before, conn));
        }
        if let Some(deadline) = deadline {
            self.timers.insert((deadline, conn));
        }
    }

    pub(super) fn report(&mut self, event: Event) {
        self.events.push_back(event);
    }

    /// Sends a message of a connection once.
    pub(super) fn send(&mut self, conn: ConnId, message: &Message) {
        let Some(connection) = self.connections.get(&conn) else {
            return;
        };
        let (path, dest_qpn) = (connection.path, connection.management_qpn);
        let mad = message.to_mad(connection.transaction_id);
        self.transmit(Transmit {
            path,
            dest_qpn,
            mad,
        });
    }

    /// Sends a message of a connection, and repeats it until it is answered.
    fn send_and_repeat(&mut self, now: Instant, conn: ConnId, message: &Message) {
        let retries = self.config.retries;
        let Some(connection) = self.connections.get_mut(&conn) else {
            return;
        };
        connection.message = Some(Box::new(message.to_mad(connection.transaction_id)));
        connection.retries_left = retries;
        connection.extensions_left = retries;
        self.send_again(conn);
        self.set_timer(conn, Some(now + self.config.response_timeout));
    }

    /// Sends the message of a connection that it repeats.
    pub(super) fn send_again(&mut self, conn: ConnId) {
        let Some(connection) = self.connections.get(&conn) else {
            return;
        };
        if let Some(mad) = connection.message.as_deref().copied() {
            let (path, dest_qpn) = (connection.path, connection.management_qpn);
            self.transmit(Transmit {
                path,
                dest_qpn,
                mad,
            });
        }
    }

    pub(super) fn send_rejection(
        &mut self,
        conn: ConnId,
        reason: RejectReason,
        private_data: PrivateData<148>,
    ) {
        let Some(connection) = self.connections.get(&conn) else {
            return;
        };
        let rejection = connection.rejection(reason, private_data, self.ca_guid);
        self.send(conn, &rejection);
    }

    pub(super) fn transmit(&mut self, transmit: Transmit) {
        if self.transmits.len() < self.config.max_transmits {
            self.transmits.push_back(transmit);
        }
    }

    /// Ends a connection that the peer has not agreed to, by a rejection.
    fn withdraw(&mut self, conn: ConnId, reason: RejectReason, why: DisconnectReason) {
        self.send_rejection(conn, reason, PrivateData::default());
        self.forget(conn);
        self.report(Event::Disconnected { conn, reason: why });
    }

    /// Ends a connection that both sides knew: reports it, and remembers it for a while.
    pub(super) fn end(&mut self, now: Instant, conn: ConnId, reason: DisconnectReason) {
        self.set_state(conn, State::TimeWait);
        self.forget_peer_qp(conn);
        let Some(connection) = self.connections.get_mut(&conn) else {
            return;
        };
        connection.message = None;
        self.set_timer(conn, Some(now + self.config.time_wait));
        self.time_wait.push_back(conn);
        self.report(Event::Disconnected { conn, reason });
        if self.time_wait.len() > self.config.max_time_wait
            && let Some(oldest) = self.time_wait.front().copied()
        {
            self.forget(oldest);
        }
    }

    /// Removes every trace of a connection.
    pub(super) fn forget(&mut self, conn: ConnId) {
        self.set_timer(conn, None);
        self.forget_peer_qp(conn);
        let Some(connection) = self.connections.remove(&conn) else {
            return;
        };
        self.by_comm_id.remove(&connection.local_comm_id);
        if !connection.active {
            let key = requester_of(&connection);
            if self.by_requester.get(&key) == Some(&conn) {
                self.by_requester.remove(&key);
            }
        }
        match connection.state {
            State::ReqReceived => self.pending -= 1,
            State::TimeWait => self.time_wait.retain(|other| *other != conn),
            _ => {}
        }
    }

    fn forget_peer_qp(&mut self, conn: ConnId) {
        let Some(connection) = self.connections.get(&conn) else {
            return;
        };
        if let Some(peer) = connection.peer {
            let key = (connection.path.remote, connection.peer_guid, peer.qpn);
            if self.by_peer_qp.get(&key) == Some(&conn) {
                self.by_peer_qp.remove(&key);
            }
        }
    }
}

fn requester_of(connection: &Connection) -> (IpAddr, u32, u64) {
    (
        connection.path.remote,
        connection.remote_comm_id,
        connection.peer_guid,
    )
}

fn check_limit(what: &'static str, have: usize, limit: usize) -> Result<(), CmError> {
    if have < limit {
        Ok(())
    } else {
        Err(CmError::Limit { what, limit })
    }
}
