//! Copies of a pool's metadata, and what becomes of those who restore them.
//!
//! A copy of store and journal of one moment is the pool as it was then, on drives that went on: each
//! sub-block holds what it held, or it is an error, because its block was used for something else. Halves
//! of two moments are refused, or what can be read is of some moment in between.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use drives::BLOCK_BYTES;
use meta::{JournalMedia, MemoryMedia, MemoryStore, Store};
use rand::Rng;

use super::Story;
use super::settings::Pair;
use super::world::{Actor, Admin, VolumeModel, World};
use crate::sync::wait::{lock, yield_once};
use crate::{Engine, EngineParts, ErrorKind, Result};

/// Store and journal of one moment.
pub(super) struct Copy {
    media: MemoryMedia,
    store: MemoryStore,
    /// Records up to this one have their range of the journal. It may hold the last of them and end before it, where one is
    /// not written.
    reserved: u64,
    /// What the model says of that moment.
    volumes: Vec<VolumeModel>,
    pair: Pair,
    flushed: u64,
    /// Which life of the pool it is of.
    life: u64,
}

pub(super) fn copy_of(media: &MemoryMedia) -> MemoryMedia {
    let mut bytes = vec![0; media.capacity() as usize];
    let copy = MemoryMedia::new(media.capacity());
    media.read_at(0, &mut bytes).expect("a journal in memory");
    copy.write_at(0, &bytes).expect("a journal in memory");
    copy.sync().expect("a journal in memory");
    copy
}

/// Makes a copy after some yields, while others work.
pub(super) async fn make_one(
    world: Rc<RefCell<World>>,
    engine: Arc<Engine>,
    media: Arc<MemoryMedia>,
    store: Arc<MemoryStore>,
    yields: u32,
    made: Rc<RefCell<Option<Copy>>>,
) {
    for _ in 0..yields {
        yield_once().await;
    }
    let world = world.borrow();
    *made.borrow_mut() = Some(Copy {
        media: copy_of(&media),
        store: store.copy(),
        reserved: lock(&engine.shared.journal).last_seq(),
        volumes: world.volumes.clone(),
        pair: world.pair,
        flushed: world.flushed,
        life: world.tally.lives,
    });
}

impl Story {
    /// The process is dead: perhaps somebody uses a copy now.
    pub(super) fn use_copy(&mut self) {
        let Some(copy) = self.copy.take() else { return };
        let is_of_this_life = copy.life == self.world.borrow().tally.lives;
        match self.rng.random_range(0..6) {
            0 => self.copy = Some(copy),
            1 | 2 => self.restore(copy),
            3 | 4 => self.open_halves(&copy, is_of_this_life, true),
            _ => self.open_halves(&copy, is_of_this_life, false),
        }
    }

    /// Puts the metadata back as it was. From here on blocks may be others than it says.
    fn restore(&mut self, copy: Copy) {
        let newest = self.newest_epoch();
        let (media, store) = (Arc::new(copy.media), Arc::new(copy.store));
        let replaced = (
            std::mem::replace(&mut self.media, media.clone()),
            std::mem::replace(&mut self.store, store.clone()),
        );
        self.replaced = Some(replaced);
        // The older metadata knows nothing of later labels.
        self.drive_copy = None;
        if store.checkpoint().expect("a store in memory").epoch < newest {
            self.expect_outdated((media, store));
            self.accepted_epoch = Some(newest);
        }
        self.lost_power = Some(true);
        let mut world = self.world.borrow_mut();
        world.volumes = copy.volumes;
        world.pair = copy.pair;
        world.flushed = copy.flushed;
        world.has_damage = true;
        world.is_restored = true;
        world.tally.restored += 1;
    }

