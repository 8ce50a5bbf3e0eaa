//! Controller properties (Base 2.0, section 3.1.3; which of them fabrics has: NVMe-oF 1.1, 3.5).

/// Offset of Controller Capabilities, 8 bytes.
pub const CAP: u32 = 0x00;
/// Offset of Version, 4 bytes.
pub const VS: u32 = 0x08;
/// Offset of Controller Configuration, 4 bytes.
pub const CC: u32 = 0x14;
/// Offset of Controller Status, 4 bytes.
pub const CSTS: u32 = 0x1c;
/// Offset of NVM Subsystem Reset, 4 bytes.
pub const NSSR: u32 = 0x20;
/// Offset of Controller Ready Timeouts, 4 bytes.
pub const CRTO: u32 = 0x68;

/// Version 1.4.0, as VS and Identify Controller report it.
pub const VERSION_1_4: u32 = 0x0001_0400;

/// Controller Capabilities.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// Largest queue, zero based (MQES).
    pub max_queue_entries: u16,
    /// Queues must be contiguous: always so on fabrics (CQR).
    pub contiguous_queues: bool,
    /// Longest time to become ready, in units of 500 ms (TO).
    pub timeout_500ms: u8,
    /// The NVM command set is supported (CSS bit 0, bit 37 of the register).
    pub nvm_command_set: bool,
    /// The host may enable all command sets that there are, and ask which they are by Identify 1Ch (CSS bit 6,
    /// bit 43 of the register; Base 2.0 figure 36).
    pub command_sets: bool,
    /// Smallest page as a power of two above 4 KiB (MPSMIN).
    pub page_size_min: u8,
    /// Largest page as a power of two above 4 KiB (MPSMAX).
    pub page_size_max: u8,
}

impl Capabilities {
    /// The register.
    #[must_use]
    pub const fn encode(&self) -> u64 {
        self.max_queue_entries as u64
            | (self.contiguous_queues as u64) << 16
            | (self.timeout_500ms as u64) << 24
            | (self.nvm_command_set as u64) << 37
            | (self.command_sets as u64) << 43
            | ((self.page_size_min & 0xf) as u64) << 48
            | ((self.page_size_max & 0xf) as u64) << 52
    }

    /// From the register.
    #[must_use]
    pub const fn decode(bits: u64) -> Self {
        Self {
            max_queue_entries: bits as u16,
            contiguous_queues: bits >> 16 & 1 == 1,
            timeout_500ms: (bits >> 24) as u8,
            nvm_command_set: bits >> 37 & 1 == 1,
            command_sets: bits >> 43 & 1 == 1,
            page_size_min: (bits >> 48) as u8 & 0xf,
            page_size_max: (bits >> 52) as u8 & 0xf,
        }
    }
}

/// Controller Configuration, as the host writes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Configuration {
    /// EN.
    pub enable: bool,
    /// CSS: [`Self::COMMAND_SET_NVM`], [`Self::COMMAND_SET_ALL`], or 7 for admin commands only.
    pub command_set: u8,
    /// MPS: page size as a power of two above 4 KiB.
    pub page_size: u8,
    /// AMS: arbitration, 0 is round robin.
    pub arbitration: u8,
    /// SHN: 0 none, 1 normal, 2 abrupt.
    pub shutdown: u8,
    /// IOSQES: log2 of the submission entry size, 6.
    pub sq_entry_log2: u8,
    /// IOCQES: log2 of the completion entry size, 4.
    pub cq_entry_log2: u8,
}

impl Configuration {
    /// CSS 000b: the NVM command set.
    pub const COMMAND_SET_NVM: u8 = 0;

    /// CSS 110b: all command sets that the controller has (Base 2.0 figure 41).
    pub const COMMAND_SET_ALL: u8 = 6;

    /// From the register.
    #[must_use]
    pub const fn decode(bits: u32) -> Self {
        Self {
            enable: bits & 1 == 1,
            command_set: (bits >> 4) as u8 & 7,
            page_size: (bits >> 7) as u8 & 0xf,
            arbitration: (bits >> 11) as u8 & 7,
            shutdown: (bits >> 14) as u8 & 3,
            sq_entry_log2: (bits >> 16) as u8 & 0xf,
            cq_entry_log2: (bits >> 20) as u8 & 0xf,
        }
    }

    /// The register.
    #[must_use]
    pub const fn encode(&self) -> u32 {
        self.enable as u32
            | ((self.command_set & 7) as u32) << 4
            | ((self.page_size & 0xf) as u32) << 7
            | ((self.arbitration & 7) as u32) << 11
            | ((self.shutdown & 3) as u32) << 14
            | ((self.sq_entry_log2 & 0xf) as u32) << 16
            | ((self.cq_entry_log2 & 0xf) as u32) << 20
    }
}

impl Configuration {
    /// Entry sizes, page size, arbitration and command set are those that controllers here work with.
    const fn can_work(&self) -> bool {
        self.sq_entry_log2 == 6
            && self.cq_entry_log2 == 4
            && self.page_size == 0
            && self.arbitration == 0
            && matches!(
                self.command_set,
                Self::COMMAND_SET_NVM | Self::COMMAND_SET_ALL
            )
    }
}

/// Controller Status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ControllerStatus {
    /// RDY.
    pub ready: bool,
    /// CFS: the controller failed for good.
    pub fatal: bool,
    /// SHST: 0 normal, 1 shutting down, 2 shut down.
    pub shutdown: u8,
}

