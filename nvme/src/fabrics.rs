//! Fabrics commands: Connect, Property Get and Set, Disconnect (NVMe-oF 1.1, section 3).

use crate::{
    Nqn, Sqe, Status,
    command::FABRICS_OPCODE,
    nqn::{NQN_FIELD_BYTES, NqnError},
};

/// Bytes of the data that Connect carries.
pub const CONNECT_DATA_BYTES: usize = 1024;

/// In Connect data: any controller will do (the dynamic controller model).
pub const CNTLID_DYNAMIC: u16 = 0xffff;

const FCTYPE_PROPERTY_SET: u8 = 0x00;
const FCTYPE_CONNECT: u8 = 0x01;
const FCTYPE_PROPERTY_GET: u8 = 0x04;
const FCTYPE_AUTH_SEND: u8 = 0x05;
const FCTYPE_AUTH_RECEIVE: u8 = 0x06;
const FCTYPE_DISCONNECT: u8 = 0x08;

/// A Fabrics command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FabricsCommand {
    /// Joins a queue to a controller; its data are a [`ConnectData`].
    Connect(ConnectCommand),
    /// Reads a property.
    PropertyGet {
        /// Byte offset.
        offset: u32,
        /// 8 bytes, else 4.
        wide: bool,
    },
    /// Writes a property.
    PropertySet {
        /// Byte offset.
        offset: u32,
        /// 8 bytes, else 4.
        wide: bool,
        /// What to write.
        value: u64,
    },
    /// Deletes this I/O queue, and leaves the connection to the transport.
    Disconnect {
        /// Record format, 0.
        record_format: u16,
    },
    /// Brings a message of in-band authentication to the controller.
    AuthSend(AuthTransfer),
    /// Asks the controller for its message.
    AuthReceive(AuthTransfer),
}

/// What Authentication Send and Receive say of their message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AuthTransfer {
    /// Security protocol (SECP) in bits 23:16, and what is specific to it (SPSP1, SPSP0) below.
    pub protocol: u32,
    /// Bytes of the message, or of the room for one.
    pub length: u32,
}

impl AuthTransfer {
    /// The only protocol there is: E9h is that of NVMe, and both specific fields are 1.
    pub const PROTOCOL: u32 = 0xe9_0101;

    fn parse(sqe: &Sqe) -> Self {
        Self {
            // Byte 40 is reserved.
            protocol: sqe.cdw(10) >> 8,
            length: sqe.cdw(11),
        }
    }

    fn to_sqe(self, fctype: u8) -> Sqe {
        fabrics_sqe(fctype)
            .with_cdw(10, self.protocol << 8)
            .with_cdw(11, self.length)
    }
}

/// The command part of Connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectCommand {
    /// Record format, 0.
    pub record_format: u16,
    /// Queue: 0 is the admin queue.
    pub qid: u16,
    /// Entries of the submission queue, zero based.
    pub sqsize: u16,
    /// Connect attributes (CATTR).
    pub attributes: u8,
    /// Keep-alive timeout, in milliseconds; 0 is none.
    pub kato_ms: u32,
}

impl ConnectCommand {
    /// CATTR bit 2: the host does not want submission queue flow control.
    pub const DISABLE_SQ_FLOW_CONTROL: u8 = 1 << 2;

    /// Parses the command dwords of a Connect.
    #[must_use]
    pub fn parse(sqe: &Sqe) -> Self {
        let dword = sqe.cdw(10);
        let size = sqe.cdw(11);
        Self {
            record_format: dword as u16,
            qid: (dword >> 16) as u16,
            sqsize: size as u16,
            attributes: (size >> 16) as u8,
            kato_ms: sqe.cdw(12),
        }
    }

    /// The command as a host sends it; the queue adds identifier and SGL.
    #[must_use]
    pub fn to_sqe(&self) -> Sqe {
        fabrics_sqe(FCTYPE_CONNECT)
            .with_cdw(
                10,
                u32::from(self.record_format) | u32::from(self.qid) << 16,
            )
            .with_cdw(
                11,
                u32::from(self.sqsize) | u32::from(self.attributes) << 16,
            )
            .with_cdw(12, self.kato_ms)
    }

