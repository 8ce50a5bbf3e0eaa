//! The way of a batch of writes.
//!
//! Fingerprints -> compression of what seems to be new, if the volume asks for it -> look-up (a
//! reference to what is known, a block for what is new, a wait for what another batch is writing) -> new
//! data of all commands to the drives, straight from their buffers -> one append with a record per
//! command -> mappings installed, commands told. On every way out but success, all references and blocks
//! that a command took are given back, also when the batch is dropped.
//!
//! A command that cannot go on with the others (it waits for another batch, or needs room or something
//! that is in the store only, or a drive failed) goes on alone, so that it delays and harms no other.

mod claiming;
mod compressing;
mod writing;

use std::ops::Range;
use std::sync::Arc;

use futures_util::future::{join, join_all};
use meta::{Fingerprint, MapEntry, NewBlock, Pba, RecordRef};

use crate::content::fingerprint::{self, Block, Hasher};
use crate::hooks::{Current, Hooks};
use crate::io::batcher::Command;
use crate::io::packing::Packing;
use crate::io::reclaim::reclaim_space;
use crate::io::verify::compare_later;
use crate::io::verify::{self, Check};
use crate::log::append::{AppendError, append_failed, appended_upto, begin, wait_for_room};
use crate::metadata::on_disk_index::{Answer, Sought};
use crate::metadata::state::State;
use crate::pool::Shared;
use crate::pool::backpressure::RoomPermit;
use crate::pool::comparisons::Kept;
use crate::residency::on_disk_index::ask_on_disk_index;
use crate::residency::rows::{Pins, pin_rows};
use crate::stages::Stage;
use crate::sync::gate::Entry;
use crate::sync::wait::Event;
use crate::{EngineError, Result};
use claiming::is_among;

/// How often a write without room asks for freed blocks before it fails.
const RECLAIM_ATTEMPTS: u32 = 3;

/// Writes all commands, and tells each what became of it.
pub(crate) async fn run(shared: Arc<Shared>, commands: Vec<Command>) {
    Current::note_batch(commands.len(), 0);
    let mut batch = Batch::new(shared, commands);
    batch.ended(Stage::Wait);
    batch.look_at_content();
    batch.ended(Stage::Hash);
    batch.round().await;
    let rest = batch.split_off_rest(|progress| !matches!(progress, Progress::Asks));
    Current::note_batch(0, rest.len());
    if rest.is_empty() && batch.jobs.is_empty() {
        return;
    }
    let rest = join_all(rest.into_iter().map(Batch::go_on_alone));
    join(rest, batch.go_on_asking()).await;
}

/// How far a command has come.
pub(crate) enum Progress {
    /// Nothing is claimed; to be tried (again).
    Begun,
    /// It has a block for every content.
    Claimed,
    /// It has a block for every content but those that other batches are writing.
    Waits(Vec<Arc<Event>>),
    /// What is known of these addresses is in the store only; it has a block for contents that it was
    /// not needed for.
    Loads(Vec<Pba>),
    /// The store has to be asked for index entries; it has a block for contents that need none.
    Asks,
    /// Some contents need room that is not there; nothing is claimed.
    Full,
    /// Its volume is not there any more; nothing is claimed.
    Gone,
    /// Its record has its range of the journal, and holds the references: it takes place, whoever is dropped.
    Recorded,
}

pub(crate) struct Job {
    /// `None`: it was told.
    pub(crate) command: Option<Command>,
    /// Its sub-blocks among the batch's items.
    pub(crate) items: Range<usize>,
    pub(crate) progress: Progress,
    /// To be compared when it was told.
    pub(crate) kept: Vec<Kept>,
}

impl Job {
    /// The name of its volume's domain.
    fn domain(&self) -> String {
        let command = self.command.as_ref();
        command.map_or_else(String::new, |command| command.volume.domain().to_owned())
    }

    fn is_told(&self) -> bool {
        self.command.is_none()
    }

