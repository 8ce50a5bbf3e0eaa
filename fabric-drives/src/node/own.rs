//! What this node is to say to all drives.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use drives::nodes::Process;
use uuid::Uuid;

use super::entry::{NodeState, Said};
use crate::drained::Drained;

/// What the owner says of the pool.
#[derive(Debug)]
pub(super) struct Description {
    pub(super) pool: Uuid,
    pub(super) revision: u64,
    pub(super) text: Vec<u8>,
}

#[derive(Debug)]
struct Current {
    /// `None` until there is one.
    number: Option<u16>,
    said: Said,
    description: Option<Arc<Description>>,
    /// All that any table had of drained machines.
    drained: Drained,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Own {
    pub(super) node: Uuid,
    current: Mutex<Current>,
}

impl Own {
    pub(super) fn new(process: Process) -> Self {
        Self {
            node: Uuid::new_v4(),
            current: Mutex::new(Current {
                number: None,
                said: Said {
                    process,
                    state: NodeState::Standby,
                    says: Vec::new(),
                },
                description: None,
                drained: Drained::default(),
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn process(&self) -> Process {
        self.lock().said.process.clone()
    }

    pub(super) fn set_number(&self, number: Option<u16>) {
        self.lock().number = number;
    }

    pub(super) fn state(&self) -> NodeState {
        self.lock().said.state
    }

    pub(super) fn set_state(&self, state: NodeState) {
        self.lock().said.state = state;
    }

    pub(super) fn say(&self, text: &[u8]) {
        self.lock().said.says = text.to_vec();
    }

    pub(super) fn describe(&self, description: Description) {
        self.lock().description = Some(Arc::new(description));
    }

    pub(super) fn description(&self) -> Option<Arc<Description>> {
        self.lock().description.clone()
    }

    /// A table has that list of drained machines.
    pub(super) fn note_drained(&self, seen: &Drained) {
        self.lock().drained.merge(seen);
    }

    /// All that this node knows of drained machines.
    pub(super) fn drained(&self) -> Drained {
        self.lock().drained.clone()
    }

    /// Its number, if it has one, and its entry.
    pub(super) fn entry(&self) -> Option<(u16, Vec<u8>)> {
        let current = self.lock();
        Some((current.number?, current.said.to_bytes()))
    }
}
