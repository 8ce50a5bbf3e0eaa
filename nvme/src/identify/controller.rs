//! What Identify says about a controller: CNS 01h, 06h and 1Ch.

use super::IDENTIFY_BYTES;
use super::layout::{Wire, ascii, layout, name};
use crate::byte_enum::byte_enum;

/// Power state descriptors in the page; NPSS is 0's based and at most one less.
const POWER_STATES_MAX: usize = 32;

/// Where NPSS, the 0's based number of power states, stands.
const NPSS: usize = 263;

byte_enum! {
    /// What a controller is for: CNTRLTYPE (Base 2.0 figure 275, byte 111).
    pub enum ControllerType {
        /// 1: user data.
        Io = 1,
        /// 2: the discovery log.
        Discovery = 2,
        /// 3: administration only.
        Admin = 3,
    }
}

layout! {
    /// Identify Controller, CNS 01h (Base 2.0 figure 275). The default is all zeros.
    ///
    /// NPSS is not a field: it is the number of `power_states`.
    #[derive(Debug, Clone, PartialEq, Eq, Default)]
    pub struct IdentifyController [IDENTIFY_BYTES] {
        /// PCI vendor.
        0..2 => vid: u16,
        /// PCI subsystem vendor.
        2..4 => ssvid: u16,
        /// Serial number. Encoding cuts it to 20 characters and replaces what is not ASCII.
        4..24 => sn: String as ascii,
        /// Model number. Encoding cuts it to 40 characters and replaces what is not ASCII.
        24..64 => mn: String as ascii,
        /// Firmware revision. Encoding cuts it to 8 characters and replaces what is not ASCII.
        64..72 => fr: String as ascii,
        /// Recommended arbitration burst, as a power of two of commands.
        72..73 => rab: u8,
        /// IEEE OUI of the vendor, least significant byte first.
        73..76 => ieee: [u8; 3],
        /// Multipath: bit 0 several ports, bit 1 several controllers, bit 3 ANA.
        76..77 => cmic: u8,
        /// Largest transfer, as a power of two of the smallest memory page; 0 is no limit.
        77..78 => mdts: u8,
        /// Controller identifier, unique in the subsystem.
        78..80 => cntlid: u16,
        /// Version: major in bits 31:16, minor in 15:8.
        80..84 => ver: u32,
        /// Expected latency of resuming from D3, in microseconds.
        84..88 => rtd3r: u32,
        /// Expected latency of entering D3, in microseconds.
        88..92 => rtd3e: u32,
        /// Optional asynchronous events; bits as in [`crate::features::AsyncEventConfig`].
        92..96 => oaes: u32,
        /// Controller attributes; bit 0 128-bit host identifier, bit 6 traffic based keep alive.
        96..100 => ctratt: u32,
        /// Controller type; see [`ControllerType`], 0 is not reported.
        111..112 => cntrltype: u8,
        /// Field-replaceable unit.
        112..128 => fguid: [u8; 16],
        /// Command retry delay 1, in units of 100 ms.
        128..130 => crdt1: u16,
        /// Command retry delay 2, in units of 100 ms.
        130..132 => crdt2: u16,
        /// Command retry delay 3, in units of 100 ms.
        132..134 => crdt3: u16,
        /// CIU, Controller Instance Uniquifier: with `cirn` it names this life of the controller (TP8028, Base 2.3); 0 where
        /// Cross-Controller Reset is not supported.
        135..136 => ciu: u8,
        /// CIRN, Controller Instance Random Number; 0 as `ciu`.
        136..144 => cirn: u64,
        /// Optional admin commands.
        256..258 => oacs: u16,
        /// Abort commands that may be in flight, 0's based.
        258..259 => acl: u8,
        /// Asynchronous event requests that may be in flight, 0's based.
        259..260 => aerl: u8,
        /// Firmware slots: bit 0 first slot read only, bits 3:1 number of slots.
        260..261 => frmw: u8,
        /// Log pages: bit 1 command effects, bit 2 extended data (offsets).
        261..262 => lpa: u8,
        /// Entries of the error log, 0's based.
        262..263 => elpe: u8,
        /// Vendor specific admin commands have the standard form, in bit 0.
        264..265 => avscc: u8,
        /// Autonomous power state transitions, in bit 0.
        265..266 => apsta: u8,
        /// Temperature that is too warm, in kelvin; 0 is not reported.
        266..268 => wctemp: u16,
        /// Temperature that is critical, in kelvin; 0 is not reported.
        268..270 => cctemp: u16,
        /// Longest time that activating firmware takes, in units of 100 ms.
        270..272 => mtfa: u16,
        /// Bytes of the subsystem's media; 0 is not reported.
        280..296 => tnvmcap: u128,
        /// Bytes of media that belong to no namespace.
        296..312 => unvmcap: u128,
        /// Firmware update granularity, in units of 4 KiB; 0xFF is no restriction.
        319..320 => fwug: u8,
        /// Granularity of the keep-alive timer, in units of 100 ms; a host needs more than 0.
        320..322 => kas: u16,
        /// Host controlled thermal management, in bit 0.
        322..324 => hctma: u16,
        /// Sanitize operations.
        328..332 => sanicap: u32,
        /// Longest ANA transition, in seconds.
        342..343 => anatt: u8,
        /// ANA states that are reported: bit 0 optimized to bit 4 change; bits 6 and 7 on group ids.
        343..344 => anacap: u8,
        /// Highest ANA group identifier.
        344..348 => anagrpmax: u32,
        /// Number of ANA groups.
        348..352 => nanagrpid: u32,
        /// PELS: most bytes of the persistent event log, in units of 64 KiB.
        352..356 => pels: u32,
        /// Command Quiesce Time, in milliseconds: how long after the loss of its host the controller may still work on
        /// commands (TP4129, Base 2.1); 0 is not reported.
        386..388 => cqt: u16,
        /// Submission entry size, as powers of two: smallest in bits 3:0, largest in 7:4; 66h.
        512..513 => sqes: u8,
        /// Completion entry size, as powers of two: smallest in bits 3:0, largest in 7:4; 44h.
        513..514 => cqes: u8,
        /// Commands that one queue may hold; mandatory over Fabrics.
        514..516 => maxcmd: u16,
        /// Highest NSID.
        516..520 => nn: u32,
        /// Optional NVM commands: bit 0 Compare, 2 Dataset Management, 3 Write Zeroes, 4 Save in
        /// features, 5 reservations, 6 timestamp, 7 Verify, 8 Copy; 1 Write Uncorrectable.
        520..522 => oncs: u16,
        /// Fused operations: bit 0 Compare and Write.
        522..524 => fuses: u16,
        /// Format attributes.
        524..525 => fna: u8,
        /// Volatile write cache: bit 0 present, bits 2:1 Flush of all namespaces (2 no, 3 yes).
        525..526 => vwc: u8,
        /// Blocks written atomically, 0's based.
        526..528 => awun: u16,
        /// Blocks written atomically over a power failure, 0's based.
        528..530 => awupf: u16,
        /// Vendor specific I/O commands have the standard form, in bit 0 (ICSVSCC since 2.0).
        530..531 => nvscc: u8,
        /// Namespace write protection: bit 0 protect and unprotect.
        531..532 => nwpc: u8,
        /// Blocks compared and written atomically, 0's based.
        532..534 => acwu: u16,
        /// Formats of Copy's source ranges, by bits.
        534..536 => ocfs: u16,
        /// SGLs: bits 1:0 supported (1 any alignment), bit 2 keyed, bit 20 offset in the capsule.
        536..540 => sgls: u32,
        /// Most namespaces that exist at once; with ANA more than 0 and at most `nn`.
        540..544 => mnan: u32,
        /// Name of the subsystem. Encoding cuts it to 255 bytes.
        768..1024 => subnqn: String as name,
        /// Bytes of an I/O command capsule, in units of 16; at least 4.
        1792..1796 => ioccsz: u32,
        /// Bytes of an I/O response capsule, in units of 16; at least 1.
        1796..1800 => iorcsz: u32,
        /// Where in-capsule data begins behind the command, in units of 16; Linux takes only 0.
        1800..1802 => icdoff: u16,
        /// Fabrics controller attributes: bit 0 is the static controller model.
        1802..1803 => fcatt: u8,
        /// Most SGL data block descriptors of a command; 0 is no limit.
        1803..1804 => msdbd: u8,
        /// Optional Fabrics commands: bit 0 Disconnect.
        1804..1806 => ofcs: u16,
        /// CCRL, Cross-Controller Reset Limit: resets that may be under way, of those that one controller was asked for
        /// (TP8028, Base 2.3); 0 where there are none.
        1807..1808 => ccrl: u8,
        /// Power states, of which the first 32 are sent; the first one is the most powerful.
        2048..3072 => power_states: Vec<PowerState> as power_states,
    }
}

