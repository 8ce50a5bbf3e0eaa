//! Identify: what this target says about itself, its controllers and its namespaces.
//!
//! Guarantees: what is announced is what is enforced, because both come from the same limits; the
//! identities of subsystem and namespaces come from the pool, so they are the same after a restart.

use std::sync::Arc;

use dedup::SUB_BLOCK_BYTES;
use fabric::Transport;
use meta::VolumeInfo;
use nvme::Status;
use nvme::admin::Identify;
use nvme::identify::{
    CSI_NVM, Cns, CommandSetCombinations, ControllerType, IDENTIFY_BYTES, IdentifyController,
    IdentifyIndependentNamespace, IdentifyNamespace, IdentifyNvmController, IdentifyNvmNamespace,
    LbaFormat, NSID_BROADCAST, NamespaceDescriptor, PowerState, encode_controller_list,
    encode_descriptor_list, encode_namespace_list,
};

use crate::command::{Command, Fault, Outcome};
use crate::controller::{Controller, KAS};
use crate::error_log::ERROR_LOG_ENTRIES;
use crate::events::REQUESTS_MAX;
use crate::features::supported_events;
use crate::queue::Queue;

/// Byte offsets in the command, for the error log.
const NSID_AT: u16 = 4;
const CNS_AT: u16 = 40;
const CSI_AT: u16 = 47;

/// NN and MNAN: namespaces at most, and the highest identifier. As nvmet.
pub(crate) const NAMESPACES_MAX: u32 = 1024;

/// SGLs are supported without alignment (bits 1:0), and with offsets in the capsule (bit 20). What
/// nvmet says.
const SGLS: u32 = 1 | 1 << 20;
/// The same, and keyed (bit 2): how RDMA names a host's memory.
const SGLS_RDMA: u32 = SGLS | 1 << 2;
/// One descriptor a command.
const MSDBD: u8 = 1;
/// Abort Command Limit, zero based.
const ACL: u8 = 3;
/// Compare, Dataset Management, Write Zeroes, Select in Get Features, Timestamp.
const ONCS: u16 = 1 | 1 << 2 | 1 << 3 | 1 << 4 | 1 << 6;
/// A write cache is present; Flush takes all namespaces.
const VWC: u8 = 1 | 3 << 1;
/// 128-bit host identifiers (bit 0), traffic-based keep alive (bit 6).
const CTRATT: u32 = 1 | 1 << 6;
/// Several ports and several controllers.
const CMIC: u8 = 1 | 1 << 1;
/// The commands supported and effects log page, offsets and 32-bit lengths in Get Log Page.
const LPA: u8 = 1 << 1 | 1 << 2;
/// One firmware slot that is read only.
const FRMW: u8 = 1 | 1 << 1;
/// Disconnect of I/O queues.
const OFCS: u16 = 1;

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
    let controller = &command.line.controller;
    if controller.is_discovery() && cns != Cns::Controller {
        return Err(unknown);
    }
    match cns {
        Cns::Controller => Ok(controller_page(controller)),
        Cns::Namespace | Cns::AllocatedNamespace => namespace_page(command, identify.nsid),
        Cns::ActiveNamespaces | Cns::AllocatedNamespaces => namespace_list(command, identify.nsid),
        Cns::CsiActiveNamespaces => {
            check_csi(identify.csi)?;
            namespace_list(command, identify.nsid)
        }
        Cns::NamespaceDescriptors => {
            let info = volume(command, identify.nsid)?;
            let mut descriptors = vec![NamespaceDescriptor::Uuid(info.uuid.into_bytes())];
            if info.nguid != [0; 16] {
                descriptors.push(NamespaceDescriptor::Nguid(info.nguid));
            }
            descriptors.push(NamespaceDescriptor::Csi(CSI_NVM));
            Ok(encode_descriptor_list(&descriptors))
        }
        Cns::CsiNamespace => {
            check_csi(identify.csi)?;
            volume(command, identify.nsid)?;
            Ok(IdentifyNvmNamespace::default().encode())
        }
        Cns::CsiController => {
            check_csi(identify.csi)?;
            Ok(IdentifyNvmController::default().encode())
        }
        Cns::CsiIndependentNamespace => {
            volume(command, identify.nsid)?;
            let page = IdentifyIndependentNamespace {
                nmic: 1,
                nstat: 1,
                ..Default::default()
            };
            Ok(page.encode())
        }
        Cns::AttachedControllers => {
            volume(command, identify.nsid)?;
            Ok(controller_list(controller, identify.cntid))
        }
        Cns::Controllers => Ok(controller_list(controller, identify.cntid)),
        Cns::CommandSets => Ok(CommandSetCombinations::nvm_only().encode()),
    }
}

fn check_csi(csi: u8) -> Result<(), Fault> {
    match csi {
        CSI_NVM => Ok(()),
        _ => Err(Fault::field(Status::INVALID_FIELD, CSI_AT)),
    }
}

fn volume<Q: Queue>(command: &Command<Q>, nsid: u32) -> Result<Arc<VolumeInfo>, Fault> {
    let volume = command.line.target.engine.volume_by_nsid(nsid);
    let volume = volume.ok_or(Fault::field(Status::INVALID_NAMESPACE, NSID_AT))?;
    Ok(volume.info())
}

