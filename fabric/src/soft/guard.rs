//! Who uses RoCE on which address of this machine.
//!
//! UDP port 4791 is bound with `SO_REUSEPORT`, because a target on every address and initiators on
//! loopback addresses must live side by side. The price is that the kernel would also let two daemons
//! share one address and scatter their packets. So whoever binds an address first binds an abstract
//! Unix socket of its name: the kernel frees it with the process, and it belongs to the network
//! namespace, as the UDP port does.

use std::io;
use std::net::IpAddr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

const PREFIX: &str = "onefold-roce-";

/// Holds an address as long as it lives.
#[derive(Debug)]
pub(crate) struct AddressGuard(#[allow(dead_code)] UnixDatagram);

impl AddressGuard {
    /// Takes an address; `AddrInUse` means that another device of Onefold has it.
    pub(crate) fn take(address: IpAddr) -> io::Result<Self> {
        let name = SocketAddr::from_abstract_name(format!("{PREFIX}{address}"))?;
        UnixDatagram::bind_addr(&name).map(Self)
    }
}

/// A held address that an opener of `address` would take packets from, or lose packets to: a whole
/// family and a specific address of it, in either order. Loopback addresses do not count: hosts on
/// this machine use random ones beside a target on every address.
pub(crate) fn overlapping(address: IpAddr) -> Option<IpAddr> {
    if address.is_loopback() {
        return None;
    }
    // What cannot be read cannot be checked; the kernel's own checks remain.
    let sockets = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
    find_overlapping(&sockets, address)
}

fn find_overlapping(sockets: &str, address: IpAddr) -> Option<IpAddr> {
    sockets
        .lines()
        .filter_map(|line| {
            line.split_once('@')?
                .1
                .trim_end()
                .strip_prefix(PREFIX)?
                .parse()
                .ok()
        })
        .find(|held: &IpAddr| {
            held.is_ipv4() == address.is_ipv4()
                && !held.is_loopback()
                && (held.is_unspecified() != address.is_unspecified())
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_held_until_its_guard_goes() {
        let address = IpAddr::from([127, 200, 3, 77]);
        let guard = AddressGuard::take(address).expect("nobody holds it");
        let refused = AddressGuard::take(address).expect_err("held");
        assert_eq!(refused.kind(), io::ErrorKind::AddrInUse);
        drop(guard);
        AddressGuard::take(address).expect("free again");
    }

    #[test]
    fn a_whole_family_and_one_of_its_addresses_overlap() {
        let sockets = "Num RefCount Protocol Flags Type St Inode Path\n\
            0000: 00000002 00000000 00000000 0002 01 17 @onefold-roce-127.1.2.3\n\
            0000: 00000002 00000000 00000000 0002 01 17 @something\n\
            0000: 00000002 00000000 00000000 0002 01 17 @onefold-roce-10.0.0.1\n\
            0000: 00000002 00000000 00000000 0002 01 17 @onefold-roce-::\n";
        let find = |a: &str| find_overlapping(sockets, a.parse().expect("an address"));
        assert_eq!(find("0.0.0.0"), "10.0.0.1".parse().ok());
        assert_eq!(find("10.0.0.2"), None);
        assert_eq!(find("fd00::1"), "::".parse().ok());
        assert_eq!(find("::"), None, "the same one is the guard's own business");
    }
}
