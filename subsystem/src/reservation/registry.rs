//! The reservations of all volumes: one state for each volume, in all subsystems and on all controllers.
//!
//! Guarantees:
//! - Changes of a volume's reservations come one after the other. A change that
//!   survives a loss of power is durable before it is in force, and in force before the command is answered.
//! - A command is checked against the state of that moment. As long as nothing changes this costs one atomic load, and no
//!   lock.
//! - Stored reservations that cannot be parsed stop the start; they are never dropped.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use dedup::{Engine, EngineError};
use futures_util::lock::Mutex as AsyncMutex;
use nvme::Nqn;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{Access, HostId, Reservations};
use crate::describe::Describe;
use crate::errors::Failure;
use crate::lock::lock;

/// What the keys of stored reservations begin with; the volume's UUID follows.
pub(crate) const KEY_PREFIX: &str = "reservation/";

/// The version of the stored form.
const VERSION: u32 = 1;

/// Reservations as they are stored.
#[derive(Serialize, Deserialize)]
struct Stored {
    version: u32,
    reservations: Reservations,
}

/// The reservations of all volumes.
pub(crate) struct Registry {
    volumes: Mutex<HashMap<Uuid, Arc<Shared>>>,
}

/// The reservations of a volume.
pub(crate) struct Shared {
    volume: Uuid,
    /// Held while they are changed.
    changing: AsyncMutex<()>,
    now: Mutex<Arc<Reservations>>,
    /// Rises with every change, after it.
    generation: AtomicU64,
    /// The pool has something of them.
    is_stored: AtomicBool,
}

impl Registry {
    /// What the pool has of them after the power came back: those alone that are to survive that.
    ///
    /// # Errors
    /// A setting that cannot be understood, by its key.
    pub(crate) fn load(pool: &dyn Describe) -> Result<Self, Failure> {
        let volumes = stored(pool)?;
        for shared in volumes.values().filter(|shared| !shared.now().persists()) {
            *lock(&shared.now) = Arc::default();
        }
        Ok(Self {
            volumes: Mutex::new(volumes),
        })
    }

    /// Deletes what is stored and did not survive ([`Registry::load`]): no node may find it again.
    ///
    /// # Errors
    /// The pool takes no changes.
    pub(crate) async fn forget_ended(&self, engine: &Engine) -> Result<(), EngineError> {
        let ended: Vec<_> = lock(&self.volumes)
            .values()
            .filter(|shared| shared.is_stored.load(Ordering::Acquire))
            .cloned()
            .collect();
        for shared in ended {
            let _changing = shared.changing.lock().await;
            if *shared.now() == Reservations::default() {
                let gone = vec![(key_of(shared.volume), None)];
                engine.change_settings(gone).await?;
                shared.is_stored.store(false, Ordering::Release);
            }
        }
        Ok(())
    }

    /// What the pool has of them now, where another node changed them: all that it stored, because no power was lost.
    ///
    /// # Errors
    /// As of [`Registry::load`]; then nothing has changed.
    pub(crate) fn load_again(&self, pool: &dyn Describe) -> Result<(), Failure> {
        let mut found = stored(pool)?;
        let mut volumes = lock(&self.volumes);
        for (volume, shared) in volumes.iter() {
            // Queues have a share of it.
            match found.remove(volume) {
                Some(now) => shared.replace(now.now(), true),
                None => shared.replace(Arc::default(), false),
            }
        }
        volumes.extend(found);
        Ok(())
    }

    /// The reservations of a volume.
    pub(crate) fn of(&self, volume: Uuid) -> Arc<Shared> {
        let mut volumes = lock(&self.volumes);
        let shared = volumes
            .entry(volume)
            .or_insert_with(|| Arc::new(Shared::new(volume, Reservations::default(), false)));
        shared.clone()
    }

    /// The proven name of the host that is registered with a volume under that identifier.
    pub(crate) fn owner_of(&self, host: &HostId) -> Option<Nqn> {
        let all: Vec<_> = lock(&self.volumes).values().cloned().collect();
        all.iter()
            .find_map(|shared| shared.now().owner(host).cloned())
    }

    /// Deletes the reservations of volumes that no longer exist, in the pool too.
    ///
    /// # Errors
    /// The pool takes no changes.
    pub(crate) async fn forget_deleted(&self, engine: &Engine) -> Result<(), EngineError> {
        let present = [engine.volumes(), engine.snapshots()].concat();
        let present: Vec<Uuid> = present.iter().map(|info| info.uuid).collect();
        let gone: Vec<_> = {
            let mut volumes = lock(&self.volumes);
            volumes
                .extract_if(|volume, _| !present.contains(volume))
                .map(|(_, shared)| shared)
                .collect()
        };
        let stored = gone
            .iter()
            .filter(|shared| shared.is_stored.load(Ordering::Acquire))
            .map(|shared| (key_of(shared.volume), None))
            .collect::<Vec<_>>();
        match stored.is_empty() {
            true => Ok(()),
            false => engine.change_settings(stored).await,
        }
    }
}

/// All that the pool has stored.
fn stored(pool: &dyn Describe) -> Result<HashMap<Uuid, Arc<Shared>>, Failure> {
    let restored = pool.settings(KEY_PREFIX).into_iter().map(|(key, value)| {
        let shared = restore(&key, &value)?;
        Ok((shared.volume, Arc::new(shared)))
    });
    restored.collect()
}

fn key_of(volume: Uuid) -> String {
    format!("{KEY_PREFIX}{volume}")
}

