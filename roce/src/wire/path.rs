//! Where packets go: the pair of addresses and the path MTU.

use std::net::{IpAddr, Ipv6Addr};

/// The two addresses of a connection. Both are of the same family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Path {
    /// This side's address.
    pub local: IpAddr,
    /// The peer's address.
    pub remote: IpAddr,
}

/// The path MTU: the most payload bytes in one packet of a message that has several. All but the
/// last packet of a message carry exactly that many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PathMtu {
    /// 256 bytes.
    Mtu256,
    /// 512 bytes.
    Mtu512,
    /// 1024 bytes: what fits into an Ethernet MTU of 1500.
    Mtu1024,
    /// 2048 bytes.
    Mtu2048,
    /// 4096 bytes: what fits into an Ethernet MTU of 9000.
    Mtu4096,
}

impl PathMtu {
    /// All of them, smallest first.
    pub const ALL: [PathMtu; 5] = [
        Self::Mtu256,
        Self::Mtu512,
        Self::Mtu1024,
        Self::Mtu2048,
        Self::Mtu4096,
    ];

    /// Bytes of headers that RoCEv2 needs around the payload at most, IP header included: IPv6 (40),
    /// UDP (8), BTH (12), RETH (16) and ICRC (4). Linux reckons with the same sum.
    pub const OVERHEAD_BYTES: usize = 40 + 8 + 12 + 16 + 4;

    /// How many bytes.
    pub fn bytes(self) -> usize {
        256 << (self.code() - 1)
    }

    /// The code in connection management messages (1..=5).
    pub fn code(self) -> u8 {
        match self {
            Self::Mtu256 => 1,
            Self::Mtu512 => 2,
            Self::Mtu1024 => 3,
            Self::Mtu2048 => 4,
            Self::Mtu4096 => 5,
        }
    }

    /// The MTU of a code, or nothing if the code is reserved.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|mtu| mtu.code() == code)
    }

    /// The MTU of exactly that many bytes.
    pub fn from_bytes(bytes: usize) -> Option<Self> {
        Self::ALL.into_iter().find(|mtu| mtu.bytes() == bytes)
    }

    /// The largest path MTU whose packets fit into a network interface's MTU (the IP packet's
    /// size), or nothing if not even 256 bytes fit.
    pub fn for_interface(interface_mtu_bytes: usize) -> Option<Self> {
        let room = interface_mtu_bytes.checked_sub(Self::OVERHEAD_BYTES)?;
        Self::ALL.into_iter().rev().find(|mtu| mtu.bytes() <= room)
    }
}

/// The global identifier of an address: IPv4 addresses are mapped into IPv6 (annex A17).
pub(crate) fn gid_of(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// The address that a global identifier stands for.
pub(crate) fn address_of(gid: [u8; 16]) -> IpAddr {
    Ipv6Addr::from(gid).to_canonical()
}
