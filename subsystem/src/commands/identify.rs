//! Identify: the data structures of the target, its controllers and its namespaces.
//!
//! Guarantees: what is announced is what is enforced, because both come from the same limits; the
//! identities of subsystem and namespaces come from the pool, so they are the same after a restart.

use std::sync::Arc;

use dedup::{MAX_COMMAND_BYTES, SUB_BLOCK_BYTES};
use fabric::Transport;
use fabric::serving::keep_alive::KAS;
use meta::VolumeInfo;
use nvme::Status;
use nvme::admin::Identify;
use nvme::ana::{ANACAP_ALL_STATES, AnaState, CMIC_ANA};
use nvme::identify::{
    CSI_NVM, Cns, CommandSetCombinations, ControllerType, IDENTIFY_BYTES, IdentifyController,
    IdentifyIndependentNamespace, IdentifyNamespace, IdentifyNvmController, IdentifyNvmNamespace,
    LbaFormat, NSID_BROADCAST, NamespaceDescriptor, PowerState, encode_controller_list,
    encode_descriptor_list, encode_namespace_list,
};
use nvme::io::CopyFormat;
use nvme::log::ERROR_LOG_ENTRIES;
use nvme::reservation::{ONCS_RESERVATIONS, RESCAP_ALL};

use crate::catalog::{ANA_GROUPS_MAX, NAMESPACES_MAX, NamespaceConfig, WriteProtect};
use crate::commands::features::supported_events;
use crate::commands::io::{UNCORRECTABLE_BYTES_MAX, copy};
use crate::commands::log_page::snapshots::PERSISTENT_BYTES_MAX;
use crate::commands::namespace_management::{LBA_FORMATS, is_allowed as may_manage};
use crate::connected_queue::DELAYS_100MS;
use crate::connected_queue::command::{Command, Fault, Outcome};
use crate::controller::Controller;
use crate::controller::events::REQUESTS_MAX;
use crate::controller::resets::RESETS_MAX;
use crate::queue::Queue;

/// Byte offsets in the command, for the error log.
const NSID_AT: u16 = 4;
const CNS_AT: u16 = 40;
const CSI_AT: u16 = 47;

/// SGLs are supported without alignment (bits 1:0), and with offsets in the capsule (bit 20). What
/// nvmet says.
const SGLS: u32 = 1 | 1 << 20;
/// The same, and keyed (bit 2): how RDMA names a host's memory.
const SGLS_RDMA: u32 = SGLS | 1 << 2;
/// One descriptor a command.
const MSDBD: u8 = 1;
/// Abort Command Limit, zero based.
const ACL: u8 = 3;
/// Compare, Write Uncorrectable, Dataset Management, Write Zeroes, Select in Get Features, Reservations,
/// Timestamp, Verify, Copy.
const ONCS: u16 =
    1 | 1 << 1 | 1 << 2 | 1 << 3 | 1 << 4 | ONCS_RESERVATIONS | 1 << 6 | 1 << 7 | 1 << 8;
