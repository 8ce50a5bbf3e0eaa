//! Results of TLS handshakes, and the keys that authentications made.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fabric::TlsSession;
use fabric::serving::auth::Attempts;
use nvme::auth::PskIdentity;
use serde::{Deserialize, Serialize};

use super::generated::GeneratedKeys;

/// The state of TLS handshakes of a target.
pub(crate) struct Handshakes {
    pub(crate) generated: GeneratedKeys,
    pub(crate) attempts: Attempts<IpAddr>,
    pub(crate) succeeded: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) held_off: AtomicU64,
    pub(crate) refused: AtomicU64,
}

/// Results of TLS handshakes since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TlsFigures {
    /// Queues that connected by TLS.
    pub succeeded: u64,
    /// Handshakes that failed, and hosts that connected without TLS where it is required.
    pub failed: u64,
    /// Connections closed because of earlier failures from their address.
    pub held_off: u64,
    /// Connect commands refused because they are about another host or subsystem than the key is for.
    pub refused: u64,
}

impl Handshakes {
    pub(crate) fn new(failures_max: u32, window: Duration, patience: Duration) -> Self {
        Self {
            generated: GeneratedKeys::new(patience),
            attempts: Attempts::new(failures_max, window),
            succeeded: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            held_off: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }

    pub(crate) fn figures(&self) -> TlsFigures {
        TlsFigures {
            succeeded: self.succeeded.load(Ordering::Relaxed),
            failed: self.failed.load(Ordering::Relaxed),
            held_off: self.held_off.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
        }
    }
}

/// Whether an authentication made the session's key: then the host need not authenticate again.
pub(crate) fn is_generated(session: &TlsSession) -> bool {
    PskIdentity::parse(&session.identity).is_some_and(|identity| identity.generated)
}
