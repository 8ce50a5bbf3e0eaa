//! The discovery log page (NVMe-oF 1.1, section 5).
//!
//! Guarantees: an entry names an address that the host can use ([`fabric::discovery`]). A host sees the sled only if it may
//! connect to it. The log of a host does not change while the sled runs, and its generation says so.

use fabric::discovery;
use nvme::Nqn;
use nvme::log::{DISCOVERY_BYTES, DiscoveryEntry, DiscoveryHeader, DiscoverySubtype};

use crate::controller::Controller;
use crate::target::Sled;

/// GENCTR of a log that never changes.
const GENERATION: u64 = 1;

/// The whole log page, for the host of a controller.
pub(crate) fn log_page(sled: &Sled, controller: &Controller) -> Vec<u8> {
    let own = entries(sled, controller, &sled.discovery_nqn).map(|entry| DiscoveryEntry {
        subtype: DiscoverySubtype::CurrentDiscovery,
        eflags: DiscoveryEntry::DUPLICATE_RETURNED_INFORMATION
            | DiscoveryEntry::PERSISTENT_CONNECTIONS,
        ..entry
    });
    let drives = entries(sled, controller, sled.nqn())
        .filter(|_| sled.access().allows(&controller.host.nqn));
    let pages: Vec<_> = own
        .chain(drives)
        .filter_map(|entry| entry.encode().ok())
        .collect();
    let header = DiscoveryHeader {
        generation: GENERATION,
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

/// One entry for each listener that the host can use.
fn entries(
    sled: &Sled,
    controller: &Controller,
    nqn: &Nqn,
) -> impl Iterator<Item = DiscoveryEntry> {
    let local = controller.local.ip().to_canonical();
    let ports = (1..=u16::MAX).zip(sled.listeners());
    ports.filter_map(move |(port_id, listener)| {
        let host = discovery::address_for(listener.host, local)?;
        let by = (listener.scheme.transport(), sled.tls());
        Some(discovery::entry_at(
            port_id,
            by,
            host,
            listener.port,
            nqn.clone(),
        ))
    })
}
