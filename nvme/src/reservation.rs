//! Reservations (Base 2.0, sections 7.2 to 7.5 and 8.19): the four commands, their data structures,
//! the notification log page and the two features. What a reservation *does* is the target's to say.

use crate::identify::layout::layout;
use crate::{Sqe, Status};

/// Reservation Register.
pub const OPCODE_RESERVATION_REGISTER: u8 = 0x0d;
/// Reservation Report.
pub const OPCODE_RESERVATION_REPORT: u8 = 0x0e;
/// Reservation Acquire.
pub const OPCODE_RESERVATION_ACQUIRE: u8 = 0x11;
/// Reservation Release.
pub const OPCODE_RESERVATION_RELEASE: u8 = 0x15;

/// Bytes of data of Register and of Acquire: the current key, then the new or the preempted one.
pub const KEY_PAIR_BYTES: usize = 16;
/// Bytes of data of Release: the current key.
pub const KEY_BYTES: usize = 8;

/// RESCAP of a namespace with all of it: persistence through power loss (bit 0), the six types (bits
/// 1 to 6), and IEKEY as revision 1.3 defines it (bit 7).
pub const RESCAP_ALL: u8 = 0xff;
/// ONCS bit 5: the controller has the reservation commands.
pub const ONCS_RESERVATIONS: u16 = 1 << 5;

/// IEKEY, dword 10 of Register, Acquire and Release.
const IGNORE_EXISTING_KEY: u32 = 1 << 3;

/// What a reservation allows to whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ReservationType {
    /// 1: the holder writes, all read.
    WriteExclusive = 1,
    /// 2: the holder alone reads and writes.
    ExclusiveAccess = 2,
    /// 3: registrants write, all read.
    WriteExclusiveRegistrantsOnly = 3,
    /// 4: registrants alone read and write.
    ExclusiveAccessRegistrantsOnly = 4,
    /// 5: registrants write, all read; every registrant is a holder.
    WriteExclusiveAllRegistrants = 5,
    /// 6: registrants alone read and write; every registrant is a holder.
    ExclusiveAccessAllRegistrants = 6,
}

impl ReservationType {
    /// All six.
    pub const ALL: [Self; 6] = [
        Self::WriteExclusive,
        Self::ExclusiveAccess,
        Self::WriteExclusiveRegistrantsOnly,
        Self::ExclusiveAccessRegistrantsOnly,
        Self::WriteExclusiveAllRegistrants,
        Self::ExclusiveAccessAllRegistrants,
    ];

    /// The value on the wire.
    #[must_use]
    pub const fn as_u8(self) -> u8 {
        self as u8
    }

    /// Reads the value from the wire; `None` for 0 (no reservation) and for the reserved ones.
    #[must_use]
    pub fn from_u8(value: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_u8() == value)
    }

    /// Every registrant is a holder.
    #[must_use]
    pub const fn is_all_registrants(self) -> bool {
        matches!(
            self,
            Self::WriteExclusiveAllRegistrants | Self::ExclusiveAccessAllRegistrants
        )
    }

    /// Registrants may do what the holder may: the registrants only and all registrants types.
    #[must_use]
    pub const fn admits_registrants(self) -> bool {
        !matches!(self, Self::WriteExclusive | Self::ExclusiveAccess)
    }

    /// Others may not even read.
    #[must_use]
    pub const fn is_exclusive_access(self) -> bool {
        matches!(
            self,
            Self::ExclusiveAccess
                | Self::ExclusiveAccessRegistrantsOnly
                | Self::ExclusiveAccessAllRegistrants
        )
    }

    /// The name in lower case words.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::WriteExclusive => "write exclusive",
            Self::ExclusiveAccess => "exclusive access",
            Self::WriteExclusiveRegistrantsOnly => "write exclusive, registrants only",
            Self::ExclusiveAccessRegistrantsOnly => "exclusive access, registrants only",
            Self::WriteExclusiveAllRegistrants => "write exclusive, all registrants",
            Self::ExclusiveAccessAllRegistrants => "exclusive access, all registrants",
        }
    }
}

/// What Register does (RREGA).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum RegisterAction {
    /// 0: adds the host with the new key.
    Register = 0,
    /// 1: removes the host.
    Unregister = 1,
    /// 2: exchanges the host's key for the new one.
    Replace = 2,
}

