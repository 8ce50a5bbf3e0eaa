//! The nodes that offer a pool to hosts: one owns its drives, and others wait for that.
//!
//! What they have to know of each other lies with the pool's first drive. A node has a number, which is the lock of an object; the
//! owner's description of the pool is the data of the drive's header.
//!
//! Guarantees:
//! - Two nodes with leases that are kept have different numbers.
//! - Only the owner describes the pool: the cluster compares who that is when the description is written.
//! - A node says nothing of itself before it is known that no other machine has its name.

use drives::nodes::{Described, NODES_MAX, OtherNode, Ownership, Process, Seen, check_name};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use drives::{DriveError, ErrorKind};

use crate::address::RadosAddress;
use crate::client::{Change, Client, Cluster, Errno};
use crate::header::{DESCRIPTION_BYTES_MAX, OWNER, Owner, REVISION, header_of, node_of};
use crate::librados::Ceph;
use crate::options::Limits;
use crate::registry::Registry;
use crate::renewer::{Kept, Renewer};
use crate::seen::{SAYS, keepers_of, nodes_of, ownership, read_described};
use crate::shared::{Names, caps_of, may_not_shut_out, times, told};

/// A node's number is renewed so many times while its lease lasts.
const RENEWALS: u32 = 4;

/// How much longer than a drive's lease that of a number is: a node that comes back soon finds its own.
const NUMBER_LEASES: u32 = 5;

/// Bytes of that at most, so that it is read as one attribute.
const SAYS_BYTES_MAX: usize = 4000;

/// This process among the nodes of a drive. Its calls block, and are not for reactors.
pub struct Node {
    name: String,
    drive: String,
    /// The cluster's pool.
    ceph_pool: String,
    header: String,
    caps: String,
    limits: Limits,
    process: Process,
    client: Arc<dyn Client>,
    number: u16,
    descriptions: AtomicU64,
    _number: Renewer,
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node")
            .field("drive", &self.name)
            .field("number", &self.number)
            .finish_non_exhaustive()
    }
}

impl Node {
    /// Becomes one of the nodes of the drive, which need not be there yet.
    ///
    /// # Errors
    /// The cluster does not answer ([`ErrorKind::Unreachable`]), or does not do it; there are [`NODES_MAX`] nodes, or one of another machine
    /// with the name of this one ([`ErrorKind::InUse`]).
    pub fn join(address: RadosAddress, limits: Limits) -> Result<Self, DriveError> {
        let names = Names {
            name: address.to_string(),
            drive: address.name().to_owned(),
            pool: address.pool().to_owned(),
            user: address.user().to_owned(),
        };
        Self::join_in(names, &Ceph(address), limits, Process::own())
    }

    pub(crate) fn join_in(
        names: Names,
        cluster: &dyn Cluster,
        limits: Limits,
        process: Process,
    ) -> Result<Self, DriveError> {
        let caps = caps_of(&names.user, &names.pool);
        let Names {
            name,
            drive,
            pool: ceph_pool,
            ..
        } = names;
        let error = |kind, text: String| DriveError::new(kind, &name, text);
        let client = cluster.connect(times(&limits));
        let client = client.map_err(|refusal| error(refusal.kind, refusal.text))?;
        if let Err(Errno::NO_ACCESS | Errno::NOT_PERMITTED) = client.check_may_shut_out() {
            return Err(error(ErrorKind::Io, may_not_shut_out(&caps)));
        }
        let lease = limits.lease * NUMBER_LEASES;
        let failed = |errno| {
            let kind = match errno {
                Errno::TIMED_OUT => ErrorKind::Unreachable,
                _ => ErrorKind::Io,
            };
            error(kind, told(errno, &caps, &limits))
        };
        let look = || keepers_of(&*client, &drive, lease).map_err(&failed);
        check_name(&name, &process, look)?;
        let found = free_number(&*client, &drive, &process, lease);
        let Some(number) = found.map_err(&failed)? else {
            let text =
                format!("{NODES_MAX} nodes offer it to hosts, and no more can: end one of them");
            return Err(error(ErrorKind::InUse, text));
        };
        let renewer = Renewer::start(Number {
            object: node_of(&drive, number),
            cookie: process.to_string(),
            client: client.clone(),
            lease,
            has_failed: false,
        });
        let renewer = renewer.map_err(|failed| error(ErrorKind::Io, failed.to_string()))?;
        // Another machine may have started at the same moment.
        check_name(&name, &process, look)?;
        Ok(Self {
            header: header_of(&drive),
            name,
            drive,
            ceph_pool,
            caps,
            limits,
            process,
            client,
            number,
            descriptions: AtomicU64::new(0),
            _number: renewer,
        })
    }

    /// Its number, from 0 to [`NODES_MAX`] - 1.
    #[must_use]
    pub fn number(&self) -> u16 {
        self.number
    }

    /// How long an owner that does not answer is taken for alive.
    #[must_use]
    pub fn lease(&self) -> Duration {
        self.limits.lease
    }

    fn failed(&self, errno: Errno) -> DriveError {
        let text = told(errno, &self.caps, &self.limits);
        DriveError::new(ErrorKind::Io, &self.name, text)
    }

    /// Who owns the drive.
    ///
    /// # Errors
    /// The cluster does not say.
    pub fn owner(&self) -> Result<Ownership, DriveError> {
        let seen = ownership(&*self.client, &self.drive, &self.process);
        seen.map_err(|errno| self.failed(errno))
    }

