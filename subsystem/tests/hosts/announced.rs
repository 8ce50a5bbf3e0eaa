//! What the target announces of itself and of namespaces, byte by byte: the places from the specification's
//! figures, the values as they are meant. Whatever is not named here is zero.

use nvme::admin::Identify;
use nvme::properties;

use crate::admin::identify;
use crate::harness::{Attached, VOLUME_BYTES, story, write};
use crate::subsystems::name;

/// 0's based: asynchronous event requests (4), entries of the error log (64).
const AERL: u8 = 3;
const ELPE: u8 = 63;
/// In units of 100 ms.
const KAS: u16 = 10;
const ANA_GROUPS: u32 = 128;
/// In units of 64 KiB.
const PELS: u32 = 1;
/// Commands of a queue over RDMA.
const MAXCMD: u16 = 256;

/// Every byte of the page: those from each place on, and zeros between them.
#[track_caller]
fn holds(page: &[u8], fields: &[(usize, &str, &[u8])]) {
    let mut expected = vec![0; page.len()];
    let mut names = vec!["a reserved byte"; page.len()];
    for (first, name, bytes) in fields {
        let range = *first..first + bytes.len();
        expected[range.clone()].copy_from_slice(bytes);
        names[range].fill(name);
    }
    for (at, (got, want)) in page.iter().zip(&expected).enumerate() {
        assert_eq!(got, want, "byte {at}, {}", names[at]);
    }
}

fn padded<const N: usize>(text: &str) -> [u8; N] {
    let mut field = [b' '; N];
    field[..text.len()].copy_from_slice(text.as_bytes());
    field
}

async fn page(host: &Attached, cns: u8, nsid: u32) -> Vec<u8> {
    identify(host, cns, nsid).await.ok().data
}

#[test]
fn the_controller_announces_what_it_does_where_hosts_read_it() {
    story(async |lab| {
        let host = lab.attach(1).await;
        let queue = lab.io_queue(&host, 1).await;
        // So that what is free differs from all there is.
        queue.call_out(write(1, 0, 1), vec![7; 4096]).await.ok();
        for manages in [false, true] {
            lab.change(|catalog| {
                let nqn = name(subsystem::DEFAULT_SUBSYSTEM_NQN);
                catalog.subsystem_mut(&nqn)?.namespace_management = manages;
                Ok(())
            })
            .await;
            let space = lab.engine.status();
            assert_ne!(space.capacity_bytes, space.free_bytes);
            let version = host.property(properties::VS, false).await.ok().result;
            assert_eq!(version, 0x0001_0400);
            let oacs = [if manages { 8 } else { 0 }, 2];
            let whole = page(&host, 0x01, 0).await;
            let random = whole[136..144].to_vec();
            assert_ne!(random, [0; 8]);
            holds(
                &whole,
                &[
                    (4, "SN", b"123456789abcdef01234"),
                    (24, "MN", &padded::<40>("Onefold")),
                    (64, "FR", &padded::<8>(subsystem::VERSION)),
                    (72, "RAB", &[6]),
                    (76, "CMIC: ports, controllers, ANA", &[0b1011]),
                    (77, "MDTS: 1 MiB", &[8]),
                    (78, "CNTLID", &host.cntlid.to_le_bytes()),
                    (80, "VER", &0x0001_0400_u32.to_le_bytes()),
                    (
                        92,
                        "OAES: namespaces, ANA, resets of controllers",
                        &[0, 0b1001, 0b1_0000, 0],
                    ),
                    (
                        96,
                        "CTRATT: 128-bit host identifier, TBKAS",
                        &[0x41, 0, 0, 0],
                    ),
                    (111, "CNTRLTYPE: I/O", &[1]),
                    (128, "CRDT1: 0.5 s", &[5, 0]),
                    (130, "CRDT2: 2 s", &[20, 0]),
                    (132, "CRDT3: 5 s", &[50, 0]),
                    (135, "CIU: the first instance", &[1]),
                    (136, "CIRN", &random),
                    (256, "OACS: Get LBA Status, Namespace Management", &oacs),
                    (258, "ACL: 4", &[3]),
                    (259, "AERL", &[AERL]),
                    (260, "FRMW: one slot, read only", &[3]),
                    (261, "LPA", &[0b11_1110]),
                    (262, "ELPE", &[ELPE]),
                    (
                        280,
                        "TNVMCAP",
                        &u128::from(space.capacity_bytes).to_le_bytes(),
                    ),
                    (296, "UNVMCAP", &u128::from(space.free_bytes).to_le_bytes()),
                    (320, "KAS", &KAS.to_le_bytes()),
                    (342, "ANATT: 10 s", &[10]),
                    (343, "ANACAP: all states", &[0x1f]),
                    (344, "ANAGRPMAX", &ANA_GROUPS.to_le_bytes()),
                    (348, "NANAGRPID", &ANA_GROUPS.to_le_bytes()),
                    (352, "PELS", &PELS.to_le_bytes()),
                    (386, "CQT: 11 s", &11_000_u16.to_le_bytes()),
                    (512, "SQES, CQES", &[0x66, 0x44]),
                    (514, "MAXCMD", &MAXCMD.to_le_bytes()),
                    (516, "NN", &1024_u32.to_le_bytes()),
                    (520, "ONCS", &0x1ff_u16.to_le_bytes()),
                    (522, "FUSES: Compare and Write", &[1, 0]),
                    (525, "VWC: there, and flushes all namespaces", &[0b111]),
                    (526, "AWUN: 256", &255_u16.to_le_bytes()),
                    (531, "NWPC: off, on, until a power cycle", &[0b11]),
                    (532, "ACWU: 256", &255_u16.to_le_bytes()),
                    (534, "OCFS: formats 0 and 2", &[0b101, 0]),
                    (
                        536,
                        "SGLS: any alignment, keyed, offsets",
                        &[0b101, 0, 0x10, 0],
                    ),
                    (540, "MNAN", &1024_u32.to_le_bytes()),
                    (768, "SUBNQN", subsystem::DEFAULT_SUBSYSTEM_NQN.as_bytes()),
                    (1792, "IOCCSZ: 64 + 4096 bytes", &260_u32.to_le_bytes()),
                    (1796, "IORCSZ: 16 bytes", &1_u32.to_le_bytes()),
                    (1803, "MSDBD", &[1]),
                    (1804, "OFCS: Disconnect", &[1, 0]),
                    (1807, "CCRL", &[4]),
                ],
            );
        }
    });
}

