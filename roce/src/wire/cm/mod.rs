//! Connection management messages (chapter 12.6), as values.
//!
//! Guarantee: parsing accepts exactly datagrams of 256 bytes with a known message in them, never
//! panics, and loses no field: what was parsed is written again to the same bytes, reserved fields
//! excepted. Whether the values make sense is for the state machine to judge, which can say so to
//! the peer.

mod fields;
mod reason;
mod request;

use super::mad::{self, BODY_LEN, MadHeader};
use super::{Psn, WireError, be16, be24, be32, be64, put_be24};

pub use fields::{
    AckTimeout, CmTimeout, PrivateData, PrivateDataTooLong, RejectedMessage, ServiceTimeout,
};
pub use reason::RejectReason;
pub use request::{PathRecord, Req};

/// The service id of a port in the RDMA IP CM's TCP port space (annex A11): what NVMe over RDMA
/// listens on.
pub const fn tcp_service_id(port: u16) -> u64 {
    0x0106_0000 | port as u64
}

/// Message receipt acknowledgement: the answer takes longer, wait (chapter 12.6.6).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mra {
    /// The sender's communication id.
    pub local_comm_id: u32,
    /// The receiver's communication id.
    pub remote_comm_id: u32,
    /// Which message was received.
    pub message: RejectedMessage,
    /// How long the answer takes.
    pub service_timeout: ServiceTimeout,
    /// For the peer's application.
    pub private_data: PrivateData<222>,
}

/// Reject (chapter 12.6.7).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rej {
    /// The sender's communication id; 0 if it has none.
    pub local_comm_id: u32,
    /// The receiver's communication id; 0 if the sender does not know it.
    pub remote_comm_id: u32,
    /// Which message is rejected.
    pub message: RejectedMessage,
    /// Valid bytes in `additional_info`.
    pub info_length: u8,
    /// Why.
    pub reason: RejectReason,
    /// What the reason asks for, for instance an address to use instead.
    pub additional_info: PrivateData<72>,
    /// For the peer's application.
    pub private_data: PrivateData<148>,
}

/// Reply: the request is accepted (chapter 12.6.8).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rep {
    /// The sender's communication id.
    pub local_comm_id: u32,
    /// The receiver's communication id.
    pub remote_comm_id: u32,
    /// Datagram services only.
    pub local_qkey: u32,
    /// The sender's queue pair.
    pub local_qpn: u32,
    /// Reliable datagrams only.
    pub local_eecn: u32,
    /// The sequence number with which the RECEIVER of this message must start sending.
    pub starting_psn: Psn,
    /// READs that the sender can serve at once.
    pub responder_resources: u8,
    /// READs that the sender will have in flight at most.
    pub initiator_depth: u8,
    /// How long the sender takes to acknowledge, as a 5-bit code.
    pub target_ack_delay: u8,
    /// Whether an alternate path was accepted (2-bit code).
    pub failover: u8,
    /// Whether the sender counts credits end to end.
    pub flow_control: bool,
    /// How often the receiver shall try again when told "receiver not ready" (7: without end).
    pub rnr_retry_count: u8,
    /// Whether the sender uses a shared receive queue.
    pub srq: bool,
    /// Identifies the sender's channel adapter.
    pub ca_guid: u64,
    /// For the peer's application.
    pub private_data: PrivateData<196>,
}

/// Ready to use: the reply was received (chapter 12.6.9).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rtu {
    /// The sender's communication id.
    pub local_comm_id: u32,
    /// The receiver's communication id.
    pub remote_comm_id: u32,
    /// For the peer's application.
    pub private_data: PrivateData<224>,
}

/// Disconnect request (chapter 12.6.10).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dreq {
    /// The sender's communication id.
    pub local_comm_id: u32,
    /// The receiver's communication id.
    pub remote_comm_id: u32,
    /// The receiver's queue pair.
    pub remote_qpn: u32,
    /// For the peer's application.
    pub private_data: PrivateData<220>,
}

/// Disconnect reply (chapter 12.6.11).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drep {
    /// The sender's communication id.
    pub local_comm_id: u32,
    /// The receiver's communication id.
    pub remote_comm_id: u32,
    /// For the peer's application.
    pub private_data: PrivateData<224>,
}