/// What Acquire does (RACQA).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum AcquireAction {
    /// 0: takes the reservation if no host holds it.
    Acquire = 0,
    /// 1: takes it from, or unregisters, who has the preempted key.
    Preempt = 1,
    /// 2: the same, and the commands of those hosts are aborted.
    PreemptAndAbort = 2,
}

/// What Release does (RRELA).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ReleaseAction {
    /// 0: gives the reservation up.
    Release = 0,
    /// 1: removes the reservation and every registration.
    Clear = 1,
}

/// A reservation command; the keys come as its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReservationCommand {
    /// Reservation Register, with [`KEY_PAIR_BYTES`] from the host: [`KeyPair`].
    Register {
        /// Namespace.
        nsid: u32,
        /// RREGA.
        action: RegisterAction,
        /// IEKEY: the current key is not checked.
        ignore_key: bool,
        /// CPTPL: what persistence through power loss becomes; `None` keeps it.
        persist: Option<bool>,
    },
    /// Reservation Acquire, with [`KEY_PAIR_BYTES`] from the host: [`KeyPair`].
    Acquire {
        /// Namespace.
        nsid: u32,
        /// RACQA.
        action: AcquireAction,
        /// RTYPE.
        kind: ReservationType,
    },
    /// Reservation Release, with [`KEY_BYTES`] from the host.
    Release {
        /// Namespace.
        nsid: u32,
        /// RRELA.
        action: ReleaseAction,
        /// RTYPE as it is on the wire: Release alone looks at it, and no type is equal to 0.
        kind: u8,
    },
    /// Reservation Report, with data to the host: [`ReservationReport`].
    Report {
        /// Namespace.
        nsid: u32,
        /// Bytes asked for: (NUMD + 1) * 4, up to 2^34, so check it before use.
        length: u64,
        /// EDS: the structure with 128-bit host identifiers.
        extended: bool,
    },
}

impl ReservationCommand {
    /// Parses an entry of an I/O queue; `None` if its opcode is not one of these commands.
    ///
    /// # Errors
    /// The status to answer with, Do Not Retry set. IEKEY in Acquire and Release is an error since
    /// revision 1.3.
    pub fn parse(sqe: &Sqe) -> Option<Result<Self, Status>> {
        let parse = match sqe.opcode() {
            OPCODE_RESERVATION_REGISTER => Self::parse_register,
            OPCODE_RESERVATION_ACQUIRE => Self::parse_acquire,
            OPCODE_RESERVATION_RELEASE => Self::parse_release,
            OPCODE_RESERVATION_REPORT => Self::parse_report,
            _ => return None,
        };
        let parsed = sqe.check_flags().and_then(|()| {
            let invalid = Status::INVALID_FIELD.with_dnr();
            parse(sqe.nsid(), sqe.cdw(10), sqe.cdw(11)).ok_or(invalid)
        });
        Some(parsed)
    }

    fn parse_register(nsid: u32, dword: u32, _: u32) -> Option<Self> {
        Some(Self::Register {
            nsid,
            action: match dword & 7 {
                0 => RegisterAction::Register,
                1 => RegisterAction::Unregister,
                2 => RegisterAction::Replace,
                _ => return None,
            },
            ignore_key: dword & IGNORE_EXISTING_KEY != 0,
            persist: match dword >> 30 {
                0 => None,
                2 => Some(false),
                3 => Some(true),
                _ => return None,
            },
        })
    }

    fn parse_acquire(nsid: u32, dword: u32, _: u32) -> Option<Self> {
        if dword & IGNORE_EXISTING_KEY != 0 {
            return None;
        }
        Some(Self::Acquire {
            nsid,
            action: match dword & 7 {
                0 => AcquireAction::Acquire,
                1 => AcquireAction::Preempt,
                2 => AcquireAction::PreemptAndAbort,
                _ => return None,
            },
            kind: ReservationType::from_u8((dword >> 8) as u8)?,
        })
    }

    fn parse_release(nsid: u32, dword: u32, _: u32) -> Option<Self> {
        if dword & IGNORE_EXISTING_KEY != 0 {
            return None;
        }
        Some(Self::Release {
            nsid,
            action: match dword & 7 {
                0 => ReleaseAction::Release,
                1 => ReleaseAction::Clear,
                _ => return None,
            },
            kind: (dword >> 8) as u8,
        })
    }

