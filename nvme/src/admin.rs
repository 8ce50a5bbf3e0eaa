//! Admin commands that a fabrics controller knows (Base 2.0, section 5).

use crate::lba_status::{GetLbaStatus, OPCODE_GET_LBA_STATUS};
use crate::{Sqe, Status};

/// Get Log Page.
pub const OPCODE_GET_LOG_PAGE: u8 = 0x02;
/// Identify.
pub const OPCODE_IDENTIFY: u8 = 0x06;
/// Abort.
pub const OPCODE_ABORT: u8 = 0x08;
/// Set Features.
pub const OPCODE_SET_FEATURES: u8 = 0x09;
/// Get Features.
pub const OPCODE_GET_FEATURES: u8 = 0x0a;
/// Asynchronous Event Request.
pub const OPCODE_ASYNC_EVENT_REQUEST: u8 = 0x0c;
/// Namespace Management.
pub const OPCODE_NAMESPACE_MANAGEMENT: u8 = 0x0d;
/// Namespace Attachment.
pub const OPCODE_NAMESPACE_ATTACHMENT: u8 = 0x15;
/// Keep Alive.
pub const OPCODE_KEEP_ALIVE: u8 = 0x18;
/// Cross-Controller Reset (TP8028; Base 2.3, section 5.4.3).
pub const OPCODE_CROSS_CONTROLLER_RESET: u8 = 0x38;

/// An admin command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdminCommand {
    /// Identify: 4096 bytes to the host.
    Identify(Identify),
    /// Get Log Page.
    GetLogPage(GetLogPage),
    /// Get Features.
    GetFeatures(GetFeatures),
    /// Set Features.
    SetFeatures(SetFeatures),
    /// Which blocks cannot be read.
    GetLbaStatus(GetLbaStatus),
    /// A command that waits for an event.
    AsyncEventRequest,
    /// Creates or deletes a namespace.
    NamespaceManagement(NamespaceManagement),
    /// Attaches a namespace to controllers, or detaches it.
    NamespaceAttachment(NamespaceAttachment),
    /// Resets another controller, which the host does not reach.
    CrossControllerReset(CrossControllerReset),
    /// The host lives.
    KeepAlive,
    /// Asks to end a command early.
    Abort {
        /// Its submission queue.
        sqid: u16,
        /// Its identifier.
        cid: u16,
    },
}

/// What Namespace Management asks for (Base 2.0, section 5.23).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NamespaceManagement {
    /// A new namespace; 4096 bytes from the host say which, laid out as an Identify Namespace page.
    Create {
        /// Command set identifier.
        csi: u8,
    },
    /// A namespace goes, FFFFFFFFh all of them.
    Delete {
        /// The namespace.
        nsid: u32,
    },
    /// Something that the specification does not define.
    Unknown,
}

/// Fields of Namespace Attachment (Base 2.0, section 5.22); 4096 bytes from the host hold a controller
/// list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NamespaceAttachment {
    /// The namespace.
    pub nsid: u32,
    /// [`Self::ATTACH`] or [`Self::DETACH`]; all else is reserved.
    pub select: u8,
}

impl NamespaceAttachment {
    /// SEL of an attachment.
    pub const ATTACH: u8 = 0;
    /// SEL of a detachment.
    pub const DETACH: u8 = 1;

    /// The command as a host sends it.
    #[must_use]
    pub fn to_sqe(&self) -> Sqe {
        Sqe::new(OPCODE_NAMESPACE_ATTACHMENT)
            .with_nsid(self.nsid)
            .with_cdw(10, u32::from(self.select & 0xf))
    }
}

/// Fields of Cross-Controller Reset (Base 2.3, section 5.4.3): the controller to reset, as its Identify page named it to its
/// host. Dword 0 of the completion has [`Self::IMMEDIATE`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CrossControllerReset {
    /// ICID: its controller identifier.
    pub cntlid: u16,
    /// CIU: its Controller Instance Uniquifier.
    pub uniquifier: u8,
    /// CIRN: its Controller Instance Random Number.
    pub random: u64,
}

impl CrossControllerReset {
    /// IRS, Immediate Reset Successful, in dword 0 of the completion: the reset is done.
    pub const IMMEDIATE: u32 = 1 << 0;

    /// The command as a host sends it.
    #[must_use]
    pub fn to_sqe(&self) -> Sqe {
        Sqe::new(OPCODE_CROSS_CONTROLLER_RESET)
            .with_cdw(
                10,
                u32::from(self.cntlid) | u32::from(self.uniquifier) << 16,
            )
            .with_cdw(12, self.random as u32)
            .with_cdw(13, (self.random >> 32) as u32)
    }
}

