//! Blocks that decay: what is read of them, what a scrub finds, and what heals them.

use std::collections::BTreeMap;
use std::sync::Arc;

use drives::BLOCK_BYTES;
use meta::{Journal, MapId, Pba, Record, Store, VolumeInfo};
use rand::Rng;

use super::Story;
use super::content::{SECTOR, content, fill};
use super::drive::ShakyDrive;
use super::executor::Ended;
use super::model::Content;
use super::segments::place;
use super::world::Actor;
use crate::background::scrub::scrub_if_wanted;
use crate::sync::wait::lock;
use crate::{Engine, ErrorKind, ScrubPhase, Volume};

/// As fast as it gets: a simulation has no clock.
const RATE: u64 = 1 << 40;

impl Story {
    /// Now and then some blocks in use decay. The pool was just opened, so all of them are stable and
    /// the store knows them.
    pub(super) fn decay(&mut self) {
        if !self.decays || self.rng.random() {
            return;
        }
        let rows = self.store.blocks(Pba(0), Pba(u64::MAX), usize::MAX);
        let rows = rows.expect("rows of a store in memory");
        for _ in 0..self.rng.random_range(1..5) {
            if rows.is_empty() {
                return;
            }
            let (pba, _) = rows[self.rng.random_range(0..rows.len())];
            let (drive, block) = place(&*self.store, pba);
            let mut world = self.world.borrow_mut();
            world.has_damage = true;
            // The bits that decay are always the same: twice is not at all.
            if world.decayed.insert((drive, block)) {
                self.drives[usize::from(drive)].decay(block);
            }
        }
    }

    /// Between a crash and the opening, blocks that were not flushed decay, or cannot be read for a while or
    /// for good.
    pub(super) fn harm_unflushed(&mut self) {
        if !self.decays || self.rng.random() {
            return;
        }
        let checkpoint = self.store.checkpoint().expect("a store in memory");
        let opened = Journal::open(self.media.clone(), checkpoint, self.config.journal);
        let (_, records) = opened.expect("a journal after a crash");
        let durable = records.iter().filter_map(|(_, record)| match record {
            Record::Durable { upto } => Some(*upto),
            _ => None,
        });
        let durable = durable.max().unwrap_or(0);
        let later = records.iter().filter(|(sequence, _)| *sequence > durable);
        let new = later.flat_map(|(_, record)| match record {
            Record::Map { entries, .. } => &entries[..],
            _ => &[],
        });
        let new: Vec<Pba> = new.filter_map(|e| Some(e.new_block()?.pba)).collect();
        for _ in 0..self.rng.random_range(1..5) {
            if new.is_empty() {
                return;
            }
            let (drive, block) = place(&*self.store, new[self.rng.random_range(0..new.len())]);
            let kind = self.rng.random_range(0..4);
            let mut world = self.world.borrow_mut();
            world.has_damage = true;
            let is_first = world.decayed.insert((drive, block));
            let drive = &self.drives[usize::from(drive)];
            match kind {
                0 => drive.lose(block, u32::MAX),
                1 => drive.lose(block, 2),
                _ if is_first => drive.decay(block),
                _ => {}
            }
        }
    }

    /// Writes what was lost again, however often that is interrupted.
    pub(super) fn rewrite(&mut self, mut engine: Arc<Engine>) -> Arc<Engine> {
        while self.world.borrow().has_damage {
            let rewrite = self.actor(&engine).rewrite();
            let ended = self.run(vec![Box::pin(rewrite)], u64::MAX);
            if ended == Ended::Done && !self.has_struck() {
                break;
            }
            drop(engine);
            self.crash();
            engine = self.open_and_verify();
        }
        engine
    }
}

