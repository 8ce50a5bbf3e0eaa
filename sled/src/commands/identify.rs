//! Identify: the data structures of the sled, its controllers and its drives.
//!
//! Guarantee: what is announced is what is enforced, because both come from the same limits.

use drives::BLOCK_BYTES;
use fabric::Transport;
use fabric::serving::keep_alive::KAS;
use nvme::Status;
use nvme::admin::Identify;
use nvme::identify::{
    CSI_NVM, Cns, ControllerType, IDENTIFY_BYTES, IdentifyController, IdentifyNamespace,
    IdentifyNvmController, LbaFormat, NAMESPACE_LIST_MAX, NSID_BROADCAST, NamespaceDescriptor,
    PowerState, encode_descriptor_list, encode_namespace_list,
};
use nvme::log::ERROR_LOG_ENTRIES;
use nvme::properties::VERSION_1_4;
use nvme::reservation::ONCS_RESERVATIONS;

use crate::export::Export;
use crate::limits::{EVENT_REQUESTS_MAX, MDTS};
use crate::queue::{Command, Fault, Outcome};

/// Byte offsets in the command, for the error log.
const NSID_AT: u16 = 4;
const CNS_AT: u16 = 40;
const CSI_AT: u16 = 47;

/// SGLs are supported without alignment (bits 1:0), and with offsets in the capsule (bit 20). What nvmet says.
const SGLS: u32 = 1 | 1 << 20;
/// The same, and keyed (bit 2): how RDMA names a host's memory.
const SGLS_RDMA: u32 = SGLS | 1 << 2;
/// One descriptor a command.
const MSDBD: u8 = 1;
/// Abort Command Limit, zero based.
const ACL: u8 = 3;
/// Dataset Management, Write Zeroes, reservations.
const ONCS: u16 = 1 << 2 | 1 << 3 | ONCS_RESERVATIONS;
/// A write cache is present; Flush takes all namespaces.
const VWC: u8 = 1 | 3 << 1;
/// 128-bit host identifiers (bit 0), traffic-based keep alive (bit 6).
const CTRATT: u32 = 1 | 1 << 6;
/// Several ports and several controllers.
const CMIC: u8 = 1 | 1 << 1;
/// Offsets and 32-bit lengths in Get Log Page.
const LPA: u8 = 1 << 2;
/// The Commands Supported and Effects log page.
const LPA_EFFECTS: u8 = 1 << 1;
/// One firmware slot that is read only.
const FRMW: u8 = 1 | 1 << 1;
/// Disconnect of I/O queues.
const OFCS: u16 = 1;
/// NMIC: several controllers may use the namespace at a time.
const NMIC_SHARED: u8 = 1;
/// Write Zeroes takes as much as a Write: the sled sends the drive zeros. Dataset Management has no limit but its form.
const NVM_LIMITS: IdentifyNvmController = IdentifyNvmController {
    vsl: 0,
    wzsl: MDTS,
    wusl: 0,
    dmrl: 0,
    dmrsl: u32::MAX,
    dmsl: 256 * u32::MAX as u64,
};

type Page = Box<[u8; IDENTIFY_BYTES]>;

/// Runs Identify.
pub(crate) async fn run(command: &Command, identify: Identify) -> Outcome {
    command.check_data_room(IDENTIFY_BYTES)?;
    let page = page(command, identify)?;
    command.send(&page[..], IDENTIFY_BYTES).await
}

