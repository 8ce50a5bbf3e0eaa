//! Commands as their figures lay out the 64 bytes: what this program sends as a host, and reads as a target.

use nvme::admin::{
    AdminCommand, CrossControllerReset, GetFeatures, GetLogPage, Identify, NamespaceAttachment,
    NamespaceManagement, SetFeatures,
};
use nvme::fabrics::{AuthTransfer, ConnectCommand, FabricsCommand};
use nvme::io::{CopyFormat, IoCommand, LbaRange};
use nvme::lba_status::GetLbaStatus;
use nvme::reservation::{
    AcquireAction, RegisterAction, ReleaseAction, ReservationCommand, ReservationType,
};
use nvme::{SglDescriptor, Sqe};

/// An entry: opcode, what stands at bytes 7:4, and command dwords 10 to 15.
fn entry(opcode: u8, nsid: u32, dwords: [u32; 6]) -> Sqe {
    let mut bytes = [0; 64];
    bytes[0] = opcode;
    // PSDT in bits 7:6: SGLs.
    bytes[1] = 0x40;
    bytes[4..8].copy_from_slice(&nsid.to_le_bytes());
    for (slot, dword) in bytes[40..].chunks_exact_mut(4).zip(dwords) {
        slot.copy_from_slice(&dword.to_le_bytes());
    }
    Sqe(bytes)
}

const NSID: u32 = 0x0102_0304;
const RANGE: LbaRange = LbaRange {
    slba: 0x1122_3344_5566_7788,
    blocks: 0x10,
};

/// The entry of an I/O command with every field set to something.
fn io_entry(command: &IoCommand) -> Sqe {
    let ranged = |opcode, dword_12| {
        let dwords = [0x5566_7788, 0x1122_3344, dword_12, 0, 0, 0];
        entry(opcode, NSID, dwords)
    };
    const FUA: u32 = 0x4000_0000;
    // Exhaustive: a new command does not compile until its entry stands here.
    match command {
        IoCommand::Flush { .. } => entry(0x00, NSID, [0; 6]),
        IoCommand::Write { .. } => ranged(0x01, 0x0f | FUA),
        IoCommand::Read { .. } => ranged(0x02, 0x0f | FUA),
        IoCommand::WriteUncorrectable { .. } => ranged(0x04, 0x0f),
        IoCommand::Compare { .. } => ranged(0x05, 0x0f),
        // DEAC is bit 25.
        IoCommand::WriteZeroes { .. } => ranged(0x08, 0x0f | FUA | 0x0200_0000),
        // NR in 7:0 of dword 10, 0's based; AD is bit 2 of dword 11.
        IoCommand::DatasetManagement { .. } => entry(0x09, NSID, [0x0f, 0x4, 0, 0, 0, 0]),
        IoCommand::Verify { .. } => ranged(0x0c, 0x0f),
        // NR in 7:0, the format of the ranges in 11:8.
        IoCommand::Copy { .. } => ranged(0x19, 0x0f | 0x200 | FUA),
    }
}

#[test]
fn io_commands_are_as_the_specification_lays_them_out() {
    let (nsid, range, fua) = (NSID, RANGE, true);
    for command in [
        IoCommand::Flush { nsid },
        IoCommand::Write { nsid, range, fua },
        IoCommand::Read { nsid, range, fua },
        IoCommand::WriteUncorrectable { nsid, range },
        IoCommand::Compare { nsid, range },
        IoCommand::WriteZeroes {
            nsid,
            range,
            fua,
            deallocate: true,
        },
        IoCommand::DatasetManagement {
            nsid,
            ranges: 0x10,
            deallocate: true,
        },
        IoCommand::Verify { nsid, range },
        IoCommand::Copy {
            nsid,
            slba: range.slba,
            ranges: 0x10,
            format: CopyFormat::AnyNamespace,
            fua,
        },
    ] {
        let golden = io_entry(&command);
        assert_eq!(command.to_sqe().0, golden.0, "{command:?}");
        assert_eq!(IoCommand::parse(&golden), Ok(command));
    }
    // And without their flags.
    let (fua, deallocate) = (false, false);
    for command in [
        IoCommand::Write { nsid, range, fua },
        IoCommand::Read { nsid, range, fua },
        IoCommand::WriteZeroes {
            nsid,
            range,
            fua,
            deallocate,
        },
        IoCommand::DatasetManagement {
            nsid,
            ranges: 0x10,
            deallocate,
        },
    ] {
        assert_eq!(IoCommand::parse(&command.to_sqe()), Ok(command));
    }
}

