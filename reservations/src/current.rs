//! The reservations of a namespace that are in force, for all queues of a target.
//!
//! Guarantees:
//! - Changes come one after the other. A change that survives a loss of power is durable before it is in force, and in
//!   force before the command is answered.
//! - A command is checked against the state of that moment. As long as nothing changes this costs one atomic load, and no
//!   lock.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::lock::Mutex as AsyncMutex;

use crate::{Access, HostId, Reservations};

/// See the module.
#[derive(Debug)]
pub struct Current {
    /// Held while they are changed.
    changing: AsyncMutex<()>,
    now: Mutex<Arc<Reservations>>,
    /// Rises with every change, after it.
    generation: AtomicU64,
}

impl Current {
    /// These are in force.
    #[must_use]
    pub fn new(reservations: Reservations) -> Self {
        Self {
            changing: AsyncMutex::new(()),
            now: Mutex::new(Arc::new(reservations)),
            generation: AtomicU64::new(1),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Arc<Reservations>> {
        // Each change is one assignment.
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As they are now.
    #[must_use]
    pub fn now(&self) -> Arc<Reservations> {
        self.lock().clone()
    }

    /// Others are in force from now on.
    pub fn replace(&self, now: Arc<Reservations>) {
        *self.lock() = now;
        self.generation.fetch_add(1, Ordering::AcqRel);
    }

    /// Changes them, and gives what they are then to `keep` before that is in force.
    ///
    /// # Errors
    /// What `change` or `keep` says: then nothing has changed.
    pub async fn change<T, E>(
        &self,
        change: impl FnOnce(&mut Reservations) -> Result<T, E>,
        keep: impl AsyncFnOnce(&Reservations) -> Result<(), E>,
    ) -> Result<T, E> {
        let _changing = self.changing.lock().await;
        let mut next = Reservations::clone(&self.now());
        let result = change(&mut next)?;
        keep(&next).await?;
        self.replace(Arc::new(next));
        Ok(result)
    }
}

/// What reservations let a host do with a namespace, cached by a queue of that host.
#[derive(Debug)]
pub struct Watch<C> {
    current: Arc<C>,
    host: HostId,
    /// The generation that the answers belong to; 0 before the first question.
    seen: Cell<u64>,
    reads: Cell<bool>,
    writes: Cell<bool>,
}

impl<C: AsRef<Current>> Watch<C> {
    /// For a queue of that host.
    #[must_use]
    pub fn new(current: Arc<C>, host: HostId) -> Self {
        Self {
            current,
            host,
            seen: Cell::new(0),
            reads: Cell::new(false),
            writes: Cell::new(false),
        }
    }

    /// Whether a command of the host may go on.
    #[must_use]
    pub fn admits(&self, access: Access) -> bool {
        let current = (*self.current).as_ref();
        // Read first: the next command sees a change in between.
        let generation = current.generation.load(Ordering::Acquire);
        if generation != self.seen.get() {
            let now = current.now();
            self.reads.set(now.admits(&self.host, Access::Read));
            self.writes.set(now.admits(&self.host, Access::Write));
            self.seen.set(generation);
        }
        match access {
            Access::Read => self.reads.get(),
            Access::Write => self.writes.get(),
        }
    }

    /// The reservations.
    #[must_use]
    pub fn current(&self) -> &Arc<C> {
        &self.current
    }
}

impl AsRef<Self> for Current {
    fn as_ref(&self) -> &Self {
        self
    }
}
