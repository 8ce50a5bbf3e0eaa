//! What all reactors that use one drive share: the connection, what may be lost, and who the drive is.
//!
//! Guarantees: a socket is a drive once in this process; losses that a flush has to tell are never forgotten before
//! [`forget_losses`]; a connection is used by all reactors until it ends for all of them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use drives::{DriveError, ErrorKind};

use crate::address::SocketAddress;
use crate::connection::{Connection, Ending, Refusal, establish};
use crate::facts::{Facts, ID_BYTES};
use crate::fencing::{note_opening, retire};
use crate::link;
use crate::queue::Kind;
use crate::{Limits, OpenOptions};

/// Pause before a second attempt to connect; each one after that waits twice as long, up to the second of these.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(500));

/// The drives that are open in this process, by their sockets.
static OPEN: Mutex<BTreeMap<PathBuf, Weak<Shared>>> = Mutex::new(BTreeMap::new());

/// Locks also after a panic of another holder: everything here changes in one step.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What changes.
#[derive(Debug, Default)]
struct State {
    connection: Option<Arc<Connection>>,
    /// The last failure to connect, and when that was.
    failure: Option<(Instant, Refusal)>,
    /// Why the next flush has to fail.
    unflushed_loss: Option<String>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) name: String,
    address: SocketAddress,
    socket: PathBuf,
    pub(crate) limits: Limits,
    /// Queues that are wanted.
    queues: u16,
    facts: OnceLock<Facts>,
    state: Mutex<State>,
    /// Held by who connects.
    gate: futures_util::lock::Mutex<()>,
    /// Writes that completed, and how many of them are flushed.
    written: AtomicU64,
    flushed: AtomicU64,
}

impl Shared {
    pub(crate) async fn open(
        address: SocketAddress,
        options: OpenOptions,
    ) -> Result<Arc<Self>, DriveError> {
        note_opening();
        let socket = address.socket();
        let shared = Arc::new(Self {
            name: address.to_string(),
            socket: socket.canonicalize().unwrap_or_else(|_| socket.to_owned()),
            address,
            limits: options.limits,
            queues: options.queues,
            facts: OnceLock::new(),
            state: Mutex::default(),
            gate: futures_util::lock::Mutex::new(()),
            // What an earlier process wrote may be in the device's cache: it is lost with that as what this one writes.
            written: AtomicU64::new(1),
            flushed: AtomicU64::new(0),
        });
        shared.register()?;
        shared.connected_once().await?;
        Ok(shared)
    }

    /// Refuses a socket that is open already.
    fn register(self: &Arc<Self>) -> Result<(), DriveError> {
        let mut open = lock(&OPEN);
        if open
            .get(&self.socket)
            .is_some_and(|other| other.strong_count() > 0)
        {
            let text = "is open already in this process: name another one";
            return Err(self.error(ErrorKind::InUse, text));
        }
        open.insert(self.socket.clone(), Arc::downgrade(self));
        Ok(())
    }

    /// What was found when it was opened.
    pub(crate) fn facts(&self) -> &Facts {
        // Set by the first connection, without which there is no drive.
        self.facts.get().expect("an open drive was connected once")
    }

    pub(crate) fn error(&self, kind: ErrorKind, text: impl Into<String>) -> DriveError {
        DriveError::new(kind, &self.name, text)
    }

    fn refused(&self, refusal: Refusal) -> DriveError {
        self.error(refusal.kind, refusal.text)
    }

    /// The connection, if commands can be sent by it. One that the server has closed is noted as lost.
    fn usable(&self) -> Option<Arc<Connection>> {
        let connection = lock(&self.state).connection.clone()?;
        match connection.is_ended() {
            false => Some(connection),
            true => None,
        }
    }

    /// A connection is gone: nothing more is sent by it, and what was sent may happen or not.
    pub(crate) fn lose(&self, connection: &Arc<Connection>, ending: Ending) {
        {
            let mut state = lock(&self.state);
            let is_it = |now: &Arc<Connection>| Arc::ptr_eq(now, connection);
            if state.connection.as_ref().is_some_and(is_it) {
                state.connection = None;
                let written = self.written.load(Ordering::Acquire);
                let is_dirty = written > self.flushed.load(Ordering::Acquire);
                if is_dirty && connection.facts.has_cache && state.unflushed_loss.is_none() {
                    state.unflushed_loss = Some(ending.text.clone());
                }
            }
        }
        let why = ending.text.clone();
        if connection.end(ending) {
            tracing::warn!(
                drive = self.name,
                why,
                "the connection to the drive is lost"
            );
            retire(&self.name, connection.clone());
        }
    }

