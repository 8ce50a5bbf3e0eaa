//! Who a host is: in-band authentication by DH-HMAC-CHAP (Base 2.0, section 8.13), and the keys of TLS
//! ([`tls`]).
//!
//! A host for which a secret is kept has to prove that it knows it, on every queue, before anything else;
//! it may ask the same of the controller, and may do it again at any time. The discovery subsystem asks
//! nobody: what it shows is what the host may see in any case.
//!
//! Guarantees:
//! - A queue that has to authenticate takes nothing but Authentication Send and Receive, and Disconnect.
//! - A secret is looked up when an exchange begins: a new one counts from then on, and queues that are
//!   authenticated go on.
//! - Computing happens on a helper thread, a bounded number at a time: a reactor does not wait for it. An address
//!   has one turn at a time, and a queue begins a bounded number of exchanges a minute.
//! - Every failure is counted and logged with the host's address. After a few of them within a minute a host
//!   at an address is told to come later ([`Limits`]).
//! - No secret is logged or shown.

mod attempts;
pub mod config;
pub(crate) mod exchange;
mod generated;
pub mod tls;
mod turns;

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use nvme::Nqn;
use serde::{Deserialize, Serialize};

use attempts::{Attempts, HeldOff};
pub use config::HostAuth;
use turns::Turns;

use crate::catalog::HostConfig;
use crate::controller::Controller;
use crate::subsystem::{Limits, Target};

/// What the target knows of hosts' identities.
pub(crate) struct Auth {
    attempts: Attempts<(IpAddr, Nqn)>,
    pub(crate) tls: tls::Handshakes,
    turns: Arc<Turns>,
    sequence: AtomicU32,
    succeeded: AtomicU64,
    failed: AtomicU64,
    held_off: AtomicU64,
}

/// What became of authentications since the start.
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
            tls: tls::Handshakes::new(failures_max, window, limits.auth_timeout),
            turns: Arc::default(),
            sequence: AtomicU32::new(rand_u32()),
            succeeded: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            held_off: AtomicU64::new(0),
        }
    }

    /// Whether this host failed so often lately that it has to wait.
    pub(crate) fn holds_off(&self, address: IpAddr, host: &Nqn) -> Option<HeldOff> {
        let holds_off = self.attempts.held_off(&(address, host.clone()));
        if holds_off.is_some() {
            self.held_off.fetch_add(1, Ordering::Relaxed);
        }
        holds_off
    }

    /// A host did not authenticate in time, which counts as a failure: who connects by another's name again and again
    /// and says no more is held off too.
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

    /// A number that no challenge had before; never 0, which means none.
    fn next_sequence(&self) -> u32 {
        match self.sequence.fetch_add(1, Ordering::Relaxed) {
            0 => self.sequence.fetch_add(1, Ordering::Relaxed).max(1),
            sequence => sequence,
        }
    }
}

impl Target {
    /// What became of authentications so far.
    pub fn auth_figures(&self) -> AuthFigures {
        self.auth.figures()
    }

    /// The keys by which a host of that name has to authenticate.
    pub(crate) fn keys_of(&self, nqn: &Nqn) -> Option<Arc<HostConfig>> {
        let catalog = self.catalog();
        let host = catalog.hosts.get(nqn)?;
        host.auth.dhchap_secret.is_some().then(|| host.clone())
    }

    /// Whether the host has to authenticate on each queue of this controller. One that came by a key which an
    /// authentication made has done so.
    pub(crate) fn has_to_authenticate(&self, controller: &Controller) -> bool {
        !controller.tls.as_ref().is_some_and(tls::is_generated)
            && self.host_keys(controller).is_some()
    }

    /// The keys by which this controller's host has to authenticate; none if it need not.
    pub(crate) fn host_keys(&self, controller: &Controller) -> Option<Arc<HostConfig>> {
        if controller.is_discovery() {
            return None;
        }
        self.keys_of(&controller.host.nqn)
    }
}

/// Random bytes of the system.
pub(crate) fn random<const N: usize>() -> [u8; N] {
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