    /// Takes the first command of a queue, which has to be Connect.
    ///
    /// # Errors
    /// The status to answer with.
    pub fn first(sqe: &Sqe) -> Result<Self, Status> {
        let not_yet = Status::COMMAND_SEQUENCE.with_dnr();
        if sqe.opcode() != FABRICS_OPCODE {
            return Err(not_yet);
        }
        let FabricsCommand::Connect(command) = FabricsCommand::parse(sqe)? else {
            return Err(not_yet);
        };
        if sqe.sgl()?.length() as usize != CONNECT_DATA_BYTES {
            return Err(Status::SGL_LENGTH_INVALID.with_dnr());
        }
        if command.record_format != 0 {
            return Err(Status::CONNECT_INCOMPATIBLE_FORMAT.with_dnr());
        }
        Ok(command)
    }

    /// Checks queue identifier and size against what the transport knows of the queue, if it does, the I/O queues that a
    /// controller has, and the entries that a queue may have.
    ///
    /// # Errors
    /// The field that is wrong.
    pub fn check_queue(
        &self,
        qid: Option<u16>,
        io_queues: u16,
        depth: u16,
    ) -> Result<(), InvalidParameter> {
        if qid.is_some_and(|qid| qid != self.qid) || self.qid > io_queues {
            return Err(InvalidParameter::QUEUE_ID);
        }
        // Zero based: a queue of one entry cannot work, and more than the transport's depth would never be received.
        if self.sqsize == 0 || self.sqsize >= depth {
            return Err(InvalidParameter::QUEUE_SIZE);
        }
        Ok(())
    }
}

fn fabrics_sqe(fctype: u8) -> Sqe {
    Sqe::new(FABRICS_OPCODE).with_nsid(u32::from(fctype))
}

impl FabricsCommand {
    /// Parses an entry whose opcode is [`FABRICS_OPCODE`].
    ///
    /// # Errors
    /// The status to answer with, Do Not Retry set: another opcode, an unknown type, wrong flags.
    pub fn parse(sqe: &Sqe) -> Result<Self, Status> {
        sqe.check_flags()?;
        if sqe.opcode() != FABRICS_OPCODE {
            return Err(Status::INVALID_OPCODE.with_dnr());
        }
        // ATTRIB bits 2:0: property size, 0 for 4 bytes and 1 for 8; the rest is reserved.
        let wide = || match sqe.cdw(10) & 7 {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Status::INVALID_FIELD.with_dnr()),
        };
        Ok(match sqe.fctype() {
            FCTYPE_CONNECT => Self::Connect(ConnectCommand::parse(sqe)),
            FCTYPE_PROPERTY_GET => Self::PropertyGet {
                offset: sqe.cdw(11),
                wide: wide()?,
            },
            FCTYPE_PROPERTY_SET => Self::PropertySet {
                offset: sqe.cdw(11),
                wide: wide()?,
                value: u64::from(sqe.cdw(12)) | u64::from(sqe.cdw(13)) << 32,
            },
            FCTYPE_DISCONNECT => Self::Disconnect {
                record_format: sqe.cdw(10) as u16,
            },
            FCTYPE_AUTH_SEND => Self::AuthSend(AuthTransfer::parse(sqe)),
            FCTYPE_AUTH_RECEIVE => Self::AuthReceive(AuthTransfer::parse(sqe)),
            _ => return Err(Status::INVALID_OPCODE.with_dnr()),
        })
    }

    /// Property Get as a host sends it.
    #[must_use]
    pub fn property_get(offset: u32, wide: bool) -> Sqe {
        fabrics_sqe(FCTYPE_PROPERTY_GET)
            .with_cdw(10, u32::from(wide))
            .with_cdw(11, offset)
    }

    /// Property Set as a host sends it.
    #[must_use]
    pub fn property_set(offset: u32, wide: bool, value: u64) -> Sqe {
        fabrics_sqe(FCTYPE_PROPERTY_SET)
            .with_cdw(10, u32::from(wide))
            .with_cdw(11, offset)
            .with_cdw(12, value as u32)
            .with_cdw(13, (value >> 32) as u32)
    }

    /// Authentication Send as a host sends it.
    #[must_use]
    pub fn auth_send(transfer: AuthTransfer) -> Sqe {
        transfer.to_sqe(FCTYPE_AUTH_SEND)
    }

    /// Authentication Receive as a host sends it.
    #[must_use]
    pub fn auth_receive(transfer: AuthTransfer) -> Sqe {
        transfer.to_sqe(FCTYPE_AUTH_RECEIVE)
    }

    /// Disconnect of an I/O queue as a host sends it.
    #[must_use]
    pub fn disconnect() -> Sqe {
        fabrics_sqe(FCTYPE_DISCONNECT)
    }
}

