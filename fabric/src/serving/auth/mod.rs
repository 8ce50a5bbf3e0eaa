//! A target's side of DH-HMAC-CHAP in band (NVMe Base 2.0, section 8.13), whoever serves the queue.
//!
//! A host with a secret has to prove that it knows the secret, on every queue, before anything else. It may ask the controller to
//! do the same, and may authenticate again at any time.
//!
//! Guarantees:
//! - A queue that has to authenticate accepts only Authentication Send and Receive, and Disconnect.
//! - A secret is looked up when an exchange begins. A new secret does not end queues that are authenticated.
//! - Exchanges are computed on helper threads, a bounded number at a time, so that no reactor waits. Each address has
//!   one permit at a time, and each queue a bounded number of exchanges a minute.
//! - Every failure is counted and logged with the host's address. After a few failures within a minute, Connect commands
//!   of that host from that address are refused for a while ([`AuthLimits`]).
//! - No secret is logged or shown.

mod attempts;
mod exchange;
mod permits;
mod queue_auth;

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use nvme::Nqn;
use nvme::auth::{Group, Hash, Secret};

pub use attempts::{Attempts, HeldOff};
pub use exchange::{
    Authenticating, WrongTransfer, check_receive, check_send, message, received, sent,
};
pub use permits::Permits;
pub use queue_auth::QueueAuth;

/// In the result of Connect: the host has to authenticate (AUTHREQ bit 1, ATR).
pub const AUTH_REQUIRED: u64 = 1 << 17;

/// Bounds on hosts that authenticate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuthLimits {
    /// How long a host may take to authenticate a queue.
    pub timeout: Duration,
    /// Failures of a host at an address within the window, after which it has to wait.
    pub failures_max: u32,
    /// The window of failures, and of exchanges.
    pub window: Duration,
    /// Exchanges of one queue within the window.
    pub exchanges_max: u32,
}

/// The secrets of a host, as a target has them.
pub trait HostSecrets: Send + Sync + 'static {
    /// The host's. A host without one cannot authenticate.
    fn secret(&self) -> Option<&Secret>;

    /// The controller's, for hosts that authenticate the controller too.
    fn controller_secret(&self) -> Option<&Secret>;

    /// Hashes to negotiate, the preferred one first; empty for all.
    fn hashes(&self) -> &[Hash];

    /// The same of Diffie-Hellman groups.
    fn groups(&self) -> &[Group];

    /// The hash to use with a host that offers these identifiers.
    fn choose_hash(&self, offered: &[u8]) -> Option<Hash> {
        let allowed = match self.hashes() {
            [] => &Hash::ALL,
            allowed => allowed,
        };
        let is_offered = |hash: &Hash| offered.contains(&hash.id());
        allowed.iter().copied().find(is_offered)
    }

    /// The group to use with a host that offers these identifiers.
    fn choose_group(&self, offered: &[u8]) -> Option<Group> {
        let allowed = match self.groups() {
            [] => &Group::ALL[..],
            allowed => allowed,
        };
        let is_offered = |group: &Group| offered.contains(&group.id());
        allowed.iter().copied().find(is_offered)
    }
}

/// Results since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AuthCounts {
    /// Queues that authenticated, each time they did.
    pub succeeded: u64,
    /// Exchanges that failed.
    pub failed: u64,
    /// Connect commands refused because of earlier failures.
    pub held_off: u64,
}

/// What all exchanges of a target share. Usable from every thread.
#[derive(Debug)]
pub struct Exchanges {
    limits: AuthLimits,
    attempts: Attempts<(IpAddr, Nqn)>,
    permits: Arc<Permits>,
    sequence: AtomicU32,
    succeeded: AtomicU64,
    failed: AtomicU64,
    held_off: AtomicU64,
}

impl Exchanges {
    /// Nobody has tried yet.
    #[must_use]
    pub fn new(limits: AuthLimits) -> Self {
        Self {
            attempts: Attempts::new(limits.failures_max, limits.window),
            permits: Arc::default(),
            sequence: AtomicU32::new(u32::from_le_bytes(random())),
            succeeded: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            held_off: AtomicU64::new(0),
            limits,
        }
    }

    /// The bounds.
    #[must_use]
    pub fn limits(&self) -> &AuthLimits {
        &self.limits
    }

    /// Whether this host failed so often lately that it has to wait, and how long.
    pub fn holds_off(&self, address: IpAddr, host: &Nqn) -> Option<HeldOff> {
        let holds_off = self.attempts.held_off(&(address, host.clone()));
        if holds_off.is_some() {
            self.held_off.fetch_add(1, Ordering::Relaxed);
        }
        holds_off
    }

    /// A host did not authenticate, or not in time; returns how often within the window. What is late counts as a failure, so
    /// that a machine which keeps connecting under another host's name and then says nothing is held off too.
    pub fn failed(&self, address: IpAddr, host: &Nqn) -> u32 {
        self.failed.fetch_add(1, Ordering::Relaxed);
        self.attempts.failed((address, host.clone()))
    }

    /// Results so far.
    pub fn counts(&self) -> AuthCounts {
        AuthCounts {
            succeeded: self.succeeded.load(Ordering::Relaxed),
            failed: self.failed.load(Ordering::Relaxed),
            held_off: self.held_off.load(Ordering::Relaxed),
        }
    }

    fn succeeded(&self, address: IpAddr, host: &Nqn) {
        self.succeeded.fetch_add(1, Ordering::Relaxed);
        self.attempts.succeeded(&(address, host.clone()));
    }

    /// A sequence number that no challenge had before; never 0, which means none.
    fn next_sequence(&self) -> u32 {
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