/// Compare and Write as a fused operation.
const FUSES: u16 = 1;
/// Copy takes its source ranges in formats 0 and 2.
const OCFS: u16 = CopyFormat::SameNamespace.bit() | CopyFormat::AnyNamespace.bit();
/// Get LBA Status.
const OACS: u16 = 1 << 9;
/// Blocks that are written atomically beside other commands, zero based: a whole command, with blocks of any size. The
/// same for Compare and Write.
const AWUN: u16 = (MAX_COMMAND_BYTES / LBA_BYTES_MAX - 1) as u16;
/// The same at a loss of power: one block of any size.
const AWUPF: u16 = 0;
/// The largest blocks that a namespace can have.
const LBA_BYTES_MAX: usize = SUB_BLOCK_BYTES;
/// Limits of commands without data. Write Zeroes and Verify take all blocks that they can name (of 4 KiB:
/// 256 MiB); Dataset Management too, 256 times (DMRL cannot express that, so it announces no limit).
const NVM_LIMITS: IdentifyNvmController = IdentifyNvmController {
    vsl: 16,
    wzsl: 16,
    wusl: (UNCORRECTABLE_BYTES_MAX / 4096).ilog2() as u8,
    dmrl: 0,
    dmrsl: u32::MAX,
    dmsl: 256 * u32::MAX as u64,
};
/// A write cache is present; Flush takes all namespaces.
const VWC: u8 = 1 | 3 << 1;
/// 128-bit host identifiers (bit 0), traffic-based keep alive (bit 6).
const CTRATT: u32 = 1 | 1 << 6;
/// Several ports and several controllers, with asymmetric access.
const CMIC: u8 = 1 | 1 << 1 | CMIC_ANA;
/// ANATT: how long a path may be changing, in seconds. As nvmet.
const ANA_TRANSITION_SECONDS: u8 = 10;
/// The commands supported and effects log page (bit 1), offsets and 32-bit lengths in Get Log Page (2),
/// telemetry (3), persistent events (4), and the logs of supported log pages and features (5).
const LPA: u8 = 1 << 1 | 1 << 2 | 1 << 3 | 1 << 4 | 1 << 5;
/// PELS: how long the persistent event log can be, in units of 64 KiB.
const PELS: u32 = (PERSISTENT_BYTES_MAX / (64 << 10)) as u32;
/// One firmware slot that is read only.
const FRMW: u8 = 1 | 1 << 1;
/// Disconnect of I/O queues.
const OFCS: u16 = 1;
/// Write protection until it is switched off (bit 0), and until the daemon is started again (bit 1).
const NWPC: u8 = 1 | 1 << 1;
/// OACS: Namespace Management and Namespace Attachment.
const OACS_NAMESPACE_MANAGEMENT: u16 = 1 << 3;
/// NMIC: several controllers may use the namespace at a time.
const NMIC_SHARED: u8 = 1;
/// NSATTR: the namespace takes no writes.
const NSATTR_WRITE_PROTECTED: u8 = 1;

/// Runs Identify.
pub(crate) async fn run<Q: Queue>(command: &Command<Q>, identify: Identify) -> Outcome {
    command.check_data_room(IDENTIFY_BYTES)?;
    let page = page(command, identify)?;
    command.send(&page[..], IDENTIFY_BYTES).await
}

type Page = Box<[u8; IDENTIFY_BYTES]>;

fn page<Q: Queue>(command: &Command<Q>, identify: Identify) -> Result<Page, Fault> {
    let unknown = Fault::field(Status::INVALID_FIELD, CNS_AT);
    let cns = Cns::from_u8(identify.cns).ok_or(unknown)?;
    let controller = &command.queue.controller;
    if controller.is_discovery() && cns != Cns::Controller {
        return Err(unknown);
    }
    match cns {
        Cns::Controller => Ok(controller_page(command)),
        Cns::Namespace => namespace_page(command, identify.nsid, false),
        Cns::AllocatedNamespace => namespace_page(command, identify.nsid, may_manage(command)),
        Cns::ActiveNamespaces => namespace_list(command, identify.nsid, false),
        Cns::AllocatedNamespaces => namespace_list(command, identify.nsid, may_manage(command)),
        Cns::CsiActiveNamespaces => {
            check_csi(identify.csi)?;
            namespace_list(command, identify.nsid, false)
        }
        Cns::NamespaceDescriptors => {
            let (config, info) = namespace(command, identify.nsid)?;
            let mut descriptors = vec![NamespaceDescriptor::Uuid(info.uuid.into_bytes())];
            if info.nguid != [0; 16] {
                descriptors.push(NamespaceDescriptor::Nguid(info.nguid));
            }
            if config.eui64 {
                descriptors.push(NamespaceDescriptor::Eui64(config.eui64_bytes()));
            }
            descriptors.push(NamespaceDescriptor::Csi(CSI_NVM));
            Ok(encode_descriptor_list(&descriptors))
        }
        Cns::CsiNamespace => {
            check_csi(identify.csi)?;
            namespace(command, identify.nsid)?;
            Ok(IdentifyNvmNamespace::default().encode())
        }
        Cns::CsiController => {
            check_csi(identify.csi)?;
            Ok(NVM_LIMITS.encode())
        }
        Cns::CsiIndependentNamespace => {
            let (config, _) = namespace(command, identify.nsid)?;
            let page = IdentifyIndependentNamespace {
                nmic: nmic(&config),
                nsattr: nsattr(&config),
                rescap: RESCAP_ALL,
                anagrpid: config.ana_group,
                nstat: 1,
                ..Default::default()
            };
            Ok(page.encode())
        }
        Cns::AttachedControllers => {
            namespace(command, identify.nsid)?;
            Ok(attached_controllers(command, identify))
        }
        Cns::Controllers => Ok(controller_list(command, identify.cntid, |_| true)),
        Cns::CommandSets => Ok(CommandSetCombinations::nvm_only().encode()),
    }
}

