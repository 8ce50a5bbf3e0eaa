//! Why something on the host side failed, and what to do about it.

use std::{net::SocketAddr, time::Duration};

use fabric::{HostError, QueueConnectError};
use nvme::{Nqn, Status};

/// An error of the host side.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A queue could not be connected.
    #[error(transparent)]
    Connect(#[from] QueueConnectError),
    /// A queue ended, or could not take a command.
    #[error(transparent)]
    Queue(#[from] HostError),
    /// The target answered with an error status.
    #[error("{peer} ended {command} with: {status}{hint}")]
    Status {
        /// The target.
        peer: SocketAddr,
        /// What was asked.
        command: &'static str,
        /// The answer.
        status: Status,
        /// What to do, or nothing.
        hint: &'static str,
    },
    /// The target did not answer in time.
    #[error("{peer} did not answer {command} within {limit:?}; check that it still runs")]
    Timeout {
        /// The target.
        peer: SocketAddr,
        /// What was asked.
        command: &'static str,
        /// How long was waited.
        limit: Duration,
    },
    /// The target asks the host for a secret, and none was given.
    #[error(
        "{peer} asks {host} for a secret, and there is none; give it with --dhchap-secret-file"
    )]
    NoSecret {
        /// The target.
        peer: SocketAddr,
        /// The host's name.
        host: Nqn,
    },
    /// Host and target do not know each other.
    #[error("{peer} and this host do not authenticate: {reason}")]
    Authentication {
        /// The target.
        peer: SocketAddr,
        /// Why not.
        reason: String,
    },
    /// The target's answer breaks the protocol.
    #[error("{peer} sent a wrong answer to {command}: {what}")]
    Protocol {
        /// The target.
        peer: SocketAddr,
        /// What was asked.
        command: &'static str,
        /// What is wrong with it.
        what: &'static str,
    },
    /// There is no such namespace.
    #[error("{peer} has no namespace {nsid}; `nvme list-ns` or `onefold volume list` shows them")]
    NoNamespace {
        /// The target.
        peer: SocketAddr,
        /// What was asked for.
        nsid: u32,
    },
    /// A range that is not whole blocks, or ends beyond the namespace, or is too long.
    #[error(
        "{len} bytes at {offset} are no range of namespace {nsid}: it has {size} bytes in blocks of \
         {lba_bytes}, and one command moves at most {max_bytes}"
    )]
    Range {
        /// The namespace.
        nsid: u32,
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
        /// Bytes of the namespace.
        size: u64,
        /// Bytes of a block.
        lba_bytes: u32,
        /// Largest transfer of a command.
        max_bytes: usize,
    },
}

impl Error {
    /// The status, when it was the target that refused.
    #[must_use]
    pub fn status(&self) -> Option<Status> {
        match self {
            Self::Status { status, .. } => Some(*status),
            _ => None,
        }
    }
}