    /// Opens one half of the copy with the other half as it is now, beside the pool itself. The model
    /// knows contents only since the last opening.
    fn open_halves(&mut self, copy: &Copy, is_of_this_life: bool, is_store_old: bool) {
        let beside = self.drives_beside();
        let (store, media) = match is_store_old {
            true => (copy.store.copy(), copy_of(&self.media)),
            false => (self.store.copy(), copy_of(&copy.media)),
        };
        let parts = EngineParts {
            drives: beside,
            journal: Arc::new(media),
            store: Arc::new(store),
            // It is the journal that proves it, or not.
            config: self.config.clone(),
            ..self.parts()
        };
        let slot: Rc<RefCell<Option<Result<Arc<Engine>>>>> = Rc::default();
        let result = slot.clone();
        let open = async move { *result.borrow_mut() = Some(Engine::open(parts).await) };
        self.run_to_the_end(Box::pin(open));
        let engine = match slot.take().expect("it ended") {
            Ok(engine) => engine,
            Err(error) => {
                assert_eq!(
                    error.kind,
                    ErrorKind::Corrupt,
                    "opening halves failed: {error}"
                );
                self.world.borrow_mut().tally.refused += 1;
                return;
            }
        };
        if !is_store_old {
            let stored = self.store.checkpoint().expect("a store in memory");
            let before = copy.store.checkpoint().expect("a store in memory");
            let reserved = copy.reserved;
            assert!(
                stored.position == before.position || reserved + 1 >= stored.position.seq,
                "a journal up to {reserved} went with a store of {stored:?}"
            );
        }
        // Not counted: what only the newer store said to be durable is proven again with the older one, and
        // taken back if its block was used for something else since. Two mappings may then say different
        // things of one block, and the one that is wrong is an error when it is read.
        let has_damage = std::mem::replace(&mut self.world.borrow_mut().has_damage, true);
        let is_restored = std::mem::replace(&mut self.world.borrow_mut().is_restored, true);
        let copied = is_of_this_life.then(|| copy.volumes.clone());
        let actor = self.actor(&engine);
        self.run_to_the_end(Box::pin(actor.read_some_moment(copied)));
        let mut world = self.world.borrow_mut();
        world.has_damage = has_damage;
        world.is_restored = is_restored;
    }
}

impl Actor {
    /// Everything that can be read was there at some time since the copy, if the model knows of it.
    async fn read_some_moment(self, copied: Option<Vec<VolumeModel>>) {
        let now = self.world.borrow().volumes.clone();
        for info in self.engine.volumes() {
            let volume = self.engine.volume(&info.name).expect("a volume is gone");
            let count = info.size_bytes as usize / BLOCK_BYTES;
            let found = self.contents(&volume, 0, count).await;
            let Some(copied) = &copied else { continue };
            // A crash may have ended its fork: it has what its origin had meanwhile.
            let forked = now.iter().find(|model| model.uuid == info.uuid);
            let origin = forked.and_then(|model| model.origin);
            // Or its rollback: it may have what its snapshot has.
            let rolled_back = forked.and_then(|model| match model.admin {
                Admin::RollingBack(snapshot) => Some(snapshot),
                _ => None,
            });
            let is_origin = |uuid| origin.is_some_and(|(of, _)| of == uuid);
            let is_its = |uuid| uuid == info.uuid || is_origin(uuid) || rolled_back == Some(uuid);
            let models = copied.iter().chain(&now);
            let models: Vec<_> = models.filter(|model| is_its(model.uuid)).collect();
            let is_gone = now.iter().all(|model| model.uuid != info.uuid);
            let is_resized = models.iter().any(|model| model.cells.len() != count);
            if is_gone || is_resized {
                continue; // of some sub-blocks the model has forgotten what they held
            }
            for (at, found) in found.into_iter().enumerate() {
                let Some(found) = found else { continue };
                let mut possible = models.iter().flat_map(|model| model.cells[at].since(0));
                assert!(
                    possible.any(|content| *content == found),
                    "{} sub-block {at} holds {found:?}, which it never did",
                    info.name
                );
            }
        }
    }
}