/// A connection management message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Request for a connection.
    Req(Req),
    /// Message receipt acknowledgement.
    Mra(Mra),
    /// Reject.
    Rej(Rej),
    /// Reply.
    Rep(Rep),
    /// Ready to use.
    Rtu(Rtu),
    /// Disconnect request.
    Dreq(Dreq),
    /// Disconnect reply.
    Drep(Drep),
}

/// Attribute ids (chapter 16.7.3).
mod attribute {
    pub(super) const REQ: u16 = 0x10;
    pub(super) const MRA: u16 = 0x11;
    pub(super) const REJ: u16 = 0x12;
    pub(super) const REP: u16 = 0x13;
    pub(super) const RTU: u16 = 0x14;
    pub(super) const DREQ: u16 = 0x15;
    pub(super) const DREP: u16 = 0x16;
}

impl Message {
    /// Reads a datagram; yields its transaction id and the message.
    ///
    /// # Errors
    /// If it is not a connection management datagram of 256 bytes with a known message.
    pub fn parse(datagram: &[u8]) -> Result<(u64, Self), WireError> {
        let (header, body) = MadHeader::parse(datagram)?;
        let message = match header.attribute_id {
            attribute::REQ => Self::Req(Req::from_body(body)),
            attribute::MRA => Self::Mra(Mra::from_body(body)?),
            attribute::REJ => Self::Rej(Rej::from_body(body)?),
            attribute::REP => Self::Rep(Rep::from_body(body)),
            attribute::RTU => Self::Rtu(Rtu::from_body(body)),
            attribute::DREQ => Self::Dreq(Dreq::from_body(body)),
            attribute::DREP => Self::Drep(Drep::from_body(body)),
            unknown => return Err(WireError::UnknownAttribute(unknown)),
        };
        Ok((header.transaction_id, message))
    }

    /// The datagram that carries this message.
    pub fn to_mad(&self, transaction_id: u64) -> [u8; mad::LEN] {
        let mut body = [0; BODY_LEN];
        let attribute_id = match self {
            Self::Req(message) => {
                message.write(&mut body);
                attribute::REQ
            }
            Self::Mra(message) => {
                message.write(&mut body);
                attribute::MRA
            }
            Self::Rej(message) => {
                message.write(&mut body);
                attribute::REJ
            }
            Self::Rep(message) => {
                message.write(&mut body);
                attribute::REP
            }
            Self::Rtu(message) => {
                write_ids(&mut body, message.local_comm_id, message.remote_comm_id);
                body[8..].copy_from_slice(message.private_data.as_bytes());
                attribute::RTU
            }
            Self::Dreq(message) => {
                write_ids(&mut body, message.local_comm_id, message.remote_comm_id);
                put_be24(&mut body, 8, message.remote_qpn);
                body[12..].copy_from_slice(message.private_data.as_bytes());
                attribute::DREQ
            }
            Self::Drep(message) => {
                write_ids(&mut body, message.local_comm_id, message.remote_comm_id);
                body[8..].copy_from_slice(message.private_data.as_bytes());
                attribute::DREP
            }
        };
        MadHeader::new(attribute_id, transaction_id).to_bytes(&body)
    }

    /// The sender's communication id.
    pub fn local_comm_id(&self) -> u32 {
        match self {
            Self::Req(message) => message.local_comm_id,
            Self::Mra(message) => message.local_comm_id,
            Self::Rej(message) => message.local_comm_id,
            Self::Rep(message) => message.local_comm_id,
            Self::Rtu(message) => message.local_comm_id,
            Self::Dreq(message) => message.local_comm_id,
            Self::Drep(message) => message.local_comm_id,
        }
    }
}

fn write_ids(body: &mut [u8; BODY_LEN], local: u32, remote: u32) {
    body[..4].copy_from_slice(&local.to_be_bytes());
    body[4..8].copy_from_slice(&remote.to_be_bytes());
}