    // Never `None`, unlike those of the other commands: nothing in Report can be wrong.
    #[allow(clippy::unnecessary_wraps)]
    fn parse_report(nsid: u32, numd: u32, dword: u32) -> Option<Self> {
        Some(Self::Report {
            nsid,
            length: (u64::from(numd) + 1) * 4,
            extended: dword & 1 != 0,
        })
    }

    /// The command as a host sends it; the queue adds identifier and SGL.
    #[must_use]
    pub fn to_sqe(&self) -> Sqe {
        match *self {
            Self::Register {
                nsid,
                action,
                ignore_key,
                persist,
            } => {
                let persist = persist.map_or(0, |on| 2 | u32::from(on));
                let ignore = if ignore_key { IGNORE_EXISTING_KEY } else { 0 };
                Sqe::new(OPCODE_RESERVATION_REGISTER)
                    .with_nsid(nsid)
                    .with_cdw(10, action as u32 | ignore | persist << 30)
            }
            Self::Acquire { nsid, action, kind } => Sqe::new(OPCODE_RESERVATION_ACQUIRE)
                .with_nsid(nsid)
                .with_cdw(10, action as u32 | (kind as u32) << 8),
            Self::Release { nsid, action, kind } => Sqe::new(OPCODE_RESERVATION_RELEASE)
                .with_nsid(nsid)
                .with_cdw(10, action as u32 | u32::from(kind) << 8),
            Self::Report {
                nsid,
                length,
                extended,
            } => Sqe::new(OPCODE_RESERVATION_REPORT)
                .with_nsid(nsid)
                .with_cdw(10, (length / 4).saturating_sub(1) as u32)
                .with_cdw(11, u32::from(extended)),
        }
    }
}

layout! {
    /// The data of Register and Acquire.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct KeyPair [KEY_PAIR_BYTES] {
        /// CRKEY: the key that the host is registered with.
        0..8 => current: u64,
        /// NRKEY, the key to register, or PRKEY, the key to preempt.
        8..16 => other: u64,
    }
}

impl KeyPair {
    /// The data.
    #[must_use]
    pub fn encode(&self) -> [u8; KEY_PAIR_BYTES] {
        let mut data = [0; KEY_PAIR_BYTES];
        self.put_fields(&mut data);
        data
    }

    /// Reads the data; `None` if it is shorter than 16 bytes.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        Self::take_fields(bytes.get(..KEY_PAIR_BYTES)?)
    }
}

/// CNTLID of a registrant in a subsystem whose controllers are dynamic, as all of NVMe-oF here.
pub const CNTLID_ANY: u16 = 0xffff;

/// Bytes in front of the registrants: of the structure, and of the extended one.
const REPORT_HEADER_BYTES: usize = 24;
const REPORT_EXTENDED_HEADER_BYTES: usize = 64;
/// Bytes of a registrant in either.
const REGISTRANT_BYTES: usize = 24;
const REGISTRANT_EXTENDED_BYTES: usize = 64;

layout! {
    struct ReportHeader [REPORT_HEADER_BYTES] {
        0..4 => generation: u32,
        4..5 => kind: u8,
        5..7 => registrants: u16,
        9..10 => persist: u8,
    }
}

layout! {
    struct RegistrantEntry [REGISTRANT_BYTES] {
        0..2 => cntlid: u16,
        2..3 => status: u8,
        8..16 => host: u64,
        16..24 => key: u64,
    }
}

layout! {
    struct ExtendedRegistrantEntry [REGISTRANT_EXTENDED_BYTES] {
        0..2 => cntlid: u16,
        2..3 => status: u8,
        8..16 => key: u64,
        16..32 => host: [u8; 16],
    }
}

/// A registrant in a [`ReservationReport`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReportedRegistrant {
    /// CNTLID; [`CNTLID_ANY`] for dynamic controllers.
    pub cntlid: u16,
    /// Bit 0 of RCSTS: it holds the reservation.
    pub is_holder: bool,
    /// HOSTID; the structure that is not extended has its first 8 bytes alone.
    pub host: [u8; 16],
    /// RKEY.
    pub key: u64,
}

