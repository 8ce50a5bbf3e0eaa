//! What a target offers.

use std::{net::SocketAddr, time::Duration};

use fabric::Connector;
use nvme::{
    Nqn,
    log::{DISCOVERY_BYTES, DiscoveryEntry, DiscoveryHeader, LogPage},
    nqn::DISCOVERY,
};

use crate::{ConnectOptions, Controller, Error, Host};

/// More records than any sane target has: what is beyond is an error, not memory.
const RECORDS_MAX: u64 = 4096;
/// How often a log that changes under the reader is read again.
const ATTEMPTS: usize = 5;

/// The target's discovery log.
///
/// # Errors
/// See [`Error`].
pub async fn discover(
    connector: &Connector,
    address: SocketAddr,
    host: Host,
) -> Result<Vec<DiscoveryEntry>, Error> {
    let subsystem = DISCOVERY.parse::<Nqn>().map_err(|_| Error::Protocol {
        peer: address,
        command: "discovery",
        what: "the well-known name is not a name",
    })?;
    let mut options = ConnectOptions::new(address, subsystem, host);
    options.keep_alive = Duration::ZERO;
    let controller = Controller::connect(connector, options).await?;
    let entries = read_log(&controller, address).await;
    controller.disconnect().await;
    entries
}

async fn read_log(controller: &Controller, peer: SocketAddr) -> Result<Vec<DiscoveryEntry>, Error> {
    let wrong = |what| Error::Protocol {
        peer,
        command: "Get Log Page",
        what,
    };
    for _ in 0..ATTEMPTS {
        let header = read_header(controller, peer).await?;
        if header.records > RECORDS_MAX {
            return Err(wrong("more discovery records than can be"));
        }
        let mut entries = Vec::new();
        for index in 0..header.records {
            let offset = (index + 1) * DISCOVERY_BYTES as u64;
            let page = controller
                .log_page(LogPage::Discovery, offset, DISCOVERY_BYTES)
                .await?;
            match DiscoveryEntry::decode(&page) {
                Some(entry) => entries.push(entry),
                // Of a transport that nobody here could use, Fibre Channel for one.
                None => tracing::debug!(index, "skipped a discovery record of another transport"),
            }
        }
        // The generation counter tells whether the log changed while it was read.
        if read_header(controller, peer).await?.generation == header.generation {
            return Ok(entries);
        }
    }
    Err(wrong("a discovery log that changes all the time"))
}

async fn read_header(controller: &Controller, peer: SocketAddr) -> Result<DiscoveryHeader, Error> {
    let page = controller
        .log_page(LogPage::Discovery, 0, DISCOVERY_BYTES)
        .await?;
    DiscoveryHeader::decode(&page).ok_or(Error::Protocol {
        peer,
        command: "Get Log Page",
        what: "a discovery log header that cannot be read",
    })
}