    pub(crate) fn blocks(&self) -> &[Block] {
        let buf = self
            .command
            .as_ref()
            .and_then(|command| command.buf.as_ref());
        buf.map_or(&[], |buf| fingerprint::split(buf))
    }
}

/// The checksum of an item.
#[derive(Clone, Copy)]
pub(crate) enum Crc {
    /// To be computed, if the content is to be stored.
    Unknown,
    Known(u32),
    /// That of another item of the batch, whose block this one shares.
    Of(u32),
}

/// One sub-block to be written.
pub(crate) struct Item {
    /// Zeros are not stored.
    is_zero: bool,
    fingerprint: Fingerprint,
    pub(crate) crc: Crc,
    /// What a host sees there at present.
    shown: Option<Pba>,
    /// What the map itself has there.
    old: Option<Pba>,
    /// The block that it holds one reference of.
    pub(crate) taken: Option<Pba>,
    pub(crate) check: Check,
    /// What the store said of its content, if it was asked.
    answer: Option<Answer>,
}

impl Item {
    /// `hides`: where nothing is mapped, an ancestor may have something.
    fn entry(&self, hides: bool) -> MapEntry {
        let crc32c = match self.crc {
            Crc::Known(crc32c) => crc32c,
            Crc::Unknown | Crc::Of(_) => 0, // nothing is stored
        };
        let new = self.taken.map(|pba| NewBlock {
            pba,
            fingerprint: self.fingerprint,
            crc32c,
        });
        MapEntry {
            old: self.old,
            new: new.or(hides.then_some(NewBlock::HOLE)),
        }
    }
}