/// The data part of Connect, 1024 bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectData {
    /// The host's 16-byte identifier.
    pub host_id: [u8; 16],
    /// The controller an I/O queue joins; [`CNTLID_DYNAMIC`] for the admin queue.
    pub cntlid: u16,
    /// The subsystem.
    pub subsystem: Nqn,
    /// The host.
    pub host: Nqn,
}

/// Byte offsets of the fields of Connect data.
const HOST_ID_AT: usize = 0;
const CNTLID_AT: usize = 16;
/// Offset of the subsystem's name: what the result of a failed Connect points at.
pub const SUBNQN_AT: usize = 256;
/// Offset of the host's name.
pub const HOSTNQN_AT: usize = 512;

/// Which field of Connect was wrong, for the result of Connect Invalid Parameters
/// (NVMe-oF 1.1, figure 22: IPO in bits 15:0, IATTR bit 16: 1 when the offset is in the data).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InvalidParameter {
    /// Byte offset of the field.
    pub offset: u16,
    /// The offset is in the data; else in the command.
    pub in_data: bool,
}

impl InvalidParameter {
    /// QID.
    pub const QUEUE_ID: Self = Self::command(42);
    /// SQSIZE.
    pub const QUEUE_SIZE: Self = Self::command(44);
    /// The host identifier.
    pub const HOST_ID: Self = Self::data(HOST_ID_AT as u16);
    /// The controller identifier.
    pub const CONTROLLER: Self = Self::data(CNTLID_AT as u16);
    /// The subsystem's name.
    pub const SUBSYSTEM: Self = Self::data(SUBNQN_AT as u16);
    /// The host's name.
    pub const HOST: Self = Self::data(HOSTNQN_AT as u16);

    /// A field of the 64-byte command.
    #[must_use]
    pub const fn command(offset: u16) -> Self {
        Self {
            offset,
            in_data: false,
        }
    }

    /// A field of the 1024-byte data.
    #[must_use]
    pub const fn data(offset: u16) -> Self {
        Self {
            offset,
            in_data: true,
        }
    }

    /// The result of the completion.
    #[must_use]
    pub const fn result(self) -> u64 {
        self.offset as u64 | (self.in_data as u64) << 16
    }
}

impl ConnectData {
    /// Parses the data.
    ///
    /// # Errors
    /// Which field is wrong: a name without its NUL or not a name, or data shorter than 1024 bytes
    /// (then offset 0).
    pub fn parse(bytes: &[u8]) -> Result<Self, InvalidParameter> {
        let bytes: &[u8; CONNECT_DATA_BYTES] =
            bytes.first_chunk().ok_or(InvalidParameter::data(0))?;
        let name = |at: usize| -> Result<Nqn, NqnError> {
            let mut field = [0; NQN_FIELD_BYTES];
            field.copy_from_slice(&bytes[at..at + NQN_FIELD_BYTES]);
            Nqn::from_field(&field)
        };
        let mut host_id = [0; 16];
        host_id.copy_from_slice(&bytes[HOST_ID_AT..HOST_ID_AT + 16]);
        Ok(Self {
            host_id,
            cntlid: u16::from_le_bytes([bytes[CNTLID_AT], bytes[CNTLID_AT + 1]]),
            subsystem: name(SUBNQN_AT).map_err(|_| InvalidParameter::data(SUBNQN_AT as u16))?,
            host: name(HOSTNQN_AT).map_err(|_| InvalidParameter::data(HOSTNQN_AT as u16))?,
        })
    }