fn check_csi(csi: u8) -> Result<(), Fault> {
    match csi {
        CSI_NVM => Ok(()),
        _ => Err(Fault::field(Status::INVALID_FIELD, CSI_AT)),
    }
}

/// A namespace that the controller sees, and its volume.
fn namespace<Q: Queue>(
    command: &Command<Q>,
    nsid: u32,
) -> Result<(Arc<NamespaceConfig>, Arc<VolumeInfo>), Fault> {
    let live = command.queue.target.live();
    let visible = live.namespace(&command.queue.controller, nsid);
    let visible = visible.ok_or(Fault::field(Status::INVALID_NAMESPACE, NSID_AT))?;
    Ok((visible.config.clone(), visible.volume.info()))
}

/// Identifiers of the controllers from `first` on that the host may see.
fn controller_list<Q: Queue>(
    command: &Command<Q>,
    first: u16,
    wanted: impl Fn(&Controller) -> bool,
) -> Page {
    let here = &command.queue.controller;
    let manages = may_manage(command);
    let ids: Vec<u16> = here
        .subsystem
        .admitted_controllers()
        .iter()
        .filter(|other| other.id >= first)
        // Controllers of other hosts are shown only to hosts that may attach namespaces to them.
        .filter(|other| manages || other.host.nqn == here.host.nqn)
        .filter(|other| wanted(other))
        .map(|other| other.id)
        .collect();
    Box::new(encode_controller_list(&ids))
}

/// The controllers that see a namespace.
fn attached_controllers<Q: Queue>(command: &Command<Q>, identify: Identify) -> Page {
    let live = command.queue.target.live();
    controller_list(command, identify.cntid, |other| {
        live.namespace(other, identify.nsid).is_some()
    })
}

/// Identifiers of namespaces above `after`: those that the controller sees, or `all`.
fn namespace_list<Q: Queue>(command: &Command<Q>, after: u32, all: bool) -> Result<Page, Fault> {
    // The two highest identifiers cannot be followed by others (Base 2.0, section 5.17.2.2).
    if after >= NSID_BROADCAST - 1 {
        return Err(Fault::field(Status::INVALID_NAMESPACE, NSID_AT));
    }
    let live = command.queue.target.live();
    let visible = match all {
        true => live.namespaces_of(&command.queue.controller.subsystem.nqn),
        false => live.namespaces(&command.queue.controller),
    };
    let ids: Vec<u32> = visible
        .iter()
        .map(|visible| visible.nsid)
        .filter(|&nsid| nsid > after)
        .collect();
    Ok(Box::new(encode_namespace_list(&ids)))
}

/// A namespace that the controller sees, or any of the subsystem.
fn namespace_page<Q: Queue>(command: &Command<Q>, nsid: u32, any: bool) -> Result<Page, Fault> {
    if nsid == NSID_BROADCAST && may_manage(command) {
        return Ok(common_capabilities().encode());
    }
    if nsid == 0 || nsid > NAMESPACES_MAX {
        return Err(Fault::field(Status::INVALID_NAMESPACE, NSID_AT));
    }
    let target = &command.queue.target;
    let live = target.live();
    let subsystem = &command.queue.controller.subsystem.nqn;
    let visible = match any {
        true => live
            .namespaces_of(subsystem)
            .into_iter()
            .find(|visible| visible.nsid == nsid),
        false => live.namespace(&command.queue.controller, nsid),
    };
    let Some(visible) = visible else {
        // An identifier that is valid and not active: zeros.
        return Ok(IdentifyNamespace {
            lbaf: Vec::new(),
            ..Default::default()
        }
        .encode());
    };
    let info = visible.volume.info();
    let path = live.ana_state(&command.queue.controller, visible.config.ana_group);
    let logical_bytes = match path {
        // Zero on a path whose ANA state forbids access (NUSE, Base 2.0, section 8.1.3).
        AnaState::Inaccessible | AnaState::PersistentLoss => 0,
        _ => {
            let volume = visible.volume.here();
            volume.map_or(0, |volume| volume.logical_bytes())
        }
    };
    Ok(describe_namespace(visible.config, &info, logical_bytes).encode())
}

