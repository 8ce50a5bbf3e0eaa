//! Identify: Base 2.0 figures 273 to 280, NVM Command Set 1.0 figures 97 to 100.

use nvme::identify::{
    Cns, CommandSetCombinations, ControllerType, IDENTIFY_BYTES, IdentifyController,
    IdentifyIndependentNamespace, IdentifyNamespace, IdentifyNvmController, IdentifyNvmNamespace,
    LbaFormat, NamespaceDescriptor, PowerState, decode_controller_list, decode_descriptor_list,
    decode_namespace_list, encode_controller_list, encode_descriptor_list, encode_namespace_list,
};

use crate::Golden;

#[test]
fn every_page_has_the_number_of_the_specification() {
    // Exhaustive: a new page does not compile until its number stands here.
    let number = |cns| match cns {
        Cns::Namespace => 0x00,
        Cns::Controller => 0x01,
        Cns::ActiveNamespaces => 0x02,
        Cns::NamespaceDescriptors => 0x03,
        Cns::CsiNamespace => 0x05,
        Cns::CsiController => 0x06,
        Cns::CsiActiveNamespaces => 0x07,
        Cns::CsiIndependentNamespace => 0x08,
        Cns::AllocatedNamespaces => 0x10,
        Cns::AllocatedNamespace => 0x11,
        Cns::AttachedControllers => 0x12,
        Cns::Controllers => 0x13,
        Cns::CommandSets => 0x1c,
    };
    for value in 0..=u8::MAX {
        if let Some(cns) = Cns::from_u8(value) {
            assert_eq!((number(cns), cns.as_u8()), (value, value), "{cns:?}");
        }
    }
    assert_eq!(ControllerType::Io.as_u8(), 1);
    assert_eq!(ControllerType::Discovery.as_u8(), 2);
    assert_eq!(ControllerType::Admin.as_u8(), 3);
}

/// A Power State Descriptor (figure 276) from that byte on.
fn power_state(page: &mut Golden, start: usize) -> PowerState {
    let at = |byte| start + byte;
    PowerState {
        mp: page.u16(at(1), at(0)),
        flags: page.u8(at(3)),
        enlat: page.u32(at(7), at(4)),
        exlat: page.u32(at(11), at(8)),
        rrt: page.u8(at(12)),
        rrl: page.u8(at(13)),
        rwt: page.u8(at(14)),
        rwl: page.u8(at(15)),
        idlp: page.u16(at(17), at(16)),
        ips: page.u8(at(18)),
        actp: page.u16(at(21), at(20)),
        apws: page.u8(at(22)),
    }
}

#[test]
fn identify_controller_is_as_the_specification_lays_it_out() {
    let mut page = Golden::new(IDENTIFY_BYTES);
    let controller = IdentifyController {
        vid: page.u16(1, 0),
        ssvid: page.u16(3, 2),
        sn: page.text(23, 4, b' '),
        mn: page.text(63, 24, b' '),
        fr: page.text(71, 64, b' '),
        rab: page.u8(72),
        ieee: page.bytes(75, 73),
        cmic: page.u8(76),
        mdts: page.u8(77),
        cntlid: page.u16(79, 78),
        ver: page.u32(83, 80),
        rtd3r: page.u32(87, 84),
        rtd3e: page.u32(91, 88),
        oaes: page.u32(95, 92),
        ctratt: page.u32(99, 96),
        cntrltype: page.u8(111),
        fguid: page.bytes(127, 112),
        crdt1: page.u16(129, 128),
        crdt2: page.u16(131, 130),
        crdt3: page.u16(133, 132),
        ciu: page.u8(135),
        cirn: page.u64(143, 136),
        oacs: page.u16(257, 256),
        acl: page.u8(258),
        aerl: page.u8(259),
        frmw: page.u8(260),
        lpa: page.u8(261),
        elpe: page.u8(262),
        avscc: page.u8(264),
        apsta: page.u8(265),
        wctemp: page.u16(267, 266),
        cctemp: page.u16(269, 268),
        mtfa: page.u16(271, 270),
        tnvmcap: page.u128(295, 280),
        unvmcap: page.u128(311, 296),
        fwug: page.u8(319),
        kas: page.u16(321, 320),
        hctma: page.u16(323, 322),
        sanicap: page.u32(331, 328),
        anatt: page.u8(342),
        anacap: page.u8(343),
        anagrpmax: page.u32(347, 344),
        nanagrpid: page.u32(351, 348),
        pels: page.u32(355, 352),
        cqt: page.u16(387, 386),
        sqes: page.u8(512),
        cqes: page.u8(513),
        maxcmd: page.u16(515, 514),
        nn: page.u32(519, 516),
        oncs: page.u16(521, 520),
        fuses: page.u16(523, 522),
        fna: page.u8(524),
        vwc: page.u8(525),
        awun: page.u16(527, 526),
        awupf: page.u16(529, 528),
        nvscc: page.u8(530),
        nwpc: page.u8(531),
        acwu: page.u16(533, 532),
        ocfs: page.u16(535, 534),
        sgls: page.u32(539, 536),
        mnan: page.u32(543, 540),
        subnqn: page.text(1023, 768, 0),
        ioccsz: page.u32(1795, 1792),
        iorcsz: page.u32(1799, 1796),
        icdoff: page.u16(1801, 1800),
        fcatt: page.u8(1802),
        msdbd: page.u8(1803),
        ofcs: page.u16(1805, 1804),
        ccrl: page.u8(1807),
        power_states: vec![
            power_state(&mut page, 2048),
            power_state(&mut page, 2080),
            power_state(&mut page, 2112),
        ],
    };
    // NPSS is 0's based.
    page.set(263, 2);
    page.is(&controller.encode()[..]);
    assert_eq!(IdentifyController::decode(&page.bytes), Some(controller));
}

