//! The model of a whole pool, and the commands that exercise the engine and it side by side.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use drives::BLOCK_BYTES;
use futures_util::future::join_all;
use meta::VolumePolicy;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use reactor::BufferPool;
use uuid::Uuid;

use super::content::{SECTOR, fill, number};
use super::model::{Cell, Content, Effect, SECTORS};
use super::policies::compares_later;
use super::settings::Pair;
use super::tally::Tally;
use crate::residency::loading::load_some;
use crate::residency::pages::warm_up;
use crate::sync::wait::yield_once;
use crate::{Engine, ErrorKind, Result, VolumeSpec};

/// Sub-blocks of the largest simulated volume.
pub(super) const CELLS_MAX: usize = 96;
const VOLUMES_MAX: usize = 3;
const DOMAINS: [&str; 3] = ["", "", "other"];

/// A change of a volume that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admin {
    Idle,
    Creating,
    Resizing(usize),
    Deleting,
    /// To the snapshot with this identity.
    RollingBack(Uuid),
}

/// A volume in the model.
#[derive(Clone)]
pub(super) struct VolumeModel {
    pub(super) uuid: Uuid,
    pub(super) name: String,
    pub(super) lba: usize,
    pub(super) cells: Vec<Cell>,
    /// With a hash that collides, a crash may leave what was not flushed with another content.
    pub(super) compares_later: bool,
    /// It did so once: a crash may have left it with blocks of other contents.
    pub(super) has_compared_later: bool,
    /// What becomes of what is written, and what it becomes if a change is under way or was cut short.
    pub(super) policy: VolumePolicy,
    pub(super) next_policy: Option<VolumePolicy>,
    pub(super) admin: Admin,
    pub(super) busy: u32,
    /// Forks of it that are under way: it is not deleted meanwhile.
    pub(super) forks: u32,
    /// What it is being cloned from, and since when.
    pub(super) origin: Option<(Uuid, u64)>,
    /// The volume that it is a snapshot of.
    pub(super) snapshot_of: Option<Uuid>,
    /// The snapshots of one moment that it is one of, until that ends: all of them are there, or none.
    pub(super) moment: Option<u64>,
}

/// What the engine must look like from outside.
#[derive(Default)]
pub(super) struct World {
    now: u64,
    next_change: u64,
    next_unique: u32,
    /// When the last completed flush began.
    pub(super) flushed: u64,
    pub(super) volumes: Vec<VolumeModel>,
    /// Drives and journal may fail in this life: `Unavailable` is an answer.
    pub(super) may_fail: bool,
    /// There are but a few fingerprints.
    pub(super) is_hash_weak: bool,
    /// The machine tells at which of its starts a pool is opened.
    pub(super) tells_boot: bool,
    /// Blocks are damaged: `Corrupt` is an answer. What was not flushed may be taken back where a crash
    /// cannot be told from a loss of power.
    pub(super) has_damage: bool,
    /// Older metadata is in use than the drives': any block may be another one than it was.
    pub(super) is_restored: bool,
    /// Blocks that ever decayed, or could not be read when the pool was opened, by drive.
    pub(super) decayed: BTreeSet<(u16, u64)>,
    /// Two settings that change together.
    pub(super) pair: Pair,
    /// The process dies after so many steps more.
    pub(super) dies_in: Option<u64>,
    pub(super) tally: Tally,
}

impl World {
    pub(super) fn tick(&mut self) -> u64 {
        self.now += 1;
        self.now
    }

    pub(super) fn volume(&mut self, uuid: Uuid) -> Option<&mut VolumeModel> {
        self.volumes.iter_mut().find(|volume| volume.uuid == uuid)
    }

    pub(super) fn begin(&mut self, uuid: Uuid, first: usize, effects: &[Effect]) -> Option<u64> {
        let now = self.tick();
        self.next_change += 1;
        let id = self.next_change;
        let volume = self.volume(uuid)?;
        let cells = volume.cells.get_mut(first..first + effects.len())?;
        if !cells.iter().all(|cell| cell.has_room()) {
            return None;
        }
        for (cell, effect) in cells.iter_mut().zip(effects) {
            cell.begin(id, *effect, now);
        }
        volume.busy += 1;
        Some(id)
    }