    /// The wire form.
    #[must_use]
    pub fn encode(&self) -> [u8; CONNECT_DATA_BYTES] {
        let mut out = [0; CONNECT_DATA_BYTES];
        out[HOST_ID_AT..HOST_ID_AT + 16].copy_from_slice(&self.host_id);
        out[CNTLID_AT..CNTLID_AT + 2].copy_from_slice(&self.cntlid.to_le_bytes());
        out[SUBNQN_AT..SUBNQN_AT + NQN_FIELD_BYTES].copy_from_slice(&self.subsystem.to_field());
        out[HOSTNQN_AT..HOSTNQN_AT + NQN_FIELD_BYTES].copy_from_slice(&self.host.to_field());
        out
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn data() -> ConnectData {
        ConnectData {
            host_id: [7; 16],
            cntlid: CNTLID_DYNAMIC,
            subsystem: Nqn::new("nqn.2026-11.dev.onefold:default").unwrap(),
            host: Nqn::new("nqn.2014-08.org.nvmexpress:uuid:1").unwrap(),
        }
    }

    #[test]
    fn connect_reads_back_as_the_host_wrote_it() {
        let command = ConnectCommand {
            record_format: 0,
            qid: 3,
            sqsize: 127,
            attributes: ConnectCommand::DISABLE_SQ_FLOW_CONTROL,
            kato_ms: 5000,
        };
        assert_eq!(
            FabricsCommand::parse(&command.to_sqe()),
            Ok(FabricsCommand::Connect(command))
        );
        assert_eq!(ConnectData::parse(&data().encode()), Ok(data()));
    }

    #[test]
    fn a_property_is_set_to_all_of_its_eight_bytes() {
        let value = 0x0102_0304_0506_0708;
        let sqe = FabricsCommand::property_set(0x28, true, value);
        let set = FabricsCommand::PropertySet {
            offset: 0x28,
            wide: true,
            value,
        };
        assert_eq!(FabricsCommand::parse(&sqe), Ok(set));
    }

    #[test]
    fn a_name_of_256_bytes_without_a_nul_points_at_its_field() {
        let mut bytes = data().encode();
        bytes[SUBNQN_AT..SUBNQN_AT + 256].fill(b'x');
        assert_eq!(ConnectData::parse(&bytes), Err(InvalidParameter::data(256)));
        let mut bytes = data().encode();
        bytes[HOSTNQN_AT..HOSTNQN_AT + 256].fill(b'x');
        let error = ConnectData::parse(&bytes).unwrap_err();
        assert_eq!(error.result(), 512 | 1 << 16);
        assert_eq!(
            ConnectData::parse(&bytes[..1023]),
            Err(InvalidParameter::data(0))
        );
    }

    #[test]
    fn fused_or_prp_commands_are_refused() {
        for flags in [0x00, 0x80, 0xc0, 0x41, 0x42, 0x43] {
            let mut sqe = FabricsCommand::property_get(0, true);
            sqe.0[1] = flags;
            assert_eq!(
                FabricsCommand::parse(&sqe),
                Err(Status::INVALID_FIELD.with_dnr())
            );
        }
    }

    #[test]
    fn the_message_of_an_authentication_is_described_where_linux_puts_it() {
        // struct nvmf_auth_send_command: spsp0, spsp1, secp at 41 to 43, tl at 44.
        let transfer = AuthTransfer {
            protocol: AuthTransfer::PROTOCOL,
            length: 72,
        };
        let sqe = FabricsCommand::auth_send(transfer);
        assert_eq!(sqe.0[40..48], [0, 1, 1, 0xe9, 72, 0, 0, 0]);
        assert_eq!(
            FabricsCommand::parse(&sqe),
            Ok(FabricsCommand::AuthSend(transfer))
        );
        assert_eq!(
            FabricsCommand::parse(&FabricsCommand::auth_receive(transfer)),
            Ok(FabricsCommand::AuthReceive(transfer))
        );
    }

    #[test]
    fn properties_read_back() {
        assert_eq!(
            FabricsCommand::parse(&FabricsCommand::property_set(0x14, false, 0x46_0001)),
            Ok(FabricsCommand::PropertySet {
                offset: 0x14,
                wide: false,
                value: 0x46_0001
            })
        );
        assert_eq!(
            FabricsCommand::parse(&FabricsCommand::property_get(0, true)),
            Ok(FabricsCommand::PropertyGet {
                offset: 0,
                wide: true
            })
        );
    }

    proptest! {
        #[test]
        fn random_bytes_never_panic(sqe: [u8; 32], rest: [u8; 32], data in proptest::collection::vec(any::<u8>(), 0..1100)) {
            let mut bytes = [0; 64];
            bytes[..32].copy_from_slice(&sqe);
            bytes[32..].copy_from_slice(&rest);
            bytes[0] = FABRICS_OPCODE;
            bytes[1] = 0x40;
            let _ = FabricsCommand::parse(&Sqe(bytes));
            let _ = ConnectData::parse(&data);
        }
    }
}
