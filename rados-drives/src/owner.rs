//! Who may write to a drive: one tenant at a time, by a lock with a lease on the drive's header, and by shutting out who had it
//! before.
//!
//! The lease only says whether an owner seems to live. What protects data is that the cluster refuses whatever an earlier owner
//! sends: its client's addresses are in the header, and who takes the drive puts them on the cluster's blocklist before it
//! writes itself. So an owner that slept, or was cut off, cannot change anything that its successor has seen; its next command
//! tells it so.
//!
//! Guarantees: a drive is taken from a living owner only by force; who owned it last is shut out before the header names the next
//! one, unless it left with nothing under way; of two that take it at the same time one does.

use drives::nodes::Seen;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use reactor::sync::Semaphore;

use crate::client::{Change, Client, Errno};
use crate::header::{OWNER, Owner, SIZE, Tenant};
use crate::renewer::Kept;

/// A lease is renewed so many times while it lasts.
const RENEWALS: u32 = 4;

/// How a drive is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Take {
    /// From nobody who lives.
    Free,
    /// From whoever has it.
    Forced,
    /// From an earlier client of the same opening.
    Own,
}

/// Why a drive was not taken.
pub(crate) enum NotTaken {
    /// It has an owner, which may be gone when its lease ends.
    Held(Option<Tenant>),
    /// It has an owner that is seen alive.
    Alive(Tenant),
    /// Somebody else takes it at this moment.
    Race,
    /// It was the taker's own, and somebody else had it since.
    Lost,
    /// The header says nothing that makes sense.
    Damaged,
    Failed(Errno),
}

impl From<Errno> for NotTaken {
    fn from(error: Errno) -> Self {
        Self::Failed(error)
    }
}

/// What is taken.
pub(crate) struct Wanted<'a> {
    pub(crate) header: &'a str,
    /// The drive's bytes, if there is no header.
    pub(crate) new_bytes: Option<u64>,
    pub(crate) tenant: &'a Tenant,
    pub(crate) take: Take,
    pub(crate) lease: Duration,
}

/// Takes the drive, or says why not. Blocks.
pub(crate) fn take(client: &dyn Client, wanted: &Wanted<'_>) -> Result<Owner, NotTaken> {
    lock(client, wanted)?;
    let taken = become_owner(client, wanted);
    if taken.is_err() {
        // Best effort: it ends by itself.
        let _ = client.unlock(wanted.header, &wanted.tenant.to_string());
    }
    taken
}

/// Locks the header. A lock of who is known to be gone is broken.
fn lock(client: &dyn Client, wanted: &Wanted<'_>) -> Result<(), NotTaken> {
    let cookie = wanted.tenant.to_string();
    match client.lock(wanted.header, &cookie, wanted.lease) {
        Err(Errno::BUSY) => {}
        locked => return Ok(locked?),
    }
    let Some(holder) = client.holder(wanted.header)? else {
        return Err(NotTaken::Race);
    };
    let tenant: Option<Tenant> = holder.cookie.parse().ok();
    let seen = tenant
        .as_ref()
        .map_or(Seen::Unknown, |tenant| tenant.process.seen());
    match (wanted.take, seen) {
        (Take::Forced, _) | (Take::Free, Seen::Gone) => {}
        (Take::Own, _) if holder.cookie == cookie => {}
        (Take::Own, _) => return Err(NotTaken::Lost),
        (_, Seen::Alive) => return Err(tenant.map_or(NotTaken::Race, NotTaken::Alive)),
        _ => return Err(NotTaken::Held(tenant)),
    }
    // Before anybody else can have the lock, and whether it became the owner or not.
    client.shut_out(&holder.address)?;
    match client.break_lock(wanted.header, &holder) {
        Err(error) if !error.is_missing() => return Err(error.into()),
        _ => {}
    }
    match client.lock(wanted.header, &cookie, wanted.lease) {
        Err(Errno::BUSY) => Err(NotTaken::Race),
        locked => Ok(locked?),
    }
}

