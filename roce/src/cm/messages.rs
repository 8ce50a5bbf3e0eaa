//! What each message of a peer does to a connection (chapter 12.9.8).

use std::time::Instant;

use super::connection::{
    Connection, State, disconnect_reply, peer_of_reply, peer_of_request, rejection_of,
};
use super::event::{ConnId, DisconnectReason, Dropped, Event, Local, Transmit};
use super::manager::Manager;
use crate::wire::cm::{
    CmTimeout, Drep, Dreq, Message, Mra, PrivateData, Rej, RejectReason, RejectedMessage, Rep, Req,
    Rtu,
};
use crate::wire::{CmaHeader, GSI_QPN, PKEY_DEFAULT, Path, Psn};

/// Where a datagram came from, and what an answer must repeat.
#[derive(Clone, Copy)]
struct Origin {
    path: Path,
    src_qpn: u32,
    transaction_id: u64,
}

impl Manager {
    /// Takes a datagram that came from `src_qpn` of the path's remote address.
    ///
    /// # Errors
    /// Says why it was dropped; for counting.
    pub fn handle_mad(
        &mut self,
        now: Instant,
        path: Path,
        src_qpn: u32,
        datagram: &[u8],
    ) -> Result<(), Dropped> {
        let (transaction_id, message) = Message::parse(datagram)?;
        let origin = Origin {
            path,
            src_qpn,
            transaction_id,
        };
        match message {
            Message::Req(request) => self.request(now, origin, &request),
            Message::Mra(wait) => self.please_wait(now, origin, &wait),
            Message::Rej(rejection) => self.rejection(now, origin, &rejection),
            Message::Rep(reply) => self.reply(now, origin, &reply),
            Message::Rtu(ready) => self.ready(now, origin, &ready),
            Message::Dreq(request) => self.disconnect_request(now, origin, &request),
            Message::Drep(reply) => self.disconnect_reply(now, origin, &reply),
        }
    }

    /// Answers a message that has no connection.
    fn answer(&mut self, origin: Origin, message: &Message) {
        self.transmit(Transmit {
            path: origin.path,
            dest_qpn: origin.src_qpn,
            mad: message.to_mad(origin.transaction_id),
        });
    }

    /// The connection that a message with both ids is for: known, and with that peer.
    fn find(&self, path: Path, local_id: u32, remote_id: u32) -> Option<(ConnId, &Connection)> {
        let conn = self.by_comm_id(local_id)?;
        let connection = self.connections.get(&conn)?;
        connection
            .is_from_peer(path, remote_id)
            .then_some((conn, connection))
    }

    fn request(&mut self, now: Instant, origin: Origin, request: &Req) -> Result<(), Dropped> {
        let remote = origin.path.remote;
        if let Some(conn) = self.by_requester(remote, request.local_comm_id, request.ca_guid)
            && let Some(connection) = self.connections.get(&conn)
        {
            let peer = peer_of_request(request);
            if connection.path == origin.path && connection.peer == Some(peer) {
                return self.repeated_request(conn, origin, request);
            }
            // The same id for another queue pair: the peer restarted and counts anew.
            if !self.contest(conn) {
                self.supersede(now, conn);
                self.forget(conn);
            }
        }
        if let Err(reason) = self.check_request(origin.path, request) {
            let id = request.local_comm_id;
            self.answer(origin, &rejection_of(id, RejectedMessage::Req, reason));
            return Ok(());
        }
        // The specification has such a request rejected as stale, and lets the peer try again.
        // Linux does not try again, so that the first connection after a crash of the host would
        // fail. Nothing is lost by accepting: this side uses a fresh queue pair and sequence
        // number, so that nothing of the old connection can be taken for the new one's. But anybody can
        // send a request in the peer's name: an established connection goes on until its peer is found silent.
        if let Some(old) = self.by_peer_qp(remote, request.ca_guid, request.local_qpn)
            && !self.contest(old)
        {
            self.supersede(now, old);
        }
        self.report_request(now, origin, request);
        Ok(())
    }

    fn report_request(&mut self, now: Instant, origin: Origin, request: &Req) {
        let (Some(mtu), peer) = (request.mtu(), peer_of_request(request)) else {
            return;
        };
        let local_comm_id = self.new_comm_id();
        let conn = self.insert(Connection {
            state: State::ReqReceived,
            active: false,
            path: origin.path,
            management_qpn: origin.src_qpn,
            local_comm_id,
            remote_comm_id: request.local_comm_id,
            transaction_id: origin.transaction_id,
            local: Local {
                qpn: 0,
                starting_psn: Psn::new(0),
                responder_resources: 0,
                initiator_depth: 0,
                ack_timeout: CmTimeout::from_code(0),
                retry_count: 0,
                rnr_retry_count: 0,
            },
            peer_guid: request.ca_guid,
            peer: Some(peer),
            message: None,
            retries_left: 0,
            extensions_left: 0,
            deadline: None,
        });
        self.set_timer(conn, Some(now + self.config.pending_timeout));
        self.report(Event::ConnectRequest {
            conn,
            path: origin.path,
            service_id: request.service_id,
            mtu,
            peer,
            private_data: request.private_data.as_bytes()[CmaHeader::LEN..].to_vec(),
        });
    }

