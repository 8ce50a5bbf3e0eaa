//! The boot table: NVM Express Boot Specification 1.0, section 3.

use std::net::IpAddr;

use nvme::Nqn;
use nvme::nbft::{Host, Interface, Namespace, Nbft, NbftError};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::Golden;

fn nqn(text: &str) -> Nqn {
    Nqn::new(text).expect("a name")
}

fn table() -> Nbft {
    let address = |text: &str| text.parse().expect("an address");
    let namespace = |target, port, port_id, interfaces| Namespace {
        address: address(target),
        port,
        port_id,
        subsystem: nqn("nqn.2026-11.org.example:s1"),
        nsid: 0x0403_0201,
        uuid: *b"namespace's UUID",
        interfaces,
    };
    Nbft {
        host: Host {
            nqn: nqn("nqn.2026-11.org.example:h1"),
            id: *b"host identifier.",
        },
        interfaces: vec![
            Interface {
                mac: [0x52, 0x54, 0, 0x12, 0x34, 0x56],
                vlan: None,
                address: address("192.0.2.50"),
                prefix: 24,
                gateway: None,
                dns: [None; 2],
            },
            Interface {
                mac: [0x52, 0x54, 0, 0x12, 0x34, 0x57],
                vlan: Some(0x0102),
                address: address("2001:db8::2"),
                prefix: 64,
                gateway: Some(address("2001:db8::1")),
                dns: [Some(address("2001:db8::d1")), Some(address("2001:db8::d2"))],
            },
        ],
        namespaces: vec![
            namespace("192.0.2.1", 4420, 1, vec![1, 2]),
            namespace("2001:db8:1::1", 8009, 0x0302, vec![2]),
        ],
    }
}

fn v4(last: u8) -> [u8; 16] {
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, last]
}

fn v6(fifth: u8, last: u8) -> [u8; 16] {
    [
        0x20, 1, 0x0d, 0xb8, 0, fifth, 0, 0, 0, 0, 0, 0, 0, 0, 0, last,
    ]
}

/// Names a heap object, and its place in the table.
fn object(page: &mut Golden, reference_at: usize, offset: u16, object: &[u8]) {
    page.set_all(reference_at, &offset.to_le_bytes());
    page.set_all(reference_at + 2, &[0, 0]);
    page.set_all(reference_at + 4, &(object.len() as u16).to_le_bytes());
    page.set_all(offset.into(), object);
}