/// Reservation Status.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReservationReport {
    /// GEN: rises with every Register, Clear, Preempt and Preempt and Abort that succeeded.
    pub generation: u32,
    /// RTYPE: the type of the reservation, if there is one.
    pub kind: Option<ReservationType>,
    /// PTPLS: it persists through a loss of power.
    pub persist: bool,
    /// The registrants; at most 65535 are sent.
    pub registrants: Vec<ReportedRegistrant>,
}

impl ReservationReport {
    /// The whole structure: 24 bytes and 24 for each registrant; or 64 and 64, if it is extended.
    #[must_use]
    pub fn encode(&self, extended: bool) -> Vec<u8> {
        let (head, each) = match extended {
            true => (REPORT_EXTENDED_HEADER_BYTES, REGISTRANT_EXTENDED_BYTES),
            false => (REPORT_HEADER_BYTES, REGISTRANT_BYTES),
        };
        let count = self.registrants.len().min(usize::from(u16::MAX));
        let mut bytes = vec![0; head + each * count];
        let (header, entries) = bytes.split_at_mut(head);
        let fields = ReportHeader {
            generation: self.generation,
            kind: self.kind.map_or(0, ReservationType::as_u8),
            registrants: u16::try_from(count).unwrap_or(u16::MAX),
            persist: u8::from(self.persist),
        };
        fields.put_fields(&mut header[..REPORT_HEADER_BYTES]);
        for (slot, one) in entries.chunks_exact_mut(each).zip(&self.registrants) {
            let (cntlid, status) = (one.cntlid, u8::from(one.is_holder));
            let (host, key) = (one.host, one.key);
            if extended {
                let entry = ExtendedRegistrantEntry {
                    cntlid,
                    status,
                    key,
                    host,
                };
                entry.put_fields(slot);
            } else {
                let [a, b, c, d, e, f, g, h, ..] = host;
                let host = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
                let entry = RegistrantEntry {
                    cntlid,
                    status,
                    host,
                    key,
                };
                entry.put_fields(slot);
            }
        }
        bytes
    }

    /// Reads a structure with as many registrants as its header counts; `None` if the bytes end
    /// before, or the type is reserved.
    #[must_use]
    pub fn decode(bytes: &[u8], extended: bool) -> Option<Self> {
        let (head, each) = match extended {
            true => (REPORT_EXTENDED_HEADER_BYTES, REGISTRANT_EXTENDED_BYTES),
            false => (REPORT_HEADER_BYTES, REGISTRANT_BYTES),
        };
        let (header, entries) = bytes.split_at_checked(head)?;
        let header = ReportHeader::take_fields(&header[..REPORT_HEADER_BYTES])?;
        let entries = entries.get(..each * usize::from(header.registrants))?;
        let registrants = entries.chunks_exact(each).map(|bytes| {
            Some(if extended {
                let entry = ExtendedRegistrantEntry::take_fields(bytes)?;
                ReportedRegistrant {
                    cntlid: entry.cntlid,
                    is_holder: entry.status & 1 != 0,
                    host: entry.host,
                    key: entry.key,
                }
            } else {
                let entry = RegistrantEntry::take_fields(bytes)?;
                let mut host = [0; 16];
                host[..8].copy_from_slice(&entry.host.to_le_bytes());
                ReportedRegistrant {
                    cntlid: entry.cntlid,
                    is_holder: entry.status & 1 != 0,
                    host,
                    key: entry.key,
                }
            })
        });
        Some(Self {
            generation: header.generation,
            kind: match header.kind {
                0 => None,
                kind => Some(ReservationType::from_u8(kind)?),
            },
            persist: header.persist & 1 != 0,
            registrants: registrants.collect::<Option<_>>()?,
        })
    }

    /// Bytes of the whole structure, read from its header alone, so that a host can ask for as much;
    /// `None` if there are less than 24 bytes.
    #[must_use]
    pub fn total_bytes(header: &[u8], extended: bool) -> Option<usize> {
        let header = ReportHeader::take_fields(header.get(..REPORT_HEADER_BYTES)?)?;
        let count = usize::from(header.registrants);
        Some(match extended {
            true => REPORT_EXTENDED_HEADER_BYTES + REGISTRANT_EXTENDED_BYTES * count,
            false => REPORT_HEADER_BYTES + REGISTRANT_BYTES * count,
        })
    }
}

/// What happened to a host's registration or to a reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ReservationEvent {
    /// 1: the host was unregistered by a preempt.
    RegistrationPreempted = 1,
    /// 2: the reservation was released.
    ReservationReleased = 2,
    /// 3: reservation and registrations were cleared.
    ReservationPreempted = 3,
}