/// The common properties of all namespaces, for hosts that create some.
fn common_capabilities() -> IdentifyNamespace {
    IdentifyNamespace {
        nsfeat: 1 | 1 << 3 | 1 << 4,
        nmic: NMIC_SHARED,
        dlfeat: 1 | 1 << 3,
        lbaf: lba_formats(),
        ..Default::default()
    }
}

/// The LBA formats of volumes, in the order of their numbers.
fn lba_formats() -> Vec<LbaFormat> {
    let formats = LBA_FORMATS.iter();
    formats
        .map(|bytes| LbaFormat {
            ms: 0,
            lbads: bytes.ilog2() as u8,
            rp: 0,
        })
        .collect()
}

fn nmic(config: &NamespaceConfig) -> u8 {
    if config.shared { NMIC_SHARED } else { 0 }
}

fn nsattr(config: &NamespaceConfig) -> u8 {
    match config.write_protect {
        WriteProtect::Off => 0,
        _ => NSATTR_WRITE_PROTECTED,
    }
}

fn describe_namespace(
    config: &NamespaceConfig,
    info: &VolumeInfo,
    logical_bytes: u64,
) -> IdentifyNamespace {
    let lba_bytes = u64::from(info.lba_bytes.max(1));
    let blocks = info.size_bytes / lba_bytes;
    // Partial sub-blocks cost a read and a write: hosts should prefer whole ones.
    let sub_block =
        u16::try_from((SUB_BLOCK_BYTES as u64 / lba_bytes).saturating_sub(1)).unwrap_or(0);
    let preferred = sub_block;
    let command = u16::try_from((MAX_COMMAND_BYTES as u64 / lba_bytes).saturating_sub(1));
    let command = command.unwrap_or(u16::MAX);
    IdentifyNamespace {
        nsze: blocks,
        ncap: blocks,
        nuse: logical_bytes.div_ceil(lba_bytes).min(blocks),
        // Thin provisioning (bit 0), atomic units of its own (bit 1), NGUID is never used again (bit 3),
        // preferred sizes (bit 4).
        nsfeat: 1 | 1 << 1 | 1 << 3 | 1 << 4,
        nawun: command,
        // After a loss of power a sub-block is as before or after a write, so a write within one sub-block is atomic; a
        // write across two can be torn between them.
        nawupf: sub_block,
        nabspf: sub_block,
        nacwu: command,
        mssrl: copy::RANGE_BLOCKS_MAX,
        mcl: copy::copy_blocks_max(info.lba_bytes.max(1)),
        msrc: copy::RANGES_MAX,
        nmic: nmic(config),
        nsattr: nsattr(config),
        rescap: RESCAP_ALL,
        anagrpid: config.ana_group,
        // Deallocated blocks read as zeros; Write Zeroes may deallocate.
        dlfeat: 1 | 1 << 3,
        npwg: preferred,
        npwa: preferred,
        npdg: preferred,
        npda: preferred,
        nows: preferred,
        nguid: info.nguid,
        eui64: config.eui64_bytes(),
        flbas: LBA_FORMATS
            .iter()
            .position(|bytes| *bytes == info.lba_bytes)
            .map_or(0, |index| index as u8),
        lbaf: lba_formats(),
        ..Default::default()
    }
}