impl Actor {
    /// Contents of sub-blocks while nothing changes; `None` for those that cannot be read, as they
    /// refer to a damaged block.
    pub(super) async fn contents(
        &self,
        volume: &Volume,
        first: usize,
        count: usize,
    ) -> Vec<Option<Content>> {
        if let Some(found) = self.try_contents(volume, first, count).await {
            return found.into_iter().map(Some).collect();
        }
        let mut found = Vec::with_capacity(count);
        for at in first..first + count {
            let content = self.try_contents(volume, at, 1).await;
            if content.is_none() {
                self.expect_decayed(volume, at);
            }
            found.push(content.map(|content| content[0]));
        }
        found
    }

    async fn try_contents(
        &self,
        volume: &Volume,
        first: usize,
        count: usize,
    ) -> Option<Vec<Content>> {
        let buf = self.pool.alloc(count * BLOCK_BYTES).await;
        let (result, buf) = volume.read((first * BLOCK_BYTES) as u64, buf).await;
        if let Err(error) = result {
            let is_expected = error.kind == ErrorKind::Corrupt && self.world.borrow().has_damage;
            assert!(is_expected, "reading everything back: {error}");
            return None;
        }
        let blocks = buf.chunks_exact(BLOCK_BYTES);
        let content = |block| content(block).expect("a sub-block holds what nobody wrote");
        Some(blocks.map(content).collect())
    }

    /// The store's mapping, of the map or of its nearest ancestor that has an entry. It is right as long as nothing was
    /// changed since the opening.
    fn mapped(&self, map: MapId, at: usize) -> Option<Pba> {
        let at = at as u64;
        let store = &self.engine.shared.store;
        let line = lock(&self.engine.shared.state).line_of(map);
        let mut rows = line.into_iter().flat_map(|map| {
            let rows = store.mappings(map, at, at + 1, 1);
            rows.expect("rows of a store in memory")
        });
        rows.next().map(|(_, mapping)| mapping.pba)
    }

    fn expect_decayed(&self, volume: &Volume, at: usize) {
        let store = &*self.engine.shared.store;
        let mut world = self.world.borrow_mut();
        world.tally.unreadable += 1;
        if world.is_restored {
            return;
        }
        let pba = self.mapped(volume.info().map, at);
        assert!(
            pba.is_some_and(|pba| world.decayed.contains(&place(store, pba))),
            "sub-block {at} cannot be read, but nothing happened to block {pba:?}"
        );
    }

    /// A scrub among everything else.
    pub(super) async fn scrub(&self) {
        if self.engine.start_scrub(RATE).is_err() {
            return; // one is under way
        }
        scrub_if_wanted(&self.engine.shared, &self.engine.background).await;
        let is_through = self.engine.scrub_status().phase == ScrubPhase::Finished;
        self.world.borrow_mut().tally.scrubs += u64::from(is_through);
    }

    /// Whether a block may hold what a volume of another domain wrote. A volume that compares in the background
    /// refers to such a block if the two contents have the same fingerprint, each in its own domain, and a
    /// crash came before the comparison. When the other volume goes, the block's fingerprint is that of no
    /// domain in use: a scrub cannot prove it, and is right to say so.
    fn may_be_of_another_domain(&self, pba: Pba) -> bool {
        let store = &self.engine.shared.store;
        let volumes = store.volumes().expect("rows of a store in memory");
        let maps_it = |info: &&VolumeInfo| {
            let mut line = lock(&self.engine.shared.state)
                .line_of(info.map)
                .into_iter();
            line.any(|map| {
                let mappings = store.mappings(map, 0, u64::MAX, usize::MAX);
                let mappings = mappings.expect("rows of a store in memory");
                mappings.iter().any(|(_, mapping)| mapping.pba == pba)
            })
        };
        let world = self.world.borrow();
        let compared_later = |info: &VolumeInfo| {
            let mut models = world.volumes.iter();
            let model = models.find(|model| model.uuid == info.uuid);
            model.is_none_or(|model| model.has_compared_later)
        };
        world.is_hash_weak && volumes.iter().filter(maps_it).all(compared_later)
    }

