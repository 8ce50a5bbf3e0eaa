//! The discovery log (NVMe-oF 1.1, section 5.3; Base 2.0, section 5.16.1).
//!
//! The header and every entry have 1024 bytes. An entry that decodes is one a host can connect by:
//! known transport and address family, a well-formed name, printable addresses.

use crate::byte_enum::byte_enum;
use crate::identify::layout::{Wire, ascii, layout};
use crate::nqn::{NQN_FIELD_BYTES, Nqn};

/// Bytes of the header, and of each entry behind it.
pub const DISCOVERY_BYTES: usize = 1024;

/// The longest transport service identifier.
pub const TRSVCID_BYTES: usize = 32;

/// The longest transport address.
pub const TRADDR_BYTES: usize = 256;

layout! {
    /// The header of the log.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct DiscoveryHeader [DISCOVERY_BYTES] {
        /// GENCTR: changes with every change of the log, so that a host notices that the pieces it
        /// read are not of one log.
        0..8 => generation: u64,
        /// NUMREC: entries behind the header.
        8..16 => records: u64,
        /// RECFMT: form of the entries; 0 is the only one.
        16..18 => record_format: u16,
    }
}

impl DiscoveryHeader {
    /// The header.
    #[must_use]
    pub fn encode(&self) -> [u8; DISCOVERY_BYTES] {
        let mut header = [0; DISCOVERY_BYTES];
        self.put_fields(&mut header);
        header
    }

    /// Reads a header; `None` if it is shorter than 1024 bytes, or its entries have another form.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let header = Self::take_fields(bytes.get(..DISCOVERY_BYTES)?)?;
        (header.record_format == 0).then_some(header)
    }
}

byte_enum! {
    /// ADRFAM: what kind of address it is.
    pub enum AddressFamily {
        /// IPv4.
        Ipv4 = 1,
        /// IPv6.
        Ipv6 = 2,
    }
}

byte_enum! {
    /// SUBTYPE: what is found at the address.
    pub enum DiscoverySubtype {
        /// Another discovery service.
        Referral = 1,
        /// A subsystem with namespaces.
        Nvme = 2,
        /// The discovery service that sent the log.
        CurrentDiscovery = 3,
    }
}

byte_enum! {
    /// RDMA_QPTYPE: the service of the queue pair.
    pub enum RdmaQueuePair {
        /// Reliable connected.
        ReliableConnected = 1,
        /// Reliable datagram.
        ReliableDatagram = 2,
    }
}

byte_enum! {
    /// RDMA_PRTYPE: what carries RDMA.
    pub enum RdmaProvider {
        /// Not said.
        Unspecified = 1,
        /// InfiniBand.
        InfiniBand = 2,
        /// RoCE, version 1.
        Roce = 3,
        /// RoCE, version 2.
        RoceV2 = 4,
        /// iWARP.
        Iwarp = 5,
    }
}

byte_enum! {
    /// RDMA_CMS: how connections are made.
    pub enum RdmaConnection {
        /// The RDMA connection manager.
        RdmaCm = 1,
    }
}

byte_enum! {
    /// SECTYPE: the security of a TCP connection.
    pub enum TcpSecurity {
        /// None.
        None = 0,
        /// TLS 1.2.
        Tls12 = 1,
        /// TLS 1.3.
        Tls13 = 2,
    }
}

/// TRTYPE and, as they depend on it, the transport specific address subtype (TSAS).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Transport {
    /// TRTYPE 1.
    Rdma {
        /// Service of the queue pair.
        qptype: RdmaQueuePair,
        /// What carries RDMA.
        prtype: RdmaProvider,
        /// How connections are made.
        cms: RdmaConnection,
        /// Partition key of InfiniBand; 0 elsewhere.
        pkey: u16,
    },
    /// TRTYPE 3.
    Tcp {
        /// Security of the connection.
        sectype: TcpSecurity,
    },
}

impl Transport {
    /// TRTYPE of RDMA.
    pub const TRTYPE_RDMA: u8 = 1;

    /// TRTYPE of TCP.
    pub const TRTYPE_TCP: u8 = 3;

    /// RDMA over UDP, with the connection manager.
    pub const ROCE_V2: Self = Self::Rdma {
        qptype: RdmaQueuePair::ReliableConnected,
        prtype: RdmaProvider::RoceV2,
        cms: RdmaConnection::RdmaCm,
        pkey: 0,
    };