impl IdentifyController {
    /// The page. An empty list of power states is sent as one state of zeros, as 0 is 0's based.
    #[must_use]
    pub fn encode(&self) -> Box<[u8; IDENTIFY_BYTES]> {
        let mut page = Box::new([0; IDENTIFY_BYTES]);
        self.put_fields(&mut page[..]);
        let states = self.power_states.len().clamp(1, POWER_STATES_MAX);
        page[NPSS] = u8::try_from(states - 1).unwrap_or(0);
        page
    }

    /// Reads a page; `None` if it is shorter than 4096 bytes, if it claims more than 32 power
    /// states, or if the subsystem's name is not UTF-8 that a NUL ends.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let page = bytes.get(..IDENTIFY_BYTES)?;
        let states = usize::from(page[NPSS]) + 1;
        if states > POWER_STATES_MAX {
            return None;
        }
        let mut controller = Self::take_fields(page)?;
        controller.power_states.truncate(states);
        Some(controller)
    }

    /// What the controller is for; `None` if it does not say.
    #[must_use]
    pub const fn controller_type(&self) -> Option<ControllerType> {
        ControllerType::from_u8(self.cntrltype)
    }
}

/// Bytes of a power state descriptor.
const POWER_STATE_BYTES: usize = 32;

layout! {
    /// Power State Descriptor (Base 2.0 figure 276).
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct PowerState [POWER_STATE_BYTES] {
        /// Most power, in units of 0.01 W, or 0.0001 W with bit 0 of `flags`; 0 is not reported.
        0..2 => mp: u16,
        /// Bit 0 is the scale of `mp`, bit 1 says that the state does no I/O.
        3..4 => flags: u8,
        /// Latency of entering the state, in microseconds.
        4..8 => enlat: u32,
        /// Latency of leaving the state, in microseconds.
        8..12 => exlat: u32,
        /// Rank of the read throughput; lower is better.
        12..13 => rrt: u8,
        /// Rank of the read latency; lower is better.
        13..14 => rrl: u8,
        /// Rank of the write throughput; lower is better.
        14..15 => rwt: u8,
        /// Rank of the write latency; lower is better.
        15..16 => rwl: u8,
        /// Power when idle, in the units of `ips`.
        16..18 => idlp: u16,
        /// Scale of `idlp` in bits 7:6: 1 is 0.0001 W, 2 is 0.01 W.
        18..19 => ips: u8,
        /// Power when active, in the units of `apws`.
        20..22 => actp: u16,
        /// Workload of `actp` in bits 2:0, its scale in bits 7:6.
        22..23 => apws: u8,
    }
}

