//! What an owner does with the drives that hold the metadata: a model of `meta/src/on_drives/members.rs` and `joining.rs`.

use std::rc::Rc;

use super::drives::{Drives, Failed};
use super::media::{Block, Folder, Mark, Read, Record, Superblock, holding, last_members, newest};
use super::{Broken, is_broken};

/// Drives that hold the metadata, if there are so many.
const COPIES_WANTED: usize = 3;

#[derive(Clone, Copy)]
struct Log {
    generation: u64,
    lineage: u64,
    slot: usize,
    base: usize,
}

pub(super) struct Metadata {
    drives: Rc<Drives>,
    members: Vec<usize>,
    /// Those of the last generation that all of its members know of; at first of several of which that is not known.
    recorded: Vec<Vec<usize>>,
    log: Option<Log>,
    generation_max: u64,
    records: Vec<Record>,
}

impl Metadata {
    /// `resume`.
    pub(super) async fn open(
        drives: &Rc<Drives>,
        folder: Folder,
        areas: &[Read],
    ) -> Result<Self, Failed> {
        let Folder { records, mark } = folder;
        let in_areas = newest(areas).map_or(0, |newest| newest.generation);
        let mut metadata = Self {
            drives: drives.clone(),
            members: Vec::new(),
            recorded: last_members(areas),
            log: None,
            generation_max: mark.generation.max(in_areas),
            records,
        };
        metadata.find_members(mark, areas).await?;
        if metadata.members.is_empty() && mark.records.is_some() {
            // What the drives hold does not count any more.
            metadata.generation_max += 1;
            metadata.keep_folder();
        }
        Ok(metadata)
    }

    /// And `redo_last`.
    async fn find_members(&mut self, mark: Mark, areas: &[Read]) -> Result<(), Failed> {
        let mut found = holding(areas);
        found.retain(|(_, superblock)| superblock.generation == self.generation_max);
        if found.is_empty() && mark.records.is_some() {
            return Err(Failed::NotTaken);
        }
        let stable = mark
            .records
            .filter(|_| mark.generation == self.generation_max);
        let Some((stable, (_, first))) = stable.zip(found.first().cloned()) else {
            return Ok(());
        };
        let is_usable = |member: &&usize| {
            let mut areas = areas.iter();
            areas.any(|(at, media)| at == *member && media.superblock.is_some())
        };
        let (named, usable) = (first.members.len(), first.members.iter().filter(is_usable));
        if usable.count() * 2 < named {
            return Err(Failed::NotTaken);
        }
        let log = Log {
            generation: first.generation,
            lineage: first.lineage,
            slot: first.slot,
            base: first.base,
        };
        let other = |superblock: &Superblock| {
            let of = (superblock.lineage, superblock.slot, superblock.base);
            of != (log.lineage, log.slot, log.base)
        };
        let is_behind = found.iter().any(|((_, media), superblock)| {
            let next = |at| media.frame(at, log.lineage).is_some();
            other(superblock) || next(stable) && next(stable + 1)
        });
        if is_behind || log.base > stable {
            return Ok(());
        }
        self.members = found.iter().map(|((at, _), _)| *at).collect();
        if !self.is_half() {
            self.members.clear();
            return Ok(());
        }
        self.log = Some(log);
        let mut next = found.iter();
        let next = next.find_map(|((_, media), _)| media.frame(stable, log.lineage));
        if let Some(record) = next {
            self.records.truncate(stable);
            self.append(record).await?;
        }
        match self.members.len() == named {
            true => self.keep_folder(),
            false => self.begin_generation().await?,
        }
        Ok(())
    }

    pub(super) fn records(&self) -> &[Record] {
        &self.records
    }

    pub(super) fn members(&self) -> &[usize] {
        &self.members
    }

    fn seen(&self, look: impl FnOnce(&mut super::truth::Seen)) {
        self.drives
            .place
            .sim
            .with(|world| look(&mut world.truth.seen));
    }

    /// The folder has what the drives have.
    fn keep_folder(&self) {
        let is_any = !self.members.is_empty();
        let log = self.log.filter(|_| is_any);
        let mark = match log {
            Some(log) => Mark {
                generation: log.generation,
                records: Some(self.records.len()),
            },
            None => Mark {
                generation: self.generation_max,
                records: None,
            },
        };
        let folder = Folder {
            records: self.records.clone(),
            mark,
        };
        let place = &self.drives.place;
        let node = place.node;
        place
            .sim
            .with(|world| world.machines[node].folder = Some(folder));
    }

    /// A change: on all members, and then in the folder.
    pub(super) async fn change(&mut self, record: Record) -> Result<(), Failed> {
        self.append(record).await?;
        self.keep_folder();
        Ok(())
    }