    pub(super) fn end(
        &mut self,
        uuid: Uuid,
        first: usize,
        count: usize,
        id: u64,
        is_ok: bool,
        is_durable: bool,
    ) {
        let now = self.tick();
        let Some(volume) = self.volume(uuid) else {
            return;
        };
        volume.busy -= 1;
        for cell in &mut volume.cells[first..first + count] {
            cell.end(id, is_ok, is_durable, now);
        }
    }

    /// An error must be one that the situation explains.
    pub(super) fn judge(&self, uuid: Uuid, what: &str, result: &Result<()>) {
        let Err(error) = result else { return };
        let is_gone = !self
            .volumes
            .iter()
            .any(|volume| volume.uuid == uuid && volume.admin != Admin::Deleting);
        let is_explained = match error.kind {
            ErrorKind::NoSpace => what != "trim" && what != "read" && what != "flush",
            ErrorKind::NotFound => is_gone || what == "copy of what is gone",
            ErrorKind::Unavailable | ErrorKind::WriteFault => self.may_fail,
            ErrorKind::Corrupt => {
                let reads = [
                    "read",
                    "write",
                    "write zeroes",
                    "copy",
                    "copy of what is gone",
                ];
                self.has_damage && reads.contains(&what)
            }
            _ => false,
        };
        assert!(is_explained, "{what} failed: {error}");
    }
}

/// A task's surroundings.
#[derive(Clone)]
pub(super) struct Actor {
    pub(super) world: Rc<RefCell<World>>,
    pub(super) engine: Arc<Engine>,
    pub(super) pool: BufferPool,
}

/// Waits for a command, but now and then drops it after some polls.
pub(super) async fn patiently<T>(
    rng: &mut ChaCha8Rng,
    command: impl Future<Output = T>,
) -> Option<T> {
    let patience = match rng.random_range(0..40) {
        0 => rng.random_range(0..12),
        _ => u32::MAX,
    };
    let mut command = std::pin::pin!(command);
    let mut polls = 0;
    std::future::poll_fn(move |cx| {
        if polls == patience {
            return Poll::Ready(None);
        }
        polls += 1;
        if polls == patience {
            cx.waker().wake_by_ref();
        }
        command.as_mut().poll(cx).map(Some)
    })
    .await
}

/// A range of whole LBAs of a volume.
pub(super) struct Target {
    pub(super) uuid: Uuid,
    pub(super) name: String,
    pub(super) offset: usize,
    pub(super) len: usize,
}

impl Target {
    pub(super) fn first(&self) -> usize {
        self.offset / BLOCK_BYTES
    }

    pub(super) fn count(&self) -> usize {
        (self.offset + self.len).div_ceil(BLOCK_BYTES) - self.first()
    }

    /// The range's sectors in sub-block `first + at`.
    pub(super) fn sectors(&self, at: usize) -> impl Iterator<Item = usize> + '_ {
        let base = (self.first() + at) * BLOCK_BYTES;
        (0..SECTORS).filter(move |sector| {
            (self.offset..self.offset + self.len).contains(&(base + sector * SECTOR))
        })
    }

    pub(super) fn effects(&self, mut value: impl FnMut(usize, usize) -> u32) -> Vec<Effect> {
        let effect = |at| {
            let mut effect = [None; SECTORS];
            for sector in self.sectors(at) {
                effect[sector] = Some(value(at, sector));
            }
            effect
        };
        (0..self.count()).map(effect).collect()
    }
}