#[test]
fn every_byte_of_a_boot_table_stands_where_the_specification_has_it() {
    let made = table().encode().expect("a table");
    let mut page = Golden::new(862);

    // Header: signature, length, revision 1 of 1.0, checksum, who made it, and the heap.
    page.set_all(0, b"NBFT");
    page.set_all(4, &862_u32.to_le_bytes());
    page.set(8, 1);
    page.set_all(10, b"ONEFLDONEFOLD ");
    page.set(24, 1);
    page.set_all(28, b"1FLD");
    page.set(32, 1);
    page.set_all(36, &480_u32.to_le_bytes());
    page.set_all(40, &382_u32.to_le_bytes());

    // Control: its type, version 1.0, length and flag; the host; two interfaces; two namespaces.
    page.set_all(64, &[1, 1, 0, 0, 64, 0, 1, 0]);
    page.set_all(72, &[128, 0, 0, 0, 32, 0, 1, 0]);
    page.set_all(80, &[160, 0, 0, 0, 32, 0, 1, 2]);
    page.set_all(88, &[224, 0, 0, 0, 128, 0, 1, 2]);

    // Host: its type, all three flags, identifier, name.
    page.set_all(128, &[2, 0b111]);
    page.set_all(130, b"host identifier.");
    object(&mut page, 146, 480, b"nqn.2026-11.org.example:h1");

    // Interfaces: type, number, flag, TCP; where the transport info is.
    page.set_all(160, &[3, 1, 1, 3]);
    page.set_all(176, &[0xfb, 1, 0, 0, 128, 0]);
    page.set_all(192, &[3, 2, 1, 3]);
    page.set_all(208, &[0x7b, 2, 0, 0, 128, 0]);

    // Transport info: type, version, TCP, version, number of the interface, flags, PCI function, MAC address, VLAN,
    // origin, address, prefix.
    page.set_all(507, &[7, 1, 3, 1, 1, 0, 0b01, 0, 0, 0, 0]);
    page.set_all(518, &[0x52, 0x54, 0, 0x12, 0x34, 0x56, 0, 0, 1]);
    page.set_all(527, &v4(50));
    page.set(543, 24);
    page.set_all(635, &[7, 1, 3, 1, 2, 0, 0b11, 0, 0, 0, 0]);
    page.set_all(646, &[0x52, 0x54, 0, 0x12, 0x34, 0x57, 2, 1, 1]);
    page.set_all(655, &v6(0, 2));
    page.set(671, 64);
    // Gateway, the cost of the route, and the servers of names.
    page.set_all(672, &v6(0, 1));
    page.set_all(689, &500_u16.to_le_bytes());
    page.set_all(691, &v6(0, 0xd1));
    page.set_all(707, &v6(0, 0xd2));

    // Namespaces: type, number, flags, TCP, flags of TCP.
    page.set_all(224, &[4, 1, 0, 1, 0, 3, 1, 0]);
    object(&mut page, 234, 763, &v4(1));
    object(&mut page, 240, 779, b"4420");
    // Port, NSID, the type of the identifier, identifier; no security profile, the first interface.
    page.set_all(246, &[1, 0, 1, 2, 3, 4, 3]);
    page.set_all(253, b"namespace's UUID");
    page.set_all(269, &[0, 1]);
    object(&mut page, 272, 784, &[1, 2]);
    object(&mut page, 278, 786, b"nqn.2026-11.org.example:s1");

    page.set_all(352, &[4, 2, 0, 1, 0, 3, 1, 0]);
    object(&mut page, 362, 813, &v6(1, 1));
    object(&mut page, 368, 829, b"8009");
    page.set_all(374, &[2, 3, 1, 2, 3, 4, 3]);
    page.set_all(381, b"namespace's UUID");
    page.set_all(397, &[0, 2]);
    object(&mut page, 400, 834, &[2]);
    object(&mut page, 406, 835, b"nqn.2026-11.org.example:s1");

    // With the checksum all bytes add up to nothing.
    let sum = page.bytes.iter().fold(0_u8, |sum, b| sum.wrapping_add(*b));
    page.set(9, 0_u8.wrapping_sub(sum));
    page.is(&made);
}

#[test]
fn a_table_that_cannot_be_is_refused() {
    let namespace = |interfaces| {
        let mut table = table();
        table.namespaces[1].interfaces = interfaces;
        table.encode()
    };
    let address = table().namespaces[1].address;
    for wrong in [vec![], vec![0], vec![1, 3]] {
        assert_eq!(namespace(wrong), Err(NbftError::NoInterface(address)));
    }
    let many = |interfaces, namespaces| {
        let mut all = table();
        all.interfaces = vec![all.interfaces[0].clone(); interfaces];
        all.namespaces = vec![all.namespaces[0].clone(); namespaces];
        all.namespaces
            .iter_mut()
            .for_each(|it| it.interfaces = vec![1]);
        all.encode()
    };
    assert!(many(255, 100).is_ok());
    let count = 256;
    let what = "interfaces";
    assert_eq!(many(256, 1), Err(NbftError::TooMany { what, count }));
    let what = "namespaces";
    assert_eq!(many(1, 256), Err(NbftError::TooMany { what, count }));
    assert!(matches!(many(255, 255), Err(NbftError::TooLong(bytes)) if bytes > 65_535));
}

/// Reads tables by offsets that they hold, as operating systems do.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn u16(&self, at: usize) -> usize {
        u16::from_le_bytes([self.0[at], self.0[at + 1]]).into()
    }

    fn u32(&self, at: usize) -> usize {
        self.u16(at) | self.u16(at + 2) << 16
    }

    /// A heap object, which has to lie in the heap.
    fn object(&self, at: usize) -> &'a [u8] {
        let (offset, length) = (self.u32(at), self.u16(at + 4));
        let heap = self.u32(36)..self.u32(36) + self.u32(40);
        assert!(heap.contains(&offset) && offset + length <= heap.end);
        &self.0[offset..offset + length]
    }

    /// The same for a text, which ends with a NUL.
    fn text(&self, at: usize) -> &'a str {
        let text = self.object(at);
        assert_eq!(self.0[self.u32(at) + text.len()], 0);
        std::str::from_utf8(text).expect("UTF-8")
    }

    /// Where the descriptors of a list are.
    fn list(&self, at: usize) -> impl Iterator<Item = usize> + use<> {
        let (first, bytes, count) = (self.u32(at), self.u16(at + 4), self.0[at + 7]);
        (0..count.into()).map(move |index: usize| first + bytes * index)
    }

    fn address(bytes: &[u8]) -> IpAddr {
        let bytes: [u8; 16] = bytes.try_into().expect("16 bytes");
        IpAddr::from(bytes).to_canonical()
    }

    /// An address that may be missing.
    fn address_if_any(bytes: &[u8]) -> Option<IpAddr> {
        bytes.iter().any(|b| *b != 0).then(|| Self::address(bytes))
    }
}

