//! Where a remote drive is: `nvme+tcp://HOST:4420/NQN#NSID`, or by several ways `nvme+tcp://HOST:4420,HOST:4420/NQN#NSID`.
//!
//! Guarantee: what is printed is read again as the same address, and two texts of one address are printed alike. The ways
//! keep their order, and no two are the same.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::str::FromStr;

use fabric::{NVME_PORT, Scheme, TransportAddress};
use nvme::Nqn;

/// Longest name of a host, in bytes (RFC 1035, section 2.3.4).
const HOST_NAME_BYTES_MAX: usize = 253;

/// Ways to one namespace; more are a mistake.
const WAYS_MAX: usize = 4;

/// Network addresses of all ways that are tried; a name with more is a mistake.
const RESOLVED_MAX: usize = 8;

/// A namespace of an NVMe-oF target.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RemoteAddress {
    scheme: Scheme,
    /// At least one. The first that answers is used.
    ways: Vec<Way>,
    subsystem: Nqn,
    nsid: u32,
}

/// A host and a port by which the target is reached.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Way {
    host: String,
    port: u16,
}

/// Why a text is not the address of a namespace.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{text}' is not the address of a namespace: {reason}; write nvme+tcp://HOST:4420/NQN#NSID"
)]
pub struct RemoteAddressError {
    text: String,
    reason: &'static str,
}

impl RemoteAddress {
    /// Whether a text is meant as such an address.
    #[must_use]
    pub fn is_meant(text: &str) -> bool {
        schemes().any(|(prefix, _)| text.starts_with(prefix))
    }

    /// The subsystem of the target.
    #[must_use]
    pub fn subsystem(&self) -> &Nqn {
        &self.subsystem
    }

    /// The namespace's identifier in that subsystem.
    #[must_use]
    pub fn nsid(&self) -> u32 {
        self.nsid
    }

    /// The address as the path of a drive.
    #[must_use]
    pub fn to_path(&self) -> PathBuf {
        PathBuf::from(self.to_string())
    }

    /// The network addresses of the target, asked for now, in the order of its ways. Blocks while names are looked up. A way
    /// whose name nobody knows is left out, if there is another one.
    ///
    /// # Errors
    /// Nobody knows any of the names.
    pub(crate) fn resolve(&self) -> std::io::Result<Vec<TransportAddress>> {
        let mut found: Vec<TransportAddress> = Vec::new();
        let mut unknown = None;
        for way in &self.ways {
            match way.resolve() {
                Ok(sockets) => {
                    let of_way = sockets.into_iter();
                    let of_way =
                        of_way.map(|at| TransportAddress::new(self.scheme, at.ip(), at.port()));
                    found.extend(of_way);
                }
                Err(error) => unknown = Some(error),
            }
        }
        found.truncate(RESOLVED_MAX);
        match unknown {
            Some(error) if found.is_empty() => Err(error),
            _ => Ok(found),
        }
    }
}

impl Way {
    fn resolve(&self) -> std::io::Result<Vec<SocketAddr>> {
        Ok(match self.host.parse::<IpAddr>() {
            Ok(host) => vec![SocketAddr::new(host, self.port)],
            Err(_) => (self.host.as_str(), self.port).to_socket_addrs()?.collect(),
        })
    }
}

/// How such addresses begin, and what carries the queues.
fn schemes() -> impl Iterator<Item = (&'static str, Scheme)> {
    [("nvme+tcp://", Scheme::Tcp), ("nvme+rdma://", Scheme::Rdma)].into_iter()
}

impl FromStr for RemoteAddress {
    type Err = RemoteAddressError;