impl Actor {
    /// Some commands, one after the other.
    pub(super) async fn work(self, mut rng: ChaCha8Rng, commands: u32) {
        if self.world.borrow().volumes.is_empty() {
            self.create(&mut rng).await;
        }
        for _ in 0..commands {
            match rng.random_range(0..100) {
                0..19 => self.write(&mut rng).await,
                19..21 => self.fork(&mut rng).await,
                21 | 22 if rng.random_range(0..3) > 0 => self.snapshot(&mut rng).await,
                21 | 22 => self.roll_back(&mut rng).await,
                23 => self.exchange(&mut rng).await,
                24..28 => self.copy(&mut rng).await,
                28..42 => self.burst(&mut rng).await,
                42..58 => self.read(&mut rng).await,
                58..66 => self.zero(&mut rng).await,
                66..75 => self.trim(&mut rng).await,
                75..83 => self.flush().await,
                83..87 => self.compare(&mut rng).await,
                87..89 => self.background(&mut rng).await,
                99 => self.change_settings(&mut rng).await,
                98 => self.change_policy(&mut rng).await,
                89 if rng.random() => self.drop_snapshot(&mut rng).await,
                89 => self.scrub().await,
                90..93 => self.resize(&mut rng).await,
                93..95 => self.delete(&mut rng).await,
                _ => self.create(&mut rng).await,
            }
        }
    }

    pub(super) fn choose(&self, rng: &mut ChaCha8Rng) -> Option<Target> {
        self.choose_of(rng, |volume| volume.snapshot_of.is_none())
    }

    /// What to read: snapshots, too.
    fn choose_read(&self, rng: &mut ChaCha8Rng) -> Option<Target> {
        self.choose_of(rng, |_| true)
    }

    fn choose_of(
        &self,
        rng: &mut ChaCha8Rng,
        is_wanted: impl Fn(&VolumeModel) -> bool,
    ) -> Option<Target> {
        let world = self.world.borrow();
        let usable: Vec<_> = world
            .volumes
            .iter()
            .filter(|volume| volume.admin == Admin::Idle && is_wanted(volume))
            .collect();
        let volume = usable.get(rng.random_range(0..usable.len().max(1)))?;
        let lbas = volume.cells.len() * BLOCK_BYTES / volume.lba;
        let lba_max = (128 << 10) / volume.lba;
        let count = match rng.random_range(0..10) {
            0..5 => rng.random_range(1..=lbas.min(8)),
            5..8 => rng.random_range(1..=lbas.min(24)),
            _ => rng.random_range(1..=lbas.min(lba_max)),
        };
        let start = rng.random_range(0..=lbas - count);
        let (offset, len) = (start * volume.lba, count * volume.lba);
        Some(Target {
            uuid: volume.uuid,
            name: volume.name.clone(),
            offset,
            len,
        })
    }

    /// What to write: few contents, so that duplicates are common, some zeros, some that are new.
    pub(super) fn choose_values(&self, rng: &mut ChaCha8Rng, target: &Target) -> Vec<Effect> {
        let mut world = self.world.borrow_mut();
        let style = rng.random_range(0..10);
        let mut base = 0;
        target.effects(|_, sector| {
            if sector == 0 || base == 0 {
                base = match (style, rng.random_range(0..8)) {
                    (_, 0) => u32::MAX,
                    (0..6, _) | (6..9, 1..4) => 1 + 8 * rng.random_range(0..24),
                    _ => {
                        world.next_unique += 8;
                        1000 + world.next_unique
                    }
                };
            }
            if base == u32::MAX {
                0
            } else {
                base + sector as u32
            }
        })
    }

    /// Several writes at once, which make one batch.
    pub(super) async fn burst(&self, rng: &mut ChaCha8Rng) {
        self.burst_at(rng, None).await;
    }

    /// Writes side by side, to this volume if it is named.
    pub(super) async fn burst_at(&self, rng: &mut ChaCha8Rng, volume: Option<Uuid>) {
        let writes = (0..rng.random_range(2..7)).map(|_| {
            let mut rng = ChaCha8Rng::seed_from_u64(rng.random());
            async move { self.write_to(&mut rng, volume).await }
        });
        join_all(writes).await;
    }