mod power_states {
    use super::{POWER_STATE_BYTES, PowerState};

    pub(super) fn put(states: &[PowerState], out: &mut [u8]) {
        for (slot, state) in out.chunks_exact_mut(POWER_STATE_BYTES).zip(states) {
            state.put_fields(slot);
        }
    }

    pub(super) fn take(bytes: &[u8]) -> Option<Vec<PowerState>> {
        bytes
            .chunks_exact(POWER_STATE_BYTES)
            .map(PowerState::take_fields)
            .collect()
    }
}

const _: () = assert!(POWER_STATES_MAX * POWER_STATE_BYTES == 3072 - 2048);

layout! {
    /// Identify Controller for the NVM command set, CNS 06h with CSI 0 (NVM Command Set 1.0,
    /// section 4.1.5). The default, all zeros, sets no limits.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct IdentifyNvmController [IDENTIFY_BYTES] {
        /// Largest Verify, as a power of two of the smallest memory page; 0 is no limit.
        0..1 => vsl: u8,
        /// Largest Write Zeroes, as a power of two of the smallest memory page; 0 is no limit.
        1..2 => wzsl: u8,
        /// Largest Write Uncorrectable, as a power of two of that page; 0 is no limit.
        2..3 => wusl: u8,
        /// Ranges in one Dataset Management command; 0 is not reported.
        3..4 => dmrl: u8,
        /// Blocks in one range of Dataset Management; 0 is not reported.
        4..8 => dmrsl: u32,
        /// Blocks in all ranges of one Dataset Management command; 0 is not reported.
        8..16 => dmsl: u64,
    }
}