#[test]
fn the_discovery_controller_announces_no_more_than_it_does() {
    story(async |lab| {
        let host = lab.discover(1).await;
        let whole = page(&host, 0x01, 0).await;
        // Its names are told in other stories.
        let mut rest = whole.clone();
        rest[4..72].fill(0);
        rest[768..1024].fill(0);
        holds(
            &rest,
            &[
                (77, "MDTS: 1 MiB", &[8]),
                (78, "CNTLID", &host.cntlid.to_le_bytes()),
                (80, "VER", &0x0001_0400_u32.to_le_bytes()),
                (92, "OAES: the discovery log", &[0, 0, 0, 0x80]),
                (
                    96,
                    "CTRATT: 128-bit host identifier, TBKAS",
                    &[0x41, 0, 0, 0],
                ),
                (111, "CNTRLTYPE: discovery", &[2]),
                (128, "CRDT1, CRDT2, CRDT3", &[5, 0, 20, 0, 50, 0]),
                (259, "AERL", &[AERL]),
                (261, "LPA: offsets", &[0b100]),
                (262, "ELPE", &[ELPE]),
                (320, "KAS", &KAS.to_le_bytes()),
                (514, "MAXCMD", &MAXCMD.to_le_bytes()),
                (
                    536,
                    "SGLS: any alignment, keyed, offsets",
                    &[0b101, 0, 0x10, 0],
                ),
                (1792, "IOCCSZ: 64 + 4096 bytes", &260_u32.to_le_bytes()),
                (1796, "IORCSZ: 16 bytes", &1_u32.to_le_bytes()),
                (1803, "MSDBD", &[1]),
            ],
        );
    });
}

