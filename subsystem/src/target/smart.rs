//! The SMART / Health Information log page: the pool's health, and what hosts did over its life.
//!
//! Guarantee: every figure was counted. Values that a pool of several drives does not have are zero: temperature (nvme-cli
//! shows -273 degrees, as it does for nvmet and SPDK), wear, busy time.

use nvme::log::SmartLog;

use crate::target::Target;

/// A data unit: 1000 blocks of 512 bytes.
const DATA_UNIT_BYTES: u128 = 512_000;

impl Target {
    /// The page.
    pub(crate) fn smart_log(&self) -> SmartLog {
        let warnings = self.warnings();
        let life = self.record.lifetime().plus(&self.health);
        let totals = life.totals;
        SmartLog {
            critical_warning: warnings.critical_warning(),
            available_spare: warnings.spare_percent,
            available_spare_threshold: warnings.spare_threshold(),
            data_units_read: u128::from(totals.bytes_read).div_ceil(DATA_UNIT_BYTES),
            data_units_written: u128::from(totals.bytes_written).div_ceil(DATA_UNIT_BYTES),
            host_read_commands: u128::from(totals.read_commands),
            host_write_commands: u128::from(totals.write_commands),
            power_cycles: u128::from(life.starts),
            power_on_hours: u128::from(life.seconds / 3600),
            unsafe_shutdowns: u128::from(life.unclean_ends),
            media_errors: u128::from(totals.media_errors),
            error_log_entries: u128::from(totals.error_entries),
            ..Default::default()
        }
    }
}