impl ReservationEvent {
    /// Its bit in feature 82h, which masks it: 1, 2 or 3.
    #[must_use]
    pub const fn mask_bit(self) -> u32 {
        1 << self as u32
    }

    /// The bits of all events in feature 82h.
    pub const MASK_ALL: u32 = 0b1110;

    const fn from_u8(value: u8) -> Option<Self> {
        Some(match value {
            1 => Self::RegistrationPreempted,
            2 => Self::ReservationReleased,
            3 => Self::ReservationPreempted,
            _ => return None,
        })
    }
}

/// Bytes of the Reservation Notification log page.
pub const RESERVATION_LOG_BYTES: usize = 64;

layout! {
    struct NotificationFields [RESERVATION_LOG_BYTES] {
        0..8 => count: u64,
        8..9 => kind: u8,
        9..10 => more: u8,
        12..16 => nsid: u32,
    }
}

/// The Reservation Notification log page, 80h (Base 2.0, section 5.16.1.24). The default is the empty
/// page: nothing happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReservationNotification {
    /// Number of the page: it rises by one with each, and never is 0 but on the empty page.
    pub count: u64,
    /// What happened, and in which namespace; `None` on the empty page.
    pub event: Option<(ReservationEvent, u32)>,
    /// More pages that can be read after this; 255 is that or more.
    pub more: u8,
}

impl ReservationNotification {
    /// The page.
    #[must_use]
    pub fn encode(&self) -> [u8; RESERVATION_LOG_BYTES] {
        let mut page = [0; RESERVATION_LOG_BYTES];
        let fields = NotificationFields {
            count: self.count,
            kind: self.event.map_or(0, |(event, _)| event as u8),
            more: self.more,
            nsid: self.event.map_or(0, |(_, nsid)| nsid),
        };
        fields.put_fields(&mut page);
        page
    }

