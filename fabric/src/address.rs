//! Transport addresses as users write them: `rdma://192.0.2.1:4420`, `tcp://[::]:4420`.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

/// The service port of NVMe/RDMA and NVMe/TCP that IANA assigned.
pub const NVME_PORT: u16 = 4420;

/// The UDP port of RoCEv2 (assigned by IANA); both ends of every connection use it.
pub const ROCE_PORT: u16 = 4791;

/// Which addresses of this machine a device uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Addresses {
    /// All of them, IPv4 and IPv6.
    Wildcard,
    /// These; an unspecified one means its whole family.
    Specific(Vec<IpAddr>),
    /// The one from which this peer is reached; if the peer is this machine itself, a random
    /// loopback address.
    ToReach(IpAddr),
}

/// What carries a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// NVMe/RDMA.
    Rdma,
    /// NVMe/TCP.
    Tcp,
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Transport::Rdma => "rdma",
            Transport::Tcp => "tcp",
        })
    }
}

/// How an address is to be served or reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// NVMe/RDMA by whatever provider serves the address.
    Rdma,
    /// NVMe/RDMA by a verbs device.
    RdmaVerbs,
    /// NVMe/RDMA by soft RoCE over UDP.
    RdmaSoft,
    /// NVMe/TCP.
    Tcp,
}

impl Scheme {
    const ALL: [Self; 4] = [Self::Rdma, Self::RdmaVerbs, Self::RdmaSoft, Self::Tcp];

    /// The transport that hosts see.
    pub fn transport(self) -> Transport {
        match self {
            Self::Rdma | Self::RdmaVerbs | Self::RdmaSoft => Transport::Rdma,
            Self::Tcp => Transport::Tcp,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Rdma => "rdma",
            Self::RdmaVerbs => "rdma+verbs",
            Self::RdmaSoft => "rdma+soft",
            Self::Tcp => "tcp",
        }
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Where a target listens, or where a host connects to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TransportAddress {
    /// The transport, and what provides it.
    pub scheme: Scheme,
    /// The address; unspecified (`0.0.0.0`, `::`) means every address of that family.
    pub host: IpAddr,
    /// The NVMe service port: for TCP its own, for RDMA that of the RDMA CM's TCP port space.
    pub port: u16,
}

/// Why a text is not a transport address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// It does not begin with a known scheme.
    #[error(
        "'{0}' does not begin with a known transport; write tcp://ADDRESS:PORT or rdma://ADDRESS:PORT"
    )]
    Scheme(String),
    /// What follows is not an IP address with an optional port.
    #[error(
        "'{0}' is not an IP address and a port (names, and zones such as %eth0, are not looked up); write tcp://192.0.2.1:4420 or rdma://[::1]:4420"
    )]
    Host(String),
    /// The port is 0.
    #[error("'{0}' names port 0, which nobody can reach; NVMe's port is {NVME_PORT}")]
    Port(String),
    /// Two addresses of a list that cannot both be served.
    #[error("{0} and {1} serve the same place; leave one of them out")]
    Twice(TransportAddress, TransportAddress),
}

impl TransportAddress {
    /// An address and what serves it.
    pub fn new(scheme: Scheme, host: IpAddr, port: u16) -> Self {
        Self { scheme, host, port }
    }

    /// An RDMA address, by whatever provider serves it.
    pub fn rdma(host: IpAddr, port: u16) -> Self {
        Self::new(Scheme::Rdma, host, port)
    }

    /// A TCP address.
    pub fn tcp(host: IpAddr, port: u16) -> Self {
        Self::new(Scheme::Tcp, host, port)
    }

    /// Address and port as a socket address.
    pub fn socket_addr(&self) -> SocketAddr {
        SocketAddr::new(self.host, self.port)
    }

    /// Addresses to listen on, each once.
    ///
    /// # Errors
    /// When two of them stand in each other's way: one address by two kinds of RDMA, or a TCP port on
    /// all addresses and on one of them.
    pub fn distinct(addresses: &[Self]) -> Result<Vec<Self>, AddressError> {
        let mut distinct: Vec<Self> = Vec::new();
        for address in addresses {
            if distinct.contains(address) {
                continue;
            }
            if let Some(other) = distinct.iter().find(|other| other.excludes(address)) {
                return Err(AddressError::Twice(*other, *address));
            }
            distinct.push(*address);
        }
        Ok(distinct)
    }

    /// Whether another address cannot be served beside this one.
    fn excludes(&self, other: &Self) -> bool {
        match (self.scheme, other.scheme) {
            (Scheme::Tcp, Scheme::Tcp) => {
                self.port == other.port
                    && self.host.is_ipv4() == other.host.is_ipv4()
                    && (self.host.is_unspecified() || other.host.is_unspecified())
            }
            (Scheme::Tcp, _) | (_, Scheme::Tcp) => false,
            (one, another) => one != another && self.host == other.host,
        }
    }
}

