//! The discovery subsystem: where hosts can connect to (NVMe-oF 1.1, section 5).
//!
//! Guarantees: an entry names an address that the host can use. For a listener on all addresses that
//! is the one the host came to; addresses that only work on this machine are told to nobody else.

use std::net::{IpAddr, SocketAddr};

use fabric::TransportAddress;
use nvme::Nqn;
use nvme::log::{
    self, AddressFamily, DISCOVERY_BYTES, DiscoveryEntry, DiscoveryHeader, DiscoverySubtype,
};
use nvme::nqn::DISCOVERY;

use crate::subsystem::Target;

/// Entries of an admin submission queue at most: what the transport accepts.
const ADMIN_QUEUE_ENTRIES: u16 = 32;

/// The name of the discovery subsystem.
pub(crate) fn well_known_nqn() -> Nqn {
    // An invariant of two crates' constants; a test below holds it.
    Nqn::new(DISCOVERY).expect("the well-known discovery name is a name")
}

/// The whole log page for a host that came to `local`.
pub(crate) fn log_page(target: &Target, local: SocketAddr) -> Vec<u8> {
    let entries = entries(&target.listeners, &target.nvm.nqn, local);
    let pages: Vec<_> = entries
        .iter()
        .filter_map(|entry| entry.encode().ok())
        .collect();
    let header = DiscoveryHeader {
        generation: target.discovery_generation(),
        records: pages.len() as u64,
        record_format: 0,
    };
    let mut log = Vec::with_capacity(DISCOVERY_BYTES * (1 + pages.len()));
    log.extend_from_slice(&header.encode());
    for page in &pages {
        log.extend_from_slice(&page[..]);
    }
    log
}

/// A transport as the log page has it.
pub(crate) fn transport(transport: fabric::Transport) -> log::Transport {
    match transport {
        fabric::Transport::Rdma => log::Transport::ROCE_V2,
        fabric::Transport::Tcp => log::Transport::TCP,
    }
}

/// What a listener asks of hosts, and offers them.
fn requirements(transport: fabric::Transport) -> u8 {
    match transport {
        fabric::Transport::Rdma => DiscoveryEntry::SECURE_CHANNEL_NOT_REQUIRED,
        // Without flow control answers to reads need no completion of their own on the wire.
        fabric::Transport::Tcp => {
            DiscoveryEntry::SECURE_CHANNEL_NOT_REQUIRED | DiscoveryEntry::SQ_FLOW_CONTROL_OPTIONAL
        }
    }
}

/// One entry for each listener that a host which came to `local` can use.
fn entries(listeners: &[TransportAddress], nqn: &Nqn, local: SocketAddr) -> Vec<DiscoveryEntry> {
    let local = local.ip().to_canonical();
    let mut entries: Vec<DiscoveryEntry> = Vec::new();
    for (portid, listener) in (1u16..).zip(listeners) {
        let Some(address) = address_for(listener.host, local) else {
            continue;
        };
        let entry = DiscoveryEntry {
            transport: transport(listener.scheme.transport()),
            adrfam: match address {
                IpAddr::V4(_) => AddressFamily::Ipv4,
                IpAddr::V6(_) => AddressFamily::Ipv6,
            },
            subtype: DiscoverySubtype::Nvme,
            treq: requirements(listener.scheme.transport()),
            portid,
            cntlid: DiscoveryEntry::CNTLID_DYNAMIC,
            asqsz: ADMIN_QUEUE_ENTRIES,
            eflags: 0,
            trsvcid: listener.port.to_string(),
            subnqn: nqn.clone(),
            traddr: address.to_string(),
        };
        // Two listeners can mean the same place to this host.
        let known = entries.iter().any(|e| {
            (e.transport, &e.traddr, &e.trsvcid) == (entry.transport, &entry.traddr, &entry.trsvcid)
        });
        if !known {
            entries.push(entry);
        }
    }
    entries
}

/// The address by which a host that came to `local` reaches a listener.
fn address_for(listener: IpAddr, local: IpAddr) -> Option<IpAddr> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn told(listeners: &[&str], local: &str) -> Vec<String> {
        let listeners: Vec<TransportAddress> = listeners
            .iter()
            .map(|l| l.parse().expect("a listener"))
            .collect();
        let nqn = crate::DEFAULT_SUBSYSTEM_NQN.parse().expect("a name");
        entries(&listeners, &nqn, local.parse().expect("an address"))
            .into_iter()
            .map(|entry| {
                let transport = match entry.transport {
                    log::Transport::Rdma { .. } => "",
                    log::Transport::Tcp { .. } => "tcp ",
                };
                format!("{transport}{}:{}", entry.traddr, entry.trsvcid)
            })
            .collect()
    }

    #[test]
    fn the_well_known_name_is_a_name() {
        assert!(well_known_nqn().is_discovery());
        assert!(crate::DEFAULT_SUBSYSTEM_NQN.parse::<Nqn>().is_ok());
    }

    #[test]
    fn a_wildcard_listener_is_where_the_host_came_to() {
        let both = ["rdma://0.0.0.0:4420", "rdma://[::]:4420"];
        assert_eq!(told(&both, "192.0.2.5:4420"), ["192.0.2.5:4420"]);
        assert_eq!(told(&both, "[2001:db8::5]:4420"), ["2001:db8::5:4420"]);
        assert_eq!(told(&both, "[::ffff:192.0.2.5]:4420"), ["192.0.2.5:4420"]);
    }

    #[test]
    fn a_host_sees_every_transport_whichever_it_came_by() {
        let listeners = [
            "rdma://0.0.0.0:4420",
            "rdma://[::]:4420",
            "tcp://0.0.0.0:4420",
            "tcp://[::]:4420",
            "tcp://192.0.2.5:8009",
        ];
        assert_eq!(
            told(&listeners, "192.0.2.5:4420"),
            ["192.0.2.5:4420", "tcp 192.0.2.5:4420", "tcp 192.0.2.5:8009"]
        );
    }

    #[test]
    fn what_works_on_this_machine_only_is_told_to_nobody_else() {
        let listeners = [
            "rdma://127.0.0.1:4420",
            "rdma://192.0.2.5:4420",
            "rdma://[fe80::1]:4420",
        ];
        assert_eq!(told(&listeners, "192.0.2.5:4420"), ["192.0.2.5:4420"]);
        assert_eq!(
            told(&listeners, "127.0.0.1:4420"),
            ["127.0.0.1:4420", "192.0.2.5:4420"]
        );
    }

    #[test]
    fn the_same_place_is_told_once() {
        let listeners = ["rdma://0.0.0.0:4420", "rdma://192.0.2.5:4420"];
        assert_eq!(told(&listeners, "192.0.2.5:4420"), ["192.0.2.5:4420"]);
    }
}
