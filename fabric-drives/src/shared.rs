//! What all reactors that use one remote drive share: who it is, what may be lost, and who uses it.
//!
//! Guarantees: a namespace is open once in this process; losses that a flush has to tell are never forgotten before
//! [`forget_losses`].

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Instant;

use drives::{DriveError, ErrorKind, OnTakenOver};
use futures_util::future::join_all;
use nvme::Nqn;
use reactor::sync::Event;
use uuid::Uuid;

use crate::address::RemoteAddress;
use crate::facts::Facts;
use crate::keys::{KeyFolder, KeyKind, Keys};
use crate::link;
use crate::{Limits, OpenOptions};

/// The drives that are open in this process, by what identifies their namespaces.
static OPEN: Mutex<BTreeMap<String, Weak<Shared>>> = Mutex::new(BTreeMap::new());

/// A moment that is not before the start of this process.
static FIRST_OPENING: OnceLock<Instant> = OnceLock::new();

/// Numbers drives, so that a reactor finds its link to one.
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(0);

/// Locks also after a panic of another holder: everything here changes in one step.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes of one reactor that the target may have in a volatile cache only.
#[derive(Debug, Default)]
pub(crate) struct Dirt {
    /// Writes that completed.
    written: AtomicU64,
    /// So many of them are flushed.
    flushed: AtomicU64,
    /// The reactor uses the drive no more.
    is_over: AtomicBool,
}

impl Dirt {
    pub(crate) fn note_write(&self) {
        self.written.fetch_add(1, Ordering::AcqRel);
    }

    /// What a flush that begins now will have flushed.
    pub(crate) fn begin_flush(&self) -> u64 {
        self.written.load(Ordering::Acquire)
    }

    pub(crate) fn end_flush(&self, begun: u64) {
        self.flushed.fetch_max(begun, Ordering::AcqRel);
    }

    pub(crate) fn is_any(&self) -> bool {
        self.written.load(Ordering::Acquire) > self.flushed.load(Ordering::Acquire)
    }

    pub(crate) fn end(&self) {
        self.is_over.store(true, Ordering::Release);
    }
}

/// The reservation that is given up when nobody has the drive any more.
#[derive(Debug, Default)]
pub(crate) struct Reservation {
    /// Its key; 0 for none.
    key: AtomicU64,
    /// Of the Host Identifier that has it.
    generation: AtomicU64,
    /// Something is in doubt: it stays, so that the next opening can fence that.
    is_needed: AtomicBool,
    /// It stays until then in any case.
    kept_until: Mutex<Option<Instant>>,
}

impl Reservation {
    pub(crate) fn set(&self, key: u64, generation: u64) {
        self.generation.store(generation, Ordering::Release);
        self.key.store(key, Ordering::Release);
    }

    pub(crate) fn keep(&self, is_needed: bool) {
        self.is_needed.store(is_needed, Ordering::Release);
    }

    /// Somebody on another machine was shut out, and hears of it until then at the latest. Without a reservation it could write meanwhile.
    pub(crate) fn keep_until(&self, until: Instant) {
        *lock(&self.kept_until) = Some(until);
    }

    /// The key to release by an association of this generation; the first one that can do it gets it.
    pub(crate) fn take(&self, generation: u64) -> Option<u64> {
        let is_its = self.generation.load(Ordering::Acquire) == generation;
        let is_kept = lock(&self.kept_until).is_some_and(|until| Instant::now() < until);
        if !is_its || is_kept || self.is_needed.load(Ordering::Acquire) {
            return None;
        }
        Some(self.key.swap(0, Ordering::AcqRel)).filter(|key| *key != 0)
    }
}

/// A reactor that uses the drive.
#[derive(Debug)]
struct User {
    reactor: reactor::Handle,
    dirt: Arc<Dirt>,
}