impl IdentifyNvmController {
    /// The page.
    #[must_use]
    pub fn encode(&self) -> Box<[u8; IDENTIFY_BYTES]> {
        let mut page = Box::new([0; IDENTIFY_BYTES]);
        self.put_fields(&mut page[..]);
        page
    }

    /// Reads a page; `None` if it is shorter than 4096 bytes.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        Self::take_fields(bytes.get(..IDENTIFY_BYTES)?)
    }
}

/// I/O Command Set data structure, CNS 1Ch (Base 2.0, section 5.17.2): the combinations of command
/// sets, each a vector with bit n for CSI n, that Set Features 19h can choose from. It ends at the
/// first empty vector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandSetCombinations(pub Vec<u64>);

impl CommandSetCombinations {
    /// The only combination of a controller that has the NVM command set alone.
    #[must_use]
    pub fn nvm_only() -> Self {
        Self(vec![1 << super::CSI_NVM])
    }

    /// The page, with the first 512 combinations.
    #[must_use]
    pub fn encode(&self) -> Box<[u8; IDENTIFY_BYTES]> {
        let mut page = Box::new([0; IDENTIFY_BYTES]);
        for (slot, vector) in page.chunks_exact_mut(u64::BYTES).zip(&self.0) {
            vector.put(slot);
        }
        page
    }

