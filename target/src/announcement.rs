//! What the daemon says on standard output when it is ready.

use std::net::IpAddr;
use std::path::Path;

use fabric::{Scheme, TlsMode, Transport, TransportAddress};
use subsystem::catalog::Catalog;

use crate::listeners::port_of;
use crate::machine;

/// What nobody may overlook.
pub(crate) fn memory_notice(dir: &Path) -> String {
    format!(
        "NOTHING IS KEPT: this pool is in memory, for measurements.\n  onefold status --pool {}\n",
        dir.display()
    )
}

/// What people and scripts read at the start.
pub(crate) fn announcement(bound: &[TransportAddress], catalog: &Catalog) -> String {
    let listed: Vec<String> = bound.iter().map(ToString::to_string).collect();
    let text = format!("ready {}\n", listed.join(" "));
    let by_tls = |address| {
        let port = port_of(catalog, address);
        port.is_some_and(|port| port.tls == TlsMode::Required)
    };
    text + &commands(&reachable(bound, by_tls), subsystem::DEFAULT_SUBSYSTEM_NQN)
}

/// Where other machines reach a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) transport: Transport,
    pub(crate) host: IpAddr,
    pub(crate) port: u16,
    /// By TLS alone.
    pub(crate) by_tls: bool,
}

impl Place {
    /// As `--listen` has it.
    pub(crate) fn address(&self) -> TransportAddress {
        TransportAddress {
            scheme: match self.transport {
                Transport::Rdma => Scheme::Rdma,
                Transport::Tcp => Scheme::Tcp,
            },
            host: self.host,
            port: self.port,
        }
    }
}

/// Where other machines reach these listeners: of one on all addresses, each address of this machine.
pub(crate) fn reachable(
    bound: &[TransportAddress],
    by_tls: impl Fn(TransportAddress) -> bool,
) -> Vec<Place> {
    let own = machine::addresses();
    let mut reachable: Vec<Place> = Vec::new();
    for address in bound {
        let hosts: Vec<IpAddr> = match address.host.is_unspecified() {
            true => own
                .iter()
                .copied()
                .filter(|ip| ip.is_ipv4() == address.host.is_ipv4())
                .collect(),
            false => vec![address.host],
        };
        for host in hosts {
            let place = Place {
                transport: address.scheme.transport(),
                host,
                port: address.port,
                by_tls: by_tls(*address),
            };
            if !reachable.contains(&place) {
                reachable.push(place);
            }
        }
    }
    reachable
}

/// What is typed on a Linux host.
pub(crate) fn commands(reachable: &[Place], nqn: &str) -> String {
    if reachable.is_empty() {
        return "This machine has no address that other machines can reach.\n".to_owned();
    }
    let mut text = String::new();
    for (transport, needs) in [
        (
            Transport::Rdma,
            "From a Linux host by RDMA (kernel modules nvme-rdma, and rdma_rxe if it has no RDMA hardware):",
        ),
        (
            Transport::Tcp,
            "From any Linux host by TCP (kernel module nvme-tcp):",
        ),
    ] {
        let places: Vec<_> = reachable
            .iter()
            .filter(|place| place.transport == transport)
            .collect();
        if places.is_empty() {
            continue;
        }
        text += &format!("{needs}\n");
        for Place {
            host, port, by_tls, ..
        } in places
        {
            let tls = if *by_tls { " --tls" } else { "" };
            text += &format!(
                "  nvme discover -t {transport} -a {host} -s {port}{tls}\n  nvme connect -t {transport} -a {host} -s {port} -n {nqn}{tls}\n"
            );
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use subsystem::catalog::{PortConfig, SubsystemConfig};

    use super::*;

    #[test]
    fn the_first_line_is_ready_and_the_rest_can_be_typed_on_a_host() {
        let bound: [TransportAddress; 4] = [
            "rdma://192.0.2.9:4420",
            "rdma://[2001:db8::9]:4421",
            "tcp://192.0.2.9:4420",
            "tcp://192.0.2.9:4430",
        ]
        .map(|address| address.parse().expect("an address"));
        let nqn = subsystem::DEFAULT_SUBSYSTEM_NQN.parse().expect("a name");
        let mut catalog = Catalog::new(SubsystemConfig::new(nqn, "1".into()));
        for (id, address) in (1..).zip(bound) {
            let tls = match address.port {
                4430 => TlsMode::Required,
                _ => TlsMode::Off,
            };
            let port = PortConfig {
                tls,
                ..PortConfig::new(id, address)
            };
            catalog.ports.insert(id, Arc::new(port));
        }
        let text = announcement(&bound, &catalog);
        assert!(
            text.starts_with(
                "ready rdma://192.0.2.9:4420 rdma://[2001:db8::9]:4421 tcp://192.0.2.9:4420 tcp://192.0.2.9:4430\n"
            ),
            "{text}"
        );
        assert!(
            text.contains("discover -t tcp -a 192.0.2.9 -s 4430 --tls\n"),
            "{text}"
        );
        for transport in ["rdma", "tcp"] {
            let line = format!("nvme discover -t {transport} -a 192.0.2.9 -s 4420\n");
            assert!(text.contains(&line), "{text}");
        }
        assert!(
            text.contains(
                "nvme connect -t rdma -a 2001:db8::9 -s 4421 -n nqn.2026-11.dev.onefold:default\n"
            ),
            "{text}"
        );
    }
}