fn restore(key: &str, value: &[u8]) -> Result<Shared, Failure> {
    let unreadable = |why: &dyn std::fmt::Display| {
        Failure::new(
            dedup::ErrorKind::Corrupt,
            format!(
                "the pool's setting '{key}' cannot be understood ({why}): it was written by a newer \
                 version, which has to serve this pool"
            ),
        )
    };
    let volume = key.strip_prefix(KEY_PREFIX).unwrap_or_default();
    let volume: Uuid = volume.parse().map_err(|e| unreadable(&e))?;
    let stored: Stored = serde_json::from_slice(value).map_err(|e| unreadable(&e))?;
    if stored.version != VERSION {
        return Err(unreadable(&format_args!("version {}", stored.version)));
    }
    if !stored.reservations.is_sound() {
        return Err(unreadable(&"its parts contradict each other"));
    }
    Ok(Shared::new(volume, stored.reservations, true))
}

impl Shared {
    fn new(volume: Uuid, reservations: Reservations, is_stored: bool) -> Self {
        Self {
            volume,
            changing: AsyncMutex::new(()),
            now: Mutex::new(Arc::new(reservations)),
            generation: AtomicU64::new(1),
            is_stored: AtomicBool::new(is_stored),
        }
    }

    fn replace(&self, now: Arc<Reservations>, is_stored: bool) {
        self.is_stored.store(is_stored, Ordering::Release);
        *lock(&self.now) = now;
        self.generation.fetch_add(1, Ordering::AcqRel);
    }

    /// As they are now.
    pub(crate) fn now(&self) -> Arc<Reservations> {
        lock(&self.now).clone()
    }

    /// Changes them. When this returns the change is in force, and durable if it is to persist.
    ///
    /// # Errors
    /// What `change` says, or the pool: then nothing has changed.
    pub(crate) async fn change<T, E: From<EngineError>>(
        &self,
        engine: &Engine,
        change: impl FnOnce(&mut Reservations) -> Result<T, E>,
    ) -> Result<T, E> {
        let _changing = self.changing.lock().await;
        let mut next = Reservations::clone(&self.now());
        let result = change(&mut next)?;
        // Another node that takes the pool over goes on with them: hosts lose no power by that.
        let is_kept = next.persists() || (engine.writes_through() && next.has_registrants());
        if is_kept || self.is_stored.load(Ordering::Acquire) {
            let value = is_kept.then(|| encode(&next)).transpose()?;
            engine
                .change_settings(vec![(key_of(self.volume), value)])
                .await?;
            self.is_stored.store(is_kept, Ordering::Release);
        }
        *lock(&self.now) = Arc::new(next);
        self.generation.fetch_add(1, Ordering::AcqRel);
        Ok(result)
    }
}

fn encode(reservations: &Reservations) -> Result<Vec<u8>, EngineError> {
    let stored = Stored {
        version: VERSION,
        reservations: reservations.clone(),
    };
    serde_json::to_vec(&stored).map_err(|error| {
        EngineError::new(dedup::ErrorKind::Internal, format!("reservations: {error}"))
    })
}

/// What reservations let a host do with a volume, cached by a queue of that host.
pub(crate) struct Watch {
    shared: Arc<Shared>,
    host: HostId,
    /// The generation that the answers belong to; 0 before the first question.
    seen: Cell<u64>,
    reads: Cell<bool>,
    writes: Cell<bool>,
}

impl Watch {
    pub(crate) fn new(shared: Arc<Shared>, host: HostId) -> Self {
        Self {
            shared,
            host,
            seen: Cell::new(0),
            reads: Cell::new(false),
            writes: Cell::new(false),
        }
    }

    /// Whether a command of the host may go on.
    pub(crate) fn admits(&self, access: Access) -> bool {
        // Read first: the next command sees a change in between.
        let generation = self.shared.generation.load(Ordering::Acquire);
        if generation != self.seen.get() {
            let now = self.shared.now();
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
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

#[cfg(test)]
mod tests {
    use meta::VolumeInfo;
    use nvme::reservation::{KeyPair, RegisterAction};

    use super::*;
    use crate::reservation::Request;

    /// A pool with one setting.
    struct Pool(String, Vec<u8>);

    impl Describe for Pool {
        fn volumes(&self) -> Vec<VolumeInfo> {
            Vec::new()
        }

        fn snapshots(&self) -> Vec<VolumeInfo> {
            Vec::new()
        }

        fn setting(&self, key: &str) -> Option<Arc<[u8]>> {
            (self.0 == key).then(|| self.1[..].into())
        }

        fn settings(&self, prefix: &str) -> Vec<(String, Arc<[u8]>)> {
            let own = self.0.starts_with(prefix);
            let own = own.then(|| (self.0.clone(), self.1[..].into()));
            own.into_iter().collect()
        }
    }

    #[test]
    fn what_ends_with_the_power_is_there_after_a_takeover_and_not_after_a_start() {
        let (volume, host) = (Uuid::from_u128(5), HostId::from_u128(7));
        for persists in [false, true] {
            let mut reservations = Reservations::default();
            let register = Request::Register {
                action: RegisterAction::Register,
                ignore_key: false,
                persist: Some(persists),
                keys: KeyPair {
                    current: 0,
                    other: 9,
                },
            };
            reservations.apply(host, register).expect("registered");
            let pool = Pool(key_of(volume), encode(&reservations).expect("bytes"));
            let started = Registry::load(&pool).expect("understood");
            assert_eq!(started.of(volume).now().has_registrants(), persists);
            let standby = Registry::load(&Pool(String::new(), Vec::new())).expect("nothing");
            // A queue of a host has it since before.
            let watched = standby.of(volume);
            standby.load_again(&pool).expect("understood");
            assert!(watched.now().has_registrants());
        }
    }
}
