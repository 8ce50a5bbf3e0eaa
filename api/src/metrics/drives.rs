//! What drives tell of their own health. A drive that tells nothing has no sample.

use std::collections::BTreeMap;
use std::fmt;

use super::page::{Labels, Page, celsius, plain, seconds};
use crate::drive_health::DriveHealth;

const SECONDS_PER_HOUR: u64 = 3600;

pub(super) fn health(page: &mut Page<'_>, all: &BTreeMap<String, DriveHealth>) -> fmt::Result {
    let of = |figure: fn(&DriveHealth) -> u64| {
        let drives = all.iter();
        drives.map(move |(drive, health)| (labels(drive), figure(health)))
    };
    let ratio = |percent: fn(&DriveHealth) -> u8| {
        let drives = all.iter();
        drives.map(move |(drive, health)| (labels(drive), f64::from(percent(health)) / 100.0))
    };
    page.gauges(
        plain(
            "drive_warning",
            "Whether a drive tells that it may fail soon: 1, or 0 if it is well",
        ),
        of(|health| u64::from(!health.warnings.is_empty())),
    )?;
    page.gauges(
        plain(
            "drive_critical_warning_bits",
            "The critical warning of a drive's SMART log, as a number; 0 if it is well",
        ),
        of(|health| u64::from(health.critical_warning)),
    )?;
    let temperatures = all.iter().filter_map(|(drive, health)| {
        let degrees = health.composite_temperature_celsius?;
        Some((labels(drive), f64::from(degrees)))
    });
    page.gauges(
        celsius("drive_temperature", "The composite temperature of a drive"),
        temperatures,
    )?;
    page.gauges(
        plain(
            "drive_available_spare_ratio",
            "Spare capacity of a drive that is left",
        ),
        ratio(|health| health.available_spare_percent),
    )?;
    page.gauges(
        plain(
            "drive_available_spare_threshold_ratio",
            "The spare capacity below which a drive warns",
        ),
        ratio(|health| health.available_spare_threshold_percent),
    )?;
    page.gauges(
        plain(
            "drive_used_ratio",
            "How much of a drive's life is used, as its maker foresaw it; it may exceed 1",
        ),
        ratio(|health| health.percentage_used),
    )?;
    page.counters(
        plain(
            "drive_media_errors",
            "Data that a drive could not return as they were written, in its life",
        ),
        of(|health| health.media_and_data_integrity_errors),
    )?;
    page.counters(
        plain(
            "drive_unsafe_shutdowns",
            "Losses of power without notice, in a drive's life",
        ),
        of(|health| health.unsafe_shutdowns),
    )?;
    page.counters(
        seconds("drive_power_on", "How long a drive had power, in its life"),
        of(|health| health.power_on_hours.saturating_mul(SECONDS_PER_HOUR)),
    )
}

fn labels(drive: &str) -> Labels<'_> {
    vec![("drive", drive)]
}
