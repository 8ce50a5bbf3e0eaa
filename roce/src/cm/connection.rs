//! One connection: its state, and the messages that it sends.

use std::time::Instant;

use super::event::{Accept, CmError, Connect, Local, Peer};
use crate::wire::cm::{
    CmTimeout, Drep, Dreq, Message, Mra, PathRecord, PrivateData, Rej, RejectReason,
    RejectedMessage, Rep, Req, Rtu,
};
use crate::wire::{CmaHeader, Path, mad};

/// How long a peer that repeats its request is asked to wait: code 20, about 4.3 seconds. It asks
/// again after that, if the endpoint still has not answered.
const MRA_SERVICE_TIMEOUT: CmTimeout = CmTimeout::from_code(20);

/// Where a connection stands (chapter 12.9.5 and 12.9.6). The states of the specification in which
/// this manager never rests, because it answers at once, are not here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Active: the request is sent and repeated.
    ReqSent,
    /// Active: the reply is reported to the endpoint.
    RepReceived,
    /// Passive: the request is reported to the endpoint.
    ReqReceived,
    /// Passive: the reply is sent and repeated.
    RepSent,
    /// Both sides are ready.
    Established,
    /// The disconnect request is sent and repeated.
    DreqSent,
    /// It is over; only late duplicates of its messages are recognised.
    TimeWait,
}

/// A connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) state: State,
    /// Whether this side asked for the connection.
    pub(super) active: bool,
    pub(super) path: Path,
    /// The peer's management queue pair.
    pub(super) management_qpn: u32,
    pub(super) local_comm_id: u32,
    /// 0 until the peer's is known.
    pub(super) remote_comm_id: u32,
    /// The request's, which all messages until the RTU repeat.
    pub(super) transaction_id: u64,
    pub(super) local: Local,
    /// The peer's identity and values, once known.
    pub(super) peer_guid: u64,
    pub(super) peer: Option<Peer>,
    /// The message that is repeated until it is answered, or again for a duplicate of what it
    /// answers.
    pub(super) message: Option<Box<[u8; mad::LEN]>>,
    pub(super) retries_left: u8,
    /// How often the peer may still ask for more time.
    pub(super) extensions_left: u8,
    /// When something is due.
    pub(super) deadline: Option<Instant>,
}

impl Connection {
    /// Whether a message with these ids is one of this connection's peer.
    pub(super) fn is_from_peer(&self, path: Path, remote_comm_id: u32) -> bool {
        self.path == path && self.remote_comm_id == remote_comm_id
    }

    /// The request of an active connection.
    pub(super) fn request(
        &self,
        connect: &Connect,
        ca_guid: u64,
        timeout: CmTimeout,
        retries: u8,
    ) -> Result<Message, CmError> {
        let Path { local, remote } = self.path;
        // The port is made up: no TCP socket stands behind it. Ephemeral, so that nobody takes it
        // for a service.
        let src_port = 0xc000 | (self.local_comm_id as u16 & 0x3fff);
        let mut private_data = CmaHeader {
            src_port,
            src: local,
            dst: remote,
        }
        .to_bytes()
        .to_vec();
        PrivateData::<{ 92 - CmaHeader::LEN }>::new(&connect.private_data)?;
        private_data.extend_from_slice(&connect.private_data);
        let primary = PathRecord::roce(local, remote, self.local.ack_timeout);
        let mut request = Req::reliable_connection(connect.mtu, primary);
        request.local_comm_id = self.local_comm_id;
        request.service_id = connect.service_id;
        request.ca_guid = ca_guid;
        request.local_qpn = self.local.qpn;
        request.responder_resources = self.local.responder_resources;
        request.initiator_depth = self.local.initiator_depth;
        request.remote_cm_timeout = timeout;
        request.local_cm_timeout = timeout;
        request.starting_psn = self.local.starting_psn;
        request.retry_count = self.local.retry_count.min(7);
        request.rnr_retry_count = self.local.rnr_retry_count.min(7);
        request.max_cm_retries = retries;
        request.private_data = PrivateData::new(&private_data)?;
        Ok(Message::Req(request))
    }