    async fn write(&self, rng: &mut ChaCha8Rng) {
        self.write_to(rng, None).await;
    }

    async fn write_to(&self, rng: &mut ChaCha8Rng, volume: Option<Uuid>) {
        let is_wanted = |model: &VolumeModel| {
            model.snapshot_of.is_none() && volume.is_none_or(|uuid| model.uuid == uuid)
        };
        let Some(target) = self.choose_of(rng, is_wanted) else {
            return;
        };
        let effects = self.choose_values(rng, &target);
        let is_durable = rng.random_range(0..8) == 0;
        let Some(mut buf) = self.pool.try_alloc(target.len) else {
            return;
        };
        let values = effects.iter().flatten().flatten();
        for (sector, value) in buf.chunks_exact_mut(SECTOR).zip(values) {
            fill(sector, *value);
        }
        let Some(volume) = self.engine.volume(&target.name) else {
            return;
        };
        let id = self
            .world
            .borrow_mut()
            .begin(target.uuid, target.first(), &effects);
        let Some(id) = id else {
            return yield_once().await;
        };
        let write = async { volume.write(target.offset as u64, buf, is_durable).await.0 };
        let result = patiently(rng, write).await;
        self.finish("write", &target, id, result, is_durable);
    }

    /// `None`: the command's future was dropped; whether it takes effect is open until a crash.
    pub(super) fn finish(
        &self,
        what: &str,
        target: &Target,
        id: u64,
        result: Option<Result<()>>,
        is_durable: bool,
    ) {
        let is_durable = is_durable || self.engine.shared.config.write_through;
        let mut world = self.world.borrow_mut();
        let Some(result) = result else {
            world.tally.dropped += 1;
            if let Some(volume) = world.volume(target.uuid) {
                volume.busy -= 1;
            }
            return;
        };
        world.judge(target.uuid, what, &result);
        match &result {
            Ok(()) => world.tally.changes += 1,
            Err(error) if error.kind == ErrorKind::NoSpace => world.tally.full += 1,
            Err(_) => world.tally.failed += 1,
        }
        world.end(
            target.uuid,
            target.first(),
            target.count(),
            id,
            result.is_ok(),
            is_durable,
        );
    }

    async fn zero(&self, rng: &mut ChaCha8Rng) {
        let Some(target) = self.choose(rng) else {
            return;
        };
        let is_durable = rng.random_range(0..8) == 0;
        let Some(volume) = self.engine.volume(&target.name) else {
            return;
        };
        let effects = target.effects(|_, _| 0);
        let id = self
            .world
            .borrow_mut()
            .begin(target.uuid, target.first(), &effects);
        let Some(id) = id else {
            return yield_once().await;
        };
        let zero = volume.write_zeroes(target.offset as u64, target.len as u64, is_durable);
        let result = patiently(rng, zero).await;
        self.finish("write zeroes", &target, id, result, is_durable);
    }

    async fn trim(&self, rng: &mut ChaCha8Rng) {
        let Some(target) = self.choose(rng) else {
            return;
        };
        let Some(volume) = self.engine.volume(&target.name) else {
            return;
        };
        let mut effects = target.effects(|_, _| 0);
        for effect in &mut effects {
            if effect.iter().any(Option::is_none) {
                *effect = [None; SECTORS];
            }
        }
        let id = self
            .world
            .borrow_mut()
            .begin(target.uuid, target.first(), &effects);
        let Some(id) = id else {
            return yield_once().await;
        };
        let trim = volume.trim(target.offset as u64, target.len as u64);
        let result = patiently(rng, trim).await;
        self.finish("trim", &target, id, result, false);
    }

