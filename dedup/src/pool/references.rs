//! The guard of references: what a command took is given back on every way out but success.

use std::sync::Arc;

use meta::Pba;

use crate::pool::Shared;

/// References on stable blocks that a command holds, until a record of its own has them. Let go of it only when
/// the state is not locked.
pub(crate) struct References {
    shared: Arc<Shared>,
    blocks: Vec<Pba>,
}

impl References {
    /// The caller took one reference on each of these blocks.
    pub(crate) fn new(shared: &Arc<Shared>, blocks: Vec<Pba>) -> Self {
        Self {
            shared: shared.clone(),
            blocks,
        }
    }

    /// A record that has its range of the journal has them from here on.
    pub(crate) fn pass_on(mut self) {
        self.blocks.clear();
    }
}

impl Drop for References {
    fn drop(&mut self) {
        if !self.blocks.is_empty() {
            self.shared
                .state
                .share()
                .give_back_all(self.blocks.drain(..));
        }
    }
}