    /// Reads a page; `None` if it is shorter than 4096 bytes.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let page = bytes.get(..IDENTIFY_BYTES)?;
        let vectors = page.chunks_exact(u64::BYTES).map(u64::take);
        Some(Self(vectors.take_while(|vector| *vector != 0).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn fields_stand_where_linux_reads_them() {
        let page = IdentifyController {
            sn: "SN1".into(),
            mn: "Onefold".into(),
            mdts: 8,
            cntlid: 0x1234,
            ver: 0x0002_0000,
            oaes: 0x8000_0100,
            cntrltype: ControllerType::Io.into(),
            kas: 10,
            anatt: 7,
            anagrpmax: 1,
            nanagrpid: 2,
            sqes: 0x66,
            cqes: 0x44,
            maxcmd: 128,
            nn: 1024,
            oncs: 0x0c,
            vwc: 7,
            sgls: 0x0010_0005,
            mnan: 1024,
            subnqn: "nqn.2026-11.x:y".into(),
            ioccsz: 0x104,
            iorcsz: 1,
            ofcs: 1,
            ..Default::default()
        }
        .encode();
        assert_eq!(&page[4..24], b"SN1                 ");
        assert_eq!(&page[24..32], b"Onefold ");
        assert_eq!(&page[64..72], b"        ");
        assert_eq!(page[77], 8);
        assert_eq!(page[78..80], [0x34, 0x12]);
        assert_eq!(page[80..84], [0, 0, 2, 0]);
        assert_eq!(page[92..96], [0, 1, 0, 0x80]);
        assert_eq!(page[111], 1);
        assert_eq!(page[263], 0);
        assert_eq!(page[320], 10);
        assert_eq!((page[342], page[344], page[348]), (7, 1, 2));
        assert_eq!(page[512..516], [0x66, 0x44, 128, 0]);
        assert_eq!(page[516..520], [0, 4, 0, 0]);
        assert_eq!((page[520], page[525]), (0x0c, 7));
        assert_eq!(page[536..544], [5, 0, 0x10, 0, 0, 4, 0, 0]);
        assert_eq!(&page[768..784], b"nqn.2026-11.x:y\0");
        assert_eq!(page[1792..1800], [4, 1, 0, 0, 1, 0, 0, 0]);
        assert_eq!(page[1804], 1);
    }

    #[test]
    fn the_number_of_power_states_is_the_length_of_the_list() {
        let controller = IdentifyController {
            power_states: vec![
                PowerState {
                    mp: 2500,
                    ..Default::default()
                };
                3
            ],
            ..Default::default()
        };
        let page = controller.encode();
        assert_eq!(page[263], 2);
        assert_eq!(page[2048..2050], 2500_u16.to_le_bytes());
        assert_eq!(IdentifyController::decode(&page[..]), Some(controller));
    }

    #[test]
    fn impossible_pages_are_refused() {
        let mut page = IdentifyController::default().encode();
        assert!(IdentifyController::decode(&page[..4095]).is_none());
        page[263] = 32;
        assert!(IdentifyController::decode(&page[..]).is_none());
        page[263] = 31;
        assert!(IdentifyController::decode(&page[..]).is_some());
        page[768] = 0xff;
        assert!(IdentifyController::decode(&page[..]).is_none());
    }

    #[test]
    fn nvm_limits_and_command_sets_read_back() {
        let limits = IdentifyNvmController {
            dmrl: 255,
            dmrsl: 7,
            dmsl: 9,
            ..Default::default()
        };
        let page = limits.encode();
        assert_eq!(
            page[..16],
            [0, 0, 0, 255, 7, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0]
        );
        assert_eq!(IdentifyNvmController::decode(&page[..]), Some(limits));
        let page = CommandSetCombinations::nvm_only().encode();
        assert_eq!(page[..9], [1, 0, 0, 0, 0, 0, 0, 0, 0]);
        let decoded = CommandSetCombinations::decode(&page[..]);
        assert_eq!(decoded, Some(CommandSetCombinations::nvm_only()));
    }

    proptest! {
        // Whatever a controller sent, the fields known here survive being written and read again.
        #[test]
        fn decoded_pages_encode_to_what_they_were(
            mut bytes in prop::collection::vec(any::<u8>(), IDENTIFY_BYTES),
            nqn in "[ -~]{0,223}",
            states in 0..32_u8,
        ) {
            name::put(&nqn, &mut bytes[768..1024]);
            bytes[NPSS] = states;
            let controller = IdentifyController::decode(&bytes).unwrap();
            prop_assert_eq!(&controller.subnqn, &nqn);
            prop_assert_eq!(controller.power_states.len(), usize::from(states) + 1);
            let page = controller.encode();
            prop_assert_eq!(&page[72..100], &bytes[72..100]);
            prop_assert_eq!(&page[512..536], &bytes[512..536]);
            prop_assert_eq!(IdentifyController::decode(&page[..]), Some(controller));
        }
    }
}
