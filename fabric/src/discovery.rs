//! Listeners as the discovery log has them (NVMe-oF 1.1, section 5).
//!
//! Guarantee: what is told of an address, a host that connected to this machine can use; loopback addresses are for this
//! machine alone.

use std::net::IpAddr;

use nvme::Nqn;
use nvme::log::{self, AddressFamily, DiscoveryEntry, DiscoverySubtype};

use crate::address::Transport;
use crate::tcp::tls::TlsMode;

/// Entries of an admin submission queue at most: what the transport accepts.
const ADMIN_QUEUE_ENTRIES: u16 = 32;

/// A transport as the log page has it, with the security of the listener.
#[must_use]
pub fn transport(transport: Transport, tls: TlsMode) -> log::Transport {
    match (transport, tls) {
        (Transport::Rdma, _) => log::Transport::ROCE_V2,
        (Transport::Tcp, TlsMode::Off) => log::Transport::TCP,
        (Transport::Tcp, TlsMode::Allowed | TlsMode::Required) => log::Transport::Tcp {
            sectype: log::TcpSecurity::Tls13,
        },
    }
}

/// The TREQ field of a listener.
fn requirements(transport: Transport, tls: TlsMode) -> u8 {
    match (transport, tls) {
        (Transport::Rdma, _) => DiscoveryEntry::SECURE_CHANNEL_NOT_REQUIRED,
        (Transport::Tcp, TlsMode::Required) => {
            DiscoveryEntry::SECURE_CHANNEL_REQUIRED | DiscoveryEntry::SQ_FLOW_CONTROL_OPTIONAL
        }
        // Without flow control answers to reads need no completion of their own on the wire. Nothing is
        // said of a secure channel, also where TLS is allowed: libnvme takes 'not required' for 'by TLS', and
        // later ones for 'by secure concatenation', and hosts without keys could not `nvme connect-all`.
        (Transport::Tcp, TlsMode::Off | TlsMode::Allowed) => {
            DiscoveryEntry::SQ_FLOW_CONTROL_OPTIONAL
        }
    }
}

/// An entry of a subsystem, at an address.
#[must_use]
pub fn entry_at(
    portid: u16,
    (transport, tls): (Transport, TlsMode),
    host: IpAddr,
    port: u16,
    subnqn: Nqn,
) -> DiscoveryEntry {
    DiscoveryEntry {
        transport: self::transport(transport, tls),
        adrfam: match host {
            IpAddr::V4(_) => AddressFamily::Ipv4,
            IpAddr::V6(_) => AddressFamily::Ipv6,
        },
        subtype: DiscoverySubtype::Nvme,
        treq: requirements(transport, tls),
        portid,
        cntlid: DiscoveryEntry::CNTLID_DYNAMIC,
        asqsz: ADMIN_QUEUE_ENTRIES,
        eflags: 0,
        trsvcid: port.to_string(),
        subnqn,
        traddr: host.to_string(),
    }
}

/// The address by which a host that connected to `local` reaches a listener.
#[must_use]
pub fn address_for(listener: IpAddr, local: IpAddr) -> Option<IpAddr> {
    if listener.is_unspecified() {
        return (listener.is_ipv4() == local.is_ipv4()).then_some(local);
    }
    if listener == local {
        return Some(listener);
    }
    let confined =
        listener.is_loopback() || matches!(listener, IpAddr::V6(v6) if v6.is_unicast_link_local());
    let same_machine = local.is_loopback() && listener.is_loopback();
    (!confined || same_machine).then_some(listener)
}