impl ControllerStatus {
    /// The register.
    #[must_use]
    pub const fn encode(&self) -> u32 {
        self.ready as u32 | (self.fatal as u32) << 1 | ((self.shutdown & 3) as u32) << 2
    }

    /// From the register.
    #[must_use]
    pub const fn decode(bits: u32) -> Self {
        Self {
            ready: bits & 1 == 1,
            fatal: bits >> 1 & 1 == 1,
            shutdown: (bits >> 2) as u8 & 3,
        }
    }
}

/// CC and CSTS of a controller over fabrics: their state machine (Base 2.0, section 3.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Registers {
    configuration: u32,
    status: ControllerStatus,
}

/// What a write of CC asks the controller for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ConfigurationEffect {
    /// It enables the controller with a configuration that cannot work: CSTS says so (CFS).
    pub unsupported: bool,
    /// A controller reset: I/O queues have to end, and all is as after Connect.
    pub reset: bool,
    /// A shutdown: make data durable, then call [`Registers::shutdown_complete`].
    pub shutdown: bool,
}

impl Registers {
    /// CSTS.SHST: shutdown processing occurring.
    const SHUTDOWN_OCCURRING: u8 = 1;
    /// CSTS.SHST: shutdown processing complete.
    const SHUTDOWN_COMPLETE: u8 = 2;

    /// CC.
    #[must_use]
    pub const fn configuration(&self) -> u32 {
        self.configuration
    }

    /// CSTS.
    #[must_use]
    pub const fn status(&self) -> ControllerStatus {
        self.status
    }

    /// Enabled, ready, and not broken.
    #[must_use]
    pub const fn is_usable(&self) -> bool {
        self.status.ready && !self.status.fatal
    }

    /// The controller failed.
    pub const fn fail(&mut self) {
        self.status.fatal = true;
    }

    /// Writes CC.
    pub fn configure(&mut self, value: u32) -> ConfigurationEffect {
        let old = Configuration::decode(self.configuration);
        let new = Configuration::decode(value);
        self.configuration = value;
        let mut effect = ConfigurationEffect::default();
        if new.enable && !old.enable {
            effect.unsupported = !new.can_work();
            match effect.unsupported {
                true => self.status.fatal = true,
                false => {
                    self.status = ControllerStatus {
                        ready: true,
                        ..ControllerStatus::default()
                    }
                }
            }
        } else if old.enable && !new.enable {
            self.status = ControllerStatus::default();
            effect.reset = true;
        }
        if new.shutdown != 0 && old.shutdown == 0 {
            self.status.shutdown = Self::SHUTDOWN_OCCURRING;
            effect.shutdown = true;
        } else if new.shutdown == 0 && old.shutdown != 0 {
            self.status.shutdown = 0;
        }
        effect
    }

    /// Data is durable: the shutdown that the host asked for is complete.
    pub const fn shutdown_complete(&mut self) {
        if self.status.shutdown == Self::SHUTDOWN_OCCURRING {
            self.status.shutdown = Self::SHUTDOWN_COMPLETE;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_linux_writes_to_enable_a_controller_is_understood() {
        // IOSQES 6, IOCQES 4, EN: drivers/nvme/host/core.c, nvme_enable_ctrl.
        let configuration = Configuration::decode(0x0046_0001);
        assert!(configuration.enable);
        assert_eq!(
            (configuration.sq_entry_log2, configuration.cq_entry_log2),
            (6, 4)
        );
    }

    #[test]
    fn command_sets_are_announced_where_linux_looks_for_them() {
        // NVME_CAP_CSS_CSI is bit 6 of eight that begin at 37: include/linux/nvme.h.
        let cap = Capabilities::decode(1 << 43);
        assert!(cap.command_sets && !cap.nvm_command_set);
        assert_eq!(cap.encode(), 1 << 43);
        assert_eq!(Configuration::decode(0x0046_0061).command_set, 6);
    }

    #[test]
    fn a_controller_is_ready_when_it_is_enabled_until_it_is_reset() {
        let mut registers = Registers::default();
        assert_eq!(
            registers.configure(0x0046_0001),
            ConfigurationEffect::default()
        );
        assert!(registers.is_usable());
        let shutdown = registers.configure(0x0046_4001);
        assert!(shutdown.shutdown && !shutdown.reset);
        assert_eq!(registers.status().shutdown, 1);
        registers.shutdown_complete();
        assert_eq!(registers.status().shutdown, 2);
        assert!(registers.configure(0x0046_0000).reset);
        assert!(!registers.is_usable());
        assert_eq!(registers.status(), ControllerStatus::default());
    }

    #[test]
    fn a_configuration_that_cannot_work_is_fatal_until_the_next_one() {
        let mut registers = Registers::default();
        // Entries of 2^5 bytes; pages of 8 KiB.
        for wrong in [0x0045_0001, 0x0046_0081] {
            assert!(registers.configure(wrong).unsupported);
            assert!(registers.status().fatal && !registers.is_usable());
            registers.configure(0);
        }
        assert!(!registers.configure(0x0046_0061).unsupported);
        assert!(registers.is_usable());
    }

    proptest! {
        #[test]
        fn registers_survive_a_round_trip(cap: u64, cc: u32, csts: u32) {
            let cap = Capabilities::decode(cap);
            prop_assert_eq!(Capabilities::decode(cap.encode()), cap);
            let cc = Configuration::decode(cc);
            prop_assert_eq!(Configuration::decode(cc.encode()), cc);
            let csts = ControllerStatus::decode(csts);
            prop_assert_eq!(ControllerStatus::decode(csts.encode()), csts);
        }
    }
}
