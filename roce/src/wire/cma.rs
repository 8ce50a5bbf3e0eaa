//! The RDMA IP CM header that begins a request's private data (annex A11): it says between which IP
//! addresses the connection is, for peers to whom global identifiers mean nothing.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{WireError, be16};

/// The RDMA IP CM header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CmaHeader {
    /// The port that the active side claims. No socket need be behind it.
    pub src_port: u16,
    /// The active side's address.
    pub src: IpAddr,
    /// The passive side's address, of the same family.
    pub dst: IpAddr,
}

impl CmaHeader {
    /// Bytes on the wire; the application's private data follows.
    pub const LEN: usize = 36;

    /// Reads the header at the beginning of a request's private data.
    ///
    /// # Errors
    /// [`WireError::CmaHeader`] if it is too short, not version 0, or of no IP version.
    pub fn parse(private_data: &[u8]) -> Result<Self, WireError> {
        let bytes = private_data
            .first_chunk::<{ Self::LEN }>()
            .ok_or(WireError::CmaHeader("it has less than 36 bytes"))?;
        if bytes[0] != 0 {
            return Err(WireError::CmaHeader("its version is not 0"));
        }
        let address = |at: usize| -> Result<IpAddr, WireError> {
            let field = bytes[at..].first_chunk::<16>().copied().unwrap_or_default();
            match bytes[1] >> 4 {
                4 if field[..12].iter().any(|byte| *byte != 0) => {
                    Err(WireError::CmaHeader("an IPv4 address is not right-aligned"))
                }
                4 => Ok(Ipv4Addr::new(field[12], field[13], field[14], field[15]).into()),
                6 => Ok(Ipv6Addr::from(field).into()),
                _ => Err(WireError::CmaHeader("its IP version is neither 4 nor 6")),
            }
        };
        Ok(Self {
            src_port: be16(bytes, 2),
            src: address(4)?,
            dst: address(20)?,
        })
    }

    /// The bytes on the wire. Addresses of different families are both written as IPv6.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[2..4].copy_from_slice(&self.src_port.to_be_bytes());
        match (self.src, self.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                bytes[1] = 4 << 4;
                bytes[16..20].copy_from_slice(&src.octets());
                bytes[32..36].copy_from_slice(&dst.octets());
            }
            (src, dst) => {
                bytes[1] = 6 << 4;
                bytes[4..20].copy_from_slice(&super::path::gid_of(src));
                bytes[20..36].copy_from_slice(&super::path::gid_of(dst));
            }
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_both_families_survive_the_wire() {
        for (src, dst) in [("10.1.2.3", "10.1.2.4"), ("fd00::1", "fe80::2")] {
            let header = CmaHeader {
                src_port: 4711,
                src: src.parse().unwrap(),
                dst: dst.parse().unwrap(),
            };
            assert_eq!(CmaHeader::parse(&header.to_bytes()), Ok(header));
        }
    }

    #[test]
    fn headers_of_other_versions_are_refused() {
        let header = CmaHeader {
            src_port: 1,
            src: "10.1.2.3".parse().unwrap(),
            dst: "10.1.2.4".parse().unwrap(),
        };
        let good = header.to_bytes();
        assert!(CmaHeader::parse(&good[..35]).is_err());
        for (at, value) in [(0, 1), (1, 0x50), (1, 0), (8, 9), (30, 1)] {
            let mut bad = good;
            bad[at] = value;
            assert!(
                matches!(CmaHeader::parse(&bad), Err(WireError::CmaHeader(_))),
                "{at}"
            );
        }
    }
}