    /// HOST is a name, an IPv4 address, or an IPv6 address in brackets; further ones follow behind commas. The port may be left
    /// out (4420). The NSID may not: a number that nobody named might be another namespace tomorrow.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = |reason| RemoteAddressError {
            text: text.to_owned(),
            reason,
        };
        let begun =
            schemes().find_map(|(prefix, scheme)| Some((scheme, text.strip_prefix(prefix)?)));
        let (scheme, rest) =
            begun.ok_or_else(|| wrong("it begins with neither nvme+tcp:// nor nvme+rdma://"))?;
        let (authority, rest) = rest
            .split_once('/')
            .ok_or_else(|| wrong("no subsystem follows the host"))?;
        let ways = ways(authority).map_err(wrong)?;
        let (subsystem, nsid) = rest
            .rsplit_once('#')
            .ok_or_else(|| wrong("no #NSID follows the subsystem"))?;
        let subsystem = Nqn::new(subsystem).map_err(|_| wrong("the subsystem's name is no NQN"))?;
        if subsystem.is_discovery() {
            return Err(wrong("the discovery subsystem has no namespaces"));
        }
        let nsid = nsid.parse::<u32>().ok();
        let nsid = nsid
            .filter(|nsid| (1..u32::MAX).contains(nsid))
            .ok_or_else(|| wrong("the NSID is no number from 1 to 4294967294"))?;
        Ok(Self {
            scheme,
            ways,
            subsystem,
            nsid,
        })
    }
}

fn ways(authority: &str) -> Result<Vec<Way>, &'static str> {
    let mut ways: Vec<Way> = Vec::new();
    for text in authority.split(',') {
        let (host, port) = host_and_port(text)?;
        let way = Way { host, port };
        if ways.contains(&way) {
            return Err("it names one way twice");
        }
        ways.push(way);
    }
    match ways.len() <= WAYS_MAX {
        true => Ok(ways),
        false => Err("it names more than 4 ways"),
    }
}

fn host_and_port(authority: &str) -> Result<(String, u16), &'static str> {
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']').ok_or("a bracket is not closed")?;
            let host: Ipv6Addr = host
                .parse()
                .map_err(|_| "what is in brackets is no IPv6 address")?;
            (host.to_string(), port)
        }
        None => {
            let at = authority.find(':').unwrap_or(authority.len());
            let (host, port) = authority.split_at(at);
            (host.to_ascii_lowercase(), port)
        }
    };
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:".contains(&byte);
    if host.is_empty() || host.len() > HOST_NAME_BYTES_MAX || !host.bytes().all(is_part) {
        return Err("the host is neither a name nor an IP address");
    }
    if port.is_empty() {
        return Ok((host, NVME_PORT));
    }
    let port = port.strip_prefix(':').and_then(|port| port.parse().ok());
    match port {
        Some(port) if port != 0 => Ok((host, port)),
        _ => Err("the port is no number from 1 to 65535 (an IPv6 address stands in brackets)"),
    }
}