#[test]
fn identify_namespace_is_as_the_specification_lays_it_out() {
    let mut page = Golden::new(IDENTIFY_BYTES);
    let mut format = |start: usize| LbaFormat {
        ms: page.u16(start + 1, start),
        lbads: page.u8(start + 2),
        rp: page.u8(start + 3),
    };
    // Figure 98: LBAF0 stands at 131:128, LBAF63 at 383:380.
    let lbaf: Vec<LbaFormat> = (128..384).step_by(4).map(&mut format).collect();
    assert_eq!(lbaf.len(), 64);
    let namespace = IdentifyNamespace {
        nsze: page.u64(7, 0),
        ncap: page.u64(15, 8),
        nuse: page.u64(23, 16),
        nsfeat: page.u8(24),
        flbas: page.u8(26),
        mc: page.u8(27),
        dpc: page.u8(28),
        dps: page.u8(29),
        nmic: page.u8(30),
        rescap: page.u8(31),
        fpi: page.u8(32),
        dlfeat: page.u8(33),
        nawun: page.u16(35, 34),
        nawupf: page.u16(37, 36),
        nacwu: page.u16(39, 38),
        nabsn: page.u16(41, 40),
        nabo: page.u16(43, 42),
        nabspf: page.u16(45, 44),
        noiob: page.u16(47, 46),
        nvmcap: page.u128(63, 48),
        npwg: page.u16(65, 64),
        npwa: page.u16(67, 66),
        npdg: page.u16(69, 68),
        npda: page.u16(71, 70),
        nows: page.u16(73, 72),
        mssrl: page.u16(75, 74),
        mcl: page.u32(79, 76),
        msrc: page.u8(80),
        anagrpid: page.u32(95, 92),
        nsattr: page.u8(99),
        nvmsetid: page.u16(101, 100),
        endgid: page.u16(103, 102),
        nguid: page.bytes(119, 104),
        eui64: page.bytes(127, 120),
        lbaf,
    };
    // NLBAF is 0's based.
    page.set(25, 63);
    page.is(&namespace.encode()[..]);
    assert_eq!(IdentifyNamespace::decode(&page.bytes), Some(namespace));
}

#[test]
fn what_command_sets_add_is_as_the_specification_lays_it_out() {
    let mut page = Golden::new(IDENTIFY_BYTES);
    let limits = IdentifyNvmController {
        vsl: page.u8(0),
        wzsl: page.u8(1),
        wusl: page.u8(2),
        dmrl: page.u8(3),
        dmrsl: page.u32(7, 4),
        dmsl: page.u64(15, 8),
    };
    page.is(&limits.encode()[..]);
    assert_eq!(IdentifyNvmController::decode(&page.bytes), Some(limits));

    let mut page = Golden::new(IDENTIFY_BYTES);
    let independent = IdentifyIndependentNamespace {
        nsfeat: page.u8(0),
        nmic: page.u8(1),
        rescap: page.u8(2),
        fpi: page.u8(3),
        anagrpid: page.u32(7, 4),
        nsattr: page.u8(8),
        nvmsetid: page.u16(11, 10),
        endgid: page.u16(13, 12),
        nstat: page.u8(14),
    };
    page.is(&independent.encode()[..]);
    let decoded = IdentifyIndependentNamespace::decode(&page.bytes);
    assert_eq!(decoded, Some(independent));

    let mut page = Golden::new(IDENTIFY_BYTES);
    let namespace = IdentifyNvmNamespace {
        lbstm: page.u64(7, 0),
        pic: page.u8(8),
        elbaf: std::array::from_fn(|format| page.u32(15 + 4 * format, 12 + 4 * format)),
    };
    page.is(&namespace.encode()[..]);
    assert_eq!(IdentifyNvmNamespace::decode(&page.bytes), Some(namespace));

    let mut page = Golden::new(IDENTIFY_BYTES);
    let sets = CommandSetCombinations(vec![page.u64(7, 0), page.u64(15, 8)]);
    page.is(&sets.encode()[..]);
    assert_eq!(CommandSetCombinations::decode(&page.bytes), Some(sets));
}

#[test]
fn lists_and_descriptors_are_as_the_specification_lays_them_out() {
    let mut page = Golden::new(IDENTIFY_BYTES);
    let nsids = [page.u32(3, 0), page.u32(7, 4), page.u32(11, 8)];
    page.is(&encode_namespace_list(&nsids));
    assert_eq!(decode_namespace_list(&page.bytes), Some(nsids.to_vec()));

    let mut page = Golden::new(IDENTIFY_BYTES);
    let ids = [page.u16(3, 2), page.u16(5, 4)];
    page.set_all(0, &[2, 0]);
    page.is(&encode_controller_list(&ids));
    assert_eq!(decode_controller_list(&page.bytes), Some(ids.to_vec()));

    // Figure 277: NIDT, NIDL, two reserved bytes, NID; one behind the other.
    let mut page = Golden::new(IDENTIFY_BYTES);
    page.set_all(0, &[3, 16]);
    let uuid = NamespaceDescriptor::Uuid(page.bytes(19, 4));
    page.set_all(20, &[2, 16]);
    let nguid = NamespaceDescriptor::Nguid(page.bytes(39, 24));
    page.set_all(40, &[1, 8]);
    let eui64 = NamespaceDescriptor::Eui64(page.bytes(51, 44));
    page.set_all(52, &[4, 1]);
    let csi = NamespaceDescriptor::Csi(page.u8(56));
    let all = [uuid, nguid, eui64, csi];
    page.is(&encode_descriptor_list(&all)[..]);
    assert_eq!(decode_descriptor_list(&page.bytes), Some(all.to_vec()));
}