impl From<TransportAddress> for SocketAddr {
    fn from(address: TransportAddress) -> Self {
        address.socket_addr()
    }
}

impl FromStr for TransportAddress {
    type Err = AddressError;

    /// Parses `SCHEME://ADDRESS[:PORT]`; without a port it is [`NVME_PORT`].
    fn from_str(text: &str) -> Result<Self, AddressError> {
        let (scheme, rest) = text
            .split_once("://")
            .and_then(|(name, rest)| {
                let scheme = Scheme::ALL.into_iter().find(|known| known.name() == name)?;
                Some((scheme, rest))
            })
            .ok_or_else(|| AddressError::Scheme(text.to_owned()))?;
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        if let Ok(address) = rest.parse::<SocketAddr>() {
            return match address.port() {
                0 => Err(AddressError::Port(text.to_owned())),
                port => Ok(Self::new(scheme, address.ip(), port)),
            };
        }
        let bare = rest
            .strip_prefix('[')
            .and_then(|r| r.strip_suffix(']'))
            .unwrap_or(rest);
        match bare.parse::<IpAddr>() {
            Ok(host) => Ok(Self::new(scheme, host, NVME_PORT)),
            Err(_) => Err(AddressError::Host(text.to_owned())),
        }
    }
}

impl fmt::Display for TransportAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme, self.socket_addr())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_printed_as_they_are_read() {
        for text in [
            "rdma://0.0.0.0:4420",
            "rdma://[::]:4420",
            "rdma://[fe80::1]:1",
            "rdma+verbs://192.0.2.1:4420",
            "rdma+soft://192.0.2.1:4420",
            "tcp://[::]:4420",
        ] {
            assert_eq!(
                text.parse::<TransportAddress>().map(|a| a.to_string()),
                Ok(text.into())
            );
        }
    }

    #[test]
    fn the_port_may_be_left_out() {
        for text in [
            "rdma://127.0.0.1",
            "rdma://127.0.0.1/",
            "rdma://127.0.0.1:4420",
        ] {
            let address = text.parse::<TransportAddress>().ok();
            assert_eq!(
                address,
                Some(TransportAddress::rdma([127, 0, 0, 1].into(), 4420))
            );
        }
        assert_eq!(
            "tcp://[::1]".parse::<TransportAddress>(),
            Ok(TransportAddress::tcp(
                [0, 0, 0, 0, 0, 0, 0, 1].into(),
                NVME_PORT
            ))
        );
    }

    #[test]
    fn other_texts_are_refused_with_a_remedy() {
        for text in ["", "127.0.0.1:4420", "fc://127.0.0.1:4420", "rdma+://::1"] {
            assert!(matches!(
                text.parse::<TransportAddress>(),
                Err(AddressError::Scheme(_))
            ));
        }
        for text in [
            "rdma://",
            "tcp://host:1",
            "rdma://1.2.3.4:99999",
            "rdma://1.2.3.4:",
        ] {
            assert!(matches!(
                text.parse::<TransportAddress>(),
                Err(AddressError::Host(_))
            ));
        }
        for text in ["tcp://127.0.0.1:0", "rdma://[::1]:0"] {
            let error = text.parse::<TransportAddress>().expect_err("no port");
            assert!(error.to_string().contains(text), "{error}");
            assert!(error.to_string().contains("4420"), "{error}");
        }
    }

    fn distinct(list: &[&str]) -> Result<Vec<String>, AddressError> {
        let parsed = list
            .iter()
            .map(|text| text.parse())
            .collect::<Result<Vec<_>, _>>()?;
        let distinct = TransportAddress::distinct(&parsed)?;
        Ok(distinct.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn an_address_given_twice_is_served_once() {
        let list = [
            "tcp://192.0.2.1:4420",
            "rdma://192.0.2.1:4420",
            "tcp://192.0.2.1",
        ];
        assert_eq!(distinct(&list).expect("no conflict"), list[..2]);
        let beside = [
            "tcp://0.0.0.0:4420",
            "tcp://[::]:4420",
            "tcp://192.0.2.1:4421",
        ];
        assert_eq!(distinct(&beside).expect("no conflict"), beside);
    }

    #[test]
    fn addresses_that_exclude_each_other_are_both_named() {
        for list in [
            ["tcp://0.0.0.0:4420", "tcp://192.0.2.1:4420"],
            ["tcp://[2001:db8::1]:4420", "tcp://[::]:4420"],
            ["rdma://192.0.2.1:4420", "rdma+soft://192.0.2.1:4421"],
        ] {
            let error = distinct(&list).expect_err("a conflict").to_string();
            assert!(list.iter().all(|part| error.contains(part)), "{error}");
        }
    }
}
