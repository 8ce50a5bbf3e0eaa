//! What all nodes of one pool of a cluster know together: one object with a text, which is replaced as a whole by who has read the one
//! before.
//!
//! Only the program knows what the text means. Who owns a drive and which nodes offer it is asked of the drive itself ([`owner`],
//! [`nodes`](Registry::nodes)), so a text that is late misleads nobody.
//!
//! Guarantee: of two that replace the same text one does, and the other one is told.
//!
//! [`owner`]: Registry::owner

use drives::nodes::{Described, OtherNode, Ownership, Process};
use std::sync::Arc;

use drives::{DriveError, ErrorKind};
use uuid::Uuid;

use crate::address::RadosAddress;
use crate::client::{Change, Client, Cluster, Errno};
use crate::header::REVISION;
use crate::librados::Ceph;
use crate::options::Limits;
use crate::seen::{nodes_of, ownership, read_described};
use crate::shared::{caps_of, times, told};

/// The object. No object of a drive is called that: each has the drive's name and a kind in it.
const OBJECT: &str = "onefold.registry";

/// Bytes of the text at most.
pub const REGISTRY_BYTES_MAX: usize = 4 << 20;

/// How often a text is read again that was replaced while it was read.
const READS_MAX: u32 = 10;

/// See the module. Its calls block, and are not for reactors.
pub struct Registry {
    /// In messages.
    name: String,
    caps: String,
    limits: Limits,
    client: Arc<dyn Client>,
    process: Process,
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Registry").field(&self.name).finish()
    }
}

impl Registry {
    /// That of the pool which the address names; it names a drive too, which need not be there.
    ///
    /// # Errors
    /// The cluster is not there.
    pub fn open(address: RadosAddress, limits: Limits) -> Result<Self, DriveError> {
        let (name, pool) = (address.to_string(), address.pool().to_owned());
        let caps = caps_of(address.user(), address.pool());
        let client = Ceph(address).connect(times(&limits));
        let client =
            client.map_err(|refusal| DriveError::new(refusal.kind, &name, refusal.text))?;
        Ok(Self::of(client, &pool, caps, limits, Process::own()))
    }

    pub(crate) fn of(
        client: Arc<dyn Client>,
        pool: &str,
        caps: String,
        limits: Limits,
        process: Process,
    ) -> Self {
        Self {
            name: format!("rados:{pool}"),
            caps,
            limits,
            client,
            process,
        }
    }

    fn failed(&self, errno: Errno) -> DriveError {
        let told = told(errno, &self.caps, &self.limits);
        let text = format!("what its nodes know together (the object '{OBJECT}'): {told}");
        DriveError::new(ErrorKind::Io, &self.name, text)
    }

    /// The text, if it is of another revision than the one that is known. Before anybody has written one, and when
    /// the object was removed, text and revision are empty.
    ///
    /// # Errors
    /// The cluster does not say, or the text is replaced all the time.
    pub fn read(&self, known: Option<&[u8]>) -> Result<Option<Described>, DriveError> {
        for _ in 0..READS_MAX {
            let read = read_described(&*self.client, OBJECT, known, REGISTRY_BYTES_MAX);
            if let Some(read) = read.map_err(|errno| self.failed(errno))? {
                return Ok(Some(read));
            }
            let now = revision(&*self.client).map_err(|errno| self.failed(errno))?;
            if Some(&now[..]) == known {
                return Ok(None);
            }
            if now.is_empty() {
                return Ok(Some(Described {
                    revision: now,
                    text: Vec::new(),
                }));
            }
        }
        let text = format!("the object '{OBJECT}' is replaced all the time: try again");
        Err(DriveError::new(ErrorKind::InUse, &self.name, text))
    }

    /// Replaces the text of that revision; false if it is another one by now.
    ///
    /// # Errors
    /// It has more than [`REGISTRY_BYTES_MAX`], or the cluster does not do it.
    pub fn replace(&self, revision: &[u8], text: &[u8]) -> Result<bool, DriveError> {
        if text.len() > REGISTRY_BYTES_MAX {
            let text = format!(
                "the object '{OBJECT}' would have more than {REGISTRY_BYTES_MAX} bytes: forget pools that are gone"
            );
            return Err(DriveError::new(ErrorKind::Invalid, &self.name, text));
        }
        let next = Uuid::new_v4().to_string();
        let changes = [
            Change::Expect(REVISION, revision),
            Change::Replace(text),
            Change::Set(REVISION, next.as_bytes()),
        ];
        let mut changed = self.client.change_now(OBJECT, &changes);
        if changed == Err(Errno::NOT_FOUND) {
            self.make().map_err(|errno| self.failed(errno))?;
            changed = self.client.change_now(OBJECT, &changes);
        }
        match changed {
            Err(Errno::NOT_AS_EXPECTED) => Ok(false),
            changed => changed.map(|()| true).map_err(|errno| self.failed(errno)),
        }
    }

    /// Makes the object. What is not there cannot be compared.
    fn make(&self) -> Result<(), Errno> {
        let cookie = self.process.to_string();
        match self.client.lock(OBJECT, &cookie, self.limits.lease) {
            // Another node makes it at this moment.
            Err(Errno::BUSY) => Ok(()),
            Err(error) => Err(error),
            Ok(()) => {
                // Best effort: it ends by itself.
                let _ = self.client.unlock(OBJECT, &cookie);
                Ok(())
            }
        }
    }

    /// Who owns a drive of the pool.
    ///
    /// # Errors
    /// The cluster does not say.
    pub fn owner(&self, drive: &str) -> Result<Ownership, DriveError> {
        ownership(&*self.client, drive, &self.process).map_err(|errno| self.failed(errno))
    }

    /// The nodes that offer the pool with that first drive.
    ///
    /// # Errors
    /// The cluster does not say.
    pub fn nodes(&self, drive: &str) -> Result<Vec<OtherNode>, DriveError> {
        nodes_of(&*self.client, drive).map_err(|errno| self.failed(errno))
    }
}

/// The text's revision; empty before there is one.
fn revision(client: &dyn Client) -> Result<Vec<u8>, Errno> {
    match client.attribute(OBJECT, REVISION) {
        Err(error) if error.is_missing() => Ok(Vec::new()),
        read => read,
    }
}