/// Identifiers of controllers from `first` on.
fn controller_list(controller: &Controller, first: u16) -> Page {
    let ids: Vec<u16> = controller
        .subsystem
        .controllers()
        .iter()
        .filter(|other| !other.is_ending() && other.id >= first)
        .map(|other| other.id)
        .collect();
    Box::new(encode_controller_list(&ids))
}

/// Identifiers of namespaces above `after`.
fn namespace_list<Q: Queue>(command: &Command<Q>, after: u32) -> Result<Page, Fault> {
    // The two highest identifiers cannot be followed by others (Base 2.0, section 5.17.2.2).
    if after >= NSID_BROADCAST - 1 {
        return Err(Fault::field(Status::INVALID_NAMESPACE, NSID_AT));
    }
    let mut ids: Vec<u32> = command
        .line
        .target
        .engine
        .volumes()
        .iter()
        .map(|v| v.nsid)
        .collect();
    ids.retain(|&nsid| nsid > after);
    ids.sort_unstable();
    Ok(Box::new(encode_namespace_list(&ids)))
}

fn namespace_page<Q: Queue>(command: &Command<Q>, nsid: u32) -> Result<Page, Fault> {
    if nsid == 0 || nsid > NAMESPACES_MAX {
        return Err(Fault::field(Status::INVALID_NAMESPACE, NSID_AT));
    }
    let engine = &command.line.target.engine;
    let Some(volume) = engine.volume_by_nsid(nsid) else {
        // An identifier that is valid and not active: zeros.
        return Ok(IdentifyNamespace {
            lbaf: Vec::new(),
            ..Default::default()
        }
        .encode());
    };
    let logical_bytes = engine
        .status()
        .volumes
        .iter()
        .find(|v| v.nsid == nsid)
        .map_or(0, |v| v.logical_bytes);
    Ok(describe_namespace(&volume.info(), logical_bytes).encode())
}

fn describe_namespace(info: &VolumeInfo, logical_bytes: u64) -> IdentifyNamespace {
    let lba_bytes = u64::from(info.lba_bytes.max(1));
    let blocks = info.size_bytes / lba_bytes;
    // Partial sub-blocks cost a read and a write: hosts should prefer whole ones.
    let preferred =
        u16::try_from((SUB_BLOCK_BYTES as u64 / lba_bytes).saturating_sub(1)).unwrap_or(0);
    IdentifyNamespace {
        nsze: blocks,
        ncap: blocks,
        nuse: logical_bytes.div_ceil(lba_bytes).min(blocks),
        // Thin provisioning (bit 0), NGUID is never used again (bit 3), preferred sizes (bit 4).
        nsfeat: 1 | 1 << 3 | 1 << 4,
        nmic: 1,
        // Deallocated blocks read as zeros; Write Zeroes may deallocate.
        dlfeat: 1 | 1 << 3,
        npwg: preferred,
        npwa: preferred,
        npdg: preferred,
        npda: preferred,
        nows: preferred,
        nguid: info.nguid,
        lbaf: vec![LbaFormat {
            ms: 0,
            lbads: info.lba_bytes.max(1).ilog2() as u8,
            rp: 0,
        }],
        ..Default::default()
    }
}

fn controller_page(controller: &Controller) -> Page {
    let (limits, queue_limits) = (&controller.limits, controller.queue_limits());
    let common = IdentifyController {
        sn: String::from_utf8_lossy(&controller.subsystem.serial)
            .trim_end()
            .to_owned(),
        mn: "Onefold".to_owned(),
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
        subnqn: controller.subsystem.nqn.to_string(),
        ioccsz: ((64 + queue_limits.in_capsule_bytes) / 16) as u32,
        iorcsz: 1,
        msdbd: MSDBD,
        ctratt: CTRATT,
        ..Default::default()
    };
    if controller.is_discovery() {
        return common.encode();
    }
    IdentifyController {
        rab: 6,
        cmic: CMIC,
        cntrltype: ControllerType::Io.as_u8(),
        acl: ACL,
        frmw: FRMW,
        lpa: LPA,
        sqes: 0x66,
        cqes: 0x44,
        nn: NAMESPACES_MAX,
        mnan: NAMESPACES_MAX,
        oncs: ONCS,
        vwc: VWC,
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
            id: 1,
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

    #[test]
    fn a_namespace_is_thin_shared_and_reads_zeros_where_nothing_is() {
        let page = describe_namespace(&info(4096), 8192);
        assert_eq!((page.nsze, page.ncap, page.nuse), (1 << 18, 1 << 18, 2));
        assert_eq!(page.lba_bytes(), Some(4096));
        assert_eq!((page.nsfeat & 1, page.nmic, page.dlfeat), (1, 1, 9));
        assert_eq!(page.nguid, [7; 16]);
    }

    #[test]
    fn hosts_with_small_blocks_are_told_what_is_cheap() {
        let page = describe_namespace(&info(512), 4096);
        assert_eq!((page.nsze, page.nuse), (1 << 21, 8));
        assert_eq!((page.npwg, page.npda), (7, 7));
        assert_eq!(page.lba_bytes(), Some(512));
    }
}
