//! The NVMe Boot Firmware Table (NVM Express Boot Specification 1.0, section 3): what firmware tells an operating system
//! about the volume that it boots from, and about the network on the way there.
//!
//! It is an ACPI table. Behind its header and the control descriptor lie the descriptors, in lists, and behind those
//! the heap with all that has no fixed length. Offsets count from the table's first byte. Numbers are little-endian; host
//! and namespace identifiers, MAC and IP addresses are in the order in which they are on the wire.

use std::net::IpAddr;

use crate::nqn::Nqn;

/// Bytes of the header.
const HEADER_BYTES: usize = 64;
/// Bytes of the control descriptor.
const CONTROL_BYTES: usize = 64;
/// Bytes of the host descriptor.
const HOST_BYTES: usize = 32;
/// Bytes of a host fabric interface (HFI) descriptor (figure 11).
const INTERFACE_BYTES: usize = 32;
/// Bytes of the transport info of an interface for TCP (figure 13).
const INTERFACE_INFO_BYTES: usize = 128;
/// Bytes of a subsystem namespace (SSNS) descriptor (figure 15).
const NAMESPACE_BYTES: usize = 128;

/// Interfaces and namespaces that a table can have: their numbers are bytes, from 1.
pub const DESCRIPTORS_MAX: usize = 255;

/// The longest table: machines take no longer one (QEMU's `-acpitable`).
pub const TABLE_BYTES_MAX: usize = 65_535;

/// Descriptor types (figure 5).
mod descriptor {
    pub(super) const CONTROL: u8 = 1;
    pub(super) const HOST: u8 = 2;
    pub(super) const INTERFACE: u8 = 3;
    pub(super) const NAMESPACE: u8 = 4;
    pub(super) const INTERFACE_INFO: u8 = 7;
}

/// Every descriptor: it is valid.
const VALID: u8 = 1;
/// Host flags: the host identifier, and the name, were configured by somebody.
const HOST_CONFIGURED: u8 = 1 << 1 | 1 << 2;
/// Flags of an interface's transport info: the default route leads through this interface.
const DEFAULT_ROUTE: u8 = 1 << 1;
/// Transport type NVMe/TCP (figure 7).
const TRTYPE_TCP: u8 = 3;
/// Where the address of an interface comes from: somebody said it (IpPrefixOriginManual of Windows' NL_PREFIX_ORIGIN).
const ORIGIN_MANUAL: u8 = 1;
/// The cost of a route for which nobody named one.
const ROUTE_METRIC: u16 = 500;
/// The type of a namespace identifier that is a UUID.
const NIDT_UUID: u8 = 3;

/// What a table says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nbft {
    /// Who connects.
    pub host: Host,
    /// Its network interfaces. Their numbers count from 1.
    pub interfaces: Vec<Interface>,
    /// What it connects to: the boot volume, once for each address of the target.
    pub namespaces: Vec<Namespace>,
}

/// The host that boots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// Its name.
    pub nqn: Nqn,
    /// Its identifier, which all its connections have.
    pub id: [u8; 16],
}

/// A network interface of the host, for NVMe/TCP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// By this the operating system finds it.
    pub mac: [u8; 6],
    /// The VLAN, if it is in one.
    pub vlan: Option<u16>,
    /// Its address.
    pub address: IpAddr,
    /// Bits of the address that name the network.
    pub prefix: u8,
    /// The way to other networks. The default route is that of the first interface that has one.
    pub gateway: Option<IpAddr>,
    /// Servers of names.
    pub dns: [Option<IpAddr>; 2],
}

/// A namespace at an address of its subsystem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Namespace {
    /// The target's address.
    pub address: IpAddr,
    /// The target's port.
    pub port: u16,
    /// Number of the port in the discovery log.
    pub port_id: u16,
    /// The subsystem's name.
    pub subsystem: Nqn,
    /// The namespace's identifier there.
    pub nsid: u32,
    /// The namespace's UUID.
    pub uuid: [u8; 16],
    /// Numbers of the interfaces that lead there, the preferred one first.
    pub interfaces: Vec<u8>,
}

/// Why there is no table that says this.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NbftError {
    /// More descriptors than numbers for them.
    #[error("{count} {what} do not fit into a table, which has room for {DESCRIPTORS_MAX}")]
    TooMany {
        /// What there is too much of.
        what: &'static str,
        /// How many there are.
        count: usize,
    },
    /// A namespace has no interface, or one that is not there.
    #[error("no interface of the table leads to {0}")]
    NoInterface(IpAddr),
    /// The table is longer than machines take.
    #[error("the table has {0} bytes, and machines take at most {TABLE_BYTES_MAX}")]
    TooLong(usize),
}