    /// Reads a page; `None` if it is shorter than 64 bytes or its type is reserved.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let fields = NotificationFields::take_fields(bytes.get(..RESERVATION_LOG_BYTES)?)?;
        Some(Self {
            count: fields.count,
            event: match fields.kind {
                0 => None,
                kind => Some((ReservationEvent::from_u8(kind)?, fields.nsid)),
            },
            more: fields.more,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn commands_are_what_linux_sends() {
        // drivers/nvme/host/pr.c: register without and with an old key, preempt and abort, release.
        let sqe = Sqe::new(0x0d).with_nsid(1).with_cdw(10, 0xc000_0000);
        let register = ReservationCommand::Register {
            nsid: 1,
            action: RegisterAction::Register,
            ignore_key: false,
            persist: Some(true),
        };
        assert_eq!(ReservationCommand::parse(&sqe), Some(Ok(register)));
        let sqe = Sqe::new(0x0d).with_nsid(1).with_cdw(10, 0xc000_000a);
        let replace = ReservationCommand::Register {
            nsid: 1,
            action: RegisterAction::Replace,
            ignore_key: true,
            persist: Some(true),
        };
        assert_eq!(ReservationCommand::parse(&sqe), Some(Ok(replace)));
        let sqe = Sqe::new(0x11).with_nsid(1).with_cdw(10, 0x302);
        let preempt = ReservationCommand::Acquire {
            nsid: 1,
            action: AcquireAction::PreemptAndAbort,
            kind: ReservationType::WriteExclusiveRegistrantsOnly,
        };
        assert_eq!(ReservationCommand::parse(&sqe), Some(Ok(preempt)));
        let sqe = Sqe::new(0x0e)
            .with_nsid(1)
            .with_cdw(10, 255)
            .with_cdw(11, 1);
        let report = ReservationCommand::Report {
            nsid: 1,
            length: 1024,
            extended: true,
        };
        assert_eq!(ReservationCommand::parse(&sqe), Some(Ok(report)));
        assert_eq!(ReservationCommand::parse(&Sqe::new(0x02)), None);
    }

    #[test]
    fn reserved_actions_types_and_a_key_that_may_not_be_ignored_are_refused() {
        let refused = Some(Err(Status::INVALID_FIELD.with_dnr()));
        for (opcode, dword) in [
            (0x0d, 3),           // RREGA 3
            (0x0d, 0x4000_0000), // CPTPL 01b
            (0x11, 0x103),       // RACQA 3
            (0x11, 0x000),       // no type
            (0x11, 0x700),       // type 7
            (0x11, 0x108),       // IEKEY
            (0x15, 0x102),       // RRELA 2
            (0x15, 0x108),       // IEKEY
        ] {
            let sqe = Sqe::new(opcode).with_nsid(1).with_cdw(10, dword);
            assert_eq!(
                ReservationCommand::parse(&sqe),
                refused,
                "{opcode:#x} {dword:#x}"
            );
        }
    }

    #[test]
    fn a_report_stands_where_linux_reads_it() {
        let report = ReservationReport {
            generation: 7,
            kind: Some(ReservationType::ExclusiveAccessRegistrantsOnly),
            persist: true,
            registrants: vec![ReportedRegistrant {
                cntlid: CNTLID_ANY,
                is_holder: true,
                host: *b"0123456789abcdef",
                key: 0xaabb,
            }],
        };
        // include/linux/nvme.h: struct nvme_reservation_status_ext.
        let bytes = report.encode(true);
        assert_eq!(bytes.len(), 128);
        assert_eq!((bytes[0], bytes[4], bytes[5], bytes[9]), (7, 4, 1, 1));
        assert_eq!(bytes[64..67], [0xff, 0xff, 1]);
        assert_eq!(bytes[72..74], [0xbb, 0xaa]);
        assert_eq!(&bytes[80..96], b"0123456789abcdef");
        assert_eq!(ReservationReport::total_bytes(&bytes, true), Some(128));
        let short = report.encode(false);
        let total = ReservationReport::total_bytes(&short, false);
        assert_eq!(total, Some(short.len()));
        assert_eq!(
            ReservationReport::decode(&bytes, true).as_ref(),
            Some(&report)
        );
        let mut free = report.clone();
        free.registrants[0].is_holder = false;
        let decoded = ReservationReport::decode(&free.encode(true), true);
        assert_eq!(decoded, Some(free));
        // struct nvme_reservation_status.
        let bytes = report.encode(false);
        assert_eq!(bytes.len(), 48);
        assert_eq!(&bytes[32..40], b"01234567");
        assert_eq!(bytes[40..42], [0xbb, 0xaa]);
        assert_eq!(
            ReservationReport::decode(&bytes[..47], false),
            None,
            "one is cut off"
        );
    }

    #[test]
    fn a_notification_names_the_event_the_namespace_and_what_follows() {
        let page = ReservationNotification {
            count: 3,
            event: Some((ReservationEvent::ReservationReleased, 9)),
            more: 2,
        };
        let bytes = page.encode();
        assert_eq!((bytes[0], bytes[8], bytes[9], bytes[12]), (3, 2, 2, 9));
        assert_eq!(ReservationNotification::decode(&bytes), Some(page));
        let empty = ReservationNotification::default();
        assert_eq!(empty.encode(), [0; 64]);
        assert_eq!(ReservationEvent::ReservationPreempted.mask_bit(), 8);
    }

    proptest! {
        #[test]
        fn any_entry_and_any_bytes_read_back_or_are_refused(
            opcode in prop::sample::select(vec![0x0d_u8, 0x0e, 0x11, 0x15]),
            nsid: u32,
            dwords: [u32; 2],
            bytes in prop::collection::vec(any::<u8>(), 0..300),
            extended: bool,
        ) {
            let sqe = Sqe::new(opcode).with_nsid(nsid).with_cdw(10, dwords[0]).with_cdw(11, dwords[1]);
            if let Some(Ok(command)) = ReservationCommand::parse(&sqe) {
                prop_assert_eq!(ReservationCommand::parse(&command.to_sqe()), Some(Ok(command)));
            }
            if let Some(report) = ReservationReport::decode(&bytes, extended) {
                let again = ReservationReport::decode(&report.encode(extended), extended);
                prop_assert_eq!(again, Some(report));
            }
            if let Some(page) = ReservationNotification::decode(&bytes) {
                let again = ReservationNotification::decode(&page.encode());
                prop_assert_eq!(again, Some(page));
            }
            if let Some(keys) = KeyPair::decode(&bytes) {
                prop_assert_eq!(KeyPair::decode(&keys.encode()), Some(keys));
            }
        }
    }
}
