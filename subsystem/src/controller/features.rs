//! The feature values of one controller, as its host set them.
//!
//! Guarantee: a controller reset brings the saved values back, and the defaults where none was saved.

use std::time::Instant;

use nvme::features::{FeatureId, HostBehavior};

use super::saved_features::Values;
use crate::limits::Limits;

/// The temperature threshold after a reset, in kelvin: no warning, as the specification sets it.
const TEMPERATURE_THRESHOLD: u16 = 0xffff;

/// The values that a host can set, of one controller.
#[derive(Clone, Debug, Default)]
pub(crate) struct FeatureState {
    /// Those that are one dword.
    pub(crate) current: Values,
    pub(crate) saved: Values,
    /// Feature 07h: I/O queues that were granted, once the host has asked.
    pub(crate) granted_queues: Option<u16>,
    /// Feature 0Eh: what the host set, and when.
    pub(crate) timestamp: Option<(u64, Instant)>,
    /// Feature 16h.
    pub(crate) host_behavior: HostBehavior,
}

impl FeatureState {
    /// As after Connect.
    pub(crate) fn starting_with(saved: Values) -> Self {
        Self {
            current: saved.clone(),
            saved,
            ..Self::default()
        }
    }

    /// The source range formats of Copy that the host enabled, as bits.
    pub(crate) fn copy_formats(&self) -> u16 {
        self.host_behavior.copy_formats
    }

    /// As after a reset.
    pub(crate) fn reset(&self) -> Self {
        Self::starting_with(self.saved.clone())
    }

    /// The highest I/O queue identifier that may connect.
    pub(crate) fn io_queues(&self, limits: &Limits) -> u16 {
        self.granted_queues.unwrap_or(limits.io_queues)
    }

    /// Feature 06h: whether writes may be answered before they are durable.
    pub(crate) fn write_cache(&self) -> bool {
        self.current.of(FeatureId::VolatileWriteCache) & 1 != 0
    }

    /// Feature 16h: whether the host honours retry delays (ACRE).
    pub(crate) fn takes_retry_delays(&self) -> bool {
        self.host_behavior.retry_delays
    }

    /// The saved value of feature 0Bh.
    pub(crate) fn saved_events(&self) -> u32 {
        self.saved.of(FeatureId::AsyncEventConfig)
    }
}

/// The default value of a feature of one dword.
pub(super) fn default_of(id: FeatureId) -> u32 {
    match id {
        FeatureId::VolatileWriteCache => 1,
        FeatureId::TemperatureThreshold => u32::from(TEMPERATURE_THRESHOLD),
        _ => 0,
    }
}
