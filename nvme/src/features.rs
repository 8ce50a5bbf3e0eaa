//! Features (Base 2.0, section 5.27.1) and asynchronous events (section 5.2): numbers and small codecs.

use crate::byte_enum::byte_enum;

byte_enum! {
    /// Which feature: CDW10 bits 7:0 of Get and Set Features (Base 2.0, section 5.27.1).
    pub enum FeatureId {
        /// 01h: how queues take turns.
        Arbitration = 0x01,
        /// 02h: power state.
        PowerManagement = 0x02,
        /// 03h: LBA range types.
        LbaRangeType = 0x03,
        /// 04h: temperature at which an event is raised, in kelvin.
        TemperatureThreshold = 0x04,
        /// 05h: time limit of error recovery, deallocated block error.
        ErrorRecovery = 0x05,
        /// 06h: write cache on or off, in CDW11 bit 0.
        VolatileWriteCache = 0x06,
        /// 07h: number of I/O queues; see [`NumberOfQueues`].
        NumberOfQueues = 0x07,
        /// 08h: interrupt coalescing; PCIe only.
        InterruptCoalescing = 0x08,
        /// 09h: interrupt vectors; PCIe only.
        InterruptVector = 0x09,
        /// 0Ah: the host does not need atomic writes, in CDW11 bit 0.
        WriteAtomicity = 0x0a,
        /// 0Bh: which events are reported; see [`AsyncEventConfig`].
        AsyncEventConfig = 0x0b,
        /// 0Ch: autonomous power state transitions.
        AutonomousPowerState = 0x0c,
        /// 0Dh: host memory buffer; PCIe only.
        HostMemoryBuffer = 0x0d,
        /// 0Eh: the time; see [`Timestamp`].
        Timestamp = 0x0e,
        /// 0Fh: keep-alive timeout, in milliseconds.
        KeepAliveTimer = 0x0f,
        /// 10h: host controlled thermal management.
        HostThermalManagement = 0x10,
        /// 11h: non-operational power states may do background work.
        NonOperationalPowerState = 0x11,
        /// 12h: read recovery level.
        ReadRecoveryLevel = 0x12,
        /// 16h: what the host can do; see [`HostBehavior`].
        HostBehavior = 0x16,
        /// 17h: sanitize.
        SanitizeConfig = 0x17,
        /// 18h: events of endurance groups.
        EnduranceGroupEvent = 0x18,
        /// 19h: the combination of command sets.
        CommandSetProfile = 0x19,
        /// 80h: boot progress marker.
        SoftwareProgress = 0x80,
        /// 81h: host identifier.
        HostIdentifier = 0x81,
        /// 82h: which reservation notifications are masked.
        ReservationNotificationMask = 0x82,
        /// 83h: reservations survive a loss of power, in CDW11 bit 0.
        ReservationPersistence = 0x83,
        /// 84h: namespace write protection.
        NamespaceWriteProtection = 0x84,
    }
}

byte_enum! {
    /// Which value Get Features asks for: CDW10 bits 10:8 (Base 2.0, section 5.15).
    pub enum Select {
        /// 0: the value in use.
        Current = 0,
        /// 1: the value at the factory.
        Default = 1,
        /// 2: the value that outlives a reset.
        Saved = 2,
        /// 3: what can be done with the feature: the bits of dword 0 from [`Self::SAVEABLE`] on.
        Supported = 3,
    }
}

impl Select {
    /// In the answer to [`Self::Supported`]: the value can be saved.
    pub const SAVEABLE: u32 = 1 << 0;

    /// In the answer to [`Self::Supported`]: every namespace has its own value.
    pub const NAMESPACE_SPECIFIC: u32 = 1 << 1;

    /// In the answer to [`Self::Supported`]: the value can be changed.
    pub const CHANGEABLE: u32 = 1 << 2;
}

/// Number of Queues, feature 07h, without the admin queue: what a host asks for in CDW11, and what the
/// controller allocates in dword 0. The wire is 0's based, the fields are not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NumberOfQueues {
    /// Submission queues, 1 to 65535.
    pub submission: u16,
    /// Completion queues, 1 to 65535.
    pub completion: u16,
}

impl NumberOfQueues {
    /// Reads CDW11 or dword 0; `None` if either is FFFFh, which the specification forbids.
    #[must_use]
    pub const fn decode(dword: u32) -> Option<Self> {
        let submission = (dword & 0xffff) as u16;
        let completion = (dword >> 16) as u16;
        if submission == u16::MAX || completion == u16::MAX {
            return None;
        }
        Some(Self {
            submission: submission + 1,
            completion: completion + 1,
        })
    }

