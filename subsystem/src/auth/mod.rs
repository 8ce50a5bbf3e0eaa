//! The state of authentication: DH-HMAC-CHAP in band (Base 2.0, section 8.13), and TLS on NVMe/TCP.
//!
//! A host with a stored secret has to prove that it knows the secret, on every queue, before anything else. It may ask
//! the controller to do the same, and may authenticate again at any time. The discovery subsystem asks no host: it
//! shows only what the host may see anyway.
//!
//! Guarantees:
//! - A queue that has to authenticate accepts only Authentication Send and Receive, and Disconnect.
//! - A secret is looked up when an exchange begins. A new secret does not end queues that are authenticated.
//! - Exchanges are computed on helper threads, a bounded number at a time, so that no reactor waits. Each address has
//!   one permit at a time, and each queue a bounded number of exchanges a minute.
//! - Every failure is counted and logged with the host's address. After a few failures within a minute, Connect commands
//!   of that host from that address are refused for a while ([`Limits`]).
//! - No secret is logged or shown.

mod attempts;
mod generated;
mod handshakes;
mod permits;
pub(crate) mod queue_auth;

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use nvme::Nqn;
use serde::{Deserialize, Serialize};

use crate::limits::Limits;
use attempts::{Attempts, HeldOff};
use handshakes::Handshakes;
pub use handshakes::TlsFigures;
pub(crate) use handshakes::is_generated;
use permits::Permits;

/// The authentication state of a target.
pub(crate) struct Auth {
    pub(crate) attempts: Attempts<(IpAddr, Nqn)>,
    pub(crate) tls: Handshakes,
    pub(crate) permits: Arc<Permits>,
    sequence: AtomicU32,
    pub(crate) succeeded: AtomicU64,
    pub(crate) failed: AtomicU64,
    held_off: AtomicU64,
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
            attempts: Attempts::new(failures_max, window),
            tls: Handshakes::new(failures_max, window, limits.auth_timeout),
            permits: Arc::default(),
            sequence: AtomicU32::new(rand_u32()),
            succeeded: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            held_off: AtomicU64::new(0),
        }
    }

    /// Whether this host failed so often lately that it has to wait, and how long.
    pub(crate) fn holds_off(&self, address: IpAddr, host: &Nqn) -> Option<HeldOff> {
        let holds_off = self.attempts.held_off(&(address, host.clone()));
        if holds_off.is_some() {
            self.held_off.fetch_add(1, Ordering::Relaxed);
        }
        holds_off
    }

    /// A host did not authenticate in time. That counts as a failure, so that a machine which keeps connecting under
    /// another host's name and then says nothing is held off too.
    pub(crate) fn timed_out(&self, address: IpAddr, host: &Nqn) {
        self.failed.fetch_add(1, Ordering::Relaxed);
        self.attempts.failed((address, host.clone()));
    }

    pub(crate) fn figures(&self) -> AuthFigures {
        AuthFigures {
            succeeded: self.succeeded.load(Ordering::Relaxed),
            failed: self.failed.load(Ordering::Relaxed),
            held_off: self.held_off.load(Ordering::Relaxed),
        }
    }

    /// A sequence number that no challenge had before; never 0, which means none.
    pub(crate) fn next_sequence(&self) -> u32 {
        match self.sequence.fetch_add(1, Ordering::Relaxed) {
            0 => self.sequence.fetch_add(1, Ordering::Relaxed).max(1),
            sequence => sequence,
        }
    }
}

/// Random bytes of the system.
///
/// # Panics
/// The system gives none.
pub fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    if let Err(error) = getrandom::fill(&mut bytes) {
        // Nothing that is secret can be made without them.
        panic!("the system gives no random bytes: {error}");
    }
    bytes
}

fn rand_u32() -> u32 {
    u32::from_le_bytes(random())
}
