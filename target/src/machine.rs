//! The machine's addresses, for the commands that people type on their hosts, and its memory.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Addresses of this machine that other machines can use, IPv4 first. Empty if the kernel does not tell.
#[must_use]
pub(crate) fn addresses() -> Vec<IpAddr> {
    let v4 = std::fs::read_to_string("/proc/net/fib_trie").unwrap_or_default();
    let v6 = std::fs::read_to_string("/proc/net/if_inet6").unwrap_or_default();
    let mut found: Vec<IpAddr> = local_v4(&v4).into_iter().map(IpAddr::V4).collect();
    found.extend(local_v6(&v6).into_iter().map(IpAddr::V6));
    found
}

/// Bytes of memory that programs can still take without swapping, as the kernel estimates
/// (`MemAvailable` of /proc/meminfo, in KiB there). `None` if it does not tell.
pub(crate) fn available_memory_bytes() -> Option<u64> {
    available_of(&std::fs::read_to_string("/proc/meminfo").ok()?)
}

/// What `/proc/meminfo` says of it.
pub(crate) fn available_of(meminfo: &str) -> Option<u64> {
    bytes_of(meminfo, "MemAvailable:")
}

/// All memory, in bytes. `None` if the kernel does not tell.
pub(crate) fn memory_bytes() -> Option<u64> {
    let meminfo = std::fs::read_to_string("/proc/meminfo").ok()?;
    bytes_of(&meminfo, "MemTotal:")
}

/// Half of all memory, in bytes; all that there can be, if the kernel does not tell.
pub(crate) fn half_of_memory_bytes() -> u64 {
    memory_bytes().map_or(u64::MAX, |bytes| bytes / 2)
}

/// A size in `/proc/meminfo`, by its name there with the colon.
fn bytes_of(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Local addresses in the kernel's routing trie: a line with the address, then one that says
/// `/32 host LOCAL`. Each is there once per table.
fn local_v4(trie: &str) -> Vec<Ipv4Addr> {
    let mut found = Vec::new();
    let mut last = None;
    for line in trie.lines().map(str::trim) {
        if let Some(address) = line.strip_prefix("|-- ") {
            last = address.parse::<Ipv4Addr>().ok();
        } else if line == "/32 host LOCAL"
            && let Some(address) = last
            && !address.is_loopback()
            && !found.contains(&address)
        {
            found.push(address);
        }
    }
    found
}

/// Addresses in `if_inet6`: 32 hexadecimal digits, then index, prefix, scope (00 is global), flags, name.
fn local_v6(table: &str) -> Vec<Ipv6Addr> {
    let parse = |line: &str| {
        let mut fields = line.split_whitespace();
        let bits = u128::from_str_radix(fields.next()?, 16).ok()?;
        let scope = fields.nth(2)?;
        (scope == "00").then(|| Ipv6Addr::from_bits(bits))
    };
    table.lines().filter_map(parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_memory_is_read_as_the_kernel_writes_it() {
        let text = "MemTotal:       24545784 kB\nMemAvailable:   23068672 kB\nBuffers: 1 kB\n";
        assert_eq!(available_of(text), Some(22 << 30));
        assert_eq!(bytes_of(text, "MemTotal:"), Some(24_545_784 << 10));
        assert_eq!(available_of("MemTotal: 1 kB\n"), None);
        assert_eq!(available_of("MemAvailable: many kB\n"), None);
    }

    #[test]
    fn addresses_come_out_of_the_kernels_tables() {
        let trie = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 0.0.0.0\n        /0 universe UNICAST\n\
                    Local:\n     |-- 127.0.0.1\n        /32 host LOCAL\n     |-- 192.0.2.2\n        /32 host LOCAL\n\
                         |-- 192.0.2.255\n        /32 link BROADCAST\n     |-- 192.0.2.2\n        /32 host LOCAL\n";
        assert_eq!(local_v4(trie), [Ipv4Addr::new(192, 0, 2, 2)]);
        let table = "00000000000000000000000000000001 01 80 10 80       lo\n\
                     fe8000000000000000fc00fffe000001 02 40 20 80     eth0\n\
                     fd000000000000000000000000000002 02 40 00 82     eth0\n";
        assert_eq!(
            local_v6(table),
            ["fd00::2".parse::<Ipv6Addr>().expect("one")]
        );
    }

    #[test]
    fn garbage_gives_no_addresses() {
        for text in ["", "|-- ", "x y z", "|-- 999.1.1.1\n/32 host LOCAL"] {
            assert!(local_v4(text).is_empty());
            assert!(local_v6(text).is_empty());
        }
    }
}