    /// A scrub of a pool that was just opened finds all that is damaged, and nothing else.
    pub(super) async fn scrub_all(&self, drives: &[Arc<ShakyDrive>]) {
        let rows = self
            .engine
            .shared
            .store
            .blocks(Pba(0), Pba(u64::MAX), usize::MAX);
        let rows = rows.expect("rows of a store in memory");
        self.scrub().await;
        let status = self.engine.scrub_status();
        let world = self.world.borrow();
        // Where fingerprints collide, each block that is listed is looked at below.
        assert!(
            world.has_damage || world.is_hash_weak || status.bad_blocks == 0,
            "a false alarm: {status:?}"
        );
        let damage = lock(&self.engine.shared.damage);
        for (pba, _) in rows {
            let (drive, block) = place(&*self.engine.shared.store, pba);
            // What decays of a pack may be none of this fragment.
            let is_damaged =
                !pba.is_fragment() && drives[usize::from(drive)].decayed().contains(&block);
            assert!(
                !is_damaged || damage.contains(pba),
                "a scrub did not find that block {pba} is damaged: {status:?}"
            );
            let has_decayed = world.is_restored || world.decayed.contains(&(drive, block));
            assert!(
                has_decayed || !damage.contains(pba) || self.may_be_of_another_domain(pba),
                "a scrub takes block {pba} for damaged: {status:?}"
            );
        }
    }

    /// Writes what cannot be read again, each content to one of its sub-blocks: the others must be healed by
    /// that, unless it is a fragment, or was never hashed, or what is written now is not.
    pub(super) async fn rewrite(self) {
        let mut lost: BTreeMap<Pba, Vec<(VolumeInfo, usize)>> = BTreeMap::new();
        for info in self.engine.volumes() {
            let volume = self.engine.volume(&info.name).expect("a volume is gone");
            for at in 0..info.size_bytes as usize / BLOCK_BYTES {
                if self.contents(&volume, at, 1).await == [None] {
                    let pba = self.mapped(info.map, at).expect("zeros can be read");
                    lost.entry(pba).or_default().push((info.clone(), at));
                }
            }
        }
        for (pba, sub_blocks) in lost {
            let rows = self.engine.shared.store.blocks(pba, Pba(pba.0 + 1), 1);
            let rows = rows.expect("rows of a store in memory");
            let is_hashed = rows[0].1.fingerprint.is_some();
            let (info, at) = &sub_blocks[0];
            let Some(content) = self.write_again(info, *at).await else {
                continue;
            };
            let maintained = self.engine.maintain().await;
            maintained.expect("maintaining");
            if pba.is_fragment() || !is_hashed || !info.dedup {
                continue;
            }
            for (info, at) in &sub_blocks[1..] {
                let volume = self.engine.volume(&info.name).expect("a volume is gone");
                let found = self.try_contents(&volume, *at, 1).await;
                assert_eq!(
                    found,
                    Some(vec![content]),
                    "block {pba} is not healed, though its content was written again"
                );
                self.world.borrow_mut().tally.healed += 1;
            }
        }
    }

    /// Writes what a sub-block held, if that is known and there is room.
    async fn write_again(&self, info: &VolumeInfo, at: usize) -> Option<Content> {
        let id;
        let content = {
            let mut world = self.world.borrow_mut();
            let finals = world.volume(info.uuid)?.cells[at].finals();
            let mut finals = finals.into_iter();
            let (Some(content), None) = (finals.next(), finals.next()) else {
                return None;
            };
            id = world.begin(info.uuid, at, &[content.map(Some)])?;
            content
        };
        let mut buf = self.pool.alloc(BLOCK_BYTES).await;
        for (sector, number) in buf.chunks_exact_mut(SECTOR).zip(content) {
            fill(sector, number);
        }
        let volume = self.engine.volume(&info.name).expect("a volume is gone");
        let (result, _) = volume.write((at * BLOCK_BYTES) as u64, buf, true).await;
        let mut world = self.world.borrow_mut();
        world.judge(info.uuid, "write", &result);
        world.end(info.uuid, at, 1, id, result.is_ok(), true);
        result.is_ok().then_some(content)
    }
}
