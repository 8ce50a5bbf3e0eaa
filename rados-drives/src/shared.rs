//! What all reactors that use one drive share: the client, who owns the drive, and what is in doubt.
//!
//! Guarantees: transfers in flight have [`ROOM_BYTES`] of memory together; what ended in doubt is fenced by a new client, which
//! shuts the old one out; who was shut out by another owner does nothing any more, and tells it once.

use drives::nodes::{Ownership, Process};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use drives::{BLOCK_BYTES, DriveError, ErrorKind, OnTakenOver};
use reactor::sync::Semaphore;
use uuid::Uuid;

use crate::client::{Client, Cluster, Errno, Refusal, Times};
use crate::deferred::{Deferred, NotRecovered, recover};
use crate::header::{DRIVE_BYTES_MAX, SIZE, Tenant, header_of, parse_size};
use crate::options::{Claim, Limits, OpenOptions};
use crate::owner::{Lease, NotTaken, Take, Wanted, take};
use crate::renewer::Renewer;
use crate::seen::ownership;

/// Bytes of transfers in flight.
pub(crate) const ROOM_BYTES: usize = 64 << 20;

/// What changes.
#[derive(Default)]
struct State {
    client: Option<Arc<dyn Client>>,
    tenant: Option<Tenant>,
    renewer: Option<Renewer>,
    /// This process shuts its client out, or has done so, and has no other one yet.
    is_fencing: bool,
    is_taken_over: bool,
}

pub(crate) struct Shared {
    pub(crate) name: String,
    /// The name of its objects.
    pub(crate) drive: String,
    pub(crate) header: String,
    pub(crate) blocks: u64,
    /// There was no header.
    pub(crate) is_new: bool,
    pub(crate) limits: Limits,
    pub(crate) room: Semaphore,
    /// What to do for a user that may not do something.
    caps: String,
    cluster: Arc<dyn Cluster>,
    process: Process,
    on_taken_over: Option<OnTakenOver>,
    state: Mutex<State>,
    /// Something that ended may still happen.
    pub(crate) is_in_doubt: Arc<AtomicBool>,
    pub(crate) deferred: Deferred,
    /// Held by who becomes the owner, or fences.
    claiming: futures_util::lock::Mutex<()>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Shared").field(&self.name).finish()
    }
}

/// How a drive is called, and where its objects are.
pub(crate) struct Names {
    /// In messages.
    pub(crate) name: String,
    /// In names of objects.
    pub(crate) drive: String,
    pub(crate) pool: String,
    pub(crate) user: String,
}