#[test]
fn reservation_commands_are_as_the_specification_lays_them_out() {
    let nsid = NSID;
    for (command, opcode, dword_10, dword_11) in [
        (
            // RREGA 2:0, IEKEY 3, CPTPL 31:30.
            ReservationCommand::Register {
                nsid,
                action: RegisterAction::Replace,
                ignore_key: true,
                persist: Some(false),
            },
            0x0d,
            0x8000_000a,
            0,
        ),
        (
            // NUMD, 0's based; EDS in bit 0 of dword 11.
            ReservationCommand::Report {
                nsid,
                length: 4096,
                extended: true,
            },
            0x0e,
            1023,
            1,
        ),
        (
            ReservationCommand::Report {
                nsid,
                length: 4096,
                extended: false,
            },
            0x0e,
            1023,
            0,
        ),
        (
            // RACQA 2:0, RTYPE 15:8.
            ReservationCommand::Acquire {
                nsid,
                action: AcquireAction::PreemptAndAbort,
                kind: ReservationType::ExclusiveAccessRegistrantsOnly,
            },
            0x11,
            0x402,
            0,
        ),
        (
            // RRELA 2:0, RTYPE 15:8.
            ReservationCommand::Release {
                nsid,
                action: ReleaseAction::Clear,
                kind: 5,
            },
            0x15,
            0x501,
            0,
        ),
    ] {
        let golden = entry(opcode, NSID, [dword_10, dword_11, 0, 0, 0, 0]);
        assert_eq!(command.to_sqe().0, golden.0, "{command:?}");
        assert_eq!(ReservationCommand::parse(&golden), Some(Ok(command)));
    }
    let number = |kind| match kind {
        ReservationType::WriteExclusive => 1,
        ReservationType::ExclusiveAccess => 2,
        ReservationType::WriteExclusiveRegistrantsOnly => 3,
        ReservationType::ExclusiveAccessRegistrantsOnly => 4,
        ReservationType::WriteExclusiveAllRegistrants => 5,
        ReservationType::ExclusiveAccessAllRegistrants => 6,
    };
    for kind in ReservationType::ALL {
        assert_eq!(kind.as_u8(), number(kind), "{kind:?}");
    }
}

#[test]
fn admin_commands_are_as_the_specification_lays_them_out() {
    let nsid = NSID;
    let identify = Identify {
        cns: 0x12,
        cntid: 0x3456,
        nsid,
        csi: 0x78,
        specific_id: 0x9abc,
    };
    let log = GetLogPage {
        lid: 0x0d,
        lsp: 0x2a,
        retain_event: true,
        // NUMD is 0's based: 12345h dwords and one.
        length: 0x1_2346 * 4,
        offset: 0x1122_3344_5566_7788,
        offset_is_index: true,
        nsid,
        csi: 0x9a,
    };
    let get = GetFeatures {
        fid: 0x82,
        select: 3,
        cdw11: 0x1234_5678,
        nsid,
    };
    let set = SetFeatures {
        fid: 0x84,
        save: true,
        dwords: [1, 2, 3, 4, 5],
        nsid,
    };
    let lba_status = GetLbaStatus {
        nsid,
        slba: RANGE.slba,
        blocks: 0x1234,
        action: 0x11,
        length: 4096,
    };
    let attach = NamespaceAttachment {
        nsid,
        select: NamespaceAttachment::DETACH,
    };
    // ICID 15:0 and CIU 23:16 of CDW10, CIRN in CDW12 and 13.
    let reset = CrossControllerReset {
        cntlid: 0x1234,
        uniquifier: 0x56,
        random: 0x1122_3344_5566_7788,
    };
    let create = NamespaceManagement::Create { csi: 0x12 };
    let delete = NamespaceManagement::Delete { nsid };
    for (command, sqe, golden) in [
        (
            AdminCommand::Identify(identify),
            Some(identify.to_sqe()),
            entry(0x06, nsid, [0x3456_0012, 0x7800_9abc, 0, 0, 0, 0]),
        ),
        (
            AdminCommand::GetLogPage(log),
            Some(log.to_sqe()),
            entry(
                0x02,
                nsid,
                [
                    0x2345_aa0d,
                    0x0000_0001,
                    0x5566_7788,
                    0x1122_3344,
                    0x9a80_0000,
                    0,
                ],
            ),
        ),
        (
            AdminCommand::GetFeatures(get),
            Some(get.to_sqe()),
            entry(0x0a, nsid, [0x382, 0x1234_5678, 0, 0, 0, 0]),
        ),
        (
            AdminCommand::SetFeatures(set),
            Some(set.to_sqe()),
            entry(0x09, nsid, [0x8000_0084, 1, 2, 3, 4, 5]),
        ),
        (
            AdminCommand::GetLbaStatus(lba_status),
            Some(lba_status.to_sqe()),
            entry(
                0x86,
                nsid,
                [0x5566_7788, 0x1122_3344, 1023, 0x1100_1234, 0, 0],
            ),
        ),
        (
            AdminCommand::NamespaceManagement(create),
            Some(create.to_sqe()),
            entry(0x0d, 0, [0, 0x1200_0000, 0, 0, 0, 0]),
        ),
        (
            AdminCommand::NamespaceManagement(delete),
            Some(delete.to_sqe()),
            entry(0x0d, nsid, [1, 0, 0, 0, 0, 0]),
        ),
        (
            AdminCommand::NamespaceAttachment(attach),
            Some(attach.to_sqe()),
            entry(0x15, nsid, [1, 0, 0, 0, 0, 0]),
        ),
        (
            AdminCommand::CrossControllerReset(reset),
            Some(reset.to_sqe()),
            entry(0x38, 0, [0x0056_1234, 0, 0x5566_7788, 0x1122_3344, 0, 0]),
        ),
        (
            AdminCommand::Abort {
                sqid: 0x1234,
                cid: 0x5678,
            },
            None,
            entry(0x08, 0, [0x5678_1234, 0, 0, 0, 0, 0]),
        ),
        (
            AdminCommand::AsyncEventRequest,
            None,
            entry(0x0c, 0, [0; 6]),
        ),
        (AdminCommand::KeepAlive, None, entry(0x18, 0, [0; 6])),
    ] {
        assert_eq!(AdminCommand::parse(&golden), Ok(command));
        if let Some(sqe) = sqe {
            assert_eq!(sqe.0, golden.0, "{command:?}");
        }
    }
}