    /// What this node knows together with those of other pools.
    #[must_use]
    pub fn registry(&self) -> Registry {
        Registry::of(
            self.client.clone(),
            &self.ceph_pool,
            self.caps.clone(),
            self.limits.clone(),
            self.process.clone(),
        )
    }

    /// The name of its machine, as other nodes are told it.
    #[must_use]
    pub fn machine(&self) -> &str {
        &self.process.node
    }

    /// The name of the drive, in names of objects.
    #[must_use]
    pub fn drive(&self) -> &str {
        &self.drive
    }

    /// Describes the pool for other nodes, as its owner.
    ///
    /// # Errors
    /// It is too long, this process does not own the drive, or the cluster does not do it.
    pub fn describe(&self, description: &[u8]) -> Result<(), DriveError> {
        if description.len() > DESCRIPTION_BYTES_MAX {
            let text = format!(
                "{} bytes are said of its pool, and at most {DESCRIPTION_BYTES_MAX} can be",
                description.len()
            );
            return Err(DriveError::new(ErrorKind::Invalid, &self.name, text));
        }
        let not_owned = || {
            let text = "another process has the drive, and describes its pool";
            DriveError::new(ErrorKind::InUse, &self.name, text)
        };
        let owner = self.client.attribute(&self.header, OWNER);
        let owner = owner.map_err(|errno| self.failed(errno))?;
        let epoch = match Owner::parse(&owner) {
            Some(owner) if owner.tenant.process == self.process => owner.epoch,
            _ => return Err(not_owned()),
        };
        let number = self.descriptions.fetch_add(1, Ordering::Relaxed);
        let revision = format!("{epoch}.{number}");
        let changes = [
            Change::Expect(OWNER, &owner),
            Change::Replace(description),
            Change::Set(REVISION, revision.as_bytes()),
        ];
        match self.client.change_now(&self.header, &changes) {
            Err(Errno::NOT_AS_EXPECTED) => Err(not_owned()),
            changed => changed.map_err(|errno| self.failed(errno)),
        }
    }

    /// What the owner says of the pool, if that is another revision than the one that is known.
    ///
    /// # Errors
    /// The cluster does not say.
    pub fn description(&self, known: Option<&[u8]>) -> Result<Option<Described>, DriveError> {
        let read = read_described(&*self.client, &self.header, known, DESCRIPTION_BYTES_MAX);
        read.map_err(|errno| self.failed(errno))
    }

    /// Says something of itself to the other nodes, in at most 4,000 bytes.
    ///
    /// # Errors
    /// It is too long, or the cluster does not do it.
    pub fn say(&self, text: &[u8]) -> Result<(), DriveError> {
        if text.len() > SAYS_BYTES_MAX {
            let text = format!("a node says at most {SAYS_BYTES_MAX} bytes of itself");
            return Err(DriveError::new(ErrorKind::Invalid, &self.name, text));
        }
        let object = node_of(&self.drive, self.number);
        let said = self.client.change_now(&object, &[Change::Set(SAYS, text)]);
        said.map_err(|errno| self.failed(errno))
    }

    /// The other nodes that keep their numbers.
    ///
    /// # Errors
    /// The cluster does not say.
    pub fn others(&self) -> Result<Vec<OtherNode>, DriveError> {
        let mut others =
            nodes_of(&*self.client, &self.drive).map_err(|errno| self.failed(errno))?;
        others.retain(|other| other.number != self.number);
        Ok(others)
    }
}

/// The first number that nobody has; that of a process which ended on this machine is free.
fn free_number(
    client: &dyn Client,
    drive: &str,
    process: &Process,
    lease: Duration,
) -> Result<Option<u16>, Errno> {
    let cookie = process.to_string();
    for number in 0..NODES_MAX {
        let object = node_of(drive, number);
        match client.lock(&object, &cookie, lease) {
            Err(Errno::BUSY) => {}
            locked => return locked.map(|()| Some(number)),
        }
        let holder = client.holder(&object)?;
        let is_gone = |cookie: &str| {
            Process::parse(cookie).is_some_and(|process| process.seen() == Seen::Gone)
        };
        if let Some(holder) = holder.filter(|holder| is_gone(&holder.cookie)) {
            match client.break_lock(&object, &holder) {
                Err(error) if !error.is_missing() => return Err(error),
                _ => {}
            }
            match client.lock(&object, &cookie, lease) {
                Err(Errno::BUSY) => {}
                locked => return locked.map(|()| Some(number)),
            }
        }
    }
    Ok(None)
}

/// A number that is kept.
struct Number {
    object: String,
    cookie: String,
    client: Arc<dyn Client>,
    lease: Duration,
    has_failed: bool,
}

impl Kept for Number {
    fn period(&self) -> Duration {
        self.lease / RENEWALS
    }

    /// The lease of a drive tells of the same cluster.
    fn drive(&self) -> Option<String> {
        None
    }

    fn renew(&mut self) -> bool {
        let renewed = self.client.lock(&self.object, &self.cookie, self.lease);
        match renewed {
            Ok(()) => self.has_failed = false,
            Err(error) if !self.has_failed => {
                self.has_failed = true;
                tracing::warn!(
                    object = self.object, %error,
                    "the number of this node is not renewed: a host that is attached to two nodes with one number may refuse \
                     one of them"
                );
            }
            Err(_) => {}
        }
        renewed != Err(Errno::TIMED_OUT)
    }

    fn leave(&mut self) {
        // Best effort: it ends by itself.
        let _ = self.client.unlock(&self.object, &self.cookie);
    }
}
