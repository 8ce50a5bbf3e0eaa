//! What a command of a batch claims: a block, known or new, for each content that it has none for; and how
//! that is undone when there is no room for all of them.

use std::sync::Arc;

use meta::{Pba, VerifyPolicy};

use super::{Batch, Crc, Item, Job, New, Progress};
use crate::Result;
use crate::io::packing::Packing;
use crate::io::verify::Check;
use crate::metadata::block_table::BlockTable;
use crate::metadata::flights::Flight;
use crate::metadata::page_map::PageMap;
use crate::metadata::state::{Claim, State, Wanted};
use crate::pool::comparisons::Kept;
use crate::sync::wait::lock;

impl Batch {
    /// Looks up every content that has no block yet.
    pub(super) fn claim(&mut self) -> Result<()> {
        self.note_what_is_mapped();
        // What is not needed any more goes when the state is not locked.
        let mut void = Vec::new();
        let shared = self.shared.clone();
        {
            let state = shared.state.share();
            if state.is_shareable() {
                self.claim_in(&state, &mut void)?;
                let wants_eviction = state.wants_eviction();
                drop(state);
                if wants_eviction {
                    lock(&shared.state).evict_some();
                }
                return Ok(());
            }
        }
        let mut state = lock(&shared.state);
        self.claim_in(&state, &mut void)?;
        for New { item, pba, .. } in &self.new {
            state.note_new(*pba, self.items[*item as usize].fingerprint);
        }
        state.evict_some();
        Ok(())
    }

    /// Notes what is mapped now where the commands write. Those for one volume share its lock, and what they look at is asked for
    /// together.
    fn note_what_is_mapped(&mut self) {
        let volume = |job: &Job| job.command.as_ref().map(|it| Arc::as_ptr(&it.volume));
        for jobs in self.jobs.chunk_by(|a, b| volume(a) == volume(b)) {
            let commands = || {
                jobs.iter()
                    .filter_map(|it| Some((it, it.command.as_ref()?)))
            };
            let Some((_, first)) = commands().next() else {
                continue;
            };
            let map = first.volume.pages();
            commands().for_each(|(_, command)| map.prefetch(command.start));
            for (job, command) in commands() {
                note_old(&map, command.start, &mut self.items[job.items.clone()]);
            }
        }
    }

    fn claim_in(&mut self, state: &State, void: &mut Vec<Kept>) -> Result<()> {
        let Self {
            jobs,
            items,
            new,
            packing,
            flight,
            ..
        } = self;
        state.check_writable()?;
        for job in jobs.iter_mut() {
            let Some(command) = &job.command else {
                continue;
            };
            if !state.volumes.contains_key(&command.volume.id) {
                job.progress = Progress::Gone;
                continue;
            }
            let missing = not_resident(&state.blocks, &items[job.items.clone()]);
            if !missing.is_empty() {
                job.progress = Progress::Loads(missing);
            }
        }
        // One alone has nothing to do meanwhile.
        if items.len() > 1 {
            let wanted = items.iter().map(|item| &item.fingerprint);
            state.prefetch(wanted, items.iter().filter_map(|item| item.old));
        }
        let mut taking_off = state.new_flight();
        for (number, job) in (0..).zip(jobs.iter_mut()) {
            if job.is_told() || matches!(job.progress, Progress::Gone | Progress::Loads(_)) {
                continue;
            }
            let first_new = new.len();
            job.progress = claim_job(state, &mut taking_off, (number, job), items, packing, new);
            if let Progress::Full = job.progress {
                void.append(&mut job.kept);
                undo_claims(
                    state,
                    &mut taking_off,
                    &mut items[job.items.clone()],
                    packing,
                    new.split_off(first_new),
                );
            }
        }
        *flight = state.take_off(taking_off);
        Ok(())
    }
}