    async fn read(&self, rng: &mut ChaCha8Rng) {
        let Some(target) = self.choose_read(rng) else {
            return;
        };
        let Some(mut buf) = self.pool.try_alloc(target.len) else {
            return;
        };
        buf.fill(0xaa);
        let Some(volume) = self.engine.volume(&target.name) else {
            return;
        };
        let began = self.world.borrow_mut().tick();
        let (result, buf) = volume.read(target.offset as u64, buf).await;
        let world = self.world.borrow();
        world.judge(target.uuid, "read", &result);
        if result.is_err() {
            assert!(
                buf.iter().all(|byte| *byte == 0),
                "a failed read returned data"
            );
            drop(world);
            self.world.borrow_mut().tally.unreadable += 1;
            return;
        }
        let Some(model) = world
            .volumes
            .iter()
            .find(|volume| volume.uuid == target.uuid)
        else {
            return;
        };
        // What could not be compared is told, and may be wrong until a restart.
        let verified = self.engine.status().verify;
        if world.is_hash_weak && model.compares_later && verified.failed_blocks > 0 {
            return;
        }
        let mut sectors = buf.chunks_exact(SECTOR);
        for at in 0..target.count() {
            let Some(cell) = model.cells.get(target.first() + at) else {
                return;
            };
            let found: Vec<(usize, u32)> = target
                .sectors(at)
                .map(|sector| {
                    let bytes = sectors.next().unwrap();
                    (
                        sector,
                        number(bytes).expect("a read returned what nobody wrote"),
                    )
                })
                .collect();
            let fits = |content: &&Content| {
                found
                    .iter()
                    .all(|(sector, value)| content[*sector] == *value)
            };
            assert!(
                cell.since(began).find(fits).is_some(),
                "a read of {} sub-block {} returned {found:?}, possible: {:?} (read-only: {:?}, {verified:?}, weak \
                 hash: {}, compares later: {})",
                target.name,
                target.first() + at,
                cell.since(began).collect::<Vec<_>>(),
                self.engine.status().read_only,
                world.is_hash_weak,
                model.compares_later
            );
        }
    }

    async fn compare(&self, rng: &mut ChaCha8Rng) {
        let Some(target) = self.choose_read(rng) else {
            return;
        };
        let Some(mut buf) = self.pool.try_alloc(target.len) else {
            return;
        };
        let wanted: Vec<(usize, usize, u32)> = {
            let world = self.world.borrow();
            let Some(model) = world
                .volumes
                .iter()
                .find(|volume| volume.uuid == target.uuid)
            else {
                return;
            };
            let finals: Vec<Content> = (0..target.count())
                .map(|at| *model.cells[target.first() + at].finals().first().unwrap())
                .collect();
            let sectors =
                (0..target.count()).flat_map(|at| target.sectors(at).map(move |s| (at, s)));
            sectors
                .map(|(at, sector)| (at, sector, finals[at][sector]))
                .collect()
        };
        for (bytes, (_, _, value)) in buf.chunks_exact_mut(SECTOR).zip(&wanted) {
            fill(bytes, *value);
        }
        let flip = rng.random_range(0..4) == 0;
        if flip {
            buf[0] ^= 0x80;
        }
        let Some(volume) = self.engine.volume(&target.name) else {
            return;
        };
        let began = self.world.borrow_mut().tick();
        let (result, _) = volume.compare(target.offset as u64, buf).await;
        let world = self.world.borrow();
        world.judge(target.uuid, "read", &result.clone().map(drop));
        let Ok(is_equal) = result else { return };
        let Some(model) = world
            .volumes
            .iter()
            .find(|volume| volume.uuid == target.uuid)
        else {
            return;
        };
        let fits = |content: &Content, at: usize| {
            wanted
                .iter()
                .filter(|(cell, _, _)| *cell == at)
                .all(|(_, s, value)| content[*s] == *value)
        };
        let cells = || (0..target.count()).map(|at| (at, &model.cells[target.first() + at]));
        let can_be_equal =
            !flip && cells().all(|(at, cell)| cell.since(began).any(|c| fits(c, at)));
        let can_differ = flip || cells().any(|(at, cell)| cell.since(began).any(|c| !fits(c, at)));
        let is_open = world.is_hash_weak
            && model.compares_later
            && self.engine.status().verify.failed_blocks > 0;
        assert!(
            is_open || if is_equal { can_be_equal } else { can_differ },
            "a comparison said {is_equal}"
        );
    }

