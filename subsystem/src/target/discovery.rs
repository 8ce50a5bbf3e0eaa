//! The discovery subsystem: where hosts can connect to (NVMe-oF 1.1, section 5).
//!
//! Guarantees: an entry names an address that the host can use. For a listener on all addresses that is the address the
//! host connected to; loopback addresses are shown only to this machine. A host sees only subsystems that it may connect
//! to. A log that is read in pieces is the log of the moment when its beginning was read, and its generation changes if,
//! and only if, the log does.

use std::net::SocketAddr;

use fabric::{TlsMode, discovery};
use nvme::log::{DISCOVERY_BYTES, DiscoveryEntry, DiscoveryHeader, DiscoverySubtype};

use crate::catalog::Catalog;
use crate::controller::{Controller, DiscoveryReading};
use crate::lock::lock;
use crate::target::Target;

/// The whole log page for a host that connected to `controller.local`, and reads from `offset` on.
pub(crate) fn log_page(target: &Target, controller: &Controller, offset: u64) -> Vec<u8> {
    let reading = {
        let mut reading = lock(&controller.discovery);
        match &*reading {
            Some(begun) if offset > 0 => begun.clone(),
            begun => {
                let live = target.live();
                let mut new = DiscoveryReading {
                    catalog: live.catalog.clone(),
                    generation: live.discovery_generation,
                };
                // A change that this host cannot see keeps the generation.
                if let Some(begun) = begun
                    && entries(target, &begun.catalog, controller)
                        == entries(target, &new.catalog, controller)
                {
                    new.generation = begun.generation;
                }
                *reading = Some(new.clone());
                new
            }
        }
    };
    let entries = entries(target, &reading.catalog, controller);
    let pages: Vec<_> = entries
        .iter()
        .filter_map(|entry| entry.encode().ok())
        .collect();
    let header = DiscoveryHeader {
        generation: reading.generation,
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

/// The entries for a host: this discovery service at every listener that the host can use, then the subsystems that it
/// may connect to at each of them, then referrals.
pub(crate) fn entries(
    target: &Target,
    catalog: &Catalog,
    controller: &Controller,
) -> Vec<DiscoveryEntry> {
    let places = places(catalog, controller.local);
    let own = places.iter().map(|place| DiscoveryEntry {
        subtype: DiscoverySubtype::CurrentDiscovery,
        eflags: DiscoveryEntry::DUPLICATE_RETURNED_INFORMATION
            | DiscoveryEntry::PERSISTENT_CONNECTIONS,
        subnqn: target.discovery.nqn.clone(),
        ..place.clone()
    });
    let subsystems = catalog
        .subsystems
        .values()
        .filter(|subsystem| subsystem.allows(&controller.host.nqn))
        .flat_map(|subsystem| {
            places.iter().map(|place| DiscoveryEntry {
                subnqn: subsystem.nqn.clone(),
                ..place.clone()
            })
        });
    let referrals = catalog.referrals.values().map(|referral| DiscoveryEntry {
        subtype: DiscoverySubtype::Referral,
        ..discovery::entry_at(
            referral.id,
            (referral.address.scheme.transport(), TlsMode::Off),
            referral.address.host,
            referral.address.port,
            referral.nqn.clone(),
        )
    });
    own.chain(subsystems).chain(referrals).collect()
}

/// One entry for each listener, here and on other nodes, that a host which connected to `local` can use, still with the name of the default
/// subsystem.
fn places(catalog: &Catalog, local: SocketAddr) -> Vec<DiscoveryEntry> {
    let local = local.ip().to_canonical();
    let Some(nqn) = catalog.subsystems.keys().next() else {
        return Vec::new();
    };
    let mut entries: Vec<DiscoveryEntry> = Vec::new();
    let own = catalog.ports.values().map(|port| &**port);
    for port in own.chain(&catalog.elsewhere) {
        let listener = port.address;
        let Some(address) = discovery::address_for(listener.host, local) else {
            continue;
        };
        let transport = listener.scheme.transport();
        let entry = discovery::entry_at(
            port.id,
            (transport, port.tls),
            address,
            listener.port,
            nqn.clone(),
        );
        // Two listeners can have the same address for this host: the more specific one serves it.
        let known = entries.iter_mut().find(|e| {
            (e.transport.trtype(), &e.traddr, &e.trsvcid)
                == (entry.transport.trtype(), &entry.traddr, &entry.trsvcid)
        });
        match known {
            None => entries.push(entry),
            Some(known) if !listener.host.is_unspecified() => *known = entry,
            Some(_) => {}
        }
    }
    entries
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::catalog::{PortConfig, SubsystemConfig};

    fn told(listeners: &[&str], local: &str) -> Vec<String> {
        let nqn = crate::DEFAULT_SUBSYSTEM_NQN.parse().expect("a name");
        let mut catalog = Catalog::new(SubsystemConfig::new(nqn, "1".into()));
        for (id, listener) in (1..).zip(listeners) {
            let port = PortConfig::new(id, listener.parse().expect("a listener"));
            catalog.ports.insert(id, Arc::new(port));
        }
        places(&catalog, local.parse().expect("an address"))
            .into_iter()
            .map(|entry| {
                let transport = match entry.transport {
                    nvme::log::Transport::Rdma { .. } => "",
                    nvme::log::Transport::Tcp { .. } => "tcp ",
                };
                format!("{transport}{}:{}", entry.traddr, entry.trsvcid)
            })
            .collect()
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
    fn a_listener_says_whether_it_wants_tls_and_the_one_at_the_very_address_counts() {
        let nqn = crate::DEFAULT_SUBSYSTEM_NQN.parse().expect("a name");
        let mut catalog = Catalog::new(SubsystemConfig::new(nqn, "1".into()));
        for (id, listener, tls) in [
            (1, "tcp://0.0.0.0:4420", TlsMode::Off),
            (2, "tcp://192.0.2.5:4420", TlsMode::Required),
            (3, "tcp://192.0.2.5:4421", TlsMode::Allowed),
            (4, "tcp://192.0.2.6:4420", TlsMode::Off),
        ] {
            let port = PortConfig {
                tls,
                ..PortConfig::new(id, listener.parse().expect("a listener"))
            };
            catalog.ports.insert(id, Arc::new(port));
        }
        let told: Vec<_> = places(&catalog, "192.0.2.5:4420".parse().expect("an address"))
            .into_iter()
            .map(|entry| {
                let page = entry.encode().expect("an entry");
                // Port, TREQ bits 1:0, SECTYPE.
                (entry.portid, page[3] & 3, page[768])
            })
            .collect();
        assert_eq!(told, [(2, 1, 2), (3, 0, 2), (4, 0, 0)]);
    }

    #[test]
    fn the_same_place_is_told_once() {
        let listeners = ["rdma://0.0.0.0:4420", "rdma://192.0.2.5:4420"];
        assert_eq!(told(&listeners, "192.0.2.5:4420"), ["192.0.2.5:4420"]);
    }
}