    /// The dword; no queues, which cannot be said, become one.
    #[must_use]
    pub const fn encode(self) -> u32 {
        let (submission, completion) = (
            self.submission.saturating_sub(1),
            self.completion.saturating_sub(1),
        );
        (completion as u32) << 16 | submission as u32
    }

    /// As many as the host asks for, but at most `limit` of each and at least one.
    #[must_use]
    pub fn limited_to(self, limit: u16) -> Self {
        let limit = limit.max(1);
        Self {
            submission: self.submission.min(limit),
            completion: self.completion.min(limit),
        }
    }
}

/// Asynchronous Event Configuration, feature 0Bh: the events a host wants. OAES of Identify Controller
/// has the same bits, from 8 up, for the events a controller has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AsyncEventConfig(pub u32);

impl AsyncEventConfig {
    /// Bits 7:0: warnings of the SMART log, one bit for each of its critical warnings.
    pub const SMART: Self = Self(0xff);

    /// Bit 0: the spare is below its threshold.
    pub const SMART_SPARE: Self = Self(1 << 0);

    /// Bit 2: the subsystem's reliability is degraded.
    pub const SMART_UNRELIABLE: Self = Self(1 << 2);

    /// Bit 3: the media take no writes.
    pub const SMART_READ_ONLY: Self = Self(1 << 3);

    /// Bit 8: a namespace came, went or changed.
    pub const NAMESPACE_ATTRIBUTE: Self = Self(1 << 8);

    /// Bit 9: firmware is being activated.
    pub const FIRMWARE_ACTIVATION: Self = Self(1 << 9);

    /// Bit 11: the ANA log changed.
    pub const ANA_CHANGE: Self = Self(1 << 11);

    /// Bit 20: a Cross-Controller Reset has ended (TP8028, Base 2.3).
    pub const CROSS_CONTROLLER_RESET: Self = Self(1 << 20);

    /// Bit 31: the discovery log changed.
    pub const DISCOVERY_CHANGE: Self = Self(1 << 31);

    /// All events of `events` are in this set.
    #[must_use]
    pub const fn contains(self, events: Self) -> bool {
        self.0 & events.0 == events.0
    }

    /// The events of both sets together.
    #[must_use]
    pub const fn union(self, events: Self) -> Self {
        Self(self.0 | events.0)
    }
}

/// What kind of event: bits 2:0 of dword 0 (Base 2.0, section 5.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum AsyncEventType {
    /// 0: an error that belongs to no command.
    Error = 0,
    /// 1: health.
    Smart = 1,
    /// 2: something changed.
    Notice = 2,
    /// 3: something at once, such as a reset of the subsystem.
    Immediate = 3,
    /// 6: of a command set, such as a reservation notification.
    IoCommandSet = 6,
    /// 7: of the vendor.
    Vendor = 7,
}

/// An asynchronous event, as dword 0 of the completion that reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AsyncEvent {
    /// The kind.
    pub kind: AsyncEventType,
    /// What happened, by the numbers of the kind.
    pub info: u8,
    /// The log page that tells more, and whose reading without RAE arms the event again.
    pub log_page: u8,
}

impl AsyncEvent {
    /// A namespace came, went or changed; log 04h names it.
    pub const NAMESPACE_CHANGED: Self = Self::notice(0x00, 0x04);

    /// Firmware is being activated; log 03h.
    pub const FIRMWARE_ACTIVATION: Self = Self::notice(0x01, 0x03);

    /// An ANA state changed; log 0Ch.
    pub const ANA_CHANGED: Self = Self::notice(0x03, 0x0c);

    /// The discovery log changed; log 70h.
    pub const DISCOVERY_CHANGED: Self = Self::notice(0xf0, 0x70);

    /// A Cross-Controller Reset has ended; log 1Eh tells how (TP8028, Base 2.3).
    pub const CROSS_CONTROLLER_RESET_COMPLETED: Self = Self::notice(0xf4, 0x1e);

    /// The subsystem's reliability is compromised, or its media take no writes; log 02h.
    pub const RELIABILITY: Self = Self {
        kind: AsyncEventType::Smart,
        info: 0x00,
        log_page: 0x02,
    };

    /// The spare is below its threshold; log 02h.
    pub const SPARE_BELOW_THRESHOLD: Self = Self {
        kind: AsyncEventType::Smart,
        info: 0x02,
        log_page: 0x02,
    };

