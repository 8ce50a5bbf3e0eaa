//! The state of authentication: DH-HMAC-CHAP in band ([`fabric::serving::auth`]), and TLS on NVMe/TCP.
//!
//! A host with a stored secret has to prove that it knows the secret. The discovery subsystem asks no host: it shows only what
//! the host may see anyway.

mod generated;
mod handshakes;

use fabric::serving::auth::{AuthLimits, Exchanges};
use serde::{Deserialize, Serialize};

use crate::limits::Limits;
pub use fabric::serving::auth::random;
use handshakes::Handshakes;
pub use handshakes::TlsFigures;
pub(crate) use handshakes::is_generated;

/// The authentication state of a target.
pub(crate) struct Auth {
    pub(crate) exchanges: Exchanges,
    pub(crate) tls: Handshakes,
}

/// Results of authentications since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuthFigures {
    /// Queues that authenticated, each time they did.
    pub succeeded: u64,
    /// Exchanges that failed.
    pub failed: u64,
    /// Connect commands refused because of earlier failures.
    pub held_off: u64,
}

impl Auth {
    pub(crate) fn new(limits: &Limits) -> Self {
        let (failures_max, window) = (limits.auth_failures_max, limits.auth_failures_window);
        Self {
            exchanges: Exchanges::new(AuthLimits {
                timeout: limits.auth_timeout,
                failures_max,
                window,
                exchanges_max: limits.auth_exchanges_max,
            }),
            tls: Handshakes::new(failures_max, window, limits.auth_timeout),
        }
    }

    pub(crate) fn figures(&self) -> AuthFigures {
        let counts = self.exchanges.counts();
        AuthFigures {
            succeeded: counts.succeeded,
            failed: counts.failed,
            held_off: counts.held_off,
        }
    }
}