/// A domain's hasher, and the items of a batch that it has to look at.
type Hashed<'a> = (&'a Arc<Hasher>, Vec<(u32, &'a Block)>);

/// A new block, and whose bytes it gets.
struct New {
    job: u32,
    item: u32,
    pba: Pba,
}

pub(crate) struct Batch {
    pub(crate) shared: Arc<Shared>,
    pub(crate) jobs: Vec<Job>,
    pub(crate) items: Vec<Item>,
    /// Blocks that were allocated and have not landed, in the order of their allocation.
    new: Vec<New>,
    /// Which of them share a block.
    packing: Packing,
    /// They are marked in flight under this number.
    flight: Option<u64>,
    /// A drive may be writing to them.
    writing: bool,
    /// Drives that may still write to them, though they failed at that.
    in_doubt: Vec<u16>,
    /// Its pass of the gate, from the choice of the copies on that it writes until its blocks landed.
    gate: Option<Entry>,
    /// What it had to bring in.
    pins: Vec<Pins>,
    /// Somebody watches one of its commands.
    is_watched: bool,
}

impl Batch {
    fn new(shared: Arc<Shared>, commands: Vec<Command>) -> Self {
        let mut end = 0;
        let job = |command: Command| {
            let first = end;
            end += command.count();
            Job {
                command: Some(command),
                items: first..end,
                progress: Progress::Begun,
                kept: Vec::new(),
            }
        };
        Self {
            is_watched: commands.iter().any(Command::is_watched),
            shared,
            jobs: commands.into_iter().map(job).collect(),
            items: Vec::new(),
            new: Vec::new(),
            packing: Packing::default(),
            flight: None,
            writing: false,
            in_doubt: Vec::new(),
            gate: None,
            pins: Vec::new(),
        }
    }

    /// A stage of all its commands has ended, for who watches them.
    fn ended(&self, stage: Stage) {
        if self.is_watched {
            let commands = self.jobs.iter().filter_map(|job| job.command.as_ref());
            commands.for_each(|command| command.ended(stage));
        }
    }

    /// Finds zeros, and fingerprints everything else.
    fn look_at_content(&mut self) {
        let Self {
            shared,
            jobs,
            items,
            ..
        } = self;
        items.reserve(jobs.last().map_or(0, |job| job.items.end));
        // One list per domain: mostly there is one.
        let mut domains: Vec<Hashed<'_>> = Vec::with_capacity(1);
        for job in jobs.iter() {
            let hashed = job.command.as_ref().filter(|command| !command.is_mark);
            let volume = hashed.map(|command| &command.volume);
            let hasher = volume
                .filter(|volume| volume.dedup())
                .map(|volume| volume.hasher(&shared.domains));
            let domain = hasher.map(|hasher| {
                let known = domains.iter().position(|(h, _)| Arc::ptr_eq(h, hasher));
                known.unwrap_or_else(|| {
                    domains.push((hasher, Vec::with_capacity(items.capacity())));
                    domains.len() - 1
                })
            });
            for block in job.blocks() {
                if let Some(domain) = domain {
                    domains[domain].1.push((items.len() as u32, block));
                }
                items.push(Item {
                    // The others are looked at once, by who hashes them.
                    is_zero: domain.is_none() && fingerprint::is_zero(block),
                    fingerprint: Fingerprint::NONE,
                    crc: Crc::Unknown,
                    shown: None,
                    old: None,
                    taken: None,
                    check: Check::Done,
                    answer: None,
                });
            }
        }
        for (hasher, hashed) in &domains {
            let blocks = hashed.iter().map(|(_, block)| *block);
            hasher.look(blocks, |at, fingerprint| {
                let item = &mut items[hashed[at].0 as usize];
                match fingerprint {
                    Some(fingerprint) => item.fingerprint = fingerprint,
                    None => item.is_zero = true,
                }
            });
        }
    }

    /// One attempt for all commands that are not acknowledged yet.
    async fn round(&mut self) {
        self.compress().await;
        self.ended(Stage::Hash);
        if let Err(error) = self.claim() {
            return self.fail_all(&error);
        }
        self.ended(Stage::Index);
        self.compare_within();
        self.checksum();
        self.ended(Stage::Hash);
        let written = self.write_and_compare().await;
        self.ended(Stage::Drive);
        if let Err(error) = written {
            self.give_back_all();
            // Of several, each tries again alone, so that only those fail whose blocks cannot be written.
            if let [_] = self.jobs[..] {
                self.fail_all(&error);
            }
            return;
        }
        // Memory goes back before anything has to wait.
        self.packing = Packing::default();
        // Only with nothing of our own in flight may anybody wait: a circle of commands that wait for
        // each other cannot close. So the new blocks land in here, whatever happens.
        self.commit().await;
    }

    /// Writes the new blocks, and meanwhile reads the blocks that are to be compared.
    async fn write_and_compare(&mut self) -> Result<()> {
        let candidates = self.candidates();
        if candidates.is_empty() {
            return self.write_new().await;
        }
        let shared = self.shared.clone();
        let (written, found) = join(
            self.write_new(),
            verify::read(&shared, candidates.iter().map(|it| it.pba)),
        )
        .await;
        written?;
        self.compare(&candidates, &found);
        Ok(())
    }

    fn commands(&mut self) -> impl Iterator<Item = &mut Command> {
        let jobs = self.jobs.iter_mut();
        jobs.filter_map(|job| job.command.as_mut())
    }

    /// Appends the records of all commands that have their blocks, and tells them.
    async fn commit(&mut self) {
        let mut entries = Vec::with_capacity(self.items.len());
        let mut records: Vec<(usize, Range<usize>)> = Vec::with_capacity(self.jobs.len());
        let mut unchanged = Vec::new();
        for (number, job) in self.jobs.iter().enumerate() {
            if !matches!(job.progress, Progress::Claimed) {
                continue;
            }
            let first = entries.len();
            let volume = job.command.as_ref().map(|command| &command.volume);
            let hides = volume.is_some_and(|volume| volume.inherits_since().is_some());
            let items = &self.items[job.items.clone()];
            if items.iter().all(|item| item.shown == item.taken) {
                unchanged.push(number);
            } else {
                entries.extend(items.iter().map(|item| item.entry(hides)));
                records.push((number, first..entries.len()));
            }
        }
        let shared = self.shared.clone();
        if records.is_empty() || !unchanged.is_empty() || shared.backpressure.is_busy() {
            self.land();
        }
        self.finish_unchanged(&unchanged).await;
        if !records.is_empty() {
            let permit = shared.backpressure.join_if_any().await;
            self.append_all(&shared, &entries, &records, permit).await;
        }
        for number in 0..self.jobs.len() {
            if let Progress::Gone = self.jobs[number].progress
                && let Some(command) = self.jobs[number].command.take()
            {
                let error = format!("volume {} was deleted", command.volume.id);
                command.finish(Err(EngineError::not_found(error)));
            }
        }
    }

    /// Appends records until all are told. `entries` are those of all records.
    async fn append_all<'a>(
        &mut self,
        shared: &'a Arc<Shared>,
        entries: &[MapEntry],
        records: &[(usize, Range<usize>)],
        mut permit: Option<RoomPermit<'a>>,
    ) {
        let (mut left, mut group) = (records, records.len());
        while !left.is_empty() {
            let (now, later) = left.split_at(group.min(left.len()));
            let mut landed = None;
            let begun = begin(shared, self.records(entries, now), |state| {
                landed = self.land_in(state);
            });
            let failure = match begun {
                Ok(append) => {
                    self.has_landed(landed);
                    for (number, _) in now {
                        // The record holds the references from here on.
                        let job = &mut self.jobs[*number];
                        job.progress = Progress::Recorded;
                        let items = &mut self.items[job.items.clone()];
                        items.iter_mut().for_each(|item| item.taken = None);
                    }
                    match append.finish().await {
                        Ok(first) => {
                            for (sequence, (number, _)) in (first..).zip(now) {
                                self.finish(*number, Ok(sequence));
                            }
                            left = later;
                            group = left.len();
                            continue;
                        }
                        Err(error) => {
                            self.may_be_found(now);
                            Err(error)
                        }
                    }
                }
                Err(AppendError::NotResident(pbas)) => {
                    self.land();
                    pin_rows(shared, pbas)
                        .await
                        .map(|more| self.pins.push(more))
                }
                Err(AppendError::VolumeGone(id)) => {
                    self.land();
                    Err(crate::log::append::volume_gone(id))
                }
                Err(AppendError::Journal(error)) => {
                    self.land();
                    if crate::log::append::is_size(&error) && now.len() > 1 {
                        group = now.len().div_ceil(2);
                        continue;
                    }
                    if error.is_full() {
                        wait_for_room(shared, &mut permit).await
                    } else {
                        if !crate::log::append::is_size(&error) {
                            self.may_be_found(now);
                        }
                        Err(append_failed(shared, &error))
                    }
                }
            };
            if let Err(error) = failure {
                for (number, _) in now {
                    self.give_back(*number);
                    self.finish(*number, Err(error.clone()));
                }
                left = later;
                group = left.len();
            }
        }
    }

    /// The journal may hold these records, although their append failed.
    fn may_be_found(&self, records: &[(usize, Range<usize>)]) {
        for (number, _) in records {
            let job = &self.jobs[*number];
            if let Some(command) = &job.command
                && !job.kept.is_empty()
            {
                self.shared.verify.lost_track(command.volume.id, &job.kept);
            }
        }
    }

    /// The records of some commands; `entries` are those of all.
    fn records<'e>(
        &self,
        entries: &'e [MapEntry],
        records: &[(usize, Range<usize>)],
    ) -> Vec<RecordRef<'e>> {
        let record = |(number, range): &(usize, Range<usize>)| {
            let command = self.jobs[*number].command.as_ref();
            let (map, start) =
                command.map_or((0, 0), |command| (command.volume.map(), command.start));
            RecordRef::map(map, start, &entries[range.clone()])
        };
        records.iter().map(record).collect()
    }

    /// The new blocks are written: others may share them.
    fn land(&mut self) {
        if self.flight.is_some() {
            let landed = self.land_in(&self.shared.state.share());
            self.has_landed(landed);
        }
    }

    fn land_in(&self, state: &State) -> Option<Arc<Event>> {
        let flight = self.flight?;
        for New { item, pba, .. } in &self.new {
            if let Crc::Known(crc32c) = self.items[*item as usize].crc {
                state.blocks.set_crc32c(*pba, crc32c);
            }
        }
        state.land(flight)
    }

    fn has_landed(&mut self, landed: Option<Arc<Event>>) {
        self.leave_gate();
        self.flight = None;
        self.new.clear();
        if let Some(landed) = landed {
            landed.set();
        }
    }

    fn leave_gate(&mut self) {
        if let Some(entry) = self.gate.take() {
            self.shared.drives.gate.leave(entry);
        }
    }

    /// Commands that map what is mapped already: by a record that is to be in the journal before they are told.
    async fn finish_unchanged(&mut self, unchanged: &[usize]) {
        for number in unchanged {
            self.give_back(*number);
        }
        if !unchanged.is_empty() {
            let sequence = self.shared.state.share().last_change();
            let appended = appended_upto(&self.shared, sequence).await;
            for number in unchanged {
                self.finish(*number, appended.clone().map(|()| sequence));
            }
        }
    }

    /// The commands whose records have their range of the journal when the batch is dropped: their changes are made, and what they
    /// found by its fingerprint is compared all the same.
    fn leave_recorded(&mut self) {
        for job in &mut self.jobs {
            if !matches!(job.progress, Progress::Recorded) {
                continue;
            }
            let Some(mut command) = job.command.take() else {
                continue;
            };
            let kept = std::mem::take(&mut job.kept);
            if !kept.is_empty() && self.shared.appended.is_closed() {
                self.shared.verify.lost_track(command.volume.id, &kept);
            } else if !kept.is_empty() {
                compare_later(&self.shared, &mut command, kept);
            }
            command.finish(Err(EngineError::internal("a batch of writes was dropped")));
        }
    }

    fn finish(&mut self, number: usize, result: Result<u64>) {
        let job = &mut self.jobs[number];
        if let Some(mut command) = job.command.take() {
            if result.is_ok() && !job.kept.is_empty() {
                let kept = std::mem::take(&mut job.kept);
                compare_later(&self.shared, &mut command, kept);
            }
            command.ended(Stage::Journal);
            command.finish(result);
        }
    }

    fn fail_all(&mut self, error: &EngineError) {
        self.give_back_all();
        for number in 0..self.jobs.len() {
            self.finish(number, Err(error.clone()));
        }
    }

    /// Drops the references of one command.
    fn give_back(&mut self, number: usize) {
        let items = &mut self.items[self.jobs[number].items.clone()];
        let taken = items.iter_mut().filter_map(|item| item.taken.take());
        self.shared.state.share().give_back_all(taken);
    }

    /// Gives everything back that the batch holds.
    fn give_back_all(&mut self) {
        if self.flight.is_none() && self.items.iter().all(|item| item.taken.is_none()) {
            return;
        }
        self.jobs.iter_mut().for_each(|job| job.kept.clear());
        let landed = {
            let state = self.shared.state.share();
            // Others may have an abandoned block for something else at once: its references are not given back one by one.
            let taken = self.items.iter_mut().filter_map(|item| item.taken.take());
            for pba in taken.filter(|pba| !is_among(&self.new, *pba)) {
                state.give_back(pba);
            }
            for New { pba, .. } in self.new.drain(..) {
                for place in self.shared.drives.all_places(pba).iter() {
                    if self.in_doubt.contains(&place.drive) {
                        state.space().doubt(pba.container(), place.drive);
                    }
                }
                state.abandon(pba, self.writing);
            }
            self.in_doubt.clear();
            state.release();
            self.flight.take().and_then(|flight| state.land(flight))
        };
        self.leave_gate();
        if let Some(landed) = landed {
            landed.set();
        }
    }

    /// Of the commands that are not told yet, those that leave, each as a batch of its own; the others stay.
    fn split_off_rest(&mut self, leaves: impl Fn(&Progress) -> bool) -> Vec<Batch> {
        debug_assert!(self.flight.is_none());
        let mut rest = Vec::new();
        let jobs = std::mem::take(&mut self.jobs);
        let mut items = std::mem::take(&mut self.items).into_iter();
        for mut job in jobs {
            let items = items.by_ref().take(job.items.len());
            if job.is_told() {
                items.for_each(drop);
                continue;
            }
            let mut alone = match leaves(&job.progress) {
                true => Some(Batch::new(self.shared.clone(), Vec::new())),
                false => None,
            };
            let batch = alone.as_mut().unwrap_or(&mut *self);
            batch.is_watched |= job.command.as_ref().is_some_and(Command::is_watched);
            let first = batch.items.len();
            batch.items.extend(items);
            job.items = first..batch.items.len();
            batch.jobs.push(job);
            rest.extend(alone);
        }
        rest
    }

    /// The rest of the way of commands that have to ask the store: together, so that a look-up of theirs
    /// costs little, and then each alone.
    async fn go_on_asking(mut self) {
        if self.jobs.is_empty() {
            return;
        }
        if let Err(error) = self.ask().await {
            return self.fail_all(&error);
        }
        self.ended(Stage::Index);
        self.round().await;
        let rest = self.split_off_rest(|_| true);
        drop(self);
        join_all(rest.into_iter().map(Batch::go_on_alone)).await;
    }

    /// Asks the store for index entries to contents that nobody else knows.
    async fn ask(&mut self) -> Result<()> {
        let mut wanted = Vec::new();
        let generation = {
            let state = self.shared.state.share();
            for job in &self.jobs {
                for at in job.items.clone() {
                    let item = &self.items[at];
                    if !item.is_zero
                        && item.taken.is_none()
                        && item.fingerprint.is_some()
                        && state.seek(&item.fingerprint, item.answer) == Sought::Ask
                    {
                        wanted.push(at);
                    }
                }
            }
            state.on_disk_index.generation
        };
        if wanted.is_empty() {
            return Ok(());
        }
        let fingerprints = wanted.iter().map(|at| self.items[*at].fingerprint);
        let asked = ask_on_disk_index(&self.shared, generation, fingerprints.collect());
        for (at, answer) in wanted.into_iter().zip(asked.await?) {
            self.items[at].answer = Some(answer);
        }
        Ok(())
    }

    /// The rest of the way of a single command.
    async fn go_on_alone(mut self) {
        let mut attempts = 0;
        while let [job] = &mut self.jobs[..]
            && !job.is_told()
        {
            match std::mem::replace(&mut job.progress, Progress::Begun) {
                Progress::Waits(events) => {
                    for event in events {
                        event.wait().await;
                    }
                    self.ended(Stage::Wait);
                }
                Progress::Loads(pbas) => match pin_rows(&self.shared, pbas).await {
                    Ok(more) => self.pins.push(more),
                    Err(error) => return self.fail_all(&error),
                },
                Progress::Asks => {
                    if let Err(error) = self.ask().await {
                        return self.fail_all(&error);
                    }
                }
                Progress::Full => {
                    attempts += 1;
                    if self.shared.state.share().space().is_withheld()
                        || attempts > RECLAIM_ATTEMPTS
                        || !reclaim_space(&self.shared).await
                    {
                        let error = self.shared.no_space();
                        return self.fail_all(&error);
                    }
                }
                Progress::Begun | Progress::Claimed | Progress::Gone | Progress::Recorded => {}
            }
            self.ended(Stage::Index);
            self.round().await;
        }
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        self.leave_recorded();
        self.give_back_all();
    }
}