    async fn append(&mut self, record: Record) -> Result<(), Failed> {
        let at = self.records.len();
        self.records.push(record);
        let Some(log) = self.log else {
            return Ok(());
        };
        let members = self.members.iter();
        let frames = members.map(|drive| (*drive, Block::Frame(at, log.lineage, record)));
        let failed = self.drives.write(frames.collect()).await?;
        match failed.is_empty() {
            true => Ok(()),
            false => self.leave(&failed).await,
        }
    }

    /// Those are no members any more, and the others know.
    pub(super) async fn leave(&mut self, drives: &[usize]) -> Result<(), Failed> {
        let told = || format!("{drives:?} are left");
        self.drives.place.sim.with(|world| world.tell(told));
        let before = self.members.len();
        self.members.retain(|member| !drives.contains(member));
        match before == self.members.len() {
            true => Ok(()),
            false => self.begin_generation().await,
        }
    }

    /// The members are half of those that were known last, or more.
    fn is_half(&self) -> bool {
        let is_member = |drive: &&usize| self.members.contains(drive);
        let mut all = self.recorded.iter();
        all.all(|recorded| recorded.iter().filter(is_member).count() * 2 >= recorded.len())
    }

    fn check_half(&self) -> Result<(), Failed> {
        let is_half = self.is_half() || is_broken(Broken::OwnerGoesOn);
        match is_half && !self.members.is_empty() {
            true => Ok(()),
            false => {
                self.seen(|seen| seen.cut_off += 1);
                let told = || format!("{:?} of {:?} are too few", self.members, self.recorded);
                self.drives.place.sim.with(|world| world.tell(told));
                Err(Failed::Ends)
            }
        }
    }

    async fn begin_generation(&mut self) -> Result<(), Failed> {
        loop {
            self.check_half()?;
            let Some(mut log) = self.log else {
                return Ok(());
            };
            self.generation_max += 1;
            log.generation = self.generation_max;
            self.log = Some(log);
            let superblock = Rc::new(Superblock {
                generation: log.generation,
                lineage: log.lineage,
                slot: log.slot,
                base: log.base,
                members: self.members.clone(),
            });
            let mut failed = Vec::new();
            let recorded = self.recorded.concat();
            let (first, then): (Vec<usize>, Vec<usize>) = self
                .members
                .iter()
                .partition(|member| recorded.contains(member));
            for wave in [first, then] {
                let block = || Block::Superblock(Some(superblock.clone()));
                let blocks = wave.into_iter().map(|member| (member, block()));
                if failed.is_empty() {
                    failed = self.drives.write(blocks.collect()).await?;
                }
            }
            if failed.is_empty() {
                self.recorded = vec![self.members.clone()];
                self.keep_folder();
                return Ok(());
            }
            self.members.retain(|member| !failed.contains(member));
        }
    }

    /// Some of these become members, if members are missing.
    pub(super) async fn join(&mut self, candidates: &[usize]) -> Result<(), Failed> {
        let mut joining: Vec<usize> = candidates.to_vec();
        joining.retain(|drive| !self.members.contains(drive));
        let recorded = self.recorded.concat();
        joining.sort_by_key(|drive| !recorded.contains(drive));
        joining.truncate(COPIES_WANTED.saturating_sub(self.members.len()));
        for drive in &joining {
            self.drives.forget_losses(*drive);
        }
        let erased = joining
            .iter()
            .map(|drive| (*drive, Block::Superblock(None)));
        let failed = self.drives.write(erased.collect()).await?;
        joining.retain(|drive| !failed.contains(drive));
        if joining.is_empty() {
            return Ok(());
        }
        let mut log = match self.log.filter(|_| !self.members.is_empty()) {
            Some(log) => log,
            None => Log {
                generation: self.generation_max,
                lineage: self
                    .drives
                    .place
                    .sim
                    .with(|world| rand::Rng::random(&mut world.rng)),
                slot: 1,
                base: 0,
            },
        };
        (log.slot, log.base) = (1 - log.slot, self.records.len());
        let base = Rc::new(self.records.clone());
        let all: Vec<usize> = self.members.iter().chain(&joining).copied().collect();
        let bases = all.iter();
        let bases = bases.map(|drive| (*drive, Block::Base(log.slot, log.lineage, base.clone())));
        let failed = self.drives.write(bases.collect()).await?;
        self.log = Some(log);
        self.members = all;
        self.members.retain(|member| !failed.contains(member));
        self.seen(|seen| seen.joins += 1);
        self.begin_generation().await
    }

    /// Whether one of these could be a member, and is none.
    pub(super) fn wants(&self, drives: &[usize]) -> bool {
        let is_other = |drive: &usize| !self.members.contains(drive);
        self.members.len() < COPIES_WANTED && drives.iter().any(is_other)
    }
}