impl fmt::Display for RemoteAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            scheme,
            ways,
            subsystem,
            nsid,
        } = self;
        write!(f, "nvme+{scheme}://")?;
        for (number, way) in ways.iter().enumerate() {
            let comma = if number == 0 { "" } else { "," };
            write!(f, "{comma}{way}")?;
        }
        write!(f, "/{subsystem}#{nsid}")
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        match host.contains(':') {
            true => write!(f, "[{host}]:{port}"),
            false => write!(f, "{host}:{port}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NQN: &str = "nqn.2026-11.dev.onefold:sled";

    #[test]
    fn addresses_are_printed_as_they_are_read() {
        for text in [
            "nvme+tcp://192.0.2.1:4420/nqn.2026-11.dev.onefold:sled#1",
            "nvme+rdma://[2001:db8::1]:4421/nqn.2026-11.dev.onefold:sled#7",
            "nvme+tcp://192.0.2.1:4420,[2001:db8::1]:4421,sled-3:4420/nqn.2026-11.dev.onefold:sled#1",
            "nvme+tcp://sled-3.lab.example:4420/nqn.2014-08.org.nvmexpress:uuid:00000000-0000-4000-8000-000000000000#4294967294",
        ] {
            let address: RemoteAddress = text.parse().expect("an address");
            assert_eq!(address.to_string(), text);
            assert!(RemoteAddress::is_meant(text));
        }
    }

    #[test]
    fn different_texts_of_one_address_are_printed_alike() {
        let printed = |text: String| {
            text.parse::<RemoteAddress>()
                .expect("an address")
                .to_string()
        };
        assert_eq!(
            printed(format!("nvme+tcp://Sled/{NQN}#1")),
            printed(format!("nvme+tcp://sled:4420/{NQN}#01")),
        );
        assert_eq!(
            printed(format!("nvme+tcp://[2001:db8:0::1]/{NQN}#1")),
            printed(format!("nvme+tcp://[2001:db8::1]:4420/{NQN}#1")),
        );
        assert_eq!(
            printed(format!("nvme+tcp://One,[2001:db8:0::1]/{NQN}#1")),
            printed(format!("nvme+tcp://one:4420,[2001:db8::1]:4420/{NQN}#1")),
        );
    }

    #[test]
    fn a_numeric_host_is_not_looked_up() {
        let address: RemoteAddress = format!("nvme+rdma://192.0.2.1/{NQN}#1")
            .parse()
            .expect("an address");
        let expected = TransportAddress::rdma([192, 0, 2, 1].into(), 4420);
        assert_eq!(address.resolve().expect("no look-up"), [expected]);
    }

    #[test]
    fn ways_are_tried_in_their_order_and_one_that_nobody_knows_keeps_no_other_from_it() {
        let address = |ways: &str| -> RemoteAddress {
            let text = format!("nvme+tcp://{ways}/{NQN}#1");
            text.parse().expect("an address")
        };
        let found = address("192.0.2.2,no-such-host.invalid,192.0.2.1:4421").resolve();
        let expected = [([192, 0, 2, 2], 4420), ([192, 0, 2, 1], 4421)];
        let expected =
            expected.map(|(ip, port)| TransportAddress::new(Scheme::Tcp, ip.into(), port));
        assert_eq!(found.expect("two are known"), expected);
        assert!(address("no-such-host.invalid").resolve().is_err());
    }

    #[test]
    fn other_texts_are_refused_with_the_reason() {
        for (text, reason) in [
            ("/dev/nvme0n1", "neither"),
            ("nvme+fc://host/x#1", "neither"),
            ("nvme+tcp://host", "no subsystem"),
            (
                "nvme+tcp:///nqn.2026-11.dev.onefold:sled#1",
                "neither a name",
            ),
            (
                "nvme+tcp://ho st/nqn.2026-11.dev.onefold:sled#1",
                "neither a name",
            ),
            (
                "nvme+tcp://host:0/nqn.2026-11.dev.onefold:sled#1",
                "the port",
            ),
            (
                "nvme+tcp://2001:db8::1/nqn.2026-11.dev.onefold:sled#1",
                "the port",
            ),
            (
                "nvme+tcp://host,/nqn.2026-11.dev.onefold:sled#1",
                "neither a name",
            ),
            (
                "nvme+tcp://host,HOST:4420/nqn.2026-11.dev.onefold:sled#1",
                "twice",
            ),
            (
                "nvme+tcp://a,b,c,d,e/nqn.2026-11.dev.onefold:sled#1",
                "more than 4",
            ),
            ("nvme+tcp://[::1/nqn.2026-11.dev.onefold:sled#1", "bracket"),
            ("nvme+tcp://[host]/nqn.2026-11.dev.onefold:sled#1", "IPv6"),
            ("nvme+tcp://host/nqn.2026-11.dev.onefold:sled", "#NSID"),
            ("nvme+tcp://host/nqn.2026-11.dev.onefold:sled#", "NSID"),
            ("nvme+tcp://host/nqn.2026-11.dev.onefold:sled#0", "NSID"),
            (
                "nvme+tcp://host/nqn.2026-11.dev.onefold:sled#4294967295",
                "NSID",
            ),
            ("nvme+tcp://host/#1", "no NQN"),
            (
                "nvme+tcp://host/nqn.2014-08.org.nvmexpress.discovery#1",
                "discovery",
            ),
        ] {
            let error = text.parse::<RemoteAddress>().expect_err(text).to_string();
            assert!(error.contains(reason) && error.contains(text), "{error}");
        }
    }
}