    /// A reservation notification; log 80h tells it.
    pub const RESERVATION: Self = Self {
        kind: AsyncEventType::IoCommandSet,
        info: 0x00,
        log_page: 0x80,
    };

    const fn notice(info: u8, log_page: u8) -> Self {
        Self {
            kind: AsyncEventType::Notice,
            info,
            log_page,
        }
    }

    /// Dword 0 of the completion.
    #[must_use]
    pub const fn encode(self) -> u32 {
        (self.log_page as u32) << 16 | (self.info as u32) << 8 | self.kind as u32
    }

    /// Reads dword 0; `None` for a reserved kind.
    #[must_use]
    pub const fn decode(dword: u32) -> Option<Self> {
        let [kind, info, log_page, _] = dword.to_le_bytes();
        let kind = match kind & 0x7 {
            0 => AsyncEventType::Error,
            1 => AsyncEventType::Smart,
            2 => AsyncEventType::Notice,
            3 => AsyncEventType::Immediate,
            6 => AsyncEventType::IoCommandSet,
            7 => AsyncEventType::Vendor,
            _ => return None,
        };
        Some(Self {
            kind,
            info,
            log_page,
        })
    }
}

/// Bytes of the Timestamp data structure.
pub const TIMESTAMP_BYTES: usize = 8;

/// Timestamp, feature 0Eh (Base 2.0, section 5.27.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Timestamp {
    /// Milliseconds since 1970 if a host set it, else since the last reset; 48 bits.
    pub milliseconds: u64,
    /// The controller may have stopped counting since.
    pub may_have_stopped: bool,
    /// A host set it, rather than a reset.
    pub set_by_host: bool,
}

impl Timestamp {
    /// The largest time.
    pub const MILLISECONDS_MAX: u64 = (1 << 48) - 1;

    /// The data structure; a later time becomes the largest.
    #[must_use]
    pub fn encode(self) -> [u8; TIMESTAMP_BYTES] {
        let mut bytes = self.milliseconds.min(Self::MILLISECONDS_MAX).to_le_bytes();
        // Byte 6: synch in bit 0, origin in bits 3:1 (0 a reset, 1 a host).
        bytes[6] = u8::from(self.may_have_stopped) | u8::from(self.set_by_host) << 1;
        bytes
    }

    /// Reads the data structure; `None` if it is shorter than 8 bytes or its origin is reserved.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut time = *bytes.first_chunk::<TIMESTAMP_BYTES>()?;
        let attributes = time[6];
        time[6..].fill(0);
        let set_by_host = match (attributes >> 1) & 0x7 {
            0 => false,
            1 => true,
            _ => return None,
        };
        Some(Self {
            milliseconds: u64::from_le_bytes(time),
            may_have_stopped: attributes & 1 != 0,
            set_by_host,
        })
    }
}

/// Bytes of the Host Behavior Support data structure.
pub const HOST_BEHAVIOR_BYTES: usize = 512;

/// Host Behavior Support, feature 16h (Base 2.0, section 5.27.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HostBehavior {
    /// ACRE: the host waits by CRD before it retries.
    pub retry_delays: bool,
    /// ETDAS: the host reads telemetry data area 4.
    pub telemetry_area_4: bool,
    /// LBAFEE: the host knows the extended LBA formats.
    pub extended_lba_formats: bool,
    /// CDFE: the formats of Copy's source ranges, from 2 on, that the host enables, by bits.
    pub copy_formats: u16,
}

impl HostBehavior {
    /// The data structure.
    #[must_use]
    pub fn encode(self) -> [u8; HOST_BEHAVIOR_BYTES] {
        let mut bytes = [0; HOST_BEHAVIOR_BYTES];
        bytes[0] = u8::from(self.retry_delays);
        bytes[1] = u8::from(self.telemetry_area_4);
        bytes[2] = u8::from(self.extended_lba_formats);
        bytes[4..6].copy_from_slice(&self.copy_formats.to_le_bytes());
        bytes
    }