    /// A connection whose device is the one that was opened.
    ///
    /// # Errors
    /// There was none within the drive's patience.
    pub(crate) async fn connected(self: &Arc<Self>) -> Result<Arc<Connection>, DriveError> {
        if let Some(connection) = self.usable() {
            return Ok(connection);
        }
        let deadline = reactor::now() + self.limits.patience;
        let mut pause = PAUSES.0;
        loop {
            match self.connected_once().await {
                Ok(connection) => return Ok(connection),
                Err(error)
                    if error.kind() == ErrorKind::Truncated
                        || reactor::now() + pause > deadline =>
                {
                    return Err(error);
                }
                Err(error) => tracing::debug!(%error, "connecting again"),
            }
            reactor::sleep(pause).await;
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    /// The same by one attempt.
    ///
    /// # Errors
    /// It failed, or one that began after this call.
    async fn connected_once(self: &Arc<Self>) -> Result<Arc<Connection>, DriveError> {
        let asked = reactor::now();
        let _turn = self.gate.lock().await;
        if let Some(connection) = self.usable() {
            return Ok(connection);
        }
        let failure = lock(&self.state).failure.clone();
        if let Some((_, refusal)) = failure.filter(|(at, _)| *at > asked) {
            return Err(self.refused(refusal));
        }
        self.check_unsettled()?;
        match self.connect().await {
            Ok(connection) => {
                tracing::debug!(
                    drive = self.name,
                    queues = connection.queues.len(),
                    "connected"
                );
                Ok(connection)
            }
            Err(refusal) => {
                lock(&self.state).failure = Some((reactor::now(), refusal.clone()));
                Err(self.refused(refusal))
            }
        }
    }

    async fn connect(self: &Arc<Self>) -> Result<Arc<Connection>, Refusal> {
        let (address, queues) = (self.address.clone(), self.queues);
        let deadline = reactor::now() + self.limits.connect;
        let established = reactor::unblock(move || establish(&address, deadline, queues)).await?;
        let connection = Arc::new(established);
        let mut stranger = Stranger {
            shared: self,
            connection: Some(connection.clone()),
            why: "nobody needs it any more".to_owned(),
        };
        if let Err(refusal) = self.identify(&connection, deadline).await {
            stranger.why.clone_from(&refusal.text);
            return Err(refusal);
        }
        stranger.connection = None;
        lock(&self.state).connection = Some(connection.clone());
        Ok(connection)
    }

    /// Compares the device with the one that was opened, or takes it if this is the first connection.
    async fn identify(
        self: &Arc<Self>,
        connection: &Arc<Connection>,
        deadline: Instant,
    ) -> Result<(), Refusal> {
        let limit = deadline.saturating_duration_since(reactor::now());
        let id = reactor::timeout(limit, self.ask_id(connection)).await;
        let id = id.unwrap_or_else(|_| {
            let text = "the server does not answer the first command; check that it runs";
            Err(Refusal::new(ErrorKind::Io, text))
        })?;
        let found = connection.facts.clone().with_id(id);
        match self.facts.get_or_init(|| found.clone()).changed(&found) {
            None => Ok(()),
            Some(changed) => Err(Refusal::new(ErrorKind::Truncated, changed)),
        }
    }

    /// What the device calls itself; nothing, if it has no name.
    async fn ask_id(
        self: &Arc<Self>,
        connection: &Arc<Connection>,
    ) -> Result<[u8; ID_BYTES], Refusal> {
        let ended = |_| Refusal::new(ErrorKind::Io, connection.why());
        let (queue, user) = link::queue_of(self, connection)
            .map_err(|text| Refusal::new(ErrorKind::Invalid, text))?;
        let command = queue.claim(user, ID_BYTES).await.map_err(ended)?;
        command.fill(0, &[0; ID_BYTES]);
        let room = [command.own(ID_BYTES)];
        command.send(Kind::GetId, 0, &room, None).map_err(ended)?;
        let status = command.answered().await.map_err(ended)?;
        let mut id = [0; ID_BYTES];
        if status == 0 {
            command.take(0, &mut id);
        }
        Ok(id)
    }

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

    /// A flush failed: what it should have made durable may be gone by the time of the next one.
    pub(crate) fn note_failed_flush(&self, why: &DriveError) {
        lock(&self.state)
            .unflushed_loss
            .get_or_insert_with(|| why.to_string());
    }

    pub(crate) fn check_losses(&self) -> Result<(), DriveError> {
        let Some(why) = lock(&self.state).unflushed_loss.clone() else {
            return Ok(());
        };
        let text = format!(
            "what was written before and not flushed may be lost ({why}): take the drive offline and online again, or start \
             the daemon again, which proves what is there"
        );
        Err(self.error(ErrorKind::Io, text))
    }
}

/// A connection whose device is not known yet. It is ended if this is dropped with it.
struct Stranger<'a> {
    shared: &'a Shared,
    connection: Option<Arc<Connection>>,
    why: String,
}

impl Drop for Stranger<'_> {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            let ending = Ending {
                text: std::mem::take(&mut self.why),
                is_lie: false,
            };
            self.shared.lose(&connection, ending);
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let connection = lock(&self.state).connection.take();
        if let Some(connection) = connection {
            let ending = Ending {
                text: "the drive was closed".to_owned(),
                is_lie: false,
            };
            connection.end(ending);
            retire(&self.name, connection);
        }
        let mut open = lock(&OPEN);
        if open
            .get(&self.socket)
            .is_some_and(|other| other.strong_count() == 0)
        {
            open.remove(&self.socket);
        }
    }
}

/// Flushes of the drive at `path` may succeed again, whatever was lost: who calls this compares, or writes again, all that
/// the drive should have, as a rebuild does. Nothing happens if no such drive is open.
pub fn forget_losses(path: &Path) {
    let open = lock(&OPEN);
    let drives: Vec<_> = open.values().filter_map(Weak::upgrade).collect();
    // A drive that is dropped here for the last time takes itself off the table.
    drop(open);
    for drive in drives
        .iter()
        .filter(|drive| path.to_str() == Some(&drive.name))
    {
        lock(&drive.state).unflushed_loss = None;
    }
}