impl NamespaceManagement {
    /// The command as a host sends it.
    #[must_use]
    pub fn to_sqe(&self) -> Sqe {
        let sqe = Sqe::new(OPCODE_NAMESPACE_MANAGEMENT);
        match self {
            Self::Create { csi } => sqe.with_cdw(11, u32::from(*csi) << 24),
            Self::Delete { nsid } => sqe.with_nsid(*nsid).with_cdw(10, 1),
            Self::Unknown => sqe.with_cdw(10, 0xf),
        }
    }
}

/// Fields of Identify.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identify {
    /// What is asked for (CNS).
    pub cns: u8,
    /// A controller, for the lists of controllers.
    pub cntid: u16,
    /// A namespace, or where a list of them starts.
    pub nsid: u32,
    /// Command set identifier.
    pub csi: u8,
    /// CNS-specific identifier.
    pub specific_id: u16,
}

/// Fields of Get Log Page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GetLogPage {
    /// Log page identifier.
    pub lid: u8,
    /// Log-specific field.
    pub lsp: u8,
    /// Retain the asynchronous event that announced the page.
    pub retain_event: bool,
    /// Bytes asked for: (NUMD + 1) * 4, up to 2^34, so check it before use.
    pub length: u64,
    /// Byte offset into the page.
    pub offset: u64,
    /// The offset counts entries instead (OT).
    pub offset_is_index: bool,
    /// Namespace; FFFFFFFFh for the controller.
    pub nsid: u32,
    /// Command set identifier.
    pub csi: u8,
}

/// Fields of Get Features.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GetFeatures {
    /// Feature identifier.
    pub fid: u8,
    /// 0 current, 1 default, 2 saved, 3 supported capabilities.
    pub select: u8,
    /// Feature-specific dword.
    pub cdw11: u32,
    /// Namespace.
    pub nsid: u32,
}

/// Fields of Set Features.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SetFeatures {
    /// Feature identifier.
    pub fid: u8,
    /// Keep it over a reset.
    pub save: bool,
    /// Feature-specific dwords 11 to 15.
    pub dwords: [u32; 5],
    /// Namespace.
    pub nsid: u32,
}

impl AdminCommand {
    /// Parses an entry of the admin queue that is no Fabrics command.
    ///
    /// # Errors
    /// The status to answer with, Do Not Retry set.
    pub fn parse(sqe: &Sqe) -> Result<Self, Status> {
        sqe.check_flags()?;
        let dword = sqe.cdw(10);
        Ok(match sqe.opcode() {
            OPCODE_IDENTIFY => Self::Identify(Identify {
                cns: dword as u8,
                cntid: (dword >> 16) as u16,
                nsid: sqe.nsid(),
                csi: (sqe.cdw(11) >> 24) as u8,
                specific_id: sqe.cdw(11) as u16,
            }),
            OPCODE_GET_LOG_PAGE => {
                let numd = u64::from(dword >> 16) | u64::from(sqe.cdw(11) & 0xffff) << 16;
                Self::GetLogPage(GetLogPage {
                    lid: dword as u8,
                    lsp: (dword >> 8) as u8 & 0x7f,
                    retain_event: dword >> 15 & 1 == 1,
                    length: (numd + 1) * 4,
                    offset: u64::from(sqe.cdw(12)) | u64::from(sqe.cdw(13)) << 32,
                    offset_is_index: sqe.cdw(14) >> 23 & 1 == 1,
                    nsid: sqe.nsid(),
                    csi: (sqe.cdw(14) >> 24) as u8,
                })
            }
            OPCODE_GET_FEATURES => Self::GetFeatures(GetFeatures {
                fid: dword as u8,
                select: (dword >> 8) as u8 & 7,
                cdw11: sqe.cdw(11),
                nsid: sqe.nsid(),
            }),
            OPCODE_SET_FEATURES => Self::SetFeatures(SetFeatures {
                fid: dword as u8,
                save: dword >> 31 == 1,
                dwords: [
                    sqe.cdw(11),
                    sqe.cdw(12),
                    sqe.cdw(13),
                    sqe.cdw(14),
                    sqe.cdw(15),
                ],
                nsid: sqe.nsid(),
            }),
            OPCODE_GET_LBA_STATUS => Self::GetLbaStatus(GetLbaStatus::parse(sqe)),
            OPCODE_ASYNC_EVENT_REQUEST => Self::AsyncEventRequest,
            OPCODE_NAMESPACE_MANAGEMENT => Self::NamespaceManagement(match dword & 0xf {
                0 => NamespaceManagement::Create {
                    csi: (sqe.cdw(11) >> 24) as u8,
                },
                1 => NamespaceManagement::Delete { nsid: sqe.nsid() },
                _ => NamespaceManagement::Unknown,
            }),
            OPCODE_NAMESPACE_ATTACHMENT => Self::NamespaceAttachment(NamespaceAttachment {
                nsid: sqe.nsid(),
                select: dword as u8 & 0xf,
            }),
            OPCODE_CROSS_CONTROLLER_RESET => Self::CrossControllerReset(CrossControllerReset {
                cntlid: dword as u16,
                uniquifier: (dword >> 16) as u8,
                random: u64::from(sqe.cdw(12)) | u64::from(sqe.cdw(13)) << 32,
            }),
            OPCODE_KEEP_ALIVE => Self::KeepAlive,
            OPCODE_ABORT => Self::Abort {
                sqid: dword as u16,
                cid: (dword >> 16) as u16,
            },
            _ => return Err(Status::INVALID_OPCODE.with_dnr()),
        })
    }
}

