//! Submission queue entries with their descriptors and small data, and what opens a queue.

use nvme::admin::AdminCommand;
use nvme::auth::{AUTH_DATA_BYTES_MAX, ConfiguredPsk, Message, PskIdentity, Secret};
use nvme::fabrics::{CONNECT_DATA_BYTES, ConnectData, FabricsCommand};
use nvme::features::{AsyncEvent, HostBehavior, NumberOfQueues, Timestamp};
use nvme::io::{CopyFormat, CopyRange, DSM_RANGE_BYTES, DsmRange, IoCommand};
use nvme::lba_status::LbaStatusList;
use nvme::node_table::{NodeTableCommand, SentText};
use nvme::properties::{Capabilities, Configuration, ControllerStatus};
use nvme::rdma_cm::{PRIVATE_DATA_BYTES, RdmaCmAccept, RdmaCmReject, RdmaCmRequest, RdmaCmStatus};
use nvme::reservation::{KeyPair, ReservationCommand};
use nvme::{Cqe, Nqn, SglDescriptor, Sqe};

/// A capsule: an entry of 64 bytes, and what follows it.
pub(crate) fn entry(bytes: &[u8]) {
    if let Some(cqe) = Cqe::decode(bytes) {
        assert_eq!(Cqe::decode(&cqe.encode()), Some(cqe));
    }
    let Some(sqe) = Sqe::from_capsule(bytes) else {
        assert!(bytes.len() < 64);
        return;
    };
    let data = &bytes[64..];
    if let Ok(sgl) = sqe.sgl() {
        assert_eq!(SglDescriptor::parse(&sgl.encode()), Ok(sgl));
    }
    if let Ok(command) = AdminCommand::parse(&sqe) {
        let again = match command {
            AdminCommand::Identify(command) => command.to_sqe(),
            AdminCommand::GetLogPage(command) => {
                assert!(command.length.is_multiple_of(4) && command.length <= 1 << 34);
                command.to_sqe()
            }
            AdminCommand::GetFeatures(command) => command.to_sqe(),
            AdminCommand::SetFeatures(command) => command.to_sqe(),
            AdminCommand::GetLbaStatus(command) => command.to_sqe(),
            AdminCommand::NamespaceManagement(command) => command.to_sqe(),
            AdminCommand::NamespaceAttachment(command) => command.to_sqe(),
            AdminCommand::CrossControllerReset(command) => command.to_sqe(),
            AdminCommand::AsyncEventRequest
            | AdminCommand::KeepAlive
            | AdminCommand::Abort { .. } => sqe,
        };
        assert_eq!(AdminCommand::parse(&again), Ok(command));
    }
    if let Ok(command) = IoCommand::parse(&sqe) {
        assert_eq!(IoCommand::parse(&command.to_sqe()), Ok(command));
        if let IoCommand::DatasetManagement { ranges, .. } = command {
            trim(data, ranges);
        }
        if let IoCommand::Copy { ranges, format, .. } = command {
            copy(data, ranges, format);
        }
    }
    if let Some(Ok(command)) = ReservationCommand::parse(&sqe) {
        let again = ReservationCommand::parse(&command.to_sqe());
        assert_eq!(again, Some(Ok(command)));
        if let Some(keys) = KeyPair::decode(data) {
            assert_eq!(keys.encode(), data[..16]);
        }
    }
    if let Some(Ok(command)) = NodeTableCommand::parse(&sqe) {
        let again = NodeTableCommand::parse(&command.to_sqe());
        assert_eq!(again, Some(Ok(command)));
        if let Some(sent) = SentText::decode(data) {
            assert_eq!(sent.encode(), data);
        }
    }
    if let Ok(command) = FabricsCommand::parse(&sqe) {
        let again = match command {
            FabricsCommand::Connect(command) => command.to_sqe(),
            FabricsCommand::PropertyGet { offset, wide } => {
                FabricsCommand::property_get(offset, wide)
            }
            FabricsCommand::PropertySet {
                offset,
                wide,
                value,
            } => {
                property(value);
                FabricsCommand::property_set(offset, wide, value)
            }
            FabricsCommand::AuthSend(transfer) => FabricsCommand::auth_send(transfer),
            FabricsCommand::AuthReceive(transfer) => FabricsCommand::auth_receive(transfer),
            FabricsCommand::Disconnect { .. } => sqe,
        };
        assert_eq!(FabricsCommand::parse(&again), Ok(command));
    }
    small_data(data);
}

