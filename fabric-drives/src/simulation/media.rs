//! What the drives hold of the pool, and who is enough to know: a model of `meta/src/on_drives/` (`newest.rs`, `import.rs`), whose tests
//! have the real thing. The pool is a list of records; a record is a write, or that an opening began its epoch.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::{Broken, is_broken};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Record {
    /// The epoch, and the process that began it.
    Opening(u32, u64),
    Write(u64),
}

/// The last opening, as a drive's label names it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Label {
    pub(super) epoch: u32,
    pub(super) process: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Superblock {
    pub(super) generation: u64,
    pub(super) lineage: u64,
    pub(super) slot: usize,
    /// Records that the base has.
    pub(super) base: usize,
    pub(super) members: Vec<usize>,
}

/// A part of a drive that is written at once.
#[derive(Clone, Debug)]
pub(super) enum Block {
    Label(Label),
    Superblock(Option<Rc<Superblock>>),
    /// A slot, its lineage and the records.
    Base(usize, u64, Rc<Vec<Record>>),
    /// The place in the list, the lineage and the record.
    Frame(usize, u64, Record),
}

#[derive(Clone, Debug, Default)]
pub(super) struct Media {
    pub(super) label: Label,
    pub(super) superblock: Option<Rc<Superblock>>,
    bases: [Option<(u64, Rc<Vec<Record>>)>; 2],
    pub(super) log: BTreeMap<usize, (u64, Record)>,
}

impl Media {
    /// The drive of a pool that was made, with its metadata or without.
    pub(super) fn new(members: &[usize], at: usize) -> Self {
        let label = Label {
            epoch: 1,
            process: 0,
        };
        let mut media = Self {
            label,
            ..Self::default()
        };
        if members.contains(&at) {
            let records = Rc::new(vec![Record::Opening(1, 0)]);
            media.apply(&Block::Base(0, 1, records));
            let superblock = Superblock {
                generation: 1,
                lineage: 1,
                slot: 0,
                base: 1,
                members: members.to_vec(),
            };
            media.apply(&Block::Superblock(Some(Rc::new(superblock))));
        }
        media
    }

    pub(super) fn apply(&mut self, block: &Block) {
        match block {
            Block::Label(label) => self.label = *label,
            Block::Superblock(superblock) => self.superblock.clone_from(superblock),
            Block::Base(slot, lineage, records) => {
                self.bases[*slot] = Some((*lineage, records.clone()));
            }
            Block::Frame(at, lineage, record) => {
                self.log.insert(*at, (*lineage, *record));
            }
        }
    }

    /// The frame at that place of a log.
    pub(super) fn frame(&self, at: usize, lineage: u64) -> Option<Record> {
        let (of, record) = self.log.get(&at)?;
        (*of == lineage).then_some(*record)
    }

    /// The records that it has, as its superblock says; `None`: they cannot be read.
    fn records(&self) -> Option<Vec<Record>> {
        let superblock = self.superblock.as_ref()?;
        let (lineage, base) = self.bases[superblock.slot].as_ref()?;
        if *lineage != superblock.lineage || base.len() != superblock.base {
            return None;
        }
        let mut records = Vec::clone(base);
        while let Some(record) = self.frame(records.len(), *lineage) {
            records.push(record);
        }
        Some(records)
    }
}

/// What the folder knows of the drives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) generation: u64,
    /// Records that all drives have; `None`: nothing on any drive is of this folder.
    pub(super) records: Option<usize>,
}

/// A pool's folder.
#[derive(Clone, Debug)]
pub(super) struct Folder {
    pub(super) records: Vec<Record>,
    pub(super) mark: Mark,
}

impl Folder {
    /// The last opening.
    pub(super) fn opening(&self) -> Label {
        let openings = self.records.iter().rev();
        let mut openings = openings.filter_map(|record| match record {
            Record::Opening(epoch, process) => Some(Label {
                epoch: *epoch,
                process: *process,
            }),
            Record::Write(_) => None,
        });
        openings.next().unwrap_or_default()
    }
}

/// A drive that was read.
pub(super) type Read = (usize, Rc<Media>);

/// The newest metadata among some drives.
pub(super) struct Importable {
    /// What each drive that has it knows, those that know most first.
    sources: Vec<(usize, Vec<Record>)>,
    generation: u64,
    is_any_missing: bool,
    pub(super) has_majority: bool,
    /// The drives of those that hold it that answered, and how many there are.
    pub(super) known: Vec<usize>,
    pub(super) members: usize,
}

/// The newest of these.
pub(super) fn newest(drives: &[Read]) -> Option<Rc<Superblock>> {
    let all = drives
        .iter()
        .filter_map(|(_, media)| media.superblock.clone());
    all.max_by_key(|superblock| superblock.generation)
}

/// Who held the metadata last, as of `last_members`.
pub(super) fn last_members(drives: &[Read]) -> Vec<Vec<usize>> {
    let Some(newest) = newest(drives) else {
        return Vec::new();
    };
    let last = drives.iter().filter_map(|(at, media)| {
        let superblock = media.superblock.as_ref()?;
        let is_last = superblock.generation == newest.generation || newest.members.contains(at);
        is_last.then(|| superblock.members.clone())
    });
    last.collect()
}

/// Those among these that hold the newest metadata.
pub(super) fn holding(drives: &[Read]) -> Vec<(Read, Rc<Superblock>)> {
    let generation = newest(drives).map_or(0, |newest| newest.generation);
    let of = |(at, media): &Read| {
        let superblock = media.superblock.clone()?;
        let is_one = superblock.generation == generation && superblock.members.contains(at);
        is_one.then(|| ((*at, media.clone()), superblock))
    };
    drives.iter().filter_map(of).collect()
}

impl Importable {
    pub(super) fn look(drives: &[Read]) -> Option<Self> {
        let found = holding(drives);
        let members = found.first()?.1.members.clone();
        let with_superblock = |at: &usize| {
            let mut drives = drives.iter();
            drives.any(|(other, media)| other == at && media.superblock.is_some())
        };
        let known: Vec<usize> = members.iter().copied().filter(with_superblock).collect();
        let is_missing = |at: &usize| drives.iter().all(|(other, _)| other != at);
        let sources = found.iter();
        let sources = sources.filter_map(|((at, media), _)| Some((*at, media.records()?)));
        let mut sources: Vec<(usize, Vec<Record>)> = sources.collect();
        sources.sort_by_key(|(_, records)| std::cmp::Reverse(records.len()));
        (!sources.is_empty()).then(|| Self {
            sources,
            generation: found[0].1.generation,
            is_any_missing: members.iter().any(is_missing),
            has_majority: known.len() * 2 + usize::from(is_broken(Broken::HalfTakesOver))
                > members.len(),
            known,
            members: members.len(),
        })
    }

    pub(super) fn is_any_missing(&self) -> bool {
        self.is_any_missing
    }

    /// The folder that is made of it.
    pub(super) fn folder(&self) -> Folder {
        let records = self.sources[0].1.clone();
        let shortest = self.sources.iter().map(|(_, records)| records.len()).min();
        let shortest = shortest.filter(|shortest| {
            !self.is_any_missing && records.len().saturating_sub(*shortest) <= 1
        });
        let mark = match shortest {
            Some(_) => Mark {
                generation: self.generation,
                records: shortest,
            },
            None => Mark {
                generation: self.generation + 1,
                records: None,
            },
        };
        Folder { records, mark }
    }
}