/// Notes what a command's sub-blocks are mapped to, for hosts and in the map itself. Its range is locked, so that stays so.
fn note_old(map: &PageMap, start: u64, items: &mut [Item]) {
    let mut targets = items.iter_mut();
    let end = start + targets.len() as u64;
    let found = map.find_run_of(start, end, |_, mapping, is_own| {
        if let Some(item) = targets.next() {
            item.shown = mapping.map(|mapping| mapping.pba);
            item.old = item.shown.filter(|_| is_own);
        }
    });
    debug_assert!(found.is_ok(), "what is written to was not brought in");
}

/// What is mapped now, and only the store knows of.
fn not_resident(blocks: &BlockTable, items: &[Item]) -> Vec<Pba> {
    if blocks.is_whole() {
        return Vec::new();
    }
    let old = items.iter().filter_map(|item| item.old);
    old.filter(|pba| !blocks.is_resident(*pba)).collect()
}

/// Looks up every content of a command that has no block yet.
fn claim_job(
    state: &State,
    flight: &mut Flight,
    (number, job): (u32, &Job),
    items: &mut [Item],
    packing: &mut Packing,
    new: &mut Vec<New>,
) -> Progress {
    let (mut waits, mut has_to_wait) = (Vec::new(), false);
    let mut loads = Vec::new();
    let mut asks = false;
    let (is_compared, is_again) = job.command.as_ref().map_or((false, false), |command| {
        (command.verify != VerifyPolicy::Trust, command.is_again)
    });
    for at in job.items.clone() {
        let item = &mut items[at];
        if item.is_zero || item.taken.is_some() {
            continue;
        }
        let wanted = Wanted {
            fingerprint: item.fingerprint,
            item: at as u32,
            is_distinct: item.check == Check::Distinct,
            has_promise: is_again,
            answer: item.answer,
        };
        match state.claim(flight, wanted, packing.pack_of(at)) {
            Claim::Known { pba, crc32c } => {
                item.taken = Some(pba);
                if is_compared {
                    item.check = Check::Stored;
                }
                item.crc = Crc::Known(crc32c);
            }
            Claim::Own { pba, item: other } => {
                item.taken = Some(pba);
                if is_compared {
                    item.check = Check::Within(other);
                }
                item.crc = Crc::Of(other);
            }
            Claim::New(pba) => {
                item.taken = Some(pba);
                item.check = Check::Done;
                new.push(New {
                    job: number,
                    item: at as u32,
                    pba,
                });
            }
            Claim::Wait(mut events) => {
                waits.append(&mut events);
                has_to_wait = true;
            }
            Claim::Load(pba) => loads.push(pba),
            Claim::Ask => asks = true,
            Claim::Full => return Progress::Full,
        }
    }
    if !loads.is_empty() {
        // What it would wait for is asked again afterwards. New blocks of it may come from several row pages.
        loads.extend(state.not_resident_ahead(flight, job.items.len()));
        Progress::Loads(loads)
    } else if asks {
        Progress::Asks
    } else if has_to_wait {
        Progress::Waits(waits)
    } else {
        Progress::Claimed
    }
}

/// A command that found no room gives back what it claimed so far. Nobody else refers to its new
/// blocks yet: those who could come after it.
fn undo_claims(
    state: &State,
    flight: &mut Flight,
    items: &mut [Item],
    packing: &mut Packing,
    new: Vec<New>,
) {
    // Others may have an abandoned block for something else at once: its references are not given back one by one.
    let taken = items.iter_mut().filter_map(|item| item.taken.take());
    for pba in taken.filter(|pba| !is_among(&new, *pba)) {
        state.give_back(pba);
    }
    for New { item, pba, .. } in new.into_iter().rev() {
        flight.stay(pba);
        state.abandon(pba, false);
        if pba.is_fragment()
            && let Some(pack) = packing.pack_of(item as usize)
        {
            pack.take_back();
        }
    }
    state.release();
}

/// Whether a block is one of these.
pub(super) fn is_among(new: &[New], pba: Pba) -> bool {
    new.iter().any(|new| new.pba == pba)
}