fn page(command: &Command, identify: Identify) -> Result<Page, Fault> {
    let unknown = Fault::field(Status::INVALID_FIELD, CNS_AT);
    let cns = Cns::from_u8(identify.cns).ok_or(unknown)?;
    if command.queue.controller.is_discovery() && cns != Cns::Controller {
        return Err(unknown);
    }
    match cns {
        Cns::Controller => Ok(controller_page(command)),
        Cns::Namespace => namespace_page(command, identify.nsid),
        Cns::ActiveNamespaces => namespace_list(command, identify.nsid),
        Cns::NamespaceDescriptors => {
            let export = export(command, identify.nsid)?;
            Ok(encode_descriptor_list(&[
                NamespaceDescriptor::Uuid(export.uuid()),
                NamespaceDescriptor::Csi(CSI_NVM),
            ]))
        }
        Cns::CsiController if identify.csi == CSI_NVM => Ok(NVM_LIMITS.encode()),
        Cns::CsiController => Err(Fault::field(Status::INVALID_FIELD, CSI_AT)),
        _ => Err(unknown),
    }
}

fn export(command: &Command, nsid: u32) -> Result<&Export, Fault> {
    let export = command.queue.sled.export(nsid);
    export.ok_or(Fault::field(Status::INVALID_NAMESPACE, NSID_AT))
}

/// Identifiers of namespaces above `after`.
fn namespace_list(command: &Command, after: u32) -> Result<Page, Fault> {
    // The two highest identifiers cannot be followed by others (Base 2.0, section 5.17.2.2).
    if after >= NSID_BROADCAST - 1 {
        return Err(Fault::field(Status::INVALID_NAMESPACE, NSID_AT));
    }
    let all = after + 1..=command.queue.sled.namespaces();
    let ids: Vec<u32> = all.take(NAMESPACE_LIST_MAX).collect();
    Ok(Box::new(encode_namespace_list(&ids)))
}

fn namespace_page(command: &Command, nsid: u32) -> Result<Page, Fault> {
    let blocks = export(command, nsid)?.blocks();
    let page = IdentifyNamespace {
        nsze: blocks,
        ncap: blocks,
        nuse: blocks,
        nmic: NMIC_SHARED,
        rescap: command.queue.watched(nsid)?.current().capabilities(),
        // Nothing is said of what deallocated blocks read as: that is the drive's.
        dlfeat: 0,
        lbaf: vec![LbaFormat {
            ms: 0,
            lbads: BLOCK_BYTES.ilog2() as u8,
            rp: 0,
        }],
        ..IdentifyNamespace::default()
    };
    Ok(page.encode())
}

fn controller_page(command: &Command) -> Page {
    let (sled, controller) = (&command.queue.sled, &command.queue.controller);
    let limits = sled.queue_limits(controller.transport);
    let subsystem = match controller.is_discovery() {
        true => &sled.discovery_nqn,
        false => sled.nqn(),
    };
    let common = IdentifyController {
        sn: sled.serial.clone(),
        mn: nvme::node_table::MODEL.to_owned(),
        fr: crate::VERSION.to_owned(),
        mdts: MDTS,
        cntlid: controller.id,
        ver: VERSION_1_4,
        cntrltype: ControllerType::Discovery.as_u8(),
        lpa: LPA,
        aerl: EVENT_REQUESTS_MAX as u8 - 1,
        elpe: ERROR_LOG_ENTRIES as u8 - 1,
        kas: KAS,
        maxcmd: limits.depth,
        sgls: match controller.transport {
            Transport::Rdma => SGLS_RDMA,
            Transport::Tcp => SGLS,
        },
        subnqn: subsystem.to_string(),
        ioccsz: ((64 + limits.in_capsule_bytes) / 16) as u32,
        iorcsz: 1,
        msdbd: MSDBD,
        ctratt: CTRATT,
        ..IdentifyController::default()
    };
    if controller.is_discovery() {
        return common.encode();
    }
    IdentifyController {
        cmic: CMIC,
        cntrltype: ControllerType::Io.as_u8(),
        lpa: LPA | LPA_EFFECTS,
        acl: ACL,
        frmw: FRMW,
        sqes: 0x66,
        cqes: 0x44,
        nn: sled.namespaces(),
        oncs: ONCS,
        vwc: VWC,
        ofcs: OFCS,
        power_states: vec![PowerState::default()],
        ..common
    }
    .encode()
}
