//! Log pages that were made once for a controller, and that its host reads in pieces.

use std::sync::Arc;

/// What a controller has made.
#[derive(Debug, Default)]
pub(crate) struct Snapshots {
    pub(crate) telemetry: Option<Arc<[u8]>>,
    pub(crate) telemetry_generation: u8,
    pub(crate) persistent: Option<Arc<[u8]>>,
}

impl Snapshots {
    /// As after a reset; generations go on.
    pub(crate) fn clear(&mut self) {
        self.telemetry = None;
        self.persistent = None;
    }
}
