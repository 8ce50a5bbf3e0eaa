//! The request for a connection (chapter 12.6.5, table 106).

use std::net::IpAddr;

use super::fields::{AckTimeout, CmTimeout, PrivateData};
use crate::wire::mad::BODY_LEN;
use crate::wire::{PKEY_DEFAULT, PathMtu, Psn, be16, be24, be32, be64, path, put_be24};

/// A path in a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathRecord {
    /// Local identifier of the sender's port; 0xffff on RoCE.
    pub local_lid: u16,
    /// Local identifier of the receiver's port; 0xffff on RoCE.
    pub remote_lid: u16,
    /// Global identifier of the sender's port: its IP address.
    pub local_gid: [u8; 16],
    /// Global identifier of the receiver's port: its IP address.
    pub remote_gid: [u8; 16],
    /// The flow label, 20 bits.
    pub flow_label: u32,
    /// A code for the packet rate, 6 bits.
    pub packet_rate: u8,
    /// The traffic class.
    pub traffic_class: u8,
    /// The hop limit.
    pub hop_limit: u8,
    /// The service level, 4 bits.
    pub sl: u8,
    /// Whether the path stays in the subnet.
    pub subnet_local: bool,
    /// How long the receiver shall wait for an acknowledgement, 5-bit code.
    pub ack_timeout: u8,
    /// In an alternate path, whether suggestions are accepted.
    pub sap_supported: bool,
}

impl PathRecord {
    const LEN: usize = 44;

    /// A RoCEv2 path between two addresses.
    pub fn roce(local: IpAddr, remote: IpAddr, ack_timeout: AckTimeout) -> Self {
        Self {
            local_lid: 0xffff,
            remote_lid: 0xffff,
            local_gid: path::gid_of(local),
            remote_gid: path::gid_of(remote),
            hop_limit: 64,
            ack_timeout: ack_timeout.code(),
            ..Self::default()
        }
    }

    /// The sender's address.
    pub fn local(&self) -> IpAddr {
        path::address_of(self.local_gid)
    }

    /// The receiver's address.
    pub fn remote(&self) -> IpAddr {
        path::address_of(self.remote_gid)
    }

    fn at(body: &[u8; BODY_LEN], offset: usize) -> Self {
        let mut bytes = [0; Self::LEN];
        bytes.copy_from_slice(&body[offset..offset + Self::LEN]);
        let gid = |at: usize| bytes[at..].first_chunk().copied().unwrap_or_default();
        Self {
            local_lid: be16(&bytes, 0),
            remote_lid: be16(&bytes, 2),
            local_gid: gid(4),
            remote_gid: gid(20),
            flow_label: be32(&bytes, 36) >> 12,
            packet_rate: bytes[39] & 0x3f,
            traffic_class: bytes[40],
            hop_limit: bytes[41],
            sl: bytes[42] >> 4,
            subnet_local: bytes[42] & 8 != 0,
            ack_timeout: bytes[43] >> 3,
            sap_supported: bytes[43] & 4 != 0,
        }
    }

    fn write(&self, body: &mut [u8; BODY_LEN], offset: usize) {
        let bytes = &mut body[offset..offset + Self::LEN];
        bytes[..2].copy_from_slice(&self.local_lid.to_be_bytes());
        bytes[2..4].copy_from_slice(&self.remote_lid.to_be_bytes());
        bytes[4..20].copy_from_slice(&self.local_gid);
        bytes[20..36].copy_from_slice(&self.remote_gid);
        bytes[36..40].copy_from_slice(&(self.flow_label << 12).to_be_bytes());
        bytes[39] |= self.packet_rate & 0x3f;
        bytes[40] = self.traffic_class;
        bytes[41] = self.hop_limit;
        bytes[42] = (self.sl & 0x0f) << 4 | u8::from(self.subnet_local) << 3;
        bytes[43] = (self.ack_timeout & 0x1f) << 3 | u8::from(self.sap_supported) << 2;
    }
}