    /// Reads the data structure; `None` if it is shorter than 512 bytes or a field is not 0 or 1.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let flag = |byte| match byte {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        };
        let bytes = bytes.first_chunk::<HOST_BEHAVIOR_BYTES>()?;
        Some(Self {
            retry_delays: flag(bytes[0])?,
            telemetry_area_4: flag(bytes[1])?,
            extended_lba_formats: flag(bytes[2])?,
            copy_formats: u16::from_le_bytes([bytes[4], bytes[5]]),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_identifier_reads_back() {
        let known = (0..=u8::MAX)
            .filter_map(FeatureId::from_u8)
            .collect::<Vec<_>>();
        assert_eq!(known.len(), 27);
        for id in known {
            assert_eq!(FeatureId::from_u8(u8::from(id)), Some(id));
        }
        for select in (0..4).filter_map(Select::from_u8) {
            assert_eq!(Select::from_u8(u8::from(select)), Some(select));
        }
        assert_eq!(Select::from_u8(4), None);
    }

    #[test]
    fn queues_are_counted_from_zero_on_the_wire() {
        let four = NumberOfQueues {
            submission: 4,
            completion: 5,
        };
        assert_eq!(four.encode(), 0x0004_0003);
        assert_eq!(NumberOfQueues::decode(0x0004_0003), Some(four));
        assert_eq!(NumberOfQueues::decode(0x0000_ffff), None);
        assert_eq!(NumberOfQueues::decode(0xffff_0000), None);
        assert_eq!(
            NumberOfQueues {
                submission: 0,
                completion: 0
            }
            .encode(),
            0
        );
        assert_eq!(
            four.limited_to(0),
            NumberOfQueues {
                submission: 1,
                completion: 1
            }
        );
        assert_eq!(
            four.limited_to(4),
            NumberOfQueues {
                submission: 4,
                completion: 4
            }
        );
    }

    #[test]
    fn events_are_the_numbers_that_linux_knows() {
        assert_eq!(AsyncEvent::NAMESPACE_CHANGED.encode(), 0x04_0002);
        assert_eq!(AsyncEvent::FIRMWARE_ACTIVATION.encode(), 0x03_0102);
        assert_eq!(AsyncEvent::ANA_CHANGED.encode(), 0x0c_0302);
        assert_eq!(AsyncEvent::DISCOVERY_CHANGED.encode(), 0x70_f002);
        assert_eq!(AsyncEvent::RESERVATION.encode(), 0x80_0006);
        assert_eq!(AsyncEvent::decode(4), None);
    }

    #[test]
    fn a_set_of_events_contains_its_parts_only() {
        let wanted = AsyncEventConfig::NAMESPACE_ATTRIBUTE.union(AsyncEventConfig::ANA_CHANGE);
        assert_eq!(wanted.0, 0x900);
        assert!(wanted.contains(AsyncEventConfig::ANA_CHANGE));
        assert!(!wanted.contains(AsyncEventConfig::DISCOVERY_CHANGE));
        assert!(!wanted.contains(AsyncEventConfig::SMART));
    }

    #[test]
    fn times_and_behaviors_that_are_reserved_are_refused() {
        assert_eq!(Timestamp::decode(&[0; 7]), None);
        assert_eq!(Timestamp::decode(&[0, 0, 0, 0, 0, 0, 4, 0]), None);
        for (may_have_stopped, set_by_host) in
            [(false, false), (false, true), (true, false), (true, true)]
        {
            let time = Timestamp {
                milliseconds: 7,
                may_have_stopped,
                set_by_host,
            };
            assert_eq!(Timestamp::decode(&time.encode()), Some(time));
        }
        let late = Timestamp {
            milliseconds: u64::MAX,
            ..Default::default()
        };
        assert_eq!(late.encode(), [255, 255, 255, 255, 255, 255, 0, 0]);
        let mut bytes = HostBehavior {
            retry_delays: true,
            ..Default::default()
        }
        .encode();
        assert!(HostBehavior::decode(&bytes).is_some_and(|host| host.retry_delays));
        bytes[2] = 2;
        assert_eq!(HostBehavior::decode(&bytes), None);
        assert_eq!(HostBehavior::decode(&[0; 511]), None);
    }

    proptest! {
        #[test]
        fn any_dword_or_bytes_read_back_or_are_refused(
            dword in any::<u32>(),
            bytes in prop::collection::vec(any::<u8>(), 0..600),
        ) {
            if let Some(event) = AsyncEvent::decode(dword) {
                prop_assert_eq!(AsyncEvent::decode(event.encode()), Some(event));
            }
            if let Some(queues) = NumberOfQueues::decode(dword) {
                prop_assert_eq!(queues.encode(), dword);
            }
            if let Some(time) = Timestamp::decode(&bytes) {
                prop_assert_eq!(Timestamp::decode(&time.encode()), Some(time));
            }
            if let Some(host) = HostBehavior::decode(&bytes) {
                prop_assert_eq!(HostBehavior::decode(&host.encode()), Some(host));
            }
        }
    }
}
