//! Why a device, a listener or a connection cannot be had, and why a connection ended.
//!
//! Guarantees: each text names the object and, where the user can do something, the remedy; nothing here depends on a
//! transport, so that every transport can say it.

mod close;
mod tls;
mod verbs;

use std::io;
use std::net::{IpAddr, SocketAddr};

pub use close::{CloseReason, WorkStatus};
pub use tls::TlsFailure;
pub use verbs::VerbsError;

/// Why a device could not be opened, with the remedy.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// Another Onefold process serves this address.
    #[error(
        "another onefold process already uses RoCE (UDP port {port}) on {address}; stop it, or use another address"
    )]
    HeldByOnefold {
        /// The address.
        address: IpAddr,
        /// The UDP port.
        port: u16,
    },
    /// Something that is not Onefold holds the port.
    #[error(
        "UDP port {port} on {address} is in use by something else, most likely the kernel's rdma_rxe; remove it (rdma link delete, modprobe -r rdma_rxe), or use another network namespace"
    )]
    PortInUse {
        /// The address.
        address: IpAddr,
        /// The UDP port.
        port: u16,
    },
    /// This machine does not have the address.
    #[error("this machine has no address {address}; use one that `ip address` shows")]
    NoSuchAddress {
        /// The address.
        address: IpAddr,
    },
    /// There is no second IPv6 loopback address to connect from.
    #[error(
        "{address} is an IPv6 address of this machine, and one machine cannot be both ends of soft RoCE over it; connect to an IPv4 address (127.0.0.1) instead"
    )]
    LocalIpv6 {
        /// The address.
        address: IpAddr,
    },
    /// There is no way to the peer.
    #[error("there is no route to {address}: {source}; check the address and `ip route`")]
    NoRoute {
        /// The address.
        address: IpAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The address means every address of a machine: nobody can connect to it.
    #[error(
        "{address} means every address of a machine; connect to one that the target listens on"
    )]
    Unspecified {
        /// The address.
        address: IpAddr,
    },
    /// RDMA verbs cannot be used.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// A system call failed.
    #[error("cannot {action}: {source}")]
    Io {
        /// What was being done.
        action: String,
        /// What the system said.
        source: io::Error,
    },
}

/// Why a device could not listen.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ListenError {
    /// This device already listens there.
    #[error("port {0} already has a listener on this device; use another port")]
    InUse(u16),
    /// Another program listens there.
    #[error(
        "cannot listen on port {}: {address} is in use by another program; stop it or use another port",
        address.port()
    )]
    Taken {
        /// The address.
        address: SocketAddr,
    },
    /// The device cannot listen.
    #[error("cannot listen on port {port}: {reason}")]
    Refused {
        /// The port.
        port: u16,
        /// Why.
        reason: String,
    },
}

/// Why a connection could not be started or accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SetupError {
    /// The request is gone: the peer gave up or the device closed.
    #[error("the connection request is gone; the peer gave up")]
    Gone,
    /// The device's tables are full.
    #[error("the device has no room for another queue pair: {0}; close some connections")]
    NoResources(String),
    /// There is no way to the peer from this device.
    #[error("{peer} cannot be reached from this device: {reason}")]
    Unreachable {
        /// The peer.
        peer: SocketAddr,
        /// Why.
        reason: String,
    },
}