fn trim(data: &[u8], ranges: u16) {
    if let Ok(list) = DsmRange::parse_list(data, ranges) {
        assert_eq!(list.len(), usize::from(ranges));
        for (range, bytes) in list.iter().zip(data.chunks(DSM_RANGE_BYTES)) {
            assert_eq!(range.encode()[4..], bytes[4..]);
        }
    }
}

fn copy(data: &[u8], ranges: u16, format: CopyFormat) {
    if let Ok(list) = CopyRange::parse_list(data, ranges, format) {
        assert_eq!(list.len(), usize::from(ranges));
        for range in list {
            let again = CopyRange::parse_list(&range.encode(format), 1, format);
            assert_eq!(again, Ok(vec![range]));
        }
    }
}

fn property(value: u64) {
    let capabilities = Capabilities::decode(value);
    assert_eq!(Capabilities::decode(capabilities.encode()), capabilities);
    let configuration = Configuration::decode(value as u32);
    assert_eq!(Configuration::decode(configuration.encode()), configuration);
    let status = ControllerStatus::decode(value as u32);
    assert_eq!(ControllerStatus::decode(status.encode()), status);
    if let Some(counts) = NumberOfQueues::decode(value as u32) {
        assert_eq!(NumberOfQueues::decode(counts.encode()), Some(counts));
    }
    if let Some(event) = AsyncEvent::decode(value as u32) {
        assert_eq!(AsyncEvent::decode(event.encode()), Some(event));
    }
}

fn small_data(data: &[u8]) {
    if let Some(time) = Timestamp::decode(data) {
        assert_eq!(Timestamp::decode(&time.encode()), Some(time));
    }
    if let Some(list) = LbaStatusList::decode(data) {
        assert_eq!(LbaStatusList::decode(&list.encode()), Some(list));
    }
    if let Some(behavior) = HostBehavior::decode(data) {
        assert_eq!(HostBehavior::decode(&behavior.encode()), Some(behavior));
    }
}

/// The data of a Connect, and the private data of the RDMA connection manager's messages.
pub(crate) fn connect(bytes: &[u8]) {
    match ConnectData::parse(bytes) {
        Ok(data) => {
            assert_eq!(ConnectData::parse(&data.encode()), Ok(data.clone()));
            for name in [&data.subsystem, &data.host] {
                assert_eq!(Nqn::new(name.as_str()).as_ref(), Ok(name));
            }
        }
        Err(wrong) => assert!(wrong.in_data && usize::from(wrong.offset) < CONNECT_DATA_BYTES),
    }
    if let Ok(text) = std::str::from_utf8(bytes)
        && let Ok(name) = Nqn::new(text)
    {
        // Whatever its form is, it is told without a panic.
        let _ = name.check_form();
        assert_eq!(Nqn::from_field(&name.to_field()), Ok(name));
    }
    match RdmaCmRequest::parse(bytes) {
        Ok(request) => assert_eq!(RdmaCmRequest::parse(&request.encode()), Ok(request)),
        Err(status) => {
            assert_eq!(RdmaCmStatus::from_number(status as u16), Some(status));
            assert!(bytes.len() < PRIVATE_DATA_BYTES || status != RdmaCmStatus::InvalidLength);
        }
    }
    if let Some(accept) = RdmaCmAccept::parse(bytes) {
        assert_eq!(RdmaCmAccept::parse(&accept.encode()), Some(accept));
    }
    if let Some(reject) = RdmaCmReject::parse(bytes) {
        assert_eq!(RdmaCmReject::parse(&reject.encode()), Some(reject));
    }
}

/// A message of an authentication, the text of a secret, or what a host calls a TLS key.
pub(crate) fn auth(bytes: &[u8]) {
    if let Ok(message) = Message::parse(bytes) {
        let encoded = message.encode();
        assert!(encoded.len() <= AUTH_DATA_BYTES_MAX);
        assert_eq!(Message::parse(&encoded), Ok(message));
    }
    if let Ok(text) = std::str::from_utf8(bytes) {
        if let Ok(secret) = Secret::parse(text) {
            assert_eq!(Secret::parse(&secret.to_text()), Ok(secret));
        }
        if let Ok(configured) = ConfiguredPsk::parse(text) {
            assert_eq!(ConfiguredPsk::parse(&configured.to_text()), Ok(configured));
        }
        if let Some(identity) = PskIdentity::parse(text) {
            assert_eq!(identity.to_string(), text);
        }
    }
}