/// A request for a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Req {
    /// The sender's communication id.
    pub local_comm_id: u32,
    /// What the sender wants to connect to, see [`tcp_service_id`](super::tcp_service_id).
    pub service_id: u64,
    /// Identifies the sender's channel adapter.
    pub ca_guid: u64,
    /// Datagram services only.
    pub local_qkey: u32,
    /// The sender's queue pair.
    pub local_qpn: u32,
    /// READs that the sender can serve at once.
    pub responder_resources: u8,
    /// Reliable datagrams only.
    pub local_eecn: u32,
    /// READs that the sender will have in flight at most.
    pub initiator_depth: u8,
    /// Reliable datagrams only.
    pub remote_eecn: u32,
    /// How long the sender expects the receiver to take for an answer.
    pub remote_cm_timeout: CmTimeout,
    /// Transport service: 0 reliable connection, 1 unreliable connection, 2 reliable datagram.
    pub transport: u8,
    /// Whether the sender counts credits end to end.
    pub flow_control: bool,
    /// The sequence number with which the RECEIVER of this message must start sending.
    pub starting_psn: Psn,
    /// How long the sender takes for an answer at most.
    pub local_cm_timeout: CmTimeout,
    /// How often the receiver shall repeat a packet (7: as often as it likes).
    pub retry_count: u8,
    /// The partition.
    pub pkey: u16,
    /// The path MTU's code, see [`Req::mtu`].
    pub mtu_code: u8,
    /// Reliable datagrams only.
    pub rdc_exists: bool,
    /// How often the receiver shall try again when told "receiver not ready" (7: without end).
    pub rnr_retry_count: u8,
    /// How often either side may repeat a connection management message.
    pub max_cm_retries: u8,
    /// Whether the sender uses a shared receive queue.
    pub srq: bool,
    /// Extended transport, 3 bits; 0 for those that have a `transport` code.
    pub extended_transport: u8,
    /// The path.
    pub primary: PathRecord,
    /// The path to fail over to; all zero if there is none.
    pub alternate: PathRecord,
    /// For the receiver: a [`CmaHeader`](crate::wire::CmaHeader), then the application's data.
    pub private_data: PrivateData<92>,
}

impl Req {
    /// A request for a reliable connection on the default partition, all other fields zero.
    pub fn reliable_connection(mtu: PathMtu, primary: PathRecord) -> Self {
        Self {
            local_comm_id: 0,
            service_id: 0,
            ca_guid: 0,
            local_qkey: 0,
            local_qpn: 0,
            responder_resources: 0,
            local_eecn: 0,
            initiator_depth: 0,
            remote_eecn: 0,
            remote_cm_timeout: CmTimeout::from_code(0),
            transport: 0,
            flow_control: true,
            starting_psn: Psn::new(0),
            local_cm_timeout: CmTimeout::from_code(0),
            retry_count: 0,
            pkey: PKEY_DEFAULT,
            mtu_code: mtu.code(),
            rdc_exists: false,
            rnr_retry_count: 0,
            max_cm_retries: 0,
            srq: false,
            extended_transport: 0,
            primary,
            alternate: PathRecord::default(),
            private_data: PrivateData::default(),
        }
    }

    /// The path MTU, unless its code is reserved.
    pub fn mtu(&self) -> Option<PathMtu> {
        PathMtu::from_code(self.mtu_code)
    }

    pub(super) fn from_body(body: &[u8; BODY_LEN]) -> Self {
        Self {
            local_comm_id: be32(body, 0),
            service_id: be64(body, 8),
            ca_guid: be64(body, 16),
            local_qkey: be32(body, 28),
            local_qpn: be24(body, 32),
            responder_resources: body[35],
            local_eecn: be24(body, 36),
            initiator_depth: body[39],
            remote_eecn: be24(body, 40),
            remote_cm_timeout: CmTimeout::from_code(body[43] >> 3),
            transport: (body[43] >> 1) & 3,
            flow_control: body[43] & 1 != 0,
            starting_psn: Psn::new(be24(body, 44)),
            local_cm_timeout: CmTimeout::from_code(body[47] >> 3),
            retry_count: body[47] & 7,
            pkey: be16(body, 48),
            mtu_code: body[50] >> 4,
            rdc_exists: body[50] & 8 != 0,
            rnr_retry_count: body[50] & 7,
            max_cm_retries: body[51] >> 4,
            srq: body[51] & 8 != 0,
            extended_transport: body[51] & 7,
            primary: PathRecord::at(body, 52),
            alternate: PathRecord::at(body, 96),
            private_data: PrivateData::at(body, 140),
        }
    }

    pub(super) fn write(&self, body: &mut [u8; BODY_LEN]) {
        body[..4].copy_from_slice(&self.local_comm_id.to_be_bytes());
        body[8..16].copy_from_slice(&self.service_id.to_be_bytes());
        body[16..24].copy_from_slice(&self.ca_guid.to_be_bytes());
        body[28..32].copy_from_slice(&self.local_qkey.to_be_bytes());
        put_be24(body, 32, self.local_qpn);
        body[35] = self.responder_resources;
        put_be24(body, 36, self.local_eecn);
        body[39] = self.initiator_depth;
        put_be24(body, 40, self.remote_eecn);
        body[43] = self.remote_cm_timeout.code() << 3
            | (self.transport & 3) << 1
            | u8::from(self.flow_control);
        put_be24(body, 44, self.starting_psn.value());
        body[47] = self.local_cm_timeout.code() << 3 | (self.retry_count & 7);
        body[48..50].copy_from_slice(&self.pkey.to_be_bytes());
        body[50] = (self.mtu_code & 0x0f) << 4
            | u8::from(self.rdc_exists) << 3
            | (self.rnr_retry_count & 7);
        body[51] = (self.max_cm_retries & 0x0f) << 4
            | u8::from(self.srq) << 3
            | (self.extended_transport & 7);
        self.primary.write(body, 52);
        self.alternate.write(body, 96);
        body[140..].copy_from_slice(self.private_data.as_bytes());
    }
}