    /// The reply of a passive connection.
    pub(super) fn reply(&self, accept: &Accept, ca_guid: u64) -> Result<Message, CmError> {
        let local = &accept.local;
        let (served, wanted) = self.peer.map_or((0, 0), |peer| {
            (peer.responder_resources, peer.initiator_depth)
        });
        Ok(Message::Rep(Rep {
            local_comm_id: self.local_comm_id,
            remote_comm_id: self.remote_comm_id,
            local_qkey: 0,
            local_qpn: local.qpn,
            local_eecn: 0,
            starting_psn: local.starting_psn,
            // The Linux host lets us READ from it only if the depth that we claim is not 0, so this
            // must be what the peer serves and not a guess.
            responder_resources: local.responder_resources.min(wanted),
            initiator_depth: local.initiator_depth.min(served),
            target_ack_delay: local.ack_timeout.code(),
            failover: 0,
            flow_control: true,
            rnr_retry_count: local.rnr_retry_count.min(7),
            srq: false,
            ca_guid,
            private_data: PrivateData::new(&accept.private_data)?,
        }))
    }

    pub(super) fn ready_to_use(&self) -> Message {
        Message::Rtu(Rtu {
            local_comm_id: self.local_comm_id,
            remote_comm_id: self.remote_comm_id,
            private_data: PrivateData::default(),
        })
    }

    /// Asks a peer that repeats its request for patience.
    pub(super) fn please_wait(&self) -> Message {
        Message::Mra(Mra {
            local_comm_id: self.local_comm_id,
            remote_comm_id: self.remote_comm_id,
            message: RejectedMessage::Req,
            service_timeout: MRA_SERVICE_TIMEOUT,
            private_data: PrivateData::default(),
        })
    }

    /// A rejection of what the peer sent last, or the withdrawal of this side's request.
    pub(super) fn rejection(
        &self,
        reason: RejectReason,
        private_data: PrivateData<148>,
        ca_guid: u64,
    ) -> Message {
        // On a timeout the additional information is this side's identity, by which a peer finds
        // the request whose answer never arrived.
        let info = if reason == RejectReason::Timeout {
            &ca_guid.to_be_bytes()[..]
        } else {
            &[]
        };
        Message::Rej(Rej {
            local_comm_id: self.local_comm_id,
            remote_comm_id: self.remote_comm_id,
            message: match self.state {
                State::ReqSent | State::ReqReceived => RejectedMessage::Req,
                State::RepReceived | State::RepSent => RejectedMessage::Rep,
                _ => RejectedMessage::Other,
            },
            info_length: info.len() as u8,
            reason,
            additional_info: PrivateData::new(info).unwrap_or_default(),
            private_data,
        })
    }

    pub(super) fn disconnect_request(&self) -> Message {
        Message::Dreq(Dreq {
            local_comm_id: self.local_comm_id,
            remote_comm_id: self.remote_comm_id,
            remote_qpn: self.peer.map_or(0, |peer| peer.qpn),
            private_data: PrivateData::default(),
        })
    }
}

/// The values of a request's sender.
pub(super) fn peer_of_request(request: &Req) -> Peer {
    Peer {
        qpn: request.local_qpn,
        starting_psn: request.starting_psn,
        responder_resources: request.responder_resources,
        initiator_depth: request.initiator_depth,
        ack_timeout: CmTimeout::from_code(request.primary.ack_timeout),
        retry_count: request.retry_count,
        rnr_retry_count: request.rnr_retry_count,
    }
}

/// The values of a reply's sender, limited to what this side asked for.
pub(super) fn peer_of_reply(reply: &Rep, local: &Local) -> Peer {
    Peer {
        qpn: reply.local_qpn,
        starting_psn: reply.starting_psn,
        responder_resources: reply.responder_resources.min(local.initiator_depth),
        initiator_depth: reply.initiator_depth.min(local.responder_resources),
        ack_timeout: CmTimeout::from_code(reply.target_ack_delay),
        retry_count: 7,
        rnr_retry_count: reply.rnr_retry_count,
    }
}

/// The answer to a disconnect request, whether or not the connection is known.
pub(super) fn disconnect_reply(request: &Dreq) -> Message {
    Message::Drep(Drep {
        local_comm_id: request.remote_comm_id,
        remote_comm_id: request.local_comm_id,
        private_data: PrivateData::default(),
    })
}

/// The rejection of a message that has no connection.
pub(super) fn rejection_of(
    remote_comm_id: u32,
    message: RejectedMessage,
    reason: RejectReason,
) -> Message {
    Message::Rej(Rej {
        local_comm_id: 0,
        remote_comm_id,
        message,
        info_length: 0,
        reason,
        additional_info: PrivateData::default(),
        private_data: PrivateData::default(),
    })
}