/// What changes.
#[derive(Debug)]
pub(crate) struct State {
    /// Host Identifier of the associations that may be used now.
    pub(crate) host_id: [u8; 16],
    /// Counts the Host Identifiers that this opening has had. Associations of an earlier one are not used any more.
    pub(crate) generation: u64,
    /// Who claimed it.
    pub(crate) owner: Option<Uuid>,
    /// The reservation key of this opening; 0 before it has one.
    pub(crate) key: u64,
    /// All keys that this opening made since it claimed the namespace, and that may be registered.
    pub(crate) own_keys: Vec<u64>,
    /// Another opening by the owner has it.
    is_taken_over: bool,
    /// When it was looked whether another opening has the drive.
    pub(crate) looked_at: Option<Instant>,
    /// When the last association was lost whose commands may still happen.
    pub(crate) lost_at: Option<Instant>,
    /// Why the next flush has to fail.
    unflushed_loss: Option<String>,
    users: Vec<User>,
}

pub(crate) struct Shared {
    pub(crate) number: u64,
    pub(crate) name: String,
    pub(crate) address: RemoteAddress,
    pub(crate) host: Nqn,
    pub(crate) limits: Limits,
    pub(crate) key_folder: KeyFolder,
    on_taken_over: Option<OnTakenOver>,
    /// The kinds of keys that the first association had.
    key_kinds: OnceLock<Vec<KeyKind>>,
    facts: OnceLock<Facts>,
    state: Mutex<State>,
    /// Held by who changes the reservation.
    pub(crate) claiming: futures_util::lock::Mutex<()>,
    pub(crate) reservation: Arc<Reservation>,
    /// Nobody has the drive any more.
    pub(crate) closed: Event,
}

/// What the half of a Host Identifier that names a machine is derived for.
const MACHINE_CONTEXT: &str = "onefold fabric-drives 2026-11 machine in a host identifier";

/// The half of a Host Identifier that names the machine, by the name that it has for targets.
fn machine_half(host: &Nqn) -> [u8; 8] {
    let derived = blake3::derive_key(MACHINE_CONTEXT, host.as_str().as_bytes());
    let mut half = [0; 8];
    half.copy_from_slice(&derived[..8]);
    half
}

/// A Host Identifier that no opening has had: half of it names the machine, and half is random.
pub(crate) fn new_host_id(host: &Nqn) -> [u8; 16] {
    let mut id = Uuid::new_v4().into_bytes();
    // The random bits of the other half are all but two.
    id[..8].copy_from_slice(&machine_half(host));
    id
}

/// Whether an opening on that machine has made this Host Identifier.
pub(crate) fn is_of_machine(id: &[u8; 16], host: &Nqn) -> bool {
    id[..8] == machine_half(host)
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Shared").field(&self.name).finish()
    }
}

impl Shared {
    /// A drive that is not opened: nobody else in this process hears of it.
    pub(crate) fn new(address: RemoteAddress, options: OpenOptions) -> Self {
        let host_id = new_host_id(&options.host);
        Self {
            number: NEXT_NUMBER.fetch_add(1, Ordering::Relaxed),
            name: address.to_string(),
            address,
            host: options.host,
            limits: options.limits,
            key_folder: options.keys,
            on_taken_over: options.on_taken_over,
            key_kinds: OnceLock::new(),
            facts: OnceLock::new(),
            state: Mutex::new(State {
                host_id,
                generation: 0,
                owner: None,
                key: 0,
                own_keys: Vec::new(),
                is_taken_over: false,
                looked_at: None,
                lost_at: None,
                unflushed_loss: None,
                users: Vec::new(),
            }),
            claiming: futures_util::lock::Mutex::new(()),
            reservation: Arc::default(),
            closed: Event::new(),
        }
    }

    /// Opens the drive by this process.
    pub(crate) async fn open(
        address: RemoteAddress,
        options: OpenOptions,
    ) -> Result<Arc<Self>, DriveError> {
        FIRST_OPENING.get_or_init(Instant::now);
        let shared = Arc::new(Self::new(address, options));
        let link = link::of(&shared)?;
        link.live_once(&shared).await?;
        tracing::info!(
            drive = shared.name,
            keys = shared.kinds_told(),
            "connected to the drive's target"
        );
        // What an earlier process wrote may be in the target's cache: the first flush is for that.
        link.dirt().note_write();
        shared.register()?;
        Ok(shared)
    }

