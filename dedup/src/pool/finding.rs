//! What a check found.

use serde::{Deserialize, Serialize};

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckFinding {
    /// Which part of the pool: a drive, the journal, the metadata.
    pub object: String,
    /// What is wrong with it.
    pub detail: String,
}