    /// Whether a request makes sense and there is room for it.
    fn check_request(&self, path: Path, request: &Req) -> Result<(), RejectReason> {
        if request.transport != 0 || request.extended_transport != 0 {
            return Err(RejectReason::InvalidTransportType);
        }
        if !self.services.contains(&request.service_id) {
            return Err(RejectReason::InvalidServiceId);
        }
        if request.mtu().is_none() {
            return Err(RejectReason::InvalidMtu);
        }
        if request.local_qpn <= GSI_QPN {
            return Err(RejectReason::InvalidCommInstance);
        }
        // The peer will send from the address in the path record, and packets from any other than
        // the connection's are dropped: better to say so now.
        let primary = &request.primary;
        if primary.local() != path.remote.to_canonical()
            || primary.remote() != path.local.to_canonical()
        {
            return Err(RejectReason::InvalidGid);
        }
        if request.pkey | 0x8000 != PKEY_DEFAULT {
            return Err(RejectReason::Unsupported);
        }
        CmaHeader::parse(request.private_data.as_bytes()).map_err(|_| RejectReason::Unsupported)?;
        if self.has_room_for_request() {
            Ok(())
        } else {
            Err(RejectReason::NoResources)
        }
    }

    fn repeated_request(
        &mut self,
        conn: ConnId,
        origin: Origin,
        request: &Req,
    ) -> Result<(), Dropped> {
        let Some(connection) = self.connections.get(&conn) else {
            return Err(Dropped::Unknown);
        };
        match connection.state {
            State::ReqReceived => {
                let wait = connection.please_wait();
                self.send(conn, &wait);
                Ok(())
            }
            State::RepSent => {
                self.send_again(conn);
                Ok(())
            }
            // A request that was under way for so long that its connection is over already must
            // not make another one.
            State::TimeWait => {
                let id = request.local_comm_id;
                let reason = RejectReason::StaleConnection;
                self.answer(origin, &rejection_of(id, RejectedMessage::Req, reason));
                Ok(())
            }
            _ => Err(Dropped::Unexpected),
        }
    }

    /// If the connection is established: has the endpoint find out whether its peer is there.
    fn contest(&mut self, conn: ConnId) -> bool {
        let known = self.connections.get(&conn);
        let established = known.is_some_and(|known| known.state == State::Established);
        if established && self.has_room_for_event() {
            self.report(Event::Contested { conn });
        }
        established
    }

    /// Ends a connection whose peer shows that it does not know it any more.
    fn supersede(&mut self, now: Instant, conn: ConnId) {
        match self
            .connections
            .get(&conn)
            .map(|connection| connection.state)
        {
            None | Some(State::TimeWait) => {}
            Some(State::DreqSent) => self.end(now, conn, DisconnectReason::Local),
            Some(_) => self.end(now, conn, DisconnectReason::Stale),
        }
    }

    fn please_wait(&mut self, now: Instant, origin: Origin, wait: &Mra) -> Result<(), Dropped> {
        let conn = self
            .by_comm_id(wait.remote_comm_id)
            .ok_or(Dropped::Unknown)?;
        let connection = self.connections.get_mut(&conn).ok_or(Dropped::Unknown)?;
        let known = connection.remote_comm_id;
        if connection.path != origin.path || (known != 0 && known != wait.local_comm_id) {
            return Err(Dropped::Unknown);
        }
        match (wait.message, connection.state) {
            (RejectedMessage::Req, State::ReqSent) | (RejectedMessage::Rep, State::RepSent)
                if connection.extensions_left > 0 =>
            {
                connection.extensions_left -= 1;
                let time = wait
                    .service_timeout
                    .duration()
                    .min(self.config.service_timeout_max);
                self.set_timer(conn, Some(now + time + self.config.response_timeout));
                Ok(())
            }
            _ => Err(Dropped::Unexpected),
        }
    }

    fn rejection(&mut self, now: Instant, origin: Origin, rej: &Rej) -> Result<(), Dropped> {
        // A peer that never saw a reply does not know this side's id.
        let conn = match rej.remote_comm_id {
            0 => self.by_requester_id(origin.path.remote, rej.local_comm_id),
            id => self.by_comm_id(id),
        };
        let conn = conn.ok_or(Dropped::Unknown)?;
        let connection = self.connections.get(&conn).ok_or(Dropped::Unknown)?;
        let (ours, theirs) = (connection.remote_comm_id, rej.local_comm_id);
        if connection.path != origin.path || (ours != 0 && theirs != 0 && ours != theirs) {
            return Err(Dropped::Unknown);
        }
        let reason = DisconnectReason::Rejected(rej.reason);
        match connection.state {
            // Whoever confirmed the connection knows this side's id.
            State::Established if rej.remote_comm_id == 0 => return Err(Dropped::Unexpected),
            State::ReqSent => {
                self.forget(conn);
                self.report(Event::Rejected {
                    conn,
                    reason: rej.reason,
                    private_data: rej.private_data.as_bytes().to_vec(),
                });
            }
            State::ReqReceived => {
                self.forget(conn);
                self.report(Event::Disconnected { conn, reason });
            }
            State::RepReceived | State::RepSent | State::Established => self.end(now, conn, reason),
            State::DreqSent => self.end(now, conn, DisconnectReason::Local),
            State::TimeWait => return Err(Dropped::Unexpected),
        }
        Ok(())
    }

