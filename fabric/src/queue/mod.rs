//! What every queue has, whatever carries it and whichever side it is.
//!
//! Guarantees: a queue that nobody holds closes; it ends once, for the reason that came first; a command that nobody
//! took before the end is dropped, with its memory.

mod capsule;
mod hold;
mod host;
mod info;
mod lifecycle;
mod outstanding;
mod submission;

pub(crate) use capsule::CapsuleData;
pub use capsule::{Capsule, Fetched, TransferError};
pub(crate) use hold::{Close, Holder};
pub use host::{HostData, HostError, HostQueueParams, QueueConnectError};
pub use info::{QueueInfo, QueueLimits};
pub(crate) use lifecycle::Lifecycle;
pub(crate) use outstanding::{Command, Commands, DEPTH_MAX, Outcome, Reply};
pub(crate) use submission::SubmissionQueue;