#[test]
fn namespaces_are_announced_where_hosts_read_it() {
    story(async |lab| {
        lab.create_volume("small", VOLUME_BYTES, 512).await;
        let host = lab.attach(1).await;
        let queue = lab.io_queue(&host, 1).await;
        queue.call_out(write(1, 0, 1), vec![7; 4096]).await.ok();
        queue.call_out(write(2, 0, 8), vec![7; 4096]).await.ok();
        for (nsid, volume, lba_bytes) in [(1, "vol0", 4096_u64), (2, "small", 512)] {
            let info = lab.engine.volume(volume).expect("a volume").info();
            let blocks = (VOLUME_BYTES / lba_bytes).to_le_bytes();
            let used = (4096 / lba_bytes).to_le_bytes();
            // 0's based: of 4 KiB, and of a command of 1 MiB.
            let whole = ((4096 / lba_bytes - 1) as u16).to_le_bytes();
            let command = (((1 << 20) / lba_bytes - 1) as u16).to_le_bytes();
            let copied = ((4_u64 << 30) / lba_bytes) as u32;
            let format = [if lba_bytes == 4096 { 0 } else { 1 }];
            let shown = page(&host, 0x00, nsid).await;
            let eui64 = &shown[120..128];
            assert_ne!(eui64, [0; 8]);
            holds(
                &shown,
                &[
                    (0, "NSZE", &blocks),
                    (8, "NCAP", &blocks),
                    (16, "NUSE", &used),
                    (24, "NSFEAT", &[0b1_1011]),
                    (25, "NLBAF: two formats", &[1]),
                    (26, "FLBAS", &format),
                    (30, "NMIC: shared", &[1]),
                    (31, "RESCAP: all types", &[0xff]),
                    (33, "DLFEAT: zeros, Write Zeroes deallocates", &[0b1001]),
                    (34, "NAWUN", &command),
                    (36, "NAWUPF", &whole),
                    (38, "NACWU", &command),
                    (44, "NABSPF: what lies on two of them can be torn", &whole),
                    (64, "NPWG", &whole),
                    (66, "NPWA", &whole),
                    (68, "NPDG", &whole),
                    (70, "NPDA", &whole),
                    (72, "NOWS", &whole),
                    (74, "MSSRL", &u16::MAX.to_le_bytes()),
                    (76, "MCL: 4 GiB", &copied.to_le_bytes()),
                    (80, "MSRC: 256 ranges", &[255]),
                    (92, "ANAGRPID", &[1, 0, 0, 0]),
                    (104, "NGUID", &info.nguid),
                    (120, "EUI64", eui64),
                    (128, "LBAF0: 4 KiB", &[0, 0, 12, 0]),
                    (132, "LBAF1: 512 bytes", &[0, 0, 9, 0]),
                ],
            );
            let ids = page(&host, 0x03, nsid).await;
            holds(
                &ids,
                &[
                    (0, "UUID", &[3, 16]),
                    (4, "UUID", info.uuid.as_bytes()),
                    (20, "NGUID", &[2, 16]),
                    (24, "NGUID", &info.nguid),
                    (40, "EUI64", &[1, 8]),
                    (44, "EUI64", eui64),
                    (52, "CSI: NVM", &[4, 1, 0, 0, 0]),
                ],
            );
            holds(&page(&host, 0x05, nsid).await, &[]);
            holds(
                &page(&host, 0x08, nsid).await,
                &[
                    (1, "NMIC: shared", &[1]),
                    (2, "RESCAP: all types", &[0xff]),
                    (4, "ANAGRPID", &[1, 0, 0, 0]),
                    (14, "NSTAT: ready", &[1]),
                ],
            );
        }
    });
}

#[test]
fn lists_and_limits_are_announced_where_hosts_read_them() {
    story(async |lab| {
        lab.create_volume("vol1", 1 << 20, 4096).await;
        let (host, second) = (lab.attach(1).await, lab.attach(1).await);
        for list in [0x02, 0x07, 0x10] {
            let both = [1, 0, 0, 0, 2, 0, 0, 0];
            holds(&page(&host, list, 0).await, &[(0, "NSIDs", &both)]);
            holds(&page(&host, list, 1).await, &[(0, "NSIDs", &both[4..])]);
            holds(&page(&host, list, 2).await, &[]);
        }
        let ids = [host.cntlid.to_le_bytes(), second.cntlid.to_le_bytes()].concat();
        for list in [0x12, 0x13] {
            let all = [(0, "count", &[2, 0][..]), (2, "CNTLIDs", &ids)];
            holds(&page(&host, list, 1).await, &all);
            let from = Identify {
                cns: list,
                cntid: host.cntlid + 1,
                nsid: 1,
                csi: 0,
                specific_id: 0,
            };
            let rest = host.admin.call_in(from.to_sqe(), 4096).await.ok().data;
            holds(&rest, &[(0, "count", &[1, 0]), (2, "CNTLIDs", &ids[2..])]);
        }
        holds(
            &page(&host, 0x06, 0).await,
            &[
                (0, "VSL, WZSL: 256 MiB", &[16, 16]),
                (2, "WUSL: 1 MiB", &[8]),
                (4, "DMRSL", &u32::MAX.to_le_bytes()),
                (8, "DMSL", &(256 * u64::from(u32::MAX)).to_le_bytes()),
            ],
        );
        let nvm = [(0, "the NVM command set alone", &[1][..])];
        holds(&page(&host, 0x1c, 0).await, &nvm);
    });
}