fn controller_page<Q: Queue>(command: &Command<Q>) -> Page {
    let (target, controller) = (&command.queue.target, &command.queue.controller);
    let (limits, queue_limits) = (&controller.limits, controller.queue_limits());
    let common = IdentifyController {
        sn: target.serial_of(controller),
        mn: crate::MODEL.to_owned(),
        fr: crate::VERSION.to_owned(),
        mdts: limits.mdts,
        cntlid: controller.id,
        ver: controller.version(),
        oaes: supported_events(controller).0,
        cntrltype: ControllerType::Discovery.as_u8(),
        lpa: 1 << 2,
        aerl: REQUESTS_MAX as u8 - 1,
        elpe: ERROR_LOG_ENTRIES as u8 - 1,
        kas: KAS,
        maxcmd: queue_limits.depth,
        sgls: match controller.transport {
            Transport::Rdma => SGLS_RDMA,
            Transport::Tcp => SGLS,
        },
        subnqn: controller.known_as.to_string(),
        ioccsz: ((64 + queue_limits.in_capsule_bytes) / 16) as u32,
        iorcsz: 1,
        msdbd: MSDBD,
        ctratt: CTRATT,
        crdt1: DELAYS_100MS[0],
        crdt2: DELAYS_100MS[1],
        crdt3: DELAYS_100MS[2],
        ..Default::default()
    };
    if controller.is_discovery() {
        return common.encode();
    }
    let manages = may_manage(command);
    // Zero is unknown (Base 2.0, figure 275).
    let space = target.engine().map(|engine| engine.summary());
    let space = space.map_or((0, 0), |space| (space.capacity_bytes, space.free_bytes));
    let instance = controller.instance();
    IdentifyController {
        tnvmcap: u128::from(space.0),
        unvmcap: u128::from(space.1),
        rab: 6,
        cmic: CMIC,
        anatt: ANA_TRANSITION_SECONDS,
        anacap: ANACAP_ALL_STATES,
        anagrpmax: ANA_GROUPS_MAX,
        nanagrpid: ANA_GROUPS_MAX,
        cntrltype: ControllerType::Io.as_u8(),
        acl: ACL,
        frmw: FRMW,
        lpa: LPA,
        pels: PELS,
        ciu: instance.uniquifier,
        cirn: instance.random,
        ccrl: RESETS_MAX,
        cqt: u16::try_from(limits.quiesce_time.as_millis()).unwrap_or(u16::MAX),
        sqes: 0x66,
        cqes: 0x44,
        nn: NAMESPACES_MAX,
        mnan: NAMESPACES_MAX,
        oncs: ONCS,
        oacs: OACS
            | if manages {
                OACS_NAMESPACE_MANAGEMENT
            } else {
                0
            },
        fuses: FUSES,
        awun: AWUN,
        awupf: AWUPF,
        acwu: AWUN,
        ocfs: OCFS,
        vwc: VWC,
        nwpc: NWPC,
        ofcs: OFCS,
        power_states: vec![PowerState::default()],
        ..common
    }
    .encode()
}

#[cfg(test)]
mod tests {
    use meta::VolumeState;
    use uuid::Uuid;

    use super::*;

    fn info(lba_bytes: u32) -> VolumeInfo {
        VolumeInfo {
            snapshot: None,
            id: 1,
            map: 1,
            name: "vol0".into(),
            nsid: 1,
            uuid: Uuid::from_u128(1),
            nguid: [7; 16],
            size_bytes: 1 << 30,
            lba_bytes,
            state: VolumeState::Active,
            dedup: true,
            verify: meta::VerifyPolicy::Trust,
            domain: String::new(),
            trimming: Vec::new(),
            compression: meta::Compression::Off,
        }
    }

    fn shown() -> NamespaceConfig {
        NamespaceConfig::new(Uuid::from_u128(1))
    }

    #[test]
    fn a_private_or_protected_namespace_says_so() {
        let config = NamespaceConfig {
            shared: false,
            write_protect: WriteProtect::On,
            ..shown()
        };
        let page = describe_namespace(&config, &info(4096), 0);
        assert_eq!((page.nmic, page.nsattr), (0, 1));
        assert_eq!(page.eui64, config.eui64_bytes());
    }

    #[test]
    fn a_namespace_is_thin_shared_and_reads_zeros_where_nothing_is() {
        let page = describe_namespace(&shown(), &info(4096), 8192);
        assert_eq!((page.nsze, page.ncap, page.nuse), (1 << 18, 1 << 18, 2));
        assert_eq!(page.lba_bytes(), Some(4096));
        assert_eq!((page.nsfeat & 1, page.nmic, page.dlfeat), (1, 1, 9));
        assert_eq!(page.nguid, [7; 16]);
    }

    #[test]
    fn hosts_with_small_blocks_are_told_what_is_cheap() {
        let page = describe_namespace(&shown(), &info(512), 4096);
        assert_eq!((page.nsze, page.nuse), (1 << 21, 8));
        assert_eq!((page.npwg, page.npda), (7, 7));
        // A sub-block survives a loss of power as a whole; a write that lies on two does not.
        assert_eq!((page.nawupf, page.nabspf, page.nabo), (7, 7, 0));
        assert_eq!(page.lba_bytes(), Some(512));
    }
}