impl Nbft {
    /// The table.
    ///
    /// # Errors
    /// See [`NbftError`].
    pub fn encode(&self) -> Result<Vec<u8>, NbftError> {
        let interfaces = count("interfaces", self.interfaces.len())?;
        let namespaces = count("namespaces", self.namespaces.len())?;
        let host_at = HEADER_BYTES + CONTROL_BYTES;
        let interfaces_at = host_at + HOST_BYTES;
        let namespaces_at = interfaces_at + INTERFACE_BYTES * self.interfaces.len();
        let heap_at = namespaces_at + NAMESPACE_BYTES * self.namespaces.len();
        let mut table = Table {
            bytes: vec![0; heap_at],
        };

        table.control(
            host_at,
            (interfaces_at, interfaces),
            (namespaces_at, namespaces),
        );
        table.host(host_at, &self.host);
        let first_gateway = self.interfaces.iter().position(|i| i.gateway.is_some());
        for (index, interface) in self.interfaces.iter().enumerate() {
            let at = interfaces_at + INTERFACE_BYTES * index;
            table.interface(at, index, interface, first_gateway == Some(index));
        }
        for (index, namespace) in self.namespaces.iter().enumerate() {
            let is_there = |number: &u8| (1..=interfaces).contains(number);
            if namespace.interfaces.is_empty() || !namespace.interfaces.iter().all(is_there) {
                return Err(NbftError::NoInterface(namespace.address));
            }
            table.namespace(namespaces_at + NAMESPACE_BYTES * index, index, namespace);
        }
        table.finish(heap_at)
    }
}

fn count(what: &'static str, count: usize) -> Result<u8, NbftError> {
    u8::try_from(count).map_err(|_| NbftError::TooMany { what, count })
}

/// The table while it is made: lists first, and the heap grows behind them.
struct Table {
    bytes: Vec<u8>,
}

impl Table {
    fn put<const N: usize>(&mut self, at: usize, value: [u8; N]) {
        self.bytes[at..at + N].copy_from_slice(&value);
    }

    fn put_u8(&mut self, at: usize, value: u8) {
        self.put(at, [value]);
    }

    fn put_u16(&mut self, at: usize, value: u16) {
        self.put(at, value.to_le_bytes());
    }

    fn put_u32(&mut self, at: usize, value: u32) {
        self.put(at, value.to_le_bytes());
    }

    /// An offset or a length. A table that it does not fit is refused at the end, for its length.
    fn put_offset(&mut self, at: usize, value: usize) {
        self.put_u32(at, u32::try_from(value).unwrap_or(u32::MAX));
    }

    /// A reference to a heap object: offset and length.
    fn put_object(&mut self, at: usize, offset: usize, length: usize) {
        self.put_offset(at, offset);
        self.put_u16(at + 4, u16::try_from(length).unwrap_or(u16::MAX));
    }

    /// Puts an object into the heap, and a reference to it where it belongs.
    fn put_in_heap(&mut self, reference_at: usize, object: &[u8]) -> usize {
        let offset = self.bytes.len();
        self.bytes.extend_from_slice(object);
        self.put_object(reference_at, offset, object.len());
        offset
    }

    /// A text in the heap: a NUL follows, which its length does not count.
    fn put_text(&mut self, reference_at: usize, text: &str) {
        self.put_in_heap(reference_at, text.as_bytes());
        self.bytes.push(0);
    }

    /// The control descriptor: where the others are, of which length and version, and how many.
    fn control(&mut self, host: usize, interfaces: (usize, u8), namespaces: (usize, u8)) {
        let at = HEADER_BYTES;
        self.put_u8(at, descriptor::CONTROL);
        // Its version: 1.0.
        self.put_u8(at + 1, 1);
        self.put_u16(at + 4, CONTROL_BYTES as u16);
        self.put_u8(at + 6, VALID);
        self.put_object(at + 8, host, HOST_BYTES);
        self.put_u8(at + 14, 1);
        // Of the lists of security profiles (32) and discovery controllers (40) there are none.
        for (at, (offset, count), bytes) in [
            (at + 16, interfaces, INTERFACE_BYTES),
            (at + 24, namespaces, NAMESPACE_BYTES),
        ] {
            self.put_offset(at, offset);
            self.put_u16(at + 4, bytes as u16);
            self.put_u8(at + 6, 1);
            self.put_u8(at + 7, count);
        }
    }

