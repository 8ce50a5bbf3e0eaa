//! The reservations of all volumes: one state for each volume, in all subsystems and on all controllers.
//!
//! Guarantees:
//! - What is to survive a loss of power is in the pool before it is in force ([`Current`]).
//! - Stored reservations that cannot be parsed stop the start; they are never dropped.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use dedup::{Engine, EngineError};
use nvme::Nqn;
use reservations::{Current, HostId, Reservations};
use uuid::Uuid;

use crate::describe::Describe;
use crate::errors::Failure;
use crate::lock::lock;
use crate::reservation::fences::Fences;

/// What the keys of stored reservations begin with; the volume's UUID follows.
pub(crate) const KEY_PREFIX: &str = "reservation/";

/// The reservations of all volumes.
pub(crate) struct Registry {
    volumes: Mutex<HashMap<Uuid, Arc<Shared>>>,
}

/// The reservations of a volume.
pub(crate) struct Shared {
    volume: Uuid,
    current: Current,
    /// Who was preempted, and may have commands under way.
    pub(crate) fences: Fences,
    /// The pool has something of them.
    is_stored: AtomicBool,
}

impl AsRef<Current> for Shared {
    fn as_ref(&self) -> &Current {
        &self.current
    }
}

impl Registry {
    /// What the pool has of them after the power came back: those alone that are to survive that.
    ///
    /// # Errors
    /// A setting that cannot be understood, by its key.
    pub(crate) fn load(pool: &dyn Describe) -> Result<Self, Failure> {
        let volumes = stored(pool)?;
        for shared in volumes.values().filter(|shared| !shared.now().persists()) {
            shared.current.replace(Arc::default());
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
            if *shared.now() == Reservations::default() {
                shared.change(engine, |_| Ok::<_, EngineError>(())).await?;
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
    let reservations = Reservations::from_bytes(value).map_err(|e| unreadable(&e))?;
    Ok(Shared::new(volume, reservations, true))
}

impl Shared {
    fn new(volume: Uuid, reservations: Reservations, is_stored: bool) -> Self {
        Self {
            volume,
            current: Current::new(reservations),
            fences: Fences::default(),
            is_stored: AtomicBool::new(is_stored),
        }
    }

    fn replace(&self, now: Arc<Reservations>, is_stored: bool) {
        self.is_stored.store(is_stored, Ordering::Release);
        self.current.replace(now);
    }

    /// As they are now.
    pub(crate) fn now(&self) -> Arc<Reservations> {
        self.current.now()
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
        let keep = async |next: &Reservations| {
            // Another node that takes the pool over goes on with them: hosts lose no power by that.
            let is_kept = next.persists() || (engine.writes_through() && next.has_registrants());
            if is_kept || self.is_stored.load(Ordering::Acquire) {
                let value = is_kept.then(|| encode(next)).transpose()?;
                engine
                    .change_settings(vec![(key_of(self.volume), value)])
                    .await?;
                self.is_stored.store(is_kept, Ordering::Release);
            }
            Ok(())
        };
        self.current.change(change, keep).await
    }
}

fn encode(reservations: &Reservations) -> Result<Vec<u8>, EngineError> {
    reservations.to_bytes().map_err(|error| {
        EngineError::new(dedup::ErrorKind::Internal, format!("reservations: {error}"))
    })
}

#[cfg(test)]
mod tests {
    use meta::VolumeInfo;
    use nvme::reservation::{KeyPair, RegisterAction};
    use reservations::Request;

    use super::*;

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