impl Identify {
    /// The command as a host sends it.
    #[must_use]
    pub fn to_sqe(&self) -> Sqe {
        Sqe::new(OPCODE_IDENTIFY)
            .with_nsid(self.nsid)
            .with_cdw(10, u32::from(self.cns) | u32::from(self.cntid) << 16)
            .with_cdw(11, u32::from(self.specific_id) | u32::from(self.csi) << 24)
    }
}

impl GetLogPage {
    /// The command as a host sends it; `length` is a multiple of 4 and not 0.
    #[must_use]
    pub fn to_sqe(&self) -> Sqe {
        let numd = (self.length / 4).saturating_sub(1);
        Sqe::new(OPCODE_GET_LOG_PAGE)
            .with_nsid(self.nsid)
            .with_cdw(
                10,
                u32::from(self.lid)
                    | u32::from(self.lsp & 0x7f) << 8
                    | u32::from(self.retain_event) << 15
                    | (numd as u32 & 0xffff) << 16,
            )
            .with_cdw(11, (numd >> 16) as u32 & 0xffff)
            .with_cdw(12, self.offset as u32)
            .with_cdw(13, (self.offset >> 32) as u32)
            .with_cdw(
                14,
                u32::from(self.offset_is_index) << 23 | u32::from(self.csi) << 24,
            )
    }
}

impl GetFeatures {
    /// The command as a host sends it.
    #[must_use]
    pub fn to_sqe(&self) -> Sqe {
        Sqe::new(OPCODE_GET_FEATURES)
            .with_nsid(self.nsid)
            .with_cdw(10, u32::from(self.fid) | u32::from(self.select & 7) << 8)
            .with_cdw(11, self.cdw11)
    }
}

impl SetFeatures {
    /// The command as a host sends it.
    #[must_use]
    pub fn to_sqe(&self) -> Sqe {
        let mut sqe = Sqe::new(OPCODE_SET_FEATURES)
            .with_nsid(self.nsid)
            .with_cdw(10, u32::from(self.fid) | u32::from(self.save) << 31);
        for (index, dword) in self.dwords.iter().enumerate() {
            sqe = sqe.with_cdw(11 + index, *dword);
        }
        sqe
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_longest_log_page_request_does_not_overflow() {
        let sqe = Sqe::new(OPCODE_GET_LOG_PAGE)
            .with_cdw(10, 0xffff_0070)
            .with_cdw(11, 0xffff)
            .with_cdw(12, 0xffff_f000)
            .with_cdw(13, 0xffff_ffff);
        let Ok(AdminCommand::GetLogPage(log)) = AdminCommand::parse(&sqe) else {
            panic!("a log page request")
        };
        assert_eq!(log.length, 1 << 34);
        assert_eq!(log.offset, 0xffff_ffff_ffff_f000);
    }

    #[test]
    fn fused_or_prp_commands_are_refused() {
        for flags in [0x00, 0x80, 0xc0, 0x41, 0x42, 0x43] {
            let mut sqe = Sqe::new(OPCODE_KEEP_ALIVE);
            sqe.0[1] = flags;
            assert_eq!(
                AdminCommand::parse(&sqe),
                Err(Status::INVALID_FIELD.with_dnr())
            );
        }
    }

    proptest! {
        #[test]
        fn what_parses_is_sent_again_the_same(opcode: u8, nsid: u32, dwords: [u32; 6]) {
            let mut sqe = Sqe::new(opcode).with_nsid(nsid);
            for (index, dword) in dwords.iter().enumerate() {
                sqe = sqe.with_cdw(10 + index, *dword);
            }
            let again = match AdminCommand::parse(&sqe) {
                Ok(AdminCommand::Identify(c)) => c.to_sqe(),
                Ok(AdminCommand::GetLogPage(c)) => c.to_sqe(),
                Ok(AdminCommand::GetFeatures(c)) => c.to_sqe(),
                Ok(AdminCommand::SetFeatures(c)) => c.to_sqe(),
                Ok(AdminCommand::NamespaceManagement(c)) => c.to_sqe(),
                Ok(AdminCommand::NamespaceAttachment(c)) => c.to_sqe(),
                Ok(AdminCommand::CrossControllerReset(c)) => c.to_sqe(),
                _ => sqe,
            };
            prop_assert_eq!(AdminCommand::parse(&again), AdminCommand::parse(&sqe));
        }
    }
}
