//! What a drive tells of its own health, in the words of NVMe's SMART / Health Information log page (Base 2.1, section 5.2.12.1.3).
//!
//! Guarantee: a drive that is well has no warnings, and one that has some needs somebody, whatever it still does.

use nvme::log::SmartLog;
use serde::{Deserialize, Serialize};

/// How much of a drive's life may be used before it is time to get another one, in percent.
const PERCENTAGE_USED_WARNED: u8 = 90;

/// The health of a drive when it was asked last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriveHealth {
    /// What is wrong, for people; empty if nothing is.
    pub warnings: Vec<String>,
    /// The critical warning: bit 0 spare, 1 temperature, 2 reliability, 3 read-only, 4 memory backup, 5 persistent memory.
    pub critical_warning: u8,
    /// The composite temperature; `null` if it is not reported.
    pub composite_temperature_celsius: Option<i32>,
    /// Spare capacity that is left.
    pub available_spare_percent: u8,
    /// The spare capacity below which the drive warns.
    pub available_spare_threshold_percent: u8,
    /// How much of its life is used, as its maker foresaw it; it may exceed 100, and 255 is that or more.
    pub percentage_used: u8,
    /// Data that the drive could not return as they were written.
    pub media_and_data_integrity_errors: u64,
    /// Those that came while this daemon ran, until none came for 24 hours.
    pub new_media_and_data_integrity_errors: u64,
    /// Losses of power without notice.
    pub unsafe_shutdowns: u64,
    /// How long it had power.
    pub power_on_hours: u64,
}

impl DriveHealth {
    /// What a log page says, with as many media errors that are new.
    #[must_use]
    pub fn new(log: &SmartLog, new_media_errors: u64) -> Self {
        Self {
            warnings: warnings(log, new_media_errors),
            critical_warning: log.critical_warning,
            composite_temperature_celsius: log.celsius(),
            available_spare_percent: log.available_spare,
            available_spare_threshold_percent: log.available_spare_threshold,
            percentage_used: log.percentage_used,
            media_and_data_integrity_errors: figure(log.media_errors),
            new_media_and_data_integrity_errors: new_media_errors,
            unsafe_shutdowns: figure(log.unsafe_shutdowns),
            power_on_hours: figure(log.power_on_hours),
        }
    }

    /// Whether it warns of its temperature and of nothing else: another drive would be as hot.
    #[must_use]
    pub fn is_hot_only(&self) -> bool {
        const TEMPERATURE: u8 = 1 << 1;
        self.critical_warning == TEMPERATURE && self.warnings.len() == 1
    }
}

/// A figure of 128 bits. No drive gets to 2^64 of anything.
fn figure(figure: u128) -> u64 {
    u64::try_from(figure).unwrap_or(u64::MAX)
}

fn warnings(log: &SmartLog, new_media_errors: u64) -> Vec<String> {
    let mut warnings = log.critical_warnings();
    let (spare, threshold) = (log.available_spare, log.available_spare_threshold);
    if spare < threshold {
        warnings.push(format!(
            "{spare} % of its spare capacity are left, less than the threshold of {threshold} %"
        ));
    }
    match log.percentage_used {
        used @ 100.. => warnings.push(format!("its life is used up: {used} %")),
        used @ PERCENTAGE_USED_WARNED.. => warnings.push(format!("{used} % of its life are used")),
        _ => {}
    }
    if new_media_errors > 0 {
        warnings.push(format!(
            "{new_media_errors} media and data integrity errors are new"
        ));
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A drive that is well, and has lost data some time ago.
    const WELL: SmartLog = SmartLog {
        temperature: 311,
        available_spare: 10,
        available_spare_threshold: 10,
        percentage_used: 89,
        media_errors: 3,
        unsafe_shutdowns: 5,
        power_on_hours: u128::MAX,
        ..blank()
    };

    const fn blank() -> SmartLog {
        SmartLog {
            critical_warning: 0,
            temperature: 0,
            available_spare: 0,
            available_spare_threshold: 0,
            percentage_used: 0,
            endurance_group_warning: 0,
            data_units_read: 0,
            data_units_written: 0,
            host_read_commands: 0,
            host_write_commands: 0,
            controller_busy_minutes: 0,
            power_cycles: 0,
            power_on_hours: 0,
            unsafe_shutdowns: 0,
            media_errors: 0,
            error_log_entries: 0,
            warning_temperature_minutes: 0,
            critical_temperature_minutes: 0,
            temperature_sensors: [0; 8],
            thermal_transitions: [0; 2],
            thermal_seconds: [0; 2],
        }
    }

    #[test]
    fn a_drive_that_is_well_has_no_warning_and_its_figures_are_told() {
        let health = DriveHealth::new(&WELL, 0);
        let told = serde_json::to_value(&health).expect("JSON");
        let promised = serde_json::json!({
            "warnings": [],
            "critical_warning": 0,
            "composite_temperature_celsius": 38,
            "available_spare_percent": 10,
            "available_spare_threshold_percent": 10,
            "percentage_used": 89,
            "media_and_data_integrity_errors": 3,
            "new_media_and_data_integrity_errors": 0,
            "unsafe_shutdowns": 5,
            "power_on_hours": u64::MAX,
        });
        assert_eq!(told, promised);
    }

    #[test]
    fn a_drive_warns_of_each_thing_that_goes_wrong() {
        let warned = |log: &SmartLog, new: u64| DriveHealth::new(log, new).warnings.join("; ");
        let worn = |percentage_used: u8| SmartLog {
            percentage_used,
            ..WELL
        };
        assert!(warned(&worn(90), 0).contains("90 % of its life"));
        assert!(warned(&worn(100), 0).contains("used up: 100 %"));
        assert!(warned(&worn(255), 0).contains("used up: 255 %"));
        let log = SmartLog {
            available_spare: 9,
            ..WELL
        };
        assert!(warned(&log, 0).contains("9 % of its spare capacity"));
        let log = SmartLog {
            critical_warning: 4,
            ..WELL
        };
        assert!(warned(&log, 0).contains("reliability"));
        let hot = SmartLog {
            critical_warning: 2,
            ..WELL
        };
        assert!(DriveHealth::new(&hot, 0).is_hot_only());
        assert!(!DriveHealth::new(&hot, 1).is_hot_only());
        assert!(warned(&WELL, 2).contains("2 media and data"));
    }
}