    /// TCP without TLS.
    pub const TCP: Self = Self::Tcp {
        sectype: TcpSecurity::None,
    };

    /// The value of TRTYPE.
    #[must_use]
    pub const fn trtype(self) -> u8 {
        match self {
            Self::Rdma { .. } => Self::TRTYPE_RDMA,
            Self::Tcp { .. } => Self::TRTYPE_TCP,
        }
    }
}

/// Why an entry cannot be put into the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DiscoveryEntryError {
    /// The service identifier does not fit, or has characters that cannot be sent.
    #[error("a discovery entry's service is at most {TRSVCID_BYTES} printable ASCII characters")]
    ServiceId,
    /// The address does not fit, or has characters that cannot be sent.
    #[error("a discovery entry's address is at most {TRADDR_BYTES} printable ASCII characters")]
    Address,
}

/// An entry of the log: where a subsystem, or a discovery service, can be reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiscoveryEntry {
    /// TRTYPE and TSAS.
    pub transport: Transport,
    /// ADRFAM: kind of `traddr`.
    pub adrfam: AddressFamily,
    /// SUBTYPE: what is found there.
    pub subtype: DiscoverySubtype,
    /// TREQ: bits 1:0 whether a secure channel is needed ([`Self::SECURE_CHANNEL_REQUIRED`]), bit 2
    /// flow control can be off ([`Self::SQ_FLOW_CONTROL_OPTIONAL`]).
    pub treq: u8,
    /// Number of the port of the subsystem.
    pub portid: u16,
    /// Controller to ask for: FFFFh any (dynamic), FFFEh any that stays the host's (static).
    pub cntlid: u16,
    /// Entries that an admin submission queue may have; at least 32.
    pub asqsz: u16,
    /// EFLAGS: [`Self::DUPLICATE_RETURNED_INFORMATION`] and the other bits below.
    pub eflags: u16,
    /// Transport service: for RDMA and TCP the port, in decimal; up to 32 characters.
    pub trsvcid: String,
    /// Name of the subsystem.
    pub subnqn: Nqn,
    /// Address: for RDMA and TCP an IP address; up to 256 characters.
    pub traddr: String,
}

impl DiscoveryEntry {
    /// TREQ 1: a secure channel is required.
    pub const SECURE_CHANNEL_REQUIRED: u8 = 1;

    /// TREQ 2: a secure channel is not required.
    pub const SECURE_CHANNEL_NOT_REQUIRED: u8 = 2;

    /// TREQ bit 2: the host may turn flow control of submission queues off.
    pub const SQ_FLOW_CONTROL_OPTIONAL: u8 = 1 << 2;

    /// CNTLID of the dynamic controller model.
    pub const CNTLID_DYNAMIC: u16 = 0xffff;

    /// EFLAGS bit 0: every address of this discovery service gives the same log.
    pub const DUPLICATE_RETURNED_INFORMATION: u16 = 1 << 0;

    /// EFLAGS bit 1: the discovery service keeps connections that ask for keep alive.
    pub const PERSISTENT_CONNECTIONS: u16 = 1 << 1;

    /// The entry. Reserved characters of the addresses are spaces, as the specification has it.
    ///
    /// # Errors
    /// See [`DiscoveryEntryError`]: an address that is cut would lead somewhere else.
    pub fn encode(&self) -> Result<Box<[u8; DISCOVERY_BYTES]>, DiscoveryEntryError> {
        let fits = |text: &str, limit| {
            text.len() <= limit && text.bytes().all(|byte| byte.is_ascii_graphic())
        };
        if !fits(&self.trsvcid, TRSVCID_BYTES) {
            return Err(DiscoveryEntryError::ServiceId);
        }
        if !fits(&self.traddr, TRADDR_BYTES) {
            return Err(DiscoveryEntryError::Address);
        }
        let mut entry = Box::new([0; DISCOVERY_BYTES]);
        let mut raw = RawEntry {
            trtype: self.transport.trtype(),
            adrfam: self.adrfam.as_u8(),
            subtype: self.subtype.as_u8(),
            treq: self.treq,
            portid: self.portid,
            cntlid: self.cntlid,
            asqsz: self.asqsz,
            eflags: self.eflags,
            trsvcid: self.trsvcid.clone(),
            subnqn: self.subnqn.to_field(),
            traddr: self.traddr.clone(),
            tsas: [0; TSAS_BYTES],
        };
        match self.transport {
            Transport::Rdma {
                qptype,
                prtype,
                cms,
                pkey,
            } => {
                raw.tsas[..3].copy_from_slice(&[qptype.as_u8(), prtype.as_u8(), cms.as_u8()]);
                pkey.put(&mut raw.tsas[8..10]);
            }
            Transport::Tcp { sectype } => raw.tsas[0] = sectype.as_u8(),
        }
        raw.put_fields(&mut entry[..]);
        Ok(entry)
    }

