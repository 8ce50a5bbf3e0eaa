//! A reactor's way to a remote drive: one association at a time, made when it is needed.
//!
//! Guarantees: associations of a reactor are used on it alone; they end when the drive is dropped or the reactor ends; who
//! needs one while another task connects waits for that, and shares its failure.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use drives::{DriveError, ErrorKind};
use futures_util::future::select;
use reactor::BufferPool;
use reactor::sync::Semaphore;

use crate::connect::{Live, connect};
use crate::fencing::{is_conflict, release};
use crate::shared::{Dirt, Shared};

/// Bytes of buffers that each reactor has for its commands to one drive.
pub const LINK_BUFFER_BYTES: usize = 4 << 20;

/// Pause before a second attempt to connect; each one after that waits twice as long, up to the second of these.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(500));

/// How long an orderly end may take.
const GOODBYE_MAX: Duration = Duration::from_secs(1);

thread_local! {
    /// The links of this thread's reactor, by the numbers of the drives.
    static LINKS: RefCell<HashMap<u64, Rc<Link>>> = RefCell::default();
}

/// See the module.
pub(crate) struct Link {
    live: RefCell<Option<Rc<Live>>>,
    /// Held by who connects.
    gate: Semaphore,
    /// The last failure to connect, and when that was.
    failure: RefCell<Option<(Instant, ErrorKind, String)>>,
    dirt: Arc<Dirt>,
    changes: Changes,
    buffers: BufferPool,
}

/// Commands by the present association that change the drive and have no answer.
#[derive(Default)]
struct Changes {
    under_way: Cell<usize>,
    /// Nobody waits for one of them any more.
    is_any_forgotten: Cell<bool>,
}

/// A command that changes the drive. One that is dropped before its end may still happen.
pub(crate) struct Change<'a> {
    changes: &'a Changes,
    is_ended: bool,
}

impl Change<'_> {
    /// The target answered, or the loss of the association is noted.
    pub(crate) fn end(mut self) {
        self.is_ended = true;
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        self.changes.under_way.update(|count| count - 1);
        if !self.is_ended {
            self.changes.is_any_forgotten.set(true);
        }
    }
}

/// This reactor's link to a drive; the first call makes it.
///
/// # Errors
/// There is no reactor on this thread, or no memory.
pub(crate) fn of(shared: &Arc<Shared>) -> Result<Rc<Link>, DriveError> {
    let found = LINKS.with_borrow(|links| links.get(&shared.number).cloned());
    if let Some(link) = found {
        return Ok(link);
    }
    if reactor::current().is_none() {
        return Err(shared.error(ErrorKind::Invalid, "is used on a thread without a reactor"));
    }
    let buffers = BufferPool::new(LINK_BUFFER_BYTES).map_err(|error| {
        shared.error(
            ErrorKind::Io,
            format!("no memory for its commands: {error}"),
        )
    })?;
    let link = Rc::new(Link {
        live: RefCell::default(),
        gate: Semaphore::new(1),
        failure: RefCell::default(),
        dirt: Arc::default(),
        changes: Changes::default(),
        buffers,
    });
    LINKS.with_borrow_mut(|links| links.insert(shared.number, link.clone()));
    look_for_successors(shared);
    shared.add_user(&link.dirt);
    let entry = Entry {
        number: shared.number,
        link: link.clone(),
    };
    let (closed, reservation) = (shared.closed.wait(), shared.reservation.clone());
    reactor::spawn(async move {
        closed.await;
        let Some(live) = entry.link.live.take() else {
            return;
        };
        if let Some(key) = reservation.take(live.generation) {
            let release = release(&live.namespace, key);
            let _ = reactor::timeout(GOODBYE_MAX, release).await;
        }
        retire(live);
    })
    .detach();
    Ok(link)
}

/// Looks from time to time whether another opening has the drive. Ends with the drive, or with this reactor: each reactor that uses the drive
/// does it, because any of them may end first.
fn look_for_successors(shared: &Arc<Shared>) {
    let (drive, closed, pause) = (
        Arc::downgrade(shared),
        shared.closed.wait(),
        shared.limits.look,
    );
    let looking = async move {
        loop {
            reactor::sleep(pause).await;
            let Some(shared) = drive.upgrade() else {
                return;
            };
            if shared.may_look()
                && let Ok(link) = of(&shared)
            {
                link.look_for_successor(&shared).await;
            }
        }
    };
    // A look that is under way does not keep the namespace from being opened again.
    let until_closed = async move {
        select(pin!(closed), pin!(looking)).await;
    };
    reactor::spawn(until_closed).detach();
}

/// A link among those of its reactor. Dropped when the drive is, or with all tasks when the reactor ends.
struct Entry {
    number: u64,
    link: Rc<Link>,
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.link.dirt.end();
        self.link.live.take();
        // The thread may be ending, and the table with it.
        let _ = LINKS.try_with(|links| links.borrow_mut().remove(&self.number));
    }
}

/// Whether another attempt would end alike, until somebody changes something: the namespace is another one, or a key is
/// wrong. A target that is asked with a wrong key again and again makes its host wait, also with the right one.
fn is_final(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Truncated | ErrorKind::Invalid)
}

/// Ends an association that is not needed any more, when nobody uses it.
fn retire(live: Rc<Live>) {
    reactor::spawn(async move {
        if let Some(live) = Rc::into_inner(live) {
            // A target that does not answer needs no goodbye.
            let _ = reactor::timeout(GOODBYE_MAX, live.end()).await;
        }
    })
    .detach();
}

impl Link {
    pub(crate) fn dirt(&self) -> &Arc<Dirt> {
        &self.dirt
    }

    pub(crate) fn buffers(&self) -> &BufferPool {
        &self.buffers
    }