    /// Refuses a namespace that is open already.
    fn register(self: &Arc<Self>) -> Result<(), DriveError> {
        let mut open = lock(&OPEN);
        let other = open.get(&self.identifier()).and_then(Weak::upgrade);
        if let Some(other) = other {
            let text = format!(
                "is the namespace that is open already as {}: name another one",
                other.name
            );
            return Err(self.error(ErrorKind::InUse, text));
        }
        open.insert(self.identifier(), Arc::downgrade(self));
        Ok(())
    }

    /// What identifies the namespace, whatever address leads there.
    fn identifier(&self) -> String {
        match self.facts.get() {
            Some(facts) if facts.identity.is_known() => facts.identity.to_string(),
            _ => self.name.clone(),
        }
    }

    /// What was found when it was opened.
    pub(crate) fn facts(&self) -> &Facts {
        // Set by the first association, without which there is no drive.
        self.facts.get().expect("an open drive was connected once")
    }

    /// Takes what a new association found, if it is the first one, or compares it.
    pub(crate) fn check(&self, found: Facts) -> Result<(), DriveError> {
        if let Some(unusable) = found.unusable() {
            return Err(self.error(ErrorKind::Invalid, unusable));
        }
        let now = found.clone();
        match self.facts.get_or_init(|| found).changed(&now) {
            None => Ok(()),
            Some(changed) => Err(self.error(ErrorKind::Truncated, changed)),
        }
    }

    /// The keys for the target, as they are now.
    ///
    /// # Errors
    /// One cannot be used, or is gone that this opening began with: without it the connection would be less safe.
    pub(crate) async fn keys(&self) -> Result<Keys, DriveError> {
        let (folder, host) = (self.key_folder.clone(), self.host.clone());
        let subsystem = self.address.subsystem().clone();
        let read = reactor::unblock(move || folder.read(&host, &subsystem)).await;
        let keys = read.map_err(|why| self.error(ErrorKind::Invalid, why))?;
        let first = self.key_kinds.get_or_init(|| keys.kinds().collect());
        match first.iter().find(|kind| !keys.has(**kind)) {
            None => Ok(keys),
            Some(gone) => {
                let text = format!(
                    "the key {} is gone, by which the drive was reached before: put it back; to go on without it, start the \
                     daemon again",
                    self.key_file(*gone)
                );
                Err(self.error(ErrorKind::Invalid, text))
            }
        }
    }

    /// The kinds of keys that connections have, for people.
    fn kinds_told(&self) -> String {
        let kinds = self.key_kinds.get().map_or(&[][..], Vec::as_slice);
        match kinds.is_empty() {
            true => "none".to_owned(),
            false => kinds
                .iter()
                .map(|kind| kind.name())
                .collect::<Vec<_>>()
                .join(" "),
        }
    }

