//! mDNS: the discovery service announces itself on the local network (`_nvme-disc._tcp`, TP8009), so that
//! hosts find it without being told an address.
//!
//! Guarantees: only with `serve --mdns`; only open TCP listeners are announced, and each is
//! withdrawn when it closes and when the daemon ends.

use std::net::IpAddr;
use std::time::Duration;

use dedup::ErrorKind;
use fabric::{Transport, TransportAddress};
use mdns_sd::{ServiceDaemon, ServiceInfo};
use nvme::Nqn;
use subsystem::errors::Failure;

/// The service, as hosts browse for it.
const SERVICE: &str = "_nvme-disc._tcp.local.";

/// How long the end waits until everything is withdrawn.
const GOODBYE_PATIENCE: Duration = Duration::from_secs(1);

/// The announcer: a thread of its own.
pub(crate) struct Mdns {
    daemon: ServiceDaemon,
    /// The discovery subsystem's own name.
    nqn: Nqn,
}

impl std::fmt::Debug for Mdns {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mdns").finish_non_exhaustive()
    }
}

impl Mdns {
    /// Starts with nothing to announce.
    ///
    /// # Errors
    /// Port 5353 cannot be used.
    pub(crate) fn start(nqn: Nqn) -> Result<Self, Failure> {
        let daemon = ServiceDaemon::new().map_err(|error| {
            Failure::unavailable(format!(
                "--mdns: the service cannot be announced: {error}; start without it, or free UDP port 5353"
            ))
        })?;
        Ok(Self { daemon, nqn })
    }

    /// Announces a listener, if hosts on the network can use it.
    pub(crate) fn announce(&self, address: TransportAddress) {
        let Some(service) = service(&self.nqn, address) else {
            return;
        };
        let announced = service.and_then(|service| {
            self.daemon
                .register(service)
                .map_err(|e| Failure::new(ErrorKind::Internal, e.to_string()))
        });
        match announced {
            Ok(()) => tracing::info!(%address, "announced by mDNS"),
            Err(error) => tracing::warn!(%address, %error, "not announced by mDNS"),
        }
    }

    /// Withdraws an announcement.
    pub(crate) fn withdraw(&self, address: TransportAddress) {
        if let Some(Ok(service)) = service(&self.nqn, address) {
            // Fails only when the thread has ended, and with it the announcements.
            let _ = self.daemon.unregister(service.get_fullname());
        }
    }
}

impl Drop for Mdns {
    fn drop(&mut self) {
        if let Ok(ended) = self.daemon.shutdown() {
            let _ = ended.recv_timeout(GOODBYE_PATIENCE);
        }
    }
}

/// What is announced of a listener; `None` for one by RDMA, or that only this machine can reach.
fn service(nqn: &Nqn, address: TransportAddress) -> Option<Result<ServiceInfo, Failure>> {
    if address.scheme.transport() != Transport::Tcp || address.host.is_loopback() {
        return None;
    }
    let unique = nqn.as_str().rsplit(':').next().unwrap_or_default();
    let short: String = unique.chars().take(8).collect();
    let family = if address.host.is_ipv4() { 4 } else { 6 };
    let instance = match address.host.is_unspecified() {
        true => format!("onefold-{short}-ipv{family}-{}", address.port),
        false => format!("onefold-{short}-{}-{}", address.host, address.port),
    };
    let host = format!("onefold-{short}.local.");
    let text = [("p", "tcp"), ("nqn", nqn.as_str())];
    let told: Vec<IpAddr> = match address.host.is_unspecified() {
        true => Vec::new(),
        false => vec![address.host],
    };
    let service = ServiceInfo::new(
        SERVICE,
        &instance,
        &host,
        &told[..],
        address.port,
        &text[..],
    );
    Some(match service {
        Ok(service) if told.is_empty() => Ok(service.enable_addr_auto()),
        Ok(service) => Ok(service),
        Err(error) => Err(Failure::new(ErrorKind::Internal, error.to_string())),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn announced(address: &str) -> Option<ServiceInfo> {
        let nqn = "nqn.2026-11.dev.onefold:discovery:1488ab8f-ebc5-467a-89c0-40ff0fec2b85";
        let nqn = nqn.parse().expect("a name");
        let address = address.parse().expect("an address");
        service(&nqn, address).map(|service| service.expect("a service"))
    }

    #[test]
    fn what_hosts_can_reach_by_tcp_is_announced_with_the_name_to_connect_to() {
        let service = announced("tcp://192.0.2.5:8009").expect("a service");
        assert_eq!(service.get_type(), SERVICE);
        assert_eq!(service.get_port(), 8009);
        assert_eq!(service.get_property_val_str("p"), Some("tcp"));
        let nqn = service.get_property_val_str("nqn").expect("a name");
        assert!(nqn.starts_with("nqn.2026-11.dev.onefold:discovery:"));
        assert!(!service.is_addr_auto());
        let every = announced("tcp://0.0.0.0:4420").expect("a service");
        assert!(every.is_addr_auto(), "whatever addresses the machine has");
        assert!(announced("rdma://192.0.2.5:4420").is_none());
        assert!(announced("tcp://127.0.0.1:4420").is_none());
    }
}