    fn reply(&mut self, now: Instant, origin: Origin, rep: &Rep) -> Result<(), Dropped> {
        let found = self.by_comm_id(rep.remote_comm_id).filter(|conn| {
            self.connections
                .get(conn)
                .is_some_and(|connection| connection.active && connection.path == origin.path)
        });
        let Some(conn) = found else {
            // This side gave the request up. Tell the peer, which would repeat its reply otherwise.
            let reason = RejectReason::InvalidCommId;
            self.answer(
                origin,
                &rejection_of(rep.local_comm_id, RejectedMessage::Rep, reason),
            );
            return Err(Dropped::Unknown);
        };
        let connection = self.connections.get_mut(&conn).ok_or(Dropped::Unknown)?;
        match connection.state {
            State::ReqSent => self.first_reply(now, conn, rep),
            // The RTU was lost.
            State::Established if connection.remote_comm_id == rep.local_comm_id => {
                let ready = connection.ready_to_use();
                self.send(conn, &ready);
                Ok(())
            }
            _ => Err(Dropped::Unexpected),
        }
    }

    fn first_reply(&mut self, now: Instant, conn: ConnId, rep: &Rep) -> Result<(), Dropped> {
        let connection = self.connections.get_mut(&conn).ok_or(Dropped::Unknown)?;
        connection.remote_comm_id = rep.local_comm_id;
        if rep.local_qpn <= GSI_QPN {
            self.set_state(conn, State::RepReceived);
            let reason = RejectReason::InvalidCommInstance;
            self.send_rejection(conn, reason, PrivateData::default());
            self.forget(conn);
            let private_data = vec![0; 148];
            self.report(Event::Rejected {
                conn,
                reason,
                private_data,
            });
            return Ok(());
        }
        let remote = connection.path.remote;
        let peer = peer_of_reply(rep, &connection.local);
        if let Some(old) = self.by_peer_qp(remote, rep.ca_guid, rep.local_qpn) {
            self.supersede(now, old);
        }
        let connection = self.connections.get_mut(&conn).ok_or(Dropped::Unknown)?;
        connection.peer_guid = rep.ca_guid;
        connection.peer = Some(peer);
        self.index_peer_qp(conn);
        self.set_state(conn, State::RepReceived);
        self.set_timer(conn, Some(now + self.config.pending_timeout));
        let private_data = rep.private_data.as_bytes().to_vec();
        self.report(Event::ReplyReceived {
            conn,
            peer,
            private_data,
        });
        Ok(())
    }

    fn ready(&mut self, now: Instant, origin: Origin, rtu: &Rtu) -> Result<(), Dropped> {
        let (conn, connection) = self
            .find(origin.path, rtu.remote_comm_id, rtu.local_comm_id)
            .ok_or(Dropped::Unknown)?;
        if connection.state != State::RepSent {
            return Err(Dropped::Unexpected);
        }
        self.data_received(now, conn);
        Ok(())
    }

    fn disconnect_request(
        &mut self,
        now: Instant,
        origin: Origin,
        dreq: &Dreq,
    ) -> Result<(), Dropped> {
        let found = self.find(origin.path, dreq.remote_comm_id, dreq.local_comm_id);
        let Some((conn, connection)) = found else {
            // The peer asks until it is told: a restarted program must answer for its predecessor.
            self.answer(origin, &disconnect_reply(dreq));
            return Ok(());
        };
        if connection.local.qpn != dreq.remote_qpn {
            return Err(Dropped::Unknown);
        }
        let reason = match connection.state {
            State::RepReceived | State::RepSent | State::Established => {
                Some(DisconnectReason::Remote)
            }
            State::DreqSent => Some(DisconnectReason::Local),
            State::TimeWait => None,
            State::ReqSent | State::ReqReceived => return Err(Dropped::Unexpected),
        };
        self.answer(origin, &disconnect_reply(dreq));
        if let Some(reason) = reason {
            self.end(now, conn, reason);
        }
        Ok(())
    }

    fn disconnect_reply(
        &mut self,
        now: Instant,
        origin: Origin,
        drep: &Drep,
    ) -> Result<(), Dropped> {
        let (conn, connection) = self
            .find(origin.path, drep.remote_comm_id, drep.local_comm_id)
            .ok_or(Dropped::Unknown)?;
        if connection.state != State::DreqSent {
            return Err(Dropped::Unexpected);
        }
        self.end(now, conn, DisconnectReason::Local);
        Ok(())
    }
}