fn read(bytes: &[u8]) -> Nbft {
    let table = Reader(bytes);
    assert_eq!(bytes.iter().fold(0_u8, |sum, b| sum.wrapping_add(*b)), 0);
    assert_eq!(table.u32(4), bytes.len());
    let host = table.u32(72);
    let interface = |at: usize| {
        let info = table.object(at + 16);
        assert_eq!(info[4], bytes[at + 1]);
        let vlan = u16::from_le_bytes([info[17], info[18]]);
        Interface {
            mac: info[11..17].try_into().expect("six bytes"),
            vlan: (vlan != 0).then_some(vlan),
            address: Reader::address(&info[20..36]),
            prefix: info[36],
            gateway: Reader::address_if_any(&info[37..53]),
            dns: [
                Reader::address_if_any(&info[56..72]),
                Reader::address_if_any(&info[72..88]),
            ],
        }
    };
    let namespace = |at: usize| {
        let interfaces = table.object(at + 48).to_vec();
        assert_eq!(interfaces[0], bytes[at + 46]);
        Namespace {
            address: Reader::address(table.object(at + 10)),
            port: table.text(at + 16).parse().expect("a port"),
            port_id: table.u16(at + 22) as u16,
            subsystem: nqn(table.text(at + 54)),
            nsid: table.u32(at + 24) as u32,
            uuid: bytes[at + 29..at + 45].try_into().expect("16 bytes"),
            interfaces,
        }
    };
    Nbft {
        host: Host {
            nqn: nqn(table.text(host + 18)),
            id: bytes[host + 2..host + 18].try_into().expect("16 bytes"),
        },
        interfaces: table.list(80).map(interface).collect(),
        namespaces: table.list(88).map(namespace).collect(),
    }
}

fn any_address() -> impl Strategy<Value = IpAddr> {
    let v6 = any::<std::net::Ipv6Addr>().prop_map(|it| IpAddr::V6(it).to_canonical());
    let v4 = any::<std::net::Ipv4Addr>().prop_map(IpAddr::V4);
    prop_oneof![v4, v6].prop_filter("an address", |it| !it.is_unspecified())
}

fn any_name() -> impl Strategy<Value = Nqn> {
    "nqn\\.2026-11\\.org\\.example:[a-z0-9]{1,199}".prop_map(|text| nqn(&text))
}

prop_compose! {
    fn any_interface()(
        mac: [u8; 6],
        vlan in prop::option::of(1_u16..4095),
        address in any_address(),
        prefix in 1_u8..=128,
        gateway in prop::option::of(any_address()),
        dns in [prop::option::of(any_address()), prop::option::of(any_address())],
    ) -> Interface {
        Interface { mac, vlan, address, prefix, gateway, dns }
    }
}

prop_compose! {
    fn any_namespace(interfaces: usize)(
        address in any_address(),
        port: u16,
        port_id: u16,
        subsystem in any_name(),
        nsid: u32,
        uuid: [u8; 16],
        interfaces in vec(1..=interfaces as u8, 1..=interfaces),
    ) -> Namespace {
        Namespace { address, port, port_id, subsystem, nsid, uuid, interfaces }
    }
}

fn any_table() -> impl Strategy<Value = Nbft> {
    let parts = vec(any_interface(), 1..6).prop_flat_map(|interfaces| {
        let namespaces = vec(any_namespace(interfaces.len()), 0..6);
        (any_name(), any::<[u8; 16]>(), Just(interfaces), namespaces)
    });
    parts.prop_map(|(nqn, id, interfaces, namespaces)| Nbft {
        host: Host { nqn, id },
        interfaces,
        namespaces,
    })
}

proptest! {
    #[test]
    fn who_follows_the_offsets_of_a_boot_table_reads_what_was_put_there(table in any_table()) {
        prop_assert_eq!(read(&table.encode().expect("a table")), table);
    }
}