impl Mra {
    fn from_body(body: &[u8; BODY_LEN]) -> Result<Self, WireError> {
        Ok(Self {
            local_comm_id: be32(body, 0),
            remote_comm_id: be32(body, 4),
            message: RejectedMessage::from_code("MRA", body[8] >> 6)?,
            service_timeout: ServiceTimeout::from_code(body[9] >> 3),
            private_data: PrivateData::at(body, 10),
        })
    }

    fn write(&self, body: &mut [u8; BODY_LEN]) {
        write_ids(body, self.local_comm_id, self.remote_comm_id);
        body[8] = self.message.code() << 6;
        body[9] = self.service_timeout.code() << 3;
        body[10..].copy_from_slice(self.private_data.as_bytes());
    }
}

impl Rej {
    fn from_body(body: &[u8; BODY_LEN]) -> Result<Self, WireError> {
        Ok(Self {
            local_comm_id: be32(body, 0),
            remote_comm_id: be32(body, 4),
            message: RejectedMessage::from_code("REJ", body[8] >> 6)?,
            info_length: body[9] >> 1,
            reason: RejectReason::from_code(be16(body, 10)),
            additional_info: PrivateData::at(body, 12),
            private_data: PrivateData::at(body, 84),
        })
    }

    fn write(&self, body: &mut [u8; BODY_LEN]) {
        write_ids(body, self.local_comm_id, self.remote_comm_id);
        body[8] = self.message.code() << 6;
        body[9] = self.info_length << 1;
        body[10..12].copy_from_slice(&self.reason.code().to_be_bytes());
        body[12..84].copy_from_slice(self.additional_info.as_bytes());
        body[84..].copy_from_slice(self.private_data.as_bytes());
    }
}

impl Rep {
    fn from_body(body: &[u8; BODY_LEN]) -> Self {
        Self {
            local_comm_id: be32(body, 0),
            remote_comm_id: be32(body, 4),
            local_qkey: be32(body, 8),
            local_qpn: be24(body, 12),
            local_eecn: be24(body, 16),
            starting_psn: Psn::new(be24(body, 20)),
            responder_resources: body[24],
            initiator_depth: body[25],
            target_ack_delay: body[26] >> 3,
            failover: (body[26] >> 1) & 3,
            flow_control: body[26] & 1 != 0,
            rnr_retry_count: body[27] >> 5,
            srq: body[27] & 0x10 != 0,
            ca_guid: be64(body, 28),
            private_data: PrivateData::at(body, 36),
        }
    }

    fn write(&self, body: &mut [u8; BODY_LEN]) {
        write_ids(body, self.local_comm_id, self.remote_comm_id);
        body[8..12].copy_from_slice(&self.local_qkey.to_be_bytes());
        put_be24(body, 12, self.local_qpn);
        put_be24(body, 16, self.local_eecn);
        put_be24(body, 20, self.starting_psn.value());
        body[24] = self.responder_resources;
        body[25] = self.initiator_depth;
        body[26] = (self.target_ack_delay & 0x1f) << 3
            | (self.failover & 3) << 1
            | u8::from(self.flow_control);
        body[27] = (self.rnr_retry_count & 7) << 5 | u8::from(self.srq) << 4;
        body[28..36].copy_from_slice(&self.ca_guid.to_be_bytes());
        body[36..].copy_from_slice(self.private_data.as_bytes());
    }
}

impl Rtu {
    fn from_body(body: &[u8; BODY_LEN]) -> Self {
        Self {
            local_comm_id: be32(body, 0),
            remote_comm_id: be32(body, 4),
            private_data: PrivateData::at(body, 8),
        }
    }
}

impl Dreq {
    fn from_body(body: &[u8; BODY_LEN]) -> Self {
        Self {
            local_comm_id: be32(body, 0),
            remote_comm_id: be32(body, 4),
            remote_qpn: be24(body, 8),
            private_data: PrivateData::at(body, 12),
        }
    }
}

impl Drep {
    fn from_body(body: &[u8; BODY_LEN]) -> Self {
        Self {
            local_comm_id: be32(body, 0),
            remote_comm_id: be32(body, 4),
            private_data: PrivateData::at(body, 8),
        }
    }
}
