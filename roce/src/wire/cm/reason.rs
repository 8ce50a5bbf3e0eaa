//! Reasons for a rejection (chapter 12.6.7.2, table 108).

use std::fmt;

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $code:literal,)*) => {
        /// Why a request or a connection was rejected.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum RejectReason {
            $($(#[$doc])* $name,)*
            /// A code that has no name here.
            Other(u16),
        }

        impl RejectReason {
            /// The reason of a code.
            pub const fn from_code(code: u16) -> Self {
                match code {
                    $($code => Self::$name,)*
                    other => Self::Other(other),
                }
            }

            /// The code on the wire.
            pub const fn code(self) -> u16 {
                match self {
                    $(Self::$name => $code,)*
                    Self::Other(code) => code,
                }
            }
        }
    };
}

reasons! {
    /// No queue pair could be made.
    NoQueuePair = 1,
    /// No end-to-end context could be made (datagrams).
    NoEec = 2,
    /// Memory, or a limit on connections, is exhausted.
    NoResources = 3,
    /// The peer waited too long for an answer.
    Timeout = 4,
    /// The request is not supported.
    Unsupported = 5,
    /// The communication id is not known.
    InvalidCommId = 6,
    /// The communication instance (ids, queue pair) does not fit together.
    InvalidCommInstance = 7,
    /// Nobody listens on the service.
    InvalidServiceId = 8,
    /// The transport service type is not served.
    InvalidTransportType = 9,
    /// The request names a queue pair that is already connected, or was until just now.
    StaleConnection = 10,
    /// The reliable datagram channel does not exist.
    RdcNotExist = 11,
    /// A global identifier is not acceptable.
    InvalidGid = 12,
    /// A local identifier is not acceptable.
    InvalidLid = 13,
    /// A service level is not acceptable.
    InvalidSl = 14,
    /// A traffic class is not acceptable.
    InvalidTrafficClass = 15,
    /// A hop limit is not acceptable.
    InvalidHopLimit = 16,
    /// A packet rate is not acceptable.
    InvalidPacketRate = 17,
    /// The alternate path's global identifier is not acceptable.
    InvalidAlternateGid = 18,
    /// The alternate path's local identifier is not acceptable.
    InvalidAlternateLid = 19,
    /// The alternate path's service level is not acceptable.
    InvalidAlternateSl = 20,
    /// The alternate path's traffic class is not acceptable.
    InvalidAlternateTrafficClass = 21,
    /// The alternate path's hop limit is not acceptable.
    InvalidAlternateHopLimit = 22,
    /// The alternate path's packet rate is not acceptable.
    InvalidAlternatePacketRate = 23,
    /// Connection management is elsewhere.
    PortAndCmRedirect = 24,
    /// The port is elsewhere.
    PortRedirect = 25,
    /// The path MTU is not acceptable.
    InvalidMtu = 26,
    /// Too few READ resources.
    InsufficientResources = 27,
    /// The application rejects; its private data says why.
    Consumer = 28,
    /// The receiver-not-ready retry count is not acceptable.
    InvalidRnrRetry = 29,
    /// The communication id is in use.
    DuplicateCommId = 30,
    /// The class version is not served.
    InvalidClassVersion = 31,
    /// A flow label is not acceptable.
    InvalidFlowLabel = 32,
    /// The alternate path's flow label is not acceptable.
    InvalidAlternateFlowLabel = 33,
}

impl fmt::Display for RejectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::NoQueuePair => "the peer has no queue pair left",
            Self::NoResources => "the peer has no resources left",
            Self::Timeout => "the peer waited too long for an answer",
            Self::Unsupported => "the peer does not support the request",
            Self::InvalidCommId | Self::InvalidCommInstance => "the peer forgot the connection",
            Self::InvalidServiceId => "nothing listens on that port at the peer",
            Self::InvalidTransportType => "the peer serves other transports only",
            Self::StaleConnection => "the peer takes the request for one of an old connection",
            Self::InvalidGid => "the peer does not accept the address",
            Self::InvalidMtu => "the peer does not accept the path MTU",
            Self::Consumer => "the application at the peer refused",
            other => return write!(f, "connection management reason {}", other.code()),
        };
        f.write_str(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_a_reason_of_that_code() {
        for code in 0..100 {
            assert_eq!(RejectReason::from_code(code).code(), code);
        }
        assert_eq!(RejectReason::from_code(28), RejectReason::Consumer);
    }
}