/// Shuts out who owned the drive last, and writes the next one into the header.
fn become_owner(client: &dyn Client, wanted: &Wanted<'_>) -> Result<Owner, NotTaken> {
    match client.attribute(wanted.header, SIZE) {
        Err(error) if error.is_missing() => {
            let bytes = wanted.new_bytes.ok_or(NotTaken::Damaged)?.to_string();
            let set = [
                Change::Expect(SIZE, b""),
                Change::Set(SIZE, bytes.as_bytes()),
            ];
            changed(client.change_now(wanted.header, &set))?;
        }
        read => drop(read?),
    }
    let before = match client.attribute(wanted.header, OWNER) {
        Err(error) if error.is_missing() => Vec::new(),
        read => read?,
    };
    let last = match (Owner::parse(&before), before.is_empty(), wanted.take) {
        (Some(last), ..) => Some(last),
        (None, true, _) | (None, _, Take::Forced) => None,
        (None, false, _) => return Err(NotTaken::Damaged),
    };
    let is_own = |last: &Owner| last.tenant == *wanted.tenant;
    if wanted.take == Take::Own && !last.as_ref().is_some_and(is_own) {
        // Whoever had it may have left: what this process knows of the drive is old all the same.
        return Err(NotTaken::Lost);
    }
    let own = client.addresses();
    for address in last.iter().flat_map(|last| &last.addresses) {
        if !own.contains(address) {
            client.shut_out(address)?;
        }
    }
    let next = Owner {
        epoch: last.map_or(1, |last| last.epoch.saturating_add(1)),
        tenant: wanted.tenant.clone(),
        addresses: own.to_vec(),
        may_defer: true,
    };
    replace(client, wanted.header, &before, &next)?;
    Ok(next)
}

fn replace(client: &dyn Client, header: &str, before: &[u8], next: &Owner) -> Result<(), NotTaken> {
    let next = next.to_string();
    let set = [
        Change::Expect(OWNER, before),
        Change::Set(OWNER, next.as_bytes()),
    ];
    changed(client.change_now(header, &set))
}

fn changed(changed: Result<(), Errno>) -> Result<(), NotTaken> {
    changed.map_err(|error| match error {
        Errno::NOT_AS_EXPECTED => NotTaken::Race,
        error => NotTaken::Failed(error),
    })
}

/// The lease of an owner, which a [`Renewer`](crate::renewer::Renewer) keeps.
pub(crate) struct Lease {
    /// The drive, in messages.
    pub(crate) name: String,
    pub(crate) header: String,
    pub(crate) duration: Duration,
    /// All of it is free when nothing is under way.
    pub(crate) room: Semaphore,
    /// Something that ended may still happen.
    pub(crate) is_in_doubt: Arc<AtomicBool>,
    pub(crate) client: Arc<dyn Client>,
    pub(crate) owner: Owner,
    /// The next owner has to look for deferred writes.
    pub(crate) has_logged: Arc<AtomicBool>,
    /// The last renewal did.
    pub(crate) has_failed: bool,
    /// Told when somebody else has the drive.
    pub(crate) lost: Box<dyn Fn(Errno) + Send>,
}

impl Kept for Lease {
    fn period(&self) -> Duration {
        self.duration / RENEWALS
    }

    fn drive(&self) -> Option<String> {
        Some(self.name.clone())
    }

    fn renew(&mut self) -> bool {
        let cookie = self.owner.tenant.to_string();
        let renewed = self.client.lock(&self.header, &cookie, self.duration);
        match renewed {
            Ok(()) => self.has_failed = false,
            Err(error @ (Errno::SHUT_OUT | Errno::BUSY)) => {
                (self.lost)(error);
            }
            Err(error) if !self.has_failed => {
                self.has_failed = true;
                tracing::warn!(drive = self.name, %error, "the lease on the drive is not renewed");
            }
            Err(_) => {}
        }
        renewed != Err(Errno::TIMED_OUT)
    }

    /// Gives the lock up. If nothing is under way any more, the next owner need not shut this client out.
    fn leave(&mut self) {
        let is_under_way = self.room.free() < self.room.total();
        if !is_under_way && !self.is_in_doubt.load(Ordering::Acquire) {
            let left = Owner {
                addresses: Vec::new(),
                may_defer: self.has_logged.load(Ordering::Acquire),
                ..self.owner.clone()
            };
            let before = self.owner.to_string();
            let _ = replace(&*self.client, &self.header, before.as_bytes(), &left);
        }
        let _ = self
            .client
            .unlock(&self.header, &self.owner.tenant.to_string());
    }
}