    /// The file of a key for the target.
    pub(crate) fn key_file(&self, kind: KeyKind) -> String {
        let file = self.key_folder.file(self.address.subsystem(), kind);
        file.display().to_string()
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    pub(crate) fn error(&self, kind: ErrorKind, text: impl Into<String>) -> DriveError {
        DriveError::new(kind, &self.name, text)
    }

    /// Another opening by the owner has the namespace: whoever is to know is told, once.
    pub(crate) fn lose(&self) {
        if std::mem::replace(&mut self.state().is_taken_over, true) {
            return;
        }
        tracing::error!(
            drive = self.name,
            "another process has taken the drive over"
        );
        // It is that one's.
        self.reservation.keep(true);
        if let Some(on_taken_over) = &self.on_taken_over {
            on_taken_over(&self.name);
        }
    }

    /// A moment that is not before the start of this process.
    pub(crate) fn process_began(&self) -> Instant {
        *FIRST_OPENING.get_or_init(Instant::now)
    }

    pub(crate) fn add_user(&self, dirt: &Arc<Dirt>) {
        if let Some(reactor) = reactor::current() {
            let user = User {
                reactor,
                dirt: dirt.clone(),
            };
            self.state().users.push(user);
        }
    }

    /// An association of a reactor was lost, with commands in doubt if some were under way that change the drive.
    pub(crate) fn note_loss(&self, dirt: &Dirt, is_in_doubt: bool) {
        let is_cached = self.facts.get().is_some_and(|facts| facts.has_cache);
        let mut state = self.state();
        if is_in_doubt {
            state.lost_at = Some(Instant::now());
            self.reservation.keep(true);
        }
        if is_cached && dirt.is_any() && state.unflushed_loss.is_none() {
            state.unflushed_loss = Some("the connection was lost".to_owned());
        }
    }

    /// A flush failed: what it should have made durable may be gone by the time of the next one.
    pub(crate) fn note_failed_flush(&self, why: &DriveError) {
        self.state()
            .unflushed_loss
            .get_or_insert_with(|| why.to_string());
    }

    fn check_losses(&self) -> Result<(), DriveError> {
        let Some(why) = self.state().unflushed_loss.clone() else {
            return Ok(());
        };
        let text = format!(
            "what was written before and not flushed may be lost ({why}): take the drive offline and online again, or \
             start the daemon again, which proves what is there"
        );
        Err(self.error(ErrorKind::Io, text))
    }

    pub(crate) async fn flush(self: &Arc<Self>) -> Result<(), DriveError> {
        self.check_losses()?;
        if !self.facts().has_cache {
            return Ok(());
        }
        let own = link::of(self)?;
        let mut others = Vec::new();
        let mut is_own = own.dirt().is_any();
        {
            let mut state = self.state();
            // What a reactor wrote that has ended is flushed by this one: its association ended in order.
            state.users.retain(|user| {
                let is_over = user.dirt.is_over.load(Ordering::Acquire);
                if is_over && user.dirt.is_any() {
                    own.dirt().note_write();
                    is_own = true;
                }
                !is_over
            });
            let dirty = state.users.iter().filter(|user| user.dirt.is_any());
            for user in dirty.filter(|user| !Arc::ptr_eq(&user.dirt, own.dirt())) {
                let shared = self.clone();
                others.push(user.reactor.spawn(move || async move {
                    let link = link::of(&shared)?;
                    link.flush(&shared).await
                }));
            }
        }
        let own = async {
            match is_own {
                true => own.flush(self).await,
                false => Ok(()),
            }
        };
        let (own, others) = futures_util::join!(own, join_all(others));
        let others = others.into_iter().map(|ended| {
            ended.unwrap_or_else(|_| {
                Err(self.error(
                    ErrorKind::Io,
                    "a thread that wrote to it has ended during a flush",
                ))
            })
        });
        for result in std::iter::once(own).chain(others) {
            if let Err(error) = result {
                self.note_failed_flush(&error);
                return Err(error);
            }
        }
        self.check_losses()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.closed.set();
        let mut open = lock(&OPEN);
        let identifier = self.identifier();
        if open
            .get(&identifier)
            .is_some_and(|other| other.strong_count() == 0)
        {
            open.remove(&identifier);
        }
    }
}

/// Flushes of the drive at `path` may succeed again, whatever was lost before: who calls this compares, or writes again, all
/// that the drive should have, as a rebuild does. Each reactor looks first whether its association still stands, so that
/// no loss of before is noted later. Nothing happens if no such drive is open.
pub async fn forget_losses(path: &Path) {
    let is_it = |drive: &Arc<Shared>| path.to_str() == Some(&drive.name);
    let drives: Vec<_> = lock(&OPEN)
        .values()
        .filter_map(Weak::upgrade)
        .filter(is_it)
        .collect();
    for drive in drives {
        let looks: Vec<_> = {
            let state = drive.state();
            let users = state.users.iter();
            let users = users.filter(|user| !user.dirt.is_over.load(Ordering::Acquire));
            users.map(|user| look(&drive, &user.reactor)).collect()
        };
        // A reactor that has ended has no association.
        let _ = join_all(looks).await;
        drive.state().unflushed_loss = None;
    }
}

/// A look of a reactor at its association.
fn look(drive: &Arc<Shared>, reactor: &reactor::Handle) -> reactor::RemoteJoin<()> {
    let drive = drive.clone();
    reactor.spawn(move || async move {
        if let Ok(link) = link::of(&drive) {
            link.look(&drive).await;
        }
    })
}