    /// Reads an entry; `None` if it is shorter than 1024 bytes, of a transport, family or subtype
    /// that is not known here, or its name or an address is not well formed.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let raw = RawEntry::take_fields(bytes.get(..DISCOVERY_BYTES)?)?;
        let tsas = &raw.tsas;
        let transport = match raw.trtype {
            Transport::TRTYPE_RDMA => Transport::Rdma {
                qptype: RdmaQueuePair::from_u8(tsas[0])?,
                prtype: RdmaProvider::from_u8(tsas[1])?,
                cms: RdmaConnection::from_u8(tsas[2])?,
                pkey: Wire::take(&tsas[8..10]),
            },
            Transport::TRTYPE_TCP => Transport::Tcp {
                sectype: TcpSecurity::from_u8(tsas[0])?,
            },
            _ => return None,
        };
        Some(Self {
            transport,
            adrfam: AddressFamily::from_u8(raw.adrfam)?,
            subtype: DiscoverySubtype::from_u8(raw.subtype)?,
            treq: raw.treq,
            portid: raw.portid,
            cntlid: raw.cntlid,
            asqsz: raw.asqsz,
            eflags: raw.eflags,
            trsvcid: raw.trsvcid,
            subnqn: Nqn::from_field(&raw.subnqn).ok()?,
            traddr: raw.traddr,
        })
    }
}

/// Bytes of the transport specific address subtype.
const TSAS_BYTES: usize = 256;

layout! {
    /// An entry before its values are checked.
    struct RawEntry [DISCOVERY_BYTES] {
        0..1 => trtype: u8,
        1..2 => adrfam: u8,
        2..3 => subtype: u8,
        3..4 => treq: u8,
        4..6 => portid: u16,
        6..8 => cntlid: u16,
        8..10 => asqsz: u16,
        10..12 => eflags: u16,
        32..64 => trsvcid: String as address,
        256..512 => subnqn: [u8; NQN_FIELD_BYTES],
        512..768 => traddr: String as address,
        768..1024 => tsas: [u8; TSAS_BYTES],
    }
}

/// Addresses: padded with spaces by the specification and by SPDK, with NULs by Linux.
mod address {
    pub(super) use super::ascii::put;