    /// A command begins that changes the drive.
    pub(crate) fn change(&self) -> Change<'_> {
        self.changes.under_way.update(|count| count + 1);
        Change {
            changes: &self.changes,
            is_ended: false,
        }
    }

    /// The association, if commands can be sent by it. One that is gone is noted as lost.
    fn usable(&self, shared: &Shared) -> Option<Rc<Live>> {
        let live = self.live.borrow().clone()?;
        let generation = shared.state().generation;
        if live.is_usable(generation) {
            return Some(live);
        }
        match live.controller.is_whole() {
            // Its Host Identifier is not used any more.
            true => {
                self.live.take();
                retire(live);
            }
            false => self.lose(shared, &live),
        }
        None
    }

    /// Asks the target whether the association still stands. One that is gone is noted as lost now, and not when it is used
    /// next.
    pub(crate) async fn look(&self, shared: &Shared) {
        let Some(live) = self.usable(shared) else {
            return;
        };
        let asked = reactor::timeout(shared.limits.connect, live.namespace.identifiers()).await;
        let stands = match asked {
            Ok(Ok(_)) => true,
            Ok(Err(error)) => error.status().is_some(),
            Err(_) => false,
        };
        if !stands {
            self.lose(shared, &live);
        }
    }

    /// Asks the target whether another opening by the owner has the drive. Who does not answer is asked again later.
    pub(crate) async fn look_for_successor(&self, shared: &Arc<Shared>) {
        let asking = async {
            match self.usable(shared) {
                Some(live) => drop(shared.conflict(&live.namespace).await),
                None => drop(self.reserved_once(shared).await),
            }
        };
        let _ = reactor::timeout(shared.limits.connect, asking).await;
    }

    /// An association is gone: nothing more is sent by it, and what was sent may happen or not.
    pub(crate) fn lose(&self, shared: &Shared, live: &Rc<Live>) {
        let is_current = |current: &Rc<Live>| Rc::ptr_eq(current, live);
        if !self.live.borrow().as_ref().is_some_and(is_current) {
            return;
        }
        self.live.take();
        live.controller.close();
        let is_in_doubt = self.changes.under_way.get() > 0 || self.changes.is_any_forgotten.take();
        shared.note_loss(&self.dirt, is_in_doubt);
        tracing::warn!(drive = shared.name, "the connection to the drive is lost");
    }

    /// An association of the present Host Identifier, which holds the drive's reservation if it was claimed.
    ///
    /// # Errors
    /// There was none within the drive's patience.
    pub(crate) async fn live(&self, shared: &Arc<Shared>) -> Result<Rc<Live>, DriveError> {
        if let Some(live) = self.usable(shared) {
            return Ok(live);
        }
        let deadline = reactor::now() + shared.limits.patience;
        let mut pause = PAUSES.0;
        loop {
            match self.reserved_once(shared).await {
                Err(error) if is_final(error.kind()) || reactor::now() + pause > deadline => {
                    return Err(error);
                }
                Err(error) => tracing::debug!(%error, "connecting again"),
                Ok(live) => return Ok(live),
            }
            reactor::sleep(pause).await;
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    async fn reserved_once(&self, shared: &Arc<Shared>) -> Result<Rc<Live>, DriveError> {
        let live = self.live_once(shared).await?;
        shared.renew(&live).await?;
        match live.is_usable(shared.state().generation) {
            true => Ok(live),
            false => Err(shared.error(
                ErrorKind::Io,
                "the connection was lost when it had just been made",
            )),
        }
    }

    /// The same by one attempt, and without a reservation.
    ///
    /// # Errors
    /// It failed, or one that began after this call.
    pub(crate) async fn live_once(&self, shared: &Arc<Shared>) -> Result<Rc<Live>, DriveError> {
        let asked = reactor::now();
        let _turn = self.gate.acquire(1).await;
        if let Some(live) = self.usable(shared) {
            return Ok(live);
        }
        let shares = |at: &Instant| *at > asked;
        if let Some((_, kind, text)) = self
            .failure
            .borrow()
            .as_ref()
            .filter(|failure| shares(&failure.0))
        {
            return Err(shared.error(*kind, text.clone()));
        }
        let limit = shared.limits.connect;
        let connected = match reactor::timeout(limit, connect(shared)).await {
            Ok(connected) => connected,
            Err(_) => {
                let text = format!(
                    "the target does not answer within {limit:?}; check that it runs, and the network"
                );
                Err(shared.error(ErrorKind::Io, text))
            }
        };
        match connected {
            Ok(live) => {
                let live = Rc::new(live);
                self.live.replace(Some(live.clone()));
                tracing::debug!(drive = shared.name, "connected");
                Ok(live)
            }
            Err(error) => {
                let prefix = format!("drive {}: ", shared.name);
                let text = error.to_string();
                let text = text.strip_prefix(&prefix).unwrap_or(&text).to_owned();
                self.failure
                    .replace(Some((reactor::now(), error.kind(), text)));
                Err(error)
            }
        }
    }

    /// Flushes what this reactor wrote.
    pub(crate) async fn flush(&self, shared: &Arc<Shared>) -> Result<(), DriveError> {
        let begun = self.dirt.begin_flush();
        let live = self.live(shared).await?;
        match live.namespace.flush().await {
            Ok(()) => {
                self.dirt.end_flush(begun);
                Ok(())
            }
            Err(error) => {
                if error.status().is_none() {
                    self.lose(shared, &live);
                }
                let taken_over = match is_conflict(&error) {
                    true => shared.conflict(&live.namespace).await,
                    false => None,
                };
                let failed = || shared.error(ErrorKind::Io, format!("a flush failed: {error}"));
                Err(taken_over.unwrap_or_else(failed))
            }
        }
    }
}
