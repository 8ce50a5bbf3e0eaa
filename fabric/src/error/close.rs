//! Why a work request failed, and why a connection ended.

use std::fmt;
use std::io;

use super::TlsFailure;

/// How a work request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorkStatus {
    /// It was done.
    #[error("done")]
    Success,
    /// The connection ended before it was done.
    #[error("the connection ended before the request was done")]
    Flushed,
    /// The peer refused access to its memory.
    #[error("the peer refused access to its memory")]
    RemoteAccess,
    /// The peer did not answer.
    #[error("the peer does not answer")]
    NoAnswer,
    /// The peer had no receive posted for too long.
    #[error("the peer posts no receives")]
    ReceiverNotReady,
    /// The message does not fit the receive, or either side broke the protocol.
    #[error("the peer broke the RDMA protocol, or a message did not fit its receive")]
    Protocol,
}

/// Why a connection ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// This side closed it.
    Local,
    /// The peer closed it.
    Peer,
    /// The peer refused the connection.
    Refused {
        /// The connection manager's reason code; 28 means that the peer's application refused.
        reason: u16,
        /// What the peer's application said.
        private_data: Vec<u8>,
    },
    /// The peer did not answer the connection request.
    ConnectTimeout,
    /// A work request failed.
    Failed(WorkStatus),
    /// The device, or its connection manager, cannot carry the connection.
    Device(String),
    /// The peer does not know this connection any more: it restarted.
    Stale,
    /// The peer broke the protocol; the text says how.
    Violation(&'static str),
    /// The network connection failed.
    Network(io::ErrorKind),
    /// The peer ended the connection because of an error it saw; the text says which.
    Terminated(&'static str),
    /// Nothing moved for too long while the peer owed something.
    Stalled,
    /// The host had not proved who it is, and its place was given to another one.
    Displaced,
    /// TLS failed.
    Tls(TlsFailure),
}

impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CloseReason::Local => f.write_str("closed by this side"),
            CloseReason::Peer => f.write_str("closed by the peer"),
            CloseReason::Refused { reason, .. } => {
                write!(
                    f,
                    "refused by the peer (connection manager reason {reason})"
                )
            }
            CloseReason::ConnectTimeout => f.write_str("the peer does not answer"),
            CloseReason::Failed(status) => write!(f, "failed: {status}"),
            CloseReason::Device(what) => write!(f, "the RDMA device failed: {what}"),
            CloseReason::Stale => f.write_str("the peer does not know the connection any more"),
            CloseReason::Violation(what) => write!(f, "the peer broke the protocol: {what}"),
            CloseReason::Network(kind) => write!(f, "the network connection failed: {kind}"),
            CloseReason::Terminated(what) => write!(f, "the peer complains of {what}"),
            CloseReason::Stalled => f.write_str("the peer stopped sending or reading"),
            CloseReason::Displaced => {
                f.write_str("too many hosts had not proved who they are, and this was one of them")
            }
            CloseReason::Tls(failure) => failure.fmt(f),
        }
    }
}