    pub(super) fn take(bytes: &[u8]) -> Option<String> {
        let end = bytes
            .iter()
            .position(|byte| *byte == 0)
            .unwrap_or(bytes.len());
        let text = std::str::from_utf8(&bytes[..end])
            .ok()?
            .trim_end_matches(' ');
        text.bytes()
            .all(|byte| byte.is_ascii_graphic())
            .then(|| text.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entry(transport: Transport) -> DiscoveryEntry {
        DiscoveryEntry {
            transport,
            adrfam: AddressFamily::Ipv4,
            subtype: DiscoverySubtype::Nvme,
            treq: DiscoveryEntry::SQ_FLOW_CONTROL_OPTIONAL,
            portid: 0x0102,
            cntlid: DiscoveryEntry::CNTLID_DYNAMIC,
            asqsz: 32,
            eflags: DiscoveryEntry::PERSISTENT_CONNECTIONS,
            trsvcid: "4420".into(),
            subnqn: Nqn::new("nqn.2026-11.dev.onefold:a").unwrap(),
            traddr: "192.0.2.1".into(),
        }
    }

    #[test]
    fn an_entry_stands_where_libnvme_reads_it() {
        let bytes = entry(Transport::ROCE_V2).encode().unwrap();
        assert_eq!(bytes[..12], [1, 1, 2, 4, 2, 1, 0xff, 0xff, 32, 0, 2, 0]);
        assert_eq!(&bytes[32..37], b"4420 ");
        assert_eq!(&bytes[256..282], b"nqn.2026-11.dev.onefold:a\0");
        assert_eq!(&bytes[512..522], b"192.0.2.1 ");
        assert_eq!(bytes[768..778], [1, 4, 1, 0, 0, 0, 0, 0, 0, 0]);
        let bytes = entry(Transport::TCP).encode().unwrap();
        assert_eq!((bytes[0], bytes[768]), (3, 0));
        let header = DiscoveryHeader {
            generation: 7,
            records: 2,
            record_format: 0,
        };
        let bytes = header.encode();
        assert_eq!((bytes[0], bytes[8]), (7, 2));
        assert_eq!(DiscoveryHeader::decode(&bytes), Some(header));
    }

    #[test]
    fn addresses_that_do_not_fit_are_refused_rather_than_cut() {
        let mut entry = entry(Transport::TCP);
        entry.trsvcid = "1".repeat(33);
        assert_eq!(entry.encode(), Err(DiscoveryEntryError::ServiceId));
        entry.trsvcid = "1".repeat(32);
        entry.traddr = "1".repeat(257);
        assert_eq!(entry.encode(), Err(DiscoveryEntryError::Address));
        entry.traddr = "fe80::1 %x".into();
        assert_eq!(entry.encode(), Err(DiscoveryEntryError::Address));
        entry.traddr = "1".repeat(256);
        let bytes = entry.encode().unwrap();
        assert_eq!(DiscoveryEntry::decode(&bytes[..]), Some(entry));
    }

    #[test]
    fn an_entry_padded_with_nuls_as_linux_sends_it_reads_the_same() {
        let entry = entry(Transport::TCP);
        let mut bytes = entry.encode().unwrap();
        bytes[36..64].fill(0);
        bytes[521..768].fill(0);
        assert_eq!(DiscoveryEntry::decode(&bytes[..]), Some(entry));
    }

    #[test]
    fn entries_that_no_one_could_connect_by_are_refused() {
        let good = entry(Transport::ROCE_V2).encode().unwrap();
        assert!(DiscoveryEntry::decode(&good[..1023]).is_none());
        // Transport, family, subtype, name, address, queue pair, provider, connection manager.
        for at in [0, 1, 2, 256, 512, 768, 769, 770] {
            let mut bad = good.clone();
            bad[at] = 9;
            assert!(DiscoveryEntry::decode(&bad[..]).is_none(), "byte {at}");
        }
        let mut header = DiscoveryHeader::default().encode();
        header[16] = 1;
        assert!(DiscoveryHeader::decode(&header).is_none());
    }

    proptest! {
        #[test]
        fn an_entry_reads_back(
            (tcp, qptype, prtype, pkey) in (0..3_u8, 1..3_u8, 1..6_u8, any::<u16>()),
            is_tcp in any::<bool>(),
            (adrfam, subtype, treq) in (1..3_u8, 1..4_u8, any::<u8>()),
            (portid, cntlid, asqsz, eflags) in any::<(u16, u16, u16, u16)>(),
            trsvcid in "[!-~]{0,32}",
            traddr in "[!-~]{0,256}",
        ) {
            let transport = if is_tcp {
                Transport::Tcp { sectype: TcpSecurity::from_u8(tcp).unwrap() }
            } else {
                Transport::Rdma {
                    qptype: RdmaQueuePair::from_u8(qptype).unwrap(),
                    prtype: RdmaProvider::from_u8(prtype).unwrap(),
                    cms: RdmaConnection::RdmaCm,
                    pkey,
                }
            };
            let entry = DiscoveryEntry {
                adrfam: AddressFamily::from_u8(adrfam).unwrap(),
                subtype: DiscoverySubtype::from_u8(subtype).unwrap(),
                treq, portid, cntlid, asqsz, eflags, trsvcid, traddr,
                ..entry(transport)
            };
            let bytes = entry.encode().unwrap();
            prop_assert_eq!(DiscoveryEntry::decode(&bytes[..]), Some(entry));
        }

        // Corrupting a good entry reaches further into the decoder than random bytes do.
        #[test]
        fn a_damaged_entry_reads_back_or_is_refused(
            damage in prop::collection::vec((0..DISCOVERY_BYTES, any::<u8>()), 0..4),
        ) {
            let mut bytes = entry(Transport::ROCE_V2).encode().unwrap();
            for (at, value) in damage {
                bytes[at] = value;
            }
            if let Some(entry) = DiscoveryEntry::decode(&bytes[..]) {
                let again = entry.encode().unwrap();
                prop_assert_eq!(DiscoveryEntry::decode(&again[..]), Some(entry));
            }
        }
    }
}
