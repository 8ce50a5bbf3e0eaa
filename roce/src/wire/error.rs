//! Why bytes are not a packet or message that we understand.

/// Why bytes did not parse. A receiver drops such a packet; the counters of the endpoint tell the
/// operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The packet ends inside a header.
    #[error("the packet has {have} bytes where its headers need {need}; the sender cut it short")]
    TooShort {
        /// Bytes that the headers need.
        need: usize,
        /// Bytes that are there.
        have: usize,
    },
    /// The opcode is none of those that a reliable connection or the GSI uses.
    #[error("opcode {0:#04x} is not supported; use reliable connections without atomic operations")]
    UnknownOpcode(u8),
    /// The transport header version is not 0.
    #[error("transport header version {0} is not supported; only version 0 exists")]
    TransportVersion(u8),
    /// The pad count is larger than what follows the headers.
    #[error("the pad count {pad} exceeds the {have} bytes after the headers")]
    PadTooLong {
        /// The pad count.
        pad: u8,
        /// Bytes after the headers.
        have: usize,
    },
    /// Payload and padding together are not a multiple of four bytes.
    #[error("payload and padding have {0} bytes, which is not a multiple of 4")]
    Unaligned(usize),
    /// The opcode has no payload, and there is one.
    #[error("opcode {opcode:?} carries no payload, but {have} bytes follow its headers")]
    UnexpectedPayload {
        /// The opcode.
        opcode: crate::wire::Opcode,
        /// Bytes after the headers.
        have: usize,
    },
    /// The syndrome of an acknowledgement has a reserved value.
    #[error("the acknowledgement syndrome {0:#04x} is reserved")]
    UnknownSyndrome(u8),
    /// A management datagram does not have 256 bytes.
    #[error("a management datagram has 256 bytes; this one has {0}")]
    MadLength(usize),
    /// The base version or the class version is not the one that connection management has.
    #[error("management datagram base version {base}, class version {class} are not 1 and 2")]
    MadVersion {
        /// The base version.
        base: u8,
        /// The class version.
        class: u8,
    },
    /// The management class is not connection management.
    #[error("management class {0:#04x} is not served here; only connection management (7) is")]
    MadClass(u8),
    /// The method is not Send.
    #[error("management method {0:#04x} is not used by connection management; only Send (3) is")]
    MadMethod(u8),
    /// The attribute is none of the connection management messages that we know.
    #[error("connection management message {0:#06x} is not known")]
    UnknownAttribute(u16),
    /// A field of a message has a value that has no meaning.
    #[error("field {field} of the {message} message has the value {value:#x}, which is not valid")]
    Field {
        /// The message.
        message: &'static str,
        /// The field, as the specification names it.
        field: &'static str,
        /// Its value.
        value: u64,
    },
    /// The private data of a request does not begin with a valid RDMA IP CM header.
    #[error("the private data does not begin with a version 0 RDMA IP CM header: {0}")]
    CmaHeader(&'static str),
}
