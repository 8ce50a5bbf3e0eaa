//! How a drive is opened and claimed.

use std::fmt;
use std::time::Duration;

use drives::OnTakenOver;

/// The times after which something is given up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How long a cluster's monitors may take to answer a new client.
    pub connect: Duration,
    /// How long a command may take. What takes longer is in doubt.
    pub command: Duration,
    /// How long an owner that does not answer is taken for alive: what it writes on the drive's lock.
    pub lease: Duration,
    /// How much longer than a lease who takes a drive waits for its end.
    pub grace: Duration,
}

impl Default for Limits {
    /// 10 s for the monitors; two minutes for a command, because a cluster that lost an OSD needs about half of one before it
    /// goes on (`osd_heartbeat_grace`, 20 s, and peering); a lease of 1.5 s, and 1 s more.
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            command: Duration::from_secs(120),
            lease: Duration::from_millis(1500),
            grace: Duration::from_secs(1),
        }
    }
}

/// How a [`RadosDrive`](crate::RadosDrive) is opened.
#[derive(Clone, Default)]
pub struct OpenOptions {
    /// The bytes of a drive that is not there yet; without them it has to be there.
    pub create_bytes: Option<u64>,
    /// Refuse a drive with fewer blocks: it is another one.
    pub expected_blocks: Option<u64>,
    /// Times.
    pub limits: Limits,
    /// What happens when the drive is taken over.
    pub on_taken_over: Option<OnTakenOver>,
}

impl fmt::Debug for OpenOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenOptions")
            .field("create_bytes", &self.create_bytes)
            .field("expected_blocks", &self.expected_blocks)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

/// From whom a drive may be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// The owner never wrote to the drive, and nobody else has it.
    First,
    /// The same, and it is taken from who has it.
    Forced,
    /// An earlier opening by the owner, here or elsewhere, may have left writes in doubt.
    Again,
}