impl Shared {
    pub(crate) async fn open(
        names: Names,
        cluster: Arc<dyn Cluster>,
        options: OpenOptions,
        process: Process,
    ) -> Result<Arc<Self>, DriveError> {
        let Names {
            name,
            drive,
            pool,
            user,
        } = names;
        let header = header_of(&drive);
        let (connecting, of_header) = (cluster.clone(), header.clone());
        let times = times(&options.limits);
        let opened = reactor::unblock(move || {
            let client = connecting.connect(times)?;
            let size = client.attribute(&of_header, SIZE);
            let permitted = client.check_may_shut_out();
            Ok((client, size, permitted))
        });
        let opened: Result<_, Refusal> = opened.await;
        let error = |kind, text: String| DriveError::new(kind, &name, text);
        let (client, size, permitted) =
            opened.map_err(|refusal| error(refusal.kind, refusal.text))?;
        let caps = caps_of(&user, &pool);
        let size = match size {
            Ok(size) => Some(size),
            Err(error) if error.is_missing() => None,
            Err(errno) => return Err(error(ErrorKind::Io, told(errno, &caps, &options.limits))),
        };
        if let Err(Errno::NO_ACCESS | Errno::NOT_PERMITTED) = permitted {
            return Err(error(ErrorKind::Io, may_not_shut_out(&caps)));
        }
        let bytes = match (&size, options.create_bytes) {
            (Some(size), _) => parse_size(size).ok_or_else(|| {
                let text = format!("its header, the object '{header}', does not say how large it is: it is no drive of Onefold's");
                error(ErrorKind::Truncated, text)
            })?,
            (None, Some(bytes)) if bytes > DRIVE_BYTES_MAX => {
                let text = format!("a drive has at most {DRIVE_BYTES_MAX} bytes: give it a smaller size than {bytes}");
                return Err(error(ErrorKind::Invalid, text));
            }
            (None, Some(bytes)) => bytes - bytes % BLOCK_BYTES as u64,
            (None, None) => {
                let text = format!(
                    "there is no such drive in the pool '{pool}': name one that is there; where a new one is to be made it needs \
                     a size, such as {name}=1T"
                );
                return Err(error(ErrorKind::NotFound, text));
            }
        };
        Ok(Arc::new(Self {
            blocks: bytes / BLOCK_BYTES as u64,
            is_new: size.is_none(),
            name,
            drive,
            header,
            caps,
            limits: options.limits,
            room: Semaphore::new(ROOM_BYTES),
            cluster,
            process,
            on_taken_over: options.on_taken_over,
            state: Mutex::new(State {
                client: Some(client),
                ..State::default()
            }),
            is_in_doubt: Arc::default(),
            deferred: Deferred::default(),
            claiming: futures_util::lock::Mutex::default(),
        }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Each change is one assignment.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn error(&self, kind: ErrorKind, text: impl Into<String>) -> DriveError {
        DriveError::new(kind, &self.name, text)
    }

    /// The client that is used now.
    ///
    /// # Errors
    /// The drive was taken over, or cannot be used before it is fenced.
    pub(crate) fn client(&self) -> Result<Arc<dyn Client>, DriveError> {
        let state = self.state();
        match &state.client {
            _ if state.is_taken_over => Err(self.taken_over()),
            Some(client) if !state.is_fencing => Ok(client.clone()),
            _ => {
                let text = "what the cluster was told before may still happen, and it could not be stopped from that; it is tried again";
                Err(self.error(ErrorKind::Io, text))
            }
        }
    }

    /// The same, after a fence that is under way.
    pub(crate) async fn client_for_transfer(&self) -> Result<Arc<dyn Client>, DriveError> {
        let is_fencing = self.state().is_fencing;
        if is_fencing {
            drop(self.claiming.lock().await);
        }
        self.client()
    }

    fn taken_over(&self) -> DriveError {
        let text = "another process has taken the drive over, and the cluster takes nothing from this one any more: end it, and \
                    look for the one that has the pool now";
        self.error(ErrorKind::InUse, text)
    }

    /// A client was shut out. Returns when it is known by whom: a fence of this drive, which has another client then, or another owner.
    pub(crate) async fn was_shut_out(&self, client: &Arc<dyn Client>) {
        let _turn = self.claiming.lock().await;
        self.check_taken_over(client, Errno::SHUT_OUT);
    }

    /// Nothing goes by this client any more; if it is the present one, somebody else has the drive.
    pub(crate) fn check_taken_over(&self, client: &Arc<dyn Client>, error: Errno) {
        {
            let state = self.state();
            let is_it = |now: &Arc<dyn Client>| Arc::ptr_eq(now, client);
            if state.is_taken_over || state.is_fencing || !state.client.as_ref().is_some_and(is_it)
            {
                return;
            }
        }
        self.lose(error);
    }

    /// Somebody else has the drive, or had it.
    fn lose(&self, error: Errno) {
        if std::mem::replace(&mut self.state().is_taken_over, true) {
            return;
        }
        tracing::error!(drive = self.name, %error, "another process has taken the drive over");
        if let Some(on_taken_over) = &self.on_taken_over {
            on_taken_over(&self.name);
        }
    }

    /// What an error number means for a transfer that changes something, or does not.
    pub(crate) fn failed(&self, errno: Errno, is_change: bool) -> DriveError {
        let kind = match errno {
            Errno::NO_SPACE | Errno::NO_QUOTA => ErrorKind::NoSpace,
            _ => ErrorKind::Io,
        };
        let error = self.error(kind, told(errno, &self.caps, &self.limits));
        if is_change && matches!(errno, Errno::TIMED_OUT | Errno::ENDED) {
            self.is_in_doubt.store(true, Ordering::Release);
            return error.in_doubt();
        }
        error
    }

    /// See [`RadosDrive::owner`](crate::RadosDrive::owner).
    pub(crate) async fn owner(&self) -> Result<Ownership, DriveError> {
        let (client, drive, process) = (self.client()?, self.drive.clone(), self.process.clone());
        let seen = reactor::unblock(move || ownership(&*client, &drive, &process)).await;
        seen.map_err(|errno| self.failed(errno, false))
    }

    /// See [`RadosDrive::claim`](crate::RadosDrive::claim).
    pub(crate) async fn claim(
        self: &Arc<Self>,
        pool: Uuid,
        claim: Claim,
    ) -> Result<(), DriveError> {
        let _turn = self.claiming.lock().await;
        let client = self.client()?;
        let tenant = Tenant {
            pool,
            process: self.process.clone(),
        };
        let how = match claim {
            Claim::First | Claim::Again => Take::Free,
            Claim::Forced => Take::Forced,
        };
        self.take(client, tenant, how).await
    }

    /// See [`Drive::fence`](drives::Drive::fence).
    pub(crate) async fn fence(self: &Arc<Self>) -> Result<(), DriveError> {
        let _turn = self.claiming.lock().await;
        if !self.is_in_doubt.load(Ordering::Acquire) {
            return Ok(());
        }
        if self.state().is_taken_over {
            return Err(self.taken_over());
        }
        let Some(tenant) = self.state().tenant.clone() else {
            return Err(self.error(ErrorKind::Io, "it was written to before it was claimed"));
        };
        let (cluster, times) = (self.cluster.clone(), times(&self.limits));
        let connected = reactor::unblock(move || cluster.connect(times)).await;
        let client = connected.map_err(|refusal| self.error(refusal.kind, refusal.text))?;
        // From here on the old client may be told that it was shut out, by this process.
        self.state().is_fencing = true;
        let taken = self.take(client, tenant, Take::Own).await;
        if self.state().is_taken_over {
            return Err(self.taken_over());
        }
        taken?;
        self.is_in_doubt.store(false, Ordering::Release);
        Ok(())
    }

    /// Makes a client the owner's; waits for the end of the lease of an owner that may be gone.
    async fn take(
        self: &Arc<Self>,
        client: Arc<dyn Client>,
        tenant: Tenant,
        how: Take,
    ) -> Result<(), DriveError> {
        let deadline = reactor::now() + self.limits.lease + self.limits.grace;
        let owner = loop {
            let (taking, wanted, header) = (client.clone(), tenant.clone(), self.header.clone());
            let new_bytes = self.is_new.then_some(self.blocks * BLOCK_BYTES as u64);
            let lease = self.limits.lease;
            let taken = reactor::unblock(move || {
                let wanted = Wanted {
                    header: &header,
                    new_bytes,
                    tenant: &wanted,
                    take: how,
                    lease,
                };
                take(&*taking, &wanted)
            });
            match taken.await {
                Ok(owner) => break owner,
                Err(NotTaken::Held(_) | NotTaken::Race) if reactor::now() < deadline => {}
                Err(NotTaken::Lost) => {
                    self.lose(Errno::SHUT_OUT);
                    return Err(self.taken_over());
                }
                Err(error) => return Err(self.not_taken(error)),
            }
            reactor::sleep(self.limits.grace / 5).await;
        };
        tracing::info!(
            drive = self.name,
            epoch = owner.epoch,
            "the drive is this process's now"
        );
        if how != Take::Own
            && let Err(error) = self.recover(&client).await
        {
            let (header, cookie) = (self.header.clone(), tenant.to_string());
            // Best effort: it ends by itself.
            let _ = reactor::unblock(move || client.unlock(&header, &cookie)).await;
            return Err(error);
        }
        let (drive, lost) = (Arc::downgrade(self), client.clone());
        let renewer = Renewer::start(Lease {
            name: self.name.clone(),
            header: self.header.clone(),
            duration: self.limits.lease,
            room: self.room.clone(),
            is_in_doubt: self.is_in_doubt.clone(),
            client: client.clone(),
            owner,
            has_logged: self.deferred.has_logged.clone(),
            has_failed: false,
            lost: Box::new(move |error| {
                if let Some(drive) = drive.upgrade() {
                    drive.check_taken_over(&lost, error);
                }
            }),
        });
        let renewer = renewer.map_err(|error| self.error(ErrorKind::Io, error.to_string()))?;
        let before = {
            let mut state = self.state();
            state.client = Some(client);
            state.tenant = Some(tenant);
            state.is_fencing = false;
            state.renewer.replace(renewer)
        };
        if let Some(before) = before {
            before.stop();
        }
        Ok(())
    }

    /// Puts in place what an earlier owner has deferred.
    async fn recover(&self, client: &Arc<dyn Client>) -> Result<(), DriveError> {
        let (client, drive, header) = (client.clone(), self.drive.clone(), self.header.clone());
        let blocks = self.blocks;
        let recovered = reactor::unblock(move || recover(&*client, &drive, &header, blocks));
        match recovered.await {
            Ok(recovered) => {
                if recovered.blocks > 0 {
                    tracing::info!(
                        drive = self.name,
                        blocks = recovered.blocks,
                        "what the last owner deferred is in place"
                    );
                }
                self.deferred.go_on(recovered);
                Ok(())
            }
            Err(NotRecovered::Failed(errno)) => {
                Err(self.error(ErrorKind::Io, told(errno, &self.caps, &self.limits)))
            }
            Err(NotRecovered::Damaged(text)) => {
                let text = format!(
                    "{text}, so writes that were acknowledged are lost: look for damage of the cluster (`ceph health detail`), and                      restore the pool from a backup if there is no remedy"
                );
                Err(self.error(ErrorKind::Truncated, text))
            }
        }
    }

    fn not_taken(&self, error: NotTaken) -> DriveError {
        let remedy = "end it there, or wait until it is gone";
        match error {
            NotTaken::Alive(tenant) | NotTaken::Held(Some(tenant)) => {
                let (pool, node) = (tenant.pool, &tenant.process.node);
                let text = format!("the pool {pool} has it open on the machine '{node}': {remedy}");
                self.error(ErrorKind::InUse, text)
            }
            NotTaken::Held(None) => {
                let text = format!("another program has a lock on '{}': {remedy}", self.header);
                self.error(ErrorKind::InUse, text)
            }
            NotTaken::Race => {
                let text = format!("another process takes it at the same time: {remedy}");
                self.error(ErrorKind::InUse, text)
            }
            NotTaken::Lost => self.taken_over(),
            NotTaken::Damaged => {
                let text = format!(
                    "its header, the object '{}', does not say what it should, so nobody knows who wrote to the drive: if no \
                     process has it, remove the attribute onefold.owner (`rados rmxattr`)",
                    self.header
                );
                self.error(ErrorKind::Truncated, text)
            }
            NotTaken::Failed(errno) => {
                self.error(ErrorKind::Io, told(errno, &self.caps, &self.limits))
            }
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // The lock is given up before the client ends.
        drop(self.state().renewer.take());
    }
}

pub(crate) fn times(limits: &Limits) -> Times {
    Times {
        connect: limits.connect,
        command: limits.command,
    }
}

/// What to do for a user that may not do something.
pub(crate) fn caps_of(user: &str, pool: &str) -> String {
    format!(
        "let client.{user} do it: `ceph auth caps client.{user} mon 'profile rbd' osd 'allow rwx pool={pool}'`; this replaces the caps \
         that it has (`ceph auth get client.{user}`): add those that it needs besides"
    )
}

/// Told where a drive or a node is opened, so that nobody hears of it at the first takeover.
pub(crate) fn may_not_shut_out(caps: &str) -> String {
    format!(
        "the cluster does not permit this user to shut out who had the drive before (`ceph osd blocklist`), so that no node can take \
         the drive over: {caps}"
    )
}

/// What an error number means, with the remedy.
pub(crate) fn told(errno: Errno, caps: &str, limits: &Limits) -> String {
    match errno {
        Errno::NO_SPACE => {
            "the cluster is full; add OSDs, or remove something (`ceph df`)".to_owned()
        }
        Errno::NO_QUOTA => {
            "the pool's quota is used up; raise it (`ceph osd pool set-quota`)".to_owned()
        }
        Errno::NOT_PERMITTED | Errno::NO_ACCESS => {
            format!("the cluster does not permit it: {caps}")
        }
        Errno::TIMED_OUT => format!(
            "the cluster did not answer within {:?}: `ceph -s` says what it lacks",
            limits.command
        ),
        Errno::SHUT_OUT => {
            "the cluster takes nothing from this process any more (`ceph osd blocklist ls`)"
                .to_owned()
        }
        errno => format!("the cluster says: {errno}"),
    }
}