    async fn flush(&self) {
        let began = self.world.borrow_mut().tick();
        let result = self.engine.flush().await;
        self.note_flush(began, result);
    }

    fn note_flush(&self, began: u64, result: Result<()>) {
        let mut world = self.world.borrow_mut();
        world.judge(Uuid::nil(), "flush", &result);
        if result.is_ok() {
            world.flushed = world.flushed.max(began);
        }
    }

    async fn background(&self, rng: &mut ChaCha8Rng) {
        let began = self.world.borrow_mut().tick();
        let result = match rng.random_range(0..4) {
            0 => self.engine.checkpoint().await,
            1 if rng.random() => return drop(warm_up(&self.engine.shared).await),
            1 => return drop(load_some(&self.engine.shared).await),
            _ => self.engine.maintain().await,
        };
        self.note_flush(began, result);
    }

    async fn create(&self, rng: &mut ChaCha8Rng) {
        let uuid = Uuid::from_u128(rng.random());
        let cells = rng.random_range(1..=CELLS_MAX);
        let lba = if rng.random() { 512 } else { BLOCK_BYTES };
        let policy = self.choose_policy(rng);
        let name = {
            let mut world = self.world.borrow_mut();
            let volumes = world.volumes.iter();
            if volumes.filter(|it| it.snapshot_of.is_none()).count() >= VOLUMES_MAX {
                return;
            }
            let now = world.tick();
            let name = format!("v-{uuid}");
            world.volumes.push(VolumeModel {
                uuid,
                name: name.clone(),
                lba,
                cells: vec![Cell::certain([0; SECTORS], now); cells],
                policy,
                next_policy: None,
                compares_later: compares_later(policy),
                has_compared_later: compares_later(policy),
                admin: Admin::Creating,
                busy: 0,
                forks: 0,
                origin: None,
                snapshot_of: None,
                moment: None,
            });
            name
        };
        let spec = VolumeSpec {
            name,
            size_bytes: (cells * BLOCK_BYTES) as u64,
            lba_bytes: lba as u32,
            nsid: None,
            uuid: Some(uuid),
            dedup: policy.dedup,
            compression: policy.compression,
            verify: policy.verify,
            domain: DOMAINS[rng.random_range(0..DOMAINS.len())].to_owned(),
        };
        let result = self.engine.create_volume(spec).await.map(drop);
        let mut world = self.world.borrow_mut();
        world.judge(Uuid::nil(), "create", &result);
        // After a failure it is open whether it will be there; the next opening tells.
        if result.is_ok()
            && let Some(volume) = world.volume(uuid)
        {
            volume.admin = Admin::Idle;
        }
    }

    async fn resize(&self, rng: &mut ChaCha8Rng) {
        let cells = rng.random_range(1..=CELLS_MAX);
        let chosen = {
            let mut world = self.world.borrow_mut();
            let mut idle = world
                .volumes
                .iter_mut()
                .filter(|volume| volume.admin == Admin::Idle && volume.busy == 0)
                .filter(|volume| volume.snapshot_of.is_none());
            idle.next().map(|volume| {
                volume.admin = Admin::Resizing(cells);
                (volume.uuid, volume.name.clone())
            })
        };
        let Some((uuid, name)) = chosen else { return };
        let result = self
            .engine
            .resize_volume(&name, (cells * BLOCK_BYTES) as u64)
            .await
            .map(drop);
        let mut world = self.world.borrow_mut();
        world.judge(uuid, "resize", &result);
        let now = world.tick();
        if result.is_ok()
            && let Some(volume) = world.volume(uuid)
        {
            volume.set_cells(cells, now);
            volume.admin = Admin::Idle;
        }
    }
}

impl VolumeModel {
    pub(super) fn set_cells(&mut self, count: usize, now: u64) {
        self.cells.truncate(count);
        self.cells.resize(count, Cell::certain([0; SECTORS], now));
    }
}