    /// The host descriptor.
    fn host(&mut self, at: usize, host: &Host) {
        self.put_u8(at, descriptor::HOST);
        self.put_u8(at + 1, VALID | HOST_CONFIGURED);
        self.put(at + 2, host.id);
        self.put_text(at + 18, host.nqn.as_str());
    }

    /// The descriptor of an interface (figure 11) and, in the heap, its transport info (figure 13).
    fn interface(&mut self, at: usize, index: usize, interface: &Interface, is_default: bool) {
        let number = index as u8 + 1;
        self.put_u8(at, descriptor::INTERFACE);
        self.put_u8(at + 1, number);
        self.put_u8(at + 2, VALID);
        self.put_u8(at + 3, TRTYPE_TCP);

        let info = self.put_in_heap(at + 16, &[0; INTERFACE_INFO_BYTES]);
        self.put_u8(info, descriptor::INTERFACE_INFO);
        // The version of the descriptor, and that of what it says about TCP.
        self.put_u8(info + 1, 1);
        self.put_u8(info + 2, TRTYPE_TCP);
        self.put_u8(info + 3, 1);
        self.put_u16(info + 4, number.into());
        self.put_u8(info + 6, VALID | if is_default { DEFAULT_ROUTE } else { 0 });
        // The PCI function (7) is not known, and the MAC address names the interface.
        self.put(info + 11, interface.mac);
        self.put_u16(info + 17, interface.vlan.unwrap_or(0));
        self.put_u8(info + 19, ORIGIN_MANUAL);
        self.put(info + 20, address_bytes(interface.address));
        self.put_u8(info + 36, interface.prefix);
        if let Some(gateway) = interface.gateway {
            self.put(info + 37, address_bytes(gateway));
            self.put_u16(info + 54, ROUTE_METRIC);
        }
        for (at, server) in [info + 56, info + 72].into_iter().zip(interface.dns) {
            if let Some(server) = server {
                self.put(at, address_bytes(server));
            }
        }
    }

    /// The descriptor of a namespace (figure 15).
    fn namespace(&mut self, at: usize, index: usize, namespace: &Namespace) {
        self.put_u8(at, descriptor::NAMESPACE);
        self.put_u16(at + 1, index as u16 + 1);
        self.put_u16(at + 3, VALID.into());
        self.put_u8(at + 5, TRTYPE_TCP);
        // Flags of TCP: these are valid, and no digest is asked for.
        self.put_u16(at + 6, VALID.into());
        self.put_in_heap(at + 10, &address_bytes(namespace.address));
        self.put_text(at + 16, &namespace.port.to_string());
        self.put_u16(at + 22, namespace.port_id);
        self.put_u32(at + 24, namespace.nsid);
        self.put_u8(at + 28, NIDT_UUID);
        self.put(at + 29, namespace.uuid);
        self.put_u8(at + 46, namespace.interfaces[0]);
        // The list of the other interfaces begins with the first one: libnvme takes no namespace whose list is empty, and
        // passes over an interface that it has already.
        self.put_in_heap(at + 48, &namespace.interfaces);
        self.put_text(at + 54, namespace.subsystem.as_str());
    }

    /// Writes the header, with the checksum that makes all bytes add up to 0.
    fn finish(mut self, heap_at: usize) -> Result<Vec<u8>, NbftError> {
        let length = self.bytes.len();
        if length > TABLE_BYTES_MAX {
            return Err(NbftError::TooLong(length));
        }
        self.put(0, *b"NBFT");
        self.put_offset(4, length);
        // The table's version is 1.0: this is the 1, and at 50 stands the 0.
        self.put_u8(8, 1);
        self.put(10, *b"ONEFLD");
        self.put(16, *b"ONEFOLD ");
        self.put_u32(24, 1);
        self.put(28, *b"1FLD");
        self.put_u32(32, 1);
        self.put_offset(36, heap_at);
        self.put_offset(40, length - heap_at);
        let sum = self
            .bytes
            .iter()
            .fold(0_u8, |sum, byte| sum.wrapping_add(*byte));
        self.put_u8(9, sum.wrapping_neg());
        Ok(self.bytes)
    }
}

/// Sixteen bytes: IPv4 addresses are IPv6 addresses that map them (RFC 4291, section 2.5.5.2).
fn address_bytes(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}