#[test]
fn fabrics_commands_are_as_the_specification_lays_them_out() {
    // FCTYPE is byte 4.
    let connect = ConnectCommand {
        record_format: 0,
        qid: 0x0102,
        sqsize: 0x7f,
        attributes: 0x04,
        kato_ms: 0x0001_d4c0,
    };
    let golden = entry(0x7f, 0x01, [0x0102_0000, 0x0004_007f, 0x1_d4c0, 0, 0, 0]);
    assert_eq!(connect.to_sqe().0, golden.0);
    assert_eq!(
        FabricsCommand::parse(&golden),
        Ok(FabricsCommand::Connect(connect))
    );
    assert_eq!(
        FabricsCommand::property_set(0x14, false, 0x46_0001).0,
        entry(0x7f, 0x00, [0, 0x14, 0x46_0001, 0, 0, 0]).0
    );
    assert_eq!(
        FabricsCommand::property_get(0x00, true).0,
        entry(0x7f, 0x04, [1, 0, 0, 0, 0, 0]).0
    );
    let transfer = AuthTransfer {
        protocol: AuthTransfer::PROTOCOL,
        length: 0x1000,
    };
    // SPSP0 byte 41, SPSP1 byte 42, SECP byte 43, then the length.
    let dwords = [0xe901_0100, 0x1000, 0, 0, 0, 0];
    assert_eq!(
        FabricsCommand::auth_send(transfer).0,
        entry(0x7f, 0x05, dwords).0
    );
    assert_eq!(
        FabricsCommand::auth_receive(transfer).0,
        entry(0x7f, 0x06, dwords).0
    );
    assert_eq!(FabricsCommand::disconnect().0, entry(0x7f, 0x08, [0; 6]).0);
}

#[test]
fn descriptors_are_as_the_specification_lays_them_out() {
    let (address, length, key) = (0x1122_3344_5566_7788, 0x00ab_cdef, 0x9abc_def0);
    let mut keyed = [0; 16];
    keyed[..8].copy_from_slice(&[0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11]);
    keyed[8..11].copy_from_slice(&[0xef, 0xcd, 0xab]);
    keyed[11..15].copy_from_slice(&[0xf0, 0xde, 0xbc, 0x9a]);
    // Type 4h; subtype 0h, or Fh where the key is to be invalidated.
    for (last, invalidate) in [(0x40, false), (0x4f, true)] {
        keyed[15] = last;
        let descriptor = SglDescriptor::Keyed {
            address,
            length,
            key,
            invalidate,
        };
        assert_eq!(descriptor.encode(), keyed);
        assert_eq!(SglDescriptor::parse(&keyed), Ok(descriptor));
    }
    let mut block = [0; 16];
    block[8..12].copy_from_slice(&[0xef, 0xcd, 0xab, 0]);
    block[15] = 0x5a;
    let transport = SglDescriptor::Transport { length };
    assert_eq!(transport.encode(), block);
    assert_eq!(SglDescriptor::parse(&block), Ok(transport));
    block[..8].copy_from_slice(&[0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11]);
    block[15] = 0x01;
    let in_capsule = SglDescriptor::InCapsule {
        offset: address,
        length,
    };
    assert_eq!(in_capsule.encode(), block);
    assert_eq!(SglDescriptor::parse(&block), Ok(in_capsule));
    // And it stands at bytes 39:24 of the command.
    let mut sqe = Sqe::new(0x02);
    sqe.set_sgl(&in_capsule);
    assert_eq!(sqe.0[24..40], block);
    sqe.set_cid(0x1234);
    assert_eq!(sqe.0[2..4], [0x34, 0x12]);
    assert_eq!(sqe.cid(), 0x1234);
}
